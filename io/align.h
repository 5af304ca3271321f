/* SPDX-License-Identifier: MIT */
#ifndef CAIRN_IO_ALIGN_H
#define CAIRN_IO_ALIGN_H

#include <stdint.h>

/* Alignment of memory, offset and length that O_DIRECT is given. 4096 is a
 * multiple of every logical block size Linux supports (open(2), NOTES). */
#define IO_ALIGN 4096u

static inline uint64_t io_align_down(uint64_t v)
{
	return v & ~(uint64_t)(IO_ALIGN - 1);
}

static inline uint64_t io_align_up(uint64_t v)
{
	return io_align_down(v + IO_ALIGN - 1);
}

#endif

/* SPDX-License-Identifier: MIT
 *
 * A source's extents as the writer needs them: widened to IO_ALIGN, merged where
 * they then touch, cut off at the file's last page.
 */
#ifndef CAIRN_IO_SPANS_H
#define CAIRN_IO_SPANS_H

#include "io.h"

struct io_spans {
	const struct io_source *src;
	unsigned i;		/* next extent */
	uint64_t start, end;	/* the current span, once io_spans_next said true */
};

static inline uint64_t io_align_down(uint64_t v)
{
	return v & ~(uint64_t)(IO_ALIGN - 1);
}

static inline uint64_t io_align_up(uint64_t v)
{
	return io_align_down(v + IO_ALIGN - 1);
}

void io_spans_init(struct io_spans *s, const struct io_source *src);
bool io_spans_next(struct io_spans *s); /* false: no more */
/* 0, or -EINVAL: extents not sorted, overlapping or overflowing. */
int io_spans_check(const struct io_source *src);

#endif

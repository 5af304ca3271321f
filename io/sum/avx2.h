/* SPDX-License-Identifier: MIT */
#ifndef CAIRN_IO_SUM_AVX2_H
#define CAIRN_IO_SUM_AVX2_H

#include <stddef.h>

/* XXH3_128bits_update of an XXH3_state_t; x86-64 with AVX2 only. */
void io_sum_update_avx2(void *state, const void *bytes, size_t len);

#endif

/* SPDX-License-Identifier: MIT
 *
 * The same hash with wide instructions, which a distribution's library, built for the
 * oldest processors, does not use. xxhash's own header has the code; this file only
 * compiles it once more.
 */
#if defined(__x86_64__)
#pragma GCC target("avx2")
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "avx2.h"

void io_sum_update_avx2(void *state, const void *bytes, size_t len)
{
	XXH3_128bits_update(state, bytes, len);
}
#endif

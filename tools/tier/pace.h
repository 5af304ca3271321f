/* SPDX-License-Identifier: MIT
 *
 * A limit of the rate: whoever moves bytes asks before how long to wait. What was not used of the
 * time before, up to PACE_BURST_NS of it, may be used at once.
 */
#ifndef CAIRN_TIER_PACE_H
#define CAIRN_TIER_PACE_H

#include "io/clock.h"

#include <stddef.h>

#define PACE_BURST_NS 50000000u

struct pace {
	uint64_t rate; /* bytes a second; 0: no limit */
	uint64_t next_ns; /* when what was taken until now is paid for */
};

/* Takes n bytes at `now`. How long to wait before they are moved. */
static inline uint64_t pace_take(struct pace *p, uint64_t n, uint64_t now)
{
	uint64_t wait;

	if (!p->rate)
		return 0;
	if (p->next_ns + PACE_BURST_NS < now)
		p->next_ns = now - PACE_BURST_NS;
	wait = p->next_ns > now ? p->next_ns - now : 0;
	p->next_ns += (uint64_t)((double)n * 1e9 / (double)p->rate);
	return wait;
}

/* The most to move between two waits: some 20 ms. */
static inline size_t pace_piece(const struct pace *p, size_t most)
{
	size_t piece = (size_t)(p->rate / 50);

	if (!p->rate || piece > most)
		return most;
	return piece < 4096 ? 4096 : piece;
}

/* Takes n bytes, and waits. */
static inline void pace_wait(struct pace *p, uint64_t n)
{
	uint64_t ns = pace_take(p, n, monotonic_ns());
	struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

	if (ns)
		nanosleep(&t, NULL); /* a signal ends it: the next wait is longer */
}

#endif

/* SPDX-License-Identifier: MIT
 *
 * Time for deadlines and intervals: CLOCK_MONOTONIC. And of files.
 */
#ifndef CAIRN_IO_CLOCK_H
#define CAIRN_IO_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t monotonic_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline bool time_is_later(struct timespec t, struct timespec than)
{
	return t.tv_sec != than.tv_sec ? t.tv_sec > than.tv_sec : t.tv_nsec > than.tv_nsec;
}

static inline void time_to_later(struct timespec *t, struct timespec than)
{
	if (time_is_later(than, *t))
		*t = than;
}

static inline void sleep_ms(uint64_t ms)
{
	struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000 * 1000000)};

	nanosleep(&t, NULL);
}

#endif

/* SPDX-License-Identifier: MIT
 *
 * A file that is fetched by ranges (tier_ranges.c), each compared with the manifest. Threads may
 * call these at once, but for ranges_open() and ranges_close().
 */
#ifndef CAIRN_TIER_RANGES_H
#define CAIRN_TIER_RANGES_H

#include "tier.h"

struct ranges {
	const struct tier_file *t; /* NULL: it was never open */
	uint64_t n, bytes; /* how many, at least 1; of each but the last */
	uint64_t next; /* where the search for one that is missing begins */
	int fd; /* the file, to read and write; -1: closed */
	int told; /* memory: a byte for each, enum tier_range (io/tier_ask.h) */
	uint8_t *state; /* the same, mapped */
	bool *busy; /* a thread has claimed it */
	bool existed; /* what a killed fetch left may be in the file */
};

/* Is told of bytes that came, of the file r. */
typedef void (*ranges_seen_fn)(void *ctx, const struct ranges *r, uint64_t bytes);

/* Is told that the tier has not the bytes of a range of r, or no such file, before readers are. */
typedef void (*ranges_bad_fn)(void *ctx, const struct tier *from, const struct ranges *r);

/* Makes the file `name` in dir, or goes on with it. 0 or -errno; t is kept. */
int ranges_open(struct ranges *r, const struct tier_file *t, int dir, const char *name);
void ranges_close(struct ranges *r); /* its descriptors */
void ranges_free(struct ranges *r);

/* The next ranges that are missing, at most `most`, are the caller's to get. Waits while those that
 * are missing are another thread's. False: none is. */
bool ranges_claim_next(struct ranges *r, uint64_t most, uint64_t *first, uint64_t *n);
/* The same for one, without waiting. False: it is there, or damaged, or another thread's. */
bool ranges_claim(struct ranges *r, uint64_t number);
/* Gets what the caller has claimed. 0; -EBADMSG: a range has other bytes, also when it was read
 * again, or the tier has no such file; or -errno: those that did not come are not claimed any
 * more. bad may be NULL. */
int ranges_get(struct ranges *r, const struct tier *from, uint64_t first, uint64_t n,
	       ranges_seen_fn seen, ranges_bad_fn bad, void *ctx);
bool ranges_are_there(const struct ranges *r);

#endif

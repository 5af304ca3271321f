/* SPDX-License-Identifier: MIT
 *
 * What the follower of a mount's tier (tools/cairn/tier/tier_follow.c) tells the processes of the
 * mount, in memory that they share: a page at descriptor TIER_SHARED_FD of the follower. Nobody
 * waits for anybody: the follower may be killed while it writes.
 */
#ifndef CAIRN_IO_TIER_H
#define CAIRN_IO_TIER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TIER_SHARED_FD 3
#define TIER_DIR "tier" /* STORE/.cairn/<host>/tier, the follower's */

/* Times are in seconds since 1970, 0: never. */
struct tier_report {
	uint64_t looked_ms; /* when the last look at the store began, in ms */
	uint64_t pending,
		pending_bytes; /* checkpoints that are not in the tier, and what is left */
	uint64_t oldest_s; /* since when the first of them waits */
	uint64_t sent, sent_bytes; /* since the mount; of pushes that completed */
	uint64_t rate; /* bytes a second, of late */
	uint64_t last_s; /* when the last one was completed */
	uint64_t error_s, retry_s; /* of the present error; retry_s: when it is tried again */
	uint64_t removed; /* from the store, by tier_keep */
	char last[256], sending[256]; /* paths below the store; "" = none */
	char error[512]; /* "" = none */
	/* when the last listing of the tier began, in ms; 0: it could not be listed since */
	uint64_t listed_ms;
	char other[384]; /* another store that writes to it; "" = none is known */
};

struct tier_shared {
	atomic_uint version; /* odd while report is written */
	atomic_uint errors; /* how often report.error changed */
	atomic_uint logged; /* errors, when it was logged last */
	atomic_uint starts, runner_starts; /* of followers, of what starts them */
	atomic_int pid; /* of the follower; 0: none runs now */
	atomic_int runner, guard;
	struct tier_report report;
	atomic_uint asked; /* how often somebody asked what the tier has */
};

static inline void tier_shared_put(struct tier_shared *s, const struct tier_report *r)
{
	unsigned v = atomic_load(&s->version) & ~1u; /* a killed one may have left it odd */
	bool changed = strcmp(s->report.error, r->error) != 0;

	atomic_store(&s->version, v + 1);
	atomic_thread_fence(memory_order_seq_cst);
	s->report = *r;
	atomic_thread_fence(memory_order_seq_cst);
	atomic_store(&s->version, v + 2);
	if (changed)
		atomic_fetch_add(&s->errors, 1);
}

/* A report of a follower that was killed while it wrote may be of two times. */
static inline void tier_shared_get(const struct tier_shared *s, struct tier_report *out)
{
	for (int tries = 0; tries < 1000; tries++) {
		unsigned v = atomic_load(&s->version);

		*out = s->report;
		atomic_thread_fence(memory_order_seq_cst);
		if (!(v & 1) && atomic_load(&s->version) == v)
			break;
	}
	out->last[sizeof(out->last) - 1] = out->sending[sizeof(out->sending) - 1] = 0;
	out->error[sizeof(out->error) - 1] = out->other[sizeof(out->other) - 1] = 0;
}

#endif

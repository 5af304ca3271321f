/* SPDX-License-Identifier: MIT
 * What staging can do without goes back while the machine has little memory: the page pool first,
 * then durable files, which are kept as a read cache. Else the kernel kills a trainer, or a worker
 * whose death frees nothing, beside gigabytes that nobody uses.
 *
 *	memory available (proc(5), MemAvailable)
 *	below 1 low	so much is given back that it is 2 low
 *	below 3 low	the pool does not grow
 *
 * A limit of the memory cgroup is not looked at here: admit.c keeps within it. */
#include "staging/file/file.h"

#include <stdio.h>

#define LOOK_NS 100000000u
#define LOW_PART 32u /* of the machine's memory */
#define LOW_MIN (512ull << 20)
#define LOW_MAX (8ull << 30)
/* evicted at once, for s->lock is held */
#define EVICT_STEP (1ull << 30)
#define TELL_NS 60000000000ull

static uint64_t low_of(uint64_t total)
{
	uint64_t low = total / LOW_PART;

	low = low < LOW_MIN ? LOW_MIN : low > LOW_MAX ? LOW_MAX : low;
	return low < total / 8 ? low : total / 8;
}

static void tell(struct staging *s, uint64_t available, uint64_t given)
{
	uint64_t now = monotonic_ns();
	char text[160];

	if (!given || (s->memory.told_ns && now - s->memory.told_ns < TELL_NS))
		return;
	s->memory.told_ns = now;
	snprintf(text, sizeof(text),
		 LEVEL_INFO "the machine has only %llu MiB of memory available: staging gives back "
			    "what it does not need, %llu MiB at first",
		 (unsigned long long)(available >> 20), (unsigned long long)(given >> 20));
	s->o.notice(s->o.ctx, text);
}

static uint64_t evict(struct staging *s, uint64_t want)
{
	LOCK_SCOPE(&s->lock);
	return sf_evict(s, want < EVICT_STEP ? want : EVICT_STEP);
}

void pressure_look(struct staging *s)
{
	uint64_t total, available = machine_memory(s, &total), low = low_of(total);

	atomic_store(&s->pool.may_grow, available >= 3 * low);
	if (available >= low)
		return;
	uint64_t want = 2 * low - available, pool = s->pool.bytes, evicted = 0;
	if (pool < want)
		evicted = evict(s, want - pool);
	pool_free(s, want); /* what was evicted is in the pool now */
	tell(s, available, (pool < want ? pool : want) + evicted);
}

void *pressure_main(void *arg)
{
	struct staging *s = arg;

	pthread_setname_np(pthread_self(), "cairn-memory");
	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		staging_wait_until(&s->memory.cond, &s->lock, monotonic_ns() + LOOK_NS);
		pthread_mutex_unlock(&s->lock);
		pressure_look(s);
		limit_look(s);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

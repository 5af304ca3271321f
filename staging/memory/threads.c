/* SPDX-License-Identifier: MIT
 * How threads wait: staging's own for work, callers for space; and their nice values. */
#include "staging/memory/memory.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WAIT_TOLD_NS 1000000u /* shorter waits are not counted */

void staging_wait_until(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns)
{
	struct timespec t = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
			     .tv_nsec = (long)(deadline_ns % 1000000000u)};
	pthread_cond_timedwait(c, m, &t);
}

void staging_nice(int nice)
{
	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice);
}

void sleeper_wait(struct staging *s, struct sleeper *l, uint64_t deadline_ns)
{
	if (atomic_exchange(&l->woken, false))
		return;
	uint64_t now = monotonic_ns(), tick = now + TICK_NS;
	bool lately = now - l->busy_ns < LINGER_NS;

	if (lately && (!deadline_ns || deadline_ns > tick))
		deadline_ns = tick;
	bool deep = !deadline_ns || deadline_ns > now + 2 * TICK_NS;
	l->deep += deep;
	if (deadline_ns)
		staging_wait_until(&l->cond, &s->lock, deadline_ns);
	else
		pthread_cond_wait(&l->cond, &s->lock);
	l->deep -= deep;
	atomic_store(&l->woken, false);
}

void sleeper_wake(struct sleeper *l)
{
	l->busy_ns = monotonic_ns();
	atomic_store(&l->woken, true);
	pthread_cond_broadcast(&l->cond);
}

void sleeper_nudge(struct sleeper *l, bool now)
{
	l->busy_ns = monotonic_ns();
	if (now || l->deep)
		pthread_cond_signal(&l->cond);
}

uint64_t sf_wait_begins(struct staging *s)
{
	s->st.waits++;
	return monotonic_ns();
}

uint64_t sf_wait_ends(struct staging *s, uint64_t since)
{
	uint64_t ns = monotonic_ns() - since;
	s->st.wait_ns += ns;
	return ns;
}

void sf_waited(struct staged *f, uint64_t since)
{
	struct staging *s = f->s;
	uint64_t ns = monotonic_ns() - since;
	if (ns < WAIT_TOLD_NS)
		return;
	LOCK_SCOPE(&s->lock);
	s->st.waits++;
	s->st.wait_ns += ns;
	f->times.admission += ns;
}

/* SPDX-License-Identifier: MIT
 * Read first in this room. The life of staging: open the log, replay it, start
 * the threads, drain, close.
 *
 *   staged.c   staged files and their states   log.c      the ordered log
 *   admit.c    how one begins; the budget      seal.c     how its versions are made
 *   relay.c    bytes through the daemon        meta.c     what a version has beside bytes
 *   persist.c  bytes to unpublished files      publish.c  names, in order
 *   ballast.c  touched memory, the watch       blank.c    files made ready beforehand
 *   dirs.c     directories of the store        reserve.c  room held in the store
 *   sweep.c    leftovers after a replay        trash.c    files of no use any more
 *   hold.c     names that wait for others      dedup.c    equal files stored once
 *   place.c    the tmpfs itself                record.c   records as bytes
 *   buffer.c   staged files on loan to clients clone.c    copies that are not written
 */
#include "staging/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

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
	uint64_t now = now_ns(), tick = now + TICK_NS;
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
}

void sleeper_wake(struct sleeper *l)
{
	l->busy_ns = now_ns();
	pthread_cond_broadcast(&l->cond);
}

void sleeper_nudge(struct sleeper *l, bool now)
{
	l->busy_ns = now_ns();
	if (now || l->deep)
		pthread_cond_signal(&l->cond);
}

static void cond_init(pthread_cond_t *c)
{
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(c, &a);
	pthread_condattr_destroy(&a);
}

int staging_open(const struct staging_opts *o, struct staging **out)
{
	struct staging *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->o = *o;
	if (!s->o.persist_threads)
		s->o.persist_threads = 2;
	if (s->o.persist_threads > 16)
		s->o.persist_threads = 16;
	if (s->o.ballast_bytes > s->o.budget_bytes)
		s->o.ballast_bytes = s->o.budget_bytes;
	struct rlimit rl;
	s->fds_pend = FDS_PEND_MAX;
	if (!getrlimit(RLIMIT_NOFILE, &rl) && rl.rlim_cur / 8 < s->fds_pend)
		s->fds_pend = rl.rlim_cur / 8;
	s->log_fd = s->ballast_fd = s->reserve_fd = -1;
	s->pend_tail = &s->pend;
	s->todo_tail = &s->todo;
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->ballast_lock, NULL);
	pthread_mutex_init(&s->reserve_take_lock, NULL);
	pthread_rwlock_init(&s->reserve_lock, NULL);
	cond_init(&s->work.cond);
	cond_init(&s->pub.cond);
	cond_init(&s->watch.cond);
	cond_init(&s->ballast_cond);
	cond_init(&s->done_cond);
	cond_init(&s->trash_cond);
	int rc = log_open(s);
	if (!rc)
		rc = dirs_open(s);
	if (!rc)
		rc = ballast_open(s);
	if (rc) {
		staging_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

int staging_start(struct staging *s)
{
	for (unsigned i = 0; i < s->o.persist_threads; i++) {
		int rc = io_queue_open(s->o.engine, &s->queues[i]);
		if (rc)
			return rc;
	}
	s->inherited = s->head->applied > s->head->durable;
	reserve_open(s);
	s->started = true;
	pthread_mutex_lock(&s->lock);
	buffer_settle(s);	/* what the last worker did not live to give back */
	pthread_mutex_unlock(&s->lock);
	unsigned n = s->o.persist_threads;
	for (unsigned i = 0; i < n; i++)
		if (pthread_create(&s->persist[i], NULL, persist_main, s))
			return -EAGAIN;
	if (pthread_create(&s->publisher, NULL, publish_main, s) ||
	    pthread_create(&s->watcher, NULL, watch_main, s))
		return -EAGAIN;
	if (pthread_create(&s->cleaner, NULL, trash_main, s))
		return -EAGAIN;
	if (s->ballast_fd >= 0 && pthread_create(&s->ballast, NULL, ballast_main, s))
		return -EAGAIN;
	return dedup_start(s);
}

int staging_drain(struct staging *s, int timeout_ms)
{
	uint64_t until = timeout_ms < 0 ? UINT64_MAX : now_ns() + (uint64_t)timeout_ms * 1000000u;
	LOCK_SCOPE(&s->lock);
	atomic_fetch_add(&s->n_sync_waiters, 1);	/* small files need not rest now */
	sleeper_wake(&s->work);
	sleeper_wake(&s->pub);
	while ((s->pend || s->inherited) && !s->halted && now_ns() < until)
		staging_wait_until(&s->done_cond, &s->lock, now_ns() + 50000000u);
	atomic_fetch_sub(&s->n_sync_waiters, 1);
	return s->halted ? s->halted : s->pend || s->inherited ? -ETIMEDOUT : 0;
}

static void stop_threads(struct staging *s)
{
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	sleeper_wake(&s->work);
	sleeper_wake(&s->pub);
	sleeper_wake(&s->watch);
	pthread_cond_broadcast(&s->done_cond);
	pthread_cond_broadcast(&s->ballast_cond);
	pthread_cond_broadcast(&s->trash_cond);
	dedup_wake(s);
	pthread_mutex_unlock(&s->lock);
	for (unsigned i = 0; i < s->o.persist_threads; i++)
		if (s->persist[i])
			pthread_join(s->persist[i], NULL);
	if (s->publisher)
		pthread_join(s->publisher, NULL);
	if (s->watcher)
		pthread_join(s->watcher, NULL);
	if (s->ballast)
		pthread_join(s->ballast, NULL);
	if (s->cleaner)
		pthread_join(s->cleaner, NULL);
	dedup_close(s);
	for (unsigned i = 0; i < s->o.persist_threads; i++)
		if (s->queues[i])
			io_queue_close(s->queues[i]);
}

void staging_close(struct staging *s)
{
	if (!s)
		return;
	stop_threads(s);
	for (struct pend *p = s->pend, *next; p; p = next) {
		next = p->next;
		pend_free(p);
	}
	for (unsigned i = 0; i < SF_BUCKETS; i++)
		for (struct staged *f = s->sfs[i], *next; f; f = next) {
			next = f->hash_next;
			if (f->fd >= 0)
				close(f->fd);
			if (f->rw >= 0)
				close(f->rw);
			if (f->tmp_fd >= 0)
				close(f->tmp_fd);
			if (f->source >= 0)
				close(f->source);
			free(f);
		}
	buffer_close_all(s);
	trash_close(s);
	ballast_close(s);
	reserve_close(s, false);
	dirs_close(s);
	log_close(s);
	free(s->sweep);
	free(s);
}

void staging_clear(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	if (s->pend)
		return;
	for (unsigned i = 0; i < SF_BUCKETS; i++)
		for (struct staged *f = s->sfs[i]; f; f = f->hash_next)
			if (f->state == STAGED_DURABLE && !f->spilled) {
				char name[17];
				staging_sf_name(f->id, name);
				unlinkat(staging_sf_dir(f), name, 0);
			}
	sweep_tmp_all(s);
	reserve_close(s, true);
	unlinkat(s->o.place.huge, "ballast", 0);
	blank_clear(s);
	char name[32];
	snprintf(name, sizeof(name), "log.%llu", (unsigned long long)s->head->segment);
	unlinkat(s->o.place.base, name, 0);
	unlinkat(s->o.place.base, "head", 0);
}

void staging_get_stats(struct staging *s, struct staging_stats *out)
{
	pthread_mutex_lock(&s->lock);
	*out = s->st;
	out->budget = s->o.budget_bytes;
	out->used = s->used;
	if (!s->pend || !s->pend->held_ns || s->pend->let_go)
		out->held[0] = 0;	/* published, or removed while it waited */
	out->pending_records = s->n_pend + (s->inherited ? s->head->applied - s->head->durable : 0);
	out->last_seq = s->last_seq;
	out->applied = s->head->applied;
	out->durable = s->head->durable;
	out->log_bytes = s->log_bytes;
	out->halted_error = s->halted;
	buffer_stats(s, out);
	out->queue_depth = 0;
	for (unsigned i = 0; i < s->o.persist_threads; i++)
		if (s->queues[i])
			out->queue_depth += io_queue_inflight(s->queues[i]);
	pthread_mutex_unlock(&s->lock);
	pthread_mutex_lock(&s->ballast_lock);
	out->ballast = s->ballast_bytes;
	out->ballast_target = s->o.ballast_bytes;
	pthread_mutex_unlock(&s->ballast_lock);
}

void staging_each_pending(struct staging *s, void (*each)(void *ctx, uint64_t node, uint64_t bytes,
			  enum staged_state st), void *ctx)
{
	LOCK_SCOPE(&s->lock);
	for (struct pend *p = s->pend; p; p = p->next)
		if (p->sf)
			each(ctx, p->r.node, p->r.size,
			     p->state == PEND_FAILED ? STAGED_FAILED :
			     p->state == PEND_WAIT || p->state == PEND_QUEUED ? STAGED_SEALED : STAGED_PERSISTING);
}

uint64_t staging_halted_at(struct staging *s, int *err)
{
	LOCK_SCOPE(&s->lock);
	*err = s->halted;
	return s->halted && s->pend ? s->pend->r.node : 0;
}

void staging_retry(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	s->retry_now = true;
	sleeper_wake(&s->pub);
}

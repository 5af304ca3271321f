/* SPDX-License-Identifier: MIT
 * Read first in this module. The life of staging: open the log, replay it, start the threads,
 * drain, close.
 *
 *   memory/  waiting threads, memory held for files, space in the store
 *   log/     records, the log, the order, directories
 *   file/    staged files: creation, growth, sealing
 *   drain/   bytes to the store, names in order
 *
 * Each calls only those above it in this list; the files here call all of them: replay.c,
 * sweep.c. */
#include "staging/replay.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

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
	if (s->o.pool_bytes > s->o.budget_bytes)
		s->o.pool_bytes = s->o.budget_bytes;
	s->memory.limited = o->is_limited;
	struct rlimit rl;
	s->order.fds_pend = FDS_PEND_MAX;
	if (!getrlimit(RLIMIT_NOFILE, &rl) && rl.rlim_cur / 8 < s->order.fds_pend)
		s->order.fds_pend = rl.rlim_cur / 8;
	s->log.fd = s->reserve.fd = -1;
	s->order.head = s->order.pend_tail = &s->order.pend;
	s->order.todo_tail = &s->order.todo;
	lock_init(&s->lock, RANK_STAGING);
	lock_init(&s->aside.lock, RANK_ASIDE);
	pool_init(&s->pool);
	lock_init(&s->reserve.take_lock, RANK_RESERVE_TAKE);
	lock_init(&s->sweep.kept_lock, RANK_SWEEP_KEPT);
	lock_init_rw(&s->reserve.lock, RANK_RESERVE);
	cond_init(&s->work.cond);
	cond_init(&s->small_work.cond);
	cond_init(&s->pub.cond);
	cond_init(&s->watch.cond);
	cond_init(&s->ahead.cond);
	cond_init(&s->early.cond);
	cond_init(&s->pool.cond);
	cond_init(&s->memory.cond);
	cond_init(&s->done_cond);
	cond_init(&s->trash.cond);
	int err = log_open(s);
	if (!err)
		err = dirs_open(s);
	if (!err)
		err = pool_open(s);
	if (err) {
		staging_close(s);
		return err;
	}
	*out = s;
	return 0;
}

static int start_memory(struct staging *s)
{
	pressure_look(s);
	if (pthread_create(&s->memory.thread, NULL, pressure_main, s))
		return -EAGAIN;
	if (s->o.pool_bytes && pthread_create(&s->pool.thread, NULL, pool_main, s))
		return -EAGAIN;
	return 0;
}

/* The store was closed: what is staged is served, and waits until the next worker has the store. */
static int start_away(struct staging *s)
{
	s->drain.inherited = s->head->applied > s->head->durable;
	s->drain.halted = -EIO;
	s->st.halted.since = time(NULL);
	s->st.errors++;
	snprintf(s->st.last_error, sizeof(s->st.last_error), "the store is gone");
	s->started = true;
	if (pthread_create(&s->watcher, NULL, watch_main, s))
		return -EAGAIN;
	return start_memory(s);
}

int staging_start(struct staging *s)
{
	if (io_store_is_detached(s->o.store))
		return start_away(s);
	for (unsigned i = 0; i < s->o.persist_threads; i++) {
		int err = io_queue_open(s->o.engine, &s->drain.queues[i]);
		if (err)
			return err;
	}
	s->drain.inherited = s->head->applied > s->head->durable;
	reserve_open(s);
	previous_load(s);
	s->started = true;
	pthread_mutex_lock(&s->lock);
	if (s->drain.inherited)
		sf_evict_block(s);
	/* loans that the last worker did not give back; and a replay drops nothing */
	sf_drop_all_useless(s);
	pthread_mutex_unlock(&s->lock);
	unsigned n = s->o.persist_threads;
	for (unsigned i = 0; i < n; i++)
		if (pthread_create(&s->drain.persist[i], NULL, persist_main, s))
			return -EAGAIN;
	if (pthread_create(&s->drain.persist_small, NULL, persist_small_main, s))
		return -EAGAIN;
	if (pthread_create(&s->drain.publisher, NULL, publish_main, s) ||
	    pthread_create(&s->watcher, NULL, watch_main, s) ||
	    pthread_create(&s->aheader, NULL, ahead_main, s))
		return -EAGAIN;
	if (pthread_create(&s->trash.thread, NULL, trash_main, s))
		return -EAGAIN;
	if (!s->o.no_early && pthread_create(&s->early_writer, NULL, early_main, s))
		return -EAGAIN;
	int err = start_memory(s);
	if (!err)
		err = timeline_start(s);
	return err ? err : dedup_start(s);
}

/* What waits for other nodes is left when the publisher has asked of all once more. s->lock
 * held. */
static bool is_draining(const struct staging *s, uint64_t looks)
{
	return *s->order.head || s->drain.inherited ||
	       (s->order.n_aside && s->aside.looks_done < looks);
}

int staging_drain_on(struct staging *s, int timeout_ms, uint64_t *since)
{
	uint64_t until =
		timeout_ms < 0 ? UINT64_MAX : monotonic_ns() + (uint64_t)timeout_ms * 1000000u;
	LOCK_SCOPE(&s->lock);
	atomic_fetch_add(&s->drain.n_sync_waiters, 1); /* small files are not delayed now */
	if (!*since)
		*since = s->aside.looks_begun + 1;
	uint64_t looks = *since;
	persist_wake(s);
	sleeper_wake(&s->pub);
	while (is_draining(s, looks) && !s->drain.halted && monotonic_ns() < until) {
		if (s->aside.looks_begun < looks && !*s->order.head) {
			s->aside.look_ns = 0;
			sleeper_wake(&s->pub);
		}
		staging_wait_until(&s->done_cond, &s->lock, monotonic_ns() + 50000000u);
	}
	atomic_fetch_sub(&s->drain.n_sync_waiters, 1);
	return s->drain.halted	       ? s->drain.halted
	       : is_draining(s, looks) ? -ETIMEDOUT
	       : s->order.pend	       ? -EAGAIN
				       : 0;
}

int staging_drain(struct staging *s, int timeout_ms)
{
	uint64_t since = 0;

	return staging_drain_on(s, timeout_ms, &since);
}

static void stop_threads(struct staging *s)
{
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	persist_wake(s);
	sleeper_wake(&s->pub);
	sleeper_wake(&s->watch);
	sleeper_wake(&s->ahead);
	sleeper_wake(&s->early);
	pthread_cond_broadcast(&s->done_cond);
	pthread_cond_broadcast(&s->pool.cond);
	pthread_cond_broadcast(&s->memory.cond);
	pthread_cond_broadcast(&s->trash.cond);
	dedup_wake(s);
	timeline_wake(s);
	pthread_mutex_unlock(&s->lock);
	for (unsigned i = 0; i < s->o.persist_threads; i++)
		if (s->drain.persist[i])
			pthread_join(s->drain.persist[i], NULL);
	if (s->drain.persist_small)
		pthread_join(s->drain.persist_small, NULL);
	if (s->drain.publisher)
		pthread_join(s->drain.publisher, NULL);
	if (s->watcher)
		pthread_join(s->watcher, NULL);
	if (s->aheader)
		pthread_join(s->aheader, NULL);
	if (s->early_writer)
		pthread_join(s->early_writer, NULL);
	if (s->memory.thread)
		pthread_join(s->memory.thread, NULL);
	if (s->pool.thread)
		pthread_join(s->pool.thread, NULL);
	if (s->trash.thread)
		pthread_join(s->trash.thread, NULL);
	dedup_close(s);
	timeline_close(s);
	for (unsigned i = 0; i < s->o.persist_threads; i++)
		if (s->drain.queues[i])
			io_queue_close(s->drain.queues[i]);
}

void staging_close(struct staging *s)
{
	if (!s)
		return;
	stop_threads(s);
	for (struct pend *p = s->order.pend, *next; p; p = next) {
		next = p->next;
		pend_free(p);
	}
	for (unsigned i = 0; i < SF_BUCKETS; i++)
		for (struct staged *f = s->files.by_id[i], *next; f; f = next) {
			next = f->lists.hash_next;
			if (f->fd >= 0)
				close(f->fd);
			if (f->io.rw >= 0)
				close(f->io.rw);
			if (f->io.tmp_fd >= 0)
				close(f->io.tmp_fd);
			early_unref(f->io.early);
			if (f->base.source >= 0)
				close(f->base.source);
			chunks_forget(s, &f->base.chunks);
			free(f);
		}
	buffer_close_all(s);
	kept_close(s);
	retain_close(s);
	previous_close(s);
	leftover_close(s);
	trash_close(s);
	pool_close(s);
	reserve_close(s, false);
	dirs_close(s);
	refuse_close(s);
	aside_close(s);
	log_close(s);
	flushed_forget(s);
	free(s->sweep.entry);
	lostfound_end(s);
	free(s);
}

bool staging_give_up(struct staging_place *p)
{
	if (log_remove_unused(p->base))
		pool_remove(p);
	return staging_place_give_up(p);
}

/* Of files; false: something is pending. */
static bool clear_files(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	if (s->order.pend || s->sweep.kept)
		return false;
	for (unsigned i = 0; i < SF_BUCKETS; i++)
		for (struct staged *f = s->files.by_id[i]; f; f = f->lists.hash_next)
			if (f->state == STAGED_DURABLE && !f->spilled) {
				char name[17];
				staging_sf_name(f->id, name);
				unlinkat(staging_sf_dir(f), name, 0);
			}
	sweep_tmp_all(s);
	reserve_close(s, true);
	return true;
}

void staging_clear(struct staging *s)
{
	char name[32];

	if (!clear_files(s))
		return;
	pool_clear(s);
	snprintf(name, sizeof(name), "log.%llu", (unsigned long long)s->head->segment);
	unlinkat(s->o.place.base, name, 0);
	unlinkat(s->o.place.base, "head", 0);
}

void staging_get_stats(struct staging *s, struct staging_stats *out)
{
	pthread_mutex_lock(&s->lock);
	*out = s->st;
	out->budget = s->o.budget_bytes;
	out->used = s->files.used;
	out->pool = s->pool.bytes;
	out->pool_target = s->o.pool_bytes;
	hold_stats(s, &out->held);
	previous_stats(s, &out->previous);
	out->log.pending =
		s->order.n_pend + (s->drain.inherited ? s->head->applied - s->head->durable : 0);
	out->log.last_seq = s->log.last_seq;
	out->log.applied = aside_durable(s, s->head->applied);
	out->log.durable = aside_durable(s, s->head->durable);
	out->log.bytes = s->log.bytes;
	out->halted.error = s->drain.halted;
	buffer_stats(s, out);
	refuse_stats(s, out);
	out->queue_depth = 0;
	for (unsigned i = 0; i < s->o.persist_threads; i++)
		if (s->drain.queues[i])
			out->queue_depth += io_queue_inflight(s->drain.queues[i]);
	pthread_mutex_unlock(&s->lock);
}

static uint64_t rest_of(const struct staged *f, uint64_t size)
{
	uint64_t written = atomic_load_explicit(&f->written, memory_order_relaxed);
	return size - (written < size ? written : size);
}

void staging_get_pending(struct staging *s, struct staging_pending *out)
{
	LOCK_SCOPE(&s->lock);
	*out = (struct staging_pending){
		.oldest_ns = s->order.pend ? monotonic_ns() - s->order.pend->start_ns : 0,
	};
	for (struct pend *p = s->order.pend; p; p = p->next)
		if (p->sf) {
			out->files++;
			out->bytes += p->sf->last_seal == p->accepted ? rest_of(p->sf, p->r.size)
								      : p->r.size;
		}
}

static uint64_t open_bytes(struct staged *f)
{
	struct stat st;
	return sf_stat(f, &st) ? 0 : rest_of(f, (uint64_t)st.st_size);
}

void staging_each_undone(struct staging *s, bool pending,
			 void (*each)(void *ctx, const struct staged_undone *u), void *ctx)
{
	LOCK_SCOPE(&s->lock);
	struct staged *const lists[] = {s->files.open, s->files.failed};

	for (unsigned i = 0; i < 2; i++)
		for (struct staged *f = lists[i]; f; f = f->lists.open_next)
			each(ctx, &(struct staged_undone){.f = f,
							  .node = f->node,
							  .state = f->state,
							  .bytes = pending ? open_bytes(f) : 0,
							  .error = f->error});
	for (struct pend *p = pending ? s->order.pend : NULL; p; p = p->next)
		/* the newest version of each that no writer has open */
		if (p->sf && p->sf->last_seal == p->accepted &&
		    (p->sf->state == STAGED_SEALED || p->sf->state == STAGED_PERSISTING))
			each(ctx, &(struct staged_undone){.f = p->sf,
							  .node = p->sf->node,
							  .state = p->sf->state,
							  .bytes = rest_of(p->sf, p->r.size)});
}

void staging_tell_moves(struct staging *s, void (*moved)(void *ctx), void *ctx)
{
	LOCK_SCOPE(&s->lock);
	s->drain.moved = moved;
	s->drain.moved_ctx = ctx;
}

uint64_t staging_halted_at(struct staging *s, int *err)
{
	LOCK_SCOPE(&s->lock);
	*err = s->drain.halted;
	return s->drain.halted && *s->order.head ? (*s->order.head)->r.node : 0;
}

void staging_retry(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	s->drain.retry_now = true;
	refuse_seen(s);
	sleeper_wake(&s->pub);
}

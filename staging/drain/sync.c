/* SPDX-License-Identifier: MIT
 * Syncs of the store, and what is written again after a failed one: the state of its files' pages
 * is unknown then. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

void persist_again(struct staging *s, struct pend *p, int err)
{
	struct staged *f = p->sf;

	trash_put(s, !f->spilled || p->snapshot ? p->tmp_id : 0, p->tmp_fd);
	p->tmp_fd = -1;
	p->tmp_id = 0;
	p->clone.done = false;
	p->begun = p->shown = false; /* the bytes under its name are not trusted */
	source_forget(s, &p->clone.source);
	chunks_forget(s, &p->chunks);
	p->unsure |= f->spilled;
	if (!err || ++p->tries.n < MAX_ATTEMPTS) {
		persist_queue(s, p);
		return;
	}
	p->state = PEND_FAILED;
	f->error = err;
	if (f->state != STAGED_OPEN)
		sf_set_state(s, f, STAGED_FAILED);
}

static bool is_in_batch(const struct staging *s, const struct pend *p)
{
	return !p->aside && p->r.seq <= s->drain.batch_end;
}

/* Small files share a sync. Not an fsync's version: its bytes are logged as written, and recovery
 * relies on that (REC_WRITTEN), also if the store's filesystem shut down and lost what was not
 * synced. */
bool persist_syncs_itself(const struct pend *p)
{
	return p->r.size > STAGING_SMALL || p->snapshot;
}

int persist_sync(struct staging *s, struct pend *p)
{
	/* what the log calls written is not written again after a restart: its owner, mode and
	 * checksum must be in the store, too, and ext4's fdatasync(2) may leave them out */
	int err = persist_syncs_itself(p) ? io_sync_file(s->o.store, p->tmp_fd)
					  : io_sync_data(s->o.store, p->tmp_fd);
	if (err && p->sf->spilled && !p->snapshot)
		p->sf->spoiled = err;
	return err;
}

/* A failed syncfs or journal commit drops any unsynced pages, and the next one
 * succeeds: what was written after the batch and relied on a later sync is written
 * again, and so is what is being written now (n_lost). s->lock held. */
static void distrust(struct staging *s)
{
	s->drain.n_lost++;
	for (struct pend *p = s->order.pend; p; p = p->next)
		if (p->state == PEND_WRITTEN && !is_in_batch(s, p))
			persist_again(s, p, 0);
	persist_wake(s);
}

int sync_told(struct staging *s, int err)
{
	if (err) {
		LOCK_SCOPE(&s->lock);
		distrust(s);
	}
	return err;
}

int sync_all(struct staging *s)
{
	return sync_told(s, io_sync_all(s->o.store));
}

/* The reserve is cairnfs's own file: its blocks count for a quota of a directory or project, or of
 * the user as whom cairnfs runs, but not for that of a version's owner. */
static bool reserve_may_help(const struct pend *p, int err)
{
	return err == -ENOSPC || (err == -EDQUOT && !(p && p->sf && sf_limited(p->sf)));
}

bool reserve_give(struct staging *s, const struct pend *p, int err, unsigned *given)
{
	if (!reserve_may_help(p, err) || ++*given > RESERVE_GIVES)
		return false;
	/* xfs and ext4 hand freed blocks out after the commit */
	return reserve_shrink(s) && !sync_all(s);
}

/* A small version waits for its group's sync, and perhaps for a mapped file before it in the
 * order: sync it alone. s->lock held, dropped meanwhile. */
static bool sync_written(struct staged *f)
{
	struct staging *s = f->s;
	for (struct pend *p = s->order.pend; p; p = p->next) {
		if (p->sf != f || p->state != PEND_WRITTEN || is_in_batch(s, p))
			continue;
		p->state = PEND_BUSY;
		uint64_t lost = s->drain.n_lost;
		pthread_mutex_unlock(&s->lock);
		if (p->tmp_fd < 0)
			p->tmp_fd = io_tmp_open(s->o.store, p->tmp_id, O_RDONLY);
		int err = p->tmp_fd < 0 ? p->tmp_fd : persist_sync(s, p);
		pthread_mutex_lock(&s->lock);
		if (err || lost != s->drain.n_lost)
			persist_again(s, p, lack_wait(s, p, err) ? 0 : err);
		else
			p->state = PEND_READY;
		sleeper_nudge(&s->pub, false);
		persist_wake(s); /* for a later version */
		return true;
	}
	return false;
}

int staged_wait_persisted(struct staged *f)
{
	struct staging *s = f->s;
	uint64_t since = 0;
	LOCK_SCOPE(&s->lock);
	atomic_fetch_add(&s->drain.n_sync_waiters, 1); /* no delays now */
	persist_wake(s);
	if (sf_seals_under_way(f))
		since = sf_wait_begins(s);
	while (sf_seals_under_way(f) && !s->drain.halted && f->state != STAGED_FAILED && !s->stop)
		if (!sync_written(f))
			staging_wait_until(&s->done_cond, &s->lock, monotonic_ns() + 5000000u);
	atomic_fetch_sub(&s->drain.n_sync_waiters, 1);
	if (since)
		f->times.admission += sf_wait_ends(s, since);
	return sf_seals_under_way(f) ? -EAGAIN : 0;
}

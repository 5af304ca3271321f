/* SPDX-License-Identifier: MIT
 * Rotation: the log is started anew with the present state, so that it does not grow for ever. */
#include "staging/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define ROTATE_MIN (8ull << 20) /* below this a rotation is not worth it */
/* this far beyond the last one, changes wait for another */
#define ROTATE_MUST (128ull << 20)
/* the same while a change waits for other nodes, which allows no rotation */
#define ROTATE_ASIDE (1ull << 30)

bool staging_rotate_due(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	uint64_t gain =
		3 * s->log.snap_bytes < ROTATE_MUST / 2 ? 3 * s->log.snap_bytes : ROTATE_MUST / 2;
	return !s->order.pend && s->log.bytes > ROTATE_MIN &&
	       s->log.bytes > s->log.snap_bytes + gain;
}

/* s->lock held */
static bool log_full(const struct staging *s)
{
	return s->log.bytes > s->log.snap_bytes + (s->order.n_aside ? ROTATE_ASIDE : ROTATE_MUST);
}

bool staging_log_full(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	return log_full(s);
}

void staging_log_space(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	/* as an fsync does: no delays, and no endless wait for a mapping */
	atomic_fetch_add(&s->drain.n_sync_waiters, 1);
	persist_wake(s);
	sleeper_wake(&s->pub);
	while (log_full(s) && s->order.pend && !s->drain.halted && !s->stop)
		staging_wait_until(&s->done_cond, &s->lock, monotonic_ns() + 100000000u);
	atomic_fetch_sub(&s->drain.n_sync_waiters, 1);
}

static int emit_answers(struct staging *s)
{
	for (unsigned i = 0; i < 256; i++) {
		struct rec r = s->log.done[i].r;
		if (!s->log.done[i].unique)
			continue;
		r.flags |= REC_ANSWER;
		int err = staging_emit(s, &r);
		if (err)
			return err;
	}
	return 0;
}

/* What could not be moved to lost+found yet, with its name there: a STAGED of no node. Another
 * start tries again. What is also ours has records of its own. */
static int emit_kept(struct staging *s)
{
	int err = 0;
	LOCK_SCOPE(&s->lock);
	for (const struct kept_file *k = s->sweep.kept; k && !err; k = k->next) {
		struct rec r = {.type = REC_STAGED, .sf = k->id, .name = k->name};
		if (!k->f)
			err = log_append(s, &r);
	}
	return err;
}

int staging_rotate(struct staging *s, int (*emit)(void *ctx, struct staging *s), void *ctx)
{
	char old[32];
	pthread_mutex_lock(&s->lock);
	if (s->order.pend) {
		pthread_mutex_unlock(&s->lock);
		return -EBUSY;
	}
	uint64_t old_bytes = s->log.bytes, number = s->head->segment;
	int old_fd = s->log.fd, fd = log_open_segment(s, number + 1, O_CREAT | O_TRUNC);
	if (fd >= 0) {
		s->log.fd = fd;
		s->log.bytes = 0;
		log_map_segment(s); /* or at the first append */
	}
	pthread_mutex_unlock(&s->lock);
	if (fd < 0)
		return fd;
	struct rec format = log_format();
	int err = staging_emit(s, &format);
	if (!err)
		err = emit(ctx, s);
	if (!err)
		err = emit_answers(s);
	if (!err)
		err = refuse_emit(s);
	if (!err)
		err = emit_kept(s);

	LOCK_SCOPE(&s->lock);
	if (err) {
		close(s->log.fd);
		s->log.fd = old_fd;
		s->log.bytes = old_bytes;
		log_map_segment(s);
		return err;
	}
	s->log.snap_bytes = s->log.bytes;
	aside_forget(s);
	atomic_store(&s->head->segment, number + 1); /* from here on the new one is valid */
	close(old_fd);
	log_segment_name(number, old);
	unlinkat(s->o.place.base, old, 0);
	return 0;
}

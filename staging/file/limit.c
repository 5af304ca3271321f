/* SPDX-License-Identifier: MIT
 * Writers that go on while the store takes nothing: a passthrough write reaches the tmpfs without
 * the daemon, and a file that outgrows memory cannot move to a store that is full, or fails. So the
 * tmpfs is made small meanwhile (staging_place_fit), and such a write gets ENOSPC there.
 *
 * A file is `stuck` when a try to move it has shown that the store does not take it. That is
 * decided while the file is frozen (fs/ops/freeze.c), and its writer continues only when the tmpfs
 * is small: nothing here depends on how fast it writes, or how soon another process runs.
 *
 *	tmpfs		small		as at the start
 *	while		a file is stuck	none is, or no more than the budget is used
 *	moves		each second	asked for at once, when a file outgrows the budget
 *
 * The limit outlives a worker: the next one keeps it until it has tried a move itself.
 * The log has a tmpfs of its own, without this limit. */
#include "staging/file/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define RETRY_NS 1000000000u

/* s->lock held */
static bool any_stuck(const struct staging *s)
{
	for (const struct staged *f = s->files.open; f; f = f->lists.open_next)
		if (f->state == STAGED_OPEN && f->moved.stuck)
			return true;
	return false;
}

/* Their moves are asked for at once. s->lock held. */
static void ask_for_stuck(struct staging *s)
{
	for (struct staged *f = s->files.open; f; f = f->lists.open_next)
		if (f->moved.stuck)
			f->moved.after_ns = 0;
}

/* Whether it changed. s->lock held. */
static bool set(struct staging *s, bool on)
{
	if (s->memory.limited == on)
		return false;
	s->memory.limited = on;
	if (s->o.limit)
		s->o.limit(s->o.ctx, on);
	return true;
}

/* Without the limit nothing bounds the files that were stuck: they are tried again at once. s->lock
 * held. */
static bool lift(struct staging *s)
{
	ask_for_stuck(s);
	for (struct staged *f = s->files.open; f; f = f->lists.open_next)
		f->moved.stuck = false;
	return set(s, false);
}

static void tell_lifted(struct staging *s)
{
	s->o.notice(s->o.ctx, "files that outgrow memory have space again");
}

/* The frozen writer waits, however long the process takes that does it. */
static int wait_applied(const struct staging *s)
{
	const struct timespec ms = {.tv_nsec = 1000000};
	int err = s->o.place.is_private ? 0 : -ENOTSUP;

	while (!err && s->o.limited && (err = s->o.limited(s->o.ctx)) == -EAGAIN) {
		nanosleep(&ms, NULL);
		err = 0;
	}
	return err;
}

/* why: what the move said, 0 if it was not tried; not_small: why the tmpfs is not. */
static void tell_limited(struct staging *s, int why, int not_small)
{
	bool full = !why || no_space(why);
	char text[300], state[80] = "is full";

	if (!full)
		snprintf(state, sizeof(state), "fails (%.60s)", strerror(-why));
	if (not_small)
		snprintf(text, sizeof(text),
			 LEVEL_ERROR
			 "the store %s, and files that outgrow memory stay in it: staging is on a "
			 "tmpfs that cannot be limited; %s the store",
			 state, full ? "free space in" : "repair");
	else
		snprintf(text, sizeof(text),
			 LEVEL_ERROR
			 "the store %s, and files that outgrow memory cannot move there: their "
			 "writes get ENOSPC; %s the store",
			 state, full ? "free space in" : "repair");
	s->o.notice(s->o.ctx, text);
}

/* Bytes of f in memory for which the store has no blocks yet: early.c may have some. */
static uint64_t without_blocks(struct staged *f)
{
	struct staging *s = f->s;
	struct stat st;
	LOCK_SCOPE(&f->io.lock);
	uint64_t has = f->io.tmp_id && f->io.tmp_fd >= 0 && !fstat(f->io.tmp_fd, &st)
			       ? (uint64_t)st.st_blocks * 512
			       : 0;
	pthread_mutex_lock(&s->lock);
	uint64_t taken = f->last.blocks * 512;
	pthread_mutex_unlock(&s->lock);
	return taken > has ? taken - has : 0;
}

/* Does the store not take f? Errors other than a lack of space may be of the moment: some tries in
 * a row decide. s->lock held. */
static bool is_stuck(struct staged *f, int err, bool has_space)
{
	f->moved.failed = err ? f->moved.failed + 1 : 0;
	return err ? no_space(err) || f->moved.failed >= MAX_ATTEMPTS : !has_space;
}

void staged_limit(struct staged *f, int err)
{
	struct staging *s = f->s;
	bool has_space = err || space_look(s) >= without_blocks(f);

	/* of descriptors or memory, or it is not open any more; or this file is too long for the
	 * store (staged_too_long), which says nothing about others */
	if (is_lack(err) || err == -EFBIG)
		return;
	pthread_mutex_lock(&s->lock);
	bool stuck = is_stuck(f, err, has_space);
	f->moved.stuck = stuck;
	s->memory.tried = true;
	bool on = stuck || (s->memory.limited && (err || any_stuck(s)));
	bool changed = on ? set(s, true) : lift(s);
	if (stuck)
		f->moved.after_ns = monotonic_ns() + RETRY_NS;
	else if (!err) /* it may take the others, too */
		ask_for_stuck(s);
	pthread_mutex_unlock(&s->lock);
	int not_small = stuck ? wait_applied(s) : 0;
	if (changed && stuck)
		tell_limited(s, err, not_small);
	else if (changed)
		tell_lifted(s);
}

void limit_look(struct staging *s)
{
	pthread_mutex_lock(&s->lock);
	bool over = s->files.used <= s->o.budget_bytes || (s->memory.tried && !any_stuck(s));
	bool lifted = s->memory.limited && over && lift(s);
	pthread_mutex_unlock(&s->lock);
	if (lifted)
		tell_lifted(s);
}

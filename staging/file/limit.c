/* SPDX-License-Identifier: MIT
 * A full store and writers that go on: a passthrough write reaches the tmpfs without the daemon,
 * and a file that outgrows memory cannot move to a store without space. So while the store has
 * none, the tmpfs is made small (staging_place_fit), and such a write gets ENOSPC there, as it
 * would in the store. Begun while the writer waits for a move (fs/ops/freeze.c); ended when a later
 * move finds space, or when the budget is kept again.
 *
 * The log has a tmpfs of its own, without this limit. */
#include "staging/file/file.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#define APPLIED_MS 1000 /* by another process, which may be gone */
#define RETRY_NS 1000000000u

static uint64_t tmpfs_size(const struct staging *s)
{
	struct statvfs v;

	return fstatvfs(s->o.place.small, &v) ? 0 : v.f_blocks * v.f_frsize;
}

static void wait_applied(const struct staging *s, uint64_t before)
{
	const struct timespec ms = {.tv_nsec = 1000000};

	for (unsigned i = 0; i < APPLIED_MS && tmpfs_size(s) >= before; i++)
		nanosleep(&ms, NULL);
}

/* Whether it changed. */
static bool set(struct staging *s, bool on)
{
	LOCK_SCOPE(&s->lock);
	if (s->memory.limited == on)
		return false;
	s->memory.limited = on;
	if (s->o.limit)
		s->o.limit(s->o.ctx, on);
	return true;
}

static void lift(struct staging *s)
{
	if (set(s, false))
		s->o.notice(s->o.ctx, "files that outgrow memory have space again");
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

void staged_limit(struct staged *f, int err)
{
	struct staging *s = f->s;
	bool full = no_space(err);
	uint64_t size = tmpfs_size(s);

	if (err && !full)
		return;
	if (!full && space_look(s) >= without_blocks(f)) {
		lift(s);
		return;
	}
	pthread_mutex_lock(&s->lock);
	if (f->moved.after_ns != UINT64_MAX)
		f->moved.after_ns = monotonic_ns() + RETRY_NS;
	pthread_mutex_unlock(&s->lock);
	if (!set(s, true))
		return;
	if (!s->o.place.is_private) {
		s->o.notice(s->o.ctx,
			    LEVEL_ERROR "the store is full, and files that outgrow memory stay in "
					"it: staging is on a tmpfs that cannot be limited; free "
					"space in the store");
		return;
	}
	s->o.notice(s->o.ctx, LEVEL_ERROR
		    "the store is full, and files that outgrow memory cannot move there: their "
		    "writes get ENOSPC; free space in the store");
	if (s->o.limit)
		wait_applied(s, size);
}

void limit_look(struct staging *s)
{
	pthread_mutex_lock(&s->lock);
	bool kept = s->memory.limited && s->files.used <= s->o.budget_bytes;
	pthread_mutex_unlock(&s->lock);
	if (kept)
		lift(s);
}

/* SPDX-License-Identifier: MIT
 * Space in the store for files that are still written, so that write(2) returns ENOSPC and not only
 * close(2), whose result many programs ignore.
 *
 * A passthrough write (fast lane) cannot fail for lack of space in the store. So a file begins
 * there only if the store's free space covers all that may be written, its *claim*, and the claims
 * of all other files open there:
 *
 *   size expected    twice that, plus a small file: a shard is about as large as its predecessor
 *   size unknown     the whole budget. That is what memory holds of one file; the rest moves to
 *		    the store while it is written (outgrow.c), and takes its blocks then
 *   written again    its size and the budget: it may be appended to
 *
 * Otherwise it is `checked`: it is written through the daemon (relay lane, choose_lane in
 * fs/ops/open.c), and each write first allocates its blocks in the unpublished file of the store.
 * That is exact, for quotas too, since the blocks are the file's owner's from the beginning.
 *
 * After a failed write the file is torn (torn.c): its close fails with the same error, and the
 * previous version stays. */
#include "staging/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* how long a check is valid if the store had much space */
#define LOOK_NS 100000000u
#define SPARE (1ull << 20)
#define STEP_MAX (64ull << 20) /* allocated, or claimed, ahead of a writer, at most */
#define STEP_MIN (1ull << 20)
#define BLOCK 4096u

/* Free blocks, less what small files and names were promised beyond the reserve. */
uint64_t space_look(struct staging *s)
{
	uint64_t promised = atomic_load(&s->reserve.promised),
		 taken = atomic_load(&s->reserve.left);
	struct statvfs v;

	if (io_store_statvfs(s->o.store, &v) || !v.f_frsize || !v.f_blocks)
		return UINT64_MAX;
	reserve_saw(s, &v);
	uint64_t space = v.f_bavail * v.f_frsize,
		 less = SPARE + (promised > taken ? promised - taken : 0);
	space = space > less ? space - less : 0;
	atomic_store(&s->space.free, space);
	atomic_store(&s->space.seen_ns, monotonic_ns());
	return space;
}

uint64_t space_wanted(struct staging *s)
{
	uint64_t sum = 0;
	pthread_mutex_lock(&s->lock);
	bool any = s->st.versions.failed;
	pthread_mutex_unlock(&s->lock);
	uint64_t space = any ? space_look(s) : 0;
	LOCK_SCOPE(&s->lock);
	for (unsigned b = 0; any && b < SF_BUCKETS; b++)
		for (struct staged *f = s->files.by_id[b]; f; f = f->lists.hash_next)
			if (f->state == STAGED_FAILED && !staged_torn(f) &&
			    f->last.blocks * 512 <= space - sum)
				sum += f->last.blocks * 512;
	return sum;
}

bool staging_space_freed(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	bool freed = s->space.freed;
	s->space.freed = false;
	return freed;
}

/* Bytes in memory that rely on blocks of the store. s->lock held. */
static uint64_t used_bytes(struct staging *s)
{
	uint64_t sum = 0;
	for (struct staged *f = s->files.open; f; f = f->lists.open_next) {
		uint64_t taken = f->last.blocks * 512;
		if (!f->space.checked && !f->spilled && (!f->io.tmp_id || f->io.early))
			sum += f->memory.known && f->memory.expected > taken ? f->memory.expected
									     : taken;
	}
	return sum;
}

uint64_t space_claim(const struct staging *s, const struct staged *f)
{
	return f->memory.known ? 2 * f->memory.expected + STAGING_SMALL : s->o.budget_bytes;
}

/* Of one owner; walks all open files, which only stores with quotas need. s->lock held. */
static uint64_t claims_of(struct staging *s, const struct staged *me)
{
	uint64_t sum = 0;
	for (struct staged *f = s->files.open; f; f = f->lists.open_next)
		if (f != me && (f->space.uid == me->space.uid || f->space.gid == me->space.gid))
			sum += f->space.claim;
	return sum;
}

static bool covers(uint64_t space, uint64_t claims, uint64_t more)
{
	return space >= claims && space - claims >= more;
}

bool space_for_all(struct staging *s, const struct staged *f, uint64_t claim)
{
	uint64_t quota = f->space.owned
				 ? io_store_quota_left(s->o.store, f->space.uid, f->space.gid)
				 : UINT64_MAX;

	pthread_mutex_lock(&s->lock);
	uint64_t others = s->space.claims - f->space.claim,
		 own = quota == UINT64_MAX ? 0 : claims_of(s, f);
	pthread_mutex_unlock(&s->lock);
	if (!covers(quota, own, claim))
		return false;
	if (reserve_is_ample(s, others + claim))
		return true;
	bool fresh = monotonic_ns() - atomic_load(&s->space.seen_ns) < LOOK_NS;
	return (fresh && covers(atomic_load(&s->space.free), others, claim)) ||
	       covers(space_look(s), others, claim);
}

/* Blocks for [off, end) in f's unpublished file, next to those of what f already contains. */
static int allocate_range(struct staged *f, uint64_t off, uint64_t end)
{
	struct staging *s = f->s;
	struct stat st;
	int err = f->fd < 0 || fstat(f->fd, &st) ? -EIO : 0;
	/* blocks behind the end are memory that is held ready */
	uint64_t whole = err ? 0 : (uint64_t)st.st_blocks * 512,
		 size = err ? 0 : (uint64_t)st.st_size;
	uint64_t before = f->io.tmp_id ? 0 : whole < size ? whole : size;

	pthread_mutex_lock(&s->lock);
	uint64_t taken = used_bytes(s);
	pthread_mutex_unlock(&s->lock);
	if (!err)
		err = reserve_enter(s, end - off + before + taken + space_wanted(s));
	if (err)
		return err;
	bool made = !f->io.tmp_id;
	if (made)
		err = sf_make_tmp(f, (uint64_t)st.st_size);
	uint64_t from =
		(off >= f->io.allocated_from && off < f->io.allocated_to ? f->io.allocated_to
									 : off) /
		BLOCK * BLOCK;
	if (!err && from < end)
		err = sf_allocate_range(f, from, (end - from + BLOCK - 1) / BLOCK * BLOCK);
	reserve_leave(s);
	if (err && made)
		sf_drop_tmp(f);
	if (err)
		return err;
	if (f->io.allocated_to < off || f->io.allocated_from > end)
		f->io.allocated_from = f->io.allocated_to = off;
	f->io.allocated_from = off < f->io.allocated_from ? off : f->io.allocated_from;
	f->io.allocated_to = end > f->io.allocated_to ? end : f->io.allocated_to;
	return 0;
}

/* A small file is promised space as by its close. */
static bool promised(struct staged *f, uint64_t end)
{
	if (f->io.tmp_id || end > STAGING_SMALL || sf_limited(f) ||
	    !reserve_promise(f->s, &f->io.promised, end))
		return false;
	f->io.allocated_from = 0;
	f->io.allocated_to = end;
	return true;
}

/* Blocks allocated beyond a write: a quarter of the contiguous bytes written, or as much again
 * while that is little. They stay with the file if its writer then leaves a hole, so a write that
 * does not continue another gets none. */
static uint64_t step_ahead(const struct staged *f, uint64_t off, uint64_t end)
{
	uint64_t run = off >= f->io.allocated_from && off <= f->io.allocated_to
			       ? end - f->io.allocated_from
			       : 0;
	uint64_t step = run / 4 > STEP_MIN ? run / 4 : run < STEP_MIN ? run : STEP_MIN;
	return step > STEP_MAX ? STEP_MAX : step;
}

/* A spilled file takes its blocks as it is written: not what the reserve gave, nor what is counted
 * for others. */
static int space_spilled(struct staged *f, uint64_t end, uint64_t len)
{
	struct staging *s = f->s;
	struct stat st;
	bool grows = f->fd < 0 || fstat(f->fd, &st) || end > (uint64_t)st.st_size;

	if (!grows || io_store_allocates(s->o.store))
		return grows && reserve_is_given(s) ? -ENOSPC : 0;
	int err = reserve_enter(s, len);
	if (!err)
		reserve_leave(s);
	return err;
}

int space_for_write(struct staged *f, uint64_t off, uint64_t len, bool last)
{
	struct staging *s = f->s;
	uint64_t end = off + len, step = end / 4;

	if (f->spilled)
		return space_spilled(f, end, len);
	if (off >= f->io.allocated_from && end <= f->io.allocated_to)
		return 0;
	uint64_t ahead = step_ahead(f, off, end);
	step = step < STEP_MIN ? STEP_MIN : step > STEP_MAX ? STEP_MAX : step;
	if (!f->space.checked &&
	    space_for_all(s, f, end + step > f->space.claim ? end + step : f->space.claim)) {
		LOCK_SCOPE(&s->lock);
		if (end + step > f->space.claim)
			space_claim_set(s, f, end + step);
		f->io.allocated_from = 0;
		f->io.allocated_to = end + step;
		return 0;
	}
	pthread_mutex_lock(&s->lock);
	if (!f->space.checked)
		f->io.allocated_from = f->io.allocated_to =
			0; /* that was only a check of the store */
	f->space.checked = true;
	space_claim_set(s, f, 0);
	pthread_mutex_unlock(&s->lock);
	bool may_come = sf_space_may_come(s);
	if (promised(f, end))
		return 0;
	int err = allocate_range(f, off, end + ahead);
	if (no_space(err))
		err = allocate_range(f, off, end);
	return no_space(err) && may_come && !last ? -EAGAIN : err;
}

ssize_t space_written(struct staged *f, uint64_t off, uint64_t len, ssize_t n)
{
	if (n < 0 && n != -EAGAIN && n != -EFBIG && len)
		staged_not_written(f, off, len, (int)n);
	else if (n > 0 && staged_torn(f))
		torn_remove(f, off, (uint64_t)n);
	return n;
}

void space_cut(struct staged *f, uint64_t size)
{
	if (staged_torn(f))
		torn_remove(f, size, UINT64_MAX);
	/* a promise has a fixed size */
	if (f->io.allocated_to > size && !f->io.tmp_id && f->space.checked)
		f->io.allocated_to = size > f->io.allocated_from ? size : f->io.allocated_from;
}

/* SPDX-License-Identifier: MIT
 * Room in the store that is held for what was accepted and has no block there yet:
 * small files, whose store file is made when they are persisted and not at their
 * close, and names, which may need a directory block. A part of the store lies
 * allocated in one file.
 *
 *   NONE ──take──▶ HELD ──give (the store is full)──▶ GIVEN ──take──▶ HELD
 *
 *   HELD   small closes are promised room out of half of it; names find the rest
 *   GIVEN  what was promised finds the freed blocks; whoever asks for more is told
 *          ENOSPC, until there is room for the reserve again
 *   NONE   the store was never roomy enough: every close allocates for itself */
#include "staging/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define RESERVE_MAX (256ull << 20)	/* 10,000 small files, or 60,000 directory blocks */
#define RESERVE_PART 256		/* and never more than this part of the store */
#define RESERVE_MIN (256ull << 10)
#define GIVE_STEPS 16u
/* A small file takes its blocks, and may be the one that makes its directory, tmp/ or the
 * inode's xattrs grow by one. */
#define FILE_BLOCKS 3u
#define BLOCK 4096u

void reserve_open(struct staging *s)
{
	struct stat st;
	int tmp = io_store_tmp(s->o.store);

	if (tmp < 0)
		return;
	s->reserve_fd = openat(tmp, "../reserve", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (s->reserve_fd < 0)
		return;
	/* of a worker that died: what it had promised counts on these blocks */
	if (!fstat(s->reserve_fd, &st) && st.st_blocks) {
		s->reserve_bytes = s->reserve_left = (uint64_t)st.st_blocks * 512 / BLOCK * BLOCK;
		atomic_store(&s->reserve_state, RESERVE_GIVEN);
	}
	reserve_take(s);
	if (s->reserve_left && s->reserve_left >= 2 * atomic_load(&s->reserve_promised))
		atomic_store(&s->reserve_state, RESERVE_HELD);
}

/* A clean end: nothing is promised any more. */
void reserve_close(struct staging *s, bool remove)
{
	if (s->reserve_fd < 0)
		return;
	if (remove)
		unlinkat(io_store_tmp(s->o.store), "../reserve", 0);
	close(s->reserve_fd);
	s->reserve_fd = -1;
}

/* A little at a time: spilled files, which allocate as they are written, may take it too. */
bool reserve_give(struct staging *s)
{
	bool gave = false;
	if (atomic_load(&s->reserve_state) == RESERVE_NONE)
		return false;
	/* whoever allocates for itself just now has seen HELD: let it end first */
	pthread_rwlock_wrlock(&s->reserve_lock);
	atomic_store(&s->reserve_state, RESERVE_GIVEN);
	uint64_t step = s->reserve_bytes / GIVE_STEPS / BLOCK * BLOCK;
	if (s->reserve_left < step + BLOCK)
		step = s->reserve_left;
	if (step && fallocate(s->reserve_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			      (off_t)(s->reserve_left - step), (off_t)step) == 0) {
		s->reserve_left -= step;
		gave = true;
	}
	pthread_rwlock_unlock(&s->reserve_lock);
	/* xfs and ext4 hand freed blocks out after the commit */
	return gave && !publish_sync_all(s);
}

void reserve_take(struct staging *s)
{
	struct statvfs v;
	uint64_t promised = atomic_load(&s->reserve_promised);

	if (s->reserve_fd < 0 || atomic_load(&s->reserve_state) == RESERVE_HELD ||
	    io_store_statvfs(s->o.store, &v))
		return;
	uint64_t bytes = v.f_blocks * v.f_frsize / RESERVE_PART;
	bytes = bytes > RESERVE_MAX ? RESERVE_MAX : bytes;
	if (bytes < RESERVE_MIN || v.f_bavail * v.f_frsize + s->reserve_left < 2 * bytes + promised)
		return;
	LOCK_SCOPE(&s->reserve_take_lock);
	if (atomic_load(&s->reserve_state) != RESERVE_HELD &&
	    fallocate(s->reserve_fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0) {
		s->reserve_bytes = s->reserve_left = bytes;
		atomic_store(&s->reserve_state, RESERVE_HELD);
	}
}

uint64_t reserve_cost(uint64_t size)
{
	return (size + BLOCK - 1) / BLOCK * BLOCK + (uint64_t)FILE_BLOCKS * BLOCK;
}

bool reserve_promise(struct staging *s, uint64_t *mine, uint64_t size)
{
	uint64_t cost = reserve_cost(size), more = cost > *mine ? cost - *mine : 0;

	if (atomic_load(&s->reserve_state) != RESERVE_HELD ||
	    atomic_load(&s->reserve_promised) + more > s->reserve_bytes / 2)
		return false;
	atomic_fetch_add(&s->reserve_promised, more);
	*mine += more;
	return true;
}

void reserve_kept(struct staging *s, uint64_t *mine)
{
	atomic_fetch_sub(&s->reserve_promised, *mine);
	*mine = 0;
}

int reserve_enter(struct staging *s)
{
	pthread_rwlock_rdlock(&s->reserve_lock);
	if (atomic_load(&s->reserve_state) == RESERVE_GIVEN)
		reserve_take(s);
	if (atomic_load(&s->reserve_state) != RESERVE_GIVEN)
		return 0;
	pthread_rwlock_unlock(&s->reserve_lock);
	return -ENOSPC;
}

void reserve_leave(struct staging *s)
{
	pthread_rwlock_unlock(&s->reserve_lock);
}

bool staging_room_for_names(struct staging *s)
{
	if (atomic_load(&s->reserve_state) != RESERVE_GIVEN)
		return true;
	reserve_take(s);
	return atomic_load(&s->reserve_state) == RESERVE_HELD;
}

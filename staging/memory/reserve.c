/* SPDX-License-Identifier: MIT
 * Space in the store held for accepted changes that have no blocks there yet:
 * small files, whose store file is made when they are persisted and not at their
 * close, and names, which may need a directory block. A part of the store is
 * allocated to one file.
 *
 *   NONE ──take──▶ HELD ──give (the store is full)──▶ GIVEN ──take──▶ HELD
 *
 *   HELD   small closes and new names are promised space out of most of it; further names,
 *	  out of the store's free blocks, which files then leave alone
 *   GIVEN  what was promised finds the freed blocks; further requests fail with
 *	  ENOSPC, until there is space for the reserve again
 *   NONE   the store never had enough space: every close allocates for itself
 *
 * Where the store has no fallocate the state is NONE, too, and no block can be held. There the
 * bytes of accepted versions are promised as well, until they are written, and all else leaves as
 * much of the free space. While they are written they are counted twice: who lacks space then
 * waits (order.last_delete). */
#include "staging/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define RESERVE_MAX (256ull << 20) /* 10,000 small files, or 60,000 directory blocks */
#define RESERVE_PART 256 /* and never more than this part of the store */
#define RESERVE_MIN (256ull << 10)
#define GIVE_STEPS 16u
#define KEPT_PART 4u
/* A small file takes its blocks, and may make its directory, tmp/ or the
 * inode's xattrs grow by a block. */
#define FILE_BLOCKS 3u
#define NAME_BLOCKS 2u /* a new directory, and its share of its parent */
#define SPARE_BLOCKS 64u
#define SPARE_INODES 256u
/* promises between two checks of the free blocks and inodes */
#define ASK_EVERY 64u
/* reserves free: below this, small files allocate before they are written */
#define TIGHT_PARTS 64u
#define BLOCK 4096u
#define FILL_BYTES (4ull << 20)
/* Without extents a file's blocks are listed in others, 4 bytes each: at most such a part, with
 * blocks of 1 KiB. */
#define MAP_PART 256u
/* So much free beyond what is wanted, and so many inodes, are ample for a while: on a shared
 * filesystem each look is an operation of its server. */
#define AMPLE (32ull << 30)
#define AMPLE_INODES 65536u
#define AMPLE_NS 1000000000u

/* How large it is to be. 0: the store is too small, or does not answer. */
static uint64_t full_size(struct staging *s)
{
	struct statvfs v;

	if (io_store_statvfs(s->o.store, &v))
		return 0;
	uint64_t bytes = v.f_blocks * v.f_frsize / RESERVE_PART;
	bytes = bytes > RESERVE_MAX ? RESERVE_MAX : bytes / BLOCK * BLOCK;
	return bytes < RESERVE_MIN ? 0 : bytes;
}

void reserve_probe(struct staging *s)
{
	int tmp = io_store_tmp(s->o.store);

	if (tmp < 0)
		return;
	s->reserve.fd = openat(tmp, "../reserve", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (s->reserve.fd >= 0 && fallocate(s->reserve.fd, FALLOC_FL_KEEP_SIZE, 0, BLOCK) &&
	    errno == EOPNOTSUPP)
		io_allocate(s->o.store, s->reserve.fd, 0, BLOCK);
}

void reserve_open(struct staging *s)
{
	struct stat st;

	if (s->reserve.fd < 0)
		return;
	/* a dead worker's: its promises count on these blocks */
	if (!fstat(s->reserve.fd, &st) && st.st_size) {
		s->reserve.bytes = s->reserve.left = (uint64_t)st.st_size;
		atomic_store(&s->reserve.state, RESERVE_GIVEN);
	}
	reserve_take(s);
	/* Some of it was given away: what is left is for what was accepted. */
	if (s->reserve.left && s->reserve.left >= full_size(s) &&
	    s->reserve.left >= 2 * atomic_load(&s->reserve.promised))
		atomic_store(&s->reserve.state, RESERVE_HELD);
}

/* A clean end: no promises are left. */
void reserve_close(struct staging *s, bool remove)
{
	if (s->reserve.fd < 0)
		return;
	if (remove)
		unlinkat(io_store_tmp(s->o.store), "../reserve", 0);
	close(s->reserve.fd);
	s->reserve.fd = -1;
}

/* Does the kernel write spilled files? They take whatever is free. */
static bool kernel_takes(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	for (const struct staged *f = s->files.open; f; f = f->lists.open_next)
		if (f->spilled && f->backing)
			return true;
	return false;
}

/* A little at a time, and while others may take it, not the last of it: that is for when they have
 * ended, or for the next start. */
bool reserve_shrink(struct staging *s)
{
	bool gave = false;
	if (atomic_load(&s->reserve.state) == RESERVE_NONE)
		return false;
	bool all = !kernel_takes(s);
	/* threads that allocate for themselves now have seen HELD: let them finish first */
	pthread_rwlock_wrlock(&s->reserve.lock);
	pthread_mutex_lock(&s->reserve.take_lock); /* it is not taken back meanwhile */
	atomic_store(&s->reserve.state, RESERVE_GIVEN);
	uint64_t step = s->reserve.bytes / GIVE_STEPS / BLOCK * BLOCK;
	if (s->reserve.left < step + BLOCK)
		step = s->reserve.left;
	if (!all && s->reserve.left - step < s->reserve.bytes / KEPT_PART)
		step = 0;
	if (step && ftruncate(s->reserve.fd, (off_t)(s->reserve.left - step)) == 0) {
		s->reserve.left -= step;
		gave = true;
	}
	pthread_mutex_unlock(&s->reserve.take_lock);
	pthread_rwlock_unlock(&s->reserve.lock);
	return gave;
}

void reserve_take(struct staging *s)
{
	struct statvfs v;
	uint64_t promised = atomic_load(&s->reserve.promised);

	if (s->reserve.fd < 0 || atomic_load(&s->reserve.state) == RESERVE_HELD ||
	    io_store_statvfs(s->o.store, &v))
		return;
	uint64_t bytes = full_size(s);
	if (!bytes || v.f_bavail * v.f_frsize + s->reserve.left < 2 * bytes + promised)
		return;
	LOCK_SCOPE(&s->reserve.take_lock);
	if (atomic_load(&s->reserve.state) != RESERVE_HELD &&
	    fallocate(s->reserve.fd, 0, 0, (off_t)bytes) == 0) {
		s->reserve.bytes = s->reserve.left = bytes;
		atomic_store(&s->reserve.state, RESERVE_HELD);
	}
}

static uint64_t cost(uint64_t size)
{
	return (size + BLOCK - 1) / BLOCK * BLOCK + (uint64_t)FILE_BLOCKS * BLOCK;
}

static void promise(struct staging *s, uint64_t *mine, uint64_t more)
{
	if (!*mine && more)
		atomic_fetch_add(&s->reserve.inodes, 1);
	atomic_fetch_add(&s->reserve.promised, more);
	*mine += more;
}

/* What may be promised; the rest is for directories that grow by a rename. */
static uint64_t usable(const struct staging *s)
{
	return atomic_load(&s->reserve.state) == RESERVE_HELD ? s->reserve.bytes / 4 * 3 : 0;
}

void reserve_saw(struct staging *s, const struct statvfs *v)
{
	bool ample = !v->f_files || v->f_favail >= AMPLE_INODES;

	atomic_store(&s->reserve.ample, ample ? v->f_bavail * v->f_frsize : 0);
	atomic_store(&s->reserve.ample_ns, monotonic_ns());
}

bool reserve_is_ample(const struct staging *s, uint64_t bytes)
{
	uint64_t ample = atomic_load(&s->reserve.ample);

	return ample >= AMPLE && ample - AMPLE >= bytes &&
	       monotonic_ns() - atomic_load(&s->reserve.ample_ns) < AMPLE_NS;
}

/* Are `bytes` of the store's free blocks, and an inode, unclaimed? */
static bool has_space(struct staging *s, uint64_t bytes)
{
	uint64_t promised = atomic_load(&s->reserve.promised), left = usable(s);
	uint64_t over = promised > left ? promised - left : 0;
	struct statvfs v;

	if (reserve_is_ample(s, bytes + over)) {
		uint64_t ample = atomic_load(&s->reserve.ample);
		atomic_store(&s->reserve.ample, ample > bytes ? ample - bytes : 0);
		return true;
	}
	/* a FUSE filesystem may tell of no blocks at all */
	if (io_store_statvfs(s->o.store, &v) || !v.f_frsize || !v.f_blocks)
		return true;
	reserve_saw(s, &v);
	atomic_store(&s->reserve.tight, v.f_bavail * v.f_frsize < TIGHT_PARTS * s->reserve.bytes);
	if (v.f_files && v.f_favail < atomic_load(&s->reserve.inodes) + SPARE_INODES)
		return false;
	bytes += over + (uint64_t)SPARE_BLOCKS * BLOCK;
	return v.f_bavail >= bytes / v.f_frsize;
}

static bool spares(struct staging *s, uint64_t bytes)
{
	bool space = has_space(s, bytes);
	atomic_store(&s->reserve.scarce, !space);
	return space;
}

/* Does not depend on the present promises: they stay constant if each name is published before the
 * next is made. */
static bool is_time_to_look(struct staging *s)
{
	return atomic_load(&s->reserve.scarce) ||
	       atomic_fetch_add(&s->reserve.asked, 1) % ASK_EVERY == 0;
}

bool reserve_promise(struct staging *s, uint64_t *mine, uint64_t size)
{
	uint64_t want = cost(size), more = want > *mine ? want - *mine : 0;

	if (!more) /* a close after an answered one: it is held */
		return true;
	if (atomic_load(&s->reserve.promised) + more > usable(s) ||
	    (is_time_to_look(s) && !spares(s, 0)))
		return false;
	promise(s, mine, more);
	return true;
}

bool reserve_promise_silent(struct staging *s, uint64_t *mine, uint64_t size)
{
	uint64_t want = cost(size), more = want > *mine ? want - *mine : 0;
	struct statvfs v;

	if (!io_store_silent_since(s->o.store))
		return false;
	if (!more)
		return *mine;
	if (atomic_load(&s->reserve.state) == RESERVE_GIVEN || io_store_statvfs(s->o.store, &v))
		return false;
	/* others take of it, too */
	if (atomic_load(&s->reserve.promised) + more > v.f_bavail * v.f_frsize / 2 ||
	    (v.f_files && v.f_favail / 2 < atomic_load(&s->reserve.inodes)))
		return false;
	promise(s, mine, more);
	return true;
}

void reserve_again(struct staging *s, uint64_t *mine, uint64_t size)
{
	promise(s, mine, cost(size));
}

int reserve_count(struct staging *s, uint64_t *mine, uint64_t bytes)
{
	LOCK_SCOPE(&s->reserve.take_lock);
	uint64_t want = bytes ? cost(bytes + bytes / MAP_PART) : 0;

	if (want > *mine && !spares(s, want - *mine))
		return -ENOSPC;
	if (want > *mine)
		promise(s, mine, want - *mine);
	else if (!want)
		reserve_kept(s, mine);
	return 0;
}

int reserve_fill(struct staging *s, int fd, uint64_t off, uint64_t len)
{
	uint64_t begin = off, end = off + len;
	struct stat st;
	int err = fstat(fd, &st) ? -errno : 0;

	/* in pieces: who counts waits for one */
	for (uint64_t piece; !err && off < end; off += piece) {
		LOCK_SCOPE(&s->reserve.take_lock);
		piece = end - off < FILL_BYTES ? end - off : FILL_BYTES;
		err = spares(s, piece) ? io_allocate_by_zeros(s->o.store, fd, off, piece) : -ENOSPC;
	}
	if (err && off > begin && (uint64_t)st.st_size < end)
		io_truncate(s->o.store, fd, (uint64_t)st.st_size);
	return err;
}

void reserve_name(struct staging *s, uint64_t *mine)
{
	promise(s, mine, (uint64_t)NAME_BLOCKS * BLOCK);
}

void reserve_kept(struct staging *s, uint64_t *mine)
{
	if (*mine)
		atomic_fetch_sub(&s->reserve.inodes, 1);
	atomic_fetch_sub(&s->reserve.promised, *mine);
	*mine = 0;
}

bool reserve_is_given(struct staging *s)
{
	if (atomic_load(&s->reserve.state) == RESERVE_GIVEN)
		reserve_take(s);
	return atomic_load(&s->reserve.state) == RESERVE_GIVEN;
}

/* Blocks can be allocated, and none are held for others. */
static bool holds_nothing(const struct staging *s)
{
	return atomic_load(&s->reserve.state) == RESERVE_NONE && io_store_allocates(s->o.store);
}

int reserve_enter(struct staging *s, uint64_t bytes)
{
	pthread_rwlock_rdlock(&s->reserve.lock);
	if (!bytes || holds_nothing(s) || (!reserve_is_given(s) && spares(s, bytes)))
		return 0;
	pthread_rwlock_unlock(&s->reserve.lock);
	return -ENOSPC;
}

void reserve_leave(struct staging *s)
{
	pthread_rwlock_unlock(&s->reserve.lock);
	atomic_store(&s->space.seen_ns, 0); /* blocks were taken or given: check again */
}

bool staging_space_for_names(struct staging *s)
{
	if (holds_nothing(s))
		return true;
	if (reserve_is_given(s))
		return false;
	uint64_t pending = atomic_load(&s->reserve.promised), holds = usable(s);
	bool ask = (holds && pending + NAME_BLOCKS * BLOCK > holds) || is_time_to_look(s);
	return !ask || spares(s, (uint64_t)NAME_BLOCKS * BLOCK);
}

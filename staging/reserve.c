/* SPDX-License-Identifier: MIT
 * A few blocks of the store, held in a file. A name in the order may need a block
 * when the store is full, and the deletes that would free one stand behind it: then
 * the reserve is given up. Until it is back, new names are refused. */
#include "staging/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define RESERVE_BYTES (4ull << 20)	/* a thousand directory blocks */
#define RESERVE_ROOM (16ull << 20)	/* a store with less free goes without */

void reserve_open(struct staging *s)
{
	int tmp = io_store_tmp(s->o.store);
	if (tmp < 0)
		return;
	s->reserve_fd = openat(tmp, "../reserve", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (s->reserve_fd < 0)
		return;
	if (ftruncate(s->reserve_fd, 0))
		return;
	reserve_take(s);
	s->reserve_wanted = atomic_load(&s->reserve_held);
}

void reserve_give(struct staging *s)
{
	if (!atomic_load(&s->reserve_held))
		return;
	atomic_store(&s->reserve_held, false);
	if (ftruncate(s->reserve_fd, 0) == 0)
		io_sync_all(s->o.store);	/* xfs and ext4 hand freed blocks out after the commit */
}

void reserve_take(struct staging *s)
{
	struct statvfs v;
	if (s->reserve_fd < 0 || atomic_load(&s->reserve_held) || io_store_statvfs(s->o.store, &v) ||
	    v.f_bavail * v.f_frsize < RESERVE_ROOM)
		return;
	/* a small store gives up less */
	uint64_t part = v.f_blocks * v.f_frsize / 256, bytes = part < RESERVE_BYTES ? part : RESERVE_BYTES;
	if (fallocate(s->reserve_fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0)
		atomic_store(&s->reserve_held, true);
}

bool staging_room_for_names(struct staging *s)
{
	struct statvfs v;
	/* a store too small for a reserve, or that does not count blocks, goes without */
	if (atomic_load(&s->reserve_held) || !s->reserve_wanted)
		return true;
	reserve_take(s);
	return atomic_load(&s->reserve_held) || (!io_store_statvfs(s->o.store, &v) && v.f_bavail > 64);
}

/* SPDX-License-Identifier: MIT
 * The free space of the store's filesystem, for who is told of it: status, and a notice about
 * inodes.
 */
#include "fs/base/base.h"

/* `cairn umount` asks ten times a second, and a shared filesystem's server is asked each time. */
#define FRESH_NS 200000000u

void store_space_look(struct fs *fs)
{
	struct statvfs v;

	if (!fs->store || io_store_is_detached(fs->store) ||
	    monotonic_ns() - atomic_load(&fs->space.seen_ns) < FRESH_NS ||
	    io_store_statvfs(fs->store, &v))
		return;
	atomic_store(&fs->space.free_inodes, v.f_files ? v.f_favail : SPACE_NO_LIMIT);
	atomic_store(&fs->space.free, v.f_bavail * v.f_frsize);
	atomic_store(&fs->space.size, v.f_blocks * v.f_frsize);
	atomic_store(&fs->space.seen_ns, monotonic_ns());
}

/* SPDX-License-Identifier: MIT
 *
 * Some filesystems free the blocks of a removed file later: xfs in a thread (inodegc, Linux 5.14),
 * btrfs with the next transaction. Until then statfs(2) does not count them.
 */
#include <errno.h>
#include <linux/magic.h>
#include <linux/types.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "inside.h"
#include "io/clock.h"

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif
#define POLL_MS 20
#define STILL_POLLS 5 /* as many without a change: xfs has ended, or has much to do */
#define POLLS_MAX 250

/* fs/xfs/libxfs/xfs_fs.h, which few systems have installed */
struct xfs_fs_eofblocks {
	__u32 version, flags, uid, gid, prid, pad32;
	__u64 min_file_size, pad64[12];
};
#define XFS_IOC_FREE_EOFBLOCKS _IOR('X', 58, struct xfs_fs_eofblocks)
#define XFS_EOFBLOCKS_VERSION 1
#define XFS_EOF_FLAGS_SYNC 1
#define XFS_EOF_FLAGS_MINFILESIZE 16

/* Frees what was allocated behind the end of files of at least 16 EiB, which do not exist, and, as
 * it does each time, waits for the blocks of all that was removed (fs/xfs/xfs_icache.c,
 * xfs_blockgc_free_space). CAP_SYS_ADMIN only. */
static int xfs_wait(int fd)
{
	struct xfs_fs_eofblocks none = {.version = XFS_EOFBLOCKS_VERSION,
					.flags = XFS_EOF_FLAGS_SYNC | XFS_EOF_FLAGS_MINFILESIZE,
					.min_file_size = UINT64_MAX};
	return ioctl(fd, XFS_IOC_FREE_EOFBLOCKS, &none) ? -errno : 0;
}

/* statfs(2) makes xfs begin, but does not wait. */
static void poll_until_still(int fd)
{
	struct statvfs before = {0}, now;

	for (unsigned polls = 0, still = 0; polls < POLLS_MAX && still < STILL_POLLS; polls++) {
		if (fstatvfs(fd, &now))
			return;
		still = now.f_bavail == before.f_bavail ? still + 1 : 0;
		before = now;
		sleep_ms(POLL_MS);
	}
}

void io_wait_freed(struct io_store *s)
{
	struct statfs f;

	if (fstatfs(s->root_rd, &f))
		return;
	if (f.f_type == XFS_SUPER_MAGIC && xfs_wait(s->root_rd))
		poll_until_still(s->root_rd);
	if (f.f_type == BTRFS_SUPER_MAGIC)
		syncfs(s->root_rd);
}

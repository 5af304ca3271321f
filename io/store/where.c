/* SPDX-License-Identifier: MIT
 *
 * The identity of a store: its filesystem and directory. It does not change when the store is
 * renamed there, or its filesystem is unmounted and mounted again; a copy has another one.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "inside.h"

/* linux/fs.h, 6.9 and later. */
struct uuid_answer {
	uint8_t len, uuid[16];
};
#ifndef FS_IOC_GETFSUUID
#define FS_IOC_GETFSUUID _IOR(0x15, 0, struct uuid_answer)
#endif

/* Not a device number, which changes from mount to mount (loop devices, device mapper). */
void io_store_where(const struct io_store *s, struct io_where *out)
{
	struct uuid_answer u = {.len = 0};
	struct statfs fs = {.f_type = 0};
	struct statx x;

	memset(out, 0, sizeof(*out));
	if (!ioctl(s->root_rd, FS_IOC_GETFSUUID, &u) && u.len && u.len <= sizeof(out->uuid)) {
		memcpy(out->uuid, u.uuid, u.len);
		out->known |= IO_WHERE_UUID;
	}
	if (fstatfs(s->root_rd, &fs))
		return;
	/* made from the uuid, and on btrfs from the subvolume: the only difference of a snapshot.
	 * On xfs it is the device number. */
	if (fs.f_type == EXT4_SUPER_MAGIC || fs.f_type == BTRFS_SUPER_MAGIC) {
		memcpy(&out->fsid, &fs.f_fsid, sizeof(out->fsid));
		out->known |= IO_WHERE_FSID;
	}
	if (statx(s->root_rd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &x))
		return;
	/* on others inode numbers may be assigned at each mount */
	if (fs.f_type == EXT4_SUPER_MAGIC || fs.f_type == BTRFS_SUPER_MAGIC ||
	    fs.f_type == XFS_SUPER_MAGIC || fs.f_type == TMPFS_MAGIC) {
		out->ino = x.stx_ino;
		out->known |= IO_WHERE_INO;
	}
	if (x.stx_mask & STATX_BTIME) {
		out->btime_sec = x.stx_btime.tv_sec;
		out->btime_nsec = x.stx_btime.tv_nsec;
		out->known |= IO_WHERE_BTIME;
	}
}

bool io_where_same(const struct io_where *a, const struct io_where *b)
{
	uint32_t known = a->known & b->known;

	return !((known & IO_WHERE_UUID && memcmp(a->uuid, b->uuid, sizeof(a->uuid))) ||
		 (known & IO_WHERE_FSID && a->fsid != b->fsid) ||
		 (known & IO_WHERE_INO && a->ino != b->ino) ||
		 (known & IO_WHERE_BTIME &&
		  (a->btime_sec != b->btime_sec || a->btime_nsec != b->btime_nsec)));
}

void io_store_path(const struct io_store *s, char *buf, size_t cap)
{
	char link[IO_PROC_PATH];
	ssize_t n;

	io_proc_path(link, s->root, NULL);
	n = readlink(link, buf, cap - 1);
	buf[n < 0 ? 0 : n] = '\0';
}

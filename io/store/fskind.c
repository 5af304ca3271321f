/* SPDX-License-Identifier: MIT
 *
 * Does one fsync commit all changes of names before it? ext4 and xfs promise that
 * through their journal; an ext4 (or ext2) without one promises nothing.
 */
#include <fcntl.h>
#include <libgen.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "inside.h"
#include "io/scope.h"

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

/* /sys/fs/ext4/<disk>/journal_task contains a pid, or "<none>". If it cannot be read
 * (no sysfs, an ext2): no journal. */
static bool ext4_has_journal(dev_t dev)
{
	CLEANUP_CLOSE int fd = -1;
	char path[320], disk[256];
	ssize_t n;

	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u", major(dev), minor(dev));
	n = readlink(path, disk, sizeof(disk) - 1);
	if (n < 0)
		return false;
	disk[n] = 0;
	snprintf(path, sizeof(path), "/sys/fs/ext4/%s/journal_task", basename(disk));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd >= 0 && read(fd, path, 1) == 1 && path[0] >= '0' && path[0] <= '9';
}

bool io_fs_is_local(int fd)
{
	struct statfs f;

	if (fstatfs(fd, &f))
		return false;
	switch (f.f_type) {
	case EXT4_SUPER_MAGIC:
	case XFS_SUPER_MAGIC:
	case BTRFS_SUPER_MAGIC: return true;
	default: return false;
	}
}

bool io_fs_frees_early(int fd)
{
	CLEANUP_CLOSE int options = -1;
	char path[320], disk[256], text[4096];
	struct statfs f;
	struct stat st;
	ssize_t n;

	if (fstatfs(fd, &f) || f.f_type != EXT4_SUPER_MAGIC || fstat(fd, &st))
		return false;
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u", major(st.st_dev), minor(st.st_dev));
	n = readlink(path, disk, sizeof(disk) - 1);
	if (n < 0)
		return false;
	disk[n] = 0;
	/* mountinfo does not list options of the superblock itself */
	snprintf(path, sizeof(path), "/proc/fs/ext4/%s/options", basename(disk));
	options = open(path, O_RDONLY | O_CLOEXEC);
	n = options < 0 ? -1 : read(options, text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = 0;
	return strstr(text, "data=writeback");
}

int io_fs_kind(int fd, struct io_fs *out)
{
	struct statfs f;
	struct stat st;

	if (fstatfs(fd, &f) || fstat(fd, &st))
		return -errno;
	/* btrfs orders by transaction, and only syncfs ends one for all directories */
	out->kind = f.f_type == BTRFS_SUPER_MAGIC ? IO_FS_SYNCFS : IO_FS_EACH;
	out->ext4_journal = f.f_type == EXT4_SUPER_MAGIC && ext4_has_journal(st.st_dev);
	out->overlay = f.f_type == OVERLAYFS_SUPER_MAGIC;
	if (f.f_type == XFS_SUPER_MAGIC || out->ext4_journal)
		out->kind = IO_FS_ORDERED;
	return 0;
}

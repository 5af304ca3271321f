/* SPDX-License-Identifier: MIT
 *
 * The real operations under every engine: one small function per operation, each
 * a system call and its errno.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "engine.h"
#include "io/scope.h"

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

void io_proc_path(char out[IO_PROC_PATH], int fd, const char *name)
{
	snprintf(out, IO_PROC_PATH, name ? "/proc/self/fd/%d/%s" : "/proc/self/fd/%d", fd, name);
}

#define AWAIT_STEP_US 5000u
#define AWAIT_STEPS 200u

bool io_await_descriptor(ssize_t err, unsigned *waited)
{
	if (err != -EMFILE || *waited == AWAIT_STEPS)
		return false;
	++*waited;
	usleep(AWAIT_STEP_US);
	return true;
}

static ssize_t ret(ssize_t r)
{
	return r < 0 ? io_error() : r;
}

static ssize_t do_write(const struct io_call *c)
{
	return ret(pwrite(c->fd, c->buf, c->len, (off_t)c->off));
}

static ssize_t do_create(const struct io_call *c)
{
	unsigned waited = 0;
	ssize_t fd;

	do
		fd = ret(openat(c->fd, c->name, c->flags, c->mode));
	while (io_await_descriptor(fd, &waited));
	return fd;
}

static ssize_t do_allocate(const struct io_call *c)
{
	return ret(fallocate(c->fd, FALLOC_FL_KEEP_SIZE, (off_t)c->off, (off_t)c->size));
}

static ssize_t do_truncate(const struct io_call *c)
{
	return ret(ftruncate(c->fd, (off_t)c->size));
}

static ssize_t do_rename(const struct io_call *c)
{
	if (!c->flags)
		return ret(renameat(c->fd, c->name, c->fd2, c->name2));
	return ret(renameat2(c->fd, c->name, c->fd2, c->name2, (unsigned)c->flags));
}

static ssize_t do_link(const struct io_call *c)
{
	return ret(linkat(c->fd, c->name, c->fd2, c->name2, 0));
}

static ssize_t do_unlink(const struct io_call *c)
{
	return ret(unlinkat(c->fd, c->name, 0));
}

static ssize_t do_rmdir(const struct io_call *c)
{
	return ret(unlinkat(c->fd, c->name, AT_REMOVEDIR));
}

static ssize_t do_mkdir(const struct io_call *c)
{
	return ret(mkdirat(c->fd, c->name, c->mode));
}

static ssize_t do_symlink(const struct io_call *c)
{
	return ret(symlinkat(c->name2, c->fd, c->name));
}

static ssize_t do_mknod(const struct io_call *c)
{
	return ret(mknodat(c->fd, c->name, c->mode, 0));
}

/* fchmodat2(2) exists since 6.6; before, chmod through a descriptor that names the inode. */
static ssize_t chmod_nofollow(int dirfd, const char *name, mode_t mode)
{
	CLEANUP_CLOSE int fd = -1;
	char path[IO_PROC_PATH];
	struct stat st;

	if (!syscall(SYS_fchmodat2, dirfd, name ? name : "", mode,
		     AT_SYMLINK_NOFOLLOW | (name ? 0 : AT_EMPTY_PATH)))
		return 0;
	if (errno != ENOSYS && errno != EPERM)
		return io_error();
	if (name)
		fd = openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if ((name && fd < 0) || fstat(name ? fd : dirfd, &st))
		return io_error();
	if (S_ISLNK(st.st_mode))
		return -EOPNOTSUPP;
	io_proc_path(path, name ? fd : dirfd, NULL);
	return ret(chmod(path, mode));
}

static ssize_t own(const struct io_call *c)
{
	if (!c->name)
		return ret(fchownat(c->fd, "", c->attr->uid, c->attr->gid, AT_EMPTY_PATH));
	return ret(fchownat(c->fd, c->name, c->attr->uid, c->attr->gid, AT_SYMLINK_NOFOLLOW));
}

static ssize_t change_mode(const struct io_call *c)
{
	if (!c->name) {
		if (!fchmod(c->fd, c->attr->mode))
			return 0;
		if (errno != EBADF) /* else an O_PATH descriptor */
			return io_error();
	}
	return chmod_nofollow(c->fd, c->name, c->attr->mode);
}

static ssize_t change_times(const struct io_call *c, const struct timespec t[2])
{
	if (c->name)
		return ret(utimensat(c->fd, c->name, t, AT_SYMLINK_NOFOLLOW));
	if (!futimens(c->fd, t))
		return 0;
	return errno == EBADF ? ret(utimensat(c->fd, "", t, AT_EMPTY_PATH)) : io_error();
}

static ssize_t do_attr(const struct io_call *c)
{
	const struct io_attr *a = c->attr;
	struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
	ssize_t err = 0;

	/* owner before mode: chown clears suid and sgid */
	if (a->mask & IO_ATTR_OWNER)
		err = own(c);
	if (!err && (a->mask & IO_ATTR_MODE))
		err = change_mode(c);
	if (a->mask & IO_ATTR_ATIME)
		t[0] = a->atime;
	if (a->mask & IO_ATTR_MTIME)
		t[1] = a->mtime;
	if (!err && (a->mask & (IO_ATTR_ATIME | IO_ATTR_MTIME)))
		err = change_times(c, t);
	return err;
}

static ssize_t do_xattr_set(const struct io_call *c)
{
	char path[IO_PROC_PATH];

	if (!c->name && !fsetxattr(c->fd, c->key, c->buf, c->len, c->flags))
		return 0;
	if (!c->name && errno != EBADF)
		return io_error();
	io_proc_path(path, c->fd, c->name);
	return ret(c->name ? lsetxattr(path, c->key, c->buf, c->len, c->flags)
			   : setxattr(path, c->key, c->buf, c->len, c->flags));
}

static ssize_t do_xattr_remove(const struct io_call *c)
{
	char path[IO_PROC_PATH];

	io_proc_path(path, c->fd, c->name);
	return ret(c->name ? lremovexattr(path, c->key) : removexattr(path, c->key));
}

/* An fsync on ext4 looks for a shutdown only when it begins, and for an error of the journal only
 * while the commit that it needs is running: it returns 0 if that was thrown away before it looked
 * (seen on 6.18). Every start of a change fails from then on; this one changes nothing, for the
 * file has no such attribute. Other errors say nothing about the journal. */
static ssize_t journal_works(int fd)
{
	return fremovexattr(fd, "user.cairn.none") && io_error() == -EIO ? -EIO : 0;
}

/* xfs that has shut down discards what its log did not write, and then an fsync of a
 * directory returns 0: it finds nothing to do (seen on 6.18). So may an fsync of a file that was
 * in progress. From then on stat fails on any of its files. */
static ssize_t synced(const struct io_call *c, int fd, int err)
{
	struct stat st;

	if (err || fstat(fd, &st))
		return io_error();
	return c->fd2 < 0 ? 0 : journal_works(c->fd2);
}

static ssize_t do_sync_data(const struct io_call *c)
{
	return synced(c, c->fd, c->size ? fsync(c->fd) : fdatasync(c->fd));
}

/* An O_PATH descriptor cannot be synced: the directory is opened once more, and the descriptor
 * refers to that from then on, so that the next sync needs no other one. A network filesystem may
 * have lost what was open with its server; an error of a sync is none of these. */
static ssize_t do_sync_dir(const struct io_call *c)
{
	int rc = fsync(c->fd);

	if (!rc || (errno != EBADF && errno != EBADFD && errno != ESTALE))
		return synced(c, c->fd, rc);
	CLEANUP_CLOSE int fd = openat(c->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ssize_t err = fd < 0 ? io_error() : synced(c, fd, fsync(fd));
	if (!err)
		dup3(fd, c->fd, O_CLOEXEC);
	return err;
}

/* btrfs, and ext4 before 6.15, are read-only after an error, and syncfs of them returns 0. */
static ssize_t do_sync_all(const struct io_call *c)
{
	ssize_t err = synced(c, c->fd, syncfs(c->fd));
	struct statvfs v;

	if (!err && fstatvfs(c->fd, &v))
		return io_error();
	return !err && v.f_flag & ST_RDONLY ? -EIO : err;
}

static ssize_t do_sync_mark(const struct io_call *c)
{
	return synced(c, c->fd, fsync(c->fd));
}

/* From fd to fd2, as many bytes as the kernel found equal; 0 = they differ. */
static ssize_t do_share(const struct io_call *c)
{
	_Alignas(struct file_dedupe_range) char space[sizeof(struct file_dedupe_range) +
						      sizeof(struct file_dedupe_range_info)] = {0};
	struct file_dedupe_range *r = (struct file_dedupe_range *)space;

	r->src_offset = c->off;
	r->src_length = c->size;
	r->dest_count = 1;
	r->info[0].dest_fd = c->fd2;
	r->info[0].dest_offset = c->off;
	if (ioctl(c->fd, FIDEDUPERANGE, r))
		return io_error();
	if (r->info[0].status < 0)
		return r->info[0].status;
	return r->info[0].status == FILE_DEDUPE_RANGE_SAME ? (ssize_t)r->info[0].bytes_deduped : 0;
}

/* fd gets all blocks of fd2, and its size. */
static ssize_t do_clone(const struct io_call *c)
{
	return ret(ioctl(c->fd, FICLONE, c->fd2));
}

static ssize_t (*const real[IO_OP_COUNT])(const struct io_call *c) = {
	[IO_OP_WRITE] = do_write,
	[IO_OP_CREATE] = do_create,
	[IO_OP_ALLOCATE] = do_allocate,
	[IO_OP_TRUNCATE] = do_truncate,
	[IO_OP_ATTR] = do_attr,
	[IO_OP_XATTR_SET] = do_xattr_set,
	[IO_OP_XATTR_REMOVE] = do_xattr_remove,
	[IO_OP_RENAME] = do_rename,
	[IO_OP_LINK] = do_link,
	[IO_OP_UNLINK] = do_unlink,
	[IO_OP_RMDIR] = do_rmdir,
	[IO_OP_MKDIR] = do_mkdir,
	[IO_OP_SYMLINK] = do_symlink,
	[IO_OP_MKNOD] = do_mknod,
	[IO_OP_SYNC_DATA] = do_sync_data,
	[IO_OP_SYNC_DIR] = do_sync_dir,
	[IO_OP_SYNC_ALL] = do_sync_all,
	[IO_OP_SYNC_MARK] = do_sync_mark,
	[IO_OP_SHARE] = do_share,
	[IO_OP_CLONE] = do_clone,
};

ssize_t io_call_real(struct io_engine *e, const struct io_call *c)
{
	ssize_t res;

	(void)e;
	do {
		res = c->instead ? c->instead(c->store, c) : real[c->op](c);
	} while (res == -EINTR);
	return res;
}

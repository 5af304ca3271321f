/* SPDX-License-Identifier: MIT
 *
 * Names in the store: looked up and changed one component at a time, never
 * through a symlink.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "inside.h"
#include "io/scope.h"
#include "sidecar.h"

struct opening {
	int dirfd;
	const char *name; /* NULL: dirfd itself, for its names */
	int flags;
	bool awaits; /* a descriptor; no lock is held */
};

static ssize_t open_it(struct io_store *s, void *ctx)
{
	const struct opening *o = ctx;
	const int flags = o->flags | O_CLOEXEC;
	unsigned waited = 0;
	int fd;

	(void)s;
	do {
		fd = o->name ? io_open_beneath(o->dirfd, o->name, flags, 0)
			     : openat(o->dirfd, ".", flags);
		if (fd < 0 && !o->name)
			fd = io_error();
	} while (o->awaits && io_await_descriptor(fd, &waited));
	return fd;
}

static int open_lent(struct io_store *s, int dirfd, const char *name, int flags, bool awaits)
{
	const struct io_object on[] = {{.dirfd = dirfd}, {.dirfd = dirfd, .name = name}};
	struct opening o = {dirfd, name, flags, awaits};
	bool opens = name && !(flags & O_PATH);

	return (int)io_lend(s, on, opens ? 2 : 1, open_it, &o);
}

int io_open_lent(struct io_store *s, int dirfd, const char *name, int flags)
{
	return open_lent(s, dirfd, name, flags, false);
}

int io_open_dir(struct io_store *s, int dirfd, const char *name)
{
	int err = io_name_check(name);

	io_check(s);
	return err ? err : open_lent(s, dirfd, name, O_PATH | O_DIRECTORY, true);
}

int io_open_list(struct io_store *s, int dirfd)
{
	io_check(s);
	return open_lent(s, dirfd, NULL, O_RDONLY | O_DIRECTORY, true);
}

int io_open_read(struct io_store *s, int dirfd, const char *name, int extra_flags)
{
	CLEANUP_CLOSE int fd = -1;
	struct stat st;
	int err = io_stat(s, dirfd, name, &st);

	if (err)
		return err;
	if (extra_flags & (O_ACCMODE | O_CREAT | O_TRUNC))
		return -EINVAL;
	if (S_ISLNK(st.st_mode))
		return -ELOOP;
	/* opening a device or a pipe may have side effects: check its type first */
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	fd = io_open_lent(s, dirfd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | extra_flags);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st))
		return io_error();
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	/* O_NONBLOCK protected against a pipe put there meanwhile; io_uring would heed it */
	if (!(extra_flags & O_NONBLOCK) && fcntl(fd, F_SETFL, extra_flags) < 0)
		return io_error();
	return scope_keep(&fd);
}

struct stating {
	int dirfd;
	const char *name;
	struct stat *out;
	uint64_t *birth_ns;
};

static ssize_t stat_it(struct io_store *s, void *ctx)
{
	const struct stating *c = ctx;
	int flags = c->name ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH;

	(void)s;
	return fstatat(c->dirfd, c->name ? c->name : "", c->out, flags) ? io_error() : 0;
}

static int stat_lent(struct io_store *s, io_lent_fn op, struct stating *c)
{
	const struct io_object dir = {.dirfd = c->dirfd};
	ssize_t r = io_not_lent(s, op, c, c->out);

	return r == -EACCES && c->name ? (int)io_lend(s, &dir, 1, op, c) : (int)r;
}

int io_stat(struct io_store *s, int dirfd, const char *name, struct stat *out)
{
	int err = name ? io_name_check(name) : 0;

	io_check(s);
	if (err)
		return err;
	struct stating c = {.dirfd = dirfd, .name = name, .out = out};
	return stat_lent(s, stat_it, &c);
}

static void stat_of(const struct statx *x, struct stat *out)
{
	*out = (struct stat){
		.st_dev = makedev(x->stx_dev_major, x->stx_dev_minor),
		.st_ino = x->stx_ino,
		.st_mode = x->stx_mode,
		.st_nlink = x->stx_nlink,
		.st_uid = x->stx_uid,
		.st_gid = x->stx_gid,
		.st_rdev = makedev(x->stx_rdev_major, x->stx_rdev_minor),
		.st_size = (off_t)x->stx_size,
		.st_blksize = (blksize_t)x->stx_blksize,
		.st_blocks = (blkcnt_t)x->stx_blocks,
		.st_atim = {.tv_sec = x->stx_atime.tv_sec, .tv_nsec = x->stx_atime.tv_nsec},
		.st_mtim = {.tv_sec = x->stx_mtime.tv_sec, .tv_nsec = x->stx_mtime.tv_nsec},
		.st_ctim = {.tv_sec = x->stx_ctime.tv_sec, .tv_nsec = x->stx_ctime.tv_nsec},
	};
}

static ssize_t stat_born_it(struct io_store *s, void *ctx)
{
	const struct stating *c = ctx;
	int flags = c->name ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH;
	struct statx x;

	*c->birth_ns = 0;
	if (statx(c->dirfd, c->name ? c->name : "", flags, STATX_BASIC_STATS | STATX_BTIME, &x)) {
		/* EPERM: a seccomp filter without the call */
		return errno == ENOSYS || errno == EPERM ? stat_it(s, ctx) : -errno;
	}
	stat_of(&x, c->out);
	if (x.stx_mask & STATX_BTIME)
		*c->birth_ns = (uint64_t)x.stx_btime.tv_sec * 1000000000u + x.stx_btime.tv_nsec;
	return 0;
}

int io_stat_born(struct io_store *s, int dirfd, const char *name, struct stat *out,
		 uint64_t *birth_ns)
{
	struct stating c = {dirfd, name, out, birth_ns};
	int err = name ? io_name_check(name) : 0;

	*birth_ns = 0;
	if (err)
		return err;
	io_check(s);
	return stat_lent(s, stat_born_it, &c);
}

struct linked {
	int dirfd;
	const char *name;
	char *buf;
	size_t cap;
};

static ssize_t read_link(struct io_store *s, void *ctx)
{
	const struct linked *c = ctx;
	ssize_t n = readlinkat(c->dirfd, c->name, c->buf, c->cap);

	(void)s;
	return n < 0 ? io_error() : n;
}

ssize_t io_readlink(struct io_store *s, int dirfd, const char *name, char *buf, size_t cap)
{
	struct linked c = {dirfd, name, buf, cap};
	int err = io_name_check(name);
	ssize_t n;

	io_check(s);
	if (err)
		return err;
	n = io_lend(s, &(struct io_object){.dirfd = dirfd}, 1, read_link, &c);
	if (n < 0)
		return n;
	if ((size_t)n >= cap)
		return -ENAMETOOLONG;
	buf[n] = 0;
	return n;
}

static int run(struct io_store *s, struct io_call *c)
{
	/* a directory's new parent is written in itself */
	const struct io_object on[] = {{.dirfd = c->fd},
				       {.dirfd = c->fd2},
				       {.dirfd = c->fd, .name = c->name, .dir = true}};
	unsigned n = c->op == IO_OP_RENAME ? 3 : c->op == IO_OP_LINK ? 2 : 1;
	int err = io_name_check(c->name);

	if (!err && c->op != IO_OP_SYMLINK && c->name2)
		err = io_name_check(c->name2);
	if (!err && s->ro)
		err = -EROFS;
	if (!err && atomic_load_explicit(&s->lend.left, memory_order_relaxed))
		io_lend_recover(s);
	return err ? err : (int)io_lend(s, on, n, io_lent_call, c);
}

int io_rename(struct io_store *s, int d1, const char *n1, int d2, const char *n2, unsigned flags)
{
	struct io_call c = {.op = IO_OP_RENAME,
			    .fd = d1,
			    .name = n1,
			    .fd2 = d2,
			    .name2 = n2,
			    .flags = (int)flags};
	struct io_sidecar_key gone;
	int err;

	if (!n2)
		return -EINVAL;
	io_sidecar_about_to_go(s, d2, n2, &gone);
	err = run(s, &c);
	if (!err && !flags)
		io_sidecar_gone(s, &gone, d2, n2);
	return err;
}

bool io_dirs_may_stay(const struct io_store *s)
{
	return s->fs.overlay;
}

int io_dir_may_move(struct io_store *s, int dirfd, const char *name)
{
	int err = io_name_check(name);
	struct stat dir, cairn, host, named;

	io_check(s);
	if (err || !s->fs.overlay || s->host < 0)
		return err;
	/* not in a filesystem that is mounted in the store */
	if (fstat(dirfd, &dir) || fstat(s->cairn, &cairn) || dir.st_dev != cairn.st_dev)
		return 0;
	/* somebody removed this host's directory: then the rename would be made */
	if (fstat(s->host, &host) || fstatat(s->cairn, s->host_name, &named, AT_SYMLINK_NOFOLLOW) ||
	    host.st_ino != named.st_ino)
		return 0;
	/* this host's directory has its lock in it: nothing replaces it. overlayfs looks first
	 * whether the other one may move at all (ovl_rename in fs/overlayfs/dir.c) */
	return renameat(dirfd, name, s->cairn, s->host_name) && errno == EXDEV ? -EXDEV : 0;
}

int io_open_victim(struct io_store *s, int dirfd, const char *name)
{
	return io_open_lent(s, dirfd, name, O_PATH | O_NOFOLLOW);
}

/* link(2) does not replace: makes another name, which a rename then moves there. */
static int link_over(struct io_store *s, struct io_call *link, int d2, const char *n2)
{
	char scratch[17];
	int err;

	io_scratch_name(s, scratch);
	link->fd2 = s->tmp;
	link->name2 = scratch;
	err = run(s, link);
	if (err)
		return err;
	err = io_rename(s, s->tmp, scratch, d2, n2, 0);
	/* still there when the rename failed, or was one between two names of one inode */
	unlinkat(s->tmp, scratch, 0);
	return err;
}

int io_link(struct io_store *s, int d1, const char *n1, int d2, const char *n2)
{
	struct io_call c = {.op = IO_OP_LINK, .fd = d1, .name = n1, .fd2 = d2, .name2 = n2};
	int err;

	if (!n2)
		return -EINVAL;
	err = run(s, &c);
	return err == -EEXIST ? link_over(s, &c, d2, n2) : err;
}

static int remove_name(struct io_store *s, enum io_op op, int dirfd, const char *name)
{
	struct io_call c = {.op = op, .fd = dirfd, .name = name};
	struct io_sidecar_key gone;
	int err;

	io_sidecar_about_to_go(s, dirfd, name, &gone);
	err = run(s, &c);
	if (!err)
		io_sidecar_gone(s, &gone, -1, NULL);
	return err;
}

int io_unlink(struct io_store *s, int dirfd, const char *name)
{
	return remove_name(s, IO_OP_UNLINK, dirfd, name);
}

int io_rmdir(struct io_store *s, int dirfd, const char *name)
{
	return remove_name(s, IO_OP_RMDIR, dirfd, name);
}

int io_mkdir(struct io_store *s, int dirfd, const char *name, mode_t mode)
{
	struct io_call c = {.op = IO_OP_MKDIR, .fd = dirfd, .name = name, .mode = mode};

	return run(s, &c);
}

int io_symlink(struct io_store *s, const char *target, int dirfd, const char *name)
{
	struct io_call c = {.op = IO_OP_SYMLINK, .fd = dirfd, .name = name, .name2 = target};

	return run(s, &c);
}

int io_mknod(struct io_store *s, int dirfd, const char *name, mode_t mode)
{
	struct io_call c = {.op = IO_OP_MKNOD, .fd = dirfd, .name = name, .mode = mode};

	if (!S_ISSOCK(mode) && !S_ISFIFO(mode))
		return -EPERM;
	return run(s, &c);
}

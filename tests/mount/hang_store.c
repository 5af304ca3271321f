/* SPDX-License-Identifier: MIT
 * A filesystem that shows a directory, and stops answering while a file exists: what a hard mount of
 * a network filesystem does when its server stops. Nothing but the mount is affected, and the end of
 * the wait, or an abort of the connection, ends every call.
 *
 *	hang_store SOURCE MOUNTPOINT HANG	mounts; while the file HANG exists, no call is answered
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#define POLL_US 10000u

static const char *source, *hang;

static void answer_when_allowed(void)
{
	while (!access(hang, F_OK))
		usleep(POLL_US);
}

/* The path below the source, after the wait. */
struct path {
	char text[PATH_MAX];
};

static struct path below(const char *path)
{
	struct path p;

	answer_when_allowed();
	if ((size_t)snprintf(p.text, sizeof(p.text), "%s%s", source, path) >= sizeof(p.text))
		p.text[0] = 0; /* ENOENT */
	return p;
}

static int ret(long r)
{
	return r < 0 ? -errno : (int)r;
}

static int fd_of(const struct fuse_file_info *fi)
{
	answer_when_allowed();
	return (int)fi->fh;
}

static int op_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
	return fi ? ret(fstat(fd_of(fi), st)) : ret(lstat(below(path).text, st));
}

static int op_readlink(const char *path, char *buf, size_t size)
{
	ssize_t n = readlink(below(path).text, buf, size - 1);

	if (n < 0)
		return -errno;
	buf[n] = 0;
	return 0;
}

/* The caller's user, for what it makes: the kernel has checked permissions. */
static int owned(const char *path, int r)
{
	const struct fuse_context *c = fuse_get_context();

	return r < 0 ? -errno : ret(lchown(path, c->uid, c->gid));
}

static int op_mknod(const char *path, mode_t mode, dev_t dev)
{
	struct path p = below(path);

	return owned(p.text, mknod(p.text, mode, dev));
}

static int op_mkdir(const char *path, mode_t mode)
{
	struct path p = below(path);

	return owned(p.text, mkdir(p.text, mode));
}

static int op_unlink(const char *path)
{
	return ret(unlink(below(path).text));
}

static int op_rmdir(const char *path)
{
	return ret(rmdir(below(path).text));
}

static int op_symlink(const char *target, const char *path)
{
	struct path p = below(path);

	return owned(p.text, symlink(target, p.text));
}

static int op_rename(const char *from, const char *to, unsigned flags)
{
	struct path a = below(from), b = below(to);

	return ret(renameat2(AT_FDCWD, a.text, AT_FDCWD, b.text, flags));
}

static int op_link(const char *from, const char *to)
{
	struct path a = below(from), b = below(to);

	return ret(link(a.text, b.text));
}

static int op_chmod(const char *path, mode_t mode, struct fuse_file_info *fi)
{
	return fi ? ret(fchmod(fd_of(fi), mode)) : ret(chmod(below(path).text, mode));
}

static int op_chown(const char *path, uid_t uid, gid_t gid, struct fuse_file_info *fi)
{
	return fi ? ret(fchown(fd_of(fi), uid, gid)) : ret(lchown(below(path).text, uid, gid));
}

static int op_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
	return fi ? ret(ftruncate(fd_of(fi), size)) : ret(truncate(below(path).text, size));
}

static int op_utimens(const char *path, const struct timespec t[2], struct fuse_file_info *fi)
{
	return fi ? ret(futimens(fd_of(fi), t))
		  : ret(utimensat(AT_FDCWD, below(path).text, t, AT_SYMLINK_NOFOLLOW));
}

static int opened(struct fuse_file_info *fi, int fd)
{
	if (fd < 0)
		return -errno;
	fi->fh = (uint64_t)fd;
	return 0;
}

static int op_open(const char *path, struct fuse_file_info *fi)
{
	return opened(fi, open(below(path).text, fi->flags & ~(O_DIRECT | O_CREAT | O_EXCL)));
}

static int op_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
	struct path p = below(path);
	int err = opened(fi, open(p.text, (fi->flags & ~O_DIRECT) | O_CREAT, mode));

	return err ? err : owned(p.text, 0);
}

static int op_read(const char *path, char *buf, size_t size, off_t off, struct fuse_file_info *fi)
{
	(void)path;
	return ret(pread(fd_of(fi), buf, size, off));
}

static int op_write(const char *path, const char *buf, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	(void)path;
	return ret(pwrite(fd_of(fi), buf, size, off));
}

static int op_statfs(const char *path, struct statvfs *v)
{
	return ret(statvfs(below(path).text, v));
}

static int op_flush(const char *path, struct fuse_file_info *fi)
{
	(void)path;
	(void)fd_of(fi);
	return 0;
}

static int op_release(const char *path, struct fuse_file_info *fi)
{
	(void)path;
	return ret(close(fd_of(fi)));
}

static int op_fsync(const char *path, int datasync, struct fuse_file_info *fi)
{
	(void)path;
	return ret(datasync ? fdatasync(fd_of(fi)) : fsync(fd_of(fi)));
}

static int op_fsyncdir(const char *path, int datasync, struct fuse_file_info *fi)
{
	(void)path, (void)datasync, (void)fi;
	answer_when_allowed();
	return 0;
}

static int op_fallocate(const char *path, int mode, off_t off, off_t len, struct fuse_file_info *fi)
{
	(void)path;
	return ret(fallocate(fd_of(fi), mode, off, len));
}

static int op_setxattr(const char *path, const char *key, const char *val, size_t size, int flags)
{
	return ret(lsetxattr(below(path).text, key, val, size, flags));
}

static int op_getxattr(const char *path, const char *key, char *val, size_t size)
{
	return ret(lgetxattr(below(path).text, key, val, size));
}

static int op_listxattr(const char *path, char *list, size_t size)
{
	return ret(llistxattr(below(path).text, list, size));
}

static int op_removexattr(const char *path, const char *key)
{
	return ret(lremovexattr(below(path).text, key));
}

static int op_readdir(const char *path, void *buf, fuse_fill_dir_t fill, off_t off,
		      struct fuse_file_info *fi, enum fuse_readdir_flags flags)
{
	DIR *d = opendir(below(path).text);
	struct dirent *e;

	(void)off, (void)fi, (void)flags;
	if (!d)
		return -errno;
	while ((e = readdir(d))) {
		struct stat st = {.st_ino = e->d_ino, .st_mode = DTTOIF(e->d_type)};

		if (fill(buf, e->d_name, &st, 0, 0))
			break;
	}
	closedir(d);
	return 0;
}

/* Each call of the mount's user comes here, as that of a network filesystem without a cache. */
static void *op_init(struct fuse_conn_info *conn, struct fuse_config *cfg)
{
	(void)conn;
	cfg->use_ino = 1;
	cfg->nullpath_ok = 0;
	cfg->hard_remove = 1; /* open files keep their descriptors here */
	cfg->entry_timeout = cfg->attr_timeout = cfg->negative_timeout = 0;
	return NULL;
}

static const struct fuse_operations ops = {
	.init = op_init,
	.getattr = op_getattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.chmod = op_chmod,
	.chown = op_chown,
	.truncate = op_truncate,
	.utimens = op_utimens,
	.open = op_open,
	.create = op_create,
	.read = op_read,
	.write = op_write,
	.statfs = op_statfs,
	.flush = op_flush,
	.release = op_release,
	.fsync = op_fsync,
	.fsyncdir = op_fsyncdir,
	.fallocate = op_fallocate,
	.setxattr = op_setxattr,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.removexattr = op_removexattr,
	.readdir = op_readdir,
};

int main(int argc, char **argv)
{
	char *args[] = {argv[0], argc > 2 ? argv[2] : NULL, "-o",
			"allow_other,default_permissions,subtype=hang,max_threads=64", NULL};

	if (argc != 4) {
		fprintf(stderr, "usage: hang_store SOURCE MOUNTPOINT HANG\n");
		return 2;
	}
	source = argv[1];
	hang = argv[3];
	umask(0);
	return fuse_main(4, args, &ops, NULL);
}

/* SPDX-License-Identifier: MIT
 *
 * Extended attributes of inodes by descriptor and name. There is no
 * *xattrat before 6.13; /proc/self/fd/N/name with the l-calls is equivalent. Only reading, which is
 * done once for each file that is looked up, tries the new call: it takes half the time.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "inside.h"
#include "io/keys.h"
#include "sidecar.h"

#define OWN_XATTRS 380u /* user.cairn.ino, .checksum, .over and .save, with their entries */

bool io_xattr_probe(int fd, bool ro)
{
	static const char key[] = KEY_PROBE;
	char v;

	if (ro)
		return fgetxattr(fd, key, &v, 1) >= 0 || errno == ENODATA || errno == ERANGE;
	if (fsetxattr(fd, key, "", 0, 0)) /* a full store is no answer */
		return errno == ENOSPC || errno == EDQUOT;
	fremovexattr(fd, key);
	return true;
}

static int check(const struct io_store *s, const char *name, bool changes)
{
	if (changes && s->ro)
		return -EROFS;
	return name ? io_name_check(name) : 0;
}

/* ext4 keeps all xattrs of an inode in one block, and returns ENOSPC for one that does not fit;
 * determined by trying. What is left for users besides our own. */
size_t io_xattr_space(int fd)
{
	static const char bytes[65536];
	static const size_t sizes[] = {sizeof(bytes), 3800, 1800, 800, 400};
	const char *key = KEY_PROBE;

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		if (fsetxattr(fd, key, bytes, sizes[i], 0))
			continue;
		fremovexattr(fd, key);
		return sizes[i] == sizeof(bytes) ? SIZE_MAX : sizes[i] - OWN_XATTRS;
	}
	return 0;
}

static ssize_t keep_beside(struct io_store *s, const struct io_call *c)
{
	if (c->op == IO_OP_XATTR_SET)
		return io_sidecar_set(s, c->fd, c->name, c->key, c->buf, c->len, c->flags);
	return io_sidecar_remove(s, c->fd, c->name, c->key);
}

/* An xattr of the users needs the right to write, and to read it the right to read. */
static ssize_t lent(struct io_store *s, int dirfd, const char *name, io_lent_fn op, void *ctx)
{
	const struct io_object on[] = {{.dirfd = dirfd}, {.dirfd = dirfd, .name = name}};

	return io_lend(s, on, name ? 2 : 1, op, ctx);
}

int io_set_xattr(struct io_store *s, int dirfd, const char *name, int fd, const char *key,
		 const void *val, size_t len, int flags)
{
	struct io_call c = {.op = IO_OP_XATTR_SET,
			    .fd = dirfd,
			    .name = name,
			    .key = key,
			    .store = s,
			    .buf = val,
			    .len = len,
			    .flags = flags};
	int err;

	if (fd >= 0) {
		c.fd = fd;
		c.name = NULL;
	}
	err = check(s, c.name, true);
	if (err)
		return err;
	if (!s->has_xattr)
		c.instead = keep_beside;
	return (int)lent(s, c.fd, c.name, io_lent_call, &c);
}

int io_remove_xattr(struct io_store *s, int dirfd, const char *name, const char *key)
{
	struct io_call c = {
		.op = IO_OP_XATTR_REMOVE, .fd = dirfd, .name = name, .key = key, .store = s};
	int err = check(s, name, true);

	if (err)
		return err;
	if (!s->has_xattr)
		c.instead = keep_beside;
	return (int)lent(s, c.fd, c.name, io_lent_call, &c);
}

#define NR_GETXATTRAT 464 /* missing in the headers of most build machines */

struct getxattrat_args {
	_Alignas(8) uint64_t value;
	uint32_t size, flags;
};

/* As lgetxattr(2). */
static ssize_t get_at(int dirfd, const char *name, const char *key, void *buf, size_t cap)
{
	static atomic_bool missing;
	struct getxattrat_args args = {.value = (uintptr_t)buf, .size = (uint32_t)cap};
	char path[IO_PROC_PATH];

	if (!atomic_load_explicit(&missing, memory_order_relaxed)) {
		long n = syscall(NR_GETXATTRAT, dirfd, name, AT_SYMLINK_NOFOLLOW, key, &args,
				 sizeof(args));

		/* EPERM: a seccomp filter without the call */
		if (n >= 0 || (errno != ENOSYS && errno != EPERM))
			return n;
		if (errno == ENOSYS)
			atomic_store(&missing, true);
	}
	io_proc_path(path, dirfd, name);
	return lgetxattr(path, key, buf, cap);
}

struct reading {
	int dirfd;
	const char *name, *key;
	void *buf;
	size_t cap;
};

static ssize_t get_it(struct io_store *s, void *ctx)
{
	const struct reading *c = ctx;
	char path[IO_PROC_PATH];
	ssize_t n;

	(void)s;
	if (c->name) {
		n = get_at(c->dirfd, c->name, c->key, c->buf, c->cap);
	} else {
		io_proc_path(path, c->dirfd, NULL);
		n = getxattr(path, c->key, c->buf, c->cap);
	}
	return n < 0 ? io_error() : n;
}

static ssize_t list_it(struct io_store *s, void *ctx)
{
	const struct reading *c = ctx;
	char path[IO_PROC_PATH];

	(void)s;
	io_proc_path(path, c->dirfd, c->name);
	ssize_t n = c->name ? llistxattr(path, c->buf, c->cap) : listxattr(path, c->buf, c->cap);
	return n < 0 ? io_error() : n;
}

ssize_t io_get_xattr(struct io_store *s, int dirfd, const char *name, const char *key, void *buf,
		     size_t cap)
{
	struct reading c = {dirfd, name, key, buf, cap};
	ssize_t n = check(s, name, false);

	if (n)
		return n;
	io_check(s);
	if (!s->has_xattr)
		return io_sidecar_get(s, dirfd, name, key, buf, cap);
	return lent(s, dirfd, name, get_it, &c);
}

ssize_t io_list_xattr(struct io_store *s, int dirfd, const char *name, char *buf, size_t cap)
{
	struct reading c = {dirfd, name, NULL, buf, cap};
	ssize_t n = check(s, name, false);

	if (n)
		return n;
	io_check(s);
	if (!s->has_xattr)
		return io_sidecar_list(s, dirfd, name, buf, cap);
	return lent(s, dirfd, name, list_it, &c);
}

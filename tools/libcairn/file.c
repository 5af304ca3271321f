/* SPDX-License-Identifier: MIT
 *
 * How a file gets its name: whole, at once. An existing name is replaced by a rename
 * of a hidden file in the same directory.
 */
#include "io/full.h"
#include "priv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

#define TRIES 8

int file_split(const char *path, int *dir, char **name)
{
	const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
	CLEANUP_FREE char *parent =
		slash ? strndup(path, slash == path ? 1 : slash - path) : strdup(".");
	CLEANUP_FREE char *copy = strdup(last);
	CLEANUP_CLOSE int fd = -1;
	struct stat st;

	if (!parent || !copy)
		return fail_on(-ENOMEM, "create", path);
	if (!*last || !strcmp(last, ".") || !strcmp(last, ".."))
		return fail(*path ? -EISDIR : -EINVAL, "create \"%s\": that names no file", path);
	if (strlen(last) > NAME_MAX)
		return fail_on(-ENAMETOOLONG, "create", path);
	fd = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return fail_on(-errno, "open the directory", parent);
	if (!fstatat(fd, last, &st, AT_SYMLINK_NOFOLLOW) && S_ISDIR(st.st_mode))
		return fail_on(-EISDIR, "create", path);
	*dir = fd;
	*name = copy;
	fd = -1;
	copy = NULL;
	return 0;
}

/* A different one each time; hidden, and recognizable if a killed process left it. */
static int hidden_name(const char *name, char *buf, size_t size)
{
	uint64_t r;

	if (getrandom(&r, sizeof(r), 0) != sizeof(r))
		return -EAGAIN;
	snprintf(buf, size, ".%.200s.cairn-%016llx", name, (unsigned long long)r);
	return 0;
}

void file_device(int fd, const char *text)
{
	if (*text)
		fsetxattr(fd, KEY_DEVICE, text, strlen(text), 0);
	else
		fremovexattr(fd, KEY_DEVICE);
}

/* ---- linking ---- */

/* Makes another name of the file: 0 or -errno. */
typedef int link_fn(const void *arg, int dir, const char *name);

static int link_hidden(link_fn *link_to, const void *arg, const cairn_shard *shard, char *tmp,
		       size_t size)
{
	int err = -EEXIST;

	for (int i = 0; i < TRIES && err == -EEXIST; i++) {
		err = hidden_name(shard->name, tmp, size);
		if (!err)
			err = link_to(arg, shard->dir, tmp);
	}
	return err;
}

static int link_or_replace(link_fn *link_to, const void *arg, const cairn_shard *shard)
{
	char tmp[NAME_MAX + 1];
	int err = link_to(arg, shard->dir, shard->name);

	if (err != -EEXIST || (shard->flags & CAIRN_EXCL))
		return err;
	err = link_hidden(link_to, arg, shard, tmp, sizeof(tmp));
	if (err)
		return err;
	if (renameat(shard->dir, tmp, shard->dir, shard->name)) {
		err = -errno;
		unlinkat(shard->dir, tmp, 0);
	}
	return err;
}

static int link_buffer(const void *arg, int dir, const char *name)
{
	const struct stage_buffer *b = arg;

	return linkat(AT_FDCWD, b->path, dir, name, 0) ? -errno : 0;
}

int file_link(const cairn_shard *shard, uint64_t size)
{
	struct stage_buffer *b = shard->buffer;
	char device[256];

	if (b->file_bytes != size) {
		if (ftruncate(b->fd, (off_t)size))
			return -errno;
		b->file_bytes = size;
	}
	shard_device_text(shard, device, sizeof(device));
	file_device(b->fd, device);
	return link_or_replace(link_buffer, b, shard);
}

/* ---- writing ---- */

static int link_open(const void *arg, int dir, const char *name)
{
	int fd = *(const int *)arg;
	char path[64];

	if (!linkat(fd, "", dir, name, AT_EMPTY_PATH))
		return 0;
	if (errno != ENOENT && errno != EPERM) /* needs a capability before Linux 6.10 */
		return -errno;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, path, dir, name, AT_SYMLINK_FOLLOW) ? -errno : 0;
}

static int write_all(const cairn_shard *shard, int fd, uint64_t size)
{
	char device[256];

	int err = full_write(fd, shard->buffer->base, size);

	if (err)
		return err;
	shard_device_text(shard, device, sizeof(device));
	if (*device)
		file_device(fd, device);
	return 0;
}

/* A nameless file: a killed process leaves nothing. -EOPNOTSUPP: not supported. */
static int write_nameless(const cairn_shard *shard, uint64_t size)
{
	CLEANUP_CLOSE int fd = openat(shard->dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
	int err;

	if (fd < 0)
		return errno == EISDIR || errno == EINVAL || errno == ENOENT ? -EOPNOTSUPP : -errno;
	err = write_all(shard, fd, size);
	return err ? err : link_or_replace(link_open, &fd, shard);
}

static int give_name(const cairn_shard *shard, const char *tmp)
{
	if (!(shard->flags & CAIRN_EXCL))
		return renameat(shard->dir, tmp, shard->dir, shard->name) ? -errno : 0;
	if (!renameat2(shard->dir, tmp, shard->dir, shard->name, RENAME_NOREPLACE))
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	if (linkat(shard->dir, tmp, shard->dir, shard->name, 0))
		return -errno;
	unlinkat(shard->dir, tmp, 0);
	return 0;
}

static int write_hidden(const cairn_shard *shard, uint64_t size)
{
	char tmp[NAME_MAX + 1];
	int fd, err = hidden_name(shard->name, tmp, sizeof(tmp));

	if (err)
		return err;
	fd = openat(shard->dir, tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	/* a cairnfs takes it as the expected size, and allocates memory */
	if (shard->same_fs && shard->stage->cairnfs && size && ftruncate(fd, (off_t)size))
		err = -errno;
	if (!err)
		err = write_all(shard, fd, size);
	if (close(fd) && !err)
		err = -errno;
	if (!err)
		err = give_name(shard, tmp);
	if (err)
		unlinkat(shard->dir, tmp, 0);
	return err;
}

int file_write(const cairn_shard *shard, uint64_t size)
{
	int err = -EOPNOTSUPP;

	if (!shard->same_fs || !shard->stage->cairnfs)
		err = write_nameless(shard, size);
	return err == -EOPNOTSUPP ? write_hidden(shard, size) : err;
}

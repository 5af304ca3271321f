/* SPDX-License-Identifier: MIT
 *
 * How many saves of a directory were committed: STORE/.cairn/.saves/<key>, an empty file with the
 * number as an xattr, for all hosts. An xattr, since clients of network filesystems keep what is in
 * a small file, or where a name leads, for a second and longer; the file is opened anew each time,
 * which makes NFS ask the server. It is never replaced and never removed, so its number only grows.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "inside.h"
#include "io/keys.h"
#include "io/number.h"
#include "io/scope.h"

#define SAVES_DIR ".saves"

static int open_one(const struct io_store *s, const char *key, int flags)
{
	char path[sizeof(SAVES_DIR) + 1 + IO_SAVE_KEY];

	snprintf(path, sizeof(path), SAVES_DIR "/%s", key);
	int fd = openat(s->cairn, path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

static int number_of(int fd, uint64_t *n)
{
	char text[24];
	ssize_t len = fgetxattr(fd, KEY_SAVE, text, sizeof(text) - 1);

	*n = 0;
	if (len < 0)
		return errno == ENODATA ? 0 : -errno;
	text[len] = 0;
	return number_is(text, n) ? 0 : -EBADMSG;
}

int io_saves_count(struct io_store *s, const char *key, uint64_t *n)
{
	io_check(s);
	CLEANUP_CLOSE int fd = open_one(s, key, O_RDONLY);

	*n = 0;
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	return number_of(fd, n);
}

static int make_one(const struct io_store *s, const char *key)
{
	int fd = open_one(s, key, O_RDWR | O_CREAT);

	if (fd != -ENOENT)
		return fd;
	if (mkdirat(s->cairn, SAVES_DIR, 0700) && errno != EEXIST)
		return -errno;
	return open_one(s, key, O_RDWR | O_CREAT);
}

static int set_number(struct io_store *s, int fd, uint64_t n)
{
	char text[24];
	int len = snprintf(text, sizeof(text), "%llu", (unsigned long long)n);

	return io_set_xattr(s, -1, NULL, fd, KEY_SAVE, text, (size_t)len, 0);
}

int io_saves_raise(struct io_store *s, const char *key, uint64_t least)
{
	uint64_t n;

	if (s->ro || !s->has_xattr)
		return s->ro ? -EROFS : -EOPNOTSUPP;
	io_check(s);
	CLEANUP_CLOSE int fd = make_one(s, key);
	int err = fd < 0 ? fd : number_of(fd, &n);
	if (err)
		return err;
	return !least ? set_number(s, fd, n + 1) : n < least ? set_number(s, fd, least) : 0;
}

int io_saves_sync(struct io_store *s, const char *key)
{
	io_check(s);
	CLEANUP_CLOSE int fd = open_one(s, key, O_RDONLY);
	CLEANUP_CLOSE int dir = fd < 0 ? fd : open_one(s, "", O_RDONLY | O_DIRECTORY);
	int err = dir < 0 ? dir : io_sync_file(s, fd);

	return err ? err : io_sync_dir(s, dir);
}

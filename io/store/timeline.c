/* SPDX-License-Identifier: MIT
 *
 * STORE/.cairn/<host>/timeline: when files became durable, and what they waited for. The newest
 * lines; those before are in timeline.old. Not synced, and not part of what an engine injects
 * errors into: it may lose its end.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "inside.h"
#include "io/scope.h"

#define NAME "timeline"
#define OLD "timeline.old"
#define SPARED (64ull << 20) /* of a full store nothing is taken for this */

static int open_lines(const struct io_store *s, const char *name, int flags)
{
	int fd = io_open_beneath(s->host, name, flags | O_NONBLOCK | O_CLOEXEC, 0600);
	struct stat st;

	if (fd >= 0 && (fstat(fd, &st) || !S_ISREG(st.st_mode))) {
		close(fd);
		return -EINVAL;
	}
	return fd;
}

/* After a power cut, or where the store was full. */
static bool is_torn(int fd, off_t size)
{
	char last;

	return size && (pread(fd, &last, 1, size - 1) != 1 || last != '\n');
}

int io_timeline_append(struct io_store *s, const char *lines, size_t len)
{
	struct statvfs room;
	struct stat st;

	if (s->away || s->host < 0)
		return -EROFS;
	io_check(s);
	if (fstatvfs(s->root_rd, &room) || room.f_bavail * room.f_frsize < SPARED)
		return -ENOSPC;
	if (!fstatat(s->host, NAME, &st, AT_SYMLINK_NOFOLLOW) &&
	    st.st_size + (off_t)len > IO_TIMELINE_MAX && renameat(s->host, NAME, s->host, OLD))
		return -errno;
	CLEANUP_CLOSE int fd = open_lines(s, NAME, O_RDWR | O_CREAT | O_APPEND);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st) || (is_torn(fd, st.st_size) && write(fd, "\n", 1) != 1))
		return -errno;
	ssize_t n = write(fd, lines, len);
	return n < 0 ? -errno : (size_t)n < len ? -ENOSPC : 0;
}

static size_t read_lines(const struct io_store *s, const char *name, char *buf, size_t cap)
{
	CLEANUP_CLOSE int fd = open_lines(s, name, O_RDONLY);
	size_t len = 0;

	for (ssize_t n; fd >= 0 && len < cap && (n = read(fd, buf + len, cap - len)) > 0;)
		len += (size_t)n;
	return len;
}

char *io_timeline_read(struct io_store *s, size_t *len)
{
	char *buf = s->away || s->host < 0 ? NULL : malloc(2 * IO_TIMELINE_MAX + 1);

	if (!buf)
		return NULL;
	io_check(s);
	*len = read_lines(s, OLD, buf, IO_TIMELINE_MAX);
	if (*len)
		buf[(*len)++] = '\n'; /* its last line may be torn */
	*len += read_lines(s, NAME, buf + *len, IO_TIMELINE_MAX);
	char *fits = realloc(buf, *len + 1);
	return fits ? fits : buf;
}

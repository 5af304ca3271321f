/* SPDX-License-Identifier: MIT
 *
 * The names in a directory, without "." and "..".
 */
#ifndef CAIRN_IO_ENTRIES_H
#define CAIRN_IO_ENTRIES_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Takes fd, or the -errno of an open that failed. NULL: errno. */
static inline DIR *entries_of(int fd)
{
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	int err = fd < 0 ? -fd : errno;

	if (!d && fd >= 0)
		close(fd);
	if (!d)
		errno = err;
	return d;
}

/* Of the directory `name` in dirfd ("."), not of what a symlink of that name refers to. */
static inline DIR *entries_at(int dirfd, const char *name)
{
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return entries_of(fd < 0 ? -errno : fd);
}

/* NULL: there are no more (errno is 0), or errno; d is NULL: errno stays as it is. */
static inline struct dirent *entries_next(DIR *d)
{
	struct dirent *e = NULL;

	if (d)
		errno = 0;
	while (d && (e = readdir(d)) && (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")))
		;
	return e;
}

static inline void scope_closedir(DIR **d)
{
	int saved = errno;

	if (*d)
		closedir(*d);
	errno = saved;
}

#define CLEANUP_DIR __attribute__((cleanup(scope_closedir)))

#endif

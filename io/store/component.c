/* SPDX-License-Identifier: MIT
 *
 * One component of a path in the store: checked, opened without following symlinks, generated.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inside.h"

int io_name_check(const char *name)
{
	size_t len = name ? strnlen(name, IO_NAME_MAX + 1) : 0;

	if (len > IO_NAME_MAX)
		return -ENAMETOOLONG;
	if (!len || !strcmp(name, ".") || !strcmp(name, "..") || strchr(name, '/'))
		return -EINVAL;
	return 0;
}

/* Kernels before 5.6: one component and O_NOFOLLOW are equivalent. */
static int open_nofollow(int dirfd, const char *name, int flags, mode_t mode)
{
	int fd = openat(dirfd, name, flags | O_NOFOLLOW, mode);
	struct stat st;

	if (fd >= 0)
		return fd;
	if (errno == ENOTDIR && !fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) &&
	    S_ISLNK(st.st_mode))
		return -ELOOP;
	return errno == ENOTDIR ? -ENOTDIR : io_error();
}

int io_open_beneath(int dirfd, const char *name, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)flags,
		.mode = flags & O_CREAT ? mode : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	long fd = syscall(SYS_openat2, dirfd, name, &how, sizeof(how));

	if (fd >= 0)
		return (int)fd;
	/* EPERM: a seccomp filter without the call */
	if (errno == ENOSYS || errno == EPERM)
		return open_nofollow(dirfd, name, flags, mode);
	return io_error();
}

void io_scratch_name(struct io_store *s, char out[17])
{
	unsigned id[2];

	/* without the kernel's random bytes, still unique among processes */
	if (getrandom(id, sizeof(id), GRND_NONBLOCK) != sizeof(id)) {
		id[0] = (unsigned)getpid();
		id[1] = atomic_fetch_add(&s->serial, 1);
	}
	snprintf(out, 17, "l%07x%08x", id[0] & 0xfffffff, id[1]);
}

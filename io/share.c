/* SPDX-License-Identifier: MIT
 *
 * Shared extents: two files of one content that take the room of one. The kernel
 * compares and shares in one step, under both files' locks.
 */
#include <errno.h>
#include <fcntl.h>

#include "scope.h"
#include "store.h"

#define PROBE_BYTES 65536u	/* whole blocks, whatever their size */

/* A file without a name, so that nothing is left of it; its blocks are zeros. */
static int probe_file(struct io_store *s)
{
	static const char zeros[PROBE_BYTES];
	CLEANUP_CLOSE int fd = openat(s->tmp, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	if (fd < 0)
		return -errno;
	errno = 0;
	if (pwrite(fd, zeros, sizeof(zeros), 0) != sizeof(zeros))
		return errno ? -errno : -ENOSPC;
	return scope_keep(&fd);
}

static bool passes(int err)
{
	return err == -ENOSPC || err == -EDQUOT || err == -EIO || err == -ENOMEM ||
	       err == -EMFILE || err == -ENFILE;
}

int io_can_share(struct io_store *s)
{
	CLEANUP_CLOSE int from = s->ro ? -1 : probe_file(s);
	CLEANUP_CLOSE int to = from < 0 ? -1 : probe_file(s);
	struct io_call c = { .op = IO_OP_SHARE, .fd = from, .fd2 = to, .size = PROBE_BYTES };
	ssize_t n = s->ro ? -EROFS : from < 0 ? from : to < 0 ? to : io_call_real(s->e, &c);

	if (n > 0)
		return 0;
	return passes((int)n) ? (int)n : -EOPNOTSUPP;
}

ssize_t io_share(struct io_store *s, int from, int to, uint64_t off, uint64_t len)
{
	struct io_call c = { .op = IO_OP_SHARE, .fd = from, .fd2 = to, .off = off, .size = len };
	ssize_t n;

	if (s->ro)
		return -EROFS;
	/* the comparison itself reads page by page */
	posix_fadvise(from, (off_t)off, (off_t)len, POSIX_FADV_WILLNEED);
	posix_fadvise(to, (off_t)off, (off_t)len, POSIX_FADV_WILLNEED);
	n = io_call_run(s->e, &c);
	posix_fadvise(from, (off_t)off, (off_t)len, POSIX_FADV_DONTNEED);
	posix_fadvise(to, (off_t)off, (off_t)len, POSIX_FADV_DONTNEED);
	return n;
}

/* SPDX-License-Identifier: MIT
 *
 * Shared extents: two files with the same content that take the space of one. Either the kernel
 * compares and shares in one step, under both files' locks, or a new file begins as the
 * clone of another.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>

#include "inside.h"
#include "io/scope.h"
#include "io/sum/sum.h"

#define PROBE_BYTES 65536u /* whole blocks of any size */

/* A file without a name, so that nothing of it remains; its blocks are zeros. */
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
	struct io_call c = {.op = IO_OP_SHARE, .fd = from, .fd2 = to, .size = PROBE_BYTES};
	ssize_t n = s->ro ? -EROFS : from < 0 ? from : to < 0 ? to : io_call_real(s->e, &c);

	if (n > 0)
		return 0;
	return passes((int)n) ? (int)n : -EOPNOTSUPP;
}

ssize_t io_share(struct io_store *s, int from, int to, uint64_t off, uint64_t len)
{
	struct io_call c = {.op = IO_OP_SHARE, .fd = from, .fd2 = to, .off = off, .size = len};
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

/* The extent that contains off, or the first after it. False: there is none, or it is unknown. */
static bool extent_at(int fd, uint64_t off, uint64_t len, struct fiemap_extent *out)
{
	_Alignas(struct fiemap) char space[sizeof(struct fiemap) + sizeof(struct fiemap_extent)] = {
		0};
	struct fiemap *m = (struct fiemap *)space;

	m->fm_start = off;
	m->fm_length = len;
	m->fm_extent_count = 1;
	if (ioctl(fd, FS_IOC_FIEMAP, m) || !m->fm_mapped_extents)
		return false;
	*out = m->fm_extents[0];
	return !(out->fe_flags & (FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC |
				  FIEMAP_EXTENT_NOT_ALIGNED | FIEMAP_EXTENT_ENCODED));
}

uint64_t io_is_shared(int from, int to, uint64_t off, uint64_t len)
{
	struct fiemap_extent a, b;
	uint64_t end_a, end_b, end = off + len;

	if (!extent_at(from, off, len, &a) || !extent_at(to, off, len, &b) || a.fe_logical > off ||
	    b.fe_logical > off ||
	    a.fe_physical + (off - a.fe_logical) != b.fe_physical + (off - b.fe_logical))
		return 0;
	end_a = a.fe_logical + a.fe_length;
	end_b = b.fe_logical + b.fe_length;
	if (end > end_a)
		end = end_a;
	if (end > end_b)
		end = end_b;
	return end > off ? end - off : 0;
}

int io_same_bytes(int fd, int disk, uint64_t off, size_t len, char *buf)
{
	char *other = buf + len;
	size_t whole = (len + IO_ALIGN - 1) & ~(size_t)(IO_ALIGN - 1);
	ssize_t a, b;

	other += (size_t)(-(uintptr_t)other) & (IO_ALIGN - 1);
	if (!(fcntl(disk, F_GETFL) & O_DIRECT))
		posix_fadvise(disk, 0, 0, POSIX_FADV_DONTNEED);
	a = io_read_full(fd, buf, len, off);
	b = a < 0 ? a : io_read_full(disk, other, whole, off);
	if (b < 0)
		return (int)b;
	return a == (ssize_t)len && b >= a && !memcmp(buf, other, len);
}

int io_clone(struct io_store *s, int from, int to)
{
	struct io_call c = {.op = IO_OP_CLONE, .fd = to, .fd2 = from};
	ssize_t n;

	if (s->ro)
		return -EROFS;
	n = io_call_run(s->e, &c);
	return n == -ENOTTY || n == -ENOSYS ? -EOPNOTSUPP : (int)n;
}

/* SPDX-License-Identifier: MIT
 *
 * The mark: STORE/.cairn/<host>/mark, an empty file. Its times encode the position in the order:
 * mtime the number of the last change made in the store, atime the log that it belongs to.
 * The filesystem's journal keeps it in order with the changes themselves, so after a filesystem
 * has shut down and is mounted again the mark shows which of them it still has. 31 bits of each,
 * in whole seconds: every filesystem supports these.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/full.h"
#include "io/scope.h"
#include "inside.h"

#define MARK_BITS 0x7fffffffu

int io_mark_open(struct io_store *s)
{
	struct stat st;

	if (s->fs.kind == IO_FS_EACH) /* no order: it would prove nothing */
		return 0;
	s->mark = io_open_beneath(s->host, "mark",
				  O_RDWR | O_CREAT | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, 0600);
	/* a store of an earlier version, and full: without */
	if (s->mark == -ENOSPC || s->mark == -EDQUOT)
		s->mark = -1;
	if (s->mark < 0)
		return s->mark == -1 ? 0 : s->mark;
	if (fstat(s->mark, &st))
		return -errno;
	return S_ISREG(st.st_mode) ? 0 : -EINVAL;
}

int io_mark_set(struct io_store *s, uint64_t log, uint64_t seq)
{
	const struct io_attr a = {
		.mask = IO_ATTR_ATIME | IO_ATTR_MTIME,
		.atime.tv_sec = (time_t)(log & MARK_BITS),
		.mtime.tv_sec = (time_t)(seq & MARK_BITS),
	};

	return s->mark < 0 ? 0 : io_set_attr_fd(s, s->mark, &a);
}

int io_mark_get(struct io_store *s, uint64_t log, uint64_t most, uint64_t *seq)
{
	struct stat st;

	if (s->mark < 0)
		return -ENOENT;
	if (fstat(s->mark, &st))
		return -errno;
	if (st.st_atim.tv_sec != (time_t)(log & MARK_BITS) || st.st_atim.tv_nsec ||
	    st.st_mtim.tv_nsec)
		return -ENOENT;
	uint64_t below = (most - (uint64_t)st.st_mtim.tv_sec) & MARK_BITS;
	if (below > most)
		return -ENOENT;
	*seq = most - below;
	return 0;
}

int io_mark_sync(struct io_store *s)
{
	struct io_call c = {.op = IO_OP_SYNC_MARK, .fd = s->mark, .fd2 = io_store_journal(s)};

	return s->mark < 0 ? 0 : (int)io_call_run(s->e, &c);
}

/* STORE/.cairn/<host>/staged-by: a number in hexadecimal digits. A power cut takes what is
 * staged as well, so it is not synced. */
static int open_staged_by(struct io_store *s, int flags)
{
	return io_open_beneath(s->host, "staged-by", flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
			       0600);
}

int io_staged_by_other(struct io_store *s, uint64_t log)
{
	char text[17] = "";
	CLEANUP_CLOSE int fd = s->host < 0 ? -ENOENT : open_staged_by(s, O_RDONLY);
	ssize_t n = fd < 0 ? fd : full_pread(fd, text, 16, 0);

	if (n < 0)
		return n == -ENOENT ? 0 : (int)n;
	return n == 16 && strtoull(text, NULL, 16) != log;
}

void io_staged_by(struct io_store *s, uint64_t log)
{
	char text[17];
	CLEANUP_CLOSE int fd = s->host < 0 ? -1 : open_staged_by(s, O_WRONLY | O_CREAT);

	snprintf(text, sizeof(text), "%016llx", (unsigned long long)log);
	/* without one, nothing is known; with a wrong one, something wrong */
	if (fd >= 0 && full_pwrite(fd, text, 16, 0))
		unlinkat(s->host, "staged-by", 0);
}

bool io_mark_covers(const struct io_store *s)
{
	return s->mark >= 0 && s->fs.kind == IO_FS_ORDERED;
}

/* SPDX-License-Identifier: MIT
 *
 * Operations on a file that is already open, and durability.
 */
#include <errno.h>
#include <string.h>

#include "inside.h"

/* No fallocate: only the space that is free now can be checked. */
static int space_for(struct io_store *s, uint64_t len)
{
	struct statvfs vfs;
	int err = io_store_statvfs(s, &vfs);

	if (err)
		return err;
	if (!vfs.f_blocks || !vfs.f_frsize) /* unknown */
		return 0;
	return len / vfs.f_frsize < vfs.f_bavail ? 0 : -ENOSPC;
}

bool io_store_allocates(const struct io_store *s)
{
	return !io_is_lacking(s->e, IO_NOTE_NO_ALLOCATE);
}

int io_allocate(struct io_store *s, int fd, uint64_t off, uint64_t len)
{
	struct io_call c = {.op = IO_OP_ALLOCATE, .fd = fd, .off = off, .size = len};
	int err;

	if (!len)
		return 0;
	if (off > INT64_MAX || len > INT64_MAX - off)
		return -EFBIG;
	err = (int)io_call_run(s->e, &c);
	if (err != -EOPNOTSUPP && err != -ENOSYS)
		return err;
	io_lacks(s->e, IO_NOTE_NO_ALLOCATE);
	return space_for(s, len);
}

#define ZEROS (1u << 20)

int io_allocate_by_zeros(struct io_store *s, int fd, uint64_t off, uint64_t len)
{
	static _Alignas(IO_ALIGN) char zeros[ZEROS]; /* never written */
	uint64_t end = off + len;
	int err = 0;

	for (off -= off % IO_ALIGN; !err && off < end; off += ZEROS) {
		uint64_t left = (end - off + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN;

		err = io_pwrite(s, fd, zeros, left < ZEROS ? left : ZEROS, off);
	}
	return err;
}

int io_pwrite(struct io_store *s, int fd, const void *buf, size_t len, uint64_t off)
{
	struct io_call c = {.op = IO_OP_WRITE, .fd = fd, .buf = buf, .len = len, .off = off};

	while (c.len) {
		ssize_t n = io_call_run(s->e, &c);

		if (n <= 0)
			return n ? (int)n : -EIO;
		c.buf = (const char *)c.buf + n;
		c.len -= (size_t)n;
		c.off += (uint64_t)n;
	}
	return 0;
}

int io_truncate(struct io_store *s, int fd, uint64_t size)
{
	struct io_call c = {.op = IO_OP_TRUNCATE, .fd = fd, .size = size};

	return size > INT64_MAX ? -EFBIG : (int)io_call_run(s->e, &c);
}

int io_sync_data(struct io_store *s, int fd)
{
	/* without a journal nothing else writes the owner and the checksum set before */
	struct io_call c = {.op = IO_OP_SYNC_DATA,
			    .fd = fd,
			    .fd2 = io_store_journal(s),
			    .size = s->fs.kind != IO_FS_ORDERED};

	return (int)io_call_run(s->e, &c);
}

int io_sync_file(struct io_store *s, int fd)
{
	struct io_call c = {
		.op = IO_OP_SYNC_DATA, .fd = fd, .fd2 = io_store_journal(s), .size = true};

	return (int)io_call_run(s->e, &c);
}

int io_sync_dir(struct io_store *s, int dirfd)
{
	struct io_call c = {.op = IO_OP_SYNC_DIR, .fd = dirfd, .fd2 = io_store_journal(s)};

	return (int)io_lend(s, &(struct io_object){.dirfd = dirfd}, 1, io_lent_call, &c);
}

int io_sync_all(struct io_store *s)
{
	struct io_call c = {.op = IO_OP_SYNC_ALL, .fd = s->root_rd, .fd2 = io_store_journal(s)};

	return (int)io_call_run(s->e, &c);
}

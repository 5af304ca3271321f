/* SPDX-License-Identifier: MIT
 * Where the data of a staged file are: its extents, and in the tmpfs of huge pages the unwritten
 * pages of zeros. */
#include "io/scope.h"
#include "staging/file/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COPY_CHUNK (4u << 20)
#define RUN_MIN (64u << 10) /* of zero pages between data: they become a hole */

static bool is_zero_page(const char *page, uint64_t len)
{
	uint64_t first = 0;
	/* the processor does not read ahead beyond a page; the next page is looked at next */
	for (unsigned i = 0; i < IO_ALIGN; i += 64)
		__builtin_prefetch(page + IO_ALIGN + i);
	memcpy(&first, page, len < sizeof(first) ? len : sizeof(first));
	return !first &&
	       (len <= sizeof(first) || !memcmp(page, page + sizeof(first), len - sizeof(first)));
}

/* Where the pages of zeros end that begin at off; or the data, of which a short run of zeros is
 * part when data follow it. */
static uint64_t run_end(const struct written *w, uint64_t off, bool zeros)
{
	uint64_t end = off, len;
	for (uint64_t at = off; at < w->hole; at += len) {
		len = IO_ALIGN - at % IO_ALIGN;
		len = len < w->hole - at ? len : w->hole - at;
		if (is_zero_page(w->map + at, len) == zeros)
			end = at + len;
		else if (zeros || at + len - end >= RUN_MIN)
			break;
	}
	return end;
}

int written_next(struct written *w, uint64_t *off, uint64_t *end)
{
	for (;;) {
		if (*off >= w->hole) {
			off_t data = lseek(w->fd, (off_t)*off, SEEK_DATA);
			off_t hole = data < 0 ? -1 : lseek(w->fd, data, SEEK_HOLE);
			if (hole < 0)
				return -errno;
			if ((uint64_t)data >= w->size)
				return -ENXIO;
			*off = (uint64_t)data;
			w->hole = (uint64_t)hole < w->size ? (uint64_t)hole : w->size;
		}
		if (w->map)
			*off = run_end(w, *off, true);
		if (*off >= w->hole)
			continue;
		*end = w->map ? run_end(w, *off, false) : w->hole;
		return 0;
	}
}

unsigned written_extents(struct written *w, uint64_t off, struct io_extent *ext, unsigned max)
{
	unsigned n = 0;
	const uint64_t from = off;
	for (uint64_t end; off < w->size; off = end) {
		int err = written_next(w, &off, &end);
		if (err == -ENXIO)
			break;
		if (n == max && w->map) {
			*w = (struct written){.fd = w->fd, .size = w->size};
			return written_extents(w, from, ext, max);
		}
		if (err || n == max) {
			ext[0] = (struct io_extent){from, w->size - from};
			return 1;
		}
		ext[n++] = (struct io_extent){off, end - off};
	}
	return n;
}

size_t data_run(int fd, uint64_t off, size_t most)
{
	off_t hole = lseek(fd, (off_t)off, SEEK_HOLE);
	uint64_t run = hole > (off_t)off ? (uint64_t)hole - off : most;

	return run < most ? (size_t)run : most;
}

unsigned file_extents(int fd, uint64_t off, uint64_t size, struct io_extent *ext, unsigned max)
{
	struct written w = {.fd = fd, .size = size};
	return written_extents(&w, off, ext, max);
}

int data_each(int fd, uint64_t size,
	      int (*put)(void *ctx, const void *buf, size_t len, uint64_t off), void *ctx)
{
	CLEANUP_FREE char *buf = malloc(COPY_CHUNK);
	int err = buf ? 0 : -ENOMEM;
	for (uint64_t off = 0; !err && off < size;) {
		off_t data = lseek(fd, (off_t)off, SEEK_DATA);
		if (data < 0 && errno == ENXIO)
			break;
		off = data < 0 ? off : (uint64_t)data;
		ssize_t n = pread(fd, buf, data_run(fd, off, COPY_CHUNK), (off_t)off);
		if (n <= 0)
			return n < 0 ? -errno : 0;
		err = put(ctx, buf, (size_t)n, off);
		off += (uint64_t)n;
	}
	return err;
}

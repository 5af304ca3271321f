/* SPDX-License-Identifier: MIT
 *
 * Reads past the page cache; see disk.h.
 *
 * A range is split into chunks at multiples of CHUNK; chunk k is in slot
 * k % SLOTS, from its submission until its bytes were passed on. Reads end in any
 * order and are passed on in sequence. Whatever a ring read did not deliver (short,
 * refused) is read again with pread(2), so that is where errors are detected.
 */
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "io/align.h"

#define CHUNK (2u << 20)
#define SLOTS 4u

struct slot {
	char *buf;
	bool in_flight;
	size_t got;
};

struct disk {
	int fd;
	bool cached, has_ring;
	struct io_uring ring;
	struct slot slot[SLOTS];
};

/* ---- open ------------------------------------------------------------------------ */

/* Opened anew, not with fcntl(F_SETFL): a FUSE filesystem has a file of its own behind it, which
 * was opened with O_DIRECT too. Dirty pages cannot be dropped, so they are written first. */
static int go_cached(struct disk *d, int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (d->fd >= 0)
		close(d->fd);
	d->fd = fd;
	fdatasync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	d->cached = true;
	return 0;
}

int disk_use(struct disk *d, int fd)
{
	char path[64];

	if (d->fd >= 0)
		close(d->fd);
	d->cached = false;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	d->fd = open(path, O_RDONLY | O_DIRECT | O_NONBLOCK | O_CLOEXEC);
	if (d->fd < 0)
		return errno == EINVAL ? go_cached(d, fd) : -errno;
	return 0;
}

struct disk *disk_new(void)
{
	struct disk *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->fd = -1;
	for (unsigned i = 0; i < SLOTS; i++) {
		d->slot[i].buf = aligned_alloc(IO_ALIGN, CHUNK);
		if (!d->slot[i].buf) {
			disk_free(d);
			return NULL;
		}
	}
	/* without a ring (seccomp, sysctl) everything uses pread(2) */
	d->has_ring = !io_uring_queue_init(SLOTS, &d->ring, 0);
	return d;
}

void disk_free(struct disk *d)
{
	if (!d)
		return;
	if (d->has_ring)
		io_uring_queue_exit(&d->ring);
	for (unsigned i = 0; i < SLOTS; i++)
		free(d->slot[i].buf);
	if (d->fd >= 0)
		close(d->fd);
	free(d);
}

int disk_fd(const struct disk *d)
{
	return d->fd;
}

bool disk_cached(const struct disk *d)
{
	return d->cached;
}

/* ---- read ------------------------------------------------------------------------ */

static ssize_t read_at(struct disk *d, char *buf, size_t len, uint64_t off)
{
	ssize_t n = pread(d->fd, buf, len, (off_t)off);

	int err = n < 0 ? -errno : 0;

	if (err != -EINVAL || d->cached)
		return err ? err : n;
	err = go_cached(d, d->fd);
	if (err)
		return err;
	n = pread(d->fd, buf, len, (off_t)off);
	return n < 0 ? -errno : n;
}

/* Whole blocks of a chunk that ends at `need`: no more pages than needed. */
static size_t whole(size_t need)
{
	return (need + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN;
}

/* Reads the first `need` bytes of the chunk at off into the slot. */
static int fill(struct disk *d, struct slot *s, uint64_t off, size_t need)
{
	while (s->got < need) {
		size_t at = s->got - s->got % IO_ALIGN; /* O_DIRECT starts aligned */
		ssize_t n = read_at(d, s->buf + at, whole(need) - at, off + at);

		if (n == -EINTR)
			continue;
		if (n < 0)
			return (int)n;
		if (at + (size_t)n <= s->got)
			return -EIO; /* truncated meanwhile */
		s->got = at + (size_t)n;
	}
	return 0;
}

/* Queues the read of a chunk; without a ring, or a free entry in it, fill() reads it. */
static void submit(struct disk *d, struct slot *s, uint64_t off, size_t need)
{
	struct io_uring_sqe *sqe = d->has_ring ? io_uring_get_sqe(&d->ring) : NULL;

	s->got = 0;
	if (!sqe)
		return;
	io_uring_prep_read(sqe, d->fd, s->buf, (unsigned)whole(need), off);
	io_uring_sqe_set_data(sqe, s);
	s->in_flight = true;
}

/* Waits for the slot. If its ring read failed, it is empty. */
static int settle(struct disk *d, struct slot *s)
{
	while (s->in_flight) {
		struct io_uring_cqe *cqe;
		int err = io_uring_submit(&d->ring);
		struct slot *done;

		if (err >= 0)
			err = io_uring_wait_cqe(&d->ring, &cqe);
		if (err == -EINTR || err == -EAGAIN)
			continue;
		if (err < 0)
			return err;
		done = io_uring_cqe_get_data(cqe);
		done->in_flight = false;
		done->got = cqe->res > 0 ? (size_t)cqe->res : 0;
		io_uring_cqe_seen(&d->ring, cqe);
	}
	return 0;
}

int disk_range(struct disk *d, uint64_t off, uint64_t end,
	       void (*take)(void *ctx, const void *bytes, size_t len), void *ctx)
{
	uint64_t first = off / CHUNK, last = (end + CHUNK - 1) / CHUNK, ahead = first;
	int err = 0;

	for (uint64_t k = first; k < last && !err; k++) {
		struct slot *s = &d->slot[k % SLOTS];
		uint64_t at = k * CHUNK, from = at > off ? at : off;
		uint64_t to = at + CHUNK < end ? at + CHUNK : end;

		for (; ahead < last && ahead < k + SLOTS; ahead++) {
			uint64_t left = end - ahead * CHUNK;

			submit(d, &d->slot[ahead % SLOTS], ahead * CHUNK,
			       left < CHUNK ? left : CHUNK);
		}
		if (d->has_ring)
			io_uring_submit(&d->ring);
		err = settle(d, s);
		if (!err)
			err = fill(d, s, at, to - at);
		if (!err)
			take(ctx, s->buf + (from - at), to - from);
	}
	/* the kernel must be done with the buffers before they are used again */
	for (unsigned i = 0; i < SLOTS; i++)
		settle(d, &d->slot[i]);
	return err;
}

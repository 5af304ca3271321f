/* SPDX-License-Identifier: MIT
 *
 * XXH3-128 of a stream of bytes, and of a file as it is on the device.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "avx2.h"
#include "io/align.h"
#include "io/scope.h"
#include "sum.h"

#define READ_BYTES (4u << 20)

struct io_sum {
	XXH3_state_t *state;
	struct io_sum *range; /* of the range that is read now; NULL: none */
	uint64_t range_bytes, number, at; /* at: bytes of it so far */
	io_range_fn done;
	void *ctx;
};

struct io_sum *io_sum_new(void)
{
	struct io_sum *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->state = XXH3_createState();
	if (!m->state) {
		free(m);
		return NULL;
	}
	io_sum_reset(m);
	return m;
}

void io_sum_free(struct io_sum *m)
{
	if (!m)
		return;
	io_sum_free(m->range);
	XXH3_freeState(m->state);
	free(m);
}

void io_sum_reset(struct io_sum *m)
{
	XXH3_128bits_reset(m->state);
	if (m->range)
		XXH3_128bits_reset(m->range->state);
	m->number = m->at = 0;
}

int io_sum_ranges(struct io_sum *m, uint64_t bytes, io_range_fn done, void *ctx)
{
	m->range = io_sum_new();
	m->range_bytes = bytes;
	m->done = done;
	m->ctx = ctx;
	return m->range ? 0 : -ENOMEM;
}

void io_sum_last_range(struct io_sum *m)
{
	char text[IO_CHECKSUM_LEN];

	if (!m->range || !m->at)
		return;
	io_sum_text(m->range, text);
	m->done(m->ctx, m->number++, text);
	io_sum_reset(m->range);
	m->at = 0;
}

static void add(struct io_sum *m, const void *bytes, size_t len)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2")) {
		io_sum_update_avx2(m->state, bytes, len);
		return;
	}
#endif
	XXH3_128bits_update(m->state, bytes, len);
}

void io_sum_add(struct io_sum *m, const void *bytes, size_t len)
{
	const char *p = bytes;

	while (m->range && len >= m->range_bytes - m->at) {
		size_t n = (size_t)(m->range_bytes - m->at);

		add(m, p, n);
		add(m->range, p, n);
		m->at += n;
		io_sum_last_range(m);
		p += n;
		len -= n;
	}
	add(m, p, len);
	if (m->range) {
		add(m->range, p, len);
		m->at += len;
	}
}

void io_sum_zeros(struct io_sum *m, uint64_t len)
{
	static const unsigned char zeros[32 << 10];

	while (len) {
		size_t n = len < sizeof(zeros) ? (size_t)len : sizeof(zeros);

		io_sum_add(m, zeros, n);
		len -= n;
	}
}

struct io_digest io_sum_digest(const struct io_sum *m)
{
	XXH128_hash_t h = XXH3_128bits_digest(m->state);

	return (struct io_digest){.low = h.low64, .high = h.high64};
}

void io_sum_text(const struct io_sum *m, char out[IO_CHECKSUM_LEN])
{
	struct io_digest d = io_sum_digest(m);

	snprintf(out, IO_CHECKSUM_LEN, "xxh3:%016llx%016llx", (unsigned long long)d.high,
		 (unsigned long long)d.low);
}

/* A separate open file description, so that position and flags of fd do not change. */
static int reopen(int fd, int flags)
{
	char path[32];
	int out;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	out = open(path, O_RDONLY | O_CLOEXEC | flags);
	return out < 0 ? -errno : out;
}

ssize_t io_read_full(int fd, void *buf, size_t len, uint64_t off)
{
	size_t have = 0;

	while (have < len) {
		ssize_t n = pread(fd, (char *)buf + have, len - have, (off_t)(off + have));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		have += (size_t)n;
		/* a direct read ends unaligned only at the end of the file */
		if (!n || have % IO_ALIGN)
			break;
	}
	return (ssize_t)have;
}

static int sum_all(int fd, unsigned char *buf, struct io_sum *m)
{
	uint64_t off = 0;
	ssize_t n;

	do {
		n = io_read_full(fd, buf, READ_BYTES, off);
		if (n < 0)
			return (int)n;
		io_sum_add(m, buf, (size_t)n);
		off += (uint64_t)n;
	} while (n == READ_BYTES);
	return 0;
}

static int sum_direct(int fd, unsigned char *buf, struct io_sum *m)
{
	CLEANUP_CLOSE int in = reopen(fd, O_DIRECT);

	return in < 0 ? in : sum_all(in, buf, m);
}

/* The cache can only be asked to drop pages; dirty ones must be written first. */
static int sum_cached(int fd, unsigned char *buf, struct io_sum *m)
{
	CLEANUP_CLOSE int in = reopen(fd, 0);

	if (in < 0)
		return in;
	fdatasync(in);
	posix_fadvise(in, 0, 0, POSIX_FADV_DONTNEED);
	return sum_all(in, buf, m);
}

int io_sum_file_into(int fd, struct io_sum *m)
{
	CLEANUP_FREE unsigned char *buf = aligned_alloc(IO_ALIGN, READ_BYTES);
	int err = buf ? sum_direct(fd, buf, m) : -ENOMEM;

	if (err == -EINVAL) {
		io_sum_reset(m);
		err = sum_cached(fd, buf, m);
	}
	if (!err)
		io_sum_last_range(m);
	return err;
}

int io_sum_file(int fd, char out[IO_CHECKSUM_LEN])
{
	struct io_sum *m = io_sum_new();
	int err = m ? io_sum_file_into(fd, m) : -ENOMEM;

	if (!err)
		io_sum_text(m, out);
	io_sum_free(m);
	return err;
}

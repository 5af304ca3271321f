/* SPDX-License-Identifier: MIT
 *
 * Ranges of an object, several at once, each by a thread with a buffer of its own. Of one request
 * the library hands over the parts one after the other, on one thread, and each write keeps it.
 */
#include "s3.h"

#include "io/full.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define GETTERS 4u

/* Of what is kept at a time: it is in the processor's cache when it is summed, and the page cache
 * takes folios (ext4 has up to 2 MiB) of memory that is in use. */
#define KEPT_BYTES (256u << 10)

struct run {
	struct s3 *s3;
	const struct s3_request *q;
	int fd; /* -1: none */
	atomic_ullong next; /* the first range that no thread has taken */
	atomic_bool failed; /* no other one is begun */
};

struct getter {
	struct run *run;
	struct aws_byte_buf buf;
	struct io_sum *sum;
	struct s3_reply reply;
	pthread_t thread;
};

int s3_keep(int fd, struct io_sum *sum, const void *bytes, size_t n, uint64_t off)
{
	const char *p = bytes;

	for (size_t at = 0, step; at < n; at += step) {
		step = n - at < KEPT_BYTES ? n - at : KEPT_BYTES;
		int err = fd >= 0 ? full_pwrite(fd, p + at, step, off + at) : 0;

		if (err)
			return err;
		io_sum_add(sum, p + at, step);
	}
	return 0;
}

/* The bytes of it are in the buffer. */
static int get_range(struct getter *g, uint64_t off, uint64_t bytes)
{
	const struct s3_request *q = g->run->q;
	char range[S3_RANGE_TEXT];
	struct s3_call c = {.s = g->run->s3,
			    .method = "GET",
			    .name = "GetObject",
			    .range = s3_range(range, off, bytes),
			    .key = q->key,
			    .type = AWS_S3_META_REQUEST_TYPE_GET_OBJECT,
			    .query = "",
			    .into = &g->buf};

	aws_byte_buf_reset(&g->buf, false);
	s3_call(&c, &g->reply);
	if (!g->reply.err && g->buf.len != bytes)
		g->reply.err = -ESTALE;
	return g->reply.err;
}

static void keep_range(struct getter *g, uint64_t number, uint64_t off)
{
	struct s3_reply told = {.more = 1, .number = number};

	io_sum_reset(g->sum);
	g->reply.err = s3_keep(g->run->fd, g->sum, g->buf.buffer, g->buf.len, off);
	if (g->reply.err)
		return;
	io_sum_text(g->sum, told.sum);
	s3_tell(&told);
	g->reply.size += g->buf.len;
}

static void *get_ranges(void *arg)
{
	struct getter *g = arg;
	struct run *run = g->run;
	const struct s3_request *q = run->q;

	while (!atomic_load(&run->failed)) {
		uint64_t number = atomic_fetch_add(&run->next, 1), at = number * q->range_bytes;
		uint64_t left = at < q->size ? q->size - at : 0;

		if (!left)
			break;
		if (!get_range(g, q->off + at, left < q->range_bytes ? left : q->range_bytes))
			keep_range(g, number, q->off + at);
		if (g->reply.err)
			atomic_store(&run->failed, true);
	}
	return NULL;
}

static bool start_getter(struct getter *g, struct run *run)
{
	g->run = run;
	g->sum = io_sum_new();
	if (!g->sum || aws_byte_buf_init(&g->buf, run->s3->alloc, run->q->range_bytes))
		return false;
	return !pthread_create(&g->thread, NULL, get_ranges, g);
}

void s3_get_ranges(struct s3 *s3, const struct s3_request *q, int fd, struct s3_reply *out)
{
	struct run run = {.s3 = s3, .q = q, .fd = fd};
	uint64_t ranges = (q->size + q->range_bytes - 1) / q->range_bytes;
	struct getter g[GETTERS] = {0};
	size_t n = 0;

	while (n < GETTERS && n < ranges && start_getter(&g[n], &run))
		n++;
	out->err = n ? 0 : -ENOMEM;
	for (size_t i = 0; i < GETTERS; i++) {
		if (i < n)
			pthread_join(g[i].thread, NULL);
		if (i < n && g[i].reply.err && !out->err) {
			out->err = g[i].reply.err;
			memcpy(out->why, g[i].reply.why, sizeof(out->why));
		}
		out->size += g[i].reply.size;
		io_sum_free(g[i].sum);
		aws_byte_buf_clean_up(&g[i].buf);
	}
}

/* SPDX-License-Identifier: MIT
 *
 * io_write_file: one source into one descriptor, many chunks in flight.
 *
 * The loop keeps the queue full, and while the device works it passes the bytes
 * in flight to `seen`, one chunk at a time, so that a checksum takes no extra
 * time. It blocks only when there is nothing to pass.
 */
#include <errno.h>
#include <fcntl.h>

#include "spans.h"
#include "table.h"
#include "write.h"

struct job {
	struct io_queue *q;
	struct io_engine *e;
	const struct io_source *src;
	int fd;
	bool direct;
	int rwf;

	struct io_spans put; /* what is submitted to the engine ... */
	uint64_t put_pos;
	bool put_done;
	struct io_spans told; /* ... and, behind it, what is passed to seen */
	uint64_t told_pos;

	struct io_slot *free;
	unsigned inflight;
	int err; /* first error; nothing is submitted after it */
};

/* Persisted bytes will not be written again: keep them out of the page cache. */
static int cache_flags(struct io_engine *e)
{
	return io_is_lacking(e, IO_NOTE_NO_DONTCACHE) ? 0 : RWF_DONTCACHE;
}

static void submit(struct job *j, struct io_slot *s)
{
	s->direct = j->direct;
	s->w.rwf = j->rwf;
	s->w.fd = j->fd;
	s->w.len = s->end - s->w.off;
	io_engine_run_check(j->e);
	j->e->ops->submit(j->q, &s->w);
	j->inflight++;
	atomic_store_explicit(&j->q->inflight, j->inflight, memory_order_relaxed);
}

static void put_advance(struct job *j)
{
	if (j->put_pos < j->put.end)
		return;
	if (io_spans_next(&j->put))
		j->put_pos = j->put.start;
	else
		j->put_done = true;
}

static void fill(struct job *j)
{
	while (j->free && !j->put_done && !j->err) {
		struct io_slot *s = j->free;
		uint64_t end = j->put.end;

		j->free = s->next_free;
		if (end - j->put_pos > j->e->chunk)
			end = j->put_pos + j->e->chunk;
		s->w.off = j->put_pos;
		s->w.buf = (const char *)j->src->base + j->put_pos;
		/* only O_DIRECT needs the padding behind the last byte */
		s->end = !j->direct && end > j->src->size ? j->src->size : end;
		submit(j, s);
		j->put_pos = end;
		put_advance(j);
	}
	j->e->ops->kick(j->q);
}

static void tell_zeros(struct job *j, uint64_t len)
{
	static const unsigned char zeros[32 << 10];

	while (len) {
		size_t n = len < sizeof(zeros) ? (size_t)len : sizeof(zeros);

		j->src->seen(j->src->ctx, zeros, n);
		j->told_pos += n;
		len -= n;
	}
}

/* Passes one submitted chunk to seen; false: none now. */
static bool tell(struct job *j)
{
	uint64_t upto = j->put_done || j->put_pos > j->src->size ? j->src->size : j->put_pos;
	uint64_t n;

	if (!j->src->seen || j->err || j->told_pos >= upto)
		return false;
	if (j->told_pos >= j->told.end && !io_spans_next(&j->told))
		j->told.start = j->told.end = j->src->size;
	n = (j->told_pos < j->told.start ? j->told.start : j->told.end);
	n = (n < upto ? n : upto) - j->told_pos;
	if (n > j->e->chunk)
		n = j->e->chunk;
	if (j->told_pos < j->told.start) {
		/* reading a hole through the mapping would allocate pages */
		tell_zeros(j, n);
		return true;
	}
	j->src->seen(j->src->ctx, (const char *)j->src->base + j->told_pos, (size_t)n);
	j->told_pos += n;
	return true;
}

/* The store accepted O_DIRECT at open but not at a write: continue without. */
static bool leave_direct(struct job *j)
{
	int fl = fcntl(j->fd, F_GETFL);

	if (fl < 0 || fcntl(j->fd, F_SETFL, fl & ~O_DIRECT) < 0)
		return false;
	io_lacks(j->e, IO_NOTE_NO_DIRECT);
	j->direct = false;
	j->rwf = cache_flags(j->e);
	return true;
}

/* True: the failed chunk is queued once more, since it was interrupted or
 * used something that the store lacks, which the job then stops using. */
static bool again(struct job *j, const struct io_slot *s)
{
	switch (s->w.res) {
	case -EINTR:
	case -EAGAIN: return true;
	case -EOPNOTSUPP:
		if (!s->w.rwf)
			return false;
		io_lacks(j->e, IO_NOTE_NO_DONTCACHE);
		j->rwf = 0;
		return true;
	case -EINVAL: return s->direct && (!j->direct || leave_direct(j));
	default: return false;
	}
}

/* Removes what was written from the chunk. A direct write continues at an aligned
 * offset, even if the store stopped at another. */
static void advance(struct io_slot *s)
{
	uint64_t done = (uint64_t)s->w.res;

	if (s->direct && s->w.off + done < s->end)
		done = io_align_down(done);
	if (!done)
		s->w.res = -EIO;
	s->w.off += done;
	s->w.buf = (const char *)s->w.buf + done;
}

static void finished(struct job *j, struct io_slot *s)
{
	bool more;

	j->inflight--;
	atomic_store_explicit(&j->q->inflight, j->inflight, memory_order_relaxed);
	io_count(j->e, IO_OP_WRITE, s->w.res);
	if (s->w.res >= 0)
		advance(s);
	more = s->w.res >= 0 ? s->w.off < s->end : again(j, s);
	if (more && !j->err) {
		submit(j, s);
		return;
	}
	if (s->w.res < 0 && !j->err)
		j->err = io_errno(-(int)s->w.res);
	s->next_free = j->free;
	j->free = s;
}

static bool stopped(const struct job *j)
{
	return j->src->stop && j->src->stop(j->src->ctx);
}

static void run(struct job *j)
{
	bool told = true;

	while (told || j->inflight || (!j->put_done && !j->err)) {
		struct io_write *w;

		if (!j->err && stopped(j))
			j->err = -ECANCELED;
		fill(j);
		told = tell(j);
		while (j->inflight && (w = j->e->ops->reap(j->q, !told))) {
			finished(j, (struct io_slot *)w);
			if (!told)
				break;
		}
	}
}

static int set_size(struct job *j, uint64_t size)
{
	struct io_call c = {.op = IO_OP_TRUNCATE, .fd = j->fd, .size = size};

	return (int)io_call_run(j->e, &c);
}

/* End of the last chunk: the size, or beyond it when a direct tail is padded. */
static uint64_t written_end(const struct io_source *src, bool direct)
{
	struct io_spans s;
	uint64_t end = src->size;

	io_spans_init(&s, src);
	while (direct && io_spans_next(&s))
		end = s.end > end ? s.end : end;
	return end;
}

int io_write_file(struct io_queue *q, int fd, bool direct, const struct io_source *src)
{
	struct job j = {.q = q, .e = q->e, .src = src, .fd = fd, .direct = direct};
	uint64_t end;
	int err = io_spans_check(src);

	if (err)
		return err;
	j.rwf = direct ? 0 : cache_flags(j.e);
	for (unsigned i = 0; i < j.e->depth; i++) {
		q->slots[i].next_free = j.free;
		j.free = &q->slots[i];
	}
	io_spans_init(&j.put, src);
	io_spans_init(&j.told, src);
	put_advance(&j);
	/* Sized first: writes that extend a file take its lock one by one. */
	end = written_end(src, direct);
	err = set_size(&j, end);
	if (err)
		return err;
	run(&j);
	if (!j.err && end != src->size)
		j.err = set_size(&j, src->size);
	return j.err;
}

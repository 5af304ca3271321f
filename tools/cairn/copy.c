/* SPDX-License-Identifier: MIT
 *
 * Copies a view's bytes into a file: with a few threads, so that reading and writing overlap, and
 * past the page cache if possible: a checkpoint is larger than what it would evict from the
 * cache, and a copy that waits for the disk need not copy in memory as well
 * (docs/PERFORMANCE.md, Views and export).
 */
#include "export.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>

#include "io/align.h"
#include "io/full.h"
#include "io/locks.h"
#include "io/sum/sum.h"

#define COPIERS 4u /* more gain nothing: the disk is the limit */
#define CHUNK (2u << 20) /* assembled and written at once, by one of them */
#define DIRECT_MIN (256u << 10) /* shorter reads gain more from the kernel's readahead */

struct copy {
	struct export *x;
	const struct view *v;
	int fd;
	bool direct; /* fd has O_DIRECT */
	/* on a cairnfs mount: a file that outgrows memory must be sequential */
	bool in_order;

	pthread_mutex_t lock; /* for what is below, and for x->files */
	pthread_cond_t turn;
	uint64_t next; /* the next chunk to take */
	uint64_t done; /* bytes of this view */
	uint64_t all; /* of all views */
	struct fmt_error *e;
	int err; /* of the first that failed; stops all */
};

struct copier {
	struct copy *c;
	pthread_t thread;
	bool started;
	struct one_file *file; /* that it reads */
	/* CHUNK, aligned; after it what O_DIRECT reads around a piece */
	char *buf;
	struct view_io io;
	struct fmt_error e;
};

#define READ_AROUND (CHUNK + 2 * IO_ALIGN)

/* ---- reading ---------------------------------------------------------------------- */

/* Linux 6.5, include/uapi/linux/mman.h; the headers of Debian 12 lack it. */
#ifndef SYS_cachestat
#define SYS_cachestat 451 /* the same on all but alpha */
#endif

/* Is most of it in the page cache? If unknown: yes. */
static bool is_cached(int fd, uint64_t off, size_t len)
{
	struct {
		uint64_t off, len;
	} range = {off, len};
	struct {
		uint64_t cached, dirty, writeback, evicted, recently_evicted;
	} is;

	return syscall(SYS_cachestat, fd, &range, &is, 0) ||
	       is.cached >= len / (uint64_t)sysconf(_SC_PAGESIZE) / 2;
}

/* Reads the bytes and what is around them; -EINVAL: not possible this way. */
static int read_direct(const struct copier *k, uint64_t off, char *to, size_t len)
{
	uint64_t from = off - off % IO_ALIGN;
	size_t lead = (size_t)(off - from),
	       want = (lead + len + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN;
	char *around = k->buf + CHUNK;
	ssize_t got = io_read_full(k->file->direct, around, want, from);

	if (got < (ssize_t)(lead + len))
		return got < 0 ? (int)got : -EINVAL; /* truncated: plain reads report it */
	memcpy(to, around + lead, len);
	return 0;
}

static int read_piece(void *ctx, uint64_t off, void *buf, size_t len)
{
	const struct copier *k = ctx;
	const struct fmt_source *s = &k->file->source;

	if (len >= DIRECT_MIN && len <= CHUNK && k->file->direct >= 0 &&
	    !is_cached(k->file->fd, off, len)) {
		int err = read_direct(k, off, buf, len);

		if (err != -EINVAL)
			return err;
	}
	return s->read(s->ctx, off, buf, len);
}

static int get_file(void *ctx, uint32_t file, struct fmt_source *out)
{
	struct copier *k = ctx;
	struct copy *c = k->c;
	int err;

	pthread_mutex_lock(&c->lock);
	err = files_get(&c->x->files, file, &k->file);
	k->file->users += !err;
	pthread_mutex_unlock(&c->lock);
	*out = (struct fmt_source){.size = k->file->source.size, .read = read_piece, .ctx = k};
	return err;
}

static void put_back(void *ctx, uint32_t file)
{
	struct copier *k = ctx;

	(void)file;
	pthread_mutex_lock(&k->c->lock);
	k->file->users--;
	pthread_mutex_unlock(&k->c->lock);
}

/* ---- writing ---------------------------------------------------------------------- */

/* O_DIRECT writes whole blocks: zeros behind the last byte, which copy_view() truncates. */
static int write_chunk(struct copy *c, char *buf, size_t n, uint64_t off)
{
	size_t padded = (n + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN;
	int err;

	if (c->direct) {
		memset(buf + n, 0, padded - n);
		err = full_pwrite(c->fd, buf, padded, off);
		if (err != -EINVAL)
			return err;
		fcntl(c->fd, F_SETFL, 0); /* accepted at open, but not by the write */
	}
	return full_pwrite(c->fd, buf, n, off);
}

/* ---- copying ---------------------------------------------------------------------- */

/* Takes the next chunk; false: there is none. */
static bool take(struct copy *c, uint64_t *off, size_t *n)
{
	uint64_t size = view_size(c->v);
	bool more;

	pthread_mutex_lock(&c->lock);
	more = !c->err && c->next < size;
	if (more) {
		*off = c->next;
		*n = size - *off < CHUNK ? (size_t)(size - *off) : CHUNK;
		c->next += *n;
	}
	pthread_mutex_unlock(&c->lock);
	return more;
}

/* Waits until everything before it is written, if that matters; false: another thread failed. */
static bool await_turn(struct copy *c, uint64_t off)
{
	bool go;

	pthread_mutex_lock(&c->lock);
	while (c->in_order && !c->err && c->done != off)
		pthread_cond_wait(&c->turn, &c->lock);
	go = !c->err;
	pthread_mutex_unlock(&c->lock);
	return go;
}

static void chunk_done(struct copy *c, size_t n, int err, const struct fmt_error *e)
{
	pthread_mutex_lock(&c->lock);
	if (err && !c->err) {
		c->err = err;
		*c->e = *e;
	} else if (!err) {
		c->done += n;
		progress_done(&c->x->bar, c->x->done + c->done, c->all, c->x->note);
	}
	pthread_cond_broadcast(&c->turn);
	pthread_mutex_unlock(&c->lock);
}

static void *copier_main(void *arg)
{
	struct copier *k = arg;
	struct copy *c = k->c;
	uint64_t off;
	size_t n;

	while (take(c, &off, &n)) {
		int err = view_read(c->v, &k->io, off, k->buf, n, &k->e);

		if (!err && !await_turn(c, off))
			break;
		if (!err) {
			err = write_chunk(c, k->buf, n, off);
			if (err)
				put_told(&k->e, err, c->x->out);
		}
		chunk_done(c, n, err, &k->e);
	}
	return NULL;
}

static int copier_new(struct copier *k, struct copy *c)
{
	*k = (struct copier){.c = c, .e = {.at = FMT_NOWHERE}};
	k->io = (struct view_io){
		.get = get_file, .put = put_back, .ctx = k, .scratch = malloc(VIEW_SCRATCH)};
	k->buf = aligned_alloc(IO_ALIGN, CHUNK + READ_AROUND);
	return k->buf && k->io.scratch ? 0 : -ENOMEM;
}

/* Signals go to the original thread, which removes what is not finished. */
static void start(struct copier *k)
{
	sigset_t old;

	put_block_signals(&old);
	k->started = !pthread_create(&k->thread, NULL, copier_main, k);
	put_unblock_signals(&old);
}

/* As many as there are chunks; this thread is the first of them. */
static void copy_chunks(struct copy *c)
{
	struct copier k[COPIERS];
	unsigned n = 0;

	do {
		int err = copier_new(&k[n], c);

		if (err && !n)
			c->err = put_told(c->e, err, c->x->out);
		if (!err && n)
			start(&k[n]);
		n++;
	} while (n < COPIERS && view_size(c->v) > (uint64_t)n * CHUNK);
	if (!c->err)
		copier_main(&k[0]);
	while (n-- > 0) {
		if (k[n].started)
			pthread_join(k[n].thread, NULL);
		free(k[n].buf);
		free(k[n].io.scratch);
	}
}

int copy_view(struct export *x, const struct view *v, int fd, struct fmt_error *e)
{
	uint64_t size = view_size(v);
	struct copy c = {.x = x,
			 .v = v,
			 .fd = fd,
			 .e = e,
			 .lock = RANKED_MUTEX(RANK_COPY),
			 .turn = PTHREAD_COND_INITIALIZER,
			 .all = view_size(x->view) + (x->metadata ? view_size(x->metadata) : 0)};

	x->files.whole = true;
	c.in_order = is_on_fuse(fd);
	c.direct = !c.in_order && !fcntl(fd, F_SETFL, O_DIRECT);
	copy_chunks(&c);
	if (!c.err && c.direct && size % IO_ALIGN && ftruncate(fd, (off_t)size))
		c.err = put_told(e, -errno, x->out);
	x->done += size;
	return c.err;
}

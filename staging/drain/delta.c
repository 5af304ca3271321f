/* SPDX-License-Identifier: MIT
 * A file that was opened again and changed a little is not written whole: where the store has
 * shared extents, its version begins as a clone of the version before, and only the chunks that
 * differ are written.
 *
 * Nothing tells what was written, as the kernel writes past the daemon. So when the version is
 * persisted, each chunk of the staged bytes is compared with what the version before has: by the
 * sums of that version's chunks, if it was made here and its file is as it was; else with the
 * clone, read from the disk. Each chunk is copied first; its sum is that of the copy, and so is
 * what is written.
 *
 *   staged.base.chunks ──compared──▶ pend.chunks ──persisted──▶ staged.base.chunks
 *
 * What the version before has is never changed. If anything fails, or too much differs, the clone
 * is removed and the version is written to the blocks that its close allocated. Nothing is logged:
 * after a kill the clone is one of the files that the sweep removes. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* smaller files cost about as much to clone as to write */
#define DELTA_MIN (1u << 20)
/* With so much changed, and more than half of what was looked at, it is faster to write all: many
 * writes at once, to blocks that lie together. */
#define CHANGED_MAX (16u << 20)
/* Without sums the clone is read in steps: a disk is slow for single chunks */
#define READ_STEP (4u << 20)

struct delta {
	struct staging *s;
	struct pend *p;
	int from, to; /* the staged bytes; the clone */
	bool direct;
	struct chunks *before; /* a reference; NULL: not known, the clone is read */
	struct chunks *now;
	struct io_sum *all, *one;
	char *buf; /* a chunk */
	char *disk; /* READ_STEP; bytes [disk_at, disk_end) of the clone */
	uint64_t disk_at, disk_end;
};

static uint64_t n_chunks(uint64_t size)
{
	return (size + DELTA_CHUNK - 1) / DELTA_CHUNK;
}

/* ---- the version before ---- */

/* An older version of the same staged file that is persisted: its unpublished file; 0. */
static uint64_t unpublished_before(struct staging *s, const struct pend *p)
{
	uint64_t id = 0;

	LOCK_SCOPE(&s->lock);
	if (p->sf->n_seals > 1)
		for (const struct pend *q = s->order.pend; q && q != p; q = q->next)
			if (q->sf == p->sf && q->state == PEND_READY)
				id = q->tmp_id;
	return id;
}

/* A file of the store that may be the version before; its bytes tell. Descriptor or -errno. */
static int open_before(struct staging *s, const struct pend *p)
{
	uint64_t id = unpublished_before(s, p);
	int dir, fd = id ? io_tmp_open(s->o.store, id, O_RDONLY) : -ENOENT;

	if (fd >= 0)
		return fd;
	int err = staging_dir_get(s, p->r.dir, &dir);
	if (err)
		return err;
	fd = io_open_read(s->o.store, dir, p->r.name, 0);
	staging_dir_put(s, p->r.dir);
	return fd;
}

static bool is_as_it_was(const struct chunks *c)
{
	struct stat st;

	return !fstat(c->fd, &st) && (uint64_t)st.st_size == c->size &&
	       st.st_mtim.tv_sec == c->mtime.tv_sec && st.st_mtim.tv_nsec == c->mtime.tv_nsec;
}

/* May p be compared with the version before? With d->before, if its chunks are known. */
static bool begin(struct delta *d)
{
	struct pend *p = d->p;
	struct staged *f = p->sf;

	LOCK_SCOPE(&d->s->lock);
	if (!sf_may_be_delta(d->s, f) || p->clone.source >= 0 || p->tries.n || p->early ||
	    p->failed_fsync || p->r.size < DELTA_MIN)
		return false;
	d->before = f->base.chunks;
	if (d->before)
		atomic_fetch_add(&d->before->refs, 1);
	return true;
}

/* d->to becomes a clone of the version before. */
static int make_clone(struct delta *d)
{
	struct io_store *store = d->s->o.store;
	struct stat st;
	bool known = d->before && is_as_it_was(d->before);
	CLEANUP_CLOSE int fd = known ? -1 : open_before(d->s, d->p);
	int source = known ? d->before->fd : fd;

	if (!known) {
		LOCK_SCOPE(&d->s->lock);
		chunks_forget(d->s, &d->before);
	}
	if (source < 0)
		return source;
	/* another owner could learn from the used space which bytes are equal */
	if (fstat(source, &st) || st.st_uid != d->p->r.uid ||
	    (uint64_t)st.st_size < d->p->r.size / 2)
		return -ESTALE;
	int err = io_clone(store, source, d->to);
	if (!err && (uint64_t)st.st_size > d->p->r.size)
		err = io_truncate(store, d->to, d->p->r.size);
	return err;
}

/* ---- its chunks ---- */

static size_t padded(size_t len)
{
	return (len + IO_ALIGN - 1) & ~(size_t)(IO_ALIGN - 1);
}

/* Has the clone what is in d->buf? 1, 0 or -errno. What is read ahead is not written before it is
 * compared. */
static int is_on_disk(struct delta *d, uint64_t off, size_t len)
{
	if (off >= d->disk_at + READ_STEP || !off) {
		if (!d->direct)
			posix_fadvise(d->to, 0, 0, POSIX_FADV_DONTNEED);
		ssize_t n = io_read_full(d->to, d->disk, READ_STEP, off);
		if (n < 0)
			return (int)n;
		d->disk_at = off;
		d->disk_end = off + (uint64_t)n;
	}
	return off + len <= d->disk_end && !memcmp(d->buf, d->disk + (off - d->disk_at), len);
}

static bool has_sum(const struct chunks *c, uint64_t off, size_t len, const struct io_digest *is)
{
	uint64_t had = off < c->size ? c->size - off : 0;

	if ((had < DELTA_CHUNK ? had : DELTA_CHUNK) != len)
		return false;
	const struct io_digest *was = &c->sum[off / DELTA_CHUNK];
	return was->low == is->low && was->high == is->high;
}

/* Copies the chunk to d->buf. 1: the clone has the same; 0: it has not; -errno. */
static int look_at_chunk(struct delta *d, uint64_t off, size_t len)
{
	struct io_digest *is = &d->now->sum[off / DELTA_CHUNK];
	ssize_t n = io_read_full(d->from, d->buf, len, off);

	if (n != (ssize_t)len)
		return n < 0 ? (int)n : -ESTALE;
	io_sum_reset(d->one);
	io_sum_add(d->one, d->buf, len);
	io_sum_add(d->all, d->buf, len);
	*is = io_sum_digest(d->one);
	return d->before ? has_sum(d->before, off, len, is) : is_on_disk(d, off, len);
}

static int write_chunk(struct delta *d, uint64_t off, size_t len)
{
	size_t whole = padded(len);

	d->now->changed += len;
	if (d->now->changed > CHANGED_MAX && d->now->changed > off / 2)
		return -ESTALE;
	memset(d->buf + len, 0, whole - len);
	return io_pwrite(d->s->o.store, d->to, d->buf, d->direct ? whole : len, off);
}

static int each_chunk(struct delta *d)
{
	uint64_t size = d->p->r.size;
	int err = 0;

	io_sum_reset(d->all);
	for (uint64_t off = 0; off < size && err >= 0; off += DELTA_CHUNK) {
		size_t len = size - off < DELTA_CHUNK ? size - off : DELTA_CHUNK;
		err = look_at_chunk(d, off, len);
		if (!err)
			err = write_chunk(d, off, len);
		atomic_fetch_add_explicit(&d->p->sf->written, len, memory_order_relaxed);
	}
	/* the direct write of the tail is padded */
	return err < 0 ? err : io_truncate(d->s->o.store, d->to, size);
}

static int make(struct delta *d)
{
	char name[17];
	struct stat st;
	int err = make_clone(d);

	if (err)
		return err;
	staging_sf_name(d->p->sf->id, name);
	d->from = openat(staging_sf_dir(d->p->sf), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	/* holes stay holes where it is written */
	if (d->from < 0 || fstat(d->from, &st) || has_holes(&st) ||
	    (uint64_t)st.st_size < d->p->r.size)
		return -ESTALE;
	d->now = malloc(sizeof(*d->now) + n_chunks(d->p->r.size) * sizeof(d->now->sum[0]));
	d->buf = aligned_alloc(IO_ALIGN, DELTA_CHUNK);
	d->disk = d->before ? NULL : aligned_alloc(IO_ALIGN, READ_STEP);
	d->one = io_sum_new();
	if (!d->now || !d->buf || !d->one || !(d->before || d->disk))
		return -ENOMEM;
	*d->now = (struct chunks){.refs = 1, .fd = -1, .seq = d->p->r.seq, .size = d->p->r.size};
	return each_chunk(d);
}

/* The clone is p's file, or removed. s->lock held. */
static void settle(struct delta *d, uint64_t id, int err)
{
	struct pend *p = d->p;

	chunks_forget(d->s, &d->before);
	if (err) {
		d->s->drain.no_clone |= err == -EOPNOTSUPP;
		trash_put(d->s, id, d->to);
		free(d->now);
		return;
	}
	trash_put(d->s, p->tmp_id, p->tmp_fd); /* what its close allocated */
	p->tmp_id = id;
	p->tmp_fd = d->to;
	p->direct = d->direct;
	p->clone.done = p->sf->base.counted = true;
	p->chunks = d->now;
	d->s->st.bytes_unchanged += d->now->size - d->now->changed;
}

bool delta_version(struct staging *s, struct pend *p, struct io_sum *sum)
{
	struct delta d = {.s = s, .p = p, .from = -1, .all = sum};

	if (!begin(&d))
		return false;
	uint64_t id = staging_new_id(s);
	/* a quota would count the clone, what the close allocated, and the version before */
	d.to = sf_limited(p->sf) ? -EDQUOT : io_tmp_create(s->o.store, id, true, &d.direct);
	int err = d.to < 0 ? d.to : make(&d);
	if (!err && p->failed_fsync) /* persist.c finds out whether it was written since */
		err = -ESTALE;
	if (d.from >= 0)
		close(d.from);
	io_sum_free(d.one);
	free(d.buf);
	free(d.disk);
	if (err)
		atomic_store(&p->sf->written, 0);
	LOCK_SCOPE(&s->lock);
	settle(&d, d.to < 0 ? 0 : id, err);
	return !err;
}

/* ---- what it has from now on ---- */

void delta_keep(struct staging *s, struct pend *p)
{
	struct staged *f = p->sf;
	struct chunks *c = p->chunks;
	struct stat st;

	/* a writable descriptor would be in the way of other programs' leases */
	if (c && (c->fd = io_tmp_open(s->o.store, p->tmp_id, O_RDONLY)) >= 0 && !fstat(c->fd, &st))
		c->mtime = st.st_mtim;
	LOCK_SCOPE(&s->lock);
	p->chunks = NULL;
	s->files.n_sources += c && c->fd >= 0;
	if (f->base.chunks && f->base.chunks->seq < p->r.seq)
		chunks_forget(s, &f->base.chunks);
	if (c && c->fd >= 0 && !f->base.chunks && s->files.n_sources <= sources_max(s))
		f->base.chunks = c;
	else
		chunks_forget(s, &c);
}

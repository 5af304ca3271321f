/* SPDX-License-Identifier: MIT
 * Persist: staged bytes -> unpublished store file, many versions at once, in
 * any order. Publication (publish.c) restores the order. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A small file waits this long, so that a temporary one is removed before it is
 * written and others join its group sync. An fsync ends the wait at once. */
#define SMALL_REST_NS 5000000u
#define EXTENTS_MAX 65536u /* more holes than this are written as zeros */
#define COPY_CHUNK (1u << 20)
#define SUM_PIECE (128u << 10)

/* ---- one version ---- */

struct job {
	struct staging *s;
	struct io_queue *q;
	struct pend *p;
	struct io_sum *sum, *chunk_sum;
	char *buf; /* COPY_CHUNK */
	struct io_extent *ext;
	bool no_sum;
	uint64_t summed; /* bytes that io_write_file need not pass to job_seen */
	bool anew; /* its unpublished file is another one than its close allocated */
};

static void job_seen(void *ctx, const void *bytes, size_t len)
{
	struct job *j = ctx;
	uint64_t skip = len < j->summed ? len : j->summed;

	j->summed -= skip;
	bytes = (const char *)bytes + skip;
	len -= skip;
	io_sum_add(j->sum, bytes, len);
	atomic_fetch_add_explicit(&j->p->sf->written, len, memory_order_relaxed);
}

/* Its close was promised space and allocated none, or in another file. Direct writes into holes
 * would be slower. A store without fallocate would only be asked for its free space, and what the
 * file has already is not free. */
static int allocate_data(struct job *j, const struct io_source *src)
{
	bool due = (j->p->promised || j->anew) && io_store_allocates(j->s->o.store);
	int err = 0;

	for (unsigned i = 0; !err && due && i < src->n_data; i++)
		err = io_allocate(j->s->o.store, j->p->tmp_fd, src->data[i].off, src->data[i].len);
	return err;
}

/* Is the chunk of the unpublished file what is staged now? Sums it for the version, too. */
static bool is_chunk_same(struct job *j, const char *at, const struct io_digest *was)
{
	io_sum_reset(j->chunk_sum);
	/* in pieces that stay in the cache for the second sum */
	for (uint64_t off = 0; off < EARLY_CHUNK; off += SUM_PIECE) {
		io_sum_add(j->chunk_sum, at + off, SUM_PIECE);
		job_seen(j, at + off, SUM_PIECE);
	}
	struct io_digest is = io_sum_digest(j->chunk_sum);
	return is.low == was->low && is.high == was->high;
}

/* What of the file is still to be written, where some was while it was written (early.c); returns
 * how many extents. */
static unsigned early_rest(struct job *j, const char *map, struct io_extent *ext)
{
	const struct early *e = j->p->early;
	uint64_t size = j->p->r.size, off = 0;
	unsigned n = 0;

	for (; off + EARLY_CHUNK <= size && off < e->end; off += EARLY_CHUNK) {
		if (is_chunk_same(j, map + off, &e->sum[off / EARLY_CHUNK]))
			continue;
		if (n && ext[n - 1].off + ext[n - 1].len == off)
			ext[n - 1].len += EARLY_CHUNK;
		else if (n < EXTENTS_MAX)
			ext[n++] = (struct io_extent){off, EARLY_CHUNK};
		else
			ext[n - 1].len = off + EARLY_CHUNK - ext[n - 1].off;
	}
	ext[n++] = (struct io_extent){off, size - off};
	j->summed = off;
	return n;
}

/* Its unpublished file has some of it already. */
static bool is_begun(const struct pend *p)
{
	return p->early && p->tmp_id && p->tmp_id == p->early->tmp_id;
}

/* A version with holes, or one that is copied, must not be written to a file that has bytes
 * already: they would show in the holes. The close does not see all holes, where memory was
 * allocated ahead of its writer. */
static void begin_anew(struct job *j, int from)
{
	struct pend *p = j->p;
	struct stat st;

	if (!is_begun(p) || (p->early->end && p->direct && p->r.size > STAGING_SMALL &&
			     !p->sf->moved.under && !fstat(from, &st) && !has_holes(&st)))
		return;
	j->anew = true;
	LOCK_SCOPE(&j->s->lock);
	trash_put(j->s, p->tmp_id, p->tmp_fd);
	p->tmp_id = 0;
	p->tmp_fd = -1;
}

static int write_begun(struct job *j, const char *map)
{
	struct io_source src = {
		.base = map,
		.size = j->p->r.size,
		.data = j->ext,
		.n_data = early_rest(j, map, j->ext),
		.seen = job_seen,
		.ctx = j,
	};
	return io_write_file(j->q, j->p->tmp_fd, j->p->direct, &src);
}

static int write_large(struct job *j, int from)
{
	struct pend *p = j->p;
	size_t size = p->r.size;
	void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, from, 0);
	if (map == MAP_FAILED)
		return -errno;
	if (!j->ext)
		j->ext = malloc((EXTENTS_MAX + 1) * sizeof(*j->ext));
	int err = -ENOMEM;
	if (j->ext && is_begun(j->p)) {
		err = write_begun(j, map);
	} else if (j->ext) {
		struct stat st;
		struct written w = {.fd = from,
				    .size = size,
				    .map = !fstat(from, &st) && has_holes(&st) ? map : NULL};
		struct io_source src = {
			.base = map,
			.size = size,
			.data = j->ext,
			.n_data = written_extents(&w, 0, j->ext, EXTENTS_MAX),
			.seen = job_seen,
			.ctx = j,
		};
		uint64_t data = 0;
		for (unsigned i = 0; i < src.n_data; i++)
			data += src.data[i].len;
		if (is_mostly_hole(data, size)) {
			src.seen = NULL;
			j->no_sum = true;
		}
		err = allocate_data(j, &src);
		if (!err)
			err = io_write_file(j->q, p->tmp_fd, p->direct, &src);
	}
	munmap(map, size);
	return err;
}

/* Small, or may be truncated while it is read: through a buffer. `to` < 0 = checksum only.
 * `under` >= 0: older bytes are there already (outgrow.c), but the version needs its own file. */
static int copy_through(struct job *j, int from, int under, int to)
{
	uint64_t size = j->p->r.size;
	struct stat st;
	/* mostly holes: no checksum, and holes stay holes */
	bool sparse = under < 0 && !fstat(from, &st) && is_mostly_holes(&st, size);
	j->no_sum |= sparse;
	if (sparse && to < 0)
		return 0;
	for (uint64_t off = 0; off < size;) {
		off_t data = sparse ? lseek(from, (off_t)off, SEEK_DATA) : (off_t)off;
		if (data < 0 || (uint64_t)data >= size)
			break;
		off = (uint64_t)data;
		size_t want = size - off < COPY_CHUNK ? size - off : COPY_CHUNK;
		if (sparse)
			want = data_run(from, off, want);
		ssize_t n = under < 0 ? pread(from, j->buf, want, (off_t)off)
				      : outgrow_read(j->p->sf->moved.under, from, under, j->buf,
						     want, off);
		if (n < 0)
			return -errno;
		if (n == 0) { /* truncated meanwhile: what is missing reads as zeros */
			io_sum_zeros(j->sum, size - off);
			break;
		}
		job_seen(j, j->buf, (size_t)n);
		int err = to < 0 ? 0 : io_pwrite(j->s->o.store, to, j->buf, (size_t)n, off);
		if (err)
			return err;
		off += (uint64_t)n;
	}
	return to < 0 ? 0 : io_truncate(j->s->o.store, to, size);
}

/* What the close did not allocate (recovery, rewriting). */
static int make_tmp(struct job *j)
{
	struct pend *p = j->p;
	if (p->tmp_fd >= 0)
		return 0;
	if (p->tmp_id && p->direct) /* closed to save descriptors */
		p->tmp_fd = io_tmp_open(j->s->o.store, p->tmp_id, O_RDWR | O_DIRECT);
	if (p->tmp_id && p->tmp_fd < 0) {
		p->direct = false;
		p->tmp_fd = io_tmp_open(j->s->o.store, p->tmp_id, O_RDWR);
	}
	if (p->tmp_fd >= 0)
		return 0;
	p->tmp_id = staging_new_id(j->s);
	bool direct = p->r.size > STAGING_SMALL && !p->sf->spilled && !p->sf->moved.under;
	int fd = io_tmp_create_as(j->s->o.store, p->tmp_id, p->r.mode, direct, &p->direct);
	if (fd < 0)
		return fd;
	p->tmp_fd = fd;
	/* in a store that is nearly full a write may succeed and its writeback find no block */
	bool tight = atomic_load(&j->s->reserve.tight) && p->promised && p->r.size;
	return tight && is_small(p) ? io_allocate(j->s->o.store, fd, 0, p->r.size) : 0;
}

/* The version is the spilled file. Synced before it is read: if that fails, the page cache may
 * return the disk's bytes. */
static int sum_spilled(struct job *j)
{
	struct pend *p = j->p;
	struct staged *f = p->sf;

	p->tmp_id = f->id;
	p->tmp_fd = io_tmp_open(j->s->o.store, f->id, O_RDONLY);
	if (p->tmp_fd == -ENOENT && !p->again) /* the only copy was taken away (taken.c) */
		p->lost = p->tmp_fd;
	if (p->tmp_fd < 0)
		return p->tmp_fd;
	int err = f->spoiled				 ? f->spoiled
		  : persist_syncs_itself(p) || p->unsure ? persist_sync(j->s, p)
							 : 0;
	return err ? err : copy_through(j, p->tmp_fd, -1, -1);
}

/* Was f written after its fsync? */
static bool went_on(const struct pend *p, int from)
{
	struct stat st;
	return fstat(from, &st) || (uint64_t)st.st_size != p->r.size ||
	       st.st_mtim.tv_sec != p->r.mtime.tv_sec || st.st_mtim.tv_nsec != p->r.mtime.tv_nsec;
}

static int write_bytes(struct job *j)
{
	struct pend *p = j->p;
	struct staged *f = p->sf;
	struct io_store *store = j->s->o.store;
	char name[17];

	io_sum_reset(j->sum);
	j->no_sum = j->anew = false;
	j->summed = 0;
	if (p->early)
		early_settle(j->s, p->early);
	if (f->spilled && !p->snapshot)
		return sum_spilled(j);
	staging_sf_name(f->id, name);
	int from = f->spilled ? io_tmp_open(store, f->id, O_RDONLY)
			      : openat(staging_sf_dir(f), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (from < 0)
		return f->spilled ? from : -errno;
	begin_anew(j, from);
	int err = make_tmp(j);
	/* allocated when it was larger: small writes are not aligned */
	if (!err && p->direct && (p->r.size <= STAGING_SMALL || f->moved.under) &&
	    fcntl(p->tmp_fd, F_SETFL, 0))
		err = -errno;
	int under = err || !f->moved.under ? -1 : io_tmp_open(store, f->id, O_RDONLY);
	if (!err && f->moved.under && under < 0)
		err = under;
	else if (!err && (p->r.size <= STAGING_SMALL || f->spilled || under >= 0))
		err = copy_through(j, from, under, p->tmp_fd);
	else if (!err)
		err = write_large(j, from);
	if (!err) /* the bytes read are the bytes written */
		err = sf_spoiled(f, from);
	if (!err && p->failed_fsync && went_on(p, from))
		err = p->lost = -EIO;
	if (under >= 0)
		close(under);
	close(from);
	return err;
}

static int write_version(struct job *j)
{
	struct pend *p = j->p;
	bool goes_on = p->snapshot;
	atomic_store(&p->sf->written, 0);
	/* if the file is still written after its fsync, only bytes being cut off must wait */
	if (goes_on)
		pthread_mutex_lock(&p->sf->io.cut);
	j->no_sum = false;
	bool cloned =
		p->clone.done || clone_version(j->s, p, j->sum) || delta_version(j->s, p, j->sum);
	int err = cloned ? 0 : write_bytes(j);
	if (goes_on)
		pthread_mutex_unlock(&p->sf->io.cut);
	if (err)
		return err;
	p->checksum[0] = 0;
	if (!j->no_sum)
		io_sum_text(j->sum, p->checksum);
	return meta_write(j->s, p);
}

static int persist_one(struct job *j)
{
	struct pend *p = j->p;
	unsigned given = 0;
	int err = write_version(j);

	if (no_space(err) && trash_wait(j->s)) /* space was freed */
		err = write_version(j);
	/* the reserve is for this: small files get their blocks from it, and the xattrs of any file
	 * may need another block */
	while (reserve_give(j->s, p, err, &given))
		err = write_version(j);
	if (!err && persist_syncs_itself(p))
		err = persist_sync(j->s, p);
	if (!err)
		delta_keep(j->s, p);
	return err;
}

/* ---- the thread ---- */

/* Another version of its file is being persisted: until that is done this one may be left out
 * (append.c). s->lock held */
static bool is_behind(const struct staging *s, const struct pend *p)
{
	for (const struct pend *q = p->sf->n_seals > 1 ? s->order.pend : NULL; q; q = q->next)
		if (q->sf == p->sf && q->state == PEND_BUSY)
			return true;
	return false;
}

static bool may_take(const struct staging *s, const struct pend *p, bool small)
{
	return (!small || is_small(p)) && !(p->dead_at && !p->must) && !is_behind(s, p);
}

/* s->lock held. Dead ones are left to the publisher, which knows whether they may be skipped. */
static struct pend *next_job(struct staging *s, bool small, uint64_t *wait_until)
{
	struct pend *p;
	*wait_until = 0;
	while ((p = s->order.todo) && p->dead_at && !p->must) {
		persist_unqueue(s, p);
		p->todo_next = NULL;
	}
	while (p && !may_take(s, p, small))
		p = p->todo_next;
	if (!p)
		return NULL;
	uint64_t ripe = p->start_ns + SMALL_REST_NS;
	if (persist_may_wait(s, p) && monotonic_ns() < ripe) {
		*wait_until = ripe;
		return NULL;
	}
	persist_unqueue(s, p);
	p->todo_next = NULL;
	return p;
}

/* s->lock held, may be dropped meanwhile */
static void job_failed(struct staging *s, struct pend *p, int err)
{
	if (p->sf->spilled && p->sf->spoiled)
		p->lost = p->sf->spoiled;
	if (p->lost) { /* the publisher skips it at its place and reports it */
		p->state = PEND_READY;
		return;
	}
	if (lack_wait(s, p, err)) {
		persist_again(s, p, 0);
		return;
	}
	s->st.errors++;
	char path[181];
	dirs_root_relative(s, p->r.dir, p->r.name, path, sizeof(path));
	snprintf(s->st.last_error, sizeof(s->st.last_error), "persist %s: %s", path,
		 strerror(-err));
	persist_again(s, p, err);
}

/* s->lock held */
static void written(struct staging *s, struct pend *p)
{
	p->state = PEND_READY;
	if (!io_store_allocates(s->o.store)) /* its blocks are taken now */
		reserve_kept(s, &p->promised);
}

/* s->lock held, dropped meanwhile */
static void job_run(struct job *j)
{
	struct staging *s = j->s;
	struct pend *p = j->p;
	uint64_t lost = s->drain.n_lost;

	p->state = PEND_BUSY;
	if (p->sf->state == STAGED_SEALED ||
	    (p->sf->state == STAGED_FAILED && !p->sf->space.failed))
		sf_set_state(s, p->sf, STAGED_PERSISTING);
	pthread_mutex_unlock(&s->lock);
	int err = persist_one(j);
	pthread_mutex_lock(&s->lock);
	if (err)
		job_failed(s, p, err);
	else if (persist_syncs_itself(p))
		written(s, p);
	else if (lost != s->drain.n_lost)
		persist_again(s, p, 0);
	else
		p->state = PEND_WRITTEN;
	if (!err)
		p->tries.lacks_ns = 0;
	if (!err && p->sf->state == STAGED_OPEN) /* an fsync's: still being written */
		log_written(s, p);
	save_descriptor(s, p);
	sleeper_nudge(&s->pub, !is_small(p) || in_hurry(s));
	pthread_cond_broadcast(&s->done_cond);
}

static void *persist(struct staging *s, bool small)
{
	struct job j = {
		.s = s, .sum = io_sum_new(), .chunk_sum = io_sum_new(), .buf = malloc(COPY_CHUNK)};
	struct sleeper *bed = small ? &s->small_work : &s->work;
	uint64_t until = 0;

	staging_nice(PERSIST_NICE);
	pthread_mutex_lock(&s->lock);
	if (!small)
		j.q = s->drain.queues[s->drain.n_persist++];
	while (j.sum && j.chunk_sum && j.buf) {
		bool due = !small || s->drain.n_large == s->drain.n_persist;
		j.p = due ? next_job(s, small, &until) : NULL;
		if (!j.p) {
			if (s->stop)
				break;
			sleeper_wait(s, bed, due ? until : 0);
			continue;
		}
		bool large = !is_small(j.p);
		s->drain.n_large += large;
		if (large && s->drain.n_large == s->drain.n_persist && s->order.todo)
			sleeper_nudge(&s->small_work, true);
		job_run(&j);
		s->drain.n_large -= large;
	}
	pthread_mutex_unlock(&s->lock);
	io_sum_free(j.sum);
	io_sum_free(j.chunk_sum);
	free(j.buf);
	free(j.ext);
	return NULL;
}

void *persist_main(void *arg)
{
	pthread_setname_np(pthread_self(), "cairn-persist");
	return persist(arg, false);
}

/* So that a small file does not wait until a large one is written. */
void *persist_small_main(void *arg)
{
	pthread_setname_np(pthread_self(), "cairn-small");
	return persist(arg, true);
}

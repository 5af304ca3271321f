/* SPDX-License-Identifier: MIT
 * Persist: staged bytes -> unpublished store file, many versions at once, in
 * whatever order they finish. Publication (publish.c) puts the order back. */
#include "staging/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A small file rests this long, so that a temporary one is gone before it is
 * written and others join its group sync. An fsync ends the rest at once. */
#define SMALL_REST_NS 5000000u
#define BACKLOG 64u		/* or this many wait */
#define EXTENTS_MAX 65536u	/* more holes than this are written as zeros */
#define COPY_CHUNK (1u << 20)

/* May p wait a little, so that it is perhaps gone before it is written? */
static bool rests(const struct staging *s, const struct pend *p)
{
	return p->r.size <= STAGING_SMALL && !p->must && !in_hurry(s) && s->n_pend < BACKLOG && !s->stop;
}

void persist_queue(struct staging *s, struct pend *p)
{
	p->state = PEND_QUEUED;
	if (p->dead_at && !p->must)	/* no persist thread takes it before the publisher says so */
		sleeper_nudge(&s->pub, false);
	p->todo_next = NULL;
	*s->todo_tail = p;
	s->todo_tail = &p->todo_next;
	sleeper_nudge(&s->work, !rests(s, p));
}

void persist_unqueue(struct staging *s, struct pend *p)
{
	for (struct pend **w = &s->todo; *w; w = &(*w)->todo_next)
		if (*w == p) {
			*w = p->todo_next;
			if (!*w)
				s->todo_tail = w;
			return;
		}
}

/* ---- one version ---- */

struct job {
	struct staging *s;
	struct io_queue *q;
	struct pend *p;
	struct io_sum *sum;
	char *buf;		/* COPY_CHUNK */
	struct io_extent *ext;
	bool no_sum;
};

static void job_seen(void *ctx, const void *bytes, size_t len)
{
	struct job *j = ctx;
	io_sum_add(j->sum, bytes, len);
	atomic_fetch_add_explicit(&j->p->sf->written, len, memory_order_relaxed);
}

unsigned persist_extents(int fd, uint64_t off, uint64_t size, struct io_extent *ext, unsigned max)
{
	unsigned n = 0;
	const uint64_t from = off;
	while (off < size) {
		off_t data = lseek(fd, (off_t)off, SEEK_DATA);
		if (data < 0 && errno == ENXIO)
			break;
		off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
		if (hole < 0 || n == max) {
			ext[0] = (struct io_extent){from, size - from};
			return 1;
		}
		if ((uint64_t)data >= size)
			break;
		if ((uint64_t)hole > size)
			hole = (off_t)size;
		ext[n++] = (struct io_extent){(uint64_t)data, (uint64_t)(hole - data)};
		off = (uint64_t)hole;
	}
	return n;
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
	int rc = -ENOMEM;
	if (j->ext) {
		struct io_source src = {
			.base = map, .size = size, .data = j->ext,
			.n_data = persist_extents(from, 0, size, j->ext, EXTENTS_MAX),
			.seen = job_seen, .ctx = j,
		};
		uint64_t data = 0;
		for (unsigned i = 0; i < src.n_data; i++)
			data += src.data[i].len;
		if (size - data > SUM_HOLES_MAX) {
			src.seen = NULL;
			j->no_sum = true;
		}
		rc = io_write_file(j->q, p->tmp_fd, p->direct, &src);
	}
	munmap(map, size);
	return rc;
}

/* Small, or to be read while it may be cut short: through a buffer. `to` < 0 = checksum only.
 * `under` >= 0: older bytes are there already (outgrow.c), but the version needs a file of its own. */
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
		ssize_t n = under < 0 ? pread(from, j->buf, want, (off_t)off) :
			    outgrow_read(j->p->sf->under, from, under, j->buf, want, off);
		if (n < 0)
			return -errno;
		if (n == 0) {	/* cut short since: what is missing reads as zeros */
			io_sum_zeros(j->sum, size - off);
			break;
		}
		job_seen(j, j->buf, (size_t)n);
		int rc = to < 0 ? 0 : io_pwrite(j->s->o.store, to, j->buf, (size_t)n, off);
		if (rc)
			return rc;
		off += (uint64_t)n;
	}
	return to < 0 ? 0 : io_truncate(j->s->o.store, to, size);
}

/* What the close did not reserve (recovery, rewriting). */
static int make_tmp(struct job *j)
{
	struct pend *p = j->p;
	if (p->tmp_fd >= 0)
		return 0;
	if (p->tmp_id && p->direct)	/* closed to save descriptors */
		p->tmp_fd = io_tmp_open(j->s->o.store, p->tmp_id, O_RDWR | O_DIRECT);
	if (p->tmp_id && p->tmp_fd < 0) {
		p->direct = false;
		p->tmp_fd = io_tmp_open(j->s->o.store, p->tmp_id, O_RDWR);
	}
	if (p->tmp_fd >= 0)
		return 0;
	p->tmp_id = staging_new_id(j->s);
	int fd = io_tmp_create(j->s->o.store, p->tmp_id, p->r.size > STAGING_SMALL && !p->sf->spilled && !p->sf->under,
			       &p->direct);
	if (fd < 0)
		return fd;
	p->tmp_fd = fd;
	/* in a store that is nearly full a write may succeed and its writeback find no block */
	return atomic_load(&j->s->reserve_tight) && p->promised && p->r.size ?
	       io_allocate(j->s->o.store, fd, 0, p->r.size) : 0;
}

static int write_bytes(struct job *j)
{
	struct pend *p = j->p;
	struct staged *f = p->sf;
	struct io_store *store = j->s->o.store;
	char name[17];

	io_sum_reset(j->sum);
	j->no_sum = false;
	if (f->spilled && !p->snapshot) {	/* it is the store file */
		p->tmp_id = f->id;
		p->tmp_fd = io_tmp_open(store, f->id, O_RDWR);
		return p->tmp_fd < 0 ? p->tmp_fd : copy_through(j, p->tmp_fd, -1, -1);
	}
	staging_sf_name(f->id, name);
	int from = f->spilled ? io_tmp_open(store, f->id, O_RDONLY) :
		   openat(staging_sf_dir(f), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (from < 0)
		return f->spilled ? from : -errno;
	int rc = make_tmp(j);
	/* reserved when it was larger: small writes are not aligned */
	if (!rc && p->direct && (p->r.size <= STAGING_SMALL || f->under) && fcntl(p->tmp_fd, F_SETFL, 0))
		rc = -errno;
	int under = rc || !f->under ? -1 : io_tmp_open(store, f->id, O_RDONLY);
	if (!rc && f->under && under < 0)
		rc = under;
	else if (!rc && (p->r.size <= STAGING_SMALL || f->spilled || under >= 0))
		rc = copy_through(j, from, under, p->tmp_fd);
	else if (!rc)
		rc = write_large(j, from);
	if (under >= 0)
		close(under);
	close(from);
	return rc;
}

static int write_version(struct job *j)
{
	struct pend *p = j->p;
	atomic_store(&p->sf->written, 0);
	/* while a writer goes on after its fsync, only truncation must wait */
	if (p->snapshot)
		pthread_mutex_lock(&p->sf->io);
	j->no_sum = false;
	int rc = p->cloned || clone_version(j->s, p, j->sum) ? 0 : write_bytes(j);
	if (p->snapshot)
		pthread_mutex_unlock(&p->sf->io);
	if (rc)
		return rc;
	p->checksum[0] = 0;
	if (!j->no_sum)
		io_sum_text(j->sum, p->checksum);
	return meta_write(j->s, p);
}

static int persist_one(struct job *j)
{
	struct pend *p = j->p;
	int rc = write_version(j);
	if (rc == -ENOSPC && trash_wait(j->s))	/* room that came back */
		rc = write_version(j);
	/* now is when the promise counts; of a spilled file the bytes are there, and its xattrs need a block */
	bool due = p->promised || (p->sf->spilled && !p->snapshot);
	while (rc == -ENOSPC && due && reserve_give(j->s))
		rc = write_version(j);
	if (!rc && p->r.size > STAGING_SMALL)
		rc = io_sync_data(j->s->o.store, p->tmp_fd);
	return rc;
}

/* ---- the thread ---- */

/* s->lock held. Dead ones are left to the publisher, which knows whether they may be skipped. */
static struct pend *next_job(struct staging *s, uint64_t *wait_until)
{
	struct pend *p;
	*wait_until = 0;
	while ((p = s->todo) && p->dead_at && !p->must) {
		s->todo = p->todo_next;
		if (!s->todo)
			s->todo_tail = &s->todo;
		p->todo_next = NULL;
	}
	if (!p)
		return NULL;
	uint64_t ripe = p->start_ns + SMALL_REST_NS;
	if (rests(s, p) && now_ns() < ripe) {
		*wait_until = ripe;
		return NULL;
	}
	s->todo = p->todo_next;
	if (!s->todo)
		s->todo_tail = &s->todo;
	p->todo_next = NULL;
	return p;
}

void persist_again(struct staging *s, struct pend *p, int rc)
{
	struct staged *f = p->sf;

	trash_put(s, !f->spilled || p->snapshot ? p->tmp_id : 0, p->tmp_fd);
	p->tmp_fd = -1;
	p->tmp_id = 0;
	p->cloned = false;
	clone_forget(s, &p->source);
	p->snapshot |= f->spilled;	/* its cached pages are the only copy: they go to a new file */
	if (!rc || ++p->attempts < MAX_ATTEMPTS) {
		persist_queue(s, p);
		return;
	}
	p->state = PEND_FAILED;
	f->error = rc;
	if (f->state != STAGED_OPEN)
		sf_set_state(s, f, STAGED_FAILED);
}

/* s->lock held */
static void job_failed(struct staging *s, struct pend *p, int rc)
{
	s->st.errors++;
	snprintf(s->st.last_error, sizeof(s->st.last_error), "persist %.180s: %s", p->r.name, strerror(-rc));
	persist_again(s, p, rc);
}

void *persist_main(void *arg)
{
	struct job j = {.s = arg, .sum = io_sum_new(), .buf = malloc(COPY_CHUNK)};
	struct staging *s = j.s;
	uint64_t until;

	pthread_setname_np(pthread_self(), "cairn-persist");
	staging_nice(PERSIST_NICE);
	pthread_mutex_lock(&s->lock);
	j.q = s->queues[s->n_persist++];
	while (j.sum && j.buf) {
		j.p = next_job(s, &until);
		if (!j.p) {
			if (s->stop)
				break;
			sleeper_wait(s, &s->work, until);
			continue;
		}
		j.p->state = PEND_BUSY;
		if (j.p->sf->state == STAGED_SEALED || j.p->sf->state == STAGED_FAILED)
			sf_set_state(s, j.p->sf, STAGED_PERSISTING);
		uint64_t lost = s->n_lost;
		pthread_mutex_unlock(&s->lock);
		int rc = persist_one(&j);
		pthread_mutex_lock(&s->lock);
		if (rc)
			job_failed(s, j.p, rc);
		else if (j.p->r.size > STAGING_SMALL)
			j.p->state = PEND_READY;
		else if (lost != s->n_lost)
			persist_again(s, j.p, 0);
		else
			j.p->state = PEND_WRITTEN;
		if (!rc && j.p->sf->state == STAGED_OPEN)	/* an fsync's: its writer goes on */
			log_written(s, j.p);
		save_descriptor(s, j.p);
		sleeper_nudge(&s->pub, j.p->r.size > STAGING_SMALL || in_hurry(s));
		pthread_cond_broadcast(&s->done_cond);
	}
	pthread_mutex_unlock(&s->lock);
	io_sum_free(j.sum);
	free(j.buf);
	free(j.ext);
	return NULL;
}

/* SPDX-License-Identifier: MIT
 * Early persisting: large files are written front to back by nearly every writer, so while one is
 * written a thread writes the bytes that lie well behind its end to its unpublished file. The
 * kernel writes past the daemon, so nothing tells whether they change later: each chunk is copied,
 * summed and written from the copy, and when the version is persisted the staged bytes are summed
 * again. What differs is written once more (persist.c), so what is published is what was sealed.
 *
 *   0 ........ end ................ size
 *   written    |  EARLY_BEHIND at least  |  the writer is here
 *
 * It gives way: it writes only while nothing else is to be persisted. */
#include "staging/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* smaller files are persisted fast enough after their close */
#define EARLY_BEGINS (64ull << 20)
#define EARLY_BEHIND (32ull << 20)
#define EARLY_STEP (8 * EARLY_CHUNK) /* until it looks for the file that is furthest behind */
#define EARLY_FILES 64u /* at once: a descriptor each */
#define LOOKED_AT 256u /* files, the latest opened: each costs an fstat */
#define FAST 2u /* bytes per ns that files grow */
#define TICK_EARLY_NS 10000000u
#define TICK_QUIET_NS 100000000u
#define QUIET_NS 1000000000u /* since a file last grew */

struct chunk {
	struct staged *f; /* a reference */
	struct early *e; /* a reference, NULL until begun */
	char *buf;
	struct io_sum *sum;
	int from;
};

struct early *early_take(struct staged *f)
{
	struct early *e = f->io.early;

	f->io.early = NULL;
	if (e)
		e->over = true;
	return e;
}

void early_settle(struct staging *s, const struct early *e)
{
	LOCK_SCOPE(&s->lock);
	while (e->busy)
		pthread_cond_wait(&s->done_cond, &s->lock);
}

bool early_is_useless(const struct staged *f, const struct stat *st)
{
	return f->io.early && (has_holes(st) || (uint64_t)st->st_size < f->io.early->allocated);
}

/* ---- which file ---- */

/* Only files that are written front to back, as far as one can tell. s->lock held. */
static bool may_begin(const struct staged *f)
{
	return f->backing && !f->spilled && !f->moved.under && !f->moved.more && !f->late &&
	       !f->space.checked && !f->space.failed && !f->last.once && !f->io.no_early &&
	       f->base.source < 0 && !f->memory.presized && !f->memory.in_parts &&
	       !f->memory.lender && !f->io.promised && !staged_torn(f) && !sf_may_be_delta(f->s, f);
}

/* How many bytes of f may be written now; adds f's size to *sizes. s->lock held. */
static uint64_t behind(const struct staged *f, uint64_t *sizes)
{
	const struct early *e = f->io.early;
	uint64_t end = e ? e->end : 0;
	struct stat st;

	if (!may_begin(f) || (e ? e->over : f->io.tmp_id != 0) || f->fd < 0 || fstat(f->fd, &st))
		return 0;
	*sizes += (uint64_t)st.st_size;
	if (has_holes(&st) || (uint64_t)st.st_size < EARLY_BEGINS ||
	    (uint64_t)st.st_size < end + EARLY_BEHIND + EARLY_CHUNK)
		return 0;
	return ((uint64_t)st.st_size - EARLY_BEHIND - end) / EARLY_CHUNK * EARLY_CHUNK;
}

/* Nothing else is to be written, and the store has space to spare. s->lock held. */
static bool is_idle(const struct staging *s)
{
	bool spare = atomic_load(&s->space.free) / 2 > s->space.claims;

	return spare && !s->stop && !s->drain.halted && !s->order.todo && !s->drain.n_large &&
	       !io_store_is_detached(s->o.store);
}

/* What the thread saw when it last looked. */
struct look {
	struct staged *f; /* the file that is furthest behind, with a reference; NULL: none */
	uint64_t bytes; /* of it */
	uint64_t sizes; /* of all files that may be written early */
	uint64_t at_ns, grew_ns;
};

/* A writer at memory speed has finished before much could be done, and needs the cores. */
static bool is_fast(const struct look *before, uint64_t sizes, uint64_t now)
{
	uint64_t passed = now - before->at_ns;
	/* after a sleep the rate is not known: the growth may be of the last moment */
	bool slept = !before->f && passed > 3 * TICK_EARLY_NS;

	return sizes > before->sizes && (slept || (sizes - before->sizes) / FAST > passed);
}

/* s->lock held */
static void look(struct staging *s, struct look *l)
{
	struct look new = {.at_ns = monotonic_ns(), .grew_ns = l->grew_ns};
	unsigned n = 0, looked = 0;

	for (struct staged *f = s->files.open; f && n < EARLY_FILES && looked < LOOKED_AT;
	     f = f->lists.open_next, looked++) {
		uint64_t bytes = behind(f, &new.sizes);
		n += f->io.early != NULL;
		if (bytes > new.bytes) {
			new.bytes = bytes;
			new.f = f;
		}
	}
	if (new.sizes != l->sizes)
		new.grew_ns = new.at_ns;
	if (!is_idle(s) || is_fast(l, new.sizes, new.at_ns))
		new.f = NULL;
	if (new.f)
		new.f->refs++;
	*l = new;
}

/* Until when to wait for bytes; 0: until a file is opened. s->lock held. */
static uint64_t next_look(const struct staging *s, const struct look *l)
{
	uint64_t quiet = l->at_ns - l->grew_ns;

	return s->files.open ? l->at_ns + (quiet < QUIET_NS ? TICK_EARLY_NS : TICK_QUIET_NS) : 0;
}

/* ---- its unpublished file ---- */

/* f->io.lock held */
static int make(struct staged *f)
{
	struct staging *s = f->s;
	struct early *e = calloc(1, sizeof(*e));
	bool direct = false;
	uint64_t id = staging_new_id(s);
	int fd = e ? io_tmp_create_as(s->o.store, id, f->space.mode, true, &direct) : -ENOMEM;
	/* without O_DIRECT a failed writeback might go unseen: the descriptor may be closed before
	 * the sync */
	int err = fd < 0 ? fd : !direct ? -EOPNOTSUPP : sf_own_tmp(f, fd);

	if (!err && (e->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0)
		err = -errno;
	if (err) {
		if (fd >= 0) {
			close(fd);
			io_tmp_remove(s->o.store, id);
		}
		free(e);
		return err;
	}
	e->refs = 1;
	e->tmp_id = id;
	f->io.tmp_direct = direct;
	f->io.tmp_fd = fd;
	f->io.allocated_from = f->io.allocated_to = 0;
	LOCK_SCOPE(&s->lock);
	f->io.tmp_id = id;
	f->io.early = e;
	return 0;
}

/* Blocks for what is to be written next: never behind the file's end. f->io.lock held. */
static int allocate(struct staged *f, uint64_t bytes)
{
	struct early *e = f->io.early;
	uint64_t more = e->end + bytes - e->allocated;
	int err = 0;

	if (e->end + bytes <= e->allocated)
		return 0;
	err = reserve_enter(f->s, more + space_wanted(f->s));
	if (err)
		return err;
	err = io_allocate(f->s->o.store, e->fd, e->allocated, more);
	reserve_leave(f->s);
	if (!err)
		e->allocated += more;
	return err;
}

/* A reference to what may be written to now, with blocks for `bytes`; NULL: not now, or never. */
static struct early *begin(struct staged *f, uint64_t bytes)
{
	struct early *e = NULL;
	int err = 0;

	if (io_store_silent_since(f->s->o.store) || pthread_mutex_trylock(&f->io.lock))
		return NULL;
	pthread_mutex_lock(&f->s->lock);
	uint64_t size = 0;
	bool may = f->state == STAGED_OPEN && behind(f, &size) >= bytes;
	pthread_mutex_unlock(&f->s->lock);
	if (may && !f->io.early)
		err = sf_limited(f) ? -EDQUOT : make(f);
	if (may && !err)
		err = allocate(f, bytes);
	if (err && f->io.early)
		sf_drop_tmp(f);
	f->io.no_early |= err != 0;
	if (may && !err) {
		e = f->io.early;
		atomic_fetch_add(&e->refs, 1);
	}
	pthread_mutex_unlock(&f->io.lock);
	return e;
}

/* ---- its bytes ---- */

/* Space for one more sum, and nobody else may seal or drop it now. s->lock held. */
static bool enter(struct staging *s, struct early *e)
{
	size_t n = e->end / EARLY_CHUNK;

	if (e->over || e->end + EARLY_CHUNK > e->allocated || !is_idle(s))
		return false;
	if (n == e->cap) {
		size_t cap = e->cap ? e->cap * 2 : 64;
		struct io_digest *sum = realloc(e->sum, cap * sizeof(*sum));
		if (!sum)
			return false;
		e->sum = sum;
		e->cap = cap;
	}
	e->busy = true;
	return true;
}

/* False: it was the last. */
static bool write_chunk(struct chunk *c)
{
	struct staging *s = c->f->s;
	struct early *e = c->e;

	pthread_mutex_lock(&s->lock);
	bool may = enter(s, e);
	pthread_mutex_unlock(&s->lock);
	if (!may)
		return false;
	ssize_t n = io_read_full(c->from, c->buf, EARLY_CHUNK, e->end);
	int err = n < 0 ? (int)n : n != (ssize_t)EARLY_CHUNK ? -ESTALE : 0;
	struct io_digest sum = {0};
	if (!err) {
		io_sum_reset(c->sum);
		io_sum_add(c->sum, c->buf, EARLY_CHUNK);
		sum = io_sum_digest(c->sum);
		err = io_pwrite(s->o.store, e->fd, c->buf, EARLY_CHUNK, e->end);
	}
	LOCK_SCOPE(&s->lock);
	if (!err) {
		e->sum[e->end / EARLY_CHUNK] = sum;
		e->end += EARLY_CHUNK;
		s->st.bytes_early += EARLY_CHUNK;
	}
	e->over |= err != 0;
	e->busy = false;
	pthread_cond_broadcast(&s->done_cond);
	return !err;
}

/* False: nothing, because others have the file now, or there is something else to be written. */
static bool write_some(struct chunk *c, uint64_t bytes)
{
	unsigned n = 0;

	c->e = begin(c->f, bytes);
	c->from = c->e ? sf_open_bytes(c->f, O_RDONLY) : -1;
	while (c->from >= 0 && n < bytes / EARLY_CHUNK && write_chunk(c))
		n++;
	if (c->from >= 0)
		close(c->from);
	early_unref(c->e);
	c->e = NULL;
	return n;
}

void *early_main(void *arg)
{
	struct staging *s = arg;
	struct chunk c = {.buf = aligned_alloc(IO_ALIGN, EARLY_CHUNK), .sum = io_sum_new()};
	struct look l = {0};

	pthread_setname_np(pthread_self(), "cairn-early");
	staging_nice(PERSIST_NICE);
	pthread_mutex_lock(&s->lock);
	while (!s->stop && c.buf && c.sum) {
		look(s, &l);
		if (!l.f) {
			sleeper_wait(s, &s->early, next_look(s, &l));
			continue;
		}
		c.f = l.f;
		pthread_mutex_unlock(&s->lock);
		bool some = write_some(&c, l.bytes < EARLY_STEP ? l.bytes : EARLY_STEP);
		pthread_mutex_lock(&s->lock);
		sf_put_locked(s, l.f);
		if (!some)
			sleeper_wait(s, &s->early, next_look(s, &l));
	}
	pthread_mutex_unlock(&s->lock);
	free(c.buf);
	io_sum_free(c.sum);
	return NULL;
}

/* SPDX-License-Identifier: MIT
 * The page pool: the free part of the budget, held ready as touched huge pages. A file of known
 * size gets its pages from here before it is written, so that its writer allocates none: they are
 * punched out of a file of the pool and allocated behind the new file's end at once, on this CPU,
 * in steps that the kernel's per-CPU list of free pages holds; so they are the same pages, warm. A
 * checkpoint's shards keep their sizes from step to step: while nobody writes, files of the sizes
 * requested last are made ready, and the next open takes one by a rename instead of waiting for
 * pages to move.
 *
 *	file	how many	pages [0, bytes)
 *	ready	POOL_READY	behind the end of an empty file with a name; taken last
 *	stock	1		of a file with a name, which the pool's thread makes longer
 *	kept	POOL_KEPT	of a staged file that is gone; no name; taken first
 *
 *	a ready file	want	bytes
 *	none		0	0
 *	being made	> 0	< want
 *	ready		> 0	= want
 *
 * No lock is held while pages move. Pages are taken from a file's end: who lowers `bytes` punches
 * what is behind it then. Who adds pages behind it counts them afterwards, unless some were taken
 * meanwhile; nothing is added where pages are still being punched. Both hold a claim on the
 * file. */
#include "staging/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As older versions call the files: what one of them left is found again. */
#define STOCK_NAME "ballast"
#define READY_NAME "blank.%u"
#define STOCK POOL_READY
#define GROW_STEP (16ull << 20)
/* kept free before a growing file, and less before a small one */
#define AHEAD (128ull << 20)
#define AHEAD_MIN (32ull << 20)
#define SMALL_YET (4ull << 20)

static void ready_name(const struct staging *s, const struct pool_file *f, char name[16])
{
	snprintf(name, 16, READY_NAME, (unsigned)(f - s->pool.file));
}

static int ready_open(const struct staging *s, const struct pool_file *f, int flags)
{
	char name[16];
	ready_name(s, f, name);
	return openat(s->o.place.huge, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static void ready_unlink(const struct staging *s, const struct pool_file *f)
{
	char name[16];
	ready_name(s, f, name);
	unlinkat(s->o.place.huge, name, 0);
}

/* ---- pages in and out ---- */

static bool punch(int fd, uint64_t off, uint64_t len)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len) ==
	       0;
}

/* Ends a claim. Who has the last one of an empty file removes it. */
static void release(struct staging *s, struct pool_file *f)
{
	struct pool *p = &s->pool;

	pthread_mutex_lock(&p->lock);
	bool gone = f->claims == 1 && !f->bytes && f != &p->file[STOCK];
	f->claims -= !gone;
	pthread_mutex_unlock(&p->lock);
	if (!gone)
		return;
	if (f->fd >= 0)
		close(f->fd);
	else if (f->want)
		ready_unlink(s, f);
	LOCK_SCOPE(&p->lock);
	*f = (struct pool_file){.fd = -1};
}

/* The file to take pages from; of ready ones only where `any`. p->lock held. */
static struct pool_file *source(struct pool *p, bool any)
{
	for (unsigned i = POOL_FILES, least = any ? 0 : STOCK; i-- > least;)
		if (p->file[i].bytes)
			return &p->file[i];
	return NULL;
}

/* Frees up to `want` bytes of pages, but leaves `leave` in the pool; returns how many. No lock
 * held. */
static uint64_t take(struct staging *s, uint64_t want, uint64_t leave, bool any)
{
	struct pool *p = &s->pool;

	pthread_mutex_lock(&p->lock);
	struct pool_file *f = source(p, any);
	uint64_t over = f && p->bytes > leave ? p->bytes - leave : 0, n = want < over ? want : over;
	n = f && n > f->bytes ? f->bytes : n;
	if (n) {
		p->bytes -= n;
		f->bytes -= n;
		f->claims++;
	}
	uint64_t at = f ? f->bytes : 0;
	pthread_mutex_unlock(&p->lock);
	if (!n)
		return 0;
	int fd = f->fd >= 0 ? f->fd : ready_open(s, f, O_RDWR);
	bool ok = fd >= 0 && punch(fd, at, n);
	if (fd >= 0 && fd != f->fd)
		close(fd);
	release(s, f);
	return ok ? n : 0;
}

/* Counts the n bytes of pages that were put behind f's `at`, and ends the claim; !ok: there are
 * none. False: they are gone again. No lock held. */
static bool add(struct staging *s, struct pool_file *f, int fd, uint64_t at, uint64_t n, bool ok)
{
	struct pool *p = &s->pool;

	pthread_mutex_lock(&p->lock);
	ok = ok && f->bytes == at && !p->ended;
	if (ok) {
		f->bytes += n;
		p->bytes += n;
	} else if (f->want && f->bytes) {
		f->want = f->bytes; /* as large as it came to be */
	}
	pthread_mutex_unlock(&p->lock);
	if (!ok && n)
		punch(fd, at, n);
	release(s, f);
	return ok;
}

void pool_free(struct staging *s, uint64_t bytes)
{
	for (uint64_t n = 1; bytes && n; bytes -= n)
		n = take(s, bytes, 0, true);
}

void pool_fit(struct staging *s, uint64_t used)
{
	uint64_t space =
		s->o.budget_bytes > used ? (s->o.budget_bytes - used) / HUGE_BYTES * HUGE_BYTES : 0;
	while (s->pool.bytes > space && take(s, UINT64_MAX, space, true))
		;
}

void pool_hand_over(struct staging *s, int fd, uint64_t size)
{
	size = whole_pages(size);
	for (uint64_t off = 0, n; off < size; off += n) {
		n = take(s, size - off < POOL_STEP ? size - off : POOL_STEP, 0, true);
		if (!n || fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)n))
			return; /* the writer allocates for itself */
	}
}

uint64_t pool_ahead(uint64_t taken)
{
	if (taken < SMALL_YET)
		return taken;
	return taken < AHEAD_MIN ? AHEAD_MIN : taken < AHEAD ? taken : AHEAD;
}

/* ---- kept files ---- */

/* Does anybody else have the file open or mapped? A write lease is granted only to the one
 * descriptor there is (fcntl(2), F_SETLEASE). */
static bool is_alone(int fd)
{
	if (fcntl(fd, F_SETLEASE, F_WRLCK))
		return false;
	fcntl(fd, F_SETLEASE, F_UNLCK);
	return true;
}

/* Space for one more; NULL: none. Files are kept one at a time, so it stays free. */
static struct pool_file *kept_slot(struct pool *p)
{
	LOCK_SCOPE(&p->lock);
	for (unsigned i = STOCK + 1; i < POOL_FILES; i++)
		if (p->file[i].fd < 0)
			return &p->file[i];
	return NULL;
}

bool pool_keep(struct staging *s, int dir, const char *name)
{
	struct pool *p = &s->pool;
	struct pool_file *f = p->file[STOCK].fd < 0 ? NULL : kept_slot(p);
	struct stat st;
	int fd = f ? openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
	if (fd < 0)
		return false;
	uint64_t end = fstat(fd, &st) ? 0 : whole_pages((uint64_t)st.st_size);
	/* sparse ones, and those that would be too much, go the usual way */
	if (!end || (uint64_t)st.st_blocks * 512 < end || p->bytes + end > s->o.pool_bytes ||
	    !is_alone(fd) || unlinkat(dir, name, 0)) {
		close(fd);
		return false;
	}
	LOCK_SCOPE(&p->lock);
	*f = (struct pool_file){.fd = fd, .bytes = end};
	p->bytes += end;
	sleeper_wake(&s->watch);
	return true;
}

/* ---- ready files ---- */

/* A little too large will do: what is behind the end goes back at the close. */
static bool fits(const struct pool_file *f, uint64_t size)
{
	return f->want && f->bytes == f->want && f->bytes >= size && f->bytes - size <= size / 16;
}

bool pool_use(struct staging *s, uint64_t size, int dir, const char *name)
{
	struct pool *p = &s->pool;
	struct pool_file *best = NULL;
	char from[16];

	if (p->file[STOCK].fd < 0 || dir != s->o.place.huge)
		return false;
	size = whole_pages(size);
	pthread_mutex_lock(&p->lock);
	p->request[p->n_requests++ % POOL_READY] = size;
	for (struct pool_file *f = p->file; f < p->file + POOL_READY; f++)
		if (fits(f, size) && (!best || f->bytes < best->bytes))
			best = f;
	if (best) {
		p->bytes -= best->bytes;
		best->bytes = best->want = 0;
		best->claims++;
	}
	pthread_mutex_unlock(&p->lock);
	if (!best)
		return false;
	ready_name(s, best, from);
	bool used = renameat(dir, from, dir, name) == 0;
	if (!used)
		ready_unlink(s, best);
	release(s, best);
	return used;
}

/* The file to go on with: one begun, or one for the latest request that none is for. p->lock
 * held. */
static struct pool_file *ready_due(struct pool *p)
{
	struct pool_file *none = NULL;
	bool taken[POOL_READY] = {false};
	uint64_t ready = 0;

	for (struct pool_file *f = p->file; f < p->file + POOL_READY; f++) {
		ready += f->bytes;
		if (!f->claims && f->bytes < f->want)
			return f;
		if (!f->claims && !f->want)
			none = f;
	}
	unsigned n = p->n_requests < POOL_READY ? p->n_requests : POOL_READY;
	for (unsigned r = 0; r < n && none; r++) {
		uint64_t size = p->request[(p->n_requests - 1 - r) % POOL_READY];
		unsigned i = 0;
		while (i < POOL_READY && (taken[i] || !fits(&p->file[i], size)))
			i++;
		if (i < POOL_READY) {
			taken[i] = true;
		} else if (size <= p->bytes - ready) {
			none->want = size;
			return none;
		}
	}
	return NULL;
}

bool pool_step(struct staging *s)
{
	struct pool *p = &s->pool;

	pthread_mutex_lock(&p->lock);
	struct pool_file *f = p->file[STOCK].fd < 0 || p->ended ? NULL : ready_due(p);
	uint64_t at = f ? f->bytes : 0, left = f ? f->want - at : 0;
	if (f)
		f->claims++;
	pthread_mutex_unlock(&p->lock);
	if (!f)
		return false;
	int fd = ready_open(s, f, O_RDWR | O_CREAT);
	uint64_t n = fd < 0 ? 0 : take(s, left < POOL_STEP ? left : POOL_STEP, 0, false);
	bool ok = n && fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)n) == 0;
	ok = add(s, f, fd, at, n, ok);
	if (fd >= 0)
		close(fd);
	return ok;
}

/* ---- the stock, and its thread ---- */

/* Pages are written once: a virtual machine gives free ones back to its host within seconds (free
 * page reporting), and then the first write to each waits for the host. No lock held. */
static bool fill(int fd, uint64_t at, uint64_t len, const char *zeros)
{
	for (uint64_t o = 0; o < len; o += HUGE_BYTES)
		if (pwrite(fd, zeros, HUGE_BYTES, (off_t)(at + o)) != (ssize_t)HUGE_BYTES)
			return false;
	return true;
}

/* One step back up; false: nothing to do. Only this thread grows the stock, and it is the last
 * to run: it must not be preempted with the lock held for long, for a create waits for that. */
static bool grow(struct staging *s, const char *zeros)
{
	struct pool *p = &s->pool;
	struct pool_file *f = &p->file[STOCK];

	if (!atomic_load(&p->may_grow))
		return false;
	pthread_mutex_lock(&s->lock);
	uint64_t used = s->files.used;
	bool writing = s->files.open != NULL;
	pthread_mutex_unlock(&s->lock);
	uint64_t may = s->o.budget_bytes > used ? s->o.budget_bytes - used : 0;
	if (may > s->o.pool_bytes)
		may = s->o.pool_bytes;
	if (writing && may < s->o.pool_bytes)
		may = may > 2 * AHEAD ? may - 2 * AHEAD : 0;

	pthread_mutex_lock(&p->lock);
	uint64_t taken = p->bytes, at = f->bytes;
	bool due = !f->claims && taken + HUGE_BYTES <= may;
	f->claims += due;
	pthread_mutex_unlock(&p->lock);
	if (!due)
		return false;
	uint64_t len =
		may - taken < GROW_STEP ? (may - taken) / HUGE_BYTES * HUGE_BYTES : GROW_STEP;
	bool ok = fill(f->fd, at, len, zeros);
	return add(s, f, f->fd, at, len, ok);
}

void *pool_main(void *arg)
{
	struct staging *s = arg;
	struct sched_param sp = {0};
	char *zeros = calloc(1, HUGE_BYTES);
	bool due = true;

	pthread_setname_np(pthread_self(), "cairn-pool");
	/* this thread only: a trainer must never wait for it */
	if (sched_setscheduler((pid_t)syscall(SYS_gettid), SCHED_IDLE, &sp))
		setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
	while (zeros) {
		bool grew = grow(s, zeros);
		pthread_mutex_lock(&s->lock);
		bool stop = s->stop;
		due |= grew;
		if (!stop && !grew) {
			if (due)
				sleeper_wake(&s->watch); /* it makes files ready */
			due = false;
			staging_wait_until(&s->pool.cond, &s->lock, monotonic_ns() + 200000000u);
		}
		stop = s->stop;
		pthread_mutex_unlock(&s->lock);
		if (stop)
			break;
	}
	free(zeros);
	return NULL;
}

/* ---- life ---- */

void pool_init(struct pool *p)
{
	lock_init(&p->lock, RANK_POOL);
	for (unsigned i = 0; i < POOL_FILES; i++)
		p->file[i].fd = -1;
}

/* What a worker before us made ready. No thread runs yet. */
static void recover_ready(struct staging *s, struct pool_file *f)
{
	struct stat st;
	int fd = ready_open(s, f, O_RDONLY);
	if (fd < 0)
		return;
	uint64_t bytes = fstat(fd, &st) || st.st_size ? 0 : (uint64_t)st.st_blocks * 512;
	close(fd);
	if (!bytes || bytes % HUGE_BYTES) {
		ready_unlink(s, f);
		return;
	}
	f->want = f->bytes = bytes;
	s->pool.bytes += bytes;
}

int pool_open(struct staging *s)
{
	struct pool *p = &s->pool;
	struct pool_file *stock = &p->file[STOCK];
	struct stat st;

	if (!s->o.pool_bytes)
		return 0;
	stock->fd = openat(s->o.place.huge, STOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
			   0600);
	if (stock->fd < 0 || ftruncate(stock->fd, (off_t)s->o.pool_bytes))
		return -errno;
	/* after a restart it holds what it held: blocks tell */
	if (!fstat(stock->fd, &st))
		p->bytes = stock->bytes = (uint64_t)st.st_blocks * 512 / HUGE_BYTES * HUGE_BYTES;
	for (struct pool_file *f = p->file; f < stock; f++)
		recover_ready(s, f);
	return 0;
}

void pool_close(struct staging *s)
{
	for (struct pool_file *f = &s->pool.file[STOCK]; f < s->pool.file + POOL_FILES; f++)
		if (f->fd >= 0)
			close(f->fd);
}

void pool_clear(struct staging *s)
{
	pthread_mutex_lock(&s->pool.lock);
	s->pool.ended = true; /* its threads still run, and add nothing more */
	pthread_mutex_unlock(&s->pool.lock);
	while (take(s, UINT64_MAX, 0, true))
		;
	unlinkat(s->o.place.huge, STOCK_NAME, 0);
}

void pool_remove(const struct staging_place *p)
{
	char name[16];

	for (unsigned i = 0; i < POOL_FILES; i++) {
		snprintf(name, sizeof(name), READY_NAME, i);
		unlinkat(p->huge, name, 0);
	}
	unlinkat(p->huge, STOCK_NAME, 0);
}

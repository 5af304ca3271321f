/* SPDX-License-Identifier: MIT
 * Ballast: the free part of the budget, held as touched huge pages in a tmpfs file,
 * and in *scraps*, staged files that are gone and whose pages were kept. A file of
 * known size gets its pages from here before it is written: punched out of the
 * ballast and allocated behind the file's end at once, on this CPU, in steps that the
 * kernel's per-CPU list of free pages holds; so they are the same pages, warm, and
 * the writer allocates none. For sizes that come again blank.c does so beforehand. And the
 * watch, which counts what the kernel writes past the daemon. */
#include "staging/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STEP (16ull << 20)
#define SCRAPS_MAX 64u		/* a descriptor each */
#define AHEAD (128ull << 20)	/* kept free before a growing file, and less before a small one */
#define AHEAD_MIN (32ull << 20)
#define SMALL_YET (4ull << 20)
#define TICK_BUSY_NS 2000000u
#define TICK_IDLE_NS 50000000u
#define TICK_LEASE_NS 1000000u
#define SYNC_PATIENCE_NS 5000000000ull	/* an fsync behind a mapped file waits so long for it */

int ballast_open(struct staging *s)
{
	s->ballast_fd = -1;
	if (!s->o.ballast_bytes)
		return 0;
	s->ballast_fd = openat(s->o.place.huge, "ballast", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (s->ballast_fd < 0)
		return -errno;
	struct stat st;
	/* after a restart it holds what it held: blocks tell */
	if (!fstat(s->ballast_fd, &st))
		s->ballast_bytes = (uint64_t)st.st_blocks * 512 / HUGE_BYTES * HUGE_BYTES;
	if (ftruncate(s->ballast_fd, (off_t)s->o.ballast_bytes))
		return -errno;
	blank_recover(s);
	s->ballast_touched = s->ballast_bytes;
	return 0;
}

static void scrap_drop(struct staging *s)
{
	struct scrap *c = s->scraps;
	s->scraps = c->next;
	s->n_scraps--;
	close(c->fd);
	free(c);
}

void ballast_close(struct staging *s)
{
	while (s->scraps)
		scrap_drop(s);
	if (s->ballast_fd >= 0)
		close(s->ballast_fd);
	s->ballast_fd = -1;
}

bool ballast_punch(int fd, uint64_t off, uint64_t len)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len) == 0;
}

uint64_t ballast_take(struct staging *s, uint64_t want)
{
	struct scrap *c = s->scraps;
	uint64_t held = c ? c->bytes : s->ballast_bytes - s->apart_bytes;
	uint64_t n = want < held ? want : held;

	if (!n || !ballast_punch(c ? c->fd : s->ballast_fd, held - n, n))
		return 0;
	s->ballast_bytes -= n;
	if (c) {
		s->apart_bytes -= n;
		c->bytes -= n;
		if (!c->bytes)
			scrap_drop(s);
	}
	return n;
}

/* The same, and of blanks where there is nothing else. Ballast lock held. */
static uint64_t take_any(struct staging *s, uint64_t want)
{
	uint64_t n = ballast_take(s, want);
	return n ? n : blank_take(s, want);
}

void ballast_give(struct staging *s, uint64_t room)
{
	if (s->ballast_fd < 0)
		return;
	LOCK_SCOPE(&s->ballast_lock);
	room = room / HUGE_BYTES * HUGE_BYTES;
	while (s->ballast_bytes > room && take_any(s, s->ballast_bytes - room))
		;
}

void ballast_hand_over(struct staging *s, int fd, uint64_t size)
{
	size = whole_pages(size);
	for (uint64_t off = 0, n; s->ballast_fd >= 0 && off < size; off += n) {
		LOCK_SCOPE(&s->ballast_lock);
		n = take_any(s, size - off < HAND_STEP ? size - off : HAND_STEP);
		if (!n || fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)n))
			return;		/* the writer allocates for itself */
	}
}

/* Does anybody else have the file open or mapped? A write lease is granted only to the one
 * descriptor there is (fcntl(2), F_SETLEASE). */
static bool is_alone(int fd)
{
	if (fcntl(fd, F_SETLEASE, F_WRLCK))
		return false;
	fcntl(fd, F_SETLEASE, F_UNLCK);
	return true;
}

bool ballast_keep(struct staging *s, int dir, const char *name)
{
	struct stat st;
	LOCK_SCOPE(&s->ballast_lock);
	if (s->ballast_fd < 0 || s->n_scraps == SCRAPS_MAX)
		return false;
	int fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return false;
	uint64_t end = fstat(fd, &st) ? 0 : whole_pages((uint64_t)st.st_size);
	struct scrap *c = NULL;
	/* sparse ones, and those that would be too much, go the usual way */
	if (end && (uint64_t)st.st_blocks * 512 >= end && s->ballast_bytes + end <= s->o.ballast_bytes &&
	    is_alone(fd) && unlinkat(dir, name, 0) == 0)
		c = malloc(sizeof(*c));
	if (!c) {
		close(fd);
		return false;
	}
	*c = (struct scrap){.next = s->scraps, .fd = fd, .bytes = end};
	s->scraps = c;
	s->n_scraps++;
	s->apart_bytes += end;
	s->ballast_bytes += end;
	sleeper_wake(&s->watch);
	return true;
}

/* Touched memory at the ballast file's end, of nobody yet. Pages that were ours before need no
 * touching: fallocate takes them as they are. New ones are written once. No lock held. */
static bool fill_end(struct staging *s, uint64_t end, uint64_t len, bool touched, const char *zeros)
{
	if (touched)
		return fallocate(s->ballast_fd, 0, (off_t)end, (off_t)len) == 0;
	for (uint64_t o = 0; o < len; o += HUGE_BYTES)
		if (pwrite(s->ballast_fd, zeros, HUGE_BYTES, (off_t)(end + o)) != (ssize_t)HUGE_BYTES)
			return false;
	return true;
}

/* One step back up; false: nothing to do. Only this thread grows the file, and it is the last
 * to run: it must not be preempted with the lock held, for a create waits for that. */
static bool ballast_grow(struct staging *s, const char *zeros)
{
	pthread_mutex_lock(&s->lock);
	uint64_t used = s->used;
	bool writing = s->open_list != NULL;
	pthread_mutex_unlock(&s->lock);
	uint64_t may = s->o.budget_bytes > used ? s->o.budget_bytes - used : 0;
	if (may > s->o.ballast_bytes)
		may = s->o.ballast_bytes;
	if (writing && may < s->o.ballast_bytes)
		may = may > 2 * AHEAD ? may - 2 * AHEAD : 0;

	pthread_mutex_lock(&s->ballast_lock);
	uint64_t held = s->ballast_bytes, end = held - s->apart_bytes, touched = s->ballast_touched;
	pthread_mutex_unlock(&s->ballast_lock);
	if (held + HUGE_BYTES > may)
		return false;
	uint64_t len = may - held < STEP ? (may - held) / HUGE_BYTES * HUGE_BYTES : STEP;
	bool ok = fill_end(s, end, len, held + used + len <= touched, zeros);

	pthread_mutex_lock(&s->ballast_lock);
	ok = ok && s->ballast_bytes - s->apart_bytes == end;	/* else some was taken meanwhile */
	if (ok) {
		s->ballast_bytes += len;
		if (s->ballast_bytes + used > s->ballast_touched)
			s->ballast_touched = s->ballast_bytes + used;
	}
	pthread_mutex_unlock(&s->ballast_lock);
	if (!ok)
		ballast_punch(s->ballast_fd, end, len);
	return ok;
}

void *ballast_main(void *arg)
{
	struct staging *s = arg;
	struct sched_param sp = {0};
	char *zeros = calloc(1, HUGE_BYTES);
	bool due = true;

	pthread_setname_np(pthread_self(), "cairn-ballast");
	/* this thread only: a trainer must never wait for it */
	if (sched_setscheduler((pid_t)syscall(SYS_gettid), SCHED_IDLE, &sp))
		setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
	while (zeros) {
		bool grew = ballast_grow(s, zeros);
		pthread_mutex_lock(&s->lock);
		bool stop = s->stop;
		due |= grew;
		if (!stop && !grew) {
			if (due)
				sleeper_wake(&s->watch);	/* it makes the blanks */
			due = false;
			staging_wait_until(&s->ballast_cond, &s->lock, now_ns() + 200000000u);
		}
		stop = s->stop;
		pthread_mutex_unlock(&s->lock);
		if (stop)
			break;
	}
	free(zeros);
	return NULL;
}

/* ---- watch ---- */

static uint64_t ahead_of(uint64_t held)
{
	if (held < SMALL_YET)
		return held;
	return held < AHEAD_MIN ? AHEAD_MIN : held < AHEAD ? held : AHEAD;
}

uint64_t ballast_ahead(const struct staged *f)
{
	return ahead_of(f->blocks * 512);
}

/* Files that the kernel writes by itself: charge what they hold. s->lock held. */
static bool watch_growth(struct staging *s)
{
	bool grew = false;
	for (struct staged *f = s->open_list; f; f = f->open_next) {
		struct stat st;
		if (f->spilled || f->fd < 0 || fstat(f->fd, &st))
			continue;
		uint64_t held = (uint64_t)st.st_blocks * 512;
		if (held != f->blocks * 512)
			grew = true;
		/* who comes through the daemon asks for room himself: ahead of him is his to charge, or
		 * he would never be told that there is none */
		uint64_t ahead = f->backing ? ahead_of(held) : 0;
		if (held + (f->known ? 0 : ahead / 2) > f->charged && held > f->blocks * 512)
			sf_charge(s, f, held + ahead);
		f->blocks = (uint64_t)st.st_blocks;
	}
	if (s->used > s->o.budget_bytes)
		sf_evict(s, s->used - s->o.budget_bytes);
	outgrow_look(s);
	return grew;
}

/* Versions that wait for their last mapping to go. s->lock held. */
static void watch_leases(struct staging *s)
{
	size_t len = 0;
	s->st.waiting_mapped[0] = 0;
	for (struct pend *p = s->pend; p && s->n_wait; p = p->next) {
		if (p->state != PEND_WAIT)
			continue;
		/* a writer that joined may not have reached the kernel's open yet */
		bool final = p->sf->state != STAGED_OPEN && sf_final(p->sf);
		/* nor may an fsync behind it wait for a mapping that may never go */
		bool pressed = atomic_load(&s->n_sync_waiters) && p == s->pend && now_ns() - p->start_ns > SYNC_PATIENCE_NS;
		if (final || pressed || s->stop) {
			pend_finalize(s, p, !final);
		} else if (len + strlen(p->r.name) + 2 < sizeof(s->st.waiting_mapped)) {
			len += (size_t)snprintf(s->st.waiting_mapped + len, sizeof(s->st.waiting_mapped) - len,
						"%s\n", p->r.name);
		}
	}
}

void pend_finalize(struct staging *s, struct pend *p, bool early)
{
	struct staged *f = p->sf;
	struct stat st;
	if (f->fd >= 0 && !fstat(f->fd, &st))
	{
		f->size = p->r.size = (uint64_t)st.st_size;
		f->atime = p->r.atime = st.st_atim;
		f->mtime = p->r.mtime = st.st_mtim;
		f->ctime = st.st_ctim;
	}
	if (!early) {
		struct rec r = {.type = REC_FINAL, .node2 = p->r.seq, .sf = f->id};
		log_append(s, &r);	/* else a restart seals it once more: work, and nothing is lost */
	}
	s->n_wait--;
	p->snapshot = early;
	if (early && !f->late) {
		f->late = true;
		s->n_late++;
	}
	persist_queue(s, p);
}

void staged_finalize(struct staged *f)
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	for (struct pend *p = f->n_seals ? s->pend : NULL; p; p = p->next)
		if (p->sf == f && p->state == PEND_WAIT)
			pend_finalize(s, p, true);
}

/* Files published early: is their mapping gone? s->lock held. */
static void watch_late(struct staging *s)
{
	for (unsigned b = 0; b < SF_BUCKETS; b++)
		for (struct staged *f = s->sfs[b]; f; f = f->hash_next) {
			if (!f->late || f->n_seals || f->state != STAGED_DURABLE || s->n_late_ready == 64 || !sf_final(f))
				continue;
			f->late = false;
			s->n_late--;
			s->late_ready[s->n_late_ready++] = f->node;
		}
}

uint64_t staging_next_late(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	return s->n_late_ready ? s->late_ready[--s->n_late_ready] : 0;
}

void *watch_main(void *arg)
{
	struct staging *s = arg;
	unsigned quiet = 0;

	pthread_setname_np(pthread_self(), "cairn-watch");
	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		bool growing = s->open_list != NULL;
		if (growing)
			quiet = watch_growth(s) ? 0 : quiet + 1;
		if (s->n_wait)
			watch_leases(s);
		if (s->n_late)
			watch_late(s);
		if (!growing && !s->n_wait && !s->n_late) {
			pthread_mutex_unlock(&s->lock);
			bool made = blank_step(s);
			pthread_mutex_lock(&s->lock);
			if (!made && !s->stop && !s->open_list && !s->n_wait && !s->n_late)
				sleeper_wait(s, &s->watch, 0);
			quiet = 0;
			continue;
		}
		uint64_t used = s->used, tick = quiet < 100 ? TICK_BUSY_NS : TICK_IDLE_NS;
		if (s->n_wait)
			tick = TICK_LEASE_NS * (quiet < 1000 ? 1 : 20);
		pthread_mutex_unlock(&s->lock);
		if (growing)
			ballast_give(s, s->o.budget_bytes > used ? s->o.budget_bytes - used : 0);
		pthread_mutex_lock(&s->lock);
		if (!s->stop)
			sleeper_wait(s, &s->watch, now_ns() + tick);
		if (s->n_wait)
			quiet++;
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

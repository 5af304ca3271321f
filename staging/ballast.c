/* SPDX-License-Identifier: MIT
 * Ballast: the free part of the budget, held as touched huge pages in one tmpfs
 * file, so that the kernel has exactly those pages to hand to the next writer.
 * And the watch, which counts what the kernel writes past the daemon. */
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
#define HUGE_PAGE (2ull << 20)
#define AHEAD (128ull << 20)	/* kept free before a growing file */
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
		s->ballast_bytes = s->ballast_touched = (uint64_t)st.st_blocks * 512 / HUGE_PAGE * HUGE_PAGE;
	if (ftruncate(s->ballast_fd, (off_t)s->o.ballast_bytes))
		return -errno;
	return 0;
}

void ballast_close(struct staging *s)
{
	if (s->ballast_fd >= 0)
		close(s->ballast_fd);
	s->ballast_fd = -1;
}

void ballast_give(struct staging *s, uint64_t room)
{
	if (s->ballast_fd < 0)
		return;
	LOCK_SCOPE(&s->ballast_lock);
	room = room / HUGE_PAGE * HUGE_PAGE;
	if (s->ballast_bytes <= room)
		return;
	if (fallocate(s->ballast_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)room,
		      (off_t)(s->ballast_bytes - room)) == 0)
		s->ballast_bytes = room;
}

/* One step back up. Pages that were ours before need no touching: fallocate takes
 * them as they are. New ones are written once. Returns false when there is nothing to do. */
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
	LOCK_SCOPE(&s->ballast_lock);
	if (s->ballast_bytes + HUGE_PAGE > may)
		return false;
	uint64_t len = may - s->ballast_bytes < STEP ? (may - s->ballast_bytes) / HUGE_PAGE * HUGE_PAGE : STEP;
	bool touched = s->ballast_bytes + used + len <= s->ballast_touched;
	if (touched) {
		if (fallocate(s->ballast_fd, 0, (off_t)s->ballast_bytes, (off_t)len))
			return false;
	} else {
		for (uint64_t o = 0; o < len; o += HUGE_PAGE)
			if (pwrite(s->ballast_fd, zeros, HUGE_PAGE, (off_t)(s->ballast_bytes + o)) != (ssize_t)HUGE_PAGE)
				return false;
	}
	s->ballast_bytes += len;
	if (s->ballast_bytes + used > s->ballast_touched)
		s->ballast_touched = s->ballast_bytes + used;
	return true;
}

void *ballast_main(void *arg)
{
	struct staging *s = arg;
	struct sched_param sp = {0};
	char *zeros = calloc(1, HUGE_PAGE);

	/* this thread only: a trainer must never wait for it */
	if (sched_setscheduler((pid_t)syscall(SYS_gettid), SCHED_IDLE, &sp))
		setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
	while (zeros) {
		bool grew = ballast_grow(s, zeros);
		pthread_mutex_lock(&s->lock);
		bool stop = s->stop;
		if (!stop && !grew)
			staging_wait_until(&s->ballast_cond, &s->lock, now_ns() + 200000000u);
		stop = s->stop;
		pthread_mutex_unlock(&s->lock);
		if (stop)
			break;
	}
	free(zeros);
	return NULL;
}

/* ---- watch ---- */

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
		if (held + (f->known ? 0 : AHEAD / 2) > f->charged && held > f->blocks * 512)
			sf_charge(s, f, held + AHEAD);
		f->blocks = (uint64_t)st.st_blocks;
	}
	if (s->used > s->o.budget_bytes)
		sf_evict(s, s->used - s->o.budget_bytes);
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

/* SPDX-License-Identifier: MIT
 * Ballast: the free part of the budget, held as touched huge pages in a tmpfs file,
 * and in *scraps*, staged files that are gone and whose pages were kept. A file of
 * known size gets its pages from here before it is written: punched out of the
 * ballast and allocated behind the file's end at once, on this CPU, in steps that the
 * kernel's per-CPU list of free pages holds; so they are the same pages, warm, and
 * the writer allocates none. For sizes that come again blank.c does so beforehand. */
#include "staging/memory/memory.h"

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
#define AHEAD (128ull << 20)	/* kept free before a growing file, and less before a small one */
#define AHEAD_MIN (32ull << 20)
#define SMALL_YET (4ull << 20)

int ballast_open(struct staging *s)
{
	s->ballast.fd = -1;
	if (!s->o.ballast_bytes)
		return 0;
	s->ballast.fd = openat(s->o.place.huge, "ballast", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (s->ballast.fd < 0)
		return -errno;
	struct stat st;
	/* after a restart it holds what it held: blocks tell */
	if (!fstat(s->ballast.fd, &st))
		s->ballast.bytes = (uint64_t)st.st_blocks * 512 / HUGE_BYTES * HUGE_BYTES;
	if (ftruncate(s->ballast.fd, (off_t)s->o.ballast_bytes))
		return -errno;
	blank_recover(s);
	s->ballast.touched = s->ballast.bytes;
	return 0;
}

void ballast_close(struct staging *s)
{
	while (s->ballast.scraps)
		scrap_drop(s);
	if (s->ballast.fd >= 0)
		close(s->ballast.fd);
	s->ballast.fd = -1;
}

/* Of blanks where there is nothing else. Ballast lock held. */
static uint64_t take_any(struct staging *s, uint64_t want)
{
	uint64_t n = ballast_take(s, want);
	return n ? n : blank_take(s, want);
}

uint64_t ballast_ahead(uint64_t held)
{
	if (held < SMALL_YET)
		return held;
	return held < AHEAD_MIN ? AHEAD_MIN : held < AHEAD ? held : AHEAD;
}

void ballast_give(struct staging *s, uint64_t room)
{
	if (s->ballast.fd < 0)
		return;
	LOCK_SCOPE(&s->ballast.lock);
	room = room / HUGE_BYTES * HUGE_BYTES;
	while (s->ballast.bytes > room && take_any(s, s->ballast.bytes - room))
		;
}

void ballast_free(struct staging *s, uint64_t bytes)
{
	LOCK_SCOPE(&s->ballast.lock);
	for (uint64_t n = 1; s->ballast.fd >= 0 && bytes && n; bytes -= n)
		n = take_any(s, bytes);
}

void ballast_hand_over(struct staging *s, int fd, uint64_t size)
{
	size = whole_pages(size);
	for (uint64_t off = 0, n; s->ballast.fd >= 0 && off < size; off += n) {
		LOCK_SCOPE(&s->ballast.lock);
		n = take_any(s, size - off < HAND_STEP ? size - off : HAND_STEP);
		if (!n || fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)n))
			return;		/* the writer allocates for itself */
	}
}

/* Touched memory at the ballast file's end, of nobody yet. Pages that were ours before need no
 * touching: fallocate takes them as they are. New ones are written once. No lock held. */
static bool fill_end(struct staging *s, uint64_t end, uint64_t len, bool touched, const char *zeros)
{
	if (touched)
		return fallocate(s->ballast.fd, 0, (off_t)end, (off_t)len) == 0;
	for (uint64_t o = 0; o < len; o += HUGE_BYTES)
		if (pwrite(s->ballast.fd, zeros, HUGE_BYTES, (off_t)(end + o)) != (ssize_t)HUGE_BYTES)
			return false;
	return true;
}

/* One step back up; false: nothing to do. Only this thread grows the file, and it is the last
 * to run: it must not be preempted with the lock held, for a create waits for that. */
static bool ballast_grow(struct staging *s, const char *zeros)
{
	pthread_mutex_lock(&s->lock);
	uint64_t used = s->files.used;
	bool writing = s->files.open != NULL;
	pthread_mutex_unlock(&s->lock);
	uint64_t may = s->o.budget_bytes > used ? s->o.budget_bytes - used : 0;
	if (may > s->o.ballast_bytes)
		may = s->o.ballast_bytes;
	if (writing && may < s->o.ballast_bytes)
		may = may > 2 * AHEAD ? may - 2 * AHEAD : 0;

	pthread_mutex_lock(&s->ballast.lock);
	uint64_t held = s->ballast.bytes, end = held - s->ballast.apart_bytes, touched = s->ballast.touched;
	pthread_mutex_unlock(&s->ballast.lock);
	if (held + HUGE_BYTES > may)
		return false;
	uint64_t len = may - held < STEP ? (may - held) / HUGE_BYTES * HUGE_BYTES : STEP;
	bool ok = fill_end(s, end, len, held + used + len <= touched, zeros);

	pthread_mutex_lock(&s->ballast.lock);
	ok = ok && s->ballast.bytes - s->ballast.apart_bytes == end;	/* else some was taken meanwhile */
	if (ok) {
		s->ballast.bytes += len;
		if (s->ballast.bytes + used > s->ballast.touched)
			s->ballast.touched = s->ballast.bytes + used;
	}
	pthread_mutex_unlock(&s->ballast.lock);
	if (!ok)
		ballast_punch(s->ballast.fd, end, len);
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
			staging_wait_until(&s->ballast.cond, &s->lock, now_ns() + 200000000u);
		}
		stop = s->stop;
		pthread_mutex_unlock(&s->lock);
		if (stop)
			break;
	}
	free(zeros);
	return NULL;
}

/* SPDX-License-Identifier: MIT
 * Memory ahead of a passthrough file that grows beyond its expected size, or is of unknown size: a
 * thread allocates it behind the file's end before the writer gets there. So it comes out of the
 * page pool, and it is charged to this process's memory cgroup, not to
 * the writer's. What the file does not need is given back at its close (seal.c:trim_tail).
 *
 * write(2) holds the inode's lock from beginning to end, and so does fallocate(2): nothing can be
 * allocated during a write. So a window is kept ready that grows with the file.
 *
 *   0 ......... size ........... ahead
 *   written     |  allocated     |  not
 *               |<-- window, refilled when half of it is used -->|
 */
#include "staging/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BEGINS (1ull << 20) /* smaller files are not worth it */
#define WINDOW_MIN (64ull << 20)
#define WINDOW_MAX (1ull << 30)
#define LOOKED_AT 256u /* files, the latest opened: each costs an fstat */
/* bytes per ns that a window is checked for: twice a fast writer's */
#define SPEED 20u
#define TICK_MIN_NS 1000000u
#define TICK_IDLE_NS 10000000u
#define TICK_QUIET_NS 50000000u
#define YOUNG_NS 20000000u /* since the last open, or growth */
#define QUIET_NS 1000000000u

struct target {
	struct staged *f; /* a reference; its `allocating` is set */
	uint64_t from, end;
};

/* As much again as the file holds, but only a small part of the budget. */
static uint64_t window_of(const struct staging *s, uint64_t taken)
{
	uint64_t most = s->o.budget_bytes / 8 < WINDOW_MAX ? s->o.budget_bytes / 8 : WINDOW_MAX;
	uint64_t window = taken < WINDOW_MIN ? WINDOW_MIN : taken;
	return whole_pages(window < most ? window : most);
}

/* Takes up to `more` bytes from the budget; returns how many. s->lock held. */
static uint64_t take_space(struct staging *s, uint64_t more)
{
	if (s->files.used + more > s->o.budget_bytes)
		sf_evict(s, s->files.used + more - s->o.budget_bytes);
	uint64_t space = s->files.used < s->o.budget_bytes ? s->o.budget_bytes - s->files.used : 0;
	/* other files grow, too */
	return more <= space ? more : space / 2 / HUGE_BYTES * HUGE_BYTES;
}

/* Does f need memory now? Sets how soon it may need some. s->lock held. */
static bool wants(struct staging *s, struct staged *f, struct target *t, uint64_t *tick)
{
	bool never =
		!f->backing || f->spilled || f->memory.loan || f->ahead.over || f->ahead.paused;
	struct stat st;

	/* the size of a presized file does not show how much is written */
	if (never || f->memory.presized || f->moved.more || f->ahead.allocating || f->fd < 0 ||
	    fstat(f->fd, &st))
		return false;
	uint64_t size = (uint64_t)st.st_size, taken = (uint64_t)st.st_blocks * 512;
	if (size == f->ahead.size)
		return false; /* it does not grow */
	f->ahead.size = size;
	s->ahead_busy_ns = monotonic_ns();
	*tick = TICK_MIN_NS;
	if (size < BEGINS || (f->memory.known && size <= f->memory.expected))
		return false;
	/* with holes: a writer that skips ahead once does so again, and the hole would keep its
	 * memory */
	if (taken + f->moved.under < size)
		return false;
	/* the writer was faster */
	uint64_t from = f->ahead.end > size ? f->ahead.end : size / HUGE_BYTES * HUGE_BYTES;
	uint64_t left = from > size ? from - size : 0,
		 window = window_of(s, taken < size ? taken : size);
	if (left >= window / 2) {
		uint64_t soon = left / 2 / SPEED;
		*tick = soon > TICK_MIN_NS ? soon : TICK_MIN_NS;
		return false;
	}
	uint64_t end = (size + window) / HUGE_BYTES * HUGE_BYTES;
	uint64_t more = end > from ? take_space(s, end - from) : 0;
	*t = (struct target){.f = f, .from = from, .end = from + more};
	return more;
}

static bool pick(struct staging *s, struct target *t, uint64_t *tick)
{
	unsigned n = 0;
	uint64_t quiet = monotonic_ns() - s->ahead_busy_ns;

	*tick = quiet < YOUNG_NS ? TICK_MIN_NS : quiet < QUIET_NS ? TICK_IDLE_NS : TICK_QUIET_NS;
	for (struct staged *f = s->files.open; f && n < LOOKED_AT; f = f->lists.open_next, n++) {
		uint64_t soon = TICK_QUIET_NS;
		if (wants(s, f, t, &soon)) {
			f->refs++;
			f->ahead.allocating = true;
			return true;
		}
		*tick = soon < *tick ? soon : *tick;
	}
	return false;
}

/* No lock held: it waits for the file's own, which its writer may hold for long. */
static uint64_t allocate(struct staging *s, const struct target *t)
{
	uint64_t at = t->from;
	int fd = sf_open_bytes(t->f, O_RDWR);

	while (fd >= 0 && at < t->end && !t->f->ahead.over && !t->f->ahead.paused) {
		uint64_t step = t->end - at < POOL_STEP ? t->end - at : POOL_STEP;
		pool_free(s, step);
		if (fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)step))
			break;
		at += step;
	}
	if (fd >= 0)
		close(fd);
	return at;
}

/* s->lock held */
static void allocated(struct staging *s, struct staged *f, uint64_t upto)
{
	struct stat st;

	f->ahead.allocating = false;
	if (upto > f->ahead.end)
		f->ahead.end = upto;
	if (f->state == STAGED_OPEN && !f->spilled && !sf_ensure_fd(f)) {
		if (!fstat(f->fd, &st)) {
			f->last.blocks = (uint64_t)st.st_blocks;
			sf_charge(s, f, f->last.blocks * 512);
		}
	}
	pthread_cond_broadcast(&s->done_cond);
	sf_put_locked(s, f);
}

int ahead_stop(struct staged *f)
{
	f->ahead.over = true;
	return f->ahead.allocating ? -EBUSY : 0;
}

int staged_end_ahead(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return ahead_stop(f);
}

int ahead_pause(struct staged *f)
{
	f->ahead.paused = f->ahead.allocating;
	return f->ahead.allocating ? -EBUSY : 0;
}

void ahead_await(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	while ((f->ahead.over || f->ahead.paused) && f->ahead.allocating)
		pthread_cond_wait(&f->s->done_cond, &f->s->lock);
}

void ahead_look(struct staging *s)
{
	s->ahead_busy_ns = monotonic_ns();
	sleeper_nudge(&s->ahead, false);
	sleeper_nudge(&s->early, false);
}

/* s->lock held */
static int set_times(struct staged *f, const struct timespec ts[2])
{
	struct stat st;
	int err = sf_ensure_fd(f);
	if (err)
		return err;
	if (futimens(f->fd, ts))
		return -errno;
	if (f->state != STAGED_OPEN && !fstat(f->fd, &st)) {
		f->last.atime = st.st_atim;
		f->last.mtime = st.st_mtim;
		f->last.ctime = st.st_ctim;
	}
	return 0;
}

int staged_set_times(struct staged *f, const struct timespec ts[2])
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	/* fallocate(2) changes the file's times: it must not come after they are set */
	int err = ahead_stop(f);
	if (err)
		return err;
	if (f->state != STAGED_OPEN) {
		f->last.atime = ts[0].tv_nsec == UTIME_OMIT ? f->last.atime : ts[0];
		f->last.mtime = ts[1].tv_nsec == UTIME_OMIT ? f->last.mtime : ts[1];
	}
	if (f->state == STAGED_EVICTED)
		return -ENODATA;
	err = set_times(f, ts);
	sf_close_idle_fd(f);
	return err;
}

/* The thread runs little, and is useless if late. */
static void be_prompt(void)
{
	struct sched_param sp = {.sched_priority = 1};
	if (sched_setscheduler((pid_t)syscall(SYS_gettid), SCHED_RR | SCHED_RESET_ON_FORK, &sp))
		staging_nice(-10);
}

void *ahead_main(void *arg)
{
	struct staging *s = arg;
	struct target t;
	uint64_t tick;

	pthread_setname_np(pthread_self(), "cairn-ahead");
	be_prompt();
	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		if (!s->files.open) {
			sleeper_wait(s, &s->ahead, 0);
			continue;
		}
		while (!s->stop && pick(s, &t, &tick)) {
			pthread_mutex_unlock(&s->lock);
			uint64_t upto = allocate(s, &t);
			pthread_mutex_lock(&s->lock);
			allocated(s, t.f, upto);
		}
		if (!s->stop)
			sleeper_wait(s, &s->ahead, monotonic_ns() + tick);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

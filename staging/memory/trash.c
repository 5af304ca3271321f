/* SPDX-License-Identifier: MIT
 * Files of the store's tmp/ to be removed, and removed ones that are still open. Freeing a file's
 * blocks takes tens of ms on a disk that discards at once, and longer for a large file; the callers
 * hold s->lock, which every request needs. So a separate thread does it. What was removed from the
 * store it does not free while a checkpoint is saved: a close allocates its file's blocks, reads
 * from the same disk which are free, and would wait for each discard that is under way
 * (docs/PERFORMANCE.md). Where space is not plentiful it is freed at once all the same. */
#include "staging/memory/memory.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_NS 50000000u
#define QUIET_NS 200000000u /* between two files of one save */
/* A file may be open for writing for ever, a log for example. */
#define PATIENCE_NS 10000000000u
/* More than is written meanwhile. The kernel writes spilled files, and takes what is free. */
#define AMPLE (32ull << 30)

static void remove_now(struct staging *s, struct trash_file t)
{
	if (t.id)
		io_tmp_remove(s->o.store, t.id);
	if (t.fd >= 0)
		close(t.fd);
}

void trash_put(struct staging *s, uint64_t id, int fd)
{
	struct trash_file t = {.id = id, .fd = fd};

	if (!id && fd < 0)
		return;
	if (s->trash.n == s->trash.cap) {
		size_t cap = s->trash.cap ? s->trash.cap * 2 : 64;
		struct trash_file *all = realloc(s->trash.file, cap * sizeof(*all));
		if (!all) {
			remove_now(s, t);
			return;
		}
		s->trash.file = all;
		s->trash.cap = cap;
	}
	s->trash.file[s->trash.n++] = t;
	s->trash.cleaning = true;
	pthread_cond_signal(&s->trash.cond);
}

void trash_removed(struct staging *s, int fd)
{
	s->trash.unsettled = true;
	if (fd < 0)
		return;
	if (s->trash.n_removed == TRASH_REMOVED_MAX) {
		trash_put(s, 0, fd);
		return;
	}
	if (!s->trash.n_removed)
		s->trash.since_ns = monotonic_ns();
	s->trash.removed[s->trash.n_removed++] = fd;
	s->trash.cleaning = true;
	pthread_cond_signal(&s->trash.cond);
}

bool trash_may_free(const struct staging *s)
{
	return s->trash.cleaning || s->trash.unsettled || s->drain.previous.bytes;
}

void staging_close_later(struct staging *s, int fd)
{
	LOCK_SCOPE(&s->lock);
	trash_put(s, 0, fd);
}

bool trash_wait(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	bool waited = false;
	if (s->started && !s->stop && s->drain.previous.bytes) {
		s->drain.previous.give = true;
		sleeper_wake(&s->pub);
	}
	s->trash.waiting++;
	while (s->started && !s->stop &&
	       (s->trash.cleaning || s->trash.unsettled || s->drain.previous.give)) {
		waited = true;
		pthread_cond_signal(&s->trash.cond);
		staging_wait_until(&s->done_cond, &s->lock, monotonic_ns() + 50000000u);
	}
	s->trash.waiting--;
	return waited;
}

/* Only for somebody who waits: it makes the store write. s->lock held, released meanwhile. */
static void settle(struct staging *s)
{
	s->trash.unsettled = false;
	s->trash.cleaning = true;
	pthread_mutex_unlock(&s->lock);
	io_wait_freed(s->o.store);
	pthread_mutex_lock(&s->lock);
}

/* s->lock held */
static bool may_wait(const struct staging *s)
{
	uint64_t now = monotonic_ns();
	bool saving = s->files.open || now < s->ahead_busy_ns + QUIET_NS;
	bool many = s->trash.n_removed >= s->order.fds_pend / 8;

	return saving && !many && !s->trash.waiting && !s->drain.halted &&
	       now < s->trash.since_ns + PATIENCE_NS;
}

/* No lock is held. */
static bool is_spared(struct staging *s, int fd)
{
	struct statvfs v;
	struct stat st;

	return !io_store_statvfs(s->o.store, &v) && v.f_bavail * v.f_frsize >= AMPLE &&
	       !fstat(fd, &st) &&
	       io_store_quota_left(s->o.store, st.st_uid, st.st_gid) == UINT64_MAX;
}

/* Frees one of the removed, or waits. s->lock held, dropped meanwhile */
static void free_removed(struct staging *s)
{
	int fd = s->trash.removed[s->trash.n_removed - 1];

	if (may_wait(s)) {
		s->trash.n_removed--; /* nobody else takes one */
		pthread_mutex_unlock(&s->lock);
		bool spared = is_spared(s, fd);
		pthread_mutex_lock(&s->lock);
		if (spared && s->trash.n_removed < TRASH_REMOVED_MAX) {
			s->trash.removed[s->trash.n_removed++] = fd;
			if (may_wait(s))
				staging_wait_until(&s->trash.cond, &s->lock,
						   monotonic_ns() + LOOK_NS);
			return;
		}
	} else {
		s->trash.n_removed--;
	}
	pthread_mutex_unlock(&s->lock);
	close(fd);
	pthread_mutex_lock(&s->lock);
	s->trash.unsettled = true;
}

void *trash_main(void *arg)
{
	struct staging *s = arg;

	pthread_setname_np(pthread_self(), "cairn-trash");
	staging_nice(PERSIST_NICE);
	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		if (s->trash.n) {
			struct trash_file t = s->trash.file[--s->trash.n];
			pthread_mutex_unlock(&s->lock);
			remove_now(s, t);
			pthread_mutex_lock(&s->lock);
			s->trash.unsettled = true;
		} else if (s->trash.n_removed) {
			free_removed(s);
		} else if (s->trash.unsettled && s->trash.waiting) {
			settle(s);
		} else {
			s->trash.cleaning = false;
			pthread_cond_broadcast(&s->done_cond);
			pthread_cond_wait(&s->trash.cond, &s->lock);
		}
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

void trash_close(struct staging *s)
{
	while (s->trash.n)
		remove_now(s, s->trash.file[--s->trash.n]);
	while (s->trash.n_removed)
		close(s->trash.removed[--s->trash.n_removed]);
	free(s->trash.file);
}

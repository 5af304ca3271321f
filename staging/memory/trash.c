/* SPDX-License-Identifier: MIT
 * Files of the store's tmp/ to be removed. Freeing a file's blocks takes tens of ms on a disk that
 * discards at once, and longer for a large file; the callers hold s->lock, which every request
 * needs. So a separate thread removes them. */
#include "staging/memory/memory.h"

#include <stdlib.h>
#include <unistd.h>

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

void trash_removed(struct staging *s)
{
	s->trash.unsettled = true;
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

void *trash_main(void *arg)
{
	struct staging *s = arg;

	pthread_setname_np(pthread_self(), "cairn-trash");
	staging_nice(PERSIST_NICE);
	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		if (!s->trash.n && s->trash.unsettled && s->trash.waiting) {
			settle(s);
			continue;
		}
		if (!s->trash.n) {
			s->trash.cleaning = false;
			pthread_cond_broadcast(&s->done_cond);
			pthread_cond_wait(&s->trash.cond, &s->lock);
			continue;
		}
		struct trash_file t = s->trash.file[--s->trash.n];
		pthread_mutex_unlock(&s->lock);
		remove_now(s, t);
		pthread_mutex_lock(&s->lock);
		s->trash.unsettled = true;
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

void trash_close(struct staging *s)
{
	while (s->trash.n)
		remove_now(s, s->trash.file[--s->trash.n]);
	free(s->trash.file);
}

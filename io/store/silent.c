/* SPDX-License-Identifier: MIT
 *
 * A store that does not answer: the server of a hard-mounted network filesystem stopped, and each
 * call waits without end. No thread that others need may find that out by itself, for it would not
 * come back. So one thread of its own asks the filesystem for its free space, which a client has no
 * cache for. Others wait a second for it, then get what it said last.
 */
#include <errno.h>
#include <stdlib.h>

#include "inside.h"
#include "io/clock.h"
#include "io/scope.h"
#include "io/thread.h"

struct io_asker {
	pthread_mutex_t lock; /* over all below */
	pthread_cond_t cond;
	bool wanted;
	uint64_t begun, done; /* calls, counted */
	int err; /* of the last one that returned */
	bool known;
	struct statvfs seen;
};

static int ask(struct io_store *s, struct statvfs *out)
{
	io_check(s);
	return fstatvfs(s->root_rd, out) ? io_error() : 0;
}

static void *asker_main(void *arg)
{
	struct io_store *s = arg;
	struct io_asker *a = s->asker;
	struct statvfs v;

	pthread_setname_np(pthread_self(), "cairn-space");
	pthread_mutex_lock(&a->lock);
	for (;;) {
		while (!a->wanted)
			pthread_cond_wait(&a->cond, &a->lock);
		a->wanted = false;
		a->begun++;
		atomic_store(&s->asked_ns, monotonic_ns());
		pthread_mutex_unlock(&a->lock);
		int err = ask(s, &v);
		pthread_mutex_lock(&a->lock);
		atomic_store(&s->asked_ns, 0);
		a->done = a->begun;
		a->err = err;
		if (!err) {
			a->known = true;
			a->seen = v;
		}
		pthread_cond_broadcast(&a->cond);
	}
	return NULL;
}

int io_store_ask_aside(struct io_store *s)
{
	struct io_asker *a = calloc(1, sizeof(*a));
	pthread_condattr_t clock;

	if (!a)
		return -ENOMEM;
	lock_init(&a->lock, RANK_STORE_ASKER);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&a->cond, &clock);
	pthread_condattr_destroy(&clock);
	a->known = !ask(s, &a->seen);
	s->asker = a;
	int err = thread_detached(asker_main, s);
	if (err) {
		s->asker = NULL;
		free(a);
	}
	return err;
}

static bool is_silent(uint64_t since, uint64_t now)
{
	return since && now > since && now - since >= IO_SILENT_NS;
}

uint64_t io_store_silent_since(const struct io_store *s)
{
	uint64_t since = s ? atomic_load(&s->asked_ns) : 0;

	return is_silent(since, monotonic_ns()) ? since : 0;
}

void io_store_look(struct io_store *s)
{
	if (!s->asker)
		return;
	LOCK_SCOPE(&s->asker->lock);
	if (!atomic_load(&s->asked_ns)) {
		s->asker->wanted = true;
		pthread_cond_broadcast(&s->asker->cond);
	}
}

/* Waits for the call numbered `call`, and while nothing was ever seen also longer. Lock held. */
static void await(struct io_store *s, uint64_t call)
{
	struct io_asker *a = s->asker;

	while (a->done < call) {
		uint64_t now = monotonic_ns(), since = atomic_load(&s->asked_ns), until;

		if (a->known && is_silent(since, now))
			return;
		until = (since ? since : now) + IO_SILENT_NS;
		if (until <= now)
			until = now + IO_SILENT_NS;
		struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
		pthread_cond_timedwait(&a->cond, &a->lock, &t);
	}
}

int io_store_statvfs(struct io_store *s, struct statvfs *out)
{
	struct io_asker *a = s->asker;

	if (!a)
		return ask(s, out);
	io_check(s);
	LOCK_SCOPE(&a->lock);
	uint64_t call = a->begun + 1; /* one that is in progress may have seen less */
	a->wanted = true;
	pthread_cond_broadcast(&a->cond);
	await(s, call);
	if (a->done >= call && a->err)
		return a->err;
	*out = a->seen;
	return 0;
}

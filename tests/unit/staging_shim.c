/* SPDX-License-Identifier: MIT */
#include "tests/unit/staging_shim.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "staging/internal.h"
#include "staging/memory/memory.h"

static const char *_Atomic closing_thread;
static atomic_uint closes_of_thread, closes_of_others;

void shim_watch_closes(const char *thread)
{
	atomic_store(&closes_of_thread, 0);
	atomic_store(&closes_of_others, 0);
	atomic_store(&closing_thread, thread);
}

unsigned shim_closes_of_others(void)
{
	return atomic_load(&closes_of_others);
}

unsigned shim_closes_of_thread(void)
{
	return atomic_load(&closes_of_thread);
}

bool shim_trash_wait(struct staging *s)
{
	return trash_wait(s);
}

int close(int fd)
{
	static int (*real)(int);
	const char *thread = atomic_load(&closing_thread);
	char name[16] = "";
	struct stat st;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "close");
	if (thread && !fstat(fd, &st) && S_ISREG(st.st_mode) && !st.st_nlink) {
		pthread_getname_np(pthread_self(), name, sizeof(name));
		atomic_fetch_add(strcmp(name, thread) ? &closes_of_others : &closes_of_thread, 1);
	}
	return real(fd);
}

pthread_mutex_t *shim_staging_lock(struct staging *s)
{
	return &s->lock;
}

struct shim_counts shim_staged_counts(const struct staged *f)
{
	return (struct shim_counts){.refs = f->refs, .users = f->users};
}

pthread_mutex_t *shim_pool_lock(struct staging *s)
{
	return &s->pool.lock;
}

struct shim_pool shim_pool(struct staging *s)
{
	struct shim_pool out = {.bytes = s->pool.bytes};

	pthread_mutex_lock(&s->pool.lock);
	for (unsigned i = 0; i < POOL_FILES; i++) {
		const struct pool_file *f = &s->pool.file[i];
		char name[16];
		struct stat st;
		snprintf(name, sizeof(name), "blank.%u", i);
		out.counted += f->bytes;
		out.claims += f->claims;
		if (!(f->fd >= 0 ? fstat(f->fd, &st) : !f->want ? -1 : fstatat(s->o.place.huge, name, &st, 0)))
			out.held += (uint64_t)st.st_blocks * 512;
	}
	pthread_mutex_unlock(&s->pool.lock);
	return out;
}

void shim_allocates_ahead(struct staged *f, bool now)
{
	LOCK_SCOPE(&f->s->lock);
	f->ahead.allocating = now;
	pthread_cond_broadcast(&f->s->done_cond);
}

uint64_t shim_ahead_size(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return f->ahead.size;
}

bool shim_move_pauses(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return f->moved.after_ns > monotonic_ns();
}

uint64_t shim_promised(struct staging *s)
{
	return atomic_load(&s->reserve.promised);
}

/* SPDX-License-Identifier: MIT
 * What a test wants of staging's inner header, which is no C++. */
#ifndef CAIRN_STAGING_SHIM_H
#define CAIRN_STAGING_SHIM_H

#include <pthread.h>

#include "staging/staging.h"

#ifdef __cplusplus
extern "C" {
#endif

pthread_mutex_t *shim_staging_lock(struct staging *s);

struct shim_counts {
	unsigned refs, users;
};

/* That lock is held. */
struct shim_counts shim_staged_counts(const struct staged *f);

/* As if a thread allocated memory ahead of f, or had done so. No lock is held. */
void shim_allocates_ahead(struct staged *f, bool now);

/* The size for which the last look found memory ahead of f. No lock is held. */
uint64_t shim_ahead_size(struct staged *f);

/* Whether no move of f is asked for, because the last one is not long ago. No lock is held. */
bool shim_move_pauses(struct staged *f);

/* From here on, of closed descriptors of files without a name: whose thread's name is not `thread`. */
void shim_watch_closes(const char *thread);
unsigned shim_closes_of_others(void), shim_closes_of_thread(void);

/* As somebody who needs space in the store. No lock is held. */
bool shim_trash_wait(struct staging *s);
/* bytes of the store that are promised to what was accepted */
uint64_t shim_promised(struct staging *s);

pthread_mutex_t *shim_pool_lock(struct staging *s);

struct shim_pool {
	uint64_t bytes, counted;	/* as a whole, and file by file */
	uint64_t held;			/* that the files really have */
	unsigned claims;
};
struct shim_pool shim_pool(struct staging *s);

#ifdef __cplusplus
}
#endif
#endif

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

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: MIT */
#include "tests/unit/staging_shim.h"

#include "staging/internal.h"

pthread_mutex_t *shim_staging_lock(struct staging *s)
{
	return &s->lock;
}

struct shim_counts shim_staged_counts(const struct staged *f)
{
	return (struct shim_counts){.refs = f->refs, .users = f->users};
}

/* SPDX-License-Identifier: MIT
 *
 * Resources that are released at the end of a scope.
 */
#ifndef CAIRN_IO_SCOPE_H
#define CAIRN_IO_SCOPE_H

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "io/locks.h"

static inline void scope_close(int *fd)
{
	if (*fd >= 0) {
		int saved = errno;

		close(*fd);
		errno = saved;
	}
}

static inline void scope_free(void *p)
{
	free(*(void **)p);
}

static inline void scope_unlock(pthread_mutex_t **m)
{
	pthread_mutex_unlock(*m);
}

static inline pthread_mutex_t *scope_lock(pthread_mutex_t *m)
{
	pthread_mutex_lock(m);
	return m;
}

/* Takes a descriptor out of the scope that would close it. */
static inline int scope_keep(int *fd)
{
	int out = *fd;

	*fd = -1;
	return out;
}

#define CLEANUP_CLOSE __attribute__((cleanup(scope_close)))
#define CLEANUP_FREE __attribute__((cleanup(scope_free)))
#define LOCK_SCOPE(m)                                                                              \
	pthread_mutex_t *locked_ __attribute__((cleanup(scope_unlock), unused)) = scope_lock(m)

#endif

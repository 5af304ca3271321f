/* SPDX-License-Identifier: MIT
 * The ranks of all locks: a thread takes only locks of a higher rank than those that it holds
 * (ARCHITECTURE, Locks). The test programs and build/tests/cairnfs check each lock that is taken
 * (tests/lib/locks.c); a program that is installed does not. tests/structure checks that no lock
 * lacks a rank. Only headers of libc are needed: libcairn includes this file, too.
 */
#ifndef CAIRN_IO_LOCKS_H
#define CAIRN_IO_LOCKS_H

#include <pthread.h>

/* May be held where its thread waits: on a condition with another lock, for the store. */
#define RANK_LONG 1u
/* A thread that holds the lock above it in this list may take several of them, in any order. */
#define RANK_ALL 2u

/* X(rank, lock, file that declares it, flags), the first to be taken first. */
#define LOCK_RANKS(X)                                                                              \
	X(RANK_SHARD, "cairn_shard.lock", "tools/libcairn/priv.h", RANK_LONG)                      \
	X(RANK_STAGE_OPENING, "opening_lock", "tools/libcairn/stage.c", RANK_LONG)                 \
	X(RANK_STAGES, "stages_lock", "tools/libcairn/stage.c", 0)                                 \
	X(RANK_STAGE, "cairn_stage.lock", "tools/libcairn/priv.h", RANK_ALL)                       \
	X(RANK_STAGE_LOAD, "cairn_stage.load_lock", "tools/libcairn/priv.h", 0)                    \
	X(RANK_LOAD_JOB, "job.lock", "tools/libcairn/load.c", 0)                                   \
	X(RANK_GPU, "gpu.lock", "tools/libcairn/priv.h", 0)                                        \
	X(RANK_COPY, "copy.lock", "tools/cairn/copy.c", RANK_LONG)                                 \
	X(RANK_FETCH, "fetch.lock", "tools/cairn/tier/tier_fetch.c", RANK_LONG)                    \
	X(RANK_RANGES, "ranges_lock", "tools/cairn/tier/tier_ranges.c", 0)                         \
	X(RANK_VIEWS_LOAD, "load_lock", "fs/views/views_ckpt.c", RANK_LONG)                        \
	X(RANK_VIEWS_CKPT, "vckpt.lock", "fs/views/inside.h", RANK_LONG)                           \
	X(RANK_READING, "reading.lock", "fs/base/state.h", RANK_LONG)                              \
	X(RANK_TREE, "tree.lock", "fs/tree/state.h", 0)                                            \
	X(RANK_FORKS, "forks.lock", "fs/tree/state.h", 0)                                          \
	X(RANK_LATEST, "latest.lock", "fs/latest/latest.c", 0)                                     \
	X(RANK_REMOTE, "ask.lock", "fs/remote/ask.c", 0)                                           \
	X(RANK_REMOTE_OPENED, "opened_lock", "fs/remote/remote.c", 0)                              \
	X(RANK_LISTINGS, "listings_lock", "fs/ops/readdir.c", 0)                                   \
	X(RANK_PAYER, "seen_lock", "fs/ops/payer.c", 0)                                            \
	X(RANK_CONTROL, "texts_lock", "fs/control/control.c", 0)                                   \
	X(RANK_VIEWS_JOBS, "jobs_lock", "fs/views/views_jobs.c", 0)                                \
	X(RANK_VIEWS_LAYOUTS, "layouts_lock", "fs/views/views_layout.c", 0)                        \
	X(RANK_VIEWS_HANDLES, "handles_lock", "fs/views/views.c", 0)                               \
	X(RANK_VIEWS_NODES, "nodes_lock", "fs/views/views_node.c", 0)                              \
	X(RANK_VIEWS_CACHE, "cache_lock", "fs/views/views_ckpt.c", 0)                              \
	X(RANK_NURSERY, "nursery_lock", "fs/parser/parser.c", RANK_LONG)                           \
	X(RANK_PARSERS, "idle_lock", "fs/parser/parser.c", 0)                                      \
	X(RANK_TICKETS, "tickets.lock", "fs/base/state.h", 0)                                      \
	X(RANK_SLOTS, "slots.lock", "fs/base/state.h", 0)                                          \
	X(RANK_SWEEP_KEPT, "sweep.kept_lock", "staging/internal.h", RANK_LONG)                     \
	X(RANK_STAGED_IO, "staged_io.lock", "staging/internal.h", RANK_LONG)                       \
	X(RANK_STAGED_CUT, "staged_io.cut", "staging/internal.h", RANK_LONG)                       \
	X(RANK_RESERVE, "reserve.lock", "staging/internal.h", RANK_LONG)                           \
	X(RANK_RESERVE_TAKE, "reserve.take_lock", "staging/internal.h", RANK_LONG)                 \
	X(RANK_STAGING, "staging.lock", "staging/internal.h", 0)                                   \
	X(RANK_POOL, "pool.lock", "staging/internal.h", 0)                                         \
	X(RANK_DIRS, "dirs.lock", "staging/log/dirs.c", 0)                                         \
	X(RANK_ASIDE, "aside.lock", "staging/internal.h", 0)                                       \
	X(RANK_WAITS, "waits.lock", "fs/tree/state.h", 0)                                          \
	X(RANK_LEND, "io_lending.lock", "io/store/inside.h", 0)                                    \
	X(RANK_SIDECAR, "io_store.meta_lock", "io/store/inside.h", RANK_LONG)                      \
	X(RANK_STORE_ASKER, "io_asker.lock", "io/store/silent.c", 0)                               \
	X(RANK_POSIX_QUEUE, "posix_queue.lock", "io/engine/posix.c", 0)                            \
	X(RANK_FAULT_LOST, "fault_lost.lock", "io/engine/lost.h", RANK_LONG)                       \
	X(RANK_HOSTS, "hosts.lock", "fs/base/state.h", 0)                                          \
	X(RANK_NOTICES, "notices.lock", "fs/base/state.h", 0)                                      \
	X(RANK_LOG, "log_output.lock", "fs/base/log.c", RANK_LONG)

#define RANK_ENUM(rank, lock, file, flags) rank,
enum lock_rank { RANK_NONE, LOCK_RANKS(RANK_ENUM) N_RANKS };

/* A lock keeps its rank in a field that glibc does not use in locks of the default kind. */
#define RANKED_MUTEX(rank)                                                                         \
	{                                                                                          \
		.__data = {.__spins = (rank) }                                                     \
	}

/* Instead of pthread_mutex_init() and pthread_rwlock_init(). */
static inline void lock_init(pthread_mutex_t *m, enum lock_rank rank)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	fresh.__data.__spins = (short)rank;
	*m = fresh;
}

static inline void lock_init_rw(pthread_rwlock_t *l, enum lock_rank rank)
{
	pthread_rwlock_t fresh = PTHREAD_RWLOCK_INITIALIZER;

	fresh.__data.__pad3 = (unsigned)rank;
	*l = fresh;
}

#endif

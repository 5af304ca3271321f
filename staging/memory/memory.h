/* SPDX-License-Identifier: MIT
 * The lowest module: waiting threads, memory held for files, space in the store. */
#ifndef CAIRN_STAGING_MEMORY_H
#define CAIRN_STAGING_MEMORY_H

#include "staging/internal.h"

/* threads.c */
void staging_wait_until(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns);
/* For this thread only. Persisting gives way to writers; while all cores are busy nothing waits for
 * it, and with an idle core it is as fast as without. */
void staging_nice(int nice);
#define PERSIST_NICE 5
/* Sleeps until woken or until deadline_ns (0 = none), or for a tick if there was work recently. */
void sleeper_wait(struct staging *s, struct sleeper *l, uint64_t deadline_ns);
void sleeper_wake(struct sleeper *l); /* all, now */
/* one; without `now`: unless one polls soon anyway */
void sleeper_nudge(struct sleeper *l, bool now);
/* a caller's wait, for the statistics. s->lock held */
uint64_t sf_wait_begins(struct staging *s);
uint64_t sf_wait_ends(struct staging *s, uint64_t since); /* how long, ns */
/* f's writer waited since then: counted from a millisecond on. No lock held. */
void sf_waited(struct staged *f, uint64_t since);
static inline void persist_wake(struct staging *s)
{
	sleeper_wake(&s->work);
	sleeper_wake(&s->small_work);
}

/* pool.c: the page pool. No lock is held, unless said otherwise. */
/* Pages that are moved at once. The kernel's list of a CPU held 100 MiB on some machines and 8 on
 * another (docs/PERFORMANCE.md, Pages that stay warm). */
#define POOL_STEP (4ull << 20)
void pool_init(struct pool *p);
/* finds again what a worker before held; no thread runs yet */
int pool_open(struct staging *s);
void pool_close(struct staging *s);
void pool_clear(struct staging *s); /* gives all of it up, for good */
void pool_remove(const struct staging_place *p); /* the same of a worker that has ended */
void *pool_main(void *arg); /* grows the stock */
/* makes a file ready: some 0.2 ms of work; false: nothing is due */
bool pool_step(struct staging *s);
/* A request: one for `size` bytes becomes dir/name, empty, with its pages. false: none is ready. */
bool pool_use(struct staging *s, uint64_t size, int dir, const char *name);
/* Puts pages behind the end of fd, a new file that will hold size bytes. */
void pool_hand_over(struct staging *s, int fd, uint64_t size);
/* gives up to so much to whoever allocates next */
void pool_free(struct staging *s, uint64_t bytes);
/* gives up what the budget has no space for beside `used` */
void pool_fit(struct staging *s, uint64_t used);
/* Unlinks a staged file and keeps its pages; false: not done (not wanted, or somebody maps it).
 * s->lock held. */
bool pool_keep(struct staging *s, int dir, const char *name);
/* what a file that grows is given before it asks; any lock */
uint64_t pool_ahead(uint64_t taken);

/* budget.c */
/* Bytes of memory that the machine has available without swapping: proc(5), MemAvailable;
 * UINT64_MAX: it does not say. Any lock. */
uint64_t machine_memory(const struct staging *s, uint64_t *total);
uint64_t staging_space_left(struct staging *s); /* of tmpfs and memory; s->lock held */
/* of a tmpfs that others fill, too, and of the pool in it; of ours UINT64_MAX; s->lock held */
uint64_t staging_tmpfs_left(struct staging *s);

/* reserve.c: blocks of the store for small files and names that have none allocated */
/* Before the log is read: can the store allocate blocks? What was accepted is counted by that. */
void reserve_probe(struct staging *s);
void reserve_open(struct staging *s); /* when the log is read */
void reserve_close(struct staging *s, bool remove);
#define RESERVE_GIVES 32u /* for one change: more steps than it has */
/* by a step; its blocks are free after a sync. False: nothing left */
bool reserve_shrink(struct staging *s);
void reserve_take(struct staging *s);
/* Holds space for a small file until reserve_kept: *mine bytes of it. False: there is none,
 * allocate. Not for two threads with one `mine`. */
bool reserve_promise(struct staging *s, uint64_t *mine, uint64_t size);
/* The store does not answer: nothing is allocated now. The same out of half the space that it said
 * it had. False: it answers, or there is not so much. */
bool reserve_promise_silent(struct staging *s, uint64_t *mine, uint64_t size);
/* promised before a restart */
void reserve_again(struct staging *s, uint64_t *mine, uint64_t size);
/* a new directory, symlink, ... was accepted */
void reserve_name(struct staging *s, uint64_t *mine);
void reserve_kept(struct staging *s, uint64_t *mine);
/* A store without fallocate: a version's `bytes`, and what they need besides, are counted until
 * they are written, or until reserve_kept; *mine is then that. -ENOSPC: the free space is
 * promised. */
int reserve_count(struct staging *s, uint64_t *mine, uint64_t bytes);
/* There, too: [off, off + len) of fd, which has nothing there, gets blocks by being written.
 * -ENOSPC as above; fd's size is then as before. */
int reserve_fill(struct staging *s, int fd, uint64_t off, uint64_t len);
/* Around every other allocation of blocks (bytes 0: they are held already). -ENOSPC: the free space
 * is promised to others. */
int reserve_enter(struct staging *s, uint64_t bytes);
void reserve_leave(struct staging *s);
/* The store's free space, seen a moment ago: is there so much that nobody takes it meanwhile? Then
 * it is not asked again. */
void reserve_saw(struct staging *s, const struct statvfs *v);
bool reserve_is_ample(const struct staging *s, uint64_t bytes);
/* What is free is for what was accepted. Checks the store; no lock of staging's held. */
bool reserve_is_given(struct staging *s);

/* trash.c */
/* Removes id from the store's tmp/ (0: nothing) and closes fd (-1: none), later. s->lock held. */
void trash_put(struct staging *s, uint64_t id, int fd);
/* The store removed something whose blocks may become free only later: when fd (-1: none) is
 * closed. With plenty of space and no quota that is when no file is open for writing, after 10 s
 * all the same, and at once if somebody is in trash_wait. s->lock held. */
void trash_removed(struct staging *s, int fd);
/* May a caller that needs space wait for some (trash_wait)? s->lock held. */
bool trash_may_free(const struct staging *s);
/* Waits until all of it is removed and its blocks are free, for a caller that needs space, and what
 * is kept of checkpoints that are overwritten (drain/previous.c), without a limit; false: there was
 * none. Takes s->lock. */
bool trash_wait(struct staging *s);
void *trash_main(void *arg);
void trash_close(struct staging *s); /* no threads are left */

#endif

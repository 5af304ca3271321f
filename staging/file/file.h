/* SPDX-License-Identifier: MIT
 * Staged files: creation, growth, sealing, and where their bytes are. */
#ifndef CAIRN_STAGING_FILE_H
#define CAIRN_STAGING_FILE_H

#include "staging/log/log.h"

/* staged.c */
void staging_sf_name(uint64_t id, char out[17]);
int staging_sf_dir(const struct staged *f);
/* in the tmpfs or tmp/; a new descriptor, or -errno */
int sf_open_bytes(struct staged *f, int flags);
/* its memory is a buffer's; takes s->lock */
bool sf_lent(struct staged *f);
/* The error with which the store failed to write a part of f, a spilled file, since fd was opened:
 * -errno, from then on permanently; 0. Starts no write and waits for at most a page. No lock of
 * staging's held. */
int sf_spoiled(struct staged *f, int fd);
/* s->lock held for the next ones */
struct staged *sf_find(struct staging *s, uint64_t id);
void sf_set_state(struct staging *s, struct staged *f, enum staged_state st);
/* Of f's seals: the one that waits for its last mapping to go; NULL */
struct pend *sf_waiting_seal(struct staged *f);
/* any that still needs the bytes unchanged */
bool sf_seals_under_way(struct staged *f);
void sf_charge(struct staging *s, struct staged *f, uint64_t bytes);
void space_claim_set(struct staging *s, struct staged *f, uint64_t bytes);
/* of a staged file or a record: closed */
void source_forget(struct staging *s, int *source);
void chunks_forget(struct staging *s, struct chunks **c);
/* Will f's next version be compared with the one before? */
bool sf_may_be_delta(const struct staging *s, const struct staged *f);
void sf_loan_ends(struct staged *f);
void sf_set_late(struct staging *s, struct staged *f, bool late);
void sf_put_locked(struct staging *s, struct staged *f);
/* Until sf_evict_allow its bytes stay, also without a node: its names were applied but not synced,
 * and may be needed again. _block: of all staged files. */
void sf_hold(struct staged *f);
void sf_evict_block(struct staging *s);
void sf_evict_allow(struct staging *s);
void sf_close_idle_fd(struct staged *f); /* if it has no writer */
/* after a change of its state or users */
void sf_drop_useless(struct staging *s, struct staged *f);
void sf_drop_all_useless(struct staging *s);
uint64_t sf_evict(struct staging *s, uint64_t want); /* returns bytes freed */
/* pressure.c: gives memory back if the machine has little. No lock held */
void pressure_look(struct staging *s);
void *pressure_main(void *arg);
int sf_ensure_fd(struct staged *f); /* f->fd is open; s->lock held */
void sf_unwritten(struct staging *s, struct staged *f); /* no writer is left; s->lock held */
void staged_check(struct staging *s);
/* the lock may be held or not */
struct staged *sf_new(struct staging *s, uint64_t id, uint64_t node);
void sf_insert(struct staging *s, struct staged *f);
/* as fstat; the size of a lent file is its version's */
int sf_stat(struct staged *f, struct stat *st);
/* its st_blocks, less what is allocated behind its end, which is not the version's */
uint64_t sf_blocks(const struct staged *f, const struct stat *st);

/* extents.c */
/* Data extents of fd in [off, end), at most max of them; a single one for all if there are more. */
unsigned file_extents(int fd, uint64_t off, uint64_t end, struct io_extent *ext, unsigned max);
/* Where SEEK_DATA has found data: how much may be copied before a hole begins, at most `most`. */
size_t data_run(int fd, uint64_t off, size_t most);
/* Calls put for all data of a file of that size, in order, until it fails. 0 or -errno. */
int data_each(int fd, uint64_t size,
	      int (*put)(void *ctx, const void *buf, size_t len, uint64_t off), void *ctx);
/* The data of a file in the tmpfs of huge pages, one piece after the other. */
struct written {
	int fd;
	/* its bytes: runs of zero pages are holes, too; or NULL */
	const char *map;
	uint64_t size, hole; /* file size; end of the last extent found */
};
/* The next piece at or after *off: [*off, *end). 0; -ENXIO: none; -errno. */
int written_next(struct written *w, uint64_t *off, uint64_t *end);
/* All from off on, at most max; a single one for all if there are more. */
unsigned written_extents(struct written *w, uint64_t off, struct io_extent *ext, unsigned max);
/* Has the file whole holes? Then unwritten parts of its huge pages become holes as well. */
static inline bool has_holes(const struct stat *st)
{
	return st->st_size > (off_t)HUGE_BYTES &&
	       (uint64_t)st->st_blocks * 512 <= (uint64_t)st->st_size - HUGE_BYTES;
}

/* unpublished.c */
/* f->io.lock held: these take s->lock, with which tmp_id is read */
void sf_set_tmp(struct staged *f, uint64_t id, int fd);
void sf_drop_tmp(struct staged *f);
/* with blocks for f's data. f->io.lock held, reserve_enter()ed */
int sf_make_tmp(struct staged *f, uint64_t size);
/* attempts of a writer that waits for space: others may take what was freed */
#define LATE_TRIES 4u
/* Asked before an attempt, so that what is freed meanwhile counts. Takes s->lock. */
bool sf_space_may_come(struct staging *s);
/* For pending removals, up to 30 s, then without a limit for their blocks (trash_wait). No lock
 * held. */
void sf_wait_for_space(struct staged *f);
/* After its blocks were allocated: where the store has no fallocate they are counted, without those
 * that its unpublished file has. -ENOSPC. f->io.lock held. */
int sf_count(struct staged *f, uint64_t size);
/* blocks for the range in its unpublished file, which has none there. f->io.lock held */
int sf_allocate_range(struct staged *f, uint64_t off, uint64_t len);
/* its owner has a quota: promise no blocks */
bool sf_limited(const struct staged *f);
/* Blocks in f's unpublished file for the data of the first `size` bytes of `from`. f->io.lock
 * held. */
int sf_allocate(struct staged *f, int from, uint64_t size);
/* fd, unpublished and empty, gets f's owner */
int sf_own_tmp(struct staged *f, int fd);
/* Frees the blocks beyond `size` that space_for_write allocated. f->io.lock held. */
int sf_trim_tmp(struct staged *f, uint64_t size);

/* spill.c */
/* closes wr (may be -errno); holes stay holes */
int sf_copy_bytes(int wr, int from_fd, uint64_t size);
/* f is open and its bytes are in tmp/<id> now, as st says. f->io.lock held, s->lock not. */
int sf_becomes_spilled(struct staged *f, const struct stat *st);
/* Moves an open file's bytes there. Not for a backing file: the kernel would still read the old
 * one. f->io.lock held. */
int sf_spill(struct staged *f);
/* logged but not completed. s->lock held */
void sf_replay_spill(struct staging *s, struct staged *f);

/* limit.c: lifts the limit if the budget is kept. No lock held */
void limit_look(struct staging *s);

/* outgrow.c; f->io.lock held where a staged file is given */
/* s->lock held: over the budget, nothing to evict */
void outgrow_look(struct staging *s);
/* blocks for bytes not moved. -EIO: see staged_move_out */
int outgrow_allocate(struct staged *f, uint64_t size);
int outgrow_resize(struct staged *f, int fd, uint64_t size);
int outgrow_fallocate(struct staged *f, int mode, uint64_t off, uint64_t len);
/* off < under; may be short */
ssize_t outgrow_write(struct staged *f, const void *buf, size_t len, uint64_t off);
/* As pread of the whole file; stops at `under`. -1 and errno. */
ssize_t outgrow_read(uint64_t under, int from, int to, char *buf, size_t len, uint64_t off);
int outgrow_recover(struct staged *f, const struct stat *st);

/* ahead.c; s->lock held */
/* Allocates nothing more until f is opened again: its last writer is gone, or its times are set.
 * -EBUSY: it allocates now; ahead_await() waits for that, with no lock held. */
int ahead_stop(struct staged *f);
/* The same, until it is called again and returns 0: fallocate(2) changes the file's times, and an
 * fsynced version would look changed. */
int ahead_pause(struct staged *f);
void ahead_await(struct staged *f);
void ahead_look(struct staging *s); /* a passthrough write began */
void *ahead_main(void *arg);

/* space.c: space in the store for files that are still written */
/* Would a fast-lane file find space in the store for all that may be written to it? If not, it
 * begins `checked`. Checks the store; s->lock not held. */
bool space_for_all(struct staging *s, const struct staged *f, uint64_t claim);
uint64_t space_claim(const struct staging *s, const struct staged *f);
/* A write of [off, off + len) through the daemon: allocates its blocks. -ENOSPC, -EDQUOT; -EAGAIN:
 * pending removals may free space, call space_wait() first, unless `last`. f->io.lock held. */
int space_for_write(struct staged *f, uint64_t off, uint64_t len, bool last);
/* The result of a write, for torn.c. f->io.lock held. */
ssize_t space_written(struct staged *f, uint64_t off, uint64_t len, ssize_t n);
void space_cut(struct staged *f, uint64_t size); /* f was truncated. f->io.lock held */
/* Free bytes that versions with a failed close need. Checks the store; s->lock not held. */
uint64_t space_wanted(struct staging *s);
/* Asks the store: its free bytes, less what is promised. No lock held */
uint64_t space_look(struct staging *s);

/* torn.c; takes s->lock */
void torn_remove(struct staged *f, uint64_t off, uint64_t len); /* was written, or cut off */
/* staged_torn_out(); s->lock held */
void torn_out(const struct staged *f, struct rec *r, struct torn_range *data);

/* lease.c; s->lock held */
/* two writes within one tick may carry the same mtime */
bool sf_coarse_times(void);
bool sf_final(struct staged *f); /* lease granted: no writable mapping */
/* early: its mapping remains */
void pend_finalize(struct staging *s, struct pend *p, bool early);

/* seal.c */
/* Gives f's version, as st describes it, its place in the order. f->io.lock held. */
int sf_seal(struct staging *s, struct staged *f, struct rec *r, const struct stat *st, bool closed,
	    bool final);

/* append.c; s->lock held, unless said otherwise */
void append_protect(struct staged *f); /* it was sealed, and is open now */
/* Bytes from off on are to change: 0, -EBUSY, the log's error. Takes s->lock. */
int append_change(struct staged *f, uint64_t off);
bool append_may_begin(const struct staged *f); /* without waiting for its seals */
/* p, the seal of a closed version, is final: the one before it may be left out. locked: the caller
 * has its file's io.lock, too. */
void append_sealed(struct staging *s, struct pend *p, bool locked);
/* Has f, with that size, the blocks of a version that was left out? f->io.lock held, s->lock not */
bool append_has_blocks(struct staged *f, const struct stat *st);
/* p, whose bytes are not final, is closed again: it gets the blocks of this close, f those that it
 * had. f->io.lock held, too. */
void append_swap_blocks(struct staged *f, struct pend *p);

/* buffer.c; s->lock held */
#define BUFFER_PREFIX "buffer."
/* replayed r created f */
void buffer_lent_again(struct staging *s, struct staged *f, const struct rec *r);
void buffer_kept_again(struct staging *s, uint64_t id); /* REC_KEEP replayed; takes s->lock */
void buffer_stats(struct staging *s, struct staging_stats *out);
void buffer_close_all(struct staging *s);
void buffer_sweep(struct staging *s, const char *name); /* takes the lock */

/* watch.c */
void *watch_main(void *arg);

/* early.c */
void *early_main(void *arg);
/* f's, which is no longer f's, and whose unpublished file is not either; NULL. s->lock held */
struct early *early_take(struct staged *f);
/* Waits until nothing is written to it any more. It was taken; s->lock not held */
void early_settle(struct staging *s, const struct early *e);
/* Blocks would remain where f has a hole, or behind its end: begin anew. f->io.lock held. */
bool early_is_useless(const struct staged *f, const struct stat *st);

#endif

/* SPDX-License-Identifier: MIT
 * From sealed to durable. */
#ifndef CAIRN_STAGING_DRAIN_H
#define CAIRN_STAGING_DRAIN_H

#include "staging/file/file.h"

/* sync.c */
/* After a failed write or sync the state of the file's pages is unknown: p is written to a new
 * file. err is the error, which counts as an attempt; 0 if it was another file's. s->lock held */
void persist_again(struct staging *s, struct pend *p, int err);
/* Syncs p's bytes. No lock held, as for the next. */
bool persist_syncs_itself(const struct pend *p);
int persist_sync(struct staging *s, struct pend *p);
int sync_all(struct staging *s); /* the store; takes s->lock if it fails */
/* err of another sync of names: handled as sync_all's, returned */
int sync_told(struct staging *s, int err);
/* err: frees some of the reserve if that may help p; NULL: the store itself. False: it cannot, or
 * nothing is left. *given, 0 at first, limits it: where a quota is used up and not the disk, others
 * take the reserve back meanwhile. */
bool reserve_give(struct staging *s, const struct pend *p, int err, unsigned *given);

/* lack.c */
/* The store fails, or is gone, or this process lacks something: it is tried again. What else
 * prevents it, prevents it for good. */
bool is_failure(int err);
/* p failed with err. If that passes: waits some time and returns true, p is to be tried again.
 * False: another error, or it has lasted too long. s->lock held, dropped meanwhile */
bool lack_wait(struct staging *s, struct pend *p, int err);

/* halted.c */
/* What a person does about err. s->lock is not held. */
const char *halted_remedy(struct staging *s, int err);
/* Publication is halted from now on. s->lock held */
void halted_begin(struct staging *s);
/* Until p, which failed with err, is to be tried again: each time later, up to a minute; at once
 * with staging_retry() and at a stop; within a second when space for it has come. By the
 * publisher. s->lock held, dropped meanwhile */
void halted_wait(struct staging *s, const struct pend *p, int err);

/* meta.c */
/* Sets owner, mode, times and xattrs of p on its tmp_fd, with p->checksum. What the store refuses
 * permanently is left out and logged; other errors (EIO, ENOSPC if there is no space at all, ...)
 * are returned. */
int meta_write(struct staging *s, struct pend *p);
/* The value of KEY_INO without a mark. Its length. */
#define META_INO_BYTES 40u
size_t meta_ino(const struct staging *s, const struct rec *r, char text[META_INO_BYTES]);
/* ENOSPC for an xattr of len bytes: is it the inode that is full, and not the store? */
bool meta_inode_full(struct staging *s, size_t len);

/* clone.c */
/* Makes p's unpublished file a clone of its source, not synced, and sets sum to that of its
 * bytes. False: not possible, write it. Reads it from the disk; p is the caller's. */
bool clone_version(struct staging *s, struct pend *p, struct io_sum *sum);

/* delta.c */
/* Makes p's unpublished file a clone of the version before, with the chunks that differ, and sets
 * sum to that of its bytes; p->chunks has what it is. False: write it. p is the caller's. */
bool delta_version(struct staging *s, struct pend *p, struct io_sum *sum);
/* p is persisted: its file's next version is compared with what it has. */
void delta_keep(struct staging *s, struct pend *p);

/* persist.c */
void *persist_main(void *arg);
void *persist_small_main(void *arg);

/* pass.c: which records may be published before others that wait. Pure functions. */
struct pass {
	/* What waits, in the order in which it was accepted. tree: the directory of the checkpoint
	 * that the record commits; 0: it only waits behind another. overtaken: this one and all
	 * before it protect nothing in their trees any more; yields: and nowhere else. Only what
	 * concerns their own names and nodes waits still. */
	const struct pass_waiting {
		const struct rec *r;
		uint64_t seq, tree;
		bool overtaken, yields;
	} * waiting;
	size_t n;
	/* the directory that dir is in when the records before seq are applied; 0: none */
	uint64_t (*parent)(void *ctx, uint64_t dir, uint64_t seq);
	/* seq with which the record was accepted that created node, if it passed some of those; 0
	 * of older ones */
	uint64_t (*added)(void *ctx, uint64_t node);
	void *ctx;
	uint64_t seq; /* pass.c: of the record that is judged */
};
/* Must r, which was accepted as seq, wait behind something that was accepted before? */
bool pass_waits(const struct pass *p, const struct rec *r, uint64_t seq);
/* The index of the record that ends c, which waits: its name dir/name is removed or replaced before
 * anyone sees it. p->n: none does. */
size_t pass_end_of(const struct pass *p, size_t c, uint64_t dir, const char *name);

/* hold.c; s->lock held */
/* Is p a name that may have to wait for other nodes? */
bool hold_due(const struct staging *s, const struct pend *p);
/* Must p wait behind what is set aside? */
bool hold_blocks(struct staging *s, const struct pend *p);
/* Sets the first in the order aside if it must wait, and resumes what need not any more. Drops the
 * lock. True: the order has changed, or may have; look again. */
bool hold_goes_on(struct staging *s);
void hold_stats(struct staging *s, struct staging_stats_held *out);

/* vanished.c */
struct vanished {
	uint64_t since_ns; /* 0: nothing has */
};
/* p got err, and is to be tried again: in a store of several hosts its directory may come back. */
bool vanished_comes_back(struct staging *s, const struct pend *p, int err, struct vanished *v);

/* retain.c */
/* is tmp/<id> one of its names? s->lock held */
bool retain_has(struct staging *s, uint64_t id);
/* Before dirfd/name is renamed, replaced or removed in the store. Publisher only. */
void retain_before(struct staging *s, int dirfd, const char *name);
void retain_close(struct staging *s);

/* previous.c: publisher only, unless stated otherwise; s->lock not held */
/* What an earlier worker kept. Before any thread runs. */
void previous_load(struct staging *s);
/* Removes of it what is not needed any more. Nothing is inherited. */
void previous_settle_all(struct staging *s);
/* Before the n records from first on are applied: keeps the checkpoints whose files they replace
 * or remove. -errno: the store fails. */
int previous_keep(struct staging *s, const struct pend *first, unsigned n);
/* The directory whose checkpoint p commits, 0: none. Only reads p. A new mtime commits, too. */
uint64_t previous_commit_of(const struct staging *s, const struct pend *p);
/* A new commit of directory dir is durable: what was kept of it is removed. touched: it is the same
 * file with another mtime. */
void previous_settle(struct staging *s, uint64_t dir, bool touched);
/* Directory dir/name is about to be removed, with what was kept of it. */
void previous_forget(struct staging *s, int dirfd, const char *name);
/* Is the room needed? s->lock held */
bool previous_give_due(const struct staging *s);
void previous_give(struct staging *s);
/* How many of st's names are links of ours. s->lock held, also for the next; any thread. */
nlink_t previous_links(const struct staging *s, const struct stat *st);
void previous_stats(const struct staging *s, struct staging_stats_previous *out);
void previous_close(struct staging *s); /* any thread; no other runs */

/* leftover.c: the publisher only, unless stated otherwise */
/* During a replay. 0, -ENOMEM */
int leftover_note(struct staging *s, const struct rec *r);
/* After it. orphaned: all that is pending was left over from a kill of all processes. */
void leftover_begin(struct staging *s, bool orphaned);
void leftover_end(struct staging *s); /* after a batch; if all of it is durable */
void leftover_close(struct staging *s); /* no thread runs */
/* If p is left over, has another log published dirfd/name, a name in directory dir, since it was
 * accepted? 1, 0 or -errno. */
int leftover_came_since(struct staging *s, const struct pend *p, int dirfd, uint64_t dir,
			const char *name);
/* p is about to replace, remove, move or change that. LEFTOVER_OUTLIVED: p is left out, since one
 * has, or since p commits a checkpoint in which one has; 0; or -errno. */
#define LEFTOVER_OUTLIVED (-EALREADY)
int leftover_judge(struct staging *s, const struct pend *p, int dirfd, uint64_t dir,
		   const char *name);
/* What p made, or found, is in dirfd and has no number of this log: for what is left over behind p,
 * and for the next start. */
void leftover_tell(struct staging *s, const struct pend *p, int dirfd, bool made);

/* taken.c */
/* Is that publishing p failed so because its unpublished file is gone, and has staging its bytes?
 */
bool taken_away(struct staging *s, const struct pend *p, int err);
/* Then p is written again, and this is said. */
void taken_write_again(struct staging *s, struct pend *p);
#define TAKEN_AWAY (-EUCLEAN) /* a result of publishing */

/* mark.c */
uint64_t log_id(const struct staging *s);
/* Counts as not applied what the store's filesystem has lost. Before a replay. */
void mark_recall(struct staging *s);
/* Before this worker's first change: makes the mark this log's, on stable storage. */
int mark_begin(struct staging *s);
int mark_set(struct staging *s, uint64_t seq); /* everything up to seq is done in the store */

/* dedup.c */
int dedup_start(struct staging *s);
/* p became durable. Copies what it needs of p; no I/O. s->lock held. */
void dedup_offer(struct staging *s, const struct pend *p);
void dedup_wake(struct staging *s); /* s->stop was set. s->lock held */
void dedup_close(struct staging *s); /* waits for its thread; no other thread runs */

/* timeline.c */
int timeline_start(struct staging *s);
/* p became durable. s->lock held, as for the next */
void timeline_note(struct staging *s, const struct pend *p);
void timeline_wake(struct staging *s); /* s->stop was set */
void timeline_close(struct staging *s); /* waits for its thread; the publisher has ended */

/* publish.c */
void *publish_main(void *arg);

#endif

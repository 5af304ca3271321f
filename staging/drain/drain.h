/* SPDX-License-Identifier: MIT
 * From sealed to durable. */
#ifndef CAIRN_STAGING_DRAIN_H
#define CAIRN_STAGING_DRAIN_H

#include "staging/file/file.h"

/* sync.c */
/* After a failed write or sync the pages of its file prove nothing: a new file. rc is the
 * error, which counts as an attempt; 0 when it was another's. s->lock held */
void persist_again(struct staging *s, struct pend *p, int rc);
/* p's bytes to stable storage. No lock held, as for the next. */
int persist_sync(struct staging *s, struct pend *p);
int sync_all(struct staging *s);		/* the store; takes s->lock when it fails */
int sync_told(struct staging *s, int rc);	/* rc of another sync of names: taken as sync_all's, and returned */
bool reserve_give(struct staging *s);		/* the store is full: frees some; false: nothing is left */

/* meta.c */
#define XATTR_SMALL 512u	/* a larger one may be too large for ext4's one xattr block */
/* Owner, mode, times and xattrs of p on its tmp_fd, with p->checksum. What the store refuses for good is left
 * out and told; other errors (EIO, ENOSPC where there is no room at all, ...) as they come. */
int meta_write(struct staging *s, struct pend *p);

/* clone.c */
/* Makes p's unpublished file a clone of what it was copied from, not synced, and sum that of its
 * bytes. False: it cannot be one, write it. Reads it from the disk; p is the caller's. */
bool clone_version(struct staging *s, struct pend *p, struct io_sum *sum);

/* persist.c */
void *persist_main(void *arg);
void *persist_small_main(void *arg);

/* hold.c; s->lock held */
bool hold_due(const struct staging *s, const struct pend *p);	/* it is asked for before p is applied */
/* Drops the lock. True: p waits on (some time has passed); false: it may be applied. */
bool hold_waits(struct staging *s, struct pend *p);

/* retain.c */
bool retain_has(struct staging *s, uint64_t id);	/* is tmp/<id> one of its names? s->lock held */
/* Before dirfd/name is renamed, replaced or removed in the store. Publisher only. */
void retain_before(struct staging *s, int dirfd, const char *name);
void retain_close(struct staging *s);

/* mark.c */
/* What the store's filesystem has forgotten counts as not applied. Before a replay. */
void mark_recall(struct staging *s);
/* Before the first change of this life: the mark is this log's, on stable storage. */
int mark_begin(struct staging *s);
int mark_set(struct staging *s, uint64_t seq);	/* all up to seq is made in the store */

/* dedup.c */
int dedup_start(struct staging *s);
/* p became durable. Takes a copy of what it says; no I/O. s->lock held. */
void dedup_offer(struct staging *s, const struct pend *p);
void dedup_wake(struct staging *s);		/* s->stop was set. s->lock held */
void dedup_close(struct staging *s);		/* waits for its thread; no other is left */

/* publish.c */
void *publish_main(void *arg);

#endif

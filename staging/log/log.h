/* SPDX-License-Identifier: MIT
 * The log and the order: records, their sequence, the directories and refusals that they refer
 * to. */
#ifndef CAIRN_STAGING_LOG_H
#define CAIRN_STAGING_LOG_H

#include "staging/memory/memory.h"

/* head.c */
void log_segment_name(uint64_t n, char out[32]);
struct rec log_format(void); /* the record that a log begins with */
/* 0; -ENOENT: not initialized; -EPROTONOSUPPORT: unknown format; -EXDEV: another store's with the
 * same id. */
int head_check(const struct head *h, size_t size, struct io_store *store);
int log_check(int fd); /* 0, -EPROTONOSUPPORT */
/* Removes the log at base, and its head, if there is no record in it. Nobody has it open. False: it
 * stays, or is not known to be one. */
bool log_remove_unused(int base);
/* marks it as this program's and this store's */
void head_stamp(struct head *h, struct io_store *store);

/* log.c */
int log_open(struct staging *s);
void log_close(struct staging *s);
int log_open_segment(struct staging *s, uint64_t n, int flags); /* a descriptor; -errno */
int log_map_segment(struct staging *s); /* log.fd is appended to from log.bytes on */
int log_append(struct staging *s, const struct rec *r); /* s->lock held */
/* r is the answer to its request. s->lock held */
void log_answered(struct staging *s, const struct rec *r);

/* order.c; s->lock held */
/* r takes the next place in the order: logged, and pending as *out. sf may be NULL. */
int log_in_order(struct staging *s, struct rec *r, struct staged *sf, struct pend **out);
/* Recovery must publish p from its unpublished file, not from staging. */
int log_written(struct staging *s, const struct pend *p);
/* a copy of r; NULL: no memory. The lock may be held or not */
struct pend *pend_new(const struct rec *r);
/* as the last pending; sf may be NULL */
void pend_add(struct staging *s, struct pend *p, struct staged *sf);
void pend_free(struct pend *p); /* the lock may be held or not */
void persist_queue(struct staging *s, struct pend *p);
void persist_unqueue(struct staging *s, struct pend *p);
/* p was to be left out with what removes it, and is published: persists it */
void persist_must(struct staging *s, struct pend *p);
/* May p wait a little, as it may be removed before it is written? */
bool persist_may_wait(const struct staging *s, const struct pend *p);

/* aside.c; s->lock held, unless said otherwise */
/* Sets the record at link aside: what is later in the order passes it. flags are added to its own.
 * -ENOMEM, -ENOSPC: it stays where it is. */
int aside_put(struct staging *s, struct pend **link, uint32_t flags);
/* flags are added to those of p, which is set aside */
int aside_change(struct staging *s, struct pend *p, uint32_t flags);
/* The record at link, set aside, takes the last place in the order. Errors as aside_put. */
int aside_resume(struct staging *s, struct pend **link);
/* All before the first record in the order is durable or set aside: counts it as that. */
void aside_settle(struct staging *s);
/* r, accepted with that seq, passes what is set aside: notes what it creates */
void aside_note_added(struct staging *s, const struct rec *r, uint64_t accepted);
/* seq with which the record was accepted that created node and passed something; 0 */
uint64_t aside_added(struct staging *s, uint64_t node);
/* Is a change of node up to seq set aside, or not durable since? node 0: any change. */
bool aside_delays(struct staging *s, uint64_t node, uint64_t seq);
uint64_t aside_durable(struct staging *s, uint64_t durable); /* all up to it is durable */
/* Before a replay of the log at map: what is set aside at its end. -ENOMEM */
int aside_recall(struct staging *s, const char *map, size_t len);
void aside_replay(struct staging *s, const struct rec *r); /* a REC_ASIDE, REC_RESUMED */
void aside_replayed(struct staging *s); /* the last pending one is set aside */
void aside_forget(struct staging *s); /* nothing is pending */
void aside_close(struct staging *s); /* no thread runs */

/* dirs.c */
int dirs_open(struct staging *s);
void dirs_close(struct staging *s);
void dirs_ref(struct staging *s, uint64_t id); /* a pending record names it */
void dirs_unref(struct staging *s, uint64_t id);
/* From now on id is either at its old place or at this one, until dirs_moved confirms it or another
 * call overrides it (id 0: none is being moved). One at a time. */
void dirs_moving(struct staging *s, uint64_t id, uint64_t parent, const char *name);
void dirs_moved(struct staging *s, uint64_t id, uint64_t parent, const char *name);
void dirs_gone(struct staging *s, uint64_t id);
/* The next to ask for it, or for one above it, opens what has its name then. */
void dirs_look_again(struct staging *s, uint64_t id);
uint64_t dirs_parent(struct staging *s, uint64_t id); /* 0: unknown, or the root's */
/* id is made or moved there by a pending record, accepted as seq */
void dirs_will_be(struct staging *s, uint64_t id, uint64_t parent, uint64_t seq);
/* *parent: where it is when all that is pending is applied; 0 as above. *seq: of the last record
 * that moves it, 0 if none does. */
void dirs_later_parent(struct staging *s, uint64_t id, uint64_t *parent, uint64_t *seq);
int dirs_root_relative(struct staging *s, uint64_t dir, const char *name, char *buf, size_t cap);

/* refuse.c */
/* r is skipped. Takes s->lock, as the next */
/* kept: it is a version, and was put into lost+found. */
void refuse(struct staging *s, const struct rec *r, int err, bool kept);
/* skipped without an error for any caller */
bool refuse_is_theirs(const struct rec *r, int err);
void refuse_settle(struct staging *s, const struct rec *r); /* r is applied */
void refuse_replayed(struct staging *s, const struct rec *r);
int refuse_emit(struct staging *s); /* a rotation; takes s->lock */
/* acknowledged by a user. s->lock held, as for the next */
void refuse_seen(struct staging *s);
void refuse_stats(struct staging *s, struct staging_stats *out);
void refuse_close(struct staging *s); /* no thread runs */

/* lostfound.c */
void lostfound_note(struct staging *s, const struct rec *r); /* during a replay */
void lostfound_end(struct staging *s);
/* The path of dir/name at the end of the log as one name: '/' is %2F, '%' is %25, its beginning is
 * cut off. */
void lostfound_name(struct staging *s, uint64_t dir, const char *name, char out[LOSTFOUND_NAME]);
void lostfound_path_name(const char *path, char out[LOSTFOUND_NAME]);

#endif

/* SPDX-License-Identifier: MIT
 * What the files of tree/ share. The tree lock is held.
 */
#ifndef CAIRN_FS_TREE_INSIDE_H
#define CAIRN_FS_TREE_INSIDE_H

#include "fs/tree/tree.h"

/* ---- ask.c ---- */

struct born {
	struct stat st;
	uint64_t birth; /* ns; 0: the store does not tell */
};
struct named {
	struct born b;
	/* to show, of a file that was not known; ino_rc: could it be had? */
	uint64_t ino;
	int ino_rc;
	uint64_t log; /* that published it; 0: not known */
	uint64_t applied;
};
void ask_no_more(void); /* from now on this operation cannot begin again */
/* n is not needed any more: released now, or when this operation, which begins again, has ended. */
void ask_release(struct fs *fs, struct node *n);
/* These return what the store says, its errors included; or ASK_AGAIN. applied: the end of the
 * order when the store was asked. */
int ask_name(struct fs *fs, struct node *dir, const char *name, const struct node *known,
	     struct named *out);
/* The answer about the name is in the tree now, and is about n, too. */
void ask_took(struct fs *fs, struct node *dir, const char *name, struct node *n,
	      const struct named *b);
int ask_stat(struct fs *fs, struct node *n, struct born *b, uint64_t *applied);
int ask_open(struct fs *fs, struct node *n, struct born *b); /* a descriptor, the caller's */
/* fd: a file of the store that n has open */
int ask_born(struct fs *fs, struct node *n, int fd, struct born *b);
ssize_t ask_value_by_name(struct fs *fs, struct node *dir, const char *name, const char *key,
			  char *buf, size_t cap);
/* io_saves_count(), io_saves_raise(); the latter only if another host was ever in the store, which
 * it looks for. */
int ask_saves(struct fs *fs, const char *key, uint64_t *n);
int ask_next_save(struct fs *fs, const char *key, uint64_t least);
int ask_set_mark(struct fs *fs, struct node *dir, const char *name, const char *mark);
/* Is another host in the store, or was? 1, 0, -errno. One that was alone until now asks the store:
 * another may have come a moment ago. No lock held. */
int ask_others(struct fs *fs);

/* ---- rec.c, apply.c, seal.c ---- */

/* n->sf is its version; no request made it. Refers to `torn`, TORN_MAX of them. */
struct rec rec_staged(const struct node *n, struct torn_range *torn);
/* n as it is, by that name; NULL: by none */
struct rec rec_node(struct node *n, struct dentry *d);
void fs_learned(struct fs *fs, struct node *n, struct dentry *d); /* logs REC_NODE */
void handle_free(struct fs *fs, struct handle *h);
/* Has no handle of n bytes of its own, in the kernel or here? Then they can read another version.
 */
bool handles_may_follow(struct fs *fs, const struct node *n);
void handles_follow(struct fs *fs, struct node *n); /* they read n->sf from now on */
/* then: when n was closed. *data is the caller's */
int fill_flushed(struct node *n, const struct staged_moment *then, struct rec *r, void **data);

/* ---- save_tag.c ---- */

int save_note(struct fs *fs, struct node *n); /* before a seal of n: 0, ASK_AGAIN */
bool save_is_marked(const struct node *n);
void save_not_counted(struct fs *fs, const char *name, int err); /* a notice */
void save_restore(struct node *n, const struct rec *r); /* as a REC_FLUSHED says */

/* ---- at_once.c ---- */

/* one(ctx, i) for each i in [from, end), by several threads; returns when all have been made. No
 * lock is held. */
void at_once(size_t from, size_t end, void (*one)(void *ctx, size_t i), void *ctx);

/* ---- saves.c ---- */

/* What the mark of a file says that a .metadata lists. */
struct save_mark {
	/* SAVE_COMES_LATER: it is this mount's own, and published after the .metadata */
	enum { SAVE_UNMARKED, SAVE_MARKED, SAVE_COMES_LATER, SAVE_UNREADABLE, SAVE_STALE } kind;
	bool own; /* this host wrote it */
	uint64_t n;
	int64_t size; /* of the file in bytes, where it was asked for; -1: it is not there */
	char host[72];
};
/* The first of n marks that is of another save than all should be of, *save: a later one, if there
 * is one, which cannot become right. n: there is none. commit: the mark of the .metadata. If *save
 * is greater than that, this host's own next save is in the store. */
size_t save_odd_one(const struct save_mark *m, size_t n, uint64_t commit, uint64_t *save);

/* ---- node.c, tree.c ---- */

struct node *node_new(struct fs *fs, uint64_t id, uint64_t ino, mode_t mode);
void node_forgotten(struct fs *fs, struct node *n); /* frees it: REC_FORGET */
struct dentry *dentry_set(struct fs *fs, struct node *dir, const char *name, struct node *n);
void dentry_remove(struct fs *fs, struct dentry *d);
/* Record seq changed n, or something below it: raises seq.below of n and of all above it. */
void node_raise(struct fs *fs, struct node *n, uint64_t seq);
/* until seq is applied */
void dentry_whiteout(struct fs *fs, struct dentry *d, uint64_t seq);
void node_place_add(struct fs *fs, struct node *n, uint64_t seq, uint64_t dir, const char *name);
/* Something of n, or a name, changed: answers to earlier questions to the store are void. */
void node_touch(struct fs *fs, struct node *n);
void name_touch(struct fs *fs, uint64_t dir, const char *name);
void node_set_store_ino(struct fs *fs, struct node *n, uint64_t store_ino, uint64_t store_birth);
/* Closes a descriptor of a store file, without freeing its blocks under the lock. */
void store_fd_close(struct fs *fs, int fd);
/* once nobody can open or read n any more */
void node_drop_bytes(struct fs *fs, struct node *n);
/* Before n loses all its names: its descriptors are asked for more than the kernel does by itself.
 */
int node_keep_version(struct fs *fs, struct node *n);
struct xattr *xattr_add(struct xattr **list, const char *key, const void *val, uint32_t len);
void xattrs_free(struct xattr *list);
void xattr_put(struct node *n, const char *key, const void *val, uint32_t len);
bool xattr_drop(struct node *n, const char *key);

/* Nodes in the order in which their closes were answered; those without one come first. */
struct node_list {
	struct node **n;
	size_t len, cap;
};
int node_list_add(struct node_list *l, struct node *n); /* 0, -ENOMEM */
void node_list_sort(struct node_list *l);

/* ---- fork.c ---- */

int fork_node(struct fs *fs, struct node *n); /* -ESTALE: done, look the name up again */
void fork_came(struct fs *fs, struct node *n); /* the writer that fork_await() waits for */

/* ---- version.c, share.c, buffer_node.c ---- */

void seal_late(struct fs *fs); /* lock not held */
void share_opened(uint32_t uid);
void share_closed(uint32_t uid);
/* True, once: a user got EMFILE, and text (of cap bytes) says why. */
bool share_was_refused(char *text, size_t cap);
void buffers_apply(struct fs *fs, const struct rec *r); /* REC_BUFFER */
void buffers_apply_commit(struct node *n, const struct rec *r); /* n's xattrs are in r */
int buffers_emit(struct fs *fs); /* before any REC_OPEN of them is */
uint64_t buffers_blocks(struct node *n); /* n->buf is not NULL */

/* node.c; a directory's names in the store, for when it does not answer. Start anew, with none; one
 * more; has it none of this name, as far as is known? */
void store_names_start(struct node *dir);
void store_names_add(struct node *dir, const char *name);
bool store_names_lack(const struct node *dir, const char *name);

#endif

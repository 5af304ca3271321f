/* SPDX-License-Identifier: MIT
 * What the files of ops/ share. The tree lock is held, unless a comment says otherwise.
 */
#ifndef CAIRN_FS_OPS_INSIDE_H
#define CAIRN_FS_OPS_INSIDE_H

#include "fs/latest/latest.h"
#include "fs/ops/ops.h"

/* attr.c: a caller who is not root writes or truncates n: suid and sgid go. 1: they went, and
 * attrs_changed() tells the kernel, which leaves it to us (FUSE_HANDLE_KILLPRIV_V2), once the lock
 * is dropped. 0. -errno. */
int node_written(fuse_req_t req, struct fs *fs, struct node *n);
/* the kernel asks for them again. Lock not held */
void attrs_changed(struct fs *fs, uint64_t id);
/* payer.c: sets current.tight. No lock held. */
void payer_look(struct fs *fs, fuse_req_t req);
/* open.c: a file that was made, and cannot be opened or has no space, is removed again. */
void unmake(struct fs *fs, struct node *n, uint64_t parent, const char *name);
/* Makes a handle and answers; with the entry too if create. */
int open_handle(fuse_req_t req, struct fs *fs, struct node *n, struct fuse_file_info *fi,
		bool create);
/* True: the request was sent again after a restart and was carried out before; answered. */
bool answered_open(fuse_req_t req, struct fs *fs, struct fuse_file_info *fi, bool create);
/* close.c: seals what n has now and answers when that is durable (P3): a write (of `written` bytes)
 * or an fsync. Lock not held. */
void sync_and_reply(fuse_req_t req, struct fs *fs, struct node *n, bool is_write, size_t written);
int tree_dir_empty(struct fs *fs, struct node *dir); /* readdir.c: 0, -ENOTEMPTY */
/* wait.c: is key user.cairn.wait (*ms UINT64_MAX), or user.cairn.wait.MS? */
bool wait_parse(const char *key, uint64_t *ms);
/* Answers req when all at or below id is durable, or see wait.c. Lock not held. */
void wait_ask(fuse_req_t req, fuse_ino_t id, uint64_t ms, size_t size);
/* buffers.c: link(2) of n; *out is the new file. -EBUSY: it is committed already. Drops the lock
 * meanwhile. */
int buffers_commit(fuse_req_t req, struct fs *fs, struct node *n, fuse_ino_t parent,
		   const char *name, struct node **out);

#endif

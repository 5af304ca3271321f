/* SPDX-License-Identifier: MIT
 * What all operations share of libfuse's requests: whose they are, and how they are answered.
 */
#ifndef CAIRN_FS_REQUEST_H
#define CAIRN_FS_REQUEST_H

#include <fuse_lowlevel.h>

#include "fs/tree/tree.h"

static inline struct fs *req_fs(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/* caller.c: who sent req; reads /proc. caller_free() */
void caller_of(fuse_req_t req, struct caller *c);

/* Operations on inodes of .cairn and below. NULL: wire/dispatch.c answers for these inodes. */
struct control_ops {
	/* parent CONTROL_DIR: itself */
	void (*lookup)(fuse_req_t req, fuse_ino_t parent, const char *name);
	void (*getattr)(fuse_req_t req, fuse_ino_t id);
	void (*readlink)(fuse_req_t req, fuse_ino_t id);
	void (*getxattr)(fuse_req_t req, fuse_ino_t id, const char *key, size_t size);
	void (*create)(fuse_req_t req, const char *name, mode_t mode, struct fuse_file_info *fi);
	void (*open)(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi);
	void (*read)(fuse_req_t req, fuse_ino_t id, size_t size, off_t off,
		     struct fuse_file_info *fi);
	void (*write)(fuse_req_t req, fuse_ino_t id, const char *buf, size_t size,
		      struct fuse_file_info *fi);
	void (*lseek)(fuse_req_t req, fuse_ino_t id, off_t off, int whence);
	void (*release)(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi);
	void (*readdir)(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, bool plus);
	void (*forget)(uint64_t id, uint64_t count); /* the tree lock may be held */
};

/* err: negative. Nothing, if another thread answers this request (current.given). */
static inline void reply_error(fuse_req_t req, int err)
{
	if (current.given)
		fuse_reply_none(req);
	else
		fuse_reply_err(req, -err);
}

/* ---- reply.c; the tree lock is held ---- */

int reply_entry(fuse_req_t req, struct fs *fs, struct node *n); /* 0 or ASK_AGAIN */
/* with the attributes that are known */
void reply_known(fuse_req_t req, struct fs *fs, struct node *n);
double attr_timeout(const struct node *n); /* seconds for which the kernel may keep them */
void fill_entry(struct node *n, const struct stat *st, struct fuse_entry_param *e);
/* ESTALE for the forked node n, once the kernel has forgotten its names. */
void reply_forked(fuse_req_t req, struct fs *fs, struct node *n);

#endif

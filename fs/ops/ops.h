/* SPDX-License-Identifier: MIT
 * The operations on inodes of the tree, as libfuse calls them. Each answers its request, now or by
 * another thread later. No lock is held.
 *
 * They take fuse_req_t: the tests send them requests of the kernel's protocol over a socket, so
 * that the decoding and wire/dispatch.c are tested with them (tests/unit/fs_client.hh).
 */
#ifndef CAIRN_FS_OPS_H
#define CAIRN_FS_OPS_H

#include "fs/request/request.h"

/* names.c */
void op_lookup(fuse_req_t, fuse_ino_t, const char *);
void op_mkdir(fuse_req_t, fuse_ino_t, const char *, mode_t);
void op_mknod(fuse_req_t, fuse_ino_t, const char *, mode_t, dev_t);
void op_symlink(fuse_req_t, const char *, fuse_ino_t, const char *);
void op_link(fuse_req_t, fuse_ino_t, fuse_ino_t, const char *);
void op_unlink(fuse_req_t, fuse_ino_t, const char *);
void op_rmdir(fuse_req_t, fuse_ino_t, const char *);
void op_rename(fuse_req_t, fuse_ino_t, const char *, fuse_ino_t, const char *, unsigned);
void op_readlink(fuse_req_t, fuse_ino_t);
/* attr.c */
void op_getattr(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_setattr(fuse_req_t, fuse_ino_t, struct stat *, int, struct fuse_file_info *);
void op_statfs(fuse_req_t, fuse_ino_t);
/* open.c */
void op_open(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_create(fuse_req_t, fuse_ino_t, const char *, mode_t, struct fuse_file_info *);
/* bytes.c */
void op_read(fuse_req_t, fuse_ino_t, size_t, off_t, struct fuse_file_info *);
void op_write(fuse_req_t, fuse_ino_t, const char *, size_t, off_t, struct fuse_file_info *);
void op_fallocate(fuse_req_t, fuse_ino_t, int, off_t, off_t, struct fuse_file_info *);
void op_lseek(fuse_req_t, fuse_ino_t, off_t, int, struct fuse_file_info *);
void op_copy_file_range(fuse_req_t, fuse_ino_t, off_t, struct fuse_file_info *, fuse_ino_t, off_t,
			struct fuse_file_info *, size_t, int);
/* close.c */
void op_flush(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_release(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_fsync(fuse_req_t, fuse_ino_t, int, struct fuse_file_info *);
/* readdir.c */
void op_opendir(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_readdir(fuse_req_t, fuse_ino_t, size_t, off_t, struct fuse_file_info *);
void op_readdirplus(fuse_req_t, fuse_ino_t, size_t, off_t, struct fuse_file_info *);
void op_releasedir(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
/* Calls fn for the names in dir until it returns non-zero, which is returned. The tree lock is
 * held. */
int dir_names(struct fs *fs, struct node *dir, int (*fn)(void *arg, const char *name), void *arg);
/* xattr.c */
void op_setxattr(fuse_req_t, fuse_ino_t, const char *, const char *, size_t, int);
void op_getxattr(fuse_req_t, fuse_ino_t, const char *, size_t);
void op_listxattr(fuse_req_t, fuse_ino_t, size_t);
void op_removexattr(fuse_req_t, fuse_ino_t, const char *);

/* wait.c: the connection is gone, and no thread answers any more: ends what waits. */
void waits_stop(struct fs *fs);

/* buffers.c: MOUNT/.cairn/buffers */
#define BUFFERS_DIR control_tree_id(CONTROL_BUFFERS, 0)
extern const struct control_ops buffers_ops;

/* freeze.c */
void freeze_start(struct fs *fs); /* by the keeper, before its first worker */
void freeze_ask(void *fs, uint64_t node); /* for struct staging_opts; never blocks */
/* False: the request did not come from that process, and is not answered. */
bool freeze_lookup(fuse_req_t req, const char *name);
bool freeze_set(fuse_req_t req, fuse_ino_t id, const char *key, const char *val, size_t len);

#endif

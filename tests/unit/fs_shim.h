/* SPDX-License-Identifier: MIT
 * Operations on the live tree without a kernel, for the tests of fs/: what names.c and open.c
 * do between a request and its answer. In C, because fs.h is (its atomics are not C++). */
#ifndef CAIRN_FS_SHIM_H
#define CAIRN_FS_SHIM_H

#include "staging/staging.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fs;

/* A tree on the staging that o opens: replayed as the next worker does, or as the next mount
 * (`first`). 0 or -errno; *out is to be killed in either case, unless NULL. */
int shim_open(const struct staging_opts *o, bool first, bool start, struct fs **out);
int shim_start(struct fs *fs);
/* As a kill: everything stays where it is. fs is freed. */
void shim_kill(struct fs *fs);
struct staging *shim_staging(struct fs *fs);

/* From now on fstatat, statx and openat of this last component fail, in the whole process. NULL: none. */
void shim_fail(const char *name, int err);

/* The inode `real` shows this number from now on, as if it had got a freed one's. 0: none does. */
void shim_show_ino(uint64_t real, uint64_t shown);

/* The next statx of this last component, "renameat" or (by "closedir") reading of a directory is done, and
 * does not return until shim_let_answer(). */
void shim_answer_late(const char *name);
void shim_await_late(void);
void shim_let_answer(void);

/* After so many steps (a change of names in the store is two) the publisher stands still, as in a
 * worker that is killed there. For a process that ends by _exit(2). */
void shim_stop_publisher(int calls);
bool shim_publisher_stopped(void);
/* All that is durable leaves staging. */
void shim_evict(struct fs *fs);

/* All: 0 or -errno, as the kernel would be answered. */
int shim_lookup(struct fs *fs, uint64_t dir, const char *name, uint64_t *id);
int shim_mkdir(struct fs *fs, uint64_t dir, const char *name, uint64_t *id);
int shim_symlink(struct fs *fs, uint64_t dir, const char *name, const char *target);
int shim_create(struct fs *fs, uint64_t dir, const char *name, uint64_t *id, uint64_t *fh);
/* flags: O_RDONLY, O_WRONLY, O_TRUNC. Looks again after ESTALE, as the kernel does. */
int shim_open_file(struct fs *fs, uint64_t dir, const char *name, int flags, uint64_t *fh);
int shim_write(struct fs *fs, uint64_t fh, const void *buf, size_t len, uint64_t off);
int shim_close(struct fs *fs, uint64_t fh);
int shim_unlink(struct fs *fs, uint64_t dir, const char *name);
int shim_rmdir(struct fs *fs, uint64_t dir, const char *name);
int shim_rename(struct fs *fs, uint64_t dir, const char *name, uint64_t dir2, const char *name2);
int shim_link(struct fs *fs, uint64_t id, uint64_t dir, const char *name);
int shim_chmod(struct fs *fs, uint64_t id, mode_t mode);
int shim_forget(struct fs *fs, uint64_t id);
/* What is held in memory once the upkeep has been round: nodes, names. */
void shim_held(struct fs *fs, size_t *nodes, size_t *names);
int shim_readlink(struct fs *fs, uint64_t id, char *buf, size_t cap);
int shim_list(struct fs *fs, uint64_t dir, int (*fn)(void *arg, const char *name), void *arg);
int shim_stat(struct fs *fs, uint64_t id, struct stat *st);
ssize_t shim_read(struct fs *fs, uint64_t id, void *buf, size_t cap);
/* How many places of it are remembered; it is known. */
unsigned shim_places(struct fs *fs, uint64_t id);
/* A descriptor of the store's file with what an open handle shows, as lseek(2) wants one. */
int shim_open_kept(struct fs *fs, uint64_t fh);
/* The staged file of a node, 0 = none. */
uint64_t shim_staged(struct fs *fs, uint64_t id);
/* The node of an open handle, 0 = no such. */
uint64_t shim_handle(struct fs *fs, uint64_t fh, bool *writer);
unsigned shim_handles(struct fs *fs);
bool shim_is_control(uint64_t id);	/* is it .cairn's, and no file's or directory's? */
/* The first half of a close, answered with success. */
int shim_flush(struct fs *fs, uint64_t fh);
/* The mount is gone, and with it the second halves. */
unsigned shim_close_all(struct fs *fs);
int shim_rotate(struct fs *fs);
/* Places in the order: of the last version of id, 0 = none; of the last change of a name. */
uint64_t shim_seal_seq(struct fs *fs, uint64_t id);
uint64_t shim_name_seq(struct fs *fs, uint64_t dir, const char *name);

/* expect.c */
uint64_t shim_expect(struct fs *fs, uint64_t dir, const char *name);
void shim_expect_note(struct fs *fs, uint64_t dir, const char *name, uint64_t size);

#ifdef __cplusplus
}
#endif
#endif

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
/* What is held in memory once the house has been round: nodes, names. */
void shim_held(struct fs *fs, size_t *nodes, size_t *names);
int shim_stat(struct fs *fs, uint64_t id, struct stat *st);
ssize_t shim_read(struct fs *fs, uint64_t id, void *buf, size_t cap);
/* The node of an open handle, 0 = no such. */
uint64_t shim_handle(struct fs *fs, uint64_t fh, bool *writer);
unsigned shim_handles(struct fs *fs);
int shim_rotate(struct fs *fs);

/* expect.c */
uint64_t shim_expect(struct fs *fs, uint64_t dir, const char *name);
void shim_expect_note(struct fs *fs, uint64_t dir, const char *name, uint64_t size);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: MIT
 * .cairn/latest: what its files share. All of this belongs to the one thread that answers, and is
 * called without the tree lock.
 */
#ifndef CAIRN_LATEST_H
#define CAIRN_LATEST_H

#include <string.h>

#include "fs/formats/formats.h"
#include "fs/fs.h"

/* ---- latest_find.c: directories of the store ---- */

struct ldir {			/* a directory as it was read */
	int fd;
	struct stat st;
	struct ckpt_name *v;
	size_t n, cap;
};

/* STORE's path below fd, no symlink followed; a descriptor or -errno. */
int latest_open(int fd, const char *path, int flags);
/* The names in STORE/path, sorted. d->fd stays open until ldir_close(). */
int ldir_read(struct fs *fs, const char *path, struct ldir *d);
int ldir_add(struct ldir *d, const char *name, bool is_dir);
void ldir_close(struct ldir *d);

static inline const char *latest_base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* ---- what is known of a checkpoint ---- */

struct lknown {			/* a checkpoint that was looked at */
	char *path;
	struct stat dir;
	struct ckpt_kind kind;
	uint64_t print;		/* of all its names, sizes and stamps; 0: not judged */
	struct ckpt_verdict verdict;
};

struct lknown *lknown_find(const char *path);	/* NULL: nothing */
struct lknown *lknown_set(const char *path);	/* as it was, or new; NULL: no memory */
/* A change in the same tick as the last one leaves the same stamp: can none come any more? */
bool latest_settled(struct timespec t);

/* ---- looking for them ---- */

struct lfound {
	struct fs *fs;
	const struct caller *who;
	const char *top;	/* from the store's root */
	uid_t owner;		/* of top */
	struct ckpt_found *v;
	size_t n, cap;
	char **todo;		/* directories, below top */
	size_t n_todo, cap_todo, n_dirs;
};

/* Whose checkpoints count: the asked directory's owner's, root's, the caller's. Anybody else who may
 * write below it would decide what they go on from. */
bool lfound_trusts(const struct lfound *f, const struct stat *st);
/* What the caller could find himself. */
int lfound_all(struct lfound *f);	/* f->v, the newest first; -E2BIG: too many directories */
void lfound_free(struct lfound *f);
bool latest_loose(enum ckpt_format k);	/* may be files of tensors that belong to nothing */

/* ---- latest_safe.c ---- */

/* For ckpt_newest_safe(); ctx is the struct lfound. */
int lfound_is_safe(void *ctx, size_t i);

#endif

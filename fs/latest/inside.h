/* SPDX-License-Identifier: MIT
 * What the files of latest/ share. Only the thread that answers uses it, without the tree lock.
 */
#ifndef CAIRN_FS_LATEST_INSIDE_H
#define CAIRN_FS_LATEST_INSIDE_H

#include "fs/formats/formats.h"
#include "fs/latest/latest.h"
#include "fs/parser/parser.h"
#include "fs/remote/remote.h"
#include "io/clock.h"

/* ---- latest_find.c: directories of the store ---- */

struct ldir { /* a directory as read */
	int fd;
	struct stat st;
	struct ckpt_name *v;
	size_t n, cap;
};

/* Reads the names in STORE/path, sorted. d->fd stays open until ldir_close(). */
int ldir_read(struct fs *fs, const char *path, struct ldir *d);
int ldir_add(struct ldir *d, const char *name, bool is_dir);
void ldir_close(struct ldir *d);

static inline const char *latest_base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* ---- the cache of checkpoints ---- */

struct lknown { /* a checkpoint that was examined */
	char *path;
	struct stat dir;
	struct ckpt_kind kind;
	/* a hash of all its names, sizes and timestamps; 0: not examined */
	uint64_t fingerprint;
	struct ckpt_verdict verdict;
};

struct lknown *lknown_find(const char *path); /* NULL: not cached */
struct lknown *lknown_set(const char *path); /* existing or new; NULL: no memory */
/* Whether no further change can leave the same timestamp: those in one clock tick do. */
bool latest_settled(struct timespec t);

/* ---- the search ---- */

struct lfound {
	struct fs *fs;
	const struct caller *who;
	const char *top; /* from the store's root */
	uid_t owner; /* of top */
	struct ckpt_found *v;
	size_t n, cap;
	struct remote_list *tier; /* NULL: there is none */
	bool unread; /* some directory could not be read */
	bool damaged; /* lfound_is_safe() found that of one that only the tier has */
	char **todo; /* directories still to be read, relative to top */
	size_t n_todo, cap_todo, n_dirs;
};

/* Whether a file's owner is trusted: the owner of the directory that was asked about, root, or the
 * caller. Any other user who may write below it could otherwise choose what a job resumes from. */
bool lfound_trusts(const struct lfound *f, const struct stat *st);
/* Only checkpoints that the caller could find by listing. */
/* f->v, the newest first; -E2BIG: too many directories. Of the tier: what is not in the store. */
int lfound_all(struct lfound *f);
void lfound_free(struct lfound *f);

/* ---- latest_safe.c ---- */

/* For ckpt_newest_safe(); ctx is the struct lfound. */
int lfound_is_safe(void *ctx, size_t i);

/* ---- below.c; the tree lock is held ---- */

/* Has the store all that is at n or below, safely? */
bool node_all_durable(struct fs *fs, struct node *n);

#endif

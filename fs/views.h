/* SPDX-License-Identifier: MIT
 * .cairn/views: checkpoints shown as other files. views.c has the names and answers the kernel,
 * views_ckpt.c reads checkpoints through the live tree. Nothing here is called with the tree lock
 * held but views_forget().
 */
#ifndef CAIRN_VIEWS_H
#define CAIRN_VIEWS_H

#include "fs/formats/formats.h"
#include "fs/fs.h"

struct vfile {			/* of a checkpoint; the version that was parsed */
	const char *name;	/* relative to it */
	uint64_t ino, size;
	struct timespec mtime;
	int fd;			/* in the store; -1 */
	struct staged *sf;	/* or its bytes in staging */
	unsigned users;
	uint64_t next, ahead;	/* where a reader in order goes on; asked of the disk up to here */
	struct vckpt *c;
};

/* A version of a checkpoint, parsed. Read-only but for its open files. */
struct vckpt {
	struct vckpt *next;	/* in the cache, last used first */
	unsigned refs;
	struct fs *fs;
	char *path;		/* below the mount's root */
	uint64_t version;	/* of the files it was read from: names, sizes, times */
	uint64_t checked_ns;	/* it was still so */
	uint64_t cost;		/* bytes that were parsed */
	struct timespec dir_mtime;
	struct stat st;		/* see vckpt_stat() */
	struct fmt_set *set;	/* NULL: refused */
	struct view_base *base;
	char why[320];		/* of a refusal, one line; "": none */
	bool partly;		/* the set is fine, but cannot be one file */
	struct vfile *file;	/* the set's, then what only metadata is in */
	size_t n_files;

	pthread_mutex_t lock;	/* file[].fd, .sf, .users; before the tree lock */
	unsigned n_open;
};

/* The complete checkpoint at that path as it is now; parsed once a version. now: do not
 * trust what was seen within the last second. -ENOENT: there is none, or it is not complete.
 * With c->set NULL it is complete and cannot be served; c->why says why. */
int vckpt_get(struct fs *fs, const char *path, bool now, struct vckpt **out);
/* That version, if it is in the cache or is still what is there. -ESTALE. */
int vckpt_get_version(struct fs *fs, const char *path, uint64_t version, struct vckpt **out);
void vckpt_put(struct vckpt *c);
void vckpt_stat(struct vckpt *c, struct stat *out);	/* what its views show: owner, mode, mtime */
/* Nobody has a view of that checkpoint open: its files need not be kept. */
void vckpt_idle(const char *path);

/* For struct view_io; ctx is the checkpoint. */
int vckpt_file_get(void *ctx, uint32_t file, struct fmt_source *out);
void vckpt_file_put(void *ctx, uint32_t file);

/* The node at a path below the root; takes and keeps the tree lock only when it succeeds:
 * then call views_walk_done(). */
int views_walk(struct fs *fs, const char *path, struct node **out);
void views_walk_done(struct fs *fs, struct node *n);

#endif

/* SPDX-License-Identifier: MIT
 * .cairn/views: checkpoints shown as other files.
 *
 *	views.c		operations, answers, open handles
 *	views_jobs.c	threads for what may take long
 *	views_node.c	what the kernel knows by an id
 *	views_name.c	what a name stands for
 *	views_list.c	listings
 *	views_layout.c	the files that are shown, laid out
 *	views_ckpt.c	the cache of parsed checkpoints
 *	views_load.c	how one is parsed
 *	views_file.c	its files, through the live tree
 *
 * Nothing here is called with the tree lock held but views_forget().
 */
#ifndef CAIRN_VIEWS_H
#define CAIRN_VIEWS_H

#include "fs/formats/formats.h"
#include "fs/fs.h"

/* ---- views_file.c ----------------------------------------------------------------- */

#define VFILE_READ_MAX (1u << 20)	/* what is read at once; an item's header never is larger */

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

/* What is at dir/name; open: somebody writes it. */
int views_see(struct fs *fs, const char *dir, const char *name, struct stat *st, bool *open);

bool vfile_is(const struct vfile *f, const struct stat *st);	/* the same version */
/* A source of at most VFILE_READ_MAX bytes a read, usable until vfile_put(). -ESTALE: the tree has
 * another version, or somebody writes it. */
int vfile_get(struct vfile *f, struct fmt_source *out);
void vfile_put(struct vfile *f);
/* Both with the checkpoint's lock held, unless nobody else has it. */
void vfile_close(struct vfile *f);
void vfile_close_unused(struct vckpt *c);

/* For struct view_io; ctx is the checkpoint. */
int vckpt_file_get(void *ctx, uint32_t file, struct fmt_source *out);
void vckpt_file_put(void *ctx, uint32_t file);
int vckpt_item(void *ctx, const struct fmt_source *item, struct fmt_set *set, struct fmt_error *e);

/* ---- views_load.c ----------------------------------------------------------------- */

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

/* Parses what is at that path now, and gives the first reference. -ENOENT: there is none, or it is
 * not complete. What is complete and cannot be read is a result, too: c->why. */
int vckpt_load(struct fs *fs, const char *path, struct vckpt **out);
void vckpt_free(struct vckpt *c);
/* Readable for who may read all of its files. Where owners differ, who was shut out by one of
 * them must not get in as somebody else. */
void vckpt_restrict(struct stat *all, const struct stat *st, bool first);

/* ---- views_ckpt.c ----------------------------------------------------------------- */

/* The complete checkpoint at that path as it is now; parsed once a version. now: do not
 * trust what was seen within the last second. -ENOENT: there is none, or it is not complete.
 * With c->set NULL it is complete and cannot be served; c->why says why. */
int vckpt_get(struct fs *fs, const char *path, bool now, struct vckpt **out);
/* That version, if it is in the cache or is still what is there. -ESTALE. */
int vckpt_get_version(struct fs *fs, const char *path, uint64_t version, struct vckpt **out);
void vckpt_put(struct vckpt *c);
/* May `who` reach and read each of its files? 0; -EACCES; -ENOENT: not even know that one is there.
 * exact: and are they still that version? -ESTALE. */
int vckpt_may(struct vckpt *c, const struct caller *who, bool exact);
void vckpt_stat(struct vckpt *c, struct stat *out);	/* what its views show: owner, mode, mtime */
/* Nobody has a view of that checkpoint open: its files need not be kept. */
void vckpt_idle(const char *path);

/* ---- views_node.c ----------------------------------------------------------------- */

enum vkind { V_DIR, V_MODEL, V_REFUSED, V_SPLIT, V_PART, V_INDEX, V_RESHARD, V_WORLD, V_RANK, V_TENSORS, V_NPY };

struct vwhat {			/* a name stands for */
	enum vkind kind;
	uint32_t ranks;
	uint64_t i;		/* part, rank, or tensor */
	uint64_t version;	/* of the checkpoint; V_DIR: 0 */
	const char *path;	/* of the directory above it that is one of the mount's */
};

struct vnode {
	struct vnode *id_next, *what_next;
	uint64_t id, nlookup;
	struct vwhat what;	/* path is owned */
	struct stat st;		/* as last seen */
};

bool vwhat_same(const struct vwhat *a, const struct vwhat *b);
/* NULL: unknown. Lives while the kernel knows it, which it does while it asks about it. */
struct vnode *vnode_find(uint64_t id);
/* The node of w, known to the kernel once more; NULL: no memory. */
struct vnode *vnode_get(const struct vwhat *w, const struct stat *st);
/* What was last seen of it, which is `seen` from now on unless that is NULL. */
void vnode_stat(struct vnode *n, const struct stat *seen, struct stat *out);

/* ---- views_name.c ----------------------------------------------------------------- */

struct vspecial {		/* stands in the directory of a checkpoint */
	const char *name;
	enum vkind kind;
};

#define N_VSPECIALS 5u
extern const struct vspecial vspecials[N_VSPECIALS];

bool vkind_is_dir(enum vkind k);
bool vspecial_has(const struct vckpt *c, enum vkind k);
/* A tensor's name as one of a file: '/' is %2F, '%' is %25. False: too long. */
bool vname_encode(const char *name, char buf[MAX_NAME + 1]);
/* What `name` in `dir` stands for. *path is what w->path then points to, the caller frees. */
int vwhat_find(struct fs *fs, const struct vwhat *dir, const char *name, struct vwhat *w, char **path);
/* The checkpoint of w, NULL for V_DIR. -ENOENT: it has another version: what is below it goes. */
int vwhat_version(struct fs *fs, const struct vwhat *w, struct vckpt **c);
int vwhat_stat(struct fs *fs, const struct caller *who, const struct vwhat *w, struct vckpt *c,
	       struct stat *st);
/* Of the real directory: who may not go there may not go here. */
int views_dir_stat(struct fs *fs, const struct caller *who, const char *path, struct stat *st);

/* ---- views_layout.c --------------------------------------------------------------- */

#define VIEWS_PART_BYTES 5000000000u	/* Hugging Face's "5GB" */

struct vlayout {
	struct vlayout *next;
	unsigned refs;
	struct vwhat what;	/* path is c's */
	struct vckpt *c;
	struct view *view;
};

/* -ENOENT: there is no such file; -ESTALE: no such version. Both give a reference. */
int vlayout_get(struct fs *fs, const struct vwhat *w, struct vlayout **out);
struct vlayout *vlayout_find(const struct vwhat *w);	/* NULL: it would have to be made */
void vlayout_put(struct vlayout *l);

/* ---- views_jobs.c, views_list.c --------------------------------------------------- */

struct vjob;
typedef void vjob_answer(struct vjob *j);

struct vjob {
	struct vjob *next;
	vjob_answer *answer;	/* called by those threads */
	fuse_req_t req;
	uint64_t id;
	size_t size;
	off_t off;
	bool plus;
	struct fuse_file_info fi;
	struct caller who;
	char name[];
};

struct vjob *vjob_new(fuse_req_t req, vjob_answer *answer, uint64_t id, const char *name);	/* NULL: answered */
void vjob_put(struct vjob *j);		/* to be answered; frees it */
/* Fills buf (j->size bytes) from j->off. c: NULL for V_DIR. */
int views_list(struct vjob *j, const struct vwhat *w, const struct vckpt *c, char *buf, size_t *used);

#endif

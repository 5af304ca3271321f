/* SPDX-License-Identifier: MIT
 * What the files of views/ share.
 *
 *	views.c		operations, answers, open handles
 *	views_jobs.c	threads for requests that may take long
 *	views_node.c	nodes: what an id stands for
 *	views_name.c	names: what a name stands for
 *	views_list.c	listings
 *	views_layout.c	the layout of each file shown
 *	views_ckpt.c	the cache of parsed checkpoints
 *	views_cache.c	what both caches are
 *	views_load.c	parsing one
 *	views_file.c	reading its files through the live tree
 *
 * Only views_forget() may be called with the tree lock held.
 */
#ifndef CAIRN_FS_VIEWS_INSIDE_H
#define CAIRN_FS_VIEWS_INSIDE_H

#include "fs/formats/formats.h"
#include "fs/ops/ops.h"
#include "fs/parser/parser.h"
#include "fs/views/views.h"

/* ---- views_cache.c ---- */

struct vcached { /* the first member of what is cached */
	struct vcached *next;
	unsigned refs;
	uint64_t cost;
};

/* The most recently used, first; the cache has one reference of each. */
struct vcache {
	pthread_mutex_t *lock; /* guards the list and the references */
	struct vcached *first;
	unsigned most; /* that it keeps, */
	uint64_t most_cost; /* and their cost; the first one stays in any case */
};

/* The one of that key, and a reference; NULL: it is not cached. */
struct vcached *vcache_find(struct vcache *v, bool (*is)(const struct vcached *, const void *key),
			    const void *key);
/* Adds x, which nobody else knows yet; the caller gets a reference, too. Calls drop, without the
 * lock, for a reference of what is cached no longer. */
void vcache_add(struct vcache *v, struct vcached *x, uint64_t cost, void (*drop)(struct vcached *));
/* Takes x out of the cache, unless another thread has. */
void vcache_drop(struct vcache *v, struct vcached *x, void (*drop)(struct vcached *));
/* Whether that was the last reference: the caller frees x. */
bool vcached_put(struct vcache *v, struct vcached *x);

/* ---- views_file.c ---- */

#define VFILE_READ_MAX (1u << 20) /* longest read; an item's header is never longer */

struct vfile { /* a file of a checkpoint, of the parsed version */
	const char *name; /* relative to the checkpoint */
	uint64_t ino, size;
	struct timespec mtime;
	int fd; /* in the store; or -1 */
	struct staged *sf; /* or its bytes in staging */
	unsigned users;
	/* a sequential reader's next offset; end of what was prefetched */
	uint64_t next, ahead;
	struct vckpt *c;
};

/* The file at dir/name now; open: a writer has it open. */
int views_see(struct fs *fs, const char *dir, const char *name, struct stat *st, bool *open);

/* whether it is the same version */
bool vfile_is(const struct vfile *f, const struct stat *st);
/* A source of at most VFILE_READ_MAX bytes a read, valid until vfile_put(). -ESTALE: the tree has
 * another version, or a writer has it open. */
int vfile_get(struct vfile *f, struct fmt_source *out);
void vfile_put(struct vfile *f);
/* For both: the checkpoint's lock held, unless the caller has the only reference. */
void vfile_close(struct vfile *f);
void vfile_close_unused(struct vckpt *c);

/* For struct view_io; ctx is the checkpoint. */
int vckpt_file_get(void *ctx, uint32_t file, struct fmt_source *out);
void vckpt_file_put(void *ctx, uint32_t file);
int vckpt_item(void *ctx, const struct fmt_source *item, struct fmt_set *set, struct fmt_error *e);

/* ---- views_load.c ---- */

/* A parsed version of a checkpoint. Constant, except for its open files. */
struct vckpt {
	struct vcached cached;
	struct fs *fs;
	char *path; /* relative to the mount's root */
	uint64_t version; /* hash of the files it was read from: names, sizes, times */
	uint64_t checked_ns; /* when it was last found to be current */
	uint64_t cost; /* bytes that were parsed */
	struct timespec dir_mtime;
	struct stat st; /* vckpt_stat() returns it */
	struct fmt_set *set; /* NULL: refused */
	struct view_base *base;
	char why[320]; /* why it was refused, one line; "": it was not */
	bool partly; /* the set is valid but does not fit in one file */
	struct vfile *file; /* the set's, then those that have metadata only */
	size_t n_files;

	pthread_mutex_t lock; /* guards file[].fd, .sf, .users, n_open */
	unsigned n_open;
};

/* Parses the checkpoint at that path; the caller owns it. -ENOENT: there is none,
 * or it is incomplete. A complete one that cannot be read is a result, too: see c->why. */
int vckpt_load(struct fs *fs, const char *path, struct vckpt **out);
void vckpt_free(struct vckpt *c);
/* Merges st into the permissions of a view: those who may read all of its files. If owners differ,
 * a user whom one file excludes as owner or group must not get access as another class. */
void vckpt_restrict(struct stat *all, const struct stat *st, bool first);

/* ---- views_ckpt.c ---- */

/* The complete checkpoint at that path as it is now; each version is parsed once. now: check again
 * even if it was checked within the last second. -ENOENT: there is none, or it is incomplete. If
 * c->set is NULL, it is complete but has no views; c->why says why. */
int vckpt_get(struct fs *fs, const char *path, bool now, struct vckpt **out);
/* That version, if it is cached or still current. Else -ESTALE. */
int vckpt_get_version(struct fs *fs, const char *path, uint64_t version, struct vckpt **out);
void vckpt_put(struct vckpt *c);
/* Whether `who` may reach and read each of its files: 0; -EACCES; -ENOENT: nor know that it exists.
 * exact: checks, too, that they are still that version, else -ESTALE. */
int vckpt_may(struct vckpt *c, const struct caller *who, bool exact);
void vckpt_stat(struct vckpt *c, struct stat *out); /* owner, mode, mtime of its views */
/* The last handle of that checkpoint's views was closed: its files need not stay open. */
void vckpt_idle(const char *path);

/* ---- views_node.c ---- */

enum vkind {
	V_DIR,
	V_MODEL,
	V_REFUSED,
	V_SPLIT,
	V_PART,
	V_INDEX,
	V_RESHARD,
	V_WORLD,
	V_RANK,
	V_TENSORS,
	V_NPY
};

struct view_key { /* what a name stands for */
	enum vkind kind;
	uint32_t ranks;
	uint64_t i; /* part, rank, or tensor */
	uint64_t version; /* of the checkpoint; 0 for V_DIR */
	/* of the lowest directory on the way that is also in the mount */
	const char *path;
};

struct vnode {
	struct vnode *id_next, *key_next;
	uint64_t id, nlookup;
	struct view_key key; /* owns its path */
	struct stat st; /* as last seen */
};

bool view_key_same(const struct view_key *a, const struct view_key *b);
/* NULL: unknown. Valid while the kernel knows it, hence while a request for it is answered. */
struct vnode *vnode_find(uint64_t id);
/* The node of key, with one more lookup counted; NULL: no memory. */
struct vnode *vnode_get(const struct view_key *key, const struct stat *st);
/* Returns the attributes last seen; `seen`, unless NULL, replaces them. */
void vnode_stat(struct vnode *n, const struct stat *seen, struct stat *out);

void views_forget(uint64_t id, uint64_t count); /* the tree lock may be held */

/* ---- views_name.c ---- */

struct vspecial { /* a special name in a checkpoint's directory */
	const char *name;
	enum vkind kind;
};

#define N_VSPECIALS 5u
extern const struct vspecial vspecials[N_VSPECIALS];

bool vkind_is_dir(enum vkind k);
bool vspecial_has(const struct vckpt *c, enum vkind k);
/* Encodes a tensor's name as a file name: '/' as %2F, '%' as %25. False: too long. */
bool vname_encode(const char *name, char buf[MAX_NAME + 1]);
/* What `name` in `dir` stands for. *path is the buffer that key->path points to; the caller frees
 * it. */
int view_key_find(struct fs *fs, const struct view_key *dir, const char *name, struct view_key *key,
		  char **path);
/* The checkpoint of key; NULL for V_DIR. -ENOENT: it has another version, and the names below key
 * are gone. */
int view_key_version(struct fs *fs, const struct view_key *key, struct vckpt **c);
int view_key_stat(struct fs *fs, const struct caller *who, const struct view_key *key,
		  struct vckpt *c, struct stat *st);
/* Attributes and permissions of the real directory. */
int views_dir_stat(struct fs *fs, const struct caller *who, const char *path, struct stat *st);

/* ---- views_layout.c ---- */

#define VIEWS_PART_BYTES 5000000000u /* Hugging Face's "5GB" */

struct vlayout {
	struct vcached cached;
	struct view_key key; /* path belongs to c */
	struct vckpt *c;
	struct view *view;
};

/* -ENOENT: there is no such file; -ESTALE: no such version. Both functions return a reference. */
int vlayout_get(struct fs *fs, const struct view_key *key, struct vlayout **out);
struct vlayout *vlayout_find(const struct view_key *key); /* NULL: not cached */
void vlayout_put(struct vlayout *l);

/* ---- views_jobs.c, views_list.c ---- */

struct vjob;
typedef void vjob_answer(struct vjob *j);

struct vjob {
	struct vjob *next;
	vjob_answer *answer; /* called by those threads */
	fuse_req_t req;
	uint64_t id;
	size_t size;
	off_t off;
	bool plus;
	struct fuse_file_info fi;
	struct caller who;
	char name[];
};

/* NULL: no memory, and answered. */
struct vjob *vjob_new(fuse_req_t req, vjob_answer *answer, uint64_t id, const char *name);
void vjob_put(struct vjob *j); /* queues it; it is freed once answered */
/* Fills buf (j->size bytes) from j->off on. c: NULL for V_DIR. */
int views_list(struct vjob *j, const struct view_key *key, const struct vckpt *c, char *buf,
	       size_t *used);

#endif

/* SPDX-License-Identifier: MIT
 *
 * A checkpoint for the subcommands: a directory (or one file) on a mount, in a store
 * or anywhere else, read with plain file calls and parsed by fs/formats/.
 */
#ifndef CAIRN_CKPT_H
#define CAIRN_CKPT_H

#include "tools/cairn/base/cli.h"

struct ckpt {
	const char *path; /* as given by the user, or as found; owned */
	/* directory of the names; the checkpoint itself or its parent */
	int dir;
	bool alone; /* one file */
	bool on_mount; /* states are available */
	struct names names;
	struct ckpt_name *name; /* names.n of them; .fault is owned */
	double quiet_s; /* since the last change */
	struct ckpt_kind kind;
	/* what its metadata lists; NULL: not read, or unreadable */
	struct fmt_set *set;
	struct safetensors_index index; /* index.v NULL: none */
};

#define CKPT_EMPTY ((struct ckpt){.dir = -1})
#define CLEANUP_CKPT __attribute__((cleanup(ckpt_close)))

/* Looks at names only: kind NONE if it is not a checkpoint. dirfd: the directory of name
 * (or AT_FDCWD); path: the name in messages. on_mount: states are available. 0 or -errno;
 * -ENOTDIR: a file of unknown kind. */
int ckpt_open(int dirfd, const char *name, const char *path, bool on_mount, struct ckpt *out);
void ckpt_close(struct ckpt *c);

/* Opens what the user named, on a mount or not; CAIRN_OK, or the error is reported. */
int ckpt_need(const char *path, struct ckpt *out);

/* Called by ckpt_read() for each file that does not match its format. */
typedef void (*ckpt_bad_fn)(void *ctx, const char *file, const struct fmt_error *e, int err);

/* Reads metadata and headers into c->set and finishes it. A broken file gets a fault, is
 * reported, and left out. `deep`: also files with values that the metadata does not
 * describe (torch.save files in the directory). -ENOMEM, or 0. */
int ckpt_read(struct ckpt *c, bool deep, ckpt_bad_fn bad, void *ctx);

/* Of a plain one also of what is in its subdirectories, and is a checkpoint. */
void ckpt_verdict(const struct ckpt *c, struct ckpt_verdict *out);
bool ckpt_is_safe(const struct ckpt *c, const struct ckpt_verdict *v);
/* What one is that is not: its state, and why. */
#define CKPT_UNSAFE_TEXT 224
void ckpt_say_unsafe(const struct ckpt_verdict *v, char out[CKPT_UNSAFE_TEXT]);

/* A file of the checkpoint, never through a symlink that leads out of it; O_RDONLY or
 * -errno. */
int ckpt_open_file(const struct ckpt *c, const char *name);
/* Is c->name[i] a file of its directory that is the checkpoint's? Of a plain one, only what has
 * tensors. */
bool ckpt_is_own(const struct ckpt *c, size_t i);
typedef int (*ckpt_file_fn)(void *ctx, const char *path, const struct stat *st);
/* Calls fn for each file of the checkpoint, with its path from c->dir. What belongs to a plain one
 * is also what has no tensors: config.json, tokenizer.json; not what cairnfs put there, what has a
 * name of unfinished files, special files, and, of a loose one, what tells which the newest of a
 * run is. *others: the directory of one that is not loose has such. fn's result, if it is not 0, or
 * -errno. */
int ckpt_each_file(const struct ckpt *c, ckpt_file_fn fn, void *ctx, bool *others);
/* Are there files of it without which it is whole? */
bool ckpt_may_have_beside(enum ckpt_format format);
/* What is not beside although its name does not say so: the checkpoints inside, but not of a plain
 * one without a step; and, once c was read, what its commit file lists. Paths from c->dir, for
 * names_free(). 0 or -errno. */
int ckpt_inside(const struct ckpt *c, struct names *out);
/* Does a file lie beside those of tensors, and in nothing of ckpt_inside(): config.json,
 * logs/train.log? path: from c->dir. It may be written at any time, and the checkpoint is whole
 * without. */
bool ckpt_is_beside(enum ckpt_format format, const struct names *inside, const char *path);
/* Index in c->name, or -1. */
ssize_t ckpt_find(const struct ckpt *c, const char *name);

/* The names without which the rest is not a complete checkpoint. name: without its directory. */
bool ckpt_commits(const char *name);

/* Removes the checkpoint's directory `name` in top: what commits it first, then under another
 * name (remove.c). 0 or -errno. */
int ckpt_remove(int top, const char *name);

/* ---- all below a directory (find.c) ------------------------------------------ */

struct ckpt_search {
	const char *top; /* in messages */
	int fd; /* of top */
	uid_t owner; /* of top: only its checkpoints count, root's and the caller's ... */
	bool everyone; /* ... unless this is set */
	bool on_mount, verbose;
	bool incomplete; /* output: something could not be read, and was reported */
	struct ckpt_found *v; /* output: sorted, newest first */
	size_t n, cap;
};

/* Finds them by their names; 0 or -errno. */
int ckpt_search(struct ckpt_search *s);
void ckpt_search_free(struct ckpt_search *s);
/* Opens and reads s->v[i], which the caller closes. 0 or -errno. */
int ckpt_search_judge(const struct ckpt_search *s, size_t i, struct ckpt *c,
		      struct ckpt_verdict *v);
/* What is complete by its own files is not if a checkpoint below is not. */
void ckpt_judge_inside(const struct ckpt *c, struct ckpt_verdict *v);
/* Are there checkpoints below? Loose files that are no model are none then: the kind becomes
 * NONE. */
void ckpt_look_inside(struct ckpt *c);
/* For ckpt_newest_safe(): is s->v[i] safe, and whose is it? With s->verbose, says why not. */
int ckpt_search_is_safe(void *search, size_t i);
/* Does a part of c belong to somebody whose checkpoints do not count? */
bool ckpt_search_is_foreign(const struct ckpt_search *s, const struct ckpt *c);
/* "top/below", malloc()ed; NULL: no memory. */
char *ckpt_search_path(const struct ckpt_search *s, const char *below);

/* ---- pieces (piece.c) ------------------------------------------------------- */

/* Where the elements of a piece are in its file: the offset of the first, and strides in
 * elements (row-major ones filled in). */
struct payload {
	uint64_t at;
	uint64_t stride[FMT_MAX_DIMS];
};

/* s: the piece's file. An item is opened, and compared with the metadata.
 * -EBADMSG, -ENOTSUP (the piece's refusal), or the error of the read. */
int ckpt_payload(const struct fmt_tensor *t, const struct fmt_piece *p, const struct fmt_source *s,
		 struct payload *out, struct fmt_error *e);

/* The object in an item that is not a tensor (torch.save of it). *out NULL: torch.save's old
 * format, which has no archive. -EBADMSG, -ENOTSUP, or the error of the read; e->at is an offset in
 * the item. */
int object_open(const struct fmt_source *item, struct zip **out, struct fmt_error *e);
/* Checks every entry of its archive against its CRC; without an archive it passes. buf: n bytes to
 * read into. */
int object_check(const struct fmt_source *item, char *buf, size_t n, struct fmt_error *e);

struct one_file {
	int fd;
	struct fmt_source source;
	dev_t dev;
	ino_t ino;
	char sum[48]; /* its checksum xattr, or "" */
	unsigned users; /* stays open while there are any */
	int direct; /* a second descriptor, with O_DIRECT; -1: none */
};

/* The files of a checkpoint's set, opened when asked for; a bounded number stays open. */
struct files {
	const struct ckpt *c;
	struct one_file *v;
	unsigned n_open;
	/* all of them are read, in order: past the page cache if possible */
	bool whole;
};

int files_open(struct files *f, const struct ckpt *c);
void files_close(struct files *f);
/* Valid until the next call, or while it has users. 0 or -errno. */
int files_get(struct files *f, uint32_t i, struct one_file **out);
bool is_on_fuse(int fd);

/* Two checkpoints, side by side. */
struct compare {
	struct files a, b;
	char *buf;
	uint64_t read; /* bytes, of both */
};

int compare_open(struct compare *c, const struct ckpt *a, const struct ckpt *b);
void compare_close(struct compare *c);
/* Tensors of equal shape and dtype, split in any way. Reads nothing if two extents are the same,
 * or their files have the same checksum. 0; or -errno, and e says why they cannot be compared. */
int compare_tensors(struct compare *c, const struct fmt_tensor *t, const struct fmt_tensor *u,
		    bool *same, struct fmt_error *e);
/* Items that are not tensors: the same bytes, or the same plain value. */
int compare_blobs(struct compare *c, const struct fmt_blob *x, const struct fmt_blob *y, bool *same,
		  struct fmt_error *e);

/* ---- text ------------------------------------------------------------------------- */

/* "4, 6"; "?" when it is longer than the buffer. */
const char *shape_text(const uint64_t *v, unsigned n, const char *between, char *buf, size_t cap);

#endif

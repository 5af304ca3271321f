/* SPDX-License-Identifier: MIT
 *
 * A checkpoint as the subcommands see it: a directory (or one file) on a mount, in a store
 * or anywhere else, read with plain file calls and understood by fs/formats/.
 */
#ifndef CAIRN_CKPT_H
#define CAIRN_CKPT_H

#include "cli.h"

struct ckpt {
	const char *path;		/* as the user wrote it, or as it was found; owned */
	int dir;			/* where the names are; the checkpoint itself or its parent */
	bool alone;			/* one file */
	bool on_mount;			/* states can be asked for */
	struct names names;
	struct ckpt_name *name;		/* names.n of them; .fault is owned */
	double quiet_s;			/* since the last change */
	struct ckpt_kind kind;
	struct fmt_set *set;		/* what its metadata lists; NULL: not read, or not readable */
	struct safetensors_index index;	/* index.v NULL: none */
};

#define CKPT_EMPTY ((struct ckpt){ .dir = -1 })
#define CLEANUP_CKPT __attribute__((cleanup(ckpt_close)))

/* Looks at names only: kind NONE when it is no checkpoint. dirfd: where name is found
 * (AT_FDCWD too); path: how it is told to the user. on_mount: ask for states. 0 or -errno;
 * -ENOTDIR: a file of no known kind. */
int ckpt_open(int dirfd, const char *name, const char *path, bool on_mount, struct ckpt *out);
void ckpt_close(struct ckpt *c);

/* What the user named, on a mount or not; CAIRN_OK, or what was wrong is told. */
int ckpt_need(const char *path, struct ckpt *out);

/* Told by ckpt_read() for each file that is not what its format says. */
typedef void (*ckpt_bad_fn)(void *ctx, const char *file, const struct fmt_error *e, int err);

/* Reads metadata and headers into c->set and finishes it. A file that is broken gets a
 * fault, is told, and left out. `deep`: also files that only hold what the metadata does not
 * describe (torch.save files beside it). -ENOMEM, or 0. */
int ckpt_read(struct ckpt *c, bool deep, ckpt_bad_fn bad, void *ctx);

void ckpt_verdict(const struct ckpt *c, struct ckpt_verdict *out);
bool ckpt_is_safe(const struct ckpt *c, const struct ckpt_verdict *v);

/* A file of the checkpoint, never through a symlink that leads out of it; O_RDONLY or
 * -errno. */
int ckpt_open_file(const struct ckpt *c, const char *name);
/* A source over a descriptor, which it borrows: *fd must outlive it. */
int ckpt_source(int *fd, struct fmt_source *out);
/* Files of tensors, which may stand beside anything: what is beside them, or in directories, is not theirs. */
bool ckpt_is_loose(const struct ckpt_kind *k);
/* Is c->name[i] a file of the checkpoint? */
bool ckpt_is_own(const struct ckpt *c, size_t i);
/* Index in c->name, or -1. */
ssize_t ckpt_find(const struct ckpt *c, const char *name);

/* ---- pieces (piece.c) ------------------------------------------------------- */

/* Where the elements of a piece lie in its file: the offset of the first, and strides in
 * elements (row-major ones filled in). */
struct payload {
	uint64_t at;
	uint64_t stride[FMT_MAX_DIMS];
};

/* s: the piece's file. An item is opened, and checked against what the metadata says of it.
 * -EBADMSG, -ENOTSUP (the piece's refusal), or what reading gave. */
int ckpt_payload(const struct fmt_tensor *t, const struct fmt_piece *p, const struct fmt_source *s,
		 struct payload *out, struct fmt_error *e);

/* The object in an item that is no tensor (torch.save of it). *out NULL: torch.save's old format, which
 * has no archive. -EBADMSG, -ENOTSUP, or what reading gave; e->at is an offset in the item. */
int object_open(const struct fmt_source *item, struct zip **out, struct fmt_error *e);
/* Every entry of its archive against its CRC; without an archive it passes. buf: n bytes to read into. */
int object_check(const struct fmt_source *item, char *buf, size_t n, struct fmt_error *e);

struct one_file {
	int fd;
	struct fmt_source source;
	dev_t dev;
	ino_t ino;
	char sum[48];		/* its checksum xattr, or "" */
	unsigned users;		/* stays open while there are any */
	int direct;		/* a second descriptor, with O_DIRECT; -1: none */
};

/* The files of a checkpoint's set, opened when asked for; a bounded number stays open. */
struct files {
	const struct ckpt *c;
	struct one_file *v;
	unsigned n_open;
	bool whole;		/* all of them are read, in order: past the page cache where that can be */
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
	uint64_t read;		/* bytes, of both */
};

int compare_open(struct compare *c, const struct ckpt *a, const struct ckpt *b);
void compare_close(struct compare *c);
/* Tensors of equal shape and dtype, cut in any way. Reads nothing where two extents are one,
 * or their files have the same checksum. 0; or -errno, and e says why it cannot be told. */
int compare_tensors(struct compare *c, const struct fmt_tensor *t, const struct fmt_tensor *u,
		    bool *same, struct fmt_error *e);
/* Items that are no tensors: the same bytes, or the same plain value. */
int compare_blobs(struct compare *c, const struct fmt_blob *x, const struct fmt_blob *y, bool *same,
		  struct fmt_error *e);

/* ---- text ------------------------------------------------------------------------- */

/* "4, 6"; "?" when it is longer than the buffer. */
const char *shape_text(const uint64_t *v, unsigned n, const char *between, char *buf, size_t cap);

#endif

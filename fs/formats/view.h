/* SPDX-License-Identifier: MIT
 *
 * Shared by the files about views: a view is a list of parts.
 */
#ifndef CAIRN_FORMATS_VIEW_H
#define CAIRN_FORMATS_VIEW_H

#include "fs/formats/inside.h"

#define VIEW_MEMORY SIZE_MAX

struct view_part { /* in order, contiguous, not empty */
	uint64_t at, bytes; /* offset in the view, length */
	size_t tensor; /* index of the tensor, then blobs; or VIEW_MEMORY */
	/* offset in the tensor's row-major bytes, in the blob, or in mem */
	uint64_t from;
};

struct view {
	struct view_base *base;
	uint64_t size;
	struct view_part *part;
	size_t n_parts, cap_parts;
	char *mem;
	size_t mem_len, mem_cap;
	bool no_memory; /* an addition failed */
};

struct view_known { /* what is known of a tensor */
	size_t first; /* index of its first piece in data_at */
	uint64_t tall; /* the largest extent of a piece in dimension 0 */
};

struct view_base {
	const struct fmt_set *set;
	struct view_known *tensor;
	_Atomic uint64_t *data_at; /* where an item's elements begin; 0: unknown */
};

struct view *view_new(struct view_base *b);
/* All additions append; view_done() reports whether one failed. */
void view_add(struct view *v, const void *bytes, size_t len);
__attribute__((format(printf, 2, 3))) void view_addf(struct view *v, const char *fmt, ...);
void view_add_tensor(struct view *v, size_t tensor, uint64_t from, uint64_t bytes);
/* Empties it; keeps its memory for the next use. */
void view_clear(struct view *v);
/* Adds an opaque blob's bytes, all of them. */
void view_add_blob(struct view *v, size_t blob);
int view_done(struct view *v, struct view **out, struct fmt_error *e);

/* Whether the tensor can be served. Returns the sizes in bytes of an element and of the tensor; the
 * latter fits 62 bits. */
int view_check(const struct fmt_tensor *t, unsigned *element, uint64_t *bytes, struct fmt_error *e);

/* ---- torch.save archives (view_zip.c) ----
 * One after another, at the end of a view. */

struct view_zip {
	struct view *v;
	/* the central directory, not added yet; NULL: no archive is open */
	struct view *central;
	uint64_t start; /* the archive's offset in the view */
	uint64_t entries;
};

int view_zip_begin(struct view_zip *z, struct view *v); /* -ENOMEM */
void view_zip_add(struct view_zip *z, const char *name, const void *p, size_t len);
void view_zip_add_tensor(struct view_zip *z, const char *name, size_t tensor, uint64_t bytes);
void view_zip_end(struct view_zip *z);

/* Opcodes of protocol 2. */
void view_pickle_text(struct view *v, const char *s);
void view_pickle_number(struct view *v, uint64_t n);
/* A row-major tensor of the storage `key`; bytes: its size. */
void view_pickle_tensor(struct view *v, const struct fmt_tensor *t, const char *key,
			uint64_t bytes);

#endif

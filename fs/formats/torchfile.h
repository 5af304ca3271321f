/* SPDX-License-Identifier: MIT
 *
 * Shared by the two walks over a torch.save file's object: torchfile.c collects all tensors,
 * torchstate.c follows torch.distributed.checkpoint.
 */
#ifndef CAIRN_FORMATS_TORCHFILE_H
#define CAIRN_FORMATS_TORCHFILE_H

#include "fs/formats/inside.h"

struct frame {
	struct pickle_node *node;
	uint32_t next; /* child */
	size_t name_len; /* of the path to node */
};

struct torchfile_state; /* of torchstate.c */

struct walker {
	struct fmt_set *set;
	const struct fmt_source *s;
	struct fmt_error *e;
	struct zip *zip;
	size_t prefix_len; /* of "archive/" in the zip's names */
	const char *prefix; /* points into data.pkl's name */
	uint64_t pickle_at; /* offset of data.pkl: errors have offsets in the file */
	uint32_t file;
	bool big_endian;
	struct frame *frame;
	size_t depth, cap;
	char *name; /* path of the current node */
	size_t name_len, name_start, name_cap; /* start: after the caller's prefix */
	struct torchfile_state *state; /* NULL: collect all tensors */
	uint32_t *ranks; /* not NULL: look for this only */
};

int torchfile_no_memory(struct walker *w);
/* Continues in n, with the current name. */
int torchfile_push(struct walker *w, struct pickle_node *n);
/* Appends to the name. -E2BIG, -ENOMEM. */
int torchfile_name(struct walker *w, const char *p, size_t n);
int torchfile_name_number(struct walker *w, long long i);
/* Adds n to the set if it is a tensor, perhaps with a refusal; *done: whether it is one. */
int torchfile_leaf(struct walker *w, struct pickle_node *n, bool *done);
/* Whether it is one; for objects like a Parameter only torchfile_leaf() can tell. */
bool torchfile_is_tensor(const struct pickle_node *n);

/* ---- torchstate.c ---- */

struct torchfile_state {
	void (*left_out)(void *ctx, const char *what);
	void *ctx;
	struct fmt_step *step; /* of the path */
	size_t n_steps, cap_steps;
	char *buf; /* a plain value's pickle */
	size_t len, cap;
	uint64_t budget; /* how many more nodes may be visited and bytes written */
	bool value; /* the object is one value: not flattened */
};

/* pickle_len: the length of root's pickle. */
int torchfile_walk_state(struct walker *w, struct pickle_node *root, uint64_t pickle_len);
void torchfile_state_free(struct torchfile_state *s);
/* -ENOTSUP: there is an item of this name. */
int torchfile_is_new(struct walker *w);
int torchfile_path(struct walker *w, struct fmt_path *out);

#endif

/* SPDX-License-Identifier: MIT
 * What may pass a commit that waits for other nodes. The promise (DURABILITY, Several hosts): the
 * store lacks, of a prefix of the order, only what waits, and nothing that destroys and nothing in
 * that checkpoint's own tree is published before it.
 *
 * So only additions pass: a new file, directory, symlink, node or link at a new name; and what is
 * done to a file or directory that was created after every commit that waits (another version of
 * it, its attributes, a rename onto a new name). An addition waits all the same if it is in the
 * tree of such a checkpoint, in a directory that a waiting record makes, moves or removes, or if it
 * concerns a name or a node of a waiting record.
 *
 * A checkpoint that waits may be overtaken: other hosts have saved over it. Then there is nothing
 * to protect in its tree any more: what concerns only that passes, if it does not concern a name, a
 * node or a directory of what waits. If it yields (hold.c), so does all else. */
#include "staging/drain/drain.h"

#include <string.h>

#define DEPTH_MAX 2048u

struct name {
	uint64_t dir;
	const char *name;
};

/* Calls each for the names in r, until it returns true. */
static bool any_name(const struct rec *r, bool (*each)(const struct name *n, const void *ctx),
		     const void *ctx)
{
	struct name n = {.dir = r->dir, .name = r->name ? r->name : ""};
	struct rec_name packed;
	struct rec_pair pair;
	uint32_t pos = 0;
	int kind;

	if (each(&n, ctx))
		return true;
	n = (struct name){.dir = r->dir2, .name = r->name2 ? r->name2 : ""};
	if ((r->type == REC_RENAME || r->type == REC_LINK) && each(&n, ctx))
		return true;
	while (r->type == REC_SEAL &&
	       (kind = rec_unpack(r->data, r->data_len, &pos, &packed, &pair)) > 0) {
		n = (struct name){.dir = packed.dir, .name = packed.name};
		if (kind == 1 && each(&n, ctx))
			return true;
	}
	return false;
}

static bool is_name(const struct name *n, const void *ctx)
{
	const struct name *other = ctx;
	return n->dir == other->dir && !strcmp(n->name, other->name);
}

static bool is_name_of(const struct name *n, const void *ctx)
{
	return any_name(ctx, is_name, n);
}

/* ---- directories ---- */

/* Does r make, move or remove directory dir? */
static bool changes_dir(const struct rec *r, uint64_t dir)
{
	switch (r->type) {
	case REC_MKDIR: return r->node == dir;
	case REC_RMDIR: return r->node2 == dir;
	case REC_RENAME: return r->flags & REC_DIR && (r->node == dir || r->node2 == dir);
	default: return false;
	}
}

static bool is_blocked(const struct pass *p, uint64_t dir)
{
	for (size_t i = 0; i < p->n; i++)
		if ((p->waiting[i].tree == dir && !p->waiting[i].overtaken) ||
		    changes_dir(p->waiting[i].r, dir))
			return true;
	return false;
}

/* A move that changes the answer waits itself, and blocks what it moves. */
static bool is_below_blocked(const struct pass *p, uint64_t dir)
{
	for (unsigned depth = 0; dir; depth++) {
		if (depth == DEPTH_MAX || is_blocked(p, dir))
			return true;
		dir = p->parent(p->ctx, dir, p->seq);
	}
	return false;
}

static bool is_in_blocked(const struct name *n, const void *ctx)
{
	return is_below_blocked(ctx, n->dir);
}

struct tree {
	const struct pass *p;
	uint64_t dir;
};

static bool is_outside(const struct name *n, const void *ctx)
{
	const struct tree *t = ctx;
	uint64_t dir = n->dir;

	for (unsigned depth = 0; dir && dir != t->dir && depth < DEPTH_MAX; depth++)
		dir = t->p->parent(t->p->ctx, dir, t->p->seq);
	return dir != t->dir;
}

/* Is what waiting[i] protects not r's? */
static bool lets_destroy(const struct pass *p, size_t i, const struct rec *r)
{
	const struct pass_waiting *w = &p->waiting[i];
	const struct tree t = {.p = p, .dir = w->tree};

	return w->yields || (w->overtaken && (!w->tree || !any_name(r, is_outside, &t)));
}

/* ---- records ---- */

static bool shares_node(const struct rec *a, const struct rec *b)
{
	return (a->node && (a->node == b->node || a->node == b->node2)) ||
	       (a->node2 && (a->node2 == b->node || a->node2 == b->node2));
}

/* Was r's node created after every commit that waits? */
static bool is_new(const struct pass *p, const struct rec *r)
{
	uint64_t seq = r->node ? p->added(p->ctx, r->node) : 0;

	for (size_t i = 0; seq && i < p->n; i++)
		if (p->waiting[i].tree && p->waiting[i].seq > seq)
			return false;
	return seq;
}

static bool only_adds(const struct pass *p, const struct rec *r)
{
	switch (r->type) {
	case REC_MKDIR:
	case REC_SYMLINK:
	case REC_MKNOD:
	case REC_LINK: return true;
	case REC_SEAL: return !(r->flags & REC_SHADOW) || is_new(p, r);
	case REC_ATTR:
	case REC_XATTR:
	case REC_XATTR_DEL: return is_new(p, r);
	case REC_RENAME: return !(r->flags & (REC_SHADOW | REC_OVER)) && is_new(p, r);
	default: return false;
	}
}

bool pass_waits(const struct pass *all, const struct rec *r, uint64_t seq)
{
	struct pass before = *all, *p = &before;

	p->seq = seq;
	while (p->n && p->waiting[p->n - 1].seq >= seq)
		p->n--;
	if (!p->n)
		return false;
	bool destroys = !(r->flags & REC_ABSENT) && !only_adds(p, r);
	for (size_t i = 0; i < p->n; i++)
		if ((destroys && !lets_destroy(p, i, r)) || shares_node(p->waiting[i].r, r) ||
		    any_name(r, is_name_of, p->waiting[i].r))
			return true;
	/* publishing it changes nothing in the store */
	return !(r->flags & REC_ABSENT) && any_name(r, is_in_blocked, p);
}

/* ---- commits that end while they wait ---- */

static bool gives_name(const struct rec *r, const struct name *n)
{
	const struct name to = {.dir = r->dir2, .name = r->name2 ? r->name2 : ""};

	if (r->flags & REC_ABSENT)
		return false;
	if (r->type == REC_UNLINK)
		return r->dir == n->dir && !strcmp(r->name, n->name);
	if (r->type == REC_RENAME)
		return !(r->flags & (REC_DIR | REC_SHADOW)) && is_name(&to, n);
	return r->type == REC_SEAL && any_name(r, is_name, n);
}

size_t pass_end_of(const struct pass *p, size_t c, uint64_t dir, const char *name)
{
	const struct name n = {.dir = dir, .name = name};

	for (size_t i = c + 1; i < p->n; i++) {
		const struct rec *r = p->waiting[i].r;
		bool attr = r->type == REC_ATTR || r->type == REC_XATTR || r->type == REC_XATTR_DEL;
		if (gives_name(r, &n))
			return i;
		/* its bytes, or its name, are used for something else first */
		if (!attr && (shares_node(p->waiting[c].r, r) || any_name(r, is_name, &n)))
			return p->n;
	}
	return p->n;
}

/* SPDX-License-Identifier: MIT
 * How much of what is at or below a node has reached the store. Only what is not durable is looked
 * at: what the records changed is in the nodes (seq.below, apply.c); staging has a list of files
 * that are open or failed. Lock held for all functions.
 */
#include "fs/latest/inside.h"

const char *below_name(enum below_rank rank)
{
	static const char *const names[] = {
		[BELOW_FAILED] = "failed",   [BELOW_OPEN] = "open",
		[BELOW_STAGED] = "staged",   [BELOW_PERSISTING] = "persisting",
		[BELOW_DURABLE] = "durable",
	};
	return names[rank];
}

static enum below_rank rank_of(enum staged_state st)
{
	switch (st) {
	case STAGED_FAILED: return BELOW_FAILED;
	case STAGED_OPEN: return BELOW_OPEN;
	case STAGED_SEALED: return BELOW_STAGED;
	case STAGED_PERSISTING: return BELOW_PERSISTING;
	default: return BELOW_DURABLE;
	}
}

/* The directory above a directory; NULL: it is the root, or removed. */
static struct node *above(struct fs *fs, const struct node *dir)
{
	return dir == fs->tree.root || !dir->names ? NULL : dir->names->dir;
}

/* By any of its names. */
static bool is_below(struct fs *fs, const struct node *n, const struct node *top)
{
	for (struct dentry *d = n->names; d; d = d->name_next)
		for (struct node *dir = d->dir; dir; dir = above(fs, dir))
			if (dir == top)
				return true;
	return false;
}

/* The node of that version; NULL: it has another one since, or no name. */
static struct node *node_of(struct fs *fs, const struct staged_undone *u)
{
	struct node *n = node_find(fs, u->node);
	fs->tree.n_looked++;
	return n && n->names && n->sf == u->f ? n : NULL;
}

static bool is_pending(struct fs *fs, uint64_t seq)
{
	return !staging_is_durable(fs->s, seq);
}

static void count(struct below *b, enum below_rank rank, int error)
{
	if (rank < b->rank) {
		b->rank = rank;
		b->error = error;
	}
}

/* Of the root also what lost+found has not taken yet: it has no node. */
static int failed_for_good(struct fs *fs, const struct node *n)
{
	int err = staging_refused(fs->s, n->id, S_ISDIR(n->attr.mode) ? n->id : 0, UINT64_MAX);
	if (!err && n->names)
		err = staging_refused_above(fs->s, n->names->dir->id);
	return err || n != fs->tree.root ? err : staging_kept_error(fs->s);
}

/* ---- one node, with its bytes ---- */

static void count_file(struct below *b)
{
	struct staged_info i;

	if (!b->top->sf)
		return;
	staged_get_info(b->top->sf, &i);
	if (i.state == STAGED_DURABLE || i.state == STAGED_EVICTED)
		return;
	b->bytes += i.size - (i.written < i.size ? i.written : i.size);
	count(b, rank_of(i.state), i.error);
}

static void count_below(void *ctx, const struct staged_undone *u)
{
	struct below *b = ctx;
	struct node *n = node_of(b->fs, u);

	if (n && is_below(b->fs, n, b->top)) {
		b->bytes += u->bytes;
		count(b, rank_of(u->state), u->error);
	}
}

/* Publication halts at a node at or below top. */
static void count_halted(struct below *b)
{
	int err;
	uint64_t id = staging_halted_at(b->fs->s, &err);
	struct node *n = id ? node_find(b->fs, id) : NULL;

	if (n && (n == b->top || is_below(b->fs, n, b->top)))
		count(b, BELOW_FAILED, err);
}

/* Later changes hide the one that waits for other nodes: seq.below is the last. */
static void count_waiting(void *ctx, const uint64_t id[3])
{
	struct below *b = ctx;
	for (unsigned i = 0; i < 3 && b->rank == BELOW_DURABLE; i++) {
		struct node *n = id[i] ? node_find(b->fs, id[i]) : NULL;
		if (n && (n == b->top || is_below(b->fs, n, b->top)))
			b->rank = BELOW_STAGED;
	}
}

bool waits_below(struct fs *fs, struct node *top)
{
	struct below b = {.fs = fs, .top = top, .rank = BELOW_DURABLE};

	staging_each_waiting(fs->s, count_waiting, &b);
	return b.rank != BELOW_DURABLE;
}

struct below look_below(struct fs *fs, struct node *top)
{
	struct below b = {.fs = fs, .top = top, .rank = BELOW_DURABLE};

	if (S_ISDIR(top->attr.mode))
		staging_each_undone(fs->s, true, count_below, &b);
	else
		count_file(&b);
	if (is_pending(fs, top->seq.below))
		count(&b,
		      S_ISREG(top->attr.mode) && is_pending(fs, top->seq.seal) ? BELOW_PERSISTING
									       : BELOW_STAGED,
		      0);
	if (waits_below(fs, top))
		count(&b, BELOW_STAGED, 0);
	count_halted(&b);
	int err = failed_for_good(fs, top);
	if (err)
		count(&b, BELOW_FAILED, err);
	return b;
}

bool node_all_durable(struct fs *fs, struct node *n)
{
	return look_below(fs, n).rank == BELOW_DURABLE;
}

/* ---- many nodes ---- */

/* Stops at the first that has such a mark already: those above it have it, too. */
static void mark(struct fs *fs, struct node *n, int rank)
{
	while (n && (n->look.nth != fs->tree.n_looks || n->look.rank > rank)) {
		n->look = (struct node_look){.nth = fs->tree.n_looks, .rank = rank};
		n = S_ISDIR(n->attr.mode) ? above(fs, n) : NULL;
	}
}

static void mark_undone(void *ctx, const struct staged_undone *u)
{
	struct fs *fs = ctx;
	struct node *n = node_of(fs, u);

	if (!n)
		return;
	mark(fs, n, rank_of(u->state));
	for (struct dentry *d = n->names; d; d = d->name_next)
		mark(fs, d->dir, rank_of(u->state));
}

static void mark_waiting(void *ctx, const uint64_t id[3])
{
	struct fs *fs = ctx;
	for (unsigned i = 0; i < 3; i++)
		mark(fs, id[i] ? node_find(fs, id[i]) : NULL, BELOW_STAGED);
}

void below_look_all(struct fs *fs)
{
	fs->tree.n_looks++;
	staging_each_undone(fs->s, false, mark_undone, fs);
	staging_each_waiting(fs->s, mark_waiting, fs);
}

enum below_rank below_seen(struct fs *fs, const struct node *n)
{
	int rank = is_pending(fs, n->seq.below) ? BELOW_STAGED : BELOW_DURABLE;

	if (n->look.nth == fs->tree.n_looks && n->look.rank < rank)
		rank = n->look.rank;
	return failed_for_good(fs, n) ? BELOW_FAILED : rank;
}

/* SPDX-License-Identifier: MIT
 * How much of what is at or below a node has reached the store. Lock held for all functions.
 */
#include "fs/latest/inside.h"

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

static bool is_below(struct fs *fs, struct node *n, const struct node *top)
{
	for (unsigned depth = 0; n && depth < 4096; depth++) {
		if (n == top)
			return true;
		if (n == fs->tree.root || !n->names)
			return false;
		n = n->names->dir;
	}
	return false;
}

static void count_sf(struct below *b, struct node *n)
{
	struct staged_info i;
	if (n->id == b->halted) {
		b->rank = BELOW_FAILED;
		b->error = b->halted_error;
	}
	if (!n->sf)
		return;
	staged_get_info(n->sf, &i);
	if (i.state == STAGED_DURABLE || i.state == STAGED_EVICTED)
		return;
	b->bytes += i.size - (i.written < i.size ? i.written : i.size);
	if (rank_of(i.state) < b->rank) {
		b->rank = rank_of(i.state);
		b->error = i.error;
	}
}

static void count_refused(struct below *b)
{
	int err = staging_refused(b->fs->s, b->top->id, S_ISDIR(b->top->attr.mode) ? b->top->id : 0,
				  UINT64_MAX);
	if (err) {
		b->rank = BELOW_FAILED;
		b->error = err;
	}
}

struct below look_below(struct fs *fs, struct node *top)
{
	struct below b = {.fs = fs, .top = top, .rank = BELOW_DURABLE};
	uint64_t applied = fs_applied(fs), durable = staging_durable(fs->s);

	b.halted = staging_halted_at(fs->s, &b.halted_error);
	if (!S_ISDIR(top->attr.mode)) {
		count_sf(&b, top);
		if (b.rank == BELOW_DURABLE && (top->seq.dirty > applied ||
						top->seq.born > applied || top->seq.seal > durable))
			b.rank = top->sf || S_ISREG(top->attr.mode) ? BELOW_PERSISTING
								    : BELOW_STAGED;
		for (struct dentry *d = top->names; d; d = d->name_next)
			if (b.rank == BELOW_DURABLE && d->seq > durable)
				b.rank = BELOW_STAGED;
		count_refused(&b);
		return b;
	}
	for (unsigned i = 0; i < NODE_BUCKETS; i++)
		for (struct node *n = fs->tree.nodes[i]; n; n = n->hash_next) {
			bool self = n->seq.dirty > durable || n->seq.names > durable ||
				    n->seq.seal > durable ||
				    (n->seq.born > durable && n->seq.born != UINT64_MAX);
			if (!n->sf && !self)
				continue;
			if (!n->names && n != fs->tree.root)
				continue;
			if (!is_below(fs, n, top))
				continue;
			count_sf(&b, n);
			if (self && b.rank > BELOW_STAGED)
				b.rank = n->sf ? BELOW_PERSISTING : BELOW_STAGED;
		}
	count_refused(&b);
	return b;
}

bool node_all_durable(struct fs *fs, struct node *n)
{
	return look_below(fs, n).rank == BELOW_DURABLE;
}

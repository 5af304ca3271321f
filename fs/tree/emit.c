/* SPDX-License-Identifier: MIT
 * Rotation: logs the tree, its handles and the answered closes anew.
 */
#include "fs/tree/inside.h"

#include <errno.h>
#include <stdlib.h>

static int emit_one(struct fs *fs, struct node *n, struct dentry *d)
{
	struct rec r = rec_node(n, d);
	int err = staging_emit(fs->s, &r);
	if (err || (d && d != n->names))
		return err; /* the rest once for each node */
	if (n->sf) {
		struct staged_info i;
		struct torn_range torn[TORN_MAX];
		staged_get_info(n->sf, &i);
		r = rec_staged(n, torn);
		r.size = i.size;
		r.atime = i.atime;
		r.mtime = i.mtime;
		if (i.state == STAGED_DURABLE || i.state == STAGED_EVICTED)
			r.flags |= REC_SEALED;
		err = staging_emit(fs->s, &r);
	}
	for (struct xattr *x = n->xattrs; !err && x && !n->version.sealed; x = x->next) {
		r = rec_new(REC_XATTR);
		r.unique = 0;
		r.node = n->id;
		r.flags = REC_ABSENT | REC_SNAPSHOT;
		r.name2 = x->key;
		r.data = x->val;
		r.data_len = x->len;
		err = staging_emit(fs->s, &r);
	}
	return err;
}

/* A close was answered; its RELEASE has not arrived. */
static int emit_accepted(struct staging *s, struct node *n)
{
	struct rec r = {.type = 0};
	void *data = NULL;
	int err = fill_flushed(n, &n->version.flushed, &r, &data);
	if (!err)
		err = staging_emit(s, &r);
	free(data);
	return err;
}

/* In the order of the closes, which is the order in which the next start seals them. */
static int emit_all_accepted(struct fs *fs)
{
	struct node_list l = {0};
	int err = 0;
	for (unsigned i = 0; !err && i < NODE_BUCKETS; i++)
		for (struct node *n = fs->tree.nodes[i]; !err && n; n = n->hash_next)
			if (n->version.accepted && n->sf && n->names)
				err = node_list_add(&l, n);
	node_list_sort(&l);
	for (size_t i = 0; !err && i < l.len; i++)
		err = emit_accepted(fs->s, l.n[i]);
	free(l.n);
	return err;
}

/* Directories before what is in them, without recursion. */
static int emit_tree(struct fs *fs)
{
	size_t cap = 1024, n = 1;
	struct node **stack = malloc(cap * sizeof(*stack));
	int err = stack ? 0 : -ENOMEM;
	if (!err)
		stack[0] = fs->tree.root;
	while (!err && n) {
		struct node *dir = stack[--n];
		for (struct dentry *d = dir->children; !err && d; d = d->sib_next) {
			if (!d->node)
				continue;
			err = emit_one(fs, d->node, d);
			if (!S_ISDIR(d->node->attr.mode))
				continue;
			if (n == cap) {
				void *p = realloc(stack, (cap *= 2) * sizeof(*stack));
				if (!p) {
					err = -ENOMEM;
					break;
				}
				stack = p;
			}
			stack[n++] = d->node;
		}
	}
	free(stack);
	return err;
}

int fs_emit(void *ctx, struct staging *s)
{
	struct fs *fs = ctx;
	int err = buffers_emit(fs); /* buffers before versions of them */
	if (!err)
		err = emit_tree(fs);
	for (unsigned i = 0; !err && i < NODE_BUCKETS; i++)
		for (struct node *n = fs->tree.nodes[i]; !err && n; n = n->hash_next)
			if (!n->names && n != fs->tree.root)
				err = emit_one(fs, n, NULL);
	for (unsigned i = 0; !err && i < 4096; i++)
		for (struct handle *h = fs->tree.handles[i]; !err && h; h = h->hash_next) {
			struct rec r = rec_new(REC_OPEN);
			r.unique = 0;
			r.fh = h->fh;
			r.node = h->node->id;
			r.mask = (uint64_t)(unsigned)h->flags;
			r.lane = h->lane;
			r.uid = h->uid;
			r.backing = h->uses_backing ? h->node->backing.id : 0;
			r.flags = (h->writer ? REC_WRITE : 0) |
				  (h->node->version.rdwr ? REC_RDWR : 0);
			err = staging_emit(s, &r);
		}
	/* after the opens, which would end it */
	return err ? err : emit_all_accepted(fs);
}

void log_space(struct fs *fs)
{
	if (io_store_is_detached(fs->store) || !staging_log_full(fs->s))
		return;
	session_may_block(fs);
	staging_log_space(fs->s);
	TREE_SCOPE(fs);
	/* checked again: a thread that waited meanwhile logs the next record */
	if (staging_rotate_due(fs->s))
		staging_rotate(fs->s, fs_emit, fs);
}

/* SPDX-License-Identifier: MIT
 * Buffers in the tree: nodes without a dentry, found by name in a list here while they are open.
 * Buffers in staging: staging/file/buffer.c; operations of clients on them: buffers.c. Lock held
 * for all functions.
 */
#include "fs/tree/inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct fs_buffer {
	struct fs_buffer *next;
	struct node *n;
	struct buffer *b;
	char name[];
};

struct node *buffers_find(struct fs *fs, const char *name)
{
	struct fs_buffer *f = fs->tree.buffers;
	while (f && strcmp(f->name, name))
		f = f->next;
	return f ? f->n : NULL;
}

static int record(struct fs *fs, const struct node *n, uint64_t sf, const char *name, bool kept)
{
	struct rec r = rec_new(REC_BUFFER);
	r.unique = 0;
	r.node = n->id;
	r.ino = n->ino;
	r.mode = n->attr.mode & 07777;
	r.uid = n->attr.uid;
	r.gid = n->attr.gid;
	r.sf = sf;
	r.size = n->attr.size;
	r.name = name;
	r.flags = kept ? REC_KEPT : 0;
	return staging_emit(fs->s, &r);
}

static int attach(struct fs *fs, struct node *n, struct buffer *b, const char *name)
{
	struct fs_buffer *f = calloc(1, sizeof(*f) + strlen(name) + 1);
	if (!f)
		return -ENOMEM;
	strcpy(f->name, name);
	f->n = n;
	f->b = b;
	f->next = fs->tree.buffers;
	fs->tree.buffers = f;
	n->buf = f;
	n->attr.unknown = 1; /* the kernel refuses link(2) of a file without links */
	return 0;
}

void buffers_apply(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	struct buffer *b;

	if (!n) {
		n = node_new(fs, r->node, r->ino, S_IFREG | (r->mode & 07777));
		if (!n)
			return;
		n->attr.uid = r->uid;
		n->attr.gid = r->gid;
		n->attr.atime = n->attr.mtime = n->attr.ctime = r->when;
		n->seq.born = UINT64_MAX;
		n->xattrs_loaded = true;
	}
	n->pinned = true;
	n->attr.size = r->size;
	if (n->buf || buffer_recover(fs->s, r->sf, r->flags & REC_KEPT, &b))
		return;
	if (attach(fs, n, b, r->name)) {
		buffer_end(b);
		buffer_unref(b);
	}
}

void buffers_apply_commit(struct node *n, const struct rec *r)
{
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;
	int kind;

	while ((kind = rec_unpack(r->data, r->data_len, &pos, &name, &pair)) > 0)
		if (kind == 2)
			xattr_put(n, pair.key, pair.val, pair.len);
}

int buffers_emit(struct fs *fs)
{
	int err = 0;
	for (struct fs_buffer *f = fs->tree.buffers; !err && f; f = f->next) {
		struct buffer_info i;
		buffer_get_info(f->b, &i);
		err = record(fs, f->n, buffer_id(f->b), f->name, i.state == BUFFER_KEPT);
	}
	return err;
}

void buffers_closed(struct fs *fs, struct node *n)
{
	struct fs_buffer *f = n->buf, **pp = &fs->tree.buffers;
	if (!f || n->handles)
		return;
	while (*pp != f)
		pp = &(*pp)->next;
	*pp = f->next;
	n->buf = NULL;
	n->attr.unknown = 0;
	buffer_end(f->b);
	buffer_unref(f->b);
	free(f);
}

void buffers_restored(struct fs *fs)
{
	pthread_mutex_lock(&fs->tree.lock);
	for (struct fs_buffer *f = fs->tree.buffers, *next; f; f = next) {
		next = f->next;
		buffers_closed(fs, f->n);
	}
	pthread_mutex_unlock(&fs->tree.lock);
}

int buffers_make(struct fs *fs, struct buffer *b, const char *name, uint64_t size,
		 const struct stat *st, struct node **out)
{
	uint64_t id = staging_new_id(fs->s);
	struct node *n = node_new(fs, id, id, S_IFREG | (st->st_mode & 07777));
	if (!n)
		return -ENOMEM;
	n->attr.uid = st->st_uid;
	n->attr.gid = st->st_gid;
	clock_gettime(CLOCK_REALTIME, &n->attr.ctime);
	n->attr.atime = n->attr.mtime = n->attr.ctime;
	n->seq.born = UINT64_MAX;
	n->xattrs_loaded = true;
	n->attr.size = size;
	int err = record(fs, n, buffer_id(b), name, false);
	if (!err)
		err = attach(fs, n, b, name);
	if (err)
		node_release(fs, n);
	else
		*out = n;
	return err;
}

struct buffer *buffers_ref(struct node *n)
{
	return n->buf ? buffer_ref(n->buf->b) : NULL;
}

int buffers_backing(struct node *n)
{
	return buffer_fd(n->buf->b);
}

uint64_t buffers_of(struct fs *fs, uint32_t uid)
{
	uint64_t sum = 0;
	for (struct fs_buffer *f = fs->tree.buffers; f; f = f->next)
		sum += f->n->attr.uid == uid ? buffers_blocks(f->n) * 512 : 0;
	return sum;
}

const char *buffers_state(struct node *n)
{
	static const char *const names[] = {
		[BUFFER_FREE] = "free",
		[BUFFER_LENT] = "lent",
		[BUFFER_KEPT] = "kept",
	};
	struct buffer_info i;
	buffer_get_info(n->buf->b, &i);
	return names[i.state];
}

uint64_t buffers_blocks(struct node *n)
{
	struct buffer_info i;
	buffer_get_info(n->buf->b, &i);
	return i.bytes / 512;
}

int buffers_resize(struct fs *fs, struct node *n, uint64_t size)
{
	node_wait_busy(fs, n);
	if (!n->buf)
		return -ESTALE;
	uint64_t taken = buffers_blocks(n) * 512;
	int err = size > taken ? share_of_buffers(fs, n->attr.uid, buffers_of(fs, n->attr.uid),
						  size - taken)
			       : 0;
	if (err)
		return err;
	struct buffer *b = buffer_ref(n->buf->b);
	session_may_block(fs);
	n->busy = true;
	pthread_mutex_unlock(&fs->tree.lock);
	err = buffer_resize(b, size);
	pthread_mutex_lock(&fs->tree.lock);
	n->busy = false;
	pthread_cond_broadcast(&fs->tree.busy_cond);
	buffer_unref(b);
	if (!err && !n->buf)
		err = -ESTALE;
	if (err)
		return err;
	uint64_t was = n->attr.size;
	n->attr.size = size;
	err = record(fs, n, buffer_id(n->buf->b), n->buf->name, !strcmp(buffers_state(n), "kept"));
	if (err)
		n->attr.size = was;
	return err;
}

int buffers_lend(struct node *n, uint64_t id, struct staged **sf)
{
	return buffer_lend(n->buf->b, id, n->attr.size, sf);
}

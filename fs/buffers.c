/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn/buffers: staged files on loan to clients. A client makes one, named
 * <bytes>.<anything>, maps it, has it filled and commits it by link(2): the target is a new
 * file with these bytes, and the buffer is the client's again when that is durable.
 * What a buffer is in staging: staging/buffer.c.
 *
 * A buffer is a node without a name in the tree, found by its name in the list here as long as
 * somebody has it open. */
#include "fs/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "fs/formats/formats.h"

struct fs_buffer {
	struct fs_buffer *next;
	struct node *n;
	struct buffer *b;
	char name[];
};

static struct fs_buffer *find(struct fs *fs, const char *name)
{
	struct fs_buffer *f = fs->buffers;
	while (f && strcmp(f->name, name))
		f = f->next;
	return f;
}

/* ---- the directory ---- */

static void dir_stat(struct fs *fs, struct stat *st)
{
	*st = (struct stat){
		.st_ino = BUFFERS_DIR, .st_uid = fs->uid, .st_nlink = 2, .st_blksize = 4096,
		.st_mode = S_IFDIR | 01777,
	};
	clock_gettime(CLOCK_REALTIME, &st->st_mtim);
	st->st_atim = st->st_ctim = st->st_mtim;
}

void buffers_lookup(fuse_req_t req, uint64_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	struct fuse_entry_param e = {.ino = BUFFERS_DIR, .attr_timeout = 1, .entry_timeout = 60};

	if (parent == CONTROL_DIR) {
		dir_stat(fs, &e.attr);
		fuse_reply_entry(req, &e);
		return;
	}
	release_barrier(fs);		/* one that was just closed is not there any more */
	TREE_SCOPE(fs);
	struct fs_buffer *f = find(fs, name);
	if (f)
		reply_entry(req, fs, f->n);
	else
		fuse_reply_err(req, ENOENT);
}

void buffers_getattr(fuse_req_t req, uint64_t id)
{
	struct stat st;
	(void)id;
	dir_stat(req_fs(req), &st);
	fuse_reply_attr(req, &st, 1);
}

void buffers_readdir(fuse_req_t req, uint64_t id, size_t size, off_t off, bool plus)
{
	(void)id, (void)size, (void)off, (void)plus;
	fuse_reply_buf(req, NULL, 0);	/* each is its client's own business */
}

/* ---- life ---- */

/* The size in <bytes>.<anything>, 0 = none. */
static uint64_t size_in(const char *name)
{
	char *end;
	errno = 0;
	unsigned long long v = name[0] >= '1' && name[0] <= '9' ? strtoull(name, &end, 10) : 0;
	return v && !errno && v <= INT64_MAX && end[0] == '.' && end[1] ? v : 0;
}

static int record(struct fs *fs, const struct node *n, uint64_t sf, const char *name, bool kept)
{
	struct rec r = rec_new(REC_BUFFER);
	r.unique = 0;
	r.node = n->id;
	r.ino = n->ino;
	r.mode = n->mode & 07777;
	r.uid = n->uid;
	r.gid = n->gid;
	r.sf = sf;
	r.size = n->size;
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
	f->next = fs->buffers;
	fs->buffers = f;
	n->buf = f;
	n->unknown = 1;		/* a file without links cannot be linked to */
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
		n->uid = r->uid;
		n->gid = r->gid;
		n->atime = n->mtime = n->ctime = r->when;
		n->born_seq = UINT64_MAX;
		n->xattrs_loaded = true;
	}
	n->pinned = true;
	n->size = r->size;
	if (n->buf || buffer_recover(fs->s, r->sf, r->flags & REC_KEPT, &b))
		return;
	if (attach(fs, n, b, r->name)) {
		buffer_end(b);
		buffer_unref(b);
	}
}

int buffers_emit(struct fs *fs)
{
	int rc = 0;
	for (struct fs_buffer *f = fs->buffers; !rc && f; f = f->next) {
		struct buffer_info i;
		buffer_get_info(f->b, &i);
		rc = record(fs, f->n, buffer_id(f->b), f->name, i.state == BUFFER_KEPT);
	}
	return rc;
}

void buffers_closed(struct fs *fs, struct node *n)
{
	struct fs_buffer *f = n->buf, **pp = &fs->buffers;
	if (!f || n->handles)
		return;
	while (*pp != f)
		pp = &(*pp)->next;
	*pp = f->next;
	n->buf = NULL;
	n->unknown = 0;
	buffer_end(f->b);
	buffer_unref(f->b);
	free(f);
}

void buffers_restored(struct fs *fs)
{
	pthread_mutex_lock(&fs->lock);
	for (struct fs_buffer *f = fs->buffers, *next; f; f = next) {
		next = f->next;
		buffers_closed(fs, f->n);
	}
	pthread_mutex_unlock(&fs->lock);
}

/* Lock held. */
static int make_node(struct fs *fs, fuse_req_t req, struct buffer *b, uint64_t id, const char *name, mode_t mode,
		     struct node **out)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);
	struct node *n = node_new(fs, id, id, S_IFREG | (mode & 07777));
	if (!n)
		return -ENOMEM;
	n->uid = c->uid;
	n->gid = c->gid;
	clock_gettime(CLOCK_REALTIME, &n->ctime);
	n->atime = n->mtime = n->ctime;
	n->born_seq = UINT64_MAX;
	n->xattrs_loaded = true;
	n->size = size_in(name);
	int rc = record(fs, n, buffer_id(b), name, false);
	if (!rc)
		rc = attach(fs, n, b, name);
	if (rc)
		node_release(fs, n);
	else
		*out = n;
	return rc;
}

void buffers_create(fuse_req_t req, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	uint64_t size = size_in(name);
	struct buffer *b = NULL;
	struct node *n;

	session_may_block(fs);
	log_room(fs);
	release_barrier(fs);
	pthread_mutex_lock(&fs->lock);
	if (answered_open(req, fs, fi, true)) {
		pthread_mutex_unlock(&fs->lock);
		return;
	}
	int rc = !atomic_load(&fs->passthrough) ? -EOPNOTSUPP : !size ? -EINVAL : find(fs, name) ? -EEXIST : 0;
	pthread_mutex_unlock(&fs->lock);
	if (!rc)
		rc = buffer_create(fs->s, size, &b);
	pthread_mutex_lock(&fs->lock);
	if (!rc)
		rc = find(fs, name) ? -EEXIST : make_node(fs, req, b, staging_new_id(fs->s), name, mode, &n);
	if (b && rc) {
		buffer_end(b);
		buffer_unref(b);
	} else if (!rc) {
		rc = open_handle(req, fs, n, fi, true);
		if (rc) {
			buffers_closed(fs, n);
			node_release(fs, n);
		}
	}
	pthread_mutex_unlock(&fs->lock);
	if (rc)
		fuse_reply_err(req, -rc);
}

struct buffer *buffers_hold(struct node *n)
{
	return n->buf ? buffer_ref(n->buf->b) : NULL;
}

int buffers_backing(struct node *n)
{
	return buffer_fd(n->buf->b);
}

/* ---- what is done with one; lock held ---- */

const char *buffers_state(struct node *n)
{
	static const char *const names[] = {
		[BUFFER_FREE] = "free", [BUFFER_LENT] = "lent", [BUFFER_KEPT] = "kept",
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
	struct buffer *b = buffer_ref(n->buf->b);
	session_may_block(fs);
	n->busy = true;
	pthread_mutex_unlock(&fs->lock);
	int rc = buffer_resize(b, size);
	pthread_mutex_lock(&fs->lock);
	n->busy = false;
	pthread_cond_broadcast(&fs->busy_cond);
	buffer_unref(b);
	if (!rc && !n->buf)
		rc = -ESTALE;
	if (rc)
		return rc;
	uint64_t was = n->size;
	n->size = size;
	rc = record(fs, n, buffer_id(n->buf->b), n->buf->name, !strcmp(buffers_state(n), "kept"));
	if (rc)
		n->size = was;
	return rc;
}

/* All that the store is to know of the new file. *data is the caller's. */
static int fill(struct node *n, uint64_t id, fuse_ino_t parent, const char *name, struct rec *r, void **data)
{
	const struct rec_name where = {.dir = parent, .name = name};
	unsigned n_pairs = 0;
	for (struct xattr *x = n->xattrs; x; x = x->next)
		n_pairs++;
	struct rec_pair *pairs = calloc(n_pairs + 1, sizeof(*pairs));
	if (!pairs)
		return -ENOMEM;
	n_pairs = 0;
	for (struct xattr *x = n->xattrs; x; x = x->next)
		pairs[n_pairs++] = (struct rec_pair){.key = x->key, .val = x->val, .len = x->len};
	ssize_t len = rec_pack(&where, 1, pairs, n_pairs, data);
	free(pairs);
	if (len < 0)
		return (int)len;
	*r = rec_new(REC_SEAL);
	r->node = r->ino = id;
	r->dir = parent;
	r->name = name;
	r->mode = n->mode & 07777;
	r->uid = n->uid;
	r->gid = n->gid;
	r->data = *data;
	r->data_len = (uint32_t)len;
	return 0;
}

static int target_free(struct fs *fs, fuse_ino_t parent, const char *name)
{
	struct node *dir = node_find(fs, parent), *old;
	int rc = dir ? tree_lookup(fs, dir, name, &old, NULL) : -ESTALE;
	return rc == -ENOENT ? 0 : rc ? rc : -EEXIST;
}

int buffers_commit(fuse_req_t req, struct fs *fs, struct node *n, fuse_ino_t parent, const char *name,
		   struct node **out)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);
	uint64_t id = staging_new_id(fs->s);
	struct staged *sf = NULL;
	void *data = NULL;
	struct rec r;

	/* the kernel asks this only where fs.protected_hardlinks is set */
	if (c->uid && c->uid != n->uid)
		return -EPERM;
	node_wait_busy(fs, n);
	int rc = n->buf ? target_free(fs, parent, name) : -ENOENT;
	if (!rc)
		rc = buffer_lend(n->buf->b, id, n->size, &sf);
	if (rc)
		return rc;
	session_may_block(fs);
	n->busy = true;
	pthread_mutex_unlock(&fs->lock);
	rc = staged_reserve(sf);
	pthread_mutex_lock(&fs->lock);
	n->busy = false;
	pthread_cond_broadcast(&fs->busy_cond);
	if (!rc)
		rc = target_free(fs, parent, name);
	if (!rc)
		rc = fill(n, id, parent, name, &r, &data);
	if (!rc)
		rc = buffer_commit(sf, &r);
	if (!rc) {
		fs_apply(fs, &r);
		*out = node_find(fs, id);
	}
	staged_unref(sf);
	free(data);
	return rc;
}

void buffers_apply_commit(struct fs *fs, struct node *n, const struct rec *r)
{
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;
	int kind;
	(void)fs;
	while ((kind = rec_unpack(r->data, r->data_len, &pos, &name, &pair)) > 0)
		if (kind == 2)
			xattr_put(n, pair.key, pair.val, pair.len);
}

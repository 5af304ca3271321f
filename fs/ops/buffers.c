/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn/buffers: staged files lent to clients. A client creates one, named
 * <bytes>.<anything>, maps it, fills it and commits it by link(2): the target is a new file with
 * these bytes, and the client may fill the buffer again when that file is durable. Buffers in
 * staging: staging/file/buffer.c; in the tree: buffer_node.c.
 */
#include "fs/ops/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "fs/formats/formats.h"
#include "io/number.h"

/* ---- the directory ---- */

static void dir_stat(struct fs *fs, struct stat *st)
{
	*st = (struct stat){
		.st_ino = BUFFERS_DIR,
		.st_uid = fs->uid,
		.st_nlink = 2,
		.st_blksize = 4096,
		.st_mode = S_IFDIR | 01777,
	};
	clock_gettime(CLOCK_REALTIME, &st->st_mtim);
	st->st_atim = st->st_ctim = st->st_mtim;
}

static void buffers_lookup(fuse_req_t req, uint64_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	struct fuse_entry_param e = {.ino = BUFFERS_DIR, .attr_timeout = 1, .entry_timeout = 60};

	if (parent == CONTROL_DIR) {
		dir_stat(fs, &e.attr);
		fuse_reply_entry(req, &e);
		return;
	}
	release_barrier(fs); /* a buffer that was just closed no longer exists */
	TREE_SCOPE(fs);
	struct node *n = buffers_find(fs, name);
	if (n)
		reply_entry(req, fs, n);
	else
		fuse_reply_err(req, ENOENT);
}

static void buffers_getattr(fuse_req_t req, uint64_t id)
{
	struct stat st;
	(void)id;
	dir_stat(req_fs(req), &st);
	fuse_reply_attr(req, &st, 1);
}

static void buffers_readdir(fuse_req_t req, uint64_t id, size_t size, off_t off, bool plus)
{
	(void)id, (void)size, (void)off, (void)plus;
	fuse_reply_buf(req, NULL, 0); /* buffers are private to their clients */
}

/* ---- operations on a buffer ---- */

/* The size in <bytes>.<anything>; 0: none. */
static uint64_t size_in(const char *name)
{
	uint64_t v;
	return number_next(&name, &v) && v <= INT64_MAX && name[0] == '.' && name[1] ? v : 0;
}

static void buffers_create(fuse_req_t req, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	uint64_t size = size_in(name);
	struct buffer *b = NULL;
	struct node *n;

	session_may_block(fs);
	log_space(fs);
	release_barrier(fs);
	pthread_mutex_lock(&fs->tree.lock);
	if (answered_open(req, fs, fi, true)) {
		pthread_mutex_unlock(&fs->tree.lock);
		return;
	}
	int err = !atomic_load(&fs->lanes.passthrough) ? -EOPNOTSUPP
		  : !size			       ? -EINVAL
		  : buffers_find(fs, name)	       ? -EEXIST
						       : 0;
	const struct fuse_ctx *c = fuse_req_ctx(req);
	const struct stat st = {.st_mode = mode, .st_uid = c->uid, .st_gid = c->gid};
	if (!err)
		err = share_of_files(c->uid);
	if (!err)
		err = share_of_buffers(fs, c->uid, buffers_of(fs, c->uid), size);
	pthread_mutex_unlock(&fs->tree.lock);
	if (!err)
		err = buffer_create(fs->s, size, &b);
	pthread_mutex_lock(&fs->tree.lock);
	if (!err) /* the same user made another one meanwhile */
		err = share_of_buffers(fs, c->uid, buffers_of(fs, c->uid), size);
	if (!err)
		err = buffers_find(fs, name) ? -EEXIST : buffers_make(fs, b, name, size, &st, &n);
	if (b && err) {
		buffer_end(b);
		buffer_unref(b);
	} else if (!err) {
		err = open_handle(req, fs, n, fi, true);
		if (err) {
			buffers_closed(fs, n);
			node_release(fs, n);
		}
	}
	pthread_mutex_unlock(&fs->tree.lock);
	if (err)
		fuse_reply_err(req, -err);
}

const struct control_ops buffers_ops = {
	.lookup = buffers_lookup,
	.getattr = buffers_getattr,
	.readdir = buffers_readdir,
	.create = buffers_create,
};

/* Everything the store needs to know of the new file. The caller frees *data. */
static int fill(struct node *n, uint64_t id, fuse_ino_t parent, const char *name, const char *save,
		struct rec *r, void **data)
{
	const struct rec_name where = {.dir = parent, .name = name};
	unsigned n_pairs = 0;
	for (struct xattr *x = n->xattrs; x; x = x->next)
		n_pairs++;
	struct rec_pair *pairs = calloc(n_pairs + 2, sizeof(*pairs));
	if (!pairs)
		return -ENOMEM;
	n_pairs = 0;
	for (struct xattr *x = n->xattrs; x; x = x->next)
		pairs[n_pairs++] = (struct rec_pair){.key = x->key, .val = x->val, .len = x->len};
	if (save[0])
		pairs[n_pairs++] = (struct rec_pair){
			.key = KEY_SAVE, .val = save, .len = (uint32_t)strlen(save)};
	ssize_t len = rec_pack(&where, 1, pairs, n_pairs, data);
	free(pairs);
	if (len < 0)
		return (int)len;
	*r = rec_new(REC_SEAL);
	r->node = r->ino = id;
	r->dir = parent;
	r->name = name;
	r->mode = n->attr.mode & 07777;
	r->uid = n->attr.uid;
	r->gid = n->attr.gid;
	r->data = *data;
	r->data_len = (uint32_t)len;
	return 0;
}

static int target_free(struct fs *fs, fuse_ino_t parent, const char *name)
{
	struct node *dir = node_find(fs, parent), *old;
	int err = dir ? tree_lookup(fs, dir, name, &old, NULL) : -ESTALE;
	return err == -ENOENT ? 0 : err ? err : -EEXIST;
}

/* What the store is asked before n becomes dir/name. */
static int ask_of_save(struct fs *fs, struct node *n, fuse_ino_t parent, const char *name,
		       char save[SAVE_TAG_BYTES])
{
	struct node *dir = node_find(fs, parent);
	int err = dir ? save_tag_of(fs, dir, name, save) : -ESTALE;

	return err ? err : save_commits(fs, n, dir, name);
}

int buffers_commit(fuse_req_t req, struct fs *fs, struct node *n, fuse_ino_t parent,
		   const char *name, struct node **out)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);
	uint64_t id = staging_new_id(fs->s);
	struct staged *sf = NULL;
	void *data = NULL;
	char save[SAVE_TAG_BYTES];
	struct rec r;

	/* the kernel checks this only if fs.protected_hardlinks is set */
	if (c->uid && c->uid != n->attr.uid)
		return -EPERM;
	node_wait_busy(fs, n);
	int err = n->buf ? target_free(fs, parent, name) : -ENOENT;
	if (!err)
		err = ask_of_save(fs, n, parent, name, save);
	if (!err)
		err = buffers_lend(n, id, &sf);
	if (err)
		return err;
	session_may_block(fs);
	n->busy = true;
	pthread_mutex_unlock(&fs->tree.lock);
	err = staged_allocate(sf);
	pthread_mutex_lock(&fs->tree.lock);
	n->busy = false;
	pthread_cond_broadcast(&fs->tree.busy_cond);
	if (!err)
		err = target_free(fs, parent, name);
	if (!err)
		err = fill(n, id, parent, name, save, &r, &data);
	if (!err)
		err = buffer_commit(sf, &r);
	if (!err) {
		fs_apply(fs, &r);
		*out = node_find(fs, id);
	}
	staged_unref(sf);
	free(data);
	return err;
}

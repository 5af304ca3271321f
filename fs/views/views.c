/* SPDX-License-Identifier: MIT
 * .cairn/views/<path of a checkpoint>/: its tensors as other files.
 *
 *	model.safetensors		all of them
 *	split-5G/			in numbered parts, with an index
 *	reshard/<W>/rank-<r>.safetensors	split on dimension 0
 *	tensors/<name>.npy		one
 *	refused				why some or all of these are missing
 *
 * A node here stands for a directory of the mount and, in a checkpoint, for one version of it:
 * other bytes get another node, so the kernel's cache never mixes them. Requests that may parse go
 * to separate threads; the threads that answer the kernel only read, a few at a time. This file has
 * the operations and the answers; views.h lists the others.
 */
#include "fs/views/inside.h"
#include "io/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* threads of the session that may read views at the same time */
#define INLINE_READS 4u
#define TIMEOUT_S 1.0 /* of attributes; permissions are checked at each open */

struct vhandle {
	struct vhandle *next;
	uint64_t fh;
	char *path;
};

/* guards handles */
static pthread_mutex_t handles_lock = RANKED_MUTEX(RANK_VIEWS_HANDLES);
static struct vhandle *handles;
static atomic_uint inline_reads;

/* ---- open handles ---- */

static struct vhandle *handle_new(struct fs *fs, const char *path)
{
	struct vhandle *h = calloc(1, sizeof(*h));
	if (!h)
		return NULL;
	h->path = strdup(path);
	h->fh = staging_new_id(fs->s);
	if (!h->path) {
		free(h);
		return NULL;
	}
	pthread_mutex_lock(&handles_lock);
	h->next = handles;
	handles = h;
	pthread_mutex_unlock(&handles_lock);
	return h;
}

/* The last handle of a checkpoint closes its files: a removed file must not keep its space. */
static void handle_drop(uint64_t fh)
{
	pthread_mutex_lock(&handles_lock);
	struct vhandle **pp = &handles, *h, *other;
	while ((h = *pp) && h->fh != fh)
		pp = &h->next;
	if (h)
		*pp = h->next;
	for (other = handles; h && other && strcmp(other->path, h->path);)
		other = other->next;
	pthread_mutex_unlock(&handles_lock);
	if (!h)
		return;
	if (!other)
		vckpt_idle(h->path);
	free(h->path);
	free(h);
}

/* ---- answers ---- */

/* Whether the caller may search the path and know of key, a file in c or a directory (c NULL). A
 * view has the permissions of the files it is made of, wherever they lie. */
static int may_see(struct fs *fs, const struct caller *who, const struct view_key *key,
		   struct vckpt *c, unsigned want)
{
	struct stat st;
	int err = reach_stat(fs, who, key->path, want, &st);
	return err || !c ? err : vckpt_may(c, who, false);
}

static int to_errno(int err)
{
	return err == -E2BIG ? EFBIG : err == -ENOTSUP ? EOPNOTSUPP : -err;
}

static void do_lookup(struct vjob *j)
{
	struct fs *fs = req_fs(j->req);
	struct vnode *dir = vnode_find(j->id), *n = NULL;
	CLEANUP_FREE char *path = NULL;
	struct vckpt *c = NULL;
	struct view_key key;
	struct stat st;
	int err = dir ? may_see(fs, &j->who, &dir->key, NULL, 1) : -ESTALE;

	if (!err)
		err = view_key_find(fs, &dir->key, j->name, &key, &path);
	if (!err)
		err = view_key_version(fs, &key, &c);
	if (!err && c)
		err = vckpt_may(c, &j->who, false);
	if (!err)
		err = view_key_stat(fs, &j->who, &key, c, &st);
	if (!err) {
		n = vnode_get(&key, &st);
		err = n ? 0 : -ENOMEM;
	}
	if (c)
		vckpt_put(c);
	if (err) {
		fuse_reply_err(j->req, to_errno(err == -ENOTDIR ? -ENOENT : err));
		return;
	}
	/* names are not cached: the next caller may have other permissions */
	struct fuse_entry_param e = {
		.ino = n->id, .attr = st, .attr_timeout = S_ISDIR(st.st_mode) ? 0 : TIMEOUT_S};
	e.attr.st_ino = n->id;
	uint64_t id = n->id;
	err = fuse_reply_entry(j->req, &e);
	if (err && err != -ENOENT)
		views_forget(id, 1);
}

/* Of a version that has changed since, answers what was last seen: the node stands for it. */
static void do_getattr(struct vjob *j)
{
	struct fs *fs = req_fs(j->req);
	struct vnode *n = vnode_find(j->id);
	struct vckpt *c = NULL;
	struct stat st;

	if (!n) {
		fuse_reply_err(j->req, ESTALE);
		return;
	}
	int err = view_key_version(fs, &n->key, &c);
	if (!err)
		err = view_key_stat(fs, &j->who, &n->key, c, &st);
	if (c)
		vckpt_put(c);
	vnode_stat(n, err ? NULL : &st, &st);
	if (err && vkind_is_dir(n->key.kind))
		fuse_reply_err(j->req, err == -EACCES ? EACCES : ESTALE);
	else
		fuse_reply_attr(j->req, &st, S_ISDIR(st.st_mode) ? 0 : TIMEOUT_S);
}

static void do_open(struct vjob *j)
{
	struct fs *fs = req_fs(j->req);
	struct vnode *n = vnode_find(j->id);
	struct vhandle *h = NULL;
	struct vlayout *l = NULL;
	struct vckpt *c;
	int err = n ? vckpt_get(fs, n->key.path, true, &c) : -ESTALE;

	if (!err) {
		err = c->version == n->key.version ? may_see(fs, &j->who, &n->key, NULL, 1)
						   : -ESTALE;
		if (!err) /* descriptors of that version may still be open */
			err = vckpt_may(c, &j->who, true);
		if (!err && n->key.kind != V_REFUSED)
			err = vlayout_get(fs, &n->key, &l);
		vckpt_put(c);
	}
	if (l)
		vlayout_put(l);
	if (!err && !(h = handle_new(fs, n->key.path)))
		err = -ENOMEM;
	if (err) { /* ESTALE makes the kernel look the name up again */
		fuse_reply_err(j->req, err == -ENOENT ? ESTALE : to_errno(err));
		return;
	}
	j->fi.fh = h->fh;
	j->fi.keep_cache = n->key.kind != V_REFUSED;
	j->fi.direct_io = n->key.kind == V_REFUSED;
	if (fuse_reply_open(j->req, &j->fi))
		handle_drop(j->fi.fh);
}

static _Thread_local struct {
	char *buf, *scratch;
	size_t cap;
} mine;

static bool have_space(size_t size)
{
	if (!mine.scratch)
		mine.scratch = malloc(VIEW_SCRATCH);
	if (mine.cap < size) {
		free(mine.buf);
		mine.buf = malloc(size);
		mine.cap = mine.buf ? size : 0;
	}
	return mine.scratch && mine.cap >= size;
}

static void read_layout(fuse_req_t req, struct vlayout *l, size_t size, off_t off)
{
	struct view_io io = {
		.get = vckpt_file_get, .put = vckpt_file_put, .ctx = l->c, .item = vckpt_item};
	uint64_t end = view_size(l->view), from = (uint64_t)off;
	struct fmt_error e;
	int err = have_space(size) ? 0 : -ENOMEM;

	io.scratch = mine.scratch;
	if (from >= end)
		size = 0;
	else if (size > end - from)
		size = (size_t)(end - from);
	for (size_t at = 0, n; !err && at < size; at += n) {
		n = size - at < 1u << 20 ? size - at : 1u << 20;
		err = view_read(l->view, &io, from + at, mine.buf + at, n, &e);
	}
	if (!err)
		atomic_fetch_add(&req_fs(req)->lanes.bytes_read, size);
	if (err)
		fuse_reply_err(req, to_errno(err));
	else
		fuse_reply_buf(req, mine.buf, size);
}

static void read_refused(fuse_req_t req, const struct vnode *n, size_t size, off_t off)
{
	struct vckpt *c;
	char text[400];
	int err = vckpt_get_version(req_fs(req), n->key.path, n->key.version, &c);
	if (err) {
		fuse_reply_err(req, to_errno(err));
		return;
	}
	size_t len = (size_t)snprintf(text, sizeof(text), "%s\n", c->why);
	vckpt_put(c);
	if ((size_t)off >= len)
		size = 0;
	else if (size > len - (size_t)off)
		size = len - (size_t)off;
	fuse_reply_buf(req, text + (size ? off : 0), size);
}

static void do_read(struct vjob *j)
{
	struct vnode *n = vnode_find(j->id);
	struct vlayout *l;
	int err = n ? 0 : -ESTALE;

	if (!err && n->key.kind == V_REFUSED) {
		read_refused(j->req, n, j->size, j->off);
		return;
	}
	if (!err)
		err = vlayout_get(req_fs(j->req), &n->key, &l);
	if (err) {
		fuse_reply_err(j->req, err == -ENOENT ? ESTALE : to_errno(err));
		return;
	}
	read_layout(j->req, l, j->size, j->off);
	vlayout_put(l);
}

static void do_readdir(struct vjob *j)
{
	struct vnode *n = vnode_find(j->id);
	CLEANUP_FREE char *buf = malloc(j->size);
	struct vckpt *c = NULL;
	size_t used = 0;
	int err = !n ? -ESTALE : !buf ? -ENOMEM : view_key_version(req_fs(j->req), &n->key, &c);

	if (!err)
		err = may_see(req_fs(j->req), &j->who, &n->key, c, 5);
	if (!err)
		err = views_list(j, &n->key, c, buf, &used);
	if (c)
		vckpt_put(c);
	if (err)
		fuse_reply_err(j->req, to_errno(err));
	else
		fuse_reply_buf(j->req, buf, used);
}

/* ---- operations ---- */

static void views_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct vjob *j;
	if (strlen(name) > MAX_NAME) {
		fuse_reply_err(req, ENAMETOOLONG);
	} else if ((j = vjob_new(req, do_lookup, parent, name))) {
		/* files that were just closed no longer count as open */
		release_barrier(req_fs(req));
		vjob_put(j);
	}
}

static void views_getattr(fuse_req_t req, fuse_ino_t id)
{
	struct vjob *j = vjob_new(req, do_getattr, id, "");
	if (j)
		vjob_put(j);
}

static void views_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct vjob *j;
	if ((fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC)) {
		fuse_reply_err(req, EROFS);
	} else if ((j = vjob_new(req, do_open, id, ""))) {
		release_barrier(req_fs(req));
		j->fi = *fi;
		vjob_put(j);
	}
}

static void views_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	struct vnode *n = vnode_find(id);
	struct vlayout *l = n ? vlayout_find(&n->key) : NULL;
	struct vjob *j;

	(void)fi;
	if (l && atomic_fetch_add(&inline_reads, 1) < INLINE_READS) {
		session_may_take_long(req_fs(req));
		read_layout(req, l, size, off);
		atomic_fetch_sub(&inline_reads, 1);
		vlayout_put(l);
		return;
	}
	if (l) {
		atomic_fetch_sub(&inline_reads, 1);
		vlayout_put(l);
	}
	if (!(j = vjob_new(req, do_read, id, "")))
		return;
	j->size = size;
	j->off = off;
	vjob_put(j);
}

/* Everything is data; cp asks. */
static void views_lseek(fuse_req_t req, fuse_ino_t id, off_t off, int whence)
{
	struct vnode *n = vnode_find(id);
	struct stat st;
	if (!n) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	vnode_stat(n, NULL, &st);
	if (off < 0 || off >= st.st_size)
		fuse_reply_err(req, ENXIO);
	else
		fuse_reply_lseek(req, whence == SEEK_HOLE ? st.st_size : off);
}

static void views_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	(void)id;
	handle_drop(fi->fh);
	fuse_reply_err(req, 0);
}

static void views_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, bool plus)
{
	struct vjob *j = vjob_new(req, do_readdir, id, "");
	if (!j)
		return;
	j->size = size;
	j->off = off;
	j->plus = plus;
	vjob_put(j);
}

const struct control_ops views_ops = {
	.lookup = views_lookup,
	.getattr = views_getattr,
	.open = views_open,
	.read = views_read,
	.lseek = views_lseek,
	.release = views_release,
	.readdir = views_readdir,
	.forget = views_forget,
};

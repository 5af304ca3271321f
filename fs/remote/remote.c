/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn/tier/PATH: what the tier has at PATH, with the names, sizes, times and permissions
 * that it has there. It is not shown at PATH itself: the kernel says EEXIST to a mkdir of a name
 * that it has found, and a trainer makes its directories anew.
 *
 * An open is answered when the store has the file: it is looked for there first, with the size and
 * time of the listing. Else its checkpoint is fetched, of that this file first; when it is verified
 * it is read where the fetch has it, though the checkpoint has no name yet. The bytes are always
 * those of a file in the store.
 */
#include "fs/remote/inside.h"
#include "io/full.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMEOUT_S 1.0 /* as of other names: the tier changes */

struct opened {
	struct opened *next;
	uint64_t fh;
	int fd; /* in the store */
};
static pthread_mutex_t opened_lock = RANKED_MUTEX(RANK_REMOTE_OPENED);
static struct opened *opened;

/* ---- files in the store ------------------------------------------------------------------ */

static bool is_same(const struct stat *st, const struct stat *listed, bool exact)
{
	return S_ISREG(st->st_mode) && st->st_size == listed->st_size &&
	       (!exact || (st->st_mtim.tv_sec == listed->st_mtim.tv_sec &&
			   st->st_mtim.tv_nsec == listed->st_mtim.tv_nsec));
}

/* The file as the store has it: a descriptor. -ENOENT: it has another one, or none. exact: by its
 * time, too; without it, a fetch has compared the bytes. who: NULL if it was open before. */
static int open_local(struct fs *fs, const struct caller *who, const struct remote_node *n,
		      bool exact)
{
	struct stat st;
	int fd, err = who ? reach_stat(fs, who, n->path, 4, &st) : 0;

	if (err)
		return err == -ENOTDIR ? -ENOENT : err;
	fd = reach_open(io_store_root(fs->store), n->path, 0);
	if (fd < 0)
		return fd == -ENOTDIR || fd == -ELOOP ? -ENOENT : fd;
	err = fstat(fd, &st) ? -errno : is_same(&st, &n->st, exact) ? 0 : -ENOENT;
	if (err)
		close(fd);
	return err ? err : fd;
}

/* The same in the directory that a fetch writes, which has verified it. */
static int open_staged(struct fs *fs, const struct remote_node *n, const struct remote_node *c)
{
	const char *base = remote_name(c);
	CLEANUP_FREE char *path = NULL;
	struct stat st;
	int fd;

	if (asprintf(&path, "%.*s" CKPT_FETCH_PREFIX "%s%s", (int)(base - c->path), c->path, base,
		     n->path + strlen(c->path)) < 0)
		return -ENOMEM;
	fd = reach_open(io_store_root(fs->store), path, 0);
	if (fd >= 0 && (fstat(fd, &st) || !is_same(&st, &n->st, false))) {
		close(fd);
		fd = -ENOENT;
	}
	return fd;
}

/* The file, open: a descriptor. -EINPROGRESS as remote_answer(). */
static int get_file(struct fs *fs, struct remote_job *j, const struct caller *who,
		    const struct remote_list *l, const struct remote_node *n, char **fetch)
{
	const struct remote_node *c = remote_checkpoint(l, n);
	int fd = open_local(fs, who, n, !j->fetched && !j->staged);

	if (fd == -ENOENT && j->staged && c) {
		fd = open_staged(fs, n, c);
		if (fd == -ENOENT) /* it got its name just now */
			fd = open_local(fs, who, n, false);
	}
	if (fd != -ENOENT)
		return fd;
	if (j->fetched || !c || !*c->path)
		return -EIO; /* somebody has removed it */
	if (j->want != REMOTE_WAIT && !j->file)
		j->file = strdup(n->path);
	*fetch = strdup(c->path);
	return *fetch ? -EINPROGRESS : -ENOMEM;
}

static void add_opened(uint64_t fh, int fd)
{
	struct opened *o = malloc(sizeof(*o));

	if (!o) {
		close(fd); /* a read opens it again */
		return;
	}
	*o = (struct opened){.fh = fh, .fd = fd};
	LOCK_SCOPE(&opened_lock);
	o->next = opened;
	opened = o;
}

static int fd_of(uint64_t fh)
{
	LOCK_SCOPE(&opened_lock);
	for (struct opened *o = opened; o; o = o->next)
		if (o->fh == fh)
			return o->fd;
	return -1;
}

/* ---- answers ----------------------------------------------------------------------------- */

static void reply_node(const struct remote_job *j, const struct remote_node *n)
{
	struct fuse_entry_param e = {
		.ino = n->id, .attr = n->st, .attr_timeout = TIMEOUT_S, .entry_timeout = TIMEOUT_S};

	if (j->want == REMOTE_GETATTR)
		fuse_reply_attr(j->req, &n->st, TIMEOUT_S);
	else
		fuse_reply_entry(j->req, &e);
}

static int answer_open(struct fs *fs, struct remote_job *j, const struct remote_list *l,
		       const struct remote_node *n, char **fetch)
{
	struct caller who;
	int fd;

	if (!S_ISREG(n->st.st_mode))
		return -EISDIR;
	caller_of(j->req, &who);
	fd = get_file(fs, j, &who, l, n, fetch);
	caller_free(&who);
	if (fd < 0)
		return fd;
	j->fi.fh = staging_new_id(fs->s);
	add_opened(j->fi.fh, fd);
	fuse_reply_open(j->req, &j->fi);
	return 0;
}

static int read_from(struct fs *fs, fuse_req_t req, int fd, size_t size, off_t off)
{
	CLEANUP_FREE char *buf = malloc(size);
	ssize_t n = buf ? full_pread(fd, buf, size, (uint64_t)off) : -ENOMEM;

	if (n < 0)
		return (int)n;
	atomic_fetch_add(&fs->lanes.bytes_read, (uint64_t)n);
	fuse_reply_buf(req, buf, (size_t)n);
	return 0;
}

static int answer_read(struct fs *fs, struct remote_job *j, const struct remote_list *l,
		       const struct remote_node *n, char **fetch)
{
	int err, fd = get_file(fs, j, NULL, l, n, fetch);

	if (fd < 0)
		return fd;
	err = read_from(fs, j->req, fd, j->size, j->off);
	add_opened(j->fi.fh, fd);
	return err;
}

/* No nodes (ino 0): the kernel looks each name up on demand. */
static int answer_readdir(const struct remote_job *j, const struct remote_list *l,
			  const struct remote_node *dir)
{
	CLEANUP_FREE char *buf = malloc(j->size);
	size_t used = 0, need = 0;
	off_t at = 0;

	if (!buf)
		return -ENOMEM;
	for (uint32_t i = dir->first; i && need <= j->size - used; i = l->v[i].next) {
		const struct remote_node *n = &l->v[i];
		struct fuse_entry_param e = {.attr = {.st_ino = n->id, .st_mode = n->st.st_mode}};

		if (++at <= j->off)
			continue;
		need = j->plus ? fuse_add_direntry_plus(j->req, buf + used, j->size - used,
							remote_name(n), &e, at)
			       : fuse_add_direntry(j->req, buf + used, j->size - used,
						   remote_name(n), &e.attr, at);
		used += need <= j->size - used ? need : 0;
	}
	fuse_reply_buf(j->req, buf, used);
	return 0;
}

static int reply_text(const struct remote_job *j, const char *text)
{
	if (!j->size)
		fuse_reply_xattr(j->req, strlen(text));
	else if (j->size < strlen(text))
		return -ERANGE;
	else
		fuse_reply_buf(j->req, text, strlen(text));
	return 0;
}

static int answer_wait(struct fs *fs, struct remote_job *j, const struct remote_list *l,
		       const struct remote_node *n, char **fetch)
{
	int fd = S_ISREG(n->st.st_mode) ? get_file(fs, j, NULL, l, n, fetch) : -ENODATA;

	if (fd < 0)
		return fd;
	close(fd);
	return reply_text(j, "durable");
}

int remote_answer(struct fs *fs, struct remote_job *j, const struct remote_list *l, char **fetch)
{
	const struct remote_node *n = j->id == CONTROL_DIR ? l->v : remote_of_id(l, j->id);

	if (!n) /* makes the kernel look the whole path up again */
		return -ESTALE;
	if (j->want == REMOTE_LOOKUP && j->id != CONTROL_DIR)
		n = remote_child(l, n, j->name);
	if (!n)
		return -ENOENT;
	switch (j->want) {
	case REMOTE_LOOKUP:
	case REMOTE_GETATTR: reply_node(j, n); return 0;
	case REMOTE_OPEN: return answer_open(fs, j, l, n, fetch);
	case REMOTE_READ: return answer_read(fs, j, l, n, fetch);
	case REMOTE_READDIR: return answer_readdir(j, l, n);
	case REMOTE_STATE: return reply_text(j, "remote");
	case REMOTE_WAIT: return answer_wait(fs, j, l, n, fetch);
	}
	return -EINVAL;
}

/* ---- operations -------------------------------------------------------------------------- */

static void tier_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	const struct remote_job what = {.want = REMOTE_LOOKUP, .id = parent};

	if (!req_fs(req)->o.tier)
		fuse_reply_err(req, ENOENT);
	else
		remote_ask(req, &what, parent == CONTROL_DIR ? "" : name);
}

static void tier_getattr(fuse_req_t req, fuse_ino_t id)
{
	const struct remote_job what = {.want = REMOTE_GETATTR, .id = id};

	remote_ask(req, &what, "");
}

static void tier_getxattr(fuse_req_t req, fuse_ino_t id, const char *key, size_t size)
{
	bool waits = !strcmp(key, KEY_WAIT);
	const struct remote_job what = {
		.want = waits ? REMOTE_WAIT : REMOTE_STATE, .id = id, .size = size};

	if (!waits && strcmp(key, KEY_STATE))
		fuse_reply_err(req, ENODATA);
	else
		remote_ask(req, &what, "");
}

static void tier_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	const struct remote_job what = {.want = REMOTE_OPEN, .id = id, .fi = *fi};

	if ((fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC)
		fuse_reply_err(req, EROFS);
	else
		remote_ask(req, &what, "");
}

static void tier_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, bool plus)
{
	const struct remote_job what = {
		.want = REMOTE_READDIR, .id = id, .size = size, .off = off, .plus = plus};

	remote_ask(req, &what, "");
}

static void tier_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t off,
		      struct fuse_file_info *fi)
{
	const struct remote_job what = {
		.want = REMOTE_READ, .id = id, .size = size, .off = off, .fi = *fi};
	int err, fd = fd_of(fi->fh);

	session_may_block(req_fs(req));
	if (fd < 0) { /* opened under an earlier worker */
		remote_ask(req, &what, "");
		return;
	}
	err = read_from(req_fs(req), req, fd, size, off);
	if (err)
		fuse_reply_err(req, -err);
}

static void tier_lseek(fuse_req_t req, fuse_ino_t id, off_t off, int whence)
{
	struct remote_list *l = NULL;
	const struct remote_node *n;
	off_t end = -1;

	session_may_block(req_fs(req));
	if (!remote_hold(req_fs(req), &l) && l && (n = remote_of_id(l, id)))
		end = n->st.st_size;
	if (l)
		remote_put(l);
	if (end < 0)
		fuse_reply_err(req, ESTALE);
	else if (off < 0 || off >= end)
		fuse_reply_err(req, ENXIO);
	else
		fuse_reply_lseek(req, whence == SEEK_HOLE ? end : off);
}

static void tier_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct opened *o;

	(void)id;
	{
		LOCK_SCOPE(&opened_lock);
		struct opened **at = &opened;

		while ((o = *at) && o->fh != fi->fh)
			at = &o->next;
		if (o)
			*at = o->next;
	}
	if (o) {
		close(o->fd);
		free(o);
	}
	fuse_reply_err(req, 0);
}

const struct control_ops remote_ops = {
	.lookup = tier_lookup,
	.getattr = tier_getattr,
	.getxattr = tier_getxattr,
	.open = tier_open,
	.read = tier_read,
	.lseek = tier_lseek,
	.release = tier_release,
	.readdir = tier_readdir,
};

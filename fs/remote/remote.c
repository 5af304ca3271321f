/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn/tier/PATH: what the tier has at PATH, with the names, sizes, times and permissions
 * that it has there. It is not shown at PATH itself: the kernel says EEXIST to a mkdir of a name
 * that it has found, and a trainer makes its directories anew.
 *
 * An open is answered when there is a file to read: it is looked for in the store first, with the
 * size and time of the listing. Else its checkpoint is fetched, of that this file first. The fetch
 * says which bytes of it are there, verified; a read is answered when those that it wants are. The
 * bytes are always those of a file in the store.
 */
#include "fs/remote/inside.h"
#include "io/full.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK 4096u /* ranges that are looked at at once */
#define TIMEOUT_S 1.0 /* as of other names: the tier changes */

struct opened {
	struct opened *next;
	uint64_t fh; /* one may be open in several ways: the newest is first */
	struct remote_file f;
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

int remote_may_read(const struct remote_file *f, off_t off, size_t size)
{
	uint8_t state[LOOK];
	uint64_t at, end;

	if (f->told < 0 || !size)
		return 1;
	at = (uint64_t)off / f->bytes;
	end = ((uint64_t)off + size - 1) / f->bytes + 1;
	while (at < end) {
		size_t want = end - at < LOOK ? (size_t)(end - at) : LOOK;
		ssize_t n = full_pread(f->told, state, want, at);

		if (n <= 0)
			return n ? -EIO : 1; /* behind the end of the file */
		for (ssize_t i = 0; i < n; i++)
			if (state[i] != TIER_RANGE_THERE)
				return state[i] == TIER_RANGE_DAMAGED ? -EBADMSG : 0;
		at += (uint64_t)n;
	}
	return 1;
}

/* The file, open. -EINPROGRESS as remote_answer(). */
static int get_file(struct fs *fs, struct remote_job *j, const struct caller *who,
		    const struct remote_list *l, const struct remote_node *n,
		    struct remote_file *out, char **fetch)
{
	const struct remote_node *c = remote_checkpoint(l, n);
	bool staged = j->staged.fd >= 0;
	int fd = open_local(fs, who, n, !j->fetched && !staged);

	if (fd == -ENOENT && staged) {
		*out = j->staged;
		j->staged.fd = j->staged.told = -1;
		return 0;
	}
	*out = (struct remote_file){.fd = fd, .told = -1};
	if (fd != -ENOENT)
		return fd < 0 ? fd : 0;
	if (j->fetched || !c || !*c->path)
		return -EIO; /* somebody has removed it */
	if (j->want != REMOTE_WAIT && !j->file)
		j->file = strdup(n->path);
	*fetch = strdup(c->path);
	return *fetch ? -EINPROGRESS : -ENOMEM;
}

static void close_file(const struct remote_file *f)
{
	close(f->fd);
	if (f->told >= 0)
		close(f->told);
}

static void add_opened(uint64_t fh, const struct remote_file *f)
{
	struct opened *o = malloc(sizeof(*o));

	if (!o) {
		close_file(f); /* a read opens it again */
		return;
	}
	*o = (struct opened){.fh = fh, .f = *f};
	LOCK_SCOPE(&opened_lock);
	o->next = opened;
	opened = o;
}

static bool is_same_inode(int a, int b)
{
	struct stat x, y;

	return a >= 0 && b >= 0 && !fstat(a, &x) && !fstat(b, &y) && x.st_ino == y.st_ino &&
	       x.st_dev == y.st_dev;
}

/* Is it open in that way? */
static bool has_opened(uint64_t fh, const struct remote_file *f)
{
	LOCK_SCOPE(&opened_lock);
	for (struct opened *o = opened; o; o = o->next)
		if (o->fh == fh && is_same_inode(o->f.fd, f->fd) &&
		    (o->f.told < 0 || is_same_inode(o->f.told, f->told)))
			return true;
	return false;
}

/* One from which the bytes may be read; it stays open until the release. -EAGAIN: not yet, or it
 * was opened under an earlier worker. */
static int fd_to_read(uint64_t fh, off_t off, size_t size)
{
	LOCK_SCOPE(&opened_lock);
	for (struct opened *o = opened; o; o = o->next)
		if (o->fh == fh && remote_may_read(&o->f, off, size) > 0)
			return o->f.fd;
	return -EAGAIN;
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
	struct remote_file f;
	struct caller who;
	int err;

	if (!S_ISREG(n->st.st_mode))
		return -EISDIR;
	caller_of(j->req, &who);
	err = get_file(fs, j, &who, l, n, &f, fetch);
	caller_free(&who);
	if (err)
		return err;
	/* an open that drops pages waits for those that another reader waits for; those of another
	 * version go when its time is seen (FUSE_AUTO_INVAL_DATA) */
	j->fi.keep_cache = true;
	j->fi.fh = staging_new_id(fs->s);
	add_opened(j->fi.fh, &f);
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
	const struct remote_node *c = remote_checkpoint(l, n);
	struct remote_file f;
	int err = get_file(fs, j, NULL, l, n, &f, fetch);

	if (err)
		return err;
	/* its own descriptor: when it is answered a release may close the others */
	CLEANUP_CLOSE int fd = fcntl(f.fd, F_DUPFD_CLOEXEC, 0);
	err = fd < 0 ? -errno : remote_may_read(&f, j->off, j->size);
	if (has_opened(j->fi.fh, &f))
		close_file(&f);
	else
		add_opened(j->fi.fh, &f);
	if (err == -EBADMSG && c) /* before the reader knows: `latest` leads elsewhere then */
		remote_mark_damaged(c->path);
	return err > 0 ? read_from(fs, j->req, fd, j->size, j->off) : -EIO;
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
	struct remote_file f;
	int err = S_ISREG(n->st.st_mode) ? get_file(fs, j, NULL, l, n, &f, fetch) : -ENODATA;

	if (err)
		return err;
	close_file(&f);
	return reply_text(j, "durable");
}

static bool is_damaged(const struct remote_list *l, const struct remote_node *n)
{
	const struct remote_node *c = remote_checkpoint(l, n);

	return c && atomic_load(&c->damaged);
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
	case REMOTE_STATE: return reply_text(j, is_damaged(l, n) ? "damaged" : "remote");
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
	int err, fd = fd_to_read(fi->fh, off, size);

	session_may_block(req_fs(req));
	if (fd < 0) {
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
	struct opened *closed = NULL, *o;

	(void)id;
	{
		LOCK_SCOPE(&opened_lock);
		for (struct opened **at = &opened; (o = *at);) {
			if (o->fh != fi->fh) {
				at = &o->next;
				continue;
			}
			*at = o->next;
			o->next = closed;
			closed = o;
		}
	}
	while ((o = closed)) {
		closed = o->next;
		close_file(&o->f);
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

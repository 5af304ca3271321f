/* SPDX-License-Identifier: MIT
 * Operations on names: lookup, mkdir, symlink, link, unlink, rename, ... Each
 * checks, fills a record, records it, answers. The kernel has checked permissions
 * (default_permissions) and kinds where it can. */
#include "fs/fs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_S 1.0	/* other nodes of a cluster publish into the same store */

/* The kernel may know a file with several names as two inodes after a fork: then it
 * must ask each time. */
double attr_timeout(const struct node *n)
{
	return n->fork_to || (S_ISREG(n->mode) && node_links(n) > 1) ? 0 : TIMEOUT_S;
}

void fill_entry(struct fs *fs, struct node *n, const struct stat *st, struct fuse_entry_param *e)
{
	(void)fs;
	*e = (struct fuse_entry_param){
		.ino = n->id, .attr = *st, .attr_timeout = attr_timeout(n),
		.entry_timeout = n->buf ? 0 : TIMEOUT_S,	/* that name goes with the last close */
	};
}

int reply_entry(fuse_req_t req, struct fs *fs, struct node *n)
{
	struct fuse_entry_param e;
	struct stat st;

	node_stat(fs, n, &st);
	fill_entry(fs, n, &st, &e);
	n->nlookup++;
	int rc = fuse_reply_entry(req, &e);
	if (rc && rc != -ENOENT)
		n->nlookup--;
	return rc;
}

bool name_is_control(uint64_t parent, const char *name)
{
	return parent == ROOT_ID && !strcmp(name, CONTROL_DIR_NAME);
}

/* A request sent again after a restart that was carried out already: answer it
 * from its record. Lock held. */
static bool answered_entry(fuse_req_t req, struct fs *fs)
{
	struct rec r;
	if (!current.resent || !staging_answered(fs->s, current.unique, &r))
		return false;
	struct node *n = node_find(fs, r.node);
	if (!n)
		return false;
	reply_entry(req, fs, n);
	return true;
}

static bool answered_ok(fuse_req_t req, struct fs *fs)
{
	struct rec r;
	if (!current.resent || !staging_answered(fs->s, current.unique, &r))
		return false;
	fuse_reply_err(req, 0);
	return true;
}

/* What every change of names begins with. 0, or the error to answer. Lock held. */
static int begin_change(struct fs *fs, fuse_ino_t parent, const char *name, struct node **dir)
{
	if (fs->o.ro || is_view(parent))
		return -EROFS;
	if (is_control(parent) || name_is_control(parent, name))
		return -EPERM;
	if (strlen(name) > MAX_NAME)
		return -ENAMETOOLONG;
	*dir = node_find(fs, parent);
	return *dir ? 0 : -ESTALE;
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	struct node *n;

	if (is_control(parent) || name_is_control(parent, name)) {
		control_lookup(req, parent, name);
		return;
	}
	TREE_SCOPE(fs);
	struct node *dir = node_find(fs, parent);
	int rc = dir ? tree_lookup(fs, dir, name, &n, NULL) : -ESTALE;
	if (rc == -ENOENT)
		tree_absent(fs, dir, name);
	if (rc)
		fuse_reply_err(req, -rc);
	else
		reply_entry(req, fs, n);
}

static void forget_one(struct fs *fs, uint64_t id, uint64_t count)
{
	struct node *n = node_find(fs, id);
	if (is_control(id))
		control_forget(id, count);
	if (!n || n == fs->root)
		return;
	n->nlookup -= count < n->nlookup ? count : n->nlookup;
	if (!n->nlookup)
		node_release(fs, n);
}

void op_forget(fuse_req_t req, fuse_ino_t id, uint64_t count)
{
	struct fs *fs = req_fs(req);
	pthread_mutex_lock(&fs->lock);
	forget_one(fs, id, count);
	pthread_mutex_unlock(&fs->lock);
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *f)
{
	struct fs *fs = req_fs(req);
	pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < count; i++)
		forget_one(fs, f[i].ino, f[i].nlookup);
	pthread_mutex_unlock(&fs->lock);
	fuse_reply_none(req);
}

/* The owner of what the caller makes in dir, with the SGID rule. */
static void own(fuse_req_t req, const struct node *dir, struct rec *r, bool is_dir)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);
	r->uid = c->uid;
	r->gid = c->gid;
	if (dir->mode & S_ISGID) {
		r->gid = dir->gid;
		if (is_dir)
			r->mode |= S_ISGID;
	}
}

static void make(fuse_req_t req, struct rec *r, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	struct node *dir, *old;

	log_room(fs);
	release_barrier(fs);
	TREE_SCOPE(fs);
	if (answered_entry(req, fs))
		return;
	int rc = begin_change(fs, parent, name, &dir);
	if (!rc && !staging_room_for_names(fs->s))
		rc = -ENOSPC;
	if (!rc)
		rc = tree_lookup(fs, dir, name, &old, NULL);
	rc = rc == -ENOENT ? 0 : rc ? rc : -EEXIST;
	if (!rc) {
		own(req, dir, r, r->type == REC_MKDIR);
		r->dir = parent;
		r->name = name;
		r->node = r->ino = staging_new_id(fs->s);
		rc = fs_record(fs, r);
	}
	if (rc)
		fuse_reply_err(req, -rc);
	else
		reply_entry(req, fs, node_find(fs, r->node));
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct rec r = rec_new(REC_MKDIR);
	r.mode = mode & 07777;
	make(req, &r, parent, name);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	struct rec r = rec_new(REC_SYMLINK);
	r.mode = 0777;
	r.data = target;
	r.data_len = (uint32_t)strlen(target) + 1;
	if (r.data_len - 1 > io_store_max_link(req_fs(req)->store))
		fuse_reply_err(req, io_store_max_link(req_fs(req)->store) ? ENAMETOOLONG : EPERM);
	else
		make(req, &r, parent, name);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	struct fs *fs = req_fs(req);
	struct rec r = rec_new(REC_MKNOD);

	(void)rdev;
	r.mode = mode;
	if (S_ISFIFO(mode) || S_ISSOCK(mode)) {
		make(req, &r, parent, name);
		return;
	}
	if (!S_ISREG(mode) && (mode & S_IFMT)) {
		fuse_reply_err(req, EPERM);	/* the mount is nodev */
		return;
	}
	/* an empty regular file: made, closed */
	struct node *dir, *old, *n = NULL;
	struct staged *sf = NULL;
	log_room(fs);
	release_barrier(fs);
	TREE_SCOPE(fs);
	if (answered_entry(req, fs))
		return;
	int rc = begin_change(fs, parent, name, &dir);
	if (!rc)
		rc = tree_lookup(fs, dir, name, &old, NULL);
	rc = rc == -ENOENT ? 0 : rc ? rc : -EEXIST;
	if (!rc) {
		r = rec_new(REC_CREATE);
		r.node = r.ino = staging_new_id(fs->s);
		rc = staged_create(fs->s, r.node, 0, &sf);
	}
	if (!rc) {
		r.mode = mode & 07777;
		own(req, dir, &r, false);
		r.dir = parent;
		r.name = name;
		r.sf = staged_id(sf);
		r.flags = staged_spilled(sf) ? REC_SPILLED : 0;
		rc = fs_record(fs, &r);
		staged_unref(sf);
		n = node_find(fs, r.node);
	}
	if (!rc) {
		rc = node_seal_closed(fs, n);
		if (rc) {	/* no room for it: as if never made */
			struct rec u = rec_new(REC_UNLINK);
			u.unique = 0;
			u.node = n->id;
			u.dir = parent;
			u.name = name;
			u.flags = REC_GHOST;
			fs_record(fs, &u);
		}
	}
	if (rc)
		fuse_reply_err(req, -rc);
	else
		reply_entry(req, fs, n);
}

void op_link(fuse_req_t req, fuse_ino_t id, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	struct rec r = rec_new(REC_LINK);
	struct node *dir, *old;

	log_room(fs);
	release_barrier(fs);
	TREE_SCOPE(fs);
	if (answered_entry(req, fs))
		return;
	struct node *n = node_current(fs, id);
	int rc = begin_change(fs, parent, name, &dir);
	if (!rc && n && n->buf) {
		rc = buffers_commit(req, fs, n, parent, name, &n);
		if (rc)
			fuse_reply_err(req, -rc);
		else
			reply_entry(req, fs, n);
		return;
	}
	if (!rc && (!n || !n->names))
		rc = n ? -ENOENT : is_control(id) || is_view(id) ? -EPERM : -ESTALE;
	if (!rc && S_ISDIR(n->mode))
		rc = -EPERM;
	if (!rc)
		rc = tree_lookup(fs, dir, name, &old, NULL);
	rc = rc == -ENOENT && n && n->names ? 0 : rc ? rc : -EEXIST;
	if (!rc) {
		struct dentry *d = n->names;
		while (d->name_next && !d->sealed)
			d = d->name_next;
		r.node = n->id;
		r.flags = d->sealed ? 0 : REC_GHOST;
		r.dir = d->dir->id;
		r.name = d->name;
		r.dir2 = parent;
		r.name2 = name;
		rc = fs_record(fs, &r);
	}
	if (rc)
		fuse_reply_err(req, -rc);
	else
		reply_entry(req, fs, n);
}

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name, bool want_dir)
{
	struct fs *fs = req_fs(req);
	struct node *dir, *n = NULL;
	struct dentry *d;

	log_room(fs);
	release_barrier(fs);
	TREE_SCOPE(fs);
	if (answered_ok(req, fs))
		return;
	int rc = begin_change(fs, parent, name, &dir);
	if (!rc)
		rc = tree_lookup(fs, dir, name, &n, &d);
	if (!rc && want_dir != !!S_ISDIR(n->mode))
		rc = want_dir ? -ENOTDIR : -EISDIR;
	if (!rc && want_dir)
		rc = tree_dir_empty(fs, n);
	if (!rc) {
		struct rec r = rec_new(want_dir ? REC_RMDIR : REC_UNLINK);
		r.node = n->id;
		r.dir = parent;
		r.name = name;
		r.flags = d->store_has ? 0 : REC_GHOST;
		node_keep_bytes(fs, n);
		r.node2 = want_dir || (node_links(n) <= 1 && !n->writers) ? n->id : 0;
		rc = fs_record(fs, &r);
	}
	fuse_reply_err(req, -rc);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, false);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, true);
}

static int check_rename(struct fs *fs, struct node *n, struct node *victim, unsigned flags)
{
	if (flags & ~1u)	/* RENAME_EXCHANGE and the like: two names at once */
		return -EINVAL;
	if (!victim)
		return 0;
	if (flags & 1u)		/* RENAME_NOREPLACE */
		return -EEXIST;
	if (S_ISDIR(n->mode) && !S_ISDIR(victim->mode))
		return -ENOTDIR;
	if (!S_ISDIR(n->mode) && S_ISDIR(victim->mode))
		return -EISDIR;
	return S_ISDIR(victim->mode) ? tree_dir_empty(fs, victim) : 0;
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t parent2, const char *name2,
	       unsigned flags)
{
	struct fs *fs = req_fs(req);
	struct node *dir, *dir2, *n = NULL, *victim = NULL;
	struct dentry *d, *d2 = NULL;

	log_room(fs);
	release_barrier(fs);
	TREE_SCOPE(fs);
	if (answered_ok(req, fs))
		return;
	int rc = begin_change(fs, parent, name, &dir);
	if (!rc)
		rc = begin_change(fs, parent2, name2, &dir2);
	if (!rc)
		rc = tree_lookup(fs, dir, name, &n, &d);
	if (!rc) {
		rc = tree_lookup(fs, dir2, name2, &victim, &d2);
		if (rc == -ENOENT) {
			victim = NULL;
			rc = 0;
		}
	}
	if (!rc)
		rc = check_rename(fs, n, victim, flags);
	if (!rc && victim && victim != n)
		rc = fs_replaces(fs, n, victim, d2);
	if (!rc && victim != n) {
		struct rec r = rec_new(REC_RENAME);
		if (victim)
			node_keep_bytes(fs, victim);
		r.node = n->id;
		r.node2 = victim && (S_ISDIR(victim->mode) || node_links(victim) <= 1) ? victim->id : 0;
		r.dir = parent;
		r.name = name;
		r.dir2 = parent2;
		r.name2 = name2;
		d = dentry_find(fs, dir, name);
		r.flags = (S_ISDIR(n->mode) ? REC_DIR : 0) |
			  (d->sealed ? 0 : d->store_has ? REC_SHADOW : REC_GHOST);
		rc = fs_record(fs, &r);
	}
	fuse_reply_err(req, -rc);
}

static int link_target(struct fs *fs, struct node *n, char *buf, size_t cap)
{
	if (!S_ISLNK(n->mode))
		return -EINVAL;
	if (n->target) {
		strncpy(buf, n->target, cap - 1);
		return 0;
	}
	for (int tries = 0; tries < 4; tries++) {
		const struct place *p = node_place(fs, n);
		int fd, rc = p ? staging_dir_get(fs->s, p->dir, &fd) : -ENOENT;
		if (rc)
			return rc;
		ssize_t len = io_readlink(fs->store, fd, p->name, buf, cap);
		staging_dir_put(fs->s, p->dir);
		if (len >= 0)
			return 0;
		if (len != -ENOENT)
			return (int)len;
	}
	return -ENOENT;
}

void op_readlink(fuse_req_t req, fuse_ino_t id)
{
	struct fs *fs = req_fs(req);
	char buf[PATH_MAX + 1] = "";
	if (is_control(id)) {
		control_readlink(req, id);
		return;
	}
	pthread_mutex_lock(&fs->lock);
	struct node *n = node_find(fs, id);
	int rc = n ? link_target(fs, n, buf, sizeof(buf)) : -ESTALE;
	pthread_mutex_unlock(&fs->lock);
	if (rc)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_readlink(req, buf);
}

/* SPDX-License-Identifier: MIT
 * Operations on names: lookup, mkdir, symlink, link, unlink, rename, ... Each checks, fills a
 * record, records it, answers. The kernel has checked permissions (default_permissions) and, where
 * it can, file types.
 */
#include "fs/ops/inside.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Answers from its record a request that was resent after a restart and had been carried out. Lock
 * held. */
static bool answered_entry(fuse_req_t req, struct fs *fs)
{
	struct rec r;
	if (!current.resent || !staging_answered(fs->s, current.unique, &r))
		return false;
	struct node *n = node_find(fs, r.node);
	if (!n)
		return false;
	reply_known(req, fs, n);
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

static int find_dir(struct fs *fs, fuse_ino_t parent, struct node **dir)
{
	*dir = node_find(fs, parent);
	return *dir ? 0 : -ESTALE;
}

static int try_lookup(fuse_req_t req, struct fs *fs, fuse_ino_t parent, const char *name)
{
	struct node *n, *dir = node_find(fs, parent);
	int err = dir ? tree_lookup(fs, dir, name, &n, NULL) : -ESTALE;

	if (err == -ENOENT)
		tree_absent(fs, dir, name);
	return err ? err : reply_entry(req, fs, n);
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	int err;

	session_gives();
	ask_begin();
	do {
		TREE_SCOPE(fs);
		err = try_lookup(req, fs, parent, name);
	} while (ask_store(fs, err));
	if (err)
		reply_error(req, err);
}

/* Sets the owner of what the caller creates in dir, by the SGID rule. */
static void own(fuse_req_t req, const struct node *dir, struct rec *r, bool is_dir)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);
	r->uid = c->uid;
	r->gid = c->gid;
	if (dir->attr.mode & S_ISGID) {
		r->gid = dir->attr.gid;
		if (is_dir)
			r->mode |= S_ISGID;
	}
}

/* 0: answered. */
static int try_make(fuse_req_t req, struct fs *fs, struct rec *r, fuse_ino_t parent,
		    const char *name, bool space)
{
	struct node *dir, *old;

	if (answered_entry(req, fs))
		return 0;
	int err = find_dir(fs, parent, &dir);
	if (!err && !space)
		err = -ENOSPC;
	if (!err)
		err = tree_lookup(fs, dir, name, &old, NULL);
	err = err == -ENOENT ? 0 : err ? err : -EEXIST;
	if (err)
		return err;
	own(req, dir, r, r->type == REC_MKDIR);
	r->dir = parent;
	r->name = name;
	r->node = r->ino = staging_new_id(fs->s);
	err = fs_record(fs, r);
	if (!err)
		reply_known(req, fs, node_find(fs, r->node));
	return err;
}

static void make(fuse_req_t req, struct rec *r, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	/* without the lock: it may ask the store */
	bool space = staging_space_for_names(fs->s);
	int err;

	session_gives();
	ask_begin();
	do {
		TREE_SCOPE(fs);
		err = try_make(req, fs, r, parent, name, space);
	} while (ask_store(fs, err));
	if (err)
		reply_error(req, err);
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

/* Creates an empty regular file and closes it. Lock held. 0: answered. */
static int try_make_file(fuse_req_t req, struct fs *fs, struct rec *r, fuse_ino_t parent,
			 const char *name, struct staged *sf)
{
	struct node *dir, *old, *n;

	if (answered_entry(req, fs))
		return 0;
	int err = find_dir(fs, parent, &dir);
	if (!err)
		err = tree_lookup(fs, dir, name, &old, NULL);
	err = err == -ENOENT ? 0 : err ? err : -EEXIST;
	if (err || !sf)
		return err ? err : -ENOSPC;
	own(req, dir, r, false);
	r->dir = parent;
	r->name = name;
	r->sf = staged_id(sf);
	r->flags = staged_spilled(sf) ? REC_SPILLED : 0;
	err = fs_record(fs, r);
	if (err)
		return err;
	n = node_find(fs, r->node);
	err = node_seal_closed(fs, n);
	if (err) { /* no space */
		unmake(fs, n, parent, name);
		return err;
	}
	reply_known(req, fs, n);
	return 0;
}

static void make_file(fuse_req_t req, struct rec *r, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	struct staged *sf = NULL;
	int err;

	r->node = r->ino = staging_new_id(fs->s);
	/* without the lock: it may be created in the store */
	int made = staged_create(fs->s, r->node, 0, &sf);
	ask_begin();
	do {
		TREE_SCOPE(fs);
		err = try_make_file(req, fs, r, parent, name, made ? NULL : sf);
	} while (ask_store(fs, err));
	if (err)
		fuse_reply_err(req, made && err == -ENOSPC ? -made : -err);
	if (!made)
		staged_unref(sf);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	struct rec r = rec_new(REC_MKNOD);

	(void)rdev;
	r.mode = mode;
	if (S_ISFIFO(mode) || S_ISSOCK(mode)) {
		make(req, &r, parent, name);
		return;
	}
	if (!S_ISREG(mode) && (mode & S_IFMT)) {
		fuse_reply_err(req, EPERM); /* the mount is nodev */
		return;
	}
	r = rec_new(REC_CREATE);
	r.mode = mode & 07777;
	make_file(req, &r, parent, name);
}

/* Are they of different filesystems, mounted in the store? */
static bool is_across(const struct node *dir, const struct node *dir2)
{
	return dir->stored.dev && dir2->stored.dev && dir->stored.dev != dir2->stored.dev;
}

/* 0: answered. */
static int try_link(fuse_req_t req, struct fs *fs, fuse_ino_t id, fuse_ino_t parent,
		    const char *name)
{
	struct rec r = rec_new(REC_LINK);
	struct node *dir, *old;
	struct stat st;

	if (answered_entry(req, fs))
		return 0;
	struct node *n = node_current(fs, id);
	int err = find_dir(fs, parent, &dir);
	if (!err && n && n->buf) {
		err = buffers_commit(req, fs, n, parent, name, &n);
		if (!err)
			reply_known(req, fs, n);
		return err;
	}
	if (!err && (!n || !n->names))
		err = n ? -ENOENT : -ESTALE;
	if (!err && S_ISDIR(n->attr.mode))
		err = -EPERM;
	if (!err)
		err = tree_lookup(fs, dir, name, &old, NULL);
	err = err == -ENOENT && n && n->names ? 0 : err ? err : -EEXIST;
	if (!err)
		err = node_stat(fs, n, &st);
	if (err)
		return err;
	struct dentry *d = n->names;
	while (d->name_next && !d->ordered)
		d = d->name_next;
	if (is_across(d->dir, dir))
		return -EXDEV;
	r.node = n->id;
	r.flags = d->ordered ? 0 : REC_ABSENT;
	r.dir = d->dir->id;
	r.name = d->name;
	r.dir2 = parent;
	r.name2 = name;
	err = fs_record(fs, &r);
	if (!err)
		reply_known(req, fs, n);
	return err;
}

void op_link(fuse_req_t req, fuse_ino_t id, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	int err;

	ask_begin();
	do {
		TREE_SCOPE(fs);
		err = try_link(req, fs, id, parent, name);
	} while (ask_store(fs, err));
	if (err)
		fuse_reply_err(req, -err);
}

/* 0: answered. */
static int try_remove(fuse_req_t req, struct fs *fs, fuse_ino_t parent, const char *name,
		      bool want_dir)
{
	struct node *dir, *n = NULL;
	struct dentry *d;

	if (answered_ok(req, fs))
		return 0;
	int err = find_dir(fs, parent, &dir);
	if (!err)
		err = tree_lookup(fs, dir, name, &n, &d);
	if (!err && want_dir != !!S_ISDIR(n->attr.mode))
		err = want_dir ? -ENOTDIR : -EISDIR;
	if (!err && want_dir)
		err = tree_dir_empty(fs, n);
	if (!err)
		err = node_keep_bytes(fs, n);
	if (!err) {
		struct rec r = rec_new(want_dir ? REC_RMDIR : REC_UNLINK);
		r.node = n->id;
		r.dir = parent;
		r.name = name;
		r.flags = d->store_has ? 0 : REC_ABSENT;
		r.node2 = want_dir || (node_links(n) <= 1 && !n->writers) ? n->id : 0;
		err = fs_record(fs, &r);
	}
	if (!err)
		fuse_reply_err(req, 0);
	return err;
}

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name, bool want_dir)
{
	struct fs *fs = req_fs(req);
	int err;

	ask_begin();
	do {
		TREE_SCOPE(fs);
		err = try_remove(req, fs, parent, name, want_dir);
	} while (ask_store(fs, err));
	if (err)
		fuse_reply_err(req, -err);
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
	if (flags & ~1u) /* RENAME_EXCHANGE and others: not supported */
		return -EINVAL;
	if (!victim)
		return 0;
	if (flags & 1u) /* RENAME_NOREPLACE */
		return -EEXIST;
	if (S_ISDIR(n->attr.mode) && !S_ISDIR(victim->attr.mode))
		return -ENOTDIR;
	if (!S_ISDIR(n->attr.mode) && S_ISDIR(victim->attr.mode))
		return -EISDIR;
	return S_ISDIR(victim->attr.mode) ? tree_dir_empty(fs, victim) : 0;
}

/* What the store would refuse when the rename is published, after it was answered: 0, -EXDEV,
 * ASK_AGAIN. A program like mv(1) copies then. */
static int may_move(struct fs *fs, struct node *n, struct node *dir, const char *name,
		    const struct node *dir2)
{
	if (is_across(dir, dir2))
		return -EXDEV;
	/* one that is not in the store yet will be of the upper layer */
	if (!S_ISDIR(n->attr.mode) || !fs_is_applied(fs, n->seq.born) ||
	    !io_dirs_may_stay(fs->store))
		return 0;
	return ask_may_move(fs, dir, name);
}

/* 0: answered. */
static int try_rename(fuse_req_t req, struct fs *fs, fuse_ino_t parent, const char *name,
		      fuse_ino_t parent2, const char *name2, unsigned flags)
{
	struct node *dir, *dir2, *n = NULL, *victim = NULL;
	struct dentry *d, *d2 = NULL;

	if (answered_ok(req, fs))
		return 0;
	int err = find_dir(fs, parent, &dir);
	if (!err)
		err = find_dir(fs, parent2, &dir2);
	if (!err)
		err = tree_lookup(fs, dir, name, &n, &d);
	if (!err) {
		err = tree_lookup(fs, dir2, name2, &victim, &d2);
		if (err == -ENOENT) {
			victim = NULL;
			err = 0;
		}
	}
	if (!err)
		err = check_rename(fs, n, victim, flags);
	if (!err && victim != n)
		err = may_move(fs, n, dir, name, dir2);
	if (!err && victim && victim != n)
		err = fs_replaces(fs, n, victim, d2);
	if (!err && victim && victim != n)
		err = node_keep_bytes(fs, victim);
	if (!err && victim != n)
		err = save_commits(fs, n, dir2, name2);
	if (!err && victim != n) {
		struct rec r = rec_new(REC_RENAME);
		r.node = n->id;
		r.node2 = victim && (S_ISDIR(victim->attr.mode) || node_links(victim) <= 1)
				  ? victim->id
				  : 0;
		r.dir = parent;
		r.name = name;
		r.dir2 = parent2;
		r.name2 = name2;
		d = dentry_find(fs, dir, name);
		d2 = dentry_find(fs, dir2, name2);
		r.flags = (S_ISDIR(n->attr.mode) ? REC_DIR : 0) |
			  (victim || (d2 && d2->store_has) ? REC_OVER : 0) |
			  (d->ordered	  ? 0
			   : d->store_has ? REC_SHADOW
					  : REC_ABSENT);
		err = fs_record(fs, &r);
	}
	if (!err)
		fuse_reply_err(req, 0);
	return err;
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t parent2,
	       const char *name2, unsigned flags)
{
	struct fs *fs = req_fs(req);
	int err;

	ask_begin();
	do {
		TREE_SCOPE(fs);
		err = try_rename(req, fs, parent, name, parent2, name2, flags);
	} while (ask_store(fs, err));
	if (err)
		fuse_reply_err(req, -err);
}

static int link_target(struct fs *fs, struct node *n, char *buf, size_t cap)
{
	if (!S_ISLNK(n->attr.mode))
		return -EINVAL;
	if (n->target) {
		strncpy(buf, n->target, cap - 1);
		return 0;
	}
	return ask_link(fs, n, buf, cap);
}

void op_readlink(fuse_req_t req, fuse_ino_t id)
{
	struct fs *fs = req_fs(req);
	char buf[PATH_MAX + 1] = "";
	int err;

	ask_begin();
	do {
		TREE_SCOPE(fs);
		struct node *n = node_find(fs, id);
		err = n ? link_target(fs, n, buf, sizeof(buf)) : -ESTALE;
	} while (ask_store(fs, err));
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_readlink(req, buf);
}

/* SPDX-License-Identifier: MIT
 * Attributes: stat, chmod, chown, utimens, truncate, statfs. */
#include "fs/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void op_getattr(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct stat st;

	(void)fi;	/* the kernel does not send it: which version is asked for, the id tells */
	if (is_control(id)) {
		control_getattr(req, id);
		return;
	}
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, id);
	if (!n) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	node_stat(fs, n, &st);
	fuse_reply_attr(req, &st, attr_timeout(n));
}

static bool in_group(fuse_req_t req, gid_t gid)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);
	gid_t list[256];
	if (c->uid == 0 || c->gid == gid)
		return true;
	int n = fuse_req_getgroups(req, 256, list);
	for (int i = 0; i < n && i < 256; i++)
		if (list[i] == gid)
			return true;
	return false;
}

/* Nothing at all to set is chown(path, -1, -1), which drops suid and sgid like any other. */
static bool is_chown(int set)
{
	return (set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) ||
	       !(set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW |
			FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW));
}

/* What chmod(2) and chown(2) ask: suid and sgid go where the caller has no right to them. */
static void privileged_bits(fuse_req_t req, struct node *n, struct rec *r, int set)
{
	if ((r->mask & REC_MODE) && (r->mode & S_ISGID) && !S_ISDIR(n->mode) &&
	    !in_group(req, r->mask & REC_GID ? r->gid : n->gid))
		r->mode &= ~(uint32_t)S_ISGID;
	if (is_chown(set) && S_ISREG(n->mode) && !(r->mask & REC_MODE) && (n->mode & (S_ISUID | S_ISGID))) {
		r->mask |= REC_MODE;
		r->mode = n->mode & 07777 & ~(uint32_t)S_ISUID;
		if (n->mode & S_IXGRP)
			r->mode &= ~(uint32_t)S_ISGID;
	}
}

static int set_attr(fuse_req_t req, struct fs *fs, struct node *n, const struct stat *a, int set)
{
	struct rec r = rec_new(REC_ATTR);

	r.node = n->id;
	r.mask = (set & FUSE_SET_ATTR_MODE ? REC_MODE : 0) | (set & FUSE_SET_ATTR_UID ? REC_UID : 0) |
		 (set & FUSE_SET_ATTR_GID ? REC_GID : 0) |
		 (set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW) ? REC_ATIME : 0) |
		 (set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW) ? REC_MTIME : 0);
	r.mode = a->st_mode & 07777;
	r.uid = set & FUSE_SET_ATTR_UID ? a->st_uid : n->uid;	/* also as whose file this is: publish_attr */
	r.gid = set & FUSE_SET_ATTR_GID ? a->st_gid : n->gid;
	r.atime = set & FUSE_SET_ATTR_ATIME_NOW ? r.when : a->st_atim;
	r.mtime = set & FUSE_SET_ATTR_MTIME_NOW ? r.when : a->st_mtim;
	privileged_bits(req, n, &r, set);
	if (!r.mask)
		return 0;
	rec_aim(fs, &r, n);
	/* remember what the record does not carry before it makes the node dirty */
	struct stat st;
	node_stat(fs, n, &st);
	return fs_record(fs, &r);
}

/* Truncation clears suid and sgid as a write does (the mount asked for
 * FUSE_HANDLE_KILLPRIV_V2: the kernel leaves it to us). */
static int drop_suid(fuse_req_t req, struct node *n, struct stat *a, int set)
{
	if (fuse_req_ctx(req)->uid == 0 || (set & FUSE_SET_ATTR_MODE) || !(n->mode & (S_ISUID | S_ISGID)))
		return 0;
	a->st_mode = n->mode & ~(mode_t)(S_ISUID | (n->mode & S_IXGRP ? S_ISGID : 0));
	return FUSE_SET_ATTR_MODE;
}

/* Lock held; a closed file gets a new version, sealed at once. */
static int set_size(struct fs *fs, struct node *n, uint64_t size)
{
	if (S_ISDIR(n->mode))
		return -EISDIR;
	if (n->buf)
		return buffers_resize(fs, n, size);
	if (size > io_store_max_file(fs->store))	/* before a copy is made for it */
		return -EFBIG;
	if (n->writers && n->sf)
		return staged_resize(n->sf, size);
	struct stat st;
	node_stat(fs, n, &st);
	if ((uint64_t)st.st_size == size)	/* nothing changes, not even mtime (truncate(2)) */
		return 0;
	int rc = node_make_writable(fs, n, size == 0);
	if (rc)
		return rc;
	rc = staged_resize(n->sf, size);
	n->rdwr = true;		/* seal even if nothing looks changed */
	int seal = node_seal_closed(fs, n);
	return rc ? rc : seal;
}

void op_setattr(fuse_req_t req, fuse_ino_t id, struct stat *a, int set, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct stat st;
	struct rec done;

	(void)fi;
	if (is_view(id)) {
		fuse_reply_err(req, EROFS);
		return;
	}
	if (is_control(id)) {
		control_getattr(req, id);	/* > and : truncate first; let them */
		return;
	}
	if (fs->o.ro) {
		fuse_reply_err(req, EROFS);
		return;
	}
	if (set & FUSE_SET_ATTR_SIZE)
		session_may_block(fs);
	log_room(fs);
	release_barrier(fs);
	TREE_SCOPE(fs);
	struct node *n = node_current(fs, id);
	int rc = n ? 0 : -ESTALE;
	bool again = current.resent && staging_answered(fs->s, current.unique, &done);
	if (!rc && (set & FUSE_SET_ATTR_SIZE) && !again)
		rc = set_size(fs, n, (uint64_t)a->st_size);
	if (!rc && !again && (set & FUSE_SET_ATTR_SIZE))
		set |= drop_suid(req, n, a, set);
	if (!rc && !again)
		rc = set_attr(req, fs, n, a, set);
	if (rc == -ESTALE && n && n->fork_to) {
		fork_answer(req, fs, n);
		return;
	}
	if (rc) {
		fuse_reply_err(req, -rc);
		return;
	}
	n = node_find(fs, id);	/* what is asked of the file is told of the version */
	node_stat(fs, n, &st);
	fuse_reply_attr(req, &st, attr_timeout(n));
}

void op_statfs(fuse_req_t req, fuse_ino_t id)
{
	struct fs *fs = req_fs(req);
	struct statvfs v;
	(void)id;
	int rc = io_store_statvfs(fs->store, &v);
	if (rc) {
		fuse_reply_err(req, -rc);
		return;
	}
	/* what is staged has its room already taken from the store at its close */
	v.f_namemax = MAX_NAME;
	fuse_reply_statfs(req, &v);
}

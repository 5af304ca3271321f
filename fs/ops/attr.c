/* SPDX-License-Identifier: MIT
 * Attributes: stat, chmod, chown, utimens, truncate, statfs. */
#include "fs/ops/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void op_getattr(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct stat st;

	(void)fi; /* the kernel does not send it; the id tells which version is meant */
	double timeout = 0;
	int err;
	session_gives();
	ask_begin();
	do {
		TREE_SCOPE(fs);
		struct node *n = node_find(fs, id);
		err = n ? node_stat(fs, n, &st) : -ESTALE;
		if (!err)
			timeout = attr_timeout(n);
	} while (ask_store(fs, err));
	if (err)
		reply_error(req, err);
	else
		fuse_reply_attr(req, &st, timeout);
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

/* chown(path, -1, -1), which sets nothing, drops suid and sgid like any other. */
static bool is_chown(int set)
{
	return (set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) ||
	       !(set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_ATIME |
			FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW));
}

/* n's mode without suid and sgid, as after a write, a truncation or a chown. sgid without group
 * execute permission is not a privilege: it stays if the file belongs to the caller's own group. */
static mode_t plain_mode(fuse_req_t req, const struct node *n)
{
	bool sgid = !(n->attr.mode & S_ISGID) || (n->attr.mode & S_IXGRP) ||
		    !in_group(req, n->attr.gid);
	return n->attr.mode & 07777 & ~(mode_t)(S_ISUID | (sgid ? S_ISGID : 0));
}

/* Drops suid and sgid from a chmod(2) or chown(2) whose caller has no right to them. */
static void privileged_bits(fuse_req_t req, struct node *n, struct rec *r, int set)
{
	if ((r->mask & REC_MODE) && (r->mode & S_ISGID) && !S_ISDIR(n->attr.mode) &&
	    !in_group(req, r->mask & REC_GID ? r->gid : n->attr.gid))
		r->mode &= ~(uint32_t)S_ISGID;
	if (is_chown(set) && !S_ISDIR(n->attr.mode) && !(r->mask & REC_MODE) &&
	    (n->attr.mode & (S_ISUID | S_ISGID))) {
		r->mask |= REC_MODE;
		r->mode = plain_mode(req, n);
	}
}

static int set_attr(fuse_req_t req, struct fs *fs, struct node *n, const struct stat *a, int set)
{
	struct rec r = rec_new(REC_ATTR);

	r.node = n->id;
	r.mask = (set & FUSE_SET_ATTR_MODE ? REC_MODE : 0) |
		 (set & FUSE_SET_ATTR_UID ? REC_UID : 0) | (set & FUSE_SET_ATTR_GID ? REC_GID : 0) |
		 (set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW) ? REC_ATIME : 0) |
		 (set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW) ? REC_MTIME : 0);
	r.mode = a->st_mode & 07777;
	/* logged in any case: publish_attr needs the owner */
	r.uid = set & FUSE_SET_ATTR_UID ? a->st_uid : n->attr.uid;
	r.gid = set & FUSE_SET_ATTR_GID ? a->st_gid : n->attr.gid;
	r.atime = set & FUSE_SET_ATTR_ATIME_NOW ? r.when : a->st_atim;
	r.mtime = set & FUSE_SET_ATTR_MTIME_NOW ? r.when : a->st_mtim;
	privileged_bits(req, n, &r, set);
	if (!r.mask)
		return 0;
	int err = r.mask & (REC_ATIME | REC_MTIME) ? node_end_ahead(fs, n) : 0;
	if (err)
		return err;
	rec_aim(fs, &r, n);
	return fs_record(fs, &r);
}

/* Truncation clears suid and sgid, as a write does. */
static int drop_suid(fuse_req_t req, struct node *n, struct stat *a, int set)
{
	if (fuse_req_ctx(req)->uid == 0 || (set & FUSE_SET_ATTR_MODE) ||
	    !(n->attr.mode & (S_ISUID | S_ISGID)))
		return 0;
	a->st_mode = plain_mode(req, n);
	return FUSE_SET_ATTR_MODE;
}

int node_written(fuse_req_t req, struct fs *fs, struct node *n)
{
	struct rec r = rec_new(REC_ATTR);

	if (fuse_req_ctx(req)->uid == 0 || !(n->attr.mode & (S_ISUID | S_ISGID)))
		return 0;
	r.mode = plain_mode(req, n);
	if (r.mode == (n->attr.mode & 07777))
		return 0;
	r.unique = 0; /* it does not show whether the request was carried out */
	r.node = n->id;
	r.mask = REC_MODE;
	r.uid = n->attr.uid;
	r.gid = n->attr.gid;
	rec_aim(fs, &r, n);
	int err = fs_record(fs, &r);
	return err ? err : 1;
}

void attrs_changed(struct fs *fs, uint64_t id)
{
	fuse_lowlevel_notify_inval_inode(fs->se, id, -1, 0);
}

/* A caller whose memory cgroup is nearly full is about to map a file that it has extended: page
 * faults would charge the memory to its cgroup, so the daemon allocates it. Drops the lock
 * meanwhile. */
static void pay_for_size(struct fs *fs, struct node *n, uint64_t size)
{
	struct staged *sf = staged_ref(n->sf);
	n->busy = true;
	pthread_mutex_unlock(&fs->tree.lock);
	/* as much as the budget allows */
	staged_fallocate(sf, FALLOC_FL_KEEP_SIZE, 0, size);
	pthread_mutex_lock(&fs->tree.lock);
	n->busy = false;
	pthread_cond_broadcast(&fs->tree.busy_cond);
	staged_unref(sf);
}

static int resize_written(struct fs *fs, struct node *n, uint64_t size)
{
	int err = node_resize(fs, n, size);
	if (!err && size && current.tight && n->sf && !n->busy && !staged_spilled(n->sf))
		pay_for_size(fs, n, size);
	return err;
}

/* Lock held. A file without writers gets a new version, sealed at once. */
static int set_size(struct fs *fs, struct node *n, uint64_t size)
{
	if (S_ISDIR(n->attr.mode))
		return -EISDIR;
	if (n->buf)
		return buffers_resize(fs, n, size);
	/* checked before a copy is made for it */
	if (size > io_store_max_file(fs->store))
		return -EFBIG;
	if (current.slotted && n->sf && (staged_busy(n->sf) || staged_protected(n->sf)))
		return -EINPROGRESS;
	int err = node_await(fs, n);
	if (err)
		return err;
	if (n->writers && n->sf)
		return resize_written(fs, n, size);
	struct stat st;
	err = node_stat(fs, n, &st);
	if (err)
		return err;
	/* nothing changes, not even mtime (truncate(2)) */
	if ((uint64_t)st.st_size == size)
		return 0;
	err = node_make_writable(fs, n, size == 0 ? O_TRUNC : 0);
	if (err)
		return err;
	err = node_resize(fs, n, size);
	n->version.rdwr = true; /* seals even if nothing seems to have changed */
	int seal = node_seal_closed(fs, n);
	return err ? err : seal;
}

/* 0: answered. -EINPROGRESS: not answered, it has to wait. ASK_AGAIN. */
static int try_setattr(fuse_req_t req, struct fs *fs, fuse_ino_t id, struct stat *a, int set)
{
	struct stat st;
	struct rec done;

	TREE_SCOPE(fs);
	struct node *n = node_current(fs, id);
	int err = n ? 0 : -ESTALE;
	bool again = current.resent && staging_answered(fs->s, current.unique, &done);
	/* attributes that the record does not carry are read before it makes the node dirty */
	if (!err && !again)
		err = node_stat(fs, n, &st);
	if (n)
		n->refs++;
	if (!err && (set & FUSE_SET_ATTR_SIZE) && !again)
		err = set_size(fs, n, (uint64_t)a->st_size);
	if (!err && !again && (set & FUSE_SET_ATTR_SIZE))
		set |= drop_suid(req, n, a, set);
	if (!err && !again)
		err = set_attr(req, fs, n, a, set);
	if (n)
		n->refs--;
	if (err == -EINPROGRESS || err == ASK_AGAIN)
		return err;
	if (err == -ESTALE && n && n->fork.to) {
		reply_forked(req, fs, n);
		return 0;
	}
	/* the request names the file; the answer describes the version */
	n = err ? NULL : node_find(fs, id);
	if (!n) {
		fuse_reply_err(req, err ? -err : ESTALE);
		return 0;
	}
	node_attr(fs, n, &st);
	fuse_reply_attr(req, &st, attr_timeout(n));
	return 0;
}

struct later_setattr {
	fuse_req_t req;
	fuse_ino_t id;
	struct stat attr;
	int set;
};

static void setattr_later(void *arg)
{
	struct later_setattr l = *(struct later_setattr *)arg;
	free(arg);
	op_setattr(l.req, l.id, &l.attr, l.set, NULL);
}

void op_setattr(fuse_req_t req, fuse_ino_t id, struct stat *a, int set, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	int err;

	(void)fi;
	if (set & FUSE_SET_ATTR_SIZE) {
		session_may_block(fs);
		payer_look(fs, req);
	}
	log_space(fs);
	release_barrier(fs);
	ask_begin();
	do {
		err = try_setattr(req, fs, id, a, set);
	} while (ask_store(fs, err));
	if (err != -EINPROGRESS)
		return;
	struct later_setattr *l = malloc(sizeof(*l));
	if (!l) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	*l = (struct later_setattr){.req = req, .id = id, .attr = *a, .set = set};
	session_offload(fs, setattr_later, l);
}

void op_statfs(fuse_req_t req, fuse_ino_t id)
{
	struct fs *fs = req_fs(req);
	struct statvfs v;
	(void)id;
	int err = io_store_statvfs(fs->store, &v);
	if (err) {
		fuse_reply_err(req, -err);
		return;
	}
	/* staged bytes have their blocks in the store since their close */
	v.f_namemax = MAX_NAME;
	fuse_reply_statfs(req, &v);
}

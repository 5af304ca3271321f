/* SPDX-License-Identifier: MIT
 * Extended attributes: users' own (user.*), and user.cairn.*, which can be read by name but are
 * never listed, and cannot be set except user.cairn.device.
 */
#include "fs/ops/inside.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "fs/formats/formats.h"

#define ENTRY_BYTES 16u

static const char *const lane_names[] = {
	[LANE_NONE] = "none", [LANE_FAST] = "fast",   [LANE_SPILL] = "spill",
	[LANE_READ] = "read", [LANE_RELAY] = "relay",
};

/* Reads it from the store's file. */
static ssize_t store_value(struct fs *fs, struct node *n, const char *key, char *buf, size_t cap)
{
	ssize_t len = S_ISREG(n->attr.mode) ? ask_value(fs, n, key, buf, cap) : -ENODATA;
	return len < 0 && name_is_absent((int)len) ? -ENODATA : len;
}

static ssize_t over_value(struct fs *fs, struct node *n, char *buf, size_t cap)
{
	struct staged_info i = {.state = STAGED_DURABLE};
	if (n->sf)
		staged_get_info(n->sf, &i);
	/* a rename may have marked it, and the mark is pending */
	if ((i.state == STAGED_DURABLE || i.state == STAGED_EVICTED) &&
	    fs_is_applied(fs, n->seq.dirty))
		return store_value(fs, n, CKPT_OVER_KEY, buf, cap);
	return n->version.over ? snprintf(buf, cap, "%s", n->version.over) : -ENODATA;
}

/* What n has been waiting for, longer than commit_wait: for `cairn wait`. */
static ssize_t held_value(struct fs *fs, struct node *n, char *buf, size_t cap)
{
	struct staging_stats st;

	if (!waits_below(fs, n))
		return -ENODATA;
	staging_get_stats(fs->s, &st);
	if (!st.held.late)
		return -ENODATA;
	int len = snprintf(buf, cap, "%llu s: %.80s: %.140s",
			   (unsigned long long)(time(NULL) - st.held.since), st.held.path,
			   st.held.what);
	return len < (int)cap ? len : (int)cap - 1;
}

static ssize_t cairn_value(struct fs *fs, struct node *n, const char *key, char *buf, size_t cap)
{
	struct below b;
	struct staged_info i;

	if (!strcmp(key, "lane"))
		return snprintf(buf, cap, "%s", lane_names[n->lane]);
	if (!strcmp(key, "checksum")) {
		if (n->sf) {
			staged_get_info(n->sf, &i);
			if (i.state != STAGED_DURABLE)
				return -ENODATA;
			if (i.checksum[0])
				return snprintf(buf, cap, "%s", i.checksum);
		}
		return store_value(fs, n, KEY_CHECKSUM, buf, cap);
	}
	if (n->buf && (!strcmp(key, "buffer") || !strcmp(key, "state")))
		return snprintf(buf, cap, "%s", key[0] == 'b' ? buffers_state(n) : "open");
	if (!strcmp(key, "over"))
		return over_value(fs, n, buf, cap);
	if (!strcmp(key, "held"))
		return held_value(fs, n, buf, cap);
	b = look_below(fs, n);
	if (!strcmp(key, "state"))
		return snprintf(buf, cap, "%s", below_name(b.rank));
	if (!strcmp(key, "pending"))
		return snprintf(buf, cap, "%llu", (unsigned long long)b.bytes);
	if (!strcmp(key, "error"))
		return b.rank == BELOW_FAILED
			       ? snprintf(buf, cap, "%s", strerror(b.error ? -b.error : EIO))
			       : -ENODATA;
	return -ENODATA;
}

static void reply_value(fuse_req_t req, const char *buf, ssize_t len, size_t size)
{
	if (len < 0)
		fuse_reply_err(req, (int)-len);
	else if (size == 0)
		fuse_reply_xattr(req, (size_t)len);
	else if ((size_t)len > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, buf, (size_t)len);
}

static void ask_latest(fuse_req_t req, fuse_ino_t id, size_t size)
{
	struct fs *fs = req_fs(req);
	char path[PATH_MAX];
	bool dir;

	release_barrier(fs);
	pthread_mutex_lock(&fs->tree.lock);
	struct node *n = node_current(fs, id);
	if ((dir = n && S_ISDIR(n->attr.mode)))
		node_path(fs, n, path, sizeof(path));
	pthread_mutex_unlock(&fs->tree.lock);
	if (dir)
		latest_xattr(req, path, size);
	else
		fuse_reply_err(req, n ? ENODATA : ESTALE);
}

/* 0: answered. */
static int try_getxattr(fuse_req_t req, struct fs *fs, fuse_ino_t id, const char *key, size_t size)
{
	struct node *n = node_current(fs, id);
	char text[ASK_VALUE_MAX];

	if (!n)
		return -ESTALE;
	if (xattr_is_ours(key)) {
		ssize_t len = cairn_value(fs, n, key + sizeof(KEY_PREFIX) - 1, text, sizeof(text));
		if (len < 0)
			return (int)len;
		reply_value(req, text, len, size);
		return 0;
	}
	int err = node_load_xattrs(fs, n);
	if (err)
		return err;
	for (struct xattr *x = n->xattrs; x; x = x->next)
		if (!strcmp(x->key, key)) {
			reply_value(req, x->val, (ssize_t)x->len, size);
			return 0;
		}
	return -ENODATA;
}

void op_getxattr(fuse_req_t req, fuse_ino_t id, const char *key, size_t size)
{
	struct fs *fs = req_fs(req);
	uint64_t ms;
	int err;

	if (!strcmp(key, KEY_LATEST)) {
		ask_latest(req, id, size);
		return;
	}
	if (wait_parse(key, &ms)) {
		release_barrier(fs);
		wait_ask(req, id, ms, size);
		return;
	}
	session_may_block(fs);
	if (xattr_is_ours(key))
		/* files that were just closed no longer count as open */
		release_barrier(fs);
	ask_begin();
	do {
		TREE_SCOPE(fs);
		err = try_getxattr(req, fs, id, key, size);
	} while (ask_store(fs, err));
	if (err)
		fuse_reply_err(req, -err);
}

/* The device, like the state, describes this copy of the bytes: cp -a must not copy it. */
static bool is_listed(const struct xattr *x)
{
	return strcmp(x->key, KEY_DEVICE);
}

/* 0: answered. */
static int try_listxattr(fuse_req_t req, struct fs *fs, fuse_ino_t id, size_t size)
{
	struct node *n = node_current(fs, id);
	char *buf = NULL;
	size_t len = 0;

	int err = n ? node_load_xattrs(fs, n) : -ESTALE;
	for (struct xattr *x = err ? NULL : n->xattrs; x; x = x->next)
		len += is_listed(x) ? strlen(x->key) + 1 : 0;
	if (!err && len)
		err = (buf = malloc(len)) ? 0 : -ENOMEM;
	if (err)
		return err;
	char *p = buf;
	for (struct xattr *x = buf ? n->xattrs : NULL; x; x = x->next)
		if (is_listed(x))
			p = stpcpy(p, x->key) + 1;
	reply_value(req, buf, (ssize_t)len, size);
	free(buf);
	return 0;
}

void op_listxattr(fuse_req_t req, fuse_ino_t id, size_t size)
{
	struct fs *fs = req_fs(req);
	int err;

	session_may_block(fs);
	ask_begin();
	do {
		TREE_SCOPE(fs);
		err = try_listxattr(req, fs, id, size);
	} while (ask_store(fs, err));
	if (err)
		fuse_reply_err(req, -err);
}

/* An xattr that the store's inode has no space for must be refused: ENOSPC, as in setxattr(2). */
static int space_for(struct fs *fs, struct node *n, const char *key, size_t len)
{
	size_t sum = ENTRY_BYTES + strlen(key) + len, space = io_store_xattr_space(fs->store);
	for (struct xattr *x = n->xattrs; x; x = x->next)
		if (strcmp(x->key, key))
			sum += ENTRY_BYTES + strlen(x->key) + x->len;
	return sum > space ? -ENOSPC : 0;
}

static int try_change(struct fs *fs, fuse_ino_t id, struct rec *r, const char *key, int flags)
{
	struct rec done;
	struct node *n = node_current(fs, id);

	if (current.resent && staging_answered(fs->s, current.unique, &done))
		return 0;
	int err = !n ? -ESTALE : node_load_xattrs(fs, n);
	bool there = false;
	for (struct xattr *x = err ? NULL : n->xattrs; x; x = x->next)
		there |= !strcmp(x->key, key);
	if (!err && there && (flags & XATTR_CREATE))
		err = -EEXIST;
	if (!err && !there && ((flags & XATTR_REPLACE) || r->type == REC_XATTR_DEL))
		err = -ENODATA;
	/* the device has its sidecar file */
	if (!err && !io_store_has_xattr(fs->store) && strcmp(key, KEY_DEVICE))
		err = -EOPNOTSUPP;
	if (!err && r->type == REC_XATTR)
		err = space_for(fs, n, key, r->data_len);
	if (err)
		return err;
	r->node = n->id;
	rec_aim(fs, r, n);
	r->name2 = key;
	return fs_record(fs, r);
}

static void change(fuse_req_t req, fuse_ino_t id, struct rec *r, const char *key, int flags)
{
	struct fs *fs = req_fs(req);
	int err;

	if (strlen(key) > MAX_NAME || r->data_len > 65536) {
		fuse_reply_err(req, strlen(key) > MAX_NAME ? ERANGE : E2BIG);
		return;
	}
	ask_begin();
	do {
		TREE_SCOPE(fs);
		err = try_change(fs, id, r, key, flags);
	} while (ask_store(fs, err));
	fuse_reply_err(req, -err);
}

void op_setxattr(fuse_req_t req, fuse_ino_t id, const char *key, const char *val, size_t size,
		 int flags)
{
	struct rec r = rec_new(REC_XATTR);
	r.data = val;
	r.data_len = size > REC_DATA_MAX ? REC_DATA_MAX : (uint32_t)size;
	change(req, id, &r, key, flags);
}

void op_removexattr(fuse_req_t req, fuse_ino_t id, const char *key)
{
	struct rec r = rec_new(REC_XATTR_DEL);
	change(req, id, &r, key, 0);
}

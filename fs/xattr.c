/* SPDX-License-Identifier: MIT
 * Extended attributes: users' own (user.*), and user.cairn.*, which answers by name but is
 * never listed, and never set but for user.cairn.device. */
#include "fs/fs.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "fs/formats/formats.h"

#define CAIRN_PREFIX "user.cairn."
#define LATEST_KEY CAIRN_PREFIX "latest"
#define ENTRY_BYTES 16u

bool xattr_is_ours(const char *key)
{
	return !strncmp(key, CAIRN_PREFIX, sizeof(CAIRN_PREFIX) - 1) && strcmp(key, DEVICE_KEY);
}

static const char *const lane_names[] = {
	[LANE_NONE] = "none", [LANE_FAST] = "fast", [LANE_SPILL] = "spill", [LANE_READ] = "read",
	[LANE_RELAY] = "relay",
};

/* ---- how far what is below a node has come ---- */

struct below {
	struct fs *fs;
	struct node *top;
	uint64_t bytes;
	int rank;	/* least advanced: 0 failed ... 4 durable */
	int error;
	uint64_t halted;	/* node whose change the store refuses */
	int halted_error;
};

static int rank_of(enum staged_state st)
{
	switch (st) {
	case STAGED_FAILED: return 0;
	case STAGED_OPEN: return 1;
	case STAGED_SEALED: return 2;
	case STAGED_PERSISTING: return 3;
	default: return 4;
	}
}

static const char *const rank_names[] = {"failed", "open", "staged", "persisting", "durable"};

static bool is_below(struct fs *fs, struct node *n, const struct node *top)
{
	for (unsigned depth = 0; n && depth < 4096; depth++) {
		if (n == top)
			return true;
		if (n == fs->root || !n->names)
			return false;
		n = n->names->dir;
	}
	return false;
}

static void count_sf(struct below *b, struct node *n)
{
	struct staged_info i;
	if (n->id == b->halted) {
		b->rank = 0;
		b->error = b->halted_error;
	}
	if (!n->sf)
		return;
	staged_get_info(n->sf, &i);
	if (i.state == STAGED_DURABLE || i.state == STAGED_EVICTED)
		return;
	b->bytes += i.size - (i.written < i.size ? i.written : i.size);
	if (rank_of(i.state) < b->rank) {
		b->rank = rank_of(i.state);
		b->error = i.error;
	}
}

/* Everything not yet durable at or below top. Lock held. */
static struct below look_below(struct fs *fs, struct node *top)
{
	struct below b = {.fs = fs, .top = top, .rank = 4};
	uint64_t applied = fs_applied(fs), durable = staging_durable(fs->s);

	b.halted = staging_halted_at(fs->s, &b.halted_error);
	if (!S_ISDIR(top->mode)) {
		count_sf(&b, top);
		if (b.rank == 4 && (top->dirty_seq > applied || top->born_seq > applied || top->seal_seq > durable))
			b.rank = top->sf || S_ISREG(top->mode) ? 3 : 2;
		for (struct dentry *d = top->names; d; d = d->name_next)
			if (b.rank == 4 && d->seq > durable)
				b.rank = 2;
		return b;
	}
	for (unsigned i = 0; i < NODE_BUCKETS; i++)
		for (struct node *n = fs->nodes[i]; n; n = n->hash_next) {
			bool self = n->dirty_seq > durable || n->ns_seq > durable || n->seal_seq > durable ||
				    (n->born_seq > durable && n->born_seq != UINT64_MAX);
			if (!n->sf && !self)
				continue;
			if (!n->names && n != fs->root)
				continue;
			if (!is_below(fs, n, top))
				continue;
			count_sf(&b, n);
			if (self && b.rank > 2)
				b.rank = n->sf ? 3 : 2;
		}
	return b;
}

bool node_all_durable(struct fs *fs, struct node *n)
{
	return look_below(fs, n).rank == 4;
}

/* Of the store's file. */
static ssize_t store_value(struct fs *fs, struct node *n, const char *key, char *buf, size_t cap)
{
	const struct place *p = S_ISREG(n->mode) ? node_place(fs, n) : NULL;
	int fd;
	if (!p || staging_dir_get(fs->s, p->dir, &fd))
		return -ENODATA;
	ssize_t len = io_get_xattr(fs->store, fd, p->name, key, buf, cap);
	staging_dir_put(fs->s, p->dir);
	return len;
}

static ssize_t over_value(struct fs *fs, struct node *n, char *buf, size_t cap)
{
	struct staged_info i = {.state = STAGED_DURABLE};
	if (n->sf)
		staged_get_info(n->sf, &i);
	/* a rename may have marked it, and that is on its way */
	if ((i.state == STAGED_DURABLE || i.state == STAGED_EVICTED) && n->dirty_seq <= fs_applied(fs))
		return store_value(fs, n, CKPT_OVER_KEY, buf, cap);
	return n->over ? snprintf(buf, cap, "%s", n->over) : -ENODATA;
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
		return store_value(fs, n, CAIRN_PREFIX "checksum", buf, cap);
	}
	if (n->buf && (!strcmp(key, "buffer") || !strcmp(key, "state")))
		return snprintf(buf, cap, "%s", key[0] == 'b' ? buffers_state(n) : "open");
	if (!strcmp(key, "over"))
		return over_value(fs, n, buf, cap);
	b = look_below(fs, n);
	if (!strcmp(key, "state"))
		return snprintf(buf, cap, "%s", rank_names[b.rank]);
	if (!strcmp(key, "pending"))
		return snprintf(buf, cap, "%llu", (unsigned long long)b.bytes);
	if (!strcmp(key, "error"))
		return b.rank == 0 ? snprintf(buf, cap, "%s", strerror(b.error ? -b.error : EIO)) : -ENODATA;
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

static int key_error(const char *key)
{
	/* ACLs and capabilities would need enforcing here; say no rather than pretend */
	return strncmp(key, "user.", 5) ? -EOPNOTSUPP : key[5] ? 0 : -EINVAL;	/* a name has a name */
}

static void ask_latest(fuse_req_t req, fuse_ino_t id, size_t size)
{
	struct fs *fs = req_fs(req);
	char path[PATH_MAX];
	bool dir;

	release_barrier(fs);
	pthread_mutex_lock(&fs->lock);
	struct node *n = node_current(fs, id);
	if ((dir = n && S_ISDIR(n->mode)))
		node_path(fs, n, path, sizeof(path));
	pthread_mutex_unlock(&fs->lock);
	if (dir)
		latest_xattr(req, path, size);
	else
		fuse_reply_err(req, n ? ENODATA : ESTALE);
}

void op_getxattr(fuse_req_t req, fuse_ino_t id, const char *key, size_t size)
{
	struct fs *fs = req_fs(req);
	char text[256];
	int rc = key_error(key);

	if (rc || is_control(id)) {
		fuse_reply_err(req, rc ? -rc : ENODATA);
		return;
	}
	if (!strcmp(key, LATEST_KEY)) {
		ask_latest(req, id, size);
		return;
	}
	session_may_block(fs);
	if (xattr_is_ours(key))
		release_barrier(fs);	/* what was just closed is not open any more */
	TREE_SCOPE(fs);
	struct node *n = node_current(fs, id);
	if (!n) {
		fuse_reply_err(req, ESTALE);
		return;
	}
	if (xattr_is_ours(key)) {
		ssize_t len = cairn_value(fs, n, key + sizeof(CAIRN_PREFIX) - 1, text, sizeof(text));
		reply_value(req, text, len, size);
		return;
	}
	if (!(rc = node_load_xattrs(fs, n)))
		for (struct xattr *x = n->xattrs; x; x = x->next)
			if (!strcmp(x->key, key)) {
				reply_value(req, x->val, (ssize_t)x->len, size);
				return;
			}
	fuse_reply_err(req, rc ? -rc : ENODATA);
}

/* A device is of this copy of the bytes, as states are: cp -a does not carry it. */
static bool is_listed(const struct xattr *x)
{
	return strcmp(x->key, DEVICE_KEY);
}

void op_listxattr(fuse_req_t req, fuse_ino_t id, size_t size)
{
	struct fs *fs = req_fs(req);
	char *buf = NULL;
	size_t len = 0;

	if (is_control(id)) {
		reply_value(req, "", 0, size);
		return;
	}
	session_may_block(fs);
	TREE_SCOPE(fs);
	struct node *n = node_current(fs, id);
	int rc = n ? node_load_xattrs(fs, n) : -ESTALE;
	for (struct xattr *x = rc ? NULL : n->xattrs; x; x = x->next)
		len += is_listed(x) ? strlen(x->key) + 1 : 0;
	if (!rc && len)
		rc = (buf = malloc(len)) ? 0 : -ENOMEM;
	char *p = buf;
	for (struct xattr *x = rc || !buf ? NULL : n->xattrs; x; x = x->next)
		if (is_listed(x))
			p = stpcpy(p, x->key) + 1;
	reply_value(req, buf, rc ? rc : (ssize_t)len, size);
	free(buf);
}

/* What the store's inode could not hold must not be accepted: ENOSPC, as setxattr(2) has it. */
static int room_for(struct fs *fs, struct node *n, const char *key, size_t len)
{
	size_t sum = ENTRY_BYTES + strlen(key) + len, room = io_store_xattr_room(fs->store);
	for (struct xattr *x = n->xattrs; x; x = x->next)
		if (strcmp(x->key, key))
			sum += ENTRY_BYTES + strlen(x->key) + x->len;
	return sum > room ? -ENOSPC : 0;
}

static void change(fuse_req_t req, fuse_ino_t id, struct rec *r, const char *key, int flags)
{
	struct fs *fs = req_fs(req);
	int rc = key_error(key);

	if (!rc && fs->o.ro)
		rc = -EROFS;
	if (rc || is_control(id) || xattr_is_ours(key)) {
		fuse_reply_err(req, -rc);	/* states are accepted and ignored: cp -a carries them */
		return;
	}
	if (strlen(key) > MAX_NAME || r->data_len > 65536) {
		fuse_reply_err(req, strlen(key) > MAX_NAME ? ERANGE : E2BIG);
		return;
	}
	session_may_block(fs);
	log_room(fs);
	release_barrier(fs);
	TREE_SCOPE(fs);
	struct rec done;
	struct node *n = node_current(fs, id);
	if (current.resent && staging_answered(fs->s, current.unique, &done)) {
		fuse_reply_err(req, 0);
		return;
	}
	rc = !n ? -ESTALE : node_load_xattrs(fs, n);
	bool there = false;
	for (struct xattr *x = rc ? NULL : n->xattrs; x; x = x->next)
		there |= !strcmp(x->key, key);
	if (!rc && there && (flags & XATTR_CREATE))
		rc = -EEXIST;
	if (!rc && !there && ((flags & XATTR_REPLACE) || r->type == REC_XATTR_DEL))
		rc = -ENODATA;
	if (!rc && !io_store_has_xattr(fs->store) && strcmp(key, DEVICE_KEY))	/* that has its sidecar */
		rc = -EOPNOTSUPP;
	if (!rc && r->type == REC_XATTR)
		rc = room_for(fs, n, key, r->data_len);
	if (!rc) {
		r->node = n->id;
		rec_aim(fs, r, n);
		r->name2 = key;
		rc = fs_record(fs, r);
	}
	fuse_reply_err(req, -rc);
}

void op_setxattr(fuse_req_t req, fuse_ino_t id, const char *key, const char *val, size_t size, int flags)
{
	if (still_set(req, id, key, val, size))
		return;
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

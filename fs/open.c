/* SPDX-License-Identifier: MIT
 * Opening a file: which lane its bytes take, and the handle. In the fast, spill and read lanes
 * the kernel moves the bytes (passthrough) and the daemon sees none of them; in the relay lane
 * they come through bytes.c. */
#include "fs/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum lane choose_lane(struct fs *fs, struct node *n, int flags, bool *direct)
{
	bool pt = atomic_load(&fs->passthrough);
	*direct = false;
	if (n->buf)
		return LANE_FAST;
	if (!pt) {
		*direct = (flags & O_ACCMODE) != O_RDONLY;
		return LANE_RELAY;
	}
	/* these come through the daemon, which then decides per write; the kernel lets
	 * FOPEN_DIRECT_IO stand beside a passthrough open of the same inode */
	bool sync = (flags & (O_SYNC | O_DSYNC)) && (flags & O_ACCMODE) != O_RDONLY;
	bool suid = (n->mode & (S_ISUID | S_ISGID)) && (flags & O_ACCMODE) != O_RDONLY;
	bool raw = (flags & O_DIRECT) && (!n->sf || staged_spilled(n->sf));
	if (sync || suid || raw) {
		*direct = true;
		return LANE_RELAY;
	}
	return !n->sf ? LANE_READ : staged_spilled(n->sf) ? LANE_SPILL : LANE_FAST;
}

/* Registers n's backing file with the kernel, once per inode while it is open. */
static int register_backing(fuse_req_t req, struct fs *fs, struct node *n)
{
	int fd, rc;

	if (n->backing)
		return 0;
	rc = n->buf ? 0 : n->sf ? staged_use(n->sf, &fd) : -ENODATA;
	if (rc == -ENODATA)	/* evicted, or spilled and published: the store has it */
		node_set_sf(fs, n, NULL);
	else if (rc)
		return rc;
	if (n->buf) {
		rc = fuse_passthrough_open(req, buffers_backing(n));
	} else if (n->sf) {
		rc = staged_set_backing(n->sf);
		if (!rc)
			rc = fuse_passthrough_open(req, fd);
		staged_unuse(n->sf);
	} else {
		fd = node_open_store(fs, n);
		if (fd < 0)
			return fd;
		rc = fuse_passthrough_open(req, fd);
		close(fd);
	}
	if (rc <= 0) {
		if (!fs->passthrough_proved) {
			atomic_store(&fs->passthrough, false);
			fs_notice(fs, "passthrough is not to be had for this store or this user; "
				      "every file takes the relay lane");
		}
		return -EOPNOTSUPP;
	}
	fs->passthrough_proved = true;
	n->backing = rc;
	return 0;
}

static void reply_open_handle(fuse_req_t req, struct fs *fs, struct node *n, struct handle *h,
			      struct fuse_file_info *fi, bool create)
{
	bool direct;
	choose_lane(fs, n, h->flags, &direct);
	fi->fh = h->fh;
	fi->backing_id = h->uses_backing ? n->backing : 0;
	fi->direct_io = direct;
	fi->parallel_direct_writes = direct;
	fi->keep_cache = !h->uses_backing && !direct && !n->sf;
	if (!create) {
		fuse_reply_open(req, fi);
		return;
	}
	struct fuse_entry_param e;
	struct stat st;
	node_stat(fs, n, &st);
	fill_entry(fs, n, &st, &e);
	n->nlookup++;
	fuse_reply_create(req, &e, fi);
}

int open_handle(fuse_req_t req, struct fs *fs, struct node *n, struct fuse_file_info *fi, bool create)
{
	struct rec r = rec_new(REC_OPEN);
	bool direct;
	enum lane lane = choose_lane(fs, n, fi->flags, &direct);
	int rc = 0, fd = -1;

	if (atomic_load(&fs->passthrough)) {
		rc = register_backing(req, fs, n);
		if (rc == -EOPNOTSUPP && !n->handles && !n->buf) {
			lane = LANE_RELAY;
			rc = 0;
		}
		if (rc)
			return rc;
	}
	int held;
	rc = n->sf ? staged_use(n->sf, &held) : 0;
	if (rc == -ENODATA)
		node_set_sf(fs, n, NULL);	/* gone to the store since */
	else if (rc)
		return rc;
	struct staged *hold = n->sf ? staged_ref(n->sf) : NULL;
	if (lane == LANE_RELAY && !n->sf) {
		fd = node_open_store(fs, n);
		if (fd < 0)
			return fd;
	}
	r.fh = staging_new_id(fs->s);
	r.node = n->id;
	r.sf = n->sf ? staged_id(n->sf) : 0;
	r.mask = (uint64_t)(unsigned)fi->flags;
	r.lane = lane;
	r.backing = atomic_load(&fs->passthrough) ? n->backing : 0;
	if ((fi->flags & O_ACCMODE) != O_RDONLY)
		r.flags = REC_WRITE | ((fi->flags & O_ACCMODE) == O_RDWR ? REC_RDWR : 0);
	rc = fs_record(fs, &r);
	if (hold) {
		staged_unuse(hold);
		staged_unref(hold);
	}
	if (rc) {
		if (fd >= 0)
			close(fd);
		return rc;
	}
	struct handle *h = handle_find(fs, r.fh);
	h->fd = fd;
	atomic_fetch_add(&fs->lanes[lane], 1);
	reply_open_handle(req, fs, n, h, fi, create);
	return 0;
}

bool answered_open(fuse_req_t req, struct fs *fs, struct fuse_file_info *fi, bool create)
{
	struct rec r;
	if (!current.resent || !staging_answered(fs->s, current.unique, &r) || r.type != REC_OPEN)
		return false;
	struct handle *h = handle_find(fs, r.fh);
	if (!h)
		return false;
	reply_open_handle(req, fs, h->node, h, fi, create);
	return true;
}

void log_room(struct fs *fs)
{
	if (fs->o.ro || !staging_log_full(fs->s))
		return;
	session_may_block(fs);
	staging_log_room(fs->s);
	TREE_SCOPE(fs);
	if (staging_rotate_due(fs->s))	/* now: who waited with us makes the next record */
		staging_rotate(fs->s, fs_emit, fs);
}

/* A file that outgrew memory while it is written is not in one place before its close. */
static int unreadable(const struct node *n, int flags)
{
	if ((flags & O_ACCMODE) == O_WRONLY || !n->sf || !staged_outgrown(n->sf))
		return 0;
	return n->writers ? -EBUSY : -EIO;
}

void op_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	bool trunc = fi->flags & O_TRUNC, write = (fi->flags & O_ACCMODE) != O_RDONLY;

	if (is_control(id)) {
		control_open(req, id, fi);
		return;
	}
	if (write || trunc)
		log_room(fs);
	release_barrier(fs);
	TREE_SCOPE(fs);
	if (answered_open(req, fs, fi, false))
		return;
	struct node *n = node_find(fs, id);
	/* a name of a forked node: ESTALE makes the kernel look it up again */
	int rc = !n || n->fork_to ? -ESTALE : S_ISDIR(n->mode) ? -EISDIR : 0;
	if (!rc && n->buf)
		rc = trunc ? buffers_resize(fs, n, 0) : 0;
	else if (!rc && (write || trunc))
		rc = fs->o.ro ? -EROFS : node_make_writable(fs, n, trunc);
	else if (!rc)
		fork_await(fs, n);
	if (!rc) {
		node_wait_busy(fs, n);
		node_check_sf(fs, n);
		rc = unreadable(n, fi->flags);
	}
	if (!rc) {
		rc = open_handle(req, fs, n, fi, false);
	}
	/* an O_RDONLY|O_TRUNC made a version without a writer; no room for it: state failed */
	if (!rc && trunc && !write && !n->buf)
		node_seal_closed(fs, n);
	if (rc == -ESTALE && n && n->fork_to)
		fork_answer(req, fs, n);
	else if (rc)
		fuse_reply_err(req, -rc);
}

static void staged_let_go(struct staged **sf)
{
	if (*sf)
		staged_unref(*sf);
}

/* A large staged file for a new name, made before the tree lock is taken: handing it its
 * memory takes milliseconds a GiB. NULL: not large, or not to be had; it is made when it is due. */
static struct staged *memory_for(struct fs *fs, uint64_t id, uint64_t parent, const char *name)
{
	struct staged *sf = NULL;
	pthread_mutex_lock(&fs->lock);
	struct node *dir = current.resent ? NULL : node_find(fs, parent);
	uint64_t size = dir ? expect_size(fs, dir, name) : STAGED_SIZE_UNKNOWN;
	struct dentry *d = dir ? dentry_find(fs, dir, name) : NULL;
	bool there = d && d->node;
	if (dir && !there && size == STAGED_SIZE_UNKNOWN)
		size = expect_from_store(fs, dir, name);
	pthread_mutex_unlock(&fs->lock);
	if (there || size == STAGED_SIZE_UNKNOWN || size < LARGE_FILE)
		return NULL;
	session_may_block(fs);
	return staged_create(fs->s, id, size, &sf) ? NULL : sf;
}

/* CREATE, but someone else was faster. The answer names a node: no fork needs ESTALE. */
static int create_existing(struct fs *fs, struct node **n, int flags)
{
	if (flags & O_EXCL)
		return -EEXIST;
	if (!S_ISREG((*n)->mode))
		return -EISDIR;
	int rc = node_make_writable(fs, *n, flags & O_TRUNC);
	if (rc != -ESTALE || !(*n)->fork_to)
		return rc;
	*n = node_current(fs, (*n)->id);
	fork_tell(fs, *n);
	return node_make_writable(fs, *n, flags & O_TRUNC);
}

/* A worker died between this request's two records: n is the file that it was to make. */
static bool made_before(struct fs *fs, const struct node *n)
{
	struct rec r;
	return current.resent && staging_answered(fs->s, current.unique, &r) && r.type == REC_CREATE && r.node == n->id;
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	const struct fuse_ctx *c = fuse_req_ctx(req);
	struct node *n = NULL, *dir;

	if (parent == BUFFERS_DIR && !fs->o.ro && strlen(name) <= MAX_NAME) {
		buffers_create(req, name, mode, fi);
		return;
	}
	if (fs->o.ro || is_control(parent) || name_is_control(parent, name) || strlen(name) > MAX_NAME) {
		fuse_reply_err(req, fs->o.ro || is_view(parent) ? EROFS :
			       strlen(name) > MAX_NAME ? ENAMETOOLONG : EPERM);
		return;
	}
	log_room(fs);
	release_barrier(fs);
	uint64_t id = staging_new_id(fs->s);
	struct staged *sf __attribute__((cleanup(staged_let_go))) = memory_for(fs, id, parent, name);
	TREE_SCOPE(fs);
	if (answered_open(req, fs, fi, true))
		return;
	dir = node_find(fs, parent);
	int rc = dir ? tree_lookup_again(fs, dir, name, &n) : -ESTALE;
	if (!rc) {
		rc = create_existing(fs, &n, made_before(fs, n) ? fi->flags & ~(O_EXCL | O_TRUNC) : fi->flags);
	} else if (rc == -ENOENT) {
		struct rec r = rec_new(REC_CREATE);
		r.node = r.ino = id;
		rc = sf ? 0 : staged_create(fs->s, id, expect_size(fs, dir, name), &sf);
		if (!rc) {
			r.mode = mode & 07777;
			r.uid = c->uid;
			r.gid = dir->mode & S_ISGID ? dir->gid : c->gid;
			r.dir = parent;
			r.name = name;
			r.sf = staged_id(sf);
			r.flags = (staged_spilled(sf) ? REC_SPILLED : 0) | (staged_huge(sf) ? REC_HUGE : 0);
			rc = fs_record(fs, &r);
			n = node_find(fs, r.node);
		}
	}
	if (!rc)
		rc = open_handle(req, fs, n, fi, true);
	if (rc)
		fuse_reply_err(req, -rc);
}

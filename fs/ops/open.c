/* SPDX-License-Identifier: MIT
 * Opening a file: the lane of its bytes, and the handle. In the fast, spill and read lanes the
 * kernel moves the bytes (passthrough) without the daemon; in the relay lane they pass through
 * bytes.c.
 */
#include "fs/ops/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A reader of an empty file whose bytes are, or will be, the store's: with a backing file it could
 * not go over to the version that a writer begins, which the same node must have
 * (node_make_writable). */
static bool reads_nothing(struct node *n, int flags)
{
	struct staged_info i;

	if ((flags & O_ACCMODE) != O_RDONLY || (n->sf && !staged_spilled(n->sf)))
		return false;
	if (!n->sf)
		return !n->attr.size;
	staged_get_info(n->sf, &i);
	return !i.size;
}

/* Whether n's bytes must go through the daemon: the kernel has no backing file of n and cannot get
 * one while n is open, or the store is so full that each write must be able to fail. */
static bool is_relayed(struct fs *fs, struct node *n, int flags)
{
	if (n->handles)
		return !n->backing.id;
	return (n->sf && staged_checked(n->sf)) || (!fs->o.ro && reads_nothing(n, flags));
}

static enum lane choose_lane(struct fs *fs, struct node *n, int flags)
{
	bool pt = atomic_load(&fs->lanes.passthrough);
	bool write = (flags & O_ACCMODE) != O_RDONLY;
	if (n->buf)
		return LANE_FAST;
	if (!pt)
		return LANE_RELAY;
	/* these go through the daemon, which decides per write; the kernel allows FOPEN_DIRECT_IO
	 * beside a passthrough open of the same inode */
	bool sync = (flags & (O_SYNC | O_DSYNC)) && write;
	bool suid = (n->attr.mode & (S_ISUID | S_ISGID)) && write;
	bool raw = (flags & O_DIRECT) && (!n->sf || staged_spilled(n->sf));
	bool charged =
		write && current.tight && n->sf && !staged_spilled(n->sf) && !staged_covered(n->sf);
	bool fixed = write && n->sf && (staged_protected(n->sf) || staged_checked(n->sf));
	if (sync || suid || raw || charged || fixed || is_relayed(fs, n, flags))
		return LANE_RELAY;
	return !n->sf ? LANE_READ : staged_spilled(n->sf) ? LANE_SPILL : LANE_FAST;
}

/* Registers n's backing file with the kernel, once for each inode while it is open. */
static int register_backing(fuse_req_t req, struct fs *fs, struct node *n)
{
	int fd, err;

	if (n->backing.id)
		return 0;
	err = n->buf ? 0 : n->sf ? staged_use(n->sf, &fd) : -ENODATA;
	if (err == -ENODATA) /* evicted, or spilled and published: open the store's file */
		node_set_sf(fs, n, NULL);
	else if (err)
		return err;
	if (n->buf) {
		err = fuse_passthrough_open(req, buffers_backing(n));
	} else if (n->sf) {
		err = staged_set_backing(n->sf);
		if (!err)
			err = fuse_passthrough_open(req, fd);
		staged_unuse(n->sf);
	} else {
		fd = node_open_store(fs, n);
		if (fd < 0)
			return fd;
		err = fuse_passthrough_open(req, fd);
		close(fd);
	}
	if (err <= 0) {
		if (!fs->lanes.proved) {
			atomic_store(&fs->lanes.passthrough, false);
			fs_notice(fs, LEVEL_WARNING
				  "passthrough is not available for this store or this user; "
				  "every file takes the relay lane");
		}
		return -EOPNOTSUPP;
	}
	fs->lanes.proved = true;
	n->backing.id = err;
	return 0;
}

/* Without passthrough: whether the kernel bypasses its page cache for h. That makes large writes
 * twice as fast. But the kernel's fuse_direct_io drops a page before it sends the write, and until
 * that is answered the old page may be read again: a store through a mapping then writes the old
 * bytes back. So not if the file may be mapped for writing, which takes O_RDWR. */
static bool is_direct(const struct node *n, const struct handle *h)
{
	int access = h->flags & O_ACCMODE;
	return access != O_RDONLY && (!n->version.rdwr || h->flags & (O_DIRECT | O_SYNC | O_DSYNC));
}

static void reply_open_handle(fuse_req_t req, struct fs *fs, struct node *n, struct handle *h,
			      struct fuse_file_info *fi, bool create)
{
	bool direct = h->lane == LANE_RELAY &&
		      (h->uses_backing || atomic_load(&fs->lanes.passthrough) || is_direct(n, h));
	fi->fh = h->fh;
	fi->backing_id = h->uses_backing ? n->backing.id : 0;
	fi->direct_io = direct;
	fi->parallel_direct_writes = direct;
	fi->keep_cache = !h->uses_backing && !direct && !n->sf;
	if (!create) {
		fuse_reply_open(req, fi);
		return;
	}
	struct fuse_entry_param e;
	struct stat st;
	node_attr(fs, n, &st);
	fill_entry(n, &st, &e);
	n->nlookup++;
	fuse_reply_create(req, &e, fi);
}

int open_handle(fuse_req_t req, struct fs *fs, struct node *n, struct fuse_file_info *fi,
		bool create)
{
	struct rec r = rec_new(REC_OPEN);
	enum lane lane = choose_lane(fs, n, fi->flags);
	uint32_t uid = fuse_req_ctx(req)->uid;
	int err = n->sf || lane == LANE_RELAY ? share_of_files(uid) : 0, fd = -1;

	if (err)
		return err;
	if (atomic_load(&fs->lanes.passthrough) && (n->buf || !is_relayed(fs, n, fi->flags))) {
		err = register_backing(req, fs, n);
		if (err == -EOPNOTSUPP && !n->handles && !n->buf) {
			lane = LANE_RELAY;
			err = 0;
		}
		if (err)
			return err;
	}
	int sf_fd;
	err = n->sf ? staged_use(n->sf, &sf_fd) : 0;
	if (err == -ENODATA)
		node_set_sf(fs, n, NULL); /* in the store since */
	else if (err)
		return err;
	struct staged *sf = n->sf ? staged_ref(n->sf) : NULL;
	if (lane == LANE_RELAY && !n->sf) {
		fd = node_open_store(fs, n);
		if (fd < 0)
			return fd;
		if (!n->attr.size) { /* it may read the next version: handles_may_follow() */
			close(fd);
			fd = -1;
		}
	}
	r.fh = staging_new_id(fs->s);
	r.node = n->id;
	r.sf = n->sf ? staged_id(n->sf) : 0;
	r.mask = (uint64_t)(unsigned)fi->flags;
	r.lane = lane;
	r.uid = uid;
	r.backing = atomic_load(&fs->lanes.passthrough) ? n->backing.id : 0;
	if ((fi->flags & O_ACCMODE) != O_RDONLY)
		r.flags = REC_WRITE | ((fi->flags & O_ACCMODE) == O_RDWR ? REC_RDWR : 0);
	err = fs_record(fs, &r);
	if (sf) {
		staged_unuse(sf);
		staged_unref(sf);
	}
	if (err) {
		if (fd >= 0)
			close(fd);
		return err;
	}
	struct handle *h = handle_find(fs, r.fh);
	h->fd = fd;
	atomic_fetch_add(&fs->lanes.opens[lane], 1);
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

/* While a file that outgrew memory is being written, its bytes are in two places until its
 * close. */
static int unreadable(const struct node *n, int flags)
{
	if ((flags & O_ACCMODE) == O_WRONLY || !n->sf || !staged_outgrown(n->sf))
		return 0;
	return n->writers ? -EBUSY : -EIO;
}

static void staged_let_go(struct staged **sf)
{
	if (*sf)
		staged_unref(*sf);
	*sf = NULL;
}

/* An open, or a create, that has to wait: continued on a thread of its own. */
struct later_open {
	fuse_req_t req;
	fuse_ino_t id;
	mode_t mode;
	struct fuse_file_info fi;
	bool create;
	char name[];
};

static void do_later(void *arg)
{
	struct later_open *l = arg;
	if (l->create)
		op_create(l->req, l->id, l->name, l->mode, &l->fi);
	else
		op_open(l->req, l->id, &l->fi);
	free(l);
}

/* name NULL: an open. No lock held. */
static void offload_open(fuse_req_t req, fuse_ino_t id, const char *name, mode_t mode,
			 const struct fuse_file_info *fi)
{
	struct later_open *l = malloc(sizeof(*l) + (name ? strlen(name) : 0) + 1);
	if (!l) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	*l = (struct later_open){.req = req, .id = id, .mode = mode, .fi = *fi, .create = name};
	strcpy(l->name, name ? name : "");
	session_offload(req_fs(req), do_later, l);
}

/* 0: answered. -EINPROGRESS: not answered, it has to wait. ASK_AGAIN. *was: n's version before it
 * was made writable. */
static int try_open(fuse_req_t req, struct fs *fs, fuse_ino_t id, struct fuse_file_info *fi,
		    struct staged **was)
{
	bool trunc = fi->flags & O_TRUNC, write = (fi->flags & O_ACCMODE) != O_RDONLY;

	TREE_SCOPE(fs);
	if (answered_open(req, fs, fi, false))
		return 0;
	struct node *n = node_find(fs, id);
	/* a name of a forked node: ESTALE makes the kernel look it up again */
	int err = !n || n->fork.to	  ? -ESTALE
		  : S_ISDIR(n->attr.mode) ? -EISDIR
		  : write		  ? share_of_files(fuse_req_ctx(req)->uid)
					  : 0;
	if (n)
		n->refs++;
	staged_let_go(was);
	*was = n && n->sf ? staged_ref(n->sf) : NULL;
	if (!err && n->buf)
		err = trunc ? buffers_resize(fs, n, 0) : 0;
	else if (!err && (write || trunc))
		err = node_make_writable(fs, n, fi->flags);
	else if (!err)
		err = fork_await(fs, n);
	bool made = !err && (write || trunc) && !n->buf;
	if (!err)
		err = node_await(fs, n);
	if (!err) {
		node_check_sf(fs, n);
		err = unreadable(n, fi->flags);
	}
	if (!err)
		err = open_handle(req, fs, n, fi, false);
	if (err && made)
		node_take_back(fs, n, *was);
	/* O_RDONLY|O_TRUNC made a version without a writer; without space its state becomes
	 * failed */
	if (!err && trunc && !write && !n->buf)
		node_seal_closed(fs, n);
	if (n)
		n->refs--;
	if (err == -EINPROGRESS || err == ASK_AGAIN)
		return err;
	if (err == -ESTALE && n && n->fork.to)
		reply_forked(req, fs, n);
	else if (err)
		fuse_reply_err(req, -err);
	return 0;
}

/* Clears suid and sgid with the bytes; done first, so that the lane is chosen for a plain file. */
static int truncated(fuse_req_t req, struct fs *fs, fuse_ino_t id)
{
	pthread_mutex_lock(&fs->tree.lock);
	struct node *n = node_current(fs, id);
	int err = n && S_ISREG(n->attr.mode) ? node_written(req, fs, n) : 0;
	pthread_mutex_unlock(&fs->tree.lock);
	if (err > 0)
		attrs_changed(fs, id);
	return err < 0 ? err : 0;
}

void op_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct staged *was __attribute__((cleanup(staged_let_go))) = NULL;
	int err;

	if (fi->flags & O_TRUNC || (fi->flags & O_ACCMODE) != O_RDONLY) {
		log_space(fs);
		payer_look(fs, req);
	}
	release_barrier(fs);
	if ((fi->flags & O_ACCMODE) == O_RDWR && atomic_load(&fs->lanes.passthrough))
		attrs_changed(fs, id); /* see attr_timeout() */
	err = fi->flags & O_TRUNC ? truncated(req, fs, id) : 0;
	if (!err) {
		ask_begin();
		do {
			err = try_open(req, fs, id, fi, &was);
		} while (ask_store(fs, err));
	}
	if (err == -EINPROGRESS)
		offload_open(req, id, NULL, 0, fi);
	else if (err)
		fuse_reply_err(req, -err);
}

/* A create makes the staged file of its new name without the lock: allocating the memory of a large
 * one takes milliseconds a GiB, and one that finds no space is made in the store. */
struct creating {
	uint64_t id, size;
	struct staged_owner who;
	struct staged *sf; /* NULL: not made yet, or failed */
	bool wanted; /* create it */
	int error;
	struct staged *was; /* if the file exists: its previous version */
};

/* Without the lock, unless the name exists already. */
static void memory_guess(struct fs *fs, struct creating *c, uint64_t parent, const char *name)
{
	TREE_SCOPE(fs);
	struct node *dir = current.resent ? NULL : node_find(fs, parent);
	struct dentry *d = dir ? dentry_find(fs, dir, name) : NULL;

	c->size = dir ? expect_size(fs, dir, name) : STAGED_SIZE_UNKNOWN;
	if (dir && dir->attr.mode & S_ISGID)
		c->who.gid = dir->attr.gid;
	c->wanted = dir && !(d && d->node);
	if (c->wanted && c->size == STAGED_SIZE_UNKNOWN)
		c->size = expect_from_store(fs, dir, name);
}

static void memory_for(struct fs *fs, struct creating *c)
{
	bool large = c->size != STAGED_SIZE_UNKNOWN && c->size >= LARGE_FILE;

	c->wanted = false;
	if (large)
		session_may_block(fs);
	c->error = staged_create_as(fs->s, c->id, c->size, &c->who, &c->sf);
	if (c->error)
		c->sf = NULL;
	else if (large && current.tight)
		staged_cover(c->sf);
}

static void creating_end(struct creating *c)
{
	staged_let_go(&c->sf);
	staged_let_go(&c->was);
}

/* CREATE of a name that another caller created meanwhile. The answer names a node, so a fork needs
 * no ESTALE. */
static int create_existing(fuse_req_t req, struct fs *fs, struct node **n, int flags)
{
	if (flags & O_EXCL)
		return -EEXIST;
	if (!S_ISREG((*n)->attr.mode))
		return -EISDIR;
	struct node *m = *n;
	int err = flags & O_TRUNC ? node_written(req, fs, m) : 0;
	if (err < 0)
		return err;
	m->refs++;
	err = node_make_writable(fs, m, flags);
	m->refs--;
	if (err != -ESTALE || !m->fork.to)
		return err;
	*n = m = node_current(fs, m->id);
	fork_tell(fs, m, NULL, NULL);
	m->refs++;
	err = node_make_writable(fs, m, flags);
	m->refs--;
	return err;
}

/* A worker died between this request's two records: n is the file that the request created. */
static bool made_before(struct fs *fs, const struct node *n)
{
	struct rec r;
	return current.resent && staging_answered(fs->s, current.unique, &r) &&
	       r.type == REC_CREATE && r.node == n->id;
}

void unmake(struct fs *fs, struct node *n, uint64_t parent, const char *name)
{
	struct rec u = rec_new(REC_UNLINK);
	u.unique = 0;
	u.node = n->id;
	u.dir = parent;
	u.name = name;
	u.flags = REC_ABSENT;
	fs_record(fs, &u);
}

/* 0: answered. -EINPROGRESS: not answered, it has to wait. ASK_AGAIN. -EAGAIN: c->sf is needed. */
static int try_create(fuse_req_t req, struct fs *fs, fuse_ino_t parent, const char *name,
		      mode_t mode, struct fuse_file_info *fi, struct creating *c)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct node *n = NULL, *dir;
	bool made = false;

	TREE_SCOPE(fs);
	if (answered_open(req, fs, fi, true))
		return 0;
	dir = node_find(fs, parent);
	int err = share_of_files(ctx->uid); /* before anything is created */
	if (!err)
		err = dir ? tree_lookup_again(fs, dir, name, &n) : -ESTALE;
	if (!err) {
		staged_let_go(&c->was);
		c->was = n->sf ? staged_ref(n->sf) : NULL;
		err = create_existing(req, fs, &n,
				      made_before(fs, n) ? fi->flags & ~(O_EXCL | O_TRUNC)
							 : fi->flags);
	} else if (err == -ENOENT) {
		struct rec r = rec_new(REC_CREATE);
		r.node = r.ino = c->id;
		err = c->sf ? 0 : c->error;
		if (!c->sf && !err) { /* the name existed a moment ago */
			c->size = expect_size(fs, dir, name);
			c->wanted = true;
			return -EAGAIN;
		}
		if (!err) {
			r.mode = mode & 07777;
			r.uid = ctx->uid;
			r.gid = dir->attr.mode & S_ISGID ? dir->attr.gid : ctx->gid;
			r.dir = parent;
			r.name = name;
			r.sf = staged_id(c->sf);
			r.flags = (staged_spilled(c->sf) ? REC_SPILLED : 0) |
				  (staged_huge(c->sf) ? REC_HUGE : 0);
			err = fs_record(fs, &r);
			n = node_find(fs, r.node);
			made = !err;
		}
	}
	if (err == -EINPROGRESS || err == ASK_AGAIN)
		return err;
	bool ready = !err;
	if (!err)
		err = open_handle(req, fs, n, fi, true);
	if (err && made)
		unmake(fs, n, parent, name);
	else if (err && ready)
		node_take_back(fs, n, c->was);
	if (err && err != ASK_AGAIN)
		fuse_reply_err(req, -err);
	return err == ASK_AGAIN ? err : 0;
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);

	log_space(fs);
	payer_look(fs, req);
	release_barrier(fs);
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct creating c __attribute__((cleanup(creating_end))) = {
		.id = staging_new_id(fs->s),
		.who = {.uid = ctx->uid, .gid = ctx->gid, .mode = mode},
	};
	int err;
	session_gives();
	memory_guess(fs, &c, parent, name);
	if (current.given) {
		fuse_reply_none(req);
		return;
	}
	do {
		if (c.wanted)
			memory_for(fs, &c);
		ask_begin();
		do {
			err = try_create(req, fs, parent, name, mode, fi, &c);
		} while (ask_store(fs, err));
	} while (err == -EAGAIN);
	if (current.given)
		fuse_reply_none(req);
	else if (err == -EINPROGRESS)
		offload_open(req, parent, name, mode, fi);
}

/* SPDX-License-Identifier: MIT
 * Open files. The daemon sees open, flush, release and fsync; in the fast, spill
 * and read lanes the kernel moves the bytes (passthrough), in the relay lane
 * they come through op_read and op_write. Which lane: choose_lane(). */
#include "fs/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- versions ---- */

static void log_staged(struct fs *fs, struct node *n)
{
	struct rec r = rec_staged(n);
	staging_log(fs->s, &r);
}

/* What a new version inherits: attributes and xattrs as the store has them. */
static int inherit(struct fs *fs, struct node *n)
{
	struct stat st;
	node_stat(fs, n, &st);
	return node_load_xattrs(fs, n);
}

/* Another thread copies or makes n's bytes, without the tree lock. */
void node_wait_busy(struct fs *fs, struct node *n)
{
	while (n->busy) {
		session_may_block(fs);
		pthread_cond_wait(&fs->busy_cond, &fs->lock);
	}
}

/* The times of the bytes that were copied: a change of them may not have reached the store. */
static void copy_times(struct fs *fs, struct node *n, struct staged *to)
{
	struct stat st;
	node_stat(fs, n, &st);
	const struct timespec ts[2] = {st.st_atim, st.st_mtim};
	staged_set_times(to, ts);
}

static int copy_version(struct fs *fs, struct node *n)
{
	struct staged *src = n->sf ? staged_ref(n->sf) : NULL, *sf = NULL;
	int fd = src ? -1 : node_open_store(fs, n);
	if (!src && fd < 0)
		return fd;
	session_may_block(fs);
	n->busy = true;
	pthread_mutex_unlock(&fs->lock);
	int rc = staged_copy(fs->s, n->id, src, fd, &sf);
	pthread_mutex_lock(&fs->lock);
	n->busy = false;
	pthread_cond_broadcast(&fs->busy_cond);
	if (src)
		staged_unref(src);
	if (fd >= 0)
		close(fd);
	if (rc == -ENODATA && src) {	/* evicted meanwhile: the store has it */
		node_set_sf(fs, n, NULL);
		return copy_version(fs, n);
	}
	if (rc)
		return rc;
	copy_times(fs, n, sf);
	node_set_sf(fs, n, sf);
	log_staged(fs, n);
	return 0;
}

/* The same bytes again, once the last version of them is safe in the store's file:
 * shared mappings and readers go on seeing one file. May drop the lock to wait. */
static int reopen(struct fs *fs, struct node *n)
{
	struct staged *sf = staged_ref(n->sf);
	int rc;
	while ((rc = n->sf == sf ? staged_reopen(sf) : -EAGAIN) == -EBUSY) {
		session_may_block(fs);
		n->busy = true;
		pthread_mutex_unlock(&fs->lock);
		rc = staged_wait_persisted(sf);
		pthread_mutex_lock(&fs->lock);
		n->busy = false;
		pthread_cond_broadcast(&fs->busy_cond);
		if (rc)
			break;
	}
	staged_unref(sf);
	return rc;
}

static int empty_version(struct fs *fs, struct node *n)
{
	struct staged *sf;
	uint64_t size = n->names ? expect_size(fs, n->names->dir, n->names->name) : STAGED_SIZE_UNKNOWN;
	bool large = size != STAGED_SIZE_UNKNOWN && size >= LARGE_FILE;

	if (large) {	/* its memory takes milliseconds */
		session_may_block(fs);
		n->busy = true;
		pthread_mutex_unlock(&fs->lock);
	}
	int rc = staged_create(fs->s, n->id, size, &sf);
	if (large) {
		pthread_mutex_lock(&fs->lock);
		n->busy = false;
		pthread_cond_broadcast(&fs->busy_cond);
	}
	if (rc)
		return rc;
	node_set_sf(fs, n, sf);
	log_staged(fs, n);
	return 0;
}

/* A new version goes to all names that are known. They are kept for long (tree.c), and
 * others may have removed or replaced some in the store since. */
static int check_names(struct fs *fs, struct node *n)
{
	n->busy = true;		/* nobody runs meanwhile: only so that it is not freed */
	for (struct dentry *d = n->names, *next; d; d = next) {
		struct node *dir = d->dir, *now;
		next = d->name_next;
		bool busy = dir->busy;
		dir->busy = true;
		tree_lookup(fs, dir, d->name, &now, NULL);	/* drops d where it is not so */
		dir->busy = busy;
	}
	n->busy = false;
	return n->names ? 0 : -ESTALE;
}

int node_make_writable(struct fs *fs, struct node *n, bool trunc)
{
	struct staged_info i = {.state = STAGED_EVICTED};
	int rc;

	fork_came(fs, n);
	node_wait_busy(fs, n);
	node_check_sf(fs, n);
	if (n->sf)
		staged_get_state(n->sf, &i);
	if (n->sf && (i.state == STAGED_OPEN || n->writers))
		return trunc ? staged_resize(n->sf, 0) : 0;
	rc = n->names && n->names->name_next ? check_names(fs, n) : 0;
	if (!rc)
		rc = inherit(fs, n);
	if (rc)
		return rc;
	if (!trunc && n->sf && reopen(fs, n) == 0) {
		log_staged(fs, n);
		return 0;
	}
	if (n->handles)
		return fork_node(fs, n);
	if (!trunc)
		return copy_version(fs, n);
	return empty_version(fs, n);
}

/* Room in the store for what sf holds. Lock not held. */
static int reserve(struct fs *fs, struct staged *sf)
{
	int rc = staged_promise(sf);
	if (rc != -EAGAIN)
		return rc;
	session_may_block(fs);
	return staged_reserve(sf);
}

/* The last writer is gone: the version is complete. Lock held; may drop it while
 * blocks are allocated. */
int node_seal_closed(struct fs *fs, struct node *n)
{
	struct staged_info i;
	struct staged *sf = n->sf;

	if (!sf || n->writers)
		return 0;
	staged_get_state(sf, &i);
	if (i.state != STAGED_OPEN)
		return 0;
	if (!n->names) {
		if (!n->fork_to)
			staged_nameless(sf);
		node_drop_bytes(fs, n);
		return 0;
	}
	if (n->close_error) {
		staged_fail(sf, n->close_error);
		n->close_error = 0;
		n->accepted = false;
		return 0;
	}
	staged_ref(sf);
	bool outgrown = !n->busy && staged_outgrown(sf);
	n->busy |= outgrown;	/* nobody opens it while it becomes a spilled one */
	pthread_mutex_unlock(&fs->lock);
	int rc = reserve(fs, sf);
	if (!rc && outgrown)
		rc = staged_finish(sf);
	pthread_mutex_lock(&fs->lock);
	if (outgrown) {
		n->busy = false;
		pthread_cond_broadcast(&fs->busy_cond);
	}
	if (n->accepted)	/* whatever happened since its close was answered */
		rc = 0;
	if (!rc && n->sf == sf && !n->writers && n->names)
		rc = fs_seal(fs, n, true, NULL);
	if (rc)
		staged_fail(sf, rc);
	staged_unref(sf);
	return rc;
}

/* Seals every file without a writer whose bytes are in state st. Sealing drops the
 * lock, so the nodes are collected first and found again. */
static void each_unwritten(struct fs *fs, enum staged_state st)
{
	uint64_t *ids = NULL;
	size_t n_ids = 0, cap = 0;

	pthread_mutex_lock(&fs->lock);
	for (unsigned b = 0; b < NODE_BUCKETS; b++)
		for (struct node *n = fs->nodes[b]; n; n = n->hash_next) {
			struct staged_info i = {.state = STAGED_EVICTED};
			if (n->sf && !n->writers)
				staged_get_state(n->sf, &i);
			if (i.state != st)
				continue;
			if (n_ids == cap) {
				uint64_t *more = realloc(ids, (cap + 256) * sizeof(*ids));
				if (!more)
					break;	/* the rest next time */
				ids = more;
				cap += 256;
			}
			ids[n_ids++] = n->id;
		}
	for (size_t k = 0; k < n_ids; k++) {
		struct node *n = node_find(fs, ids[k]);
		if (n && n->sf && !n->writers && (st != STAGED_FAILED || (n->names && staged_reopen(n->sf) == 0)))
			node_seal_closed(fs, n);
	}
	pthread_mutex_unlock(&fs->lock);
	free(ids);
}

/* Closes that found no room, tried again. */
void retry_failed(struct fs *fs)
{
	each_unwritten(fs, STAGED_FAILED);
}

/* After the connection: what was closed, but whose RELEASE the kernel dropped with
 * the mount, is sealed. What was never closed is left for lost+found. */
unsigned close_all(struct fs *fs)
{
	unsigned left = 0;
	pthread_mutex_lock(&fs->lock);
	for (unsigned b = 0; b < 4096; b++)
		for (struct handle *h = fs->handles[b], *next; h; h = next) {
			struct node *n = h->node;
			bool writer = h->writer, flushed = h->flushed;
			next = h->hash_next;
			handle_free(fs, h);
			if (!writer || !n->sf || n->writers)
				continue;
			if (n->names && !flushed)
				left++;
			else if (!n->names || n->rdwr || n->close_error || staged_changed(n->sf))
				node_seal_closed(fs, n);
		}
	pthread_mutex_unlock(&fs->lock);
	return left;
}

/* After a replay: a last close that was logged without its seal (the worker died
 * between the two, or the file joined a seal that waits) is sealed now. */
void seal_restored(struct fs *fs)
{
	each_unwritten(fs, STAGED_OPEN);
}

/* Files that were published while a mapping still wrote them, and are mapped no
 * more: their last bytes follow as a version of their own. */
void seal_late(struct fs *fs)
{
	uint64_t id;
	pthread_mutex_lock(&fs->lock);
	while ((id = staging_next_late(fs->s))) {
		struct node *n = node_find(fs, id);
		if (n && n->sf && !n->writers && n->names && staged_reopen(n->sf) == 0)
			node_seal_closed(fs, n);
	}
	pthread_mutex_unlock(&fs->lock);
}

/* ---- lanes ---- */

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
		staged_set_backing(n->sf);
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
		rc = create_existing(fs, &n, fi->flags);
	} else if (rc == -ENOENT) {
		struct rec r = rec_new(REC_CREATE);
		r.unique = 0;	/* the OPEN that follows is the answer */
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

/* ---- bytes through the daemon ---- */

/* fd: h's, as it was when the lock was held. */
static ssize_t read_handle(struct fs *fs, struct handle *h, int fd, struct staged *sf, char *buf, size_t size,
			   off_t off)
{
	if (sf) {
		ssize_t got = staged_read(sf, buf, size, (uint64_t)off);
		if (got != -ENODATA)
			return got;
	}
	if (fd < 0) {	/* after a restart, or when the staged bytes went to the store */
		pthread_mutex_lock(&fs->lock);
		if (h->node->sf == sf)
			node_set_sf(fs, h->node, NULL);
		if (h->fd < 0)
			h->fd = node_open_store(fs, h->node);
		fd = h->fd;
		pthread_mutex_unlock(&fs->lock);
	}
	if (fd < 0)
		return fd;
	ssize_t got = pread(fd, buf, size, off);
	return got < 0 ? -errno : got;
}

void op_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	static _Thread_local char *buf;
	static _Thread_local size_t cap;

	if (is_control(id)) {
		control_read(req, id, size, off, fi);
		return;
	}
	session_may_take_long(fs);
	if (cap < size) {
		free(buf);
		buf = malloc(size);
		cap = buf ? size : 0;
	}
	pthread_mutex_lock(&fs->lock);
	struct handle *h = handle_find(fs, fi->fh);
	/* a handle restored while its file was being spilled has none of its own */
	struct staged *sf = !h ? NULL : h->sf ? staged_ref(h->sf) : h->node->sf ? staged_ref(h->node->sf) : NULL;
	int fd = h ? h->fd : -1;
	pthread_mutex_unlock(&fs->lock);
	ssize_t n = !h ? -EBADF : !buf ? -ENOMEM : read_handle(fs, h, fd, sf, buf, size, off);
	if (sf)
		staged_unref(sf);
	if (n < 0) {
		fuse_reply_err(req, (int)-n);
		return;
	}
	atomic_fetch_add(&fs->bytes_read, (unsigned long long)n);
	fuse_reply_buf(req, buf, (size_t)n);
}

struct sync_wait {
	fuse_req_t req;
	size_t written;
	bool is_write;
};

static void sync_done(void *ctx, int err)
{
	struct sync_wait *w = ctx;
	if (!err && w->is_write)
		fuse_reply_write(w->req, w->written);
	else
		fuse_reply_err(w->req, -err);
	free(w);
}

/* Seals what n has now and answers when that is durable (P3). Lock not held. */
static void sync_and_reply(fuse_req_t req, struct fs *fs, struct node *n, bool is_write, size_t written)
{
	struct sync_wait *w = malloc(sizeof(*w));
	uint64_t seq = 0;
	int rc = 0;

	if (!w) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	*w = (struct sync_wait){.req = req, .written = written, .is_write = is_write};
	pthread_mutex_lock(&fs->lock);
	struct staged *sf = n->sf ? staged_ref(n->sf) : NULL;
	if (sf && n->names) {
		struct staged_info i;
		staged_get_state(sf, &i);
		if (i.state == STAGED_FAILED)
			rc = i.error ? i.error : -EIO;
		staged_finalize(sf);	/* closed, but still mapped: as it is now */
		if (i.state == STAGED_OPEN && (n->rdwr || staged_changed(sf))) {
			pthread_mutex_unlock(&fs->lock);
			rc = staged_reserve(sf);
			if (!rc)
				rc = staged_reserve_copy(sf);
			pthread_mutex_lock(&fs->lock);
			if (!rc && n->sf == sf && n->names)
				rc = fs_seal(fs, n, false, &seq);
		}
	}
	seq = staging_last_seq(fs->s);
	pthread_mutex_unlock(&fs->lock);
	if (sf)
		staged_unref(sf);
	if (rc || fs->o.fsync_staged)
		sync_done(w, rc);
	else
		staging_when_durable(fs->s, seq, sync_done, w);
}

void op_write(fuse_req_t req, fuse_ino_t id, const char *buf, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);

	if (is_control(id)) {
		control_write(req, id, buf, size, fi);
		return;
	}
	session_may_take_long(fs);
	pthread_mutex_lock(&fs->lock);
	struct handle *h = handle_find(fs, fi->fh);
	struct node *n = h ? h->node : node_find(fs, id);
	struct staged *sf = n && n->sf ? staged_ref(n->sf) : NULL;
	int flags = h ? h->flags : 0;
	bool suid = n && (n->mode & (S_ISUID | S_ISGID)) && fuse_req_ctx(req)->uid != 0;
	if (suid) {
		struct rec r = rec_new(REC_ATTR);
		r.unique = 0;
		r.node = n->id;
		r.mask = REC_MODE;
		r.mode = n->mode & (mode_t)~(S_ISUID | (n->mode & S_IXGRP ? S_ISGID : 0)) & 07777;
		r.uid = n->uid;
		r.gid = n->gid;
		rec_aim(fs, &r, n);
		if (n->names)
			fs_record(fs, &r);
	}
	pthread_mutex_unlock(&fs->lock);
	if (!sf) {
		fuse_reply_err(req, EBADF);
		return;
	}
	ssize_t w = staged_write(sf, buf, size, (uint64_t)off);
	staged_unref(sf);
	if (w < 0)
		fuse_reply_err(req, (int)-w);
	else if (flags & (O_SYNC | O_DSYNC))
		sync_and_reply(req, fs, n, true, (size_t)w);
	else
		fuse_reply_write(req, (size_t)w);
}

/* ---- close and sync ---- */

void op_flush(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct staged *sf = NULL;
	int rc = 0;

	if (is_control(id)) {
		fuse_reply_err(req, 0);
		return;
	}
	pthread_mutex_lock(&fs->lock);
	struct handle *h = handle_find(fs, fi->fh);
	struct node *n = h ? h->node : NULL;
	if (h && h->writer && n->sf && n->names)
		sf = staged_ref(n->sf);
	if (h)
		h->flushed = true;
	pthread_mutex_unlock(&fs->lock);
	if (sf) {
		bool changed = n->rdwr || staged_changed(sf);
		if (changed)
			rc = reserve(fs, sf);
		staged_unref(sf);
		pthread_mutex_lock(&fs->lock);
		h = handle_find(fs, fi->fh);
		if (h)
			h->node->close_error = rc;
		if (h && !rc && changed && h->node->sf && h->node->names)
			rc = fs_flushed(fs, h->node);
		pthread_mutex_unlock(&fs->lock);
	}
	fuse_reply_err(req, -rc);
}

void op_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);

	if (is_control(id)) {
		control_release(req, id, fi);
		return;
	}
	release_barrier(fs);	/* closes take their places in their own order */
	pthread_mutex_lock(&fs->lock);
	struct handle *h = handle_find(fs, fi->fh);
	if (h) {
		struct node *n = h->node;
		bool wrote_rdwr = n->rdwr;
		int32_t backing = h->uses_backing && n->backing_users == 1 ? n->backing : 0;
		struct rec r = rec_new(REC_CLOSE);
		r.fh = h->fh;
		r.node = n->id;
		if (backing && n->buf) {	/* the last to let go of its memory is not to hold the lock */
			fuse_passthrough_close(req, backing);
			backing = 0;
		}
		if (fs_record(fs, &r))
			fs_apply(fs, &r);	/* closed it is, also where that cannot be logged */
		if (backing)
			fuse_passthrough_close(req, backing);
		/* open(O_CREAT | O_RDONLY) made a version too */
		struct staged_info i = {.state = STAGED_EVICTED};
		/* a forked node's readers have no say: the bytes may be written through the new one */
		if (n->sf && !n->writers && !n->fork_to)
			staged_get_state(n->sf, &i);
		if (i.state == STAGED_OPEN) {
			if (wrote_rdwr || n->close_error || staged_changed(n->sf))
				node_seal_closed(fs, n);
			else
				staged_unchanged(n->sf);
		}
		if (!n->nlookup)
			node_release(fs, n);
	}
	pthread_mutex_unlock(&fs->lock);
	fuse_reply_err(req, 0);
}

void op_fsync(fuse_req_t req, fuse_ino_t id, int datasync, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	(void)datasync, (void)fi;
	if (is_control(id) || fs->o.ro) {
		fuse_reply_err(req, 0);
		return;
	}
	session_may_block(fs);
	release_barrier(fs);
	pthread_mutex_lock(&fs->lock);
	struct node *n = node_find(fs, id);
	pthread_mutex_unlock(&fs->lock);
	if (n)
		sync_and_reply(req, fs, n, false, 0);
	else
		fuse_reply_err(req, ESTALE);
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t id, int datasync, struct fuse_file_info *fi)
{
	op_fsync(req, id, datasync, fi);
}

void op_fallocate(fuse_req_t req, fuse_ino_t id, int mode, off_t off, off_t len, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	(void)fi;
	session_may_block(fs);
	pthread_mutex_lock(&fs->lock);
	struct node *n = is_control(id) ? NULL : node_find(fs, id);
	struct staged *sf = n && n->sf && n->writers ? staged_ref(n->sf) : NULL;
	bool buffer = n && n->buf;
	pthread_mutex_unlock(&fs->lock);
	/* a buffer's pages are its client's to keep: it grows by ftruncate, and has no holes */
	int rc = sf ? staged_fallocate(sf, mode, (uint64_t)off, (uint64_t)len) : buffer ? -EOPNOTSUPP : -EBADF;
	if (sf)
		staged_unref(sf);
	fuse_reply_err(req, -rc);
}

void op_lseek(fuse_req_t req, fuse_ino_t id, off_t off, int whence, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	if (is_view(id)) {
		views_lseek(req, id, off, whence);
		return;
	}
	pthread_mutex_lock(&fs->lock);
	struct handle *h = handle_find(fs, fi->fh);
	int fd = -EBADF;
	bool outgrown = h && h->sf && staged_outgrown(h->sf);
	if (h && h->sf) {
		int sfd;
		fd = staged_use(h->sf, &sfd);
		if (!fd) {
			fd = dup(sfd);
			staged_unuse(h->sf);
		}
	} else if (h && h->node->buf) {
		fd = dup(buffers_backing(h->node));
	} else if (h) {
		fd = h->fd >= 0 ? dup(h->fd) : node_open_store(fs, h->node);
	}
	pthread_mutex_unlock(&fs->lock);
	if (fd < 0) {
		fuse_reply_err(req, -fd);
		return;
	}
	off_t at = lseek(fd, off, whence);
	int err = errno;
	struct stat st;
	/* of one that outgrew memory only the newest bytes are here; the rest is all data, to whoever asks */
	if (outgrown && at >= 0 && !fstat(fd, &st))
		at = whence == SEEK_DATA ? off : whence == SEEK_HOLE ? st.st_size : at;
	close(fd);
	if (at < 0)
		fuse_reply_err(req, err);
	else
		fuse_reply_lseek(req, at);
}

/* Where n's bytes are durable in the store; -1: they are not, or not all. */
static int open_durable(struct fs *fs, struct node *n)
{
	uint64_t durable = staging_durable(fs->s);
	if (n->buf || node_dirty(fs, n) || n->born_seq > durable || n->seal_seq > durable)
		return -1;
	return node_open_store(fs, n);
}

/* The kernel copies by itself, from lane to lane, when it is told that we do not. It is asked for to
 * learn which file a new one will be equal to: then it need not be written (staging/clone.c), or finds
 * that file when it is durable (staging/dedup.c). */
void op_copy_file_range(fuse_req_t req, fuse_ino_t in, off_t off_in, struct fuse_file_info *fi_in, fuse_ino_t out,
			off_t off_out, struct fuse_file_info *fi_out, size_t len, int flags)
{
	struct fs *fs = req_fs(req);
	struct node *n;
	const struct place *p;
	int rc = fs->s ? 0 : -EOPNOTSUPP;
	(void)fi_in, (void)out, (void)len, (void)flags;

	if (!rc && !off_in && !off_out && !is_control(in)) {
		TREE_SCOPE(fs);
		struct handle *h = handle_find(fs, fi_out->fh);
		n = node_find(fs, in);
		p = n && !n->writers ? node_place(fs, n) : NULL;
		if (p)
			rc = staging_dedup_source(fs->s, n->id, p->dir, p->name);
		int fd = p && !rc && h && h->writer && h->node->sf ? open_durable(fs, n) : -1;
		if (fd >= 0)
			staged_copied_from(h->node->sf, fd);
	}
	fuse_reply_err(req, rc ? ENOSYS : EOPNOTSUPP);	/* ENOSYS: do not ask again */
}

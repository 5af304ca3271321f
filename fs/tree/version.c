/* SPDX-License-Identifier: MIT
 * Versions of a file: opening it for writing begins one, the last writer's close seals it. Also
 * handles versions that could not be sealed (failed, restored, mapped).
 */
#include "fs/tree/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void log_staged(struct fs *fs, struct node *n)
{
	struct torn_range torn[TORN_MAX];
	struct rec r = rec_staged(n, torn);
	staging_log(fs->s, &r);
}

/* A write or the last close failed: what an earlier close was answered for is a part of a file, so
 * that close does not count any more, not even if everything is killed. Lock held. */
static void withdraw(struct fs *fs, struct node *n)
{
	struct torn_range torn[TORN_MAX];
	struct rec r = rec_staged(n, torn);
	r.flags |= REC_FAILED;
	n->version.accepted = false;
	staging_log(fs->s, &r);
}

void node_torn(struct fs *fs, struct node *n, struct staged *sf, int before)
{
	TREE_SCOPE(fs);
	if (n->sf != sf || !n->writers)
		return;
	if (staged_torn(sf))
		withdraw(fs, n);
	else if (before)
		log_staged(fs, n);
}

/* A new version inherits attributes and xattrs as the store has them. */
static int inherit(struct fs *fs, struct node *n, struct stat *st)
{
	int err = node_stat(fs, n, st);
	return err ? err : node_load_xattrs(fs, n);
}

int node_await(struct fs *fs, struct node *n)
{
	if (n->busy && current.slotted)
		return -EINPROGRESS;
	node_wait_busy(fs, n);
	return 0;
}

int node_resize(struct fs *fs, struct node *n, uint64_t size)
{
	struct staged *sf = staged_ref(n->sf);

	if (staged_busy(sf) || staged_spilled(sf) || staged_protected(sf))
		session_may_block(fs);
	else
		session_may_take_long(fs);
	n->busy = true;
	pthread_mutex_unlock(&fs->tree.lock);
	int torn = staged_torn(sf), err;
	while ((err = staged_resize(sf, size)) == -EBUSY)
		if (staged_wait_persisted(sf)) {
			err = -EIO;
			break;
		}
	pthread_mutex_lock(&fs->tree.lock);
	n->busy = false;
	pthread_cond_broadcast(&fs->tree.busy_cond);
	if (torn && n->sf == sf)
		log_staged(fs, n);
	staged_unref(sf);
	return err;
}

void node_unchanged(struct fs *fs, struct node *n)
{
	struct staged *sf = staged_ref(n->sf);

	n->refs++;
	while (n->sf == sf && !n->writers && staged_unchanged(sf) == -EBUSY) {
		session_may_block(fs);
		pthread_mutex_unlock(&fs->tree.lock);
		staged_await(sf);
		pthread_mutex_lock(&fs->tree.lock);
	}
	if (n->sf == sf)
		expect_of(fs, n);
	n->refs--;
	staged_unref(sf);
}

int node_end_ahead(struct fs *fs, struct node *n)
{
	struct stat st;
	bool waited = false;

	while (n->sf && staged_end_ahead(n->sf) == -EBUSY) {
		struct staged *sf = staged_ref(n->sf);
		session_may_block(fs);
		pthread_mutex_unlock(&fs->tree.lock);
		staged_await(sf);
		pthread_mutex_lock(&fs->tree.lock);
		staged_unref(sf);
		waited = true;
	}
	return waited ? node_stat(fs, n, &st) : 0;
}

void node_take_back(struct fs *fs, struct node *n, struct staged *was)
{
	struct staged_info i = {.state = STAGED_EVICTED};

	if (n->sf)
		staged_get_state(n->sf, &i);
	if (n->writers || n->fork.to || i.state != STAGED_OPEN)
		return;
	if (n->sf == was) {
		node_unchanged(fs, n);
	} else if (was) {
		node_set_sf(fs, n, staged_ref(was));
		log_staged(fs, n);
	} else if (n->version.sealed) {
		struct torn_range torn[TORN_MAX];
		struct rec r = rec_staged(n, torn);
		r.type = REC_UNSTAGED;
		node_set_sf(fs, n, NULL);
		staging_log(fs->s, &r);
	}
}

/* The times of the copied bytes, which may not have reached the store yet. */
static void copy_times(struct fs *fs, struct node *n, struct staged *to)
{
	struct stat st;
	node_attr(fs, n, &st);
	const struct timespec ts[2] = {st.st_atim, st.st_mtim};
	staged_set_times(to, ts);
}

static int copy_version(struct fs *fs, struct node *n)
{
	if (current.slotted)
		return -EINPROGRESS;
	struct staged *src = n->sf ? staged_ref(n->sf) : NULL, *sf = NULL;
	int fd = src ? -1 : node_open_store(fs, n);
	if (!src && fd < 0)
		return fd;
	session_may_block(fs);
	uid_t uid = n->attr.uid;
	gid_t gid = n->attr.gid;
	mode_t mode = n->attr.mode;
	n->busy = true;
	pthread_mutex_unlock(&fs->tree.lock);
	const struct staged_owner who = {.uid = uid, .gid = gid, .grows = true, .mode = mode};
	int err = staged_copy(fs->s, n->id, src, fd, &who, &sf);
	pthread_mutex_lock(&fs->tree.lock);
	n->busy = false;
	pthread_cond_broadcast(&fs->tree.busy_cond);
	if (src)
		staged_unref(src);
	if (fd >= 0)
		close(fd);
	if (err == -ENODATA && src) { /* evicted meanwhile: copy from the store */
		node_set_sf(fs, n, NULL);
		return copy_version(fs, n);
	}
	if (err)
		return err;
	copy_times(fs, n, sf);
	staged_copy_done(sf);
	node_set_sf(fs, n, sf);
	log_staged(fs, n);
	return 0;
}

/* Waits until the store has sf's sealed bytes. Drops the lock; n is busy meanwhile. */
static int await_persisted(struct fs *fs, struct node *n, struct staged *sf)
{
	if (current.slotted)
		return -EINPROGRESS;
	n->busy = true;
	pthread_mutex_unlock(&fs->tree.lock);
	int err = staged_wait_persisted(sf);
	pthread_mutex_lock(&fs->tree.lock);
	n->busy = false;
	pthread_cond_broadcast(&fs->tree.busy_cond);
	return err;
}

/* staged_check_space(), which may ask the store. Drops the lock; n is busy meanwhile. */
static bool lacks_space(struct fs *fs, struct node *n, struct staged *sf)
{
	n->busy = true;
	pthread_mutex_unlock(&fs->tree.lock);
	bool lacks = staged_check_space(sf);
	pthread_mutex_lock(&fs->tree.lock);
	n->busy = false;
	pthread_cond_broadcast(&fs->tree.busy_cond);
	return lacks;
}

/* Reopens the same bytes once the store has their last version, so that shared mappings and readers
 * go on seeing one file; at once for a writer that only appends. May drop the lock to wait. */
static int reopen(struct fs *fs, struct node *n, bool append, bool empty)
{
	struct staged *sf = staged_ref(n->sf);
	int err;
	/* a file with readers cannot change its lane; of an empty one they need no version */
	if (lacks_space(fs, n, sf) && n->handles && !empty) {
		staged_unref(sf);
		return -EAGAIN;
	}
	while ((err = n->sf != sf ? -EAGAIN
		      : append	  ? staged_reopen_append(sf)
				  : staged_reopen(sf)) == -EBUSY)
		if ((err = await_persisted(fs, n, sf)))
			break;
	staged_unref(sf);
	return err;
}

/* It is written by those that can only append, and another writer comes: 0; -EAGAIN: it had to
 * wait, look again. */
static int unprotect(struct fs *fs, struct node *n)
{
	struct staged *sf = staged_ref(n->sf);
	int err = staged_unprotect(sf);

	if (err == -EBUSY) {
		err = await_persisted(fs, n, sf);
		err = !err ? -EAGAIN : err == -EINPROGRESS ? err : -EIO;
	}
	staged_unref(sf);
	return err;
}

static int empty_version(struct fs *fs, struct node *n)
{
	struct staged *sf;
	const struct staged_owner who = {
		.uid = n->attr.uid, .gid = n->attr.gid, .mode = n->attr.mode};
	uint64_t size =
		n->names ? expect_size(fs, n->names->dir, n->names->name) : STAGED_SIZE_UNKNOWN;
	bool large = size != STAGED_SIZE_UNKNOWN && size >= LARGE_FILE;

	if (large) /* allocating its memory takes milliseconds */
		session_may_block(fs);
	n->busy = true;
	pthread_mutex_unlock(&fs->tree.lock);
	int err = staged_create_as(fs->s, n->id, size, &who, &sf);
	if (!err && large && current.tight)
		staged_cover(sf);
	pthread_mutex_lock(&fs->tree.lock);
	n->busy = false;
	pthread_cond_broadcast(&fs->tree.busy_cond);
	if (err)
		return err;
	node_set_sf(fs, n, sf);
	log_staged(fs, n);
	return 0;
}

/* A new version gets all known names. They may be old (tree.c), and other programs may have removed
 * or replaced some in the store since. */
static int check_names(struct fs *fs, struct node *n)
{
	int err = 0;
	/* no other thread works on it: this only keeps it from being freed */
	n->busy = true;
	for (struct dentry *d = n->names, *next; d && !err; d = next) {
		struct node *dir = d->dir, *now;
		next = d->name_next;
		bool busy = dir->busy;
		dir->busy = true;
		/* drops d if the store disagrees */
		err = tree_lookup(fs, dir, d->name, &now, NULL);
		if (name_is_absent(err))
			err = 0;
		dir->busy = busy;
	}
	n->busy = false;
	return err ? err : n->names ? 0 : -ESTALE;
}

/* With such a descriptor bytes can be changed by calls alone, which all reach the daemon: a mapping
 * would have to be readable. */
static bool only_appends(int flags)
{
	return (flags & (O_ACCMODE | O_APPEND | O_TRUNC)) == (O_WRONLY | O_APPEND);
}

/* 0: the same bytes, open again; -EAGAIN: they are not to be had. */
static int open_again(struct fs *fs, struct node *n, int flags, bool empty)
{
	bool trunc = flags & O_TRUNC;

	if (!n->sf || (trunc && !(empty && n->handles)))
		return -EAGAIN;
	int err = reopen(fs, n, only_appends(flags), empty);
	if (err)
		return err;
	log_staged(fs, n);
	err = trunc ? node_resize(fs, n, 0) : 0;
	if (err)
		node_unchanged(fs, n);
	return err;
}

int node_make_writable(struct fs *fs, struct node *n, int flags)
{
	struct staged_info i = {.state = STAGED_EVICTED};
	bool trunc = flags & O_TRUNC;
	struct stat st;
	int err;

	fork_came(fs, n);
	if ((err = node_await(fs, n)))
		return err;
	node_check_sf(fs, n);
	if (n->sf)
		staged_get_state(n->sf, &i);
	if (n->sf && (i.state == STAGED_OPEN || n->writers)) {
		err = only_appends(flags) ? 0 : unprotect(fs, n);
		if (err)
			return err == -EAGAIN ? node_make_writable(fs, n, flags) : err;
		if (trunc && current.slotted && staged_busy(n->sf))
			return -EINPROGRESS;
		return trunc ? node_resize(fs, n, 0) : 0;
	}
	err = n->names && n->names->name_next ? check_names(fs, n) : 0;
	if (!err)
		err = inherit(fs, n, &st);
	if (err)
		return err;
	bool empty = !st.st_size;
	err = open_again(fs, n, flags, empty);
	if (!err || err == -EINPROGRESS)
		return err;
	/* Nobody needs the old version of an empty file. The kernel keeps locks by its inode, and
	 * lock files are empty: who has one locked and who opens it to lock it must meet there. */
	if (n->handles && !(empty && handles_may_follow(fs, n)))
		return fork_node(fs, n);
	err = trunc ? empty_version(fs, n) : copy_version(fs, n);
	if (!err)
		handles_follow(fs, n);
	return err;
}

int node_allocate_now(struct fs *fs, struct staged *sf)
{
	int err = staged_promise(sf);
	if (err != -EAGAIN)
		return err;
	session_may_block(fs);
	return staged_allocate_now(sf);
}

/* Whether n's version is complete and not sealed yet. Lock held. */
static bool may_seal(const struct node *n)
{
	struct staged_info i;
	if (!n->sf || n->writers)
		return false;
	staged_get_state(n->sf, &i);
	return i.state == STAGED_OPEN;
}

/* Allocates blocks for sf, n's version; if it outgrew memory, writes its rest to the store. Drops
 * the lock. */
static int prepare_seal(struct fs *fs, struct node *n, struct staged *sf)
{
	bool outgrown = staged_outgrown(sf);

	n->busy |= outgrown; /* keeps opens away while it becomes a spilled file */
	pthread_mutex_unlock(&fs->tree.lock);
	int err = node_allocate_now(fs, sf);
	if (err == -EAGAIN) /* rare: its close had space, but a mapping wrote more since */
		err = staged_allocate_later(sf);
	if (!err && outgrown)
		err = staged_finish(sf);
	pthread_mutex_lock(&fs->tree.lock);
	if (outgrown) {
		n->busy = false;
		pthread_cond_broadcast(&fs->tree.busy_cond);
	}
	return err;
}

/* n's close was answered, and the log has no space for its seal: no later record may be logged
 * before it. Lock held, dropped meanwhile. False: there will be no space. */
static bool log_may_have_space(struct fs *fs, struct node *n, int err)
{
	struct staging_stats st;

	if (!n->version.accepted || (err != -ENOSPC && err != -EFBIG && err != -ENOMEM) ||
	    atomic_load(&fs->stopping))
		return false;
	staging_get_stats(fs->s, &st);
	if (st.halted.error)
		return false;
	session_may_block(fs);
	pthread_mutex_unlock(&fs->tree.lock);
	sleep_ms(10);
	pthread_mutex_lock(&fs->tree.lock);
	return true;
}

/* fs_seal() while sf is n's version. Drops the lock if it must wait. */
static int seal_when_not_busy(struct fs *fs, struct node *n, struct staged *sf)
{
	int err = 0;

	ask_begin();
	while (n->sf == sf && !n->writers && n->names) {
		err = fs_seal(fs, n, true, NULL);
		if (err == -EBUSY || err == ASK_AGAIN) {
			pthread_mutex_unlock(&fs->tree.lock);
			if (err == -EBUSY) {
				session_may_block(fs);
				staged_await(sf);
			} else {
				ask_store(fs, err);
			}
			pthread_mutex_lock(&fs->tree.lock);
		} else if (!err || !log_may_have_space(fs, n, err)) {
			break;
		}
		err = 0;
	}
	ask_end();
	return err;
}

/* Its close could not be accepted. */
static void fail(struct fs *fs, struct node *n, struct staged *sf, int err)
{
	char path[181];

	node_path(fs, n, path, sizeof(path));
	staged_fail(sf, err, n->names ? path : "a file");
}

/* The last writer has closed: the version is complete. Lock held; may drop it while blocks are
 * allocated. n still exists afterwards, as long as the caller holds the lock. */
int node_seal_closed(struct fs *fs, struct node *n)
{
	while (may_seal(n) && n->busy)
		node_wait_busy(fs, n);
	if (!may_seal(n))
		return 0;
	struct staged *sf = n->sf;
	if (!n->names) {
		if (!n->fork.to)
			staged_nameless(sf);
		node_drop_bytes(fs, n);
		return 0;
	}
	int torn = staged_torn(sf);
	if (n->version.close_error || torn) {
		fail(fs, n, sf, torn ? torn : n->version.close_error);
		n->version.close_error = 0;
		withdraw(fs, n);
		return 0;
	}
	staged_ref(sf);
	n->refs++;
	int err = prepare_seal(fs, n, sf);
	/* sealed regardless of errors since its close was answered; but the store cannot hold what
	 * became too long since */
	if (n->version.accepted && err != -EFBIG)
		err = 0;
	if (!err)
		err = seal_when_not_busy(fs, n, sf);
	if (err) {
		fail(fs, n, sf, err);
		if (n->version.accepted && n->sf == sf)
			withdraw(fs, n);
	}
	n->refs--;
	staged_unref(sf);
	return err;
}

/* Seals in order the nodes for which `due` is true, and frees the list. Lock held; so are the
 * nodes. */
static void seal_all(struct fs *fs, struct node_list *l, bool (*due)(struct node *n))
{
	node_list_sort(l);
	for (size_t i = 0; i < l->len; i++) {
		if (due(l->n[i]))
			node_seal_closed(fs, l->n[i]);
		l->n[i]->refs--;
		node_release(fs, l->n[i]);
	}
	free(l->n);
}

static bool is_unwritten(const struct node *n, enum staged_state st)
{
	struct staged_info i = {.state = STAGED_EVICTED};
	if (n->sf && !n->writers)
		staged_get_state(n->sf, &i);
	return i.state == st && !(st == STAGED_FAILED && i.torn);
}

static bool open_due(struct node *n)
{
	return is_unwritten(n, STAGED_OPEN);
}

static bool failed_due(struct node *n)
{
	return is_unwritten(n, STAGED_FAILED) && n->names && staged_reopen(n->sf) == 0;
}

/* Seals every file without a writer whose bytes are in state st. Sealing drops the lock, so the
 * nodes are collected and held first. */
static void each_unwritten(struct fs *fs, enum staged_state st, bool (*due)(struct node *n))
{
	struct node_list l = {0};

	pthread_mutex_lock(&fs->tree.lock);
	for (unsigned b = 0; b < NODE_BUCKETS; b++)
		for (struct node *n = fs->tree.nodes[b]; n; n = n->hash_next)
			/* no memory: next time */
			if (is_unwritten(n, st) && !node_list_add(&l, n))
				n->refs++;
	seal_all(fs, &l, due);
	pthread_mutex_unlock(&fs->tree.lock);
}

/* Retries closes that found no space. */
void retry_failed(struct fs *fs)
{
	each_unwritten(fs, STAGED_FAILED, failed_due);
}

/* After the connection ended: seals files that were closed but whose RELEASE the kernel dropped
 * with the mount, and those fsynced with fsync=staged. Files never closed are left for
 * lost+found. */
static bool closed_due(struct node *n)
{
	return !n->names || n->version.rdwr || n->version.close_error ||
	       (n->sf && staged_changed(n->sf));
}

unsigned close_all(struct fs *fs)
{
	struct node_list l = {0};
	unsigned left = 0;
	pthread_mutex_lock(&fs->tree.lock);
	for (unsigned b = 0; b < 4096; b++)
		for (struct handle *h = fs->tree.handles[b], *next; h; h = next) {
			struct node *n = h->node;
			bool writer = h->writer, flushed = h->flushed;
			next = h->hash_next;
			n->refs++;
			handle_free(fs, h);
			if (writer && n->sf && !n->writers && n->names && !flushed &&
			    !n->version.accepted)
				left++;
			else if (writer && n->sf && !n->writers && !node_list_add(&l, n))
				continue;
			n->refs--;
		}
	seal_all(fs, &l, closed_due);
	pthread_mutex_unlock(&fs->tree.lock);
	return left;
}

/* After a replay: seals files whose last close was logged without its seal, because the worker died
 * between the two or the file waited for another seal. */
void seal_restored(struct fs *fs)
{
	each_unwritten(fs, STAGED_OPEN, open_due);
}

/* n's writer ended with its connection: answered closes count, others do not. Lock held. */
static void close_orphan(struct fs *fs, struct node *n)
{
	struct staged_info i;

	if (!n->sf || n->writers)
		return;
	staged_get_state(n->sf, &i);
	if (i.state != STAGED_OPEN)
		return;
	if (n->version.accepted || !n->names)
		node_seal_closed(fs, n);
	else if (n->version.rdwr || staged_changed(n->sf))
		staged_orphan(n->sf);
	else
		node_unchanged(fs, n);
}

/* Never closed, and moved to lost+found since: removes the name as if it was never made. Lock
 * held. */
static void unlink_lost(struct fs *fs, struct node *n)
{
	n->refs++;
	while (n->names) {
		struct rec r = rec_new(REC_UNLINK);
		r.unique = 0;
		r.node = n->id;
		r.dir = n->names->dir->id;
		r.name = n->names->name;
		r.flags = REC_ABSENT;
		if (fs_record(fs, &r))
			break;
	}
	n->refs--;
}

void close_restored(struct fs *fs)
{
	TREE_SCOPE(fs);
	for (unsigned b = 0; b < 4096; b++)
		for (struct handle *h = fs->tree.handles[b], *next; h; h = next) {
			struct node *n = h->node;
			struct rec r = rec_new(REC_CLOSE);
			next = h->hash_next;
			r.unique = 0;
			r.fh = h->fh;
			r.node = n->id;
			if (fs_record(fs, &r))
				fs_apply(fs, &r);
			close_orphan(fs, n);
		}
	for (unsigned b = 0; b < NODE_BUCKETS; b++)
		for (struct node *n = fs->tree.nodes[b], *next; n; n = next) {
			next = n->hash_next;
			if (S_ISREG(n->attr.mode) && !n->sf && n->seq.born == UINT64_MAX)
				unlink_lost(fs, n);
		}
}

/* Lock held. */
static struct node *failed_node(struct fs *fs, uint64_t ino)
{
	struct staged_info i;
	for (unsigned b = 0; b < NODE_BUCKETS; b++)
		for (struct node *n = fs->tree.nodes[b]; n; n = n->hash_next) {
			if (n->ino != ino || !n->sf)
				continue;
			staged_get_state(n->sf, &i);
			if (i.state == STAGED_FAILED)
				return n;
		}
	return NULL;
}

int discard_failed(struct fs *fs, uint64_t ino, uint64_t *id)
{
	TREE_SCOPE(fs);
	struct node *n = failed_node(fs, ino);
	if (!n)
		return -EINVAL;
	if (n->handles || n->busy)
		return -EBUSY;
	if (n->seq.born == UINT64_MAX)
		return -ENODATA;
	if (!staging_is_durable(fs->s, n->seq.born) || !staging_is_durable(fs->s, n->seq.seal))
		return -EAGAIN; /* the version before it is pending */
	*id = n->id;
	n->version.accepted = false;
	n->version.close_error = 0;
	node_set_sf(fs, n, NULL);
	return 0;
}

/* Files that were published while a mapping still wrote them and are no longer mapped: publishes
 * their last bytes as another version. */
void seal_late(struct fs *fs)
{
	uint64_t id;
	pthread_mutex_lock(&fs->tree.lock);
	while ((id = staging_next_late(fs->s))) {
		struct node *n = node_find(fs, id);
		if (n && n->sf && !n->writers && n->names && staged_reopen(n->sf) == 0)
			node_seal_closed(fs, n);
	}
	pthread_mutex_unlock(&fs->tree.lock);
}

/* SPDX-License-Identifier: MIT
 * Versions of a file: who opens it to write begins one, who closes it seals it; and what is done
 * with those that nobody could seal (failed, restored, mapped). */
#include "fs/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

int node_reserve_now(struct fs *fs, struct staged *sf)
{
	int rc = staged_promise(sf);
	if (rc != -EAGAIN)
		return rc;
	session_may_block(fs);
	return staged_reserve_now(sf);
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
	int rc = node_reserve_now(fs, sf);
	if (rc == -EAGAIN)	/* rarely: its close had room, and it was written by a mapping since */
		rc = staged_reserve_later(sf);
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

/* SPDX-License-Identifier: MIT
 * A close makes a version, in two steps: FLUSH, for which close(2) waits, and RELEASE, which seals
 * it. fsync waits until the version is durable.
 */
#include "fs/ops/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct flush {
	fuse_req_t req;
	struct fs *fs;
	uint64_t fh;
	struct staged *sf;
	bool changed;
};

static void closing_begins(struct fs *fs)
{
	if (!atomic_fetch_add(&fs->timings.closing, 1))
		atomic_store(&fs->timings.closing_ns, monotonic_ns());
}

static void closing_ends(struct fs *fs)
{
	atomic_store(&fs->timings.closing_ns, monotonic_ns());
	atomic_fetch_sub(&fs->timings.closing, 1);
}

/* Answers the close: the store has space for what was written (err 0), or not. */
static void flush_end(struct flush f, int space)
{
	struct fs *fs = f.fs;
	bool logged = false;
	int err;

	staged_unref(f.sf);
	ask_begin();
	do {
		TREE_SCOPE(fs);
		struct handle *h = handle_find(fs, f.fh);
		err = space;
		if (h)
			h->node->version.close_error = space;
		if (h && !space && f.changed && !logged && h->node->sf && h->node->names)
			err = fs_flushed(fs, h->node);
		logged |= !err;
		if (h && !err && (f.changed || h->node->version.save))
			err = save_flushed(fs, h->node);
	} while (ask_store(fs, err));
	closing_ends(fs);
	fuse_reply_err(f.req, -err);
}

static void flush_later(void *arg)
{
	struct flush f = *(struct flush *)arg;
	free(arg);
	flush_end(f, staged_allocate_later(f.sf));
}

void op_flush(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct flush f = {.req = req, .fs = req_fs(req), .fh = fi->fh}, *later;
	struct fs *fs = f.fs;

	(void)id;
	pthread_mutex_lock(&fs->tree.lock);
	struct handle *h = handle_find(fs, f.fh);
	struct node *n = h ? h->node : NULL;
	if (h && h->writer && n->sf && n->names)
		f.sf = staged_ref(n->sf);
	if (h)
		h->flushed = true;
	pthread_mutex_unlock(&fs->tree.lock);
	if (!f.sf) {
		fuse_reply_err(req, 0);
		return;
	}
	closing_begins(fs);
	if (n->version.rdwr && n->backing.id) {
		session_may_block(fs);
		staged_look_mapped(f.sf);
	}
	f.changed = n->version.rdwr || staged_changed(f.sf);
	int err = f.changed ? node_allocate_now(fs, f.sf) : 0;
	if (err == -EAGAIN && (later = malloc(sizeof(*later)))) {
		*later = f;
		session_offload(fs, flush_later, later);
	} else {
		flush_end(f, err == -EAGAIN ? -ENOMEM : err);
	}
}

/* The last writer of an fsynced file closes without a change: nothing is sealed, but if everything
 * is killed later, the file still counts as closed. */
static bool closes_unchanged(struct node *n, const struct handle *h)
{
	return n->sf && h->writer && n->writers == 1 && !n->version.rdwr &&
	       !n->version.close_error && !n->fork.to && !staged_changed(n->sf);
}

void op_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);

	(void)id;
	/* closes take their places in the order in which they were made */
	release_barrier(fs);
	pthread_mutex_lock(&fs->tree.lock);
	struct handle *h = handle_find(fs, fi->fh);
	if (h) {
		struct node *n = h->node;
		bool wrote_rdwr = n->version.rdwr;
		int32_t backing = h->uses_backing && n->backing.users == 1 ? n->backing.id : 0;
		struct rec r = rec_new(REC_CLOSE);
		r.fh = h->fh;
		r.node = n->id;
		if (closes_unchanged(n, h)) {
			r.sf = staged_id(n->sf);
			r.flags |= REC_SEALED;
		}
		/* dropping the last reference frees memory, which is not done with the lock held */
		struct buffer *buf = buffers_ref(n);
		if (fs_record(fs, &r))
			fs_apply(fs, &r); /* closed even if it cannot be logged */
		/* only now: a resent request to another worker might close another file's backing
		 * id */
		if (backing)
			fuse_passthrough_close(req, backing);
		if (buf)
			buffer_unref(buf);
		/* open(O_CREAT | O_RDONLY) made a version, too */
		struct staged_info i = {.state = STAGED_EVICTED};
		/* readers of a forked node do not count: the bytes may be written through the new
		 * one */
		if (n->sf && !n->writers && !n->fork.to)
			staged_get_state(n->sf, &i);
		if (i.state == STAGED_OPEN) {
			n->refs++;
			if (wrote_rdwr || n->version.close_error || staged_changed(n->sf))
				node_seal_closed(fs, n);
			else
				node_unchanged(fs, n);
			n->refs--;
		}
		if (!n->nlookup)
			node_release(fs, n);
	}
	pthread_mutex_unlock(&fs->tree.lock);
	fuse_reply_err(req, 0);
}

struct sync_wait {
	fuse_req_t req;
	struct fs *fs;
	struct node *n;
	struct staged *sf; /* to be sealed in its present state; NULL */
	size_t written;
	bool is_write;
	/* n's id, its directory's (its own if it is one), the change */
	uint64_t node, dir, seq;
};

/* Runs on a thread of staging: takes no lock of fs/. A refused change fails the sync of that file,
 * of the files that commit it, beside or above it. */
static void sync_done(void *ctx, int err)
{
	struct sync_wait *w = ctx;
	if (!err)
		err = staging_refused(w->fs->s, w->node, w->dir, w->seq);
	if (!err && w->is_write)
		fuse_reply_write(w->req, w->written);
	else
		fuse_reply_err(w->req, -err);
	free(w);
}

/* The bytes have their space, or need none, unless err is an error.
 *
 * With fsync=staged the caller does not wait, so writers (through passthrough or a mapping) may
 * change the bytes before they are persisted; so no version is made of them. They are staged, which
 * is all that this mode promises. Like a close, the fsync logs that they count: if everything is
 * killed, the next start seals them as they are (staging/flushed.c:replay_flushed). */
static void sync_end(struct sync_wait *w, int err)
{
	struct fs *fs = w->fs;
	bool staged = fs->o.fsync_staged;
	uint64_t seq = 0;

	if (!err && w->sf && !staged)
		err = staged_allocate_copy(w->sf);
	ask_begin();
	pthread_mutex_lock(&fs->tree.lock);
	while (!err && w->sf && w->n->sf == w->sf && w->n->names) {
		err = staged ? fs_flushed(fs, w->n) : fs_seal(fs, w->n, false, &seq);
		if (err != -EBUSY && err != ASK_AGAIN)
			break;
		pthread_mutex_unlock(&fs->tree.lock);
		if (err == -EBUSY) {
			session_may_block(fs);
			staged_await(w->sf);
		} else {
			ask_store(fs, err);
		}
		pthread_mutex_lock(&fs->tree.lock);
		err = 0;
	}
	ask_end();
	w->seq = seq = staging_last_seq(fs->s);
	w->node = w->n->id;
	w->dir = S_ISDIR(w->n->attr.mode) ? w->n->id : w->n->names ? w->n->names->dir->id : 0;
	pthread_mutex_unlock(&fs->tree.lock);
	if (w->sf)
		staged_unref(w->sf);
	if (err || staged)
		sync_done(w, err);
	else
		staging_when_synced(fs->s, w->node, seq, sync_done, w);
}

static void sync_later(void *arg)
{
	struct sync_wait *w = arg;
	sync_end(w, staged_allocate_later(w->sf));
}

void sync_and_reply(fuse_req_t req, struct fs *fs, struct node *n, bool is_write, size_t written)
{
	struct sync_wait *w = malloc(sizeof(*w));
	int err = 0;

	if (!w) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	*w = (struct sync_wait){
		.req = req, .fs = fs, .n = n, .written = written, .is_write = is_write};
	if (fs->o.fsync_staged)
		log_space(fs);
	pthread_mutex_lock(&fs->tree.lock);
	if (n->sf && n->names) {
		struct staged_info i;
		staged_get_state(n->sf, &i);
		if (i.state == STAGED_FAILED)
			err = i.error ? i.error : -EIO;
		if (!fs->o.fsync_staged)
			staged_finalize(n->sf); /* closed, but mapped */
		if (i.state == STAGED_OPEN && (n->version.rdwr || staged_changed(n->sf)))
			w->sf = staged_ref(n->sf);
	}
	pthread_mutex_unlock(&fs->tree.lock);
	if (w->sf)
		err = staged_allocate_now(w->sf);
	if (err == -EAGAIN)
		session_offload(fs, sync_later, w);
	else
		sync_end(w, err);
}

void op_fsync(fuse_req_t req, fuse_ino_t id, int datasync, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	(void)datasync, (void)fi;
	session_may_block(fs);
	release_barrier(fs);
	pthread_mutex_lock(&fs->tree.lock);
	struct node *n = node_find(fs, id);
	pthread_mutex_unlock(&fs->tree.lock);
	if (n)
		sync_and_reply(req, fs, n, false, 0);
	else
		fuse_reply_err(req, ESTALE);
}

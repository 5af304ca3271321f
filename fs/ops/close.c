/* SPDX-License-Identifier: MIT
 * A close makes a version, in two halves: FLUSH, which the closer waits for, and RELEASE, which seals
 * it. fsync waits until that is durable. */
#include "fs/fs.h"

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

/* Room for what was written is there (rc 0), or not: the close is answered. */
static void flush_end(struct flush f, int room)
{
	struct fs *fs = f.fs;
	int rc;

	staged_unref(f.sf);
	ask_begin();
	do {
		TREE_SCOPE(fs);
		struct handle *h = handle_find(fs, f.fh);
		rc = room;
		if (h)
			h->node->version.close_error = room;
		if (h && !room && f.changed && h->node->sf && h->node->names)
			rc = fs_flushed(fs, h->node);
	} while (ask_store(fs, rc));
	fuse_reply_err(f.req, -rc);
}

static void flush_later(void *arg)
{
	struct flush f = *(struct flush *)arg;
	free(arg);
	flush_end(f, staged_reserve_later(f.sf));
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
	if (n->version.rdwr && n->backing.id) {
		session_may_block(fs);
		staged_look_mapped(f.sf);
	}
	f.changed = n->version.rdwr || staged_changed(f.sf);
	int rc = f.changed ? node_reserve_now(fs, f.sf) : 0;
	if (rc == -EAGAIN && (later = malloc(sizeof(*later)))) {
		*later = f;
		session_apart(fs, flush_later, later);
	} else {
		flush_end(f, rc == -EAGAIN ? -ENOMEM : rc);
	}
}

/* The last writer of what was fsynced goes: nothing is sealed, and if all is killed later the file counts
 * as closed all the same. */
static bool closes_unchanged(struct node *n, const struct handle *h)
{
	return n->sf && h->writer && n->writers == 1 && !n->version.rdwr && !n->version.close_error && !n->fork.to &&
	       !staged_changed(n->sf);
}

void op_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);

	(void)id;
	release_barrier(fs);	/* closes take their places in their own order */
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
		struct buffer *buf = buffers_hold(n);	/* the last to let go of its memory is not to hold the lock */
		if (fs_record(fs, &r))
			fs_apply(fs, &r);	/* closed it is, also where that cannot be logged */
		/* not before: sent again to another worker, the number might be another file's */
		if (backing)
			fuse_passthrough_close(req, backing);
		if (buf)
			buffer_unref(buf);
		/* open(O_CREAT | O_RDONLY) made a version too */
		struct staged_info i = {.state = STAGED_EVICTED};
		/* a forked node's readers have no say: the bytes may be written through the new one */
		if (n->sf && !n->writers && !n->fork.to)
			staged_get_state(n->sf, &i);
		if (i.state == STAGED_OPEN) {
			n->holds++;
			if (wrote_rdwr || n->version.close_error || staged_changed(n->sf))
				node_seal_closed(fs, n);
			else
				node_unchanged(fs, n);
			n->holds--;
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
	struct staged *sf;	/* to be sealed as it is; NULL */
	size_t written;
	bool is_write;
	uint64_t node, dir, seq;	/* n's id, a directory's own or its parent's, the change waited for */
};

/* Runs on a thread of staging's: takes no lock of ours. A change that the store refused is durable for
 * nobody: not for who syncs that file, nor for who syncs what commits it, beside it or above. */
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

/* Room for the bytes is there, or needed by none, unless rc says otherwise.
 *
 * With fsync=staged the caller does not wait, so nothing keeps writers (through passthrough, or by a
 * mapping) from changing the bytes before they are persisted: no version is made of them. They are staged
 * already, which is all that is promised. As a close does, the fsync logs that they count: if everything is
 * killed, the next start seals what is there (staging/flushed.c:replay_flushed). */
static void sync_end(struct sync_wait *w, int rc)
{
	struct fs *fs = w->fs;
	bool staged = fs->o.fsync_staged;
	uint64_t seq = 0;

	if (!rc && w->sf && !staged)
		rc = staged_reserve_copy(w->sf);
	ask_begin();
	pthread_mutex_lock(&fs->tree.lock);
	while (!rc && w->sf && w->n->sf == w->sf && w->n->names) {
		rc = staged ? fs_flushed(fs, w->n) : fs_seal(fs, w->n, false, &seq);
		if (rc != -EBUSY && rc != ASK_AGAIN)
			break;
		pthread_mutex_unlock(&fs->tree.lock);
		if (rc == -EBUSY) {
			session_may_block(fs);
			staged_await(w->sf);
		} else {
			ask_store(fs, rc);
		}
		pthread_mutex_lock(&fs->tree.lock);
		rc = 0;
	}
	ask_end();
	w->seq = seq = staging_last_seq(fs->s);
	w->node = w->n->id;
	w->dir = S_ISDIR(w->n->attr.mode) ? w->n->id : w->n->names ? w->n->names->dir->id : 0;
	pthread_mutex_unlock(&fs->tree.lock);
	if (w->sf)
		staged_unref(w->sf);
	if (rc || staged)
		sync_done(w, rc);
	else
		staging_when_durable(fs->s, seq, sync_done, w);
}

static void sync_later(void *arg)
{
	struct sync_wait *w = arg;
	sync_end(w, staged_reserve_later(w->sf));
}

void sync_and_reply(fuse_req_t req, struct fs *fs, struct node *n, bool is_write, size_t written)
{
	struct sync_wait *w = malloc(sizeof(*w));
	int rc = 0;

	if (!w) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	*w = (struct sync_wait){.req = req, .fs = fs, .n = n, .written = written, .is_write = is_write};
	if (fs->o.fsync_staged)
		log_room(fs);
	pthread_mutex_lock(&fs->tree.lock);
	if (n->sf && n->names) {
		struct staged_info i;
		staged_get_state(n->sf, &i);
		if (i.state == STAGED_FAILED)
			rc = i.error ? i.error : -EIO;
		if (!fs->o.fsync_staged)
			staged_finalize(n->sf);	/* closed, but still mapped: as it is now */
		if (i.state == STAGED_OPEN && (n->version.rdwr || staged_changed(n->sf)))
			w->sf = staged_ref(n->sf);
	}
	pthread_mutex_unlock(&fs->tree.lock);
	if (w->sf)
		rc = staged_reserve_now(w->sf);
	if (rc == -EAGAIN)
		session_apart(fs, sync_later, w);
	else
		sync_end(w, rc);
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

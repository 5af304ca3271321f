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
static void flush_end(struct flush f, int rc)
{
	struct fs *fs = f.fs;

	staged_unref(f.sf);
	pthread_mutex_lock(&fs->lock);
	struct handle *h = handle_find(fs, f.fh);
	if (h)
		h->node->close_error = rc;
	if (h && !rc && f.changed && h->node->sf && h->node->names)
		rc = fs_flushed(fs, h->node);
	pthread_mutex_unlock(&fs->lock);
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

	if (is_control(id)) {
		fuse_reply_err(req, 0);
		return;
	}
	pthread_mutex_lock(&fs->lock);
	struct handle *h = handle_find(fs, f.fh);
	struct node *n = h ? h->node : NULL;
	if (h && h->writer && n->sf && n->names)
		f.sf = staged_ref(n->sf);
	if (h)
		h->flushed = true;
	pthread_mutex_unlock(&fs->lock);
	if (!f.sf) {
		fuse_reply_err(req, 0);
		return;
	}
	f.changed = n->rdwr || staged_changed(f.sf);
	int rc = f.changed ? node_reserve_now(fs, f.sf) : 0;
	if (rc == -EAGAIN && (later = malloc(sizeof(*later)))) {
		*later = f;
		session_apart(fs, flush_later, later);
	} else {
		flush_end(f, rc == -EAGAIN ? -ENOMEM : rc);
	}
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

struct sync_wait {
	fuse_req_t req;
	struct fs *fs;
	struct node *n;
	struct staged *sf;	/* to be sealed as it is; NULL */
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

/* Room for the bytes is there, or needed by none, unless rc says otherwise. */
static void sync_end(struct sync_wait *w, int rc)
{
	struct fs *fs = w->fs;
	uint64_t seq = 0;

	if (!rc && w->sf)
		rc = staged_reserve_copy(w->sf);
	pthread_mutex_lock(&fs->lock);
	if (!rc && w->sf && w->n->sf == w->sf && w->n->names)
		rc = fs_seal(fs, w->n, false, &seq);
	seq = staging_last_seq(fs->s);
	pthread_mutex_unlock(&fs->lock);
	if (w->sf)
		staged_unref(w->sf);
	if (rc || fs->o.fsync_staged)
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
	pthread_mutex_lock(&fs->lock);
	if (n->sf && n->names) {
		struct staged_info i;
		staged_get_state(n->sf, &i);
		if (i.state == STAGED_FAILED)
			rc = i.error ? i.error : -EIO;
		staged_finalize(n->sf);	/* closed, but still mapped: as it is now */
		if (i.state == STAGED_OPEN && (n->rdwr || staged_changed(n->sf)))
			w->sf = staged_ref(n->sf);
	}
	pthread_mutex_unlock(&fs->lock);
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

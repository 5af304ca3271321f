/* SPDX-License-Identifier: MIT
 * Bytes through the daemon: the relay lane's reads and writes, and what no lane does by itself. */
#include "fs/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

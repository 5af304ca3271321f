/* SPDX-License-Identifier: MIT
 * Bytes through the daemon: reads and writes of the relay lane, and operations that passthrough
 * does not cover.
 */
#include "fs/ops/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The bytes that h reads in staging; NULL: the store's. A handle that was restored while its file
 * was being spilled has none of its own. Lock held. */
static struct staged *bytes_of(const struct handle *h)
{
	return h->sf ? h->sf : h->node->sf;
}

/* A descriptor of the store's file, which h keeps; of an empty one the caller's, *own: h may read
 * the next version (handles_may_follow). Lock held. */
static int open_for(struct fs *fs, struct handle *h, bool *own)
{
	int fd = h->fd >= 0 ? h->fd : node_open_store(fs, h->node);

	*own = fd >= 0 && h->fd < 0 && !h->node->attr.size;
	if (fd >= 0 && !*own)
		h->fd = fd;
	return fd;
}

/* Another program removed or replaced it in the store: who reads an empty file has no descriptor
 * that would keep it, and is at its end. */
static bool is_taken(int fd)
{
	return fd == -ESTALE || fd == -ENOENT;
}

/* fd: h's descriptor, taken while the lock was held. */
static ssize_t read_handle(struct fs *fs, struct handle *h, int fd, struct staged *sf, char *buf,
			   size_t size, off_t off)
{
	bool own = false, empty = false;

	if (sf) {
		ssize_t got = staged_read(sf, buf, size, (uint64_t)off);
		if (got != -ENODATA)
			return got;
	}
	if (fd < 0) { /* after a restart, or once the staged bytes are in the store */
		ask_begin();
		do {
			TREE_SCOPE(fs);
			if (h->node->sf == sf)
				node_set_sf(fs, h->node, NULL);
			fd = open_for(fs, h, &own);
			empty = !h->node->attr.size;
		} while (ask_store(fs, fd));
	}
	if (fd < 0)
		return empty && is_taken(fd) ? 0 : fd;
	ssize_t got = pread(fd, buf, size, off);
	got = got < 0 ? -errno : got;
	if (own)
		close(fd);
	return got;
}

static pthread_key_t buffer_key;
static pthread_once_t buffer_once = PTHREAD_ONCE_INIT;

static void make_buffer_key(void)
{
	if (pthread_key_create(&buffer_key, free))
		no_memory();
}

/* This thread's buffer, freed when the thread ends: threads come and go if the store is slow. NULL:
 * no memory. */
static char *read_buffer(size_t size)
{
	static _Thread_local size_t cap;

	pthread_once(&buffer_once, make_buffer_key);
	char *buf = pthread_getspecific(buffer_key);
	if (buf && cap >= size)
		return buf;
	free(buf);
	cap = size;
	buf = malloc(size);
	if (pthread_setspecific(buffer_key, buf)) {
		free(buf);
		return NULL;
	}
	return buf;
}

void op_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);

	(void)id;
	session_may_take_long(fs);
	char *buf = read_buffer(size);
	pthread_mutex_lock(&fs->tree.lock);
	struct handle *h = handle_find(fs, fi->fh);
	struct staged *sf = h && bytes_of(h) ? staged_ref(bytes_of(h)) : NULL;
	int fd = h ? h->fd : -1;
	pthread_mutex_unlock(&fs->tree.lock);
	ssize_t n = !h ? -EBADF : !buf ? -ENOMEM : read_handle(fs, h, fd, sf, buf, size, off);
	if (sf)
		staged_unref(sf);
	if (n < 0) {
		fuse_reply_err(req, (int)-n);
		return;
	}
	atomic_fetch_add(&fs->lanes.bytes_read, (unsigned long long)n);
	fuse_reply_buf(req, buf, (size_t)n);
}

/* A write that waits for removals to make space, or until the store has the version whose bytes it
 * changes; with its bytes. */
struct late_write {
	fuse_req_t req;
	struct fs *fs;
	struct node *n;
	struct staged *sf;
	int flags;
	size_t size;
	off_t off;
	int torn; /* a write before it had failed */
	bool append; /* the kernel chose the place: the end */
	bool early; /* it would change what the store does not have */
	char bytes[];
};

static void write_end(const struct late_write *w, ssize_t done)
{
	if (w->torn || staged_torn(w->sf))
		node_torn(w->fs, w->n, w->sf, w->torn);
	staged_unref(w->sf);
	if (done < 0)
		fuse_reply_err(w->req, (int)-done);
	else if (w->flags & (O_SYNC | O_DSYNC))
		sync_and_reply(w->req, w->fs, w->n, true, (size_t)done);
	else
		fuse_reply_write(w->req, (size_t)done);
}

static void write_later(void *arg)
{
	struct late_write *w = arg;
	ssize_t done = -EAGAIN;

	while (w->early && (done = staged_write_now(w->sf, w->bytes, w->size, (uint64_t)w->off,
						    w->append)) == -EBUSY)
		if (staged_wait_persisted(w->sf)) {
			done = -EIO;
			staged_not_written(w->sf, (uint64_t)w->off, w->size, (int)done);
			break;
		}
	if (done == -EAGAIN)
		done = staged_write_later(w->sf, w->bytes, w->size, (uint64_t)w->off, w->append);
	write_end(w, done);
	free(w);
}

static void write_now(const struct late_write *w, const char *buf)
{
	ssize_t done = staged_write_now(w->sf, buf, w->size, (uint64_t)w->off, w->append);
	bool waits = done == -EAGAIN || done == -EBUSY;
	struct late_write *later = waits ? malloc(sizeof(*later) + w->size) : NULL;

	if (waits && !later) {
		done = -ENOSPC;
		staged_not_written(w->sf, (uint64_t)w->off, w->size, (int)done);
	}
	if (!later) {
		write_end(w, done);
		return;
	}
	*later = *w;
	later->early = done == -EBUSY;
	memcpy(later->bytes, buf, w->size);
	session_offload(w->fs, write_later, later);
}

void op_write(fuse_req_t req, fuse_ino_t id, const char *buf, size_t size, off_t off,
	      struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);

	session_may_take_long(fs);
	pthread_mutex_lock(&fs->tree.lock);
	struct handle *h = handle_find(fs, fi->fh);
	struct node *n = h ? h->node : node_find(fs, id);
	struct staged *sf = n && n->sf ? staged_ref(n->sf) : NULL;
	int flags = h ? h->flags : 0;
	int err = sf ? node_written(req, fs, n) : -EBADF;
	pthread_mutex_unlock(&fs->tree.lock);
	if (err > 0)
		attrs_changed(fs, id);
	if (err < 0) {
		if (sf)
			staged_unref(sf);
		fuse_reply_err(req, -err);
		return;
	}
	const struct late_write w = {.req = req,
				     .fs = fs,
				     .n = n,
				     .sf = sf,
				     .flags = flags,
				     .size = size,
				     .off = off,
				     .append = fi->flags & O_APPEND,
				     .torn = staged_torn(sf)};
	write_now(&w, buf);
}

void op_fallocate(fuse_req_t req, fuse_ino_t id, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	(void)fi;
	session_may_block(fs);
	pthread_mutex_lock(&fs->tree.lock);
	struct node *n = node_find(fs, id);
	struct staged *sf = n && n->sf && n->writers ? staged_ref(n->sf) : NULL;
	bool buffer = n && n->buf;
	pthread_mutex_unlock(&fs->tree.lock);
	/* a buffer's pages stay the client's: it grows by ftruncate only and has no holes */
	int err = buffer ? -EOPNOTSUPP : -EBADF;
	while (sf && (err = staged_fallocate(sf, mode, (uint64_t)off, (uint64_t)len)) == -EBUSY)
		if (staged_wait_persisted(sf)) {
			err = -EIO;
			break;
		}
	if (sf)
		staged_unref(sf);
	fuse_reply_err(req, -err);
}

#define SEEK_PAGE 4096
#define SEEK_LOOK (8 << 20) /* beyond this range, the tmpfs answers */

/* The first page in [at, end) that is all zeros, or that is not; `end`: none. */
static off_t first_page(int fd, off_t at, off_t end, bool zeros)
{
	char buf[16 * SEEK_PAGE];
	while (at < end) {
		ssize_t n = pread(fd, buf, sizeof(buf) - (size_t)(at % SEEK_PAGE), at);
		if (n <= 0)
			return end;
		for (off_t p = at, next; p < at + n && p < end; p = next) {
			next = p / SEEK_PAGE * SEEK_PAGE + SEEK_PAGE;
			const char *b = buf + (p - at);
			size_t len = (size_t)((next < at + n ? next : at + n) - p);
			if ((!b[0] && !memcmp(b, b + 1, len - 1)) == zeros)
				return p;
		}
		at += n;
	}
	return end;
}

/* lseek in a tmpfs with huge pages, which reports a huge page as data as a whole: pages of zeros in
 * it are reported as holes. */
static off_t seek_written(int fd, off_t off, int whence)
{
	off_t at = off;
	for (;;) {
		off_t data = lseek(fd, at, SEEK_DATA),
		      hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
		if (hole < 0)
			return whence == SEEK_DATA || errno != ENXIO ? -errno
			       : lseek(fd, at, SEEK_HOLE) < 0	     ? -errno
								     : at;
		if (whence == SEEK_HOLE && data > at)
			return at;
		off_t look = hole - data > SEEK_LOOK ? data + SEEK_LOOK : hole;
		off_t found = first_page(fd, data, look, whence == SEEK_HOLE);
		if (whence == SEEK_HOLE)
			return found < look ? found : hole;
		if (found < look || look < hole)
			return found;
		at = hole;
	}
}

/* A descriptor of h's bytes, for the caller to close. *memory: it is in a tmpfs. Lock held. */
static int seek_fd(struct fs *fs, struct handle *h, bool *outgrown, bool *memory)
{
	int fd = -EBADF, sfd;

	struct staged *sf = h ? bytes_of(h) : NULL;
	*outgrown = sf && staged_outgrown(sf);
	*memory = sf && !*outgrown && !staged_spilled(sf);
	if (sf) {
		fd = staged_use(sf, &sfd);
		if (!fd) {
			fd = dup(sfd);
			staged_unuse(sf);
		} else if (fd == -ENODATA) { /* spilled and published */
			fd = node_open_store(fs, h->node);
			*memory = false;
		}
	} else if (h && h->node->buf) {
		fd = dup(buffers_backing(h->node));
	} else if (h) {
		fd = h->fd >= 0 ? dup(h->fd) : node_open_store(fs, h->node);
		if (is_taken(fd) && !h->node->attr.size)
			fd = -ENXIO;
	}
	return fd;
}

void op_lseek(fuse_req_t req, fuse_ino_t id, off_t off, int whence, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	bool outgrown, memory;
	int fd;

	(void)id;
	session_may_take_long(fs);
	ask_begin();
	do {
		TREE_SCOPE(fs);
		fd = seek_fd(fs, handle_find(fs, fi->fh), &outgrown, &memory);
	} while (ask_store(fs, fd));
	if (fd < 0) {
		fuse_reply_err(req, -fd);
		return;
	}
	off_t at = memory ? seek_written(fd, off, whence) : lseek(fd, off, whence);
	int err = memory ? (int)-at : errno;
	struct stat st;
	/* if the file outgrew memory, only its newest bytes are here; everything before them is
	 * data */
	if (outgrown && at >= 0 && !fstat(fd, &st))
		at = whence == SEEK_DATA ? off : whence == SEEK_HOLE ? st.st_size : at;
	close(fd);
	if (at < 0)
		fuse_reply_err(req, err);
	else
		fuse_reply_lseek(req, at);
}

/* A descriptor of the store's file if n's bytes are durable there; -1: not all are. */
static int open_durable(struct fs *fs, struct node *n)
{
	if (n->buf || node_dirty(fs, n) || !staging_is_durable(fs->s, n->seq.born) ||
	    !staging_is_durable(fs->s, n->seq.seal))
		return -1;
	return node_open_store(fs, n);
}

/* *err: whether anything needs to know. 0, ASK_AGAIN. Lock held. */
static int note_source(struct fs *fs, fuse_ino_t in, struct handle *to, int *err)
{
	struct node *n = node_find(fs, in);
	const struct place *p = n && !n->writers ? node_place(fs, n) : NULL;

	if (!p)
		return 0;
	*err = staging_dedup_source(fs->s, n->id, p->dir, p->name);
	int fd = !*err && to && to->writer && to->node->sf ? open_durable(fs, n) : -1;
	if (fd >= 0)
		staged_copied_from(to->node->sf, fd);
	return fd == ASK_AGAIN ? fd : 0;
}

/* Always refused; then the kernel copies by itself, from lane to lane. But the request tells which
 * file a new one will be equal to: such a file need not be written (staging/drain/clone.c), or
 * shares that file's blocks when it is durable (staging/drain/dedup.c). */
void op_copy_file_range(fuse_req_t req, fuse_ino_t in, off_t off_in, struct fuse_file_info *fi_in,
			fuse_ino_t out, off_t off_out, struct fuse_file_info *fi_out, size_t len,
			int flags)
{
	struct fs *fs = req_fs(req);
	int err = fs->s ? 0 : -EOPNOTSUPP, asked;
	(void)fi_in, (void)out, (void)len, (void)flags;

	if (!err && !off_in && !off_out) {
		ask_begin();
		do {
			TREE_SCOPE(fs);
			asked = note_source(fs, in, handle_find(fs, fi_out->fh), &err);
		} while (ask_store(fs, asked));
	}
	/* ENOSYS: the kernel never asks again */
	fuse_reply_err(req, err ? ENOSYS : EOPNOTSUPP);
}

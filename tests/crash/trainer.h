/* SPDX-License-Identifier: MIT
 *
 * File calls of a trainer, each recorded. All return 0 (or more) or -errno; a strict
 * trainer ends at the first error, so only a tolerant one ever sees it returned.
 */
#ifndef CRASH_TRAINER_H
#define CRASH_TRAINER_H

#include <dirent.h>
#include <sched.h>
#include <sys/xattr.h>

#include "content.h"
#include "history.h"

#define IO_MAX (1u << 20)	/* one write(2) at most */
#define PATH_CAP 1024
#define BUFFER_SIZE (1536u << 10)

struct rank {
	unsigned id;
	struct hist h;
	uint64_t rng;
	const char *root;
	char buffers[PATH_CAP];	/* where the mount lends them; "": a plain directory */
	unsigned fsync_pct, max_kb;
	bool tolerant, strict_fsync, no_xattr;
	bool no_buffers;	/* the mount lends none */
	char *buf;		/* IO_MAX bytes, aligned for O_DIRECT */
};

/* Memory that files are made of by link(2); on a plain directory a file of its own for each. */
struct tbuf {
	int fd;			/* -1: to be made */
	char *map, path[PATH_CAP];
	uint32_t mode, xattr;	/* 0: none */
	struct hist_rec *lent;	/* the last link of it */
};

struct tdir {
	uint32_t id;
	char path[256];	/* below root, "" = root */
};

struct tfile {
	uint32_t fid, ver;	/* ver: of the last version begun */
	uint64_t size;
	int fd;
	bool dirty;
	bool mapped;	/* and goes on being written so after its close */
	bool broken;	/* a write failed: its size is anyone's guess */
	char name[HIST_NAME];
};

static inline uint64_t rnd(struct rank *r)
{
	return mix64(r->rng++);
}

static inline uint64_t rnd_in(struct rank *r, uint64_t lo, uint64_t hi)
{
	return lo + rnd(r) % (hi - lo + 1);
}

static inline bool chance(struct rank *r, unsigned pct)
{
	return rnd(r) % 100 < pct;
}

static inline void t_copy(char out[HIST_NAME], const char *name)
{
	size_t n = strnlen(name, HIST_NAME - 1);

	memcpy(out, name, n);
	out[n] = 0;
}

static inline void t_path(const struct rank *r, const struct tdir *d, const char *name, char *out)
{
	snprintf(out, PATH_CAP, "%s%s%s/%s", r->root, *d->path ? "/" : "", d->path, name);
}

/* ---- recording ----------------------------------------------------------- */

static inline struct hist_rec *t_new(struct rank *r, enum hist_kind kind)
{
	struct hist_rec *rec = hist_new(&r->h, kind, r->id);

	if (!rec) {	/* the history is full: leave, as if the load had ended */
		atomic_store(&r->h.head->stop, 1);
		_exit(0);
	}
	return rec;
}

static inline void t_name(struct hist_rec *rec, const struct tdir *d, const char *name)
{
	rec->dir = d->id;
	t_copy(rec->name, name);
}

static inline void t_say(struct rank *r, const char *what, const char *name, const char *why)
{
	fprintf(stderr, "trainer %u: %s %s: %s (seed %llu)\n", r->id, what, name, why,
		(unsigned long long)r->h.head->seed);
	atomic_store(&r->h.head->failed, 1);
	_exit(1);
}

/* The crash comes. To exit would close what is open, and the daemon may live for a moment yet. */
static inline void t_leave(void)
{
	for (;;)
		pause();
}

static inline int t_end(struct rank *r, struct hist_rec *rec, int ret)
{
	int err = ret < 0 ? -errno : 0;

	hist_end(&r->h, rec, err);
	if (!err)
		return ret;
	if (atomic_load(&r->h.head->crash))
		t_leave();
	if (!r->tolerant)
		t_say(r, hist_kind_name[rec->kind], rec->name, strerror(-err));
	atomic_fetch_add(&r->h.head->errors, 1);
	return err;
}

/* ---- files --------------------------------------------------------------- */

/* Opens d/name for writing its next version. `fresh`: the name does not exist. */
static inline int t_open(struct rank *r, struct tfile *f, const struct tdir *d, const char *name,
			 int flags, bool fresh)
{
	char path[PATH_CAP];
	struct hist_rec *rec = t_new(r, H_OPEN);

	if (fresh) {
		memset(f, 0, sizeof(*f));
		f->fid = atomic_fetch_add(&r->h.head->next_fid, 1);
		flags |= O_CREAT;
	}
	t_copy(f->name, name);
	rec->fid = f->fid;
	rec->ver = ++f->ver;
	rec->flags = (uint16_t)((fresh ? HF_CREATE : 0) | (flags & O_TRUNC ? HF_TRUNC : 0));
	t_name(rec, d, name);
	t_path(r, d, name, path);
	hist_begin(&r->h, rec);
	f->fd = open(path, flags | O_CLOEXEC, 0644);
	if (f->fd < 0 && (flags & O_DIRECT) && errno == EINVAL)
		f->fd = open(path, (flags & ~O_DIRECT) | O_CLOEXEC, 0644);
	if (f->fd >= 0 && (flags & O_TRUNC)) {
		f->size = 0;
		f->broken = false;
	}
	f->dirty = fresh || (flags & O_TRUNC);
	return t_end(r, rec, f->fd);
}

static inline struct hist_rec *t_bytes(struct rank *r, struct tfile *f, enum hist_kind kind,
				       uint64_t off, uint64_t len)
{
	struct hist_rec *rec = t_new(r, kind);

	rec->fid = f->fid;
	rec->ver = f->ver;
	rec->off = off;
	rec->len = len;
	t_copy(rec->name, f->name);
	return rec;
}

/* One write(2) of up to IO_MAX bytes; a short one is an error here. */
static inline int t_write(struct rank *r, struct tfile *f, uint64_t off, size_t len)
{
	struct hist_rec *rec = t_bytes(r, f, H_WRITE, off, len);

	content_fill(r->buf, f->fid, f->ver, off, len);
	f->dirty = true;
	hist_begin(&r->h, rec);
	ssize_t n = pwrite(f->fd, r->buf, len, (off_t)off);
	if (n >= 0 && (size_t)n < len) {	/* as bad as an error */
		if (!r->tolerant && !atomic_load(&r->h.head->crash))
			fprintf(stderr, "trainer %u: short write, %zd of %zu\n", r->id, n, len);
		n = -1;
		errno = EIO;
	}
	if (n > 0 && f->size < off + len)
		f->size = off + len;
	f->broken |= n < 0;
	return t_end(r, rec, n < 0 ? -1 : 0);
}

/* Appends `len` bytes in writes of many sizes. */
static inline int t_append(struct rank *r, struct tfile *f, uint64_t len)
{
	int err = 0;

	while (len && !err) {
		uint64_t n = chance(r, 50) ? IO_MAX : rnd_in(r, 1, IO_MAX);

		n = n < len ? n : len;
		err = t_write(r, f, f->size, n);
		len -= n;
	}
	return err;
}

static inline int t_truncate(struct rank *r, struct tfile *f, uint64_t size)
{
	struct hist_rec *rec = t_bytes(r, f, H_TRUNC, 0, size);

	f->dirty = true;
	hist_begin(&r->h, rec);
	int ret = t_end(r, rec, ftruncate(f->fd, (off_t)size));
	if (!ret)
		f->size = size;
	return ret;
}

/* With fsync=staged it makes no version: the close does (fs/ops/close.c:sync_end). */
static inline int t_fsync(struct rank *r, struct tfile *f)
{
	bool seals = f->dirty && r->strict_fsync;
	struct hist_rec *rec = t_bytes(r, f, seals ? H_SEAL : H_CLOSE, 0, 0);

	rec->flags = r->strict_fsync ? HF_SYNC : 0;
	hist_begin(&r->h, rec);
	int ret = t_end(r, rec, fsync(f->fd));
	if (seals)
		f->ver++;
	f->dirty &= !seals || ret != 0;
	return ret;
}

static inline int t_close(struct rank *r, struct tfile *f)
{
	struct hist_rec *rec = t_bytes(r, f, f->dirty ? H_SEAL : H_CLOSE, 0, 0);

	rec->flags = f->mapped ? HF_MAPPED : 0;
	hist_begin(&r->h, rec);
	int ret = t_end(r, rec, close(f->fd));
	f->fd = -1;
	f->dirty = false;
	return ret;
}

/* Writes through a mapping of `size` bytes. HF_MAPPED: after the close; the mapping goes
 * with it, and only then are the bytes answered for: without passthrough they are the
 * kernel's until munmap. */
static inline void t_map_write(struct rank *r, struct tfile *f, char *map, uint64_t off,
			       uint64_t size, unsigned flags)
{
	uint64_t len = flags & HF_MAPPED ? size - off : size / 2;
	struct hist_rec *rec = t_bytes(r, f, H_WRITE, off, len);

	rec->flags = (uint16_t)flags;
	f->dirty = true;
	hist_begin(&r->h, rec);
	content_fill(map + off, f->fid, f->ver, off, len);
	t_end(r, rec, flags & HF_MAPPED ? munmap(map, size) : 0);
}

/* Reads d/f back; all of it must be of version f->ver. */
static inline int t_read(struct rank *r, const struct tdir *d, const struct tfile *f, uint32_t ver)
{
	char path[PATH_CAP], *want = malloc(IO_MAX);
	struct hist_rec *rec = t_new(r, H_READ);
	int err = 0;

	t_name(rec, d, f->name);
	rec->fid = f->fid;
	rec->ver = ver;
	t_path(r, d, f->name, path);
	hist_begin(&r->h, rec);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	for (uint64_t off = 0; fd >= 0 && off < f->size && !err; off += IO_MAX) {
		uint64_t n = f->size - off < IO_MAX ? f->size - off : IO_MAX;
		ssize_t got = pread(fd, r->buf, n, (off_t)off);

		content_fill(want, f->fid, ver, off, n);
		if (got < 0)
			err = -errno;
		else if ((uint64_t)got != n || memcmp(want, r->buf, n))
			err = -EILSEQ;
	}
	free(want);
	if (fd >= 0)
		close(fd);
	if (err)
		errno = -err;
	if (err == -EILSEQ && !atomic_load(&r->h.head->crash))
		t_say(r, "read", path, "not the bytes that were written");
	return t_end(r, rec, fd < 0 || err ? -1 : 0);
}

/* ---- buffers ------------------------------------------------------------- */

static inline void t_buffer_drop(struct rank *r, struct tbuf *b)
{
	if (b->fd < 0)
		return;
	munmap(b->map, BUFFER_SIZE);
	close(b->fd);
	if (!*r->buffers)
		unlink(b->path);
	b->fd = -1;
}

static inline int t_buffer_error(struct rank *r, const struct tbuf *b, const char *what)
{
	int err = errno;

	if (atomic_load(&r->h.head->crash))
		t_leave();
	if (err == EOPNOTSUPP)
		r->no_buffers = true;
	else if (err != ENOSPC && !r->tolerant)	/* staging may well be full */
		t_say(r, what, b->path, strerror(err));
	return -err;
}

static inline int t_buffer_make(struct rank *r, struct tbuf *b)
{
	static unsigned made;

	*b = (struct tbuf){ .fd = -1, .mode = chance(r, 30) ? 0600 : 0644 };
	if (chance(r, 30))
		b->xattr = (uint32_t)rnd_in(r, 1, 1000);
	if (*r->buffers) {
		snprintf(b->path, sizeof(b->path), "%.900s/%u.%u-%u", r->buffers, BUFFER_SIZE,
			 r->id, made++);
	} else {
		snprintf(b->path, sizeof(b->path), "%.900s.buffer.%u-%u", r->root, r->id, made++);
		unlink(b->path);	/* a killed load's */
	}
	b->fd = open(b->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, b->mode);
	if (b->fd < 0)
		return t_buffer_error(r, b, "buffer");
	b->map = ftruncate(b->fd, BUFFER_SIZE) ? MAP_FAILED :
		 mmap(NULL, BUFFER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
	if (b->map != MAP_FAILED)
		return 0;
	close(b->fd);
	b->fd = -1;
	return t_buffer_error(r, b, "map a buffer");
}

/* What the daemon says of it: 'f'ree, 'l'ent, 'k'ept, or 0 and errno. */
static inline char t_buffer_state(struct rank *r, const struct tbuf *b)
{
	char text[16] = "";

	if (!*r->buffers)	/* a plain file is that file's for good */
		return b->lent ? 'k' : 'f';
	return fgetxattr(b->fd, "user.cairn.buffer", text, sizeof(text) - 1) < 0 ? 0 : *text;
}

/* Waits until it may be filled. A buffer that came back says that its file is durable, under
 * either fsync mode. 0, or -errno: there is none. */
static inline int t_buffer_have(struct rank *r, struct tbuf *b)
{
	for (;;) {
		int err = b->fd < 0 ? t_buffer_make(r, b) : 0;

		if (err)
			return err;
		char is = t_buffer_state(r, b);
		if (!is && (err = t_buffer_error(r, b, "state of a buffer")))
			return err;
		if (is == 'f') {
			if (b->lent)
				b->lent->flags |= HF_SYNC;
			b->lent = NULL;
			return 0;
		}
		if (is == 'k')
			t_buffer_drop(r, b);
		else if (r->tolerant)	/* the store may never be well again */
			return -EAGAIN;
		else
			usleep(200);
	}
}

/* What the new file takes from the buffer, recorded as if it were done to the file. */
static inline void t_buffer_mark(struct rank *r, struct tbuf *b, const struct tdir *d,
				 const struct tfile *f)
{
	struct hist_rec *rec;
	char text[16];

	if (b->mode != 0644) {
		rec = t_new(r, H_CHMOD);
		t_name(rec, d, f->name);
		rec->fid = f->fid;
		rec->ver = b->mode;
		hist_begin(&r->h, rec);
		hist_end(&r->h, rec, 0);
	}
	if (!b->xattr || r->no_xattr)
		return;
	rec = t_new(r, H_XATTR);
	t_name(rec, d, f->name);
	rec->fid = f->fid;
	rec->ver = b->xattr;
	hist_begin(&r->h, rec);
	snprintf(text, sizeof(text), "%u", b->xattr);
	int err = fsetxattr(b->fd, "user.load", text, strlen(text), 0) ? -errno : 0;
	hist_end(&r->h, rec, err);
	if (err == -EOPNOTSUPP) {
		r->no_xattr = true;
		b->xattr = 0;
	} else if (err) {
		t_buffer_error(r, b, "xattr of a buffer");
	}
}

/* A new file d/name of `size` bytes, made of b, which is the caller's now (t_buffer_have). */
static inline int t_buffer_commit(struct rank *r, struct tbuf *b, const struct tdir *d,
				  const char *name, uint64_t size, struct tfile *f)
{
	char path[PATH_CAP];
	struct hist_rec *rec = t_new(r, H_OPEN);

	*f = (struct tfile){ .fd = -1, .fid = atomic_fetch_add(&r->h.head->next_fid, 1), .ver = 1 };
	t_copy(f->name, name);
	rec->fid = f->fid;
	rec->ver = f->ver;
	rec->flags = HF_CREATE | HF_LENT;
	t_name(rec, d, name);
	hist_begin(&r->h, rec);
	hist_end(&r->h, rec, 0);
	t_buffer_mark(r, b, d, f);
	rec = t_bytes(r, f, H_WRITE, 0, size);
	hist_begin(&r->h, rec);
	content_fill(b->map, f->fid, f->ver, 0, size);
	/* behind it what must never be seen */
	content_fill(b->map + size, f->fid, f->ver + 1, size, BUFFER_SIZE - size);
	hist_end(&r->h, rec, 0);
	if (ftruncate(b->fd, (off_t)size))
		return t_buffer_error(r, b, "size of a buffer");
	f->size = size;
	rec = t_bytes(r, f, H_SEAL, 0, 0);
	t_path(r, d, name, path);
	hist_begin(&r->h, rec);
	int ret = t_end(r, rec, link(b->path, path));
	if (!ret)
		b->lent = rec;
	return ret;
}

static inline int t_buffer_fsync(struct rank *r, struct tbuf *b, struct tfile *f)
{
	struct hist_rec *rec = t_bytes(r, f, H_CLOSE, 0, 0);

	rec->flags = r->strict_fsync ? HF_SYNC : 0;
	hist_begin(&r->h, rec);
	return t_end(r, rec, fsync(b->fd));
}

/* ---- names --------------------------------------------------------------- */

static inline int t_rename(struct rank *r, const struct tdir *d, const char *name,
			   const struct tdir *d2, const char *name2)
{
	char from[PATH_CAP], to[PATH_CAP];
	struct hist_rec *rec = t_new(r, H_RENAME);

	t_name(rec, d, name);
	rec->dir2 = d2->id;
	t_copy(rec->name2, name2);
	t_path(r, d, name, from);
	t_path(r, d2, name2, to);
	hist_begin(&r->h, rec);
	return t_end(r, rec, rename(from, to));
}

static inline int t_link(struct rank *r, const struct tdir *d, const char *name, const char *name2)
{
	char from[PATH_CAP], to[PATH_CAP];
	struct hist_rec *rec = t_new(r, H_LINK);

	t_name(rec, d, name);
	rec->dir2 = d->id;
	t_copy(rec->name2, name2);
	t_path(r, d, name, from);
	t_path(r, d, name2, to);
	hist_begin(&r->h, rec);
	return t_end(r, rec, link(from, to));
}

static inline int t_unlink(struct rank *r, const struct tdir *d, const char *name)
{
	char path[PATH_CAP];
	struct hist_rec *rec = t_new(r, H_UNLINK);

	t_name(rec, d, name);
	t_path(r, d, name, path);
	hist_begin(&r->h, rec);
	return t_end(r, rec, unlink(path));
}

static inline int t_symlink(struct rank *r, const struct tdir *d, const char *name, uint32_t num)
{
	char path[PATH_CAP], target[32];
	struct hist_rec *rec = t_new(r, H_SYMLINK);

	t_name(rec, d, name);
	rec->ver = num;
	t_path(r, d, name, path);
	snprintf(target, sizeof(target), "to-%u", num);
	hist_begin(&r->h, rec);
	return t_end(r, rec, symlink(target, path));
}

/* Makes parent/PREFIX-<number>. */
static inline int t_mkdir(struct rank *r, const struct tdir *parent, const char *prefix,
			  struct tdir *out)
{
	char path[PATH_CAP], name[HIST_NAME];
	struct hist_rec *rec = t_new(r, H_MKDIR);

	out->id = atomic_fetch_add(&r->h.head->next_dir, 1);
	snprintf(name, sizeof(name), "%s-%u", prefix, out->id);
	snprintf(out->path, sizeof(out->path), "%.180s%s%s", parent->path,
		 *parent->path ? "/" : "", name);
	t_name(rec, parent, name);
	rec->fid = out->id;
	t_path(r, parent, name, path);
	hist_begin(&r->h, rec);
	return t_end(r, rec, mkdir(path, 0755));
}

static inline int t_rmdir(struct rank *r, const struct tdir *parent, const char *name)
{
	char path[PATH_CAP];
	struct hist_rec *rec = t_new(r, H_RMDIR);

	t_name(rec, parent, name);
	t_path(r, parent, name, path);
	hist_begin(&r->h, rec);
	return t_end(r, rec, rmdir(path));
}

static inline int t_dirsync(struct rank *r, const struct tdir *d)
{
	char path[PATH_CAP];
	struct hist_rec *rec = t_new(r, H_DIRSYNC);

	t_name(rec, d, ".");
	rec->flags = r->strict_fsync ? HF_SYNC : 0;
	t_path(r, d, ".", path);
	hist_begin(&r->h, rec);
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int ret = fd < 0 ? -1 : fsync(fd);
	int saved = errno;
	if (fd >= 0)
		close(fd);
	errno = saved;
	return t_end(r, rec, ret);
}

static inline int t_chmod(struct rank *r, const struct tdir *d, const struct tfile *f, unsigned mode)
{
	char path[PATH_CAP];
	struct hist_rec *rec = t_new(r, H_CHMOD);

	t_name(rec, d, f->name);
	rec->fid = f->fid;
	rec->ver = mode;
	t_path(r, d, f->name, path);
	hist_begin(&r->h, rec);
	return t_end(r, rec, chmod(path, mode));
}

static inline int t_setxattr(struct rank *r, const struct tdir *d, const struct tfile *f, uint32_t val)
{
	char path[PATH_CAP], text[16];
	struct hist_rec *rec;

	if (r->no_xattr)
		return 0;
	rec = t_new(r, H_XATTR);
	t_name(rec, d, f->name);
	rec->fid = f->fid;
	rec->ver = val;
	t_path(r, d, f->name, path);
	snprintf(text, sizeof(text), "%u", val);
	hist_begin(&r->h, rec);
	int ret = setxattr(path, "user.load", text, strlen(text), 0);
	if (ret && errno == EOPNOTSUPP) {
		r->no_xattr = true;
		hist_end(&r->h, rec, -EOPNOTSUPP);
		return 0;
	}
	return t_end(r, rec, ret);
}

/* ---- together ------------------------------------------------------------ */

/* Waits until all ranks are here. */
static inline void t_barrier(struct rank *r)
{
	struct hist_head *hd = r->h.head;
	uint32_t gen = atomic_load(&hd->bar_gen);

	if (atomic_fetch_add(&hd->bar_in, 1) + 1 == hd->ranks) {
		atomic_store(&hd->bar_in, 0);
		atomic_fetch_add(&hd->bar_gen, 1);
		return;
	}
	while (atomic_load(&hd->bar_gen) == gen) {
		if (atomic_load(&hd->failed))
			_exit(1);
		if (atomic_load(&hd->crash))
			t_leave();
		usleep(50);
	}
}

#endif

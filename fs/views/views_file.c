/* SPDX-License-Identifier: MIT
 * Reads a checkpoint's files for views: found in the live tree by path, with bytes from staging or
 * the store, always of the version that was parsed.
 */
#include "fs/views/inside.h"
#include "io/full.h"
#include "io/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Readahead for sequential readers: AHEAD_STEP at once; up to AHEAD_MAX of one file, AHEAD_ALL of
 * many together, but at least AHEAD_MIN of each (docs/PERFORMANCE.md, Views and export). */
#define AHEAD_STEP (4u << 20)
#define AHEAD_MIN (6u << 20)
#define AHEAD_MAX (16u << 20)
#define AHEAD_ALL (64u << 20)
#define OPEN_MAX 256u /* open files of one checkpoint */

/* ---- the tree ---- */

int views_see(struct fs *fs, const char *dir, const char *name, struct stat *st, bool *open)
{
	CLEANUP_FREE char *path = path_join(dir, name);
	struct node *n;
	int err = path ? reach(fs, NULL, path, &n) : -ENOMEM;
	if (err)
		return err;
	node_attr(fs, n, st);
	*open = n->writers > 0;
	reach_done(fs, n);
	return 0;
}

bool vfile_is(const struct vfile *f, const struct stat *st)
{
	return f->ino == st->st_ino && f->size == (uint64_t)st->st_size &&
	       f->mtime.tv_sec == st->st_mtim.tv_sec && f->mtime.tv_nsec == st->st_mtim.tv_nsec;
}

/* ---- open files ---- */

/* The bytes that the tree has now: in staging, or a descriptor in the store. 0, ASK_AGAIN. */
static int try_bytes(struct fs *fs, struct vfile *f, const char *path)
{
	struct node *n;
	struct stat st;
	int err = reach(fs, NULL, path, &n);
	if (err)
		return err == -ENOENT ? -ESTALE : err;
	node_attr(fs, n, &st);
	if (!S_ISREG(st.st_mode) || n->writers || !vfile_is(f, &st)) {
		err = -ESTALE;
	} else if (n->sf && !f->sf) {
		f->sf = staged_ref(n->sf);
	} else {
		f->fd = node_open_store(fs, n);
		err = f->fd < 0 ? f->fd : 0;
	}
	reach_done(fs, n);
	return err;
}

static int open_bytes(struct fs *fs, struct vfile *f)
{
	CLEANUP_FREE char *path = path_join(f->c->path, f->name);
	int err;

	ask_begin();
	do {
		err = path ? try_bytes(fs, f, path) : -ENOMEM;
	} while (ask_store(fs, err));
	return err;
}

void vfile_close(struct vfile *f)
{
	if (f->fd >= 0 || f->sf)
		f->c->n_open--;
	if (f->fd >= 0)
		close(f->fd);
	if (f->sf)
		staged_unref(f->sf);
	f->fd = -1;
	f->sf = NULL;
}

void vfile_close_unused(struct vckpt *c)
{
	for (size_t i = 0; i < c->n_files; i++)
		if (!c->file[i].users)
			vfile_close(&c->file[i]);
}

/* Reads the staged bytes while they are that version; -ENODATA: read the store instead. */
static int read_staged(struct vfile *f, struct staged *sf, uint64_t off, char *buf, size_t len)
{
	struct staged_info i;
	while (len) {
		ssize_t got = staged_read(sf, buf, len, off);
		if (got <= 0)
			return got ? (int)got : -ESTALE;
		buf += got;
		off += (uint64_t)got;
		len -= (size_t)got;
	}
	/* checked afterwards: a writer may have begun meanwhile */
	staged_get_info(sf, &i);
	if (i.state == STAGED_EVICTED)
		return 0;
	return i.size == f->size && i.mtime.tv_sec == f->mtime.tv_sec &&
			       i.mtime.tv_nsec == f->mtime.tv_nsec
		       ? 0
		       : -ESTALE;
}

/* The kernel's own readahead is short and does not recognize reads of many small rows as
 * sequential: so the next bytes are fetched for sequential readers. Lock held; 0: fetch nothing. */
static uint64_t fetch_from(struct vfile *f, uint64_t off, size_t len)
{
	uint64_t end = off + len, from = f->ahead > end ? f->ahead : end;
	uint64_t share = AHEAD_ALL / f->c->n_open;
	uint64_t most = share < AHEAD_MIN ? AHEAD_MIN : share > AHEAD_MAX ? AHEAD_MAX : share;
	bool in_order = off + VFILE_READ_MAX >= f->next && off <= f->next + VFILE_READ_MAX;
	if (!in_order || end > f->next)
		f->next = end;
	if (!in_order)
		f->ahead = 0;
	if (!in_order || from - end + AHEAD_STEP > most || from >= f->size)
		return 0;
	f->ahead = from + AHEAD_STEP;
	return from;
}

static int read_file(void *ctx, uint64_t off, void *buf, size_t len)
{
	struct vfile *f = ctx;
	if (len > VFILE_READ_MAX)
		return -E2BIG;
	pthread_mutex_lock(&f->c->lock);
	int fd = f->fd;
	struct staged *sf = f->sf;
	uint64_t fetch = fd >= 0 ? fetch_from(f, off, len) : 0;
	pthread_mutex_unlock(&f->c->lock);
	if (fetch)
		posix_fadvise(fd, (off_t)fetch, AHEAD_STEP, POSIX_FADV_WILLNEED);
	int err = fd >= 0 ? -ENODATA : read_staged(f, sf, off, buf, len);
	if (err != -ENODATA)
		return err;
	if (fd < 0) { /* evicted since: read the store */
		pthread_mutex_lock(&f->c->lock);
		err = f->fd >= 0 ? 0 : open_bytes(f->c->fs, f);
		fd = f->fd;
		pthread_mutex_unlock(&f->c->lock);
		if (err || fd < 0)
			return err ? err : -ESTALE;
	}
	ssize_t got = full_pread(fd, buf, len, off);
	return got < 0 ? (int)got : got < (ssize_t)len ? -ESTALE : 0;
}

int vfile_get(struct vfile *f, struct fmt_source *out)
{
	struct vckpt *c = f->c;
	int err = 0;
	pthread_mutex_lock(&c->lock);
	if (f->fd < 0 && !f->sf) {
		if (c->n_open >= OPEN_MAX)
			vfile_close_unused(c);
		err = open_bytes(c->fs, f);
		c->n_open += !err;
	}
	f->users += !err;
	pthread_mutex_unlock(&c->lock);
	*out = (struct fmt_source){.size = f->size, .read = read_file, .ctx = f};
	return err;
}

void vfile_put(struct vfile *f)
{
	pthread_mutex_lock(&f->c->lock);
	f->users--;
	pthread_mutex_unlock(&f->c->lock);
}

int vckpt_file_get(void *ctx, uint32_t file, struct fmt_source *out)
{
	return vfile_get(&((struct vckpt *)ctx)->file[file], out);
}

void vckpt_file_put(void *ctx, uint32_t file)
{
	vfile_put(&((struct vckpt *)ctx)->file[file]);
}

int vckpt_item(void *ctx, const struct fmt_source *item, struct fmt_set *set, struct fmt_error *e)
{
	struct vckpt *c = ctx;
	int err = parser_item(c->fs, c->path, c->version ? c->version : 1, item, set, e);
	return err == -ECHILD ? -EIO : err;
}

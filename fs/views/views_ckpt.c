/* SPDX-License-Identifier: MIT
 * The cache of parsed checkpoints: which version of one a view is made of, and whether the tree
 * still has that version. One checkpoint is parsed at a time.
 */
#include "fs/views/inside.h"
#include "io/scope.h"

#include <errno.h>
#include <string.h>

#define CACHE_MAX 8u /* checkpoints cached, */
#define CACHE_COST (32u << 20) /* and their metadata altogether */
#define TRUST_NS 1000000000u

static pthread_mutex_t cache_lock = RANKED_MUTEX(RANK_VIEWS_CACHE); /* cache, refs */
static struct vcache cache = {&cache_lock, NULL, CACHE_MAX, CACHE_COST};
static pthread_mutex_t load_lock = RANKED_MUTEX(RANK_VIEWS_LOAD); /* held while parsing */

void vckpt_put(struct vckpt *c)
{
	if (vcached_put(&cache, &c->cached))
		vckpt_free(c);
}

static void forget(struct vcached *x)
{
	vckpt_put((struct vckpt *)x);
}

static bool is_at(const struct vcached *x, const void *path)
{
	return !strcmp(((const struct vckpt *)x)->path, path);
}

static struct vckpt *cache_find(const char *path)
{
	return (struct vckpt *)vcache_find(&cache, is_at, path);
}

/* Whether its files are still those that were parsed, and no writer has them open. */
static bool is_current(struct fs *fs, struct vckpt *c)
{
	struct stat st = {0};
	struct node *dir;
	if (reach(fs, NULL, c->path, &dir))
		return false;
	struct stat ds;
	node_attr(fs, dir, &ds);
	reach_done(fs, dir);
	if (ds.st_mtim.tv_sec != c->dir_mtime.tv_sec || ds.st_mtim.tv_nsec != c->dir_mtime.tv_nsec)
		return false; /* the checkpoint may have a file more */
	for (size_t i = 0; i < c->n_files; i++) {
		struct stat fst;
		bool open;
		if (views_see(fs, c->path, c->file[i].name, &fst, &open) || open ||
		    !vfile_is(&c->file[i], &fst))
			return false;
		vckpt_restrict(&st, &fst, i == 0);
	}
	pthread_mutex_lock(&cache_lock);
	c->st = st;
	c->checked_ns = monotonic_ns();
	pthread_mutex_unlock(&cache_lock);
	return true;
}

void vckpt_stat(struct vckpt *c, struct stat *out)
{
	pthread_mutex_lock(&cache_lock);
	*out = c->st;
	pthread_mutex_unlock(&cache_lock);
}

static bool is_fresh(struct vckpt *c)
{
	pthread_mutex_lock(&cache_lock);
	bool fresh = monotonic_ns() - c->checked_ns < TRUST_NS;
	pthread_mutex_unlock(&cache_lock);
	return fresh;
}

int vckpt_get(struct fs *fs, const char *path, bool now, struct vckpt **out)
{
	struct vckpt *c = cache_find(path);
	int err = 0;
	if (c && !now && is_fresh(c)) {
		*out = c;
		return 0;
	}
	if (c)
		vckpt_put(c);
	pthread_mutex_lock(&load_lock);
	c = cache_find(path); /* another thread may have parsed it meanwhile */
	if (c && !((!now && is_fresh(c)) || is_current(fs, c))) {
		vcache_drop(&cache, &c->cached, forget);
		vckpt_put(c);
		c = NULL;
	}
	if (!c) {
		err = vckpt_load(fs, path, &c);
		if (!err)
			vcache_add(&cache, &c->cached, c->cost, forget);
	}
	pthread_mutex_unlock(&load_lock);
	*out = c;
	return err;
}

/* For a file that metadata names: if the caller may not search a directory on the way, it does not
 * exist for the caller, so that existence cannot be probed by metadata. */
static int may_read(struct vckpt *c, const struct vfile *f, const struct caller *who, bool exact)
{
	CLEANUP_FREE char *path = path_join(c->path, f->name);
	struct node *n;
	struct stat st;
	int err = path ? reach(c->fs, who, path, &n) : -ENOMEM;
	if (err)
		return err == -EACCES && strchr(f->name, '/') ? -ENOENT : err;
	node_attr(c->fs, n, &st);
	reach_done(c->fs, n);
	return exact && !vfile_is(f, &st) ? -ESTALE : caller_may(who, &st, 4) ? 0 : -EACCES;
}

int vckpt_may(struct vckpt *c, const struct caller *who, bool exact)
{
	int err = 0;
	for (size_t i = 0; i < c->n_files && (!err || err == -EACCES); i++) {
		int one = may_read(c, &c->file[i], who, exact);
		if (one)
			err = one;
	}
	return err;
}

int vckpt_get_version(struct fs *fs, const char *path, uint64_t version, struct vckpt **out)
{
	struct vckpt *c = cache_find(path);
	int err = 0;
	if (!c)
		err = vckpt_get(fs, path, false, &c);
	if (!err && c->version != version) {
		vckpt_put(c);
		err = -ESTALE;
	}
	*out = err ? NULL : c;
	return err == -ENOENT ? -ESTALE : err;
}

void vckpt_idle(const char *path)
{
	struct vckpt *c = cache_find(path);
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	vfile_close_unused(c);
	pthread_mutex_unlock(&c->lock);
	vckpt_put(c);
}

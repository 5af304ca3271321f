/* SPDX-License-Identifier: MIT
 * Finds the checkpoints below a directory of the store; caches what was found out about them, keyed
 * by timestamps.
 */
#include "fs/latest/inside.h"
#include "io/entries.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_DIRS 100000u /* read for one answer */
#define KNOWN_MAX 4096u /* size of the cache */
#define SETTLED_NS 1000000000ll /* after a timestamp this old, every change leaves another */

static struct lknown known[KNOWN_MAX]; /* used by that thread only */

/* ---- names in the store ---- */

static void names_free(struct ckpt_name *v, size_t n)
{
	for (size_t i = 0; v && i < n; i++) {
		free((char *)v[i].name);
		free((char *)v[i].fault);
	}
	free(v);
}

void ldir_close(struct ldir *d)
{
	names_free(d->v, d->n);
	if (d->fd >= 0)
		close(d->fd);
	*d = (struct ldir){.fd = -1};
}

int ldir_add(struct ldir *d, const char *name, bool is_dir)
{
	if (d->n == d->cap) {
		size_t cap = d->cap ? d->cap * 2 : 64;
		struct ckpt_name *v = reallocarray(d->v, cap, sizeof(*v));
		if (!v)
			return -ENOMEM;
		d->v = v;
		d->cap = cap;
	}
	d->v[d->n] = (struct ckpt_name){.name = strdup(name), .dir = is_dir};
	return d->v[d->n].name ? (d->n++, 0) : -ENOMEM;
}

static bool is_dir_at(int fd, const struct dirent *e)
{
	struct stat st;
	if (e->d_type != DT_UNKNOWN)
		return e->d_type == DT_DIR;
	return !fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISDIR(st.st_mode);
}

int ldir_read(struct fs *fs, const char *path, struct ldir *d)
{
	int err;

	*d = (struct ldir){.fd = reach_open(io_store_root(fs->store), path, O_DIRECTORY)};
	if (d->fd < 0)
		return d->fd;
	CLEANUP_DIR DIR *list = entries_at(d->fd, ".");
	err = !list || fstat(d->fd, &d->st) ? -errno : 0;
	for (struct dirent *e; !err && (e = entries_next(list));)
		if (*path || strcmp(e->d_name, CONTROL_DIR_NAME))
			err = ldir_add(d, e->d_name, is_dir_at(d->fd, e));
	if (err)
		ldir_close(d);
	else
		ckpt_names_sort(d->v, d->n);
	return err;
}

/* ---- the cache of checkpoints ---- */

static struct lknown *known_at(const char *path)
{
	return &known[hash_text(0, path) % KNOWN_MAX];
}

struct lknown *lknown_find(const char *path)
{
	struct lknown *k = known_at(path);
	return k->path && !strcmp(k->path, path) ? k : NULL;
}

struct lknown *lknown_set(const char *path)
{
	struct lknown *k = known_at(path);
	if (!k->path || strcmp(k->path, path)) {
		free(k->path);
		*k = (struct lknown){.path = strdup(path)};
	}
	return k->path ? k : NULL;
}

static bool same_dir(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino &&
	       a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

bool latest_settled(struct timespec t)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return ((long long)now.tv_sec - t.tv_sec) * 1000000000ll + now.tv_nsec - t.tv_nsec >
	       SETTLED_NS;
}

/* ---- the search ---- */

bool lfound_trusts(const struct lfound *f, const struct stat *st)
{
	return st->st_uid == f->owner || st->st_uid == 0 || st->st_uid == f->who->uid;
}

static bool may_look_inside(const struct lfound *f, const struct stat *st)
{
	return lfound_trusts(f, st) && caller_may(f->who, st, 5);
}

static int found_add(struct lfound *f, char *path, const struct ckpt_kind *kind,
		     struct timespec time)
{
	if (path && f->n == f->cap) {
		size_t cap = f->cap ? f->cap * 2 : 64;
		struct ckpt_found *v = reallocarray(f->v, cap, sizeof(*v));
		if (v) {
			f->v = v;
			f->cap = cap;
		}
	}
	if (!path || f->n == f->cap) {
		free(path);
		return -ENOMEM;
	}
	f->v[f->n++] = (struct ckpt_found){.path = path, .kind = *kind, .time = time};
	return 0;
}

static int todo_add(struct lfound *f, char *path)
{
	if (path && f->n_todo == f->cap_todo) {
		size_t cap = f->cap_todo ? f->cap_todo * 2 : 64;
		char **v = reallocarray(f->todo, cap, sizeof(*v));
		if (v) {
			f->todo = v;
			f->cap_todo = cap;
		}
	}
	if (!path || f->n_todo == f->cap_todo) {
		free(path);
		return -ENOMEM;
	}
	f->todo[f->n_todo++] = path;
	return ++f->n_dirs > MAX_DIRS ? -E2BIG : 0;
}

void lfound_free(struct lfound *f)
{
	for (size_t i = 0; i < f->n; i++)
		free(f->v[i].path);
	while (f->n_todo)
		free(f->todo[--f->n_todo]);
	free(f->v);
	free(f->todo);
}

/* May others be below it? */
static bool is_open(const struct ckpt_kind *k)
{
	return k->format == CKPT_NONE || ckpt_is_loose(k);
}

/* Every checkpoint that is made below a loose one changes the time of its directory. */
static struct timespec loose_time(const struct ldir *d)
{
	struct timespec newest = {0};
	struct stat st;
	for (size_t i = 0; i < d->n; i++)
		if (ckpt_is_loose_file(d->v[i].name) && !ckpt_is_one_file(d->v[i].name) &&
		    !fstatat(d->fd, d->v[i].name, &st, AT_SYMLINK_NOFOLLOW))
			time_to_later(&newest, st.st_mtim);
	return newest;
}

/* Adds directories to read, and files that are checkpoints by themselves. */
static int look_inside(struct lfound *f, const char *below, const struct ldir *d)
{
	int err = 0;
	for (size_t i = 0; !err && i < d->n; i++) {
		struct ckpt_kind kind;
		struct stat st;
		if (d->v[i].dir) {
			err = todo_add(f, path_join(below, d->v[i].name));
			continue;
		}
		ckpt_recognize_file(d->v[i].name, &kind);
		if (kind.format == CKPT_LIGHTNING &&
		    !fstatat(d->fd, d->v[i].name, &st, AT_SYMLINK_NOFOLLOW) &&
		    S_ISREG(st.st_mode) && lfound_trusts(f, &st))
			err = found_add(f, path_join(below, d->v[i].name), &kind, st.st_mtim);
	}
	return err;
}

static int look_at(struct lfound *f, const char *below)
{
	char *path = path_join(f->top, below);
	struct lknown *k = path ? lknown_find(path) : NULL;
	struct ckpt_kind kind;
	struct stat st;
	struct ldir d;
	int err;

	if (k && *below && !is_open(&k->kind) && S_ISDIR(k->dir.st_mode)) {
		int fd = reach_open(io_store_root(f->fs->store), path, O_DIRECTORY | O_PATH);
		bool same = fd >= 0 && !fstat(fd, &st) && same_dir(&st, &k->dir);
		if (fd >= 0)
			close(fd);
		if (same) {
			free(path);
			return may_look_inside(f, &st)
				       ? found_add(f, strdup(below), &k->kind, st.st_mtim)
				       : 0;
		}
	}
	err = path ? ldir_read(f->fs, path, &d) : -ENOMEM;
	if (err) {
		free(path);
		/* removed, or not readable: others may still be there */
		f->unread |= err != -ENOENT && err != -ENOTDIR;
		return err == -ENOMEM ? err : 0;
	}
	if (!may_look_inside(f, &d.st)) {
		ldir_close(&d);
		free(path);
		return 0;
	}
	ckpt_recognize(latest_base_name(path), d.v, d.n, &kind);
	if (!*below)
		kind.format = CKPT_NONE; /* search below it */
	if (kind.format != CKPT_NONE)
		err = found_add(f, strdup(below), &kind,
				ckpt_is_loose(&kind) ? loose_time(&d) : d.st.st_mtim);
	if (!err && is_open(&kind))
		err = look_inside(f, below, &d);
	else if (!err && latest_settled(d.st.st_ctim) && (k = lknown_set(path))) {
		k->dir = d.st;
		k->kind = kind;
	}
	ldir_close(&d);
	free(path);
	return err;
}

/* ---- what is in the tier only ---- */

/* The owner of all of it is trusted, and the caller could find it by listing. */
static bool may_find(const struct lfound *f, const struct remote_node *c)
{
	const struct remote_node *n = c, *end = f->tier->v + f->tier->n;
	size_t len = strlen(c->path);

	if (remote_may(f->tier, c, f->who, S_ISDIR(c->st.st_mode) ? 5 : 4))
		return false;
	do {
		if (!lfound_trusts(f, &n->st))
			return false;
	} while (++n < end && !strncmp(n->path, c->path, len) && n->path[len] == '/');
	return true;
}

static bool is_in_store(const struct lfound *f, size_t n, const char *below)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(f->v[i].path, below))
			return true;
	return false;
}

static int add_remote(struct lfound *f)
{
	size_t len = strlen(f->top), local = f->n;
	int err = 0;

	for (uint32_t i = 0; !err && f->tier && i < f->tier->n; i++) {
		const struct remote_node *c = &f->tier->v[i];
		const char *below = c->path + len + !!len;

		if (!c->checkpoint || strncmp(c->path, f->top, len) ||
		    (len && c->path[len] != '/') || !*below || is_in_store(f, local, below) ||
		    !may_find(f, c))
			continue;
		err = found_add(f, strdup(below), &c->kind, c->st.st_mtim);
		if (!err)
			f->v[f->n - 1].remote = true;
	}
	return err;
}

int lfound_all(struct lfound *f)
{
	int err = todo_add(f, strdup(""));
	while (!err && f->n_todo) {
		char *below = f->todo[--f->n_todo];
		err = look_at(f, below);
		free(below);
	}
	if (!err)
		err = add_remote(f);
	if (!err)
		f->n = ckpt_found_sort(f->v, f->n);
	return err;
}

/* SPDX-License-Identifier: MIT
 *
 * Walks a tree by directory descriptors: paths of any length, no recursion, no
 * symlink followed. Only the OPEN_LEVELS deepest directories are kept open; one
 * higher up is opened again through ".." and must be the same.
 */
#include "cli.h"
#include "io/entries.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define OPEN_LEVELS 32
#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)

struct end { /* a directory in one of the two trees */
	int fd; /* -1 = closed, or there is none */
	bool exists;
	dev_t dev;
	ino_t ino;
};

struct level {
	struct end here, peer;
	struct names names;
	size_t at; /* next name to visit */
	size_t path_len; /* length of the directory's own path */
};

struct walk {
	struct level *v;
	size_t depth, cap; /* v[depth - 1] is where we are */
	char *path;
	size_t path_cap;
	const char *skip;
	bool enter; /* the last item was a directory: go in */
	struct walk_item item;
};

/* ---- names ------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int names_add(struct names *n, const char *name)
{
	if (n->n == n->cap) {
		size_t cap = n->cap ? n->cap * 2 : 32;
		char **v = reallocarray(n->v, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		n->v = v;
		n->cap = cap;
	}
	n->v[n->n] = strdup(name);
	return n->v[n->n] ? (n->n++, 0) : -ENOMEM;
}

int names_read(int dirfd, struct names *out)
{
	CLEANUP_DIR DIR *d = entries_at(dirfd, ".");
	int err = d ? 0 : -errno;
	struct dirent *e;

	*out = (struct names){0};
	while (!err && (e = entries_next(d)))
		err = names_add(out, e->d_name);
	if (!err)
		err = -errno;
	if (err)
		names_free(out);
	else if (out->n)
		qsort(out->v, out->n, sizeof(*out->v), by_bytes);
	return err;
}

void names_free(struct names *n)
{
	for (size_t i = 0; i < n->n; i++)
		free(n->v[i]);
	free(n->v);
	*n = (struct names){0};
}

/* ---- directories -------------------------------------------------------------- */

static void end_close(struct end *e)
{
	if (e->fd >= 0)
		close(e->fd);
	e->fd = -1;
}

static int end_open(int dirfd, const char *name, struct end *out)
{
	struct stat st;

	*out = (struct end){.fd = openat(dirfd, name, OPEN_DIR)};
	if (out->fd < 0 || fstat(out->fd, &st)) {
		int err = -errno;

		end_close(out);
		return err;
	}
	out->exists = true;
	out->dev = st.st_dev;
	out->ino = st.st_ino;
	return 0;
}

/* Reopens up, the parent of `down`, which was closed on the way. */
static int end_reopen(struct end *up, int down)
{
	struct end again;
	int err;

	if (up->fd >= 0 || !up->exists)
		return 0;
	if (down < 0)
		return -ESTALE;
	err = end_open(down, "..", &again);
	if (err)
		return err;
	if (again.dev != up->dev || again.ino != up->ino) {
		end_close(&again);
		return -ESTALE; /* the directory was moved meanwhile */
	}
	*up = again;
	return 0;
}

static int set_path(struct walk *w, size_t keep, const char *name)
{
	size_t len = strlen(name), slash = keep ? 1 : 0;

	if (keep + slash + len + 1 > w->path_cap) {
		size_t cap = 2 * (keep + slash + len + 1);
		char *p = realloc(w->path, cap);

		if (!p)
			return -ENOMEM;
		w->path = p;
		w->path_cap = cap;
	}
	if (slash)
		w->path[keep] = '/';
	memcpy(w->path + keep + slash, name, len + 1);
	return 0;
}

/* Enters the directory `name` below dirfd; peer < 0: it has no counterpart. */
static int push(struct walk *w, int dirfd, int peer, const char *name)
{
	struct level *l;
	int err;

	if (w->depth == w->cap) {
		size_t cap = w->cap ? w->cap * 2 : 16;
		struct level *v = reallocarray(w->v, cap, sizeof(*v));

		if (!v)
			return -ENOMEM;
		w->v = v;
		w->cap = cap;
	}
	l = &w->v[w->depth];
	*l = (struct level){.here.fd = -1, .peer.fd = -1, .path_len = strlen(w->path)};
	err = end_open(dirfd, name, &l->here);
	if (err)
		return err;
	if (peer >= 0)
		end_open(peer, name, &l->peer); /* the caller reports it if it is missing */
	err = names_read(l->here.fd, &l->names);
	if (err) {
		end_close(&l->here);
		end_close(&l->peer);
		return err;
	}
	w->depth++;
	/* the start stays open: its ".." is outside the tree */
	if (w->depth > OPEN_LEVELS + 1) {
		end_close(&w->v[w->depth - 1 - OPEN_LEVELS].here);
		end_close(&w->v[w->depth - 1 - OPEN_LEVELS].peer);
	}
	return 0;
}

static int pop(struct walk *w)
{
	struct level *l = &w->v[--w->depth];
	int err = 0;

	if (w->depth) {
		err = end_reopen(&w->v[w->depth - 1].here, l->here.fd);
		if (!err && end_reopen(&w->v[w->depth - 1].peer, l->peer.fd))
			w->v[w->depth - 1].peer.exists = false;
	}
	end_close(&l->here);
	end_close(&l->peer);
	names_free(&l->names);
	return err;
}

/* ---- the walk ------------------------------------------------------------------ */

int walk_open(int start, int peer, const char *skip, struct walk **out)
{
	struct walk *w = calloc(1, sizeof(*w));
	int err = -ENOMEM;

	*out = NULL;
	if (!w)
		return err;
	w->skip = skip;
	err = set_path(w, 0, "");
	if (!err)
		err = push(w, start, peer, ".");
	if (err)
		walk_close(w);
	else
		*out = w;
	return err;
}

void walk_close(struct walk *w)
{
	if (!w)
		return;
	while (w->depth) {
		struct level *l = &w->v[--w->depth];

		end_close(&l->here);
		end_close(&l->peer);
		names_free(&l->names);
	}
	free(w->v);
	free(w->path);
	free(w);
}

static enum walk_what tell(struct walk *w, enum walk_what what, const char *name, int err)
{
	struct level *l = &w->v[w->depth - 1];

	w->item.what = what;
	w->item.path = w->path;
	w->item.name = name;
	w->item.dirfd = l->here.fd;
	w->item.peer = l->peer.fd;
	w->item.err = err;
	return what;
}

static enum walk_what broken(struct walk *w, int err)
{
	/* Without the way back up nothing more can be visited. */
	while (w->depth > 1)
		pop(w);
	w->v[0].at = w->v[0].names.n;
	return tell(w, WALK_ERROR, ".", err);
}

static enum walk_what leave(struct walk *w)
{
	struct level *l = &w->v[w->depth - 1];
	int err;

	w->path[l->path_len] = '\0';
	err = pop(w);
	if (!w->depth)
		return WALK_END;
	if (err)
		return broken(w, err);
	l = &w->v[w->depth - 1];
	if (fstatat(l->here.fd, l->names.v[l->at - 1], &w->item.st, AT_SYMLINK_NOFOLLOW))
		return tell(w, WALK_ERROR, l->names.v[l->at - 1], -errno);
	return tell(w, WALK_LEAVE, l->names.v[l->at - 1], 0);
}

static enum walk_what step(struct walk *w)
{
	struct level *l = &w->v[w->depth - 1];
	const char *name;
	int err;

	if (w->enter) {
		w->enter = false;
		name = l->names.v[l->at - 1];
		err = push(w, l->here.fd, l->peer.fd, name);
		if (err)
			return tell(w, WALK_ERROR, name, err);
		l = &w->v[w->depth - 1];
	}
	if (w->depth == 1 && w->skip && l->at < l->names.n && !strcmp(l->names.v[l->at], w->skip))
		l->at++;
	if (l->at == l->names.n)
		return leave(w);
	name = l->names.v[l->at++];
	if (set_path(w, l->path_len, name))
		return broken(w, -ENOMEM);
	if (fstatat(l->here.fd, name, &w->item.st, AT_SYMLINK_NOFOLLOW))
		return tell(w, WALK_ERROR, name, -errno);
	w->enter = S_ISDIR(w->item.st.st_mode);
	return tell(w, WALK_ENTRY, name, 0);
}

void walk_leave(struct walk *w)
{
	w->enter = false;
}

enum walk_what walk_next(struct walk *w, struct walk_item *out)
{
	enum walk_what what = w->depth ? step(w) : WALK_END;

	w->item.what = what;
	*out = w->item;
	return what;
}

/* ---- a new name --------------------------------------------------------------------- */

int name_new(int fromdir, const char *from, int todir, const char *to)
{
	if (!renameat2(fromdir, from, todir, to, RENAME_NOREPLACE))
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	/* NFS */
	return linkat(fromdir, from, todir, to, 0) || unlinkat(fromdir, from, 0) ? -errno : 0;
}

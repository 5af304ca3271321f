/* SPDX-License-Identifier: MIT
 * The last good checkpoint while it is overwritten in place. A directory with a .metadata
 * (s->o.previous) is whole: what it lists was published before. Before the first of its files is
 * replaced or removed, all of them are linked to .cairn/previous/KEY (io/previous.h), no byte is
 * copied.
 *
 *   none ──a file is to be replaced──▶ KEPT ──another .metadata is durable──▶ none
 *     │ no room, no links               │ the store is full
 *     └────────▶ LOST ◀─────────────────┘
 *
 *   KEPT   KEY has the whole checkpoint: it gets that name when all its links are there
 *   LOST   KEY is empty, so that the mixture of both is not kept as a whole checkpoint
 *
 * Both end when the directory has another .metadata, and when it is removed. Several hosts find
 * each other's: none replaces anything before there is one. */
#include "io/entries.h"
#include "staging/drain/drain.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/previous.h"

#define LOOK_AHEAD 8192u /* pending records */

struct generation {
	struct generation *next;
	struct previous_key key;
	char name[PREVIOUS_KEY];
	bool lost;
	uint64_t bytes; /* of files that have no other name */
	time_t since;
	uint64_t *ino; /* of its files */
	size_t n, cap;
};

static struct generation *find(const struct staging *s, const struct previous_key *k, bool meta)
{
	struct generation *g = s->drain.previous.list;
	while (g && (g->key.ino != k->ino || g->key.birth != k->birth ||
		     (meta && g->key.meta != k->meta)))
		g = g->next;
	return g;
}

static void generation_free(struct generation *g)
{
	free(g->ino);
	free(g);
}

/* s->lock held */
static void forget(struct staging *s, struct generation *g)
{
	struct generation **at = &s->drain.previous.list;
	while (*at != g)
		at = &(*at)->next;
	*at = g->next;
	s->drain.previous.bytes -= g->bytes;
	atomic_fetch_sub(&s->drain.previous.n, 1);
	generation_free(g);
}

static void lose(struct staging *s, struct generation *g)
{
	LOCK_SCOPE(&s->lock);
	s->drain.previous.bytes -= g->bytes;
	g->bytes = g->n = 0;
	g->lost = true;
}

static struct generation *add(struct staging *s, const char *name, time_t since)
{
	struct generation *g = calloc(1, sizeof(*g));
	if (!g || !previous_parse(name, &g->key)) {
		free(g);
		return NULL;
	}
	g->since = since;
	snprintf(g->name, sizeof(g->name), "%s", name);
	LOCK_SCOPE(&s->lock);
	g->next = s->drain.previous.list;
	s->drain.previous.list = g;
	atomic_fetch_add(&s->drain.previous.n, 1);
	return g;
}

/* s->lock held */
static int add_ino(struct generation *g, uint64_t ino)
{
	if (g->n == g->cap) {
		size_t cap = g->cap ? 2 * g->cap : 16;
		uint64_t *all = realloc(g->ino, cap * sizeof(*all));
		if (!all)
			return -ENOMEM;
		g->ino = all;
		g->cap = cap;
	}
	g->ino[g->n++] = ino;
	return 0;
}

/* ---- directories ---- */

typedef int (*file_fn)(void *ctx, int dirfd, const char *name, const struct stat *st);

/* Calls fn for each regular file in dirfd, until it fails. */
static int each_file(struct staging *s, int dirfd, file_fn fn, void *ctx)
{
	CLEANUP_DIR DIR *d = entries_of(io_open_list(s->o.store, dirfd));
	int err = d ? 0 : -errno;
	struct stat st;

	for (struct dirent *e; !err && (e = entries_next(d));) {
		err = io_stat(s->o.store, dirfd, e->d_name, &st);
		if (!err && S_ISREG(st.st_mode))
			err = fn(ctx, dirfd, e->d_name, &st);
		err = err == -ENOENT ? 0 : err;
	}
	return err;
}

/* To tmp/, from where a thread of its own removes it. */
static int remove_file(void *ctx, int dirfd, const char *name, const struct stat *st)
{
	struct staging *s = ctx;
	uint64_t id = staging_new_id(s);
	char to[17];

	(void)st;
	io_tmp_name(id, to);
	int err = io_rename(s->o.store, dirfd, name, io_store_tmp(s->o.store), to, 0);
	LOCK_SCOPE(&s->lock);
	if (!err)
		trash_put(s, id, -1);
	return err;
}

/* Removes the files of .cairn/previous/name. The .metadata first: without it there is nothing
 * kept, whatever happens before the rest is removed. */
static int clear(struct staging *s, const char *name)
{
	CLEANUP_CLOSE int fd = io_open_dir(s->o.store, io_store_previous(s->o.store), name);
	int err = fd < 0 ? fd : remove_file(s, fd, s->o.previous, NULL);

	if (!err || err == -ENOENT)
		err = fd < 0 ? err : each_file(s, fd, remove_file, s);
	return err;
}

static int drop(struct staging *s, const char *name)
{
	int err = clear(s, name);

	if (!err)
		err = io_rmdir(s->o.store, io_store_previous(s->o.store), name);
	return err == -ENOENT ? 0 : err;
}

/* ---- what is there ---- */

static int count_file(void *ctx, int dirfd, const char *name, const struct stat *st)
{
	struct generation *g = ctx;

	(void)dirfd;
	(void)name;
	if (st->st_nlink == 1)
		g->bytes += (uint64_t)st->st_blocks * 512;
	return add_ino(g, st->st_ino);
}

/* .cairn/previous/name, which another worker or host made. */
static struct generation *load(struct staging *s, const char *name)
{
	CLEANUP_CLOSE int fd = io_open_dir(s->o.store, io_store_previous(s->o.store), name);
	struct generation seen = {.n = 0};
	struct stat st, meta;

	if (fd < 0 || io_stat(s->o.store, fd, NULL, &st))
		return NULL;
	bool lost = io_stat(s->o.store, fd, s->o.previous, &meta) == -ENOENT;
	if (lost)
		clear(s, name); /* what was begun */
	else if (each_file(s, fd, count_file, &seen))
		seen.n = 0;
	struct generation *g = add(s, name, st.st_mtime);
	if (!g) {
		free(seen.ino);
		return NULL;
	}
	LOCK_SCOPE(&s->lock);
	g->lost = lost;
	g->ino = seen.ino;
	g->n = seen.n;
	g->cap = seen.cap;
	g->bytes = seen.bytes;
	s->drain.previous.bytes += g->bytes;
	return g;
}

/* The directory and its .metadata, as a key. 0; -ENOENT: it has none, k->meta is 0; -errno */
static int key_of(struct staging *s, int dirfd, struct previous_key *k)
{
	struct stat st, meta;

	*k = (struct previous_key){.meta = 0};
	int err = io_stat_born(s->o.store, dirfd, NULL, &st, &k->birth);
	k->ino = err ? 0 : st.st_ino;
	if (!err)
		err = io_stat(s->o.store, dirfd, s->o.previous, &meta);
	if (!err && (!S_ISREG(meta.st_mode) || !meta.st_size)) /* empty: it is still written */
		err = -ENOENT;
	k->meta = err ? 0 : meta.st_ino;
	return err;
}

/* ---- keeping ---- */

struct linking {
	struct staging *s;
	struct generation *g;
	int to;
};

static int note_file(void *ctx, int dirfd, const char *name, const struct stat *st)
{
	struct linking *l = ctx;

	(void)dirfd;
	(void)name;
	LOCK_SCOPE(&l->s->lock);
	return add_ino(l->g, st->st_ino);
}

/* A save that ended half-way left it: with it, what is kept would not be whole. */
static bool is_unfinished(const struct staging *s, const char *name)
{
	size_t n = strlen(s->o.previous);
	return !strncmp(name, s->o.previous, n) && !strcmp(name + n, ".tmp");
}

static int link_file(void *ctx, int dirfd, const char *name, const struct stat *st)
{
	struct linking *l = ctx;

	(void)st;
	if (is_unfinished(l->s, name))
		return 0;
	return io_link(l->s->o.store, dirfd, name, l->to, name);
}

/* Where the journal keeps no order, the links must be there before what replaces the files, in
 * `to` first and then by its name. */
static int sync_links(struct staging *s, int to)
{
	enum io_fs_kind kind = io_store_fs(s->o.store);

	return kind == IO_FS_ORDERED || kind == IO_FS_SYNCFS
		       ? 0
		       : sync_told(s, io_sync_dir(s->o.store, to));
}

static int sync_name(struct staging *s)
{
	switch (io_store_fs(s->o.store)) {
	case IO_FS_ORDERED: return 0;
	case IO_FS_SYNCFS: return sync_all(s);
	default: break;
	}
	return sync_told(s, io_sync_dir(s->o.store, io_store_previous(s->o.store)));
}

static int make_links(struct staging *s, int dirfd, struct generation *g)
{
	int previous = io_store_previous(s->o.store);
	char name[80];
	struct linking l = {.s = s, .g = g};

	snprintf(name, sizeof(name), "%s%s", PREVIOUS_NEW, io_store_host(s->o.store));
	int err = drop(s, name); /* of one that was killed */
	if (!err)
		err = io_mkdir(s->o.store, previous, name, 0700);
	CLEANUP_CLOSE int to = err ? err : io_open_dir(s->o.store, previous, name);
	l.to = to;
	err = to < 0 ? to : each_file(s, dirfd, note_file, &l);
	if (!err)
		err = each_file(s, dirfd, link_file, &l);
	if (!err)
		err = sync_links(s, to);
	if (!err)
		err = io_rename(s->o.store, previous, name, previous, g->name, 0);
	if (err) {
		drop(s, name);
		return err;
	}
	return sync_name(s); /* another host may have found it: it stays */
}

static void tell_lost(struct staging *s, const char *path, int err)
{
	char text[400];

	snprintf(text, sizeof(text),
		 "%.180s is overwritten, and what it has now cannot be kept until the new "
		 "checkpoint is complete: %s",
		 path, no_space(err) ? "the store is full" : strerror(-err));
	s->o.notice(s->o.ctx, text);
}

/* The directory's name, below the store. */
static void path_of(struct staging *s, uint64_t dir, char path[4096])
{
	dirs_root_relative(s, dir, "", path, 4096);
	size_t n = strlen(path);
	if (n && path[n - 1] == '/')
		path[n - 1] = 0;
}

static int keep(struct staging *s, uint64_t dir, int dirfd, const struct previous_key *k)
{
	char path[4096], at[LOSTFOUND_NAME], name[PREVIOUS_KEY];
	struct stat st;

	path_of(s, dir, path);
	lostfound_path_name(path, at);
	previous_format(at, k, name);
	if (!io_stat(s->o.store, io_store_previous(s->o.store), name, &st))
		return load(s, name) ? 0 : -ENOMEM; /* another host was first */
	struct generation *g = add(s, name, time(NULL));
	if (!g)
		return -ENOMEM;
	int err =
		atomic_load(&s->reserve.state) == RESERVE_GIVEN ? -ENOSPC : make_links(s, dirfd, g);
	if (err == -EEXIST || err == -ENOTEMPTY || is_failure(err)) {
		LOCK_SCOPE(&s->lock);
		forget(s, g);
		/* if another host was first: the next try finds it */
		return is_failure(err) ? err : -EAGAIN;
	}
	if (err) {
		lose(s, g);
		io_mkdir(s->o.store, io_store_previous(s->o.store), name, 0700);
		tell_lost(s, path, err);
	}
	return 0;
}

/* A directory in the present batch. */
struct look {
	uint64_t dir;
	struct generation *g; /* NULL: nothing is to be kept */
};
struct looks {
	struct look at[16];
	unsigned n;
};

/* Is dir's removal accepted already? Then its files are not overwritten. */
static bool is_dying(struct staging *s, uint64_t dir)
{
	unsigned n = 0;
	LOCK_SCOPE(&s->lock);
	for (const struct pend *p = *s->order.head; p && n < LOOK_AHEAD; p = p->next, n++)
		if (p->r.type == REC_RMDIR && p->r.node2 == dir)
			return true;
	return false;
}

/* Looks at the directory whose file name is to be replaced or removed. 1: *out says what is known
 * of it; 0: not this file. */
static int look_at(struct staging *s, uint64_t dir, int dirfd, const char *name, struct look *out)
{
	struct previous_key k;
	struct stat st;
	int err = key_of(s, dirfd, &k);

	*out = (struct look){.dir = dir};
	if (err && err != -ENOENT)
		return is_failure(err) ? err : 1;
	out->g = find(s, &k, k.meta);
	if (out->g || !k.meta)
		return 1;
	if (io_stat(s->o.store, dirfd, name, &st))
		return 0; /* it is added */
	if (is_dying(s, dir))
		return 1;
	err = -EAGAIN;
	for (unsigned n = 0; (err == -EAGAIN || is_failure(err)) && n < MAX_ATTEMPTS; n++)
		err = keep(s, dir, dirfd, &k);
	out->g = find(s, &k, true);
	return err && err != -EAGAIN ? err : 1;
}

/* What is kept of it takes room from now on. */
static void count_room(struct staging *s, struct generation *g, int dirfd, const char *name)
{
	struct stat st;

	if (!g || g->lost || io_stat(s->o.store, dirfd, name, &st) || !S_ISREG(st.st_mode) ||
	    st.st_nlink != 2)
		return;
	uint64_t bytes = (uint64_t)st.st_blocks * 512;
	LOCK_SCOPE(&s->lock);
	g->bytes += bytes;
	s->drain.previous.bytes += bytes;
}

/* dir/name, if there is one, is to be replaced or removed. */
static int before(struct staging *s, struct looks *l, uint64_t dir, const char *name)
{
	struct look fresh, *known = NULL;
	int d, err = 0;

	for (unsigned i = 0; !known && i < l->n; i++)
		if (l->at[i].dir == dir)
			known = &l->at[i];
	if (known && !known->g)
		return 0; /* nothing is kept of it */
	if ((err = staging_dir_get(s, dir, &d)))
		return is_failure(err) ? err : 0; /* perhaps it is made in this batch */
	if (!known)
		err = look_at(s, dir, d, name, &fresh);
	if (err > 0) {
		known = &l->at[l->n < 16 ? l->n++ : 15];
		*known = fresh;
	}
	if (known)
		count_room(s, known->g, d, name);
	staging_dir_put(s, dir);
	return err < 0 ? err : 0;
}

/* Was the rename or link made just before the last worker died? Then dir2/name2 is the new file. */
static bool is_made(struct staging *s, const struct rec *r)
{
	struct stat from, to;
	int d1, d2, err = staging_dir_get(s, r->dir, &d1);

	if (err)
		return false;
	err = io_stat(s->o.store, d1, r->name, &from);
	staging_dir_put(s, r->dir);
	if (err || r->type == REC_RENAME)
		return err == -ENOENT && r->type == REC_RENAME;
	if (staging_dir_get(s, r->dir2, &d2))
		return false;
	err = io_stat(s->o.store, d2, r->name2, &to);
	staging_dir_put(s, r->dir2);
	return !err && from.st_ino == to.st_ino && from.st_dev == to.st_dev;
}

static int before_record(struct staging *s, struct looks *l, const struct pend *p)
{
	const struct rec *r = &p->r;
	bool names_file = r->type == REC_LINK || (r->type == REC_RENAME && !(r->flags & REC_DIR));
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;
	int kind, err = 0;

	if (r->flags & REC_ABSENT || p->shown || (p->again && names_file && is_made(s, r)))
		return 0;
	/* one that replaces nothing needs no look at the store */
	while (r->type == REC_SEAL && r->flags & REC_SHADOW && !err &&
	       (kind = rec_unpack(r->data, r->data_len, &pos, &name, &pair)) > 0)
		if (kind == 1)
			err = before(s, l, name.dir, name.name);
	if (r->type == REC_UNLINK || (r->type == REC_RENAME && !(r->flags & REC_DIR)))
		err = before(s, l, r->dir, r->name);
	if (!err && names_file)
		err = before(s, l, r->dir2, r->name2);
	return err;
}

int previous_keep(struct staging *s, const struct pend *first, unsigned n)
{
	struct looks l = {.n = 0};
	int err = 0;

	if (!s->o.previous || io_store_previous(s->o.store) < 0)
		return 0;
	for (const struct pend *p = first; !err && n; p = --n ? p->next : NULL)
		err = before_record(s, &l, p);
	return err;
}

/* ---- the end of it ---- */

uint64_t previous_commit_of(const struct staging *s, const struct pend *p)
{
	const struct rec *r = &p->r;
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;
	int kind;

	if (!s->o.previous || r->flags & REC_ABSENT)
		return 0;
	if (r->type == REC_ATTR && r->mask & REC_MTIME && !strcmp(r->name, s->o.previous))
		return r->dir;
	if (r->type == REC_LINK || (r->type == REC_RENAME && !(r->flags & (REC_SHADOW | REC_DIR))))
		return strcmp(r->name2, s->o.previous) ? 0 : r->dir2;
	while (r->type == REC_SEAL &&
	       (kind = rec_unpack(r->data, r->data_len, &pos, &name, &pair)) > 0)
		if (kind == 1 && !strcmp(name.name, s->o.previous))
			return name.dir;
	return 0;
}

static void drop_known(struct staging *s, const char *name)
{
	struct generation *g = s->drain.previous.list;

	while (g && strcmp(g->name, name))
		g = g->next;
	if (drop(s, name) || !g) /* if it failed: after the next start */
		return;
	LOCK_SCOPE(&s->lock);
	forget(s, g);
}

/* Removes what is kept of k's directory, but not what is kept while that has this .metadata, and
 * other hosts' as well. */
static void drop_others(struct staging *s, const struct previous_key *k)
{
	CLEANUP_DIR DIR *d = entries_of(io_open_list(s->o.store, io_store_previous(s->o.store)));
	struct previous_key v;

	for (struct dirent *e; (e = entries_next(d));)
		if (previous_parse(e->d_name, &v) && v.ino == k->ino && v.birth == k->birth &&
		    v.meta != k->meta)
			drop_known(s, e->d_name);
}

void previous_settle(struct staging *s, uint64_t dir, bool touched)
{
	struct previous_key k;
	int fd;

	if (io_store_previous(s->o.store) < 0 || staging_dir_get(s, dir, &fd))
		return;
	if (!key_of(s, fd, &k)) {
		k.meta = touched ? 0 : k.meta;
		drop_others(s, &k);
	}
	staging_dir_put(s, dir);
}

void previous_forget(struct staging *s, int dirfd, const char *name)
{
	struct previous_key k = {.meta = 0};
	struct stat st;

	if (atomic_load(&s->drain.previous.n) &&
	    !io_stat_born(s->o.store, dirfd, name, &st, &k.birth) && S_ISDIR(st.st_mode)) {
		k.ino = st.st_ino;
		drop_others(s, &k);
	}
}

bool previous_give_due(const struct staging *s)
{
	return s->drain.previous.give ||
	       (s->drain.previous.bytes && atomic_load(&s->reserve.state) == RESERVE_GIVEN);
}

void previous_give(struct staging *s)
{
	for (struct generation *g = s->drain.previous.list; g; g = g->next) {
		if (!g->bytes)
			continue;
		int err = clear(s, g->name);
		lose(s, g);
		tell_lost(s, g->name, err ? err : -ENOSPC);
	}
	LOCK_SCOPE(&s->lock);
	s->drain.previous.give = false;
	pthread_cond_broadcast(&s->done_cond);
}

/* ---- the start ---- */

/* "a%2Fb": opened component by component. Descriptor or -errno. */
static int open_path(struct staging *s, const char *at, size_t len)
{
	int fd = fcntl(io_store_root(s->o.store), F_DUPFD_CLOEXEC, 0);
	char name[LOSTFOUND_NAME];
	size_t n = 0;

	for (size_t i = 0; fd >= 0 && i <= len; i++) {
		bool slash = i + 2 < len && !strncmp(at + i, "%2F", 3);
		bool percent = i + 2 < len && !strncmp(at + i, "%25", 3);
		if (i < len && !slash && n + 1 < sizeof(name)) {
			name[n++] = at[i];
			i += percent ? 2 : 0;
			continue;
		}
		name[n] = 0;
		int below = n ? io_open_dir(s->o.store, fd, name) : fd;
		if (n)
			close(fd);
		fd = below;
		n = 0;
		i += slash ? 2 : 0;
	}
	return fd;
}

/* Was the new checkpoint durable before its predecessor was removed? */
static bool is_over(struct staging *s, const struct generation *g)
{
	CLEANUP_CLOSE int fd = open_path(s, g->name, g->key.path_len);
	struct previous_key k;

	return fd >= 0 && !key_of(s, fd, &k) && k.ino == g->key.ino && k.birth == g->key.birth &&
	       k.meta != g->key.meta;
}

void previous_load(struct staging *s)
{
	CLEANUP_DIR DIR *d =
		s->o.previous ? entries_of(io_open_list(s->o.store, io_store_previous(s->o.store)))
			      : NULL;
	struct previous_key k;

	for (struct dirent *e; (e = entries_next(d));)
		if (previous_parse(e->d_name, &k))
			load(s, e->d_name);
}

void previous_settle_all(struct staging *s)
{
	bool synced = false;

	for (struct generation *g = s->drain.previous.list, *next; g; g = next) {
		next = g->next;
		/* the last worker may have died between the change and its sync */
		if (is_over(s, g) && (synced || !sync_all(s))) {
			synced = true;
			drop_known(s, g->name);
		}
	}
}

/* ---- from outside ---- */

nlink_t previous_links(const struct staging *s, const struct stat *st)
{
	for (const struct generation *g = s->drain.previous.list; st->st_nlink > 1 && g;
	     g = g->next)
		for (size_t i = 0; i < g->n; i++)
			if (g->ino[i] == st->st_ino)
				return 1;
	return 0;
}

void previous_stats(const struct staging *s, struct staging_stats_previous *out)
{
	*out = (struct staging_stats_previous){.bytes = s->drain.previous.bytes};
	for (const struct generation *g = s->drain.previous.list; g; g = g->next) {
		out->lost += g->lost;
		out->kept += !g->lost;
		if (!g->lost && (!out->since || g->since < out->since))
			out->since = g->since;
		if (!out->path[0])
			snprintf(out->path, sizeof(out->path), "%.*s", (int)g->key.path_len,
				 g->name);
	}
}

void previous_close(struct staging *s)
{
	for (struct generation *g = s->drain.previous.list, *next; g; g = next) {
		next = g->next;
		generation_free(g);
	}
}

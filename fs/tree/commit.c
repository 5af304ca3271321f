/* SPDX-License-Identifier: MIT
 * Whether the store holds the files that a checkpoint's .metadata lists, all of one save. The
 * publisher asks before it publishes the .metadata (staging/drain/hold.c) if several nodes write to
 * one store: whether all are there, by one listing, then for their marks (save_tag.c), which say
 * their sizes, too. What has no mark is asked for its size. It asks once more just before the
 * .metadata gets its name.
 */
#include "fs/formats/formats.h"
#include "fs/tree/inside.h"
#include "fs/parser/parser.h"
#include "io/entries.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LISTS 8u /* kept; of more that wait at once the lists are read again */
#define AT_ONCE_MAX 1024u /* files that are asked for at once, of which one may be missing */
#define FEW 4u /* are asked for one by one, more by a listing */

/* The lists of names that wait, and which of the files on each were found so far. The
 * publisher's. */
static struct list {
	uint64_t seq, used;
	struct fmt_set *set;
	size_t at; /* the first that was not found when last asked */
	bool *found; /* of each file; NULL: not asked yet */
	bool counted; /* its save, on stable storage */
	bool marked; /* the .metadata itself is: */
	struct save_tag tag;
	struct other {
		bool any;
		size_t at; /* the file that was not of its save when last asked */
		uint64_t n, save; /* its save, and what it should be */
	} other;
	char damaged[200]; /* why it cannot be read; it waits until a person decides */
} lists[LISTS];

bool commit_is_name(const char *name)
{
	return !strcmp(name, COMMIT_NAME);
}

uint64_t commit_dir(struct fs *fs, uint64_t ino)
{
	for (unsigned b = 0; b < NODE_BUCKETS; b++)
		for (struct node *n = fs->tree.nodes[b]; n; n = n->hash_next)
			if (n->ino == ino && S_ISDIR(n->attr.mode) &&
			    (n->names || n == fs->tree.root))
				return n->id;
	return 0;
}

/* 0: l->set is the list; NULL: not a DCP .metadata, so there is nothing to wait for, or l->damaged
 * says why it cannot be read. Otherwise it is not known: the store did not answer, or the parser
 * does not run. */
static int read_list(struct fs *fs, int fd, struct list *l)
{
	struct fmt_source s;
	struct fmt_error e = {.at = FMT_NOWHERE};
	int err = fmt_file(fd, &s);

	if (err || !s.size)
		return err;
	l->set = fmt_set_new();
	err = l->set ? parser_files(fs, ".metadata", &s, l->set, &e) : -ENOMEM;
	if (!err)
		return 0;
	fmt_set_free(l->set);
	l->set = NULL;
	if (err == -EBADMSG || err == -E2BIG)
		snprintf(l->damaged, sizeof(l->damaged), "its list of files cannot be read: %.120s",
			 e.text);
	return err == -ENOMSG || l->damaged[0] ? 0 : err;
}

/* Takes the first component off path. False: there is none, or it is too long. */
static bool next_part(const char **path, char name[MAX_NAME + 1], bool *last)
{
	size_t len = strcspn(*path, "/");
	if (!len || len > MAX_NAME)
		return false;
	memcpy(name, *path, len);
	name[len] = 0;
	*path += len;
	*last = !**path;
	*path += !*last;
	return true;
}

/* True if this mount has the file: it is published in its turn, after the name that lists it. */
static bool is_ours(struct fs *fs, uint64_t dir, const char *path)
{
	char name[MAX_NAME + 1];
	bool last = false;
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, dir);
	while (n && S_ISDIR(n->attr.mode) && next_part(&path, name, &last)) {
		struct dentry *d = dentry_find(fs, n, name);
		n = d ? d->node : NULL;
		if (last)
			return n && S_ISREG(n->attr.mode) &&
			       (n->sf || node_dirty(fs, n) || dentry_dirty(fs, d));
	}
	return false;
}

/* Calls look for the file at path below dirfd, by its directory and name, if that is there. */
static void at_path(struct fs *fs, int dirfd, const char *path,
		    void (*look)(struct fs *fs, int dirfd, const char *name, void *ctx), void *ctx)
{
	char name[MAX_NAME + 1];
	bool last = false;
	int fd = -1;

	while (next_part(&path, name, &last)) {
		int at = fd >= 0 ? fd : dirfd, below = -1;
		if (last)
			look(fs, at, name, ctx);
		else
			below = io_open_dir(fs->store, at, name);
		if (fd >= 0)
			close(fd);
		fd = below;
		if (fd < 0)
			break;
	}
}

static void look_size(struct fs *fs, int dirfd, const char *name, void *ctx)
{
	struct stat st;

	if (!io_stat(fs->store, dirfd, name, &st) && S_ISREG(st.st_mode))
		*(int64_t *)ctx = st.st_size;
}

struct mark_text {
	int err; /* 0: it is there, or the store says that it is not (""); or as openat2(2) */
	const char *mark;
	char text[ASK_VALUE_MAX];
};

static void look_mark(struct fs *fs, int dirfd, const char *name, void *ctx)
{
	struct mark_text *t = ctx;
	ssize_t len = io_get_xattr(fs->store, dirfd, name, KEY_INO, t->text, sizeof(t->text) - 1);

	t->err = len < 0 && !xattr_is_absent(len) ? (int)len : 0;
	t->text[len < 0 ? 0 : len] = 0;
	t->mark = save_mark_in(t->text);
}

static void list_drop(struct list *l)
{
	fmt_set_free(l->set);
	free(l->found);
	*l = (struct list){.used = l->used};
}

/* The list of seq, or the one that was used least recently. */
static struct list *list_of(uint64_t seq)
{
	static uint64_t uses;
	struct list *l = &lists[0];

	for (unsigned i = 0; i < LISTS && l->seq != seq; i++)
		if (lists[i].seq == seq || lists[i].used < l->used)
			l = &lists[i];
	l->used = ++uses;
	return l;
}

/* ---- are they there? ---- */

struct names {
	bool read;
	char **v; /* sorted */
	size_t n, cap;
};

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_free(struct names *names)
{
	while (names->n)
		free(names->v[--names->n]);
	free(names->v);
}

static bool names_add(struct names *names, const char *name)
{
	if (names->n == names->cap) {
		size_t cap = names->cap ? 2 * names->cap : 64;
		char **more = realloc(names->v, cap * sizeof(*more));

		if (!more)
			return false;
		names->v = more;
		names->cap = cap;
	}
	names->v[names->n] = strdup(name);
	return names->v[names->n++];
}

/* The names in dirfd; if that fails, they are asked for one by one. */
static void names_read(struct fs *fs, int dirfd, struct names *names)
{
	CLEANUP_DIR DIR *d = entries_of(io_open_list(fs->store, dirfd));
	struct dirent *e;

	while ((e = entries_next(d)))
		if (!names_add(names, e->d_name)) {
			names->n--;
			return;
		}
	names->read = d && !errno;
	qsort(names->v, names->n, sizeof(*names->v), by_name);
}

struct sizes {
	struct fs *fs;
	const struct list *l;
	uint64_t dir;
	int dirfd;
	struct names names;
	size_t at; /* of this file, what its size was; -1: it is not there */
	int64_t size;
};

enum is_in { LISTED, NOT_LISTED, UNKNOWN };

static enum is_in is_listed(const struct sizes *z, const char *name)
{
	const struct names *all = &z->names;

	if (!all->read || strchr(name, '/'))
		return UNKNOWN;
	return all->n && bsearch(&name, all->v, all->n, sizeof(*all->v), by_name) ? LISTED
										  : NOT_LISTED;
}

/* -1: it is not there. */
static int64_t size_of(const struct sizes *z, size_t i)
{
	const char *name = z->l->set->file[i].name;
	int64_t size = -1;

	if (is_listed(z, name) != NOT_LISTED)
		at_path(z->fs, z->dirfd, name, look_size, &size);
	return size;
}

/* Its mark will say its size. */
static bool has_name(const struct sizes *z, size_t i)
{
	return z->l->marked && is_listed(z, z->l->set->file[i].name) == LISTED;
}

static void look_found(void *ctx, size_t i)
{
	struct sizes *z = ctx;
	const struct fmt_file *f = &z->l->set->file[i];

	if (z->l->found[i] || has_name(z, i)) {
		z->l->found[i] = true;
		return;
	}
	int64_t size = size_of(z, i);
	if (i == z->at)
		z->size = size;
	if ((size >= 0 && (uint64_t)size >= f->need) || is_ours(z->fs, z->dir, f->name))
		z->l->found[i] = true;
}

static void tell_absent(const struct fmt_file *f, int64_t size, char *what, size_t cap)
{
	if (size < 0)
		snprintf(what, cap, "%.160s is not in the store", f->name);
	else
		snprintf(what, cap, "%.100s has %lld of %llu bytes", f->name, (long long)size,
			 (unsigned long long)f->need);
}

/* First the one that was missing is asked for, alone: so while one is missing, each question is one
 * call. Then for the rest: by a listing; more and more at once. */
static bool find_all(struct sizes *z, struct list *l, char *what, size_t cap)
{
	size_t n = l->set->n_files, end;

	for (size_t step = 1; l->at < n; step = step < AT_ONCE_MAX ? 2 * step : step) {
		if (step == 2 && n - l->at > FEW)
			names_read(z->fs, z->dirfd, &z->names);
		end = n - l->at < step ? n : l->at + step;
		z->at = l->at;
		at_once(l->at, end, look_found, z);
		while (l->at < end && l->found[l->at])
			l->at++;
		if (l->at < end) {
			tell_absent(&l->set->file[l->at],
				    l->at == z->at ? z->size : size_of(z, l->at), what, cap);
			return false;
		}
	}
	return true;
}

static bool are_there(struct fs *fs, struct list *l, uint64_t dir, int dirfd, char *what,
		      size_t cap)
{
	struct sizes z = {.fs = fs, .l = l, .dir = dir, .dirfd = dirfd};

	if (!l->set)
		return true;
	if (!l->found && !(l->found = calloc(l->set->n_files + 1, sizeof(*l->found)))) {
		snprintf(what, cap, "there is no memory to look for its shards");
		return false;
	}
	bool all = find_all(&z, l, what, cap);
	names_free(&z.names);
	return all;
}

/* ---- of one save ---- */

static struct save_mark mark_of(struct fs *fs, const struct list *l, uint64_t dir, int dirfd,
				size_t i)
{
	const char *name = l->set->file[i].name;
	struct mark_text t = {.err = -ENOENT};
	struct save_mark m = {.kind = SAVE_COMES_LATER, .size = INT64_MAX};
	struct save_tag tag;

	if (is_ours(fs, dir, name))
		return m;
	at_path(fs, dirfd, name, look_mark, &t);
	m.kind = t.err && t.err != -ENOENT ? SAVE_UNREADABLE : SAVE_UNMARKED;
	m.size = -1;
	if (t.err)
		return m;
	bool marked = save_tag_parse(t.mark, &tag);
	if (marked)
		m.size = (int64_t)tag.size;
	if (!m.size || !marked)
		at_path(fs, dirfd, name, look_size, &m.size);
	if (!marked || strcmp(tag.key, l->tag.key))
		return m; /* or of another directory: it was moved here */
	m.kind = tag.stale ? SAVE_STALE : SAVE_MARKED;
	m.n = tag.n;
	m.own = !strcmp(tag.host, io_store_host(fs->store));
	memcpy(m.host, tag.host, sizeof(m.host));
	return m;
}

static enum staging_missing tell_other(struct list *l, size_t i, const struct save_mark *m,
				       uint64_t save, char *what, size_t cap)
{
	bool later = m->n > save;

	l->other = (struct other){.any = true, .at = i, .n = m->n, .save = save};
	snprintf(what, cap, "%.100s is of %s save, written by %.72s", l->set->file[i].name,
		 later ? "a later" : "an earlier", m->host);
	return later ? STAGING_OVERTAKEN : STAGING_MISSING;
}

/* Has the file that was wrong still the same mark? Then no other is asked about. */
static bool is_same_other(struct fs *fs, const struct list *l, uint64_t dir, int dirfd,
			  struct save_mark *m)
{
	if (!l->other.any)
		return false;
	*m = mark_of(fs, l, dir, dirfd, l->other.at);
	return m->kind == SAVE_MARKED && m->n == l->other.n;
}

/* True: there is no answer for this file yet. */
static bool tell_no_mark(const char *name, const struct save_mark *m, char *what, size_t cap)
{
	if (m->kind == SAVE_UNREADABLE)
		snprintf(what, cap, "which save %.100s is of could not be read", name);
	else if (m->kind == SAVE_STALE)
		snprintf(what, cap, "%.100s is written again by %.72s", name, m->host);
	return m->kind == SAVE_UNREADABLE || m->kind == SAVE_STALE;
}

/* It is asked for alone from now on. */
static bool is_short(struct list *l, size_t i, int64_t size, char *what, size_t cap)
{
	const struct fmt_file *f = &l->set->file[i];

	if (size >= 0 && (uint64_t)size >= f->need)
		return false;
	l->found[i] = false;
	l->at = i;
	tell_absent(f, size, what, cap);
	return true;
}

static enum staging_missing compare(struct list *l, const struct save_mark *m, char *what,
				    size_t cap)
{
	uint64_t save;
	size_t n = l->set->n_files, i = save_odd_one(m, n, l->tag.n, &save);

	l->other.any = false;
	for (size_t k = 0; k < n; k++)
		if (tell_no_mark(l->set->file[k].name, &m[k], what, cap))
			return STAGING_MISSING;
	for (size_t k = 0; k < n; k++)
		if (is_short(l, k, m[k].size, what, cap))
			return STAGING_MISSING;
	if (i < n)
		return tell_other(l, i, &m[i], save, what, cap);
	if (save <= l->tag.n)
		return STAGING_WHOLE;
	snprintf(what, cap, "this host has saved into its directory again");
	return STAGING_OVERTAKEN;
}

/* Once for each .metadata. */
static void tell_sizes_only(struct fs *fs, uint64_t seq, uint64_t dir, const char *of)
{
	static uint64_t told;
	char text[600], path[200] = "";
	struct node *n;

	if (told == seq)
		return;
	told = seq;
	pthread_mutex_lock(&fs->tree.lock);
	if ((n = node_find(fs, dir)))
		node_path(fs, n, path, sizeof(path));
	pthread_mutex_unlock(&fs->tree.lock);
	snprintf(text, sizeof(text),
		 LEVEL_WARNING "which save %.160s is of is not known (%.180s/.metadata lists it): "
			       "only sizes were compared",
		 of, path);
	fs_notice(fs, text);
}

static void tell_unmarked(struct fs *fs, const struct list *l, const struct save_mark *m,
			  uint64_t seq, uint64_t dir)
{
	for (size_t i = 0; i < l->set->n_files; i++)
		if (m[i].kind == SAVE_UNMARKED && save_has_tag(l->set->file[i].name)) {
			tell_sizes_only(fs, seq, dir, l->set->file[i].name);
			return;
		}
}

struct marks {
	struct fs *fs;
	const struct list *l;
	uint64_t dir;
	int dirfd;
	struct save_mark *m;
};

static void look_at_mark(void *ctx, size_t i)
{
	const struct marks *k = ctx;

	k->m[i] = mark_of(k->fs, k->l, k->dir, k->dirfd, i);
}

static enum staging_missing are_of_one_save(struct fs *fs, struct list *l, uint64_t dir, int dirfd,
					    char *what, size_t cap)
{
	struct save_mark other;

	if (is_same_other(fs, l, dir, dirfd, &other))
		return tell_other(l, l->other.at, &other, l->other.save, what, cap);
	CLEANUP_FREE struct save_mark *m = calloc(l->set->n_files + 1, sizeof(*m));
	if (!m) {
		snprintf(what, cap, "there is no memory to compare its shards");
		return STAGING_MISSING;
	}
	struct marks k = {.fs = fs, .l = l, .dir = dir, .dirfd = dirfd, .m = m};
	at_once(0, l->set->n_files, look_at_mark, &k);
	enum staging_missing missing = compare(l, m, what, cap);
	if (!missing)
		tell_unmarked(fs, l, m, l->seq, dir);
	return missing;
}

/* Has the store a .metadata of a later save? */
static bool is_replaced(struct fs *fs, const struct list *l, int dirfd)
{
	struct mark_text t;
	struct save_tag tag;

	look_mark(fs, dirfd, COMMIT_NAME, &t);
	return !t.err && save_tag_parse(t.mark, &tag) && !strcmp(tag.key, l->tag.key) &&
	       tag.n > l->tag.n && strcmp(tag.host, io_store_host(fs->store));
}

/* The next save has begun when this one is in the store, whatever happens to hosts and power.
 * Before the last look at the marks, since it takes long. */
static void count_durably(struct fs *fs, struct list *l)
{
	const struct save_tag *t = &l->tag;

	if (l->counted)
		return;
	l->counted = true;
	int err = io_saves_raise(fs->store, t->key, t->n + 1);
	if (!err)
		err = io_saves_sync(fs->store, t->key);
	if (err)
		save_not_counted(fs, COMMIT_NAME, err);
}

static bool read_all(struct fs *fs, struct list *l, int fd)
{
	struct mark_text t;
	int others = ask_others(fs);

	if (others <= 0)
		return !others;
	look_mark(fs, fd, NULL, &t);
	if (t.err || read_list(fs, fd, l))
		return false;
	l->marked = save_tag_parse(t.mark, &l->tag);
	return true;
}

enum staging_missing commit_missing(void *ctx, uint64_t seq, uint64_t dir, int dirfd, int fd,
				    char *what, size_t cap)
{
	struct fs *fs = ctx;
	enum staging_missing missing = STAGING_WHOLE;

	struct list *l = list_of(seq);
	if (!atomic_load(&fs->hosts.others) && (l->set || l->damaged[0]))
		list_drop(l); /* there were other hosts when it was read */
	if (l->seq != seq && fd < 0)
		return STAGING_UNREAD;
	if (l->seq != seq) {
		list_drop(l);
		if (!read_all(fs, l, fd)) {
			snprintf(what, cap, "what it lists could not be read");
			return STAGING_MISSING;
		}
		l->seq = seq;
	}
	if (l->damaged[0]) {
		snprintf(what, cap, "%s", l->damaged);
		return STAGING_MISSING;
	}
	if (!are_there(fs, l, dir, dirfd, what, cap))
		return STAGING_MISSING;
	if (l->set && l->marked) {
		count_durably(fs, l);
		missing = are_of_one_save(fs, l, dir, dirfd, what, cap);
	}
	if (missing == STAGING_OVERTAKEN && is_replaced(fs, l, dirfd))
		missing = STAGING_REPLACED;
	if (missing)
		return missing;
	if (l->set && !l->marked)
		tell_sizes_only(fs, seq, dir, COMMIT_NAME);
	list_drop(l);
	return STAGING_WHOLE;
}

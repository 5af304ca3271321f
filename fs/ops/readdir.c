/* SPDX-License-Identifier: MIT
 * Directory listings: the store's, overlaid by the live tree. A listing is a snapshot, sorted by a
 * hash of the name; the offset is that hash, so that a new worker (or rewinddir) continues at the
 * same place.
 */
#include "fs/ops/inside.h"
#include "io/number.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 64u /* for a directory that changes all the time */

struct entry {
	uint64_t hash; /* also the offset; 1 and 2 are . and .. */
	uint64_t ino;
	mode_t mode; /* type bits */
	char *name;
};

struct listing {
	struct listing *next;
	uint64_t fh;
	struct entry *e;
	size_t n, cap;
	bool built, sorted;
};

static pthread_mutex_t listings_lock = RANKED_MUTEX(RANK_LISTINGS);
static struct listing *listings[1024];

static struct listing *listing_get(uint64_t fh, bool create)
{
	pthread_mutex_lock(&listings_lock);
	struct listing *l = listings[fh % 1024];
	while (l && l->fh != fh)
		l = l->next;
	if (!l && create && (l = calloc(1, sizeof(*l)))) {
		l->fh = fh;
		l->next = listings[fh % 1024];
		listings[fh % 1024] = l;
	}
	pthread_mutex_unlock(&listings_lock);
	return l;
}

static void listing_clear(struct listing *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->e[i].name);
	free(l->e);
	l->e = NULL;
	l->n = l->cap = 0;
	l->built = l->sorted = false;
}

static uint64_t hash_name(const char *name)
{
	uint64_t h = hash_text(0, name) >> 1; /* loff_t is signed */
	return h < 16 ? h + 16 : h;
}

static int add(struct listing *l, const char *name, uint64_t ino, mode_t mode)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 64;
		void *p = realloc(l->e, cap * sizeof(*l->e));
		if (!p)
			return -ENOMEM;
		l->e = p;
		l->cap = cap;
	}
	char *copy = strdup(name);
	if (!copy)
		return -ENOMEM;
	l->e[l->n++] =
		(struct entry){.hash = hash_name(name), .ino = ino, .mode = mode, .name = copy};
	return 0;
}

static int by_hash(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	return x->hash < y->hash ? -1 : x->hash > y->hash ? 1 : strcmp(x->name, y->name);
}

/* ---- merging the store's names with the tree's ----
 *
 * The listing was read without the lock. The store is asked again about each name that changed here
 * since. */

/* Whether v, a name in the store that the live tree does not have, is listed. */
static bool is_stores(struct fs *fs, struct node *dir, struct listed_name *v)
{
	struct dentry *d = dentry_find(fs, dir, v->name);
	v->doubt = false;
	/* a name removed here after the store was read is gone; asking the store again after each
	 * published removal would never end in a directory that is being emptied */
	if (name_is_control(dir->id, v->name) ||
	    (d && (d->node || dentry_dirty(fs, d) || fs_place_of(fs, d->seq) > v->applied)))
		return false;
	v->doubt = name_changed(fs, dir->id, v->name) > v->asked;
	return !v->gone;
}

/* Whether d, a name of the live tree, still exists; other programs may have removed it from the
 * store. */
static bool is_there(struct fs *fs, const struct dentry *d, const struct listed *s)
{
	const struct listed_name *v = listed_find(s, d->name);
	if (dentry_dirty(fs, d) || !s->read || (v && !v->gone))
		return true;
	return fs_place_of(fs, d->seq) > (v ? v->applied : s->applied) ||
	       name_changed(fs, d->dir->id, d->name) > (v ? v->asked : s->asked);
}

static bool in_doubt(struct fs *fs, struct node *dir, struct listed *s)
{
	bool any = false;
	for (size_t i = 0; i < s->n; i++) {
		is_stores(fs, dir, &s->v[i]);
		any |= s->v[i].doubt;
	}
	return any;
}

/* The store's names that go with the tree's. 0, even if the directory is not in the store;
 * ASK_AGAIN. */
static int store_names(struct fs *fs, struct node *dir, struct listed **out)
{
	bool goes_with = false;
	struct listed *s;
	int err = ask_list(fs, dir, &s);

	while ((!err || (err != ASK_AGAIN && name_is_absent(err))) && s->rounds < ROUNDS_MAX) {
		/* it was made after the listing and dropped from the tree since */
		if (fs_place_of(fs, dir->seq.forgot) > s->applied)
			s->read = false;
		else if ((goes_with = !in_doubt(fs, dir, s)))
			break;
		s->rounds++;
		err = ask_list_again(fs, dir);
	}
	*out = s;
	if (!err && s->read && goes_with)
		tree_listed(fs, dir, s);
	return err == ASK_AGAIN || !name_is_absent(err) ? err : 0;
}

/* Lock held. 0, ASK_AGAIN, the store's error. */
static int build(struct fs *fs, struct node *dir, struct listing *l)
{
	struct listed *s;
	int err = store_names(fs, dir, &s);

	listing_clear(l);
	for (size_t i = 0; !err && i < s->n; i++)
		if (is_stores(fs, dir, &s->v[i]))
			err = add(l, s->v[i].name, s->v[i].ino, s->v[i].type);
	for (struct dentry *d = dir->children; !err && d; d = d->sib_next)
		if (d->node && is_there(fs, d, s))
			err = add(l, d->name, d->node->ino, d->node->attr.mode);
	l->built = !err;
	return err;
}

static void sort(struct listing *l)
{
	if (l->n)
		qsort(l->e, l->n, sizeof(*l->e), by_hash);
}

int tree_dir_empty(struct fs *fs, struct node *dir)
{
	struct listed *s;

	for (struct dentry *d = dir->children; d; d = d->sib_next)
		if (d->node && dentry_dirty(fs, d))
			return -ENOTEMPTY;
	int err = store_names(fs, dir, &s);
	for (size_t i = 0; !err && i < s->n; i++) {
		struct dentry *d = dentry_find(fs, dir, s->v[i].name);
		if (is_stores(fs, dir, &s->v[i]) || (d && d->node && !s->v[i].gone))
			err = -ENOTEMPTY;
	}
	return err;
}

int dir_names(struct fs *fs, struct node *dir, int (*fn)(void *arg, const char *name), void *arg)
{
	struct listing l = {0};
	int err = build(fs, dir, &l);
	sort(&l);
	for (size_t i = 0; !err && i < l.n; i++)
		err = fn(arg, l.e[i].name);
	listing_clear(&l);
	return err;
}

void op_opendir(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	fi->fh = staging_new_id(fs->s);
	fi->cache_readdir = 0;
	(void)id;
	fuse_reply_open(req, fi);
}

void op_releasedir(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	(void)id;
	pthread_mutex_lock(&listings_lock);
	struct listing **pp = &listings[fi->fh % 1024], *l;
	while ((l = *pp) && l->fh != fi->fh)
		pp = &l->next;
	if (l)
		*pp = l->next;
	pthread_mutex_unlock(&listings_lock);
	if (l) {
		listing_clear(l);
		free(l);
	}
	fuse_reply_err(req, 0);
}

struct out {
	fuse_req_t req;
	char *buf;
	size_t size, used;
	bool plus;
};

static bool put(struct out *o, const char *name, struct node *n, const struct stat *st,
		uint64_t off)
{
	size_t left = o->size - o->used, need;
	if (!o->plus) {
		need = fuse_add_direntry(o->req, o->buf + o->used, left, name, st, (off_t)off);
	} else {
		struct fuse_entry_param e = {.attr = *st};
		if (n)
			fill_entry(n, st, &e);
		need = fuse_add_direntry_plus(o->req, o->buf + o->used, left, name, &e, (off_t)off);
	}
	if (need > left)
		return false;
	o->used += need;
	return true;
}

/* The inode number that stat will show for a name that the live tree does not know; not the
 * store's. */
static uint64_t shown_ino(struct fs *fs, uint64_t dir, const struct entry *e)
{
	uint64_t ino = e->ino;
	char text[ASK_VALUE_MAX];
	int fd;
	{
		TREE_SCOPE(fs);
		struct node *n = node_find(fs, dir);
		if (!n || dentry_find(fs, n, e->name))
			return ino;
	}
	if (staging_dir_get(fs->s, dir, &fd) == 0) {
		ssize_t len = io_get_xattr(fs->store, fd, e->name, KEY_INO, text, sizeof(text) - 1);
		staging_dir_put(fs->s, dir);
		if (len > 0) {
			text[len] = 0;
			ino = number_first(text); /* a mark may follow */
		}
	}
	return ino;
}

/* Lock held. 0: *fits tells whether it did. ASK_AGAIN. */
static int try_put_known(struct fs *fs, struct out *o, uint64_t id, const struct entry *e,
			 bool *fits)
{
	struct stat st = {.st_ino = e->ino, .st_mode = e->mode};
	struct node *n = NULL, *dir = node_find(fs, id);
	int err = dir ? tree_lookup(fs, dir, e->name, &n, NULL) : -ENOENT;

	if (!err)
		err = node_stat(fs, n, &st);
	if (err == ASK_AGAIN)
		return err;
	if (name_is_absent(err))
		return 0; /* removed meanwhile */
	if (err)
		n = NULL; /* list the name alone: a lookup will return the error */
	*fits = put(o, e->name, n, &st, e->hash);
	if (n && *fits)
		n->nlookup++;
	return 0;
}

static bool put_entry(struct fs *fs, struct out *o, uint64_t dir, const struct entry *e)
{
	bool fits = true;
	int err;

	if (!o->plus) {
		const struct stat st = {.st_ino = shown_ino(fs, dir, e), .st_mode = e->mode};
		return put(o, e->name, NULL, &st, e->hash);
	}
	ask_begin();
	do {
		TREE_SCOPE(fs);
		err = try_put_known(fs, o, dir, e, &fits);
	} while (ask_store(fs, err));
	return fits;
}

/* *dot: attributes for "." and "..". */
static int open_listing(struct fs *fs, uint64_t id, struct listing *l, bool anew, struct stat *dot)
{
	int err;

	ask_begin();
	do {
		TREE_SCOPE(fs);
		struct node *dir = node_find(fs, id);
		*dot = (struct stat){.st_ino = dir ? dir->ino : 0, .st_mode = S_IFDIR};
		err = !dir ? -ESTALE : anew || !l->built ? build(fs, dir, l) : 0;
	} while (ask_store(fs, err));
	if (!l->sorted)
		sort(l);
	l->sorted = true;
	return err;
}

static void list(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, struct fuse_file_info *fi,
		 bool plus)
{
	struct fs *fs = req_fs(req);

	session_may_block(fs);
	struct out o = {.req = req, .buf = malloc(size), .size = size, .plus = plus};
	struct listing *l = listing_get(fi->fh, true);
	if (!o.buf || !l) {
		free(o.buf);
		fuse_reply_err(req, ENOMEM);
		return;
	}
	struct stat dot;
	int err = open_listing(fs, id, l, off == 0, &dot);
	bool more = !err;
	if (more && off < 1)
		more = put(&o, ".", NULL, &dot, 1);
	if (more && off < 2)
		more = put(&o, "..", NULL, &dot, 2);
	size_t lo = 0, hi = err ? 0 : l->n;
	while (lo < hi) { /* first entry past off */
		size_t mid = (lo + hi) / 2;
		if (l->e[mid].hash <= (uint64_t)off)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (size_t i = lo; more && i < l->n; i++)
		more = put_entry(fs, &o, id, &l->e[i]);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_buf(req, o.buf, o.used);
	free(o.buf);
}

void op_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, struct fuse_file_info *fi)
{
	list(req, id, size, off, fi, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t id, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	list(req, id, size, off, fi, true);
}

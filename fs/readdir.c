/* SPDX-License-Identifier: MIT
 * Directory listings: the store's, overlaid by the live tree. A listing is a
 * snapshot, sorted by a hash of the name; the offset is that hash, so that a new
 * worker (or rewinddir) goes on at the same place. */
#include "fs/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct entry {
	uint64_t hash;		/* also the offset; 1 and 2 are . and .. */
	uint64_t ino;
	mode_t mode;		/* type bits */
	char *name;
};

struct listing {
	struct listing *next;
	uint64_t fh;
	struct entry *e;
	size_t n, cap;
	bool built;
};

static pthread_mutex_t listings_lock = PTHREAD_MUTEX_INITIALIZER;
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
	l->built = false;
}

static uint64_t hash_name(const char *name)
{
	uint64_t h = hash_bytes(HASH_SEED, name, strlen(name));
	h ^= h >> 32;
	h = (h * 0xd6e8feb86659fd93ull) >> 1;	/* loff_t is signed */
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
	l->e[l->n++] = (struct entry){.hash = hash_name(name), .ino = ino, .mode = mode, .name = copy};
	return 0;
}

static int by_hash(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	return x->hash < y->hash ? -1 : x->hash > y->hash ? 1 : strcmp(x->name, y->name);
}

static int add_store_names(struct fs *fs, struct node *dir, struct listing *l, int lfd)
{
	DIR *list = fdopendir(lfd);
	int rc = 0;
	if (!list) {
		close(lfd);
		return -ENOMEM;
	}
	for (struct dirent *e; !rc && (e = readdir(list));) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || name_is_control(dir->id, e->d_name))
			continue;
		struct dentry *d = dentry_find(fs, dir, e->d_name);
		if (d && (d->node || dentry_dirty(fs, d)))
			continue;	/* the live tree knows better */
		struct stat st;
		if (d && fstatat(dirfd(list), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
			continue;	/* its removal was published since the listing was read */
		rc = add(l, e->d_name, e->d_ino, DTTOIF(e->d_type));
	}
	closedir(list);
	return rc;
}

/* Lock held. Reading a large directory of the store takes milliseconds; a listing
 * that mixes two moments would be worse. */
static int build(struct fs *fs, struct node *dir, struct listing *l)
{
	int fd, rc = 0;

	listing_clear(l);
	if (staging_dir_get(fs->s, dir->id, &fd) == 0) {
		int lfd = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		rc = lfd < 0 ? -errno : add_store_names(fs, dir, l, lfd);
		/* clean names may have been removed from the store by others */
		for (struct dentry *d = dir->children; !rc && d; d = d->sib_next) {
			struct stat st;
			if (!d->node)
				continue;
			if (!dentry_dirty(fs, d) && io_stat(fs->store, fd, d->name, &st) == -ENOENT)
				continue;
			rc = add(l, d->name, d->node->ino, d->node->mode);
		}
		staging_dir_put(fs->s, dir->id);
	} else {
		for (struct dentry *d = dir->children; !rc && d; d = d->sib_next)
			if (d->node)
				rc = add(l, d->name, d->node->ino, d->node->mode);
	}
	if (!rc && l->n)
		qsort(l->e, l->n, sizeof(*l->e), by_hash);
	l->built = !rc;
	return rc;
}

int dir_names(struct fs *fs, struct node *dir, int (*fn)(void *arg, const char *name), void *arg)
{
	struct listing l = {0};
	int rc = build(fs, dir, &l);
	for (size_t i = 0; !rc && i < l.n; i++)
		rc = fn(arg, l.e[i].name);
	listing_clear(&l);
	return rc;
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

static bool put(struct fs *fs, struct out *o, const char *name, struct node *n, const struct stat *st, uint64_t off)
{
	size_t left = o->size - o->used, need;
	if (!o->plus) {
		need = fuse_add_direntry(o->req, o->buf + o->used, left, name, st, (off_t)off);
	} else {
		struct fuse_entry_param e = {.attr = *st};
		if (n)
			fill_entry(fs, n, st, &e);
		need = fuse_add_direntry_plus(o->req, o->buf + o->used, left, name, &e, (off_t)off);
	}
	if (need > left)
		return false;
	o->used += need;
	return true;
}

/* Lock held. */
static bool put_entry(struct fs *fs, struct out *o, struct node *dir, const struct entry *e)
{
	struct stat st = {.st_ino = e->ino, .st_mode = e->mode};
	struct node *n = NULL;

	if (!o->plus && !dentry_find(fs, dir, e->name)) {
		/* the number that stat will show, not the store's */
		char text[24];
		int fd;
		if (staging_dir_get(fs->s, dir->id, &fd) == 0) {
			ssize_t len = io_get_xattr(fs->store, fd, e->name, "user.cairn.ino", text, sizeof(text) - 1);
			staging_dir_put(fs->s, dir->id);
			if (len > 0) {
				text[len] = 0;
				st.st_ino = strtoull(text, NULL, 10);
			}
		}
	}
	if (o->plus) {
		if (tree_lookup(fs, dir, e->name, &n, NULL))
			return true;	/* gone meanwhile */
		node_stat(fs, n, &st);
	}
	if (!put(fs, o, e->name, n, &st, e->hash))
		return false;
	if (n)
		n->nlookup++;
	return true;
}

static void list(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, struct fuse_file_info *fi, bool plus)
{
	struct fs *fs = req_fs(req);

	if (is_control(id)) {
		control_readdir(req, id, size, off, plus);
		return;
	}
	session_may_block(fs);
	struct out o = {.req = req, .buf = malloc(size), .size = size, .plus = plus};
	struct listing *l = listing_get(fi->fh, true);
	if (!o.buf || !l) {
		free(o.buf);
		fuse_reply_err(req, ENOMEM);
		return;
	}
	pthread_mutex_lock(&fs->lock);
	struct node *dir = node_find(fs, id);
	int rc = dir ? 0 : -ESTALE;
	if (!rc && (off == 0 || !l->built))
		rc = build(fs, dir, l);
	bool more = !rc;
	struct stat dot = {.st_ino = dir ? dir->ino : 0, .st_mode = S_IFDIR};
	if (more && off < 1)
		more = put(fs, &o, ".", NULL, &dot, 1);
	if (more && off < 2)
		more = put(fs, &o, "..", NULL, &dot, 2);
	size_t lo = 0, hi = rc ? 0 : l->n;
	while (lo < hi) {	/* first entry past off */
		size_t mid = (lo + hi) / 2;
		if (l->e[mid].hash <= (uint64_t)off)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (size_t i = lo; more && i < l->n; i++)
		more = put_entry(fs, &o, dir, &l->e[i]);
	pthread_mutex_unlock(&fs->lock);
	if (rc)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_buf(req, o.buf, o.used);
	free(o.buf);
}

void op_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, struct fuse_file_info *fi)
{
	list(req, id, size, off, fi, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, struct fuse_file_info *fi)
{
	list(req, id, size, off, fi, true);
}

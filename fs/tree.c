/* SPDX-License-Identifier: MIT
 * The live tree: nodes learned lazily from the store, overlaid by what is not yet
 * published. A clean name is checked against the store at each lookup, because
 * other nodes of a cluster publish into it too. Everything here wants fs->lock. */
#include "fs/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ABSENT_NS 100000000u
#define GC_STEP 4096u		/* some 2 ms with the lock held */

/* ---- tables ---- */

static unsigned id_bucket(uint64_t id)
{
	return (unsigned)((id * 0x9e3779b97f4a7c15ull) >> 48);
}

static unsigned name_bucket(uint64_t dir, const char *name)
{
	uint64_t h = hash_bytes(HASH_SEED ^ dir * 0x9e3779b97f4a7c15ull, name, strlen(name));
	return (unsigned)((h ^ h >> 29) % NODE_BUCKETS);
}

struct node *node_find(struct fs *fs, uint64_t id)
{
	struct node *n = fs->nodes[id_bucket(id)];
	while (n && n->id != id)
		n = n->hash_next;
	return n;
}

struct node *node_current(struct fs *fs, uint64_t id)
{
	struct node *n = node_find(fs, id), *next;
	while (n && n->fork_to && (next = node_find(fs, n->fork_to)))
		n = next;
	return n;
}

nlink_t node_links(const struct node *n)
{
	nlink_t links = n->unknown;
	if (S_ISDIR(n->mode))
		return n->nlink;
	for (struct dentry *d = n->names; d; d = d->name_next)
		links++;
	return links;
}

static void count_unknown(struct node *n, nlink_t in_store)
{
	n->unknown = 0;
	nlink_t known = node_links(n);
	n->unknown = in_store > known ? in_store - known : 0;
}

struct node *node_new(struct fs *fs, uint64_t id, uint64_t ino, mode_t mode)
{
	struct node *n = calloc(1, sizeof(*n));
	if (!n)
		return NULL;
	n->id = id;
	n->ino = ino;
	n->mode = mode;
	n->nlink = S_ISDIR(mode) ? 2 : 1;
	n->kept_fd = -1;
	n->hash_next = fs->nodes[id_bucket(id)];
	fs->nodes[id_bucket(id)] = n;
	fs->n_nodes++;
	return n;
}

struct dentry *dentry_find(struct fs *fs, struct node *dir, const char *name)
{
	struct dentry *d = fs->dentries[name_bucket(dir->id, name)];
	while (d && (d->dir != dir || strcmp(d->name, name)))
		d = d->hash_next;
	return d;
}

static void dentry_unname(struct dentry *d)
{
	if (!d->node)
		return;
	struct dentry **pp = &d->node->names;
	while (*pp && *pp != d)
		pp = &(*pp)->name_next;
	if (*pp)
		*pp = d->name_next;
	d->node = NULL;
	d->name_next = NULL;
}

static void dentry_name(struct dentry *d, struct node *n)
{
	dentry_unname(d);
	d->node = n;
	if (!n)
		return;
	d->name_next = n->names;
	n->names = d;
}

struct dentry *dentry_set(struct fs *fs, struct node *dir, const char *name, struct node *n)
{
	struct dentry *d = dentry_find(fs, dir, name);
	if (!d) {
		d = calloc(1, sizeof(*d) + strlen(name) + 1);
		if (!d)
			return NULL;
		strcpy(d->name, name);
		d->dir = dir;
		unsigned b = name_bucket(dir->id, name);
		d->hash_next = fs->dentries[b];
		fs->dentries[b] = d;
		d->sib_next = dir->children;
		if (dir->children)
			dir->children->sib_prev = d;
		dir->children = d;
	}
	dentry_name(d, n);
	return d;
}

static void white_unlist(struct fs *fs, struct dentry *d)
{
	if (!d->white)
		return;
	*(d->white_prev ? &d->white_prev->white_next : &fs->whites) = d->white_next;
	*(d->white_next ? &d->white_next->white_prev : &fs->whites_last) = d->white_prev;
	d->white_prev = d->white_next = NULL;
	d->white = false;
}

static void white_list(struct fs *fs, struct dentry *d)
{
	white_unlist(fs, d);
	d->white_prev = fs->whites_last;
	*(fs->whites_last ? &fs->whites_last->white_next : &fs->whites) = d;
	fs->whites_last = d;
	d->white = true;
}

void dentry_remove(struct fs *fs, struct dentry *d)
{
	white_unlist(fs, d);
	struct node *dir = d->dir, *n = d->node;
	struct dentry **pp = &fs->dentries[name_bucket(dir->id, d->name)];
	while (*pp != d)
		pp = &(*pp)->hash_next;
	*pp = d->hash_next;
	*(d->sib_prev ? &d->sib_prev->sib_next : &dir->children) = d->sib_next;
	if (d->sib_next)
		d->sib_next->sib_prev = d->sib_prev;
	dentry_unname(d);
	free(d);
	if (n && n->names && !n->names->name_next)
		node_release(fs, n);
	if (!dir->children && dir->nlookup == 0)
		node_release(fs, dir);
}

void dentry_whiteout(struct fs *fs, struct dentry *d, uint64_t seq)
{
	dentry_name(d, NULL);
	d->seq = seq;
	d->store_has = d->sealed = false;
	white_list(fs, d);
}

/* ---- clean or dirty ---- */

bool node_dirty(struct fs *fs, const struct node *n)
{
	if (n->busy || n->writers || n->dirty_seq > fs_applied(fs))
		return true;
	if (!n->sf)
		return n->born_seq > fs_applied(fs);
	struct staged_info i;
	staged_get_state(n->sf, &i);
	return i.state != STAGED_DURABLE && i.state != STAGED_EVICTED;
}

bool dentry_dirty(struct fs *fs, const struct dentry *d)
{
	return d->seq > fs_applied(fs) || (d->node && node_dirty(fs, d->node));
}

/* ---- life of a node ---- */

static void node_free(struct fs *fs, struct node *n)
{
	n->zombie = true;	/* dentry_remove is not to release it */
	while (n->names)
		dentry_remove(fs, n->names);
	struct node **pp = &fs->nodes[id_bucket(n->id)];
	while (*pp != n)
		pp = &(*pp)->hash_next;
	*pp = n->hash_next;
	if (n->sino) {
		pp = &fs->by_sino[n->sino % 4096];
		while (*pp && *pp != n)
			pp = &(*pp)->sino_next;
		if (*pp)
			*pp = n->sino_next;
	}
	for (struct place *p = n->places, *next; p; p = next) {
		next = p->next;
		free(p);
	}
	for (struct xattr *x = n->xattrs, *next; x; x = next) {
		next = x->next;
		free(x->key);
		free(x);
	}
	if (n->sf)
		staged_unref(n->sf);
	if (n->kept_fd >= 0)
		store_fd_close(fs, n->kept_fd);
	if (fs->s && S_ISDIR(n->mode))
		staging_dir_forget(fs->s, n->id);
	if (fs->s) {
		struct rec r = rec_new(REC_FORGET);
		r.unique = 0;
		r.node = n->id;
		staging_log(fs->s, &r);	/* lost: the node is merely known a little longer */
	}
	free(n->target);
	free(n->over);
	free(n);
	fs->n_nodes--;
}

/* A new version by one name is one by all of them; which these are the store cannot say. */
static bool several_names(const struct node *n)
{
	return !S_ISDIR(n->mode) && n->names && n->names->name_next;
}

static bool node_needed(struct fs *fs, struct node *n)
{
	if (n == fs->root || n->nlookup || n->pinned || n->handles || n->children || n->busy)
		return true;
	if (!n->names)
		return false;	/* unlinked, and the kernel let go */
	if (fork_awaited(n) || several_names(n))
		return true;
	node_check_sf(fs, n);
	if (n->sf)
		return true;	/* a staged file is a read cache */
	for (struct dentry *d = n->names; d; d = d->name_next)
		if (dentry_dirty(fs, d))
			return true;
	return node_dirty(fs, n);
}

void node_release(struct fs *fs, struct node *n)
{
	if (n->zombie)
		return;
	if (!node_needed(fs, n)) {
		node_free(fs, n);
		return;
	}
	if (n == fs->root || n->nlookup || n->pinned || n->handles)
		return;
	if (several_names(n))	/* until it loses one; dentry_remove and apply.c release it then */
		return;
	n->zombie = true;
	n->zombie_next = fs->zombies;
	fs->zombies = n;
}

/* Nodes the kernel forgot while they were dirty, and names that are gone from the store too.
 * Both keep their directory, so what is freed may queue its parent. A cache of many files is
 * looked at a part at a time: it is done five times a second, with the lock. */
void node_gc(struct fs *fs)
{
	for (struct dentry *d; (d = fs->whites) && (d->node || d->seq <= fs_applied(fs));)
		if (d->node)
			white_unlist(fs, d);	/* it is a name again */
		else
			dentry_remove(fs, d);
	if (!fs->looked_at) {
		fs->looked_at = fs->zombies;
		fs->zombies = NULL;
	}
	for (unsigned i = 0; fs->looked_at && i < GC_STEP; i++) {
		struct node *n = fs->looked_at;
		fs->looked_at = n->zombie_next;
		n->zombie = false;
		node_release(fs, n);
	}
}

int tree_init(struct fs *fs)
{
	struct stat st;
	fs->root = node_new(fs, ROOT_ID, ROOT_ID, S_IFDIR | 0755);
	if (fs->root && fs->store && !fstat(io_store_root(fs->store), &st))
		fs->root->nlink = st.st_nlink;
	return fs->root ? 0 : -ENOMEM;
}

/* ---- bytes ---- */

/* What was known of the staged file is what is known of n until it can be asked again. */
static void remember_staged(struct node *n)
{
	struct staged_info i;
	staged_get_info(n->sf, &i);
	n->size = i.size;
	n->blocks = i.blocks;
	n->atime = i.atime;
	n->mtime = i.mtime;
}

void node_set_sf(struct fs *fs, struct node *n, struct staged *sf)
{
	(void)fs;
	if (n->sf) {
		remember_staged(n);
		/* Spilled bytes go by being given their first name; others of the file's names
		 * follow, and may be where it stood before. */
		if (!sf && staged_spilled(n->sf))
			n->placed_seq = n->seal_seq;
		staged_unref(n->sf);
	}
	n->sf = sf;
}

void node_check_sf(struct fs *fs, struct node *n)
{
	struct staged_info i;
	if (!n->sf)
		return;
	staged_get_state(n->sf, &i);
	/* handles keep references of their own; new opens go to the store */
	if (i.state == STAGED_EVICTED || (i.state == STAGED_DURABLE && i.spilled && !i.late))
		node_set_sf(fs, n, NULL);
}

void node_place_add(struct node *n, uint64_t seq, uint64_t dir, const char *name)
{
	struct place *p = calloc(1, sizeof(*p) + strlen(name) + 1), **pp = &n->places;
	if (!p)
		return;
	p->seq = seq;
	p->dir = dir;
	strcpy(p->name, name);
	while (*pp)
		pp = &(*pp)->next;
	*pp = p;
}

const struct place *node_place(struct fs *fs, struct node *n)
{
	uint64_t applied = fs_applied(fs);
	if (applied < n->placed_seq)
		applied = n->placed_seq;
	while (n->places && n->places->next && n->places->next->seq <= applied) {
		struct place *old = n->places;
		n->places = old->next;
		free(old);
	}
	return n->places && n->places->seq <= applied ? n->places : NULL;
}

typedef int at_fn(struct fs *fs, int dirfd, const char *name, void *arg);

static int run_at(struct fs *fs, const struct place *p, at_fn *fn, void *arg)
{
	int fd, rc = staging_dir_get(fs->s, p->dir, &fd);
	if (!rc) {
		rc = fn(fs, fd, p->name, arg);
		staging_dir_put(fs->s, p->dir);
	}
	return rc;
}

/* Runs fn at n's present place. The publisher renames first and counts then: what is
 * not at the place that counts is at the next, or a moment later. */
static int at_place(struct fs *fs, struct node *n, at_fn *fn, void *arg)
{
	for (int tries = 0; tries < 8; tries++) {
		uint64_t before = fs_applied(fs);
		const struct place *p = node_place(fs, n);
		int rc = p ? run_at(fs, p, fn, arg) : -ENOENT;
		for (p = p ? p->next : n->places; rc == -ENOENT && p; p = p->next)
			rc = run_at(fs, p, fn, arg);
		if (rc != -ENOENT || fs_applied(fs) == before)
			return rc;
	}
	return -ENOENT;
}

static int stat_at(struct fs *fs, int dirfd, const char *name, void *arg)
{
	return io_stat(fs->store, dirfd, name, arg);
}

static int open_at(struct fs *fs, int dirfd, const char *name, void *arg)
{
	int *fd = arg;
	*fd = io_open_read(fs->store, dirfd, name, 0);
	return *fd < 0 ? *fd : 0;
}

int node_open_store(struct fs *fs, struct node *n)
{
	struct stat st;
	int fd = -1;
	if (n->kept_fd >= 0) {
		fd = fcntl(n->kept_fd, F_DUPFD_CLOEXEC, 0);
		return fd < 0 ? -errno : fd;
	}
	/* its place is another's now, and ESTALE makes the kernel look again */
	if (!n->names)
		return -ESTALE;
	int rc = at_place(fs, n, open_at, &fd);
	if (!rc && n->sino && !n->adopt && !fstat(fd, &st) && st.st_ino != n->sino) {
		close(fd);
		return -ESTALE;
	}
	if (rc == -ENOENT) {
		char path[256];
		node_path(fs, n, path, sizeof(path));
		fs_log("%s is not in the store where it was published (%s); was the store changed underneath?", path,
		       n->places ? n->places->name : "nowhere");
	}
	return rc ? rc : fd;
}

void store_fd_close(struct fs *fs, int fd)
{
	struct stat st;
	if (fs->s && !fstat(fd, &st) && !st.st_nlink)	/* perhaps the last to hold its blocks */
		staging_close_later(fs->s, fd);
	else
		close(fd);
}

void node_keep_bytes(struct fs *fs, struct node *n)
{
	if (S_ISREG(n->mode) && n->nlookup && !n->sf && n->kept_fd < 0 && n->names && !n->names->name_next)
		n->kept_fd = node_open_store(fs, n);
}

void node_drop_bytes(struct fs *fs, struct node *n)
{
	if (!n->names && !n->handles && (!n->nlookup || n->pinned))
		node_set_sf(fs, n, NULL);
}

/* ---- attributes ---- */

static void remember_attr(struct node *n, const struct stat *st)
{
	n->mode = (n->mode & S_IFMT) | (st->st_mode & 07777);
	n->uid = st->st_uid;
	n->gid = st->st_gid;
	n->rdev = st->st_rdev;
	n->atime = st->st_atim;
	n->mtime = st->st_mtim;
	n->ctime = st->st_ctim;
	n->size = (uint64_t)st->st_size;
	n->blocks = (uint64_t)st->st_blocks;
}

/* What the store says of n, as far as no pending record says otherwise. */
static void refresh_from_store(struct fs *fs, struct node *n)
{
	uint64_t applied = fs_applied(fs);
	struct stat st;
	int rc, fd;

	if (n->born_seq > applied)
		return;
	if (S_ISDIR(n->mode)) {
		rc = staging_dir_get(fs->s, n->id, &fd);
		if (!rc) {
			rc = fstat(fd, &st) ? -errno : 0;
			staging_dir_put(fs->s, n->id);
		}
	} else {
		rc = at_place(fs, n, stat_at, &st);
	}
	if (rc || (st.st_mode & S_IFMT) != (n->mode & S_IFMT))
		return;		/* gone from under us: what was last seen has to do */
	struct timespec m = n->mtime, c = n->ctime;
	nlink_t links = n->nlink;
	if (n->dirty_seq <= applied) {
		remember_attr(n, &st);
	} else {
		n->size = (uint64_t)st.st_size;
		n->blocks = (uint64_t)st.st_blocks;
	}
	bool names_pending = S_ISDIR(n->mode) && n->ns_seq > applied;
	if (names_pending) {
		n->mtime = m;
		n->ctime = c;
	}
	if (S_ISDIR(n->mode))
		n->nlink = n->dirty_seq <= applied && !names_pending ? st.st_nlink : links;
	else if (n->links_seq <= applied)
		count_unknown(n, st.st_nlink);
}

int node_stat(struct fs *fs, struct node *n, struct stat *st)
{
	struct staged_info i;

	node_check_sf(fs, n);
	if (!n->sf && (n->names || n == fs->root))
		refresh_from_store(fs, n);
	/* readers keep a version: its size and times are its own, the rest is the file's */
	const struct node *now = n->fork_to ? node_current(fs, n->id) : n;
	*st = (struct stat){
		.st_ino = n->ino, .st_mode = now->mode, .st_uid = now->uid, .st_gid = now->gid,
		.st_rdev = n->rdev, .st_nlink = node_links(now), .st_atim = n->atime, .st_mtim = n->mtime,
		.st_ctim = now->ctime, .st_size = (off_t)n->size, .st_blocks = (blkcnt_t)n->blocks,
		.st_blksize = BLKSIZE,
	};
	if (n->sf) {
		staged_get_info(n->sf, &i);
		st->st_size = (off_t)i.size;
		st->st_blocks = (blkcnt_t)i.blocks;
		st->st_atim = i.atime;
		st->st_mtim = i.mtime;
		st->st_ctim = i.ctime;
		if (now->ctime.tv_sec > i.ctime.tv_sec ||
		    (now->ctime.tv_sec == i.ctime.tv_sec && now->ctime.tv_nsec > i.ctime.tv_nsec))
			st->st_ctim = now->ctime;	/* chmod and the like are ours, not tmpfs's */
		n->size = i.size;
		n->blocks = i.blocks;
		n->mtime = i.mtime;
		n->atime = i.atime;
	} else if (n->buf) {
		st->st_blocks = (blkcnt_t)buffers_blocks(n);
	} else if (S_ISDIR(n->mode) && !st->st_size) {
		st->st_size = 4096;	/* not in the store yet */
		st->st_blocks = 8;
	} else if (S_ISLNK(n->mode) && n->target) {
		st->st_size = (off_t)strlen(n->target);
	}
	return 0;
}

/* ---- learning from the store ---- */

static uint64_t new_id(struct fs *fs)
{
	return fs->s ? staging_new_id(fs->s) : ++fs->next_ro_id;
}

static uint64_t shown_ino(struct fs *fs, int dirfd, const char *name, const struct stat *st)
{
	char text[24];
	if (!S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode))
		return st->st_ino;
	ssize_t n = io_get_xattr(fs->store, dirfd, name, "user.cairn.ino", text, sizeof(text) - 1);
	if (n <= 0)
		return st->st_ino;
	text[n] = 0;
	char *end;
	uint64_t ino = strtoull(text, &end, 10);
	return *end || !ino ? st->st_ino : ino;
}

static void sino_remember(struct fs *fs, struct node *n)
{
	n->sino_next = fs->by_sino[n->sino % 4096];
	fs->by_sino[n->sino % 4096] = n;
}

static struct node *sino_find(struct fs *fs, uint64_t sino)
{
	struct node *n = fs->by_sino[sino % 4096];
	while (n && n->sino != sino)
		n = n->sino_next;
	return n;
}

void node_set_sino(struct fs *fs, struct node *n, uint64_t sino)
{
	if (n->sino == sino)
		return;
	if (n->sino) {
		struct node **pp = &fs->by_sino[n->sino % 4096];
		while (*pp && *pp != n)
			pp = &(*pp)->sino_next;
		if (*pp)
			*pp = n->sino_next;
	}
	n->sino = sino;
	if (sino)
		sino_remember(fs, n);
}

static int learn(struct fs *fs, struct node *dir, int dirfd, const char *name, const struct stat *st,
		 struct node **out, struct dentry **dout)
{
	struct node *n = NULL;
	if (!S_ISDIR(st->st_mode) && st->st_nlink > 1) {
		n = sino_find(fs, st->st_ino);	/* another name of a file that is known */
	}
	if (!n) {
		n = node_new(fs, new_id(fs), shown_ino(fs, dirfd, name, st), st->st_mode);
		if (!n)
			return -ENOMEM;
		remember_attr(n, st);
		n->nlink = st->st_nlink;
		n->sealed = true;
		node_set_sino(fs, n, st->st_ino);
		if (!S_ISDIR(st->st_mode))
			node_place_add(n, 0, dir->id, name);
	}
	bool fresh = !n->names;
	struct dentry *d = dentry_set(fs, dir, name, n);
	if (!d)
		return -ENOMEM;
	if (!S_ISDIR(st->st_mode) && fresh)
		count_unknown(n, st->st_nlink);
	else if (n->unknown)
		n->unknown--;
	d->store_has = d->sealed = true;
	d->seq = 0;
	if (S_ISDIR(st->st_mode)) {
		int rc = staging_dir_learn(fs->s, n->id, dir->id, name);
		if (rc)
			return rc;
	}
	fs_learned(fs, n, d);
	*out = n;
	if (dout)
		*dout = d;
	return 0;
}

int tree_lookup(struct fs *fs, struct node *dir, const char *name, struct node **out, struct dentry **dout)
{
	struct dentry *d = dentry_find(fs, dir, name);
	struct stat st;
	int fd;

	if (strlen(name) > MAX_NAME)
		return -ENAMETOOLONG;
	if (d && dentry_dirty(fs, d)) {
		if (dout)
			*dout = d;
		*out = d->node;
		return d->node ? 0 : -ENOENT;
	}
	int rc = staging_dir_get(fs->s, dir->id, &fd);
	if (!rc) {
		rc = io_stat(fs->store, fd, name, &st);
		if (!rc && dir == fs->root && !strcmp(name, CONTROL_DIR_NAME))
			rc = -ENOENT;
		bool same = !rc && d && d->node && (d->node->mode & S_IFMT) == (st.st_mode & S_IFMT) &&
			    (!d->node->sino || d->node->adopt || d->node->sino == st.st_ino);
		if (same) {
			node_set_sino(fs, d->node, st.st_ino);
			d->node->adopt = false;
			*out = d->node;
			if (dout)
				*dout = d;
		} else {
			if (d)		/* the store was changed, by another node of the cluster say */
				dentry_remove(fs, d);
			if (!rc)
				rc = learn(fs, dir, fd, name, &st, out, dout);
		}
		staging_dir_put(fs->s, dir->id);
	} else if (d) {
		dentry_remove(fs, d);
	}
	return rc;
}

void tree_absent(struct fs *fs, struct node *dir, const char *name)
{
	fs->absent.dir = strlen(name) <= MAX_NAME ? dir->id : 0;
	fs->absent.since_ns = monotonic_ns();
	strncpy(fs->absent.name, name, MAX_NAME);
}

int tree_lookup_again(struct fs *fs, struct node *dir, const char *name, struct node **out)
{
	if (fs->absent.dir == dir->id && !strcmp(fs->absent.name, name) && !dentry_find(fs, dir, name) &&
	    monotonic_ns() - fs->absent.since_ns < ABSENT_NS)
		return -ENOENT;
	return tree_lookup(fs, dir, name, out, NULL);
}

int tree_dir_empty(struct fs *fs, struct node *dir)
{
	int fd, rc = 0;

	for (struct dentry *d = dir->children; d; d = d->sib_next)
		if (d->node && dentry_dirty(fs, d))
			return -ENOTEMPTY;
	if (staging_dir_get(fs->s, dir->id, &fd))
		return 0;
	int lfd = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	staging_dir_put(fs->s, dir->id);
	DIR *list = lfd < 0 ? NULL : fdopendir(lfd);
	if (!list) {
		if (lfd >= 0)
			close(lfd);
		return -EIO;
	}
	for (struct dirent *e; !rc && (e = readdir(list));) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		struct dentry *d = dentry_find(fs, dir, e->d_name);
		struct stat st;
		if (d && !d->node && dentry_dirty(fs, d))
			continue;	/* removed here */
		/* or published as removed since the listing was read */
		if (fstatat(dirfd(list), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			rc = -ENOTEMPTY;
	}
	closedir(list);
	return rc;
}

/* ---- users' xattrs ---- */

void xattr_put(struct node *n, const char *key, const void *val, uint32_t len)
{
	xattr_drop(n, key);
	struct xattr *x = malloc(sizeof(*x) + len);
	if (!x)
		return;
	x->key = strdup(key);
	x->len = len;
	if (len)
		memcpy(x->val, val, len);
	x->next = n->xattrs;
	n->xattrs = x;
}

bool xattr_drop(struct node *n, const char *key)
{
	for (struct xattr **pp = &n->xattrs; *pp; pp = &(*pp)->next)
		if (!strcmp((*pp)->key, key)) {
			struct xattr *x = *pp;
			*pp = x->next;
			free(x->key);
			free(x);
			return true;
		}
	return false;
}

static int load_at(struct fs *fs, int dirfd, const char *name, void *arg)
{
	struct node *n = arg;
	char list[65536], val[65536];
	ssize_t len = io_list_xattr(fs->store, dirfd, name, list, sizeof(list));
	if (len < 0)
		return len == -EOPNOTSUPP ? 0 : (int)len;
	for (char *k = list; k < list + len; k += strlen(k) + 1) {
		if (strncmp(k, "user.", 5) || xattr_is_ours(k))
			continue;
		ssize_t v = io_get_xattr(fs->store, dirfd, name, k, val, sizeof(val));
		if (v >= 0)
			xattr_put(n, k, val, (uint32_t)v);
	}
	return 0;
}

int node_load_xattrs(struct fs *fs, struct node *n)
{
	if (n->xattrs_loaded || (!S_ISREG(n->mode) && !S_ISDIR(n->mode)))
		return 0;
	int rc = 0;
	if (S_ISREG(n->mode) && n->born_seq <= fs_applied(fs)) {
		rc = at_place(fs, n, load_at, n);
	} else if (n == fs->root) {
		rc = load_at(fs, io_store_root(fs->store), NULL, n);
	} else if (S_ISDIR(n->mode) && n->names && n->born_seq <= fs_applied(fs)) {
		if (n->names->seq > fs_applied(fs))
			return -EAGAIN;	/* its rename is on the way: ask again */
		int fd;
		rc = staging_dir_get(fs->s, n->names->dir->id, &fd);
		if (!rc) {
			rc = load_at(fs, fd, n->names->name, n);
			staging_dir_put(fs->s, n->names->dir->id);
		}
	}
	if (!rc || rc == -ENOENT)
		n->xattrs_loaded = true;
	return rc == -ENOENT ? 0 : rc;
}

void node_path(struct fs *fs, struct node *n, char *buf, size_t cap)
{
	size_t pos = cap - 1;
	buf[pos] = 0;
	for (unsigned depth = 0; n && n != fs->root && n->names && depth < 4096; depth++) {
		const char *name = n->names->name;
		size_t len = strlen(name);
		if (len + 1 > pos)
			break;
		pos -= len;
		memcpy(buf + pos, name, len);
		n = n->names->dir;
		if (n != fs->root)
			buf[--pos] = '/';
	}
	memmove(buf, buf + pos, cap - pos);
}

void rec_aim(struct fs *fs, struct rec *r, struct node *n)
{
	struct dentry *d = n->names;
	while (d && d->name_next && !d->sealed)
		d = d->name_next;
	r->flags = n == fs->root || (d && d->sealed) ? 0 : REC_GHOST;
	r->dir = d ? d->dir->id : ROOT_ID;
	r->name = d ? d->name : "";
}

/* SPDX-License-Identifier: MIT
 * Nodes and names in memory: their tables, what is dirty, when one is freed. Nothing here asks the
 * store; tree.c does. Tree lock held for all functions.
 */
#include "fs/tree/inside.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GC_STEP 4096u /* takes some 2 ms with the lock held */
#define STORE_NAMES_MAX 65536u /* 8 bytes each; of a larger directory they are not kept */

/* ---- tables ---- */

static unsigned id_bucket(uint64_t id)
{
	return (unsigned)((id * 0x9e3779b97f4a7c15ull) >> 48);
}

static unsigned name_bucket(uint64_t dir, const char *name)
{
	return (unsigned)(hash_text(dir, name) % NODE_BUCKETS);
}

struct node *node_find(struct fs *fs, uint64_t id)
{
	struct node *n = fs->tree.nodes[id_bucket(id)];
	while (n && n->id != id)
		n = n->hash_next;
	return n;
}

struct node *node_current(struct fs *fs, uint64_t id)
{
	struct node *n = node_find(fs, id), *next;
	while (n && n->fork.to && (next = node_find(fs, n->fork.to)))
		n = next;
	return n;
}

nlink_t node_links(const struct node *n)
{
	nlink_t links = n->attr.unknown;
	if (S_ISDIR(n->attr.mode))
		return n->attr.nlink;
	for (struct dentry *d = n->names; d; d = d->name_next)
		links++;
	return links;
}

struct node *node_new(struct fs *fs, uint64_t id, uint64_t ino, mode_t mode)
{
	struct node *n = calloc(1, sizeof(*n));
	if (!n)
		return NULL;
	n->id = id;
	n->ino = ino;
	n->attr.mode = mode;
	n->attr.nlink = S_ISDIR(mode) ? 2 : 1;
	n->stored.kept_fd = -1;
	n->hash_next = fs->tree.nodes[id_bucket(id)];
	fs->tree.nodes[id_bucket(id)] = n;
	fs->tree.n_nodes++;
	return n;
}

struct dentry *dentry_find(struct fs *fs, struct node *dir, const char *name)
{
	struct dentry *d = fs->tree.dentries[name_bucket(dir->id, name)];
	while (d && (d->dir != dir || strcmp(d->name, name)))
		d = d->hash_next;
	return d;
}

void node_touch(struct fs *fs, struct node *n)
{
	n->changed = ++fs->tree.changes;
}

void name_touch(struct fs *fs, uint64_t dir, const char *name)
{
	fs->tree.name_changed[name_bucket(dir, name)] = ++fs->tree.changes;
}

uint64_t name_changed(struct fs *fs, uint64_t dir, const char *name)
{
	return fs->tree.name_changed[name_bucket(dir, name)];
}

void waits_wake(void *ctx)
{
	struct fs *fs = ctx;

	if (!atomic_load(&fs->waits.n))
		return;
	LOCK_SCOPE(&fs->waits.lock);
	fs->waits.moved = true;
	pthread_cond_signal(&fs->waits.cond);
}

static void dentry_unname(struct fs *fs, struct dentry *d)
{
	if (!d->node)
		return;
	node_touch(fs, d->node);
	struct dentry **pp = &d->node->names;
	while (*pp && *pp != d)
		pp = &(*pp)->name_next;
	if (*pp)
		*pp = d->name_next;
	if (d->node->waits && !d->node->names)
		waits_wake(fs);
	d->node = NULL;
	d->name_next = NULL;
}

/* What a directory says is never less than what anything below it says, so that it can stop at the
 * first that says so already. */
static void raise_dir(struct fs *fs, struct node *dir, uint64_t seq)
{
	while (dir && dir->seq.below < seq) {
		dir->seq.below = seq;
		dir = dir == fs->tree.root || !dir->names ? NULL : dir->names->dir;
	}
}

void node_raise(struct fs *fs, struct node *n, uint64_t seq)
{
	if (n->seq.below < seq)
		n->seq.below = seq;
	for (struct dentry *d = n->names; d; d = d->name_next)
		raise_dir(fs, d->dir, seq);
}

static void dentry_name(struct fs *fs, struct dentry *d, struct node *n)
{
	dentry_unname(fs, d);
	name_touch(fs, d->dir->id, d->name);
	d->node = n;
	if (!n)
		return;
	node_touch(fs, n);
	raise_dir(fs, d->dir, n->seq.below);
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
		d->hash_next = fs->tree.dentries[b];
		fs->tree.dentries[b] = d;
		d->sib_next = dir->children;
		if (dir->children)
			dir->children->sib_prev = d;
		dir->children = d;
	}
	dentry_name(fs, d, n);
	return d;
}

static void whiteout_unlist(struct fs *fs, struct dentry *d)
{
	if (!d->is_whiteout)
		return;
	*(d->whiteout_prev ? &d->whiteout_prev->whiteout_next : &fs->tree.whiteouts) =
		d->whiteout_next;
	*(d->whiteout_next ? &d->whiteout_next->whiteout_prev : &fs->tree.whiteouts_last) =
		d->whiteout_prev;
	d->whiteout_prev = d->whiteout_next = NULL;
	d->is_whiteout = false;
}

static void whiteout_list(struct fs *fs, struct dentry *d)
{
	whiteout_unlist(fs, d);
	d->whiteout_prev = fs->tree.whiteouts_last;
	*(fs->tree.whiteouts_last ? &fs->tree.whiteouts_last->whiteout_next : &fs->tree.whiteouts) =
		d;
	fs->tree.whiteouts_last = d;
	d->is_whiteout = true;
}

void dentry_remove(struct fs *fs, struct dentry *d)
{
	whiteout_unlist(fs, d);
	struct node *dir = d->dir, *n = d->node;
	struct dentry **pp = &fs->tree.dentries[name_bucket(dir->id, d->name)];
	while (*pp != d)
		pp = &(*pp)->hash_next;
	*pp = d->hash_next;
	*(d->sib_prev ? &d->sib_prev->sib_next : &dir->children) = d->sib_next;
	if (d->sib_next)
		d->sib_next->sib_prev = d->sib_prev;
	if (n)
		store_names_add(dir, d->name);
	uint64_t place = fs_place_of(fs, d->seq);
	if (n && place > dir->seq.forgot && place != UINT64_MAX)
		dir->seq.forgot = place;
	name_touch(fs, dir->id, d->name);
	dentry_unname(fs, d);
	free(d);
	if (n && n->names && !n->names->name_next)
		node_release(fs, n);
	if (!dir->children && dir->nlookup == 0)
		node_release(fs, dir);
}

void dentry_whiteout(struct fs *fs, struct dentry *d, uint64_t seq)
{
	dentry_name(fs, d, NULL);
	d->seq = seq;
	d->store_has = d->ordered = d->committed = false;
	whiteout_list(fs, d);
}

/* ---- names that a directory of the store may have ---- */

static void store_names_forget(struct node *dir)
{
	if (dir->store_names)
		free(dir->store_names->hash);
	free(dir->store_names);
	dir->store_names = NULL;
}

void store_names_start(struct node *dir)
{
	if (!dir->store_names)
		dir->store_names = calloc(1, sizeof(*dir->store_names)); /* NULL: not known */
	else
		dir->store_names->n = 0;
}

void store_names_add(struct node *dir, const char *name)
{
	struct store_names *s = dir->store_names;

	if (!s)
		return;
	if (s->n == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 16;
		uint64_t *more =
			cap > STORE_NAMES_MAX ? NULL : realloc(s->hash, cap * sizeof(*more));
		if (!more) {
			store_names_forget(dir);
			return;
		}
		s->hash = more;
		s->cap = cap;
	}
	s->hash[s->n++] = hash_text(0, name);
}

bool store_names_lack(const struct node *dir, const char *name)
{
	const struct store_names *s = dir->store_names;
	uint64_t hash = hash_text(0, name);

	for (size_t i = 0; s && i < s->n; i++)
		if (s->hash[i] == hash)
			return false;
	return s;
}

/* ---- clean or dirty ---- */

bool node_dirty(struct fs *fs, const struct node *n)
{
	if (n->busy || n->writers || !fs_is_applied(fs, n->seq.dirty))
		return true;
	if (!n->sf)
		return !fs_is_applied(fs, n->seq.born);
	struct staged_info i;
	staged_get_state(n->sf, &i);
	return i.state != STAGED_DURABLE && i.state != STAGED_EVICTED;
}

bool dentry_dirty(struct fs *fs, const struct dentry *d)
{
	return !fs_is_applied(fs, d->seq) || (d->node && node_dirty(fs, d->node));
}

/* ---- bytes ---- */

/* Copies the staged file's attributes to n, which shows them until they can be read again. */
static void remember_staged(struct node *n)
{
	struct staged_info i;
	staged_get_info(n->sf, &i);
	n->attr.size = i.size;
	n->attr.blocks = i.blocks;
	n->attr.atime = i.atime;
	n->attr.mtime = i.mtime;
}

void node_set_sf(struct fs *fs, struct node *n, struct staged *sf)
{
	if (n->sf != sf)
		node_touch(fs, n);
	if (n->sf) {
		remember_staged(n);
		/* Spilled bytes are published with the file's first name; its other names follow,
		 * and one of them may be where the file was before. */
		if (!sf && staged_spilled(n->sf))
			n->seq.placed = n->seq.seal;
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
	/* handles keep their own references; new opens use the store */
	if (i.state == STAGED_EVICTED || (i.state == STAGED_DURABLE && i.spilled && !i.late))
		node_set_sf(fs, n, NULL);
}

void node_drop_bytes(struct fs *fs, struct node *n)
{
	if (!n->names && !n->handles && (!n->nlookup || n->pinned))
		node_set_sf(fs, n, NULL);
}

void store_fd_close(struct fs *fs, int fd)
{
	struct stat st;
	/* perhaps the last reference to its blocks */
	if (fs->s && !fstat(fd, &st) && !st.st_nlink)
		staging_close_later(fs->s, fd);
	else
		close(fd);
}

/* Waits while another thread copies or makes n's bytes without the tree lock. */
void node_wait_busy(struct fs *fs, struct node *n)
{
	n->refs++;
	while (n->busy) {
		session_may_block(fs);
		pthread_cond_wait(&fs->tree.busy_cond, &fs->tree.lock);
	}
	n->refs--;
}

/* ---- places in the store ---- */

const struct place *node_place(struct fs *fs, struct node *n)
{
	uint64_t applied = fs_applied(fs);
	if (applied < n->seq.placed)
		applied = n->seq.placed;
	while (n->stored.places && n->stored.places->next &&
	       fs_place_of(fs, n->stored.places->next->seq) <= applied) {
		struct place *old = n->stored.places;
		n->stored.places = old->next;
		free(old);
	}
	return n->stored.places && fs_place_of(fs, n->stored.places->seq) <= applied
		       ? n->stored.places
		       : NULL;
}

/* Rewriting a file in place any number of times adds no place. */
void node_place_add(struct fs *fs, struct node *n, uint64_t seq, uint64_t dir, const char *name)
{
	struct place **pp = &n->stored.places, *last = NULL;
	node_place(fs, n); /* drops past ones */
	for (; *pp; pp = &(*pp)->next)
		last = *pp;
	if (last && last->dir == dir && !strcmp(last->name, name))
		return;
	struct place *p = calloc(1, sizeof(*p) + strlen(name) + 1);
	if (!p)
		return;
	p->seq = seq;
	p->dir = dir;
	strcpy(p->name, name);
	*pp = p;
}

static void store_ino_add(struct fs *fs, struct node *n)
{
	struct node **first = &fs->tree.by_store_ino[n->stored.ino % 4096];

	n->store_ino_next = *first;
	*first = n;
}

static void store_ino_remove(struct fs *fs, struct node *n)
{
	struct node **pp = &fs->tree.by_store_ino[n->stored.ino % 4096];

	while (*pp && *pp != n)
		pp = &(*pp)->store_ino_next;
	if (*pp)
		*pp = n->store_ino_next;
}

void node_set_store_ino(struct fs *fs, struct node *n, uint64_t store_ino, uint64_t store_birth)
{
	n->stored.birth = store_birth;
	if (n->stored.ino == store_ino)
		return;
	node_touch(fs, n);
	for (struct dentry *d = n->names; d; d = d->name_next)
		name_touch(fs, d->dir->id, d->name);
	if (n->stored.ino)
		store_ino_remove(fs, n);
	n->stored.ino = store_ino;
	if (store_ino)
		store_ino_add(fs, n);
}

/* ---- creating and freeing nodes ---- */

/* Whether a fork made n for a writer that has not opened it yet. The kernel forgets n once before
 * it looks it up for that writer, since it finds n in place of the old node. */
static bool is_awaited(const struct node *n)
{
	return n->fork.awaited_ns && monotonic_ns() < n->fork.awaited_ns;
}

static void node_free(struct fs *fs, struct node *n)
{
	n->free_queued = true; /* keeps dentry_remove from freeing it */
	while (n->names)
		dentry_remove(fs, n->names);
	struct node **pp = &fs->tree.nodes[id_bucket(n->id)];
	while (*pp != n)
		pp = &(*pp)->hash_next;
	*pp = n->hash_next;
	if (n->stored.ino)
		store_ino_remove(fs, n);
	for (struct place *p = n->stored.places, *next; p; p = next) {
		next = p->next;
		free(p);
	}
	xattrs_free(n->xattrs);
	if (n->sf)
		staged_unref(n->sf);
	if (n->stored.kept_fd >= 0)
		store_fd_close(fs, n->stored.kept_fd);
	if (fs->s && S_ISDIR(n->attr.mode))
		staging_dir_forget(fs->s, n->id);
	if (fs->s) {
		struct rec r = rec_new(REC_FORGET);
		r.unique = 0;
		r.node = n->id;
		staging_log(fs->s, &r); /* failed: then the node stays longer, no more */
	}
	store_names_forget(n);
	free(n->target);
	free(n->version.over);
	free(n->version.save);
	free(n);
	fs->tree.n_nodes--;
}

/* A new version by one name changes all of them, and the store cannot tell which these are. */
static bool several_names(const struct node *n)
{
	return !S_ISDIR(n->attr.mode) && n->names && n->names->name_next;
}

static bool node_needed(struct fs *fs, struct node *n)
{
	if (n == fs->tree.root || n->nlookup || n->pinned || n->handles || n->children || n->busy ||
	    n->refs || n->waits)
		return true;
	if (!n->names)
		return false; /* unlinked, and forgotten by the kernel */
	if (is_awaited(n) || several_names(n))
		return true;
	/* only the tree knows that the store has not synced it yet */
	if (fs->s && !staging_is_durable(fs->s, n->seq.below))
		return true;
	node_check_sf(fs, n);
	if (n->sf)
		return true; /* a durable staged file is only a read cache */
	for (struct dentry *d = n->names; d; d = d->name_next)
		if (dentry_dirty(fs, d))
			return true;
	return node_dirty(fs, n);
}

void node_release(struct fs *fs, struct node *n)
{
	if (n->free_queued)
		return;
	if (!node_needed(fs, n)) {
		node_free(fs, n);
		return;
	}
	if (n == fs->tree.root || n->nlookup || n->pinned || n->handles)
		return;
	if (several_names(n)) /* until it loses one; then dentry_remove or apply.c frees it */
		return;
	n->free_queued = true;
	n->free_next = fs->tree.free_queue;
	fs->tree.free_queue = n;
}

void node_forget(struct fs *fs, uint64_t id, uint64_t count)
{
	struct node *n = node_find(fs, id);
	if (!n || n == fs->tree.root)
		return;
	n->nlookup -= count < n->nlookup ? count : n->nlookup;
	if (n->nlookup)
		return;
	/* of a restored node the count is not known; but a removed file is not looked up again,
	 * so the kernel has none left. A directory's name may come back: vanished.c */
	if (S_ISREG(n->attr.mode) && !n->names && !n->buf)
		n->pinned = false;
	node_release(fs, n);
}

/* In a replay: the previous worker freed n, because nothing needed it. All names below it were
 * clean then. If n was kept for them, the kernel could get it again and use it until the next
 * replay frees it here, together with everything newer. */
void node_forgotten(struct fs *fs, struct node *n)
{
	if (n == fs->tree.root || n->handles)
		return;
	n->free_queued = true; /* keeps dentry_remove from freeing it */
	while (n->children)
		dentry_remove(fs, n->children);
	node_free(fs, n);
}

/* The first that is done with; what waits for other nodes is passed. */
static struct dentry *whiteout_due(struct fs *fs)
{
	struct dentry *d = fs->tree.whiteouts;
	while (d && !d->node && fs_place_of(fs, d->seq) == UINT64_MAX)
		d = d->whiteout_next;
	return d && (d->node || fs_is_applied(fs, d->seq)) ? d : NULL;
}

/* Frees nodes that the kernel forgot while they were dirty, and names that are gone from the store,
 * too. Each keeps its directory, so freeing one may queue its parent. Of many nodes, one part is
 * examined per call: it runs five times a second, with the lock held. */
void node_gc(struct fs *fs)
{
	for (struct dentry *d; (d = whiteout_due(fs));)
		if (d->node)
			whiteout_unlist(fs, d); /* the name exists again */
		else
			dentry_remove(fs, d);
	if (!fs->tree.looked_at) {
		fs->tree.looked_at = fs->tree.free_queue;
		fs->tree.free_queue = NULL;
	}
	for (unsigned i = 0; fs->tree.looked_at && i < GC_STEP; i++) {
		struct node *n = fs->tree.looked_at;
		fs->tree.looked_at = n->free_next;
		n->free_queued = false;
		node_release(fs, n);
	}
}

/* ---- users' xattrs ---- */

bool xattr_is_ours(const char *key)
{
	return !strncmp(key, KEY_PREFIX, sizeof(KEY_PREFIX) - 1) && strcmp(key, KEY_DEVICE);
}

struct xattr *xattr_add(struct xattr **list, const char *key, const void *val, uint32_t len)
{
	struct xattr *x = malloc(sizeof(*x) + len);
	if (!x)
		return NULL;
	x->key = strdup(key);
	if (!x->key) {
		free(x);
		return NULL;
	}
	x->len = len;
	if (len)
		memcpy(x->val, val, len);
	x->next = *list;
	return *list = x;
}

void xattrs_free(struct xattr *list)
{
	for (struct xattr *x = list, *next; x; x = next) {
		next = x->next;
		free(x->key);
		free(x);
	}
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

void xattr_put(struct node *n, const char *key, const void *val, uint32_t len)
{
	xattr_drop(n, key);
	xattr_add(&n->xattrs, key, val, len);
}

/* ---- lists of nodes; paths ---- */

int node_list_add(struct node_list *l, struct node *n)
{
	if (l->len == l->cap) {
		struct node **more = realloc(l->n, (l->cap + 256) * sizeof(struct node *));
		if (!more)
			return -ENOMEM;
		l->n = more;
		l->cap += 256;
	}
	l->n[l->len++] = n;
	return 0;
}

static uint64_t acceptance(const struct node *n)
{
	return n->version.accepted ? n->version.accepted_nth : 0;
}

static int by_acceptance(const void *a, const void *b)
{
	const struct node *x = *(struct node *const *)a, *y = *(struct node *const *)b;
	uint64_t i = acceptance(x), j = acceptance(y);
	return i < j ? -1 : i > j;
}

void node_list_sort(struct node_list *l)
{
	if (l->len)
		qsort(l->n, l->len, sizeof(struct node *), by_acceptance);
}

void node_path(struct fs *fs, struct node *n, char *buf, size_t cap)
{
	size_t pos = cap - 1;
	buf[pos] = 0;
	for (unsigned depth = 0; n && n != fs->tree.root && n->names && depth < 4096; depth++) {
		const char *name = n->names->name;
		size_t len = strlen(name);
		if (len + 1 > pos)
			break;
		pos -= len;
		memcpy(buf + pos, name, len);
		n = n->names->dir;
		if (n != fs->tree.root)
			buf[--pos] = '/';
	}
	memmove(buf, buf + pos, cap - pos);
}

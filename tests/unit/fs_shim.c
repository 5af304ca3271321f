/* SPDX-License-Identifier: MIT */
#include "tests/unit/fs_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/fs.h"

/* main.c's, which is not in the library */
void fs_log(const char *fmt, ...)
{
	(void)fmt;
}

int shim_open(const struct staging_opts *o, bool first, bool start, struct fs **out)
{
	struct fs *fs = calloc(1, sizeof(*fs));
	if (!fs)
		return -ENOMEM;
	pthread_mutex_init(&fs->lock, NULL);
	pthread_mutex_init(&fs->notice_lock, NULL);
	pthread_cond_init(&fs->busy_cond, NULL);
	fs->store = o->store;
	fs->engine = o->engine;
	*out = fs;
	int rc = tree_init(fs);
	if (!rc)
		rc = staging_open(o, &fs->s);
	if (!rc)
		rc = staging_replay(fs->s, first ? NULL : fs_replay, fs);
	if (!rc)
		rc = staging_sweep(fs->s, first);
	return rc || !start ? rc : shim_start(fs);
}

int shim_start(struct fs *fs)
{
	int rc = staging_start(fs->s);
	if (!rc)
		seal_restored(fs);
	return rc;
}

static void free_node(struct node *n)
{
	for (struct place *p = n->places, *next; p; p = next) {
		next = p->next;
		free(p);
	}
	for (struct xattr *x = n->xattrs, *next; x; x = next) {
		next = x->next;
		free(x->key);
		free(x);
	}
	free(n->target);
	free(n);
}

/* Memory only: nothing is logged, closed or given back. */
void shim_kill(struct fs *fs)
{
	if (fs->s)
		staging_close(fs->s);
	for (unsigned i = 0; i < 4096; i++)
		for (struct handle *h = fs->handles[i], *next; h; h = next) {
			next = h->hash_next;
			if (h->fd >= 0)
				close(h->fd);
			free(h);
		}
	for (unsigned i = 0; i < NODE_BUCKETS; i++) {
		for (struct dentry *d = fs->dentries[i], *next; d; d = next) {
			next = d->hash_next;
			free(d);
		}
		for (struct node *n = fs->nodes[i], *next; n; n = next) {
			next = n->hash_next;
			free_node(n);
		}
	}
	free(fs);
}

struct staging *shim_staging(struct fs *fs)
{
	return fs->s;
}

static struct node *known(struct node *n)
{
	n->nlookup = 1;	/* the kernel knows it until it forgets */
	return n;
}

int shim_lookup(struct fs *fs, uint64_t dir, const char *name, uint64_t *id)
{
	TREE_SCOPE(fs);
	struct node *d = node_find(fs, dir), *n;
	int rc = d ? tree_lookup(fs, d, name, &n, NULL) : -ESTALE;
	if (!rc)
		*id = known(n)->id;
	return rc;
}

/* lock held; 0 when the name is free */
static int begin(struct fs *fs, uint64_t dir, const char *name)
{
	struct node *d = node_find(fs, dir), *n;
	int rc = d ? tree_lookup(fs, d, name, &n, NULL) : -ESTALE;
	return rc == -ENOENT ? 0 : rc ? rc : -EEXIST;
}

static int make(struct fs *fs, struct rec *r, uint64_t dir, const char *name, uint64_t *id)
{
	TREE_SCOPE(fs);
	int rc = begin(fs, dir, name);
	if (rc)
		return rc;
	r->uid = geteuid();
	r->gid = getegid();
	r->dir = dir;
	r->name = name;
	r->node = r->ino = staging_new_id(fs->s);
	rc = fs_record(fs, r);
	if (!rc)
		*id = known(node_find(fs, r->node))->id;
	return rc;
}

int shim_mkdir(struct fs *fs, uint64_t dir, const char *name, uint64_t *id)
{
	struct rec r = rec_new(REC_MKDIR);
	r.mode = 0755;
	return make(fs, &r, dir, name, id);
}

int shim_symlink(struct fs *fs, uint64_t dir, const char *name, const char *target)
{
	struct rec r = rec_new(REC_SYMLINK);
	uint64_t id;
	r.mode = 0777;
	r.data = target;
	r.data_len = (uint32_t)strlen(target) + 1;
	return make(fs, &r, dir, name, &id);
}

static int open_node(struct fs *fs, struct node *n, int flags, uint64_t *fh)
{
	struct rec r = rec_new(REC_OPEN);
	r.fh = staging_new_id(fs->s);
	r.node = n->id;
	r.sf = n->sf ? staged_id(n->sf) : 0;
	r.mask = (uint64_t)(unsigned)flags;
	r.lane = LANE_RELAY;
	if ((flags & O_ACCMODE) != O_RDONLY)
		r.flags = REC_WRITE;
	*fh = r.fh;
	return fs_record(fs, &r);
}

int shim_create(struct fs *fs, uint64_t dir, const char *name, uint64_t *id, uint64_t *fh)
{
	TREE_SCOPE(fs);
	struct rec r = rec_new(REC_CREATE);
	struct staged *sf;
	int rc = begin(fs, dir, name);
	if (rc)
		return rc;
	r.node = r.ino = staging_new_id(fs->s);
	rc = staged_create(fs->s, r.node, expect_size(fs, node_find(fs, dir), name), &sf);
	if (rc)
		return rc;
	r.mode = 0640;
	r.uid = geteuid();
	r.gid = getegid();
	r.dir = dir;
	r.name = name;
	r.sf = staged_id(sf);
	r.flags = (staged_spilled(sf) ? REC_SPILLED : 0) | (staged_huge(sf) ? REC_HUGE : 0);
	rc = fs_record(fs, &r);
	staged_unref(sf);
	if (rc)
		return rc;
	*id = known(node_find(fs, r.node))->id;
	return open_node(fs, node_find(fs, r.node), O_WRONLY, fh);
}

int shim_open_file(struct fs *fs, uint64_t dir, const char *name, int flags, uint64_t *fh)
{
	for (int tries = 0; tries < 3; tries++) {
		uint64_t id;
		int rc = shim_lookup(fs, dir, name, &id);
		if (rc)
			return rc;
		TREE_SCOPE(fs);
		struct node *n = node_find(fs, id);
		if (n->fork_to)
			rc = -ESTALE;
		else if ((flags & O_ACCMODE) != O_RDONLY)
			rc = node_make_writable(fs, n, flags & O_TRUNC);
		if (!rc) {
			node_check_sf(fs, n);
			return open_node(fs, n, flags, fh);
		}
		if (rc != -ESTALE)
			return rc;
	}
	return -ESTALE;
}

int shim_write(struct fs *fs, uint64_t fh, const void *buf, size_t len, uint64_t off)
{
	pthread_mutex_lock(&fs->lock);
	struct handle *h = handle_find(fs, fh);
	struct staged *sf = h && h->writer && h->node->sf ? staged_ref(h->node->sf) : NULL;
	pthread_mutex_unlock(&fs->lock);
	if (!sf)
		return -EBADF;
	ssize_t n = staged_write(sf, buf, len, off);
	staged_unref(sf);
	return n < 0 ? (int)n : n == (ssize_t)len ? 0 : -EIO;
}

int shim_close(struct fs *fs, uint64_t fh)
{
	TREE_SCOPE(fs);
	struct handle *h = handle_find(fs, fh);
	if (!h)
		return -EBADF;
	struct node *n = h->node;
	struct rec r = rec_new(REC_CLOSE);
	r.fh = fh;
	r.node = n->id;
	int rc = fs_record(fs, &r);
	struct staged_info i = {.state = STAGED_EVICTED};
	if (n->sf && !n->writers && !n->fork_to)
		staged_get_info(n->sf, &i);
	if (!rc && i.state == STAGED_OPEN) {
		if (staged_changed(n->sf))
			rc = node_seal_closed(fs, n);
		else
			staged_unchanged(n->sf);
	}
	return rc;
}

static int remove_name(struct fs *fs, uint64_t dir, const char *name, bool want_dir)
{
	TREE_SCOPE(fs);
	struct node *d = node_find(fs, dir), *n;
	struct dentry *e;
	int rc = d ? tree_lookup(fs, d, name, &n, &e) : -ESTALE;
	if (!rc && want_dir != !!S_ISDIR(n->mode))
		rc = want_dir ? -ENOTDIR : -EISDIR;
	if (!rc && want_dir)
		rc = tree_dir_empty(fs, n);
	if (rc)
		return rc;
	struct rec r = rec_new(want_dir ? REC_RMDIR : REC_UNLINK);
	r.node = n->id;
	r.dir = dir;
	r.name = name;
	r.flags = e->store_has ? 0 : REC_GHOST;
	r.node2 = want_dir || (node_links(n) <= 1 && !n->writers) ? n->id : 0;
	return fs_record(fs, &r);
}

int shim_unlink(struct fs *fs, uint64_t dir, const char *name)
{
	return remove_name(fs, dir, name, false);
}

int shim_rmdir(struct fs *fs, uint64_t dir, const char *name)
{
	return remove_name(fs, dir, name, true);
}

int shim_rename(struct fs *fs, uint64_t dir, const char *name, uint64_t dir2, const char *name2)
{
	TREE_SCOPE(fs);
	struct node *d1 = node_find(fs, dir), *d2 = node_find(fs, dir2), *n, *victim = NULL;
	int rc = d1 && d2 ? tree_lookup(fs, d1, name, &n, NULL) : -ESTALE;
	if (rc)
		return rc;
	rc = tree_lookup(fs, d2, name2, &victim, NULL);
	if (rc == -ENOENT)
		victim = NULL;
	else if (rc)
		return rc;
	if (victim && S_ISDIR(n->mode) != S_ISDIR(victim->mode))
		return S_ISDIR(n->mode) ? -ENOTDIR : -EISDIR;
	rc = victim && S_ISDIR(victim->mode) ? tree_dir_empty(fs, victim) : 0;
	if (rc || victim == n)
		return rc;
	struct rec r = rec_new(REC_RENAME);
	r.node = n->id;
	r.node2 = victim && (S_ISDIR(victim->mode) || node_links(victim) <= 1) ? victim->id : 0;
	r.dir = dir;
	r.name = name;
	r.dir2 = dir2;
	r.name2 = name2;
	struct dentry *e = dentry_find(fs, d1, name);
	r.flags = (S_ISDIR(n->mode) ? REC_DIR : 0) |
		  (e->sealed ? 0 : e->store_has ? REC_SHADOW : REC_GHOST);
	return fs_record(fs, &r);
}

int shim_link(struct fs *fs, uint64_t id, uint64_t dir, const char *name)
{
	TREE_SCOPE(fs);
	struct node *n = node_current(fs, id);
	int rc = begin(fs, dir, name);
	if (!rc && (!n || !n->names))
		rc = -ENOENT;
	if (rc)
		return rc;
	struct rec r = rec_new(REC_LINK);
	struct dentry *d = n->names;
	while (d->name_next && !d->sealed)
		d = d->name_next;
	r.node = n->id;
	r.flags = d->sealed ? 0 : REC_GHOST;
	r.dir = d->dir->id;
	r.name = d->name;
	r.dir2 = dir;
	r.name2 = name;
	return fs_record(fs, &r);
}

int shim_chmod(struct fs *fs, uint64_t id, mode_t mode)
{
	TREE_SCOPE(fs);
	struct node *n = node_current(fs, id);
	if (!n || (!n->names && n != fs->root))
		return -ESTALE;
	struct rec r = rec_new(REC_ATTR);
	r.node = n->id;
	r.mask = REC_MODE;
	r.mode = mode;
	rec_aim(fs, &r, n);
	return fs_record(fs, &r);
}

int shim_forget(struct fs *fs, uint64_t id)
{
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, id);
	if (!n || n == fs->root)
		return -ESTALE;
	n->nlookup = 0;
	node_release(fs, n);
	node_gc(fs);
	return 0;
}

void shim_held(struct fs *fs, size_t *nodes, size_t *names)
{
	TREE_SCOPE(fs);
	node_gc(fs);
	*nodes = fs->n_nodes;
	*names = 0;
	for (unsigned i = 0; i < NODE_BUCKETS; i++)
		for (struct dentry *d = fs->dentries[i]; d; d = d->hash_next)
			++*names;
}

int shim_stat(struct fs *fs, uint64_t id, struct stat *st)
{
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, id);
	return n ? node_stat(fs, n, st) : -ESTALE;
}

ssize_t shim_read(struct fs *fs, uint64_t id, void *buf, size_t cap)
{
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, id);
	if (!n)
		return -ESTALE;
	node_check_sf(fs, n);
	if (n->sf) {
		ssize_t got = staged_read(n->sf, buf, cap, 0);
		if (got != -ENODATA)
			return got;
	}
	int fd = node_open_store(fs, n);
	if (fd < 0)
		return fd;
	ssize_t got = pread(fd, buf, cap, 0);
	close(fd);
	return got;
}

uint64_t shim_handle(struct fs *fs, uint64_t fh, bool *writer)
{
	TREE_SCOPE(fs);
	struct handle *h = handle_find(fs, fh);
	if (h && writer)
		*writer = h->writer;
	return h ? h->node->id : 0;
}

unsigned shim_handles(struct fs *fs)
{
	TREE_SCOPE(fs);
	unsigned n = 0;
	for (unsigned i = 0; i < 4096; i++)
		for (struct handle *h = fs->handles[i]; h; h = h->hash_next)
			n++;
	return n;
}

int shim_rotate(struct fs *fs)
{
	TREE_SCOPE(fs);
	return staging_rotate(fs->s, fs_emit, fs);
}

uint64_t shim_expect(struct fs *fs, uint64_t dir, const char *name)
{
	TREE_SCOPE(fs);
	return expect_size(fs, node_find(fs, dir), name);
}

void shim_expect_note(struct fs *fs, uint64_t dir, const char *name, uint64_t size)
{
	TREE_SCOPE(fs);
	struct node *n;
	if (!tree_lookup(fs, node_find(fs, dir), name, &n, NULL))
		expect_note(fs, n, size);
}

/* SPDX-License-Identifier: MIT
 * Applies records to the tree. An operation fills a record; fs_record() logs and applies it. After
 * a restart the same fs_apply() replays the log, which restores the tree. Nothing else changes
 * names, versions or handles. seal.c and emit.c make records of what exists already.
 */
#include "fs/tree/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/formats/formats.h"

void no_memory(void)
{
	fs_log(LEVEL_ERROR "out of memory");
	fs_log_end();
	abort();
}

/* ---- handles ---- */

struct handle *handle_find(struct fs *fs, uint64_t fh)
{
	struct handle *h = fs->tree.handles[fh % 4096];
	while (h && h->fh != fh)
		h = h->hash_next;
	return h;
}

/* h reads n->sf from now on. */
static void use_sf(struct handle *h)
{
	int fd;

	if (!h->node->sf || staged_use(h->node->sf, &fd))
		return;
	h->sf = staged_ref(h->node->sf);
	h->uses_sf = true;
}

static void unuse_sf(struct handle *h)
{
	if (!h->uses_sf)
		return;
	staged_unuse(h->sf);
	staged_unref(h->sf);
	h->sf = NULL;
	h->uses_sf = false;
}

static struct handle *handle_new(struct fs *fs, const struct rec *r, struct node *n)
{
	struct handle *h = calloc(1, sizeof(*h));
	if (!h)
		no_memory();
	h->fh = r->fh;
	h->node = n;
	h->fd = -1;
	h->flags = (int)r->mask;
	h->lane = r->lane;
	h->writer = r->flags & REC_WRITE;
	use_sf(h);
	h->uid = r->uid;
	h->counted = h->uses_sf || h->lane == LANE_RELAY || n->buf;
	if (h->counted)
		share_opened(h->uid);
	n->handles++;
	n->lane = h->lane;
	if (h->writer) {
		n->writers++;
		n->version.accepted = false;
		free(n->version.save); /* its next seal is of the save that is under way then */
		n->version.save = NULL;
		n->version.counted = false;
		n->version.rdwr |= !!(r->flags & REC_RDWR);
	}
	if (r->backing) {
		h->uses_backing = true;
		n->backing.id = (int32_t)r->backing;
		n->backing.users++;
		if (h->sf)
			staged_set_backing(h->sf); /* registered again after a restart */
	}
	h->hash_next = fs->tree.handles[r->fh % 4096];
	fs->tree.handles[r->fh % 4096] = h;
	return h;
}

void handle_free(struct fs *fs, struct handle *h)
{
	struct handle **pp = &fs->tree.handles[h->fh % 4096];
	struct node *n = h->node;
	while (*pp != h)
		pp = &(*pp)->hash_next;
	*pp = h->hash_next;
	if (h->counted)
		share_closed(h->uid);
	if (--n->handles == 0 && n->stored.retained) {
		n->stored.retained = false;
		staging_retain_end(fs->s, n->id);
	}
	if (h->writer)
		n->writers--;
	if (h->uses_backing && --n->backing.users == 0)
		n->backing.id = 0;
	unuse_sf(h);
	if (h->fd >= 0)
		store_fd_close(fs, h->fd);
	free(h);
	buffers_closed(fs, n);
	node_drop_bytes(fs, n);
}

bool handles_may_follow(struct fs *fs, const struct node *n)
{
	if (n->backing.id)
		return false;
	for (unsigned b = 0; b < 4096; b++)
		for (const struct handle *h = fs->tree.handles[b]; h; h = h->hash_next)
			if (h->node == n && h->fd >= 0)
				return false;
	return true;
}

void handles_follow(struct fs *fs, struct node *n)
{
	for (unsigned b = 0; n->handles && b < 4096; b++)
		for (struct handle *h = fs->tree.handles[b]; h; h = h->hash_next)
			if (h->node == n && h->sf != n->sf) {
				unuse_sf(h);
				use_sf(h);
			}
}

/* ---- names ---- */

static struct dentry *name_at(struct fs *fs, uint64_t dir_id, const char *name)
{
	struct node *dir = node_find(fs, dir_id);
	return dir ? dentry_find(fs, dir, name) : NULL;
}

static void dir_changed(struct node *dir, const struct rec *r, int links)
{
	if (!dir)
		return;
	/* 1: this filesystem does not count subdirectories (btrfs) */
	if (dir->attr.nlink > 1)
		dir->attr.nlink = (nlink_t)((long)dir->attr.nlink + links);
	dir->attr.mtime = dir->attr.ctime = r->when;
	if (r->seq)
		dir->seq.names = r->seq;
}

static void links_changed(struct node *n, uint64_t seq)
{
	if (n->seq.links != UINT64_MAX)
		n->seq.links = seq;
}

/* n lost the name d at seq. Its bytes in the store may have to be found by another name. */
static void name_lost(struct fs *fs, struct node *n, uint64_t dir, const char *name,
		      const struct rec *r)
{
	const struct place *last = n->stored.places;
	while (last && last->next)
		last = last->next;
	n->attr.ctime = r->when;
	links_changed(n, r->seq);
	if (last && last->dir == dir && !strcmp(last->name, name))
		for (struct dentry *d = n->names; d; d = d->name_next)
			if (d->ordered) {
				node_place_add(fs, n, r->seq, d->dir->id, d->name);
				break;
			}
	node_drop_bytes(fs, n);
}

/* dir/name commits a checkpoint: what was answered for until now belongs to it. */
static void commit_came(struct node *dir, const char *name)
{
	char buf[64];

	if (!ckpt_commits_shards(name))
		return;
	for (struct dentry *d = dir->children; d; d = d->sib_next) {
		const struct node_version *v = d->node ? &d->node->version : NULL;
		for (int which = 0; v && which < 2; which++) {
			const char *by = ckpt_commit_of(d->name, which, buf);
			if (by && !strcmp(by, name) && (v->accepted || v->flushed.when.tv_sec))
				d->committed = true;
		}
	}
}

static void names_commit(const struct node *n)
{
	for (const struct dentry *d = n->names; d; d = d->name_next)
		commit_came(d->dir, d->name);
}

static struct dentry *name_new(struct fs *fs, uint64_t dir_id, const char *name, struct node *n,
			       const struct rec *r, bool in_store)
{
	struct node *dir = node_find(fs, dir_id);
	struct dentry *d = dir ? dentry_set(fs, dir, name, n) : NULL;
	if (!d)
		return NULL;
	d->seq = r->seq;
	if (in_store)
		d->store_has = d->ordered = true;
	else
		d->ordered = false;
	d->committed = false;
	commit_came(dir, name);
	dir_changed(dir, r, n && S_ISDIR(n->attr.mode) ? 1 : 0);
	return d;
}

static struct node *node_from(struct fs *fs, const struct rec *r, mode_t type)
{
	struct node *n = node_new(fs, r->node, r->ino, (r->mode & 07777) | type);
	if (!n)
		no_memory();
	n->attr.uid = r->uid;
	n->attr.gid = r->gid;
	n->attr.atime = n->attr.mtime = n->attr.ctime = r->when;
	n->seq.born = r->seq ? r->seq : UINT64_MAX;
	n->version.sealed = r->seq != 0;
	n->xattrs_loaded = true;
	return n;
}

static void attach_sf(struct fs *fs, struct node *n, const struct rec *r)
{
	struct staged *sf = NULL;
	int err = r->sf ? staged_recover(fs->s, r, &sf) : -ENOENT;
	if (err && err != -ENOENT && err != -EINVAL) /* -EINVAL: not a file of ours */
		fs->tree.replay_error = err;
	node_set_sf(fs, n, err ? NULL : sf);
}

static void apply_staged(struct fs *fs, struct node *n, const struct rec *r)
{
	if (!(n->sf && staged_id(n->sf) == r->sf)) {
		attach_sf(fs, n, r);
		if (n->sf && !n->backing.id)
			handles_follow(fs, n);
	}
	if (n->sf)
		staged_torn_in(n->sf, r);
	if (r->flags & REC_FAILED)
		n->version.accepted = false;
}

static void apply_create(struct fs *fs, const struct rec *r)
{
	struct node *n = node_from(fs, r, S_IFREG);
	attach_sf(fs, n, r);
	name_new(fs, r->dir, r->name, n, r, false);
}

static void apply_made(struct fs *fs, const struct rec *r)
{
	mode_t type = r->type == REC_MKDIR     ? S_IFDIR
		      : r->type == REC_SYMLINK ? S_IFLNK
					       : (r->mode & S_IFMT);
	struct node *n = node_from(fs, r, type);
	if (r->type == REC_SYMLINK) {
		n->target = strndup(r->data, r->data_len);
		if (!n->target)
			no_memory();
		n->attr.size = strlen(n->target);
	}
	struct node *dir = node_find(fs, r->dir);
	if (r->type == REC_MKDIR) {
		store_names_start(n);
		n->stored.dev = dir ? dir->stored.dev : 0;
	}
	if (r->type != REC_MKDIR)
		node_place_add(fs, n, r->seq, r->dir, r->name);
	else if (dir && dir->attr.nlink == 1)
		n->attr.nlink = 1;
	name_new(fs, r->dir, r->name, n, r, true);
}

static void apply_unlink(struct fs *fs, const struct rec *r)
{
	struct dentry *d = name_at(fs, r->dir, r->name);
	if (!d || !d->node)
		return;
	struct node *n = d->node;
	dir_changed(d->dir, r, S_ISDIR(n->attr.mode) ? -1 : 0);
	dentry_whiteout(fs, d, r->seq);
	if (S_ISDIR(n->attr.mode))
		n->attr.nlink = 0;
	else
		name_lost(fs, n, r->dir, r->name, r);
	node_release(fs, n);
}

static void apply_rename(struct fs *fs, const struct rec *r)
{
	struct dentry *from = name_at(fs, r->dir, r->name), *to = name_at(fs, r->dir2, r->name2);
	if (!from || !from->node)
		return;
	struct node *n = from->node, *victim = to ? to->node : NULL;
	bool sealed = from->ordered, had = to && to->store_has, committed = to && to->committed;
	bool dir = S_ISDIR(n->attr.mode);
	struct node *from_dir = from->dir;

	if (victim)
		dentry_whiteout(fs, to, r->seq);
	dentry_whiteout(fs, from, r->seq);
	to = name_new(fs, r->dir2, r->name2, n, r, sealed);
	if (!to)
		no_memory();
	to->store_has = sealed || had;
	to->committed = committed;
	if (had || committed) /* the close has not seen what it replaces here */
		n->version.flushed = (struct staged_moment){0};
	dir_changed(from_dir, r, dir ? -1 : 0);
	if (!dir && sealed) {
		const struct place *last = n->stored.places;
		while (last && last->next)
			last = last->next;
		if (!last || (last->dir == r->dir && !strcmp(last->name, r->name)))
			node_place_add(fs, n, r->seq, r->dir2, r->name2);
	}
	n->attr.ctime = r->when;
	if (!victim)
		return;
	if (S_ISDIR(victim->attr.mode)) {
		victim->attr.nlink = 0;
		dir_changed(to->dir, r, -1);
	} else {
		name_lost(fs, victim, r->dir2, r->name2, r);
		if (!sealed && had) /* the store keeps it there until n is sealed */
			victim->seq.links = UINT64_MAX;
	}
	node_release(fs, victim);
}

static void apply_link(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	if (!n)
		return;
	struct dentry *d = name_at(fs, r->dir2, r->name2);
	bool had = d && d->store_has;
	d = name_new(fs, r->dir2, r->name2, n, r, !(r->flags & REC_ABSENT));
	if (d && (r->flags & REC_ABSENT))
		d->store_has = had;
	n->attr.ctime = r->when;
	links_changed(n, r->seq);
}

static void apply_attr(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	if (!n)
		return;
	if (r->mask & REC_MODE)
		n->attr.mode = (n->attr.mode & S_IFMT) | (r->mode & 07777);
	if (r->mask & REC_UID)
		n->attr.uid = r->uid;
	if (r->mask & REC_GID)
		n->attr.gid = r->gid;
	if (r->mask & REC_ATIME)
		n->attr.atime = r->atime;
	if (r->mask & REC_MTIME)
		n->attr.mtime = r->mtime;
	n->attr.ctime = r->when;
	if (r->seq && !(r->flags & REC_ABSENT))
		n->seq.dirty = r->seq;
	if (n->sf && (r->mask & (REC_ATIME | REC_MTIME))) {
		struct timespec ts[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
		if (r->mask & REC_ATIME)
			ts[0] = r->atime;
		if (r->mask & REC_MTIME)
			ts[1] = r->mtime;
		staged_set_times(n->sf, ts);
	}
}

static void apply_xattr(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	if (!n)
		return;
	bool over = !strcmp(r->name2, CKPT_OVER_KEY); /* internal, not a user's xattr */
	if (!over && !n->xattrs_loaded)
		node_load_xattrs(fs, n);
	if (over) {
		free(n->version.over);
		n->version.over = strndup(r->data, r->data_len);
	} else if (r->type == REC_XATTR) {
		xattr_put(n, r->name2, r->data, r->data_len);
	} else {
		xattr_drop(n, r->name2);
	}
	n->attr.ctime = r->when;
	if (r->seq && !(r->flags & REC_ABSENT))
		n->seq.dirty = r->seq;
}

/* Makes a new file of a buffer's version. */
static void apply_commit(struct fs *fs, const struct rec *r)
{
	struct node *n = node_from(fs, r, S_IFREG);
	buffers_apply_commit(n, r);
	attach_sf(fs, n, r);
	name_new(fs, r->dir, r->name, n, r, false);
}

static void apply_seal(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	if (!n && r->flags & REC_LENT) {
		apply_commit(fs, r);
		n = node_find(fs, r->node);
	}
	if (!n)
		return;
	n->version.sealed = true;
	/* the only size known after a restart once the staged file is evicted */
	n->attr.size = r->size;
	n->attr.atime = r->atime;
	n->attr.mtime = r->mtime;
	n->version.accepted = false;
	n->seq.seal = r->seq;
	if (n->seq.born == UINT64_MAX)
		n->seq.born = r->seq;
	if (!(r->flags & REC_FSYNCED))
		n->version.rdwr = false;
	n->stored.adopt = true;
	for (struct dentry *d = n->names; d; d = d->name_next)
		name_touch(fs, d->dir->id, d->name);
	if (n->names)
		node_place_add(fs, n, r->seq, n->names->dir->id, n->names->name);
	names_commit(n);
	for (struct dentry *d = n->names; d; d = d->name_next) {
		d->store_has = d->ordered = true;
		d->seq = r->seq;
		if (d->dir->seq.names < r->seq)
			d->dir->seq.names = r->seq;
	}
}

/* Moves the names to a new node with the same st_ino; readers keep the old one. */
static void apply_fork(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	if (!n)
		return;
	struct node *m = node_new(fs, r->node2, n->ino, n->attr.mode);
	if (!m)
		no_memory();
	m->attr.uid = n->attr.uid;
	m->attr.gid = n->attr.gid;
	m->attr.unknown = n->attr.unknown;
	n->attr.unknown = 0;
	m->attr.atime = n->attr.atime;
	m->attr.mtime = n->attr.mtime;
	m->attr.ctime = n->attr.ctime;
	m->attr.size = n->attr.size;
	m->attr.blocks = n->attr.blocks;
	m->seq.dirty = n->seq.dirty;
	m->seq.born = n->seq.born;
	m->seq.seal = n->seq.seal;
	m->seq.placed = n->seq.placed;
	m->seq.links = n->seq.links;
	m->seq.below = n->seq.below;
	m->version.sealed = n->version.sealed;
	m->stored.adopt = n->stored.adopt;
	n->attr.size = r->size;
	n->attr.atime = r->atime;
	n->attr.mtime = r->mtime;
	node_set_store_ino(fs, m, n->stored.ino, n->stored.birth);
	for (struct place *p = n->stored.places; p; p = p->next)
		node_place_add(fs, m, p->seq, p->dir, p->name);
	m->xattrs = n->xattrs;
	m->xattrs_loaded = n->xattrs_loaded;
	n->xattrs = NULL;
	if (n->sf) {
		m->sf = staged_ref(n->sf);
		staged_set_node(n->sf, m->id);
	}
	while (n->names) {
		struct dentry *d = n->names;
		dentry_set(fs, d->dir, d->name, m);
	}
	n->fork.to = m->id;
}

/* Restores a node that a rotation or a lookup logged. */
static void apply_node(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	bool sealed = r->flags & REC_SEALED;
	if (!n && r->flags & REC_ABSENT)
		return;
	if (!n) {
		n = node_new(fs, r->node, r->ino, r->mode);
		if (!n)
			no_memory();
		n->attr.uid = r->uid;
		n->attr.gid = r->gid;
		n->attr.atime = r->atime;
		n->attr.mtime = r->mtime;
		n->attr.ctime = r->when;
		n->attr.size = r->size;
		n->attr.nlink = (nlink_t)r->mask;
		n->attr.unknown = S_ISDIR(r->mode) ? 0 : (nlink_t)r->mask;
		n->version.sealed = sealed;
		n->seq.born = sealed ? 0 : UINT64_MAX;
		n->xattrs_loaded = !sealed;
		n->pinned = true;
		n->fork.to = r->fh;
		if (r->node2)
			node_set_store_ino(fs, n, r->node2, r->dir2);
	}
	/* identifies its file in the store before n loses its names: node_keep_version */
	if (!r->dir && r->node2) {
		node_set_store_ino(fs, n, r->node2, r->dir2);
		n->stored.adopt = false;
	}
	struct node *dir = r->dir ? node_find(fs, r->dir) : NULL;
	if (!dir)
		return;
	struct dentry *d = dentry_set(fs, dir, r->name, n);
	if (!d)
		no_memory();
	if (n->attr.unknown)
		n->attr.unknown--;
	d->seq = 0;
	d->ordered = sealed;
	d->store_has = sealed || (r->flags & REC_SHADOW);
	d->committed = r->flags & REC_OVER;
	if (sealed && !S_ISDIR(n->attr.mode) && !n->stored.places)
		node_place_add(fs, n, 0, r->dir, r->name);
}

/* The node, and the directories that it was in or came to, are not durable before r is. */
static void raise_all(struct fs *fs, const struct rec *r)
{
	const uint64_t ids[] = {r->node, r->dir, r->type == REC_RENAME ? r->dir2 : 0};
	struct node *n;

	for (unsigned i = 0; i < 3; i++)
		if (ids[i] && (n = node_find(fs, ids[i])))
			node_raise(fs, n, r->seq);
}

void fs_apply(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	struct handle *h;

	if (n)
		node_touch(fs, n);
	switch (r->type) {
	case REC_NODE: apply_node(fs, r); break;
	case REC_CREATE: apply_create(fs, r); break;
	case REC_MKDIR:
	case REC_SYMLINK:
	case REC_MKNOD: apply_made(fs, r); break;
	case REC_UNLINK:
	case REC_RMDIR: apply_unlink(fs, r); break;
	case REC_RENAME: apply_rename(fs, r); break;
	case REC_LINK: apply_link(fs, r); break;
	case REC_ATTR: apply_attr(fs, r); break;
	case REC_XATTR:
	case REC_XATTR_DEL: apply_xattr(fs, r); break;
	case REC_SEAL: apply_seal(fs, r); break;
	case REC_FLUSHED:
		if (n) {
			n->version.accepted = true;
			n->version.flushed = (struct staged_moment){r->mtime, r->when};
			n->version.accepted_nth = ++fs->tree.n_accepted;
			names_commit(n);
		}
		break;
	case REC_FORK: apply_fork(fs, r); break;
	case REC_BUFFER: buffers_apply(fs, r); break;
	case REC_STAGED:
		if (n)
			apply_staged(fs, n, r);
		break;
	case REC_OPEN:
		if (n)
			handle_new(fs, r, n);
		/* truncated: the version that was accepted is gone */
		if (n && r->flags & REC_WRITE && r->mask & O_TRUNC)
			n->version.accepted = false;
		break;
	case REC_CLOSE:
		h = handle_find(fs, r->fh);
		if (h)
			handle_free(fs, h);
		break;
	case REC_UNSTAGED:
		if (n && n->sf && staged_id(n->sf) == r->sf)
			node_set_sf(fs, n, NULL);
		break;
	case REC_FORGET:
		if (n)
			node_forgotten(fs, n);
		break;
	default: break;
	}
	if (r->seq)
		raise_all(fs, r);
}

int fs_record(struct fs *fs, struct rec *r)
{
	int err = staging_log(fs->s, r);
	fs->tree.absent.dir = 0;
	if (r->unique) /* tells a resent request that it was carried out */
		ask_no_more();
	if (!err)
		fs_apply(fs, r);
	return err;
}

/* Restores what the FLUSH of n found out, so that a rotation logs it again. */
static void replay_over(struct node *n, const struct rec *r)
{
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;
	int kind;

	free(n->version.over);
	n->version.over = NULL;
	while ((kind = rec_unpack(r->data, r->data_len, &pos, &name, &pair)) > 0)
		if (kind == 2 && !n->version.over && !strcmp(pair.key, CKPT_OVER_KEY))
			n->version.over = strndup(pair.val, pair.len);
}

int fs_replay(void *ctx, const struct rec *r)
{
	struct fs *fs = ctx;
	fs_apply(fs, r);
	struct node *flushed = r->type == REC_FLUSHED ? node_find(fs, r->node) : NULL;
	if (flushed) {
		replay_over(flushed, r);
		save_restore(flushed, r);
	}
	/* nodes made by operations are known to the kernel, too */
	struct node *n = r->node ? node_find(fs, r->type == REC_FORK ? r->node2 : r->node) : NULL;
	if (n && (r->type == REC_CREATE || r->type == REC_MKDIR || r->type == REC_SYMLINK ||
		  r->type == REC_MKNOD || r->type == REC_FORK ||
		  (r->type == REC_SEAL && r->flags & REC_LENT)))
		n->pinned = true;
	return fs->tree.replay_error;
}

/* ---- a node from the store ---- */

struct rec rec_node(struct node *n, struct dentry *d)
{
	struct rec r = rec_new(REC_NODE);
	r.unique = 0;
	r.node = n->id;
	if (!n->stored.adopt) { /* else these belong to the previous version */
		r.node2 = n->stored.ino;
		r.dir2 = n->stored.birth;
	}
	r.ino = n->ino;
	r.mode = n->attr.mode;
	r.uid = n->attr.uid;
	r.gid = n->attr.gid;
	r.atime = n->attr.atime;
	r.mtime = n->attr.mtime;
	r.when = n->attr.ctime;
	r.size = n->attr.size;
	r.mask = node_links(n);
	r.fh = n->fork.to;
	if (d) {
		r.dir = d->dir->id;
		r.name = d->name;
		r.flags = (d->ordered ? REC_SEALED : 0) |
			  (!d->ordered && d->store_has ? REC_SHADOW : 0) |
			  (d->committed ? REC_OVER : 0);
	}
	return r;
}

void fs_learned(struct fs *fs, struct node *n, struct dentry *d)
{
	struct rec r = rec_node(n, d);
	staging_log(fs->s, &r);
}

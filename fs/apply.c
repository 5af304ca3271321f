/* SPDX-License-Identifier: MIT
 * Records become tree. An operation fills a record, fs_record() logs it and
 * applies it; after a restart the same fs_apply() runs over the log, and the tree
 * is as it was. Nothing else changes names, versions or handles. */
#include "fs/fs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/formats/formats.h"

struct rec rec_new(uint32_t type)
{
	struct rec r = {.type = type, .unique = current.unique};
	clock_gettime(CLOCK_REALTIME, &r.when);
	return r;
}

struct rec rec_staged(const struct node *n)
{
	struct rec r = rec_new(REC_STAGED);
	r.unique = 0;
	r.node = n->id;
	r.sf = staged_id(n->sf);
	r.name = n->names ? n->names->name : "";
	r.flags = (staged_spilled(n->sf) ? REC_SPILLED : 0) | (staged_huge(n->sf) ? REC_HUGE : 0);
	bool loan;
	r.fh = staged_lender(n->sf, &loan);
	r.flags |= loan ? REC_LENT : 0;
	return r;
}

static void no_memory(void)
{
	/* a record is logged and cannot be shown: die, the next worker replays it */
	fs_log("out of memory");
	abort();
}

/* ---- handles ---- */

struct handle *handle_find(struct fs *fs, uint64_t fh)
{
	struct handle *h = fs->handles[fh % 4096];
	while (h && h->fh != fh)
		h = h->hash_next;
	return h;
}

static struct handle *handle_new(struct fs *fs, const struct rec *r, struct node *n)
{
	struct handle *h = calloc(1, sizeof(*h));
	int fd;
	if (!h)
		no_memory();
	h->fh = r->fh;
	h->node = n;
	h->fd = -1;
	h->flags = (int)r->mask;
	h->lane = r->lane;
	h->writer = r->flags & REC_WRITE;
	if (n->sf && staged_use(n->sf, &fd) == 0) {
		h->sf = staged_ref(n->sf);
		h->uses_sf = true;
	}
	n->handles++;
	n->lane = h->lane;
	if (h->writer) {
		n->writers++;
		n->accepted = false;
		n->rdwr |= !!(r->flags & REC_RDWR);
	}
	if (r->backing) {
		h->uses_backing = true;
		n->backing = (int32_t)r->backing;
		n->backing_users++;
		if (h->sf)
			staged_set_backing(h->sf);	/* again, after a restart */
	}
	h->hash_next = fs->handles[r->fh % 4096];
	fs->handles[r->fh % 4096] = h;
	return h;
}

void handle_free(struct fs *fs, struct handle *h)
{
	struct handle **pp = &fs->handles[h->fh % 4096];
	struct node *n = h->node;
	while (*pp != h)
		pp = &(*pp)->hash_next;
	*pp = h->hash_next;
	n->handles--;
	if (h->writer)
		n->writers--;
	if (h->uses_backing && --n->backing_users == 0)
		n->backing = 0;
	if (h->uses_sf) {
		staged_unuse(h->sf);
		staged_unref(h->sf);
	}
	if (h->fd >= 0)
		store_fd_close(fs, h->fd);
	free(h);
	buffers_closed(fs, n);
	node_drop_bytes(fs, n);
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
	if (dir->nlink > 1)	/* one: this filesystem does not count them (btrfs) */
		dir->nlink = (nlink_t)((long)dir->nlink + links);
	dir->mtime = dir->ctime = r->when;
	if (r->seq)
		dir->ns_seq = r->seq;
}

static void links_changed(struct node *n, uint64_t seq)
{
	if (n->links_seq != UINT64_MAX)
		n->links_seq = seq;
}

/* n lost the name d at seq. Its bytes in the store may have to be found under another. */
static void name_lost(struct fs *fs, struct node *n, uint64_t dir, const char *name, const struct rec *r)
{
	const struct place *last = n->places;
	while (last && last->next)
		last = last->next;
	n->ctime = r->when;
	links_changed(n, r->seq);
	if (last && last->dir == dir && !strcmp(last->name, name))
		for (struct dentry *d = n->names; d; d = d->name_next)
			if (d->sealed) {
				node_place_add(n, r->seq, d->dir->id, d->name);
				break;
			}
	node_drop_bytes(fs, n);
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
		d->store_has = d->sealed = true;
	else
		d->sealed = false;
	dir_changed(dir, r, n && S_ISDIR(n->mode) ? 1 : 0);
	return d;
}

static struct node *node_from(struct fs *fs, const struct rec *r, mode_t type)
{
	struct node *n = node_new(fs, r->node, r->ino, (r->mode & 07777) | type);
	if (!n)
		no_memory();
	n->uid = r->uid;
	n->gid = r->gid;
	n->atime = n->mtime = n->ctime = r->when;
	n->born_seq = r->seq ? r->seq : UINT64_MAX;
	n->sealed = r->seq != 0;
	n->xattrs_loaded = true;
	return n;
}

static void attach_sf(struct fs *fs, struct node *n, const struct rec *r)
{
	struct staged *sf = NULL;
	if (r->sf && staged_recover(fs->s, r, &sf) == 0)
		node_set_sf(fs, n, sf);
	else
		node_set_sf(fs, n, NULL);
}

static void apply_create(struct fs *fs, const struct rec *r)
{
	struct node *n = node_from(fs, r, S_IFREG);
	attach_sf(fs, n, r);
	name_new(fs, r->dir, r->name, n, r, false);
}

static void apply_made(struct fs *fs, const struct rec *r)
{
	mode_t type = r->type == REC_MKDIR ? S_IFDIR : r->type == REC_SYMLINK ? S_IFLNK : (r->mode & S_IFMT);
	struct node *n = node_from(fs, r, type);
	if (r->type == REC_SYMLINK) {
		n->target = strndup(r->data, r->data_len);
		if (!n->target)
			no_memory();
		n->size = strlen(n->target);
	}
	struct node *dir = node_find(fs, r->dir);
	if (r->type != REC_MKDIR)
		node_place_add(n, r->seq, r->dir, r->name);
	else if (dir && dir->nlink == 1)
		n->nlink = 1;
	name_new(fs, r->dir, r->name, n, r, true);
}

static void apply_unlink(struct fs *fs, const struct rec *r)
{
	struct dentry *d = name_at(fs, r->dir, r->name);
	if (!d || !d->node)
		return;
	struct node *n = d->node;
	dir_changed(d->dir, r, S_ISDIR(n->mode) ? -1 : 0);
	dentry_whiteout(fs, d, r->seq);
	if (S_ISDIR(n->mode))
		n->nlink = 0;
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
	bool sealed = from->sealed, had = to && to->store_has;
	bool dir = S_ISDIR(n->mode);
	struct node *from_dir = from->dir;

	if (victim)
		dentry_whiteout(fs, to, r->seq);
	dentry_whiteout(fs, from, r->seq);
	to = name_new(fs, r->dir2, r->name2, n, r, sealed);
	if (!to)
		no_memory();
	to->store_has = sealed || had;
	dir_changed(from_dir, r, dir ? -1 : 0);
	if (!dir && sealed) {
		const struct place *last = n->places;
		while (last && last->next)
			last = last->next;
		if (!last || (last->dir == r->dir && !strcmp(last->name, r->name)))
			node_place_add(n, r->seq, r->dir2, r->name2);
	}
	n->ctime = r->when;
	if (!victim)
		return;
	if (S_ISDIR(victim->mode)) {
		victim->nlink = 0;
		dir_changed(to->dir, r, -1);
	} else {
		name_lost(fs, victim, r->dir2, r->name2, r);
		if (!sealed && had)	/* it stays in the store there until n is sealed */
			victim->links_seq = UINT64_MAX;
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
	d = name_new(fs, r->dir2, r->name2, n, r, !(r->flags & REC_GHOST));
	if (d && (r->flags & REC_GHOST))
		d->store_has = had;
	n->ctime = r->when;
	links_changed(n, r->seq);
}

static void apply_attr(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	if (!n)
		return;
	if (r->mask & REC_MODE)
		n->mode = (n->mode & S_IFMT) | (r->mode & 07777);
	if (r->mask & REC_UID)
		n->uid = r->uid;
	if (r->mask & REC_GID)
		n->gid = r->gid;
	if (r->mask & REC_ATIME)
		n->atime = r->atime;
	if (r->mask & REC_MTIME)
		n->mtime = r->mtime;
	n->ctime = r->when;
	if (r->seq && !(r->flags & REC_GHOST))
		n->dirty_seq = r->seq;
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
	bool over = !strcmp(r->name2, CKPT_OVER_KEY);	/* ours: not among the user's */
	if (!over && !n->xattrs_loaded)
		node_load_xattrs(fs, n);
	if (over) {
		free(n->over);
		n->over = strndup(r->data, r->data_len);
	} else if (r->type == REC_XATTR) {
		xattr_put(n, r->name2, r->data, r->data_len);
	} else {
		xattr_drop(n, r->name2);
	}
	n->ctime = r->when;
	if (r->seq && !(r->flags & REC_GHOST))
		n->dirty_seq = r->seq;
}

/* The version of a buffer is a new file. */
static void apply_commit(struct fs *fs, const struct rec *r)
{
	struct node *n = node_from(fs, r, S_IFREG);
	buffers_apply_commit(fs, n, r);
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
	n->sealed = true;
	n->size = r->size;	/* all that a restart knows when the staged file is gone */
	n->atime = r->atime;
	n->mtime = r->mtime;
	n->accepted = false;
	n->seal_seq = r->seq;
	if (n->born_seq == UINT64_MAX)
		n->born_seq = r->seq;
	if (!(r->flags & REC_FSYNCED))
		n->rdwr = false;
	n->adopt = true;
	if (n->names)
		node_place_add(n, r->seq, n->names->dir->id, n->names->name);
	for (struct dentry *d = n->names; d; d = d->name_next) {
		d->store_has = d->sealed = true;
		d->seq = r->seq;
		if (d->dir->ns_seq < r->seq)
			d->dir->ns_seq = r->seq;
	}
}

/* The names go to a new node with the same st_ino; readers keep the old one. */
static void apply_fork(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	if (!n)
		return;
	struct node *m = node_new(fs, r->node2, n->ino, n->mode);
	if (!m)
		no_memory();
	m->uid = n->uid;
	m->gid = n->gid;
	m->unknown = n->unknown;
	n->unknown = 0;
	m->atime = n->atime;
	m->mtime = n->mtime;
	m->ctime = n->ctime;
	m->size = n->size;
	m->blocks = n->blocks;
	m->dirty_seq = n->dirty_seq;
	m->born_seq = n->born_seq;
	m->seal_seq = n->seal_seq;
	m->placed_seq = n->placed_seq;
	m->links_seq = n->links_seq;
	m->sealed = n->sealed;
	m->adopt = n->adopt;
	n->size = r->size;
	n->atime = r->atime;
	n->mtime = r->mtime;
	uint64_t sino = n->sino;
	node_set_sino(fs, n, 0);
	node_set_sino(fs, m, sino);
	for (struct place *p = n->places; p; p = p->next)
		node_place_add(m, p->seq, p->dir, p->name);
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
	n->fork_to = m->id;
}

/* A node as a rotation or a lookup wrote it. */
static void apply_node(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	bool sealed = r->flags & REC_SEALED;
	if (!n) {
		n = node_new(fs, r->node, r->ino, r->mode);
		if (!n)
			no_memory();
		n->uid = r->uid;
		n->gid = r->gid;
		n->atime = r->atime;
		n->mtime = r->mtime;
		n->ctime = r->when;
		n->size = r->size;
		n->nlink = (nlink_t)r->mask;
		n->unknown = S_ISDIR(r->mode) ? 0 : (nlink_t)r->mask;
		n->sealed = sealed;
		n->born_seq = sealed ? 0 : UINT64_MAX;
		n->xattrs_loaded = !sealed;
		n->pinned = true;
		n->fork_to = r->fh;
		if (r->node2)
			node_set_sino(fs, n, r->node2);
	}
	struct node *dir = r->dir ? node_find(fs, r->dir) : NULL;
	if (!dir)
		return;
	struct dentry *d = dentry_set(fs, dir, r->name, n);
	if (!d)
		no_memory();
	if (n->unknown)
		n->unknown--;
	d->seq = 0;
	d->sealed = sealed;
	d->store_has = sealed || (r->flags & REC_SHADOW);
	if (sealed && !S_ISDIR(n->mode) && !n->places)
		node_place_add(n, 0, r->dir, r->name);
}

void fs_apply(struct fs *fs, const struct rec *r)
{
	struct node *n = node_find(fs, r->node);
	struct handle *h;

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
		if (n)
			n->accepted = true;
		break;
	case REC_FORK: apply_fork(fs, r); break;
	case REC_BUFFER: buffers_apply(fs, r); break;
	case REC_STAGED:
		if (n && !(n->sf && staged_id(n->sf) == r->sf))
			attach_sf(fs, n, r);
		break;
	case REC_OPEN:
		if (n)
			handle_new(fs, r, n);
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
		if (n && n != fs->root) {
			n->pinned = false;
			node_release(fs, n);
		}
		break;
	default:
		break;
	}
}

int fs_record(struct fs *fs, struct rec *r)
{
	int rc = staging_log(fs->s, r);
	fs->absent.dir = 0;
	if (!rc)
		fs_apply(fs, r);
	return rc;
}

int fs_replay(void *ctx, const struct rec *r)
{
	struct fs *fs = ctx;
	fs_apply(fs, r);
	/* nodes made by operations are known to the kernel as well */
	struct node *n = r->node ? node_find(fs, r->type == REC_FORK ? r->node2 : r->node) : NULL;
	if (n && (r->type == REC_CREATE || r->type == REC_MKDIR || r->type == REC_SYMLINK ||
		  r->type == REC_MKNOD || r->type == REC_FORK || (r->type == REC_SEAL && r->flags & REC_LENT)))
		n->pinned = true;
	return 0;
}

/* ---- seals ---- */

static bool is_over(const char *mark, struct timespec commit)
{
	struct timespec t;
	return ckpt_over_parse(mark, "", &t) && t.tv_sec == commit.tv_sec && t.tv_nsec == commit.tv_nsec;
}

/* What stands by d's name in the store says of itself; "" when it says nothing. */
static void store_says(struct fs *fs, const struct dentry *d, const char *key, char buf[CKPT_OVER_ROOM])
{
	ssize_t len = -ENOENT;
	int fd;
	if (!staging_dir_get(fs->s, d->dir->id, &fd)) {
		len = io_get_xattr(fs->store, fd, d->name, key, buf, CKPT_OVER_ROOM - 1);
		staging_dir_put(fs->s, d->dir->id);
	}
	buf[len < 0 ? 0 : len] = '\0';
}

/* The mark for what replaces old's version at d, a name of it, which c commits. An earlier one that
 * says the same is kept, for it knows what was committed. */
static void print_over(struct fs *fs, const struct node *old, const struct dentry *d, struct node *c,
		       char mark[CKPT_OVER_ROOM])
{
	char sum[CKPT_OVER_ROOM] = "";
	struct stat st;

	node_stat(fs, c, &st);
	if (old->over && is_over(old->over, st.st_mtim)) {
		snprintf(mark, CKPT_OVER_ROOM, "%s", old->over);
		return;
	}
	store_says(fs, d, CKPT_OVER_KEY, mark);
	if (is_over(mark, st.st_mtim))
		return;
	/* the order is kept: where the store has c it has what c commits */
	if (!node_dirty(fs, c) && !dentry_dirty(fs, c->names))
		store_says(fs, d, "user.cairn.checksum", sum);
	ckpt_over_print(st.st_mtim, sum, mark);
}

/* Does what stands at d, a version of n, belong to a checkpoint that is committed? Then the mark for
 * what replaces it. */
static bool is_committed(struct fs *fs, const struct node *n, const struct dentry *d, char mark[CKPT_OVER_ROOM])
{
	char buf[64];
	for (int which = 0; d->store_has && which < 2; which++) {
		const char *name = ckpt_commit_of(d->name, which, buf);
		struct node *c = NULL;
		if (!name || tree_lookup(fs, d->dir, name, &c, NULL) || !S_ISREG(c->mode))
			continue;
		print_over(fs, n, d, c, mark);
		if (!c->nlookup)
			node_release(fs, c);
		return true;
	}
	return false;
}

/* A shard gets a new version while what commits it stands: it says so of itself, until that is
 * written anew. */
static void note_over(struct fs *fs, struct node *n)
{
	char buf[64], mark[CKPT_OVER_ROOM];
	struct dentry *d = n->names;
	while (d && !(d->store_has && ckpt_commit_of(d->name, 0, buf)))
		d = d->name_next;
	bool over = d && is_committed(fs, n, d, mark);
	free(n->over);
	n->over = over ? strdup(mark) : NULL;
}

int fs_replaces(struct fs *fs, struct node *n, const struct node *victim, const struct dentry *d)
{
	struct rec r = rec_new(REC_XATTR);
	char mark[CKPT_OVER_ROOM];

	r.unique = 0;
	rec_aim(fs, &r, n);
	if (r.flags & REC_GHOST || !S_ISREG(n->mode) || !S_ISREG(victim->mode) || !io_store_has_xattr(fs->store) ||
	    !is_committed(fs, victim, d, mark))
		return 0;	/* one that is still to be sealed is marked then */
	r.node = n->id;
	r.name2 = CKPT_OVER_KEY;
	r.data = mark;
	r.data_len = (uint32_t)strlen(mark);
	return fs_record(fs, &r);
}

/* Everything the store is to know of n: names, attributes, xattrs. *data is the caller's. */
static int fill_seal(struct fs *fs, struct node *n, struct rec *out, void **data)
{
	struct rec r = rec_new(REC_SEAL);
	unsigned n_names = 0, n_pairs = 0;

	r.unique = 0;	/* FLUSH and RELEASE may be carried out twice */
	note_over(fs, n);
	for (struct dentry *d = n->names; d; d = d->name_next)
		n_names++;
	for (struct xattr *x = n->xattrs; x; x = x->next)
		n_pairs++;
	struct rec_name *names = calloc(n_names + 1, sizeof(*names));
	struct rec_pair *pairs = calloc(n_pairs + 2, sizeof(*pairs));
	if (!names || !pairs)
		no_memory();
	n_names = n_pairs = 0;
	for (struct dentry *d = n->names; d; d = d->name_next) {
		names[n_names++] = (struct rec_name){.dir = d->dir->id, .name = d->name};
		if (d->store_has)
			r.flags |= REC_SHADOW;	/* an earlier version stands there */
	}
	for (struct xattr *x = n->xattrs; x; x = x->next)
		pairs[n_pairs++] = (struct rec_pair){.key = x->key, .val = x->val, .len = x->len};
	if (n->over)
		pairs[n_pairs++] = (struct rec_pair){.key = CKPT_OVER_KEY, .val = n->over,
						     .len = (uint32_t)strlen(n->over)};
	ssize_t len = rec_pack(names, n_names, pairs, n_pairs, data);
	r.dir = n_names ? names[0].dir : 0;
	r.name = n_names ? names[0].name : "";
	free(names);
	free(pairs);
	if (len < 0)
		return (int)len;
	r.node = n->id;
	r.ino = n->ino;
	r.mode = n->mode & 07777;
	r.uid = n->uid;
	r.gid = n->gid;
	r.data = *data;
	r.data_len = (uint32_t)len;
	*out = r;
	return 0;
}

static int fill_flushed(struct fs *fs, struct node *n, struct rec *r, void **data)
{
	int rc = fill_seal(fs, n, r, data);
	r->type = REC_FLUSHED;
	r->sf = staged_id(n->sf);
	r->flags |= (staged_spilled(n->sf) ? REC_SPILLED : 0) | (staged_huge(n->sf) ? REC_HUGE : 0);
	return rc;
}

/* A close is about to be answered; its RELEASE may be lost with everything else. */
int fs_flushed(struct fs *fs, struct node *n)
{
	struct rec r = {.type = 0};
	void *data = NULL;
	int rc = fill_flushed(fs, n, &r, &data);
	if (!rc)
		rc = fs_record(fs, &r);
	free(data);
	return rc;
}

int fs_seal(struct fs *fs, struct node *n, bool closed, uint64_t *seq)
{
	struct rec r;
	void *data = NULL;
	int rc = fill_seal(fs, n, &r, &data);
	if (!rc)
		rc = staging_seal(fs->s, n->sf, &r, closed);
	if (!rc) {
		fs_apply(fs, &r);
		struct staged_info i;
		staged_get_state(n->sf, &i);
		if (closed)	/* what it takes, not what its holes pretend */
			expect_note(fs, n, i.blocks * 512 < r.size ? i.blocks * 512 : r.size);
		if (seq)
			*seq = r.seq;
	}
	free(data);
	return rc;
}

/* ---- what a rotation writes ---- */

static struct rec node_rec(struct node *n, struct dentry *d)
{
	struct rec r = rec_new(REC_NODE);
	r.unique = 0;
	r.node = n->id;
	r.node2 = n->sino;
	r.ino = n->ino;
	r.mode = n->mode;
	r.uid = n->uid;
	r.gid = n->gid;
	r.atime = n->atime;
	r.mtime = n->mtime;
	r.when = n->ctime;
	r.size = n->size;
	r.mask = node_links(n);
	r.fh = n->fork_to;
	if (d) {
		r.dir = d->dir->id;
		r.name = d->name;
		r.flags = (d->sealed ? REC_SEALED : 0) | (!d->sealed && d->store_has ? REC_SHADOW : 0);
	}
	return r;
}

void fs_learned(struct fs *fs, struct node *n, struct dentry *d)
{
	struct rec r = node_rec(n, d);
	staging_log(fs->s, &r);
}

static int emit_one(struct fs *fs, struct node *n, struct dentry *d)
{
	struct rec r = node_rec(n, d);
	int rc = staging_emit(fs->s, &r);
	if (rc || (d && d != n->names))
		return rc;	/* the rest once a node */
	if (n->sf) {
		struct staged_info i;
		staged_get_info(n->sf, &i);
		r = rec_staged(n);
		r.size = i.size;
		r.atime = i.atime;
		r.mtime = i.mtime;
		if (i.state == STAGED_DURABLE || i.state == STAGED_EVICTED)
			r.flags |= REC_SEALED;
		rc = staging_emit(fs->s, &r);
	}
	for (struct xattr *x = n->xattrs; !rc && x && !n->sealed; x = x->next) {
		r = rec_new(REC_XATTR);
		r.unique = 0;
		r.node = n->id;
		r.flags = REC_GHOST | REC_SNAPSHOT;
		r.name2 = x->key;
		r.data = x->val;
		r.data_len = x->len;
		rc = staging_emit(fs->s, &r);
	}
	return rc;
}

/* A close was answered, its RELEASE is yet to come. */
static int emit_accepted(struct fs *fs, struct node *n)
{
	struct rec r = {.type = 0};
	void *data = NULL;
	if (!n->accepted || !n->sf || !n->names)
		return 0;
	int rc = fill_flushed(fs, n, &r, &data);
	if (!rc)
		rc = staging_emit(fs->s, &r);
	free(data);
	return rc;
}

/* Directories before what is in them, without recursion. */
static int emit_tree(struct fs *fs)
{
	size_t cap = 1024, n = 1;
	struct node **stack = malloc(cap * sizeof(*stack));
	int rc = stack ? 0 : -ENOMEM;
	if (!rc)
		stack[0] = fs->root;
	while (!rc && n) {
		struct node *dir = stack[--n];
		for (struct dentry *d = dir->children; !rc && d; d = d->sib_next) {
			if (!d->node)
				continue;
			rc = emit_one(fs, d->node, d);
			if (!S_ISDIR(d->node->mode))
				continue;
			if (n == cap) {
				void *p = realloc(stack, (cap *= 2) * sizeof(*stack));
				if (!p) {
					rc = -ENOMEM;
					break;
				}
				stack = p;
			}
			stack[n++] = d->node;
		}
	}
	free(stack);
	return rc;
}

int fs_emit(void *ctx, struct staging *s)
{
	struct fs *fs = ctx;
	int rc = buffers_emit(fs);	/* who lends before what is lent */
	if (!rc)
		rc = emit_tree(fs);
	for (unsigned i = 0; !rc && i < NODE_BUCKETS; i++)
		for (struct node *n = fs->nodes[i]; !rc && n; n = n->hash_next)
			if (!n->names && n != fs->root)
				rc = emit_one(fs, n, NULL);
	for (unsigned i = 0; !rc && i < 4096; i++)
		for (struct handle *h = fs->handles[i]; !rc && h; h = h->hash_next) {
			struct rec r = rec_new(REC_OPEN);
			r.unique = 0;
			r.fh = h->fh;
			r.node = h->node->id;
			r.mask = (uint64_t)(unsigned)h->flags;
			r.lane = h->lane;
			r.backing = h->uses_backing ? h->node->backing : 0;
			r.flags = (h->writer ? REC_WRITE : 0) | (h->node->rdwr ? REC_RDWR : 0);
			rc = staging_emit(s, &r);
		}
	for (unsigned i = 0; !rc && i < NODE_BUCKETS; i++)	/* behind the opens, which end it */
		for (struct node *n = fs->nodes[i]; !rc && n; n = n->hash_next)
			rc = emit_accepted(fs, n);
	return rc;
}

/* SPDX-License-Identifier: MIT
 * The live tree: nodes learned from the store on demand, overlaid by what is not yet published. A
 * clean name is compared with the store at each lookup, because other nodes of a cluster publish
 * there, too. Tree lock held for all functions. node.c has the nodes and names themselves.
 */
#include "fs/tree/inside.h"
#include "io/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ABSENT_NS 100000000u

static void count_unknown(struct node *n, nlink_t in_store)
{
	n->attr.unknown = 0;
	nlink_t known = node_links(n);
	n->attr.unknown = in_store > known ? in_store - known : 0;
}

static void remember_attr(struct node *n, const struct stat *st)
{
	n->attr.mode = (n->attr.mode & S_IFMT) | (st->st_mode & 07777);
	n->attr.uid = st->st_uid;
	n->attr.gid = st->st_gid;
	n->attr.rdev = st->st_rdev;
	n->attr.atime = st->st_atim;
	n->attr.mtime = st->st_mtim;
	n->attr.ctime = st->st_ctim;
	n->attr.size = (uint64_t)st->st_size;
	n->attr.blocks = (uint64_t)st->st_blocks;
}

int tree_init(struct fs *fs)
{
	struct stat st;
	fs->tree.root = node_new(fs, ROOT_ID, ROOT_ID, S_IFDIR | 0755);
	if (!fs->tree.root)
		return -ENOMEM;
	if (fs->store && !fstat(io_store_root(fs->store), &st)) {
		fs->tree.root->attr.nlink = st.st_nlink;
		fs->tree.root->stored.dev = st.st_dev;
	}
	if (fs->store && io_store_is_detached(fs->store) && fs->root_seen.st_nlink) {
		remember_attr(fs->tree.root, &fs->root_seen);
		fs->tree.root->attr.nlink = fs->root_seen.st_nlink;
	}
	return 0;
}

/* ---- bytes ---- */

/* Whether b is the file that n was last seen as. */
static bool is_seen(const struct node *n, const struct born *b)
{
	return n->stored.ino == b->st.st_ino &&
	       (!n->stored.birth || !b->birth || n->stored.birth == b->birth);
}

static void tell_missed(struct fs *fs, struct node *n)
{
	char path[256];

	node_path(fs, n, path, sizeof(path));
	fs_log(LEVEL_ERROR
	       "%s is not in the store where it was published (%s); another program may have "
	       "changed the store",
	       path, n->stored.places ? n->stored.places->name : "nowhere");
}

/* A descriptor for the caller; *b describes its file, with inode 0 if that cannot be found out. */
static int open_store(struct fs *fs, struct node *n, struct born *b)
{
	int fd;
	*b = (struct born){0};
	if (n->stored.kept_fd >= 0) {
		fd = fcntl(n->stored.kept_fd, F_DUPFD_CLOEXEC, 0);
		return fd < 0 ? -errno : fd;
	}
	/* another file has its place, and ESTALE makes the kernel look the name up again */
	if (!n->names)
		return -ESTALE;
	fd = ask_open(fs, n, b);
	if (fd >= 0 && n->stored.ino && !n->stored.adopt && b->st.st_ino && !is_seen(n, b)) {
		close(fd);
		return -ESTALE;
	}
	/* who reads an empty one is at its end all the same */
	if (fd == -ENOENT && n->attr.size && !n->stored.missed)
		tell_missed(fs, n);
	if (fd >= 0 || fd == -ENOENT)
		n->stored.missed = fd == -ENOENT;
	return fd;
}

int node_open_store(struct fs *fs, struct node *n)
{
	struct born b;
	return open_store(fs, n, &b);
}

int node_keep_bytes(struct fs *fs, struct node *n)
{
	return S_ISREG(n->attr.mode) && n->names && !n->names->name_next ? node_keep_version(fs, n)
									 : 0;
}

static int open_spilled(struct staged *sf)
{
	int fd, err = staged_spilled(sf) ? staged_use(sf, &fd) : -ENODATA;
	if (err)
		return err;
	err = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	err = err < 0 ? -errno : err;
	staged_unuse(sf);
	return err;
}

/* n has readers, stored.kept_fd is its file, and the next worker will need it, too. */
static void retain(struct fs *fs, struct node *n, const struct born *b, bool linked)
{
	if (n->stored.retained || !b->st.st_ino)
		return;
	staging_retain(fs->s, n->id, &b->st, linked);
	n->stored.retained = true;
	struct rec r = rec_new(REC_NODE);
	r.unique = 0;
	r.node = n->id;
	r.ino = n->ino;
	r.mode = n->attr.mode;
	r.node2 = b->st.st_ino;
	r.dir2 = b->birth;
	fs_record(fs, &r); /* failed: then its readers lose it with this worker */
}

int node_keep_version(struct fs *fs, struct node *n)
{
	struct born b;

	node_check_sf(fs, n); /* a published spill file belongs to the store */
	if ((!n->nlookup && !n->pinned && !n->handles) || n->stored.kept_fd >= 0)
		return 0;
	int fd = n->sf ? open_spilled(n->sf) : open_store(fs, n, &b);
	if (n->sf && fd >= 0) {
		int err = ask_born(fs, n, fd, &b);
		if (err)
			b = (struct born){0};
		if (err == ASK_AGAIN)
			close(fd);
		fd = err == ASK_AGAIN ? err : fd;
	}
	if (fd == ASK_AGAIN)
		return fd;
	n->stored.kept_fd = fd;
	if (n->stored.kept_fd >= 0 && n->handles)
		retain(fs, n, &b, false);
	return 0;
}

/* Opens the file that n had when it lost its names. It is still in its place if nothing was
 * published since; only its inode number proves that it is not another file. */
static int open_again(struct fs *fs, struct node *n, struct born *b, bool *linked)
{
	int fd = staging_retained_open(fs->s, n->id);

	*b = (struct born){0};
	*linked = fd >= 0;
	if (fd < 0 && n->sf)
		fd = open_spilled(n->sf);
	if (fd < 0 && n->stored.ino && !n->stored.adopt)
		fd = ask_open(fs, n, b);
	if (fd >= 0 && !b->st.st_ino)
		io_stat_born(fs->store, fd, NULL, &b->st, &b->birth);
	if (fd >= 0 && n->stored.ino && !n->stored.adopt && !is_seen(n, b)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

void nodes_keep_again(struct fs *fs)
{
	for (unsigned i = 0; i < NODE_BUCKETS; i++)
		for (struct node *n = fs->tree.nodes[i]; n; n = n->hash_next) {
			struct born b;
			bool linked;
			if (!n->handles || n->names || n->buf || !S_ISREG(n->attr.mode) ||
			    n->stored.kept_fd >= 0)
				continue;
			n->stored.kept_fd = open_again(fs, n, &b, &linked);
			if (n->stored.kept_fd >= 0)
				retain(fs, n, &b, linked);
		}
}

/* ---- attributes ---- */

/* Updates n's attributes from the store, except those that pending records change. 0, ASK_AGAIN. */
static int refresh_from_store(struct fs *fs, struct node *n)
{
	uint64_t applied;
	struct born b;

	if (!fs_is_applied(fs, n->seq.born) || session_is_silent(fs))
		return 0;
	int err = ask_stat(fs, n, &b, &applied);
	const struct stat *st = &b.st;
	if (err == ASK_AGAIN)
		return err;
	if (err || (st->st_mode & S_IFMT) != (n->attr.mode & S_IFMT))
		return 0; /* removed by another program: keep what was last seen */
	struct timespec m = n->attr.mtime, c = n->attr.ctime;
	nlink_t links = n->attr.nlink;
	bool clean = fs_place_of(fs, n->seq.dirty) <= applied;
	if (clean) {
		remember_attr(n, st);
	} else {
		n->attr.size = (uint64_t)st->st_size;
		n->attr.blocks = (uint64_t)st->st_blocks;
	}
	bool names_pending = S_ISDIR(n->attr.mode) && fs_place_of(fs, n->seq.names) > applied;
	bool links_pending = fs_place_of(fs, n->seq.links) > applied;
	if (names_pending)
		n->attr.mtime = m;
	if (names_pending || links_pending)
		n->attr.ctime = c;
	if (S_ISDIR(n->attr.mode))
		n->attr.nlink = clean && !names_pending ? st->st_nlink : links;
	else if (!links_pending)
		count_unknown(n, st->st_nlink - staging_retained_links(fs->s, st));
	return 0;
}

int node_stat(struct fs *fs, struct node *n, struct stat *st)
{
	node_check_sf(fs, n);
	int err = !n->sf && (n->names || n == fs->tree.root) ? refresh_from_store(fs, n) : 0;
	if (!err)
		node_attr(fs, n, st);
	return err;
}

void node_attr(struct fs *fs, struct node *n, struct stat *st)
{
	struct staged_info i;

	/* readers keep a version: size and times are the version's, the rest is the file's */
	const struct node *now = n->fork.to ? node_current(fs, n->id) : n;
	*st = (struct stat){
		.st_ino = n->ino,
		.st_mode = now->attr.mode,
		.st_uid = now->attr.uid,
		.st_gid = now->attr.gid,
		.st_rdev = n->attr.rdev,
		.st_nlink = node_links(now),
		.st_atim = n->attr.atime,
		.st_mtim = n->attr.mtime,
		.st_ctim = now->attr.ctime,
		.st_size = (off_t)n->attr.size,
		.st_blocks = (blkcnt_t)n->attr.blocks,
		.st_blksize = BLKSIZE,
	};
	if (n->sf) {
		staged_get_info(n->sf, &i);
		st->st_size = (off_t)i.size;
		st->st_blocks = (blkcnt_t)i.blocks;
		st->st_atim = i.atime;
		st->st_mtim = i.mtime;
		st->st_ctim = i.ctime;
		/* changed by chmod and the like, which tmpfs does not see */
		time_to_later(&st->st_ctim, now->attr.ctime);
		n->attr.size = i.size;
		n->attr.blocks = i.blocks;
		n->attr.mtime = i.mtime;
		n->attr.atime = i.atime;
	} else if (n->buf) {
		st->st_blocks = (blkcnt_t)buffers_blocks(n);
	} else if (S_ISDIR(n->attr.mode) && !st->st_size) {
		st->st_size = 4096; /* not in the store yet */
		st->st_blocks = 8;
	} else if (S_ISLNK(n->attr.mode) && n->target) {
		st->st_size = (off_t)strlen(n->target);
	}
}

/* ---- learning from the store ---- */

static uint64_t new_id(struct fs *fs)
{
	return fs->s ? staging_new_id(fs->s) : ++fs->tree.next_ro_id;
}

/* Finds the known file of which b, a file with several names, is another name: *out, or NULL. An
 * inode number seen earlier proves nothing, since it may be reused: the file must be in its
 * place. */
static int find_linked(struct fs *fs, const struct born *b, struct node **out)
{
	struct born now;
	*out = NULL;
	for (struct node *n = fs->tree.by_store_ino[b->st.st_ino % 4096]; n;
	     n = n->store_ino_next) {
		if (!is_seen(n, b) || n->stored.adopt || !n->names || S_ISDIR(n->attr.mode))
			continue; /* its stored inode is the previous version's */
		uint64_t applied;
		int err = ask_stat(fs, n, &now, &applied);
		if (err && !name_is_absent(err))
			return err;
		if (err || now.st.st_ino != b->st.st_ino || now.st.st_dev != b->st.st_dev ||
		    now.birth != b->birth)
			continue;
		*out = n;
		return 0;
	}
	return 0;
}

/* n: the file of which this is another name; NULL: creates a node. */
static int learn(struct fs *fs, struct node *dir, const char *name, struct node *n,
		 const struct named *seen, struct node **out, struct dentry **dout)
{
	const struct born *b = &seen->b;
	const struct stat *st = &b->st;
	if (!n) {
		n = node_new(fs, new_id(fs), seen->ino, st->st_mode);
		if (!n)
			return -ENOMEM;
		remember_attr(n, st);
		n->attr.nlink = st->st_nlink;
		n->version.sealed = true;
		node_set_store_ino(fs, n, st->st_ino, b->birth);
		if (!S_ISDIR(st->st_mode))
			node_place_add(fs, n, 0, dir->id, name);
	}
	bool fresh = !n->names;
	struct dentry *d = dentry_set(fs, dir, name, n);
	if (!d)
		return -ENOMEM;
	if (!S_ISDIR(st->st_mode) && fresh)
		count_unknown(n, st->st_nlink - (fs->s ? staging_retained_links(fs->s, st) : 0));
	else if (n->attr.unknown)
		n->attr.unknown--;
	d->store_has = d->ordered = true;
	d->seq = 0;
	if (S_ISDIR(st->st_mode)) {
		n->stored.dev = st->st_dev;
		int err = staging_dir_learn(fs->s, n->id, dir->id, name);
		if (err)
			return err;
	}
	fs_learned(fs, n, d);
	*out = n;
	if (dout)
		*dout = d;
	return 0;
}

/* Another program changed a file in place, which cairnfs never does: staging's copy is not that
 * version any more. The size shows it; a store may change times by itself. */
static void drop_outdated(struct fs *fs, struct node *n, const struct named *seen)
{
	struct staged_info i;

	if (!n->sf || n->handles || n->buf || node_dirty(fs, n) ||
	    fs_place_of(fs, n->seq.seal) > seen->applied)
		return;
	staged_get_state(n->sf, &i);
	if (i.state == STAGED_DURABLE && !i.late && i.size != (uint64_t)seen->b.st.st_size)
		node_set_sf(fs, n, NULL);
}

static bool is_published_here(struct fs *fs, const struct named *seen)
{
	return fs->s && seen->log == staging_log_id(fs->s);
}

/* Whether seen, where n's file is to be, is that file. What was published since n's file was last
 * seen has another inode, which may be another host's by now: its numbers tell. Overwritten in
 * place, it has the same st_ino. */
static bool is_file_of(struct fs *fs, const struct node *n, const struct named *seen)
{
	const struct stat *st = &seen->b.st;

	if (n->stored.ino && !n->stored.adopt)
		return is_seen(n, &seen->b);
	if (!S_ISREG(st->st_mode) || seen->ino_rc)
		return true;
	if (seen->log && !is_published_here(fs, seen))
		return false;
	/* st_ino: the store has no number */
	return seen->ino == n->ino || seen->ino == st->st_ino;
}

/* seen is n's file. */
static void took_file(struct fs *fs, struct node *n, const struct named *seen)
{
	const struct born *b = &seen->b;
	bool fresh =
		n->stored.adopt || n->stored.ino != b->st.st_ino || n->stored.birth != b->birth;

	node_set_store_ino(fs, n, b->st.st_ino, b->birth);
	n->stored.adopt = false;
	if (!fresh || !fs->s || is_published_here(fs, seen) ||
	    (!seen->log && !atomic_load(&fs->hosts.others)))
		return;
	/* If all is killed before n's next version is published, the next start must know that it
	 * is later than this one (staging/drain/leftover.c). ABSENT: it says no more. */
	struct rec r = rec_new(REC_NODE);
	r.unique = 0;
	r.flags = REC_ABSENT;
	r.node = n->id;
	r.ino = n->ino;
	r.mode = n->attr.mode;
	r.node2 = b->st.st_ino;
	r.dir2 = b->birth;
	r.size = (uint64_t)b->st.st_size;
	r.mtime = b->st.st_mtim;
	staging_log(fs->s, &r); /* failed: then the other's version would stay */
}

/* Nobody else makes names in the store, nor has since it was opened: what was last listed are
 * all. */
static bool is_alone(const struct fs *fs)
{
	return !fs->o.ro && !atomic_load(&fs->hosts.others) && !io_store_is_shared(fs->store);
}

int tree_lookup(struct fs *fs, struct node *dir, const char *name, struct node **out,
		struct dentry **dout)
{
	struct dentry *d = dentry_find(fs, dir, name);
	struct named seen;
	const struct born *b = &seen.b;

	if (strlen(name) > MAX_NAME)
		return -ENAMETOOLONG;
	if (d && dentry_dirty(fs, d)) {
		if (dout)
			*dout = d;
		*out = d->node;
		return d->node ? 0 : -ENOENT;
	}
	/* the store is away, or does not answer: what was last seen counts */
	if (d && d->node && (io_store_is_detached(fs->store) || session_is_silent(fs))) {
		if (dout)
			*dout = d;
		*out = d->node;
		return 0;
	}
	if (!d && session_is_silent(fs) && is_alone(fs) && store_names_lack(dir, name))
		return -ENOENT;
	int err = ask_name(fs, dir, name, d ? d->node : NULL, &seen);
	if (err && !name_is_absent(err)) /* this error does not mean that the name is absent */
		return err;
	if (!err && dir == fs->tree.root && !strcmp(name, CONTROL_DIR_NAME))
		err = -ENOENT;
	bool same = !err && d && d->node &&
		    (d->node->attr.mode & S_IFMT) == (b->st.st_mode & S_IFMT) &&
		    is_file_of(fs, d->node, &seen);
	if (same) {
		took_file(fs, d->node, &seen);
		if (S_ISDIR(b->st.st_mode))
			d->node->stored.dev = b->st.st_dev;
		drop_outdated(fs, d->node, &seen);
		*out = d->node;
		if (dout)
			*dout = d;
	} else {
		struct node *linked = NULL;
		int ino_err = err ? 0 : seen.ino_rc;
		if (!err && !ino_err && !S_ISDIR(b->st.st_mode) && b->st.st_nlink > 1)
			ino_err = find_linked(fs, b, &linked);
		if (ino_err)
			return ino_err;
		/* another writer changed the store, such as another node of the cluster */
		if (d)
			dentry_remove(fs, d);
		if (!err)
			err = learn(fs, dir, name, linked, &seen, out, dout);
	}
	ask_took(fs, dir, name, err ? NULL : *out, &seen);
	return err;
}

void tree_listed(struct fs *fs, struct node *dir, const struct listed *l)
{
	if (!is_alone(fs))
		return;
	store_names_start(dir);
	for (size_t i = 0; i < l->n; i++)
		store_names_add(dir, l->v[i].name);
}

void tree_absent(struct fs *fs, struct node *dir, const char *name)
{
	fs->tree.absent.dir = strlen(name) <= MAX_NAME ? dir->id : 0;
	fs->tree.absent.since_ns = monotonic_ns();
	strncpy(fs->tree.absent.name, name, MAX_NAME);
}

int tree_lookup_again(struct fs *fs, struct node *dir, const char *name, struct node **out)
{
	if (fs->tree.absent.dir == dir->id && !strcmp(fs->tree.absent.name, name) &&
	    !dentry_find(fs, dir, name) && monotonic_ns() - fs->tree.absent.since_ns < ABSENT_NS)
		return -ENOENT;
	return tree_lookup(fs, dir, name, out, NULL);
}

/* SPDX-License-Identifier: MIT
 * Publish: one thread applies the ordered records to the store, strictly one
 * after the other (P1), in batches that share their syncs:
 *
 *   sync the bytes of all in the batch → apply each name in order → sync the
 *   directories → durable.
 *
 * A pair of changes without a visible effect (written and removed with nothing in between) is
 * left out; see elide(). A store that keeps failing halts publication here. What waits for other
 * nodes is set aside, and the rest goes on; see hold.c. */
#include "io/goes_on.h"
#include "staging/drain/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH_MAX 4096u
/* up to this many are synced one by one, more with one syncfs */
#define FSYNC_EACH 4u
#define ELIDE_MAX 8192u
#define TOUCHED_MAX 8u
/* descriptors; if they must be kept, more than these are synced first */
#define VICTIMS_MAX 128u
/* so many are kept only to be freed by another thread */
#define VICTIMS_SPARED 64u

struct batch {
	struct pend *first; /* owned by the publisher until done */
	unsigned n;
	uint64_t touched[TOUCHED_MAX]; /* directories; overflow: n_touched > max */
	unsigned n_touched;
	bool inodes; /* attributes changed: no directory's sync covers them */
	/* descriptors of replaced and removed files: they must be kept (io_store_frees_early), or
	 * the last close frees their blocks, which takes long and is left to trash.c */
	int victims[VICTIMS_MAX];
	unsigned n_victims, max_victims;
	bool changed; /* something was to be done in the store */
	uint64_t commit; /* the directory that its last record commits; 0: none */
	bool recommit; /* by another mtime */
};

/* ---- leaving out what has no visible effect ---- */

struct dead_set {
	uint64_t node[64];
	unsigned n;
};

static bool dead_has(const struct dead_set *d, uint64_t node)
{
	for (unsigned i = 0; i < d->n; i++)
		if (d->node[i] == node)
			return true;
	return false;
}

/* Is the combined effect of records head..end nothing? Then the store before them
 * equals the mount after them, and P1 holds with none applied. True only if everything
 * created there is removed there and everything removed there was created there. One
 * step may remain at the end: unlinking a file whose last versions were not visible, but
 * of which the store has an earlier one. Returns the last record to leave out, or NULL.
 * s->lock held. */
static struct pend *elide(const struct staging *s, struct pend *head)
{
	struct dead_set dead = {.n = 0};
	struct pend *before = NULL;
	uint64_t end = 0, shadow = 0;
	unsigned looked = 0;

	/* the store may have it: the last worker died while applying it */
	if (head->again)
		return NULL;
	for (const struct pend *p = s->order.pend; p != head; p = p->next)
		if (p->r.seq > head->r.seq)
			return NULL; /* it would be left out of the middle */
	for (struct pend *p = head; p && looked < ELIDE_MAX; before = p, p = p->next, looked++) {
		const struct rec *r = &p->r;
		switch (r->flags & REC_ABSENT ? 0 : r->type) {
		case 0: break;
		case REC_SEAL:
		case REC_MKDIR:
		case REC_SYMLINK:
		case REC_MKNOD:
			/* the store may have a part of it already: then it must be removed there */
			if (!p->dead_at || p->state == PEND_BUSY || p->begun || p->again)
				return NULL;
			/* above a version that is left out as well it shadows nothing */
			if (r->flags & REC_SHADOW && !dead_has(&dead, r->node)) {
				if (shadow && shadow != r->node)
					return NULL;
				shadow = r->node;
			}
			if (p->dead_at > end)
				end = p->dead_at;
			if (!dead_has(&dead, r->node)) {
				if (dead.n == 64)
					return NULL;
				dead.node[dead.n++] = r->node;
			}
			break;
		case REC_UNLINK:
		case REC_RMDIR:
			if (!dead_has(&dead, r->node2))
				return NULL;
			if (shadow && (r->node2 == shadow) != (r->seq == end))
				return NULL;
			break;
		case REC_ATTR:
		case REC_XATTR:
		case REC_XATTR_DEL:
			if (!dead_has(&dead, r->node))
				return NULL;
			break;
		default: return NULL;
		}
		if (r->seq >= end && end)
			return shadow ? before : p;
		if (!end)
			return NULL; /* one that publishes nothing first: it is cheap */
	}
	return NULL;
}

/* ---- applying one record ---- */

static void notice_conflict(struct staging *s, const struct rec *r, int err, bool lost)
{
	char path[sizeof(s->st.last_error)], text[sizeof(path) + 160];
	char leveled[sizeof(text) + sizeof(LEVEL_ERROR)];

	const char *why =
		err == LEFTOVER_OUTLIVED
			? "what was left over from a kill is older than what the store has"
			: strerror(-err);
	const char *more =
		lost ? "; that version is skipped, what exists of it is in .cairn/lost+found"
		: refuse_is_theirs(r, err) ? ": it stays, with what others put there"
		: err != LEFTOVER_OUTLIVED ? ""
		: r->type == REC_SEAL	   ? ", which stays; the older is in .cairn/lost+found"
					   : ", which stays";
	pthread_mutex_lock(&s->lock);
	dirs_root_relative(s, r->dir, r->name, path, sizeof(path));
	snprintf(text, sizeof(text), "%s %s: %s%s",
		 lost ? "the store could not write" : "conflict at", path, why, more);
	snprintf(s->st.last_error, sizeof(s->st.last_error), "%.250s", text);
	pthread_mutex_unlock(&s->lock);
	snprintf(leveled, sizeof(leveled), "%s%s", LEVEL_ERROR, text);
	s->o.notice(s->o.ctx, leveled);
}

static void touch(struct batch *b, uint64_t dir)
{
	unsigned n = b->n_touched < TOUCHED_MAX ? b->n_touched : TOUCHED_MAX;
	for (unsigned i = 0; i < n; i++)
		/* the last in the list is the last that changed */
		if (b->touched[i] == dir) {
			memmove(&b->touched[i], &b->touched[i + 1],
				(n - i - 1) * sizeof(b->touched[0]));
			b->touched[n - 1] = dir;
			return;
		}
	if (b->n_touched < TOUCHED_MAX)
		b->touched[b->n_touched] = dir;
	b->n_touched++;
}

/* Records only real changes: where the last directory is synced for all, it must have something to
 * sync. */
static int touched(struct batch *b, uint64_t dir, int err)
{
	if (!err)
		touch(b, dir);
	return err;
}

struct dir_use {
	struct staging *s;
	uint64_t id;
	int fd, err;
};

static struct dir_use dir_use(struct staging *s, uint64_t id)
{
	struct dir_use u = {.s = s, .id = id, .fd = -1};
	u.err = staging_dir_get(s, id, &u.fd);
	return u;
}

static void dir_unscope(struct dir_use *u)
{
	if (!u->err)
		staging_dir_put(u->s, u->id);
}
#define DIR_USE(var, s, id)                                                                        \
	struct dir_use var __attribute__((cleanup(dir_unscope))) = dir_use(s, id)

static bool has_quota(struct staging *s, uid_t uid, gid_t gid)
{
	return io_store_quota_left(s->o.store, uid, gid) != UINT64_MAX;
}

/* EDQUOT is about one owner of many: a local chown(2) or setxattr(2) would have failed. Where that
 * owner has no quota, it is the whole store's trouble. */
static bool owner_forbids(struct staging *s, const struct rec *r)
{
	struct stat st;

	if (r->type == REC_ATTR)
		return r->mask & (REC_UID | REC_GID);
	if (r->type != REC_XATTR)
		return false;
	DIR_USE(d, s, r->dir);
	return !d.err && !io_stat(s->o.store, d.fd, r->name[0] ? r->name : NULL, &st) &&
	       has_quota(s, st.st_uid, st.st_gid);
}

/* The store was changed by another program, or cannot store such a name: waiting will not help. */
static bool is_conflict(struct staging *s, const struct rec *r, int err)
{
	switch (-err) {
	case ENOENT:
	case EEXIST:
	case ENOTEMPTY:
	case ENOTDIR:
	case EISDIR:
	case ELOOP:
	case EINVAL:
	case ENAMETOOLONG:
	case EOPNOTSUPP:
	case ENODATA:
	case ERANGE:
	case E2BIG:
	case EPERM:
	case EXDEV:
	case EBADMSG:
	case EMLINK:
	case EBUSY:
	case -LEFTOVER_OUTLIVED: return true;
	case EDQUOT: return owner_forbids(s, r);
	case ENOSPC: return r->type == REC_XATTR && meta_inode_full(s, r->data_len);
	default: return false;
	}
}

/* A version without a place in the store is kept where the user finds it. */
static int to_lost_found(struct staging *s, struct pend *p, const char *name)
{
	char to[300], at[LOSTFOUND_NAME], path[4096];
	dirs_root_relative(s, p->r.dir, name, path, sizeof(path));
	lostfound_path_name(path, at);
	snprintf(to, sizeof(to), "%s.%llu", at, (unsigned long long)p->r.seq);
	char tmp[17];
	io_tmp_name(p->tmp_id, tmp);
	int err = io_rename(s->o.store, io_store_tmp(s->o.store), tmp,
			    io_store_lostfound(s->o.store), to, 0);
	struct stat st;
	if (err == -ENOENT && p->again &&
	    !io_stat(s->o.store, io_store_lostfound(s->o.store), to, &st))
		err = 0; /* just before the worker died */
	if (!err) /* staging forgets the version when the batch is durable */
		err = io_sync_dir(s->o.store, io_store_lostfound(s->o.store));
	if (!err)
		s->st.recovered.lost_found++;
	return err;
}

static int keep_victim(struct staging *s, struct batch *b, int dirfd, const char *name);

/* dirfd/name, in dir, is about to be replaced or removed by p. */
static int before_loss(struct staging *s, struct batch *b, const struct pend *p, int dirfd,
		       uint64_t dir, const char *name)
{
	int err = leftover_judge(s, p, dirfd, dir, name);

	return err ? err : keep_victim(s, b, dirfd, name);
}

static int publish_seal(struct staging *s, struct pend *p, struct batch *b)
{
	const struct rec *r = &p->r;
	uint32_t pos = 0;
	struct rec_name name, first = {0};
	struct rec_pair pair;
	int kind, err = 0;

	while (!err && (kind = rec_unpack(r->data, r->data_len, &pos, &name, &pair)) > 0) {
		if (kind != 1)
			continue;
		DIR_USE(d, s, name.dir);
		err = d.err;
		if (err)
			break;
		if (!first.name) {
			err = before_loss(s, b, p, d.fd, name.dir, name.name);
			if (!err && !p->begun)
				err = io_publish(s->o.store, p->tmp_id, d.fd, name.name);
			p->begun |= !err;
			first = name;
		} else {
			DIR_USE(d0, s, first.dir);
			err = d0.err ? d0.err : before_loss(s, b, p, d.fd, name.dir, name.name);
			if (!err)
				err = io_link(s->o.store, d0.fd, first.name, d.fd, name.name);
		}
		touched(b, name.dir, err);
	}
	return err;
}

/* rename(2) between two names of one file leaves both. In the mount they were not the same: the new
 * name was another file's, not sealed yet, so the store still has the old file there. */
static int remove_other_link(struct staging *s, const struct rec *r, int d1, int d2)
{
	struct stat from, to;
	int err = r->flags & REC_DIR ? -ENOENT : io_stat(s->o.store, d1, r->name, &from);

	if (!err)
		err = io_stat(s->o.store, d2, r->name2, &to);
	if (err)
		return err == -ENOENT ? 0 : err;
	return from.st_ino == to.st_ino && from.st_dev == to.st_dev
		       ? io_unlink(s->o.store, d1, r->name)
		       : 0;
}

static int publish_rename(struct staging *s, struct pend *p, struct batch *b)
{
	const struct rec *r = &p->r;
	DIR_USE(d1, s, r->dir);
	if (d1.err)
		return d1.err;
	int err = before_loss(s, b, p, d1.fd, r->dir, r->name);
	if (err)
		return err;
	if (r->flags & REC_SHADOW)
		return touched(b, r->dir, io_unlink(s->o.store, d1.fd, r->name));
	DIR_USE(d2, s, r->dir2);
	if (d2.err)
		return d2.err;
	err = before_loss(s, b, p, d2.fd, r->dir2, r->name2);
	if (err)
		return err;
	if (r->flags & REC_DIR) {
		previous_forget(s, d2.fd, r->name2);
		dirs_moving(s, r->node, r->dir2, r->name2);
	}
	err = io_rename(s->o.store, d1.fd, r->name, d2.fd, r->name2, 0);
	if (!err)
		err = remove_other_link(s, r, d1.fd, d2.fd);
	if (p->again && err == -ENOENT)
		/* done just before the worker died: later records must find the directory */
		err = 0;
	touched(b, r->dir, err);
	touched(b, r->dir2, err);
	if (err && (r->flags & REC_DIR))
		dirs_moving(s, 0, 0, NULL);
	if (!err && (r->flags & REC_DIR)) {
		if (r->node2)
			dirs_gone(s, r->node2);
		dirs_moved(s, r->node, r->dir2, r->name2);
	}
	return err;
}

/* suid and sgid are meant for r's owner: a store that refused the owner (meta.c) has another. 1, 0
 * or -errno. */
static int foreign(struct staging *s, const struct rec *r, int dirfd)
{
	struct stat st;

	if (!(r->mask & REC_MODE) || !(r->mode & (S_ISUID | S_ISGID)) ||
	    (r->mask & (REC_UID | REC_GID)))
		return 0;
	int err = io_stat(s->o.store, dirfd, r->name[0] ? r->name : NULL, &st);
	return err ? err : !S_ISDIR(st.st_mode) && (st.st_uid != r->uid || st.st_gid != r->gid);
}

static int publish_attr(struct staging *s, const struct rec *r, int dirfd)
{
	struct io_attr a = {
		.mode = r->mode & 07777,
		.uid = (uid_t)-1,
		.gid = (gid_t)-1,
		.atime = r->atime,
		.mtime = r->mtime,
		.mask = (r->mask & REC_MODE ? IO_ATTR_MODE : 0) |
			(r->mask & REC_ATIME ? IO_ATTR_ATIME : 0) |
			(r->mask & REC_MTIME ? IO_ATTR_MTIME : 0) |
			(r->mask & (REC_UID | REC_GID) ? IO_ATTR_OWNER : 0),
	};
	if (r->mask & REC_UID)
		a.uid = r->uid;
	if (r->mask & REC_GID)
		a.gid = r->gid;
	int other = foreign(s, r, dirfd);
	if (other < 0)
		return other;
	if (other)
		a.mode &= 01777;
	return a.mask ? io_set_attr(s->o.store, dirfd, r->name[0] ? r->name : NULL, &a) : 0;
}

static int own_new(struct staging *s, const struct rec *r, int dirfd)
{
	struct io_attr a = {.mask = 0, .uid = r->uid, .gid = r->gid, .mode = r->mode & 07777};
	if (r->uid != geteuid() || r->gid != getegid())
		a.mask |= IO_ATTR_OWNER;
	if (r->type != REC_SYMLINK)
		a.mask |= IO_ATTR_MODE;
	int err = a.mask ? io_set_attr(s->o.store, dirfd, r->name, &a) : 0;
	/* a store without owners; or the owner's quota is used up */
	if (is_conflict(s, r, err) || (err == -EDQUOT && a.mask & IO_ATTR_OWNER))
		err = 0;
	if (err || r->type != REC_MKDIR)
		return err;
	char ino[META_INO_BYTES];
	err = io_set_xattr(s->o.store, dirfd, r->name, -1, KEY_INO, ino, meta_ino(s, r, ino), 0);
	return err == -EDQUOT && has_quota(s, r->uid, r->gid) ? 0 : err;
}

/* Another host or another program created it first: any directory will do. 0: it is there; -EEXIST:
 * something else is; -ENOENT: nothing, any more. */
static int dir_there(struct staging *s, const struct rec *r, int dirfd)
{
	struct stat st;
	if (r->type != REC_MKDIR)
		return -EEXIST;
	int err = io_stat(s->o.store, dirfd, r->name, &st);
	return !err && !S_ISDIR(st.st_mode) ? -EEXIST : err;
}

/* Directories, symlinks, nodes. A try that failed after the creation continues there. */
static int publish_new(struct staging *s, struct pend *p, int dirfd)
{
	const struct rec *r = &p->r;
	struct io_store *store = s->o.store;
	int err = p->begun		   ? 0
		  : r->type == REC_MKDIR   ? io_mkdir(store, dirfd, r->name, r->mode & 07777)
		  : r->type == REC_SYMLINK ? io_symlink(store, r->data, dirfd, r->name)
					   : io_mknod(store, dirfd, r->name, r->mode);
	if (r->type == REC_MKDIR && (!err || err == -EEXIST))
		staging_dir_learn(s, r->node, r->dir, r->name);
	if (err == -EEXIST) {
		err = dir_there(s, r, dirfd);
		int theirs = err	 ? 0
			     : !p->again ? 1
					 : leftover_came_since(s, p, dirfd, r->dir, r->name);
		if (theirs < 0)
			return theirs;
		if (theirs) {
			leftover_tell(s, p, dirfd, false);
			return 0; /* and it keeps its creator's attributes */
		}
	}
	if (err == -EEXIST && !p->again) {
		int since = leftover_judge(s, p, dirfd, r->dir, r->name);
		return since ? since : err;
	}
	if (err && err != -EEXIST)
		return err;
	p->begun = true;
	err = own_new(s, r, dirfd);
	if (r->type != REC_MKDIR) /* perhaps made just before the worker died, and not told */
		leftover_tell(s, p, dirfd, true);
	return is_conflict(s, r, err) ? 0 : err; /* a store without xattrs */
}

/* Attributes; name "": of the store's own directory. */
static int publish_inode(struct staging *s, const struct pend *p, int dirfd, struct batch *b)
{
	const struct rec *r = &p->r;
	const char *name = r->name[0] ? r->name : NULL;
	int err = name ? leftover_judge(s, p, dirfd, r->dir, name) : 0;

	if (err)
		return err;
	b->inodes = true;
	switch (r->type) {
	case REC_ATTR: return publish_attr(s, r, dirfd);
	case REC_XATTR:
		return io_set_xattr(s->o.store, dirfd, name, -1, r->name2, r->data, r->data_len, 0);
	case REC_XATTR_DEL: return io_remove_xattr(s->o.store, dirfd, name, r->name2);
	default: return 0;
	}
}

static int publish_one(struct staging *s, struct pend *p, struct batch *b)
{
	const struct rec *r = &p->r;
	struct io_store *store = s->o.store;
	int err;

	if (r->flags & REC_ABSENT)
		return 0;
	if (r->type == REC_SEAL)
		return publish_seal(s, p, b);
	if (r->type == REC_RENAME)
		return publish_rename(s, p, b);
	DIR_USE(d, s, r->dir);
	if (d.err)
		return d.err;
	switch (r->type) {
	case REC_UNLINK:
		err = before_loss(s, b, p, d.fd, r->dir, r->name);
		return err ? err : touched(b, r->dir, io_unlink(store, d.fd, r->name));
	case REC_RMDIR:
		if ((err = leftover_judge(s, p, d.fd, r->dir, r->name)))
			return err;
		previous_forget(s, d.fd, r->name);
		err = touched(b, r->dir, io_rmdir(store, d.fd, r->name));
		if (!err || (p->again && err == -ENOENT))
			dirs_gone(s, r->node2);
		return err;
	case REC_MKDIR:
	case REC_SYMLINK:
	case REC_MKNOD: return touched(b, r->dir, publish_new(s, p, d.fd));
	case REC_LINK: {
		DIR_USE(d2, s, r->dir2);
		err = d2.err ? d2.err : before_loss(s, b, p, d2.fd, r->dir2, r->name2);
		return err ? err
			   : touched(b, r->dir2, io_link(store, d.fd, r->name, d2.fd, r->name2));
	}
	default: return publish_inode(s, p, d.fd, b);
	}
}

/* The bytes of that fsync no longer exist, and it failed: the file's next version replaces it. */
static int pass_over(struct staging *s, struct pend *p)
{
	char path[181], text[320];

	dirs_root_relative(s, p->r.dir, p->r.name, path, sizeof(path));
	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "an fsync of %s failed, and the file was written again: it comes to the store "
		 "with its next fsync or close",
		 path);
	s->o.notice(s->o.ctx, text);
	LOCK_SCOPE(&s->lock);
	trash_put(s, p->tmp_id, p->tmp_fd);
	p->tmp_fd = -1;
	return 0;
}

/* Applies p; conflicts are reported and skipped. Other errors: returned. */
static int apply(struct staging *s, struct pend *p, struct batch *b)
{
	int err = p->lost;
	struct vanished vanished = {.since_ns = 0};
	unsigned given = 0;

	if (p->lost && p->failed_fsync)
		return pass_over(s, p);
	for (unsigned tries = 0; !p->lost && tries < MAX_ATTEMPTS;) {
		err = publish_one(s, p, b);
		if (vanished_comes_back(s, p, err, &vanished))
			continue;
		if (!err || (is_conflict(s, &p->r, err) && err != -ENOSPC))
			break;
		/* names need blocks too; deletes wait behind this one */
		if (!reserve_give(s, p, err, &given))
			tries++;
	}
	if (taken_away(s, p, err))
		return TAKEN_AWAY;
	if (err && p->again && (err == -ENOENT || err == -EEXIST) && !vanished.since_ns)
		err = 0; /* it was applied just before the worker died */
	if (!err && atomic_load(&s->refusals.n))
		refuse_settle(s, &p->r);
	if (!err || (!p->lost && !is_conflict(s, &p->r, err)))
		return err;
	notice_conflict(s, &p->r, err, p->lost);
	bool kept = false;
	if (p->r.type == REC_SEAL) {
		int failed = to_lost_found(s, p, p->r.name[0] ? p->r.name : "file");
		if (failed && failed != -ENOENT)
			return failed;
		kept = !failed;
	}
	if (err == LEFTOVER_OUTLIVED) { /* nobody waits for it */
		if (b->commit && previous_commit_of(s, p) == b->commit)
			b->commit = 0;
		return 0;
	}
	/* told to all that wait for it, or for a version that it replaced */
	struct rec told = p->r;
	if (p->from < p->accepted)
		told.seq = p->from;
	refuse(s, &told, err, kept);
	return 0;
}

/* ---- a batch ---- */

/* Without the lock: the list after the last one grows meanwhile, its link is not read. */
static struct pend *batch_next(const struct batch *b, const struct pend *p, unsigned next)
{
	return next < b->n ? p->next : NULL;
}

static bool ready(struct pend *p)
{
	return p->state == PEND_READY || p->state == PEND_WRITTEN;
}

/* s->lock held */
static unsigned max_victims(const struct staging *s)
{
	uint64_t few = s->order.fds_pend / 4; /* where the limit of descriptors is low */

	if (io_store_frees_early(s->o.store))
		return few >= VICTIMS_MAX ? VICTIMS_MAX : few ? (unsigned)few : 1;
	few = few < VICTIMS_SPARED ? few : VICTIMS_SPARED;
	return io_store_frees_at_close(s->o.store) && s->trash.n + s->trash.n_removed < few
		       ? (unsigned)few
		       : 0;
}

/* Takes the ready records at the head. s->lock held. */
static void take_batch(struct staging *s, struct batch *b)
{
	*b = (struct batch){.first = *s->order.head, .max_victims = max_victims(s)};
	for (struct pend *p = b->first; p && ready(p) && b->n < BATCH_MAX; p = p->next) {
		if (b->n && ((p->dead_at && elide(s, p)) || hold_due(s, p) || hold_blocks(s, p)))
			break;
		aside_note_added(s, &p->r, p->accepted);
		b->n++;
		s->drain.batch_end = p->r.seq;
		/* what follows may overwrite what this one makes whole */
		b->commit = previous_commit_of(s, p);
		b->recommit = p->r.type == REC_ATTR;
		if (b->commit)
			break;
	}
}

/* The replacements and removals are durable: the blocks may be reused. */
static void drop_victims(struct staging *s, struct batch *b)
{
	LOCK_SCOPE(&s->lock);
	trash_removed(s, -1);
	while (b->n_victims)
		trash_removed(s, b->victims[--b->n_victims]);
}

/* dirfd/name is about to be replaced or removed; the old file is kept open until that is synced. */
static int keep_victim(struct staging *s, struct batch *b, int dirfd, const char *name)
{
	bool must = io_store_frees_early(s->o.store), full = b->n_victims == b->max_victims;
	int err = must && full ? sync_all(s) : 0;

	retain_before(s, dirfd, name);
	if (err || (full && !must))
		return err;
	if (full)
		drop_victims(s, b);
	int fd = io_open_victim(s->o.store, dirfd, name);
	if (fd >= 0)
		b->victims[b->n_victims++] = fd;
	return must && (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM || fd == -EIO) ? fd : 0;
}

static int sync_bytes(struct staging *s, struct batch *b)
{
	unsigned n = 0, i;
	struct pend *p;

	for (i = 0, p = b->first; p; p = batch_next(b, p, ++i))
		n += p->state == PEND_WRITTEN;
	if (n > FSYNC_EACH)
		return sync_all(s);
	for (i = 0, p = b->first; n && p; p = batch_next(b, p, ++i)) {
		if (p->state != PEND_WRITTEN)
			continue;
		if (p->tmp_fd < 0)
			p->tmp_fd = io_tmp_open(s->o.store, p->tmp_id, O_RDONLY);
		int err = p->tmp_fd < 0 ? p->tmp_fd : persist_sync(s, p);
		if (err)
			return err;
	}
	return 0;
}

/* A failed sync says nothing about which pages are lost: every version of the
 * batch that relied on it is written again. */
static void rewrite_batch(struct staging *s, struct batch *b, int err)
{
	unsigned i, given = 0;
	struct pend *p;

	reserve_give(s, NULL, err, &given);
	LOCK_SCOPE(&s->lock);
	if (lack_wait(s, b->first, err))
		err = 0;
	s->st.errors += err != 0;
	for (i = 0, p = b->first; i < b->n; i++, p = p->next)
		if (p->state == PEND_WRITTEN)
			persist_again(s, p, err);
	s->drain.batch_end = 0;
	persist_wake(s);
}

static int sync_names(struct staging *s, struct batch *b)
{
	if (!b->changed)
		return 0;
	if (io_mark_covers(s->o.store))
		return sync_told(s, io_mark_sync(s->o.store));
	enum io_fs_kind kind = io_store_fs(s->o.store);
	if (b->n_touched > TOUCHED_MAX || b->inodes || kind == IO_FS_SYNCFS)
		return sync_all(s);
	/* with a single journal, syncing the last directory that changed commits everything
	 * before it; otherwise each is synced */
	for (unsigned i = b->n_touched; i-- > 0;) {
		DIR_USE(d, s, b->touched[i]);
		if (d.err) /* removed meanwhile: cannot be synced */
			return sync_all(s);
		int err = sync_told(s, io_sync_dir(s->o.store, d.fd));
		if (err || kind == IO_FS_ORDERED)
			return err;
	}
	return 0;
}

static void count_latency(struct staging *s, uint64_t start_ns)
{
	uint64_t us = (monotonic_ns() - start_ns) / 1000, le = 1000;
	unsigned i = 0;
	while (i < STAGING_LATENCY_BUCKETS - 1 && us > le) {
		le *= 4;
		i++;
	}
	s->st.latency.buckets[i]++;
	s->st.latency.count++;
	s->st.latency.sum_us += us;
}

/* The first pending record is done; it goes to `gone`. s->lock held. */
static void finish(struct staging *s, struct pend **gone, bool shown)
{
	struct pend *p = *s->order.head;
	struct staged *f = p->sf;

	*s->order.head = p->next;
	if (!p->next)
		s->order.pend_tail = s->order.head;
	s->order.n_pend--;
	s->space.freed |=
		p->r.type == REC_UNLINK || p->r.type == REC_RENAME || p->r.type == REC_SEAL;
	if (shown) {
		timeline_note(s, p);
		dedup_offer(s, p);
	}
	reserve_kept(s, &p->promised);
	source_forget(s, &p->clone.source);
	dirs_unref(s, p->r.dir);
	dirs_unref(s, p->r.dir2);
	if (p->r.node && (p->r.type == REC_MKDIR || (p->r.flags & REC_DIR)))
		dirs_unref(s, p->r.node);
	if (f) {
		if (shown) {
			s->st.bytes_persisted += p->r.size;
			/* once, however often it was fsynced */
			if (p->clone.done && !f->base.counted) {
				f->base.counted = true;
				s->st.dedup.bytes += p->r.size;
				s->st.dedup.files++;
				s->st.dedup.clones++;
			}
			count_latency(s, p->start_ns);
			memcpy(f->last.checksum, p->checksum, sizeof(f->last.checksum));
			if (f->spilled && !p->snapshot)
				f->published = true;
		}
		if (--f->n_seals == 0 &&
		    (f->state == STAGED_SEALED || f->state == STAGED_PERSISTING ||
		     (f->state == STAGED_FAILED && shown && !f->space.failed)))
			sf_set_state(s, f, STAGED_DURABLE);
		sf_close_idle_fd(f);
		sf_drop_useless(s, f);
		sf_put_locked(s, f);
		/* of files that outgrew it; perhaps nothing else evicts */
		if (s->files.used > s->o.budget_bytes)
			sf_evict(s, s->files.used - s->o.budget_bytes);
	}
	p->next = *gone;
	*gone = p;
}

/* Without the lock: the last close of a file that was replaced frees its blocks. */
static void free_all(struct pend *gone)
{
	for (struct pend *next; gone; gone = next) {
		next = gone->next;
		pend_free(gone);
	}
}

/* p has no place in the store; perhaps it is persisted already. s->lock held. */
static void drop_bytes(struct staging *s, struct pend *p)
{
	if (!p->sf || (p->sf->spilled && !p->snapshot))
		return;
	trash_put(s, p->tmp_id, p->tmp_fd);
	p->tmp_fd = -1;
}

/* s->lock held */
static struct pend *skip_run(struct staging *s, struct pend *last)
{
	uint64_t end = last->r.seq;
	struct pend *gone = NULL;
	/* first: after a kill in between there must be no records whose bytes are gone */
	atomic_store_explicit(&s->head->applied, end, memory_order_release);
	atomic_store_explicit(&s->head->durable, end, memory_order_release);
	for (struct pend *p; (p = *s->order.head) && p->r.seq <= end;) {
		persist_unqueue(s, p);
		if (p->state == PEND_WAIT)
			s->order.n_wait--;
		drop_bytes(s, p);
		finish(s, &gone, false);
	}
	return gone;
}

/* The waiting fsyncs fail, and the files may be written again: what is persisted from here on is
 * not what they asked for. s->lock held. */
static void fsyncs_failed(struct staging *s)
{
	for (struct pend *p = s->order.pend; p; p = p->next) {
		struct rec r = {.type = REC_WRITTEN, .flags = REC_ABSENT, .node2 = p->r.seq};
		if (p->r.type != REC_SEAL || !(p->r.flags & REC_FSYNCED) || !p->snapshot ||
		    p->failed_fsync || ready(p))
			continue;
		p->failed_fsync = true;
		log_append(s, &r);
	}
}

/* Is all durable that a waiter for this node and seq waits for? s->lock held. */
static bool is_synced(struct staging *s, uint64_t node, uint64_t seq)
{
	return seq <= s->head->durable && !aside_delays(s, node, seq);
}

/* s->lock is not held. */
static void wake_waiters(struct staging *s, int halted_err)
{
	pthread_mutex_lock(&s->lock);
	if (halted_err)
		fsyncs_failed(s);
	struct waiter *ready_list = NULL, **pp = &s->drain.waiters;
	while (*pp) {
		struct waiter *w = *pp;
		if (!halted_err && !is_synced(s, w->node, w->seq)) {
			pp = &w->next;
			continue;
		}
		*pp = w->next;
		w->next = ready_list;
		ready_list = w;
		atomic_fetch_sub(&s->drain.n_sync_waiters, 1);
	}
	for (struct waiter *w = halted_err ? ready_list : NULL; w; w = w->next)
		w->err = is_synced(s, w->node, w->seq) ? 0 : halted_err;
	pthread_cond_broadcast(&s->done_cond);
	tell_moved(s);
	pthread_mutex_unlock(&s->lock);
	while (ready_list) {
		struct waiter *w = ready_list;
		ready_list = w->next;
		w->done(w->ctx, w->err);
		free(w);
	}
}

void staging_when_synced(struct staging *s, uint64_t node, uint64_t seq,
			 void (*done)(void *ctx, int err), void *ctx)
{
	pthread_mutex_lock(&s->lock);
	int err = s->drain.halted;
	struct waiter *w = NULL;
	if (err)
		fsyncs_failed(s);
	if (is_synced(s, node, seq)) {
		err = 0;
	} else if (!err) {
		w = malloc(sizeof(*w));
		if (!w)
			err = -ENOMEM;
	}
	if (w) {
		*w = (struct waiter){.next = s->drain.waiters,
				     .seq = seq,
				     .node = node,
				     .done = done,
				     .ctx = ctx};
		s->drain.waiters = w;
		atomic_fetch_add(&s->drain.n_sync_waiters, 1);
		persist_wake(s);
		sleeper_wake(&s->pub);
	}
	pthread_mutex_unlock(&s->lock);
	if (!w)
		done(ctx, err);
}

/* ---- halting ---- */

/* Publication stops here: the store stays a valid prefix, staging keeps the rest. */
static void halt(struct staging *s, struct pend *p, int err)
{
	char text[512];
	const char *remedy = halted_remedy(s, err);
	pthread_mutex_lock(&s->lock);
	bool first = !s->drain.halted;
	s->drain.halted = err;
	if (first) {
		s->st.halted.since = time(NULL);
		halted_begin(s);
		s->st.errors++;
	}
	snprintf(s->st.halted.remedy, sizeof(s->st.halted.remedy), "%s", remedy);
	dirs_root_relative(s, p->r.dir, p->r.name, s->st.halted.path, sizeof(s->st.halted.path));
	snprintf(s->st.last_error, sizeof(s->st.last_error), "%.180s: %s", s->st.halted.path,
		 strerror(-err));
	if (!first)
		snprintf(text, sizeof(text),
			 LEVEL_INFO "the store still fails at %.180s: %s; the next try is in %u s",
			 s->st.halted.path, strerror(-err),
			 (unsigned)(s->drain.halt_retry_ns / 1000000000));
	else
		snprintf(text, sizeof(text),
			 LEVEL_ERROR
			 "the store fails at %.180s: %s; publication stops there, staging keeps "
			 "everything; %s" GOES_ON,
			 s->st.halted.path, strerror(-err), remedy);
	pthread_mutex_unlock(&s->lock);
	s->o.notice(s->o.ctx, text);
	wake_waiters(s, err);
	pthread_mutex_lock(&s->lock);
	s->drain.previous.give |= no_space(err) && s->drain.previous.bytes;
	halted_wait(s, p, err);
	for (struct pend *q = s->order.pend; q; q = q->next)
		if (q->state == PEND_FAILED) {
			q->tries.n = 0;
			if (q->sf->state == STAGED_FAILED && !q->sf->space.failed)
				sf_set_state(s, q->sf, STAGED_SEALED);
			persist_queue(s, q);
		}
	persist_wake(s);
	pthread_mutex_unlock(&s->lock);
}

/* p could not be published. */
static void failed_at(struct staging *s, struct pend *p, int err)
{
	if (err == TAKEN_AWAY) {
		taken_write_again(s, p);
		return;
	}
	pthread_mutex_lock(&s->lock);
	bool passes = lack_wait(s, p, err);
	pthread_mutex_unlock(&s->lock);
	if (!passes)
		halt(s, p, err);
}

static void unhalt(struct staging *s)
{
	if (!s->drain.halted)
		return;
	pthread_mutex_lock(&s->lock);
	s->drain.halted = 0;
	s->st.halted.path[0] = 0;
	pthread_mutex_unlock(&s->lock);
	s->o.notice(s->o.ctx, "the store works again; publication continues");
}

static bool stopping(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	return s->stop;
}

/* The mark's sync as well: a filesystem that has shut down may return 0 from syncfs. */
static int sync_all_marked(struct staging *s)
{
	int err = sync_all(s);

	if (!err)
		err = mark_set(s, s->head->applied);
	return err ? err : sync_told(s, io_mark_sync(s->o.store));
}

static void give_previous(struct staging *s)
{
	pthread_mutex_lock(&s->lock);
	bool due = previous_give_due(s);
	pthread_mutex_unlock(&s->lock);
	if (due)
		previous_give(s);
}

/* The names are in place but perhaps not on stable storage: syncs until they are, with all of it.
 * If that fails it halts at p. */
static int sync_again(struct staging *s, struct pend *p, int err)
{
	unsigned given = 0;

	for (unsigned i = 0; err && i < MAX_ATTEMPTS; err = sync_all_marked(s))
		i += !reserve_give(s, NULL, err, &given); /* writeback found no block */
	while (err && !stopping(s)) {
		failed_at(s, p, err);
		give_previous(s);
		err = sync_all_marked(s);
	}
	return err;
}

static int may_publish(struct staging *s)
{
	return s->o.may_publish ? s->o.may_publish(s->o.ctx) : 0;
}

/* Applies p to the store, and sets the mark. */
static int make(struct staging *s, struct pend *p, struct batch *b)
{
	int err = may_publish(s);

	if (err)
		return err;
	err = p->shown ? 0 : apply(s, p, b);
	b->inodes |= p->again || p->shown; /* its directories changed before this batch */
	b->changed |= !(p->r.flags & REC_ABSENT);
	p->shown |= !err;
	return err ? err : mark_set(s, p->r.seq);
}

/* Publishes b, as far as possible. */
static void run_batch(struct staging *s, struct batch *b)
{
	struct pend *p = b->first;
	int err = may_publish(s);
	if (!err)
		err = mark_begin(s);
	if (err) {
		failed_at(s, p, err);
		return;
	}
	err = sync_bytes(s, b);
	if (err) {
		rewrite_batch(s, b, err);
		return;
	}
	err = previous_keep(s, p, b->n);
	if (err) {
		failed_at(s, p, err);
		return;
	}
	unsigned done = 0;
	for (; done < b->n; p = batch_next(b, p, ++done)) {
		err = make(s, p, b);
		if (err)
			break;
		atomic_store_explicit(&s->head->applied, p->r.seq, memory_order_release);
	}
	struct pend *stuck = err ? p : NULL;
	bool must_sync = b->n_victims && io_store_frees_early(s->o.store);
	int sync_rc = done || must_sync ? sync_names(s, b) : 0;
	sync_rc = sync_rc ? sync_again(s, b->first, sync_rc) : 0;
	drop_victims(s, b);
	if (sync_rc)
		return;
	reserve_take(s);
	if (done) {
		struct pend *gone = NULL;
		unhalt(s);
		pthread_mutex_lock(&s->lock);
		for (unsigned i = 0; i < done; i++) {
			struct pend *first = *s->order.head;
			uint64_t seq = first->r.seq;
			bool shown = !(first->r.flags & REC_ABSENT);
			if (!shown)
				drop_bytes(s, first);
			finish(s, &gone, shown);
			atomic_store_explicit(&s->head->durable, seq, memory_order_release);
		}
		staged_check(s);
		pthread_mutex_unlock(&s->lock);
		wake_waiters(s, 0);
		free_all(gone);
	}
	leftover_end(s);
	if (b->commit && done == b->n)
		previous_settle(s, b->commit, b->recommit);
	if (stuck)
		failed_at(s, stuck, err);
}

/* Syncs what the last worker applied and did not sync. On a busy disk that takes seconds,
 * so only callers that ask for durability wait for it. */
static void sync_inherited(struct staging *s)
{
	struct pend root = {.r = {.dir = STAGING_ROOT_DIR, .name = "."}};
	int err;
	while ((err = mark_begin(s)) && !stopping(s))
		failed_at(s, &root, err);
	if (err || sync_again(s, &root, sync_all_marked(s)))
		return;
	unhalt(s);
	pthread_mutex_lock(&s->lock);
	atomic_store_explicit(&s->head->durable, s->head->applied, memory_order_release);
	s->drain.inherited = false;
	sf_evict_allow(s);
	sf_drop_all_useless(s);
	pthread_mutex_unlock(&s->lock);
	wake_waiters(s, 0);
}

void *publish_main(void *arg)
{
	struct staging *s = arg;
	struct batch b;

	pthread_setname_np(pthread_self(), "cairn-publish");
	if (s->drain.inherited)
		sync_inherited(s);
	previous_settle_all(s);
	for (;;) {
		pthread_mutex_lock(&s->lock);
		struct pend *p = *s->order.head;
		if (s->stop) {
			pthread_mutex_unlock(&s->lock);
			return NULL;
		}
		if (previous_give_due(s)) {
			pthread_mutex_unlock(&s->lock);
			previous_give(s);
			continue;
		}
		struct pend *last = p && p->dead_at ? elide(s, p) : NULL;
		if (last) {
			struct pend *gone = skip_run(s, last);
			pthread_mutex_unlock(&s->lock);
			wake_waiters(s, 0);
			free_all(gone);
			continue;
		}
		if (hold_goes_on(s)) {
			pthread_mutex_unlock(&s->lock);
			wake_waiters(s, 0);
			continue;
		}
		if (p && p->dead_at)
			persist_must(s, p);
		if (p && p->state == PEND_FAILED) {
			int err = p->sf->error;
			pthread_mutex_unlock(&s->lock);
			halt(s, p, err);
			continue;
		}
		if (!p || !ready(p)) {
			sleeper_wait(s, &s->pub, s->order.n_aside ? s->aside.look_ns : 0);
			pthread_mutex_unlock(&s->lock);
			continue;
		}
		take_batch(s, &b);
		pthread_mutex_unlock(&s->lock);
		run_batch(s, &b);
	}
}

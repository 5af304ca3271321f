/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn/latest/DIR: a symlink to the newest safe checkpoint below DIR, that is, the newest
 * that is complete and durable. What is durable is in the store; so the store is read, with plain
 * file calls and no lock, and the live tree is only asked whether anything at or below a checkpoint
 * has not reached the store yet. A file that is being overwritten counts.
 *
 * Where there is a tier, checkpoints that only it has count too; then the symlink leads to
 * .cairn/tier (remote/).
 *
 * This takes as long as listing the store does, so one thread, created by the first request,
 * answers all of them. latest_find.c finds the checkpoints, latest_safe.c decides which are safe;
 * this file answers.
 *
 * A name cannot be a symlink and have names below it. DIR is a symlink if it contains checkpoints,
 * and a directory if they lie only further down. The same applies to latest itself, which stands
 * for the mount's root; but that is a directory also if there is a run in a subdirectory.
 */
#include "fs/latest/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum want { WANT_ENTRY, WANT_LINK, WANT_NAMES, WANT_XATTR };

struct job {
	struct job *next;
	fuse_req_t req;
	enum want want;
	size_t size;
	off_t off;
	bool plus;
	char path[];
};

/* What the kernel knows. Its id is a hash of the path, so another worker computes the same. */
struct entry {
	struct entry *next;
	uint64_t id, nlookup;
	bool link;
	size_t len; /* of the symlink's target */
	char path[];
};

static struct latest {
	pthread_mutex_t lock; /* guards all of it */
	pthread_cond_t cond;
	struct job *jobs;
	bool started, stop;
	pthread_t thread;
	struct entry *entries;
} latest = {.lock = RANKED_MUTEX(RANK_LATEST), .cond = PTHREAD_COND_INITIALIZER};

/* ---- the answer ---- */

/* Top itself contains checkpoints; if others lie further down, not only loose files of tensors. The
 * root is where several jobs have their directories: those of runs keep their names, whatever lies
 * beside them. */
static bool is_run(const struct lfound *f)
{
	bool direct = false, whole = false, deeper = false, runs = false;
	for (size_t i = 0; i < f->n; i++) {
		bool here = !strchr(f->v[i].path, '/'), loose = ckpt_is_loose(&f->v[i].kind);
		direct |= here;
		whole |= here && !loose;
		deeper |= !here;
		runs |= !here && !loose;
	}
	return (whole && (*f->top || !runs)) || (direct && !deeper);
}

enum answer { NOTHING, LINK, DIRECTORY };

#define TIER_AT CONTROL_DIR_NAME "/" REMOTE_NAME "/"

/* "../" for each directory on the way to path, and for `more`; then the path of what was found. */
static char *path_back(const char *path, unsigned more, const struct ckpt_found *found)
{
	unsigned up = more + !!*path;
	char *buf = NULL;
	size_t len;
	FILE *o = open_memstream(&buf, &len);

	if (!o)
		return NULL;
	for (const char *p = path; *p; p++)
		up += *p == '/';
	while (up--)
		fputs("../", o);
	fprintf(o, "%s%s%s%s", found->remote ? TIER_AT : "", path, *path ? "/" : "", found->path);
	if (fclose(o)) {
		free(buf);
		return NULL;
	}
	return buf;
}

/* *out, which the caller frees: of a LINK, its target, or for an xattr the path from top. */
static int find_latest(struct lfound *f, bool far, enum answer *a, char **out)
{
	int err = lfound_all(f);

	*out = NULL;
	*a = NOTHING;
	if (err)
		return err;
	if (!far && !is_run(f)) {
		*a = f->n || !*f->top ? DIRECTORY : NOTHING;
		return 0;
	}
	ssize_t best = ckpt_newest_safe(f->v, f->n, lfound_is_safe, f);
	if (best < 0)
		return best == -ENOENT ? 0 : (int)best;
	/* a symlink is in .cairn, as deep there as top is here */
	*out = !far		   ? path_back(f->top, 1, &f->v[best])
	       : f->v[best].remote ? path_back(f->top, 0, &f->v[best])
				   : strdup(f->v[best].path);
	*a = LINK;
	return *out ? 0 : -ENOMEM;
}

/* The directory is only in the tier. */
static int check_remote_top(struct lfound *f)
{
	const struct remote_node *n = f->tier ? remote_find(f->tier, f->top) : NULL;

	if (!n || !S_ISDIR(n->st.st_mode))
		return -ENOENT;
	f->owner = n->st.st_uid;
	return remote_may(f->tier, n, f->who, 5);
}

/* Only callers who may list a directory see its names. f->owner: the directory's. */
static int check_top(struct lfound *f)
{
	struct fs *fs = f->fs;
	struct stat st;
	int err = reach_stat(fs, f->who, f->top, 5, &st);
	if (err == -ENOENT)
		return check_remote_top(f);
	if (err)
		return err == -ENOTDIR ? -ENOENT : err;
	f->owner = st.st_uid;
	int fd = reach_open(io_store_root(fs->store), f->top, O_DIRECTORY | O_PATH);
	if (fd == -ENOENT) /* not yet published: the tier may have more */
		return 0;
	if (fd < 0)
		return fd == -ENOTDIR || fd == -ELOOP ? -ENOENT : fd;
	close(fd);
	return 0;
}

/* ---- what the kernel knows ---- */

static struct entry *entry_find(uint64_t id)
{
	struct entry *e = latest.entries;
	while (e && e->id != id)
		e = e->next;
	return e;
}

/* latest.lock held. A directory that becomes a symlink gets a new id. */
static struct entry *entry_get(const char *path, bool link, size_t len)
{
	uint64_t h = hash_text(link, path);
	uint64_t id = control_tree_id(CONTROL_LATEST, h);
	struct entry *e = entry_find(id);

	if (!e && (e = calloc(1, sizeof(*e) + strlen(path) + 1))) {
		e->id = id;
		e->link = link;
		strcpy(e->path, path);
		e->next = latest.entries;
		latest.entries = e;
	}
	if (e)
		e->len = len;
	return e;
}

static void fill_stat(struct fs *fs, const struct entry *e, struct stat *st)
{
	*st = (struct stat){.st_ino = e->id,
			    .st_uid = fs->uid,
			    .st_nlink = e->link ? 1 : 2,
			    .st_blksize = 4096,
			    .st_mode = e->link ? S_IFLNK | 0777 : S_IFDIR | 0555,
			    .st_size = (off_t)e->len};
	clock_gettime(CLOCK_REALTIME, &st->st_mtim);
	st->st_atim = st->st_ctim = st->st_mtim;
}

static void reply_entry_of(struct fs *fs, const struct job *j, const char *target)
{
	pthread_mutex_lock(&latest.lock);
	struct entry *e = entry_get(j->path, target != NULL, target ? strlen(target) : 0);
	if (e) {
		struct fuse_entry_param p = {.ino = e->id};
		fill_stat(fs, e, &p.attr);
		e->nlookup++;
		/* interrupted: the kernel did not take the reference */
		if (fuse_reply_entry(j->req, &p) == -ENOENT)
			e->nlookup--;
	} else {
		fuse_reply_err(j->req, ENOMEM);
	}
	pthread_mutex_unlock(&latest.lock);
}

/* Each directory and run below, once; checkpoints in top itself are neither. */
static void reply_names(const struct job *j, struct lfound *f)
{
	char *buf = malloc(j->size), *last = NULL;
	size_t used = 0, need = 0;
	off_t at = 0;

	for (size_t i = 0; buf && i < f->n && need <= j->size - used; i++) {
		if (!strchr(f->v[i].path, '/'))
			continue;
		char *name = strndup(f->v[i].path, strcspn(f->v[i].path, "/"));
		char *path = path_join(f->top, f->v[i].path);
		struct stat st;
		/* the search used the store's modes; the live tree may have newer ones */
		bool may = f->v[i].remote || (path && !reach_stat(f->fs, f->who, path, 0, &st));
		free(path);
		if (name && may && (!last || strcmp(name, last)) && ++at > j->off) {
			struct fuse_entry_param e = {.attr = {.st_ino = CONTROL_DIR, .st_mode = 0}};
			need = j->plus ? fuse_add_direntry_plus(j->req, buf + used, j->size - used,
								name, &e, at)
				       : fuse_add_direntry(j->req, buf + used, j->size - used, name,
							   &e.attr, at);
			used += need <= j->size - used ? need : 0;
		}
		if (may) {
			free(last);
			last = name;
		} else {
			free(name);
		}
	}
	free(last);
	if (buf)
		fuse_reply_buf(j->req, buf, used);
	else
		fuse_reply_err(j->req, ENOMEM);
	free(buf);
}

static void reply_xattr(const struct job *j, const char *below)
{
	size_t len = strlen(below);
	if (!j->size)
		fuse_reply_xattr(j->req, len);
	else if (len > j->size)
		fuse_reply_err(j->req, ERANGE);
	else
		fuse_reply_buf(j->req, below, len);
}

/* What is not known to be nowhere: without its listing, it may be in the tier. Or all that is there
 * is damaged: a job must not begin from scratch then. */
static bool found_nothing(const struct lfound *f, enum want want, enum answer a)
{
	return a != LINK && (!f->n || (want != WANT_NAMES && a == NOTHING));
}

static void answer(struct fs *fs, const struct job *j)
{
	struct caller who;
	caller_of(j->req, &who);
	struct lfound f = {.fs = fs, .who = &who, .top = j->path};
	char *target = NULL;
	enum answer a = NOTHING;
	int unknown = remote_hold(fs, &f.tier), err = check_top(&f);

	if (!err)
		err = j->want == WANT_NAMES ? lfound_all(&f)
					    : find_latest(&f, j->want == WANT_XATTR, &a, &target);
	if (f.damaged)
		unknown = -EIO;
	if (unknown && (err == -ENOENT || (!err && found_nothing(&f, j->want, a))))
		err = unknown;
	if (!err && target && strlen(target) >= PATH_MAX)
		err = -ENAMETOOLONG;
	if (err)
		fuse_reply_err(j->req, -err);
	else if (j->want == WANT_NAMES)
		reply_names(j, &f);
	else if (j->want == WANT_XATTR)
		a == LINK ? reply_xattr(j, target) : (void)fuse_reply_err(j->req, ENODATA);
	else if (a == NOTHING || (j->want == WANT_LINK && a != LINK))
		fuse_reply_err(j->req, ENOENT);
	else if (j->want == WANT_LINK)
		fuse_reply_readlink(j->req, target);
	else
		reply_entry_of(fs, j, target);
	lfound_free(&f);
	if (f.tier)
		remote_put(f.tier);
	caller_free(&who);
	free(target);
}

/* ---- the thread ---- */

static void *latest_main(void *arg)
{
	struct fs *fs = arg;
	pthread_setname_np(pthread_self(), "cairn-latest");
	pthread_mutex_lock(&latest.lock);
	while (!latest.stop) {
		struct job *j = latest.jobs;
		if (!j) {
			pthread_cond_wait(&latest.cond, &latest.lock);
			continue;
		}
		latest.jobs = j->next;
		pthread_mutex_unlock(&latest.lock);
		answer(fs, j);
		free(j);
		pthread_mutex_lock(&latest.lock);
	}
	pthread_mutex_unlock(&latest.lock);
	return NULL;
}

void latest_stop(void)
{
	pthread_mutex_lock(&latest.lock);
	bool started = latest.started;
	latest.stop = true;
	pthread_cond_signal(&latest.cond);
	pthread_mutex_unlock(&latest.lock);
	if (started)
		pthread_join(latest.thread, NULL);
}

/* Queues it for the thread: no thread that answers the kernel waits for the store. */
static void ask(fuse_req_t req, const struct job *what, const char *dir, const char *name)
{
	struct job *j = calloc(1, sizeof(*j) + strlen(dir) + strlen(name) + 2), **pp;
	int err = j ? 0 : ENOMEM;

	if (j) {
		*j = *what;
		j->req = req;
		sprintf(j->path, "%s%s%s", dir, *dir && *name ? "/" : "", name);
	}
	pthread_mutex_lock(&latest.lock);
	if (!err && !latest.started) {
		err = pthread_create(&latest.thread, NULL, latest_main, req_fs(req));
		latest.started = !err;
	}
	for (pp = &latest.jobs; !err && *pp; pp = &(*pp)->next)
		;
	if (!err) {
		*pp = j;
		pthread_cond_signal(&latest.cond);
	}
	pthread_mutex_unlock(&latest.lock);
	if (err) {
		free(j);
		fuse_reply_err(req, err);
	}
}

/* The path of an id; free it. NULL: the id was made by an earlier worker and not looked up
 * since. */
static char *path_of(uint64_t id, bool link)
{
	pthread_mutex_lock(&latest.lock);
	struct entry *e = entry_find(id);
	char *path = e && e->link == link ? strdup(e->path) : NULL;
	pthread_mutex_unlock(&latest.lock);
	return path;
}

static void ask_about(fuse_req_t req, uint64_t id, bool link, const struct job *what,
		      const char *name)
{
	char *path = path_of(id, link);
	if (path)
		ask(req, what, path, name);
	else
		/* makes the kernel look the whole path up again */
		fuse_reply_err(req, ESTALE);
	free(path);
}

/* ---- the operations on .cairn/latest ---- */

static void latest_lookup(fuse_req_t req, uint64_t parent, const char *name)
{
	const struct job what = {.want = WANT_ENTRY};
	if (parent == CONTROL_DIR)
		ask(req, &what, "", "");
	else
		ask_about(req, parent, false, &what, name);
}

static void latest_getattr(fuse_req_t req, uint64_t id)
{
	struct stat st;
	pthread_mutex_lock(&latest.lock);
	struct entry *e = entry_find(id);
	if (e)
		fill_stat(req_fs(req), e, &st);
	pthread_mutex_unlock(&latest.lock);
	if (e)
		fuse_reply_attr(req, &st, 0);
	else
		fuse_reply_err(req, ESTALE);
}

static void latest_readlink(fuse_req_t req, uint64_t id)
{
	const struct job what = {.want = WANT_LINK};
	ask_about(req, id, true, &what, "");
}

static void latest_readdir(fuse_req_t req, uint64_t id, size_t size, off_t off, bool plus)
{
	const struct job what = {.want = WANT_NAMES, .size = size, .off = off, .plus = plus};
	ask_about(req, id, false, &what, "");
}

static void latest_forget(uint64_t id, uint64_t count)
{
	pthread_mutex_lock(&latest.lock);
	struct entry **pp = &latest.entries, *e;
	while ((e = *pp) && e->id != id)
		pp = &e->next;
	if (e && (e->nlookup -= count < e->nlookup ? count : e->nlookup) == 0) {
		*pp = e->next;
		free(e);
	}
	pthread_mutex_unlock(&latest.lock);
}

const struct control_ops latest_ops = {
	.lookup = latest_lookup,
	.getattr = latest_getattr,
	.readlink = latest_readlink,
	.readdir = latest_readdir,
	.forget = latest_forget,
};

void latest_xattr(fuse_req_t req, const char *path, size_t size)
{
	const struct job what = {.want = WANT_XATTR, .size = size};
	ask(req, &what, path, "");
}

void latest_xattr_of_tier(fuse_req_t req, uint64_t id, size_t size)
{
	struct remote_list *l = NULL;
	const struct remote_node *n = NULL;

	session_may_block(req_fs(req));
	int err = remote_hold(req_fs(req), &l);
	if (!err && l)
		n = remote_of_id(l, id);
	if (n && S_ISDIR(n->st.st_mode))
		latest_xattr(req, n->path, size);
	else
		fuse_reply_err(req, err ? -err : n ? ENODATA : ESTALE);
	if (l)
		remote_put(l);
}

/* SPDX-License-Identifier: MIT
 *
 * cairn tier fetch: checkpoints from a tier into a store. One is written to a directory beside its
 * own, CKPT_FETCH_PREFIX and its name, which never counts as complete; when all files are there,
 * verified and on stable storage, that directory gets the checkpoint's name. If this existed
 * before, or the checkpoint is one file, the files are renamed, those that commit it last. If it
 * came to exist meanwhile, or has changed, somebody saves there: nothing gets a name. A lock on
 * the directory says that a fetch is writing it; what a killed one left there is used again.
 */
#include "tier_names.h"
#include "tier_ranges.h"

#include "io/locks.h"
#include "io/tier_ask.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>

/* Ranges that are asked for at once: more as long as that takes less than SHORT_S, for a reader may
 * wait for one of them. */
#define MOST_RANGES 32u
#define SHORT_S 0.25
#define COPIERS 3u /* files that are copied at once, where no reader waits */
#define NAMED_S 600 /* a mount has given the names in its store by then, behind earlier changes */
#define AGAIN_S 0.1 /* it is looked at, and asked, again */

struct counts { /* of checkpoints */
	size_t fetched, there, damaged, failed;
};

enum bad { NOT_BAD, BAD_JUDGED, BAD_DAMAGED };

/* Where the checkpoint gets its names. */
struct naming {
	struct tier in; /* the store, or the mount that serves it */
	struct tier_mount mount; /* open while names are looked at or given */
	struct tier_seen seen; /* what the checkpoint's had when the fetch began */
};

struct fetch {
	struct tier from, to; /* to: the store */
	struct naming names;
	const struct tier_opts *o;
	struct progress bar;
	struct json_out j;
	uint64_t bytes; /* copied, of all checkpoints */
	const struct tier_asked *asked; /* by a mount; NULL: by nobody */
	struct tier_s3 *readers; /* a second client, of the thread that answers; NULL: none */
	int open_err; /* of a tier that was opened for later */
	struct tier_s3 *clients[COPIERS]; /* of the copiers but the first one; NULL: none */
	struct counts done;
	struct tier_why why; /* of several files of one checkpoint: the first that failed */

	/* of one checkpoint */
	struct manifest m;
	bool *have; /* of each file of m: it is in the store */
	char *stage; /* path of the directory that is written */
	int stage_fd;
	bool alone;
	uint64_t got;
	uint64_t most; /* ranges that are asked for at once */
	pthread_mutex_t lock; /* of what is below and `why`, which all threads have */
	uint64_t total; /* bytes, with those of earlier checkpoints */
	size_t next; /* the first file that nobody copies yet */
	int err; /* of the first file that failed */
	struct ranges *part; /* of each file of m */
	bool *whole; /* of each: it is complete in the directory that is written */
	enum bad bad; /* the tier has not what m lists; BAD_DAMAGED: and still has m */
	bool ended; /* no file is begun any more */
	struct ranges *wanted; /* what a reader has asked for last; NULL: nothing */
};

/* By any thread. */
static int keep_why(struct fetch *f, int err, const struct tier_why *w)
{
	pthread_mutex_lock(&f->lock);
	if (!*f->why.text)
		f->why = *w;
	pthread_mutex_unlock(&f->lock);
	return err;
}

static int store_failed(struct fetch *f, int err, const char *path)
{
	struct tier_why w;

	tier_told(&w, err, "%s/%s: %s; fetch again when that is mended", f->to.name, path,
		  strerror(-err));
	return keep_why(f, err, &w);
}

static int tier_failed(struct fetch *f, const struct tier *from, int err, const char *path)
{
	struct tier_why w;

	tier_told(&w, err, "%s/%s: %s", from->name, path, tier_strerror(from, err));
	return keep_why(f, err, &w);
}

/* ---- what is there ------------------------------------------------------------------ */

/* 1: the store has these bytes under this name; 0: it has no such name. */
static int look_at(struct fetch *f, const struct tier_file *t)
{
	CLEANUP_CLOSE int fd = tier_open_at(&f->to, t->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
	char sum[IO_CHECKSUM_LEN];
	struct stat st;
	int err = fd < 0 ? fd : fstat(fd, &st) ? -errno : 0;

	if (err == -ENOENT)
		return 0;
	if (!err && S_ISREG(st.st_mode) && (uint64_t)st.st_size == t->size) {
		if (st.st_mtim.tv_sec == t->mtime.tv_sec && st.st_mtim.tv_nsec == t->mtime.tv_nsec)
			return 1;
		err = io_sum_file(fd, sum);
		if (!err && !strcmp(sum, t->sum))
			return 1;
	}
	if (err)
		return store_failed(f, err, t->path);
	return tier_told(&f->why, -EEXIST,
			 "%s/%s: the store has another file there; move the checkpoint away to "
			 "fetch this one",
			 f->to.name, t->path);
}

/* How many files are missing; or -errno. */
static ssize_t look_at_all(struct fetch *f)
{
	ssize_t missing = 0;

	f->have = calloc(f->m.n + 1, sizeof(*f->have));
	f->whole = calloc(f->m.n + 1, sizeof(*f->whole));
	f->part = calloc(f->m.n + 1, sizeof(*f->part));
	if (!f->have || !f->whole || !f->part)
		return tier_told(&f->why, -ENOMEM, "no memory");
	for (size_t i = 0; i < f->m.n; i++) {
		int there = look_at(f, &f->m.v[i]);

		if (there < 0)
			return there;
		f->have[i] = there;
		missing += !there;
	}
	return missing;
}

/* ---- the directory that is written -------------------------------------------------- */

/* The path of a file there; malloc()ed. */
static char *staged_path(const struct fetch *f, const char *path)
{
	char *out;
	const char *rel = f->alone ? path_base(path) : path + strlen(f->m.path) + 1;

	/* a single file must not look like a checkpoint before it is whole */
	return asprintf(&out, "%s/%s%s", f->stage, rel, f->alone ? ".part" : "") < 0 ? NULL : out;
}

static int open_stage(struct fetch *f)
{
	struct stat st, at;
	int err = tier_make_dirs(&f->to, f->stage);

	if (!err)
		f->stage_fd = tier_open_at(&f->to, f->stage, O_RDONLY | O_DIRECTORY);
	if (!err && f->stage_fd < 0)
		err = f->stage_fd;
	if (!err && flock(f->stage_fd, LOCK_EX | LOCK_NB))
		err = -errno;
	/* another one may have given it its name before this had the lock */
	if (!err && (fstat(f->stage_fd, &st) || tier_stat(&f->to, f->stage, &at) ||
		     st.st_ino != at.st_ino || st.st_dev != at.st_dev))
		err = -EWOULDBLOCK;
	if (err == -EWOULDBLOCK)
		return tier_told(&f->why, err, "%s/%s: another process fetches it", f->to.name,
				 f->m.path);
	return err ? store_failed(f, err, f->stage) : 0;
}

static void on_bytes(void *ctx, const struct ranges *r, uint64_t n)
{
	struct fetch *f = ctx;

	pthread_mutex_lock(&f->lock);
	f->bytes += n;
	f->got += n;
	if (!f->asked)
		progress_done(&f->bar, f->bytes, f->bar.done + f->bar.left, f->m.path);
	else
		*f->asked->bytes = f->got;
	pthread_mutex_unlock(&f->lock);
	if (f->asked)
		f->asked->seen(r->t, -1, -1, 0);
}

/* Is the manifest of this fetch still that of the checkpoint? 1, 0, or -errno: not known. */
static int is_listed_still(const struct fetch *f, const struct tier *from)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	int err = manifest_load(from, f->m.path, TIER_MANIFEST, &m);

	if (err == -ENOENT || err == -EBADMSG)
		return 0;
	return err ? err : manifest_version(&m) == manifest_version(&f->m);
}

/* The checkpoint is damaged if it has that manifest still: a push may have replaced it. Judged
 * once; by any thread. */
static void on_bad(void *ctx, const struct tier *from, const struct ranges *r)
{
	struct fetch *f = ctx;
	struct tier_why w;
	struct stat st;
	bool first, missing;
	int listed;

	pthread_mutex_lock(&f->lock);
	first = f->bad == NOT_BAD;
	if (first)
		f->bad = BAD_JUDGED;
	pthread_mutex_unlock(&f->lock);
	if (!first)
		return;
	missing = tier_stat(from, r->t->path, &st) == -ENOENT;
	listed = is_listed_still(f, from);
	tier_told(&w, -EBADMSG, "%s/%s: %s%s", f->from.name, r->t->path,
		  missing ? "missing, and its manifest lists it"
			  : "not the bytes that its manifest lists",
		  listed == 1 ? "; it is damaged (`cairn tier verify`)"
		  : listed    ? ""
			      : "; it was replaced meanwhile: fetch again");
	keep_why(f, -EBADMSG, &w);
	if (listed != 1)
		return;
	if (f->asked)
		f->asked->damaged(&f->m, w.text);
	pthread_mutex_lock(&f->lock);
	f->bad = BAD_DAMAGED;
	pthread_mutex_unlock(&f->lock);
}

/* What the fetch of a file fails with that is not as listed. */
static int not_as_listed(struct fetch *f)
{
	enum bad bad;

	pthread_mutex_lock(&f->lock);
	bad = f->bad;
	pthread_mutex_unlock(&f->lock);
	return bad == BAD_DAMAGED ? -EBADMSG : -ESTALE;
}

/* The lock is held. */
static int open_part(struct fetch *f, size_t i)
{
	const struct tier_file *t = &f->m.v[i];
	CLEANUP_FREE char *path = staged_path(f, t->path);
	CLEANUP_FREE char *up = path ? strndup(path, (size_t)(path_base(path) - path) - 1) : NULL;
	CLEANUP_CLOSE int dir = -1;
	int err = up ? 0 : -ENOMEM;

	if (!err && f->ended)
		err = -ECANCELED;
	if (!err && f->part[i].t)
		return 0;
	if (!err)
		err = tier_make_dirs(&f->to, up);
	if (!err)
		dir = tier_open_at(&f->to, up, O_RDONLY | O_DIRECTORY);
	return err ? err : dir < 0 ? dir : ranges_open(&f->part[i], t, dir, path_base(path));
}

/* Some ranges of it. 1: there may be more; 0: none; or -errno. */
static int get_some(struct fetch *f, const struct tier *from, struct ranges *r)
{
	double begun = now_s();
	uint64_t first, n;
	int err;

	if (!ranges_claim_next(r, f->most, &first, &n))
		return 0;
	err = ranges_get(r, from, first, n, on_bytes, on_bad, f);
	if (f->asked && now_s() - begun > SHORT_S)
		f->most = f->most > 1 ? f->most / 2 : 1;
	else if (f->asked && n == f->most && f->most < MOST_RANGES)
		f->most *= 2;
	if (err == -EBADMSG && f->asked)
		return 1; /* others of its ranges are read */
	if (err == -EBADMSG)
		return not_as_listed(f);
	if (err && from->s3 && *tier_s3_why(from->s3))
		return tier_failed(f, from, err, r->t->path);
	return err ? store_failed(f, err, r->t->path) : 1;
}

/* All its bytes are there. */
static int finish_part(struct fetch *f, const struct tier *from, size_t i)
{
	const struct tier_file *t = &f->m.v[i];
	struct stat st;
	int err = tier_mode(from, t->path, &st);

	if (err)
		return tier_failed(f, from, err, t->path);
	st.st_mtim = t->mtime;
	err = tier_finish(f->part[i].fd, &st, t->sum);
	if (err)
		return store_failed(f, err, t->path);
	pthread_mutex_lock(&f->lock);
	f->whole[i] = true;
	ranges_close(&f->part[i]);
	pthread_mutex_unlock(&f->lock);
	return 0;
}

/* What a reader has asked for, and goes on with, comes before others. */
static int get_wanted(struct fetch *f)
{
	struct ranges *r;
	int more;

	do {
		pthread_mutex_lock(&f->lock);
		r = f->wanted;
		f->wanted = NULL;
		pthread_mutex_unlock(&f->lock);
		more = r && !f->whole[r->t - f->m.v] ? get_some(f, &f->from, r) : 0;
		pthread_mutex_lock(&f->lock);
		if (more > 0 && !f->wanted)
			f->wanted = r;
		pthread_mutex_unlock(&f->lock);
	} while (more > 0);
	return more;
}

static int copy_one(struct fetch *f, const struct tier *from, size_t i)
{
	struct ranges *r = &f->part[i];
	int err;

	if (f->have[i] || f->whole[i])
		return 0;
	pthread_mutex_lock(&f->lock);
	progress_done(&f->bar, f->bytes, f->total, f->m.path);
	err = open_part(f, i);
	pthread_mutex_unlock(&f->lock);
	if (err)
		return store_failed(f, err, f->m.v[i].path);
	do
		err = get_wanted(f);
	while (!err && (err = get_some(f, from, r)) > 0);
	if (!err && !ranges_are_there(r))
		err = not_as_listed(f);
	return err ? err : finish_part(f, from, i);
}

/* ---- readers who wait; a thread ------------------------------------------------------- */

/* A file that is whole, in the store or in the directory that is written. */
static void tell_whole(struct fetch *f, size_t i)
{
	CLEANUP_FREE char *path =
		f->have[i] ? strdup(f->m.v[i].path) : staged_path(f, f->m.v[i].path);
	CLEANUP_CLOSE int fd = path ? tier_open_at(&f->to, path, O_RDONLY | O_NOFOLLOW) : -1;

	if (fd >= 0)
		f->asked->seen(&f->m.v[i], fd, -1, 0);
}

static void answer(struct fetch *f, const struct tier *from, const struct tier_message *m)
{
	const struct tier_file *t = manifest_find(&f->m, m->path);
	size_t i = t ? (size_t)(t - f->m.v) : 0;
	struct ranges *r = &f->part[i];
	bool open;

	if (!t)
		return;
	pthread_mutex_lock(&f->lock);
	open = !f->have[i] && !f->whole[i] && !open_part(f, i);
	if (open)
		f->asked->seen(t, r->fd, r->told, r->bytes);
	else if (f->have[i] || f->whole[i])
		tell_whole(f, i);
	pthread_mutex_unlock(&f->lock);
	for (uint64_t at = m->offset; open && at < m->offset + m->bytes && at < t->size;
	     at += r->bytes - at % r->bytes)
		if (ranges_claim(r, at / r->bytes))
			/* else the other thread tries again */
			ranges_get(r, from, at / r->bytes, 1, on_bytes, on_bad, f);
	pthread_mutex_lock(&f->lock);
	if (open)
		f->wanted = r;
	pthread_mutex_unlock(&f->lock);
}

/* It has a client of its own: that of the other thread does one request after the other. */
static void *answer_all(void *arg)
{
	struct fetch *f = arg;
	struct tier from = f->from;
	struct tier_message m;

	from.s3 = f->readers;
	while (recv(f->asked->sock, &m, sizeof(m), 0) == sizeof(m)) {
		m.path[sizeof(m.path) - 1] = '\0';
		answer(f, &from, &m);
	}
	return NULL;
}

static void start_to_answer(struct fetch *f)
{
	pthread_t t;

	if (f->asked && (f->readers || !f->from.s3) && !pthread_create(&t, NULL, answer_all, f))
		pthread_detach(t);
}

/* ---- all files ----------------------------------------------------------------------- */

/* Who reads single files is given those that are good. */
static bool goes_on(const struct fetch *f, int err)
{
	return !err || (f->asked && (err == -EBADMSG || err == -ESTALE));
}

struct copier {
	struct fetch *f;
	struct tier from; /* with a client of its own */
	pthread_t thread;
};

/* The next one to copy; false: none. */
static bool next_file(struct fetch *f, size_t *i)
{
	bool found;

	pthread_mutex_lock(&f->lock);
	found = goes_on(f, f->err) && f->next < f->m.n;
	*i = f->next;
	f->next += found;
	pthread_mutex_unlock(&f->lock);
	return found;
}

static void copy_file(struct fetch *f, const struct tier *from, size_t i)
{
	int err = copy_one(f, from, i);

	pthread_mutex_lock(&f->lock);
	if (err && !f->err)
		f->err = err;
	pthread_mutex_unlock(&f->lock);
}

static void *copy_files(void *arg)
{
	struct copier *c = arg;
	size_t i;

	while (next_file(c->f, &i))
		copy_file(c->f, &c->from, i);
	return NULL;
}

/* Another one beside the first; false: there can be none. */
static bool start_copier(struct fetch *f, struct copier *c, size_t i)
{
	struct tier_why none;

	*c = (struct copier){.f = f, .from = f->from};
	if (f->from.s3 && !f->clients[i] && tier_s3_open(&f->clients[i], f->from.name, &none)) {
		tier_s3_close(f->clients[i]);
		f->clients[i] = NULL;
		return false;
	}
	c->from.s3 = f->clients[i];
	return !pthread_create(&c->thread, NULL, copy_files, c);
}

static int copy_all(struct fetch *f)
{
	const struct tier_file *wanted = f->asked ? manifest_find(&f->m, f->asked->first) : NULL;
	struct copier c[COPIERS] = {{.f = f, .from = f->from}};
	size_t missing = 0, n = 1;

	f->total = f->bytes;
	for (size_t i = 0; i < f->m.n; i++) {
		f->total += f->have[i] ? 0 : f->m.v[i].size;
		missing += !f->have[i];
	}
	f->most = f->asked ? 1 : UINT64_MAX;
	f->next = 0;
	f->err = 0;
	start_to_answer(f);
	if (wanted)
		copy_file(f, &f->from, (size_t)(wanted - f->m.v));
	while (!f->asked && n < COPIERS && n < missing && start_copier(f, &c[n], n))
		n++;
	copy_files(&c[0]);
	while (n > 1)
		pthread_join(c[--n].thread, NULL);
	/* one copier may have ended before another had judged */
	return f->err == -ESTALE ? not_as_listed(f) : f->err;
}

/* ---- the names ---------------------------------------------------------------------- */

/* Mode, owner and time of a directory of the checkpoint; then its names are synced. */
static int finish_dir(const struct fetch *f, int fd, const char *below)
{
	CLEANUP_FREE char *like = NULL;
	struct timespec times[2];
	int err;

	if (asprintf(&like, "%s%s%s", f->m.path, *below ? "/" : "", below) < 0)
		return -ENOMEM;
	times[0] = times[1] =
		manifest_time(&f->m); /* as old as what is in it, for `cairn latest` */
	err = tier_make_like(&f->to, fd, like);
	if (!err && (futimens(fd, times) || fsync(fd)))
		err = -errno;
	return err;
}

/* What a fetch of an earlier copy left goes; directories are as in the tier. */
static int finish_tree(struct fetch *f)
{
	CLEANUP_WALK struct walk *w = NULL;
	struct walk_item it;
	int err = walk_open(f->stage_fd, -1, NULL, &w);

	while (!err && walk_next(w, &it) != WALK_END) {
		CLEANUP_FREE char *path = NULL;

		if (it.what == WALK_ERROR)
			return it.err;
		if (asprintf(&path, "%s/%s", f->m.path, it.path) < 0)
			return -ENOMEM;
		if (it.what == WALK_ENTRY && !S_ISDIR(it.st.st_mode) &&
		    !manifest_find(&f->m, path) && unlinkat(it.dirfd, it.name, 0))
			err = -errno;
		if (it.what == WALK_LEAVE) {
			CLEANUP_CLOSE int fd = openat(
				it.dirfd, it.name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

			err = fd < 0 ? -errno : finish_dir(f, fd, it.path);
		}
	}
	return err ? err : finish_dir(f, f->stage_fd, "");
}

/* The store has them. */
static int finish_names(struct fetch *f)
{
	int err = tier_sync_dir(&f->to, f->m.path);

	for (size_t i = 0; !err && i < f->m.n; i++)
		if (ckpt_commits(path_base(f->m.v[i].path)))
			err = tier_sync_dir(&f->to, f->m.v[i].path);
	return err ? store_failed(f, err, f->m.path) : 0;
}

static int not_named(struct fetch *f, int err, const char *path)
{
	struct tier_why w;

	if (err != -EEXIST)
		return err ? store_failed(f, err, path) : 0;
	tier_told(&w, err,
		  "%s/%s: made or changed while it was fetched; move it away and fetch again",
		  f->to.name, path);
	return keep_why(f, err, &w);
}

static int publish_dir(struct fetch *f)
{
	int err = finish_tree(f);

	if (!err)
		err = tier_rename_new(&f->names.in, f->stage, f->m.path);
	if (!err)
		err = tier_sync_dir(&f->names.in, f->m.path);
	return not_named(f, err, f->m.path);
}

static int publish_file(struct fetch *f, const struct tier_file *t)
{
	CLEANUP_FREE char *from = staged_path(f, t->path);
	CLEANUP_FREE char *up = strndup(t->path, (size_t)(path_base(t->path) - t->path));
	size_t len = up ? strlen(up) : 0;
	int err = from && up ? 0 : -ENOMEM;

	if (len > 1) {
		up[len - 1] = '\0';
		err = tier_make_dirs(&f->names.in, up);
	}
	if (!err)
		err = tier_rename_new(&f->names.in, from, t->path);
	if (!err)
		err = tier_sync_dir(&f->names.in, t->path);
	return not_named(f, err, t->path);
}

static void remove_stage(struct fetch *f)
{
	CLEANUP_WALK struct walk *w = NULL;
	struct walk_item it;

	if (walk_open(f->stage_fd, -1, NULL, &w))
		return;
	while (walk_next(w, &it) != WALK_END) {
		if (it.what == WALK_ENTRY && !S_ISDIR(it.st.st_mode))
			unlinkat(it.dirfd, it.name, 0);
		else if (it.what == WALK_LEAVE)
			unlinkat(it.dirfd, it.name, AT_REMOVEDIR);
	}
	unlinkat(f->to.root, f->stage, AT_REMOVEDIR);
}

static int publish_files(struct fetch *f)
{
	int err = 0;

	for (int commits = 0; commits < 2; commits++)
		for (size_t i = 0; !err && i < f->m.n; i++)
			if (!f->have[i] && ckpt_commits(path_base(f->m.v[i].path)) == !!commits)
				err = publish_file(f, &f->m.v[i]);
	return err;
}

/* 0, or told; f->names.mount is to be closed in any case. */
static int enter_names(struct fetch *f)
{
	f->names.in = f->to;
	f->names.mount = TIER_MOUNT_NONE;
	if (!f->asked || !f->asked->mount)
		return 0;
	int err = tier_mount_open(&f->names.mount, f->asked->mount, f->to.name, &f->why);

	f->names.in.name = f->asked->mount;
	f->names.in.root = f->names.mount.top;
	return err;
}

/* What a killed fetch, or a job, has closed there is in the store then. */
static int see_before(struct fetch *f)
{
	int err = enter_names(f);

	if (!err && (err = tier_see(&f->names.in, f->m.path, &f->names.seen)) == -EBUSY)
		tier_told(&f->why, err, "%s/%s: a job writes it; fetch again when it does not",
			  f->to.name, f->m.path);
	else if (err && !*f->why.text)
		store_failed(f, err, f->m.path);
	tier_mount_close(&f->names.mount);
	return err;
}

/* Who saves there has made the directory, or put something into it. */
static int check_unchanged(struct fetch *f)
{
	struct tier_seen now;
	int err = tier_see(&f->names.in, f->m.path, &now);

	if (err == -EBUSY || (!err && !tier_seen_same(&f->names.seen, &now)))
		err = -EEXIST;
	return not_named(f, err, f->m.path);
}

/* What a reader has open stays readable. */
static void discard(struct fetch *f)
{
	pthread_mutex_lock(&f->lock);
	f->ended = true;
	pthread_mutex_unlock(&f->lock);
	remove_stage(f);
}

/* Is a file, or the directory, still where it was written? */
static bool is_staged(const struct fetch *f, bool whole)
{
	struct stat st;

	for (size_t i = 0; !whole && i < f->m.n; i++) {
		CLEANUP_FREE char *path = f->have[i] ? NULL : staged_path(f, f->m.v[i].path);

		if (path && tier_stat(&f->to, path, &st) != -ENOENT)
			return true;
	}
	return whole && tier_stat(&f->to, f->stage, &st) != -ENOENT;
}

/* The mount changes its store in the order of all changes, and is not kept open meanwhile. */
static int await_names(struct fetch *f, bool whole)
{
	double until = now_s() + NAMED_S;

	if (!f->asked || !f->asked->mount)
		return 0;
	for (; is_staged(f, whole); sleep_s(AGAIN_S)) {
		if (now_s() > until)
			return store_failed(f, -ETIMEDOUT, f->m.path);
		f->asked->seen(&f->m.v[0], -1, -1, 0); /* who waits for it goes on waiting */
	}
	return finish_names(f);
}

/* *begun: something may have its name. -ENOENT: a directory above it was made on the mount, and is
 * not in the store yet; what the store has there is seen when it is. */
static int try_names(struct fetch *f, bool whole, bool *begun)
{
	int err;

	pthread_mutex_lock(&f->lock);
	*f->why.text = '\0';
	pthread_mutex_unlock(&f->lock);
	err = enter_names(f);
	if (!err)
		err = check_unchanged(f);
	*begun = !err && !whole && !f->alone;
	if (!err)
		err = whole ? publish_dir(f) : publish_files(f);
	tier_mount_close(&f->names.mount);
	return err;
}

static int publish(struct fetch *f)
{
	bool whole = !f->names.seen.there && !f->alone, begun;
	double until = now_s() + NAMED_S;
	int err;

	while ((err = try_names(f, whole, &begun)) == -ENOENT && f->asked && !begun &&
	       is_staged(f, whole) && now_s() < until) {
		f->asked->seen(&f->m.v[0], -1, -1, 0);
		sleep_s(AGAIN_S);
	}
	if (!err)
		err = await_names(f, whole);
	if (!err && !whole) /* no file in it waits for its name any more */
		remove_stage(f);
	else if (err == -EEXIST && !begun && f->asked)
		discard(f); /* saves need the space; by hand, it is used again */
	return err;
}

static bool is_full(int err)
{
	return err == -ENOSPC || err == -EDQUOT;
}

/* ---- one checkpoint ------------------------------------------------------------------ */

/* All of it is there: a killed fetch may not have come to this. */
static int finish_there(struct fetch *f)
{
	struct stat st;
	int err = finish_names(f);

	if (err)
		return err;
	if (tier_stat(&f->to, f->stage, &st))
		return 0;
	err = open_stage(f);
	if (!err)
		remove_stage(f);
	return err;
}

/* The tier, and of a bucket the clients, which are ready to send soon after. */
static int open_tier(struct fetch *f, const char *name)
{
	int err = tier_open_listed(&f->from, name, &f->why);
	struct tier_why none;

	if (!err && f->from.s3 && tier_s3_open(&f->readers, name, &none)) {
		tier_s3_close(f->readers);
		f->readers = NULL;
	}
	return err;
}

static int load_manifest(struct fetch *f, const char *path)
{
	const char *name = f->from.name;
	int err = manifest_load(&f->from, path, TIER_MANIFEST, &f->m);

	if (err != -EACCES || !f->asked || !f->from.s3)
		return err;
	/* they may have been started long ago: again, with the credentials of now */
	tier_s3_close(f->readers);
	f->readers = NULL;
	tier_close(&f->from);
	err = open_tier(f, name);
	return err ? err : manifest_load(&f->from, path, TIER_MANIFEST, &f->m);
}

static int load(struct fetch *f, const char *path)
{
	const char *base = path_base(path);
	int err = load_manifest(f, path);

	f->alone = !err && f->m.n == 1 && !strcmp(f->m.v[0].path, path);
	if (!err && (!*base || (!f->alone && manifest_find(&f->m, path))))
		err = -EBADMSG; /* a directory and a file */
	if (!err && asprintf(&f->stage, "%.*s" CKPT_FETCH_PREFIX "%s", (int)(base - path), path,
			     base) < 0) {
		f->stage = NULL;
		err = -ENOMEM;
	}
	return err;
}

/* 1: fetched; 0: it was there; or -errno. */
static int fetch_one(struct fetch *f, const char *path)
{
	ssize_t missing;
	int err = load(f, path);

	if (err)
		return tier_told(&f->why, err, "%s/%s: its manifest: %s", f->from.name, path,
				 err == -EBADMSG ? "damaged" : tier_strerror(&f->from, err));
	*f->why.text = '\0';
	err = see_before(f);
	if (err)
		return err;
	missing = look_at_all(f);
	if (missing <= 0)
		return missing ? (int)missing : finish_there(f);
	err = open_stage(f);
	if (!err && (err = copy_all(f)) && f->asked && is_full(err))
		discard(f); /* saves need the space */
	if (!err)
		err = publish(f);
	return err ? err : 1;
}

static void show(struct fetch *f, const char *path, int result)
{
	const char *what = result > 0		? "fetched"
			   : !result		? "there"
			   : result == -EBADMSG ? "damaged"
						: "failed";
	char buf[32], count[COUNT_ROOM];

	progress_end(&f->bar);
	if (f->o->json) {
		json_open(&f->j, NULL, '{');
		json_put_path(&f->j, "path", path);
		json_put_string(&f->j, "action", what);
		json_put_u64(&f->j, "files", f->m.n);
		json_put_u64(&f->j, "bytes", manifest_bytes(&f->m));
		json_put_u64(&f->j, "fetched_bytes", f->got);
		json_put_path(&f->j, "why", result < 0 ? f->why.text : NULL);
		json_close(&f->j, '}');
	} else if (result >= 0) {
		printf("%-7s  ", what);
		print_name(stdout, path);
		printf("  %s, %s\n", count_of(f->m.n, "file", count),
		       human_bytes(manifest_bytes(&f->m), buf));
	}
	if (result < 0)
		complain("%s", f->why.text);
}

static void one_done(struct fetch *f)
{
	for (size_t i = 0; f->part && i < f->m.n; i++)
		ranges_free(&f->part[i]);
	manifest_free(&f->m);
	free(f->part);
	free(f->whole);
	free(f->have);
	free(f->stage);
	if (f->stage_fd >= 0)
		close(f->stage_fd);
	f->part = NULL;
	f->have = f->whole = NULL;
	f->stage = NULL;
	f->stage_fd = -1;
	f->got = 0;
	f->bad = NOT_BAD;
}

/* ---- those that are asked for --------------------------------------------------------- */

/* 1: fetched; 0: it was there; or -errno. It is told. */
static int fetch_this(struct fetch *f, const char *path)
{
	int result = fetch_one(f, path);

	show(f, path, result);
	f->done.fetched += result > 0;
	f->done.there += !result;
	f->done.damaged += result == -EBADMSG;
	f->done.failed += result < 0;
	one_done(f);
	return result;
}

static int fetch_wanted(struct fetch *f, const struct names *names)
{
	CLEANUP_FREE bool *hit = calloc(f->o->n_dirs + 1, sizeof(*hit));
	int worst = hit ? CAIRN_OK : CAIRN_FAILED;

	for (size_t i = 0; hit && i < names->n; i++)
		if (tier_wants(f->o, names->v[i], hit) && fetch_this(f, names->v[i]) < 0)
			worst = CAIRN_FAILED;
	for (size_t i = 0; hit && i < f->o->n_dirs; i++)
		if (!hit[i]) {
			complain("%s/%s: no complete checkpoint in this tier", f->from.name,
				 f->o->dirs[i]);
			worst = CAIRN_FAILED;
		}
	return worst;
}

/* ---- the newest one ------------------------------------------------------------------ */

struct newest {
	struct ckpt_found *v; /* the newest first, as `cairn latest` orders them */
	size_t n;
	bool *damaged; /* of each */
};

static int is_whole(void *ctx, size_t i)
{
	const struct newest *all = ctx;

	return !all->damaged[i]; /* it has a manifest */
}

/* One whose manifest is damaged is told and left out. What cannot be read may be the newest one:
 * -errno, and it is told. */
static int add_one(struct fetch *f, const char *path, struct newest *all)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	int err = manifest_load(&f->from, path, TIER_MANIFEST, &m);

	if (err == -ENOENT)
		return 0; /* removed just now */
	if (err)
		complain("%s/%s: its manifest: %s", f->from.name, path,
			 err == -EBADMSG ? "damaged" : tier_strerror(&f->from, err));
	f->done.damaged += err == -EBADMSG;
	if (err)
		return err == -EBADMSG ? 0 : err;
	err = manifest_found(&m, &all->v[all->n]);
	all->n += !err;
	return err;
}

static int fetch_newest(struct fetch *f, struct newest *all)
{
	ssize_t at;

	while ((at = ckpt_newest_safe(all->v, all->n, is_whole, all)) >= 0) {
		int result = fetch_this(f, all->v[at].path);

		if (result != -EBADMSG)
			return result < 0 ? CAIRN_FAILED : CAIRN_OK;
		complain("%s/%s is damaged: the one before it is fetched", f->from.name,
			 all->v[at].path);
		all->damaged[at] = true;
	}
	complain("%s: no complete checkpoint in this tier%s", f->from.name,
		 f->done.damaged ? " that is not damaged" : "");
	return CAIRN_FAILED;
}

static int fetch_latest(struct fetch *f, const struct names *names)
{
	struct newest all = {.v = calloc(names->n + 1, sizeof(*all.v)),
			     .damaged = calloc(names->n + 1, sizeof(*all.damaged))};
	int code = CAIRN_FAILED, err = all.v && all.damaged ? 0 : -ENOMEM;

	for (size_t i = 0; !err && i < names->n; i++)
		err = add_one(f, names->v[i], &all);
	if (all.v)
		all.n = ckpt_found_sort(all.v, all.n);
	if (!err)
		code = fetch_newest(f, &all);
	for (size_t i = 0; i < all.n; i++)
		free(all.v[i].path);
	free(all.v);
	free(all.damaged);
	return code;
}

/* ---- all of them --------------------------------------------------------------------- */

static int fetch_listed(struct fetch *f)
{
	struct names names;
	int code, err = manifest_list(&f->from, TIER_MANIFEST, &names);

	if (err) {
		complain("%s/" TIER_MANIFESTS ": %s", f->from.name, tier_strerror(&f->from, err));
		return CAIRN_FAILED;
	}
	json_begin(&f->j, stdout);
	if (f->o->json) {
		json_open(&f->j, NULL, '{');
		json_put_path(&f->j, "tier", f->from.name);
		json_open(&f->j, "checkpoints", '[');
	}
	code = f->o->latest ? fetch_latest(f, &names) : fetch_wanted(f, &names);
	if (f->o->json) {
		json_close(&f->j, ']');
		json_put_u64(&f->j, "fetched", f->done.fetched);
		json_put_u64(&f->j, "there", f->done.there);
		json_put_u64(&f->j, "failed", f->done.failed);
		json_put_u64(&f->j, "damaged", f->done.damaged);
		json_put_u64(&f->j, "fetched_bytes", f->bytes);
		json_close(&f->j, '}');
	}
	names_free(&names);
	return code;
}

int tier_fetch(const char *tier, const char *store, const struct tier_opts *o)
{
	CLEANUP_PLACE struct location l = LOCATION_NONE;
	CLEANUP_TIER struct tier from = TIER_NONE, to = TIER_NONE;
	struct fetch f = {.o = o, .stage_fd = -1, .lock = RANKED_MUTEX(RANK_FETCH)};
	int code = CAIRN_OK, err = location_find(store, &l);

	if (err && err != -ENODEV && err != -EXDEV) {
		complain_location(store, err);
		return location_code(err);
	}
	if (!err && !l.on_mount)
		code = location_hold(store, &l, "use the path on its mount");
	if (code)
		return code;
	err = tier_open_to_read(&from, tier, &f.why);
	to.name = store;
	to.root = err ? -1 : open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	to.like = from.root;
	if (!err && to.root < 0)
		err = tier_told(&f.why, -errno, "%s: %m", store);
	f.from = from;
	f.to = to;
	progress_start(&f.bar, "fetch", o->quiet);
	if (err)
		complain("%s", f.why.text);
	code = !err				      ? fetch_listed(&f)
	       : err == -ENOENT || err == -EOPNOTSUPP ? CAIRN_USAGE
						      : CAIRN_FAILED;
	for (size_t i = 0; i < COPIERS; i++)
		tier_s3_close(f.clients[i]);
	return code;
}

/* ---- for a mount ------------------------------------------------------------------------ */

struct fetch *tier_fetch_prepare(const char *tier)
{
	static const struct tier_opts quiet = {.quiet = true};
	struct fetch *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->o = &quiet;
	f->stage_fd = -1;
	f->to = TIER_NONE;
	lock_init(&f->lock, RANK_FETCH);
	progress_start(&f->bar, "fetch", true);
	f->open_err = open_tier(f, tier);
	return f;
}

int tier_fetch_one(struct fetch *f, const char *store, const char *path,
		   const struct tier_asked *asked, struct tier_why *w)
{
	int err = f ? f->open_err : tier_told(w, -ENOMEM, "no memory");

	if (!f)
		return err;
	f->asked = asked;
	f->to.name = store;
	f->to.root = err ? -1 : open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	f->to.like = f->from.root;
	if (!err && f->to.root < 0)
		err = tier_told(&f->why, -errno, "%s: %m", store);
	if (!err)
		err = fetch_one(f, path);
	*w = f->why;
	/* not freed when files were begun: the thread that answers has it until the process ends */
	if (f->most)
		return err < 0 ? err : 0;
	one_done(f);
	tier_close(&f->to);
	tier_s3_close(f->readers);
	tier_close(&f->from);
	free(f);
	return err < 0 ? err : 0;
}

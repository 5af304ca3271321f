/* SPDX-License-Identifier: MIT
 * Whether a checkpoint is safe: complete in the store, with no change on its way to it. The store
 * is examined first, then the live tree is asked, then the store is compared with what was
 * examined.
 */
#include "fs/latest/inside.h"
#include "io/number.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METADATA_MAX (64u << 20) /* parsing a hostile one takes some 2 GiB */
#define TRIES 3u
#define SYNC_WAIT_MS 2000u

/* ---- completeness ---- */

static int source_open(void *ctx, const char *name, struct fmt_source *out)
{
	const struct ldir *d = ctx;

	return fmt_file_own(reach_open(d->fd, name, 0), out);
}

struct look {
	uint64_t fingerprint;
	struct timespec newest_m, newest_c;
	bool foreign; /* an untrusted user owns a part of it */
};

/* 0, or the -errno of a store that cannot tell whether the xattr exists. */
static int mark_error(ssize_t len)
{
	return len >= 0 || xattr_is_absent(len) || name_is_absent((int)len) ? 0 : (int)len;
}

static int read_mark(struct fs *fs, int fd, struct ckpt_name *n)
{
	char buf[64], text[256], sum[CKPT_OVER_BYTES];
	if (ckpt_commits_shards(n->name)) {
		ssize_t got = io_get_xattr(fs->store, fd, n->name, KEY_INO, text, sizeof(text) - 1);
		text[got < 0 ? 0 : got] = '\0';
		n->ino = number_first(text); /* a mark may follow */
		return mark_error(got);
	}
	if (!ckpt_commit_of(n->name, 0, buf))
		return 0;
	ssize_t len = io_get_xattr(fs->store, fd, n->name, CKPT_OVER_KEY, text, sizeof(text) - 1);
	if (len <= 0)
		return mark_error(len);
	text[len] = '\0';
	len = io_get_xattr(fs->store, fd, n->name, KEY_CHECKSUM, sum, sizeof(sum) - 1);
	sum[len < 0 ? 0 : len] = '\0';
	ckpt_over_parse(text, sum, &n->over);
	return mark_error(len);
}

/* Hashes the sizes and timestamps of all names. Each version of a file is a new inode in the store,
 * so every change alters the hash. */
static int stat_all(const struct lfound *f, struct ldir *d, bool alone, struct look *out)
{
	*out = (struct look){.foreign = !alone && !lfound_trusts(f, &d->st)};
	if (!alone)
		out->newest_m = d->st.st_mtim;
	for (size_t i = 0; i < d->n; i++) {
		struct ckpt_name *n = &d->v[i];
		struct stat st = {0};
		if (fstatat(d->fd, n->name, &st, AT_SYMLINK_NOFOLLOW)) {
			if (errno != ENOENT)
				return -errno;
			st.st_ino = 0;
		} else {
			out->foreign |= !lfound_trusts(f, &st);
		}
		n->size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
		n->dir = S_ISDIR(st.st_mode);
		n->mtime = st.st_mtim;
		int err = S_ISREG(st.st_mode) ? read_mark(f->fs, d->fd, n) : 0;
		if (err)
			return err;
		time_to_later(&out->newest_m, st.st_mtim);
		time_to_later(&out->newest_c, st.st_ctim);
		out->fingerprint = hash_bytes(out->fingerprint, n->name, strlen(n->name) + 1);
		uint64_t x[] = {st.st_ino,
				n->size,
				(uint64_t)st.st_mtim.tv_sec,
				(uint64_t)st.st_mtim.tv_nsec,
				(uint64_t)st.st_ctim.tv_sec,
				(uint64_t)st.st_ctim.tv_nsec};
		out->fingerprint = hash_bytes(out->fingerprint, x, sizeof(x));
	}
	out->fingerprint |= 1; /* 0 means none */
	return 0;
}

/* The names of the checkpoint at path: those in the directory, or the file alone. */
static int names_of(const struct lfound *f, const char *path, bool alone, struct ldir *d,
		    struct look *out)
{
	int err = 0;
	if (!alone) {
		err = ldir_read(f->fs, path, d);
	} else {
		const char *name = latest_base_name(path);
		char *up = strndup(path, name == path ? 0 : (size_t)(name - path) - 1);
		*d = (struct ldir){
			.fd = up ? reach_open(io_store_root(f->fs->store), up, O_DIRECTORY)
				 : -ENOMEM};
		err = d->fd < 0 ? d->fd : ldir_add(d, name, false);
		if (err && d->fd >= 0)
			ldir_close(d);
		free(up);
	}
	if (err)
		return err;
	err = stat_all(f, d, alone, out);
	if (err)
		ldir_close(d);
	return err;
}

static bool has_nested(const struct fmt_set *s)
{
	for (size_t i = 0; s && i < s->n_files; i++)
		if (strchr(s->file[i].name, '/'))
			return true;
	return false;
}

static bool is_foreign(const struct lfound *f, int dirfd, const char *name, size_t len)
{
	char *part = strndup(name, len);
	int fd = part ? reach_open(dirfd, part, O_PATH) : -1;
	struct stat st;
	bool ours = fd >= 0 && !fstat(fd, &st) && lfound_trusts(f, &st);
	if (fd >= 0)
		close(fd);
	free(part);
	return !ours;
}

/* For files in subdirectories, which are not among the names: checks each directory on the way, and
 * the file. */
static bool has_foreign_nested(const struct lfound *f, int dirfd, const struct fmt_set *s)
{
	for (size_t i = 0; s && i < s->n_files; i++) {
		const char *name = s->file[i].name;
		size_t len = strcspn(name, "/");
		for (bool more = name[len]; more;
		     len += more ? 1 + strcspn(name + len + 1, "/") : 0) {
			if (is_foreign(f, dirfd, name, len))
				return true;
			more = name[len];
		}
	}
	return false;
}

static double quiet_s(const struct look *l)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return difftime(now.tv_sec, l->newest_m.tv_sec);
}

static int judge(const struct lfound *f, const char *path, const struct ckpt_kind *kind,
		 struct ckpt_verdict *out, struct look *l)
{
	bool alone = kind->format == CKPT_LIGHTNING;
	struct lknown *k = lknown_find(path);
	struct ldir d;
	int err = names_of(f, path, alone, &d, l);

	if (err)
		return err;
	if (k && k->fingerprint == l->fingerprint) {
		*out = k->verdict;
		ldir_close(&d);
		return 0;
	}
	bool old = latest_settled(l->newest_c) && latest_settled(d.st.st_ctim);
	struct ckpt_content c = {.kind = *kind, .v = d.v, .n = d.n};
	struct ckpt_io io = {
		.ctx = &d, .open = source_open, .close = fmt_file_close, .max_bytes = METADATA_MAX};
	d.v = NULL;
	d.n = 0;
	err = parser_content(f->fs, path, &c, &io, CKPT_SOUND);
	double quiet = quiet_s(l);
	if (!err) {
		l->foreign |= has_foreign_nested(f, d.fd, c.set);
		ckpt_judge(&c.kind, c.v, c.n, c.set, c.index.v ? &c.index : NULL, quiet, out);
		/* an incomplete one may become complete without a change seen here, and files in
		 * subdirectories are not in the fingerprint */
		bool lasts = out->state == CKPT_COMPLETE || quiet >= CKPT_QUIET_S;
		if (old && lasts && !has_nested(c.set) && (k = lknown_set(path))) {
			k->kind = *kind;
			k->dir = d.st;
			k->verdict = *out;
			k->fingerprint = l->fingerprint;
		}
	}
	ckpt_content_free(&c);
	ldir_close(&d);
	return err;
}

/* ---- durability ---- */

/* Names and directories that the live tree does not know have no pending changes. */
static bool is_clean(struct fs *fs, const char *path)
{
	bool clean = true;
	if (!fs->s)
		return true;
	TREE_SCOPE(fs);
	struct node *n = fs->tree.root;
	for (const char *p = path; clean && *p;) {
		char name[MAX_NAME + 1];
		size_t len = strcspn(p, "/");
		if (len > MAX_NAME)
			return false;
		memcpy(name, p, len);
		name[len] = '\0';
		p += len + (p[len] == '/');
		struct dentry *d = dentry_find(fs, n, name);
		if (!d)
			return true;
		n = d->node;
		clean = n && staging_is_durable(fs->s, d->seq);
	}
	return clean && node_all_durable(fs, n);
}

/* What had been applied when the store was examined may not be synced yet. */
static bool wait_synced(struct fs *fs)
{
	uint64_t seq = fs->s ? staging_applied(fs->s) : 0;
	for (unsigned ms = 0; fs->s && staging_durable(fs->s) < seq; ms++) {
		int err = 0;
		if (staging_halted_at(fs->s, &err) || ms >= SYNC_WAIT_MS ||
		    atomic_load(&fs->stopping))
			return false;
		sleep_ms(1);
	}
	return true;
}

/* ---- both ---- */

/* It has a manifest; what a fetch found damaged does not count. */
static bool is_whole_remote(struct lfound *f, const char *path)
{
	const struct remote_node *n = remote_find(f->tier, path);
	bool damaged = n && atomic_load(&n->damaged);

	f->damaged |= damaged;
	return n && !damaged;
}

/* Files of tensors do not tell whether the checkpoints below them are complete. */
static int is_safe_inside(const struct lfound *f, const char *path, const struct ckpt_kind *kind)
{
	struct lfound in = {.fs = f->fs, .who = f->who, .top = path, .owner = f->owner};
	int safe = 1;

	if (!ckpt_is_plain(kind->format) || ckpt_is_loose(kind))
		return 1;
	int err = lfound_all(&in);
	if (in.unread)
		safe = 0;
	for (size_t i = 0; !err && safe > 0 && i < in.n; i++)
		if (!ckpt_is_source_of(&in.v[i].kind, kind))
			safe = lfound_is_safe(&in, i);
	lfound_free(&in);
	return err ? err : safe;
}

int lfound_is_safe(void *ctx, size_t i)
{
	struct lfound *f = ctx;
	struct ckpt_verdict v, w;
	struct look l, m;
	struct ldir d;
	struct stat st;
	ssize_t before = ckpt_found_before(f->v, f->n, i);
	char *path = path_join(f->top, f->v[i].path);
	char *old = before >= 0 ? path_join(f->top, f->v[before].path) : NULL;
	const struct ckpt_kind *kind = &f->v[i].kind;
	bool remote = f->v[i].remote;
	int safe = !path ? -ENOMEM : remote ? is_whole_remote(f, path) : 0;

	for (unsigned t = 0; !safe && !remote && t < TRIES; t++) {
		/* the live tree has the newer mode of a directory that was just closed to others */
		if (reach_stat(f->fs, f->who, path, 0, &st))
			break;
		int failed = judge(f, path, kind, &v, &l);
		/* the parser cannot run, which says nothing about this checkpoint */
		if (failed == -ECHILD)
			safe = -EIO;
		if (failed || l.foreign)
			break;
		if (v.state == CKPT_COMPLETE && old && ckpt_has_rank_set(kind->format) &&
		    !judge(f, old, &f->v[before].kind, &w, &m))
			ckpt_expect_ranks(kind, w.ranks, quiet_s(&l), &v);
		int inside = v.state == CKPT_COMPLETE ? is_safe_inside(f, path, kind) : 0;
		if (inside < 0)
			safe = inside;
		if (inside <= 0 || !wait_synced(f->fs) || !is_clean(f->fs, path))
			break;
		/* nothing was pending just now: the store has all of it if it has not changed
		 * since */
		if (names_of(f, path, kind->format == CKPT_LIGHTNING, &d, &m))
			break;
		ldir_close(&d);
		safe = m.fingerprint == l.fingerprint;
	}
	free(path);
	free(old);
	return safe;
}

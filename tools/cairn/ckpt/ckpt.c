/* SPDX-License-Identifier: MIT
 *
 * Checkpoints: see ckpt.h.
 */
#include "ckpt.h"
#include "io/number.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#define OPEN_FILE (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

/* ---- open ------------------------------------------------------------------------- */

static int look_at(struct ckpt *c, size_t i, struct timespec *newest)
{
	struct ckpt_name *n = &c->name[i];
	char state[16] = "", over[CKPT_OVER_BYTES], sum[CKPT_OVER_BYTES], buf[256];
	struct stat st;

	n->name = c->names.v[i];
	if (fstatat(c->dir, n->name, &st, 0))
		return errno == ENOENT ? 0 : -errno; /* gone, or a dangling link */
	n->size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
	n->dir = S_ISDIR(st.st_mode);
	n->mtime = st.st_mtim;
	if (ckpt_commits_shards(n->name) && c->on_mount)
		n->ino = st.st_ino;
	else if (ckpt_commits_shards(n->name) &&
		 !xattr_at(c->dir, n->name, KEY_INO, buf, sizeof(buf)))
		n->ino = number_first(buf); /* a mark may follow */
	if (ckpt_commit_of(n->name, 0, buf) &&
	    !xattr_at(c->dir, n->name, CKPT_OVER_KEY, over, sizeof(over))) {
		xattr_at(c->dir, n->name, KEY_CHECKSUM, sum, sizeof(sum));
		ckpt_over_parse(over, sum, &n->over);
	}
	if (c->on_mount && S_ISREG(st.st_mode)) {
		xattr_at(c->dir, n->name, KEY_STATE, state, sizeof(state));
		n->open = !strcmp(state, "open");
	}
	if (st.st_mtim.tv_sec > newest->tv_sec)
		*newest = st.st_mtim;
	return 0;
}

static int look_at_all(struct ckpt *c)
{
	struct timespec newest = {0}, now;
	struct stat st;
	int err = 0;

	c->name = calloc(c->names.n ? c->names.n : 1, sizeof(*c->name));
	if (!c->name)
		return -ENOMEM;
	if (!c->alone && !fstat(c->dir, &st))
		newest = st.st_mtim; /* a rename or an unlink counts, too */
	for (size_t i = 0; !err && i < c->names.n; i++)
		err = look_at(c, i, &newest);
	clock_gettime(CLOCK_REALTIME, &now);
	c->quiet_s = difftime(now.tv_sec, newest.tv_sec);
	return err;
}

static int one_name(struct ckpt *c, const char *name)
{
	c->names.v = calloc(1, sizeof(*c->names.v));
	if (!c->names.v)
		return -ENOMEM;
	c->names.v[0] = strdup(path_base(name));
	c->names.n = 1;
	return c->names.v[0] ? 0 : -ENOMEM;
}

/* The directory of a file: from the path, or dirfd itself. */
static int parent_of(int dirfd, const char *name)
{
	CLEANUP_FREE char *dir = strdup(name);
	char *slash = dir ? strrchr(dir, '/') : NULL;
	int fd;

	if (!dir)
		return -ENOMEM;
	if (slash)
		slash[slash == dir] = '\0';
	fd = openat(dirfd, slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* The last component of the directory's real path: "." and links have no step. */
static void real_name(int fd, const char *path, char *buf, size_t cap)
{
	char link[64], real[4096];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, real, sizeof(real) - 1);
	real[n < 0 ? 0 : n] = '\0';
	snprintf(buf, cap, "%.255s", path_base(n > 0 ? real : path));
}

int ckpt_open(int dirfd, const char *name, const char *path, bool on_mount, struct ckpt *out)
{
	char real[256];
	int err = 0;

	*out = CKPT_EMPTY;
	out->on_mount = on_mount;
	out->path = strdup(path);
	out->dir = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (out->dir < 0 && errno == ENOTDIR) {
		out->alone = true;
		out->dir = parent_of(dirfd, name);
		err = out->dir < 0 ? out->dir : one_name(out, name);
	} else {
		err = out->dir < 0 ? -errno : names_read(out->dir, &out->names);
	}
	if (!err && !out->path)
		err = -ENOMEM;
	if (!err)
		err = look_at_all(out);
	if (err) {
		ckpt_close(out);
		return err;
	}
	real_name(out->dir, path, real, sizeof(real));
	if (out->alone)
		ckpt_recognize_file(out->names.v[0], &out->kind);
	else
		ckpt_recognize(real, out->name, out->names.n, &out->kind);
	return 0;
}

void ckpt_close(struct ckpt *c)
{
	for (size_t i = 0; c->name && i < c->names.n; i++)
		free((char *)c->name[i].fault);
	free(c->name);
	names_free(&c->names);
	if (c->dir >= 0)
		close(c->dir);
	fmt_set_free(c->set);
	free(c->index.v);
	free((char *)c->path);
	*c = CKPT_EMPTY;
}

int ckpt_need(const char *path, struct ckpt *out)
{
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	int err = location_find(path, &p);

	*out = CKPT_EMPTY;
	if (!err || err == -ENODEV || err == -EXDEV) /* plain files suffice */
		err = ckpt_open(AT_FDCWD, path, path, p.on_mount, out);
	if (err) {
		complain_location(path, err);
		return location_code(err);
	}
	if (out->kind.format == CKPT_NONE) {
		struct stat st;

		complain("%s: not a known checkpoint%s", path,
			 stat(path, &st) || !S_ISREG(st.st_mode)
				 ? ""
				 : ": name its directory, or a .safetensors, .pt, .pth or .ckpt "
				   "file");
		ckpt_close(out);
		return CAIRN_USAGE;
	}
	return CAIRN_OK;
}

/* ---- files ------------------------------------------------------------------------ */

/* The target of the symlink `name`, outside the directory. The directory's owner must not make
 * others (above all root) read files that only they may read: the link must be the caller's own, or
 * lead to a file of the link's owner. Only then is the file opened; opening a device may have side
 * effects. */
static int open_outside(const struct ckpt *c, const char *name)
{
	CLEANUP_CLOSE int link = openat(c->dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	CLEANUP_CLOSE int at = -1;
	char target[4096], path[64];
	struct stat ls, st;
	ssize_t n = link < 0 ? -1 : readlinkat(link, "", target, sizeof(target) - 1);

	if (n < 0 || fstat(link, &ls))
		return -errno;
	target[n] = '\0'; /* the link may have changed */
	at = openat(c->dir, target, O_PATH | O_CLOEXEC);
	if (at < 0 || fstat(at, &st))
		return -errno;
	if (ls.st_uid != geteuid() && ls.st_uid != st.st_uid) {
		complain("%s/%s: a symlink to a file outside, of different owners: not followed",
			 c->path, name);
		return -EPERM;
	}
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", at);
	n = open(path, OPEN_FILE);
	return n < 0 ? -errno : (int)n;
}

/* Symlinks are followed as long as they stay below (Hugging Face's cache consists of ones
 * that lead out: those are followed if they are in the directory itself). */
int ckpt_open_file(const struct ckpt *c, const char *name)
{
	struct open_how how = {.flags = OPEN_FILE,
			       .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
	int fd = (int)syscall(SYS_openat2, c->dir, name, &how, sizeof(how));

	if (fd < 0 && errno == EXDEV && !strchr(name, '/'))
		return open_outside(c, name);
	return fd < 0 ? -errno : fd;
}

ssize_t ckpt_find(const struct ckpt *c, const char *name)
{
	size_t lo = 0, hi = c->names.n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		int d = strcmp(c->names.v[mid], name);

		if (!d)
			return (ssize_t)mid;
		if (d < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -1;
}

bool ckpt_commits(const char *name)
{
	static const char *const whole[] = {"metadata.json", "trainer_state.json",
					    "commit_success.txt", CKPT_SNAPSHOT_NAME,
					    "_CHECKPOINT_METADATA"};

	for (size_t i = 0; i < sizeof(whole) / sizeof(*whole); i++)
		if (!strcmp(name, whole[i]))
			return true;
	return ckpt_is_metadata(name, true) || ckpt_is_metadata(name, false) || ckpt_is_index(name);
}

bool ckpt_is_own(const struct ckpt *c, size_t i)
{
	const char *name = c->names.v[i];

	if (c->name[i].dir || (ckpt_is_plain(c->kind.format) && !ckpt_is_loose_file(name)))
		return false;
	return c->alone || !ckpt_is_loose(&c->kind) || !ckpt_is_one_file(name);
}

/* As programs name a file that is renamed when it is whole. */
static bool is_unfinished(const char *name)
{
	static const char *const end[] = {".tmp", ".part", ".partial", ".incomplete", ".swp", "~"};
	size_t n = strlen(name);

	for (size_t i = 0; i < sizeof(end) / sizeof(*end); i++)
		if (n >= strlen(end[i]) && !strcmp(name + n - strlen(end[i]), end[i]))
			return true;
	return !strncmp(name, "tmp", 3) || !strncmp(name, ".tmp", 4) || strstr(name, ".tmp.");
}

/* A link that leads nowhere, or must not be followed, is none. */
static bool is_file(const struct ckpt *c, const char *name)
{
	struct stat st;
	int fd;

	if (fstatat(c->dir, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISLNK(st.st_mode))
		return S_ISREG(st.st_mode);
	fd = fstatat(c->dir, name, &st, 0) || !S_ISREG(st.st_mode) ? -1 : ckpt_open_file(c, name);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static bool is_shard(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot && !strcmp(dot, ".distcp");
}

bool ckpt_may_have_beside(enum ckpt_format format)
{
	return ckpt_is_plain(format) || ckpt_is_dcp(format) || format == CKPT_TRAINER;
}

bool ckpt_is_beside(enum ckpt_format format, const struct names *inside, const char *path)
{
	const char *name = path_base(path);
	/* in a subdirectory it may be of a checkpoint that is no longer inside */
	bool beside = ckpt_may_have_beside(format) && !ckpt_is_loose_file(name) &&
		      !is_shard(name) &&
		      ((ckpt_is_plain(format) && name == path) || !ckpt_commits(name));

	for (size_t i = 0; beside && i < inside->n; i++)
		beside = !path_is_at(path, inside->v[i]);
	return beside;
}

/* What names the newest of a run must not be in a tier before that. */
static bool is_tracker(const char *name)
{
	return !strncmp(name, "latest", 6);
}

/* Of a plain one: is what has no file of tensors' name a part of it? */
static bool is_beside(const struct ckpt *c, const char *path)
{
	const char *name = path_base(path);

	return strncmp(name, ".cairn", 6) && !is_unfinished(name) &&
	       !(ckpt_is_loose(&c->kind) && is_tracker(name)) && is_file(c, path);
}

static int take(const struct ckpt *c, const char *path, ckpt_file_fn fn, void *ctx)
{
	struct stat st;

	if (fstatat(c->dir, path, &st, 0) && fstatat(c->dir, path, &st, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? 0 : -errno;
	return fn(ctx, path, &st);
}

static int each_in_dir(const struct ckpt *c, ckpt_file_fn fn, void *ctx)
{
	int err = 0;

	for (size_t i = 0; !err && i < c->names.n; i++)
		if (ckpt_is_own(c, i) || (!c->name[i].dir && !ckpt_is_loose_file(c->names.v[i]) &&
					  is_beside(c, c->names.v[i])))
			err = take(c, c->names.v[i], fn, ctx);
	return err;
}

int ckpt_each_file(const struct ckpt *c, ckpt_file_fn fn, void *ctx, bool *others)
{
	CLEANUP_WALK struct walk *w = NULL;
	bool plain = ckpt_is_plain(c->kind.format);
	struct walk_item it;
	int err = 0;

	*others = false;
	if (c->alone || ckpt_is_loose(&c->kind))
		return each_in_dir(c, fn, ctx);
	err = walk_open(c->dir, -1, NULL, &w);
	while (!err && walk_next(w, &it) != WALK_END) {
		if (it.what == WALK_ERROR)
			err = it.err;
		if (it.what != WALK_ENTRY || S_ISDIR(it.st.st_mode))
			continue;
		if (!plain)
			err = fn(ctx, it.path, &it.st);
		else if (ckpt_is_loose_file(it.name) || is_beside(c, it.path))
			err = take(c, it.path, fn, ctx);
		else
			*others = true;
	}
	return err;
}

/* ---- read ------------------------------------------------------------------------- */

struct reading {
	const struct ckpt *c;
	ckpt_bad_fn bad;
	void *ctx;
};

static int open_source(void *ctx, const char *name, struct fmt_source *out)
{
	const struct reading *r = ctx;

	return fmt_file_own(ckpt_open_file(r->c, name), out);
}

static int tell_bad(void *ctx, const char *file, const struct fmt_error *e, int err)
{
	const struct reading *r = ctx;

	if (r->bad)
		r->bad(r->ctx, file, e, err);
	return 0;
}

int ckpt_read(struct ckpt *c, bool deep, ckpt_bad_fn bad, void *ctx)
{
	struct reading r = {.c = c, .bad = bad, .ctx = ctx};
	const struct ckpt_io io = {.ctx = &r,
				   .open = open_source,
				   .close = fmt_file_close,
				   .bad = tell_bad,
				   .max_bytes = PICKLE_MAX_BYTES};
	struct ckpt_content in = {.kind = c->kind, .v = c->name, .n = c->names.n};
	int err = ckpt_content_read(&in, &io, deep ? CKPT_ALL : CKPT_SOUND);
	char **v = reallocarray(c->names.v, in.n ? in.n : 1, sizeof(*v));

	c->kind = in.kind;
	c->name = in.v;
	c->set = in.set;
	c->index = in.index;
	if (!v)
		/* the command ends: names added by the reading are freed with it */
		return -ENOMEM;
	c->names.v = v;
	c->names.n = in.n; /* files in subdirectories may have been added */
	for (size_t i = 0; i < in.n; i++)
		v[i] = (char *)in.v[i].name;
	return err;
}

/* ---- judge ------------------------------------------------------------------------ */

void ckpt_verdict(const struct ckpt *c, struct ckpt_verdict *out)
{
	ckpt_judge(&c->kind, c->name, c->names.n, c->set, c->index.v ? &c->index : NULL, c->quiet_s,
		   out);
	if (!c->alone && ckpt_is_plain(c->kind.format) && !ckpt_is_loose(&c->kind))
		ckpt_judge_inside(c, out);
}

/* The least advanced state of its contents, "" if that is unknown (it is in
 * the store then, or outside of any). */
static void durability(const struct ckpt *c, char *buf, size_t cap)
{
	*buf = '\0';
	if (!c->on_mount)
		return;
	if (c->alone)
		xattr_at(c->dir, c->names.v[0], KEY_STATE, buf, cap);
	else
		xattr_of_fd(c->dir, KEY_STATE, buf, cap);
}

bool ckpt_is_safe(const struct ckpt *c, const struct ckpt_verdict *v)
{
	char state[16];

	durability(c, state, sizeof(state));
	return v->state == CKPT_COMPLETE && (!c->on_mount || !strcmp(state, "durable"));
}

/* ---- text ------------------------------------------------------------------------- */

void ckpt_say_unsafe(const struct ckpt_verdict *v, char out[CKPT_UNSAFE_TEXT])
{
	snprintf(out, CKPT_UNSAFE_TEXT, "%s%s%s", ckpt_state_name(v->state), *v->why ? ": " : "",
		 v->state == CKPT_COMPLETE ? ", not durable" : v->why);
}

const char *shape_text(const uint64_t *v, unsigned n, const char *between, char *buf, size_t cap)
{
	const size_t gap = strlen(between);
	char *p = buf, number[NUMBER_CAP];

	*p = '\0';
	for (unsigned i = 0; i < n; i++) {
		size_t len = (size_t)(put_number(number, v[i]) - number);

		if ((size_t)(buf + cap - p) <= gap + len) {
			snprintf(buf, cap, "?");
			break;
		}
		if (i)
			p = mempcpy(p, between, gap);
		p = mempcpy(p, number, len + 1) - 1;
	}
	return buf;
}

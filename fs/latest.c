/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn/latest/DIR: a symlink to the newest checkpoint below DIR that is safe, that is
 * complete and durable. What is durable is in the store: so the store is looked at, with plain
 * file calls and no lock, and the live tree is only asked whether there is anything at or below a
 * checkpoint that the store has not got yet. A file that is being overwritten is such a thing.
 *
 * It takes as long as the store takes to list; so a thread of its own answers, made at the first
 * question. It keeps what it found, by the stamps of what it found it in.
 *
 * A name cannot be a symlink and have names below it. DIR is a symlink when checkpoints stand in
 * it, and a directory to go on in when they stand only further down. The same holds of latest
 * itself, which stands for the mount's root. */
#include "fs/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/formats/formats.h"

#define MAX_DIRS 100000u	/* looked into for one answer */
#define MAX_METADATA (64u << 20)	/* a hostile pickle takes a hundred times its size */
#define KNOWN_MAX 4096u		/* checkpoints kept */
#define SETTLED_NS 1000000000ll	/* stamps this old tell every change that follows */
#define TRIES 3u
#define SYNC_WAIT_MS 2000u

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

/* What the kernel was told of. Its id is made of the path: another worker finds the same. */
struct entry {
	struct entry *next;
	uint64_t id, nlookup;
	bool link;
	size_t len;		/* of the symlink's target */
	char path[];
};

struct known {			/* a checkpoint that was looked at; this thread's own */
	char *path;
	struct stat dir;
	struct ckpt_kind kind;
	uint64_t print;		/* of all its names, sizes and stamps; 0: not judged */
	struct ckpt_verdict verdict;
};

static struct {
	pthread_mutex_t lock;	/* over all but known */
	pthread_cond_t cond;
	struct job *jobs;
	bool started, stop;
	pthread_t thread;
	struct entry *entries;
	struct known known[KNOWN_MAX];
} latest = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

/* ---- names in the store ---- */

struct dir {			/* a directory as it was read */
	int fd;
	struct stat st;
	struct ckpt_name *v;
	unsigned char *type;	/* of v[i], before it is sorted */
	size_t n, cap;
};

static uint64_t hash_add(uint64_t h, const void *p, size_t n)
{
	for (const unsigned char *c = p; n; n--)
		h = (h ^ *c++) * 0x100000001b3ull;
	return h;
}

static int open_below(int fd, const char *path, int flags)
{
	if (!(flags & O_PATH))
		flags |= O_RDONLY | O_NONBLOCK | O_NOCTTY;
	struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC),
			       .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
	int r = (int)syscall(SYS_openat2, fd, *path ? path : ".", &how, sizeof(how));
	return r < 0 ? -errno : r;
}

static void names_free(struct ckpt_name *v, size_t n)
{
	for (size_t i = 0; v && i < n; i++) {
		free((char *)v[i].name);
		free((char *)v[i].fault);
	}
	free(v);
}

static void dir_close(struct dir *d)
{
	names_free(d->v, d->n);
	if (d->fd >= 0)
		close(d->fd);
	*d = (struct dir){.fd = -1};
}

static int dir_add(struct dir *d, const char *name, bool is_dir)
{
	if (d->n == d->cap) {
		size_t cap = d->cap ? d->cap * 2 : 64;
		struct ckpt_name *v = reallocarray(d->v, cap, sizeof(*v));
		if (!v)
			return -ENOMEM;
		d->v = v;
		d->cap = cap;
	}
	d->v[d->n] = (struct ckpt_name){.name = strdup(name), .dir = is_dir};
	return d->v[d->n].name ? (d->n++, 0) : -ENOMEM;
}

static bool is_dir_at(int fd, const struct dirent *e)
{
	struct stat st;
	if (e->d_type != DT_UNKNOWN)
		return e->d_type == DT_DIR;
	return !fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISDIR(st.st_mode);
}

/* The names in STORE/path, sorted. d->fd stays open. */
static int dir_read(struct fs *fs, const char *path, struct dir *d)
{
	int rc = 0, fd;

	*d = (struct dir){.fd = open_below(io_store_root(fs->store), path, O_DIRECTORY)};
	if (d->fd < 0)
		return d->fd;
	fd = fcntl(d->fd, F_DUPFD_CLOEXEC, 0);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	if (!list || fstat(d->fd, &d->st)) {
		rc = -errno;
		if (!list && fd >= 0)
			close(fd);
	}
	for (struct dirent *e; !rc && (e = readdir(list));) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || (!*path && !strcmp(e->d_name, CONTROL_DIR_NAME)))
			continue;
		rc = dir_add(d, e->d_name, is_dir_at(d->fd, e));
	}
	if (list)
		closedir(list);
	if (rc)
		dir_close(d);
	else
		ckpt_names_sort(d->v, d->n);
	return rc;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* ---- what is known of a checkpoint ---- */

static struct known *known_at(const char *path)
{
	return &latest.known[hash_add(0xcbf29ce484222325ull, path, strlen(path)) % KNOWN_MAX];
}

static struct known *known_find(const char *path)
{
	struct known *k = known_at(path);
	return k->path && !strcmp(k->path, path) ? k : NULL;
}

static struct known *known_set(const char *path)
{
	struct known *k = known_at(path);
	if (!k->path || strcmp(k->path, path)) {
		free(k->path);
		*k = (struct known){.path = strdup(path)};
	}
	return k->path ? k : NULL;
}

static bool same_dir(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
	       a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* A change in the same tick as the last one leaves the same stamp. */
static bool is_settled(struct timespec t)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return ((long long)now.tv_sec - t.tv_sec) * 1000000000ll + now.tv_nsec - t.tv_nsec > SETTLED_NS;
}

/* ---- looking for checkpoints ---- */

struct found {
	struct fs *fs;
	const char *top;	/* from the store's root */
	struct ckpt_found *v;
	size_t n, cap;
	char **todo;		/* directories, below top */
	size_t n_todo, cap_todo, n_dirs;
};

static char *join(const char *a, const char *b)
{
	char *p;
	return asprintf(&p, "%s%s%s", a, *a && *b ? "/" : "", b) < 0 ? NULL : p;
}

static int found_add(struct found *f, char *path, const struct ckpt_kind *kind, struct timespec time)
{
	if (path && f->n == f->cap) {
		size_t cap = f->cap ? f->cap * 2 : 64;
		struct ckpt_found *v = reallocarray(f->v, cap, sizeof(*v));
		if (v) {
			f->v = v;
			f->cap = cap;
		}
	}
	if (!path || f->n == f->cap) {
		free(path);
		return -ENOMEM;
	}
	f->v[f->n++] = (struct ckpt_found){.path = path, .kind = *kind, .time = time};
	return 0;
}

static int todo_add(struct found *f, char *path)
{
	if (path && f->n_todo == f->cap_todo) {
		size_t cap = f->cap_todo ? f->cap_todo * 2 : 64;
		char **v = reallocarray(f->todo, cap, sizeof(*v));
		if (v) {
			f->todo = v;
			f->cap_todo = cap;
		}
	}
	if (!path || f->n_todo == f->cap_todo) {
		free(path);
		return -ENOMEM;
	}
	f->todo[f->n_todo++] = path;
	return ++f->n_dirs > MAX_DIRS ? -E2BIG : 0;
}

static void found_free(struct found *f)
{
	for (size_t i = 0; i < f->n; i++)
		free(f->v[i].path);
	while (f->n_todo)
		free(f->todo[--f->n_todo]);
	free(f->v);
	free(f->todo);
}

static bool is_loose(enum ckpt_format k)
{
	return k == CKPT_NONE || k == CKPT_TORCH || k == CKPT_SAFETENSORS;
}

/* Directories to look into, and files that are checkpoints by themselves. */
static int look_inside(struct found *f, const char *below, const struct dir *d)
{
	int rc = 0;
	for (size_t i = 0; !rc && i < d->n; i++) {
		struct ckpt_kind kind;
		struct stat st;
		if (d->v[i].dir) {
			rc = todo_add(f, join(below, d->v[i].name));
			continue;
		}
		ckpt_recognize_file(d->v[i].name, &kind);
		if (kind.format == CKPT_LIGHTNING && !fstatat(d->fd, d->v[i].name, &st, AT_SYMLINK_NOFOLLOW) &&
		    S_ISREG(st.st_mode))
			rc = found_add(f, join(below, d->v[i].name), &kind, st.st_mtim);
	}
	return rc;
}

static int look_at(struct found *f, const char *below)
{
	char *path = join(f->top, below);
	struct known *k = path ? known_find(path) : NULL;
	struct ckpt_kind kind;
	struct stat st;
	struct dir d;
	int rc;

	if (k && *below && !is_loose(k->kind.format) && S_ISDIR(k->dir.st_mode)) {
		int fd = open_below(io_store_root(f->fs->store), path, O_DIRECTORY | O_PATH);
		bool same = fd >= 0 && !fstat(fd, &st) && same_dir(&st, &k->dir);
		if (fd >= 0)
			close(fd);
		if (same) {
			free(path);
			return found_add(f, strdup(below), &k->kind, st.st_mtim);
		}
	}
	rc = path ? dir_read(f->fs, path, &d) : -ENOMEM;
	if (rc) {
		free(path);
		return rc == -ENOMEM ? rc : 0;	/* gone, or not to be read: others may be there */
	}
	ckpt_recognize(base_name(path), d.v, d.n, &kind);
	if (!*below)
		kind.format = CKPT_NONE;	/* what is below is asked for */
	if (kind.format != CKPT_NONE)
		rc = found_add(f, strdup(below), &kind, d.st.st_mtim);
	if (!rc && is_loose(kind.format))
		rc = look_inside(f, below, &d);
	else if (!rc && is_settled(d.st.st_ctim) && (k = known_set(path))) {
		k->dir = d.st;
		k->kind = kind;
	}
	dir_close(&d);
	free(path);
	return rc;
}

static int look_for_all(struct found *f)
{
	int rc = todo_add(f, strdup(""));
	while (!rc && f->n_todo) {
		char *below = f->todo[--f->n_todo];
		rc = look_at(f, below);
		free(below);
	}
	if (!rc)
		f->n = ckpt_found_sort(f->v, f->n);
	return rc;
}

/* ---- is it complete ---- */

static int source_read(void *ctx, uint64_t off, void *buf, size_t len)
{
	int fd = *(int *)ctx;
	for (size_t got = 0; got < len;) {
		ssize_t n = pread(fd, (char *)buf + got, len - got, (off_t)(off + got));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		got += (size_t)n;
	}
	return 0;
}

static int source_open(void *ctx, const char *name, struct fmt_source *out)
{
	const struct dir *d = ctx;
	int *fd = malloc(sizeof(*fd));
	struct stat st;

	if (!fd)
		return -ENOMEM;
	*fd = open_below(d->fd, name, 0);
	int rc = *fd < 0 ? *fd : fstat(*fd, &st) ? -errno : S_ISREG(st.st_mode) ? 0 : -EINVAL;
	if (!rc) {
		*out = (struct fmt_source){.size = (uint64_t)st.st_size, .read = source_read, .ctx = fd};
		return 0;
	}
	if (*fd >= 0)
		close(*fd);
	free(fd);
	return rc;
}

static void source_close(void *ctx, struct fmt_source *s)
{
	(void)ctx;
	close(*(int *)s->ctx);
	free(s->ctx);
}

struct look {
	uint64_t print;
	struct timespec newest_m, newest_c;
};

static void later(struct timespec *t, struct timespec than)
{
	if (than.tv_sec > t->tv_sec || (than.tv_sec == t->tv_sec && than.tv_nsec > t->tv_nsec))
		*t = than;
}

static void read_mark(struct fs *fs, int fd, struct ckpt_name *n)
{
	char buf[64], text[CKPT_OVER_ROOM], sum[CKPT_OVER_ROOM];
	if (!ckpt_commit_of(n->name, 0, buf))
		return;
	ssize_t len = io_get_xattr(fs->store, fd, n->name, CKPT_OVER_KEY, text, sizeof(text) - 1);
	if (len <= 0)
		return;
	text[len] = '\0';
	len = io_get_xattr(fs->store, fd, n->name, "user.cairn.checksum", sum, sizeof(sum) - 1);
	sum[len < 0 ? 0 : len] = '\0';
	ckpt_over_parse(text, sum, &n->over);
}

/* Sizes and stamps of all names. Each version of a file is an inode of its own in the store, so
 * whatever changes here is seen in them. */
static void stat_all(struct fs *fs, struct dir *d, bool alone, struct look *out)
{
	*out = (struct look){.print = 0xcbf29ce484222325ull};
	if (!alone)
		out->newest_m = d->st.st_mtim;
	for (size_t i = 0; i < d->n; i++) {
		struct ckpt_name *n = &d->v[i];
		struct stat st = {0};
		if (fstatat(d->fd, n->name, &st, AT_SYMLINK_NOFOLLOW))
			st.st_ino = 0;
		n->size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
		n->dir = S_ISDIR(st.st_mode);
		n->mtime = st.st_mtim;
		if (S_ISREG(st.st_mode))
			read_mark(fs, d->fd, n);
		later(&out->newest_m, st.st_mtim);
		later(&out->newest_c, st.st_ctim);
		out->print = hash_add(out->print, n->name, strlen(n->name) + 1);
		uint64_t x[] = {st.st_ino, n->size, (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec,
				(uint64_t)st.st_ctim.tv_sec, (uint64_t)st.st_ctim.tv_nsec};
		out->print = hash_add(out->print, x, sizeof(x));
	}
	out->print |= 1;	/* 0: none */
}

/* The names of the checkpoint at path: those in the directory, or the file alone. */
static int names_of(struct fs *fs, const char *path, bool alone, struct dir *d, struct look *out)
{
	int rc = 0;
	if (!alone) {
		rc = dir_read(fs, path, d);
	} else {
		const char *name = base_name(path);
		char *up = strndup(path, name == path ? 0 : (size_t)(name - path) - 1);
		*d = (struct dir){.fd = up ? open_below(io_store_root(fs->store), up, O_DIRECTORY) : -ENOMEM};
		rc = d->fd < 0 ? d->fd : dir_add(d, name, false);
		if (rc && d->fd >= 0)
			dir_close(d);
		free(up);
	}
	if (!rc)
		stat_all(fs, d, alone, out);
	return rc;
}

static bool has_nested(const struct fmt_set *s)
{
	for (size_t i = 0; s && i < s->n_files; i++)
		if (strchr(s->file[i].name, '/'))
			return true;
	return false;
}

static double quiet_s(const struct look *l)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return difftime(now.tv_sec, l->newest_m.tv_sec);
}

static int judge(struct fs *fs, const char *path, const struct ckpt_kind *kind, struct ckpt_verdict *out,
		 struct look *l)
{
	bool alone = kind->format == CKPT_LIGHTNING;
	struct known *k = known_find(path);
	struct dir d;
	int rc = names_of(fs, path, alone, &d, l);

	if (rc)
		return rc;
	if (k && k->print == l->print) {
		*out = k->verdict;
		dir_close(&d);
		return 0;
	}
	bool old = is_settled(l->newest_c) && is_settled(d.st.st_ctim);
	struct ckpt_content c = {.kind = *kind, .v = d.v, .n = d.n};
	struct ckpt_io io = {.ctx = &d, .open = source_open, .close = source_close, .max_bytes = MAX_METADATA};
	d.v = NULL;
	d.n = 0;
	rc = ckpt_content_read(&c, &io, CKPT_SOUND);
	double quiet = quiet_s(l);
	if (!rc) {
		ckpt_judge(kind, c.v, c.n, c.set, c.index.v ? &c.index : NULL, quiet, out);
		/* time may make more of an incomplete one, and files further down have no print */
		bool lasts = out->state == CKPT_COMPLETE || quiet >= CKPT_QUIET_S;
		if (old && lasts && !has_nested(c.set) && (k = known_set(path))) {
			k->kind = *kind;
			k->dir = d.st;
			k->verdict = *out;
			k->print = l->print;
		}
	}
	ckpt_content_free(&c);
	dir_close(&d);
	return rc;
}

/* ---- is it durable ---- */

/* Names and directories that the tree does not know have nothing on its way. */
static bool is_clean(struct fs *fs, const char *path)
{
	bool clean = true;
	if (!fs->s)
		return true;
	TREE_SCOPE(fs);
	struct node *n = fs->root;
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
		clean = n && d->seq <= staging_durable(fs->s);
	}
	return clean && node_all_durable(fs, n);
}

/* What was applied when the store was looked at may still be without its sync. */
static bool wait_synced(struct fs *fs)
{
	uint64_t seq = fs->s ? staging_applied(fs->s) : 0;
	for (unsigned ms = 0; fs->s && staging_durable(fs->s) < seq; ms++) {
		struct timespec t = {.tv_nsec = 1000000};
		int err = 0;
		if (staging_halted_at(fs->s, &err) || ms >= SYNC_WAIT_MS || atomic_load(&fs->stopping))
			return false;
		nanosleep(&t, NULL);
	}
	return true;
}

/* ---- the answer ---- */

static int is_safe(void *ctx, size_t i)
{
	struct found *f = ctx;
	struct ckpt_verdict v, w;
	struct look l, m;
	struct dir d;
	ssize_t before = ckpt_found_before(f->v, f->n, i);
	char *path = join(f->top, f->v[i].path);
	char *old = before >= 0 ? join(f->top, f->v[before].path) : NULL;
	const struct ckpt_kind *kind = &f->v[i].kind;
	int rc = path ? 0 : -ENOMEM;

	for (unsigned t = 0; !rc && t < TRIES; t++) {
		if (judge(f->fs, path, kind, &v, &l))
			break;
		if (v.state == CKPT_COMPLETE && old && ckpt_has_rank_set(kind->format) &&
		    !judge(f->fs, old, &f->v[before].kind, &w, &m))
			ckpt_expect_ranks(kind, w.ranks, quiet_s(&l), &v);
		if (v.state != CKPT_COMPLETE || !wait_synced(f->fs) || !is_clean(f->fs, path))
			break;
		/* it was clean just now: what the store has is all, if it is what was judged */
		if (names_of(f->fs, path, kind->format == CKPT_LIGHTNING, &d, &m))
			break;
		dir_close(&d);
		rc = m.print == l.print;
	}
	free(path);
	free(old);
	return rc;
}

/* Checkpoints stand in top itself; and if others do further down, not only files of tensors. */
static bool is_run(const struct found *f)
{
	bool direct = false, whole = false, deeper = false;
	for (size_t i = 0; i < f->n; i++) {
		bool here = !strchr(f->v[i].path, '/');
		direct |= here;
		whole |= here && (!is_loose(f->v[i].kind.format) || f->v[i].kind.has_step);
		deeper |= !here;
	}
	return whole || (direct && !deeper);
}

enum answer { NOTHING, LINK, DIRECTORY };

/* *out: the path below top; free it. */
static int find_latest(struct found *f, bool far, enum answer *a, char **out)
{
	int rc = look_for_all(f);

	*out = NULL;
	*a = NOTHING;
	if (rc)
		return rc;
	if (!far && !is_run(f)) {
		*a = f->n || !*f->top ? DIRECTORY : NOTHING;
		return 0;
	}
	ssize_t best = ckpt_newest_safe(f->v, f->n, is_safe, f);
	if (best < 0)
		return best == -ENOENT ? 0 : (int)best;
	*out = strdup(f->v[best].path);
	*a = LINK;
	return *out ? 0 : -ENOMEM;
}

/* From where the symlink stands: as many directories up as its path is long, and .cairn. */
static char *target_of(const char *top, const char *below)
{
	unsigned up = 1 + !!*top;
	char *buf = NULL;
	size_t len;
	FILE *o = open_memstream(&buf, &len);

	if (!o)
		return NULL;
	for (const char *p = top; *p; p++)
		up += *p == '/';
	while (up--)
		fputs("../", o);
	fprintf(o, "%s%s%s", top, *top ? "/" : "", below);
	if (fclose(o)) {
		free(buf);
		return NULL;
	}
	return buf;
}

/* Names in a directory are for who may list it. */
static bool may_list(fuse_req_t req, const struct stat *st)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);
	gid_t list[256];
	unsigned shift = 0;

	if (c->uid == 0)
		return true;
	if (c->uid == st->st_uid) {
		shift = 6;
	} else {
		int n = fuse_req_getgroups(req, 256, list);
		bool in = c->gid == st->st_gid;
		for (int i = 0; i < n && i < 256; i++)
			in |= list[i] == st->st_gid;
		shift = in ? 3 : 0;
	}
	return st->st_mode >> shift & 4;
}

static int check_top(struct fs *fs, const struct job *j)
{
	struct stat st;
	int fd = open_below(io_store_root(fs->store), j->path, O_DIRECTORY | O_PATH);
	if (fd < 0)
		return fd == -ENOTDIR || fd == -ELOOP ? -ENOENT : fd;
	int rc = fstat(fd, &st) ? -errno : may_list(j->req, &st) ? 0 : -EACCES;
	close(fd);
	return rc;
}

/* ---- what the kernel knows ---- */

static struct entry *entry_find(uint64_t id)
{
	struct entry *e = latest.entries;
	while (e && e->id != id)
		e = e->next;
	return e;
}

/* latest.lock held. A directory that becomes a symlink is another thing. */
static struct entry *entry_get(const char *path, bool link, size_t len)
{
	uint64_t h = hash_add(link ? 1 : 0xcbf29ce484222325ull, path, strlen(path));
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
	*st = (struct stat){.st_ino = e->id, .st_uid = fs->uid, .st_nlink = e->link ? 1 : 2, .st_blksize = 4096,
			    .st_mode = e->link ? S_IFLNK | 0777 : S_IFDIR | 0555, .st_size = (off_t)e->len};
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
		if (fuse_reply_entry(j->req, &p) == -ENOENT)	/* interrupted: it was not taken */
			e->nlookup--;
	} else {
		fuse_reply_err(j->req, ENOMEM);
	}
	pthread_mutex_unlock(&latest.lock);
}

/* The directories and runs there are below, each once. */
static void reply_names(const struct job *j, struct found *f)
{
	char *buf = malloc(j->size), *last = NULL;
	size_t used = 0, need = 0;
	off_t at = 0;

	for (size_t i = 0; buf && i < f->n && need <= j->size - used; i++) {
		char *name = strndup(f->v[i].path, strcspn(f->v[i].path, "/"));
		if (name && (!last || strcmp(name, last)) && ++at > j->off) {
			struct fuse_entry_param e = {.attr = {.st_ino = CONTROL_DIR, .st_mode = 0}};
			need = j->plus ? fuse_add_direntry_plus(j->req, buf + used, j->size - used, name, &e, at) :
					 fuse_add_direntry(j->req, buf + used, j->size - used, name, &e.attr, at);
			used += need <= j->size - used ? need : 0;
		}
		free(last);
		last = name;
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

static void answer(struct fs *fs, const struct job *j)
{
	struct found f = {.fs = fs, .top = j->path};
	char *below = NULL, *target = NULL;
	enum answer a = NOTHING;
	int rc = check_top(fs, j);

	if (!rc)
		rc = j->want == WANT_NAMES ? look_for_all(&f) : find_latest(&f, j->want == WANT_XATTR, &a, &below);
	if (!rc && below && !(target = target_of(j->path, below)))
		rc = -ENOMEM;
	if (!rc && target && strlen(target) >= PATH_MAX)
		rc = -ENAMETOOLONG;
	if (rc)
		fuse_reply_err(j->req, -rc);
	else if (j->want == WANT_NAMES)
		reply_names(j, &f);
	else if (j->want == WANT_XATTR)
		a == LINK ? reply_xattr(j, below) : (void)fuse_reply_err(j->req, ENODATA);
	else if (a == NOTHING || (j->want == WANT_LINK && a != LINK))
		fuse_reply_err(j->req, ENOENT);
	else if (j->want == WANT_LINK)
		fuse_reply_readlink(j->req, target);
	else
		reply_entry_of(fs, j, target);
	found_free(&f);
	free(below);
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

/* Answered later, by the thread: nobody who answers the kernel waits for the store. */
static void ask(fuse_req_t req, const struct job *what, const char *dir, const char *name)
{
	struct job *j = calloc(1, sizeof(*j) + strlen(dir) + strlen(name) + 2), **pp;
	int rc = j ? 0 : ENOMEM;

	if (j) {
		*j = *what;
		j->req = req;
		sprintf(j->path, "%s%s%s", dir, *dir && *name ? "/" : "", name);
	}
	pthread_mutex_lock(&latest.lock);
	if (!rc && !latest.started) {
		rc = pthread_create(&latest.thread, NULL, latest_main, req_fs(req));
		latest.started = !rc;
	}
	for (pp = &latest.jobs; !rc && *pp; pp = &(*pp)->next)
		;
	if (!rc) {
		*pp = j;
		pthread_cond_signal(&latest.cond);
	}
	pthread_mutex_unlock(&latest.lock);
	if (rc) {
		free(j);
		fuse_reply_err(req, rc);
	}
}

/* The path of an id; NULL: made by an earlier worker and not looked up since. Free it. */
static char *path_of(uint64_t id, bool link)
{
	pthread_mutex_lock(&latest.lock);
	struct entry *e = entry_find(id);
	char *path = e && e->link == link ? strdup(e->path) : NULL;
	pthread_mutex_unlock(&latest.lock);
	return path;
}

static void ask_about(fuse_req_t req, uint64_t id, bool link, const struct job *what, const char *name)
{
	char *path = path_of(id, link);
	if (path)
		ask(req, what, path, name);
	else
		fuse_reply_err(req, ESTALE);	/* the kernel looks the whole path up again */
	free(path);
}

/* ---- as a part of .cairn ---- */

void latest_lookup(fuse_req_t req, uint64_t parent, const char *name)
{
	const struct job what = {.want = WANT_ENTRY};
	if (parent == CONTROL_DIR)
		ask(req, &what, "", "");
	else
		ask_about(req, parent, false, &what, name);
}

void latest_getattr(fuse_req_t req, uint64_t id)
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

void latest_readlink(fuse_req_t req, uint64_t id)
{
	const struct job what = {.want = WANT_LINK};
	ask_about(req, id, true, &what, "");
}

void latest_readdir(fuse_req_t req, uint64_t id, size_t size, off_t off, bool plus)
{
	const struct job what = {.want = WANT_NAMES, .size = size, .off = off, .plus = plus};
	ask_about(req, id, false, &what, "");
}

void latest_forget(uint64_t id, uint64_t count)
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

void latest_xattr(fuse_req_t req, const char *path, size_t size)
{
	const struct job what = {.want = WANT_XATTR, .size = size};
	ask(req, &what, path, "");
}

// SPDX-License-Identifier: MIT
/* names: a load of names, and a model of what it made.
 *
 *   names DIR OUT SEED	ranks make, link, rename and remove names below DIR until SIGTERM. Each compares its tree with
 *			its model again and again. OUT gets the listing that the models foresee. Exit 0: no call
 *			failed that should not have, and every tree was as its model. OUT.calls.<rank> has all calls.
 *   names -l DIR	the listing of a tree: names, modes, bytes, which names are one file, how many names it has
 *
 * Without the ranks' directories nothing is foreseen: each rank is alone in its own. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "content.h"

#define RANKS 3u
#define ENTRIES 40u
#define HELD 4u
#define DEPTH 3u
#define BYTES_MAX (1u << 20)
#define PATH_CAP 512u

/* ---- listings ------------------------------------------------------------ */

struct line {
	char path[PATH_CAP], target[64];
	mode_t mode;
	uint64_t size, sum, links;
	uint64_t file;		/* the same for names of one file */
};

struct listing {
	struct line *at;
	size_t n, cap;
};

static struct line *add_line(struct listing *l)
{
	if (l->n == l->cap) {
		l->cap = l->cap ? l->cap * 2 : 64;
		l->at = realloc(l->at, l->cap * sizeof(*l->at));
		if (!l->at)
			abort();
	}
	l->at[l->n] = (struct line){.links = 0};
	return &l->at[l->n++];
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct line *)a)->path, ((const struct line *)b)->path);
}

static uint64_t sum_of(const unsigned char *p, size_t n)
{
	uint64_t h = n;

	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * 0x100000001b3ull;
	return h;
}

static const char *first_name(const struct listing *l, const struct line *of)
{
	for (size_t i = 0; i < l->n; i++)
		if (S_ISREG(l->at[i].mode) && l->at[i].file == of->file)
			return l->at[i].path;
	return "";
}

/* With `links` the number of names, too: while they are published one by one it may be one more. */
static char *print_listing(struct listing *l, bool links)
{
	char *text;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (l->n)
		qsort(l->at, l->n, sizeof(*l->at), by_path);
	for (size_t i = 0; i < l->n; i++) {
		const struct line *e = &l->at[i];

		fprintf(f, "%s %o", e->path, e->mode);
		if (S_ISREG(e->mode))
			fprintf(f, " %" PRIu64 " %" PRIx64 " =%s", e->size, e->sum, first_name(l, e));
		if (S_ISREG(e->mode) && links)
			fprintf(f, " x%" PRIu64, e->links);
		fprintf(f, "%s%s\n", *e->target ? " -> " : "", e->target);
	}
	fclose(f);
	free(l->at);
	return text;
}

/* What open(2) and read(2) give; an errno in place of the sum. */
static void read_file(int dir, const char *name, struct line *e)
{
	static unsigned char buf[BYTES_MAX];
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	size_t n = 0;
	ssize_t got = -1;

	while (fd >= 0 && n < sizeof(buf) && (got = read(fd, buf + n, sizeof(buf) - n)) > 0)
		n += (size_t)got;
	if (fd < 0 || got < 0)
		snprintf(e->target, sizeof(e->target), "%s: %s", fd < 0 ? "open" : "read", strerror(errno));
	e->sum = sum_of(buf, n);
	if (n != e->size && !*e->target)
		snprintf(e->target, sizeof(e->target), "%zu bytes read", n);
	if (fd >= 0)
		close(fd);
}

static void list_tree(struct listing *l, int at, const char *name, const char *path)
{
	int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d) {
		struct line *e = add_line(l);
		snprintf(e->path, sizeof(e->path), "%s", path);
		snprintf(e->target, sizeof(e->target), "list: %s", strerror(errno));
		return;
	}
	for (struct dirent *e; (e = readdir(d));) {
		struct stat st = {0};
		char below[PATH_CAP];

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || !strcmp(e->d_name, ".cairn"))
			continue;
		snprintf(below, sizeof(below), "%s%s%s", path, *path ? "/" : "", e->d_name);
		struct line *t = add_line(l);
		memcpy(t->path, below, sizeof(below));
		if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW)) {
			snprintf(t->target, sizeof(t->target), "stat: %s", strerror(errno));
			continue;
		}
		t->mode = st.st_mode;
		t->size = (uint64_t)st.st_size;
		t->links = st.st_nlink;
		t->file = st.st_ino;
		if (S_ISLNK(st.st_mode) && readlinkat(fd, e->d_name, t->target, sizeof(t->target) - 1) < 0)
			snprintf(t->target, sizeof(t->target), "readlink: %s", strerror(errno));
		if (S_ISREG(st.st_mode))
			read_file(fd, e->d_name, t);
		if (S_ISDIR(st.st_mode))
			list_tree(l, fd, e->d_name, below);
	}
	closedir(d);
}

static char *tree_listing(const char *dir, bool links)
{
	struct listing l = {0};

	list_tree(&l, AT_FDCWD, dir, "");
	return print_listing(&l, links);
}

/* ---- the model ----------------------------------------------------------- */

struct file {
	unsigned names, holds;
	mode_t mode;
	size_t len;
	uint64_t gen;		/* counts changes of the bytes */
	unsigned char *bytes;	/* BYTES_MAX */
};

/* A name. Entry 0 is the rank's own directory. */
struct entry {
	bool used;
	unsigned parent;
	char name[8];
	mode_t type;
	struct file *file;
	char target[16];
};

/* Open over other calls: names change meanwhile. */
struct held {
	int fd;
	bool writes;
	struct file *file;
	uint64_t gen;
};

struct rank {
	unsigned id;
	uint64_t rng, n;
	char dir[PATH_CAP];
	const char *mount;
	FILE *calls;		/* OUT.calls.<id>: all of them */
	struct entry e[ENTRIES];
	struct held held[HELD];
	uint64_t longest_ms;
};

struct shared {
	atomic_int stop, failed;
	atomic_ullong calls, checks, longest_ms;
};
static struct shared *shared;

static uint64_t rnd(struct rank *r, uint64_t n)
{
	return mix64(r->rng++) % n;
}

static void path_of(const struct rank *r, unsigned i, char out[PATH_CAP])
{
	char rest[PATH_CAP] = "", next[PATH_CAP];

	for (; i; i = r->e[i].parent) {
		snprintf(next, sizeof(next), "/%s%.400s", r->e[i].name, rest);
		memcpy(rest, next, sizeof(rest));
	}
	snprintf(out, PATH_CAP, "%.100s%.400s", r->dir, rest);
}

static char *model_listing(const struct rank *r, bool links)
{
	struct listing l = {0};
	char path[PATH_CAP];

	for (unsigned i = 1; i < ENTRIES; i++) {
		const struct entry *e = &r->e[i];
		if (!e->used)
			continue;
		struct line *t = add_line(&l);
		path_of(r, i, path);
		memcpy(t->path, path + strlen(r->dir) + 1, sizeof(t->path) - strlen(r->dir) - 1);
		t->mode = S_ISREG(e->type) ? e->type | e->file->mode : S_ISDIR(e->type) ? e->type | 0755 : e->type | 0777;
		if (S_ISREG(e->type)) {
			t->size = e->file->len;
			t->sum = sum_of(e->file->bytes, e->file->len);
			t->links = e->file->names;
			t->file = (uintptr_t)e->file;
		}
		memcpy(t->target, e->target, sizeof(e->target));
	}
	return print_listing(&l, links);
}

static unsigned depth(const struct rank *r, unsigned i)
{
	unsigned n = 0;
	for (; i; i = r->e[i].parent)
		n++;
	return n;
}

static bool is_below(const struct rank *r, unsigned i, unsigned dir)
{
	for (; i; i = r->e[i].parent)
		if (i == dir)
			return true;
	return dir == 0;
}

static bool has_children(const struct rank *r, unsigned dir)
{
	for (unsigned i = 1; i < ENTRIES; i++)
		if (r->e[i].used && r->e[i].parent == dir)
			return true;
	return false;
}

/* One of those there are; 0: none. */
static unsigned any(struct rank *r, mode_t type)
{
	for (unsigned tries = 0; tries < 3 * ENTRIES; tries++) {
		unsigned i = 1 + (unsigned)rnd(r, ENTRIES - 1);
		if (r->e[i].used && r->e[i].type == type)
			return i;
	}
	return 0;
}

static unsigned any_dir(struct rank *r)
{
	unsigned i = rnd(r, 3) ? any(r, S_IFDIR) : 0;
	return depth(r, i) < DEPTH ? i : 0;
}

/* A place: an entry that is there, or one that is free with parent and name set. 0: the model is full. */
static unsigned place(struct rank *r)
{
	unsigned parent = any_dir(r), free_at = 0;
	char name[8];

	snprintf(name, sizeof(name), "%c", "abcdef"[rnd(r, 6)]);
	for (unsigned i = 1; i < ENTRIES; i++) {
		if (r->e[i].used && r->e[i].parent == parent && !strcmp(r->e[i].name, name))
			return i;
		if (!r->e[i].used && !free_at)
			free_at = i;
	}
	if (free_at) {
		r->e[free_at] = (struct entry){.parent = parent};
		memcpy(r->e[free_at].name, name, sizeof(name));
	}
	return free_at;
}

static struct file *file_new(void)
{
	struct file *f = calloc(1, sizeof(*f));
	if (!f || !(f->bytes = calloc(1, BYTES_MAX)))
		abort();
	f->mode = 0644;
	return f;
}

static void file_drop(struct file *f)
{
	if (f->names || f->holds)
		return;
	free(f->bytes);
	free(f);
}

static void file_put(struct file *f, const void *bytes, size_t len, size_t off)
{
	if (off + len > f->len)
		f->len = off + len;
	memcpy(f->bytes + off, bytes, len);
	f->gen++;
}

static void file_cut(struct file *f, size_t len)
{
	if (len < f->len)
		memset(f->bytes + len, 0, f->len - len);
	f->len = len;
	f->gen++;
}

static void entry_drop(struct entry *e)
{
	e->used = false;
	if (S_ISREG(e->type)) {
		e->file->names--;
		file_drop(e->file);
	}
}

/* ---- calls --------------------------------------------------------------- */

static void fail(const struct rank *r, const char *what, const char *path, const char *why)
{
	fflush(r->calls);
	fprintf(stderr, "rank %u, call %llu: %s %s: %s\n", r->id, (unsigned long long)r->n, what, path, why);
	atomic_store(&shared->failed, 1);
	_exit(1);
}

/* A call that returned rc (errno set) must have given want: 0, or an errno. */
static bool told(struct rank *r, const char *what, const char *path, int rc, int want)
{
	int got = rc < 0 ? errno : 0;

	fprintf(r->calls, "%llu %s %s %s\n", (unsigned long long)r->n, what, path + strlen(r->dir), got ? strerror(got) : "");
	if (got == want)
		return !got;
	char why[128];
	snprintf(why, sizeof(why), "%s, not %s", got ? strerror(got) : "success", want ? strerror(want) : "success");
	fail(r, what, path, why);
	return false;
}

static size_t some_size(struct rank *r)
{
	const size_t sizes[] = {0, 0, 0, 0, 1, 10, 5000, 70000};
	return rnd(r, 60) ? sizes[rnd(r, 8)] : 300000;
}

static void write_some(struct rank *r, int fd, struct file *f, const char *path, size_t len, size_t off)
{
	static unsigned char buf[BYTES_MAX];

	if (off + len > BYTES_MAX)
		return;
	content_fill(buf, (uint32_t)r->id, (uint32_t)r->n, 0, len);
	ssize_t n = len ? pwrite(fd, buf, len, (off_t)off) : 0;
	fprintf(r->calls, "%llu write %s %zu at %zu\n", (unsigned long long)r->n, path, len, off);
	if (n != (ssize_t)len)
		fail(r, "write", path, n < 0 ? strerror(errno) : "short");
	if (len)
		file_put(f, buf, len, off);
}

static void hold(struct rank *r, int fd, bool writes, struct file *f)
{
	struct held *h = &r->held[rnd(r, HELD)];

	if (h->file) {
		close(fd);
		return;
	}
	*h = (struct held){.fd = fd, .writes = writes, .file = f, .gen = f->gen};
	f->holds++;
}

/* What is open is read or written to, and closed. */
static void let_go(struct rank *r, struct held *h)
{
	static unsigned char buf[BYTES_MAX];
	struct file *f = h->file;

	if (!f)
		return;
	h->file = NULL;
	fprintf(r->calls, "%llu close what is open %s\n", (unsigned long long)r->n, h->writes ? "to write" : "to read");
	if (h->writes) {
		write_some(r, h->fd, f, "a file that is open", some_size(r), f->len);
	} else if (h->gen == f->gen) {	/* who was overwritten meanwhile has either */
		ssize_t n = pread(h->fd, buf, sizeof(buf), 0);
		if (n != (ssize_t)f->len || memcmp(buf, f->bytes, f->len))
			fail(r, "read", "a file that is open", n < 0 ? strerror(errno) : "other bytes");
	}
	if (close(h->fd))
		fail(r, "close", "a file that is open", strerror(errno));
	f->holds--;
	file_drop(f);
}

static void op_create(struct rank *r)
{
	unsigned i = place(r);
	char path[PATH_CAP];
	struct entry *e = &r->e[i];

	if (!i)
		return;
	path_of(r, i, path);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (!told(r, "create", path, fd, e->used ? EEXIST : 0))
		return;
	e->used = true;
	e->type = S_IFREG;
	e->file = file_new();
	e->file->names = 1;
	write_some(r, fd, e->file, path, some_size(r), 0);
	if (rnd(r, 6) == 0)
		hold(r, fd, true, e->file);
	else if (close(fd))
		fail(r, "close", path, strerror(errno));
}

static void op_write(struct rank *r, bool anew)
{
	unsigned i = any(r, S_IFREG);
	char path[PATH_CAP];
	struct file *f = r->e[i].file;

	if (!i)
		return;
	path_of(r, i, path);
	int fd = open(path, O_WRONLY | O_CLOEXEC | (anew ? O_TRUNC : 0));
	told(r, anew ? "open anew" : "open to write", path, fd, 0);
	if (anew)
		file_cut(f, 0);
	write_some(r, fd, f, path, some_size(r), f->len);
	if (close(fd))
		fail(r, "close", path, strerror(errno));
}

static void op_truncate(struct rank *r)
{
	unsigned i = any(r, S_IFREG);
	char path[PATH_CAP];

	if (!i)
		return;
	path_of(r, i, path);
	size_t len = some_size(r);
	told(r, "truncate", path, truncate(path, (off_t)len), 0);
	file_cut(r->e[i].file, len);
}

static void op_link(struct rank *r)
{
	unsigned from = any(r, S_IFREG), to = place(r);
	char a[PATH_CAP], b[PATH_CAP];
	struct entry *e = &r->e[to];

	if (!from || !to)
		return;
	path_of(r, from, a);
	path_of(r, to, b);
	if (!told(r, "link", b, link(a, b), e->used ? EEXIST : 0))
		return;
	e->used = true;
	e->type = S_IFREG;
	e->file = r->e[from].file;
	e->file->names++;
}

static void op_unlink(struct rank *r)
{
	unsigned i = any(r, rnd(r, 8) ? S_IFREG : S_IFLNK);
	char path[PATH_CAP];

	if (!i)
		return;
	path_of(r, i, path);
	told(r, "unlink", path, unlink(path), 0);
	entry_drop(&r->e[i]);
}

static int rename_error(const struct rank *r, unsigned from, unsigned to)
{
	const struct entry *a = &r->e[from], *b = &r->e[to];

	if (S_ISDIR(a->type) && from != to && is_below(r, b->parent, from))
		return EINVAL;
	if (from != to && b->used && S_ISDIR(b->type) && is_below(r, a->parent, to))
		return ENOTEMPTY;
	if (!b->used || from == to)
		return 0;
	if (S_ISDIR(a->type) != S_ISDIR(b->type))
		return S_ISDIR(a->type) ? ENOTDIR : EISDIR;
	return S_ISDIR(b->type) && has_children(r, to) ? ENOTEMPTY : 0;
}

static void op_rename(struct rank *r, mode_t type)
{
	unsigned from = any(r, type), to = place(r);
	char a[PATH_CAP], b[PATH_CAP];

	if (!from || !to)
		return;
	path_of(r, from, a);
	path_of(r, to, b);
	if (!told(r, "rename", b, rename(a, b), rename_error(r, from, to)) || from == to)
		return;
	struct entry *e = &r->e[from], *t = &r->e[to];
	if (t->used && S_ISREG(e->type) && S_ISREG(t->type) && t->file == e->file)
		return;		/* two names of one file: both stay */
	unsigned parent = t->parent;
	char name[8];
	memcpy(name, t->name, sizeof(name));
	if (t->used)
		entry_drop(t);
	e->parent = parent;
	memcpy(e->name, name, sizeof(name));
}

static void op_mkdir(struct rank *r)
{
	unsigned i = place(r);
	char path[PATH_CAP];

	if (!i || depth(r, r->e[i].parent) + 1 > DEPTH)
		return;
	path_of(r, i, path);
	if (!told(r, "mkdir", path, mkdir(path, 0755), r->e[i].used ? EEXIST : 0))
		return;
	r->e[i].used = true;
	r->e[i].type = S_IFDIR;
}

static void op_rmdir(struct rank *r)
{
	unsigned i = any(r, S_IFDIR);
	char path[PATH_CAP];

	if (!i)
		return;
	path_of(r, i, path);
	if (told(r, "rmdir", path, rmdir(path), has_children(r, i) ? ENOTEMPTY : 0))
		entry_drop(&r->e[i]);
}

static void op_symlink(struct rank *r)
{
	unsigned i = place(r);
	char path[PATH_CAP], target[16];

	if (!i)
		return;
	path_of(r, i, path);
	snprintf(target, sizeof(target), "to-%u", (unsigned)(r->n % 1000000));
	if (!told(r, "symlink", path, symlink(target, path), r->e[i].used ? EEXIST : 0))
		return;
	r->e[i].used = true;
	r->e[i].type = S_IFLNK;
	memcpy(r->e[i].target, target, sizeof(target));
}

static void op_chmod(struct rank *r)
{
	unsigned i = any(r, S_IFREG);
	char path[PATH_CAP];
	mode_t mode = rnd(r, 2) ? 0644 : 0600;

	if (!i)
		return;
	path_of(r, i, path);
	told(r, "chmod", path, chmod(path, mode), 0);
	r->e[i].file->mode = mode;
}

static void op_fsync(struct rank *r)
{
	unsigned i = any(r, rnd(r, 2) ? S_IFREG : S_IFDIR);
	char path[PATH_CAP];

	if (!i)
		return;
	path_of(r, i, path);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	told(r, "open to fsync", path, fd, 0);
	told(r, "fsync", path, fsync(fd), 0);
	close(fd);
}

static void op_hold(struct rank *r)
{
	unsigned i = any(r, S_IFREG);
	char path[PATH_CAP];
	bool writes = rnd(r, 3) == 0;

	if (!i)
		return;
	path_of(r, i, path);
	int fd = open(path, (writes ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
	told(r, writes ? "open to write" : "open to read", path, fd, 0);
	hold(r, fd, writes, r->e[i].file);
}

static void first_difference(const char *want, const char *got, char *out, size_t cap)
{
	while (*want && *got) {
		size_t a = strcspn(want, "\n"), b = strcspn(got, "\n");
		if (a != b || memcmp(want, got, a))
			break;
		want += a + 1;
		got += b + 1;
	}
	snprintf(out, cap, "\n  foreseen: %.*s\n  there:    %.*s", (int)strcspn(want, "\n"), want,
		 (int)strcspn(got, "\n"), got);
}

/* The whole tree is as foreseen: every name that is listed opens. */
static void check(struct rank *r)
{
	char why[4 * PATH_CAP];
	/* a remount drops what the kernel knows by itself, so that the daemon is asked */
	if (rnd(r, 3) == 0)
		mount(NULL, r->mount, NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, NULL);
	fprintf(r->calls, "%llu check\n", (unsigned long long)r->n);
	char *want = model_listing(r, false), *got = tree_listing(r->dir, false);
	if (strcmp(want, got)) {
		first_difference(want, got, why, sizeof(why));
		fail(r, "check", r->dir, why);
	}
	free(want);
	free(got);
	atomic_fetch_add(&shared->checks, 1);
}

static void step(struct rank *r)
{
	unsigned k = (unsigned)rnd(r, 40);

	r->n++;
	if (k < 7)
		op_create(r);
	else if (k < 9)
		op_write(r, k == 7);
	else if (k < 10)
		op_truncate(r);
	else if (k < 16)
		op_link(r);
	else if (k < 21)
		op_unlink(r);
	else if (k < 27)
		op_rename(r, S_IFREG);
	else if (k < 28)
		op_rename(r, S_IFLNK);
	else if (k < 30)
		op_rename(r, S_IFDIR);
	else if (k < 32)
		op_mkdir(r);
	else if (k < 33)
		op_rmdir(r);
	else if (k < 34)
		op_symlink(r);
	else if (k < 35)
		op_chmod(r);
	else if (k < 36)
		op_hold(r);
	else if (k < 38)
		let_go(r, &r->held[rnd(r, HELD)]);
	else if (k == 38 && rnd(r, 8) == 0)
		op_fsync(r);
	else if (k == 39 && rnd(r, 3) == 0)
		check(r);
}

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void rank_main(struct rank *r, const char *out)
{
	char path[PATH_CAP];

	snprintf(path, sizeof(path), "%.400s.calls.%u", out, r->id);
	r->calls = fopen(path, "w");
	if (!r->calls)
		_exit(2);
	told(r, "mkdir", r->dir, mkdir(r->dir, 0755), 0);
	while (!atomic_load(&shared->stop) && !atomic_load(&shared->failed)) {
		uint64_t t = now_ms();
		step(r);
		t = now_ms() - t;
		if (t > atomic_load(&shared->longest_ms))
			atomic_store(&shared->longest_ms, t);
		atomic_fetch_add(&shared->calls, 1);
	}
	for (unsigned i = 0; i < HELD; i++)
		let_go(r, &r->held[i]);
	check(r);
	snprintf(path, sizeof(path), "%.400s.%u", out, r->id);
	FILE *f = fopen(path, "w");
	char *text = model_listing(r, true);
	if (!f || fputs(text, f) < 0 || fclose(f))
		fail(r, "write", path, strerror(errno));
	_exit(0);
}

static void on_term(int sig)
{
	(void)sig;
	atomic_store(&shared->stop, 1);
}

static int load(const char *mnt, const char *out, uint64_t seed)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 2;
	struct sigaction sa = {.sa_handler = on_term};
	sigaction(SIGTERM, &sa, NULL);
	umask(0);
	for (unsigned id = 0; id < RANKS; id++) {
		if (fork())
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGTERM, SIG_IGN);
		struct rank *r = calloc(1, sizeof(*r));
		r->id = id;
		r->rng = mix64(seed * RANKS + id);
		r->mount = mnt;
		snprintf(r->dir, sizeof(r->dir), "%.400s/r%u", mnt, id);
		rank_main(r, out);
	}
	int rc = 0, status;
	for (unsigned left = RANKS; left;) {
		pid_t pid = waitpid(-1, &status, 0);
		if (pid < 0 && errno == EINTR)
			continue;
		if (pid < 0)
			return 2;
		rc |= status;
		left--;
	}
	printf("calls=%llu checks=%llu longest_ms=%llu\n", (unsigned long long)atomic_load(&shared->calls),
	       (unsigned long long)atomic_load(&shared->checks), (unsigned long long)atomic_load(&shared->longest_ms));
	return rc ? 1 : 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-l")) {
		fputs(tree_listing(argv[2], true), stdout);
		return 0;
	}
	if (argc == 4)
		return load(argv[1], argv[2], strtoull(argv[3], NULL, 0));
	fprintf(stderr, "usage: names MOUNT OUT SEED | names -l DIR\n");
	return 2;
}

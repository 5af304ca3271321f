/* SPDX-License-Identifier: MIT
 * A shared library for the checker (model.py, judge.py): a directory tree as one number, or
 * as a listing. Built as build/power/libscan.so. */
#include "content.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* What a scan collects. text may be NULL. err is the errno of the last read that failed. */
struct result {
	char *text;
	size_t used, cap;
	uint64_t sum;
	int err;
};

/* One name of the tree as the scan found it. */
struct found {
	char type;	/* d, l, f, or ? for anything else */
	unsigned mode;
	long size;
	uint64_t content, xattr;
	int err;
};

int scan(const char *path, uint64_t *sum, char *text, size_t cap);
uint64_t entry(const char *path, char type, unsigned mode, uint64_t content, uint64_t xattr);

static char small_file[1 << 20];

/* As hash64 of the whole: files of the workloads fit the buffer but for a few. */
static uint64_t file_hash(int fd, off_t size, int *err)
{
	char *p = size <= (off_t)sizeof(small_file) ? small_file : malloc((size_t)size);
	off_t n = 0;

	if (!p) {
		*err = ENOMEM;
		return 0;
	}
	while (n < size) {
		ssize_t r = pread(fd, p + n, (size_t)(size - n), n);
		if (r <= 0) {
			*err = r ? errno : EIO;
			break;
		}
		n += r;
	}
	uint64_t h = hash64(HASH_FILE, p, (size_t)n);
	if (p != small_file)
		free(p);
	return h;
}

/* A line of the listing: judge.py:listing() reads it. */
static void list(struct result *r, const char *path, const struct found *f)
{
	if (!r->text)
		return;
	int n = snprintf(r->text + r->used, r->cap - r->used, "%c %o %ld %016lx %016lx %d %s\n", f->type,
			 f->mode, f->size, f->content, f->xattr, f->err, path);
	if (r->used + (size_t)n < r->cap)
		r->used += (size_t)n;
}

static void look_at_file(int dir, const char *name, off_t size, struct found *f)
{
	char val[256];
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		f->err = errno;
		return;
	}
	f->content = file_hash(fd, size, &f->err);
	ssize_t n = fgetxattr(fd, "user.t", val, sizeof(val));
	if (n > 0)
		f->xattr = hash64(HASH_XATTR, val, (size_t)n);
	close(fd);
}

static void look_at_symlink(int dir, const char *name, struct found *f)
{
	char target[256];
	ssize_t n = readlinkat(dir, name, target, sizeof(target));

	if (n < 0)
		f->err = errno;
	else
		f->content = hash64(HASH_FILE, target, (size_t)n);
}

static void walk(int dir, const char *rel, struct result *r);

static void look_at_name(int dir, const char *path, const char *name, struct result *r)
{
	struct stat st;
	struct found f = {.type = '?'};

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) {
		f = (struct found){.type = '!', .err = errno};
		r->err = errno;
		list(r, path, &f);
		return;
	}
	f.mode = st.st_mode & 07777;
	f.size = S_ISDIR(st.st_mode) ? 0 : (long)st.st_size;
	if (S_ISDIR(st.st_mode)) {
		f.type = 'd';
		int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			f.err = errno;
		else
			walk(fd, path, r);
	} else if (S_ISLNK(st.st_mode)) {
		f.type = 'l';
		f.mode = 0777;
		look_at_symlink(dir, name, &f);
	} else if (S_ISREG(st.st_mode)) {
		f.type = 'f';
		look_at_file(dir, name, st.st_size, &f);
	}
	if (f.err)
		r->err = f.err;
	r->sum += entry64(path, f.type, f.mode, f.content, f.xattr);
	list(r, path, &f);
}

/* Takes the descriptor. */
static void walk(int dir, const char *rel, struct result *r)
{
	DIR *d = fdopendir(dir);
	struct dirent *e;

	if (!d) {
		r->err = errno;
		close(dir);
		return;
	}
	while (errno = 0, (e = readdir(d))) {
		char path[4096];

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		snprintf(path, sizeof(path), "%s%s%s", rel, *rel ? "/" : "", e->d_name);
		look_at_name(dirfd(d), path, e->d_name, r);
	}
	if (errno)
		r->err = errno;
	closedir(d);
}

/* Sets *sum to the hash of the tree at path (its own directory counts), 0 where there is none,
 * and fills text (NULL: no listing) with at most cap bytes. Returns 0 or the errno of a read
 * that failed. */
int scan(const char *path, uint64_t *sum, char *text, size_t cap)
{
	struct result r = {.text = text, .cap = cap};

	*sum = 0;
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : errno;
	r.sum = entry64(".", 'd', 0755, 0, 0);
	walk(fd, "", &r);
	*sum = r.sum;
	return r.err;
}

uint64_t entry(const char *path, char type, unsigned mode, uint64_t content, uint64_t xattr)
{
	return entry64(path, type, mode, content, xattr);
}

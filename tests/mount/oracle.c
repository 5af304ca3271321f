/* SPDX-License-Identifier: MIT
 *
 * The shadow oracle: seeded random operations, each done on directory A (the mount) and
 * on directory B (a plain one), results and errors compared; at intervals the whole
 * trees, and after a drain the store's tree too.
 *
 *	oracle A B [--store S] [--seed N] [--ops N] [--fds N] [--check N] [--drain N]
 *	       [--direct] [--trace] [--only 3,17,20-25] [--break data|name|mode|store]
 *
 * A and B must start out equal (both empty, or left by an earlier run). Everything is
 * drawn from the seed, so a failing run is replayed by the line that is printed.
 * --break damages A on purpose, in the second half: a run that does not notice is a broken oracle.
 *
 * Where the mount promises more than POSIX the comparison steps back: a descriptor opened
 * for reading keeps the old version when the file is opened for writing afterwards, so it
 * is "stale" and only closed from then on.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define MAX_KNOWN 1024
#define MAX_SLOTS 32
#define MAX_MAPS 4
#define MAX_DIRS 3
#define MAX_IO (3 << 20)
#define MAX_SIZE (20 << 20)
#define MAX_TRACE 400
#define SET_TIME_LIMIT 1300000000	/* mtimes that were set lie before, real ones after */

struct pair {
	int a, b;
};

/* A file open on both sides. */
struct slot {
	bool used, stale;
	int flags;
	ino_t ino;		/* B's */
	struct pair fd;
};

/* A mapping that outlives its descriptor. */
struct mapping {
	bool used, stale, writable;
	ino_t ino;
	size_t len;
	char *a, *b;
	struct pair path;	/* O_PATH, for the size and the times */
};

struct known {
	char path[400];
	mode_t type;
};

static struct {
	const char *name_a, *name_b, *name_store, *breaks;
	struct pair root;
	int store;
	uint64_t seed, rng;
	long ops, check_every, drain_every, op;
	int fds;
	char *only;		/* one byte an operation: do it? */
	bool direct, trace;
	bool tree_changed;
} o = { .store = -1, .seed = 1, .ops = 2000, .check_every = 250, .drain_every = 1000, .fds = 10 };

static struct slot slots[MAX_SLOTS];
static struct mapping maps[MAX_MAPS];
static struct pair dirs[MAX_DIRS];
static struct known known[MAX_KNOWN];
static int nknown;
static ino_t loose[256];	/* files whose mtimes are not comparable now */
static int nloose;
static char trace[MAX_TRACE][512];
static char buf_a[MAX_IO + 64], buf_b[MAX_IO + 64];

/* ---- saying what went wrong -------------------------------------------------- */

static void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *fmt, ...)
{
	char *line = trace[o.op % MAX_TRACE];
	va_list ap;
	int n = snprintf(line, sizeof(trace[0]), "%6ld ", o.op);

	va_start(ap, fmt);
	vsnprintf(line + n, sizeof(trace[0]) - n, fmt, ap);
	va_end(ap);
	if (o.trace) {
		puts(line);
		fflush(stdout);
	}
}

static void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *fmt, ...)
{
	va_list ap;

	if (!o.trace)
		for (long i = o.op < MAX_TRACE ? 0 : o.op - MAX_TRACE + 1; i <= o.op; i++)
			puts(trace[i % MAX_TRACE]);
	printf("FAIL: ");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\nreplay: oracle %s %s%s%s --seed %lu --ops %ld --fds %d --check %ld --drain %ld%s --trace\n",
	       o.name_a, o.name_b, o.name_store ? " --store " : "",
	       o.name_store ? o.name_store : "", (unsigned long)o.seed, o.ops, o.fds,
	       o.check_every, o.drain_every, o.direct ? " --direct" : "");
	fflush(stdout);
	_exit(1);
}

/* A mapping is shorter than the file, or its bytes cannot be had. */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	const char *at = info->si_addr;

	(void)sig;
	(void)context;
	for (int i = 0; i < MAX_MAPS; i++) {
		const struct mapping *m = &maps[i];

		if (at >= m->a && at < m->a + m->len)
			fail("SIGBUS: mapping %%%d of the mount, byte %ld of %zu", i, at - m->a, m->len);
		if (at >= m->b && at < m->b + m->len)
			fail("SIGBUS: mapping %%%d of the shadow, byte %ld of %zu", i, at - m->b, m->len);
	}
	fail("SIGBUS at %p", at);
}

static const char *said(int err)
{
	return err ? strerrorname_np(err) : "ok";
}

/* Both sides answered the same: value and error. */
static long judge(const char *what, long ra, int ea, long rb, int eb)
{
	if (ea == ENOTEMPTY)
		ea = EEXIST;	/* POSIX leaves the choice */
	if (eb == ENOTEMPTY)
		eb = EEXIST;
	if (ra != rb || ea != eb)
		fail("%s: mount says %ld %s, shadow says %ld %s", what, ra, said(ea), rb,
		     said(eb));
	return rb;
}

#define BOTH(what, call_a, call_b) __extension__({ \
		long ra_, rb_; \
		int ea_, eb_; \
		errno = 0; \
		ra_ = (long)(call_a); \
		ea_ = ra_ == -1 ? errno : 0; \
		errno = 0; \
		rb_ = (long)(call_b); \
		eb_ = rb_ == -1 ? errno : 0; \
		judge(what, ra_, ea_, rb_, eb_); })

/* ---- chance ------------------------------------------------------------------- */

static uint64_t rnd(uint64_t n)
{
	uint64_t z = o.rng += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (z ^ z >> 31) % n;
}

static bool chance(unsigned percent)
{
	return rnd(100) < percent;
}

/* True from half way on, where --break asks for it. */
static bool break_now(const char *kind)
{
	return o.breaks && !strcmp(o.breaks, kind) && o.op > o.ops / 2;
}

/* Sizes and offsets near the edges that matter. */
static size_t some_length(void)
{
	static const size_t edges[] = { 1, 511, 512, 4095, 4096, 4097, 65536, 1 << 20 };

	if (chance(20))
		return edges[rnd(8)];
	if (chance(3))
		return rnd(MAX_IO);
	return rnd(chance(70) ? 300 : 70000);
}

static off_t some_offset(off_t size)
{
	if (chance(40))
		return size;
	if (chance(2))
		return rnd(MAX_SIZE - MAX_IO);
	if (chance(20))
		return size + rnd(10000);
	return size ? (off_t)rnd(size) : 0;
}

static void some_data(size_t len)
{
	uint64_t x = rnd(UINT64_MAX);

	if (len > MAX_IO)
		len = MAX_IO;
	for (size_t i = 0; i < len; i += 8) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		memcpy(buf_b + i, &x, 8);
	}
	memcpy(buf_a, buf_b, len);
	if (len && break_now("data"))
		buf_a[len / 2] ^= 1;
}

/* ---- names -------------------------------------------------------------------- */

static void scan_dir(int dirfd, const char *prefix)
{
	DIR *d = fdopendir(dirfd);
	struct dirent *e;

	while (d && (e = readdir(d)) && nknown < MAX_KNOWN) {
		struct known *k = &known[nknown];
		struct stat st;

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (snprintf(k->path, sizeof(k->path), "%s%s", prefix, e->d_name) >=
		    (int)sizeof(k->path) - 8)
			continue;
		if (fstatat(dirfd, e->d_name, &st, AT_SYMLINK_NOFOLLOW))
			continue;
		k->type = st.st_mode & S_IFMT;
		nknown++;
		if (S_ISDIR(st.st_mode)) {
			char sub[sizeof(k->path) + 8];

			snprintf(sub, sizeof(sub), "%s/", k->path);
			scan_dir(openat(dirfd, e->d_name, O_RDONLY | O_DIRECTORY), sub);
		}
	}
	closedir(d);
}

static int by_path(const void *x, const void *y)
{
	return strcmp(((const struct known *)x)->path, ((const struct known *)y)->path);
}

static void scan(void)
{
	if (!o.tree_changed)
		return;
	o.tree_changed = false;
	nknown = 0;
	scan_dir(openat(o.root.b, ".", O_RDONLY | O_DIRECTORY), "");
	qsort(known, nknown, sizeof(known[0]), by_path);
}

/* A path that exists, of this type (0: any); NULL where there is none. */
static const char *existing(mode_t type)
{
	int n = 0, k;

	scan();
	for (int i = 0; i < nknown; i++)
		n += !type || known[i].type == type;
	if (!n)
		return NULL;
	k = rnd(n);
	for (int i = 0;; i++)
		if ((!type || known[i].type == type) && !k--)
			return known[i].path;
}

static void name_in_pool(char path[static 512], char kind)
{
	const char *dir = chance(70) ? existing(S_IFDIR) : NULL;
	int depth = 0;

	for (const char *p = dir; p && *p; p++)
		depth += *p == '/';
	if (depth > 3)
		dir = NULL;
	if (chance(3))
		snprintf(path, 512, "%s%s\x01\xff %c\n", dir ? dir : "", dir ? "/" : "", kind);
	else if (chance(2) && depth < 1)	/* the longest name there is, and one longer than that */
		snprintf(path, 512, "%s%s%0*d", dir && strlen(dir) < 9 ? dir : "", dir && strlen(dir) < 9 ? "/" : "",
			 chance(80) ? 255 : 256, kind);
	else
		snprintf(path, 512, "%s%s%c%d", dir ? dir : "", dir ? "/" : "", kind, (int)rnd(8));
}

/* A path to act on: mostly one that exists, of this type. */
static void some_path(char path[static 512], mode_t type, unsigned percent_existing)
{
	const char *p = chance(percent_existing) ? existing(chance(90) ? type : 0) : NULL;

	if (p)
		snprintf(path, 512, "%s", p);
	else
		name_in_pool(path, type == S_IFDIR ? 'd' : 'f');
}

/* What the path is relative to: the roots, sometimes a directory that is kept open. */
static struct pair some_base(char path[static 512])
{
	int i = rnd(MAX_DIRS);

	if (chance(10) && dirs[i].b > 0) {
		snprintf(path, 512, "%c%d", chance(80) ? 'f' : 'd', (int)rnd(8));
		return dirs[i];
	}
	return o.root;
}

/* ---- what is known about files --------------------------------------------------- */

static bool is_loose(ino_t ino)
{
	for (int i = 0; i < nloose; i++)
		if (loose[i] == ino)
			return true;
	return false;
}

static void loosen(ino_t ino)
{
	if (!is_loose(ino) && nloose < 256)
		loose[nloose++] = ino;
}

static void tighten(ino_t ino)
{
	for (int i = 0; i < nloose; i++)
		if (loose[i] == ino)
			loose[i--] = loose[--nloose];
}

static bool is_mapped(ino_t ino)
{
	for (int i = 0; i < MAX_MAPS; i++)
		if (maps[i].used && maps[i].writable && !maps[i].stale && maps[i].ino == ino)
			return true;
	return false;
}

static bool has_writer(ino_t ino, const struct slot *except)
{
	for (int i = 0; i < o.fds; i++)
		if (slots[i].used && &slots[i] != except && slots[i].ino == ino &&
		    (slots[i].flags & O_ACCMODE) != O_RDONLY)
			return true;
	return false;
}

/* Someone opens ino for writing: whoever only reads it keeps what was there; so does who
 * has it mapped, when the file is written anew. */
static void new_version(ino_t ino, const struct slot *writer, bool truncated)
{
	if (has_writer(ino, writer) || (is_mapped(ino) && !truncated))
		return;
	for (int i = 0; i < o.fds; i++)
		if (slots[i].used && &slots[i] != writer && slots[i].ino == ino)
			slots[i].stale = true;
	for (int i = 0; i < MAX_MAPS; i++)
		if (maps[i].used && maps[i].ino == ino)
			maps[i].stale = true;
}

static struct slot *some_slot(void)
{
	int start = rnd(o.fds);

	for (int i = 0; i < o.fds; i++) {
		struct slot *s = &slots[(start + i) % o.fds];

		if (s->used && !s->stale)
			return s;
	}
	return NULL;
}

static int nr(const struct slot *s)
{
	return s - slots;
}

static off_t size_of(int fd)
{
	struct stat st;

	return fstat(fd, &st) ? 0 : st.st_size;
}

/* ---- operations on open files ------------------------------------------------------- */

static void close_slot(struct slot *s)
{
	BOTH("close", close(s->fd.a), close(s->fd.b));
	s->used = false;
}

static void unmap(struct mapping *m)
{
	munmap(m->a, m->len);
	munmap(m->b, m->len);
	close(m->path.a);
	close(m->path.b);
	m->used = false;
}

/* Closed but mapped writable, a file holds up those that come later, fsync included. */
static void unmap_writable(void)
{
	for (int i = 0; i < MAX_MAPS; i++)
		if (maps[i].used && maps[i].writable)
			unmap(&maps[i]);
}

static void op_close(void)
{
	int i = rnd(o.fds);

	if (!slots[i].used)
		return note("-");
	note("close #%d", i);
	close_slot(&slots[i]);
}

static int open_a(int base, const char *path, int flags, mode_t mode)
{
	bool direct = o.direct && chance(5);
	int fd = openat(base, path, flags | (direct ? O_DIRECT : 0), mode);

	if (fd == -1 && direct && errno == EINVAL)
		fd = openat(base, path, flags, mode);
	return fd;
}

static int some_open_flags(void)
{
	static const int modes[] = { O_RDONLY, O_WRONLY, O_RDWR, O_RDWR };
	int flags = modes[rnd(4)] | O_CLOEXEC | O_NONBLOCK;	/* it may be a fifo */

	if (chance(50))
		flags |= O_CREAT;
	if (chance(8))
		flags |= O_EXCL | O_CREAT;
	if (flags & O_ACCMODE) {
		flags |= chance(30) ? O_TRUNC : 0;
		flags |= chance(15) ? O_APPEND : 0;
		flags |= chance(2) ? O_SYNC : 0;
		flags |= chance(2) ? O_DSYNC : 0;
	}
	return flags;
}

static void op_open(void)
{
	struct slot *s = &slots[rnd(o.fds)];
	int flags = some_open_flags(), fa, ea, fb, eb;
	char path[512];
	struct pair at;
	struct stat st;

	some_path(path, S_IFREG, 70);
	at = some_base(path);
	if (s->used)
		close_slot(s);
	note("open #%d %s flags %#o", nr(s), path, flags);
	fa = open_a(at.a, path, flags, 0644);
	ea = fa == -1 ? errno : 0;
	fb = openat(at.b, path, flags, 0644);
	eb = fb == -1 ? errno : 0;
	judge("open", fa == -1 ? -1 : 0, ea, fb == -1 ? -1 : 0, eb);
	o.tree_changed = true;
	if (fb == -1)
		return;
	fstat(fb, &st);
	if (!S_ISREG(st.st_mode)) {
		close(fa);
		close(fb);
		return;
	}
	*s = (struct slot){ .used = true, .flags = flags, .ino = st.st_ino, .fd = { fa, fb } };
	if (flags & O_ACCMODE)
		new_version(s->ino, s, flags & O_TRUNC);
}

/* Python's open/write/close, the commonest thing of all. */
static void op_save(void)
{
	char path[512];
	struct stat st;
	size_t len = some_length();
	int fa, fb;

	some_path(path, S_IFREG, 40);
	note("save %s len %zu", path, len);
	fa = openat(o.root.a, path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK, 0644);
	int ea = fa == -1 ? errno : 0;
	fb = openat(o.root.b, path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK, 0644);
	judge("open", fa == -1 ? -1 : 0, ea, fb == -1 ? -1 : 0, fb == -1 ? errno : 0);
	o.tree_changed = true;
	if (fb == -1)
		return;
	fstat(fb, &st);
	new_version(st.st_ino, NULL, true);
	some_data(len);
	BOTH("write", write(fa, buf_a, len), write(fb, buf_b, len));
	BOTH("close", close(fa), close(fb));
}

static void op_write(void)
{
	struct slot *s = some_slot();
	size_t len = some_length();
	off_t off;

	if (!s)
		return note("-");
	off = some_offset(size_of(s->fd.b));
	if (s->flags & (O_SYNC | O_DSYNC))
		unmap_writable();
	some_data(len);
	if (chance(60)) {
		note("pwrite #%d off %ld len %zu", nr(s), off, len);
		BOTH("pwrite", pwrite(s->fd.a, buf_a, len, off), pwrite(s->fd.b, buf_b, len, off));
		return;
	}
	if (lseek(s->fd.b, 0, SEEK_CUR) > MAX_SIZE) {
		lseek(s->fd.a, 0, SEEK_SET);
		lseek(s->fd.b, 0, SEEK_SET);
	}
	note("write #%d len %zu", nr(s), len);
	BOTH("write", write(s->fd.a, buf_a, len), write(s->fd.b, buf_b, len));
}

static void same_bytes(const char *what, off_t off, ssize_t n)
{
	if (n <= 0 || !memcmp(buf_a, buf_b, n))
		return;
	for (ssize_t i = 0; i < n; i++)
		if (buf_a[i] != buf_b[i])
			fail("%s: byte %ld is %#x, shadow has %#x", what, off + i,
			     (unsigned char)buf_a[i], (unsigned char)buf_b[i]);
}

static void op_read(void)
{
	struct slot *s = some_slot();
	size_t len = some_length();
	off_t off;
	ssize_t n;

	if (!s)
		return note("-");
	off = some_offset(size_of(s->fd.b));
	if (chance(60)) {
		note("pread #%d off %ld len %zu", nr(s), off, len);
		n = BOTH("pread", pread(s->fd.a, buf_a, len, off), pread(s->fd.b, buf_b, len, off));
		return same_bytes("pread", off, n);
	}
	note("read #%d len %zu", nr(s), len);
	off = lseek(s->fd.b, 0, SEEK_CUR);
	n = BOTH("read", read(s->fd.a, buf_a, len), read(s->fd.b, buf_b, len));
	same_bytes("read", off, n);
}

static void op_lseek(void)
{
	static const char *const names[] = { "SET", "CUR", "END" };
	struct slot *s = some_slot();
	int whence = rnd(3);
	off_t off;

	if (!s)
		return note("-");
	off = whence == SEEK_SET ? some_offset(size_of(s->fd.b)) : (off_t)rnd(20000) - 10000;
	note("lseek #%d %ld %s", nr(s), off, names[whence]);
	BOTH("lseek", lseek(s->fd.a, off, whence), lseek(s->fd.b, off, whence));
}

static void op_ftruncate(void)
{
	struct slot *s = some_slot();
	off_t len;

	if (!s)
		return note("-");
	len = chance(20) ? 0 : some_offset(size_of(s->fd.b));
	if (len == size_of(s->fd.b))
		loosen(s->ino);
	note("ftruncate #%d %ld", nr(s), len);
	BOTH("ftruncate", ftruncate(s->fd.a, len), ftruncate(s->fd.b, len));
}

static void op_fallocate(void)
{
	static const int modes[] = { 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_ZERO_RANGE, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE };
	struct slot *s = some_slot();
	int pick = chance(80) ? rnd(3) : 3 + rnd(4), mode = modes[pick];
	off_t off, len = some_length() + 1;

	if (!s)
		return note("-");
	off = some_offset(size_of(s->fd.b));
	if (pick > 4) {		/* whole blocks, or EINVAL */
		off &= ~4095;
		len = (len + 4095) & ~4095;
	}
	note("fallocate #%d mode %d off %ld len %ld", nr(s), mode, off, len);
	loosen(s->ino);
	/* a tmpfs has no more than the first three */
	errno = 0;
	int ra = fallocate(s->fd.a, mode, off, len), ea = errno;
	if (pick > 2 && ra == -1 && ea == EOPNOTSUPP)
		return;
	errno = 0;
	int rb = fallocate(s->fd.b, mode, off, len);
	judge("fallocate", ra, ea, rb, errno);
}

/* Holes may differ, but what lies in one is zeros on the other side, and no hole ends the file early. */
static void op_seek_data(void)
{
	struct slot *s = some_slot();
	off_t off, size, at;
	bool hole = chance(50);

	if (!s || (s->flags & O_ACCMODE) == O_WRONLY)
		return note("-");
	size = size_of(s->fd.b);
	off = some_offset(size);
	note("lseek #%d %ld %s", nr(s), off, hole ? "HOLE" : "DATA");
	off_t was = lseek(s->fd.a, 0, SEEK_CUR);
	at = lseek(s->fd.a, off, hole ? SEEK_HOLE : SEEK_DATA);
	if (at == -1 && errno != ENXIO)
		fail("lseek: %s", said(errno));
	if (lseek(s->fd.a, was, SEEK_SET) != was)
		fail("lseek back: %s", said(errno));
	if (hole ? (at == -1) != (off >= size) || (at != -1 && (at < off || at > size)) : at != -1 && (at < off || at >= size))
		fail("lseek: %ld in a file of %ld bytes", at, size);
	/* from off to the data, or from the hole on for a little */
	off_t from = hole ? at : off, end = hole ? at + 1 : at == -1 ? size : at;
	for (ssize_t n; from != -1 && from < end; from += n) {
		n = pread(s->fd.b, buf_b, end - from < MAX_IO ? end - from : MAX_IO, from);
		for (ssize_t i = 0; i < n; i++)
			if (buf_b[i])
				fail("lseek: a hole at %ld, the shadow has %#x there", from + i, (unsigned char)buf_b[i]);
		if (n <= 0)
			break;
	}
}

static ssize_t copy_range(int in, off_t off_in, int out, off_t off_out, size_t len)
{
	size_t done = 0;
	ssize_t n = 0;

	while (done < len && (n = copy_file_range(in, &off_in, out, &off_out, len - done, 0)) > 0)
		done += n;
	return n < 0 ? -1 : (ssize_t)done;
}

static void op_copy_range(void)
{
	struct slot *s = some_slot(), *t = some_slot();
	size_t len = some_length();
	off_t from, to;

	if (!s || (t->flags & (O_SYNC | O_DSYNC)))
		return note("-");
	from = some_offset(size_of(s->fd.b));
	to = some_offset(size_of(t->fd.b));
	note("copy_file_range #%d %ld -> #%d %ld, %zu", nr(s), from, nr(t), to, len);
	loosen(t->ino);
	BOTH("copy_file_range", copy_range(s->fd.a, from, t->fd.a, to, len), copy_range(s->fd.b, from, t->fd.b, to, len));
}

static void op_sendfile(void)
{
	struct slot *s = some_slot(), *t = some_slot();
	size_t len = rnd(60000);
	off_t from, from_a, from_b;

	/* what is sent to itself, or to a file of limited size, is cut differently */
	if (!s || s->ino == t->ino || (t->flags & (O_SYNC | O_DSYNC | O_APPEND)) || lseek(t->fd.b, 0, SEEK_CUR) > MAX_SIZE)
		return note("-");
	from = from_a = from_b = some_offset(size_of(s->fd.b));
	note("sendfile #%d %ld -> #%d, %zu", nr(s), from, nr(t), len);
	loosen(t->ino);
	BOTH("sendfile", sendfile(t->fd.a, s->fd.a, &from_a, len), sendfile(t->fd.b, s->fd.b, &from_b, len));
}

/* A child that inherited it, or a dup: flushed, and written on. */
static void op_dup_close(void)
{
	struct slot *s = some_slot();

	if (!s)
		return note("-");
	note("close of a dup of #%d", nr(s));
	BOTH("close", close(dup(s->fd.a)), close(dup(s->fd.b)));
}

static void op_link_open(void)
{
	struct slot *s = some_slot();
	char path[512], a[64], b[64];
	struct pair at;

	if (!s)
		return note("-");
	name_in_pool(path, 'f');
	at = some_base(path);
	snprintf(a, sizeof(a), "/proc/self/fd/%d", s->fd.a);
	snprintf(b, sizeof(b), "/proc/self/fd/%d", s->fd.b);
	note("link #%d %s", nr(s), path);
	o.tree_changed = true;
	BOTH("link", linkat(AT_FDCWD, a, at.a, path, AT_SYMLINK_FOLLOW),
	     linkat(AT_FDCWD, b, at.b, path, AT_SYMLINK_FOLLOW));
}

static void op_fchown(void)
{
	static const uid_t ids[] = { 0, 1000, 65534, (uid_t)-1 };
	uid_t uid = ids[rnd(4)], gid = ids[rnd(4)];
	struct slot *s = some_slot();

	if (!s)
		return note("-");
	note("fchown #%d %d %d", nr(s), (int)uid, (int)gid);
	BOTH("fchown", fchown(s->fd.a, uid, gid), fchown(s->fd.b, uid, gid));
}

static void op_fsetxattr(void)
{
	struct slot *s = some_slot();
	size_t len = rnd(200);
	char name[32];

	if (!s)
		return note("-");
	snprintf(name, sizeof(name), "user.k%d", (int)rnd(4));
	some_data(len);
	note("fsetxattr #%d %s %zu", nr(s), name, len);
	if (chance(80))
		BOTH("fsetxattr", fsetxattr(s->fd.a, name, buf_b, len, 0), fsetxattr(s->fd.b, name, buf_b, len, 0));
	else
		BOTH("fremovexattr", fremovexattr(s->fd.a, name), fremovexattr(s->fd.b, name));
}

static void op_fsync(void)
{
	struct slot *s = some_slot();
	bool data = chance(50);

	if (!s)
		return note("-");
	unmap_writable();
	note("%s #%d", data ? "fdatasync" : "fsync", nr(s));
	if (data)
		BOTH("fdatasync", fdatasync(s->fd.a), fdatasync(s->fd.b));
	else
		BOTH("fsync", fsync(s->fd.a), fsync(s->fd.b));
}

static void op_fchmod(void)
{
	static const mode_t modes[] = { 0644, 0600, 0755, 0444 };
	struct slot *s = some_slot();
	mode_t mode = modes[rnd(4)];

	if (!s)
		return note("-");
	note("fchmod #%d %o", nr(s), mode);
	BOTH("fchmod", fchmod(s->fd.a, mode), fchmod(s->fd.b, mode));
}

static void some_times(struct timespec t[static 2])
{
	for (int i = 0; i < 2; i++)
		t[i] = (struct timespec){ 1000000000 + rnd(200000000), rnd(1000000000) };
}

static void op_futimens(void)
{
	struct slot *s = some_slot();
	struct timespec t[2];

	if (!s)
		return note("-");
	some_times(t);
	note("futimens #%d %ld.%09ld", nr(s), (long)t[1].tv_sec, t[1].tv_nsec);
	BOTH("futimens", futimens(s->fd.a, t), futimens(s->fd.b, t));
	if (!is_mapped(s->ino))
		tighten(s->ino);
}

/* ---- mappings ---------------------------------------------------------------------- */

static size_t usable(const struct mapping *m)
{
	struct stat st;

	if (fstat(m->path.b, &st))
		return 0;
	return (size_t)st.st_size < m->len ? (size_t)st.st_size : m->len;
}

static void touch_mapping(struct mapping *m)
{
	size_t size = usable(m), off, len;

	if (!size)
		return;
	off = rnd(size);
	len = some_length();
	if (len > size - off)
		len = size - off;
	if (m->writable) {
		some_data(len);
		memcpy(m->a + off, buf_a, len);
		memcpy(m->b + off, buf_b, len);
		loosen(m->ino);
	}
	if (memcmp(m->a, m->b, size))
		fail("mapping: contents differ");
}

static void op_map(void)
{
	struct mapping *m = &maps[rnd(MAX_MAPS)];
	struct slot *s = some_slot();
	char proc[64];
	int prot;

	if (m->used && chance(50)) {
		note("munmap %%%ld", (long)(m - maps));
		return unmap(m);
	}
	if (m->used) {
		note("touch %%%ld%s", (long)(m - maps), m->stale ? ", stale" : "");
		if (!m->stale)
			touch_mapping(m);
		return;
	}
	if (!s || (s->flags & O_ACCMODE) == O_WRONLY || !size_of(s->fd.b))
		return note("-");
	*m = (struct mapping){ .len = size_of(s->fd.b), .ino = s->ino };
	m->writable = s->flags & O_ACCMODE;
	prot = PROT_READ | (m->writable ? PROT_WRITE : 0);
	note("mmap %%%ld of #%d%s", (long)(m - maps), nr(s), m->writable ? ", writable" : "");
	m->a = mmap(NULL, m->len, prot, MAP_SHARED, s->fd.a, 0);
	m->b = mmap(NULL, m->len, prot, MAP_SHARED, s->fd.b, 0);
	if (m->a == MAP_FAILED || m->b == MAP_FAILED)
		fail("mmap: mount %p, shadow %p: %s", m->a, m->b, strerror(errno));
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", s->fd.a);
	m->path.a = open(proc, O_PATH);
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", s->fd.b);
	m->path.b = open(proc, O_PATH);
	m->used = true;
	touch_mapping(m);
}

/* ---- operations on names ------------------------------------------------------------ */

static void op_unlink(void)
{
	char path[512];
	struct pair at;

	some_path(path, S_IFREG, 85);
	at = some_base(path);
	note("unlink %s", path);
	o.tree_changed = true;
	if (break_now("name")) {
		unlinkat(at.b, path, 0);
		return;
	}
	BOTH("unlink", unlinkat(at.a, path, 0), unlinkat(at.b, path, 0));
}

static void op_mkdir(void)
{
	char path[512];
	struct pair at;

	name_in_pool(path, 'd');
	at = some_base(path);
	note("mkdir %s", path);
	o.tree_changed = true;
	BOTH("mkdir", mkdirat(at.a, path, 0755), mkdirat(at.b, path, 0755));
}

static void op_rmdir(void)
{
	char path[512];
	struct pair at;

	some_path(path, S_IFDIR, 90);
	at = some_base(path);
	note("rmdir %s", path);
	o.tree_changed = true;
	BOTH("rmdir", unlinkat(at.a, path, AT_REMOVEDIR), unlinkat(at.b, path, AT_REMOVEDIR));
}

static void op_rename(void)
{
	mode_t type = chance(60) ? S_IFREG : chance(80) ? S_IFDIR : 0;
	unsigned flags = chance(20) ? 1 /* RENAME_NOREPLACE */ : 0;
	char from[512], to[512];
	struct pair at, to_at;

	some_path(from, type, 90);
	some_path(to, type, 40);
	at = some_base(from);
	to_at = some_base(to);
	note("rename %s -> %s%s", from, to, flags ? ", noreplace" : "");
	o.tree_changed = true;
	BOTH("rename", renameat2(at.a, from, to_at.a, to, flags),
	     renameat2(at.b, from, to_at.b, to, flags));
}

static void op_link(void)
{
	char from[512], to[512];
	struct pair at;

	some_path(from, S_IFREG, 90);
	name_in_pool(to, 'f');
	at = some_base(to);
	note("link %s %s", from, to);
	o.tree_changed = true;
	BOTH("link", linkat(o.root.a, from, at.a, to, 0), linkat(o.root.b, from, at.b, to, 0));
}

static void op_symlink(void)
{
	char target[512], path[512];
	struct pair at;

	some_path(target, 0, 50);
	name_in_pool(path, 'f');
	at = some_base(path);
	note("symlink %s %s", target, path);
	o.tree_changed = true;
	BOTH("symlink", symlinkat(target, at.a, path), symlinkat(target, at.b, path));
}

/* A fifo, a socket, a regular file that nobody opens. */
static void op_mknod(void)
{
	static const mode_t types[] = { S_IFIFO, S_IFSOCK, S_IFREG };
	mode_t type = types[rnd(3)];
	char path[512];
	struct pair at;

	name_in_pool(path, 'f');
	at = some_base(path);
	note("mknod %s %o", path, (unsigned)type);
	o.tree_changed = true;
	BOTH("mknod", mknodat(at.a, path, type | 0644, 0), mknodat(at.b, path, type | 0644, 0));
}

static void remove_tree(int base, const char *path)
{
	int fd = openat(base, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *d = fd == -1 ? NULL : fdopendir(fd);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlinkat(fd, e->d_name, 0))
			remove_tree(fd, e->d_name);
	if (d)
		closedir(d);
	unlinkat(base, path, AT_REMOVEDIR);
}

/* A checkpoint goes, whatever is open in it or on its way. */
static void op_rmtree(void)
{
	const char *path = existing(S_IFDIR);
	struct stat st;

	if (!path)
		return note("-");
	note("rm -r %s", path);
	o.tree_changed = true;
	remove_tree(o.root.a, path);
	remove_tree(o.root.b, path);
	if (!fstatat(o.root.a, path, &st, AT_SYMLINK_NOFOLLOW) || !fstatat(o.root.b, path, &st, AT_SYMLINK_NOFOLLOW))
		fail("rm -r: %s is still there", path);
}

static void op_readlink(void)
{
	char path[512];

	some_path(path, chance(50) ? S_IFLNK : 0, 90);
	note("readlink %s", path);
	BOTH("readlink", readlinkat(o.root.a, path, buf_a, PATH_MAX), readlinkat(o.root.b, path, buf_b, PATH_MAX));
}

static void op_chmod(void)
{
	static const mode_t modes[] = { 0644, 0600, 0755, 0444, 0, 06755, 01777 };
	mode_t mode = modes[rnd(7)];
	char path[512];
	struct pair at;

	some_path(path, 0, 90);
	at = some_base(path);
	note("chmod %s %o", path, mode);
	if (break_now("mode")) {
		if (fchmodat(at.b, path, mode ^ 0100, 0))
				return;
		return;
	}
	BOTH("chmod", fchmodat(at.a, path, mode, 0), fchmodat(at.b, path, mode, 0));
}

static void op_chown(void)
{
	static const uid_t ids[] = { 0, 1000, 65534, (uid_t)-1 };
	uid_t uid = ids[rnd(4)], gid = ids[rnd(4)];
	char path[512];

	some_path(path, 0, 90);
	note("chown %s %d %d", path, (int)uid, (int)gid);
	BOTH("chown", fchownat(o.root.a, path, uid, gid, AT_SYMLINK_NOFOLLOW),
	     fchownat(o.root.b, path, uid, gid, AT_SYMLINK_NOFOLLOW));
}

static void op_utimens(void)
{
	struct timespec t[2];
	char path[512];
	struct pair at;
	struct stat st;

	some_path(path, S_IFREG, 90);
	at = some_base(path);
	some_times(t);
	if (chance(20))
		t[rnd(2)].tv_nsec = chance(50) ? UTIME_NOW : UTIME_OMIT;
	note("utimens %s %ld.%09ld", path, (long)t[1].tv_sec, t[1].tv_nsec);
	if (BOTH("utimens", utimensat(at.a, path, t, 0), utimensat(at.b, path, t, 0)))
		return;
	fstatat(at.b, path, &st, 0);
	if (!is_mapped(st.st_ino) && t[1].tv_nsec != UTIME_OMIT)
		tighten(st.st_ino);
}

static void op_truncate(void)
{
	char path[512], a[PATH_MAX], b[PATH_MAX];
	struct stat st;
	off_t len;

	some_path(path, S_IFREG, 90);
	if (fstatat(o.root.b, path, &st, 0))
		st.st_size = 0;
	len = chance(20) ? 0 : some_offset(st.st_size);
	note("truncate %s %ld", path, len);
	if (!fstatat(o.root.b, path, &st, 0) && S_ISREG(st.st_mode)) {
		new_version(st.st_ino, NULL, !len);
		if (len == st.st_size)
			loosen(st.st_ino);
	}
	snprintf(a, sizeof(a), "/proc/self/fd/%d/%s", o.root.a, path);
	snprintf(b, sizeof(b), "/proc/self/fd/%d/%s", o.root.b, path);
	BOTH("truncate", truncate(a, len), truncate(b, len));
}

static void op_xattr(void)
{
	char path[512], a[PATH_MAX], b[PATH_MAX], name[32];
	bool set = chance(70);
	size_t len = rnd(200);
	int flags = chance(80) ? 0 : chance(50) ? XATTR_CREATE : XATTR_REPLACE;

	some_path(path, 0, 95);
	snprintf(a, sizeof(a), "/proc/self/fd/%d/%s", o.root.a, path);
	snprintf(b, sizeof(b), "/proc/self/fd/%d/%s", o.root.b, path);
	snprintf(name, sizeof(name), "user.k%d", (int)rnd(4));
	note("%s %s %s", set ? "setxattr" : "removexattr", path, name);
	some_data(len);
	if (set)
		BOTH("setxattr", lsetxattr(a, name, buf_b, len, flags),
		     lsetxattr(b, name, buf_b, len, flags));
	else
		BOTH("removexattr", lremovexattr(a, name), lremovexattr(b, name));
}

static void op_keep_dir(void)
{
	int i = rnd(MAX_DIRS);
	char path[512];

	if (dirs[i].b > 0) {
		note("close dir %d", i);
		close(dirs[i].a);
		close(dirs[i].b);
		dirs[i].b = -1;
		return;
	}
	some_path(path, S_IFDIR, 100);
	note("open dir %d %s", i, path);
	dirs[i].a = openat(o.root.a, path, O_RDONLY | O_DIRECTORY);
	dirs[i].b = openat(o.root.b, path, O_RDONLY | O_DIRECTORY);
	if ((dirs[i].a == -1) != (dirs[i].b == -1))
		fail("open of a directory: mount %d, shadow %d", dirs[i].a, dirs[i].b);
}

static void op_fsync_dir(void)
{
	int i = rnd(MAX_DIRS);

	if (dirs[i].b <= 0)
		return note("-");
	unmap_writable();
	note("fsync dir %d", i);
	BOTH("fsync", fsync(dirs[i].a), fsync(dirs[i].b));
}

static void op_nap(void)
{
	note("nap");
	usleep(rnd(5000));
}

/* ---- comparing trees ----------------------------------------------------------------- */

struct walk {
	int a, b;		/* directories */
	const char *name_a;	/* "mount" or "store" */
	bool is_store;
	struct pair_of_inodes {
		ino_t a, b;
	} seen[MAX_KNOWN + MAX_SLOTS];
	int n;
};

static void same_inode(struct walk *w, const char *path, ino_t a, ino_t b)
{
	for (int i = 0; i < w->n; i++)
		if ((w->seen[i].a == a) != (w->seen[i].b == b))
			fail("%s: %s: inode %lu in %s, %lu in shadow, but elsewhere %lu and %lu",
			     w->name_a, path, (unsigned long)a, w->name_a, (unsigned long)b,
			     (unsigned long)w->seen[i].a, (unsigned long)w->seen[i].b);
	if (w->n < MAX_KNOWN + MAX_SLOTS)
		w->seen[w->n++] = (struct pair_of_inodes){ a, b };
}

static void same_mtime(struct walk *w, const char *path, const struct stat *a,
		       const struct stat *b)
{
	bool set = b->st_mtim.tv_sec < SET_TIME_LIMIT;

	if (!S_ISREG(b->st_mode) || is_loose(b->st_ino))
		return;
	if (set ? a->st_mtim.tv_sec != b->st_mtim.tv_sec || a->st_mtim.tv_nsec != b->st_mtim.tv_nsec :
	    a->st_mtim.tv_sec < SET_TIME_LIMIT)
		fail("%s: %s: mtime %ld.%09ld, shadow has %ld.%09ld", w->name_a, path,
		     (long)a->st_mtim.tv_sec, a->st_mtim.tv_nsec, (long)b->st_mtim.tv_sec,
		     b->st_mtim.tv_nsec);
}

static void same_stat(struct walk *w, const char *path, const struct stat *a, const struct stat *b)
{
	if (a->st_mode != b->st_mode)
		fail("%s: %s: mode %o, shadow has %o", w->name_a, path, a->st_mode, b->st_mode);
	if (a->st_uid != b->st_uid || a->st_gid != b->st_gid)
		fail("%s: %s: owner %d:%d, shadow has %d:%d", w->name_a, path, (int)a->st_uid,
		     (int)a->st_gid, (int)b->st_uid, (int)b->st_gid);
	if (a->st_nlink != b->st_nlink)
		fail("%s: %s: %ld links, shadow has %ld", w->name_a, path, (long)a->st_nlink,
		     (long)b->st_nlink);
	if (!S_ISDIR(a->st_mode) && a->st_size != b->st_size)
		fail("%s: %s: size %ld, shadow has %ld", w->name_a, path, (long)a->st_size,
		     (long)b->st_size);
	same_mtime(w, path, a, b);
	same_inode(w, path, a->st_ino, b->st_ino);
}

static int read_whole(int dir, const char *path, off_t off, char *buf)
{
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC), n;

	if (fd == -1)
		fail("%s: cannot open: %s", path, strerror(errno));
	n = pread(fd, buf, MAX_IO, off);
	if (n == -1)
		fail("%s: pread: %s", path, strerror(errno));
	close(fd);
	return n;
}

static void same_contents(struct walk *w, const char *path)
{
	off_t off = 0;
	int n, m;

	do {
		n = read_whole(w->a, path, off, buf_a);
		m = read_whole(w->b, path, off, buf_b);
		if (n != m)
			fail("%s: %s: read %d bytes at %ld, shadow %d", w->name_a, path, n,
			     (long)off, m);
		same_bytes(path, off, n);
		off += n;
	} while (n == MAX_IO);
}

static void same_link(struct walk *w, const char *path)
{
	ssize_t n = readlinkat(w->a, path, buf_a, PATH_MAX), m = readlinkat(w->b, path, buf_b, PATH_MAX);

	if (n != m || memcmp(buf_a, buf_b, n))
		fail("%s: %s: symlink to '%.*s', shadow to '%.*s'", w->name_a, path, (int)n, buf_a,
		     (int)m, buf_b);
}

static int by_string(const void *x, const void *y)
{
	return strcmp(*(char *const *)x, *(char *const *)y);
}

/* The user.* names in a list, sorted; those of cairnfs itself only where allowed. */
static int user_names(struct walk *w, const char *path, char *list, ssize_t n, char *names[64],
		      bool ours_allowed)
{
	int count = 0;

	if (n == -1)
		fail("%s: %s: listxattr: %s", w->name_a, path, strerror(errno));
	for (ssize_t i = 0; i < n; i += strlen(list + i) + 1) {
		if (!strncmp(list + i, "user.cairn.", 11)) {
			if (!ours_allowed)
				fail("%s: %s: listxattr shows %s", w->name_a, path, list + i);
			continue;
		}
		if (!strncmp(list + i, "user.", 5) && count < 64)
			names[count++] = list + i;
	}
	qsort(names, count, sizeof(names[0]), by_string);
	return count;
}

static void same_xattrs(struct walk *w, const char *path)
{
	char a[PATH_MAX + 64], b[PATH_MAX + 64], list_a[4096], list_b[4096], *names_a[64], *names_b[64];
	int n, m;

	snprintf(a, sizeof(a), "/proc/self/fd/%d/%s", w->a, path);
	snprintf(b, sizeof(b), "/proc/self/fd/%d/%s", w->b, path);
	n = user_names(w, path, list_a, llistxattr(a, list_a, sizeof(list_a)), names_a, w->is_store);
	m = user_names(w, path, list_b, llistxattr(b, list_b, sizeof(list_b)), names_b, false);
	if (n != m)
		fail("%s: %s: %d user xattrs, shadow has %d", w->name_a, path, n, m);
	for (int i = 0; i < n; i++) {
		if (strcmp(names_a[i], names_b[i]))
			fail("%s: %s: xattr %s, shadow has %s", w->name_a, path, names_a[i],
			     names_b[i]);
		ssize_t la = lgetxattr(a, names_a[i], buf_a, 4096);
		ssize_t lb = lgetxattr(b, names_a[i], buf_b, 4096);

		if (la != lb || (la > 0 && memcmp(buf_a, buf_b, la)))
			fail("%s: %s: xattr %s differs", w->name_a, path, names_a[i]);
	}
}

static int list_dir(struct walk *w, int root, const char *path, char **names)
{
	int fd = openat(root, *path ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), n = 0;
	struct dirent *e;
	DIR *d;

	if (fd == -1 || !(d = fdopendir(fd)))
		fail("%s: %s: opendir: %s", w->name_a, path, strerror(errno));
	while ((e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (w->is_store && root == w->a && !*path && !strcmp(e->d_name, ".cairn"))
			continue;
		if (n == MAX_KNOWN)
			fail("%s: %s: more than %d entries", w->name_a, path, MAX_KNOWN);
		names[n++] = strdup(e->d_name);
	}
	closedir(d);
	qsort(names, n, sizeof(names[0]), by_string);
	return n;
}

static void same_dir(struct walk *w, const char *path);

static void same_entry(struct walk *w, const char *path)
{
	struct stat a, b;

	if (fstatat(w->a, path, &a, AT_SYMLINK_NOFOLLOW) || fstatat(w->b, path, &b, AT_SYMLINK_NOFOLLOW))
		fail("%s: %s: listed, but stat says %s", w->name_a, path, strerror(errno));
	same_stat(w, path, &a, &b);
	if (!S_ISLNK(b.st_mode))
		same_xattrs(w, path);
	if (S_ISREG(b.st_mode))
		same_contents(w, path);
	else if (S_ISLNK(b.st_mode))
		same_link(w, path);
	else if (S_ISDIR(b.st_mode))
		same_dir(w, path);
}

static void same_dir(struct walk *w, const char *path)
{
	char **a = calloc(2 * MAX_KNOWN, sizeof(char *)), **b = a + MAX_KNOWN;
	int n = list_dir(w, w->a, path, a), m = list_dir(w, w->b, path, b);

	for (int i = 0; i < n || i < m; i++) {
		int cmp = i >= n ? 1 : i >= m ? -1 : strcmp(a[i], b[i]);
		char sub[PATH_MAX];

		if (cmp)
			fail("%s: '%s/%s' %s", w->name_a, path, cmp < 0 ? a[i] : b[i],
			     cmp < 0 ? "is not in the shadow" : "is missing");
		snprintf(sub, sizeof(sub), "%s%s%s", path, *path ? "/" : "", a[i]);
		same_entry(w, sub);
		free(a[i]);
		free(b[i]);
	}
	free(a);
}

static void compare_trees(void)
{
	static struct walk w;
	struct stat a, b;

	w = (struct walk){ .a = o.root.a, .b = o.root.b, .name_a = "mount" };
	same_dir(&w, "");
	for (int i = 0; i < o.fds; i++) {
		if (!slots[i].used || slots[i].stale)
			continue;
		if (fstat(slots[i].fd.a, &a) || fstat(slots[i].fd.b, &b))
			fail("fstat #%d: %s", i, strerror(errno));
		same_stat(&w, "(an open file)", &a, &b);
	}
}

/* mtime is the mount's own, to the nanosecond: compared where A's times are at hand. */
static void same_mtimes_in_store(void)
{
	struct stat a, s;

	o.tree_changed = true;
	scan();
	for (int i = 0; i < nknown; i++) {
		if (known[i].type != S_IFREG)
			continue;
		if (fstatat(o.root.a, known[i].path, &a, AT_SYMLINK_NOFOLLOW) ||
		    fstatat(o.store, known[i].path, &s, AT_SYMLINK_NOFOLLOW))
			fail("%s: %s", known[i].path, strerror(errno));
		if (a.st_mtim.tv_sec != s.st_mtim.tv_sec || a.st_mtim.tv_nsec != s.st_mtim.tv_nsec)
			fail("%s: mtime %ld.%09ld in the mount, %ld.%09ld in the store",
			     known[i].path, (long)a.st_mtim.tv_sec, a.st_mtim.tv_nsec,
			     (long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
	}
}

static void wait_durable(void)
{
	const char *slow = getenv("CAIRN_TEST_SLOW");
	char state[32] = "", path[64];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", o.root.a);
	for (int i = 0; i < 6000 * (slow ? atoi(slow) : 1); i++) {
		n = getxattr(path, "user.cairn.state", state, sizeof(state) - 1);
		if (n == -1)
			fail("user.cairn.state: %s", strerror(errno));
		state[n] = 0;
		if (!strcmp(state, "durable"))
			return;
		usleep(10000);
	}
	fail("it stays %s", state);
}

static void break_store(void)
{
	const char *path = existing(S_IFREG);
	int fd = path ? openat(o.store, path, O_RDWR) : -1;
	char c;

	if (fd == -1 || pread(fd, &c, 1, 0) != 1)
		return;
	c ^= 1;
	if (pwrite(fd, &c, 1, 0) != 1)
		fail("cannot damage the store");
	close(fd);
}

/* Everything closed, everything durable: now the store must be the shadow's equal. */
static void drain(void)
{
	static struct walk w;

	for (int i = 0; i < MAX_MAPS; i++)
		if (maps[i].used)
			unmap(&maps[i]);
	for (int i = 0; i < o.fds; i++)
		if (slots[i].used)
			close_slot(&slots[i]);
	compare_trees();
	if (o.store == -1)
		return;
	if (strcmp(o.name_store, o.name_a))
		wait_durable();
	if (o.breaks && !strcmp(o.breaks, "store"))
		break_store();
	w = (struct walk){ .a = o.store, .b = o.root.b, .name_a = "store", .is_store = true };
	same_dir(&w, "");
	same_mtimes_in_store();
	compare_trees();
}

/* The next run knows nothing of what is not comparable now: give such files a time. */
static void settle(void)
{
	struct timespec t[2];

	o.tree_changed = true;
	scan();
	for (int i = 0; i < nknown; i++) {
		struct stat st;

		if (known[i].type != S_IFREG || fstatat(o.root.b, known[i].path, &st, 0) || !is_loose(st.st_ino))
			continue;
		some_times(t);
		BOTH("utimens", utimensat(o.root.a, known[i].path, t, 0),
		     utimensat(o.root.b, known[i].path, t, 0));
		tighten(st.st_ino);
	}
}

/* ---- the run -------------------------------------------------------------------------- */

#define OP(name, weight) { #name, op_##name, weight }
static struct {
	const char *name;
	void (*fn)(void);
	int weight;
} ops[] = {
	OP(open, 16), OP(close, 12), OP(save, 8), OP(write, 22), OP(read, 10),
	OP(lseek, 4), OP(ftruncate, 4), OP(fallocate, 3), OP(fsync, 2),
	OP(fchmod, 1), OP(futimens, 1), OP(map, 6), OP(unlink, 6), OP(mkdir, 4),
	OP(rmdir, 3), OP(rename, 9), OP(link, 3), OP(symlink, 2), OP(chmod, 3),
	OP(chown, 2), OP(utimens, 3), OP(truncate, 3), OP(xattr, 4),
	OP(keep_dir, 2), OP(fsync_dir, 1), OP(nap, 1), OP(seek_data, 3), OP(copy_range, 3),
	OP(sendfile, 2), OP(dup_close, 3), OP(link_open, 2), OP(fchown, 1), OP(fsetxattr, 2),
	OP(mknod, 2), OP(rmtree, 1), OP(readlink, 1),
};
#define NOPS (sizeof(ops) / sizeof(ops[0]))

static void one_op(void)
{
	int total = 0, pick;

	for (size_t i = 0; i < NOPS; i++)
		total += ops[i].weight;
	pick = rnd(total);
	for (size_t i = 0; i < NOPS; i++) {
		pick -= ops[i].weight;
		if (pick < 0)
			return ops[i].fn();
	}
}

/* "link,map": none of these operations, to find out what a failure needs. */
static void without(const char *list)
{
	for (size_t i = 0; i < NOPS; i++) {
		const char *at = strstr(list, ops[i].name);
		size_t len = strlen(ops[i].name);

		if (at && (at == list || at[-1] == ',') && (!at[len] || at[len] == ','))
			ops[i].weight = 0;
	}
}

static int open_dir(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd == -1) {
		perror(path);
		exit(2);
	}
	return fd;
}

/* "3,17,20-25": of all operations only these, to shrink a failing run. */
static void only_these(const char *list)
{
	o.only = calloc(1, 1 << 20);
	while (*list) {
		char *end;
		long from = strtol(list, &end, 10), to = from;

		if (*end == '-')
			to = strtol(end + 1, &end, 10);
		for (; from >= 0 && from <= to && from < 1 << 20; from++)
			o.only[from] = 1;
		list = *end ? end + 1 : end;
	}
}

static void parse(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *arg = argv[i], *val = argv[i + 1];

		if (!strcmp(arg, "--direct"))
			o.direct = true;
		else if (!strcmp(arg, "--trace"))
			o.trace = true;
		else if (arg[0] != '-')
			*(o.name_a ? &o.name_b : &o.name_a) = arg;
		else if (!val)
			exit((fprintf(stderr, "%s: no value\n", arg), 2));
		else if (!strcmp(arg, "--store"))
			o.name_store = argv[++i];
		else if (!strcmp(arg, "--break"))
			o.breaks = argv[++i];
		else if (!strcmp(arg, "--without"))
			without(argv[++i]);
		else if (!strcmp(arg, "--only"))
			only_these(argv[++i]);
		else {
			long *num = !strcmp(arg, "--ops") ? &o.ops :
				    !strcmp(arg, "--check") ? &o.check_every :
				    !strcmp(arg, "--drain") ? &o.drain_every : NULL;

			if (num)
				*num = atol(val);
			else if (!strcmp(arg, "--seed"))
				o.seed = strtoull(val, NULL, 0);
			else if (!strcmp(arg, "--fds"))
				o.fds = atoi(val) < MAX_SLOTS ? atoi(val) : MAX_SLOTS;
			else
				exit((fprintf(stderr, "%s: unknown\n", arg), 2));
			i++;
		}
	}
	if (!o.name_b || o.fds < 1 || o.check_every < 1 || o.drain_every < 1)
		exit((fprintf(stderr, "oracle A B [options]: see the head of oracle.c\n"), 2));
}

int main(int argc, char **argv)
{
	parse(argc, argv);
	o.root = (struct pair){ open_dir(o.name_a), open_dir(o.name_b) };
	if (o.name_store)
		o.store = open_dir(o.name_store);
	sigaction(SIGBUS, &(struct sigaction){ .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO }, NULL);
	umask(022);
	o.tree_changed = true;
	compare_trees();
	for (o.op = 0; o.op < o.ops; o.op++) {
		/* Each operation has its own draws: leaving some out keeps the others alike. */
		o.rng = o.seed * 0xd6e8feb86659fd93u + o.op * 0x2545f4914f6cdd1du;
		if (!o.only || o.only[o.op])
			one_op();
		if (o.op % o.check_every == o.check_every - 1)
			compare_trees();
		if (o.op % o.drain_every == o.drain_every - 1)
			drain();
	}
	o.op--;
	drain();
	if (o.ops) {
		settle();
		drain();
	}
	printf("ok: seed %lu, %ld operations\n", (unsigned long)o.seed, o.ops);
	return 0;
}

/* SPDX-License-Identifier: MIT
 *
 * A table of named checks. Each runs in its own process, in its own fresh directory
 * below DIR, and prints one line: `ok name`, `skip name: reason` or `FAIL name: why`.
 *
 *	prog DIR [--store STORE] [--only NAME] [--mnt ROOT]
 *
 * DIR lies below the mount. Without --store, DIR is a plain directory and is its own
 * store: so the same table shows what any Linux filesystem answers.
 */
#ifndef CAIRN_CHECK_H
#define CAIRN_CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))
#define KIB 1024L
#define MIB (1024L * 1024)

struct check {
	const char *name;
	void (*fn)(void);
};

static struct {
	const char *name;	/* the check that runs */
	bool plain;		/* DIR is no cairnfs */
	char root[PATH_MAX];	/* the mount's root, or DIR */
	char here[2 * PATH_MAX];	/* this check's directory */
	char there[2 * PATH_MAX];	/* the same in the store */
} env;

static UNUSED void why(const char *verdict, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static UNUSED void why(const char *verdict, const char *fmt, ...)
{
	va_list ap;

	printf("%s %s: ", verdict, env.name);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

/* _exit: a forked helper of a check must not run its parent's atexit handlers. */
#define FAIL(...) do { why("FAIL", __VA_ARGS__); _exit(1); } while (0)
#define SKIP(...) do { why("skip", __VA_ARGS__); _exit(77); } while (0)

#define TRUE(cond) do { \
		if (!(cond)) \
			FAIL("line %d: %s", __LINE__, #cond); \
	} while (0)

/* The call must not answer -1; its value. */
#define OK(call) __extension__({ \
		long ok_ = (long)(call); \
		if (ok_ == -1) \
			FAIL("line %d: %s: %s", __LINE__, #call, strerror(errno)); \
		ok_; })

/* The call must answer -1 and this errno. */
#define ERR(call, want) do { \
		errno = 0; \
		long err_ = (long)(call); \
		int got_ = errno; \
		if (err_ != -1) \
			FAIL("line %d: %s: succeeded, want %s", __LINE__, #call, #want); \
		if (got_ != (want)) \
			FAIL("line %d: %s: %s, want %s", __LINE__, #call, \
			     strerror(got_), #want); \
	} while (0)

#define EQ(a, b) do { \
		long long a_ = (long long)(a), b_ = (long long)(b); \
		if (a_ != b_) \
			FAIL("line %d: %s = %lld, want %lld", __LINE__, #a, a_, b_); \
	} while (0)

/* What every limit of time is multiplied by: more than 1 under sanitizers (tests/run). */
static UNUSED int slow(void)
{
	const char *s = getenv("CAIRN_TEST_SLOW");
	int n = s ? atoi(s) : 1;

	return n > 0 ? n : 1;
}

/* ---- contents: byte i of a file written with tag t is byte_at(t, i) ---------- */

static inline uint64_t word_at(uint64_t tag, uint64_t i)
{
	uint64_t x = (tag + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;

	x ^= x >> 31;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 29;
}

static UNUSED unsigned char byte_at(uint64_t tag, off_t i)
{
	return word_at(tag, i >> 3) >> (i & 7) * 8;
}

static UNUSED void fill(void *buf, size_t len, uint64_t tag, off_t off)
{
	unsigned char *p = buf;
	size_t i = 0;

	for (; i < len && (off + (off_t)i) % 8; i++)
		p[i] = byte_at(tag, off + i);
	for (; i + 8 <= len; i += 8) {
		uint64_t w = word_at(tag, (off + i) >> 3);

		memcpy(p + i, &w, 8);
	}
	for (; i < len; i++)
		p[i] = byte_at(tag, off + i);
}

/* The first byte that differs from what tag has there, or -1. */
static UNUSED off_t differs(const void *buf, size_t len, uint64_t tag, off_t off)
{
	static unsigned char want[64 * KIB];
	const unsigned char *p = buf;
	size_t at = 0;

	while (at < len) {
		size_t n = len - at < sizeof(want) ? len - at : sizeof(want);

		fill(want, n, tag, off + at);
		if (memcmp(want, p + at, n))
			for (size_t i = 0; i < n; i++)
				if (want[i] != p[at + i])
					return off + at + i;
		at += n;
	}
	return -1;
}

static UNUSED void write_all(int fd, const void *buf, size_t len)
{
	const char *p = buf;

	while (len) {
		ssize_t n = OK(write(fd, p, len));

		p += n;
		len -= n;
	}
}

static UNUSED void pwrite_tag(int fd, size_t len, uint64_t tag, off_t off)
{
	char *buf = malloc(len + 1);

	fill(buf, len, tag, off);
	for (size_t at = 0; at < len;)
		at += OK(pwrite(fd, buf + at, len - at, off + at));
	free(buf);
}

static UNUSED void write_tag(int fd, size_t len, uint64_t tag, off_t off)
{
	char *buf = malloc(len + 1);

	fill(buf, len, tag, off);
	write_all(fd, buf, len);
	free(buf);
}

static UNUSED void put(const char *path, size_t len, uint64_t tag)
{
	int fd = OK(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));

	write_tag(fd, len, tag, 0);
	OK(close(fd));
}

static UNUSED void same_fd_range(const char *name, int fd, off_t off, size_t len, uint64_t tag)
{
	char *buf = malloc(MIB);

	while (len) {
		ssize_t n = pread(fd, buf, len < (size_t)MIB ? len : (size_t)MIB, off);
		off_t bad;

		if (n <= 0)
			FAIL("%s: pread at %ld: %s", name, (long)off, n ? strerror(errno) : "end of file");
		bad = differs(buf, n, tag, off);
		if (bad != -1)
			FAIL("%s: byte %ld is not that of version %lu", name, (long)bad,
			     (unsigned long)tag);
		off += n;
		len -= n;
	}
	free(buf);
}

/* The file is exactly len bytes of tag. */
static UNUSED void same(const char *path, size_t len, uint64_t tag)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	if (fd == -1)
		FAIL("%s: %s", path, strerror(errno));
	OK(fstat(fd, &st));
	if ((size_t)st.st_size != len)
		FAIL("%s: size %ld, want %ld", path, (long)st.st_size, (long)len);
	same_fd_range(path, fd, 0, len, tag);
	close(fd);
}

static UNUSED void zeros(const char *path, off_t off, size_t len)
{
	int fd = OK(open(path, O_RDONLY | O_CLOEXEC));
	char *buf = malloc(len);

	EQ(pread(fd, buf, len, off), len);
	for (size_t i = 0; i < len; i++)
		if (buf[i])
			FAIL("%s: byte %ld is not zero", path, (long)(off + i));
	free(buf);
	close(fd);
}

/* ---- the store ------------------------------------------------------------------ */

/* A path in the store; four may be in use at once. */
static UNUSED const char *store(const char *name)
{
	static char ring[4][PATH_MAX * 3];
	static unsigned turn;
	char *path = ring[turn++ % 4];

	snprintf(path, sizeof(ring[0]), "%s/%s", env.there, name);
	return path;
}

static UNUSED const char *state_of(const char *path, char buf[static 32])
{
	ssize_t n = getxattr(path, "user.cairn.state", buf, 31);

	if (n == -1)
		FAIL("%s: user.cairn.state: %s", path, strerror(errno));
	buf[n] = 0;
	return buf;
}

static UNUSED void durable(const char *path)
{
	char state[32];

	if (env.plain)
		return;
	for (int i = 0; i < 2000 * slow(); i++) {
		if (!strcmp(state_of(path, state), "durable"))
			return;
		if (!strcmp(state, "failed"))
			FAIL("%s: failed to persist", path);
		usleep(10000);
	}
	FAIL("%s: still %s after %d s", path, state, 20 * slow());
}

static UNUSED void only_on_cairn(void)
{
	if (env.plain)
		SKIP("a plain directory");
}

static UNUSED bool exists(const char *path)
{
	struct stat st;

	return !lstat(path, &st);
}

static UNUSED struct stat stat_of(const char *path)
{
	struct stat st;

	if (lstat(path, &st))
		FAIL("%s: %s", path, strerror(errno));
	return st;
}

/* ---- processes ------------------------------------------------------------------ */

/* Runs fn(i) in n processes at once; fails when one fails. */
static UNUSED void in_processes(int n, void (*fn)(int))
{
	pid_t pids[64];
	int status;

	fflush(stdout);
	for (int i = 0; i < n; i++) {
		pids[i] = OK(fork());
		if (!pids[i]) {
			fn(i);
			_exit(0);
		}
	}
	for (int i = 0; i < n; i++) {
		OK(waitpid(pids[i], &status, 0));
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			_exit(1);	/* it has said why */
	}
}

static UNUSED void in_process(void (*fn)(int))
{
	in_processes(1, fn);
}

static void check_child(const struct check *c, const char *dir, const char *in_store)
{
	setpgid(0, 0);
	env.name = c->name;
	snprintf(env.here, sizeof(env.here), "%s/%s", dir, c->name);
	snprintf(env.there, sizeof(env.there), "%s/%s", in_store, c->name);
	umask(022);
	OK(mkdir(env.here, 0755));
	OK(chdir(env.here));
	c->fn();
	printf("ok %s\n", c->name);
	fflush(stdout);
	_exit(0);
}

/* 0 passed, 77 skipped, else failed. A check that hangs is killed. */
static int check_run(const struct check *c, const char *dir, const char *in_store)
{
	pid_t pid = fork();
	int status = 0, limit_ms = 60000 * slow();

	if (!pid)
		check_child(c, dir, in_store);
	env.name = c->name;
	for (int ms = 0; waitpid(pid, &status, WNOHANG) == 0; ms += 5) {
		if (ms == limit_ms)
			kill(-pid, SIGKILL);
		if (ms > limit_ms + 5000) {
			why("FAIL", "hangs and cannot be killed");
			return 1;
		}
		usleep(5000);
	}
	if (WIFSIGNALED(status))
		why("FAIL", "killed by signal %d (%s)", WTERMSIG(status),
		    WTERMSIG(status) == SIGKILL ? "took too long" : strsignal(WTERMSIG(status)));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void check_dirs(const char *dir, const char *mnt, const char *root_in_store,
		       char real[PATH_MAX], char in_store[PATH_MAX])
{
	char top[PATH_MAX];

	env.plain = !root_in_store;
	if (!realpath(dir, real) || !realpath(mnt ? mnt : dir, env.root)) {
		perror(dir);
		exit(2);
	}
	if (env.plain) {
		strcpy(in_store, real);
		return;
	}
	if (!realpath(root_in_store, top) || strncmp(real, env.root, strlen(env.root))) {
		fprintf(stderr, "%s: not below %s, or no %s\n", real, env.root, root_in_store);
		exit(2);
	}
	snprintf(in_store, PATH_MAX, "%.2000s%.2000s", top, real + strlen(env.root));
}

static UNUSED int check_main(int argc, char **argv, const struct check *table)
{
	const char *dir = NULL, *root_in_store = NULL, *only = NULL, *mnt = NULL;
	char real[PATH_MAX], in_store[PATH_MAX];
	int n[3] = { 0 };	/* ok, failed, skipped */

	for (int i = 1; i < argc; i++) {
		const char **arg = !strcmp(argv[i], "--store") ? &root_in_store :
				   !strcmp(argv[i], "--only") ? &only :
				   !strcmp(argv[i], "--mnt") ? &mnt : &dir;

		*arg = arg == &dir ? argv[i] : argv[i + 1] ? argv[++i] : NULL;
	}
	if (!dir) {
		fprintf(stderr, "%s DIR [--store STORE] [--mnt ROOT] [--only NAME]\n", argv[0]);
		return 2;
	}
	check_dirs(dir, mnt, root_in_store, real, in_store);
	for (const struct check *c = table; c->name; c++) {
		if (only && strcmp(only, c->name))
			continue;
		fflush(stdout);
		int rc = check_run(c, real, in_store);

		n[rc == 0 ? 0 : rc == 77 ? 2 : 1]++;
	}
	printf("%d ok, %d failed, %d skipped\n", n[0], n[1], n[2]);
	return n[1] || !(n[0] + n[2]);
}

#endif

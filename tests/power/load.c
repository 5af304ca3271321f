/* SPDX-License-Identifier: MIT
 * The workload in the guest. Static, so that it needs nothing of the guest's.
 *
 *	load insmod FILE...			load kernel modules
 *	load killall [USECS]			kill every cairnfs process, after USECS
 *	load run ROOT PROC HISTORY WORKLOAD SEED OPS MODE [kill]
 *
 * `run` makes ROOT/p<PROC> and works in it, one call at a time. A call that changes the tree, or
 * that promises durability, is an operation. Each is two lines of HISTORY:
 *	O <n> <kind> <sync> <a> <b> <mode> <size> <hash>	before it; sync: its answer promises P3
 *	E <n> <errno>						after it
 * and two marks in the block log: "b<proc>.<n>" before it and "e<proc>.<n>" after its success.
 * A file is of kind "file" when the call ends a version (a close, a truncate) and "fsync" while it stays open.
 * The tree after operation n follows from the O lines alone (model.py). MODE is the mount's
 * fsync mode, strict or staged. With kill, all cairnfs processes are killed at a seeded
 * operation while the workload goes on; it ends at the first call that fails after that. */
#include "content.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/dm-ioctl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define BIG (4u << 20)		/* the largest file */

static FILE *hist;
static int dm = -1;		/* device mapper's control device: marks go through it */
static int proc;
static unsigned long ops;	/* operations so far */
static unsigned long limit;	/* ends after this many */
static unsigned long rng;
static unsigned long step;	/* of the workload that is under way */
static bool strict;		/* fsync=strict: an fsync's answer promises P3 */
static bool killing;
static char root[200], cairn[200];
static char *big;

static unsigned long rnd(unsigned long n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return n ? (mix64(rng) >> 11) % n : 0;
}

static void mark(char c, unsigned long n)
{
	struct { struct dm_ioctl h; struct dm_target_msg m; char text[64]; } a = {
		.h = {.version = {4, 0, 0}, .data_size = sizeof(a), .data_start = sizeof(a.h), .name = "logged"}};

	snprintf(a.m.message, sizeof(a.text), "mark %c%d.%lu", c, proc, n);
	if (dm >= 0 && ioctl(dm, DM_TARGET_MSG, &a)) {
		perror("mark");
		_exit(3);
	}
}

static void begin(const char *kind, bool sync, const char *a, const char *b, unsigned mode, size_t size, uint64_t h)
{
	fprintf(hist, "O %lu %s %d %s %s %o %zu %016lx\n", ops, kind, sync, a, *b ? b : "-", mode, size, h);
	fflush(hist);
	mark('b', ops);
}

static void end(int rc)
{
	int e = rc ? errno : 0;
	if (!e)
		mark('e', ops);
	fprintf(hist, "E %lu %d\n", ops, e);
	fflush(hist);
	ops++;
	if (e) {	/* expected once the daemons are killed, a failure of the run before */
		fprintf(stderr, "proc %d op %lu: %s\n", proc, ops - 1, strerror(e));
		fclose(hist);
		_exit(killing ? 0 : 4);
	}
	if (ops >= limit) {
		fclose(hist);
		_exit(0);
	}
}

/* The path of rel in the mount, valid for the next three calls. */
static char *at(const char *rel)
{
	static char s[4][600];
	static int i;
	i = (i + 1) & 3;
	snprintf(s[i], sizeof(s[i]), "%s/%s", root, rel);
	return s[i];
}

#define OP(kind, sync, a, b, mode, size, hash, call) (begin(kind, sync, a, b, mode, size, hash), end(call))

static void op_mkdir(const char *p) { OP("mkdir", 0, p, "", 0755, 0, 0, mkdir(at(p), 0755)); }
static void op_rename(const char *a, const char *b) { OP("rename", 0, a, b, 0, 0, 0, rename(at(a), at(b))); }
static void op_unlink(const char *p) { OP("unlink", 0, p, "", 0, 0, 0, unlink(at(p))); }
static void op_rmdir(const char *p) { OP("rmdir", 0, p, "", 0, 0, 0, rmdir(at(p))); }
static void op_link(const char *a, const char *b) { OP("link", 0, a, b, 0, 0, 0, link(at(a), at(b))); }
static void op_chmod(const char *p, unsigned m) { OP("chmod", 0, p, "", m, 0, 0, chmod(at(p), m)); }
static void op_symlink(const char *t, const char *p)
{
	OP("symlink", 0, p, t, 0777, strlen(t), hash64(HASH_FILE, t, strlen(t)), symlink(t, at(p)));
}
static void op_setx(const char *p, const char *v)
{
	OP("setx", 0, p, "", 0, strlen(v), hash64(HASH_XATTR, v, strlen(v)), setxattr(at(p), "user.t", v, strlen(v), 0));
}

static void op_syncdir(const char *p)
{
	int fd = open(at(p), O_RDONLY | O_DIRECTORY);
	OP("none", strict, p, "", 0, 0, 0, fd < 0 ? -1 : fsync(fd));
	close(fd);
}

/* cairn wait: everything below the path is durable, in either mode. */
static void op_wait(const char *p)
{
	begin("wait", 1, p, "", 0, 0, 0);
	pid_t pid = fork();
	if (!pid) {
		int null = open("/dev/null", O_RDWR);
		dup2(null, 1);
		execl(cairn, cairn, "wait", "-q", at(p), NULL);
		_exit(127);
	}
	int st = 1;
	waitpid(pid, &st, 0);
	errno = EIO;
	end(st ? -1 : 0);
}

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "proc %d %s: %s\n", proc, what, strerror(errno));
	fclose(hist);
	_exit(killing ? 0 : 4);
}

static void put_bytes(int fd, const char *p, size_t n, off_t off)
{
	size_t piece = 1 + rnd(3) * 300000 + rnd(70000);
	while (n) {
		size_t k = n < piece ? n : piece;
		ssize_t r = pwrite(fd, p, k, off);
		must(r > 0, "write");
		p += r, n -= (size_t)r, off += r;
	}
}

enum { SYNC_END = 1, SYNC_MID = 2 };

/* One version of a file, new or over an older one. */
static void put(const char *path, size_t n, int sync)
{
	uint64_t seed = (uint64_t)proc << 56 ^ ops << 20 ^ rnd(1 << 20);
	fill(seed, big, n);
	int fd = open(at(path), O_CREAT | O_TRUNC | O_WRONLY, 0644);
	must(fd >= 0, "open");
	size_t half = sync & SYNC_MID ? rnd(n + 1) : 0;
	if (half) {
		put_bytes(fd, big, half, 0);
		OP("fsync", strict, path, "", 0644, half, hash64(HASH_FILE, big, half), fsync(fd));
	}
	put_bytes(fd, big + half, n - half, (off_t)half);
	if (sync & SYNC_END)
		OP("fsync", strict, path, "", 0644, n, hash64(HASH_FILE, big, n), rnd(2) ? fsync(fd) : fdatasync(fd));
	OP("file", 0, path, "", 0644, n, hash64(HASH_FILE, big, n), close(fd));
}

static size_t shard(void)
{
	switch (rnd(6)) {
	case 0: return 1 + rnd(4096);
	case 1: return 4096 * (1 + rnd(20));
	case 2: return 262144 - 1 + rnd(3);
	case 3: return 262145 + rnd(400000);
	default: return 20000 + rnd(240000);
	}
}

static char *name(const char *fmt, ...)
{
	static char s[8][200];
	static int i;
	va_list ap;
	i = (i + 1) & 7;
	va_start(ap, fmt);
	vsnprintf(s[i], sizeof(s[i]), fmt, ap);
	va_end(ap);
	return s[i];
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* rm -rf, in order of names. */
static void rm_rf(const char *dir)
{
	char *names[512];
	int n = 0;
	DIR *d = opendir(at(dir));
	must(d != NULL, "opendir");
	for (struct dirent *e; n < 512 && (e = readdir(d));)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			names[n++] = strdup(e->d_name);
	closedir(d);
	qsort(names, (size_t)n, sizeof(*names), by_name);
	for (int i = 0; i < n; i++) {
		char sub[300];
		struct stat st;
		snprintf(sub, sizeof(sub), "%s/%s", dir, names[i]);
		must(!lstat(at(sub), &st), "lstat");
		if (S_ISDIR(st.st_mode))
			rm_rf(sub);
		else
			op_unlink(sub);
		free(names[i]);
	}
	op_rmdir(dir);
}

/* Workload a, as DCP does: every file fsynced, .metadata last, a tracker, rotation. */
static void dcp(void)
{
	char d[64];
	snprintf(d, sizeof(d), "dcp-%lu", step);
	op_mkdir(d);
	for (unsigned r = 0, n = 2 + (unsigned)rnd(3); r < n; r++)
		put(name("%s/__%u_0.distcp", d, r), shard(), SYNC_END);
	put(name("%s/.metadata.tmp", d), 300 + rnd(3000), SYNC_END);
	op_rename(name("%s/.metadata.tmp", d), name("%s/.metadata", d));
	if (rnd(2))
		op_syncdir(d);
	put("latest.tmp", 8, rnd(2) ? SYNC_END : 0);
	op_rename("latest.tmp", "latest");
	struct stat st;
	if (step >= 2 && !lstat(at(name("dcp-%lu", step - 2)), &st))
		rm_rf(name("dcp-%lu", step - 2));
}

/* Workload b: torch.save and rename, no fsync. */
static void torch_save(void)
{
	struct stat st;
	put("ckpt.pt.tmp", shard() * 2, 0);
	op_rename("ckpt.pt.tmp", name("ckpt-%lu.pt", step));
	put("last.pt.tmp", shard(), 0);
	op_rename("last.pt.tmp", "last.pt");
	if (step >= 3 && !lstat(at(name("ckpt-%lu.pt", step - 3)), &st))
		op_unlink(name("ckpt-%lu.pt", step - 3));
	if (!rnd(8))
		op_wait(".");
	else if (!rnd(16))
		op_syncdir(".");
}

/* Workload c: a directory is renamed when complete, the tracker is overwritten, old directories
 * are removed. */
static void rotation(void)
{
	struct stat st;
	char t[64], d[64];
	snprintf(t, sizeof(t), "tmp-%lu", step);
	snprintf(d, sizeof(d), "step-%lu", step);
	op_mkdir(t);
	op_mkdir(name("%s/sub", t));
	for (unsigned r = 0, n = 1 + (unsigned)rnd(4); r < n; r++)
		put(name("%s/%srank%u", t, rnd(2) ? "sub/" : "", r), shard(), rnd(6) ? 0 : SYNC_END);
	op_rename(t, d);
	put("tracker", 8 + rnd(8), rnd(4) ? 0 : SYNC_END);
	if (!rnd(3)) {
		if (!lstat(at("best"), &st))
			rm_rf("best");
		op_rename(d, "best");
	}
	if (!rnd(4))
		op_syncdir(".");
	for (unsigned back = 2; back < 4; back++)
		if (step >= back && !lstat(at(name("step-%lu", step - back)), &st))
			rm_rf(name("step-%lu", step - back));
}

/* Workload d: many small files, links, attributes, nested directories. */
static void small(void)
{
	struct stat st;
	char d[64];
	snprintf(d, sizeof(d), "s-%lu", step);
	op_mkdir(d);
	op_mkdir(name("%s/a", d));
	op_mkdir(name("%s/a/b", d));
	unsigned n = 8 + (unsigned)rnd(16);
	for (unsigned i = 0; i < n; i++) {
		const char *p = name("%s/%sf%u", d, rnd(3) ? (rnd(2) ? "a/b/" : "a/") : "", i);
		put(p, rnd(5) ? rnd(9000) : rnd(60000), rnd(15) ? 0 : SYNC_END);
		switch (rnd(12)) {
		case 0: op_chmod(p, 0600 + (unsigned)rnd(8)); break;
		case 1: op_setx(p, name("v%lu", rnd(1000))); break;
		case 2: op_link(p, name("%s/l%u", d, i)); break;
		case 3: op_symlink(name("f%u", i), name("%s/y%u", d, i)); break;
		case 4: op_rename(p, name("%s/a/r%u", d, i)); break;
		case 5: op_unlink(p); break;
		}
	}
	if (!rnd(4))
		op_chmod(name("%s/a", d), 0700);
	if (!rnd(3))
		op_rename(name("%s/a/b", d), name("%s/b", d));
	if (!rnd(5))
		op_syncdir(d);
	if (step >= 2 && !lstat(at(name("s-%lu", step - 2)), &st))
		rm_rf(name("s-%lu", step - 2));
}

/* A file of workload e, and what it must hold. */
struct model_file {
	bool there;
	size_t n;
	char *bytes;
};

/* The begin and end of an operation that leaves the file as the model has it. CALL is made
 * between the two marks. */
#define FILE_OP(f, p, call) \
	OP("file", 0, p, "", 0644, (f)->n, hash64(HASH_FILE, (f)->bytes, (f)->n), call)
#define FSYNC_OP(f, p, call) \
	OP("fsync", strict, p, "", 0644, (f)->n, hash64(HASH_FILE, (f)->bytes, (f)->n), call)

static void new_bytes(struct model_file *f)
{
	f->n = shard();
	fill((uint64_t)proc << 56 ^ ops << 8, f->bytes, f->n);
}

static int open_or_end(const char *p, int flags)
{
	int fd = open(at(p), flags, 0644);

	must(fd >= 0, "open");
	return fd;
}

static int truncated_and_written(struct model_file *f, const char *p)
{
	new_bytes(f);
	int fd = open_or_end(p, O_CREAT | O_TRUNC | O_WRONLY);
	size_t half = rnd(3) ? 0 : rnd(f->n), n = f->n;

	if (half) {
		put_bytes(fd, f->bytes, half, 0);
		f->n = half;
		FSYNC_OP(f, p, fsync(fd));
		f->n = n;
	}
	put_bytes(fd, f->bytes + half, n - half, (off_t)half);
	return fd;
}

/* Parts of it, perhaps beyond the end. */
static int overwritten_in_place(struct model_file *f, const char *p, int flags)
{
	int fd = open_or_end(p, flags);

	for (unsigned k = 0, m = 1 + (unsigned)rnd(3); k < m; k++) {
		size_t pos = rnd(f->n + 1), len = 1 + rnd(30000);

		fill(ops << 8 ^ k, f->bytes + pos, len);
		must(pwrite(fd, f->bytes + pos, len, (off_t)pos) == (ssize_t)len, "pwrite");
		if (pos + len > f->n)
			f->n = pos + len;
		if (!rnd(3))
			FSYNC_OP(f, p, fdatasync(fd));
	}
	return fd;
}

/* Each write is synced by O_DSYNC. */
static int appended(struct model_file *f, const char *p)
{
	int fd = open_or_end(p, O_WRONLY | O_APPEND | O_DSYNC);

	for (unsigned k = 0; k < 2; k++) {
		size_t len = 1 + rnd(9000), pos = f->n;

		fill(ops << 8 ^ 77, f->bytes + pos, len);
		f->n += len;
		FSYNC_OP(f, p, write(fd, f->bytes + pos, len) == (ssize_t)len ? 0 : -1);
	}
	return fd;
}

static void cut_short(struct model_file *f, const char *p)
{
	f->n = rnd(f->n + 1);
	memset(f->bytes + f->n, 0, BIG - f->n);
	FILE_OP(f, p, truncate(at(p), (off_t)f->n));
}

static void replaced_by_rename(struct model_file *f, const char *p)
{
	new_bytes(f);
	int fd = open_or_end("new", O_CREAT | O_EXCL | O_WRONLY);

	put_bytes(fd, f->bytes, f->n, 0);
	if (rnd(2))
		FSYNC_OP(f, "new", fsync(fd));
	FILE_OP(f, "new", close(fd));
	op_rename("new", p);
}

/* Workload e: a few files, overwritten in every way. */
static void in_place(void)
{
	static struct model_file files[6];
	unsigned i = (unsigned)rnd(6);
	struct model_file *f = &files[i];
	char p[40];
	int fd;

	snprintf(p, sizeof(p), "file%u", i);
	if (!f->bytes)
		f->bytes = calloc(1, BIG);
	switch (f->there ? rnd(7) : 0) {
	case 0:
	case 1:
		fd = truncated_and_written(f, p);
		break;
	case 2:
		fd = overwritten_in_place(f, p, O_RDWR);
		break;
	case 3:
		fd = overwritten_in_place(f, p, O_WRONLY);
		break;
	case 4:
		fd = appended(f, p);
		break;
	case 5:
		cut_short(f, p);
		return;
	default:
		replaced_by_rename(f, p);
		return;
	}
	must(f->n <= BIG - 400000, "a file of the model is full");
	f->there = true;
	if (!rnd(3))
		FSYNC_OP(f, p, fsync(fd));
	FILE_OP(f, p, close(fd));
}

static int daemons(pid_t *out)
{
	int n = 0;
	DIR *d = opendir("/proc");
	for (struct dirent *e; (e = readdir(d));) {
		char p[300], comm[32] = "";
		snprintf(p, sizeof(p), "/proc/%s/comm", e->d_name);
		FILE *f = atoi(e->d_name) > 1 ? fopen(p, "r") : NULL;
		if (!f)
			continue;
		if (fgets(comm, sizeof(comm), f) && !strncmp(comm, "cairnfs", 7))
			out[n++] = atoi(e->d_name);
		fclose(f);
	}
	closedir(d);
	return n;
}

static int kill_daemons(void)
{
	pid_t pid[64];
	int n = daemons(pid), all = n;	/* the keeper comes first: it has the lower pid */
	for (int i = 0; i < n; i++)
		kill(pid[i], SIGKILL);
	for (int k = 0; k < 2000 && (n = daemons(pid)); k++) {
		for (int i = 0; i < n; i++)
			kill(pid[i], SIGKILL);
		usleep(2000);
	}
	return all;
}

static void *killer(void *arg)
{
	usleep((useconds_t)(uintptr_t)arg);
	kill_daemons();
	return NULL;
}

static int load_modules(char **files)
{
	for (; *files; files++) {
		int fd = open(*files, O_RDONLY);

		if (fd < 0 || syscall(SYS_finit_module, fd, "", 0))
			perror(*files);
		close(fd);
	}
	return 0;
}

static void kill_soon(void)
{
	pthread_t t;

	pthread_create(&t, NULL, killer, (void *)(uintptr_t)rnd(40000));
}

static void one_step(char w)
{
	static unsigned long steps[5];

	step = steps[w - 'a']++;
	switch (w) {
	case 'a': dcp(); break;
	case 'b': torch_save(); break;
	case 'c': rotation(); break;
	case 'd': small(); break;
	default: in_place(); break;
	}
}

/* Ends by itself, in end(). */
static void run(char **argv)
{
	const char *work = argv[5];

	snprintf(root, sizeof(root), "%s/p%s", argv[2], argv[3]);
	proc = atoi(argv[3]);
	hist = fopen(argv[4], "w");
	if (!hist) {
		perror(argv[4]);
		exit(4);
	}
	rng = mix64(strtoul(argv[6], NULL, 10) * 1000 + (unsigned)proc);
	limit = strtoul(argv[7], NULL, 10);
	strict = !strcmp(argv[8], "strict");
	killing = argv[9];
	snprintf(cairn, sizeof(cairn), "%s", getenv("CAIRN") ? getenv("CAIRN") : "cairn");
	dm = open("/dev/mapper/control", O_RDWR);
	big = malloc(BIG);
	unsigned long kill_at = killing ? limit / 3 + rnd(limit / 2) : 0;
	begin("mkdir", 0, ".", "", 0755, 0, 0);
	end(mkdir(root, 0755));
	for (;;) {
		if (kill_at && ops >= kill_at) {
			kill_at = 0;
			kill_soon();
		}
		one_step(strchr("abcde", *work) ? *work : "abcde"[rnd(5)]);
		if (!strict && !rnd(10))
			op_wait(".");
	}
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "insmod"))
		return load_modules(argv + 2);
	if (argc > 1 && !strcmp(argv[1], "killall")) {
		if (argc > 2)
			usleep((useconds_t)atoi(argv[2]));
		printf("killed %d\n", kill_daemons());
		return 0;
	}
	if (argc >= 9 && !strcmp(argv[1], "run"))
		run(argv);
	fprintf(stderr, "usage: see the head of load.c\n");
	return 2;
}

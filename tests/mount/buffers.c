/* SPDX-License-Identifier: MIT
 *
 * Buffers: staged files on loan to a client, who maps one once, has it filled for every
 * checkpoint, and commits it by link(2).
 */
#include <dirent.h>
#include <sys/mman.h>

#include "check.h"

#define LEN (3 * MIB + 777)

static char *in_dir(const char *name)
{
	static char ring[4][PATH_MAX * 2];
	static unsigned turn;
	char *path = ring[turn++ % 4];

	/* relative: other users may not reach what is above the mount */
	snprintf(path, sizeof(ring[0]), "../../.cairn/buffers/%s", name);
	return path;
}

static char *own_name(size_t len)
{
	static unsigned n;
	char name[100];

	snprintf(name, sizeof(name), "%zu.%s-%d-%u", len, env.name, (int)getpid(), n++);
	return in_dir(name);
}

struct buf {
	int fd;
	char *p, path[PATH_MAX * 2];
};

static struct buf make(size_t len, mode_t mode)
{
	struct buf b;

	strcpy(b.path, own_name(len));
	b.fd = OK(open(b.path, O_RDWR | O_CREAT | O_EXCL, mode));
	b.p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, b.fd, 0);
	if (b.p == MAP_FAILED)
		FAIL("mmap: %s", strerror(errno));
	return b;
}

static const char *loan(int fd)
{
	static char s[32];
	ssize_t n = fgetxattr(fd, "user.cairn.buffer", s, sizeof(s) - 1);

	if (n == -1)
		return strerror(errno);
	s[n] = 0;
	return s;
}

#define LOAN(fd, want) do { \
		const char *is_ = loan(fd); \
		if (strcmp(is_, want)) \
			FAIL("line %d: the buffer is %s, want %s", __LINE__, is_, want); \
	} while (0)

static void wait_free(int fd)
{
	for (int i = 0; i < 4000 * slow() && !strcmp(loan(fd), "lent"); i++)
		usleep(5000);
	LOAN(fd, "free");
}

/* A number of status.json: the first behind "key". */
static unsigned long long status(const char *key)
{
	char path[PATH_MAX * 2], text[16384], quoted[64];
	int fd;
	ssize_t n;

	snprintf(path, sizeof(path), "%s/.cairn/status.json", env.root);
	fd = OK(open(path, O_RDONLY));
	n = OK(read(fd, text, sizeof(text) - 1));
	OK(close(fd));
	text[n] = 0;
	snprintf(quoted, sizeof(quoted), "\"%s\": ", key);
	char *at = strstr(text, quoted);
	if (!at)
		FAIL("status.json has no %s", key);
	return strtoull(at + strlen(quoted), NULL, 10);
}

/* The order stands still at a file that is closed and still mapped. */
static char *hold(void)
{
	int fd = OK(open("held", O_RDWR | O_CREAT | O_TRUNC, 0644));
	char *p;

	OK(ftruncate(fd, 4096));
	p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		FAIL("mmap: %s", strerror(errno));
	p[0] = 1;
	OK(close(fd));
	return p;
}

static void let_go(char *p)
{
	OK(munmap(p, 4096));
}

static void step(struct buf *b, const char *name, size_t len, uint64_t tag)
{
	fill(b->p, len, tag, 0);
	OK(ftruncate(b->fd, len));
	OK(link(b->path, name));
}

/* ---- one client ------------------------------------------------------------------ */

static void life(void)
{
	struct buf b = make(LEN, 0640);
	struct stat st;
	char name[32], dev[32];

	OK(fstat(b.fd, &st));
	EQ(st.st_size, LEN);
	EQ(st.st_mode, S_IFREG | 0640);
	EQ(st.st_nlink, 1);
	LOAN(b.fd, "free");
	EQ(b.p[0] | b.p[LEN / 2] | b.p[LEN - 1], 0);
	OK(fsetxattr(b.fd, "user.epoch", "7", 1, 0));
	OK(fsetxattr(b.fd, "user.cairn.device", "cuda:3", 6, 0));
	for (int k = 0; k < 6; k++) {		/* the same pages each time, and other sizes */
		size_t len = k == 3 ? 100 : k == 4 ? 0 : LEN - (size_t)k * 5000;

		snprintf(name, sizeof(name), "f%d", k);
		step(&b, name, len, 10 + (uint64_t)k);
		st = stat_of(name);
		EQ(st.st_size, len);
		EQ(st.st_mode, S_IFREG | 0640);
		EQ(st.st_nlink, 1);
		TRUE(time(NULL) - st.st_mtime < 5);
		wait_free(b.fd);
		same(name, len, 10 + (uint64_t)k);
		same(store(name), len, 10 + (uint64_t)k);
		EQ(differs(b.p, len, 10 + (uint64_t)k, 0), -1);
		EQ(getxattr(store(name), "user.epoch", dev, sizeof(dev)), 1);
		EQ(getxattr(store(name), "user.cairn.device", dev, sizeof(dev)), 6);
		EQ(getxattr(name, "user.cairn.device", dev, sizeof(dev)), 6);
		EQ(listxattr(name, NULL, 0), sizeof("user.epoch"));
	}
	for (int k = 0; k < 6; k++) {		/* what was durable stays what it was */
		snprintf(name, sizeof(name), "f%d", k);
		same(name, k == 3 ? 100 : k == 4 ? 0 : LEN - (size_t)k * 5000, 10 + (uint64_t)k);
	}
	OK(fchmod(b.fd, 0604));
	step(&b, "g", LEN, 20);
	EQ(stat_of("g").st_mode, S_IFREG | 0604);
	OK(fsync(b.fd));			/* what was committed is durable */
	same(store("g"), LEN, 20);
	EQ(stat_of(store("g")).st_mode, S_IFREG | 0604);
	wait_free(b.fd);
}

static void names(void)
{
	static const char *const bad[] = {"abc", "0.x", "12", "12.", ".x", "-1.x", "1x.y", "99999999999999999999.x", " 1.x"};
	struct buf b;
	char dir[PATH_MAX * 2];
	struct dirent *e;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ERR(open(in_dir(bad[i]), O_RDWR | O_CREAT | O_EXCL, 0600), EINVAL);
	ERR(open(in_dir("100.x"), O_RDWR), ENOENT);
	b = make(LEN, 0600);
	ERR(open(b.path, O_RDWR | O_CREAT | O_EXCL, 0600), EEXIST);
	snprintf(dir, sizeof(dir), "%s/.cairn/buffers", env.root);
	EQ(stat_of(dir).st_mode, S_IFDIR | 01777);
	DIR *d = opendir(dir);
	TRUE(d);
	while ((e = readdir(d)))
		if (e->d_name[0] != '.')
			FAIL("%s is listed", e->d_name);
	closedir(d);
	ERR(unlink(b.path), EPERM);
	ERR(rename(b.path, "x"), EPERM);
	ERR(mkdir(in_dir("d"), 0755), EPERM);
	ERR(link(b.path, in_dir("100.y")), EPERM);
	ERR(link(b.path, "none/x"), ENOENT);
	LOAN(b.fd, "free");
	ERR(fallocate(b.fd, 0, 0, LEN), EOPNOTSUPP);
	EQ(lseek(b.fd, 0, SEEK_END), LEN);
	int again = OK(open(b.path, O_RDONLY));
	LOAN(again, "free");
	OK(close(b.fd));
	LOAN(again, "free");
	OK(link(b.path, "x"));			/* the last close ends it */
	OK(close(again));
	TRUE(!exists(b.path));			/* at once: its name may be given again */
	int other = OK(open(b.path, O_RDWR | O_CREAT | O_EXCL, 0600));
	OK(close(other));
	ERR(link(b.path, "y"), ENOENT);
	durable("x");
}

static void busy(void)
{
	struct buf b = make(LEN, 0600);
	char *h;

	put("there", 100, 1);
	fill(b.p, LEN, 2, 0);
	ERR(link(b.path, "there"), EEXIST);
	LOAN(b.fd, "free");
	same("there", 100, 1);
	h = hold();
	OK(link(b.path, "a"));
	LOAN(b.fd, "lent");
	EQ(status("lent_bytes"), LEN);
	ERR(link(b.path, "b"), EBUSY);
	TRUE(!exists("b"));
	OK(ftruncate(b.fd, 1000));		/* the next one's */
	EQ(stat_of("a").st_size, LEN);
	let_go(h);
	wait_free(b.fd);
	OK(link(b.path, "b"));
	same("a", LEN, 2);
	same("b", 1000, 2);
	durable("b");
	same(store("b"), 1000, 2);
}

static void plain_calls(void)
{
	struct buf b = make(LEN, 0600);
	char c;

	pwrite_tag(b.fd, LEN, 3, 0);
	same_fd_range("buffer", b.fd, 0, LEN, 3);
	EQ(differs(b.p, LEN, 3, 0), -1);
	OK(link(b.path, "a"));
	wait_free(b.fd);
	EQ(pread(b.fd, &c, 1, 5), 1);
	OK(close(b.fd));
	same("a", LEN, 3);
	same(store("a"), LEN, 3);
}

static void grows(void)
{
	struct buf b = make(LEN, 0600);
	char *more;

	fill(b.p, LEN, 4, 0);
	OK(ftruncate(b.fd, 3 * LEN));
	EQ(differs(b.p, LEN, 4, 0), -1);
	TRUE(stat_of(b.path).st_blocks * 512 >= 3 * LEN);
	EQ(stat_of(b.path).st_size, 3 * LEN);
	more = mmap(NULL, 3 * LEN, PROT_READ | PROT_WRITE, MAP_SHARED, b.fd, 0);
	TRUE(more != MAP_FAILED);
	fill(more, 3 * LEN, 5, 0);
	EQ(differs(b.p, LEN, 5, 0), -1);	/* one memory */
	OK(link(b.path, "a"));
	OK(ftruncate(b.fd, 10));
	wait_free(b.fd);
	same("a", 3 * LEN, 5);
	same(store("a"), 3 * LEN, 5);
}

/* ---- readers --------------------------------------------------------------------- */

static void kept(void)
{
	struct buf b = make(LEN, 0600);
	char *h = hold(), c;
	int fd;

	step(&b, "a", LEN - 5000, 1);
	LOAN(b.fd, "lent");
	fd = OK(open("a", O_RDONLY));
	EQ(stat_of("a").st_size, LEN - 5000);
	same_fd_range("a", fd, 0, LEN - 5000, 1);
	EQ(pread(fd, &c, 1, LEN - 5000), 0);	/* it ends there, though the buffer was longer */
	LOAN(b.fd, "kept");
	ERR(link(b.path, "b"), EBUSY);
	ERR(ftruncate(b.fd, 2 * LEN), EBUSY);
	OK(close(fd));
	let_go(h);
	durable("a");
	LOAN(b.fd, "kept");
	same("a", LEN - 5000, 1);
	same(store("a"), LEN - 5000, 1);
	OK(close(b.fd));
	same("a", LEN - 5000, 1);
	OK(munmap(b.p, LEN));			/* it may write there, says the kernel */
	pwrite_tag(fd = OK(open("a", O_RDWR)), 100, 9, 0);	/* a file like any other */
	OK(close(fd));
	durable("a");
	fd = OK(open(store("a"), O_RDONLY));
	same_fd_range("a", fd, 0, 100, 9);
	same_fd_range("a", fd, 100, LEN - 5100, 1);
	OK(close(fd));
}

static void readers_after(void)
{
	struct buf b = make(LEN, 0600);
	char lane[32] = "";

	step(&b, "a", LEN, 1);
	wait_free(b.fd);
	int fd = OK(open("a", O_RDONLY));
	OK(getxattr("a", "user.cairn.lane", lane, sizeof(lane) - 1));
	TRUE(!strcmp(lane, "read"));
	memset(b.p, 0xee, LEN);
	same_fd_range("a", fd, 0, LEN, 1);
	LOAN(b.fd, "free");
	OK(close(fd));
}

/* A reader of the old version, a new one renamed over it: what the library does at EEXIST. */
static void renamed_over(void)
{
	struct buf b = make(LEN, 0600);

	put("a", LEN / 2, 1);
	int fd = OK(open("a", O_RDONLY));
	for (uint64_t k = 2; k < 8; k++) {
		ERR(link(b.path, "a"), EEXIST);
		step(&b, "a.tmp", LEN - k, k);
		OK(rename("a.tmp", "a"));
		EQ(stat_of("a").st_size, LEN - (off_t)k);
		wait_free(b.fd);
		same("a", LEN - k, k);
		durable("a"); /* the rename is a change of its own */
		same(store("a"), LEN - k, k);
		same_fd_range("a", fd, 0, LEN / 2, 1);
	}
	TRUE(!exists(store("a.tmp")));
	OK(close(fd));
}

static void unlinked(void)
{
	struct buf b = make(LEN, 0600);
	char *h = hold();

	step(&b, "a", LEN, 1);
	OK(unlink("a"));
	let_go(h);
	wait_free(b.fd);
	TRUE(!exists("a") && !exists(store("a")));
	h = hold();
	step(&b, "b", LEN, 2);			/* with one behind it that stays */
	OK(rename("b", "c"));
	OK(mkdir("d", 0755));
	OK(rename("c", "d/c"));
	let_go(h);
	wait_free(b.fd);
	memset(b.p, 0, LEN);
	same("d/c", LEN, 2);
	durable("d/c");
	same(store("d/c"), LEN, 2);
}

/* Whoever writes the file while it is lent must not reach the client's memory. */
static void written_in_place(void)
{
	static const int how[] = {O_RDWR, O_RDWR | O_TRUNC, 0};

	for (int i = 0; i < 3; i++) {
		struct buf b = make(LEN, 0600);
		char *h = hold(), name[8];

		snprintf(name, sizeof(name), "a%d", i);
		step(&b, name, LEN - 3000, 1);
		if (how[i]) {
			int fd = OK(open(name, how[i]));
			pwrite_tag(fd, 1000, 7, 0);
			OK(close(fd));
		} else {
			OK(truncate(name, 50000));
		}
		EQ(differs(b.p, LEN - 3000, 1, 0), -1);
		TRUE(strcmp(loan(b.fd), "kept"));
		let_go(h);
		wait_free(b.fd);
		memset(b.p, 0x55, LEN);
		durable(name);
		int fd = OK(open(store(name), O_RDONLY));
		EQ(lseek(fd, 0, SEEK_END), i == 0 ? LEN - 3000 : i == 1 ? 1000 : 50000);
		if (i < 2)
			same_fd_range(name, fd, 0, 1000, 7);
		else
			same_fd_range(name, fd, 0, 50000, 1);
		if (i == 0)
			same_fd_range(name, fd, 1000, LEN - 4000, 1);
		OK(close(fd));
		if (i == 1)
			same(name, 1000, 7);
		OK(close(b.fd));
	}
}

/* A reader has it, and then writers come: he keeps his version, the client its memory. */
static void read_and_written(void)
{
	struct buf b = make(LEN, 0600);
	char *h = hold();

	step(&b, "a", LEN - 3000, 1);
	int r = OK(open("a", O_RDONLY));
	LOAN(b.fd, "kept");
	int w = OK(open("a", O_RDWR));
	pwrite_tag(w, 1000, 7, 0);
	OK(close(w));
	EQ(differs(b.p, LEN - 3000, 1, 0), -1);
	same_fd_range("a", r, 0, LEN - 3000, 1);
	put("a", 5000, 8);
	same_fd_range("a", r, 0, LEN - 3000, 1);
	same("a", 5000, 8);
	let_go(h);
	durable("a");
	same(store("a"), 5000, 8);
	same_fd_range("a", r, 0, LEN - 3000, 1);
	OK(close(r));
}

/* What is done to names and attributes while it is lent. */
static void linked(void)
{
	struct buf b = make(LEN, 0644);
	char *h = hold(), v[8];

	step(&b, "a", LEN, 1);
	OK(link("a", "b"));
	EQ(stat_of("a").st_nlink, 2);
	OK(unlink("a"));
	OK(rename("b", "c"));
	OK(chmod("c", 0600));
	OK(setxattr("c", "user.cairn.device", "cuda:5", 6, 0));
	LOAN(b.fd, "lent");
	let_go(h);
	wait_free(b.fd);
	memset(b.p, 0, LEN);
	same("c", LEN, 1);
	durable("c");
	same(store("c"), LEN, 1);
	EQ(stat_of(store("c")).st_mode, S_IFREG | 0600);
	EQ(getxattr(store("c"), "user.cairn.device", v, sizeof(v)), 6);
	TRUE(!exists(store("a")) && !exists(store("b")));
}

/* ---- clients that go ------------------------------------------------------------- */

static void dies(int lent)
{
	struct buf b = make(LEN, 0600);

	if (lent)
		step(&b, "left", LEN - 9000, 6);
	else
		fill(b.p, LEN, 6, 0);
	kill(getpid(), SIGKILL);
}

static void killed(void)
{
	int ws;

	for (int lent = 0; lent < 2; lent++) {
		char *h = hold();
		pid_t pid = OK(fork());
		if (!pid)
			dies(lent);
		OK(waitpid(pid, &ws, 0));
		TRUE(WIFSIGNALED(ws));
		for (int i = 0; i < 400 * slow() && status("count"); i++)
			usleep(10000);
		EQ(status("count"), 0);
		EQ(status("lent_bytes"), 0);
		if (lent)
			same("left", LEN - 9000, 6);
		let_go(h);
	}
	durable("left");
	same("left", LEN - 9000, 6);
	same(store("left"), LEN - 9000, 6);
}

static void shared(void)
{
	struct buf b = make(LEN, 0600);
	int pipes[2], ws;
	char c;

	OK(pipe(pipes));
	pid_t pid = OK(fork());
	if (!pid) {		/* a worker of the client */
		fill(b.p, LEN, 3, 0);
		OK(close(pipes[0]));
		OK(write(pipes[1], "x", 1));
		pause();
	}
	OK(close(pipes[1]));
	EQ(read(pipes[0], &c, 1), 1);
	OK(link(b.path, "a"));
	wait_free(b.fd);
	same("a", LEN, 3);
	OK(close(b.fd));
	usleep(50000);
	EQ(status("count"), 1);
	TRUE(exists(b.path));
	kill(pid, SIGKILL);
	OK(waitpid(pid, &ws, 0));
	for (int i = 0; i < 400 * slow() && status("count"); i++)
		usleep(10000);
	EQ(status("count"), 0);
}

/* ---- who may, and how much ------------------------------------------------------- */

static struct buf roots;

static void as_another(int i)
{
	(void)i;
	OK(setgid(12345));
	OK(setuid(12345));
	ERR(open(roots.path, O_RDONLY), EACCES);
	ERR(open(roots.path, O_RDWR), EACCES);
	errno = 0;
	TRUE(link(roots.path, "public/stolen") == -1 && (errno == EPERM || errno == EACCES));
	struct buf b = make(LEN, 0600);
	fill(b.p, LEN, 8, 0);
	EQ(stat_of(b.path).st_uid, 12345);
	ERR(link(b.path, "private/x"), EACCES);
	LOAN(b.fd, "free");
	OK(link(b.path, "public/mine"));
	EQ(stat_of("public/mine").st_uid, 12345);
	wait_free(b.fd);
}

static void owners(void)
{
	if (geteuid())
		SKIP("needs root");
	umask(0);
	OK(mkdir("public", 0777));
	OK(mkdir("private", 0700));
	roots = make(LEN, 0666);	/* may be read and written by all, but not made a file of */
	OK(fchmod(roots.fd, 0600));
	fill(roots.p, LEN, 1, 0);
	in_process(as_another);
	TRUE(!exists("public/stolen"));
	LOAN(roots.fd, "free");
	same("public/mine", LEN, 8);
	EQ(stat_of(store("public/mine")).st_uid, 12345);
}

static void budget(void)
{
	unsigned long long all = status("budget_bytes"), used = status("used_bytes");
	char name[100];

	snprintf(name, sizeof(name), "%llu.too-large", all);
	ERR(open(in_dir(name), O_RDWR | O_CREAT | O_EXCL, 0600), ENOSPC);
	snprintf(name, sizeof(name), "%llu.fits", all / 2);
	int fd = OK(open(in_dir(name), O_RDWR | O_CREAT | O_EXCL, 0600));
	EQ(status("count"), 1);
	TRUE(status("used_bytes") >= all / 2);
	snprintf(name, sizeof(name), "%llu.too-much", all / 2);
	ERR(open(in_dir(name), O_RDWR | O_CREAT | O_EXCL, 0600), ENOSPC);
	ERR(ftruncate(fd, (off_t)all), ENOSPC);
	LOAN(fd, "free");
	put("other", LEN, 1);			/* others find space */
	same("other", LEN, 1);
	OK(close(fd));
	for (int i = 0; i < 400 * slow() && status("count"); i++)
		usleep(10000);
	EQ(status("count"), 0);
	durable("other");
	TRUE(status("used_bytes") <= used + 2 * LEN);
}

int main(int argc, char **argv)
{
#define C(name) { #name, name }
	static const struct check table[] = {
		C(life), C(names), C(busy), C(plain_calls), C(grows), C(kept), C(readers_after),
		C(renamed_over), C(unlinked), C(written_in_place), C(read_and_written), C(linked),
		C(killed), C(shared), C(owners), C(budget), { NULL, NULL },
	};

	return check_main(argc, argv, table);
}

/* SPDX-License-Identifier: MIT
 *
 * What checkpoint writers do with names: create, look up, rename, link, unlink, list.
 */
#include <dirent.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include "check.h"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#define RENAME_EXCHANGE 2
#endif

static void create_lookup(void)
{
	struct stat st, by_name;
	int fd = OK(open("a", O_WRONLY | O_CREAT, 0666));

	st = stat_of("a");
	EQ(st.st_size, 0);
	EQ(st.st_mode, S_IFREG | 0644);
	EQ(st.st_nlink, 1);
	EQ(st.st_uid, geteuid());
	EQ(st.st_gid, getegid());
	write_tag(fd, 5000, 1, 0);
	OK(fstat(fd, &st));
	EQ(st.st_size, 5000);
	by_name = stat_of("a");		/* also while it is open */
	EQ(by_name.st_size, 5000);
	EQ(by_name.st_ino, st.st_ino);
	OK(close(fd));
	same("a", 5000, 1);
	EQ(stat_of("a").st_ino, st.st_ino);
	ERR(open("b", O_RDONLY), ENOENT);
	ERR(open("none/b", O_CREAT | O_WRONLY, 0600), ENOENT);
	durable("a");
	same(store("a"), 5000, 1);
	EQ(stat_of(store("a")).st_mode, S_IFREG | 0644);
}

static void race_excl(int i)
{
	char mark[32];
	int fd;

	for (int round = 0; round < 20; round++) {
		snprintf(mark, sizeof(mark), "lock%d", round);
		fd = open(mark, O_CREAT | O_EXCL | O_WRONLY, 0600);
		if (fd == -1) {
			TRUE(errno == EEXIST);
			continue;
		}
		close(fd);
		snprintf(mark, sizeof(mark), "won%d.%d", round, i);
		OK(close(OK(creat(mark, 0600))));
	}
}

static void excl(void)
{
	char name[32];

	OK(close(OK(open("a", O_CREAT | O_EXCL | O_WRONLY, 0600))));
	ERR(open("a", O_CREAT | O_EXCL | O_WRONLY, 0600), EEXIST);
	OK(symlink("nowhere", "s"));
	ERR(open("s", O_CREAT | O_EXCL | O_WRONLY, 0600), EEXIST);
	in_processes(8, race_excl);
	for (int round = 0; round < 20; round++) {
		int winners = 0;

		for (int i = 0; i < 8; i++) {
			snprintf(name, sizeof(name), "won%d.%d", round, i);
			winners += exists(name);
		}
		EQ(winners, 1);
	}
}

static void wrong_types(void)
{
	put("f", 10, 1);
	OK(mkdir("d", 0755));
	OK(symlink("f", "s"));
	ERR(open("f/x", O_RDONLY), ENOTDIR);
	ERR(open("d", O_WRONLY), EISDIR);
	ERR(open("d", O_RDWR), EISDIR);
	ERR(open("f", O_RDONLY | O_DIRECTORY), ENOTDIR);
	ERR(open("s", O_RDONLY | O_NOFOLLOW), ELOOP);
	ERR(unlink("d"), EISDIR);
	ERR(rmdir("f"), ENOTDIR);
	ERR(readlink("f", (char[8]){ 0 }, 8), EINVAL);
	ERR(truncate("d", 0), EISDIR);
	same("s", 10, 1);
}

static void rename_replace(void)
{
	ino_t ino;

	put("a", 3000, 1);
	put("b", 9000, 2);
	ino = stat_of("a").st_ino;
	OK(rename("a", "b"));
	same("b", 3000, 1);
	EQ(stat_of("b").st_ino, ino);
	ERR(access("a", F_OK), ENOENT);
	durable("b");
	durable(".");
	same(store("b"), 3000, 1);
	TRUE(!exists(store("a")));
	put("c", 70, 3);		/* over a durable one */
	OK(rename("c", "b"));
	durable(".");
	same("b", 70, 3);
	same(store("b"), 70, 3);
	ERR(rename("c", "b"), ENOENT);
}

static void rename_chain(void)
{
	for (int i = 0; i < 40; i++) {
		put("x.tmp", 1000 + i, i);
		OK(rename("x.tmp", "x"));
	}
	same("x", 1039, 39);
	put("p", 5, 5);
	OK(rename("p", "q"));
	OK(rename("q", "r"));
	OK(rename("r", "p"));
	durable(".");
	same(store("x"), 1039, 39);
	same(store("p"), 5, 5);
	TRUE(!exists(store("x.tmp")) && !exists(store("q")) && !exists(store("r")));
}

static void rename_directory(void)
{
	OK(mkdir("tmp", 0755));
	OK(mkdir("tmp/sub", 0750));
	put("tmp/a", 100 * KIB, 1);
	put("tmp/sub/b", 5, 2);
	OK(rename("tmp", "final"));
	ERR(access("tmp", F_OK), ENOENT);
	same("final/a", 100 * KIB, 1);
	same("final/sub/b", 5, 2);
	put("final/sub/c", 6, 3);
	durable(".");
	same(store("final/a"), 100 * KIB, 1);
	same(store("final/sub/c"), 6, 3);
	TRUE(!exists(store("tmp")));
	OK(rename("final", "again"));		/* a durable one */
	OK(mkdir("empty", 0755));
	OK(rename("again", "empty"));		/* replaces an empty directory */
	same("empty/sub/b", 5, 2);
	durable(".");
	same(store("empty/sub/b"), 5, 2);
	TRUE(!exists(store("final")) && !exists(store("again")));
}

static void rename_errors(void)
{
	int err;

	OK(mkdir("d", 0755));
	OK(mkdir("d/sub", 0755));
	OK(mkdir("full", 0755));
	put("full/f", 1, 1);
	put("f", 2, 2);
	err = rename("d", "full") ? errno : 0;
	TRUE(err == ENOTEMPTY || err == EEXIST);
	ERR(rename("d", "f"), ENOTDIR);
	ERR(rename("f", "d"), EISDIR);
	ERR(rename("d", "d/sub/x"), EINVAL);
	ERR(rename("none", "x"), ENOENT);
	ERR(rename("f", "none/x"), ENOENT);
	OK(rename("f", "f"));
	same("f", 2, 2);
	same("full/f", 1, 1);
}

static void rename_open(void)
{
	int fd = OK(open("a.tmp", O_RDWR | O_CREAT, 0644)), rd;

	write_tag(fd, 10000, 1, 0);
	rd = OK(open("a.tmp", O_RDONLY));
	OK(rename("a.tmp", "a"));
	pwrite_tag(fd, 10000, 1, 10000);
	OK(fsync(fd));
	pwrite_tag(fd, 10000, 1, 20000);
	same_fd_range("reader", rd, 0, 30000, 1);
	OK(rename("a", "b"));
	OK(close(fd));
	OK(close(rd));
	same("b", 30000, 1);
	ERR(access("a.tmp", F_OK), ENOENT);
	ERR(access("a", F_OK), ENOENT);
	durable(".");
	same(store("b"), 30000, 1);
	TRUE(!exists(store("a")) && !exists(store("a.tmp")));
}

static void rename_dir_of_open(void)
{
	int fd, dir;

	OK(mkdir("d.tmp", 0755));
	dir = OK(open("d.tmp", O_RDONLY | O_DIRECTORY));
	fd = OK(open("d.tmp/f", O_WRONLY | O_CREAT, 0644));
	write_tag(fd, 4096, 3, 0);
	OK(rename("d.tmp", "d"));
	write_tag(fd, 4096, 3, 4096);
	OK(close(OK(openat(dir, "late", O_CREAT | O_WRONLY, 0600))));
	OK(close(fd));
	OK(close(dir));
	same("d/f", 8192, 3);
	TRUE(exists("d/late"));
	durable(".");
	same(store("d/f"), 8192, 3);
	TRUE(exists(store("d/late")) && !exists(store("d.tmp")));
}

/* Over a file that has a writer and a reader: both go on with what they have. */
static void rename_over_open(void)
{
	int fd, rd;

	put("b", 5000, 1);
	fd = OK(open("b", O_RDWR));
	rd = OK(open("b", O_RDONLY));
	put("a", 100, 2);
	OK(rename("a", "b"));
	same("b", 100, 2);
	same_fd_range("old reader", rd, 0, 5000, 1);
	pwrite_tag(fd, 5000, 1, 5000);
	same_fd_range("old writer", fd, 0, 10000, 1);
	OK(close(fd));
	OK(close(rd));
	same("b", 100, 2);
	durable(".");
	same(store("b"), 100, 2);
}

static void lock_conflicts(int unused)
{
	struct flock lk = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = OK(open("b", O_RDWR));

	(void)unused;
	ERR(fcntl(fd, F_OFD_SETLK, &lk), EAGAIN);
}

static void lock_is_free(int unused)
{
	struct flock lk = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = OK(open("b", O_RDWR));

	(void)unused;
	OK(fcntl(fd, F_OFD_SETLK, &lk));
}

static void rename_locked(void)
{
	struct flock lk = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));

	OK(fcntl(fd, F_OFD_SETLK, &lk));
	write_tag(fd, 300, 1, 0);
	OK(rename("a", "b"));
	in_process(lock_conflicts);
	EQ(stat_of("b").st_ino, ({ struct stat st; OK(fstat(fd, &st)); st.st_ino; }));
	OK(close(fd));
	in_process(lock_is_free);
	same("b", 300, 1);
}

static void rename_noreplace(void)
{
	put("a", 10, 1);
	put("b", 20, 2);
	ERR(renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_NOREPLACE), EEXIST);
	same("b", 20, 2);
	OK(renameat2(AT_FDCWD, "a", AT_FDCWD, "c", RENAME_NOREPLACE));
	same("c", 10, 1);
	durable(".");
	ERR(renameat2(AT_FDCWD, "c", AT_FDCWD, "b", RENAME_NOREPLACE), EEXIST);
	same(store("c"), 10, 1);
	same(store("b"), 20, 2);
	TRUE(!exists(store("a")));
}

/* Not asked for by any writer: it works, or says EINVAL and changes nothing. */
static void rename_exchange(void)
{
	int rc;

	put("a", 10, 1);
	put("b", 20, 2);
	rc = renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_EXCHANGE);
	TRUE(rc == 0 || errno == EINVAL);
	same("a", rc ? 10 : 20, rc ? 1 : 2);
	same("b", rc ? 20 : 10, rc ? 2 : 1);
	durable(".");
	same(store("a"), rc ? 10 : 20, rc ? 1 : 2);
}

static void rename_no_exdev(void)
{
	const char *dirs[] = { ".", "d1", "d1/d2", "d1/d2/d3", "e1" };
	int fd;

	for (int i = 1; i < 5; i++)
		OK(mkdir(dirs[i], 0755));
	durable(".");
	OK(mkdir("e2", 0755));
	put("durable", 100, 1);
	durable("durable");
	put("staged", 200, 2);
	fd = OK(creat("open", 0644));
	for (int i = 1; i < 6; i++) {
		char from[64], to[64];

		for (int k = 0; k < 3; k++) {
			const char *name = k == 0 ? "durable" : k == 1 ? "staged" : "open";

			snprintf(from, sizeof(from), "%s/%s", dirs[i - 1], name);
			snprintf(to, sizeof(to), "%s/%s", i < 5 ? dirs[i] : "e2", name);
			OK(rename(from, to));
		}
	}
	OK(rename("e2", "d1/d2/d3/e2"));
	OK(link("d1/d2/d3/e2/durable", "e1/linked"));
	OK(close(fd));
	same("d1/d2/d3/e2/durable", 100, 1);
	same("d1/d2/d3/e2/staged", 200, 2);
	durable(".");
	same(store("e1/linked"), 100, 1);
}

static void link_files(void)
{
	int fd;

	put("a", 1000, 1);
	OK(link("a", "b"));
	EQ(stat_of("a").st_nlink, 2);
	EQ(stat_of("a").st_ino, stat_of("b").st_ino);
	ERR(link("a", "b"), EEXIST);
	OK(mkdir("d", 0755));
	ERR(link("d", "dd"), EPERM);
	durable(".");
	EQ(stat_of(store("a")).st_ino, stat_of(store("b")).st_ino);
	EQ(stat_of(store("b")).st_nlink, 2);
	OK(link("b", "d/c"));			/* of a durable one */
	EQ(stat_of("a").st_nlink, 3);
	OK(rename("a", "b"));			/* the same inode: nothing happens */
	TRUE(exists("a") && exists("b"));
	OK(unlink("a"));
	EQ(stat_of("b").st_nlink, 2);
	fd = OK(open("d/c", O_WRONLY | O_APPEND));
	write_tag(fd, 500, 1, 1000);
	OK(close(fd));
	same("b", 1500, 1);			/* seen through the other name */
	durable(".");
	same(store("b"), 1500, 1);
	same(store("d/c"), 1500, 1);
	EQ(stat_of(store("b")).st_nlink, 2);
	TRUE(!exists(store("a")));
}

static void link_open_file(void)
{
	char proc[64];
	int fd = OK(open("a", O_WRONLY | O_CREAT, 0644));

	write_tag(fd, 100, 1, 0);
	OK(link("a", "b"));
	write_tag(fd, 100, 1, 100);
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
	OK(linkat(AT_FDCWD, proc, AT_FDCWD, "c", AT_SYMLINK_FOLLOW));
	OK(unlink("a"));
	OK(close(fd));
	same("b", 200, 1);
	same("c", 200, 1);
	EQ(stat_of("c").st_nlink, 2);
	durable(".");
	same(store("b"), 200, 1);
	same(store("c"), 200, 1);
	TRUE(!exists(store("a")));
}

/* One file under a hundred names, made before it was ever closed. */
static void all_are(const char *const *names, int n, size_t len, uint64_t tag)
{
	for (int i = 0; i < n; i++) {
		same(names[i], len, tag);
		EQ(stat_of(names[i]).st_nlink, n);
		EQ(stat_of(names[i]).st_ino, stat_of(names[0]).st_ino);
	}
}

/* A new version is one by every name, whoever reads the old one, and a reader keeps it. */
static void link_readers(void)
{
	const char *const ab[] = { "a", "b" }, *const abc[] = { "a", "b", "c" }, *const dc[] = { "d", "c" };
	int old, newer;

	put("a", 1000, 1);
	OK(link("a", "b"));
	all_are(ab, 2, 1000, 1);
	old = OK(open("b", O_RDONLY));
	put("a", 2000, 2);		/* at once: the kernel's entries are still valid */
	all_are(ab, 2, 2000, 2);
	newer = OK(open("a", O_RDONLY));
	OK(link("b", "c"));
	all_are(abc, 3, 2000, 2);
	OK(chmod("c", 0600));
	EQ(stat_of("a").st_mode & 0777, 0600);
	OK(truncate("c", 0));
	put("c", 3000, 3);
	all_are(abc, 3, 3000, 3);
	OK(rename("a", "d"));
	OK(unlink("b"));
	all_are(dc, 2, 3000, 3);
	durable(".");
	all_are(dc, 2, 3000, 3);
	same(store("d"), 3000, 3);
	EQ(stat_of(store("c")).st_nlink, 2);
	EQ(stat_of(store("c")).st_ino, stat_of(store("d")).st_ino);
	if (!env.plain) {
		struct stat st;

		OK(fstat(old, &st));
		EQ(st.st_size, 1000);
		same_fd_range("the first version", old, 0, 1000, 1);
		same_fd_range("the second version", newer, 0, 2000, 2);
		OK(unlink("d"));
		OK(unlink("c"));
		OK(fstat(old, &st));
		EQ(st.st_size, 1000);
		same_fd_range("the first version", old, 0, 1000, 1);
	}
	close(old);
	close(newer);
}

/* Who overwrites a file that others keep opening meets no error, nor do they. */
static void overwritten_while_read(void)
{
	static const char *const names[] = { "a", "b", "c" };

	put("a", 100, 0);
	OK(link("a", "b"));
	put("c", 100, 0);
	pid_t reader = OK(fork());
	for (int i = 0; !reader; i++)
		close(OK(open(names[i % 3], O_RDONLY)));
	for (int i = 1; i <= 300; i++) {
		put(names[i % 3], 100 + i, i);
		same(names[i % 3], 100 + i, i);
		if (i % 3 < 2)
			same(names[1 - i % 3], 100 + i, i);
		EQ(waitpid(reader, NULL, WNOHANG), 0);
	}
	kill(reader, SIGKILL);
	waitpid(reader, NULL, 0);
}

static void many_links(void)
{
	int fd = OK(open("a", O_WRONLY | O_CREAT, 0644));
	char name[16];

	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "l%d", i);
		OK(link("a", name));
	}
	write_tag(fd, 3000, 1, 0);
	OK(close(fd));
	EQ(stat_of("a").st_nlink, 101);
	durable(".");
	EQ(stat_of(store("a")).st_nlink, 101);
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "l%d", i);
		same(store(name), 3000, 1);
	}
	put("l50", 4000, 2);		/* they all show the new version */
	same("a", 4000, 2);
	durable(".");
	same(store("l99"), 4000, 2);
	same(store("l0"), 4000, 2);
	EQ(stat_of(store("a")).st_nlink, 101);
}

static void symlinks(void)
{
	char target[PATH_MAX], got[PATH_MAX];

	put("f", 50, 1);
	OK(symlink("f", "rel"));
	OK(symlink("/nowhere/at/all", "dangling"));
	memset(target, 'x', sizeof(target));
	for (int i = 200; i < PATH_MAX; i += 200)
		target[i] = '/';
	target[PATH_MAX - 1] = 0;
	OK(symlink(target, "long"));
	EQ(readlink("long", got, sizeof(got)), PATH_MAX - 1);
	TRUE(!memcmp(got, target, PATH_MAX - 1));
	EQ(stat_of("long").st_size, PATH_MAX - 1);
	EQ(stat_of("rel").st_mode, S_IFLNK | 0777);
	same("rel", 50, 1);
	ERR(open("dangling", O_RDONLY), ENOENT);
	ERR(symlink("x", "rel"), EEXIST);
	OK(rename("rel", "last.ckpt"));
	durable(".");
	EQ(readlink(store("last.ckpt"), got, sizeof(got)), 1);
	EQ(got[0], 'f');
	EQ(readlink(store("long"), got, sizeof(got)), PATH_MAX - 1);
	OK(unlink("last.ckpt"));
	OK(unlink("long"));
	TRUE(exists("f"));
	durable(".");
	TRUE(!exists(store("last.ckpt")) && !exists(store("long")));
}

/* A symlink replaced the way `ln -sfn` does it. */
static void symlink_replaced(void)
{
	char got[16] = { 0 };

	OK(symlink("step-1", "last"));
	durable(".");
	OK(symlink("step-2", "last.tmp"));
	OK(rename("last.tmp", "last"));
	EQ(readlink("last", got, sizeof(got)), 6);
	TRUE(!strcmp(got, "step-2"));
	durable(".");
	EQ(readlink(store("last"), got, sizeof(got)), 6);
	TRUE(!strcmp(got, "step-2"));
	put("f", 9, 1);
	OK(rename("f", "last"));
	same("last", 9, 1);
	durable(".");
	same(store("last"), 9, 1);
}

static void unlink_open(void)
{
	struct stat st;
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644)), rd;

	write_tag(fd, 5000, 1, 0);
	rd = OK(open("a", O_RDONLY));
	OK(unlink("a"));
	ERR(access("a", F_OK), ENOENT);
	OK(fstat(fd, &st));
	EQ(st.st_nlink, 0);
	pwrite_tag(fd, 5000, 1, 5000);
	OK(ftruncate(fd, 9000));
	OK(fchmod(fd, 0600));
	OK(fsync(fd));
	same_fd_range("unlinked", rd, 0, 9000, 1);
	put("a", 70, 2);		/* a new file of that name is another one */
	TRUE(stat_of("a").st_ino != st.st_ino);
	same_fd_range("unlinked", fd, 0, 9000, 1);
	OK(close(fd));
	same_fd_range("unlinked, writer gone", rd, 0, 9000, 1);
	OK(close(rd));
	same("a", 70, 2);
	durable(".");
	same(store("a"), 70, 2);
}

static void unlink_open_durable(void)
{
	int rd, fd;

	put("a", 100 * KIB, 1);
	durable("a");
	rd = OK(open("a", O_RDONLY));
	OK(unlink("a"));
	same_fd_range("unlinked", rd, 0, 100 * KIB, 1);
	durable(".");
	TRUE(!exists(store("a")));
	same_fd_range("unlinked in the store too", rd, 0, 100 * KIB, 1);
	OK(close(rd));
	put("b", 100, 2);
	durable("b");
	fd = OK(open("b", O_RDWR));
	OK(unlink("b"));
	pwrite_tag(fd, 200, 2, 100);
	same_fd_range("unlinked", fd, 0, 300, 2);
	OK(close(fd));
	durable(".");
	TRUE(!exists(store("b")));
}

static int open_held(int path_fd, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
	return OK(open(path, flags));
}

static off_t fd_size(int fd)
{
	struct stat st;

	OK(fstat(fd, &st));
	return st.st_size;
}

static void removed_then_opened(const char *what, int how, int flags)
{
	int held = OK(open("a", O_PATH)), fd;

	if (how == 0) {
		OK(unlink("a"));
	} else {
		put("b", 300, 2);
		OK(rename("b", "a"));
	}
	fd = open_held(held, flags);
	if (flags & O_TRUNC)
		EQ(fd_size(fd), 0);
	else
		same_fd_range(what, fd, 0, 5000, 1);
	OK(close(fd));
	durable(".");
	fd = open_held(held, O_RDONLY);
	if (flags & O_TRUNC)
		EQ(fd_size(fd), 0);
	else
		same_fd_range(what, fd, 0, 5000, 1);
	OK(close(fd));
	OK(close(held));
	if (how == 0) {
		TRUE(!exists("a"));
	} else {
		same("a", 300, 2);
		OK(unlink("a"));
	}
	durable(".");
	TRUE(!exists(store("a")));
}

/* The kernel looks a name up and opens it then: what is removed between the two is opened
 * all the same, as on any local filesystem. O_PATH is such a lookup. */
static void unlinked_before_open(void)
{
	static const int flags[] = { O_RDONLY, O_WRONLY | O_TRUNC, O_RDWR };

	for (int how = 0; how < 2; how++)
		for (int f = 0; f < 3; f++) {
			put("a", 5000, 1);
			removed_then_opened("staged", how, flags[f]);
			put("a", 5000, 1);
			durable("a");
			removed_then_opened("durable", how, flags[f]);
			put(store("a"), 5000, 1);
			removed_then_opened("of the store", how, flags[f]);
		}
}

static void unlink_at_once(void)
{
	char name[32];

	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		put(name, 64 * KIB, i);
		OK(unlink(name));
	}
	durable(".");
	TRUE(exists(store(".")));
	OK(mkdir("gone", 0755));
	put("gone/f", 5, 5);
	OK(unlink("gone/f"));
	OK(rmdir("gone"));
	durable(".");
	TRUE(!exists(store("gone")) && !exists(store("f0")) && !exists(store("f99")));
}

static void directories(void)
{
	OK(mkdir("d", 0777));
	EQ(stat_of("d").st_mode, S_IFDIR | 0755);
	ERR(mkdir("d", 0755), EEXIST);
	ERR(mkdir("x/y", 0755), ENOENT);
	put("d/f", 1, 1);
	ERR(rmdir("d"), ENOTEMPTY);
	ERR(rmdir("d/."), EINVAL);
	ERR(rmdir("none"), ENOENT);
	OK(unlink("d/f"));
	OK(rmdir("d"));
	ERR(access("d", F_OK), ENOENT);
	OK(mkdir("d", 0700));
	durable(".");
	EQ(stat_of(store("d")).st_mode, S_IFDIR | 0700);
	OK(rmdir("d"));
	durable(".");
	TRUE(!exists(store("d")));
}

static void directory_links(void)
{
	char name[32];

	OK(mkdir("a", 0755));
	OK(mkdir("b", 0755));
	for (int i = 0; i < 5; i++) {
		snprintf(name, sizeof(name), "a/%d", i);
		OK(mkdir(name, 0755));
	}
	put("a/file", 1, 1);
	EQ(stat_of("a").st_nlink, 7);
	OK(rename("a/0", "b/0"));
	EQ(stat_of("a").st_nlink, 6);
	EQ(stat_of("b").st_nlink, 3);
	OK(rmdir("a/1"));
	EQ(stat_of("a").st_nlink, 5);
	durable(".");
	EQ(stat_of("a").st_nlink, 5);
	EQ(stat_of("b").st_nlink, 3);
	OK(mkdir("b/new", 0755));
	EQ(stat_of("b").st_nlink, 4);
	EQ(stat_of("b/new").st_nlink, 2);
}

static void in_removed_directory(void)
{
	OK(mkdir("d", 0755));
	OK(chdir("d"));
	OK(rmdir("../d"));
	ERR(open("f", O_CREAT | O_WRONLY, 0600), ENOENT);
	ERR(mkdir("s", 0755), ENOENT);
	ERR(access("f", F_OK), ENOENT);
}

static void names_any_bytes(void)
{
	char name[8];

	for (int c = 1; c < 256; c++) {
		if (c == '/')
			continue;
		snprintf(name, sizeof(name), "n%ce", c);
		put(name, c, c);
	}
	put("\xff", 1, 1);
	put("...", 2, 2);
	put(" ", 3, 3);
	durable(".");
	for (int c = 1; c < 256; c++) {
		if (c == '/')
			continue;
		snprintf(name, sizeof(name), "n%ce", c);
		same(name, c, c);
		same(store(name), c, c);
	}
	same(store("..."), 2, 2);
	same(store(" "), 3, 3);
}

static void name_lengths(void)
{
	char name[300];

	memset(name, 'n', sizeof(name));
	name[256] = 0;
	ERR(open(name, O_CREAT | O_WRONLY, 0600), ENAMETOOLONG);
	ERR(mkdir(name, 0700), ENAMETOOLONG);
	ERR(access(name, F_OK), ENAMETOOLONG);
	name[255] = 0;
	put(name, 100, 1);
	same(name, 100, 1);
	durable(".");
	same(store(name), 100, 1);
	OK(unlink(name));
	OK(mkdir(name, 0755));
	OK(rmdir(name));
	OK(symlink("x", name));
	put("f", 1, 1);
	OK(rename("f", name));
	same(name, 1, 1);
}

/* Below this check's directory, a path of PATH_MAX - 1 bytes, and one that is too long. */
static void path_max(void)
{
	char path[PATH_MAX + 8] = "";
	size_t len = 0;

	while (len + 101 < PATH_MAX - 1) {
		memset(path + len, 'a' + len / 101 % 26, 100);
		path[len + 100] = 0;
		OK(mkdir(path, 0755));
		path[len + 100] = '/';
		len += 101;
	}
	memset(path + len, 'f', PATH_MAX - 1 - len);
	path[PATH_MAX - 1] = 0;
	put(path, 100, 1);
	same(path, 100, 1);
	path[PATH_MAX - 1] = 'f';
	path[PATH_MAX] = 0;
	ERR(open(path, O_RDONLY), ENAMETOOLONG);
	durable(".");
	path[PATH_MAX - 1] = 0;
	OK(chdir(store(".")));		/* the store's path comes on top: go there first */
	same(path, 100, 1);
}

static void dots(void)
{
	struct dirent *e;
	int seen = 0;
	DIR *d;

	OK(mkdir("d", 0755));
	put("d/f", 1, 1);
	OK(symlink("f", "d/s"));
	OK(mkdir("d/sub", 0755));
	d = opendir("d");
	TRUE(d);
	while ((e = readdir(d))) {
		struct stat st;

		OK(fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW));
		if (strcmp(e->d_name, ".."))
			EQ(e->d_ino, st.st_ino);
		if (e->d_type != DT_UNKNOWN)
			EQ(DTTOIF(e->d_type), st.st_mode & S_IFMT);
		seen++;
	}
	EQ(seen, 5);
	closedir(d);
}

static void make_many(int n)
{
	char name[32];

	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "d/file%04d", i);
		OK(close(OK(creat(name, 0644))));
	}
}

static void readdir_deleting(void)
{
	struct dirent *e;
	int deleted = 0;
	DIR *d;

	OK(mkdir("d", 0755));
	make_many(3000);
	d = opendir("d");
	TRUE(d);
	while ((e = readdir(d)))
		if (e->d_name[0] != '.') {
			OK(unlinkat(dirfd(d), e->d_name, 0));
			deleted++;
		}
	closedir(d);
	EQ(deleted, 3000);
	OK(rmdir("d"));
	durable(".");
	TRUE(!exists(store("d")));
}

/* What is there during the whole scan is listed once, whatever else comes and goes. */
static void readdir_changing(void)
{
	static char seen[2000];
	struct dirent *e;
	char name[32];
	int n = 0;
	DIR *d;

	OK(mkdir("d", 0755));
	make_many(2000);
	d = opendir("d");
	TRUE(d);
	while ((e = readdir(d))) {
		int i;

		if (sscanf(e->d_name, "file%d", &i) == 1)
			TRUE(!seen[i]++);
		snprintf(name, sizeof(name), "d/new%d", n++ % 50);
		if (n % 100 < 50)
			OK(close(OK(creat(name, 0644))));
		else
			unlink(name);
		TRUE(n < 100000);
	}
	closedir(d);
	for (int i = 0; i < 2000; i++)
		TRUE(seen[i]);
}

static void seek_dir(void)
{
	char names[500][32];
	long at[500];
	struct dirent *e;
	int n = 0;
	DIR *d;

	OK(mkdir("d", 0755));
	make_many(400);
	d = opendir("d");
	TRUE(d);
	for (at[0] = telldir(d); (e = readdir(d)); at[++n] = telldir(d))
		strcpy(names[n], e->d_name);
	EQ(n, 402);
	for (int i = n - 1; i >= 0; i -= 7) {
		seekdir(d, at[i]);
		e = readdir(d);
		TRUE(e && !strcmp(e->d_name, names[i]));
	}
	OK(close(OK(creat("d/late", 0600))));
	rewinddir(d);
	for (n = 0; (e = readdir(d));)
		n += !strcmp(e->d_name, "late");
	EQ(n, 1);
	closedir(d);
}

static void rmtree(const char *path)
{
	struct dirent *e;
	DIR *d = opendir(path);

	if (!d) {
		TRUE(errno == ENOENT);
		return;
	}
	while ((e = readdir(d))) {
		char sub[PATH_MAX];

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		snprintf(sub, sizeof(sub), "%s/%s", path, e->d_name);
		if (!unlink(sub))
			continue;
		TRUE(errno == ENOENT || errno == EISDIR);
		if (errno == EISDIR)
			rmtree(sub);
	}
	closedir(d);
	TRUE(!rmdir(path) || errno == ENOENT || errno == ENOTEMPTY);
}

static void rmtree_once(int unused)
{
	(void)unused;
	rmtree("step-1");
}

static void rmtree_from_8(void)
{
	char name[64];

	OK(mkdir("step-1", 0755));
	for (int d = 0; d < 10; d++) {
		snprintf(name, sizeof(name), "step-1/%d", d);
		OK(mkdir(name, 0755));
		for (int f = 0; f < 30; f++) {
			snprintf(name, sizeof(name), "step-1/%d/__%d.distcp", d, f);
			put(name, 3000, f);
		}
		if (d == 4)
			durable("step-1");	/* half of it durable, half staged */
	}
	in_processes(8, rmtree_once);
	TRUE(!exists("step-1"));
	durable(".");
	TRUE(!exists(store("step-1")));
}

static void unix_socket(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX, .sun_path = "sock" };
	int srv = OK(socket(AF_UNIX, SOCK_STREAM, 0)), cl, conn;
	char buf[4] = { 0 };

	OK(bind(srv, (void *)&addr, sizeof(addr)));
	OK(listen(srv, 1));
	EQ(stat_of("sock").st_mode & S_IFMT, S_IFSOCK);
	cl = OK(socket(AF_UNIX, SOCK_STREAM, 0));
	OK(connect(cl, (void *)&addr, sizeof(addr)));
	conn = OK(accept(srv, NULL, NULL));
	EQ(write(cl, "hey", 3), 3);
	EQ(read(conn, buf, 3), 3);
	TRUE(!strcmp(buf, "hey"));
	ERR(open("sock", O_RDONLY), ENXIO);
	OK(unlink("sock"));
	TRUE(!exists("sock"));
	durable(".");
}

static void fifo_writer(int unused)
{
	int fd = OK(open("fifo", O_WRONLY));

	(void)unused;
	write_tag(fd, 1000, 7, 0);
}

static void fifo(void)
{
	char buf[1000];
	size_t at = 0;
	pid_t pid;
	int fd;

	OK(mkfifo("fifo", 0600));
	EQ(stat_of("fifo").st_mode, S_IFIFO | 0600);
	pid = OK(fork());
	if (!pid) {
		fifo_writer(0);
		_exit(0);
	}
	fd = OK(open("fifo", O_RDONLY));
	while (at < sizeof(buf)) {
		ssize_t n = OK(read(fd, buf + at, sizeof(buf) - at));

		TRUE(n);
		at += n;
	}
	EQ(differs(buf, sizeof(buf), 7, 0), -1);
	OK(waitpid(pid, NULL, 0));
	OK(unlink("fifo"));
	durable(".");
}

static void device_nodes(void)
{
	only_on_cairn();
	TRUE(mknod("c", S_IFCHR | 0600, makedev(1, 3)) == -1);
	TRUE(errno == EPERM || errno == EOPNOTSUPP);
	TRUE(mknod("b", S_IFBLK | 0600, makedev(7, 0)) == -1);
	TRUE(errno == EPERM || errno == EOPNOTSUPP);
	TRUE(!exists("c") && !exists("b"));
	OK(mknod("f", S_IFREG | 0600, 0));	/* a regular file is fine */
	EQ(stat_of("f").st_size, 0);
	durable(".");
	TRUE(exists(store("f")) && !exists(store("c")));
}

static void o_tmpfile(void)
{
	char proc[64];
	int fd = open(".", O_TMPFILE | O_RDWR, 0600);

	if (fd == -1) {
		TRUE(errno == EOPNOTSUPP);
		SKIP("O_TMPFILE: %s", strerror(errno));
	}
	write_tag(fd, 1000, 1, 0);
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
	OK(linkat(AT_FDCWD, proc, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
	OK(close(fd));
	same("named", 1000, 1);
	durable(".");
	same(store("named"), 1000, 1);
}

static void cairn_hidden(void)
{
	char path[PATH_MAX + 32], buf[256];
	struct dirent *e;
	int n = 0;
	DIR *d;

	only_on_cairn();
	d = opendir(env.root);
	TRUE(d);
	while ((e = readdir(d)))
		TRUE(strcmp(e->d_name, ".cairn"));
	closedir(d);
	OK(chdir(env.root));
	EQ(stat_of(".cairn").st_mode & S_IFMT, S_IFDIR);
	d = opendir(".cairn");
	TRUE(d);
	while ((e = readdir(d)))
		n += !strcmp(e->d_name, "status") || !strcmp(e->d_name, "status.json") ||
		     !strcmp(e->d_name, "metrics");
	closedir(d);
	EQ(n, 3);
	for (int i = 0; i < 3; i++) {
		const char *name[] = { "status", "status.json", "metrics" };
		int fd;

		snprintf(path, sizeof(path), ".cairn/%s", name[i]);
		fd = OK(open(path, O_RDONLY));
		n = OK(read(fd, buf, sizeof(buf)));
		TRUE(n > 10);
		TRUE(i != 1 || buf[0] == '{');
		TRUE(i != 2 || memmem(buf, n, "cairn", 5));
		close(fd);
	}
}

static void cairn_is_no_place(void)
{
	int here = OK(open(".", O_RDONLY | O_DIRECTORY));

	only_on_cairn();
	put("f", 10, 1);
	OK(mkdir("d", 0755));
	OK(chdir(env.root));
	TRUE(open(".cairn/mine", O_CREAT | O_WRONLY, 0600) == -1);
	TRUE(mkdir(".cairn/mine", 0700) == -1);
	TRUE(mkdir(".cairn", 0700) == -1 && errno == EEXIST);
	TRUE(rmdir(".cairn") == -1);
	TRUE(rename(".cairn", "elsewhere") == -1);
	TRUE(unlink(".cairn/status") == -1);
	TRUE(renameat(AT_FDCWD, ".cairn/status", here, "status") == -1);
	TRUE(linkat(AT_FDCWD, ".cairn/status", here, "status", 0) == -1);
	TRUE(exists(".cairn/status"));
	TRUE(renameat(here, "f", AT_FDCWD, ".cairn/f") == -1);
	TRUE(renameat(here, "d", AT_FDCWD, ".cairn") == -1);
	TRUE(renameat(here, "f", AT_FDCWD, ".cairn/status") == -1);
	OK(fchdir(here));
	same("f", 10, 1);
	/* Below the root the name is anyone's. */
	OK(mkdir(".cairn", 0755));
	put(".cairn/f", 10, 1);
	durable(".");
	same(store(".cairn/f"), 10, 1);
}

static void only_ours_in_store(void)
{
	struct dirent *e;
	DIR *d;

	for (int i = 0; i < 20; i++) {
		char name[32];

		snprintf(name, sizeof(name), "f%d", i);
		put(name, 100 * i, i);
	}
	durable(".");
	d = opendir(store("."));
	TRUE(d);
	while ((e = readdir(d)))
		TRUE(e->d_name[0] == 'f' || !strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."));
	closedir(d);
}

/* A stale negative answer must not hide a name made since. */
static void negative_lookups(void)
{
	char name[32];

	for (int i = 0; i < 50; i++) {
		snprintf(name, sizeof(name), "n%d", i % 5);
		ERR(access(name, F_OK), ENOENT);
		put("t", i, i);
		OK(rename("t", name));
		same(name, i, i);
		OK(rename(name, "away"));
		ERR(access(name, F_OK), ENOENT);
		OK(link("away", name));
		same(name, i, i);
		OK(unlink(name));
		OK(unlink("away"));
	}
}

int main(int argc, char **argv)
{
#define C(name) { #name, name }
	static const struct check table[] = {
		C(create_lookup), C(excl), C(wrong_types), C(rename_replace), C(rename_chain),
		C(rename_directory), C(rename_errors), C(rename_open), C(rename_dir_of_open),
		C(rename_over_open), C(rename_locked), C(rename_noreplace), C(rename_exchange),
		C(rename_no_exdev), C(link_files), C(link_open_file), C(link_readers),
		C(overwritten_while_read), C(many_links), C(symlinks),
		C(symlink_replaced), C(unlink_open), C(unlink_open_durable), C(unlinked_before_open), C(unlink_at_once),
		C(directories), C(directory_links), C(in_removed_directory), C(names_any_bytes),
		C(name_lengths), C(path_max), C(dots), C(readdir_deleting), C(readdir_changing),
		C(seek_dir), C(rmtree_from_8), C(unix_socket), C(fifo), C(device_nodes),
		C(o_tmpfile), C(cairn_hidden), C(cairn_is_no_place), C(only_ours_in_store),
		C(negative_lookups), { NULL, NULL },
	};

	return check_main(argc, argv, table);
}

/* SPDX-License-Identifier: MIT
 *
 * Attributes, owners, extended attributes, locks: what is asked about a file.
 */
#include <grp.h>
#include <linux/fs.h>
#include <linux/stat.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <termios.h>

#include "check.h"

#define NOBODY 65534
#define OTHER 54321

static bool same_time(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

#define SAME_TIME(a, b) do { \
		struct timespec x_ = (a), y_ = (b); \
		if (!same_time(x_, y_)) \
			FAIL("line %d: %s is %ld.%09ld, %s is %ld.%09ld", __LINE__, #a, \
			     (long)x_.tv_sec, x_.tv_nsec, #b, (long)y_.tv_sec, y_.tv_nsec); \
	} while (0)

static void modes(void)
{
	int fd;

	put("a", 100, 1);
	OK(mkdir("d", 0755));
	OK(chmod("a", 0604));
	OK(chmod("d", 01770));
	EQ(stat_of("a").st_mode, S_IFREG | 0604);
	durable(".");
	EQ(stat_of(store("a")).st_mode, S_IFREG | 0604);
	EQ(stat_of(store("d")).st_mode, S_IFDIR | 01770);
	OK(chmod("a", 0640));			/* of a durable one */
	fd = OK(open("a", O_WRONLY | O_APPEND));
	write_tag(fd, 100, 1, 100);
	OK(fchmod(fd, 0400));
	OK(close(fd));
	EQ(stat_of("a").st_mode, S_IFREG | 0400);
	durable(".");
	EQ(stat_of(store("a")).st_mode, S_IFREG | 0400);
	same(store("a"), 200, 1);
	/* Only root reads it, but its creator has it open for writing. */
	fd = OK(open("b", O_WRONLY | O_CREAT, 0000));
	write_tag(fd, 10, 2, 0);
	OK(close(fd));
	EQ(stat_of("b").st_mode, S_IFREG);
	durable(".");
	EQ(stat_of(store("b")).st_mode, S_IFREG);
}

static void owners(void)
{
	int fd;

	if (geteuid())
		SKIP("not root");
	put("a", 100, 1);
	OK(mkdir("d", 0755));
	OK(symlink("a", "s"));
	OK(chown("a", OTHER, OTHER + 1));
	OK(chown("d", OTHER, -1));
	OK(lchown("s", OTHER, OTHER));
	EQ(stat_of("a").st_uid, OTHER);
	EQ(stat_of("a").st_gid, OTHER + 1);
	EQ(stat_of("s").st_uid, OTHER);
	durable(".");
	EQ(stat_of(store("a")).st_uid, OTHER);
	EQ(stat_of(store("a")).st_gid, OTHER + 1);
	EQ(stat_of(store("d")).st_uid, OTHER);
	EQ(stat_of(store("d")).st_gid, 0);
	EQ(stat_of(store("s")).st_uid, OTHER);
	OK(chown("a", 0, 7));
	put("a", 200, 2);			/* a new version keeps its owner */
	EQ(stat_of("a").st_gid, 7);
	fd = OK(open("a", O_RDWR));
	OK(fchown(fd, 5, 6));
	OK(close(fd));
	durable(".");
	EQ(stat_of(store("a")).st_uid, 5);
	EQ(stat_of(store("a")).st_gid, 6);
	EQ(stat_of(store("a")).st_mode, S_IFREG | 0644);
}

static void times(void)
{
	const struct timespec t[2] = { { 1111111111, 123456789 }, { 1222222222, 987654321 } };
	const struct timespec only_mtime[2] = { { 0, UTIME_OMIT }, { 1000000007, 1 } };
	int fd;

	put("a", 100, 1);
	OK(utimensat(AT_FDCWD, "a", t, 0));
	SAME_TIME(stat_of("a").st_mtim, t[1]);
	SAME_TIME(stat_of("a").st_atim, t[0]);
	OK(mkdir("d", 0755));
	OK(symlink("a", "s"));
	OK(utimensat(AT_FDCWD, "s", t, AT_SYMLINK_NOFOLLOW));
	OK(utimensat(AT_FDCWD, "d", t, 0));
	durable(".");
	SAME_TIME(stat_of("a").st_mtim, t[1]);
	SAME_TIME(stat_of(store("a")).st_mtim, t[1]);
	SAME_TIME(stat_of(store("d")).st_mtim, t[1]);
	SAME_TIME(stat_of("d").st_mtim, t[1]);
	SAME_TIME(stat_of(store("s")).st_mtim, t[1]);
	OK(utimensat(AT_FDCWD, "a", only_mtime, 0));
	SAME_TIME(stat_of("a").st_mtim, only_mtime[1]);
	durable(".");
	SAME_TIME(stat_of(store("a")).st_mtim, only_mtime[1]);
	fd = OK(open("a", O_WRONLY));
	pwrite_tag(fd, 10, 2, 0);
	OK(futimens(fd, t));			/* before the close, as shutil.copy2 does not */
	OK(close(fd));
	SAME_TIME(stat_of("a").st_mtim, t[1]);
	durable("a");
	SAME_TIME(stat_of("a").st_mtim, t[1]);
	SAME_TIME(stat_of(store("a")).st_mtim, t[1]);
	OK(utimensat(AT_FDCWD, "a", NULL, 0));
	TRUE(stat_of("a").st_mtim.tv_sec > 1700000000);
}

/* tensorstore's generation is (dev, ino, mtime ns): persisting must not move any of it. */
static void generation_is_stable(void)
{
	struct stat st, now;
	int fd = OK(creat("a", 0644));

	write_tag(fd, 3 * MIB, 1, 0);
	OK(close(fd));
	st = stat_of("a");
	durable("a");
	now = stat_of("a");
	SAME_TIME(now.st_mtim, st.st_mtim);
	EQ(now.st_ino, st.st_ino);
	EQ(now.st_dev, st.st_dev);
	SAME_TIME(stat_of(store("a")).st_mtim, st.st_mtim);
	fd = OK(open("a", O_RDONLY));
	OK(fstat(fd, &now));
	OK(close(fd));
	SAME_TIME(now.st_mtim, st.st_mtim);
	EQ(now.st_ino, st.st_ino);
	usleep(20000);
	put("a", 100, 2);
	now = stat_of("a");
	EQ(now.st_ino, st.st_ino);
	TRUE(!same_time(now.st_mtim, st.st_mtim));
	durable("a");
	EQ(stat_of("a").st_ino, st.st_ino);
	SAME_TIME(stat_of("a").st_mtim, now.st_mtim);
	OK(rename("a", "b"));
	EQ(stat_of("b").st_ino, st.st_ino);
	SAME_TIME(stat_of("b").st_mtim, now.st_mtim);
	durable("b");
	EQ(stat_of("b").st_ino, st.st_ino);
}

static void directory_generation(void)
{
	struct stat st;

	OK(mkdir("d", 0755));
	put("d/f", 10, 1);
	st = stat_of("d");
	durable("d");
	SAME_TIME(stat_of("d").st_mtim, st.st_mtim);
	EQ(stat_of("d").st_ino, st.st_ino);
	usleep(20000);
	put("d/g", 10, 1);
	TRUE(!same_time(stat_of("d").st_mtim, st.st_mtim));
	OK(rename("d", "e"));
	EQ(stat_of("e").st_ino, st.st_ino);
}

static void fsync_keeps_mtime(void)
{
	struct stat st, now;
	int fd = OK(creat("a", 0644));

	write_tag(fd, 1000, 1, 0);
	OK(fstat(fd, &st));
	OK(fsync(fd));
	usleep(20000);
	OK(fstat(fd, &now));
	SAME_TIME(now.st_mtim, st.st_mtim);
	OK(close(fd));
	SAME_TIME(stat_of("a").st_mtim, st.st_mtim);
	durable("a");
	SAME_TIME(stat_of("a").st_mtim, st.st_mtim);
}

static void block_size(void)
{
	only_on_cairn();
	put("a", 100, 1);
	TRUE(stat_of("a").st_blksize >= MIB);
	durable("a");
	TRUE(stat_of("a").st_blksize >= MIB);
	EQ(stat_of("a").st_blksize & (stat_of("a").st_blksize - 1), 0);
}

static void file_system(void)
{
	struct statvfs vfs;
	struct statfs fs;

	OK(statvfs(".", &vfs));
	OK(statfs(".", &fs));
	EQ(vfs.f_namemax, 255);
	TRUE(vfs.f_blocks > 0 && vfs.f_bavail > 0 && vfs.f_bavail <= vfs.f_blocks);
	TRUE(vfs.f_frsize > 0);
	if (!env.plain) {
		struct statvfs st;

		durable(".");	/* the check's directory is as new as the check */
		OK(statvfs(store("."), &st));
		EQ(vfs.f_blocks * vfs.f_frsize, st.f_blocks * st.f_frsize);
	}
}

static void extended_stat(void)
{
	struct statx stx;
	int fd;

	put("a", 12345, 1);
	OK(statx(AT_FDCWD, "a", AT_STATX_FORCE_SYNC, STATX_ALL, &stx));
	EQ(stx.stx_size, 12345);
	EQ(stx.stx_ino, stat_of("a").st_ino);
	OK(statx(AT_FDCWD, "a", AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &stx));
	EQ(stx.stx_mode, S_IFREG | 0644);
	fd = OK(open("a", O_RDONLY | O_NOATIME | O_NOCTTY | O_NONBLOCK | O_CLOEXEC | O_LARGEFILE));
	same_fd_range("a", fd, 0, 12345, 1);
	OK(close(fd));
	fd = OK(open("a", O_PATH));
	OK(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &stx));
	EQ(stx.stx_size, 12345);
	OK(close(fd));
}

static void allowed(void)
{
	put("a", 1, 1);
	OK(chmod("a", 0444));
	OK(access(".", R_OK | W_OK | X_OK));
	OK(access("a", R_OK));
	ERR(access("a", X_OK), EACCES);		/* also for root */
	ERR(access("none", F_OK), ENOENT);
	OK(faccessat(AT_FDCWD, "a", R_OK, AT_EACCESS));
}

static void masks(void)
{
	umask(0);
	OK(close(OK(open("a", O_CREAT | O_WRONLY, 0666))));
	OK(mkdir("d", 0777));
	EQ(stat_of("a").st_mode, S_IFREG | 0666);
	EQ(stat_of("d").st_mode, S_IFDIR | 0777);
	umask(077);
	OK(close(OK(open("b", O_CREAT | O_WRONLY, 0666))));
	OK(mkdir("e", 0777));
	EQ(stat_of("b").st_mode, S_IFREG | 0600);
	EQ(stat_of("e").st_mode, S_IFDIR | 0700);
	durable(".");
	EQ(stat_of(store("a")).st_mode, S_IFREG | 0666);
	EQ(stat_of(store("e")).st_mode, S_IFDIR | 0700);
}

static bool lists(const char *path, const char *name)
{
	char list[4096];
	ssize_t n = OK(llistxattr(path, list, sizeof(list)));

	for (ssize_t i = 0; i < n; i += strlen(list + i) + 1)
		if (!strcmp(list + i, name))
			return true;
	return false;
}

static void has_xattr(const char *path, const char *name, const char *want)
{
	char buf[4096];
	ssize_t n = getxattr(path, name, buf, sizeof(buf));

	if (n == -1)
		FAIL("%s: %s: %s", path, name, strerror(errno));
	if ((size_t)n != strlen(want) || memcmp(buf, want, n))
		FAIL("%s: %s is '%.*s', want '%s'", path, name, (int)n, buf, want);
}

static void xattrs(void)
{
	char big[1001] = "", buf[8];
	int fd;

	put("a", 100, 1);
	OK(mkdir("d", 0755));
	memset(big, 'b', 1000);
	OK(setxattr("a", "user.one", "1", 1, 0));
	OK(setxattr("a", "user.big", big, 1000, XATTR_CREATE));
	OK(setxattr("d", "user.dir", "x", 1, 0));
	ERR(setxattr("a", "user.one", "2", 1, XATTR_CREATE), EEXIST);
	ERR(setxattr("a", "user.none", "2", 1, XATTR_REPLACE), ENODATA);
	ERR(getxattr("a", "user.none", buf, 8), ENODATA);
	ERR(getxattr("a", "user.big", buf, 8), ERANGE);
	EQ(getxattr("a", "user.big", NULL, 0), 1000);
	ERR(removexattr("a", "user.none"), ENODATA);
	ERR(setxattr("a", "user.", "1", 1, 0), EINVAL);	/* the store would have to refuse it later */
	durable(".");
	has_xattr("a", "user.one", "1");
	has_xattr(store("a"), "user.one", "1");
	has_xattr(store("a"), "user.big", big);
	has_xattr(store("d"), "user.dir", "x");
	OK(setxattr("a", "user.one", "changed", 7, XATTR_REPLACE));	/* of a durable one */
	OK(removexattr("a", "user.big"));
	fd = OK(open("a", O_WRONLY | O_APPEND));
	write_tag(fd, 100, 1, 100);
	OK(fsetxattr(fd, "user.open", "o", 1, 0));
	OK(close(fd));
	TRUE(lists("a", "user.one") && lists("a", "user.open") && !lists("a", "user.big"));
	durable(".");
	has_xattr(store("a"), "user.one", "changed");
	has_xattr(store("a"), "user.open", "o");
	TRUE(!lists(store("a"), "user.big"));
	same(store("a"), 200, 1);
}

static void many_xattrs(void)
{
	char name[32], val[32];

	put("a", 100, 1);
	for (int i = 0; i < 80; i++) {
		snprintf(name, sizeof(name), "user.n%d", i);
		snprintf(val, sizeof(val), "%d", i);
		OK(setxattr("a", name, val, strlen(val), 0));
	}
	put("a", 200, 2);
	durable("a");
	for (int i = 0; i < 80; i++) {
		snprintf(name, sizeof(name), "user.n%d", i);
		snprintf(val, sizeof(val), "%d", i);
		has_xattr("a", name, val);
		has_xattr(store("a"), name, val);
	}
}

/* One that the store's inode cannot hold is refused at once, and does not hold up the order. */
static void large_xattrs(void)
{
	char val[60000];
	size_t took = 0;

	memset(val, 'v', sizeof(val));
	put("a", 100, 1);
	for (size_t n = 1000; n <= sizeof(val); n += 5900) {
		if (setxattr("a", "user.large", val, n, 0) == 0)
			took = n;
		else
			TRUE(errno == ENOSPC || errno == E2BIG);
		if (!env.plain)
			durable("a");
	}
	TRUE(took > 0);
	EQ(getxattr("a", "user.large", val, sizeof(val)), (ssize_t)took);
	put("a", 200, 2);
	if (!env.plain) {
		durable("a");
		EQ(getxattr(store("a"), "user.large", val, sizeof(val)), (ssize_t)took);
	}
}

/* A new version of a file, by O_TRUNC, is still that file: its attributes stay. */
static void xattrs_stay_with_the_file(void)
{
	put("a", 100, 1);
	OK(setxattr("a", "user.k", "v", 1, 0));
	durable("a");
	put("a", 300, 2);
	has_xattr("a", "user.k", "v");
	OK(rename("a", "b"));
	has_xattr("b", "user.k", "v");
	durable(".");
	has_xattr(store("b"), "user.k", "v");
	same(store("b"), 300, 2);
	put("n", 5, 5);
	OK(rename("n", "b"));		/* but this is another one */
	TRUE(!lists("b", "user.k"));
	durable(".");
	TRUE(!lists(store("b"), "user.k"));
}

static void cairn_xattrs(void)
{
	static const char *const names[] = { "state", "checksum", "pending", "lane" };
	char buf[128], full[64];
	ssize_t n;

	only_on_cairn();
	put("a", 5000, 1);
	OK(mkdir("d", 0755));
	durable(".");
	for (int i = 0; i < 4; i++) {
		snprintf(full, sizeof(full), "user.cairn.%s", names[i]);
		n = getxattr("a", full, buf, sizeof(buf));
		if (n <= 0)
			FAIL("%s: %s", full, n ? strerror(errno) : "empty");
		TRUE(!lists("a", full));
		TRUE(!lists("d", full));
	}
	has_xattr("a", "user.cairn.state", "durable");
	has_xattr("d", "user.cairn.state", "durable");
	has_xattr("a", "user.cairn.pending", "0");
	n = OK(getxattr("a", "user.cairn.checksum", buf, sizeof(buf)));
	EQ(n, 37);
	TRUE(!memcmp(buf, "xxh3:", 5));
	for (int i = 5; i < n; i++)
		TRUE(strchr("0123456789abcdef", buf[i]));
	buf[n] = 0;
	has_xattr(store("a"), "user.cairn.checksum", buf);
	/* As cp -a from another cairnfs would: taken, and without effect. */
	OK(setxattr("a", "user.cairn.state", "failed", 6, 0));
	OK(setxattr("a", "user.cairn.checksum", "xxh3:0", 6, 0));
	OK(setxattr("a", "user.cairn.ino", "12345678", 8, 0));
	has_xattr("a", "user.cairn.state", "durable");
	has_xattr("a", "user.cairn.checksum", buf);
	TRUE(!lists("a", "user.cairn.state") && !lists("a", "user.cairn.ino"));
	put("a", 6000, 2);
	durable("a");
	n = OK(getxattr("a", "user.cairn.checksum", full, sizeof(full)));
	TRUE(memcmp(full, buf, n));
}

static void open_is_open(void)
{
	char state[32];
	int fd;

	only_on_cairn();
	fd = OK(creat("a", 0644));
	write_tag(fd, 1000, 1, 0);
	TRUE(!strcmp(state_of("a", state), "open"));
	TRUE(!strcmp(state_of(".", state), "open"));
	OK(close(fd));
	TRUE(strcmp(state_of("a", state), "open"));
	durable(".");
}

static void acls_refused(void)
{
	static const unsigned char acl[] = { 2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0,
					     255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255 };

	only_on_cairn();
	put("a", 1, 1);
	OK(mkdir("d", 0755));
	ERR(setxattr("a", "system.posix_acl_access", acl, sizeof(acl), 0), EOPNOTSUPP);
	ERR(setxattr("d", "system.posix_acl_default", acl, sizeof(acl), 0), EOPNOTSUPP);
}

static void python_open(void)
{
	struct termios tio;
	int fd;

	put("a", 1, 1);
	fd = OK(open("a", O_RDWR));
	ERR(tcgetattr(fd, &tio), ENOTTY);
	ERR(ioctl(fd, 0x5678, 0), ENOTTY);
	OK(close(fd));
}

static void suid_cleared(void)
{
	int fd;

	if (geteuid())
		SKIP("not root");
	umask(0);
	fd = OK(open("a", O_WRONLY | O_CREAT, 0666));
	write_tag(fd, 100, 1, 0);
	OK(close(fd));
	fd = OK(open("d", O_WRONLY | O_CREAT, 0666));
	write_tag(fd, 100, 1, 0);
	OK(close(fd));
	OK(chmod("a", 06777));
	OK(chmod("d", 06777));
	EQ(stat_of("a").st_mode, S_IFREG | 06777);
	durable(".");
	OK(chmod(".", 0777));
	if (!OK(fork())) {
		OK(setgroups(0, NULL));
		OK(setgid(NOBODY));
		OK(setuid(NOBODY));
		fd = OK(open("a", O_WRONLY));
		pwrite_tag(fd, 10, 2, 0);
		OK(close(fd));
		OK(truncate("d", 50));
		_exit(0);
	}
	OK(wait(&fd));
	EQ(fd, 0);
	EQ(stat_of("a").st_mode, S_IFREG | 0777);
	EQ(stat_of("d").st_mode, S_IFREG | 0777);
	durable(".");
	EQ(stat_of(store("a")).st_mode, S_IFREG | 0777);
	EQ(stat_of(store("d")).st_mode, S_IFREG | 0777);
	OK(chmod("a", 06755));
	OK(chown("a", 5, 5));			/* cleared by chown, too */
	EQ(stat_of("a").st_mode, S_IFREG | 0755);
	OK(chmod("a", 06755));
	OK(chown("a", -1, -1));			/* and by one that changes nothing */
	EQ(stat_of("a").st_mode, S_IFREG | 0755);
}

/* What stat -c %A asks for: answered from the kernel's cache while that is valid. */
static mode_t mode_alone(const char *path)
{
	struct statx x;

	OK(statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_MODE, &x));
	return x.stx_mode & 07777;
}

enum { BY_WRITE, BY_DIRECT, BY_OPEN_BEFORE, BY_O_TRUNC, BY_TRUNCATE, BY_FTRUNCATE, BY_FALLOCATE, BY_PUNCH, WAYS };

/* The file changes in each way that another user has. One writes through a descriptor from before the chmod. */
static void change_file(int way, int fd)
{
	void *page = NULL;

	switch (way) {
	case BY_DIRECT:
		OK(fd = open("f", O_WRONLY | O_DIRECT));
		EQ(posix_memalign(&page, 4096, 4096), 0);
		memset(page, 1, 4096);
		EQ(pwrite(fd, page, 4096, 0), 4096);
		break;
	case BY_O_TRUNC: OK(open("f", O_WRONLY | O_TRUNC)); break;
	case BY_TRUNCATE: OK(truncate("f", 50)); break;
	case BY_OPEN_BEFORE: pwrite_tag(fd, 10, 2, 0); break;
	default:
		OK(fd = open("f", O_WRONLY));
		if (way == BY_WRITE)
			pwrite_tag(fd, 10, 2, 0);
		else if (way == BY_FTRUNCATE)
			OK(ftruncate(fd, 60));
		else
			OK(fallocate(fd, way == BY_PUNCH ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE : 0, 0, 4096));
	}
}

static void suid_case(int way, uid_t uid, gid_t gid, mode_t before, mode_t after)
{
	int fd, status;

	put("f", 3 * 4096, 1);
	OK(chown("f", OTHER, OTHER));
	OK(fd = open("f", O_WRONLY));
	OK(chmod("f", before));
	EQ(mode_alone("f"), before);
	if (!OK(fork())) {
		OK(setgroups(0, NULL));
		OK(setgid(gid));
		OK(setuid(uid));
		change_file(way, fd);
		_exit(0);
	}
	OK(wait(&status));
	if (status || mode_alone("f") != after)
		FAIL("way %d, as %d:%d: %o becomes %o, not %o", way, (int)uid, (int)gid, before, mode_alone("f"), after);
	OK(close(fd));
	durable("f");
	EQ(stat_of(store("f")).st_mode & 07777, after);
	OK(unlink("f"));
}

static void suid_cleared_each_way(void)
{
	if (geteuid())
		SKIP("not root");
	OK(chmod(".", 0777));
	for (int way = 0; way < WAYS; way++) {
		suid_case(way, NOBODY, NOBODY, 06777, 0777);
		suid_case(way, NOBODY, NOBODY, 06766, 0766);	/* sgid goes: not of its group */
		suid_case(way, OTHER, OTHER, 06766, 02766);
		suid_case(way, OTHER, OTHER, 06776, 0776);
		suid_case(way, 0, 0, 06777, 06777);
	}
}

static void suid_of_other_kinds(void)
{
	static const mode_t kinds[] = { S_IFIFO, S_IFSOCK };

	if (geteuid())
		SKIP("not root");
	for (int i = 0; i < 2; i++) {
		int status;

		OK(mknod("f", kinds[i] | 0644, 0));
		OK(chown("f", OTHER, OTHER));
		OK(chmod("f", 06755));
		if (!OK(fork())) {
			OK(setgroups(0, NULL));
			OK(setgid(OTHER));
			OK(setuid(OTHER));
			OK(chown("f", OTHER, OTHER));
			_exit(0);
		}
		OK(wait(&status));
		EQ(status, 0);
		EQ(mode_alone("f"), 0755);
		durable(".");
		EQ(stat_of(store("f")).st_mode & 07777, 0755);
		OK(unlink("f"));
	}
}

static bool later(struct timespec a, struct timespec b)
{
	return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
}

/* Also while the store does not know of the link: a closed file that is still mapped holds up what comes later. */
static void ctime_of_links(void)
{
	static const mode_t kinds[] = { S_IFREG, S_IFIFO, S_IFSOCK, S_IFLNK };

	OK(mkdir("aside", 0755));
	for (int i = 0; i < 4; i++) {
		struct timespec made, linked;
		char *held;
		int fd;

		if (S_ISLNK(kinds[i]))
			OK(symlink("target", "f"));
		else
			OK(mknod("f", kinds[i] | 0644, 0));
		durable(".");
		made = stat_of("f").st_ctim;
		usleep(20000);
		OK(fd = open("held", O_RDWR | O_CREAT | O_TRUNC, 0644));
		OK(ftruncate(fd, 4096));
		TRUE((held = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED);
		OK(close(fd));
		OK(link("f", "aside/g"));
		linked = stat_of("f").st_ctim;
		TRUE(later(linked, made));
		OK(munmap(held, 4096));
		durable(".");
		usleep(20000);
		OK(unlink("aside/g"));
		TRUE(later(stat_of("f").st_ctim, linked));
		OK(unlink("f"));
	}
}

static void as_other(int unused)
{
	gid_t groups[] = { 777 };

	(void)unused;
	OK(setgroups(1, groups));
	OK(setgid(OTHER));
	OK(setuid(OTHER));
	ERR(open("secret", O_RDONLY), EACCES);
	ERR(open("readable", O_WRONLY), EACCES);
	ERR(open("closed/f", O_RDONLY), EACCES);
	ERR(open("new", O_CREAT | O_WRONLY, 0600), EACCES);
	ERR(mkdir("new", 0700), EACCES);
	ERR(unlink("readable"), EACCES);
	ERR(rename("readable", "x"), EACCES);
	ERR(chmod("readable", 0777), EPERM);
	ERR(chown("readable", OTHER, OTHER), EPERM);
	ERR(utimensat(AT_FDCWD, "readable", (struct timespec[2]){ { 1, 1 }, { 1, 1 } }, 0), EPERM);
	ERR(truncate("readable", 0), EACCES);
	ERR(setxattr("readable", "user.x", "1", 1, 0), EACCES);
	ERR(unlink("sticky/roots"), EPERM);
	ERR(rename("sticky/roots", "sticky/mine"), EPERM);
	same("readable", 10, 1);
	OK(close(OK(open("by_group", O_WRONLY | O_APPEND))));	/* a supplementary group */
	put("sticky/mine", 100, 3);
	OK(mkdir("sticky/dir", 0755));
	OK(symlink("mine", "sticky/link"));
	OK(rename("sticky/mine", "sticky/mine2"));
	OK(chmod("sticky/mine2", 0640));
	put("sgid/f", 100, 4);
	OK(mkdir("sgid/d", 0755));
	EQ(stat_of("sgid/f").st_gid, 777);
	OK(chmod("sticky/mine2", 02644));	/* of its own group: it may */
	EQ(stat_of("sticky/mine2").st_mode, S_IFREG | 02644);
}

static void another_user(void)
{
	if (geteuid())
		SKIP("not root");
	umask(0);
	put("secret", 10, 1);
	OK(chmod("secret", 0600));
	put("readable", 10, 1);
	OK(chmod("readable", 0644));
	put("by_group", 10, 1);
	OK(chown("by_group", 0, 777));
	OK(chmod("by_group", 0660));
	OK(mkdir("closed", 0700));
	put("closed/f", 1, 1);
	OK(mkdir("sticky", 01777));
	put("sticky/roots", 5, 5);
	OK(mkdir("sgid", 0777));
	OK(chown("sgid", 0, 777));
	OK(chmod("sgid", 02777));
	in_process(as_other);
	EQ(stat_of("sticky/mine2").st_uid, OTHER);
	EQ(stat_of("sticky/mine2").st_gid, OTHER);
	EQ(stat_of("sticky/link").st_uid, OTHER);
	EQ(stat_of("sgid/f").st_uid, OTHER);
	EQ(stat_of("sgid/d").st_gid, 777);
	EQ(stat_of("sgid/d").st_mode, S_IFDIR | 02755);
	durable(".");
	EQ(stat_of(store("sticky/mine2")).st_uid, OTHER);
	EQ(stat_of(store("sticky/dir")).st_uid, OTHER);
	EQ(stat_of(store("sgid/f")).st_gid, 777);
	EQ(stat_of(store("sgid/d")).st_gid, 777);
	EQ(stat_of(store("sgid/d")).st_mode, S_IFDIR | 02755);
	EQ(stat_of(store("sgid/f")).st_uid, OTHER);
}

/* NFS servers and container runtimes act under another fsuid. */
static void by_fsuid(void)
{
	if (geteuid())
		SKIP("not root");
	OK(chmod(".", 0777));
	setfsgid(OTHER + 1);
	setfsuid(OTHER);
	put("a", 10, 1);
	OK(mkdir("d", 0755));
	setfsuid(0);
	setfsgid(0);
	EQ(stat_of("a").st_uid, OTHER);
	EQ(stat_of("a").st_gid, OTHER + 1);
	EQ(stat_of("d").st_gid, OTHER + 1);
	durable(".");
	EQ(stat_of(store("a")).st_uid, OTHER);
	EQ(stat_of(store("d")).st_uid, OTHER);
}

static int lock(int fd, int cmd, short type, off_t start, off_t len)
{
	struct flock lk = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };

	return fcntl(fd, cmd, &lk);
}

static void posix_other(int unused)
{
	struct flock lk = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10 };
	int fd = OK(open("a", O_RDWR));

	(void)unused;
	TRUE(lock(fd, F_SETLK, F_WRLCK, 0, 10) == -1 && (errno == EAGAIN || errno == EACCES));
	OK(fcntl(fd, F_GETLK, &lk));
	EQ(lk.l_pid, getppid());
	OK(lock(fd, F_SETLK, F_WRLCK, 10, 10));
}

static void posix_locks(void)
{
	int fd;

	put("a", 100, 1);
	fd = OK(open("a", O_RDWR));
	OK(lock(fd, F_SETLK, F_WRLCK, 0, 10));
	in_process(posix_other);
	OK(lock(fd, F_SETLK, F_UNLCK, 0, 0));
	OK(lock(fd, F_SETLKW, F_WRLCK, 0, 0));
	OK(close(OK(open("a", O_RDONLY))));	/* any close drops them all */
	fd = OK(open("a", O_RDWR));
	OK(lock(fd, F_OFD_SETLK, F_WRLCK, 0, 0));
}

static void ofd_locks(void)
{
	int a = OK(open("a", O_RDWR | O_CREAT, 0644)), b = OK(open("a", O_RDWR));

	OK(lock(a, F_OFD_SETLK, F_WRLCK, 0, 10));
	ERR(lock(b, F_OFD_SETLK, F_WRLCK, 5, 1), EAGAIN);
	OK(lock(b, F_OFD_SETLK, F_WRLCK, 10, 10));
	OK(lock(a, F_OFD_SETLK, F_UNLCK, 0, 0));
	OK(lock(b, F_OFD_SETLK, F_RDLCK, 0, 10));
	OK(lock(a, F_OFD_SETLK, F_RDLCK, 0, 10));
	ERR(lock(a, F_OFD_SETLK, F_WRLCK, 0, 10), EAGAIN);
	OK(close(b));
	OK(lock(a, F_OFD_SETLKW, F_WRLCK, 0, 0));
	write_tag(a, 10, 1, 0);
	OK(close(a));
	same("a", 10, 1);
}

static void flock_locks(void)
{
	int a = OK(open("a", O_RDWR | O_CREAT, 0644)), b = OK(open("a", O_RDONLY));

	OK(flock(a, LOCK_EX | LOCK_NB));
	ERR(flock(b, LOCK_SH | LOCK_NB), EWOULDBLOCK);
	OK(flock(a, LOCK_UN));
	OK(flock(b, LOCK_SH | LOCK_NB));
	OK(flock(a, LOCK_SH | LOCK_NB));
	OK(close(b));
	OK(flock(a, LOCK_EX | LOCK_NB));
}

static void lock_step(int who)
{
	int fd;

	(void)who;
	for (int i = 0; i < 50; i++) {
		char buf[16] = { 0 };
		int count, guard = OK(open("guard", O_RDWR | O_CREAT, 0644));

		OK(lock(guard, F_OFD_SETLKW, F_WRLCK, 0, 0));
		fd = OK(open("count", O_RDWR | O_CREAT, 0644));
		OK(pread(fd, buf, 15, 0));
		count = atoi(buf) + 1;
		snprintf(buf, sizeof(buf), "%08d", count);
		EQ(pwrite(fd, buf, 8, 0), 8);
		OK(close(fd));
		OK(close(guard));
	}
}

/* Locks that wait, across processes, guard a counter in a file rewritten each time. */
static void locks_that_wait(void)
{
	char buf[16] = { 0 };
	int fd;

	in_processes(6, lock_step);
	fd = OK(open("count", O_RDONLY));
	OK(read(fd, buf, 15));
	EQ(atoi(buf), 300);
	OK(close(fd));
	durable(".");
	fd = OK(open(store("count"), O_RDONLY));
	OK(read(fd, buf, 15));
	EQ(atoi(buf), 300);
}

static void size_limit(void)
{
	struct rlimit lim = { 1000, 1000 };
	char buf[2000] = { 0 };
	int fd = OK(creat("a", 0644));

	signal(SIGXFSZ, SIG_IGN);
	OK(setrlimit(RLIMIT_FSIZE, &lim));
	EQ(write(fd, buf, 2000), 1000);
	ERR(write(fd, buf, 1), EFBIG);
	ERR(ftruncate(fd, 1001), EFBIG);
	OK(close(fd));
	EQ(stat_of("a").st_size, 1000);
}

static void by_handle(void)
{
	char path[64];
	int fd;

	put("a", 500, 1);
	fd = OK(open("a", O_PATH));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	same(path, 500, 1);
	OK(rename("a", "b"));
	same(path, 500, 1);
	put(path, 700, 2);
	same("b", 700, 2);
	durable("b");
	same(store("b"), 700, 2);
}

/* No handle is better than one that is stale when the kernel forgets the inode. */
static void file_handles(void)
{
	struct { struct file_handle h; char bytes[MAX_HANDLE_SZ]; } handle = { .h.handle_bytes = MAX_HANDLE_SZ };
	struct utsname u;
	int id, major = 0, minor = 0;

	only_on_cairn();
	OK(uname(&u));
	sscanf(u.release, "%d.%d", &major, &minor);
	if (major < 6 || (major == 6 && minor < 9))
		SKIP("this kernel cannot be told");
	put("a", 10, 1);
	ERR(name_to_handle_at(AT_FDCWD, "a", &handle.h, &id, 0), EOPNOTSUPP);
	ERR(name_to_handle_at(AT_FDCWD, ".", &handle.h, &id, 0), EOPNOTSUPP);
}

int main(int argc, char **argv)
{
#define C(name) { #name, name }
	static const struct check table[] = {
		C(modes), C(owners), C(times), C(generation_is_stable), C(directory_generation),
		C(fsync_keeps_mtime), C(block_size), C(file_system), C(extended_stat), C(allowed),
		C(masks), C(xattrs), C(many_xattrs), C(large_xattrs),
		C(xattrs_stay_with_the_file), C(cairn_xattrs), C(open_is_open),
		C(acls_refused), C(python_open), C(suid_cleared),
		C(suid_cleared_each_way), C(suid_of_other_kinds), C(ctime_of_links), C(another_user), C(by_fsuid),
		C(posix_locks), C(ofd_locks), C(flock_locks), C(locks_that_wait), C(size_limit),
		C(by_handle), C(file_handles), { NULL, NULL },
	};

	return check_main(argc, argv, table);
}

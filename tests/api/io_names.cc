// SPDX-License-Identifier: MIT
//
// Names, attributes and xattrs: one component at a time, never through a symlink.
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/api/io_fixture.hh"
#include "tests/api/io_seccomp.hh"

namespace
{

class Names : public ::testing::Test
{
protected:
	Names() : e("posix"), s(e, dir.path) { root = s.root(); }

	std::string xattr(const char *name, const char *key)
	{
		char v[256];
		ssize_t n = io_get_xattr(s, root, name, key, v, sizeof(v));
		return n < 0 ? strerror((int)-n) : std::string(v, (size_t)n);
	}
	int set_xattr(const char *name, const char *key, const std::string &v, int flags = 0)
	{
		return io_set_xattr(s, root, name, -1, key, v.data(), v.size(), flags);
	}
	struct stat lstat_of(const std::string &name)
	{
		struct stat st = {};
		EXPECT_EQ(lstat((dir / name).c_str(), &st), 0) << name;
		return st;
	}

	TempDir dir;
	Engine e;
	Store s;
	int root;
};

// Each call that takes a name, with that name.
std::vector<int> all_calls(io_store *s, int root, const char *n)
{
	char buf[300];
	struct stat st;
	io_attr a = {};

	a.mask = IO_ATTR_MODE;
	a.mode = 0600;
	return {
		io_open_dir(s, root, n),
		io_open_read(s, root, n, 0),
		io_stat(s, root, n, &st),
		(int)io_readlink(s, root, n, buf, sizeof(buf)),
		io_set_attr(s, root, n, &a),
		io_set_xattr(s, root, n, -1, "user.a", "", 0, 0),
		io_remove_xattr(s, root, n, "user.a"),
		(int)io_get_xattr(s, root, n, "user.a", buf, 1),
		(int)io_list_xattr(s, root, n, buf, 1),
		io_publish(s, 1, root, n),
		io_rename(s, root, n, root, "other", 0),
		io_rename(s, root, "file", root, n, 0),
		io_link(s, root, n, root, "other"),
		io_link(s, root, "file", root, n),
		io_unlink(s, root, n),
		io_rmdir(s, root, n),
		io_mkdir(s, root, n, 0700),
		io_symlink(s, "t", root, n),
		io_mknod(s, root, n, S_IFIFO | 0600),
	};
}

TEST_F(Names, OneComponentOnly)
{
	write_file(dir / "file", "x");
	mkdir((dir / "d").c_str(), 0700);
	write_file(dir / "d/in", "x");
	std::string before = read_file(dir / "file");
	for (auto bad : {"", ".", "..", "a/b", "d/in", "/", "/etc", "file/", "../x"})
		for (int err : all_calls(s, root, bad))
			EXPECT_EQ(err, -EINVAL) << bad;
	std::string longest(255, 'n'), longer(256, 'n');
	for (int err : all_calls(s, root, longer.c_str()))
		EXPECT_EQ(err, -ENAMETOOLONG);
	EXPECT_EQ(io_mkdir(s, root, longest.c_str(), 0700), 0);
	EXPECT_EQ(io_rmdir(s, root, longest.c_str()), 0);
	EXPECT_TRUE(std::filesystem::exists(dir / "d/in"));
}

TEST_F(Names, AnyBytes)
{
	for (std::string name : {"\x01\x02\n\t", "...", "\xff\xfe\x80", " ", "-rf", "%s%n", ".cairn2"}) {
		struct stat st;
		ASSERT_EQ(io_mkdir(s, root, name.c_str(), 0700), 0);
		EXPECT_EQ(io_stat(s, root, name.c_str(), &st), 0);
		EXPECT_EQ(set_xattr(name.c_str(), "user.k", "v"), 0);
		EXPECT_EQ(xattr(name.c_str(), "user.k"), "v");
		Fd d(io_open_dir(s, root, name.c_str()));
		EXPECT_GE(d.get(), 0);
		EXPECT_EQ(io_rmdir(s, root, name.c_str()), 0);
	}
}

void symlinks_are_not_followed(io_store *s, TempDir &dir)
{
	TempDir outside;
	int root = io_store_root(s);
	char buf[64];
	struct stat st;
	io_attr a = {};

	write_file(outside / "secret", "secret");
	chmod((outside / "secret").c_str(), 0600);
	ASSERT_EQ(symlink((outside / "secret").c_str(), (dir / "f").c_str()), 0);
	ASSERT_EQ(symlink(outside.path.c_str(), (dir / "d").c_str()), 0);
	EXPECT_EQ(io_open_dir(s, root, "d"), -ELOOP);
	EXPECT_EQ(io_open_dir(s, root, "f"), -ELOOP);
	EXPECT_EQ(io_open_read(s, root, "f", 0), -ELOOP);
	EXPECT_EQ(io_stat(s, root, "f", &st), 0);
	EXPECT_TRUE(S_ISLNK(st.st_mode));
	EXPECT_GT(io_readlink(s, root, "f", buf, sizeof(buf)), 0);
	EXPECT_EQ(io_readlink(s, root, "f", buf, 3), -ENAMETOOLONG);

	a.mask = IO_ATTR_MODE;
	a.mode = 0777;
	EXPECT_EQ(io_set_attr(s, root, "f", &a), -EOPNOTSUPP);
	a.mask = IO_ATTR_MTIME | IO_ATTR_OWNER;
	a.mtime = {1000, 5};
	a.uid = geteuid();
	a.gid = (gid_t)-1;
	EXPECT_EQ(io_set_attr(s, root, "f", &a), 0); // of the link itself
	lstat((dir / "f").c_str(), &st);
	EXPECT_EQ(st.st_mtim.tv_sec, 1000);
	EXPECT_EQ(io_set_xattr(s, root, "f", -1, "user.k", "v", 1, 0), -EPERM);
	EXPECT_LT(io_get_xattr(s, root, "f", "user.k", buf, sizeof(buf)), 0);
	EXPECT_EQ(io_list_xattr(s, root, "f", buf, sizeof(buf)), 0);

	EXPECT_EQ(io_link(s, root, "f", root, "f2"), 0); // the link gets a name, not its target
	lstat((dir / "f2").c_str(), &st);
	EXPECT_TRUE(S_ISLNK(st.st_mode));
	EXPECT_EQ(io_unlink(s, root, "f"), 0);
	EXPECT_EQ(io_rmdir(s, root, "d"), -ENOTDIR);

	stat((outside / "secret").c_str(), &st);
	EXPECT_EQ(st.st_mode & 0777, 0600u);
	EXPECT_NE(st.st_mtim.tv_sec, 1000);
	EXPECT_EQ(read_file(outside / "secret"), "secret");
	EXPECT_LT(getxattr((outside / "secret").c_str(), "user.k", buf, sizeof(buf)), 0);
}

TEST_F(Names, SymlinksAreNotFollowed)
{
	symlinks_are_not_followed(s, dir);
}

// Kernels before 5.6 have no openat2, before 6.6 no fchmodat2: the same must hold.
TEST_F(Names, SymlinksAreNotFollowedByAnOlderKernel)
{
	EXPECT_EQ(in_child([&] {
			  refuse_syscall(SYS_openat2, ENOSYS);
			  refuse_syscall(452 /* fchmodat2 */, ENOSYS);
			  symlinks_are_not_followed(s, dir);
			  write_file(dir / "plain", "x");
			  io_attr a = {};
			  a.mask = IO_ATTR_MODE;
			  a.mode = 0751;
			  EXPECT_EQ(io_set_attr(s, root, "plain", &a), 0);
			  EXPECT_EQ(lstat_of("plain").st_mode & 07777, 0751u);
			  a.mode = 0705;
			  EXPECT_EQ(io_set_attr(s, root, nullptr, &a), 0);
			  EXPECT_EQ(lstat_of("").st_mode & 07777, 0705u);
			  EXPECT_EQ(io_open_dir(s, root, "plain"), -ENOTDIR);
			  EXPECT_EQ(io_open_dir(s, root, "nothing"), -ENOENT);
			  Fd fd(io_open_read(s, root, "plain", 0));
			  EXPECT_EQ(read_fd(fd.get()), "x");
		  }),
		  0);
}

TEST_F(Names, OpenReadIsForRegularFiles)
{
	mkdir((dir / "d").c_str(), 0700);
	ASSERT_EQ(io_mknod(s, root, "fifo", S_IFIFO | 0600), 0); // an open would block
	ASSERT_EQ(io_mknod(s, root, "sock", S_IFSOCK | 0600), 0);
	write_file(dir / "f", "bytes");
	for (auto n : {"d", "fifo", "sock"})
		EXPECT_EQ(io_open_read(s, root, n, 0), -EINVAL) << n;
	EXPECT_EQ(io_open_read(s, root, "none", 0), -ENOENT);
	for (int bad : {O_WRONLY, O_RDWR, O_CREAT, O_TRUNC})
		EXPECT_EQ(io_open_read(s, root, "f", bad), -EINVAL);
	EXPECT_EQ(read_file(dir / "f"), "bytes");
	Fd fd(io_open_read(s, root, "f", O_DIRECT));
	ASSERT_GE(fd.get(), 0);
	EXPECT_EQ(fcntl(fd.get(), F_GETFL) & (O_DIRECT | O_NONBLOCK | O_ACCMODE), O_DIRECT | O_RDONLY);
	EXPECT_TRUE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
	EXPECT_EQ(read_fd(fd.get()), "bytes");
}

TEST_F(Names, SpecialFilesAreFewKinds)
{
	EXPECT_EQ(mode_t(lstat_of("").st_mode & S_IFMT), mode_t(S_IFDIR));
	for (mode_t bad : {S_IFCHR | 0600, S_IFBLK | 0600, S_IFREG | 0600, S_IFDIR | 0700, 0600})
		EXPECT_EQ(io_mknod(s, root, "n", bad), -EPERM);
	EXPECT_FALSE(std::filesystem::exists(dir / "n"));
}

TEST_F(Names, TmpNames)
{
	char name[17];
	bool d;

	io_tmp_name(0x0123456789abcdefu, name);
	EXPECT_STREQ(name, "0123456789abcdef");
	io_tmp_name(10, name);
	EXPECT_STREQ(name, "000000000000000a");
	EXPECT_EQ(io_tmp_open(s, 10, O_RDONLY), -ENOENT);
	EXPECT_EQ(io_tmp_remove(s, 10), 0);
	Fd fd(io_tmp_create(s, 10, false, &d));
	ASSERT_GE(fd.get(), 0);
	EXPECT_EQ(io_pwrite(s, fd.get(), "abc", 3, 0), 0);
	struct stat st;
	ASSERT_EQ(fstatat(io_store_tmp(s), name, &st, 0), 0);
	EXPECT_EQ(st.st_mode & 07777, 0600u);
	EXPECT_EQ(st.st_size, 3);
	Fd again(io_tmp_open(s, 10, O_RDWR));
	EXPECT_EQ(read_fd(again.get()), "abc");
	EXPECT_EQ(io_tmp_open(s, 10, O_RDWR | O_TRUNC), -EINVAL);
	EXPECT_EQ(io_tmp_open(s, 11, O_RDWR | O_CREAT), -EINVAL);
	Fd fresh(io_tmp_create(s, 10, false, &d)); // truncates
	EXPECT_EQ(read_fd(fresh.get()), "");
	EXPECT_EQ(io_tmp_remove(s, 10), 0);
	EXPECT_EQ(io_tmp_remove(s, 10), 0);
}

TEST_F(Names, PublishReplaces)
{
	bool d;

	for (int i = 0; i < 2; i++) {
		Fd fd(io_tmp_create(s, 5, false, &d));
		ASSERT_EQ(io_pwrite(s, fd.get(), i ? "new" : "old", 3, 0), 0);
		ASSERT_EQ(io_publish(s, 5, root, "name"), 0);
		EXPECT_EQ(read_file(dir / "name"), i ? "new" : "old");
	}
	EXPECT_EQ(io_publish(s, 5, root, "name"), -ENOENT);
	mkdir((dir / "d").c_str(), 0700);
	Fd fd(io_tmp_create(s, 6, false, &d));
	EXPECT_EQ(io_publish(s, 6, root, "d"), -EISDIR);
	Fd sub(io_open_dir(s, root, "d"));
	EXPECT_EQ(io_publish(s, 6, sub.get(), "deep"), 0);
	EXPECT_TRUE(std::filesystem::exists(dir / "d/deep"));
}

TEST_F(Names, Renames)
{
	write_file(dir / "a", "A");
	write_file(dir / "b", "B");
	EXPECT_EQ(io_rename(s, root, "a", root, "b", RENAME_NOREPLACE), -EEXIST);
	EXPECT_EQ(io_rename(s, root, "a", root, "b", RENAME_EXCHANGE), 0);
	EXPECT_EQ(read_file(dir / "a") + read_file(dir / "b"), "BA");
	EXPECT_EQ(io_rename(s, root, "a", root, "b", 0), 0);
	EXPECT_EQ(read_file(dir / "b"), "B");
	EXPECT_EQ(io_rename(s, root, "a", root, "b", 0), -ENOENT);
	EXPECT_EQ(io_rename(s, root, "b", root, nullptr, 0), -EINVAL);
	EXPECT_EQ(io_mkdir(s, root, "d1", 0750), 0);
	EXPECT_EQ(io_mkdir(s, root, "d1", 0750), -EEXIST);
	EXPECT_EQ(io_rename(s, root, "d1", root, "d2", 0), 0);
	Fd d2(io_open_dir(s, root, "d2"));
	EXPECT_EQ(io_rename(s, root, "b", d2.get(), "c", 0), 0);
	EXPECT_EQ(read_file(dir / "d2/c"), "B");
	EXPECT_EQ(io_rmdir(s, root, "d2"), -ENOTEMPTY);
	EXPECT_EQ(io_unlink(s, root, "d2"), -EISDIR);
}

size_t entries(int dirfd)
{
	size_t n = 0;
	for (auto &x : std::filesystem::directory_iterator("/proc/self/fd/" + std::to_string(dirfd)))
		n += !x.path().empty();
	return n;
}

TEST_F(Names, LinkReplacesAtomically)
{
	write_file(dir / "a", "A");
	write_file(dir / "b", "B");
	ino_t a = lstat_of("a").st_ino;
	EXPECT_EQ(io_link(s, root, "a", root, "new"), 0);
	EXPECT_EQ(lstat_of("new").st_ino, a);
	EXPECT_EQ(io_link(s, root, "a", root, "b"), 0); // replaces
	EXPECT_EQ(lstat_of("b").st_ino, a);
	EXPECT_EQ(lstat_of("a").st_nlink, 3u);
	EXPECT_EQ(io_link(s, root, "a", root, "b"), 0); // is it already
	EXPECT_EQ(lstat_of("a").st_nlink, 3u);
	EXPECT_EQ(io_link(s, root, "a", root, "a"), 0);
	EXPECT_EQ(lstat_of("a").st_nlink, 3u);
	EXPECT_EQ(io_link(s, root, "none", root, "b"), -ENOENT);
	EXPECT_EQ(io_link(s, root, "a", root, nullptr), -EINVAL);
	mkdir((dir / "d").c_str(), 0700);
	EXPECT_EQ(io_link(s, root, "a", root, "d"), -EISDIR);
	EXPECT_EQ(lstat_of("a").st_nlink, 3u);
	EXPECT_EQ(io_link(s, root, "d", root, "e"), -EPERM);
	EXPECT_EQ(entries(io_store_tmp(s)), 0u); // nothing left beside
}

TEST_F(Names, AttrsByNameAndDescriptor)
{
	bool d;
	Fd fd(io_tmp_create(s, 1, false, &d));
	io_attr a = {};

	write_file(dir / "f", "x");
	a.mask = IO_ATTR_MODE | IO_ATTR_OWNER | IO_ATTR_ATIME | IO_ATTR_MTIME;
	a.mode = 04755; // chown clears suid: it must be set after
	a.uid = geteuid() ? (uid_t)-1 : 4711;
	a.gid = geteuid() ? (gid_t)-1 : 4712;
	a.atime = {111, 222};
	a.mtime = {333, 444};
	EXPECT_EQ(io_set_attr(s, root, "f", &a), 0);
	EXPECT_EQ(io_set_attr_fd(s, fd.get(), &a), 0);
	EXPECT_EQ(io_publish(s, 1, root, "g"), 0);
	for (auto n : {"f", "g"}) {
		struct stat st = lstat_of(n);
		EXPECT_EQ(st.st_mode & 07777, 04755u) << n;
		EXPECT_EQ(st.st_uid, geteuid() ? geteuid() : 4711) << n;
		EXPECT_EQ(st.st_gid, geteuid() ? getegid() : 4712) << n;
		EXPECT_EQ(st.st_atim.tv_sec, 111) << n;
		EXPECT_EQ(st.st_atim.tv_nsec, 222) << n;
		EXPECT_EQ(st.st_mtim.tv_sec, 333) << n;
		EXPECT_EQ(st.st_mtim.tv_nsec, 444) << n;
	}
	a.mask = IO_ATTR_MTIME; // and only that
	a.mtime = {555, 0};
	EXPECT_EQ(io_set_attr(s, root, "f", &a), 0);
	EXPECT_EQ(lstat_of("f").st_mtim.tv_sec, 555);
	EXPECT_EQ(lstat_of("f").st_atim.tv_sec, 111);
	EXPECT_EQ(lstat_of("f").st_mode & 07777, 04755u);
	auto before = e.counts().ops;
	a.mask = 0;
	EXPECT_EQ(io_set_attr(s, root, "f", &a), 0);
	EXPECT_EQ(e.counts().ops, before);
	a.mask = IO_ATTR_MODE;
	EXPECT_EQ(io_set_attr(s, root, "none", &a), -ENOENT);
}

TEST_F(Names, AttrsOfAPathDescriptor)
{
	io_attr a = {};

	ASSERT_EQ(io_mkdir(s, root, "d", 0700), 0);
	Fd d(io_open_dir(s, root, "d"));
	a.mask = IO_ATTR_MODE | IO_ATTR_OWNER | IO_ATTR_MTIME;
	a.mode = 02750;
	a.uid = geteuid();
	a.gid = getegid();
	a.mtime = {777, 888};
	EXPECT_EQ(io_set_attr_fd(s, d.get(), &a), 0);
	EXPECT_EQ(lstat_of("d").st_mode & 07777, 02750u);
	EXPECT_EQ(lstat_of("d").st_mtim.tv_nsec, 888);
	struct stat st;
	EXPECT_EQ(io_stat(s, d.get(), nullptr, &st), 0);
	EXPECT_EQ(st.st_ino, lstat_of("d").st_ino);
	a.mode = 0711;
	EXPECT_EQ(io_set_attr(s, d.get(), nullptr, &a), 0);
	EXPECT_EQ(lstat_of("d").st_mode & 07777, 0711u);
}

TEST_F(Names, Xattrs)
{
	bool d;
	char v[64];

	if (!io_store_has_xattr(s))
		GTEST_SKIP() << "no user xattrs here";
	write_file(dir / "f", "x");
	EXPECT_EQ(xattr("f", "user.k"), strerror(ENODATA));
	EXPECT_EQ(set_xattr("f", "user.k", "one", XATTR_REPLACE), -ENODATA);
	EXPECT_EQ(set_xattr("f", "user.k", "one"), 0);
	EXPECT_EQ(set_xattr("f", "user.k", "two", XATTR_CREATE), -EEXIST);
	EXPECT_EQ(set_xattr("f", "user.k", ""), 0);
	EXPECT_EQ(xattr("f", "user.k"), "");
	EXPECT_EQ(set_xattr("f", "user.k", std::string("a\0b", 3)), 0);
	EXPECT_EQ(xattr("f", "user.k"), std::string("a\0b", 3));
	EXPECT_EQ(io_get_xattr(s, root, "f", "user.k", v, 2), -ERANGE);
	EXPECT_EQ(io_get_xattr(s, root, "f", "user.k", nullptr, 0), 3);
	EXPECT_EQ(set_xattr("f", "user.cairn.checksum", "sum"), 0);
	ssize_t n = io_list_xattr(s, root, "f", v, sizeof(v));
	EXPECT_EQ(n, (ssize_t)(sizeof("user.k") + sizeof("user.cairn.checksum")));
	EXPECT_EQ(io_list_xattr(s, root, "f", nullptr, 0), n);
	EXPECT_EQ(io_list_xattr(s, root, "f", v, 3), -ERANGE);
	EXPECT_EQ(io_remove_xattr(s, root, "f", "user.k"), 0);
	EXPECT_EQ(io_remove_xattr(s, root, "f", "user.k"), -ENODATA);
	EXPECT_EQ(set_xattr("none", "user.k", "v"), -ENOENT);

	Fd fd(io_tmp_create(s, 1, false, &d)); // a descriptor wins over a name
	EXPECT_EQ(io_set_xattr(s, root, "f", fd.get(), "user.k", "fd", 2, 0), 0);
	EXPECT_EQ(xattr("f", "user.k"), strerror(ENODATA));
	EXPECT_EQ(io_publish(s, 1, root, "g"), 0);
	EXPECT_EQ(xattr("g", "user.k"), "fd");

	ASSERT_EQ(io_mkdir(s, root, "d", 0700), 0);
	Fd path(io_open_dir(s, root, "d"));
	EXPECT_EQ(io_set_xattr(s, -1, nullptr, path.get(), "user.k", "dir", 3, 0), 0);
	EXPECT_EQ(io_get_xattr(s, path.get(), nullptr, "user.k", v, sizeof(v)), 3);
	EXPECT_EQ(xattr("d", "user.k"), "dir");
	EXPECT_EQ(io_list_xattr(s, path.get(), nullptr, v, sizeof(v)), (ssize_t)sizeof("user.k"));
	EXPECT_EQ(io_remove_xattr(s, path.get(), nullptr, "user.k"), 0);
	EXPECT_EQ(xattr("d", "user.k"), strerror(ENODATA));
}

TEST_F(Names, SyncsWhatIsNotOpenForIt)
{
	auto before = e.counts().syncs;

	ASSERT_EQ(io_mkdir(s, root, "d", 0700), 0);
	Fd d(io_open_dir(s, root, "d"));
	EXPECT_EQ(io_sync_dir(s, d.get()), 0);
	EXPECT_EQ(io_sync_dir(s, root), 0);
	EXPECT_EQ(io_sync_all(s), 0);
	Fd path(io_open_dir(s, root, "d"));
	EXPECT_EQ(io_sync_data(s, path.get()), -EIO); // EBADF of an O_PATH descriptor: io_errno()
	EXPECT_EQ(e.counts().syncs, before + 4);
}

TEST_F(Names, SumOfAFile)
{
	// as `xxhsum -H2` prints them
	const std::pair<std::string, const char *> known[] = {
		{"", "xxh3:99aa06d3014798d86001c324468d497f"},
		{"abc", "xxh3:06b05ab6733a618578af5f94892f3950"},
	};
	char text[IO_CHECKSUM_LEN], streamed[IO_CHECKSUM_LEN];

	for (auto &k : known) {
		write_file(dir / "k", k.first);
		Fd fd(io_open_read(s, root, "k", 0));
		ASSERT_EQ(io_sum_file(fd.get(), text), 0);
		EXPECT_STREQ(text, k.second);
	}
	io_sum *m = io_sum_new();
	for (size_t size : {1u, 4095u, 4096u, 4097u, 4u << 20, (4u << 20) + 1, (9u << 20) - 7}) {
		std::string bytes = pattern(size, size);

		write_file(dir / "f", bytes);
		ASSERT_EQ(truncate((dir / "f").c_str(), (off_t)size + 10000), 0); // a hole behind
		io_sum_reset(m);
		for (size_t at = 0; at < size; at += 7777)
			io_sum_add(m, &bytes[at], std::min<size_t>(7777, size - at));
		io_sum_zeros(m, 10000);
		io_sum_text(m, streamed);
		Fd fd(io_open_read(s, root, "f", 0));
		lseek(fd.get(), 3, SEEK_SET);
		ASSERT_EQ(io_sum_file(fd.get(), text), 0);
		EXPECT_STREQ(text, streamed);
		EXPECT_EQ(lseek(fd.get(), 0, SEEK_CUR), 3); // the caller's position is its own
	}
	io_sum_free(m);
	io_sum_free(nullptr);
	EXPECT_LT(io_sum_file(-1, text), 0);
}

// Each range as if it were all, however the bytes come.
TEST(Sum, RangesHaveTheChecksumsOfTheirBytes)
{
	std::string bytes(100001, 0);
	for (size_t i = 0; i < bytes.size(); i++)
		bytes[i] = static_cast<char>(i * i >> 7);
	auto sum_of = [](const std::string &of) {
		char text[IO_CHECKSUM_LEN];
		io_sum *m = io_sum_new();
		io_sum_add(m, of.data(), of.size());
		io_sum_text(m, text);
		io_sum_free(m);
		return std::string(text);
	};
	auto add = [](void *ctx, uint64_t number, const char *sum) {
		auto *v = static_cast<std::vector<std::string> *>(ctx);
		v->resize(number);
		v->push_back(sum);
	};
	for (size_t size : {0u, 1u, 999u, 1000u, 1001u, 3000u, 100001u}) {
		std::vector<std::string> want, got;
		for (size_t at = 0; at < size; at += 1000)
			want.push_back(sum_of(bytes.substr(0, size).substr(at, 1000)));
		for (size_t piece : {1u, 7u, 1000u, 3500u, 200000u}) {
			char text[IO_CHECKSUM_LEN];
			io_sum *m = io_sum_new();
			ASSERT_EQ(io_sum_ranges(m, 1000, add, &got), 0);
			io_sum_add(m, bytes.data(), 2500);
			io_sum_reset(m); // it begins again
			got.clear();
			for (size_t at = 0; at < size; at += piece)
				io_sum_add(m, &bytes[at], std::min(piece, size - at));
			io_sum_last_range(m);
			io_sum_text(m, text);
			EXPECT_EQ(got, want) << size << " in pieces of " << piece;
			EXPECT_EQ(text, sum_of(bytes.substr(0, size)));
			io_sum_free(m);
		}
	}
}

// seccomp without io_uring, as container runtimes set it: posix, and said once.
TEST(Fallback, NoIoUringMeansPosix)
{
	for (int how : {EPERM, ENOSYS})
		EXPECT_EQ(in_child([&] {
				  refuse_syscall(SYS_io_uring_setup, how);
				  TempDir dir;
				  Engine e("uring");
				  ASSERT_EQ(e.err, 0);
				  EXPECT_STREQ(io_engine_name(e.e), "posix");
				  EXPECT_EQ(e.notes_with("io_uring"), 1);
				  Store s(e, dir.path);
				  Source src(50000);
				  bool d;
				  Fd fd(io_tmp_create(s, 1, true, &d));
				  src.data(0, 50000, 1);
				  io_source in = src.get();
				  EXPECT_EQ(io_write_file(e.q, fd.get(), d, &in), 0);
				  EXPECT_SAME(read_fd(fd.get()), src.bytes());
			  }),
			  0);
}

// No thread to be had: the posix queue writes in the caller's.
TEST(Fallback, NoThreadsMeansTheCallers)
{
	EXPECT_EQ(in_child([&] {
			  TempDir dir;
			  Engine e("posix", nullptr, 4096, 4);
			  Store s(e, dir.path);
			  Source src(50000);
			  bool d;
			  Fd fd(io_tmp_create(s, 1, true, &d));
			  refuse_syscall(SYS_clone, EAGAIN);
			  refuse_syscall(SYS_clone3, EAGAIN);
			  src.data(0, 50000, 1);
			  io_source in = src.get();
			  EXPECT_EQ(io_write_file(e.q, fd.get(), d, &in), 0);
			  EXPECT_SAME(read_fd(fd.get()), src.bytes());
		  }),
		  0);
}

// The other threads have them open, and not for long.
TEST_F(Names, AnOpenWaitsForADescriptor)
{
	ASSERT_EQ(mkdir((dir / "d").c_str(), 0700), 0);
	Descriptors few(64);
	few.take();
	bool direct;
	std::function<int()> opens[] = {[&] { return io_open_list(s, root); },
					[&] { return io_open_dir(s, root, "d"); },
					[&] { return io_tmp_create(s, 1, false, &direct); }};
	std::vector<Fd> opened;
	for (auto &open : opens) {
		std::thread t([&] {
			std::this_thread::sleep_for(std::chrono::milliseconds(50));
			few.give();
		});
		opened.emplace_back(open());
		EXPECT_GE(opened.back().get(), 0) << strerror(-opened.back().get());
		t.join();
	}
}

} // namespace

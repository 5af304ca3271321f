// SPDX-License-Identifier: MIT
//
// A store without xattrs (a ramfs): user.cairn.* live in STORE/.cairn/meta, follow their
// inode, go with it, and whatever else lies there is not believed.
#include <sys/xattr.h>

#include <random>

#include "tests/api/io_fixture.hh"

namespace
{

class Sidecar : public ::testing::Test
{
protected:
	void SetUp() override
	{
		if (!m.ok)
			GTEST_SKIP() << "mounting is not allowed here";
		s.reset(new Store(e, m.dir.path));
		ASSERT_EQ(s->err, 0);
		ASSERT_FALSE(io_store_has_xattr(*s));
		root = s->root();
		for (auto n : {"f", "g"})
			write_file(m.dir / n, n);
	}
	std::string get(const char *name, const char *key = "user.cairn.checksum")
	{
		char v[256];
		ssize_t n = io_get_xattr(*s, root, name, key, v, sizeof(v));
		return n < 0 ? strerror((int)-n) : std::string(v, (size_t)n);
	}
	int set(const char *name, const std::string &v, const char *key = "user.cairn.checksum",
		int flags = 0)
	{
		return io_set_xattr(*s, root, name, -1, key, v.data(), v.size(), flags);
	}
	std::vector<std::string> files()
	{
		std::vector<std::string> out;
		for (auto &x : std::filesystem::directory_iterator(m.dir / ".cairn/meta"))
			out.push_back(x.path());
		return out;
	}

	Mount m{"ramfs"};
	Engine e{"posix"};
	std::unique_ptr<Store> s;
	int root = -1;
	const std::string none = strerror(ENODATA);
};

TEST_F(Sidecar, RoundTrip)
{
	char v[64];

	EXPECT_EQ(get("f"), none);
	EXPECT_EQ(set("f", "one", "user.cairn.checksum", XATTR_REPLACE), -ENODATA);
	EXPECT_EQ(set("f", "one"), 0);
	EXPECT_EQ(get("f"), "one");
	EXPECT_EQ(get("g"), none);
	EXPECT_EQ(set("f", "longer than one"), 0);
	EXPECT_EQ(set("f", "2", "user.cairn.ino"), 0);
	EXPECT_EQ(set("f", "x", "user.cairn.ino", XATTR_CREATE), -EEXIST);
	EXPECT_EQ(set("f", std::string("\0", 1), "user.cairn.zero"), 0);
	EXPECT_EQ(set("f", "", "user.cairn.empty"), 0);
	EXPECT_EQ(get("f"), "longer than one");
	EXPECT_EQ(get("f", "user.cairn.ino"), "2");
	EXPECT_EQ(get("f", "user.cairn.zero"), std::string("\0", 1));
	EXPECT_EQ(get("f", "user.cairn.empty"), "");
	EXPECT_EQ(get("f", "user.cairn.in"), none);
	EXPECT_EQ(io_get_xattr(*s, root, "f", "user.cairn.checksum", v, 3), -ERANGE);
	EXPECT_EQ(io_get_xattr(*s, root, "f", "user.cairn.checksum", nullptr, 0), 15);
	EXPECT_EQ(files().size(), 1u);
	EXPECT_EQ(io_remove_xattr(*s, root, "f", "user.cairn.ino"), 0);
	EXPECT_EQ(io_remove_xattr(*s, root, "f", "user.cairn.ino"), -ENODATA);
	std::string list("user.cairn.checksum\0user.cairn.zero\0user.cairn.empty\0", 53);
	ssize_t n = io_list_xattr(*s, root, "f", v, sizeof(v));
	ASSERT_EQ(n, (ssize_t)list.size());
	EXPECT_EQ(std::string(v, (size_t)n), list);
	EXPECT_EQ(io_list_xattr(*s, root, "f", nullptr, 0), n);
	EXPECT_EQ(io_list_xattr(*s, root, "f", v, 20), -ERANGE);
	EXPECT_EQ(io_list_xattr(*s, root, "g", v, 20), 0);
	for (auto k : {"user.cairn.checksum", "user.cairn.zero", "user.cairn.empty"})
		EXPECT_EQ(io_remove_xattr(*s, root, "f", k), 0);
	EXPECT_TRUE(files().empty());
}

TEST_F(Sidecar, OtherKeysAreNotSupported)
{
	EXPECT_EQ(set("f", "v", "user.mine"), -EOPNOTSUPP);
	EXPECT_EQ(get("f", "user.mine"), strerror(EOPNOTSUPP));
	EXPECT_EQ(io_remove_xattr(*s, root, "f", "user.mine"), -EOPNOTSUPP);
	EXPECT_EQ(set("none", "v"), -ENOENT);
	EXPECT_EQ(set("f", "v", ("user.cairn." + std::string(300, 'k')).c_str()), -ERANGE);
	EXPECT_EQ(set("f", std::string(70000, 'v')), -ENOSPC);
	EXPECT_EQ(get("f"), none);
}

TEST_F(Sidecar, FollowsTheInode)
{
	bool d;
	Fd fd(io_tmp_create(*s, 1, false, &d));

	EXPECT_EQ(io_set_xattr(*s, -1, nullptr, fd.get(), "user.cairn.checksum", "t", 1, 0), 0);
	EXPECT_EQ(set("f", "of f"), 0);
	EXPECT_EQ(io_rename(*s, root, "f", root, "h", 0), 0);
	EXPECT_EQ(get("h"), "of f");
	EXPECT_EQ(io_link(*s, root, "h", root, "i"), 0);
	EXPECT_EQ(io_unlink(*s, root, "h"), 0);
	EXPECT_EQ(get("i"), "of f"); // a name is left
	EXPECT_EQ(files().size(), 2u);
	EXPECT_EQ(io_publish(*s, 1, root, "i"), 0); // replaces the last one
	EXPECT_EQ(get("i"), "t");
	EXPECT_EQ(files().size(), 1u);
	EXPECT_EQ(io_link(*s, root, "i", root, "j"), 0);
	EXPECT_EQ(io_rename(*s, root, "i", root, "j", 0), 0); // two names of one inode: nothing
	EXPECT_EQ(get("j"), "t");
	EXPECT_EQ(set("g", "of g"), 0);
	EXPECT_EQ(io_rename(*s, root, "g", root, "g", 0), 0);
	EXPECT_EQ(get("g"), "of g");
	EXPECT_EQ(io_unlink(*s, root, "g"), 0);
	ASSERT_EQ(io_mkdir(*s, root, "d", 0700), 0);
	EXPECT_EQ(set("d", "dir"), 0);
	EXPECT_EQ(io_rmdir(*s, root, "none"), -ENOENT);
	EXPECT_EQ(get("d"), "dir");
	EXPECT_EQ(io_rmdir(*s, root, "d"), 0);
	EXPECT_EQ(io_unlink(*s, root, "i"), 0);
	EXPECT_EQ(io_unlink(*s, root, "j"), 0);
	EXPECT_TRUE(files().empty());
}

TEST_F(Sidecar, SurvivesReopening)
{
	EXPECT_EQ(set("f", "kept"), 0);
	s.reset();
	Engine e2("posix");
	{
		Store ro(e2, m.dir.path, true);
		char v[8];
		ASSERT_EQ(ro.err, 0);
		EXPECT_EQ(io_get_xattr(ro, ro.root(), "f", "user.cairn.checksum", v, 8), 4);
	}
	s.reset(new Store(e2, m.dir.path));
	root = s->root();
	EXPECT_EQ(get("f"), "kept");
}

TEST_F(Sidecar, DamagedOnesAreNotBelieved)
{
	std::mt19937_64 rng(1);

	EXPECT_EQ(set("f", "the value"), 0);
	EXPECT_EQ(set("f", "12", "user.cairn.ino"), 0);
	ASSERT_EQ(files().size(), 1u);
	std::string path = files()[0], good = read_file(path);
	for (size_t len = 0; len < good.size(); len++) { // torn at every length
		write_file(path, good.substr(0, len));
		EXPECT_EQ(get("f"), none) << len;
	}
	for (size_t i = 0; i < good.size(); i++) { // every byte wrong
		std::string bad = good;
		bad[i] = (char)(bad[i] ^ (1 + rng() % 255));
		write_file(path, bad);
		EXPECT_EQ(get("f"), none) << i;
	}
	write_file(path, good + "x");
	EXPECT_EQ(get("f"), none);
	write_file(path, std::string(1 << 20, 'x'));
	EXPECT_EQ(get("f"), none);
	EXPECT_EQ(set("f", "again"), 0); // and it can be set anew
	EXPECT_EQ(get("f"), "again");
	EXPECT_EQ(get("f", "user.cairn.ino"), none);
}

TEST_F(Sidecar, SymlinkInItsPlaceIsRefused)
{
	EXPECT_EQ(set("f", "v"), 0);
	std::string path = files()[0], secret = m.dir / "secret";
	ASSERT_EQ(rename(path.c_str(), secret.c_str()), 0);
	ASSERT_EQ(symlink(secret.c_str(), path.c_str()), 0);
	EXPECT_EQ(get("f"), strerror(ELOOP));
	EXPECT_EQ(set("f", "w"), -ELOOP);
}

TEST_F(Sidecar, GoesThroughTheTable)
{
	Engine failing("posix", "1:@1:eio");

	s.reset();
	Store faulty(failing, m.dir.path);
	ASSERT_EQ(faulty.err, 0);
	EXPECT_EQ(io_set_xattr(faulty, faulty.root(), "f", -1, "user.cairn.checksum", "v", 1, 0), -EIO);
	EXPECT_EQ(io_set_xattr(faulty, faulty.root(), "f", -1, "user.cairn.checksum", "v", 1, 0), 0);
}

} // namespace

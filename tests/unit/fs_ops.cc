// SPDX-License-Identifier: MIT
// timeout: 300
//
// What each operation does and each error it answers, asked as the kernel asks (fs_client.hh). A test has a
// directory of its own on one mount, unless it spoils the mount for others.
#include <sys/resource.h>

#include "tests/unit/fs_client.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR, unknown = 1ull << 40, control_dir = 2, views_dir = 15;
const std::string too_long(256, 'n');

class Mounted : public ::testing::Test
{
protected:
	static void SetUpTestSuite()
	{
		ground = std::make_unique<Ground>();
		t = std::make_unique<LiveTree>(*ground, true, true);
		ASSERT_EQ(t->err, 0);
		client = std::make_unique<Client>(*t, 0);
	}
	static void TearDownTestSuite()
	{
		client.reset();
		t.reset();
		ground.reset();
	}
	void SetUp() override
	{
		name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
		ASSERT_EQ(k.mkdir(root, name, 0777), 0);
		dir = k.id;
	}
	void TearDown() override { k.uid = k.gid = 0; }
	void as(uint32_t uid)
	{
		k.uid = k.gid = uid;
		k.pid = 0;	// no process: no groups but this
	}
	void as_root()
	{
		k.uid = k.gid = 0;
		k.pid = (uint32_t)getpid();
	}
	// Everything accepted is in the store.
	void drain() { ASSERT_EQ(staging_drain(t->s(), 60000), 0); }
	std::string stored(const std::string &n) { return ground->store() + "/" + name + "/" + n; }
	struct stat stat_stored(const std::string &n)
	{
		struct stat st = {};
		EXPECT_EQ(lstat(stored(n).c_str(), &st), 0) << n;
		return st;
	}
	bool is_stored(const std::string &n)
	{
		struct stat st;
		return !lstat(stored(n).c_str(), &st);
	}
	fuse_attr attr_of(uint64_t id)
	{
		EXPECT_EQ(k.getattr(id), 0);
		return k.attr;
	}
	fuse_attr attr_of(const std::string &n)
	{
		EXPECT_EQ(k.lookup(dir, n), 0);
		return k.attr;
	}
	static std::pair<uint64_t, uint32_t> mtime(const fuse_attr &a) { return {a.mtime, a.mtimensec}; }
	static std::pair<uint64_t, uint32_t> ctime(const fuse_attr &a) { return {a.ctime, a.ctimensec}; }
	uint64_t seal_of(uint64_t id) { return shim_seal_seq(t->fs, id); }

	static std::unique_ptr<Ground> ground;
	static std::unique_ptr<LiveTree> t;
	static std::unique_ptr<Client> client;
	Client &k = *client;
	std::string name;
	uint64_t dir = 0;
};

std::unique_ptr<Ground> Mounted::ground;
std::unique_ptr<LiveTree> Mounted::t;
std::unique_ptr<Client> Mounted::client;

// ---- names ----

class Names : public Mounted
{
};

TEST_F(Names, LookupOfANameThatIsNotThere)
{
	EXPECT_EQ(k.lookup(dir, "none"), -ENOENT);
}

TEST_F(Names, LookupInADirectoryThatNobodyKnows)
{
	EXPECT_EQ(k.lookup(unknown, "name"), -ESTALE);
}

TEST_F(Names, LookupFindsWhatTheStoreHas)
{
	drain();
	write_file(stored("theirs"), "bytes");
	ASSERT_EQ(k.lookup(dir, "theirs"), 0);
	EXPECT_EQ(k.attr.size, 5u);
	EXPECT_EQ(k.attr.mtime, (uint64_t)stat_stored("theirs").st_mtime);
	EXPECT_EQ(k.get(dir, "theirs"), "bytes");
}

TEST_F(Names, LookupTwiceFindsOneNode)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	uint64_t id = k.id, ino = k.ino;
	ASSERT_EQ(k.lookup(dir, "f"), 0);
	EXPECT_EQ(k.id, id);
	EXPECT_EQ(k.ino, ino);
}

TEST_F(Names, ANodeStaysUntilItIsForgottenAsOftenAsItWasLookedUp)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	uint64_t id = k.id, ino = k.ino;
	drain();
	ASSERT_EQ(k.lookup(dir, "d"), 0);
	k.forget(id);
	EXPECT_EQ(k.getattr(id), 0);
	k.forget(id);
	ASSERT_EQ(k.lookup(dir, "d"), 0);
	EXPECT_EQ(k.ino, ino);
}

TEST_F(Names, MkdirMakesADirectory)
{
	ASSERT_EQ(k.mkdir(dir, "d", 0750), 0);
	EXPECT_EQ(k.attr.mode, (uint32_t)S_IFDIR | 0750);
	EXPECT_EQ(k.attr.nlink, 2u);
	uint64_t id = k.id;
	EXPECT_EQ(attr_of("d").mode, (uint32_t)S_IFDIR | 0750);
	EXPECT_EQ(k.id, id);
	EXPECT_EQ(k.list(id), "");
	drain();
	EXPECT_EQ(stat_stored("d").st_mode, (mode_t)S_IFDIR | 0750);
}

TEST_F(Names, MkdirOfANameThatIsThere)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	ASSERT_NE(k.put(dir, "f", ""), 0u);
	EXPECT_EQ(k.mkdir(dir, "d"), -EEXIST);
	EXPECT_EQ(k.mkdir(dir, "f"), -EEXIST);
	drain();
	write_file(stored("theirs"), "");
	EXPECT_EQ(k.mkdir(dir, "theirs"), -EEXIST);
}

TEST_F(Names, WhatIsMadeBelongsToTheCaller)
{
	as(4321);
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	EXPECT_EQ(k.attr.uid, 4321u);
	EXPECT_EQ(k.attr.gid, 4321u);
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	EXPECT_EQ(k.attr.uid, 4321u);
	ASSERT_EQ(k.symlink(dir, "l", "f"), 0);
	EXPECT_EQ(k.attr.uid, 4321u);
	ASSERT_EQ(k.mknod(dir, "n", S_IFREG | 0600), 0);
	EXPECT_EQ(k.attr.uid, 4321u);
	drain();
	for (const char *n : {"d", "f", "l", "n"})
		EXPECT_EQ(stat_stored(n).st_uid, 4321u) << n;
}

TEST_F(Names, ADirectoryWithSgidHandsItsGroupDown)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	uint64_t d = k.id;
	ASSERT_EQ(k.chown(d, -1, 77), 0);
	ASSERT_EQ(k.chmod(d, S_ISGID | 0777), 0);
	as(4321);
	ASSERT_EQ(k.mkdir(d, "sub"), 0);
	EXPECT_EQ(k.attr.gid, 77u);
	EXPECT_TRUE(k.attr.mode & S_ISGID);
	ASSERT_NE(k.put(d, "f", ""), 0u);
	EXPECT_EQ(k.attr.gid, 77u);
	EXPECT_FALSE(k.attr.mode & S_ISGID);
	ASSERT_EQ(k.mknod(d, "n", S_IFREG | 0600), 0);
	EXPECT_EQ(k.attr.gid, 77u);
}

TEST_F(Names, ADirectoryInADirectoryIsALinkMoreOfIt)
{
	EXPECT_EQ(attr_of(dir).nlink, 2u);
	ASSERT_EQ(k.mkdir(dir, "a"), 0);
	ASSERT_EQ(k.mkdir(dir, "b"), 0);
	ASSERT_NE(k.put(dir, "f", ""), 0u);
	EXPECT_EQ(attr_of(dir).nlink, 4u);
	ASSERT_EQ(k.rmdir(dir, "a"), 0);
	EXPECT_EQ(attr_of(dir).nlink, 3u);
}

TEST_F(Names, AChangeOfItsNamesIsAChangeOfADirectory)
{
	ASSERT_NE(k.put(dir, "f", ""), 0u);
	auto differs = [&, last = attr_of(dir)]() mutable {
		fuse_attr now = attr_of(dir), was = last;
		last = now;
		return mtime(now) != mtime(was) && ctime(now) != ctime(was);
	};
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	EXPECT_TRUE(differs());
	ASSERT_EQ(k.rename(dir, "f", dir, "g"), 0);
	EXPECT_TRUE(differs());
	ASSERT_EQ(k.unlink(dir, "g"), 0);
	EXPECT_TRUE(differs());
	ASSERT_EQ(k.rmdir(dir, "d"), 0);
	EXPECT_TRUE(differs());
	EXPECT_EQ(k.lookup(dir, "none"), -ENOENT);
	EXPECT_FALSE(differs());
}

TEST_F(Names, NamesLongerThan255BytesAreRefused)
{
	ASSERT_NE(k.put(dir, "f", ""), 0u);
	uint64_t id = k.id;
	File f;
	EXPECT_EQ(k.mkdir(dir, too_long), -ENAMETOOLONG);
	EXPECT_EQ(k.mknod(dir, too_long, S_IFREG | 0600), -ENAMETOOLONG);
	EXPECT_EQ(k.symlink(dir, too_long, "f"), -ENAMETOOLONG);
	EXPECT_EQ(k.link(id, dir, too_long), -ENAMETOOLONG);
	EXPECT_EQ(k.unlink(dir, too_long), -ENAMETOOLONG);
	EXPECT_EQ(k.rmdir(dir, too_long), -ENAMETOOLONG);
	EXPECT_EQ(k.rename(dir, "f", dir, too_long), -ENAMETOOLONG);
	EXPECT_EQ(k.rename(dir, too_long, dir, "f"), -ENAMETOOLONG);
	EXPECT_EQ(k.create(dir, too_long, &f), -ENAMETOOLONG);
	EXPECT_EQ(k.lookup(dir, too_long), -ENAMETOOLONG);
}

TEST_F(Names, ANameOf255BytesIsKept)
{
	std::string n(255, 'n');
	ASSERT_NE(k.put(dir, n, "bytes"), 0u);
	drain();
	EXPECT_EQ(read_file(stored(n)), "bytes");
}

// To each operation on names that changes something: this parent, this name.
void expect_refused(Client &k, uint64_t dir, uint64_t parent, const std::string &n, int want)
{
	ASSERT_NE(k.put(dir, "file", ""), 0u);
	uint64_t id = k.id;
	File f;
	EXPECT_EQ(k.mkdir(parent, n), want);
	EXPECT_EQ(k.mknod(parent, n, S_IFREG | 0600), want);
	EXPECT_EQ(k.symlink(parent, n, "file"), want);
	EXPECT_EQ(k.link(id, parent, n), want);
	EXPECT_EQ(k.unlink(parent, n), want);
	EXPECT_EQ(k.rmdir(parent, n), want);
	EXPECT_EQ(k.rename(parent, n, dir, "else"), want);
	EXPECT_EQ(k.rename(dir, "file", parent, n), want);
	EXPECT_EQ(k.create(parent, n, &f), want);
}

TEST_F(Names, NobodyTouchesTheNameOfTheControlDirectory)
{
	expect_refused(k, dir, root, ".cairn", -EPERM);
}

TEST_F(Names, NothingIsMadeInTheControlDirectory)
{
	expect_refused(k, dir, control_dir, "name", -EPERM);
}

TEST_F(Names, ViewsAreReadOnly)
{
	expect_refused(k, dir, views_dir, "name", -EROFS);
	EXPECT_EQ(k.chmod(views_dir, 0700), -EROFS);
}

TEST_F(Names, ElsewhereTheNameOfTheControlDirectoryIsLikeAnyOther)
{
	EXPECT_EQ(k.mkdir(dir, ".cairn"), 0);
	EXPECT_EQ(k.rmdir(dir, ".cairn"), 0);
}

TEST_F(Names, MknodMakesAnEmptyFile)
{
	ASSERT_EQ(k.mknod(dir, "n", S_IFREG | 0604), 0);
	EXPECT_EQ(k.attr.mode, (uint32_t)S_IFREG | 0604);
	EXPECT_EQ(k.attr.size, 0u);
	EXPECT_EQ(k.get(dir, "n"), "");
	drain();
	EXPECT_EQ(stat_stored("n").st_mode, (mode_t)S_IFREG | 0604);
}

TEST_F(Names, MknodMakesFifosAndSockets)
{
	ASSERT_EQ(k.mknod(dir, "fifo", S_IFIFO | 0600), 0);
	EXPECT_EQ(k.attr.mode, (uint32_t)S_IFIFO | 0600);
	ASSERT_EQ(k.mknod(dir, "socket", S_IFSOCK | 0600), 0);
	drain();
	EXPECT_TRUE(S_ISFIFO(stat_stored("fifo").st_mode));
	EXPECT_TRUE(S_ISSOCK(stat_stored("socket").st_mode));
}

TEST_F(Names, MknodOfADevice)
{
	EXPECT_EQ(k.mknod(dir, "n", S_IFCHR | 0600, 0x103), -EPERM);
	EXPECT_EQ(k.mknod(dir, "n", S_IFBLK | 0600, 0x700), -EPERM);
	EXPECT_EQ(k.lookup(dir, "n"), -ENOENT);
}

TEST_F(Names, MknodOfANameThatIsThere)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	EXPECT_EQ(k.mknod(dir, "d", S_IFREG | 0600), -EEXIST);
	EXPECT_EQ(k.mknod(dir, "d", S_IFIFO | 0600), -EEXIST);
}

TEST_F(Names, SymlinkKeepsItsTarget)
{
	ASSERT_EQ(k.symlink(dir, "l", "to/there"), 0);
	EXPECT_TRUE(S_ISLNK(k.attr.mode));
	EXPECT_EQ(k.attr.size, strlen("to/there"));
	uint64_t id = k.id;
	ASSERT_EQ(k.readlink(id), 0);
	EXPECT_EQ(k.bytes, "to/there");
	drain();
	EXPECT_EQ(std::filesystem::read_symlink(stored("l")), "to/there");
	ASSERT_EQ(k.readlink(id), 0);	// the store's now
	EXPECT_EQ(k.bytes, "to/there");
}

TEST_F(Names, SymlinkOfANameThatIsThere)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	EXPECT_EQ(k.symlink(dir, "d", "to/there"), -EEXIST);
}

TEST_F(Names, SymlinkWithATargetThatTheStoreCannotHold)
{
	EXPECT_EQ(k.symlink(dir, "l", std::string(4097, 't')), -ENAMETOOLONG);
	EXPECT_EQ(k.lookup(dir, "l"), -ENOENT);
}

TEST_F(Names, ReadlinkOfWhatIsNone)
{
	EXPECT_EQ(k.readlink(dir), -EINVAL);
	EXPECT_EQ(k.readlink(control_dir), -EINVAL);
	EXPECT_EQ(k.readlink(unknown), -ESTALE);
}

TEST_F(Names, LinkIsAnotherNameOfTheSameFile)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	uint64_t id = k.id, ino = k.ino;
	ASSERT_EQ(k.link(id, dir, "g"), 0);
	EXPECT_EQ(k.id, id);
	EXPECT_EQ(k.ino, ino);
	EXPECT_EQ(k.attr.nlink, 2u);
	EXPECT_EQ(attr_of("f").nlink, 2u);
	EXPECT_EQ(k.get(dir, "g"), "bytes");
	drain();
	EXPECT_EQ(stat_stored("f").st_ino, stat_stored("g").st_ino);
	EXPECT_EQ(stat_stored("g").st_nlink, 2u);
}

TEST_F(Names, LinkToANameThatIsThere)
{
	ASSERT_NE(k.put(dir, "f", ""), 0u);
	uint64_t id = k.id;
	EXPECT_EQ(k.link(id, dir, "f"), -EEXIST);
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	EXPECT_EQ(k.link(id, dir, "d"), -EEXIST);
}

TEST_F(Names, LinkOfADirectory)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	EXPECT_EQ(k.link(k.id, dir, "e"), -EPERM);
	EXPECT_EQ(k.link(control_dir, dir, "e"), -EPERM);
}

TEST_F(Names, LinkOfAFileThatHasNoNameAnyMore)
{
	File f;
	ASSERT_EQ(k.create(dir, "f", &f), 0);
	ASSERT_EQ(k.unlink(dir, "f"), 0);
	EXPECT_EQ(k.link(f.id, dir, "g"), -ENOENT);
	EXPECT_EQ(k.link(unknown, dir, "g"), -ESTALE);
	k.close(f);
}

TEST_F(Names, LinkAndUnlinkChangeCtime)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	uint64_t id = k.id;
	fuse_attr was = attr_of(id);
	ASSERT_EQ(k.link(id, dir, "g"), 0);
	fuse_attr linked = attr_of(id);
	EXPECT_NE(ctime(linked), ctime(was));
	EXPECT_EQ(mtime(linked), mtime(was));
	ASSERT_EQ(k.unlink(dir, "f"), 0);
	EXPECT_NE(ctime(attr_of(id)), ctime(linked));
	EXPECT_EQ(k.attr.nlink, 1u);
}

TEST_F(Names, UnlinkTakesTheNameAway)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	drain();
	ASSERT_EQ(k.unlink(dir, "f"), 0);
	EXPECT_EQ(k.lookup(dir, "f"), -ENOENT);
	EXPECT_EQ(k.unlink(dir, "f"), -ENOENT);
	EXPECT_EQ(k.list(dir), "");
	drain();
	EXPECT_FALSE(is_stored("f"));
}

TEST_F(Names, UnlinkOfADirectory)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	EXPECT_EQ(k.unlink(dir, "d"), -EISDIR);
	EXPECT_EQ(k.lookup(dir, "d"), 0);
}

TEST_F(Names, UnlinkLeavesTheOtherNames)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	ASSERT_EQ(k.link(k.id, dir, "g"), 0);
	ASSERT_EQ(k.unlink(dir, "f"), 0);
	EXPECT_EQ(k.get(dir, "g"), "bytes");
	drain();
	EXPECT_FALSE(is_stored("f"));
	EXPECT_EQ(read_file(stored("g")), "bytes");
}

TEST_F(Names, WhatIsUnlinkedIsReadableWhileItIsOpen)
{
	File f, r;
	ASSERT_EQ(k.create(dir, "f", &f), 0);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	ASSERT_EQ(k.unlink(dir, "f"), 0);
	EXPECT_EQ(k.read_all(f), "bytes");
	ASSERT_EQ(k.write(f, "more", 5), 0);
	EXPECT_EQ(k.read_all(f), "bytesmore");
	EXPECT_EQ(attr_of(f.id).nlink, 0u);
	EXPECT_EQ(k.attr.size, 9u);
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_FALSE(is_stored("f"));
}

TEST_F(Names, WhatIsUnlinkedInTheStoreIsReadableWhileItIsOpen)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	drain();
	shim_evict(t->fs);
	File r;
	ASSERT_EQ(k.open_name(dir, "f", O_RDONLY, &r), 0);
	ASSERT_EQ(k.unlink(dir, "f"), 0);
	drain();
	EXPECT_FALSE(is_stored("f"));
	EXPECT_EQ(k.read_all(r), "bytes");
	EXPECT_EQ(attr_of(r.id).nlink, 0u);
	EXPECT_EQ(k.close(r), 0);
}

TEST_F(Names, ANameIsFreeAfterItsUnlink)
{
	ASSERT_NE(k.put(dir, "f", "old"), 0u);
	uint64_t ino = k.ino;
	drain();
	ASSERT_EQ(k.unlink(dir, "f"), 0);
	ASSERT_NE(k.put(dir, "f", "newer"), 0u);
	EXPECT_NE(k.ino, ino);
	EXPECT_EQ(k.get(dir, "f"), "newer");
	drain();
	EXPECT_EQ(read_file(stored("f")), "newer");
}

TEST_F(Names, RmdirTakesAnEmptyDirectoryAway)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	drain();
	ASSERT_EQ(k.rmdir(dir, "d"), 0);
	EXPECT_EQ(k.lookup(dir, "d"), -ENOENT);
	EXPECT_EQ(k.rmdir(dir, "d"), -ENOENT);
	drain();
	EXPECT_FALSE(is_stored("d"));
}

TEST_F(Names, RmdirOfAFile)
{
	ASSERT_NE(k.put(dir, "f", ""), 0u);
	EXPECT_EQ(k.rmdir(dir, "f"), -ENOTDIR);
}

TEST_F(Names, RmdirOfADirectoryThatIsNotEmpty)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	uint64_t d = k.id;
	ASSERT_NE(k.put(d, "f", ""), 0u);
	EXPECT_EQ(k.rmdir(dir, "d"), -ENOTEMPTY);
	ASSERT_EQ(k.unlink(d, "f"), 0);
	drain();
	write_file(stored("d/theirs"), "");
	EXPECT_EQ(k.rmdir(dir, "d"), -ENOTEMPTY);
	std::filesystem::remove(stored("d/theirs"));
	EXPECT_EQ(k.rmdir(dir, "d"), 0);
}

TEST_F(Names, ADirectoryIsEmptyOnceWhatTheStoreHasInItWasRemovedHere)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	uint64_t d = k.id;
	ASSERT_NE(k.put(d, "f", "bytes"), 0u);
	drain();
	ASSERT_EQ(k.unlink(d, "f"), 0);
	EXPECT_EQ(k.rmdir(dir, "d"), 0);
	drain();
	EXPECT_FALSE(is_stored("d"));
}

TEST_F(Names, RenameMovesAName)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	uint64_t id = k.id;
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	uint64_t d = k.id;
	ASSERT_EQ(k.rename(dir, "f", d, "g"), 0);
	EXPECT_EQ(k.lookup(dir, "f"), -ENOENT);
	ASSERT_EQ(k.lookup(d, "g"), 0);
	EXPECT_EQ(k.id, id);
	EXPECT_EQ(k.get(d, "g"), "bytes");
	drain();
	EXPECT_FALSE(is_stored("f"));
	EXPECT_EQ(read_file(stored("d/g")), "bytes");
}

TEST_F(Names, RenameMovesADirectoryWithWhatIsInIt)
{
	ASSERT_EQ(k.mkdir(dir, "a"), 0);
	uint64_t a = k.id;
	ASSERT_NE(k.put(a, "f", "bytes"), 0u);
	ASSERT_EQ(k.mkdir(dir, "b"), 0);
	uint64_t b = k.id;
	drain();
	ASSERT_EQ(k.rename(dir, "a", b, "c"), 0);
	EXPECT_EQ(k.get(a, "f"), "bytes");
	ASSERT_EQ(k.lookup(b, "c"), 0);
	EXPECT_EQ(k.id, a);
	EXPECT_EQ(attr_of(dir).nlink, 3u);
	EXPECT_EQ(attr_of(b).nlink, 3u);
	drain();
	EXPECT_EQ(read_file(stored("b/c/f")), "bytes");
}

TEST_F(Names, RenameReplacesAFile)
{
	ASSERT_NE(k.put(dir, "new", "newer"), 0u);
	uint64_t id = k.id;
	ASSERT_NE(k.put(dir, "f", "old"), 0u);
	drain();
	ASSERT_EQ(k.rename(dir, "new", dir, "f"), 0);
	ASSERT_EQ(k.lookup(dir, "f"), 0);
	EXPECT_EQ(k.id, id);
	EXPECT_EQ(k.lookup(dir, "new"), -ENOENT);
	EXPECT_EQ(k.get(dir, "f"), "newer");
	drain();
	EXPECT_EQ(read_file(stored("f")), "newer");
	EXPECT_FALSE(is_stored("new"));
}

TEST_F(Names, RenameOverAFileThatIsOpenLeavesItsReadersTheirs)
{
	ASSERT_NE(k.put(dir, "f", "old"), 0u);
	drain();
	File r;
	ASSERT_EQ(k.open_name(dir, "f", O_RDONLY, &r), 0);
	ASSERT_NE(k.put(dir, "new", "newer"), 0u);
	ASSERT_EQ(k.rename(dir, "new", dir, "f"), 0);
	EXPECT_EQ(k.read_all(r), "old");
	EXPECT_EQ(k.get(dir, "f"), "newer");
	drain();
	shim_evict(t->fs);
	EXPECT_EQ(k.read_all(r), "old");
	EXPECT_EQ(attr_of(r.id).nlink, 0u);
	EXPECT_EQ(k.close(r), 0);
}

TEST_F(Names, RenameOfAFileThatIsBeingWritten)
{
	File f;
	ASSERT_EQ(k.create(dir, "tmp", &f), 0);
	ASSERT_EQ(k.write(f, "by"), 0);
	ASSERT_EQ(k.rename(dir, "tmp", dir, "f"), 0);
	ASSERT_EQ(k.write(f, "tes", 2), 0);
	EXPECT_EQ(k.get(dir, "f"), "bytes");
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("f")), "bytes");
	EXPECT_FALSE(is_stored("tmp"));
}

TEST_F(Names, RenameOverAFileThatIsBeingWritten)
{
	File f;
	ASSERT_EQ(k.create(dir, "f", &f), 0);
	ASSERT_EQ(k.write(f, "lost"), 0);
	ASSERT_NE(k.put(dir, "new", "bytes"), 0u);
	ASSERT_EQ(k.rename(dir, "new", dir, "f"), 0);
	ASSERT_EQ(k.write(f, "more", 4), 0);
	EXPECT_EQ(k.read_all(f), "lostmore");
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("f")), "bytes");
}

TEST_F(Names, RenameOfAFileOverADirectory)
{
	ASSERT_NE(k.put(dir, "f", ""), 0u);
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	EXPECT_EQ(k.rename(dir, "f", dir, "d"), -EISDIR);
}

TEST_F(Names, RenameOfADirectoryOverAFile)
{
	ASSERT_NE(k.put(dir, "f", ""), 0u);
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	EXPECT_EQ(k.rename(dir, "d", dir, "f"), -ENOTDIR);
}

TEST_F(Names, RenameOfADirectoryOverAnEmptyOne)
{
	ASSERT_EQ(k.mkdir(dir, "a"), 0);
	uint64_t a = k.id;
	ASSERT_NE(k.put(a, "f", "bytes"), 0u);
	ASSERT_EQ(k.mkdir(dir, "b"), 0);
	drain();
	ASSERT_EQ(k.rename(dir, "a", dir, "b"), 0);
	ASSERT_EQ(k.lookup(dir, "b"), 0);
	EXPECT_EQ(k.id, a);
	drain();
	EXPECT_EQ(read_file(stored("b/f")), "bytes");
	EXPECT_FALSE(is_stored("a"));
}

TEST_F(Names, RenameOfADirectoryOverOneThatIsNotEmpty)
{
	ASSERT_EQ(k.mkdir(dir, "a"), 0);
	ASSERT_EQ(k.mkdir(dir, "b"), 0);
	ASSERT_NE(k.put(k.id, "f", ""), 0u);
	EXPECT_EQ(k.rename(dir, "a", dir, "b"), -ENOTEMPTY);
}

TEST_F(Names, RenameOfANameThatIsNotThere)
{
	EXPECT_EQ(k.rename(dir, "none", dir, "f"), -ENOENT);
	EXPECT_EQ(k.rename(dir, "none", unknown, "f"), -ESTALE);
	EXPECT_EQ(k.rename(unknown, "none", dir, "f"), -ESTALE);
}

TEST_F(Names, RenameNoReplaceRefusesANameThatIsThere)
{
	ASSERT_NE(k.put(dir, "f", "one"), 0u);
	ASSERT_NE(k.put(dir, "g", "two"), 0u);
	EXPECT_EQ(k.rename(dir, "f", dir, "g", RENAME_NOREPLACE), -EEXIST);
	EXPECT_EQ(k.rename(dir, "f", dir, "f", RENAME_NOREPLACE), -EEXIST);
	EXPECT_EQ(k.get(dir, "g"), "two");
	EXPECT_EQ(k.rename(dir, "f", dir, "h", RENAME_NOREPLACE), 0);
	EXPECT_EQ(k.get(dir, "h"), "one");
}

TEST_F(Names, RenameExchangesNothing)
{
	ASSERT_NE(k.put(dir, "f", "one"), 0u);
	ASSERT_NE(k.put(dir, "g", "two"), 0u);
	EXPECT_EQ(k.rename(dir, "f", dir, "g", RENAME_EXCHANGE), -EINVAL);
	EXPECT_EQ(k.rename(dir, "f", dir, "g", 4 /* RENAME_WHITEOUT */), -EINVAL);
	EXPECT_EQ(k.get(dir, "f"), "one");
	EXPECT_EQ(k.get(dir, "g"), "two");
}

TEST_F(Names, RenameBetweenTwoNamesOfOneFileDoesNothing)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	ASSERT_EQ(k.link(k.id, dir, "g"), 0);
	EXPECT_EQ(k.rename(dir, "f", dir, "g"), 0);
	EXPECT_EQ(k.list(dir), "f g");
	EXPECT_EQ(attr_of("f").nlink, 2u);
	drain();
	EXPECT_EQ(stat_stored("f").st_ino, stat_stored("g").st_ino);
}

TEST_F(Names, RenameOverOneOfTwoNamesLeavesTheOther)
{
	ASSERT_NE(k.put(dir, "f", "old"), 0u);
	ASSERT_EQ(k.link(k.id, dir, "g"), 0);
	ASSERT_NE(k.put(dir, "new", "newer"), 0u);
	ASSERT_EQ(k.rename(dir, "new", dir, "f"), 0);
	EXPECT_EQ(attr_of("g").nlink, 1u);
	EXPECT_EQ(k.get(dir, "g"), "old");
	drain();
	EXPECT_EQ(read_file(stored("f")), "newer");
	EXPECT_EQ(read_file(stored("g")), "old");
	EXPECT_EQ(stat_stored("g").st_nlink, 1u);
}

TEST_F(Names, RenameChangesCtimeOnly)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	fuse_attr was = attr_of(k.id);
	ASSERT_EQ(k.rename(dir, "f", dir, "g"), 0);
	EXPECT_NE(ctime(attr_of("g")), ctime(was));
	EXPECT_EQ(mtime(k.attr), mtime(was));
}

TEST_F(Names, ChangesInADirectoryThatNobodyKnows)
{
	ASSERT_NE(k.put(dir, "f", ""), 0u);
	uint64_t id = k.id;
	File f;
	EXPECT_EQ(k.mkdir(unknown, "n"), -ESTALE);
	EXPECT_EQ(k.mknod(unknown, "n", S_IFREG | 0600), -ESTALE);
	EXPECT_EQ(k.symlink(unknown, "n", "f"), -ESTALE);
	EXPECT_EQ(k.link(id, unknown, "n"), -ESTALE);
	EXPECT_EQ(k.unlink(unknown, "n"), -ESTALE);
	EXPECT_EQ(k.rmdir(unknown, "n"), -ESTALE);
	EXPECT_EQ(k.create(unknown, "n", &f), -ESTALE);
}

// ---- open, create ----

class Opens : public Mounted
{
};

TEST_F(Opens, CreateMakesAFileWithTheModeAsked)
{
	File f;
	ASSERT_EQ(k.create(dir, "f", &f, O_WRONLY | O_CREAT, 04711), 0);
	EXPECT_EQ(k.attr.mode, (uint32_t)S_IFREG | 04711);
	EXPECT_EQ(k.attr.size, 0u);
	EXPECT_EQ(k.attr.nlink, 1u);
	EXPECT_EQ(attr_of("f").mode, (uint32_t)S_IFREG | 04711);
	EXPECT_EQ(k.id, f.id);
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(stat_stored("f").st_mode, (mode_t)S_IFREG | 04711);
}

TEST_F(Opens, CreateExclusivelyOfANameThatIsThere)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	File f;
	EXPECT_EQ(k.create(dir, "f", &f, O_WRONLY | O_CREAT | O_EXCL), -EEXIST);
	EXPECT_EQ(k.get(dir, "f"), "bytes");
}

TEST_F(Opens, CreateOpensTheFileThatIsThere)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	uint64_t id = k.id;
	File f;
	ASSERT_EQ(k.create(dir, "f", &f, O_RDWR | O_CREAT), 0);
	EXPECT_EQ(f.id, id);
	EXPECT_EQ(k.attr.size, 5u);
	EXPECT_EQ(k.read_all(f), "bytes");
	ASSERT_EQ(k.write(f, "B"), 0);
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(k.get(dir, "f"), "Bytes");
}

TEST_F(Opens, CreateWithTruncEmptiesTheFileThatIsThere)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	File f;
	ASSERT_EQ(k.create(dir, "f", &f, O_WRONLY | O_CREAT | O_TRUNC), 0);
	EXPECT_EQ(k.attr.size, 0u);
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("f")), "");
}

TEST_F(Opens, CreateWhereSomethingElseIsThere)
{
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	ASSERT_EQ(k.symlink(dir, "l", "d"), 0);
	File f;
	EXPECT_EQ(k.create(dir, "d", &f, O_WRONLY | O_CREAT), -EISDIR);
	EXPECT_EQ(k.create(dir, "l", &f, O_WRONLY | O_CREAT), -EISDIR);
}

TEST_F(Opens, OpenOfADirectory)
{
	File f;
	EXPECT_EQ(k.open(dir, O_RDONLY, &f), -EISDIR);
	EXPECT_EQ(k.open(dir, O_WRONLY, &f), -EISDIR);
}

TEST_F(Opens, OpenOfAFileThatNobodyKnows)
{
	File f;
	EXPECT_EQ(k.open(unknown, O_RDONLY, &f), -ESTALE);
}

TEST_F(Opens, OpenReadsWhatTheStoreHas)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	drain();
	shim_evict(t->fs);
	File f;
	ASSERT_EQ(k.open_name(dir, "f", O_RDONLY, &f), 0);
	EXPECT_EQ(k.read_all(f), "bytes");
	EXPECT_EQ(k.close(f), 0);
}

TEST_F(Opens, OpenWithTruncEmptiesAFile)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	drain();
	File f;
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY | O_TRUNC, &f), 0);
	EXPECT_EQ(attr_of(f.id).size, 0u);
	drain();
	EXPECT_EQ(read_file(stored("f")), "bytes");	// a version that nobody closed
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("f")), "");
}

TEST_F(Opens, OpenForReadingWithTruncIsAVersion)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	File f;
	ASSERT_EQ(k.open_name(dir, "f", O_RDONLY | O_TRUNC, &f), 0);
	EXPECT_EQ(k.read_all(f), "");
	drain();
	EXPECT_EQ(read_file(stored("f")), "");
	EXPECT_EQ(k.close(f), 0);
}

TEST_F(Opens, OpenForWritingThatChangesNothingIsNoVersion)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	drain();
	fuse_attr was = attr_of("f");
	uint64_t seal = seal_of(k.id);
	File f;
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY, &f), 0);
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(seal_of(f.id), seal);
	EXPECT_EQ(mtime(attr_of("f")), mtime(was));
	EXPECT_EQ(k.get(dir, "f"), "bytes");
}

TEST_F(Opens, WhatIsAppendedToAFileOfTheStoreFollowsItsBytes)
{
	ASSERT_NE(k.put(dir, "f", "by"), 0u);
	drain();
	shim_evict(t->fs);
	File f;
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY | O_APPEND, &f), 0);
	ASSERT_EQ(k.write(f, "tes", 2), 0);
	EXPECT_EQ(read_file(stored("f")), "by");
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(k.get(dir, "f"), "bytes");
	drain();
	EXPECT_EQ(read_file(stored("f")), "bytes");
}

TEST_F(Opens, AWriterThroughTheDaemonIsNotCached)
{
	File f, r;
	ASSERT_EQ(k.create(dir, "f", &f), 0);
	EXPECT_TRUE(k.opened.open_flags & FOPEN_DIRECT_IO);
	ASSERT_EQ(k.close(f), 0);
	drain();
	shim_evict(t->fs);
	ASSERT_EQ(k.open_name(dir, "f", O_RDONLY, &r), 0);
	EXPECT_FALSE(k.opened.open_flags & FOPEN_DIRECT_IO);
	EXPECT_TRUE(k.opened.open_flags & FOPEN_KEEP_CACHE);
	ASSERT_EQ(k.close(r), 0);
}

TEST_F(Opens, OneUserMayNotTakeMoreThanHalfOfTheDescriptors)
{
	rlimit was;
	ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &was), 0);
	rlimit few = {120, was.rlim_max};
	ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
	std::vector<File> open;
	File f;
	as(4321);
	while (open.size() < 100 && !k.create(dir, "f" + std::to_string(open.size()), &f))
		open.push_back(f);
	EXPECT_EQ(k.err, -EMFILE);
	EXPECT_EQ(open.size(), 60u);
	EXPECT_EQ(k.lookup(dir, "f60"), -ENOENT);
	EXPECT_EQ(k.open(open[0].id, O_RDONLY, &f), -EMFILE);
	as_root();
	EXPECT_EQ(k.open(open[0].id, O_RDONLY, &f), 0);
	k.close(f);
	as(4321);
	EXPECT_EQ(k.close(open[0]), 0);
	ASSERT_EQ(k.open(open[0].id, O_RDONLY, &open[0]), 0);
	for (auto &o : open)
		EXPECT_EQ(k.close(o), 0);
	ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &was), 0);
}

// ---- forks: a writer comes while readers have a version ----

class Forks : public Mounted
{
protected:
	void SetUp() override
	{
		Mounted::SetUp();
		ASSERT_NE(k.put(dir, "f", "old"), 0u);
		old = k.id;
		ino = k.ino;
		drain();
		shim_evict(t->fs);
		ASSERT_EQ(k.open_name(dir, "f", O_RDONLY, &r), 0);
		ASSERT_EQ(r.id, old);
	}
	void TearDown() override
	{
		k.close(r);
		Mounted::TearDown();
	}
	File r;
	uint64_t old = 0, ino = 0;
};

TEST_F(Forks, AWriterIsSentToLookAgain)
{
	File w;
	EXPECT_EQ(k.open(old, O_WRONLY | O_TRUNC, &w), -ESTALE);
	ASSERT_EQ(k.lookup(dir, "f"), 0);
	EXPECT_NE(k.id, old);
	EXPECT_EQ(k.ino, ino);
	EXPECT_EQ(k.open(k.id, O_WRONLY | O_TRUNC, &w), 0);
	EXPECT_EQ(k.open(old, O_RDONLY, &w), -ESTALE);	// by a name that the kernel remembers
	k.close(w);
}

TEST_F(Forks, ReadersKeepTheirVersionAndOthersSeeTheNewOne)
{
	File w;
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY | O_TRUNC, &w), 0);
	ASSERT_EQ(k.write(w, "newer"), 0);
	EXPECT_EQ(k.read_all(r), "old");
	EXPECT_EQ(k.get(dir, "f"), "newer");
	ASSERT_EQ(k.close(w), 0);
	drain();
	shim_evict(t->fs);
	EXPECT_EQ(read_file(stored("f")), "newer");
	EXPECT_EQ(k.read_all(r), "old");
	EXPECT_EQ(attr_of("f").ino, ino);
}

TEST_F(Forks, ADescriptorShowsTheSizeOfItsVersionAndTheModeOfTheFile)
{
	ASSERT_EQ(k.rewrite(dir, "f", "newer"), 0);
	ASSERT_EQ(k.lookup(dir, "f"), 0);
	uint64_t now = k.id;
	ASSERT_EQ(k.chmod(now, 0600), 0);
	EXPECT_EQ(attr_of(old).size, 3u);
	EXPECT_EQ(k.attr.mode, (uint32_t)S_IFREG | 0600);
	EXPECT_EQ(attr_of(now).size, 5u);
	ASSERT_EQ(k.chmod(old, 0640), 0);	// fchmod of the reader's
	EXPECT_EQ(attr_of(now).mode, (uint32_t)S_IFREG | 0640);
}

TEST_F(Forks, TruncationIsAWriterToo)
{
	EXPECT_EQ(k.truncate(old, 1), -ESTALE);
	ASSERT_EQ(k.lookup(dir, "f"), 0);
	uint64_t now = k.id;
	ASSERT_NE(now, old);
	EXPECT_EQ(k.truncate(now, 1), 0);
	EXPECT_EQ(k.read_all(r), "old");
	EXPECT_EQ(k.get(dir, "f"), "o");
}

TEST_F(Forks, AllNamesOfTheFileLeadToTheNewVersion)
{
	ASSERT_EQ(k.link(old, dir, "g"), 0);
	k.told.clear();
	ASSERT_EQ(k.rewrite(dir, "f", "newer"), 0);
	EXPECT_EQ(k.get(dir, "g"), "newer");
	EXPECT_EQ(k.attr.nlink, 2u);
	EXPECT_EQ(k.told.size(), 2u);	// the kernel is to forget both
	drain();
	EXPECT_EQ(stat_stored("f").st_ino, stat_stored("g").st_ino);
	EXPECT_EQ(read_file(stored("g")), "newer");
}

TEST_F(Forks, TheReadersVersionCanBeSoughtIn)
{
	ASSERT_EQ(k.rewrite(dir, "f", "newer"), 0);
	drain();
	EXPECT_EQ(k.lseek(r, 0, SEEK_HOLE), 3);
}

TEST_F(Forks, CreateOpensTheNewVersion)
{
	File w;
	ASSERT_EQ(k.create(dir, "f", &w, O_WRONLY | O_CREAT | O_TRUNC), 0);
	EXPECT_NE(w.id, old);
	EXPECT_EQ(k.ino, ino);
	EXPECT_EQ(k.read_all(r), "old");
	ASSERT_EQ(k.close(w), 0);
}

TEST_F(Forks, WritersFirstAndReadersThenShareOneVersion)
{
	File w, r2;
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY | O_TRUNC, &w), 0);
	ASSERT_EQ(k.open_name(dir, "f", O_RDONLY, &r2), 0);
	ASSERT_EQ(k.write(w, "seen at once"), 0);
	EXPECT_EQ(k.read_all(r2), "seen at once");
	ASSERT_EQ(k.close(w), 0);
	ASSERT_EQ(k.close(r2), 0);
}

// ---- read, write, fallocate, lseek, copy_file_range ----

class Bytes : public Mounted
{
protected:
	void SetUp() override
	{
		Mounted::SetUp();
		ASSERT_EQ(k.create(dir, "f", &f), 0);
	}
	void TearDown() override
	{
		as_root();
		k.close(f);
		Mounted::TearDown();
	}
	File f;
};

TEST_F(Bytes, AreReadWhereTheyWereWritten)
{
	std::string bytes = pattern(300000, 7);
	ASSERT_EQ(k.write(f, bytes), 0);
	ASSERT_EQ(k.read(f, 1000, 2000), 0);
	EXPECT_EQ(k.bytes, bytes.substr(1000, 2000));
	EXPECT_EQ(k.read_all(f), bytes);
	EXPECT_EQ(attr_of(f.id).size, 300000u);
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("f")), bytes);
}

TEST_F(Bytes, NoneAreReadPastTheEnd)
{
	ASSERT_EQ(k.write(f, "bytes"), 0);
	EXPECT_EQ(k.read(f, 5, 10), 0);
	EXPECT_EQ(k.bytes, "");
	EXPECT_EQ(k.read(f, 1ull << 40, 10), 0);
	EXPECT_EQ(k.bytes, "");
	EXPECT_EQ(k.read(f, 3, 10), 0);
	EXPECT_EQ(k.bytes, "es");
}

TEST_F(Bytes, NobodyWroteAreZeros)
{
	ASSERT_EQ(k.write(f, "end", 10), 0);
	EXPECT_EQ(k.read_all(f), std::string(10, 0) + "end");
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("f")), std::string(10, 0) + "end");
}

TEST_F(Bytes, OfAHandleThatNobodyKnows)
{
	File none = {f.id, unknown};
	EXPECT_EQ(k.read(none, 0, 10), -EBADF);
	EXPECT_EQ(k.lseek(none, 0, SEEK_DATA), -EBADF);
	none.id = unknown;
	EXPECT_EQ(k.write(none, "bytes"), -EBADF);
	EXPECT_EQ(k.fallocate(none, 0, 0, 10), -EBADF);
}

TEST_F(Bytes, AreNotWrittenThroughAFileOfTheStore)
{
	ASSERT_NE(k.put(dir, "g", "bytes"), 0u);
	drain();
	shim_evict(t->fs);
	File r;
	ASSERT_EQ(k.open_name(dir, "g", O_RDONLY, &r), 0);
	EXPECT_EQ(k.write(r, "x"), -EBADF);
	EXPECT_EQ(k.fallocate(r, 0, 0, 10), -EBADF);
	EXPECT_EQ(k.close(r), 0);
}

TEST_F(Bytes, ChangeTheTimes)
{
	fuse_attr was = attr_of(f.id);
	usleep(20000);	// a write's time is the tmpfs's, which ticks
	ASSERT_EQ(k.write(f, "bytes"), 0);
	EXPECT_GT(mtime(attr_of(f.id)), mtime(was));
	EXPECT_GT(ctime(k.attr), ctime(was));
	fuse_attr written = k.attr;
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(mtime(attr_of("f")), mtime(written));
	drain();
	struct stat st = stat_stored("f");
	EXPECT_EQ((uint64_t)st.st_mtim.tv_sec, written.mtime);
	EXPECT_EQ((uint32_t)st.st_mtim.tv_nsec, written.mtimensec);
}

TEST_F(Bytes, WrittenByAnotherUserTakeSuidAndSgid)
{
	ASSERT_EQ(k.chmod(f.id, 06777), 0);
	as(4321);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	EXPECT_EQ(attr_of(f.id).mode, (uint32_t)S_IFREG | 0777);
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(stat_stored("f").st_mode, (mode_t)S_IFREG | 0777);
}

TEST_F(Bytes, WrittenByRootLeaveSuidAndSgid)
{
	ASSERT_EQ(k.chmod(f.id, 06777), 0);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	EXPECT_EQ(attr_of(f.id).mode, (uint32_t)S_IFREG | 06777);
}

TEST_F(Bytes, WrittenByItsGroupLeaveSgidThatIsNotToExecute)
{
	ASSERT_EQ(k.chown(f.id, 1, 4321), 0);
	ASSERT_EQ(k.chmod(f.id, S_ISGID | 0666), 0);
	as(4321);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	EXPECT_EQ(attr_of(f.id).mode, (uint32_t)S_IFREG | S_ISGID | 0666);
	as(4322);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	EXPECT_EQ(attr_of(f.id).mode, (uint32_t)S_IFREG | 0666);
}

TEST_F(Bytes, FurtherThanAFileOfTheStoreCanReach)
{
	EXPECT_EQ(k.write(f, "x", INT64_MAX - 1), -EFBIG);
	EXPECT_EQ(k.truncate(f.id, INT64_MAX), -EFBIG);
	EXPECT_EQ(k.fallocate(f, 0, INT64_MAX - 10, 5), -EFBIG);
	EXPECT_EQ(attr_of(f.id).size, 0u);
}

TEST_F(Bytes, WithSyncAreInTheStoreWhenWriteReturns)
{
	for (int flag : {O_SYNC, O_DSYNC}) {
		File s;
		std::string n = "s" + std::to_string(flag);
		ASSERT_EQ(k.create(dir, n, &s, O_WRONLY | O_CREAT | flag), 0);
		ASSERT_EQ(k.write(s, "bytes"), 0);
		EXPECT_EQ(read_file(stored(n)), "bytes");
		ASSERT_EQ(k.close(s), 0);
	}
}

TEST_F(Bytes, AreAllocatedAtTheEndOrBehindIt)
{
	ASSERT_EQ(k.write(f, "bytes"), 0);
	ASSERT_EQ(k.fallocate(f, FALLOC_FL_KEEP_SIZE, 0, 8192), 0);
	EXPECT_EQ(attr_of(f.id).size, 5u);
	ASSERT_EQ(k.fallocate(f, 0, 0, 8192), 0);
	EXPECT_EQ(attr_of(f.id).size, 8192u);
	EXPECT_EQ(k.read_all(f), "bytes" + std::string(8187, 0));
}

TEST_F(Bytes, ArePunchedAndZeroed)
{
	ASSERT_EQ(k.write(f, std::string(12288, 'x')), 0);
	ASSERT_EQ(k.fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096), 0);
	EXPECT_EQ(k.read_all(f), std::string(4096, 'x') + std::string(4096, 0) + std::string(4096, 'x'));
	ASSERT_EQ(k.fallocate(f, FALLOC_FL_ZERO_RANGE, 0, 100), 0);
	EXPECT_EQ(k.read_all(f).substr(0, 101), std::string(100, 0) + "x");
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("f")),
		  std::string(100, 0) + std::string(3996, 'x') + std::string(4096, 0) + std::string(4096, 'x'));
}

TEST_F(Bytes, AreNotInsertedNorCollapsed)
{
	ASSERT_EQ(k.write(f, std::string(12288, 'x')), 0);
	EXPECT_EQ(k.fallocate(f, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -EOPNOTSUPP);
	EXPECT_EQ(k.fallocate(f, FALLOC_FL_INSERT_RANGE, 0, 4096), -EOPNOTSUPP);
	EXPECT_EQ(attr_of(f.id).size, 12288u);
}

TEST_F(Bytes, AndHolesAreFound)
{
	ASSERT_EQ(k.write(f, "x", 1 << 20), 0);
	EXPECT_EQ(k.lseek(f, 0, SEEK_DATA), 1 << 20);
	EXPECT_EQ(k.lseek(f, 10, SEEK_HOLE), 10);
	EXPECT_EQ(k.lseek(f, 1 << 20, SEEK_HOLE), (1 << 20) + 1);
	EXPECT_EQ(k.lseek(f, (1 << 20) + 1, SEEK_DATA), -ENXIO);
	EXPECT_EQ(k.lseek(f, (1 << 20) + 1, SEEK_HOLE), -ENXIO);
}

TEST_F(Bytes, AndHolesAreFoundInTheStore)
{
	ASSERT_EQ(k.write(f, "x", 1 << 20), 0);
	ASSERT_EQ(k.close(f), 0);
	drain();
	shim_evict(t->fs);
	ASSERT_EQ(k.open_name(dir, "f", O_RDONLY, &f), 0);
	EXPECT_EQ(k.lseek(f, 0, SEEK_DATA), 1 << 20);
	EXPECT_EQ(k.lseek(f, 0, SEEK_HOLE), 0);
	EXPECT_EQ(k.lseek(f, (1 << 20) + 1, SEEK_DATA), -ENXIO);
}

TEST_F(Bytes, AreLeftToTheKernelToCopy)
{
	File g;
	ASSERT_EQ(k.write(f, "bytes"), 0);
	ASSERT_EQ(k.create(dir, "g", &g), 0);
	k.copy_file_range(f, 0, g, 0, 5);
	EXPECT_TRUE(k.err == -EOPNOTSUPP || k.err == -ENOSYS) << k.err;	// both: copy yourself
	EXPECT_EQ(attr_of(g.id).size, 0u);
	EXPECT_EQ(k.close(g), 0);
}

// ---- flush, release, fsync ----

class Closes : public Mounted
{
protected:
	File written(const std::string &n)
	{
		File f;
		EXPECT_EQ(k.create(dir, n, &f), 0);
		EXPECT_EQ(k.write(f, "bytes"), 0);
		return f;
	}
};

TEST_F(Closes, WhatIsNotClosedIsNotInTheStore)
{
	File f = written("f");
	drain();
	EXPECT_FALSE(is_stored("f"));
	ASSERT_EQ(k.flush(f), 0);
	drain();
	EXPECT_FALSE(is_stored("f"));
	ASSERT_EQ(k.release(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("f")), "bytes");
}

TEST_F(Closes, TheLastWriterCounts)
{
	File f = written("f"), g;
	ASSERT_EQ(k.open(f.id, O_WRONLY, &g), 0);
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(seal_of(f.id), 0u);
	ASSERT_EQ(k.write(g, "more", 5), 0);
	ASSERT_EQ(k.close(g), 0);
	EXPECT_NE(seal_of(f.id), 0u);
	drain();
	EXPECT_EQ(read_file(stored("f")), "bytesmore");
}

TEST_F(Closes, AFlushMayBeFollowedByMore)
{
	File f = written("f");	// dup(2), close(2) of one
	ASSERT_EQ(k.flush(f), 0);
	ASSERT_EQ(k.write(f, "more", 5), 0);
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("f")), "bytesmore");
}

TEST_F(Closes, OfAHandleThatNobodyKnowsAreNoError)
{
	EXPECT_EQ(k.flush({dir, unknown}), 0);
	EXPECT_EQ(k.release({dir, unknown}), 0);
}

TEST_F(Closes, TakeTheirPlacesInTheirOrder)
{
	std::vector<File> files;
	for (int i = 0; i < 10; i++)
		files.push_back(written("f" + std::to_string(i)));
	std::vector<uint64_t> sent;
	for (int i : {3, 1, 4, 0, 5, 9, 2, 6, 8, 7}) {
		ASSERT_EQ(k.flush(files[(size_t)i]), 0);
		sent.push_back(k.send(FUSE_RELEASE, files[(size_t)i].id, Client::releasing(files[(size_t)i])));
	}
	for (uint64_t u : sent)
		EXPECT_EQ(k.await(u), 0);
	uint64_t last = 0;
	for (int i : {3, 1, 4, 0, 5, 9, 2, 6, 8, 7}) {
		uint64_t seq = seal_of(files[(size_t)i].id);
		EXPECT_LT(last, seq);
		last = seq;
	}
}

TEST_F(Closes, FsyncBringsTheBytesToTheStore)
{
	File f = written("f");
	ASSERT_EQ(k.fsync(f), 0);
	EXPECT_EQ(read_file(stored("f")), "bytes");
	ASSERT_EQ(k.write(f, "more", 5), 0);
	EXPECT_EQ(read_file(stored("f")), "bytes");
	ASSERT_EQ(k.fsync(f), 0);
	EXPECT_EQ(read_file(stored("f")), "bytesmore");
	EXPECT_EQ(k.close(f), 0);
}

TEST_F(Closes, FsyncBringsAllThatWasAcceptedBefore)
{
	ASSERT_NE(k.put(dir, "before", "bytes"), 0u);
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	File f = written("f");
	ASSERT_EQ(k.fsync(f), 0);
	EXPECT_EQ(read_file(stored("before")), "bytes");
	EXPECT_TRUE(is_stored("d"));
	EXPECT_EQ(k.close(f), 0);
}

TEST_F(Closes, FsyncOfADirectoryBringsItsNames)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	ASSERT_EQ(k.rename(dir, "f", dir, "g"), 0);
	ASSERT_EQ(k.fsync_dir(dir), 0);
	EXPECT_EQ(read_file(stored("g")), "bytes");
	EXPECT_FALSE(is_stored("f"));
}

TEST_F(Closes, FsyncOfWhatNobodyKnows)
{
	EXPECT_EQ(k.fsync({unknown, 1}), -ESTALE);
	EXPECT_EQ(k.fsync_dir(unknown), -ESTALE);
	EXPECT_EQ(k.fsync_dir(control_dir), 0);
}

TEST_F(Closes, FsyncOfAFileWithoutANameIsNoError)
{
	File f = written("f");
	ASSERT_EQ(k.unlink(dir, "f"), 0);
	EXPECT_EQ(k.fsync(f), 0);
	EXPECT_EQ(k.close(f), 0);
	EXPECT_FALSE(is_stored("f"));
}

} // namespace

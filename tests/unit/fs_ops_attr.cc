// SPDX-License-Identifier: MIT
//
// The same of attributes and xattrs.
#include "tests/unit/fs_mounted.hh"

namespace
{

// ---- attributes ----

class Attributes : public Mounted
{
protected:
	void SetUp() override
	{
		Mounted::SetUp();
		id = k.put(dir, "f", "bytes");
		ASSERT_NE(id, 0u);
	}
	void TearDown() override
	{
		as_root();
		Mounted::TearDown();
	}
	uint64_t id = 0;
};

TEST_F(Attributes, OfWhatNobodyKnows)
{
	EXPECT_EQ(k.getattr(unknown), -ESTALE);
	EXPECT_EQ(k.chmod(unknown, 0600), -ESTALE);
	EXPECT_EQ(k.truncate(unknown, 0), -ESTALE);
}

TEST_F(Attributes, ChmodSetsTheMode)
{
	fuse_attr was = attr_of(id);
	ASSERT_EQ(k.chmod(id, 01750), 0);
	EXPECT_EQ(k.attr.mode, (uint32_t)S_IFREG | 01750);
	EXPECT_NE(ctime(attr_of(id)), ctime(was));
	EXPECT_EQ(mtime(k.attr), mtime(was));
	ASSERT_EQ(k.chmod(dir, 0700), 0);
	EXPECT_EQ(attr_of(dir).mode, (uint32_t)S_IFDIR | 0700);
	drain();
	EXPECT_EQ(stat_stored("f").st_mode, (mode_t)S_IFREG | 01750);
	EXPECT_EQ(stat_stored("").st_mode, (mode_t)S_IFDIR | 0700);
}

TEST_F(Attributes, ChmodOfTheRoot)
{
	ASSERT_EQ(k.getattr(root), 0);
	uint32_t was = k.attr.mode & 07777;
	ASSERT_EQ(k.chmod(root, 0711), 0);
	ASSERT_EQ(k.getattr(root), 0);
	EXPECT_EQ(k.attr.mode, (uint32_t)S_IFDIR | 0711);
	drain();
	struct stat st;
	ASSERT_EQ(stat(ground->store().c_str(), &st), 0);
	EXPECT_EQ(st.st_mode, (mode_t)S_IFDIR | 0711);
	EXPECT_EQ(k.chmod(root, was), 0);
}

TEST_F(Attributes, ChmodOfAnothersGroupTakesSgid)
{
	ASSERT_EQ(k.chown(id, 4321, 77), 0);
	as(4321);
	ASSERT_EQ(k.chmod(id, 06777), 0);
	EXPECT_EQ(attr_of(id).mode, (uint32_t)S_IFREG | 04777);
	as_root();
	ASSERT_EQ(k.chmod(id, 06777), 0);
	EXPECT_EQ(attr_of(id).mode, (uint32_t)S_IFREG | 06777);
}

TEST_F(Attributes, ChownSetsOwnerOrGroup)
{
	fuse_attr was = attr_of(id);
	ASSERT_EQ(k.chown(id, 4321, -1), 0);
	EXPECT_EQ(k.attr.uid, 4321u);
	EXPECT_EQ(k.attr.gid, was.gid);
	ASSERT_EQ(k.chown(id, -1, 77), 0);
	EXPECT_EQ(k.attr.uid, 4321u);
	EXPECT_EQ(k.attr.gid, 77u);
	EXPECT_NE(ctime(k.attr), ctime(was));
	drain();
	EXPECT_EQ(stat_stored("f").st_uid, 4321u);
	EXPECT_EQ(stat_stored("f").st_gid, 77u);
}

TEST_F(Attributes, ChownTakesSuidAndSgid)
{
	ASSERT_EQ(k.chmod(id, 06777), 0);
	ASSERT_EQ(k.chown(id, 4321, -1), 0);
	EXPECT_EQ(attr_of(id).mode, (uint32_t)S_IFREG | 0777);
	ASSERT_EQ(k.chmod(dir, 02777), 0);
	ASSERT_EQ(k.chown(dir, 4321, -1), 0);
	EXPECT_EQ(attr_of(dir).mode, (uint32_t)S_IFDIR | 02777);
}

TEST_F(Attributes, ChownOfNobodyTakesSuidAndSgidToo)
{
	ASSERT_EQ(k.chmod(id, 06777), 0);
	ASSERT_EQ(k.chown(id, -1, -1), 0);
	EXPECT_EQ(attr_of(id).mode, (uint32_t)S_IFREG | 0777);
}

TEST_F(Attributes, UtimesSetsTheTimes)
{
	ASSERT_EQ(k.utimes(id, {1000000000, 1}, {1100000000, 999999999}), 0);
	EXPECT_EQ(k.attr.atime, 1000000000u);
	EXPECT_EQ(attr_of(id).mtime, 1100000000u);
	EXPECT_EQ(k.attr.mtimensec, 999999999u);
	drain();
	struct stat st = stat_stored("f");
	EXPECT_EQ(st.st_mtim.tv_sec, 1100000000);
	EXPECT_EQ(st.st_mtim.tv_nsec, 999999999);
	EXPECT_EQ(st.st_atim.tv_sec, 1000000000);
}

TEST_F(Attributes, UtimesSetsOneOfThem)
{
	ASSERT_EQ(k.utimes(id, {1000000000, 1}, {1100000000, 2}), 0);
	ASSERT_EQ(k.utimes(id, {0, UTIME_OMIT}, {1200000000, 3}), 0);
	EXPECT_EQ(k.attr.atime, 1000000000u);
	EXPECT_EQ(k.attr.mtime, 1200000000u);
	uint64_t now = (uint64_t)time(nullptr);
	ASSERT_EQ(k.utimes(id, {0, UTIME_NOW}, {0, UTIME_OMIT}), 0);
	EXPECT_GE(k.attr.atime + 1, now);
	EXPECT_EQ(k.attr.mtime, 1200000000u);
}

TEST_F(Attributes, TimesThatWereSetOutliveTheClose)
{
	File f;
	ASSERT_EQ(k.create(dir, "g", &f), 0);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	ASSERT_EQ(k.utimes(f.id, {1000000000, 1}, {1100000000, 2}), 0);
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(attr_of("g").mtime, 1100000000u);
	drain();
	EXPECT_EQ(stat_stored("g").st_mtim.tv_sec, 1100000000);
}

TEST_F(Attributes, TruncationCutsAndGrowsAClosedFile)
{
	fuse_attr was = attr_of(id);
	ASSERT_EQ(k.truncate(id, 2), 0);
	EXPECT_EQ(k.attr.size, 2u);
	EXPECT_NE(mtime(attr_of(id)), mtime(was));
	EXPECT_EQ(k.get(dir, "f"), "by");
	ASSERT_EQ(k.truncate(id, 4), 0);
	EXPECT_EQ(k.get(dir, "f"), std::string("by\0\0", 4));
	drain();
	EXPECT_EQ(read_file(stored("f")), std::string("by\0\0", 4));
}

TEST_F(Attributes, TruncationOfAFileOfTheStoreIsAVersion)
{
	drain();
	shim_evict(t->fs);
	ASSERT_EQ(k.truncate(id, 3), 0);
	EXPECT_EQ(k.get(dir, "f"), "byt");
	drain();
	EXPECT_EQ(read_file(stored("f")), "byt");
}

TEST_F(Attributes, TruncationOfAnOpenFile)
{
	File f;
	ASSERT_EQ(k.create(dir, "g", &f), 0);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	ASSERT_EQ(k.truncate(f.id, 2, &f), 0);
	EXPECT_EQ(k.read_all(f), "by");
	drain();
	EXPECT_FALSE(is_stored("g"));
	ASSERT_EQ(k.close(f), 0);
	drain();
	EXPECT_EQ(read_file(stored("g")), "by");
}

TEST_F(Attributes, TruncationToTheSameSizeChangesNothing)
{
	fuse_attr was = attr_of(id);
	uint64_t seal = seal_of(id);
	ASSERT_EQ(k.truncate(id, 5), 0);
	EXPECT_EQ(mtime(attr_of(id)), mtime(was));
	EXPECT_EQ(seal_of(id), seal);
}

TEST_F(Attributes, TruncationByAnotherUserTakesSuid)
{
	ASSERT_EQ(k.chmod(id, 04777), 0);
	as(4321);
	ASSERT_EQ(k.truncate(id, 2), 0);
	EXPECT_EQ(attr_of(id).mode, (uint32_t)S_IFREG | 0777);
	as_root();
	ASSERT_EQ(k.chmod(id, 04777), 0);
	File f;
	as(4321);
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY | O_TRUNC, &f), 0);
	EXPECT_EQ(attr_of(id).mode, (uint32_t)S_IFREG | 0777);
	EXPECT_EQ(k.close(f), 0);
}

TEST_F(Attributes, TruncationOfADirectory)
{
	EXPECT_EQ(k.truncate(dir, 0), -EISDIR);
}

TEST_F(Attributes, OfAFileWithoutANameCanBeChanged)
{
	File f;
	ASSERT_EQ(k.create(dir, "g", &f), 0);
	ASSERT_EQ(k.unlink(dir, "g"), 0);
	EXPECT_EQ(k.chmod(f.id, 0600), 0);
	EXPECT_EQ(attr_of(f.id).mode, (uint32_t)S_IFREG | 0600);
	EXPECT_EQ(k.truncate(f.id, 7, &f), 0);
	EXPECT_EQ(attr_of(f.id).size, 7u);
	EXPECT_EQ(k.close(f), 0);
}

TEST_F(Attributes, OfAFileWithSeveralNamesAreNotBelieved)
{
	EXPECT_EQ(k.getattr(id), 0);
	EXPECT_GT(k.attr_valid, 0);
	ASSERT_EQ(k.link(id, dir, "g"), 0);
	EXPECT_EQ(k.attr_valid, 0);
	EXPECT_EQ(k.getattr(id), 0);
	EXPECT_EQ(k.attr_valid, 0);
}

TEST_F(Attributes, InodeNumbersOutlivePublicationAndForgetting)
{
	uint64_t ino = attr_of(id).ino;
	drain();
	shim_evict(t->fs);
	EXPECT_EQ(attr_of("f").ino, ino);
	k.forget(id, 10);
	EXPECT_EQ(attr_of("f").ino, ino);
	ASSERT_EQ(k.rename(dir, "f", dir, "g"), 0);
	EXPECT_EQ(attr_of("g").ino, ino);
}

TEST_F(Attributes, StatfsIsTheStores)
{
	fuse_kstatfs st;
	struct statvfs v;
	ASSERT_EQ(k.statfs(&st), 0);
	ASSERT_EQ(statvfs(ground->store().c_str(), &v), 0);
	EXPECT_EQ(st.namelen, 255u);
	EXPECT_EQ(st.blocks, v.f_blocks);
	EXPECT_EQ(st.frsize, v.f_frsize);
}

// ---- xattrs ----

class Xattrs : public Mounted
{
protected:
	void SetUp() override
	{
		Mounted::SetUp();
		id = k.put(dir, "f", "bytes");
		ASSERT_NE(id, 0u);
	}
	std::string value(const std::string &key)
	{
		return k.getxattr(id, key) ? strerror(-k.err) : k.bytes;
	}
	std::string value_stored(const char *key)
	{
		char buf[256];
		ssize_t n = lgetxattr(stored("f").c_str(), key, buf, sizeof(buf));
		return n < 0 ? strerror(errno) : std::string(buf, (size_t)n);
	}
	uint64_t id = 0;
};

TEST_F(Xattrs, AreKeptAndComeToTheStore)
{
	ASSERT_EQ(k.setxattr(id, "user.a", "one"), 0);
	ASSERT_EQ(k.setxattr(id, "user.b", std::string("t\0o", 3)), 0);
	EXPECT_EQ(value("user.a"), "one");
	EXPECT_EQ(value("user.b"), std::string("t\0o", 3));
	ASSERT_EQ(k.setxattr(id, "user.a", ""), 0);
	EXPECT_EQ(value("user.a"), "");
	drain();
	EXPECT_EQ(value_stored("user.a"), "");
	EXPECT_EQ(value_stored("user.b"), std::string("t\0o", 3));
}

TEST_F(Xattrs, OfAFileOfTheStoreAreSeen)
{
	drain();
	write_file(stored("theirs"), "");
	ASSERT_EQ(setxattr(stored("theirs").c_str(), "user.theirs", "value", 5, 0), 0);
	ASSERT_EQ(k.lookup(dir, "theirs"), 0);
	uint64_t theirs = k.id;
	ASSERT_EQ(k.getxattr(theirs, "user.theirs"), 0);
	EXPECT_EQ(k.bytes, "value");
	ASSERT_EQ(k.listxattr(theirs), 0);
	EXPECT_EQ(k.bytes, std::string("user.theirs\0", 12));
}

TEST_F(Xattrs, OfDirectoriesAreKeptToo)
{
	ASSERT_EQ(k.setxattr(dir, "user.a", "one"), 0);
	ASSERT_EQ(k.getxattr(dir, "user.a"), 0);
	EXPECT_EQ(k.bytes, "one");
	drain();
	char buf[8];
	EXPECT_EQ(getxattr(stored("").c_str(), "user.a", buf, sizeof(buf)), 3);
}

TEST_F(Xattrs, OutliveANewVersion)
{
	ASSERT_EQ(k.setxattr(id, "user.a", "one"), 0);
	drain();
	shim_evict(t->fs);
	ASSERT_EQ(k.rewrite(dir, "f", "newer"), 0);
	EXPECT_EQ(value("user.a"), "one");
	drain();
	EXPECT_EQ(value_stored("user.a"), "one");
}

TEST_F(Xattrs, ThatAreNotThere)
{
	EXPECT_EQ(k.getxattr(id, "user.none"), -ENODATA);
	EXPECT_EQ(k.removexattr(id, "user.none"), -ENODATA);
	EXPECT_EQ(k.setxattr(id, "user.none", "one", XATTR_REPLACE), -ENODATA);
	EXPECT_EQ(k.getxattr(id, "user.none"), -ENODATA);
}

TEST_F(Xattrs, ThatAreThereAreNotCreated)
{
	ASSERT_EQ(k.setxattr(id, "user.a", "one", XATTR_CREATE), 0);
	EXPECT_EQ(k.setxattr(id, "user.a", "two", XATTR_CREATE), -EEXIST);
	EXPECT_EQ(value("user.a"), "one");
	EXPECT_EQ(k.setxattr(id, "user.a", "two", XATTR_REPLACE), 0);
	EXPECT_EQ(value("user.a"), "two");
}

TEST_F(Xattrs, RemovedAreGoneHereAndInTheStore)
{
	ASSERT_EQ(k.setxattr(id, "user.a", "one"), 0);
	drain();
	ASSERT_EQ(k.removexattr(id, "user.a"), 0);
	EXPECT_EQ(k.getxattr(id, "user.a"), -ENODATA);
	ASSERT_EQ(k.listxattr(id), 0);
	EXPECT_EQ(k.bytes, "");
	drain();
	EXPECT_EQ(value_stored("user.a"), strerror(ENODATA));
}

TEST_F(Xattrs, ThatDoNotFitTheBuffer)
{
	ASSERT_EQ(k.setxattr(id, "user.a", "one"), 0);
	EXPECT_EQ(k.getxattr(id, "user.a", 2), -ERANGE);
	EXPECT_EQ(k.getxattr(id, "user.a", 3), 0);
	EXPECT_EQ(k.listxattr(id, 6), -ERANGE);
	EXPECT_EQ(k.listxattr(id, 7), 0);
}

TEST_F(Xattrs, AskedForTheirSizeTellIt)
{
	ASSERT_EQ(k.setxattr(id, "user.a", "one"), 0);
	ASSERT_EQ(k.getxattr(id, "user.a", 0), 0);
	EXPECT_EQ(k.xattr_size(), 3u);
	ASSERT_EQ(k.setxattr(id, "user.bb", "two"), 0);
	ASSERT_EQ(k.listxattr(id, 0), 0);
	EXPECT_EQ(k.xattr_size(), 7u + 8u);
	EXPECT_EQ(k.getxattr(id, "user.cairn.state", 0), 0);
	EXPECT_GT(k.xattr_size(), 0u);
}

TEST_F(Xattrs, OfOtherNamespacesAreNotSupported)
{
	for (const char *key : {"security.capability", "system.posix_acl_access", "trusted.a", "a", "user"}) {
		EXPECT_EQ(k.setxattr(id, key, "one"), -EOPNOTSUPP) << key;
		EXPECT_EQ(k.getxattr(id, key), -EOPNOTSUPP) << key;
		EXPECT_EQ(k.removexattr(id, key), -EOPNOTSUPP) << key;
	}
}

TEST_F(Xattrs, WithoutANameOfTheirOwn)
{
	EXPECT_EQ(k.setxattr(id, "user.", "one"), -EINVAL);
	EXPECT_EQ(k.getxattr(id, "user."), -EINVAL);
	EXPECT_EQ(k.removexattr(id, "user."), -EINVAL);
}

TEST_F(Xattrs, WithANameThatIsTooLong)
{
	EXPECT_EQ(k.setxattr(id, "user." + std::string(251, 'a'), "one"), -ERANGE);
	EXPECT_EQ(k.setxattr(id, "user." + std::string(250, 'a'), "one"), 0);
}

TEST_F(Xattrs, LargerThanLinuxHasThem)
{
	EXPECT_EQ(k.setxattr(id, "user.a", std::string(65537, 'a')), -E2BIG);
}

TEST_F(Xattrs, MoreThanTheStoresInodeHolds)
{
	size_t space = io_store_xattr_space(t->store);
	if (space > 65536)
		GTEST_SKIP() << "this store has space for all";
	EXPECT_EQ(k.setxattr(id, "user.a", std::string(space, 'a')), -ENOSPC);
	ASSERT_EQ(k.setxattr(id, "user.a", std::string(space / 2, 'a')), 0);
	EXPECT_EQ(k.setxattr(id, "user.b", std::string(space / 2, 'b')), -ENOSPC);
	EXPECT_EQ(k.setxattr(id, "user.a", std::string(space / 2 + 1, 'a')), 0);
	drain();
	EXPECT_EQ(lgetxattr(stored("f").c_str(), "user.a", nullptr, 0), (ssize_t)(space / 2 + 1));
}

TEST_F(Xattrs, ThatTellAStateAreNeitherSetNorRemovedNorListed)
{
	std::string was = value("user.cairn.state");
	EXPECT_EQ(k.setxattr(id, "user.cairn.state", "durable"), 0);	// cp -a carries them
	EXPECT_EQ(k.removexattr(id, "user.cairn.checksum"), 0);
	ASSERT_EQ(k.listxattr(id), 0);
	EXPECT_EQ(k.bytes, "");
}

TEST_F(Xattrs, TellHowFarAFileIs)
{
	File f;
	ASSERT_EQ(k.create(dir, "g", &f), 0);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	ASSERT_EQ(k.getxattr(f.id, "user.cairn.state"), 0);
	EXPECT_EQ(k.bytes, "open");
	ASSERT_EQ(k.getxattr(dir, "user.cairn.state"), 0);
	EXPECT_EQ(k.bytes, "open");
	ASSERT_EQ(k.getxattr(f.id, "user.cairn.lane"), 0);
	EXPECT_EQ(k.bytes, "relay");
	EXPECT_EQ(k.getxattr(f.id, "user.cairn.checksum"), -ENODATA);
	ASSERT_EQ(k.close(f), 0);
	drain();
	ASSERT_EQ(k.getxattr(f.id, "user.cairn.state"), 0);
	EXPECT_EQ(k.bytes, "durable");
	ASSERT_EQ(k.getxattr(dir, "user.cairn.pending"), 0);
	EXPECT_EQ(k.bytes, "0");
	EXPECT_EQ(k.getxattr(f.id, "user.cairn.checksum"), 0);
	EXPECT_EQ(k.getxattr(f.id, "user.cairn.error"), -ENODATA);
	EXPECT_EQ(k.getxattr(f.id, "user.cairn.nothing"), -ENODATA);
}

TEST_F(Xattrs, OfADeviceAreSetAndNotListed)
{
	ASSERT_EQ(k.setxattr(id, "user.cairn.device", "cuda:0"), 0);
	ASSERT_EQ(k.getxattr(id, "user.cairn.device"), 0);
	EXPECT_EQ(k.bytes, "cuda:0");
	ASSERT_EQ(k.listxattr(id), 0);
	EXPECT_EQ(k.bytes, "");
}

TEST_F(Xattrs, OfWhatNobodyKnows)
{
	EXPECT_EQ(k.setxattr(unknown, "user.a", "one"), -ESTALE);
	EXPECT_EQ(k.getxattr(unknown, "user.a"), -ESTALE);
	EXPECT_EQ(k.getxattr(unknown, "user.cairn.state"), -ESTALE);
	EXPECT_EQ(k.listxattr(unknown), -ESTALE);
	EXPECT_EQ(k.removexattr(unknown, "user.a"), -ESTALE);
}

TEST_F(Xattrs, ChangeCtimeOnly)
{
	fuse_attr was = attr_of(id);
	ASSERT_EQ(k.setxattr(id, "user.a", "one"), 0);
	EXPECT_NE(ctime(attr_of(id)), ctime(was));
	EXPECT_EQ(mtime(k.attr), mtime(was));
}

TEST_F(Xattrs, OfTheControlDirectoryAreNone)
{
	EXPECT_EQ(k.getxattr(control_dir, "user.a"), -ENODATA);
	EXPECT_EQ(k.getxattr(control_dir, "trusted.a"), -EOPNOTSUPP);
	EXPECT_EQ(k.setxattr(control_dir, "user.a", "one"), 0);	// as cp -a has it
	ASSERT_EQ(k.listxattr(control_dir), 0);
	EXPECT_EQ(k.bytes, "");
	ASSERT_EQ(k.listxattr(control_dir, 0), 0);
	EXPECT_EQ(k.xattr_size(), 0u);
}

} // namespace

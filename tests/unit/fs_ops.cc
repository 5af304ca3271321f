// SPDX-License-Identifier: MIT
//
// What each operation on names does and each error it answers, asked as the kernel asks (fs_client.hh).
#include "tests/unit/fs_mounted.hh"

namespace
{

const std::string too_long(256, 'n');

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

} // namespace

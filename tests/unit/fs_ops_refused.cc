// SPDX-License-Identifier: MIT
// timeout: 300
//
// Mounts on which not everything goes: read-only ones, stores that are full or fail, a log that is full. Each
// operation says so by its error, and what was there stays.
#include <sys/resource.h>

#include "tests/unit/fs_mounted.hh"
#include "tests/unit/store_faults.h"

namespace
{

// ---- -o ro ----

TEST(ReadOnly, NothingIsChangedAndAllIsRead)
{
	Ground ground;
	write_file(ground.store() + "/f", "bytes");
	std::filesystem::create_directory(ground.store() + "/d");
	LiveTree t(ground, true, true);
	ASSERT_EQ(t.err, 0);
	Client k(t, SHIM_READ_ONLY);
	File f;
	ASSERT_EQ(k.lookup(root, "f"), 0);
	uint64_t id = k.id;
	EXPECT_EQ(k.get(root, "f"), "bytes");
	EXPECT_EQ(k.list(root), "d f");
	EXPECT_EQ(k.mkdir(root, "n"), -EROFS);
	EXPECT_EQ(k.mknod(root, "n", S_IFREG | 0600), -EROFS);
	EXPECT_EQ(k.symlink(root, "n", "f"), -EROFS);
	EXPECT_EQ(k.link(id, root, "n"), -EROFS);
	EXPECT_EQ(k.unlink(root, "f"), -EROFS);
	EXPECT_EQ(k.rmdir(root, "d"), -EROFS);
	EXPECT_EQ(k.rename(root, "f", root, "g"), -EROFS);
	EXPECT_EQ(k.create(root, "n", &f), -EROFS);
	EXPECT_EQ(k.open(id, O_WRONLY, &f), -EROFS);
	EXPECT_EQ(k.open(id, O_RDWR, &f), -EROFS);
	EXPECT_EQ(k.open(id, O_RDONLY | O_TRUNC, &f), -EROFS);
	EXPECT_EQ(k.chmod(id, 0600), -EROFS);
	EXPECT_EQ(k.chown(id, 1, 1), -EROFS);
	EXPECT_EQ(k.truncate(id, 0), -EROFS);
	EXPECT_EQ(k.utimes(id, {1, 1}, {1, 1}), -EROFS);
	EXPECT_EQ(k.setxattr(id, "user.a", "one"), -EROFS);
	EXPECT_EQ(k.removexattr(id, "user.a"), -EROFS);
	EXPECT_EQ(k.getxattr(id, "user.a"), -ENODATA);
	EXPECT_EQ(k.lseek({id, 1}, 0, SEEK_DATA), -EBADF);
	EXPECT_EQ(k.fsync({id, 1}), 0);
	EXPECT_EQ(k.fsync_dir(root), 0);
	EXPECT_EQ(show(tree_of(ground.store())), "d/=0 f=5,98 ");
}

// ---- a store whose calls fail ----

class Fails : public Mounted
{
protected:
	static const unsigned none = IO_OP_COUNT;
	static void fail(unsigned op, int err) { shim_fail_op(op, err); }
	void TearDown() override
	{
		shim_fail(nullptr, 0);
		retry();
		drain();
		Mounted::TearDown();
	}
	// cairn retry, until nothing halts; then once more for the files that failed meanwhile
	void retry()
	{
		File f;
		fail(none, 0);
		ASSERT_EQ(k.lookup(control_dir, "control"), 0);
		ASSERT_EQ(k.open(k.id, O_WRONLY, &f), 0);
		EXPECT_EQ(k.write(f, "retry"), 0);
		EXPECT_TRUE(until([&] { return !halted(); }));
		EXPECT_EQ(k.write(f, "retry"), 0);
		k.release(f);
	}
	bool halted()
	{
		staging_stats st;
		staging_get_stats(t->s(), &st);
		return st.halted.error != 0;
	}
	std::string state(uint64_t id)
	{
		return k.getxattr(id, "user.cairn.state") ? strerror(-k.err) : k.bytes;
	}
	void await_halt()
	{
		EXPECT_TRUE(until([&] { return halted(); }));
	}
};

TEST_F(Fails, ANameThatCannotBeAskedForIsNotAbsent)
{
	ASSERT_NE(k.put(dir, "f", "bytes"), 0u);
	uint64_t id = k.id;
	drain();
	shim_evict(t->fs);
	shim_fail("f", EIO);
	File f;
	EXPECT_EQ(k.lookup(dir, "f"), -EIO);
	EXPECT_EQ(k.mkdir(dir, "f"), -EIO);
	EXPECT_EQ(k.mknod(dir, "f", S_IFREG | 0600), -EIO);
	EXPECT_EQ(k.symlink(dir, "f", "to"), -EIO);
	EXPECT_EQ(k.unlink(dir, "f"), -EIO);
	EXPECT_EQ(k.rename(dir, "f", dir, "g"), -EIO);
	EXPECT_EQ(k.create(dir, "f", &f), -EIO);
	shim_fail(nullptr, 0);
	EXPECT_EQ(attr_of("f").size, 5u);
	EXPECT_EQ(k.id, id);
}

TEST_F(Fails, AFileThatCannotBeOpenedThere)
{
	drain();
	write_file(stored("theirs"), "bytes");
	ASSERT_EQ(k.lookup(dir, "theirs"), 0);
	shim_fail("theirs", EIO);
	File f;
	EXPECT_EQ(k.open(k.id, O_RDONLY, &f), -EIO);
	EXPECT_EQ(k.open(k.id, O_WRONLY | O_APPEND, &f), -EIO);
	EXPECT_EQ(k.getattr(k.id), 0) << "what was seen of it a moment ago";
	shim_fail(nullptr, 0);
	EXPECT_EQ(k.get(dir, "theirs"), "bytes");
}

TEST_F(Fails, ACloseThatFindsNoBlocksSaysSo)
{
	File f;
	ASSERT_EQ(k.create(dir, "f", &f), 0);
	ASSERT_EQ(k.write(f, pattern(1 << 20, 1)), 0);
	fail(IO_OP_ALLOCATE, ENOSPC);
	EXPECT_EQ(k.flush(f), -ENOSPC);
	EXPECT_EQ(k.release(f), 0);
	EXPECT_EQ(state(f.id), "failed");
	ASSERT_EQ(k.getxattr(f.id, "user.cairn.error"), 0);
	EXPECT_EQ(k.bytes, strerror(ENOSPC));
	EXPECT_EQ(k.get(dir, "f"), pattern(1 << 20, 1));	// here it stays
	EXPECT_EQ(k.fsync(f), -ENOSPC);
	EXPECT_FALSE(is_stored("f"));
	retry();
	drain();
	EXPECT_EQ(state(f.id), "durable");
	EXPECT_EQ(read_file(stored("f")), pattern(1 << 20, 1));
}

TEST_F(Fails, ACloseThatFoundNoBlocksLeavesTheVersionBefore)
{
	ASSERT_NE(k.put(dir, "f", "old"), 0u);
	drain();
	File f;
	ASSERT_EQ(k.open_name(dir, "f", O_WRONLY | O_TRUNC, &f), 0);
	ASSERT_EQ(k.write(f, pattern(1 << 20, 1)), 0);
	fail(IO_OP_ALLOCATE, EDQUOT);
	EXPECT_EQ(k.close(f), -EDQUOT);
	drain();
	EXPECT_EQ(read_file(stored("f")), "old");
	fail(none, 0);
	ASSERT_EQ(k.rewrite(dir, "f", "newer"), 0);	// a close that finds space ends it
	drain();
	EXPECT_EQ(read_file(stored("f")), "newer");
}

TEST_F(Fails, ANewVersionOfAFailedFile)
{
	File f;
	ASSERT_EQ(k.create(dir, "f", &f), 0);
	ASSERT_EQ(k.write(f, pattern(1 << 20, 1)), 0);
	fail(IO_OP_ALLOCATE, ENOSPC);
	ASSERT_EQ(k.close(f), -ENOSPC);
	ASSERT_EQ(k.unlink(dir, "f"), 0);
	EXPECT_EQ(k.lookup(dir, "f"), -ENOENT);
	fail(none, 0);
	drain();
	EXPECT_FALSE(is_stored("f"));
}

TEST_F(Fails, AStoreThatTakesNoNamesHaltsWithEIO)
{
	fail(IO_OP_MKDIR, EIO);
	ASSERT_EQ(k.mkdir(dir, "d"), 0);	// accepted; the store refuses it later
	uint64_t d = k.id;
	await_halt();
	EXPECT_EQ(k.fsync_dir(d), -EIO);
	File f;
	ASSERT_EQ(k.create(d, "f", &f), 0);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	EXPECT_EQ(k.fsync(f), -EIO);
	EXPECT_EQ(k.flush(f), -EIO);
	EXPECT_EQ(k.release(f), 0);
	EXPECT_EQ(k.get(d, "f"), "bytes");
	EXPECT_EQ(state(d), "failed");
	EXPECT_FALSE(is_stored("d"));
	retry();
	drain();
	EXPECT_EQ(read_file(stored("d/f")), "bytes");
	EXPECT_EQ(state(d), "durable");
}

TEST_F(Fails, WhatStandsBehindAHaltStaysInItsOrder)
{
	fail(IO_OP_MKDIR, EIO);
	ASSERT_EQ(k.mkdir(dir, "d"), 0);
	await_halt();
	ASSERT_EQ(k.mknod(dir, "later", S_IFIFO | 0600), 0);
	EXPECT_EQ(k.fsync_dir(dir), -EIO);
	EXPECT_FALSE(is_stored("later"));
	retry();
	ASSERT_EQ(k.fsync_dir(dir), 0);
	EXPECT_TRUE(is_stored("d"));
	EXPECT_TRUE(is_stored("later"));
}

TEST_F(Fails, AWriteThatIsToBeDurableIsToldThatItIsNot)
{
	File f;
	ASSERT_EQ(k.create(dir, "f", &f, O_WRONLY | O_CREAT | O_SYNC), 0);
	fail(IO_OP_RENAME, EIO);
	EXPECT_EQ(k.write(f, "bytes"), -EIO);
	retry();
	EXPECT_EQ(k.write(f, "bytes"), 0);
	EXPECT_EQ(k.close(f), 0);
	EXPECT_EQ(read_file(stored("f")), "bytes");
}

// ---- a store that is full ----

class Full : public ::testing::Test
{
protected:
	// A store of this size; skips where none can be mounted.
	void open(const char *size)
	{
		if (mount("cairn-test", ground.store().c_str(), "tmpfs", MS_NODEV, size))
			GTEST_SKIP() << "no filesystem can be mounted here";
		mounted = true;
		t = std::make_unique<LiveTree>(ground, true, true);
		ASSERT_EQ(t->err, 0);
		client = std::make_unique<Client>(*t, 0);
	}
	void TearDown() override
	{
		client.reset();
		t.reset();
		if (mounted)
			umount2(ground.store().c_str(), MNT_DETACH);
	}
	Ground ground;
	std::unique_ptr<LiveTree> t;
	std::unique_ptr<Client> client;
	bool mounted = false;
};

class FullOfBytes : public Full
{
protected:
	static constexpr size_t part = 100 << 10;
	void SetUp() override { open("size=16m"); }
};

TEST_F(FullOfBytes, WritesSayENOSPCAndWhatWasClosedIsKept)
{
	Client &k = *client;
	Tree want;
	File f;
	int rc = 0;
	for (int i = 0; !rc && i < 1000; i++) {
		std::string n = "f" + std::to_string(i), bytes = pattern(part, (uint64_t)i);
		if ((rc = k.create(root, n, &f)))
			break;
		rc = k.write(f, bytes);
		int closed = k.close(f);
		rc = rc ? rc : closed;
		if (!rc)
			want[n] = bytes;
		else
			EXPECT_EQ(k.unlink(root, n), 0);
	}
	EXPECT_EQ(rc, -ENOSPC);
	EXPECT_GT(want.size(), 100u);
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	EXPECT_TRUE(tree_of(ground.store()) == want) << show(tree_of(ground.store()));
	for (const char *n : {"f0", "f1", "f2"})
		EXPECT_EQ(k.unlink(root, n), 0);
	EXPECT_NE(k.put(root, "again", pattern(part, 1)), 0u) << k.err;	// waits for the space
}

class FullOfNames : public Full
{
protected:
	void SetUp() override { open("size=128m,nr_inodes=1000"); }
};

TEST_F(FullOfNames, NewOnesSayENOSPCAndAllOthersAreKept)
{
	Client &k = *client;
	int rc = 0;
	unsigned n = 0;
	while (n < 5000 && !(rc = k.mkdir(root, "d" + std::to_string(n))))
		n++;
	EXPECT_EQ(rc, -ENOSPC);
	EXPECT_GT(n, 500u);
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	EXPECT_EQ(tree_of(ground.store()).size(), n);
	EXPECT_EQ(k.rmdir(root, "d0"), 0);
}

// One small file is flushed all the while, and each name is in the store before the next is made: what is promised
// is always as much, and the store's inodes go.
TEST_F(FullOfNames, NewOnesSayENOSPCAlsoWhenFewAreOnTheirWay)
{
	Client &k = *client;
	File f;
	ASSERT_EQ(k.create(root, "flushed", &f), 0);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	ASSERT_EQ(k.flush(f), 0);
	int rc = 0;
	unsigned n = 0;
	while (n < 1500 && !(rc = k.mkdir(root, "d" + std::to_string(n)))) {
		ASSERT_EQ(staging_drain(t->s(), 60000), 0) << "accepted, and the store has no inode for it: " << n;
		n++;
	}
	EXPECT_EQ(rc, -ENOSPC);
	for (unsigned i = 0; i < 300; i++)	// nor does a program come through that tries again
		EXPECT_EQ(k.mkdir(root, "more"), -ENOSPC);
	k.close(f);
}

// Its space is held since the first answer.
TEST_F(FullOfNames, ACloseAfterOneThatWasAnsweredFindsItsSpace)
{
	Client &k = *client;
	File f;
	ASSERT_EQ(k.create(root, "flushed", &f), 0);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	ASSERT_EQ(k.flush(f), 0);
	for (unsigned n = 0; n < 5000 && !k.mkdir(root, "d" + std::to_string(n)); n++)
		;
	EXPECT_EQ(k.err, -ENOSPC);
	EXPECT_EQ(k.close(f), 0);
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	EXPECT_EQ(read_file(ground.store() + "/flushed"), "bytes");
}

// ---- a log that is full ----

TEST(FullLog, ChangesSayEFBIGAndChangeNothing)
{
	Ground ground;
	LiveTree t(ground, false, true);	// nothing is published, so nothing leaves the log
	ASSERT_EQ(t.err, 0);
	Client k(t, 0);
	uint64_t id = k.put(root, "f", "bytes");
	ASSERT_NE(id, 0u);
	signal(SIGXFSZ, SIG_IGN);
	rlimit was;
	ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &was), 0);
	rlimit full = {1u << 20, was.rlim_max};	// the log grows by so much
	ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
	int rc = 0;
	unsigned mode = 0;
	for (unsigned i = 0; !rc && i < 100000; i++)
		if (!(rc = k.chmod(id, 0600 | (i & 077))))
			mode = 0600 | (i & 077);
	EXPECT_EQ(rc, -EFBIG);
	EXPECT_EQ(k.mkdir(root, "d"), -EFBIG);
	EXPECT_EQ(k.symlink(root, "l", "to"), -EFBIG);
	EXPECT_EQ(k.unlink(root, "f"), -EFBIG);
	EXPECT_EQ(k.rename(root, "f", root, "g"), -EFBIG);
	EXPECT_EQ(k.link(id, root, "g"), -EFBIG);
	EXPECT_EQ(k.setxattr(id, "user.a", "one"), -EFBIG);
	EXPECT_EQ(k.list(root), "f");
	EXPECT_EQ(k.getattr(id), 0);
	EXPECT_EQ(k.attr.mode, (uint32_t)S_IFREG | mode);
	ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &was), 0);
	EXPECT_EQ(k.mkdir(root, "d"), 0);
}

} // namespace

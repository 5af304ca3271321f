// SPDX-License-Identifier: MIT
//
// The same of bytes: read, write, fallocate, lseek; and of closes: flush, release, fsync.
#include "tests/unit/fs_mounted.hh"

namespace
{

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

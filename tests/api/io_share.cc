// SPDX-License-Identifier: MIT
//
// Shared extents, where the store has them: what is equal is shared, what differs is left
// alone, and nothing that a user can see changes.
#include "tests/api/xfs.hh"

namespace
{

class Share : public ::testing::Test
{
protected:
	void SetUp() override
	{
		if (!xfs.ok)
			GTEST_SKIP() << "needs root and a loop-mounted xfs";
	}
	// As the daemon opens them: to read.
	int open_both(io_store *s, Fd &from, Fd &to)
	{
		from.reset(io_open_read(s, io_store_root(s), "from", 0));
		to.reset(io_open_read(s, io_store_root(s), "to", 0));
		return from.get() >= 0 && to.get() >= 0;
	}
	Xfs xfs;
};

TEST_F(Share, WhatIsEqual)
{
	Engine e;
	Store s(e, xfs.path(""));
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(io_can_share(s), 0);
	const std::string bytes = pattern(300001, 7);	// a tail that is no whole block
	write_file(xfs.path("from"), bytes);
	write_file(xfs.path("to"), bytes);
	const timespec times[2] = {{1000000001, 5}, {1000000002, 123456789}};
	ASSERT_EQ(utimensat(AT_FDCWD, xfs.path("to").c_str(), times, 0), 0);
	struct stat was, is;
	ASSERT_EQ(stat(xfs.path("to").c_str(), &was), 0);
	Fd from, to;
	ASSERT_TRUE(open_both(s, from, to));
	EXPECT_EQ(io_share(s, from.get(), to.get(), 0, 262144), 262144);
	EXPECT_EQ(io_share(s, from.get(), to.get(), 262144, bytes.size() - 262144),
		  (ssize_t)bytes.size() - 262144);
	EXPECT_GE(shared_bytes(xfs.path("to")), bytes.size());
	ASSERT_EQ(stat(xfs.path("to").c_str(), &is), 0);
	EXPECT_EQ(is.st_mtim.tv_sec, was.st_mtim.tv_sec);
	EXPECT_EQ(is.st_mtim.tv_nsec, was.st_mtim.tv_nsec);
	EXPECT_EQ(is.st_ctim.tv_nsec, was.st_ctim.tv_nsec);
	EXPECT_EQ(is.st_nlink, 1u);
	EXPECT_EQ(read_file(xfs.path("to")), bytes);

	// written over, the other keeps its bytes
	Fd rw(open(xfs.path("to").c_str(), O_WRONLY | O_CLOEXEC));
	ASSERT_EQ(pwrite(rw.get(), "other", 5, 4096), 5);
	ASSERT_EQ(fsync(rw.get()), 0);
	EXPECT_EQ(read_file(xfs.path("from")), bytes);
}

TEST_F(Share, WhatDiffers)
{
	Engine e;
	Store s(e, xfs.path(""));
	std::string bytes = pattern(262144, 7);
	write_file(xfs.path("from"), bytes);
	bytes[200000] ^= 1;
	write_file(xfs.path("to"), bytes);
	Fd from, to;
	ASSERT_TRUE(open_both(s, from, to));
	EXPECT_EQ(io_share(s, from.get(), to.get(), 0, bytes.size()), 0);
	EXPECT_EQ(shared_bytes(xfs.path("to")), 0u);
	EXPECT_EQ(read_file(xfs.path("to")), bytes);
}

// The fault engine stands in for this call too, and not for the probe.
TEST_F(Share, ThatFails)
{
	Engine e("posix", "1:@1+:eio");
	Store s(e, xfs.path(""));
	ASSERT_EQ(io_can_share(s), 0);
	write_file(xfs.path("from"), pattern(65536, 7));
	write_file(xfs.path("to"), pattern(65536, 7));
	Fd from, to;
	ASSERT_TRUE(open_both(s, from, to));
	EXPECT_EQ(io_share(s, from.get(), to.get(), 0, 65536), -EIO);
	EXPECT_EQ(shared_bytes(xfs.path("to")), 0u);
}

TEST(ShareNot, WhereTheStoreHasNone)
{
	Mount tmpfs("tmpfs");
	if (!tmpfs.ok)
		GTEST_SKIP() << "cannot mount a tmpfs";
	Engine e;
	Store s(e, tmpfs.dir.path);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(io_can_share(s), -EOPNOTSUPP);
	EXPECT_EQ(e.counts().errors, 0u);
}

TEST(ShareNot, InAStoreOpenedToRead)
{
	TempDir dir;
	Engine e;
	Store s(e, dir.path, true);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(io_can_share(s), -EOPNOTSUPP);
	EXPECT_EQ(io_share(s, 0, 1, 0, 65536), -EROFS);
}

} // namespace

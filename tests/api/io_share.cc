// SPDX-License-Identifier: MIT
//
// Shared extents, where the store has them: what is equal is shared, what differs is left
// alone, and nothing that a user can see changes.
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include "tests/api/io_fixture.hh"

namespace
{

// A loop-mounted xfs; `ok` is false where that is not to be had.
struct Xfs {
	Xfs()
	{
		std::string img = dir / "img", at = dir / "mnt";
		std::filesystem::create_directory(at);
		ok = !geteuid() && !sh("truncate -s 320M " + img) &&
		     !sh("mkfs.xfs -q -m reflink=1 " + img) && !sh("mount -o loop " + img + " " + at);
	}
	~Xfs()
	{
		if (ok)
			umount2((dir / "mnt").c_str(), MNT_DETACH);
	}
	static int sh(const std::string &cmd) { return system((cmd + " 2>/dev/null").c_str()); }
	std::string path(const std::string &name) const { return dir / ("mnt/" + name); }
	TempDir dir;
	bool ok;
};

// Bytes in extents that another file has too.
uint64_t shared(const std::string &path)
{
	alignas(fiemap) char room[sizeof(fiemap) + 64 * sizeof(fiemap_extent)] = {};
	auto *m = reinterpret_cast<fiemap *>(room);
	Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
	uint64_t n = 0;
	m->fm_length = FIEMAP_MAX_OFFSET;
	m->fm_flags = FIEMAP_FLAG_SYNC;
	m->fm_extent_count = 64;
	EXPECT_EQ(ioctl(fd.get(), FS_IOC_FIEMAP, m), 0);
	for (unsigned i = 0; i < m->fm_mapped_extents; i++)
		if (m->fm_extents[i].fe_flags & FIEMAP_EXTENT_SHARED)
			n += m->fm_extents[i].fe_length;
	return n;
}

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
	EXPECT_GE(shared(xfs.path("to")), bytes.size());
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
	EXPECT_EQ(shared(xfs.path("to")), 0u);
	EXPECT_EQ(read_file(xfs.path("to")), bytes);
}

// The failing twin stands in for this call too, and not for the probe.
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
	EXPECT_EQ(shared(xfs.path("to")), 0u);
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

// SPDX-License-Identifier: MIT
//
// A filesystem that stops while it is being synced: what it never wrote is not called safe.
#include <sys/syscall.h>

#include "tests/api/xfs.hh"

#ifndef FS_IOC_GOINGDOWN
#define FS_IOC_GOINGDOWN _IOR('X', 125, uint32_t)
#endif

namespace
{

const uint32_t NO_LOG_FLUSH = 2;
int stops_at = -1; // the store's root: the next fsync finds it stopped
int files_synced, filesystems_synced;

} // namespace

// In libc's place, for io/ too: the filesystem stops between the open of a directory and its sync. An O_PATH descriptor
// cannot be synced.
extern "C" int fsync(int fd)
{
	if (fcntl(fd, F_GETFL) & O_PATH)
		return (int)syscall(SYS_fsync, fd);
	if (stops_at >= 0) {
		EXPECT_EQ(ioctl(stops_at, FS_IOC_GOINGDOWN, &NO_LOG_FLUSH), 0);
		stops_at = -1;
	}
	files_synced++;
	return (int)syscall(SYS_fsync, fd);
}

extern "C" int fdatasync(int fd)
{
	files_synced++;
	return (int)syscall(SYS_fdatasync, fd);
}

extern "C" int syncfs(int fd) noexcept
{
	filesystems_synced++;
	return (int)syscall(SYS_syncfs, fd);
}

// What is called synced was handed to the kernel to sync: a dropped call leaves no other trace but
// after a power cut.
TEST(Sync, EachKindReachesTheKernel)
{
	Engine e;
	TempDir dir;
	Store s(e, dir.path);
	ASSERT_EQ(s.err, 0);
	bool direct;
	Fd fd(io_tmp_create(s, 1, false, &direct));
	ASSERT_GE(fd.get(), 0);
	int before = files_synced;
	EXPECT_EQ(io_sync_data(s, fd.get()), 0);
	EXPECT_EQ(files_synced, before + 1);
	EXPECT_EQ(io_sync_dir(s, io_store_root(s)), 0);
	EXPECT_EQ(files_synced, before + 2);
	EXPECT_EQ(io_sync_dir(s, io_store_root(s)), 0);
	EXPECT_EQ(files_synced, before + 3) << "by the descriptor that it has then";
	before = filesystems_synced;
	EXPECT_EQ(io_sync_all(s), 0);
	EXPECT_EQ(filesystems_synced, before + 1);
}

TEST(Sync, AMarkReachesTheKernel)
{
	Xfs xfs;
	if (!xfs.ok)
		GTEST_SKIP() << "needs root and a loop-mounted xfs";
	Engine e;
	Store s(e, xfs.path(""));
	ASSERT_EQ(s.err, 0);
	ASSERT_TRUE(io_mark_covers(s));
	int before = files_synced;
	EXPECT_EQ(io_mark_sync(s), 0);
	EXPECT_EQ(files_synced, before + 1);
}

// xfs unpins what it threw away, and to fsync a directory that is not pinned does nothing there.
TEST(Sync, ADirectoryOfAFilesystemThatStoppedIsNotSafe)
{
	Xfs xfs;
	if (!xfs.ok)
		GTEST_SKIP() << "needs root and a loop-mounted xfs";
	Engine e;
	Store s(e, xfs.path(""));
	ASSERT_EQ(s.err, 0);
	int root = io_store_root(s);
	Fd top(open(xfs.path("").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	ASSERT_EQ(io_mkdir(s, root, "old", 0755), 0);
	ASSERT_EQ(io_sync_dir(s, root), 0);
	ASSERT_EQ(io_rename(s, root, "old", root, "new", 0), 0);
	stops_at = top.get();
	EXPECT_EQ(io_sync_dir(s, root), -EIO);
	EXPECT_EQ(stops_at, -1);
}

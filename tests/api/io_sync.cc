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
int stops_at = -1; // the store's root: the next sync finds it stopped
bool stops_during; // or has looked before whether it works, and returns 0
int files_synced, filesystems_synced;

// Has the filesystem stopped during this sync?
bool stop()
{
	if (stops_at < 0)
		return false;
	EXPECT_EQ(ioctl(stops_at, FS_IOC_GOINGDOWN, &NO_LOG_FLUSH), 0);
	stops_at = -1;
	return stops_during;
}

} // namespace

// In libc's place, for io/ too: the filesystem stops between the open of a directory and its sync. An O_PATH descriptor
// cannot be synced.
extern "C" int fsync(int fd)
{
	if (fcntl(fd, F_GETFL) & O_PATH)
		return (int)syscall(SYS_fsync, fd);
	files_synced++;
	return stop() ? 0 : (int)syscall(SYS_fsync, fd);
}

extern "C" int fdatasync(int fd)
{
	files_synced++;
	return stop() ? 0 : (int)syscall(SYS_fdatasync, fd);
}

extern "C" int syncfs(int fd) noexcept
{
	filesystems_synced++;
	return stop() ? 0 : (int)syscall(SYS_syncfs, fd);
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

// ext4 looks whether it has stopped when an fsync begins, and not after: one that waits for a commit that was thrown away
// meanwhile returns 0.
TEST(Sync, WhatExt4ThrewAwayDuringASyncIsNotSafe)
{
	const struct {
		const char *name;
		int (*sync)(io_store *s, int fd);
	} kinds[] = {
		{"a mark", [](io_store *s, int) { return io_mark_sync(s); }},
		{"a file's bytes", io_sync_data},
		{"a file", io_sync_file},
		{"a directory", [](io_store *s, int) { return io_sync_dir(s, io_store_root(s)); }},
		{"all", [](io_store *s, int) { return io_sync_all(s); }},
	};
	for (auto &k : kinds) {
		Loop ext4("mkfs.ext4 -q -F");
		if (!ext4.ok)
			GTEST_SKIP() << "needs root and a loop-mounted ext4";
		Engine e;
		Store s(e, ext4.path(""));
		ASSERT_EQ(s.err, 0);
		Fd top(open(ext4.path("").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
		bool direct;
		Fd fd(io_tmp_create(s, 1, false, &direct));
		ASSERT_GE(fd.get(), 0);
		EXPECT_EQ(k.sync(s, fd.get()), 0) << k.name;
		ASSERT_EQ(io_mark_set(s, 1, 2), 0);
		stops_at = top.get();
		stops_during = true;
		EXPECT_EQ(k.sync(s, fd.get()), -EIO) << k.name;
		stops_during = false;
		EXPECT_EQ(stops_at, -1);
	}
}

// The disk fails while ext4 commits, and works again: nobody has told ext4 that its journal has ended, and every fsync of
// a file that nothing changes any more returns 0.
TEST(Sync, AMarkWhoseCommitFailedIsNotSafe)
{
	TempDir dir;
	std::string ram = dir / "ram", img = ram + "/img", at = dir / "mnt";
	std::filesystem::create_directory(ram);
	std::filesystem::create_directory(at);
	if (geteuid() || Loop::sh("mount -t tmpfs -o size=64M tmpfs " + ram))
		GTEST_SKIP() << "needs root";
	// blocks that the image does not have yet cannot be written when the tmpfs is full
	if (!Loop::sh("truncate -s 48M " + img + " && mkfs.ext4 -q -F -E lazy_journal_init=1 " + img +
		      " && mount -o loop " + img + " " + at)) {
		Engine e;
		Store s(e, at);
		EXPECT_EQ(s.err, 0);
		Fd other(open((at + "/other").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
		EXPECT_EQ(io_sync_all(s), 0);
		Loop::sh("dd if=/dev/zero of=" + ram + "/full bs=4k");
		EXPECT_EQ(io_mark_set(s, 1, 2), 0);
		EXPECT_EQ(fchmod(other.get(), 0640), 0);
		EXPECT_NE(fsync(other.get()), 0) << "the commit did not fail: this shows nothing";
		Loop::sh("rm " + ram + "/full");
		EXPECT_EQ(io_mark_sync(s), -EIO);
		EXPECT_EQ(io_mark_sync(s), -EIO);
	}
	umount2(at.c_str(), MNT_DETACH);
	umount2(ram.c_str(), MNT_DETACH);
}

// SPDX-License-Identifier: MIT
//
// What is answered as durable is: nothing is acknowledged while the sync of its name has not come
// back, a sync covers what changed before it, and what was replaced keeps its blocks until then.
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "../api/staging_fixture.hh"
#include "engine_shim.h"
#include "io/keys.h"
#include "loop.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

// Holds up the syncs of names until told otherwise.
class Hung {
public:
	explicit Hung(Staging &s) { shim_engine(s.engine.e, seen, this); }
	void hang()
	{
		std::lock_guard<std::mutex> hold(lock_);
		hung_ = true;
		entered_ = false;
	}
	void wait_entered()
	{
		std::unique_lock<std::mutex> hold(lock_);
		changed_.wait(hold, [this] { return entered_; });
	}
	void let_go()
	{
		std::lock_guard<std::mutex> hold(lock_);
		hung_ = false;
		changed_.notify_all();
	}

private:
	static int seen(void *ctx, shim_kind kind, int)
	{
		auto self = static_cast<Hung *>(ctx);
		std::unique_lock<std::mutex> hold(self->lock_);
		if (kind != SHIM_SYNC || !self->hung_)
			return 0;
		self->entered_ = true;
		self->changed_.notify_all();
		self->changed_.wait(hold, [self] { return !self->hung_; });
		return 0;
	}
	std::mutex lock_;
	std::condition_variable changed_;
	bool hung_ = false, entered_ = false;
};

bool exists(const std::string &path)
{
	struct stat st;
	return lstat(path.c_str(), &st) == 0;
}

TEST(Ack, NothingIsDurableWhileTheSyncOfItsNameHangs)
{
	Ground ground;
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	Hung sync(s);
	History h(s);
	ASSERT_EQ(h.mkdir("first"), 0);
	ASSERT_EQ(s.drain(), 0); // where the filesystem has a journal the mark is synced before
	uint64_t first = staging_durable(s);
	sync.hang();
	ASSERT_EQ(h.mkdir("d"), 0);
	ASSERT_EQ(h.put("d/small", "bytes"), 0);
	ASSERT_EQ(h.put("d/large", pattern(600000, 1)), 0);
	uint64_t last = staging_last_seq(s);
	Durable before(s, last);
	sync.wait_entered();	// its names are made, their sync has not come back
	uint64_t applied = staging_applied(s);
	ASSERT_GT(applied, first);
	EXPECT_TRUE(exists(ground.store() + "/d"));
	EXPECT_EQ(staging_durable(s), first);
	Durable during(s, applied);
	EXPECT_FALSE(before.is_called());
	EXPECT_FALSE(during.is_called());
	EXPECT_EQ(s.drain(0), -ETIMEDOUT);
	sync.let_go();
	EXPECT_EQ(during.wait(), 0);
	EXPECT_EQ(before.wait(), 0);
	EXPECT_EQ(staging_durable(s), last);
	h.drop();
}

// Stops the filesystem without writing its log, as a power cut does.
bool stop(const std::string &dir)
{
	uint32_t how = 2;	// without a flush of the log
	Fd fd(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	return !ioctl(fd.get(), _IOR('X', 125, uint32_t), &how);
}

// A change that was passed over as a conflict names a directory in which nothing changed: to sync
// that one alone commits nothing on xfs.
void survives_a_conflict(const char *mkfs)
{
	LoopDisk disk(mkfs);
	Ground ground;
	if (!disk.ok)
		GTEST_SKIP() << "no loop device for " << mkfs;
	Options o;
	o.store = disk.path;
	o.start = false;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.mkdir("A"), 0);
		ASSERT_EQ(h.mkdir("B"), 0);
		ASSERT_EQ(h.put("B/y", "y"), 0);
		s.start();
		ASSERT_EQ(s.drain(), 0);
		std::filesystem::remove(disk.path + "/B/y");	// beside the mount
		ASSERT_EQ(LoopDisk::sh("sync -f " + disk.path), 0);
		// both in one batch, behind a version that is held back by its writer
		uint64_t node = staging_new_id(s);
		staged *f = create(s, node, {root, "first"}, 100);
		Fd mapped(staged_open_rw(f));
		ASSERT_TRUE(write_all(f, "held"));
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_GT(seal(s, f, node, {{root, "first"}}, true), 0);
		ASSERT_EQ(h.put("A/x", "x"), 0);
		ASSERT_EQ(h.unlink("B/y"), 0);
		mapped.reset(-1);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_EQ(s.notes_with("conflict"), 1);
		EXPECT_TRUE(exists(disk.path + "/A/x"));
		ASSERT_TRUE(stop(disk.path));
		staged_unref(f);
		h.drop();
	}
	disk.unmount();
	ASSERT_TRUE(disk.mount());
	EXPECT_TRUE(exists(disk.path + "/A/x"));
	EXPECT_TRUE(exists(disk.path + "/first"));
}

TEST(Ack, ANameSurvivesTheConflictBehindItOnXfs)
{
	survives_a_conflict("mkfs.xfs -q -f");
}

TEST(Ack, ANameSurvivesTheConflictBehindItOnExt4)
{
	survives_a_conflict("mkfs.ext4 -q -F");
}

// Each change of a file gets a transaction of its own, and the filesystem stops when its bytes are
// synced.
struct StopsWhenSynced {
	explicit StopsWhenSynced(Staging &s) : path(s.store_path) { shim_engine(s.engine.e, seen, this); }
	static int seen(void *ctx, shim_kind kind, int fd)
	{
		auto self = static_cast<StopsWhenSynced *>(ctx);
		if (self->synced && !self->stopped)
			self->stopped = stop(self->path);
		self->synced = self->synced || kind == SHIM_SYNC_BYTES;
		if (!self->synced && fd >= 0)
			syncfs(fd);
		return 0;
	}
	std::string path;
	std::atomic<bool> synced{false}, stopped{false};
};

// An fsync's version is not written again after a restart: its file in the store must have its mode
// and checksum before the log says that it is there. fdatasync(2) on ext4 leaves them out.
TEST(Ack, TheAttributesOfWhatIsLoggedAsWrittenSurviveAStop)
{
	LoopDisk disk("mkfs.ext4 -q -F");
	Ground ground;
	if (!disk.ok)
		GTEST_SKIP() << "no ext4 on a loop device here";
	Options o;
	o.store = disk.path;
	std::string bytes = pattern(300000, 1);
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		StopsWhenSynced at(s);
		uint64_t node = staging_new_id(s);
		staged *f = create(s, node, {root, "shard"}, bytes.size());
		ASSERT_TRUE(f && write_all(f, bytes));
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_GT(seal(s, f, node, {{root, "shard"}}, false), 0);
		ASSERT_TRUE(until([&] { return at.stopped.load(); }));
		staged_unref(f);
	}
	disk.unmount();
	ASSERT_TRUE(disk.mount());
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		ASSERT_EQ(s.drain(), 0);
		struct stat st;
		ASSERT_EQ(stat((disk.path + "/shard").c_str(), &st), 0);
		EXPECT_EQ(st.st_mode & 07777, 0640u);
		EXPECT_GT(getxattr((disk.path + "/shard").c_str(), KEY_CHECKSUM, nullptr, 0), 0);
		EXPECT_SAME(read_file(disk.path + "/shard"), bytes);
	}
}

uint64_t free_blocks(const std::string &path)
{
	struct statvfs v = {};
	EXPECT_EQ(statvfs(path.c_str(), &v), 0);
	return v.f_bfree * v.f_frsize;
}

// ext4 with data=writeback uses blocks of a removed file again before its removal is committed.
TEST(Ack, WhatIsReplacedKeepsItsBlocksUntilThatIsSynced)
{
	constexpr uint64_t BYTES = 24u << 20;
	LoopDisk disk("mkfs.ext4 -q -F", "data=writeback");
	Ground ground;
	if (!disk.ok)
		GTEST_SKIP() << "no ext4 with data=writeback on a loop device here";
	Options o;
	o.store = disk.path;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	Hung sync(s);
	History h(s);
	ASSERT_EQ(h.put("replaced", pattern(BYTES, 1)), 0);
	ASSERT_EQ(h.put("over", "small"), 0);
	ASSERT_EQ(h.put("removed", pattern(BYTES, 2)), 0);
	ASSERT_EQ(s.drain(), 0);
	auto change = [&](const std::function<int()> &what) {
		uint64_t before = free_blocks(disk.path);
		sync.hang();
		ASSERT_EQ(what(), 0);
		sync.wait_entered();
		EXPECT_LT(free_blocks(disk.path), before + BYTES / 2) << "freed before the sync";
		sync.let_go();
		ASSERT_EQ(s.drain(), 0);
		EXPECT_TRUE(until([&] { return free_blocks(disk.path) > before + BYTES / 2; })) << "never freed";
	};
	change([&] { return h.rename("over", "replaced"); });
	change([&] { return h.unlink("removed"); });
	h.drop();
}

} // namespace

// SPDX-License-Identifier: MIT
//
// A store without fallocate (ext2, many FUSE filesystems): no block can be allocated ahead, and what is accepted must
// fit all the same. What is promised is counted until it is written; where little is free, blocks are taken by zeros.
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "../api/staging_fixture.hh"
#include "engine_shim.h"

namespace
{

const uint64_t MIB = 1u << 20;

class NoFallocate : public ::testing::Test
{
protected:
	// too small for a reserve, which could not be allocated either
	explicit NoFallocate(const char *fs = "tmpfs", const char *data = "size=60m") : disk(fs, data) {}
	void SetUp() override
	{
		if (!disk.ok)
			GTEST_SKIP() << "no mount without root";
		o.store = disk.dir.path;
		o.start = false;
		s = std::make_unique<Staging>(ground, o);
		ASSERT_EQ(s->err, 0);
		shim_engine(s->engine.e, seen, this);
	}
	void TearDown() override
	{
		let_go();
		s = nullptr;
	}
	uint64_t free_bytes() const
	{
		struct statvfs v;
		return statvfs(o.store.c_str(), &v) ? 0 : v.f_bavail * v.f_frsize;
	}
	// A new file whose bytes the kernel writes, as in the fast lane: nobody asks for space before its close.
	staged *written(const std::string &name, uint64_t bytes, uint64_t *node)
	{
		int fd = -1;
		*node = staging_new_id(*s);
		staged *f = create(*s, *node, {STAGING_ROOT_DIR, name}, bytes);
		if (!f || staged_use(f, &fd))
			return nullptr;
		Fd to(open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY | O_CLOEXEC));
		std::string all = pattern(bytes, 1);
		bool whole = to.get() >= 0 && pwrite(to.get(), all.data(), bytes, 0) == (ssize_t)bytes;
		staged_unuse(f);
		return whole ? f : nullptr;
	}
	// Written and closed; the seq of its version, or what the close says.
	int64_t save(const std::string &name, uint64_t bytes)
	{
		uint64_t node;
		staged *f = written(name, bytes, &node);
		if (!f)
			return -EIO;
		int64_t seq = staged_allocate_now(f);
		if (!seq)
			seq = seal(*s, f, node, {{STAGING_ROOT_DIR, name}}, true);
		staged_unref(f);
		return seq;
	}
	void hold_syncs() { held = true; }
	void wait_held()
	{
		std::unique_lock<std::mutex> hold(lock);
		changed.wait(hold, [this] { return entered; });
	}
	void let_go()
	{
		std::lock_guard<std::mutex> hold(lock);
		held = false;
		changed.notify_all();
	}

	Mount disk;
	Ground ground;
	Options o;
	std::unique_ptr<Staging> s;
	std::mutex lock;
	std::condition_variable changed;
	std::atomic<bool> held{false};
	std::atomic<unsigned> asked{0}; // for blocks
	bool entered = false;

private:
	static int seen(void *ctx, shim_kind kind, int)
	{
		auto self = static_cast<NoFallocate *>(ctx);
		if (kind == SHIM_ALLOCATE) {
			self->asked++;
			return -EOPNOTSUPP;
		}
		if (kind != SHIM_SYNC_BYTES || !self->held)
			return 0;
		std::unique_lock<std::mutex> hold(self->lock);
		self->entered = true;
		self->changed.notify_all();
		self->changed.wait(hold, [self] { return !self->held; });
		return 0;
	}
};

// Each of them would fit, but not all: publication would halt, with the removals behind it.
TEST_F(NoFallocate, NoMoreIsAcceptedThanFits)
{
	uint64_t node;
	ASSERT_GT(save("a", 25 * MIB), 0);
	ASSERT_GT(save("b", 25 * MIB), 0);
	staged *f = written("c", 25 * MIB, &node);
	ASSERT_NE(f, nullptr);
	EXPECT_EQ(staged_allocate_now(f), -EAGAIN) << "the blocks of the others are not taken yet";
	s->start();
	ASSERT_EQ(s->err, 0);
	EXPECT_EQ(staged_allocate(f), -ENOSPC);
	EXPECT_EQ(s->drain(), 0);
	EXPECT_EQ(s->stats().halted.error, 0);
	EXPECT_EQ(s->tree()["a"].size(), 25 * MIB);
	EXPECT_EQ(s->tree()["b"].size(), 25 * MIB);
	staged_unref(f);
}

// ramfs, and some FUSE filesystems, do not say how much space they have.
class UntoldSpace : public NoFallocate
{
protected:
	UntoldSpace() : NoFallocate("ramfs", "") {}
};

TEST_F(UntoldSpace, IsTakenForEnough)
{
	s->start();
	ASSERT_EQ(s->err, 0);
	EXPECT_TRUE(staging_space_for_names(*s));
	ASSERT_GT(save("a", MIB), 0);
	EXPECT_TRUE(staging_space_for_names(*s));
	EXPECT_EQ(s->drain(), 0);
	EXPECT_EQ(s->tree()["a"].size(), MIB);
}

// What was counted at its close is written, and the store is not asked once more whether it fits.
TEST_F(NoFallocate, WhatIsCountedIsNotAskedForWhenItIsWritten)
{
	ASSERT_GT(save("a", 25 * MIB), 0);
	asked = 0;
	s->start();
	ASSERT_EQ(s->err, 0);
	EXPECT_EQ(s->drain(), 0);
	EXPECT_EQ(s->tree()["a"].size(), 25 * MIB);
	EXPECT_EQ(asked, 0u);
}

// While a version is written its bytes count twice: as promised, and as what the store has less.
TEST_F(NoFallocate, ACloseWaitsForWhatIsCountedTwice)
{
	uint64_t node;
	hold_syncs();
	ASSERT_GT(save("a", 25 * MIB), 0);
	s->start();
	ASSERT_EQ(s->err, 0);
	wait_held();
	staged *f = written("b", 25 * MIB, &node);
	ASSERT_NE(f, nullptr);
	EXPECT_EQ(staged_allocate_now(f), -EAGAIN);
	int err = -1;
	std::thread closes([&] { err = staged_allocate(f); });
	let_go();
	closes.join();
	EXPECT_EQ(err, 0);
	ASSERT_GT(seal(*s, f, node, {{STAGING_ROOT_DIR, "b"}}, true), 0);
	EXPECT_EQ(s->drain(), 0);
	EXPECT_EQ(s->tree()["b"].size(), 25 * MIB);
	staged_unref(f);
}

// It was written to the store as it came, and once more by the fsync.
TEST_F(NoFallocate, AnFsyncNeedsTheBytesOnce)
{
	uint64_t node = staging_new_id(*s);
	std::string bytes = pattern(40 * MIB + 5, 3);
	staged *f = create(*s, node, {STAGING_ROOT_DIR, "f"}, bytes.size());
	ASSERT_NE(f, nullptr);
	for (uint64_t off = 0; off < bytes.size(); off += MIB)
		ASSERT_EQ(write_error(f, bytes.substr(off, MIB), off), 0);
	EXPECT_TRUE(staged_checked(f));
	EXPECT_EQ(staged_allocate(f), 0);
	EXPECT_EQ(staged_allocate_copy(f), 0);
	int64_t seq = seal(*s, f, node, {{STAGING_ROOT_DIR, "f"}}, false);
	ASSERT_GT(seq, 0);
	s->start();
	ASSERT_EQ(s->err, 0);
	EXPECT_EQ(Durable(*s, (uint64_t)seq).wait(), 0);
	EXPECT_FALSE(staged_changed(f)) << "its close would make one more version";
	EXPECT_TRUE(s->tree()["f"] == bytes);
	EXPECT_GT(free_bytes(), 18 * MIB);
	staged_unref(f);
}

// The memory for a file as large as the one before is held ready. It is no part of the file.
TEST_F(NoFallocate, ASmallFileInThePlaceOfALargeOne)
{
	ASSERT_GT(save("a", 40 * MIB), 0);
	s->start();
	ASSERT_EQ(s->err, 0);
	ASSERT_EQ(s->drain(), 0);
	uint64_t node = staging_new_id(*s);
	staged *f = create(*s, node, {STAGING_ROOT_DIR, "b"}, 40 * MIB);
	ASSERT_NE(f, nullptr);
	int fd = -1;
	ASSERT_EQ(staged_use(f, &fd), 0);
	Fd ready(open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY | O_CLOEXEC));
	ASSERT_EQ(fallocate(ready.get(), FALLOC_FL_KEEP_SIZE, 0, (off_t)(40 * MIB)), 0);
	ready.reset(-1);
	staged_unuse(f);
	EXPECT_EQ(write_error(f, pattern(300000, 1), 0), 0);
	EXPECT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(*s, f, node, {{STAGING_ROOT_DIR, "b"}}, true), 0);
	EXPECT_EQ(s->drain(), 0);
	EXPECT_EQ(s->tree()["b"].size(), 300000u);
	staged_unref(f);
}

// Exactly: not after the close, and not the blocks of what was accepted before.
TEST_F(NoFallocate, WritesStopBeforeWhatIsPromised)
{
	ASSERT_GT(save("a", 25 * MIB), 0);
	uint64_t node = staging_new_id(*s), off = 0;
	staged *f = create(*s, node, {STAGING_ROOT_DIR, "b"}, 0);
	ASSERT_NE(f, nullptr);
	std::string bytes = pattern(MIB, 2);
	ssize_t n = 0;
	for (; off < 60 * MIB; off += (uint64_t)n)
		if ((n = staged_write_now(f, bytes.data(), bytes.size(), off, false)) <= 0)
			break;
	EXPECT_EQ(n, -EAGAIN) << "when a is written, there may be more";
	EXPECT_GT(off, 30 * MIB);
	EXPECT_LT(off, 35 * MIB);
	EXPECT_GT(free_bytes(), 25 * MIB);
	s->start();
	ASSERT_EQ(s->err, 0);
	EXPECT_EQ(staged_write(f, bytes.data(), bytes.size(), off + MIB), -ENOSPC);
	EXPECT_EQ(s->drain(), 0);
	EXPECT_EQ(s->stats().halted.error, 0);
	EXPECT_EQ(s->tree()["a"].size(), 25 * MIB);
	staged_unref(f);
}

} // namespace

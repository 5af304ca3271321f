// SPDX-License-Identifier: MIT
//
// Equal files stored once, through staging.h only: which are found, and that nothing else
// about them changes. On a loop-mounted xfs.
#include "tests/api/staging_fixture.hh"
#include "tests/api/xfs.hh"

#include <sys/xattr.h>

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

class Dedup : public ::testing::Test
{
protected:
	void SetUp() override
	{
		if (!xfs.ok)
			GTEST_SKIP() << "needs root and a loop-mounted xfs";
		options.store = xfs.path("store");
		std::filesystem::create_directory(options.store);
	}
	static bool is_found(Staging &s, uint64_t files)
	{
		return until([&] { return s.stats().dedup.files >= files; });
	}
	std::string io_tmp_path(Staging &s)
	{
		return std::filesystem::read_symlink("/proc/self/fd/" +
						     std::to_string(io_store_tmp(s.store)));
	}
	uint64_t shared(const std::string &name) { return shared_bytes(options.store + "/" + name); }
	Xfs xfs;
	Ground ground;
	Options options;
};

TEST_F(Dedup, ReplicasAndNothingElse)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	const std::string bytes = pattern(5000001, 3);	// more than one step, an odd tail
	ASSERT_EQ(h.mkdir("d"), 0);
	ASSERT_EQ(h.put("a", bytes), 0);
	ASSERT_EQ(h.put("d/b", bytes), 0);
	ASSERT_EQ(h.put("other", pattern(5000001, 4)), 0);
	ASSERT_EQ(h.put("small", pattern(65535, 5)), 0);
	ASSERT_EQ(h.put("small2", pattern(65535, 5)), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_TRUE(is_found(s, 1));
	// what is found is found in the order it became durable: nothing else is on its way
	ASSERT_EQ(h.put("a2", bytes), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_TRUE(is_found(s, 2));
	EXPECT_EQ(s.stats().dedup.files, 2u);
	EXPECT_EQ(s.stats().dedup.bytes, 2 * bytes.size());
	for (auto name : {"a", "d/b", "a2"})
		EXPECT_GE(shared(name), bytes.size()) << name;
	for (auto name : {"other", "small", "small2"})
		EXPECT_EQ(shared(name), 0u) << name;
	EXPECT_EQ(s.tree(), h.now()) << show(s.tree());
	EXPECT_EQ(s.stats().errors, 0u);
}

// Renamed, replaced or removed before anybody looked: found where it stands, or passed over.
TEST_F(Dedup, WhatMovesMeanwhile)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	const std::string bytes = pattern(300000, 3);
	ASSERT_EQ(h.put("a.tmp", bytes), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_EQ(h.rename("a.tmp", "a"), 0);
	ASSERT_EQ(h.put("gone", bytes), 0);
	ASSERT_EQ(h.put("b", bytes), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_EQ(h.unlink("gone"), 0);
	ASSERT_EQ(h.put("b", pattern(300000, 9)), 0);
	ASSERT_EQ(h.put("c", bytes), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_TRUE(until([&] { return shared("a") && shared("c"); }));
	EXPECT_EQ(shared("b"), 0u);
	EXPECT_EQ(s.tree(), h.now()) << show(s.tree());
}

// The next daemon knows nothing, and finds the file of the same name beside.
TEST_F(Dedup, TheCheckpointBefore)
{
	const std::string bytes = pattern(300000, 3);
	{
		Staging s(ground, options);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.mkdir("step-1"), 0);
		ASSERT_EQ(h.put("step-1/rank0", bytes), 0);
		ASSERT_EQ(h.put("step-1/rank1", pattern(300000, 4)), 0);
		ASSERT_EQ(s.drain(), 0);
		h.drop();
		staging_clear(s);
	}
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.mkdir("step-2"), 0);
	ASSERT_EQ(h.put("step-2/rank0", bytes), 0);
	ASSERT_EQ(h.put("step-2/rank1", pattern(300000, 5)), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_TRUE(is_found(s, 1));
	EXPECT_GE(shared("step-2/rank0"), bytes.size());
	EXPECT_EQ(shared("step-2/rank1"), 0u);
}

// Nor does it know what is copied, unless it is told.
TEST_F(Dedup, ACopyOfAnOldFile)
{
	const std::string bytes = pattern(300000, 3);
	{
		Staging s(ground, options);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("old", bytes), 0);
		ASSERT_EQ(s.drain(), 0);
		h.drop();
		staging_clear(s);
	}
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(staging_dedup_source(s, 1u << 30, root, "gone"), 0);
	ASSERT_EQ(staging_dedup_source(s, 1u << 30 | 1, root, "old"), 0);
	ASSERT_EQ(staging_dedup_source(s, 1u << 30 | 1, root, "old"), 0);
	ASSERT_EQ(h.put("copy", bytes), 0);
	ASSERT_EQ(h.put("other", pattern(300000, 4)), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_TRUE(is_found(s, 1));
	EXPECT_GE(shared("copy"), bytes.size());
	EXPECT_GE(shared("old"), bytes.size());
	EXPECT_EQ(shared("other"), 0u);
	EXPECT_EQ(s.stats().dedup.files, 1u);
}

// Somebody has a lease on a file of the store, as file servers do: opening it answers EAGAIN for as long
// as he likes to keep it, and the others' turn comes all the same.
TEST_F(Dedup, ALeasedFileIsPassedOver)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.put("leased", pattern(300000, 3)), 0);
	ASSERT_EQ(s.drain(), 0);
	Fd fd(open((options.store + "/leased").c_str(), O_RDWR | O_CLOEXEC));
	signal(SIGIO, SIG_IGN);
	ASSERT_TRUE(until([&] { return !fcntl(fd.get(), F_SETLEASE, F_WRLCK); }));
	for (auto name : {"as-leased", "a", "b"})
		ASSERT_EQ(h.put(name, pattern(300000, *name == 'a' && name[1] ? 3 : 4)), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_TRUE(is_found(s, 1));
	EXPECT_GE(shared("a"), 300000u);
	EXPECT_GE(shared("b"), 300000u);
	EXPECT_EQ(shared("as-leased"), 0u);
}

// One block of the source rots on the disk, under a cache that is sound: the kernel's comparison would
// not see it, and both would have lost it.
TEST_F(Dedup, RotUnderTheCacheIsNotShared)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	const std::string bytes = pattern(300000, 3);
	ASSERT_EQ(h.put("old", bytes), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(read_file(options.store + "/old"), bytes);	// into the cache
	xfs.rot(options.store + "/old");
	EXPECT_EQ(read_file(options.store + "/old"), bytes);
	ASSERT_EQ(h.put("new", bytes), 0);
	ASSERT_EQ(h.put("a", pattern(300000, 4)), 0);
	ASSERT_EQ(h.put("b", pattern(300000, 4)), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_TRUE(is_found(s, 1));
	EXPECT_GE(shared("b"), 300000u);
	EXPECT_EQ(shared("new"), 0u);
}

// ---- copies ----

// What a copy_file_range of the store file `from` and a close make.
class Copy : public Dedup
{
protected:
	staged *begin(Staging &s, const std::string &from, const std::string &to, const std::string &bytes)
	{
		node = staging_new_id(s);
		staged *f = create(s, node, {root, to}, bytes.size());
		Fd fd(open((options.store + "/" + from).c_str(), O_RDONLY | O_CLOEXEC));
		if (!f || fd.get() < 0)
			return nullptr;
		staged_copied_from(f, dup(fd.get()));
		if (!write_all(f, bytes) || staged_allocate(f))
			return nullptr;
		return f;
	}
	int64_t copy(Staging &s, const std::string &from, const std::string &to, const std::string &bytes)
	{
		staged *f = begin(s, from, to, bytes);
		if (!f)
			return -EIO;
		int64_t seq = seal(s, f, node, {{root, to}}, true);
		staged_unref(f);
		return seq;
	}
	uint64_t node = 0;
};

TEST_F(Copy, IsAClone)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	const std::string bytes = pattern(5000001, 3), less = pattern(65536, 4);
	ASSERT_EQ(h.put("a", bytes), 0);
	ASSERT_EQ(h.put("small", less), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_GT(copy(s, "a", "b", bytes), 0);
	ASSERT_GT(copy(s, "small", "small2", less), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.stats().dedup.clones, 2u);
	EXPECT_EQ(s.stats().dedup.bytes, bytes.size() + less.size());
	EXPECT_GE(shared("b"), bytes.size());
	EXPECT_EQ(s.tree(), (Tree{{"a", bytes}, {"b", bytes}, {"small", less}, {"small2", less}}));
	// nothing is left of what the closes allocated
	ASSERT_TRUE(until([&] { return std::filesystem::is_empty(io_tmp_path(s)); }));
	// nor is a clone compared again
	poll(nullptr, 0, 300);
	EXPECT_EQ(s.stats().dedup.bytes, bytes.size() + less.size());
	EXPECT_EQ(s.stats().errors, 0u);
}

TEST_F(Copy, IsWrittenWhereItDiffers)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	std::string bytes = pattern(5000001, 3), other = bytes;
	other[4999999] ^= 1;
	ASSERT_EQ(h.put("a", bytes), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_GT(copy(s, "a", "b", other), 0);			// a byte
	ASSERT_GT(copy(s, "a", "c", bytes.substr(1)), 0);	// the size
	ASSERT_EQ(setxattr((options.store + "/a").c_str(), "user.cairn.checksum", "xxh3:0", 6, 0), 0);
	ASSERT_GT(copy(s, "a", "d", bytes), 0);			// the source is not sound
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.stats().dedup.clones, 0u);
	EXPECT_EQ(s.tree(), (Tree{{"a", bytes}, {"b", other}, {"c", bytes.substr(1)}, {"d", bytes}}));
	ASSERT_TRUE(until([&] { return std::filesystem::is_empty(io_tmp_path(s)); }));
}

// An fsync's version and the one of the close; counted once.
TEST_F(Copy, FsyncedBeforeItsClose)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	const std::string bytes = pattern(400000, 3);
	ASSERT_EQ(h.put("a", bytes), 0);
	ASSERT_EQ(s.drain(), 0);
	staged *f = begin(s, "a", "b", bytes);
	ASSERT_NE(f, nullptr);
	int64_t seq = seal(s, f, node, {{root, "b"}}, false);
	ASSERT_GT(seq, 0);
	EXPECT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
	EXPECT_GE(shared("b"), bytes.size());
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "b"}}, true, REC_SHADOW), 0);
	staged_unref(f);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_GE(shared("b"), bytes.size());
	EXPECT_EQ(s.stats().dedup.clones, 1u);
	EXPECT_EQ(s.stats().dedup.bytes, bytes.size());
	EXPECT_EQ(s.tree(), (Tree{{"a", bytes}, {"b", bytes}}));
}

// Cloned, its name not given yet, when everything dies: it is written from staging. And the
// source may be gone by then.
TEST_F(Copy, KilledBeforeItsName)
{
	const std::string bytes = pattern(400000, 3);
	{
		Staging s(ground, options);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("a", bytes), 0);
		ASSERT_EQ(s.drain(), 0);
		// one before it in the order, mapped, lets nothing pass
		staged *held = create(s, 77, {root, "held"}, 4096);
		ASSERT_TRUE(write_all(held, "held"));
		ASSERT_EQ(staged_allocate(held), 0);
		int map = staged_open_rw(held);
		ASSERT_GE(map, 0);
		ASSERT_GT(seal(s, held, 77, {{root, "held"}}, true), 0);
		staged *f = begin(s, "a", "b", bytes);
		ASSERT_NE(f, nullptr);
		ASSERT_GT(seal(s, f, node, {{root, "b"}}, true), 0);
		EXPECT_EQ(staged_wait_persisted(f), 0);
		uint64_t cloned = 0;
		for (auto &e : std::filesystem::directory_iterator(io_tmp_path(s)))
			cloned += shared_bytes(e.path());
		EXPECT_GE(cloned, bytes.size());
		EXPECT_EQ(s.tree(), (Tree{{"a", bytes}}));
		h.drop();
		staged_unref(held);
		staged_unref(f);
		close(map);
	}
	ASSERT_EQ(unlink((options.store + "/a").c_str()), 0);
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.tree(), (Tree{{"b", bytes}, {"held", "held"}}));
	ASSERT_TRUE(until([&] { return std::filesystem::is_empty(io_tmp_path(s)); }));
}

// Its sync fails: what was cloned proves nothing, and it is written.
TEST_F(Copy, WhoseSyncFails)
{
	const std::string bytes = pattern(400000, 3);
	{
		Staging s(ground, options);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("a", bytes), 0);
		ASSERT_EQ(s.drain(), 0);
		h.drop();
		staging_clear(s);
	}
	options.fault = "1:@1:lostsync";
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	ASSERT_GT(copy(s, "a", "b", bytes), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.stats().dedup.clones, 0u);
	EXPECT_GE(s.stats().errors, 1u);
	EXPECT_EQ(s.tree(), (Tree{{"a", bytes}, {"b", bytes}}));
}

// More copies than descriptors are held for: the others are written.
TEST_F(Copy, Many)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	const std::string bytes = pattern(65536, 3);
	ASSERT_EQ(h.put("a", bytes), 0);
	ASSERT_EQ(s.drain(), 0);
	staged *held = create(s, 77, {root, "held"}, 4096);
	std::vector<staged *> open;
	for (int i = 0; i < 400; i++) {
		staged *f = begin(s, "a", "b" + std::to_string(i), bytes);
		ASSERT_NE(f, nullptr);
		open.push_back(f);
	}
	for (int i = 0; i < 400; i++) {
		staged_info in = info(open[i]);
		ASSERT_GT(seal(s, open[i], 1000 + i, {{root, "b" + std::to_string(i)}}, true), 0) << in.id;
		staged_unref(open[i]);
	}
	staged_unref(held);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_GE(s.stats().dedup.clones, 200u);
	EXPECT_LE(s.stats().dedup.clones, 250u);
	Tree now = s.tree();
	EXPECT_EQ(now.size(), 401u);
	for (auto &[name, is] : now)
		EXPECT_EQ(is, bytes) << name;
}

TEST_F(Dedup, NotWanted)
{
	options.no_dedup = true;
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.put("a", pattern(300000, 3)), 0);
	EXPECT_EQ(staging_dedup_source(s, 1u << 30, root, "a"), -EOPNOTSUPP);
	ASSERT_EQ(h.put("b", pattern(300000, 3)), 0);
	ASSERT_EQ(s.drain(), 0);
	poll(nullptr, 0, 500);
	EXPECT_EQ(s.stats().dedup.files, 0u);
	EXPECT_EQ(shared("a"), 0u);
}

TEST_F(Copy, NotWanted)
{
	options.no_dedup = true;
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	History h(s);
	const std::string bytes = pattern(300000, 3);
	ASSERT_EQ(h.put("a", bytes), 0);
	ASSERT_EQ(s.drain(), 0);
	ASSERT_GT(copy(s, "a", "b", bytes), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.stats().dedup.clones, 0u);
	EXPECT_EQ(shared("b"), 0u);
}

} // namespace

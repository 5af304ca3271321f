// SPDX-License-Identifier: MIT
//
// Equal files stored once, through staging.h only: which are found, and that nothing else
// about them changes. On a loop-mounted xfs.
#include "tests/api/staging_fixture.hh"
#include "tests/api/xfs.hh"

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
		return until([&] { return s.stats().dedup_files >= files; });
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
	EXPECT_EQ(s.stats().dedup_files, 2u);
	EXPECT_EQ(s.stats().dedup_bytes, 2 * bytes.size());
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
	EXPECT_EQ(s.stats().dedup_files, 1u);
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
	EXPECT_EQ(s.stats().dedup_files, 0u);
	EXPECT_EQ(shared("a"), 0u);
}

} // namespace

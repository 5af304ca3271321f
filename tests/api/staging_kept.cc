// SPDX-License-Identifier: MIT
//
// What is kept of a checkpoint that is overwritten in place, when nothing else fails.
#include "tests/api/previous_fixture.hh"

namespace
{

// It is kept once, as it was when it was whole, however often its files are replaced; and what it
// had before it was whole is not kept.
TEST(Previous, OfTheLastThatWasWhole)
{
	Ground ground;
	{
		Staging s(ground, with(""));
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.mkdir("ck"), 0);
		for (int i = 0; i < 2; i++) {
			ASSERT_EQ(h.put("ck/a", "none"), 0);
			ASSERT_EQ(s.drain(), 0);
		}
		EXPECT_TRUE(kept(ground).empty());
		ASSERT_EQ(save(h, 1), 0);
		ASSERT_EQ(s.drain(), 0);
		for (unsigned n = 2; n < 5; n++) {
			ASSERT_EQ(h.put("ck/a", generation(n)["a"]), 0);
			ASSERT_EQ(s.drain(), 0);
			ASSERT_EQ(kept(ground).size(), 1u);
			EXPECT_TRUE(is_whole(kept(ground)[0], 1));
		}
		EXPECT_EQ(s.stats().previous.kept, 1u);
		EXPECT_GE(s.stats().previous.bytes, 300000u);
	}
	Staging s(ground, with(""));
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.stats().previous.kept, 1u);
	EXPECT_GE(s.stats().previous.bytes, 300000u);
	EXPECT_TRUE(is_whole(kept(ground)[0], 1));
}

// A writer that truncates .metadata before it writes it: an empty one ends nothing.
TEST(Previous, AnEmptyMetadataIsNoCommit)
{
	Ground ground;
	{
		Staging s(ground, with(""));
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.mkdir("ck"), 0);
		ASSERT_EQ(save(h, 1), 0);
		ASSERT_EQ(s.drain(), 0);
		ASSERT_EQ(h.put("ck/a", generation(2)["a"]), 0);
		ASSERT_EQ(h.put("ck/.metadata", ""), 0);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_TRUE(is_somewhere(ground, 1));
	}
	Staging s(ground, with(""));
	ASSERT_EQ(s.err, 0);
	EXPECT_TRUE(is_somewhere(ground, 1));
}

// A store without hard links: saves go on as before, it is told once for each that is overwritten,
// and what is there after the next start is not taken for a checkpoint that is kept.
TEST(Previous, ASaveGoesOnWithoutHardLinks)
{
	Ground ground;
	{
		Staging s(ground, with("1:1:nolink"));
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.mkdir("ck"), 0);
		ASSERT_EQ(save(h, 1), 0);
		ASSERT_EQ(s.drain(), 0);
		ASSERT_EQ(s.engine.counts().faults, 0u);
		for (const char *name : {"a", "b"}) {
			ASSERT_EQ(h.put(std::string("ck/") + name, generation(2)[name]), 0);
			ASSERT_EQ(s.drain(), 0);
		}
		EXPECT_GT(s.engine.counts().faults, 0u);
		EXPECT_EQ(s.notes_with("cannot be kept"), 1);
		EXPECT_EQ(s.notes_with(strerror(EPERM)), 1);
		ASSERT_EQ(s.stats().previous.lost, 1u);
		ASSERT_EQ(s.stats().previous.kept, 0u);
		EXPECT_FALSE(is_somewhere(ground, 1));
		ASSERT_EQ(save(h, 2), 0);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_TRUE(is_whole(ground.store() + "/ck", 2));
		EXPECT_TRUE(until([&] { return kept(ground).empty(); }));
		ASSERT_EQ(h.put("ck/a", "none"), 0);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_EQ(s.notes_with("cannot be kept"), 2);
	}
	Staging s(ground, with(""));
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.stats().previous.lost, 1u);
	ASSERT_EQ(s.stats().previous.kept, 0u);
}

} // namespace

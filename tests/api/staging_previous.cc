// SPDX-License-Identifier: MIT
// timeout: 300
//
// A checkpoint that is overwritten in place: wherever the store fails, the old or the new one is
// whole, by plain reads of the store.
#include "tests/api/previous_fixture.hh"

namespace
{

// How many operations the first save takes.
unsigned first_save()
{
	Ground ground;
	Staging s(ground, with(""));
	History h(s);
	if (s.err || h.mkdir("ck") || save(h, 1) || s.drain())
		throw std::runtime_error("the first save");
	return (unsigned)s.engine.counts().ops;
}

// The Nth operation of a second save fails, or from it on: for every N.
void overwritten(const char *from, const char *kind)
{
	unsigned halted = 0, lost = 0, tried = 0, n = first_save();

	for (bool clean = false; !clean; n += one_of()) {
		SCOPED_TRACE("operation " + std::to_string(n));
		ASSERT_LT(n, 600u);
		std::string fault = "1:@" + std::to_string(n) + from + ":" + kind;
		bool full = std::string(kind) == "enospc";
		Ground ground;
		int saved;
		{
			Staging s(ground, with(fault));
			ASSERT_EQ(s.err, 0);
			History h(s);
			int rc = h.mkdir("ck");
			rc = rc ? rc : save(h, 1);
			rc = rc ? rc : s.drain();
			if (rc)
				continue;
			ASSERT_TRUE(is_whole(ground.store() + "/ck", 1));
			saved = save(h, 2);
			int drained = s.drain();
			tried++;
			halted += drained != 0;
			bool given_up = s.notes_with("cannot be kept");
			lost += given_up;
			EXPECT_TRUE(given_up ? full
					     : is_somewhere(ground, 1) || is_somewhere(ground, 2));
			clean = !s.engine.counts().faults;
			if (!drained && !saved) {
				EXPECT_TRUE(is_whole(ground.store() + "/ck", 2));
			}
		}
		Staging again(ground, with(""));
		ASSERT_EQ(again.err, 0);
		ASSERT_EQ(again.drain(), 0);
		History h(again);
		EXPECT_TRUE(saved || is_whole(ground.store() + "/ck", 2));
		EXPECT_TRUE(saved || until([&] { return kept(ground).empty(); }));
	}
	EXPECT_GT(tried, 5u);
	EXPECT_EQ(halted > 0, *from == '+');
	EXPECT_EQ(lost > 0, !strcmp(kind, "enospc"));
}

TEST(Previous, WholeWhereverTheStoreFails)
{
	overwritten("+", "eio");
}

TEST(Previous, WholeWhateverFailsOnce)
{
	overwritten("", "eio");
}

TEST(Previous, ASaveGoesOnWithoutRoomForBoth)
{
	overwritten("", "enospc");
}

// The worker died between its last change to the store and the mark of it: what is there is the new
// checkpoint, which the change does not replace when it is made once more.
TEST(Previous, WhatIsDoneAlreadyReplacesNothing)
{
	Ground ground;
	const std::string ck = ground.store() + "/ck";
	{
		Options o = with("");
		bool second = false;
		// without a .metadata: the rename is next
		o.may_publish = [&] {
			return second && !std::filesystem::exists(ck + "/.metadata") ? -EIO : 0;
		};
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.mkdir("ck"), 0);
		ASSERT_EQ(save(h, 1), 0);
		ASSERT_EQ(s.drain(), 0);
		second = true;
		ASSERT_EQ(save(h, 2), 0);
		ASSERT_NE(s.drain(), 0);
	}
	ASSERT_EQ(kept(ground).size(), 1u);
	std::filesystem::rename(ck + "/tmp", ck + "/.metadata");
	Staging again(ground, with(""));
	ASSERT_EQ(again.err, 0);
	ASSERT_EQ(again.drain(), 0);
	EXPECT_TRUE(is_whole(ck, 2));
	EXPECT_TRUE(until([&] { return kept(ground).empty(); }));
}

// Two saves without a pause are never published as one: the second would destroy what the first
// has just made whole.
TEST(Previous, EachOfManyIsWholeInItsTurn)
{
	Ground ground;
	Options o = with("");
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.mkdir("ck"), 0);
	for (unsigned n = 1; n < 6; n++)
		ASSERT_EQ(save(h, n), 0);
	ASSERT_EQ(h.put("ck/a", "none"), 0);
	s.start();
	ASSERT_EQ(s.drain(), 0);
	ASSERT_TRUE(until([&] { return kept(ground).size() == 1; }));
	EXPECT_TRUE(is_whole(kept(ground)[0], 5));
}

} // namespace

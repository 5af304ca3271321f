// SPDX-License-Identifier: MIT
//
// A store that is full or fails: errors stick and are told, nothing accepted is lost, nothing
// deadlocks, and a retry ends well once the store does.
#include "tests/api/staging_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

// A small store, full when a test wants it. tmpfs: O_DIRECT and fallocate as on disk.
class Full : public ::testing::Test
{
protected:
	void SetUp() override
	{
		if (!small.ok)
			GTEST_SKIP() << "no mount without root";
		o.store = small.dir.path;
		o.start = false;
	}
	std::string at(const std::string &name) { return small.dir / name; }
	// Takes all room but `leave`.
	void fill(uint64_t leave)
	{
		struct statvfs v;
		ASSERT_EQ(statvfs(small.dir.path.c_str(), &v), 0);
		uint64_t free = v.f_bavail * v.f_frsize;
		ASSERT_GT(free, leave);
		Fd fd(open(at("filler").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
		ASSERT_EQ(fallocate(fd.get(), 0, 0, (off_t)(free - leave)), 0);
	}
	Tree with_filler(Tree t)
	{
		t["filler"] = read_file(at("filler"));
		return t;
	}
	Mount small{"tmpfs", "size=8m"};
	Ground ground;
	Options o;
};

TEST_F(Full, ACloseThatFindsNoRoomWasNeverAccepted)
{
	o.start = true;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	EXPECT_EQ(h.put("large", pattern(16u << 20, 1)), -ENOSPC);
	EXPECT_EQ(staging_last_seq(s), 0u); // no place in the order
	ASSERT_EQ(h.put("fits", pattern(300000, 2)), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(s.tree() == h.now()) << show(s.tree());
	EXPECT_EQ(s.stats().halted_error, 0);
	h.drop();
	EXPECT_EQ(s.stats().used, 0u); // and its room is given back
}

// What is deleted earlier in the order makes room for what comes later.
TEST_F(Full, RoomOfDeletesBeforeIt)
{
	o.start = true;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	for (int step = 0; step < 5; step++) { // each fits only without the one before
		std::string name = "step" + std::to_string(step);
		if (step) {
			ASSERT_EQ(h.unlink("step" + std::to_string(step - 1)), 0);
		}
		ASSERT_EQ(h.put(name, pattern(5u << 20, (uint64_t)step)), 0) << step;
	}
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(s.tree() == h.now()) << show(s.tree());
}

// Accepted, and then the store is full after all: the version fails, stays readable, is told
// to whoever waits, and a retry makes it durable.
TEST_F(Full, HaltsToldAndRetried)
{
	Tree want;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("first", "1"), 0);
		ASSERT_EQ(h.put("big", pattern(4u << 20, 1)), 0);
		ASSERT_EQ(h.put("after", "2"), 0);
		want = h.now();
	} // killed: the blocks it held are given back at the next start
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	uint64_t last = staging_last_seq(s);
	// its own reference, as the face's node has one
	rec r = {};
	for (auto &seen : s.replayed)
		if (seen.r.type == REC_SEAL && seen.name == "big")
			r = seen.r;
	staged *f;
	ASSERT_EQ(staged_recover(s, &r, &f), 0);
	fill(1u << 20);
	Durable waiter(s, last);
	s.start();
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(waiter.wait(), -ENOSPC);
	EXPECT_EQ(s.drain(), -ENOSPC);
	EXPECT_EQ(Durable(s, last).wait(), -ENOSPC); // it sticks
	EXPECT_EQ(staging_durable(s), 1u);
	EXPECT_EQ(info(f).error, -ENOSPC);
	std::string got(4u << 20, 0);
	ASSERT_EQ(staged_read(f, got.data(), got.size(), 0), (ssize_t)got.size());
	EXPECT_SAME(got, want["big"]);
	EXPECT_TRUE(s.tree() == with_filler({{"first", "1"}})) << show(s.tree());
	staging_stats st = s.stats();
	EXPECT_EQ(st.halted_error, -ENOSPC);
	EXPECT_STREQ(st.halted_path, "big");
	EXPECT_NE(st.halted_since, 0);
	EXPECT_NE(std::string(st.last_error).find("big"), std::string::npos);
	EXPECT_TRUE(until([&] { return s.notes_with("cairn retry") == 1; }));

	// a close meanwhile is refused rather than accepted into what fails
	History h(s);
	EXPECT_EQ(h.put("meanwhile", "x"), -EIO);
	EXPECT_EQ(staging_last_seq(s), last);
	staging_retry(s); // still full
	EXPECT_EQ(s.drain(), -ENOSPC);

	ASSERT_EQ(std::filesystem::remove(at("filler")), true);
	ASSERT_TRUE(until([&] { // the retry before may be under way
		staging_retry(s);
		return s.drain(50) == 0;
	}));
	EXPECT_TRUE(s.tree() == want) << show(s.tree());
	EXPECT_EQ(Durable(s, last).wait(), 0);
	EXPECT_EQ(info(f).state, STAGED_DURABLE);
	EXPECT_EQ(s.stats().halted_error, 0);
	EXPECT_STREQ(s.stats().halted_path, "");
	EXPECT_GE(s.notes_with("well again"), 1); // twice when a later version halted as well
	EXPECT_EQ(h.put("meanwhile", "x"), 0);
	ASSERT_EQ(s.drain(), 0);
	staged_unref(f);
}

// Halted and killed: the next start has it all.
TEST_F(Full, HaltedAndKilled)
{
	Tree want;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("big", pattern(4u << 20, 1)), 0);
		ASSERT_EQ(h.mkdir("d"), 0);
		want = h.now();
	}
	for (int round = 0; round < 2; round++) {
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		if (!round)
			fill(1u << 20);
		s.start();
		EXPECT_EQ(s.drain(), -ENOSPC);
		EXPECT_TRUE(s.tree() == with_filler({})) << show(s.tree());
	}
	std::filesystem::remove(at("filler"));
	o.start = true;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(s.tree() == want) << show(s.tree());
}

// A store without a byte left can still apply the names that make room.
TEST_F(Full, NamesFallBackOnTheReserve)
{
	o.start = true;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.put("a", pattern(100000, 1)), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(staging_room_for_names(s));
	fill(0);
	ASSERT_EQ(h.rename("a", "b"), 0);
	ASSERT_EQ(h.unlink("b"), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(s.tree() == with_filler({})) << show(s.tree());
}

// ---- a store that answers EIO ----

TEST(Eio, SticksUntilTheStoreIsWell)
{
	Ground ground;
	Options o;
	o.fault = "1:@1+:eio";
	o.start = false;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		rec r = {};
		r.type = REC_MKDIR;
		r.node = staging_new_id(s);
		r.dir = root;
		r.name = "d";
		ASSERT_EQ(staging_log(s, &r), 0);
		Durable first(s, r.seq);
		s.start();
		ASSERT_EQ(s.err, 0);
		EXPECT_EQ(first.wait(), -EIO);
		EXPECT_EQ(Durable(s, r.seq).wait(), -EIO);
		EXPECT_EQ(s.drain(), -EIO);
		EXPECT_STREQ(s.stats().halted_path, "d");
		EXPECT_EQ(staging_durable(s), 0u);
		staging_retry(s);
		EXPECT_EQ(s.drain(), -EIO); // never a silent success
		EXPECT_EQ(show(s.tree()), "");
	}
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), "d/=0 ");
}

// What stands in the way in the store is told and passed over; the version is kept.
TEST(Conflict, IsToldAndTheVersionIsKept)
{
	Ground ground;
	Options o;
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.mkdir("d"), 0);
	ASSERT_EQ(h.put("taken", "mine"), 0);
	ASSERT_EQ(h.put("after", "A"), 0);
	std::filesystem::create_directories(ground.store() + "/taken/by-another");
	s.start();
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.notes_with("conflict at taken"), 1);
	EXPECT_EQ(show(s.tree()), "after=1,65 d/=0 taken/=0 taken/by-another/=0 ");
	EXPECT_EQ(s.stats().lost_found, 1u);
	std::string kept;
	for (auto &at : std::filesystem::directory_iterator(ground.store() + "/.cairn/lost+found"))
		kept = at.path();
	EXPECT_EQ(kept.substr(kept.rfind('/') + 1).substr(0, 6), "taken.");
	EXPECT_EQ(read_file(kept), "mine");
}

TEST(Conflict, ADirectoryThatIsThereServes)
{
	Ground ground;
	Options o;
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.mkdir("step"), 0);
	ASSERT_EQ(h.put("step/mine", "m"), 0);
	// another node of the cluster was faster
	std::filesystem::create_directory(ground.store() + "/step");
	write_file(ground.store() + "/step/theirs", "t");
	s.start();
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), "step/=0 step/mine=1,109 step/theirs=1,116 ");
}

} // namespace

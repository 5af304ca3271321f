// SPDX-License-Identifier: MIT
//
// Memory while the store cannot take what outgrows it: when the tmpfs is asked to be small, for
// how long, and who waits for it. The test is the keeper, and the process that freezes files.
#include <thread>

#include "tests/api/staging_fixture.hh"
#include "staging_shim.h"

namespace
{

const uint64_t mib = 1u << 20;

class Limit : public testing::Test {
protected:
	Options with()
	{
		Options o;
		o.budget = 200 * mib;
		o.outgrown = [this](uint64_t) { asked++; };
		o.limits = [this](bool on) {
			staging_place_fit(&place, on ? 200 * mib : 0);
			limited = on;
		};
		return o;
	}
	Ground ground;
	staging_place place = {};
	std::atomic<int> asked = 0;
	std::atomic<bool> limited = false;
};

// As through passthrough: staging sees nothing of it.
struct Writer {
	explicit Writer(Staging &s, const std::string &name)
		: f(create(s, staging_new_id(s), {STAGING_ROOT_DIR, name}, 4 * mib)),
		  fd(f ? staged_open_rw(f) : -1)
	{
		if (f)
			staged_set_backing(f);
	}
	~Writer()
	{
		if (f)
			staged_unref(f);
	}
	bool grow_to(uint64_t size) { return !fallocate(fd.get(), 0, 0, (off_t)size); }
	staged *f;
	Fd fd;
};

// The limit ends where the budget is kept, be it for a moment. The file that had no space is not
// waited for then: what it grows by meanwhile is bounded by nothing.
TEST_F(Limit, LiftedAFileIsAskedForAtOnce)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	place = s.place;
	staged *other = create(s, staging_new_id(s), {STAGING_ROOT_DIR, "other"}, 130 * mib);
	Writer w(s, "shard");
	ASSERT_TRUE(other && w.f && w.grow_to(80 * mib));
	ASSERT_TRUE(until([&] { return asked > 0; }));
	staged_limit(w.f, -ENOSPC);
	ASSERT_TRUE(limited);
	EXPECT_TRUE(shim_move_pauses(w.f));
	staged_unref(other);
	ASSERT_TRUE(until([&] { return !limited; }));
	EXPECT_FALSE(shim_move_pauses(w.f));
}

// Whoever makes the tmpfs small may take long: the writer, frozen, waits for it.
TEST_F(Limit, HeldUpItHoldsTheWriter)
{
	std::atomic<int> done = -EAGAIN;
	std::atomic<unsigned> looks = 0;
	Options o = with();
	o.limited = [&] {
		looks++;
		return (int)done;
	};
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	Writer w(s, "shard");
	ASSERT_TRUE(w.f && w.grow_to(220 * mib));
	std::atomic<bool> goes_on = false;
	std::thread frozen([&] {
		staged_limit(w.f, -ENOSPC);
		goes_on = true;
	});
	EXPECT_TRUE(until([&] { return looks > 1500; })); // one each millisecond
	EXPECT_FALSE(goes_on);
	done = 0;
	frozen.join();
	EXPECT_EQ(s.notes_with("their writes get ENOSPC"), 1);
}

// Nor is the writer held for ever, if nobody can do it.
TEST_F(Limit, WhereItCannotBeDoneThatIsTold)
{
	Options o = with();
	o.limited = [] { return -ESRCH; };
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	Writer w(s, "shard");
	ASSERT_TRUE(w.f && w.grow_to(220 * mib));
	staged_limit(w.f, -ENOSPC);
	EXPECT_EQ(s.notes_with("on a tmpfs that cannot be limited"), 1);
}

// A store that fails takes nothing either. An error of the moment does not count, nor does a lack
// of descriptors.
TEST_F(Limit, AStoreThatFails)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	place = s.place;
	Writer w(s, "shard");
	ASSERT_TRUE(w.f && w.grow_to(220 * mib));
	for (int err : {-EIO, -EIO, 0, -EIO, -EIO, -EMFILE, -EMFILE}) {
		staged_limit(w.f, err);
		EXPECT_FALSE(limited);
	}
	staged_limit(w.f, -EIO);
	EXPECT_TRUE(limited);
	EXPECT_EQ(s.notes_with("the store fails (Input/output error)"), 1);
	staged_limit(w.f, -EIO);
	EXPECT_TRUE(limited);
	staged_limit(w.f, 0);
	EXPECT_FALSE(limited);
	EXPECT_EQ(s.notes_with("have space again"), 1);
}

// The store has space for one owner, and not for another.
TEST_F(Limit, OneThatMovesDoesNotLiftItForAnother)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	place = s.place;
	Writer stuck(s, "stuck"), moves(s, "moves");
	ASSERT_TRUE(stuck.f && moves.f && stuck.grow_to(150 * mib) && moves.grow_to(100 * mib));
	staged_limit(stuck.f, -EDQUOT);
	staged_limit(moves.f, 0);
	EXPECT_TRUE(limited);
	EXPECT_FALSE(shim_move_pauses(stuck.f)); // it is tried again
	ASSERT_EQ(staged_resize(stuck.f, 0), 0);
	staged_limit(stuck.f, 0);
	EXPECT_FALSE(limited);
}

// A file that is closed does not keep it.
TEST_F(Limit, EndsWithTheFile)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	place = s.place;
	Writer other(s, "other");
	ASSERT_TRUE(other.f && other.grow_to(220 * mib)); // more than the budget stays in use
	{
		Writer stuck(s, "stuck");
		ASSERT_TRUE(stuck.f && stuck.grow_to(50 * mib));
		staged_limit(stuck.f, -ENOSPC);
		ASSERT_TRUE(limited);
	}
	EXPECT_TRUE(until([&] { return !limited; }));
}

// The next worker finds the tmpfs small, and the files as they were.
TEST_F(Limit, OutlivesAWorker)
{
	Options o = with();
	o.is_limited = true;
	o.start = false;
	std::atomic<int> lifts = 0;
	o.limits = [&](bool on) { lifts += !on; };
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	Writer w(s, "shard");
	ASSERT_TRUE(w.f && write_all(w.f, std::string(220 * mib, 'x'))); // charged, as by a replay
	s.start();
	EXPECT_TRUE(until([&] { return asked > 5; }));
	staged_limit(w.f, -ENOSPC);
	EXPECT_EQ(lifts, 0);
	staged_limit(w.f, 0);
	EXPECT_EQ(lifts, 1);
}

} // namespace

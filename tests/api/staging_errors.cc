// SPDX-License-Identifier: MIT
//
// A store that is full or fails: errors stick and are told, nothing accepted is lost, nothing
// deadlocks, and a retry ends well once the store does.
#include <sys/syscall.h>

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
	// Takes all space but `leave`.
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

// Publication needs the blocks that the reserve gave away: who writes into the store itself gets none of them.
TEST(GivenReserve, IsNotForSpilledFiles)
{
	Mount disk{"tmpfs", "size=80m"};
	if (!disk.ok)
		GTEST_SKIP() << "no mount without root";
	Ground ground;
	Options o;
	o.store = disk.dir.path;
	o.budget = 1u << 20;
	std::string reserve, filler = disk.dir / "filler";
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
	}
	for (auto &at : std::filesystem::recursive_directory_iterator(o.store + "/.cairn"))
		if (at.path().filename() == "reserve")
			reserve = at.path();
	ASSERT_NE(reserve, "");
	ASSERT_GT(std::filesystem::file_size(reserve), 200u << 10);
	std::filesystem::resize_file(reserve, 100u << 10);
	struct statvfs v;
	ASSERT_EQ(statvfs(o.store.c_str(), &v), 0);
	{
		Fd fd(open(filler.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
		off_t most = (off_t)(v.f_bavail * v.f_frsize - (300u << 10));
		ASSERT_EQ(fallocate(fd.get(), 0, 0, most), 0);
	}
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	staged *f = nullptr;
	ASSERT_EQ(staged_create(s, staging_new_id(s), 4u << 20, &f), 0);
	ASSERT_TRUE(staged_spilled(f));
	EXPECT_EQ(write_error(f, pattern(100u << 10, 1)), -ENOSPC);
	ASSERT_EQ(unlink(filler.c_str()), 0);
	EXPECT_EQ(write_error(f, pattern(100u << 10, 1)), 0);
	staged_unref(f);
}

// Another one may serve the store from one change to the next.
TEST(MayPublish, IsAskedBeforeEachChange)
{
	Ground ground;
	Options o;
	o.start = false;
	std::atomic<int> left{2}; // the batch, and its first change
	o.may_publish = [&] { return left-- > 0 ? 0 : -EADDRINUSE; };
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	for (const char *name : {"a", "b", "c"})
		ASSERT_EQ(h.put(name, pattern(100000, 1)), 0);
	s.start();
	ASSERT_TRUE(until([&] { return s.stats().halted.error; }));
	EXPECT_EQ(s.stats().halted.error, -EADDRINUSE);
	EXPECT_EQ(s.tree().size(), 1u) << show(s.tree());
	left = 1000;
	staging_retry(s);
	ASSERT_TRUE(until([&] { return !s.stats().halted.error; }));
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(s.tree() == h.now()) << show(s.tree());
}

TEST_F(Full, ACloseThatFindsNoSpaceWasNeverAccepted)
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
	EXPECT_EQ(s.stats().halted.error, 0);
	h.drop();
	EXPECT_EQ(s.stats().used, 0u); // and its space is given back
}

// What is deleted earlier in the order makes space for what comes later.
TEST_F(Full, SpaceOfDeletesBeforeIt)
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
	// its own reference, as the frontend's node has one
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
	EXPECT_EQ(st.halted.error, -ENOSPC);
	EXPECT_STREQ(st.halted.path, "big");
	EXPECT_NE(st.halted.since, 0);
	EXPECT_NE(std::string(st.last_error).find("big"), std::string::npos);
	EXPECT_TRUE(until([&] { return s.notes_with("cairn retry") == 1; }));

	// a close meanwhile is refused rather than accepted into what fails
	History h(s);
	EXPECT_EQ(h.put("meanwhile", "x"), -ENOSPC);
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
	EXPECT_EQ(s.stats().halted.error, 0);
	EXPECT_STREQ(s.stats().halted.path, "");
	EXPECT_GE(s.notes_with("works again"), 1); // twice when a later version halted as well
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

// A store without a byte left can still apply the names that make space.
TEST_F(Full, NamesFallBackOnTheReserve)
{
	o.start = true;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.put("a", pattern(100000, 1)), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(staging_space_for_names(s));
	fill(0);
	ASSERT_EQ(h.rename("a", "b"), 0);
	ASSERT_EQ(h.unlink("b"), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(s.tree() == with_filler({})) << show(s.tree());
}

// Its writer was told that the fsync failed, and writes on: there is no version of half the one and half the other.
TEST_F(Full, AFailedFsyncIsNotMadeOfLaterBytes)
{
	for (bool more : {true, false}) {
		std::string name = more ? "on" : "same", a = pattern(300000, 1), b = pattern(300000, 2);
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		uint64_t node = staging_new_id(s);
		staged *f = create(s, node, {root, name}, 300000);
		ASSERT_TRUE(f && write_all(f, a));
		fill(64u << 10);
		int64_t seq = seal(s, f, node, {{root, name}}, false);
		ASSERT_GT(seq, 0);
		Durable synced(s, (uint64_t)seq);
		s.start();
		EXPECT_EQ(synced.wait(), -ENOSPC);
		if (more) {
			ASSERT_TRUE(write_all(f, b.substr(0, 100000), 100000));
		}
		ASSERT_EQ(unlink(at("filler").c_str()), 0);
		ASSERT_TRUE(until([&] {
			staging_retry(s);
			return s.drain(50) == 0;
		}));
		EXPECT_EQ(s.tree().count(name), more ? 0u : 1u);
		EXPECT_EQ(s.notes_with("an fsync of on failed"), more);
		EXPECT_TRUE(!more || staged_changed(f));
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_GT(seal(s, f, node, {{root, name}}, true), 0);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_SAME(s.tree()[name], more ? a.substr(0, 100000) + b.substr(0, 100000) + a.substr(200000) : a);
		staged_unref(f);
	}
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
		EXPECT_STREQ(s.stats().halted.path, "d");
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

// ---- a spilled file whose bytes the store could not write: they are nowhere else ----

std::atomic<bool> writeback_failed;

class Spoiled : public ::testing::Test
{
protected:
	void SetUp() override
	{
		writeback_failed = false;
		o.budget = 1u << 20;
		o.start = false;
	}
	void TearDown() override { writeback_failed = false; }
	staged *spilled(Staging &s)
	{
		node = staging_new_id(s);
		staged *f = create(s, node, {root, "spilled"}, 8u << 20);
		return f && staged_spilled(f) && write_all(f, pattern(1u << 20, 1)) ? f : nullptr;
	}
	// The kernel has let go of pages that it could not write, and reads what the disk has there.
	void punch()
	{
		for (auto &e : std::filesystem::recursive_directory_iterator(ground.store() + "/.cairn"))
			if (e.is_regular_file() && e.path().parent_path().filename() == "tmp") {
				Fd fd(open(e.path().c_str(), O_RDWR | O_CLOEXEC));
				ASSERT_EQ(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 65536), 0);
			}
	}
	void expect_passed_over(Staging &s, int64_t seq)
	{
		ASSERT_EQ(s.drain(), 0);
		EXPECT_EQ(show(s.tree()), "later/=0 ");
		EXPECT_EQ(staging_refused(s, node, root, (uint64_t)seq), -EIO);
		EXPECT_EQ(s.notes_with("could not write"), 1);
		EXPECT_EQ(s.stats().recovered.lost_found, 1u);
		EXPECT_EQ(s.stats().halted.error, 0);
	}
	static int make_later(Staging &s)
	{
		rec d = {};
		d.type = REC_MKDIR;
		d.node = staging_new_id(s);
		d.dir = root;
		d.name = "later";
		return staging_log(s, &d);
	}
	Ground ground;
	Options o;
	uint64_t node;
};

TEST_F(Spoiled, IsNotReadAgainAsIfItWereGood)
{
	o.fault = "1:@1:lostsync";
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	staged *f = spilled(s);
	ASSERT_TRUE(f);
	ASSERT_EQ(staged_allocate(f), 0);
	int64_t seq = seal(s, f, node, {{root, "spilled"}}, true);
	ASSERT_GT(seq, 0);
	ASSERT_EQ(make_later(s), 0);
	punch();
	s.start();
	expect_passed_over(s, seq);
	staged_unref(f);
}

TEST_F(Spoiled, CloseSaysSo)
{
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	staged *f = spilled(s);
	ASSERT_TRUE(f);
	writeback_failed = true;
	EXPECT_EQ(staged_allocate(f), -EIO);
	writeback_failed = false;	// the kernel tells each descriptor once
	EXPECT_EQ(staged_allocate(f), -EIO);
	ASSERT_EQ(staged_resize(f, 0), 0);
	EXPECT_EQ(staged_allocate(f), 0);
	staged_unref(f);
}

TEST_F(Spoiled, AnFsyncsCopyIsNotMadeOfIt)
{
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	staged *f = spilled(s);
	ASSERT_TRUE(f);
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_EQ(staged_allocate_copy(f), 0);
	int64_t seq = seal(s, f, node, {{root, "spilled"}}, false);
	ASSERT_GT(seq, 0);
	ASSERT_EQ(make_later(s), 0);
	writeback_failed = true;
	s.start();
	expect_passed_over(s, seq);
	staged_unref(f);
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
	EXPECT_EQ(s.stats().recovered.lost_found, 1u);
	std::string kept;
	for (auto &at : std::filesystem::directory_iterator(ground.store() + "/.cairn/lost+found"))
		kept = at.path();
	EXPECT_EQ(kept.substr(kept.rfind('/') + 1).substr(0, 6), "taken.");
	EXPECT_EQ(read_file(kept), "mine");
}

// And who waits for it, or for what commits it, is told the error: now, by the next worker, after a
// rotation of the log; until the name is published after all, removed, or a person has seen it.
int refused_below(staging *s, uint64_t dir)
{
	return staging_refused(s, 0, dir, UINT64_MAX);
}

class Refused : public ::testing::Test
{
protected:
	// d/f and e are published behind "in the way" at d/f; ids of the two directories
	void SetUp() override
	{
		Options o;
		o.start = false;
		s = std::make_unique<Staging>(ground, o);
		ASSERT_EQ(s->err, 0);
		h = std::make_unique<History>(*s);
		ASSERT_EQ(h->mkdir("d"), 0);
		ASSERT_EQ(h->mkdir("e"), 0);
		ASSERT_EQ(h->put("d/f", "mine"), 0);
		ASSERT_EQ(h->put("e/after", "A"), 0);
		d = h->id("d/");
		e = h->id("e/");
		std::filesystem::create_directories(way() + "/in-the-way");
		s->start();
		ASSERT_EQ(s->drain(), 0);
		EXPECT_EQ(refused_below(*s, d), -EISDIR);
	}
	std::string way() { return ground.store() + "/d/f"; }
	void clear_the_way() { std::filesystem::remove_all(way()); }

	Ground ground;
	std::unique_ptr<Staging> s;
	std::unique_ptr<History> h;
	uint64_t d = 0, e = 0;
};

TEST_F(Refused, IsAnErrorOfWhatIsAboveAndOfNothingElse)
{
	EXPECT_EQ(refused_below(*s, root), -EISDIR);
	EXPECT_EQ(refused_below(*s, e), 0);
	EXPECT_EQ(refused_below(*s, 0), 0);
	EXPECT_EQ(staging_refused(*s, 0, root, 2), 0); // what came before it is safe
	EXPECT_EQ(s->stats().refused.count, 1u);
	EXPECT_GE(s->stats().errors, 1u);
	EXPECT_STREQ(s->stats().refused.path, "d/f");
	EXPECT_EQ(s->stats().refused.error, -EISDIR);
}

TEST_F(Refused, IsKnownToTheNextWorkerAndAfterARotation)
{
	auto nothing = [](void *, staging *) { return 0; };
	ASSERT_EQ(staging_rotate(*s, nothing, nullptr), 0);
	EXPECT_EQ(refused_below(*s, root), -EISDIR);
	h->drop();
	s = nullptr;
	s = std::make_unique<Staging>(ground);
	ASSERT_EQ(s->err, 0);
	EXPECT_EQ(refused_below(*s, root), -EISDIR);
	staging_retry(*s); // seen
	EXPECT_EQ(refused_below(*s, root), 0);
	s = nullptr;
	s = std::make_unique<Staging>(ground);
	ASSERT_EQ(s->err, 0);
	EXPECT_EQ(refused_below(*s, root), 0);
}

TEST_F(Refused, EndsWithAVersionThatIsPublished)
{
	ASSERT_EQ(h->put("d/f", "again"), 0);
	ASSERT_EQ(s->drain(), 0);
	EXPECT_EQ(refused_below(*s, d), -EISDIR);
	clear_the_way();
	ASSERT_EQ(h->put("d/f", "last"), 0);
	ASSERT_EQ(s->drain(), 0);
	EXPECT_EQ(refused_below(*s, d), 0);
	EXPECT_EQ(s->stats().refused.count, 0u);
	EXPECT_EQ(show(s->tree()), "d/=0 d/f=4,108 e/=0 e/after=1,65 ");
}

TEST_F(Refused, EndsWithItsName)
{
	clear_the_way();
	ASSERT_EQ(h->unlink("d/f"), 0); // not in the store: gone is gone
	ASSERT_EQ(s->drain(), 0);
	EXPECT_EQ(refused_below(*s, root), 0);
}

// A removal that the store refused is not settled by its directory, which therefore stays.
TEST_F(Refused, StaysWhereItsDirectoryCannotGo)
{
	ASSERT_EQ(h->unlink("d/f"), 0); // a directory stands there
	ASSERT_EQ(h->rmdir("d"), 0);
	ASSERT_EQ(s->drain(), 0);
	EXPECT_NE(refused_below(*s, root), 0);
	staging_retry(*s);
	EXPECT_EQ(refused_below(*s, root), 0);
}

// Another node put a file into a directory while its removal was on its way: both are as their makers
// want them as far as can be, nothing is lost, and nobody waits for ever for a removal that cannot be.
TEST(Conflict, ADirectoryThatOthersUseStays)
{
	Ground ground;
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.mkdir("step"), 0);
	ASSERT_EQ(h.put("step/mine", "m"), 0);
	ASSERT_EQ(s.drain(), 0);
	write_file(ground.store() + "/step/theirs", "t");
	ASSERT_EQ(h.unlink("step/mine"), 0);
	ASSERT_EQ(h.rmdir("step"), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), "step/=0 step/theirs=1,116 ");
	EXPECT_EQ(refused_below(s, root), 0);
	EXPECT_EQ(s.stats().refused.count, 0u);
	EXPECT_EQ(s.notes_with("conflict at step: Directory not empty: it stays, with what others put there"), 1);
	// used again
	ASSERT_EQ(h.mkdir("step"), 0);
	ASSERT_EQ(h.put("step/mine", "n"), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), "step/=0 step/mine=1,110 step/theirs=1,116 ");
}

// What is below a directory that was refused is below the same directories.
TEST(Conflict, OfADirectoryAndWhatIsInIt)
{
	Ground ground;
	Options o;
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.mkdir("a"), 0);
	ASSERT_EQ(h.mkdir("a/b"), 0);
	ASSERT_EQ(h.put("a/b/f", "mine"), 0);
	uint64_t a = h.id("a/");
	std::filesystem::create_directory(ground.store() + "/a");
	write_file(ground.store() + "/a/b", "no directory");
	s.start();
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.stats().refused.count, 2u); // "a" is there already: that is as good
	EXPECT_NE(refused_below(s, a), 0);
	EXPECT_NE(refused_below(s, h.id("a/b/")), 0);
	EXPECT_EQ(s.stats().recovered.lost_found, 1u);
}

// `cairn hosts adopt` takes the unpublished files of a host that was silent and lives: what staging has is published all
// the same.
TEST(Taken, IsWrittenAgain)
{
	Ground ground;
	Options o;
	std::atomic<bool> stop{true};
	o.may_publish = [&] { return stop ? -EIO : 0; };
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	std::string bytes = pattern(3 << 20, 5), cairn = ground.store() + "/.cairn", tmp;
	for (auto [name, text] : {std::pair{"small", std::string("few")}, std::pair{"large", bytes}}) {
		uint64_t node = staging_new_id(s);
		staged *f = create(s, node, {root, name}, text.size());
		ASSERT_TRUE(f && write_all(f, text));
		ASSERT_GT(seal(s, f, node, {{root, name}}, true), 0);
		staged_unref(f);
	}
	for (auto &at : std::filesystem::directory_iterator(cairn))
		if (std::filesystem::exists(at.path() / "lock"))
			tmp = at.path() / "tmp";
	auto files = [&] {
		auto all = std::filesystem::directory_iterator(tmp);
		return std::distance(begin(all), end(all));
	};
	ASSERT_TRUE(until([&] { return s.stats().halted.error == -EIO && files() == 2; }));
	for (auto &at : std::filesystem::directory_iterator(tmp))
		std::filesystem::rename(at.path(), cairn + "/lost+found/h." + at.path().filename().string());
	stop = false;
	staging_retry(s);
	ASSERT_TRUE(until([&] { return s.drain() == 0; })); // it may be halted for a moment still
	EXPECT_EQ(s.stats().refused.count, 0u);
	EXPECT_EQ(read_file(ground.store() + "/small"), "few");
	EXPECT_EQ(read_file(ground.store() + "/large"), bytes);
	EXPECT_GE(s.notes_with("is written again"), 1);
}

// What was spilled is nowhere else: it is in lost+found, its version is passed over, and that is told; publication goes on.
TEST(Taken, WhatWasSpilledIsToldAndPassedOver)
{
	Ground ground;
	Options o;
	o.budget = 1u << 20;
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s), later = staging_new_id(s);
	staged *f = create(s, node, {root, "spilled"}, 8u << 20);
	ASSERT_TRUE(f && staged_spilled(f) && write_all(f, pattern(1u << 20, 1)));
	ASSERT_GT(seal(s, f, node, {{root, "spilled"}}, true), 0);
	staged *g = create(s, later, {root, "later"}, 3);
	ASSERT_TRUE(g && write_all(g, "few"));
	ASSERT_GT(seal(s, g, later, {{root, "later"}}, true), 0);
	std::vector<std::filesystem::path> taken;
	for (auto &e : std::filesystem::recursive_directory_iterator(ground.store() + "/.cairn"))
		if (e.is_regular_file() && e.path().parent_path().filename() == "tmp" && e.file_size() == 1u << 20)
			taken.push_back(e.path());
	ASSERT_EQ(taken.size(), 1u);
	std::filesystem::rename(taken[0], ground.store() + "/.cairn/lost+found/h.1");
	s.start();
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(read_file(ground.store() + "/later"), "few");
	EXPECT_EQ(s.stats().halted.error, 0);
	EXPECT_EQ(staging_refused(s, node, root, UINT64_MAX), -ENOENT);
	EXPECT_EQ(s.notes_with("could not write"), 1);
	staged_unref(f);
	staged_unref(g);
}

// A directory whose rename the store refuses: by its new name nothing in it is in the store, so no fsync there is a
// success; as overlayfs refuses it (EXDEV), or where something else has the name.
TEST(Conflict, OfARenamedDirectoryAndWhatIsInIt)
{
	Ground ground;
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.mkdir("a"), 0);
	ASSERT_EQ(h.mkdir("a/b"), 0);
	ASSERT_EQ(h.mkdir("other"), 0);
	ASSERT_EQ(s.drain(), 0);
	write_file(ground.store() + "/new", "no directory");
	uint64_t a = h.id("a/"), b = h.id("a/b/"), other = h.id("other/");
	ASSERT_EQ(h.rename("a", "new"), 0);
	ASSERT_EQ(h.put("new/b/f", "mine"), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.stats().refused.count, 1u);
	EXPECT_NE(refused_below(s, a), 0);
	EXPECT_NE(refused_below(s, b), 0);
	EXPECT_NE(staging_refused_above(s, b), 0);
	EXPECT_EQ(refused_below(s, other), 0);
	EXPECT_EQ(staging_refused_above(s, other), 0);
	EXPECT_EQ(show(s.tree()), "a/=0 a/b/=0 a/b/f=4,109 new=12,110 other/=0 "); // nothing is lost
	staging_retry(s); // seen
	EXPECT_EQ(refused_below(s, b), 0);
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

extern "C" int sync_file_range(int fd, off_t off, off_t len, unsigned flags)
{
	if (writeback_failed) {
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_sync_file_range, fd, off, len, flags);
}

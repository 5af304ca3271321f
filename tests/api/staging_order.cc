// SPDX-License-Identifier: MIT
// timeout: 300
//
// The order (P1): at every instant the store is the mount at some moment of its history. And
// what nobody saw is left out, without breaking that.
#include <atomic>
#include <thread>

#include "tests/api/staging_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

// A large shard and the small file that commits it, again and again; a reader that sees the
// second without the first has seen a lie. Delays in the engine shuffle who is done when.
TEST(Order, TheSmallOneWaitsForTheLargeOne)
{
	for (unsigned seed = 1; seed <= 2; seed++) {
		SCOPED_TRACE("seed " + std::to_string(seed));
		Ground ground;
		std::string fault = std::to_string(seed) + ":3:delay";
		Options o;
		o.fault = fault.c_str();
		o.engine = seed % 2 ? "uring" : "posix";
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s, seed);
		std::atomic<bool> done{false};
		std::atomic<int> lies{0};
		std::thread reader([&] {
			struct stat st;
			while (!done)
				for (int i = 0; i < 6; i++) {
					std::string n = ground.store() + "/" + std::to_string(i);
					if (stat((n + ".small").c_str(), &st))
						continue;
					if (stat((n + ".large").c_str(), &st) ||
					    st.st_size != 6000000)
						lies++;
				}
		});
		for (int i = 0; i < 6; i++) {
			ASSERT_EQ(
				h.put(std::to_string(i) + ".large", pattern(6000000, (uint64_t)i)),
				0);
			ASSERT_EQ(h.put(std::to_string(i) + ".small", "commit"), 0);
		}
		EXPECT_EQ(s.drain(), 0);
		done = true;
		reader.join();
		EXPECT_EQ(lies, 0);
		EXPECT_TRUE(s.tree() == h.now()) << show(s.tree());
	}
}

// From the Nth operation on the store fails, for every N: it stops at a state that was, the
// error is told, nothing staged is lost, and the next start with a good store ends the work.
void fails_from_every_operation_on(const char *engine, const char *kind, bool started)
{
	unsigned n = 1, halted = 0, refused = 0;

	for (bool clean = false; !clean; n++) {
		SCOPED_TRACE("operation " + std::to_string(n));
		ASSERT_LT(n, 600u);
		Ground ground;
		std::string fault = "1:@" + std::to_string(n) + "+:" + kind;
		Options o;
		o.fault = fault.c_str();
		o.engine = engine;
		o.start = started;
		Tree last;
		uint64_t last_seq;
		{
			Staging s(ground, o);
			ASSERT_EQ(s.err, 0);
			History h(s);
			auto script = [&] {
				int rc = h.put("keep", "old");
				rc = rc ? rc : h.mkdir("step");
				rc = rc ? rc : h.put("step/large", pattern(600000, 1));
				rc = rc ? rc : h.put("step/small", "s");
				rc = rc ? rc : h.put("keep", "new");
				rc = rc ? rc : h.rename("step", "final");
				rc = rc ? rc : h.put("tmp", "latest");
				rc = rc ? rc : h.rename("tmp", "keep");
				rc = rc ? rc : h.unlink("final/small");
				return rc ? rc : h.put("final/end", pattern(5000, 2));
			};
			int rc = script(); // what is refused here was never accepted
			refused += rc != 0;
			last = h.now();
			last_seq = staging_last_seq(s);
			if (!started)
				s.start();
			int drained = s.err ? s.err : s.drain();
			uint64_t applied = staging_applied(s);
			// a record of several steps (a directory and its owner) may stand there
			// before it counts
			EXPECT_TRUE(s.tree() == h.at(applied) || s.tree() == h.at(applied + 1))
				<< applied << ": " << show(s.tree()) << "\nwanted "
				<< show(h.at(applied));
			EXPECT_LE(staging_durable(s), applied);
			clean = !s.engine.counts().faults;
			if (clean) {
				EXPECT_EQ(rc, 0);
				EXPECT_EQ(drained, 0);
				EXPECT_EQ(staging_durable(s), last_seq);
			} else if (drained) {
				halted++;
				EXPECT_LT(staging_durable(s), last_seq);
				if (s.err == 0) {
					EXPECT_EQ(s.stats().halted.error, drained);
					EXPECT_TRUE(
						until([&] { // told by the publisher, a moment later
							return s.notes_with(
								       "publication stops there") ==
							       1;
						}));
					EXPECT_EQ(Durable(s, last_seq).wait(), drained);
				}
			}
		}
		Staging again(ground);
		ASSERT_EQ(again.err, 0);
		ASSERT_EQ(again.drain(), 0);
		EXPECT_TRUE(again.tree() == last)
			<< show(again.tree()) << "\nwanted " << show(last);
		EXPECT_EQ(staging_durable(again), last_seq);
		EXPECT_EQ(again.stats().recovered.lost_found, 0u);
	}
	EXPECT_GT(halted, 20u);
	EXPECT_GT(refused, 0u); // only the large one needs the store at its close
}

TEST(Order, PrefixWhereverTheStoreFails)
{
	fails_from_every_operation_on("posix", "eio", false); // all is logged first
}

TEST(Order, PrefixWhereverTheStoreIsFull)
{
	// a close that finds no space waits for the deletes before it, so they must be at work
	fails_from_every_operation_on("uring", "enospc", true);
}

// One operation fails: the version is written again, and nobody is told.
void one_failure_is_mended(const char *kind)
{
	unsigned n = 1;

	for (bool clean = false; !clean; n++) {
		SCOPED_TRACE("operation " + std::to_string(n));
		ASSERT_LT(n, 400u);
		Ground ground;
		std::string fault = "1:@" + std::to_string(n) + ":" + kind;
		Options o;
		o.fault = fault.c_str();
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		int rc = h.put("large", pattern(700000, 1));
		rc = rc ? rc : h.mkdir("d");
		rc = rc ? rc : h.put("d/small", pattern(3000, 2));
		rc = rc ? rc : h.rename("large", "d/large");
		rc = rc ? rc : h.put("end", "e");
		ASSERT_TRUE(rc == 0 || rc == -EIO);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_TRUE(s.tree() == h.now()) << show(s.tree());
		clean = !s.engine.counts().faults;
	}
	EXPECT_GT(n, 4u);
}

TEST(Order, OneErrorIsMended)
{
	one_failure_is_mended("eio");
}

// A failed sync takes the bytes with it: what was written once proves nothing.
TEST(Order, OneLostSyncIsMended)
{
	one_failure_is_mended("lostsync");
}

// A store that fails one operation in twelve, at random: it halts, is asked to go on, and in
// the end shows all of it.
TEST(Order, AStoreThatHalfWorks)
{
	unsigned halted = 0;

	for (unsigned seed = 1; seed <= 4; seed++) {
		SCOPED_TRACE("seed " + std::to_string(seed));
		Ground ground;
		std::string fault = std::to_string(seed) + ":12:eio,short,lostsync";
		Options o;
		o.fault = fault.c_str();
		o.engine = seed % 2 ? "uring" : "posix";
		o.start = false;
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s, seed);
		for (int i = 0; i < 40; i++)
			h.random_change(i % 4 ? 20000
					      : 400000); // some are refused: then they never were
		s.start();
		ASSERT_EQ(s.err, 0);
		int rc;
		for (int tries = 0; (rc = s.drain()) && tries < 500; tries++) {
			ASSERT_EQ(rc, -EIO);
			halted++;
			uint64_t ops = s.engine.counts().ops;
			staging_retry(s);
			until([&] {
				return s.engine.counts().ops != ops || !s.stats().halted.error;
			});
		}
		ASSERT_EQ(rc, 0);
		EXPECT_TRUE(s.tree() == h.now()) << show(s.tree()) << "\nwanted " << show(h.now());
	}
	EXPECT_GT(halted, 0u);
}

TEST(Order, RandomHistoriesEndAsTheyShould)
{
	for (unsigned seed = 1; seed <= 4; seed++) {
		SCOPED_TRACE("seed " + std::to_string(seed));
		Ground ground;
		Options o;
		o.engine = seed % 2 ? "uring" : "posix";
		o.budget = seed % 3 ? 512u << 20 : 1u << 20; // small: evicts and spills
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s, seed);
		for (int i = 0; i < 150; i++) {
			ASSERT_EQ(h.random_change(i % 10 ? 20000 : 900000), 0);
			if (h.rng() % 40 == 0) {
				ASSERT_EQ(s.drain(), 0);
				ASSERT_TRUE(s.tree() == h.now()) << show(s.tree());
			}
		}
		ASSERT_EQ(s.drain(), 0);
		ASSERT_TRUE(s.tree() == h.now()) << show(s.tree()) << "\nwanted " << show(h.now());
		EXPECT_EQ(s.stats().recovered.lost_found, 0u);
		EXPECT_EQ(s.notes_with("conflict"), 0);
	}
}

// ---- what nobody saw ----

class Elide : public ::testing::Test
{
protected:
	Elide()
	{
		o.start = false;
		s = std::make_unique<Staging>(ground, o);
		EXPECT_EQ(s->err, 0);
		h = std::make_unique<History>(*s);
	}
	~Elide() override
	{
		h.reset();
		s.reset();
	}
	// Runs what is pending; returns how many bytes were written to the store for it.
	uint64_t run()
	{
		uint64_t before = s->engine.counts().write_bytes;
		s->start();
		EXPECT_EQ(s->drain(), 0);
		EXPECT_TRUE(s->tree() == h->now())
			<< show(s->tree()) << "\nwanted " << show(h->now());
		EXPECT_EQ(staging_durable(*s), staging_last_seq(*s));
		EXPECT_EQ(s->notes_with("conflict"), 0);
		return s->engine.counts().write_bytes - before;
	}
	bool tmp_is_empty()
	{
		for (auto &at :
		     std::filesystem::recursive_directory_iterator(ground.store() + "/.cairn"))
			if (at.path().parent_path().filename() == "tmp")
				return false;
		return true;
	}
	Ground ground;
	Options o;
	std::unique_ptr<Staging> s;
	std::unique_ptr<History> h;
};

TEST_F(Elide, ATemporaryFile)
{
	ASSERT_EQ(h->put("t", pattern(1000000, 1)), 0);
	ASSERT_EQ(h->unlink("t"), 0);
	EXPECT_EQ(run(), 0u);
	EXPECT_TRUE(until([&] { return tmp_is_empty(); }));
	EXPECT_EQ(s->stats().used, 0u);
	EXPECT_EQ(s->stats().bytes_persisted, 0u);
}

TEST_F(Elide, ATemporaryTree)
{
	ASSERT_EQ(h->mkdir("d"), 0);
	ASSERT_EQ(h->mkdir("d/e"), 0);
	ASSERT_EQ(h->put("d/a", "a"), 0);
	ASSERT_EQ(h->put("d/e/b", pattern(400000, 1)), 0);
	ASSERT_EQ(h->unlink("d/e/b"), 0);
	ASSERT_EQ(h->rmdir("d/e"), 0);
	ASSERT_EQ(h->unlink("d/a"), 0);
	ASSERT_EQ(h->rmdir("d"), 0);
	EXPECT_EQ(run(), 0u);
	EXPECT_TRUE(until([&] { return tmp_is_empty(); }));
}

TEST_F(Elide, EveryVersionOfATemporaryFile)
{
	for (int i = 0; i < 5; i++)
		ASSERT_EQ(h->put("t", pattern(300000, (uint64_t)i)), 0);
	ASSERT_EQ(h->unlink("t"), 0);
	run();
}

// The unlink of a file that stands in the store is not left out with its last version.
TEST_F(Elide, AnOldVersionIsStillRemoved)
{
	ASSERT_EQ(h->put("f", "old"), 0);
	s->start();
	ASSERT_EQ(s->drain(), 0);
	h.reset();
	s = nullptr;
	s = std::make_unique<Staging>(ground, o);
	ASSERT_EQ(s->err, 0);
	uint64_t node = staging_new_id(*s);
	staged *f = create(*s, node, {root, "f"}, 3, REC_STAGED);
	ASSERT_TRUE(write_all(f, "new"));
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(*s, f, node, {{root, "f"}}, true, REC_SHADOW), 0);
	rec r = {};
	r.type = REC_UNLINK;
	r.node = r.node2 = node;
	r.dir = root;
	r.name = "f";
	ASSERT_EQ(staging_log(*s, &r), 0);
	staged_unref(f);
	uint64_t before = s->engine.counts().write_bytes;
	EXPECT_EQ(show(s->tree()), "f=3,111 ");
	s->start();
	ASSERT_EQ(s->drain(), 0);
	EXPECT_EQ(show(s->tree()), "");
	EXPECT_EQ(s->engine.counts().write_bytes, before); // the new one was never written
}

// Between the pair stands what others must see: all of it is shown in order.
TEST_F(Elide, NotAcrossWhatMustBeSeen)
{
	ASSERT_EQ(h->put("t", pattern(100000, 1)), 0);
	ASSERT_EQ(h->put("seen", "s"), 0);
	ASSERT_EQ(h->unlink("t"), 0);
	run();
}

TEST_F(Elide, NotWhatWasRenamed)
{
	ASSERT_EQ(h->put("t", pattern(100000, 1)), 0);
	ASSERT_EQ(h->put("old", "o"), 0);
	ASSERT_EQ(h->rename("t", "old"), 0);
	ASSERT_EQ(h->unlink("old"), 0);
	ASSERT_EQ(h->put("last", "l"), 0);
	run();
	EXPECT_EQ(show(s->tree()), "last=1,108 ");
}

// Two temporary files that overlap, and what they overlap with.
TEST_F(Elide, OverlappingPairs)
{
	ASSERT_EQ(h->put("a", pattern(50000, 1)), 0);
	ASSERT_EQ(h->put("b", pattern(50000, 2)), 0);
	ASSERT_EQ(h->unlink("a"), 0);
	ASSERT_EQ(h->unlink("b"), 0);
	ASSERT_EQ(h->put("a", "another"), 0);
	run();
	EXPECT_EQ(show(s->tree()), "a=7,97 ");
}

// Many temporary files among a few that stay, with the threads at work: at every moment a
// reader looks, the store is a state that was.
TEST_F(Elide, TheStoreIsAStateThatWas)
{
	for (unsigned seed = 1; seed <= 8; seed++) {
		SCOPED_TRACE("seed " + std::to_string(seed));
		Ground fresh;
		Options stopped;
		stopped.start = false;
		Staging st(fresh, stopped);
		ASSERT_EQ(st.err, 0);
		History hist(st, seed);
		std::vector<std::string> temps;
		for (int i = 0; i < 40; i++) {
			std::string name = "t" + std::to_string(i);
			switch (hist.rng() % 4) {
			case 0:
				if (!temps.empty()) {
					ASSERT_EQ(hist.unlink(temps.back()), 0);
					temps.pop_back();
				}
				break;
			case 1:
				ASSERT_EQ(hist.put("stays",
						   pattern(1 + hist.rng() % 9000, hist.rng())),
					  0);
				break;
			default:
				ASSERT_EQ(
					hist.put(name, pattern(1 + hist.rng() % 9000, hist.rng())),
					0);
				temps.push_back(name);
			}
		}
		st.start();
		ASSERT_EQ(st.err, 0);
		// each name's content alone: one that no state had is a mix
		for (bool busy = true; busy;) {
			busy = st.stats().log.pending;
			uint64_t before = staging_applied(st);
			std::string now;
			try {
				now = read_file(fresh.store() + "/stays");
			} catch (std::runtime_error &) {
				now = "none";
			}
			uint64_t after = staging_applied(st);
			bool was = false;
			// one further: a name is changed first and counted then
			for (auto it = hist.states.begin(); it != hist.states.end(); ++it) {
				if (it->first > after + 1)
					break;
				auto next = std::next(it);
				if (next != hist.states.end() && next->first <= before)
					continue;
				auto f = it->second.find("stays");
				was |= f == it->second.end() ? now == "none" : now == f->second;
			}
			ASSERT_TRUE(was) << before << ".." << after;
		}
		ASSERT_EQ(st.drain(), 0);
		EXPECT_TRUE(st.tree() == hist.now());
	}
}

} // namespace

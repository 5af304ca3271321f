// SPDX-License-Identifier: MIT
//
// The budget: what is admitted, evicted and spilled, against a model of it. Nothing is started
// but where said, so every number is exact.
#include "tests/api/staging_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR, mib = 1u << 20;

Options with(uint64_t budget, bool start = false)
{
	Options o;
	o.budget = budget;
	o.start = start;
	return o;
}

struct Held {
	staged *f;
	uint64_t node;
};

Held make(staging *s, uint64_t expected, const std::string &name = "f")
{
	uint64_t node = staging_new_id(s);
	return {create(s, node, {root, name}, expected), node};
}

void make_durable(Staging &s, const Held &h, const std::string &name, const std::string &bytes)
{
	ASSERT_TRUE(write_all(h.f, bytes));
	ASSERT_EQ(staged_allocate(h.f), 0);
	int64_t seq = seal(s, h.f, h.node, {{root, name}}, true);
	ASSERT_GT(seq, 0);
	ASSERT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
	ASSERT_EQ(info(h.f).state, STAGED_DURABLE);
}

TEST(Budget, KnownSizesAreTakenWhole)
{
	Ground ground;
	Staging s(ground, with(100 * mib));
	ASSERT_EQ(s.err, 0);
	Held a = make(s, 60 * mib), b = make(s, 40 * mib);
	EXPECT_EQ(s.stats().used, 100 * mib);
	Held c = make(s, 1);
	EXPECT_FALSE(staged_spilled(a.f));
	EXPECT_FALSE(staged_spilled(b.f));
	EXPECT_TRUE(staged_spilled(c.f)); // not one byte more
	Held none = make(s, 0);
	EXPECT_FALSE(staged_spilled(none.f));
	EXPECT_EQ(s.stats().used, 100 * mib);
	staged_unref(a.f);
	EXPECT_EQ(s.stats().used, 40 * mib);
	Held d = make(s, 60 * mib);
	EXPECT_FALSE(staged_spilled(d.f));
	EXPECT_EQ(s.stats().used, 100 * mib);
	EXPECT_EQ(s.stats().fast_opens, 4u);
	EXPECT_EQ(s.stats().spilled_opens, 1u);
	for (Held *h : {&b, &c, &d, &none})
		staged_unref(h->f);
	EXPECT_EQ(s.stats().used, 0u);
}

TEST(Budget, LargeOnesLieOnHugePages)
{
	Ground ground;
	Staging s(ground, with(100 * mib));
	ASSERT_EQ(s.err, 0);
	Held small = make(s, 2 * mib - 1), large = make(s, 2 * mib), spilled = make(s, 200 * mib),
	     unknown = make(s, STAGED_SIZE_UNKNOWN);
	EXPECT_FALSE(staged_huge(small.f));
	EXPECT_TRUE(staged_huge(large.f));
	EXPECT_FALSE(staged_huge(spilled.f));
	EXPECT_FALSE(staged_huge(unknown.f)); // most stay small
	EXPECT_TRUE(staged_spilled(spilled.f)); // larger than all staging
	for (Held *h : {&small, &large, &spilled, &unknown})
		staged_unref(h->f);
}

// An unknown size is let in where an eighth of the budget is free (16 MiB at least, 1 GiB at
// most) and takes a sixteenth of that.
TEST(Budget, UnknownSizes)
{
	struct Case {
		uint64_t budget, space;
	};
	for (Case c : {Case{64 * mib, 16 * mib}, {128 * mib, 16 * mib}, {800 * mib, 100 * mib},
		       {16384 * mib, 1024 * mib}}) {
		SCOPED_TRACE(c.budget / mib);
		Ground ground;
		Staging s(ground, with(c.budget));
		ASSERT_EQ(s.err, 0);
		Held fits = make(s, c.budget - c.space), in = make(s, STAGED_SIZE_UNKNOWN);
		EXPECT_FALSE(staged_spilled(in.f));
		EXPECT_EQ(s.stats().used, c.budget - c.space + c.space / 16);
		Held out = make(s, STAGED_SIZE_UNKNOWN); // the space is there no more
		EXPECT_TRUE(staged_spilled(out.f));
		for (Held *h : {&fits, &in, &out})
			staged_unref(h->f);
		EXPECT_EQ(s.stats().used, 0u);
	}
	Ground ground;
	Staging s(ground, with(8 * mib)); // smaller than the least space
	Held h = make(s, STAGED_SIZE_UNKNOWN);
	EXPECT_TRUE(staged_spilled(h.f));
	staged_unref(h.f);
}

// The kernel writes a file of unknown size past us: it may not find the end of the tmpfs.
TEST(Budget, UnknownSizesWantSpaceToGrow)
{
	Ground ground;
	Options o = with(256 * mib);
	o.limit = 1024 * mib;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	Held unknown = make(s, STAGED_SIZE_UNKNOWN), known = make(s, 100 * mib);
	EXPECT_TRUE(staged_spilled(unknown.f));
	EXPECT_FALSE(staged_spilled(known.f));
	staged_unref(unknown.f);
	staged_unref(known.f);
}

TEST(Budget, ASealTakesWhatTheFileTakes)
{
	Ground ground;
	Staging s(ground, with(100 * mib));
	ASSERT_EQ(s.err, 0);
	Held h = make(s, 10 * mib);
	ASSERT_TRUE(write_all(h.f, pattern(5000, 1)));
	EXPECT_EQ(s.stats().used, 10 * mib);
	ASSERT_EQ(staged_allocate(h.f), 0);
	ASSERT_GT(seal(s, h.f, h.node, {{root, "f"}}, false), 0);
	EXPECT_EQ(s.stats().used, 10 * mib); // a snapshot's writer goes on
	ASSERT_GT(seal(s, h.f, h.node, {{root, "f"}}, true, REC_SHADOW), 0);
	EXPECT_EQ(s.stats().used, info(h.f).blocks * 512);
	EXPECT_LT(s.stats().used, 4 * mib);
	staged_unref(h.f);
	EXPECT_GT(s.stats().used, 0u); // pending: it is held by its seals
	s.start();
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.stats().used, 0u);
}

TEST(Budget, LeastRecentlyUsedGoesFirst)
{
	Ground ground;
	Staging s(ground, with(1024 * mib, true));
	ASSERT_EQ(s.err, 0);
	std::vector<Held> held;
	for (int i = 0; i < 6; i++) {
		std::string name = "f" + std::to_string(i);
		held.push_back(make(s, 8 * mib, name));
		make_durable(s, held.back(), name, pattern(8 * mib, (uint64_t)i));
	}
	uint64_t used = s.stats().used;
	ASSERT_EQ(used, 48 * mib);
	int fd;
	ASSERT_EQ(staged_use(held[0].f, &fd), 0); // young again
	staged_unuse(held[0].f);
	ASSERT_EQ(staged_use(held[2].f, &fd), 0); // and this one is held
	std::vector<Held> more;
	auto evicted = [&] {
		std::string out;
		for (size_t i = 0; i < held.size(); i++)
			if (info(held[i].f).state == STAGED_EVICTED)
				out += std::to_string(i);
		return out;
	};
	more.push_back(make(s, 1024 * mib - 48 * mib)); // the rest of the budget
	EXPECT_EQ(evicted(), "");
	more.push_back(make(s, 1));
	EXPECT_EQ(evicted(), "1"); // one is enough
	more.push_back(make(s, 8 * mib + 1));
	EXPECT_EQ(evicted(), "13");
	more.push_back(make(s, 16 * mib));
	EXPECT_EQ(evicted(), "1345");
	more.push_back(make(s, 8 * mib));
	EXPECT_EQ(evicted(), "01345");
	for (Held &h : more)
		EXPECT_FALSE(staged_spilled(h.f));
	more.push_back(make(s, 8 * mib)); // only the one in use is left: it stays
	EXPECT_TRUE(staged_spilled(more.back().f));
	EXPECT_EQ(evicted(), "01345");
	std::string got(8 * mib, 0);
	ASSERT_EQ(pread(fd, got.data(), got.size(), 0), (ssize_t)got.size());
	EXPECT_SAME(got, pattern(8 * mib, 2));
	staged_unuse(held[2].f);
	for (auto *list : {&held, &more})
		for (Held &h : *list)
			staged_unref(h.f);
	EXPECT_EQ(s.stats().used, 0u);
}

// What is not durable is never evicted, whatever is asked for.
TEST(Budget, OnlyDurableOnesAreEvicted)
{
	Ground ground;
	Staging s(ground, with(64 * mib));
	ASSERT_EQ(s.err, 0);
	Held open = make(s, 8 * mib, "open"), sealed = make(s, 8 * mib, "sealed"),
	     failed = make(s, 8 * mib);
	ASSERT_TRUE(write_all(open.f, pattern(8 * mib, 1)));
	ASSERT_TRUE(write_all(sealed.f, pattern(8 * mib, 2)));
	ASSERT_TRUE(write_all(failed.f, pattern(8 * mib, 3)));
	ASSERT_EQ(staged_allocate(sealed.f), 0);
	ASSERT_GT(seal(s, sealed.f, sealed.node, {{root, "sealed"}}, true), 0);
	staged_fail(failed.f, -ENOSPC, "failed");
	EXPECT_EQ(info(failed.f).state, STAGED_FAILED);
	EXPECT_EQ(info(failed.f).error, -ENOSPC);
	Held all = make(s, 64 * mib);
	EXPECT_TRUE(staged_spilled(all.f));
	for (Held *h : {&open, &sealed, &failed}) {
		int fd;
		ASSERT_EQ(staged_use(h->f, &fd), 0);
		EXPECT_EQ(read_fd(fd).size(), 8 * mib);
		staged_unuse(h->f);
		staged_unref(h->f);
	}
	staged_unref(all.f);
}

// Evicted is evicted for the next process too.
TEST(Budget, EvictedFilesLeaveNoTrace)
{
	Ground ground;
	{
		Staging s(ground, with(256 * mib, true));
		ASSERT_EQ(s.err, 0);
		Held h = make(s, 4 * mib);
		make_durable(s, h, "f", pattern(4 * mib, 1));
		Held all = make(s, 256 * mib);
		EXPECT_EQ(info(h.f).state, STAGED_EVICTED);
		EXPECT_EQ(info(h.f).size, 4 * mib); // what was last known
		staged_unref(all.f);
		staged_unref(h.f);
	}
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.stats().used, 0u);
	EXPECT_EQ(s.stats().recovered.lost_found, 0u);
	EXPECT_TRUE(s.notes.empty());
}

TEST(Budget, ASizeAnnouncedIsAnExpectation)
{
	Ground ground;
	Staging s(ground, with(256 * mib, true));
	ASSERT_EQ(s.err, 0);
	Held old = make(s, 32 * mib);
	make_durable(s, old, "old", pattern(32 * mib, 1));
	Held h = make(s, STAGED_SIZE_UNKNOWN);
	EXPECT_EQ(info(old.f).state, STAGED_DURABLE);
	ASSERT_EQ(staged_resize(h.f, 240 * mib), 0); // what is durable makes space
	EXPECT_EQ(info(old.f).state, STAGED_EVICTED);
	EXPECT_EQ(info(h.f).size, 240 * mib);
	staged_unref(h.f);
	staged_unref(old.f);
}

// A random life of many files against a model of the budget: what is open takes what it was
// expected to take, what is durable what it has; what is evicted or spilled nothing.
TEST(Budget, NeverDrifts)
{
	for (uint64_t seed = 1; seed <= 3; seed++) {
		SCOPED_TRACE("seed " + std::to_string(seed));
		std::mt19937_64 rng(seed);
		Ground ground;
		Staging s(ground, with(64 * mib));
		ASSERT_EQ(s.err, 0);
		struct File {
			Held h;
			uint64_t charged;
			bool spilled, sealed;
			std::string name;
		};
		std::vector<File> files;
		uint64_t used = 0;
		auto sum = [&] {
			uint64_t n = 0;
			for (File &f : files)
				n += f.charged;
			return n;
		};
		// without threads nothing becomes durable, so nothing is ever evicted
		for (int step = 0; step < 400; step++) {
			size_t i = files.empty() ? 0 : rng() % files.size();
			switch (files.empty() ? 0 : rng() % 6) {
			case 0:
			case 1: {
				bool unknown = rng() % 5 == 0;
				uint64_t size = rng() % 4 ? rng() % mib : rng() % (16 * mib);
				uint64_t need = unknown ? 16 * mib : size;
				bool fits = used + need <= 64 * mib;
				File f = {make(s, unknown ? STAGED_SIZE_UNKNOWN : size),
					  fits ? unknown ? need / 16 : need : 0, !fits, false,
					  "f" + std::to_string(step)};
				ASSERT_TRUE(f.h.f);
				ASSERT_EQ(staged_spilled(f.h.f), f.spilled);
				files.push_back(f);
				break;
			}
			case 2:
			case 3: { // within what it has, or past it
				File &f = files[i];
				if (f.sealed)
					break;
				uint64_t end = 1 + rng() % (f.charged + mib / 4 + 1),
					 want = f.charged;
				std::string byte = "x";
				if (!f.spilled && end > f.charged) {
					// what it asks ahead for is half of what it has
					uint64_t to = end - 1 > f.charged ? f.charged + 1 : end;
					want = to + f.charged / 2;
				}
				bool fits = used - f.charged + want <= 64 * mib;
				// spilling waits for what is on its way, and nothing here is
				if (!fits && s.stats().versions.sealed)
					break;
				ASSERT_TRUE(write_all(f.h.f, byte, end - 1));
				if (!f.spilled) {
					f.spilled = !fits;
					f.charged = fits ? want : 0;
				}
				ASSERT_EQ(staged_spilled(f.h.f), f.spilled);
				break;
			}
			case 4: {
				File &f = files[i];
				if (f.sealed || staged_allocate(f.h.f))
					break;
				ASSERT_GT(seal(s, f.h.f, f.h.node, {{root, f.name}}, true), 0);
				f.sealed = true;
				if (!f.spilled)
					f.charged = info(f.h.f).blocks * 512;
				break;
			}
			default:
				if (files[i].sealed)
					break;
				staged_unref(files[i].h.f);
				files.erase(files.begin() + (long)i);
			}
			used = sum();
			ASSERT_EQ(s.stats().used, used) << "step " << step;
		}
		uint64_t n_sealed = 0, n_open = 0;
		for (File &f : files) {
			n_sealed += f.sealed;
			n_open += !f.sealed;
		}
		EXPECT_EQ(s.stats().versions.sealed, n_sealed);
		EXPECT_EQ(s.stats().versions.open, n_open);
		EXPECT_GT(n_sealed, 10u);
		for (File &f : files)
			if (!f.sealed)
				staged_unref(f.h.f);
		s.start();
		ASSERT_EQ(s.drain(), 0);
		used = 0;
		for (File &f : files)
			used += f.sealed && !f.spilled ? info(f.h.f).blocks * 512 : 0;
		EXPECT_EQ(s.stats().used, used);
		for (File &f : files)
			if (f.sealed)
				staged_unref(f.h.f);
		EXPECT_EQ(s.stats().used, 0u);
		EXPECT_EQ(s.stats().versions.durable + s.stats().versions.open + s.stats().versions.sealed, 0u);
	}
}

// With threads, many files and little space: bytes are right wherever they ended up, the budget
// ends at nothing, and no file is left behind in staging.
TEST(Budget, EndsAtNothing)
{
	Ground ground;
	Staging s(ground, with(192 * mib, true));
	ASSERT_EQ(s.err, 0);
	History h(s, 5);
	for (int i = 0; i < 40; i++) {
		std::string name = "f" + std::to_string(h.rng() % 20);
		ASSERT_EQ(h.put(name, pattern(h.rng() % (3 * mib), (uint64_t)i)), 0);
	}
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(s.tree() == h.now()) << show(s.tree());
	EXPECT_LE(s.stats().used, 192 * mib);
	h.drop();
	EXPECT_EQ(s.stats().used, 0u);
	for (auto &at : std::filesystem::recursive_directory_iterator(s.place.path))
		EXPECT_FALSE(at.is_regular_file() && at.path().filename().string().size() == 16)
			<< at.path();
}

} // namespace

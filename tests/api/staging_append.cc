// SPDX-License-Identifier: MIT
//
// A file that is opened, appended to and closed, again and again: nothing waits until its version before is in the
// store, none of that version's bytes changes before that, and versions that nobody saw are left out. Threads of
// staging that were not started show what waits for them; no test knows time.
#include "tests/api/staging_fixture.hh"

#include <fcntl.h>

namespace
{

constexpr uint64_t root = STAGING_ROOT_DIR;
constexpr uint64_t KIB = 1024, MIB = KIB * KIB;

class Append : public ::testing::Test
{
protected:
	Append() { options.start = false; }
	std::string at(const std::string &name) const { return ground.store() + "/" + name; }
	// A file whose first version is in the store.
	void stored(uint64_t size)
	{
		Options o = options;
		o.start = true;
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		want = pattern(size, 1);
		node = staging_new_id(s);
		f = create(s, node, {root, "f"}, size);
		ASSERT_NE(f, nullptr);
		ASSERT_TRUE(write_all(f, want));
		ASSERT_GT(sealed(s, 0), 0);
		ASSERT_EQ(s.drain(), 0);
		f = nullptr;
		staging_clear(s);
	}
	// It is copied into staging, as an open does, changed and closed: a version that the store does not have.
	void changed(Staging &s)
	{
		want = pattern(want.size(), 2);
		f = create(s, node, {root, "f"}, want.size(), REC_STAGED);
		ASSERT_NE(f, nullptr);
		ASSERT_TRUE(write_all(f, want));
		last = sealed(s);
		ASSERT_GT(last, 0);
	}
	int64_t sealed(Staging &s, uint32_t flags = REC_SHADOW, bool closed = true)
	{
		int err = staged_allocate(f);
		return err ? err : seal(s, f, node, {{root, "f"}}, closed, flags);
	}
	int reopen(Staging &s)
	{
		int err = staged_reopen_append(f);
		return err ? err : log_staged(s, f, node);
	}
	void put(const std::string &bytes)
	{
		ASSERT_TRUE(write_all(f, bytes, want.size()));
		want += bytes;
	}
	// One more version.
	void append(Staging &s, const std::string &bytes)
	{
		ASSERT_EQ(reopen(s), 0);
		put(bytes);
		last = sealed(s);
		ASSERT_GT(last, 0);
	}
	int mkdir(Staging &s, const char *name)
	{
		rec r = {};
		r.type = REC_MKDIR;
		r.node = r.ino = staging_new_id(s);
		r.dir = root;
		r.name = name;
		r.mode = 0755;
		return staging_log(s, &r);
	}
	uint64_t written(Staging &s) { return s.engine.counts().write_bytes; }
	void expect_in_the_store(Staging &s)
	{
		ASSERT_EQ(s.drain(), 0);
		EXPECT_SAME(read_file(at("f")), want);
		EXPECT_EQ(s.stats().errors, 0u);
	}
	// All is killed, and starts again.
	void expect_after_a_kill()
	{
		Options o = options;
		o.start = true;
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		expect_in_the_store(s);
		staging_clear(s);
	}
	Ground ground;
	Options options;
	staged *f = nullptr;
	uint64_t node = 0;
	int64_t last = 0;
	std::string want;
};

class AppendSize : public Append, public ::testing::WithParamInterface<uint64_t>
{
};
INSTANTIATE_TEST_SUITE_P(Sizes, AppendSize, testing::Values(100, 3 * MIB + 777));

TEST_P(AppendSize, AnAppenderDoesNotWait)
{
	stored(GetParam());
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	changed(s);
	EXPECT_EQ(staged_reopen(f), -EBUSY) << "any other writer waits";
	EXPECT_FALSE(staged_protected(f));
	ASSERT_EQ(reopen(s), 0);
	EXPECT_TRUE(staged_protected(f));
	put("appended");
	ASSERT_EQ(staged_resize(f, want.size() + 5), 0) << "longer is not other";
	want.resize(want.size() + 5);
	ASSERT_GT(sealed(s), 0);
	s.start();
	expect_in_the_store(s);
	staged_unref(f);
}

TEST_P(AppendSize, WhatIsSealedDoesNotChangeBeforeTheStoreHasIt)
{
	const uint64_t size = GetParam();
	stored(size);
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	changed(s);
	std::string before = want;
	ASSERT_EQ(reopen(s), 0);
	put("appended");
	for (uint64_t off : {uint64_t(0), size / 2, size - 1}) {
		EXPECT_EQ(staged_write_now(f, "other bytes", 11, off, false), -EBUSY);
		EXPECT_EQ(staged_resize(f, off), -EBUSY);
		EXPECT_EQ(staged_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, 1), -EBUSY);
		EXPECT_EQ(staged_fallocate(f, FALLOC_FL_ZERO_RANGE, off, 1), -EBUSY);
	}
	EXPECT_EQ(staged_unprotect(f), -EBUSY);
	char now[64] = {};
	ASSERT_GT(staged_read(f, now, sizeof(now), 0), 0);
	EXPECT_EQ(memcmp(now, before.data(), sizeof(now)), 0);
	s.start();
	ASSERT_EQ(staged_wait_persisted(f), 0);
	ASSERT_EQ(staged_write_now(f, "other", 5, 3, false), 5);
	EXPECT_FALSE(staged_protected(f));
	ASSERT_TRUE(until([&] { return staging_durable(s) >= (uint64_t)last; }));
	EXPECT_SAME(read_file(at("f")), before);
	want.replace(3, 5, "other");
	ASSERT_GT(sealed(s), 0);
	expect_in_the_store(s);
	staged_unref(f);
}

// A worker died while an appender had the file open.
TEST_P(AppendSize, ProtectedAgainAfterARestart)
{
	stored(GetParam());
	std::string before;
	uint64_t id;
	{
		Staging s(ground, options);
		ASSERT_EQ(s.err, 0);
		changed(s);
		before = want;
		ASSERT_EQ(reopen(s), 0);
		put("appended");
		id = staged_id(f);
	}
	Options o = options;
	o.orphaned = false;
	o.each = [&](staging *s, const rec *r) {	// as the tree does
		if (r->type == REC_STAGED && r->sf == id) {
			EXPECT_EQ(staged_recover(s, r, &f), 0);
		}
	};
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	EXPECT_TRUE(staged_protected(f));
	EXPECT_EQ(staged_write_now(f, "other", 5, 0, false), -EBUSY);
	put("more");
	s.start();
	ASSERT_TRUE(until([&] { return staging_durable(s) >= (uint64_t)last; }));
	EXPECT_SAME(read_file(at("f")), before);
	ASSERT_GT(sealed(s), 0);
	expect_in_the_store(s);
	staging_clear(s);
}

TEST_P(AppendSize, VersionsThatFollowEachOtherAreLeftOut)
{
	stored(GetParam());
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	changed(s);
	for (unsigned i = 0; i < 50 && !HasFailure(); i++)
		append(s, pattern(100, i));
	EXPECT_EQ(s.stats().versions_left_out, 50u);
	staging_pending pending;
	staging_get_pending(s, &pending);
	EXPECT_EQ(pending.files, 1u);
	uint64_t before = written(s);
	s.start();
	expect_in_the_store(s);
	EXPECT_LE(written(s) - before, want.size() + 2 * 4096);
	EXPECT_TRUE(staging_is_durable(s, (uint64_t)last));
	// nor do they hold blocks
	auto tmp = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(io_store_tmp(s.store)));
	EXPECT_TRUE(until([&] { return std::filesystem::is_empty(tmp); }));
	staged_unref(f);
}

TEST_P(AppendSize, LeftOutAlsoAfterAKill)
{
	stored(GetParam());
	for (bool open : {false, true}) {
		SCOPED_TRACE(open);
		{
			Staging s(ground, options);
			ASSERT_EQ(s.err, 0);
			changed(s);
			for (unsigned i = 0; i < 20; i++)
				append(s, pattern(100, i));
			if (open) {
				ASSERT_EQ(reopen(s), 0);
				ASSERT_TRUE(write_all(f, "never closed", want.size()));
			}
		}
		Options o = options;
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		EXPECT_EQ(s.stats().versions_left_out, 20u);
		uint64_t before = written(s);
		s.start();
		expect_in_the_store(s);
		// what was not closed is in lost+found already
		EXPECT_LE(written(s) - before, want.size() + 2 * 4096);
		staging_clear(s);
	}
}

// An fsync asked for a version that is left out: it is answered when its bytes are durable.
TEST_F(Append, AnFsyncIsNotAnsweredBeforeTheBytesAreThere)
{
	stored(MIB);
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	// what is earlier in the order waits for a mapping
	staged *mapped = create(s, 77, {root, "mapped"}, 4096);
	ASSERT_TRUE(write_all(mapped, "mapped"));
	ASSERT_EQ(staged_allocate(mapped), 0);
	int map = staged_open_rw(mapped);
	ASSERT_GE(map, 0);
	ASSERT_GT(seal(s, mapped, 77, {{root, "mapped"}}, true), 0);
	changed(s);
	std::string asked = want;
	Durable waiter(s, (uint64_t)last);
	append(s, "more");
	EXPECT_EQ(s.stats().versions_left_out, 1u);
	s.start();
	ASSERT_EQ(staged_wait_persisted(f), 0);
	EXPECT_FALSE(waiter.is_called());
	EXPECT_FALSE(staging_is_durable(s, (uint64_t)last));
	close(map);
	EXPECT_EQ(waiter.wait(), 0);
	EXPECT_SAME(read_file(at("f")).substr(0, asked.size()), asked);
	expect_in_the_store(s);
	staged_unref(mapped);
	staged_unref(f);
}

// The kernel drops a writer a moment after its close: a version whose last descriptor was still there then is final
// a little later. It has its own size also if all is killed when the next one is sealed.
TEST_F(Append, AVersionThatWaitedForALeaseKeepsItsSize)
{
	stored(MIB);
	Fd map(-1);
	std::string before;
	int64_t between;
	{
		Staging s(ground, options);
		ASSERT_EQ(s.err, 0);
		changed(s);
		ASSERT_EQ(reopen(s), 0);
		put("waits");
		{
			Fd writer(staged_open_rw(f));
			ASSERT_GE(writer.get(), 0);
			last = sealed(s);
		}
		before = want;
		ASSERT_EQ(reopen(s), 0);
		// a mapping between the two holds up what is behind it
		staged *mapped = create(s, 77, {root, "mapped"}, 4096);
		ASSERT_TRUE(write_all(mapped, "mapped"));
		ASSERT_EQ(staged_allocate(mapped), 0);
		map.reset(staged_open_rw(mapped));
		ASSERT_GE(map.get(), 0);
		between = seal(s, mapped, 77, {{root, "mapped"}}, true);
		ASSERT_GT(between, last);
		put("behind");
		ASSERT_GT(sealed(s), between);
	}
	Options o = options;
	o.start = true;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	ASSERT_TRUE(until([&] { return staging_durable(s) >= (uint64_t)last; }));
	EXPECT_SAME(read_file(at("f")), before);
	EXPECT_LT(staging_durable(s), (uint64_t)between);
	map.reset(-1);
	expect_in_the_store(s);
	staging_clear(s);
}

TEST_F(Append, NothingIsLeftOutWhereAnythingStandsBetween)
{
	stored(MIB);
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	changed(s);
	ASSERT_EQ(reopen(s), 0);
	put("more");
	ASSERT_EQ(mkdir(s, "between"), 0);
	ASSERT_GT(sealed(s), 0);
	EXPECT_EQ(s.stats().versions_left_out, 0u);
	EXPECT_EQ(staged_reopen_append(f), 0) << "it would be left out";
	ASSERT_EQ(log_staged(s, f, node), 0);
	ASSERT_EQ(mkdir(s, "too"), 0);
	put("again");
	ASSERT_GT(sealed(s), 0);
	EXPECT_EQ(s.stats().versions_left_out, 0u);
	EXPECT_EQ(staged_reopen_append(f), -EBUSY) << "too many versions have blocks";
	s.start();
	expect_in_the_store(s);
	EXPECT_TRUE(s.tree().count("between/") && s.tree().count("too/"));
	staged_unref(f);
}

// What others count on is published as it is.
TEST_F(Append, WhatIsNotLeftOut)
{
	{	// an fsync's version
		stored(MIB);
		Staging s(ground, options);
		ASSERT_EQ(s.err, 0);
		changed(s);
		ASSERT_EQ(reopen(s), 0);
		put("fsynced");
		ASSERT_GT(sealed(s, REC_SHADOW, false), 0);
		put("closed");
		ASSERT_GT(sealed(s), 0);
		EXPECT_EQ(s.stats().versions_left_out, 0u);
		s.start();
		expect_in_the_store(s);
		staging_clear(s);
	}
	{	// a file's first version
		Staging s(ground, options);
		ASSERT_EQ(s.err, 0);
		node = staging_new_id(s);
		f = create(s, node, {root, "g"}, 3);
		ASSERT_TRUE(write_all(f, "new"));
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_GT(seal(s, f, node, {{root, "g"}}, true), 0);
		ASSERT_EQ(reopen(s), 0);
		ASSERT_TRUE(write_all(f, "er", 3));
		ASSERT_GT(seal(s, f, node, {{root, "g"}}, true, REC_SHADOW), 0);
		EXPECT_EQ(s.stats().versions_left_out, 0u);
		s.start();
		ASSERT_EQ(s.drain(), 0);
		EXPECT_EQ(read_file(at("g")), "newer");
		staging_clear(s);
	}
	options.missing = [](uint64_t) { return 0; };	// a name that may wait for other hosts
	{
		Staging s(ground, options);
		ASSERT_EQ(s.err, 0);
		node = staging_new_id(s);
		f = create(s, node, {root, ".metadata"}, 3);
		ASSERT_TRUE(write_all(f, "new"));
		for (unsigned i = 0; i < 3; i++) {
			ASSERT_EQ(staged_allocate(f), 0);
			ASSERT_GT(seal(s, f, node, {{root, ".metadata"}}, true, i ? (uint32_t)REC_SHADOW : 0), 0);
			if (i < 2) {
				ASSERT_EQ(reopen(s), 0);
				ASSERT_TRUE(write_all(f, "er", 3 + 2 * i));
			}
		}
		EXPECT_EQ(s.stats().versions_left_out, 0u);
		s.start();
		ASSERT_EQ(s.drain(), 0);
		EXPECT_EQ(read_file(at(".metadata")), "newerer");
		staging_clear(s);
	}
}

// The next close finds no space: the version before it is published nevertheless, and the file stays failed.
TEST_F(Append, AFailedCloseStaysFailed)
{
	stored(MIB);
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	changed(s);
	std::string before = want;
	ASSERT_EQ(reopen(s), 0);
	put("more");
	staged_fail(f, -ENOSPC, "f");
	EXPECT_EQ(info(f).size, want.size());	// what a read sees
	EXPECT_EQ(staged_reopen_append(f), -EBUSY);
	s.start();
	ASSERT_TRUE(until([&] { return staging_durable(s) >= (uint64_t)last; }));
	EXPECT_SAME(read_file(at("f")), before);
	EXPECT_EQ(info(f).state, STAGED_FAILED);
	ASSERT_EQ(staged_reopen(f), 0);
	ASSERT_GT(sealed(s), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(at("f")), want);
	staged_unref(f);
}

// There is no memory for what is appended: the file moves to the store, but not while versions of it are read.
TEST_F(Append, SpilledOnlyWhenTheStoreHasThem)
{
	stored(MIB);
	options.budget = 4 * MIB;
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	changed(s);
	std::string before = want, much = pattern(16 * MIB, 3);
	ASSERT_EQ(reopen(s), 0);
	int err = write_error(f, much, want.size());
	EXPECT_EQ(err, -EBUSY);
	EXPECT_FALSE(staged_spilled(f));
	s.start();
	ASSERT_EQ(staged_wait_persisted(f), 0);
	ASSERT_TRUE(write_all(f, much, want.size()));
	EXPECT_TRUE(staged_spilled(f));
	ASSERT_TRUE(until([&] { return staging_durable(s) >= (uint64_t)last; }));
	EXPECT_SAME(read_file(at("f")), before);
	want += much;
	ASSERT_GT(sealed(s), 0);
	expect_in_the_store(s);
	staged_unref(f);
}

// Opened, and closed without a change.
TEST_F(Append, Unchanged)
{
	stored(MIB);
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	changed(s);
	ASSERT_EQ(reopen(s), 0);
	ASSERT_EQ(staged_unchanged(f), 0);
	append(s, "more");
	s.start();
	expect_in_the_store(s);
	staged_unref(f);
}

// Whichever call of the store fails, what is published is what was sealed, and all at the end.
class AppendFault : public Append, public ::testing::WithParamInterface<const char *>
{
};
INSTANTIATE_TEST_SUITE_P(Kinds, AppendFault, testing::Values("eio", "enospc", "short", "lostsync"));

TEST_P(AppendFault, AnyOneOperationFails)
{
	uint64_t faults = 1;
	unsigned n = 1;
	for (; faults && n < 300 && !HasFailure(); n += one_of()) {
		std::string fault = "3:@" + std::to_string(n) + ":" + GetParam();
		SCOPED_TRACE(fault);
		Ground fresh;
		Options o;
		o.fault = fault.c_str();
		Staging s(fresh, o);
		if (s.err)
			continue;
		std::vector<std::string> states = {""};
		auto goes_on = [&](const std::function<int64_t()> &call) {
			return until([&] {
				int64_t err = call();
				if (err < 0)
					staging_retry(s);
				return err >= 0;
			});
		};
		want = pattern(MIB, 1);
		node = staging_new_id(s);
		f = create(s, node, {root, "f"}, want.size());
		ASSERT_NE(f, nullptr);
		ASSERT_TRUE(write_all(f, want));
		ASSERT_TRUE(goes_on([&] { return sealed(s, 0); }));
		states.push_back(want);
		for (unsigned i = 0; i < 8 && !HasFailure(); i++) {
			ASSERT_TRUE(goes_on([&] {
				int err = staged_reopen_append(f);
				return err == -EBUSY ? staged_wait_persisted(f) ?: -EBUSY : err;
			}));
			ASSERT_EQ(log_staged(s, f, node), 0);
			put(pattern(100, i));
			ASSERT_TRUE(goes_on([&] { return sealed(s); }));
			states.push_back(want);
			Tree now = s.tree();
			std::string is = now.count("f") ? now["f"] : "";
			EXPECT_NE(std::find(states.begin(), states.end(), is), states.end()) << is.size();
		}
		ASSERT_EQ(s.drain(), 0);
		EXPECT_SAME(read_file(fresh.store() + "/f"), want);
		faults = s.engine.counts().faults;
		staged_unref(f);
	}
	EXPECT_GT(n, 2u);
}

} // namespace

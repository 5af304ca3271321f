// SPDX-License-Identifier: MIT
//
// A file that is opened again and changed a little: its version is a clone of the one before, and only what
// changed is written. What is published is what was sealed, byte for byte. On a loop-mounted xfs; by counts and
// contents, never by time.
#include "tests/api/staging_fixture.hh"
#include "tests/api/xfs.hh"

namespace
{

constexpr uint64_t root = STAGING_ROOT_DIR;
constexpr uint64_t MIB = 1u << 20;
constexpr uint64_t chunk = 128u << 10;

class Delta : public ::testing::Test
{
protected:
	void SetUp() override
	{
		if (!xfs.ok)
			GTEST_SKIP() << "needs root and a loop-mounted xfs";
		options.store = xfs.path("store");
		std::filesystem::create_directory(options.store);
	}
	std::string at(const std::string &name) const { return options.store + "/" + name; }
	// Files in tmp/ that staging has not published.
	size_t unpublished(Staging &s)
	{
		auto tmp = std::filesystem::read_symlink("/proc/self/fd/" +
							 std::to_string(io_store_tmp(s.store)));
		return (size_t)std::distance(std::filesystem::directory_iterator(tmp),
					     std::filesystem::directory_iterator());
	}
	void first(Staging &s, uint64_t size)
	{
		want = pattern(size, 1);
		node = staging_new_id(s);
		f = create(s, node, {root, "f"}, size);
		ASSERT_NE(f, nullptr);
		ASSERT_TRUE(write_all(f, want));
		ASSERT_EQ(close_file(s, 0), 0);
	}
	int reopen(Staging &s)
	{
		int err = staged_reopen(f);
		while (err == -EBUSY && !(err = staged_wait_persisted(f)))
			err = staged_reopen(f);
		return err ? err : log_staged(s, f, node);
	}
	void put(const std::string &bytes, uint64_t off)
	{
		ASSERT_TRUE(write_all(f, bytes, off));
		if (want.size() < off + bytes.size())
			want.resize(off + bytes.size());
		want.replace(off, bytes.size(), bytes);
	}
	int close_file(Staging &s, uint32_t flags = REC_SHADOW)
	{
		int err = staged_allocate(f);
		int64_t seq = err ? err : seal(s, f, node, {{root, "f"}}, true, flags);
		return seq < 0 ? (int)seq : 0;
	}
	// Opens the file again, changes it, closes it, and waits.
	void change(Staging &s, const std::string &bytes, uint64_t off)
	{
		ASSERT_EQ(reopen(s), 0);
		put(bytes, off);
		ASSERT_EQ(close_file(s), 0);
		expect_in_the_store(s);
	}
	void expect_in_the_store(Staging &s)
	{
		ASSERT_EQ(s.drain(), 0);
		EXPECT_SAME(read_file(at("f")), want);
		char sum[IO_CHECKSUM_LEN];
		Fd fd(open(at("f").c_str(), O_RDONLY | O_CLOEXEC));
		ASSERT_EQ(io_sum_file(fd.get(), sum), 0);
		EXPECT_STREQ(info(f).checksum, sum);
	}
	uint64_t written(Staging &s) { return s.engine.counts().write_bytes; }
	Xfs xfs;
	Ground ground;
	Options options;
	staged *f = nullptr;
	uint64_t node = 0;
	std::string want;
};

TEST_F(Delta, OnlyWhatChangedIsWritten)
{
	const uint64_t size = 8 * MIB + 777;
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	first(s, size);
	expect_in_the_store(s);
	for (unsigned i = 0; i < 10 && !HasFailure(); i++) {
		SCOPED_TRACE(i);
		uint64_t before = written(s), kept = s.stats().bytes_unchanged;
		change(s, pattern(100, i), want.size()); // the first is compared with the disk
		EXPECT_LE(written(s) - before, 2 * chunk);
		EXPECT_GE(s.stats().bytes_unchanged - kept, want.size() - 2 * chunk);
	}
	for (uint64_t off : {uint64_t(0), chunk - 1, 3 * MIB + 5, 8 * MIB, want.size() - 1}) {
		SCOPED_TRACE(off);
		uint64_t before = written(s);
		change(s, "new", off);
		EXPECT_LE(written(s) - before, 2 * chunk);
	}
	EXPECT_EQ(s.stats().errors, 0u);
	EXPECT_EQ(s.stats().dedup.clones, 0u);	// not a copy
	// what the closes allocated is given back, and so are the versions before
	EXPECT_TRUE(until([&] { return unpublished(s) == 0; })) << unpublished(s);
	staged_unref(f);
}

TEST_F(Delta, ShorterAndLonger)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	first(s, 8 * MIB + 777);
	expect_in_the_store(s);
	for (uint64_t size : {8 * MIB + 778, 8 * MIB + 1, 8 * MIB, 8 * MIB - 1, 5 * MIB + 4096, 7 * MIB + 3,
			      2 * MIB, 1 * MIB, 8 * MIB + 777}) {
		SCOPED_TRACE(size);
		ASSERT_EQ(reopen(s), 0);
		if (size > want.size()) {
			put(pattern(size - want.size(), (unsigned)size), want.size());
		} else {
			ASSERT_EQ(staged_resize(f, size), 0);
			want.resize(size);
		}
		ASSERT_EQ(close_file(s), 0);
		expect_in_the_store(s);
	}
	staged_unref(f);
}

// What is written anew is written at once, to the blocks that the close allocated.
TEST_F(Delta, AllChanged)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	first(s, 40 * MIB);
	expect_in_the_store(s);
	for (unsigned i = 2; i < 4; i++) {
		uint64_t kept = s.stats().bytes_unchanged;
		change(s, pattern(want.size(), i), 0);
		EXPECT_EQ(s.stats().bytes_unchanged, kept);
	}
	change(s, "x", 1);
	EXPECT_GT(s.stats().bytes_unchanged, 30 * MIB);
	staged_unref(f);
}

// The version before has no name yet: something earlier in the order waits.
TEST_F(Delta, NotPublishedYet)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	staged *held = create(s, 77, {root, "held"}, 4096);
	ASSERT_TRUE(write_all(held, "held"));
	ASSERT_EQ(staged_allocate(held), 0);
	int map = staged_open_rw(held);
	ASSERT_GE(map, 0);
	ASSERT_GT(seal(s, held, 77, {{root, "held"}}, true), 0);
	first(s, 8 * MIB);
	for (unsigned i = 0; i < 3; i++) {
		ASSERT_EQ(reopen(s), 0);
		put(pattern(100, i), want.size());
		ASSERT_EQ(close_file(s), 0);
	}
	ASSERT_EQ(staged_wait_persisted(f), 0);
	EXPECT_GE(s.stats().bytes_unchanged, 3 * (8 * MIB - chunk));
	EXPECT_EQ(s.tree(), Tree{});
	close(map);
	expect_in_the_store(s);
	staged_unref(held);
	staged_unref(f);
}

// An fsync's version, and the close's.
TEST_F(Delta, Fsynced)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	first(s, 8 * MIB);
	expect_in_the_store(s);
	ASSERT_EQ(reopen(s), 0);
	for (unsigned i = 0; i < 3; i++) {
		put(pattern(100, i), want.size());
		ASSERT_EQ(staged_allocate(f), 0);
		int64_t seq = seal(s, f, node, {{root, "f"}}, false, REC_SHADOW);
		ASSERT_GT(seq, 0);
		EXPECT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
		EXPECT_SAME(read_file(at("f")), want);
	}
	put("x", 5);
	ASSERT_EQ(close_file(s), 0);
	expect_in_the_store(s);
	EXPECT_GE(s.stats().bytes_unchanged, 4 * (8 * MIB - 2 * chunk));
	staged_unref(f);
}

// Another program writes to the file in the store, or puts another there: the sums say nothing any more.
TEST_F(Delta, ChangedByAnotherProgram)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	first(s, 8 * MIB);
	expect_in_the_store(s);
	change(s, "x", 1);
	{
		Fd fd(open(at("f").c_str(), O_WRONLY | O_CLOEXEC));
		ASSERT_EQ(pwrite(fd.get(), "other", 5, 3 * MIB), 5);
	}
	change(s, "y", 1);
	write_file(at("g"), pattern(8 * MIB, 9));
	ASSERT_EQ(rename(at("g").c_str(), at("f").c_str()), 0);
	change(s, "z", 1);
	ASSERT_EQ(unlink(at("f").c_str()), 0);
	change(s, "a", 1);
	staged_unref(f);
}

// A block of the version before has changed on the disk alone: it is not taken.
TEST_F(Delta, Rotten)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	first(s, 8 * MIB);
	expect_in_the_store(s);	// it is in the cache now
	xfs.rot(at("f"));
	change(s, "x", 5 * MIB);
	Fd fd(open(at("f").c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
	void *buf = nullptr;
	ASSERT_EQ(posix_memalign(&buf, 4096, 4096), 0);
	ASSERT_EQ(pread(fd.get(), buf, 4096, 0), 4096);
	EXPECT_EQ(memcmp(buf, want.data(), 4096), 0);
	free(buf);
	staged_unref(f);
}

TEST_F(Delta, NotWanted)
{
	options.no_dedup = true;
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	first(s, 8 * MIB);
	expect_in_the_store(s);
	change(s, "x", 1);
	change(s, "y", 1);
	EXPECT_EQ(s.stats().bytes_unchanged, 0u);
	staged_unref(f);
}

TEST_F(Delta, NotAnotherOwners)
{
	Staging s(ground, options);
	ASSERT_EQ(s.err, 0);
	first(s, 8 * MIB);
	expect_in_the_store(s);
	ASSERT_EQ(chown(at("f").c_str(), 12, 34), 0);
	change(s, "x", 1);
	EXPECT_EQ(s.stats().bytes_unchanged, 0u);
	staged_unref(f);
}

// All is killed when a version is persisted and has no name yet, and when the next one is sealed: both are
// published from staging, and the clones are removed.
TEST_F(Delta, KilledBeforeItsName)
{
	std::string held_by = "held";
	for (bool reopened : {false, true}) {
		SCOPED_TRACE(reopened);
		{
			Fd map(-1);
			Staging s(ground, options);
			ASSERT_EQ(s.err, 0);
			first(s, 8 * MIB);
			expect_in_the_store(s);
			staged *held = create(s, 77, {root, held_by}, 4096);
			ASSERT_TRUE(write_all(held, "held"));
			ASSERT_EQ(staged_allocate(held), 0);
			map.reset(staged_open_rw(held));
			ASSERT_GE(map.get(), 0);
			ASSERT_GT(seal(s, held, 77, {{root, held_by}}, true), 0);
			std::string old = want;
			ASSERT_EQ(reopen(s), 0);
			put("new", 2 * MIB);
			ASSERT_EQ(close_file(s), 0);
			ASSERT_EQ(staged_wait_persisted(f), 0);
			EXPECT_GT(s.stats().bytes_unchanged, 7 * MIB);
			if (reopened) {
				ASSERT_EQ(reopen(s), 0);
				ASSERT_TRUE(write_all(f, "not closed", 4 * MIB));
			}
			EXPECT_SAME(read_file(at("f")), old);
		}
		Staging s(ground, options);
		ASSERT_EQ(s.err, 0);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_SAME(read_file(at("f")), want);
		EXPECT_TRUE(until([&] { return unpublished(s) == 0; })) << unpublished(s);
		staging_clear(s);
		held_by += "2";
	}
}

// Whichever call of the store fails, what is published is what was sealed.
class DeltaFault : public Delta, public ::testing::WithParamInterface<const char *>
{
protected:
	// Publication may have halted: closes fail until it goes on, and a version may not be persisted before.
	bool goes_on(Staging &s, const std::function<int()> &call)
	{
		return until([&] {
			bool done = !call();
			if (!done)
				staging_retry(s);
			return done;
		});
	}
	bool closes(Staging &s, uint32_t flags)
	{
		return goes_on(s, [&] { return close_file(s, flags); });
	}
};
INSTANTIATE_TEST_SUITE_P(Kinds, DeltaFault, testing::Values("eio", "enospc", "short", "lostsync"));

TEST_P(DeltaFault, AnyOneOperationFails)
{
	uint64_t faults = 1;
	unsigned n = 1;
	for (; faults && n < 200 && !HasFailure(); n += one_of()) {
		std::string fault = "3:@" + std::to_string(n) + ":" + GetParam();
		SCOPED_TRACE(fault);
		Ground fresh;
		Options o = options;
		o.fault = fault.c_str();
		Staging s(fresh, o);
		if (s.err)
			continue;
		want = pattern(2 * MIB, 1);
		node = staging_new_id(s);
		f = create(s, node, {root, "f"}, want.size());
		ASSERT_NE(f, nullptr);
		ASSERT_TRUE(write_all(f, want));
		ASSERT_TRUE(closes(s, 0));
		for (unsigned i = 0; i < 2 && !HasFailure(); i++) {
			ASSERT_TRUE(goes_on(s, [&] { return reopen(s); }));
			put(pattern(100, i), i ? 7 : want.size());
			ASSERT_TRUE(closes(s, REC_SHADOW));
		}
		expect_in_the_store(s);
		faults = s.engine.counts().faults;
		staged_unref(f);
	}
	EXPECT_GT(n, 2u);
}

} // namespace

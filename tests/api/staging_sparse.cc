// SPDX-License-Identifier: MIT
//
// What a version of a sparse file costs: counted in operations on the store and in bytes, never in time.
#include "staging_fixture.hh"

namespace
{

constexpr uint64_t root = STAGING_ROOT_DIR;
constexpr uint64_t file_size = 2ull << 30;
constexpr unsigned n_writes = 7;
constexpr uint64_t page = 4096;

uint64_t place_of(unsigned i) { return i * 300000000ull + 12345; }

// 2 GiB with 7 small writes, and a writer that goes on.
class Sparse : public testing::Test {
protected:
	static Options spacious()
	{
		Options o;
		o.budget = 8ull << 30;
		return o;
	}
	void open_file(Staging &s, uint64_t expected = 0)
	{
		node = staging_new_id(s);
		f = create(s, node, {root, "sparse"}, expected);
		ASSERT_NE(f, nullptr);
		ASSERT_EQ(staged_resize(f, file_size), 0);
		for (unsigned i = 0; i < n_writes; i++)
			ASSERT_TRUE(write_all(f, text, place_of(i)));
	}
	int64_t sync(Staging &s) { return seal(s, f, node, {{root, "sparse"}}, false); }
	void expect_in_the_store()
	{
		struct stat st;
		std::string path = ground.store() + "/sparse", got(text.size(), 0);
		ASSERT_EQ(stat(path.c_str(), &st), 0);
		EXPECT_EQ((uint64_t)st.st_size, file_size);
		// a page each, and where the filesystem notes its extents
		EXPECT_LE((uint64_t)st.st_blocks * 512, (n_writes + 2) * page);
		Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
		for (unsigned i = 0; i < n_writes; i++) {
			ASSERT_EQ(pread(fd.get(), got.data(), got.size(), (off_t)place_of(i)),
				  (ssize_t)got.size());
			EXPECT_EQ(got, text);
		}
	}
	Ground ground;
	std::string text = "0123456789";
	uint64_t node = 0;
	staged *f = nullptr;
};

TEST_F(Sparse, AnFsyncWritesWhatWasWrittenAndLooksForItOnce)
{
	Staging s(ground, spacious());
	ASSERT_EQ(s.err, 0);
	open_file(s);
	ASSERT_FALSE(staged_spilled(f));
	// the first version is durable, and so is what the store is asked once
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_EQ(Durable(s, (uint64_t)sync(s)).wait(), 0);
	for (int round = 0; round < 3; round++) {
		text = "round" + std::to_string(round);
		for (unsigned i = 0; i < n_writes; i++)
			ASSERT_TRUE(write_all(f, text, place_of(i)));
		io_counts before = s.engine.counts();
		ASSERT_EQ(staged_allocate(f), 0);
		// only who asks for blocks searches for data
		EXPECT_EQ(s.engine.counts().ops, before.ops) << "asked before the seal";
		ASSERT_EQ(Durable(s, (uint64_t)sync(s)).wait(), 0);
		io_counts after = s.engine.counts();
		EXPECT_LE(after.write_bytes - before.write_bytes, n_writes * page);
		EXPECT_LE(after.syncs - before.syncs, 2u) << "the bytes and the name";
		expect_in_the_store();
	}
	staged_unref(f);
}

TEST_F(Sparse, ACloseIsPromisedSpaceAndNextStartWritesIt)
{
	{
		Staging s(ground, spacious());
		ASSERT_EQ(s.err, 0);
		open_file(s);
		io_counts before = s.engine.counts();
		ASSERT_EQ(staged_allocate(f), 0);
		EXPECT_EQ(s.engine.counts().ops, before.ops);
		ASSERT_GT(seal(s, f, node, {{root, "sparse"}}, true), 0);
		staged_unref(f);
	} // killed
	Staging s(ground, spacious());
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.drain(), 0);
	expect_in_the_store();
}

// The reserve is small: a version with more data than its share gets blocks of its own.
TEST_F(Sparse, MuchDataIsNotPromised)
{
	Staging s(ground, spacious());
	ASSERT_EQ(s.err, 0);
	open_file(s);
	std::string some(1u << 20, 'x');
	for (uint64_t at = 0; at < 80u << 20; at += some.size())
		ASSERT_TRUE(write_all(f, some, at));
	io_counts before = s.engine.counts();
	ASSERT_EQ(staged_allocate(f), 0);
	EXPECT_GT(s.engine.counts().ops, before.ops);
	ASSERT_GT(seal(s, f, node, {{root, "sparse"}}, true), 0);
	staged_unref(f);
	ASSERT_EQ(s.drain(), 0);
}

// Without space in memory its bytes are in the store from the start; an fsync's version is a copy of them.
TEST_F(Sparse, SpilledItIsCopiedWithItsHoles)
{
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	open_file(s, file_size);
	ASSERT_TRUE(staged_spilled(f));
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_EQ(staged_allocate_copy(f), 0);
	ASSERT_EQ(Durable(s, (uint64_t)sync(s)).wait(), 0);
	expect_in_the_store();
	staged_unref(f);
}

// A version's blocks (du) are those that its file has, for the next worker, too: whether the store has it already or not.
TEST_F(Sparse, BlocksAreCountedAfterADeath)
{
	for (bool durable : {true, false})
		for (uint64_t size : {file_size, (uint64_t)10, (uint64_t)5 << 20}) {
			SCOPED_TRACE((durable ? "durable " : "pending ") + std::to_string(size));
			std::string name = "f" + std::to_string(size) + (durable ? "d" : "p");
			uint64_t blocks;
			Options o = spacious();
			o.start = durable;
			{
				Staging s(ground, o);
				ASSERT_EQ(s.err, 0);
				node = staging_new_id(s);
				f = create(s, node, {root, name}, size);
				ASSERT_NE(f, nullptr);
				ASSERT_TRUE(write_all(f, text));
				ASSERT_EQ(staged_resize(f, size), 0);
				ASSERT_EQ(staged_allocate(f), 0);
				ASSERT_GT(seal(s, f, node, {{root, name}}, true), 0);
				if (durable) {
					ASSERT_EQ(s.drain(), 0);
				}
				blocks = info(f).blocks;
				EXPECT_LE(blocks, (2u << 20) / 512);
			}
			o.start = o.orphaned = false;
			o.each = [&](staging *st, const rec *r) {
				if (r->type != REC_CREATE || r->name != name)
					return;
				EXPECT_EQ(staged_recover(st, r, &f), 0);
			};
			{
				Staging s(ground, o);
				ASSERT_EQ(s.err, 0);
				EXPECT_EQ(info(f).state, durable ? STAGED_DURABLE : STAGED_SEALED);
				EXPECT_EQ(info(f).size, size);
				EXPECT_EQ(info(f).blocks, blocks);
			}
			Staging s(ground, spacious());
			ASSERT_EQ(s.drain(), 0);
			staging_clear(s);
		}
}

} // namespace

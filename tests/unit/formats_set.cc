// SPDX-License-Identifier: MIT
//
// Do pieces cover their tensor? Grids, holes, overlaps; dtypes and volumes.
#include "formats_test.hh"

extern "C" {
#include "fs/formats/inside.h"
}

namespace
{

struct Box {
	V offset, size;
};

struct Tensor : Set {
	Tensor(const V &shape, const std::vector<Box> &boxes)
	{
		fmt_tensor *t = nullptr;
		keep = boxes;
		EXPECT_EQ(fmt_set_add(get(), "t", 1, (unsigned)shape.size(), shape.data(), &t, &e), 0);
		for (const Box &b : keep) {
			fmt_piece p = {};
			p.offset = b.offset.data();
			p.size = b.size.data();
			EXPECT_EQ(fmt_set_piece(t, &p, &e), 0);
		}
		finish();
		err = fmt_set_cover(find("t"), grid, &e);
	}
	std::vector<Box> keep;
	uint64_t grid[FMT_MAX_DIMS];
	Error e;
	int err;
};

TEST(Cover, Grids)
{
	Tensor rows({4, 6}, {{{2, 0}, {2, 6}}, {{0, 0}, {2, 6}}});
	EXPECT_EQ(rows.err, 0);
	EXPECT_EQ(list(rows.grid, 2), (V{2, 1}));
	Tensor tiles({4, 6}, {{{0, 0}, {3, 2}}, {{0, 2}, {3, 4}}, {{3, 0}, {1, 2}}, {{3, 2}, {1, 4}}});
	EXPECT_EQ(tiles.err, 0);
	EXPECT_EQ(list(tiles.grid, 2), (V{2, 2}));
	EXPECT_EQ(Tensor({}, {{{}, {}}}).err, 0);
	EXPECT_EQ(Tensor({0, 3}, {}).err, 0);
	EXPECT_EQ(Tensor({0, 3}, {{{0, 0}, {0, 3}}}).err, 0);
	EXPECT_EQ(Tensor({3}, {{{0}, {3}}, {{3}, {0}}}).err, 0); // an empty shard
}

TEST(Cover, ReplicasCountOnce)
{
	Tensor t({2}, {{{0}, {2}}, {{0}, {2}}, {{0}, {2}}});
	EXPECT_EQ(t.err, 0);
	EXPECT_EQ(t.find("t")->n_pieces, 1u);
}

TEST(Cover, OffTheGrid)
{
	// a pinwheel: covers, but no cut goes through
	const std::vector<Box> wheel = {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
	Tensor t({3, 3}, wheel);
	EXPECT_EQ(t.err, 0) << t.e.text;
	EXPECT_EQ(list(t.grid, 2), (V{0, 0}));
}

TEST(Cover, HolesOverlapsAndBounds)
{
	EXPECT_EQ(Tensor({4}, {{{0}, {2}}}).err, -EBADMSG);
	EXPECT_EQ(Tensor({4}, {}).err, -EBADMSG);
	EXPECT_EQ(Tensor({}, {}).err, -EBADMSG);
	EXPECT_EQ(Tensor({4}, {{{0}, {2}}, {{2}, {3}}}).err, -EBADMSG);
	EXPECT_EQ(Tensor({4}, {{{5}, {1}}}).err, -EBADMSG);
	Tensor t({4, 2}, {{{0, 0}, {2, 2}}, {{1, 0}, {2, 2}}}); // eight elements, two of them twice
	EXPECT_EQ(t.err, -EBADMSG);
	EXPECT_TRUE(t.e.says("overlap")) << t.e.text;
}

TEST(Volume, Overflow)
{
	const uint64_t big[] = {1ull << 32, 1ull << 32}, zero[] = {1ull << 63, 4, 0}, ok[] = {3, 5};
	uint64_t v;

	EXPECT_FALSE(fmt_volume(big, 2, &v));
	EXPECT_TRUE(fmt_volume(zero, 3, &v));
	EXPECT_EQ(v, 0u);
	EXPECT_TRUE(fmt_volume(ok, 2, &v));
	EXPECT_EQ(v, 15u);
	EXPECT_TRUE(fmt_volume(nullptr, 0, &v));
	EXPECT_EQ(v, 1u);
}

TEST(Dtype, Bytes)
{
	uint64_t n;
	EXPECT_TRUE(fmt_bytes(fmt_dtype_torch("bfloat16", 8), 3, &n));
	EXPECT_EQ(n, 6u);
	EXPECT_FALSE(fmt_bytes(fmt_dtype_safetensors("F4", 2), 3, &n));
	EXPECT_TRUE(fmt_bytes(fmt_dtype_torch("float64", 7), UINT64_MAX / 8, &n));
	EXPECT_FALSE(fmt_bytes(fmt_dtype_torch("float64", 7), UINT64_MAX / 8 + 1, &n));
	EXPECT_EQ(fmt_dtype_torch("float", 5), nullptr);
	EXPECT_STREQ(fmt_dtype_storage("HalfStorage", 11)->name, "float16");
}

TEST(Error, OneCleanLine)
{
	Set s;
	Error e;
	EXPECT_LT(fmt_set_file(s.get(), "../\x1b[2J\n", 8, &e), 0);
	EXPECT_TRUE(e.says("\\x1b[2J\\x0a")) << e.text;
}

} // namespace

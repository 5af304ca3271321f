// SPDX-License-Identifier: MIT
//
// Extents widened and merged, against a map of blocks.
#include <errno.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

extern "C" {
#include "io/engine/spans.h"
}

namespace
{

using Spans = std::vector<std::pair<uint64_t, uint64_t>>;

Spans spans(std::vector<io_extent> x, uint64_t size)
{
	io_source src = {};
	io_spans s;
	Spans out;

	src.size = size;
	src.data = x.data();
	src.n_data = (unsigned)x.size();
	EXPECT_EQ(io_spans_check(&src), 0);
	io_spans_init(&s, &src);
	while (io_spans_next(&s))
		out.push_back({s.start, s.end});
	EXPECT_FALSE(io_spans_next(&s)); // and stays there
	return out;
}

TEST(Spans, WidenedToBlocks)
{
	EXPECT_EQ(spans({}, 0), Spans{});
	EXPECT_EQ(spans({}, 10000), Spans{});
	EXPECT_EQ(spans({{0, 1}}, 1), (Spans{{0, 4096}}));
	EXPECT_EQ(spans({{0, 4096}}, 4096), (Spans{{0, 4096}}));
	EXPECT_EQ(spans({{4095, 2}}, 10000), (Spans{{0, 8192}}));
	EXPECT_EQ(spans({{8191, 1}}, 10000), (Spans{{4096, 8192}}));
}

TEST(Spans, MergedWhereTheyTouch)
{
	EXPECT_EQ(spans({{0, 10}, {100, 10}}, 10000), (Spans{{0, 4096}}));
	EXPECT_EQ(spans({{0, 10}, {4096, 10}}, 10000), (Spans{{0, 8192}}));
	EXPECT_EQ(spans({{0, 10}, {8192, 10}}, 10000), (Spans{{0, 4096}, {8192, 12288}}));
	EXPECT_EQ(spans({{0, 5000}, {5001, 1}, {9000, 1}}, 10000), (Spans{{0, 12288}}));
}

TEST(Spans, CutAtTheLastPage)
{
	EXPECT_EQ(spans({{0, 1 << 20}}, 4097), (Spans{{0, 8192}}));
	EXPECT_EQ(spans({{0, 10}, {20000, 10}}, 10000), (Spans{{0, 4096}}));
	EXPECT_EQ(spans({{20000, 10}}, 10000), Spans{});
	EXPECT_EQ(spans({{0, 10}, {9000, 1 << 20}}, 10000), (Spans{{0, 4096}, {8192, 12288}}));
}

TEST(Spans, EmptyExtentsAreNone)
{
	EXPECT_EQ(spans({{0, 0}}, 10000), Spans{});
	EXPECT_EQ(spans({{0, 0}, {5000, 0}, {5000, 1}, {9000, 0}}, 10000), (Spans{{4096, 8192}}));
	EXPECT_EQ(spans({{0, 1}, {8200, 0}, {12288, 1}}, 20000), (Spans{{0, 4096}, {12288, 16384}}));
}

TEST(Spans, EqualABlockMap)
{
	std::mt19937_64 rng(1);

	for (int round = 0; round < 3000; round++) {
		uint64_t size = 1 + rng() % 200000, off = rng() % 9000;
		std::vector<io_extent> x;
		std::set<uint64_t> want, have;
		uint64_t past = 0;

		while (off < size + 20000) {
			uint64_t len = rng() % 4 ? rng() % 10000 : 0;
			x.push_back({off, len});
			for (uint64_t b = off / 4096; len && b <= (off + len - 1) / 4096; b++)
				if (off < size && b * 4096 < size)
					want.insert(b);
			off += len + rng() % 12000;
		}
		for (auto &s : spans(x, size)) {
			EXPECT_TRUE(have.empty() || s.first > past); // none touches another
			for (uint64_t b = s.first; b < s.second; b += 4096)
				have.insert(b / 4096);
			past = s.second;
		}
		ASSERT_EQ(have, want);
	}
}

TEST(Spans, CheckRefuses)
{
	auto check = [](std::vector<io_extent> x, uint64_t size) {
		io_source src = {};
		src.size = size;
		src.data = x.data();
		src.n_data = (unsigned)x.size();
		return io_spans_check(&src);
	};
	const uint64_t max = UINT64_MAX;

	EXPECT_EQ(check({{10, 10}, {19, 1}}, 100), -EINVAL);
	EXPECT_EQ(check({{10, 10}, {20, 1}}, 100), 0);
	EXPECT_EQ(check({{10, 10}, {5, 1}}, 100), -EINVAL);
	EXPECT_EQ(check({{max, 1}}, 100), -EINVAL);
	EXPECT_EQ(check({{1, max}}, 100), -EINVAL);
	EXPECT_EQ(check({{max - 4096, 8192}}, 100), -EINVAL);
	EXPECT_EQ(check({}, max), -EFBIG);
	EXPECT_EQ(check({}, (uint64_t)INT64_MAX), -EFBIG);
}

} // namespace

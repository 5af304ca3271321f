// SPDX-License-Identifier: MIT
//
// The limit of the rate of a tier (tools/tier/pace.h).
#include <gtest/gtest.h>

#include <cstdint>

#include "tools/tier/pace.h"

namespace
{

// Moves `bytes` in pieces by a clock of its own; seconds.
double moves(struct pace *p, uint64_t bytes, size_t most, uint64_t each_ns, uint64_t *now)
{
	uint64_t from = *now;

	while (bytes) {
		uint64_t n = pace_piece(p, most);
		n = n < bytes ? n : bytes;
		*now += pace_take(p, n, *now) + each_ns;
		bytes -= n;
	}
	return (double)(*now - from) / 1e9;
}

TEST(Pace, KeepsWithinFivePercent)
{
	for (uint64_t rate : {10ull << 10, 1ull << 20, 64ull << 20, 2ull << 30, 50ull << 30}) {
		for (uint64_t each_ns : {0ull, 1000ull, 100000ull}) {
			struct pace p = {};
			uint64_t now = 1000000000000;
			size_t most = 4 << 20;
			p.rate = rate;
			// if moving takes longer than the limit asks for, the limit is not what counts
			double piece_s = (double)pace_piece(&p, most) / (double)rate;
			if ((double)each_ns / 1e9 > piece_s)
				continue;
			double s = moves(&p, rate * 10, most, each_ns, &now);
			EXPECT_NEAR(s, 10, 0.5) << rate << " " << each_ns;
		}
	}
}

TEST(Pace, IsNotBehindAfterAPause)
{
	struct pace p = {};
	uint64_t now = 1000000000000;
	p.rate = 100 << 20;
	moves(&p, 1 << 30, 4 << 20, 0, &now);
	now += 3600 * 1000000000ull; // nothing to send for an hour: no hour's worth at once
	EXPECT_GT(moves(&p, 1 << 30, 4 << 20, 0, &now), 10.24 * 0.95);
}

TEST(Pace, NoRateIsNoLimit)
{
	struct pace p = {};
	uint64_t now = 5;
	EXPECT_EQ(moves(&p, 1ull << 40, 4 << 20, 0, &now), 0);
	EXPECT_EQ(pace_piece(&p, 4 << 20), 4u << 20);
}

TEST(Pace, PiecesAreShortAndNotEmpty)
{
	for (uint64_t rate : {1ull, 4096ull, 1ull << 20, 1ull << 40}) {
		struct pace p = {};
		p.rate = rate;
		size_t n = pace_piece(&p, 4 << 20);
		EXPECT_GE(n, 4096u);
		EXPECT_LE(n, 4u << 20);
	}
}

} // namespace

// SPDX-License-Identifier: MIT
//
// A file that is fetched by ranges (tools/cairn/tier/tier_ranges.c): each once, none that is damaged, and what a killed fetch left
// is used only if it is right.
#include <sys/mman.h>

#include <atomic>
#include <set>
#include <thread>

#include "io/tier_ask.h"
#include "tests/unit/cairn_tier.hh"

namespace
{

const uint64_t range = 1000;
const unsigned n = 10;
const char path[] = "run/step-1/a";

void count_bytes(void *ctx, const struct ranges *, uint64_t bytes) { *(uint64_t *)ctx += bytes; }

class Fetch : public TierDir
{
protected:
	void SetUp() override
	{
		TierDir::SetUp();
		bytes.resize(range * n - 100);
		for (size_t i = 0; i < bytes.size(); i++)
			bytes[i] = (char)(i * 7 + i / 251);
		put(path, bytes);
		f.path = (char *)path;
		f.size = bytes.size();
		f.range_bytes = range;
		for (unsigned i = 0; i < n; i++)
			sums += sum_of(bytes.substr(i * range, range)).substr(5);
		f.ranges = (char *)sums.c_str();
		strcpy(f.sum, sum_of(bytes).c_str());
	}
	void TearDown() override
	{
		ranges_free(&r);
		TierDir::TearDown();
	}
	std::string sum_of(const std::string &b)
	{
		char text[IO_CHECKSUM_LEN];
		struct io_sum *m = io_sum_new();
		io_sum_add(m, b.data(), b.size());
		io_sum_text(m, text);
		io_sum_free(m);
		return text;
	}
	std::string here() { return top / "store/a"; }
	int get(uint64_t first, uint64_t count)
	{
		came = 0;
		return ranges_get(&r, &t, first, count, count_bytes, nullptr, &came);
	}
	int get_all()
	{
		uint64_t first, count, all = 0;
		int err = 0;
		while (ranges_claim_next(&r, 3, &first, &count)) {
			int one = get(first, count);
			all += came;
			err = err ? err : one;
		}
		came = all;
		return err;
	}

	std::string bytes, sums;
	struct tier_file f = {};
	struct ranges r = {};
	uint64_t came = 0;
};

TEST_F(Fetch, All)
{
	ASSERT_EQ(ranges_open(&r, &f, store, "a"), 0);
	EXPECT_EQ(r.n, n);
	EXPECT_FALSE(ranges_are_there(&r));
	EXPECT_EQ(get_all(), 0);
	EXPECT_EQ(came, bytes.size());
	EXPECT_TRUE(ranges_are_there(&r));
	EXPECT_EQ(read_file(here()), bytes);
	auto *told = (const uint8_t *)mmap(nullptr, n, PROT_READ, MAP_SHARED, r.told, 0);
	for (unsigned i = 0; i < n; i++)
		EXPECT_EQ(told[i], TIER_RANGE_THERE) << "as a reader sees it";
	munmap((void *)told, n);
}

TEST_F(Fetch, AReaderIsFollowed)
{
	uint64_t first, count;
	ASSERT_EQ(ranges_open(&r, &f, store, "a"), 0);
	EXPECT_TRUE(ranges_claim(&r, 6));
	EXPECT_FALSE(ranges_claim(&r, 6)) << "another thread has it";
	ASSERT_TRUE(ranges_claim_next(&r, 2, &first, &count));
	EXPECT_EQ(first, 7u) << "the reader goes on there";
	EXPECT_EQ(count, 2u);
	ASSERT_TRUE(ranges_claim_next(&r, 32, &first, &count));
	EXPECT_EQ(first, 9u);
	EXPECT_EQ(count, 1u);
	ASSERT_TRUE(ranges_claim_next(&r, 32, &first, &count));
	EXPECT_EQ(first, 0u);
	EXPECT_EQ(count, 6u) << "up to what is claimed";
	EXPECT_EQ(get(6, 1), 0);
	EXPECT_FALSE(ranges_claim(&r, 6)) << "it is there";
}

TEST_F(Fetch, ThreadsNeverClaimTheSame)
{
	ASSERT_EQ(ranges_open(&r, &f, store, "a"), 0);
	std::atomic<unsigned> claimed{0};
	std::vector<std::thread> threads;
	for (int i = 0; i < 4; i++)
		threads.emplace_back([&] {
			uint64_t first, count, seen = 0;
			while (ranges_claim_next(&r, 2, &first, &count)) {
				claimed += (unsigned)count;
				EXPECT_EQ(ranges_get(&r, &t, first, count, count_bytes, nullptr, &seen), 0);
			}
		});
	for (auto &thread : threads)
		thread.join();
	EXPECT_EQ(claimed, n);
	EXPECT_TRUE(ranges_are_there(&r));
	EXPECT_EQ(read_file(here()), bytes);
}

TEST_F(Fetch, ADamagedRangeIsNoOthersFault)
{
	std::string bad = bytes;
	bad[4 * range + 5] ^= 1;
	put(path, bad);
	ASSERT_EQ(ranges_open(&r, &f, store, "a"), 0);
	EXPECT_EQ(get_all(), -EBADMSG);
	EXPECT_FALSE(ranges_are_there(&r));
	for (unsigned i = 0; i < n; i++)
		EXPECT_EQ(r.state[i], i == 4 ? TIER_RANGE_DAMAGED : TIER_RANGE_THERE) << i;
	EXPECT_FALSE(ranges_claim(&r, 4)) << "it was asked for twice";
}

TEST_F(Fetch, ATierThatFailsLeavesThemToBeClaimed)
{
	ASSERT_EQ(ranges_open(&r, &f, store, "a"), 0);
	ASSERT_EQ(unlink((name + "/" + path).c_str()), 0);
	ASSERT_EQ(symlink("b", (name + "/" + path).c_str()), 0);
	ASSERT_TRUE(ranges_claim(&r, 2));
	EXPECT_EQ(get(2, 1), -ELOOP);
	EXPECT_EQ(r.state[2], TIER_RANGE_NONE);
	ASSERT_EQ(unlink((name + "/" + path).c_str()), 0);
	put(path, bytes.substr(0, 3 * range + 1));
	EXPECT_TRUE(ranges_claim(&r, 2));
	EXPECT_EQ(get(2, 1), 0);
	ASSERT_TRUE(ranges_claim(&r, 3));
	EXPECT_EQ(get(3, 1), -EBADMSG) << "it ends before";
	EXPECT_EQ(r.state[3], TIER_RANGE_DAMAGED);
}

TEST_F(Fetch, AMissingFileIsDamaged)
{
	ASSERT_EQ(ranges_open(&r, &f, store, "a"), 0);
	ASSERT_EQ(unlink((name + "/" + path).c_str()), 0);
	ASSERT_TRUE(ranges_claim(&r, 2));
	EXPECT_EQ(get(2, 1), -EBADMSG);
	EXPECT_EQ(r.state[2], TIER_RANGE_DAMAGED);
}

TEST_F(Fetch, WhatAKilledOneLeftIsComparedAndUsed)
{
	ASSERT_EQ(ranges_open(&r, &f, store, "a"), 0);
	ASSERT_TRUE(ranges_claim(&r, 1));
	ASSERT_TRUE(ranges_claim(&r, 5));
	ASSERT_EQ(get(1, 1), 0);
	ASSERT_EQ(get(5, 1), 0);
	ASSERT_EQ(pwrite(r.fd, "?", 1, 5 * range + 7), 1);	// torn
	ranges_free(&r);
	ASSERT_EQ(ranges_open(&r, &f, store, "a"), 0);
	EXPECT_EQ(r.state[1], TIER_RANGE_NONE) << "not before it was compared";
	EXPECT_EQ(get_all(), 0);
	EXPECT_LE(came, bytes.size() - range) << "the right one was not copied again";
	EXPECT_EQ(read_file(here()), bytes);
}

TEST_F(Fetch, WithoutChecksumsOfRangesItIsOne)
{
	f.ranges = nullptr;
	ASSERT_EQ(ranges_open(&r, &f, store, "a"), 0);
	EXPECT_EQ(r.n, 1u);
	EXPECT_EQ(get_all(), 0);
	EXPECT_TRUE(ranges_are_there(&r));
	ranges_free(&r);
	strcpy(f.sum, sum_of("x").c_str());
	ASSERT_EQ(ranges_open(&r, &f, store, "b"), 0);
	EXPECT_EQ(get_all(), -EBADMSG);
	EXPECT_FALSE(ranges_are_there(&r));
}

TEST_F(Fetch, AnEmptyFile)
{
	put(path, "");
	f.size = 0;
	f.ranges = nullptr;
	strcpy(f.sum, sum_of("").c_str());
	ASSERT_EQ(ranges_open(&r, &f, store, "a"), 0);
	EXPECT_EQ(get_all(), 0);
	EXPECT_TRUE(ranges_are_there(&r));
	EXPECT_EQ(read_file(here()), "");
}

// Nothing that another one has is written to.
TEST_F(Fetch, WhatIsInTheWayIsReplaced)
{
	std::string mine = top / "mine";
	for (bool link_only : {true, false}) {
		int fd = open(mine.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
		ASSERT_EQ(write(fd, "mine", 4), 4);
		close(fd);
		unlink(here().c_str());
		ASSERT_EQ(link_only ? symlink(mine.c_str(), here().c_str()) : link(mine.c_str(), here().c_str()), 0);
		ASSERT_EQ(ranges_open(&r, &f, store, "a"), 0);
		EXPECT_EQ(get_all(), 0);
		EXPECT_EQ(read_file(mine), "mine");
		EXPECT_EQ(read_file(here()), bytes);
		ranges_free(&r);
	}
}

} // namespace

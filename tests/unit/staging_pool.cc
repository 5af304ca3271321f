// SPDX-License-Identifier: MIT
//
// The page pool from inside: no lock is held while pages move, and what it counts is what its files hold.
#include <fcntl.h>
#include <limits.h>
#include <sys/syscall.h>

#include <atomic>
#include <thread>

#include "tests/api/staging_fixture.hh"
#include "staging_shim.h"

namespace
{

const uint64_t root = STAGING_ROOT_DIR, mib = 1u << 20;

std::atomic<staging *> watched;
std::atomic<unsigned> moves, under_staging, under_pool;

bool is_mine(pthread_mutex_t *m)
{
	return m->__data.__owner == static_cast<int>(syscall(SYS_gettid));
}

// The log's memory is allocated in order, under staging's lock: 1 MiB at a time.
bool is_log(int fd)
{
	char path[PATH_MAX], link[32];
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = 0;
	return strstr(path, "/log.");
}

void look(int fd)
{
	staging *s = watched;
	if (!s || is_log(fd))
		return;
	moves++;
	under_staging += is_mine(shim_staging_lock(s));
	under_pool += is_mine(shim_pool_lock(s));
}

} // namespace

// Each fallocate of staging comes here.
extern "C" int fallocate64(int fd, int mode, off64_t off, off64_t len)
{
	look(fd);
	return static_cast<int>(syscall(SYS_fallocate, fd, mode, off, len));
}

namespace
{

Options with_pool()
{
	Options o;
	o.budget = 256 * mib;
	o.pool = 192 * mib;
	return o;
}

template <typename F> bool until(F f)
{
	for (int i = 0; i < 3000; i++, usleep(10000))
		if (f())
			return true;
	return false;
}

void shard(Staging &s, uint64_t size, const std::string &name)
{
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, name}, size);
	ASSERT_TRUE(f && write_all(f, std::string(size, 'x')));
	ASSERT_EQ(staged_allocate(f), 0);
	int64_t seq = seal(s, f, node, {{root, name}}, true);
	ASSERT_GT(seq, 0);
	ASSERT_EQ(Durable(s, static_cast<uint64_t>(seq)).wait(), 0);
	staged_unref(f);
}

bool is_full(Staging &s)
{
	return until([&] { return s.stats().pool == s.stats().pool_target; });
}

// Nothing moves, and the three sums agree. Pages beyond what is counted would be lost memory.
bool agrees(Staging &s)
{
	return until([&] {
		struct shim_pool p = shim_pool(s);
		return !p.claims && p.bytes == p.counted && p.held == p.counted;
	});
}

class Pool : public testing::Test {
protected:
	Pool() : s(ground, with_pool())
	{
		moves = under_staging = under_pool = 0;
		watched = s.err ? nullptr : static_cast<staging *>(s);
	}
	~Pool() override { watched = nullptr; }
	Ground ground;
	Staging s;
};

TEST_F(Pool, NoLockIsHeldWhilePagesMove)
{
	ASSERT_EQ(s.err, 0);
	shard(s, 20 * mib, "a");	// handed over; kept; made ready
	ASSERT_TRUE(is_full(s));
	shard(s, 20 * mib, "a");	// a ready file
	staged *f = create(s, staging_new_id(s), {root, "b"}, 250 * mib);	// all of it, and the durable ones go
	ASSERT_TRUE(f);
	EXPECT_FALSE(staged_spilled(f));
	staged_unref(f);
	ASSERT_TRUE(is_full(s));
	ASSERT_EQ(s.drain(), 0);
	staging_clear(s);
	EXPECT_EQ(shim_pool(s).bytes, 0u);
	EXPECT_GT(moves, 10u);
	EXPECT_EQ(under_staging, 0u);
	EXPECT_EQ(under_pool, 0u);
}

TEST_F(Pool, CountsWhatItsFilesHoldWhileManyTakeFromIt)
{
	ASSERT_EQ(s.err, 0);
	ASSERT_TRUE(is_full(s));
	std::vector<std::thread> threads;
	for (unsigned t = 0; t < 4; t++)
		threads.emplace_back([this, t] {
			for (unsigned i = 0; i < 40; i++) {
				uint64_t size = (2 + (t * 7 + i * 5) % 40) * mib, node = staging_new_id(s);
				staged *f = create(s, node, {root, std::to_string(t)}, size);
				if (f && i % 4 == 0)
					write_all(f, std::string(mib, 'x'));
				if (f)
					staged_unref(f);
				if (i % 8 == 0)
					usleep(30000);	// files are made ready
			}
		});
	for (auto &t : threads)
		t.join();
	EXPECT_TRUE(is_full(s));
	EXPECT_TRUE(agrees(s));
	struct shim_pool p = shim_pool(s);
	EXPECT_EQ(p.bytes, p.counted);
	EXPECT_EQ(p.held, p.counted);
	EXPECT_EQ(under_staging, 0u);
	EXPECT_EQ(under_pool, 0u);
}

} // namespace

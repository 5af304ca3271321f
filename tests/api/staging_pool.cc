// SPDX-License-Identifier: MIT
//
// The page pool: pages of files that are gone are kept, and files are made ready for shards of sizes that come again.
#include <dirent.h>
#include <sys/stat.h>

#include <fstream>

#include "staging_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR, mib = 1u << 20;

struct File {
	std::string name;
	uint64_t size, held;
};

// What lies in the tmpfs of large files, but for the pool's stock.
std::vector<File> files(const Staging &s, bool of_pool)
{
	std::vector<File> out;
	int fd = openat(s.place.huge, ".", O_RDONLY | O_DIRECTORY);
	DIR *d = fdopendir(fd);
	while (dirent *e = readdir(d)) {
		struct stat st;
		std::string name = e->d_name;
		bool ready = name.rfind("blank.", 0) == 0;
		if (name[0] != '.' && name != "ballast" && ready == of_pool &&
		    !fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode))
			out.push_back({name, (uint64_t)st.st_size, (uint64_t)st.st_blocks * 512});
	}
	closedir(d);
	return out;
}

unsigned ready(const Staging &s, uint64_t size)
{
	unsigned n = 0;
	for (auto &f : files(s, true))
		n += f.size == 0 && f.held == size;
	return n;
}

template <typename F> bool until(F f)
{
	for (int i = 0; i < 3000; i++, usleep(10000))
		if (f())
			return true;
	return false;
}

Options with_pool()
{
	Options o;
	o.budget = 256 * mib;
	o.pool = 192 * mib;
	return o;
}

// One shard, durable and removed again, as a rotation leaves it: its pages are kept.
void shard(Staging &s, uint64_t size, const std::string &name)
{
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, name}, size);
	ASSERT_TRUE(f && write_all(f, std::string(size, 'x')));
	ASSERT_EQ(staged_allocate(f), 0);
	int64_t seq = seal(s, f, node, {{root, name}}, true);
	ASSERT_GT(seq, 0);
	ASSERT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
	staged_unref(f);
}

bool is_ready(Staging &s)
{
	return until([&] {
		auto st = s.stats();
		return st.pool == st.pool_target && ready(s, 20 * mib) == 1;
	});
}

TEST(Pool, ASizeThatComesAgainIsReady)
{
	Ground ground;
	Staging s(ground, with_pool());
	ASSERT_EQ(s.err, 0);
	shard(s, 20 * mib, "a");
	ASSERT_TRUE(is_ready(s));

	staged *f = create(s, staging_new_id(s), {root, "b"}, 20 * mib);
	ASSERT_TRUE(f);
	EXPECT_EQ(ready(s, 20 * mib), 0u);
	auto now = files(s, false);
	ASSERT_EQ(now.size(), 1u);
	EXPECT_EQ(now[0].held, 20 * mib);
	EXPECT_EQ(info(f).size, 0u);
	EXPECT_EQ(info(f).blocks, 0u);
	EXPECT_LT(time(nullptr) - info(f).mtime.tv_sec, 5);

	// nothing of what its pages held before shows
	ASSERT_EQ(staged_resize(f, 20 * mib), 0);
	ASSERT_EQ(staged_write(f, "y", 1, 10 * mib + 5), 1);
	std::string bytes(20 * mib, 'z');
	ASSERT_EQ(staged_read(f, bytes.data(), bytes.size(), 0), (ssize_t)bytes.size());
	EXPECT_EQ(bytes[10 * mib + 5], 'y');
	bytes[10 * mib + 5] = 0;
	EXPECT_EQ(bytes.find_first_not_of('\0'), std::string::npos);
	staged_unref(f);
}

TEST(Pool, TooSmallOrMuchTooLargeIsLeft)
{
	Ground ground;
	Staging s(ground, with_pool());
	ASSERT_EQ(s.err, 0);
	shard(s, 20 * mib, "a");
	ASSERT_TRUE(is_ready(s));
	staged *more = create(s, staging_new_id(s), {root, "b"}, 30 * mib);
	staged *less = create(s, staging_new_id(s), {root, "c"}, 8 * mib);
	ASSERT_TRUE(more && less);
	EXPECT_EQ(ready(s, 20 * mib), 1u);
	staged *close = create(s, staging_new_id(s), {root, "d"}, 19 * mib);
	ASSERT_TRUE(close);
	EXPECT_EQ(ready(s, 20 * mib), 0u);
	for (staged *f : {more, less, close})
		staged_unref(f);
}

TEST(Pool, TheNextWorkerFindsIt)
{
	Ground ground;
	{
		Staging s(ground, with_pool());
		ASSERT_EQ(s.err, 0);
		shard(s, 20 * mib, "a");
		ASSERT_TRUE(is_ready(s));
	}
	Options o = with_pool();
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(ready(s, 20 * mib), 1u);
	EXPECT_GE(s.stats().pool, 20 * mib);
	staged *f = create(s, staging_new_id(s), {root, "b"}, 20 * mib);
	ASSERT_TRUE(f);
	EXPECT_EQ(ready(s, 20 * mib), 0u);
	staged_unref(f);
}

TEST(Pool, GivesItsMemoryUpWhenOthersNeedIt)
{
	Ground ground;
	Staging s(ground, with_pool());
	ASSERT_EQ(s.err, 0);
	shard(s, 20 * mib, "a");
	ASSERT_TRUE(is_ready(s));
	staged *f = create(s, staging_new_id(s), {root, "b"}, 250 * mib);
	ASSERT_TRUE(f);
	ASSERT_FALSE(staged_spilled(f));
	EXPECT_TRUE(until([&] { return s.stats().used + s.stats().pool <= 256 * mib; }));
	EXPECT_EQ(ready(s, 20 * mib), 0u);
	staged_unref(f);
}

void machine_has(const std::string &meminfo, uint64_t available)
{
	std::ofstream(meminfo + ".new") << "MemTotal:       16777216 kB\nMemFree:        1 kB\nMemAvailable:   "
					<< (available >> 10) << " kB\n";
	ASSERT_EQ(rename((meminfo + ".new").c_str(), meminfo.c_str()), 0);
}

// The pool, then the durable files that are only a cache. What is not durable stays.
TEST(Pool, GoesBackWhileTheMachineHasLittle)
{
	Ground ground;
	Options o = with_pool();
	o.meminfo = ground.run() + "/meminfo";
	machine_has(o.meminfo, 8192 * mib);
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	shard(s, 20 * mib, "a");
	ASSERT_TRUE(until([&] { return s.stats().pool > 100 * mib; }));
	EXPECT_EQ(s.notes_with("memory available"), 0u);
	staged *f = create(s, staging_new_id(s), {root, "b"}, 2 * mib);
	std::string bytes(2 * mib, 'b'), got = bytes;
	ASSERT_TRUE(f && write_all(f, bytes));

	machine_has(o.meminfo, 500 * mib);
	EXPECT_TRUE(until([&] { return s.stats().pool == 0 && s.stats().used <= 20 * mib; }));
	/* told a moment after the pages are given back */
	EXPECT_TRUE(until([&] { return s.notes_with("the machine has only 500 MiB of memory available") == 1; }));
	EXPECT_EQ(read_file(ground.store() + "/a"), std::string(20 * mib, 'x'));
	ASSERT_EQ(staged_read(f, got.data(), got.size(), 0), (ssize_t)got.size());
	EXPECT_SAME(got, bytes);

	machine_has(o.meminfo, 1100 * mib); // not short, and not enough to grow
	usleep(500000);
	EXPECT_EQ(s.stats().pool, 0u);
	staged_unref(f);
	machine_has(o.meminfo, 8192 * mib);
	EXPECT_TRUE(until([&] { return s.stats().pool > 100 * mib; }));
}

TEST(Pool, NoneIsLeftAtTheEnd)
{
	Ground ground;
	Staging s(ground, with_pool());
	ASSERT_EQ(s.err, 0);
	shard(s, 20 * mib, "a");
	ASSERT_TRUE(is_ready(s));
	ASSERT_EQ(s.drain(), 0);
	staging_clear(s);
	EXPECT_TRUE(files(s, true).empty());
}

} // namespace

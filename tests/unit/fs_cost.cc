// SPDX-License-Identifier: MIT
//
// What a commit costs a shared store (fs/tree/commit.c): calls by count, and a simulation: the shards of 1,000 hosts, and a
// store that takes half a millisecond for each call. Calls that are made one after the other add up; so the time is that of
// the longest chain of calls, however busy this machine is.
#include <dlfcn.h>
#include <sys/statvfs.h>

#include "tests/unit/fs_client.hh"

namespace
{

const unsigned hosts = 1000, per_host = 8, shards = hosts * per_host;
const double call_s = 0.0005;

// As pickle writes it (tests/unit/formats_dcp_files.cc).
std::string word(const std::string &s) { return "\x8c" + std::string(1, (char)s.size()) + s + "\x94"; }
std::string number(uint64_t n) { return "\x8a\x08" + std::string((const char *)&n, 8); }
std::string object(const char *name, const std::string &state)
{
	return std::string("h\0", 2) + word(name) + "\x93)\x81}(" + state + "ub";
}
std::string shard(unsigned i) { return "__" + std::to_string(i / per_host) + "_" + std::to_string(i % per_host) + ".distcp"; }
std::string metadata(unsigned n)
{
	std::string storage;
	for (unsigned i = 0; i < n; i++)
		storage += object("MetadataIndex", word("fqn") + word("t" + std::to_string(i)) + word("offset") + "N") +
			   object("_StorageInfo", word("relative_path") + word(shard(i)) + word("offset") + number(0) +
							  word("length") + number(5));
	return "\x80\x04" + word("torch.distributed.checkpoint.metadata") + word("Metadata") + "\x93)\x81}(" +
	       word("state_dict_metadata") + "}" + word("storage_data") + "}(" + storage + "uub.";
}

// A thread waits for its own calls only.
std::atomic<unsigned> calls, longest;
std::atomic<bool> slow;
thread_local unsigned chain;
std::atomic<unsigned> looks;

} // namespace

// How often the free space is asked for depends on time.
extern "C" int fstatvfs(int fd, struct statvfs *v)
{
	static auto real = (int (*)(int, struct statvfs *))dlsym(RTLD_NEXT, "fstatvfs64");
	looks++;
	return real(fd, v);
}

namespace
{

void on_call(void *)
{
	calls++;
	if (!slow)
		return;
	unsigned mine = ++chain, most = longest;
	while (mine > most && !longest.compare_exchange_weak(most, mine))
		;
	usleep((useconds_t)(call_s * 1e6));
}

void write_file(const std::string &path, const std::string &text)
{
	int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
	EXPECT_EQ(write(fd, text.data(), text.size()), (ssize_t)text.size());
	close(fd);
}

class Cost : public ::testing::Test
{
protected:
	void SetUp() override
	{
		w = std::make_unique<Worker>(ground, true, true);
		ASSERT_EQ(w->t.err, 0);
		if (!io_store_has_xattr(w->t.store))
			GTEST_SKIP() << "no xattrs here";
		other = std::make_unique<Store>(w->t.engine, ground.store(), false, "another");
		ASSERT_EQ(other->err, 0);
		shim_meet_others(w->fs);
		ASSERT_EQ(w->k.mkdir(STAGING_ROOT_DIR, "ckpt", 0755), 0);
		dir = w->k.id;
		ASSERT_NE(w->k.put(dir, shard(0), "bytes"), 0u);
		ASSERT_EQ(w->drain(), 0);
		char v[256];
		ssize_t n = getxattr((at() + shard(0)).c_str(), "user.cairn.ino", v, sizeof(v));
		ASSERT_GT(n, 0);
		std::string mark(v, (size_t)n);	// INO 0 KEY HOST SIZE
		size_t from = mark.find(' ') + 3;
		key = mark.substr(from, mark.find(' ', from) - from);
		shim_parsers_start(w->fs);
	}
	void TearDown() override
	{
		other.reset();
		if (w)
			shim_parsers_end(w->fs);
	}
	std::string at() { return ground.store() + "/ckpt/"; }
	// As another host publishes it.
	void publish(unsigned i)
	{
		std::string mark = "7 0 " + key + " node" + std::to_string(i / per_host) + " 5", path = at() + shard(i);
		write_file(path, "bytes");
		ASSERT_EQ(setxattr(path.c_str(), "user.cairn.ino", mark.data(), mark.size(), 0), 0);
	}
	void list(unsigned n)
	{
		std::string mark = "7 0 " + key + " " + io_store_host(w->t.store), path = ground.store() + "/list";
		write_file(path, metadata(n));
		ASSERT_EQ(setxattr(path.c_str(), "user.cairn.ino", mark.data(), mark.size(), 0), 0);
	}
	// Is something missing? Counts the calls.
	int ask()
	{
		char what[200] = "";
		calls = longest = 0;
		chain = 0;
		shim_on_call(on_call, nullptr);
		int missing = shim_commit_missing(w->fs, 1, dir, at().c_str(), (ground.store() + "/list").c_str(), what,
						  sizeof(what));
		shim_on_call(nullptr, nullptr);
		why = what;
		return missing;
	}

	Ground ground;
	std::unique_ptr<Worker> w;
	std::unique_ptr<Store> other;	// or nobody asks
	uint64_t dir = 0;
	std::string key, why;
};

// Its mark, which says its size; and a few for the checkpoint: a listing, its count, that of the save, what is synced.
TEST_F(Cost, OneCallAShard)
{
	const unsigned n = 64;
	for (unsigned i = 1; i < n; i++)
		publish(i);
	list(n);
	EXPECT_EQ(ask(), STAGING_WHOLE) << why;
	EXPECT_GE(calls, n);
	EXPECT_LE(calls, n + 10);
}

TEST_F(Cost, OneCallEachTimeWhileOneIsMissing)
{
	const unsigned n = 64;
	for (unsigned i = 1; i < n; i++)
		if (i != 40)
			publish(i);
	list(n);
	ASSERT_EQ(ask(), STAGING_MISSING);
	EXPECT_EQ(why, shard(40) + " is not in the store");
	EXPECT_LE(calls, 3u) << "a listing";
	for (int again = 0; again < 10; again++) {
		ASSERT_EQ(ask(), STAGING_MISSING);
		EXPECT_EQ(calls, 1u);
	}
	publish(40);
	EXPECT_EQ(ask(), STAGING_WHOLE) << why;
	EXPECT_LE(calls, n + 10);
}

// They come one after the other, and it looks after each: what is missing behind the next one is seldom asked for.
TEST_F(Cost, FewMoreWhenTheyComeOneByOne)
{
	const unsigned n = 64;
	unsigned sizes = 0;
	list(n);
	for (unsigned i = 1; i < n; i++) {
		ASSERT_EQ(ask(), STAGING_MISSING);
		EXPECT_EQ(why, shard(i) + " is not in the store");
		sizes += calls;
		publish(i);
	}
	EXPECT_LE(sizes, 3 * n);
	EXPECT_EQ(ask(), STAGING_WHOLE) << why;
}

TEST_F(Cost, AThousandHostsInASecond)
{
	for (unsigned i = 1; i + 1 < shards; i++)
		publish(i);
	list(shards);
	ASSERT_EQ(ask(), STAGING_MISSING);
	publish(shards - 1);
	slow = true;
	EXPECT_EQ(ask(), STAGING_WHOLE) << why;
	slow = false;
	std::cout << shards << " shards, the last one was awaited: " << calls << " calls, at most " << longest
		  << " one after the other: " << longest * call_s << " s at " << call_s * 1e3 << " ms each\n";
	EXPECT_LE(longest * call_s, 1.0);
	EXPECT_LE(calls, shards + 16);
	// all of them at once, as when the .metadata comes last
	slow = true;
	EXPECT_EQ(ask(), STAGING_WHOLE) << why;
	slow = false;
	std::cout << "all were there: " << calls << " calls, at most " << longest << " one after the other: " << longest * call_s
		  << " s\n";
	EXPECT_LE(longest * call_s, 1.0);
	EXPECT_LE(calls, shards + 16);
}

// Of a host that knows of others: it asks how many saves were committed, and nothing else; its mark is in an xattr that
// the file has anyway. So each shard costs two calls more than alone, with that of who commits.
TEST_F(Cost, AHostAsksOnceMoreForEachSyncedShard)
{
	const unsigned n = 8;
	unsigned cost[2];
	for (int with = 0; with < 2; with++) {
		w.reset();
		w = std::make_unique<Worker>(ground, true, true);
		ASSERT_EQ(w->t.err, 0);
		if (with)
			shim_meet_others(w->fs);
		ASSERT_EQ(w->k.lookup(STAGING_ROOT_DIR, "ckpt"), 0);
		dir = w->k.id;
		for (unsigned i = 0; i <= n; i++) {
			if (i == 1) { // the first also opens its directory
				calls = looks = 0;
				shim_on_call(on_call, nullptr);
			}
			File f;
			ASSERT_EQ(w->k.create(dir, shard(8 + 16 * (unsigned)with + i), &f), 0);
			ASSERT_EQ(w->k.write(f, "bytes"), 0);
			ASSERT_EQ(w->k.fsync(f), 0);
			ASSERT_EQ(w->k.close(f), 0);
		}
		ASSERT_EQ(w->drain(), 0);
		shim_on_call(nullptr, nullptr);
		cost[with] = calls - looks;
	}
	std::cout << "calls for " << n << " synced shards: " << cost[0] << " alone, " << cost[1] << " as one of several\n";
	EXPECT_LE(cost[1], cost[0] + n + n / 2) << "what depends on time is less than that";
}

} // namespace

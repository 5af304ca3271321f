// SPDX-License-Identifier: MIT
// timeout: 300
//
// A large file is persisted while it is written. What is published is what was sealed, whatever the writer does to the
// bytes that are there already; and they are not written twice. By counts and contents, never by time.
#include <sys/vfs.h>
#include <linux/magic.h>
#include <pthread.h>

#include <condition_variable>
#include <mutex>

#include "../api/staging_fixture.hh"
#include "engine_shim.h"

namespace
{

constexpr uint64_t root = STAGING_ROOT_DIR;
constexpr uint64_t MIB = 1u << 20;
constexpr uint64_t size = 72 * MIB;
constexpr uint64_t behind = 32 * MIB;
constexpr uint64_t chunk = 8 * MIB;
constexpr uint64_t most = (size - behind) / chunk * chunk;	// all that may be written early

// What the thread writes, seen before it does; and held up.
class Early {
public:
	explicit Early(Staging &s) { shim_engine(s.engine.e, seen, this); }
	void hold_up_write(unsigned n)
	{
		std::lock_guard<std::mutex> hold(lock_);
		at_ = n;
	}
	void await_held()
	{
		std::unique_lock<std::mutex> hold(lock_);
		changed_.wait(hold, [this] { return held_; });
	}
	void let_go()
	{
		std::lock_guard<std::mutex> hold(lock_);
		at_ = 0;
		held_ = false;
		changed_.notify_all();
	}
	void fail_write(unsigned n, int err)
	{
		std::lock_guard<std::mutex> hold(lock_);
		fails_ = n;
		err_ = err;
	}
	unsigned writes()
	{
		std::lock_guard<std::mutex> hold(lock_);
		return writes_;
	}

private:
	static int seen(void *ctx, shim_kind kind, int)
	{
		auto self = static_cast<Early *>(ctx);
		char name[16] = "";
		pthread_getname_np(pthread_self(), name, sizeof(name));
		if (kind != SHIM_WRITE || strcmp(name, "cairn-early"))
			return 0;
		std::unique_lock<std::mutex> hold(self->lock_);
		if (++self->writes_ == self->fails_)
			return self->err_;
		if (self->writes_ == self->at_) {
			self->held_ = true;
			self->changed_.notify_all();
			self->changed_.wait(hold, [self] { return !self->held_; });
		}
		return 0;
	}
	std::mutex lock_;
	std::condition_variable changed_;
	unsigned at_ = 0, writes_ = 0, fails_ = 0;
	int err_ = 0;
	bool held_ = false;
};

// Seconds of a processor that the thread of that name uses during the call: work, not time.
double processor_time(const std::string &name, const std::function<void()> &call)
{
	auto ran = [&] {
		double sum = 0;
		for (auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
			std::string comm = read_file(task.path() / "comm");
			std::string stat = read_file(task.path() / "schedstat");
			if (comm == name + "\n")
				sum += (double)std::stoull(stat) / 1e9;
		}
		return sum;
	};
	double before = ran();
	call();
	return ran() - before;
}

class EarlyTest : public testing::Test {
protected:
	void SetUp() override
	{
		struct statfs fs;
		ASSERT_EQ(statfs(ground.store().c_str(), &fs), 0);
		if (fs.f_type == TMPFS_MAGIC)
			GTEST_SKIP() << "the store has no O_DIRECT";
	}
	static Options roomy()
	{
		Options o;
		o.budget = 1ull << 30;
		return o;
	}
	void open_file(Staging &s)
	{
		node = staging_new_id(s);
		f = create(s, node, {root, "f"}, 0);
		ASSERT_NE(f, nullptr);
		ASSERT_EQ(staged_set_backing(f), 0);
	}
	void write(uint64_t from, uint64_t len, uint64_t seed)
	{
		static const std::string whole = pattern(size, 1);
		const std::string &bytes = len == size && seed == 1 ? whole : pattern(len, seed);
		ASSERT_TRUE(write_all(f, bytes, from));
		if (want.size() < from + len)
			want.resize(from + len);
		want.replace(from, len, bytes);
	}
	void open_and_write(Staging &s)
	{
		open_file(s);
		write(0, size, 1);
	}
	void await_early(Staging &s, uint64_t bytes = most)
	{
		ASSERT_TRUE(until([&] { return s.stats().bytes_early >= bytes; })) << s.stats().bytes_early;
	}
	void close_file(Staging &s)
	{
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_GT(seal(s, f, node, {{root, "f"}}, true), 0);
	}
	void expect_in_the_store(Staging &s)
	{
		ASSERT_EQ(s.drain(), 0);
		std::string got = read_file(ground.store() + "/f");
		ASSERT_EQ(got.size(), want.size());
		EXPECT_SAME(got, want);
		char said[IO_CHECKSUM_LEN] = "", is[IO_CHECKSUM_LEN];
		Fd fd(open((ground.store() + "/f").c_str(), O_RDONLY | O_CLOEXEC));
		ASSERT_EQ(io_sum_file(fd.get(), is), 0);
		ASSERT_GT(io_get_xattr(s.store, fd.get(), nullptr, "user.cairn.checksum", said, sizeof(said) - 1), 0);
		EXPECT_STREQ(said, is);
		staged_unref(f);
		f = nullptr;
		EXPECT_TRUE(until([&] { return unpublished() == 0; }));
	}
	size_t unpublished()
	{
		size_t n = 0;
		for (auto &host : std::filesystem::directory_iterator(ground.store() + "/.cairn"))
			if (std::filesystem::exists(host.path() / "tmp"))
				for (auto &e : std::filesystem::directory_iterator(host.path() / "tmp"))
					n += e.path().filename() != "reserve";
		return n;
	}
	Ground ground;
	uint64_t node = 0;
	staged *f = nullptr;
	std::string want;
};

TEST_F(EarlyTest, WhatIsThereIsNotWrittenAgain)
{
	Staging s(ground, roomy());
	ASSERT_EQ(s.err, 0);
	open_and_write(s);
	await_early(s);
	close_file(s);
	expect_in_the_store(s);
	EXPECT_EQ(s.engine.counts().write_bytes, size);
	EXPECT_EQ(s.stats().bytes_early, most);
}

TEST_F(EarlyTest, WhatChangedIsWrittenAgainAndNothingElse)
{
	Staging s(ground, roomy());
	ASSERT_EQ(s.err, 0);
	open_and_write(s);
	await_early(s);
	write(5 * MIB + 17, 3, 2);
	write(chunk * 2 - 1, 2, 3);	// of two chunks
	write(most - 1, 1, 4);
	close_file(s);
	expect_in_the_store(s);
	EXPECT_EQ(s.engine.counts().write_bytes, size + 4 * chunk);
}

TEST_F(EarlyTest, ASealWaitsForTheChunkThatIsBeingWritten)
{
	Staging s(ground, roomy());
	ASSERT_EQ(s.err, 0);
	Early early(s);
	early.hold_up_write(3);
	open_and_write(s);
	early.await_held();
	// the third chunk's old bytes are on their way
	write(2 * chunk + 100, 1000, 2);
	close_file(s);
	EXPECT_EQ(s.drain(300), -ETIMEDOUT);
	early.let_go();
	expect_in_the_store(s);
	EXPECT_EQ(early.writes(), 3u);
}

// Bytes that change and change back while a chunk is written: it was written from a copy.
TEST_F(EarlyTest, AChunkIsWrittenFromACopy)
{
	Staging s(ground, roomy());
	ASSERT_EQ(s.err, 0);
	Early early(s);
	early.hold_up_write(2);
	open_and_write(s);
	early.await_held();
	std::string was = want.substr(chunk, 4096);
	write(chunk, 4096, 9);
	early.let_go();
	await_early(s);
	ASSERT_TRUE(write_all(f, was, chunk));
	want.replace(chunk, was.size(), was);
	close_file(s);
	expect_in_the_store(s);
	EXPECT_EQ(s.engine.counts().write_bytes, size);
}

TEST_F(EarlyTest, AFileCutBeginsAnew)
{
	Staging s(ground, roomy());
	ASSERT_EQ(s.err, 0);
	open_and_write(s);
	await_early(s);
	ASSERT_EQ(staged_resize(f, 10 * MIB + 123), 0);
	want.resize(10 * MIB + 123);
	close_file(s);
	expect_in_the_store(s);
	struct stat st;
	ASSERT_EQ(stat((ground.store() + "/f").c_str(), &st), 0);
	EXPECT_LT((uint64_t)st.st_blocks * 512, 11 * MIB) << "blocks behind its end";
}

TEST_F(EarlyTest, AFileThatGetsHolesHasThemInTheStore)
{
	Staging s(ground, roomy());
	ASSERT_EQ(s.err, 0);
	open_and_write(s);
	await_early(s);
	ASSERT_EQ(staged_resize(f, 4096), 0);
	ASSERT_EQ(staged_resize(f, 100 * MIB), 0);
	want.resize(4096);
	want.resize(100 * MIB);
	close_file(s);
	expect_in_the_store(s);
	struct stat st;
	ASSERT_EQ(stat((ground.store() + "/f").c_str(), &st), 0);
	EXPECT_LT((uint64_t)st.st_blocks * 512, 50 * MIB);
}

// Memory is allocated ahead of the writer, so that the close cannot count the file's holes by its blocks.
TEST_F(EarlyTest, AHoleThatIsPunchedIsAHole)
{
	for (bool closed : {true, false}) {
		Staging s(ground, roomy());
		ASSERT_EQ(s.err, 0);
		want.clear();
		open_and_write(s);
		await_early(s);
		ASSERT_EQ(staged_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * MIB, 20 * MIB), 0);
		want.replace(4 * MIB, 20 * MIB, std::string(20 * MIB, '\0'));
		if (!closed) {
			ASSERT_EQ(staged_allocate(f), 0);
			int64_t seq = seal(s, f, node, {{root, "f"}}, false);
			ASSERT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
			EXPECT_SAME(read_file(ground.store() + "/f"), want);
		}
		close_file(s);
		expect_in_the_store(s);
	}
}

TEST_F(EarlyTest, AnFsyncInBetweenAndWhatComesAfterIt)
{
	Staging s(ground, roomy());
	ASSERT_EQ(s.err, 0);
	open_and_write(s);
	await_early(s);
	ASSERT_EQ(staged_allocate(f), 0);
	int64_t seq = seal(s, f, node, {{root, "f"}}, false);
	ASSERT_GT(seq, 0);
	ASSERT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
	EXPECT_SAME(read_file(ground.store() + "/f"), want);
	write(3 * MIB, 100, 5);
	write(size, 20 * MIB, 6);
	close_file(s);
	expect_in_the_store(s);
}

TEST_F(EarlyTest, AFailedWriteIsNotTheFilesFailure)
{
	for (int err : {-EIO, -ENOSPC}) {
		Staging s(ground, roomy());
		ASSERT_EQ(s.err, 0);
		Early early(s);
		early.fail_write(4, err);
		want.clear();
		open_and_write(s);
		ASSERT_TRUE(until([&] { return early.writes() == 4; }));
		EXPECT_LT(processor_time("cairn-early", [] { usleep(300000); }), 0.1) << "it tries for ever";
		close_file(s);
		expect_in_the_store(s);
		EXPECT_EQ(early.writes(), 4u) << "it goes on after an error";
	}
}

// Any operation of the store fails, once, whoever makes it.
class EarlyFault : public EarlyTest, public testing::WithParamInterface<const char *> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EarlyFault, testing::Values("eio", "lostsync"));

TEST_P(EarlyFault, AnyOneOperationFails)
{
	bool syncs = !strcmp(GetParam(), "lostsync");
	unsigned faults = 1, n = 1;
	for (; faults && n < 200 && !HasFailure(); n += syncs ? 1 : one_of()) {
		std::string fault = "3:@" + std::to_string(n) + ":" + GetParam();
		SCOPED_TRACE(fault);
		Ground fresh;
		Options o = roomy();
		o.fault = fault.c_str();
		o.store = ground.store();
		Staging s(fresh, o);
		if (s.err)
			continue;
		want.clear();
		open_and_write(s);
		ASSERT_TRUE(until([&] { return s.stats().bytes_early >= most || s.engine.counts().faults; }));
		int err = staged_allocate(f);
		ASSERT_EQ(err && staged_allocate(f), 0);
		ASSERT_GT(seal(s, f, node, {{root, "f"}}, true), 0);
		expect_in_the_store(s);
		faults = (unsigned)s.engine.counts().faults;
	}
	EXPECT_GT(n, syncs ? 2u : 10u);
}

TEST_F(EarlyTest, ARemovedFileLeavesNothing)
{
	Staging s(ground, roomy());
	ASSERT_EQ(s.err, 0);
	open_and_write(s);
	await_early(s);
	EXPECT_EQ(unpublished(), 1u);
	staged_unref(f);
	EXPECT_TRUE(until([&] { return unpublished() == 0; }));
}

// All processes are killed; the next start has the bytes from staging.
TEST_F(EarlyTest, KilledMeanwhile)
{
	{
		Staging s(ground, roomy());
		ASSERT_EQ(s.err, 0);
		open_and_write(s);
		await_early(s, most / 2);
		ASSERT_EQ(log_flushed(s, f, node, "f"), 0);	// its close was answered
	}
	Staging s(ground, roomy());
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/f"), want);
	EXPECT_TRUE(until([&] { return unpublished() == 0; }));
}

// Sealed, and killed before it is persisted.
TEST_F(EarlyTest, KilledAfterItsSeal)
{
	{
		Staging s(ground, roomy());
		ASSERT_EQ(s.err, 0);
		Early early(s);
		early.hold_up_write(4);
		open_and_write(s);
		early.await_held();
		close_file(s);
		early.fail_write(4, -EIO);
		early.let_go();
	}
	Staging s(ground, roomy());
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/f"), want);
	EXPECT_TRUE(until([&] { return unpublished() == 0; }));
}

} // namespace

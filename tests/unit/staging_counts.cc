// SPDX-License-Identifier: MIT
//
// Who takes and leaves a staged file is counted under staging's lock. A count without it goes wrong in a race that a
// test meets once in a while; so here somebody else has the lock, and the call must wait. And which thread does what may
// take long.
#include <chrono>
#include <sys/syscall.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "tests/api/staging_fixture.hh"
#include "staging_shim.h"

namespace
{

bool sleeps(pid_t tid)
{
	std::ifstream in("/proc/self/task/" + std::to_string(tid) + "/stat");
	std::string line;
	std::getline(in, line);
	size_t name = line.rfind(')');
	return name != std::string::npos && line.size() > name + 2 && line[name + 2] == 'S';
}

class Counts : public testing::Test {
protected:
	Counts() : s(ground, stopped()), f(s.err ? nullptr : create(s, staging_new_id(s), {STAGING_ROOT_DIR, "f"}, 0)) {}
	static Options stopped()
	{
		Options o;
		o.start = false;	// nobody else counts
		return o;
	}
	void SetUp() override
	{
		ASSERT_EQ(s.err, 0);
		ASSERT_NE(f, nullptr);
	}
	void TearDown() override
	{
		if (f)
			staged_unref(f);
	}
	shim_counts counts()
	{
		pthread_mutex_lock(shim_staging_lock(s));
		shim_counts c = shim_staged_counts(f);
		pthread_mutex_unlock(shim_staging_lock(s));
		return c;
	}
	// staged_await() waits until no memory is allocated ahead of f; from here on none is.
	void expect_awaited()
	{
		std::atomic<pid_t> tid = 0;
		std::atomic<bool> done = false;
		std::thread t([&] {
			tid = static_cast<pid_t>(syscall(SYS_gettid));
			staged_await(f);
			done = true;
		});
		while (!done && !(tid && sleeps(tid)))
			std::this_thread::yield();
		EXPECT_FALSE(done) << "staged_await does not wait for it";
		shim_allocates_ahead(f, false);
		t.join();
	}
	// Calls it while the lock is taken; returns when it has ended, with the lock free.
	void must_wait(const char *name, const std::function<void()> &call)
	{
		std::atomic<pid_t> tid = 0;
		std::atomic<bool> done = false;
		pthread_mutex_lock(shim_staging_lock(s));
		shim_counts before = shim_staged_counts(f);
		std::thread t([&] {
			tid = static_cast<pid_t>(syscall(SYS_gettid));
			call();
			done = true;
		});
		while (!done && !(tid && sleeps(tid)))
			std::this_thread::yield();
		shim_counts held = shim_staged_counts(f);
		EXPECT_FALSE(done) << name << " does not ask for the lock";
		EXPECT_EQ(held.refs, before.refs) << name;
		EXPECT_EQ(held.users, before.users) << name;
		pthread_mutex_unlock(shim_staging_lock(s));
		t.join();
	}
	void expect(unsigned refs, unsigned users)
	{
		shim_counts c = counts();
		EXPECT_EQ(c.refs, refs);
		EXPECT_EQ(c.users, users);
	}

	Ground ground;
	Staging s;
	staged *f;
};

TEST_F(Counts, OfReferencesAreChangedUnderTheLock)
{
	unsigned refs = counts().refs;
	must_wait("staged_ref", [this] { staged_ref(f); });
	expect(refs + 1, 0);
	must_wait("staged_unref", [this] { staged_unref(f); });
	expect(refs, 0);
}

TEST_F(Counts, OfOpensAreChangedUnderTheLock)
{
	unsigned refs = counts().refs;
	int fd = -1;
	must_wait("staged_use", [&] { EXPECT_EQ(staged_use(f, &fd), 0); });
	EXPECT_GE(fd, 0);
	expect(refs, 1);
	must_wait("staged_unuse", [this] { staged_unuse(f); });
	expect(refs, 0);
}

// The caller has the lock of its tree: it is told, and waits without.
TEST_F(Counts, WhatMemoryAheadOfAFileDelaysIsRefusedUntilThatIsAwaited)
{
	const timespec times[2] = {{1000000001, 5}, {1000000002, 6}};
	rec r = {};
	shim_allocates_ahead(f, true);
	EXPECT_EQ(staging_seal(s, f, &r, true), -EBUSY);
	EXPECT_EQ(staged_unchanged(f), -EBUSY);
	EXPECT_EQ(staged_end_ahead(f), -EBUSY);
	EXPECT_EQ(staged_set_times(f, times), -EBUSY);

	expect_awaited();
	EXPECT_EQ(staged_end_ahead(f), 0);
	EXPECT_EQ(staged_set_times(f, times), 0);
	EXPECT_GT(seal(s, f, staging_new_id(s), {{STAGING_ROOT_DIR, "f"}}, true), 0);
}

// It changes the file's times: what is fsynced before would look changed at the close, and be made a version once more.
TEST_F(Counts, AnFsyncIsNotSealedWhileMemoryAheadIsAllocated)
{
	uint64_t node = staging_new_id(s);
	ASSERT_TRUE(write_all(f, "bytes"));
	shim_allocates_ahead(f, true);
	rec r = {};
	EXPECT_EQ(staging_seal(s, f, &r, false), -EBUSY);

	expect_awaited();
	EXPECT_GT(seal(s, f, node, {{STAGING_ROOT_DIR, "f"}}, false), 0);
	EXPECT_EQ(shim_ahead_size(f), 5u) << "more would be allocated for what is in the version";
	EXPECT_FALSE(staged_changed(f));
}

class Freed : public ::testing::Test {
protected:
	void SetUp() override
	{
		ASSERT_EQ(s.err, 0);
		if (!io_store_frees_at_close(s.store))
			GTEST_SKIP() << "the store's filesystem may rename open files that lose their names";
	}

	void save(const std::string &text)
	{
		uint64_t node = staging_new_id(s);
		staged *f = create(s, node, {STAGING_ROOT_DIR, "f"}, 0);
		ASSERT_NE(f, nullptr);
		ASSERT_TRUE(write_all(f, text, 0));
		ASSERT_EQ(staged_allocate(f), 0);
		int64_t seq = seal(s, f, node, {{STAGING_ROOT_DIR, "f"}}, true);
		ASSERT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
		staged_unref(f);
	}

	void remove()
	{
		rec r = {};
		r.type = REC_UNLINK;
		r.node2 = staging_new_id(s);
		r.dir = STAGING_ROOT_DIR;
		r.name = "f";
		ASSERT_EQ(staging_log(s, &r), 0);
		ASSERT_EQ(Durable(s, r.seq).wait(), 0);
	}

	static void freed(unsigned n)
	{
		EXPECT_TRUE(until([&] { return shim_closes_of_thread() == n; }));
		EXPECT_EQ(shim_closes_of_others(), 0u);
	}

	Ground ground;
	Staging s{ground};
};

// The last close of a file without a name frees its blocks, which may take long: publishing does not wait for it.
TEST_F(Freed, ReplacedAndRemovedFilesAreFreedByTheTrashThread)
{
	save("first");
	shim_watch_closes("cairn-trash");
	save("second");
	freed(1);
	remove();
	freed(2);
	shim_watch_closes(nullptr);
}

// Nor does a close that allocates blocks, on a disk that discards those that are freed: while another file is written they
// are kept, if space is plentiful.
TEST_F(Freed, NotWhileAnotherFileIsWritten)
{
	const uint64_t plenty = 33ull << 30;
	struct statvfs v;
	ASSERT_EQ(io_store_statvfs(s.store, &v), 0);
	save("first");
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {STAGING_ROOT_DIR, "g"}, 0);
	ASSERT_NE(f, nullptr);
	auto begun = std::chrono::steady_clock::now();
	shim_watch_closes("cairn-trash");
	remove();
	if (v.f_bavail * v.f_frsize >= plenty) {
		std::this_thread::sleep_for(std::chrono::milliseconds(300));
		unsigned early = shim_closes_of_thread();
		bool patient = std::chrono::steady_clock::now() - begun < std::chrono::seconds(10);
		EXPECT_TRUE(!early || !patient) << early;
		EXPECT_TRUE(shim_trash_wait(s)); // somebody needs the space
	}
	freed(1);
	int64_t seq = seal(s, f, node, {{STAGING_ROOT_DIR, "g"}}, true);
	ASSERT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
	staged_unref(f);
	shim_watch_closes(nullptr);
}

// A worker that takes over counts what the last one accepted: it asks the store before it reads the log.
TEST(NextWorker, WhatWasAcceptedIsPromisedByTheNextWorkerWithoutFallocate)
{
	Mount disk{"ramfs", ""};	// has none by itself
	if (!disk.ok)
		GTEST_SKIP() << "no mount without root";
	Ground ground;
	Options o;
	o.store = disk.dir.path;
	o.start = false;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		uint64_t node = staging_new_id(s);
		staged *f = create(s, node, {STAGING_ROOT_DIR, "a"}, (2u << 20));
		ASSERT_NE(f, nullptr);
		ASSERT_EQ(write_error(f, pattern((2u << 20), 1), 0), 0);
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_GT(seal(s, f, node, {{STAGING_ROOT_DIR, "a"}}, true), 0);
		staged_unref(f);
	}
	Staging next(ground, o);
	ASSERT_EQ(next.err, 0);
	EXPECT_GE(shim_promised(next), (2u << 20));
	next.start();
	EXPECT_EQ(next.drain(), 0);
	EXPECT_EQ(next.tree()["a"].size(), (2u << 20));
	EXPECT_EQ(shim_promised(next), 0u);
}

} // namespace

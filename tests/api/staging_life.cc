// SPDX-License-Identifier: MIT
// timeout: 300
//
// The life of a staged file, through staging.h only: open, sealed, durable, evicted; what a
// snapshot holds; mappings; spilling; copies.
#include <sys/xattr.h>

#include <atomic>
#include <thread>

#include "tests/api/staging_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

class Life : public ::testing::TestWithParam<const char *>
{
protected:
	Ground ground;
	Options with(uint64_t budget = 512u << 20)
	{
		Options o;
		o.engine = GetParam();
		o.budget = budget;
		return o;
	}
};

INSTANTIATE_TEST_SUITE_P(All, Life, ::testing::Values("uring", "posix"));

std::string xattr(const std::string &path, const char *key)
{
	char buf[256];
	ssize_t n = getxattr(path.c_str(), key, buf, sizeof(buf));
	return n < 0 ? "" : std::string(buf, (size_t)n);
}

TEST_P(Life, FromOpenToEvicted)
{
	Options o = with();
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	std::string bytes = pattern(5000000, 3);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "shard"}, bytes.size());
	ASSERT_TRUE(f);
	ASSERT_TRUE(write_all(f, bytes));
	EXPECT_EQ(info(f).state, STAGED_OPEN);
	EXPECT_EQ(info(f).size, bytes.size());
	const timespec times[2] = {{1000000001, 5}, {1000000002, 123456789}};
	ASSERT_EQ(staged_set_times(f, times), 0);
	ASSERT_EQ(staged_allocate(f), 0);

	std::vector<rec_pair> pairs = {{"user.step", "17", 2}};
	int64_t seq = seal(s, f, node, {{root, "shard"}}, true, 0, pairs);
	ASSERT_GT(seq, 0);
	EXPECT_EQ(staging_last_seq(s), (uint64_t)seq);
	EXPECT_EQ(info(f).state, STAGED_SEALED);
	EXPECT_LT(staging_applied(s), (uint64_t)seq);
	EXPECT_FALSE(std::filesystem::exists(ground.store() + "/shard"));

	s.start();
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
	EXPECT_EQ(info(f).state, STAGED_DURABLE);
	EXPECT_EQ(staging_applied(s), (uint64_t)seq);
	EXPECT_EQ(staging_durable(s), (uint64_t)seq);
	std::string path = ground.store() + "/shard";
	struct stat st;
	ASSERT_EQ(stat(path.c_str(), &st), 0);
	EXPECT_SAME(read_file(path), bytes);
	EXPECT_EQ(st.st_mode & 07777u, 0640u);
	EXPECT_EQ(st.st_mtim.tv_sec, times[1].tv_sec);
	EXPECT_EQ(st.st_mtim.tv_nsec, times[1].tv_nsec); // its nanoseconds too
	if (io_store_has_xattr(s.store)) {
		char sum[IO_CHECKSUM_LEN];
		Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
		ASSERT_EQ(io_sum_file(fd.get(), sum), 0);
		EXPECT_EQ(xattr(path, "user.cairn.checksum"), sum);
		EXPECT_STREQ(info(f).checksum, sum);
		EXPECT_EQ(xattr(path, "user.cairn.ino"), std::to_string(node));
		EXPECT_EQ(xattr(path, "user.step"), "17");
	}

	// a read cache until the space is needed
	int fd;
	ASSERT_EQ(staged_use(f, &fd), 0);
	EXPECT_SAME(read_fd(fd), bytes);
	staged_unuse(f);
	staged *large = create(s, staging_new_id(s), {root, "large"}, o.budget);
	ASSERT_TRUE(large);
	EXPECT_FALSE(staged_spilled(large));
	EXPECT_EQ(info(f).state, STAGED_EVICTED);
	EXPECT_EQ(staged_use(f, &fd), -ENODATA);
	EXPECT_SAME(read_file(path), bytes);
	staged_unref(large);
	staged_unref(f);
	EXPECT_EQ(s.stats().used, 0u);
}

TEST_P(Life, EverySize)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	History h(s);
	for (size_t size : {0, 1, 4095, 4096, 4097, 262143, 262144, 262145, 2097152, 3145733})
		ASSERT_EQ(h.put("f" + std::to_string(size), pattern(size, size)), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), show(h.now()));
	EXPECT_TRUE(s.tree() == h.now());
	EXPECT_EQ(s.stats().bytes_persisted, s.stats().bytes_staged);
}

TEST_P(Life, HolesStayHoles)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s), size = 1ull << 30;
	staged *f = create(s, node, {root, "sparse"}, 1u << 20);
	std::string head = pattern(70000, 1), tail = pattern(5, 2);
	ASSERT_TRUE(write_all(f, head));
	ASSERT_TRUE(write_all(f, tail, size - 5));
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "sparse"}}, true), 0);
	ASSERT_EQ(s.drain(), 0);
	std::string path = ground.store() + "/sparse", got(70000, 0);
	struct stat st;
	ASSERT_EQ(stat(path.c_str(), &st), 0);
	EXPECT_EQ((uint64_t)st.st_size, size);
	EXPECT_LT((uint64_t)st.st_blocks * 512, 8u << 20);
	Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
	ASSERT_EQ(pread(fd.get(), got.data(), 70000, 0), 70000);
	EXPECT_SAME(got, head);
	got.resize(6);
	ASSERT_EQ(pread(fd.get(), got.data(), 6, (off_t)size - 6), 6);
	EXPECT_SAME(got, std::string(1, '\0') + tail);
	staged_unref(f);
}

TEST_P(Life, SeveralNames)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "a"}, 10);
	ASSERT_TRUE(write_all(f, "0123456789"));
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "a"}, {root, "b"}}, true), 0);
	ASSERT_EQ(s.drain(), 0);
	struct stat a, b;
	ASSERT_EQ(stat((ground.store() + "/a").c_str(), &a), 0);
	ASSERT_EQ(stat((ground.store() + "/b").c_str(), &b), 0);
	EXPECT_EQ(a.st_ino, b.st_ino);
	EXPECT_EQ(a.st_nlink, 2u);
	staged_unref(f);
}

// An fsync seals what is there; the writer goes on in the same staged file.
TEST_P(Life, SnapshotWhileTheWriterGoesOn)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "log"}, 64u << 20);
	std::string all = pattern(40u << 20, 9);
	const size_t first = 5u << 20;
	ASSERT_TRUE(write_all(f, all.substr(0, first)));
	std::atomic<bool> wrote{true};
	std::thread writer([&] { // appends, so what was there at the fsync does not change
		for (size_t at = first; at < all.size() && wrote; at += 1u << 20)
			wrote = write_all(f, all.substr(at, 1u << 20), at);
	});
	uint64_t covered = 0;
	for (int i = 0; i < 8; i++) {
		ASSERT_EQ(staged_allocate(f), 0);
		uint64_t before = info(f).size;
		int64_t seq = seal(s, f, node, {{root, "log"}}, false, i ? REC_SHADOW : 0);
		ASSERT_GT(seq, 0);
		ASSERT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
		EXPECT_EQ(info(f).state, STAGED_OPEN);
		std::string got = read_file(ground.store() + "/log");
		ASSERT_GE(got.size(), before);
		ASSERT_GE(got.size(), covered);
		ASSERT_SAME(got, all.substr(0, got.size()));
		covered = got.size();
	}
	writer.join();
	ASSERT_TRUE(wrote);
	EXPECT_TRUE(staged_changed(f) || covered == all.size());
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "log"}}, true, REC_SHADOW), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/log"), all);
	EXPECT_EQ(info(f).state, STAGED_DURABLE);
	staged_unref(f);
}

// Whoever maps, closes and goes on writing: the version takes its place at the close and its
// bytes when the mapping goes.
TEST_P(Life, MappedFileWaitsForItsLease)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	History h(s);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "mapped"}, 1u << 20);
	ASSERT_EQ(staged_resize(f, 1u << 20), 0);
	Fd fd(staged_open_rw(f));
	char *map = static_cast<char *>(
		mmap(nullptr, 1u << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
	ASSERT_NE(map, MAP_FAILED);
	fd.reset(-1);
	std::string early = pattern(1u << 20, 1), late = pattern(1u << 20, 2);
	memcpy(map, early.data(), early.size());
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "mapped"}}, true), 0);
	ASSERT_EQ(h.put("after", "small"), 0);

	// it waits for as long as it takes, and what follows waits with it
	ASSERT_TRUE(until([&] { return std::string(s.stats().waiting_mapped) == "mapped\n"; }));
	EXPECT_EQ(s.drain(100), -ETIMEDOUT);
	EXPECT_EQ(show(s.tree()), "");
	EXPECT_EQ(info(f).state, STAGED_SEALED);

	memcpy(map, late.data(), late.size());
	munmap(map, 1u << 20);
	ASSERT_EQ(s.drain(), 0);
	Tree want = h.now();
	want["mapped"] = late;
	EXPECT_TRUE(s.tree() == want) << show(s.tree());
	EXPECT_EQ(info(f).state, STAGED_DURABLE);
	EXPECT_EQ(s.stats().waiting_mapped[0], 0);
	staged_unref(f);
}

// A mapped file, closed, that is listed as waiting; the mapping.
char *mapped(Staging &s, uint64_t node, staged **out)
{
	staged *f = *out = create(s, node, {root, "mapped"}, 4096);
	if (!f || !write_all(f, pattern(4096, 1)))
		return nullptr;
	Fd fd(staged_open_rw(f));
	void *map = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
	fd.reset(-1);
	bool waits = map != MAP_FAILED && !staged_allocate(f) &&
		     seal(s, f, node, {{root, "mapped"}}, true) > 0 &&
		     until([&] { return std::string(s.stats().waiting_mapped) == "mapped\n"; });
	return waits ? static_cast<char *>(map) : nullptr;
}

// It is taken as it is: nothing waits any more, and nothing is listed.
TEST_P(Life, AMappedFileThatIsTakenIsNotListed)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	staged *f;
	char *map = mapped(s, staging_new_id(s), &f);
	ASSERT_NE(map, nullptr);
	staged_finalize(f);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(until([&] { return !s.stats().waiting_mapped[0]; })) << s.stats().waiting_mapped;
	munmap(map, 4096);
	staged_unref(f);
}

// Another writer joins it, through the daemon, and its close fails: the daemon's own descriptor is no writer's.
TEST_P(Life, AMappedFileWhoseNextCloseFailed)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	staged *f;
	char *map = mapped(s, staging_new_id(s), &f);
	ASSERT_NE(map, nullptr);
	ASSERT_EQ(staged_reopen(f), 0);
	ASSERT_EQ(staged_write(f, "more", 4, 4096), 4);
	staged_fail(f, -ENOSPC, "mapped");
	munmap(map, 4096);
	// no drain() first: it counts as an fsync, which ends the wait after five seconds
	EXPECT_TRUE(until([&] { return !s.stats().log.pending; }));
	EXPECT_EQ(s.drain(), 0);
	staged_unref(f);
}

// A mapping that stays holds up the changes of its own user, and those of others only for a while.
TEST_P(Life, MappedFileOfAnotherUser)
{
	Options o = with();
	o.mapped_ms = 50;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "mapped"}, 4096);
	ASSERT_TRUE(write_all(f, pattern(4096, 1)));
	Fd fd(staged_open_rw(f));
	void *map = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
	ASSERT_NE(map, MAP_FAILED);
	fd.reset(-1);
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "mapped"}}, true), 0);
	ASSERT_EQ(h.put("own", "small"), 0);
	usleep(300000);
	EXPECT_EQ(show(s.tree()), "") << "his own change did not wait";

	rec theirs = {};
	theirs.type = REC_MKDIR;
	theirs.node = theirs.ino = staging_new_id(s);
	theirs.dir = root;
	theirs.name = "theirs";
	theirs.mode = 0755;
	theirs.uid = geteuid() + 1;
	theirs.gid = getegid();
	ASSERT_EQ(staging_log(s, &theirs), 0);
	EXPECT_TRUE(until([&] { return !s.stats().log.pending; }));
	EXPECT_EQ(read_file(ground.store() + "/mapped"), pattern(4096, 1));
	EXPECT_EQ(access((ground.store() + "/theirs").c_str(), F_OK), 0);
	munmap(map, 4096);
	staged_unref(f);
}

// A writer joins a version that waits for a mapping, and the file loses its last name before
// that writer seals anything: the version must not wait for a seal that never comes.
TEST_P(Life, JoinedAndLetGo)
{
	for (bool released : {false, true}) {
		Staging s(ground, with());
		ASSERT_EQ(s.err, 0);
		uint64_t node = staging_new_id(s);
		staged *f = create(s, node, {root, "joined"}, 4096);
		ASSERT_TRUE(write_all(f, pattern(4096, 1)));
		Fd writer(staged_open_rw(f));
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_GT(seal(s, f, node, {{root, "joined"}}, true), 0);
		ASSERT_EQ(staged_reopen(f), 0);
		writer.reset(-1);
		EXPECT_EQ(s.drain(100), -ETIMEDOUT); // the one that joined has not closed yet
		if (released)
			staged_nameless(f);
		staged_unref(f);
		// not drain(): whoever waits for it ends the patience with mapped files
		EXPECT_TRUE(until([&] { return !s.stats().log.pending; }));
		EXPECT_EQ(read_file(ground.store() + "/joined").size(), 4096u);
		unlink((ground.store() + "/joined").c_str());
	}
}

// Who waits for a large file sees it come nearer.
TEST_P(Life, TellsHowFarItIs)
{
	const uint64_t size = 64u << 20;
	Options o = with(256u << 20);
	o.fault = "5:1:delay";
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "large"}, size);
	ASSERT_TRUE(write_all(f, pattern(size, 1)));
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "large"}}, true), 0);
	uint64_t last = 0, steps = 0;
	ASSERT_TRUE(until([&] {
		staged_info i = info(f);
		EXPECT_LE(i.written, size);
		EXPECT_GE(i.written, last);
		steps += i.written > last && i.written < size;
		last = i.written;
		return i.state == STAGED_DURABLE;
	}));
	EXPECT_EQ(last, size);
	EXPECT_GE(steps, 1u);
	staged_unref(f);
}

// Its own fsync takes a mapped file as it is; what the mapping writes later is a late version.
TEST_P(Life, FinalizedEarlyThenLate)
{
	Staging s(ground, with(8u << 20));
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "m"}, 4096);
	ASSERT_EQ(staged_resize(f, 4096), 0);
	Fd fd(staged_open_rw(f));
	char *map = static_cast<char *>(
		mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
	ASSERT_NE(map, MAP_FAILED);
	fd.reset(-1);
	memset(map, '1', 4096);
	ASSERT_EQ(staged_allocate(f), 0);
	int64_t seq = seal(s, f, node, {{root, "m"}}, true);
	ASSERT_GT(seq, 0);
	staged_finalize(f);
	ASSERT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
	EXPECT_EQ(read_file(ground.store() + "/m"), std::string(4096, '1'));
	EXPECT_EQ(staging_next_late(s), 0u);

	// its last bytes are only here: it is not evicted
	staged *all = create(s, staging_new_id(s), {root, "x"}, 8u << 20);
	ASSERT_TRUE(all);
	EXPECT_TRUE(staged_spilled(all));
	EXPECT_NE(info(f).state, STAGED_EVICTED);
	memset(map, '2', 4096);
	EXPECT_EQ(staging_next_late(s), 0u);
	munmap(map, 4096);
	uint64_t late = 0;
	ASSERT_TRUE(until([&] { return (late = staging_next_late(s)) != 0; }));
	EXPECT_EQ(late, node);
	EXPECT_EQ(staging_next_late(s), 0u);
	ASSERT_EQ(staged_reopen(f), 0);
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "m"}}, true, REC_SHADOW), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(read_file(ground.store() + "/m"), std::string(4096, '2'));
	staged_unref(all);
	staged_unref(f);
}

// An open that waits for the version before it is counted, and how long.
TEST_P(Life, WhoWaitsForAVersionIsCounted)
{
	Options o = with();
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "f"}, 400000);
	ASSERT_TRUE(write_all(f, pattern(400000, 1)));
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "f"}}, true), 0);
	ASSERT_EQ(s.stats().waits, 0u);
	std::thread opener([&] { EXPECT_EQ(staged_wait_persisted(f), 0); });
	EXPECT_TRUE(until([&] { return s.stats().waits == 1; }));
	s.start();
	opener.join();
	EXPECT_EQ(s.stats().waits, 1u);
	EXPECT_GT(s.stats().wait_ns, 0u);
	staged_unref(f);
	ASSERT_EQ(s.drain(), 0);
}

// The same bytes again, written in place once the last version of them is safe.
TEST_P(Life, ReopenedWrittenAndUnchanged)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "f"}, 400000);
	std::string one = pattern(400000, 1);
	ASSERT_TRUE(write_all(f, one));
	EXPECT_TRUE(staged_changed(f));
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "f"}}, true), 0);
	ASSERT_EQ(staged_wait_persisted(f), 0);
	ASSERT_EQ(staged_reopen(f), 0);
	EXPECT_EQ(info(f).state, STAGED_OPEN);
	ASSERT_TRUE(write_all(f, "changed", 1000)); // the store's file is another by now
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/f"), one);
	std::string two = one;
	two.replace(1000, 7, "changed");
	EXPECT_TRUE(staged_changed(f));
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "f"}}, true, REC_SHADOW), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/f"), two);

	// opened for writing and closed without a change
	uint64_t used = s.stats().used;
	ASSERT_EQ(staged_reopen(f), 0);
	staged_unchanged(f);
	EXPECT_EQ(info(f).state, STAGED_DURABLE);
	EXPECT_EQ(s.stats().used, used);
	EXPECT_EQ(s.stats().versions.open, 0u);
	staged_unref(f);
}

// As DCP closes a shard that had no space: an fsync, and nothing written after it.
TEST_P(Life, SpilledAndFsyncedIsStoredOnce)
{
	Staging s(ground, with(1u << 20));
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "big"}, 4u << 20);
	ASSERT_TRUE(f);
	ASSERT_TRUE(staged_spilled(f));
	std::string bytes = pattern(4u << 20, 4);
	ASSERT_TRUE(write_all(f, bytes));
	ASSERT_EQ(staged_allocate(f), 0);
	int64_t seq = seal(s, f, node, {{root, "big"}}, false);
	ASSERT_GT(seq, 0);
	ASSERT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
	ASSERT_FALSE(staged_changed(f));
	int fd;
	ASSERT_EQ(staged_use(f, &fd), 0); // a reader
	staged_unchanged(f);
	EXPECT_SAME(read_fd(fd), bytes);
	EXPECT_EQ(info(f).state, STAGED_DURABLE);
	staged_unuse(f);
	EXPECT_EQ(info(f).state, STAGED_EVICTED);
	EXPECT_EQ(staged_use(f, &fd), -ENODATA); // new opens go to the store
	EXPECT_SAME(read_file(ground.store() + "/big"), bytes);
	for (auto &host : std::filesystem::directory_iterator(ground.store() + "/.cairn"))
		if (std::filesystem::exists(host.path() / "tmp")) {
			EXPECT_TRUE(until([&] { return std::filesystem::is_empty(host.path() / "tmp"); }));
		}
	staged_unref(f);
}

TEST_P(Life, SpilledWhenTheBudgetHasNoSpace)
{
	Staging s(ground, with(1u << 20));
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "big"}, 4u << 20);
	ASSERT_TRUE(f);
	EXPECT_TRUE(staged_spilled(f));
	EXPECT_EQ(s.stats().used, 0u);
	EXPECT_EQ(s.stats().spilled_opens, 1u);
	std::string bytes = pattern(4u << 20, 4);
	ASSERT_TRUE(write_all(f, bytes));
	std::string got(bytes.size(), 0);
	ASSERT_EQ(staged_read(f, got.data(), got.size(), 0), (ssize_t)got.size());
	EXPECT_SAME(got, bytes);
	EXPECT_EQ(show(s.tree()), "");
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "big"}}, true), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/big"), bytes);
	int fd;
	EXPECT_EQ(staged_use(f, &fd), -ENODATA); // new opens go to the store
	EXPECT_STRNE(info(f).checksum, "");
	staged_unref(f);
	EXPECT_SAME(read_file(ground.store() + "/big"), bytes);
}

// Through the daemon a file may grow past the budget: it moves, and nothing of it is lost.
TEST_P(Life, GrowsOutOfTheBudget)
{
	Staging s(ground, with(4u << 20));
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "grows"}, 0);
	ASSERT_TRUE(f);
	EXPECT_FALSE(staged_spilled(f));
	std::string bytes = pattern(9u << 20, 8), got(9u << 20, 0);
	for (size_t at = 0; at < bytes.size(); at += 65536)
		ASSERT_TRUE(write_all(f, bytes.substr(at, 65536), at));
	EXPECT_TRUE(staged_spilled(f));
	EXPECT_EQ(s.stats().used, 0u);
	ASSERT_EQ(staged_read(f, got.data(), got.size(), 0), (ssize_t)got.size());
	EXPECT_SAME(got, bytes);
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "grows"}}, true), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/grows"), bytes);
	staged_unref(f);
}

TEST_P(Life, Copies)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	History h(s);
	std::string bytes = pattern(3000000, 2);
	ASSERT_EQ(h.put("a", bytes), 0);
	staged *copy = nullptr, *again = nullptr;
	ASSERT_EQ(staged_copy(s, staging_new_id(s), h.file("a"), -1, nullptr, &copy), 0);
	ASSERT_EQ(s.drain(), 0);
	Fd fd(open((ground.store() + "/a").c_str(), O_RDONLY | O_CLOEXEC));
	ASSERT_EQ(staged_copy(s, staging_new_id(s), nullptr, fd.get(), nullptr, &again), 0);
	ASSERT_TRUE(write_all(copy, "x"));
	for (staged *f : {copy, again}) {
		std::string got(bytes.size() + 10, 0);
		ASSERT_EQ(staged_read(f, got.data(), got.size(), 0), (ssize_t)bytes.size());
		got.resize(bytes.size());
		EXPECT_SAME(got, (f == copy ? "x" : bytes.substr(0, 1)) + bytes.substr(1));
		EXPECT_EQ(info(f).state, STAGED_OPEN);
	}
	struct stat st;
	ASSERT_EQ(fstat(fd.get(), &st), 0);
	EXPECT_EQ(info(again).mtime.tv_sec, st.st_mtim.tv_sec);
	EXPECT_EQ(info(again).mtime.tv_nsec, st.st_mtim.tv_nsec);
	EXPECT_SAME(read_file(ground.store() + "/a"), bytes);
	staged_unref(copy);
	staged_unref(again);
}

TEST_P(Life, ResizedAndPunched)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "f"}, STAGED_SIZE_UNKNOWN);
	std::string bytes = pattern(300000, 1);
	ASSERT_TRUE(write_all(f, bytes));
	ASSERT_EQ(staged_resize(f, 100000), 0);
	ASSERT_EQ(staged_resize(f, 200000), 0);
	ASSERT_EQ(staged_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 4096), 0);
	EXPECT_EQ(staged_fallocate(f, FALLOC_FL_PUNCH_HOLE, 0, 4096), -EOPNOTSUPP);
	bytes.resize(100000);
	bytes.resize(200000);
	bytes.replace(8192, 4096, std::string(4096, 0));
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "f"}}, true), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/f"), bytes);
	staged_unref(f);
}

TEST_P(Life, WhatWasNeverSealedIsNeverSeen)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	History h(s);
	staged *f = create(s, staging_new_id(s), {root, "open"}, 10);
	ASSERT_TRUE(write_all(f, "0123456789"));
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_EQ(h.put("sealed", "x"), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), show(h.now()));
	staged_unref(f); // and its space is given back
	h.drop();
	EXPECT_EQ(s.stats().used, 0u);
	EXPECT_EQ(s.stats().versions.open, 0u);
	EXPECT_EQ(show(s.tree()), "sealed=1,120 ");
}

TEST_P(Life, PendingIsTold)
{
	Options o = with();
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.put("a", pattern(1000, 1)), 0);
	ASSERT_EQ(h.put("b", pattern(3000, 1)), 0);
	ASSERT_EQ(h.mkdir("d"), 0);
	auto pending = [&] {
		uint64_t sum = 0;
		staging_each_undone(
			s, true,
			[](void *ctx, const staged_undone *u) {
				*static_cast<uint64_t *>(ctx) +=
					u->state == STAGED_SEALED ? u->bytes : 1u << 20;
			},
			&sum);
		return sum;
	};
	EXPECT_EQ(pending(), 4000u);
	EXPECT_EQ(s.stats().log.pending, 3u);
	EXPECT_EQ(s.stats().versions.sealed, 2u);
	EXPECT_EQ(s.drain(30), -ETIMEDOUT); // nobody works
	Durable last(s, staging_last_seq(s));
	EXPECT_FALSE(last.is_called());
	s.start();
	EXPECT_EQ(last.wait(), 0);
	EXPECT_EQ(s.drain(), 0);
	EXPECT_EQ(pending(), 0u);
	staging_stats st = s.stats();
	EXPECT_EQ(st.log.pending, 0u);
	EXPECT_EQ(st.versions.durable, 2u);
	EXPECT_EQ(st.log.durable, st.log.last_seq);
	EXPECT_EQ(st.latency.count, 2u);
	Durable past(s, st.log.last_seq); // at once, on this thread
	EXPECT_TRUE(past.is_called());
}

// ---- the place ----

TEST(Place, OneServerOnly)
{
	Ground ground;
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	staging_place second;
	EXPECT_EQ(staging_place_open(STAGING_ANY_NODE, ground.run().c_str(),
			io_store_id(s.store), 1u << 20, &second),
		  -EWOULDBLOCK);
}

TEST(Place, NotOpenToOthers)
{
	Ground ground;
	staging_place p;
	std::string path = ground.run() + "/id";
	ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
	ASSERT_EQ(chmod(path.c_str(), 0777), 0);
	EXPECT_EQ(staging_place_open(STAGING_ANY_NODE, ground.run().c_str(),
			"id", 1u << 20, &p), -EPERM);
	ASSERT_EQ(rmdir(path.c_str()), 0);
	ASSERT_EQ(symlink("/", path.c_str()), 0);
	EXPECT_EQ(staging_place_open(STAGING_ANY_NODE, ground.run().c_str(),
			"id", 1u << 20, &p), -ENOTDIR);
	EXPECT_EQ(unlink(path.c_str()), 0);
	std::string deep = ground.run() + "/none/at/all";
	EXPECT_EQ(staging_place_open(STAGING_ANY_NODE, deep.c_str(), "id", 1u << 20, &p), -ENOENT);
}

TEST(Place, RemovedWithAllItMade)
{
	Ground ground;
	staging_place p;
	ASSERT_EQ(staging_place_open(STAGING_ANY_NODE, ground.run().c_str(),
			"id", 64u << 20, &p), 0);
	struct stat st;
	ASSERT_EQ(fstat(p.base, &st), 0);
	EXPECT_EQ(st.st_mode & 07777u, 0700u);
	EXPECT_EQ(p.path, ground.run() + "/id");
	EXPECT_EQ(p.is_private, geteuid() == 0);
	staging_place_remove(&p);
	EXPECT_EQ(p.base, -1);
	EXPECT_TRUE(std::filesystem::is_empty(ground.run()));
}

TEST(Place, RemovedUnderWhoLooksIntoIt)
{
	Ground ground;
	staging_place p;
	ASSERT_EQ(staging_place_open(STAGING_ANY_NODE, ground.run().c_str(),
			"id", 64u << 20, &p), 0);
	if (!p.is_private) {
		staging_place_remove(&p);
		GTEST_SKIP() << "needs root";
	}
	int base = openat(p.base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int file = openat(p.huge, "some", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	ASSERT_GE(base, 0);
	ASSERT_GE(file, 0);
	staging_place_remove(&p);
	EXPECT_TRUE(std::filesystem::is_empty(ground.run()));
	close(file);
	close(base);
}

TEST(Place, ClearLeavesNothing)
{
	Ground ground;
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.put("a", pattern(5000000, 1)), 0);
	ASSERT_EQ(h.put("b", "b"), 0);
	ASSERT_EQ(s.drain(), 0);
	h.drop();
	staging_clear(s);
	auto files = [&] {
		std::string left;
		for (auto &at : std::filesystem::recursive_directory_iterator(ground.run()))
			if (at.is_regular_file())
				left += at.path().filename().string() + " ";
		return left;
	};
	EXPECT_EQ(files(), "lock ");
	for (auto &at : std::filesystem::recursive_directory_iterator(ground.store() + "/.cairn"))
		EXPECT_FALSE(at.is_regular_file() && at.path().parent_path().filename() == "tmp")
			<< at.path();
	staging_close(s.s);
	s.s = nullptr;
	staging_place_remove(&s.place);
	EXPECT_TRUE(std::filesystem::is_empty(ground.run()));
}

TEST(Place, ClearKeepsWhatIsPending)
{
	Ground ground;
	Options o;
	o.start = false;
	Tree want;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("a", pattern(100000, 1)), 0);
		staging_clear(s);
		want = h.now();
	}
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(s.tree() == want) << show(s.tree());
}

// The last descriptor of an unlinked file: a thread of its own closes it, or who ends staging.
TEST(CloseLater, IsSoonOrAtTheEnd)
{
	Ground ground;
	for (bool start : {true, false}) {
		Options o;
		o.start = start;
		auto s = std::make_unique<Staging>(ground, o);
		ASSERT_EQ(s->err, 0);
		std::string path = ground.store() + "/gone";
		write_file(path, "bytes");
		int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
		ASSERT_GE(fd, 0);
		ASSERT_EQ(unlink(path.c_str()), 0);
		staging_close_later(*s, fd);
		auto closed = [fd] { return fcntl(fd, F_GETFD) < 0; };
		EXPECT_EQ(start ? until(closed) : closed(), start);
		s.reset();
		EXPECT_TRUE(closed());
	}
}

// This process's descriptors of staged files in these directories.
size_t descriptors(const Ground &ground, const std::string &dirs)
{
	size_t n = 0;
	for (auto &at : std::filesystem::directory_iterator("/proc/self/fd")) {
		std::error_code gone;	// the iterator's own, for one
		auto path = std::filesystem::read_symlink(at.path(), gone);
		auto dir = path.parent_path().filename().string();
		n += path.string().find(ground.dir.path) == 0 && path.filename().string().size() == 16 &&
		     dirs.find(dir) != std::string::npos;
	}
	return n;
}

// Descriptors are few, and closed files many: also of those that were fsynced first, as DCP does, and of those whose
// times are set by their names, as rsync and os.utime() do.
TEST(Descriptors, NoneIsKeptOfClosedFiles)
{
	if (geteuid())
		GTEST_SKIP() << "staging's own mounts want root";
	for (uint64_t budget : {512ull << 20, 1ull << 20})	// in memory; spilled but for the first
		for (bool fsynced : {false, true}) {
			Ground ground;
			Options o;
			o.start = false;
			o.budget = budget;
			Staging s(ground, o);
			ASSERT_EQ(s.err, 0);
			std::vector<staged *> files;
			auto add = [&](size_t size) {
				std::string name = "f" + std::to_string(files.size());
				uint64_t node = staging_new_id(s);
				staged *f = create(s, node, {STAGING_ROOT_DIR, name}, size);
				ASSERT_NE(f, nullptr);
				files.push_back(f);
				ASSERT_TRUE(write_all(f, pattern(size, node)));
				ASSERT_EQ(staged_allocate(f), 0);
				ASSERT_GT(seal(s, f, node, {{STAGING_ROOT_DIR, name}}, !fsynced), 0);
				if (fsynced)
					staged_unchanged(f);
				const timespec ts[2] = {{1, 2}, {3, 4}};
				ASSERT_EQ(staged_set_times(f, ts), 0);
			};
			for (int i = 0; i < 8; i++)
				add(STAGING_SMALL);
			EXPECT_EQ(descriptors(ground, "small huge"), 0u) << "fsynced: " << fsynced;
			for (int i = 0; i < 8; i++)
				add(STAGING_SMALL + 1);
			s.start();
			ASSERT_EQ(s.drain(), 0);
			EXPECT_TRUE(until([&] { return !descriptors(ground, "small huge tmp"); }))
				<< "of durable ones, fsynced: " << fsynced;
			for (staged *f : files)
				staged_unref(f);
		}
}

} // namespace

// The count of users is exact whoever takes and leaves a file at once, or it is freed too early or never.
TEST_P(Life, UsersAreCountedWhoeverComesAndGoes)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s);
	staged *f = create(s, node, {root, "shared"}, 0);
	ASSERT_TRUE(f);
	ASSERT_TRUE(write_all(f, "x"));
	const int n_threads = 4, turns = 50000;
	std::vector<std::thread> threads;
	for (int t = 0; t < n_threads; t++)
		threads.emplace_back([&] {
			for (int i = 0; i < turns; i++)
				staged_unref(staged_ref(f));
		});
	for (auto &t : threads)
		t.join();
	staging_stats st;
	staging_get_stats(s, &st);
	EXPECT_GT(st.used, 0u);
	staged_unref(f); // the last: its memory is free again
	staging_get_stats(s, &st);
	EXPECT_EQ(st.used, 0u);
}

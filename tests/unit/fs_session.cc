// SPDX-License-Identifier: MIT
//
// The threads that answer the kernel, with a socket in its place.
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/unit/fs_client.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;
const uint64_t resent = Client::resent_bit;

// Who has answered for too long finds another thread in its place, which waits for the next request
// with the lock on reading held. Nothing else is asked: an answer that waited for that lock would
// never come, and this minute is for a hang only.
TEST(Session, WhoLostTheReadingIsNotHeldUpByTheNextReader)
{
	Ground ground;
	LiveTree t(ground, true, true);
	ASSERT_EQ(t.err, 0);
	Client k(t, SHIM_SLOW_GETATTR);
	EXPECT_EQ(k.getattr(root), -ENOENT);	// as that says
}

// Closes and what is called after them: the store has their changes in that order.
class Order : public ::testing::Test
{
protected:
	Order() { open(); }
	~Order() override
	{
		shim_let_go();
		k.reset();
		EXPECT_EQ(shim_locked_calls(), 0u) << "the store was asked or changed with the tree lock held";
	}
	void open()
	{
		t = std::make_unique<LiveTree>(ground, true);
		EXPECT_EQ(t->err, 0);
		k = std::make_unique<Client>(*t);
		k->last_unique = 1000;	// the tests number theirs from 10 on
		if (first) {
			k->serve();
			close_file(written("C.tmp", 10));
			close_file(written("D.tmp", 10));
			EXPECT_EQ(staging_drain(t->s(), 60000), 0);
		}
		first = false;
	}
	// The next worker; nobody answers yet.
	void again()
	{
		k.reset();
		t.reset();
		open();
	}
	File written(const char *name, size_t size)
	{
		File f;
		EXPECT_EQ(k->create(root, name, &f, O_WRONLY | O_CREAT | O_EXCL), 0);
		EXPECT_EQ(k->write(f, std::string(size, *name)), 0);
		return f;
	}
	void close_file(const File &f) { EXPECT_EQ(k->close(f), 0); }
	// After again()
	void serve()
	{
		watch();
		k->serve(SHIM_RESEND);
		k->any_answer();
		EXPECT_EQ(k->told.size(), 1u);	// "send again"
	}
	// From here on what is done to the store with the tree lock held counts.
	void watch()
	{
		shim_watch_lock(t->fs);
		EXPECT_EQ(k->told.size(), 0u);
	}
	uint64_t ask(uint64_t unique, unsigned opcode, uint64_t id, const Body &b) { return k->send(opcode, id, b, unique); }
	void ask_release(uint64_t unique, const File &f) { ask(unique, FUSE_RELEASE, f.id, Client::releasing(f)); }
	void ask_rename(uint64_t unique, const char *from, const char *to)
	{
		ask(unique, FUSE_RENAME, root, Client::renaming(from, root, to));
	}
	void ask_open(uint64_t unique, uint64_t id, int flags) { ask(unique, FUSE_OPEN, id, Client::opening(flags)); }
	// The number of what is answered next, without the bit of what was sent again; 0: nothing is in a minute.
	uint64_t answer()
	{
		uint64_t unique = k->next_answer();
		EXPECT_EQ(k->err, 0) << unique;
		return unique;
	}
	bool answered() { return k->any_answer(); }
	// Until n requests wait for closes, or one is answered that should wait, too.
	void await_barred(unsigned n)
	{
		while (shim_barred(t->fs) < n && !answered())
			usleep(1000);
	}

	Ground ground;
	std::unique_ptr<LiveTree> t;
	std::unique_ptr<Client> k;
	bool first = true;
};

const size_t large = 1u << 20;	// gets its blocks at the close

// The close of a file takes long; its program renames another meanwhile.
TEST_F(Order, ARenameWaitsForTheCloseBeforeIt)
{
	File a = written("A", large);
	watch();
	shim_hold_allocate(1);
	ask_release(10, a);
	shim_await_held(1);
	ask_rename(12, "C.tmp", "C");
	await_barred(1);
	EXPECT_FALSE(answered());
	shim_let_go();
	EXPECT_EQ(answer(), 10u);
	EXPECT_EQ(answer(), 12u);
	EXPECT_NE(shim_seal_seq(t->fs, a.id), 0u);
	EXPECT_LT(shim_seal_seq(t->fs, a.id), shim_name_seq(t->fs, root, "C"));
}

// A worker had read them all when it died, and the kernel sends them again in the order of its
// hash table. The last one was not read.
TEST_F(Order, WhatIsSentAgainIsAnsweredInTheOrderOfItsFirstSending)
{
	File a = written("A", large), b0 = written("B0", 10), b1 = written("B1", 10);
	again();
	shim_hold_allocate(1);
	ask_release(14 | resent, b1);
	ask_rename(16 | resent, "C.tmp", "C");
	ask_release(12 | resent, b0);
	ask_release(10 | resent, a);
	ask_rename(18, "D.tmp", "D");
	serve();
	await_barred(4);
	EXPECT_FALSE(answered());
	shim_let_go();
	for (uint64_t unique : {10, 12, 14})
		EXPECT_EQ(answer(), unique);
	EXPECT_EQ(answer() + answer(), 16u + 18u);	// the kernel orders these two itself
	uint64_t sa = shim_seal_seq(t->fs, a.id), s0 = shim_seal_seq(t->fs, b0.id),
		 s1 = shim_seal_seq(t->fs, b1.id);
	EXPECT_NE(sa, 0u);
	EXPECT_LT(sa, s0);
	EXPECT_LT(s0, s1);
	EXPECT_LT(s1, shim_name_seq(t->fs, root, "C"));
	EXPECT_LT(s1, shim_name_seq(t->fs, root, "D"));
}

// A close was answered, and there is no space in the log for its version: what its program does next
// waits, and is not logged before it.
TEST_F(Order, ACloseThatCannotBeLoggedKeepsItsPlace)
{
	File a = written("A", 10), b = written("B", 10);
	ASSERT_EQ(k->flush(a), 0);
	close_file(b);
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	signal(SIGXFSZ, SIG_IGN);
	rlimit was;
	ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &was), 0);
	rlimit full = {1u << 20, was.rlim_max};	// the log grows by so much
	ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
	int rc = 0;
	for (unsigned i = 0; !rc && i < 100000; i++)
		rc = k->chmod(b.id, 0600 | (i & 077));
	EXPECT_EQ(rc, -EFBIG);
	watch();
	ask_release(10, a);
	ask_rename(12, "C.tmp", "C");
	await_barred(1);
	EXPECT_FALSE(answered());
	ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &was), 0);
	EXPECT_EQ(answer(), 10u);
	EXPECT_EQ(answer(), 12u);
	EXPECT_NE(shim_seal_seq(t->fs, a.id), 0u);
	EXPECT_LT(shim_seal_seq(t->fs, a.id), shim_name_seq(t->fs, root, "C"));
}

// Closes were answered, and the mount went before the rest of them came: versions in that order,
// also where the log was written anew since, and by the next worker.
TEST_F(Order, ClosesWithoutTheirSecondHalfKeepTheirOrder)
{
	std::vector<File> files;
	for (unsigned i = 0; i < 40; i++)
		files.push_back(written(("f" + std::to_string(i)).c_str(), 10));
	std::shuffle(files.begin(), files.end(), std::mt19937(7));
	for (auto &f : files)
		ASSERT_EQ(k->flush(f), 0);
	ASSERT_EQ(shim_rotate(t->fs), 0);
	again();
	EXPECT_EQ(shim_close_all(t->fs), 0u);
	uint64_t last = 0;
	for (auto &f : files) {
		uint64_t seq = shim_seal_seq(t->fs, f.id);
		EXPECT_LT(last, seq);
		last = seq;
	}
}

// Many wait for bytes on their way to a store that does not take them: all others are answered.
class Waits : public Order
{
protected:
	static constexpr unsigned many = 20;	// more than threads that answer
	static constexpr unsigned N_ANSWERING = 16;

	void SetUp() override { watch(); }
	// Both threads that persist are at work on a large file each, and do not get on.
	void hold_persisting()
	{
		shim_hold_write(2);
		for (const char *name : {"A", "B"}) {
			File f = written(name, large);
			close_file(f);
			slow.push_back(f);
		}
		shim_await_held(2);
	}
	void expect_lookup_is_answered(uint64_t unique)
	{
		ask(unique, FUSE_LOOKUP, root, Body().name("nothing"));
		EXPECT_EQ(next(), std::make_pair(unique, -ENOENT));
	}
	// As answer(), with its error; 0: none came in a minute.
	std::pair<uint64_t, int> next()
	{
		uint64_t unique = k->next_answer();
		return {unique, k->err};
	}
	void await_offloaded(unsigned n)
	{
		for (int ms = 0; ms < 60000 && shim_offloaded(t->fs) < n; ms++)
			usleep(1000);
		EXPECT_EQ(shim_offloaded(t->fs), n);
	}

	std::vector<File> slow;
};

TEST_F(Waits, WritersOfLargeFilesOnTheirWay)
{
	hold_persisting();
	for (unsigned i = 0; i < many; i++)
		ask_open(100 + 2 * i, slow[i % 2].id, O_WRONLY);
	await_offloaded(many);
	expect_lookup_is_answered(10);
	shim_let_go();
	for (unsigned i = 0; i < many; i++)
		EXPECT_EQ(next().second, 0);
}

// Those that can only append need not: nobody waits.
TEST_F(Waits, NotAppendersOfLargeFilesOnTheirWay)
{
	hold_persisting();
	for (unsigned i = 0; i < many; i++) {
		ask_open(100 + 2 * i, slow[i % 2].id, O_WRONLY | O_APPEND);
		EXPECT_EQ(next(), std::make_pair((uint64_t)(100 + 2 * i), 0));
	}
	EXPECT_EQ(shim_offloaded(t->fs), 0u);
	shim_let_go();
}

// A small file does not wait until the large ones before it are written.
TEST_F(Waits, SmallFilesOvertakeLargeOnes)
{
	hold_persisting();
	std::vector<File> small;
	for (unsigned i = 0; i < many; i++) {
		small.push_back(written(("s" + std::to_string(i)).c_str(), 10));
		close_file(small.back());
	}
	for (unsigned i = 0; i < many; i++)
		ask_open(100 + 2 * i, small[i].id, O_WRONLY);
	for (unsigned i = 0; i < many; i++) {
		auto [unique, err] = next();
		ASSERT_NE(unique, 0u) << "waits for the large ones";
		EXPECT_EQ(err, 0);
	}
}

// What an fsync persists is not cut short meanwhile; that is nobody else's business.
TEST_F(Waits, TruncationOfWhatAnFsyncWrites)
{
	File a = written("A", large);
	shim_hold_write(1);
	ask(10, FUSE_FSYNC, a.id, Client::syncing(a));
	shim_await_held(1);
	ask(12, FUSE_SETATTR, a.id, Client::truncation(5, &a));
	await_offloaded(1);
	expect_lookup_is_answered(14);
	shim_let_go();
	EXPECT_EQ(next().first + next().first, 10u + 12u);
	ASSERT_EQ(k->getattr(a.id), 0);
	EXPECT_EQ(k->attr.size, 5u);
}

// Files that find no space in staging are made in the store: not under the tree lock, whatever asks
// for them. What the test checks is in the fixture.
TEST_F(Waits, FilesThatFindNoSpaceAreMadeWithoutTheLock)
{
	staging_stats st;
	File a = written("A", 10);
	close_file(a);
	staging_get_stats(t->s(), &st);
	do {	// a file of unknown size wants an eighth of the budget
		written(("B" + std::to_string(st.versions.open)).c_str(), 16u << 20);
		staging_get_stats(t->s(), &st);
	} while (!HasFailure() && st.used + st.budget / 8 <= st.budget);
	EXPECT_EQ(st.spilled_opens, 0u);
	shim_watch_lock(t->fs);
	for (unsigned i = 0; i < 8; i++)
		ask(100 + 2 * i, FUSE_CREATE, root, Client::creation(("n" + std::to_string(i)), O_WRONLY | O_CREAT, 0600));
	ask_open(200, a.id, O_WRONLY | O_TRUNC);
	for (unsigned i = 0; i < 9; i++)
		EXPECT_EQ(next().second, 0);
	staging_get_stats(t->s(), &st);
	EXPECT_GT(st.spilled_opens, 0u);
}

// The store does not answer: who has to ask it waits, and nobody else.
class StoreHangs : public Waits
{
protected:
	void SetUp() override
	{
		std::ofstream(ground.store() + "/file") << "bytes";
		std::filesystem::create_directory(ground.store() + "/dir");
		std::ofstream(ground.store() + "/dir/inside") << "bytes";
		std::filesystem::create_symlink("target", ground.store() + "/link");
		open = written("open", 10);
		watch();
	}
	uint64_t id_of(const char *name)
	{
		EXPECT_EQ(k->lookup(root, name), 0);
		return k->id;
	}
	// A lookup, and a write to an open file.
	void expect_others_are_answered(uint64_t unique)
	{
		expect_lookup_is_answered(unique);
		ask(unique + 2, FUSE_WRITE, open.id, Client::writing(open, "x", 0));
		EXPECT_EQ(next(), std::make_pair(unique + 2, 0));
	}
	void hangs(unsigned opcode, uint64_t id, const Body &body = {})
	{
		SCOPED_TRACE(opcode);
		shim_hold_answers(1);
		ask(10, opcode, id, body);
		shim_await_held(1);
		expect_others_are_answered(20);
		EXPECT_FALSE(answered());
		shim_let_go();
		EXPECT_EQ(next().first, 10u);
	}

	File open;
};

TEST_F(StoreHangs, WhileOneNameIsLookedUp)
{
	hangs(FUSE_LOOKUP, root, Body().name("file"));
}

TEST_F(StoreHangs, WhateverItIsAskedFor)
{
	uint64_t file = id_of("file"), dir = id_of("dir"), link = id_of("link");
	fuse_read_in in = {};
	in.fh = 1;
	in.size = 4096;
	Body listing = Body().add(in);
	hangs(FUSE_READDIR, dir, listing);
	hangs(FUSE_READDIRPLUS, dir, listing);
	hangs(FUSE_READLINK, link);
	hangs(FUSE_GETXATTR, file, Body().add(fuse_getxattr_in{64, 0}).name("user.none"));
	hangs(FUSE_MKDIR, root, Body().add(fuse_mkdir_in{0755, 0}).name("new"));
	hangs(FUSE_UNLINK, root, Body().name("file"));
}

TEST_F(StoreHangs, WhileAFileIsOpened)
{
	uint64_t file = id_of("file");
	shim_hold_answers(1);
	ask_open(10, file, O_RDONLY);
	shim_await_held(1);
	expect_others_are_answered(20);
	shim_let_go();
	EXPECT_EQ(next(), std::make_pair(uint64_t{10}, 0));
}

// A directory of the store has to be opened first, which others need no less.
TEST_F(StoreHangs, WhileADirectoryIsOpened)
{
	uint64_t dir = id_of("dir");
	hangs(FUSE_LOOKUP, dir, Body().name("inside"));
	close_file(written("more", 10));
}

TEST_F(StoreHangs, ForMoreThanThereAreThreads)
{
	shim_hold_answers(2 * N_ANSWERING);
	for (unsigned i = 0; i < 2 * N_ANSWERING; i++)
		ask(100 + 2 * i, FUSE_LOOKUP, root, Body().name("file"));
	shim_await_held(2 * N_ANSWERING);
	expect_others_are_answered(20);
	EXPECT_FALSE(answered());
	shim_let_go();
	for (unsigned i = 0; i < 2 * N_ANSWERING; i++)
		EXPECT_EQ(next().second, 0);
}

// One hangs now and then, when the store is no longer taken for slow: no thread is lost for good.
TEST_F(StoreHangs, OnceAndAgain)
{
	shim_hold_answers(N_ANSWERING + 1);
	for (unsigned i = 0; i <= N_ANSWERING; i++) {
		uint64_t lookup = 100 + 4 * i, write = lookup + 2;
		shim_store_is_fast(t->fs);
		ask(lookup, FUSE_LOOKUP, root, Body().name("file"));
		shim_await_held(i + 1);
		ask(write, FUSE_WRITE, open.id, Client::writing(open, "x", 0));
		ASSERT_EQ(next(), std::make_pair(write, 0)) << i;
	}
	shim_store_is_fast(t->fs);
	expect_others_are_answered(20);
	EXPECT_FALSE(answered());
	shim_let_go();
	for (unsigned i = 0; i <= N_ANSWERING; i++)
		EXPECT_EQ(next().second, 0);
}

// It is answered by another thread, and once.
TEST_F(StoreHangs, ARequestWithoutAnEffectBeginsAgain)
{
	uint64_t file = id_of("file");
	auto hangs_until_silent = [&](uint64_t unique, unsigned opcode, uint64_t id, const Body &body) {
		shim_hold_answers(1);
		ask(unique, opcode, id, body);
		shim_await_held(1);
		EXPECT_FALSE(answered());
		shim_store_is_silent(t->fs, true);
		EXPECT_EQ(next(), std::make_pair(unique, 0));
		shim_store_is_silent(t->fs, false);
		shim_let_go();
	};
	hangs_until_silent(10, FUSE_GETATTR, file, Body().add(fuse_getattr_in{}));
	hangs_until_silent(12, FUSE_MKDIR, root, Body().add(fuse_mkdir_in{0755, 0}).name("new"));
	EXPECT_EQ(k->lookup(root, "new"), 0);
	EXPECT_FALSE(answered());
}

// A name that was not there at the last listing may be another host's now, and somebody's who only reads.
TEST_F(StoreHangs, OnlyWhoIsAloneKnowsWhichNamesThereAre)
{
	uint64_t dir = id_of("dir");
	fuse_read_in in = {};
	in.fh = 1;
	in.size = 4096;
	for (bool others : {false, true}) {
		ask(10, FUSE_READDIR, dir, Body().add(in));
		EXPECT_EQ(next().first, 10u);
		shim_has_other_hosts(t->fs, others);
		shim_store_is_silent(t->fs, true);
		shim_hold_answers(1);
		ask(12, FUSE_LOOKUP, dir, Body().name("nothing"));
		if (others) {
			shim_await_held(1);
			EXPECT_FALSE(answered());
		} else {
			EXPECT_EQ(next(), std::make_pair(uint64_t{12}, -ENOENT));
		}
		shim_store_is_silent(t->fs, false);
		shim_let_go();
		if (others) {
			EXPECT_EQ(next(), std::make_pair(uint64_t{12}, -ENOENT));
		}
	}
}

// The store answered late once. It is asked all the time, and answers: it is not slow any more.
TEST_F(StoreHangs, Once)
{
	hangs(FUSE_LOOKUP, root, Body().name("file"));
	time_t until = time(nullptr) + 120;
	while (shim_store_is_slow(t->fs) && time(nullptr) < until)
		ASSERT_EQ(k->lookup(root, "nothing"), -ENOENT);
	EXPECT_FALSE(shim_store_is_slow(t->fs));
}

} // namespace

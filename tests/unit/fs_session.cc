// SPDX-License-Identifier: MIT
//
// The threads that answer the kernel, with a socket in its place.
#include <linux/fuse.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/unit/fs_fixture.hh"
#include "tests/unit/session_shim.h"

namespace
{

const uint64_t getattr = 4;	// the unique number of shim_ask
const uint64_t root = STAGING_ROOT_DIR;
const uint64_t resent_bit = 1ull << 63;

class Session : public ::testing::Test
{
protected:
	Session() : t(ground, true, true)
	{
		int pair[2];
		EXPECT_EQ(t.err, 0);
		EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
		kernel.reset(pair[0]);
		EXPECT_EQ(shim_serve(t.fs, pair[1], SHIM_SLOW_GETATTR), 0);
		EXPECT_NE(next_answer(), 0u);	// INIT's
	}
	~Session() override
	{
		kernel.reset(-1);
		shim_serve_end(t.fs);
	}
	// The number of the request that is answered next; 0: none is in a minute.
	uint64_t next_answer()
	{
		char buf[4096];
		pollfd p = {kernel.get(), POLLIN, 0};
		if (poll(&p, 1, 60000) != 1 ||
		    recv(kernel.get(), buf, sizeof(buf), 0) < (ssize_t)sizeof(fuse_out_header))
			return 0;
		return reinterpret_cast<fuse_out_header *>(buf)->unique;
	}

	Ground ground;
	LiveTree t;
	Fd kernel;
};

// Who has answered for too long finds another thread in its place, which waits for the next request
// with the lock on reading held. Nothing else is asked: an answer that waited for that lock would
// never come, and this minute is for a hang only.
TEST_F(Session, WhoLostTheReadingIsNotHeldUpByTheNextReader)
{
	ASSERT_EQ(shim_ask(kernel.get()), 0);
	EXPECT_EQ(next_answer(), getattr);
}

// Closes and what is called after them: the store has their changes in that order.
class Order : public ::testing::Test
{
protected:
	struct File {
		uint64_t id = 0, fh = 0;
	};

	Order()
	{
		int pair[2];
		t = std::make_unique<LiveTree>(ground, true);
		EXPECT_EQ(t->err, 0);
		EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
		kernel.reset(pair[0]);
		theirs = pair[1];
		close_file(written("C.tmp", 10));
		close_file(written("D.tmp", 10));
		EXPECT_EQ(staging_drain(t->s(), 60000), 0);
	}
	~Order() override
	{
		shim_let_go();
		kernel.reset(-1);
		if (t->fs && served)
			shim_serve_end(t->fs);
		EXPECT_EQ(shim_locked_calls(), 0u) << "the store was asked or changed with the tree lock held";
	}
	File written(const char *name, size_t size)
	{
		File f;
		std::string bytes(size, *name);
		EXPECT_EQ(shim_create(t->fs, root, name, &f.id, &f.fh), 0);
		EXPECT_EQ(shim_write(t->fs, f.fh, bytes.data(), size, 0), 0);
		return f;
	}
	void close_file(const File &f) { EXPECT_EQ(shim_close(t->fs, f.fh), 0); }
	void serve(bool resend)
	{
		shim_watch_lock(t->fs);
		EXPECT_EQ(shim_serve(t->fs, theirs, resend ? SHIM_RESEND : 0), 0);
		served = true;
		EXPECT_NE(answer(), 0u);	// INIT's
		if (resend) {
			EXPECT_EQ(answer(), 0u);	// "send again" has no number
		}
	}
	// As next_answer(); without the bit of what was sent again.
	uint64_t answer()
	{
		fuse_out_header out = {};
		EXPECT_GT(recv(kernel.get(), &out, sizeof(out), 0), 0);
		if (out.unique) {
			EXPECT_EQ(out.error, 0) << out.unique;
		}
		return out.unique & ~resent_bit;
	}
	bool answered()
	{
		pollfd p = {kernel.get(), POLLIN, 0};
		return poll(&p, 1, 0) == 1;
	}
	// Until n requests wait for closes, or one is answered that should wait, too.
	void await_barred(unsigned n)
	{
		while (shim_barred(t->fs) < n && !answered())
			usleep(1000);
	}

	Ground ground;
	std::unique_ptr<LiveTree> t;
	Fd kernel;
	int theirs = -1;
	bool served = false;
};

const size_t large = 1u << 20;	// gets its blocks at the close

// The close of a file takes long; its program renames another meanwhile.
TEST_F(Order, ARenameWaitsForTheCloseBeforeIt)
{
	File a = written("A", large);
	serve(false);
	shim_hold_allocate(t->engine.e, 1);
	ASSERT_EQ(shim_ask_release(kernel.get(), {10, false}, a.id, a.fh), 0);
	shim_await_held(1);
	ASSERT_EQ(shim_ask_rename(kernel.get(), {12, false}, "C.tmp", "C"), 0);
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
	t->kill();
	t.reset();
	t = std::make_unique<LiveTree>(ground, true);
	ASSERT_EQ(t->err, 0);
	shim_hold_allocate(t->engine.e, 1);
	int fd = kernel.get();
	ASSERT_EQ(shim_ask_release(fd, {14, true}, b1.id, b1.fh), 0);
	ASSERT_EQ(shim_ask_rename(fd, {16, true}, "C.tmp", "C"), 0);
	ASSERT_EQ(shim_ask_release(fd, {12, true}, b0.id, b0.fh), 0);
	ASSERT_EQ(shim_ask_release(fd, {10, true}, a.id, a.fh), 0);
	ASSERT_EQ(shim_ask_rename(fd, {18, false}, "D.tmp", "D"), 0);
	serve(true);
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

// A close was answered, and there is no room in the log for its version: what its program does next
// waits, and is not logged before it.
TEST_F(Order, ACloseThatCannotBeLoggedKeepsItsPlace)
{
	File a = written("A", 10), b = written("B", 10);
	ASSERT_EQ(shim_flush(t->fs, a.fh), 0);
	close_file(b);
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	signal(SIGXFSZ, SIG_IGN);
	rlimit was;
	ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &was), 0);
	rlimit full = {1u << 20, was.rlim_max};	// the log grows by so much
	ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
	int rc = 0;
	for (unsigned i = 0; !rc && i < 100000; i++)
		rc = shim_chmod(t->fs, b.id, 0600 | (i & 077));
	EXPECT_EQ(rc, -EFBIG);
	serve(false);
	EXPECT_EQ(shim_ask_release(kernel.get(), {10, false}, a.id, a.fh), 0);
	EXPECT_EQ(shim_ask_rename(kernel.get(), {12, false}, "C.tmp", "C"), 0);
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
		ASSERT_EQ(shim_flush(t->fs, f.fh), 0);
	ASSERT_EQ(shim_rotate(t->fs), 0);
	t->kill();
	t.reset();
	t = std::make_unique<LiveTree>(ground, true);
	ASSERT_EQ(t->err, 0);
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

	void SetUp() override { serve(false); }
	// Both threads that persist are at work on a large file each, and do not get on.
	void hold_persisting()
	{
		shim_hold_write(t->engine.e, 2);
		for (const char *name : {"A", "B"}) {
			File f = written(name, large);
			close_file(f);
			slow.push_back(f);
		}
		shim_await_held(2);
	}
	void expect_lookup_is_answered(uint64_t unique)
	{
		ASSERT_EQ(shim_ask_lookup(kernel.get(), {unique, false}, "nothing"), 0);
		EXPECT_EQ(next(), std::make_pair(unique, -ENOENT));
	}
	// As answer(), with its error; 0: none came in a minute.
	std::pair<uint64_t, int> next()
	{
		fuse_out_header out = {};
		pollfd p = {kernel.get(), POLLIN, 0};
		char buf[4096];
		if (poll(&p, 1, 60000) != 1 ||
		    recv(kernel.get(), buf, sizeof(buf), 0) < (ssize_t)sizeof(out))
			return {0, 0};
		memcpy(&out, buf, sizeof(out));
		return {out.unique, out.error};
	}
	void await_apart(unsigned n)
	{
		for (int ms = 0; ms < 60000 && shim_apart(t->fs) < n; ms++)
			usleep(1000);
		EXPECT_EQ(shim_apart(t->fs), n);
	}

	std::vector<File> slow;
};

TEST_F(Waits, AppendersOfLargeFilesOnTheirWay)
{
	hold_persisting();
	for (unsigned i = 0; i < many; i++)
		ASSERT_EQ(shim_ask_open(kernel.get(), {100 + 2 * i, false}, slow[i % 2].id,
					O_WRONLY | O_APPEND), 0);
	await_apart(many);
	expect_lookup_is_answered(10);
	shim_let_go();
	for (unsigned i = 0; i < many; i++)
		EXPECT_EQ(next().second, 0);
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
		ASSERT_EQ(shim_ask_open(kernel.get(), {100 + 2 * i, false}, small[i].id,
					O_WRONLY | O_APPEND), 0);
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
	shim_hold_write(t->engine.e, 1);
	ASSERT_EQ(shim_ask_fsync(kernel.get(), {10, false}, a.id, a.fh), 0);
	shim_await_held(1);
	ASSERT_EQ(shim_ask_truncate(kernel.get(), {12, false}, a.id, a.fh, 5), 0);
	await_apart(1);
	expect_lookup_is_answered(14);
	shim_let_go();
	EXPECT_EQ(next().first + next().first, 10u + 12u);
	struct stat st;
	ASSERT_EQ(shim_stat(t->fs, a.id, &st), 0);
	EXPECT_EQ(st.st_size, 5);
}

// Files that find no room in staging are made in the store: not under the tree lock, whatever asks
// for them. What the test checks is in the fixture.
TEST_F(Waits, FilesThatFindNoRoomAreMadeWithoutTheLock)
{
	std::string half(230u << 20, 'x');	// of the budget, which is 512 MiB
	File a = written("A", 10);
	close_file(a);
	for (const char *name : {"B", "C"}) {
		File f;
		ASSERT_EQ(shim_create(t->fs, root, name, &f.id, &f.fh), 0);
		ASSERT_EQ(shim_write(t->fs, f.fh, half.data(), half.size(), 0), 0);
	}
	shim_watch_lock(t->fs);
	for (unsigned i = 0; i < 8; i++)
		ASSERT_EQ(shim_ask_create(kernel.get(), {100 + 2 * i, false},
					  ("n" + std::to_string(i)).c_str()), 0);
	ASSERT_EQ(shim_ask_open(kernel.get(), {200, false}, a.id, O_WRONLY | O_TRUNC), 0);
	for (unsigned i = 0; i < 9; i++)
		EXPECT_EQ(next().second, 0);
	staging_stats st;
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
		serve(false);
	}
	uint64_t id_of(const char *name)
	{
		uint64_t id = 0;
		EXPECT_EQ(shim_lookup(t->fs, root, name, &id), 0);
		return id;
	}
	// A lookup, and a write to an open file.
	void expect_others_are_answered(uint64_t unique)
	{
		expect_lookup_is_answered(unique);
		ASSERT_EQ(shim_ask_write(kernel.get(), {unique + 2, false}, open.id, open.fh), 0);
		EXPECT_EQ(next(), std::make_pair(unique + 2, 0));
	}
	void hangs(unsigned opcode, uint64_t id, const char *name)
	{
		SCOPED_TRACE(opcode);
		shim_hold_answers(t->engine.e, 1);
		ASSERT_EQ(shim_ask_op(kernel.get(), {10, false}, opcode, id, name), 0);
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
	hangs(FUSE_LOOKUP, root, "file");
}

TEST_F(StoreHangs, WhateverItIsAskedFor)
{
	uint64_t file = id_of("file"), dir = id_of("dir"), link = id_of("link");
	hangs(FUSE_READDIR, dir, nullptr);
	hangs(FUSE_READDIRPLUS, dir, nullptr);
	hangs(FUSE_READLINK, link, nullptr);
	hangs(FUSE_GETXATTR, file, "user.none");
	hangs(FUSE_MKDIR, root, "new");
	hangs(FUSE_UNLINK, root, "file");
}

TEST_F(StoreHangs, WhileAFileIsOpened)
{
	uint64_t file = id_of("file");
	shim_hold_answers(t->engine.e, 1);
	ASSERT_EQ(shim_ask_open(kernel.get(), {10, false}, file, O_RDONLY), 0);
	shim_await_held(1);
	expect_others_are_answered(20);
	shim_let_go();
	EXPECT_EQ(next(), std::make_pair(uint64_t{10}, 0));
}

// A directory of the store has to be opened first, which others need no less.
TEST_F(StoreHangs, WhileADirectoryIsOpened)
{
	uint64_t dir = id_of("dir");
	hangs(FUSE_LOOKUP, dir, "inside");
	close_file(written("more", 10));
}

TEST_F(StoreHangs, ForMoreThanThereAreThreads)
{
	shim_hold_answers(t->engine.e, 2 * N_ANSWERING);
	for (unsigned i = 0; i < 2 * N_ANSWERING; i++)
		ASSERT_EQ(shim_ask_op(kernel.get(), {100 + 2 * i, false}, FUSE_LOOKUP, root, "file"), 0);
	shim_await_held(2 * N_ANSWERING);
	expect_others_are_answered(20);
	EXPECT_FALSE(answered());
	shim_let_go();
	for (unsigned i = 0; i < 2 * N_ANSWERING; i++)
		EXPECT_EQ(next().second, 0);
}

} // namespace

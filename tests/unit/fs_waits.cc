// SPDX-License-Identifier: MIT
//
// user.cairn.wait: a getxattr(2) that is answered when what is at or below a node is durable, or will not be.
#include "tests/unit/fs_client.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;
const unsigned most_of_a_user = 1024, most_of_all = 4096;

// Nothing becomes durable before start().
class Wait : public ::testing::Test
{
protected:
	void SetUp() override { worker(); }
	void TearDown() override { shim_let_go(); }
	void worker(unsigned how = 0)
	{
		w = std::make_unique<Worker>(ground, false, false, SHIM_NO_UPKEEP | how);
		ASSERT_EQ(w->t.err, 0);
	}
	Client &k() { return w->k; }
	void start() { ASSERT_EQ(shim_start(w->fs), 0); }
	void drain() { ASSERT_EQ(w->drain(), 0); }
	uint64_t mkdir(uint64_t dir, const std::string &name)
	{
		EXPECT_EQ(k().mkdir(dir, name), 0);
		return k().id;
	}
	uint64_t put(uint64_t dir, const std::string &name) { return k().put(dir, name, "bytes"); }
	File open_file(uint64_t dir, const std::string &name)
	{
		File f;
		EXPECT_EQ(k().create(dir, name, &f, O_WRONLY | O_CREAT | O_EXCL), 0);
		EXPECT_EQ(k().write(f, "bytes"), 0);
		return f;
	}
	static Body asking(const std::string &key = "user.cairn.wait", uint32_t size = 64)
	{
		return Body().add(fuse_getxattr_in{size, 0}).name(key);
	}
	uint64_t send(uint64_t id) { return k().send(FUSE_GETXATTR, id, asking()); }
	// The number of a request that waits now.
	uint64_t wait(uint64_t id)
	{
		unsigned before = shim_waiting(w->fs);
		uint64_t unique = send(id);
		EXPECT_TRUE(until([&] { return shim_waiting(w->fs) > before; }));
		return unique;
	}
	bool waits(uint64_t unique)
	{
		shim_look_again(w->fs);
		return !k().is_answered(unique);
	}
	std::string said() { return k().err ? strerror(-k().err) : k().bytes; }
	std::string answer(uint64_t unique)
	{
		k().await(unique);
		return said();
	}
	std::string now(uint64_t id, const std::string &key = "user.cairn.wait.0")
	{
		k().call(FUSE_GETXATTR, id, asking(key));
		return said();
	}
	std::string state(uint64_t id) { return now(id, "user.cairn.state"); }
	void interrupt(uint64_t unique)
	{
		k().send(FUSE_INTERRUPT, 0, Body().add(fuse_interrupt_in{unique}), unique | 1);
	}
	bool is_stored(const std::string &path)
	{
		struct stat st;
		return !lstat((ground.store() + "/" + path).c_str(), &st);
	}
	staging_stats stats()
	{
		staging_stats st;
		staging_get_stats(w->t.s(), &st);
		return st;
	}

	Ground ground;
	std::unique_ptr<Worker> w;
};

TEST_F(Wait, WhatIsDurableIsAnsweredAtOnce)
{
	uint64_t d = mkdir(root, "d"), f = put(d, "f");
	start();
	drain();
	for (uint64_t id : {root, d, f})
		EXPECT_EQ(answer(send(id)), "durable");
	EXPECT_EQ(shim_waiting(w->fs), 0u);
}

TEST_F(Wait, IsAnsweredWhenItBecomesDurable)
{
	uint64_t d = mkdir(root, "d"), f = put(d, "f");
	uint64_t of_root = wait(root), of_d = wait(d), of_f = wait(f);
	EXPECT_TRUE(waits(of_root));
	EXPECT_TRUE(waits(of_d));
	EXPECT_TRUE(waits(of_f));
	start();
	EXPECT_EQ(answer(of_d), "durable");
	EXPECT_TRUE(is_stored("d/f"));
	EXPECT_EQ(answer(of_root), "durable");
	EXPECT_EQ(answer(of_f), "durable");
}

TEST_F(Wait, ChangesOfAnyKindArePending)
{
	uint64_t d = mkdir(root, "d"), f = put(d, "f"), g = put(d, "g");
	start();
	drain();
	shim_hold_sync(1);	// applied, and not durable
	ASSERT_EQ(k().chmod(f, 0600), 0);
	shim_await_held(1);
	EXPECT_EQ(now(f), "staged");
	EXPECT_EQ(now(d), "staged");
	EXPECT_EQ(now(root), "staged");
	EXPECT_EQ(now(g), "durable");
	uint64_t of_f = wait(f), of_d = wait(d);
	EXPECT_TRUE(waits(of_f));
	EXPECT_TRUE(waits(of_d));
	shim_let_go();
	EXPECT_EQ(answer(of_f), "durable");
	EXPECT_EQ(answer(of_d), "durable");
	shim_hold_sync(1);
	ASSERT_EQ(k().unlink(d, "g"), 0);
	shim_await_held(1);
	EXPECT_EQ(now(d), "staged");
	EXPECT_EQ(now(f), "durable");
	of_d = wait(d);
	shim_let_go();
	EXPECT_EQ(answer(of_d), "durable");
	EXPECT_FALSE(is_stored("d/g"));
}

// The kernel forgets what is applied: it is not durable for that.
TEST_F(Wait, WhatTheKernelForgotIsPendingStill)
{
	uint64_t d = mkdir(root, "d"), e = mkdir(d, "e");
	put(e, "f");
	start();
	drain();
	shim_evict(w->fs);
	shim_hold_sync(1);
	ASSERT_EQ(k().rename(e, "f", e, "g"), 0);
	shim_await_held(1);
	for (uint64_t id : {e, d})
		k().forget_all(id);
	shim_tidy(w->fs);
	ASSERT_EQ(k().lookup(root, "d"), 0);
	uint64_t unique = wait(k().id);
	EXPECT_TRUE(waits(unique));
	shim_let_go();
	EXPECT_EQ(answer(unique), "durable");
}

TEST_F(Wait, OpenFilesArePending)
{
	uint64_t d = mkdir(root, "d");
	File f = open_file(d, "f");
	start();
	uint64_t of_d = wait(d), of_f = wait(f.id);
	EXPECT_TRUE(waits(of_d));
	EXPECT_TRUE(waits(of_f));
	EXPECT_EQ(now(d), "open");
	EXPECT_EQ(now(f.id), "open");
	ASSERT_EQ(k().close(f), 0);
	EXPECT_EQ(answer(of_d), "durable");
	EXPECT_EQ(answer(of_f), "durable");
	EXPECT_TRUE(is_stored("d/f"));
}

// No record says that it is closed.
TEST_F(Wait, AFileClosedWithoutAChange)
{
	uint64_t d = mkdir(root, "d"), f = put(d, "f");
	start();
	drain();
	File again;
	ASSERT_EQ(k().open(f, O_WRONLY, &again), 0);
	uint64_t of_d = wait(d);
	EXPECT_TRUE(waits(of_d));
	ASSERT_EQ(k().close(again), 0);
	EXPECT_EQ(answer(of_d), "durable");
}

TEST_F(Wait, AnOpenFileThatIsRemoved)
{
	uint64_t d = mkdir(root, "d");
	File f = open_file(d, "f");
	start();
	uint64_t of_d = wait(d), of_f = wait(f.id);
	EXPECT_TRUE(waits(of_d));
	ASSERT_EQ(k().unlink(d, "f"), 0);
	EXPECT_EQ(answer(of_d), "durable");
	EXPECT_EQ(answer(of_f), strerror(ENOENT));
	EXPECT_EQ(now(f.id), strerror(ENOENT));
	k().close(f);
}

// At once: the store has done nothing yet.
TEST_F(Wait, WhatIsRemoved)
{
	uint64_t d = mkdir(root, "d"), f = put(d, "f"), g = put(root, "g"), h = put(root, "h");
	uint64_t of_f = wait(f), of_g = wait(g), of_h = wait(h), of_d = wait(d);
	ASSERT_EQ(k().unlink(d, "f"), 0);
	EXPECT_EQ(answer(of_f), strerror(ENOENT));
	ASSERT_EQ(k().rename(root, "h", root, "g"), 0);	// over it
	EXPECT_EQ(answer(of_g), strerror(ENOENT));
	EXPECT_TRUE(waits(of_h));
	EXPECT_TRUE(waits(of_d));
	ASSERT_EQ(k().rmdir(root, "d"), 0);
	EXPECT_EQ(answer(of_d), strerror(ENOENT));
	start();
	EXPECT_EQ(answer(of_h), "durable");
}

TEST_F(Wait, AFileWithAnotherNameIsNotRemoved)
{
	uint64_t f = put(root, "f");
	ASSERT_EQ(k().link(f, root, "g"), 0);
	uint64_t of_f = wait(f);
	ASSERT_EQ(k().unlink(root, "f"), 0);
	EXPECT_TRUE(waits(of_f));
	start();
	EXPECT_EQ(answer(of_f), "durable");
	EXPECT_TRUE(is_stored("g"));
}

TEST_F(Wait, ACloseThatFails)
{
	uint64_t d = mkdir(root, "d"), e = mkdir(root, "e");
	start();
	drain();
	File f;
	ASSERT_EQ(k().create(d, "f", &f), 0);
	ASSERT_EQ(k().write(f, pattern(1 << 20, 1)), 0);
	uint64_t of_d = wait(d), of_root = wait(root), of_f = wait(f.id);
	shim_fail_op(IO_OP_ALLOCATE, ENOSPC);
	EXPECT_EQ(k().close(f), -ENOSPC);
	for (uint64_t unique : {of_d, of_root, of_f})
		EXPECT_EQ(answer(unique), "failed");
	EXPECT_EQ(now(d), "failed");
	EXPECT_EQ(state(d), "failed");
	EXPECT_EQ(now(e), "durable");
	shim_fail_op(IO_OP_COUNT, 0);
}

TEST_F(Wait, WhatTheStoreRefuses)
{
	uint64_t d = mkdir(root, "d"), e = mkdir(root, "e");
	start();
	drain();
	shim_hold_sync(1);
	ASSERT_EQ(k().chmod(d, 0700), 0);
	shim_await_held(1);
	uint64_t n = mkdir(d, "n");
	write_file(ground.store() + "/d/n", "theirs");
	uint64_t of_n = wait(n), of_d = wait(d), of_root = wait(root);
	EXPECT_TRUE(waits(of_d));
	shim_let_go();
	for (uint64_t unique : {of_n, of_d, of_root})
		EXPECT_EQ(answer(unique), "failed");
	EXPECT_EQ(state(d), "failed");
	EXPECT_EQ(now(e), "durable");
}

TEST_F(Wait, PublicationThatHalts)
{
	uint64_t d = mkdir(root, "d"), e = mkdir(root, "e");
	start();
	drain();
	shim_fail_op(IO_OP_MKDIR, EIO);
	shim_hold_sync(1);
	ASSERT_EQ(k().chmod(e, 0700), 0);
	shim_await_held(1);
	mkdir(d, "sub");
	uint64_t of_d = wait(d);
	shim_let_go();
	EXPECT_EQ(answer(of_d), "halted");
	EXPECT_EQ(now(d), "halted");
	EXPECT_EQ(state(d), "failed");
	mkdir(e, "behind");	// what comes after it halts with it
	EXPECT_EQ(now(e), "halted");
	EXPECT_EQ(state(e), "staged");
	shim_fail_op(IO_OP_COUNT, 0);
	staging_retry(w->t.s());
	EXPECT_TRUE(until([&] { return !stats().halted.error; }));
	drain();
	EXPECT_EQ(now(d), "durable");
	EXPECT_EQ(now(e), "durable");
}

TEST_F(Wait, WhenTheTimeIsOver)
{
	uint64_t d = mkdir(root, "d");
	put(d, "f");
	EXPECT_EQ(now(d), "staged");
	EXPECT_EQ(now(d, "user.cairn.wait.1"), "staged");
	File f = open_file(d, "g");
	EXPECT_EQ(now(d, "user.cairn.wait.20"), "open");
	EXPECT_EQ(now(root, "user.cairn.wait.1"), "open");
	// the shorter one, which came later
	uint64_t unique = wait(d);
	EXPECT_EQ(now(d, "user.cairn.wait.5"), "open");
	EXPECT_TRUE(waits(unique));
	k().close(f);
	start();
	EXPECT_EQ(answer(unique), "durable");
}

TEST_F(Wait, KeysThatAreNone)
{
	for (const char *key : {"user.cairn.waits", "user.cairn.wait.", "user.cairn.wait.x", "user.cairn.wait.1s",
				"user.cairn.wait.-1", "user.cairn.wait.99999999999", "user.cairn.wait.1000000001"})
		EXPECT_EQ(now(root, key), strerror(ENODATA)) << key;
	EXPECT_EQ(now(root, "user.cairn.wait.1000000000"), "durable");
}

// getfattr(1) asks for the size first, and cp(1) for what there is.
TEST_F(Wait, ItsSizeIsToldAtOnceAndItIsNotListed)
{
	uint64_t d = mkdir(root, "d");
	ASSERT_EQ(k().call(FUSE_GETXATTR, d, asking("user.cairn.wait", 0)), 0);
	EXPECT_GE(k().xattr_size(), strlen("durable"));
	EXPECT_EQ(k().call(FUSE_GETXATTR, d, asking("user.cairn.wait", 1)), -ERANGE);
	ASSERT_EQ(k().listxattr(d), 0);
	EXPECT_EQ(k().bytes, "");
	EXPECT_EQ(k().setxattr(d, "user.cairn.wait", "durable"), 0);	// as all of these: no effect
	EXPECT_EQ(now(d), "staged");
}

TEST_F(Wait, ASignalEndsIt)
{
	uint64_t d = mkdir(root, "d"), unique = wait(d), other = wait(d);
	interrupt(unique);
	EXPECT_EQ(answer(unique), strerror(EINTR));
	EXPECT_TRUE(waits(other));
	uint64_t next = k().last_unique += 2;
	interrupt(next);	// read before what it interrupts
	k().send(FUSE_GETXATTR, d, asking(), next);
	EXPECT_EQ(answer(next), strerror(EINTR));
	EXPECT_TRUE(waits(other));
	start();
	EXPECT_EQ(answer(other), "durable");
	interrupt(other);	// too late
	EXPECT_EQ(now(d), "durable");
}

TEST_F(Wait, OfNestedDirectoriesTheInnerOneMayBeFirst)
{
	uint64_t outer = mkdir(root, "outer"), inner = mkdir(outer, "inner");
	put(inner, "f");
	File g = open_file(outer, "g");
	uint64_t of_outer = wait(outer), of_inner = wait(inner);
	start();
	EXPECT_EQ(answer(of_inner), "durable");
	EXPECT_TRUE(waits(of_outer));
	ASSERT_EQ(k().close(g), 0);
	EXPECT_EQ(answer(of_outer), "durable");
}

// What comes meanwhile counts, too: the answer is about the state in which it is given.
TEST_F(Wait, AChangeMadeMeanwhile)
{
	uint64_t d = mkdir(root, "d");
	uint64_t unique = wait(d);
	File f = open_file(d, "f");
	start();
	ASSERT_EQ(staging_drain(w->t.s(), 60000), 0);
	EXPECT_TRUE(waits(unique));
	ASSERT_EQ(k().close(f), 0);
	EXPECT_EQ(answer(unique), "durable");
	EXPECT_TRUE(is_stored("d/f"));
}

TEST_F(Wait, APendingFileThatMovesOut)
{
	uint64_t d = mkdir(root, "d"), e = mkdir(root, "e"), far = mkdir(e, "far");
	File f = open_file(d, "f");
	start();
	uint64_t of_d = wait(d), of_f = wait(f.id);
	EXPECT_TRUE(waits(of_d));
	ASSERT_EQ(k().rename(d, "f", far, "f"), 0);
	EXPECT_EQ(answer(of_d), "durable");
	uint64_t of_e = wait(e), of_far = wait(far);
	EXPECT_TRUE(waits(of_e));
	EXPECT_TRUE(waits(of_f));
	ASSERT_EQ(k().close(f), 0);
	EXPECT_EQ(answer(of_e), "durable");
	EXPECT_EQ(answer(of_far), "durable");
	EXPECT_EQ(answer(of_f), "durable");
	EXPECT_TRUE(is_stored("e/far/f"));
}

// A directory with what is pending below it comes into another one.
TEST_F(Wait, APendingDirectoryThatMovesIn)
{
	uint64_t d = mkdir(root, "d"), tmp = mkdir(root, "tmp"), sub = mkdir(tmp, "sub");
	File f = open_file(sub, "f");
	start();
	EXPECT_EQ(answer(send(d)), "durable");
	ASSERT_EQ(k().rename(root, "tmp", d, "in"), 0);
	uint64_t of_d = wait(d), of_sub = wait(sub), of_tmp = wait(tmp);
	EXPECT_TRUE(waits(of_d));
	ASSERT_EQ(k().close(f), 0);
	for (uint64_t unique : {of_d, of_sub, of_tmp})
		EXPECT_EQ(answer(unique), "durable");
	EXPECT_TRUE(is_stored("d/in/sub/f"));
}

TEST_F(Wait, AFileWithNamesInTwoDirectoriesCountsInBoth)
{
	uint64_t d = mkdir(root, "d"), e = mkdir(root, "e"), f = put(d, "f");
	ASSERT_EQ(k().link(f, e, "g"), 0);
	start();
	drain();
	File again;
	ASSERT_EQ(k().open(f, O_WRONLY | O_TRUNC, &again), 0);
	EXPECT_EQ(now(d), "open");
	EXPECT_EQ(now(e), "open");
	shim_hold_sync(1);
	ASSERT_EQ(k().close(again), 0);
	shim_await_held(1);
	EXPECT_EQ(now(d), "staged");
	EXPECT_EQ(now(e), "staged");
	shim_let_go();
	drain();
	EXPECT_EQ(now(d), "durable");
	EXPECT_EQ(now(e), "durable");
}

// A writer comes while readers keep the version: the file has another node since.
TEST_F(Wait, AFileThatIsForked)
{
	uint64_t f = put(root, "f");
	start();
	drain();
	File reader, writer;
	ASSERT_EQ(k().open(f, O_RDONLY, &reader), 0);
	ASSERT_EQ(k().open_name(root, "f", O_WRONLY | O_TRUNC, &writer), 0);
	ASSERT_NE(writer.id, f);
	uint64_t unique = wait(f);
	EXPECT_TRUE(waits(unique));
	ASSERT_EQ(k().close(writer), 0);
	EXPECT_EQ(answer(unique), "durable");
	k().close(reader);
}

// Of the root, removals are waited for, even in directories that are gone since.
TEST_F(Wait, TheRootCoversWhatIsGone)
{
	uint64_t d = mkdir(root, "d"), e = mkdir(d, "e");
	put(e, "f");
	start();
	drain();
	shim_hold_sync(1);
	ASSERT_EQ(k().unlink(e, "f"), 0);
	shim_await_held(1);
	ASSERT_EQ(k().rmdir(d, "e"), 0);
	ASSERT_EQ(k().rmdir(root, "d"), 0);
	uint64_t unique = wait(root);
	EXPECT_TRUE(waits(unique));
	shim_let_go();
	EXPECT_EQ(answer(unique), "durable");
	EXPECT_FALSE(is_stored("d"));
}

TEST_F(Wait, TooManyMayNotWait)
{
	uint64_t d = mkdir(root, "d");
	std::vector<uint64_t> all;
	for (uint32_t user = 1; user <= most_of_all / most_of_a_user; user++) {
		k().uid = user;
		for (unsigned i = 0; i < most_of_a_user; i++)
			all.push_back(send(d));
		ASSERT_TRUE(until([&] { return shim_waiting(w->fs) == user * most_of_a_user; }));
		EXPECT_EQ(answer(send(d)), strerror(EAGAIN));
	}
	k().uid = 0;
	EXPECT_EQ(answer(send(d)), strerror(EAGAIN));
	EXPECT_EQ(now(d, "user.cairn.state"), "staged");	// all else is answered
	start();
	for (uint64_t unique : all)
		ASSERT_EQ(answer(unique), "durable");
	EXPECT_EQ(shim_waiting(w->fs), 0u);
}

// It would be lost with the worker.
TEST_F(Wait, WhereTheKernelCannotSendItAgainItIsPolled)
{
	w = nullptr;
	worker(SHIM_NO_RESEND);
	uint64_t d = mkdir(root, "d");
	EXPECT_EQ(answer(send(d)), strerror(ENODATA));
	EXPECT_EQ(now(d), "staged");
	start();
	drain();
	EXPECT_EQ(answer(send(d)), "durable");
}

// The worker dies; the next one is sent the request again, and goes on.
TEST_F(Wait, AcrossAWorker)
{
	uint64_t d = mkdir(root, "d"), unique = wait(d), gone = wait(put(root, "gone"));
	w = nullptr;
	LiveTree t(ground);
	ASSERT_EQ(t.err, 0);
	Client next(t);
	next.send(FUSE_GETXATTR, d, asking(), unique | Client::resent_bit);
	next.send(FUSE_UNLINK, root, Body().name("gone"), 1000 | Client::resent_bit);
	next.send(FUSE_INTERRUPT, 0, Body().add(fuse_interrupt_in{gone | Client::resent_bit}),
		  gone | 1 | Client::resent_bit);
	next.send(FUSE_GETXATTR, d, asking(), gone | Client::resent_bit);
	next.serve(SHIM_NO_UPKEEP | SHIM_RESEND);
	EXPECT_EQ(next.await(1000), 0);
	EXPECT_EQ(next.await(gone), -EINTR);
	EXPECT_TRUE(until([&] { return shim_waiting(t.fs) == 1; }));
	shim_look_again(t.fs);
	EXPECT_FALSE(next.is_answered(unique));
	ASSERT_EQ(shim_start(t.fs), 0);
	EXPECT_EQ(next.await(unique), 0);
	EXPECT_EQ(next.bytes, "durable");
}

// It is answered into nothing, and the worker ends.
TEST_F(Wait, TheConnectionThatIsGone)
{
	wait(mkdir(root, "d"));
	k().end();
	EXPECT_EQ(shim_waiting(w->fs), 0u);
}

// ---- how much is looked at ----

// Nothing of what is clean, however many ask for however much; once per look what is open, however many wait.
TEST_F(Wait, OnlyWhatIsOpenIsLookedAt)
{
	const unsigned many = 200, waiters = 50;
	std::vector<uint64_t> dirs;
	for (unsigned i = 0; i < many; i++) {
		dirs.push_back(mkdir(root, "d" + std::to_string(i)));
		for (unsigned j = 0; j < 10; j++)
			ASSERT_NE(put(dirs[i], std::to_string(j)), 0u);
	}
	start();
	drain();
	uint64_t before = shim_looked(w->fs);
	for (uint64_t d : dirs) {
		EXPECT_EQ(answer(send(d)), "durable");
		EXPECT_EQ(state(d), "durable");
	}
	EXPECT_EQ(answer(send(root)), "durable");
	EXPECT_EQ(shim_looked(w->fs), before);
	std::vector<File> files;
	for (unsigned i = 0; i < 3; i++)
		files.push_back(open_file(dirs[i], "open"));
	std::vector<uint64_t> asked;
	for (unsigned i = 0; i < waiters; i++)
		asked.push_back(wait(i % 2 ? root : dirs[i % 3]));
	EXPECT_TRUE(waits(asked[0]));
	before = shim_looked(w->fs);
	EXPECT_TRUE(waits(asked[0]));	// looks twice
	EXPECT_EQ(shim_looked(w->fs), before + 2 * 3);
	for (const File &f : files)
		ASSERT_EQ(k().close(f), 0);
	for (uint64_t unique : asked)
		EXPECT_EQ(answer(unique), "durable");
}

} // namespace

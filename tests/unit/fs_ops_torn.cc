// SPDX-License-Identifier: MIT
// timeout: 120
//
// A close(2) of one copy of a descriptor was answered, and then a write through the other one fails: half a file is
// no version, whoever dies meanwhile.
#include <sys/mount.h>

#include "tests/unit/fs_mounted.hh"

namespace
{

class Torn : public ::testing::Test
{
protected:
	static constexpr size_t part = 100 << 10;

	void SetUp() override
	{
		if (mount("cairn-test", ground.store().c_str(), "tmpfs", MS_NODEV, "size=16m"))
			GTEST_SKIP() << "no filesystem can be mounted here";
		mounted = true;
		begin(true);
	}
	void TearDown() override
	{
		w.reset();
		if (mounted)
			umount2(ground.store().c_str(), MNT_DETACH);
	}
	// The first worker of a mount, or the next one of it.
	void begin(bool mount)
	{
		w.reset();
		w = std::make_unique<Worker>(ground, true, mount);
		ASSERT_EQ(w->t.err, 0);
	}
	Client &k() { return w->k; }
	// Writes f; after its first part a copy of the descriptor is closed. The store is full before the end.
	void write_half(const File &f)
	{
		ASSERT_EQ(k().write(f, pattern(part, 1)), 0);
		ASSERT_EQ(k().flush(f), 0);
		int rc = 0;
		for (end = part; !rc && end < (64u << 20); end += part)
			rc = k().write(f, pattern(part, end), end);
		ASSERT_EQ(rc, -ENOSPC);
		end -= part;
	}
	void half(File *f)
	{
		ASSERT_EQ(k().create(root, "f", f), 0);
		write_half(*f);
	}
	std::string state(const File &f)
	{
		return k().getxattr(f.id, "user.cairn.state") ? strerror(-k().err) : k().bytes;
	}
	// f is no version, and space does not make one of it.
	void is_failed(const File &f, const std::string &before = "")
	{
		EXPECT_EQ(state(f), "failed");
		EXPECT_EQ(k().getxattr(f.id, "user.cairn.error"), 0);
		EXPECT_EQ(k().bytes, strerror(ENOSPC));
		drained(before);
		grow();
		File c;
		ASSERT_EQ(k().lookup(control_dir, "control"), 0);
		ASSERT_EQ(k().open(k().id, O_WRONLY, &c), 0);
		EXPECT_EQ(k().write(c, "retry"), 0);
		k().release(c);
		drained(before);
		EXPECT_EQ(state(f), "failed");
	}
	void drained(const std::string &want)
	{
		ASSERT_EQ(w->drain(), 0);
		if (want.empty())
			EXPECT_EQ(access(stored().c_str(), F_OK), -1) << read_file(stored()).size();
		else
			EXPECT_TRUE(read_file(stored()) == want) << read_file(stored()).size();
	}
	// All is killed and begins again: the bytes are in lost+found, and said to be.
	void is_lost(const std::string &before = "")
	{
		w.reset();
		grow();
		begin(true);
		drained(before);
		unsigned found = 0, told = 0;
		for (auto &e : std::filesystem::directory_iterator(ground.store() + "/.cairn/lost+found"))
			found += e.path().filename().string().rfind("f.unclosed.", 0) == 0 && e.file_size() == end;
		EXPECT_EQ(found, 1u);
		for (auto &n : w->t.notes)
			told += n.find("lost+found") != std::string::npos;
		EXPECT_GE(told, 1u);
	}
	void grow()
	{
		ASSERT_EQ(mount("", ground.store().c_str(), "", MS_REMOUNT | MS_NODEV, "size=64m"), 0) << errno;
	}
	void is_whole(const File &f, size_t size)
	{
		EXPECT_EQ(k().close(f), 0);
		ASSERT_EQ(w->drain(), 0);
		EXPECT_EQ(read_file(stored()).size(), size);
	}
	std::string stored() { return ground.store() + "/f"; }
	Ground ground;
	std::unique_ptr<Worker> w;
	bool mounted = false;
	size_t end = 0;
};

TEST_F(Torn, TheLastCloseFails)
{
	File f;
	half(&f);
	EXPECT_EQ(k().close(f), -ENOSPC);
	is_failed(f);
}

// The last copy was in a message or behind a mapping: it goes without a close(2).
TEST_F(Torn, TheLastCopyGoesWithoutAClose)
{
	File f;
	half(&f);
	EXPECT_EQ(k().release(f), 0);
	is_failed(f);
}

TEST_F(Torn, TheVersionBeforeItStays)
{
	File f;
	ASSERT_NE(k().put(root, "f", "old"), 0u);
	ASSERT_EQ(w->drain(), 0);
	ASSERT_EQ(k().open_name(root, "f", O_WRONLY | O_TRUNC, &f), 0);
	write_half(f);
	EXPECT_EQ(k().release(f), 0);
	is_failed(f, "old");
	is_lost("old");
}

// Another program's version, closed as a whole and not in the store yet when the next one opens the file.
TEST_F(Torn, TheVersionThatAnotherClosedStays)
{
	File f;
	ASSERT_NE(k().put(root, "f", "whole"), 0u);
	ASSERT_EQ(k().open_name(root, "f", O_WRONLY | O_TRUNC, &f), 0);
	write_half(f);
	EXPECT_EQ(k().close(f), -ENOSPC);
	is_failed(f, "whole");
}

TEST_F(Torn, AWorkerThatDiesBeforeTheLastClose)
{
	File f;
	half(&f);
	begin(false);
	EXPECT_EQ(k().close(f), -ENOSPC);
	is_failed(f);
}

TEST_F(Torn, AWorkerThatDiesAfterTheLastClose)
{
	File f;
	half(&f);
	EXPECT_EQ(k().close(f), -ENOSPC);
	ASSERT_EQ(shim_rotate(w->fs), 0);
	begin(false);
	is_failed(f);
}

TEST_F(Torn, AllThatDiesBeforeTheLastClose)
{
	File f;
	half(&f);
	is_lost();
}

TEST_F(Torn, AllThatDiesAfterTheLastClose)
{
	File f;
	half(&f);
	EXPECT_EQ(k().close(f), -ENOSPC);
	ASSERT_EQ(shim_rotate(w->fs), 0);
	is_lost();
}

TEST_F(Torn, AMountThatEndsBeforeTheLastClose)
{
	File f;
	half(&f);
	shim_close_all(w->fs);
	drained("");
	is_lost();
}

// The program makes space, and writes what failed: the file is whole, for the next worker, too.
TEST_F(Torn, WhatFailedIsWrittenAfterAll)
{
	File f;
	half(&f);
	grow();
	ASSERT_EQ(k().write(f, pattern(part, end), end), 0);
	begin(false);
	EXPECT_EQ(k().close(f), 0);
	ASSERT_EQ(w->drain(), 0);
	EXPECT_EQ(read_file(stored()).size(), end + part);
}

// A program that ignores the error may write less there next: what a buffer held before it was full.
TEST_F(Torn, ASmallerPartOfItIsNotAllOfIt)
{
	File f;
	half(&f);
	grow();
	ASSERT_EQ(k().write(f, pattern(part / 3, end), end), 0);
	EXPECT_EQ(k().close(f), -ENOSPC);
	end += part / 3;
	is_failed(f);
	is_lost();
}

TEST_F(Torn, AnotherWorkerKnowsHowMuchIsMissing)
{
	File f;
	half(&f);
	grow();
	begin(false);
	ASSERT_EQ(k().write(f, pattern(part / 3, end), end), 0);
	ASSERT_EQ(shim_rotate(w->fs), 0);
	begin(false);
	ASSERT_EQ(k().write(f, pattern(part / 3, end), end + 2 * part / 3), 0);
	EXPECT_EQ(k().flush(f), -ENOSPC);
	begin(false);
	ASSERT_EQ(k().write(f, pattern(part, end), end + part / 3), 0);
	is_whole(f, end + part / 3 + part);
}

TEST_F(Torn, TwoWritesFailed)
{
	File f;
	half(&f);
	ASSERT_EQ(k().write(f, pattern(part, 2), end + 3 * part), -ENOSPC);
	grow();
	ASSERT_EQ(k().write(f, pattern(part, 1), end), 0);
	EXPECT_EQ(k().flush(f), -ENOSPC);
	begin(false);
	ASSERT_EQ(k().write(f, pattern(part, 2), end + 3 * part), 0);
	is_whole(f, end + 4 * part);
}

// More than are told apart: between those that are taken for one all is missing, too.
TEST_F(Torn, ManyWritesFailed)
{
	File f;
	half(&f);
	for (size_t i = 1; i < 40; i++)
		ASSERT_EQ(k().write(f, pattern(part, i), end + 2 * i * part), -ENOSPC);
	grow();
	for (size_t i = 80; i--;) {
		EXPECT_EQ(k().flush(f), -ENOSPC) << i;
		ASSERT_EQ(k().write(f, pattern(part, i), end + i * part), 0);
		if (i % 20 == 0)
			begin(false);
	}
	is_whole(f, end + 80 * part);
}

TEST_F(Torn, CutOffItIsNotMissing)
{
	File f;
	half(&f);
	grow();
	ASSERT_EQ(k().write(f, pattern(part, end), end + part), 0);
	ASSERT_EQ(k().truncate(f.id, end + part / 2, &f), 0);
	EXPECT_EQ(k().flush(f), -ENOSPC);
	begin(false);
	EXPECT_EQ(k().flush(f), -ENOSPC);
	ASSERT_EQ(k().truncate(f.id, end, &f), 0);
	begin(false);
	is_whole(f, end);
}

// A writer that comes while the half has a reader, and changes another place.
TEST_F(Torn, AWriterThatComesWhileItIsRead)
{
	File f, reader, other;
	half(&f);
	EXPECT_EQ(k().close(f), -ENOSPC);
	grow();
	ASSERT_EQ(k().open_name(root, "f", O_RDONLY, &reader), 0);
	ASSERT_EQ(k().open_name(root, "f", O_WRONLY, &other), 0);
	ASSERT_EQ(k().write(other, "changed"), 0);
	EXPECT_EQ(k().close(other), -ENOSPC);
	EXPECT_NE(other.id, f.id);
	drained("");
	ASSERT_EQ(k().release(reader), 0);
	ASSERT_EQ(k().open_name(root, "f", O_WRONLY, &other), 0);
	ASSERT_EQ(k().write(other, pattern(part, end), end), 0);
	is_whole(other, end + part);
}

// The store fails for a while: what the program could not write then is missing as well.
TEST_F(Torn, AWriteThatTheStoreFailed)
{
	File f;
	ASSERT_EQ(k().create(root, "f", &f), 0);
	ASSERT_EQ(k().write(f, pattern(part, 1)), 0);
	ASSERT_EQ(k().flush(f), 0);
	shim_fail_op(IO_OP_ALLOCATE, EIO);
	ASSERT_EQ(k().write(f, pattern(part, 2), 4 << 20), -EIO);
	shim_fail_op(IO_OP_COUNT, 0);
	EXPECT_EQ(k().write(f, pattern(part, 2), 5 << 20), 0);
	EXPECT_EQ(k().close(f), -EIO);
	drained("");
	EXPECT_EQ(state(f), "failed");
	begin(false);
	drained("");
	EXPECT_EQ(state(f), "failed");
	ASSERT_EQ(k().open_name(root, "f", O_WRONLY, &f), 0);
	ASSERT_EQ(k().write(f, pattern(part, 2), 4 << 20), 0);
	is_whole(f, (5 << 20) + part);
}

// A log: each write goes to its end, wherever that is.
class Log : public Torn
{
protected:
	void open(int flags = O_WRONLY) { ASSERT_EQ(k().open_name(root, "f", flags | O_APPEND, &f), 0); }
	void stored_log(size_t size)
	{
		ASSERT_EQ(k().create(root, "f", &f, O_WRONLY | O_CREAT | O_APPEND), 0);
		put(size);
		ASSERT_EQ(k().close(f), 0);
		ASSERT_EQ(w->drain(), 0);
	}
	int append(const std::string &bytes, uint64_t at) { return k().write(f, bytes, at, O_WRONLY | O_APPEND); }
	void put(size_t size)
	{
		std::string bytes = pattern(size, want.size());
		ASSERT_EQ(append(bytes, want.size()), 0);
		want += bytes;
	}
	// The store takes `size` bytes at the end, and no more.
	void refused(size_t size)
	{
		put(size);
		shim_fail_op(IO_OP_ALLOCATE, ENOSPC);
		ASSERT_EQ(append(pattern(8 << 20, 3), want.size()), -ENOSPC);
		shim_fail_op(IO_OP_COUNT, 0);
	}
	void is_stored()
	{
		drained(want);
		EXPECT_EQ(state(f), "durable");
	}
	File f;
	std::string want;
};

TEST_F(Log, AWriteThatFailedLacksNothing)
{
	stored_log(part);
	for (int i = 0; i < 3; i++) {
		open();
		refused(4 << 10);
		EXPECT_EQ(k().fsync(f), 0);
		EXPECT_EQ(k().close(f), 0);
		is_stored();
	}
	open();
	put(10);
	EXPECT_EQ(k().close(f), 0);
	is_stored();
}

TEST_F(Log, NothingOfItIsWritten)
{
	stored_log(part);
	open();
	refused(0);
	EXPECT_EQ(k().close(f), 0);
	is_stored();
}

TEST_F(Log, ANewOne)
{
	ASSERT_EQ(k().create(root, "f", &f, O_RDWR | O_CREAT | O_APPEND), 0);
	refused(part);
	EXPECT_EQ(k().close(f), 0);
	is_stored();
}

TEST_F(Log, AWorkerThatDiesAfterIt)
{
	stored_log(part);
	open();
	put(10);
	EXPECT_EQ(k().flush(f), 0);	// a copy of the descriptor
	refused(20);
	ASSERT_EQ(shim_rotate(w->fs), 0);
	begin(false);
	put(30);
	EXPECT_EQ(k().close(f), 0);
	is_stored();
}

// What the closed copy of the descriptor had written counts, and what was appended since.
TEST_F(Log, AllThatDiesAfterIt)
{
	stored_log(part);
	open();
	put(10);
	EXPECT_EQ(k().flush(f), 0);
	refused(20);
	begin(true);
	drained(want);
}

// Another writer chooses its places: of what it could not write there something may be missing.
TEST_F(Log, AnotherWriterOfIt)
{
	stored_log(part);
	open(O_RDWR);
	refused(100);
	shim_fail_op(IO_OP_ALLOCATE, ENOSPC);
	ASSERT_EQ(k().write(f, pattern(8 << 20, 3), want.size()), -ENOSPC);
	shim_fail_op(IO_OP_COUNT, 0);
	put(100);
	EXPECT_EQ(k().close(f), -ENOSPC);
	EXPECT_EQ(state(f), "failed");
	begin(false);
	EXPECT_EQ(state(f), "failed");
}

// The kernel may send the parts of one write at once (aio): one in the middle fails.
TEST_F(Log, APartInTheMiddleFails)
{
	for (bool later : {false, true}) {
		want.clear();
		stored_log(part);
		open();
		put(100);
		if (later) {
			ASSERT_EQ(append(pattern(100, 2), want.size() + (8 << 20)), 0);
		}
		shim_fail_op(IO_OP_ALLOCATE, ENOSPC);
		ASSERT_EQ(append(pattern(8 << 20, 3), want.size()), -ENOSPC);
		shim_fail_op(IO_OP_COUNT, 0);
		if (!later) {
			ASSERT_EQ(append(pattern(100, 2), want.size() + (8 << 20)), 0);
		}
		EXPECT_NE(k().close(f), 0) << later;
		EXPECT_EQ(state(f), "failed") << later;
		ASSERT_EQ(k().unlink(root, "f"), 0);
	}
}

TEST_F(Torn, CutToNothingItBeginsAnew)
{
	File f;
	half(&f);
	ASSERT_EQ(k().truncate(f.id, 0, &f), 0);
	ASSERT_EQ(k().write(f, "new"), 0);
	begin(false);
	EXPECT_EQ(k().close(f), 0);
	drained("new");
}

} // namespace

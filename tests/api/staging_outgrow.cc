// SPDX-License-Identifier: MIT
// timeout: 300
//
// Files that outgrow memory while the kernel writes them: older bytes are in the store's tmp/,
// newer ones in staging. The test is the kernel: it writes the staged file by itself.
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "tests/api/staging_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;
const uint64_t mib = 1u << 20;

void end_ahead(staged *f)
{
	while (staged_end_ahead(f) == -EBUSY)
		staged_await(f);
}

std::atomic<int> steps_left{-1}; // not counted
bool only_cuts;			 // a step is a truncation

void step(bool cut = false)
{
	if ((cut || !only_cuts) && steps_left >= 0 && steps_left-- == 0)
		_exit(0);
}

class Outgrow : public ::testing::TestWithParam<const char *>
{
protected:
	Ground ground;
	Options with(bool orphaned = true)
	{
		Options o;
		o.engine = GetParam();
		o.budget = 48 * mib;
		o.orphaned = orphaned;
		return o;
	}
	std::filesystem::path tmp()
	{
		for (auto &host : std::filesystem::directory_iterator(ground.store() + "/.cairn"))
			if (std::filesystem::exists(host.path() / "tmp"))
				return host.path() / "tmp";
		return "";
	}
	bool tmp_is_empty()
	{
		return until([&] { return std::filesystem::is_empty(tmp()); });
	}
	// The exit code of a worker that dies: by _exit(), while it has the store.
	int dies(const std::function<void()> &worker)
	{
		int status = -1;
		pid_t pid = fork();
		if (pid == 0) {
			worker();
			_exit(9);
		}
		EXPECT_EQ(waitpid(pid, &status, 0), pid);
		return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	}
	// The next worker, not started yet: it finds the file `name` in f. `reader`: the close of one stands in the log
	// before what opened the file again.
	Options next(const std::string &name, bool reader = false)
	{
		Options o = with(false);
		o.start = false;
		o.each = [this, name, reader](staging *st, const rec *r) {
			int fd;
			if (r->type == REC_CREATE && r->name == name) {
				node = r->node;
				EXPECT_EQ(staged_recover(st, r, &f), 0);
			} else if (reader && r->type == REC_STAGED && f && !staged_use(f, &fd)) {
				staged_unuse(f);
			}
		};
		return o;
	}
	staged *f = nullptr;
	uint64_t node = 0;
};

INSTANTIATE_TEST_SUITE_P(All, Outgrow, ::testing::Values("uring", "posix"));

// As through passthrough: staging sees nothing of it.
struct Writer {
	explicit Writer(staged *sf) : f(sf), fd(staged_open_rw(sf)) { staged_set_backing(sf); }
	bool write(const std::string &bytes, uint64_t off)
	{
		for (size_t at = 0; at < bytes.size();) {
			ssize_t n = pwrite(fd.get(), bytes.data() + at, bytes.size() - at, (off_t)(off + at));
			if (n <= 0)
				return false;
			at += (size_t)n;
		}
		return true;
	}
	uint64_t memory()
	{
		struct stat st;
		return fstat(fd.get(), &st) ? 0 : (uint64_t)st.st_blocks * 512;
	}
	staged *f;
	Fd fd;
};

// `small` as the checkpoint before, 64 MiB now, of which most have moved.
staged *outgrown(Staging &s, uint64_t node, const std::string &bytes, const char *name = "shard")
{
	staged *f = create(s, node, {root, name}, 4 * mib);
	if (!f)
		return nullptr;
	Writer w(f);
	/* what stays of it, and what was allocated ahead of it: an eighth of the budget */
	const uint64_t left = 10 * mib + 6 * mib;
	if (!w.write(bytes, 0) || staged_move_out(f) || !staged_outgrown(f) || w.memory() > left)
		return nullptr;
	return f;
}

// A version of `log` is durable, and the file is open again.
staged *opened_again(Staging &s, const std::string &bytes, bool relay)
{
	uint64_t node = s.err ? 0 : staging_new_id(s);
	staged *f = s.err ? nullptr : create(s, node, {root, "log"}, 4 * mib);
	if (!f || !(relay ? write_all(f, bytes) : Writer(f).write(bytes, 0)))
		return nullptr;
	bool good = seal(s, f, node, {{root, "log"}}, true) > 0 && !s.drain() && !staged_reopen(f) &&
		    !log_staged(s, f, node);
	return good ? f : nullptr;
}

TEST_P(Outgrow, ClosedIsWhole)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	std::string bytes = pattern(80 * mib + 12345, 1);
	uint64_t node = staging_new_id(s);
	staged *f = outgrown(s, node, bytes.substr(0, 64 * mib));
	ASSERT_TRUE(f);
	EXPECT_LE(s.stats().used, 48 * mib);
	EXPECT_EQ(info(f).size, 64 * mib);
	EXPECT_GE(info(f).blocks * 512, 64 * mib);
	const timespec times[2] = {{1000000001, 5}, {1000000002, 6}};
	{
		Writer w(f);
		ASSERT_TRUE(w.write(bytes.substr(64 * mib), 64 * mib));
		end_ahead(f);
		ASSERT_EQ(staged_set_times(f, times), 0);
		ASSERT_EQ(staged_move_out(f), 0);
	}
	EXPECT_EQ(info(f).mtime.tv_sec, times[1].tv_sec); // moving is no change
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_EQ(staged_finish(f), 0);
	EXPECT_TRUE(staged_spilled(f));
	EXPECT_FALSE(staged_outgrown(f));
	int fd;
	ASSERT_EQ(staged_use(f, &fd), 0);
	EXPECT_SAME(read_fd(fd), bytes);
	staged_unuse(f);
	ASSERT_GT(seal(s, f, node, {{root, "shard"}}, true, REC_SPILLED), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/shard"), bytes);
	struct stat st;
	ASSERT_EQ(stat((ground.store() + "/shard").c_str(), &st), 0);
	EXPECT_EQ(st.st_mtim.tv_sec, times[1].tv_sec);
	staged_unref(f);
	EXPECT_TRUE(tmp_is_empty());
	EXPECT_EQ(s.stats().outgrown.files, 1u);
	EXPECT_EQ(s.stats().used, 0u);
}

// Memory that is allocated ahead of a writer is a change of the file to the kernel: not one that
// may show after the times were set.
TEST_P(Outgrow, TimesThatWereSetStayWhileMemoryIsMadeReady)
{
	Options o = with();
	o.budget = 2048 * mib;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	const timespec times[2] = {{1000000001, 5}, {1000000002, 6}};
	std::string bytes = pattern(24 * mib, 5);
	for (int i = 0; i < 20; i++) {
		staged *f = create(s, staging_new_id(s), {root, "shard" + std::to_string(i)}, 1 * mib);
		ASSERT_TRUE(f);
		{
			Writer w(f);
			ASSERT_TRUE(w.write(bytes, 0));
			end_ahead(f);
			ASSERT_EQ(staged_set_times(f, times), 0);
			for (int n = 0; n < 200; n++, usleep(50))
				ASSERT_EQ(info(f).mtime.tv_sec, times[1].tv_sec) << i << " " << n;
		}
		staged_unref(f);
	}
}

TEST_P(Outgrow, FsyncMakesACopyAndTheWriterGoesOn)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	std::string bytes = pattern(70 * mib, 2);
	uint64_t node = staging_new_id(s);
	staged *f = outgrown(s, node, bytes.substr(0, 64 * mib));
	ASSERT_TRUE(f);
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_EQ(staged_allocate_copy(f), 0);
	int64_t seq = seal(s, f, node, {{root, "shard"}}, false);
	ASSERT_GT(seq, 0);
	ASSERT_EQ(Durable(s, (uint64_t)seq).wait(), 0);
	EXPECT_SAME(read_file(ground.store() + "/shard"), bytes.substr(0, 64 * mib));
	{
		Writer w(f);
		ASSERT_TRUE(w.write(bytes.substr(64 * mib), 64 * mib));
	}
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_EQ(staged_finish(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "shard"}}, true, REC_SPILLED), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/shard"), bytes);
	staged_unref(f);
	EXPECT_TRUE(tmp_is_empty());
}

// Its close was answered, and then the store failed: it is persisted out of both places.
TEST_P(Outgrow, SealedInTwoPlaces)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	std::string bytes = pattern(64 * mib, 3);
	uint64_t node = staging_new_id(s);
	staged *f = outgrown(s, node, bytes);
	ASSERT_TRUE(f);
	ASSERT_GT(seal(s, f, node, {{root, "shard"}}, true), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/shard"), bytes);
	EXPECT_EQ(info(f).state, STAGED_EVICTED); // nobody may read the half that is in memory
	staged_unref(f);
	EXPECT_TRUE(tmp_is_empty());
}

TEST_P(Outgrow, WrittenAgainIsRefused)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	std::string bytes = pattern(64 * mib, 4);
	uint64_t node = staging_new_id(s);
	staged *f = outgrown(s, node, bytes);
	ASSERT_TRUE(f);
	ASSERT_TRUE(Writer(f).write("x", 5 * mib + 1));
	EXPECT_EQ(staged_move_out(f), 1);
	EXPECT_TRUE(staged_rewritten(f));
	EXPECT_EQ(staged_allocate(f), -EIO);
	EXPECT_EQ(staged_finish(f), -EIO);
	EXPECT_TRUE(staged_outgrown(f));
	staged_unref(f);
	EXPECT_TRUE(tmp_is_empty());
}

// What a kill between copy and punch leaves: the same page in both, or zeros below.
TEST_P(Outgrow, PagesInBothAreSettled)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	std::string bytes = pattern(64 * mib, 5);
	for (uint64_t i = 8 * mib; i < 10 * mib; i++)
		bytes[i] = 0;
	uint64_t node = staging_new_id(s);
	staged *f = outgrown(s, node, bytes);
	ASSERT_TRUE(f);
	Writer w(f);
	ASSERT_TRUE(w.write(bytes.substr(2 * mib, 2 * mib), 2 * mib));
	for (uint64_t i = 8 * mib; i < 10 * mib; i++)
		bytes[i] = (char)(i * 7 + i / 4096);
	ASSERT_TRUE(w.write(bytes.substr(8 * mib, 2 * mib), 8 * mib));
	w.fd = Fd();
	ASSERT_EQ(staged_finish(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "shard"}}, true, REC_SPILLED), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/shard"), bytes);
	staged_unref(f);
}

TEST_P(Outgrow, TruncatedAnywhere)
{
	for (uint64_t cut : {(uint64_t)0, 3 * mib + 17, 10 * mib, 60 * mib + 1}) {
		Staging s(ground, with());
		ASSERT_EQ(s.err, 0);
		std::string bytes = pattern(64 * mib, 6 + cut), more = pattern(9 * mib, 7);
		uint64_t node = staging_new_id(s);
		std::string name = "shard" + std::to_string(cut);
		staged *f = outgrown(s, node, bytes, name.c_str());
		ASSERT_TRUE(f);
		ASSERT_EQ(staged_resize(f, cut), 0);
		ASSERT_TRUE(Writer(f).write(more, cut));
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_EQ(staged_finish(f), 0);
		ASSERT_GT(seal(s, f, node, {{root, name}}, true, staged_spilled(f) ? REC_SPILLED : 0), 0);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_SAME(read_file(ground.store() + "/" + name), bytes.substr(0, cut) + more);
		staged_unref(f);
		EXPECT_TRUE(tmp_is_empty());
	}
}

// The store is full: the move fails, nothing is lost, and there is space again later.
TEST_P(Outgrow, AStoreThatFails)
{
	Options o = with();
	o.fault = "1:@1+:enospc";
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	staged *f = create(s, staging_new_id(s), {root, "shard"}, 4 * mib);
	ASSERT_TRUE(f);
	std::string bytes = pattern(64 * mib, 8);
	Writer w(f);
	ASSERT_TRUE(w.write(bytes, 0));
	EXPECT_EQ(staged_move_out(f), -ENOSPC);
	EXPECT_FALSE(staged_outgrown(f));
	EXPECT_GE(w.memory(), 64 * mib);
	int fd;
	ASSERT_EQ(staged_use(f, &fd), 0);
	EXPECT_SAME(read_fd(fd), bytes);
	staged_unuse(f);
	staged_unref(f);
}

// A file that is longer than the store can hold one is refused, and no other: memory is not limited for it, nor filled
// by it.
TEST_P(Outgrow, OneThatIsTooLong)
{
	unsigned limited = 0;
	Options o = with();
	o.limits = [&](bool) { limited++; };
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	uint64_t node = staging_new_id(s), other = staging_new_id(s);
	staged *f = create(s, node, {root, "long"}, 4 * mib);
	ASSERT_TRUE(f);
	std::string bytes = pattern(64 * mib, 8);
	Writer w(f);
	ASSERT_TRUE(w.write(bytes, 0));
	struct rlimit was, now;
	ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &was), 0);
	signal(SIGXFSZ, SIG_IGN);
	now = {16 * mib, was.rlim_max};
	ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
	int err = 0;
	for (int i = 0; i < 5 && (err == 0 || err == -EFBIG); i++) {
		err = staged_move_out(f);
		staged_limit(f, err);
	}
	ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &was), 0);
	EXPECT_EQ(err, -EFBIG);
	EXPECT_EQ(limited, 0u);
	staged_too_long(f);
	staged_drop_rest(f);
	EXPECT_LE(w.memory(), 2 * mib);
	EXPECT_EQ(staged_torn(f), -EFBIG);
	EXPECT_EQ(staged_allocate(f), -EFBIG);

	staged *g = create(s, other, {root, "other"}, 4 * mib);
	ASSERT_TRUE(g);
	ASSERT_TRUE(write_all(g, "fits"));
	EXPECT_GT(seal(s, g, other, {{root, "other"}}, true), 0);
	EXPECT_EQ(s.drain(), 0);
	EXPECT_EQ(staged_resize(f, 0), 0);	// begun anew it can be written
	EXPECT_EQ(staged_torn(f), 0);
	staged_unref(g);
	staged_unref(f);
}

// Its EIO is not taken for a file that was written again where it had moved.
TEST_P(Outgrow, AStoreThatFailsIsTriedAgain)
{
	Options o = with();
	o.fault = "1:@1+:eio";
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	staged *f = create(s, staging_new_id(s), {root, "shard"}, 4 * mib);
	ASSERT_TRUE(f);
	Writer w(f);
	ASSERT_TRUE(w.write(pattern(64 * mib, 9), 0));
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(staged_move_out(f), -EIO);
		EXPECT_FALSE(staged_rewritten(f));
	}
	staged_unref(f);
}

// All is killed after the close was answered, and before its RELEASE; and before any close.
TEST_P(Outgrow, FoundAgain)
{
	std::string bytes = pattern(64 * mib, 9);
	for (bool flushed : {true, false}) {
		pid_t pid = fork();
		if (pid == 0) {
			Staging s(ground, with());
			uint64_t node = s.err ? 0 : staging_new_id(s);
			staged *f = s.err ? nullptr : outgrown(s, node, bytes, flushed ? "shut" : "open");
			if (!f)
				_exit(1);
			_exit(flushed && log_flushed(s, f, node, "shut") ? 2 : 0);
		}
		int status;
		ASSERT_EQ(waitpid(pid, &status, 0), pid);
		ASSERT_EQ(status, 0);
		Staging s(ground, with());
		ASSERT_EQ(s.err, 0);
		ASSERT_EQ(s.drain(), 0);
		if (flushed) {
			EXPECT_SAME(read_file(ground.store() + "/shut"), bytes);
		} else {
			EXPECT_EQ(s.stats().recovered.lost_found, 1u);
			for (auto &e : std::filesystem::directory_iterator(ground.store() + "/.cairn/lost+found"))
				EXPECT_SAME(read_file(e.path()), bytes);
		}
		EXPECT_TRUE(tmp_is_empty());
	}
}

// Its close was answered, the rest of it followed, and everything was killed before the seal.
TEST_P(Outgrow, ClosedAndFoundInTheStore)
{
	std::string bytes = pattern(64 * mib, 11);
	ASSERT_EQ(dies([&] {
		Staging s(ground, with());
		uint64_t node = s.err ? 0 : staging_new_id(s);
		staged *sf = s.err ? nullptr : outgrown(s, node, bytes);
		if (!sf || staged_allocate(sf) || log_flushed(s, sf, node, "shard"))
			_exit(1);
		_exit(staged_finish(sf) || !staged_spilled(sf));
	}), 0);
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.stats().recovered.lost_found, 0u);
	EXPECT_SAME(read_file(ground.store() + "/shard"), bytes);
}

// What tmp/ has of it is a part: without the file in staging it is no version, whatever answered for it.
TEST_P(Outgrow, FoundWithoutItsStagedFile)
{
	for (std::string how : {"sealed", "synced", "closed"}) {
		std::string bytes = pattern(64 * mib, 10);
		ASSERT_EQ(dies([&] {
			Options o = with();
			o.start = false;
			Staging s(ground, o);
			uint64_t node = s.err ? 0 : staging_new_id(s);
			staged *sf = s.err ? nullptr : outgrown(s, node, bytes);
			if (!sf || staged_allocate(sf) || (how == "synced" && staged_allocate_copy(sf)))
				_exit(1);
			_exit(how == "closed" ? log_flushed(s, sf, node, "shard")
					      : seal(s, sf, node, {{root, "shard"}}, how == "sealed") <= 0);
		}), 0);
		unsigned gone = 0;
		for (auto &e : std::filesystem::recursive_directory_iterator(ground.run()))
			if (e.is_regular_file() && e.file_size() >= 64 * mib)
				gone += std::filesystem::remove(e.path());
		ASSERT_EQ(gone, 1u);
		Staging s(ground, with());
		ASSERT_EQ(s.err, 0);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_FALSE(std::filesystem::exists(ground.store() + "/shard")) << how;
		EXPECT_EQ(s.notes_with(how == "synced" ? "that version is skipped" : "that version is lost"), 1) << how;
		if (how != "sealed") {
			EXPECT_FALSE(std::filesystem::is_empty(ground.store() + "/.cairn/lost+found")) << how;
		}
		std::filesystem::remove_all(ground.store() + "/.cairn/lost+found");
	}
}

// A file whose earlier version is durable was opened again and outgrew memory; then the worker died. A reader's close
// stands in the log between that version and the writer's open.
TEST_P(Outgrow, FoundAgainAfterAnEarlierVersion)
{
	std::string bytes = pattern(64 * mib, 21);
	ASSERT_EQ(dies([&] {
		Staging s(ground, with());
		staged *sf = opened_again(s, bytes.substr(0, 8 * mib), false);
		if (!sf)
			_exit(1);
		Writer w(sf);
		_exit(w.write(bytes.substr(8 * mib), 8 * mib) && !staged_move_out(sf) && staged_outgrown(sf) ? 0 : 2);
	}), 0);
	Staging s(ground, next("log", true));
	ASSERT_EQ(s.err, 0);
	ASSERT_TRUE(f);
	s.start();
	ASSERT_TRUE(staged_outgrown(f)) << "its bytes are gone";
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_EQ(staged_finish(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "log"}}, true, staged_spilled(f) ? REC_SPILLED : 0), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/log"), bytes);
	staged_unref(f);
}

// The worker dies, and the writer changes a byte of each page that had moved: staging has no hole then, and zeros for
// what is in the store. That is not the file.
TEST_P(Outgrow, FoundAgainWithAllThatMovedPatched)
{
	ASSERT_EQ(dies([&] {
		Staging s(ground, with());
		staged *sf = s.err ? nullptr : outgrown(s, staging_new_id(s), pattern(64 * mib, 22));
		if (!sf)
			_exit(1);
		Writer w(sf);
		for (uint64_t off = 5; off < 64 * mib; off += 4096)
			if (!w.write("x", off))
				_exit(2);
		_exit(0);
	}), 0);
	Staging s(ground, next("shard"));
	ASSERT_EQ(s.err, 0);
	ASSERT_TRUE(f);
	s.start();
	EXPECT_TRUE(staged_outgrown(f)) << "zeros are taken for its bytes";
	EXPECT_EQ(staged_finish(f), -EIO);
	staged_unref(f);
}

// Who waited for a move that moved nothing is not told that the file is in two places.
TEST_P(Outgrow, AMoveIsOverWhenItReturns)
{
	Staging s(ground, with());
	ASSERT_EQ(s.err, 0);
	staged *f = create(s, staging_new_id(s), {root, "shard"}, 4 * mib);
	ASSERT_TRUE(f && Writer(f).write(pattern(mib, 14), 0));
	staged_set_moving(f);
	EXPECT_TRUE(staged_outgrown(f));
	ASSERT_EQ(staged_move_out(f), 0);
	EXPECT_FALSE(staged_outgrown(f));
	staged_unref(f);
}

// A worker starts without the store. A file with a hole is served, for it was never moved; of what was moved
// nothing is served as if it were zeros, and the worker that has the store again serves it.
TEST_P(Outgrow, FoundWhereTheStoreIsGone)
{
	std::string bytes = pattern(64 * mib, 12), half = pattern(3 * mib, 13);
	pid_t pid = fork();
	if (pid == 0) {
		Staging s(ground, with());
		staged *f = s.err ? nullptr : create(s, staging_new_id(s), {root, "sparse"}, 4 * mib);
		if (!f || !Writer(f).write(half, 0) || staged_resize(f, 16 * mib))
			_exit(1);
		_exit(!outgrown(s, staging_new_id(s), bytes, "moved"));
	}
	int status;
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	ASSERT_EQ(status, 0);
	half.resize(16 * mib);
	for (bool away : {true, false}) {
		SCOPED_TRACE(away ? "away" : "back");
		Options o = with(false);
		staged *sparse = nullptr, *moved = nullptr;
		o.away = away;
		o.each = [&](staging *st, const rec *r) {
			if (r->type != REC_CREATE)
				return;
			EXPECT_EQ(staged_recover(st, r, std::string(r->name) == "sparse" ? &sparse : &moved), 0);
		};
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		ASSERT_TRUE(sparse && moved);
		EXPECT_FALSE(staged_outgrown(sparse));
		int fd;
		ASSERT_EQ(staged_use(sparse, &fd), 0);
		EXPECT_SAME(read_fd(fd), half);
		staged_unuse(sparse);
		EXPECT_TRUE(staged_outgrown(moved));
		ASSERT_EQ(staged_finish(moved) == 0, !away);
		if (away) // killed: the files are still open
			continue;
		ASSERT_EQ(staged_use(moved, &fd), 0);
		EXPECT_SAME(read_fd(fd), bytes);
		staged_unuse(moved);
		staged_unref(sparse);
		staged_unref(moved);
	}
}

// All is killed between two steps of a truncation, into what has moved: the file is as long as it was or as it
// was to become, and has its bytes.
class OutgrowKilled : public Outgrow
{
};
INSTANTIATE_TEST_SUITE_P(Posix, OutgrowKilled, ::testing::Values("posix"));

TEST_P(OutgrowKilled, AsItIsTruncated)
{
	std::string bytes = pattern(32 * mib, 10);
	for (uint64_t cut : {3 * mib + 17, (uint64_t)100})
		for (int steps = 0, code = 0; code == 0; steps++) {
			SCOPED_TRACE("cut to " + std::to_string(cut) + ", after " + std::to_string(steps) + " steps");
			pid_t pid = fork();
			if (pid == 0) {
				Staging s(ground, with());
				uint64_t node = s.err ? 0 : staging_new_id(s);
				staged *f = s.err ? nullptr : outgrown(s, node, bytes);
				if (!f || log_flushed(s, f, node, "shard"))
					_exit(1);
				steps_left = steps;
				_exit(staged_resize(f, cut) ? 2 : 3);
			}
			int status;
			ASSERT_EQ(waitpid(pid, &status, 0), pid);
			ASSERT_TRUE(WIFEXITED(status));
			code = WEXITSTATUS(status);
			ASSERT_TRUE(code == 0 || code == 3) << code;
			Staging s(ground, with());
			ASSERT_EQ(s.err, 0);
			ASSERT_EQ(s.drain(), 0);
			std::string got = read_file(ground.store() + "/shard");
			ASSERT_TRUE(got.size() == cut || (code == 0 && got.size() == bytes.size())) << got.size();
			ASSERT_SAME(got, bytes.substr(0, got.size()));
			EXPECT_EQ(s.stats().recovered.lost_found, 0u);
			ASSERT_TRUE(code == 0 || steps > 0);
		}
}

// A worker dies so, and the next one is asked for the same truncation again. Then the file gets longer, and what it
// gets is a hole: it reads as zeros, not as what was cut off.
TEST_P(OutgrowKilled, AndTruncatedAgain)
{
	std::string bytes = pattern(32 * mib, 11), want = bytes.substr(0, 3 * mib + 17);
	want.resize(32 * mib);
	for (int steps = 0, code = 0; code == 0; steps++) {
		SCOPED_TRACE("after " + std::to_string(steps) + " steps");
		std::string name = "shard" + std::to_string(steps);
		pid_t pid = fork();
		if (pid == 0) {
			Staging s(ground, with());
			uint64_t node = s.err ? 0 : staging_new_id(s);
			staged *f = s.err ? nullptr : outgrown(s, node, bytes, name.c_str());
			if (!f)
				_exit(1);
			steps_left = steps;
			_exit(staged_resize(f, 3 * mib + 17) ? 2 : 3);
		}
		int status;
		ASSERT_EQ(waitpid(pid, &status, 0), pid);
		ASSERT_TRUE(WIFEXITED(status));
		code = WEXITSTATUS(status);
		ASSERT_TRUE(code == 0 || code == 3) << code;
		Options o = with();
		staged *f = nullptr;
		uint64_t node = 0;
		o.orphaned = false;
		o.each = [&](staging *st, const rec *r) {
			if (r->type != REC_CREATE || r->name != name)
				return;
			node = r->node;
			EXPECT_EQ(staged_recover(st, r, &f), 0);
		};
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		ASSERT_TRUE(f);
		ASSERT_EQ(staged_resize(f, 3 * mib + 17), 0);
		ASSERT_EQ(staged_resize(f, 32 * mib), 0);
		ASSERT_TRUE(Writer(f).write("end", 32 * mib - 3));
		ASSERT_EQ(staged_move_out(f), 0);
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_EQ(staged_finish(f), 0);
		ASSERT_GT(seal(s, f, node, {{root, name}}, true, staged_spilled(f) ? REC_SPILLED : 0), 0);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_SAME(read_file(ground.store() + "/" + name), want.substr(0, 32 * mib - 3) + "end");
		staged_unref(f);
	}
}

// A worker dies between two steps of a change, the next one is asked for it again, and goes on: older bytes move once
// more, and it dies as well before what it was to remove is removed. The third one has all of the file.
class OutgrowKilledTwice : public OutgrowKilled
{
protected:
	// change: 0 or -errno, of the file's bytes `before`, which have outgrown memory already or not.
	void each_step(bool moved, const std::function<int(staged *)> &change, const std::string &after)
	{
		for (int steps = 0, code = 0; code == 0; steps++) {
			SCOPED_TRACE("after " + std::to_string(steps) + " steps");
			name = "shard" + std::to_string(steps);
			code = dies([&] {
				Staging s(ground, with());
				uint64_t id = s.err ? 0 : staging_new_id(s);
				staged *sf = s.err ? nullptr
					     : moved ? outgrown(s, id, before, name.c_str())
						     : create(s, id, {root, name}, 4 * mib);
				if (!sf || (!moved && !Writer(sf).write(before, 0)))
					_exit(1);
				steps_left = steps;
				_exit(change(sf) ? 2 : 3);
			});
			ASSERT_TRUE(code == 0 || code == 3) << code;
			again(change, after);
			ASSERT_FALSE(HasFailure());
			ASSERT_TRUE(code == 0 || steps > 0);
		}
	}
	std::string before = pattern(32 * mib, 15);

private:
	void again(const std::function<int(staged *)> &change, const std::string &after)
	{
		f = nullptr;
		{
			Staging s(ground, next(name));
			ASSERT_EQ(s.err, 0);
			ASSERT_TRUE(f);
			ASSERT_EQ(change(f), 0);
			if (!staged_spilled(f)) {
				ASSERT_TRUE(Writer(f).write(after.substr(info(f).size), info(f).size));
				ASSERT_EQ(staged_move_out(f), 0);
				EXPECT_TRUE(staged_outgrown(f));
			}
		}
		f = nullptr;
		Staging s(ground, next(name));
		ASSERT_EQ(s.err, 0);
		ASSERT_TRUE(f) << "its bytes are gone";
		s.start();
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_EQ(staged_finish(f), 0);
		EXPECT_FALSE(staged_outgrown(f));
		ASSERT_GT(seal(s, f, node, {{root, name}}, true, staged_spilled(f) ? REC_SPILLED : 0), 0);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_SAME(read_file(ground.store() + "/" + name), after);
		staged_unref(f);
		EXPECT_TRUE(tmp_is_empty());
	}
	std::string name;
};

// The same for a file written through the daemon, whose bytes move all at once: it dies when they are copied, and the
// next one copies them again.
TEST_P(OutgrowKilled, AsItIsSpilled)
{
	std::string bytes = pattern(60 * mib, 18);
	ASSERT_EQ(dies([&] {
		Staging s(ground, with());
		staged *sf = s.err ? nullptr : create(s, staging_new_id(s), {root, "shard"}, 4 * mib);
		if (!sf)
			_exit(1);
		only_cuts = true;
		steps_left = 0;
		_exit(write_all(sf, bytes) ? 2 : 3);
	}), 0);
	{
		Staging s(ground, next("shard"));
		ASSERT_EQ(s.err, 0);
		ASSERT_TRUE(f);
		EXPECT_FALSE(staged_spilled(f));
		ASSERT_TRUE(write_all(f, bytes));
		EXPECT_TRUE(staged_spilled(f));
	}
	f = nullptr;
	Staging s(ground, next("shard"));
	ASSERT_EQ(s.err, 0);
	ASSERT_TRUE(f) << "its bytes are gone";
	s.start();
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "shard"}}, true, REC_SPILLED), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/shard"), bytes);
	staged_unref(f);
}

// It was durable in memory before, and was opened again: what is in the store's tmp/ has no name yet.
TEST_P(OutgrowKilled, WhenItHadSpilledAfterAnEarlierVersion)
{
	std::string bytes = pattern(60 * mib, 22);
	ASSERT_EQ(dies([&] {
		Staging s(ground, with());
		staged *sf = opened_again(s, bytes.substr(0, 8 * mib), true);
		if (!sf)
			_exit(1);
		_exit(write_all(sf, bytes.substr(8 * mib), 8 * mib) && staged_spilled(sf) ? 0 : 2);
	}), 0);
	Staging s(ground, next("log", true));
	ASSERT_EQ(s.err, 0);
	ASSERT_TRUE(f);
	s.start();
	int fd = -1;
	ASSERT_EQ(staged_use(f, &fd), 0) << "it counts as published";
	std::string got(bytes.size(), 0);
	EXPECT_EQ(staged_read(f, got.data(), got.size(), 0), (ssize_t)got.size());
	EXPECT_SAME(got, bytes);
	staged_unuse(f);
	ASSERT_EQ(staged_allocate(f), 0);
	ASSERT_GT(seal(s, f, node, {{root, "log"}}, true, REC_SPILLED), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_SAME(read_file(ground.store() + "/log"), bytes);
	staged_unref(f);
	EXPECT_TRUE(tmp_is_empty());
}

INSTANTIATE_TEST_SUITE_P(Posix, OutgrowKilledTwice, ::testing::Values("posix"));

TEST_P(OutgrowKilledTwice, AsItIsMoved)
{
	each_step(false, staged_move_out, before);
}

TEST_P(OutgrowKilledTwice, AsItIsCutToNothing)
{
	each_step(true, [](staged *f) { return staged_resize(f, 0); }, pattern(32 * mib, 16));
}

TEST_P(OutgrowKilledTwice, AsItIsCutShort)
{
	each_step(true, [](staged *f) { return staged_resize(f, 100); }, before.substr(0, 100) + pattern(32 * mib, 17));
}

TEST_P(OutgrowKilledTwice, AsItIsFinished)
{
	each_step(true, [](staged *f) { return staged_allocate(f) ?: staged_finish(f); }, before);
}

} // namespace

// Death after so many of the calls that change a file.
extern "C" int ftruncate(int fd, off_t len)
{
	step(true);
	return (int)syscall(SYS_ftruncate, fd, len);
}
extern "C" int fchmod(int fd, mode_t mode)
{
	step();
	return (int)syscall(SYS_fchmod, fd, mode);
}
extern "C" int unlinkat(int fd, const char *name, int flags)
{
	step();
	return (int)syscall(SYS_unlinkat, fd, name, flags);
}
extern "C" ssize_t pwrite(int fd, const void *buf, size_t len, off_t off)
{
	step();
	return syscall(SYS_pwrite64, fd, buf, len, off);
}
extern "C" int fallocate(int fd, int mode, off_t off, off_t len)
{
	step();
	return (int)syscall(SYS_fallocate, fd, mode, off, len);
}

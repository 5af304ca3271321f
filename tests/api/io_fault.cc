// SPDX-License-Identifier: MIT
//
// The fault engine, and with it: fail the Nth store operation, for every N, until a run
// is clean. Whatever N, the error is told and names show an old or a new whole file.
#include <sys/xattr.h>

#include <algorithm>

#include "tests/api/io_fixture.hh"

namespace
{

const char old_bytes[] = "the old version";

std::string at(unsigned n, const char *kinds)
{
	return "1:@" + std::to_string(n) + ":" + kinds;
}

class Fault : public ::testing::TestWithParam<const char *>
{
protected:
	TempDir dir;
};

INSTANTIATE_TEST_SUITE_P(All, Fault, ::testing::Values("uring", "posix"));

struct Publish {
	Publish(Engine &e, Store &s, Source &src) : e(e), s(s), src(src) {}

	// The steps of a persist, in order; the first error ends it.
	int run(uint64_t vid)
	{
		io_attr a = {};
		a.mask = IO_ATTR_MODE | IO_ATTR_OWNER | IO_ATTR_MTIME;
		a.mode = 0640;
		a.uid = geteuid();
		a.gid = getegid();
		a.mtime = {1234567, 89};
		io_source in = src.get();
		bool direct;
		Fd fd(io_tmp_create(s, vid, true, &direct));
		int err = fd.get() < 0 ? fd.release() : 0;

		step = 1;
		if (!err && ++step)
			err = io_allocate(s, fd.get(), 0, in.size);
		if (!err && ++step)
			err = io_write_file(e.q, fd.get(), direct, &in);
		if (!err && ++step)
			err = io_set_xattr(s, -1, nullptr, fd.get(), "user.cairn.checksum", "x", 1, 0);
		if (!err && ++step)
			err = io_set_attr_fd(s, fd.get(), &a);
		if (!err && ++step)
			err = io_sync_data(s, fd.get());
		if (!err && ++step)
			err = io_publish(s, vid, s.root(), "name");
		if (!err)
			published = true;
		if (!err && ++step)
			err = io_sync_dir(s, s.root());
		if (!err && ++step)
			err = io_sync_all(s);
		return err;
	}

	Engine &e;
	Store &s;
	Source &src;
	int step = 0;
	bool published = false;
};

void publish_under_faults(const char *engine, const char *kind, int want)
{
	TempDir dir;
	Source src(70000);
	unsigned n = 0, failed_steps = 0;

	src.data(0, 30000, 1);
	src.data(50000, 20000, 2);
	for (bool clean = false; !clean; n++) {
		ASSERT_LT(n, 100u);
		Engine e(engine, at(n + 1, kind).c_str(), 16384, 2);
		Store s(e, dir.path);
		ASSERT_EQ(s.err, 0);
		write_file(dir / "name", old_bytes);
		Publish p(e, s, src);
		int err = p.run(n);
		clean = !e.counts().faults;
		EXPECT_EQ(err, clean ? 0 : want) << "operation " << n + 1;
		EXPECT_EQ(e.counts().errors, clean ? 0u : 1u);
		failed_steps |= clean ? 0 : 1u << p.step;
		ASSERT_SAME(read_file(dir / "name"), p.published ? src.bytes() : old_bytes)
			<< "operation " << n + 1;
		if (!clean) { // and the store works again
			EXPECT_EQ(io_tmp_remove(s, n), 0);
		}
	}
	EXPECT_EQ(failed_steps, 0x3feu); // each of the nine steps was hit
	EXPECT_EQ(n, 8u + 2 + 4 + 1); // the write: two truncates, four chunks; one clean run
}

TEST_P(Fault, PublishIsAllOrNothingUnderEio)
{
	publish_under_faults(GetParam(), "eio", -EIO);
}

TEST_P(Fault, PublishIsAllOrNothingUnderEnospc)
{
	publish_under_faults(GetParam(), "enospc", -ENOSPC);
}

// All that can be told about a tree, as one text. Of .cairn only the unpublished files.
std::string snapshot(const std::string &root)
{
	std::string out;

	for (auto it = std::filesystem::recursive_directory_iterator(root);
	     it != std::filesystem::recursive_directory_iterator(); ++it) {
		std::string path = it->path();
		struct stat st = {};
		char value[16];

		if (path.find(".cairn") != std::string::npos && path.find("/tmp/") == std::string::npos)
			continue;
		lstat(path.c_str(), &st);
		ssize_t n = lgetxattr(path.c_str(), "user.k", value, sizeof(value));
		out += path + " " + std::to_string(st.st_mode) + " " + std::to_string(st.st_nlink) +
		       " " + std::to_string(st.st_blocks) + " " +
		       std::string(value, n > 0 ? (size_t)n : 0) + " " +
		       (S_ISREG(st.st_mode) ? read_file(path) : "") + "\n";
	}
	return out;
}

struct Op {
	const char *what;
	std::function<int(Store &)> run;
};

int with_tmp(Store &s, const std::function<int(int)> &body)
{
	Fd fd(io_tmp_open(s, 77, O_RDWR));
	return body(fd.get());
}

int set_mode(Store &s, mode_t mode)
{
	io_attr a = {};

	a.mask = IO_ATTR_MODE;
	a.mode = mode;
	return io_set_attr(s, s.root(), "a", &a);
}

const std::vector<Op> every_op = {
	{"create", [](Store &s) {
		 bool direct;
		 Fd fd(io_tmp_create(s, 78, false, &direct));
		 return fd.get() < 0 ? fd.release() : 0;
	 }},
	{"remove tmp", [](Store &s) { return io_tmp_remove(s, 77); }},
	{"allocate", [](Store &s) {
		 return with_tmp(s, [&](int fd) { return io_allocate(s, fd, 0, 1 << 20); });
	 }},
	{"pwrite", [](Store &s) {
		 return with_tmp(s, [&](int fd) { return io_pwrite(s, fd, "abc", 3, 0); });
	 }},
	{"truncate", [](Store &s) {
		 return with_tmp(s, [&](int fd) { return io_truncate(s, fd, 1); });
	 }},
	{"publish", [](Store &s) { return io_publish(s, 77, s.root(), "b"); }},
	{"mkdir", [](Store &s) { return io_mkdir(s, s.root(), "d2", 0755); }},
	{"symlink", [](Store &s) { return io_symlink(s, "t", s.root(), "l2"); }},
	{"mknod", [](Store &s) { return io_mknod(s, s.root(), "p2", S_IFIFO | 0600); }},
	{"link", [](Store &s) { return io_link(s, s.root(), "a", s.root(), "a2"); }},
	{"link over", [](Store &s) { return io_link(s, s.root(), "a", s.root(), "b"); }},
	{"rename", [](Store &s) { return io_rename(s, s.root(), "a", s.root(), "b", 0); }},
	{"exchange", [](Store &s) {
		 return io_rename(s, s.root(), "a", s.root(), "d", RENAME_EXCHANGE);
	 }},
	{"unlink", [](Store &s) { return io_unlink(s, s.root(), "a"); }},
	{"rmdir", [](Store &s) { return io_rmdir(s, s.root(), "d"); }},
	{"attr", [](Store &s) { return set_mode(s, 0700); }},
	{"set xattr", [](Store &s) {
		 return io_set_xattr(s, s.root(), "a", -1, "user.k", "new", 3, 0);
	 }},
	{"remove xattr", [](Store &s) { return io_remove_xattr(s, s.root(), "a", "user.k"); }},
};

void make_tree(TempDir &d)
{
	Engine e;
	Store s(e, d.path);
	bool direct;
	Fd fd(io_tmp_create(s, 77, false, &direct));

	write_file(d / "a", "A");
	write_file(d / "b", "B");
	mkdir((d / "d").c_str(), 0700);
	EXPECT_EQ(io_set_xattr(s, s.root(), "a", -1, "user.k", "old", 3, 0), 0);
	EXPECT_EQ(io_pwrite(s, fd.get(), "tmp", 3, 0), 0);
	EXPECT_EQ(fsync(fd.get()), 0);
}

// Each goes through the table, and one that fails has changed nothing.
TEST_P(Fault, EveryOperationCanFailAndThenChangedNothing)
{
	for (auto &op : every_op) {
		bool clean = false;
		for (unsigned n = 1; !clean; n++) {
			TempDir d;
			make_tree(d);
			std::string before = snapshot(d.path);
			Engine e(GetParam(), at(n, "eio").c_str());
			Store s(e, d.path);

			ASSERT_EQ(s.err, 0);
			int err = op.run(s);
			clean = !e.counts().faults;
			EXPECT_TRUE(n > 1 || !clean) << op.what << " is not in the table";
			EXPECT_EQ(err, clean ? 0 : -EIO) << op.what;
			if (clean)
				EXPECT_NE(snapshot(d.path), before) << op.what;
			else
				EXPECT_EQ(snapshot(d.path), before) << op.what;
		}
	}
}

// Makes an unpublished file of log `log`.
int make_unpublished(Store &s, uint64_t log, uint64_t id, const char *bytes)
{
	uint64_t of;
	bool direct;
	int err = io_tmp_claim(s, log, true, &of);
	Fd fd(err < 0 ? err : io_tmp_create(s, id, false, &direct));

	if (fd.get() < 0)
		return fd.release();
	return write(fd.get(), bytes, strlen(bytes)) == (ssize_t)strlen(bytes) ? 0 : -EIO;
}

// A log that is gone: what it had in the store is always somewhere, and in the end in lost+found. Another log's stays.
TEST_P(Fault, WhatALogThatIsGoneLeftIsKept)
{
	bool clean = false;

	for (unsigned n = 1; !clean; n++) {
		TempDir d;
		std::string host;
		uint64_t of = 0;
		{
			Engine e(GetParam());
			Store s(e, d.path);
			ASSERT_EQ(make_unpublished(s, 1, 16, "one"), 0);
			ASSERT_EQ(make_unpublished(s, 1, 17, ""), 0);
			ASSERT_EQ(make_unpublished(s, 2, 16, "two"), 0);
			ASSERT_EQ(io_tmp_claim(s, 3, true, &of), 1);
			EXPECT_EQ(of, 2u);
			host = d / (std::string(".cairn/") + io_store_host(s));
		}
		std::string lost = d / ".cairn/lost+found/file.0000000000000001.0000000000000010";
		auto others = [&] {
			for (auto &at : std::filesystem::directory_iterator(host))
				if (at.path().filename().string().compare(0, 20, "tmp-0000000000000002") == 0)
					return read_file(at.path() / "0000000000000010");
			return std::string();
		};
		{
			Engine e(GetParam(), at(n, "eio").c_str());
			Store s(e, d.path);
			ASSERT_EQ(s.err, 0);
			int kept = io_tmp_keep(s, 1);
			clean = !e.counts().faults;
			EXPECT_TRUE(n > 1 || !clean);
			EXPECT_EQ(kept, clean ? 1 : -EIO);
		}
		EXPECT_EQ(others(), "two");
		Engine e(GetParam());
		Store s(e, d.path);
		EXPECT_GE(io_tmp_keep(s, 1), 0);
		EXPECT_EQ(read_file(lost), "one");
		EXPECT_EQ(others(), "two");
		EXPECT_EQ(io_tmp_keep(s, 1), 0);
	}
}

TEST_P(Fault, FromTheNthOnAllFail)
{
	Engine e(GetParam(), "1:@3+:eio");
	Store s(e, dir.path);

	EXPECT_EQ(io_mkdir(s, s.root(), "1", 0700), 0);
	EXPECT_EQ(io_mkdir(s, s.root(), "2", 0700), 0);
	for (int i = 0; i < 5; i++)
		EXPECT_EQ(io_mkdir(s, s.root(), "3", 0700), -EIO);
	EXPECT_EQ(e.counts().faults, 5u);
}

TEST_P(Fault, ManyFailAtOnceAndAllComeBack)
{
	Engine e(GetParam(), "1:@5+:eio", 4096, 8); // create, truncate, two chunks
	Store s(e, dir.path);
	Source src(200000);
	bool d;
	Fd fd(io_tmp_create(s, 1, true, &d));

	src.data(0, 200000, 1);
	io_source in = src.get();
	EXPECT_EQ(io_write_file(e.q, fd.get(), d, &in), -EIO);
	EXPECT_EQ(io_queue_inflight(e.q), 0u);
	EXPECT_EQ(e.counts().write_bytes, 8192u);
	EXPECT_EQ(e.counts().faults, 6u);
	EXPECT_EQ(e.counts().errors, 6u);
}

std::string run_by_rate(const char *engine, const char *spec, const std::string &path)
{
	Engine e(engine, spec);
	Store s(e, path);
	std::string out;

	for (int i = 0; i < 400; i++) {
		int err = io_mkdir(s, s.root(), "x", 0700);

		if (!err)
			rmdir((path + "/x").c_str());
		out += err == -EIO ? 'i' : err == -ENOSPC ? 's' : err ? '?' : '.';
	}
	return out;
}

TEST_P(Fault, SeedAndRateDecide)
{
	std::string one = run_by_rate(GetParam(), "1:10:eio,enospc", dir.path);
	auto faults = one.size() - (size_t)std::count(one.begin(), one.end(), '.');

	EXPECT_EQ(one, run_by_rate(GetParam(), "1:10:eio,enospc", dir.path));
	EXPECT_NE(one, run_by_rate(GetParam(), "2:10:eio,enospc", dir.path));
	EXPECT_GT(faults, 15u);
	EXPECT_LT(faults, 80u);
	EXPECT_NE(one.find('i'), one.npos);
	EXPECT_NE(one.find('s'), one.npos);
	EXPECT_EQ(run_by_rate(GetParam(), "1:0:eio", dir.path), std::string(400, '.'));
}

TEST_P(Fault, DelayOnlyDelays)
{
	Engine e(GetParam(), "3:3:delay", 4096, 4);
	Store s(e, dir.path);
	Source src(100000);
	bool d;
	Fd fd(io_tmp_create(s, 1, true, &d));

	src.data(0, 100000, 1);
	io_source in = src.get();
	ASSERT_EQ(io_write_file(e.q, fd.get(), d, &in), 0);
	EXPECT_EQ(io_sync_data(s, fd.get()), 0);
	EXPECT_GT(e.counts().faults, 0u);
	EXPECT_EQ(e.counts().errors, 0u);
	EXPECT_SAME(read_fd(fd.get()), src.bytes());
}

TEST_P(Fault, ShortPwriteGoesOn)
{
	Engine e(GetParam(), "1:1:short");
	Store s(e, dir.path);
	std::string bytes = pattern(100000, 1);
	bool d;
	Fd fd(io_tmp_create(s, 1, false, &d));

	ASSERT_EQ(io_pwrite(s, fd.get(), bytes.data(), bytes.size(), 5), 0);
	EXPECT_GT(e.counts().faults, 3u);
	EXPECT_SAME(read_fd(fd.get()), std::string(5, '\0') + bytes);
}

TEST_P(Fault, LostSyncDropsWhatWasWrittenSince)
{
	Engine e(GetParam(), "1:@2:lostsync", 16384, 4); // the second sync
	Store s(e, dir.path);
	Source src(70000);
	bool d;
	Fd fd(io_tmp_create(s, 1, true, &d));
	std::string later = pattern(8192, 5);

	src.data(0, 70000, 1);
	io_source in = src.get();
	ASSERT_EQ(io_write_file(e.q, fd.get(), d, &in), 0);
	ASSERT_EQ(io_sync_data(s, fd.get()), 0);
	Fd plain(io_tmp_open(s, 1, O_RDWR));
	ASSERT_EQ(io_pwrite(s, plain.get(), later.data(), later.size(), 4096), 0);
	EXPECT_EQ(io_sync_data(s, plain.get()), -EIO);
	std::string expect = src.bytes();
	expect.replace(4096, 8192, std::string(8192, '\0'));
	EXPECT_SAME(read_fd(fd.get()), expect); // synced before: kept; after: gone
	EXPECT_EQ(io_sync_data(s, plain.get()), 0); // and the next one lies
	EXPECT_SAME(read_fd(fd.get()), expect);
}

TEST_P(Fault, LostSyncOfAllDropsEveryFile)
{
	Engine e(GetParam(), "1:@2:lostsync", 16384, 4);
	Store s(e, dir.path);
	Source src(50000);
	bool d;

	src.data(0, 50000, 1);
	io_source in = src.get();
	for (uint64_t vid = 1; vid <= 3; vid++) {
		Fd fd(io_tmp_create(s, vid, true, &d));
		ASSERT_EQ(io_write_file(e.q, fd.get(), d, &in), 0);
		if (vid == 1) {
			ASSERT_EQ(io_sync_data(s, fd.get()), 0);
		}
		ASSERT_EQ(io_publish(s, vid, s.root(), std::to_string(vid).c_str()), 0);
	}
	EXPECT_EQ(io_sync_all(s), -EIO);
	EXPECT_SAME(read_file(dir / "1"), src.bytes());
	EXPECT_SAME(read_file(dir / "2"), std::string(50000, '\0'));
	EXPECT_SAME(read_file(dir / "3"), std::string(50000, '\0'));
	EXPECT_EQ(io_sync_all(s), 0);
}

TEST(FaultSpec, MalformedIsRefused)
{
	for (auto bad : {"", "1", "1:", "1:1", "1:1:", "1:1:eio,", "1:1:eio,bad", "x:1:eio", "1:x:eio",
			 "1:@:eio", "1:@0:eio", "1:@0+:eio", "1:-1:eio", "1:1:EIO", "1:1+:eio",
			 "99999999999999999999:1:eio", " 1:1:eio", "1:1:eio ", "1:1:,eio"})
		EXPECT_EQ(Engine("posix", bad).err, -EINVAL) << bad;
	for (auto good : {"0:0:eio", "1:@1:short", "1:@7+:eio,enospc,short,delay,lostsync"})
		EXPECT_EQ(Engine("posix", good).err, 0) << good;
}

TEST(FaultSpec, NamesTheEngineBelow)
{
	EXPECT_STREQ(io_engine_name(Engine("posix", "1:0:eio").e), "posix+fault");
	EXPECT_STREQ(io_engine_name(Engine("posix").e), "posix");
	Engine plain("uring"), failing("uring", "1:0:eio");
	EXPECT_EQ(std::string(io_engine_name(plain.e)) + "+fault", io_engine_name(failing.e));
}

TEST(EngineOptions, Refused)
{
	EXPECT_EQ(Engine("aio").err, -EINVAL);
	EXPECT_EQ(Engine("").err, -EINVAL);
	EXPECT_EQ(Engine(nullptr).err, -EINVAL);
	EXPECT_EQ(Engine("posix", nullptr, 4097).err, -EINVAL);
	EXPECT_EQ(Engine("posix", nullptr, 0, 100000).err, -EINVAL);
}

} // namespace

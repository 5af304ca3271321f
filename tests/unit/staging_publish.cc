// SPDX-License-Identifier: MIT
// timeout: 300
//
// The order, published: with one store operation failing, for every one of them; with a
// worker that died between a change of the store and the note of it; and what waits for a
// mapping. The store is looked at from outside.
#include <sys/xattr.h>

#include <map>
#include <memory>

#include "../api/io_fixture.hh"
#include "loop.hh"
#include "staging/staging.h"

namespace
{

// In internal.h's struct head, which C++ cannot read.
constexpr off_t HEAD_APPLIED = 64, HEAD_DURABLE = 72;

class Shm {
public:
	Shm()
	{
		if (!mkdtemp(path.data()))
			throw std::system_error(errno, std::generic_category(), path);
		mkdir((path + "/huge").c_str(), 0700);
		mkdir((path + "/small").c_str(), 0700);
	}
	~Shm()
	{
		std::error_code ignored;
		std::filesystem::remove_all(path, ignored);
	}
	Fd open(const char *sub) const
	{
		return Fd(::open((path + sub).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	}
	std::string path = "/dev/shm/cairn-unit.XXXXXX";
};

// One life of the daemon's staging on a store; the next one finds what it left.
struct Life {
	Life(const std::string &store, const Shm &shm, const char *fault = nullptr)
		: e("posix", fault), s(e, store), base(shm.open("")), huge(shm.open("/huge")), small(shm.open("/small"))
	{
		staging_opts o = {};
		o.store = s;
		o.engine = e.e;
		o.place.base = base.get();
		o.place.huge = huge.get();
		o.place.small = small.get();
		o.place.lock = -1;
		o.budget_bytes = 256u << 20;
		o.notice = [](void *, const char *) {};
		EXPECT_EQ(staging_open(&o, &st), 0);
		EXPECT_EQ(staging_replay(st, nullptr, nullptr), 0);
	}
	Life(const Life &) = delete;
	Life &operator=(const Life &) = delete;
	~Life()
	{
		staging_close(st);
	}

	uint64_t log(uint32_t type, uint64_t node, const char *name, uint64_t dir = STAGING_ROOT_DIR,
		     const char *name2 = "", uint32_t flags = 0)
	{
		rec r = {};
		r.type = type;
		r.flags = flags;
		r.node = r.ino = node;
		r.node2 = type == REC_UNLINK ? node : 0;
		r.dir = dir;
		r.dir2 = type == REC_RENAME ? dir : 0;
		r.name = name;
		r.name2 = name2;
		r.mode = type == REC_MKDIR ? 0751 : 0644;
		r.uid = geteuid();
		r.gid = getegid();
		r.data = "target";
		r.data_len = type == REC_SYMLINK ? 7 : 0;
		EXPECT_EQ(staging_log(st, &r), 0);
		return r.seq;
	}

	// The reference stays ours: without one a durable version leaves staging.
	staged *write(uint64_t node, const std::string &bytes, uint64_t expected = 0)
	{
		staged *f = nullptr;
		EXPECT_EQ(staged_create(st, node, expected ? expected : bytes.size(), &f), 0);
		Fd fd(staged_open_rw(f));
		EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), (ssize_t)bytes.size());
		return f;
	}

	void seal(staged *f, uint64_t node, std::vector<rec_name> names)
	{
		rec r = {};
		void *data = nullptr;
		ssize_t len = rec_pack(names.data(), (unsigned)names.size(), nullptr, 0, &data);
		r.data = data;
		r.data_len = (uint32_t)len;
		r.node = r.ino = node;
		r.dir = names[0].dir;
		r.name = names[0].name;
		r.mode = 0640;
		r.uid = geteuid();
		r.gid = getegid();
		EXPECT_EQ(staging_seal(st, f, &r, true), 0);
		free(data);
	}

	void start()
	{
		EXPECT_EQ(staging_sweep(st, true), 0);
		EXPECT_EQ(staging_start(st), 0);
	}
	int drain() { return staging_drain(st, 60000); }

	Engine e;
	Store s;
	Fd base, huge, small;
	staging *st = nullptr;
};

std::string mark_of(const std::string &store)
{
	for (auto &at : std::filesystem::directory_iterator(store + "/.cairn"))
		if (std::filesystem::exists(at.path() / "mark"))
			return at.path() / "mark";
	return "";
}

// The last records up to `seq` count as published; what was done in the store stays.
void forget_after(const std::string &store, const Shm &shm, uint64_t seq)
{
	const timespec at[2] = {{0, UTIME_OMIT}, {(time_t)seq, 0}};
	std::string mark = mark_of(store);
	if (!mark.empty()) {
		ASSERT_EQ(utimensat(AT_FDCWD, mark.c_str(), at, 0), 0);
	}
	Fd head(open((shm.path + "/head").c_str(), O_RDWR));
	ASSERT_EQ(pwrite(head.get(), &seq, sizeof(seq), HEAD_APPLIED), (ssize_t)sizeof(seq));
	ASSERT_EQ(pwrite(head.get(), &seq, sizeof(seq), HEAD_DURABLE), (ssize_t)sizeof(seq));
}

bool exists(const std::string &path)
{
	struct stat st;
	return lstat(path.c_str(), &st) == 0;
}

ino_t inode(const std::string &path)
{
	struct stat st = {};
	EXPECT_EQ(stat(path.c_str(), &st), 0) << path;
	return st.st_ino;
}

std::string small_bytes(uint64_t n)
{
	return pattern(3000 + n * 7, n);
}

// Two versions of a file with two names, many small files, a large one, a directory that is
// renamed, a symlink.
void many_changes(Life &l)
{
	l.log(REC_MKDIR, 100, "d");
	staged *a = l.write(101, pattern(5000, 1)), *b = l.write(101, pattern(400000, 2));
	l.seal(a, 101, {{100, "one"}, {100, "two"}});
	for (uint64_t n = 0; n < 12; n++)
		l.seal(l.write(200 + n, small_bytes(n)), 200 + n, {{100, ("f" + std::to_string(n)).c_str()}});
	l.start();
	l.seal(b, 101, {{100, "one"}, {100, "two"}});
	l.log(REC_SYMLINK, 102, "link");
	l.log(REC_RENAME, 100, "d", STAGING_ROOT_DIR, "dir", REC_DIR);
	for (uint64_t n = 12; n < 24; n++)
		l.seal(l.write(200 + n, small_bytes(n)), 200 + n, {{100, ("f" + std::to_string(n)).c_str()}});
}

void look(const std::string &store)
{
	std::string d = store + "/dir/";
	struct stat st = {};
	char ino[32] = "";

	EXPECT_SAME(read_file(d + "one"), pattern(400000, 2));
	EXPECT_EQ(inode(d + "one"), inode(d + "two"));
	for (uint64_t n = 0; n < 24; n++)
		EXPECT_SAME(read_file(d + "f" + std::to_string(n)), small_bytes(n));
	EXPECT_EQ(std::filesystem::read_symlink(store + "/link"), "target");
	EXPECT_EQ(stat(d.c_str(), &st), 0);
	EXPECT_EQ(st.st_mode & 07777, 0751u);
	EXPECT_GT(getxattr(d.c_str(), "user.cairn.ino", ino, sizeof(ino) - 1), 0);
	EXPECT_STREQ(ino, "100");
	EXPECT_FALSE(exists(store + "/d"));
}

class Publish : public ::testing::TestWithParam<const char *> {};

INSTANTIATE_TEST_SUITE_P(Kinds, Publish, ::testing::Values("eio", "enospc", "lostsync"));

} // namespace

TEST_P(Publish, AnyOneOperationFails)
{
	bool syncs = !strcmp(GetParam(), "lostsync");
	unsigned n = 0, faults = 1;
	mode_t mask = umask(077);

	for (n = 1; faults && n < 1000 && !HasFailure(); n++) {
		TempDir store;
		Shm shm;
		std::string fault = "7:@" + std::to_string(n) + ":" + GetParam();
		SCOPED_TRACE(fault);
		Life l(store.path, shm, fault.c_str());
		many_changes(l);
		EXPECT_EQ(l.drain(), 0);
		look(store.path);
		faults = (unsigned)l.e.counts().faults;
		if (!syncs && n > 20)
			n += 6;
	}
	umask(mask);
	EXPECT_GT(n, syncs ? 3u : 100u);
}

TEST(Published, DirectoryRenamedJustBeforeTheDeathIsFound)
{
	TempDir store;
	Shm shm;
	uint64_t seq;
	{
		Life l(store.path, shm);
		seq = l.log(REC_MKDIR, 100, "tmp");
		l.log(REC_RENAME, 100, "tmp", STAGING_ROOT_DIR, "step", REC_DIR);
		l.start();
		ASSERT_EQ(l.drain(), 0);
		std::filesystem::create_directory(store / "step/child");
	}
	forget_after(store.path, shm, seq);
	Life l(store.path, shm);
	int fd = -1;	// also by who looks before it is published again
	ASSERT_EQ(staging_dir_get(l.st, 100, &fd), 0);
	EXPECT_EQ(faccessat(fd, "child", F_OK, 0), 0);
	staging_dir_put(l.st, 100);
	l.seal(l.write(101, "bytes"), 101, {{100, "file"}});
	l.start();
	ASSERT_EQ(l.drain(), 0);
	EXPECT_EQ(read_file(store / "step/file"), "bytes");
}

// All that is in `from`, copied; what is in `to` already stays.
void copy_all(const std::string &from, const std::string &to)
{
	std::filesystem::create_directories(to);
	ASSERT_EQ(system(("cp -a --sparse=always " + from + "/. " + to).c_str()), 0);
}

// A store with a memory: what it held after each record.
struct Rolling {
	Rolling(const std::string &store, const TempDir &keep) : store(store), keep(keep) {}
	std::string at(size_t n) const { return keep / std::to_string(n); }
	void take(size_t n)
	{
		std::filesystem::remove_all(at(n));
		copy_all(store, at(n));
		taken = n;
	}
	// The store is again what it was; its own directory and its id stay.
	void back_to(size_t n) const
	{
		std::string host = std::filesystem::path(mark_of(store)).parent_path();
		std::string then = at(n) + host.substr(store.size());
		for (auto &e : std::filesystem::directory_iterator(store))
			if (e.path().filename() != ".cairn")
				std::filesystem::remove_all(e.path());
		ASSERT_EQ(system(("cd " + at(n) + " && tar c --exclude=./.cairn . | tar x -C " + store).c_str()), 0);
		std::filesystem::remove_all(host + "/tmp");
		copy_all(then + "/tmp", host + "/tmp");
		ASSERT_EQ(system(("touch -r " + then + "/mark " + host + "/mark").c_str()), 0);
	}
	std::string store;
	const TempDir &keep;
	size_t taken = 0;
};

std::string sum(const std::string &bytes)
{
	return std::to_string(bytes.size()) + "/" + std::to_string(std::hash<std::string>{}(bytes));
}

std::map<std::string, std::string> tree(const std::string &root)
{
	std::map<std::string, std::string> out;
	for (auto it = std::filesystem::recursive_directory_iterator(root);
	     it != std::filesystem::recursive_directory_iterator(); ++it) {
		std::string name = it->path().string().substr(root.size() + 1);
		struct stat st = {};
		lstat(it->path().c_str(), &st);
		if (name == ".cairn")
			it.disable_recursion_pending();
		else
			out[name] = std::to_string(st.st_mode) + " " + std::to_string(S_ISREG(st.st_mode) ? st.st_nlink : 0) +
				    (S_ISREG(st.st_mode) ? ":" + sum(read_file(it->path())) : "");
	}
	return out;
}

// Every kind of change, each in the store before the next; names come again with other bytes.
void changes_that_meet(Life &l, Rolling &store)
{
	size_t n = 0;
	auto done = [&] {
		ASSERT_EQ(l.drain(), 0);
		store.take(++n);
	};
	// in tmp/ from the start: its bytes are synced before its name is made
	staged *spilled = l.write(106, pattern(500000, 3), 1u << 30);
	ASSERT_TRUE(staged_spilled(spilled));
	l.start();
	l.log(REC_MKDIR, 100, "d"), done();
	l.seal(l.write(101, pattern(400000, 1)), 101, {{100, "one"}, {100, "two"}}), done();
	l.seal(l.write(102, "first"), 102, {{STAGING_ROOT_DIR, "a"}}), done();
	l.log(REC_RENAME, 102, "a", STAGING_ROOT_DIR, "b"), done();
	l.seal(l.write(103, "second"), 103, {{STAGING_ROOT_DIR, "a"}}), done();
	l.log(REC_RENAME, 100, "d", STAGING_ROOT_DIR, "e", REC_DIR), done();
	l.log(REC_UNLINK, 102, "b"), done();
	l.log(REC_SYMLINK, 104, "b"), done();
	l.seal(l.write(101, pattern(300000, 2)), 101, {{100, "one"}, {100, "two"}}), done();
	l.log(REC_MKDIR, 105, "d"), done();
	l.seal(spilled, 106, {{105, "spilled"}}), done();
	l.log(REC_RMDIR, 107, "none"), done();	// a conflict changes nothing
	l.log(REC_UNLINK, 103, "a"), done();
	l.seal(l.write(103, "third"), 103, {{100, "a"}}), done();
}

// The store's filesystem stopped with changes applied and not synced, and is mounted again: it
// has the first k of them, or one more than its mark tells.
void forgets(bool mark_behind)
{
	LoopDisk store("mkfs.ext4 -q -F");
	TempDir keep;
	Shm shm;
	if (!store.ok)
		GTEST_SKIP() << "no ext4 on a loop device here";
	Rolling roll(store.path, keep);
	{
		Life l(store.path, shm);
		changes_that_meet(l, roll);
	}
	auto want = tree(store.path);
	uint64_t none = 0;
	for (size_t k = 1; k <= roll.taken && !::testing::Test::HasFailure(); k++) {
		SCOPED_TRACE("has " + std::to_string(k) + " of " + std::to_string(roll.taken));
		Shm again;
		copy_all(shm.path, again.path);
		roll.back_to(k);
		if (mark_behind) {
			const timespec at[2] = {{0, UTIME_OMIT}, {(time_t)k - 1, 0}};
			ASSERT_EQ(utimensat(AT_FDCWD, mark_of(store.path).c_str(), at, 0), 0);
		}
		Fd head(open((again.path + "/head").c_str(), O_RDWR));
		ASSERT_EQ(pwrite(head.get(), &none, sizeof(none), HEAD_DURABLE), (ssize_t)sizeof(none));
		Life l(store.path, again);
		l.start();
		ASSERT_EQ(l.drain(), 0);
		EXPECT_EQ(tree(store.path), want);
	}
}

TEST(Published, WhatTheStoreForgotIsMadeAgain)
{
	forgets(false);
}

TEST(Published, WhatTheStoreForgotIsMadeAgainWhenTheMarkIsOneBehind)
{
	forgets(true);
}

TEST(Published, PairIsNotLeftOutWhenItsFirstHalfStands)
{
	TempDir store;
	Shm shm;
	{
		Life l(store.path, shm);
		l.seal(l.write(101, "bytes"), 101, {{STAGING_ROOT_DIR, "file"}});
		l.start();
		ASSERT_EQ(l.drain(), 0);
	}
	ASSERT_TRUE(exists(store / "file"));
	forget_after(store.path, shm, 0);
	Life l(store.path, shm);
	l.log(REC_UNLINK, 101, "file");
	l.start();
	ASSERT_EQ(l.drain(), 0);
	EXPECT_FALSE(exists(store / "file"));
}

// Nothing else happens after the mapping is gone: the publisher must hear of that alone.
TEST(Published, RemovedMappedVersionDrainsWhenTheMappingGoes)
{
	TempDir store;
	Shm shm;
	Life l(store.path, shm);
	staged *f = l.write(101, std::string(8192, 'x'));
	Fd fd(staged_open_rw(f));
	void *map = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
	ASSERT_NE(map, MAP_FAILED);
	fd.reset(-1);
	l.seal(f, 101, {{STAGING_ROOT_DIR, "file"}});
	l.log(REC_MKDIR, 100, "d");	// seen, so the pair cannot be left out
	l.log(REC_UNLINK, 101, "file");
	l.start();
	EXPECT_EQ(staging_drain(l.st, 200), -ETIMEDOUT);
	munmap(map, 8192);
	EXPECT_EQ(l.drain(), 0);
	EXPECT_TRUE(exists(store / "d"));
	EXPECT_FALSE(exists(store / "file"));
}

// Many closed files that are not persisted yet, and a low limit of open files.
TEST(Published, BacklogNeedsFewDescriptors)
{
	constexpr uint64_t FILES = 130, BYTES = 262144 + 4096;	// too large to be a small one
	TempDir store;
	Shm shm;
	Descriptors few(200);
	auto name = [](uint64_t n) { return "f" + std::to_string(n); };
	{
		Life l(store.path, shm);
		for (uint64_t n = 0; n < FILES && !HasFailure(); n++) {
			staged *f = l.write(200 + n, pattern(BYTES, n));
			ASSERT_EQ(staged_allocate(f), 0);
			l.seal(f, 200 + n, {{STAGING_ROOT_DIR, name(n).c_str()}});
		}
	}
	Life l(store.path, shm);	// recovery must not need more
	l.start();
	EXPECT_EQ(l.drain(), 0);
	for (uint64_t n = 0; n < FILES; n += 7)
		EXPECT_SAME(read_file(store / name(n)), pattern(BYTES, n));
}

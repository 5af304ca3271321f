// SPDX-License-Identifier: MIT
//
// Which file of the store is a node? An inode number alone does not say: it is given again when its
// file is gone.
#include <fcntl.h>

#include "tests/unit/fs_client.hh"
#include "tests/unit/store_faults.h"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

struct Shown {
	Shown(std::initializer_list<std::string> paths, uint64_t ino)
	{
		for (auto &p : paths) {
			struct stat st;
			EXPECT_EQ(stat(p.c_str(), &st), 0);
			shim_show_ino(st.st_ino, ino);
		}
	}
	~Shown() { shim_show_ino(0, 0); }
};

uint64_t ino_of(const std::string &path)
{
	struct stat st;
	EXPECT_EQ(stat(path.c_str(), &st), 0);
	return st.st_ino;
}

uint64_t birth_of(const std::string &path)
{
	struct statx x = {};
	EXPECT_EQ(statx(AT_FDCWD, path.c_str(), 0, STATX_BTIME, &x), 0);
	return x.stx_mask & STATX_BTIME ? (uint64_t)x.stx_btime.tv_sec * 1000000000u + x.stx_btime.tv_nsec : 0;
}

// "x" and "y", one file made beside the mount, have the number that "latest" was last seen with.
void not_taken_for_latest(Worker &w, const std::string &store, uint64_t stale, const char *bytes)
{
	Client &k = w.k;
	write_file(store + "/x", "unrelated");
	std::filesystem::create_hard_link(store + "/x", store + "/y");
	Shown same({store + "/x"}, stale);
	ASSERT_EQ(k.lookup(root, "x"), 0);
	uint64_t x = k.id;
	EXPECT_EQ(k.get(x), "unrelated");
	ASSERT_EQ(k.lookup(root, "y"), 0);
	EXPECT_EQ(k.id, x); // these two are one file
	ASSERT_EQ(k.lookup(root, "latest"), 0);
	uint64_t latest = k.id;
	EXPECT_NE(latest, x);
	EXPECT_EQ(k.get(latest), bytes);
	ASSERT_EQ(k.save(root, "x", "new"), 0);
	ASSERT_EQ(w.drain(), 0);
	EXPECT_EQ(read_file(store + "/latest"), bytes);
	EXPECT_EQ(read_file(store + "/x"), "new");
	EXPECT_EQ(read_file(store + "/y"), "new");
}

TEST(SameFile, NumberOfAVersionBefore)
{
	Ground ground;
	Worker w(ground, true);
	ASSERT_EQ(w.t.err, 0);
	ASSERT_EQ(w.k.save(root, "latest", "first"), 0);
	ASSERT_EQ(w.drain(), 0);
	ASSERT_EQ(w.k.lookup(root, "latest"), 0);
	uint64_t stale = ino_of(ground.store() + "/latest");
	ASSERT_EQ(w.k.save(root, "latest", "second"), 0);
	ASSERT_EQ(w.drain(), 0);
	not_taken_for_latest(w, ground.store(), stale, "second");
}

TEST(SameFile, NumberOfWhatWasReplacedBeside)
{
	Ground ground;
	Worker w(ground, true);
	ASSERT_EQ(w.t.err, 0);
	write_file(ground.store() + "/latest", "first");
	ASSERT_EQ(w.k.lookup(root, "latest"), 0);
	uint64_t stale = ino_of(ground.store() + "/latest");
	write_file(ground.store() + "/other", "second");
	std::filesystem::rename(ground.store() + "/other", ground.store() + "/latest");
	not_taken_for_latest(w, ground.store(), stale, "second");
}

TEST(SameFile, NumberOfWhatWasRemovedBeside)
{
	Ground ground;
	Worker w(ground, true);
	ASSERT_EQ(w.t.err, 0);
	write_file(ground.store() + "/gone", "first");
	ASSERT_EQ(w.k.lookup(root, "gone"), 0);
	uint64_t stale = ino_of(ground.store() + "/gone");
	std::filesystem::remove(ground.store() + "/gone");
	ASSERT_EQ(w.k.save(root, "latest", "bytes"), 0);
	not_taken_for_latest(w, ground.store(), stale, "bytes");
}

// A removed file that the kernel still knows has no place: after a restart a file with two names that
// got its number was listed and could not be opened.
TEST(SameFile, NumberOfWhatWasRemovedBeforeARestart)
{
	Ground ground;
	auto w = std::make_unique<Worker>(ground, true);
	ASSERT_EQ(w->t.err, 0);
	ASSERT_EQ(w->k.save(root, "gone", "first"), 0);
	ASSERT_EQ(w->drain(), 0);
	ASSERT_EQ(w->k.lookup(root, "gone"), 0);
	uint64_t stale = ino_of(ground.store() + "/gone");
	ASSERT_EQ(w->k.unlink(root, "gone"), 0);
	ASSERT_EQ(w->drain(), 0);
	shim_evict(w->fs);
	ASSERT_EQ(shim_rotate(w->fs), 0);
	w = nullptr;
	w = std::make_unique<Worker>(ground, true);
	ASSERT_EQ(w->t.err, 0);
	write_file(ground.store() + "/x", "unrelated");
	std::filesystem::create_hard_link(ground.store() + "/x", ground.store() + "/y");
	Shown same({ground.store() + "/x"}, stale);
	ASSERT_EQ(w->k.lookup(root, "x"), 0);
	EXPECT_EQ(w->k.get(w->k.id), "unrelated");
}

// The same name, the same number, another file: what is cached of the first is not the second's.
TEST(SameFile, NameAndNumberAgain)
{
	Ground ground;
	auto w = std::make_unique<Worker>(ground, true);
	ASSERT_EQ(w->t.err, 0);
	std::string path = ground.store() + "/f";
	ASSERT_EQ(w->k.save(root, "f", "staged"), 0);
	ASSERT_EQ(w->drain(), 0);
	ASSERT_EQ(w->k.lookup(root, "f"), 0);
	uint64_t id = w->k.id;
	uint64_t stale = ino_of(path), birth = birth_of(path);
	if (!birth)
		GTEST_SKIP() << "this filesystem does not tell a file's birth";
	do { // within one tick of its clock it has one birth
		std::filesystem::remove(path);
		write_file(path, "another");
	} while (birth_of(path) == birth);
	for (bool restart : {false, true}) {
		if (restart) {
			w = nullptr;
			w = std::make_unique<Worker>(ground, true);
			ASSERT_EQ(w->t.err, 0);
		}
		Shown same({path}, stale);
		ASSERT_EQ(w->k.lookup(root, "f"), 0);
		EXPECT_NE(w->k.id, id);
		EXPECT_EQ(w->k.get(w->k.id), "another");
	}
}

// Names of one file are one node, also those that are found after a restart.
TEST(SameFile, LinksMadeBeside)
{
	Ground ground;
	auto w = std::make_unique<Worker>(ground, true);
	ASSERT_EQ(w->t.err, 0);
	write_file(ground.store() + "/a", "bytes");
	std::filesystem::create_hard_link(ground.store() + "/a", ground.store() + "/b");
	ASSERT_EQ(w->k.lookup(root, "a"), 0);
	uint64_t a = w->k.id;
	ASSERT_EQ(w->k.lookup(root, "b"), 0);
	EXPECT_EQ(a, w->k.id);
	w = nullptr;
	std::filesystem::create_hard_link(ground.store() + "/a", ground.store() + "/c");
	w = std::make_unique<Worker>(ground, true);
	ASSERT_EQ(w->t.err, 0);
	ASSERT_EQ(w->k.lookup(root, "c"), 0);
	EXPECT_EQ(a, w->k.id);
	ASSERT_EQ(w->k.getattr(a), 0);
	EXPECT_EQ(w->k.attr.nlink, 3u);
	ASSERT_EQ(w->k.save(root, "b", "all"), 0);
	ASSERT_EQ(w->drain(), 0);
	EXPECT_EQ(show(tree_of(ground.store())), "a=3,97 b=3,97 c=3,97 ");
}

// A version was closed by the names that were known. A name found after that is not one of them:
// it shows what the store has there.
TEST(SameFile, ALinkFoundAfterTheClose)
{
	Ground ground;
	Worker w(ground);
	ASSERT_EQ(w.t.err, 0);
	write_file(ground.store() + "/a", "old");
	std::filesystem::create_hard_link(ground.store() + "/a", ground.store() + "/b");
	ASSERT_EQ(w.k.save(root, "a", "version"), 0);
	ASSERT_EQ(w.k.lookup(root, "b"), 0);
	EXPECT_EQ(w.k.get(w.k.id), "old");
	ASSERT_EQ(shim_start(w.fs), 0);
	ASSERT_EQ(w.drain(), 0);
	ASSERT_EQ(w.k.lookup(root, "b"), 0);
	EXPECT_EQ(w.k.get(w.k.id), "old");
	EXPECT_EQ(show(tree_of(ground.store())), "a=7,118 b=3,111 ");
}

} // namespace

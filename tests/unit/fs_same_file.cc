// SPDX-License-Identifier: MIT
//
// Which file of the store is a node? An inode number alone does not say: it is given again when its
// file is gone.
#include <fcntl.h>

#include "tests/unit/fs_fixture.hh"

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

void put(struct fs *fs, uint64_t dir, const char *name, const char *bytes)
{
	uint64_t id, fh;
	int rc = shim_lookup(fs, dir, name, &id);
	rc = rc ? shim_create(fs, dir, name, &id, &fh) : shim_open_file(fs, dir, name, O_WRONLY | O_TRUNC, &fh);
	ASSERT_EQ(rc, 0);
	ASSERT_EQ(shim_write(fs, fh, bytes, strlen(bytes), 0), 0);
	ASSERT_EQ(shim_close(fs, fh), 0);
}

std::string get(struct fs *fs, uint64_t id)
{
	char buf[64];
	ssize_t n = shim_read(fs, id, buf, sizeof(buf));
	return n < 0 ? "error " + std::to_string(n) : std::string(buf, (size_t)n);
}

// "x" and "y", one file made beside the mount, have the number that "latest" was last seen with.
void not_taken_for_latest(LiveTree &t, const std::string &store, uint64_t stale, const char *bytes)
{
	uint64_t latest, x, y;
	write_file(store + "/x", "unrelated");
	std::filesystem::create_hard_link(store + "/x", store + "/y");
	Shown same({store + "/x"}, stale);
	ASSERT_EQ(shim_lookup(t.fs, root, "x", &x), 0);
	EXPECT_EQ(get(t.fs, x), "unrelated");
	ASSERT_EQ(shim_lookup(t.fs, root, "y", &y), 0);
	EXPECT_EQ(y, x); // these two are one file
	ASSERT_EQ(shim_lookup(t.fs, root, "latest", &latest), 0);
	EXPECT_NE(latest, x);
	EXPECT_EQ(get(t.fs, latest), bytes);
	put(t.fs, root, "x", "new");
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	EXPECT_EQ(read_file(store + "/latest"), bytes);
	EXPECT_EQ(read_file(store + "/x"), "new");
	EXPECT_EQ(read_file(store + "/y"), "new");
}

TEST(SameFile, NumberOfAVersionBefore)
{
	Ground ground;
	LiveTree t(ground, true);
	ASSERT_EQ(t.err, 0);
	uint64_t id;
	put(t.fs, root, "latest", "first");
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	ASSERT_EQ(shim_lookup(t.fs, root, "latest", &id), 0);
	uint64_t stale = ino_of(ground.store() + "/latest");
	put(t.fs, root, "latest", "second");
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	not_taken_for_latest(t, ground.store(), stale, "second");
}

TEST(SameFile, NumberOfWhatWasReplacedBeside)
{
	Ground ground;
	LiveTree t(ground, true);
	ASSERT_EQ(t.err, 0);
	uint64_t id;
	write_file(ground.store() + "/latest", "first");
	ASSERT_EQ(shim_lookup(t.fs, root, "latest", &id), 0);
	uint64_t stale = ino_of(ground.store() + "/latest");
	write_file(ground.store() + "/other", "second");
	std::filesystem::rename(ground.store() + "/other", ground.store() + "/latest");
	not_taken_for_latest(t, ground.store(), stale, "second");
}

TEST(SameFile, NumberOfWhatWasRemovedBeside)
{
	Ground ground;
	LiveTree t(ground, true);
	ASSERT_EQ(t.err, 0);
	uint64_t id;
	write_file(ground.store() + "/gone", "first");
	ASSERT_EQ(shim_lookup(t.fs, root, "gone", &id), 0);
	uint64_t stale = ino_of(ground.store() + "/gone");
	std::filesystem::remove(ground.store() + "/gone");
	put(t.fs, root, "latest", "bytes");
	not_taken_for_latest(t, ground.store(), stale, "bytes");
}

// A removed file that the kernel still knows has no place: after a restart a file with two names that
// got its number was listed and could not be opened.
TEST(SameFile, NumberOfWhatWasRemovedBeforeARestart)
{
	Ground ground;
	auto t = std::make_unique<LiveTree>(ground, true);
	ASSERT_EQ(t->err, 0);
	uint64_t id, x;
	put(t->fs, root, "gone", "first");
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	ASSERT_EQ(shim_lookup(t->fs, root, "gone", &id), 0);
	uint64_t stale = ino_of(ground.store() + "/gone");
	ASSERT_EQ(shim_unlink(t->fs, root, "gone"), 0);
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	shim_evict(t->fs);
	ASSERT_EQ(shim_rotate(t->fs), 0);
	t = nullptr;
	t = std::make_unique<LiveTree>(ground, true);
	ASSERT_EQ(t->err, 0);
	write_file(ground.store() + "/x", "unrelated");
	std::filesystem::create_hard_link(ground.store() + "/x", ground.store() + "/y");
	Shown same({ground.store() + "/x"}, stale);
	ASSERT_EQ(shim_lookup(t->fs, root, "x", &x), 0);
	EXPECT_EQ(get(t->fs, x), "unrelated");
}

// The same name, the same number, another file: what is cached of the first is not the second's.
TEST(SameFile, NameAndNumberAgain)
{
	Ground ground;
	auto t = std::make_unique<LiveTree>(ground, true);
	ASSERT_EQ(t->err, 0);
	uint64_t id, again;
	std::string path = ground.store() + "/f";
	put(t->fs, root, "f", "staged");
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	ASSERT_EQ(shim_lookup(t->fs, root, "f", &id), 0);
	uint64_t stale = ino_of(path), birth = birth_of(path);
	if (!birth)
		GTEST_SKIP() << "this filesystem does not tell a file's birth";
	do { // within one tick of its clock it has one birth
		std::filesystem::remove(path);
		write_file(path, "another");
	} while (birth_of(path) == birth);
	for (bool restart : {false, true}) {
		if (restart) {
			t = nullptr;
			t = std::make_unique<LiveTree>(ground, true);
			ASSERT_EQ(t->err, 0);
		}
		Shown same({path}, stale);
		ASSERT_EQ(shim_lookup(t->fs, root, "f", &again), 0);
		EXPECT_NE(again, id);
		EXPECT_EQ(get(t->fs, again), "another");
	}
}

// Names of one file are one node, also those that are found after a restart.
TEST(SameFile, LinksMadeBeside)
{
	Ground ground;
	auto t = std::make_unique<LiveTree>(ground, true);
	ASSERT_EQ(t->err, 0);
	uint64_t a, b, c;
	struct stat st;
	write_file(ground.store() + "/a", "bytes");
	std::filesystem::create_hard_link(ground.store() + "/a", ground.store() + "/b");
	ASSERT_EQ(shim_lookup(t->fs, root, "a", &a), 0);
	ASSERT_EQ(shim_lookup(t->fs, root, "b", &b), 0);
	EXPECT_EQ(a, b);
	t = nullptr;
	std::filesystem::create_hard_link(ground.store() + "/a", ground.store() + "/c");
	t = std::make_unique<LiveTree>(ground, true);
	ASSERT_EQ(t->err, 0);
	ASSERT_EQ(shim_lookup(t->fs, root, "c", &c), 0);
	EXPECT_EQ(a, c);
	ASSERT_EQ(shim_stat(t->fs, a, &st), 0);
	EXPECT_EQ(st.st_nlink, 3u);
	put(t->fs, root, "b", "all");
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	EXPECT_EQ(show(tree_of(ground.store())), "a=3,97 b=3,97 c=3,97 ");
}

// A version was closed by the names that were known. A name found after that is not one of them:
// it shows what the store has there.
TEST(SameFile, ALinkFoundAfterTheClose)
{
	Ground ground;
	LiveTree t(ground);
	ASSERT_EQ(t.err, 0);
	uint64_t b;
	write_file(ground.store() + "/a", "old");
	std::filesystem::create_hard_link(ground.store() + "/a", ground.store() + "/b");
	put(t.fs, root, "a", "version");
	ASSERT_EQ(shim_lookup(t.fs, root, "b", &b), 0);
	EXPECT_EQ(get(t.fs, b), "old");
	ASSERT_EQ(shim_start(t.fs), 0);
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	ASSERT_EQ(shim_lookup(t.fs, root, "b", &b), 0);
	EXPECT_EQ(get(t.fs, b), "old");
	EXPECT_EQ(show(tree_of(ground.store())), "a=7,118 b=3,111 ");
}

} // namespace

// SPDX-License-Identifier: MIT
//
// Which save a shard is of (fs/tree/save_tag.c): when it is marked, with what, what survives a kill, and what it costs;
// and what a .metadata makes of the marks (fs/tree/saves.c). tests/mount/same_save.sh has two hosts.
#include "tests/unit/fs_client.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

std::string xattr_of(const std::string &path, const char *key)
{
	char v[256];
	ssize_t n = getxattr(path.c_str(), key, v, sizeof(v));
	return n < 0 ? errno == ENODATA ? "" : strerror(errno) : std::string(v, (size_t)n);
}
// Behind the inode number.
std::string mark_of(const std::string &path)
{
	std::string v = xattr_of(path, "user.cairn.ino");
	return v.find(' ') == std::string::npos ? "" : v.substr(v.find(' ') + 1);
}

class Saves : public ::testing::Test
{
protected:
	void SetUp() override
	{
		w = std::make_unique<Worker>(ground, true, true);
		ASSERT_EQ(w->t.err, 0);
		if (!io_store_has_xattr(w->t.store))
			GTEST_SKIP() << "no xattrs here";
		ASSERT_EQ(w->k.mkdir(root, "ckpt", 0755), 0);
		dir = w->k.id;
	}
	Client &k() { return w->k; }
	void meet() { shim_meet_others(w->fs); }
	// Killed; the next worker replays.
	void restart()
	{
		w.reset();
		w = std::make_unique<Worker>(ground, true);
		ASSERT_EQ(w->t.err, 0);
		meet();
	}
	std::string stored(const std::string &name) { return ground.store() + "/ckpt/" + name; }
	std::string count_file()
	{
		std::error_code none;
		for (auto &e : std::filesystem::directory_iterator(ground.store() + "/.cairn/.saves", none))
			return e.path();
		return "";
	}
	std::string count() { return xattr_of(count_file(), "user.cairn.save"); }
	// The number in the mark of a file in the store; -1: it has none.
	int mark(const std::string &name)
	{
		EXPECT_EQ(w->drain(), 0);
		std::string m = mark_of(stored(name));
		return m.empty() ? -1 : atoi(m.c_str());
	}
	void commit()
	{
		ASSERT_EQ(k().save(dir, ".metadata.tmp", "list"), 0);
		ASSERT_EQ(k().rename(dir, ".metadata.tmp", dir, ".metadata"), 0);
	}
	// Another host commits, too.
	void count_elsewhere(uint64_t n)
	{
		std::string key = std::filesystem::path(count_file()).filename();
		ASSERT_EQ(io_saves_raise(w->t.store, key.c_str(), n), 0);
	}

	Ground ground;
	std::unique_ptr<Worker> w;
	uint64_t dir = 0;
};

TEST_F(Saves, AHostAloneMarksNothing)
{
	ASSERT_NE(k().put(dir, "__0_0.distcp", "1"), 0u);
	commit();
	EXPECT_EQ(mark("__0_0.distcp"), -1);
	EXPECT_EQ(mark(".metadata"), -1);
	EXPECT_FALSE(std::filesystem::exists(ground.store() + "/.cairn/.saves"));
	EXPECT_FALSE(shim_knows_others(w->fs));
}

TEST_F(Saves, EachSaveHasItsNumber)
{
	meet();
	for (int save = 0; save < 3; save++) {
		ASSERT_EQ(k().save(dir, "__0_0.distcp", std::to_string(save)), 0);
		EXPECT_EQ(mark("__0_0.distcp"), save);
		commit();
		EXPECT_EQ(mark(".metadata"), save);
		EXPECT_EQ(count(), std::to_string(save + 1));
	}
	std::string m = mark_of(stored("__0_0.distcp"));
	EXPECT_NE(m.find(std::string(" ") + io_store_host(w->t.store)), std::string::npos) << m;
	ASSERT_EQ(k().put(dir, "notes.txt", "x") != 0, true);
	EXPECT_EQ(mark("notes.txt"), -1);
}

TEST_F(Saves, TheNextSaveHasBegunWhenTheRenameIsAnswered)
{
	meet();
	commit();
	EXPECT_EQ(count(), "1");
	ASSERT_EQ(k().save(dir, ".metadata", "list, written in place"), 0);
	EXPECT_EQ(count(), "2") << "or the close";
}

TEST_F(Saves, AHostThatCameAMomentAgoIsSeenByTheNextCommit)
{
	Engine e("posix");
	Store other(e, ground.store(), false, "another");
	ASSERT_EQ(other.err, 0);
	ASSERT_NE(k().put(dir, "__0_0.distcp", "1"), 0u);
	EXPECT_FALSE(shim_knows_others(w->fs));
	commit();
	EXPECT_TRUE(shim_knows_others(w->fs));
	EXPECT_EQ(count(), "1");
	ASSERT_EQ(k().save(dir, "__0_0.distcp", "2"), 0);
	EXPECT_EQ(mark("__0_0.distcp"), 1);
}

TEST_F(Saves, AnFsyncedVersionIsMarked)
{
	meet();
	commit();
	File f;
	ASSERT_EQ(k().create(dir, "__0_0.distcp", &f), 0);
	ASSERT_EQ(k().write(f, "bytes"), 0);
	ASSERT_EQ(k().fsync(f), 0);
	EXPECT_EQ(mark("__0_0.distcp"), 1);
	count_elsewhere(5);
	ASSERT_EQ(k().write(f, "BYTES"), 0);
	ASSERT_EQ(k().close(f), 0);
	EXPECT_EQ(mark("__0_0.distcp"), 1) << "it is the same version";
}

TEST_F(Saves, ANewWriterIsOfTheSaveThatIsUnderWay)
{
	meet();
	commit();
	File old, f;
	ASSERT_NE(k().put(dir, "__0_0.distcp", "1"), 0u);
	EXPECT_EQ(mark("__0_0.distcp"), 1);
	// a descriptor that a child inherited keeps the version open
	ASSERT_EQ(k().open_name(dir, "__0_0.distcp", O_WRONLY | O_TRUNC, &old), 0);
	ASSERT_EQ(k().write(old, "2"), 0);
	ASSERT_EQ(k().flush(old), 0);
	commit();
	ASSERT_EQ(k().open_name(dir, "__0_0.distcp", O_WRONLY | O_TRUNC, &f), 0);
	ASSERT_EQ(k().write(f, "3"), 0);
	ASSERT_EQ(k().close(f), 0);
	k().release(old);
	EXPECT_EQ(mark("__0_0.distcp"), 2);
}

// Its RELEASE never comes: the next worker seals what the FLUSH said, of that save.
TEST_F(Saves, AKillBetweenCloseAndSealKeepsTheMark)
{
	for (bool rotated : {false, true}) {
		meet();
		commit();
		int before = atoi(count().c_str());
		File f;
		std::string name = rotated ? "__1_0.distcp" : "__0_0.distcp";
		ASSERT_EQ(k().create(dir, name, &f), 0);
		ASSERT_EQ(k().write(f, "bytes"), 0);
		ASSERT_EQ(k().flush(f), 0);
		count_elsewhere((uint64_t)before + 3);
		restart();
		if (rotated) {
			ASSERT_EQ(w->drain(), 0);
			ASSERT_EQ(shim_rotate(w->fs), 0);
			restart();
		}
		k().release(f);
		EXPECT_EQ(mark(name), before) << "rotated: " << rotated;
		EXPECT_EQ(k().lookup(root, "ckpt"), 0);
		dir = k().id;
	}
}

TEST_F(Saves, AKillAfterTheSealKeepsTheMark)
{
	meet();
	commit();
	shim_hold_sync(1000);	// nothing is durable
	ASSERT_NE(k().put(dir, "__0_0.distcp", "1"), 0u);
	count_elsewhere(7);
	shim_let_go();
	restart();
	EXPECT_EQ(mark("__0_0.distcp"), 1);
}

// A rename whose answer was lost is made again.
TEST_F(Saves, ACommitThatIsRepeatedCountsOnce)
{
	meet();
	ASSERT_EQ(k().save(dir, ".metadata.tmp", "list"), 0);
	ASSERT_EQ(k().rename(dir, ".metadata.tmp", dir, ".metadata"), 0);
	EXPECT_EQ(count(), "1");
	ASSERT_EQ(k().rename(dir, ".metadata", dir, "away"), 0);
	ASSERT_EQ(k().rename(dir, "away", dir, ".metadata"), 0);
	EXPECT_EQ(count(), "1");
}

// What the broken-off attempt left in the store does not count from the close on.
TEST_F(Saves, AShardThatIsWrittenAgainForTheSameSaveIsStaleAtOnce)
{
	meet();
	commit();
	ASSERT_NE(k().put(dir, "__0_0.distcp", "first"), 0u);
	EXPECT_EQ(mark("__0_0.distcp"), 1);
	std::string first = mark_of(stored("__0_0.distcp"));
	File f;
	ASSERT_EQ(k().open_name(dir, "__0_0.distcp", O_WRONLY | O_TRUNC, &f), 0);
	ASSERT_EQ(k().write(f, "again"), 0);
	ASSERT_EQ(k().flush(f), 0);	// close(2) returns, and nothing is sealed yet
	EXPECT_EQ(read_file(stored("__0_0.distcp")), "first");
	EXPECT_EQ(mark_of(stored("__0_0.distcp")), "-" + first.substr(1));
	k().release(f);
	EXPECT_EQ(mark("__0_0.distcp"), 1);
	commit();
	ASSERT_EQ(k().rewrite(dir, "__0_0.distcp", "next save"), 0);
	EXPECT_EQ(mark("__0_0.distcp"), 2);
}

// It stays marked as it is where nothing is written again.
TEST_F(Saves, AShardOfTheNextSaveLeavesTheOldOneItsMark)
{
	meet();
	ASSERT_NE(k().put(dir, "__0_0.distcp", "first"), 0u);
	EXPECT_EQ(mark("__0_0.distcp"), 0);
	commit();
	File f;
	ASSERT_EQ(k().open_name(dir, "__0_0.distcp", O_WRONLY | O_TRUNC, &f), 0);
	ASSERT_EQ(k().write(f, "next"), 0);
	EXPECT_EQ(mark("__0_0.distcp"), 0);
	ASSERT_EQ(k().close(f), 0);
	EXPECT_EQ(mark("__0_0.distcp"), 1);
}

TEST_F(Saves, AStoreThatDoesNotAnswerLeavesItUnmarked)
{
	meet();
	commit();
	ASSERT_EQ(setxattr(count_file().c_str(), "user.cairn.save", "no number", 9, 0), 0);
	ASSERT_NE(k().put(dir, "__0_0.distcp", "1"), 0u) << "the close succeeds";
	EXPECT_EQ(mark("__0_0.distcp"), -1);
	commit();
	std::lock_guard<std::mutex> hold(w->t.lock);
	EXPECT_TRUE(w->t.notes.empty()) << "those of fs are elsewhere";
}

TEST_F(Saves, ACommitThatCannotBeCountedSucceeds)
{
	meet();
	ASSERT_EQ(k().save(dir, ".metadata.tmp", "list"), 0);
	EXPECT_EQ(w->drain(), 0);
	shim_fail_op(IO_OP_XATTR_SET, EIO);
	EXPECT_EQ(k().rename(dir, ".metadata.tmp", dir, ".metadata"), 0);
	shim_fail_op(IO_OP_XATTR_SET, 0);
	EXPECT_EQ(count(), "");
}

TEST_F(Saves, AnotherDirectoryHasAnotherCount)
{
	meet();
	commit();
	commit();
	ASSERT_EQ(k().mkdir(root, "other"), 0);
	uint64_t other = k().id;
	ASSERT_NE(k().put(other, "__0_0.distcp", "1"), 0u);
	EXPECT_EQ(w->drain(), 0);
	std::string m = mark_of(ground.store() + "/other/__0_0.distcp");
	EXPECT_EQ(m.substr(0, 2), "0 ");
	EXPECT_EQ(m.find(std::filesystem::path(count_file()).filename()), std::string::npos) << "nor its key";
}

// Once for each version, without the tree lock.
std::atomic<unsigned> calls;
TEST_F(Saves, CostsOneQuestionAShard)
{
	unsigned cost[2];
	for (int with = 0; with < 2; with++) {
		if (with)
			meet();
		File f;
		ASSERT_EQ(k().create(dir, with ? "__0_1.distcp" : "__0_0.distcp", &f), 0);
		ASSERT_EQ(w->drain(), 0);
		ASSERT_EQ(k().write(f, "bytes"), 0);
		calls = 0;
		shim_on_call([](void *) { calls++; }, nullptr);
		ASSERT_EQ(k().flush(f), 0);
		ASSERT_EQ(k().flush(f), 0);
		shim_on_call(nullptr, nullptr);
		cost[with] = calls;
		k().release(f);
	}
	EXPECT_EQ(cost[0], 0u);
	EXPECT_EQ(cost[1], 1u) << "an open and a getxattr";
}

TEST_F(Saves, TheTreeLockIsNotHeldMeanwhile)
{
	meet();
	shim_watch_lock(w->fs);
	ASSERT_NE(k().put(dir, "__0_0.distcp", "1"), 0u);
	commit();
	ASSERT_EQ(k().save(dir, ".metadata", "list"), 0);
	EXPECT_EQ(shim_locked_calls(), 0u);
}

// ---- what the .metadata makes of the marks ----

const int64_t no_mark = -1;
struct Verdict {
	size_t odd;
	uint64_t save;
};

Verdict judge(const std::vector<shim_mark> &m, uint64_t commit)
{
	Verdict v;
	v.odd = shim_odd_one(m.data(), m.size(), commit, &v.save);
	return v;
}

TEST(Marks, AllOfOneSave)
{
	EXPECT_EQ(judge({{4, true, false}, {4, false, false}, {4, false, false}}, 4).odd, 3u);
	EXPECT_EQ(judge({}, 4).odd, 0u);
}

TEST(Marks, AnEarlierOne)
{
	EXPECT_EQ(judge({{4, true, false}, {4, false, false}, {3, false, false}}, 4).odd, 2u);
	EXPECT_EQ(judge({{3, false, false}, {4, false, false}}, 4).odd, 0u) << "none is this host's";
	EXPECT_EQ(judge({{4, true, false}, {3, true, false}}, 4).odd, 1u) << "nor of this host: it was another rank's";
}

TEST(Marks, ALaterOneComesBeforeAnEarlierOne)
{
	EXPECT_EQ(judge({{4, true, false}, {3, false, false}, {5, false, false}}, 4).odd, 2u);
}

TEST(Marks, AMetadataThatWasWrittenAgainAlone)
{
	EXPECT_EQ(judge({{4, true, false}, {4, false, false}}, 5).odd, 2u);
	EXPECT_EQ(judge({{4, true, false}, {3, false, false}}, 5).odd, 1u);
	EXPECT_EQ(judge({{4, true, false}, {5, false, false}}, 5).odd, 1u);
}

TEST(Marks, ThisHostsNextSaveIsThere)
{
	Verdict v = judge({{5, true, false}, {5, false, false}}, 4);
	EXPECT_EQ(v.odd, 2u);
	EXPECT_EQ(v.save, 5u) << "more than the .metadata's: it is overtaken";
}

TEST(Marks, WhatHasNoneOrComesLaterIsNotAsked)
{
	EXPECT_EQ(judge({{no_mark, false, false}, {4, true, false}, {4, false, false}}, 4).odd, 3u);
	EXPECT_EQ(judge({{3, true, true}, {4, false, false}}, 4).odd, 2u);
}

// cp by two hosts, without a barrier.
TEST(Marks, OfTheFirstSaveOneMayComeAfterTheMetadata)
{
	EXPECT_EQ(judge({{0, true, false}, {1, false, false}}, 0).odd, 2u);
	EXPECT_EQ(judge({{0, true, false}, {2, false, false}}, 0).odd, 1u);
	EXPECT_EQ(judge({{1, true, false}, {2, false, false}}, 1).odd, 1u) << "of no other";
}

} // namespace

// SPDX-License-Identifier: MIT
//
// Which shards count as overwritten later than the .metadata that commits them (fs/tree/seal.c: user.cairn.over), and
// which do not. tests/mount/committed.sh does it with real programs, and asks cairn ls.
#include "fs/formats/formats.h"
#include "tests/unit/fs_client.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;
const char *const shard = "__0_0.distcp";

std::string xattr_of(const std::string &path, const char *key)
{
	char v[256];
	ssize_t n = getxattr(path.c_str(), key, v, sizeof(v));
	return n < 0 ? "" : std::string(v, (size_t)n);
}

class Over : public ::testing::TestWithParam<bool>
{
protected:
	void SetUp() override
	{
		start(true);
		if (!io_store_has_xattr(w->t.store))
			GTEST_SKIP() << "no xattrs here";
		ASSERT_EQ(k().mkdir(root, "ckpt", 0755), 0);
		dir = k().id;
	}
	void start(bool first)
	{
		w = std::make_unique<Worker>(ground, true, first,
					     SHIM_NO_UPKEEP | (GetParam() ? SHIM_FSYNC_STAGED : 0));
		ASSERT_EQ(w->t.err, 0);
	}
	// Killed; the next worker replays.
	void restart()
	{
		w.reset();
		start(false);
	}
	Client &k() { return w->k; }
	std::string stored(const std::string &name) { return ground.store() + "/ckpt/" + name; }
	void commit()
	{
		ASSERT_EQ(k().save(dir, ".metadata.tmp", "list"), 0);
		ASSERT_EQ(k().rename(dir, ".metadata.tmp", dir, ".metadata"), 0);
	}
	// A shard that is open, and whose bytes a close or an fsync has answered for.
	void answered(File *f, const std::string &name = shard)
	{
		ASSERT_EQ(k().create(dir, name, f), 0);
		ASSERT_EQ(k().write(*f, "bytes"), 0);
		ASSERT_EQ(GetParam() ? k().fsync(*f) : k().flush(*f), 0);
	}
	// As cairn ls judges it, by what the store has.
	bool is_over(const std::string &name = shard)
	{
		struct stat st = {};
		ckpt_over o = {};
		EXPECT_EQ(w->drain(), 0);
		EXPECT_EQ(stat(stored(".metadata").c_str(), &st), 0);
		return ckpt_over_parse(xattr_of(stored(name), CKPT_OVER_KEY).c_str(),
				       xattr_of(stored(name), "user.cairn.checksum").c_str(), &o) &&
		       ckpt_over_is(&o, st.st_mtim,
				    strtoull(xattr_of(stored(".metadata"), "user.cairn.ino").c_str(), nullptr, 10));
	}

	Ground ground;
	std::unique_ptr<Worker> w;
	uint64_t dir = 0;
};

TEST_P(Over, AShardThatIsChangedAfterItsCommit)
{
	File f;
	answered(&f);
	commit();
	ASSERT_EQ(w->drain(), 0);
	ASSERT_FALSE(std::filesystem::exists(stored(shard)));
	ASSERT_EQ(k().write(f, "BYTES"), 0);
	ASSERT_EQ(k().close(f), 0);
	EXPECT_TRUE(is_over());
	EXPECT_EQ(read_file(stored(shard)), "BYTES");
	commit();
	EXPECT_FALSE(is_over());
}

TEST_P(Over, NotAShardThatIsClosedAfterItsCommit)
{
	File f, other;
	answered(&f);
	commit();
	ASSERT_EQ(k().open_name(dir, shard, O_RDWR, &other), 0);
	ASSERT_EQ(k().close(other), 0);
	ASSERT_EQ(k().close(f), 0);
	EXPECT_FALSE(is_over());
}

TEST_P(Over, NotAShardThatComesAfterItsCommit)
{
	File f;
	commit();
	answered(&f);	// a copy of a checkpoint may begin with the .metadata
	ASSERT_EQ(k().write(f, "more", 5), 0);
	ASSERT_EQ(k().close(f), 0);
	EXPECT_FALSE(is_over());
}

TEST_P(Over, AShardOfASecondSave)
{
	commit();
	File f;
	answered(&f);	// it was not in the first
	commit();
	ASSERT_EQ(k().write(f, "BYTES"), 0);
	ASSERT_EQ(k().close(f), 0);
	EXPECT_TRUE(is_over());
}

TEST_P(Over, AMetadataThatIsWrittenInPlace)
{
	File f;
	answered(&f);
	ASSERT_EQ(k().save(dir, ".metadata", "list"), 0);
	ASSERT_EQ(k().write(f, "BYTES"), 0);
	ASSERT_EQ(GetParam() ? k().fsync(f) : k().flush(f), 0);
	ASSERT_EQ(k().save(dir, ".metadata", "list"), 0);
	ASSERT_EQ(k().write(f, "third"), 0);
	ASSERT_EQ(k().close(f), 0);
	EXPECT_TRUE(is_over());
}

TEST_P(Over, AnotherWriterChangesIt)
{
	File f, other;
	answered(&f);
	commit();
	ASSERT_EQ(k().open_name(dir, shard, O_WRONLY, &other), 0);
	ASSERT_EQ(k().write(other, "BYTES"), 0);
	ASSERT_EQ(k().close(other), 0);
	ASSERT_EQ(k().close(f), 0);
	EXPECT_TRUE(is_over());
}

TEST_P(Over, AFileThatIsRenamedOverIt)
{
	File f;
	answered(&f);
	commit();
	ASSERT_NE(k().put(dir, "other", "BYTES"), 0u);
	ASSERT_EQ(k().rename(dir, "other", dir, shard), 0);
	ASSERT_EQ(k().close(f), 0);
	EXPECT_TRUE(is_over());
}

TEST_P(Over, AnOpenFileThatIsRenamedOverIt)
{
	File f, other;
	answered(&f);
	answered(&other, "other");
	commit();
	ASSERT_EQ(k().rename(dir, "other", dir, shard), 0);
	ASSERT_EQ(k().close(other), 0);
	ASSERT_EQ(k().close(f), 0);
	EXPECT_TRUE(is_over());
}

TEST_P(Over, NotANewFileOfTheSameName)
{
	File f;
	answered(&f);
	commit();
	ASSERT_EQ(k().unlink(dir, shard), 0);
	ASSERT_EQ(k().close(f), 0);
	answered(&f);	// as with one that the store had: DURABILITY, Safe checkpoints
	ASSERT_EQ(k().write(f, "BYTES"), 0);
	ASSERT_EQ(k().close(f), 0);
	EXPECT_FALSE(is_over());
}

TEST_P(Over, AKillBetween)
{
	for (bool rotated : {false, true}) {
		File f;
		std::string name = rotated ? "__1_0.distcp" : "__0_0.distcp";
		answered(&f, name);
		commit();
		if (rotated) {
			ASSERT_EQ(w->drain(), 0);
			ASSERT_EQ(shim_rotate(w->fs), 0);
		}
		restart();
		ASSERT_EQ(k().write(f, "BYTES"), 0);
		ASSERT_EQ(k().close(f), 0);
		EXPECT_TRUE(is_over(name)) << "rotated: " << rotated;
		EXPECT_EQ(k().lookup(root, "ckpt"), 0);
		dir = k().id;
	}
}

const std::string large(1 << 20, 'x');	// it is synced by itself

// The shard's own name is in the store and not durable, or waits behind another one's. So does the .metadata.
TEST_P(Over, NotWhatIsOnlyOpened)
{
	for (bool waits : {false, true}) {
		File f;
		std::string name = waits ? "__1_0.distcp" : "__0_0.distcp";
		EXPECT_EQ(w->drain(), 0);
		shim_hold_sync(1);
		ASSERT_NE(k().put(dir, waits ? "earlier" : name, large), 0u);
		shim_await_held(1);
		if (waits) {
			ASSERT_NE(k().put(dir, name, large), 0u);
		}
		commit();
		ASSERT_EQ(k().open_name(dir, name, O_RDWR, &f), 0);
		EXPECT_EQ(std::filesystem::exists(stored(name)), !waits);
		ASSERT_EQ(k().flush(f), 0);
		shim_let_go();
		ASSERT_EQ(k().release(f), 0);
		EXPECT_FALSE(is_over(name)) << "waits: " << waits;
		EXPECT_NE(xattr_of(stored(name), CKPT_OVER_KEY), "") << "it is its checksum that tells";
		ASSERT_EQ(k().open_name(dir, name, O_RDWR, &f), 0);
		ASSERT_EQ(k().write(f, "BYTES"), 0);
		ASSERT_EQ(k().close(f), 0);
		EXPECT_TRUE(is_over(name)) << "waits: " << waits;
	}
}

INSTANTIATE_TEST_SUITE_P(AfterA, Over, ::testing::Bool(),
			 [](auto &i) { return i.param ? "StagedFsync" : "Close"; });

} // namespace

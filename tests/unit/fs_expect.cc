// SPDX-License-Identifier: MIT
//
// How large will this file be? As large as the same shard of the checkpoint before.
#include "tests/unit/fs_client.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

class Expect : public ::testing::Test
{
protected:
	uint64_t dir(uint64_t in, const std::string &name)
	{
		EXPECT_EQ(k.mkdir(in, name), 0);
		return k.id;
	}
	void was(uint64_t in, const std::string &name, uint64_t size)
	{
		ASSERT_NE(k.put(in, name, ""), 0u);
		shim_expect_note(w.fs, in, name.c_str(), size);
	}
	uint64_t now(uint64_t in, const std::string &name)
	{
		return shim_expect(w.fs, in, name.c_str());
	}

	Ground ground;
	Worker w{ground};
	Client &k = w.k;
};

TEST_F(Expect, NothingIsKnownAtFirst)
{
	EXPECT_EQ(now(root, "a"), STAGED_SIZE_UNKNOWN);
	EXPECT_EQ(now(dir(root, "step-1"), "__0_0.distcp"), STAGED_SIZE_UNKNOWN);
}

TEST_F(Expect, TheSameShardOfTheCheckpointBefore)
{
	uint64_t run = dir(root, "run"), one = dir(run, "step-100");
	was(one, "__0_0.distcp", 1000);
	was(one, "__1_0.distcp", 2000);
	was(one, ".metadata", 30);
	uint64_t two = dir(run, "step-200"), three = dir(run, "step-1000000");
	for (uint64_t d : {two, three}) {
		EXPECT_EQ(now(d, "__0_0.distcp"), 1000u);
		EXPECT_EQ(now(d, "__1_0.distcp"), 2000u);
		EXPECT_EQ(now(d, ".metadata"), 30u);
	}
	was(two, "__0_0.distcp", 1500); // the last one counts
	EXPECT_EQ(now(three, "__0_0.distcp"), 1500u);
	EXPECT_EQ(now(three, "__1_0.distcp"), 2000u);
}

TEST_F(Expect, ANewNameIsLikeOthersOfItsShape)
{
	uint64_t one = dir(root, "step-1"), two = dir(root, "step-2");
	was(one, "__0_0.distcp", 1000);
	EXPECT_EQ(now(two, "__7_12.distcp"), 1000u);
	EXPECT_EQ(now(two, "__7_12.other"), STAGED_SIZE_UNKNOWN);
	EXPECT_EQ(now(two, "__a_0.distcp"), STAGED_SIZE_UNKNOWN);
	EXPECT_EQ(now(two, "__0_0.distcp.x"), STAGED_SIZE_UNKNOWN);
}

TEST_F(Expect, OtherDirectoriesAreOthers)
{
	uint64_t a = dir(root, "a"), b = dir(root, "b"), deep = dir(a, "step-1");
	was(a, "model.pt", 1000);
	EXPECT_EQ(now(b, "model.pt"), STAGED_SIZE_UNKNOWN);
	EXPECT_EQ(now(root, "model.pt"), STAGED_SIZE_UNKNOWN);
	EXPECT_EQ(now(deep, "model.pt"), STAGED_SIZE_UNKNOWN);
	was(deep, "model.pt", 5);
	EXPECT_EQ(now(dir(b, "step-1"), "model.pt"), STAGED_SIZE_UNKNOWN);
	EXPECT_EQ(now(dir(a, "step-2"), "model.pt"), 5u);
	EXPECT_EQ(now(a, "model.pt"), 1000u);
	// names do not run into those of directories
	EXPECT_EQ(now(root, "a/model.pt"), STAGED_SIZE_UNKNOWN);
}

TEST_F(Expect, ATemporaryNameIsLikeTheLastOne)
{
	uint64_t one = dir(root, "step-1"), two = dir(root, "step-2");
	was(one, ".tmpAb3dEf", 1000);
	EXPECT_EQ(now(two, ".tmpxYz9_w"), 1000u);
	EXPECT_EQ(now(two, "tmpa_b3dEf9"), 1000u);
	EXPECT_EQ(now(two, ".tmpAb3dEfg"), STAGED_SIZE_UNKNOWN);
	EXPECT_EQ(now(two, ".tmpAb-dEf"), STAGED_SIZE_UNKNOWN);
	EXPECT_EQ(now(two, "tmpdir"), STAGED_SIZE_UNKNOWN);
}

TEST_F(Expect, ZeroIsASizeToo)
{
	was(root, "empty", 0);
	EXPECT_EQ(now(root, "empty"), 0u);
}

// What it says decides the lane: a close tells it by itself.
TEST_F(Expect, AClosedFileIsRemembered)
{
	uint64_t one = dir(root, "step-1"), two = dir(root, "step-2");
	File f;
	ASSERT_EQ(k.create(one, "shard", &f, O_WRONLY | O_CREAT | O_EXCL), 0);
	ASSERT_EQ(k.write(f, pattern(123456, 1)), 0);
	EXPECT_EQ(now(two, "shard"), STAGED_SIZE_UNKNOWN);
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(now(two, "shard"), 123456u);
	// holes take no space, and none is kept for them
	ASSERT_EQ(k.create(one, "sparse", &f, O_WRONLY | O_CREAT | O_EXCL), 0);
	ASSERT_EQ(k.write(f, "x", 1u << 30), 0);
	ASSERT_EQ(k.close(f), 0);
	EXPECT_LT(now(two, "sparse"), 8u << 20);
}

// After an fsync a close has nothing to seal; DCP's files are closed so.
TEST(ExpectSynced, AFileThatWasFsyncedIsRememberedAtItsClose)
{
	Ground ground;
	Worker w(ground, true, true);
	Client &k = w.k;
	ASSERT_EQ(w.t.err, 0);
	ASSERT_EQ(k.mkdir(root, "step-1"), 0);
	uint64_t one = k.id;
	ASSERT_EQ(k.mkdir(root, "step-2"), 0);
	uint64_t two = k.id;
	File f;
	ASSERT_EQ(k.create(one, "shard", &f, O_WRONLY | O_CREAT | O_EXCL), 0);
	ASSERT_EQ(k.write(f, pattern(123456, 1)), 0);
	ASSERT_EQ(k.fsync(f), 0);
	ASSERT_EQ(k.close(f), 0);
	EXPECT_EQ(shim_expect(w.fs, two, "shard"), 123456u);
}

} // namespace

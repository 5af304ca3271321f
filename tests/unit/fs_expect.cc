// SPDX-License-Identifier: MIT
//
// How large will this file be? As large as the same shard of the checkpoint before.
#include "tests/unit/fs_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

class Expect : public ::testing::Test
{
protected:
	uint64_t dir(uint64_t in, const std::string &name)
	{
		uint64_t id = 0;
		EXPECT_EQ(shim_mkdir(fs, in, name.c_str(), &id), 0);
		return id;
	}
	void was(uint64_t in, const std::string &name, uint64_t size)
	{
		uint64_t id, fh;
		ASSERT_EQ(shim_create(fs, in, name.c_str(), &id, &fh), 0);
		ASSERT_EQ(shim_close(fs, fh), 0);
		shim_expect_note(fs, in, name.c_str(), size);
	}
	uint64_t now(uint64_t in, const std::string &name)
	{
		return shim_expect(fs, in, name.c_str());
	}

	Ground ground;
	LiveTree tree{ground};
	struct fs *fs = tree.fs;
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

TEST_F(Expect, ZeroIsASizeToo)
{
	was(root, "empty", 0);
	EXPECT_EQ(now(root, "empty"), 0u);
}

// What it says decides the lane: a close tells it by itself.
TEST_F(Expect, AClosedFileIsRemembered)
{
	uint64_t one = dir(root, "step-1"), two = dir(root, "step-2"), id, fh;
	std::string bytes = pattern(123456, 1);
	ASSERT_EQ(shim_create(fs, one, "shard", &id, &fh), 0);
	ASSERT_EQ(shim_write(fs, fh, bytes.data(), bytes.size(), 0), 0);
	EXPECT_EQ(now(two, "shard"), STAGED_SIZE_UNKNOWN);
	ASSERT_EQ(shim_close(fs, fh), 0);
	EXPECT_EQ(now(two, "shard"), 123456u);
	// holes take no room, and none is kept for them
	ASSERT_EQ(shim_create(fs, one, "sparse", &id, &fh), 0);
	ASSERT_EQ(shim_write(fs, fh, "x", 1, 1u << 30), 0);
	ASSERT_EQ(shim_close(fs, fh), 0);
	EXPECT_LT(now(two, "sparse"), 8u << 20);
}

} // namespace

// SPDX-License-Identifier: MIT
//
// A mount without a kernel that the tests of one suite share. Each has a directory of its own on it.
#pragma once

#include "tests/unit/fs_client.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR, unknown = 1ull << 40, control_dir = 2, views_dir = 15;

class Mounted : public ::testing::Test
{
protected:
	static void SetUpTestSuite()
	{
		ground = std::make_unique<Ground>();
		t = std::make_unique<LiveTree>(*ground, true, true);
		ASSERT_EQ(t->err, 0);
		client = std::make_unique<Client>(*t, 0);
	}
	static void TearDownTestSuite()
	{
		client.reset();
		t.reset();
		ground.reset();
	}
	void SetUp() override
	{
		name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
		ASSERT_EQ(k.mkdir(root, name, 0777), 0);
		dir = k.id;
	}
	void TearDown() override { k.uid = k.gid = 0; }
	void as(uint32_t uid)
	{
		k.uid = k.gid = uid;
		k.pid = 0;	// no process: no groups but this
	}
	void as_root()
	{
		k.uid = k.gid = 0;
		k.pid = (uint32_t)getpid();
	}
	// Everything accepted is in the store.
	void drain() { ASSERT_EQ(staging_drain(t->s(), 60000), 0); }
	std::string stored(const std::string &n) { return ground->store() + "/" + name + "/" + n; }
	struct stat stat_stored(const std::string &n)
	{
		struct stat st = {};
		EXPECT_EQ(lstat(stored(n).c_str(), &st), 0) << n;
		return st;
	}
	bool is_stored(const std::string &n)
	{
		struct stat st;
		return !lstat(stored(n).c_str(), &st);
	}
	fuse_attr attr_of(uint64_t id)
	{
		EXPECT_EQ(k.getattr(id), 0);
		return k.attr;
	}
	fuse_attr attr_of(const std::string &n)
	{
		EXPECT_EQ(k.lookup(dir, n), 0);
		return k.attr;
	}
	static std::pair<uint64_t, uint32_t> mtime(const fuse_attr &a) { return {a.mtime, a.mtimensec}; }
	static std::pair<uint64_t, uint32_t> ctime(const fuse_attr &a) { return {a.ctime, a.ctimensec}; }
	uint64_t seal_of(uint64_t id) { return shim_seal_seq(t->fs, id); }

	inline static std::unique_ptr<Ground> ground;
	inline static std::unique_ptr<LiveTree> t;
	inline static std::unique_ptr<Client> client;
	Client &k = *client;
	std::string name;
	uint64_t dir = 0;
};

} // namespace

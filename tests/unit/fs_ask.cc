// SPDX-License-Identifier: MIT
//
// The store is asked without the tree lock, and its answer comes late: what happened here meanwhile
// counts. A name that was removed stays so, and what was accepted is found.
#include <filesystem>
#include <fstream>
#include <future>
#include <set>

#include "tests/unit/fs_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

class Late : public ::testing::Test
{
protected:
	Late() : t(ground, true) { EXPECT_EQ(t.err, 0); }

	void put(const char *name, const char *bytes)
	{
		uint64_t id, fh;
		int rc = shim_lookup(t.fs, root, name, &id);
		rc = rc ? shim_create(t.fs, root, name, &id, &fh) :
			  shim_open_file(t.fs, root, name, O_WRONLY | O_TRUNC, &fh);
		ASSERT_EQ(rc, 0);
		ASSERT_EQ(shim_write(t.fs, fh, bytes, strlen(bytes), 0), 0);
		ASSERT_EQ(shim_close(t.fs, fh), 0);
	}
	// In the store, and not known here.
	void settle()
	{
		ASSERT_EQ(staging_drain(t.s(), 60000), 0);
		shim_evict(t.fs);
		for (uint64_t id : ids)
			shim_forget(t.fs, id);
		ids.clear();
	}
	void in_store(const char *name, const char *bytes)
	{
		put(name, bytes);
		know(name);
		settle();
	}
	void know(const char *name)
	{
		uint64_t id;
		ASSERT_EQ(shim_lookup(t.fs, root, name, &id), 0);
		ids.push_back(id);
	}
	// What fn is answered, where `late` is the call that takes long, and `meanwhile` what happens then.
	template <typename Fn, typename Meanwhile> int late(const char *call, Fn fn, Meanwhile meanwhile)
	{
		shim_answer_late(call);
		auto answer = std::async(std::launch::async, fn);
		shim_await_late();
		meanwhile();
		shim_let_answer();
		return answer.get();
	}
	int look(const char *name, uint64_t *id) { return shim_lookup(t.fs, root, name, id); }
	std::set<std::string> list()
	{
		std::set<std::string> names;
		EXPECT_EQ(list_rc(names), 0);
		return names;
	}
	int list_rc(std::set<std::string> &names)
	{
		return shim_list(t.fs, root, [](void *arg, const char *name) {
			EXPECT_TRUE(static_cast<std::set<std::string> *>(arg)->insert(name).second) << name;
			return 0;
		}, &names);
	}

	Ground ground;
	LiveTree t;
	std::vector<uint64_t> ids;
};

TEST_F(Late, ARemovedNameStaysRemoved)
{
	std::filesystem::create_symlink("target", ground.store() + "/x");
	uint64_t id;
	EXPECT_EQ(late("x", [&] { return look("x", &id); }, [&] {
		EXPECT_EQ(shim_unlink(t.fs, root, "x"), 0);
		settle();
	}), -ENOENT);
}

TEST_F(Late, AnAcceptedFileIsFound)
{
	uint64_t id, seen;
	EXPECT_EQ(late("y", [&] { return look("y", &id); }, [&] {
		in_store("y", "bytes");
	}), 0);
	EXPECT_EQ(look("y", &seen), 0);
	EXPECT_EQ(seen, id);
}

// The new version keeps its node; the old one's inode is not taken for another file.
TEST_F(Late, ANewVersionIsTheSameFile)
{
	in_store("x", "old");
	uint64_t id = 0, seen;
	know("x");
	EXPECT_EQ(late("x", [&] { return look("x", &id); }, [&] {
		put("x", "newer bytes");
		ASSERT_EQ(staging_drain(t.s(), 60000), 0);
		shim_evict(t.fs);
	}), 0);
	EXPECT_EQ(id, ids[0]);
	EXPECT_EQ(look("x", &seen), 0);
	EXPECT_EQ(seen, id);
	struct stat st;
	ASSERT_EQ(shim_stat(t.fs, id, &st), 0);
	EXPECT_EQ(st.st_size, 11);
}

TEST_F(Late, ANewSizeIsSeen)
{
	in_store("x", "old");
	struct stat st;
	know("x");
	EXPECT_EQ(late("x", [&] { return shim_stat(t.fs, ids[0], &st); }, [&] {
		put("x", "newer bytes");
		ASSERT_EQ(staging_drain(t.s(), 60000), 0);
		shim_evict(t.fs);
	}), 0);
	EXPECT_EQ(st.st_size, 11);
}

TEST_F(Late, AChangeOfModeIsSeen)
{
	in_store("x", "bytes");
	struct stat st;
	know("x");
	EXPECT_EQ(late("x", [&] { return shim_stat(t.fs, ids[0], &st); }, [&] {
		EXPECT_EQ(shim_chmod(t.fs, ids[0], 0600), 0);
		EXPECT_EQ(staging_drain(t.s(), 60000), 0);
	}), 0);
	EXPECT_EQ(st.st_mode & 07777, 0600u);
}

// It is on its way when the store is asked, and there when it has answered.
TEST(LateStart, AChangeOnItsWayIsNotUndone)
{
	Ground ground;
	std::ofstream(ground.store() + "/x") << "bytes";
	LiveTree t(ground);
	uint64_t id;
	struct stat st;
	ASSERT_EQ(shim_lookup(t.fs, root, "x", &id), 0);
	ASSERT_EQ(shim_chmod(t.fs, id, 0600), 0);
	shim_answer_late("x");
	auto answer = std::async(std::launch::async, [&] { return shim_stat(t.fs, id, &st); });
	shim_await_late();
	EXPECT_EQ(shim_start(t.fs), 0);
	EXPECT_EQ(staging_drain(t.s(), 60000), 0);
	shim_let_answer();
	EXPECT_EQ(answer.get(), 0);
	EXPECT_EQ(st.st_mode & 07777, 0600u);
}

TEST_F(Late, AListingHasWhatCameAndNotWhatWent)
{
	for (const char *name : {"a", "b", "c", "d"})
		in_store(name, "bytes");
	std::set<std::string> names;
	EXPECT_EQ(late("closedir", [&] { return list_rc(names); }, [&] {
		EXPECT_EQ(shim_unlink(t.fs, root, "a"), 0);
		EXPECT_EQ(shim_rename(t.fs, root, "b", root, "new"), 0);
		in_store("came", "bytes");
		know("new");
		settle();
	}), 0);
	EXPECT_EQ(names, (std::set<std::string>{"c", "came", "d", "new"}));
	EXPECT_EQ(list(), names);
}

// A removal that was on its way when the listing was read, and is done when it is used.
TEST_F(Late, ADirectoryWhoseLastNameWentIsEmpty)
{
	uint64_t dir, id, fh;
	ASSERT_EQ(shim_mkdir(t.fs, root, "dir", &dir), 0);
	ASSERT_EQ(shim_create(t.fs, dir, "last", &id, &fh), 0);
	ASSERT_EQ(shim_close(t.fs, fh), 0);
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	EXPECT_EQ(late("closedir", [&] { return shim_rmdir(t.fs, root, "dir"); }, [&] {
		EXPECT_EQ(shim_unlink(t.fs, dir, "last"), 0);
		ids.push_back(id);
		settle();
	}), 0);
}

// Removals that reach the store one after the other while the listing is compared with the tree.
TEST_F(Late, ADirectoryWhoseNamesGoOneByOneIsEmpty)
{
	for (int round = 0; round < 20; round++) {
		uint64_t dir, id, fh;
		ASSERT_EQ(shim_mkdir(t.fs, root, "dir", &dir), 0);
		for (int i = 0; i < 300; i++) {
			ASSERT_EQ(shim_create(t.fs, dir, std::to_string(i).c_str(), &id, &fh), 0);
			ASSERT_EQ(shim_close(t.fs, fh), 0);
		}
		ASSERT_EQ(staging_drain(t.s(), 60000), 0);
		for (int i = 0; i < 300; i++)
			ASSERT_EQ(shim_unlink(t.fs, dir, std::to_string(i).c_str()), 0);
		ASSERT_EQ(shim_rmdir(t.fs, root, "dir"), 0) << "round " << round;
	}
}

// The publisher has renamed it, and not counted that yet.
TEST_F(Late, ASymlinkOnItsWayIsRead)
{
	ASSERT_EQ(shim_symlink(t.fs, root, "s", "target"), 0);
	know("s");
	settle();
	uint64_t id;
	ASSERT_EQ(look("s", &id), 0);	// from the store: its target is there alone
	shim_answer_late("renameat");
	ASSERT_EQ(shim_rename(t.fs, root, "s", root, "t"), 0);
	shim_await_late();
	char buf[64];
	EXPECT_EQ(shim_readlink(t.fs, id, buf, sizeof(buf)), 0);
	EXPECT_STREQ(buf, "target");
	shim_let_answer();
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
}

} // namespace

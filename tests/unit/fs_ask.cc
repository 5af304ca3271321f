// SPDX-License-Identifier: MIT
//
// The store is asked without the tree lock, and its answer comes late: what happened here meanwhile
// counts. A name that was removed stays so, and what was accepted is found.
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/unit/fs_client.hh"
#include "tests/unit/store_faults.h"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

class Late : public ::testing::Test
{
protected:
	Late() : w(ground, true, false, 0) { EXPECT_EQ(w.t.err, 0); }

	void put(const char *name, const char *bytes) { ASSERT_EQ(k.save(root, name, bytes), 0); }
	// In the store, and not known here.
	void settle()
	{
		publish();
		for (uint64_t id : ids)
			k.forget_all(id);
		shim_tidy(w.fs);
		ids.clear();
	}
	void publish()
	{
		ASSERT_EQ(w.drain(), 0);
		shim_evict(w.fs);
	}
	void in_store(const char *name, const char *bytes)
	{
		put(name, bytes);
		know(name);
		settle();
	}
	void know(const char *name)
	{
		ASSERT_EQ(k.lookup(root, name), 0);
		ids.push_back(k.id);
	}
	// What this request is answered, where `late` is the call that takes long, and `meanwhile` what happens then.
	template <typename Meanwhile>
	int late(const char *call, unsigned opcode, uint64_t node, const Body &body, Meanwhile meanwhile)
	{
		shim_answer_late(call);
		uint64_t unique = k.send(opcode, node, body);
		shim_await_late();
		meanwhile();
		shim_let_answer();
		return k.await(unique);
	}
	template <typename Meanwhile> int late_lookup(const char *name, Meanwhile meanwhile)
	{
		late(name, FUSE_LOOKUP, root, Body().name(name), meanwhile);
		return k.entry();
	}
	template <typename Meanwhile> int late_getattr(const char *name, uint64_t id, Meanwhile meanwhile)
	{
		late(name, FUSE_GETATTR, id, Body().add(fuse_getattr_in{}), meanwhile);
		return k.attributes();
	}
	std::set<std::string> names()
	{
		std::set<std::string> all;
		for (auto &[name, what] : k.names)
			if (name != "." && name != "..")
				all.insert(name);
		return all;
	}

	Ground ground;
	Worker w;
	Client &k = w.k;
	std::vector<uint64_t> ids;
};

TEST_F(Late, ARemovedNameStaysRemoved)
{
	std::filesystem::create_symlink("target", ground.store() + "/x");
	EXPECT_EQ(late_lookup("x", [&] {
		EXPECT_EQ(k.unlink(root, "x"), 0);
		settle();
	}), -ENOENT);
}

TEST_F(Late, AnAcceptedFileIsFound)
{
	EXPECT_EQ(late_lookup("y", [&] {
		in_store("y", "bytes");
	}), 0);
	uint64_t id = k.id;
	EXPECT_EQ(k.lookup(root, "y"), 0);
	EXPECT_EQ(k.id, id);
}

// The new version keeps its node; the old one's inode is not taken for another file.
TEST_F(Late, ANewVersionIsTheSameFile)
{
	in_store("x", "old");
	know("x");
	EXPECT_EQ(late_lookup("x", [&] {
		put("x", "newer bytes");
		publish();
	}), 0);
	EXPECT_EQ(k.id, ids[0]);
	EXPECT_EQ(k.lookup(root, "x"), 0);
	EXPECT_EQ(k.id, ids[0]);
	ASSERT_EQ(k.getattr(ids[0]), 0);
	EXPECT_EQ(k.attr.size, 11u);
}

TEST_F(Late, ANewSizeIsSeen)
{
	in_store("x", "old");
	know("x");
	EXPECT_EQ(late_getattr("x", ids[0], [&] {
		put("x", "newer bytes");
		publish();
	}), 0);
	EXPECT_EQ(k.attr.size, 11u);
}

TEST_F(Late, AChangeOfModeIsSeen)
{
	in_store("x", "bytes");
	know("x");
	EXPECT_EQ(late_getattr("x", ids[0], [&] {
		EXPECT_EQ(k.chmod(ids[0], 0600), 0);
		EXPECT_EQ(w.drain(), 0);
	}), 0);
	EXPECT_EQ(k.attr.mode & 07777, 0600u);
}

// It is on its way when the store is asked, and there when it has answered.
TEST(LateStart, AChangeOnItsWayIsNotUndone)
{
	Ground ground;
	std::ofstream(ground.store() + "/x") << "bytes";
	Worker w(ground);
	ASSERT_EQ(w.t.err, 0);
	ASSERT_EQ(w.k.lookup(root, "x"), 0);
	uint64_t id = w.k.id;
	ASSERT_EQ(w.k.chmod(id, 0600), 0);
	shim_answer_late("x");
	uint64_t unique = w.k.send(FUSE_GETATTR, id, Body().add(fuse_getattr_in{}));
	shim_await_late();
	EXPECT_EQ(shim_start(w.fs), 0);
	EXPECT_EQ(w.drain(), 0);
	shim_let_answer();
	EXPECT_EQ(w.k.await(unique), 0);
	ASSERT_EQ(w.k.attributes(), 0);
	EXPECT_EQ(w.k.attr.mode & 07777, 0600u);
}

TEST_F(Late, AListingHasWhatCameAndNotWhatWent)
{
	for (const char *name : {"a", "b", "c", "d"})
		in_store(name, "bytes");
	File d;
	uint64_t off = 0;
	ASSERT_EQ(k.open_dir(root, &d), 0);
	EXPECT_EQ(late("closedir", FUSE_READDIR, root, Client::reading(d, 0, 4096), [&] {
		EXPECT_EQ(k.unlink(root, "a"), 0);
		EXPECT_EQ(k.rename(root, "b", root, "new"), 0);
		in_store("came", "bytes");
		know("new");
		settle();
	}), 0);
	for (k.listed(&off, false); !k.err && !k.bytes.empty();)
		k.read_some(d, &off, 4096, false);
	EXPECT_EQ(k.err, 0);
	std::set<std::string> seen = names();
	EXPECT_EQ(seen, (std::set<std::string>{"c", "came", "d", "new"}));
	EXPECT_EQ(k.read_dir(root), 0);
	EXPECT_EQ(names(), seen);
}

// A removal that was on its way when the listing was read, and is done when it is used.
TEST_F(Late, ADirectoryWhoseLastNameWentIsEmpty)
{
	ASSERT_EQ(k.mkdir(root, "dir"), 0);
	uint64_t dir = k.id, last = k.put(dir, "last", "");
	ASSERT_NE(last, 0u);
	ASSERT_EQ(w.drain(), 0);
	EXPECT_EQ(late("closedir", FUSE_RMDIR, root, Body().name("dir"), [&] {
		EXPECT_EQ(k.unlink(dir, "last"), 0);
		ids.push_back(last);
		settle();
	}), 0);
}

// Removals that reach the store one after the other while the listing is compared with the tree.
TEST_F(Late, ADirectoryWhoseNamesGoOneByOneIsEmpty)
{
	for (int round = 0; round < 20; round++) {
		ASSERT_EQ(k.mkdir(root, "dir"), 0);
		uint64_t dir = k.id;
		for (int i = 0; i < 300; i++)
			ASSERT_NE(k.put(dir, std::to_string(i), ""), 0u);
		ASSERT_EQ(w.drain(), 0);
		for (int i = 0; i < 300; i++)
			ASSERT_EQ(k.unlink(dir, std::to_string(i)), 0);
		ASSERT_EQ(k.rmdir(root, "dir"), 0) << "round " << round;
	}
}

// The publisher has renamed it, and not counted that yet.
TEST_F(Late, ASymlinkOnItsWayIsRead)
{
	ASSERT_EQ(k.symlink(root, "s", "target"), 0);
	know("s");
	settle();
	ASSERT_EQ(k.lookup(root, "s"), 0);	// from the store: its target is there alone
	uint64_t id = k.id;
	shim_answer_late("renameat");
	ASSERT_EQ(k.rename(root, "s", root, "t"), 0);
	shim_await_late();
	EXPECT_EQ(k.readlink(id), 0);
	EXPECT_EQ(k.bytes, "target");
	shim_let_answer();
	ASSERT_EQ(w.drain(), 0);
}

} // namespace

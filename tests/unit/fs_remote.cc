// SPDX-License-Identifier: MIT
//
// Listings of a tier (fs/remote/snapshot.c): a tree of what a server sent, and nothing of what it may not send.
#include <gtest/gtest.h>

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <random>
#include <string>

#include "io/tier_ask.h"
#include "tests/unit/remote_shim.h"

namespace {

std::string entry(const std::string &path, unsigned mode, uint64_t size = 0, bool checkpoint = false, uint64_t step = 0,
		  uid_t uid = 0)
{
	tier_entry e = {};
	e.size = size;
	e.mode = mode;
	e.uid = uid;
	e.mtime_s = 1000;
	e.path_bytes = static_cast<uint16_t>(path.size());
	e.checkpoint = checkpoint;
	e.has_step = checkpoint;
	e.step = step;
	return std::string(reinterpret_cast<const char *>(&e), sizeof(e)) + path;
}

constexpr unsigned dir = S_IFDIR | 0755, file = S_IFREG | 0644;

struct List {
	explicit List(const std::string &bytes) { err = shim_remote_parse(bytes.data(), bytes.size(), &l); }
	~List() { shim_remote_free(l); }
	bool has(const char *path) const { return shim_remote_find(l, path).path; }
	remote_list *l = nullptr;
	int err;
};

// In no order, some twice; a name that sorts between a directory and what is in it.
std::string run()
{
	return entry("run/step-9/__0_0.distcp", file, 100) + entry("run", dir) + entry("run/step-9", dir, 0, true, 9) +
	       entry("", dir) + entry("run/step-9", dir) + entry("run-2", dir) + entry("run/step-9/.metadata", file, 7) +
	       entry("run", dir) + entry("run/step-10", dir, 0, true, 10) + entry("run/step-10/a b", file, 5) +
	       entry("run/last.ckpt", file, 50, true, 3) + entry("run/step-9/deep", dir) +
	       entry("run/step-9/deep/x", file, 1);
}

TEST(Remote, TreeOfEntriesInAnyOrder)
{
	List t(run());

	ASSERT_EQ(t.err, 0);
	EXPECT_EQ(shim_remote_count(t.l), 11u);
	EXPECT_EQ(shim_remote_left_out(t.l), 0u);
	EXPECT_EQ(shim_remote_checkpoints(t.l), 3u);
	EXPECT_STREQ(shim_remote_nth(t.l, "", 0).path, "run");
	EXPECT_STREQ(shim_remote_nth(t.l, "", 1).path, "run-2");
	EXPECT_EQ(shim_remote_nth(t.l, "", 2).path, nullptr);
	EXPECT_EQ(shim_remote_nth(t.l, "run-2", 0).path, nullptr);
	EXPECT_STREQ(shim_remote_nth(t.l, "run", 0).path, "run/last.ckpt");
	EXPECT_STREQ(shim_remote_nth(t.l, "run", 1).path, "run/step-10");
	EXPECT_STREQ(shim_remote_nth(t.l, "run", 2).path, "run/step-9");
	EXPECT_EQ(shim_remote_nth(t.l, "run", 3).path, nullptr);
	EXPECT_STREQ(shim_remote_child(t.l, "run/step-10", "a b").path, "run/step-10/a b");
	EXPECT_EQ(shim_remote_child(t.l, "run", "step-9/deep").path, nullptr);
	EXPECT_EQ(shim_remote_child(t.l, "run", "").path, nullptr);
	EXPECT_STREQ(shim_remote_checkpoint(t.l, "run/step-9/deep/x").path, "run/step-9");
	EXPECT_STREQ(shim_remote_checkpoint(t.l, "run/last.ckpt").path, "run/last.ckpt");
	EXPECT_EQ(shim_remote_checkpoint(t.l, "run").path, nullptr);
	EXPECT_EQ(shim_remote_find(t.l, "run/step-9").step, 9u);
	EXPECT_EQ(shim_remote_bytes(t.l, "run/step-9"), 108u);
	EXPECT_EQ(shim_remote_bytes(t.l, ""), 163u);
	for (unsigned i = 0; i < shim_remote_count(t.l); i++) {
		const char *path = shim_remote_at(t.l, i).path;
		EXPECT_STREQ(shim_remote_by_id(t.l, path).path, path);
	}
}

TEST(Remote, OnlyACheckpointIsDamaged)
{
	std::string bytes = entry("", dir);
	for (const char *path : {"step-1", "step-2", "run"}) {
		std::string one = entry(path, dir, 0, path[0] == 's', 1);
		tier_entry e;
		memcpy(&e, one.data(), sizeof(e));
		e.damaged = path != std::string("step-2");
		memcpy(one.data(), &e, sizeof(e));
		bytes += one;
	}
	List t(bytes);
	ASSERT_EQ(t.err, 0);
	EXPECT_TRUE(shim_remote_find(t.l, "step-1").damaged);
	EXPECT_FALSE(shim_remote_find(t.l, "step-2").damaged);
	EXPECT_FALSE(shim_remote_find(t.l, "run").damaged);
}

TEST(Remote, WhatLeadsOutIsLeftOut)
{
	const std::string long_name(256, 'x');
	for (const std::string &path :
	     {std::string("/etc"), std::string("../x"), std::string("run/../../x"), std::string("run/./x"), std::string("run//x"),
	      std::string("run/"), std::string("."), std::string(".."), std::string(".cairn"), std::string("run/.cairn/x"),
	      std::string("run/.cairn-fetch.x"), std::string("run/a\0b", 7), long_name, std::string("nowhere/x")}) {
		List t(entry("", dir) + entry("run", dir) + entry(path, file, 1));
		ASSERT_EQ(t.err, 0) << path;
		EXPECT_EQ(shim_remote_count(t.l), 2u) << path;
		EXPECT_EQ(shim_remote_left_out(t.l), 1u) << path;
	}
	// neither in a file, nor anything but files and directories
	List in_file(entry("", dir) + entry("f", file) + entry("f/x", file));
	EXPECT_EQ(shim_remote_count(in_file.l), 2u);
	for (unsigned type : {S_IFLNK, S_IFCHR, S_IFBLK, S_IFIFO, S_IFSOCK, 0}) {
		List t(entry("", dir) + entry("x", type | 0777));
		EXPECT_EQ(shim_remote_count(t.l), 1u);
	}
	List suid(entry("", dir) + entry("x", file | S_ISUID | S_ISGID | S_ISVTX));
	EXPECT_EQ(shim_remote_find(suid.l, "x").mode, file);
}

TEST(Remote, DirectoryThatIsLeftOutHasNothing)
{
	List t(entry("", dir) + entry("a", dir) + entry("a/b/c", file) + entry("a/.cairn", dir) + entry("a/.cairn/x", file) +
	       entry("a/d", file));
	ASSERT_EQ(t.err, 0);
	EXPECT_TRUE(t.has("a/d"));
	EXPECT_FALSE(t.has("a/b/c"));
	EXPECT_FALSE(t.has("a/.cairn/x"));
	EXPECT_EQ(shim_remote_left_out(t.l), 3u);
}

TEST(Remote, NotAListing)
{
	const std::string good = run();
	for (size_t n = 0; n < good.size(); n++) {
		List t(good.substr(0, n));
		// cut between two entries it is one, if the top is there
		if (t.err)
			EXPECT_EQ(t.err, -EBADMSG);
		else
			EXPECT_TRUE(t.has(""));
	}
	List none("");
	EXPECT_EQ(none.err, -EBADMSG);
	List no_top(entry("run", dir));
	EXPECT_EQ(no_top.err, -EBADMSG);
	std::mt19937 random(7);
	for (int i = 0; i < 3000; i++) {
		std::string bytes = good;
		for (int k = 0; k < 4; k++)
			bytes[random() % bytes.size()] = static_cast<char>(random());
		List t(bytes);
		for (unsigned n = 0; !t.err && n < shim_remote_count(t.l); n++)
			EXPECT_EQ(("/" + std::string(shim_remote_at(t.l, n).path) + "/").find("/../"), std::string::npos);
	}
}

TEST(Remote, PermissionsOfAllDirectories)
{
	List t(entry("", dir) + entry("a", S_IFDIR | 0700, 0, false, 0, 7) + entry("a/b", dir) + entry("a/b/f", file, 1) +
	       entry("g", file & ~0004u));
	EXPECT_EQ(shim_remote_may(t.l, "a/b/f", 0, 0, 4), 0);
	EXPECT_EQ(shim_remote_may(t.l, "a/b/f", 7, 7, 4), 0);
	EXPECT_EQ(shim_remote_may(t.l, "a/b/f", 8, 8, 4), -EACCES);
	EXPECT_EQ(shim_remote_may(t.l, "g", 8, 8, 4), -EACCES);
	EXPECT_EQ(shim_remote_may(t.l, "", 8, 8, 5), 0);
}

} // namespace

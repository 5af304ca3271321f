// SPDX-License-Identifier: MIT
//
// What stands against resident memory, told from what a kernel says of its machine.
#include <gtest/gtest.h>

#include <errno.h>

#include <string>
#include <vector>

#include "staging/memory/pin.h"
#include "test.hh"

namespace
{

void write_file(const std::string &path, const std::string &text)
{
	std::filesystem::create_directories(std::filesystem::path(path).parent_path());
	Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644));
	ASSERT_EQ(write(fd.get(), text.data(), text.size()), (ssize_t)text.size());
}

// A machine as a test wants it.
struct Machine {
	Machine()
	{
		at.nodes = nodes.c_str();
		at.swaps = swaps.c_str();
		at.own = own.c_str();
		at.cgroups = cgroups.c_str();
		at.mounts = mounts.c_str();
		at.huge = huge.c_str();
		snprintf(place.path, sizeof(place.path), "/run/cairnfs/x");
		place.is_private = true;
		write_file(swaps, "Filename\t\t\t\tType\n");
		write_file(huge, "always within_size advise [never] deny force\n");
		mounted(",noswap");
	}
	void swap_on() { write_file(swaps, "Filename Type\n/dev/sda2 partition 100 0 -2\n"); }
	void mounted(const std::string &option)
	{
		write_file(mounts, "82 27 0:73 / /run/cairnfs/x/huge rw,noatime - tmpfs x rw,size=4k" + option + "\n"
				   "83 27 0:74 / /mnt/other rw - tmpfs x rw,noswap\n");
	}
	unsigned report(uint64_t bytes)
	{
		said.clear();
		return pin_report(&at, &place, bytes, note, this);
	}
	bool says(const char *part) const
	{
		for (auto &t : said)
			if (t.find(part) != std::string::npos)
				return true;
		return false;
	}
	static void note(void *ctx, const char *text) { static_cast<Machine *>(ctx)->said.push_back(text); }

	TempDir dir;
	std::string nodes = dir / "node", swaps = dir / "swaps", own = dir / "own", cgroups = dir / "cgroup",
		    mounts = dir / "mounts", huge = dir / "huge";
	pin_places at = {};
	staging_place place = {};
	std::vector<std::string> said;
};

TEST(Pin, Nodes)
{
	Machine m;
	EXPECT_EQ(pin_check_node(&m.at, 0), -ENOTSUP);
	EXPECT_EQ(pin_check_node(&m.at, STAGING_ANY_NODE), 0);
	write_file(m.nodes + "/has_memory", "0-1,3,8-11\n");
	for (int good : {0, 1, 3, 8, 11})
		EXPECT_EQ(pin_check_node(&m.at, good), 0) << good;
	for (int bad : {2, 4, 7, 12, 1000})
		EXPECT_EQ(pin_check_node(&m.at, bad), -ENODEV) << bad;
	char opt[32];
	pin_option(3, opt);
	EXPECT_STREQ(opt, ",mpol=prefer:3");
}

TEST(Pin, NothingToSay)
{
	Machine m;
	EXPECT_EQ(m.report(1ull << 40), 0u);
	m.swap_on();
	EXPECT_EQ(m.report(1ull << 40), 0u) << "noswap";
}

TEST(Pin, Swap)
{
	Machine m;
	m.mounted("");
	EXPECT_EQ(m.report(1), 0u) << "none is on";
	m.swap_on();
	EXPECT_EQ(m.report(1), 1u);
	EXPECT_TRUE(m.says("before 6.4") && m.says("swapoff"));
	m.place.is_private = false;
	EXPECT_EQ(m.report(1), 1u);
	EXPECT_TRUE(m.says("of the system's"));
}

TEST(Pin, CgroupsOfBothKinds)
{
	Machine m;
	char where[256];
	write_file(m.own, "0::/a/b\n");
	write_file(m.cgroups + "/a/memory.max", "1073741824\n");
	write_file(m.cgroups + "/a/b/memory.max", "max\n");
	EXPECT_EQ(pin_cgroup_limit(&m.at, where), 1ull << 30);
	EXPECT_STREQ(where, "/a");
	EXPECT_EQ(m.report(1ull << 30), 0u);
	EXPECT_EQ(m.report((1ull << 30) + 1), 1u);
	EXPECT_TRUE(m.says("/a allows 1024 MiB") && m.says("staging="));

	Machine old;
	write_file(old.own, "9:name=systemd:/\n4:memory:/job/7\n0::/\n");
	write_file(old.cgroups + "/memory/memory.limit_in_bytes", "9223372036854771712\n");
	EXPECT_EQ(pin_cgroup_limit(&old.at, where), UINT64_MAX);
	write_file(old.cgroups + "/memory/job/7/memory.limit_in_bytes", "4096\n");
	EXPECT_EQ(pin_cgroup_limit(&old.at, where), 4096u);
	EXPECT_STREQ(where, "/job/7");
	write_file(old.own, "broken");
	EXPECT_EQ(pin_cgroup_limit(&old.at, where), UINT64_MAX);
}

TEST(Pin, KilledInACgroup)
{
	Machine m;
	write_file(m.own, "0::/a/b\n");
	EXPECT_EQ(pin_cgroup_kills(&m.at), 0u);
	write_file(m.cgroups + "/a/memory.events", "low 0\noom 9\noom_kill 9\noom_group_kill 0\n");
	write_file(m.cgroups + "/a/b/memory.events", "low 0\noom 5\noom_kill 3\noom_group_kill 0\n");
	EXPECT_EQ(pin_cgroup_kills(&m.at), 3u) << "in its own cgroup only";

	Machine old;
	write_file(old.own, "4:memory:/job/7\n0::/\n");
	write_file(old.cgroups + "/memory/job/7/memory.oom_control", "under_oom 0\noom_kill 2\n");
	EXPECT_EQ(pin_cgroup_kills(&old.at), 2u);
}

/* What a writer may still take: its page cache counts as free, what cannot be seen as none at all. */
TEST(Pin, SpaceInACgroup)
{
	Machine m;
	write_file(m.own, "0::/a/b\n");
	write_file(m.cgroups + "/a/b/cgroup.procs", "");
	EXPECT_EQ(pin_cgroup_space(&m.at, m.own.c_str()), UINT64_MAX);
	write_file(m.cgroups + "/a/memory.max", "1000000\n");
	write_file(m.cgroups + "/a/memory.current", "900000\n");
	EXPECT_EQ(pin_cgroup_space(&m.at, m.own.c_str()), 100000u);
	write_file(m.cgroups + "/a/memory.stat", "anon 5\ninactive_file 20000\nactive_file 3000\nx 1\n");
	EXPECT_EQ(pin_cgroup_space(&m.at, m.own.c_str()), 123000u);
	write_file(m.cgroups + "/a/b/memory.high", "4096\n");
	write_file(m.cgroups + "/a/b/memory.current", "8192\n");
	EXPECT_EQ(pin_cgroup_space(&m.at, m.own.c_str()), 0u);
	EXPECT_EQ(pin_cgroup_space(&m.at, "/nowhere"), 0u);
	write_file(m.own, "0::/../b\n");
	EXPECT_EQ(pin_cgroup_space(&m.at, m.own.c_str()), 0u) << "of another namespace";

	Machine old;
	write_file(old.own, "4:memory:/job/7\n0::/elsewhere\n");
	EXPECT_EQ(pin_cgroup_space(&old.at, old.own.c_str()), 0u);
	write_file(old.cgroups + "/memory/job/7/cgroup.procs", "");
	EXPECT_EQ(pin_cgroup_space(&old.at, old.own.c_str()), UINT64_MAX);
	write_file(old.cgroups + "/memory/job/memory.limit_in_bytes", "409600\n");
	write_file(old.cgroups + "/memory/job/memory.usage_in_bytes", "400000\n");
	write_file(old.cgroups + "/memory/job/memory.stat", "inactive_file 7\ntotal_inactive_file 100\ntotal_active_file 23\n");
	EXPECT_EQ(pin_cgroup_space(&old.at, old.own.c_str()), 9723u);
}

TEST(Pin, HugePagesDenied)
{
	Machine m;
	write_file(m.huge, "always within_size advise never [deny] force\n");
	EXPECT_EQ(m.report(1), 1u);
	EXPECT_TRUE(m.says("huge pages are denied"));
}

} // namespace

// SPDX-License-Identifier: MIT
//
// A filesystem of its own on a loop device, for what a journal must do: `ok` is false where it is
// not to be had (no root, no loop devices).
#pragma once

#include <sys/mount.h>

#include "test.hh"

struct LoopDisk {
	explicit LoopDisk(const std::string &mkfs, const std::string &options = "rw") : opts(options)
	{
		std::filesystem::create_directory(dir / "mnt");
		path = dir / "mnt/store";
		ok = !geteuid() && !sh("truncate -s 320M " + dir.path + "/img") &&
		     !sh(mkfs + " " + dir.path + "/img") && mount();
		if (ok)
			std::filesystem::create_directory(path);
	}
	LoopDisk(const LoopDisk &) = delete;
	LoopDisk &operator=(const LoopDisk &) = delete;
	~LoopDisk() { unmount(); }
	bool mount() { return mounted = !sh("mount -o loop," + opts + " " + dir.path + "/img " + dir.path + "/mnt"); }
	void unmount()
	{
		if (mounted)
			umount2((dir / "mnt").c_str(), MNT_DETACH);
		mounted = false;
	}
	static int sh(const std::string &cmd) { return system((cmd + " >/dev/null 2>&1").c_str()); }

	TempDir dir;
	std::string path, opts;
	bool ok, mounted = false;
};

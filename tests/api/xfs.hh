// SPDX-License-Identifier: MIT
//
// A store on xfs, which has shared extents, and what of a file is shared.
#pragma once

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include "tests/api/io_fixture.hh"

// A loop-mounted filesystem; `ok` is false where that is not to be had.
struct Loop {
	explicit Loop(const std::string &mkfs)
	{
		std::string img = dir / "img", at = dir / "mnt";
		std::filesystem::create_directory(at);
		ok = !geteuid() && !sh("truncate -s 320M " + img) && !sh(mkfs + " " + img) &&
		     !sh("mount -o loop " + img + " " + at);
	}
	Loop(const Loop &) = delete;
	Loop &operator=(const Loop &) = delete;
	~Loop()
	{
		if (ok)
			umount2((dir / "mnt").c_str(), MNT_DETACH);
	}
	static int sh(const std::string &cmd) { return system((cmd + " 2>/dev/null").c_str()); }
	std::string path(const std::string &name) const { return dir / ("mnt/" + name); }
	TempDir dir;
	bool ok;
};

struct Xfs : Loop {
	Xfs() : Loop("mkfs.xfs -q -m reflink=1") {}
	// The first byte of the file changes on the disk, and nowhere else.
	void rot(const std::string &file) const
	{
		alignas(fiemap) char buf[sizeof(fiemap) + sizeof(fiemap_extent)] = {};
		auto *m = reinterpret_cast<fiemap *>(buf);
		Fd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC)), img(open((dir / "img").c_str(), O_RDWR | O_CLOEXEC));
		char byte = 0;
		m->fm_length = 1;
		m->fm_extent_count = 1;
		ASSERT_EQ(ioctl(fd.get(), FS_IOC_FIEMAP, m), 0);
		ASSERT_EQ(m->fm_mapped_extents, 1u);
		off_t at = (off_t)m->fm_extents[0].fe_physical;
		ASSERT_EQ(pread(img.get(), &byte, 1, at), 1);
		byte = (char)~byte;
		ASSERT_EQ(pwrite(img.get(), &byte, 1, at), 1);
	}
};

// Bytes in extents that another file has too.
inline uint64_t shared_bytes(const std::string &path)
{
	alignas(fiemap) char buf[sizeof(fiemap) + 64 * sizeof(fiemap_extent)] = {};
	auto *m = reinterpret_cast<fiemap *>(buf);
	Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
	uint64_t n = 0;
	m->fm_length = FIEMAP_MAX_OFFSET;
	m->fm_flags = FIEMAP_FLAG_SYNC;
	m->fm_extent_count = 64;
	EXPECT_EQ(ioctl(fd.get(), FS_IOC_FIEMAP, m), 0);
	for (unsigned i = 0; i < m->fm_mapped_extents; i++)
		if (m->fm_extents[i].fe_flags & FIEMAP_EXTENT_SHARED)
			n += m->fm_extents[i].fe_length;
	return n;
}

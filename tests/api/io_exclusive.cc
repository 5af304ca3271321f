// SPDX-License-Identifier: MIT
//
// What io makes in a store is an inode of its own: nothing that somebody put there before, whom it
// would show the bytes that follow, and nothing that a symlink leads to.
#include <stdarg.h>
#include <sys/syscall.h>

#include "tests/api/io_fixture.hh"

namespace
{
std::vector<std::string> shared; // files made by calls that would have taken an old one
} // namespace

// Every openat(2) of the program comes by here.
extern "C" int openat64(int dirfd, const char *path, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
	va_end(ap);
	if ((flags & O_CREAT) && !(flags & O_EXCL))
		shared.push_back(path);
	return static_cast<int>(syscall(SYS_openat, dirfd, path, flags, mode));
}

namespace
{

class Exclusive : public ::testing::Test
{
protected:
	TempDir dir;
	Engine e{"posix"};
};

TEST_F(Exclusive, AllThatIsMade)
{
	shared.clear();
	Store s(e, dir.path);
	bool d;

	ASSERT_EQ(s.err, 0);
	Fd fd(io_tmp_create(s, 1, true, &d));
	ASSERT_GE(fd.get(), 0);
	for (auto &name : shared)
		ADD_FAILURE() << name << " may have been there before";
	// and the hook works
	Fd hooked(openat(AT_FDCWD, (dir / "f").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	EXPECT_EQ(shared.size(), 1u);
}

TEST_F(Exclusive, TmpIsNotWhatWasThere)
{
	Store s(e, dir.path);
	char name[17];
	bool d;

	ASSERT_EQ(s.err, 0);
	io_tmp_name(7, name);
	Fd before(openat(io_store_tmp(s), name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666));
	ASSERT_GE(before.get(), 0);
	Fd fd(io_tmp_create(s, 7, false, &d));
	ASSERT_GE(fd.get(), 0);
	EXPECT_EQ(io_pwrite(s, fd.get(), "private", 7, 0), 0);
	EXPECT_EQ(read_fd(before.get()), "");
	struct stat st;
	ASSERT_EQ(fstat(fd.get(), &st), 0);
	EXPECT_EQ(st.st_mode & 07777, 0600u);
	EXPECT_EQ(io_tmp_remove(s, 7), 0);
	// a symlink is removed, and what it leads to is not touched
	write_file(dir / "victim", "precious");
	ASSERT_EQ(symlinkat((dir / "victim").c_str(), io_store_tmp(s), name), 0);
	Fd again(io_tmp_create(s, 7, false, &d));
	ASSERT_GE(again.get(), 0);
	EXPECT_EQ(io_pwrite(s, again.get(), "x", 1, 0), 0);
	EXPECT_EQ(read_file(dir / "victim"), "precious");
	EXPECT_EQ(read_file(dir / "victim").size(), 8u);
	// one with a second name is not opened
	ASSERT_EQ(linkat(io_store_tmp(s), name, io_store_root(s), "second", 0), 0);
	EXPECT_EQ(io_tmp_open(s, 7, O_RDWR), -EPERM);
	ASSERT_EQ(unlinkat(io_store_root(s), "second", 0), 0);
	Fd found(io_tmp_open(s, 7, O_RDWR));
	EXPECT_GE(found.get(), 0);
}

TEST_F(Exclusive, ScratchNamesAreNotGuessed)
{
	Store s(e, dir.path);
	ASSERT_EQ(s.err, 0);
	shared.clear();
	// link over a name: the scratch name beside is made with whatever lies there in the way
	write_file(dir / "a", "a");
	write_file(dir / "b", "b");
	char name[17];
	for (unsigned serial = 0; serial < 64; serial++) {
		snprintf(name, sizeof(name), "l%07x%08x", static_cast<unsigned>(getpid()) & 0xfffffff, serial);
		ASSERT_EQ(mkdirat(io_store_tmp(s), name, 0700), 0);
	}
	EXPECT_EQ(io_link(s, io_store_root(s), "a", io_store_root(s), "b"), 0);
	EXPECT_EQ(read_file(dir / "b"), "a");
}

} // namespace

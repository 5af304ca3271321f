// SPDX-License-Identifier: MIT
//
// A store without hard links: the claim of a cairnfs that was killed is taken over there, too.
#include <stdarg.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <functional>
#include <utility>

#include "tests/api/io_fixture.hh"

namespace
{
bool has_links, has_noreplace = true, has_tmpfile = true, is_full;
std::function<void()> locking; // called once
} // namespace

// Every pwrite(2) of the program comes by here. Full is the store for a claim that is made.
extern "C" ssize_t pwrite(int fd, const void *buf, size_t len, off_t off)
{
	std::string path = "/proc/self/fd/" + std::to_string(fd);
	if (is_full && std::filesystem::read_symlink(path).filename().string().rfind("claim.", 0) == 0) {
		errno = ENOSPC;
		return -1;
	}
	return syscall(SYS_pwrite64, fd, buf, len, off);
}

// Every linkat(2) of the program comes by here.
extern "C" int openat(int dir, const char *name, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	mode_t mode = va_arg(args, mode_t);
	va_end(args);
	if (!has_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return static_cast<int>(syscall(SYS_openat, dir, name, flags, mode));
}

extern "C" int flock(int fd, int operation)
{
	if (locking)
		std::exchange(locking, nullptr)();
	return static_cast<int>(syscall(SYS_flock, fd, operation));
}

extern "C" int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
	if (!has_links) {
		errno = EPERM;
		return -1;
	}
	return static_cast<int>(syscall(SYS_linkat, from_dir, from, to_dir, to, flags));
}

extern "C" int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	if (!has_noreplace && flags & RENAME_NOREPLACE) {
		errno = EINVAL;
		return -1;
	}
	return static_cast<int>(syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
}

namespace
{

// Serves the store in a process of its own, which is killed.
void serve_and_die(const std::string &path)
{
	pid_t pid = fork();
	if (!pid) {
		Engine e{"posix"};
		Store s(e, path);
		_exit(s.err ? 1 : 0);
	}
	int status = -1;
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	ASSERT_EQ(status, 0);
}

// Only the first of this process: a process has one name in claims, and what it forks then, too.
TEST(Claim, OfADeadOneIsTakenOver)
{
	TempDir dir;
	has_links = false;
	for (int i = 0; i < 3; i++)
		serve_and_die(dir.path);
	Engine e{"posix"};
	Store s(e, dir.path);
	EXPECT_EQ(s.err, 0);
}

// As exFAT by FUSE.
TEST(Claim, NeedsLinksOrRenamesThatReplaceNothing)
{
	TempDir dir;
	has_links = has_noreplace = false;
	Engine e{"posix"};
	{
		Store s(e, dir.path);
		EXPECT_EQ(s.err, -EOPNOTSUPP);
	}
	has_noreplace = true;
	Store s(e, dir.path);
	EXPECT_EQ(s.err, 0);
}

// Two hosts ask at once, each from a container in which it is process 1. One was killed there.
TEST(Claim, TheStoresClockIsAskedByProcessesOfOnePid)
{
	TempDir dir;
	has_links = true;
	has_tmpfile = false;
	Engine e{"posix"};
	Store s(e, dir.path);
	ASSERT_EQ(s.err, 0);
	Fd cairn(open((dir.path + "/.cairn").c_str(), O_RDONLY | O_DIRECTORY));
	write_file(dir.path + "/.cairn/.clock-" + std::to_string(getpid()), "?");
	int64_t now = 0;
	EXPECT_EQ(io_hosts_clock(cairn.get(), &now), 0);
	EXPECT_NEAR((double)now, (double)time(nullptr), 60);
	has_tmpfile = true;
}

// It made the host's directory, and removes it when this start has just opened the lock in it.
TEST(Claim, AStartThatFailsTakesTheDirectoryWithIt)
{
	TempDir dir;
	has_links = true;
	std::string host;
	locking = [&] {
		for (auto &at : std::filesystem::directory_iterator(dir.path + "/.cairn"))
			if (std::filesystem::exists(at.path() / "lock"))
				host = at.path();
		std::filesystem::remove_all(host);
	};
	Engine e{"posix"};
	Store s(e, dir.path);
	ASSERT_EQ(s.err, 0);
	ASSERT_NE(host, "");
	Fd lock(open((host + "/lock").c_str(), O_RDWR | O_CLOEXEC));
	ASSERT_GE(lock.get(), 0);
	EXPECT_NE(flock(lock.get(), LOCK_EX | LOCK_NB), 0) << "the one that others see";
}

// A claim that cannot be read is not another's.
TEST(Claim, IsNotLostForWantOfDescriptors)
{
	TempDir dir;
	has_links = true;
	Engine e{"posix"};
	Store s(e, dir.path);
	ASSERT_EQ(s.err, 0);
	io_host h = {};
	h.said = IO_HOST_ALIVE;
	ASSERT_EQ(io_host_say(s.s, &h), 0);
	Descriptors few(64);
	few.take();
	for (int left = 0; left < 4; left++) {
		int err = io_host_say(s.s, &h);
		EXPECT_TRUE(err == -EMFILE || (!err && left)) << left << " left: " << strerror(-err);
		EXPECT_EQ(io_host_beat(s.s, nullptr), 0);
		ASSERT_TRUE(few.give());
	}
	EXPECT_EQ(io_host_say(s.s, &h), 0);
}

// All was killed, and the store has no space for a new claim: the dead one's stays, and is not another's.
TEST(Claim, OfADeadOneInAFullStore)
{
	TempDir dir;
	has_links = true;
	serve_and_die(dir.path);
	is_full = true;
	Engine e{"posix"};
	Store s(e, dir.path);
	io_host h = {};
	h.said = IO_HOST_ALIVE;
	int64_t now;
	EXPECT_EQ(s.err, 0);
	EXPECT_EQ(io_host_say(s.s, &h), -ENOSPC);
	EXPECT_EQ(io_host_beat(s.s, &now), -ENOENT);
	EXPECT_EQ(io_host_beat(s.s, nullptr), -ENOENT);
	is_full = false;
	EXPECT_EQ(io_host_say(s.s, &h), 0);
	EXPECT_EQ(io_host_beat(s.s, &now), 0);
}

} // namespace

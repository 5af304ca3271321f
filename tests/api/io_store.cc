// SPDX-License-Identifier: MIT
//
// Opening a store: what it makes, whom it refuses, what it falls back to.
#include <map>
#include <sched.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "tests/api/io_fixture.hh"
#include "tests/api/io_seccomp.hh"

namespace
{

std::string host_dir(const std::string &store)
{
	for (auto &e : std::filesystem::directory_iterator(store + "/.cairn"))
		if (std::filesystem::exists(e.path() / "lock"))
			return e.path();
	return "";
}

void expect_private_dir(const std::string &path)
{
	struct stat st;

	ASSERT_EQ(lstat(path.c_str(), &st), 0) << path;
	EXPECT_TRUE(S_ISDIR(st.st_mode)) << path;
	EXPECT_EQ(st.st_mode & 07777, 0700u) << path;
	EXPECT_EQ(st.st_uid, geteuid()) << path;
}

class StoreOpen : public ::testing::Test
{
protected:
	int open_error(const std::string &path)
	{
		Engine e("posix");
		return Store(e, path).err;
	}
	TempDir dir;
};

TEST_F(StoreOpen, MakesItsPlaces)
{
	Engine e("posix");
	Store s(e, dir.path);

	ASSERT_EQ(s.err, 0);
	expect_private_dir(dir / ".cairn");
	expect_private_dir(dir / ".cairn/lost+found");
	expect_private_dir(host_dir(dir.path));
	expect_private_dir(host_dir(dir.path) + "/tmp");
	EXPECT_EQ(read_file(host_dir(dir.path) + "/lock"), std::to_string(getpid()) + "\n" + std::to_string(getpid()) + "\n");
	std::string id = io_store_id(s);
	EXPECT_EQ(id.size(), 32u);
	EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), id.npos);
	EXPECT_EQ(read_file(dir / ".cairn/id"), id + "\n");
	for (int fd : {io_store_root(s), io_store_tmp(s), io_store_lostfound(s)})
		EXPECT_TRUE(fcntl(fd, F_GETFL) & O_PATH);
	EXPECT_TRUE(fcntl(io_store_root(s), F_GETFD) & FD_CLOEXEC);
	struct statvfs v;
	EXPECT_EQ(io_store_statvfs(s, &v), 0);
	EXPECT_GT(v.f_blocks, 0u);
}

TEST_F(StoreOpen, KeepsItsIdAndClearsScratch)
{
	std::string id;
	{
		Engine e("posix");
		Store s(e, dir.path);
		id = io_store_id(s);
	}
	std::string tmp = host_dir(dir.path) + "/tmp/";
	write_file(tmp + "l000012300000001", "left by a link");
	write_file(tmp + "0000000000000001", "a version");
	write_file(tmp + "late", "someone's");
	Engine e("posix");
	Store s(e, dir.path);
	EXPECT_EQ(id, io_store_id(s));
	EXPECT_FALSE(std::filesystem::exists(tmp + "l000012300000001"));
	EXPECT_TRUE(std::filesystem::exists(tmp + "0000000000000001"));
	EXPECT_TRUE(std::filesystem::exists(tmp + "late"));
}

TEST_F(StoreOpen, IdOnceRead_WithoutNewline)
{
	std::string id(32, 'a');

	mkdir((dir / ".cairn").c_str(), 0700);
	write_file(dir / ".cairn/id", id);
	Engine e("posix");
	Store s(e, dir.path);
	EXPECT_EQ(s.err, 0);
	EXPECT_EQ(id, io_store_id(s));
}

TEST_F(StoreOpen, DamagedIdIsToldAndKept)
{
	for (std::string bad : {"", "short", "0123456789abcdef0123456789abcdeX",
				"0123456789abcdef0123456789abcdef ", "0123456789ABCDEF0123456789abcdef",
				"0123456789abcdef0123456789abcdef\n\n"}) {
		TempDir d;
		mkdir((d / ".cairn").c_str(), 0700);
		write_file(d / ".cairn/id", bad);
		EXPECT_EQ(open_error(d.path), -EBADMSG) << bad;
		EXPECT_EQ(read_file(d / ".cairn/id"), bad);
	}
}

// Hosts that start at once on a new store agree on one id, also where a rename cannot be told not to
// replace (NFS).
TEST_F(StoreOpen, HostsThatStartAtOnceAgreeOnTheId)
{
	for (int round = 0; round < 6; round++) {
		TempDir d;
		int go[2], said[2];
		ASSERT_EQ(pipe(go), 0);
		ASSERT_EQ(pipe(said), 0);
		std::vector<pid_t> hosts;
		for (int i = 0; i < 6; i++) {
			pid_t pid = fork();
			if (pid) {
				hosts.push_back(pid);
				continue;
			}
			std::string name = "host" + std::to_string(i);
			char c, id[33] = "no UTS namespace";
			close(go[1]);
			bool alone = !unshare(CLONE_NEWUTS) && !sethostname(name.data(), name.size());
			refuse_syscall(SYS_renameat2, EINVAL);
			if (read(go[0], &c, 1) < 0) // until the other end is closed: all at once
				_exit(1);
			if (alone) {
				Engine e("posix");
				Store s(e, d.path);
				snprintf(id, sizeof(id), "%s", s.err ? strerror(-s.err) : io_store_id(s));
			}
			_exit(write(said[1], id, sizeof(id)) != sizeof(id));
		}
		close(go[0]);
		close(go[1]);
		for (pid_t pid : hosts)
			waitpid(pid, nullptr, 0);
		close(said[1]);
		char id[33];
		size_t n = 0;
		for (; read(said[0], id, sizeof(id)) == sizeof(id); n++) {
			if (!strcmp(id, "no UTS namespace"))
				GTEST_SKIP() << id;
			EXPECT_EQ(read_file(d / ".cairn/id"), std::string(id) + "\n");
		}
		close(said[0]);
		EXPECT_EQ(n, hosts.size());
	}
}

unsigned number_in(const std::string &store, const std::string &host)
{
	Engine e("posix");
	Store s(e, store, false, host.c_str());

	EXPECT_EQ(s.err, 0) << host;
	return s.err ? 0 : io_store_host_number(s);
}

// Two names whose search begins at one number.
std::pair<std::string, std::string> colliding_hosts()
{
	std::map<unsigned, std::string> of;

	for (int i = 0; i < 2000; i++) {
		TempDir d;
		std::string name = "node-" + std::to_string(i);
		auto [at, fresh] = of.insert({number_in(d.path, name), name});
		if (!fresh)
			return {at->second, name};
	}
	return {};
}

TEST_F(StoreOpen, AHostHasItsNumberAndNoOtherHasIt)
{
	auto [a, b] = colliding_hosts();
	ASSERT_NE(a, "");
	unsigned first = number_in(dir.path, a), second = number_in(dir.path, b);
	EXPECT_GE(first, 1u);
	EXPECT_LE(first, IO_HOST_NUMBERS);
	EXPECT_NE(first, second);
	std::filesystem::remove_all(dir / (".cairn/" + a)); // of a host that was discarded
	EXPECT_EQ(number_in(dir.path, b), second);
	EXPECT_EQ(number_in(dir.path, a), first);
}

TEST_F(StoreOpen, HostsThatStartAtOnceHaveDifferentNumbers)
{
	auto [a, b] = colliding_hosts();
	for (int round = 0; round < 20; round++) {
		TempDir d;
		int go[2];
		ASSERT_EQ(pipe(go), 0);
		std::vector<pid_t> hosts;
		for (auto &name : {a, b}) {
			pid_t pid = fork();
			if (pid) {
				hosts.push_back(pid);
				continue;
			}
			char c;
			close(go[1]);
			if (read(go[0], &c, 1) < 0) // until the other end is closed: all at once
				_exit(1);
			_exit(number_in(d.path, name) == 0);
		}
		close(go[0]);
		close(go[1]);
		for (pid_t pid : hosts) {
			int status;
			waitpid(pid, &status, 0);
			EXPECT_EQ(status, 0);
		}
		EXPECT_NE(number_in(d.path, a), number_in(d.path, b));
	}
}

TEST_F(StoreOpen, WithoutSymlinksAHostHasNoNumber)
{
	pid_t pid = fork();
	if (!pid) {
		refuse_syscall(SYS_symlinkat, EPERM);
		_exit(number_in(dir.path, "a") != 0);
	}
	int status;
	waitpid(pid, &status, 0);
	EXPECT_EQ(status, 0);
	EXPECT_GE(number_in(dir.path, "a"), 1u); // the store can now
}

TEST_F(StoreOpen, AHostOfThatName)
{
	Engine e("posix");
	Store a(e, dir.path, false, "a"), b(e, dir.path, false, "b/c"), again(e, dir.path, false, "a");
	ASSERT_EQ(a.err, 0);
	ASSERT_EQ(b.err, 0);
	EXPECT_STREQ(io_store_host(a), "a");
	EXPECT_STREQ(io_store_host(b), "b_c");
	EXPECT_EQ(again.err, -EWOULDBLOCK);
	EXPECT_TRUE(std::filesystem::exists(dir / ".cairn/b_c/lock"));
}

// A copy is told from the original; a store that was renamed stays the one it was.
TEST_F(StoreOpen, WhereItStandsToldFromACopy)
{
	io_where first, renamed, copy;
	std::string a = dir / "a", b = dir / "b", c = dir / "c", old_id;
	mkdir(a.c_str(), 0755);
	{
		Engine e("posix");
		Store s(e, a);
		ASSERT_EQ(s.err, 0);
		io_store_where(s, &first);
		old_id = io_store_id(s);
		char path[256];
		io_store_path(s, path, sizeof(path));
		EXPECT_EQ(path, a);
	}
	ASSERT_EQ(rename(a.c_str(), b.c_str()), 0);
	std::filesystem::copy(b, c,
			      std::filesystem::copy_options::recursive |
				      std::filesystem::copy_options::copy_symlinks);
	Engine e("posix");
	Store moved(e, b), other(e, c);
	ASSERT_EQ(moved.err, 0);
	ASSERT_EQ(other.err, 0);
	io_store_where(moved, &renamed);
	io_store_where(other, &copy);
	EXPECT_TRUE(io_where_same(&first, &renamed));
	if (!(copy.known & (IO_WHERE_INO | IO_WHERE_BTIME)))
		GTEST_SKIP() << "this filesystem tells neither";
	EXPECT_FALSE(io_where_same(&first, &copy));
	EXPECT_EQ(io_store_id(other), old_id);
	ASSERT_EQ(io_store_new_id(other), 0);
	EXPECT_NE(io_store_id(other), old_id);
	EXPECT_EQ(read_file(c + "/.cairn/id"), std::string(io_store_id(other)) + "\n");
	EXPECT_EQ(read_file(b + "/.cairn/id"), old_id + "\n");
	io_where unknown = {};
	EXPECT_TRUE(io_where_same(&first, &unknown));
}

TEST_F(StoreOpen, RefusesWhatIsNoDirectory)
{
	write_file(dir / "file", "x");
	EXPECT_EQ(open_error(dir / "none"), -ENOENT);
	EXPECT_EQ(open_error(dir / "file"), -ENOTDIR);
}

TEST_F(StoreOpen, RefusesASymlinkedCairnDirectory)
{
	TempDir elsewhere;

	ASSERT_EQ(symlink(elsewhere.path.c_str(), (dir / ".cairn").c_str()), 0);
	EXPECT_EQ(open_error(dir.path), -ELOOP);
	EXPECT_TRUE(std::filesystem::is_empty(elsewhere.path));
	Engine e("posix");
	EXPECT_EQ(Store(e, dir.path, true).err, -ELOOP);
}

TEST_F(StoreOpen, RefusesACairnFile)
{
	write_file(dir / ".cairn", "x");
	EXPECT_EQ(open_error(dir.path), -ENOTDIR);
}

TEST_F(StoreOpen, RefusesSymlinksInside)
{
	TempDir elsewhere;
	{
		Engine e("posix");
		Store s(e, dir.path);
		ASSERT_EQ(s.err, 0);
	}
	for (std::string name : {"/lock", "/tmp"}) {
		std::string path = host_dir(dir.path) + name, aside = dir / "aside";
		ASSERT_EQ(rename(path.c_str(), aside.c_str()), 0);
		ASSERT_EQ(symlink((elsewhere / "x").c_str(), path.c_str()), 0);
		EXPECT_EQ(open_error(dir.path), -ELOOP) << name;
		unlink(path.c_str());
		ASSERT_EQ(rename(aside.c_str(), path.c_str()), 0);
	}
	EXPECT_TRUE(std::filesystem::is_empty(elsewhere.path));
	EXPECT_EQ(open_error(dir.path), 0);
}

TEST_F(StoreOpen, RefusesPlacesOthersCanWriteOrOwn)
{
	mkdir((dir / ".cairn").c_str(), 0700);
	chmod((dir / ".cairn").c_str(), 0770);
	EXPECT_EQ(open_error(dir.path), -EPERM);
	chmod((dir / ".cairn").c_str(), 0700);
	if (geteuid())
		GTEST_SKIP() << "needs root to give a directory away";
	ASSERT_EQ(chown((dir / ".cairn").c_str(), 4711, 4711), 0);
	EXPECT_EQ(open_error(dir.path), -EPERM);
	ASSERT_EQ(chown(dir.path.c_str(), 4711, 4711), 0); // the store's owner is not root either
	EXPECT_EQ(open_error(dir.path), -EPERM);
	ASSERT_EQ(chown((dir / ".cairn").c_str(), 0, 0), 0);
	EXPECT_EQ(open_error(dir.path), 0);
	ASSERT_EQ(chown((host_dir(dir.path) + "/tmp").c_str(), 4711, 4711), 0); // nor further down
	EXPECT_EQ(open_error(dir.path), -EPERM);
}

TEST_F(StoreOpen, ClosesItsPlaces)
{
	EXPECT_EQ(open_error(dir.path), 0);
	for (auto &path : {dir / ".cairn", host_dir(dir.path), host_dir(dir.path) + "/tmp"})
		ASSERT_EQ(chmod(path.c_str(), 0755), 0);
	EXPECT_EQ(open_error(dir.path), 0);
	expect_private_dir(dir / ".cairn");
	expect_private_dir(host_dir(dir.path));
	expect_private_dir(host_dir(dir.path) + "/tmp");
}

TEST_F(StoreOpen, RefusesWithoutPermission)
{
	if (geteuid())
		GTEST_SKIP() << "needs root to become someone else";
	chmod(dir.path.c_str(), 0755);
	// by ".", for the folders above may be closed to that someone
	EXPECT_EQ(in_child([&] {
			  ASSERT_EQ(chdir(dir.path.c_str()), 0);
			  ASSERT_EQ(setresuid(4711, 4711, 4711), 0);
			  EXPECT_EQ(access(".", R_OK | X_OK), 0);
			  EXPECT_EQ(open_error("."), -EACCES);
		  }),
		  0);
	EXPECT_FALSE(std::filesystem::exists(dir / ".cairn"));
	// nor where all it would make is there, and the store itself is closed to it
	ASSERT_EQ(chown(dir.path.c_str(), 4711, 4711), 0);
	EXPECT_EQ(in_child([&] {
			  ASSERT_EQ(chdir(dir.path.c_str()), 0);
			  ASSERT_EQ(setresuid(4711, 4711, 4711), 0);
			  EXPECT_EQ(open_error("."), 0);
			  ASSERT_EQ(chmod(".", 0555), 0);
			  EXPECT_EQ(open_error("."), -EACCES);
		  }),
		  0);
}

TEST_F(StoreOpen, TheProbeWrites)
{
	Engine e("posix");
	Store s(e, dir.path);
	ASSERT_EQ(s.err, 0);
	struct timespec old[2] = {{1, 0}, {1, 0}};
	auto mtime = [&] {
		struct stat st;
		EXPECT_EQ(stat((host_dir(dir.path) + "/tmp").c_str(), &st), 0);
		return st.st_mtim.tv_sec;
	};
	ASSERT_EQ(utimensat(AT_FDCWD, (host_dir(dir.path) + "/tmp").c_str(), old, 0), 0);
	EXPECT_EQ(io_store_probe(s), 0);
	EXPECT_NE(mtime(), 1);
	io_store_detach(s);
	EXPECT_EQ(io_store_probe(s), -ENOTCONN);
}

TEST_F(StoreOpen, RefusesAReadOnlyFilesystem)
{
	Mount m("tmpfs", "size=1m");
	Engine e("posix");

	if (!m.ok)
		GTEST_SKIP() << "mounting is not allowed here";
	ASSERT_EQ(mount(nullptr, m.dir.path.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
	EXPECT_EQ(open_error(m.dir.path), -EROFS);
	EXPECT_EQ(Store(e, m.dir.path, true).err, 0);
}

TEST_F(StoreOpen, ReadOnlyMakesNothingAndChangesNothing)
{
	Engine e("posix");
	Store s(e, dir.path, true);

	write_file(dir / "f", "x");
	ASSERT_EQ(s.err, 0);
	EXPECT_STREQ(io_store_id(s), "");
	EXPECT_EQ(io_store_tmp(s), -1);
	EXPECT_FALSE(std::filesystem::exists(dir / ".cairn"));
	EXPECT_EQ(io_unlink(s, s.root(), "f"), -EROFS);
	EXPECT_EQ(io_mkdir(s, s.root(), "d", 0700), -EROFS);
	EXPECT_EQ(io_set_xattr(s, s.root(), "f", -1, "user.a", "", 0, 0), -EROFS);
	EXPECT_EQ(io_tmp_remove(s, 1), -EROFS);
	bool d;
	EXPECT_EQ(io_tmp_create(s, 1, false, &d), -EROFS);
	struct stat st;
	EXPECT_EQ(io_stat(s, s.root(), "f", &st), 0);

	Engine e2("posix");
	Store rw(e2, dir.path);
	ASSERT_EQ(rw.err, 0);
	Store beside(e, dir.path, true); // no lock is taken nor asked for
	ASSERT_EQ(beside.err, 0);
	EXPECT_STREQ(io_store_id(beside), io_store_id(rw));
}

// Where staging may be: a line that is not whole is left out; a log is set once, and dropped.
TEST_F(StoreOpen, ThePlacesOfStaging)
{
	Engine e("posix");
	Store s(e, dir.path);
	io_staged_in in = {};

	EXPECT_EQ(io_staged_in_read(s, nullptr, &in), 0);
	EXPECT_EQ(in.n, 0u);
	write_file(host_dir(dir.path) + "/staged-in", "0123abcd 0000000000000007 /a b/c\n0123abcd /old\n"
						       "0123abcd 7 /short\n0123abcd 0000000000000000 /run/x\n"
						       "0123abcd 0000000000000000 rel\n0123abcd 00000000000000");
	ASSERT_EQ(io_staged_in_read(s, nullptr, &in), 0);
	ASSERT_EQ(in.n, 2u);
	EXPECT_STREQ(in.v[0].path, "/a b/c");
	EXPECT_EQ(in.v[0].log, 7u);
	EXPECT_STREQ(in.v[1].path, "/run/x");
	EXPECT_EQ(in.v[1].log, 0u);
	EXPECT_EQ(io_staged_in_has(s, "/run/x", 8), 0);
	EXPECT_EQ(io_staged_in_has(s, "/run/x", 9), 0);
	EXPECT_EQ(io_staged_in_drop(s, 7), 0);
	EXPECT_EQ(read_file(host_dir(dir.path) + "/staged-in"), "0123abcd 0000000000000008 /run/x\n");
}

TEST_F(StoreOpen, LockTellsItsHolder)
{
	int ready[2], go[2];
	char c;

	ASSERT_EQ(pipe(ready), 0);
	ASSERT_EQ(pipe(go), 0);
	pid_t pid = fork();
	if (!pid) {
		Engine e("posix");
		Store s(e, dir.path);
		if (write(ready[1], s.err ? "n" : "y", 1) != 1 || read(go[0], &c, 1) != 1)
			_exit(1);
		_exit(s.err != 0);
	}
	ASSERT_EQ(read(ready[0], &c, 1), 1);
	EXPECT_EQ(c, 'y');
	{
		Engine e("posix");
		Store s(e, dir.path);
		EXPECT_EQ(s.err, -EWOULDBLOCK);
		EXPECT_EQ(s.by.pid, pid);
	}
	kill(pid, SIGKILL);
	waitpid(pid, nullptr, 0);
	EXPECT_EQ(open_error(dir.path), 0); // a dead one holds nothing
	for (int fd : {ready[0], ready[1], go[0], go[1]})
		close(fd);
}

TEST_F(StoreOpen, LockIsInheritedOverFork)
{
	int go[2];
	char c;
	pid_t pid;

	ASSERT_EQ(pipe(go), 0);
	{
		Engine e("posix");
		Store s(e, dir.path);
		ASSERT_EQ(s.err, 0);
		pid = fork();
		if (!pid) {
			io_store_lock_pid(s, getpid());
			close(go[1]);
			_exit(read(go[0], &c, 1) != 0);
		}
	} // the parent closes; the child goes on holding
	Engine e("posix");
	int holder = 0;
	for (int i = 0; i < 500 && holder != pid; i++, usleep(10000)) {
		Store s(e, dir.path);
		ASSERT_EQ(s.err, -EWOULDBLOCK);
		holder = s.by.pid;
	}
	EXPECT_EQ(holder, pid);
	close(go[1]);
	waitpid(pid, nullptr, 0);
	close(go[0]);
	EXPECT_EQ(open_error(dir.path), 0);
}

TEST_F(StoreOpen, LockWithForeignTextHasNoHolder)
{
	{
		Engine e("posix");
		Store s(e, dir.path);
	}
	Fd fd(open((host_dir(dir.path) + "/lock").c_str(), O_RDWR | O_TRUNC | O_CLOEXEC));
	ASSERT_EQ(flock(fd.get(), LOCK_EX), 0);
	ASSERT_EQ(write(fd.get(), "nobody", 6), 6);
	Engine e("posix");
	Store s(e, dir.path);
	EXPECT_EQ(s.err, -EWOULDBLOCK);
	EXPECT_EQ(s.by.pid, 0);
}

TEST_F(StoreOpen, FailureLeavesNoDescriptorsBehind)
{
	auto count = [] {
		size_t n = 0;
		for (auto &e : std::filesystem::directory_iterator("/proc/self/fd"))
			n += !e.path().empty();
		return n;
	};
	mkdir((dir / ".cairn").c_str(), 0700);
	write_file(dir / ".cairn/id", "bad");
	auto before = count();
	EXPECT_EQ(open_error(dir.path), -EBADMSG);
	EXPECT_EQ(count(), before);
}

// Else it would count as one more host.
TEST_F(StoreOpen, FailureLeavesNoHost)
{
	mkdir((dir / ".cairn").c_str(), 0700);
	write_file(dir / ".cairn/id", "bad");
	EXPECT_EQ(open_error(dir.path), -EBADMSG);
	Engine e;
	EXPECT_EQ(Store(e, dir.path, false, "other").err, -EBADMSG);
	for (auto &e : std::filesystem::directory_iterator(dir / ".cairn"))
		EXPECT_FALSE(std::filesystem::exists(e.path() / "lock")) << e.path();
}

// Another host is there, was there, was none; or the store does not say.
TEST_F(StoreOpen, OthersCountByTheirDirectories)
{
	Engine e;
	Store s(e, dir.path);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(io_store_shared(s), 0);
	EXPECT_TRUE(io_store_has_host(s, nullptr));
	EXPECT_FALSE(io_store_has_host(s, "other"));
	mkdir((dir / ".cairn/other").c_str(), 0700);
	EXPECT_EQ(io_store_shared(s), 0);
	write_file(dir / ".cairn/other/lock", "");
	EXPECT_EQ(io_store_shared(s), 1);
	EXPECT_TRUE(io_store_has_host(s, "other"));
	std::filesystem::remove_all(dir / ".cairn/other");
	EXPECT_EQ(io_store_shared(s), 0);
	EXPECT_TRUE(io_store_is_shared(s));
	rlimit all, none;
	ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &all), 0);
	none = all;
	none.rlim_cur = 0;
	ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
	int shared = io_store_shared(s);
	ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &all), 0);
	EXPECT_EQ(shared, -EMFILE);
}

// A filesystem made in a file and mounted; !ok where that cannot be had.
struct LoopMount {
	explicit LoopMount(const std::string &mkfs, const char *size = "16M")
	{
		std::string img = dir / "img", at = dir / "at";
		std::string run = "mkdir " + at + " && truncate -s " + size + " " + img + " && " + mkfs +
				  " " + img + " && mount -o loop " + img + " " + at;
		ok = !geteuid() && !system(("{ " + run + "; } >/dev/null 2>&1").c_str());
		path = at;
	}
	LoopMount(const LoopMount &) = delete;
	LoopMount &operator=(const LoopMount &) = delete;
	~LoopMount()
	{
		if (ok)
			umount2(path.c_str(), MNT_DETACH);
	}
	TempDir dir;
	std::string path;
	bool ok;
};

TEST_F(StoreOpen, KnowsWhichFilesystemsCommitInOrder)
{
	struct {
		const char *mkfs, *size;
		io_fs_kind kind;
	} const cases[] = {
		{"mkfs.ext4 -qF", "16M", IO_FS_ORDERED},
		{"mkfs.ext4 -qF -O ^has_journal", "16M", IO_FS_EACH},
		{"mkfs.ext2 -qF", "16M", IO_FS_EACH},
		{"mkfs.xfs -q", "320M", IO_FS_ORDERED},
		{"mkfs.btrfs -q", "128M", IO_FS_SYNCFS},
	};
	int seen = 0;

	for (auto &c : cases) {
		LoopMount m(c.mkfs, c.size);
		if (!m.ok)
			continue;
		Engine e("posix");
		Store s(e, m.path);
		EXPECT_EQ(s.err, 0) << c.mkfs;
		EXPECT_EQ(io_store_fs(s), c.kind) << c.mkfs;
		seen++;
	}
	if (!seen)
		GTEST_SKIP() << "no filesystem could be made and mounted here";
}

// ramfs has neither O_DIRECT nor fallocate nor xattrs nor RWF_DONTCACHE: every fallback.
TEST_F(StoreOpen, APoorStoreIsServedAndNoticedOnce)
{
	Mount m("ramfs");

	if (!m.ok)
		GTEST_SKIP() << "mounting is not allowed here";
	for (auto kind : {"uring", "posix"}) {
		Engine e(kind, nullptr, 16384, 4);
		Store s(e, m.dir.path);
		Source src(200001);

		ASSERT_EQ(s.err, 0);
		src.data(0, 100000, 1);
		src.data(150000, 50001, 2);
		for (uint64_t vid = 0; vid < 3; vid++) {
			io_source in = src.get();
			bool d;
			Fd fd(io_tmp_create(s, vid, true, &d));
			ASSERT_GE(fd.get(), 0);
			EXPECT_FALSE(d);
			EXPECT_EQ(io_allocate(s, fd.get(), 0, in.size), 0);
			EXPECT_EQ(io_write_file(e.q, fd.get(), d, &in), 0);
			EXPECT_SAME(read_fd(fd.get()), src.bytes());
			char a[IO_CHECKSUM_LEN];
			EXPECT_EQ(io_sum_file(fd.get(), a), 0);
			EXPECT_EQ(io_set_xattr(s, -1, nullptr, fd.get(), "user.cairn.checksum", a,
					       strlen(a), 0),
				  0);
			EXPECT_EQ(io_sync_data(s, fd.get()), 0);
			EXPECT_EQ(io_publish(s, vid, s.root(), "f"), 0);
			EXPECT_EQ(io_sync_dir(s, s.root()), 0);
		}
		EXPECT_FALSE(io_store_has_xattr(s));
		for (auto part : {"O_DIRECT", "fallocate", "xattrs", "RWF_DONTCACHE"})
			EXPECT_EQ(e.notes_with(part), 1) << part;
		EXPECT_EQ(e.notes.size(), 4u);
	}
}

// ext2's block maps know no unwritten blocks: the ext4 driver refuses fallocate on them.
TEST_F(StoreOpen, WithoutFallocateSpaceIsEstimated)
{
	LoopMount m("mkfs.ext2 -qF");

	if (!m.ok)
		GTEST_SKIP() << "no loop mount of an ext2 here";
	Engine e("posix");
	Store s(e, m.path);
	bool d;
	Fd fd(io_tmp_create(s, 1, false, &d));
	struct stat st;

	EXPECT_EQ(s.err, 0);
	EXPECT_EQ(io_allocate(s, fd.get(), 0, 1 << 20), 0);
	fstat(fd.get(), &st);
	EXPECT_EQ(st.st_blocks, 0); // only estimated
	EXPECT_EQ(io_allocate(s, fd.get(), 0, 32 << 20), -ENOSPC);
	EXPECT_EQ(e.notes_with("fallocate"), 1);
}

TEST_F(StoreOpen, AllocateKeepsTheSizeAndTellsAFullStore)
{
	Mount m("tmpfs", "size=4m");
	Engine e("posix");

	if (!m.ok)
		GTEST_SKIP() << "mounting is not allowed here";
	Store s(e, m.dir.path);
	struct stat st;
	bool d;
	Fd fd(io_tmp_create(s, 1, false, &d));
	EXPECT_EQ(io_allocate(s, fd.get(), 0, 1 << 20), 0);
	fstat(fd.get(), &st);
	EXPECT_EQ(st.st_size, 0);
	EXPECT_GE(st.st_blocks * 512, 1 << 20);
	EXPECT_EQ(io_allocate(s, fd.get(), 0, 64 << 20), -ENOSPC);
	EXPECT_EQ(io_allocate(s, fd.get(), 0, 0), 0);
	EXPECT_EQ(io_allocate(s, fd.get(), UINT64_MAX, 1), -EFBIG);
	std::string big = pattern(8 << 20, 1);
	EXPECT_EQ(io_pwrite(s, fd.get(), big.data(), big.size(), 0), -ENOSPC);
	EXPECT_GE(e.counts().errors, 2u);
}

} // namespace

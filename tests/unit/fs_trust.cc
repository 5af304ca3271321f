// SPDX-License-Identifier: MIT
//
// What each process of cairnfs can still do once it has given up the rest: a child of the test becomes
// one of them, and tries.
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "tests/api/io_fixture.hh"
#include "tests/unit/trust_shim.h"

namespace
{

// Results of a child: one line for each that went otherwise than it should.
struct Tried {
	int fd;
	void must_fail(const char *what, long rc)
	{
		int err = errno;
		if (rc >= 0)
			dprintf(fd, "allowed: %s\n", what);
		else if (err != EPERM && err != EACCES)
			dprintf(fd, "reached the kernel: %s: %s\n", what, strerror(err));
	}
	void must_do(const char *what, long rc)
	{
		if (rc < 0)
			dprintf(fd, "refused: %s: %s\n", what, strerror(errno));
	}
};
#define NOT(call) t.must_fail(#call, (long)(call))
#define CAN(call) t.must_do(#call, (long)(call))

class Trust : public ::testing::Test
{
protected:
	void SetUp() override
	{
		if (geteuid())
			GTEST_SKIP() << "needs root";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
		GTEST_SKIP() << "a sanitizer's runtime needs more than this: nothing is given up";
#endif
		fs_dir("s");
		store = std::make_unique<Store>(e, dir / "s");
		fs_dir("stage");
		write_file(dir / "outside", "x");
		ASSERT_EQ(store->err, 0);
		s = store->s;
		place = open((dir / "stage").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	}
	void fs_dir(const char *name) { ASSERT_EQ(mkdir((dir / name).c_str(), 0700), 0); }
	void TearDown() override
	{
		if (place >= 0)
			close(place);
	}
	std::string in(std::function<void(Tried &)> fn)
	{
		int p[2];
		std::string said;
		char buf[4096];
		if (pipe(p))
			return "pipe";
		pid_t pid = fork();
		if (!pid) {
			Tried t{p[1]};
			close(p[0]);
			fn(t);
			_exit(0);
		}
		close(p[1]);
		for (ssize_t n; (n = read(p[0], buf, sizeof(buf))) > 0;)
			said.append(buf, (size_t)n);
		close(p[0]);
		int status = 0;
		waitpid(pid, &status, 0);
		return status ? said + "ended with " + std::to_string(status) : said;
	}
	// what none of them may
	static void forbidden(Tried &t)
	{
		NOT(syscall(SYS_fsopen, "tmpfs", 0));
		NOT(syscall(SYS_fsconfig, -1, 0, 0, 0, 0));
		NOT(syscall(SYS_fsmount, -1, 0, 0));
		NOT(syscall(SYS_move_mount, -1, "", AT_FDCWD, "/", 4));
		NOT(syscall(SYS_open_tree, AT_FDCWD, "/", 1));
		NOT(syscall(SYS_mount_setattr, -1, "", 0, nullptr, 0));
		NOT(syscall(SYS_open_by_handle_at, -1, nullptr, 0));
		NOT(socket(AF_INET, SOCK_STREAM, 0));
		NOT(socket(AF_UNIX, SOCK_DGRAM, 0));
		NOT(syscall(SYS_setresuid, -1, -1, -1));
		NOT(syscall(SYS_setuid, 0));
		NOT(syscall(SYS_setgroups, 0, nullptr));
		NOT(syscall(SYS_pidfd_open, getppid(), 0));
		NOT(syscall(SYS_pidfd_getfd, -1, 0, 0));
		NOT(syscall(SYS_ptrace, 0, 0, 0, 0));
		NOT(syscall(SYS_process_vm_readv, getppid(), nullptr, 0, nullptr, 0, 0));
		NOT(syscall(SYS_execve, "/bin/true", nullptr, nullptr));
		NOT(syscall(SYS_execveat, -1, "", nullptr, nullptr, 0));
		NOT(syscall(SYS_bpf, 0, nullptr, 0));
		NOT(syscall(SYS_userfaultfd, 0));
		NOT(syscall(SYS_perf_event_open, nullptr, 0, 0, 0, 0));
		NOT(syscall(SYS_keyctl, 0, 0, 0, 0, 0));
		NOT(syscall(SYS_init_module, nullptr, 0, ""));
		NOT(syscall(SYS_kexec_load, 0, 0, nullptr, 0));
		NOT(syscall(SYS_reboot, 0, 0, 0, nullptr));
		NOT(syscall(SYS_sethostname, "vm", 2));
		NOT(syscall(SYS_chroot, "/"));
		NOT(syscall(SYS_pivot_root, "/", "/"));
		NOT(syscall(SYS_unshare, CLONE_NEWNS));
		NOT(syscall(SYS_setns, -1, 0));
		NOT(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
	}
	static void no_files_outside(Tried &t, const std::string &outside)
	{
		if (syscall(SYS_landlock_create_ruleset, nullptr, 0, 1) < 2)
			return;	// this kernel cannot
		NOT(open("/etc/shadow", O_RDONLY));
		NOT(open("/etc/passwd", O_RDONLY));
		NOT(open(outside.c_str(), O_RDWR));
		NOT(open((outside + ".new").c_str(), O_CREAT | O_WRONLY, 0600));
		NOT(unlink(outside.c_str()));
		NOT(open("/proc/self/oom_score_adj", O_WRONLY));
	}
	TempDir dir;
	Engine e{"posix"};
	std::unique_ptr<Store> store;
	io_store *s = nullptr;
	int place = -1;
};

static void *nothing(void *arg) { return arg; }

TEST_F(Trust, Worker)
{
	EXPECT_EQ(in([&](Tried &t) {
			  CAN(shim_trust_worker(s, place));
			  forbidden(t);
			  no_files_outside(t, dir / "outside");
			  NOT(mount("t", "/mnt", "tmpfs", 0, ""));
			  NOT(umount2("/mnt", 0));
			  // what it lives of
			  bool d;
			  int fd = io_tmp_create(s, 1, false, &d);
			  CAN(fd);
			  CAN(io_pwrite(s, fd, "x", 1, 0));
			  CAN(io_sync_data(s, fd));
			  CAN(io_publish(s, 1, io_store_root(s), "published"));
			  CAN(io_mkdir(s, io_store_root(s), "dir", 0755));
			  CAN(io_rename(s, io_store_root(s), "published",
					io_open_dir(s, io_store_root(s), "dir"), "f", 0));
			  CAN(openat(place, "staged", O_CREAT | O_RDWR, 0600));
			  CAN(open("/proc/self/status", O_RDONLY));
			  CAN(open("/sys/devices/system/cpu/online", O_RDONLY));
			  CAN(fchown(fd, 4711, 4711));
			  pthread_t th;
			  CAN(pthread_create(&th, nullptr, nothing, nullptr) ? -1 : 0);
			  CAN(pthread_join(th, nullptr) ? -1 : 0);
			  pid_t child = fork();
			  CAN(child);
			  if (!child)
				  _exit(0);
			  CAN(waitpid(child, nullptr, 0));
		  }),
		  "");
}

TEST_F(Trust, Keeper)
{
	EXPECT_EQ(in([&](Tried &t) {
			  CAN(shim_trust_keeper(s));
			  forbidden(t);
			  CAN(umount2("/", MNT_EXPIRE | MNT_FORCE) == -1 && errno == EINVAL ? 0 : -1);
			  pid_t child = fork();	// a worker
			  CAN(child);
			  if (!child) {
				  CAN(shim_trust_worker(s, place));
				  no_files_outside(t, dir / "outside");
				  NOT(umount2("/mnt", 0));
				  _exit(0);
			  }
			  CAN(waitpid(child, nullptr, 0));
		  }),
		  "");
}

TEST_F(Trust, Freezer)
{
	EXPECT_EQ(in([&](Tried &t) {
			  (void)t;	// it cannot even say so
			  shim_trust_freezer();
			  long rc = open("/etc/shadow", O_RDONLY);
			  if (rc >= 0 || socket(AF_UNIX, SOCK_DGRAM, 0) >= 0 || syscall(SYS_fsopen, "tmpfs", 0) >= 0 ||
			      syscall(SYS_setresuid, -1, -1, -1) != -1 || syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) != -1 ||
			      umount2("/mnt", 0) != -1 || errno != EPERM)
				  _exit(1);
			  if (setxattr((dir / "outside").c_str(), "user.x", "1", 1, 0) && errno == EPERM)
				  _exit(2);
		  }),
		  "");
}

// Of all its threads, whenever they were made.
TEST_F(Trust, NoQuotaIsOverridden)
{
	EXPECT_EQ(in([&](Tried &t) {
			  CAN(shim_trust_worker(s, place));
			  CAN(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? 0 : -1);
			  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
			  struct __user_cap_data_struct data[2] = {};
			  CAN(syscall(SYS_capget, &head, data));
			  CAN(data[0].permitted & 1u << CAP_SYS_RESOURCE ? -1 : 0);
			  CAN(data[0].permitted & 1u << CAP_SYS_PTRACE ? -1 : 0);
		  }),
		  "");
}

TEST_F(Trust, Nursery)
{
	EXPECT_EQ(in([&](Tried &t) {
			  shim_trust_nursery();
			  forbidden(t);
			  no_files_outside(t, dir / "outside");
			  NOT(open("/proc/self/status", O_RDONLY));
			  NOT(mount("t", "/mnt", "tmpfs", 0, ""));
			  // what it lives of
			  int p[2] = {-1, -1};
			  CAN(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, p));
			  CAN(write(p[0], "x", 1));
			  pid_t pid = fork();
			  while (!pid)
				  pause();	// which is not allowed: it returns at once
			  CAN(pid);
			  CAN(kill(pid, SIGKILL));
			  CAN(waitpid(pid, nullptr, 0));
		  }),
		  "");
}

// How a parser ends that does so; 0: it goes on.
TEST_F(Trust, ParserIsKilledForAllElse)
{
	auto ends = [](const std::function<void()> &fn) {
		pid_t pid = fork();
		if (!pid) {
			shim_trust_nursery();
			shim_trust_parser();
			fn();
			_exit(0);
		}
		int status = 0;
		waitpid(pid, &status, 0);
		return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
	};
	EXPECT_EQ(ends([] { free(malloc(1 << 20)); }), 0);
	EXPECT_EQ(ends([] {
			  volatile char *p = (char *)malloc((size_t)4 << 30);	// too much is refused, not granted
			  _exit(p ? 1 : 0);
		  }),
		  0);
	const std::vector<std::pair<const char *, std::function<void()>>> calls = {
		{"open", [] { open("/etc/passwd", O_RDONLY); }},
		{"openat2", [] { syscall(SYS_openat2, AT_FDCWD, "/", nullptr, 0); }},
		{"socket", [] { socket(AF_UNIX, SOCK_STREAM, 0); }},
		{"socketpair", [] { syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, nullptr); }},
		{"sendmsg", [] { syscall(SYS_sendmsg, 0, nullptr, 0); }},
		{"recvmsg", [] { syscall(SYS_recvmsg, 0, nullptr, 0); }},
		{"fork", [] { syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }},
		{"kill", [] { kill(getppid(), 0); }},
		{"prctl", [] { prctl(PR_SET_DUMPABLE, 1); }},
		{"execve", [] { syscall(SYS_execve, "/bin/true", nullptr, nullptr); }},
		{"mprotect exec", [] { syscall(SYS_mprotect, 4096, 4096, PROT_READ | PROT_EXEC); }},
		{"mmap exec", [] { syscall(SYS_mmap, 0, 4096, PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }},
		{"mmap file", [] { syscall(SYS_mmap, 0, 4096, PROT_READ, MAP_SHARED, 0, 0); }},
		{"ioctl", [] { syscall(SYS_ioctl, 0, 0, 0); }},
		{"setrlimit", [] { syscall(SYS_prlimit64, 0, RLIMIT_AS, nullptr, nullptr); }},
		{"io_uring", [] { syscall(SYS_io_uring_setup, 1, nullptr); }},
		{"ptrace", [] { syscall(SYS_ptrace, 0, 0, 0, 0); }},
	};
	for (const auto &c : calls)
		EXPECT_EQ(ends(c.second), SIGSYS) << c.first;
}

} // namespace

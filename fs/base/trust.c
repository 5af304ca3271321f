/* SPDX-License-Identifier: MIT
 * Limits each process of cairnfs to what it needs: they read untrusted input and hold other
 * people's data.
 *
 *	keeper		the calls listed here, mount(2), umount2(2), and what the nursery
 *			(parser_start.c) needs; no new privileges
 *	spare		as the keeper (spare.c)
 *	worker		neither of these; opens only files of the store, of staging and, to read,
 *			of /proc and /sys
 *	freezer		next to nothing: it sets an xattr to freeze a file (freeze.c)
 *	parser		computes, and uses one socket; any other call kills it (parser.h)
 *	nursery		starts and ends parsers; no capability
 *
 * The keeper has no Landlock domain: Landlock forbids umount2(2), and a store that comes back is
 * another directory. It reads no input but its worker's exit code.
 *
 * A call that is not listed fails with EPERM, and the kernel logs it (audit: type=1326): a call
 * missing from the list must not kill a daemon that holds data.
 */
#include "fs/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* sanitizer runtimes need ptrace, clone and dumps of themselves */
#else
#define SANITIZED 0
#endif

/* From 6.13, 6.6 and 5.16: missing in the headers of some build machines. */
#define NR_QUOTACTL_FD 443 /* io/store/quota.c; the same number on all architectures */
#define NR_FCHMODAT2 452
#define NR_GETXATTRAT 464 /* io/store/xattr.c */
#define NR_FUTEX_WAITV 449

/* ---- capabilities ---- */

static int keep_capabilities(const unsigned *keep, size_t n)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}};
	unsigned want[2] = {0, 0};

	if (syscall(SYS_capget, &head, data))
		return -errno;
	for (size_t i = 0; i < n; i++)
		want[keep[i] / 32] |= 1u << (keep[i] % 32);
	for (unsigned i = 0; i < 2; i++) {
		data[i].permitted &= want[i];
		data[i].effective &= want[i];
		data[i].inheritable = 0;
	}
	return syscall(SYS_capset, &head, data) ? -errno : 0;
}

bool trust_may_mount(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}};

	return !syscall(SYS_capget, &head, data) && data[0].effective >> CAP_SYS_ADMIN & 1;
}

/* Not formatted: a line for each would make a page of each table. */
/* clang-format off */

/* SYS_ADMIN mounts and registers backing files; the others create files on behalf of their owners.
 * Not SYS_RESOURCE: it would bypass quotas. */
static const unsigned serving[] = {
	CAP_SYS_ADMIN, CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID,
	CAP_LEASE, CAP_SYS_NICE, CAP_IPC_LOCK,
};

/* ---- system calls ---- */

static const int calls_serving[] = {
	/* bytes */
	SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(readv), SCMP_SYS(writev), SCMP_SYS(pread64),
	SCMP_SYS(pwrite64), SCMP_SYS(preadv), SCMP_SYS(pwritev), SCMP_SYS(preadv2),
	SCMP_SYS(pwritev2), SCMP_SYS(lseek), SCMP_SYS(copy_file_range), SCMP_SYS(fsync),
	SCMP_SYS(fdatasync), SCMP_SYS(syncfs), SCMP_SYS(sync_file_range), SCMP_SYS(truncate),
	SCMP_SYS(ftruncate), SCMP_SYS(fallocate), SCMP_SYS(fadvise64), SCMP_SYS(readahead),
	SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register),
	SCMP_SYS(splice), SCMP_SYS(tee), SCMP_SYS(vmsplice),
	/* descriptors */
	SCMP_SYS(open), SCMP_SYS(openat), SCMP_SYS(openat2), SCMP_SYS(close), SCMP_SYS(close_range),
	SCMP_SYS(dup), SCMP_SYS(dup2), SCMP_SYS(dup3), SCMP_SYS(fcntl), SCMP_SYS(flock),
	SCMP_SYS(ioctl), SCMP_SYS(poll), SCMP_SYS(ppoll), SCMP_SYS(select), SCMP_SYS(pselect6),
	SCMP_SYS(pipe), SCMP_SYS(pipe2), SCMP_SYS(eventfd2), SCMP_SYS(memfd_create),
	SCMP_SYS(recvmsg),
	/* names */
	SCMP_SYS(stat), SCMP_SYS(lstat), SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(statx),
	SCMP_SYS(statfs), SCMP_SYS(fstatfs), SCMP_SYS(access), SCMP_SYS(faccessat),
	SCMP_SYS(faccessat2), SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(getdents),
	SCMP_SYS(getdents64), SCMP_SYS(getcwd), SCMP_SYS(chdir), SCMP_SYS(fchdir), SCMP_SYS(umask),
	SCMP_SYS(mkdir), SCMP_SYS(mkdirat), SCMP_SYS(mknod), SCMP_SYS(mknodat), SCMP_SYS(unlink),
	SCMP_SYS(unlinkat), SCMP_SYS(rmdir), SCMP_SYS(rename), SCMP_SYS(renameat),
	SCMP_SYS(renameat2), SCMP_SYS(link), SCMP_SYS(linkat), SCMP_SYS(symlink),
	SCMP_SYS(symlinkat), SCMP_SYS(chmod), SCMP_SYS(fchmod), SCMP_SYS(fchmodat), NR_FCHMODAT2,
	NR_QUOTACTL_FD, SCMP_SYS(chown), SCMP_SYS(fchown), SCMP_SYS(lchown), SCMP_SYS(fchownat),
	SCMP_SYS(utimensat), SCMP_SYS(setxattr), SCMP_SYS(lsetxattr), SCMP_SYS(fsetxattr),
	SCMP_SYS(getxattr), SCMP_SYS(lgetxattr), SCMP_SYS(fgetxattr), NR_GETXATTRAT,
	SCMP_SYS(listxattr), SCMP_SYS(llistxattr), SCMP_SYS(flistxattr), SCMP_SYS(removexattr),
	SCMP_SYS(lremovexattr), SCMP_SYS(fremovexattr), SCMP_SYS(inotify_init1),
	SCMP_SYS(inotify_add_watch), SCMP_SYS(inotify_rm_watch),
	/* memory */
	SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(mprotect), SCMP_SYS(brk),
	SCMP_SYS(madvise), SCMP_SYS(mincore), SCMP_SYS(msync), SCMP_SYS(mlock), SCMP_SYS(mlock2),
	SCMP_SYS(munlock), SCMP_SYS(mbind), SCMP_SYS(get_mempolicy), SCMP_SYS(set_mempolicy),
	SCMP_SYS(move_pages), SCMP_SYS(membarrier),
	/* threads and processes; clone in add_clone() */
	SCMP_SYS(fork), SCMP_SYS(vfork), SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(wait4),
	SCMP_SYS(waitid), SCMP_SYS(kill), SCMP_SYS(tgkill), SCMP_SYS(getpid), SCMP_SYS(gettid),
	SCMP_SYS(getppid), SCMP_SYS(setsid), SCMP_SYS(getsid), SCMP_SYS(setpgid), SCMP_SYS(getpgid),
	SCMP_SYS(getpgrp), SCMP_SYS(set_robust_list), SCMP_SYS(get_robust_list), SCMP_SYS(rseq),
	SCMP_SYS(set_tid_address), SCMP_SYS(futex), NR_FUTEX_WAITV, SCMP_SYS(sched_yield),
	SCMP_SYS(sched_getaffinity), SCMP_SYS(sched_setaffinity), SCMP_SYS(sched_setscheduler),
	SCMP_SYS(sched_getscheduler), SCMP_SYS(sched_setparam), SCMP_SYS(sched_getparam),
	SCMP_SYS(sched_get_priority_min), SCMP_SYS(sched_get_priority_max), SCMP_SYS(setpriority),
	SCMP_SYS(getpriority), SCMP_SYS(ioprio_set), SCMP_SYS(ioprio_get), SCMP_SYS(prctl),
	SCMP_SYS(arch_prctl), SCMP_SYS(getrlimit), SCMP_SYS(setrlimit), SCMP_SYS(prlimit64),
	SCMP_SYS(getrusage), SCMP_SYS(times), SCMP_SYS(getuid), SCMP_SYS(geteuid), SCMP_SYS(getgid),
	SCMP_SYS(getegid), SCMP_SYS(getresuid), SCMP_SYS(getresgid), SCMP_SYS(getgroups),
	SCMP_SYS(capget), SCMP_SYS(capset), SCMP_SYS(seccomp), SCMP_SYS(landlock_create_ruleset),
	SCMP_SYS(landlock_add_rule), SCMP_SYS(landlock_restrict_self),
	/* signals, time, the machine */
	SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn),
	SCMP_SYS(rt_sigtimedwait), SCMP_SYS(rt_sigpending), SCMP_SYS(rt_sigsuspend),
	SCMP_SYS(rt_tgsigqueueinfo), SCMP_SYS(sigaltstack), SCMP_SYS(signalfd4), SCMP_SYS(pause),
	SCMP_SYS(restart_syscall), SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres),
	SCMP_SYS(clock_nanosleep), SCMP_SYS(nanosleep), SCMP_SYS(gettimeofday), SCMP_SYS(time),
	SCMP_SYS(timerfd_create), SCMP_SYS(timerfd_settime), SCMP_SYS(uname), SCMP_SYS(sysinfo),
	SCMP_SYS(getcpu), SCMP_SYS(getrandom),
};
static const int calls_keeper[] = {
	SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(socketpair), SCMP_SYS(sendmsg),
};
static const int calls_freezer[] = {
	SCMP_SYS(read), SCMP_SYS(setxattr), SCMP_SYS(exit), SCMP_SYS(exit_group),
	SCMP_SYS(rt_sigreturn), SCMP_SYS(restart_syscall), SCMP_SYS(futex),
};
/* The nursery's children each load one more filter, so it may do that. */
static const int calls_nursery[] = {
	SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(sendmsg), SCMP_SYS(socketpair), SCMP_SYS(close),
	SCMP_SYS(close_range), SCMP_SYS(dup2), SCMP_SYS(dup3), SCMP_SYS(fork), SCMP_SYS(vfork),
	SCMP_SYS(wait4), SCMP_SYS(waitid), SCMP_SYS(kill), SCMP_SYS(exit), SCMP_SYS(exit_group),
	SCMP_SYS(getpid), SCMP_SYS(gettid), SCMP_SYS(getppid), SCMP_SYS(prctl), SCMP_SYS(seccomp),
	SCMP_SYS(set_robust_list), SCMP_SYS(rseq), SCMP_SYS(set_tid_address), SCMP_SYS(prlimit64),
	SCMP_SYS(setrlimit), SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(mprotect),
	SCMP_SYS(brk), SCMP_SYS(madvise), SCMP_SYS(futex), SCMP_SYS(rt_sigprocmask),
	SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigreturn), SCMP_SYS(restart_syscall),
	SCMP_SYS(clock_gettime), SCMP_SYS(getrandom), SCMP_SYS(sysinfo), SCMP_SYS(sched_yield),
};
static const int calls_parser[] = {
	SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(exit), SCMP_SYS(exit_group), SCMP_SYS(munmap),
	SCMP_SYS(mremap), SCMP_SYS(brk), SCMP_SYS(madvise), SCMP_SYS(futex),
	SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(restart_syscall),
	SCMP_SYS(clock_gettime), SCMP_SYS(getrandom), SCMP_SYS(sysinfo), SCMP_SYS(getpid),
	SCMP_SYS(gettid), SCMP_SYS(sched_yield),
};
/* clang-format on */
#define N(a) (sizeof(a) / sizeof((a)[0]))

/* Threads and plain processes, no new namespaces. */
static int add_clone(scmp_filter_ctx ctx)
{
	const scmp_datum_t spaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
				    CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
	int err = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(clone3), 0);
	return err ? err
		   : seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
				      SCMP_A0(SCMP_CMP_MASKED_EQ, spaces, 0));
}

/* A filter cannot see clone3(2)'s flags; with ENOSYS glibc falls back to clone(2). A separate
 * filter, because this refusal is expected and not worth a line in the kernel's log. */
static int no_clone3(void)
{
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
	int err =
		ctx ? seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0) : -ENOMEM;
	if (!err)
		err = seccomp_load(ctx);
	if (ctx)
		seccomp_release(ctx);
	return err;
}

static int add_calls(scmp_filter_ctx ctx, const int *calls, size_t n)
{
	int err = 0;
	for (size_t i = 0; !err && i < n; i++)
		err = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, calls[i], 0);
	return err;
}

static int load_filter(const int *calls, size_t n, const int *more, size_t n_more, bool clones)
{
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	int err = ctx ? no_clone3() : -ENOMEM;

	if (!err)
		seccomp_attr_set(ctx, SCMP_FLTATR_CTL_LOG, 1); /* Linux 4.14 and later */
	if (!err)
		/* a binary tree: the list is long */
		seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	if (!err)
		err = add_calls(ctx, calls, n);
	if (!err)
		err = add_calls(ctx, more, n_more);
	if (!err && clones)
		err = add_clone(ctx);
	if (!err)
		err = seccomp_load(ctx);
	if (ctx)
		seccomp_release(ctx);
	return err;
}

/* ---- paths ---- */

#define LL_READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define LL_V1                                                                                      \
	(LL_READ | LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE |                    \
	 LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |                          \
	 LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR |                              \
	 LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |                              \
	 LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK |                            \
	 LANDLOCK_ACCESS_FS_MAKE_SYM)
#define LL_REFER (1ull << 13) /* ABI 2; else no rename between directories */
#define LL_TRUNCATE (1ull << 14) /* ABI 3 */

static int allow_fd(int rules, int fd, uint64_t access)
{
	struct landlock_path_beneath_attr a = {.allowed_access = access, .parent_fd = fd};
	return fd < 0 || !syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &a, 0)
		       ? 0
		       : -errno;
}

static int allow_path(int rules, const char *path, uint64_t access)
{
	int fd = open(path, O_PATH | O_CLOEXEC);
	int err = allow_fd(rules, fd, access);
	if (fd >= 0)
		close(fd);
	return err;
}

/* Allows everything at and below fds; with n 0, opens no file at all. Execute is included: when a
 * program on the mount is started, the kernel opens its backing file for execution with the rights
 * of this process, and a refusal is EIO for the caller. This process cannot call execve(2) (the
 * list above). -ENOSYS: the kernel has no Landlock, or a version without renames between
 * directories (before 5.19). */
static int confine(const int *fds, size_t n, bool reads_proc)
{
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
	uint64_t all = LL_V1 | LL_REFER | (abi >= 3 ? LL_TRUNCATE : 0);
	struct landlock_ruleset_attr attr = {.handled_access_fs = all};

	if (abi < 2)
		return -ENOSYS;
	int rules =
		(int)syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr.handled_access_fs), 0);
	int err = rules < 0 ? -errno : 0;
	for (size_t i = 0; !err && i < n; i++)
		err = allow_fd(rules, fds[i],
			       all & ~(uint64_t)(LANDLOCK_ACCESS_FS_MAKE_CHAR |
						 LANDLOCK_ACCESS_FS_MAKE_BLOCK));
	if (!err && reads_proc)
		err = allow_path(rules, "/proc", LL_READ);
	if (!err && reads_proc)
		err = allow_path(rules, "/sys", LL_READ);
	if (!err && syscall(SYS_landlock_restrict_self, rules, 0))
		err = -errno;
	if (rules >= 0)
		close(rules);
	return err;
}

/* ---- each process ---- */

static int no_new_privs(void)
{
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ? -errno : 0;
}

int trust_keeper(struct fs *fs)
{
	/* without root it unmounts by fusermount3, a setuid program */
	if (SANITIZED || fs->uid)
		return 0;
	unsigned caps[N(serving) + 1];
	memcpy(caps, serving, sizeof(serving));
	/* for the bare mountpoint's immutable flag */
	caps[N(serving)] = CAP_LINUX_IMMUTABLE;
	int err = keep_capabilities(caps, N(serving) + fs->o.guard);
	if (!err)
		err = no_new_privs();
	if (!err &&
	    load_filter(calls_serving, N(calls_serving), calls_keeper, N(calls_keeper), true))
		fs_notice(fs, LEVEL_WARNING
			  "this kernel has no seccomp filters; cairnfs runs without them");
	return err;
}

int trust_worker(struct fs *fs)
{
	const int fds[] = {io_store_root(fs->store), fs->place.base, fs->place.huge,
			   fs->place.small};
	struct rlimit none = {0, 0};

	if (SANITIZED)
		return 0;
	setrlimit(RLIMIT_CORE, &none);
	if (fs->uid == 0) /* or the files in /proc/self/fd would belong to root */
		prctl(PR_SET_DUMPABLE, 0);
	int err = keep_capabilities(serving, N(serving));
	if (!err)
		err = no_new_privs();
	if (err)
		return err;
	if (fds[0] >= 0 && confine(fds, N(fds), true) && !fs->procs.restarts)
		fs_log(LEVEL_WARNING
		       "this kernel does not confine the worker to the store and staging "
		       "(Landlock, 5.19 and later)");
	if (load_filter(calls_serving, N(calls_serving), NULL, 0, true) && !fs->procs.restarts)
		fs_notice(fs, LEVEL_WARNING
			  "this kernel has no seccomp filters; the worker runs without one");
	return 0;
}

void trust_freezer(void)
{
	static const unsigned keep[] = {CAP_DAC_OVERRIDE}; /* files of all users */
	struct rlimit none = {0, 0};

	if (SANITIZED)
		return;
	setrlimit(RLIMIT_CORE, &none);
	prctl(PR_SET_DUMPABLE, 0);
	if (keep_capabilities(keep, N(keep)) || no_new_privs())
		_exit(1);
	confine(NULL, 0, false);
	load_filter(calls_freezer, N(calls_freezer), NULL, 0, false);
}

/* No executable memory, no memory backed by a file. */
static int add_memory(scmp_filter_ctx ctx)
{
	int err = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
				   SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
	return err ? err
		   : seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2,
				      SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
				      SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS));
}

/* Compiled once: libseccomp takes longer than all other steps of a parser's start. */
static struct sock_filter parser_filter[1024];
static struct sock_fprog parser_program = {.filter = parser_filter};

static int make_parser_filter(void)
{
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_KILL_PROCESS);
	int p[2] = {-1, -1}, err = ctx ? add_calls(ctx, calls_parser, N(calls_parser)) : -ENOMEM;

	if (!err)
		err = add_memory(ctx);
	if (!err && pipe2(p, O_CLOEXEC)) /* a pipe takes 64 KiB */
		err = -errno;
	if (!err)
		err = seccomp_export_bpf(ctx, p[1]);
	ssize_t n = err ? 0 : read(p[0], parser_filter, sizeof(parser_filter));
	if (p[0] >= 0) {
		close(p[0]);
		close(p[1]);
	}
	if (ctx)
		seccomp_release(ctx);
	if (err || n <= 0 || (size_t)n >= sizeof(parser_filter) ||
	    (size_t)n % sizeof(parser_filter[0]))
		return err ? err : -EIO;
	parser_program.len = (unsigned short)((size_t)n / sizeof(parser_filter[0]));
	return 0;
}

void trust_nursery(uint64_t parser_memory)
{
	struct rlimit none = {0, 0}, files = {16, 16}, memory = {parser_memory, parser_memory};

	if (SANITIZED)
		return;
	setrlimit(RLIMIT_CORE, &none);
	setrlimit(RLIMIT_FSIZE, &none);
	prctl(PR_SET_DUMPABLE, 0);
	if (setrlimit(RLIMIT_NOFILE, &files) || setrlimit(RLIMIT_AS, &memory) ||
	    keep_capabilities(NULL, 0) || no_new_privs())
		_exit(1);
	confine(NULL, 0, false);
	if (make_parser_filter() || load_filter(calls_nursery, N(calls_nursery), NULL, 0, true))
		_exit(1);
}

void trust_parser(void)
{
	if (!SANITIZED && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &parser_program))
		_exit(1);
}

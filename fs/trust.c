/* SPDX-License-Identifier: MIT
 * What the worker may do once it serves: little. It reads bytes nobody vouches
 * for and holds other people's data. */
#include "fs/fs.h"

#include <errno.h>
#include <linux/capability.h>
#include <seccomp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1	/* their runtimes need ptrace, clone and dumps of themselves */
#else
#define SANITIZED 0
#endif

static int drop_capabilities(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}};
	/* SYS_ADMIN registers backing files; the rest makes files as their owners would */
	const unsigned keep[] = {CAP_SYS_ADMIN, CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER,
				 CAP_FSETID, CAP_LEASE, CAP_SYS_RESOURCE, CAP_SYS_NICE, CAP_IPC_LOCK};

	if (syscall(SYS_capget, &head, data))
		return -errno;
	unsigned want[2] = {0, 0};
	for (unsigned i = 0; i < sizeof(keep) / sizeof(keep[0]); i++)
		want[keep[i] / 32] |= 1u << (keep[i] % 32);
	for (unsigned i = 0; i < 2; i++) {
		data[i].permitted &= want[i];
		data[i].effective &= want[i];
		data[i].inheritable = 0;
	}
	return syscall(SYS_capset, &head, data) ? -errno : 0;
}

/* Nothing here ever starts a program or touches another process or the kernel. */
static int filter_syscalls(void)
{
	const int never[] = {
		SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv),
		SCMP_SYS(process_vm_writev), SCMP_SYS(init_module), SCMP_SYS(finit_module),
		SCMP_SYS(delete_module), SCMP_SYS(kexec_load), SCMP_SYS(kexec_file_load), SCMP_SYS(bpf),
		SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(pivot_root), SCMP_SYS(chroot), SCMP_SYS(setns),
		SCMP_SYS(unshare), SCMP_SYS(swapon), SCMP_SYS(swapoff), SCMP_SYS(reboot), SCMP_SYS(acct),
		SCMP_SYS(quotactl), SCMP_SYS(keyctl), SCMP_SYS(add_key), SCMP_SYS(request_key),
		SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(open_by_handle_at),
		SCMP_SYS(settimeofday), SCMP_SYS(clock_settime), SCMP_SYS(setuid), SCMP_SYS(setgid),
		SCMP_SYS(connect), SCMP_SYS(bind), SCMP_SYS(listen), SCMP_SYS(accept),
	};
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
	int rc = ctx ? 0 : -ENOMEM;
	for (unsigned i = 0; !rc && i < sizeof(never) / sizeof(never[0]); i++)
		rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), never[i], 0);
	if (!rc)
		rc = seccomp_load(ctx);
	if (ctx)
		seccomp_release(ctx);
	return rc;
}

int trust_drop(struct fs *fs)
{
	struct rlimit none = {0, 0};

	if (SANITIZED)
		return 0;
	setrlimit(RLIMIT_CORE, &none);
	if (fs->uid == 0)	/* else /proc/self/fd would no longer be ours */
		prctl(PR_SET_DUMPABLE, 0);
	int rc = drop_capabilities();
	if (rc)
		return rc;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -errno;
	if (filter_syscalls())
		fs_notice(fs, "this kernel has no seccomp filters; the worker runs without one");
	return 0;
}

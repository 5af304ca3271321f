/* SPDX-License-Identifier: MIT
 *
 * at_call N COMMAND PROGRAM [ARG...]: runs PROGRAM, and before the Nth system call that opens, reads
 * or changes a file in its first child, which does a subcommand's work (tools/cairn/base/watch.c), by
 * any of its threads, runs COMMAND in a shell, with PID, the child's, in its environment. Its exit
 * code is PROGRAM's, or 128 and the signal.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int counts(unsigned long long nr)
{
	switch (nr) {
	case SYS_openat:
	case SYS_openat2:
	case SYS_pread64:
	case SYS_write:
	case SYS_fallocate:
	case SYS_fchmod:
	case SYS_fchown:
	case SYS_utimensat:
	case SYS_fsync:
	case SYS_fdatasync:
	case SYS_mkdirat:
	case SYS_renameat:
	case SYS_renameat2:
	case SYS_linkat:
	case SYS_unlinkat:
	case SYS_flock:
	case SYS_sendmsg: return 1;
	default: return 0;
	}
}

static void die(const char *what)
{
	fprintf(stderr, "at_call: %s: %s\n", what, strerror(errno));
	exit(125);
}

static int is_entry(pid_t pid)
{
	struct __ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) < 0)
		die("PTRACE_GET_SYSCALL_INFO");
	return info.op == PTRACE_SYSCALL_INFO_ENTRY && counts(info.entry.nr);
}

static int is_of(pid_t process, pid_t thread)
{
	char path[48], line[128];
	int found = process == thread;
	FILE *f;

	if (!process || found)
		return found;
	snprintf(path, sizeof(path), "/proc/%d/status", (int)thread);
	f = fopen(path, "r");
	while (f && !found && fgets(line, sizeof(line), f))
		found = !strncmp(line, "Tgid:", 5) && atoi(line + 5) == process;
	if (f)
		fclose(f);
	return found;
}

static void run_command(const char *command, pid_t pid)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", (int)pid);
	setenv("PID", text, 1);
	if (system(command))
		die(command);
}

/* What a stopped process is to be given: a signal, or 0. */
static int signal_of(int status)
{
	if (status >> 16 || WSTOPSIG(status) == (SIGTRAP | 0x80) || WSTOPSIG(status) == SIGSTOP ||
	    WSTOPSIG(status) == SIGTRAP)
		return 0; /* SIGSTOP: each new child begins with it; SIGTRAP: it has called exec */
	return WSTOPSIG(status);
}

int main(int argc, char **argv)
{
	long n = argc > 3 ? atol(argv[1]) : 0;
	pid_t main_pid, pid, worker = 0;
	int status;

	if (n < 1)
		return 125;
	main_pid = fork();
	if (!main_pid) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		execv(argv[3], argv + 3);
		_exit(125);
	}
	if (main_pid < 0 || waitpid(main_pid, &status, 0) != main_pid || !WIFSTOPPED(status))
		die(argv[3]);
	ptrace(PTRACE_SETOPTIONS, main_pid, 0,
	       PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL | PTRACE_O_TRACEFORK |
		       PTRACE_O_TRACECLONE);
	ptrace(PTRACE_CONT, main_pid, 0, 0);
	for (;;) {
		int sig = 0, traced;

		pid = waitpid(-1, &status, __WALL);
		if (pid < 0)
			die("waitpid");
		if (pid == main_pid && WIFEXITED(status))
			return WEXITSTATUS(status);
		if (pid == main_pid && WIFSIGNALED(status))
			return 128 + WTERMSIG(status);
		if (!WIFSTOPPED(status))
			continue;
		if (!worker && pid != main_pid)
			worker = pid; /* before or after its parent's PTRACE_EVENT_FORK */
		sig = signal_of(status);
		traced = n > 0 && is_of(worker, pid);
		if (traced && WSTOPSIG(status) == (SIGTRAP | 0x80) && is_entry(pid) && !--n)
			run_command(argv[2], worker);
		ptrace(traced && n > 0 ? PTRACE_SYSCALL : PTRACE_CONT, pid, 0, sig);
	}
}

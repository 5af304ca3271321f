/* SPDX-License-Identifier: MIT
 *
 * at_mount REFUSE COMMAND PROGRAM [ARG...]: runs PROGRAM. Each mount(2), umount2(2) and move_mount(2)
 * of it, and of the processes that it starts, is held while COMMAND runs in a shell, until PROGRAM
 * has ended. REFUSE is what the kernel does not know: beneath (MOVE_MOUNT_BENEATH, Linux 6.5), tree
 * (open_tree(2), Linux 5.2) or nothing. The exit code is PROGRAM's; 125: it cannot be done here.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BENEATH 0x200
#define DATA(field) (offsetof(struct seccomp_data, field))

static void die(const char *what)
{
	fprintf(stderr, "at_mount: %s: %s\n", what, strerror(errno));
	_exit(125);
}

/* The filter of this process from now on; a descriptor that says what it holds. */
static int install(const char *refuse)
{
	unsigned no_beneath =
		!strcmp(refuse, "beneath") ? SECCOMP_RET_ERRNO | EINVAL : SECCOMP_RET_USER_NOTIF;
	unsigned no_tree = !strcmp(refuse, "tree") ? SECCOMP_RET_ERRNO | ENOSYS : SECCOMP_RET_ALLOW;
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, DATA(nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mount, 6, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_umount2, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_open_tree, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_move_mount, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, DATA(args[4])),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, BENEATH, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, no_beneath),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, no_tree),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(f) / sizeof(f[0]), .filter = f};

	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
			    &program);
}

/* Sends *fd over sock, or receives it. */
static void pass(int sock, int *fd, int send)
{
	char c = 0;
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec v = {&c, 1};
	struct msghdr m = {.msg_iov = &v,
			   .msg_iovlen = 1,
			   .msg_control = &control,
			   .msg_controllen = sizeof(control)};

	control.head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.head), fd, sizeof(int));
	if ((send ? sendmsg(sock, &m, 0) : recvmsg(sock, &m, MSG_CMSG_CLOEXEC)) != 1)
		die("the listener");
	memcpy(fd, CMSG_DATA(&control.head), sizeof(int));
}

/* Until the last process that has the filter is gone. */
static void answer(int listener, const char *command, volatile int *ended)
{
	struct pollfd p = {.fd = listener, .events = POLLIN};

	while (poll(&p, 1, -1) >= 0 && !(p.revents & POLLHUP)) {
		struct seccomp_notif call = {0};
		struct seccomp_notif_resp go = {.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};

		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call))
			continue; /* it was killed */
		if (!*ended && system(command))
			fprintf(stderr, "at_mount: %s failed\n", command);
		go.id = call.id;
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &go);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	int sock[2], listener = -1, status;
	volatile int *ended =
		mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (argc < 4 || ended == MAP_FAILED ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock))
		return 125;
	pid_t pid = fork();
	if (pid == 0) {
		listener = install(argv[1]);
		if (listener < 0)
			die("seccomp");
		pass(sock[1], &listener, 1);
		close(listener);
		execv(argv[3], argv + 3);
		die(argv[3]);
	}
	close(sock[1]);
	pass(sock[0], &listener, 0);
	if (fork() == 0)
		answer(listener, argv[2], ended);
	close(listener);
	if (waitpid(pid, &status, 0) != pid)
		return 125;
	*ended = 1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

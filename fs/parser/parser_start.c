/* SPDX-License-Identifier: MIT
 * The nursery (cairnfs-nursery), which starts and ends the parsers: the worker has threads and
 * cannot fork. The keeper starts one for each worker; it ends with the worker, and the parsers end
 * with it. It reads no byte of a checkpoint, so each parser starts clean.
 */
#include "fs/parser/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 64u /* more than the worker uses at once (parser.c) */

static struct child {
	pid_t pid; /* 0: free */
	unsigned id;
} children[CHILDREN];

/* ---- in the nursery ---- */

/* Unmaps the memory that the keeper shares with other processes (the worker's exit code and
 * others). */
static int unmap_shared(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned long from[64], to[64];
	char line[512];
	size_t n = 0;

	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f)) {
		char shared;
		if (n < sizeof(from) / sizeof(from[0]) &&
		    sscanf(line, "%lx-%lx %*c%*c%*c%c", &from[n], &to[n], &shared) == 3 &&
		    shared == 's')
			n++;
	}
	fclose(f);
	for (size_t i = 0; i < n; i++)
		if (munmap((void *)from[i], to[i] - from[i]))
			return -errno;
	return n < sizeof(from) / sizeof(from[0]) ? 0 : -E2BIG;
}

static struct child *child_of(unsigned id)
{
	for (unsigned i = 0; i < CHILDREN; i++)
		if (children[i].pid > 0 && children[i].id == id)
			return &children[i];
	return NULL;
}

static struct child *free_child(void)
{
	for (unsigned i = 0; i < CHILDREN; i++)
		if (!children[i].pid)
			return &children[i];
	return NULL;
}

static _Noreturn void be_parser(struct fs *fs, pid_t parent, int fd, unsigned nth)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) /* the worker has ended already */
		_exit(0);
	prctl(PR_SET_NAME, "cairnfs-parser");
	dup2(fd, 0);
	close_range(1, ~0u, 0);
	trust_parser();
	parser_serve(0, fs->parsers.fault, nth);
}

static void pass_on(unsigned id, int fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} u = {.buf = {0}};
	struct iovec v = {.iov_base = &id, .iov_len = sizeof(id)};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};

	if (fd >= 0) {
		m.msg_control = u.buf;
		m.msg_controllen = sizeof(u.buf);
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(int));
	}
	if (sendmsg(0, &m, MSG_NOSIGNAL) < 0)
		_exit(0);
}

/* Its pid, and *fd to it; or -1. */
static pid_t start_child(struct fs *fs, int *fd)
{
	static unsigned started;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -1;
	started++;
	pid_t parent = getpid(), pid = fork();
	if (pid == 0)
		be_parser(fs, parent, pair[1], started);
	close(pair[1]);
	if (pid < 0)
		close(pair[0]);
	*fd = pair[0];
	return pid;
}

static pid_t ready; /* a parser started in advance; 0 */
static int ready_fd;

static void give_child(struct fs *fs, unsigned id)
{
	struct child *c = free_child();

	if (ready > 0 && waitpid(ready, NULL, WNOHANG) == ready) { /* it was killed */
		close(ready_fd);
		ready = 0;
	}
	if (c && ready <= 0)
		ready = start_child(fs, &ready_fd);
	if (!c || ready < 0) {
		pass_on(id, -1);
		return;
	}
	*c = (struct child){.pid = ready, .id = id};
	pass_on(id, ready_fd);
	close(ready_fd);
	ready = start_child(fs, &ready_fd);
}

static void end_child(unsigned id)
{
	struct child *c = child_of(id);

	if (!c)
		return;
	kill(c->pid, SIGKILL);
	waitpid(c->pid, NULL, 0);
	c->pid = 0;
}

static void end_children(void)
{
	for (unsigned i = 0; i < CHILDREN; i++)
		if (children[i].pid > 0)
			end_child(children[i].id);
	if (ready > 0) {
		kill(ready, SIGKILL);
		waitpid(ready, NULL, 0);
	}
}

static _Noreturn void be_nursery(struct fs *fs, int fd)
{
	struct parser_order o;

	prctl(PR_SET_NAME, "cairnfs-nursery");
	signal(SIGTERM, SIG_IGN); /* it ends with its socket */
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	explicit_bzero(&fs->freezer.key, sizeof(fs->freezer.key));
	oom_unprotect();
	if (unmap_shared() || dup2(fd, 0) || close_range(1, ~0u, 0) || chdir("/"))
		_exit(1);
	trust_nursery(PARSER_MEMORY);
	while (read(0, &o, sizeof(o)) == sizeof(o)) {
		if (o.what == PARSER_START)
			give_child(fs, o.id);
		else
			end_child(o.id);
	}
	end_children();
	_exit(0);
}

/* ---- in the keeper ---- */

static void start_nursery(struct fs *fs)
{
	pid_t pid = fork();

	if (pid == 0)
		be_nursery(fs, fs->parsers.served);
	fs->parsers.pid = pid > 0 ? pid : 0;
}

void parser_start(struct fs *fs)
{
	int pair[2];

	parser_end(fs);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return;
	fs->parsers.fd = pair[0];
	fs->parsers.served = pair[1];
	start_nursery(fs);
}

/* Restarts a nursery that died: the worker's orders wait in the socket meanwhile. Not after the
 * keeper's own death: its spare is not the nursery's parent. */
bool parser_look(struct fs *fs)
{
	pid_t pid = fs->parsers.pid;
	int err = pid > 0 ? waitpid(pid, NULL, WNOHANG) : -1;

	if (fs->parsers.served <= 0 || !err || (pid > 0 && err != pid && !kill(pid, 0)))
		return false;
	start_nursery(fs);
	return fs->parsers.pid > 0;
}

void parser_leave(struct fs *fs, bool worker)
{
	int *fd = worker ? &fs->parsers.served : &fs->parsers.fd;

	if (*fd > 0)
		close(*fd);
	*fd = 0;
}

void parser_end(struct fs *fs)
{
	parser_leave(fs, false);
	parser_leave(fs, true);
	if (fs->parsers.pid > 0 && waitpid(fs->parsers.pid, NULL, WNOHANG) == 0) {
		kill(fs->parsers.pid, SIGKILL);
		waitpid(fs->parsers.pid, NULL, 0);
	}
	fs->parsers.pid = 0;
}

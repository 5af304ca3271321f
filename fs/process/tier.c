/* SPDX-License-Identifier: MIT
 * -o tier=: starts `cairn tier push --follow` (the follower, tools/cairn/tier_follow.c) and `cairn
 * tier serve` (the server, tier_serve.c), and starts them again when they end.
 *
 * The keeper cannot start a program: its filter (trust.c) would be the program's, too. So before it
 * is confined it forks a runner for each (cairnfs-tier), which has nothing of the mount open:
 * neither the connection nor the store, which a follower opens only while it looks at it, and a
 * server only while it fetches. The runners end when keeper and spare are gone (procs.alive); the
 * keeper knows by another pipe when they have ended.
 *
 * Nothing of the mount waits for any of them, but for the keeper at its end, END_MS at most: a
 * process that is inside a call to a tier that does not answer cannot be ended.
 */
#include "fs/process/process.h"
#include "io/tier_ask.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/ioprio.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define END_MS 2000
#define KILL_MS 1000 /* after SIGTERM */
#define AGAIN_MAX_S 60
#define RAN_WELL_S 60 /* a follower that ran for so long is started again at once */
/* in a runner, besides what its program has as TIER_SHARED_FD or TIER_SERVE_FD, both 3 */
#define ALIVE_FD 4
#define DONE_FD 5

_Static_assert(TIER_SHARED_FD == TIER_SERVE_FD, "a runner has one descriptor for its program");

int tier_find_program(const char *name, char out[PATH_MAX])
{
	ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 32);
	char *slash;

	out[n < 0 ? 0 : n] = 0;
	slash = strrchr(out, '/');
	if (!slash)
		return -ENOENT;
	strcpy(slash + 1, name);
	if (!access(out, X_OK))
		return 0;
	sprintf(slash + 1, "../%s", name); /* of build/tests/cairnfs */
	if (!access(out, X_OK))
		return 0;
	strcpy(slash + 1, name); /* for the message */
	return -errno;
}

/* ---- in the runner ---- */

/* Reads files of all users, and gives those in a directory of ours to their owners. */
static void drop_capabilities(const struct fs *fs)
{
	static const unsigned keep[] = {CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE, CAP_CHOWN,
					CAP_FOWNER, CAP_FSETID};

	if (fs->uid)
		return;
	for (unsigned cap = 0; cap <= CAP_LAST_CAP; cap++) {
		bool kept = false;

		for (unsigned i = 0; i < sizeof(keep) / sizeof(keep[0]); i++)
			kept |= keep[i] == cap;
		if (!kept && cap != CAP_SETPCAP)
			prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
	}
	prctl(PR_CAPBSET_DROP, CAP_SETPCAP, 0, 0, 0);
}

/* The process becomes the program of its runner: what both have in common. */
static void become_child(pid_t runner)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != runner)
		_exit(0);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	fcntl(TIER_SHARED_FD, F_SETFD, 0);
}

/* Who opens a file waits for it: unlike the follower it is as important as that. */
static _Noreturn void be_server(const struct fs *fs, const char *program, pid_t runner)
{
	char *argv[] = {"cairn",
			"tier",
			"serve",
			"--timeout",
			"0",
			"--for-mount",
			(char *)io_store_host(fs->store),
			"--",
			fs->o.store,
			fs->o.tier,
			NULL};

	become_child(runner);
	execv(program, argv);
	_exit(127);
}

static _Noreturn void be_follower(const struct fs *fs, const char *program, pid_t runner)
{
	char rate[32], keep[16];
	char *argv[24], **a = argv;

	become_child(runner);
	setpriority(PRIO_PROCESS, 0, 19);
	syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0));
	*a++ = "cairn";
	*a++ = "tier";
	*a++ = "push";
	*a++ = "--follow";
	*a++ = "--for-mount";
	*a++ = (char *)io_store_host(fs->store);
	if (fs->o.tier_rate) {
		snprintf(rate, sizeof(rate), "%llu", (unsigned long long)fs->o.tier_rate);
		*a++ = "--rate";
		*a++ = rate;
	}
	if (fs->o.tier_keep) {
		snprintf(keep, sizeof(keep), "%u", fs->o.tier_keep);
		*a++ = "--keep";
		*a++ = keep;
		*a++ = "--mount";
		*a++ = fs->o.mountpoint;
	}
	*a++ = "--";
	*a++ = fs->o.store;
	*a++ = fs->o.tier;
	*a = NULL;
	execv(program, argv);
	_exit(127);
}

/* False: the mount has ended. */
static bool mount_goes_on(int ms)
{
	struct pollfd p = {.fd = ALIVE_FD};

	return poll(&p, 1, ms) <= 0;
}

/* True: it ended by itself. */
static bool wait_for_child(pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p[] = {{.fd = ALIVE_FD}, {.fd = fd, .events = POLLIN}};
	bool ended;

	do { /* without pidfd_open(2) it looks each second */
		poll(p, 2, fd < 0 ? 1000 : -1);
		ended = waitpid(pid, NULL, WNOHANG) == pid;
	} while (!ended && !p[0].revents);
	if (!ended) {
		kill(pid, SIGTERM);
		for (int ms = 0; ms < KILL_MS && !waitpid(pid, NULL, WNOHANG); ms += 10)
			sleep_ms(10);
		kill(pid, SIGKILL); /* of a process that has been waited for: not reused yet */
	}
	if (fd >= 0)
		close(fd);
	return ended;
}

static void tell_child(struct tier_shared *shared, pid_t pid)
{
	if (shared && pid)
		atomic_fetch_add(&shared->starts, 1);
	if (shared)
		atomic_store(&shared->pid, pid);
}

static _Noreturn void be_runner(struct fs *fs, const char *program, bool serves)
{
	struct tier_shared *shared = serves ? NULL : fs->tier.shared;
	pid_t self = getpid();
	unsigned again_s = 1;

	for (;;) {
		uint64_t begun = monotonic_ns();
		pid_t pid = fork();

		if (pid == 0 && serves)
			be_server(fs, program, self);
		if (pid == 0)
			be_follower(fs, program, self);
		if (pid > 0) {
			tell_child(shared, pid);
			bool ended = wait_for_child(pid);
			tell_child(shared, 0);
			if (!ended)
				_exit(0);
		}
		if (monotonic_ns() - begun > RAN_WELL_S * 1000000000ull)
			again_s = 1;
		if (!mount_goes_on((int)again_s * 1000))
			_exit(0);
		again_s = again_s * 2 < AGAIN_MAX_S ? again_s * 2 : AGAIN_MAX_S;
	}
}

/* fd: what its program gets. */
static _Noreturn void start_running(struct fs *fs, const char *program, int fd, int done,
				    bool serves)
{
	int null = open("/dev/null", O_RDWR), fds[] = {fd, fs->procs.alive[0], done};

	prctl(PR_SET_NAME, "cairnfs-tier");
	signal(SIGTERM, SIG_IGN); /* it ends with its pipe */
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	explicit_bzero(&fs->freezer.key, sizeof(fs->freezer.key));
	for (int i = 0; i < 3; i++) /* out of the way of 3 to 5 */
		fds[i] = fcntl(fds[i], F_DUPFD, 16);
	for (int i = 0; i < 3; i++) {
		dup2(null, i);
		dup2(fds[i], TIER_SHARED_FD + i);
		fcntl(TIER_SHARED_FD + i, F_SETFD, FD_CLOEXEC);
	}
	close_range(DONE_FD + 1, ~0u, 0); /* the store's lock, the connection and others */
	if (chdir("/"))
		_exit(1);
	drop_capabilities(fs);
	be_runner(fs, program, serves);
}

/* ---- in the keeper ---- */

static void cannot(struct fs *fs, const char *what, int err)
{
	char text[256];

	snprintf(text, sizeof(text), LEVEL_ERROR "nothing is sent to the tier: %.150s: %s", what,
		 strerror(err));
	fs_notice(fs, text);
}

static int make_shared(struct fs *fs)
{
	int memory = memfd_create("cairnfs-tier", MFD_CLOEXEC);
	void *page = MAP_FAILED;

	if (memory >= 0 && !ftruncate(memory, sizeof(*fs->tier.shared)))
		page = mmap(NULL, sizeof(*fs->tier.shared), PROT_READ | PROT_WRITE, MAP_SHARED,
			    memory, 0);
	if (page != MAP_FAILED)
		fs->tier.shared = page;
	return memory;
}

static void start_runner(struct fs *fs, const char *program, int fd, int done, bool serves)
{
	pid_t pid = fork();

	if (pid == 0)
		start_running(fs, program, fd, done, serves);
	if (pid < 0)
		cannot(fs, "fork", errno);
}

/* Workers have one end, servers the other, each after the other. */
static void start_server(struct fs *fs, const char *program, int done)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		cannot(fs, "socketpair", errno);
		return;
	}
	fcntl(pair[0], F_SETFL, O_NONBLOCK);
	start_runner(fs, program, pair[1], done, true);
	close(pair[1]);
	fs->tier.ask = pair[0];
}

void tier_start(struct fs *fs)
{
	char program[PATH_MAX];
	int memory, done[2];

	fs->tier.done = fs->tier.ask = -1;
	if (!fs->o.tier)
		return;
	if (tier_find_program("cairn", program)) {
		cannot(fs, program, errno);
		return;
	}
	memory = make_shared(fs);
	if (!fs->tier.shared || pipe2(done, O_CLOEXEC)) {
		cannot(fs, "memory, pipe", errno);
		if (memory >= 0)
			close(memory);
		return;
	}
	start_runner(fs, program, memory, done[1], false);
	close(memory);
	start_server(fs, program, done[1]);
	close(done[1]);
	fs->tier.done = done[0];
}

static void tell_pending(struct fs *fs)
{
	struct tier_report r;

	tier_shared_get(fs->tier.shared, &r);
	if (r.pending)
		fs_log(LEVEL_WARNING
		       "%s: %llu complete checkpoints (%llu MiB) are not in the tier %s%s%s; the "
		       "next start sends them, or now: cairn tier push %s %s",
		       fs->o.store, (unsigned long long)r.pending,
		       (unsigned long long)(r.pending_bytes >> 20), fs->o.tier,
		       *r.error ? ": " : "", r.error, fs->o.store, fs->o.tier);
}

void tier_end(struct fs *fs)
{
	struct pollfd p = {.fd = fs->tier.done};

	if (!fs->tier.shared)
		return;
	if (fs->procs.alive[1] >= 0)
		close(fs->procs.alive[1]);
	fs->procs.alive[1] = -1;
	poll(&p, 1, END_MS); /* POLLHUP */
	tell_pending(fs);
}

/* ---- in the worker ---- */

void tier_look(struct fs *fs)
{
	struct tier_shared *s = fs->tier.shared;
	struct tier_report r;
	char text[700];
	unsigned n = s ? atomic_load(&s->errors) : 0;

	if (!s || n == atomic_load(&s->logged))
		return;
	atomic_store(&s->logged, n);
	tier_shared_get(s, &r);
	if (*r.error)
		snprintf(text, sizeof(text),
			 LEVEL_WARNING "the tier: %s; it is tried again, saves go on", r.error);
	else
		snprintf(text, sizeof(text), "the tier takes checkpoints again");
	fs_notice(fs, text);
}

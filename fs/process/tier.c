/* SPDX-License-Identifier: MIT
 * -o tier=: starts `cairn tier push --follow` (the follower, tools/cairn/tier/tier_follow.c) and
 * `cairn tier serve` (the server, tier_serve.c), and starts them again when they end.
 *
 * The keeper cannot start a program: its filter (trust.c) would be the program's, too. So before it
 * is confined it forks two processes for each (cairnfs-tier), which have nothing of the mount open:
 * neither the connection nor the store, which a follower opens only while it looks at it, and a
 * server only while it fetches. Each can be killed:
 *
 *	guard ── starts again ──▶ runner ── starts again ──▶ follower, or server
 *	  ▲──── becomes it, if that has ended ────┘
 *
 * They end when keeper and spare are gone (procs.alive); keeper and worker know by another pipe
 * when both have ended.
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
#define GUARD_MS 20 /* between two runners, if they end at once */
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
			"--mount",
			fs->o.mountpoint,
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

/* Waits for the end of a process, and of the mount, at most ms (-1: without end). */
struct ends {
	pid_t pid;
	int fd; /* of pid; -1: without pidfd_open(2) it is asked each second */
	bool is_child;
};

static struct ends ends_of(pid_t pid, bool is_child)
{
	return (struct ends){pid, (int)syscall(SYS_pidfd_open, pid, 0), is_child};
}

static bool has_ended(const struct ends *e)
{
	return e->is_child ? waitpid(e->pid, NULL, WNOHANG) == e->pid : getppid() != e->pid;
}

static bool mount_has_ended(void)
{
	struct pollfd p = {.fd = ALIVE_FD};

	return poll(&p, 1, 0) > 0;
}

/* Until one of them, the mount, or ms milliseconds have ended; either may be NULL. */
static void wait_for_ends(const struct ends *a, const struct ends *b, int ms)
{
	struct pollfd p[] = {{.fd = ALIVE_FD},
			     {.fd = a ? a->fd : -1, .events = POLLIN},
			     {.fd = b ? b->fd : -1, .events = POLLIN}};
	bool blind = (a && a->fd < 0) || (b && b->fd < 0);

	poll(p, 3, blind && (ms < 0 || ms > 1000) ? 1000 : ms);
}

/* Of one that is started again and again. */
struct again {
	uint64_t begun;
	int wait_s;
};

/* How long until the next start, in ms. */
static int again_ms(struct again *a)
{
	int s;

	if (monotonic_ns() - a->begun > RAN_WELL_S * 1000000000ull || !a->wait_s)
		a->wait_s = 1;
	s = a->wait_s;
	a->wait_s = s * 2 < AGAIN_MAX_S ? s * 2 : AGAIN_MAX_S;
	return s * 1000;
}

/* Waits ms; false: the mount, or the guard, has ended. */
static bool goes_on(const struct ends *guard, int ms)
{
	uint64_t until = monotonic_ns() + (uint64_t)ms * 1000000;

	while (!mount_has_ended() && !(guard && has_ended(guard))) {
		uint64_t now = monotonic_ns();

		if (now >= until)
			return true;
		wait_for_ends(guard, NULL, (int)((until - now) / 1000000) + 1);
	}
	return false;
}

static void end_child(struct ends *e)
{
	siginfo_t info;

	kill(e->pid, SIGTERM);
	for (int ms = 0; ms < KILL_MS && !has_ended(e); ms += 10)
		sleep_ms(10);
	if (waitid(P_PID, (id_t)e->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
		kill(e->pid, SIGKILL);
}

static void tell_child(struct tier_shared *shared, pid_t pid)
{
	if (shared && pid)
		atomic_fetch_add(&shared->starts, 1);
	if (shared)
		atomic_store(&shared->pid, pid);
}

/* Starts followers, or servers, after first_ms. Returns when the guard has ended. */
static void be_runner(const struct fs *fs, const char *program, pid_t guard, int first_ms,
		      bool serves)
{
	struct tier_shared *shared = serves ? NULL : fs->tier.shared;
	struct ends above = ends_of(guard, false);
	struct again again = {0};
	pid_t self = getpid();
	int ms = first_ms;

	while (goes_on(&above, ms)) {
		pid_t pid = fork();

		again.begun = monotonic_ns();
		if (pid == 0 && serves)
			be_server(fs, program, self);
		if (pid == 0)
			be_follower(fs, program, self);
		if (pid > 0) {
			struct ends child = ends_of(pid, true);
			bool ended = false;

			tell_child(shared, pid);
			while (!mount_has_ended() && !has_ended(&above) && !ended) {
				wait_for_ends(&child, &above, -1);
				ended = has_ended(&child);
			}
			if (!ended)
				end_child(&child);
			tell_child(shared, 0);
			if (child.fd >= 0)
				close(child.fd);
		}
		ms = again_ms(&again);
	}
	if (mount_has_ended())
		_exit(0);
	if (above.fd >= 0)
		close(above.fd);
}

/* What a killed runner left is a child of ours now, and ends by PDEATHSIG. */
static void end_orphan(struct tier_shared *shared, pid_t runner)
{
	pid_t pid = shared ? atomic_load(&shared->pid) : 0;
	struct ends e = {pid, -1, true};
	siginfo_t info;

	/* the follower may write to shared: only a child of ours is killed */
	if (pid > 0 && pid != runner &&
	    !waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT))
		end_child(&e);
	tell_child(shared, 0);
}

static void tell_runner(struct tier_shared *shared, pid_t pid)
{
	if (!shared)
		return;
	atomic_fetch_add(&shared->runner_starts, 1);
	atomic_store(&shared->runner, pid);
}

/* Starts runners, each at once, so that there are two processes always. Returns in each of them;
 * *ms: how long it is to wait. */
static pid_t be_guard(struct tier_shared *shared, int *ms)
{
	struct again again = {0};
	pid_t self = getpid();
	bool first = true;

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (shared)
		atomic_store(&shared->guard, self);
	do {
		pid_t pid;

		/* the previous one's child has ended then */
		*ms = first ? 0 : again_ms(&again) + KILL_MS;
		pid = fork();
		again.begun = monotonic_ns();
		if (pid == 0)
			return self;
		if (pid > 0) {
			struct ends runner = ends_of(pid, true);

			tell_runner(shared, pid);
			if (!first)
				end_orphan(shared, pid);
			first = false;
			while (!has_ended(&runner) && !mount_has_ended())
				wait_for_ends(&runner, NULL, -1);
			if (mount_has_ended()) {
				waitpid(pid, NULL, 0); /* it ends the follower */
				_exit(0);
			}
			while (waitpid(-1, NULL, WNOHANG) > 0)
				; /* what earlier ones left */
			if (runner.fd >= 0)
				close(runner.fd);
		}
	} while (goes_on(NULL, GUARD_MS));
	_exit(0);
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
	oom_unprotect();
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
	for (;;) {
		int ms = 0;
		pid_t guard = be_guard(serves ? NULL : fs->tier.shared, &ms);

		be_runner(fs, program, guard, ms, serves);
	}
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

/* *done becomes readable when all of it has ended. */
static void start_runner(struct fs *fs, const char *program, int fd, int *done, bool serves)
{
	int ends[2];
	pid_t pid = pipe2(ends, O_CLOEXEC) ? -2 : fork();

	if (pid == 0)
		start_running(fs, program, fd, ends[1], serves);
	if (pid < 0)
		cannot(fs, pid == -2 ? "pipe" : "fork", errno);
	if (pid == -2)
		return;
	close(ends[1]);
	*done = ends[0];
}

/* Workers have one end, servers the other, each after the other. */
static void start_server(struct fs *fs, const char *program)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		cannot(fs, "socketpair", errno);
		return;
	}
	fcntl(pair[0], F_SETFL, O_NONBLOCK);
	start_runner(fs, program, pair[1], &fs->tier.served, true);
	close(pair[1]);
	fs->tier.ask = pair[0];
}

void tier_start(struct fs *fs)
{
	char program[PATH_MAX];
	int memory;

	fs->tier.done = fs->tier.served = fs->tier.ask = -1;
	if (!fs->o.tier)
		return;
	if (tier_find_program("cairn", program)) {
		cannot(fs, program, errno);
		return;
	}
	memory = make_shared(fs);
	if (!fs->tier.shared) {
		cannot(fs, "memory", errno);
		if (memory >= 0)
			close(memory);
		return;
	}
	start_runner(fs, program, memory, &fs->tier.done, false);
	close(memory);
	start_server(fs, program);
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
	struct pollfd p[] = {{.fd = fs->tier.done}, {.fd = fs->tier.served}};
	uint64_t until = monotonic_ns() + END_MS * 1000000ull;

	if (!fs->tier.shared)
		return;
	if (fs->procs.alive[1] >= 0)
		close(fs->procs.alive[1]);
	fs->procs.alive[1] = -1;
	for (int i = 0; i < 2; i++) { /* POLLHUP */
		uint64_t now = monotonic_ns();

		if (p[i].fd >= 0)
			poll(&p[i], 1, now < until ? (int)((until - now) / 1000000) : 0);
	}
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

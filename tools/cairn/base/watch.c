/* SPDX-License-Identifier: MIT
 *
 * Limits for subcommands that call a mount. While the mount's worker is stopped or hangs, such a
 * call returns never, and not even SIGKILL ends a process whose request the worker has read. So the
 * subcommand runs in a child, and this process ends without it when the mount is silent for longer
 * than the limit. With --timeout 0 there is no limit, and no child. Whether it is silent:
 *
 *	LIMIT_WHOLE    the child has not ended, nor called watch_answered()
 *	others         a second child, the prober, calls getxattr(2) on the operands, or on the one
 *	               that the subcommand is at (watch_at); none returns
 *
 * A store that the subcommand calls (watch_asks) is waited for without a limit, but that of
 * --timeout. After NOTE_S this process says what it waits for.
 *
 * A process that cannot be ended keeps its descriptors. Neither child has the pipes of the caller,
 * who may read until all their writers have closed them: this process copies.
 */
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "cli.h"

#define STEP_MS 100
/* a step that took longer: this process was itself stopped, or waited for its reader */
#define STEP_MAX_S 0.5
#define PROBE_AFTER_S 0.5
#define PROBE_EVERY_S 0.5
/* after --timeout, for a subcommand that ends by itself then */
#define GRACE_S 1.0
#define SILENT_S 2.0
#define NOTE_S 10.0 /* then it says what it waits for */
#define END_MS 1000 /* a child that did not get an answer */
#define CLEAN_MS 10000 /* and at a signal, when it removes what it has not finished */

struct shared {
	atomic_ulong answers;
	/* addresses of operands, the same in all of them: the prober's, and the one that the
	 * subcommand is at; 0: none yet */
	atomic_uintptr_t asked, at;
	pid_t supervisor, prober;
	char name[PATH_MAX];
	/* calls of a store, which the prober does not ask: odd while one has not returned */
	atomic_ulong store_calls;
	char store[PATH_MAX];
};

struct copy {
	int from, to; /* from -1: none */
};

struct watched {
	const struct command *c;
	char **argv;
	int argc;
	pid_t child;
	int alive; /* a pipe that the child has open */
	struct copy copy[2];
	int write_error; /* of standard output; 0 = none */
	double limit, deadline; /* INFINITY, 0 = none */
	double start, last, silent;
	unsigned long answers;
	double store_silent;
	unsigned long store_calls;
	bool noted; /* that it waits */
};

static struct shared *shared; /* NULL: nothing is watched */
static double timeout_s = -1;
static volatile sig_atomic_t child_pid, got_signal, signals;

/* ---- for subcommands ------------------------------------------------------------- */

double watch_deadline(void)
{
	return timeout_s < 0 ? 0 : now_s() + timeout_s;
}

void watch_answered(void)
{
	if (shared)
		atomic_fetch_add(&shared->answers, 1);
}

void watch_name(const char *path)
{
	if (shared)
		snprintf(shared->name, sizeof(shared->name), "%s", path);
}

void watch_at(const char *operand)
{
	if (shared)
		atomic_store(&shared->at, (uintptr_t)operand);
}

void watch_asks(const char *path)
{
	if (!shared || !path == !(atomic_load(&shared->store_calls) & 1))
		return;
	if (path)
		snprintf(shared->store, sizeof(shared->store), "%s", path);
	atomic_fetch_add(&shared->store_calls, 1);
}

bool watch_is_helper(int pid)
{
	return shared && (pid == shared->supervisor || pid == shared->prober);
}

/* ---- --timeout --------------------------------------------------------------------- */

static int take_value(const char *sub, const char *value)
{
	if (!value)
		return complain_usage(sub, "bad option or missing value: --timeout");
	if (parse_duration(value, &timeout_s))
		return complain_usage(sub, "--timeout %s: not a duration such as 90, 90s, 5m or 2h",
				      value);
	return CAIRN_OK;
}

/* Takes it out of argv. */
static int take_timeout(int *argc, char **argv)
{
	static const char option[] = "--timeout";
	const size_t n = sizeof(option) - 1;
	int to = 1, i = 1, code = CAIRN_OK;

	for (; !code && i < *argc && strcmp(argv[i], "--"); i++) {
		if (!strcmp(argv[i], option)) {
			i++;
			code = take_value(argv[0], i < *argc ? argv[i] : NULL);
		} else if (!strncmp(argv[i], option, n) && argv[i][n] == '=') {
			code = take_value(argv[0], argv[i] + n + 1);
		} else {
			argv[to++] = argv[i];
		}
	}
	while (!code && i < *argc)
		argv[to++] = argv[i++];
	if (!code)
		argv[ *argc = to] = NULL;
	return code;
}

/* ---- the children -------------------------------------------------------------------- */

static bool is_pipe(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

static bool is_same(int a, int b)
{
	struct stat s, t;

	return !fstat(a, &s) && !fstat(b, &t) && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
}

/* Pipes in place of the caller's: end[i] is what the child writes to, or -1. */
static void make_copies(struct watched *w, int end[2])
{
	for (int i = 0; i < 2; i++) {
		int fd = STDOUT_FILENO + i, p[2];

		w->copy[i] = (struct copy){.from = -1, .to = fd};
		end[i] = -1;
		if (!is_pipe(fd))
			continue;
		if (i && end[0] >= 0 && is_same(STDOUT_FILENO, STDERR_FILENO))
			end[1] = fcntl(end[0], F_DUPFD_CLOEXEC, 3); /* their order remains */
		else if (!pipe2(p, O_CLOEXEC))
			w->copy[i].from = p[0], end[i] = p[1];
	}
}

static void close_ends(const int end[2])
{
	for (int i = 0; i < 2; i++)
		if (end[i] >= 0)
			close(end[i]);
}

static void end_with(pid_t parent, int sig)
{
	prctl(PR_SET_PDEATHSIG, sig);
	if (getppid() != parent)
		_exit(CAIRN_FAILED);
}

/* 0 in the child, its pid, or -errno: it could not be made. */
static int fork_child(struct watched *w)
{
	pid_t self = getpid(), pid;
	int p[2], end[2];

	if (pipe2(p, O_CLOEXEC))
		return -errno;
	make_copies(w, end);
	pid = fork();
	if (pid < 0) {
		int err = -errno;

		close(p[0]);
		close(p[1]);
		close_ends(end);
		return err;
	}
	if (!pid) {
		end_with(self, SIGTERM);
		close(p[0]);
		for (int i = 0; i < 2; i++)
			if (end[i] >= 0)
				dup2(end[i], STDOUT_FILENO + i);
	} else {
		close(p[1]);
		w->alive = p[0];
	}
	close_ends(end);
	return pid;
}

/* Asks for what costs the daemon least. Any result is an answer. */
static void ask(const char *path)
{
	char none[16];

	(void)!getxattr(path, KEY_LANE, none, sizeof(none));
	watch_answered();
}

/* The operand that the subcommand is at; if it does not say, all of them. */
static void probe(int argc, char **argv)
{
	for (;;) {
		const char *at = (const char *)atomic_load(&shared->at);
		int n = 0;

		for (int i = 1; i < (at ? 2 : argc); i++) {
			const char *path = at ? at : argv[i];

			if (!at && *path == '-')
				continue;
			atomic_store(&shared->asked, (uintptr_t)path);
			ask(path);
			n++;
		}
		if (!n)
			ask(".");
		sleep_s(PROBE_EVERY_S);
	}
}

static void start_prober(struct watched *w)
{
	pid_t self = getpid(), pid = fork();

	if (pid > 0)
		shared->prober = pid;
	if (pid)
		return;
	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL);
	end_with(self, SIGKILL);
	close_range(0, ~0u, 0);
	probe(w->argc, w->argv);
}

/* ---- signals ------------------------------------------------------------------------- */

static const int passed[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};

static void on_signal(int sig)
{
	signals++;
	got_signal = sig;
	kill(child_pid, sig);
}

static void pass_signals(void)
{
	struct sigaction sa = {.sa_handler = on_signal}, old;

	for (size_t i = 0; i < sizeof(passed) / sizeof(*passed); i++)
		if (!sigaction(passed[i], NULL, &old) && old.sa_handler == SIG_DFL)
			sigaction(passed[i], &sa, NULL);
}

static void block_signals(sigset_t *before)
{
	sigset_t all;

	sigemptyset(&all);
	for (size_t i = 0; i < sizeof(passed) / sizeof(*passed); i++)
		sigaddset(&all, passed[i]);
	sigprocmask(SIG_BLOCK, &all, before);
}

static int end_by(int sig)
{
	signal(sig, SIG_DFL);
	raise(sig);
	return 128 + sig;
}

/* ---- copies -------------------------------------------------------------------------- */

static void write_all(struct watched *w, int fd, const char *buf, size_t n)
{
	while (n) {
		ssize_t put = write(fd, buf, n);

		if (put < 0 && errno != EINTR && fd == STDOUT_FILENO)
			w->write_error = errno;
		if (put < 0 && (errno != EINTR || got_signal))
			return;
		buf += put > 0 ? put : 0;
		n -= put > 0 ? (size_t)put : 0;
	}
}

/* What the child has written and is not copied yet. False: the end. */
static bool copy_once(struct watched *w, struct copy *c)
{
	char buf[65536];
	ssize_t n = read(c->from, buf, sizeof(buf));

	if (n > 0)
		write_all(w, c->to, buf, (size_t)n);
	else if (n == 0 || errno != EINTR) {
		close(c->from);
		c->from = -1;
	}
	return c->from >= 0;
}

static void copy_rest(struct watched *w)
{
	for (int i = 0; i < 2; i++) {
		struct pollfd p = {.fd = w->copy[i].from, .events = POLLIN};

		while (p.fd >= 0 && poll(&p, 1, 0) > 0 && copy_once(w, &w->copy[i]))
			;
	}
}

/* Copies until the child has ended or a step has passed; true: it has ended. */
static bool step(struct watched *w, int ms)
{
	struct pollfd p[3] = {
		{.fd = w->alive},
		{.fd = w->copy[0].from, .events = POLLIN},
		{.fd = w->copy[1].from, .events = POLLIN},
	};

	if (poll(p, 3, ms) <= 0)
		return false;
	for (int i = 0; i < 2; i++)
		if (p[i + 1].revents)
			copy_once(w, &w->copy[i]);
	return p[0].revents;
}

/* ---- the end ------------------------------------------------------------------------- */

static bool ends_within(struct watched *w, int ms)
{
	double until = now_s() + ms / 1000.0;

	while (now_s() < until)
		if (step(w, STEP_MS))
			return true;
	return false;
}

static void end_child(struct watched *w)
{
	kill(w->child, SIGTERM);
	if (!ends_within(w, END_MS))
		kill(w->child, SIGKILL);
	copy_rest(w);
}

static const char *silent_name(const struct watched *w)
{
	const char *asked = (const char *)atomic_load(&shared->asked);
	const char *name = asked ? asked : *shared->name ? shared->name : ".";

	for (int i = 1; !asked && !*shared->name && i < w->argc; i++)
		name = w->argv[i][0] == '-' ? name : w->argv[i];
	return name;
}

static void clear_bar(void)
{
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
}

/* Once each time: what does not answer, which may take as long as it likes. */
static void note_silence(struct watched *w)
{
	bool store = w->store_silent >= NOTE_S;
	char t[32];

	if (!store && w->silent < NOTE_S)
		w->noted = false;
	else if (!w->noted) {
		w->noted = true;
		clear_bar();
		complain("%s: no answer for %s; waiting for it",
			 store ? shared->store : silent_name(w),
			 human_time(store ? w->store_silent : w->silent, t));
	}
}

static int give_up(struct watched *w)
{
	const char *name = silent_name(w);
	char t[32];

	end_child(w);
	clear_bar();
	if (w->store_silent > w->silent) {
		complain("%s: no answer for %s: the store does not answer", shared->store,
			 human_time(w->store_silent, t));
		return CAIRN_TIMEOUT;
	}
	complain_silent(name, w->silent);
	return w->c->on_silence ? w->c->on_silence(name) : CAIRN_TIMEOUT;
}

static int reap(struct watched *w)
{
	int status;

	copy_rest(w);
	while (waitpid(w->child, &status, 0) < 0)
		if (errno != EINTR)
			return CAIRN_FAILED;
	if (WIFSIGNALED(status))
		return end_by(WTERMSIG(status));
	if (w->write_error && WEXITSTATUS(status) == CAIRN_OK) {
		complain("cannot write the output: %s", strerror(w->write_error));
		return CAIRN_FAILED;
	}
	return WEXITSTATUS(status);
}

static bool is_silent(struct watched *w)
{
	unsigned long answers = atomic_load(&shared->answers);
	unsigned long calls = atomic_load(&shared->store_calls);
	double now = now_s(), passed_s = now - w->last;

	w->last = now;
	passed_s = passed_s < STEP_MAX_S ? passed_s : STEP_MAX_S;
	w->silent = answers == w->answers ? w->silent + passed_s : 0;
	w->answers = answers;
	w->store_silent = calls & 1 && calls == w->store_calls ? w->store_silent + passed_s : 0;
	w->store_calls = calls;
	/* of a store it is only the caller who sets a limit */
	double silent = w->silent > w->store_silent ? w->silent : w->store_silent;
	if (w->deadline && now >= w->deadline + GRACE_S && silent >= SILENT_S)
		return true;
	return w->silent >= w->limit || (timeout_s >= 0 && w->store_silent >= w->limit);
}

static int supervise(struct watched *w)
{
	double signaled = 0;
	int code;

	for (;;) {
		if (step(w, STEP_MS)) {
			code = reap(w);
			break;
		}
		if (!shared->prober && w->c->limit != LIMIT_WHOLE &&
		    now_s() - w->start >= PROBE_AFTER_S)
			start_prober(w);
		if (got_signal && !signaled)
			signaled = now_s();
		if (signaled && (signals > 1 ||
				 now_s() - signaled >= (w->noted ? END_MS : CLEAN_MS) / 1000.0)) {
			kill(w->child, SIGKILL);
			ends_within(w, END_MS);
			code = end_by(got_signal);
			break;
		}
		if (is_silent(w)) {
			code = give_up(w);
			break;
		}
		if (w->c->limit != LIMIT_WHOLE)
			note_silence(w);
	}
	if (shared->prober)
		kill(shared->prober, SIGKILL);
	return code;
}

/* It goes on until it is ended, whatever the mount does. */
static bool follows(int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
		if (!strcmp(argv[i], "--follow"))
			return true;
	return false;
}

int watch_run(const struct command *c, int argc, char **argv)
{
	struct watched w = {.c = c, .argv = argv, .alive = -1, .limit = c->limit_s};
	sigset_t before;
	int code;

	if (c->limit == LIMIT_NONE)
		return c->run(argc, argv);
	code = take_timeout(&argc, argv);
	if (code)
		return code;
	if ((timeout_s == 0 && c->limit != LIMIT_DEADLINE) || follows(argc, argv))
		return c->run(argc, argv);
	w.argc = argc;
	w.start = w.last = now_s();
	if (timeout_s >= 0) {
		w.limit = c->limit == LIMIT_DEADLINE ? INFINITY : timeout_s;
		w.deadline = c->limit == LIMIT_DEADLINE ? w.start + timeout_s : 0;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED) {
		shared = NULL;
		return c->run(argc, argv);
	}
	shared->supervisor = getpid();
	block_signals(&before); /* one that came now would end us before the child has cleaned up */
	w.child = fork_child(&w);
	child_pid = w.child;
	if (w.child > 0)
		pass_signals();
	sigprocmask(SIG_SETMASK, &before, NULL);
	return w.child > 0 ? supervise(&w) : c->run(argc, argv);
}

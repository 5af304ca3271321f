/* SPDX-License-Identifier: MIT
 * The keeper: opens /dev/fuse, mounts, starts the worker and restarts it when it dies. It holds the
 * fuse descriptor, the store's lock and the staging mounts, and no other state.
 */
#include "fs/process/process.h"
#include "staging/log/left.h"
#include "staging/memory/pin.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEATHS_MAX 5u
#define DEATHS_WINDOW_S 10
#define DETACH_GRACE_S 10
#define CANNOT_MAX 6u /* starts of a worker that cannot serve: after 1, 2, 4, ... s */

static volatile sig_atomic_t end_asked;

static void on_end(int sig)
{
	(void)sig;
	end_asked++;
}

struct keeper {
	struct fs *fs;
	struct fuse_session *mount;
	int fuse_fd;
	uint64_t mount_id; /* 0: unknown */
	void *init;
	size_t init_len;
	long deaths[DEATHS_MAX]; /* ms, CLOCK_MONOTONIC */
	unsigned n_deaths, n_cannot;
	uint64_t kills; /* for memory, in its cgroup */
	bool again; /* a worker was started before */
	int life; /* a pipe that closes with the worker */
	pid_t spare; /* -1: none */
	pid_t worker;
	bool adopted; /* this process was the spare: the worker is not its child */
	int guard; /* the bare mountpoint, immutable until a clean end; or -1 */
	bool was_guarded; /* before this start */
	bool took_over; /* a dead mount */
};

/* From linux/stat.h, Linux 6.8 and later: a mount id that is never reused, unlike mountinfo's. */
#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x4000U
#endif

/* The id of the topmost mount at path; 0 if the kernel does not tell. Sends no request to a
 * daemon. */
static uint64_t mount_on_top(const char *path)
{
	struct statx x;
	if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT | AT_SYMLINK_NOFOLLOW,
		  STATX_MNT_ID_UNIQUE, &x))
		return 0;
	return x.stx_mask & STATX_MNT_ID_UNIQUE ? x.stx_mnt_id : 0;
}

static int open_guarded(struct keeper *k)
{
	int fd = open(k->fs->o.mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	int err = fd < 0 ? -errno : mountpoint_immutable(fd, true);

	k->was_guarded = err == 1;
	if (err >= 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return err;
}

/* The mountpoint, before the mount. */
static void guard(struct keeper *k)
{
	char text[256];
	int err = k->fs->o.guard ? open_guarded(k) : -1;

	k->guard = err < 0 ? -1 : err;
	if (!k->fs->o.guard || err >= 0)
		return;
	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "the bare mountpoint is not guarded: %s; where the mount ends by an accident, "
		 "files may be written into the directory under it",
		 strerror(-err));
	fs_notice(k->fs, text);
}

/* Only if nothing is left in staging, or nothing was mounted: after any other end, writes to the
 * bare mountpoint must fail. */
static void unguard(struct keeper *k)
{
	if (k->guard >= 0)
		mountpoint_immutable(k->guard, false);
}

/* 0 or -EINVAL; libfuse has printed the reason. */
static int mount_session(void *keeper)
{
	struct keeper *k = keeper;

	guard(k);
	return fuse_session_mount(k->mount, k->fs->o.mountpoint) ? -EINVAL : 0;
}

static int do_mount(struct keeper *k, struct fuse_args *rest)
{
	static const struct fuse_lowlevel_ops none;
	const char *at = k->fs->o.mountpoint;

	k->mount = fuse_session_new(rest, &none, sizeof(none), NULL);
	if (!k->mount)
		return -EINVAL;
	int dead = takeover_look(at), err = dead;
	if (dead >= 0)
		err = dead ? takeover_mount(at, mount_session, k) : mount_session(k);
	if (err)
		return err;
	k->took_over = dead;
	k->fuse_fd = fuse_session_fd(k->mount);
	k->mount_id = mount_on_top(at);
	/* the first request is INIT; every worker gets a copy */
	size_t cap = (1u << 20) + 65536;
	k->init = malloc(cap);
	if (!k->init)
		return -ENOMEM;
	ssize_t n;
	do {
		n = read(k->fuse_fd, k->init, cap);
	} while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n < 0 ? -errno : -EIO;
	k->init_len = (size_t)n;
	return 0;
}

/* As the worker asked for last. */
static void fit_tmpfs(const struct fs *fs)
{
	struct keepers *shared = fs->procs.keepers;
	char c[64];

	while (read(fs->procs.limit[0], c, sizeof(c)) == sizeof(c))
		;
	unsigned wanted = shared ? atomic_load(&shared->limit_wanted) : 0;
	if (!shared || wanted == atomic_load(&shared->limit_done))
		return;
	uint64_t budget = wanted & 1 ? fs->o.staging_bytes : 0;
	atomic_store(&shared->limit_error, staging_place_fit(&fs->place, budget));
	atomic_store(&shared->limit_done, wanted);
}

static pid_t start_worker(struct keeper *k, bool first)
{
	int life[2];

	if (k->life >= 0)
		close(k->life);
	k->life = -1;
	if (pipe2(life, O_CLOEXEC))
		return -1;
	if (k->fs->procs.keepers)
		atomic_store(&k->fs->procs.keepers->exited, 0);
	parser_start(k->fs);
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_NAME, "cairnfs-worker");
		signal(SIGTERM, SIG_DFL);
		signal(SIGINT, SIG_DFL);
		close(life[0]);
		close(k->fs->procs.alive[1]);
		parser_leave(k->fs, true);
		if (k->guard >= 0)
			close(k->guard);
		k->fs->procs.life_fd = life[1];
		worker_exit(k->fs, worker_run(k->fs, k->fuse_fd, k->init, k->init_len, first));
	}
	parser_leave(k->fs, false);
	close(life[1]);
	k->life = life[0];
	k->worker = pid;
	k->adopted = false;
	return pid;
}

static void start_spare(struct keeper *k)
{
	k->spare = spare_start(k->fs, k->life, &k->adopted);
}

static void end_spare(struct keeper *k)
{
	if (k->spare > 0) {
		kill(k->spare, SIGKILL);
		waitpid(k->spare, NULL, 0);
	}
	k->spare = -1;
}

/* Whether the worker ended: *status as from waitpid(2). */
static bool worker_ended(struct keeper *k, int *status, int ms)
{
	struct pollfd p[] = {{.fd = k->life}, /* POLLHUP is always reported */
			     {.fd = k->fs->procs.limit[0], .events = POLLIN}};

	if (k->spare > 0 && waitpid(k->spare, NULL, WNOHANG) == k->spare)
		start_spare(k);
	if (parser_look(k->fs)) { /* the spare gets the new one's pid, too */
		end_spare(k);
		start_spare(k);
	}
	int n = poll(p, 2, ms);
	fit_tmpfs(k->fs); /* also if a keeper before this one had read the byte */
	if (n <= 0 || !p[0].revents)
		return false;
	if (!k->adopted)
		return waitpid(k->worker, status, 0) == k->worker;
	int exited = atomic_load(&k->fs->procs.keepers->exited);
	*status = exited ? W_EXITCODE(exited - 1, 0) : SIGKILL;
	return true;
}

/* True if it dies too often to restart it. */
static bool too_many_deaths(struct keeper *k)
{
	long now = (long)(monotonic_ns() / 1000000);
	k->deaths[k->n_deaths++ % DEATHS_MAX] = now;
	return k->n_deaths >= DEATHS_MAX &&
	       now - k->deaths[k->n_deaths % DEATHS_MAX] <= DEATHS_WINDOW_S * 1000;
}

/* Once our mount is gone there may be another at that path, while this one is still draining: leave
 * it alone. */
static void detach(struct keeper *k)
{
	/* POLLERR: the connection has ended. */
	struct pollfd p = {.fd = k->fuse_fd};
	if (k->mount_id ? mount_on_top(k->fs->o.mountpoint) != k->mount_id
			: poll(&p, 1, 0) > 0 && (p.revents & POLLERR))
		return;
	if (k->fs->uid == 0 && umount2(k->fs->o.mountpoint, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
		return;
	fuse_session_unmount(k->mount);
}

/* SIGTERM: unmounts at once; the worker ends when the last file is closed, or after a grace
 * period. */
static void end_worker(struct keeper *k, pid_t worker, time_t *since)
{
	if (!*since) {
		*since = time(NULL);
		detach(k);
	} else if (time(NULL) - *since > DETACH_GRACE_S || end_asked > 1) {
		kill(worker, SIGTERM);
		*since = time(NULL) + 3600;
	}
}

/* ---- the store goes away and comes back ---- */

static void let_go(struct keeper *k, int why)
{
	struct fs *fs = k->fs;
	struct io_host by = {.said = IO_HOST_SAID_NOTHING};
	char text[512];

	fs->away.since = time(NULL);
	if (why == -EADDRINUSE)
		io_store_is_back(fs->store, &by);
	hosts_refused(fs, why, &by, text, sizeof(text));
	if (why != -EADDRINUSE)
		snprintf(text, sizeof(text),
			 LEVEL_ERROR
			 "the store %.120s is gone: %s; publication is halted, staging keeps "
			 "everything; it is opened again when it is back there",
			 fs->o.store, strerror(-why));
	fs_notice(fs, text);
	io_store_detach(fs->store);
	fs_log_again(fs);
}

static int open_again(struct keeper *k)
{
	struct fs *fs = k->fs;
	struct io_store *again;
	struct io_served by = {.pid = 0};
	char text[512];
	int err = io_store_is_back(fs->store, &by.of);

	if (!err)
		err = io_store_open(fs->engine, fs->o.store, fs->o.ro, fs->o.host, &by, &again);
	if (err == -EWOULDBLOCK) {
		by.of.pid = by.pid;
		err = -EADDRINUSE;
	}
	if (err && hosts_refused(fs, err, &by.of, text, sizeof(text)))
		fs_notice(fs, text);
	if (err)
		return err;
	io_store_close(fs->store);
	fs->store = again;
	fs->away.since = 0;
	fs->away.error = 0;
	fstat(io_store_root(again), &fs->root_seen);
	if (!fs->o.ro)
		io_store_lock_pid(again, (int)getpid());
	fs_log_again(fs);
	fs_notice(fs, "the store is back; publication continues");
	return 0;
}

static void pause_s(unsigned s)
{
	struct timespec t = {.tv_sec = s};
	while (nanosleep(&t, &t) && !end_asked)
		;
}

/* Handles a worker's exit with code. True: start the next one. */
static bool goes_on(struct keeper *k, int code)
{
	bool gone = code == EXIT_STORE_GONE || (code == EXIT_CANNOT && k->again);
	int err = gone ? io_store_probe(k->fs->store) : 0;

	if (end_asked)
		return false;
	if (code >= EXIT_STORE_GONE)
		k->n_cannot = 0;
	if (code == EXIT_CLAIM_LOST) {
		let_go(k, -EADDRINUSE);
		return true;
	}
	if (err && !io_store_is_detached(k->fs->store)) {
		let_go(k, err);
		return true;
	}
	if (code == EXIT_STORE_GONE) /* it is back already */
		return true;
	if (code == EXIT_STORE_BACK) {
		if (open_again(k))
			pause_s(1);
		return true;
	}
	if (code != EXIT_CANNOT || !k->again || ++k->n_cannot > CANNOT_MAX)
		return false;
	pause_s(1u << (k->n_cannot - 1));
	return !end_asked;
}

static pid_t next_worker(struct keeper *k)
{
	k->fs->procs.restarts++;
	pid_t pid = start_worker(k, false);
	if (pid > 0)
		start_spare(k);
	return pid;
}

/* Why the worker died, to a person. True: the kernel killed it for its memory. */
static bool death_cause(struct keeper *k, int sig, char *text, size_t cap)
{
	char where[256];
	uint64_t kills = pin_cgroup_kills(NULL), limit = pin_cgroup_limit(NULL, where);
	bool for_memory = sig == SIGKILL && kills > k->kills;

	k->kills = kills;
	if (!for_memory)
		snprintf(text, cap, "by signal %d", sig);
	else if (limit == UINT64_MAX)
		snprintf(text, cap,
			 "killed by the kernel: the machine has no memory left; give a "
			 "smaller staging=, or less to other programs");
	else
		snprintf(text, cap,
			 "killed by the kernel: the memory cgroup %.80s allows %llu MiB, "
			 "which are used up; raise its limit, or give a smaller staging=",
			 where, (unsigned long long)limit >> 20);
	return for_memory;
}

/* Whether the worker is to be started again. */
static bool after_death(struct keeper *k, int sig)
{
	char cause[300], text[600];
	bool for_memory = death_cause(k, sig, cause, sizeof(cause));

	if (too_many_deaths(k)) {
		fs_log(LEVEL_ERROR "%s: the worker died %u times in %d s (last %s); the mount is "
				   "aborted, staging is kept in %s for the next start",
		       k->fs->o.store, DEATHS_MAX, DEATHS_WINDOW_S, cause, k->fs->place.path);
		return false;
	}
	if (for_memory) {
		snprintf(text, sizeof(text), LEVEL_WARNING "the worker died, %s", cause);
		fs_notice(k->fs, text);
	}
	fs_log(LEVEL_WARNING "%s: the worker died %s; starting another", k->fs->o.store,
	       for_memory ? "for memory" : cause);
	return true;
}

static int keep(struct keeper *k)
{
	time_t ending = 0;
	pid_t worker = start_worker(k, true);
	int status, err = errno;

	if (worker < 0)
		fs_log(LEVEL_ERROR "%s: cannot start a worker: %s%s", k->fs->o.store, strerror(err),
		       limit_hint(-err));

	close(k->fs->procs.ready_fd); /* only the worker's copies are used */
	k->fs->procs.ready_fd = -1;
	fs_log_leave_terminal();
	if (worker > 0)
		start_spare(k);
	while (worker > 0) {
		bool ended = worker_ended(k, &status, end_asked ? 50 : 1000);
		fs_log_look(false);
		if (end_asked)
			end_worker(k, worker, &ending);
		if (!ended)
			continue;
		end_spare(k); /* it holds the store open, too */
		if (WIFEXITED(status) && !goes_on(k, WEXITSTATUS(status)))
			return WEXITSTATUS(status);
		k->again = true;
		if (WIFEXITED(status)) {
			worker = next_worker(k);
			continue;
		}
		if (!after_death(k, WTERMSIG(status)))
			return EXIT_DEATHS;
		worker = next_worker(k);
	}
	return EXIT_FAILED;
}

static void to_background(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	setsid();
	if (null >= 0) { /* without /dev/null, keep the terminal */
		for (int fd = 0; fd < 3; fd++)
			dup2(null, fd);
		close(null);
	}
	if (chdir("/"))
		return;
}

/* Without its worker the mount is gone, whoever unmounted it. If the worker failed where jobs may
 * be writing, the mount stays, without a process that answers: a bare mountpoint would take files
 * that are meant for the store. */
static bool stays(const struct keeper *k, int err)
{
	bool failed = k->took_over ? err : k->again && (err == EXIT_DEATHS || err == EXIT_CANNOT);
	return failed && !end_asked;
}

/* Whether nothing was left in staging, which is removed then. */
static bool give_up(struct fs *fs)
{
	uint64_t log = staging_log_at(fs->place.path, io_store_id(fs->store));

	if (!staging_give_up(&fs->place))
		return false;
	if (!fs->o.ro)
		staged_in_end(fs, log);
	return true;
}

static void take_signals(void)
{
	struct sigaction sa = {.sa_handler = on_end};

	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	signal(SIGCHLD, SIG_DFL); /* if it is ignored, waitpid(2) does not work */
}

int keeper_run(struct fs *fs, struct fuse_args *rest)
{
	struct keeper k = {
		.fs = fs, .life = -1, .spare = -1, .guard = -1, .kills = pin_cgroup_kills(NULL)};

	fs_log_start(fs);
	notify_start();
	int err = do_mount(&k, rest);
	if (err) {
		if (!k.was_guarded)
			unguard(&k);
		io_store_forget_host(fs->store);
		staging_place_give_up(&fs->place);
		return err == -EINVAL ? 1 : 2;
	}
	take_signals();
	staged_in_tell(fs);
	if (!fs->o.foreground)
		to_background();
	oom_protect();
	freeze_start(fs);
	spare_init(fs);
	if (pipe2(fs->procs.limit, O_CLOEXEC | O_NONBLOCK))
		fs->procs.limit[0] = fs->procs.limit[1] = -1;
	tier_start(fs);
	err = trust_keeper(fs);
	if (err)
		fs_log(LEVEL_ERROR "%s: cannot give up privileges: %s", fs->o.store,
		       strerror(-err));
	err = err ? 2 : keep(&k);
	bool refused = err == EXIT_REFUSED;
	if (refused)
		err = 0; /* else a service manager would mount again */
	end_spare(&k);
	parser_end(fs);
	tier_end(fs);
	if (!stays(&k, err))
		detach(&k);
	close(k.fuse_fd);
	if (err == 0) {
		unguard(&k);
		staging_place_remove(&fs->place);
		if (refused)
			fs_log(LEVEL_WARNING "%s: the mount at %s has ended; what the store "
					     "refused is not in it",
			       fs->o.store, fs->o.mountpoint);
		else
			fs_log("%s: the mount at %s has ended; everything is in the store",
			       fs->o.store, fs->o.mountpoint);
	} else if (stays(&k, err) || !give_up(fs)) {
		fs_log(LEVEL_WARNING "%s: the mount at %s has ended; what is not in the store is "
				     "staged in %s for the next start",
		       fs->o.store, fs->o.mountpoint, fs->place.path);
	}
	fs_log_look(true);
	return err;
}

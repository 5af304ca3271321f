/* SPDX-License-Identifier: MIT
 * The keeper: opens /dev/fuse, mounts, starts the worker and starts it again when
 * it dies. It holds the fuse descriptor, the store's lock and the staging mounts,
 * and no state that can be wrong. */
#include "fs/fs.h"

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
	uint64_t mount_id;	/* 0 = not known */
	void *init;
	size_t init_len;
	long deaths[DEATHS_MAX];	/* ms, CLOCK_MONOTONIC */
	unsigned n_deaths;
};

/* From linux/stat.h, 6.8 and later: an id that is never given twice, unlike mountinfo's. */
#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x4000U
#endif

/* The id of the mount on top at path; 0 where the kernel does not tell. Asks no daemon. */
static uint64_t mount_on_top(const char *path)
{
	struct statx x;
	if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT | AT_SYMLINK_NOFOLLOW,
		  STATX_MNT_ID_UNIQUE, &x))
		return 0;
	return x.stx_mask & STATX_MNT_ID_UNIQUE ? x.stx_mnt_id : 0;
}

static int do_mount(struct keeper *k, struct fuse_args *rest)
{
	static const struct fuse_lowlevel_ops none;
	k->mount = fuse_session_new(rest, &none, sizeof(none), NULL);
	if (!k->mount || fuse_session_mount(k->mount, k->fs->o.mountpoint))
		return -EINVAL;	/* libfuse has said why */
	k->fuse_fd = fuse_session_fd(k->mount);
	k->mount_id = mount_on_top(k->fs->o.mountpoint);
	/* the first request is INIT; every worker is given its bytes */
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

static pid_t start_worker(struct keeper *k, bool first)
{
	pid_t pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_NAME, "cairnfs-worker");
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	_exit(worker_run(k->fs, k->fuse_fd, k->init, k->init_len, first));
}

/* True when it dies too often to go on. */
static bool too_many_deaths(struct keeper *k)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	long now = t.tv_sec * 1000 + t.tv_nsec / 1000000;
	k->deaths[k->n_deaths++ % DEATHS_MAX] = now;
	return k->n_deaths >= DEATHS_MAX && now - k->deaths[k->n_deaths % DEATHS_MAX] <= DEATHS_WINDOW_S * 1000;
}

/* Once our mount is gone another may stand there, while we were still draining: hands off. */
static void detach(struct keeper *k)
{
	struct pollfd p = {.fd = k->fuse_fd};
	if (k->mount_id ? mount_on_top(k->fs->o.mountpoint) != k->mount_id :
			  poll(&p, 1, 0) > 0 && (p.revents & POLLERR))	/* POLLERR: the connection has ended */
		return;
	if (k->fs->uid == 0 && umount2(k->fs->o.mountpoint, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
		return;
	fuse_session_unmount(k->mount);
}

/* SIGTERM: the name goes at once, the worker ends when the last file is closed, or after a grace. */
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

static int keep(struct keeper *k)
{
	time_t ending = 0;
	pid_t worker = start_worker(k, true);
	int status;

	close(k->fs->ready_fd);	/* the worker's copies are the ones that speak */
	if (k->fs->err_fd >= 0)
		close(k->fs->err_fd);
	k->fs->ready_fd = k->fs->err_fd = -1;
	while (worker > 0) {
		pid_t got = waitpid(worker, &status, end_asked ? WNOHANG : 0);
		if (end_asked)
			end_worker(k, worker, &ending);
		if (got == 0) {
			struct timespec t = {.tv_nsec = 50000000};
			nanosleep(&t, NULL);
			continue;
		}
		if (got < 0) {
			if (errno == EINTR)
				continue;
			return 1;
		}
		if (WIFEXITED(status))
			return WEXITSTATUS(status);
		if (too_many_deaths(k)) {
			fs_log("%s: the worker died %u times in %d s (last by signal %d); the mount is aborted, "
			       "staging is kept in %s for the next start", k->fs->o.store, DEATHS_MAX,
			       DEATHS_WINDOW_S, WTERMSIG(status), k->fs->place.path);
			return 5;
		}
		fs_log("%s: the worker died by signal %d; starting another", k->fs->o.store, WTERMSIG(status));
		k->fs->restarts++;
		worker = start_worker(k, false);
	}
	return 1;
}

int keeper_run(struct fs *fs, struct fuse_args *rest)
{
	struct keeper k = {.fs = fs};
	struct sigaction sa = {.sa_handler = on_end};

	int rc = do_mount(&k, rest);
	if (rc) {
		staging_place_give_up(&fs->place);
		return rc == -EINVAL ? 1 : 2;
	}
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
	if (!fs->o.foreground)
		to_background(fs);
	still_start(fs);
	rc = keep(&k);
	/* the worker is gone: so is the mount, whoever took it down */
	detach(&k);
	close(k.fuse_fd);
	if (rc == 0)
		staging_place_remove(&fs->place);
	return rc;
}

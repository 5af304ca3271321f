/* SPDX-License-Identifier: MIT
 * The spare keeper: replaces a keeper that was killed while its worker lives.
 *
 * The worker cannot start a keeper: its children inherit its filter and its Landlock domain
 * (trust.c), so they could neither unmount nor open a store that came back. So the keeper forks a
 * spare after each worker; it has the keeper's rights and descriptors, and waits. Each worker has
 * one spare, which ends with it, because it holds open the store that the keeper may have to close.
 *
 * The spare is not the worker's parent. It learns of the worker's end by a pipe that the worker
 * holds open, and of its exit code by shared memory.
 *
 * Killing both keeper and worker is the way to end the mount. So the spare does not decide alone:
 * it asks the worker, and becomes the keeper only when the worker answers. A worker that was
 * killed, too, cannot answer, even while one of its threads is still inside a sync.
 */
#include "fs/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LOOK_MS 250 /* two kill(2) calls, of keeper and worker, come closer than this */

void spare_init(struct fs *fs)
{
	void *page = mmap(NULL, sizeof(*fs->procs.keepers), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	fs->procs.keepers = page == MAP_FAILED ? NULL : page;
	if (pipe2(fs->procs.alive, O_CLOEXEC))
		fs->procs.alive[0] = fs->procs.alive[1] = -1;
}

void keeper_sign(struct fs *fs)
{
	char who[PATH_MAX + 160];

	io_store_lock_pid(fs->store, (int)getpid());
	snprintf(who, sizeof(who), "cairnfs with pid %d, which serves the store as host %s at %s",
		 (int)getpid(), fs->procs.host, fs->o.mountpoint);
	staging_place_sign(&fs->place, who);
}

/* ---- in the worker ---- */

bool keeper_is_there(const struct fs *fs)
{
	struct pollfd p = {.fd = fs->procs.alive[0]};
	/* keeper and spare hold the other end open */
	return fs->procs.alive[0] < 0 || poll(&p, 1, 0) <= 0 || !(p.revents & (POLLHUP | POLLERR));
}

static void answer(struct fs *fs, int asks)
{
	char text[128];

	snprintf(text, sizeof(text),
		 LEVEL_WARNING "the keeper (pid %d) is gone; its spare (pid %d) has taken over",
		 (int)fs->procs.keeper_pid, asks);
	fs->procs.keeper_pid = asks;
	fs_notice(fs, text);
	if (write(fs->procs.life_fd, "1", 1) != 1)
		fs_log(LEVEL_ERROR "the spare keeper is gone too");
}

void keeper_look(struct fs *fs)
{
	int asks = fs->procs.keepers ? atomic_load(&fs->procs.keepers->asks) : 0;

	if (asks && asks != fs->procs.keeper_pid)
		answer(fs, asks);
	if (atomic_load(&fs->procs.keeper_gone) || keeper_is_there(fs))
		return;
	atomic_store(&fs->procs.keeper_gone, true);
	fs_notice(fs, LEVEL_ERROR
		  "the keeper and its spare are gone; this worker continues, but nothing "
		  "restarts it if it dies: unmount and start again when you can");
	io_store_lock_pid(fs->store, (int)getpid());
}

void worker_exit(struct fs *fs, int code)
{
	fs_log_end();
	if (fs->procs.keepers)
		atomic_store(&fs->procs.keepers->exited, code + 1);
	_exit(code);
}

unsigned keepers_replaced(const struct fs *fs)
{
	return fs->procs.keepers ? atomic_load(&fs->procs.keepers->replaced) : 0;
}

/* ---- in the spare ---- */

/* Returns when this process has become the keeper. */
static void wait_as_spare(struct fs *fs, int life, int parent)
{
	bool ended = false, seen = false;

	for (;;) {
		struct pollfd p = {.fd = ended ? -1 : life, .events = POLLIN};
		char c;
		int n = poll(&p, 1, LOOK_MS);
		bool orphan = getppid() != parent;
		ssize_t got = n > 0 ? read(life, &c, 1) : -1;

		if (got > 0)
			return; /* the answer */
		ended |= got == 0;
		if (!orphan)
			continue;
		if (ended && atomic_load(&fs->procs.keepers->exited))
			return;
		if (ended)
			_exit(0); /* keeper and worker were killed */
		if (n == 0 && seen)
			atomic_store(&fs->procs.keepers->asks, (int)getpid());
		seen |= n == 0;
	}
}

pid_t spare_start(struct fs *fs, int life, bool *adopted)
{
	for (;;) {
		int parent = (int)getpid();
		pid_t pid = fs->procs.keepers ? fork() : -1;

		if (pid)
			return pid;
		prctl(PR_SET_NAME, "cairnfs-spare");
		wait_as_spare(fs, life, parent);
		prctl(PR_SET_NAME, "cairnfs");
		*adopted = true;
		atomic_fetch_add(&fs->procs.keepers->replaced, 1);
		fs->procs.keeper_pid = (int)getpid();
		keeper_sign(fs);
	}
}

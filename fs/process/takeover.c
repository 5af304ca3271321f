/* SPDX-License-Identifier: MIT
 * A start where a killed cairnfs left its mount: the new mount takes the place of the dead one. The
 * directory under both must not be seen meanwhile: a file that a program makes there is hidden by
 * the new mount, and never reaches the store.
 */
#include "fs/process/process.h"
#include "io/mounts/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Linux 5.2, which glibc has since 2.36; the numbers are the same on all but alpha. */
#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#endif
#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#define MOVE_MOUNT_F_EMPTY_PATH 0x4
#define MOVE_MOUNT_T_EMPTY_PATH 0x40
#endif
#ifndef MOVE_MOUNT_BENEATH /* Linux 6.5 */
#define MOVE_MOUNT_BENEATH 0x200
#endif

#define DYING_S 60 /* a killed worker exits when the disk has answered */

enum { ALIVE, DEAD, NO_ANSWER };

/* Asks for something that the kernel does not cache. A daemon that is dying may not answer for
 * long, so a child process asks. */
static int ask_daemon(const char *path)
{
	struct statx x;
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		int err = statx(AT_FDCWD, path,
				AT_STATX_FORCE_SYNC | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT,
				STATX_MTIME, &x)
				  ? errno
				  : 0;
		_exit(err == ENOTCONN || err == ECONNABORTED || err == ECONNREFUSED ? DEAD : ALIVE);
	}
	for (int i = 0; pid > 0 && i < DYING_S * 100; i++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return WIFEXITED(status) ? WEXITSTATUS(status) : ALIVE;
		sleep_ms(10);
	}
	if (pid > 0)
		kill(pid, SIGKILL);
	return NO_ANSWER;
}

/* -EINVAL: another process unmounted it. */
static int unmount_dead(const char *path)
{
	int status = -1;
	if (geteuid() == 0)
		return umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) ? -errno : 0;
	pid_t pid = fork();
	if (pid == 0) {
		execlp("fusermount3", "fusermount3", "-u", "-z", "--", path, (char *)NULL);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -errno;
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -EPERM;
}

static int tell(const char *path, int err)
{
	if (err)
		fprintf(stderr,
			"cairnfs: %s was left mounted by a cairnfs that was killed: %s; unmount it "
			"as its owner: umount -l %s\n",
			path, strerror(-err), path);
	else
		fprintf(stderr,
			"cairnfs: %s was left mounted by a cairnfs that was killed; taken over\n",
			path);
	return err;
}

/* Whether the mount under the topmost one at path is a cairnfs, too. */
static bool another_below(const char *path)
{
	struct io_mounts m;
	const char *type = "";
	unsigned seen = 0;

	if (io_mounts_read(IO_MOUNTS_HERE, &m))
		return false;
	for (size_t i = m.n; i-- > 0 && seen < 2;)
		if (!strcmp(m.v[i].point, path)) {
			type = m.v[i].fstype;
			seen++;
		}
	bool found = seen == 2 && !strcmp(type, "fuse.cairnfs");
	io_mounts_free(&m);
	return found;
}

/* As takeover_look(), or -EAGAIN: unmounted one. */
static int look_at_top(const char *path)
{
	char type[32];

	if (mountpoint_top(path, type, sizeof(type)) || strcmp(type, "fuse.cairnfs"))
		return 0;
	switch (ask_daemon(path)) {
	case ALIVE: return 0; /* options.c reports that it is busy */
	case NO_ANSWER:
		fprintf(stderr,
			"cairnfs: the cairnfs that is mounted at %s does not answer; end it (kill "
			"-9), then start again\n",
			path);
		return -EBUSY;
	}
	if (!another_below(path))
		return 1;
	int err = unmount_dead(path);
	return err && err != -EINVAL ? tell(path, err) : -EAGAIN;
}

int takeover_look(const char *mnt)
{
	char *path = mountpoint_resolve(mnt);
	int found = path ? -EAGAIN : 0;

	while (found == -EAGAIN)
		found = look_at_top(path);
	free(path);
	return found;
}

/* ---- as root ---- */

static int open_tree_at(const char *path)
{
	long fd = syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | O_CLOEXEC);
	return fd < 0 ? -errno : (int)fd;
}

struct aside {
	const char *path;
	int (*mount)(void *);
	void *arg;
	bool called; /* mount was */
	int err; /* its error, or why it was not called */
	int tree; /* the new mount, nowhere mounted yet */
	int bare; /* the directory under the dead mount */
};

/* A mount namespace of this thread's own, without the dead mount. */
static int unmount_aside(struct aside *a)
{
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    umount2(a->path, MNT_DETACH | UMOUNT_NOFOLLOW))
		return -errno;
	int probe = open_tree_at(a->path);
	if (probe < 0)
		return probe;
	close(probe);
	a->bare = open(a->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return 0;
}

/* A thread: it mounts the new one where the dead one was. */
static void *mount_aside(void *arg)
{
	struct aside *a = arg;

	a->err = unmount_aside(a);
	if (a->err)
		return NULL;
	a->called = true;
	a->err = a->mount(a->arg);
	if (!a->err)
		a->tree = open_tree_at(a->path);
	return NULL;
}

static int move_tree(int tree, int to, const char *path, unsigned flags)
{
	return syscall(SYS_move_mount, tree, "", to, path, MOVE_MOUNT_F_EMPTY_PATH | flags) ? -errno
											    : 0;
}

/* By the descriptor of its root, because another mount may be on top at the path by now. */
static int unmount_root(int root)
{
	char name[48];

	snprintf(name, sizeof(name), "/proc/self/fd/%d", root);
	/* EINVAL: another process unmounted it */
	return umount2(name, MNT_DETACH) && errno != EINVAL ? -errno : 0;
}

/* Beneath the dead mount, which then is unmounted. */
static int put_in_place(const struct aside *a, int dead)
{
	int err = move_tree(a->tree, dead, "", MOVE_MOUNT_T_EMPTY_PATH | MOVE_MOUNT_BENEATH);

	if (!err)
		return unmount_root(dead);
	/* An older kernel: the directory takes no files while it can be seen. */
	bool guarded = a->bare >= 0 && !mountpoint_immutable(a->bare, true);
	err = unmount_root(dead);
	if (!err && (err = move_tree(a->tree, AT_FDCWD, a->path, 0)))
		return err; /* it stays so, without a mount */
	if (guarded)
		mountpoint_immutable(a->bare, false);
	return err;
}

/* -EAGAIN: it cannot be done here, and nothing is changed. */
static int replace(const char *path, int (*mount)(void *), void *arg)
{
	struct aside a = {.path = path, .mount = mount, .arg = arg, .tree = -1, .bare = -1};
	pthread_t thread;
	int dead = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int err = dead < 0 ? -errno : -pthread_create(&thread, NULL, mount_aside, &a);

	if (!err) {
		pthread_join(thread, NULL);
		err = a.err;
	}
	if (a.called && !err)
		err = tell(path, a.tree < 0 ? a.tree : put_in_place(&a, dead));
	else if (!a.called && (err == -EPERM || err == -ENOSYS || err == -EINVAL))
		err = -EAGAIN; /* an older kernel, a seccomp profile, a chroot */
	else if (!a.called)
		tell(path, err);
	for (int i = 0; i < 3; i++) {
		int fd = i == 0 ? dead : i == 1 ? a.tree : a.bare;
		if (fd >= 0)
			close(fd);
	}
	return err;
}

int takeover_mount(const char *path, int (*mount)(void *), void *arg)
{
	int err = geteuid() ? -EAGAIN : replace(path, mount, arg);

	if (err != -EAGAIN)
		return err;
	err = unmount_dead(path);
	if (tell(path, err == -EINVAL ? 0 : err))
		return err;
	return mount(arg);
}

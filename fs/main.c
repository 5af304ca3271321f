/* SPDX-License-Identifier: MIT
 * Read first. The whole life in one screen: parse, open the store (one cairnfs a
 * store), open staging, mount, and keep a worker answering until the unmount.
 *
 * A write, from the trainer to durable:
 *   write → kernel → page of a staged file │ close → close.c: op_flush, op_release
 *   → staging_seal (log) → persist.c → io_write_file (ring) → store file
 *   → publish.c (in order) → durable
 */
#include "fs/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

static struct fs the_fs = {.log_lock = PTHREAD_MUTEX_INITIALIZER};

/* stderr in the foreground; else syslog and STORE/.cairn/<host>/log. */
void fs_log(const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&the_fs.log_lock);
	int err = the_fs.log_fd < 0 ? 2 : the_fs.err_fd;
	if (err >= 0)
		dprintf(err, "cairnfs: %s\n", text);
	pthread_mutex_unlock(&the_fs.log_lock);
	if (the_fs.log_fd < 0)
		return;
	char line[1200], when[32];
	time_t now = time(NULL);
	struct tm tm;
	strftime(when, sizeof(when), "%F %T", localtime_r(&now, &tm));
	int n = snprintf(line, sizeof(line), "%s [%d] %s\n", when, (int)getpid(), text);
	if (write(the_fs.log_fd, line, (size_t)n) != n)
		syslog(LOG_DAEMON | LOG_NOTICE, "%s", text);
}

static int explain_store(const struct fs_opts *o, int rc, int pid)
{
	if (rc == -EWOULDBLOCK)
		fprintf(stderr, "cairnfs: the store %s is already served by cairnfs with pid %d (it may still be draining); "
			"wait for it, or end it with: kill %d\n", o->store, pid, pid);
	else
		fprintf(stderr, "cairnfs: cannot open the store %s: %s; check its permissions and room\n", o->store,
			strerror(-rc));
	return 1;
}

static int explain_staging(const struct fs_opts *o, int rc)
{
	const char *where = o->staging_dir ? o->staging_dir : geteuid() ? "/dev/shm" : "/run/cairnfs";
	if (rc == -EWOULDBLOCK)
		fprintf(stderr, "cairnfs: staging for %s below %s is in use by another cairnfs; wait until it has ended\n",
			o->store, where);
	else if (rc == -ENOTSUP)
		fprintf(stderr, "cairnfs: staging_dir %s is not on a tmpfs, and only root can mount one there; "
			"give a directory below /dev/shm\n", where);
	else
		fprintf(stderr, "cairnfs: cannot make staging below %s: %s\n", where, strerror(-rc));
	return 1;
}

/* Waits for an earlier cairnfs on this store that is only draining any more. */
static int open_store(struct fs *fs)
{
	int pid = 0, rc = 0;
	for (int tries = 0; tries < 50; tries++) {
		rc = io_store_open(fs->engine, fs->o.store, fs->o.ro, &pid, &fs->store);
		if (rc != -EWOULDBLOCK || (pid > 0 && kill(pid, 0) == 0 && tries > 20))
			break;
		struct timespec t = {.tv_nsec = 100000000};
		nanosleep(&t, NULL);
	}
	return rc ? explain_store(&fs->o, rc, pid) : 0;
}

/* Staged data may pass the budget while the watch catches up: the tmpfs has headroom. */
static uint64_t tmpfs_limit(const struct fs_opts *o)
{
	struct sysinfo si;
	uint64_t all = sysinfo(&si) ? 0 : (uint64_t)si.totalram * si.mem_unit, half = all / 2;
	return o->staging_bytes + half > all / 10 * 9 ? (o->staging_bytes > all / 10 * 9 ? o->staging_bytes : all / 10 * 9)
						      : o->staging_bytes + half;
}

static int open_place(struct fs *fs)
{
	char id[64];
	int rc = 0;
	snprintf(id, sizeof(id), "%s", io_store_id(fs->store));
	if (fs->o.ro)
		snprintf(id, sizeof(id), "ro-%d", (int)getpid());
	for (int tries = 0; tries < 100; tries++) {
		rc = staging_place_open_on(fs->o.numa - 1, fs->o.staging_dir, id, tmpfs_limit(&fs->o), &fs->place);
		if (rc != -EWOULDBLOCK)
			break;
		struct timespec t = {.tv_nsec = 100000000};
		nanosleep(&t, NULL);
	}
	return rc ? explain_staging(&fs->o, rc) : 0;
}

void to_background(struct fs *fs)
{
	int host = io_store_tmp(fs->store);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	setsid();
	fs->log_fd = -1;
	if (host >= 0)
		fs->log_fd = openat(host, "../log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	fs->err_fd = fcntl(2, F_DUPFD_CLOEXEC, 3);
	if (null >= 0) {	/* else a strange machine: the terminal stays ours */
		if (fs->log_fd < 0)
			fs->log_fd = dup(null);
		for (int fd = 0; fd < 3; fd++)
			dup2(null, fd);
		close(null);
	}
	if (chdir("/"))
		return;
}

/* The parent's end: 0 once the mount answers, else the child's own exit. */
static int wait_ready(int fd, pid_t child)
{
	char c;
	int status;
	ssize_t n;
	do {
		n = read(fd, &c, 1);
	} while (n < 0 && errno == EINTR);
	if (n == 1)
		return 0;
	if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status))
		return WEXITSTATUS(status);
	return 1;
}

static int serve(struct fs *fs, struct fuse_args *rest)
{
	io_store_lock_pid(fs->store, (int)getpid());
	fs->keeper_pid = (int)getpid();
	int rc = keeper_run(fs, rest);
	io_store_close(fs->store);
	io_engine_close(fs->engine);
	return rc;
}

int main(int argc, char **argv)
{
	struct fs *fs = &the_fs;
	struct fuse_args rest = FUSE_ARGS_INIT(0, NULL);
	int pipe_fd[2];

	fs->log_fd = fs->err_fd = fs->ready_fd = -1;
	fs->uid = geteuid();
	pthread_mutex_init(&fs->lock, NULL);
	pthread_mutex_init(&fs->notice_lock, NULL);
	pthread_mutex_init(&fs->fork_lock, NULL);
	pthread_mutex_init(&fs->read_lock, NULL);
	pthread_mutex_init(&fs->ticket_lock, NULL);
	pthread_cond_init(&fs->busy_cond, NULL);
	pthread_cond_init(&fs->fork_cond, NULL);
	pthread_cond_init(&fs->read_cond, NULL);
	pthread_cond_init(&fs->ticket_cond, NULL);
	signal(SIGXFSZ, SIG_IGN);	/* a limit of the shell's (ulimit -f) is an error of that file */
	if (options_parse(argc, argv, &fs->o, &rest))
		return 1;
	if (access("/dev/fuse", R_OK | W_OK)) {
		fprintf(stderr, "cairnfs: /dev/fuse: %s; %s\n", strerror(errno), errno == EACCES ?
			"it must be yours to read and write (mode 0666 is usual)" :
			"load the fuse module (modprobe fuse), and in a container pass the device in");
		return 1;
	}
	struct io_engine_opts eo = {.kind = fs->o.engine ? fs->o.engine : "uring", .depth = fs->o.queue_depth,
				    .fault = getenv(IO_FAULT_ENV)};
	int rc = io_engine_open(&eo, fs_notice, fs, &fs->engine);
	if (rc) {
		fprintf(stderr, "cairnfs: the I/O engine does not start: %s\n", strerror(-rc));
		return 1;
	}
	if (open_store(fs) || open_place(fs))
		return 1;
	if (pipe2(pipe_fd, O_CLOEXEC))
		return 1;
	fs->ready_fd = pipe_fd[1];
	if (fs->o.foreground)
		return serve(fs, &rest);
	pid_t child = fork();
	if (child < 0) {
		fprintf(stderr, "cairnfs: fork: %s\n", strerror(errno));
		return 1;
	}
	if (child) {
		close(pipe_fd[1]);
		staging_place_close(&fs->place);	/* the child may have to unmount it */
		return wait_ready(pipe_fd[0], child);
	}
	close(pipe_fd[0]);
	return serve(fs, &rest);
}

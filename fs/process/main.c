/* SPDX-License-Identifier: MIT
 * Read first. The life of the program: parse options, open the store (one cairnfs a store), open
 * staging, mount, keep a worker running until the unmount.
 *
 * A write, from the trainer to durable:
 *   write → kernel → page of a staged file │ close → close.c: op_flush, op_release
 *   → staging_seal (log) → persist.c → io_write_file (ring) → store file
 *   → publish.c (in order) → durable
 */
#include "fs/process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PF_EXITING 4u /* include/linux/sched.h; a flag in /proc/PID/stat */
#define ENDING_TRIES 600 /* of 100 ms */

#include "staging/memory/pin.h"

static struct fs the_fs;

static const char *staging_above(const struct fs_opts *o)
{
	return o->staging_dir ? o->staging_dir : geteuid() ? "/dev/shm" : "/run/cairnfs";
}

static void explain_lock(const struct fs_opts *o, int pid)
{
	char at[PATH_MAX];

	if (!mountpoint_of_store(o->store, pid, at, sizeof(at)))
		fprintf(stderr,
			"cairnfs: the store %s is already served by cairnfs with pid %d, at %s; "
			"use that mount, or end it first: cairn umount %s\n",
			o->store, pid, at, at);
	else
		fprintf(stderr,
			"cairnfs: the store %s is already served by cairnfs with pid %d (it may "
			"still be draining); wait for it, or end it with: kill %d\n",
			o->store, pid, pid);
}

static int explain_store(const struct fs_opts *o, int err, int pid)
{
	if (err == -EWOULDBLOCK)
		explain_lock(o, pid);
	else if (err == -EADDRINUSE)
		fprintf(stderr,
			"cairnfs: another cairnfs serves the store %s as a host of this name, from "
			"another machine or by another mount of the store; nothing was touched. "
			"Each needs a name of its own: mount it with -o host=NAME; `cairn hosts "
			"%s` lists those that are there\n",
			o->store, o->store);
	else if (err == -EPERM && !geteuid())
		fprintf(stderr,
			"cairnfs: %s/.cairn, or what is in it, belongs to another user than root "
			"or can be written by others, who could change unpublished files; look "
			"into it, then: chown -R root %s/.cairn && chmod -R go-rwx %s/.cairn. If "
			"that changes nothing, the filesystem keeps no owners and modes: mount it "
			"so that only root may write, as with its option umask=077\n",
			o->store, o->store, o->store);
	else if (err == -EOPNOTSUPP)
		fprintf(stderr,
			"cairnfs: the filesystem of the store %s has neither hard links nor "
			"renames that replace nothing (RENAME_NOREPLACE), and cairnfs cannot claim "
			"the store without one of them\n",
			o->store);
	else if (err == -EBADMSG)
		fprintf(stderr,
			"cairnfs: %s/.cairn/id is damaged (not 32 hexadecimal digits); nothing was "
			"touched. What is staged for the store is in a directory of that name "
			"below %s: write the name into the file. If there is none, remove the "
			"file: the store gets another id\n",
			o->store, staging_above(o));
	else
		fprintf(stderr, "cairnfs: cannot open the store %s: %s%s\n", o->store,
			strerror(-err),
			limit_hint(err)[0] ? limit_hint(err) : "; check its permissions and space");
	return 1;
}

/* Under the same name of the host the store's own lock would have been refused. */
static void explain_served(const struct fs *fs, const char *where)
{
	char who[PATH_MAX + 160];

	staging_place_holder(fs->o.staging_dir, io_store_id(fs->store), who, sizeof(who));
	fprintf(stderr,
		"cairnfs: staging for %s below %s is in use by %s (it may still be draining); a "
		"machine mounts a store once, whatever host= says: use that mount, or end it "
		"first: cairn umount\n",
		fs->o.store, where, who[0] ? who : "another cairnfs");
}

static int explain_staging(const struct fs *fs, int err)
{
	const struct fs_opts *o = &fs->o;
	const char *where = staging_above(o);
	if (err == -EWOULDBLOCK)
		explain_served(fs, where);
	else if (err == -ENOTSUP)
		fprintf(stderr,
			"cairnfs: staging_dir %s is not on a tmpfs, and only root can mount one "
			"there; give a directory below /dev/shm\n",
			where);
	else if (err == -EPERM)
		fprintf(stderr,
			"cairnfs: staging below %s: it, or what is there by the store's id, "
			"belongs to another user or can be written by others; give a directory "
			"that only you can write: -o staging_dir=DIR\n",
			where);
	else if (err == -EACCES || err == -EROFS)
		fprintf(stderr,
			"cairnfs: cannot make staging below %s: %s; give a directory of your own, "
			"on a tmpfs such as /dev/shm: -o staging_dir=DIR\n",
			where, strerror(-err));
	else
		fprintf(stderr, "cairnfs: cannot make staging below %s: %s\n", where,
			strerror(-err));
	return 1;
}

/* Whether pid has exited, or was killed and is exiting; then it closes the store soon. */
static bool is_ending(int pid)
{
	char path[48], line[1024] = "", state = 0;
	unsigned flags = 0;
	unsigned long long pending = 0, shared = 0;

	if (kill(pid, 0) && errno == ESRCH)
		return true;
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *f = fopen(path, "re");
	const char *rest = f && fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
	if (f)
		fclose(f);
	if (rest && sscanf(rest, ") %c %*d %*d %*d %*d %*d %u", &state, &flags) == 2 &&
	    (state == 'Z' || state == 'X' || flags & PF_EXITING))
		return true;
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "SigPnd: %llx", &pending) != 1)
			sscanf(line, "ShdPnd: %llx", &shared);
	if (f)
		fclose(f);
	return (pending | shared) >> (SIGKILL - 1) & 1;
}

/* Whether to ask again who has the claim: until its heartbeat moves, or was still for so long that
 * it is dead. A machine that starts again, or a container that was moved, is no other. */
static bool may_be_dead(const struct fs_opts *o, int64_t heard)
{
	static int64_t first;
	static int asked;

	if (!asked++) {
		first = heard;
		fprintf(stderr,
			"cairnfs: a host of this name serves the store %s from another machine, or "
			"by another mount of the store, or did moments ago; waiting up to %d s to "
			"see whether it still does\n",
			o->store, IO_HOST_LIVE_S);
	}
	if (heard != first || asked > IO_HOST_LIVE_S + 2)
		return false;
	sleep_ms(1000);
	return true;
}

/* Waits for an earlier cairnfs on this store that only drains any more, or that was killed and has
 * not exited: a thread inside a sync exits when the disk has answered. */
static int open_store(struct fs *fs)
{
	struct io_served by;
	int err = 0;

	for (int tries = 0; tries < ENDING_TRIES; tries++) {
		err = io_store_open(fs->engine, fs->o.store, fs->o.ro, fs->o.host, &by, &fs->store);
		if (err == -EADDRINUSE && may_be_dead(&fs->o, by.of.heard))
			continue;
		if (err != -EWOULDBLOCK ||
		    (by.pid > 0 ? !is_ending(by.pid) && tries > 20 : tries > 50))
			break;
		sleep_ms(100);
	}
	if (!err)
		fstat(io_store_root(fs->store), &fs->root_seen);
	return err ? explain_store(&fs->o, err, by.pid) : 0;
}

/* Less than was asked for. */
static void give_staging(struct fs_opts *o, uint64_t most)
{
	if (!o->staging_asked)
		o->staging_asked = o->staging_bytes;
	o->staging_bytes = most;
	if (o->pool_bytes > most)
		o->pool_bytes = most;
}

/* Staging is charged to this process's memory cgroup, whose limit would kill it. A quarter of the
 * limit, and DAEMON_BYTES at least, is left for growing files, other memory of the process and the
 * page cache. */
static int fit_cgroup(struct fs_opts *o)
{
	char where[256];
	uint64_t limit = pin_cgroup_limit(NULL, where);
	uint64_t left = limit / 4 > DAEMON_BYTES ? limit / 4 : DAEMON_BYTES;

	if (limit == UINT64_MAX || o->ro || (limit > left && o->staging_bytes <= limit - left))
		return 0;
	if (limit < left + STAGING_MIN) {
		fprintf(stderr,
			"cairnfs: the memory cgroup %s allows %llu KiB, which is too little: "
			"cairnfs needs %u MiB, and %u MiB or more for staging; raise its limit "
			"(memory.max, MemoryMax=), or start cairnfs outside it\n",
			where, (unsigned long long)limit >> 10, DAEMON_BYTES >> 20,
			STAGING_MIN >> 20);
		return 1;
	}
	give_staging(o, limit - left);
	return 0;
}

/* A tmpfs that is not ours has the size that it has, and others fill it, too. A quarter is left for
 * them, for growing files and for the log. */
static int fit_tmpfs(struct fs *fs)
{
	uint64_t size = staging_place_limit(&fs->place), most = size / 4 * 3;

	if (!size || fs->o.ro || fs->o.staging_bytes <= most)
		return 0;
	if (most < STAGING_MIN) {
		fprintf(stderr,
			"cairnfs: staging for %s: the tmpfs of %s has %llu KiB, which is too "
			"little; make it larger (a container's --shm-size), or give another "
			"directory: -o staging_dir=DIR\n",
			fs->o.store, fs->place.path, (unsigned long long)size >> 10);
		return 1;
	}
	give_staging(&fs->o, most);
	fs->o.tmpfs_bytes = size;
	return 0;
}

/* Staged data may exceed the budget until the watch reacts: the tmpfs has headroom. */
static uint64_t tmpfs_limit(const struct fs_opts *o)
{
	uint64_t all = pin_memory(), half = all / 2;
	return o->staging_bytes + half > all / 10 * 9
		       ? (o->staging_bytes > all / 10 * 9 ? o->staging_bytes : all / 10 * 9)
		       : o->staging_bytes + half;
}

static int explain_format(const struct fs_opts *o, const struct staging_found *l)
{
	if (l->program[0])
		fprintf(stderr,
			"cairnfs: what is staged for %s in %s was written by cairnfs %s, in a "
			"format that this version (%s) does not know; nothing was touched. Mount "
			"the store with cairnfs %s and unmount it again: that publishes what is "
			"staged\n",
			o->store, l->path, l->program, CAIRN_VERSION, l->program);
	else
		fprintf(stderr,
			"cairnfs: the head of what is staged for %s in %s is damaged; nothing was "
			"touched. Copy what you need out of there; the store is served again when "
			"that directory is gone\n",
			o->store, l->path);
	return 1;
}

/* The store is a copy of the one that this staging area belongs to: leaves the area to the
 * original. */
static int leave_to_original(struct fs *fs, const struct staging_found *l)
{
	char text[2048];
	int err = io_store_new_id(fs->store);

	if (err) {
		fprintf(stderr, "cairnfs: %s is a copy of %s, and cannot be given its own id: %s\n",
			fs->o.store, l->store, strerror(-err));
		return err;
	}
	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "%s is a copy of the store %s and was given its own id; what is staged in %s "
		 "stays for the original",
		 fs->o.store, l->store[0] ? l->store : "that had its id", l->path);
	fs_notice(fs, text);
	return 0;
}

/* Before anything is changed: whether the staging area of this store's id may be used. */
static int look_at_place(struct fs *fs)
{
	struct staging_found l;
	int err = fs->o.ro ? 0 : staging_look(fs->o.staging_dir, fs->store, &l);

	if (err == -EPROTONOSUPPORT)
		return explain_format(&fs->o, &l);
	return err == -EXDEV && leave_to_original(fs, &l) ? 1 : 0;
}

static void notice_place(struct fs *fs)
{
	const char *at = fs->place.path, *first = staging_above(&fs->o);
	char text[1024];

	if (fs->place.instead_of)
		snprintf(text, sizeof(text),
			 "staging is in %s, because it cannot be in %s: %s; keep it until the next "
			 "start",
			 at, first, strerror(-fs->place.instead_of));
	else
		snprintf(text, sizeof(text),
			 "staging is in %s, where it was already, not in %s; keep it until the "
			 "next start",
			 at, first);
	fs_notice(fs, text);
}

/* A kill of all of cairnfs, and of what keeps its mount namespace or container, is a power cut for
 * what is staged. */
static void notice_end(struct fs *fs)
{
	enum staging_ends ends = fs->o.ro ? STAGING_LASTS : staging_place_ends(&fs->place);
	bool is_namespace = ends == STAGING_ENDS_WITH_NAMESPACE;
	char text[1024];

	if (ends == STAGING_LASTS)
		return;
	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "staging in %s ends with this %s: if all of cairnfs is killed with it, what is "
		 "closed and not in the store yet is lost; %s",
		 fs->place.path, is_namespace ? "mount namespace" : "container",
		 !is_namespace ? "give it a memory volume at /dev/shm, and a read-only /run"
		 : staging_place_outlives("/dev/shm")
			 ? "start it outside, or with -o staging_dir=/dev/shm"
			 : "start it outside");
	fs_notice(fs, text);
}

static int open_place(struct fs *fs)
{
	char id[64];
	int err = 0;

	if (fs->place.path[0]) /* place_first() has */
		return 0;
	for (int tries = 0; tries < 100; tries++) {
		if (look_at_place(fs))
			return 1;
		snprintf(id, sizeof(id), "%s", io_store_id(fs->store));
		if (fs->o.ro)
			snprintf(id, sizeof(id), "ro-%d", (int)getpid());
		err = staging_place_open(fs->o.numa - 1, fs->o.staging_dir, id, tmpfs_limit(&fs->o),
					 &fs->place);
		if (err != -EWOULDBLOCK)
			break;
		sleep_ms(100);
	}
	if (!err && !fs->o.staging_dir && !staging_place_is_first(&fs->place))
		notice_place(fs);
	if (err)
		return explain_staging(fs, err);
	err = fit_tmpfs(fs);
	if (err)
		staging_place_give_up(&fs->place);
	else
		notice_end(fs);
	return err;
}

/* A host that the store does not know takes staging first: the start may be refused for it, and
 * must not have made a host that others count, and whose shards a commit waits for. */
static int place_first(struct fs *fs)
{
	struct staging_found l;
	struct io_store *s;
	int err = 0;

	if (fs->o.ro || io_store_open(fs->engine, fs->o.store, true, NULL, NULL, &s))
		return 0; /* open_store() says why */
	fs->store = s;
	if (io_store_id(s)[0] && !io_store_has_host(s, fs->o.host) &&
	    !staging_look(fs->o.staging_dir, s, &l))
		err = open_place(fs);
	fs->store = NULL;
	io_store_close(s);
	return err;
}

/* The store, and its staging. 1: refused, with a message. */
static int open_both(struct fs *fs)
{
	if (place_first(fs))
		return 1;
	if (open_store(fs)) {
		if (fs->place.path[0])
			staging_place_give_up(&fs->place);
		return 1;
	}
	if (!open_place(fs))
		return 0;
	io_store_forget_host(fs->store);
	return 1;
}

/* After open_both(). Always 1. */
static int give_up(struct fs *fs)
{
	io_store_forget_host(fs->store);
	staging_place_give_up(&fs->place);
	return 1;
}

/* The parent: returns 0 once the mount answers, else the child's exit code. */
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
	fs->procs.keeper_pid = (int)getpid();
	fs->procs.mounted_ns = monotonic_ns();
	if (fs->o.host)
		snprintf(fs->procs.host, sizeof(fs->procs.host), "%s", fs->o.host);
	else
		gethostname(fs->procs.host, sizeof(fs->procs.host) - 1);
	keeper_sign(fs);
	int err = keeper_run(fs, rest);
	io_store_close(fs->store);
	io_engine_close(fs->engine);
	return err;
}

/* If started without standard descriptors: else the store's would be 0 to 2, which are closed
 * later. */
static void fill_standard_fds(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
	} while (fd >= 0 && fd <= 2);
	if (fd > 2)
		close(fd);
}

#ifdef CAIRN_FAULTS
#include <execinfo.h>

static int report_fd = -1;

static void check_unlocked(void *fs)
{
	void *stack[32];
	if (!tree_is_locked_here(fs))
		return;
	dprintf(report_fd, "the store is asked or changed with the tree lock held:\n");
	backtrace_symbols_fd(stack, backtrace(stack, 32), report_fd);
}

/* Reports to this file; opened now, because the worker cannot open it. */
static void check_start(struct fs *fs)
{
	const char *path = getenv("CAIRNFS_REPORT");
	if (path && (report_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) >= 0)
		fs->check = check_unlocked;
}

/* CAIRNFS_PARSER_FAULT=WHAT:N, for the Nth parser. */
static char parser_does[16];
static unsigned parser_nth;

static void parser_fault(unsigned nth)
{
	if (nth != parser_nth)
		return;
	if (!strcmp(parser_does, "crash"))
		__builtin_trap();
	if (!strcmp(parser_does, "open"))
		open("/etc/passwd", O_RDONLY);
	if (!strcmp(parser_does, "socket"))
		socket(AF_UNIX, SOCK_STREAM, 0);
	while (!strcmp(parser_does, "nonsense"))
		if (write(0, parser_does, sizeof(parser_does)) < 0)
			_exit(1);
	/* a page of each: all of them take longer on a busy machine than a parser may */
	while (!strcmp(parser_does, "memory"))
		*(volatile char *)malloc(1 << 20) = 1;
	while (!strcmp(parser_does, "loop"))
		;
}

static void parser_fault_start(struct fs *fs)
{
	const char *plan = getenv("CAIRNFS_PARSER_FAULT");
	if (plan && sscanf(plan, "%15[a-z]:%u", parser_does, &parser_nth) == 2)
		fs->parsers.fault = parser_fault;
}
#else
static void check_start(struct fs *fs)
{
	(void)fs;
}

static void parser_fault_start(struct fs *fs)
{
	(void)fs;
}
#endif

/* Only in the build for tests: the environment is the invoking user's. */
static const char *fault_plan(void)
{
#ifdef CAIRN_FAULTS
	return getenv(IO_FAULT_ENV);
#else
	return NULL;
#endif
}

static void init_locks(struct fs *fs)
{
	pthread_condattr_t monotonic; /* setting the clock must not change timeouts */

	lock_init(&fs->tree.lock, RANK_TREE);
	lock_init(&fs->hosts.lock, RANK_HOSTS);
	lock_init(&fs->notices.lock, RANK_NOTICES);
	lock_init(&fs->forks.lock, RANK_FORKS);
	lock_init(&fs->waits.lock, RANK_WAITS);
	lock_init(&fs->reading.lock, RANK_READING);
	lock_init(&fs->tickets.lock, RANK_TICKETS);
	lock_init(&fs->slots.lock, RANK_SLOTS);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&fs->tree.busy_cond, &monotonic);
	pthread_cond_init(&fs->waits.cond, &monotonic);
	pthread_cond_init(&fs->hosts.cond, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_cond_init(&fs->forks.cond, NULL);
	pthread_cond_init(&fs->reading.cond, NULL);
	pthread_cond_init(&fs->tickets.cond, NULL);
}

static int open_engine(struct fs *fs)
{
	struct io_engine_opts eo = {.kind = fs->o.engine_posix ? "posix" : "uring",
				    .depth = fs->o.queue_depth,
				    .fault = fault_plan()};
	int err = io_engine_open(&eo, fs_notice, fs, &fs->engine);
	if (err)
		fprintf(stderr, "cairnfs: the I/O engine does not start: %s%s\n", strerror(-err),
			limit_hint(err));
	return err;
}

/* What libfuse needs to mount. fusermount3, for users without privileges, wants their names. */
static int check_rights(void)
{
	if (access("/dev/fuse", R_OK | W_OK)) {
		fprintf(stderr, "cairnfs: /dev/fuse: %s; %s\n", strerror(errno),
			errno == EACCES ? "you need read and write permission on it (usual: 0666)"
					: "load the fuse module (modprobe fuse), and in a "
					  "container pass the device in");
		return 1;
	}
	if (trust_may_mount() || getpwuid(getuid()))
		return 0;
	fprintf(stderr,
		"cairnfs: user id %u has no name (getent passwd %u), and fusermount3 mounts only "
		"for users who have one; add a line for it to /etc/passwd (in a container: of its "
		"image), or mount as root\n",
		getuid(), getuid());
	return 1;
}

int main(int argc, char **argv)
{
	struct fs *fs = &the_fs;
	struct fuse_args rest = FUSE_ARGS_INIT(0, NULL);
	int pipe_fd[2];

	fill_standard_fds();
	/* what the caller has open, a lock or a pipe, would be held as long as the mount */
	close_range(3, ~0u, 0);
	fs->procs.ready_fd = -1;
	check_start(fs);
	parser_fault_start(fs);
	fs->uid = geteuid();
	init_locks(fs);
	/* who ignores it leaves that to its children, whose waitpid(2) then fails */
	signal(SIGCHLD, SIG_DFL);
	/* a limit of the shell (ulimit -f) then is an error for that file */
	signal(SIGXFSZ, SIG_IGN);
	if (options_parse(argc, argv, &fs->o, &rest))
		return 1;
	fs_log_level(fs->o.log_level);
	if (fit_cgroup(&fs->o))
		return 1;
	if (check_rights())
		return 1;
	if (open_engine(fs) || open_both(fs))
		return 1;
	if (pipe2(pipe_fd, O_CLOEXEC)) {
		fprintf(stderr, "cairnfs: pipe: %s%s\n", strerror(errno), limit_hint(-errno));
		return give_up(fs);
	}
	fs->procs.ready_fd = pipe_fd[1];
	if (fs->o.foreground)
		return serve(fs, &rest);
	pid_t child = fork();
	if (child < 0) {
		fprintf(stderr, "cairnfs: fork: %s%s\n", strerror(errno), limit_hint(-errno));
		return give_up(fs);
	}
	if (child) {
		close(pipe_fd[1]);
		staging_place_close(&fs->place); /* the child may have to unmount it */
		return wait_ready(pipe_fd[0], child);
	}
	close(pipe_fd[0]);
	return serve(fs, &rest);
}

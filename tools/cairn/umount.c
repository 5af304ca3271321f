/* SPDX-License-Identifier: MIT
 *
 * cairn umount: waits until everything is durable, unmounts, waits until the daemon has
 * ended. States of the command, each one function:
 *
 *	drain → unmount → gone → unlocked
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <spawn.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "commands.h"
#include "failed.h"
#include "io/goes_on.h"
#include "io/number.h"
#include "tools/cairn/tier/tier_where.h"

#define POLL_S 0.1
/* a process that has just exited releases its files a moment later */
#define BUSY_TRIES 10
#define GONE_NOTE_S 10.0
#define ELSEWHERE_S 1.0 /* before other mount namespaces are looked at */

extern char **environ;

struct unmounting {
	struct location p;
	char *point; /* outlives p, whose descriptors would keep the mount busy */
	int mount_id;
	unsigned dev_major, dev_minor;
	char *source; /* by which the mount table has it: the store */
	double deadline; /* 0 = none */
	struct progress bar;
	bool tier; /* wait for it, too */
	bool leaves; /* what waits for other nodes */
	bool refused; /* by the store, and said */
	int keeper, keeper_fd; /* the daemon; keeper_fd -1 = not visible from here */
	int lock_fd; /* of its store; -1 = not visible */
	int locked_by; /* the process that took it for the daemon; 0: an earlier version */
};

static uint64_t u64(const struct json_doc *d, const char *keys)
{
	return json_u64(d, json_at(d, 0, keys));
}

static bool late(const struct unmounting *u)
{
	return u->deadline && now_s() >= u->deadline;
}

/* ---- drain ---------------------------------------------------------------------- */

/* Does the daemon have no store at all? */
static bool complain_gone(struct unmounting *u, const struct json_doc *d)
{
	CLEANUP_FREE char *why = json_bytes(d, json_at(d, 0, "store_gone.error"));
	CLEANUP_FREE char *taker = json_bytes(d, json_at(d, 0, "store_gone.taker"));

	if (!why)
		return false;
	if (taker) {
		complain("%s stays mounted: another cairnfs serves the store as this host: %s; "
			 "unmount that one first, then what is staged here is published",
			 u->point, taker);
		return true;
	}
	progress_end(&u->bar);
	complain("%s stays mounted: the store is gone: %s", u->point, why);
	complain("it is opened again when it is back (one that became read-only: unmount its "
		 "filesystem, repair it, mount it again); nothing staged is lost meanwhile");
	return true;
}

/* Space does not help: the limit of who started cairnfs, or of the store's filesystem. */
static bool is_too_long(const char *why)
{
	return why && strstr(why, strerror(EFBIG));
}

static int complain_failed(struct unmounting *u, const struct json_doc *d)
{
	CLEANUP_FREE char *last = json_bytes(d, json_at(d, 0, "errors.last"));
	CLEANUP_FREE char *why = NULL;
	CLEANUP_FREE char *which = failed_files(&u->p, &why);
	char n[COUNT_ROOM];

	progress_end(&u->bar);
	complain("%s stays mounted: %s failed: %s", u->point,
		 count_of(u64(d, "versions.failed"), "file", n),
		 which	? which
		 : last ? last
			: "?");
	if (is_too_long(which ? why : last))
		complain(
			"see `cairn ls -l`; cairnfs may not write a file of that length: by the "
			"limit under which it was started (ulimit -f, LimitFSIZE=), or that of the "
			"store's filesystem; what failed is to be written again in parts, or given "
			"up by `cairn discard`");
	else
		complain("see `cairn ls -l`; free space and `cairn retry %s`; what stays failed "
			 "then is to be written again, or given up by `cairn discard`",
			 u->point);
	return CAIRN_FAILED;
}

static int complain_halted(struct unmounting *u, const struct json_doc *d)
{
	CLEANUP_FREE char *path = json_bytes(d, json_at(d, 0, "halted.path"));
	CLEANUP_FREE char *why = json_bytes(d, json_at(d, 0, "halted.error"));
	CLEANUP_FREE char *remedy = json_bytes(d, json_at(d, 0, "halted.remedy"));

	if (complain_gone(u, d))
		return CAIRN_FAILED;
	if (!path)
		return complain_failed(u, d);
	progress_end(&u->bar);
	complain("%s stays mounted: publication halted%s%s: %s", u->point, *path ? " at " : "",
		 path, why ? why : "?");
	complain("%s" GOES_ON " %s; nothing staged is lost meanwhile",
		 remedy ? remedy : "repair the store", u->point);
	return CAIRN_FAILED;
}

static int complain_kept(struct unmounting *u, const struct json_doc *d)
{
	char n[COUNT_ROOM], size[32], why[1024] = "";

	progress_end(&u->bar);
	xattr_of_fd(u->p.root, KEY_ERROR, why, sizeof(why));
	complain("%s stays mounted: %s never closed by an earlier run, %s, could not be moved to "
		 ".cairn/lost+found yet: %s",
		 u->point, count_of(u64(d, "recovered.kept"), "file", n),
		 human_bytes(u64(d, "recovered.kept_bytes"), size), *why ? why : "?");
	complain("%s" GOES_ON " %s; nothing staged is lost meanwhile",
		 is_too_long(why) ? "end cairnfs, start it without its limit of file sizes (ulimit "
				    "-f, LimitFSIZE=)"
				  : "free space in the store or repair it",
		 u->point);
	return CAIRN_FAILED;
}

static int complain_late(struct unmounting *u, const struct json_doc *d, uint64_t left)
{
	char size[32], n[COUNT_ROOM];

	progress_end(&u->bar);
	complain("%s stays mounted: %s and %s not durable yet", u->point, human_bytes(left, size),
		 count_of(u64(d, "log.pending"), "change", n));
	return CAIRN_TIMEOUT;
}

/* What delays the drain, or just that it runs. */
static char *drain_note(const struct json_doc *d)
{
	CLEANUP_FREE char *mapped = json_bytes(d, json_item(d, json_at(d, 0, "waiting_mapped"), 0));
	char *note = NULL;

	if (mapped && asprintf(&note, "%s is still mapped for writing", mapped) < 0)
		note = NULL;
	return note ? note : strdup("making durable");
}

static bool drained(const struct json_doc *d)
{
	return u64(d, "log.durable_seq") >= u64(d, "log.last_seq") && !u64(d, "versions.staged") &&
	       !u64(d, "versions.persisting");
}

/* What waits for other nodes may wait for ever. */
static void say_held(struct unmounting *u, const struct json_doc *d)
{
	struct held_text held;
	char n[COUNT_ROOM];

	if (held_of(u->point, d, &held))
		complain("%s: it and %s behind it stay in staging for the next start; %s",
			 held.what, count_of(u64(d, "holds.changes_behind"), "change", n),
			 held.remedy);
	else
		complain("%s stay in staging for the next start: they wait for another host",
			 count_of(u64(d, "holds.changes_behind"), "change", n));
	u->leaves = true;
}

/* What waits may have been removed a moment ago, or its files may have come: asked about once more,
 * and known then. */
static void ask_again(const struct unmounting *u)
{
	char value[64];

	xattr_of_fd(u->p.root, KEY_WAIT ".1000", value, sizeof(value));
}

static int drain(struct unmounting *u)
{
	for (bool asked = false;;) {
		CLEANUP_JSON struct json_doc *d = NULL;
		CLEANUP_FREE char *note = NULL;
		char pending[32];
		uint64_t left;
		int err = location_status(&u->p, &d);

		if (err)
			return complain_status(&u->p, err);
		watch_asks(json_is_null(d, json_at(d, 0, "store_silent")) ? NULL : u->source);
		if (!json_is_null(d, json_at(d, 0, "halted")) || u64(d, "versions.failed"))
			return complain_halted(u, d);
		if (u64(d, "recovered.kept"))
			return complain_kept(u, d);
		bool all = drained(d);
		if (!all && !asked && json_bool(d, json_at(d, 0, "holds.nothing_else_pending"))) {
			ask_again(u);
			asked = true;
			continue;
		}
		if (all || json_bool(d, json_at(d, 0, "holds.nothing_else_pending"))) {
			progress_end(&u->bar);
			if (!all)
				say_held(u, d);
			u->refused = complain_refused(&u->p, d, false);
			return CAIRN_OK;
		}
		xattr_of_fd(u->p.root, KEY_PENDING, pending, sizeof(pending));
		left = number_or_0(pending);
		if (late(u))
			return complain_late(u, d, left);
		note = drain_note(d);
		progress_left(&u->bar, left, note);
		sleep_s(POLL_S);
	}
}

/* ---- the daemon ----------------------------------------------------------------- */

static void let_go(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* The keeper by a store's lock, 0: none, and which process took the lock. An earlier version writes
 * only the first. */
static int holder_of(int lock, int *locked_by)
{
	char text[32] = "";
	int keeper = 0;

	*locked_by = 0;
	if (pread(lock, text, sizeof(text) - 1, 0) > 0)
		sscanf(text, "%d\n%d", &keeper, locked_by);
	return keeper;
}

/* The lock that the keeper holds. */
static int open_lock(const char *store, int keeper, int *locked_by)
{
	char path[4096 + 16];
	struct names hosts = {0};
	int found = -1;

	snprintf(path, sizeof(path), "%.4096s/.cairn", store);
	CLEANUP_CLOSE int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0 || names_read(dir, &hosts))
		return -1;
	for (size_t i = 0; found < 0 && i < hosts.n; i++) {
		snprintf(path, sizeof(path), "%.255s/lock", hosts.v[i]);
		found = openat(dir, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (found >= 0 && holder_of(found, locked_by) != keeper)
			let_go(&found);
	}
	names_free(&hosts);
	return found;
}

static bool is_cairnfs(int pid)
{
	CLEANUP_FREE char *comm = NULL;
	char path[64];
	size_t len;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	return pid > 1 && !read_small_file(AT_FDCWD, path, 4096, &comm, &len) &&
	       !strncmp(comm, "cairnfs", 7);
}

/* Opened before the unmount, so that the pid cannot have been reused; and again just before it, for
 * a spare may have replaced the keeper. */
static void find_daemon(struct unmounting *u)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	CLEANUP_FREE char *store = NULL;
	int by;

	if (location_status(&u->p, &d))
		return;
	int keeper = (int)u64(d, "keeper_pid");
	if (u->keeper_fd < 0)
		u->keeper = keeper;
	if (!is_cairnfs(keeper)) /* a pid of another pid namespace, or it was just killed */
		return;
	let_go(&u->keeper_fd);
	u->keeper = keeper;
	u->keeper_fd = (int)syscall(SYS_pidfd_open, keeper, 0);
	store = json_bytes(d, json_at(d, 0, "store"));
	watch_asks(store);
	int lock = store ? open_lock(store, keeper, &by) : -1;
	watch_asks(NULL);
	if (lock < 0)
		return;
	let_go(&u->lock_fd);
	u->lock_fd = lock;
	u->locked_by = by;
}

/* ---- unmount -------------------------------------------------------------------- */

/* 0, -EBUSY, or -EPERM if fusermount3 printed the reason. */
static int run_fusermount(const char *point)
{
	char *argv[] = {"fusermount3", "-u", "--", (char *)point, NULL};
	int status, err;
	pid_t pid;

	err = posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);
	if (err)
		return -err;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -EPERM;
}

static int unmount_once(const char *point)
{
	if (!umount2(point, UMOUNT_NOFOLLOW))
		return 0;
	return errno == EPERM ? run_fusermount(point) : -errno;
}

/* No process has them open any more: the daemon still answers their closes. */
static bool complain_closing(const struct unmounting *u)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	char n[COUNT_ROOM], t[32];

	if (location_find(u->point, &p) || location_status(&p, &d) || !u64(d, "closing.files"))
		return false;
	human_time((double)u64(d, "closing.since_s"), t);
	fprintf(stderr,
		"  by close(2) of %s: the store does not answer, for %s; is its filesystem frozen, "
		"or "
		"its server away?\n  they go on by themselves when it answers\n",
		count_of(u64(d, "closing.files"), "file", n), t);
	return true;
}

static int complain_stays(const struct unmounting *u, int err)
{
	if (err == -ENOENT)
		complain("%s: unmounting it needs root, or fusermount3 (package fuse3)", u->point);
	else if (err != -EBUSY && err != -EPERM)
		complain("%s: cannot unmount: %s", u->point, strerror(-err));
	else
		complain("%s stays mounted; all that was closed is durable%s", u->point,
			 err == -EBUSY ? ", but it is in use:" : "");
	if (err == -EBUSY || err == -EPERM) {
		int n = print_users(stderr, u->mount_id);

		if (!n && err == -EBUSY && complain_closing(u))
			return CAIRN_FAILED;
		if (!n && err == -EBUSY)
			fputs("  by something that is not visible from here\n", stderr);
		if (n || err == -EBUSY)
			fputs("  end these, or detach it with `umount -l`\n", stderr);
	}
	return CAIRN_FAILED;
}

static int unmount(struct unmounting *u)
{
	int err = -EBUSY;

	find_daemon(u);
	location_close(&u->p);
	for (int i = 0; err == -EBUSY && i < BUSY_TRIES; i++) {
		sleep_s(i ? POLL_S : 0);
		err = unmount_once(u->point);
	}
	return err ? complain_stays(u, err) : CAIRN_OK;
}

/* ---- unlocked --------------------------------------------------------------------- */

static bool is_locked(const struct unmounting *u)
{
	watch_asks(u->source);
	bool locked = flock(u->lock_fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
	watch_asks(NULL);
	return locked;
}

/* A spare that became the keeper after the unmount has the lock, and so has a process that the
 * daemon had started until it closes what it inherited. */
static int unlocked(struct unmounting *u)
{
	double start = now_s();
	bool told = false;

	while (u->locked_by && is_locked(u)) {
		int by, pid = holder_of(u->lock_fd, &by);

		if (by != u->locked_by)
			return CAIRN_OK; /* another cairnfs has it already */
		if (late(u)) {
			complain("%s is unmounted; the store of cairnfs (pid %d) is still locked",
				 u->point, pid);
			return CAIRN_TIMEOUT;
		}
		if (!told && now_s() - start > GONE_NOTE_S) {
			complain("%s is unmounted; waiting until the store of cairnfs (pid %d) is "
				 "not locked any more",
				 u->point, pid);
			told = true;
		}
		sleep_s(POLL_S);
	}
	let_go(&u->lock_fd);
	return CAIRN_OK;
}

/* ---- gone ------------------------------------------------------------------------- */

/* A bind mount of it elsewhere keeps the daemon alive. */
static bool still_mounted(const struct unmounting *u)
{
	struct io_mounts m;
	bool found = false;

	if (io_mounts_read(IO_MOUNTS_HERE, &m))
		return false;
	for (size_t i = 0; i < m.n && !found; i++) {
		found = is_mount_of(&m.v[i], u->dev_major, u->dev_minor, u->source);
		if (found)
			complain("%s is unmounted, but cairnfs continues: it is also mounted at %s",
				 u->point, m.v[i].point);
	}
	io_mounts_free(&m);
	return found;
}

/* A namespace that was made while it was mounted (a container, a service with PrivateTmp) keeps a
 * copy. */
static bool mounted_elsewhere(const struct unmounting *u)
{
	CLEANUP_FREE char *who = NULL;
	size_t len;
	FILE *f = open_memstream(&who, &len);

	if (!f)
		return false;
	int n = print_namespaces(f, u->dev_major, u->dev_minor, u->source);
	fclose(f);
	if (!n)
		return false;
	complain("%s is unmounted here, and all that was closed is durable, but cairnfs (pid %d) "
		 "continues while another mount namespace has it:",
		 u->point, u->keeper);
	if (u->keeper_fd < 0)
		fprintf(stderr, "%s  it ends with them\n", who);
	else
		fprintf(stderr, "%s  it ends with them, or now by: kill %d\n", who, u->keeper);
	return true;
}

/* Its pid is of another pid namespace: we are in a container, or it is. */
static void say_invisible(const struct unmounting *u)
{
	complain("%s is unmounted here, and all that was closed is durable, but its cairnfs is not "
		 "visible from here: it continues while another mount namespace has it mounted",
		 u->point);
}

static int gone(struct unmounting *u)
{
	struct pollfd fd = {.fd = u->keeper_fd, .events = POLLIN};
	double start = now_s();
	bool told = false, looked = false;

	if (still_mounted(u))
		return CAIRN_OK;
	if (u->keeper_fd < 0 && !mounted_elsewhere(u))
		say_invisible(u);
	while (u->keeper_fd >= 0 && poll(&fd, 1, (int)(POLL_S * 1000)) <= 0) {
		if (late(u)) {
			complain("%s is unmounted; cairnfs (pid %d) has not ended yet", u->point,
				 u->keeper);
			return CAIRN_TIMEOUT;
		}
		if (!looked && now_s() - start > ELSEWHERE_S) {
			looked = true;
			if (mounted_elsewhere(u))
				return CAIRN_OK;
		}
		if (!told && now_s() - start > GONE_NOTE_S) {
			complain("%s is unmounted; waiting for cairnfs (pid %d) to end: the store "
				 "is slow, or a mount namespace that is not visible from here has "
				 "the mount",
				 u->point, u->keeper);
			told = true;
		}
	}
	return u->keeper_fd >= 0 ? unlocked(u) : CAIRN_OK;
}

/* ---- the command -------------------------------------------------------------------- */

static int start(struct unmounting *u, const char *path)
{
	int code = location_need(path, true, &u->p);

	if (code)
		return code;
	/* for a bind mount or a path below, the mount found is not the path's own */
	if (*u->p.below || mount_id_of(u->p.fd) != u->p.mount_id) {
		complain("%s is not the mount point; that is %s", path, u->p.top);
		return CAIRN_USAGE;
	}
	u->mount_id = u->p.mount_id;
	u->dev_major = u->p.dev_major;
	u->dev_minor = u->p.dev_minor;
	u->point = strdup(u->p.top);
	u->source = strdup(u->p.source);
	if (!u->point || !u->source) {
		complain("%m");
		return CAIRN_FAILED;
	}
	find_daemon(u);
	return CAIRN_OK;
}

static int run(struct unmounting *u, const char *path, bool quiet)
{
	int code = start(u, path);

	progress_start(&u->bar, path, quiet);
	if (!code)
		code = drain(u);
	watch_asks(NULL);
	if (!code && u->tier)
		code = tier_wait(&u->p, u->deadline, &u->bar);
	if (!code)
		code = unmount(u);
	if (!code)
		code = gone(u);
	if (!code && u->refused)
		code = CAIRN_FAILED;
	if (!code && u->leaves)
		code = CAIRN_LEFT;
	location_close(&u->p);
	let_go(&u->keeper_fd);
	let_go(&u->lock_fd);
	free(u->point);
	free(u->source);
	return code;
}

int cmd_umount(int argc, char **argv)
{
	static const struct option opts[] = {
		{"quiet", no_argument, NULL, 'q'},
		{"tier", no_argument, NULL, 't'},
		{0},
	};
	struct unmounting u = {
		.p = LOCATION_NONE, .keeper_fd = -1, .lock_fd = -1, .deadline = watch_deadline()};
	bool quiet = false;
	int c;

	while ((c = getopt_long(argc, argv, "q", opts, NULL)) != -1) {
		if (c == 'q')
			quiet = true;
		else if (c == 't')
			u.tier = true;
		else
			return complain_option("umount", argv);
	}
	if (argc - optind != 1)
		return complain_usage("umount", "one MOUNTPOINT");
	return run(&u, argv[optind], quiet);
}

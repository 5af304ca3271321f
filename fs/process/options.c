/* SPDX-License-Identifier: MIT
 * The command line. Each error is one line: what is wrong, and what to do.
 */
#include "fs/process/options.h"
#include "io/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOK_MS 2000 /* then who waits for it is told, or does without */

static void usage(FILE *f)
{
	fputs("usage: cairnfs STORE MOUNTPOINT [-o OPT,...] [-f] [-d]\n", f);
	options_help(f);
	fputs("  and libfuse's own\n"
	      "  -f stay in the foreground, -d log every call\n"
	      "See cairnfs(8).\n",
	      f);
}

/* Splits a copy of text, since ps(1) shows the original. */
static int many_options(struct fs_opts *o, const char *text, char *pass, size_t cap)
{
	CLEANUP_FREE char *list = strdup(text);
	if (!list)
		return options_refuse(strerror(ENOMEM), NULL);
	for (char *save = NULL, *opt = strtok_r(list, ",", &save); opt;
	     opt = strtok_r(NULL, ",", &save)) {
		int err = options_take(o, opt);
		if (err < 0)
			return err;
		if (err)
			continue;
		size_t len = strlen(pass);
		if (snprintf(pass + len, cap - len, ",%s", opt) >= (int)(cap - len))
			return options_refuse("too many options", NULL);
	}
	return 0;
}

static char *absolute(const char *path, bool must_resolve)
{
	char *r = realpath(path, NULL);
	if (r || must_resolve)
		return r;
	return strdup(path);
}

static bool is_inside(const char *path, const char *dir)
{
	size_t n = strlen(dir);
	return !strncmp(path, dir, n) && (path[n] == '/' || path[n] == 0 || !strcmp(dir, "/"));
}

/* Asks for a directory in a process of its own: one that waits for a server that does not answer
 * cannot be ended. A client answers some from what it has seen, but not statvfs(2). Returns where
 * the result can be read, an int: 0, -ENOTDIR or -errno; or -errno. */
static int ask_aside(const char *dir)
{
	struct statvfs v;
	struct stat st;
	int ends[2], err;

	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	pid_t pid = fork();
	if (!pid && !fork()) { /* nobody waits for this one, nor for what it has open */
		int out = dup2(ends[1], 0);

		close_range(1, ~0u, 0);
		err = stat(dir, &st) ? -errno : S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
		if (!err)
			statvfs(dir, &v); /* whatever it says */
		_exit(write(out, &err, sizeof(err)) != sizeof(err));
	}
	if (!pid)
		_exit(0);
	err = pid < 0 ? -errno : 0;
	close(ends[1]);
	if (err)
		close(ends[0]);
	else
		waitpid(pid, NULL, 0);
	return err ? err : ends[0];
}

/* The result; 1: there is none yet. */
static int answer(int fd, int timeout_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int err = fd < 0 ? fd : 0, n = err ? 0 : poll(&p, 1, timeout_ms);

	if (err || n <= 0)
		return err ? err : 1;
	return read(fd, &err, sizeof(err)) == sizeof(err) ? err : -EIO;
}

/* Before this process asks for it itself: until then a signal ends it. */
static void await_store(const char *store)
{
	CLEANUP_CLOSE int fd = ask_aside(store);

	if (answer(fd, LOOK_MS) != 1)
		return;
	fprintf(stderr, "cairnfs: the store %s does not answer; waiting for it\n", store);
	answer(fd, -1);
	fprintf(stderr, "cairnfs: the store %s answers\n", store);
}

/* A server that does not answer holds up no mount. 0, -errno, or -ETIMEDOUT. */
static int look_at_tier(const char *tier)
{
	CLEANUP_CLOSE int fd = ask_aside(tier);

	int err = answer(fd, LOOK_MS);

	return err == 1 ? -ETIMEDOUT : err;
}

/* Refuses a store inside another cairnfs mount: everything would be staged twice, and be durable
 * only when that mount says so. */
static int check_not_ours(const char *store, dev_t dev)
{
	struct stat st;
	char text[PATH_MAX * 2 + 200], point[PATH_MAX];

	if (snprintf(text, sizeof(text), "%s/.cairn/status.json", store) < (int)sizeof(text) &&
	    !stat(text, &st) && S_ISREG(st.st_mode))
		snprintf(text, sizeof(text),
			 "store %s is itself a cairnfs mount; give the directory that it serves "
			 "(see cairn status), when it is unmounted, or one below",
			 store);
	else if (!mountpoint_of(dev, point, sizeof(point)))
		snprintf(text, sizeof(text),
			 "store %s lies inside the cairnfs mount %s; give a directory outside of "
			 "it, or, when that is unmounted, one of the store that it serves (see "
			 "cairn status)",
			 store, point);
	else
		return 0;
	return options_refuse(text, NULL);
}

/* Of a mount that is not dead. */
static int check_mountpoint(const char *mnt)
{
	struct stat st;
	char text[PATH_MAX + 200];

	if (stat(mnt, &st)) {
		snprintf(text, sizeof(text), "mountpoint %s: %s; %s", mnt, strerror(errno),
			 errno == ENOENT ? "make it first: mkdir -p"
					 : "unmount the dead mount: umount -l");
		return options_refuse(text, NULL);
	}
	if (!S_ISDIR(st.st_mode)) {
		snprintf(text, sizeof(text), "mountpoint %s is not a directory", mnt);
		return options_refuse(text, NULL);
	}
	return 0;
}

static int check_places(struct fs_opts *o, const char *store, const char *mnt, bool dead)
{
	struct stat st;
	char text[PATH_MAX + 200];

	await_store(store);
	if (stat(store, &st)) {
		snprintf(text, sizeof(text), "store %s: %s; %s", store, strerror(errno),
			 errno == ENOENT ? "make it first: mkdir -p"
					 : "choose a directory you can reach");
		return options_refuse(text, NULL);
	}
	if (!S_ISDIR(st.st_mode)) {
		snprintf(text, sizeof(text), "store %s is not a directory", store);
		return options_refuse(text, NULL);
	}
	if (check_not_ours(store, st.st_dev))
		return -EINVAL;
	if (!o->ro && access(store, W_OK)) {
		snprintf(
			text, sizeof(text),
			"store %s is not writable (%s); mount with -o ro, or give write permission",
			store, strerror(errno));
		return options_refuse(text, NULL);
	}
	if (!dead && check_mountpoint(mnt))
		return -EINVAL;
	o->store = absolute(store, true);
	o->mountpoint = dead ? mountpoint_resolve(mnt) : absolute(mnt, true);
	if (!o->store || !o->mountpoint)
		return options_refuse(strerror(errno), NULL);
	if (is_inside(o->store, o->mountpoint)) {
		snprintf(text, sizeof(text),
			 "the store %s is inside the mountpoint %s and would be hidden; choose "
			 "another mountpoint",
			 o->store, o->mountpoint);
		return options_refuse(text, NULL);
	}
	if (is_inside(o->mountpoint, o->store)) {
		snprintf(text, sizeof(text),
			 "the mountpoint %s is inside the store %s; choose another mountpoint",
			 o->mountpoint, o->store);
		return options_refuse(text, NULL);
	}
	return 0;
}

static int check_unknown(const char *pass)
{
	CLEANUP_FREE char *list = strdup(pass);
	int err = list ? 0 : options_refuse(strerror(ENOMEM), NULL);

	for (char *save = NULL, *opt = err ? NULL : strtok_r(list, ",", &save); opt && !err;
	     opt = strtok_r(NULL, ",", &save))
		err = options_refuse_unknown(opt);
	return err;
}

/* Refuses a mountpoint with a live mount, which another mount would hide. */
static int check_busy(const char *mnt)
{
	char type[32], text[PATH_MAX + 128];
	if (mountpoint_top(mnt, type, sizeof(type)))
		return 0;
	snprintf(text, sizeof(text),
		 "mountpoint %s is busy: something is mounted there; unmount it or choose another",
		 mnt);
	return options_refuse(text, NULL);
}

/* One that is not there may come: saves do not wait for it. */
static int check_tier_place(const char *tier)
{
	char text[PATH_MAX + 200];
	int err = strncmp(tier, "s3://", 5) ? look_at_tier(tier) : 0;

	if (err == -ENOTDIR) {
		snprintf(text, sizeof(text), "the tier %.4000s is not a directory; name one", tier);
		return options_refuse(text, NULL);
	}
	if (err)
		fprintf(stderr,
			"cairnfs: warning: the tier %s: %s; what is complete is sent when it is "
			"there\n",
			tier, err == -ETIMEDOUT ? "does not answer" : strerror(-err));
	return 0;
}

static int check_tier(const struct fs_opts *o)
{
	char text[PATH_MAX + 200], program[PATH_MAX];

	if (!o->tier && (o->tier_rate || o->tier_keep))
		return options_refuse("tier_rate and tier_keep are of a tier; give tier=", NULL);
	if (!o->tier)
		return 0;
	if (o->ro)
		return options_refuse("tier= needs a mount that can write; leave out ro", NULL);
	if (is_inside(o->tier, o->store) || is_inside(o->store, o->tier) ||
	    is_inside(o->tier, o->mountpoint) || is_inside(o->mountpoint, o->tier)) {
		snprintf(text, sizeof(text),
			 "the tier %.4000s is in the store or the mount, or has them in it; choose "
			 "a directory elsewhere",
			 o->tier);
		return options_refuse(text, NULL);
	}
	if (tier_find_program("cairn", program) ||
	    (!strncmp(o->tier, "s3://", 5) && tier_find_program("cairn-tier", program))) {
		snprintf(text, sizeof(text),
			 "tier= needs %.4000s: %s; install it (for s3://: tools/setup tier)",
			 program, strerror(errno));
		return options_refuse(text, NULL);
	}
	return check_tier_place(o->tier);
}

/* The command line as given. */
struct asked {
	char *where[2]; /* store and mountpoint */
	unsigned n_where;
	char options[4096]; /* all values of -o, each preceded by a comma */
	char pass[4096]; /* those of them for libfuse */
};

static int take_list(struct fs_opts *o, struct asked *asked, const char *list)
{
	size_t len = strlen(asked->options), cap = sizeof(asked->options) - len;

	if (snprintf(asked->options + len, cap, ",%s", list) >= (int)cap)
		return options_refuse("too many options", NULL);
	return many_options(o, list, asked->pass, sizeof(asked->pass));
}

static int take_arguments(int argc, char **argv, struct fs_opts *o, struct asked *asked)
{
	bool names_only = false; /* after "--" */
	int err = 0;

	for (int i = 1; i < argc && !err; i++) {
		char *a = argv[i];
		if (names_only && asked->n_where < 2) {
			asked->where[asked->n_where++] = a;
		} else if (!names_only && !strcmp(a, "--")) {
			names_only = true;
		} else if (!strcmp(a, "-h") || !strcmp(a, "--help")) {
			usage(stdout);
			exit(0);
		} else if (!strcmp(a, "-V") || !strcmp(a, "--version")) {
			printf("cairnfs %s (libfuse %s)\n", CAIRN_VERSION, fuse_pkgversion());
			exit(0);
		} else if (!strcmp(a, "-f")) {
			o->foreground = true;
		} else if (!strcmp(a, "-d")) {
			o->foreground = o->debug = true;
		} else if (!strncmp(a, "-o", 2)) {
			err = take_list(o, asked, a[2] ? a + 2 : i + 1 < argc ? argv[++i] : "");
		} else if (a[0] == '-' && a[1]) {
			err = options_refuse("unknown option (see cairnfs -h)", a);
		} else if (asked->n_where < 2) {
			asked->where[asked->n_where++] = a;
		} else {
			err = options_refuse("one argument too many (see cairnfs -h)", a);
		}
	}
	return err;
}

static int check(struct fs_opts *o, const struct asked *asked)
{
	int err = check_unknown(asked->pass), dead = err ? err : takeover_look(asked->where[1]);

	if (dead < 0)
		return dead;
	err = check_places(o, asked->where[0], asked->where[1], dead);
	if (!err && !dead)
		err = check_busy(o->mountpoint);
	if (!err && !dead)
		err = places_hide(o);
	if (!err)
		err = places_nested(o);
	return err ? err : check_tier(o);
}

static void libfuse_arguments(const char *store, const char *pass, struct fuse_args *rest)
{
	char fixed[8192], name[PATH_MAX];
	size_t w = 0;

	for (const char *p = store; *p && w + 2 < sizeof(name); p++) {
		if (*p == ',' || *p == '\\') /* a comma would end the option */
			name[w++] = '\\';
		name[w++] = *p;
	}
	name[w] = 0;
	snprintf(fixed, sizeof(fixed),
		 "-ofsname=%.4000s,subtype=cairnfs,default_permissions,nosuid,nodev%.3900s", name,
		 pass);
	fuse_opt_add_arg(rest, "cairnfs");
	fuse_opt_add_arg(rest, fixed);
}

int options_parse(int argc, char **argv, struct fs_opts *o, struct fuse_args *rest)
{
	struct asked asked = {.n_where = 0};

	options_defaults(o);
	int err = take_arguments(argc, argv, o, &asked);
	if (err)
		return err;
	if (asked.n_where != 2) {
		usage(stderr);
		return -EINVAL;
	}
	if (o->remount)
		exit(mountpoint_remount(asked.where[1], asked.options) ? 1 : 0);
	err = check(o, &asked);
	if (err)
		return err;
	if (o->ro)
		o->pool_bytes = 0; /* there are no writers */
	else if (o->pool_bytes > o->staging_bytes)
		o->pool_bytes = o->staging_bytes;
	libfuse_arguments(o->store, asked.pass, rest);
	return 0;
}

/* SPDX-License-Identifier: MIT
 * The command line. Every refusal is one line: what is wrong, and what to do. */
#include "fs/fs.h"
#include "io/scope.h"
#include "staging/memory/pin.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define COMMIT_WAIT_S 60u

static const char usage[] =
	"usage: cairnfs STORE MOUNTPOINT [-o OPT,...] [-f] [-d]\n"
	"  -o staging=SIZE        memory for what is not durable yet (default: a quarter; K, M, G, T, %)\n"
	"  -o staging_dir=DIR     where staging lives (default: /run/cairnfs)\n"
	"  -o ballast=SIZE        touched free memory held ready (default: as staging; 0 = none)\n"
	"  -o numa=N              staging prefers the memory of NUMA node N\n"
	"  -o fsync=strict|staged what fsync waits for (default: strict, on stable storage)\n"
	"  -o engine=uring|posix  how bytes go to the store (default: uring)\n"
	"  -o nopassthrough       every byte through the daemon\n"
	"  -o commit_wait=SECONDS how long a .metadata waits for shards of other nodes (default: 60; 0 = not)\n"
	"  -o nodedup             equal files and copies do not share their blocks (default: where the store can)\n"
	"  -o guard               nothing can be written into the bare mountpoint after an unclean end (root)\n"
	"  -o persist_threads=N, -o queue_depth=N, -o allow_other, -o ro, and libfuse's own\n"
	"  -f stay in the foreground, -d log every call\n"
	"See cairnfs(8).\n";

static int refuse(const char *what, const char *value)
{
	fprintf(stderr, "cairnfs: %s%s%s\n", what, value ? ": " : "", value ? value : "");
	return -EINVAL;
}

static int parse_size(const char *text, uint64_t whole, uint64_t *out)
{
	char *end;
	errno = 0;
	if (text[0] < '0' || text[0] > '9')
		return -EINVAL;
	unsigned long long v = strtoull(text, &end, 10);
	unsigned shift = 0;
	if (errno || end == text)
		return -EINVAL;
	switch (*end) {
	case '%':
		if (v > 100 || end[1])
			return -EINVAL;
		*out = whole / 100 * v;
		return 0;
	case 'T': case 't': shift = 40; break;
	case 'G': case 'g': shift = 30; break;
	case 'M': case 'm': shift = 20; break;
	case 'K': case 'k': shift = 10; break;
	case 0: *out = v; return 0;
	default: return -EINVAL;
	}
	if (end[1] && strcmp(end + 1, "iB") && strcmp(end + 1, "B"))
		return -EINVAL;
	if (v > UINT64_MAX >> shift)
		return -ERANGE;
	*out = v << shift;
	return 0;
}

static uint64_t memory_bytes(void)
{
	struct sysinfo si;
	return sysinfo(&si) ? 0 : (uint64_t)si.totalram * si.mem_unit;
}

static int number(const char *key, const char *val, unsigned max, unsigned *out)
{
	char *end;
	unsigned long v = strtoul(val, &end, 10);
	char text[128];
	if (*end || !*val || v < 1 || v > max) {
		snprintf(text, sizeof(text), "%s=%.40s: give a number from 1 to %u", key, val, max);
		return refuse(text, NULL);
	}
	*out = (unsigned)v;
	return 0;
}

static int numa_option(struct fs_opts *o, const char *val)
{
	char *end = NULL, text[160];
	long v = val ? strtol(val, &end, 10) : 0;
	if (!val || *val < '0' || *val > '9' || *end || v > 1023)
		return refuse("numa= takes the number of a NUMA node, as in /sys/devices/system/node", NULL);
	int rc = pin_check_node(NULL, (int)v);
	snprintf(text, sizeof(text), rc == -ENODEV ? "numa=%ld: there is no such NUMA node with memory; those that are: "
		 "/sys/devices/system/node/has_memory" : "numa=%ld: this kernel knows no NUMA nodes; leave it out", v);
	if (rc)
		return refuse(text, NULL);
	if (geteuid())
		return refuse("numa= takes root: without, staging lies in a tmpfs of the system's", NULL);
	o->numa = (int)v + 1;
	return 1;
}

/* One -o option. 1: ours. 0: pass it on to libfuse. */
static int one_option(struct fs_opts *o, char *opt)
{
	char *val = strchr(opt, '=');
	char text[256];
	uint64_t mem = memory_bytes(), size;

	if (val)
		*val++ = 0;
	bool is_staging = !strcmp(opt, "staging"), is_ballast = !strcmp(opt, "ballast");
	if (is_staging || is_ballast) {
		if (!val || parse_size(val, mem, &size)) {
			snprintf(text, sizeof(text), "%s=%.40s: not a size; write 64G, 512M or 25%%", opt, val ? val : "");
			return refuse(text, NULL);
		}
		if (is_staging && size > mem) {
			snprintf(text, sizeof(text), "staging=%.40s is larger than this machine's memory (%llu MiB); give less",
				 val, (unsigned long long)(mem >> 20));
			return refuse(text, NULL);
		}
		if (is_staging && size < 4u << 20)
			return refuse("staging is less than 4M; give more", NULL);
		*(is_staging ? &o->staging_bytes : &o->ballast_bytes) = size;
		o->ballast_set |= is_ballast;
		return 1;
	}
	if (!strcmp(opt, "staging_dir")) {
		if (!val || !*val)
			return refuse("staging_dir= takes a directory", NULL);
		o->staging_dir = strdup(val);
		return 1;
	}
	if (!strcmp(opt, "fsync")) {
		if (!val || (strcmp(val, "strict") && strcmp(val, "staged")))
			return refuse("fsync= takes strict or staged", NULL);
		o->fsync_staged = !strcmp(val, "staged");
		return 1;
	}
	if (!strcmp(opt, "engine")) {
		if (!val || (strcmp(val, "uring") && strcmp(val, "posix")))
			return refuse("engine= takes uring or posix", NULL);
		o->engine = strdup(val);
		return 1;
	}
	if (!strcmp(opt, "persist_threads") && val)
		return number(opt, val, 16, &o->persist_threads) ? -EINVAL : 1;
	if (!strcmp(opt, "numa"))
		return numa_option(o, val);
	if (!strcmp(opt, "commit_wait")) {
		char *end = NULL;
		unsigned long v = val ? strtoul(val, &end, 10) : 0;
		if (!val || !*val || *end || val[0] == '-' || v > 86400)
			return refuse("commit_wait= takes seconds, 0 to 86400", NULL);
		o->commit_wait_s = (unsigned)v;
		o->commit_wait_set = true;
		return 1;
	}
	if (!strcmp(opt, "queue_depth") && val)
		return number(opt, val, 256, &o->queue_depth) ? -EINVAL : 1;
	if (!strcmp(opt, "nopassthrough")) {
		o->nopassthrough = true;
		return 1;
	}
	if (!strcmp(opt, "guard") || !strcmp(opt, "noguard")) {
		o->guard = opt[0] == 'g';
		return 1;
	}
	if (!strcmp(opt, "dedup") || !strcmp(opt, "nodedup")) {
		o->nodedup = opt[0] == 'n';
		return 1;
	}
	if (!strcmp(opt, "ro"))
		o->ro = true;
	if (!strcmp(opt, "remount")) {
		o->remount = true;
		return 1;
	}
	if (!strcmp(opt, "auto_unmount"))
		return refuse("auto_unmount is not supported; leave it out: the next start takes over a mount that was left dead",
			      NULL);
	/* fstab's habits: the mount is nosuid and nodev whatever is asked; times are the store's. What the
	 * mount is by type is what cairn(1) knows it by. */
	const char *drop[] = {"suid", "dev", "nosuid", "nodev", "rw", "relatime", "strictatime", "lazytime", "nolazytime",
			      "auto", "noauto", "user", "users", "nouser", "owner", "group", "nofail", "_netdev", "defaults",
			      "default_permissions", "nonempty", "subtype", "comment"};
	for (unsigned i = 0; i < sizeof(drop) / sizeof(drop[0]); i++)
		if (!strcmp(opt, drop[i]))
			return 1;
	if (!strncmp(opt, "x-", 2) || !strncmp(opt, "X-", 2))
		return 1;
	if (val)
		val[-1] = '=';
	return 0;
}

/* The list is not cut up itself: it is what ps(1) shows. */
static int many_options(struct fs_opts *o, const char *text, char *pass, size_t cap)
{
	CLEANUP_FREE char *list = strdup(text);
	if (!list)
		return refuse(strerror(ENOMEM), NULL);
	for (char *save = NULL, *opt = strtok_r(list, ",", &save); opt; opt = strtok_r(NULL, ",", &save)) {
		int rc = one_option(o, opt);
		if (rc < 0)
			return rc;
		if (rc)
			continue;
		size_t len = strlen(pass);
		if (snprintf(pass + len, cap - len, ",%s", opt) >= (int)(cap - len))
			return refuse("too many options", NULL);
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

/* A store that another cairnfs shows: everything would be staged twice, and be durable when that one says so. */
static int check_not_ours(const char *store, dev_t dev)
{
	struct stat st;
	char text[PATH_MAX * 2 + 200], point[PATH_MAX];

	if (snprintf(text, sizeof(text), "%s/.cairn/status.json", store) < (int)sizeof(text) && !stat(text, &st) &&
	    S_ISREG(st.st_mode))
		snprintf(text, sizeof(text), "store %s is itself a cairnfs mount; give the directory that it serves (see cairn "
			 "status), when it is unmounted, or one below", store);
	else if (!mountpoint_of(dev, point, sizeof(point)))
		snprintf(text, sizeof(text), "store %s lies inside the cairnfs mount %s; give a directory outside of it, or, when "
			 "that is unmounted, one of the store that it serves (see cairn status)", store, point);
	else
		return 0;
	return refuse(text, NULL);
}

static int check_places(struct fs_opts *o, const char *store, const char *mnt)
{
	struct stat st;
	char text[PATH_MAX + 200];

	if (stat(store, &st)) {
		snprintf(text, sizeof(text), "store %s: %s; %s", store, strerror(errno),
			 errno == ENOENT ? "make it first: mkdir -p" : "choose a directory you can reach");
		return refuse(text, NULL);
	}
	if (!S_ISDIR(st.st_mode)) {
		snprintf(text, sizeof(text), "store %s is not a directory", store);
		return refuse(text, NULL);
	}
	if (check_not_ours(store, st.st_dev))
		return -EINVAL;
	if (!o->ro && access(store, W_OK)) {
		snprintf(text, sizeof(text), "store %s is not writable (%s); mount with -o ro, or give write permission",
			 store, strerror(errno));
		return refuse(text, NULL);
	}
	if (stat(mnt, &st)) {
		snprintf(text, sizeof(text), "mountpoint %s: %s; %s", mnt, strerror(errno),
			 errno == ENOENT ? "make it first: mkdir -p" : "unmount what is left there: umount -l");
		return refuse(text, NULL);
	}
	if (!S_ISDIR(st.st_mode)) {
		snprintf(text, sizeof(text), "mountpoint %s is not a directory", mnt);
		return refuse(text, NULL);
	}
	o->store = absolute(store, true);
	o->mountpoint = absolute(mnt, true);
	if (!o->store || !o->mountpoint)
		return refuse(strerror(errno), NULL);
	if (is_inside(o->store, o->mountpoint)) {
		snprintf(text, sizeof(text), "the store %s is inside the mountpoint %s and would be hidden; choose another mountpoint",
			 o->store, o->mountpoint);
		return refuse(text, NULL);
	}
	if (is_inside(o->mountpoint, o->store)) {
		snprintf(text, sizeof(text), "the mountpoint %s is inside the store %s; choose another mountpoint", o->mountpoint,
			 o->store);
		return refuse(text, NULL);
	}
	return 0;
}

static int check_unknown(const char *pass)
{
	CLEANUP_FREE char *list = strdup(pass);
	int rc = list ? 0 : refuse(strerror(ENOMEM), NULL);

	for (char *save = NULL, *opt = rc ? NULL : strtok_r(list, ",", &save); opt && !rc; opt = strtok_r(NULL, ",", &save))
		rc = options_refuse_unknown(opt);
	return rc;
}

/* Another mount on top would hide a busy one. */
static int check_busy(const char *mnt)
{
	char type[32], text[PATH_MAX + 128];
	if (mountpoint_top(mnt, type, sizeof(type)))
		return 0;
	snprintf(text, sizeof(text), "mountpoint %s is busy: something is mounted there; unmount it or choose another", mnt);
	return refuse(text, NULL);
}

int options_parse(int argc, char **argv, struct fs_opts *o, struct fuse_args *rest)
{
	char pass[4096] = "", fixed[8192], *where[2], asked[4096] = "";
	unsigned n = 0;
	bool names_only = false;	/* after "--" */
	int rc;

	for (int i = 1; i < argc; i++) {
		char *a = argv[i];
		if (names_only && n < 2) {
			where[n++] = a;
		} else if (!names_only && !strcmp(a, "--")) {
			names_only = true;
		} else if (!strcmp(a, "-h") || !strcmp(a, "--help")) {
			fputs(usage, stdout);
			exit(0);
		} else if (!strcmp(a, "-V") || !strcmp(a, "--version")) {
			printf("cairnfs %s (libfuse %s)\n", CAIRN_VERSION, fuse_pkgversion());
			exit(0);
		} else if (!strcmp(a, "-f")) {
			o->foreground = true;
		} else if (!strcmp(a, "-d")) {
			o->foreground = o->debug = true;
		} else if (!strncmp(a, "-o", 2)) {
			char *list = a[2] ? a + 2 : i + 1 < argc ? argv[++i] : "";
			size_t len = strlen(asked);
			if (snprintf(asked + len, sizeof(asked) - len, ",%s", list) >= (int)(sizeof(asked) - len))
				return refuse("too many options", NULL);
			rc = many_options(o, list, pass, sizeof(pass));
			if (rc)
				return rc;
		} else if (a[0] == '-' && a[1]) {
			refuse("unknown option (see cairnfs -h)", a);
			return -EINVAL;
		} else if (n < 2) {
			where[n++] = a;
		} else {
			return refuse("one argument too many (see cairnfs -h)", a);
		}
	}
	if (n != 2) {
		fputs(usage, stderr);
		return -EINVAL;
	}
	if (o->remount)
		exit(mountpoint_remount(where[1], asked) ? 1 : 0);
	rc = check_unknown(pass);
	if (!rc)
		rc = mountpoint_take_over(where[1]);
	if (!rc)
		rc = check_places(o, where[0], where[1]);
	if (!rc)
		rc = check_busy(o->mountpoint);
	if (rc)
		return rc;
	if (!o->staging_bytes)
		o->staging_bytes = memory_bytes() / 4;
	if (!o->commit_wait_set)
		o->commit_wait_s = COMMIT_WAIT_S;
	if (o->ro)
		o->ballast_bytes = 0;	/* nobody writes */
	else if (!o->ballast_set || o->ballast_bytes > o->staging_bytes)
		o->ballast_bytes = o->staging_bytes;
	/* a comma in the store's name would end the option */
	char name[PATH_MAX];
	size_t w = 0;
	for (const char *p = o->store; *p && w + 2 < sizeof(name); p++) {
		if (*p == ',' || *p == '\\')
			name[w++] = '\\';
		name[w++] = *p;
	}
	name[w] = 0;
	snprintf(fixed, sizeof(fixed), "-ofsname=%.4000s,subtype=cairnfs,default_permissions,nosuid,nodev%.3900s", name, pass);
	fuse_opt_add_arg(rest, "cairnfs");
	fuse_opt_add_arg(rest, fixed);
	return 0;
}

/* SPDX-License-Identifier: MIT
 * The table of -o options: each one's parser, target and help text.
 */
#include "fs/process/options.h"
#include "io/number.h"
#include "staging/memory/pin.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#define COMMIT_WAIT_S 60u
#define COMMIT_WAIT_MAX_S 86400u
#define TIER_WAIT_S 30u
#define NUMA_MAX 1023u
#define HOST_MAX 64u /* as of hostnames */

struct option {
	const char *name; /* ends with "=" if it takes a value */
	const char *value; /* as in the help; of a choice, "one|other" */
	const char *help; /* NULL: none */
	/* As options_take. val: NULL if there is none. to: the field in struct fs_opts. NULL: only
	 * for libfuse */
	int (*take)(const struct option *as, const char *val, void *to);
	size_t field;
	unsigned arg; /* the maximum of a number; the value a flag sets */
};

int options_refuse(const char *what, const char *value)
{
	fprintf(stderr, "cairnfs: %s%s%s\n", what, value ? ": " : "", value ? value : "");
	return -EINVAL;
}

static int parse_size(const char *text, uint64_t whole, uint64_t *out)
{
	const char *end = text;

	if (!number_next_size(&end, out))
		return -EINVAL;
	if (!strcmp(end, "%")) {
		bool fits = *out <= 100 && strchr("0123456789", end[-1]);
		*out *= whole / 100;
		return fits ? 0 : -EINVAL;
	}
	bool unit = end[-1] < '0' || end[-1] > '9';
	return !*end || (unit && (!strcmp(end, "iB") || !strcmp(end, "B"))) ? 0 : -EINVAL;
}

/* ---- a function for each type of value ---- */

static int take_size(const struct option *as, const char *val, void *to)
{
	char text[128];

	if (val && !parse_size(val, pin_memory(), to))
		return 1;
	snprintf(text, sizeof(text), "%s%.40s: not a size; write 64G, 512M or 25%%", as->name,
		 val ? val : "");
	return options_refuse(text, NULL);
}

static int take_memory(const struct option *as, const char *val, void *to)
{
	uint64_t mem = pin_memory(), size;
	char text[256];

	if (take_size(as, val, &size) < 0)
		return -EINVAL;
	if (size > mem) {
		snprintf(text, sizeof(text),
			 "%s%.40s is larger than this machine's memory (%llu MiB); give less",
			 as->name, val, (unsigned long long)(mem >> 20));
		return options_refuse(text, NULL);
	}
	*(uint64_t *)to = size;
	return 1;
}

static int take_staging(const struct option *as, const char *val, void *to)
{
	uint64_t size;

	if (take_memory(as, val, &size) < 0)
		return -EINVAL;
	if (size < STAGING_MIN)
		return options_refuse("staging is less than 4M; give more", NULL);
	*(uint64_t *)to = size;
	return 1;
}

static int take_dir(const struct option *as, const char *val, void *to)
{
	char text[64];

	if (val && *val) {
		*(char **)to = strdup(val);
		return 1;
	}
	snprintf(text, sizeof(text), "%s takes a directory", as->name);
	return options_refuse(text, NULL);
}

static int take_host(const struct option *as, const char *val, void *to)
{
	static const char ok[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				 "0123456789._-";

	(void)as;
	if (!val || !*val || *val == '.' || val[strspn(val, ok)] || strlen(val) > HOST_MAX)
		return options_refuse("host= takes a name of at most 64 letters, digits, '-', '_' "
				      "and '.', not '.' first",
				      NULL);
	*(char **)to = strdup(val);
	return 1;
}

static int take_tier(const struct option *as, const char *val, void *to)
{
	(void)as;
	if (!val || (*val != '/' && (strncmp(val, "s3://", 5) || !val[5])))
		return options_refuse("tier= takes a directory, from / on, or s3://BUCKET/PREFIX",
				      NULL);
	*(char **)to = strdup(val);
	return 1;
}

static int take_rate(const struct option *as, const char *val, void *to)
{
	uint64_t rate = 0;

	if (!val || strchr(val, '%') || parse_size(val, 0, &rate) || !rate) {
		char text[128];

		snprintf(text, sizeof(text), "%s%.40s: not a rate; write 2G or 500M, a second",
			 as->name, val ? val : "");
		return options_refuse(text, NULL);
	}
	*(uint64_t *)to = rate;
	return 1;
}

static int take_choice(const struct option *as, const char *val, void *to)
{
	int first = (int)strcspn(as->value, "|");
	const char *other = as->value + first + 1;
	char text[128];

	*(bool *)to = val && !strcmp(val, other);
	if (*(bool *)to ||
	    (val && (int)strlen(val) == first && !strncmp(val, as->value, (size_t)first)))
		return 1;
	snprintf(text, sizeof(text), "%s takes %.*s or %s", as->name, first, as->value, other);
	return options_refuse(text, NULL);
}

static int take_level(const struct option *as, const char *val, void *to)
{
	static const char *const names[] = {"error", "warning", "notice", "info", "debug"};

	(void)as;
	for (unsigned i = 0; val && i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(val, names[i])) {
			*(unsigned *)to = LOG_ERR + i; /* they are consecutive */
			return 1;
		}
	return options_refuse("log= takes error, warning, notice, info or debug", NULL);
}

static int take_number(const struct option *as, const char *val, void *to)
{
	char text[128];
	uint64_t v;

	if (!val)
		return 0;
	if (!number_is(val, &v) || v < 1 || v > as->arg) {
		snprintf(text, sizeof(text), "%s%.40s: give a number from 1 to %u", as->name, val,
			 as->arg);
		return options_refuse(text, NULL);
	}
	*(unsigned *)to = (unsigned)v;
	return 1;
}

static int take_seconds(const struct option *as, const char *val, void *to)
{
	char text[64];
	uint64_t v;

	if (!val || !number_is(val, &v) || v > as->arg) {
		snprintf(text, sizeof(text), "%s takes seconds, 0 to %u", as->name, as->arg);
		return options_refuse(text, NULL);
	}
	*(unsigned *)to = (unsigned)v;
	return 1;
}

static int take_node(const struct option *as, const char *val, void *to)
{
	char text[160];
	uint64_t v;

	if (!val || !number_is(val, &v) || v > as->arg)
		return options_refuse(
			"numa= takes the number of a NUMA node, as in /sys/devices/system/node",
			NULL);
	int err = pin_check_node(NULL, (int)v);
	snprintf(text, sizeof(text),
		 err == -ENODEV ? "numa=%u: there is no such NUMA node with memory; those that "
				  "are: /sys/devices/system/node/has_memory"
				: "numa=%u: this kernel has no NUMA nodes; leave it out",
		 (unsigned)v);
	if (err)
		return options_refuse(text, NULL);
	if (geteuid())
		return options_refuse(
			"numa= needs root: without root, staging is in a tmpfs of the system",
			NULL);
	*(int *)to = (int)v + 1;
	return 1;
}

static int take_flag(const struct option *as, const char *val, void *to)
{
	char text[80];

	if (val) {
		snprintf(text, sizeof(text), "%s takes no value", as->name);
		return options_refuse(text, val);
	}
	*(bool *)to = as->arg;
	return 1;
}

static int take_flag_too(const struct option *as, const char *val, void *to)
{
	int err = take_flag(as, val, to);
	return err < 0 ? err : 0; /* libfuse must have it, too */
}

static int ignore(const struct option *as, const char *val, void *to)
{
	(void)as, (void)val, (void)to;
	return 1;
}

/* ---- the table ---- */

#define TO(field) offsetof(struct fs_opts, field)

/* In the order of the help. Names without help are listed so that misspellings are recognized. */
static const struct option table[] = {
	{"staging=", "SIZE",
	 "memory for what is not durable yet (default: a quarter; K, M, G, T, %)", take_staging,
	 TO(staging_bytes), 0},
	{"staging_dir=", "DIR", "where staging is (default: /run/cairnfs, else /dev/shm)", take_dir,
	 TO(staging_dir), 0},
	{"pool=", "SIZE",
	 "free staging memory held ready in the page pool (default: as staging; 0 = none)",
	 take_memory, TO(pool_bytes), 0},
	{.name = "ballast=",
	 .take = take_memory,
	 .field = TO(pool_bytes)}, /* its name until 0.1.0 */
	{"numa=", "N", "staging prefers the memory of NUMA node N", take_node, TO(numa), NUMA_MAX},
	{"fsync=", "strict|staged", "what fsync waits for (default: strict, on stable storage)",
	 take_choice, TO(fsync_staged), 0},
	{"engine=", "uring|posix", "how bytes go to the store (default: uring)", take_choice,
	 TO(engine_posix), 0},
	{"nopassthrough", "", "every byte through the daemon", take_flag, TO(nopassthrough), true},
	{"commit_wait=", "SECONDS",
	 "after how long a .metadata that waits for shards of other nodes is reported (default: "
	 "60; 0 = it does not wait)",
	 take_seconds, TO(commit_wait_s), COMMIT_WAIT_MAX_S},
	{"host=", "NAME", "the name of this host in the store (default: the hostname)", take_host,
	 TO(host), 0},
	{"tier=", "PLACE",
	 "complete checkpoints are copied to this directory or s3://BUCKET/PREFIX", take_tier,
	 TO(tier), 0},
	{"tier_rate=", "SIZE", "at most so many bytes a second (default: no limit)", take_rate,
	 TO(tier_rate), 0},
	{"tier_keep=", "N",
	 "of the checkpoints that are in the tier only the newest N of a directory stay (default: "
	 "all)",
	 take_number, TO(tier_keep), 1000000},
	{"tier_wait=", "SECONDS",
	 "how long reading waits when nothing comes from the tier (default: 30)", take_number,
	 TO(tier_wait_s), 86400},
	{"dedup", "", "equal files and copies share their blocks (default: where the store can)",
	 take_flag, TO(nodedup), false},
	{"nodedup", "", "each file has its own blocks", take_flag, TO(nodedup), true},
	{"early", "", "large files are persisted while they are written (default)", take_flag,
	 TO(noearly), false},
	{"noearly", "", "each file is persisted after its close or fsync", take_flag, TO(noearly),
	 true},
	{"previous", "", "a checkpoint that is overwritten in place is kept meanwhile (default)",
	 take_flag, TO(noprevious), false},
	{"noprevious", "", "it is not kept", take_flag, TO(noprevious), true},
	{"guard", "", "nothing can be written into the bare mountpoint after an unclean end (root)",
	 take_flag, TO(guard), true},
	{"noguard", "", "files can be written there (default)", take_flag, TO(guard), false},
	{"persist_threads=", "N", "files written to the store at once (default: 2)", take_number,
	 TO(persist_threads), 16},
	{"queue_depth=", "N", "writes in flight for one file (default: 8)", take_number,
	 TO(queue_depth), 256},
	{"log=", "LEVEL", "error, warning, notice, info or debug (default: notice)", take_level,
	 TO(log_level), 0},
	{.name = "allow_other", .value = "", .help = "other users may use the mount"},
	{"ro", "", "nothing can be written", take_flag_too, TO(ro), true},
	{"nonempty", "", "files under the mountpoint are hidden on purpose", take_flag,
	 TO(nonempty), true},
	{"remount", .take = take_flag, .field = TO(remount), .arg = true},
	{"rw", .take = ignore},
	{"default_permissions", .take = ignore},
	{.name = "allow_root"},
	{.name = "exec"},
	{.name = "noexec"},
	{.name = "noatime"},
	{.name = "nodiratime"},
	{.name = "sync"},
	{.name = "dirsync"},
	{.name = "max_read="},
};
#define N_OPTIONS (sizeof(table) / sizeof(table[0]))

/* Accepts and ignores what fstab lines usually have: the mount is always nosuid and nodev, and the
 * store decides about atime. A subtype is ignored, because cairn(1) recognizes mounts by it. */
static bool is_fstab_habit(const char *opt, size_t len)
{
	static const char *const habits[] = {
		"suid",	       "dev",	   "nosuid",	 "nodev",   "relatime",
		"strictatime", "lazytime", "nolazytime", "auto",    "noauto",
		"user",	       "users",	   "nouser",	 "owner",   "group",
		"nofail",      "_netdev",  "defaults",	 "subtype", "comment",
	};

	for (unsigned i = 0; i < sizeof(habits) / sizeof(habits[0]); i++)
		if (strlen(habits[i]) == len && !strncmp(opt, habits[i], len))
			return true;
	return !strncasecmp(opt, "x-", 2);
}

void options_defaults(struct fs_opts *o)
{
	o->staging_bytes = pin_memory() / 4;
	o->pool_bytes = UINT64_MAX; /* as large as staging */
	o->commit_wait_s = COMMIT_WAIT_S;
	o->tier_wait_s = TIER_WAIT_S;
	o->log_level = LOG_NOTICE;
}

int options_take(struct fs_opts *o, const char *opt)
{
	size_t len = strcspn(opt, "=");
	const char *val = opt[len] ? opt + len + 1 : NULL;

	for (unsigned i = 0; i < N_OPTIONS; i++)
		if (strcspn(table[i].name, "=") == len && !strncmp(opt, table[i].name, len))
			return table[i].take
				       ? table[i].take(&table[i], val, (char *)o + table[i].field)
				       : 0;
	if (len == strlen("auto_unmount") && !strncmp(opt, "auto_unmount", len))
		return options_refuse("auto_unmount is not supported; leave it out: the next start "
				      "takes over a dead mount",
				      NULL);
	return is_fstab_habit(opt, len);
}

const char *options_name(unsigned i)
{
	return i < N_OPTIONS ? table[i].name : NULL;
}

void options_help(FILE *f)
{
	for (const struct option *as = table; as < table + N_OPTIONS; as++)
		if (as->help)
			fprintf(f, "  -o %s%-*s %s\n", as->name, (int)(19 - strlen(as->name)),
				as->value, as->help);
}

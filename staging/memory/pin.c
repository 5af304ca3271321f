/* SPDX-License-Identifier: MIT
 * Keeps staging's memory resident. A tmpfs mounted with noswap (6.4) is never swapped, and
 * its pages are unevictable from the moment they exist. mlock would need a mapping of each file in
 * one of our processes, cost half a second to two per GiB for untouched pages and a third of that
 * for small touched ones (docs/PERFORMANCE.md), be limited by RLIMIT_MEMLOCK, and end with the
 * process, at each restart of the worker. */
#include "io/number.h"
#include "staging/memory/pin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define PLACE(at, member, real) ((at) && (at)->member ? (at)->member : (real))

/* Reads a short kernel file; "" if it does not exist. */
static void read_text(const char *path, char *buf, size_t cap)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, buf, cap - 1);
	if (fd >= 0)
		close(fd);
	buf[n > 0 ? n : 0] = 0;
}

/* ---- node ---- */

int pin_check_node(const struct pin_places *at, int node)
{
	const char *nodes = PLACE(at, nodes, "/sys/devices/system/node");
	char path[512], text[256];

	if (node == STAGING_ANY_NODE)
		return 0;
	/* a list of ranges: 0-1,3 */
	snprintf(path, sizeof(path), "%.400s/has_memory", nodes);
	read_text(path, text, sizeof(text));
	if (!text[0])
		return -ENOTSUP;
	for (char *save = NULL, *r = strtok_r(text, ",\n", &save); r;
	     r = strtok_r(NULL, ",\n", &save)) {
		char *end;
		long from = strtol(r, &end, 10),
		     to = *end == '-' ? strtol(end + 1, NULL, 10) : from;
		if (node >= from && node <= to)
			return 0;
	}
	return -ENODEV;
}

/* Prefer, not bind: when the node is full another node's memory is better than the OOM killer. */
void pin_option(int node, char out[32])
{
	if (node == STAGING_ANY_NODE)
		snprintf(out, 32, ",mpol=default");
	else
		snprintf(out, 32, ",mpol=prefer:%d", node);
}

/* ---- limits ---- */

static bool limit_in(const char *cgroups, const char *dir, const char *file, uint64_t *out)
{
	char path[1024], text[64];
	const char *p = text;
	snprintf(path, sizeof(path), "%.300s%.500s/%s", cgroups, dir, file);
	read_text(path, text, sizeof(text));
	return number_next(&p, out); /* not "max", nor missing */
}

/* Calls fn for the cgroup at dir and each of its ancestors, up to the root. */
static void each_above(const char *cgroups, const char *dir,
		       void (*fn)(const char *cgroups, const char *dir, void *ctx), void *ctx)
{
	char at[512];

	snprintf(at, sizeof(at), "%s", dir);
	for (;;) {
		fn(cgroups, at, ctx);
		char *slash = strrchr(at, '/');
		if (!slash)
			return;
		*slash = 0;
	}
}

#define V1_NONE ((uint64_t)INT64_MAX / 4096 * 4096) /* "no limit" in version 1 */

static uint64_t limit_of(const char *cgroups, const char *dir)
{
	uint64_t v, low = UINT64_MAX;
	static const char *const files[] = {"memory.max", "memory.high", "memory.limit_in_bytes"};

	for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		if (limit_in(cgroups, dir, files[i], &v) && v < low)
			low = v;
	return low >= V1_NONE ? UINT64_MAX : low;
}

struct lowest {
	uint64_t bytes;
	char *where;
};

static void take_lowest(const char *cgroups, const char *dir, void *ctx)
{
	struct lowest *low = ctx;
	uint64_t v = limit_of(cgroups, dir);

	if (v < low->bytes) {
		low->bytes = v;
		snprintf(low->where, 256, "%.250s", dir[0] ? dir : "/");
	}
}

/* Page cache that the kernel would reclaim before it kills a process there. */
static uint64_t reclaimable(const char *cgroups, const char *dir)
{
	static const char *const keys[] = {"\nactive_file ", "\ninactive_file ",
					   "\ntotal_active_file ", "\ntotal_inactive_file "};
	char path[1024], text[8192] = "\n";
	uint64_t sum[4] = {0};

	snprintf(path, sizeof(path), "%.300s%.500s/memory.stat", cgroups, dir);
	read_text(path, text + 1, sizeof(text) - 1);
	for (unsigned i = 0; i < 4; i++) {
		const char *at = strstr(text, keys[i]);
		sum[i] = at ? strtoull(at + strlen(keys[i]), NULL, 10) : 0;
	}
	/* version 1 has both: for the cgroup alone, and including its descendants */
	return sum[2] + sum[3] ? sum[2] + sum[3] : sum[0] + sum[1];
}

static void take_least_space(const char *cgroups, const char *dir, void *ctx)
{
	uint64_t *space = ctx, limit = limit_of(cgroups, dir), used = 0;

	if (limit == UINT64_MAX)
		return;
	if (!limit_in(cgroups, dir, "memory.current", &used))
		limit_in(cgroups, dir, "memory.usage_in_bytes", &used);
	uint64_t left = limit > used ? limit - used : 0;
	if (left < *space)
		left += reclaimable(cgroups, dir);
	if (left < *space)
		*space = left;
}

/* A path outside the reader's own namespace begins with /.. */
static bool is_seen(const char *top, const char *dir)
{
	char path[1024];
	snprintf(path, sizeof(path), "%.300s%.500s/cgroup.procs", top, dir);
	return !dir[0] || (strncmp(dir, "/..", 3) && !access(path, F_OK));
}

/* Calls fn for all cgroups that limit the memory of the process whose /proc/<pid>/cgroup is `own`.
 * false: that file, or the process's cgroup, is not visible from here. */
static bool each_memory_cgroup(const struct pin_places *at, const char *own,
			       void (*fn)(const char *cgroups, const char *dir, void *ctx),
			       void *ctx)
{
	const char *cgroups = PLACE(at, cgroups, "/sys/fs/cgroup");
	char text[4096], v1[512];
	enum { NO_LINE, SEEN, UNSEEN } by_v1 = NO_LINE, by_v2 = NO_LINE;

	snprintf(v1, sizeof(v1), "%.400s/memory", cgroups);
	read_text(own, text, sizeof(text));
	for (char *save = NULL, *l = strtok_r(text, "\n", &save); l;
	     l = strtok_r(NULL, "\n", &save)) {
		char *kinds = strchr(l, ':'), *dir = kinds ? strchr(kinds + 1, ':') : NULL;
		if (!dir)
			continue;
		*dir++ = 0;
		if (!strcmp(dir, "/"))
			dir = "";
		const char *top = kinds[1] ? v1 : cgroups;
		if (!kinds[1])
			by_v2 = is_seen(top, dir) ? SEEN : UNSEEN;
		else if (!strcmp(kinds + 1, "memory"))
			by_v1 = is_seen(top, dir) ? SEEN : UNSEEN;
		else
			continue;
		each_above(top, dir, fn, ctx);
	}
	return by_v1 == SEEN || (by_v1 == NO_LINE && by_v2 == SEEN);
}

uint64_t pin_memory(void)
{
	struct sysinfo si;
	return sysinfo(&si) ? 0 : (uint64_t)si.totalram * si.mem_unit;
}

uint64_t pin_cgroup_limit(const struct pin_places *at, char where[256])
{
	struct lowest low = {.bytes = UINT64_MAX, .where = where};

	where[0] = 0;
	each_memory_cgroup(at, PLACE(at, own, "/proc/self/cgroup"), take_lowest, &low);
	return low.bytes;
}

uint64_t pin_cgroup_space(const struct pin_places *at, const char *own)
{
	uint64_t space = UINT64_MAX;
	return each_memory_cgroup(at, own, take_least_space, &space) ? space : 0;
}

struct kills {
	uint64_t n;
	bool known;
};

/* Only the first cgroup is this process's own. */
static void take_kills(const char *cgroups, const char *dir, void *ctx)
{
	static const char *const files[] = {"memory.events", "memory.oom_control"};
	struct kills *kills = ctx;
	char path[1024], text[512] = "\n";

	for (unsigned i = 0; i < 2 && !kills->known; i++) {
		snprintf(path, sizeof(path), "%.300s%.500s/%s", cgroups, dir, files[i]);
		read_text(path, text + 1, sizeof(text) - 1);
		const char *at = strstr(text, "\noom_kill ");
		kills->known = at;
		kills->n = at ? strtoull(at + strlen("\noom_kill "), NULL, 10) : 0;
	}
}

uint64_t pin_cgroup_kills(const struct pin_places *at)
{
	struct kills kills = {.known = false};

	each_memory_cgroup(at, PLACE(at, own, "/proc/self/cgroup"), take_kills, &kills);
	return kills.n;
}

/* ---- swap ---- */

static bool swap_is_on(const struct pin_places *at)
{
	char text[1024];
	read_text(PLACE(at, swaps, "/proc/swaps"), text, sizeof(text));
	char *second = strchr(text, '\n'); /* the first line is a heading */
	return second && second[1];
}

static bool is_noswap(const struct pin_places *at, const struct staging_place *p)
{
	char want[600], *line = NULL;
	size_t cap = 0;
	bool found = false;
	FILE *f = fopen(PLACE(at, mounts, "/proc/self/mountinfo"), "re");

	snprintf(want, sizeof(want), " %s/huge ", p->path);
	while (f && !found && getline(&line, &cap, f) > 0)
		found = strstr(line, want) && strstr(line, ",noswap");
	free(line);
	if (f)
		fclose(f);
	return found;
}

unsigned pin_report(const struct pin_places *at, const struct staging_place *p, uint64_t bytes,
		    io_notice_fn notice, void *ctx)
{
	char text[512], where[256], huge[128];
	unsigned n = 0;
	uint64_t limit = pin_cgroup_limit(at, where);

	if (swap_is_on(at) && !is_noswap(at, p)) {
		snprintf(text, sizeof(text),
			 "staging may be swapped out: swap is on, and %s; turn swap off (swapoff "
			 "-a, or memory.swap.max=0 for cairnfs and its writers)",
			 p->is_private ? "this kernel cannot keep a tmpfs out of it (before 6.4)"
				       : "it lies in a tmpfs of the system's");
		notice(ctx, text);
		n++;
	}
	if (limit < bytes) {
		snprintf(text, sizeof(text),
			 "the cgroup %.200s allows %llu MiB of memory, less than staging (%llu "
			 "MiB): who writes there is killed before staging is full; raise its "
			 "limit, or mount with a smaller staging=",
			 where, (unsigned long long)(limit >> 20),
			 (unsigned long long)(bytes >> 20));
		notice(ctx, text);
		n++;
	}
	read_text(PLACE(at, huge, "/sys/kernel/mm/transparent_hugepage/shmem_enabled"), huge,
		  sizeof(huge));
	if (strstr(huge, "[deny]")) {
		notice(ctx, "huge pages are denied to tmpfs on this machine, staging is slower "
			    "without; allow them: echo advise "
			    ">/sys/kernel/mm/transparent_hugepage/shmem_enabled");
		n++;
	}
	return n;
}

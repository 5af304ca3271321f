/* SPDX-License-Identifier: MIT
 * What keeps staging's memory resident. A tmpfs mounted with noswap (6.4) is never swapped, and
 * its pages are unevictable from the moment they are there. To mlock them instead would need a
 * mapping of each file in a process of ours, cost half a second to two a GiB for pages that
 * nobody has touched and a third for small ones that are (docs/PERFORMANCE.md), be bounded by
 * RLIMIT_MEMLOCK, and end with the process, at each restart of the worker. */
#include "staging/pin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLACE(at, member, real) ((at) && (at)->member ? (at)->member : (real))

/* A short file of the kernel's; "" when there is none. */
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
	for (char *save = NULL, *r = strtok_r(text, ",\n", &save); r; r = strtok_r(NULL, ",\n", &save)) {
		char *end;
		long from = strtol(r, &end, 10), to = *end == '-' ? strtol(end + 1, NULL, 10) : from;
		if (node >= from && node <= to)
			return 0;
	}
	return -ENODEV;
}

/* Prefer, not bind: when the node is full its neighbour's memory is better than the OOM killer. */
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
	char path[1024], text[64], *end;
	snprintf(path, sizeof(path), "%.300s%.500s/%s", cgroups, dir, file);
	read_text(path, text, sizeof(text));
	unsigned long long v = strtoull(text, &end, 10);
	if (end == text)	/* "max", or not there */
		return false;
	*out = v;
	return true;
}

/* Of the cgroup at dir and those above it. */
static void least(const char *cgroups, const char *dir, const char *file, uint64_t *low, char where[256])
{
	char at[512];
	uint64_t v;

	snprintf(at, sizeof(at), "%s", dir);
	for (;;) {
		if (limit_in(cgroups, at, file, &v) && v < *low) {
			*low = v;
			snprintf(where, 256, "%.250s", at[0] ? at : "/");
		}
		char *slash = strrchr(at, '/');
		if (!slash)
			return;
		*slash = 0;
	}
}

uint64_t pin_cgroup_limit(const struct pin_places *at, char where[256])
{
	const char *cgroups = PLACE(at, cgroups, "/sys/fs/cgroup");
	char text[4096], v1[512];
	uint64_t low = UINT64_MAX;

	where[0] = 0;
	snprintf(v1, sizeof(v1), "%.400s/memory", cgroups);
	read_text(PLACE(at, own, "/proc/self/cgroup"), text, sizeof(text));
	for (char *save = NULL, *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		char *kinds = strchr(l, ':'), *dir = kinds ? strchr(kinds + 1, ':') : NULL;
		if (!dir)
			continue;
		*dir++ = 0;
		if (!strcmp(dir, "/"))
			dir = "";
		if (!kinds[1])
			least(cgroups, dir, "memory.max", &low, where);
		else if (!strcmp(kinds + 1, "memory"))
			least(v1, dir, "memory.limit_in_bytes", &low, where);
	}
	return low >= INT64_MAX / 4096 * 4096 ? UINT64_MAX : low;	/* v1's word for none */
}

/* ---- swap ---- */

static bool swap_is_on(const struct pin_places *at)
{
	char text[1024];
	read_text(PLACE(at, swaps, "/proc/swaps"), text, sizeof(text));
	char *second = strchr(text, '\n');	/* the first line is a heading */
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

unsigned pin_report(const struct pin_places *at, const struct staging_place *p, uint64_t bytes, io_notice_fn notice,
		    void *ctx)
{
	char text[512], where[256], huge[128];
	unsigned n = 0;
	uint64_t limit = pin_cgroup_limit(at, where);

	if (swap_is_on(at) && !is_noswap(at, p)) {
		snprintf(text, sizeof(text), "staging may be swapped out: swap is on, and %s; turn swap off (swapoff -a, or "
			 "memory.swap.max=0 for cairnfs and its writers)",
			 p->is_private ? "this kernel cannot keep a tmpfs out of it (before 6.4)" :
			 "without root staging lies in a tmpfs of the system's");
		notice(ctx, text);
		n++;
	}
	if (limit < bytes) {
		snprintf(text, sizeof(text), "the cgroup %.200s allows %llu MiB of memory, less than staging (%llu MiB): who writes "
			 "there is killed before staging is full; raise its limit, or mount with a smaller staging=",
			 where, (unsigned long long)(limit >> 20), (unsigned long long)(bytes >> 20));
		notice(ctx, text);
		n++;
	}
	read_text(PLACE(at, huge, "/sys/kernel/mm/transparent_hugepage/shmem_enabled"), huge, sizeof(huge));
	if (strstr(huge, "[deny]")) {
		notice(ctx, "huge pages are denied to tmpfs on this machine, staging is slower without; allow them: echo advise "
			    ">/sys/kernel/mm/transparent_hugepage/shmem_enabled");
		n++;
	}
	return n;
}

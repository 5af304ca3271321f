/* SPDX-License-Identifier: MIT
 * How much memory there is, in the tmpfs and in the machine, besides the budget of staging. */
#include "staging/memory/memory.h"
#include "staging/memory/pin.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MEMORY_AGE_NS 100000000u

static uint64_t value_of(const char *text, const char *key)
{
	const char *at = strstr(text, key);
	return at ? strtoull(at + strlen(key), NULL, 10) << 10 : UINT64_MAX;
}

uint64_t machine_memory(const struct staging *s, uint64_t *total)
{
	char text[512];
	int fd = open(s->o.meminfo ? s->o.meminfo : "/proc/meminfo", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	*total = value_of(text, "MemTotal:");
	return value_of(text, "MemAvailable:");
}

uint64_t staging_tmpfs_left(struct staging *s)
{
	struct statvfs v;

	if (s->o.place.is_private || fstatvfs(s->o.place.small, &v) || !v.f_blocks)
		return UINT64_MAX;
	return v.f_bavail * v.f_frsize + s->pool.bytes;
}

uint64_t staging_space_left(struct staging *s)
{
	struct statvfs v;
	if (fstatvfs(s->o.place.small, &v))
		return UINT64_MAX;
	if (monotonic_ns() - s->memory.seen_ns > MEMORY_AGE_NS) {
		uint64_t ours = pin_cgroup_space(NULL, "/proc/self/cgroup");
		uint64_t total;
		s->memory.available = machine_memory(s, &total);
		/* 0: unknown */
		s->memory.available =
			ours && ours < s->memory.available ? ours : s->memory.available;
		s->memory.seen_ns = monotonic_ns();
	}
	uint64_t space = v.f_bavail * v.f_frsize, memory = s->memory.available;
	if (memory < UINT64_MAX - s->pool.bytes) /* ours to give */
		memory += s->pool.bytes;
	return space < memory ? space : memory;
}

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

/* Memory available without swapping: proc(5), MemAvailable. */
static uint64_t memory_available(void)
{
	char text[512], *at;
	int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	at = strstr(text, "MemAvailable:");
	return at ? strtoull(at + 13, NULL, 10) << 10 : UINT64_MAX;
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
		s->memory.available = memory_available();
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

/* SPDX-License-Identifier: MIT
 * Memory cgroups. The kernel charges a page of staging to the cgroup of the process that touches it
 * first. In the fast lane that is the writer, unless the daemon has allocated the page before. A
 * writer whose cgroup is nearly full would be killed, so its files take the fast lane only if the
 * daemon has allocated all that they are expected to need (staged_cover); else they take the relay
 * lane, in which the daemon writes.
 */
#include "fs/ops/inside.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "staging/memory/pin.h"

/* A write(2) holds the file's lock from beginning to end, so nothing is allocated ahead of it
 * meanwhile: this is enough for two writers, each in a write of 2 GiB, the kernel's maximum. */
#define TIGHT (4ull << 30)
#define SLOTS 256u
/* processes rarely change cgroups after their first open */
#define AGE_NO_LIMIT_NS 1000000000u
#define AGE_LIMIT_NS 10000000u

struct seen {
	pid_t pid;
	uint64_t when_ns, space;
};

static struct seen seen[SLOTS];
static pthread_mutex_t seen_lock = RANKED_MUTEX(RANK_PAYER);

static bool recall(pid_t pid, uint64_t now, uint64_t *space)
{
	pthread_mutex_lock(&seen_lock);
	struct seen s = seen[(unsigned)pid % SLOTS];
	pthread_mutex_unlock(&seen_lock);
	*space = s.space;
	return s.pid == pid &&
	       now - s.when_ns < (s.space == UINT64_MAX ? AGE_NO_LIMIT_NS : AGE_LIMIT_NS);
}

static size_t read_cgroup(const char *path, char *buf, size_t cap)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, buf, cap);
	if (fd >= 0)
		close(fd);
	return n > 0 ? (size_t)n : 0;
}

/* In our own cgroup it makes no difference who allocates. */
static bool is_ours(const char *path)
{
	char theirs[4096], ours[4096];
	size_t n = read_cgroup(path, theirs, sizeof(theirs));
	return read_cgroup("/proc/self/cgroup", ours, sizeof(ours)) == n &&
	       !memcmp(theirs, ours, n) &&
	       (n || access("/proc/self/cgroup", R_OK)); /* a kernel without cgroups */
}

void payer_look(struct fs *fs, fuse_req_t req)
{
	pid_t pid = fuse_req_ctx(req)->pid; /* 0: not in our pid namespace */
	uint64_t now = monotonic_ns(), space;
	char path[64];

	if (!atomic_load(&fs->lanes.passthrough))
		return;
	if (!recall(pid, now, &space)) {
		snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
		space = pin_cgroup_space(NULL, path);
		if (space < TIGHT && is_ours(path))
			space = UINT64_MAX;
		pthread_mutex_lock(&seen_lock);
		seen[(unsigned)pid % SLOTS] =
			(struct seen){.pid = pid, .when_ns = now, .space = space};
		pthread_mutex_unlock(&seen_lock);
	}
	current.tight = space < TIGHT;
}

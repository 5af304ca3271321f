/* SPDX-License-Identifier: MIT
 *
 * pin: the memory of staging is resident, and on the requested NUMA node. The tmpfs mounts ensure
 * both (noswap, mpol=), so that no page needs to be locked; this header has what is requested of
 * them, and what on this machine prevents it.
 */
#ifndef CAIRN_STAGING_PIN_H
#define CAIRN_STAGING_PIN_H

#include <stddef.h>
#include <stdint.h>

#include "staging/staging.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the kernel describes the machine; NULL members mean the real paths. */
struct pin_places {
	const char *nodes; /* /sys/devices/system/node */
	const char *swaps; /* /proc/swaps */
	const char *own; /* /proc/self/cgroup */
	const char *cgroups; /* /sys/fs/cgroup */
	const char *mounts; /* /proc/self/mountinfo */
	const char *huge; /* /sys/kernel/mm/transparent_hugepage/shmem_enabled */
};

/* 0; -ENODEV: no such node, or one without memory; -ENOTSUP: a kernel without nodes. */
int pin_check_node(const struct pin_places *at, int node);
/* The mount option for node, with a comma before it; STAGING_ANY_NODE: the kernel's own choice. */
void pin_option(int node, char out[32]);
uint64_t pin_memory(void); /* of the machine, in bytes; 0: the kernel does not tell */
/* The least memory that a cgroup of this process, or one above it, allows; UINT64_MAX: no limit.
 * where: which one. */
uint64_t pin_cgroup_limit(const struct pin_places *at, char where[256]);
/* Memory that the process whose /proc/<pid>/cgroup is `own` may still take before its cgroup, or an
 * ancestor, is at its limit; UINT64_MAX: no limit; 0 also if its cgroup is not visible. */
uint64_t pin_cgroup_space(const struct pin_places *at, const char *own);
/* Processes that the kernel killed for their memory in this process's cgroup; 0 also if it does not
 * tell. */
uint64_t pin_cgroup_kills(const struct pin_places *at);
/* Reports what keeps `bytes` of staging in p from being resident huge pages, a line with the remedy
 * for each; returns how many. Queries the kernel, changes nothing. */
unsigned pin_report(const struct pin_places *at, const struct staging_place *p, uint64_t bytes,
		    io_notice_fn notice, void *ctx);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: MIT
 *
 * Several hosts of one store that send to one tier: whose is a file, and who commits.
 */
#ifndef CAIRN_TIER_HOSTS_H
#define CAIRN_TIER_HOSTS_H

#include "io/store/store.h"

#include <stdbool.h>
#include <stddef.h>

struct tier_host {
	char name[sizeof(((struct io_host *)0)->name)];
	unsigned number;
	bool sends; /* it is alive, and its mount has this tier */
};

#define CLEANUP_TIER_HOSTS __attribute__((cleanup(tier_hosts_free)))

struct tier_hosts {
	struct tier_host *v;
	size_t n;
	const struct tier_host *own; /* NULL: it has no number, and sends all by itself */
};

/* Those of the store; own: this host's name, tier: as its mount names it. 0 or -errno. */
int tier_hosts_read(struct tier_hosts *h, int store, const char *own, const char *tier);
void tier_hosts_free(struct tier_hosts *h);
/* May another one send, too, now or later? */
bool tier_hosts_share(const struct tier_hosts *h);
/* Who published the file that is open, if it sends; NULL: none that does. */
const struct tier_host *tier_hosts_owner(const struct tier_hosts *h, int fd);
/* Who sends what no other one does: of those that send the one with the least number. */
const struct tier_host *tier_hosts_first(const struct tier_hosts *h);

#endif

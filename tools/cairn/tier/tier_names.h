/* SPDX-License-Identifier: MIT
 *
 * The names that a fetch gives in a store (tier_names.c), beside jobs that save there: through the
 * mount, if one serves the store, so in the order of its changes. `in`: the directory at which
 * paths begin, the store's or its mount's.
 */
#ifndef CAIRN_TIER_NAMES_H
#define CAIRN_TIER_NAMES_H

#include "tier.h"

/* What a path has: names, inodes, sizes and times of all at and below it. */
struct tier_seen {
	bool there;
	uint64_t hash;
};

/* Nothing at path: `there` is false. On a mount -EBUSY, if something there is open for writing, or
 * is not durable within some seconds. */
int tier_see(const struct tier *in, const char *path, struct tier_seen *out);
bool tier_seen_same(const struct tier_seen *a, const struct tier_seen *b);
/* As rename(2) of a file or a directory, but -EEXIST if there is anything at `to`. Where the
 * filesystem has no such rename, that of a directory is one to an empty directory that was made
 * for it: who opens that at this moment has one without a name. */
int tier_rename_new(const struct tier *in, const char *from, const char *to);

/* A mount, open for moments: it must not be busy when it is to be unmounted. */
struct tier_mount {
	struct location at;
	int top; /* its root, O_RDONLY; -1: not open */
};

#define TIER_MOUNT_NONE ((struct tier_mount){.at = LOCATION_NONE, .top = -1})

/* The one at path, if it serves the store. To be closed also after an error. */
int tier_mount_open(struct tier_mount *m, const char *path, const char *store, struct tier_why *w);
void tier_mount_close(struct tier_mount *m);

#endif

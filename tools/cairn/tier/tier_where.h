/* SPDX-License-Identifier: MIT
 *
 * Where the checkpoints of a mount with a tier are: for fetch, ls, latest, wait and umount.
 */
#ifndef CAIRN_TIER_WHERE_H
#define CAIRN_TIER_WHERE_H

#include "tools/cairn/base/cli.h"

struct tier_where_one {
	char *path; /* below the mount */
	bool waits, sent; /* neither: not complete */
	bool incomplete; /* nor being written, as it seems */
	/* of one that is not complete: what is missing; of one that waits: why it could not be
	 * sent; NULL: not told */
	char *why;
	uint64_t since_s; /* and since when, since 1970 */
};

struct tier_where {
	struct tier_where_one *v; /* sorted by path */
	size_t n;
};

/* -ENOENT: no tier, or nothing was told yet; -EACCES: for others only. */
int tier_where_read(const struct location *p, struct tier_where *out);
void tier_where_free(struct tier_where *w);
const struct tier_where_one *tier_where_find(const struct tier_where *w, const char *path);

#define TIER_SHOWN ".cairn/tier" /* in a mount: what is in its tier */

/* The place of arg, which may be only in the tier of the mount: that of the nearest directory above
 * it that is there, and the whole path below the mount. As location_find(). */
int tier_where_above(const char *arg, struct location *p, char **below);
/* Without TIER_SHOWN: as given by who copies a path that `cairn latest` prints. */
const char *tier_where_path(const char *below);
/* What the daemon says of below, a directory of the mount or of its tier: the path of the newest
 * checkpoint in it, below the mount, or below the tier if it is remote. -ENODATA: nothing; -EIO:
 * what is in the tier is not known; -ENOENT: no such directory. */
int tier_where_latest(const struct location *p, const char *below, char **out, bool *remote);

/* Until what is complete at and below p is in the tier, as it is now; p itself, if it is a
 * checkpoint. An exit code; what is not CAIRN_OK is reported. deadline: by now_s(), 0: none. */
int tier_wait(const struct location *p, double deadline, struct progress *bar);

#endif

/* SPDX-License-Identifier: MIT
 *
 * What the two files of `cairn verify` share: judge.c looks at one file,
 * verify.c walks trees and tells.
 */
#ifndef CAIRN_VERIFY_H
#define CAIRN_VERIFY_H

#include "cli.h"
#include "sum.h"

enum finding { IS_OK, IS_MISMATCH, IS_UNREADABLE, IS_UNVERIFIABLE, IS_NOT_DURABLE, IS_GONE, N_FINDINGS };

struct verify {
	const struct place *p;
	int store;		/* O_PATH of the store's root */
	struct disk *disk;
	struct sidecar *side;	/* opened when first needed */
	bool verbose, json;
	struct json_out j;
	struct progress bar;
	uint64_t count[N_FINDINGS], bytes, cached;
};

/* One file, in the mount (or store) and in the store. */
struct file {
	const char *path;	/* as it is told */
	const char *below;	/* below the root of the mount (or store) */
	int dirfd;		/* where it was found */
	int twin;		/* its directory in the store; -1 = not there */
	const char *name;
	char state[16];
	char want[CAIRN_SUM_LEN], got[CAIRN_SUM_LEN];
	char why[128];
	bool sure;		/* a mismatch that no change on its way explains */
};

/* What is to be said of f, whose path, below, dirfd, twin and name are set. Fills in
 * the rest. */
enum finding judge(struct verify *v, struct file *f);

/* The directory of a path below dirfd, one component after the other: it may be
 * longer than one call takes. *name is the last component. O_PATH or -errno. */
int open_parent(int dirfd, const char *path, const char **name);

enum finding unreadable(struct file *f, const char *what, int err);

#endif

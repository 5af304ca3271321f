/* SPDX-License-Identifier: MIT
 *
 * Shared by the two files of `cairn verify`: judge.c checks one file,
 * verify.c walks trees and reports.
 */
#ifndef CAIRN_VERIFY_H
#define CAIRN_VERIFY_H

#include "tools/cairn/base/cli.h"
#include "sum.h"

enum finding {
	IS_OK,
	IS_MISMATCH,
	IS_UNREADABLE,
	IS_UNVERIFIABLE,
	IS_NOT_DURABLE,
	IS_GONE,
	N_FINDINGS
};

struct verify {
	const struct location *p;
	int store; /* O_PATH of the store's root */
	struct disk *disk;
	struct sidecar *side; /* opened at the first use */
	bool verbose, json;
	struct json_out j;
	struct progress bar;
	uint64_t count[N_FINDINGS], bytes, cached;
};

/* One file, in the mount (or store) and in the store. */
struct file {
	const char *path; /* in messages */
	const char *below; /* below the root of the mount (or store) */
	int dirfd; /* where it was found */
	int peer; /* its directory in the store; -1 = does not exist */
	const char *name;
	char state[16];
	char want[CAIRN_SUM_LEN], got[CAIRN_SUM_LEN];
	char why[128];
	bool sure; /* a mismatch that no pending change explains */
};

/* The finding for f, whose path, below, dirfd, peer and name are set. Fills in
 * the rest. */
enum finding judge(struct verify *v, struct file *f);

/* The parent directory of a path below dirfd, opened one component after the other: the
 * path may be longer than one call takes. *name is the last component. O_PATH or -errno. */
int open_parent(int dirfd, const char *path, const char **name);

enum finding unreadable(struct file *f, const char *what, int err);

#endif

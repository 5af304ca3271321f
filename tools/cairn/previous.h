/* SPDX-License-Identifier: MIT
 *
 * Checkpoints that an unmounted store keeps because they were being overwritten in place.
 */
#ifndef CAIRN_PREVIOUS_H
#define CAIRN_PREVIOUS_H

#include "tools/cairn/base/cli.h"
#include "io/previous.h"

#define PREVIOUS_COMMIT ".metadata"

struct previous {
	int all, fd; /* .cairn/previous, and the one kept */
	char name[PREVIOUS_KEY]; /* in it */
	uint64_t meta; /* the inode of its .metadata in its place */
	bool lost; /* it was given up */
};

#define PREVIOUS_NONE ((struct previous){.all = -1, .fd = -1})
#define CLEANUP_PREVIOUS __attribute__((cleanup(previous_end)))

/* What the store open at root keeps of the directory dirfd. -ENOENT: nothing; -errno. */
int previous_find(int root, int dirfd, struct previous *out);
void previous_end(struct previous *p);
/* The inode and birth time of a directory: *k has no .metadata. */
int previous_key_of(int dirfd, struct previous_key *k);
/* --list (kept.c). The exit code. */
int previous_list(const struct location *p, bool json);

#endif

/* SPDX-License-Identifier: MIT
 *
 * What a staging directory holds.
 */
#ifndef CAIRN_STAGING_LEFT_H
#define CAIRN_STAGING_LEFT_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct staging_left {
	char store[1024]; /* its path when it was last mounted; "" = unknown */
	uint64_t bytes; /* memory, the page pool included */
	/* not shown to be in the store; the files include spilled ones, the bytes do not */
	uint64_t unpublished_files, unpublished_bytes;
	uint64_t unpublished_changes; /* of names and contents */
	bool unreadable; /* another version's, or damaged: all files count */
	time_t since; /* last change of its head, a start or a rotation of the log */
};

/* base: the directory, id: the store's. -errno: it could not be read. */
int staging_left_read(int base, const char *id, struct staging_left *out);

struct io_store;
/* The number of the store's log at a place; 0: it has none, or that cannot be read. */
uint64_t staging_log_in(int base, const char *store_id);
uint64_t staging_log_at(const char *path, const char *store_id);
/* A process of this user in another mount namespace in which that path has this log; 0: there is no
 * such log on this machine; -1: it may be where this process cannot look. */
int staging_log_elsewhere(const char *path, const char *store_id, uint64_t log);
/* The same of the store's staging at path. 0; -ENOENT: there is none, or it is another store's;
 * -EBUSY: a cairnfs has it; -EPERM: it is another user's; or as open(2). */
int staging_left_at(const char *path, struct io_store *store, struct staging_left *out);

#endif

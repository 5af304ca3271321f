/* SPDX-License-Identifier: MIT
 *
 * Checksums of store files, for `cairn verify`.
 */
#ifndef CAIRN_SUM_H
#define CAIRN_SUM_H

#include <stdbool.h>
#include <stdint.h>

#define CAIRN_SUM_LEN 40 /* "xxh3:", 32 hex digits, NUL; as IO_CHECKSUM_LEN */

struct disk; /* disk.h */

/* Reads the file open at fd from its disk, with d, and writes its checksum to out. Holes
 * are taken from the file's extents, not read. *cached: O_DIRECT was refused and
 * the bytes came through the page cache, after its pages of the file were dropped.
 * `seen` (may be NULL) is called with the bytes read. 0 or -errno. */
int sum_of_disk(struct disk *d, int fd, char out[CAIRN_SUM_LEN], bool *cached,
		void (*seen)(void *ctx, uint64_t bytes), void *ctx);

/* The checksums that a store without xattrs keeps in separate files. store: O_PATH
 * of the store's root. */
struct sidecar;

int sidecar_open(int store, struct sidecar **out);
void sidecar_close(struct sidecar *s); /* NULL is fine */
/* -ENODATA: none */
int sidecar_sum(struct sidecar *s, int dirfd, const char *name, char out[CAIRN_SUM_LEN]);

#endif

/* SPDX-License-Identifier: MIT
 *
 * Reads a file's bytes from its disk, past the page cache, in order.
 */
#ifndef CAIRN_DISK_H
#define CAIRN_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct disk;

/* A reader for one file after the other. Several reads are kept in flight if
 * io_uring is available. NULL: no memory. */
struct disk *disk_new(void);
void disk_free(struct disk *d); /* NULL is allowed */

/* Switches to the file open at fd, which it opens anew. 0 or -errno; after an error it has
 * no file. */
int disk_use(struct disk *d, int fd);
int disk_fd(const struct disk *d); /* O_RDONLY; its offset is free to use */

/* O_DIRECT was refused: the cached pages of the file were dropped, and the
 * bytes come through the page cache. */
bool disk_cached(const struct disk *d);

/* Passes the bytes of [off, end) to `take`, in order, each once. -EIO also if the
 * file ends before `end`. */
int disk_range(struct disk *d, uint64_t off, uint64_t end,
	       void (*take)(void *ctx, const void *bytes, size_t len), void *ctx);

#endif

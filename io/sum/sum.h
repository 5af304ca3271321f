/* SPDX-License-Identifier: MIT
 *
 * io/sum: checksums, and bytes read past the page cache for them.
 *
 * Functions return 0 (or a count) or a negative errno.
 */
#ifndef CAIRN_IO_SUM_H
#define CAIRN_IO_SUM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Size for "xxh3:" + 32 hex digits + NUL. */
#define IO_CHECKSUM_LEN 40

struct io_sum; /* streaming XXH3-128 */
struct io_sum *io_sum_new(void); /* NULL = no memory */
void io_sum_free(struct io_sum *m);
void io_sum_reset(struct io_sum *m);
void io_sum_add(struct io_sum *m, const void *bytes, size_t len);
void io_sum_zeros(struct io_sum *m, uint64_t len);
struct io_digest {
	uint64_t low, high;
};
struct io_digest io_sum_digest(const struct io_sum *m);
/* From now on each range of so many bytes is summed by itself, too: `done` gets its number, from 0,
 * and its checksum after its last byte; of the last one, which may be shorter, by
 * io_sum_last_range(). A reset begins with number 0 again. -ENOMEM */
typedef void (*io_range_fn)(void *ctx, uint64_t number, const char sum[IO_CHECKSUM_LEN]);
int io_sum_ranges(struct io_sum *m, uint64_t bytes, io_range_fn done, void *ctx);
void io_sum_last_range(struct io_sum *m);
/* "xxh3:<32 hex>", canonical (big-endian) order, as xxhsum -H2 prints */
void io_sum_text(const struct io_sum *m, char out[IO_CHECKSUM_LEN]);

/* Reads fd past the page cache (O_DIRECT where possible, else POSIX_FADV_DONTNEED
 * first) and computes its checksum. */
int io_sum_file(int fd, char out[IO_CHECKSUM_LEN]);
/* The same into m, which is new. */
int io_sum_file_into(int fd, struct io_sum *m);

/* As pread, but continues until len or the end of the file; fd may be O_DIRECT. -errno. */
ssize_t io_read_full(int fd, void *buf, size_t len, uint64_t off);

#ifdef __cplusplus
}
#endif
#endif

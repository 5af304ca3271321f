/* SPDX-License-Identifier: MIT
 *
 * Reads and writes of all bytes, where one call may do a part. An interrupted call is made again.
 */
#ifndef CAIRN_IO_FULL_H
#define CAIRN_IO_FULL_H

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

/* Of one call: signals are handled between two. */
#define FULL_CALL_MAX (64u << 20)

/* The bytes read; fewer than len only at the end of the file. -errno. */
static inline ssize_t full_pread(int fd, void *buf, size_t len, uint64_t off)
{
	size_t got = 0;

	while (got < len) {
		size_t want = len - got < FULL_CALL_MAX ? len - got : FULL_CALL_MAX;
		ssize_t n = pread(fd, (char *)buf + got, want, (off_t)(off + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		got += (size_t)n;
	}
	return (ssize_t)got;
}

/* At the file's position. 0 or -errno. */
static inline int full_write(int fd, const void *buf, size_t len)
{
	for (size_t done = 0; done < len;) {
		size_t want = len - done < FULL_CALL_MAX ? len - done : FULL_CALL_MAX;
		ssize_t n = write(fd, (const char *)buf + done, want);

		if (n < 0 && errno != EINTR)
			return -errno;
		done += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

/* 0 or -errno. */
static inline int full_pwrite(int fd, const void *buf, size_t len, uint64_t off)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = pwrite(fd, (const char *)buf + done, len - done, (off_t)(off + done));

		if (n < 0 && errno != EINTR)
			return -errno;
		done += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

#endif

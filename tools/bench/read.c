/* SPDX-License-Identifier: MIT
 *
 * `read`: open..close of files read whole, memory or page cache warm. A place that
 * is a directory gets a file written first; a place that is a file is only read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bench.h"

static int read_whole(const struct bench *b, const char *path, char *buf, uint64_t *len)
{
	CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	*len = 0;
	if (fd < 0)
		return -errno;
	while ((n = read(fd, buf, b->block)) > 0)
		*len += (uint64_t)n;
	return n < 0 ? -errno : 0;
}

static int prepare(struct bench *b, struct bench_place *p, char *path, size_t cap)
{
	CLEANUP_CLOSE int fd = -1;
	int err;

	if (!p->run[0]) {
		snprintf(path, cap, "%s", p->path);
		return 0;
	}
	snprintf(path, cap, "%s/read", p->run);
	fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	err = bench_write_all(b, fd, b->size);
	close(fd);
	fd = -1;
	/* so that its writeback does not disturb the first rounds */
	return err ? err : bench_durable(p, path);
}

int bench_cmd_read(struct bench *b)
{
	char path[BENCH_MAX_PLACES][PATH_MAX];
	char *buf = bench_source(b->block);
	uint64_t len;
	double t;
	int err = 0;

	if (!buf)
		return -errno;
	for (unsigned i = 0; i < b->n_places && !err; i++)
		err = prepare(b, &b->place[i], path[i], sizeof(path[i]));
	/* the first round is a warm-up */
	for (unsigned n = 0; n <= b->rounds && !err; n++) {
		for (unsigned i = 0; i < b->n_places && !err; i++) {
			t = bench_now();
			err = bench_stop ? -EINTR : read_whole(b, path[i], buf, &len);
			if (!err && n)
				bench_add(b, b->place[i].label, "read", "GB/s",
					  (double)len / (bench_now() - t) / 1e9);
		}
	}
	return err;
}

/* SPDX-License-Identifier: MIT
 *
 * Checksums of store files, for `cairn verify`; see sum.h. Not
 * io_sum_file(): a file of a terabyte needs a progress bar, several reads in
 * flight, and its holes skipped.
 */
#include "sum.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/cairn/base/cli.h"
#include "disk.h"
#include "io/store/store.h"
#include "io/sum/sum.h"

_Static_assert(CAIRN_SUM_LEN >= IO_CHECKSUM_LEN, "a checksum of io/ fits");

struct summing {
	struct disk *disk;
	struct io_sum *sum;
	void (*seen)(void *ctx, uint64_t bytes);
	void *ctx;
};

static void take_bytes(void *ctx, const void *bytes, size_t len)
{
	struct summing *s = ctx;

	io_sum_add(s->sum, bytes, len);
	if (s->seen)
		s->seen(s->ctx, len);
}

static void take_hole(struct summing *s, uint64_t len)
{
	io_sum_zeros(s->sum, len);
	if (s->seen)
		s->seen(s->ctx, len);
}

static int take_file(struct summing *s, off_t size)
{
	int fd = disk_fd(s->disk), err = 0;
	off_t off = 0;

	while (!err && off < size) {
		off_t data = lseek(fd, off, SEEK_DATA);
		off_t hole;

		if (data < 0) /* ENXIO: a hole up to the end; else: not supported */
			data = errno == ENXIO ? size : off;
		if (data > size)
			data = size;
		if (data > off)
			take_hole(s, (uint64_t)(data - off));
		hole = data < size ? lseek(fd, data, SEEK_HOLE) : size;
		if (hole <= data || hole > size)
			hole = size;
		err = disk_range(s->disk, (uint64_t)data, (uint64_t)hole, take_bytes, s);
		off = hole;
	}
	return err;
}

int sum_of_disk(struct disk *d, int fd, char out[CAIRN_SUM_LEN], bool *cached,
		void (*seen)(void *ctx, uint64_t bytes), void *ctx)
{
	struct summing s = {.disk = d, .seen = seen, .ctx = ctx};
	struct stat st;
	int err;

	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	s.sum = io_sum_new();
	if (!s.sum)
		return -ENOMEM;
	err = disk_use(d, fd);
	if (!err)
		err = take_file(&s, st.st_size);
	if (!err) {
		io_sum_text(s.sum, out);
		*cached = disk_cached(d);
	}
	io_sum_free(s.sum);
	return err;
}

/* ---- sidecar ------------------------------------------------------------------ */

struct sidecar {
	struct io_engine *engine;
	struct io_store *store;
};

static void no_notice(void *ctx, const char *text)
{
	(void)ctx;
	(void)text; /* notices of an engine that moves no bytes here */
}

int sidecar_open(int store, struct sidecar **out)
{
	struct io_engine_opts o = {.kind = "posix"};
	struct sidecar *s = calloc(1, sizeof(*s));
	char path[64];
	int err;

	*out = NULL;
	if (!s)
		return -ENOMEM;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", store);
	err = io_engine_open(&o, no_notice, NULL, &s->engine);
	if (!err)
		err = io_store_open(s->engine, path, true, NULL, NULL, &s->store);
	if (err)
		sidecar_close(s);
	else
		*out = s;
	return err;
}

void sidecar_close(struct sidecar *s)
{
	if (!s)
		return;
	if (s->store)
		io_store_close(s->store);
	if (s->engine)
		io_engine_close(s->engine);
	free(s);
}

int sidecar_sum(struct sidecar *s, int dirfd, const char *name, char out[CAIRN_SUM_LEN])
{
	ssize_t n = io_get_xattr(s->store, dirfd, name, KEY_CHECKSUM, out, CAIRN_SUM_LEN - 1);

	out[n < 0 ? 0 : n] = '\0';
	return n < 0 ? (int)n : 0;
}

/* SPDX-License-Identifier: MIT
 *
 * io/mounts: the mount table. No filesystem is accessed. */
#ifndef CAIRN_IO_MOUNTS_H
#define CAIRN_IO_MOUNTS_H

#include <stddef.h>

#define IO_MOUNTS_HERE "/proc/self/mountinfo"

struct io_mount {
	int id, parent;
	unsigned dev_major, dev_minor;
	char *root, *point, *fstype, *source;
};

struct io_mounts {
	struct io_mount *v; /* of several at one mount point the last is on top */
	size_t n;
};

/* path: IO_MOUNTS_HERE, or the mountinfo of another process. 0, then io_mounts_free(out); or
 * -errno. */
int io_mounts_read(const char *path, struct io_mounts *out);
void io_mounts_free(struct io_mounts *m);

#endif

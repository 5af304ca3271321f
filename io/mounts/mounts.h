/* SPDX-License-Identifier: MIT
 *
 * io/mounts: the mount table. No filesystem is accessed. */
#ifndef CAIRN_IO_MOUNTS_H
#define CAIRN_IO_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

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

/* What ends this process's mount namespace, and a tmpfs that is mounted only there. */
enum io_mounts_end {
	IO_MOUNTS_MACHINE, /* also if it cannot be told */
	IO_MOUNTS_NAMESPACE, /* its last process: it is not the namespace of process 1 */
	IO_MOUNTS_CONTAINER, /* process 1 ends before the machine */
};
enum io_mounts_end io_mounts_end(void);
/* Has process 1 mounted the filesystem of device dev? False also if it cannot be told. */
bool io_mounts_first_has(dev_t dev);
/* May the process of that mountinfo have at path a tmpfs that is not mounted here? */
bool io_mounts_may_hide(const char *table, const char *path);
/* May there be mount namespaces that no process in /proc is in? */
bool io_mounts_may_be_unseen(void);

#endif

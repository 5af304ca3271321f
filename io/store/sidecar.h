/* SPDX-License-Identifier: MIT
 *
 * user.cairn.* if the store has no xattrs: STORE/.cairn/meta/<dev>-<ino>, one
 * small file per inode, always replaced as a whole. Arguments as in the xattr calls
 * (name NULL = the inode fd itself). Keys other than user.cairn.*: -EOPNOTSUPP.
 */
#ifndef CAIRN_IO_SIDECAR_H
#define CAIRN_IO_SIDECAR_H

#include "store.h"

int io_sidecar_set(struct io_store *s, int fd, const char *name, const char *key, const void *val,
		   size_t len, int flags);
int io_sidecar_remove(struct io_store *s, int fd, const char *name, const char *key);
ssize_t io_sidecar_get(struct io_store *s, int fd, const char *name, const char *key, void *buf,
		       size_t cap);
ssize_t io_sidecar_list(struct io_store *s, int fd, const char *name, char *buf, size_t cap);

struct io_sidecar_key {
	bool valid;
	uint64_t dev, ino;
	/* inode numbers are reused; with the birth time they are unique */
	int64_t btime_s;
	uint32_t btime_ns;
};

/* Around an operation that may remove an inode's last name: record it before, drop its
 * sidecar after, unless dirfd/name (if given) still is that inode. */
void io_sidecar_about_to_go(struct io_store *s, int dirfd, const char *name,
			    struct io_sidecar_key *out);
void io_sidecar_gone(struct io_store *s, const struct io_sidecar_key *k, int dirfd,
		     const char *name);

#endif

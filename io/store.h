/* SPDX-License-Identifier: MIT
 *
 * The open store. Inside io/ only.
 */
#ifndef CAIRN_IO_STORE_H
#define CAIRN_IO_STORE_H

#include <pthread.h>

#include "engine.h"

#define IO_ID_LEN 32
#define IO_NAME_MAX 255

struct io_store {
	struct io_engine *e;
	bool ro;
	int root;	/* O_PATH */
	int root_rd;	/* O_RDONLY: syncfs and fstatfs take no O_PATH */
	int cairn;	/* STORE/.cairn; -1 = none (ro only) */
	int host;	/* STORE/.cairn/<host>; -1 with ro */
	int tmp, lostfound, meta;
	int lock;
	char id[IO_ID_LEN + 1];
	enum io_fs_kind fs;
	bool has_xattr;
	size_t xattr_room;
	uint64_t max_file;
	size_t max_link;
	atomic_uint serial;	/* names in tmp/ that are no version's */
	pthread_mutex_t meta_lock; /* read-modify-write of a sidecar */
};

/* 0; -EINVAL: not one component; -ENAMETOOLONG. */
int io_name_check(const char *name);
/* openat2 beneath dirfd, one component, no symlinks. Descriptor or -errno. */
int io_open_beneath(int dirfd, const char *name, int flags, mode_t mode);
/* A name in tmp/ that no version has ("l" + 15 hex digits). */
void io_scratch_name(struct io_store *s, char out[17]);
/* What kind of filesystem fd is on. */
int io_fs_kind(int fd, enum io_fs_kind *out);
/* As pread, and goes on until len or the end of the file; fd may be O_DIRECT. -errno. */
ssize_t io_read_full(int fd, void *buf, size_t len, uint64_t off);
/* XXH3_128bits_update of an XXH3_state_t; x86-64 with AVX2 only (sum_avx2.c). */
void io_sum_update_avx2(void *state, const void *bytes, size_t len);
/* As io_store_open found the store: writable, with user xattrs? */
bool io_xattr_probe(int fd, bool ro);
size_t io_xattr_room(int fd);	/* as io_store_xattr_room; fd writable, with xattrs */
/* "/proc/self/fd/N" or "/proc/self/fd/N/name" */
#define IO_PROC_PATH (32 + IO_NAME_MAX + 1)
void io_proc_path(char out[IO_PROC_PATH], int fd, const char *name);

#endif

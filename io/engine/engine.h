/* SPDX-License-Identifier: MIT
 *
 * io/engine: every operation that changes or syncs the store goes through the engine's table, so
 * that the fault engine (CAIRNFS_FAULT) can replace the real ones.
 *
 * Errors: every function returns 0 (or a count or descriptor where stated) or a negative errno.
 * Nothing here logs. Sizes and offsets are in bytes.
 */
#ifndef CAIRN_IO_ENGINE_H
#define CAIRN_IO_ENGINE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include "io/align.h"

#ifdef __cplusplus
extern "C" {
#endif

struct io_engine; /* shared by all threads */
struct io_queue; /* one per thread; never shared */

struct io_engine_opts {
	const char *kind; /* "uring" or "posix" */
	unsigned depth; /* writes in flight per queue; 0 = 8 */
	unsigned chunk_bytes; /* one write; multiple of IO_ALIGN; 0 = 2 MiB */
	const char *fault; /* "seed:rate:kinds" or NULL; see IO_FAULT_ENV */
};

/* A notice is a fallback taken at run time (no io_uring, no O_DIRECT, ...),
 * reported once each. `text` is static storage and may begin with a level (io/level.h). May be
 * called from any thread. */
typedef void (*io_notice_fn)(void *ctx, const char *text);

/* Opens an engine. kind "uring" becomes "posix" (with a notice) if
 * io_uring_queue_init(3) fails (ENOSYS, EPERM: seccomp, sysctl).
 * -EINVAL: unknown kind or malformed fault; -ENOMEM. */
int io_engine_open(const struct io_engine_opts *opts, io_notice_fn notice, void *ctx,
		   struct io_engine **out);
void io_engine_close(struct io_engine *e); /* NULL is allowed; all queues must be closed */
/* "uring", "posix", "uring+fault", ... */
const char *io_engine_name(const struct io_engine *e);

/* Operations and errors seen by the engine since start, for metrics. */
struct io_counts {
	uint64_t ops, write_bytes, syncs, errors, faults;
};
void io_engine_counts(const struct io_engine *e, struct io_counts *out);
/* For tests: check(ctx) runs before each operation on the store, in the thread that performs it.
 * Set it before there are other threads. */
void io_engine_check(struct io_engine *e, void (*check)(void *ctx), void *ctx);

int io_queue_open(struct io_engine *e, struct io_queue **out);
void io_queue_close(struct io_queue *q);
/* Writes in flight on this queue. Any thread. */
unsigned io_queue_inflight(const struct io_queue *q);

/* Called with the bytes, in order, exactly once, while their write is in flight. */
typedef void (*io_seen_fn)(void *ctx, const void *bytes, size_t len);
/* Called between chunks; true stops the write with -ECANCELED. */
typedef bool (*io_stop_fn)(void *ctx);

struct io_extent {
	uint64_t off, len;
};

struct io_source {
	const void *base; /* mapped file; readable up to size rounded up to IO_ALIGN */
	uint64_t size; /* of the file */
	/* sorted, not overlapping; gaps are holes. off may be unaligned; the writer widens to
	 * IO_ALIGN (the bytes in between are zero in the mapping) */
	const struct io_extent *data;
	unsigned n_data;
	/* NULL, or called over the whole file [0,size), holes as zeros */
	io_seen_fn seen;
	io_stop_fn stop; /* NULL = never */
	void *ctx;
};

/* Writes the whole source to fd (`direct`: opened with O_DIRECT), an empty file (blocks
 * may be allocated), so that holes stay holes. If direct, the tail is padded to IO_ALIGN,
 * then cut off by ftruncate. Does not sync. Short writes are continued. On error all
 * writes in flight have completed or been reaped before it returns; the content of fd is
 * then undefined. -EIO, -ENOSPC, ...: the store's error; -ECANCELED. */
int io_write_file(struct io_queue *q, int fd, bool direct, const struct io_source *src);

/* ---- calls: operations of io/store/ on the store -------------------------- */

enum io_op {
	IO_OP_WRITE,
	IO_OP_CREATE,
	IO_OP_ALLOCATE,
	IO_OP_TRUNCATE,
	IO_OP_ATTR,
	IO_OP_XATTR_SET,
	IO_OP_XATTR_REMOVE,
	IO_OP_RENAME,
	IO_OP_LINK,
	IO_OP_UNLINK,
	IO_OP_RMDIR,
	IO_OP_MKDIR,
	IO_OP_SYMLINK,
	IO_OP_MKNOD,
	IO_OP_SYNC_DATA,
	IO_OP_SYNC_DIR,
	IO_OP_SYNC_ALL,
	IO_OP_SYNC_MARK,
	IO_OP_SHARE,
	IO_OP_CLONE,
	IO_OP_COUNT
};

struct io_attr {
	unsigned mask;
#define IO_ATTR_MODE 1u
#define IO_ATTR_OWNER 2u
#define IO_ATTR_ATIME 4u
#define IO_ATTR_MTIME 8u
	mode_t mode; /* permission bits and suid/sgid/sticky */
	uid_t uid; /* (uid_t)-1 = unchanged */
	gid_t gid;
	struct timespec atime, mtime;
};

struct io_store;

/* One blocking operation; which fields count depends on op (see calls.c). */
struct io_call {
	enum io_op op;
	int fd; /* the file, or the directory of name */
	const char *name;
	int fd2; /* directory of name2; of a sync: io_store_journal() */
	const char *name2; /* or a symlink's target */
	const void *buf;
	size_t len;
	uint64_t off, size;
	int flags;
	mode_t mode;
	const struct io_attr *attr;
	const char *key;
	/* NULL, or called on `store` instead of the system call: it keeps xattrs outside the
	 * inodes */
	ssize_t (*instead)(struct io_store *store, const struct io_call *c);
	struct io_store *store;
};

/* Runs one call through the table, counted: 0, a count or descriptor, or -errno. */
ssize_t io_call_run(struct io_engine *e, const struct io_call *c);
/* The same without the table: no injected errors, not counted. */
ssize_t io_call_real(struct io_engine *e, const struct io_call *c);
/* Runs the function set by io_engine_check: before reads of the store that bypass the table. */
void io_engine_run_check(struct io_engine *e);

enum io_note {
	IO_NOTE_NO_URING,
	IO_NOTE_NO_DIRECT,
	IO_NOTE_NO_DONTCACHE,
	IO_NOTE_NO_ALLOCATE,
	IO_NOTE_NO_XATTR,
	IO_NOTE_COUNT
};

/* Records that the store lacks something, with one notice. */
void io_lacks(struct io_engine *e, enum io_note what);
bool io_is_lacking(struct io_engine *e, enum io_note what);

/* errno of a call on the store, or on a staged file, which may be there, negative. EIO replaces:
 * errors of an ended connection, because ENOTCONN from us would mean that this mount is dead;
 * EROFS, of a filesystem that shut down, because the mount is not read-only; EBADF, because the
 * store was detached. */
static inline int io_errno(int err)
{
	switch (err) {
	case ENOTCONN:
	case ECONNABORTED:
	case ECONNREFUSED:
	case ESHUTDOWN:
	case ENODEV:
	case EBADF:
	case EROFS: return -EIO;
	default: return -err;
	}
}

static inline int io_error(void)
{
	return io_errno(errno);
}

/* After an open failed: true: it is to be tried again. Descriptors may be few, and what the other
 * threads have open is closed soon: waits for that up to a second in all. *waited begins with 0. */
bool io_await_descriptor(ssize_t err, unsigned *waited);

#define IO_NAME_MAX 255
/* "/proc/self/fd/N" or "/proc/self/fd/N/name" */
#define IO_PROC_PATH (32 + IO_NAME_MAX + 1)
void io_proc_path(char out[IO_PROC_PATH], int fd, const char *name);

/* ---- fault engine ---------------------------------------------------------- */

/* "seed:rate:kinds": rate = one fault in `rate` operations (0 = none), or "@N" =
 * exactly the Nth operation (1-based), or "@N+" = every one from the Nth. Operations
 * since io_engine_open are counted if they change or sync the store (each chunk of
 * io_write_file is one) and can have one of the kinds: short only for writes, lostsync
 * only for syncs, nolink (EPERM, as of a store without hard links) only for links.
 * io_store_open itself is not counted. kinds = comma list of eio, enospc, edquot, short,
 * delay, lostsync, nolink. Lostsync: a sync call fails
 * with EIO once and the data written since the previous sync through that fd is
 * dropped (punched), as ext4/xfs do (ATC '20); a sync of all or of a directory drops that
 * of every file, and each file's own next sync fails for it, too. */
#define IO_FAULT_ENV "CAIRNFS_FAULT"

#ifdef __cplusplus
}
#endif
#endif

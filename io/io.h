/* SPDX-License-Identifier: MIT
 *
 * io: moves bytes and names to stable storage.
 *
 * Two things live in this room. The *store* is a plain directory reached only
 * through descriptors opened at start; every call takes a directory descriptor
 * and one name. The *engine* is the table every store call goes through, so that
 * a failing twin (CAIRNFS_FAULT) can stand in for any of them.
 *
 * Errors: every function returns 0 (or a count or descriptor where said) or a
 * negative errno. Nothing here logs. Sizes and offsets are bytes.
 */
#ifndef CAIRN_IO_H
#define CAIRN_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Room for "xxh3:" + 32 hex digits + NUL. */
#define IO_CHECKSUM_LEN 40
/* Alignment of memory, offset and length that O_DIRECT is given. 4096 is a
 * multiple of every logical block size Linux supports (open(2), NOTES). */
#define IO_ALIGN 4096u

/* ---- engine ------------------------------------------------------------ */

struct io_engine; /* shared by all threads */
struct io_queue;  /* one per thread; never shared */

struct io_engine_opts {
	const char *kind;	/* "uring" or "posix" */
	unsigned depth;		/* writes in flight per queue; 0 = 8 */
	unsigned chunk_bytes;	/* one write; multiple of IO_ALIGN; 0 = 2 MiB */
	const char *fault;	/* "seed:rate:kinds" or NULL; see io_fault_parse */
};

/* A notice is a fallback taken at run time (no io_uring, no O_DIRECT, ...),
 * reported once each. `text` is static storage. May be called from any thread. */
typedef void (*io_notice_fn)(void *ctx, const char *text);

/* Opens an engine. kind "uring" silently becomes "posix" (with a notice) where
 * io_uring_queue_init(3) fails (ENOSYS, EPERM: seccomp, sysctl).
 * -EINVAL: unknown kind or malformed fault; -ENOMEM. */
int io_engine_open(const struct io_engine_opts *opts, io_notice_fn notice, void *ctx,
		   struct io_engine **out);
void io_engine_close(struct io_engine *e);	/* NULL is fine; all queues closed before */
const char *io_engine_name(const struct io_engine *e); /* "uring", "posix", "uring+fault", ... */

/* Operations and errors seen by the engine since start, for metrics. */
struct io_counts {
	uint64_t ops, write_bytes, syncs, errors, faults;
};
void io_engine_counts(const struct io_engine *e, struct io_counts *out);

int io_queue_open(struct io_engine *e, struct io_queue **out);
void io_queue_close(struct io_queue *q);
/* Writes in flight on this queue just now. Any thread. */
unsigned io_queue_inflight(const struct io_queue *q);

/* Bytes as they pass by, in order, exactly once, while their write is in flight. */
typedef void (*io_seen_fn)(void *ctx, const void *bytes, size_t len);
/* Asked between chunks; true stops the write with -ECANCELED. */
typedef bool (*io_stop_fn)(void *ctx);

struct io_extent {
	uint64_t off, len;
};

struct io_source {
	const void *base;	/* mapped file; readable up to size rounded up to IO_ALIGN */
	uint64_t size;		/* of the file */
	const struct io_extent *data; /* sorted, not overlapping; what lies between is a hole.
				 * off may be unaligned; the writer widens to IO_ALIGN,
				 * (bytes in between are zero in the mapping) */
	unsigned n_data;
	io_seen_fn seen;	/* NULL, or called over the whole file [0,size), holes as zeros */
	io_stop_fn stop;	/* NULL = never */
	void *ctx;
};

/* Writes the whole source into fd (O_DIRECT or not: `direct` says which), a file that
 * is empty so far (its blocks may be allocated), so that holes stay holes. The tail is
 * padded to IO_ALIGN when direct, then cut by ftruncate to size. Does not sync.
 * Short writes are continued. On error all in-flight writes have completed or
 * been reaped before it returns; the content of fd is then undefined.
 * -EIO, -ENOSPC, ... as the store said; -ECANCELED. */
int io_write_file(struct io_queue *q, int fd, bool direct, const struct io_source *src);

/* ---- store ------------------------------------------------------------- */

struct io_store;

enum io_fs_kind {
	IO_FS_ORDERED,	/* ext4 with a journal, xfs: metadata reaches the journal in order; one fsync
			 * commits everything before it */
	IO_FS_EACH,	/* no order among directories (ext4 without a journal, tmpfs, network
			 * stores): each directory is synced by itself */
	IO_FS_SYNCFS,	/* btrfs: only syncfs commits across directories */
};

/* Opens the store directory. Creates STORE/.cairn (0700) and under it
 * <host>/ (0700) with lock, tmp/ and lost+found beside (STORE/.cairn/lost+found).
 * With `ro` nothing is created and no lock is taken.
 * The lock (flock on STORE/.cairn/<host>/lock, holding the pid as text) is kept by
 * the open store and inherited over fork.
 * -EWOULDBLOCK: served by a live cairnfs, *holder_pid says which (0 = unknown);
 * -ENOTDIR, -ENOENT, -EACCES, -EROFS, -ENOSPC ... as open(2), mkdir(2). */
int io_store_open(struct io_engine *e, const char *path, bool ro, int *holder_pid,
		  struct io_store **out);
void io_store_close(struct io_store *s);
/* Writes pid into the lock file; the process that keeps the lock changes when it daemonizes. */
int io_store_lock_pid(struct io_store *s, int pid);

int io_store_root(const struct io_store *s);	/* O_PATH|O_DIRECTORY; owned by the store */
int io_store_tmp(const struct io_store *s);	/* likewise, .cairn/<host>/tmp; -1 with ro */
int io_store_lostfound(const struct io_store *s);
/* 32 hex digits + NUL naming this store: STORE/.cairn/id, made at first open. "" with ro and none. */
const char *io_store_id(const struct io_store *s);
/* Has another node, too, ever mounted this store? (A second <host> in STORE/.cairn.) */
bool io_store_shared(const struct io_store *s);
enum io_fs_kind io_store_fs(const struct io_store *s);
bool io_store_has_xattr(const struct io_store *s);
/* Bytes that the users' xattrs of one inode may take together (a value, its name, 16 an entry);
 * SIZE_MAX = no limit but each value's. 0 without xattrs and with ro. */
size_t io_store_xattr_room(const struct io_store *s);
/* The longest that a file of it can be, in bytes; found by trying. UINT64_MAX with ro. */
uint64_t io_store_max_file(const struct io_store *s);
/* The longest target that a symlink of it can have, likewise; 0: it has no symlinks. PATH_MAX - 1 with ro. */
size_t io_store_max_link(const struct io_store *s);
int io_store_statvfs(const struct io_store *s, struct statvfs *out);

/* All below: dirfd is an O_PATH or O_RDONLY directory descriptor; `name` is one
 * component (no '/', not "." or "..": -EINVAL; over 255 bytes: -ENAMETOOLONG).
 * For io_stat, io_set_attr and the xattr calls, name NULL is dirfd itself.
 * Changes give -EROFS where the store was opened with ro. Symlinks are never followed
 * (openat2 RESOLVE_BENEATH|NO_SYMLINKS|NO_MAGICLINKS). Thread-safe. */
int io_open_dir(struct io_store *s, int dirfd, const char *name);	/* O_PATH fd, caller closes */
int io_open_read(struct io_store *s, int dirfd, const char *name, int extra_flags); /* regular files only: -EINVAL else; extra e.g. O_DIRECT */
int io_stat(struct io_store *s, int dirfd, const char *name, struct stat *out);	/* lstat */
ssize_t io_readlink(struct io_store *s, int dirfd, const char *name, char *buf, size_t cap); /* NUL-terminated; -ENAMETOOLONG if cut */

/* Unpublished files: name in tmp/ is 16 hex digits of vid. */
void io_tmp_name(uint64_t vid, char out[17]);
/* Creates (or truncates) it, mode 0600. *direct tells whether O_DIRECT was had
 * (asked with want_direct). Returns the descriptor (O_RDWR). */
int io_tmp_create(struct io_store *s, uint64_t vid, bool want_direct, bool *direct);
int io_tmp_open(struct io_store *s, uint64_t vid, int flags);	/* existing; -ENOENT */
int io_tmp_remove(struct io_store *s, uint64_t vid);		/* 0 also when absent */
/* Allocates blocks for [off, off+len) without changing contents (fallocate mode
 * FALLOC_FL_KEEP_SIZE). -ENOSPC, -EDQUOT. A store without fallocate: returns 0 if
 * statvfs says there is room for len, else -ENOSPC. */
int io_allocate(struct io_store *s, int fd, uint64_t off, uint64_t len);
/* plain pwrite of all bytes, for files too small to gain from O_DIRECT */
int io_pwrite(struct io_store *s, int fd, const void *buf, size_t len, uint64_t off);
int io_truncate(struct io_store *s, int fd, uint64_t size);

struct io_attr {
	unsigned mask;
#define IO_ATTR_MODE 1u
#define IO_ATTR_OWNER 2u
#define IO_ATTR_ATIME 4u
#define IO_ATTR_MTIME 8u
	mode_t mode;	/* permission bits and suid/sgid/sticky */
	uid_t uid;	/* (uid_t)-1 = unchanged */
	gid_t gid;
	struct timespec atime, mtime;
};
int io_set_attr_fd(struct io_store *s, int fd, const struct io_attr *a);
int io_set_attr(struct io_store *s, int dirfd, const char *name, const struct io_attr *a); /* never follows a symlink */

/* xattrs by name below dirfd or by fd (fd wins when >= 0). Work on O_PATH (via
 * /proc/self/fd). Where the store has none, user.cairn.* go to a sidecar under
 * STORE/.cairn/meta/, keyed by (st_dev, st_ino, birth time), and others give -EOPNOTSUPP. */
int io_set_xattr(struct io_store *s, int dirfd, const char *name, int fd, const char *key, const void *val, size_t len, int flags);
int io_remove_xattr(struct io_store *s, int dirfd, const char *name, const char *key);
ssize_t io_get_xattr(struct io_store *s, int dirfd, const char *name, const char *key, void *buf, size_t cap); /* as getxattr(2) */
ssize_t io_list_xattr(struct io_store *s, int dirfd, const char *name, char *buf, size_t cap);	/* as listxattr(2) */

/* Names. tmp → place replaces what stands there atomically (rename(2)). */
int io_publish(struct io_store *s, uint64_t vid, int dirfd, const char *name);
int io_rename(struct io_store *s, int d1, const char *n1, int d2, const char *n2, unsigned flags); /* renameat2 flags */
/* Makes d2/n2 another name of d1/n1, replacing d2/n2 atomically if it exists. */
int io_link(struct io_store *s, int d1, const char *n1, int d2, const char *n2);
int io_unlink(struct io_store *s, int dirfd, const char *name);
int io_rmdir(struct io_store *s, int dirfd, const char *name);
int io_mkdir(struct io_store *s, int dirfd, const char *name, mode_t mode);
int io_symlink(struct io_store *s, const char *target, int dirfd, const char *name);
int io_mknod(struct io_store *s, int dirfd, const char *name, mode_t mode);	/* S_IFSOCK, S_IFIFO only */

/* Durability. */
int io_sync_data(struct io_store *s, int fd);	/* fdatasync */
int io_sync_dir(struct io_store *s, int dirfd);	/* fsync of an O_PATH directory: reopened */
int io_sync_all(struct io_store *s);		/* syncfs */

/* Shared extents. Whether this store has them is found by trying on two nameless files in
 * tmp/ (some ms). 0: yes; -EOPNOTSUPP: it never will; else (-ENOSPC, -EIO, ...) ask again. */
int io_can_share(struct io_store *s);
/* The kernel compares through the page cache: ask io_same_bytes first whether the disk has it so.
 * Where [off, off+len) is equal in both files, `to` gets `from`'s blocks for it and its own
 * are freed; neither's bytes, size and times change, at any crash. off is a multiple of the
 * block size, and so is off+len unless both files end there. `to` is open for writing, or
 * ours. Returns how many bytes are shared (fewer than len: go on from there); 0: they differ.
 * Reads both files; holds their locks meanwhile, so len is a few MiB. */
ssize_t io_share(struct io_store *s, int from, int to, uint64_t off, uint64_t len);
/* How many bytes from off on, of the next len, lie in the same blocks in both files already.
 * 0: none, or the filesystem does not say. */
uint64_t io_is_shared(int from, int to, uint64_t off, uint64_t len);
/* Are [off, off+len) of both equal, as fd reads them and as they lie on the disk for `disk`? That is
 * opened with O_DIRECT (or its cache is dropped, where the store has none); off is a multiple of the
 * block size. buf has room for 2 * (len + IO_ALIGN) bytes; what fd reads is at its beginning. 1, 0, -errno. */
int io_same_bytes(int fd, int disk, uint64_t off, size_t len, char *buf);
/* `to`, empty and open for writing, gets all of `from`'s blocks and its size; what is dirty of
 * `from` is written to the disk first. An error may leave it with some of both. -EOPNOTSUPP: never
 * here; -EXDEV; else as ioctl_ficlone(2). */
int io_clone(struct io_store *s, int from, int to);

/* ---- checksum ------------------------------------------------------------ */

struct io_sum; /* streaming XXH3-128 */
struct io_sum *io_sum_new(void);		/* NULL = no memory */
void io_sum_free(struct io_sum *m);
void io_sum_reset(struct io_sum *m);
void io_sum_add(struct io_sum *m, const void *bytes, size_t len);
void io_sum_zeros(struct io_sum *m, uint64_t len);
void io_sum_text(const struct io_sum *m, char out[IO_CHECKSUM_LEN]); /* "xxh3:<32 hex>", canonical (big-endian) order, as xxhsum -H2 prints */

/* Reads fd past the page cache (O_DIRECT where possible, else POSIX_FADV_DONTNEED
 * first) and computes its checksum. */
int io_sum_file(struct io_store *s, int fd, char out[IO_CHECKSUM_LEN]);

/* ---- fault twin ---------------------------------------------------------- */

/* "seed:rate:kinds": rate = one fault in `rate` operations (0 = none), or "@N" =
 * exactly the Nth operation (1-based), or "@N+" = every one from the Nth. Counted are
 * the operations since io_engine_open that change or sync the store (each chunk of
 * io_write_file is one) and can suffer one of the kinds: short only writes, lostsync
 * only syncs. io_store_open itself is not counted. kinds =
 * comma list of eio, enospc, short, delay, lostsync. Lostsync: a sync call fails
 * with EIO once and the data written since the previous sync through that fd is
 * dropped (punched), as ext4/xfs do (ATC '20); a sync of all or of a directory drops that
 * of every file, and each file's own next sync fails for it, too. */
#define IO_FAULT_ENV "CAIRNFS_FAULT"

#ifdef __cplusplus
}
#endif
#endif

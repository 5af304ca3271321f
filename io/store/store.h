/* SPDX-License-Identifier: MIT
 *
 * io/store: a plain directory accessed only through descriptors opened at start; every call takes a
 * directory descriptor and one name. Changes and syncs go through an engine.
 *
 * Errors: every function returns 0 (or a count or descriptor where stated) or a
 * negative errno. Nothing here logs. Sizes and offsets are in bytes.
 */
#ifndef CAIRN_IO_STORE_H
#define CAIRN_IO_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include "io/engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

struct io_store;

enum io_fs_kind {
	/* ext4 with a journal, xfs: metadata reaches the journal in order; one fsync commits
	 * everything before it */
	IO_FS_ORDERED,
	/* no order among directories (ext4 without a journal, tmpfs, network stores): each
	 * directory is synced separately */
	IO_FS_EACH,
	IO_FS_SYNCFS, /* btrfs: only syncfs commits across directories */
};

/* The hosts of a store (hosts.c). A host that has said nothing for this long is taken for gone. */
#define IO_HOST_SILENT_S 60
#define IO_HOST_BEAT_S 10 /* how often it says that it is alive */
#define IO_HOST_LIVE_S 25 /* one that was heard of this long ago has missed two times */
#define IO_INSTANCE 16 /* hex digits */
enum io_host_said {
	IO_HOST_SAID_NOTHING, /* it never mounted the store with a version that says anything */
	IO_HOST_ALIVE, /* at `heard` */
	IO_HOST_ENDED, /* a clean unmount, at `heard` */
};
#define IO_CLIENT_LOCAL "local"
struct io_host {
	char name[72]; /* its directory below STORE/.cairn */
	unsigned number; /* 0: none; not without `all` */
	enum io_host_said said;
	int64_t heard; /* by the store's clock, s since 1970 */
	/* what it said: of its machine (also the hostname, for people), the process that made the
	 * claim and how it reaches the store (IO_CLIENT_LOCAL: on a local disk, where it sets no
	 * times while it is alone), its keeper; since when, by its own clock, s since 1970 */
	char boot[37], machine[65], instance[IO_INSTANCE + 1], client[24], version[32];
	int pid;
	int64_t since;
	uint64_t left; /* changes that an unmount left in its staging */
	bool locked; /* a process of this machine serves the store as this host */
};

/* Opens the store directory. Creates STORE/.cairn (0700) with lost+found/, previous/ and <host>/
 * (0700), which has lock and tmp/.
 * With `ro` nothing is created and no lock is taken.
 * host: the name of this host's directory, in which other characters than in hostnames become '_';
 * NULL: the hostname.
 * The lock (flock on STORE/.cairn/<host>/lock, holding the pid as text) is kept by
 * the open store and inherited over fork, as is the claim, STORE/.cairn/<host>/alive (claim.c).
 * -EWOULDBLOCK: served by another cairnfs;
 * -EADDRINUSE: by another one that reaches the store by another client, or maybe so: it is known
 *   when its heartbeat moves, or did not for IO_HOST_LIVE_S; ask again until then;
 * -EOPNOTSUPP: it has neither hard links nor RENAME_NOREPLACE;
 * -ENOTDIR, -ENOENT, -EACCES, -EROFS, -ENOSPC ... as open(2), mkdir(2).
 * *by: who serves it; may be NULL. */
struct io_served {
	int pid; /* with -EWOULDBLOCK; 0: unknown */
	struct io_host of; /* with -EADDRINUSE: as its claim says */
};
int io_store_open(struct io_engine *e, const char *path, bool ro, const char *host,
		  struct io_served *by, struct io_store **out);
void io_store_close(struct io_store *s);
/* Checks through the store's descriptors whether it can still be used, by writing a scratch file
 * unless it was opened with ro. 0, or the errno that shows that its filesystem is gone or has shut
 * down (ENOTCONN, ESTALE, EIO, EROFS, ESHUTDOWN, ...). For other errors, such as ENOSPC, 0. Blocks
 * as long as the store does. Bypasses the engine: no injected errors. */
int io_store_probe(struct io_store *s);
/* Closes all descriptors, including the lock: a filesystem that has shut down can be mounted again
 * only when nothing holds the old mount. Later calls on s return -EIO. The id and similar data stay
 * available. */
void io_store_detach(struct io_store *s);
bool io_store_is_detached(const struct io_store *s);
/* Is the store that s was at its path again, usable, and to be had as this host? 0; -EXDEV: another
 * store is there; -EADDRINUSE: another cairnfs serves it as this host, or did moments ago, *by as
 * its claim says (may be NULL); -errno. */
int io_store_is_back(const struct io_store *s, struct io_host *by);
/* The claim was that of one that may live, on another machine: its unpublished files stay. */
bool io_store_took_over(const struct io_store *s);
/* Writes pid into the lock file, and in a second line that of the process that took the lock: the
 * one that keeps it changes, when it daemonizes and when a spare replaces it. */
int io_store_lock_pid(struct io_store *s, int pid);
/* Removes what io_link and the sidecar left in tmp/ when their process was killed, such as an extra
 * name of a file. No other process of this host may be using s. Opening does it, too. 0 or
 * -errno. */
int io_store_drop_scratch(struct io_store *s);
/* Puts back modes that were changed when their process was killed (lend.c). Opening does it; a new
 * worker before it reads the store. No other process of this host may be using s. */
void io_lend_recover(struct io_store *s);

int io_store_root(const struct io_store *s); /* O_PATH|O_DIRECTORY; owned by the store */
int io_store_tmp(const struct io_store *s); /* likewise, .cairn/<host>/tmp; -1 with ro */
int io_store_lostfound(const struct io_store *s);
/* likewise, .cairn/previous, of all hosts; -1: it could not be made */
int io_store_previous(const struct io_store *s);
/* 32 hex digits + NUL, the store's id: STORE/.cairn/id, created at first open. "" with ro and
 * none. */
const char *io_store_id(const struct io_store *s);
/* Gives it another id permanently: it is a copy of the store that has this one. */
int io_store_new_id(struct io_store *s);

/* The identity of a store's directory, as far as its filesystem provides it (`known`). Part of
 * staging's head. */
enum { IO_WHERE_UUID = 1, IO_WHERE_FSID = 2, IO_WHERE_INO = 4, IO_WHERE_BTIME = 8 };
struct io_where {
	uint8_t uuid[16]; /* of the filesystem */
	uint64_t fsid; /* as statfs(2) */
	uint64_t ino; /* of the store's directory */
	int64_t btime_sec; /* its birth time */
	uint32_t btime_nsec;
	uint32_t known;
};
void io_store_where(const struct io_store *s, struct io_where *out);
/* Its present path, for messages; "" = unknown. */
void io_store_path(const struct io_store *s, char *buf, size_t cap);
/* All fields known in both are equal. A filesystem that was copied as a whole (dd, a snapshot of
 * its device) cannot be distinguished from the original. */
bool io_where_same(const struct io_where *a, const struct io_where *b);
/* A start that is refused: removes what the open created for this host, so that the store does not
 * count it, and the claim if it had ended before. Only before anything was staged or published;
 * close the store next. */
void io_store_forget_host(struct io_store *s);
/* Is, or was, the store served by a host of this name (NULL: the hostname)? True also if it does
 * not say. */
bool io_store_has_host(const struct io_store *s, const char *host);
/* Has another node ever mounted this store? (A second <host> in STORE/.cairn.) One listing. 1, 0;
 * -errno: the store did not say. */
int io_store_shared(struct io_store *s);
/* io_store_shared() has returned 1. Asks nothing. */
bool io_store_is_shared(const struct io_store *s);

/* This host's name there; "" with ro. */
const char *io_store_host(const struct io_store *s);
/* Its number in this store, from 1 to IO_HOST_NUMBERS, which no other host has ever had; 0: it has
 * none (ro; no symlinks; no space for one, or all are taken). */
#define IO_HOST_NUMBERS 3839u
unsigned io_store_host_number(const struct io_store *s);
int io_store_cairn(const struct io_store *s); /* STORE/.cairn, O_PATH; owned by s */
/* Of this start of the kernel; "": unknown. */
void io_boot_id(char out[37]);
/* Writes into its claim what h says itself: said, pid, since, version, left. Makes the claim if
 * this host has none: for want of space, or since it ended. -EADDRINUSE: another took it; -EROFS,
 * or as write(2). */
int io_host_say(struct io_store *s, const struct io_host *h);
/* Does a start ask whether this host is alive, because it is alone and sets no times? Once. */
bool io_host_asked(struct io_store *s);
/* This host is alive still. *now: by the store's clock; NULL: only looks whether the claim is ours.
 * -ENOENT: it has none. -EADDRINUSE, perhaps without *now: another took it, and may have ended. */
int io_host_beat(struct io_store *s, int64_t *now);
/* Calls found for each host, this one included. cairn: a descriptor of STORE/.cairn. Without `all`
 * only for those that said IO_HOST_ALIVE, with name, said and heard: one call to the store each.
 * 0 or -errno of the listing. */
int io_hosts_each(int cairn, bool all, void (*found)(void *ctx, const struct io_host *h),
		  void *ctx);
/* Would the host's lock tell us that its process lives? dir: a directory of the store, not O_PATH:
 * we reach the store by the same client as that process, or both by the local filesystem. */
bool io_host_shares_locks(int dir, const struct io_host *h);
/* *now: by the store's clock. -EROFS, -EACCES ... : nothing can be written there. */
int io_hosts_clock(int cairn, int64_t *now);
/* How many saves of a directory were committed, by whatever host: STORE/.cairn/.saves (saves.c).
 * key stands for the directory, and is a name of at most IO_SAVE_KEY - 1 bytes. Only where the
 * store has xattrs. */
#define IO_SAVE_KEY 17
/* *n: 0 if there is none. 0; -EBADMSG: it is no number; or as open(2), getxattr(2). */
int io_saves_count(struct io_store *s, const char *key, uint64_t *n);
/* Makes it at least `least`; 0: one more than it is. -EROFS, -EOPNOTSUPP; or as open(2),
 * setxattr(2). */
int io_saves_raise(struct io_store *s, const char *key, uint64_t least);
int io_saves_sync(struct io_store *s, const char *key); /* it is durable */
enum io_fs_kind io_store_fs(const struct io_store *s);
bool io_store_has_xattr(const struct io_store *s);
/* Bytes that the users' xattrs of one inode may take together (a value, its name, 16 per entry);
 * SIZE_MAX = only each value is limited. 0 without xattrs and with ro. */
size_t io_store_xattr_space(const struct io_store *s);
/* The maximum size of a file in bytes; determined by trying. UINT64_MAX with ro. */
uint64_t io_store_max_file(const struct io_store *s);
/* The maximum length of a symlink's target, likewise; 0: it has no symlinks. PATH_MAX - 1 with
 * ro. */
size_t io_store_max_link(const struct io_store *s);
/* After io_store_ask_aside: what was seen last, if the store is silent. */
int io_store_statvfs(struct io_store *s, struct statvfs *out);

/* ---- silent.c: a store that does not answer ---- */

#define IO_SILENT_NS 1000000000ull

/* From now on a thread of its own asks for the free space, so that others learn whether the store
 * answers. In the process that uses it, once; it is not closed after that. 0; -ENOMEM, -EAGAIN. */
int io_store_ask_aside(struct io_store *s);
/* Has that thread ask now. Any lock may be held that io/locks.h ranks below RANK_STORE_ASKER. */
void io_store_look(struct io_store *s);
/* Since when a call has not returned, CLOCK_MONOTONIC, ns. 0: the store answers, or has not been
 * asked, or for less than IO_SILENT_NS. */
uint64_t io_store_silent_since(const struct io_store *s);
/* Bytes that the quotas of this user and group still allow them; UINT64_MAX: no limit, or
 * unknown. A project's limit is in statvfs. */
uint64_t io_store_quota_left(struct io_store *s, uid_t uid, gid_t gid);
/* False once an allocation was refused: the store has no fallocate, and blocks cannot be allocated
 * ahead. */
bool io_store_allocates(const struct io_store *s);

/* All below: dirfd is an O_PATH or O_RDONLY directory descriptor; `name` is one
 * component (no '/', not "." or "..": -EINVAL; over 255 bytes: -ENAMETOOLONG).
 * For io_stat, io_stat_born, io_set_attr and the xattr calls, name NULL is dirfd itself.
 * Changes fail with -EROFS if the store was opened with ro. Symlinks are never followed
 * (openat2 RESOLVE_BENEATH|NO_SYMLINKS|NO_MAGICLINKS). Thread-safe. What an object's mode denies
 * its owner, as whom we run, is done all the same (lend.c); no caller sees the mode meanwhile. */
/* O_PATH fd, caller closes */
int io_open_dir(struct io_store *s, int dirfd, const char *name);
int io_open_list(struct io_store *s, int dirfd); /* for fdopendir(3); caller closes */
/* regular files only: -EINVAL else; extra e.g. O_DIRECT */
int io_open_read(struct io_store *s, int dirfd, const char *name, int extra_flags);
int io_stat(struct io_store *s, int dirfd, const char *name, struct stat *out); /* lstat */
/* The same, with the inode's birth time in ns since 1970; 0 if the store does not provide it. Inode
 * numbers are reused; the two together are unique. */
int io_stat_born(struct io_store *s, int dirfd, const char *name, struct stat *out,
		 uint64_t *birth_ns);
/* NUL-terminated; -ENAMETOOLONG if cut */
ssize_t io_readlink(struct io_store *s, int dirfd, const char *name, char *buf, size_t cap);

/* Unpublished files: name in tmp/ is 16 hex digits of vid. */
void io_tmp_name(uint64_t vid, char out[17]);
bool io_tmp_id(const char *name, uint64_t *vid); /* false: no such name */
/* Creates (or truncates) it, mode 0600. *direct: O_DIRECT was possible
 * (requested with want_direct). Returns the descriptor (O_RDWR). */
int io_tmp_create(struct io_store *s, uint64_t vid, bool want_direct, bool *direct);
/* The same, with the permissions that it will have, as far as the umask allows; its owner may read
 * and write it. */
int io_tmp_create_as(struct io_store *s, uint64_t vid, mode_t mode, bool want_direct, bool *direct);
int io_tmp_open(struct io_store *s, uint64_t vid, int flags); /* existing; -ENOENT */
int io_tmp_remove(struct io_store *s, uint64_t vid); /* 0 also when absent */
/* At a start, before a file of tmp/ is asked for: those of staging's log, which may have been
 * served under another host name, are in tmp/ then (fresh: it can have none), and those of another
 * log of this boot, *of, are put aside. How many, or -errno. */
int io_tmp_claim(struct io_store *s, uint64_t log, bool fresh, uint64_t *of);
/* The files that were put aside for a log of this boot that is gone go to lost+found, as
 * file.LOG.NAME; what is empty is removed. How many, or -errno: the others are where they were. */
int io_tmp_keep(struct io_store *s, uint64_t log);
/* Allocates blocks for [off, off+len) without changing contents (fallocate mode
 * FALLOC_FL_KEEP_SIZE). -ENOSPC, -EDQUOT. A store without fallocate: returns 0 if
 * statvfs shows space for len, else -ENOSPC. */
int io_allocate(struct io_store *s, int fd, uint64_t off, uint64_t len);
/* The same where the store has no fallocate: zeros are written, to whole multiples of IO_ALIGN. For
 * bytes that fd does not have yet; its size grows. */
int io_allocate_by_zeros(struct io_store *s, int fd, uint64_t off, uint64_t len);
/* plain pwrite of all bytes, for files too small to benefit from O_DIRECT */
int io_pwrite(struct io_store *s, int fd, const void *buf, size_t len, uint64_t off);
int io_truncate(struct io_store *s, int fd, uint64_t size);

int io_set_attr_fd(struct io_store *s, int fd, const struct io_attr *a);
/* never follows a symlink */
int io_set_attr(struct io_store *s, int dirfd, const char *name, const struct io_attr *a);

/* xattrs by name below dirfd or by fd (if fd >= 0). Work on O_PATH (via
 * /proc/self/fd). If the store has none, user.cairn.* go to a sidecar under
 * STORE/.cairn/meta/, keyed by (st_dev, st_ino, birth time), and others give -EOPNOTSUPP. */
int io_set_xattr(struct io_store *s, int dirfd, const char *name, int fd, const char *key,
		 const void *val, size_t len, int flags);
int io_remove_xattr(struct io_store *s, int dirfd, const char *name, const char *key);
/* as getxattr(2) */
ssize_t io_get_xattr(struct io_store *s, int dirfd, const char *name, const char *key, void *buf,
		     size_t cap);
/* as listxattr(2) */
ssize_t io_list_xattr(struct io_store *s, int dirfd, const char *name, char *buf, size_t cap);

/* Blocks of a replaced or removed file may be overwritten before that is synced (ext4,
 * data=writeback); after a power cut the old name would have other bytes. Then it must be kept open
 * until that is synced. */
bool io_store_frees_early(const struct io_store *s);
/* An open file that loses its last name stays as it is until it is closed, which frees its blocks;
 * false: it gets another name instead (FUSE, NFS), or this is not known. */
bool io_store_frees_at_close(const struct io_store *s);
/* A disk filesystem of the kernel's (ext4, xfs, btrfs): one machine has it, and knows each lock of
 * it. False: any other, or it cannot be told. */
bool io_fs_is_local(int fd);
/* Waits until the blocks of all that was removed are free (xfs: a thread frees them; btrfs: the
 * next transaction), at most some seconds where the kernel does not tell. Blocks; for a caller
 * that lacks space. */
void io_wait_freed(struct io_store *s);
/* Is it a store, overlayfs, that may refuse to rename a directory? */
bool io_dirs_may_stay(const struct io_store *s);
/* Does the store rename this directory at all? 0; -EXDEV: no, it is of a lower layer. Any other
 * error, such as that it is not there, is none. Renames nothing. */
int io_dir_may_move(struct io_store *s, int dirfd, const char *name);
/* A descriptor (O_PATH) of a file about to be replaced or removed. */
int io_open_victim(struct io_store *s, int dirfd, const char *name);
/* Names. Renames from tmp/, replacing an existing name atomically (rename(2)). */
int io_publish(struct io_store *s, uint64_t vid, int dirfd, const char *name);
/* renameat2 flags */
int io_rename(struct io_store *s, int d1, const char *n1, int d2, const char *n2, unsigned flags);
/* Makes d2/n2 another name of d1/n1, replacing d2/n2 atomically if it exists. */
int io_link(struct io_store *s, int d1, const char *n1, int d2, const char *n2);
int io_unlink(struct io_store *s, int dirfd, const char *name);
int io_rmdir(struct io_store *s, int dirfd, const char *name);
int io_mkdir(struct io_store *s, int dirfd, const char *name, mode_t mode);
int io_symlink(struct io_store *s, const char *target, int dirfd, const char *name);
/* S_IFSOCK, S_IFIFO only */
int io_mknod(struct io_store *s, int dirfd, const char *name, mode_t mode);

/* Durability. */
/* A file's bytes: fdatasync(2). Its attributes become durable with the next sync of a name. */
int io_sync_data(struct io_store *s, int fd);
int io_sync_file(struct io_store *s, int fd); /* fsync(2): attributes, too */
int io_sync_dir(struct io_store *s, int dirfd); /* fsync of an O_PATH directory: reopened */
int io_sync_all(struct io_store *s); /* syncfs */

/* The mark: how many changes of the order `log` were made, kept by the store in order with the
 * changes themselves. Without a mark (IO_FS_EACH) _set and _sync do nothing. */
int io_mark_set(struct io_store *s, uint64_t log, uint64_t seq);
int io_mark_sync(struct io_store *s);
/* Does _sync commit every change of names and attributes that was made before the last _set? */
bool io_mark_covers(const struct io_store *s);
/* *seq: the last change that the store has, at most `most`. -ENOENT: the mark is not of this
 * log. */
int io_mark_get(struct io_store *s, uint64_t log, uint64_t most, uint64_t *seq);
/* This host's changes come from that log from now on. Best effort. */
void io_staged_by(struct io_store *s, uint64_t log);
/* Did they come from another one until now? 1; 0: no, or nothing is known; -errno. */
int io_staged_by_other(struct io_store *s, uint64_t log);

/* Where staging may have what this host has not published (staged_in.c). */
#define IO_STAGED_IN 8u
struct io_place {
	char boot[9]; /* the first digits of io_boot_id() */
	uint64_t log; /* the number of its log; 0: it has none yet */
	char path[512]; /* without a newline */
};
struct io_staged_in {
	unsigned n;
	struct io_place v[IO_STAGED_IN];
};
/* host: as of io_store_open, for a store that was opened with ro. 0, with n 0 if nothing is known;
 * or as open(2). */
int io_staged_in_read(const struct io_store *s, const char *host, struct io_staged_in *out);
/* Not synced. -EROFS; or as open(2), write(2): then less may be known. */
int io_staged_in_write(struct io_store *s, const struct io_staged_in *in);
/* The place at path, which is there with log 0, has this log now. */
int io_staged_in_has(struct io_store *s, const char *path, uint64_t log);
/* Nothing of that log is left to tell of. */
int io_staged_in_drop(struct io_store *s, uint64_t log);

/* Lines for STORE/.cairn/<host>/timeline, which begins anew at this size; the one before is kept.
 * Not synced. -ENOSPC: the store is nearly full, and nothing was written; -errno. One thread at a
 * time. Bypasses the engine. */
#define IO_TIMELINE_MAX (4 << 20)
int io_timeline_append(struct io_store *s, const char *lines, size_t len);
/* Both, the older first; malloc()ed, or NULL. The first and last line may be torn. */
char *io_timeline_read(struct io_store *s, size_t *len);

/* Shared extents. Whether this store has them is determined by trying with two nameless files in
 * tmp/ (some ms). 0: yes; -EOPNOTSUPP: never; else (-ENOSPC, -EIO, ...) try again later. */
int io_can_share(struct io_store *s);
/* The kernel compares through the page cache: first check with io_same_bytes that the disk agrees.
 * If [off, off+len) is equal in both files, `to` gets `from`'s blocks for it and its own
 * are freed; bytes, size and times of both do not change, at any crash. off is a multiple of the
 * block size, and so is off+len unless both files end there. `to` is open for writing, or
 * ours. Returns how many bytes are shared (fewer than len: continue from there); 0: they differ.
 * Reads both files and holds their locks meanwhile, so len should be a few MiB. */
ssize_t io_share(struct io_store *s, int from, int to, uint64_t off, uint64_t len);
/* How many bytes from off on, of the next len, are in the same blocks in both files already.
 * 0: none, or unknown. */
uint64_t io_is_shared(int from, int to, uint64_t off, uint64_t len);
/* Are [off, off+len) of both equal, as fd reads them and as they are on the disk for `disk`? That
 * is opened with O_DIRECT (or its cache is dropped, if the store has none); off is a multiple of
 * the block size. buf holds 2 * (len + IO_ALIGN) bytes; what fd reads is at its beginning. 1, 0,
 * -errno. */
int io_same_bytes(int fd, int disk, uint64_t off, size_t len, char *buf);
/* `to`, empty and open for writing, gets all of `from`'s blocks and its size; dirty pages of `from`
 * are written to the disk first. After an error it may have a part of both. -EOPNOTSUPP: never
 * supported here; -EXDEV; else as ioctl_ficlone(2). */
int io_clone(struct io_store *s, int from, int to);

#ifdef __cplusplus
}
#endif
#endif

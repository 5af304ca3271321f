/* SPDX-License-Identifier: MIT
 *
 * staging: everything that is accepted and not yet durable.
 *
 * A *staged file* holds one file's bytes, in tmpfs (or, spilled, in an
 * unpublished store file). A *record* is one completed change, appended to the
 * log in staging before its caller is answered. Ordered records have a place in
 * the order (seq) and are published to the store strictly one after the other;
 * session records only let a new worker restore its tree and handles.
 *
 * Locks: the caller's tree lock is taken before any of staging's (io/locks.h); these
 * are not held over a callback unless stated. Errors: 0 or
 * -errno. Sizes are in bytes, times as in struct timespec. Nothing here logs:
 * events go to the notice callback.
 */
#ifndef CAIRN_STAGING_H
#define CAIRN_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

#include "io/store/store.h"
#include "io/sum/sum.h"
#include "staging/ids.h"

#ifdef __cplusplus
extern "C" {
#endif

struct staging;
struct staged;

/* up to this size a close needs nothing of the store, writes are buffered, and one sync covers
 * many files */
#define STAGING_SMALL (256u << 10)

/* ---- the place ----------------------------------------------------------- */

/* The directory of staging, on tmpfs; it is found again after everything was killed. */
struct staging_place {
	int base; /* the log; small pages */
	int huge; /* staged files expected to be large: tmpfs huge=always */
	/* all others: tmpfs huge=within_size (the kernel chooses the folio by the size of the
	 * write), so 4 KiB stay 4 KiB */
	int small;
	int lock; /* flock, held while served */
	bool is_private; /* own mounts (root) rather than a shared tmpfs */
	/* its directory stays: rmdir(2) would unmount what another mount namespace has on it */
	bool keep_dir;
	int instead_of; /* -errno of the first place, if that could not be made; else 0 */
	uint64_t limit_bytes; /* the size of each private tmpfs for staged files */
	char path[512];
};

#define STAGING_ANY_NODE (-1)

/* Finds or creates it. `dir` NULL: what is at one of these places already is taken; if there is
 * nothing, the first that can be made: /run/cairnfs/<store_id> (root), /dev/shm/cairnfs-<store_id>,
 * $XDG_RUNTIME_DIR/cairnfs-<store_id>. limit_bytes is the tmpfs size limit. If `dir` is on a tmpfs
 * that outlives this mount namespace, it is a directory there, also as root, else mounts as root.
 * If the mounts are private, memory is from this NUMA node while it has some (see pin.h).
 * -EWOULDBLOCK: served by another process; -EPERM/-EACCES: another owner's or open to
 * others; -ENOTSUP: not a tmpfs (staging_dir given); else as mount(2), mkdir(2). */
int staging_place_open(int node, const char *dir, const char *store_id, uint64_t limit_bytes,
		       struct staging_place *out);
/* Makes private tmpfs mounts so small that little more than `budget` bytes, or than they hold,
 * fits; 0: as large as at their start. Needs CAP_SYS_ADMIN, and no Landlock domain. 0; -ENOTSUP:
 * they are not private; else as mount(2). */
int staging_place_fit(const struct staging_place *p, uint64_t budget);
/* Writes who serves it into its lock file, for a start that finds it taken; and reads that there,
 * "" = unknown. The process that keeps the lock changes. 0 or -errno. */
int staging_place_sign(const struct staging_place *p, const char *who);
void staging_place_holder(const char *dir, const char *store_id, char *who, size_t cap);
/* The path of the place that _open looks at first, which need not exist. */
int staging_place_path(const char *dir, const char *store_id, char *buf, size_t cap);
/* The size of the tmpfs, if it is not ours; 0: it is, or has none. */
uint64_t staging_place_limit(const struct staging_place *p);
/* What ends it, if that is before the machine. */
enum staging_ends { STAGING_LASTS, STAGING_ENDS_WITH_NAMESPACE, STAGING_ENDS_WITH_CONTAINER };
enum staging_ends staging_place_ends(const struct staging_place *p);
/* In a mount namespace that ends before the machine: would a place in dir outlive it? */
bool staging_place_outlives(const char *dir);
/* Whether it is the first of the places of _open with `dir` NULL. */
bool staging_place_is_first(const struct staging_place *p);

/* What is at the place of this store's staging. */
struct staging_found {
	char path[512]; /* the place */
	char program[32]; /* the version of cairnfs that wrote it, "" = unknown */
	char store[1024]; /* last path of the store that it belongs to; "" = unknown */
};
/* Looks without taking or changing anything; call it before _open. 0: nothing, or staging that this
 * program can continue. -EPROTONOSUPPORT: in an unknown format, or damaged; -EXDEV: it belongs to
 * another store with the same id, of which this one is a copy (or vice versa): see
 * io_store_new_id. */
int staging_look(const char *dir, struct io_store *store, struct staging_found *out);

/* Unmounts and removes what _open created, when nothing is staged any more. */
void staging_place_remove(struct staging_place *p);
/* Removes it if it contains nothing of an earlier run (true), else closes it: for a start that
 * fails. */
bool staging_place_give_up(struct staging_place *p);
/* The same when a worker has had it, and has ended: a log that tells of nothing, and the page pool,
 * are nothing. */
bool staging_give_up(struct staging_place *p);
void staging_place_close(struct staging_place *p);

/* ---- records ------------------------------------------------------------- */

enum rec_type {
	/* ordered */
	REC_SEAL = 1, /* node's bytes (sf) become the file at `names` */
	/* dir/name; node2 = what is removed with it, 0 = it has other names or opens */
	REC_UNLINK,
	REC_RMDIR,
	REC_RENAME, /* dir/name -> dir2/name2 */
	REC_MKDIR, /* node at dir/name */
	REC_SYMLINK, /* data = target */
	REC_LINK, /* dir/name gets another name dir2/name2 */
	REC_MKNOD,
	REC_ATTR, /* mask of enum rec_attr, on dir/name */
	REC_XATTR, /* name2 = key, data = value */
	REC_XATTR_DEL,
	REC_ORDERED_END,
	/* session */
	REC_CREATE = 32, /* node, name and staged file, not sealed yet */
	/* the kernel knows a node; node2, dir2: inode in the store and its birth time. ABSENT: only
	 * that these were seen, of a node that may be gone */
	REC_NODE,
	REC_FORGET,
	REC_STAGED, /* node continues in a new staged file */
	REC_UNSTAGED, /* sf is gone (evicted, dropped) */
	REC_OPEN, /* handle fh */
	REC_CLOSE, /* sf, SEALED: the last writer closes, and its bytes are in the order */
	REC_FLUSHED, /* a close was answered: acts as SEAL if its RELEASE never comes */
	REC_FORK, /* node's names pass to node2 (its readers keep the old one) */
	/* the bytes of SEAL node2 are in tmp/ as ino (FSYNCED: synced); sf may change. ABSENT:
	 * they are not, and its fsync returned an error */
	REC_WRITTEN,
	REC_BUFFER, /* node is a buffer (sf), `size` long when it is next committed */
	/* sf may now be a second name of buffer fh; a SEAL follows if it is used */
	REC_LEND,
	REC_KEEP, /* buffer fh stays a file's: it has been a backing file */
	/* SEAL node2 of sf was MAPPED, and its bytes are final now. With SEALED: it has that size,
	 * and others of sf may follow */
	REC_FINAL,
	/* the store refused change node2 of node, for dir/name, with errno mask; mask 0: that is
	 * settled (node2 0: all are); ABSENT: it has no such directory. See refuse.c */
	REC_REFUSED,
	/* the change with seq node2 waits for other nodes, and what is later in the order passes
	 * it; flags are added to its own. See log/aside.c */
	REC_ASIDE,
	/* it waits no longer, and is at the end of the order: seq is its new place */
	REC_RESUMED,
	REC_SESSION_END
};

enum rec_flag {
	REC_ABSENT = 1, /* the store has nothing there: publishing is a no-op */
	/* RENAME of an unsealed file to a name under which the store still has the old file:
	 * publishing unlinks that old name */
	REC_SHADOW = 2,
	REC_DIR = 4, /* the renamed object is a directory */
	REC_MAPPED = 8, /* SEAL: bytes final only when the lease is granted */
	REC_SPILLED = 16, /* sf's bytes are an unpublished store file */
	REC_HUGE = 32,
	REC_WRITE = 64, /* OPEN: for writing */
	REC_SNAPSHOT = 128, /* written by a rotation, not by an operation */
	REC_SEALED = 256, /* NODE: the store has it */
	REC_RDWR = 512,
	REC_FSYNCED = 1024,
	REC_ANSWER = 2048, /* only records which request was answered */
	/* SEAL: creates its node, at dir/name; sf is lent by buffer fh */
	REC_LENT = 4096,
	/* BUFFER: it stays a file's. REFUSED: its version is in lost+found */
	REC_KEPT = 8192,
	/* RENAME: there was something at dir2/name2. NODE: the bytes that are not sealed yet were
	 * answered for when their checkpoint was committed */
	REC_OVER = 16384,
	/* it is published although files that it commits are missing */
	REC_FORCED = 32768,
	/* STAGED: no close of it counts that was answered before: the last one failed, or a write
	 * did (mask: its errno, data: the ranges that are missing, node2: the first's offset) */
	REC_FAILED = 65536,
};

enum rec_attr {
	REC_MODE = 1,
	REC_UID = 2,
	REC_GID = 4,
	REC_ATIME = 8,
	REC_MTIME = 16,
	REC_SIZE = 32,
};

struct rec {
	uint64_t seq; /* 0 for session records */
	uint64_t unique; /* FUSE request this answers, 0 = none */
	uint32_t type, flags;
	uint64_t node, node2;
	uint64_t dir, dir2;
	uint64_t sf;
	uint64_t ino; /* st_ino shown to users */
	uint64_t size;
	uint64_t fh;
	uint64_t mask;
	int64_t backing; /* passthrough backing id, 0 = none */
	uint32_t mode, uid, gid, lane;
	struct timespec atime, mtime, when; /* when: of a SEAL its staged file's ctime */
	/* Not owned; NULL or "" when unused. Names are NUL-terminated bytes. */
	const char *name, *name2;
	const void *data; /* SEAL: packed names and xattrs, see rec_pack_* */
	uint32_t data_len;
};

#define REC_DATA_MAX (1u << 20)

/* A part [from, to) of a file that a failed write did not write. */
struct torn_range {
	uint64_t from, to;
};
#define TORN_MAX 8u /* of one file */

/* Encodes into buf (cap bytes); returns the length or -ENOBUFS. */
ssize_t rec_encode(const struct rec *r, void *buf, size_t cap);
/* Decodes one record from untrusted bytes; *used = its length; strings point into
 * buf. -EAGAIN: torn or end of log; -EBADMSG: checksum or lengths wrong. */
int rec_decode(const void *buf, size_t len, struct rec *out, size_t *used);

/* ---- life ---------------------------------------------------------------- */

#define STAGING_HELD 420
enum staging_missing {
	STAGING_WHOLE, /* nothing is */
	STAGING_MISSING,
	STAGING_OVERTAKEN, /* and most likely for ever: others have written what replaces it */
	STAGING_REPLACED, /* and the store has what replaces the name itself */
	STAGING_UNREAD, /* what the bytes list is not known: ask with them */
};

/* Names that commit what other nodes write; see drain/hold.c. */
struct staging_hold {
	/* called with staging's locks: checks the name only */
	bool (*commits)(const char *name);
	/* Does the store lack something that the bytes in fd list? Then `what` says what, in words
	 * that follow "but". seq: the same for the same bytes. dir, dirfd: the name's directory.
	 * fd < 0: something was missing before, and what they list may still be known.
	 * Called by one thread, without locks. */
	enum staging_missing (*missing)(void *ctx, uint64_t seq, uint64_t dir, int dirfd, int fd,
					char *what, size_t cap);
	/* After this time staging_stats.held.late is set; it is not published by itself, however
	 * long it waits. 0 = nothing is held */
	unsigned patience_ms;
};

struct staging_opts {
	struct io_store *store;
	struct io_engine *engine;
	struct staging_place place; /* stays the caller's */
	uint64_t budget_bytes;
	uint64_t pool_bytes; /* target; 0 = none */
	unsigned persist_threads; /* 0 = 2 */
	struct staging_hold hold;
	/* Asked before each change in the store: 0, or why publication halts here, -errno. Called
	 * without locks; may take as long as the store. NULL: it may always. */
	int (*may_publish)(void *ctx);
	/* A passthrough file outgrows memory: the caller arranges a staged_move_out of it. Called
	 * with staging's locks held; must not block, and may be called again. NULL = not used. */
	void (*outgrown)(void *ctx, uint64_t node);
	/* The store does not take what outgrows memory (on), or does again: the caller arranges a
	 * staging_place_fit, of the last call if there were several. As outgrown. */
	void (*limit)(void *ctx, bool on);
	/* Whether that is done: 0; -EAGAIN: not yet; else it cannot be done. Called without locks;
	 * must not block. NULL: it is done when limit returns. */
	int (*limited)(void *ctx);
	bool is_limited; /* as an earlier process asked */
	/* limit for a mapping that delays others' changes; 0 = 30 s */
	unsigned mapped_ms;
	/* how long missing descriptors or memory do not halt publication; 0 = 30 s */
	unsigned lack_ms;
	/* else equal files and copies share blocks if the store can */
	bool no_dedup;
	bool no_early; /* nothing is persisted before its seal */
	const char *meminfo; /* NULL: /proc/meminfo; for tests */
	/* A directory with a file of this name is a whole checkpoint, which is kept while it is
	 * overwritten in place (drain/previous.c). NULL: none is kept */
	const char *previous;
	/* logs that served the store as this host, and are gone: what had moved to the store goes
	 * to lost+found */
	const uint64_t *gone;
	unsigned n_gone;
	io_notice_fn notice;
	void *ctx;
};

/* Opens staging on its place. Starts no thread. -EPROTONOSUPPORT, -EXDEV: as staging_look; nothing
 * was changed. */
int staging_open(const struct staging_opts *o, struct staging **out);
/* Replays the log: every record in order to `each` (called without locks held;
 * an error stops the replay). Records already published are replayed, too: see
 * staging_applied. Torn tails are cut off; damaged logs are renamed and reported. */
int staging_replay(struct staging *s, int (*each)(void *ctx, const struct rec *r), void *ctx);
/* Node id has readers, its bytes are the store file st, and it is about to lose its last name
 * there: the publisher first links it into tmp/, where the next worker opens it. linked: it is
 * linked already. */
void staging_retain(struct staging *s, uint64_t id, const struct stat *st, bool linked);
/* the last reader is gone; any id */
void staging_retain_end(struct staging *s, uint64_t id);
/* a descriptor; -ENOENT: no such name */
int staging_retained_open(struct staging *s, uint64_t id);
/* How many of st's names are such links, or of a checkpoint that is being overwritten. */
nlink_t staging_retained_links(struct staging *s, const struct stat *st);
/* After the replay: removes everything unreferenced from staging and the store's tmp/.
 * `orphaned`: the connection is gone, so files that were never sealed have no writer any
 * more; they, and bytes without a record, go to STORE/.cairn/lost+found. */
int staging_sweep(struct staging *s, bool orphaned);
/* Retries what the sweep could not move to lost+found; returns how many files remain. */
unsigned staging_keep_again(struct staging *s);
/* 0: nothing remains; else why the last try failed. Any lock but staging's may be held. */
int staging_kept_error(struct staging *s);
/* Threads: persist, publish, watch, trash, pool, dedup. What a dead worker applied and did not sync
 * is synced by them: until then it is pending and not evicted. */
int staging_start(struct staging *s);
/* The durable file dir/name is being copied: where equal files are stored once, the copy will be
 * compared with it. -EOPNOTSUPP: not supported here. Any lock but staging's may be held. */
int staging_dedup_source(struct staging *s, uint64_t node, uint64_t dir, const char *name);
/* Waits until all is durable (timeout_ms < 0: for ever). -ETIMEDOUT; the persist error when
 * halted; -EAGAIN: all but what waits for other nodes (staging_stats.held): what each lacks was
 * asked since the call. */
int staging_drain(struct staging *s, int timeout_ms);
/* The same for a caller that goes on after -ETIMEDOUT: *since is 0 at first, and kept by it. Asked
 * since the first call. */
int staging_drain_on(struct staging *s, int timeout_ms, uint64_t *since);
/* Stops threads, frees memory. What is staged stays in place for the next open. */
void staging_close(struct staging *s);
/* Removes log, page pool and cached files when nothing is pending: a clean end. */
void staging_clear(struct staging *s);
/* Writes the lines of the timeline that its thread has not written yet; before the process ends. No
 * lock held; waits for the store. */
void staging_flush_timeline(struct staging *s);

uint64_t staging_new_id(struct staging *s); /* ids.h */
/* The number of this log, which no other staging area of the store has, as far as 31 random bits
 * go; it outlives all but a clean end. KEY_INO of what it publishes has it. */
uint64_t staging_log_id(const struct staging *s);

/* False: the store is so full that a new name might not find a block. Callers then
 * refuse it with ENOSPC, so that what was accepted can be published. */
bool staging_space_for_names(struct staging *s);

/* ---- log ----------------------------------------------------------------- */

/* Appends r; gives ordered records their seq (in r->seq). When it returns 0 the
 * record survives the worker's death. -ENOSPC: staging's own tmpfs is full. */
int staging_log(struct staging *s, struct rec *r);
uint64_t staging_last_seq(struct staging *s);
/* Records up to this one are visible in the store / on stable storage, except those that wait for
 * other nodes (staging_place_of). */
uint64_t staging_applied(struct staging *s);
uint64_t staging_durable(struct staging *s);
/* The place in the order of the change that was accepted as seq: seq itself; UINT64_MAX while it
 * waits for other nodes; later its new place. Compare it with an `applied` or `durable` that was
 * read before. Any lock may be held. */
uint64_t staging_place_of(struct staging *s, uint64_t seq);
bool staging_is_applied(struct staging *s, uint64_t seq);
bool staging_is_durable(struct staging *s, uint64_t seq);
/* Was this request (FUSE unique, resent after a restart) performed already? Then
 * *out is its record, without strings. */
bool staging_answered(struct staging *s, uint64_t unique, struct rec *out);
/* The kernel counts its requests from the beginning again: no earlier answer is to one of them. */
int staging_new_connection(struct staging *s);
/* Is a rotation due? Then call _rotate with the tree lock held; `emit` writes the
 * session (nodes, handles) by calling staging_emit for each. */
bool staging_rotate_due(struct staging *s); /* only while nothing is pending */
/* Is the log so long that a rotation must come before the next change? */
bool staging_log_full(struct staging *s);
/* Waits until nothing is pending, so that a rotation can be made, or until the log is short enough.
 * No lock held. */
void staging_log_space(struct staging *s);
int staging_rotate(struct staging *s, int (*emit)(void *ctx, struct staging *s), void *ctx);
int staging_emit(struct staging *s, const struct rec *r);

/* For an fsync of a node: done(ctx, err) once all changes up to seq are durable, or publication
 * halted (err = -EIO, ...). May run at once on this thread, else on staging's. Of the changes that
 * wait for other nodes, only those of the node itself, or of names in it if it is a directory, must
 * be durable. */
void staging_when_synced(struct staging *s, uint64_t node, uint64_t seq,
			 void (*done)(void *ctx, int err), void *ctx);
/* The changes that wait for other nodes, and those behind them: the node of each, and the
 * directories that it is in (0: none). The lock is held: be quick. */
void staging_each_waiting(struct staging *s, void (*each)(void *ctx, const uint64_t id[3]),
			  void *ctx);
/* Does one of them wait for longer than staging_hold.patience_ms? */
bool staging_waits_long(struct staging *s);
/* Has the publisher ask once more, at once, what each lacks, and whether it was removed or replaced
 * by what was accepted until now. Returns a number for the other, which says whether that was done;
 * staging_tell_moves() tells when. Any lock but staging's may be held. */
uint64_t staging_ask_waiting(struct staging *s);
bool staging_has_asked_waiting(struct staging *s, uint64_t number);
/* Publishes as they are the names that wait for other nodes and are directly in directory dir.
 * Returns how many. Of one that may have to wait and was not asked about it waits for the answer;
 * -ETIMEDOUT: there is none yet, or publication halted before it. */
int staging_force(struct staging *s, uint64_t dir, unsigned timeout_ms);

/* ---- directories of the store ---------------------------------------------- */

/* Directory `id` is in the store at parent/name. */
int staging_dir_learn(struct staging *s, uint64_t id, uint64_t parent, const char *name);
void staging_dir_forget(struct staging *s, uint64_t id);
/* How many descriptors of directories stay open, by the limit of open files as it is now. */
unsigned staging_dir_fds(void);
/* O_PATH descriptor of directory id, valid until _put. -ENOENT: not in the store. */
int staging_dir_get(struct staging *s, uint64_t id, int *fd);
void staging_dir_put(struct staging *s, uint64_t id);
/* Closes fd in a thread of staging's own: it may be the last descriptor of an unlinked store file,
 * and freeing its blocks takes long on some disks. Before staging_start: when it starts. */
void staging_close_later(struct staging *s, int fd);

/* ---- staged files ---------------------------------------------------------- */

enum staged_state {
	STAGED_OPEN,
	STAGED_SEALED,
	STAGED_PERSISTING,
	STAGED_DURABLE,
	STAGED_FAILED,
	STAGED_EVICTED,
};

struct staged_info {
	uint64_t id;
	enum staged_state state;
	bool spilled;
	/* sealed before its last mapping went: another version follows */
	bool late;
	uint64_t size;
	/* of these, by the thread that persists them now: for progress */
	uint64_t written;
	struct timespec atime, mtime, ctime;
	uint64_t blocks; /* 512-byte units, as st_blocks */
	int error; /* negative errno when failed */
	bool torn; /* a write of it failed: no automatic retry */
	char checksum[IO_CHECKSUM_LEN]; /* "" until durable */
};

#define STAGED_SIZE_UNKNOWN UINT64_MAX

/* Creates an empty staged file for node, or a spilled one if the budget has no
 * space for `expected` bytes. The reference is the caller's. */
int staged_create(struct staging *s, uint64_t node, uint64_t expected, struct staged **out);
/* For f, new, whose size is known and large: allocates all of its memory, so that it is charged to
 * this process's memory cgroup and not to the writer's. Takes milliseconds a GiB where the page
 * pool had not as much; call it with no lock held. */
void staged_cover(struct staged *f);
bool staged_covered(const struct staged *f); /* staged_cover succeeded */
/* The same for an owner with quotas: its blocks in the store are the owner's from the beginning.
 * `grows`: it will hold `expected` bytes, and then be written. -EDQUOT. */
struct staged_owner {
	uid_t uid;
	gid_t gid;
	bool grows;
	mode_t mode; /* the file's, as far as it is known; 0: it is not */
};
int staged_create_as(struct staging *s, uint64_t node, uint64_t expected,
		     const struct staged_owner *who, struct staged **out);
/* The store may not have space for all that may be written to f: its bytes must come through the
 * daemon, by staged_write(), which returns ENOSPC in time. */
bool staged_checked(struct staged *f);
/* f, closed, is about to be written again: would it be checked? If so, and it is not a backing
 * file, it becomes checked. */
bool staged_check_space(struct staged *f);
/* Recovers the staged file that a record names. */
int staged_recover(struct staging *s, const struct rec *r, struct staged **out);
/* A copy of src's bytes (or of the store file fd when src is NULL). who: whose it is, or NULL.
 * Blocks. */
int staged_copy(struct staging *s, uint64_t node, struct staged *src, int store_fd,
		const struct staged_owner *who, struct staged **out);
struct staged *staged_ref(struct staged *f);
void staged_unref(struct staged *f); /* last one: removed, unless pending */
uint64_t staged_id(const struct staged *f);
void staged_set_node(struct staged *f, uint64_t node); /* it belongs to another node now */
/* A write of it failed, and not all of what failed was written since, so it is no whole version:
 * -errno; 0: none. */
int staged_torn(const struct staged *f);
/* [off, off + len) was not written, though staged_write() and its siblings did not return that. */
void staged_not_written(struct staged *f, uint64_t off, uint64_t len, int err);
/* That as a part of r, a REC_STAGED, which refers to `data`, TORN_MAX of them; and as a worker
 * before this one logged it. */
void staged_torn_out(struct staged *f, struct rec *r, struct torn_range *data);
void staged_torn_in(struct staged *f, const struct rec *r);
bool staged_spilled(const struct staged *f);
bool staged_huge(const struct staged *f);
void staged_get_info(struct staged *f, struct staged_info *out); /* stats an open one */
/* The same without a system call: size, blocks and times are those of the last seal. */
void staged_get_state(struct staged *f, struct staged_info *out);

/* O_RDONLY descriptor, the staged file's own: valid while a use is held. */
int staged_use(struct staged *f, int *fd); /* keeps it from eviction; -ENODATA: evicted */
void staged_unuse(struct staged *f);
/* A new O_RDWR descriptor; the caller closes it (a seal waits for that). */
int staged_open_rw(struct staged *f);
/* The kernel has or had f's file as a passthrough backing file: readers and mappings may keep it,
 * so relay writes that find no space exceed the budget instead of spilling. A buffer's memory then
 * stays the file's. Not 0: this could not be logged, and the file must not become a backing
 * file. */
int staged_set_backing(struct staged *f);
/* As futimens. -ENODATA: evicted; the times are recorded all the same. -EBUSY: as the next, which
 * comes first where memory may be allocated ahead of f. */
int staged_set_times(struct staged *f, const struct timespec ts[2]);
/* No memory is allocated ahead of f any more, until it is opened again. -EBUSY: some is being
 * allocated: call staged_await(), then again. */
int staged_end_ahead(struct staged *f);

/* Relay writes: exact backpressure. Waits, evicts, spills: never -ENOSPC while the store has space,
 * unless f is a backing file. -ENOSPC, -EDQUOT: the store has no space for it, and f's close will
 * fail unless these bytes are written later. -EFBIG, also of _resize and _fallocate: longer than a
 * file of the store can be. -EBUSY, also of these: it would change what is protected, or spill it;
 * nothing has happened, call staged_wait_persisted(), then again. */
ssize_t staged_write(struct staged *f, const void *buf, size_t len, uint64_t off);
/* Its two halves. _now does not wait for removals that free space; -EAGAIN: call _later. append:
 * the caller chose no place but the end (O_APPEND). If such a write fails, f is as before, and its
 * close does not fail for that. */
ssize_t staged_write_now(struct staged *f, const void *buf, size_t len, uint64_t off, bool append);
ssize_t staged_write_later(struct staged *f, const void *buf, size_t len, uint64_t off,
			   bool append);
/* Reads what f contains now, also after a spill. -ENODATA: evicted or published. */
ssize_t staged_read(struct staged *f, void *buf, size_t len, uint64_t off);
int staged_resize(struct staged *f, uint64_t size);
/* Would one of these wait, perhaps for long: is f's version being persisted or its bytes moved? */
bool staged_busy(struct staged *f);
/* Waits until blocks, or memory ahead of f, are allocated and bytes are moved. The caller may hold
 * no lock. */
void staged_await(struct staged *f);
int staged_fallocate(struct staged *f, int mode, uint64_t off, uint64_t len);

/* Moves older bytes of an open backing file out of memory, to the store; see outgrow.c. Writes up
 * to some GiB. The caller ensures that nothing writes the file meanwhile, and that until it is
 * closed nothing reads or maps it: staged_outgrown is true from then on, and from
 * staged_set_moving() until this returns. 0 also if nothing could be moved. -EAGAIN: not open, or
 * spilled; 1: bytes that had moved were rewritten in place, and which ones is unknown: neither
 * close nor fsync will succeed (EIO), and it cannot be moved any more (staged_rewritten); else the
 * store's error, and nothing is lost. */
int staged_move_out(struct staged *f);
bool staged_rewritten(struct staged *f); /* any lock may be held */
void staged_set_moving(struct staged *f); /* until staged_move_out() has returned */
/* After a try to move f (err: its error; 0 if it cannot be moved), before f is written again:
 * limits memory while the store does not take f; see limit.c. Not if f is too long for it (-EFBIG).
 * Waits until that is done. No lock held. */
void staged_limit(struct staged *f, int err);
/* After -EFBIG of staged_move_out: the store cannot hold a file as long as f, whose close and fsync
 * fail (-EFBIG) unless it is cut to what has moved. Log that first (staged_torn_out); then
 * staged_drop_rest() gives back the memory of what cannot move, as the caller of staged_move_out()
 * may. */
void staged_too_long(struct staged *f);
void staged_drop_rest(struct staged *f);
void staged_not_now(struct staged *f); /* it cannot be moved now: others are, for a while */
bool staged_outgrown(struct staged *f);
/* The same as staged_allocate for the copy that a seal makes while an outgrown or spilled file is
 * still written; 0 for any other file. Call it after that. */
int staged_allocate_copy(struct staged *f);
/* The last writer is gone: what is still in memory is moved, too, and f becomes a spilled file. 0
 * also if it was never outgrown. -EIO: bytes that had moved were rewritten; else the store's
 * error. f is then as before. */
int staged_finish(struct staged *f);

/* Allocates the store blocks that a seal of f's present size needs; called before a
 * close or fsync is acknowledged. -ENOSPC, -EDQUOT, -EIO, one of them also while publication is
 * halted; -EFBIG: longer than a file of the store can be. If pending removals may free space, it
 * waits for them, up to 30 s, and then without a limit until the blocks of what was removed are
 * free; four times, if others take them. */
int staged_allocate(struct staged *f);
/* Its two halves: _now does not wait; -EAGAIN: call _later, which waits and tries again. */
int staged_allocate_now(struct staged *f);
int staged_allocate_later(struct staged *f);
/* The same for a small file, without waiting for the store. -EAGAIN: call staged_allocate(). */
int staged_promise(struct staged *f);
/* f, open, is a copy in progress of the store file fd, which is durable. Only a hint: if the store
 * can clone and the bytes are equal, the sealed version becomes a clone and is not written. Takes
 * fd, and closes it if it is of no use. Any lock but staging's may be held. */
void staged_copied_from(struct staged *f, int fd);
/* A copy now has the times that its open found; for staged_look_mapped. */
void staged_copy_done(struct staged *f);
/* The kernel does not set the times of a tmpfs file when a mapping writes a page that it has read
 * before. If f has the time with which it was opened, and other bytes, its times are set to now.
 * Reads all of f; any lock but staging's may be held, none should. */
void staged_look_mapped(struct staged *f);
/* Has f changed since its last seal? (Writes through a mapping are not visible.) */
bool staged_changed(struct staged *f);
/* The checksum of f's version seq, which was in the order when f was opened again for writing; sum
 * (IO_CHECKSUM_LEN bytes) stays as it is if that is not known. */
void staged_base_sum(struct staged *f, uint64_t seq, char *sum);
/* f's mtime, and when it was looked at (CLOCK_REALTIME); all 0: unknown. Any lock but staging's may
 * be held, as for the next. */
struct staged_moment {
	struct timespec mtime, when;
};
void staged_now(struct staged *f, struct staged_moment *out);
/* False: f was not written since (writes through a mapping are not visible). True: it was, or that
 * cannot be told. */
bool staged_written_since(struct staged *f, const struct staged_moment *then);
/* Fills r's size, times and checks; the caller fills the names and logs r with staging_seal.
 * `closed`: no writer is left (else a snapshot by fsync). Never waits. -EBUSY: blocks or memory
 * are being allocated for f, or its bytes moved: call staged_await(), then again. */
int staging_seal(struct staging *s, struct staged *f, struct rec *r, bool closed);
/* Seals of f that wait for a mapping are final as they are now: an fsync of f asks for
 * this. What the mapping writes later follows as a late version. */
void staged_finalize(struct staged *f);
/* A node that was finalized early and is no longer mapped; 0 = none. Seal it again. */
uint64_t staging_next_late(struct staging *s);
/* Open again for writing in place: allowed (0) if the bytes of its seals are on
 * stable storage, or not final yet. -EBUSY: they soon are, see the next; -EAGAIN:
 * not possible in place (evicted; spilled and final), copy instead. */
int staged_reopen(struct staged *f);
/* The same for a writer that can only append, and writes through staged_write(): it need not wait
 * for a few versions on their way. What they have is protected then: other writers call
 * staged_unprotect() first. */
int staged_reopen_append(struct staged *f);
bool staged_protected(struct staged *f); /* any lock may be held */
/* 0: the bytes may be changed, and it has no such version. -EBUSY: it has, call
 * staged_wait_persisted(), then again; or the log's error. */
int staged_unprotect(struct staged *f);
/* Waits until a seal's bytes are safe. -EAGAIN: they will not be, the store fails. */
int staged_wait_persisted(struct staged *f);
/* Its writers closed after its last name was removed: a seal that waited for them continues. */
void staged_nameless(struct staged *f);
/* Its writers closed without a change: back to the state before. -EBUSY as staging_seal. */
int staged_unchanged(struct staged *f);
/* Marks a close that could not be accepted (no space). path, in the mount, is for people. */
void staged_fail(struct staged *f, int err, const char *path);
/* f was never closed, and its writer is gone: failed (EOWNERDEAD), never retried. */
void staged_orphan(struct staged *f);
/* Did a removal free space since the last call? */
bool staging_space_freed(struct staging *s);

/* ---- buffers: staged files on loan to a client, see buffer.c ---- */

struct buffer;
enum buffer_state {
	BUFFER_FREE, /* the client may write it */
	BUFFER_LENT, /* committed: staging reads it, the client must not write it */
	BUFFER_KEPT, /* its pages are in use: it stays the committed file's */
};
struct buffer_info {
	enum buffer_state state;
	uint64_t bytes; /* charged */
};

/* A file of size bytes with all memory allocated. The reference is the caller's. -ENOSPC: the
 * budget has no space, or buffers would take too much of it; -EMFILE: too many buffers. Blocks. */
int buffer_create(struct staging *s, uint64_t size, struct buffer **out);
/* -ENOENT: ended */
int buffer_recover(struct staging *s, uint64_t id, bool kept, struct buffer **out);
struct buffer *buffer_ref(struct buffer *b);
void buffer_unref(struct buffer *b);
uint64_t buffer_id(const struct buffer *b);
int buffer_fd(const struct buffer *b); /* O_RDONLY, its own: valid while referenced */
void buffer_get_info(struct buffer *b, struct buffer_info *out);
/* Ensures memory for size bytes; never frees any. -ENOSPC; -EBUSY: kept; -ESTALE: ended. Blocks. */
int buffer_resize(struct buffer *b, uint64_t size);
/* The client is gone. A version made from it continues as any other; else the memory is freed. */
void buffer_end(struct buffer *b);
/* A version of the first size bytes for a new node, not sealed: staged_allocate() follows, then
 * buffer_commit(), or staged_unref() alone to abandon it. -EBUSY: lent, or kept;
 * -ENOENT: ended. */
int buffer_lend(struct buffer *b, uint64_t node, uint64_t size, struct staged **out);
/* As staging_seal; r->when becomes the version's times. The buffer is free again when the
 * version is durable and not open. */
int buffer_commit(struct staged *f, struct rec *r);
/* The id of the buffer that lends f its memory, or 0. loan: it was lent, perhaps by an ended
 * buffer. */
uint64_t staged_lender(struct staged *f, bool *loan);
void staging_watch_buffers(struct staging *s); /* periodically: charges what write(2) added */

/* Packs names and xattrs of a SEAL into rec.data. */
struct rec_name {
	uint64_t dir;
	const char *name;
};
struct rec_pair {
	const char *key;
	const void *val;
	uint32_t len;
};
ssize_t rec_pack(const struct rec_name *names, unsigned n_names, const struct rec_pair *pairs,
		 unsigned n_pairs, void **out); /* malloc'd */
/* Iterates untrusted packed data: *pos starts at 0; 1 = name, 2 = pair, 0 = end, -EBADMSG. */
int rec_unpack(const void *data, uint32_t len, uint32_t *pos, struct rec_name *name,
	       struct rec_pair *pair);
bool rec_has_one_name(const struct rec *r); /* of a SEAL */

/* ---- statistics ---------------------------------------------------------------- */

#define STAGING_LATENCY_BUCKETS 12 /* le 1 ms * 4^i, last = +Inf */

struct staging_stats_versions { /* staged files, by state */
	uint64_t open, sealed, persisting, durable, failed;
};
struct staging_stats_log {
	uint64_t pending; /* records */
	uint64_t last_seq, applied, durable, bytes;
};
struct staging_stats_latency { /* from seal to durable */
	uint64_t buckets[STAGING_LATENCY_BUCKETS], count, sum_us;
};
struct staging_stats_outgrown { /* since the start */
	uint64_t files, bytes;
};
struct staging_stats_buffers {
	uint64_t count, bytes, lent_bytes;
};
struct staging_stats_halted {
	int error; /* 0 or -errno */
	time_t since;
	char path[256];
	char remedy[80]; /* what a person does, e.g. "free space in its filesystem" */
};
struct staging_stats_refused {
	/* changes that were accepted, and refused by the store for good */
	uint64_t count;
	uint64_t kept; /* of them, versions that are in lost+found */
	int error; /* of the latest, -errno */
	char path[256];
};
struct staging_stats_held {
	unsigned count; /* names that wait for other nodes */
	uint64_t behind; /* changes that wait behind them */
	bool only; /* nothing else is pending */
	time_t since; /* of the first */
	bool late; /* it waits longer than staging_hold.patience_ms */
	char path[256]; /* "" = none */
	char what[STAGING_HELD]; /* what is missing */
};
/* checkpoints that are being overwritten in place */
struct staging_stats_previous {
	uint64_t kept; /* whose previous generation is kept */
	uint64_t lost; /* whose is not: no room, or no links */
	uint64_t bytes; /* room that they take */
	time_t since; /* of the first that is kept */
	char path[256]; /* of the last that began, kept or not; "" = none */
};
struct staging_stats_dedup { /* since the start */
	uint64_t files, bytes; /* that have the blocks of others */
	uint64_t clones; /* of these files, copies that had them from the beginning */
};
struct staging_stats_recovered {
	uint64_t records, versions, lost_found;
	/* files for lost+found that could not be moved there yet: the only copy of their bytes is
	 * staged */
	uint64_t kept, kept_bytes;
	int kept_error; /* of the last try */
};
struct staging_stats {
	uint64_t budget, used, pool, pool_target;
	uint64_t bytes_staged, bytes_persisted;
	uint64_t bytes_early; /* persisted while their files were written */
	uint64_t bytes_unchanged; /* not written: the version before had them; delta.c */
	uint64_t versions_left_out; /* the next one came before they were persisted; append.c */
	/* of opens, writes and closes: for space, memory, the previous version */
	uint64_t waits, wait_ns;
	uint64_t errors;
	uint64_t spilled_opens, fast_opens;
	unsigned queue_depth;
	char last_error[256];
	char waiting_mapped[512]; /* names, '\n' between */
	struct staging_stats_versions versions;
	struct staging_stats_log log;
	struct staging_stats_latency latency;
	struct staging_stats_outgrown outgrown;
	struct staging_stats_buffers buffers;
	struct staging_stats_halted halted;
	struct staging_stats_refused refused;
	struct staging_stats_held held;
	struct staging_stats_dedup dedup;
	struct staging_stats_previous previous;
	struct staging_stats_recovered recovered;
};
void staging_get_stats(struct staging *s, struct staging_stats *out);
/* What is closed, or was fsynced, and is not durable. */
struct staging_pending {
	uint64_t files; /* versions: a file that was written twice counts twice */
	uint64_t bytes; /* not written to the store yet */
	/* age of the oldest change, names included, ns; at most as old as this process. 0: none */
	uint64_t oldest_ns;
};
/* Walks all that is pending. Any lock but staging's may be held. */
void staging_get_pending(struct staging *s, struct staging_pending *out);
/* A staged file that is not durable. */
struct staged_undone {
	const struct staged *f;
	uint64_t node;
	enum staged_state state;
	uint64_t bytes; /* not written to the store yet */
	int error; /* -errno when failed */
};
/* Calls each(ctx, u) for every staged file that is open or failed; with `pending`, for every one
 * that is not durable. Without `pending` the bytes are 0. The lock is held: be quick, and call
 * nothing of staging's. */
void staging_each_undone(struct staging *s, bool pending,
			 void (*each)(void *ctx, const struct staged_undone *u), void *ctx);
/* From now on moved(ctx) is called when staging_durable() moves, when publication halts, when a
 * staged file fails, and when one is no longer open without having been sealed. On any thread, with
 * staging's locks: it must not block or call staging. NULL: no longer. */
void staging_tell_moves(struct staging *s, void (*moved)(void *ctx), void *ctx);
/* Retries halted publication now, and acknowledges what the store refused. */
void staging_retry(struct staging *s);
/* The error of the first change up to seq that the store refused permanently, of node, or at any
 * name below directory dir (0: none); 0. Any lock but staging's may be held. */
int staging_refused(struct staging *s, uint64_t node, uint64_t dir, uint64_t seq);
/* The same, if dir or one above it is one whose rename was refused: the store has what is in it by
 * the old name. staging_refused() looks at this, too. */
int staging_refused_above(struct staging *s, uint64_t dir);
/* The node at whose change publication halts, 0 = none; *err says why. */
uint64_t staging_halted_at(struct staging *s, int *err);

#ifdef __cplusplus
}
#endif
#endif

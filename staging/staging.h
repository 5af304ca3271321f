/* SPDX-License-Identifier: MIT
 *
 * staging: everything that is accepted and not yet durable.
 *
 * A *staged file* holds one file's bytes, in tmpfs (or, spilled, in an
 * unpublished store file). A *record* is one completed change, appended to the
 * log in staging before its caller is answered. Ordered records carry a place in
 * the order (seq) and are published to the store strictly one after the other;
 * session records only let a new worker find its tree and handles again.
 *
 * Locks: the caller's tree lock is taken before anything here; staging's own
 * locks are leaves and are never held over a callback unless said. Errors: 0 or
 * -errno. Sizes are bytes, times are as in struct timespec. Nothing here logs:
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

#define STAGING_SMALL (256u << 10)	/* files to here: a close needs nothing of the store, a
					 * buffered write, one sync for many */

/* ---- the place ----------------------------------------------------------- */

/* Where staging lives: a directory on tmpfs, found again after everything died. */
struct staging_place {
	int base;	/* the log; small pages */
	int huge;	/* staged files expected to be large: tmpfs huge=always */
	int small;	/* all others: tmpfs huge=within_size (the kernel picks the
			 * folio by the size of the write), so 4 KiB stay 4 KiB */
	int lock;	/* flock, kept while served */
	bool is_private;	/* own mounts (root) rather than a shared tmpfs */
	char path[512];
};

#define STAGING_ANY_NODE (-1)

/* Finds or makes it: `dir` NULL = /run/cairnfs/<store_id> as root, else
 * $XDG_RUNTIME_DIR or /dev/shm. limit_bytes is the tmpfs size limit.
 * -EWOULDBLOCK: served by another process; -EPERM/-EACCES: not ours or open to
 * others; -ENOTSUP: not a tmpfs (staging_dir given); else as mount(2), mkdir(2). */
int staging_place_open(const char *dir, const char *store_id, uint64_t limit_bytes,
		       struct staging_place *out);
/* The same; memory is taken from this NUMA node where it has some (see pin.h), if the mounts
 * are our own. */
int staging_place_open_on(int node, const char *dir, const char *store_id, uint64_t limit_bytes,
			  struct staging_place *out);
/* The path of the place, which need not be there. */
int staging_place_path(const char *dir, const char *store_id, char *buf, size_t cap);

/* What lies where this store's staging is to be. */
struct staging_found {
	char path[512];		/* that place */
	char program[32];	/* the version of cairnfs that wrote it, "" = not known */
	char store[1024];	/* the path of the store that it belongs to, as last served; "" = not known */
};
/* Looks without taking or changing anything, so before _open. 0: nothing, or what this program can go on with.
 * -EPROTONOSUPPORT: in a format that it does not know, or damaged; -EXDEV: it belongs to another store with
 * the same id, of which this one is a copy (or the other way round): see io_store_new_id. */
int staging_look(const char *dir, struct io_store *store, struct staging_found *out);

/* Unmounts and removes what _open made, when nothing is staged any more. */
void staging_place_remove(struct staging_place *p);
/* Removes it if there is nothing in it of an earlier run, else closes it: for who cannot begin. */
void staging_place_give_up(struct staging_place *p);
void staging_place_close(struct staging_place *p);

/* ---- records ------------------------------------------------------------- */

enum rec_type {
	/* ordered */
	REC_SEAL = 1,	/* node's bytes (sf) become the file at `names` */
	REC_UNLINK,	/* dir/name; node2 = what is gone with it, 0 = other names or opens keep it */
	REC_RMDIR,
	REC_RENAME,	/* dir/name -> dir2/name2 */
	REC_MKDIR,	/* node at dir/name */
	REC_SYMLINK,	/* data = target */
	REC_LINK,	/* dir/name gets another name dir2/name2 */
	REC_MKNOD,
	REC_ATTR,	/* mask of enum rec_attr, on dir/name */
	REC_XATTR,	/* name2 = key, data = value */
	REC_XATTR_DEL,
	REC_ORDERED_END,
	/* session */
	REC_CREATE = 32,	/* node, name and staged file, not sealed yet */
	REC_NODE,	/* the kernel learned of a node; node2, dir2: inode in the store and its birth */
	REC_FORGET,
	REC_STAGED,	/* node continues in a new staged file */
	REC_UNSTAGED,	/* sf is gone (evicted, dropped) */
	REC_OPEN,	/* handle fh */
	REC_CLOSE,	/* sf, SEALED: the last writer goes, and what it wrote is in the order */
	REC_FLUSHED,	/* a close was answered: as SEAL, if its RELEASE never comes */
	REC_FORK,	/* node's names pass to node2 (its readers keep the old one) */
	REC_WRITTEN,	/* the bytes of SEAL node2 are in tmp/ as ino (FSYNCED: synced); sf goes on changing.
			 * GHOST: they are not, and its fsync was told that it failed */
	REC_BUFFER,	/* node is a buffer (sf), `size` long when it is next committed */
	REC_LEND,	/* sf may now be a second name of buffer fh; a SEAL follows if it is wanted */
	REC_KEEP,	/* buffer fh is a file's for good: somebody has had that as a backing file */
	REC_FINAL,	/* SEAL node2 of sf was MAPPED, and nothing writes its bytes any more */
	REC_REFUSED,	/* the store refused change node2 of node, for dir/name, with errno mask; mask 0:
			 * that is settled (node2 0: all are). See refuse.c */
	REC_SESSION_END
};

enum rec_flag {
	REC_GHOST = 1,		/* the store has nothing there: publishing is a no-op */
	REC_SHADOW = 2,		/* RENAME of an unsealed file over whose name the store still
				 * has the old one: publishing unlinks that old name */
	REC_DIR = 4,		/* what is renamed is a directory */
	REC_MAPPED = 8,		/* SEAL: bytes final only when the lease is granted */
	REC_SPILLED = 16,	/* sf's bytes are an unpublished store file */
	REC_HUGE = 32,
	REC_WRITE = 64,		/* OPEN: for writing */
	REC_SNAPSHOT = 128,	/* written by a rotation, not by an operation */
	REC_SEALED = 256,	/* NODE: the store has it */
	REC_RDWR = 512,
	REC_FSYNCED = 1024,
	REC_ANSWER = 2048,	/* only remembers which request was answered */
	REC_LENT = 4096,	/* SEAL: makes its node, at dir/name; sf is lent by buffer fh */
	REC_KEPT = 8192,	/* BUFFER: it is a file's for good */
};

enum rec_attr {
	REC_MODE = 1, REC_UID = 2, REC_GID = 4, REC_ATIME = 8, REC_MTIME = 16, REC_SIZE = 32,
};

struct rec {
	uint64_t seq;		/* 0 for session records */
	uint64_t unique;	/* FUSE request this answers, 0 = none */
	uint32_t type, flags;
	uint64_t node, node2;
	uint64_t dir, dir2;
	uint64_t sf;
	uint64_t ino;		/* st_ino shown to users */
	uint64_t size;
	uint64_t fh;
	uint64_t mask;
	int64_t backing;	/* passthrough backing id, 0 = none */
	uint32_t mode, uid, gid, lane;
	struct timespec atime, mtime, when;	/* when: of a SEAL its staged file's ctime */
	/* Not owned; NULL or "" when unused. Names are NUL-terminated bytes. */
	const char *name, *name2;
	const void *data;	/* SEAL: packed names and xattrs, see rec_pack_* */
	uint32_t data_len;
};

#define REC_DATA_MAX (1u << 20)

/* Encodes into buf (cap bytes); returns the length or -ENOBUFS. */
ssize_t rec_encode(const struct rec *r, void *buf, size_t cap);
/* Decodes one record from hostile bytes; *used = its length; strings point into
 * buf. -EAGAIN: torn or end of log; -EBADMSG: checksum or lengths wrong. */
int rec_decode(const void *buf, size_t len, struct rec *out, size_t *used);

/* ---- life ---------------------------------------------------------------- */

#define STAGING_HELD 420

/* Names that commit what other nodes write; see hold.c. */
struct staging_hold {
	bool (*commits)(const char *name);	/* called with staging's locks: looks at the name only */
	/* Does the store lack something that the bytes in fd list? Then `what` is told, in words
	 * that follow "but". seq: the same for the same bytes. dir, dirfd: where the name goes.
	 * Called by one thread, without locks. */
	bool (*missing)(void *ctx, uint64_t seq, uint64_t dir, int dirfd, int fd, char *what, size_t cap);
	unsigned patience_ms;			/* 0 = nothing is held */
};

struct staging_opts {
	struct io_store *store;
	struct io_engine *engine;
	struct staging_place place;	/* stays the caller's */
	uint64_t budget_bytes;
	uint64_t pool_bytes;		/* target; 0 = none */
	unsigned persist_threads;	/* 0 = 2 */
	struct staging_hold hold;
	/* A file that the kernel writes by itself outgrows memory: see that staged_move_out is called
	 * for it. Called with staging's locks held; must not block, and may be called again. NULL = not. */
	void (*outgrown)(void *ctx, uint64_t node);
	unsigned mapped_ms;		/* so long a mapping holds up others' changes; 0 = 30 s */
	bool no_dedup;			/* else equal files and copies share blocks where the store can */
	io_notice_fn notice;
	void *ctx;
};

/* Opens staging on its place. Starts no thread. -EPROTONOSUPPORT, -EXDEV: as staging_look; nothing was touched. */
int staging_open(const struct staging_opts *o, struct staging **out);
/* Replays the log: every record in order to `each` (called without locks held;
 * an error stops the replay). Records already published are replayed too: see
 * staging_applied. Torn tails are cut; damaged logs are set aside (renamed) and
 * reported. */
int staging_replay(struct staging *s, int (*each)(void *ctx, const struct rec *r), void *ctx);
/* Node id has readers, its bytes are the store file st, and it is about to lose its last name there: the
 * publisher gives it one in tmp/ first, which the next worker opens. linked: it has that already. */
void staging_retain(struct staging *s, uint64_t id, const struct stat *st, bool linked);
void staging_retain_end(struct staging *s, uint64_t id);	/* the last reader is gone; any id */
int staging_retained_open(struct staging *s, uint64_t id);	/* a descriptor; -ENOENT: it has no such name */
nlink_t staging_retained_links(struct staging *s, const struct stat *st);	/* how many of st's names are such */
/* After the replay: clears staging and the store's tmp/ of what nothing refers to.
 * `orphaned`: the connection is gone, so files never sealed have no writer any
 * more; they, and bytes without a record, go to STORE/.cairn/lost+found. */
int staging_sweep(struct staging *s, bool orphaned);
/* Tries again what the sweep could not move to lost+found; returns how many files stay where they are. */
unsigned staging_keep_again(struct staging *s);
/* Threads: persist, publish, watch, trash, pool, dedup. What a dead worker applied and did not sync is
 * synced by them: until then it is pending and not evicted. */
int staging_start(struct staging *s);
/* The durable file dir/name is being copied: where equal files are stored once, the copy will be
 * compared with it. -EOPNOTSUPP: they are not here. Any lock but staging's may be held. */
int staging_dedup_source(struct staging *s, uint64_t node, uint64_t dir, const char *name);
/* Waits until all is durable (timeout_ms < 0: for ever). -ETIMEDOUT; the persist error when halted. */
int staging_drain(struct staging *s, int timeout_ms);
/* Stops threads, frees. What is staged stays in place for the next open. */
void staging_close(struct staging *s);
/* Removes log, page pool and cached files when nothing is pending: a clean end. */
void staging_clear(struct staging *s);

uint64_t staging_new_id(struct staging *s);	/* ids.h */

/* False: the store is so full that a new name might not find a block. Callers then
 * refuse it with ENOSPC, so that what is accepted can be published. */
bool staging_room_for_names(struct staging *s);

/* ---- log ----------------------------------------------------------------- */

/* Appends r; gives ordered records their seq (in r->seq). When it returns 0 the
 * record survives the worker's death. -ENOSPC: staging's own tmpfs is full. */
int staging_log(struct staging *s, struct rec *r);
uint64_t staging_last_seq(struct staging *s);
/* Records up to here are visible in the store / on stable storage. */
uint64_t staging_applied(struct staging *s);
uint64_t staging_durable(struct staging *s);
/* Was this request (FUSE unique, resent after a restart) carried out already? Then
 * *out is its record, without strings. */
bool staging_answered(struct staging *s, uint64_t unique, struct rec *out);
/* Is a rotation due? Then call _rotate with the tree lock held; `emit` writes the
 * session (nodes, handles) by calling staging_emit for each. */
bool staging_rotate_due(struct staging *s);	/* only while nothing is pending */
/* Is the log so long that a rotation must come before the next change? */
bool staging_log_full(struct staging *s);
/* Waits until nothing is pending, so that a rotation can be made, or it is not so long any more.
 * No lock held. */
void staging_log_room(struct staging *s);
int staging_rotate(struct staging *s, int (*emit)(void *ctx, struct staging *s), void *ctx);
int staging_emit(struct staging *s, const struct rec *r);

/* done(ctx, err) once seq is durable, or publication halted (err = -EIO, ...).
 * May run at once on this thread, else on staging's. */
void staging_when_durable(struct staging *s, uint64_t seq, void (*done)(void *ctx, int err), void *ctx);

/* ---- directories of the store ---------------------------------------------- */

/* Tells that directory `id` stands in the store at parent/name. */
int staging_dir_learn(struct staging *s, uint64_t id, uint64_t parent, const char *name);
void staging_dir_forget(struct staging *s, uint64_t id);
/* O_PATH descriptor of directory id, valid until _put. -ENOENT: not in the store. */
int staging_dir_get(struct staging *s, uint64_t id, int *fd);
void staging_dir_put(struct staging *s, uint64_t id);
/* Closes fd, in a thread of staging's own: it may be the last of a file of the store that was
 * unlinked, and to free its blocks takes long on some disks. Before the start: when it starts. */
void staging_close_later(struct staging *s, int fd);

/* ---- staged files ---------------------------------------------------------- */

enum staged_state {
	STAGED_OPEN, STAGED_SEALED, STAGED_PERSISTING, STAGED_DURABLE, STAGED_FAILED, STAGED_EVICTED,
};

struct staged_info {
	uint64_t id;
	enum staged_state state;
	bool spilled;
	bool late;		/* taken before its last mapping went: another version will follow */
	uint64_t size;
	uint64_t written;	/* of these, by the thread that persists them just now: for who looks on */
	struct timespec atime, mtime, ctime;
	uint64_t blocks;	/* 512-byte units, as st_blocks */
	int error;		/* negative errno when failed */
	bool torn;		/* a write of it failed: it is not tried again by itself */
	char checksum[IO_CHECKSUM_LEN];	/* "" until durable */
};

#define STAGED_SIZE_UNKNOWN UINT64_MAX

/* Creates an empty staged file for node, or a spilled one when the budget has no
 * room for `expected` bytes. The reference is the caller's. */
int staged_create(struct staging *s, uint64_t node, uint64_t expected, struct staged **out);
/* For f, new, whose size is known and large: allocates all of its memory, so that it is charged to
 * this process's memory cgroup and not to the writer's. Takes milliseconds a GiB where the page pool had
 * not as much; call it with no lock held. */
void staged_cover(struct staged *f);
bool staged_covered(const struct staged *f);	/* it has been */
/* The same for an owner whose quotas count: its blocks in the store are his from the beginning.
 * `grows`: it will hold `expected` bytes, and then be written. -EDQUOT. */
struct staged_owner { uid_t uid; gid_t gid; bool grows; };
int staged_create_as(struct staging *s, uint64_t node, uint64_t expected, const struct staged_owner *who,
		     struct staged **out);
/* The store may not have room for all that may be written to f: its bytes are to come through the daemon,
 * staged_write(), which says so. */
bool staged_checked(struct staged *f);
/* f, closed, is about to be written again: would it be so? Then, unless it is a backing file, it is. */
bool staged_check_room(struct staged *f);
/* Recovers the staged file a record names. */
int staged_recover(struct staging *s, const struct rec *r, struct staged **out);
/* A copy of src's bytes (or of the store file fd when src is NULL). Blocks. */
int staged_copy(struct staging *s, uint64_t node, struct staged *src, int store_fd, struct staged **out);
int staged_copy_as(struct staging *s, uint64_t node, struct staged *src, int store_fd,
		   const struct staged_owner *who, struct staged **out);
struct staged *staged_ref(struct staged *f);
void staged_unref(struct staged *f);	/* last one: removed, unless pending */
uint64_t staged_id(const struct staged *f);
void staged_set_node(struct staged *f, uint64_t node);	/* it is another's now */
bool staged_spilled(const struct staged *f);
bool staged_huge(const struct staged *f);
void staged_get_info(struct staged *f, struct staged_info *out);	/* stats an open one */
/* The same without a system call: size, blocks and times are those of the last seal. */
void staged_get_state(struct staged *f, struct staged_info *out);

/* O_RDONLY descriptor, the staged file's own: valid while a use is held. */
int staged_use(struct staged *f, int *fd);	/* keeps it from eviction; -ENODATA: evicted */
void staged_unuse(struct staged *f);
/* A new O_RDWR descriptor; the caller closes it (its life holds up the seal). */
int staged_open_rw(struct staged *f);
/* The kernel has f's file as a passthrough backing, or had it: readers and mappings may
 * hold on to it, so relay writes that find no room go past the budget instead of spilling.
 * A buffer's memory is the file's for good then. Not 0: that could not be logged, and the file must
 * not be made a backing. */
int staged_set_backing(struct staged *f);
/* As futimens. -ENODATA: evicted; the times are remembered all the same. */
int staged_set_times(struct staged *f, const struct timespec ts[2]);

/* Relay writes: exact backpressure. Waits, evicts, spills: never -ENOSPC while
 * the store has room, unless f is a backing file. -ENOSPC, -EDQUOT: the store has no room for it, and f's
 * close will fail unless these bytes are written after all. -EFBIG, of _resize and _fallocate too: no
 * file of the store can be so long. */
ssize_t staged_write(struct staged *f, const void *buf, size_t len, uint64_t off);
/* Its two halves: without waiting for removals that make room, -EAGAIN: the other must follow. */
ssize_t staged_write_now(struct staged *f, const void *buf, size_t len, uint64_t off);
ssize_t staged_write_later(struct staged *f, const void *buf, size_t len, uint64_t off);
/* Reads what f holds now, wherever a spill put it. -ENODATA: evicted or published. */
ssize_t staged_read(struct staged *f, void *buf, size_t len, uint64_t off);
int staged_resize(struct staged *f, uint64_t size);
/* Would one of these wait, for long perhaps: is f's version being persisted or its bytes moved? */
bool staged_busy(struct staged *f);
/* Waits until blocks are allocated or bytes are moved. No lock of the caller's may be held. */
void staged_await(struct staged *f);
int staged_fallocate(struct staged *f, int mode, uint64_t off, uint64_t len);

/* Moves older bytes of an open backing file out of memory, to the store; see outgrow.c. Writes,
 * for up to some GiB. The caller knows that meanwhile nobody writes the file, and that until it
 * is closed nobody reads or maps it: staged_outgrown is true from then on, and from
 * staged_set_moving() until this returns. 0 also when nothing could move. -EAGAIN: not open, or spilled; -EIO:
 * what had moved was written again in place, which cannot be told apart: neither close nor
 * fsync will succeed; else as the store says, and nothing is lost. */
int staged_move_out(struct staged *f);
void staged_set_moving(struct staged *f);	/* until staged_move_out() has ended */
void staged_not_now(struct staged *f);	/* it cannot be moved: another one is, for a while */
bool staged_outgrown(struct staged *f);
/* The same as staged_reserve for the copy that a seal makes while the writer of an outgrown or spilled
 * file goes on; 0 for any other. After that. */
int staged_reserve_copy(struct staged *f);
/* The last writer is gone: what is still in memory follows, and f is a spilled file. 0 too
 * where it was never outgrown. Errors as staged_move_out; f is then as before. */
int staged_finish(struct staged *f);

/* Allocates the store blocks a seal of f's present size needs; called before a
 * close or fsync is acknowledged. -ENOSPC, -EDQUOT, -EIO; -EFBIG: longer than a file of the store
 * can be. Where removals on their way may make room it waits for them, up to 30 s. */
int staged_reserve(struct staged *f);
/* Its two halves: without any wait, -EAGAIN: the other must follow; and the wait, with what comes of it. */
int staged_reserve_now(struct staged *f);
int staged_reserve_later(struct staged *f);
/* The same for a small file, never waiting for the store. -EAGAIN: staged_reserve() must do it. */
int staged_promise(struct staged *f);
/* f, open, is being made as a copy of the store file fd, which is durable. Only a hint: where the
 * store can, and the bytes are equal, what is sealed becomes a clone and is not written. Takes fd,
 * and closes it where it is of no use. Any lock but staging's may be held. */
void staged_copied_from(struct staged *f, int fd);
/* A copy has the times now that its open found; for staged_look_mapped. */
void staged_copy_done(struct staged *f);
/* The kernel does not set the times of a tmpfs file when a mapping writes a page that it has read before. Has f the
 * time with which it was opened, and other bytes? Then it has changed now. Reads all of f; any lock but staging's
 * may be held, none should. */
void staged_look_mapped(struct staged *f);
/* Has f changed since its last seal (mapped writes cannot be seen)? */
bool staged_changed(struct staged *f);
/* Fills r's size, times and checks; the caller fills names and logs r with
 * staging_seal. `closed`: no writer is left (else a snapshot by fsync). Never waits. -EBUSY: blocks are
 * being allocated for f or its bytes moved: staged_await(), then again. */
int staging_seal(struct staging *s, struct staged *f, struct rec *r, bool closed);
/* Seals of f that wait for a mapping to go are final as they stand now: its own
 * fsync asks for that. What the mapping writes later follows as a late version. */
void staged_finalize(struct staged *f);
/* A node that was finalized early and is mapped no more; 0 = none. Seal it again. */
uint64_t staging_next_late(struct staging *s);
/* Open again for writing in place: allowed (0) when the bytes of its seals are on
 * stable storage, or not final yet. -EBUSY: they soon are, see the next; -EAGAIN:
 * not in place at all (evicted; spilled and final), copy instead. */
int staged_reopen(struct staged *f);
/* Waits until a seal's bytes are safe. -EAGAIN: they will not be, the store fails. */
int staged_wait_persisted(struct staged *f);
/* Its writers went after its last name: a seal that waited for them goes on with what is there. */
void staged_nameless(struct staged *f);
/* Its writers went and changed nothing: back to the state before. -EBUSY as staging_seal. */
int staged_unchanged(struct staged *f);
/* Marks a close that could not be accepted (no room). name is for people. */
void staged_fail(struct staged *f, int err, const char *name);
/* f was never closed, and its writer is gone: failed (EOWNERDEAD), never tried again. */
void staged_orphan(struct staged *f);
/* Did a removal make room since it was last asked? */
bool staging_room_came(struct staging *s);

/* ---- buffers: staged files on loan to a client, see buffer.c ---- */

struct buffer;
enum buffer_state {
	BUFFER_FREE,	/* the client's */
	BUFFER_LENT,	/* committed: staging reads it, the client does not write */
	BUFFER_KEPT,	/* others hold its pages: it is the committed file's for good */
};
struct buffer_info {
	enum buffer_state state;
	uint64_t bytes;		/* charged */
};

/* A file of size bytes whose memory is there. The reference is the caller's. -ENOSPC: the
 * budget has no room, or buffers would hold too much of it; -EMFILE: there are too many. Blocks. */
int buffer_create(struct staging *s, uint64_t size, struct buffer **out);
int buffer_recover(struct staging *s, uint64_t id, bool kept, struct buffer **out);	/* -ENOENT: ended */
struct buffer *buffer_ref(struct buffer *b);
void buffer_unref(struct buffer *b);
uint64_t buffer_id(const struct buffer *b);
int buffer_fd(const struct buffer *b);	/* O_RDONLY, its own: valid while referenced */
void buffer_get_info(struct buffer *b, struct buffer_info *out);
/* Memory for size bytes; never gives any back. -ENOSPC; -EBUSY: kept; -ESTALE: ended. Blocks. */
int buffer_resize(struct buffer *b, uint64_t size);
/* The client is gone. A version it lent goes on as any other; else the memory is free. */
void buffer_end(struct buffer *b);
/* A version of the first size bytes for a new node, not sealed: staged_reserve() follows, then
 * buffer_commit(), or staged_unref() alone when nothing comes of it. -EBUSY: lent, or kept;
 * -ENOENT: ended. */
int buffer_lend(struct buffer *b, uint64_t node, uint64_t size, struct staged **out);
/* As staging_seal; r->when becomes the version's times. The buffer is free again when the
 * version is durable and nobody has it open. */
int buffer_commit(struct staged *f, struct rec *r);
/* The id of the buffer that f is lent by, or 0. loan: it was, perhaps by one that has ended. */
uint64_t staged_lender(struct staged *f, bool *loan);
void staging_watch_buffers(struct staging *s);	/* now and then: counts what grew by write(2) */

/* Packs names and xattrs of a SEAL into rec.data. */
struct rec_name { uint64_t dir; const char *name; };
struct rec_pair { const char *key; const void *val; uint32_t len; };
ssize_t rec_pack(const struct rec_name *names, unsigned n_names, const struct rec_pair *pairs,
		 unsigned n_pairs, void **out);	/* malloc'd */
/* Iterates hostile packed data: *pos starts at 0; 1 = name, 2 = pair, 0 = end, -EBADMSG. */
int rec_unpack(const void *data, uint32_t len, uint32_t *pos, struct rec_name *name, struct rec_pair *pair);

/* ---- what people ask --------------------------------------------------------- */

#define STAGING_LATENCY_BUCKETS 12	/* le 1 ms * 4^i, last = +Inf */

struct staging_stats_versions {	/* staged files, by state */
	uint64_t open, sealed, persisting, durable, failed;
};
struct staging_stats_log {
	uint64_t pending;		/* records */
	uint64_t last_seq, applied, durable, bytes;
};
struct staging_stats_latency {	/* from seal to durable */
	uint64_t buckets[STAGING_LATENCY_BUCKETS], count, sum_us;
};
struct staging_stats_outgrown {	/* since the start */
	uint64_t files, bytes;
};
struct staging_stats_buffers {
	uint64_t count, bytes, lent_bytes;
};
struct staging_stats_halted {
	int error;		/* 0 or -errno */
	time_t since;
	char path[256];
};
struct staging_stats_refused {
	uint64_t count;		/* changes that were accepted, and refused by the store for good */
	int error;		/* of the latest, -errno */
	char path[256];
};
struct staging_stats_dedup {	/* since the start */
	uint64_t files, bytes;	/* that have the blocks of others */
	uint64_t clones;	/* of these files, copies that had them from the beginning */
};
struct staging_stats_recovered {
	uint64_t records, versions, lost_found;
	uint64_t kept;		/* files for lost+found that found no room there yet */
};
struct staging_stats {
	uint64_t budget, used, pool, pool_target;
	uint64_t bytes_staged, bytes_persisted;
	uint64_t waits, wait_ns;	/* of opens, writes and closes: for room, memory, the version before */
	uint64_t errors;
	uint64_t spilled_opens, fast_opens;
	unsigned queue_depth;
	char last_error[256];
	char held[STAGING_HELD];	/* a name that waits for other nodes, and for what; "" = none */
	char waiting_mapped[512];	/* names, '\n' between */
	struct staging_stats_versions versions;
	struct staging_stats_log log;
	struct staging_stats_latency latency;
	struct staging_stats_outgrown outgrown;
	struct staging_stats_buffers buffers;
	struct staging_stats_halted halted;
	struct staging_stats_refused refused;
	struct staging_stats_dedup dedup;
	struct staging_stats_recovered recovered;
};
void staging_get_stats(struct staging *s, struct staging_stats *out);
/* Bytes not yet durable, by node (0 = all): calls each(ctx, node, bytes, state). Lock held: be quick. */
void staging_each_pending(struct staging *s, void (*each)(void *ctx, uint64_t node, uint64_t bytes,
			  enum staged_state st), void *ctx);
/* Halted publication tries again now; what the store refused was seen. */
void staging_retry(struct staging *s);
/* The error of the first change up to seq that the store refused for good, of node, or at any name below
 * directory dir (0: none); 0. Any lock but staging's may be held. */
int staging_refused(struct staging *s, uint64_t node, uint64_t dir, uint64_t seq);
/* The node at whose change publication halts, 0 = none; *err says why. */
uint64_t staging_halted_at(struct staging *s, int *err);

#ifdef __cplusplus
}
#endif
#endif

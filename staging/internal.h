/* SPDX-License-Identifier: MIT
 * What the files of this module share. Nothing outside staging/ includes it.
 *
 * A staged file's states (staged->state), under s->lock:
 *
 *   OPEN ──seal──▶ SEALED ──persist──▶ PERSISTING ──publish, sync──▶ DURABLE ──▶ EVICTED  
 *     ▲               ▲                    │                            │
 *     │               └──── rewrite ── FAILED ◀── error                 │
 *     └──────────────────────── reopened for writing ───────────────────┘
 *
 *   state       open       n_seals  lru   file in staging
 *   OPEN        yes        >= 0     no    yes
 *   SEALED      no         >= 1     no    yes
 *   PERSISTING  no         >= 1     no    yes
 *   DURABLE     no         0        yes   yes, unless evicted or spilled
 *   FAILED      no         any      no    yes
 *   EVICTED     no         0        no    no (nothing charged)
 *
 * staged_check() runs the table in debug builds (-DCAIRN_CHECK).
 */
#ifndef CAIRN_STAGING_INTERNAL_H
#define CAIRN_STAGING_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "io/clock.h"
#include "io/keys.h"
#include "io/level.h"
#include "io/scope.h"
#include "io/sum/sum.h"
#include "staging/staging.h"

/* expected size from which the huge=always tmpfs is used */
#define HUGE_BYTES (2ull << 20)
/* A file with more hole than this, and than data, gets no checksum: summing zeros would take longer
 * than the rest of an fsync, minutes per terabyte, and so would every verify; and its copies have
 * the holes, too. */
#define SUM_HOLES_MAX (256ull << 20)
static inline bool is_mostly_hole(uint64_t data, uint64_t size)
{
	return size > data && size - data > SUM_HOLES_MAX && size - data > data;
}
static inline bool is_mostly_holes(const struct stat *st, uint64_t size)
{
	return is_mostly_hole((uint64_t)st->st_blocks * 512, size);
}
/* What the reserve promises a version in place of blocks of its own: the size of a small file; the
 * pages of one that is mostly holes, so that its close need not search them for data. Its blocks
 * are allocated when it is persisted, where the data are searched for anyway. UINT64_MAX:
 * nothing. */
#define PROMISE_HOLES_MAX (64ull << 20) /* of the reserve, a quarter */
static inline uint64_t promise_bytes(uint64_t size, uint64_t held)
{
	if (size <= STAGING_SMALL)
		return size;
	return is_mostly_hole(held, size) && held <= PROMISE_HOLES_MAX ? held : UINT64_MAX;
}
#define FDS_PEND_MAX 1000u /* with more pending, they keep no descriptors */
#define MAX_ATTEMPTS 3 /* rewrites of a version before publication halts */

#define TRASH_REMOVED_MAX 128u
#define LOST_IN_MAX 32u /* of struct head */

/* Head of the staging area, mapped; 8-byte stores survive a kill at any instant. Fields before
 * `where` have the same offset in every version, so that a program that cannot read the rest can
 * name the one that can. Fields are added at the end; the version is raised when an older program
 * must not continue with it. */
struct head {
	uint64_t magic;
	uint32_t version;
	char store_id[36];
	_Atomic uint64_t segment; /* number of the live log file */
	_Atomic uint64_t next_id;
	_Atomic uint64_t applied; /* visible in the store */
	_Atomic uint64_t durable; /* and on stable storage */
	/* zeros if written by 0.1.0 */
	char program[32]; /* the version of cairnfs that served it last */
	struct io_where where; /* the store that it belongs to */
	char store_path[1024]; /* and its path, for messages */
	/* log file of which a replay found a part missing in the store */
	uint64_t recalled;
	/* log file that has a REC_ASIDE */
	uint64_t asides;
	/* up to here all was left over from a kill of all processes; 0: nothing was. Of it, the
	 * directories in which something was given up for others' files: more than fit, all */
	uint64_t leftover;
	uint64_t n_lost_in;
	uint64_t lost_in[LOST_IN_MAX];
	/* up to here nothing more is removed: of what was left over a version or a rename was
	 * given up; 0: none was */
	uint64_t given_up;
};
#define HEAD_MAGIC 0x31676e6974736e63ull /* "cnsting1" */
#define HEAD_VERSION 1u
_Static_assert(offsetof(struct head, segment) == 48 && offsetof(struct head, program) == 80 &&
		       offsetof(struct head, where) == 112 && sizeof(struct head) <= 4096,
	       "the head's layout is kept");
/* A log begins with a record of its format, which is raised with each new type or meaning of a
 * record. 1: of 0.1.0, which wrote no such record. */
#define LOG_FORMAT 3u
#define LOG_BUF (REC_DATA_MAX + 4096) /* bytes of log_buf: the longest record */

enum reserve_state { RESERVE_NONE, RESERVE_HELD, RESERVE_GIVEN };

enum pend_state {
	PEND_WAIT, /* SEAL: a writable mapping exists, bytes are not final */
	PEND_QUEUED, /* SEAL: waits for a persist thread */
	PEND_BUSY, /* SEAL: a persist thread has it */
	PEND_WRITTEN, /* SEAL: bytes in the unpublished file, not synced */
	PEND_READY, /* may be published */
	PEND_FAILED, /* SEAL: no more attempts; publication halts here */
};

/* What is written of a file to its unpublished file while it is still written; early.c. Under
 * s->lock, unless said otherwise. */
#define EARLY_CHUNK (8ull << 20)
struct early {
	atomic_uint refs; /* the file's or its pending version's, and a thread's */
	uint64_t tmp_id;
	int fd; /* of that file, a descriptor of its own */
	bool busy; /* a chunk is being written */
	bool over; /* sealed, dropped or failed: no chunk is begun any more */
	uint64_t end; /* bytes [0, end), whole chunks, are there; constant once over and not busy */
	uint64_t allocated; /* f->io.lock */
	struct io_digest *sum; /* of each chunk, as it was written */
	size_t cap;
};
static inline void early_unref(struct early *e)
{
	if (!e || atomic_fetch_sub(&e->refs, 1) != 1)
		return;
	close(e->fd);
	free(e->sum);
	free(e);
}

/* What a file of the store has, by sums of its chunks; delta.c. Not changed any more. */
#define DELTA_CHUNK (128u << 10)
struct chunks {
	atomic_uint refs; /* its staged file's, and a thread's */
	int fd; /* of that file, one of n_sources; -1: not kept yet */
	uint64_t seq; /* of its version */
	uint64_t size, changed; /* of them, not taken from the version before */
	struct timespec mtime; /* another program has not written to it since */
	struct io_digest sum[];
};

/* What a version waited for, for the timeline (drain/timeline.c): ns. */
enum pend_wait {
	WAIT_ADMISSION, /* its writer, for space in staging or in the store */
	WAIT_SPILL, /* it was written to the disk's speed: staging was full */
	WAIT_FSYNC, /* its writer, in fsync */
	WAIT_LEASE, /* for its last mapping to go */
	WAIT_HOLD, /* for other nodes' files, or behind what did */
	WAIT_DISK, /* for the store: persisted, published, synced */
	PEND_WAITS
};
struct pend_times {
	uint64_t begun, closed; /* monotonic; 0: under an earlier worker */
	uint64_t aside; /* since then */
	bool fsync; /* closed is the time of an fsync */
	uint64_t wait[PEND_WAITS];
};

struct pend_tries {
	unsigned n; /* failed, of MAX_ATTEMPTS */
	uint64_t lacks_ns; /* since then it lacks descriptors or memory; 0: it does not; lack.c */
};

struct pend_clone {
	int source; /* a store file that it may be a clone of; -1; clone.c */
	bool done; /* it is one */
};

/* An ordered record that is pending. In s->order.pend: those set aside, sorted by `accepted`, then
 * the others, sorted by seq. */
struct pend {
	struct pend *next;
	struct pend *todo_next; /* in s->order.todo when QUEUED */
	struct rec r; /* strings point behind this struct */
	enum pend_state state;
	struct staged *sf; /* SEAL: a reference */
	uint64_t tmp_id;
	int tmp_fd;
	bool direct;
	bool snapshot; /* by fsync: the file is still written */
	struct early *early; /* what tmp_id had before the seal; NULL */
	struct pend_clone clone;
	struct chunks *chunks; /* what it has then, if it is its version before's; NULL; delta.c */
	bool must; /* removed later, but must be published: persist it */
	bool again; /* first after a restart: perhaps applied already */
	bool shown; /* done in the store, but the mark could not be set */
	/* its first step is done in the store; a retry continues there */
	bool begun;
	uint64_t dead_at; /* seq that removes what this creates, 0 = none */
	bool kills; /* removes what a pending record created */
	uint64_t accepted; /* its first seq: r.seq is a later one after it waited */
	/* accepted, or that of the first version that it replaces: append.c */
	uint64_t from;
	bool aside; /* it waits for other nodes, or behind what does; aside.c */
	struct held *held; /* it is a name that waits; NULL. Owned; hold.c */
	struct pend_tries tries;
	/* a spilled file: only its own sync shows whether the store has it */
	bool unsure;
	/* the store lost its bytes: -errno. The version is skipped */
	int lost;
	/* a snapshot whose fsync failed: the file is still written */
	_Atomic bool failed_fsync;
	/* bytes of the reserve, until it is in the store (rewrites included) */
	uint64_t promised;
	uint64_t start_ns;
	char checksum[IO_CHECKSUM_LEN];
	struct pend_times times;
};

/* Memory lent to a client; buffer.c. */
struct buffer {
	struct buffer *next; /* s->files.buffers, until it has ended */
	struct staging *s;
	uint64_t id;
	unsigned refs; /* as all below: s->lock */
	bool kept, ended;
	int fd; /* O_RDONLY: a writable one would delay leases */
	uint64_t charged;
	struct staged *lent; /* whose lender is this buffer */
};

/* ---- what each part of a staged file has; under s->lock, unless said otherwise ---- */

/* The lists that it is in, by state; staged.c. */
struct staged_lists {
	struct staged *hash_next;
	struct staged *open_prev, *open_next; /* OPEN, or FAILED */
	struct staged *lru_prev, *lru_next; /* DURABLE */
	struct staged *late_prev, *late_next; /* late */
};

/* Memory that it has and is expected to need; admit.c, relay.c, buffer.c. */
struct staged_memory {
	bool huge;
	bool filled; /* it was a ready file of the pool */
	_Atomic bool covered; /* all that it is expected to take is allocated by us */
	_Atomic uint64_t charged; /* changed under s->lock; a write looks at it without */
	uint64_t expected;
	bool known; /* expected was known */
	bool presized; /* extended to its final size before it was written */
	bool in_parts; /* and written in several places at once */
	bool loan; /* a buffer's bytes: never to the pool */
	struct buffer *lender; /* which is charged for it and may have it back; NULL */
};

/* Memory allocated ahead of its writer; ahead.c. */
struct staged_ahead {
	/* end of the allocation; the file's size when last looked at */
	uint64_t end, size;
	bool allocating;
	_Atomic bool over; /* no more of it until it is opened again */
	_Atomic bool paused; /* nor while an fsync seals it */
};

/* Its older bytes are in the store; outgrow.c. */
struct staged_moved {
	_Atomic uint64_t under; /* bytes [0, under) are in tmp/<id> instead; io.lock */
	_Atomic bool more; /* more bytes are being moved */
	uint64_t after_ns; /* not before this time */
	_Atomic bool rewritten; /* where they had moved: no more can move */
	bool stuck; /* the store does not take more; limit.c */
	unsigned failed; /* tries in a row */
};

/* State at the last seal, or when the file was last looked at; staged_changed compares with it. */
struct staged_last {
	bool once;
	uint64_t ns; /* CLOCK_REALTIME */
	uint64_t size, blocks;
	struct timespec atime, mtime, ctime;
	char checksum[IO_CHECKSUM_LEN];
};

/* State at the open for writing, or of the source of a copy; seal.c, clone.c. */
struct staged_base {
	char checksum[IO_CHECKSUM_LEN]; /* empty: unknown */
	uint64_t seq; /* of that version, if it was pending; 0 */
	struct timespec mtime;
	int source; /* a store file that it may be a copy of; -1 */
	bool counted; /* as a clone */
	bool again; /* it has the bytes of a version of the store, or had; delta.c */
	struct chunks *chunks; /* what the latest that was persisted has in the store; NULL */
};

/* Space that it may take in the store; space.c. */
struct staged_space {
	uid_t uid; /* owner of its blocks, if `owned` */
	gid_t gid;
	mode_t mode; /* of the file; 0: not known */
	bool owned;
	/* the store is nearly full: each write first allocates its blocks */
	bool checked;
	bool failed; /* its last close had no space: it is served first */
	/* bytes of the store it may still need; of s->space.claims */
	uint64_t claim;
};

/* Of the version that is written now, for the timeline; monotonic. */
struct staged_times {
	uint64_t begun, spilled; /* since then; 0: not */
	uint64_t admission, moved, allocated; /* its writer waited, ns */
};

/* For moving its bytes; relay.c, spill.c, unpublished.c, persist.c, space.c. */
struct staged_io {
	/* all below and moved.under, one thread at a time */
	pthread_mutex_t lock;
	/* held to persist an fsync's version: no bytes move */
	pthread_mutex_t cut;
	int rw; /* O_RDWR for relay writes, -1 */
	uint64_t tmp_id; /* unpublished store file, 0 = none; changed under s->lock, too */
	int tmp_fd;
	bool tmp_direct;
	uint64_t tmp_size; /* size for which blocks were allocated */
	uint64_t promised; /* or bytes of the reserve, for a small one */
	uint64_t allocated_from,
		allocated_to; /* range for which space_for_write allocated blocks */
	/* what the file tmp_id has already, changed under s->lock, too; NULL */
	struct early *early;
	bool no_early; /* it failed: not tried again */
	/* bytes [0, fixed) may be those of a closed version that the store does not have yet: they
	 * do not change (append.c). Raised where there is no writer; changed under s->lock */
	_Atomic uint64_t fixed;
	bool appends; /* who opened it can only append; s->lock */
	/* the last write at the end that was refused and left nothing; refused_end 0: none */
	uint64_t refused, refused_end;
};

/* What failed writes did not write (torn.c): it is no whole version. */
struct torn {
	_Atomic int err; /* of a failed write; 0: none */
	unsigned n;
	struct torn_range range[TORN_MAX]; /* ascending, apart from each other */
};

struct staged {
	struct staging *s;
	uint64_t id, node;
	unsigned refs;
	unsigned users; /* opens that use fd; no eviction */
	enum staged_state state;
	int fd; /* O_RDONLY, -1 when closed to save descriptors */
	bool spilled, published;
	/* the kernel has it as a backing file: it cannot be replaced */
	bool backing;
	bool no_evict; /* by sf_hold */
	/* finalized while a mapping still wrote it; by sf_set_late */
	bool late;
	/* its writer died after the last seal, and had changed it */
	bool unclosed;
	int error;
	/* spilled, and the store failed to write a part: do not trust its pages */
	_Atomic int spoiled;
	struct torn torn;
	unsigned n_seals; /* pending SEALs */
	uint64_t last_seal; /* seq of the latest */
	_Atomic uint64_t written; /* of the version that is being persisted, so far */
	struct staged_lists lists;
	struct staged_memory memory;
	struct staged_ahead ahead;
	struct staged_moved moved;
	struct staged_last last;
	struct staged_base base;
	struct staged_space space;
	struct staged_io io;
	struct staged_times times;
};

/* Threads that wait for work, all under s->lock. A wake-up costs the caller about 10 us, more than
 * a small file's whole close; so after work they poll for a while (TICK_NS, LINGER_NS), and work
 * that is not urgent need not wake them. */
struct sleeper {
	pthread_cond_t cond;
	unsigned deep; /* asleep until woken, or for long */
	uint64_t busy_ns; /* when there last was work */
	/* since the last sleep: a thread that looked without s->lock looks again */
	atomic_bool woken;
};
#define TICK_NS 3000000u
#define LINGER_NS 50000000u

/* ---- the parts of staging; under s->lock, unless stated otherwise ---- */

#define SF_BUCKETS 4096u

/* A file that holds pages for others; pool.c. */
struct pool_file {
	/* -1: a ready one (a writable descriptor would hold up leases), or none */
	int fd;
	unsigned claims; /* threads that take pages from it, or add some */
	/* pages [0, bytes); as many as a ready one is to have */
	uint64_t bytes, want;
};
/* more shards of one node in a checkpoint are handed their memory */
#define POOL_READY 64u
#define POOL_KEPT 64u /* a descriptor each */
#define POOL_FILES (POOL_READY + 1 + POOL_KEPT)

/* Touched pages that are held ready; pool.c. `lock` guards all but `cond` and `thread`, and is
 * held for a few instructions only. */
struct pool {
	pthread_mutex_t lock;
	_Atomic uint64_t bytes; /* of all files; changed under the lock */
	bool ended; /* nothing is added any more */
	_Atomic bool may_grow; /* the machine has memory; pressure.c */
	struct pool_file file[POOL_FILES];
	uint64_t request[POOL_READY]; /* sizes asked for, a ring */
	unsigned n_requests;
	pthread_cond_t cond; /* with s->lock */
	pthread_t thread;
};

/* The machine's memory; budget.c. */
struct memory {
	uint64_t available, seen_ns;
	bool limited; /* the tmpfs is asked to be small; limit.c */
	bool tried; /* this process has tried to move a file */
	/* of the thread of pressure.c */
	uint64_t told_ns;
	pthread_cond_t cond; /* with s->lock */
	pthread_t thread;
};

/* Blocks held allocated in the store; reserve.c. Both locks are held over I/O: never with s->lock
 * held. */
struct reserve {
	int fd;
	_Atomic int state; /* enum reserve_state */
	_Atomic uint64_t promised, inodes;
	atomic_uint asked; /* counts promises: some of them check the store */
	_Atomic bool scarce; /* the last check found no space */
	_Atomic bool tight; /* do not rely on delayed allocation */
	_Atomic uint64_t bytes, left; /* full size; of it, not given away yet */
	_Atomic uint64_t ample, ample_ns; /* the store's free bytes when they were ample */
	pthread_rwlock_t lock; /* read: a thread that allocates blocks in the store */
	pthread_mutex_t take_lock; /* changes of bytes and left */
};

/* Free space in the store; space.c. */
struct space {
	_Atomic uint64_t free, seen_ns; /* without a lock */
	uint64_t claims; /* of all that is open in the fast lane */
	bool freed; /* a removal is durable */
};

struct trash_file {
	uint64_t id; /* in the store's tmp/; 0: only to be closed */
	int fd; /* -1 = none */
};

/* Files to be removed; trash.c. */
struct trash {
	struct trash_file *file;
	size_t n, cap;
	/* removed files of the store, to be closed when nothing is saved */
	int removed[TRASH_REMOVED_MAX];
	unsigned n_removed;
	uint64_t since_ns; /* the first of these came */
	bool cleaning; /* a removal is in progress, or due */
	bool unsettled; /* since the last io_wait_freed something was removed */
	unsigned waiting; /* threads in trash_wait */
	pthread_cond_t cond;
	pthread_t thread;
};

struct log {
	int fd;
	char *map; /* LOG_MAP bytes of it; touched only below cap */
	uint64_t cap; /* allocated, zeros behind bytes */
	uint64_t bytes, snap_bytes, last_seq;
	char *buf; /* encode buffer */
	bool replaying;
	struct {
		uint64_t unique;
		struct rec r;
	} done[256]; /* answers to resent requests */
	struct log_dirs *dirs; /* during a replay; lostfound.c */
};

/* Pending records; order.c. */
struct order {
	struct pend *pend, **pend_tail;
	struct pend **head; /* link to the first that is not set aside; *head may be NULL */
	struct pend *todo, **todo_tail; /* QUEUED */
	uint64_t n_pend, n_wait, n_aside;
	uint64_t last_aside; /* accepted: of the last that is set aside */
	uint64_t last_delete; /* seq of the latest record that frees space, or what is counted */
	uint64_t fds_pend; /* FDS_PEND_MAX, or less where the limit is low */
};

/* A table of numbers, both not 0; aside.c. */
struct pairs {
	struct pair {
		uint64_t key, value;
	} * at;
	size_t n, cap;
};

/* Changes that wait for other nodes, and those that wait behind them; aside.c, drain/hold.c. */
struct aside {
	pthread_mutex_t lock; /* of the next two; innermost */
	struct pairs moved; /* places of the order: where their changes are now */
	_Atomic size_t n_moved;
	/* what was created since, and may be renamed: node -> seq. s->lock */
	struct pairs added;
	uint64_t first_seq; /* during a replay: the first that is not applied */
	/* of the publisher, those in which all are asked what is missing; s->lock */
	uint64_t looks_begun, looks_done;
	bool unfinished; /* something is to be resumed */
	atomic_bool late; /* staging_waits_long() */
	uint64_t look_ns; /* when the next is due; 0: now, and all are asked */
	/* of n_aside records, for pass.c; NULL: to be made. Owned; hold.c */
	struct pass_waiting *waiting;
	size_t n_waiting;
};

/* refuse.c */
struct refusals {
	struct refusal *list; /* the latest first */
	_Atomic uint64_t n;
};

/* Staged files; staged.c. */
struct files {
	struct staged *by_id[SF_BUCKETS];
	struct staged *lru_head, *lru_tail;
	struct staged *open, *failed;
	struct staged *late;
	uint64_t n_late;
	uint64_t late_ready[64]; /* nodes; see staging_next_late */
	unsigned n_late_ready;
	uint64_t n_evicted;
	uint64_t largest; /* bytes that a sealed file held */
	uint64_t used; /* of the budget */
	/* descriptors held of possible sources of copies; clone.c */
	unsigned n_sources;
	struct buffer *buffers; /* buffer.c */
	uint64_t n_buffers, buffer_bytes;
};

struct waiter {
	struct waiter *next;
	uint64_t seq, node; /* node 0: all changes up to seq */
	int err; /* for done */
	void (*done)(void *ctx, int err);
	void *ctx;
};

/* The checkpoints that are overwritten in place; previous.c. */
struct previous {
	struct generation *list; /* changed by the publisher, under s->lock */
	_Atomic unsigned n;
	uint64_t bytes; /* room that they take; s->lock */
	bool give; /* the room is needed; s->lock */
};

/* What a kill of all processes left over; leftover.c. The publisher's. */
struct leftover {
	/* up to here it is, and another log may have served the store since; 0: not so */
	uint64_t until;
	bool is_ours; /* it is durable, and the store knows this log */
	/* Files of the store that the frontend had seen, by inode. Owned. */
	struct seen {
		uint64_t ino, birth; /* birth 0: the store does not tell, but size and mtime */
		uint64_t size;
		struct timespec mtime;
		uint64_t node, dir, name; /* name: a hash; dir 0: of the node, wherever it is */
	} * seen;
	size_t n_seen, cap;
};

struct dedup;
struct timeline;
/* From sealed to durable; persist.c, publish.c, sync.c. */
struct drain {
	/* records up to here are in the publisher's present batch */
	uint64_t batch_end;
	bool marked; /* the store's mark is of this log; mark.c */
	struct leftover leftover;
	/* head: applied by a worker that died before it synced them */
	bool inherited;
	struct waiter *waiters;
	_Atomic unsigned n_sync_waiters;
	void (*moved)(void *ctx); /* staging_tell_moves(); NULL: nobody asked */
	void *moved_ctx;
	/* IO_ATTR_*: the store refuses them, logged already; meta.c */
	_Atomic unsigned refused;
	/* failed syncs that may have lost bytes of other files */
	uint64_t n_lost;
	struct retained *retained; /* retain.c */
	uint64_t given_up; /* a directory that did not come back; vanished.c */
	_Atomic unsigned n_retained;
	struct previous previous;
	struct timeline *timeline; /* timeline.c; NULL until it is started */
	struct dedup *dedup; /* dedup.c; NULL = off, or not started */
	bool no_clone; /* the store does not support clones; clone.c */
	int halted;
	uint64_t halt_retry_ns, halt_tried_bytes; /* halted.c */
	uint64_t lack_told_ns; /* lack.c */
	bool retry_now;
	pthread_t persist[16], persist_small, publisher;
	struct io_queue *queues[16];
	unsigned n_persist;
	unsigned n_large; /* of them, busy with a large file */
};

/* During a replay: an answered FLUSH, as the SEAL that it would have become; flushed.c. */
struct flushed {
	uint64_t sf, node;
	void *bytes; /* the record as encoded in the log */
	size_t len;
};

/* During a replay: what became of each staged file in the log; sweep.c. */
struct sweep_entry {
	uint64_t id;
	size_t next; /* place + 1: in its bucket, or among the free ones */
	bool open;
	bool lent; /* a second name of a buffer: not lost when it is removed */
	uint64_t node, dir;
	size_t next_node; /* as next, by node */
	bool closed; /* as it was fsynced: that version is in the order */
	bool rdwr; /* perhaps mapped: its times prove nothing */
	bool kept; /* an earlier start found it unclosed; `name` is the one in lost+found */
	uint64_t size; /* of the last seal */
	struct timespec mtime;
	char name[256]; /* for lost+found */
};

#define LOSTFOUND_NAME 200u /* a path as one name; lostfound.c */
/* An unreferenced file that could not be moved to lost+found yet. */
struct kept_file {
	struct kept_file *next;
	uint64_t id;
	int dir; /* descriptor of the place, or of the store's tmp/ */
	bool in_store;
	uint64_t size;
	struct staged *f; /* if also known to us, kept from eviction meanwhile; or NULL */
	char name[LOSTFOUND_NAME];
};

/* A replay and what follows it; sweep.c, flushed.c. One thread's, except for `kept`. */
struct sweep {
	struct sweep_entry *entry;
	size_t n, cap, free;
	size_t bucket[SF_BUCKETS], node[SF_BUCKETS];
	struct flushed *flushed; /* answered closes */
	size_t n_flushed;
	unsigned left; /* files in tmp/ of one that may live: io_store_took_over() */
	uint64_t left_bytes;
	struct kept_file *kept; /* changed under both locks */
	/* over `kept`; held over I/O, but no request waits for it */
	pthread_mutex_t kept_lock;
};

struct dirs;

struct staging {
	struct staging_opts o;
	struct head *head;
	struct dirs *dirs; /* a lock of its own; dirs.c */
	struct pool pool;
	struct reserve reserve;

	pthread_mutex_t lock; /* everything below */
	struct memory memory;
	struct space space;
	struct trash trash;
	struct log log;
	struct order order;
	struct aside aside;
	struct refusals refusals;
	struct files files;
	struct drain drain;
	struct sweep sweep;
	struct sleeper work; /* persist threads */
	/* one more, for small files while the others write large ones */
	struct sleeper small_work;
	struct sleeper pub; /* publisher */
	struct sleeper watch;
	struct sleeper ahead;
	struct sleeper early;
	uint64_t ahead_busy_ns; /* when a file last grew or was opened */
	pthread_cond_t done_cond; /* drain, space */
	pthread_t watcher, aheader, early_writer;
	bool started, stop;
	struct staging_stats st; /* only the counters */
};

/* ---- shared helpers ---- */

static inline bool is_ordered(uint32_t type)
{
	return type < REC_ORDERED_END;
}

/* s->lock held */
static inline void tell_moved(struct staging *s)
{
	if (s->drain.moved)
		s->drain.moved(s->drain.moved_ctx);
}

/* A caller waits for pending changes. */
static inline bool in_hurry(const struct staging *s)
{
	return atomic_load(&s->drain.n_sync_waiters);
}

static inline bool is_small(const struct pend *p)
{
	return p->r.size <= STAGING_SMALL;
}

static inline void save_descriptor(struct staging *s, struct pend *p)
{
	if (s->order.n_pend > s->order.fds_pend && p->tmp_fd >= 0) {
		close(p->tmp_fd);
		p->tmp_fd = -1;
	}
}

/* The store has no block for it, or a quota allows none. */
static inline bool no_space(int err)
{
	return err == -ENOSPC || err == -EDQUOT;
}

/* Descriptors or memory are missing, or something is busy: not the store's fault, and it passes. */
static inline bool is_lack(int err)
{
	return err == -EMFILE || err == -ENFILE || err == -ENOMEM || err == -EAGAIN;
}

/* Limit of descriptors of possible sources of copies; clone.c. */
static inline unsigned sources_max(const struct staging *s)
{
	return (unsigned)(s->order.fds_pend / 4);
}

static inline uint64_t whole_pages(uint64_t size) /* huge pages */
{
	return (size + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
}

/* Around what takes bytes out of f's file. f->io.lock held. */
#define CUT_SCOPE(f)                                                                               \
	pthread_mutex_t *cut_ __attribute__((cleanup(scope_unlock), unused)) =                     \
		scope_lock(&(f)->io.cut)

#endif

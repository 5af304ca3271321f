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

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include "io/scope.h"
#include "staging/staging.h"

#define HUGE_BYTES (2ull << 20)		/* expected from here on: the huge=always tmpfs */
/* A file with more hole than this, and than data, gets no checksum: to sum zeros would take longer than all
 * else of an fsync, minutes for a terabyte, and so would every verify; and its copies have the holes, too. */
#define SUM_HOLES_MAX (256ull << 20)
static inline bool is_mostly_hole(uint64_t data, uint64_t size)
{
	return size > data && size - data > SUM_HOLES_MAX && size - data > data;
}
static inline bool is_mostly_holes(const struct stat *st, uint64_t size)
{
	return is_mostly_hole((uint64_t)st->st_blocks * 512, size);
}
/* What the reserve promises a version in place of blocks of its own: the size of a small file; the pages of
 * one that is mostly holes, so that its close need not search them for data. Its blocks are allocated when it
 * is persisted, where the data are searched for anyway. UINT64_MAX: nothing. */
#define PROMISE_HOLES_MAX (64ull << 20)	/* of the reserve, a quarter */
static inline uint64_t promise_bytes(uint64_t size, uint64_t held)
{
	if (size <= STAGING_SMALL)
		return size;
	return is_mostly_hole(held, size) && held <= PROMISE_HOLES_MAX ? held : UINT64_MAX;
}
#define FDS_PEND_MAX 1000u		/* with more pending, they keep no descriptors */
#define MAX_ATTEMPTS 3			/* rewrites of a version before publication halts */

/* Head of the staging area, mapped; 8-byte stores survive a kill at any instant. What stands before
 * `where` is at its place in every version, so that who cannot read the rest can tell who can. Fields are
 * added at the end; the version counts up when an older program must not go on with it. */
struct head {
	uint64_t magic;
	uint32_t version;
	char store_id[36];
	_Atomic uint64_t segment;	/* number of the live log file */
	_Atomic uint64_t next_id;
	_Atomic uint64_t applied;	/* visible in the store */
	_Atomic uint64_t durable;	/* and on stable storage */
	/* zeros in those of 0.1.0 */
	char program[32];		/* the version of cairnfs that served it last */
	struct io_where where;		/* the store that it belongs to */
	char store_path[1024];		/* and its path, for people */
	uint64_t recalled;		/* the log file of which a replay found that the store had forgotten a part */
};
#define HEAD_MAGIC 0x31676e6974736e63ull /* "cnsting1" */
#define HEAD_VERSION 1u
_Static_assert(offsetof(struct head, segment) == 48 && offsetof(struct head, program) == 80 &&
	       offsetof(struct head, where) == 112 && sizeof(struct head) <= 4096, "the head's layout is kept");
/* A log begins with a record that tells its format. It counts up with each new type or meaning of a record.
 * 1: of 0.1.0, which wrote no such record. */
#define LOG_FORMAT 2u
#define LOG_BUF (REC_DATA_MAX + 4096)	/* bytes of log_buf: the longest record */

enum reserve_state { RESERVE_NONE, RESERVE_HELD, RESERVE_GIVEN };

enum pend_state {
	PEND_WAIT,	/* SEAL: a writable mapping lives, bytes are not final */
	PEND_QUEUED,	/* SEAL: wants a persist thread */
	PEND_BUSY,	/* SEAL: a persist thread has it */
	PEND_WRITTEN,	/* SEAL: bytes in the unpublished file, not synced */
	PEND_READY,	/* may be published */
	PEND_FAILED,	/* SEAL: gave up; publication halts here */
};

/* An ordered record on its way to the store. In s->order.pend, sorted by seq. */
struct pend {
	struct pend *next;
	struct pend *todo_next;		/* in s->order.todo when QUEUED */
	struct rec r;			/* strings point behind this struct */
	enum pend_state state;
	struct staged *sf;		/* SEAL: a reference */
	uint64_t tmp_id;
	int tmp_fd;
	bool direct;
	bool snapshot;			/* by fsync: the writer goes on */
	int source;			/* a store file that it may be a clone of; -1; clone.c */
	bool cloned;			/* it is one */
	bool must;			/* dead, but must be shown: persist it all the same */
	bool again;			/* first after a restart: perhaps applied already */
	bool shown;			/* made in the store, and its mark could not be set */
	bool begun;			/* its first step stands in the store; a retry goes on behind it */
	uint64_t dead_at;		/* seq that removes what this creates, 0 = none */
	bool kills;			/* removes what a pending record created */
	uint64_t held_ns;		/* since when; see hold.c */
	bool let_go;
	unsigned attempts;
	bool unsure;			/* of a spilled file: its own sync must tell whether the store has its bytes */
	int lost;			/* it has not: -errno. The version is passed over, and told */
	_Atomic bool failed_fsync;	/* a snapshot whose fsync was answered with an error: its writer goes on */
	uint64_t promised;		/* bytes of the reserve, until it is in the store: it may have to be written again */
	uint64_t start_ns;
	char checksum[IO_CHECKSUM_LEN];
};

/* Memory on loan to a client; buffer.c. */
struct buffer {
	struct buffer *next;		/* s->files.buffers, until it has ended */
	struct staging *s;
	uint64_t id;
	unsigned refs;			/* as all below: s->lock */
	bool kept, ended;
	int fd;				/* O_RDONLY: a writable one would hold up leases */
	uint64_t charged;
	struct staged *lent;		/* which has it as its lender */
};

/* ---- what each part of a staged file has; under s->lock, unless said otherwise ---- */

/* Where it is listed, by what it is; staged.c. */
struct staged_lists {
	struct staged *hash_next;
	struct staged *open_prev, *open_next;	/* OPEN */
	struct staged *lru_prev, *lru_next;	/* DURABLE */
	struct staged *late_prev, *late_next;	/* late */
};

/* What it has of memory, and is expected to take; admit.c, relay.c, buffer.c. */
struct staged_memory {
	bool huge;
	bool filled;			/* it was a ready file of the pool */
	_Atomic bool covered;		/* all that it is expected to take is allocated by us */
	_Atomic uint64_t charged;	/* changed under s->lock; a write looks at it without */
	uint64_t expected;
	bool known;			/* expected was known */
	bool presized;			/* made as long as it will be, before it was written */
	bool in_parts;			/* and written in several places at once */
	bool loan;			/* a buffer's bytes: never to the pool */
	struct buffer *lender;		/* which is charged for it and may have it back; NULL */
};

/* Memory ahead of who writes it; ahead.c. */
struct staged_ahead {
	uint64_t end, size;		/* allocated as far as; as long as it was when looked at */
	bool allocating;
	_Atomic bool over;		/* no more of it, until it is opened again */
};

/* Its older bytes are in the store; outgrow.c. */
struct staged_moved {
	_Atomic uint64_t under;		/* bytes [0, under) are in tmp/<id> instead; io.lock */
	_Atomic bool more;		/* and more are on their way there */
	uint64_t after_ns;		/* not before */
};

/* As of the last seal; and what staged_changed compares with. seal.c */
struct staged_sealed {
	bool once;
	uint64_t ns;			/* CLOCK_REALTIME */
	uint64_t size, blocks;
	struct timespec atime, mtime, ctime;
	char checksum[IO_CHECKSUM_LEN];
};

/* As it was opened again, or copied; seal.c, clone.c. */
struct staged_base {
	char checksum[IO_CHECKSUM_LEN];	/* empty: not known */
	struct timespec mtime;
	int source;			/* a store file that it may be a copy of; -1 */
	bool counted;			/* as a clone */
};

/* What it may take of the store; room.c. */
struct staged_room {
	uid_t uid;			/* whose blocks these are, where `owned` */
	gid_t gid;
	bool owned;
	bool checked;			/* the store is not roomy: each write finds room there first */
	bool failed;			/* its last close had no room: it comes before all others */
	uint64_t claim;			/* bytes of the store it may still ask for; of s->room.claims */
};

/* For who moves its bytes; relay.c, spill.c, unpublished.c, persist.c, room.c. */
struct staged_io {
	pthread_mutex_t lock;		/* over all below and moved.under, one at a time; taken before s->lock */
	pthread_mutex_t cut;		/* who persists an fsync's version: no bytes go meanwhile; taken after lock */
	int rw;				/* O_RDWR for relay writes, -1 */
	uint64_t tmp_id;		/* reserved store file, 0 = none */
	int tmp_fd;
	bool tmp_direct;
	uint64_t tmp_size;		/* size it was reserved for */
	uint64_t promised;		/* or bytes of the reserve, for a small one */
	uint64_t held_from, held_to;	/* writes here have their room */
	uint64_t torn_at;		/* where a write failed */
};

struct staged {
	struct staging *s;
	uint64_t id, node;
	unsigned refs;
	unsigned users;			/* opens that use fd; no eviction */
	enum staged_state state;
	int fd;				/* O_RDONLY, -1 when closed to save descriptors */
	bool spilled, published;
	bool backing;			/* the kernel was given it: it stays the file it is */
	bool held;			/* by sf_hold_all */
	bool late;			/* finalized while a mapping still wrote it; by sf_set_late */
	bool unclosed;			/* its writer died after the last seal, and had changed it */
	int error;
	_Atomic int spoiled;		/* spilled, and the store could not write a part: what is read of it proves nothing */
	_Atomic int torn;		/* a write failed with this: it is no whole version; 0 */
	unsigned n_seals;		/* pending SEALs */
	uint64_t last_seal;		/* seq of the latest */
	_Atomic uint64_t written;	/* of the version that is being persisted, so far */
	struct staged_lists lists;
	struct staged_memory memory;
	struct staged_ahead ahead;
	struct staged_moved moved;
	struct staged_sealed sealed;
	struct staged_base base;
	struct staged_room room;
	struct staged_io io;
};

/* Threads that wait for work, all under s->lock. To wake one costs the waker some 10 us, more
 * than a small file's whole close; so after work they look again by themselves for a while
 * (TICK_NS, LINGER_NS), and what is in no hurry need not wake them. */
struct sleeper {
	pthread_cond_t cond;
	unsigned deep;			/* asleep until woken, or for long */
	uint64_t busy_ns;		/* when there last was work */
	atomic_bool woken;	/* since the last sleep: who looked for work without s->lock looks again */
};
#define TICK_NS 3000000u
#define LINGER_NS 50000000u

/* ---- what each part of staging has; under s->lock, unless said otherwise ---- */

#define SF_BUCKETS 4096u

/* A file that holds pages for others; pool.c. */
struct pool_file {
	int fd;				/* -1: a ready one (a writable descriptor would hold up leases), or none */
	unsigned claims;		/* threads that take pages from it, or add some */
	uint64_t bytes, want;		/* pages [0, bytes); as many as a ready one is to have */
};
#define POOL_READY 64u		/* more shards of one node in a checkpoint are handed their memory */
#define POOL_KEPT 64u		/* a descriptor each */
#define POOL_FILES (POOL_READY + 1 + POOL_KEPT)

/* Touched pages that are held ready; pool.c. `lock` guards all but `cond` and `thread`. It may be taken with
 * s->lock held, and is held for a few instructions only. */
struct pool {
	pthread_mutex_t lock;
	_Atomic uint64_t bytes;		/* of all files; changed under the lock */
	uint64_t touched;		/* most that was ever in use or held; its thread's */
	bool ended;			/* nothing is added any more */
	struct pool_file file[POOL_FILES];
	uint64_t request[POOL_READY];	/* sizes asked for, a ring */
	unsigned n_requests;
	pthread_cond_t cond;		/* with s->lock */
	pthread_t thread;
};

/* The machine's memory; budget.c. */
struct memory {
	uint64_t available, seen_ns;
};

/* Room held in the store; reserve.c. The locks are leaves, never with s->lock inside. */
struct reserve {
	int fd;
	_Atomic int state;		/* enum reserve_state */
	_Atomic uint64_t promised, inodes;
	atomic_uint asked;		/* promises, counted: now and then one looks at the store */
	_Atomic bool scarce;		/* the last look found no room */
	_Atomic bool tight;		/* delayed allocation is not to be relied on */
	_Atomic uint64_t bytes, left;	/* when whole; of it, not given yet */
	pthread_rwlock_t lock;		/* read: who allocates blocks in the store */
	pthread_mutex_t take_lock;	/* over changes of bytes and left; taken after the other */
};

/* Free room in the store; room.c. */
struct room {
	_Atomic uint64_t free, seen_ns;	/* without a lock */
	uint64_t claims;		/* of all that is open in the fast lane */
	bool came;			/* a removal is durable */
};

struct trash_file {
	uint64_t id;			/* in the store's tmp/; 0: only to be closed */
	int fd;				/* -1 = none */
};

/* Files of no use any more; trash.c. */
struct trash {
	struct trash_file *file;
	size_t n, cap;
	bool cleaning;			/* some of it is not removed yet */
	pthread_cond_t cond;
	pthread_t thread;
};

struct log {
	int fd;
	char *map;			/* LOG_MAP bytes of it; touched only below cap */
	uint64_t cap;			/* allocated, zeros behind bytes */
	uint64_t bytes, snap_bytes, last_seq;
	char *buf;			/* encode buffer */
	bool replaying;
	struct { uint64_t unique; struct rec r; } done[256];	/* answers to resent requests */
	struct log_dirs *dirs;		/* during a replay; lostfound.c */
};

/* Records on their way; order.c. */
struct order {
	struct pend *pend, **pend_tail;	/* sorted by seq */
	struct pend *todo, **todo_tail;	/* QUEUED */
	uint64_t n_pend, n_wait;
	uint64_t last_delete;		/* seq of the latest record that frees room */
	uint64_t fds_pend;		/* FDS_PEND_MAX, or less where the limit is low */
};

/* refuse.c */
struct refusals {
	struct refusal *list;		/* the latest first */
	_Atomic uint64_t n;
};

/* Staged files; staged.c. */
struct files {
	struct staged *by_id[SF_BUCKETS];
	struct staged *lru_head, *lru_tail;
	struct staged *open;
	struct staged *late;
	uint64_t n_late;
	uint64_t late_ready[64];	/* nodes; see staging_next_late */
	unsigned n_late_ready;
	uint64_t n_evicted;
	uint64_t largest;		/* bytes that a sealed file held */
	uint64_t used;			/* of the budget */
	unsigned n_sources;		/* descriptors held of what they may be copies of; clone.c */
	struct buffer *buffers;		/* buffer.c */
	uint64_t n_buffers, buffer_bytes;
};

struct waiter {
	struct waiter *next;
	uint64_t seq;
	void (*done)(void *ctx, int err);
	void *ctx;
};

struct dedup;
/* From sealed to durable; persist.c, publish.c, sync.c. */
struct drain {
	uint64_t batch_end;		/* records up to here are the publisher's just now */
	bool marked;			/* the store's mark is of this log; mark.c */
	bool inherited;			/* head: applied by a worker that died before it synced them */
	struct waiter *waiters;
	_Atomic unsigned n_sync_waiters;
	_Atomic unsigned refused;	/* IO_ATTR_*: the store does not take them, and it was told; meta.c */
	uint64_t n_lost;		/* failed syncs that may have taken others' bytes */
	struct retained *retained;	/* retain.c */
	_Atomic unsigned n_retained;
	struct dedup *dedup;		/* dedup.c; NULL = not wanted, or not started */
	bool no_clone;			/* the store cannot do it; clone.c */
	int halted;
	uint64_t halt_retry_ns;
	bool retry_now;
	pthread_t persist[16], persist_small, publisher;
	struct io_queue *queues[16];
	unsigned n_persist;
	unsigned n_large;		/* of them, with a large file each */
};

/* During a replay: a FLUSH that was answered, as the SEAL it would have become; flushed.c. */
struct flushed {
	uint64_t sf, node;
	void *bytes;		/* the record as it lies in the log */
	size_t len;
};

/* During a replay: what became of each staged file the log speaks of; sweep.c. */
struct sweep_entry {
	uint64_t id;
	size_t next;	/* place + 1: in its bucket, or among the free ones */
	bool open;
	bool lent;	/* a second name of a buffer: never lost when it goes */
	uint64_t node, dir;
	size_t next_node;	/* as next, by node */
	bool closed;	/* as it was fsynced: the order has that version */
	bool rdwr;	/* perhaps mapped: its times do not tell */
	uint64_t size;	/* of the last seal */
	struct timespec mtime;
	char name[256];	/* for lost+found */
};

#define LOSTFOUND_NAME 200u		/* a path as one name; lostfound.c */
/* What belongs to nothing and could not be moved to lost+found yet. */
struct kept_file {
	struct kept_file *next;
	uint64_t id;
	int dir;		/* a descriptor of the place, or the store's tmp/ */
	bool in_store;
	struct staged *f;	/* ours too, held from eviction meanwhile; NULL */
	char name[LOSTFOUND_NAME];
};

/* Of a replay and what follows it; sweep.c, flushed.c. One thread's, but for `kept`. */
struct sweep {
	struct sweep_entry *entry;
	size_t n, cap, free;
	size_t bucket[SF_BUCKETS], node[SF_BUCKETS];
	struct flushed *flushed;	/* closes answered */
	size_t n_flushed;
	struct kept_file *kept;
	pthread_mutex_t kept_lock;	/* taken before s->lock; over I/O, but nobody answers anybody meanwhile */
};

struct dirs;

struct staging {
	struct staging_opts o;
	struct head *head;
	struct dirs *dirs;		/* a lock of its own; dirs.c */
	struct pool pool;
	struct reserve reserve;

	pthread_mutex_t lock;		/* over all below */
	struct memory memory;
	struct room room;
	struct trash trash;
	struct log log;
	struct order order;
	struct refusals refusals;
	struct files files;
	struct drain drain;
	struct sweep sweep;
	struct sleeper work;		/* persist threads */
	struct sleeper small_work;	/* one more, for small files while the others write large ones */
	struct sleeper pub;		/* publisher */
	struct sleeper watch;
	struct sleeper ahead;
	uint64_t ahead_busy_ns;		/* a file grew, or was opened */
	pthread_cond_t done_cond;	/* drain, room */
	pthread_t watcher, aheader;
	bool started, stop;
	struct staging_stats st;	/* the counting fields only */
};

/* ---- shared helpers ---- */

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline bool is_ordered(uint32_t type)
{
	return type < REC_ORDERED_END;
}

/* Somebody waits for what is on its way. */
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

/* Descriptors of what staged files may be copies of; clone.c. */
static inline unsigned sources_max(const struct staging *s)
{
	return (unsigned)(s->order.fds_pend / 4);
}

static inline uint64_t whole_pages(uint64_t size)	/* huge ones */
{
	return (size + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
}

/* Around what takes bytes out of f's file. f->io.lock held. */
#define CUT_SCOPE(f) \
	pthread_mutex_t *cut_ __attribute__((cleanup(scope_unlock), unused)) = scope_lock(&(f)->io.cut)

#endif

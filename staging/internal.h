/* SPDX-License-Identifier: MIT
 * What the files of this room share. Nothing outside staging/ includes it.
 *
 * A staged file's states (staged->state), under s->lock:
 *
 *   OPEN ──seal──▶ SEALED ──persist──▶ PERSISTING ──publish, sync──▶ DURABLE ──▶ EVICTED  
 *     ▲               ▲                    │                            │
 *     │               └──── rewrite ── FAILED ◀── error                 │
 *     └──────────────────────── reopened for writing ───────────────────┘
 *
 *   state       open_list  n_seals  lru   file in staging
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
#include <unistd.h>

#include "staging/staging.h"

#define HUGE_BYTES (2ull << 20)		/* expected from here on: the huge=always tmpfs */
/* A file with more hole than this gets no checksum, since summing a terabyte of zeros takes minutes, and
 * so would every verify; and its copies have the holes, too. */
#define SUM_HOLES_MAX (4ull << 30)
static inline bool is_mostly_holes(const struct stat *st, uint64_t size)
{
	return size > SUM_HOLES_MAX && (uint64_t)st->st_blocks * 512 < size - SUM_HOLES_MAX;
}
#define FDS_PEND_MAX 1000u		/* with more pending, they keep no descriptors */
#define MAX_ATTEMPTS 3			/* rewrites of a version before publication halts */

/* Head of the staging area, mapped; 8-byte stores survive a kill at any instant. */
struct head {
	uint64_t magic;
	uint32_t version;
	char store_id[36];
	_Atomic uint64_t segment;	/* number of the live log file */
	_Atomic uint64_t next_id;
	_Atomic uint64_t applied;	/* visible in the store */
	_Atomic uint64_t durable;	/* and on stable storage */
};
#define HEAD_MAGIC 0x31676e6974736e63ull /* "cnsting1" */
#define HEAD_VERSION 1u

enum reserve_state { RESERVE_NONE, RESERVE_HELD, RESERVE_GIVEN };

enum pend_state {
	PEND_WAIT,	/* SEAL: a writable mapping lives, bytes are not final */
	PEND_QUEUED,	/* SEAL: wants a persist thread */
	PEND_BUSY,	/* SEAL: a persist thread has it */
	PEND_WRITTEN,	/* SEAL: bytes in the unpublished file, not synced */
	PEND_READY,	/* may be published */
	PEND_FAILED,	/* SEAL: gave up; publication halts here */
};

/* An ordered record on its way to the store. In s->pend, sorted by seq. */
struct pend {
	struct pend *next;
	struct pend *todo_next;		/* in s->todo when QUEUED */
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
	bool begun;			/* its first step stands in the store; a retry goes on behind it */
	uint64_t dead_at;		/* seq that removes what this creates, 0 = none */
	bool kills;			/* removes what a pending record created */
	uint64_t held_ns;		/* since when; see hold.c */
	bool let_go;
	unsigned attempts;
	uint64_t promised;		/* bytes of the reserve, until it is in the store: it may have to be written again */
	uint64_t start_ns;
	char checksum[IO_CHECKSUM_LEN];
};

struct staged {
	struct staging *s;
	uint64_t id, node;
	unsigned refs;			/* s->lock */
	unsigned users;			/* opens that use fd; no eviction */
	enum staged_state state;
	bool huge, spilled, published;
	bool filled;			/* made of a blank */
	bool loan;			/* a buffer's bytes: never to the ballast */
	struct buffer *lender;		/* which is charged for it and may have it back; NULL */
	bool backing;			/* the kernel was given it: it stays the file it is */
	_Atomic uint64_t under;		/* bytes [0, under) are in tmp/<id> instead; outgrow.c; io */
	_Atomic bool moving;		/* and more are on their way there */
	uint64_t move_after_ns;
	int error;
	int fd;				/* O_RDONLY, -1 when closed to save descriptors */
	int rw;				/* O_RDWR for relay writes, -1; io */
	unsigned n_seals;		/* pending SEALs */
	uint64_t last_seal;		/* seq of the latest */
	_Atomic uint64_t charged;	/* changed under s->lock; a write looks at it without */
	uint64_t expected;
	bool known;			/* expected was known */
	bool presized;			/* made as long as it will be, before it was written */
	bool in_parts;			/* and written in several places at once */
	_Atomic uint64_t written;	/* of the version that is being persisted, so far */
	/* as of the last seal; and what staged_changed compares with */
	uint64_t size, blocks;
	struct timespec atime, mtime, ctime;
	bool sealed_once;
	bool late;			/* finalized while a mapping still wrote it */
	bool unclosed;			/* its writer died after the last seal, and had changed it */
	uint64_t sealed_ns;		/* CLOCK_REALTIME of the last seal */
	char checksum[IO_CHECKSUM_LEN];
	struct staged *lru_prev, *lru_next;	/* DURABLE */
	struct staged *open_prev, *open_next;	/* OPEN */
	struct staged *hash_next;

	pthread_mutex_t io;		/* below: one at a time; taken before s->lock */
	uint64_t tmp_id;		/* reserved store file, 0 = none */
	int tmp_fd;
	bool tmp_direct;
	uint64_t tmp_size;		/* size it was reserved for */
	uint64_t promised;		/* or bytes of the reserve, for a small one */
	int source;			/* a store file that it may be a copy of; -1; s->lock; clone.c */
	bool counted;			/* as a clone */
};

/* Threads that wait for work, all under s->lock. To wake one costs the waker some 10 us, more
 * than a small file's whole close; so after work they look again by themselves for a while
 * (TICK_NS, LINGER_NS), and what is in no hurry need not wake them. */
struct sleeper {
	pthread_cond_t cond;
	unsigned deep;			/* asleep until woken, or for long */
	uint64_t busy_ns;		/* when there last was work */
};
#define TICK_NS 3000000u
#define LINGER_NS 50000000u

struct trash_file {
	uint64_t id;			/* in the store's tmp/; 0: only to be closed */
	int fd;				/* -1 = none */
};

struct waiter {
	struct waiter *next;
	uint64_t seq;
	void (*done)(void *ctx, int err);
	void *ctx;
};

/* A staged file that is gone, unlinked and open, whose pages [0, bytes) are kept. */
struct scrap {
	struct scrap *next;
	int fd;
	uint64_t bytes;
};

/* An empty file with pages [0, bytes) behind its end; blank.c. */
struct blank {
	uint64_t want, bytes;
};
#define BLANKS 64u		/* more shards of one node in a checkpoint are handed their memory */

#define SF_BUCKETS 4096u

struct dirs;
struct dedup;

/* During a replay: what became of each staged file the log speaks of. */
/* A FLUSH that was answered: the SEAL it would have become. */
struct flushed {
	uint64_t sf, node;
	void *bytes;		/* the record as it lies in the log */
	size_t len;
};

struct sweep_entry {
	uint64_t id;
	size_t next;	/* place + 1: in its bucket, or among the free ones */
	bool open;
	bool lent;	/* a second name of a buffer: never lost when it goes */
	char name[64];	/* for lost+found, cut */
};

struct staging {
	struct staging_opts o;
	struct head *head;
	struct dirs *dirs;

	pthread_mutex_t lock;
	struct sleeper work;		/* persist threads */
	struct sleeper pub;		/* publisher */
	struct sleeper watch;
	pthread_cond_t done_cond;	/* drain, room */
	pthread_cond_t ballast_cond;

	/* log */
	int log_fd;
	char *log_map;			/* LOG_MAP bytes of it; touched only below log_cap */
	uint64_t log_cap;		/* allocated, zeros behind log_bytes */
	uint64_t log_bytes, snap_bytes, last_seq;
	bool log_has_ordered;
	char *log_buf;			/* encode buffer */
	bool replaying;
	struct { uint64_t unique; struct rec r; } done[256];	/* answers to resent requests */

	struct sweep_entry *sweep;
	size_t n_sweep, cap_sweep, sweep_free;
	size_t sweep_bucket[SF_BUCKETS];

	/* the order */
	struct pend *pend, **pend_tail;
	struct pend *todo, **todo_tail;	/* QUEUED */
	uint64_t batch_end;		/* records up to here are the publisher's just now */
	bool inherited;			/* head: applied by a worker that died before it synced them */
	uint64_t n_pend, n_wait, n_late;
	uint64_t fds_pend;		/* FDS_PEND_MAX, or less where the limit is low */
	uint64_t late_ready[64];	/* nodes; see staging_next_late */
	unsigned n_late_ready;
	struct waiter *waiters;
	_Atomic unsigned n_sync_waiters;
	_Atomic unsigned refused;	/* IO_ATTR_*: the store does not take them, and it was told; meta.c */
	uint64_t n_lost;		/* failed syncs that may have taken others' bytes */
	uint64_t last_delete;		/* seq of the latest record that frees room */

	/* staged files */
	struct staged *sfs[SF_BUCKETS];
	struct staged *lru_head, *lru_tail;
	struct staged *open_list;
	struct buffer *buffers;		/* buffer.c */
	uint64_t n_buffers, buffer_bytes;
	uint64_t n_evicted;
	uint64_t largest;		/* bytes that a sealed file held */
	uint64_t memory, memory_ns;	/* available, seen when */
	uint64_t used;

	/* ballast; own lock because fallocate takes milliseconds */
	pthread_mutex_t ballast_lock;
	int ballast_fd;
	uint64_t ballast_bytes;		/* in the ballast file, in scraps and in blanks */
	uint64_t ballast_touched;	/* most that was ever in use or held */
	uint64_t apart_bytes;		/* of these, not in the ballast file */
	struct scrap *scraps;
	unsigned n_scraps;
	struct blank blank[BLANKS];
	uint64_t wish[BLANKS];		/* sizes asked for, a ring */
	unsigned n_wishes;

	/* room held in the store; reserve.c. The locks are leaves, never with s->lock inside */
	int reserve_fd;
	_Atomic int reserve_state;	/* enum reserve_state */
	_Atomic uint64_t reserve_promised, reserve_inodes;
	_Atomic bool reserve_tight;	/* delayed allocation is not to be relied on */
	_Atomic uint64_t reserve_bytes, reserve_left;	/* when whole; of it, not given yet */
	pthread_rwlock_t reserve_lock;	/* read: who allocates blocks in the store */
	pthread_mutex_t reserve_take_lock;	/* over changes of bytes and left; taken after the other */
	struct trash_file *trash;
	size_t n_trash, cap_trash;
	pthread_cond_t trash_cond;
	bool cleaning;			/* some of it is not removed yet */
	struct dedup *dedup;		/* dedup.c; NULL = not wanted, or not started */
	unsigned n_sources;		/* descriptors held; clone.c */
	bool no_clone;			/* the store cannot do it */
	struct flushed *flushed;	/* during a replay: closes answered, see log.c */
	size_t n_flushed;
	pthread_t persist[16], publisher, watcher, ballast, cleaner;
	unsigned n_persist;
	struct io_queue *queues[16];
	bool started, stop;
	int halted;
	uint64_t halt_retry_ns;
	bool retry_now;
	struct staging_stats st;	/* the counting fields only */
};

/* ---- shared helpers ---- */

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Somebody waits for what is on its way. */
static inline bool in_hurry(const struct staging *s)
{
	return atomic_load(&s->n_sync_waiters);
}

static inline void save_descriptor(struct staging *s, struct pend *p)
{
	if (s->n_pend > s->fds_pend && p->tmp_fd >= 0) {
		close(p->tmp_fd);
		p->tmp_fd = -1;
	}
}

static inline uint64_t whole_pages(uint64_t size)	/* huge ones */
{
	return (size + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
}

static inline void unlock_scope(pthread_mutex_t **m)
{
	pthread_mutex_unlock(*m);
}
#define LOCK_SCOPE(m)                                                                     \
	pthread_mutex_t *scope_lock_ __attribute__((cleanup(unlock_scope))) = (m);        \
	pthread_mutex_lock(scope_lock_)

void staging_wait_until(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns);
/* Of this thread alone. Persisting gives way to who still writes; nobody waits for it while the
 * cores are full, and with one of them free it is as fast. */
void staging_nice(int nice);
#define PERSIST_NICE 5
/* Sleeps until woken or until deadline_ns (0 = none), or for a tick while there was work lately. */
void sleeper_wait(struct staging *s, struct sleeper *l, uint64_t deadline_ns);
void sleeper_wake(struct sleeper *l);	/* all, now */
void sleeper_nudge(struct sleeper *l, bool now);	/* one; not `now`: unless one looks again soon */
void staging_sf_name(uint64_t id, char out[17]);
int staging_sf_dir(const struct staged *f);
void pend_finalize(struct staging *s, struct pend *p, bool early);	/* s->lock held */

/* record.c, log.c */
int log_open(struct staging *s);
void log_close(struct staging *s);
/* s->lock held for the next two. */
int log_append(struct staging *s, const struct rec *r);
/* r takes the next place in the order: logged, and on its way as *out. sf may be NULL. */
int log_in_order(struct staging *s, struct rec *r, struct staged *sf, struct pend **out);
void pend_free(struct pend *p);
uint64_t pend_from(const struct staging *s);

/* staged.c, admit.c */
int sf_open_bytes(struct staged *f, int flags);		/* in the tmpfs or tmp/; a descriptor of the caller's, or -errno */
int sf_copy_bytes(int wr, int from_fd, uint64_t size);	/* wr (may be -errno) is closed; holes stay holes */
bool sf_lent(struct staged *f);				/* its memory is a buffer's; takes s->lock */
/* s->lock held for the next ones; also seal.c's */
struct staged *sf_find(struct staging *s, uint64_t id);
void sf_set_state(struct staging *s, struct staged *f, enum staged_state st);
void sf_charge(struct staging *s, struct staged *f, uint64_t bytes);
void sf_replay_spill(struct staging *s, struct staged *f);
void sf_put_locked(struct staging *s, struct staged *f);
void sf_rest(struct staged *f);			/* nobody writes it: keeps no idle descriptor */
void sf_drop_useless(struct staging *s, struct staged *f);	/* after a change of its state or users */
uint64_t sf_evict(struct staging *s, uint64_t want);	/* returns bytes freed */
int sf_ensure_fd(struct staged *f);			/* f->fd is open; s->lock held */
void sf_unwritten(struct staging *s, struct staged *f);	/* no writer is left; s->lock held */
bool sf_final(struct staged *f);			/* lease granted: no writable mapping */
void sf_drop_tmp(struct staged *f);			/* f->io held */
/* Blocks in f's unpublished file for the data of the first `size` bytes of `from`. f->io held. */
int sf_allocate(struct staged *f, int from, uint64_t size);
void staged_check(struct staging *s);
struct staged *sf_new(struct staging *s, uint64_t id, uint64_t node);	/* the lock may be held or not */
void sf_insert(struct staging *s, struct staged *f);
void sf_evict_one(struct staging *s, struct staged *f);
int sf_stat(struct staged *f, struct stat *st);		/* as fstat; a lent file ends where its version does */
/* Gives f's version, as st describes it, its place in the order. f->io held. */
int sf_seal(struct staging *s, struct staged *f, struct rec *r, const struct stat *st, bool closed, bool final);

/* buffer.c; s->lock held */
#define BUFFER_PREFIX "buffer."
void buffer_lent_again(struct staging *s, struct staged *f, const struct rec *r);	/* r, replayed, made f known */
void buffer_returns(struct staged *f);		/* f, lent, is no more */
int buffer_keep(struct staged *f);		/* f, lent, is a backing file now; -errno: not, it cannot be logged */
void buffer_kept_again(struct staging *s, uint64_t id);	/* REC_KEEP replayed; takes s->lock */
bool buffer_due(const struct staged *f);	/* f is a buffer's and nobody wants it any more: evict it */
void buffer_settle(struct staging *s);		/* evicts all that are due */
void buffer_stats(struct staging *s, struct staging_stats *out);
void buffer_close_all(struct staging *s);
void buffer_sweep(struct staging *s, const char *name);	/* takes the lock */

/* Of an open file whose bytes are in tmp/<id> now, as st says. f->io held, s->lock not. */
int sf_becomes_spilled(struct staged *f, const struct stat *st);

/* outgrow.c; f->io held where a staged file is given */
void outgrow_look(struct staging *s);			/* s->lock held: over the budget, nothing to evict */
int outgrow_reserve(struct staged *f, uint64_t size);	/* blocks for what has not moved. -EIO: see staged_move_out */
int outgrow_resize(struct staged *f, int fd, uint64_t size);
int outgrow_fallocate(struct staged *f, int mode, uint64_t off, uint64_t len);
ssize_t outgrow_write(struct staged *f, const void *buf, size_t len, uint64_t off);	/* off < under; may be short */
/* As pread of the whole file; stops at `under`. -1 and errno. */
ssize_t outgrow_read(uint64_t under, int from, int to, char *buf, size_t len, uint64_t off);
void outgrow_recover(struct staged *f, const struct stat *st);
uint64_t staging_room_left(struct staging *s);		/* of tmpfs and memory; s->lock held */

/* meta.c */

#define XATTR_SMALL 512u	/* a larger one may be too large for ext4's one xattr block */
/* Owner, mode, times and xattrs of p on its tmp_fd, with p->checksum. What the store refuses for good is left
 * out and told; other errors (EIO, ENOSPC where there is no room at all, ...) as they come. */
int meta_write(struct staging *s, struct pend *p);

/* persist.c */
/* Data extents of fd in [off, end), at most max of them; one over all when there are more. */
unsigned persist_extents(int fd, uint64_t off, uint64_t end, struct io_extent *ext, unsigned max);
void *persist_main(void *arg);
/* s->lock held for both */
void persist_queue(struct staging *s, struct pend *p);
void persist_unqueue(struct staging *s, struct pend *p);
/* Recovery must publish p from its file, not from what is staged. s->lock held. */
int log_written(struct staging *s, const struct pend *p);
/* After a failed write or sync the pages of its file prove nothing: a new file. rc is the
 * error, which counts as an attempt; 0 when it was another's. */
void persist_again(struct staging *s, struct pend *p, int rc);

/* hold.c; s->lock held */
bool hold_due(const struct staging *s, const struct pend *p);	/* it is asked for before p is applied */
/* Drops the lock. True: p waits on (some time has passed); false: it may be applied. */
bool hold_waits(struct staging *s, struct pend *p);

/* trash.c */
/* Removes id from the store's tmp/ (0: nothing) and closes fd (-1: none), soon. s->lock held. */
void trash_put(struct staging *s, uint64_t id, int fd);
/* Until what was put is removed, for who misses the room; false: nothing was. Takes s->lock. */
bool trash_wait(struct staging *s);
void *trash_main(void *arg);
void trash_close(struct staging *s);		/* no threads are left */

/* dedup.c */
int dedup_start(struct staging *s);
/* p became durable. Takes a copy of what it says; no I/O. s->lock held. */
void dedup_offer(struct staging *s, const struct pend *p);
void dedup_wake(struct staging *s);		/* s->stop was set. s->lock held */
void dedup_close(struct staging *s);		/* waits for its thread; no other is left */

/* clone.c */
void clone_sealed(struct staged *f, struct pend *p);	/* p takes f's hint. s->lock held */
/* Makes p's unpublished file a clone of what it was copied from, not synced, and sum that of its
 * bytes. False: it cannot be one, write it. Reads it from the disk; p is the caller's. */
bool clone_version(struct staging *s, struct pend *p, struct io_sum *sum);
void clone_forget(struct staging *s, int *source);	/* s->lock held */

/* sweep.c */
void sweep_tmp_all(struct staging *s);	/* a clean end: nothing in tmp/ is needed */
void sweep_note(struct staging *s, const struct rec *r);
void replay_flushed(struct staging *s);	/* closes answered whose RELEASE was lost become seals */

/* publish.c */
void *publish_main(void *arg);
int publish_sync_all(struct staging *s);	/* takes s->lock when it fails */
void publish_wake_waiters(struct staging *s, int halted_err);	/* takes s->lock */

/* reserve.c: blocks of the store for small files and names that have none yet */
void reserve_open(struct staging *s);
void reserve_close(struct staging *s, bool remove);
bool reserve_give(struct staging *s);	/* the store is full: frees some; false: nothing is left */
void reserve_take(struct staging *s);
/* Room for a small file is held from here until reserve_kept: *mine bytes of it. False:
 * it is not to be had, allocate. Not for two threads with one `mine`. */
bool reserve_promise(struct staging *s, uint64_t *mine, uint64_t size);
void reserve_again(struct staging *s, uint64_t *mine, uint64_t size);	/* it was, before a restart */
void reserve_name(struct staging *s, uint64_t *mine);	/* a new directory, symlink, ... was accepted */
void reserve_kept(struct staging *s, uint64_t *mine);
/* Around every other allocation of blocks. -ENOSPC: the room there is belongs to what was promised. */
int reserve_enter(struct staging *s, uint64_t bytes);
void reserve_leave(struct staging *s);

/* ballast.c */
int ballast_open(struct staging *s);
void ballast_close(struct staging *s);
uint64_t ballast_ahead(const struct staged *f);	/* what a growing file is given before it asks */
void ballast_give(struct staging *s, uint64_t room);	/* no lock held: shrink to leave `room` free */
/* Puts touched pages behind the end of fd, a new file that will hold size bytes. No lock held. */
void ballast_hand_over(struct staging *s, int fd, uint64_t size);
/* Unlinks a staged file and keeps its pages; false: not done (not wanted, or somebody maps it). */
bool ballast_keep(struct staging *s, int dir, const char *name);
void *ballast_main(void *arg);
/* Below, ballast_lock held; bytes are whole huge pages. Frees up to `want` bytes of pages, not
 * those of blanks; returns how many. */
uint64_t ballast_take(struct staging *s, uint64_t want);
bool ballast_punch(int fd, uint64_t off, uint64_t len);	/* their way out of a file */

/* blank.c */
#define HAND_STEP (32ull << 20)	/* the list held 100 to 140 MiB on the machines measured */
uint64_t blank_take(struct staging *s, uint64_t want);	/* as ballast_take, of blanks alone */
/* Ballast_lock not held. */
void blank_recover(struct staging *s);		/* what a worker before us left; no thread runs yet */
void blank_clear(struct staging *s);		/* removes their files, for good */
/* One for `size` bytes becomes dir/name: empty, with its memory. false: none. */
bool blank_use(struct staging *s, uint64_t size, int dir, const char *name);
bool blank_step(struct staging *s);		/* some 0.2 ms of work; false: nothing is due */
void *watch_main(void *arg);

/* dirs.c */
int dirs_open(struct staging *s);
void dirs_close(struct staging *s);
void dirs_ref(struct staging *s, uint64_t id);		/* a pending record names it */
void dirs_unref(struct staging *s, uint64_t id);
/* From here on id stands in its place or in this one, until dirs_moved says it does, or another
 * call says otherwise (id 0: none is on its way). One at a time. */
void dirs_moving(struct staging *s, uint64_t id, uint64_t parent, const char *name);
void dirs_moved(struct staging *s, uint64_t id, uint64_t parent, const char *name);
void dirs_gone(struct staging *s, uint64_t id);
uint64_t dirs_parent(struct staging *s, uint64_t id);	/* 0: not known, or the root's */
int dirs_root_relative(struct staging *s, uint64_t dir, const char *name, char *buf, size_t cap);

#endif

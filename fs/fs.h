/* SPDX-License-Identifier: MIT
 * The frontend: what a mount shows, and how calls become records in staging.
 *
 * One lock, fs->tree.lock ("the tree lock"), guards nodes, names and handles. The store is
 * neither changed, synced nor asked under it, and nobody waits with it for who does so
 * (ask.c). All of node.c and tree.c wants it held. Order: tree lock, then staging's own.
 */
#ifndef CAIRN_FS_H
#define CAIRN_FS_H

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <fuse_lowlevel.h>

#include "io/scope.h"
#include "io/store/store.h"
#include "staging/staging.h"

#define ROOT_ID FUSE_ROOT_ID	/* == STAGING_ROOT_DIR */
#define BLKSIZE (1u << 20)	/* st_blksize: Python sizes its buffers from it */
#define CONTROL_DIR_NAME ".cairn"
#define N_THREADS 16u		/* answering the kernel; relay writes may block a few */
#define NODE_BUCKETS 65536u
#define MAX_NAME 255u
#define LARGE_FILE (8u << 20)	/* from here on its memory is worth not holding the tree lock */

enum lane { LANE_NONE, LANE_FAST, LANE_SPILL, LANE_READ, LANE_RELAY, N_LANES };

struct fs;
struct node;
struct fs_buffer;

/* A name. node NULL = whiteout: removed here, perhaps still in the store. */
struct dentry {
	struct dentry *hash_next;
	struct dentry *sib_prev, *sib_next;	/* in the directory */
	struct dentry *name_next;		/* of the node */
	struct node *dir, *node;
	uint64_t seq;		/* last record that touched it; shown once applied */
	bool store_has;		/* at the end of the order, the store has something here */
	bool sealed;		/* and it is this node */
	bool white;		/* in fs->tree.whites, by the next two */
	struct dentry *white_prev, *white_next;
	char name[];
};

struct xattr {
	struct xattr *next;
	uint32_t len;
	char *key;
	char val[];
};

/* Where the store has a file now, and where records on their way will put it. */
struct place {
	struct place *next;
	uint64_t seq;		/* valid once applied */
	uint64_t dir;
	char name[];
};

/* ---- what each part of a node has ---- */

/* As stat(2) shows it; tree.c, apply.c. */
struct attributes {
	mode_t mode;
	uid_t uid;
	gid_t gid;
	dev_t rdev;
	nlink_t nlink;		/* directories: live; the store's when clean */
	nlink_t unknown;	/* others: names in the store that were not looked up yet */
	struct timespec atime, mtime, ctime;
	uint64_t size, blocks;	/* last seen */
};

/* Records that changed it, by their places in the order; apply.c. */
struct node_seqs {
	uint64_t dirty;		/* the last on the node itself */
	uint64_t born;		/* makes it in the store; UINT64_MAX = never yet */
	uint64_t names;		/* directories: last change of their names */
	uint64_t forgot;	/* directories: the newest of the names dropped here, for the store has them */
	uint64_t links;		/* files: last change of how many names they have; UINT64_MAX: the
				 * store has one that is ours no more, and does not tell when it goes */
	uint64_t seal;
	uint64_t placed;	/* the store has it by this record's name, though that is not applied in full */
};

/* As the store has it; node.c, tree.c. */
struct node_stored {
	uint64_t ino, birth;	/* of the store file when last seen; its birth (io_stat_born) */
	bool adopt;		/* a version of ours replaced it: take what is there */
	struct place *places;	/* files: oldest first */
	int kept_fd;		/* unlinked while the kernel knew it: its store file; -1 = none */
	bool retained;		/* staging gives it a name in tmp/ before it has none: staging_retain() */
};

/* Its bytes, from a writer's open to the seal; version.c, close.c. */
struct node_version {
	bool sealed;		/* the order has a version of it */
	bool rdwr;		/* was open O_RDWR since the last seal: mapped writes possible */
	char *over;		/* its last version replaced a committed one: CKPT_OVER_KEY; NULL */
	int close_error;	/* a close that found no room */
	bool accepted;		/* a close was answered with success: its seal is refused no more */
	uint64_t accepted_nth;	/* and the how manieth it was */
};

/* Passthrough; open.c. */
struct backing {
	int32_t id;		/* 0 = none */
	unsigned users;
};

/* fork.c */
struct node_fork {
	uint64_t to;		/* its names went there: a writer came while readers kept this version */
	uint64_t awaited_ns;	/* CLOCK_MONOTONIC; such a writer is about to open this one, readers wait */
};

struct node {
	struct node *hash_next, *sino_next, *zombie_next;
	uint64_t id, ino;
	uint64_t nlookup;
	bool pinned;		/* restored after a restart: the kernel's count is unknown */
	bool busy;		/* its bytes are being copied, made or cut; wait on fs->tree.busy_cond */
	unsigned holds;		/* threads that dropped the lock and come back to it: it is not freed */
	bool zombie;		/* on the list of those to free when clean */
	uint64_t changed;	/* fs->tree.changes when something of it last changed here */
	struct attributes attr;
	struct node_seqs seq;
	struct node_stored stored;

	struct dentry *names;
	struct dentry *children;	/* directories: overlay, whiteouts included */
	char *target;			/* symlinks not yet in the store */
	struct xattr *xattrs;
	bool xattrs_loaded;

	struct staged *sf;	/* bytes in staging; NULL = the store's */
	struct fs_buffer *buf;	/* it is a buffer, and no file; NULL */
	unsigned handles, writers;
	struct node_version version;
	enum lane lane;		/* of the last open */
	struct backing backing;
	struct node_fork fork;
};

struct handle {
	struct handle *hash_next;
	uint64_t fh;
	struct node *node;
	struct staged *sf;	/* NULL: store file or control text */
	int fd;			/* relay reads of a store file, -1 */
	int flags;		/* of open(2) */
	bool writer, uses_backing, uses_sf, flushed;
	bool counted;		/* to the share of its opener: */
	uint32_t uid;
	enum lane lane;
};

struct fs_opts {
	char *store, *mountpoint, *staging_dir;
	uint64_t staging_bytes, pool_bytes;
	uint64_t staging_asked;	/* more than this process's memory cgroup allows; 0 = it has what was asked */
	bool fsync_staged, engine_posix, nopassthrough, nodedup, guard, ro, foreground, debug, remount;
	unsigned persist_threads, queue_depth;
	int numa;		/* a node + 1; 0 = any */
	unsigned commit_wait_s;	/* 0 = no name waits for other nodes */
};

/* ---- what each part has ---- */

/* Nodes, names and handles: all that one lock guards. First in the order of locks (ARCHITECTURE, Locks). */
struct tree {
	pthread_mutex_t lock;	/* "the tree lock": over all below, and fs->expect */
	pthread_cond_t busy_cond;
	struct node *nodes[NODE_BUCKETS];
	struct dentry *dentries[NODE_BUCKETS];
	struct node *by_sino[4096];	/* store files with several names */
	struct handle *handles[4096];
	struct node *zombies, *looked_at;	/* queued for node_gc; the rest of those it is at */
	struct dentry *whites, *whites_last;	/* whiteouts, oldest first */
	struct held *held;	/* by operations that ask the store */
	uint64_t changes;	/* of names and nodes here, counted */
	uint64_t name_changed[NODE_BUCKETS];	/* the last of them of any name with this hash */
	struct fs_buffer *buffers;
	struct node *root;
	uint64_t n_nodes, next_ro_id, n_accepted;
	int replay_error;	/* a staged file could not be opened, which says nothing about its version */

	/* the last name that was looked up and not there; a CREATE comes right behind. dir 0: none */
	struct {
		uint64_t dir, since_ns;
		char name[MAX_NAME + 1];
	} absent;
};

/* expect.c; the tree lock */
#define EXPECT_SLOTS 32768u
struct expected {
	uint64_t key, size;
};

/* Which way bytes go; open.c. */
struct lanes {
	atomic_bool passthrough;
	bool proved;		/* passthrough was; tree lock */
	atomic_ullong opens[N_LANES];
	atomic_ullong bytes_read;
};

/* Keeper, spare and worker of this mount; keeper.c, spare.c, worker.c. */
struct processes {
	int ready_fd;		/* a byte here: the mount answers */
	unsigned restarts;
	atomic_int keeper_pid;
	struct keepers {
		atomic_int asks;	/* pid of a spare that asks the worker */
		atomic_int exited;	/* the worker did, with this code less 1; 0: it has not */
		atomic_uint replaced;
	} *keepers;		/* shared by all processes of the mount, or NULL */
	int alive[2];		/* a pipe; [1] is held by keeper and spare */
	int life_fd;		/* the worker's: open while it lives, and takes its answer to a spare */
	atomic_bool keeper_gone;
};

/* The store went; keeper.c, store_watch.c. */
struct away {
	time_t since;		/* the store was let go of; 0 */
	int error;		/* why, -errno */
	atomic_bool look;	/* somebody wants the store looked at now */
};

/* still.c */
struct still {
	int fd;			/* to the process that holds files still; -1 = none */
	_Atomic int error;	/* the last move that failed, told once */
	char key[33];
};

/* Who parses checkpoints; parser.h */
struct parsers {
	int fd;			/* to the process that starts them, the worker's; 0: there is none */
	int served;		/* the other end, the keeper's: the next such process has it; 0 */
	pid_t pid;		/* of it, the keeper's; 0 */
	void (*fault)(unsigned nth);	/* the build for tests: called by the nth one before each question */
};

/* fork.c */
struct forks {
	pthread_mutex_t lock;	/* over all below; taken after the tree lock, and none after it */
	pthread_cond_t cond;
	struct fork_news *news;
	bool started;		/* the thread that tells the kernel */
	/* Tells the kernel that it does not know that name; set before any thread answers, without the lock. */
	void (*expire)(struct fs *fs, uint64_t dir, const char *name);
};

/* Kept for status; log.c. */
struct notices {
	pthread_mutex_t lock;	/* over all below; none is taken after it */
	char text[16][256];
	unsigned n;
};

/* What is known of a request before libfuse decodes it. */
struct received {
	uint64_t unique;	/* without the resend bit */
	bool resent, release;
};

/* Which thread reads requests; session.c. */
struct reading {
	pthread_mutex_t lock;	/* over all below; a holder of the tree lock only tries it. Before tickets.lock */
	pthread_cond_t cond;
	_Atomic int reader;	/* slot; changed with the lock, looked at without */
	uint64_t since;		/* it answers since then, ns */
};

/* Where requests come from, for the threads that answer; set by wire_run() before they start. */
#define REQUEST_MAX (2u << 20)
struct wire {
	int fd;			/* readable when a request waits */
	/* The next request: its length; 0 or -errno: the connection is gone. Read lock held, alone of all locks. */
	int (*receive)(struct fs *fs, void *buf, size_t size, struct received *r);
	/* Answers it, now or by another thread later. No lock held. */
	void (*answer)(struct fs *fs, void *buf, size_t len);
	void (*end)(struct fs *fs);	/* nothing is received any more, by any thread */
};

/* Requests that are read; wire/receive.c. Read lock held. */
struct resends {
	struct resent **v;	/* sent again; read at the start, still to be answered */
	size_t n, next;
	bool in_burst;		/* the last one came at once */
};

/* RELEASEs that are being answered; session.c. */
struct tickets {
	pthread_mutex_t lock;	/* over all below; none is taken after it */
	pthread_cond_t cond;
	uint64_t last, of_slot[N_THREADS];
	unsigned n_barred;	/* wait in release_barrier */
};

/* Threads that answer the kernel; session.c. */
struct slots {
	pthread_mutex_t lock;	/* over thread and joining; none is taken after it */
	pthread_t thread[N_THREADS];
	bool joining;
	atomic_uint n_apart;	/* others that answer a request each */
	atomic_uint n_asking;	/* that wait for the store */
	atomic_ullong slow_until;	/* it took long to answer a moment ago; CLOCK_MONOTONIC, ns */
};

struct fs {
	struct fs_opts o;
	uid_t uid;
	struct io_engine *engine;
	struct io_store *store;
	struct stat root_seen;	/* the store's, when it was opened */
	struct away away;
	struct staging *s;	/* NULL with -o ro */
	struct staging_place place;
	struct fuse_session *se;
	void (*check)(void *fs);	/* the build for tests: runs before each operation on the store */
	struct processes procs;
	struct still still;
	struct parsers parsers;
	struct tree tree;
	struct expected expect[EXPECT_SLOTS];
	struct lanes lanes;
	struct forks forks;
	struct notices notices;
	struct reading reading;
	struct wire wire;
	struct resends resends;
	struct tickets tickets;
	struct slots slots;
	pthread_t upkeep;
	atomic_bool stopping;
	atomic_bool holds;	/* commits wait for other nodes: not while a first start publishes what was left */
};

/* The request this thread is answering. */
struct current {
	uint64_t unique;	/* without the resend bit */
	bool resent;
	uint64_t ticket;	/* RELEASEs read before it */
	unsigned slot;
	bool reads;		/* no other thread reads while this one answers */
	bool tight;		/* its caller's memory cgroup has little left; payer.c */
	bool slotted;		/* one of N_THREADS: what waits for long goes on apart */
	bool left;		/* it was, and another thread has its place: it ends with this request */
};
extern _Thread_local struct current current;

static inline uint64_t monotonic_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#define HASH_SEED 0xcbf29ce484222325ull	/* FNV-1a; its low bits want mixing before they are used alone */
static inline uint64_t hash_bytes(uint64_t h, const void *p, size_t n)
{
	for (const unsigned char *b = p; n; n--)
		h = (h ^ *b++) * 0x100000001b3ull;
	return h;
}

/* dir/name, or name alone where dir is "" (and dir where name is). NULL: no memory; free it. */
static inline char *path_join(const char *dir, const char *name)
{
	char *p;
	return asprintf(&p, "%s%s%s", dir, *dir && *name ? "/" : "", name) < 0 ? NULL : p;
}

static inline struct fs *req_fs(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

#define TREE_SCOPE(fs) \
	pthread_mutex_t *tree_scope_ __attribute__((cleanup(scope_unlock), unused)) = scope_lock(&(fs)->tree.lock)

/* Has this thread the tree lock? For debug builds and tests; glibc's mutexes know their owner. */
static inline bool tree_is_locked_here(struct fs *fs)
{
	return fs->tree.lock.__data.__owner == gettid();
}

static inline uint64_t fs_applied(struct fs *fs)
{
	return fs->s ? staging_applied(fs->s) : UINT64_MAX;
}

/* ---- log.c ---- */
void fs_notice(void *fs, const char *text);
/* Control characters become '?', but for `but` (a byte; 0: none): names are anybody's, and what is told
 * of them goes to terminals. */
void text_plain(char *text, char but);
void fs_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void fs_log_to_background(struct fs *fs);	/* from here on to STORE/.cairn/<host>/log, or the system's */
void fs_log_again(struct fs *fs);		/* the store went, or is back: opens that anew */
void fs_log_leave_terminal(void);		/* the starter is told nothing any more */

/* ---- ask.c: what the store is asked ---- */
#define ASK_AGAIN (-ERESTART)
#define ASK_VALUE_MAX 256u

struct born {
	struct stat st;
	uint64_t birth;		/* ns; 0 = the store does not tell */
};
struct named {
	struct born b;
	uint64_t ino;		/* to show, of what was not known; ino_rc says whether it could be had */
	int ino_rc;
	uint64_t applied;
};
struct listed_name {
	char *name;
	uint64_t ino, asked, applied;
	mode_t type;
	bool gone, doubt;	/* doubt: the next time it is asked for by itself */
};
struct listed {
	struct listed_name *v;
	size_t n;
	bool read;
	unsigned rounds;
	uint64_t asked, applied;
};
struct listed_name *listed_find(const struct listed *l, const char *name);	/* NULL: it is not among them */

/* An operation that may have to ask:
 *
 *	ask_begin();
 *	do {
 *		TREE_SCOPE(fs);
 *		rc = ...;	(ASK_AGAIN as far as it came from the functions below)
 *	} while (ask_store(fs, rc));
 *
 * ask_store: no lock held. Asks where rc is ASK_AGAIN; else it is the end, and false. */
void ask_begin(void);
bool ask_store(struct fs *fs, int rc);
void ask_end(void);	/* instead of the last ask_store */
/* From here on it cannot begin anew. */
void ask_no_more(void);
/* Lock held. Needed no more: n is released, or stays until this operation that begins anew has ended. */
void ask_release(struct fs *fs, struct node *n);
void ask_let_go(struct fs *fs);	/* of those whose operation has ended */
/* Lock held. What the store says, its errors included; or ASK_AGAIN. `applied`: as the end of the order
 * was when it was asked. */
int ask_name(struct fs *fs, struct node *dir, const char *name, const struct node *known, struct named *out);
/* What was told of the name is in the tree now, and holds for n, too. */
void ask_took(struct fs *fs, struct node *dir, const char *name, struct node *n, const struct named *b);
int ask_stat(struct fs *fs, struct node *n, struct born *b, uint64_t *applied);
int ask_open(struct fs *fs, struct node *n, struct born *b);	/* a descriptor, the caller's */
int ask_born(struct fs *fs, struct node *n, int fd, struct born *b);	/* of a file of the store that n has open */
int ask_link(struct fs *fs, struct node *n, char *buf, size_t cap);
int node_load_xattrs(struct fs *fs, struct node *n);	/* the same, n's own; once */
/* cap at most ASK_VALUE_MAX */
ssize_t ask_value(struct fs *fs, struct node *n, const char *key, char *buf, size_t cap);
ssize_t ask_value_by_name(struct fs *fs, struct node *dir, const char *name, const char *key, char *buf, size_t cap);
bool name_is_absent(int rc);	/* the store's answer that it is not there; any other error is no answer */
bool xattr_is_absent(ssize_t rc);	/* it is not there, or not for us; any other error is no answer */
/* *out is valid until the next question; an error of the store that says that there is no directory
 * leaves it empty. */
int ask_list(struct fs *fs, struct node *dir, struct listed **out);
/* The same once more: the names in doubt, or all where !read. */
int ask_list_again(struct fs *fs, struct node *dir);

/* ---- rec.c ---- */
struct rec rec_new(uint32_t type);
struct rec rec_staged(const struct node *n);	/* n->sf is its version; no request made it */
/* Points r at n as the store has it (name "" = the root itself). */
void rec_aim(struct fs *fs, struct rec *r, struct node *n);

/* ---- node.c; lock held ---- */
struct node *node_find(struct fs *fs, uint64_t id);
/* The same, but where a forked node's names are now; the last there is when the file is
 * gone. For what is asked of the file rather than of the version that a descriptor keeps. */
struct node *node_current(struct fs *fs, uint64_t id);
nlink_t node_links(const struct node *n);	/* st_nlink */
struct node *node_new(struct fs *fs, uint64_t id, uint64_t ino, mode_t mode);
void node_release(struct fs *fs, struct node *n);	/* frees it if nothing needs it, else later */
void node_forget(struct fs *fs, uint64_t id, uint64_t count);	/* so many of the kernel's references */
void node_forgotten(struct fs *fs, struct node *n);	/* frees it: REC_FORGET */
void node_gc(struct fs *fs);
bool node_dirty(struct fs *fs, const struct node *n);
struct dentry *dentry_find(struct fs *fs, struct node *dir, const char *name);
struct dentry *dentry_set(struct fs *fs, struct node *dir, const char *name, struct node *n);
void dentry_remove(struct fs *fs, struct dentry *d);
bool dentry_dirty(struct fs *fs, const struct dentry *d);
/* Makes d a whiteout until seq is applied. */
void dentry_whiteout(struct fs *fs, struct dentry *d, uint64_t seq);
const struct place *node_place(struct fs *fs, struct node *n);
void node_place_add(struct fs *fs, struct node *n, uint64_t seq, uint64_t dir, const char *name);
/* Something of n changed; a name did. Questions to the store that were put before are void. */
void node_touch(struct fs *fs, struct node *n);
void name_touch(struct fs *fs, uint64_t dir, const char *name);
uint64_t name_changed(struct fs *fs, uint64_t dir, const char *name);
void node_set_sf(struct fs *fs, struct node *n, struct staged *sf);	/* takes the reference */
void node_check_sf(struct fs *fs, struct node *n);	/* drops what was evicted or spilled and published */
void node_set_sino(struct fs *fs, struct node *n, uint64_t sino, uint64_t sbirth);
/* Another thread copies or makes n's bytes: waits for it. May drop the lock. */
void node_wait_busy(struct fs *fs, struct node *n);
/* Closes a descriptor of a store file, without freeing its blocks under the lock. */
void store_fd_close(struct fs *fs, int fd);
/* Has effect once nobody can open or read n any more. */
void node_drop_bytes(struct fs *fs, struct node *n);
#define CAIRN_PREFIX "user.cairn."
#define DEVICE_KEY CAIRN_PREFIX "device"	/* the one of user.cairn.* that users set, not listed either */
bool xattr_is_ours(const char *key);	/* tells a state; users cannot set it */
struct xattr *xattr_add(struct xattr **list, const char *key, const void *val, uint32_t len);
void xattrs_free(struct xattr *list);
void xattr_put(struct node *n, const char *key, const void *val, uint32_t len);
bool xattr_drop(struct node *n, const char *key);
/* A path for people, relative to the mount. */
void node_path(struct fs *fs, struct node *n, char *buf, size_t cap);
/* Nodes in the order in which their closes were answered; those without one first. */
struct node_list {
	struct node **n;
	size_t len, cap;
};
int node_list_add(struct node_list *l, struct node *n);	/* 0, -ENOMEM */
void node_list_sort(struct node_list *l);

/* ---- apply.c: records become tree; lock held ---- */
int fs_record(struct fs *fs, struct rec *r);	/* log it, then apply it */
void fs_apply(struct fs *fs, const struct rec *r);
int fs_replay(void *fs, const struct rec *r);
struct handle *handle_find(struct fs *fs, uint64_t fh);
void handle_free(struct fs *fs, struct handle *h);
struct rec rec_node(struct node *n, struct dentry *d);	/* as it is, by that name; NULL: by none */
void fs_learned(struct fs *fs, struct node *n, struct dentry *d);	/* logs REC_NODE */
_Noreturn void no_memory(void);		/* a record is logged and cannot be shown: dies, the next worker replays it */

/* ---- tree.c: what asks the store; lock held ---- */
int tree_init(struct fs *fs);
/* The node at dir/name, learned from the store if need be. 0, -ENOENT, ASK_AGAIN. Any other error is the
 * store's and says nothing about the name: what is known of it stays. */
int tree_lookup(struct fs *fs, struct node *dir, const char *name, struct node **out, struct dentry **dout);
/* What is shown of n: asked of the store first, where that knows (0, ASK_AGAIN); or as it is known. */
int node_stat(struct fs *fs, struct node *n, struct stat *st);
void node_attr(struct fs *fs, struct node *n, struct stat *st);
int node_open_store(struct fs *fs, struct node *n);
/* A LOOKUP found nothing: remembered until the next record. */
void tree_absent(struct fs *fs, struct node *dir, const char *name);
/* As tree_lookup, for CREATE: what LOOKUP has just found absent is so still. */
int tree_lookup_again(struct fs *fs, struct node *dir, const char *name, struct node **out);
/* Before n loses a name: who looked it up may be about to open it, or hold it by O_PATH. */
int node_keep_bytes(struct fs *fs, struct node *n);	/* 0, ASK_AGAIN */
/* Before n loses all its names: its descriptors are asked for more than the kernel does by itself. */
int node_keep_version(struct fs *fs, struct node *n);
/* After a replay, before anything is published: files without names are opened again for their readers. */
void nodes_keep_again(struct fs *fs);

/* ---- below.c; lock held ---- */
enum below_rank { BELOW_FAILED, BELOW_OPEN, BELOW_STAGED, BELOW_PERSISTING, BELOW_DURABLE };
struct below {
	struct fs *fs;
	struct node *top;
	uint64_t bytes;		/* that are still to be written */
	enum below_rank rank;	/* the least advanced */
	int error;
	uint64_t halted;	/* node whose change the store refuses */
	int halted_error;
};
/* Everything not yet durable at or below top. */
struct below look_below(struct fs *fs, struct node *top);
bool node_all_durable(struct fs *fs, struct node *n);	/* has the store all that is at n or below, safely? */

/* ---- seal.c; lock held ---- */
int fs_flushed(struct fs *fs, struct node *n);
int fs_seal(struct fs *fs, struct node *n, bool closed, uint64_t *seq);
/* n is about to be renamed over victim at d. A shard of a committed checkpoint says of itself that
 * it was replaced, in the store before it has that name (DURABILITY, Safe checkpoints). */
int fs_replaces(struct fs *fs, struct node *n, const struct node *victim, const struct dentry *d);
int fill_flushed(struct node *n, struct rec *r, void **data);	/* for fs_emit(); *data is the caller's */

/* ---- emit.c ---- */
int fs_emit(void *fs, struct staging *s);
/* Before a change is recorded: a log that is too long is written anew first. Lock not held; may wait. */
void log_room(struct fs *fs);

/* ---- fork.c; lock held ---- */
int fork_node(struct fs *fs, struct node *n);	/* -ESTALE: done, look the name up again */
/* n is a fork's new node: the kernel is to forget that its names lead to the old one. True: it will be told, and then
 * then(arg) is called, by another thread (NULL: nothing). False: nothing is to be told, or cannot be. */
bool fork_tell(struct fs *fs, struct node *n, void (*then)(void *arg), void *arg);
/* A reader waits for that writer: were it first, n would be forked again, and the kernel
 * asks again only once. */
int fork_await(struct fs *fs, struct node *n);	/* 0; -EINPROGRESS as node_await */
void fork_came(struct fs *fs, struct node *n);	/* the writer */

/* ---- parser_start.c: by the keeper ---- */
void parser_start(struct fs *fs);	/* before each worker; where it fails, nothing is parsed */
bool parser_look(struct fs *fs);	/* was it replaced? */
void parser_leave(struct fs *fs, bool worker);	/* the other's end */
void parser_end(struct fs *fs);

/* ---- still.c ---- */
void still_start(struct fs *fs);	/* by the keeper, before its first worker */
void still_ask(void *fs, uint64_t node);	/* for struct staging_opts; never blocks */
/* False: the request is not its process's, and not answered. */
bool still_lookup(fuse_req_t req, const char *name);
bool still_set(fuse_req_t req, fuse_ino_t id, const char *key, const char *val, size_t len);

/* ---- commit.c: for struct staging_hold ---- */
bool commit_is_name(const char *name);
bool commit_missing(void *fs, uint64_t seq, uint64_t dir, int dirfd, int fd, char *what, size_t cap);

/* ---- expect.c ---- */
uint64_t expect_size(struct fs *fs, struct node *dir, const char *name);
/* Unknown so far: asks the store, the first time for a shape. Drops the lock meanwhile. */
uint64_t expect_from_store(struct fs *fs, struct node *dir, const char *name);
void expect_note(struct fs *fs, struct node *n, uint64_t size);

/* ---- reply.c ---- */
int reply_entry(fuse_req_t req, struct fs *fs, struct node *n);	/* lock held; 0 or ASK_AGAIN */
void reply_known(fuse_req_t req, struct fs *fs, struct node *n);	/* the same, as it is known */
double attr_timeout(const struct node *n);
void fill_entry(struct node *n, const struct stat *st, struct fuse_entry_param *e);
/* ESTALE for the forked node n, once the kernel has forgotten its names. Lock held. */
void reply_forked(fuse_req_t req, struct fs *fs, struct node *n);

/* ---- session.c ---- */
/* Called before this thread waits for the store, for a copy, for another thread: lets
 * another one read meanwhile. Not with the tree lock held for long; any number of times. */
void session_may_block(struct fs *fs);
/* The same, before some 100 us of work, where requests wait already. */
void session_may_take_long(struct fs *fs);
/* Calls fn(arg), which answers this thread's request and may take half a minute, on a thread of its
 * own, so that those that answer are not all held up at once; where there is none to be had, here. */
void session_apart(struct fs *fs, void (*fn)(void *arg), void *arg);
/* Around a question to the store: others are answered meanwhile, also where it never ends. */
void session_asks(struct fs *fs);
void session_asked(struct fs *fs);
/* A few times a second, by a thread that does not wait for the store itself. */
void session_look(struct fs *fs);
void session_join(struct fs *fs);	/* the connection is gone: waits for all threads that answer */
void release_barrier(struct fs *fs);	/* waits for RELEASEs the kernel sent before this request */
/* Starts the threads that answer, once fs->wire is set. -ENOMEM, -EAGAIN: not all of them could be. */
int session_start(struct fs *fs);

/* ---- wire/receive.c ---- */
/* The first request is init, which the keeper has read; then all threads answer. resend: the kernel is asked for what
 * the last worker took and did not answer. 0 or -errno. */
int wire_run(struct fs *fs, const void *init, size_t init_len, bool resend);

/* ---- upkeep.c ---- */
int upkeep_start(struct fs *fs);
void upkeep_join(struct fs *fs);		/* fs->stopping is set */

/* ---- operations ---- */
extern const struct fuse_lowlevel_ops fs_ops;	/* dispatch.c; the others are of inodes of the tree */
void op_lookup(fuse_req_t, fuse_ino_t, const char *);
void op_mkdir(fuse_req_t, fuse_ino_t, const char *, mode_t);
void op_mknod(fuse_req_t, fuse_ino_t, const char *, mode_t, dev_t);
void op_symlink(fuse_req_t, const char *, fuse_ino_t, const char *);
void op_link(fuse_req_t, fuse_ino_t, fuse_ino_t, const char *);
void op_unlink(fuse_req_t, fuse_ino_t, const char *);
void op_rmdir(fuse_req_t, fuse_ino_t, const char *);
void op_rename(fuse_req_t, fuse_ino_t, const char *, fuse_ino_t, const char *, unsigned);
void op_readlink(fuse_req_t, fuse_ino_t);
void op_getattr(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_setattr(fuse_req_t, fuse_ino_t, struct stat *, int, struct fuse_file_info *);
void op_statfs(fuse_req_t, fuse_ino_t);
void op_open(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_create(fuse_req_t, fuse_ino_t, const char *, mode_t, struct fuse_file_info *);
void op_read(fuse_req_t, fuse_ino_t, size_t, off_t, struct fuse_file_info *);
void op_write(fuse_req_t, fuse_ino_t, const char *, size_t, off_t, struct fuse_file_info *);
void op_flush(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_release(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_fsync(fuse_req_t, fuse_ino_t, int, struct fuse_file_info *);
void op_fallocate(fuse_req_t, fuse_ino_t, int, off_t, off_t, struct fuse_file_info *);
void op_lseek(fuse_req_t, fuse_ino_t, off_t, int, struct fuse_file_info *);
void op_copy_file_range(fuse_req_t, fuse_ino_t, off_t, struct fuse_file_info *, fuse_ino_t, off_t,
			struct fuse_file_info *, size_t, int);
void op_opendir(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_readdir(fuse_req_t, fuse_ino_t, size_t, off_t, struct fuse_file_info *);
void op_readdirplus(fuse_req_t, fuse_ino_t, size_t, off_t, struct fuse_file_info *);
void op_releasedir(fuse_req_t, fuse_ino_t, struct fuse_file_info *);
void op_setxattr(fuse_req_t, fuse_ino_t, const char *, const char *, size_t, int);
void op_getxattr(fuse_req_t, fuse_ino_t, const char *, size_t);
void op_listxattr(fuse_req_t, fuse_ino_t, size_t);
void op_removexattr(fuse_req_t, fuse_ino_t, const char *);
/* attr.c: who writes or truncates n takes suid and sgid from it unless he is root. 1: so it was; once the lock is
 * dropped attrs_changed() tells the kernel, which leaves it to us (FUSE_HANDLE_KILLPRIV_V2). -errno. Lock held. */
int node_written(fuse_req_t req, struct fs *fs, struct node *n);
void attrs_changed(struct fs *fs, uint64_t id);	/* the kernel asks for them again. Lock not held */
/* Makes n's bytes writable: a new version, or the old one again. May drop the lock
 * while it copies. -ESTALE: its readers keep it, look the name up again. -EINPROGRESS as node_await. */
int node_make_writable(struct fs *fs, struct node *n, bool trunc);
/* As node_wait_busy(), for an operation that can be done again from its beginning. -EINPROGRESS: it is one of the
 * few threads that answer, which are not to wait; session_apart() does it again, and waits. */
int node_await(struct fs *fs, struct node *n);
/* Of n->sf. Drops the lock; n is busy meanwhile. */
int node_resize(struct fs *fs, struct node *n, uint64_t size);
/* Before the open for which n was made writable failed: as it was, `was` being n->sf of that time. */
void node_take_back(struct fs *fs, struct node *n, struct staged *was);
/* share.c; lock held */
void share_opened(uint32_t uid);
void share_closed(uint32_t uid);
int share_of_files(uint32_t uid);	/* 0: uid may open one more; -EMFILE */
/* True, once: somebody was told EMFILE, and text (of cap bytes) says why. */
bool share_was_refused(char *text, size_t cap);
int share_of_buffers(const struct fs *fs, uint32_t uid, uint64_t held, uint64_t more);	/* 0: so many bytes more; -ENOSPC */
/* payer.c */
void payer_look(struct fs *fs, fuse_req_t req);	/* sets current.tight; no lock held */
/* A file that was made, and cannot be opened or has no room: as if it never was. Lock held. */
void unmake(struct fs *fs, struct node *n, uint64_t parent, const char *name);
/* Makes a handle and answers, with the entry too if it is made. Lock held. */
int open_handle(fuse_req_t req, struct fs *fs, struct node *n, struct fuse_file_info *fi, bool create);
/* Resent after a restart and done already: answers. Lock held. */
bool answered_open(fuse_req_t req, struct fs *fs, struct fuse_file_info *fi, bool create);
/* Room in the store for its bytes. -EAGAIN: staged_reserve_later() waits for it. Lock not held. */
int node_reserve_now(struct fs *fs, struct staged *sf);
int node_seal_closed(struct fs *fs, struct node *n);
/* The writers of n->sf went and changed nothing. Lock held; may drop it. */
void node_unchanged(struct fs *fs, struct node *n);
/* Seals what n has now and answers when that is durable (P3): a write (written bytes) or an fsync. Lock not held. */
void sync_and_reply(fuse_req_t req, struct fs *fs, struct node *n, bool is_write, size_t written);
void retry_failed(struct fs *fs);
void close_restored(struct fs *fs);	/* handles of a connection that is gone */
/* -EINVAL, -EBUSY, -EAGAIN; -ENODATA: nothing stands in the store. *id: its node, whose pages the kernel is to drop */
int discard_failed(struct fs *fs, uint64_t ino, uint64_t *id);
void seal_restored(struct fs *fs);
void seal_late(struct fs *fs);
unsigned close_all(struct fs *fs);	/* the connection is gone; returns files left unclosed */

/* ---- readdir.c ---- */
/* Calls fn for the names in dir, until it returns non-zero. Lock held. */
int dir_names(struct fs *fs, struct node *dir, int (*fn)(void *arg, const char *name), void *arg);
int tree_dir_empty(struct fs *fs, struct node *dir);	/* 0, -ENOTEMPTY; lock held */

/* ---- reach.c ---- */
struct caller {			/* who sent a request */
	uid_t uid;
	gid_t gid;
	gid_t *groups;		/* supplementary ones */
	int n_groups;		/* negative: not known */
};
void caller_of(fuse_req_t req, struct caller *c);	/* reads /proc; caller_free() */
void caller_free(struct caller *c);
/* want: 4 read, 2 write, 1 search, as a mode's bits for others */
bool caller_may(const struct caller *c, const struct stat *st, unsigned want);
/* The node at a path below the root, if `who` (NULL: the daemon) may search each directory on the
 * way, as the store has it (node_attr). Takes and keeps the tree lock only when it succeeds: then call
 * reach_done(). -EACCES, -ENOENT, -ENOTDIR, ... */
int reach(struct fs *fs, const struct caller *who, const char *path, struct node **out);
void reach_done(struct fs *fs, struct node *n);
/* The same, and may `who` do what he wants with it? *st is filled with -EACCES, too, but then may
 * not be his to know. */
int reach_stat(struct fs *fs, const struct caller *who, const char *path, unsigned want,
	       struct stat *st);

/* ---- views*.c: MOUNT/.cairn/views; see views.h ---- */
#define VIEWS_DIR 15ull		/* the directory itself */
#define VIEWS_FIRST ID_VIEW_BIT	/* and all below it (staging/ids.h) */
static inline bool is_view(uint64_t id) { return id == VIEWS_DIR || id >= VIEWS_FIRST; }
void views_forget(uint64_t id, uint64_t count);	/* the tree lock may be held */

/* ---- control.c: MOUNT/.cairn ---- */
#define CONTROL_DIR 2ull
#define CONTROL_LAST 15ull
/* Directories below it have ids of their own: a bit that no other id has, which tree, a hash of
 * the path in it (staging/ids.h). */
enum control_tree { CONTROL_LATEST, CONTROL_BUFFERS, CONTROL_TREES };
#define CONTROL_TREE_BIT ID_TREE_BIT
_Static_assert(CONTROL_LAST < STAGING_FIRST_ID && VIEWS_DIR <= CONTROL_LAST, "names of .cairn have fixed ids");
_Static_assert(CONTROL_TREES <= 1u << ID_SALT_BITS, "a tree's number fits between its hash and its bit");
static inline uint64_t control_tree_id(enum control_tree t, uint64_t hash)
{
	return CONTROL_TREE_BIT | (uint64_t)t << ID_SALT_SHIFT | (hash & ((1ull << ID_SALT_SHIFT) - 1));
}
static inline bool is_control(uint64_t id)
{
	return (id >= CONTROL_DIR && id <= CONTROL_LAST) || id & CONTROL_TREE_BIT || is_view(id);
}
static inline bool name_is_control(uint64_t parent, const char *name)
{
	return parent == ROOT_ID && !strcmp(name, CONTROL_DIR_NAME);
}
/* Operations on inodes of .cairn and below. NULL: not for these; dispatch.c answers. */
struct control_ops {
	void (*lookup)(fuse_req_t req, fuse_ino_t parent, const char *name);	/* parent CONTROL_DIR: itself */
	void (*getattr)(fuse_req_t req, fuse_ino_t id);
	void (*readlink)(fuse_req_t req, fuse_ino_t id);
	void (*create)(fuse_req_t req, const char *name, mode_t mode, struct fuse_file_info *fi);
	void (*open)(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi);
	void (*read)(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, struct fuse_file_info *fi);
	void (*write)(fuse_req_t req, fuse_ino_t id, const char *buf, size_t size, struct fuse_file_info *fi);
	void (*lseek)(fuse_req_t req, fuse_ino_t id, off_t off, int whence);
	void (*release)(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi);
	void (*readdir)(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, bool plus);
	void (*forget)(uint64_t id, uint64_t count);	/* the tree lock may be held */
};
extern const struct control_ops views_ops, latest_ops, buffers_ops;
const struct control_ops *control_ops_of(uint64_t id);	/* ROOT_ID: whoever looks .cairn up */

/* ---- buffer_node.c: buffers in the tree; lock held ---- */
struct node *buffers_find(struct fs *fs, const char *name);
/* st: its mode and owner. *out has no handle yet: without one, buffers_closed() ends it. b is its from then on. */
int buffers_make(struct fs *fs, struct buffer *b, const char *name, uint64_t size, const struct stat *st,
		 struct node **out);
void buffers_apply(struct fs *fs, const struct rec *r);		/* REC_BUFFER */
void buffers_apply_commit(struct node *n, const struct rec *r);	/* n's xattrs are in r */
int buffers_emit(struct fs *fs);	/* before any REC_OPEN of them is */
void buffers_closed(struct fs *fs, struct node *n);	/* a handle of n is no more: was it the last? */
void buffers_restored(struct fs *fs);	/* after a replay; takes the lock: those without a handle end */
uint64_t buffers_of(struct fs *fs, uint32_t uid);	/* bytes */
/* For nodes with n->buf. */
struct buffer *buffers_hold(struct node *n);	/* a reference, the caller's; NULL: n is no buffer */
int buffers_backing(struct node *n);	/* a descriptor, n's own */
const char *buffers_state(struct node *n);
uint64_t buffers_blocks(struct node *n);
int buffers_resize(struct fs *fs, struct node *n, uint64_t size);	/* drops the lock meanwhile */
int buffers_lend(struct node *n, uint64_t id, struct staged **sf);	/* as buffer_lend() */

/* ---- buffers.c: MOUNT/.cairn/buffers ---- */
#define BUFFERS_DIR control_tree_id(CONTROL_BUFFERS, 0)
/* link(2) of n: *out is the new file. -EBUSY: it is committed already. Lock held; drops it meanwhile. */
int buffers_commit(fuse_req_t req, struct fs *fs, struct node *n, fuse_ino_t parent, const char *name,
		   struct node **out);

/* ---- latest*.c: MOUNT/.cairn/latest; answered by a thread of its own ---- */
/* The newest safe checkpoint below the mount's directory path, relative to it; ENODATA: none. */
void latest_xattr(fuse_req_t req, const char *path, size_t size);
void latest_stop(void);		/* the connection is gone: waits for the thread */

/* ---- main.c's helpers ---- */
int options_parse(int argc, char **argv, struct fs_opts *o, struct fuse_args *rest);
/* Makes the directory mnt immutable, under the mount that is to come: with the mount gone nobody, not root, makes a
 * file there. A descriptor of it for mountpoint_unguard, which takes it back; or -errno: nothing is changed. */
int mountpoint_guard(const char *mnt);
void mountpoint_unguard(int fd);
/* Takes cairnfs mounts off mnt whose processes are dead. 0 also when there is none; else stderr has why. */
int mountpoint_take_over(const char *mnt);
/* Changes the kernel's flags (ro, noexec, ...) of the mount at mnt as options, a list that is cut up, say. Else
 * -errno, and stderr has why. */
int mountpoint_remount(const char *mnt, char *options);
/* The type of the mount on top at path, which is absolute. -ENOENT: nothing is mounted there. */
int mountpoint_top(const char *path, char *type, size_t cap);
/* Where the cairnfs is mounted whose files are on device dev. -ENOENT: they are no cairnfs's. */
int mountpoint_of(dev_t dev, char *path, size_t cap);
int keeper_run(struct fs *fs, struct fuse_args *rest);
int worker_run(struct fs *fs, int fuse_fd, const void *init, size_t init_len, bool first);
/* ---- trust.c: before the process has threads ---- */
int trust_keeper(struct fs *fs);	/* and the workers that it starts afterwards */
int trust_worker(struct fs *fs);
void trust_still(void);		/* ends the process where that fails; as these two */
void trust_nursery(uint64_t parser_memory);	/* memory: address space that its parsers may have */
void trust_parser(void);
/* ---- spare.c ---- */
void spare_init(struct fs *fs);
/* Forks a spare for the worker at the other end of life: its pid, or -1. Returns in the spare too, when that
 * has become the keeper: *adopted. */
pid_t spare_start(struct fs *fs, int life, bool *adopted);
bool keeper_is_there(const struct fs *fs);	/* asked by the worker; the spare counts */
void keeper_look(struct fs *fs);		/* the worker, now and then */
_Noreturn void worker_exit(struct fs *fs, int code);
unsigned keepers_replaced(const struct fs *fs);

/* ---- store_watch.c: a thread of the worker ---- */
/* Looks whether the store's filesystem is still there, or back. Then the worker exits by one of these,
 * and the keeper lets go of the store, or opens it again, before it starts the next. */
enum { EXIT_STORE_GONE = 20, EXIT_STORE_BACK };
int store_watch_start(struct fs *fs);

#endif

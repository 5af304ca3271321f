/* SPDX-License-Identifier: MIT
 * The face: what a mount shows, and how calls become records in staging.
 *
 * One lock, fs->lock ("the tree lock"), guards nodes, names and handles. It is
 * held for microseconds: no file is read, written or synced under it. Functions
 * with the suffix _locked, and all of tree.c, want it held. Order: tree lock,
 * then staging's own.
 */
#ifndef CAIRN_FS_H
#define CAIRN_FS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include <fuse_lowlevel.h>

#include "io/io.h"
#include "staging/staging.h"

#define ROOT_ID FUSE_ROOT_ID	/* == STAGING_ROOT_DIR */
#define BLKSIZE (1u << 20)	/* st_blksize: Python sizes its buffers from it */
#define CONTROL_DIR_NAME ".cairn"
#define N_THREADS 16u		/* answering the kernel; relay writes may block a few */
#define NODE_BUCKETS 65536u
#define MAX_NAME 255u
#define LARGE_FILE (8u << 20)	/* from here on its memory is worth not holding the tree lock */

enum lane { LANE_NONE, LANE_FAST, LANE_SPILL, LANE_READ, LANE_RELAY, N_LANES };

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
	bool white;		/* in fs->whites, by the next two */
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

struct node {
	struct node *hash_next, *sino_next;
	uint64_t id, ino;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	dev_t rdev;
	nlink_t nlink;		/* directories: live; the store's when clean */
	nlink_t unknown;	/* others: names in the store that were not looked up yet */
	struct timespec atime, mtime, ctime;
	uint64_t size, blocks;	/* last seen */
	uint64_t nlookup;
	bool pinned;		/* restored after a restart: the kernel's count is unknown */
	bool busy;		/* its bytes are being copied; wait on fs->busy_cond */
	bool zombie;		/* on the list of those to free when clean */
	uint64_t dirty_seq;	/* last record on the node itself */
	uint64_t born_seq;	/* record that makes it in the store; UINT64_MAX = never yet */
	uint64_t ns_seq;	/* directories: last change of their names */
	uint64_t links_seq;	/* files: last change of how many names they have; UINT64_MAX: the
				 * store has one that is ours no more, and does not tell when it goes */
	uint64_t seal_seq;
	uint64_t placed_seq;	/* the store has it by this record's name, though that is not applied in full */
	uint64_t sino;		/* inode of the store file when last seen */
	bool adopt;		/* a version of ours replaced it: take what is there */

	struct dentry *names;
	struct dentry *children;	/* directories: overlay, whiteouts included */
	struct place *places;		/* files: oldest first */
	char *target;			/* symlinks not yet in the store */
	struct xattr *xattrs;
	bool xattrs_loaded;

	struct staged *sf;	/* bytes in staging; NULL = the store's */
	struct fs_buffer *buf;	/* it is a buffer, and no file; NULL */
	bool sealed;		/* the order has a version of it */
	bool rdwr;		/* was open O_RDWR since the last seal: mapped writes possible */
	char *over;		/* its last version replaced a committed one: CKPT_OVER_KEY; NULL */
	int close_error;	/* a close that found no room */
	bool accepted;		/* a close was answered with success: its seal is refused no more */
	unsigned handles, writers;
	int kept_fd;		/* unlinked while the kernel knew it: its store file; -1 = none */
	int32_t backing;	/* passthrough id, 0 = none */
	unsigned backing_users;
	enum lane lane;		/* of the last open */
	uint64_t fork_to;	/* its names went there: a writer came while readers kept this version */
	uint64_t awaited_ns;	/* CLOCK_REALTIME; such a writer is about to open this one, readers wait */
	struct node *zombie_next;
};

struct handle {
	struct handle *hash_next;
	uint64_t fh;
	struct node *node;
	struct staged *sf;	/* NULL: store file or control text */
	int fd;			/* relay reads of a store file, -1 */
	int flags;		/* of open(2) */
	bool writer, uses_backing, uses_sf, flushed;
	enum lane lane;
};

struct fs_opts {
	char *store, *mountpoint, *staging_dir;
	uint64_t staging_bytes, ballast_bytes;
	bool ballast_set;
	bool fsync_staged, nopassthrough, nodedup, ro, foreground, debug;
	char *engine;
	unsigned persist_threads, queue_depth;
	int numa;		/* a node + 1; 0 = any */
	unsigned commit_wait_s;	/* 0 = no name waits for other nodes */
	bool commit_wait_set;
};

#define EXPECT_SLOTS 32768u

struct fs {
	struct fs_opts o;
	struct io_store *store;
	struct io_engine *engine;
	struct staging *s;	/* NULL with -o ro */
	struct fuse_session *se;
	uid_t uid;
	struct staging_place place;
	int ready_fd;		/* a byte here: the mount answers */
	pthread_mutex_t log_lock;	/* over err_fd: other threads log while it is closed */
	int err_fd;		/* the starter's stderr until then, -1 */
	int log_fd;		/* STORE/.cairn/<host>/log, -1 in the foreground */
	unsigned restarts;
	int keeper_pid;
	int still_fd;		/* to the process that holds files still; -1 = none */
	char still_key[33];

	pthread_mutex_t lock;
	pthread_cond_t busy_cond;
	struct node *nodes[NODE_BUCKETS];
	struct dentry *dentries[NODE_BUCKETS];
	struct node *by_sino[4096];	/* store files with several names */
	struct handle *handles[4096];
	struct node *zombies, *looked_at;	/* queued for node_gc; the rest of those it is at */
	struct dentry *whites, *whites_last;	/* whiteouts, oldest first */
	struct fs_buffer *buffers;
	struct node *root;
	uint64_t n_nodes, next_ro_id;

	/* the last name that was looked up and not there; a CREATE comes right behind. dir 0: none */
	struct {
		uint64_t dir, since_ns;
		char name[MAX_NAME + 1];
	} absent;

	atomic_bool passthrough;
	bool passthrough_proved;
	atomic_ullong lanes[N_LANES];
	atomic_ullong bytes_read;

	pthread_mutex_t fork_lock;	/* fork.c; last in the order of locks */
	pthread_cond_t fork_cond;
	struct fork_news *forks;
	bool fork_thread;

	struct { uint64_t key, size; } expect[EXPECT_SLOTS];

	/* notices, kept for status */
	pthread_mutex_t notice_lock;
	char notices[16][256];
	unsigned n_notices;

	/* threads that answer the kernel; see session.c */
	pthread_mutex_t read_lock, ticket_lock;
	pthread_cond_t read_cond, ticket_cond;
	_Atomic int reader;	/* slot; changed with read_lock, as the next two */
	bool in_burst;
	uint64_t reader_since;	/* it answers since then, ns */
	uint64_t ticket, slot_ticket[N_THREADS];
	pthread_t threads[N_THREADS], house;
	atomic_uint n_apart;	/* others that answer a request each */
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

static inline void fs_unlock_scope(pthread_mutex_t **m)
{
	pthread_mutex_unlock(*m);
}
#define TREE_SCOPE(fs)                                                                   \
	pthread_mutex_t *tree_scope_ __attribute__((cleanup(fs_unlock_scope))) = &(fs)->lock; \
	pthread_mutex_lock(tree_scope_)

static inline uint64_t fs_applied(struct fs *fs)
{
	return fs->s ? staging_applied(fs->s) : UINT64_MAX;
}

void fs_notice(void *fs, const char *text);
void fs_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- tree.c ---- */
int tree_init(struct fs *fs);
struct node *node_find(struct fs *fs, uint64_t id);
/* The same, but where a forked node's names are now; the last there is when the file is
 * gone. For what is asked of the file rather than of the version that a descriptor keeps. */
struct node *node_current(struct fs *fs, uint64_t id);
nlink_t node_links(const struct node *n);	/* st_nlink */
struct node *node_new(struct fs *fs, uint64_t id, uint64_t ino, mode_t mode);
void node_release(struct fs *fs, struct node *n);	/* frees it if nothing needs it, else later */
void node_gc(struct fs *fs);
bool node_dirty(struct fs *fs, const struct node *n);
struct dentry *dentry_find(struct fs *fs, struct node *dir, const char *name);
struct dentry *dentry_set(struct fs *fs, struct node *dir, const char *name, struct node *n);
void dentry_remove(struct fs *fs, struct dentry *d);
bool dentry_dirty(struct fs *fs, const struct dentry *d);
/* Makes d a whiteout until seq is applied. */
void dentry_whiteout(struct fs *fs, struct dentry *d, uint64_t seq);
/* The node at dir/name, learned from the store if need be. 0, -ENOENT, ... */
int tree_lookup(struct fs *fs, struct node *dir, const char *name, struct node **out, struct dentry **dout);
int tree_dir_empty(struct fs *fs, struct node *dir);	/* 0, -ENOTEMPTY */
const struct place *node_place(struct fs *fs, struct node *n);
void node_place_add(struct node *n, uint64_t seq, uint64_t dir, const char *name);
int node_stat(struct fs *fs, struct node *n, struct stat *st);
void node_set_sf(struct fs *fs, struct node *n, struct staged *sf);	/* takes the reference */
void node_check_sf(struct fs *fs, struct node *n);	/* drops what was evicted or spilled and published */
void node_set_sino(struct fs *fs, struct node *n, uint64_t sino);
int node_load_xattrs(struct fs *fs, struct node *n);
bool xattr_is_ours(const char *key);	/* tells a state; users cannot set it (xattr.c) */
#define DEVICE_KEY "user.cairn.device"	/* the one of user.cairn.* that users set, not listed either */
void xattr_put(struct node *n, const char *key, const void *val, uint32_t len);
bool xattr_drop(struct node *n, const char *key);
/* Has the store all that is at n or below, safely? (xattr.c) */
bool node_all_durable(struct fs *fs, struct node *n);
/* A path for people, relative to the mount. */
void node_path(struct fs *fs, struct node *n, char *buf, size_t cap);
int node_open_store(struct fs *fs, struct node *n);
/* A LOOKUP found nothing: remembered until the next record. */
void tree_absent(struct fs *fs, struct node *dir, const char *name);
/* As tree_lookup, for CREATE: what LOOKUP has just found absent is so still. */
int tree_lookup_again(struct fs *fs, struct node *dir, const char *name, struct node **out);
/* Before n loses a name: who looked it up may be about to open it, or hold it by O_PATH. */
void node_keep_bytes(struct fs *fs, struct node *n);
/* Closes a descriptor of a store file, without freeing its blocks under the lock. */
void store_fd_close(struct fs *fs, int fd);
/* Has effect once nobody can open or read n any more. */
void node_drop_bytes(struct fs *fs, struct node *n);

/* Points r at n as the store has it (name "" = the root itself). */
void rec_aim(struct fs *fs, struct rec *r, struct node *n);

/* ---- apply.c: records become tree ---- */
int fs_record(struct fs *fs, struct rec *r);	/* log it, then apply it */
void fs_apply(struct fs *fs, const struct rec *r);
int fs_replay(void *fs, const struct rec *r);
int fs_emit(void *fs, struct staging *s);
struct handle *handle_find(struct fs *fs, uint64_t fh);
void handle_free(struct fs *fs, struct handle *h);
int fs_flushed(struct fs *fs, struct node *n);
int fs_seal(struct fs *fs, struct node *n, bool closed, uint64_t *seq);
/* n is about to be renamed over victim at d. A shard of a committed checkpoint says of itself that
 * it was replaced, in the store before it has that name (DURABILITY, Safe checkpoints). */
int fs_replaces(struct fs *fs, struct node *n, const struct node *victim, const struct dentry *d);
void fs_learned(struct fs *fs, struct node *n, struct dentry *d);	/* logs REC_NODE */

/* ---- fork.c; lock held ---- */
int fork_node(struct fs *fs, struct node *n);	/* -ESTALE: done, look the name up again */
/* Answers ESTALE for the forked node n once the kernel has forgotten its names. */
void fork_answer(fuse_req_t req, struct fs *fs, struct node *n);
/* The same for the names of n, a fork's new node, where the answer cannot wait. */
void fork_tell(struct fs *fs, struct node *n);
/* Was n made for a writer that is still to come? The kernel, which finds n in place of the
 * old node, forgets n once before it looks it up in earnest. */
bool fork_awaited(const struct node *n);
/* A reader waits for that writer: were it first, n would be forked again, and the kernel
 * asks again only once. */
void fork_await(struct fs *fs, struct node *n);
void fork_came(struct fs *fs, struct node *n);	/* the writer */

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

/* ---- answers ---- */
int reply_entry(fuse_req_t req, struct fs *fs, struct node *n);	/* lock held */
double attr_timeout(const struct node *n);
void fill_entry(struct fs *fs, struct node *n, const struct stat *st, struct fuse_entry_param *e);
struct rec rec_new(uint32_t type);
struct rec rec_staged(const struct node *n);	/* n->sf is its version; no request made it */
bool name_is_control(uint64_t parent, const char *name);

/* ---- session.c ---- */
/* Called before this thread waits for the store, for a copy, for another thread: lets
 * another one read meanwhile. Not with the tree lock held for long; any number of times. */
void session_may_block(struct fs *fs);
/* The same, before some 100 us of work, where requests wait already. */
void session_may_take_long(struct fs *fs);
/* Calls fn(arg), which answers this thread's request and may take half a minute, on a thread of its
 * own, so that those that answer are not all held up at once; where there is none to be had, here. */
void session_apart(struct fs *fs, void (*fn)(void *arg), void *arg);
void release_barrier(struct fs *fs);	/* waits for RELEASEs the kernel sent before this request */
int session_run(struct fs *fs, const void *init, size_t init_len, bool resend);

/* ---- operations ---- */
extern const struct fuse_lowlevel_ops fs_ops;
void op_init(void *userdata, struct fuse_conn_info *conn);
void op_lookup(fuse_req_t, fuse_ino_t, const char *);
void op_forget(fuse_req_t, fuse_ino_t, uint64_t);
void op_forget_multi(fuse_req_t, size_t, struct fuse_forget_data *);
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
void op_fsyncdir(fuse_req_t, fuse_ino_t, int, struct fuse_file_info *);
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
/* Makes n's bytes writable: a new version, or the old one again. May drop the lock
 * while it copies. -ESTALE: its readers keep it, look the name up again. */
int node_make_writable(struct fs *fs, struct node *n, bool trunc);
void node_wait_busy(struct fs *fs, struct node *n);	/* may drop the lock */
/* Before a change is recorded: a log that is too long is written anew first. Lock not held; may wait. */
void log_room(struct fs *fs);
/* Makes a handle and answers, with the entry too if it is made. Lock held. */
int open_handle(fuse_req_t req, struct fs *fs, struct node *n, struct fuse_file_info *fi, bool create);
/* Resent after a restart and done already: answers. Lock held. */
bool answered_open(fuse_req_t req, struct fs *fs, struct fuse_file_info *fi, bool create);
/* Room in the store for its bytes. -EAGAIN: staged_reserve_later() waits for it. Lock not held. */
int node_reserve_now(struct fs *fs, struct staged *sf);
int node_seal_closed(struct fs *fs, struct node *n);
/* Seals what n has now and answers when that is durable (P3): a write (written bytes) or an fsync. Lock not held. */
void sync_and_reply(fuse_req_t req, struct fs *fs, struct node *n, bool is_write, size_t written);
void retry_failed(struct fs *fs);
void seal_restored(struct fs *fs);
void seal_late(struct fs *fs);
unsigned close_all(struct fs *fs);	/* the connection is gone; returns files left unclosed */

/* ---- readdir.c ---- */
/* Calls fn for the names in dir, until it returns non-zero. Lock held. */
int dir_names(struct fs *fs, struct node *dir, int (*fn)(void *arg, const char *name), void *arg);

/* ---- views*.c: MOUNT/.cairn/views; see views.h ---- */
#define VIEWS_DIR 15ull		/* the directory itself */
#define VIEWS_FIRST (1ull << 63)	/* and all below it; staging's ids never come here */
static inline bool is_view(uint64_t id) { return id == VIEWS_DIR || id >= VIEWS_FIRST; }
void views_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void views_getattr(fuse_req_t req, fuse_ino_t id);
void views_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi);
void views_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t off);
void views_lseek(fuse_req_t req, fuse_ino_t id, off_t off, int whence);
void views_release(fuse_req_t req, struct fuse_file_info *fi);
void views_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, bool plus);
void views_forget(uint64_t id, uint64_t count);	/* the tree lock may be held */

/* ---- control.c: MOUNT/.cairn ---- */
#define CONTROL_DIR 2ull
#define CONTROL_LAST 15ull
/* Directories below it have ids of their own: a bit that no other id has, which tree, a hash of
 * the path in it. */
enum control_tree { CONTROL_LATEST, CONTROL_BUFFERS };
#define CONTROL_TREE_BIT (1ull << 62)
static inline uint64_t control_tree_id(enum control_tree t, uint64_t hash)
{
	return CONTROL_TREE_BIT | (uint64_t)t << 56 | (hash & ((1ull << 56) - 1));
}
static inline bool is_control(uint64_t id)
{
	return (id >= CONTROL_DIR && id <= CONTROL_LAST) || id & CONTROL_TREE_BIT || is_view(id);
}
void control_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void control_getattr(fuse_req_t req, fuse_ino_t id);
void control_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi);
void control_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, struct fuse_file_info *fi);
void control_write(fuse_req_t req, fuse_ino_t id, const char *buf, size_t size, struct fuse_file_info *fi);
void control_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi);
void control_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, bool plus);
void control_readlink(fuse_req_t req, fuse_ino_t id);
void control_forget(uint64_t id, uint64_t count);
int control_stat(struct fs *fs, uint64_t id, struct stat *st);

/* ---- buffers.c: MOUNT/.cairn/buffers; the lock is held but for the first four ---- */
#define BUFFERS_DIR control_tree_id(CONTROL_BUFFERS, 0)
void buffers_lookup(fuse_req_t req, uint64_t parent, const char *name);	/* CONTROL_DIR: itself */
void buffers_getattr(fuse_req_t req, uint64_t id);
void buffers_readdir(fuse_req_t req, uint64_t id, size_t size, off_t off, bool plus);
void buffers_create(fuse_req_t req, const char *name, mode_t mode, struct fuse_file_info *fi);
void buffers_apply(struct fs *fs, const struct rec *r);		/* REC_BUFFER */
void buffers_apply_commit(struct fs *fs, struct node *n, const struct rec *r);	/* n's xattrs are in r */
int buffers_emit(struct fs *fs);	/* before any REC_OPEN of them is */
void buffers_closed(struct fs *fs, struct node *n);	/* a handle of n is no more: was it the last? */
void buffers_restored(struct fs *fs);	/* after a replay; takes the lock: those without a handle end */
/* For nodes with n->buf. */
struct buffer *buffers_hold(struct node *n);	/* a reference, the caller's; NULL: n is no buffer */
int buffers_backing(struct node *n);	/* a descriptor, n's own */
const char *buffers_state(struct node *n);
uint64_t buffers_blocks(struct node *n);
int buffers_resize(struct fs *fs, struct node *n, uint64_t size);	/* drops the lock meanwhile */
/* link(2) of n: *out is the new file. -EBUSY: it is committed already. Drops the lock meanwhile. */
int buffers_commit(fuse_req_t req, struct fs *fs, struct node *n, fuse_ino_t parent, const char *name,
		   struct node **out);

/* ---- latest*.c: MOUNT/.cairn/latest; answered by a thread of its own ---- */
void latest_lookup(fuse_req_t req, uint64_t parent, const char *name);	/* CONTROL_DIR: itself */
void latest_getattr(fuse_req_t req, uint64_t id);
void latest_readlink(fuse_req_t req, uint64_t id);
void latest_readdir(fuse_req_t req, uint64_t id, size_t size, off_t off, bool plus);
void latest_forget(uint64_t id, uint64_t count);
/* The newest safe checkpoint below the mount's directory path, relative to it; ENODATA: none. */
void latest_xattr(fuse_req_t req, const char *path, size_t size);
void latest_stop(void);		/* the connection is gone: waits for the thread */

/* ---- main.c's helpers ---- */
int options_parse(int argc, char **argv, struct fs_opts *o, struct fuse_args *rest);
void to_background(struct fs *fs);
int keeper_run(struct fs *fs, struct fuse_args *rest);
int worker_run(struct fs *fs, int fuse_fd, const void *init, size_t init_len, bool first);
int trust_drop(struct fs *fs);

#endif

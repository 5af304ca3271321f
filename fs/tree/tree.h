/* SPDX-License-Identifier: MIT
 * The live tree: names and nodes that the kernel knows, over what the store has; versions of files,
 * handles, and the records that all of these change by. It depends neither on libfuse nor on how an
 * answer looks.
 *
 * The tree lock is held where a function is called, unless its comment says otherwise.
 */
#ifndef CAIRN_FS_TREE_H
#define CAIRN_FS_TREE_H

#include "fs/base/base.h"

#define BLKSIZE (1u << 20) /* st_blksize: Python takes the size of its buffers from it */
/* memory of a file from this size on is allocated without the tree lock */
#define LARGE_FILE (8u << 20)

#define TREE_SCOPE(fs)                                                                             \
	pthread_mutex_t *tree_scope_ __attribute__((cleanup(scope_unlock), unused)) =              \
		scope_lock(&(fs)->tree.lock)

/* Does this thread hold the tree lock? For debug builds and tests; glibc's mutexes know their
 * owner. */
static inline bool tree_is_locked_here(struct fs *fs)
{
	return fs->tree.lock.__data.__owner == gettid();
}

static inline uint64_t fs_applied(struct fs *fs)
{
	return fs->s ? staging_applied(fs->s) : UINT64_MAX;
}

/* Where the change that was accepted as seq is in the order now: this, and not seq, is compared
 * with an `applied` that was read before. */
static inline uint64_t fs_place_of(struct fs *fs, uint64_t seq)
{
	return fs->s ? staging_place_of(fs->s, seq) : seq;
}

static inline bool fs_is_applied(struct fs *fs, uint64_t seq)
{
	uint64_t applied = fs_applied(fs);
	return fs_place_of(fs, seq) <= applied;
}

/* ---- nodes, names, handles ---- */

struct node;
struct fs_buffer;

/* A name. node NULL: a whiteout, removed here and perhaps still in the store. */
struct dentry {
	struct dentry *hash_next;
	struct dentry *sib_prev, *sib_next; /* in the directory */
	struct dentry *name_next; /* of the node */
	struct node *dir, *node;
	/* the last record that changed it; the store has it once applied */
	uint64_t seq;
	/* when all records are applied, the store has something by this name, */
	bool store_has;
	bool ordered; /* and it is this node */
	/* What commits a checkpoint came when a close or an fsync had been answered for the bytes
	 * that had this name and were not sealed yet. */
	bool committed;
	bool is_whiteout; /* it is in fs->tree.whiteouts, linked by the next two */
	struct dentry *whiteout_prev, *whiteout_next;
	char name[];
};

struct xattr {
	struct xattr *next;
	uint32_t len;
	char *key;
	char val[];
};

/* Where the store has a file now, and where records that are not applied yet will put it. */
struct place {
	struct place *next;
	uint64_t seq; /* valid once this record is applied */
	uint64_t dir;
	char name[];
};

/* As stat(2) shows it; tree.c, apply.c. */
struct attributes {
	mode_t mode;
	uid_t uid;
	gid_t gid;
	dev_t rdev;
	nlink_t nlink; /* directories: the live count; the store's when clean */
	nlink_t unknown; /* others: names in the store that were not looked up yet */
	struct timespec atime, mtime, ctime;
	uint64_t size, blocks; /* when last seen */
};

/* Records that changed it, by their places in the order; apply.c. */
struct node_seqs {
	uint64_t dirty; /* the last on the node itself */
	uint64_t born; /* makes it in the store; UINT64_MAX: none does yet */
	uint64_t names; /* directories: the last change of their names */
	/* directories: the newest of the names dropped here because the store has them */
	uint64_t forgot;
	/* files: the last change of the number of names; UINT64_MAX: the store has one that is
	 * not ours any more and does not tell when it goes */
	uint64_t links;
	uint64_t seal;
	/* the store has it by this record's name, though the record is not yet applied in full */
	uint64_t placed;
	/* the last on the node, its names, or anything that is or was below it */
	uint64_t below;
};

/* latest/below.c: the least advanced at or below it, as of the look with this number. */
struct node_look {
	uint64_t nth;
	int rank; /* enum below_rank */
};

/* As the store has it; node.c, tree.c. */
struct node_stored {
	uint64_t ino, birth; /* of the store file when last seen; its birth (io_stat_born) */
	dev_t dev; /* directories: of their filesystem; 0: not known */
	bool adopt; /* a version of ours replaced it: take what is there */
	bool missed; /* it was not there, and that is logged */
	struct place *places; /* files: oldest first */
	/* its store file, unlinked while the kernel knew the node; -1: none */
	int kept_fd;
	/* staging gives it a name in tmp/ before it has none: staging_retain() */
	bool retained;
};

/* Its bytes, from a writer's open to the seal; version.c, ops/close.c. */
struct node_version {
	bool sealed; /* the order has a version of it */
	/* was open O_RDWR since the last seal: mapped writes are possible */
	bool rdwr;
	/* its last version replaced a committed one: CKPT_OVER_KEY; NULL */
	char *over;
	/* of which save it is: KEY_SAVE (save_tag.c); "": it has no mark; NULL: not sealed yet */
	char *save;
	bool counted; /* it committed that save */
	int close_error; /* a close that found no space */
	/* a close was answered with success: its seal is not refused any more */
	bool accepted;
	uint64_t accepted_nth; /* the number of that close */
	struct staged_moment flushed; /* as it was then */
};

/* Passthrough; ops/open.c. */
struct backing {
	int32_t id; /* 0: none */
	unsigned users;
};

/* fork.c */
struct node_fork {
	/* the node that has its names since a writer came while readers kept this version */
	uint64_t to;
	/* such a writer is about to open this one, readers wait; CLOCK_MONOTONIC */
	uint64_t awaited_ns;
};

/* Hashes of the names that the store may have in a directory: all that it had when it was listed,
 * or none when it was made here, and those that were dropped from the tree since. */
struct store_names {
	size_t n, cap;
	uint64_t *hash;
};

struct node {
	struct node *hash_next, *store_ino_next, *free_next;
	uint64_t id, ino, nlookup;
	bool pinned; /* restored after a restart: the kernel's count is not known */
	/* its bytes are being copied, made or cut; wait on fs->tree.busy_cond */
	bool busy;
	/* threads that dropped the lock and will use it again: it is not freed */
	unsigned refs;
	unsigned waits; /* requests that wait for it (ops/wait.c): it is not freed */
	bool free_queued; /* on the list of nodes that are freed when clean */
	uint64_t changed; /* fs->tree.changes when something of it last changed here */
	struct attributes attr;
	struct node_seqs seq;
	struct node_look look;
	struct node_stored stored;

	struct dentry *names;
	struct dentry *children; /* directories: changed names, whiteouts included */
	struct store_names *store_names; /* directories; NULL: not known */
	char *target; /* symlinks that are not yet in the store */
	struct xattr *xattrs;
	bool xattrs_loaded;

	struct staged *sf; /* bytes in staging; NULL: the store's */
	struct fs_buffer *buf; /* not NULL: it is a buffer and no file */
	unsigned handles, writers;
	struct node_version version;
	enum lane lane; /* of the last open */
	struct backing backing;
	struct node_fork fork;
};

struct handle {
	struct handle *hash_next;
	uint64_t fh;
	struct node *node;
	struct staged *sf; /* NULL: store file or control text */
	int fd; /* of a store file, for reads in the relay lane; -1 */
	int flags; /* of open(2) */
	bool writer, uses_backing, uses_sf, flushed;
	bool counted; /* in the share of the user who opened it: */
	uint32_t uid;
	enum lane lane;
};

/* ---- ask.c: questions to the store ---- */

#define ASK_AGAIN (-ERESTART)
#define ASK_VALUE_MAX 256u

struct listed_name {
	char *name;
	uint64_t ino, asked, applied;
	mode_t type;
	bool gone, doubt; /* doubt: the next question is about this name alone */
};
struct listed {
	struct listed_name *v;
	size_t n;
	bool read;
	unsigned rounds;
	uint64_t asked, applied;
};
/* NULL: not among them */
struct listed_name *listed_find(const struct listed *l, const char *name);

/* An operation that may have to ask:
 *
 *	ask_begin();
 *	do {
 *		TREE_SCOPE(fs);
 *		err = ...;	(ASK_AGAIN if it came from the functions below)
 *	} while (ask_store(fs, err));
 *
 * ask_store: no lock held. Asks and returns true where err is ASK_AGAIN; else it ends the operation
 * and returns false. */
void ask_begin(void);
bool ask_store(struct fs *fs, int err);
void ask_end(void); /* instead of the last ask_store() */
/* releases nodes that were kept for operations that have ended */
void ask_let_go(struct fs *fs);

/* These return what the store says, its errors included; or ASK_AGAIN. */
int ask_link(struct fs *fs, struct node *n, char *buf, size_t cap);
int node_load_xattrs(struct fs *fs, struct node *n); /* into n, once */
/* cap <= ASK_VALUE_MAX */
ssize_t ask_value(struct fs *fs, struct node *n, const char *key, char *buf, size_t cap);
/* Of a directory: -EXDEV: the store does not rename it; 0: it may; ASK_AGAIN, -ENOMEM. */
int ask_may_move(struct fs *fs, struct node *dir, const char *name);
/* *out is valid until the next question; empty if the store says that there is no directory. */
int ask_list(struct fs *fs, struct node *dir, struct listed **out);
/* Asks again: about the names in doubt, or about all where !read. */
int ask_list_again(struct fs *fs, struct node *dir);

/* the store says that it is not there; any other error is no answer */
bool name_is_absent(int err);
/* not there, or not for us; any other error is no answer */
bool xattr_is_absent(ssize_t err);

/* ---- rec.c, apply.c, seal.c, emit.c: records ---- */

struct rec rec_new(uint32_t type);
/* Sets in r where the store has n (name "": the root itself). */
void rec_aim(struct fs *fs, struct rec *r, struct node *n);
int fs_record(struct fs *fs, struct rec *r); /* logs it, then applies it; 0 or -errno */
void fs_apply(struct fs *fs, const struct rec *r);
int fs_replay(void *fs, const struct rec *r); /* for staging_replay() */
/* A record is logged and cannot be applied: the process ends, and the next worker replays it. */
_Noreturn void no_memory(void);
int fs_flushed(struct fs *fs, struct node *n);
int fs_seal(struct fs *fs, struct node *n, bool closed, uint64_t *seq);
/* n is about to be renamed over victim at d. A shard of a committed checkpoint gets a mark that it
 * was replaced, in the store before it has that name (DURABILITY, Safe checkpoints). */
int fs_replaces(struct fs *fs, struct node *n, const struct node *victim, const struct dentry *d);
int fs_emit(void *fs, struct staging *s); /* for staging_rotate() */
/* Before a change is recorded: rotates a log that is too long. Lock not held; may wait. */
void log_space(struct fs *fs);

/* ---- node.c, tree.c: nodes and names ---- */

int tree_init(struct fs *fs); /* lock not held */
struct node *node_find(struct fs *fs, uint64_t id); /* NULL: there is none */
/* The same, but the node that has the names of a forked one now; the last one if the file is gone.
 * For what is asked about the file and not about the version that a descriptor keeps. */
struct node *node_current(struct fs *fs, uint64_t id);
nlink_t node_links(const struct node *n); /* st_nlink */
void node_release(struct fs *fs, struct node *n); /* frees it once nothing needs it */
/* so many of the kernel's references */
void node_forget(struct fs *fs, uint64_t id, uint64_t count);
void node_gc(struct fs *fs);
bool node_dirty(struct fs *fs, const struct node *n);
struct dentry *dentry_find(struct fs *fs, struct node *dir, const char *name);
bool dentry_dirty(struct fs *fs, const struct dentry *d);
const struct place *node_place(struct fs *fs, struct node *n);
uint64_t name_changed(struct fs *fs, uint64_t dir, const char *name);
/* takes the reference */
void node_set_sf(struct fs *fs, struct node *n, struct staged *sf);
/* Drops n->sf if it was evicted, or spilled and published. */
void node_check_sf(struct fs *fs, struct node *n);
/* Waits while another thread copies or makes n's bytes. May drop the lock. */
void node_wait_busy(struct fs *fs, struct node *n);
bool xattr_is_ours(const char *key); /* a state; users cannot set it */
/* for messages; from the mount */
void node_path(struct fs *fs, struct node *n, char *buf, size_t cap);
struct handle *handle_find(struct fs *fs, uint64_t fh);
/* The node at dir/name, learned from the store if need be. 0, -ENOENT, ASK_AGAIN. Any other error
 * is the store's and says nothing about the name: what is known of it stays. */
int tree_lookup(struct fs *fs, struct node *dir, const char *name, struct node **out,
		struct dentry **dout);
/* The same for CREATE: a name that LOOKUP has just not found is not asked for again. */
int tree_lookup_again(struct fs *fs, struct node *dir, const char *name, struct node **out);
/* dir has these names in the store, and no others */
void tree_listed(struct fs *fs, struct node *dir, const struct listed *l);
/* a LOOKUP found nothing */
void tree_absent(struct fs *fs, struct node *dir, const char *name);
/* What is shown of n: asked of the store first where it is the store's to say (0, ASK_AGAIN); or as
 * it is known. */
int node_stat(struct fs *fs, struct node *n, struct stat *st);
void node_attr(struct fs *fs, struct node *n, struct stat *st);
/* a descriptor, the caller's; -errno; ASK_AGAIN */
int node_open_store(struct fs *fs, struct node *n);
/* Before n loses a name: a process that looked it up may be about to open it, or hold it by O_PATH.
 */
int node_keep_bytes(struct fs *fs, struct node *n); /* 0, ASK_AGAIN */
/* After a replay, before anything is published: opens files without names again for their readers.
 * Lock not held. */
void nodes_keep_again(struct fs *fs);

/* ---- version.c, expect.c: versions of files ---- */

/* Makes n's bytes writable: a new version, or the old one again. May drop the lock while it copies.
 * flags: those of the open; O_TRUNC matters, and whether it can only append.
 * -ESTALE: readers keep it, look the name up again. -EINPROGRESS as node_await(). */
int node_make_writable(struct fs *fs, struct node *n, int flags);
/* As node_wait_busy(), for an operation that can begin again. -EINPROGRESS: this is one of the few
 * threads that answer, which must not wait; session_offload() begins it again, and waits. */
int node_await(struct fs *fs, struct node *n);
/* n->sf; drops the lock, n is busy meanwhile */
int node_resize(struct fs *fs, struct node *n, uint64_t size);
/* The open for which n was made writable failed: n is as before; `was` is the n->sf of that time.
 */
void node_take_back(struct fs *fs, struct node *n, struct staged *was);
/* Allocates its blocks in the store. -EAGAIN: staged_allocate_later() waits for space. Lock not
 * held.
 */
int node_allocate_now(struct fs *fs, struct staged *sf);
int node_seal_closed(struct fs *fs, struct node *n);
/* After a write to sf, which had failed `before`: logs whether it is whole now. Lock not held. */
void node_torn(struct fs *fs, struct node *n, struct staged *sf, int before);
/* Before n's times are set: memory that is allocated ahead of its writer would change them. 0; as
 * node_stat(). May drop the lock; the caller holds n. */
int node_end_ahead(struct fs *fs, struct node *n);
/* The last writer of n->sf closed it and changed nothing. May drop the lock. */
void node_unchanged(struct fs *fs, struct node *n);
/* Lock not held by these: */
void retry_failed(struct fs *fs);
/* *id: the node, whose pages the kernel must drop. -EINVAL, -EBUSY, -EAGAIN; -ENODATA: the store
 * has nothing of it. */
int discard_failed(struct fs *fs, uint64_t ino, uint64_t *id);
void close_restored(struct fs *fs); /* handles of a connection that is gone */
void seal_restored(struct fs *fs);
/* the connection is gone; returns files that were left open */
unsigned close_all(struct fs *fs);

/* expect.c: how large a new file will be; 0: not known */
uint64_t expect_size(struct fs *fs, struct node *dir, const char *name);
/* Asks the store, the first time for a shape. Drops the lock meanwhile. */
uint64_t expect_from_store(struct fs *fs, struct node *dir, const char *name);
void expect_note(struct fs *fs, struct node *n, uint64_t size);
/* As large as what n has staged, whose last writer has closed it: its bytes, without holes. */
void expect_of(struct fs *fs, struct node *n);

/* ---- fork.c ---- */

/* n is a fork's new node: the kernel must forget that its names lead to the old one. True: it will
 * be told, and then another thread calls then(arg), unless then is NULL. False: there is nothing to
 * tell, or it cannot be told. */
bool fork_tell(struct fs *fs, struct node *n, void (*then)(void *arg), void *arg);
/* A reader waits for the writer that n was forked for: were the reader first, n would be forked
 * again, and the kernel asks again only once. 0; -EINPROGRESS as node_await(). */
int fork_await(struct fs *fs, struct node *n);

/* ---- node.c ---- */

/* fs: a struct fs. What requests wait for may have come: their thread looks. Any lock up to
 * waits.lock may be held. */
void waits_wake(void *fs);

/* ---- share.c: what one user may take ---- */

int share_of_files(uint32_t uid); /* 0: uid may open one more; -EMFILE */
/* 0: so many bytes more; -ENOSPC */
int share_of_buffers(const struct fs *fs, uint32_t uid, uint64_t taken, uint64_t more);

/* ---- reach.c: paths that no caller walked; lock not held ---- */

struct caller { /* who sent a request */
	uid_t uid;
	gid_t gid;
	gid_t *groups; /* supplementary ones; caller_free() */
	int n_groups; /* negative: not known */
};
void caller_free(struct caller *c);
/* want: 4 read, 2 write, 1 search, as the bits of a mode for others */
bool caller_may(const struct caller *c, const struct stat *st, unsigned want);
/* The node at a path below the root, if `who` (NULL: the daemon) may search each directory on the
 * way, as the store has it (node_attr). Takes and keeps the tree lock only if it succeeds: call
 * reach_done() then. -EACCES, -ENOENT, -ENOTDIR, ... */
int reach(struct fs *fs, const struct caller *who, const char *path, struct node **out);
void reach_done(struct fs *fs, struct node *n);
/* The same, and may `who` do what `want` says with it? *st is filled with -EACCES, too, but must
 * not be shown to the caller then. */
int reach_stat(struct fs *fs, const struct caller *who, const char *path, unsigned want,
	       struct stat *st);

/* Opens a path of the store below fd, to read, without following symlinks: a descriptor or
 * -errno. */
int reach_open(int fd, const char *path, int flags);

/* ---- buffer_node.c: buffers as nodes ---- */

struct node *buffers_find(struct fs *fs, const char *name);
/* st: its mode and owner. *out has no handle yet; buffers_closed() ends it without one. Takes b. */
int buffers_make(struct fs *fs, struct buffer *b, const char *name, uint64_t size,
		 const struct stat *st, struct node **out);
/* a handle of n is gone: was it the last? */
void buffers_closed(struct fs *fs, struct node *n);
/* after a replay, lock not held: those without a handle end */
void buffers_restored(struct fs *fs);
uint64_t buffers_of(struct fs *fs, uint32_t uid); /* bytes */
/* For nodes with n->buf. */
/* a reference, the caller's; NULL: n is no buffer */
struct buffer *buffers_ref(struct node *n);
int buffers_backing(struct node *n); /* a descriptor, n's own */
const char *buffers_state(struct node *n);
/* drops the lock meanwhile */
int buffers_resize(struct fs *fs, struct node *n, uint64_t size);
int buffers_lend(struct node *n, uint64_t id, struct staged **sf); /* as buffer_lend() */

/* ---- save_tag.c: which save of its directory a version is of; 0 or ASK_AGAIN ---- */

#define SAVE_TAG_BYTES 128u
struct save_tag {
	uint64_t n; /* saves of that directory that were committed before */
	bool stale; /* its host writes it again for the same save; n is 0 */
	char key[IO_SAVE_KEY]; /* stands for the directory */
	char host[72]; /* that wrote it */
	uint64_t size; /* of the version; 0: the mark does not say */
};
/* The mark for a version of dir/name that is sealed now; "": it gets none. */
int save_tag_of(struct fs *fs, struct node *dir, const char *name, char text[SAVE_TAG_BYTES]);
/* Before n gets the name dir/name: if that commits a save, the next one begins. */
int save_commits(struct fs *fs, struct node *n, struct node *dir, const char *name);
/* The same for a close of n, by the names that it has; its seal or FLUSH is in the log. */
int save_flushed(struct fs *fs, struct node *n);
bool save_tag_parse(const char *text, struct save_tag *out);
/* The mark in the value of KEY_INO; "": there is none. */
const char *save_mark_in(const char *value);
bool save_has_tag(const char *name); /* are files of this name marked? */

/* ---- commit.c: for struct staging_hold ---- */

/* the directory that users see as ino; 0: none is known */
uint64_t commit_dir(struct fs *fs, uint64_t ino);
#define COMMIT_NAME ".metadata"
bool commit_is_name(const char *name);
enum staging_missing commit_missing(void *fs, uint64_t seq, uint64_t dir, int dirfd, int fd,
				    char *what, size_t cap);

/* ---- upkeep.c ---- */

int upkeep_start(struct fs *fs);
void upkeep_join(struct fs *fs); /* fs->stopping is set */

#endif

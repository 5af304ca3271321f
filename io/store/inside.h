/* SPDX-License-Identifier: MIT
 *
 * The open store.
 */
#ifndef CAIRN_IO_STORE_INSIDE_H
#define CAIRN_IO_STORE_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "store.h"

#define IO_ID_LEN 32

struct io_fs {
	enum io_fs_kind kind;
	bool ext4_journal; /* ext4 with a journal */
	bool overlay; /* overlayfs */
	/* blocks of a removed file are reused before its removal is durable */
	bool frees_early, frees_at_close; /* store.h */
};

/* The longest file, and the longest target of a symlink (store.h). */
struct io_store_max {
	uint64_t file;
	size_t link;
};

#define IO_LEND_MAX 3u /* objects of one operation */

struct io_lent {
	int fd; /* O_PATH */
	dev_t dev;
	ino_t ino;
	mode_t was;
	char mark[8]; /* "": it has none */
};

struct io_lending { /* lend.c */
	pthread_mutex_t lock; /* over busy, n and now; not held while the store is asked */
	pthread_cond_t cond;
	bool busy; /* an operation that lends, or sets a mode; others wait for cond */
	struct io_lent now[IO_LEND_MAX]; /* its objects */
	unsigned n;
	atomic_uint changes; /* such operations begun, counted */
	atomic_bool left; /* a mode could not be put back */
};

struct io_own_claim {
	_Atomic uint64_t ino; /* 0: it has made none; hosts.c */
	bool took_over; /* store.h */
	atomic_bool others; /* io_store_shared() has said so; never false again */
};

struct io_store {
	struct io_engine *e;
	char *path;
	bool ro;
	bool away; /* io_store_detach: there are no descriptors */
	int root; /* O_PATH */
	int root_rd; /* O_RDONLY: syncfs and fstatfs take no O_PATH */
	int cairn; /* STORE/.cairn; -1 = none (ro only) */
	int host; /* STORE/.cairn/<host>; -1 with ro */
	bool made_host; /* this open created it */
	char host_name[72]; /* that <host>; "" with ro */
	unsigned host_number; /* store.h */
	int tmp, lostfound, meta, previous;
	int lock;
	int locked_by; /* pid of the process that took it */
	int mark; /* see mark.c; -1 = none */
	char id[IO_ID_LEN + 1];
	struct io_fs fs;
	struct io_own_claim claim;
	bool has_xattr;
	size_t xattr_space;
	struct io_store_max max;
	_Atomic int64_t no_quotas; /* there are none; valid until this second */
	atomic_uint serial; /* for names in tmp/ that are not versions */
	struct io_lending lend;
	pthread_mutex_t meta_lock; /* read-modify-write of a sidecar */
	struct io_asker *asker; /* silent.c; NULL: none */
	atomic_ullong asked_ns; /* its call that has not returned began then; 0: none */
};

/* A file of our own, for a sync to find out through it whether ext4's journal still works
 * (engine/calls.c); -1: another filesystem. */
static inline int io_store_journal(const struct io_store *s)
{
	return s->fs.ext4_journal ? s->lock : -1;
}

static inline void io_check(struct io_store *s)
{
	io_engine_run_check(s->e);
}

/* Is it one of .cairn's own names, and no host's? */
bool io_cairn_name_is_taken(const char *name);
/* The hostname, or `wanted`, as a valid component different from .cairn's own names. */
void io_store_host_name(const char *wanted, char out[72]);
/* *out: the number of host in the store (number.c). claim: gives it one if it has none. 0; -ENOENT:
 * it has none; -EUSERS: all are taken; or as symlink(2). */
int io_host_number(int cairn, const char *host, bool claim, unsigned *out);
/* STORE/.cairn/id. 0; -ENOENT; -EBADMSG: it exists, but is not an id. */
int io_store_read_id(int cairn, char id[IO_ID_LEN + 1]);
/* 0; -EINVAL: not one component; -ENAMETOOLONG. */
int io_name_check(const char *name);
/* openat2 beneath dirfd, one component, no symlinks. Descriptor or -errno. */
int io_open_beneath(int dirfd, const char *name, int flags, mode_t mode);
/* lend.c: an operation on objects whose mode may deny their owner, as whom we run. */
struct io_object {
	int dirfd;
	const char *name; /* NULL: dirfd itself */
	bool dir; /* only if it is a directory */
};
typedef ssize_t (*io_lent_fn)(struct io_store *s, void *ctx);
ssize_t io_lent_call(struct io_store *s, void *call); /* io_call_run, as an op */
/* Returns what op does. If that is -EACCES: once more, while the owner has all rights to `on`, at
 * most IO_LEND_MAX objects, a directory before what is in it. */
ssize_t io_lend(struct io_store *s, const struct io_object *on, unsigned n, io_lent_fn op,
		void *ctx);
/* The same for an op that sets a mode: not while it is lent. */
ssize_t io_lend_alone(struct io_store *s, const struct io_object *on, unsigned n, io_lent_fn op,
		      void *ctx);
/* What op reads in *st is no mode that is only lent. */
ssize_t io_not_lent(struct io_store *s, io_lent_fn op, void *ctx, struct stat *st);
/* Opens it so; name NULL: dirfd itself, for its names. Descriptor or -errno. */
int io_open_lent(struct io_store *s, int dirfd, const char *name, int flags);
/* A name in tmp/ that no version has ("l" + 15 hex digits). */
void io_scratch_name(struct io_store *s, char out[17]);
/* A FUSE filesystem may open with O_DIRECT and then refuse each write, since what it hands on is
 * not aligned; without O_DIRECT from the beginning it takes them. */
void io_tmp_probe(struct io_store *s);
/* Opens s->mark, creates it if missing. */
int io_mark_open(struct io_store *s);
/* Who serves the store as this host (claim.c). */
struct io_claim {
	struct io_host of; /* of.instance "": nobody */
	char alive[IO_INSTANCE + 1]; /* the instance in "alive": of's, or that of one before it */
};
/* Whose claim is there? 0: nobody's, ours, or a dead one's, if the caller has the lock.
 * -EADDRINUSE: another's, which may live: it reaches the store by another client. Or as open(2). */
int io_claim_look(struct io_store *s, struct io_claim *c);
/* A store is opened: a claim that this process had and lost is not made again under its name, since
 * there may still be one after it. */
void io_claim_begin(const struct io_claim *c);
/* Makes ours after `dead`, as io_claim_look found it; the caller has the lock. -EADDRINUSE: another
 * was first. Or as open(2), link(2); nothing is changed then. */
int io_claim_take(struct io_store *s, const struct io_claim *dead);
/* What a host says in an open file, and in a file of dir. 0; -ENOENT: it says nothing; -errno. */
int io_said_write(int fd, const struct io_host *h);
int io_said_read(int dir, const char *file, struct io_host *h);
bool io_host_is_us(const struct io_host *h); /* of this process, or of one that forked it */
/* A second name for the file, or where there are no links another one. -EEXIST; -EOPNOTSUPP: no
 * RENAME_NOREPLACE either. */
int io_name_new(int fromdir, const char *from, int todir, const char *to);
/* Sets kind, ext4_journal and overlay of the filesystem that fd is on. */
int io_fs_kind(int fd, struct io_fs *out);
/* ext4 with data=writeback. */
bool io_fs_frees_early(int fd);
/* As io_store_open found the store: writable, with user xattrs? */
bool io_xattr_probe(int fd, bool ro);
size_t io_xattr_space(int fd); /* as io_store_xattr_space; fd writable, with xattrs */

#endif

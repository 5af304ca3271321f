/* SPDX-License-Identifier: MIT
 *
 * The table behind io.h: what an engine is made of. Inside io/ only.
 *
 * Two ways lead to the store. A *call* is one blocking operation (struct io_call).
 * A *write* is one chunk on a queue (struct io_write), many at once. Both pass
 * through struct io_ops, so that the twin in engine_fault.c can fail either.
 */
#ifndef CAIRN_IO_ENGINE_H
#define CAIRN_IO_ENGINE_H

#include <stdatomic.h>

#include "io.h"

/* linux/fs.h has it from 6.14 on */
#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x00000080
#endif

enum io_op {
	IO_OP_WRITE,
	IO_OP_CREATE,
	IO_OP_ALLOCATE,
	IO_OP_TRUNCATE,
	IO_OP_ATTR,
	IO_OP_XATTR_SET,
	IO_OP_XATTR_REMOVE,
	IO_OP_RENAME,
	IO_OP_LINK,
	IO_OP_UNLINK,
	IO_OP_RMDIR,
	IO_OP_MKDIR,
	IO_OP_SYMLINK,
	IO_OP_MKNOD,
	IO_OP_SYNC_DATA,
	IO_OP_SYNC_DIR,
	IO_OP_SYNC_ALL,
	IO_OP_SHARE,
	IO_OP_CLONE,
	IO_OP_COUNT
};

/* One blocking operation; which fields count depends on op (see calls.c). */
struct io_call {
	enum io_op op;
	int fd;			/* the file, or the directory of name */
	const char *name;
	int fd2;		/* directory of name2 */
	const char *name2;	/* or a symlink's target */
	const void *buf;
	size_t len;
	uint64_t off, size;
	int flags;
	mode_t mode;
	const struct io_attr *attr;
	const char *key;
	struct io_store *sidecar; /* xattr operations: keep it there; NULL = in the inode */
};

/* One chunk. The engine may write less than len and says so in res. */
struct io_write {
	int fd;
	const void *buf;
	size_t len;
	uint64_t off;
	int rwf;		/* RWF_* of pwritev2(2) */
	ssize_t res;		/* bytes or -errno, valid once reaped */
	struct io_write *next;	/* the engine's, while it holds the write */
};

struct io_ops {
	const char *name;
	int (*queue_open)(struct io_engine *e, struct io_queue **out);
	void (*queue_close)(struct io_queue *q);
	/* Takes a write. May hold it until kick or reap. Never fails: what goes
	 * wrong is told by reap. At most e->depth are held at once. */
	void (*submit)(struct io_queue *q, struct io_write *w);
	/* Lets all that was taken start. */
	void (*kick)(struct io_queue *q);
	/* Hands back one finished write, NULL where none is ready and !wait.
	 * With wait, at least one must be held. */
	struct io_write *(*reap)(struct io_queue *q, bool wait);
	/* Runs one call: 0, a count or descriptor, or -errno. */
	ssize_t (*call)(struct io_engine *e, const struct io_call *c);
	void (*close)(struct io_engine *e);
};

enum io_note {
	IO_NOTE_NO_URING,
	IO_NOTE_NO_DIRECT,
	IO_NOTE_NO_DONTCACHE,
	IO_NOTE_NO_ALLOCATE,
	IO_NOTE_NO_XATTR,
	IO_NOTE_COUNT
};

struct io_engine {
	const struct io_ops *ops;
	unsigned depth, chunk;
	io_notice_fn notice;
	void *notice_ctx;
	atomic_uint noted;	/* bit per enum io_note */
	/* what this store turned out not to have; also bits of enum io_note */
	atomic_uint lacks;
	atomic_uint_least64_t n_ops, n_bytes, n_syncs, n_errors, n_faults;
};

/* The first member of every engine's queue. */
struct io_queue {
	struct io_engine *e;
	atomic_uint inflight;
	struct io_slot *slots;	/* e->depth of them; write.c's */
};

int io_uring_engine_open(unsigned depth, struct io_engine **out);
int io_posix_engine_open(struct io_engine **out);
/* Wraps below; takes it over on success. -EINVAL: malformed spec. */
int io_fault_engine_open(const char *spec, struct io_engine *below, struct io_engine **out);

/* The real thing under both engines (calls.c). */
ssize_t io_call_real(struct io_engine *e, const struct io_call *c);

/* What the store's side uses: through the table, and counted. */
ssize_t io_call_run(struct io_engine *e, const struct io_call *c);
void io_count(struct io_engine *e, enum io_op op, ssize_t res);

/* Remembers that the store lacks something, with one notice. */
void io_lacks(struct io_engine *e, enum io_note what);
bool io_is_lacking(struct io_engine *e, enum io_note what);

#endif

/* SPDX-License-Identifier: MIT
 *
 * The table behind engine.h: the operations of an engine.
 *
 * There are two kinds of operations. A *call* is one blocking operation (struct io_call).
 * A *write* is one chunk on a queue (struct io_write), many at once. Both go
 * through struct io_ops, so that failing.c can inject errors into either.
 */
#ifndef CAIRN_IO_TABLE_H
#define CAIRN_IO_TABLE_H

#include <stdatomic.h>

#include "engine.h"

/* linux/fs.h has it from 6.14 on */
#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x00000080
#endif

/* One chunk. The engine may write less than len and returns the count in res. */
struct io_write {
	int fd;
	const void *buf;
	size_t len;
	uint64_t off;
	int rwf; /* RWF_* of pwritev2(2) */
	ssize_t res; /* bytes or -errno, valid once reaped */
	struct io_write *next; /* the engine's, while it holds the write */
};

struct io_ops {
	const char *name;
	int (*queue_open)(struct io_engine *e, struct io_queue **out);
	void (*queue_close)(struct io_queue *q);
	/* Takes a write. May hold it until kick or reap. Never fails: errors are
	 * returned by reap. At most e->depth are held at once. */
	void (*submit)(struct io_queue *q, struct io_write *w);
	/* Starts all writes taken. */
	void (*kick)(struct io_queue *q);
	/* Returns one finished write, or NULL if none is ready and !wait.
	 * With wait, at least one must be held. */
	struct io_write *(*reap)(struct io_queue *q, bool wait);
	/* Runs one call: 0, a count or descriptor, or -errno. */
	ssize_t (*call)(struct io_engine *e, const struct io_call *c);
	void (*close)(struct io_engine *e);
};

struct io_engine {
	const struct io_ops *ops;
	unsigned depth, chunk;
	io_notice_fn notice;
	void *notice_ctx;
	void (*check)(void *ctx); /* NULL = none */
	void *check_ctx;
	atomic_uint noted; /* bit per enum io_note */
	/* features that this store lacks; also bits of enum io_note */
	atomic_uint lacks;
	atomic_uint_least64_t n_ops, n_bytes, n_syncs, n_errors, n_faults;
};

/* The first member of every engine's queue. */
struct io_queue {
	struct io_engine *e;
	atomic_uint inflight;
	struct io_slot *slots; /* e->depth of them; write.c's */
};

int io_uring_engine_open(unsigned depth, struct io_engine **out);
int io_posix_engine_open(struct io_engine **out);
/* Wraps below and owns it on success. -EINVAL: malformed spec. */
int io_fault_engine_open(const char *spec, struct io_engine *below, struct io_engine **out);

/* Counts an operation and its result; for operations outside io_call_run. */
void io_count(struct io_engine *e, enum io_op op, ssize_t res);

#endif

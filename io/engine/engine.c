/* SPDX-License-Identifier: MIT
 *
 * Selection of the engine, its notices and counters.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"
#include "write.h"

#define DEPTH_DEFAULT 8u
#define DEPTH_MAX 256u
#define CHUNK_DEFAULT (2u << 20)

static const char *const note_text[IO_NOTE_COUNT] = {
	[IO_NOTE_NO_URING] = "io_uring is not available here; writing with posix threads",
	[IO_NOTE_NO_DIRECT] = "the store refuses O_DIRECT; writing through the page cache",
	[IO_NOTE_NO_DONTCACHE] =
		"the store has no RWF_DONTCACHE; persisted files stay in the page cache",
	[IO_NOTE_NO_ALLOCATE] =
		"the store has no fallocate; its free space is estimated by statvfs",
	[IO_NOTE_NO_XATTR] =
		"the store has no user xattrs; checksums go to a sidecar under .cairn/meta",
};

void io_lacks(struct io_engine *e, enum io_note what)
{
	atomic_fetch_or(&e->lacks, 1u << what);
	if (atomic_fetch_or(&e->noted, 1u << what) & (1u << what))
		return;
	if (e->notice)
		e->notice(e->notice_ctx, note_text[what]);
}

bool io_is_lacking(struct io_engine *e, enum io_note what)
{
	return atomic_load_explicit(&e->lacks, memory_order_relaxed) & (1u << what);
}

static int open_plain(const char *kind, unsigned depth, struct io_engine **out, bool *fell_back)
{
	*fell_back = false;
	if (!strcmp(kind, "uring")) {
		int err = io_uring_engine_open(depth, out);

		if (!err || err == -ENOMEM)
			return err;
		*fell_back = true;
	} else if (strcmp(kind, "posix")) {
		return -EINVAL;
	}
	return io_posix_engine_open(out);
}

int io_engine_open(const struct io_engine_opts *opts, io_notice_fn notice, void *ctx,
		   struct io_engine **out)
{
	unsigned depth = opts->depth ? opts->depth : DEPTH_DEFAULT;
	unsigned chunk = opts->chunk_bytes ? opts->chunk_bytes : CHUNK_DEFAULT;
	struct io_engine *e;
	bool fell_back;
	int err;

	if (!opts->kind || depth > DEPTH_MAX || chunk % IO_ALIGN)
		return -EINVAL;
	err = open_plain(opts->kind, depth, &e, &fell_back);
	if (err)
		return err;
	e->depth = depth;
	if (opts->fault) {
		struct io_engine *failing;

		err = io_fault_engine_open(opts->fault, e, &failing);
		if (err) {
			e->ops->close(e);
			return err;
		}
		e = failing;
	}
	e->depth = depth;
	e->chunk = chunk;
	e->notice = notice;
	e->notice_ctx = ctx;
	if (fell_back)
		io_lacks(e, IO_NOTE_NO_URING);
	*out = e;
	return 0;
}

void io_engine_close(struct io_engine *e)
{
	if (e)
		e->ops->close(e);
}

const char *io_engine_name(const struct io_engine *e)
{
	return e->ops->name;
}

/* Errors about names and arguments are not failures of the store. */
static bool is_store_error(int err)
{
	switch (err) {
	case -EIO:
	case -ENOSPC:
	case -EDQUOT:
	case -EROFS:
	case -ENOMEM:
	case -EMFILE:
	case -ENFILE:
	case -EFBIG:
	case -ENXIO:
	case -ESTALE:
	case -ETIMEDOUT: return true;
	default: return false;
	}
}

void io_count(struct io_engine *e, enum io_op op, ssize_t res)
{
	atomic_fetch_add_explicit(&e->n_ops, 1, memory_order_relaxed);
	if (op == IO_OP_WRITE && res > 0)
		atomic_fetch_add_explicit(&e->n_bytes, (uint64_t)res, memory_order_relaxed);
	if (op == IO_OP_SYNC_DATA || op == IO_OP_SYNC_DIR || op == IO_OP_SYNC_ALL ||
	    op == IO_OP_SYNC_MARK)
		atomic_fetch_add_explicit(&e->n_syncs, 1, memory_order_relaxed);
	if (res < 0 && is_store_error((int)res))
		atomic_fetch_add_explicit(&e->n_errors, 1, memory_order_relaxed);
}

void io_engine_check(struct io_engine *e, void (*check)(void *ctx), void *ctx)
{
	e->check = check;
	e->check_ctx = ctx;
}

void io_engine_run_check(struct io_engine *e)
{
	if (e->check)
		e->check(e->check_ctx);
}

ssize_t io_call_run(struct io_engine *e, const struct io_call *c)
{
	io_engine_run_check(e);
	ssize_t res = e->ops->call(e, c);

	io_count(e, c->op, res);
	return res;
}

void io_engine_counts(const struct io_engine *e, struct io_counts *out)
{
	out->ops = atomic_load_explicit(&e->n_ops, memory_order_relaxed);
	out->write_bytes = atomic_load_explicit(&e->n_bytes, memory_order_relaxed);
	out->syncs = atomic_load_explicit(&e->n_syncs, memory_order_relaxed);
	out->errors = atomic_load_explicit(&e->n_errors, memory_order_relaxed);
	out->faults = atomic_load_explicit(&e->n_faults, memory_order_relaxed);
}

int io_queue_open(struct io_engine *e, struct io_queue **out)
{
	struct io_queue *q;
	int err = e->ops->queue_open(e, &q);

	if (err)
		return err;
	q->slots = calloc(e->depth, sizeof(*q->slots));
	if (!q->slots) {
		e->ops->queue_close(q);
		return -ENOMEM;
	}
	*out = q;
	return 0;
}

void io_queue_close(struct io_queue *q)
{
	if (!q)
		return;
	free(q->slots);
	q->e->ops->queue_close(q);
}

unsigned io_queue_inflight(const struct io_queue *q)
{
	return atomic_load_explicit(&q->inflight, memory_order_relaxed);
}

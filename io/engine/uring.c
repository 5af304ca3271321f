/* SPDX-License-Identifier: MIT
 *
 * Writes through io_uring: one ring per queue, one system call to start a batch,
 * one to wait. No polling thread and no spinning.
 */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

#include "table.h"

struct uring_engine {
	struct io_engine base;
	unsigned flags; /* of io_uring_setup(2), the best this kernel takes */
};

struct uring_queue {
	struct io_queue base;
	struct io_uring ring;
	bool enabled;
	unsigned unsent;
};

/* Best first. R_DISABLED lets the ring belong to the thread that writes, not to
 * the one that opened the queue (SINGLE_ISSUER would refuse it with EEXIST). */
static const unsigned setups[] = {
	IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
		IORING_SETUP_TASKRUN_FLAG,
	IORING_SETUP_R_DISABLED | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
	IORING_SETUP_R_DISABLED,
};

static int uring_queue_open(struct io_engine *e, struct io_queue **out)
{
	struct uring_queue *q = calloc(1, sizeof(*q));
	int err;

	if (!q)
		return -ENOMEM;
	q->base.e = e;
	err = io_uring_queue_init(e->depth, &q->ring, ((struct uring_engine *)e)->flags);
	if (err) {
		free(q);
		return err;
	}
	*out = &q->base;
	return 0;
}

static void uring_queue_close(struct io_queue *base)
{
	struct uring_queue *q = (struct uring_queue *)base;

	io_uring_queue_exit(&q->ring);
	free(q);
}

static void uring_submit(struct io_queue *base, struct io_write *w)
{
	struct uring_queue *q = (struct uring_queue *)base;
	/* never NULL: the ring has an entry for each of e->depth writes */
	struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);

	io_uring_prep_write(sqe, w->fd, w->buf, (unsigned)w->len, w->off);
	sqe->rw_flags = w->rwf;
	io_uring_sqe_set_data(sqe, w);
	q->unsent++;
}

/* Submits what is pending and waits for `wait` completions. The kernel may be short
 * of memory for a while; it then took nothing and is asked again. Any other error
 * would leave the kernel writing to memory that the caller frees: abort. */
static void enter(struct uring_queue *q, unsigned wait)
{
	while (q->unsent || wait) {
		int n = io_uring_submit_and_wait(&q->ring, wait);

		if (n >= 0) {
			q->unsent -= (unsigned)n < q->unsent ? (unsigned)n : q->unsent;
			wait = 0;
			continue;
		}
		if (n == -EAGAIN || n == -ENOMEM || n == -EBUSY)
			usleep(1000);
		else if (n != -EINTR)
			abort();
		if (io_uring_cq_ready(&q->ring))
			wait = 0;
	}
}

static void uring_kick(struct io_queue *base)
{
	struct uring_queue *q = (struct uring_queue *)base;

	if (!q->enabled) {
		/* liburing 2.3's library does not export io_uring_enable_rings */
		if (io_uring_register((unsigned)q->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL,
				      0) < 0)
			abort();
		q->enabled = true;
	}
	enter(q, 0);
}

static struct io_write *uring_reap(struct io_queue *base, bool wait)
{
	struct uring_queue *q = (struct uring_queue *)base;
	struct io_uring_cqe *cqe = NULL;
	struct io_write *w;

	if (q->unsent)
		uring_kick(base);
	while (io_uring_peek_cqe(&q->ring, &cqe) || !cqe) {
		if (!wait)
			return NULL;
		enter(q, 1);
	}
	w = io_uring_cqe_get_data(cqe);
	w->res = cqe->res;
	io_uring_cqe_seen(&q->ring, cqe);
	return w;
}

static void uring_close(struct io_engine *e)
{
	free(e);
}

static const struct io_ops uring_ops = {
	.name = "uring",
	.queue_open = uring_queue_open,
	.queue_close = uring_queue_close,
	.submit = uring_submit,
	.kick = uring_kick,
	.reap = uring_reap,
	.call = io_call_real,
	.close = uring_close,
};

static int probe(unsigned depth, unsigned *flags)
{
	int err = -EINVAL;

	for (unsigned i = 0; i < sizeof(setups) / sizeof(*setups); i++) {
		struct io_uring ring;

		err = io_uring_queue_init(depth, &ring, setups[i]);
		if (!err) {
			io_uring_queue_exit(&ring);
			*flags = setups[i];
			return 0;
		}
		if (err != -EINVAL)
			return err;
	}
	return err;
}

int io_uring_engine_open(unsigned depth, struct io_engine **out)
{
	struct uring_engine *e;
	unsigned flags;
	int err = probe(depth, &flags);

	if (err)
		return err;
	e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	e->base.ops = &uring_ops;
	e->flags = flags;
	*out = &e->base;
	return 0;
}

/* SPDX-License-Identifier: MIT
 *
 * The engine if io_uring is not available: pwritev2(2) in a few threads per
 * queue, started when there is work.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "io/scope.h"
#include "table.h"

#define THREADS_MAX 4u

struct list {
	struct io_write *head, **tail;
};

struct posix_queue {
	struct io_queue base;
	pthread_mutex_t lock; /* over all below */
	pthread_cond_t work, finished;
	struct list todo, done;
	unsigned pending; /* in todo, not yet taken by a thread */
	unsigned idle, n_threads;
	pthread_t threads[THREADS_MAX];
	bool quit;
};

static void push(struct list *l, struct io_write *w)
{
	w->next = NULL;
	*l->tail = w;
	l->tail = &w->next;
}

static struct io_write *pop(struct list *l)
{
	struct io_write *w = l->head;

	if (w) {
		l->head = w->next;
		if (!l->head)
			l->tail = &l->head;
	}
	return w;
}

static void write_now(struct io_write *w)
{
	struct iovec v = {.iov_base = (void *)(uintptr_t)w->buf, .iov_len = w->len};

	w->res = pwritev2(w->fd, &v, 1, (off_t)w->off, w->rwf);
	if (w->res < 0)
		w->res = -errno;
}

static void *writer(void *arg)
{
	struct posix_queue *q = arg;

	pthread_mutex_lock(&q->lock);
	for (;;) {
		struct io_write *w = pop(&q->todo);

		if (w) {
			q->pending--;
			pthread_mutex_unlock(&q->lock);
			write_now(w);
			pthread_mutex_lock(&q->lock);
			push(&q->done, w);
			pthread_cond_signal(&q->finished);
			continue;
		}
		if (q->quit)
			break;
		q->idle++;
		pthread_cond_wait(&q->work, &q->lock);
		q->idle--;
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

static int posix_queue_open(struct io_engine *e, struct io_queue **out)
{
	struct posix_queue *q = calloc(1, sizeof(*q));

	if (!q)
		return -ENOMEM;
	q->base.e = e;
	lock_init(&q->lock, RANK_POSIX_QUEUE);
	pthread_cond_init(&q->work, NULL);
	pthread_cond_init(&q->finished, NULL);
	q->todo.tail = &q->todo.head;
	q->done.tail = &q->done.head;
	*out = &q->base;
	return 0;
}

static void posix_queue_close(struct io_queue *base)
{
	struct posix_queue *q = (struct posix_queue *)base;

	pthread_mutex_lock(&q->lock);
	q->quit = true;
	pthread_cond_broadcast(&q->work);
	pthread_mutex_unlock(&q->lock);
	for (unsigned i = 0; i < q->n_threads; i++)
		pthread_join(q->threads[i], NULL);
	pthread_cond_destroy(&q->finished);
	pthread_cond_destroy(&q->work);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

/* Starts one more thread if all are busy; the lock is held. */
static void grow(struct posix_queue *q)
{
	if (q->pending <= q->idle || q->n_threads == THREADS_MAX)
		return;
	if (!pthread_create(&q->threads[q->n_threads], NULL, writer, q))
		q->n_threads++;
}

static void posix_submit(struct io_queue *base, struct io_write *w)
{
	struct posix_queue *q = (struct posix_queue *)base;
	LOCK_SCOPE(&q->lock);

	push(&q->todo, w);
	q->pending++;
	grow(q);
	if (q->n_threads) {
		pthread_cond_signal(&q->work);
		return;
	}
	/* no thread available: slow, but it continues */
	pop(&q->todo);
	q->pending--;
	write_now(w);
	push(&q->done, w);
}

static void posix_kick(struct io_queue *base)
{
	(void)base; /* threads start at once */
}

static struct io_write *posix_reap(struct io_queue *base, bool wait)
{
	struct posix_queue *q = (struct posix_queue *)base;
	LOCK_SCOPE(&q->lock);

	while (wait && !q->done.head)
		pthread_cond_wait(&q->finished, &q->lock);
	return pop(&q->done);
}

static void posix_close(struct io_engine *e)
{
	free(e);
}

static const struct io_ops posix_ops = {
	.name = "posix",
	.queue_open = posix_queue_open,
	.queue_close = posix_queue_close,
	.submit = posix_submit,
	.kick = posix_kick,
	.reap = posix_reap,
	.call = io_call_real,
	.close = posix_close,
};

int io_posix_engine_open(struct io_engine **out)
{
	struct io_engine *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	e->ops = &posix_ops;
	*out = e;
	return 0;
}

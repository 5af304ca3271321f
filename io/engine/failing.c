/* SPDX-License-Identifier: MIT
 *
 * The fault engine: the same table, another engine below, and injected errors.
 * Which operations fail depends only on the seed and their numbers. For tests and
 * manual experiments (CAIRNFS_FAULT).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/number.h"
#include "io/scope.h"
#include "lost.h"
#include "table.h"

#define DELAY_MAX_US 20000u

enum kind {
	KIND_EIO,
	KIND_ENOSPC,
	KIND_EDQUOT,
	KIND_SHORT,
	KIND_DELAY,
	KIND_LOST,
	KIND_NOLINK,
	KIND_COUNT,
	KIND_NONE
};

static const char *const kind_name[KIND_COUNT] = {"eio",   "enospc",   "edquot", "short",
						  "delay", "lostsync", "nolink"};

struct plan {
	uint64_t seed;
	uint64_t rate; /* 0 = none; unused where `at` is set */
	uint64_t at; /* 0 = by rate */
	bool from_there_on;
	unsigned kinds; /* bits of enum kind */
};

struct fault_engine {
	struct io_engine base;
	struct io_engine *below;
	struct io_ops ops; /* its name is that of the engine below, and "+fault" */
	char name[16];
	struct plan plan;
	atomic_uint_least64_t serial; /* operations that could have failed so far */
	struct fault_lost lost;
};

struct fault_queue {
	struct io_queue base;
	struct io_queue *below;
	struct io_write *failed; /* never sent; reaped first */
};

static bool parse_rate(const char **p, struct plan *f)
{
	if (**p != '@')
		return number_next(p, &f->rate);
	++*p;
	if (!number_next(p, &f->at) || !f->at)
		return false;
	f->from_there_on = **p == '+';
	*p += f->from_there_on;
	return true;
}

static bool parse_kinds(const char *p, unsigned *out)
{
	for (;;) {
		size_t n = strcspn(p, ",");
		unsigned k = 0;

		while (k < KIND_COUNT && (strlen(kind_name[k]) != n || strncmp(p, kind_name[k], n)))
			k++;
		if (k == KIND_COUNT)
			return false;
		*out |= 1u << k;
		if (!p[n])
			return true;
		p += n + 1;
	}
}

static bool parse(const char *p, struct plan *f)
{
	*f = (struct plan){0};
	return number_next(&p, &f->seed) && *p++ == ':' && parse_rate(&p, f) && *p++ == ':' &&
	       parse_kinds(p, &f->kinds);
}

static uint64_t mix(uint64_t v) /* splitmix64 */
{
	v += 0x9e3779b97f4a7c15u;
	v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
	v = (v ^ v >> 27) * 0x94d049bb133111ebu;
	return v ^ v >> 31;
}

/* The kinds of faults that this operation can have. */
static unsigned possible(const struct plan *f, enum io_op op)
{
	unsigned k = f->kinds;

	if (op != IO_OP_WRITE)
		k &= ~(1u << KIND_SHORT);
	if (op != IO_OP_SYNC_DATA && op != IO_OP_SYNC_DIR && op != IO_OP_SYNC_ALL &&
	    op != IO_OP_SYNC_MARK)
		k &= ~(1u << KIND_LOST);
	if (op != IO_OP_LINK)
		k &= ~(1u << KIND_NOLINK);
	return k;
}

static enum kind draw(struct fault_engine *f, enum io_op op, uint64_t *random)
{
	unsigned kinds = possible(&f->plan, op), nth;
	uint64_t n;
	bool hit;

	if (!kinds)
		return KIND_NONE;
	n = atomic_fetch_add(&f->serial, 1) + 1;
	*random = mix(f->plan.seed ^ mix(n));
	if (f->plan.at)
		hit = f->plan.from_there_on ? n >= f->plan.at : n == f->plan.at;
	else
		hit = f->plan.rate && !(*random % f->plan.rate);
	if (!hit)
		return KIND_NONE;
	atomic_fetch_add_explicit(&f->base.n_faults, 1, memory_order_relaxed);
	*random = mix(*random);
	nth = (unsigned)(*random % (unsigned)__builtin_popcount(kinds));
	while (nth--)
		kinds &= kinds - 1;
	return (enum kind)__builtin_ctz(kinds);
}

static void delay(uint64_t random)
{
	usleep((useconds_t)(random % DELAY_MAX_US));
}

/* At least one byte, or one block of a direct write, is written. */
static size_t shortened(size_t len)
{
	if (len > IO_ALIGN)
		return (len / 2 + IO_ALIGN - 1) & ~(size_t)(IO_ALIGN - 1);
	return len > 1 && len < IO_ALIGN ? len / 2 : len;
}

static ssize_t fault_call(struct io_engine *e, const struct io_call *c)
{
	struct fault_engine *f = (struct fault_engine *)e;
	struct io_call changed = *c;
	uint64_t random;
	ssize_t res;

	switch (draw(f, c->op, &random)) {
	case KIND_EIO: return -EIO;
	case KIND_ENOSPC: return -ENOSPC;
	case KIND_EDQUOT: return -EDQUOT;
	case KIND_NOLINK: return -EPERM;
	case KIND_LOST:
		fault_lost_drop(&f->lost, c->op == IO_OP_SYNC_DATA ? c->fd : -1);
		return -EIO;
	case KIND_SHORT: changed.len = shortened(c->len); break;
	case KIND_DELAY: delay(random); break;
	default: break;
	}
	res = f->below->ops->call(f->below, &changed);
	if (f->plan.kinds & 1u << KIND_LOST) {
		if (c->op == IO_OP_WRITE && res > 0)
			fault_lost_wrote(&f->lost, c->fd, c->off, (uint64_t)res);
		else if (c->op == IO_OP_SYNC_DATA && !res)
			res = fault_lost_synced(&f->lost, c->fd);
		else if (c->op == IO_OP_SYNC_ALL && !res)
			fault_lost_synced(&f->lost, -1);
	}
	return res;
}

static void fault_submit(struct io_queue *base, struct io_write *w)
{
	struct fault_queue *q = (struct fault_queue *)base;
	struct fault_engine *f = (struct fault_engine *)base->e;
	uint64_t random;

	w->res = 0;
	switch (draw(f, IO_OP_WRITE, &random)) {
	case KIND_EIO: w->res = -EIO; break;
	case KIND_ENOSPC: w->res = -ENOSPC; break;
	case KIND_EDQUOT: w->res = -EDQUOT; break;
	case KIND_SHORT: w->len = shortened(w->len); break;
	case KIND_DELAY: delay(random); break;
	default: break;
	}
	if (!w->res) {
		q->below->e->ops->submit(q->below, w);
		return;
	}
	w->next = q->failed;
	q->failed = w;
}

static void fault_kick(struct io_queue *base)
{
	struct fault_queue *q = (struct fault_queue *)base;

	q->below->e->ops->kick(q->below);
}

static struct io_write *fault_reap(struct io_queue *base, bool wait)
{
	struct fault_queue *q = (struct fault_queue *)base;
	struct fault_engine *f = (struct fault_engine *)base->e;
	struct io_write *w = q->failed;

	if (w) {
		q->failed = w->next;
		return w;
	}
	w = q->below->e->ops->reap(q->below, wait);
	if (w && w->res > 0 && f->plan.kinds & 1u << KIND_LOST)
		fault_lost_wrote(&f->lost, w->fd, w->off, (uint64_t)w->res);
	return w;
}

static int fault_queue_open(struct io_engine *e, struct io_queue **out)
{
	struct fault_engine *f = (struct fault_engine *)e;
	struct fault_queue *q = calloc(1, sizeof(*q));
	int err;

	if (!q)
		return -ENOMEM;
	q->base.e = e;
	err = f->below->ops->queue_open(f->below, &q->below);
	if (err) {
		free(q);
		return err;
	}
	*out = &q->base;
	return 0;
}

static void fault_queue_close(struct io_queue *base)
{
	struct fault_queue *q = (struct fault_queue *)base;

	q->below->e->ops->queue_close(q->below);
	free(q);
}

static void fault_close(struct io_engine *e)
{
	struct fault_engine *f = (struct fault_engine *)e;

	fault_lost_free(&f->lost);
	f->below->ops->close(f->below);
	free(f);
}

static const struct io_ops fault_ops = {
	.queue_open = fault_queue_open,
	.queue_close = fault_queue_close,
	.submit = fault_submit,
	.kick = fault_kick,
	.reap = fault_reap,
	.call = fault_call,
	.close = fault_close,
};

int io_fault_engine_open(const char *spec, struct io_engine *below, struct io_engine **out)
{
	struct fault_engine *f;
	struct plan plan;

	if (!parse(spec, &plan))
		return -EINVAL;
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	snprintf(f->name, sizeof(f->name), "%s+fault", below->ops->name);
	f->ops = fault_ops;
	f->ops.name = f->name;
	f->base.ops = &f->ops;
	f->below = below;
	f->plan = plan;
	fault_lost_init(&f->lost);
	*out = &f->base;
	return 0;
}

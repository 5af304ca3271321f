/* SPDX-License-Identifier: MIT
 * Files of which a write failed: not whole until all that was to be written there is written after
 * all, or cut off. A program that ignores the error may write less at that place next: what a
 * buffer held before it was full. Not those of which a write at the end failed (O_APPEND; relay.c):
 * they have all that was accepted, and the next write begins where it ended.
 *
 * The missing parts are kept as at most TORN_MAX ranges: beyond that the two that are closest
 * become one, with what is between them. So a file may count as torn for longer than it is, never
 * shorter.
 *
 * The kernel sends a large write(2) in several requests, and none after the one that failed: that
 * one is all that the daemon knows of.
 *
 * s->lock guards the ranges; whether there are any is read without it. */
#include "staging/file/file.h"

#include <errno.h>
#include <string.h>

static uint64_t range_end(uint64_t off, uint64_t len)
{
	return len < UINT64_MAX - off ? off + len : UINT64_MAX;
}

/* The two closest of TORN_MAX + 1 ranges become one. */
static void join_closest(struct torn_range *r)
{
	unsigned at = 0;
	for (unsigned i = 1; i < TORN_MAX; i++)
		if (r[i + 1].from - r[i].to < r[at + 1].from - r[at].to)
			at = i;
	r[at].to = r[at + 1].to;
	memmove(&r[at + 1], &r[at + 2], (TORN_MAX - at - 1) * sizeof(*r));
}

void staged_not_written(struct staged *f, uint64_t off, uint64_t len, int err)
{
	struct torn_range now[TORN_MAX + 1], new = {.from = off, .to = range_end(off, len)};
	unsigned n = 0, i = 0;
	LOCK_SCOPE(&f->s->lock);
	struct torn *t = &f->torn;

	for (; i < t->n && t->range[i].to < new.from; i++)
		now[n++] = t->range[i];
	for (; i < t->n && t->range[i].from <= new.to; i++) {
		new.from = t->range[i].from < new.from ? t->range[i].from : new.from;
		new.to = t->range[i].to > new.to ? t->range[i].to : new.to;
	}
	now[n++] = new;
	for (; i < t->n; i++)
		now[n++] = t->range[i];
	if (n > TORN_MAX) {
		join_closest(now);
		n = TORN_MAX;
	}
	memcpy(t->range, now, n * sizeof(now[0]));
	t->n = n;
	atomic_store(&t->err, err);
}

void torn_remove(struct staged *f, uint64_t off, uint64_t len)
{
	struct torn_range now[TORN_MAX + 1];
	uint64_t end = range_end(off, len);
	unsigned n = 0;
	LOCK_SCOPE(&f->s->lock);
	struct torn *t = &f->torn;

	for (unsigned i = 0; i < t->n; i++) {
		struct torn_range r = t->range[i];
		bool before = r.from<off, after = r.to> end;
		if (r.to <= off || r.from >= end || (before && after && t->n == TORN_MAX)) {
			now[n++] = r;
			continue;
		}
		if (before)
			now[n++] = (struct torn_range){.from = r.from, .to = off};
		if (after)
			now[n++] = (struct torn_range){.from = end, .to = r.to};
	}
	memcpy(t->range, now, n * sizeof(now[0]));
	t->n = n;
	if (!n)
		atomic_store(&t->err, 0);
}

int staged_torn(const struct staged *f)
{
	return atomic_load(&f->torn.err);
}

void torn_out(const struct staged *f, struct rec *r, struct torn_range *data)
{
	const struct torn *t = &f->torn;
	int err = atomic_load(&t->err);

	if (!err)
		return;
	memcpy(data, t->range, t->n * sizeof(*data));
	r->mask = (uint64_t)-err;
	r->node2 = t->range[0].from;
	r->flags |= REC_FAILED;
	r->data = data;
	r->data_len = (uint32_t)(t->n * sizeof(*data));
}

void staged_torn_out(struct staged *f, struct rec *r, struct torn_range *data)
{
	LOCK_SCOPE(&f->s->lock);
	torn_out(f, r, data);
}

void staged_torn_in(struct staged *f, const struct rec *r)
{
	const char *data = r->data;
	struct torn_range range;

	torn_remove(f, 0, UINT64_MAX);
	if (!r->mask)
		return;
	for (uint32_t at = 0; data && at + sizeof(range) <= r->data_len; at += sizeof(range)) {
		memcpy(&range, data + at, sizeof(range));
		if (range.from < range.to)
			staged_not_written(f, range.from, range.to - range.from, -(int)r->mask);
	}
	/* a worker of an older version did not log where it ends */
	if (!staged_torn(f))
		staged_not_written(f, r->node2, UINT64_MAX, -(int)r->mask);
}

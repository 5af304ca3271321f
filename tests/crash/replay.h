/* SPDX-License-Identifier: MIT
 *
 * Reading a recorded history back: operations in order, and what a version of a file
 * consists of.
 */
#ifndef CRASH_REPLAY_H
#define CRASH_REPLAY_H

#include "content.h"
#include "history.h"

#define NEVER UINT64_MAX

struct op {
	const struct hist_rec *rec;	/* NULL: a close made by a trainer's death */
	uint64_t begin, end;		/* end = NEVER: no answer, or an error */
	uint32_t fid, ver;		/* of an op without record */
	bool ok;			/* answered, with success */
	bool in;			/* in the prefix (check.c, model.c) */
};

struct replay {
	struct hist h;
	struct op *ops;		/* by begin */
	uint32_t n_ops, n_fids;
	uint32_t *first;	/* per fid: index into bytes, bytes[first[f]..first[f+1]) */
	bool maps_loose;	/* munmap answers for nothing */
	const struct hist_rec **bytes;	/* opens, writes, truncates by (fid, begin) */
};

struct image {
	char *data;
	uint64_t size;
	bool torn;	/* some write of it has no answer, or an error */
	bool killed;	/* the torn write has no answer */
};

static inline int replay_by_begin(const void *a, const void *b)
{
	const struct op *x = a, *y = b;

	return (x->begin > y->begin) - (x->begin < y->begin);
}

static inline bool replay_is_bytes(const struct hist_rec *r)
{
	return r->kind == H_OPEN || r->kind == H_WRITE || r->kind == H_TRUNC;
}

/* Sorts the file records per file: a counting sort that keeps the order of begin. */
static inline int replay_files(struct replay *p)
{
	uint32_t n = p->n_fids;

	p->first = calloc(n + 2, sizeof(*p->first));
	p->bytes = calloc(p->n_ops + 1, sizeof(*p->bytes));
	uint32_t *at = calloc(n + 2, sizeof(*at));
	if (!p->first || !p->bytes || !at)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->n_ops; i++)
		if (replay_is_bytes(p->ops[i].rec) && p->ops[i].rec->fid < n)
			p->first[p->ops[i].rec->fid + 1]++;
	for (uint32_t f = 0; f <= n; f++)
		p->first[f + 1] += p->first[f];
	memcpy(at, p->first, (n + 1) * sizeof(*at));
	for (uint32_t i = 0; i < p->n_ops; i++)
		if (replay_is_bytes(p->ops[i].rec) && p->ops[i].rec->fid < n)
			p->bytes[at[p->ops[i].rec->fid]++] = p->ops[i].rec;
	free(at);
	return 0;
}

static inline int replay_open(struct replay *p, const char *path)
{
	int err;

	memset(p, 0, sizeof(*p));
	err = hist_open(&p->h, path);
	if (err)
		return err;
	uint32_t n = hist_count(&p->h);
	p->n_fids = atomic_load(&p->h.head->next_fid);
	p->ops = calloc(n + 1, sizeof(*p->ops));
	if (!p->ops)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		const struct hist_rec *r = &p->h.recs[i];
		struct op *o = &p->ops[p->n_ops];

		if (!r->begin)
			continue;
		*o = (struct op){ .rec = r, .begin = r->begin, .fid = r->fid, .ver = r->ver };
		o->ok = r->end && r->result >= 0;
		o->end = o->ok ? r->end : NEVER;
		p->n_ops++;
	}
	qsort(p->ops, p->n_ops, sizeof(*p->ops), replay_by_begin);
	return replay_files(p);
}

/* Size of version ver; with `torn`, also what was asked but not answered counts. */
static inline uint64_t replay_size(const struct replay *p, uint32_t fid, uint32_t ver, bool torn)
{
	uint64_t size = 0;

	for (uint32_t i = p->first[fid]; i < p->first[fid + 1]; i++) {
		const struct hist_rec *r = p->bytes[i];

		if (r->ver > ver || (!torn && (!r->end || r->result < 0)))
			continue;
		if (r->kind == H_OPEN && (r->flags & HF_TRUNC))
			size = 0;
		else if (r->kind == H_TRUNC)
			size = r->len;
		else if (r->kind == H_WRITE && r->off + r->len > size)
			size = r->off + r->len;
	}
	return size;
}

static inline void image_cut(struct image *m, uint64_t size)
{
	if (size < m->size)
		memset(m->data + size, 0, m->size - size);
	m->size = size;
}

static inline void image_apply(struct image *m, const struct hist_rec *r)
{
	if (r->kind == H_OPEN && (r->flags & HF_TRUNC)) {
		image_cut(m, 0);
	} else if (r->kind == H_TRUNC) {
		image_cut(m, r->len);
	} else if (r->kind == H_WRITE) {
		content_fill(m->data + r->off, r->fid, r->ver, r->off, r->len);
		if (r->off + r->len > m->size)
			m->size = r->off + r->len;
	}
}

/* The bytes of version ver. 0 or -ENOMEM; the caller frees m->data. */
static inline int replay_image(const struct replay *p, uint32_t fid, uint32_t ver, bool torn,
			       struct image *m)
{
	uint64_t max = 1;

	*m = (struct image){ 0 };
	for (uint32_t i = p->first[fid]; i < p->first[fid + 1]; i++) {
		const struct hist_rec *r = p->bytes[i];
		uint64_t top = r->kind == H_OPEN ? 0 : r->off + r->len;

		max = top > max ? top : max;
	}
	m->data = calloc(1, max);
	if (!m->data)
		return -ENOMEM;
	for (uint32_t i = p->first[fid]; i < p->first[fid + 1]; i++) {
		const struct hist_rec *r = p->bytes[i];
		bool lost = p->maps_loose && (r->flags & HF_MAPPED);
		bool whole = r->end && r->result >= 0 && !lost;

		if (r->ver > ver || (r->kind == H_OPEN && !(r->flags & HF_TRUNC)))
			continue;
		if (!whole) {
			m->torn = true;
			m->killed |= !r->end || lost;
		} else if (r->kind == H_OPEN) {
			m->torn = m->killed = false;	/* starts again from nothing */
		}
		if (whole || torn)
			image_apply(m, r);
	}
	return 0;
}

#endif

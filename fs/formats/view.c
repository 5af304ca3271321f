/* SPDX-License-Identifier: MIT
 *
 * Views: files made of pieces of other files.
 *
 * The bytes of a tensor are its elements in row-major order. A piece holds a box of them: in the
 * tensor these are runs of equal length, as long as the dimensions that the piece has whole allow,
 * in the same order as in the piece. So the part of a piece in a range of the tensor is found by a
 * search, read in large blocks, and scattered.
 */
#include "fs/formats/view.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#define MAX_BYTES (1ull << 62)
#define WINDOW (1u << 20) /* a block of short runs that is read at once */
#define DIRECT (64u << 10) /* longer runs are read one by one, without a copy */

/* ---- building --------------------------------------------------------------------- */

static uint64_t tallest(const struct fmt_tensor *t)
{
	uint64_t tall = 0;

	for (size_t i = 0; t->ndim && i < t->n_pieces; i++)
		tall = t->piece[i].size[0] > tall ? t->piece[i].size[0] : tall;
	return tall;
}

int view_base_new(const struct fmt_set *set, struct view_base **out)
{
	struct view_base *b = calloc(1, sizeof(*b));
	size_t n = 0;

	*out = NULL;
	if (b)
		b->tensor = calloc(set->n_tensors ? set->n_tensors : 1, sizeof(*b->tensor));
	for (size_t i = 0; b && b->tensor && i < set->n_tensors; i++) {
		b->tensor[i] = (struct view_known){n, tallest(&set->tensor[i])};
		n += set->tensor[i].n_pieces;
	}
	if (b && b->tensor)
		b->data_at = calloc(n ? n : 1, sizeof(*b->data_at));
	if (!b || !b->tensor || !b->data_at) {
		view_base_free(b);
		return -ENOMEM;
	}
	b->set = set;
	*out = b;
	return 0;
}

void view_base_free(struct view_base *b)
{
	if (!b)
		return;
	free(b->tensor);
	free((void *)b->data_at);
	free(b);
}

struct view *view_new(struct view_base *b)
{
	struct view *v = calloc(1, sizeof(*v));

	if (v)
		v->base = b;
	return v;
}

void view_free(struct view *v)
{
	if (!v)
		return;
	free(v->part);
	free(v->mem);
	free(v);
}

void view_clear(struct view *v)
{
	v->size = v->n_parts = v->mem_len = 0;
}

uint64_t view_size(const struct view *v)
{
	return v->size;
}

size_t view_memory(const struct view *v)
{
	return sizeof(*v) + v->cap_parts * sizeof(*v->part) + v->mem_cap;
}

static bool grow(void **v, size_t *cap, size_t need, size_t size)
{
	size_t more = *cap ? *cap : 64;
	void *p;

	if (need <= *cap)
		return true;
	while (more < need)
		more *= 2;
	p = reallocarray(*v, more, size);
	if (!p)
		return false;
	*v = p;
	*cap = more;
	return true;
}

static void add_part(struct view *v, size_t tensor, uint64_t from, uint64_t bytes)
{
	struct view_part *last = v->n_parts ? &v->part[v->n_parts - 1] : NULL;

	if (!bytes || v->no_memory)
		return;
	if (last && tensor == VIEW_MEMORY && last->tensor == VIEW_MEMORY) {
		last->bytes += bytes;
		v->size += bytes;
		return;
	}
	if (bytes > MAX_BYTES - v->size ||
	    !grow((void **)&v->part, &v->cap_parts, v->n_parts + 1, sizeof(*v->part))) {
		v->no_memory = true;
		return;
	}
	v->part[v->n_parts++] = (struct view_part){v->size, bytes, tensor, from};
	v->size += bytes;
}

void view_add(struct view *v, const void *bytes, size_t len)
{
	if (v->no_memory || !grow((void **)&v->mem, &v->mem_cap, v->mem_len + len, 1)) {
		v->no_memory = true;
		return;
	}
	if (len)
		memcpy(v->mem + v->mem_len, bytes, len);
	add_part(v, VIEW_MEMORY, v->mem_len, len);
	v->mem_len += len;
}

void view_addf(struct view *v, const char *fmt, ...)
{
	char text[256];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= sizeof(text))
		v->no_memory = true; /* cannot happen: numbers and short words only */
	else
		view_add(v, text, (size_t)n);
}

void view_add_tensor(struct view *v, size_t tensor, uint64_t from, uint64_t bytes)
{
	add_part(v, tensor, from, bytes);
}

void view_add_blob(struct view *v, size_t blob)
{
	add_part(v, v->base->set->n_tensors + blob, 0, v->base->set->blob[blob].length);
}

int view_done(struct view *v, struct view **out, struct fmt_error *e)
{
	*out = NULL;
	if (v->no_memory) {
		view_free(v);
		return fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");
	}
	*out = v;
	return 0;
}

/* ---- checks ----------------------------------------------------------------------- */

/* The bytes from the first to the last element of a piece; false: overflow. */
static bool span(const struct fmt_tensor *t, const struct fmt_piece *p, unsigned element,
		 uint64_t *out)
{
	uint64_t last = 0, step;

	for (unsigned d = 0; d < t->ndim; d++)
		if (__builtin_mul_overflow(p->size[d] - 1, p->stride[d], &step) ||
		    __builtin_add_overflow(last, step, &last))
			return false;
	return !__builtin_add_overflow(last, 1, &last) &&
	       !__builtin_mul_overflow(last, (uint64_t)element, out) && *out < MAX_BYTES;
}

static int check_piece(const struct fmt_tensor *t, const struct fmt_piece *p, unsigned element,
		       struct fmt_error *e)
{
	uint64_t volume, bytes;

	if (p->refusal)
		return fmt_fail(e, -ENOTSUP, FMT_NOWHERE, "%.100s: %s", t->name, p->refusal);
	if (!fmt_volume(p->size, t->ndim, &volume) || !volume)
		/* nothing is read from it; fmt_set_cover() checks that it fits */
		return 0;
	if (p->file == FMT_NO_FILE)
		return fmt_fail(e, -EBADMSG, FMT_NOWHERE, "%.100s: a piece without a file",
				t->name);
	if (p->payload == FMT_ITEM)
		return 0; /* checked when it is read */
	if (p->payload == FMT_STRIDED ? !span(t, p, element, &bytes)
				      : __builtin_mul_overflow(volume, (uint64_t)element, &bytes))
		bytes = UINT64_MAX;
	if (bytes > p->length)
		return fmt_fail(e, -EBADMSG, p->at, "%.100s: a piece that does not fit its extent",
				t->name);
	return 0;
}

int view_check(const struct fmt_tensor *t, unsigned *element, uint64_t *bytes, struct fmt_error *e)
{
	uint64_t volume = 0;
	int err = 0;

	*element = 1;
	/* if it cannot be served, a piece may say why */
	for (size_t i = 0; i < t->n_pieces; i++)
		if (t->piece[i].refusal)
			return check_piece(t, &t->piece[i], 1, e);
	if (!t->dtype)
		return fmt_fail(e, -ENOTSUP, FMT_NOWHERE, "%.100s: unknown dtype %.60s", t->name,
				t->dtype_name);
	if (t->dtype->bits % 8)
		return fmt_fail(e, -ENOTSUP, FMT_NOWHERE,
				"%.100s: %s has elements of less than a byte", t->name,
				t->dtype_name);
	*element = t->dtype->bits / 8;
	err = fmt_set_cover(t, NULL, e);
	if (!err &&
	    (!fmt_volume(t->shape, t->ndim, &volume) ||
	     __builtin_mul_overflow(volume, (uint64_t)*element, bytes) || *bytes >= MAX_BYTES))
		err = fmt_fail(e, -E2BIG, FMT_NOWHERE, "%.100s: larger than any file", t->name);
	for (size_t i = 0; !err && i < t->n_pieces; i++)
		err = check_piece(t, &t->piece[i], *element, e);
	return err;
}

/* ---- the elements of a piece -------------------------------------------------------- */

struct box { /* a piece being read */
	const struct fmt_tensor *t;
	const struct fmt_piece *p;
	unsigned element; /* bytes */
	unsigned outer; /* the dimensions before this one count the runs */
	uint64_t runs, run; /* number of runs; length (bytes) */
	uint64_t first; /* offset of the first run in the tensor (bytes) */
	uint64_t step[FMT_MAX_DIMS]; /* in the tensor, per dimension (bytes) */
	bool strided;
	uint64_t stride[FMT_MAX_DIMS]; /* in the file (bytes), when strided */
	uint64_t at; /* offset of the first element in the file */
};

struct reading {
	const struct view *v;
	const struct view_io *io;
	struct fmt_error *e;
};

static int item_wrong(struct reading *r, const struct fmt_tensor *t, const struct fmt_piece *p,
		      const char *what)
{
	return fmt_fail(r->e, -EBADMSG, p->at, "%.60s in %.60s: its item has another %s", t->name,
			r->v->base->set->file[p->file].name, what);
}

static int open_item(struct reading *r, const struct box *b, const struct fmt_source *item,
		     struct fmt_set *set)
{
	struct fmt_error own = {.at = FMT_NOWHERE};
	int err = r->io->item ? r->io->item(r->io->ctx, item, set, &own)
			      : dcp_item_read(set, item, &own);

	if (err)
		fmt_say(r->e, own.at == FMT_NOWHERE ? b->p->at : own.at + b->p->at,
			"%.60s in %.60s: %.100s", b->t->name,
			r->v->base->set->file[b->p->file].name, own.text);
	return err;
}

/* Reads from the item where the elements are: sets b->at, and strides if it has any. */
static int look_into(struct reading *r, struct box *b, const struct fmt_source *s,
		     struct fmt_set *set)
{
	const struct fmt_tensor *t = b->t, *have;
	struct fmt_source item = fmt_part(s, b->p->at, b->p->length);
	uint64_t volume = 0, bytes;
	int err = item.size == b->p->length
			  ? open_item(r, b, &item, set)
			  : fmt_fail(r->e, -EBADMSG, s->size,
				     "%.100s: the file ends before its item does", t->name);

	if (err)
		return err;
	have = &set->tensor[0];
	if (have->piece[0].refusal)
		return fmt_fail(r->e, -ENOTSUP, b->p->at, "%.100s: %s", t->name,
				have->piece[0].refusal);
	if (have->dtype != t->dtype)
		return item_wrong(r, t, b->p, "dtype");
	if (have->ndim != t->ndim ||
	    (t->ndim && memcmp(have->shape, b->p->size, t->ndim * sizeof(*have->shape))))
		return item_wrong(r, t, b->p, "shape");
	err = check_piece(have, &have->piece[0], b->element, r->e);
	if (err)
		return err;
	b->at = b->p->at + have->piece[0].at;
	b->strided = have->piece[0].stride != NULL;
	for (unsigned d = 0; b->strided && d < t->ndim; d++)
		b->stride[d] = have->piece[0].stride[d] * b->element;
	fmt_volume(b->p->size, t->ndim, &volume); /* checked by fmt_set_cover() */
	bytes = volume * b->element;
	if (!b->strided &&
	    (have->piece[0].at > b->p->length || bytes > b->p->length - have->piece[0].at))
		return item_wrong(r, t, b->p, "size");
	return 0;
}

/* Sets b->at and strides. A row-major item is read once only. */
static int locate(struct reading *r, struct box *b, const struct fmt_source *s)
{
	struct view_base *base = r->v->base;
	size_t tensor = (size_t)(b->t - base->set->tensor);
	size_t index = base->tensor[tensor].first + (size_t)(b->p - b->t->piece);
	_Atomic uint64_t *known = &base->data_at[index];
	struct fmt_set *set;
	int err;

	b->at = b->p->at;
	b->strided = b->p->stride != NULL;
	for (unsigned d = 0; b->strided && d < b->t->ndim; d++)
		b->stride[d] = b->p->stride[d] * b->element;
	if (b->p->payload != FMT_ITEM)
		return 0;
	b->at = atomic_load_explicit(known, memory_order_relaxed);
	if (b->at)
		return 0;
	set = fmt_set_new();
	if (!set)
		return fmt_fail(r->e, -ENOMEM, FMT_NOWHERE, "no memory");
	err = look_into(r, b, s, set);
	fmt_set_free(set);
	if (!err && !b->strided)
		atomic_store_explicit(known, b->at, memory_order_relaxed);
	return err;
}

/* Makes runs as long as both the tensor and the file allow. The sizes were checked. */
static void find_runs(struct box *b)
{
	const struct fmt_tensor *t = b->t;
	const uint64_t *size = b->p->size;
	uint64_t step = b->element;
	unsigned d = t->ndim;

	b->first = 0;
	for (unsigned i = t->ndim; i-- > 0;) {
		b->step[i] = step;
		b->first += b->p->offset[i] * step;
		step *= t->shape[i];
	}
	b->run = b->element;
	while (d > 0 && (b->run == b->step[d - 1] || size[d - 1] == 1) &&
	       (!b->strided || size[d - 1] == 1 || b->stride[d - 1] == b->run)) {
		d--;
		b->run *= size[d];
	}
	b->outer = d;
	b->runs = 1;
	while (d-- > 0)
		b->runs *= size[d];
}

/* ---- runs ------------------------------------------------------------------------- */

struct run {
	uint64_t to, from; /* offset in the tensor, in the file */
};

static struct run run_of(const struct box *b, uint64_t i)
{
	struct run r = {b->first, b->at + (b->strided ? 0 : i * b->run)};

	for (unsigned d = b->outer; d > 0; d--) {
		uint64_t k = d > 1 ? i % b->p->size[d - 1] : i;

		i = d > 1 ? i / b->p->size[d - 1] : 0;
		r.to += k * b->step[d - 1];
		if (b->strided)
			r.from += k * b->stride[d - 1];
	}
	return r;
}

/* The first run that ends after `a`; b->runs: none. */
static uint64_t first_run(const struct box *b, uint64_t a)
{
	uint64_t lo = 0, hi = b->runs;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (run_of(b, mid).to + b->run <= a)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct scatter { /* a run, or the part of it in the range */
	uint64_t to, from;
	uint32_t len;
};

#define MAX_SCATTER ((VIEW_SCRATCH - WINDOW) / sizeof(struct scatter))

static int read_some(struct reading *r, const struct box *b, const struct fmt_source *s,
		     uint64_t at, void *buf, uint64_t len)
{
	int err = fmt_read(s, at, buf, (size_t)len);

	if (err == -EBADMSG)
		fmt_say(r->e, s->size, "%.60s: %.60s ends before a piece does", b->t->name,
			r->v->base->set->file[b->p->file].name);
	else if (err)
		fmt_say(r->e, FMT_NOWHERE, "%.60s: %.60s: %s", b->t->name,
			r->v->base->set->file[b->p->file].name, strerror(-err));
	return err;
}

/* Copies the part of [a, c) of the tensor that the box has to buf, which begins at a. */
static int gather(struct reading *r, const struct box *b, const struct fmt_source *s, uint64_t a,
		  uint64_t c, char *buf)
{
	char *window = r->io->scratch;
	struct scatter *v = (struct scatter *)(void *)(window + WINDOW);
	int err = 0;

	for (uint64_t i = first_run(b, a); !err && i < b->runs;) {
		uint64_t lo = UINT64_MAX, hi = 0;
		size_t n = 0;

		for (; i < b->runs && n < MAX_SCATTER; i++) {
			struct run x = run_of(b, i);
			uint64_t skip = x.to < a ? a - x.to : 0, len = b->run - skip;
			uint64_t from = x.from + skip, to = x.to + skip;

			if (to >= c) {
				i = b->runs;
				break;
			}
			if (len > c - to)
				len = c - to;
			if (len >= DIRECT && n)
				break;
			if (n && ((hi > from + len ? hi : from + len) - (lo < from ? lo : from)) >
					 WINDOW)
				break;
			if (len >= DIRECT) {
				err = read_some(r, b, s, from, buf + (to - a), len);
				i++;
				break;
			}
			lo = lo < from ? lo : from;
			hi = hi > from + len ? hi : from + len;
			v[n++] = (struct scatter){to, from, (uint32_t)len};
		}
		if (n == 1) {
			err = read_some(r, b, s, lo, buf + (v[0].to - a), hi - lo);
		} else if (n) {
			err = read_some(r, b, s, lo, window, hi - lo);
			for (size_t k = 0; !err && k < n; k++)
				memcpy(buf + (v[k].to - a), window + (v[k].from - lo), v[k].len);
		}
	}
	return err;
}

/* ---- tensors ---------------------------------------------------------------------- */

static bool is_empty(const struct fmt_piece *p, unsigned ndim)
{
	for (unsigned d = 0; d < ndim; d++)
		if (!p->size[d])
			return true;
	return false;
}

/* The first piece that may reach beyond row `row`: pieces are sorted by offset. */
static size_t first_piece(const struct fmt_tensor *t, uint64_t tall, uint64_t row)
{
	size_t lo = 0, hi = t->ndim ? t->n_pieces : 0;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (t->piece[mid].offset[0] + tall <= row)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Calls fn for each piece that may overlap [a, c), until it returns non-zero. */
static int each_box(struct reading *r, size_t tensor, uint64_t a, uint64_t c,
		    int (*fn)(struct reading *r, const struct box *b, const struct fmt_source *s,
			      void *arg),
		    void *arg)
{
	const struct fmt_tensor *t = &r->v->base->set->tensor[tensor];
	uint64_t row = t->dtype->bits / 8, tall = r->v->base->tensor[tensor].tall;
	int err = 0;

	for (unsigned d = 1; d < t->ndim; d++)
		row *= t->shape[d];
	for (size_t i = first_piece(t, tall, a / row); !err && i < t->n_pieces; i++) {
		struct box b = {.t = t, .p = &t->piece[i], .element = t->dtype->bits / 8};
		struct fmt_source s;

		if (is_empty(b.p, t->ndim))
			continue;
		if (t->ndim && b.p->offset[0] * row >= c)
			break;
		if (t->ndim && (b.p->offset[0] + b.p->size[0]) * row <= a)
			continue;
		find_runs(&b);
		if (b.first >= c)
			break; /* pieces are sorted by their first elements */
		if (first_run(&b, a) == b.runs || run_of(&b, first_run(&b, a)).to >= c)
			continue;
		err = r->io->get(r->io->ctx, b.p->file, &s);
		if (err) {
			fmt_say(r->e, FMT_NOWHERE, "%.60s: %.60s: %s", t->name,
				r->v->base->set->file[b.p->file].name, strerror(-err));
			return err;
		}
		err = locate(r, &b, &s);
		if (!err) {
			find_runs(&b); /* again, since strides are known now */
			err = fn(r, &b, &s, arg);
		}
		r->io->put(r->io->ctx, b.p->file);
	}
	return err;
}

/* Reads [from, from + len) of a blob. */
static int read_blob(struct reading *r, const struct fmt_blob *b, uint64_t from, void *buf,
		     size_t len)
{
	const char *file = r->v->base->set->file[b->file].name;
	struct fmt_source s;
	int err = r->io->get(r->io->ctx, b->file, &s);

	if (!err) {
		err = fmt_read(&s, b->at + from, buf, len);
		r->io->put(r->io->ctx, b->file);
	}
	if (err == -EBADMSG)
		fmt_say(r->e, s.size, "%.60s: %.60s ends before it does", b->name, file);
	else if (err)
		fmt_say(r->e, FMT_NOWHERE, "%.60s: %.60s: %s", b->name, file, strerror(-err));
	return err;
}

struct range {
	uint64_t a, c;
	char *buf;
};

static int gather_box(struct reading *r, const struct box *b, const struct fmt_source *s, void *arg)
{
	const struct range *g = arg;

	return gather(r, b, s, g->a, g->c, g->buf);
}

static const struct view_part *part_at(const struct view *v, uint64_t off)
{
	size_t lo = 0, hi = v->n_parts;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (v->part[mid].at + v->part[mid].bytes <= off)
			lo = mid + 1;
		else
			hi = mid;
	}
	return &v->part[lo];
}

int view_read(const struct view *v, const struct view_io *io, uint64_t off, void *buf, size_t len,
	      struct fmt_error *e)
{
	const struct fmt_set *set = v->base->set;
	struct reading r = {v, io, e};
	int err = 0;

	if (off > v->size || len > v->size - off)
		return fmt_fail(e, -EINVAL, FMT_NOWHERE, "not within the view");
	for (char *to = buf; !err && len;) {
		const struct view_part *p = part_at(v, off);
		uint64_t skip = off - p->at;
		size_t n = len < p->bytes - skip ? len : (size_t)(p->bytes - skip);

		if (p->tensor == VIEW_MEMORY) {
			memcpy(to, v->mem + p->from + skip, n);
		} else if (p->tensor >= set->n_tensors) {
			err = read_blob(&r, &set->blob[p->tensor - set->n_tensors], p->from + skip,
					to, n);
		} else {
			struct range g = {p->from + skip, p->from + skip + n, to};

			err = each_box(&r, p->tensor, g.a, g.c, gather_box, &g);
		}
		to += n;
		off += n;
		len -= n;
	}
	return err;
}

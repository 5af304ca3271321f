/* SPDX-License-Identifier: MIT
 *
 * Sets, and the input and output of ckpt_content_read(), as bytes for another process.
 *
 * Numbers are LEB128, strings are preceded by their length. The sender may have been compromised by
 * hostile bytes: so this is one more format, read through the same functions as all others, and
 * everything that those rely on is checked here.
 */
#include "fs/formats/inside.h"

/* ---- writing ---------------------------------------------------------------------- */

static void put(struct fmt_packed *b, const void *p, size_t n)
{
	if (b->no_memory)
		return;
	if (n > b->cap - b->n) {
		size_t cap = b->cap ? b->cap * 2 : 4096;
		void *v;

		while (cap - b->n < n)
			cap *= 2;
		v = realloc(b->p, cap);
		if (!v) {
			b->no_memory = true;
			return;
		}
		b->p = v;
		b->cap = cap;
	}
	if (n)
		memcpy(b->p + b->n, p, n);
	b->n += n;
}

static void put_number(struct fmt_packed *b, uint64_t x)
{
	uint8_t v[10];
	size_t n = 0;

	for (; x > 127; x >>= 7)
		v[n++] = (uint8_t)(x | 128);
	v[n++] = (uint8_t)x;
	put(b, v, n);
}

static void put_numbers(struct fmt_packed *b, const uint64_t *v, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		put_number(b, v[i]);
}

static void put_text(struct fmt_packed *b, const char *s)
{
	size_t n = strlen(s);

	put_number(b, n);
	put(b, s, n);
}

void fmt_packed_free(struct fmt_packed *b)
{
	free(b->p);
	*b = (struct fmt_packed){0};
}

/* ---- reading ---------------------------------------------------------------------- */

struct unpack {
	const uint8_t *p;
	size_t n; /* bytes left */
	struct fmt_error *e;
};

static int spoiled(struct unpack *u, const char *what)
{
	return fmt_fail(u->e, -EBADMSG, FMT_NOWHERE, "not what was packed: %s", what);
}

static int get_number(struct unpack *u, uint64_t max, uint64_t *out)
{
	uint64_t x = 0;

	for (unsigned shift = 0; u->n && shift < 64; shift += 7) {
		uint8_t c = *u->p++;

		u->n--;
		if (shift == 63 && c > 1)
			break;
		x |= (uint64_t)(c & 127) << shift;
		if (c & 128)
			continue;
		if (x > max)
			break;
		*out = x;
		return 0;
	}
	return spoiled(u, "a number");
}

/* A number of items that follow, each at least one byte long. */
static int get_count(struct unpack *u, uint64_t *out)
{
	return get_number(u, u->n, out);
}

static int get_numbers(struct unpack *u, uint64_t *v, unsigned n)
{
	int err = 0;

	for (unsigned i = 0; !err && i < n; i++)
		err = get_number(u, UINT64_MAX, &v[i]);
	return err;
}

/* Borrowed, without a NUL. */
static int get_text(struct unpack *u, const char **p, size_t *len)
{
	uint64_t n;
	int err = get_count(u, &n);

	if (err || n > u->n || memchr(u->p, '\0', (size_t)n))
		return spoiled(u, "a text");
	*p = (const char *)u->p;
	*len = (size_t)n;
	u->p += n;
	u->n -= (size_t)n;
	return 0;
}

static int get_string(struct unpack *u, struct fmt_set *s, const char **out)
{
	const char *p;
	size_t n;
	int err = get_text(u, &p, &n);

	return err ? err : fmt_set_string(s, p, n, out, u->e);
}

static int get_copy(struct unpack *u, const char **out)
{
	const char *p;
	size_t n;
	int err = get_text(u, &p, &n);

	if (err)
		return err;
	*out = strndup(p, n);
	return *out ? 0 : fmt_fail(u->e, -ENOMEM, FMT_NOWHERE, "no memory");
}

/* ---- sets ------------------------------------------------------------------------- */

enum { PIECE_STRIDED = 1, PIECE_REFUSED = 2 };
enum { DTYPE_NONE, DTYPE_KNOWN, DTYPE_OTHER_NAME };

static void put_piece(struct fmt_packed *b, const struct fmt_piece *p, unsigned ndim)
{
	put_number(b, (p->stride ? PIECE_STRIDED : 0) | (p->refusal ? PIECE_REFUSED : 0));
	put_number(b, p->file == FMT_NO_FILE ? 0 : (uint64_t)p->file + 1);
	put_number(b, p->payload);
	put_number(b, p->at);
	put_number(b, p->length);
	put_numbers(b, p->offset, ndim);
	put_numbers(b, p->size, ndim);
	if (p->stride)
		put_numbers(b, p->stride, ndim);
	if (p->refusal)
		put_text(b, p->refusal);
}

static void put_tensor(struct fmt_packed *b, const struct fmt_tensor *t)
{
	bool same = t->dtype && !strcmp(t->dtype->name, t->dtype_name);

	put_text(b, t->name);
	put_number(b, same ? DTYPE_KNOWN : t->dtype ? DTYPE_OTHER_NAME : DTYPE_NONE);
	if (t->dtype)
		put_text(b, t->dtype->name);
	if (!same)
		put_text(b, t->dtype_name);
	put_number(b, t->ndim);
	put_numbers(b, t->shape, t->ndim);
	put_number(b, t->n_pieces);
	for (size_t i = 0; i < t->n_pieces; i++)
		put_piece(b, &t->piece[i], t->ndim);
}

int fmt_pack_set(struct fmt_packed *b, const struct fmt_set *s)
{
	put_number(b, s->n_files);
	for (size_t i = 0; i < s->n_files; i++) {
		put_text(b, s->file[i].name);
		put_number(b, s->file[i].need);
		put_number(b, s->file[i].items);
	}
	put_number(b, s->n_tensors);
	for (size_t i = 0; i < s->n_tensors; i++)
		put_tensor(b, &s->tensor[i]);
	return b->no_memory ? -ENOMEM : 0;
}

static int get_file(struct unpack *u, struct fmt_set *s)
{
	size_t had = s->n_files, len;
	const char *name;
	int err = get_text(u, &name, &len);
	int64_t i = err ? err : fmt_set_file(s, name, len, u->e);

	if (i < 0)
		return (int)i;
	if ((size_t)i != had)
		return spoiled(u, "a file that comes twice");
	err = get_number(u, INT64_MAX, &s->file[i].need);
	return err ? err : get_number(u, UINT64_MAX, &s->file[i].items);
}

static int get_dtype(struct unpack *u, struct fmt_set *s, struct fmt_tensor *t)
{
	const char *name;
	uint64_t kind;
	size_t len;
	int err = get_number(u, DTYPE_OTHER_NAME, &kind);

	if (!err && kind != DTYPE_NONE) {
		err = get_text(u, &name, &len);
		t->dtype = err ? NULL : fmt_dtype_torch(name, len);
		if (!err && !t->dtype)
			err = spoiled(u, "a dtype");
	}
	if (err || kind == DTYPE_KNOWN) {
		t->dtype_name = err ? "" : t->dtype->name;
		return err;
	}
	return get_string(u, s, &t->dtype_name);
}

/* A piece's offset and size in the tensor, in one array. */
static int get_box(struct unpack *u, struct fmt_set *s, struct fmt_piece *p, unsigned ndim,
		   bool strided)
{
	unsigned n = ndim * (strided ? 3 : 2);
	uint64_t *v = arena_array(fmt_set_arena(s), n ? n : 1, sizeof(*v));
	int err = v ? get_numbers(u, v, n)
		    : fmt_fail(u->e, -E2BIG, FMT_NOWHERE, "expands out of proportion");

	for (unsigned d = 0; !err && d < ndim; d++)
		if (v[d] > INT64_MAX || v[ndim + d] > INT64_MAX - v[d])
			err = spoiled(u, "a piece beyond 2^63");
	if (err)
		return err;
	p->offset = v;
	p->size = v + ndim;
	p->stride = strided ? v + 2 * ndim : NULL;
	return 0;
}

static int get_piece(struct unpack *u, struct fmt_set *s, struct fmt_tensor *t)
{
	struct fmt_piece p = {.file = FMT_NO_FILE};
	uint64_t flags, file, payload;
	int err = get_number(u, PIECE_STRIDED | PIECE_REFUSED, &flags);

	if (!err)
		err = get_number(u, s->n_files, &file);
	if (!err)
		err = get_number(u, FMT_ITEM, &payload);
	if (!err)
		err = get_number(u, INT64_MAX, &p.at);
	if (!err)
		err = get_number(u, (uint64_t)INT64_MAX - p.at, &p.length);
	if (!err)
		err = get_box(u, s, &p, t->ndim, flags & PIECE_STRIDED);
	if (!err && flags & PIECE_REFUSED)
		err = get_string(u, s, &p.refusal);
	if (err)
		return err;
	if ((payload == FMT_STRIDED) != !!(flags & PIECE_STRIDED))
		return spoiled(u, "strides");
	if (!file && !p.refusal)
		return spoiled(u, "a piece without a file");
	p.file = file ? (uint32_t)file - 1 : FMT_NO_FILE;
	p.payload = (uint8_t)payload;
	return fmt_set_piece(t, &p, u->e);
}

static int get_tensor(struct unpack *u, struct fmt_set *s)
{
	uint64_t shape[FMT_MAX_DIMS], ndim, n;
	struct fmt_tensor kind = {0}, *t;
	const char *name;
	size_t len;
	int err = get_text(u, &name, &len);

	if (!err && fmt_set_find(s, name, len))
		err = spoiled(u, "a tensor that comes twice");
	if (!err)
		err = get_dtype(u, s, &kind);
	if (!err)
		err = get_number(u, FMT_MAX_DIMS, &ndim);
	if (!err)
		err = get_numbers(u, shape, (unsigned)ndim);
	if (!err)
		err = fmt_set_add(s, name, len, (unsigned)ndim, shape, &t, u->e);
	if (err)
		return err;
	t->dtype = kind.dtype;
	t->dtype_name = kind.dtype_name;
	err = get_count(u, &n);
	for (; !err && n; n--)
		err = get_piece(u, s, t);
	return err;
}

static int get_set(struct unpack *u, struct fmt_set *s)
{
	uint64_t n;
	int err;

	fmt_set_allow(s, u->n);
	err = get_count(u, &n);
	for (; !err && n; n--)
		err = get_file(u, s);
	if (!err)
		err = get_count(u, &n);
	for (; !err && n; n--)
		err = get_tensor(u, s);
	if (!err)
		fmt_set_finish(s);
	return err;
}

int fmt_unpack_set(struct fmt_set *s, const void *bytes, size_t len, struct fmt_error *e)
{
	struct unpack u = {bytes, len, e};
	int err = get_set(&u, s);

	return !err && u.n ? spoiled(&u, "more than that") : err;
}

/* ---- the question ----------------------------------------------------------------- */

enum { NAME_DIR = 1, NAME_OPEN = 2 };

int ckpt_pack_question(struct fmt_packed *b, const struct ckpt_content *c, uint64_t max_bytes,
		       enum ckpt_depth depth)
{
	put_number(b, depth);
	put_number(b, max_bytes);
	put_number(b, c->kind.format);
	put_number(b, c->kind.ranks);
	put_number(b, c->n);
	for (size_t i = 0; i < c->n; i++) {
		put_number(b, (c->v[i].dir ? NAME_DIR : 0) | (c->v[i].open ? NAME_OPEN : 0));
		put_number(b, c->v[i].size);
		put_text(b, c->v[i].name);
	}
	return b->no_memory ? -ENOMEM : 0;
}

static int get_name(struct unpack *u, struct ckpt_content *c)
{
	struct ckpt_name x = {0};
	uint64_t flags;
	int err = get_number(u, NAME_DIR | NAME_OPEN, &flags);

	if (!err)
		err = get_number(u, UINT64_MAX, &x.size);
	if (!err)
		err = get_copy(u, &x.name);
	if (err)
		return err;
	x.dir = flags & NAME_DIR;
	x.open = flags & NAME_OPEN;
	c->v[c->n++] = x;
	return 0;
}

int ckpt_unpack_question(struct ckpt_content *c, uint64_t *max_bytes, enum ckpt_depth *depth,
			 const void *bytes, size_t len)
{
	struct unpack u = {bytes, len, NULL};
	uint64_t how = 0, format = 0, ranks = 0, n = 0;
	int err = get_number(&u, CKPT_ALL, &how);

	*c = (struct ckpt_content){0};
	if (!err)
		err = get_number(&u, UINT64_MAX, max_bytes);
	if (!err)
		err = get_number(&u, CKPT_SNAPSHOT, &format);
	if (!err)
		err = get_number(&u, UINT32_MAX, &ranks);
	if (!err)
		err = get_count(&u, &n);
	c->kind.format = (enum ckpt_format)format;
	c->kind.ranks = (uint32_t)ranks;
	*depth = (enum ckpt_depth)how;
	c->v = err ? NULL : calloc(n ? n : 1, sizeof(*c->v));
	if (!err && !c->v)
		err = -ENOMEM;
	for (; !err && n; n--)
		err = get_name(&u, c);
	if (err)
		ckpt_content_free(c);
	return err;
}

/* ---- the answer ------------------------------------------------------------------- */

/* Names with a '/' are part of the answer, all others of the question. */
static bool is_nested(const struct ckpt_name *n)
{
	return strchr(n->name, '/') != NULL;
}

int ckpt_pack_answer(struct fmt_packed *b, const struct ckpt_content *c)
{
	size_t nested = 0, faults = 0;

	for (size_t i = 0; i < c->n; i++) {
		nested += is_nested(&c->v[i]);
		faults += c->v[i].fault != NULL;
	}
	put_number(b, c->kind.ranks);
	put_number(b, nested);
	for (size_t i = 0; i < c->n; i++)
		if (is_nested(&c->v[i])) {
			put_text(b, c->v[i].name);
			put_number(b, c->v[i].size);
		}
	put_number(b, faults);
	for (size_t i = 0; i < c->n; i++)
		if (c->v[i].fault) {
			put_text(b, c->v[i].name);
			put_text(b, c->v[i].fault);
		}
	put_number(b, c->index.v != NULL);
	if (c->index.v) {
		put_number(b, c->index.total);
		put_number(b, c->index.n);
		for (size_t i = 0; i < c->index.n; i++) {
			put_text(b, c->index.v[i].name);
			put_number(b, c->index.v[i].file);
		}
	}
	put_number(b, c->set != NULL);
	return c->set ? fmt_pack_set(b, c->set) : b->no_memory ? -ENOMEM : 0;
}

static int get_nested(struct unpack *u, struct ckpt_content *c)
{
	struct ckpt_name *v;
	uint64_t n;
	int err = get_count(u, &n);

	if (err || !n)
		return err;
	v = reallocarray(c->v, c->n + n, sizeof(*v));
	if (!v)
		return -ENOMEM;
	c->v = v;
	for (; !err && n; n--) {
		struct ckpt_name x = {0};

		err = get_copy(u, &x.name);
		if (err)
			break;
		c->v[c->n++] = x;
		if (!is_nested(&x) || !fmt_stays_below(x.name, strlen(x.name)))
			err = spoiled(u, "a name");
		else
			err = get_number(u, INT64_MAX, &c->v[c->n - 1].size);
	}
	ckpt_names_sort(c->v, c->n);
	for (size_t i = 1; !err && i < c->n; i++)
		if (!strcmp(c->v[i - 1].name, c->v[i].name))
			err = spoiled(u, "a name that comes twice");
	return err;
}

static int get_faults(struct unpack *u, struct ckpt_content *c)
{
	uint64_t n;
	int err = get_count(u, &n);

	for (; !err && n; n--) {
		CLEANUP_FREE const char *name = NULL;
		ssize_t i;

		err = get_copy(u, &name);
		if (err)
			break;
		i = ckpt_names_find(c->v, c->n, name);
		if (i < 0 || c->v[i].fault)
			err = spoiled(u, "a fault");
		else
			err = get_copy(u, &c->v[i].fault);
	}
	return err;
}

static int get_index(struct unpack *u, struct ckpt_content *c)
{
	struct safetensors_index *x = &c->index;
	uint64_t any, n, file = 0;
	int err = get_number(u, 1, &any);

	if (err || !any)
		return err;
	err = get_number(u, UINT64_MAX, &x->total);
	if (!err)
		err = get_count(u, &n);
	if (err)
		return err;
	x->v = calloc(n ? n : 1, sizeof(*x->v));
	if (!x->v)
		return -ENOMEM;
	for (; !err && n; n--) {
		err = get_string(u, c->set, &x->v[x->n].name);
		if (!err)
			err = get_number(u, UINT32_MAX, &file);
		if (!err)
			x->v[x->n++].file = (uint32_t)file;
	}
	return err;
}

int ckpt_unpack_answer(struct ckpt_content *c, const void *bytes, size_t len, struct fmt_error *e)
{
	struct unpack u = {bytes, len, e};
	uint64_t ranks = 0, any = 0;
	int err = get_number(&u, UINT32_MAX, &ranks);

	if (!err)
		err = get_nested(&u, c);
	if (!err)
		err = get_faults(&u, c);
	c->set = err ? NULL : fmt_set_new();
	if (!err && !c->set)
		return -ENOMEM;
	if (!err) {
		fmt_set_allow(c->set, u.n); /* the index shares its names with the set */
		err = get_index(&u, c);
	}
	if (!err)
		err = get_number(&u, 1, &any);
	if (!err && any)
		err = get_set(&u, c->set);
	if (!err && u.n)
		err = spoiled(&u, "more than that");
	if (!err && any)
		for (size_t i = 0; !err && i < c->index.n; i++)
			if (c->index.v[i].file >= c->set->n_files)
				err = spoiled(&u, "a file of the index");
	if (err)
		return err;
	c->kind.ranks = (uint32_t)ranks;
	if (any)
		return 0;
	free(c->index.v);
	c->index = (struct safetensors_index){0};
	fmt_set_free(c->set);
	c->set = NULL;
	return 0;
}

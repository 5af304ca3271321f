/* SPDX-License-Identifier: MIT
 *
 * Sets of tensors, and whether their pieces cover them.
 *
 * Everything is in one arena, whose limit grows with the input of the set. Tensors and files are
 * found by hash.
 */
#include "fs/formats/inside.h"

#include <stdio.h>

#define MAX_OFF_GRID 4096u /* pieces compared pair by pair */

struct fmt_set_inside {
	struct arena arena;
	struct fmt_table tensors, files;
	bool finished;
	size_t cap_tensors, cap_files, cap_blobs;
};

static int no_memory(struct fmt_error *e, int err)
{
	return fmt_fail(e, err, FMT_NOWHERE,
			err == -E2BIG ? "expands out of proportion" : "no memory");
}

/* ---- the set ---------------------------------------------------------------------- */

struct fmt_set *fmt_set_new(void)
{
	struct fmt_set *s = calloc(1, sizeof(*s));

	if (s)
		s->inside = calloc(1, sizeof(*s->inside));
	if (!s || !s->inside) {
		free(s);
		return NULL;
	}
	arena_init(&s->inside->arena, 65536);
	fmt_table_init(&s->inside->tensors);
	fmt_table_init(&s->inside->files);
	return s;
}

void fmt_set_free(struct fmt_set *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->n_tensors; i++)
		free(s->tensor[i].piece);
	free(s->tensor);
	free(s->file);
	free(s->blob);
	fmt_table_free(&s->inside->tensors);
	fmt_table_free(&s->inside->files);
	arena_free(&s->inside->arena);
	free(s->inside);
	free(s);
}

void fmt_set_allow(struct fmt_set *s, uint64_t input_len)
{
	s->inside->arena.limit += fmt_allowance(input_len);
}

struct arena *fmt_set_arena(struct fmt_set *s)
{
	return &s->inside->arena;
}

int fmt_set_string(struct fmt_set *s, const char *p, size_t n, const char **out,
		   struct fmt_error *e)
{
	if (memchr(p, '\0', n))
		return fmt_fail(e, -EBADMSG, FMT_NOWHERE, "a name that contains a NUL: %.40s", p);
	*out = arena_string(&s->inside->arena, p, n);
	return *out ? 0 : no_memory(e, s->inside->arena.err);
}

/* Returns v with a free element at its end; NULL: no memory. */
static void *grow(void *v, size_t n, size_t *cap, size_t size)
{
	size_t more = *cap ? *cap * 2 : 1;

	if (n < *cap)
		return v;
	v = reallocarray(v, more, size);
	if (v)
		*cap = more;
	return v;
}

/* ---- files ------------------------------------------------------------------------ */

struct key {
	const struct fmt_set *s;
	const char *p;
	size_t n;
};

static bool same_file(const void *ctx, uint32_t i)
{
	const struct key *k = ctx;

	return !strncmp(k->s->file[i].name, k->p, k->n) && !k->s->file[i].name[k->n];
}

bool fmt_stays_below(const char *p, size_t n)
{
	if (!n || *p == '/' || memchr(p, '\0', n))
		return false;
	while (n) {
		const char *slash = memchr(p, '/', n);
		size_t len = slash ? (size_t)(slash - p) : n;

		if (!len || (len == 1 && *p == '.') || (len == 2 && !memcmp(p, "..", 2)))
			return false;
		if (slash && len + 1 == n)
			return false; /* ends with a slash: a directory */
		p += slash ? len + 1 : len;
		n -= slash ? len + 1 : len;
	}
	return true;
}

int64_t fmt_set_file(struct fmt_set *s, const char *name, size_t len, struct fmt_error *e)
{
	struct key k = {s, name, len};
	struct fmt_table *t = &s->inside->files;
	struct fmt_file *v;
	struct fmt_slot *slot;
	const char *copy;
	uint64_t hash;
	int err;

	if (!fmt_stays_below(name, len))
		return fmt_fail(e, -EBADMSG, FMT_NOWHERE, "a file outside the checkpoint: %.*s",
				(int)(len < 100 ? len : 100), name);
	err = fmt_table_grow(t, 1);
	if (err)
		return no_memory(e, err);
	hash = fmt_table_hash(t, name, len);
	slot = fmt_table_slot(t, hash, same_file, &k);
	if (slot->index)
		return slot->index - 1;
	v = grow(s->file, s->n_files, &s->inside->cap_files, sizeof(*v));
	if (!v)
		return no_memory(e, -ENOMEM);
	s->file = v;
	err = fmt_set_string(s, name, len, &copy, e);
	if (err)
		return err;
	fmt_table_put(t, slot, hash, (uint32_t)s->n_files);
	s->file[s->n_files++] = (struct fmt_file){.name = copy};
	return (int64_t)s->n_files - 1;
}

int fmt_set_extent(struct fmt_set *s, uint32_t file, uint64_t at, uint64_t length,
		   struct fmt_error *e)
{
	struct fmt_file *f = &s->file[file];

	if (at > INT64_MAX || length > INT64_MAX - at)
		return fmt_fail(e, -EBADMSG, FMT_NOWHERE, "%.100s: an extent that ends beyond 2^63",
				f->name);
	if (f->need < at + length)
		f->need = at + length;
	f->items++;
	return 0;
}

/* ---- tensors ---------------------------------------------------------------------- */

static bool same_tensor(const void *ctx, uint32_t i)
{
	const struct key *k = ctx;

	return !strncmp(k->s->tensor[i].name, k->p, k->n) && !k->s->tensor[i].name[k->n];
}

static struct fmt_tensor *find_sorted(const struct fmt_set *s, const char *name, size_t len)
{
	size_t lo = 0, hi = s->n_tensors;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		int c = strncmp(s->tensor[mid].name, name, len);

		if (!c)
			c = s->tensor[mid].name[len] != '\0';
		if (!c)
			return &s->tensor[mid];
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

struct fmt_tensor *fmt_set_find(const struct fmt_set *s, const char *name, size_t len)
{
	const struct fmt_table *t = &s->inside->tensors;
	struct key k = {s, name, len};
	const struct fmt_slot *slot;

	if (s->inside->finished)
		return find_sorted(s, name, len);
	if (!t->cap || memchr(name, '\0', len))
		return NULL;
	slot = fmt_table_slot(t, fmt_table_hash(t, name, len), same_tensor, &k);
	return slot->index ? &s->tensor[slot->index - 1] : NULL;
}

int fmt_set_add(struct fmt_set *s, const char *name, size_t len, unsigned ndim,
		const uint64_t *shape, struct fmt_tensor **out, struct fmt_error *e)
{
	struct key k = {s, name, len};
	struct fmt_table *table = &s->inside->tensors;
	uint64_t hash = fmt_table_hash(table, name, len);
	struct fmt_tensor t = {.ndim = ndim}, *v;
	int err;

	err = fmt_table_grow(table, 1);
	if (err)
		return no_memory(e, err);
	v = grow(s->tensor, s->n_tensors, &s->inside->cap_tensors, sizeof(*v));
	if (!v)
		return no_memory(e, -ENOMEM);
	s->tensor = v;
	t.shape = arena_array(&s->inside->arena, ndim ? ndim : 1, sizeof(*shape));
	if (!t.shape)
		return no_memory(e, s->inside->arena.err);
	if (ndim)
		memcpy(t.shape, shape, ndim * sizeof(*shape));
	err = fmt_set_string(s, name, len, &t.name, e);
	if (err)
		return err;
	fmt_table_put(table, fmt_table_slot(table, hash, same_tensor, &k), hash,
		      (uint32_t)s->n_tensors);
	*out = &s->tensor[s->n_tensors++];
	**out = t;
	return 0;
}

/* ---- pieces ----------------------------------------------------------------------- */

int fmt_set_piece(struct fmt_tensor *t, const struct fmt_piece *p, struct fmt_error *e)
{
	struct fmt_piece *v = grow(t->piece, t->n_pieces, &t->cap_pieces, sizeof(*v));

	if (!v)
		return no_memory(e, -ENOMEM);
	t->piece = v;
	t->piece[t->n_pieces++] = *p;
	for (unsigned d = 0; t->growing && d < t->ndim; d++)
		if (t->shape[d] < p->offset[d] + p->size[d])
			t->shape[d] = p->offset[d] + p->size[d];
	return 0;
}

int fmt_set_blob(struct fmt_set *s, const char *name, size_t len, uint32_t file, uint64_t at,
		 uint64_t length, struct fmt_blob **out, struct fmt_error *e)
{
	struct fmt_blob b = {.file = file, .at = at, .length = length}, *v;
	int err = fmt_set_string(s, name, len, &b.name, e);

	if (err)
		return err;
	v = grow(s->blob, s->n_blobs, &s->inside->cap_blobs, sizeof(*v));
	if (!v)
		return no_memory(e, -ENOMEM);
	s->blob = v;
	*out = &s->blob[s->n_blobs++];
	**out = b;
	return 0;
}

/* ---- finish ----------------------------------------------------------------------- */

static int by_sizes(const uint64_t *a, const uint64_t *b, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

static int by_place(const void *a, const void *b, void *tensor)
{
	const struct fmt_piece *p = a, *q = b;
	unsigned ndim = ((const struct fmt_tensor *)tensor)->ndim;
	int c = by_sizes(p->offset, q->offset, ndim);

	if (!c)
		c = by_sizes(p->size, q->size, ndim);
	if (!c && p->file != q->file)
		c = p->file < q->file ? -1 : 1; /* the first file found */
	if (!c && p->at != q->at)
		c = p->at < q->at ? -1 : 1;
	return c;
}

static void drop_replicas(struct fmt_tensor *t)
{
	size_t n = 0;

	if (t->n_pieces > 1)
		qsort_r(t->piece, t->n_pieces, sizeof(*t->piece), by_place, t);
	for (size_t i = 0; i < t->n_pieces; i++) {
		const struct fmt_piece *p = &t->piece[i], *last = n ? &t->piece[n - 1] : NULL;

		if (last && !by_sizes(last->offset, p->offset, t->ndim) &&
		    !by_sizes(last->size, p->size, t->ndim))
			continue;
		t->piece[n++] = *p;
	}
	t->n_pieces = n;
}

static int tensor_by_name(const void *a, const void *b)
{
	return strcmp(((const struct fmt_tensor *)a)->name, ((const struct fmt_tensor *)b)->name);
}

static int blob_by_name(const void *a, const void *b)
{
	return strcmp(((const struct fmt_blob *)a)->name, ((const struct fmt_blob *)b)->name);
}

void fmt_set_finish(struct fmt_set *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->n_tensors; i++)
		drop_replicas(&s->tensor[i]);
	if (s->n_tensors)
		qsort(s->tensor, s->n_tensors, sizeof(*s->tensor), tensor_by_name);
	if (s->n_blobs)
		qsort(s->blob, s->n_blobs, sizeof(*s->blob), blob_by_name);
	for (size_t i = 0; i < s->n_blobs; i++)
		if (!n || strcmp(s->blob[n - 1].name, s->blob[i].name))
			s->blob[n++] = s->blob[i];
	s->n_blobs = n;
	s->inside->finished = true;
}

/* ---- cover ------------------------------------------------------------------------ */

static bool is_empty(const struct fmt_piece *p, unsigned ndim)
{
	uint64_t v;

	return fmt_volume(p->size, ndim, &v) && !v;
}

static int in_bounds(const struct fmt_tensor *t, struct fmt_error *e)
{
	for (size_t i = 0; i < t->n_pieces; i++) {
		const struct fmt_piece *p = &t->piece[i];

		for (unsigned d = 0; d < t->ndim; d++)
			if (p->offset[d] > t->shape[d] || p->size[d] > t->shape[d] - p->offset[d])
				return fmt_fail(e, -EBADMSG, FMT_NOWHERE,
						"%.120s: a piece reaches %llu + %llu in dimension "
						"%u of %llu",
						t->name, (unsigned long long)p->offset[d],
						(unsigned long long)p->size[d], d,
						(unsigned long long)t->shape[d]);
	}
	return 0;
}

static int by_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Writes the distinct offsets in dimension d, sorted, to cut; returns how many. */
static size_t cuts(const struct fmt_tensor *t, unsigned d, uint64_t *cut)
{
	size_t n = 0, m = 0;

	for (size_t i = 0; i < t->n_pieces; i++)
		if (!is_empty(&t->piece[i], t->ndim))
			cut[n++] = t->piece[i].offset[d];
	if (n)
		qsort(cut, n, sizeof(*cut), by_u64);
	for (size_t i = 0; i < n; i++)
		if (!m || cut[m - 1] != cut[i])
			cut[m++] = cut[i];
	return m;
}

/* Whether every piece reaches from one cut to the next in dimension d. */
static bool on_cuts(const struct fmt_tensor *t, unsigned d, const uint64_t *cut, size_t n)
{
	for (size_t i = 0; i < t->n_pieces; i++) {
		const struct fmt_piece *p = &t->piece[i];
		const uint64_t *c;
		uint64_t end;

		if (is_empty(p, t->ndim))
			continue;
		c = bsearch(&p->offset[d], cut, n, sizeof(*cut), by_u64);
		end = (size_t)(c - cut) + 1 < n ? c[1] : t->shape[d];
		if (p->offset[d] + p->size[d] != end)
			return false;
	}
	return true;
}

/* Fills grid; *on: whether the pieces are its cells. */
static int find_grid(const struct fmt_tensor *t, uint64_t *grid, bool *on)
{
	CLEANUP_FREE uint64_t *cut = calloc(t->n_pieces ? t->n_pieces : 1, sizeof(*cut));

	if (!cut)
		return -ENOMEM;
	*on = true;
	for (unsigned d = 0; d < t->ndim && *on; d++) {
		size_t n = cuts(t, d, cut);

		*on = on_cuts(t, d, cut, n);
		grid[d] = n ? n : 1;
	}
	for (unsigned d = 0; d < t->ndim && !*on; d++)
		grid[d] = 0;
	return 0;
}

static bool overlap(const struct fmt_piece *a, const struct fmt_piece *b, unsigned ndim)
{
	for (unsigned d = 0; d < ndim; d++)
		if (a->offset[d] >= b->offset[d] + b->size[d] ||
		    b->offset[d] >= a->offset[d] + a->size[d])
			return false;
	return true;
}

static int pair_by_pair(const struct fmt_tensor *t, struct fmt_error *e)
{
	if (t->n_pieces > MAX_OFF_GRID)
		return fmt_fail(e, -ENOTSUP, FMT_NOWHERE, "%.120s: %zu pieces on no common grid",
				t->name, t->n_pieces);
	for (size_t i = 0; i < t->n_pieces; i++)
		for (size_t j = i + 1; j < t->n_pieces; j++)
			if (overlap(&t->piece[i], &t->piece[j], t->ndim))
				return fmt_fail(e, -EBADMSG, FMT_NOWHERE, "%.120s: pieces overlap",
						t->name);
	return 0;
}

static bool is_whole(const struct fmt_tensor *t)
{
	const struct fmt_piece *p = t->n_pieces == 1 ? &t->piece[0] : NULL;

	for (unsigned d = 0; p && d < t->ndim; d++)
		if (p->offset[d] || p->size[d] != t->shape[d])
			return false;
	return p;
}

/* Without replicas, cells of a grid are distinct, so the sum of volumes decides; without a grid,
 * pieces with the right sum may still overlap. */
int fmt_set_cover(const struct fmt_tensor *t, uint64_t *grid, struct fmt_error *e)
{
	uint64_t own[FMT_MAX_DIMS] = {0}, want, have = 0;
	bool on_grid;
	int err;

	if (!grid)
		grid = own;
	if (is_whole(t) && fmt_volume(t->shape, t->ndim, &want)) {
		for (unsigned d = 0; d < t->ndim; d++)
			grid[d] = 1;
		return 0;
	}
	memset(grid, 0, t->ndim * sizeof(*grid));
	err = in_bounds(t, e);
	if (err)
		return err;
	err = find_grid(t, grid, &on_grid);
	if (err)
		return no_memory(e, err);
	if (!fmt_volume(t->shape, t->ndim, &want))
		return fmt_fail(e, -EBADMSG, FMT_NOWHERE, "%.120s: more than 2^64 elements",
				t->name);
	for (size_t i = 0; i < t->n_pieces; i++) {
		uint64_t v;

		/* a piece is not larger than the tensor, so its volume fits */
		if (!fmt_volume(t->piece[i].size, t->ndim, &v) ||
		    __builtin_add_overflow(have, v, &have))
			have = UINT64_MAX;
	}
	if (have != want)
		return fmt_fail(e, -EBADMSG, FMT_NOWHERE,
				"%.120s: pieces hold %llu of %llu elements", t->name,
				(unsigned long long)have, (unsigned long long)want);
	return on_grid || !want ? 0 : pair_by_pair(t, e);
}

/* SPDX-License-Identifier: MIT
 *
 * PyTorch's distributed checkpoints: `.metadata`, and the items of `.distcp` files.
 *
 * `.metadata` is a pickle of Metadata{state_dict_metadata, storage_data, ...}: the first lists the
 * tensors and their chunks, the second the file of each chunk. They are joined on (name, offset),
 * as PyTorch does; the index in a MetadataIndex is only a hint.
 */
#include "fs/formats/inside.h"

#include <stdio.h>

#define CLASSES "torch.*" /* torch has moved the classes between modules */

struct stored { /* one entry of storage_data */
	const struct pickle_node *fqn, *at; /* at: offset, for errors */
	const struct pickle_seq *offset; /* NULL: None */
	uint32_t file;
	uint64_t start, length;
	const struct pickle_node *transforms; /* NULL: none */
};

/* The three dicts have the same keys, mostly in the same order: the entry after the last match is
 * tried before a lookup. */
struct reader {
	struct fmt_set *set;
	struct fmt_error *e;
	struct stored *v;
	uint32_t n, next;
	struct fmt_table stored;
	const struct pickle_seq *path; /* planner_data's pairs; NULL: none */
	uint32_t next_path;
	struct fmt_table paths; /* filled on first use */
	struct { /* steps of paths; there are few distinct ones */
		const char *p, *copy;
		uint32_t n;
	} step[64];
};

#define bad(r, n, ...) fmt_fail((r)->e, -EBADMSG, (n)->at, __VA_ARGS__)
#define STR(str) (int)((str)->u.s.n < 120 ? (str)->u.s.n : 120), (str)->u.s.p

static int no_arena(struct reader *r)
{
	int err = fmt_set_arena(r->set)->err;

	return fmt_fail(r->e, err, FMT_NOWHERE,
			err == -E2BIG ? "expands out of proportion" : "no memory");
}

/* ---- storage_data ----------------------------------------------------------------- */

static bool same_sizes(const struct pickle_seq *a, const struct pickle_seq *b)
{
	if (!a || !b || a->n != b->n || a->n > FMT_MAX_DIMS)
		return !a && !b;
	for (uint32_t i = 0; i < a->n; i++) {
		uint64_t x, y;

		if (!pickle_u64(a->v[i], &x) || !pickle_u64(b->v[i], &y) || x != y)
			return false;
	}
	return true;
}

static bool same_str(const struct pickle_node *a, const struct pickle_node *b)
{
	return a == b || (a->u.s.n == b->u.s.n && !memcmp(a->u.s.p, b->u.s.p, a->u.s.n));
}

struct item_key {
	const struct reader *r;
	const struct pickle_node *fqn;
	const struct pickle_seq *offset; /* NULL: none */
};

static bool is_item(const void *ctx, uint32_t i)
{
	const struct item_key *k = ctx;
	const struct stored *t = &k->r->v[i];

	return same_str(t->fqn, k->fqn) && same_sizes(t->offset, k->offset);
}

/* Elements that are not sizes hash as 0; they are found when they are copied. */
static uint64_t hash_of(const struct item_key *k)
{
	const struct fmt_table *t = &k->r->stored;
	uint64_t h = fmt_table_hash(t, k->fqn->u.s.p, k->fqn->u.s.n);

	for (uint32_t i = 0; k->offset && i < k->offset->n && i < FMT_MAX_DIMS; i++) {
		uint64_t x = 0;

		pickle_u64(k->offset->v[i], &x);
		h = fmt_table_mix(t, h, x);
	}
	return h;
}

static struct stored *find_stored(struct reader *r, const struct pickle_node *fqn,
				  const struct pickle_seq *offset)
{
	const struct item_key k = {r, fqn, offset};

	if (r->next >= r->n || !is_item(&k, r->next)) {
		const struct fmt_slot *s =
			r->n ? fmt_table_slot(&r->stored, hash_of(&k), is_item, &k) : NULL;

		if (!s || !s->index)
			return NULL;
		r->next = s->index - 1;
	}
	return &r->v[r->next++];
}

/* _StorageInfo{relative_path, offset, length, transform_descriptors?} */
static int read_info(struct reader *r, const struct pickle_node *n, struct stored *t)
{
	const struct pickle_node *path = pickle_attr(n, "relative_path");
	const struct pickle_node *how = pickle_attr(n, "transform_descriptors");
	int64_t file;

	if (!path || path->kind != PICKLE_STR || !pickle_u64(pickle_attr(n, "offset"), &t->start) ||
	    !pickle_u64(pickle_attr(n, "length"), &t->length))
		return bad(r, n, "%.*s: its storage info has no path, offset or length",
			   STR(t->fqn));
	file = fmt_set_file(r->set, path->u.s.p, path->u.s.n, r->e);
	if (file < 0) {
		if (r->e)
			r->e->at = path->at;
		return (int)file;
	}
	t->file = (uint32_t)file;
	if (how && how->kind != PICKLE_NONE &&
	    !(how->kind <= PICKLE_DICT && how->kind >= PICKLE_TUPLE && !how->u.seq.n))
		t->transforms = how;
	return fmt_set_extent(r->set, t->file, t->start, t->length, r->e);
}

static int read_stored(struct reader *r, const struct pickle_node *key,
		       const struct pickle_node *value)
{
	struct stored t = {.fqn = pickle_attr(key, "fqn"), .at = key};
	const struct pickle_node *offset = pickle_attr(key, "offset");
	struct fmt_slot *s;
	struct item_key k;
	uint64_t hash;
	int err;

	if (!pickle_is_object(key, CLASSES, "MetadataIndex") || !t.fqn || t.fqn->kind != PICKLE_STR)
		return bad(r, key, "a key of storage_data that is not a MetadataIndex");
	if (offset && offset->kind != PICKLE_NONE) {
		t.offset = pickle_sizes(offset);
		if (!t.offset || t.offset->n > FMT_MAX_DIMS)
			return bad(r, key, "%.*s: %s as an offset", STR(t.fqn),
				   pickle_kind_name(offset));
	}
	err = read_info(r, value, &t);
	if (err)
		return err;
	k = (struct item_key){r, t.fqn, t.offset};
	hash = hash_of(&k);
	s = fmt_table_slot(&r->stored, hash, is_item, &k);
	if (s->index)
		return bad(r, key, "%.*s: stored twice at the same offset", STR(t.fqn));
	fmt_table_put(&r->stored, s, hash, r->n);
	r->v[r->n++] = t;
	return 0;
}

static int read_storage(struct reader *r, const struct pickle_node *root)
{
	const struct pickle_node *d = pickle_attr(root, "storage_data");
	uint32_t n;
	int err = 0;

	if (!d || d->kind != PICKLE_DICT)
		return bad(r, root, "Metadata without storage_data: %s", pickle_kind_name(d));
	n = d->u.seq.n / 2;
	r->v = calloc(n ? n : 1, sizeof(*r->v));
	err = r->v ? fmt_table_grow(&r->stored, n) : -ENOMEM;
	if (err)
		return fmt_fail(r->e, err, FMT_NOWHERE, "no memory");
	for (uint32_t i = 0; !err && i < n; i++)
		err = read_stored(r, d->u.seq.v[2 * i], d->u.seq.v[2 * i + 1]);
	return err;
}

/* ---- state_dict_metadata ---------------------------------------------------------- */

static int copy_sizes(struct reader *r, const struct pickle_node *fqn, const struct pickle_node *n,
		      uint64_t **out, unsigned *ndim)
{
	const struct pickle_seq *q = pickle_sizes(n);

	if (!q || q->n > FMT_MAX_DIMS)
		return bad(r, n ? n : fqn, "%.*s: %s as a size", STR(fqn), pickle_kind_name(n));
	*ndim = q->n;
	*out = arena_array(fmt_set_arena(r->set), q->n ? q->n : 1, sizeof(**out));
	if (!*out)
		return no_arena(r);
	for (uint32_t i = 0; i < q->n; i++)
		if (!pickle_u64(q->v[i], &(*out)[i]))
			return bad(r, n, "%.*s: %s as a size", STR(fqn), pickle_kind_name(q->v[i]));
	return 0;
}

/* Refuses a piece whose bytes were transformed: it names what would have to be undone. */
static int say_transforms(struct reader *r, const struct stored *t, const char **out)
{
	const struct pickle_seq *q =
		t->transforms->kind >= PICKLE_TUPLE && t->transforms->kind <= PICKLE_DICT
			? &t->transforms->u.seq
			: NULL;
	const struct pickle_node *first = q ? q->v[0] : NULL;
	char text[128];
	int n;

	if (first && first->kind == PICKLE_STR)
		n = snprintf(text, sizeof(text),
			     "stored through a transform that is not supported: %.*s",
			     first->u.s.n < 40 ? (int)first->u.s.n : 40, first->u.s.p);
	else
		n = snprintf(text, sizeof(text),
			     "stored through a transform that is not supported");
	return fmt_set_string(r->set, text, strnlen(text, (size_t)n), out, r->e);
}

static int read_chunk(struct reader *r, const struct pickle_node *fqn, const struct pickle_node *n,
		      struct fmt_tensor *t)
{
	struct fmt_piece p = {.file = FMT_NO_FILE, .payload = FMT_ITEM};
	const struct pickle_node *offset = pickle_attr(n, "offsets");
	uint64_t *at, *size;
	unsigned ndim, ndim2;
	struct stored *s;
	int err;

	if (!pickle_is_object(n, CLASSES, "ChunkStorageMetadata"))
		return bad(r, n, "%.*s: %s as a chunk", STR(fqn), pickle_kind_name(n));
	err = copy_sizes(r, fqn, offset, &at, &ndim);
	if (!err)
		err = copy_sizes(r, fqn, pickle_attr(n, "sizes"), &size, &ndim2);
	if (!err && (ndim != t->ndim || ndim2 != t->ndim))
		err = bad(r, n, "%.*s: a chunk with another number of dimensions", STR(fqn));
	for (unsigned d = 0; !err && d < ndim; d++)
		if (at[d] > INT64_MAX - size[d])
			err = bad(r, n, "%.*s: invalid offset", STR(fqn));
	if (err)
		return err;
	p.offset = at;
	p.size = size;
	p.refusal = "not in storage_data";
	s = find_stored(r, fqn, pickle_sizes(offset));
	if (s) {
		p.file = s->file;
		p.at = s->start;
		p.length = s->length;
		p.refusal = NULL;
		if (s->transforms)
			err = say_transforms(r, s, &p.refusal);
	}
	return err ? err : fmt_set_piece(t, &p, r->e);
}

/* ---- planner_data ------------------------------------------------------------------- */

static bool is_path(const void *ctx, uint32_t pair)
{
	const struct item_key *k = ctx;
	const struct pickle_node *key = k->r->path->v[2 * pair];

	return key->kind == PICKLE_STR && same_str(key, k->fqn);
}

static int fill_paths(struct reader *r)
{
	int err = fmt_table_grow(&r->paths, r->path->n / 2);

	for (uint32_t i = 0; !err && i < r->path->n / 2; i++) {
		const struct pickle_node *key = r->path->v[2 * i];
		const struct item_key k = {.r = r, .fqn = key};
		uint64_t hash;

		if (key->kind != PICKLE_STR)
			continue;
		hash = fmt_table_hash(&r->paths, key->u.s.p, key->u.s.n);
		fmt_table_put(&r->paths, fmt_table_slot(&r->paths, hash, is_path, &k), hash, i);
	}
	return err ? fmt_fail(r->e, err, FMT_NOWHERE, "no memory") : 0;
}

/* *out: its value; NULL: it has none. */
static int find_path(struct reader *r, const struct pickle_node *fqn,
		     const struct pickle_node **out)
{
	const struct item_key k = {.r = r, .fqn = fqn};
	uint32_t i = r->next_path;

	*out = NULL;
	if (!r->path)
		return 0;
	if (i >= r->path->n / 2 || !is_path(&k, i)) {
		const struct fmt_slot *s;
		int err = r->paths.cap ? 0 : fill_paths(r);

		if (err)
			return err;
		s = fmt_table_slot(&r->paths, fmt_table_hash(&r->paths, fqn->u.s.p, fqn->u.s.n),
				   is_path, &k);
		if (!s->index)
			return 0;
		i = s->index - 1;
	}
	r->next_path = i + 1;
	*out = r->path->v[2 * i + 1];
	return 0;
}

/* The keys of paths are a few strings that occur again and again. */
static int copy_step(struct reader *r, const struct pickle_node *n, const char **out)
{
	size_t i = (uintptr_t)n->u.s.p % (sizeof(r->step) / sizeof(r->step[0]));
	int err;

	if (r->step[i].p != n->u.s.p || r->step[i].n != n->u.s.n) {
		err = fmt_set_string(r->set, n->u.s.p, n->u.s.n, &r->step[i].copy, r->e);
		if (err)
			return err;
		r->step[i].p = n->u.s.p;
		r->step[i].n = n->u.s.n;
	}
	*out = r->step[i].copy;
	return 0;
}

static void read_planner(struct reader *r, const struct pickle_node *root)
{
	const struct pickle_node *d = pickle_attr(root, "planner_data");

	if (d && d->kind == PICKLE_DICT)
		r->path = &d->u.seq;
}

/* planner_data: the path of each item, a tuple of keys and list indices. Other planners may store
 * anything: a value that is not such a path is ignored. */
static int read_path(struct reader *r, const struct pickle_node *fqn, struct fmt_path *out)
{
	const struct pickle_node *way;
	const struct pickle_seq *q;
	struct fmt_step *v;
	int err = find_path(r, fqn, &way);

	if (err)
		return err;
	q = pickle_sizes(way);
	if (!q || !q->n || q->n > FMT_MAX_PATH || q->v[0]->kind != PICKLE_STR)
		return 0;
	for (uint32_t i = 0; i < q->n; i++) {
		uint64_t index;

		const struct pickle_node *n = q->v[i];

		if (n->kind == PICKLE_STR ? memchr(n->u.s.p, '\0', n->u.s.n) != NULL
					  : !pickle_u64(n, &index))
			return 0;
	}
	v = arena_array(fmt_set_arena(r->set), q->n, sizeof(*v));
	if (!v)
		return no_arena(r);
	for (uint32_t i = 0; !err && i < q->n; i++)
		if (!pickle_u64(q->v[i], &v[i].index))
			err = copy_step(r, q->v[i], &v[i].key);
	*out = (struct fmt_path){v, q->n};
	return err;
}

/* properties: a tuple that starts with the dtype, or (older) a dict with that key. */
static const struct pickle_node *dtype_of(const struct pickle_node *n)
{
	const struct pickle_node *p = pickle_attr(n, "properties"), *d = pickle_attr(p, "dtype");

	if (!d && p && p->kind == PICKLE_OBJECT && p->u.object.state &&
	    p->u.object.state->kind == PICKLE_TUPLE && p->u.object.state->u.seq.n)
		d = p->u.object.state->u.seq.v[0];
	return d && d->kind == PICKLE_GLOBAL && pickle_is_str(d->u.global.module, "torch")
		       ? d->u.global.name
		       : NULL;
}

/* Checks that a tensor in another rank's metadata is the same tensor. */
static int meet(struct reader *r, const struct pickle_node *fqn, unsigned ndim,
		const uint64_t *shape, const struct fmt_dtype *dtype, struct fmt_tensor *t)
{
	if (t->ndim != ndim || memcmp(t->shape, shape, ndim * sizeof(*shape)) || t->dtype != dtype)
		return bad(r, fqn, "%.*s: another shape or dtype than in the files before",
			   STR(fqn));
	return 0;
}

static int read_tensor(struct reader *r, const struct pickle_node *fqn, const struct pickle_node *n)
{
	const struct pickle_node *name = dtype_of(n), *chunks = pickle_attr(n, "chunks");
	const struct fmt_dtype *dtype = name ? fmt_dtype_torch(name->u.s.p, name->u.s.n) : NULL;
	struct fmt_tensor *t = fmt_set_find(r->set, fqn->u.s.p, fqn->u.s.n);
	uint64_t *shape;
	unsigned ndim;
	int err = copy_sizes(r, fqn, pickle_attr(n, "size"), &shape, &ndim);

	if (!err && (!chunks || chunks->kind != PICKLE_LIST))
		err = bad(r, n, "%.*s: %s as its chunks", STR(fqn), pickle_kind_name(chunks));
	if (!err && !name)
		err = bad(r, n, "%.*s: no dtype", STR(fqn));
	if (!err && t)
		err = meet(r, fqn, ndim, shape, dtype, t);
	if (!err && !t) {
		err = fmt_set_add(r->set, fqn->u.s.p, fqn->u.s.n, ndim, shape, &t, r->e);
		if (err)
			return err;
		t->dtype = dtype;
		t->dtype_name = dtype ? dtype->name : NULL;
		if (!dtype)
			err = fmt_set_string(r->set, name->u.s.p, name->u.s.n, &t->dtype_name,
					     r->e);
		if (!err)
			err = read_path(r, fqn, &t->path);
	}
	for (uint32_t i = 0; !err && i < chunks->u.seq.n; i++)
		err = read_chunk(r, fqn, chunks->u.seq.v[i], t);
	return err;
}

static int read_bytes_item(struct reader *r, const struct pickle_node *fqn)
{
	struct stored *s = find_stored(r, fqn, NULL);
	struct fmt_blob *b;
	int err = fmt_set_blob(r->set, fqn->u.s.p, fqn->u.s.n, s ? s->file : FMT_NO_FILE,
			       s ? s->start : 0, s ? s->length : 0, &b, r->e);

	if (err)
		return err;
	if (!s)
		b->refusal = "not in storage_data";
	if (s && s->transforms)
		err = say_transforms(r, s, &b->refusal);
	return err ? err : read_path(r, fqn, &b->path);
}

static int read_state(struct reader *r, const struct pickle_node *root)
{
	const struct pickle_node *d = pickle_attr(root, "state_dict_metadata");
	int err = 0;

	if (!d || d->kind != PICKLE_DICT)
		return bad(r, root, "Metadata without state_dict_metadata: %s",
			   pickle_kind_name(d));
	for (uint32_t i = 0; !err && i < d->u.seq.n; i += 2) {
		const struct pickle_node *fqn = d->u.seq.v[i], *n = d->u.seq.v[i + 1];

		if (fqn->kind != PICKLE_STR)
			return bad(r, fqn, "%s as a tensor's name", pickle_kind_name(fqn));
		if (pickle_is_object(n, CLASSES, "TensorStorageMetadata"))
			err = read_tensor(r, fqn, n);
		else if (pickle_is_object(n, CLASSES, "BytesStorageMetadata"))
			err = read_bytes_item(r, fqn);
		else
			err = bad(r, n, "%.*s: neither a tensor nor bytes", STR(fqn));
	}
	return err;
}

int dcp_read(struct fmt_set *set, const void *bytes, size_t len, struct fmt_error *e)
{
	struct reader r = {.set = set, .e = e};
	const struct pickle_node *root;
	struct pickle *p;
	int err = pickle_parse(bytes, len, &p, NULL, e);

	if (err)
		return err;
	fmt_set_allow(set, len);
	fmt_table_init(&r.stored);
	fmt_table_init(&r.paths);
	root = pickle_root(p);
	if (!pickle_is_object(root, CLASSES, "Metadata"))
		err = bad(&r, root, "%s, not the Metadata of a distributed checkpoint",
			  pickle_kind_name(root));
	if (!err)
		err = read_storage(&r, root);
	read_planner(&r, root);
	if (!err)
		err = read_state(&r, root);
	free(r.v);
	fmt_table_free(&r.stored);
	fmt_table_free(&r.paths);
	pickle_free(p);
	return err;
}

/* ---- items ------------------------------------------------------------------------ */

int dcp_item_read(struct fmt_set *set, const struct fmt_source *item, struct fmt_error *e)
{
	int64_t file = fmt_set_file(set, "item", 4, e);
	int err = file < 0 ? (int)file : torchfile_read(set, (uint32_t)file, "", item, e);

	if (!err && (set->n_tensors != 1 || set->tensor[0].n_pieces != 1))
		err = fmt_fail(e, -EBADMSG, FMT_NOWHERE, "an item with %zu tensors",
			       set->n_tensors);
	return err;
}

/* ---- safetensors instead of zips --------------------------------------------------
 * With serialization_format=SAFETENSORS a rank's whole file is one safetensors file with
 * DCP_SHARDING_INFO, and what storage_data says of its inside (every offset is 0, the lengths
 * are those of the bare tensors) is of no use. */

static bool looks_bare(const struct fmt_tensor *t, const struct fmt_piece *p)
{
	uint64_t volume, bytes;

	return p->payload == FMT_ITEM && !p->refusal && !p->at && t->dtype &&
	       fmt_volume(p->size, t->ndim, &volume) && fmt_bytes(t->dtype, volume, &bytes) &&
	       bytes == p->length;
}

bool dcp_wants_header(const struct fmt_set *set, uint32_t file)
{
	bool any = false;

	for (size_t i = 0; i < set->n_tensors; i++) {
		const struct fmt_tensor *t = &set->tensor[i];

		for (size_t j = 0; j < t->n_pieces; j++) {
			if (t->piece[j].file != file)
				continue;
			if (!looks_bare(t, &t->piece[j]))
				return false;
			any = true;
		}
	}
	return any;
}

/* The piece of t at that offset; pieces are sorted by offset. */
static const struct fmt_piece *piece_at(const struct fmt_tensor *t, const struct fmt_piece *like)
{
	size_t lo = 0, hi = t->n_pieces;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		const struct fmt_piece *p = &t->piece[mid];
		int c = 0;

		for (unsigned d = 0; !c && d < t->ndim; d++)
			c = p->offset[d] < like->offset[d] ? -1 : p->offset[d] > like->offset[d];
		for (unsigned d = 0; !c && d < t->ndim; d++)
			c = p->size[d] < like->size[d] ? -1 : p->size[d] > like->size[d];
		if (!c)
			return p;
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

static int rebind(struct fmt_set *set, uint32_t file, const struct fmt_set *header,
		  struct fmt_error *e)
{
	for (size_t i = 0; i < set->n_tensors; i++) {
		struct fmt_tensor *t = &set->tensor[i];

		for (size_t j = 0; j < t->n_pieces; j++) {
			struct fmt_piece *p = &t->piece[j];
			const struct fmt_tensor *have;
			const struct fmt_piece *q;

			if (p->file != file)
				continue;
			have = fmt_set_find(header, t->name, strlen(t->name));
			q = have && have->ndim == t->ndim && have->dtype == t->dtype
				    ? piece_at(have, p)
				    : NULL;
			if (!q)
				return fmt_fail(e, -EBADMSG, 8,
						"%.100s: the header has no such piece", t->name);
			p->at = q->at;
			p->length = q->length;
			p->payload = FMT_RAW;
			if (set->file[file].need < p->at + p->length)
				set->file[file].need = p->at + p->length;
		}
	}
	return 0;
}

int dcp_read_header(struct fmt_set *set, uint32_t file, const struct fmt_source *s,
		    struct fmt_error *e)
{
	struct fmt_set *header = fmt_set_new();
	int64_t i;
	int err;

	if (!header)
		return fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");
	i = fmt_set_file(header, "header", 6, e);
	err = i < 0 ? (int)i : safetensors_read(header, (uint32_t)i, s, e);
	if (!err) {
		fmt_set_finish(header);
		err = rebind(set, file, header, e);
	}
	fmt_set_free(header);
	return err;
}

/* SPDX-License-Identifier: MIT
 *
 * safetensors files, the index of several of them, and the metadata that DCP adds when each rank
 * writes its shards (DCP_SHARDING_INFO).
 */
#include "fs/formats/inside.h"

#define MAX_HEADER 100000000u /* the format's own limit */

struct entry { /* one tensor of the header, as written */
	const char *name;
	size_t name_len;
	const struct fmt_dtype *dtype;
	uint64_t *shape;
	unsigned ndim;
	uint64_t begin, end; /* in the data */
	uint64_t at; /* in the header, for errors */
	uint64_t *offset; /* in a larger tensor, or NULL */
};

struct reader {
	struct fmt_set *set;
	struct fmt_error *e;
	struct json_doc *doc;
	uint32_t file;
	uint64_t data; /* offset of the data in the file */
	struct entry *v; /* in the order of the text */
	size_t n;
};

#define bad(r, v, ...) fmt_fail((r)->e, -EBADMSG, 8 + json_offset((r)->doc, v), __VA_ARGS__)

static int no_arena(struct reader *r)
{
	int err = fmt_set_arena(r->set)->err;

	return fmt_fail(r->e, err, FMT_NOWHERE,
			err == -E2BIG ? "expands out of proportion" : "no memory");
}

/* ---- strings and arrays of the header --------------------------------------------- */

/* A string, copied to the set's arena; it must not contain a NUL. */
static int text_of(struct reader *r, int v, const char **out, size_t *len)
{
	size_t size = json_string_size(r->doc, v);
	char *buf = size ? arena_get(fmt_set_arena(r->set), size) : NULL;
	ssize_t n;

	if (!size)
		return bad(r, v, "not a string");
	if (!buf)
		return no_arena(r);
	n = json_string_copy(r->doc, v, buf);
	if (n < 0 || memchr(buf, '\0', (size_t)n))
		return bad(r, v, "not a valid name");
	*out = buf;
	*len = (size_t)n;
	return 0;
}

static int numbers_of(struct reader *r, int v, uint64_t **out, unsigned *n)
{
	int count = json_count(r->doc, v), i = 0;

	if (!json_is_array(r->doc, v) || count > (int)FMT_MAX_DIMS)
		return bad(r, v, "not a shape: %d dimensions", count);
	*out = arena_array(fmt_set_arena(r->set), count ? (size_t)count : 1, sizeof(**out));
	if (!*out)
		return no_arena(r);
	for (int k = json_first(r->doc, v); k >= 0; k = json_next(r->doc, v, k))
		if (!json_is_u64(r->doc, k, &(*out)[i]) || (*out)[i++] > INT64_MAX)
			return bad(r, k, "not a size or an offset");
	*n = (unsigned)count;
	return 0;
}

/* ---- the header ------------------------------------------------------------------- */

static int dtype_of(struct reader *r, int v, struct entry *t)
{
	const char *name;
	size_t len;
	int err = text_of(r, v, &name, &len);

	if (err)
		return err;
	t->dtype = fmt_dtype_safetensors(name, len);
	if (!t->dtype)
		return fmt_fail(r->e, -ENOTSUP, 8 + json_offset(r->doc, v), "%.100s: dtype %.40s",
				t->name, name);
	return 0;
}

static int offsets_of(struct reader *r, int v, struct entry *t)
{
	uint64_t *pair;
	unsigned n;
	int err = numbers_of(r, v, &pair, &n);

	if (!err && n != 2)
		err = bad(r, v, "%.100s: %u data offsets", t->name, n);
	if (err)
		return err;
	t->begin = pair[0];
	t->end = pair[1];
	return 0;
}

/* {"dtype": .., "shape": [..], "data_offsets": [.., ..]}: these three keys, once each. */
static int parse_entry(struct reader *r, int v, struct entry *t)
{
	unsigned seen = 0;
	int err = 0;

	if (!json_is_object(r->doc, v))
		return bad(r, v, "%.100s: not a description of a tensor", t->name);
	for (int k = json_first(r->doc, v), x; !err && k >= 0; k = json_next(r->doc, v, x)) {
		const char *key;
		unsigned bit;
		size_t len;

		x = json_next(r->doc, v, k);
		err = text_of(r, k, &key, &len);
		if (err)
			return err;
		bit = !strcmp(key, "dtype")	     ? 1
		      : !strcmp(key, "shape")	     ? 2
		      : !strcmp(key, "data_offsets") ? 4
						     : 0;
		if (!bit || seen & bit)
			return bad(r, k, "%.100s: %s key %.40s", t->name,
				   bit ? "a second" : "unknown", key);
		seen |= bit;
		if (bit == 1)
			err = dtype_of(r, x, t);
		else
			err = bit == 2 ? numbers_of(r, x, &t->shape, &t->ndim)
				       : offsets_of(r, x, t);
	}
	if (!err && seen != 7)
		err = bad(r, v, "%.100s: dtype, shape or data_offsets is missing", t->name);
	return err;
}

static int check_entry(struct reader *r, const struct entry *t)
{
	uint64_t volume, bytes;

	if (!fmt_volume(t->shape, t->ndim, &volume) || !fmt_bytes(t->dtype, volume, &bytes))
		return fmt_fail(r->e, -EBADMSG, t->at, "%.100s: invalid shape", t->name);
	if (t->begin > t->end || t->end - t->begin != bytes)
		return fmt_fail(r->e, -EBADMSG, t->at, "%.100s: %llu bytes at [%llu, %llu)",
				t->name, (unsigned long long)bytes, (unsigned long long)t->begin,
				(unsigned long long)t->end);
	return 0;
}

/* The header's metadata: a map of strings. *dcp: the entry of DCP. */
static int parse_metadata(struct reader *r, int v, int *dcp)
{
	*dcp = -1;
	if (!json_is_object(r->doc, v))
		return bad(r, v, "__metadata__ is not an object");
	for (int k = json_first(r->doc, v), x; k >= 0; k = json_next(r->doc, v, x)) {
		const char *key;
		size_t len;
		int err = text_of(r, k, &key, &len);

		if (err)
			return err;
		x = json_next(r->doc, v, k);
		if (!json_is_string(r->doc, x))
			return bad(r, x, "__metadata__: %.100s is not a string", key);
		if (!strcmp(key, "DCP_SHARDING_INFO"))
			*dcp = x;
	}
	return 0;
}

static int parse_header(struct reader *r, int *dcp)
{
	bool seen = false; /* __metadata__ */
	size_t cap = 0;
	int err = 0;

	*dcp = -1;
	if (!json_is_object(r->doc, 0))
		return fmt_fail(r->e, -EBADMSG, 8, "the header is not an object");
	for (int k = json_first(r->doc, 0), x; !err && k >= 0; k = json_next(r->doc, 0, x)) {
		struct entry t = {.at = 8 + json_offset(r->doc, k)}, *v;

		x = json_next(r->doc, 0, k);
		err = text_of(r, k, &t.name, &t.name_len);
		if (!err && !strcmp(t.name, "__metadata__")) {
			err = seen ? bad(r, k, "a second __metadata__") : parse_metadata(r, x, dcp);
			seen = true;
			continue;
		}
		if (!err)
			err = parse_entry(r, x, &t);
		if (!err)
			err = check_entry(r, &t);
		if (err)
			return err;
		if (r->n == cap) {
			cap = cap ? cap * 2 : 32;
			v = reallocarray(r->v, cap, sizeof(*v));
			if (!v)
				return fmt_fail(r->e, -ENOMEM, FMT_NOWHERE, "no memory");
			r->v = v;
		}
		r->v[r->n++] = t;
	}
	return err;
}

/* ---- the data --------------------------------------------------------------------- */

static int by_begin(const void *a, const void *b)
{
	const struct entry *x = *(const struct entry *const *)a,
			   *y = *(const struct entry *const *)b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return x->end < y->end ? -1 : x->end > y->end;
}

/* The data must be contiguous from 0 to the end of the file. */
static int check_data(struct reader *r, uint64_t size)
{
	CLEANUP_FREE struct entry **order = calloc(r->n ? r->n : 1, sizeof(*order));
	uint64_t end = 0;

	if (!order)
		return fmt_fail(r->e, -ENOMEM, FMT_NOWHERE, "no memory");
	for (size_t i = 0; i < r->n; i++)
		order[i] = &r->v[i];
	if (r->n)
		qsort(order, r->n, sizeof(*order), by_begin);
	for (size_t i = 0; i < r->n; i++) {
		if (order[i]->begin != end)
			return fmt_fail(
				r->e, -EBADMSG, order[i]->at,
				"%.100s: begins at %llu, not at %llu where the previous one ends",
				order[i]->name, (unsigned long long)order[i]->begin,
				(unsigned long long)end);
		end = order[i]->end;
	}
	if (size - r->data != end)
		return fmt_fail(r->e, -EBADMSG, size,
				"%s: %llu bytes of data, the header says %llu",
				size - r->data < end ? "truncated" : "too long",
				(unsigned long long)(size - r->data), (unsigned long long)end);
	return 0;
}

/* ---- pieces of larger tensors ----------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const struct entry *const *)a)->name,
		      (*(const struct entry *const *)b)->name);
}

static int find_by_name(const void *key, const void *b)
{
	return strcmp(key, (*(const struct entry *const *)b)->name);
}

/* {fqn: {"saved_offsets": [..]}}, a document of its own, which temporarily replaces r->doc. */
static int parse_sharding(struct reader *r, struct entry **order)
{
	int err = 0;

	if (!json_is_object(r->doc, 0))
		return fmt_fail(r->e, -EBADMSG, FMT_NOWHERE, "DCP_SHARDING_INFO is not an object");
	for (int k = json_first(r->doc, 0), x; !err && k >= 0; k = json_next(r->doc, 0, x)) {
		int offsets;
		struct entry **t;
		const char *name;
		unsigned n;
		size_t len;

		x = json_next(r->doc, 0, k);
		offsets = json_at(r->doc, x, "saved_offsets");
		err = text_of(r, k, &name, &len);
		if (err)
			break;
		t = r->n ? bsearch(name, order, r->n, sizeof(*order), find_by_name) : NULL;
		if (!t || offsets < 0)
			continue; /* of another file, or unknown fields: ignored */
		err = numbers_of(r, offsets, &(*t)->offset, &n);
		if (!err && n != (*t)->ndim)
			err = fmt_fail(r->e, -EBADMSG, (*t)->at,
				       "%.100s: %u saved offsets in %u dimensions", name, n,
				       (*t)->ndim);
	}
	return err;
}

static int read_sharding(struct reader *r, int v)
{
	CLEANUP_FREE struct entry **order = calloc(r->n ? r->n : 1, sizeof(*order));
	struct json_doc *whole = r->doc;
	const char *text;
	size_t len;
	int err = order ? text_of(r, v, &text, &len)
			: fmt_fail(r->e, -ENOMEM, FMT_NOWHERE, "no memory");

	if (err)
		return err;
	for (size_t i = 0; i < r->n; i++)
		order[i] = &r->v[i];
	if (r->n)
		qsort(order, r->n, sizeof(*order), by_name);
	err = json_read(text, len, &r->doc, r->e);
	if (!err)
		err = parse_sharding(r, order);
	json_doc_free(r->doc);
	r->doc = whole;
	return err;
}

/* ---- into the set ----------------------------------------------------------------- */

static int same_kind(struct reader *r, const struct entry *t, const struct fmt_tensor *old)
{
	if (!t->offset || !old->growing)
		return fmt_fail(r->e, -EBADMSG, t->at, "%.100s occurs twice, also in %.80s",
				t->name,
				old->n_pieces ? r->set->file[old->piece[0].file].name : "?");
	if (old->ndim != t->ndim || old->dtype != t->dtype)
		return fmt_fail(r->e, -EBADMSG, t->at,
				"%.100s: another dtype or number of dimensions than in %.80s",
				t->name, r->set->file[old->piece[0].file].name);
	return 0;
}

static int add(struct reader *r, const struct entry *t)
{
	struct fmt_tensor *into = fmt_set_find(r->set, t->name, t->name_len);
	struct fmt_piece p = {
		.file = r->file,
		.at = r->data + t->begin,
		.length = t->end - t->begin,
		.size = t->shape,
		.offset = t->offset,
	};
	int err = into ? same_kind(r, t, into) : 0;

	if (!err && !into) {
		err = fmt_set_add(r->set, t->name, t->name_len, t->ndim, t->shape, &into, r->e);
		if (err)
			return err;
		into->growing = t->offset;
		into->dtype = t->dtype;
		into->dtype_name = t->dtype->name;
	}
	if (!err && !p.offset) {
		p.offset = arena_array(fmt_set_arena(r->set), t->ndim ? t->ndim : 1,
				       sizeof(*p.offset));
		if (!p.offset)
			err = no_arena(r);
	}
	for (unsigned d = 0; !err && d < t->ndim; d++)
		if (p.offset[d] > INT64_MAX - p.size[d])
			err = fmt_fail(r->e, -EBADMSG, t->at, "%.100s: invalid offset", t->name);
	if (!err)
		err = fmt_set_extent(r->set, r->file, p.at, p.length, r->e);
	return err ? err : fmt_set_piece(into, &p, r->e);
}

static int read_text(struct reader *r, const char *text, uint64_t len, uint64_t size)
{
	int dcp, err = json_read(text, len, &r->doc, r->e);

	if (err) {
		if (r->e && r->e->at != FMT_NOWHERE)
			r->e->at += 8;
		return err;
	}
	fmt_set_allow(r->set, len);
	err = parse_header(r, &dcp);
	if (!err)
		err = check_data(r, size);
	if (!err && dcp >= 0)
		err = read_sharding(r, dcp);
	for (size_t i = 0; !err && i < r->n; i++)
		err = add(r, &r->v[i]);
	json_doc_free(r->doc);
	free(r->v);
	return err;
}

int safetensors_read(struct fmt_set *set, uint32_t file, const struct fmt_source *s,
		     struct fmt_error *e)
{
	struct reader r = {.set = set, .e = e, .file = file};
	CLEANUP_FREE char *text = NULL;
	uint8_t head[9] = {0};
	uint64_t len;
	int err;

	if (s->size < 10)
		return fmt_fail(e, -EBADMSG, s->size,
				"truncated, or not a safetensors file: %llu bytes",
				(unsigned long long)s->size);
	err = fmt_read(s, 0, head, sizeof(head));
	if (err)
		return fmt_fail(e, err, 0, "cannot read: %s", strerror(-err));
	len = get64(head);
	if (len > MAX_HEADER || len < 2 || head[8] != '{')
		return fmt_fail(e, -EBADMSG, 0, "invalid safetensors header of %llu bytes",
				(unsigned long long)len);
	if (len > s->size - 8)
		return fmt_fail(e, -EBADMSG, s->size, "truncated in the header of %llu bytes",
				(unsigned long long)len);
	text = malloc(len);
	if (!text)
		return fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");
	err = fmt_read(s, 8, text, len);
	if (err)
		return fmt_fail(e, err, 8, "cannot read: %s", strerror(-err));
	r.data = 8 + len;
	return read_text(&r, text, len, s->size);
}

/* ---- the index -------------------------------------------------------------------- */

static int read_map(struct reader *r, int map, struct safetensors_index *out)
{
	int n = 0, err = 0;

	for (int k = json_first(r->doc, map); k >= 0; k = json_next(r->doc, map, k))
		n++;
	out->v = calloc(n ? (size_t)n / 2 : 1, sizeof(*out->v));
	if (!out->v)
		return fmt_fail(r->e, -ENOMEM, FMT_NOWHERE, "no memory");
	for (int k = json_first(r->doc, map), x; !err && k >= 0; k = json_next(r->doc, map, x)) {
		struct safetensors_place *p = &out->v[out->n];
		const char *file;
		size_t len;
		int64_t i;

		x = json_next(r->doc, map, k);
		err = text_of(r, k, &p->name, &len);
		if (!err)
			err = text_of(r, x, &file, &len);
		if (err)
			break;
		i = fmt_set_file(r->set, file, len, r->e);
		if (i < 0)
			return (int)i;
		p->file = (uint32_t)i;
		out->n++;
	}
	return err;
}

int safetensors_index_read(struct fmt_set *set, const char *text, size_t len,
			   struct safetensors_index *out, struct fmt_error *e)
{
	struct reader r = {.set = set, .e = e};
	int map, err = json_read(text, len, &r.doc, e);

	*out = (struct safetensors_index){.total = FMT_NOWHERE};
	if (err)
		return err;
	fmt_set_allow(set, len);
	json_is_u64(r.doc, json_at(r.doc, 0, "metadata.total_size"), &out->total);
	map = json_at(r.doc, 0, "weight_map");
	err = json_is_object(r.doc, map) ? read_map(&r, map, out)
					 : fmt_fail(e, -EBADMSG, 0, "an index without weight_map");
	if (err) {
		free(out->v);
		*out = (struct safetensors_index){.total = FMT_NOWHERE};
		if (e && e->at != FMT_NOWHERE && e->at >= 8)
			e->at -= 8; /* bad() adds the file's length field */
	}
	json_doc_free(r.doc);
	return err;
}

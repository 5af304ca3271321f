/* SPDX-License-Identifier: MIT
 *
 * torchsnapshot's `.snapshot_metadata`: JSON (since 0.1.0 its YAML is JSON).
 *
 * The manifest's keys are RANK/PATH, as Snapshot.read_object() takes them. An entry that only one
 * rank has keeps its key. Replicas, and the shards of one tensor that the ranks list, are merged as
 * 0/PATH, the name by which torchsnapshot finds them on every rank.
 */
#include "fs/formats/inside.h"

#include <stdio.h>

struct reader {
	struct fmt_set *set;
	struct json_doc *doc;
	struct fmt_error *e;
	char *text; /* buffer for one string at a time */
	size_t size;
	const char *name; /* of the current entry; owned by the set */
};

struct part { /* a tensor's part: an entry of type Tensor */
	uint32_t file;
	bool whole; /* the whole file, not a range of it */
	uint64_t at, length;
	const struct fmt_dtype *dtype; /* NULL: unknown */
	const char *dtype_name;
	uint64_t *shape;
	unsigned ndim;
	const char *refusal;
};

#define bad(r, v, ...) fmt_fail((r)->e, -EBADMSG, json_offset((r)->doc, (v)), __VA_ARGS__)

static int no_arena(struct reader *r)
{
	int err = fmt_set_arena(r->set)->err;

	return fmt_fail(r->e, err, FMT_NOWHERE,
			err == -E2BIG ? "expands out of proportion" : "no memory");
}

/* Copies a string to r->text. */
static int text_of(struct reader *r, int v, size_t *len)
{
	size_t size = json_string_size(r->doc, v);
	ssize_t n;

	if (size > r->size) {
		char *more = realloc(r->text, size);

		if (!more)
			return fmt_fail(r->e, -ENOMEM, FMT_NOWHERE, "no memory");
		r->text = more;
		r->size = size;
	}
	n = size ? json_string_copy(r->doc, v, r->text) : -EINVAL;
	if (n < 0 || memchr(r->text, '\0', (size_t)n))
		return bad(r, v, "%.100s: not a usable string", r->name ? r->name : "manifest");
	*len = (size_t)n;
	return 0;
}

static bool is_text(struct reader *r, int v, const char *want)
{
	size_t len;

	return json_is_string(r->doc, v) && json_string_size(r->doc, v) < 64 &&
	       !text_of(r, v, &len) && !strcmp(r->text, want);
}

static int sizes_of(struct reader *r, int entry, const char *key, uint64_t **out, unsigned *n)
{
	int v = json_at(r->doc, entry, key), i = json_first(r->doc, v),
	    count = json_count(r->doc, v);

	if (!json_is_array(r->doc, v) || count > (int)FMT_MAX_DIMS)
		return bad(r, entry, "%.100s: no %s", r->name, key);
	*n = (unsigned)count;
	*out = arena_array(fmt_set_arena(r->set), *n ? *n : 1, sizeof(**out));
	if (!*out)
		return no_arena(r);
	for (unsigned d = 0; d < *n; d++, i = json_next(r->doc, v, i))
		if (!json_is_u64(r->doc, i, &(*out)[d]) || (*out)[d] > INT64_MAX)
			return bad(r, entry, "%.100s: %s that are not sizes", r->name, key);
	return 0;
}

/* location: the file, added to the set. */
static int file_of(struct reader *r, int entry, uint32_t *out)
{
	int v = json_at(r->doc, entry, "location");
	size_t len;
	int err = text_of(r, v, &len);
	int64_t file;

	if (err)
		return err;
	file = fmt_set_file(r->set, r->text, len, r->e);
	if (file < 0) {
		if (r->e)
			r->e->at = json_offset(r->doc, v);
		return (int)file;
	}
	*out = (uint32_t)file;
	return 0;
}

static int dtype_of(struct reader *r, int entry, const struct fmt_dtype **out, const char **name)
{
	size_t len;
	int err = text_of(r, json_at(r->doc, entry, "dtype"), &len);
	const char *bare = r->text;

	if (err)
		return err;
	if (len > 6 && !memcmp(bare, "torch.", 6)) {
		bare += 6;
		len -= 6;
	}
	*out = fmt_dtype_torch(bare, len);
	if (*out)
		*name = (*out)->name;
	return *out ? 0 : fmt_set_string(r->set, bare, len, name, r->e);
}

/* byte_range: [begin, end) of the file, or null: the whole file. */
static int range_of(struct reader *r, int entry, struct part *p)
{
	int v = json_at(r->doc, entry, "byte_range");
	uint64_t end;

	p->whole = json_is_null(r->doc, v);
	if (p->whole)
		return 0;
	if (json_count(r->doc, v) != 2 || !json_is_u64(r->doc, json_item(r->doc, v, 0), &p->at) ||
	    !json_is_u64(r->doc, json_item(r->doc, v, 1), &end) || end < p->at)
		return bad(r, entry, "%.100s: invalid byte range", r->name);
	p->length = end - p->at;
	return 0;
}

/* buffer_protocol means the elements, row-major and little-endian; all others are torch.save or
 * quantized. */
static int check_serializer(struct reader *r, int entry, struct part *p)
{
	uint64_t volume, bytes;
	char why[128];
	size_t len;
	int err = text_of(r, json_at(r->doc, entry, "serializer"), &len);

	if (err)
		return err;
	if (strcmp(r->text, "buffer_protocol")) {
		snprintf(why, sizeof(why), "serialized by %.60s, which is not supported", r->text);
		return fmt_set_string(r->set, why, strlen(why), &p->refusal, r->e);
	}
	if (!p->dtype) {
		p->refusal = "an unknown dtype";
		return 0;
	}
	if (!fmt_volume(p->shape, p->ndim, &volume) || !fmt_bytes(p->dtype, volume, &bytes))
		return bad(r, entry, "%.100s: more than 2^64 bytes", r->name);
	if (!p->whole && p->length != bytes)
		return bad(r, entry, "%.100s: %llu bytes for elements of %llu", r->name,
			   (unsigned long long)p->length, (unsigned long long)bytes);
	p->length = bytes;
	return 0;
}

static int read_part(struct reader *r, int entry, struct part *p)
{
	int err;

	*p = (struct part){.file = FMT_NO_FILE};
	err = file_of(r, entry, &p->file);
	if (!err)
		err = dtype_of(r, entry, &p->dtype, &p->dtype_name);
	if (!err)
		err = sizes_of(r, entry, "shape", &p->shape, &p->ndim);
	if (!err)
		err = range_of(r, entry, p);
	if (!err)
		err = check_serializer(r, entry, p);
	return err ? err : fmt_set_extent(r->set, p->file, p->at, p->length, r->e);
}

/* The tensor of that name, added if it is new; shape NULL: that which its pieces cover. */
static int find_tensor(struct reader *r, int entry, const struct part *p, const uint64_t *shape,
		       struct fmt_tensor **out)
{
	struct fmt_tensor *t = fmt_set_find(r->set, r->name, strlen(r->name));
	const uint64_t none[FMT_MAX_DIMS] = {0};
	int err;

	*out = t;
	if (!t) {
		err = fmt_set_add(r->set, r->name, strlen(r->name), p->ndim, shape ? shape : none,
				  out, r->e);
		if (err)
			return err;
		(*out)->growing = !shape;
		(*out)->dtype = p->dtype;
		(*out)->dtype_name = p->dtype_name;
		return 0;
	}
	if (t->ndim != p->ndim || strcmp(t->dtype_name, p->dtype_name) || t->growing != !shape ||
	    (shape && memcmp(t->shape, shape, t->ndim * sizeof(*shape))))
		return bad(r, entry, "%.100s: another shape or dtype than before", r->name);
	return 0;
}

static int add_piece(struct reader *r, int entry, const struct part *p, const uint64_t *shape,
		     const uint64_t *offset)
{
	struct fmt_piece piece = {
		.file = p->file,
		.payload = FMT_RAW,
		.at = p->at,
		.length = p->length,
		.offset = offset,
		.size = p->shape,
		.refusal = p->refusal,
	};
	struct fmt_tensor *t;
	int err = find_tensor(r, entry, p, shape, &t);

	for (unsigned d = 0; !err && d < p->ndim; d++)
		if (offset[d] > INT64_MAX - p->shape[d])
			err = bad(r, entry, "%.100s: invalid offset", r->name);
	return err ? err : fmt_set_piece(t, &piece, r->e);
}

static int read_tensor(struct reader *r, int entry)
{
	struct part p;
	int err = read_part(r, entry, &p);
	uint64_t *zero;

	if (err)
		return err;
	zero = arena_array(fmt_set_arena(r->set), p.ndim ? p.ndim : 1, sizeof(*zero));
	return zero ? add_piece(r, entry, &p, p.shape, zero) : no_arena(r);
}

/* {offsets, sizes, tensor}; shape NULL: unknown. */
static int read_shard(struct reader *r, int shard, const uint64_t *shape, unsigned ndim)
{
	uint64_t *offset, *size;
	unsigned n, m;
	struct part p;
	int err = sizes_of(r, shard, "offsets", &offset, &n);

	if (!err)
		err = sizes_of(r, shard, "sizes", &size, &m);
	if (!err)
		err = read_part(r, json_at(r->doc, shard, "tensor"), &p);
	if (err)
		return err;
	if (n != p.ndim || m != p.ndim || (shape && ndim != p.ndim) ||
	    memcmp(size, p.shape, p.ndim * sizeof(*size)))
		return bad(r, shard, "%.100s: a shard of another shape than its tensor", r->name);
	return add_piece(r, shard, &p, shape, offset);
}

static int read_shards(struct reader *r, int entry, const char *key, bool told)
{
	int v = json_at(r->doc, entry, key), err = 0;
	uint64_t *shape = NULL;
	unsigned ndim = 0;

	if (!json_is_array(r->doc, v))
		return bad(r, entry, "%.100s: no %s", r->name, key);
	if (told)
		err = sizes_of(r, entry, "shape", &shape, &ndim);
	for (int s = json_first(r->doc, v); !err && s >= 0; s = json_next(r->doc, v, s))
		err = read_shard(r, s, shape, ndim);
	return err;
}

/* An object pickled by torch.save: a file of its own. Only the file tells its length:
 * snapshot_files(). */
static int read_object(struct reader *r, int entry)
{
	struct fmt_blob *b;
	uint32_t file;
	int err = file_of(r, entry, &file);

	if (!err)
		err = fmt_set_extent(r->set, file, 0, 0, r->e);
	return err ? err : fmt_set_blob(r->set, r->name, strlen(r->name), file, 0, 0, &b, r->e);
}

/* An entry's name in the set: see above. */
static int name_of(struct reader *r, int key, bool shared)
{
	size_t len;
	int err;

	r->name = NULL;
	err = text_of(r, key, &len);
	if (!err) {
		const char *way = strchr(r->text, '/');
		size_t digits = strspn(r->text, "0123456789");

		if (!way || !digits || r->text + digits != way)
			return bad(r, key, "a name without its rank: %.100s", r->text);
		if (shared) { /* the rank has at least one digit */
			r->text[digits - 1] = '0';
			err = fmt_set_string(r->set, way - 1, len - digits + 1, &r->name, r->e);
		} else {
			err = fmt_set_string(r->set, r->text, len, &r->name, r->e);
		}
	}
	return err;
}

static int read_entry(struct reader *r, int key, int entry)
{
	static const char *const known[] = {"Tensor", "ShardedTensor", "ChunkedTensor", "object"};
	int type = json_at(r->doc, entry, "type"), err;
	unsigned k = 0;

	if (!json_is_string(r->doc, type))
		return bad(r, key, "an entry without a type");
	while (k < 4 && !is_text(r, type, known[k]))
		k++;
	if (k == 4)
		return 0; /* containers, and plain values stored in the manifest */
	err = name_of(r, key, k == 1 || json_bool(r->doc, json_at(r->doc, entry, "replicated")));
	if (err)
		return err;
	return k == 0	? read_tensor(r, entry)
	       : k == 1 ? read_shards(r, entry, "shards", false)
	       : k == 2 ? read_shards(r, entry, "chunks", true)
			: read_object(r, entry);
}

static int read_manifest(struct reader *r, uint32_t *ranks)
{
	int v = json_at(r->doc, 0, "manifest"), err = 0;
	uint64_t n;

	if (!json_is_object(r->doc, v) ||
	    !json_is_u64(r->doc, json_at(r->doc, 0, "world_size"), &n) || n > UINT32_MAX)
		return bad(r, 0, "not torchsnapshot's: no manifest or no world_size");
	*ranks = (uint32_t)n;
	for (int k = json_first(r->doc, v); !err && k >= 0;) {
		int entry = json_next(r->doc, v, k);

		err = read_entry(r, k, entry);
		k = json_next(r->doc, v, entry);
	}
	return err;
}

int snapshot_read(struct fmt_set *set, const char *text, size_t len, uint32_t *ranks,
		  struct fmt_error *e)
{
	struct reader r = {.set = set, .e = e};
	int err;

	*ranks = 0;
	if (len && *text != '{')
		return fmt_fail(e, -ENOTSUP, 0, "not JSON: the YAML of older releases is not read");
	err = json_read(text, len, &r.doc, e);
	if (err)
		return err;
	fmt_set_allow(set, len);
	err = read_manifest(&r, ranks);
	json_doc_free(r.doc);
	free(r.text);
	return err;
}

void snapshot_files(struct fmt_set *set, uint32_t file, uint64_t size)
{
	for (size_t i = 0; i < set->n_blobs; i++)
		if (set->blob[i].file == file && !set->blob[i].length)
			set->blob[i].length = size;
}

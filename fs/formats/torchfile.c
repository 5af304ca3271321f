/* SPDX-License-Identifier: MIT
 *
 * torch.save files: a zip with a pickle (data.pkl) and one entry for each storage.
 *
 * The walk over the pickled object uses an explicit stack; each container is entered once, so
 * shared and circular parts cost nothing extra. An object that torch would rebuild as a tensor
 * becomes a tensor of the set; nothing is looked up, imported or called.
 */
#include "fs/formats/torchfile.h"

#include <stdio.h>

#define MAX_PICKLE (256u << 20)
#define MAX_NAME 65536u /* longest path in the object */
#define MAX_SAME_NAME 1000u /* tensors whose paths have the same text */

struct storage {
	const struct fmt_dtype *dtype; /* NULL: untyped */
	struct zip_entry *entry;
};

#define bad(w, n, ...) fmt_fail((w)->e, -EBADMSG, (w)->pickle_at + (n)->at, __VA_ARGS__)

int torchfile_no_memory(struct walker *w)
{
	return fmt_fail(w->e, -ENOMEM, FMT_NOWHERE, "no memory");
}

/* ---- names ------------------------------------------------------------------------ */

int torchfile_name(struct walker *w, const char *p, size_t n)
{
	bool dot = w->state ? w->state->n_steps > 1 : w->name_len > w->name_start;

	if (n > MAX_NAME - w->name_len - 2 || w->name_len + n + 2 > MAX_NAME)
		return fmt_fail(w->e, -E2BIG, w->pickle_at, "a name longer than %u", MAX_NAME);
	if (w->name_len + n + 2 > w->name_cap) {
		size_t cap = 2 * (w->name_len + n + 2);
		char *more = realloc(w->name, cap);

		if (!more)
			return torchfile_no_memory(w);
		w->name = more;
		w->name_cap = cap;
	}
	if (dot)
		w->name[w->name_len++] = '.';
	memcpy(w->name + w->name_len, p, n);
	w->name_len += n;
	w->name[w->name_len] = '\0';
	return 0;
}

int torchfile_name_number(struct walker *w, long long i)
{
	char b[24];

	return torchfile_name(w, b, (size_t)snprintf(b, sizeof(b), "%lld", i));
}

static int name_add_key(struct walker *w, const struct pickle_node *key)
{
	const char *kind;

	if (key->kind == PICKLE_STR && !memchr(key->u.s.p, '\0', key->u.s.n))
		return torchfile_name(w, key->u.s.p, key->u.s.n);
	if (key->kind == PICKLE_INT)
		return torchfile_name_number(w, key->u.i);
	kind = pickle_kind_name(key);
	return torchfile_name(w, kind, strlen(kind));
}

/* ---- tensors ---------------------------------------------------------------------- */

/* Adds a tensor named by the path; a number is appended if the name is taken. */
static int add_tensor(struct walker *w, unsigned ndim, const uint64_t *shape,
		      const struct fmt_dtype *dtype, const char *dtype_name,
		      struct fmt_tensor **out)
{
	size_t len = w->name_len;
	int err = 0;

	if (w->state)
		err = torchfile_is_new(w);
	for (unsigned i = 2; !err && !w->state && fmt_set_find(w->set, w->name, w->name_len); i++) {
		char b[16];

		if (i > MAX_SAME_NAME)
			return fmt_fail(w->e, -E2BIG, w->pickle_at, "%.100s: too many of that name",
					w->name);
		w->name_len = len;
		snprintf(b, sizeof(b), "#%u", i);
		err = torchfile_name(w, b, strlen(b));
	}
	if (!err)
		err = fmt_set_add(w->set, w->name, w->name_len, ndim, shape, out, w->e);
	w->name_len = len;
	if (err)
		return err;
	(*out)->dtype = dtype;
	(*out)->dtype_name = dtype_name;
	return w->state ? torchfile_path(w, &(*out)->path) : 0;
}

static int refuse(struct walker *w, const char *dtype, const char *why, size_t why_len)
{
	struct fmt_piece p = {.file = w->file};
	struct fmt_tensor *t;
	int err = add_tensor(w, 0, NULL, NULL, dtype, &t);

	if (!err)
		err = fmt_set_string(w->set, why, why_len, &p.refusal, w->e);
	return err ? err : fmt_set_piece(t, &p, w->e);
}

static int sizes(struct walker *w, const struct pickle_node *n, uint64_t **out, unsigned *ndim)
{
	const struct pickle_seq *q = pickle_sizes(n);

	if (!q || q->n > FMT_MAX_DIMS)
		return bad(w, n, "%.100s: %s as a size", w->name, pickle_kind_name(n));
	*ndim = q->n;
	*out = arena_array(fmt_set_arena(w->set), q->n ? q->n : 1, sizeof(**out));
	if (!*out)
		return fmt_fail(w->e, fmt_set_arena(w->set)->err, w->pickle_at + n->at,
				"expands out of proportion");
	for (unsigned i = 0; i < q->n; i++)
		if (!pickle_u64(q->v[i], &(*out)[i]))
			return bad(w, n, "%.100s: %s as a size", w->name,
				   pickle_kind_name(q->v[i]));
	return 0;
}

/* ('storage', class, key, location, number of elements) */
static int find_storage(struct walker *w, const struct pickle_node *n, struct storage *out)
{
	const struct pickle_seq *q =
		n->kind == PICKLE_PERSID && n->u.id->kind == PICKLE_TUPLE ? &n->u.id->u.seq : NULL;
	char name[512];
	uint64_t numel, bytes;
	const struct pickle_node *cls;

	if (!q || q->n < 5 || !pickle_is_str(q->v[0], "storage") ||
	    q->v[1]->kind != PICKLE_GLOBAL || q->v[2]->kind != PICKLE_STR ||
	    !pickle_u64(q->v[4], &numel))
		return bad(w, n, "%.100s: not a storage written by torch.save", w->name);
	cls = q->v[1]->u.global.name;
	*out = (struct storage){0};
	if (!pickle_is_str(cls, "UntypedStorage")) {
		out->dtype = fmt_dtype_storage(cls->u.s.p, cls->u.s.n);
		if (!out->dtype)
			return -ENOTSUP;
	}
	if (q->v[2]->u.s.n > 200 || w->prefix_len > 200)
		return bad(w, n, "%.100s: a storage key of %u bytes", w->name, q->v[2]->u.s.n);
	snprintf(name, sizeof(name), "%.*sdata/%.*s", (int)w->prefix_len, w->prefix,
		 (int)q->v[2]->u.s.n, q->v[2]->u.s.p);
	out->entry = zip_find(w->zip, name);
	if (!out->entry)
		return bad(w, n, "%.100s: its storage %.100s is not in the zip", w->name, name);
	bytes = numel;
	if ((out->dtype && !fmt_bytes(out->dtype, numel, &bytes)) || bytes != out->entry->size)
		return bad(w, n, "%.100s: its storage has %llu bytes, not %llu elements", w->name,
			   (unsigned long long)out->entry->size, (unsigned long long)numel);
	return zip_data(w->s, w->zip, out->entry, w->e);
}

static bool is_row_major(const uint64_t *size, const uint64_t *stride, unsigned ndim)
{
	uint64_t want = 1;

	for (unsigned i = ndim; i-- > 0;) {
		if (size[i] > 1 && stride[i] != want)
			return false;
		if (__builtin_mul_overflow(want, size[i], &want))
			return false;
	}
	return true;
}

/* The elements from the first to the last, inclusive. */
static bool span_of(const uint64_t *size, const uint64_t *stride, unsigned ndim, uint64_t *out)
{
	uint64_t span = 1, v;

	if (fmt_volume(size, ndim, &v) && !v) {
		*out = 0;
		return true;
	}
	for (unsigned i = 0; i < ndim; i++)
		if (__builtin_mul_overflow(size[i] - 1, stride[i], &v) ||
		    __builtin_add_overflow(span, v, &span))
			return false;
	*out = span;
	return true;
}

struct view { /* a tensor's arguments */
	uint64_t offset, *size, *stride;
	unsigned ndim;
	const struct fmt_dtype *dtype;
	struct storage storage;
};

static int place(struct walker *w, const struct pickle_node *n, const struct view *v,
		 struct fmt_piece *p)
{
	uint64_t span, first, volume;

	if (!span_of(v->size, v->stride, v->ndim, &span) ||
	    !fmt_volume(v->size, v->ndim, &volume) || !fmt_bytes(v->dtype, span, &p->length) ||
	    !fmt_bytes(v->dtype, v->offset, &first) ||
	    (span &&
	     (first > v->storage.entry->size || p->length > v->storage.entry->size - first)))
		return bad(w, n, "%.100s: exceeds its storage of %llu bytes", w->name,
			   (unsigned long long)v->storage.entry->size);
	p->file = w->file;
	p->at = v->storage.entry->data + (span ? first : 0);
	p->size = v->size;
	p->offset = arena_array(fmt_set_arena(w->set), v->ndim ? v->ndim : 1, sizeof(*p->offset));
	if (!p->offset)
		return fmt_fail(w->e, fmt_set_arena(w->set)->err, FMT_NOWHERE,
				"expands out of proportion");
	if (!is_row_major(v->size, v->stride, v->ndim) && volume) {
		p->payload = FMT_STRIDED;
		p->stride = v->stride;
	}
	if (w->big_endian && v->dtype->bits > 8)
		p->refusal = "big-endian";
	return 0;
}

static int dtype_arg(struct walker *w, const struct pickle_node *n, const struct pickle_seq *a,
		     bool v3, struct view *v)
{
	const struct pickle_node *name;

	v->dtype = v->storage.dtype;
	if (!v3)
		return v->dtype ? 0
				: bad(w, n, "%.100s: an untyped storage, and no dtype", w->name);
	if (a->v[6]->kind != PICKLE_GLOBAL)
		return bad(w, n, "%.100s: %s as a dtype", w->name, pickle_kind_name(a->v[6]));
	name = a->v[6]->u.global.name;
	v->dtype = fmt_dtype_torch(name->u.s.p, name->u.s.n);
	return v->dtype ? 0 : -ENOTSUP;
}

/* True for a last argument {"conj": True} or {"neg": True}: the bytes are not the values. */
static bool has_bits(const struct pickle_seq *a, uint32_t i)
{
	return i < a->n && (a->v[i]->kind != PICKLE_DICT || a->v[i]->u.seq.n) &&
	       a->v[i]->kind != PICKLE_NONE;
}

/* storage, storage_offset, size, stride, requires_grad, hooks[, dtype][, metadata] */
static int tensor(struct walker *w, const struct pickle_node *n, const struct pickle_seq *a,
		  bool v3)
{
	struct fmt_piece p = {0};
	struct view v = {0};
	struct fmt_tensor *t;
	unsigned n_strides;
	int err;

	if (a->n < (v3 ? 7 : 4) || !pickle_u64(a->v[1], &v.offset))
		return bad(w, n, "%.100s: not the arguments of a tensor", w->name);
	err = find_storage(w, a->v[0], &v.storage);
	if (!err)
		err = dtype_arg(w, n, a, v3, &v);
	if (err == -ENOTSUP)
		return refuse(w, "?", "an unknown dtype", 16);
	if (!err)
		err = sizes(w, a->v[2], &v.size, &v.ndim);
	if (!err)
		err = sizes(w, a->v[3], &v.stride, &n_strides);
	if (!err && n_strides != v.ndim)
		err = bad(w, n, "%.100s: %u strides in %u dimensions", w->name, n_strides, v.ndim);
	if (!err)
		err = place(w, n, &v, &p);
	if (!err && has_bits(a, v3 ? 7 : 6))
		p.refusal = "conjugated or negated lazily: its bytes are not its values";
	if (!err)
		err = add_tensor(w, v.ndim, v.size, v.dtype, v.dtype->name, &t);
	if (!err)
		err = fmt_set_extent(w->set, w->file, p.at, p.length, w->e);
	return err ? err : fmt_set_piece(t, &p, w->e);
}

static bool starts(const struct pickle_node *s, const char *with)
{
	size_t n = strlen(with);

	return s->u.s.n >= n && !memcmp(s->u.s.p, with, n);
}

/* Other functions of torch that rebuild tensors: sparse, quantized, subclasses, ... */
static bool is_other_tensor(const struct pickle_node *n)
{
	const struct pickle_node *f = n->u.object.callable;

	return f->kind == PICKLE_GLOBAL && starts(f->u.global.module, "torch") &&
	       starts(f->u.global.name, "_rebuild");
}

/* Parameter(data, ...): the tensor is its first argument. */
static bool is_parameter(const struct pickle_node *n)
{
	return pickle_is_object(n, "torch._utils", "_rebuild_parameter") ||
	       pickle_is_object(n, "torch._utils", "_rebuild_parameter_with_state");
}

static bool is_rebuild(const struct pickle_node *f, bool *v3)
{
	*v3 = pickle_is_global(f, "torch._utils", "_rebuild_tensor_v3");
	return *v3 || pickle_is_global(f, "torch._utils", "_rebuild_tensor_v2") ||
	       pickle_is_global(f, "torch._utils", "_rebuild_tensor");
}

/* The function and arguments that rebuild a tensor. With attributes, the call is
 * _rebuild_from_type_v2(function, type, arguments, attributes); it is not a subclass if the type is
 * torch's own. */
static bool rebuilt(const struct pickle_node *n, const struct pickle_node **f,
		    const struct pickle_seq **args)
{
	const struct pickle_seq *a;

	if (n->kind != PICKLE_OBJECT)
		return false;
	*f = n->u.object.callable;
	a = *args = &n->u.object.args->u.seq;
	if (!pickle_is_object(n, "torch._tensor", "_rebuild_from_type_v2"))
		return true;
	if (a->n != 4 || a->v[2]->kind != PICKLE_TUPLE ||
	    !(pickle_is_global(a->v[1], "torch", "Tensor") ||
	      pickle_is_global(a->v[1], "torch._tensor", "Tensor") ||
	      pickle_is_global(a->v[1], "torch.nn.parameter", "Parameter")))
		return false;
	*f = a->v[0];
	*args = &a->v[2]->u.seq;
	return true;
}

bool torchfile_is_tensor(const struct pickle_node *n)
{
	return n->kind == PICKLE_OBJECT && is_other_tensor(n);
}

int torchfile_leaf(struct walker *w, struct pickle_node *n, bool *done)
{
	const struct pickle_node *f;
	const struct pickle_seq *args;
	bool v3;

	*done = true;
	if (is_parameter(n) && n->u.object.args->u.seq.n)
		n = n->u.object.args->u.seq.v[0];
	if (rebuilt(n, &f, &args) && is_rebuild(f, &v3))
		return tensor(w, n, args, v3);
	if (n->kind == PICKLE_PERSID)
		return refuse(w, "storage", "a bare storage, not a tensor", 28);
	if (n->kind == PICKLE_OBJECT && is_other_tensor(n)) {
		const struct pickle_node *name = n->u.object.callable->u.global.name;
		char why[128];
		int len = snprintf(why, sizeof(why), "a kind of tensor that is not supported: %.*s",
				   name->u.s.n < 60 ? (int)name->u.s.n : 60, name->u.s.p);

		return memchr(name->u.s.p, '\0', name->u.s.n) ? bad(w, n, "a NUL in a name")
							      : refuse(w, "?", why, (size_t)len);
	}
	*done = false;
	return 0;
}

/* ---- the walk --------------------------------------------------------------------- */

int torchfile_push(struct walker *w, struct pickle_node *n)
{
	if (w->depth == w->cap) {
		size_t cap = w->cap ? w->cap * 2 : 32;
		struct frame *more = reallocarray(w->frame, cap, sizeof(*more));

		if (!more)
			return torchfile_no_memory(w);
		w->frame = more;
		w->cap = cap;
	}
	w->frame[w->depth++] = (struct frame){.node = n, .name_len = w->name_len};
	return 0;
}

static int enter(struct walker *w, struct pickle_node *n)
{
	bool done;
	int err = torchfile_leaf(w, n, &done);

	if (err || done || n->kind < PICKLE_TUPLE || n->kind == PICKLE_GLOBAL || n->seen ||
	    (n->kind != PICKLE_OBJECT && !n->u.seq.n))
		return err;
	n->seen = 1;
	return torchfile_push(w, n);
}

/* Child number f->next of a dict's, list's or object's parts; NULL: none left. Adds its name to the
 * path. */
static int child_of_seq(struct walker *w, const struct pickle_seq *q, bool pairs, uint32_t *i,
			struct pickle_node **out)
{
	uint32_t n = pairs ? q->n / 2 : q->n;

	*out = NULL;
	if (*i >= n) {
		*i -= n;
		return 0;
	}
	*out = pairs ? q->v[2 * *i + 1] : q->v[*i];
	return pairs ? name_add_key(w, q->v[2 * *i]) : torchfile_name_number(w, *i);
}

/* The parts of an object: items set, items appended, arguments, state. */
static int child_of_object(struct walker *w, const struct pickle_object *o, uint32_t i,
			   struct pickle_node **out)
{
	int err = child_of_seq(w, &o->more->pairs, true, &i, out);

	if (!err && !*out)
		err = child_of_seq(w, &o->more->items, false, &i, out);
	if (!err && !*out)
		err = child_of_seq(w, &o->args->u.seq, false, &i, out);
	if (!err && !*out && i == 0)
		*out = o->state; /* its keys are attribute names */
	return err;
}

static int step(struct walker *w)
{
	struct frame *f = &w->frame[w->depth - 1];
	struct pickle_node *child = NULL;
	uint32_t i = f->next++;
	int err;

	w->name_len = f->name_len;
	if (w->name)
		w->name[w->name_len] = '\0';
	if (f->node->kind == PICKLE_OBJECT)
		err = child_of_object(w, &f->node->u.object, i, &child);
	else
		err = child_of_seq(w, &f->node->u.seq, f->node->kind == PICKLE_DICT, &i, &child);
	if (err)
		return err;
	if (!child) {
		w->depth--;
		return 0;
	}
	return enter(w, child);
}

static int walk(struct walker *w, struct pickle_node *root)
{
	int err = enter(w, root);

	while (!err && w->depth)
		err = step(w);
	return err;
}

/* ---- the file --------------------------------------------------------------------- */

/* The entry whose name ends with "/data.pkl", nearest to the top. */
static struct zip_entry *find_pickle(const struct zip *z)
{
	struct zip_entry *best = NULL;

	for (size_t i = 0; i < z->n_entries; i++) {
		const char *name = z->entry[i].name, *base = strrchr(name, '/');

		if (strcmp(base ? base + 1 : name, "data.pkl"))
			continue;
		if (!best || strlen(name) < strlen(best->name))
			best = &z->entry[i];
	}
	return best;
}

static int read_byteorder(struct walker *w)
{
	char name[256], order[8] = "";
	struct zip_entry *t;
	int err;

	if (w->prefix_len > 200)
		return 0;
	snprintf(name, sizeof(name), "%.*sbyteorder", (int)w->prefix_len, w->prefix);
	t = zip_find(w->zip, name);
	if (!t)
		return 0; /* before PyTorch 2.1: native, little-endian */
	err = zip_data(w->s, w->zip, t, w->e);
	if (!err && t->size < sizeof(order))
		err = fmt_read(w->s, t->data, order, t->size);
	if (err)
		return err;
	w->big_endian = !strcmp(order, "big");
	if (!w->big_endian && strcmp(order, "little"))
		return fmt_fail(w->e, -EBADMSG, t->data, "neither little nor big: %s", name);
	return 0;
}

/* DeepSpeed's model states tell how many ranks have a part of the optimizer's: with ZeRO, that is,
 * if they have param_shapes. */
static uint32_t ranks_in(const struct pickle_node *root)
{
	uint64_t n = 0;
	bool zero = false;

	for (uint32_t i = 0; root->kind == PICKLE_DICT && i + 1 < root->u.seq.n; i += 2) {
		const struct pickle_node *key = root->u.seq.v[i], *value = root->u.seq.v[i + 1];

		if (pickle_is_str(key, "param_shapes"))
			zero = value->kind == PICKLE_LIST;
		else if (pickle_is_str(key, "dp_world_size") && !pickle_u64(value, &n))
			n = 0;
	}
	return zero && n <= UINT32_MAX ? (uint32_t)n : 0;
}

static int read_object(struct walker *w, struct zip_entry *t)
{
	CLEANUP_FREE char *bytes = NULL;
	struct pickle *p;
	int err;

	if (t->size > MAX_PICKLE)
		return fmt_fail(w->e, -E2BIG, t->local, "%.100s: %llu bytes", t->name,
				(unsigned long long)t->size);
	bytes = malloc(t->size ? t->size : 1);
	if (!bytes)
		return torchfile_no_memory(w);
	err = fmt_read(w->s, t->data, bytes, t->size);
	if (err)
		return fmt_fail(w->e, err, t->data, "%.100s: cannot read: %s", t->name,
				strerror(-err));
	if (t->crc && zip_crc(0, bytes, t->size) != t->crc)
		return fmt_fail(w->e, -EBADMSG, t->data, "%.100s: its CRC does not match", t->name);
	err = pickle_parse(bytes, t->size, &p, NULL, w->e);
	if (err) {
		if (w->e && w->e->at != FMT_NOWHERE)
			w->e->at += t->data;
		return err;
	}
	if (w->ranks) {
		*w->ranks = ranks_in(pickle_root(p));
		pickle_free(p);
		return 0;
	}
	w->pickle_at = t->data;
	fmt_set_allow(w->set, t->size);
	err = w->state ? torchfile_walk_state(w, pickle_root(p), t->size) : walk(w, pickle_root(p));
	pickle_free(p);
	return err;
}

static int read_archive(struct walker *w, const char *prefix)
{
	struct zip_entry *t = find_pickle(w->zip);
	int err;

	if (!t)
		return fmt_fail(w->e, -EBADMSG, FMT_NOWHERE,
				"a zip without data.pkl: not written by torch.save");
	w->prefix = t->name;
	w->prefix_len = strlen(t->name) - strlen("data.pkl");
	err = torchfile_name(w, prefix, strlen(prefix));
	if (err)
		return err;
	w->name_start = w->name_len;
	err = zip_data(w->s, w->zip, t, w->e);
	if (!err)
		err = read_byteorder(w);
	return err ? err : read_object(w, t);
}

static int read_file(struct walker *w, const char *prefix)
{
	uint8_t magic[2] = {0};
	int err;

	/* before 1.6, and with _use_new_zipfile_serialization=False */
	if (w->s->size >= 2 && !fmt_read(w->s, 0, magic, 2) && magic[0] == 0x80 && magic[1] <= 5)
		return fmt_fail(w->e, -ENOTSUP, 0,
				"a torch.save file in the format before PyTorch 1.6");
	err = zip_open(w->s, &w->zip, w->e);
	if (!err)
		err = read_archive(w, prefix);
	free(w->frame);
	free(w->name);
	zip_close(w->zip);
	return err;
}

int torchfile_read(struct fmt_set *set, uint32_t file, const char *prefix,
		   const struct fmt_source *s, struct fmt_error *e)
{
	struct walker w = {.set = set, .s = s, .e = e, .file = file};

	return read_file(&w, prefix);
}

int torchfile_read_ranks(const struct fmt_source *s, uint32_t *ranks, struct fmt_error *e)
{
	struct walker w = {.s = s, .e = e, .ranks = ranks};

	*ranks = 0;
	return read_file(&w, "");
}

static int read_state(struct fmt_set *set, uint32_t file, const struct fmt_source *s,
		      struct torchfile_state *state, struct fmt_error *e)
{
	struct walker w = {.set = set, .s = s, .e = e, .file = file, .state = state};
	int err = read_file(&w, "");

	torchfile_state_free(state);
	return err;
}

int torchfile_read_state(struct fmt_set *set, uint32_t file, const struct fmt_source *s,
			 void (*left_out)(void *ctx, const char *what), void *ctx,
			 struct fmt_error *e)
{
	struct torchfile_state state = {.left_out = left_out, .ctx = ctx};

	return read_state(set, file, s, &state, e);
}

int torchfile_read_value(struct fmt_set *set, const struct fmt_source *s, struct fmt_error *e)
{
	struct torchfile_state state = {.value = true};

	return read_state(set, FMT_NO_FILE, s, &state, e);
}

/* SPDX-License-Identifier: MIT
 *
 * The views of a checkpoint: safetensors, whole, in parts and resharded; NumPy.
 */
#include "fs/formats/view.h"

#include <stdio.h>

#define MAX_HEADER 100000000u /* safetensors' own limit */

struct chosen {
	size_t tensor;
	unsigned element;
	uint64_t from, bytes; /* of the tensor */
	uint64_t rows; /* rows of dimension 0 */
};

/* ---- names in JSON ---------------------------------------------------------------- */

static void add_string(struct view *v, const char *s)
{
	view_add(v, "\"", 1);
	for (size_t n; *s; s += n) {
		n = strcspn(s, "\"\\\x01\x02\x03\x04\x05\x06\x07\x08\t\n\x0b\x0c\r\x0e\x0f\x10\x11"
			       "\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f");
		view_add(v, s, n);
		if (n)
			continue;
		if (*s == '"' || *s == '\\')
			view_addf(v, "\\%c", *s);
		else
			view_addf(v, "\\u%04x", (unsigned char)*s);
		n = 1;
	}
	view_add(v, "\"", 1);
}

/* ---- safetensors ------------------------------------------------------------------ */

static int check_named(const struct fmt_tensor *t, unsigned *element, uint64_t *bytes,
		       struct fmt_error *e)
{
	int err = view_check(t, element, bytes, e);

	if (!err && !t->dtype->safetensors)
		return fmt_fail(e, -ENOTSUP, FMT_NOWHERE, "%.100s: safetensors has no %s", t->name,
				t->dtype_name);
	if (!err && !strcmp(t->name, "__metadata__"))
		return fmt_fail(e, -ENOTSUP, FMT_NOWHERE,
				"__metadata__: no tensor of a safetensors file can have that name");
	if (!err && !fmt_is_utf8(t->name, strlen(t->name)))
		return fmt_fail(e, -ENOTSUP, FMT_NOWHERE, "%.100s: a name that is not UTF-8",
				t->name);
	return err;
}

static int choose(const struct fmt_set *set, size_t i, const struct view_pick *pick,
		  struct chosen *c, struct fmt_error *e)
{
	const struct fmt_tensor *t = &set->tensor[i];
	uint64_t bytes, each, from, end;
	int err = check_named(t, &c->element, &bytes, e);

	if (err)
		return err;
	c->tensor = i;
	c->from = 0;
	c->bytes = bytes;
	c->rows = t->ndim ? t->shape[0] : 0;
	if (!t->ndim || pick->ranks <= 1)
		return 0;
	each = t->shape[0] / pick->ranks + (t->shape[0] % pick->ranks != 0);
	from = each * pick->rank < t->shape[0] ? each * pick->rank : t->shape[0];
	end = t->shape[0] - from < each ? t->shape[0] : from + each;
	c->rows = end - from;
	if (!t->shape[0] || !bytes)
		return 0;
	c->from = bytes / t->shape[0] * from;
	c->bytes = bytes / t->shape[0] * c->rows;
	return 0;
}

static int by_element(const void *a, const void *b)
{
	const struct chosen *x = a, *y = b;

	if (x->element != y->element)
		return x->element > y->element ? -1 : 1;
	return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

static void add_entry(struct view *v, const struct fmt_tensor *t, const struct chosen *c,
		      uint64_t *at)
{
	view_add(v, ",", 1);
	add_string(v, t->name);
	view_addf(v, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype->safetensors);
	for (unsigned d = 0; d < t->ndim; d++)
		view_addf(v, "%s%llu", d ? "," : "",
			  (unsigned long long)(d ? t->shape[d] : c->rows));
	view_addf(v, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at,
		  (unsigned long long)*at + c->bytes);
	*at += c->bytes;
}

static int lay_out(struct view *v, const struct chosen *c, size_t n, struct fmt_error *e)
{
	static const char head[] = "........{\"__metadata__\":{\"format\":\"pt\"}";
	uint64_t at = 0, len;

	view_add(v, head, sizeof(head) - 1);
	for (size_t i = 0; i < n; i++)
		add_entry(v, &v->base->set->tensor[c[i].tensor], &c[i], &at);
	view_add(v, "}       ", 1 + (7 & -(v->mem_len + 1)));
	len = v->mem_len - 8;
	if (!v->no_memory && len > MAX_HEADER)
		return fmt_fail(e, -E2BIG, FMT_NOWHERE,
				"too many tensors for a safetensors header");
	for (unsigned i = 0; !v->no_memory && i < 8; i++)
		v->mem[i] = (char)(len >> 8 * i);
	for (size_t i = 0; i < n; i++)
		view_add_tensor(v, c[i].tensor, c[i].from, c[i].bytes);
	return 0;
}

int view_safetensors(struct view_base *b, const struct view_pick *pick, struct view **out,
		     struct fmt_error *e)
{
	size_t n = pick->to - pick->from;
	CLEANUP_FREE struct chosen *c = calloc(n ? n : 1, sizeof(*c));
	struct view *v = view_new(b);
	int err = v && c ? 0 : fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");

	*out = NULL;
	for (size_t i = 0; !err && i < n; i++)
		err = choose(b->set, pick->from + i, pick, &c[i], e);
	if (!err && n)
		qsort(c, n, sizeof(*c), by_element);
	if (!err)
		err = lay_out(v, c, n, e);
	if (!err)
		return view_done(v, out, e);
	view_free(v);
	return err;
}

/* ---- parts ------------------------------------------------------------------------ */

int view_split(const struct view_base *b, uint64_t limit, size_t **cut, size_t *n,
	       struct fmt_error *e)
{
	uint64_t have = 0, bytes;
	unsigned element;

	*n = 0;
	*cut = calloc(b->set->n_tensors + 2, sizeof(**cut));
	if (!*cut)
		return fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");
	for (size_t i = 0; i < b->set->n_tensors; i++) {
		int err = check_named(&b->set->tensor[i], &element, &bytes, e);

		if (err) {
			free(*cut);
			*cut = NULL;
			return err;
		}
		if (i > (*cut)[*n] && (bytes > limit || have > limit - bytes)) {
			(*cut)[++*n] = i;
			have = 0;
		}
		have += bytes;
	}
	(*cut)[++*n] = b->set->n_tensors;
	return 0;
}

int view_index(struct view_base *b, const size_t *cut, size_t n, struct view **out,
	       struct fmt_error *e)
{
	struct view *v = view_new(b);
	uint64_t total = 0, bytes;
	unsigned element;
	int err = v ? 0 : fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");

	*out = NULL;
	for (size_t i = 0; !err && i < b->set->n_tensors; i++) {
		err = check_named(&b->set->tensor[i], &element, &bytes, e);
		total += bytes;
	}
	if (err) {
		view_free(v);
		return err;
	}
	view_addf(v, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {",
		  (unsigned long long)total);
	for (size_t p = 0; p < n; p++)
		for (size_t i = cut[p]; i < cut[p + 1]; i++) {
			view_addf(v, "%s\n    ", i ? "," : "");
			add_string(v, b->set->tensor[i].name);
			view_addf(v, ": \"" VIEW_PART_NAME "\"", p + 1, n);
		}
	view_addf(v, "\n  }\n}\n");
	return view_done(v, out, e);
}

/* ---- NumPy ------------------------------------------------------------------------ */

static const char *npy_descr(const struct fmt_dtype *t)
{
	static const struct {
		const char *name, *descr;
	} special[] = {
		{"float16", "<f2"},   {"float32", "<f4"},     {"float64", "<f8"},
		{"int8", "|i1"},      {"int16", "<i2"},	      {"int32", "<i4"},
		{"int64", "<i8"},     {"uint8", "|u1"},	      {"uint16", "<u2"},
		{"uint32", "<u4"},    {"uint64", "<u8"},      {"bool", "|b1"},
		{"complex64", "<c8"}, {"complex128", "<c16"}, {"bfloat16", "<u2"},
		{"complex32", "<u4"},
	};

	for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++)
		if (!strcmp(t->name, special[i].name))
			return special[i].descr;
	return "|u1"; /* eight-bit types that NumPy does not have */
}

int view_npy(struct view_base *b, size_t tensor, struct view **out, struct fmt_error *e)
{
	const struct fmt_tensor *t = &b->set->tensor[tensor];
	unsigned element;
	uint64_t bytes;
	int err = view_check(t, &element, &bytes, e);
	struct view *v = err ? NULL : view_new(b);
	size_t len;

	*out = NULL;
	if (!err && !v)
		err = fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");
	if (err)
		return err;
	view_add(v, "\x93NUMPY\x01\x00..", 10);
	view_addf(v, "{'descr': '%s', 'fortran_order': False, 'shape': (", npy_descr(t->dtype));
	for (unsigned d = 0; d < t->ndim; d++)
		view_addf(v, "%s%llu", d ? ", " : "", (unsigned long long)t->shape[d]);
	view_addf(v, "%s), }", t->ndim == 1 ? "," : "");
	while (!v->no_memory && (v->mem_len + 1) % 64)
		view_add(v, " ", 1);
	view_add(v, "\n", 1);
	len = v->mem_len - 10; /* at most 64 dimensions: it fits 16 bits */
	if (!v->no_memory) {
		v->mem[8] = (char)len;
		v->mem[9] = (char)(len >> 8);
	}
	view_add_tensor(v, tensor, 0, bytes);
	return view_done(v, out, e);
}

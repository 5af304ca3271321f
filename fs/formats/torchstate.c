/* SPDX-License-Identifier: MIT
 *
 * A torch.save file as a state dict of torch.distributed.checkpoint.
 *
 * DCP flattens a state dict: it descends into dicts, and into lists that contain a tensor, a dict
 * or such a list; everything else is an item, a tensor or the value itself (including a tuple,
 * whatever it contains). The name of an item is its path, str() of each key and index, joined by
 * dots. This file does the same, and refuses values that DCP has no place for: nothing is skipped.
 *
 * A pickle may share containers, which are visited each time they occur. So a budget, proportional
 * to the pickle's length, stops disproportionate expansion.
 */
#include "fs/formats/torchfile.h"

#include <stdio.h>

#define MAX_PLAIN 64u /* maximum nesting of a value */
#define BUDGET 64u /* per byte of the pickle */

static int refused(struct walker *w, const char *what)
{
	return fmt_fail(w->e, -ENOTSUP, FMT_NOWHERE, "%.100s: %s", w->name ? w->name : "", what);
}

static int spend(struct walker *w, uint64_t n)
{
	if (n > w->state->budget)
		return fmt_fail(w->e, -E2BIG, w->pickle_at, "expands out of proportion");
	w->state->budget -= n;
	return 0;
}

void torchfile_state_free(struct torchfile_state *s)
{
	free(s->step);
	free(s->buf);
}

/* ---- names and paths ---------------------------------------------------------------- */

int torchfile_is_new(struct walker *w)
{
	if (fmt_set_find(w->set, w->name, w->name_len))
		return refused(w, "two items would have this name");
	return 0;
}

int torchfile_path(struct walker *w, struct fmt_path *out)
{
	struct torchfile_state *s = w->state;
	struct fmt_step *v = arena_array(fmt_set_arena(w->set), s->n_steps, sizeof(*v));

	if (!v)
		return fmt_fail(w->e, fmt_set_arena(w->set)->err, w->pickle_at,
				"expands out of proportion");
	if (s->n_steps) /* no steps: the state is one value */
		memcpy(v, s->step, s->n_steps * sizeof(*v));
	*out = (struct fmt_path){v, (unsigned)s->n_steps};
	return 0;
}

/* Appends a step to the path and to the name; key NULL: a list index. */
static int go_down(struct walker *w, const char *key, size_t len, uint64_t index)
{
	struct torchfile_state *s = w->state;
	struct fmt_step step = {.index = index};
	int err = 0;

	if (s->n_steps == FMT_MAX_PATH)
		return refused(w, "nested too deep");
	if (s->n_steps == s->cap_steps) {
		size_t cap = s->cap_steps ? 2 * s->cap_steps : 16;
		struct fmt_step *more = reallocarray(s->step, cap, sizeof(*more));

		if (!more)
			return torchfile_no_memory(w);
		s->step = more;
		s->cap_steps = cap;
	}
	if (key)
		err = fmt_set_string(w->set, key, len, &step.key, w->e);
	if (err)
		return err;
	s->step[s->n_steps++] = step;
	return key ? torchfile_name(w, key, len) : torchfile_name_number(w, (long long)index);
}

/* str(key), as in DCP. */
static int go_down_key(struct walker *w, const struct pickle_node *key)
{
	char b[24];
	int n;

	if (key->kind == PICKLE_INT) {
		n = snprintf(b, sizeof(b), "%lld", (long long)key->u.i);
		return go_down(w, b, (size_t)n, 0);
	}
	if (key->kind == PICKLE_NONE)
		return go_down(w, "None", 4, 0);
	if (key->kind == PICKLE_TRUE || key->kind == PICKLE_FALSE)
		return go_down(w, key->kind == PICKLE_TRUE ? "True" : "False",
			       key->kind == PICKLE_TRUE ? 4 : 5, 0);
	if (key->kind == PICKLE_STR)
		return go_down(w, key->u.s.p, key->u.s.n, 0);
	return fmt_fail(w->e, -ENOTSUP, FMT_NOWHERE, "%.100s: a dict with %s as a key",
			w->name ? w->name : "", pickle_kind_name(key));
}

/* ---- plain values ------------------------------------------------------------------- */

static int put(struct walker *w, const void *p, size_t n)
{
	struct torchfile_state *s = w->state;
	int err = spend(w, n);

	if (err)
		return err;
	if (n > s->cap - s->len) {
		size_t cap = 2 * (s->cap + n) + 64;
		char *more = realloc(s->buf, cap);

		if (!more)
			return torchfile_no_memory(w);
		s->buf = more;
		s->cap = cap;
	}
	if (n)
		memcpy(s->buf + s->len, p, n);
	s->len += n;
	return 0;
}

/* An opcode, and a number of so many bytes. */
static int put_op(struct walker *w, char op, uint64_t x, unsigned bytes, bool big_endian)
{
	char b[9] = {op};

	for (unsigned i = 0; i < bytes; i++)
		b[1 + (big_endian ? bytes - 1 - i : i)] = (char)(x >> 8 * i);
	return put(w, b, 1 + bytes);
}

static int put_bytes(struct walker *w, char op, unsigned length_bytes, const struct pickle_node *n)
{
	int err = put_op(w, op, n->u.s.n, length_bytes, false);

	return err ? err : put(w, n->u.s.p, n->u.s.n);
}

/* Objects of numpy are kept, but only of some types. */
static bool is_numpy(const struct pickle_node *g)
{
	return pickle_is_global(g, "numpy", "dtype") ||
	       pickle_is_global(g, "numpy.core.multiarray", "scalar") ||
	       pickle_is_global(g, "numpy._core.multiarray", "scalar") ||
	       pickle_is_global(g, "numpy.core.multiarray", "_reconstruct") ||
	       pickle_is_global(g, "numpy._core.multiarray", "_reconstruct");
}

static int no_value(struct walker *w, const struct pickle_node *n)
{
	const struct pickle_node *g = n->kind == PICKLE_OBJECT ? n->u.object.callable : n;

	if (torchfile_is_tensor(n))
		return refused(
			w, "a tensor in a value that DCP does not descend into, such as a tuple");
	if (g->kind != PICKLE_GLOBAL)
		return fmt_fail(w->e, -ENOTSUP, FMT_NOWHERE,
				"%.100s: %s, neither a tensor nor a plain value", w->name,
				pickle_kind_name(n));
	return fmt_fail(w->e, -ENOTSUP, FMT_NOWHERE, "%.100s: %s%.60s.%.40s, %s", w->name,
			n->kind == PICKLE_OBJECT ? "made by " : "",
			arena_string(fmt_set_arena(w->set), g->u.global.module->u.s.p,
				     g->u.global.module->u.s.n)
				?: "?",
			arena_string(fmt_set_arena(w->set), g->u.global.name->u.s.p,
				     g->u.global.name->u.s.n)
				?: "?",
			n->kind == PICKLE_OBJECT && is_numpy(g)
				? "of neither numbers nor strings"
				: "neither a tensor nor a plain value");
}

/* uint1 to uint7 and int1 to int7, dtypes that no tensor is saved with. */
static bool is_narrow_int(const struct pickle_node *name)
{
	size_t u = name->u.s.n && name->u.s.p[0] == 'u';

	return name->u.s.n == u + 4 && !memcmp(name->u.s.p + u, "int", 3) &&
	       name->u.s.p[u + 3] >= '1' && name->u.s.p[u + 3] <= '7';
}

/* Constants of torch that stand for themselves. */
static bool is_constant(const struct pickle_node *n)
{
	static const char *const name[] = {
		"per_tensor_affine",
		"per_tensor_symmetric",
		"per_channel_affine",
		"per_channel_symmetric",
		"per_channel_affine_float_qparams",
	};
	const struct pickle_node *of;

	if (n->kind != PICKLE_GLOBAL || !pickle_is_str(n->u.global.module, "torch"))
		return false;
	of = n->u.global.name;
	for (size_t i = 0; i < sizeof(name) / sizeof(*name); i++)
		if (pickle_is_str(of, name[i]))
			return true;
	return fmt_dtype_torch(of->u.s.p, of->u.s.n) || is_narrow_int(of);
}

/* The length of a bytes object as protocol 2 encodes it: a str, one character a byte. */
static bool bytes_of(const struct pickle_node *n, uint64_t *len)
{
	const struct pickle_seq *a = n->kind == PICKLE_OBJECT ? &n->u.object.args->u.seq : NULL;

	*len = 0;
	if (pickle_is_object(n, "__builtin__", "bytes") && !a->n)
		return true;
	if (!pickle_is_object(n, "_codecs", "encode") || a->n != 2 || a->v[0]->kind != PICKLE_STR)
		return false;
	for (uint32_t i = 0; i < a->v[0]->u.s.n; i++)
		*len += (a->v[0]->u.s.p[i] & 0xc0) != 0x80;
	/* other codecs would have to be executed */
	return pickle_is_str(a->v[1], "latin1") || pickle_is_str(a->v[1], "latin-1");
}

static bool is_int(const struct pickle_node *n, int64_t i)
{
	return n->kind == PICKLE_INT && n->u.i == i;
}

/* numpy.dtype("f8", False, True) of (3, "<", None, None, None, -1, -1, 0): numbers and strings of
 * fixed length. No objects, no fields, no dates. */
static bool numpy_dtype(const struct pickle_node *n, uint64_t *size)
{
	const struct pickle_object *o = n->kind == PICKLE_OBJECT ? &n->u.object : NULL;
	const struct pickle_seq *a, *s;
	const struct pickle_node *code;
	int64_t wide;
	bool text;

	if (!pickle_is_object(n, "numpy", "dtype") || !o->state || o->state->kind != PICKLE_TUPLE)
		return false;
	a = &o->args->u.seq;
	s = &o->state->u.seq;
	if (a->n != 3 || a->v[0]->kind != PICKLE_STR || s->n != 8 || !is_int(s->v[0], 3) ||
	    s->v[1]->kind != PICKLE_STR || s->v[1]->u.s.n != 1 || !strchr("<>|=", *s->v[1]->u.s.p))
		return false;
	for (int i = 2; i < 5; i++)
		if (s->v[i]->kind != PICKLE_NONE)
			return false;
	code = a->v[0];
	if (code->u.s.n < 2 || code->u.s.n > 9 || !memchr("bfiucSU", code->u.s.p[0], 7))
		return false;
	*size = 0;
	for (uint32_t i = 1; i < code->u.s.n; i++) {
		if (code->u.s.p[i] < '0' || code->u.s.p[i] > '9')
			return false;
		*size = 10 * *size + (uint64_t)(code->u.s.p[i] - '0');
	}
	text = code->u.s.p[0] == 'S' || code->u.s.p[0] == 'U';
	*size *= code->u.s.p[0] == 'U' ? 4 : 1;
	wide = text ? (int64_t)*size : -1;
	return is_int(s->v[5], wide) &&
	       is_int(s->v[6], !text		       ? -1
			       : code->u.s.p[0] == 'U' ? 4
						       : 1) &&
	       is_int(s->v[7], code->u.s.p[0] == 'U' ? 8 : 0);
}

/* scalar(dtype, bytes) */
static bool numpy_scalar(const struct pickle_node *n)
{
	const struct pickle_seq *a = &n->u.object.args->u.seq;
	uint64_t size, len;

	return !n->u.object.state && a->n == 2 && numpy_dtype(a->v[0], &size) &&
	       bytes_of(a->v[1], &len) && len == size;
}

/* _reconstruct(ndarray, (0,), b"b") of (1, shape, dtype, is_fortran, bytes) */
static bool numpy_array(const struct pickle_node *n)
{
	const struct pickle_object *o = &n->u.object;
	const struct pickle_seq *a = &o->args->u.seq, *s, *shape;
	uint64_t size, len, dim;

	if (a->n != 3 || !pickle_is_global(a->v[0], "numpy", "ndarray") ||
	    a->v[1]->kind != PICKLE_TUPLE || a->v[1]->u.seq.n != 1 ||
	    !is_int(a->v[1]->u.seq.v[0], 0) || !bytes_of(a->v[2], &len) || len != 1 || !o->state ||
	    o->state->kind != PICKLE_TUPLE || o->state->u.seq.n != 5)
		return false;
	s = &o->state->u.seq;
	shape = &s->v[1]->u.seq;
	if (!is_int(s->v[0], 1) || s->v[1]->kind != PICKLE_TUPLE || shape->n > FMT_MAX_DIMS ||
	    !numpy_dtype(s->v[2], &size) ||
	    (s->v[3]->kind != PICKLE_TRUE && s->v[3]->kind != PICKLE_FALSE) ||
	    !bytes_of(s->v[4], &len))
		return false;
	for (uint32_t i = 0; i < shape->n; i++)
		if (!pickle_u64(shape->v[i], &dim) || __builtin_mul_overflow(size, dim, &size))
			return false;
	return len == size;
}

static bool is_dtype(const struct pickle_node *n)
{
	uint64_t size;

	return numpy_dtype(n, &size);
}

static bool is_bytes(const struct pickle_node *n)
{
	uint64_t len;

	return !n->u.object.state && bytes_of(n, &len);
}

/* The constructors that torch.load(weights_only=True) allows, as far as they make plain values; and
 * numpy's scalars and arrays, which many real files contain. */
static const struct made {
	const char *module, *name;
	const char *op; /* opcodes that begin the object */
	bool (*is)(const struct pickle_node *n); /* checks its arguments; NULL: any */
} made[] = {
	{"torch", "Size", "ctorch\nSize\n", NULL},
	{"torch", "device", "ctorch\ndevice\n", NULL},
	{"torch.serialization", "_get_layout", "ctorch.serialization\n_get_layout\n", NULL},
	{"_codecs", "encode", "c_codecs\nencode\n", is_bytes},
	{"__builtin__", "bytes", "c__builtin__\nbytes\n", is_bytes}, /* none */
	{"__builtin__", "bytearray", "c__builtin__\nbytearray\n", NULL},
	{"__builtin__", "complex", "c__builtin__\ncomplex\n", NULL},
	{"__builtin__", "set", "c__builtin__\nset\n", NULL},
	{"collections", "Counter", "ccollections\nCounter\n", NULL},
	{"numpy", "dtype", "cnumpy\ndtype\n", is_dtype},
	/* the module's name before numpy 2, and since */
	{"numpy.core.multiarray", "scalar", "cnumpy.core.multiarray\nscalar\n", numpy_scalar},
	{"numpy._core.multiarray", "scalar", "cnumpy._core.multiarray\nscalar\n", numpy_scalar},
	{"numpy.core.multiarray", "_reconstruct", "cnumpy.core.multiarray\n_reconstruct\n",
	 numpy_array},
	{"numpy._core.multiarray", "_reconstruct", "cnumpy._core.multiarray\n_reconstruct\n",
	 numpy_array},
};

/* NULL: another constructor, or with other arguments. */
static const struct made *made_by(const struct pickle_node *n)
{
	const struct pickle_object *o = n->kind == PICKLE_OBJECT ? &n->u.object : NULL;

	if (!o || o->more->kwargs || o->more->items.n || o->more->pairs.n)
		return NULL;
	for (size_t i = 0; i < sizeof(made) / sizeof(*made); i++)
		if (pickle_is_object(n, made[i].module, made[i].name))
			return (made[i].is ? made[i].is(n) : !o->state) ? &made[i] : NULL;
	return NULL;
}

static int put_constant(struct walker *w, const char *module, const struct pickle_node *n)
{
	const struct pickle_node *name = n->u.global.name;
	int err = put(w, module, strlen(module));

	if (!err)
		err = put(w, name->u.s.p, name->u.s.n);
	return err ? err : put(w, "\n", 1);
}

static int put_scalar(struct walker *w, const struct pickle_node *n)
{
	uint64_t bits;

	switch (n->kind) {
	case PICKLE_NONE: return put(w, "N", 1);
	case PICKLE_TRUE: return put(w, "\x88", 1);
	case PICKLE_FALSE: return put(w, "\x89", 1);
	case PICKLE_INT:
		if (n->u.i == (int32_t)n->u.i)
			return put_op(w, 'J', (uint64_t)n->u.i, 4, false);
		return put(w, "\x8a", 1) ?: put_op(w, 8, (uint64_t)n->u.i, 8, false);
	case PICKLE_BIG:
		return n->u.s.n < 256 ? put_bytes(w, '\x8a', 1, n) : put_bytes(w, '\x8b', 4, n);
	case PICKLE_FLOAT:
		memcpy(&bits, &n->u.f, sizeof(bits));
		return put_op(w, 'G', bits, 8, true);
	case PICKLE_STR:
		if (!fmt_is_utf8(n->u.s.p, n->u.s.n))
			return refused(w, "a str that is not UTF-8");
		return put_bytes(w, 'X', 4, n);
	default:
		/* the type that its arrays refer to */
		if (pickle_is_global(n, "numpy", "ndarray"))
			return put_constant(w, "cnumpy\n", n);
		return is_constant(n) ? put_constant(w, "ctorch\n", n) : no_value(w, n);
	}
}

struct part { /* a container being written */
	const struct pickle_seq *seq;
	const char *end; /* opcodes that end it */
	/* an object's state, written after that; or NULL */
	const struct pickle_node *state;
	uint32_t next;
};

/* The opcodes that begin a container; *out: its contents and its end. False: n is not one. */
static bool begin_of(const struct pickle_node *n, const char **begin, struct part *out)
{
	const struct pickle_object *o = n->kind == PICKLE_OBJECT ? &n->u.object : NULL;
	const struct made *m = made_by(n);

	*out = (struct part){.seq = o ? &o->args->u.seq : &n->u.seq};
	if (m) {
		*begin = m->op;
		out->end = "tR";
		out->state = o->state;
	} else if (n->kind == PICKLE_TUPLE) {
		*begin = "";
		out->end = "t";
	} else if (n->kind == PICKLE_LIST) {
		*begin = "]";
		out->end = "e";
	} else if (n->kind == PICKLE_DICT) {
		*begin = "}";
		out->end = "u";
	} else if (pickle_is_object(n, "collections", "OrderedDict") && !o->args->u.seq.n &&
		   (!o->state || o->state->kind == PICKLE_DICT) && !o->more->kwargs &&
		   !o->more->items.n) {
		*begin = "ccollections\nOrderedDict\n)R";
		out->seq = &o->more->pairs;
		out->end = "u";
		out->state = o->state; /* attributes, such as _metadata */
	} else {
		return false;
	}
	return true;
}

/* Writes a scalar, or the beginning of a container. */
static int put_begin(struct walker *w, const struct pickle_node *n, struct part *stack,
		     unsigned *depth)
{
	const char *begin;
	struct part p;
	int err = spend(w, 1);

	if (err)
		return err;
	if (!begin_of(n, &begin, &p))
		return put_scalar(w, n);
	if (*depth == MAX_PLAIN)
		return refused(w, "nested too deep");
	stack[(*depth)++] = p;
	err = put(w, begin, strlen(begin));
	return err ? err : put(w, "(", 1);
}

static int put_value(struct walker *w, const struct pickle_node *root)
{
	struct part stack[MAX_PLAIN], *p;
	const struct pickle_node *state;
	unsigned depth = 0;
	int err = put_begin(w, root, stack, &depth);

	while (!err && depth) {
		p = &stack[depth - 1];
		if (p->next < p->seq->n) {
			err = put_begin(w, p->seq->v[p->next++], stack, &depth);
			continue;
		}
		err = put(w, p->end, strlen(p->end));
		state = p->state;
		p->state = NULL;
		if (!err && state) { /* first its contents, then its state */
			p->end = "b";
			err = put_begin(w, state, stack, &depth);
			continue;
		}
		depth--;
	}
	return err;
}

static int add_value(struct walker *w, const struct pickle_node *n)
{
	struct torchfile_state *s = w->state;
	struct fmt_blob *b;
	char *copy;
	int err;

	s->len = 0;
	err = put(w, "\x80\x02", 2);
	if (!err)
		err = put_value(w, n);
	if (!err)
		err = put(w, ".", 1);
	if (!err)
		err = torchfile_is_new(w);
	if (err)
		return err;
	copy = arena_get(fmt_set_arena(w->set), s->len);
	if (!copy)
		return fmt_fail(w->e, fmt_set_arena(w->set)->err, w->pickle_at,
				"expands out of proportion");
	memcpy(copy, s->buf, s->len);
	err = fmt_set_blob(w->set, w->name, w->name_len, FMT_NO_FILE, 0, s->len, &b, w->e);
	if (err)
		return err;
	b->pickle = copy;
	return torchfile_path(w, &b->path);
}

/* ---- the walk ----------------------------------------------------------------------- */

/* The pairs of a dict or of an object like one; NULL: n is neither. */
static const struct pickle_seq *pairs_of(const struct pickle_node *n)
{
	const struct pickle_object *o = n->kind == PICKLE_OBJECT ? &n->u.object : NULL;

	if (n->kind == PICKLE_DICT)
		return &n->u.seq;
	if (!o || o->more->items.n || o->more->kwargs)
		return NULL;
	if (pickle_is_object(n, "collections", "OrderedDict") && !o->args->u.seq.n)
		return &o->more->pairs;
	if (pickle_is_object(n, "collections", "defaultdict") && o->args->u.seq.n <= 1)
		return &o->more->pairs;
	/* made of a dict */
	if (pickle_is_object(n, "collections", "Counter") && !o->state && !o->more->pairs.n &&
	    o->args->u.seq.n == 1 && o->args->u.seq.v[0]->kind == PICKLE_DICT)
		return &o->args->u.seq.v[0]->u.seq;
	return NULL;
}

/* Whether DCP descends into this list and finds an item. It descends if there is a dict, even an
 * empty one; if it then finds nothing, it loses the list: here the list is kept. */
static int is_inner(struct walker *w, const struct pickle_node *list, bool *out)
{
	const struct pickle_seq *pairs;
	struct part stack[MAX_PLAIN];
	unsigned depth = 0;
	bool empty = false, plain = false;
	int err = 0;

	*out = false;
	stack[depth++] = (struct part){.seq = &list->u.seq};
	while (!err && depth) {
		struct part *p = &stack[depth - 1];
		const struct pickle_node *n;

		if (p->next == p->seq->n) {
			depth--;
			continue;
		}
		n = p->seq->v[p->next++];
		err = spend(w, 1);
		pairs = pairs_of(n);
		empty |= pairs && !pairs->n;
		plain |= !pairs && n->kind != PICKLE_LIST;
		if ((pairs && pairs->n) || torchfile_is_tensor(n) || (empty && plain)) {
			*out = true;
			return err;
		}
		if (n->kind != PICKLE_LIST)
			continue;
		if (depth == MAX_PLAIN)
			return refused(w, "nested too deep");
		stack[depth++] = (struct part){.seq = &n->u.seq};
	}
	return err;
}

static void tell_left_out(struct walker *w, const char *what, const char *more)
{
	char text[256];

	if (!w->state->left_out)
		return;
	snprintf(text, sizeof(text), "%.150s%s%.60s", w->name ? w->name : "", what, more);
	w->state->left_out(w->state->ctx, text);
}

/* DCP keeps only a dict's pairs. */
static int enter_dict(struct walker *w, const struct pickle_node *n)
{
	const struct pickle_node *state = n->kind == PICKLE_OBJECT ? n->u.object.state : NULL;
	struct arena *arena = fmt_set_arena(w->set);

	if (state && state->kind != PICKLE_DICT && state->kind != PICKLE_NONE)
		return no_value(w, n);
	for (uint32_t i = 0; state && state->kind == PICKLE_DICT && i < state->u.seq.n; i += 2) {
		const struct pickle_node *key = state->u.seq.v[i];
		const char *name = key->kind == PICKLE_STR
					   ? arena_string(arena, key->u.s.p, key->u.s.n)
					   : NULL;

		tell_left_out(w, w->name_len ? "." : "", name ? name : "?");
	}
	if (pairs_of(n)->n)
		return 0;
	for (size_t i = 0; i < w->state->n_steps; i++)
		if (!w->state->step[i].key)
			return refused(w, "an empty dict in a list: DCP would lose its place");
	tell_left_out(w, " (empty)", "");
	return 0;
}

static int enter(struct walker *w, struct pickle_node *n)
{
	bool done, inner = false;
	int err = spend(w, 1);

	if (!err)
		err = torchfile_leaf(w, n, &done);
	if (err || done)
		return err;
	if (pairs_of(n)) {
		err = enter_dict(w, n);
		return err ? err : torchfile_push(w, n);
	}
	if (n->kind == PICKLE_LIST)
		err = is_inner(w, n, &inner);
	if (err)
		return err;
	return inner ? torchfile_push(w, n) : add_value(w, n);
}

static int step(struct walker *w)
{
	struct frame *f = &w->frame[w->depth - 1];
	const struct pickle_seq *pairs = pairs_of(f->node);
	uint32_t i = f->next++;
	int err;

	w->name_len = f->name_len;
	if (w->name)
		w->name[w->name_len] = '\0';
	w->state->n_steps = w->depth - 1; /* each frame is a step */
	if (i >= (pairs ? pairs->n / 2 : f->node->u.seq.n)) {
		w->depth--;
		return 0;
	}
	if (pairs)
		err = go_down_key(w, pairs->v[2 * i]);
	else
		err = go_down(w, NULL, 0, i);
	return err ? err : enter(w, pairs ? pairs->v[2 * i + 1] : f->node->u.seq.v[i]);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct fmt_blob *)a)->name, ((const struct fmt_blob *)b)->name);
}

/* Tensors' names are compared when they are added. */
static int check_names(struct walker *w)
{
	struct fmt_set *s = w->set;

	if (s->n_blobs)
		qsort(s->blob, s->n_blobs, sizeof(*s->blob), by_name);
	for (size_t i = 0; i < s->n_blobs; i++)
		if ((i && !strcmp(s->blob[i - 1].name, s->blob[i].name)) ||
		    fmt_set_find(s, s->blob[i].name, strlen(s->blob[i].name)))
			return fmt_fail(w->e, -ENOTSUP, FMT_NOWHERE,
					"%.100s: two items would have this name", s->blob[i].name);
	return 0;
}

int torchfile_walk_state(struct walker *w, struct pickle_node *root, uint64_t pickle_len)
{
	int err;

	w->state->budget = pickle_len * BUDGET;
	if (w->state->value)
		return add_value(w, root);
	if (!pairs_of(root))
		return fmt_fail(w->e, -ENOTSUP, FMT_NOWHERE,
				"not a dict: DCP names only what is in a dict");
	err = enter(w, root);
	while (!err && w->depth)
		err = step(w);
	return err ? err : check_names(w);
}

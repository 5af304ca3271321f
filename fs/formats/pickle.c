/* SPDX-License-Identifier: MIT
 *
 * A pickle machine that builds tagged nodes and never executes.
 *
 * It has the stack, the marks and the memo of Python's machine, but a call that Python would make
 * (REDUCE, NEWOBJ, BUILD) becomes a node that describes it. Protocols 2 to 5; the text opcodes of
 * protocols 0 and 1 are refused, except GLOBAL, which 2 and 3 use.
 *
 * Limits: nodes come from an arena, and the memory of stack, marks and memo is counted as if it
 * did; together they may use the input's fmt_allowance(). Nothing recurses, however deeply the data
 * is nested.
 */
#include "fs/formats/inside.h"

#define MAX_MARKS 10000u /* nesting of containers being built; Python stops near 1000 */
#define MAX_ATTRS 256u /* examined in one object */

struct pickle {
	struct arena arena;
	struct pickle_node *root;
};

struct machine {
	const uint8_t *p;
	size_t len, pos, at; /* at: offset of the current opcode */
	struct arena *a;
	struct pickle_node **stack;
	size_t n, cap;
	size_t *mark;
	size_t n_marks, cap_marks;
	struct pickle_node **memo;
	size_t cap_memo, n_memo, end_memo; /* end: nothing behind it was ever set */
	struct pickle_node *root; /* set by STOP */
	struct pickle_node *small[256]; /* shared nodes of these ints, once made */
	struct fmt_error *e;
};

typedef int (*opcode)(struct machine *m);

static struct pickle_node none = {.kind = PICKLE_NONE};
static struct pickle_node no = {.kind = PICKLE_FALSE};
static struct pickle_node yes = {.kind = PICKLE_TRUE};
static struct pickle_node empty = {.kind = PICKLE_TUPLE};
static struct pickle_more nothing;

#define bad(m, ...) fmt_fail((m)->e, -EBADMSG, (m)->at, __VA_ARGS__)

/* ---- input ------------------------------------------------------------------------ */

static int out_of_memory(struct machine *m)
{
	int err = m->a->err;

	return fmt_fail(m->e, err, m->at,
			err == -E2BIG ? "expands out of proportion" : "no memory");
}

static int cut_off(struct machine *m, uint64_t n)
{
	return bad(m, "truncated: %llu bytes wanted, %zu there", (unsigned long long)n,
		   m->len - m->pos);
}

static inline int take(struct machine *m, uint64_t n, const uint8_t **out)
{
	if (n > m->len - m->pos)
		return cut_off(m, n);
	*out = m->p + m->pos;
	m->pos += n;
	return 0;
}

/* A little-endian number of 1, 2, 4 or 8 bytes. */
static inline int take_number(struct machine *m, unsigned size, uint64_t *out)
{
	const uint8_t *b;
	int err = take(m, size, &b);

	*out = 0;
	if (err)
		return err;
	*out = size == 1 ? *b : size == 2 ? get16(b) : size == 4 ? get32(b) : get64(b);
	return 0;
}

/* ---- stack ------------------------------------------------------------------------ */

/* Returns v with space for `need` elements; NULL: see the arena's err, v is unchanged. */
static void *grown(struct machine *m, void *v, size_t *cap, size_t need, size_t size)
{
	size_t more = *cap ? *cap * 2 : 64;
	void *p;

	if (need <= *cap)
		return v;
	if (more < need)
		more = need;
	if ((more - *cap) * size > m->a->limit - m->a->used) {
		m->a->err = -E2BIG;
		return NULL;
	}
	p = reallocarray(v, more, size);
	if (!p) {
		m->a->err = -ENOMEM;
		return NULL;
	}
	m->a->used += (more - *cap) * size;
	*cap = more;
	return p;
}

static int make_space(struct machine *m)
{
	struct pickle_node **v = grown(m, m->stack, &m->cap, m->n + 1, sizeof(*v));

	if (!v)
		return out_of_memory(m);
	m->stack = v;
	return 0;
}

static inline int push(struct machine *m, struct pickle_node *n)
{
	if (!n)
		return out_of_memory(m);
	if (m->n == m->cap) {
		int err = make_space(m);

		if (err)
			return err;
	}
	m->stack[m->n++] = n;
	return 0;
}

/* The number of elements above the last mark. */
static size_t above(const struct machine *m)
{
	return m->n - (m->n_marks ? m->mark[m->n_marks - 1] : 0);
}

static struct pickle_node *pop(struct machine *m)
{
	return above(m) ? m->stack[--m->n] : NULL;
}

static int underflow(struct machine *m)
{
	return bad(m, "the stack is empty");
}

/* Removes the last mark and returns the elements above it, valid until the next push. */
static int pop_mark(struct machine *m, struct pickle_node ***v, size_t *n)
{
	if (!m->n_marks)
		return bad(m, "no mark");
	*n = above(m);
	m->n -= *n;
	*v = *n ? m->stack + m->n : NULL; /* the stack may not be allocated yet */
	m->n_marks--;
	return 0;
}

#define UP_TO(member)                                                                              \
	(offsetof(struct pickle_node, u) + sizeof(((struct pickle_node *)NULL)->u.member))

static inline size_t node_size(enum pickle_kind kind)
{
	switch (kind) {
	case PICKLE_INT:
	case PICKLE_FLOAT:
	case PICKLE_PERSID: return UP_TO(i);
	case PICKLE_OBJECT: return UP_TO(object);
	default: return UP_TO(seq) > UP_TO(s) ? UP_TO(seq) : UP_TO(s);
	}
}

static inline struct pickle_node *node(struct machine *m, enum pickle_kind kind)
{
	struct pickle_node *n = arena_get(m->a, node_size(kind));

	if (n) {
		n->kind = (uint8_t)kind;
		n->at = (uint32_t)m->at;
	}
	return n;
}

static int seq_add(struct machine *m, struct pickle_seq *s, struct pickle_node **v, size_t n)
{
	if (n > s->cap - s->n) {
		size_t cap = s->cap + (s->cap / 2 > n ? s->cap / 2 : n);
		struct pickle_node **more = arena_array(m->a, cap, sizeof(*more));

		if (!more)
			return out_of_memory(m);
		for (uint32_t i = 0; i < s->n; i++)
			more[i] = s->v[i];
		s->v = more;
		s->cap = (uint32_t)cap;
	}
	for (size_t i = 0; i < n; i++) /* usually one to four */
		s->v[s->n + i] = v[i];
	s->n += (uint32_t)n;
	return 0;
}

static int push_seq(struct machine *m, enum pickle_kind kind, struct pickle_node **v, size_t n)
{
	struct pickle_node *t = n || kind != PICKLE_TUPLE ? node(m, kind) : &empty;
	int err = t && n ? seq_add(m, &t->u.seq, v, n) : 0;

	return err ? err : push(m, t);
}

/* ---- plain data ------------------------------------------------------------------- */

static int op_none(struct machine *m)
{
	return push(m, &none);
}

static int op_true(struct machine *m)
{
	return push(m, &yes);
}

static int op_false(struct machine *m)
{
	return push(m, &no);
}

static int push_int(struct machine *m, int64_t i)
{
	struct pickle_node *n = node(m, PICKLE_INT);

	if (n)
		n->u.i = i;
	return push(m, n);
}

static int op_binint(struct machine *m)
{
	uint64_t x;
	int err = take_number(m, 4, &x);

	return err ? err : push_int(m, (int32_t)(uint32_t)x);
}

static int op_binint1(struct machine *m)
{
	uint64_t x;
	int err = take_number(m, 1, &x);

	if (err)
		return err;
	if (m->small[x])
		return push(m, m->small[x]);
	err = push_int(m, (int64_t)x);
	if (!err)
		m->small[x] = m->stack[m->n - 1];
	return err;
}

static int op_binint2(struct machine *m)
{
	uint64_t x;
	int err = take_number(m, 2, &x);

	return err ? err : push_int(m, (int64_t)x);
}

static int push_bytes(struct machine *m, enum pickle_kind kind, uint64_t len)
{
	struct pickle_node *n;
	const uint8_t *b;
	int err = take(m, len, &b);

	if (err)
		return err;
	n = node(m, kind);
	if (n) {
		n->u.s.p = (const char *)b;
		n->u.s.n = (uint32_t)len;
	}
	return push(m, n);
}

/* Two's complement, little-endian, any length. */
static int push_long(struct machine *m, uint64_t len)
{
	uint64_t x = 0;
	const uint8_t *b;
	int err;

	if (len > 8)
		return push_bytes(m, PICKLE_BIG, len);
	err = take(m, len, &b);
	if (err)
		return err;
	for (unsigned i = 0; i < len; i++)
		x |= (uint64_t)b[i] << 8 * i;
	if (len && len < 8 && b[len - 1] & 0x80)
		x |= ~0ull << 8 * len;
	return push_int(m, (int64_t)x);
}

static int op_long1(struct machine *m)
{
	uint64_t len;
	int err = take_number(m, 1, &len);

	return err ? err : push_long(m, len);
}

static int op_long4(struct machine *m)
{
	uint64_t len;
	int err = take_number(m, 4, &len);

	if (!err && len > INT32_MAX)
		err = bad(m, "a number of negative length");
	return err ? err : push_long(m, len);
}

static int op_binfloat(struct machine *m)
{
	struct pickle_node *n;
	const uint8_t *b;
	uint64_t x = 0;
	int err = take(m, 8, &b);

	if (err)
		return err;
	for (unsigned i = 0; i < 8; i++)
		x = x << 8 | b[i]; /* big-endian, unlike all other numbers in pickles */
	n = node(m, PICKLE_FLOAT);
	if (n)
		memcpy(&n->u.f, &x, sizeof(x));
	return push(m, n);
}

static int sized(struct machine *m, enum pickle_kind kind, unsigned size)
{
	uint64_t len;
	int err = take_number(m, size, &len);

	return err ? err : push_bytes(m, kind, len);
}

static int op_str1(struct machine *m)
{
	return sized(m, PICKLE_STR, 1);
}

static int op_str4(struct machine *m)
{
	return sized(m, PICKLE_STR, 4);
}

static int op_str8(struct machine *m)
{
	return sized(m, PICKLE_STR, 8);
}

static int op_bytes1(struct machine *m)
{
	return sized(m, PICKLE_BYTES, 1);
}

static int op_bytes4(struct machine *m)
{
	return sized(m, PICKLE_BYTES, 4);
}

static int op_bytes8(struct machine *m)
{
	return sized(m, PICKLE_BYTES, 8);
}

/* ---- containers ------------------------------------------------------------------- */

static int op_empty_list(struct machine *m)
{
	return push(m, node(m, PICKLE_LIST));
}

static int op_empty_dict(struct machine *m)
{
	return push(m, node(m, PICKLE_DICT));
}

static int op_empty_set(struct machine *m)
{
	return push(m, node(m, PICKLE_SET));
}

static int op_empty_tuple(struct machine *m)
{
	return push(m, &empty);
}

static int from_mark(struct machine *m, enum pickle_kind kind)
{
	struct pickle_node **v;
	size_t n;
	int err = pop_mark(m, &v, &n);

	if (!err && kind == PICKLE_DICT && n % 2)
		err = bad(m, "a key without a value");
	return err ? err : push_seq(m, kind, v, n);
}

static int op_tuple(struct machine *m)
{
	return from_mark(m, PICKLE_TUPLE);
}

static int op_list(struct machine *m)
{
	return from_mark(m, PICKLE_LIST);
}

static int op_dict(struct machine *m)
{
	return from_mark(m, PICKLE_DICT);
}

static int op_frozenset(struct machine *m)
{
	return from_mark(m, PICKLE_FROZENSET);
}

static int small_tuple(struct machine *m, size_t n)
{
	if (above(m) < n)
		return underflow(m);
	m->n -= n;
	return push_seq(m, PICKLE_TUPLE, m->stack + m->n, n);
}

static int op_tuple1(struct machine *m)
{
	return small_tuple(m, 1);
}

static int op_tuple2(struct machine *m)
{
	return small_tuple(m, 2);
}

static int op_tuple3(struct machine *m)
{
	return small_tuple(m, 3);
}

/* The object's own struct pickle_more; NULL: see the arena's err. */
static struct pickle_more *more_of(struct machine *m, struct pickle_object *o)
{
	struct pickle_more *more = o->more == &nothing ? arena_get(m->a, sizeof(*more)) : o->more;

	if (more)
		o->more = more;
	return more;
}

/* Adds v to the top of the stack, which must be of `kind` or an object. */
static int put(struct machine *m, enum pickle_kind kind, struct pickle_node **v, size_t n)
{
	struct pickle_node *t = above(m) ? m->stack[m->n - 1] : NULL;

	if (!t)
		return underflow(m);
	if (t->kind == kind)
		return seq_add(m, &t->u.seq, v, n);
	if (t->kind != PICKLE_OBJECT)
		return bad(m, "items put into %s", pickle_kind_name(t));
	if (!more_of(m, &t->u.object))
		return out_of_memory(m);
	return seq_add(m, kind == PICKLE_DICT ? &t->u.object.more->pairs : &t->u.object.more->items,
		       v, n);
}

static int op_append(struct machine *m)
{
	if (above(m) < 2)
		return underflow(m);
	m->n--;
	return put(m, PICKLE_LIST, m->stack + m->n, 1);
}

static int op_setitem(struct machine *m)
{
	if (above(m) < 3)
		return underflow(m);
	m->n -= 2;
	return put(m, PICKLE_DICT, m->stack + m->n, 2);
}

static int put_marked(struct machine *m, enum pickle_kind kind)
{
	struct pickle_node **v;
	size_t n;
	int err = pop_mark(m, &v, &n);

	if (!err && kind == PICKLE_DICT && n % 2)
		err = bad(m, "a key without a value");
	return err ? err : put(m, kind, v, n);
}

static int op_appends(struct machine *m)
{
	return put_marked(m, PICKLE_LIST);
}

static int op_setitems(struct machine *m)
{
	return put_marked(m, PICKLE_DICT);
}

static int op_additems(struct machine *m)
{
	return put_marked(m, PICKLE_SET);
}

/* ---- stack and memo --------------------------------------------------------------- */

static int op_mark(struct machine *m)
{
	size_t *v;

	if (m->n_marks == MAX_MARKS)
		return bad(m, "nested deeper than %u", MAX_MARKS);
	v = grown(m, m->mark, &m->cap_marks, m->n_marks + 1, sizeof(*v));
	if (!v)
		return out_of_memory(m);
	m->mark = v;
	m->mark[m->n_marks++] = m->n;
	return 0;
}

static int op_pop(struct machine *m)
{
	if (above(m)) {
		m->n--;
		return 0;
	}
	if (!m->n_marks)
		return underflow(m);
	m->n_marks--; /* as in Python: a mark can be popped, too */
	return 0;
}

static int op_pop_mark(struct machine *m)
{
	struct pickle_node **v;
	size_t n;

	return pop_mark(m, &v, &n);
}

static int op_dup(struct machine *m)
{
	return above(m) ? push(m, m->stack[m->n - 1]) : underflow(m);
}

static int memo_space(struct machine *m, uint64_t i)
{
	struct pickle_node **v;

	if (i >= m->len) /* picklers count from 0 */
		return bad(m, "memo number %llu", (unsigned long long)i);
	v = grown(m, m->memo, &m->cap_memo, i + 1, sizeof(*v));
	if (!v)
		return out_of_memory(m);
	m->memo = v;
	return 0;
}

static inline int memo_put(struct machine *m, uint64_t i)
{
	int err;

	if (!above(m))
		return underflow(m);
	err = i < m->cap_memo ? 0 : memo_space(m, i);
	if (err)
		return err;
	while (m->end_memo <= i)
		m->memo[m->end_memo++] = NULL;
	m->n_memo += !m->memo[i];
	m->memo[i] = m->stack[m->n - 1];
	return 0;
}

static inline int memo_get(struct machine *m, uint64_t i)
{
	if (i >= m->end_memo || !m->memo[i])
		return bad(m, "no memo entry %llu", (unsigned long long)i);
	return push(m, m->memo[i]);
}

static int op_binget(struct machine *m)
{
	uint64_t i;
	int err = take_number(m, 1, &i);

	return err ? err : memo_get(m, i);
}

static int op_long_binget(struct machine *m)
{
	uint64_t i;
	int err = take_number(m, 4, &i);

	return err ? err : memo_get(m, i);
}

static int op_binput(struct machine *m)
{
	uint64_t i;
	int err = take_number(m, 1, &i);

	return err ? err : memo_put(m, i);
}

static int op_long_binput(struct machine *m)
{
	uint64_t i;
	int err = take_number(m, 4, &i);

	return err ? err : memo_put(m, i);
}

static int op_memoize(struct machine *m)
{
	return memo_put(m, m->n_memo);
}

/* ---- what Python would call ------------------------------------------------------- */

static int push_global(struct machine *m, struct pickle_node *module, struct pickle_node *name)
{
	struct pickle_node *g = node(m, PICKLE_GLOBAL);

	if (g) {
		g->u.global.module = module;
		g->u.global.name = name;
	}
	return push(m, g);
}

static int take_line(struct machine *m, struct pickle_node **out)
{
	const uint8_t *start = m->p + m->pos, *nl = memchr(start, '\n', m->len - m->pos);

	if (!nl)
		return bad(m, "truncated within a line");
	*out = node(m, PICKLE_STR);
	if (!*out)
		return out_of_memory(m);
	(*out)->u.s.p = (const char *)start;
	(*out)->u.s.n = (uint32_t)(nl - start);
	m->pos += (size_t)(nl - start) + 1;
	return 0;
}

static int op_global(struct machine *m)
{
	struct pickle_node *module, *name;
	int err = take_line(m, &module);

	if (!err)
		err = take_line(m, &name);
	return err ? err : push_global(m, module, name);
}

static int op_stack_global(struct machine *m)
{
	struct pickle_node *name = pop(m), *module = pop(m);

	if (!name || !module)
		return underflow(m);
	if (name->kind != PICKLE_STR || module->kind != PICKLE_STR)
		return bad(m, "a global whose name is not a string");
	return push_global(m, module, name);
}

static int push_object(struct machine *m, struct pickle_node *callable, struct pickle_node *args,
		       struct pickle_node *kwargs)
{
	struct pickle_node *n;
	struct pickle_object *o;

	if (args->kind != PICKLE_TUPLE)
		return bad(m, "a call with %s as arguments", pickle_kind_name(args));
	n = node(m, PICKLE_OBJECT);
	if (!n)
		return out_of_memory(m);
	o = &n->u.object;
	o->callable = callable;
	o->args = args;
	o->more = &nothing;
	if (kwargs && !more_of(m, o))
		return out_of_memory(m);
	if (kwargs)
		o->more->kwargs = kwargs;
	return push(m, n);
}

static int op_reduce(struct machine *m) /* also NEWOBJ: without a call they are the same */
{
	struct pickle_node *args = pop(m), *callable = pop(m);

	return callable && args ? push_object(m, callable, args, NULL) : underflow(m);
}

static int op_newobj_ex(struct machine *m)
{
	struct pickle_node *kwargs = pop(m), *args = pop(m), *cls = pop(m);

	if (!cls || !args || !kwargs)
		return underflow(m);
	return push_object(m, cls, args, kwargs);
}

static int op_build(struct machine *m)
{
	struct pickle_node *state = pop(m), *n = above(m) ? m->stack[m->n - 1] : NULL;

	if (!n || !state)
		return underflow(m);
	if (n->kind != PICKLE_OBJECT)
		return bad(m, "a state for %s", pickle_kind_name(n));
	if (n->u.object.state)
		return bad(m, "an object with two states");
	n->u.object.state = state;
	return 0;
}

static int op_binpersid(struct machine *m)
{
	struct pickle_node *id = pop(m), *n = id ? node(m, PICKLE_PERSID) : NULL;

	if (!id)
		return underflow(m);
	if (n)
		n->u.id = id;
	return push(m, n);
}

/* ---- the machine ------------------------------------------------------------------ */

static int op_proto(struct machine *m)
{
	uint64_t v;
	int err = take_number(m, 1, &v);

	if (!err && (v < 2 || v > 5))
		err = fmt_fail(m->e, -ENOTSUP, m->at, "pickle protocol %u", (unsigned)v);
	return err;
}

static int op_frame(struct machine *m)
{
	uint64_t len;
	int err = take_number(m, 8, &len);

	if (!err && len > m->len - m->pos)
		err = bad(m, "truncated: a frame of %llu bytes, %zu there", (unsigned long long)len,
			  m->len - m->pos);
	return err;
}

static int op_stop(struct machine *m)
{
	if (m->n_marks || m->n != 1)
		return bad(m, "ends with %zu values on the stack", m->n);
	m->root = m->stack[0];
	return 0;
}

static const opcode opcodes[256] = {
	[0x80] = op_proto,	  [0x95] = op_frame,	  ['.'] = op_stop,
	['N'] = op_none,	  [0x88] = op_true,	  [0x89] = op_false,
	['J'] = op_binint,	  ['K'] = op_binint1,	  ['M'] = op_binint2,
	[0x8a] = op_long1,	  [0x8b] = op_long4,	  ['G'] = op_binfloat,
	[0x8c] = op_str1,	  ['X'] = op_str4,	  [0x8d] = op_str8,
	['U'] = op_str1,	  ['T'] = op_str4, /* Python 2's str */
	['C'] = op_bytes1,	  ['B'] = op_bytes4,	  [0x8e] = op_bytes8,
	[0x96] = op_bytes8,	  [']'] = op_empty_list,  ['}'] = op_empty_dict,
	[0x8f] = op_empty_set,	  [')'] = op_empty_tuple, ['t'] = op_tuple,
	['l'] = op_list,	  ['d'] = op_dict,	  [0x91] = op_frozenset,
	[0x85] = op_tuple1,	  [0x86] = op_tuple2,	  [0x87] = op_tuple3,
	['a'] = op_append,	  ['e'] = op_appends,	  ['s'] = op_setitem,
	['u'] = op_setitems,	  [0x90] = op_additems,	  ['('] = op_mark,
	['0'] = op_pop,		  ['1'] = op_pop_mark,	  ['2'] = op_dup,
	['h'] = op_binget,	  ['j'] = op_long_binget, ['q'] = op_binput,
	['r'] = op_long_binput,	  [0x94] = op_memoize,	  ['c'] = op_global,
	[0x93] = op_stack_global, ['R'] = op_reduce,	  [0x81] = op_reduce,
	[0x92] = op_newobj_ex,	  ['b'] = op_build,	  ['Q'] = op_binpersid,
};

static int unknown(struct machine *m, uint8_t op)
{
	if (op && strchr("IFLSVgpPio", op))
		return fmt_fail(m->e, -ENOTSUP, m->at, "pickle protocol 0 or 1 (opcode '%c')", op);
	if (op == 0x97 || op == 0x98)
		return fmt_fail(m->e, -ENOTSUP, m->at, "a pickle with out-of-band buffers");
	if (op >= 0x82 && op <= 0x84)
		return fmt_fail(m->e, -ENOTSUP, m->at, "a pickle with the extension registry");
	return bad(m, "invalid pickle opcode: 0x%02x", op);
}

static int run(struct machine *m)
{
	int err = 0;

	while (!err && !m->root) {
		uint8_t op;

		m->at = m->pos;
		if (m->pos == m->len)
			return bad(m, "truncated: no STOP");
		op = m->p[m->pos++];
		err = opcodes[op] ? opcodes[op](m) : unknown(m, op);
	}
	return err;
}

int pickle_parse(const void *bytes, size_t len, struct pickle **out, size_t *used,
		 struct fmt_error *e)
{
	struct machine m = {.p = bytes, .len = len, .e = e};
	struct pickle *p;
	int err;

	*out = NULL;
	if (len > PICKLE_MAX_BYTES)
		return fmt_fail(e, -E2BIG, FMT_NOWHERE, "a pickle of %zu bytes", len);
	if (len < 2 || m.p[0] != 0x80)
		return fmt_fail(e, -EBADMSG, 0, "not a pickle of protocol 2 or later");
	p = calloc(1, sizeof(*p));
	if (!p)
		return fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");
	arena_init(&p->arena, fmt_allowance(len));
	m.a = &p->arena;
	err = run(&m);
	free(m.stack);
	free(m.mark);
	free(m.memo);
	if (err) {
		pickle_free(p);
		return err;
	}
	p->root = m.root;
	if (used)
		*used = m.pos;
	*out = p;
	return 0;
}

void pickle_free(struct pickle *p)
{
	if (!p)
		return;
	arena_free(&p->arena);
	free(p);
}

struct pickle_node *pickle_root(const struct pickle *p)
{
	return p->root;
}

/* ---- access ----------------------------------------------------------------------- */

const char *pickle_kind_name(const struct pickle_node *n)
{
	static const char *const name[] = {
		[PICKLE_NONE] = "None",	       [PICKLE_FALSE] = "a bool",
		[PICKLE_TRUE] = "a bool",      [PICKLE_INT] = "an int",
		[PICKLE_BIG] = "an int",       [PICKLE_FLOAT] = "a float",
		[PICKLE_STR] = "a str",	       [PICKLE_BYTES] = "bytes",
		[PICKLE_TUPLE] = "a tuple",    [PICKLE_LIST] = "a list",
		[PICKLE_SET] = "a set",	       [PICKLE_FROZENSET] = "a frozenset",
		[PICKLE_DICT] = "a dict",      [PICKLE_GLOBAL] = "a global",
		[PICKLE_OBJECT] = "an object", [PICKLE_PERSID] = "a persistent id",
	};

	return n ? name[n->kind] : "nothing";
}

static inline bool is_str(const struct pickle_node *n, const char *text, size_t len)
{
	return n && n->kind == PICKLE_STR && n->u.s.n == len && !memcmp(n->u.s.p, text, len);
}

bool pickle_is_str(const struct pickle_node *n, const char *text)
{
	return is_str(n, text, strlen(text));
}

static bool module_is(const struct pickle_node *n, const char *module)
{
	size_t len = strlen(module);

	if (len && (module[len - 1] == '.' || module[len - 1] == '*')) {
		len -= module[len - 1] == '*';
		return n->u.s.n >= len && !memcmp(n->u.s.p, module, len);
	}
	return pickle_is_str(n, module);
}

bool pickle_is_global(const struct pickle_node *n, const char *module, const char *name)
{
	return n && n->kind == PICKLE_GLOBAL && module_is(n->u.global.module, module) &&
	       pickle_is_str(n->u.global.name, name);
}

bool pickle_is_object(const struct pickle_node *n, const char *module, const char *name)
{
	return n && n->kind == PICKLE_OBJECT &&
	       pickle_is_global(n->u.object.callable, module, name);
}

static struct pickle_node *dict_get(const struct pickle_node *d, const char *name)
{
	struct pickle_node *found = NULL;
	size_t len = strlen(name);

	if (!d || d->kind != PICKLE_DICT)
		return NULL;
	/* limited: many objects may share one large dict as their state */
	for (uint32_t i = 0; i + 1 < d->u.seq.n && i < 2 * MAX_ATTRS; i += 2)
		if (is_str(d->u.seq.v[i], name, len))
			found = d->u.seq.v[i + 1];
	return found;
}

struct pickle_node *pickle_attr(const struct pickle_node *object, const char *name)
{
	const struct pickle_node *state;
	struct pickle_node *found = NULL;

	if (!object || object->kind != PICKLE_OBJECT || !object->u.object.state)
		return NULL;
	state = object->u.object.state;
	if (state->kind != PICKLE_TUPLE)
		return dict_get(state, name);
	for (uint32_t i = 0; i < state->u.seq.n && i < 2 && !found; i++)
		found = dict_get(state->u.seq.v[i], name);
	return found;
}

bool pickle_u64(const struct pickle_node *n, uint64_t *out)
{
	if (!n || n->kind != PICKLE_INT || n->u.i < 0)
		return false;
	*out = (uint64_t)n->u.i;
	return true;
}

const struct pickle_seq *pickle_sizes(const struct pickle_node *n)
{
	if (n && n->kind == PICKLE_OBJECT &&
	    pickle_is_global(n->u.object.callable, "torch", "Size") &&
	    n->u.object.args->u.seq.n == 1)
		n = n->u.object.args->u.seq.v[0];
	if (!n || (n->kind != PICKLE_TUPLE && n->kind != PICKLE_LIST))
		return NULL;
	return &n->u.seq;
}

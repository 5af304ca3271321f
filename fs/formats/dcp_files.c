/* SPDX-License-Identifier: MIT
 *
 * The files that a DCP `.metadata` of any size lists. The pickle is read through a window, and no
 * value is built: of the machine's values only small numbers and strings are known. A dict that
 * gets a `relative_path`, an `offset` and a `length` is the state of a _StorageInfo.
 *
 * Memory: the window, the stack (a pickler empties it every 1,000 items) and distinct strings with
 * their numbers in the memo. All strings up to KEEP; beyond, only those that stand where a file's
 * name does, so that tensors' names do not add up. Each of the four arrays takes at most LIMIT, all
 * with their tables less than 1 GiB.
 */
#include "fs/formats/inside.h"

#define CLASSES "torch." /* torch has moved the classes between modules */

#define WINDOW (1u << 20)
#define STR_MAX 4095u /* of a path; longer strings are not names */
#define GLOBAL_MAX 1024u /* a module or a class */
#define KEEP (16u << 20)
#define LIMIT (128u << 20) /* a parser has 2.5 GiB */
#define MARKS 10000u /* as in pickle.c */

enum kind { OTHER, NUMBER, STRING, META_CLASS, META_OBJECT };

struct value {
	uint64_t n; /* NUMBER; of a STRING its index */
	enum kind kind;
};

/* The first strings of the table: what they mean is known by their index. */
enum word { PATH, OFFSET, LENGTH, METADATA, WORDS };
static const char *const words[WORDS] = {"relative_path", "offset", "length", "Metadata"};

struct text {
	const char *p;
	uint32_t n;
};

struct entry { /* of the memo */
	uint64_t number;
	uint32_t text;
};

struct machine {
	const struct fmt_source *s;
	struct fmt_set *set;
	struct fmt_error *e;
	unsigned char *window;
	uint64_t at, pos, from; /* of the opcode, of the next byte, of the window */
	size_t have;
	struct value *stack;
	size_t n, cap;
	size_t mark[MARKS], n_marks;
	struct arena strings;
	struct text *text;
	struct entry *memo;
	size_t n_text, cap_text, n_memo, cap_memo;
	struct fmt_table by_text, by_number;
	uint64_t memoized; /* as many numbers are taken, from 0 on */
	bool gaps, stopped, is_dcp;
};

typedef int (*step)(struct machine *m, unsigned n);

#define bad(m, ...) fmt_fail((m)->e, -EBADMSG, (m)->at, __VA_ARGS__)

static int no_memory(struct machine *m, int err)
{
	return fmt_fail(m->e, err, m->at, err == -E2BIG ? "too many names" : "no memory");
}

/* ---- input ------------------------------------------------------------------------ */

static uint64_t left(const struct machine *m)
{
	return m->s->size - m->pos;
}

static int skip(struct machine *m, uint64_t n)
{
	if (n > left(m))
		return bad(m, "truncated: %llu bytes wanted, %llu there", (unsigned long long)n,
			   (unsigned long long)left(m));
	m->pos += n;
	return 0;
}

/* The next n <= WINDOW bytes, valid until the next call; they are not skipped. */
static int peek(struct machine *m, size_t n, const unsigned char **out)
{
	if (n > left(m))
		return skip(m, n);
	if (m->pos < m->from || m->pos + n > m->from + m->have) {
		size_t want = left(m) < WINDOW ? (size_t)left(m) : WINDOW;
		int err = fmt_read(m->s, m->pos, m->window, want);

		m->have = err ? 0 : want;
		m->from = m->pos;
		if (err)
			return fmt_fail(m->e, err, m->pos, "%s", strerror(-err));
	}
	*out = m->window + (m->pos - m->from);
	return 0;
}

static int take(struct machine *m, size_t n, const unsigned char **out)
{
	int err = peek(m, n, out);

	m->pos += err ? 0 : n;
	return err;
}

/* A little-endian number of at most 8 bytes. */
static int take_number(struct machine *m, unsigned size, uint64_t *out)
{
	const unsigned char *b;
	int err = take(m, size, &b);

	*out = 0;
	for (unsigned i = 0; !err && i < size; i++)
		*out |= (uint64_t)b[i] << 8 * i;
	return err;
}

/* ---- values ----------------------------------------------------------------------- */

/* Makes space for one more of an array. */
static int grow(struct machine *m, void *array, size_t n, size_t *cap, size_t size)
{
	size_t more = *cap ? *cap * 2 : 256;
	void *p;

	if (n < *cap)
		return 0;
	if (more * size > LIMIT)
		return no_memory(m, -E2BIG);
	p = reallocarray(*(void **)array, more, size);
	if (!p)
		return no_memory(m, -ENOMEM);
	*(void **)array = p;
	*cap = more;
	return 0;
}

static int push(struct machine *m, enum kind kind, uint64_t n)
{
	int err = grow(m, &m->stack, m->n, &m->cap, sizeof(*m->stack));

	if (!err)
		m->stack[m->n++] = (struct value){.kind = kind, .n = n};
	return err;
}

static size_t above(const struct machine *m)
{
	return m->n - (m->n_marks ? m->mark[m->n_marks - 1] : 0);
}

static int need(struct machine *m, size_t n)
{
	return above(m) < n ? bad(m, "the stack is empty") : 0;
}

static bool is_word(const struct value *v, enum word w)
{
	return v->kind == STRING && v->n == w;
}

struct text_key {
	const struct machine *m;
	struct text t;
};

static bool same_text(const void *ctx, uint32_t i)
{
	const struct text_key *k = ctx;
	const struct text *t = &k->m->text[i];

	return t->n == k->t.n && !memcmp(t->p, k->t.p, t->n);
}

/* The string's index; `keep`: it is added if it is new. -1: it is not known, or -errno in *err. */
static int64_t text_index(struct machine *m, const char *p, size_t n, bool keep, int *err)
{
	const struct text_key k = {m, {p, (uint32_t)n}};
	uint64_t hash = fmt_table_hash(&m->by_text, p, n);
	struct fmt_slot *slot;

	*err = fmt_table_grow(&m->by_text, 1);
	if (*err)
		return -1;
	slot = fmt_table_slot(&m->by_text, hash, same_text, &k);
	if (slot->index)
		return slot->index - 1;
	if (!keep)
		return -1;
	*err = grow(m, &m->text, m->n_text, &m->cap_text, sizeof(*m->text));
	if (*err)
		return -1;
	p = arena_string(&m->strings, p, n);
	if (!p) {
		*err = m->strings.err;
		return -1;
	}
	m->text[m->n_text] = (struct text){p, (uint32_t)n};
	fmt_table_put(&m->by_text, slot, hash, (uint32_t)m->n_text);
	return (int64_t)m->n_text++;
}

static bool is_name_here(const struct machine *m)
{
	return above(m) && is_word(&m->stack[m->n - 1], PATH);
}

static bool has_space(const struct machine *m)
{
	return m->strings.used + m->n_text * sizeof(*m->text) + m->n_memo * 32 < KEEP;
}

static int push_text(struct machine *m, const char *p, size_t n)
{
	int err;
	int64_t i = text_index(m, p, n, is_name_here(m) || has_space(m), &err);

	if (err)
		return no_memory(m, err);
	return push(m, i < 0 ? OTHER : STRING, i < 0 ? 0 : (uint64_t)i);
}

/* ---- what is looked for ------------------------------------------------------------- */

static int add_file(struct machine *m, const struct value *path, const struct value *offset,
		    const struct value *length)
{
	const struct text *t;
	int64_t file;
	int err;

	if (path->kind != STRING || !offset || !length || offset->kind != NUMBER ||
	    length->kind != NUMBER)
		return bad(m, "a storage info without path, offset or length");
	t = &m->text[path->n];
	file = fmt_set_file(m->set, t->p, t->n, m->e);
	err = file < 0 ? (int)file
		       : fmt_set_extent(m->set, (uint32_t)file, offset->n, length->n, m->e);
	if (err && m->e)
		m->e->at = m->at;
	return err;
}

/* A dict gets these keys and values. Of a tensor that is called relative_path the value is no
 * string. */
static int put_pairs(struct machine *m, const struct value *v, size_t n)
{
	const struct value *path = NULL, *offset = NULL, *length = NULL;

	if (n % 2)
		return bad(m, "a key without a value");
	for (size_t i = 0; i < n; i += 2) {
		if (is_word(&v[i], PATH))
			path = &v[i + 1];
		else if (is_word(&v[i], OFFSET))
			offset = &v[i + 1];
		else if (is_word(&v[i], LENGTH))
			length = &v[i + 1];
	}
	if (path && (path->kind == STRING ||
		     (offset && offset->kind == NUMBER && length && length->kind == NUMBER)))
		return add_file(m, path, offset, length);
	return 0;
}

static int push_class(struct machine *m, const struct value *module, const struct value *name)
{
	const struct text *t = module->kind == STRING ? &m->text[module->n] : NULL;
	bool ours = t && t->n > strlen(CLASSES) && !memcmp(t->p, CLASSES, strlen(CLASSES)) &&
		    is_word(name, METADATA);

	return push(m, ours ? META_CLASS : OTHER, 0);
}

/* ---- opcodes; n: see the table -------------------------------------------------------- */

static int op_skip(struct machine *m, unsigned n)
{
	return skip(m, n);
}

static int op_other(struct machine *m, unsigned n)
{
	int err = skip(m, n);

	return err ? err : push(m, OTHER, 0);
}

static int op_int(struct machine *m, unsigned n)
{
	uint64_t x;
	int err = take_number(m, n, &x);

	if (err)
		return err;
	return push(m, n == 4 && x > INT32_MAX ? OTHER : NUMBER, x);
}

static int op_long(struct machine *m, unsigned n)
{
	uint64_t len, x;
	int err = take_number(m, n, &len);

	if (!err && len > 8)
		err = len > INT32_MAX ? bad(m, "a number of negative length") : skip(m, len);
	else if (!err)
		err = take_number(m, (unsigned)len, &x);
	if (err)
		return err;
	if (len > 8 || (len && x >> (8 * len - 1)))
		return push(m, OTHER, 0);
	return push(m, NUMBER, x);
}

static int op_str(struct machine *m, unsigned n)
{
	const unsigned char *b;
	uint64_t len;
	int err = take_number(m, n, &len);

	if (!err && len > STR_MAX) {
		err = skip(m, len);
		return err ? err : push(m, OTHER, 0);
	}
	if (!err)
		err = take(m, len, &b);
	return err ? err : push_text(m, (const char *)b, len);
}

static int op_bytes(struct machine *m, unsigned n)
{
	uint64_t len;
	int err = take_number(m, n, &len);

	if (!err)
		err = skip(m, len);
	return err ? err : push(m, OTHER, 0);
}

static int op_replace(struct machine *m, unsigned n)
{
	int err = need(m, n);

	m->n -= err ? 0 : n;
	return err ? err : push(m, OTHER, 0);
}

static int op_call(struct machine *m, unsigned n)
{
	int err = need(m, n);

	if (err)
		return err;
	m->n -= n;
	return push(m, m->stack[m->n].kind == META_CLASS ? META_OBJECT : OTHER, 0);
}

/* Into the value below. */
static int op_drop(struct machine *m, unsigned n)
{
	int err = need(m, n + 1);

	m->n -= err ? 0 : n;
	return err;
}

static int op_setitem(struct machine *m, unsigned n)
{
	int err = op_drop(m, n);

	return err ? err : put_pairs(m, m->stack + m->n, n);
}

static int op_pop(struct machine *m, unsigned n)
{
	if (above(m))
		m->n--;
	else if (m->n_marks)
		m->n_marks--; /* as in Python: a mark can be popped, too */
	else
		return need(m, n);
	return 0;
}

static int op_mark(struct machine *m, unsigned n)
{
	(void)n;
	if (m->n_marks == MARKS)
		return bad(m, "nested deeper than %u", MARKS);
	m->mark[m->n_marks++] = m->n;
	return 0;
}

/* What is done with the values above the mark, bit by bit. */
enum { TO_DICT = 1, NEW = 2, BELOW = 4 };

static int op_marked(struct machine *m, unsigned how)
{
	size_t n = above(m);
	int err = m->n_marks ? 0 : bad(m, "no mark");

	if (err)
		return err;
	m->n_marks--;
	m->n -= n;
	if (how & BELOW)
		err = need(m, 1);
	if (!err && how & TO_DICT)
		err = n ? put_pairs(m, m->stack + m->n, n) : 0;
	if (!err && how & NEW)
		err = push(m, OTHER, 0);
	return err;
}

static int op_dup(struct machine *m, unsigned n)
{
	int err = need(m, n);

	if (err)
		return err;
	struct value v = m->stack[m->n - 1];
	return push(m, v.kind, v.n);
}

struct number_key {
	const struct machine *m;
	uint64_t number;
};

static bool same_number(const void *ctx, uint32_t i)
{
	const struct number_key *k = ctx;

	return k->m->memo[i].number == k->number;
}

#define NO_TEXT UINT32_MAX

/* Only strings are kept; a number that is used again may have been one's. */
static int memo_put(struct machine *m, uint64_t number)
{
	const struct number_key k = {m, number};
	uint64_t hash = fmt_table_mix(&m->by_number, 0, number);
	struct fmt_slot *slot;
	int err = need(m, 1);

	if (err)
		return err;
	struct value v = m->stack[m->n - 1];
	m->gaps |= number > m->memoized;
	m->memoized += number == m->memoized;
	if (v.kind != STRING && !m->n_memo)
		return 0;
	err = fmt_table_grow(&m->by_number, 1);
	if (err)
		return no_memory(m, err);
	slot = fmt_table_slot(&m->by_number, hash, same_number, &k);
	if (slot->index) {
		m->memo[slot->index - 1].text = v.kind == STRING ? (uint32_t)v.n : NO_TEXT;
		return 0;
	}
	if (v.kind != STRING)
		return 0;
	err = grow(m, &m->memo, m->n_memo, &m->cap_memo, sizeof(*m->memo));
	if (err)
		return err;
	m->memo[m->n_memo] = (struct entry){number, (uint32_t)v.n};
	fmt_table_put(&m->by_number, slot, hash, (uint32_t)m->n_memo++);
	return 0;
}

static int op_get(struct machine *m, unsigned n)
{
	struct number_key k = {.m = m};
	const struct fmt_slot *slot;
	int err = take_number(m, n, &k.number);

	if (!err && !m->gaps && k.number >= m->memoized)
		err = bad(m, "no memo entry %llu", (unsigned long long)k.number);
	if (err)
		return err;
	slot = m->n_memo ? fmt_table_slot(&m->by_number, fmt_table_mix(&m->by_number, 0, k.number),
					  same_number, &k)
			 : NULL;
	if (!slot || !slot->index || m->memo[slot->index - 1].text == NO_TEXT)
		return push(m, OTHER, 0);
	return push(m, STRING, m->memo[slot->index - 1].text);
}

static int op_put(struct machine *m, unsigned n)
{
	uint64_t number;
	int err = take_number(m, n, &number);

	return err ? err : memo_put(m, number);
}

static int op_memoize(struct machine *m, unsigned n)
{
	(void)n;
	if (m->gaps)
		return bad(m, "memo numbers with gaps");
	return memo_put(m, m->memoized);
}

static int take_line(struct machine *m, struct value *out)
{
	size_t n = left(m) < GLOBAL_MAX ? (size_t)left(m) : GLOBAL_MAX;
	const unsigned char *b, *nl;
	int err = peek(m, n, &b);
	int64_t i;

	if (err)
		return err;
	nl = n ? memchr(b, '\n', n) : NULL;
	if (!nl)
		return bad(m, "a line without an end");
	i = text_index(m, (const char *)b, (size_t)(nl - b), has_space(m), &err);
	m->pos += (size_t)(nl - b) + 1;
	*out = (struct value){.kind = i < 0 ? OTHER : STRING, .n = i < 0 ? 0 : (uint64_t)i};
	return err ? no_memory(m, err) : 0;
}

static int op_global(struct machine *m, unsigned n)
{
	struct value module, name;
	int err = take_line(m, &module);

	(void)n;
	if (!err)
		err = take_line(m, &name);
	return err ? err : push_class(m, &module, &name);
}

static int op_stack_global(struct machine *m, unsigned n)
{
	int err = need(m, n);

	if (err)
		return err;
	m->n -= n;
	return push_class(m, &m->stack[m->n], &m->stack[m->n + 1]);
}

static int op_stop(struct machine *m, unsigned n)
{
	if (m->n_marks || m->n != n)
		return bad(m, "ends with %zu values on the stack", m->n);
	m->stopped = true;
	m->is_dcp = m->stack[0].kind == META_OBJECT;
	return 0;
}

static const struct {
	step step;
	unsigned n;
} opcodes[256] = {
	[0x80] = {op_skip, 1},
	[0x95] = {op_skip, 8},
	['.'] = {op_stop, 1},
	['N'] = {op_other, 0},
	[0x88] = {op_other, 0},
	[0x89] = {op_other, 0},
	['G'] = {op_other, 8},
	[']'] = {op_other, 0},
	['}'] = {op_other, 0},
	[0x8f] = {op_other, 0},
	[')'] = {op_other, 0},
	['J'] = {op_int, 4},
	['K'] = {op_int, 1},
	['M'] = {op_int, 2},
	[0x8a] = {op_long, 1},
	[0x8b] = {op_long, 4},
	[0x8c] = {op_str, 1},
	['X'] = {op_str, 4},
	[0x8d] = {op_str, 8},
	['U'] = {op_str, 1},
	['T'] = {op_str, 4},
	['C'] = {op_bytes, 1},
	['B'] = {op_bytes, 4},
	[0x8e] = {op_bytes, 8},
	[0x96] = {op_bytes, 8},
	['t'] = {op_marked, NEW},
	['l'] = {op_marked, NEW},
	['d'] = {op_marked, NEW | TO_DICT},
	[0x91] = {op_marked, NEW},
	['e'] = {op_marked, BELOW},
	['u'] = {op_marked, BELOW | TO_DICT},
	[0x90] = {op_marked, BELOW},
	['1'] = {op_marked, 0},
	[0x85] = {op_replace, 1},
	[0x86] = {op_replace, 2},
	[0x87] = {op_replace, 3},
	['Q'] = {op_replace, 1},
	['a'] = {op_drop, 1},
	['b'] = {op_drop, 1},
	['s'] = {op_setitem, 2},
	['('] = {op_mark, 0},
	['0'] = {op_pop, 1},
	['2'] = {op_dup, 1},
	['h'] = {op_get, 1},
	['j'] = {op_get, 4},
	['q'] = {op_put, 1},
	['r'] = {op_put, 4},
	[0x94] = {op_memoize, 0},
	['c'] = {op_global, 0},
	[0x93] = {op_stack_global, 2},
	['R'] = {op_call, 2},
	[0x81] = {op_call, 2},
	[0x92] = {op_call, 3},
};

static int run(struct machine *m)
{
	const unsigned char *b;
	int err = peek(m, m->s->size ? 1 : 0, &b);

	if (!err && (!m->s->size || *b != 0x80))
		return fmt_fail(m->e, -ENOMSG, 0, "not a pickle of protocol 2 or later");
	for (unsigned i = 0; !err && i < WORDS; i++)
		text_index(m, words[i], strlen(words[i]), true, &err);
	while (!err && !m->stopped) {
		m->at = m->pos;
		err = take(m, 1, &b);
		if (!err)
			err = opcodes[*b].step ? opcodes[*b].step(m, opcodes[*b].n)
					       : bad(m, "invalid pickle opcode: 0x%02x", *b);
	}
	if (!err && !m->is_dcp)
		err = fmt_fail(m->e, -ENOMSG, m->at,
			       "not the Metadata of a distributed checkpoint");
	return err;
}

int dcp_files(struct fmt_set *set, const struct fmt_source *s, struct fmt_error *e)
{
	struct machine *m = calloc(1, sizeof(*m));
	int err = m && (m->window = malloc(WINDOW)) ? 0 : -ENOMEM;

	if (!err) {
		m->s = s;
		m->set = set;
		m->e = e;
		arena_init(&m->strings, LIMIT);
		fmt_set_allow(set, s->size);
		fmt_table_init(&m->by_text);
		fmt_table_init(&m->by_number);
		err = run(m);
		fmt_table_free(&m->by_text);
		fmt_table_free(&m->by_number);
		arena_free(&m->strings);
		free(m->stack);
		free(m->text);
		free(m->memo);
		free(m->window);
	} else {
		fmt_say(e, FMT_NOWHERE, "no memory");
	}
	free(m);
	return err;
}

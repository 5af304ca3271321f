/* SPDX-License-Identifier: MIT
 *
 * A strict JSON reader.
 *
 * A document is an array of values in text order; `next` is the index after a value and everything
 * in it, so siblings are found without visiting its children. An object's values alternate key,
 * value. There is at most one value for two bytes of text, and it takes 16 bytes: memory is
 * proportional to the text. Open containers are kept in an array: nothing recurses.
 */
#include "fs/formats/inside.h"

#define MAX_DEPTH 64
#define MAX_TEXT (2u << 30)

enum kind { J_OBJECT, J_ARRAY, J_STRING, J_NUMBER, J_TRUE, J_FALSE, J_NULL };

struct value {
	uint8_t kind;
	bool escaped; /* a string with a backslash */
	uint32_t start, end; /* of a string: between the quotes */
	uint32_t next;
};

struct json_doc {
	char *text;
	size_t len;
	struct value *v;
	size_t n, cap;
};

struct parser {
	struct json_doc *d;
	size_t pos;
	uint32_t open[MAX_DEPTH]; /* containers not closed yet */
	unsigned depth;
	struct fmt_error *e;
};

/* ---- text ------------------------------------------------------------------------- */

static int peek(const struct parser *p)
{
	return p->pos < p->d->len ? (unsigned char)p->d->text[p->pos] : -1;
}

static void skip_space(struct parser *p)
{
	int c;

	while ((c = peek(p)) == ' ' || c == '\t' || c == '\n' || c == '\r')
		p->pos++;
}

#define bad(p, what) fmt_fail((p)->e, -EBADMSG, (p)->pos, "not JSON: %s", what)

static int add(struct parser *p, enum kind kind, size_t start, size_t end)
{
	struct json_doc *d = p->d;

	if (d->n == d->cap) {
		size_t cap = d->cap ? d->cap * 2 : 64;
		struct value *v = reallocarray(d->v, cap, sizeof(*v));

		if (!v)
			return fmt_fail(p->e, -ENOMEM, FMT_NOWHERE, "no memory");
		d->v = v;
		d->cap = cap;
	}
	d->v[d->n] = (struct value){.kind = (uint8_t)kind,
				    .start = (uint32_t)start,
				    .end = (uint32_t)end,
				    .next = (uint32_t)d->n + 1};
	d->n++;
	return 0;
}

static int hex4(const char *s)
{
	int n = 0;

	for (int i = 0; i < 4; i++) {
		char c = s[i];
		int digit = c >= '0' && c <= '9'   ? c - '0'
			    : c >= 'a' && c <= 'f' ? c - 'a' + 10
			    : c >= 'A' && c <= 'F' ? c - 'A' + 10
						   : -1;

		if (digit < 0)
			return -1;
		n = n * 16 + digit;
	}
	return n;
}

/* ---- values ----------------------------------------------------------------------- */

/* Checks the character after a backslash. */
static int escape(struct parser *p)
{
	int c = peek(p);

	if (c <= 0 || !strchr("\"\\/bfnrtu", c))
		return bad(p, "invalid escape");
	if (c == 'u' && (p->d->len - p->pos < 5 || hex4(p->d->text + p->pos + 1) < 0))
		return bad(p, "\\u needs four hex digits");
	p->pos++;
	return 0;
}

static int parse_string(struct parser *p)
{
	size_t start = ++p->pos;
	bool escaped = false;
	int err = 0;

	while (!err) {
		int c = peek(p);
		size_t len;

		if (c == '"')
			break;
		if (c < 0x20) /* also the end of the text */
			return bad(p,
				   c < 0 ? "an unterminated string" : "a control byte in a string");
		len = fmt_utf8(p->d->text + p->pos, p->d->len - p->pos);
		if (!len)
			return bad(p, "a string that is not UTF-8");
		p->pos += len;
		if (c == '\\') {
			escaped = true;
			err = escape(p);
		}
	}
	if (!err)
		err = add(p, J_STRING, start, p->pos++);
	if (!err)
		p->d->v[p->d->n - 1].escaped = escaped;
	return err;
}

static int digits(struct parser *p)
{
	int n = 0;

	for (int c; (c = peek(p)) >= '0' && c <= '9'; n = 1)
		p->pos++;
	return n;
}

static int parse_number(struct parser *p)
{
	size_t start = p->pos;

	if (peek(p) == '-')
		p->pos++;
	if (peek(p) == '0')
		p->pos++;
	else if (!digits(p))
		return bad(p, p->pos == start ? "not a value" : "a number without digits");
	if (peek(p) == '.') {
		p->pos++;
		if (!digits(p))
			return bad(p, "a number without digits");
	}
	if (peek(p) == 'e' || peek(p) == 'E') {
		p->pos++;
		if (peek(p) == '+' || peek(p) == '-')
			p->pos++;
		if (!digits(p))
			return bad(p, "a number without digits");
	}
	return add(p, J_NUMBER, start, p->pos);
}

static int parse_word(struct parser *p, const char *word, enum kind kind)
{
	size_t len = strlen(word);

	if (p->d->len - p->pos < len || memcmp(p->d->text + p->pos, word, len))
		return bad(p, "not a value");
	p->pos += len;
	return add(p, kind, p->pos - len, p->pos);
}

static int parse_key(struct parser *p)
{
	int err;

	skip_space(p);
	if (peek(p) != '"')
		return bad(p, "a key must be a string");
	err = parse_string(p);
	if (err)
		return err;
	skip_space(p);
	if (peek(p) != ':')
		return bad(p, "a key without a colon");
	p->pos++;
	return 0;
}

static int open_container(struct parser *p, enum kind kind)
{
	int err;

	if (p->depth == MAX_DEPTH)
		return bad(p, "nested too deep");
	err = add(p, kind, p->pos, p->pos);
	if (err)
		return err;
	p->open[p->depth++] = (uint32_t)p->d->n - 1;
	p->pos++;
	skip_space(p);
	if (peek(p) == (kind == J_OBJECT ? '}' : ']'))
		return 0;
	return kind == J_OBJECT ? parse_key(p) : 0;
}

static void close_container(struct parser *p)
{
	struct value *v = &p->d->v[p->open[--p->depth]];

	p->pos++;
	v->end = (uint32_t)p->pos;
	v->next = (uint32_t)p->d->n;
}

static int parse_value(struct parser *p)
{
	skip_space(p);
	switch (peek(p)) {
	case '{': return open_container(p, J_OBJECT);
	case '[': return open_container(p, J_ARRAY);
	case '"': return parse_string(p);
	case 't': return parse_word(p, "true", J_TRUE);
	case 'f': return parse_word(p, "false", J_FALSE);
	case 'n': return parse_word(p, "null", J_NULL);
	default: return parse_number(p);
	}
}

/* After a value: closes containers that end here, and skips the comma before the next value. */
static int after_value(struct parser *p)
{
	while (p->depth) {
		bool object = p->d->v[p->open[p->depth - 1]].kind == J_OBJECT;

		skip_space(p);
		if (peek(p) == ',') {
			p->pos++;
			return object ? parse_key(p) : 0;
		}
		if (peek(p) != (object ? '}' : ']'))
			return bad(p, "neither a comma nor a closing bracket");
		close_container(p);
	}
	return 0;
}

/* True in a container that was just opened and is not empty: its first value follows. */
static bool in_fresh(const struct parser *p)
{
	uint32_t last = p->depth ? p->open[p->depth - 1] : 0;
	const struct value *v = &p->d->v[last];

	if (!p->depth)
		return false;
	if (v->kind == J_OBJECT)
		return p->d->n == last + 2u;
	return p->d->n == last + 1u && peek(p) != ']';
}

static int parse(struct parser *p)
{
	int err = 0;

	do {
		unsigned depth = p->depth;

		err = parse_value(p);
		if (err || (p->depth > depth && in_fresh(p)))
			continue;
		err = after_value(p);
	} while (!err && p->depth);
	skip_space(p);
	if (!err && p->pos != p->d->len)
		err = bad(p, "more than one value");
	return err;
}

int json_read(const char *text, size_t len, struct json_doc **out, struct fmt_error *e)
{
	struct json_doc *d;
	struct parser p = {.e = e};
	int err;

	*out = NULL;
	if (len >= MAX_TEXT)
		return fmt_fail(e, -E2BIG, FMT_NOWHERE, "JSON of %zu bytes", len);
	p.d = d = calloc(1, sizeof(*d));
	if (d)
		d->text = malloc(len + 1);
	if (!d || !d->text) {
		json_doc_free(d);
		return fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");
	}
	if (len)
		memcpy(d->text, text, len);
	d->text[len] = '\0'; /* so that strtod() stops */
	d->len = len;
	err = parse(&p);
	if (err)
		json_doc_free(d);
	else
		*out = d;
	return err;
}

void json_doc_free(struct json_doc *d)
{
	if (!d)
		return;
	free(d->text);
	free(d->v);
	free(d);
}

void json_doc_freep(struct json_doc **d)
{
	json_doc_free(*d);
}

/* ---- access ----------------------------------------------------------------------- */

static const struct value *get(const struct json_doc *d, int v)
{
	return d && v >= 0 && (size_t)v < d->n ? &d->v[v] : NULL;
}

static bool is(const struct json_doc *d, int v, enum kind kind)
{
	const struct value *x = get(d, v);

	return x && x->kind == kind;
}

int json_first(const struct json_doc *d, int parent)
{
	if (!is(d, parent, J_OBJECT) && !is(d, parent, J_ARRAY))
		return -1;
	return d->v[parent].next == (uint32_t)parent + 1 ? -1 : parent + 1;
}

int json_next(const struct json_doc *d, int parent, int child)
{
	const struct value *p = get(d, parent), *c = get(d, child);

	return p && c && c->next < p->next ? (int)c->next : -1;
}

static int member(const struct json_doc *d, int v, const char *key, size_t len)
{
	if (!is(d, v, J_OBJECT))
		return -1;
	for (int k = json_first(d, v), x; k >= 0; k = json_next(d, v, x)) {
		const struct value *name = &d->v[k];

		x = (int)name->next;
		if (name->end - name->start == len && !memcmp(d->text + name->start, key, len))
			return x;
	}
	return -1;
}

int json_at(const struct json_doc *d, int from, const char *keys)
{
	while (from >= 0 && *keys) {
		size_t len = strcspn(keys, ".");

		from = member(d, from, keys, len);
		keys += len;
		keys += *keys == '.';
	}
	return from;
}

int json_item(const struct json_doc *d, int v, int i)
{
	if (!is(d, v, J_ARRAY))
		return -1;
	for (int k = json_first(d, v); k >= 0; k = json_next(d, v, k))
		if (i-- == 0)
			return k;
	return -1;
}

int json_count(const struct json_doc *d, int v)
{
	int n = 0;

	if (!is(d, v, J_ARRAY))
		return 0;
	for (int k = json_first(d, v); k >= 0; k = json_next(d, v, k))
		n++;
	return n;
}

bool json_is_object(const struct json_doc *d, int v)
{
	return is(d, v, J_OBJECT);
}

bool json_is_array(const struct json_doc *d, int v)
{
	return is(d, v, J_ARRAY);
}

bool json_is_string(const struct json_doc *d, int v)
{
	return is(d, v, J_STRING);
}

uint64_t json_offset(const struct json_doc *d, int v)
{
	const struct value *x = get(d, v);

	return x ? x->start : FMT_NOWHERE;
}

bool json_is_u64(const struct json_doc *d, int v, uint64_t *out)
{
	const struct value *x = get(d, v);
	uint64_t n = 0;

	if (!x || x->kind != J_NUMBER)
		return false;
	for (const char *c = d->text + x->start; c < d->text + x->end; c++)
		if (*c < '0' || *c > '9' || __builtin_mul_overflow(n, 10u, &n) ||
		    __builtin_add_overflow(n, (unsigned)(*c - '0'), &n))
			return false;
	*out = n;
	return true;
}

bool json_is_null(const struct json_doc *d, int v)
{
	const struct value *x = get(d, v);

	return !x || x->kind == J_NULL;
}

double json_double(const struct json_doc *d, int v)
{
	const struct value *x = get(d, v);

	return x && x->kind == J_NUMBER ? strtod(d->text + x->start, NULL) : 0;
}

uint64_t json_u64(const struct json_doc *d, int v)
{
	const struct value *x = get(d, v);

	if (!x || x->kind != J_NUMBER || d->text[x->start] == '-')
		return 0;
	return strtoull(d->text + x->start, NULL, 10);
}

bool json_bool(const struct json_doc *d, int v)
{
	const struct value *x = get(d, v);

	return x && x->kind == J_TRUE;
}

/* ---- strings ---------------------------------------------------------------------- */

static char *put_utf8(char *o, int c)
{
	if (c < 0x80) {
		*o++ = (char)c;
	} else if (c < 0x800) {
		*o++ = (char)(0xc0 | c >> 6);
		*o++ = (char)(0x80 | (c & 0x3f));
	} else if (c < 0x10000) {
		*o++ = (char)(0xe0 | c >> 12);
		*o++ = (char)(0x80 | (c >> 6 & 0x3f));
		*o++ = (char)(0x80 | (c & 0x3f));
	} else {
		*o++ = (char)(0xf0 | c >> 18);
		*o++ = (char)(0x80 | (c >> 12 & 0x3f));
		*o++ = (char)(0x80 | (c >> 6 & 0x3f));
		*o++ = (char)(0x80 | (c & 0x3f));
	}
	return o;
}

/* s is just after "\u"; returns the code point, moves *s beyond it and its second surrogate. */
static int code_point(const char **s, const char *end)
{
	int c = hex4(*s), low;

	*s += 4;
	if (c < 0xd800 || c > 0xdbff || end - *s < 6 || (*s)[0] != '\\' || (*s)[1] != 'u')
		return c;
	low = hex4(*s + 2);
	if (low < 0xdc00 || low > 0xdfff)
		return c;
	*s += 6;
	return 0x10000 + (c - 0xd800) * 0x400 + (low - 0xdc00);
}

/* raw: \u0080 to \u00ff are bytes, and lone surrogates are accepted. */
static ssize_t decode(const struct json_doc *d, int v, bool raw, char *out)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const struct value *x = get(d, v);
	const char *s, *end;
	char *o = out;

	if (!x || x->kind != J_STRING)
		return -EINVAL;
	s = d->text + x->start;
	end = d->text + x->end;
	if (!x->escaped) {
		memcpy(out, s, (size_t)(end - s));
		o += end - s;
		s = end;
	}
	while (s < end) {
		if (*s != '\\') {
			*o++ = *s++;
		} else if (s[1] == 'u') {
			int c;

			s += 2;
			c = code_point(&s, end);
			if (!raw && c >= 0xd800 && c <= 0xdfff)
				return -EINVAL;
			if (raw && c >= 0x80 && c <= 0xff)
				*o++ = (char)c;
			else
				o = put_utf8(o, c); /* no longer than the escape */
		} else {
			*o++ = to[strchr(from, s[1]) - from];
			s += 2;
		}
	}
	*o = '\0';
	return o - out;
}

size_t json_string_size(const struct json_doc *d, int v)
{
	const struct value *x = get(d, v);

	return x && x->kind == J_STRING ? (size_t)(x->end - x->start) + 1 : 0;
}

ssize_t json_string_copy(const struct json_doc *d, int v, char *buf)
{
	return decode(d, v, false, buf);
}

char *json_bytes(const struct json_doc *d, int v)
{
	size_t size = json_string_size(d, v);
	char *out = size ? malloc(size) : NULL;
	ssize_t n = out ? decode(d, v, true, out) : -1;

	if (n < 0 || strlen(out) != (size_t)n) { /* a path cannot contain a NUL */
		free(out);
		return NULL;
	}
	return out;
}

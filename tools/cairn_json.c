/* SPDX-License-Identifier: MIT
 *
 * The JSON reader and writer of `cairn`; see cairn_json.h. What is read comes
 * from another process and is trusted with nothing: bounded depth, every index
 * checked.
 */
#include "cairn_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32

enum kind { J_OBJECT, J_ARRAY, J_STRING, J_NUMBER, J_TRUE, J_FALSE, J_NULL };

/* A document is an array of values in text order; `next` is the index after a
 * value and all in it, so that siblings are found without looking inside. An
 * object's values alternate key, value. */
struct value {
	enum kind kind;
	size_t start, end;	/* of a string: between the quotes */
	int next;
};

struct json_doc {
	char *text;
	size_t len;
	struct value *v;
	int n, cap;
};

struct parser {
	struct json_doc *d;
	size_t pos;
	int err;
};

/* ---- reader ----------------------------------------------------------------- */

static int peek(struct parser *p)
{
	return p->pos < p->d->len ? (unsigned char)p->d->text[p->pos] : -1;
}

static void skip_space(struct parser *p)
{
	int c;

	while ((c = peek(p)) == ' ' || c == '\t' || c == '\n' || c == '\r')
		p->pos++;
}

static int fail(struct parser *p, int err)
{
	if (!p->err)
		p->err = err;
	return -1;
}

static int add(struct parser *p, enum kind kind, size_t start)
{
	struct json_doc *d = p->d;

	if (d->n == d->cap) {
		int cap = d->cap ? d->cap * 2 : 64;
		struct value *v = reallocarray(d->v, (size_t)cap, sizeof(*v));

		if (!v)
			return fail(p, -ENOMEM);
		d->v = v;
		d->cap = cap;
	}
	d->v[d->n] = (struct value){ .kind = kind, .start = start, .end = start, .next = d->n + 1 };
	return d->n++;
}

static int hex4(const char *s)
{
	int n = 0;

	for (int i = 0; i < 4; i++) {
		char c = s[i];
		int digit = c >= '0' && c <= '9' ? c - '0' :
			    c >= 'a' && c <= 'f' ? c - 'a' + 10 :
			    c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;

		if (digit < 0)
			return -1;
		n = n * 16 + digit;
	}
	return n;
}

static int parse_string(struct parser *p)
{
	int v = add(p, J_STRING, ++p->pos);

	while (v >= 0) {
		int c = peek(p);

		if (c < 0x20)	/* also the end of the text */
			return fail(p, -EBADMSG);
		if (c == '"')
			break;
		if (c == '\\') {
			p->pos++;
			c = peek(p);
			if (c <= 0 || !strchr("\"\\/bfnrtu", c))
				return fail(p, -EBADMSG);
			if (c == 'u' && (p->d->len - p->pos < 5 || hex4(p->d->text + p->pos + 1) < 0))
				return fail(p, -EBADMSG);
		}
		p->pos++;
	}
	if (v >= 0)
		p->d->v[v].end = p->pos++;
	return v;
}

static int digits(struct parser *p)
{
	int n = 0;

	for (int c; (c = peek(p)) >= '0' && c <= '9'; n++)
		p->pos++;
	return n;
}

static int parse_number(struct parser *p)
{
	int v = add(p, J_NUMBER, p->pos);

	if (v < 0)
		return v;
	if (peek(p) == '-')
		p->pos++;
	if (!digits(p))
		return fail(p, -EBADMSG);
	if (peek(p) == '.') {
		p->pos++;
		if (!digits(p))
			return fail(p, -EBADMSG);
	}
	if (peek(p) == 'e' || peek(p) == 'E') {
		p->pos++;
		if (peek(p) == '+' || peek(p) == '-')
			p->pos++;
		if (!digits(p))
			return fail(p, -EBADMSG);
	}
	p->d->v[v].end = p->pos;
	return v;
}

static int parse_word(struct parser *p, const char *word, enum kind kind)
{
	size_t len = strlen(word);

	if (p->d->len - p->pos < len || memcmp(p->d->text + p->pos, word, len))
		return fail(p, -EBADMSG);
	p->pos += len;
	return add(p, kind, p->pos - len);
}

static int parse_value(struct parser *p, int depth);

static int parse_members(struct parser *p, int depth, char closing)
{
	int v = add(p, closing == '}' ? J_OBJECT : J_ARRAY, p->pos++);
	bool first = true;

	while (v >= 0) {
		skip_space(p);
		if (peek(p) == closing && first)
			break;
		if (closing == '}') {
			if (peek(p) != '"' || parse_string(p) < 0)
				return fail(p, -EBADMSG);
			skip_space(p);
			if (peek(p) != ':')
				return fail(p, -EBADMSG);
			p->pos++;
		}
		if (parse_value(p, depth + 1) < 0)
			return -1;
		skip_space(p);
		if (peek(p) == closing)
			break;
		if (peek(p) != ',')
			return fail(p, -EBADMSG);
		p->pos++;
		first = false;
	}
	if (v >= 0) {
		p->pos++;
		p->d->v[v].end = p->pos;
		p->d->v[v].next = p->d->n;
	}
	return v;
}

static int parse_value(struct parser *p, int depth)
{
	if (depth > MAX_DEPTH)
		return fail(p, -EBADMSG);
	skip_space(p);
	switch (peek(p)) {
	case '{':
		return parse_members(p, depth, '}');
	case '[':
		return parse_members(p, depth, ']');
	case '"':
		return parse_string(p);
	case 't':
		return parse_word(p, "true", J_TRUE);
	case 'f':
		return parse_word(p, "false", J_FALSE);
	case 'n':
		return parse_word(p, "null", J_NULL);
	default:
		return parse_number(p);
	}
}

int json_parse(const char *text, size_t len, struct json_doc **out)
{
	struct json_doc *d = calloc(1, sizeof(*d));
	struct parser p = { .d = d };

	*out = NULL;
	if (!d)
		return -ENOMEM;
	d->text = malloc(len + 1);
	if (!d->text) {
		json_doc_free(d);
		return -ENOMEM;
	}
	memcpy(d->text, text, len);
	d->text[len] = '\0';	/* so that strtod() stops */
	d->len = len;
	parse_value(&p, 0);
	skip_space(&p);
	if (!p.err && p.pos != len)
		p.err = -EBADMSG;
	if (p.err) {
		json_doc_free(d);
		return p.err;
	}
	*out = d;
	return 0;
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

static const struct value *get(const struct json_doc *d, int v)
{
	return d && v >= 0 && v < d->n ? &d->v[v] : NULL;
}

static int member(const struct json_doc *d, int v, const char *key, size_t len)
{
	const struct value *o = get(d, v);

	if (!o || o->kind != J_OBJECT)
		return -1;
	for (int k = v + 1; k < o->next; k = d->v[d->v[k].next].next) {
		const struct value *name = &d->v[k];

		if (name->end - name->start == len && !memcmp(d->text + name->start, key, len))
			return name->next;
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
	const struct value *a = get(d, v);

	if (!a || a->kind != J_ARRAY)
		return -1;
	for (int k = v + 1; k < a->next; k = d->v[k].next)
		if (i-- == 0)
			return k;
	return -1;
}

int json_count(const struct json_doc *d, int v)
{
	const struct value *a = get(d, v);
	int n = 0;

	if (!a || a->kind != J_ARRAY)
		return 0;
	for (int k = v + 1; k < a->next; k = d->v[k].next)
		n++;
	return n;
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

static char *put_utf8(char *o, int c)
{
	if (c < 0x100) {	/* below 0x80 a character, above a raw byte: see the header */
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

/* s is just after "\u"; returns the code point, moves *s past it and its pair. */
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

char *json_string(const struct json_doc *d, int v)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const struct value *x = get(d, v);
	const char *s, *end;
	char *out, *o;

	if (!x || x->kind != J_STRING)
		return NULL;
	s = d->text + x->start;
	end = d->text + x->end;
	o = out = malloc(x->end - x->start + 1);	/* no escape grows when decoded */
	while (out && s < end) {
		if (*s != '\\') {
			*o++ = *s++;
		} else if (s[1] == 'u') {
			s += 2;
			o = put_utf8(o, code_point(&s, end));
		} else {
			*o++ = to[strchr(from, s[1]) - from];
			s += 2;
		}
	}
	if (!out)
		return NULL;
	*o = '\0';
	if (strlen(out) != (size_t)(o - out)) {	/* a NUL is in no path */
		free(out);
		return NULL;
	}
	return out;
}

/* ---- writer ----------------------------------------------------------------- */

/* Length of the valid UTF-8 sequence at s, 0 if there is none. */
static size_t utf8_len(const unsigned char *s)
{
	unsigned char c = s[0];
	unsigned char lo = 0x80, hi = 0xbf;	/* bounds of the second byte */
	size_t len;

	if (c < 0x80)
		return 1;
	if (c >= 0xc2 && c <= 0xdf)
		return s[1] >= 0x80 && s[1] <= 0xbf ? 2 : 0;
	if (c >= 0xe0 && c <= 0xef) {
		len = 3;
		lo = c == 0xe0 ? 0xa0 : 0x80;	/* overlong */
		hi = c == 0xed ? 0x9f : 0xbf;	/* surrogates */
	} else if (c >= 0xf0 && c <= 0xf4) {
		len = 4;
		lo = c == 0xf0 ? 0x90 : 0x80;
		hi = c == 0xf4 ? 0x8f : 0xbf;	/* beyond U+10FFFF */
	} else {
		return 0;
	}
	if (s[1] < lo || s[1] > hi)
		return 0;
	for (size_t i = 2; i < len; i++)
		if (s[i] < 0x80 || s[i] > 0xbf)
			return 0;
	return len;
}

static bool is_utf8(const char *s)
{
	const unsigned char *u = (const unsigned char *)s;

	for (size_t len; *u; u += len) {
		len = utf8_len(u);
		if (!len)
			return false;
	}
	return true;
}

static void quoted(FILE *f, const char *s)
{
	const unsigned char *u = (const unsigned char *)s;

	fputc('"', f);
	while (*u) {
		size_t len = utf8_len(u);

		if (*u == '"' || *u == '\\') {
			fprintf(f, "\\%c", *u++);
		} else if (*u < 0x20 || *u == 0x7f || !len) {
			fprintf(f, "\\u%04x", *u++);
		} else {
			fwrite(u, 1, len, f);
			u += len;
		}
	}
	fputc('"', f);
}

static void before(struct json_out *j, const char *key)
{
	if (j->comma >> j->depth & 1)
		fputs(", ", j->f);
	j->comma |= 1ull << j->depth;
	if (key) {
		quoted(j->f, key);
		fputs(": ", j->f);
	}
}

void json_begin(struct json_out *j, FILE *f)
{
	*j = (struct json_out){ .f = f };
}

void json_open(struct json_out *j, const char *key, char bracket)
{
	before(j, key);
	fputc(bracket, j->f);
	j->depth++;
	j->comma &= ~(1ull << j->depth);
}

void json_close(struct json_out *j, char bracket)
{
	fputc(bracket, j->f);
	j->depth--;
	if (!j->depth)
		fputc('\n', j->f);
}

void json_put_string(struct json_out *j, const char *key, const char *bytes)
{
	before(j, key);
	if (bytes)
		quoted(j->f, bytes);
	else
		fputs("null", j->f);
}

void json_put_u64(struct json_out *j, const char *key, uint64_t n)
{
	before(j, key);
	fprintf(j->f, "%llu", (unsigned long long)n);
}

void json_put_i64(struct json_out *j, const char *key, int64_t n)
{
	before(j, key);
	fprintf(j->f, "%lld", (long long)n);
}

void json_put_bool(struct json_out *j, const char *key, bool b)
{
	before(j, key);
	fputs(b ? "true" : "false", j->f);
}

void json_put_path(struct json_out *j, const char *key, const char *bytes)
{
	json_put_string(j, key, bytes);
	if (!bytes || is_utf8(bytes))
		return;
	fprintf(j->f, ", \"%s_hex\": \"", key);
	for (const unsigned char *u = (const unsigned char *)bytes; *u; u++)
		fprintf(j->f, "%02x", *u);
	fputc('"', j->f);
}

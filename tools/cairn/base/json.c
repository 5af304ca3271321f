/* SPDX-License-Identifier: MIT
 *
 * The JSON writer of `cairn`, and paths read back; see json.h.
 */
#include "json.h"
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* How many bytes can be written unescaped. */
static size_t plain(const char *s)
{
	size_t n = 0;

	while (s[n] >= 0x20 && s[n] < 0x7f && s[n] != '"' && s[n] != '\\')
		n++;
	return n;
}

static void quoted(FILE *f, const char *s)
{
	putc_unlocked('"', f);
	for (size_t len; *s; s += len) {
		unsigned char c = (unsigned char)*s;

		len = plain(s);
		if (len) {
			fwrite_unlocked(s, 1, len, f);
			continue;
		}
		len = fmt_utf8(s, 4);
		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c < 0x20 || c == 0x7f || !len)
			fprintf(f, "\\u%04x", c);
		else
			fwrite_unlocked(s, 1, len, f);
		len += !len;
	}
	putc_unlocked('"', f);
}

static void before(struct json_out *j, const char *key)
{
	if (j->comma >> j->depth & 1)
		fputs_unlocked(", ", j->f);
	j->comma |= 1ull << j->depth;
	if (key) {
		quoted(j->f, key);
		fputs_unlocked(": ", j->f);
	}
}

void json_begin(struct json_out *j, FILE *f)
{
	*j = (struct json_out){.f = f};
}

void json_open(struct json_out *j, const char *key, char bracket)
{
	before(j, key);
	putc_unlocked(bracket, j->f);
	j->depth++;
	j->comma &= ~(1ull << j->depth);
}

void json_close(struct json_out *j, char bracket)
{
	putc_unlocked(bracket, j->f);
	j->depth--;
	if (!j->depth)
		putc_unlocked('\n', j->f);
}

void json_put_string(struct json_out *j, const char *key, const char *bytes)
{
	before(j, key);
	if (bytes)
		quoted(j->f, bytes);
	else
		fputs_unlocked("null", j->f);
}

void json_put_u64(struct json_out *j, const char *key, uint64_t n)
{
	char text[NUMBER_CAP];

	before(j, key);
	put_number(text, n);
	fputs_unlocked(text, j->f);
}

void json_put_i64(struct json_out *j, const char *key, int64_t n)
{
	before(j, key);
	fprintf(j->f, "%lld", (long long)n);
}

void json_put_bool(struct json_out *j, const char *key, bool b)
{
	before(j, key);
	fputs_unlocked(b ? "true" : "false", j->f);
}

void json_put_path(struct json_out *j, const char *key, const char *bytes)
{
	json_put_string(j, key, bytes);
	if (!bytes || fmt_is_utf8(bytes, strlen(bytes)))
		return;
	fprintf(j->f, ", \"%s_hex\": \"", key);
	for (const unsigned char *u = (const unsigned char *)bytes; *u; u++)
		fprintf(j->f, "%02x", *u);
	putc_unlocked('"', j->f);
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* In place, from hexadecimal; false: it is not. */
static bool from_hex(char *s)
{
	size_t n = 0;

	for (; s[2 * n]; n++) {
		int hi = hex_digit(s[2 * n]), lo = hex_digit(s[2 * n + 1]);

		if (hi < 0 || lo < 0 || hi + lo == 0)
			return false;
		s[n] = (char)(hi << 4 | lo);
	}
	s[n] = '\0';
	return n > 0;
}

char *json_get_path(const struct json_doc *d, int v)
{
	int hex = json_at(d, v, "path_hex"), key = json_at(d, v, "path");
	size_t size = json_string_size(d, key);
	char *out;
	bool good;

	if (hex >= 0) {
		out = json_bytes(d, hex);
		good = out && from_hex(out);
	} else {
		out = size ? malloc(size) : NULL;
		good = out && json_string_copy(d, key, out) == (ssize_t)strlen(out);
	}
	if (good)
		return out;
	free(out);
	return NULL;
}

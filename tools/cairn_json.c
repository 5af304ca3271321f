/* SPDX-License-Identifier: MIT
 *
 * The JSON writer of `cairn`; see cairn_json.h.
 */
#include "cairn_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

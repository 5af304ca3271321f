/* SPDX-License-Identifier: MIT
 *
 * The JSON writer of `cairn`; see cairn_json.h.
 */
#include "cairn_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void quoted(FILE *f, const char *s)
{
	fputc('"', f);
	for (size_t len; *s; s += len) {
		unsigned char c = (unsigned char)*s;

		len = fmt_utf8(s, 4);
		if (c == '"' || c == '\\')
			fprintf(f, "\\%c", c);
		else if (c < 0x20 || c == 0x7f || !len)
			fprintf(f, "\\u%04x", c);
		else
			fwrite(s, 1, len, f);
		len += !len;
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
	if (!bytes || fmt_is_utf8(bytes, strlen(bytes)))
		return;
	fprintf(j->f, ", \"%s_hex\": \"", key);
	for (const unsigned char *u = (const unsigned char *)bytes; *u; u++)
		fprintf(j->f, "%02x", *u);
	fputc('"', j->f);
}

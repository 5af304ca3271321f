/* SPDX-License-Identifier: MIT
 *
 * JSON, as much as `cairn` needs. Names on Linux are bytes, JSON strings are
 * not: the writer writes a byte that is not part of valid UTF-8 as \u00XX, and
 * json_bytes() turns \u0080..\u00ff back into that byte. The reader is that
 * of fs/formats/.
 */
#ifndef CAIRN_JSON_H
#define CAIRN_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "fs/formats/formats.h"

/* json_read() without the reason of an error. */
static inline int json_parse(const char *text, size_t len, struct json_doc **out)
{
	return json_read(text, len, out, NULL);
}

struct json_out {
	FILE *f;
	unsigned depth;
	uint64_t comma; /* bit d: something was written at depth d */
};

void json_begin(struct json_out *j, FILE *f);
/* '{' or '['; key NULL in arrays */
void json_open(struct json_out *j, const char *key, char bracket);
void json_close(struct json_out *j, char bracket); /* '}' or ']' */
/* NULL -> null */
void json_put_string(struct json_out *j, const char *key, const char *bytes);
void json_put_u64(struct json_out *j, const char *key, uint64_t n);
void json_put_i64(struct json_out *j, const char *key, int64_t n);
void json_put_bool(struct json_out *j, const char *key, bool b);
/* A path: the string, and if it is not valid UTF-8 also <key>_hex with its bytes. */
void json_put_path(struct json_out *j, const char *key, const char *bytes);
/* The one that json_put_path() wrote in the object v with key "path": malloc()ed; NULL: none. */
char *json_get_path(const struct json_doc *d, int v);

#endif

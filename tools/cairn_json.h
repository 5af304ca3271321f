/* SPDX-License-Identifier: MIT
 *
 * JSON, as much as `cairn` needs. Names on Linux are bytes, JSON strings are
 * not: both sides here write a byte that is not part of valid UTF-8 as \u00XX,
 * and the reader turns \u0080..\u00ff back into that byte.
 */
#ifndef CAIRN_JSON_H
#define CAIRN_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- reader ----------------------------------------------------------------- */

struct json_doc;

/* Parses a whole document; text is copied. -EBADMSG: not JSON, or nested deeper
 * than 32; -ENOMEM. */
int json_parse(const char *text, size_t len, struct json_doc **out);
void json_doc_free(struct json_doc *d);	/* NULL is fine */
void json_doc_freep(struct json_doc **d);

/* A value is named by its index; 0 is the document itself; -1 is "none", which
 * every call accepts. json_at() goes down keys divided by '.' from `from`. */
int json_at(const struct json_doc *d, int from, const char *keys);
int json_count(const struct json_doc *d, int v);	/* of an array; 0 for all else */
int json_item(const struct json_doc *d, int v, int i);
bool json_is_null(const struct json_doc *d, int v);	/* also when there is none */
uint64_t json_u64(const struct json_doc *d, int v);	/* 0 when it is not a number */
double json_double(const struct json_doc *d, int v);
bool json_bool(const struct json_doc *d, int v);
/* malloc()ed bytes, NULL when it is not a string (or holds a NUL, or no memory). */
char *json_string(const struct json_doc *d, int v);

/* ---- writer ----------------------------------------------------------------- */

struct json_out {
	FILE *f;
	unsigned depth;
	uint64_t comma;		/* bit d: something was written at depth d */
};

void json_begin(struct json_out *j, FILE *f);
void json_open(struct json_out *j, const char *key, char bracket);	/* '{' or '['; key NULL in arrays */
void json_close(struct json_out *j, char bracket);			/* '}' or ']' */
void json_put_string(struct json_out *j, const char *key, const char *bytes);	/* NULL -> null */
void json_put_u64(struct json_out *j, const char *key, uint64_t n);
void json_put_i64(struct json_out *j, const char *key, int64_t n);
void json_put_bool(struct json_out *j, const char *key, bool b);
/* A path: the string, and where it is not valid UTF-8 also <key>_hex with its bytes. */
void json_put_path(struct json_out *j, const char *key, const char *bytes);

#endif

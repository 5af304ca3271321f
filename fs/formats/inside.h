/* SPDX-License-Identifier: MIT
 *
 * Private to this module.
 */
#ifndef CAIRN_FORMATS_INSIDE_H
#define CAIRN_FORMATS_INSIDE_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/formats/formats.h"

/* Formats the error's text; bytes that a terminal would interpret become \xNN. e may be NULL. */
__attribute__((format(printf, 3, 4))) void fmt_say(struct fmt_error *e, uint64_t at,
						   const char *fmt, ...);
/* The same, and returns err: a macro, so that the compiler sees that it is not 0. */
#define fmt_fail(e, err, at, ...) (fmt_say((e), (at), __VA_ARGS__), (err))

/* ---- arena: many small objects that are freed together ---------------------------- */

struct arena_block;

struct arena {
	struct arena_block *block;
	unsigned char *next; /* in the newest block; zeroed */
	size_t left; /* a multiple of 8 */
	uint64_t used, limit; /* limit: by the length of the input */
	int err; /* of the last arena_get() that failed: -ENOMEM, -E2BIG */
};

/* How many bytes an input of that length may expand to. Real metadata takes up to 16 bytes for each
 * of its own if it is small, and 8 if it is large. */
static inline uint64_t fmt_allowance(uint64_t len)
{
	const uint64_t small = 1u << 20;

	return 4096 + (len < small ? len * 96 : small * 96 + (len - small) * 12);
}

void arena_init(struct arena *a, uint64_t limit);
void arena_free(struct arena *a);
/* Zeroed, aligned for all types here; NULL: see err. */
/* if the newest block may be too small */
void *arena_get_more(struct arena *a, size_t size);
static inline void *arena_get(struct arena *a, size_t size)
{
	size_t need = (size + 7) & ~(size_t)7;
	void *p = a->next;

	if (size > a->left || a->used + need > a->limit)
		return arena_get_more(a, size);
	a->next += need;
	a->left -= need;
	a->used += need;
	return p;
}
void *arena_array(struct arena *a, size_t n, size_t size);
/* A copy, NUL-terminated. */
char *arena_string(struct arena *a, const char *p, size_t n);

/* ---- tables: from a hash to an index ----------------------------------------------- */

struct fmt_slot {
	uint32_t hash, index; /* index + 1; 0 = free */
};

struct fmt_table {
	struct fmt_slot *slot;
	size_t cap, used; /* cap: a power of two, at least twice `used` */
	uint64_t seed[2];
};

void fmt_table_init(struct fmt_table *t);
void fmt_table_free(struct fmt_table *t);
/* A hash is valid for this table only. mix() adds a number to a hash. */
uint64_t fmt_table_hash(const struct fmt_table *t, const char *p, size_t n);
uint64_t fmt_table_mix(const struct fmt_table *t, uint64_t hash, uint64_t x);
/* Grows t by that many places. 0, -E2BIG, -ENOMEM. */
int fmt_table_grow(struct fmt_table *t, size_t more);
/* The slot of an entry with that hash for which `same` returns true, or the free one for it. Only
 * after fmt_table_grow(). */
struct fmt_slot *fmt_table_slot(const struct fmt_table *t, uint64_t hash,
				bool (*same)(const void *ctx, uint32_t index), const void *ctx);
void fmt_table_put(struct fmt_table *t, struct fmt_slot *s, uint64_t hash, uint32_t index);

/* ---- filling a set ---------------------------------------------------------------- */

/* Raises the set's memory limit for an input of that length. */
void fmt_set_allow(struct fmt_set *s, uint64_t input_len);
struct arena *fmt_set_arena(struct fmt_set *s);
/* -EBADMSG: it contains a NUL. */
int fmt_set_string(struct fmt_set *s, const char *p, size_t n, const char **out,
		   struct fmt_error *e);
/* Adds a tensor that is not in the set (the caller has checked); shape is copied. */
int fmt_set_add(struct fmt_set *s, const char *name, size_t len, unsigned ndim,
		const uint64_t *shape, struct fmt_tensor **out, struct fmt_error *e);
/* p's arrays must live as long as the set: allocate them in its arena; offset + size fits 63
 * bits. */
int fmt_set_piece(struct fmt_tensor *t, const struct fmt_piece *p, struct fmt_error *e);
/* *out is valid until the set changes. */
int fmt_set_blob(struct fmt_set *s, const char *name, size_t len, uint32_t file, uint64_t at,
		 uint64_t length, struct fmt_blob **out, struct fmt_error *e);
/* Counts an extent of a file. -EBADMSG: it ends beyond 2^63. */
int fmt_set_extent(struct fmt_set *s, uint32_t file, uint64_t at, uint64_t length,
		   struct fmt_error *e);

/* ---- bytes ------------------------------------------------------------------------ */

static inline uint16_t get16(const void *p)
{
	const uint8_t *b = (const uint8_t *)p;

	return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t get32(const void *p)
{
	return get16(p) | (uint32_t)get16((const uint8_t *)p + 2) << 16;
}

static inline uint64_t get64(const void *p)
{
	return get32(p) | (uint64_t)get32((const uint8_t *)p + 4) << 32;
}

static inline void fmt_free_ptr(void *p)
{
	free(*(void **)p);
}

#define CLEANUP_FREE __attribute__((cleanup(fmt_free_ptr)))

#endif

/* SPDX-License-Identifier: MIT
 *
 * Hash tables of indices: open addressing, at most half full.
 *
 * Each process has a random seed, so an attacker cannot choose names that collide. No output
 * depends on it.
 */
#include "fs/formats/inside.h"

#include <sys/random.h>
#include <time.h>

static uint64_t fold(uint64_t a, uint64_t b)
{
	__extension__ const unsigned __int128 x = (unsigned __int128)a * b;

	return (uint64_t)x ^ (uint64_t)(x >> 64);
}

void fmt_table_init(struct fmt_table *t)
{
	struct timespec now;

	*t = (struct fmt_table){.slot = NULL};
	if (getrandom(t->seed, sizeof(t->seed), GRND_NONBLOCK) == (ssize_t)sizeof(t->seed))
		return;
	/* early during boot: addresses and the time must do */
	clock_gettime(CLOCK_MONOTONIC, &now);
	t->seed[0] = (uint64_t)(uintptr_t)t * 0x9e3779b97f4a7c15u;
	t->seed[1] = t->seed[0] ^ (uint64_t)now.tv_nsec << 32;
}

void fmt_table_free(struct fmt_table *t)
{
	free(t->slot);
	*t = (struct fmt_table){.slot = NULL};
}

uint64_t fmt_table_mix(const struct fmt_table *t, uint64_t hash, uint64_t x)
{
	return fold(hash ^ x, t->seed[1] | 1);
}

uint64_t fmt_table_hash(const struct fmt_table *t, const char *p, size_t n)
{
	uint64_t h = fold(t->seed[0] ^ n, t->seed[1] | 1), tail = 0;

	for (; n >= 8; p += 8, n -= 8)
		h = fold(h ^ get64(p), t->seed[1] | 1);
	for (size_t i = 0; i < n; i++)
		tail |= (uint64_t)(unsigned char)p[i] << 8 * i;
	return fold(h ^ tail, t->seed[0] | 1);
}

struct fmt_slot *fmt_table_slot(const struct fmt_table *t, uint64_t hash,
				bool (*same)(const void *ctx, uint32_t index), const void *ctx)
{
	for (size_t i = (uint32_t)hash;; i++) {
		struct fmt_slot *s = &t->slot[i & (t->cap - 1)];

		if (!s->index || (s->hash == (uint32_t)hash && same(ctx, s->index - 1)))
			return s;
	}
}

int fmt_table_grow(struct fmt_table *t, size_t more)
{
	struct fmt_slot *v;
	size_t cap = t->cap ? t->cap : 64;

	if (more > UINT32_MAX / 4 || t->used > UINT32_MAX / 4 - more)
		return -E2BIG;
	while (cap < 2 * (t->used + more))
		cap *= 2;
	if (cap == t->cap)
		return 0;
	v = calloc(cap, sizeof(*v));
	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < t->cap; i++) {
		size_t j = t->slot[i].hash;

		if (!t->slot[i].index)
			continue;
		while (v[j & (cap - 1)].index)
			j++;
		v[j & (cap - 1)] = t->slot[i];
	}
	free(t->slot);
	t->slot = v;
	t->cap = cap;
	return 0;
}

void fmt_table_put(struct fmt_table *t, struct fmt_slot *s, uint64_t hash, uint32_t index)
{
	t->used += !s->index;
	*s = (struct fmt_slot){(uint32_t)hash, index + 1};
}

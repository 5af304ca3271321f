/* SPDX-License-Identifier: MIT
 * What the workload (load.c) and the checker (scan.c) share: file contents by seed, their
 * hash, and the hash of a directory tree. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The finalizer of SplitMix64. */
static inline uint64_t mix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* n bytes that depend on the seed alone. */
static inline void fill(uint64_t seed, char *buf, size_t n)
{
	uint64_t x = mix64(seed);

	for (size_t i = 0; i < n; i += 8) {
		uint64_t w = x ^ (x >> 29);

		memcpy(buf + i, &w, n - i < 8 ? n - i : 8);
		x = x * 6364136223846793005u + 1442695040888963407u;
	}
}

static inline uint64_t hash_word(uint64_t h, uint64_t w)
{
	h = (h ^ w) * 0x9fb21c651e98df25u;
	return h ^ h >> 32;
}

/* h tells kinds of content apart: HASH_FILE, HASH_XATTR. */
#define HASH_FILE 7	/* also a symlink's target */
#define HASH_XATTR 9

static inline uint64_t hash64(uint64_t h, const void *buf, size_t n)
{
	const char *p = buf;
	uint64_t w;

	h ^= n * 0xff51afd7ed558ccdu;
	for (; n >= 8; n -= 8, p += 8) {
		memcpy(&w, p, 8);
		h = hash_word(h, w);
	}
	if (n) {
		w = 0;
		memcpy(&w, p, n);
		h = hash_word(h, w);
	}
	return mix64(h);
}

/* One name of a tree. The hash of a tree is the sum of its names' hashes, so the order of a
 * listing does not matter. */
static inline uint64_t entry64(const char *path, char type, unsigned mode, uint64_t content, uint64_t xattr)
{
	uint64_t h = hash64(1, path, strlen(path));

	h = mix64(h ^ (uint64_t)type << 32 ^ mode);
	return mix64(mix64(h ^ content) ^ xattr);
}

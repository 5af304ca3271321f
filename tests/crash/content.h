/* SPDX-License-Identifier: MIT
 *
 * Self-describing bytes: each 4 KiB block names its file, version and place, and the
 * rest of it follows from those, so torn, mixed and misplaced bytes are told apart.
 */
#ifndef CRASH_CONTENT_H
#define CRASH_CONTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CONTENT_BLOCK 4096u
#define CONTENT_MAGIC 0x4e52494143746c64ull
#define CONTENT_MIN 16u	/* bytes that name file and version */

static inline uint64_t mix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static inline void content_block(uint64_t *w, uint32_t fid, uint32_t ver, uint64_t blk)
{
	uint64_t id = (uint64_t)fid << 32 | ver;
	uint64_t key = mix64(id ^ mix64(blk));

	w[0] = CONTENT_MAGIC;
	w[1] = id;
	w[2] = blk;
	for (unsigned i = 3; i < CONTENT_BLOCK / 8; i++)
		w[i] = (key + i) * 0x9e3779b97f4a7c15ull;
}

/* The bytes [off, off+len) of version ver of file fid. */
static inline void content_fill(void *buf, uint32_t fid, uint32_t ver, uint64_t off, size_t len)
{
	uint64_t w[CONTENT_BLOCK / 8];
	char *p = buf;

	while (len) {
		size_t in = off % CONTENT_BLOCK;
		size_t n = CONTENT_BLOCK - in < len ? CONTENT_BLOCK - in : len;

		content_block(w, fid, ver, off / CONTENT_BLOCK);
		memcpy(p, (char *)w + in, n);
		p += n;
		off += n;
		len -= n;
	}
}

/* Which file and version the block at the file's start says it is. */
static inline bool content_id(const void *buf, size_t len, uint32_t *fid, uint32_t *ver)
{
	uint64_t w[2];

	if (len < CONTENT_MIN)
		return false;
	memcpy(w, buf, sizeof(w));
	*fid = (uint32_t)(w[1] >> 32);
	*ver = (uint32_t)w[1];
	return w[0] == CONTENT_MAGIC && *fid;
}

#endif

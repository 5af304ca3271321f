/* SPDX-License-Identifier: MIT
 * How large will this file be? As large as the same shard of the checkpoint
 * before: run/step-200/__0_0.distcp is asked for as run/step-#/__0_0.distcp. A name
 * never seen is expected like others of its shape in such a directory. */
#include "fs/fs.h"

#include <string.h>

/* Runs of digits count as one '#'. */
static uint64_t hash_shape(uint64_t h, const char *s, bool exact)
{
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if (!exact && c >= '0' && c <= '9') {
			while (s[1] >= '0' && s[1] <= '9')
				s++;
			c = '#';
		}
		h = (h ^ c) * 0x100000001b3ull;
	}
	return (h ^ '/') * 0x100000001b3ull;
}

static uint64_t hash_dirs(struct fs *fs, struct node *dir)
{
	uint64_t h = 0xcbf29ce484222325ull;
	for (unsigned depth = 0; dir && dir != fs->root && dir->names && depth < 64; depth++) {
		h = hash_shape(h, dir->names->name, false);
		dir = dir->names->dir;
	}
	return h;
}

static uint64_t get(struct fs *fs, uint64_t key)
{
	return fs->expect[key % EXPECT_SLOTS].key == key ? fs->expect[key % EXPECT_SLOTS].size
							  : STAGED_SIZE_UNKNOWN;
}

static void set(struct fs *fs, uint64_t key, uint64_t size)
{
	fs->expect[key % EXPECT_SLOTS].key = key;
	fs->expect[key % EXPECT_SLOTS].size = size;
}

uint64_t expect_size(struct fs *fs, struct node *dir, const char *name)
{
	uint64_t h = hash_dirs(fs, dir);
	uint64_t size = get(fs, hash_shape(h ^ 1, name, true));
	return size != STAGED_SIZE_UNKNOWN ? size : get(fs, hash_shape(h ^ 2, name, false));
}

void expect_note(struct fs *fs, struct node *n, uint64_t size)
{
	if (!n->names)
		return;
	uint64_t h = hash_dirs(fs, n->names->dir);
	set(fs, hash_shape(h ^ 1, n->names->name, true), size);
	set(fs, hash_shape(h ^ 2, n->names->name, false), size);
}

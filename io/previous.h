/* SPDX-License-Identifier: MIT
 * STORE/.cairn/previous/KEY has the files of a checkpoint that is being overwritten in place.
 * KEY is PATH.INO.BIRTH.META: PATH is for people, as lost+found has it; the directory is
 * recognized by the next two, its inode and birth time, and META is the inode of its .metadata.
 * One without a .metadata is not kept any more. */
#ifndef CAIRN_IO_PREVIOUS_H
#define CAIRN_IO_PREVIOUS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREVIOUS_DIR "previous" /* in .cairn */
#define PREVIOUS_KEY 256u
/* "%n" begins no path. A host builds one here, and then renames it. */
#define PREVIOUS_NEW "%new."

struct previous_key {
	uint64_t ino, birth, meta;
	size_t path_len; /* of KEY */
};

static inline bool previous_parse(const char *name, struct previous_key *out)
{
	size_t end = strlen(name);
	uint64_t v[3];

	for (int i = 2; i >= 0; i--) {
		size_t at = end;
		char *rest;

		while (at && name[at - 1] != '.')
			at--;
		if (!at || at == end || strspn(name + at, "0123456789abcdef") < end - at)
			return false;
		v[i] = strtoull(name + at, &rest, 16);
		end = at - 1;
	}
	*out = (struct previous_key){.ino = v[0], .birth = v[1], .meta = v[2], .path_len = end};
	return strncmp(name, PREVIOUS_NEW, strlen(PREVIOUS_NEW));
}

static inline void previous_format(const char *path, const struct previous_key *k,
				   char out[PREVIOUS_KEY])
{
	snprintf(out, PREVIOUS_KEY, "%.200s.%llx.%llx.%llx", path, (unsigned long long)k->ino,
		 (unsigned long long)k->birth, (unsigned long long)k->meta);
}

#endif

/* SPDX-License-Identifier: MIT
 * Are all shards that a .metadata lists of one save, by their marks (save_tag.c)? Pure functions.
 *
 * Which save that is, this host's own shards say: it wrote them before the .metadata, and they are
 * in the store as they were then. The .metadata's own mark is no more than an upper bound, since it
 * may have been written again alone, after a call that failed. Where none of the shards is this
 * host's, it is the answer. */
#include "fs/tree/inside.h"

static uint64_t own_save(const struct save_mark *m, size_t n, uint64_t commit)
{
	bool any = false;
	uint64_t save = 0;

	for (size_t i = 0; i < n; i++) {
		bool own = m[i].kind == SAVE_MARKED && m[i].own;
		if (own && (!any || m[i].n > save))
			save = m[i].n;
		any |= own;
	}
	return any ? save : commit;
}

/* A directory's first save may have shards that were written after its .metadata: hosts that copy a
 * checkpoint have no barrier. */
static bool is_later(const struct save_mark *m, uint64_t save, uint64_t commit)
{
	return m->kind == SAVE_MARKED && m->n > save && (save || m->n > commit + 1);
}

size_t save_odd_one(const struct save_mark *m, size_t n, uint64_t commit, uint64_t *save)
{
	*save = own_save(m, n, commit);
	for (size_t i = 0; i < n; i++)
		if (is_later(&m[i], *save, commit))
			return i;
	for (size_t i = 0; i < n; i++)
		if (m[i].kind == SAVE_MARKED && m[i].n < *save)
			return i;
	return n;
}

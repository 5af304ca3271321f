/* SPDX-License-Identifier: MIT
 *
 * What must hold of any set that was read without an error.
 */
#ifndef FUZZ_SET_H
#define FUZZ_SET_H

#include <stdlib.h>
#include <string.h>

#include "fs/formats/formats.h"

/* within: extents must lie in a file of that many bytes; UINT64_MAX: need not. */
static inline void check_set(struct fmt_set *s, uint64_t within)
{
	uint64_t grid[FMT_MAX_DIMS], v;
	struct fmt_error e;

	fmt_set_finish(s);
	for (size_t i = 0; i < s->n_tensors; i++) {
		const struct fmt_tensor *t = &s->tensor[i];

		if (t->ndim > FMT_MAX_DIMS || !t->name || !t->dtype_name)
			abort();
		if (fmt_set_find(s, t->name, strlen(t->name)) != t)
			abort();
		if (i && strcmp(s->tensor[i - 1].name, t->name) >= 0)
			abort();
		fmt_volume(t->shape, t->ndim, &v);
		fmt_set_cover(t, grid, &e);
		for (size_t j = 0; j < t->n_pieces; j++) {
			const struct fmt_piece *p = &t->piece[j];

			if (p->file != FMT_NO_FILE && p->file >= s->n_files)
				abort();
			if (within != UINT64_MAX && (p->at > within || p->length > within - p->at))
				abort();
		}
	}
}

#endif

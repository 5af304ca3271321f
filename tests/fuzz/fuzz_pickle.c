/* SPDX-License-Identifier: MIT
 *
 * Any bytes: parsed or refused, and what was parsed can be walked to its leaves.
 */
#include <stdlib.h>

#include "fs/formats/formats.h"

static void visit(const struct pickle_node *n, const uint8_t *data, size_t size)
{
	uint64_t x;

	pickle_u64(n, &x);
	pickle_attr(n, "fqn");
	pickle_sizes(n);
	pickle_is_object(n, "torch.*", "Size");
	pickle_kind_name(n);
	if ((n->kind == PICKLE_STR || n->kind == PICKLE_BYTES) && n->u.s.n &&
	    ((const uint8_t *)n->u.s.p < data ||
	     (const uint8_t *)n->u.s.p + n->u.s.n > data + size))
		abort();
	if (n->kind >= PICKLE_TUPLE && n->kind <= PICKLE_DICT)
		for (uint32_t i = 0; i < n->u.seq.n; i++)
			pickle_kind_name(n->u.seq.v[i]);
	if (n->kind == PICKLE_DICT && n->u.seq.n % 2)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fmt_error e;
	struct pickle *p;
	size_t used;

	if (pickle_parse(data, size, &p, &used, &e))
		return 0;
	if (used > size)
		abort();
	visit(pickle_root(p), data, size);
	pickle_free(p);
	return 0;
}

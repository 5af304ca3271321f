/* SPDX-License-Identifier: MIT
 *
 * Any bytes as JSON: what is accepted can be walked, and children lie within their parents.
 */
#include <stdlib.h>
#include <string.h>

#include "fs/formats/formats.h"

/* Depth-first by next/first with the parser's own limit on nesting. */
static void walk(const struct json_doc *d, int v, unsigned depth)
{
	size_t size = json_string_size(d, v);
	uint64_t n;

	if (depth > 64)
		abort();
	json_is_u64(d, v, &n);
	json_double(d, v);
	if (size) {
		char *s = malloc(size), *b = json_bytes(d, v);
		ssize_t len = json_string_copy(d, v, s);

		if (len >= (ssize_t)size || (b && strlen(b) >= size))
			abort();
		free(s);
		free(b);
	}
	for (int k = json_first(d, v); k >= 0; k = json_next(d, v, k)) {
		if (k <= v)
			abort();
		walk(d, k, depth + 1);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct json_doc *d;
	struct fmt_error e;

	if (json_read((const char *)data, size, &d, &e))
		return 0;
	walk(d, 0, 0);
	json_at(d, 0, "a.b");
	json_doc_free(d);
	return 0;
}

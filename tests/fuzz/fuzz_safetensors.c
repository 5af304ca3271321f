/* SPDX-License-Identifier: MIT
 *
 * Any bytes as a safetensors file, twice into one set, and as an index.
 */
#include "tests/fuzz/fuzz_set.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fmt_source src = fmt_memory(data, size);
	struct fmt_set *s = fmt_set_new();
	struct safetensors_index x;
	struct fmt_error e;
	int64_t one = fmt_set_file(s, "1", 1, &e), two = fmt_set_file(s, "2", 1, &e);

	if (!safetensors_read(s, (uint32_t)one, &src, &e) &&
	    (!s->n_tensors || !safetensors_read(s, (uint32_t)two, &src, &e)))
		check_set(s, size);
	fmt_set_free(s);
	s = fmt_set_new();
	if (!safetensors_index_read(s, (const char *)data, size, &x, &e)) {
		for (size_t i = 0; i < x.n; i++)
			if (x.v[i].file >= s->n_files)
				abort();
		free(x.v);
	}
	fmt_set_free(s);
	return 0;
}

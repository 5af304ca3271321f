/* SPDX-License-Identifier: MIT
 *
 * Any bytes as `.metadata`, alone and after a part of themselves as another rank's.
 */
#include "tests/fuzz/fuzz_set.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fmt_set *s = fmt_set_new();
	struct fmt_error e;

	if (!dcp_read(s, data, size, &e) && !dcp_read(s, data, size, &e)) {
		check_set(s, UINT64_MAX);
		for (uint32_t f = 0; f < s->n_files; f++) {
			struct fmt_source src = fmt_memory(data, size);

			if (dcp_wants_header(s, f) && !dcp_read_header(s, f, &src, &e))
				abort();	/* a pickle is no safetensors file */
		}
	}
	fmt_set_free(s);
	return 0;
}

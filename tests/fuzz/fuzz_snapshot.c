/* SPDX-License-Identifier: MIT
 *
 * Any bytes as torchsnapshot's metadata.
 */
#include "tests/fuzz/fuzz_set.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fmt_set *s = fmt_set_new();
	struct fmt_error e;
	uint32_t ranks;

	if (!snapshot_read(s, (const char *)data, size, &ranks, &e)) {
		if (s->n_files)
			snapshot_files(s, 0, 7);
		check_set(s, UINT64_MAX);
		for (size_t i = 0; i < s->n_blobs; i++)
			if (s->blob[i].file >= s->n_files)
				abort();
	}
	fmt_set_free(s);
	return 0;
}

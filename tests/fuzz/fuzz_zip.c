/* SPDX-License-Identifier: MIT
 *
 * Any bytes as a zip archive, and as a torch.save file.
 */
#include "tests/fuzz/fuzz_set.h"

static void as_zip(const struct fmt_source *src)
{
	struct fmt_error e;
	struct zip *z;

	if (zip_open(src, &z, &e))
		return;
	for (size_t i = 0; i < z->n_entries; i++) {
		struct zip_entry *t = &z->entry[i];

		if (!zip_data(src, z, t, &e) &&
		    (t->data > src->size || t->size > src->size - t->data))
			abort();
		if (zip_find(z, t->name) != t)
			abort();
	}
	zip_close(z);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fmt_source src = fmt_memory(data, size);
	struct fmt_set *s = fmt_set_new();
	struct fmt_error e;
	int64_t file = fmt_set_file(s, "f", 1, &e);

	as_zip(&src);
	if (!torchfile_read(s, (uint32_t)file, "p:", &src, &e))
		check_set(s, size);
	fmt_set_free(s);
	s = fmt_set_new();
	file = fmt_set_file(s, "f", 1, &e);
	if (!torchfile_read_state(s, (uint32_t)file, &src, NULL, NULL, &e))
		check_set(s, size);
	fmt_set_free(s);
	s = fmt_set_new();
	if (!torchfile_read_value(s, &src, &e) && (s->n_blobs != 1 || !s->blob[0].pickle))
		__builtin_trap();
	fmt_set_free(s);
	s = fmt_set_new();
	dcp_item_read(s, &src, &e);
	fmt_set_free(s);
	return 0;
}

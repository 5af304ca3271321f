/* SPDX-License-Identifier: MIT
 *
 * What PyTorch's own loaders open: a torch.save archive.
 */
#include "fs/formats/view.h"

#include <stdio.h>

/* Refuses types that torch.load() does not have. */
static int check_typed(const struct fmt_tensor *t, uint64_t *bytes, struct fmt_error *e)
{
	unsigned element;

	return view_check(t, &element, bytes, e);
}

static int add_tensors(struct view_zip *z, struct view *pickle, struct fmt_error *e)
{
	const struct fmt_set *s = z->v->base->set;
	uint64_t bytes;
	char key[64];
	int err = 0;

	view_addf(pickle, "\x80\x02}(");
	for (size_t i = 0; !err && i < s->n_tensors; i++) {
		err = check_typed(&s->tensor[i], &bytes, e);
		if (err)
			break;
		snprintf(key, sizeof(key), "%zu", i);
		view_pickle_text(pickle, s->tensor[i].name);
		view_pickle_tensor(pickle, &s->tensor[i], key, bytes);
	}
	view_addf(pickle, "u.");
	if (err)
		return err;
	view_zip_add(z, "archive/data.pkl", pickle->mem, pickle->mem_len);
	view_zip_add(z, "archive/byteorder", "little", 6);
	for (size_t i = 0; i < s->n_tensors; i++) {
		/* only for the size; it was checked */
		check_typed(&s->tensor[i], &bytes, NULL);
		snprintf(key, sizeof(key), "archive/data/%zu", i);
		view_zip_add_tensor(z, key, i, bytes);
	}
	view_zip_add(z, "archive/version", "3\n", 2);
	return 0;
}

int view_torch(struct view_base *b, struct view **out, struct fmt_error *e)
{
	struct view *v = view_new(b), *pickle = view_new(b);
	struct view_zip z = {0};
	int err = v && pickle ? view_zip_begin(&z, v) : -ENOMEM;

	*out = NULL;
	if (err)
		fmt_say(e, FMT_NOWHERE, "no memory");
	else
		err = add_tensors(&z, pickle, e);
	if (!err)
		v->no_memory |= pickle->no_memory;
	if (z.central)
		view_zip_end(&z);
	view_free(pickle);
	if (!err)
		return view_done(v, out, e);
	view_free(v);
	return err;
}

/* SPDX-License-Identifier: MIT
 *
 * What torch.distributed.checkpoint loads: one rank's file of items, and .metadata.
 *
 * An item is a torch.save archive of a tensor in one chunk or of a plain value, as DCP's
 * FileSystemWriter writes it. The metadata is a pickle of protocol 2 that names each class once, at
 * its beginning, and then refers to it by the memo.
 */
#include "fs/formats/view.h"

#include <stdio.h>

enum class {
	METADATA,
	TENSOR,
	BYTES,
	PROPERTIES,
	CHUNK,
	INDEX,
	INFO,
	SIZE,
	LAYOUT,
	FORMAT,
	N_CLASSES,
};

struct writer {
	struct view *data;
	struct view *pickle; /* of the current item */
	/* dicts of the metadata, without begin and end */
	struct view *state, *planner, *storage;
	struct fmt_error *e;
};

/* ---- pickled classes ---------------------------------------------------------------- */

static void put_classes(struct view *v)
{
#define CHECKPOINT "torch.distributed.checkpoint."
	static const char *const name[N_CLASSES] = {
		[METADATA] = CHECKPOINT "metadata\nMetadata",
		[TENSOR] = CHECKPOINT "metadata\nTensorStorageMetadata",
		[BYTES] = CHECKPOINT "metadata\nBytesStorageMetadata",
		[PROPERTIES] = CHECKPOINT "metadata\nTensorProperties",
		[CHUNK] = CHECKPOINT "metadata\nChunkStorageMetadata",
		[INDEX] = CHECKPOINT "metadata\nMetadataIndex",
		[INFO] = CHECKPOINT "filesystem\n_StorageInfo",
		[SIZE] = "torch\nSize",
	};

	for (unsigned i = 0; i < SIZE + 1; i++)
		view_addf(v, "c%s\nq%c0", name[i], (char)i);
	/* two values that all tensors share */
	view_addf(v, "ctorch.serialization\n_get_layout\n");
	view_pickle_text(v, "torch.strided");
	view_addf(v, "\x85Rq%c0", LAYOUT);
	view_addf(v, "c" CHECKPOINT "metadata\n_MEM_FORMAT_ENCODING\n");
	view_pickle_number(v, 0);
	view_addf(v, "\x85Rq%c0", FORMAT);
}

static void put_class(struct view *v, enum class c)
{
	view_add(v, (char[]){'h', (char)c}, 2);
}

/* Begins an object; its attributes follow, then put_end(). */
static void put_object(struct view *v, enum class c)
{
	put_class(v, c);
	view_add(v, ")\x81}(", 4);
}

static void put_end(struct view *v)
{
	view_add(v, "ub", 2);
}

static void put_size(struct view *v, const char *name, const uint64_t *size, unsigned ndim)
{
	view_pickle_text(v, name);
	put_class(v, SIZE);
	view_add(v, "(", 1);
	for (unsigned d = 0; d < ndim; d++)
		view_pickle_number(v, size ? size[d] : 0);
	view_add(v, "t\x85R", 3);
}

/* ---- an item's three entries in the metadata ---------------------------------------- */

static void put_tensor(struct view *v, const struct fmt_tensor *t)
{
	view_pickle_text(v, t->name);
	put_object(v, TENSOR);
	view_pickle_text(v, "properties");
	put_class(v, PROPERTIES);
	view_addf(v, ")\x81(ctorch\n%s\n", t->dtype_name);
	put_class(v, LAYOUT);
	view_add(v, "\x89", 1); /* requires_grad */
	put_class(v, FORMAT);
	view_add(v, "\x89tb", 3); /* pin_memory */
	put_size(v, "size", t->shape, t->ndim);
	view_pickle_text(v, "chunks");
	view_add(v, "](", 2);
	put_object(v, CHUNK);
	put_size(v, "offsets", NULL, t->ndim);
	put_size(v, "sizes", t->shape, t->ndim);
	put_end(v);
	view_add(v, "e", 1);
	put_end(v);
}

static void put_path(struct view *v, const char *name, const struct fmt_path *path)
{
	const struct fmt_step self = {.key = name};
	unsigned n = path->n ? path->n : 1;

	view_pickle_text(v, name);
	view_add(v, "(", 1);
	for (unsigned i = 0; i < n; i++) {
		const struct fmt_step *s = path->n ? &path->step[i] : &self;

		if (s->key)
			view_pickle_text(v, s->key);
		else
			view_pickle_number(v, s->index);
	}
	view_add(v, "t", 1);
}

/* Where the item that began at `at` is. t NULL: not a tensor. */
static void put_place(struct writer *w, const char *name, const struct fmt_tensor *t, uint64_t at)
{
	struct view *v = w->storage;

	put_object(v, INDEX);
	view_pickle_text(v, "fqn");
	view_pickle_text(v, name);
	if (t) {
		put_size(v, "offset", NULL, t->ndim);
		view_pickle_text(v, "index");
		view_pickle_number(v, 0);
	}
	put_end(v);
	put_object(v, INFO);
	view_pickle_text(v, "relative_path");
	view_pickle_text(v, VIEW_DCP_DATA);
	view_pickle_text(v, "offset");
	view_pickle_number(v, at);
	view_pickle_text(v, "length");
	view_pickle_number(v, w->data->size - at);
	put_end(v);
}

/* ---- items -------------------------------------------------------------------------- */

static int check_name(const char *name, const struct fmt_path *path, struct fmt_error *e)
{
	bool fine = fmt_is_utf8(name, strlen(name));

	for (unsigned i = 0; fine && i < path->n; i++) {
		const char *key = path->step[i].key;

		fine = !key || fmt_is_utf8(key, strlen(key));
	}
	return fine ? 0
		    : fmt_fail(e, -ENOTSUP, FMT_NOWHERE, "%.100s: a name that is not UTF-8", name);
}

/* `pickle` is the object; bytes: size of the tensor's storage. */
static int add_archive(struct writer *w, const char *pickle, size_t len, size_t tensor,
		       uint64_t bytes)
{
	struct view_zip z;
	int err = view_zip_begin(&z, w->data);

	if (err)
		return fmt_fail(w->e, err, FMT_NOWHERE, "no memory");
	view_zip_add(&z, "archive/data.pkl", pickle, len);
	view_zip_add(&z, "archive/byteorder", "little", 6);
	if (tensor != VIEW_MEMORY)
		view_zip_add_tensor(&z, "archive/data/0", tensor, bytes);
	view_zip_add(&z, "archive/version", "3\n", 2);
	view_zip_end(&z);
	return 0;
}

static int add_tensor(struct writer *w, size_t i)
{
	const struct fmt_tensor *t = &w->data->base->set->tensor[i];
	uint64_t at = w->data->size, bytes;
	unsigned element;
	int err = check_name(t->name, &t->path, w->e);

	if (!err)
		err = view_check(t, &element, &bytes, w->e);
	if (err)
		return err;
	view_clear(w->pickle);
	view_add(w->pickle, "\x80\x02", 2);
	view_pickle_tensor(w->pickle, t, "0", bytes);
	view_add(w->pickle, ".", 1);
	err = add_archive(w, w->pickle->mem, w->pickle->mem_len, i, bytes);
	put_tensor(w->state, t);
	put_path(w->planner, t->name, &t->path);
	put_place(w, t->name, t, at);
	return err;
}

static int check_blob(struct writer *w, const struct fmt_blob *b)
{
	if (b->refusal)
		return fmt_fail(w->e, -ENOTSUP, FMT_NOWHERE, "%.100s: %.120s", b->name, b->refusal);
	if (!b->pickle && b->file == FMT_NO_FILE)
		return fmt_fail(w->e, -EBADMSG, FMT_NOWHERE, "%.100s: it has no file", b->name);
	if (fmt_set_find(w->data->base->set, b->name, strlen(b->name)))
		return fmt_fail(w->e, -EBADMSG, FMT_NOWHERE, "%.100s: both a tensor and a value",
				b->name);
	return check_name(b->name, &b->path, w->e);
}

static int add_blob(struct writer *w, size_t i)
{
	const struct fmt_blob *b = &w->data->base->set->blob[i];
	uint64_t at = w->data->size;
	int err = check_blob(w, b);

	if (err)
		return err;
	if (b->pickle)
		err = add_archive(w, b->pickle, b->length, VIEW_MEMORY, 0);
	else
		view_add_blob(w->data, i);
	view_pickle_text(w->state, b->name);
	put_class(w->state, BYTES);
	view_add(w->state, ")\x81", 2);
	put_path(w->planner, b->name, &b->path);
	put_place(w, b->name, NULL, at);
	return err;
}

/* ---- the files ---------------------------------------------------------------------- */

static void put_dict(struct view *v, const char *name, const struct view *inside)
{
	view_pickle_text(v, name);
	view_add(v, "}(", 2);
	view_add(v, inside->mem, inside->mem_len);
	view_add(v, "u", 1);
	v->no_memory |= inside->no_memory;
}

static void put_metadata(struct view *v, const struct writer *w)
{
	view_add(v, "\x80\x02", 2);
	put_classes(v);
	put_object(v, METADATA);
	put_dict(v, "state_dict_metadata", w->state);
	put_dict(v, "planner_data", w->planner);
	put_dict(v, "storage_data", w->storage);
	put_end(v);
	view_add(v, ".", 1);
}

static int add_all(struct writer *w)
{
	const struct fmt_set *s = w->data->base->set;
	int err = 0;

	for (size_t i = 0; !err && i < s->n_tensors; i++)
		err = add_tensor(w, i);
	for (size_t i = 0; !err && i < s->n_blobs; i++)
		err = add_blob(w, i);
	return err;
}

int view_dcp(struct view_base *b, struct view **data, struct view **metadata, struct fmt_error *e)
{
	struct writer w = {view_new(b), view_new(b), view_new(b), view_new(b), view_new(b), e};
	struct view *meta = view_new(b);
	int err = w.data && w.pickle && w.state && w.planner && w.storage && meta
			  ? 0
			  : fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");

	*data = *metadata = NULL;
	if (!err)
		err = add_all(&w);
	if (!err) {
		put_metadata(meta, &w);
		w.data->no_memory |= w.pickle->no_memory;
	}
	view_free(w.pickle);
	view_free(w.state);
	view_free(w.planner);
	view_free(w.storage);
	if (!err) {
		err = view_done(w.data, data, e);
		w.data = NULL;
	}
	if (!err) {
		err = view_done(meta, metadata, e);
		meta = NULL;
	}
	view_free(w.data);
	view_free(meta);
	if (err && *data) {
		view_free(*data);
		*data = NULL;
	}
	return err;
}

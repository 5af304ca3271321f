/* SPDX-License-Identifier: MIT
 *
 * A checkpoint's metadata and headers, read through callbacks into one set.
 */
#include "fs/formats/inside.h"

#include <stdio.h>

struct reading {
	struct ckpt_content *c;
	const struct ckpt_io *io;
	int fatal; /* -ENOMEM, or bad()'s result */
	bool only_sound; /* CKPT_SOUND */
};

void ckpt_content_free(struct ckpt_content *c)
{
	for (size_t i = 0; c->v && i < c->n; i++) {
		free((char *)c->v[i].fault);
		free((char *)c->v[i].name);
	}
	free(c->v);
	free(c->index.v);
	fmt_set_free(c->set);
	*c = (struct ckpt_content){0};
}

static void found_bad(struct reading *r, const char *file, const struct fmt_error *e, int err)
{
	ssize_t i = ckpt_names_find(r->c->v, r->c->n, file);
	int stop = r->io->bad ? r->io->bad(r->io->ctx, file, e, err) : 0;
	char *fault;

	if (!r->fatal)
		r->fatal = err == -ENOMEM ? err : stop;
	if (i < 0 || r->c->v[i].fault || err == -ENOTSUP)
		return; /* unsupported does not mean broken */
	fault = strdup(e->text);
	if (!fault)
		r->fatal = -ENOMEM;
	r->c->v[i].fault = fault;
}

static int cannot_open(struct fmt_error *e, int err)
{
	e->at = FMT_NOWHERE;
	snprintf(e->text, sizeof(e->text), "%s", strerror(-err));
	return err;
}

static int open_file(struct reading *r, const char *name, struct fmt_source *s, struct fmt_error *e)
{
	int err;

	*e = (struct fmt_error){.at = FMT_NOWHERE};
	err = r->io->open(r->io->ctx, name, s);
	return err ? cannot_open(e, err) : 0;
}

static void close_file(struct reading *r, struct fmt_source *s)
{
	r->io->close(r->io->ctx, s);
}

/* Reads a small file into memory; the caller frees it. */
static int slurp(struct reading *r, const char *name, char **out, size_t *len, struct fmt_error *e)
{
	struct fmt_source s;
	int err = open_file(r, name, &s, e);

	*out = NULL;
	*len = 0;
	if (err)
		return err;
	if (s.size > r->io->max_bytes)
		err = -EFBIG;
	if (!err && !(*out = malloc(s.size ? s.size : 1)))
		err = -ENOMEM;
	if (!err)
		err = fmt_read(&s, 0, *out, s.size);
	if (!err)
		*len = s.size;
	close_file(r, &s);
	return err ? cannot_open(e, err) : 0;
}

/* For metadata that is too large to be read into memory: its files, but no tensors. */
static int list_files(struct reading *r, const char *name, struct fmt_error *e)
{
	struct fmt_source s;
	int err = open_file(r, name, &s, e);

	if (err)
		return err;
	err = dcp_files(r->c->set, &s, e);
	close_file(r, &s);
	return err;
}

static void read_metadata(struct reading *r, const char *name)
{
	CLEANUP_FREE char *bytes = NULL;
	struct fmt_error e;
	size_t len;
	int err = slurp(r, name, &bytes, &len, &e);
	bool listed = err == -EFBIG && r->only_sound;

	if (listed)
		err = list_files(r, name, &e);
	if (!err && !listed && (len < 2 || bytes[0] != '\x80')) {
		e.at = 0;
		snprintf(e.text, sizeof(e.text), "not written by DCP (not a pickle)");
		err = -EBADMSG;
	}
	if (!err && !listed)
		err = dcp_read(r->c->set, bytes, len, &e);
	/* an unreadable commit marker commits nothing */
	if (err == -ENOTSUP || err == -ENOMSG)
		err = -EBADMSG;
	if (err)
		found_bad(r, name, &e, err);
}

/* Reads one file of tensors. `prefix` is put before their names. */
static void read_file(struct reading *r, const char *name, const char *prefix)
{
	struct fmt_error e;
	struct fmt_source s;
	int64_t file;
	int err = open_file(r, name, &s, &e);

	if (!err) {
		file = fmt_set_file(r->c->set, name, strlen(name), &e);
		err = file < 0 ? (int)file
		      : ckpt_is_safetensors(name)
			      ? safetensors_read(r->c->set, (uint32_t)file, &s, &e)
			      : torchfile_read(r->c->set, (uint32_t)file, prefix, &s, &e);
		close_file(r, &s);
	}
	if (err)
		found_bad(r, name, &e, err);
}

/* Reads only the end of a zip, to see whether it is complete. */
static void read_end(struct reading *r, const char *name)
{
	struct fmt_error e;
	struct fmt_source s;
	struct zip *z = NULL;
	uint8_t magic[2] = {0};
	int err = open_file(r, name, &s, &e);

	if (!err) {
		if (s.size < 2 || fmt_read(&s, 0, magic, 2) || magic[0] != 0x80)
			err = zip_open(&s, &z, &e); /* old format: no end record */
		zip_close(z);
		close_file(r, &s);
	}
	if (err)
		found_bad(r, name, &e, err);
}

static void read_index(struct reading *r)
{
	for (size_t i = 0; i < r->c->n && !r->fatal; i++) {
		const char *name = r->c->v[i].name;
		CLEANUP_FREE char *text = NULL;
		struct fmt_error e;
		size_t len;
		int err;

		if (!ckpt_is_index(name) || r->c->index.v)
			continue;
		err = slurp(r, name, &text, &len, &e);
		if (!err)
			err = safetensors_index_read(r->c->set, text, len, &r->c->index, &e);
		if (err)
			found_bad(r, name, &e, err);
	}
}

/* With an index only the files that it lists count: others (consolidated copies) may be in the same
 * directory. */
static bool is_listed(const struct ckpt_content *c, const char *name, size_t n_indexed)
{
	if (!c->index.v)
		return true;
	for (size_t i = 0; i < n_indexed; i++)
		if (!strcmp(c->set->file[i].name, name))
			return true;
	return false;
}

static void read_safetensors(struct reading *r)
{
	size_t n_indexed;

	read_index(r);
	n_indexed = r->c->set->n_files;
	for (size_t i = 0; i < r->c->n && !r->fatal; i++)
		if (ckpt_is_safetensors(r->c->v[i].name) &&
		    is_listed(r->c, r->c->v[i].name, n_indexed))
			read_file(r, r->c->v[i].name, "");
}

/* The first readable file tells; broken files are reported when all are read. */
static void read_ranks(struct reading *r)
{
	for (size_t i = 0; i < r->c->n && !r->c->kind.ranks && !r->fatal; i++) {
		struct fmt_error e;
		struct fmt_source s;
		int err;

		if (!ckpt_is_model_states(r->c->v[i].name) || open_file(r, r->c->v[i].name, &s, &e))
			continue;
		err = torchfile_read_ranks(&s, &r->c->kind.ranks, &e);
		close_file(r, &s);
		if (err == -ENOMEM)
			r->fatal = err;
	}
}

static void read_torch(struct reading *r, bool deep, bool prefixed)
{
	size_t n = 0;

	for (size_t i = 0; i < r->c->n; i++)
		n += ckpt_is_torch(r->c->v[i].name);
	for (size_t i = 0; i < r->c->n && !r->fatal; i++) {
		const char *name = r->c->v[i].name;
		CLEANUP_FREE char *prefix = NULL;

		if (!ckpt_is_torch(name))
			continue;
		if (!deep) {
			read_end(r, name);
			continue;
		}
		if ((n > 1 || prefixed) && asprintf(&prefix, "%s:", name) < 0)
			r->fatal = -ENOMEM;
		else
			read_file(r, name, prefix ? prefix : "");
	}
}

static void read_dcp(struct reading *r)
{
	bool global = ckpt_names_find(r->c->v, r->c->n, ".metadata") >= 0;
	bool any = false;

	for (size_t i = 0; i < r->c->n && !r->fatal; i++)
		if (ckpt_is_metadata(r->c->v[i].name, global)) {
			read_metadata(r, r->c->v[i].name);
			any = true;
		}
	if (!any) {
		fmt_set_free(r->c->set);
		r->c->set = NULL;
	}
}

static void read_snapshot(struct reading *r)
{
	CLEANUP_FREE char *text = NULL;
	struct fmt_error e;
	size_t len;
	int err = slurp(r, CKPT_SNAPSHOT_NAME, &text, &len, &e);

	if (!err)
		err = snapshot_read(r->c->set, text, len, &r->c->kind.ranks, &e);
	if (!err)
		return;
	found_bad(r, CKPT_SNAPSHOT_NAME, &e, err);
	fmt_set_free(r->c->set); /* a part must not be taken for the whole */
	r->c->set = NULL;
}

/* Reads files whose header says where their tensors are. */
static void read_headers(struct reading *r)
{
	for (uint32_t f = 0; f < r->c->set->n_files && !r->fatal; f++) {
		const char *name = r->c->set->file[f].name;
		struct fmt_error e;
		struct fmt_source s;
		int err;

		if (!dcp_wants_header(r->c->set, f))
			continue;
		err = open_file(r, name, &s, &e);
		if (err == -ENOENT)
			continue; /* reported when names are compared */
		if (!err) {
			err = dcp_read_header(r->c->set, f, &s, &e);
			close_file(r, &s);
		}
		if (err)
			found_bad(r, name, &e, err);
	}
}

static int add_name(struct ckpt_content *c, const char *name, uint64_t size)
{
	struct ckpt_name *v = reallocarray(c->v, c->n + 1, sizeof(*v));
	char *copy = strdup(name);

	if (v)
		c->v = v;
	if (!v || !copy) {
		free(copy);
		return -ENOMEM;
	}
	v[c->n++] = (struct ckpt_name){.name = copy, .size = size};
	return 0;
}

/* Adds files in subdirectories, which metadata may list, to the names. */
static void add_nested(struct reading *r)
{
	struct ckpt_content *c = r->c;
	size_t had = c->n;

	for (size_t i = 0; i < c->set->n_files && !r->fatal; i++) {
		const char *name = c->set->file[i].name;
		struct fmt_source s;

		if (!strchr(name, '/') || r->io->open(r->io->ctx, name, &s))
			continue;
		r->fatal = add_name(c, name, s.size);
		if (c->kind.format == CKPT_SNAPSHOT)
			snapshot_files(c->set, (uint32_t)i, s.size);
		close_file(r, &s);
	}
	if (c->n != had)
		ckpt_names_sort(c->v, c->n);
}

/* torchsnapshot does not record the length of objects; torch.save's end record does. */
static void read_objects(struct reading *r)
{
	for (size_t i = 0; i < r->c->set->n_blobs && !r->fatal; i++) {
		const char *name = r->c->set->file[r->c->set->blob[i].file].name;

		if (ckpt_names_find(r->c->v, r->c->n, name) >= 0)
			read_end(r, name);
	}
}

int ckpt_content_read(struct ckpt_content *c, const struct ckpt_io *io, enum ckpt_depth depth)
{
	struct reading r = {.c = c, .io = io, .only_sound = depth == CKPT_SOUND};
	enum ckpt_format f = c->kind.format;
	bool only_torch = ckpt_is_torch_only(f), tensors = depth == CKPT_TENSORS;

	c->set = fmt_set_new();
	if (!c->set)
		return -ENOMEM;
	if (ckpt_is_dcp(f))
		read_dcp(&r);
	else if (f == CKPT_SNAPSHOT)
		read_snapshot(&r);
	else if (f != CKPT_ORBAX && !(only_torch && tensors))
		read_safetensors(&r);
	if (!r.fatal && c->set && f != CKPT_ORBAX && f != CKPT_SAFETENSORS && f != CKPT_SNAPSHOT &&
	    (only_torch || !tensors))
		read_torch(&r, depth != CKPT_SOUND, f == CKPT_MEGATRON || f == CKPT_TRAINER);
	if (!r.fatal && f == CKPT_DEEPSPEED)
		read_ranks(&r);
	if (!r.fatal && c->set)
		add_nested(&r);
	if (!r.fatal && c->set && f == CKPT_SNAPSHOT && !tensors)
		read_objects(&r);
	if (r.fatal || !c->set)
		return r.fatal;
	fmt_set_finish(c->set);
	if (ckpt_is_dcp(f))
		read_headers(&r);
	return r.fatal;
}

/* SPDX-License-Identifier: MIT
 *
 * cairn tensors: the contents of a checkpoint, from its metadata and headers alone.
 */
#include "commands.h"
#include "tools/cairn/ckpt/ckpt.h"

#include <getopt.h>
#include <string.h>

struct opts {
	bool json, exact, bad;
};

static void tell_bad(void *ctx, const char *file, const struct fmt_error *e, int err)
{
	struct opts *o = ctx;

	(void)err;
	o->bad = true;
	if (e->at == FMT_NOWHERE)
		complain("%s: %s", file, e->text);
	else
		complain("%s: at %llu: %s", file, (unsigned long long)e->at, e->text);
}

static const char *file_name(const struct ckpt *c, uint32_t file)
{
	return file == FMT_NO_FILE ? NULL : c->set->file[file].name;
}

/* Bytes of its elements; false: unknown dtype. */
static bool tensor_bytes(const struct fmt_tensor *t, uint64_t *out)
{
	uint64_t v;

	return t->dtype && fmt_volume(t->shape, t->ndim, &v) && fmt_bytes(t->dtype, v, out);
}

/* ---- text ------------------------------------------------------------------------- */

static void show_refusal(const char *why)
{
	fputs("  (", stdout);
	print_name(stdout, why); /* it may contain names from the file */
	putchar(')');
}

static void show_number(const char *before, uint64_t n)
{
	char text[NUMBER_CAP];

	put_number(text, n);
	fputs(before, stdout);
	fputs(text, stdout);
}

static void show_sizes(const char *before, const uint64_t *v, unsigned n)
{
	char text[256];

	fputs(before, stdout);
	fputs(shape_text(v, n, ", ", text, sizeof(text)), stdout);
	putchar(']');
}

/* File and offset, and remarks on the piece. */
static void show_place(const struct ckpt *c, const struct fmt_tensor *t, const struct fmt_piece *p,
		       bool length)
{
	fputs("  ", stdout);
	if (p->file == FMT_NO_FILE)
		putchar('-');
	else
		print_name(stdout, file_name(c, p->file));
	show_number(" ", p->at);
	if (length)
		show_number("+", p->length);
	if (p->payload == FMT_STRIDED)
		show_sizes("  strides [", p->stride, t->ndim);
	if (p->refusal)
		show_refusal(p->refusal);
}

static void show_piece(const struct ckpt *c, const struct fmt_tensor *t, const struct fmt_piece *p)
{
	show_sizes("    [", p->offset, t->ndim);
	show_sizes(" + [", p->size, t->ndim);
	show_place(c, t, p, true);
	putchar('\n');
}

/* Name, dtype, shape, grid, bytes. */
static void show_head(const struct opts *o, const struct fmt_tensor *t, const uint64_t *grid)
{
	char cuts[256] = "1", size[32] = "?";
	uint64_t bytes;

	if (tensor_bytes(t, &bytes) && o->exact)
		put_number(size, bytes);
	else if (tensor_bytes(t, &bytes))
		human_bytes(bytes, size);
	if (t->ndim && grid[0])
		shape_text(grid, t->ndim, "x", cuts, sizeof(cuts));
	else if (t->ndim)
		snprintf(cuts, sizeof(cuts), "%zu pieces", t->n_pieces);
	print_name(stdout, *t->name ? t->name : "(the object itself)");
	fputs("  ", stdout);
	print_name(stdout, t->dtype_name);
	show_sizes(" [", t->shape, t->ndim);
	fputs("  ", stdout);
	fputs(cuts, stdout);
	fputs("  ", stdout);
	fputs(size, stdout);
}

static void show_tensor(const struct ckpt *c, const struct opts *o, const struct fmt_tensor *t)
{
	const struct fmt_piece *only = t->n_pieces == 1 ? &t->piece[0] : NULL;
	uint64_t grid[FMT_MAX_DIMS];
	struct fmt_error e;
	int err = fmt_set_cover(t, grid, &e);
	size_t n = strlen(t->name);

	show_head(o, t, grid);
	if (only)
		show_place(c, t, only, false);
	if (err && !(only && only->refusal)) /* "NAME: what": the name is printed already */
		show_refusal(strncmp(e.text, t->name, n) || e.text[n] != ':' ? e.text
									     : e.text + n + 2);
	putchar('\n');
	for (size_t i = 0; !only && i < t->n_pieces; i++)
		show_piece(c, t, &t->piece[i]);
}

static void show_blob(const struct ckpt *c, const struct fmt_blob *b)
{
	print_name(stdout, b->name);
	fputs("  bytes", stdout);
	if (b->file != FMT_NO_FILE) {
		fputs("  ", stdout);
		print_name(stdout, file_name(c, b->file));
		printf(" %llu+%llu", (unsigned long long)b->at, (unsigned long long)b->length);
	}
	putchar('\n');
}

static void show_text(const struct ckpt *c, const struct opts *o)
{
	uint64_t all = 0, n;
	char buf[32];

	for (size_t i = 0; i < c->set->n_tensors; i++) {
		show_tensor(c, o, &c->set->tensor[i]);
		if (tensor_bytes(&c->set->tensor[i], &n))
			all += n;
	}
	for (size_t i = 0; i < c->set->n_blobs; i++)
		show_blob(c, &c->set->blob[i]);
	printf("%zu tensor%s, %s", c->set->n_tensors, c->set->n_tensors == 1 ? "" : "s",
	       human_bytes(all, buf));
	if (c->set->n_blobs)
		printf(", %zu other item%s", c->set->n_blobs, c->set->n_blobs == 1 ? "" : "s");
	putchar('\n');
}

/* ---- JSON ------------------------------------------------------------------------- */

static void put_sizes(struct json_out *j, const char *key, const uint64_t *v, unsigned n)
{
	json_open(j, key, '[');
	for (unsigned i = 0; v && i < n; i++)
		json_put_u64(j, NULL, v[i]);
	json_close(j, ']');
}

static void json_piece(struct json_out *j, const struct ckpt *c, const struct fmt_tensor *t,
		       const struct fmt_piece *p)
{
	static const char *const payload[] = {"raw", "strided", "torch"};

	json_open(j, NULL, '{');
	put_sizes(j, "offset", p->offset, t->ndim);
	put_sizes(j, "shape", p->size, t->ndim);
	json_put_path(j, "file", file_name(c, p->file));
	json_put_u64(j, "at", p->at);
	json_put_u64(j, "bytes", p->length);
	json_put_string(j, "payload", payload[p->payload]);
	if (p->stride)
		put_sizes(j, "stride", p->stride, t->ndim);
	if (p->refusal)
		json_put_string(j, "refusal", p->refusal);
	json_close(j, '}');
}

static void json_tensor(struct json_out *j, const struct ckpt *c, const struct fmt_tensor *t)
{
	uint64_t bytes, grid[FMT_MAX_DIMS];
	struct fmt_error e;
	int err = fmt_set_cover(t, grid, &e);

	json_open(j, NULL, '{');
	json_put_path(j, "name", t->name);
	json_put_path(j, "dtype", t->dtype_name);
	put_sizes(j, "shape", t->shape, t->ndim);
	if (tensor_bytes(t, &bytes))
		json_put_u64(j, "bytes", bytes);
	put_sizes(j, "grid", grid, t->ndim);
	if (err)
		json_put_path(j, "problem", e.text);
	json_open(j, "pieces", '[');
	for (size_t i = 0; i < t->n_pieces; i++)
		json_piece(j, c, t, &t->piece[i]);
	json_close(j, ']');
	json_close(j, '}');
}

static void show_json(const struct ckpt *c)
{
	struct json_out j;

	json_begin(&j, stdout);
	json_open(&j, NULL, '{');
	json_put_path(&j, "path", c->path);
	json_put_string(&j, "format", ckpt_format_name(c->kind.format));
	json_open(&j, "tensors", '[');
	for (size_t i = 0; i < c->set->n_tensors; i++)
		json_tensor(&j, c, &c->set->tensor[i]);
	json_close(&j, ']');
	json_open(&j, "items", '[');
	for (size_t i = 0; i < c->set->n_blobs; i++) {
		const struct fmt_blob *b = &c->set->blob[i];

		json_open(&j, NULL, '{');
		json_put_path(&j, "name", b->name);
		json_put_path(&j, "file", file_name(c, b->file));
		json_put_u64(&j, "at", b->at);
		json_put_u64(&j, "bytes", b->length);
		json_close(&j, '}');
	}
	json_close(&j, ']');
	json_close(&j, '}');
}

int cmd_tensors(int argc, char **argv)
{
	static const struct option longs[] = {
		{"json", no_argument, NULL, 'j'},
		{"bytes", no_argument, NULL, 'b'},
		{0},
	};
	CLEANUP_CKPT struct ckpt ck = CKPT_EMPTY;
	struct opts o = {0};
	int c, code, err;

	while ((c = getopt_long(argc, argv, "jb", longs, NULL)) != -1) {
		if (c == 'j')
			o.json = true;
		else if (c == 'b')
			o.exact = true;
		else
			return complain_option("tensors", argv);
	}
	if (argc - optind != 1)
		return complain_usage("tensors", "one checkpoint");
	code = ckpt_need(argv[optind], &ck);
	if (code)
		return code;
	if (ck.kind.format == CKPT_ORBAX) {
		complain("%s: the tensors of Orbax checkpoints (tensorstore) are not read",
			 ck.path);
		return CAIRN_FAILED;
	}
	err = ckpt_read(&ck, true, tell_bad, &o);
	if (err || !ck.set) {
		complain("%s: %s", ck.path, err ? strerror(-err) : "its metadata is missing");
		return CAIRN_FAILED;
	}
	if (o.json)
		show_json(&ck);
	else
		show_text(&ck, &o);
	return o.bad ? CAIRN_FAILED : CAIRN_OK;
}

/* SPDX-License-Identifier: MIT
 *
 * cairn export: a checkpoint as one file of another format, or as another DCP checkpoint.
 */
#include "commands.h"
#include "export.h"

#include <fcntl.h>
#include <getopt.h>
#include <string.h>

#define CHECK_BYTES (1u << 20)

/* ---- the checkpoint --------------------------------------------------------------- */

static void tell_bad(void *ctx, const char *file, const struct fmt_error *e, int err)
{
	struct export *x = ctx;

	(void)err;
	x->bad = true;
	if (e->at == FMT_NOWHERE)
		complain("%s: %s", file, e->text);
	else
		complain("%s: at %llu: %s", file, (unsigned long long)e->at, e->text);
}

int export_read(struct export *x, const char *path)
{
	struct ckpt_verdict v;
	int code = ckpt_need(path, &x->ck), err;

	if (code)
		return code;
	if (x->ck.kind.format == CKPT_ORBAX) {
		complain("%s: the tensors of Orbax checkpoints (tensorstore) are not read", path);
		return CAIRN_FAILED;
	}
	err = ckpt_read(&x->ck, ckpt_is_torch_only(x->ck.kind.format), tell_bad, x);
	if (err || !x->ck.set) {
		complain("%s: %s", path, err ? strerror(-err) : "its metadata is missing");
		return CAIRN_FAILED;
	}
	ckpt_verdict(&x->ck, &v);
	if (v.state != CKPT_COMPLETE)
		complain("%s: %s: %s", path, ckpt_state_name(v.state), v.why);
	return x->bad || v.state != CKPT_COMPLETE ? CAIRN_FAILED : CAIRN_OK;
}

/* One line: the output contains only tensors. */
static void tell_left_out(const struct export *x)
{
	const struct fmt_set *s = x->ck.set;
	char text[512] = "";
	size_t at = 0;

	for (size_t i = 0; i < s->n_blobs && at < sizeof(text); i++) {
		if (i == 8 && s->n_blobs > 9) {
			snprintf(text + at, sizeof(text) - at, " and %zu more", s->n_blobs - i);
			break;
		}
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s %.60s", i ? "," : "",
				       s->blob[i].name);
	}
	if (s->n_blobs) {
		fputs("cairn: left out, because they are not tensors:", stderr);
		print_name(stderr, text);
		fputc('\n', stderr);
	}
}

/* ---- writing ---------------------------------------------------------------------- */

static int lay_out(struct export *x, struct fmt_error *e)
{
	struct view_pick all = {0, x->ck.set->n_tensors, 1, 0};

	switch (x->format) {
	case EXPORT_DCP: return view_dcp(x->base, &x->view, &x->metadata, e);
	case EXPORT_TORCH: return view_torch(x->base, &x->view, e);
	default: return view_safetensors(x->base, &all, &x->view, e);
	}
}

/* Items that are not tensors are copied unchanged: into DCP only if their archive's CRCs match. */
static int check_objects(struct export *x, struct fmt_error *e)
{
	const struct fmt_set *s = x->ck.set;
	CLEANUP_FREE char *buf = malloc(CHECK_BYTES);
	int err = buf ? 0 : put_told(e, -ENOMEM, x->ck.path);

	for (size_t i = 0; !err && i < s->n_blobs; i++) {
		const struct fmt_blob *b = &s->blob[i];
		struct one_file *o;
		struct fmt_source item;

		if (b->pickle || b->refusal || b->file == FMT_NO_FILE)
			continue; /* no bytes, or refused by the layout */
		err = files_get(&x->files, b->file, &o);
		if (err)
			return put_told(e, err, s->file[b->file].name);
		item = fmt_part(&o->source, b->at, b->length);
		err = object_check(&item, buf, CHECK_BYTES, e);
		if (err)
			e->at = e->at == FMT_NOWHERE ? b->at : e->at + b->at;
	}
	return err;
}

static int export_files(struct export *x, struct fmt_error *e)
{
	int err = x->format == EXPORT_DCP ? check_objects(x, e) : 0;

	if (!err)
		err = lay_out(x, e);
	if (err)
		return err;
	err = put_out(x, e);
	if (!err && x->format != EXPORT_DCP)
		tell_left_out(x);
	return err;
}

static void tell_totals(const struct export *x, double s)
{
	const struct fmt_set *set = x->ck.set;
	char size[32], rate[32];

	printf("%s: %zu tensors", x->out, set->n_tensors);
	if (x->format == EXPORT_DCP && set->n_blobs)
		printf(", %zu other item%s", set->n_blobs, set->n_blobs == 1 ? "" : "s");
	printf(", %s, %s/s\n", human_bytes(x->done, size),
	       human_bytes(s > 0 ? (uint64_t)((double)x->done / s) : x->done, rate));
}

int export_write(struct export *x)
{
	struct fmt_error e = {.at = FMT_NOWHERE};
	double start = now_s();
	int err = files_open(&x->files, &x->ck);

	put_catch_signals();
	if (!err)
		err = view_base_new(x->ck.set, &x->base);
	if (err)
		put_told(&e, err, x->ck.path);
	progress_start(&x->bar, x->out, x->quiet);
	if (!err)
		err = export_files(x, &e);
	progress_end(&x->bar);
	if (err && e.at != FMT_NOWHERE)
		complain("%s (at %llu)", e.text, (unsigned long long)e.at);
	else if (err)
		complain("%s", e.text);
	if (!err && !x->quiet)
		tell_totals(x, now_s() - start);
	return err ? CAIRN_FAILED : CAIRN_OK;
}

void export_free(struct export *x)
{
	view_free(x->view);
	view_free(x->metadata);
	view_base_free(x->base);
	files_close(&x->files);
	ckpt_close(&x->ck);
}

/* ---- the command ------------------------------------------------------------------ */

int export_need_out(const struct export *x, const char *sub)
{
	struct stat st;
	bool dir = x->format == EXPORT_DCP;

	if (stat(x->out, &st))
		return CAIRN_OK; /* other errors are reported when it is created */
	if (!dir && !S_ISREG(st.st_mode))
		return complain_usage(sub, "%s: exists and is not a file", x->out);
	if (dir && (!S_ISDIR(st.st_mode) || !put_is_empty(x->out)))
		return complain_usage(sub, "%s: exists and is not an empty directory", x->out);
	return CAIRN_OK;
}

static bool parse_format(const char *s, enum export_format *out)
{
	static const char *const name[] = {
		[EXPORT_SAFETENSORS] = "safetensors",
		[EXPORT_TORCH] = "torch",
		[EXPORT_DCP] = "dcp",
	};

	for (unsigned i = 0; i < sizeof(name) / sizeof(name[0]); i++)
		if (!strcmp(s, name[i])) {
			*out = (enum export_format)i;
			return true;
		}
	return false;
}

int cmd_export(int argc, char **argv)
{
	static const struct option longs[] = {
		{"format", required_argument, NULL, 'f'},
		{"quiet", no_argument, NULL, 'q'},
		{0},
	};
	struct export x = EXPORT_EMPTY;
	int c, code;

	while ((c = getopt_long(argc, argv, "q", longs, NULL)) != -1) {
		if (c == 'q')
			x.quiet = true;
		else if (c != 'f')
			return complain_option("export", argv);
		else if (!parse_format(optarg, &x.format))
			return complain_usage(
				"export", "--format %s: must be safetensors, torch or dcp", optarg);
	}
	if (argc - optind != 2)
		return complain_usage("export", "which checkpoint, to which file or directory?");
	x.out = argv[optind + 1];
	code = export_need_out(&x, "export");
	if (!code)
		code = export_read(&x, argv[optind]);
	if (!code)
		code = export_write(&x);
	export_free(&x);
	return code;
}

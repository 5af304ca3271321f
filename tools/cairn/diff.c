/* SPDX-License-Identifier: MIT
 *
 * cairn diff: which tensors differ between two checkpoints. Nothing is read if the same
 * extents of files with equal checksums (or of one file) are compared; otherwise the elements
 * are, however the two are split into pieces.
 */
#include "commands.h"
#include "tools/cairn/ckpt/ckpt.h"

#include <getopt.h>
#include <string.h>

struct diff {
	struct ckpt a, b;
	/* of a torch.save file compared with a DCP checkpoint */
	struct fmt_set *values_a, *values_b;
	struct compare cmp;
	bool json, verbose;
	struct json_out j;
	uint64_t added, removed, reshaped, changed, same, unknown;
	bool bad;
};

static void tell_bad(void *ctx, const char *file, const struct fmt_error *e, int err)
{
	struct diff *d = ctx;

	(void)err;
	d->bad = true;
	if (e->at == FMT_NOWHERE)
		complain("%s: %s", file, e->text);
	else
		complain("%s: at %llu: %s", file, (unsigned long long)e->at, e->text);
}

static void describe(const struct fmt_tensor *t, char *buf, size_t cap)
{
	char shape[256];

	if (t)
		snprintf(buf, cap, "%.60s [%s]", t->dtype_name,
			 shape_text(t->shape, t->ndim, ", ", shape, sizeof(shape)));
	else
		snprintf(buf, cap, "bytes");
}

static void tell(struct diff *d, const char *what, const char *name, const char *old,
		 const char *new)
{
	if (d->json) {
		json_open(&d->j, NULL, '{');
		json_put_path(&d->j, "name", name);
		json_put_string(&d->j, "result", what);
		json_put_string(&d->j, "a", old);
		json_put_string(&d->j, "b", new);
		json_close(&d->j, '}');
		return;
	}
	printf("%-9s ", what);
	print_name(stdout, name);
	if (old || new)
		fputs("  ", stdout);
	print_name(stdout, old ? old : ""); /* both may hold names from the files */
	fputs(old && new ? " -> " : "", stdout);
	print_name(stdout, new ? new : "");
	putchar('\n');
}

/* ---- one name --------------------------------------------------------------------- */

static void only_in(struct diff *d, const struct fmt_tensor *t, bool in_b)
{
	char text[400];

	describe(t, text, sizeof(text));
	if (in_b) {
		d->added++;
		tell(d, "added", t->name, NULL, text);
	} else {
		d->removed++;
		tell(d, "removed", t->name, text, NULL);
	}
}

static void both(struct diff *d, const struct fmt_tensor *t, const struct fmt_tensor *u)
{
	bool same = t->ndim == u->ndim && !strcmp(t->dtype_name, u->dtype_name) &&
		    !memcmp(t->shape, u->shape, t->ndim * sizeof(*t->shape));
	char old[400], new[400];
	struct fmt_error e;
	int err;

	if (!same) {
		describe(t, old, sizeof(old));
		describe(u, new, sizeof(new));
		d->reshaped++;
		tell(d, "reshaped", t->name, old, new);
		return;
	}
	err = compare_tensors(&d->cmp, t, u, &same, &e);
	if (err) {
		d->unknown++;
		tell(d, "unknown", t->name, NULL, e.text);
	} else if (!same) {
		d->changed++;
		describe(t, old, sizeof(old));
		tell(d, "changed", t->name, NULL, old);
	} else {
		d->same++;
		if (d->verbose)
			tell(d, "same", t->name, NULL, NULL);
	}
}

static void both_blobs(struct diff *d, const struct fmt_blob *x, const struct fmt_blob *y)
{
	struct fmt_error e;
	bool same;
	int err = compare_blobs(&d->cmp, x, y, &same, &e);

	if (err) {
		d->unknown++;
		tell(d, "unknown", x->name, NULL, e.text);
	} else if (!same) {
		d->changed++;
		tell(d, "changed", x->name, NULL, "bytes");
	} else {
		d->same++;
		if (d->verbose)
			tell(d, "same", x->name, NULL, NULL);
	}
}

/* ---- all, in parallel: both are sorted by name ------------------------------------ */

static void diff_tensors(struct diff *d)
{
	const struct fmt_set *a = d->a.set, *b = d->b.set;
	size_t i = 0, j = 0;

	while (i < a->n_tensors || j < b->n_tensors) {
		int c = i == a->n_tensors   ? 1
			: j == b->n_tensors ? -1
					    : strcmp(a->tensor[i].name, b->tensor[j].name);

		if (c < 0)
			only_in(d, &a->tensor[i++], false);
		else if (c > 0)
			only_in(d, &b->tensor[j++], true);
		else
			both(d, &a->tensor[i++], &b->tensor[j++]);
	}
}

static void diff_blobs(struct diff *d)
{
	const struct fmt_set *a = d->values_a ? d->values_a : d->a.set;
	const struct fmt_set *b = d->values_b ? d->values_b : d->b.set;
	size_t i = 0, j = 0;

	while (i < a->n_blobs || j < b->n_blobs) {
		int c = i == a->n_blobs	  ? 1
			: j == b->n_blobs ? -1
					  : strcmp(a->blob[i].name, b->blob[j].name);

		if (c < 0) {
			d->removed++;
			tell(d, "removed", a->blob[i++].name, "bytes", NULL);
		} else if (c > 0) {
			d->added++;
			tell(d, "added", b->blob[j++].name, NULL, "bytes");
		} else {
			both_blobs(d, &a->blob[i++], &b->blob[j++]);
		}
	}
}

static int open_one(struct diff *d, const char *path, struct ckpt *c)
{
	int code = ckpt_need(path, c), err;

	if (code)
		return code;
	err = c->kind.format == CKPT_ORBAX ? -EOPNOTSUPP : ckpt_read(c, true, tell_bad, d);
	if (err || !c->set) {
		complain("%s: %s", path,
			 err == -EOPNOTSUPP ? "Orbax checkpoints are not read"
			 : err		    ? strerror(-err)
					    : "its metadata is missing");
		return CAIRN_FAILED;
	}
	return CAIRN_OK;
}

/* DCP has items that are not tensors; the corresponding values of a torch.save file are read only
 * here. */
static int read_values(struct diff *d, const struct ckpt *c, const struct ckpt *other,
		       struct fmt_set **out)
{
	struct fmt_error e = {.at = FMT_NOWHERE};
	const char *name = c->set->n_files ? c->set->file[0].name : "";
	struct fmt_source s;
	CLEANUP_CLOSE int fd = -1;
	int64_t file = 0;
	int err;

	if (!ckpt_is_torch_only(c->kind.format) || c->set->n_files != 1 || !other->set->n_blobs)
		return 0;
	*out = fmt_set_new();
	if (!*out)
		return -ENOMEM;
	fd = ckpt_open_file(c, name);
	err = fmt_file(fd, &s);
	if (err)
		snprintf(e.text, sizeof(e.text), "%s", strerror(-err));
	else
		file = fmt_set_file(*out, name, strlen(name), &e);
	if (!err)
		err = file < 0 ? (int)file
			       : torchfile_read_state(*out, (uint32_t)file, &s, NULL, NULL, &e);
	fmt_set_finish(*out);
	if (err)
		tell_bad(d, name, &e, err);
	return 0;
}

static void totals(struct diff *d)
{
	char buf[32];

	if (!d->json) {
		printf("%llu added, %llu removed, %llu reshaped, %llu changed, %llu the same",
		       (unsigned long long)d->added, (unsigned long long)d->removed,
		       (unsigned long long)d->reshaped, (unsigned long long)d->changed,
		       (unsigned long long)d->same);
		if (d->unknown)
			printf(", %llu cannot be compared", (unsigned long long)d->unknown);
		printf("; %s read\n", human_bytes(d->cmp.read, buf));
		return;
	}
	json_close(&d->j, ']');
	json_put_u64(&d->j, "added", d->added);
	json_put_u64(&d->j, "removed", d->removed);
	json_put_u64(&d->j, "reshaped", d->reshaped);
	json_put_u64(&d->j, "changed", d->changed);
	json_put_u64(&d->j, "same", d->same);
	json_put_u64(&d->j, "unknown", d->unknown);
	json_put_u64(&d->j, "read", d->cmp.read);
	json_close(&d->j, '}');
}

static int run(struct diff *d, char **path)
{
	int code = open_one(d, path[0], &d->a), err;

	if (!code)
		code = open_one(d, path[1], &d->b);
	if (code)
		return code;
	err = read_values(d, &d->a, &d->b, &d->values_a);
	if (!err)
		err = read_values(d, &d->b, &d->a, &d->values_b);
	if (!err)
		err = compare_open(&d->cmp, &d->a, &d->b);
	if (err) {
		complain("%s", strerror(-err));
		return CAIRN_FAILED;
	}
	json_begin(&d->j, stdout);
	if (d->json) {
		json_open(&d->j, NULL, '{');
		json_open(&d->j, "differences", '[');
	}
	diff_tensors(d);
	diff_blobs(d);
	totals(d);
	compare_close(&d->cmp);
	return d->bad || d->unknown || d->added || d->removed || d->reshaped || d->changed
		       ? CAIRN_FAILED
		       : CAIRN_OK;
}

int cmd_diff(int argc, char **argv)
{
	static const struct option longs[] = {
		{"json", no_argument, NULL, 'j'},
		{"verbose", no_argument, NULL, 'v'},
		{0},
	};
	struct diff d = {.a = CKPT_EMPTY, .b = CKPT_EMPTY};
	int c, code;

	while ((c = getopt_long(argc, argv, "jv", longs, NULL)) != -1) {
		if (c == 'j')
			d.json = true;
		else if (c == 'v')
			d.verbose = true;
		else
			return complain_option("diff", argv);
	}
	if (argc - optind != 2)
		return complain_usage("diff", "two checkpoints");
	code = run(&d, argv + optind);
	fmt_set_free(d.values_a);
	fmt_set_free(d.values_b);
	ckpt_close(&d.a);
	ckpt_close(&d.b);
	return code;
}

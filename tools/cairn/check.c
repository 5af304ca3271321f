/* SPDX-License-Identifier: MIT
 *
 * cairn check: checks everything about a checkpoint that can be checked without Python. Each
 * finding is one line with the file and the offset.
 */
#include "commands.h"
#include "tools/cairn/ckpt/ckpt.h"

#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "sum.h"
#include "disk.h"

#define CHUNK (1u << 20)

struct check {
	struct ckpt *c;
	struct files files;
	struct disk *disk;
	char *buf;
	bool quick;
	struct progress bar;
	uint64_t total; /* bytes, for the bar */
	bool *sound; /* by index in c->name: its bytes are checked */
	uint64_t bad, pieces, sums, no_sums, crcs, refused, bytes;
};

/* ---- tell ------------------------------------------------------------------------- */

static void finding(struct check *k, const char *file, const struct fmt_error *e)
{
	k->bad++;
	progress_end(&k->bar);
	print_name(stdout, file);
	if (e->at != FMT_NOWHERE)
		printf(": at %llu", (unsigned long long)e->at);
	fputs(": ", stdout);
	print_name(stdout, e->text);
	putchar('\n');
}

__attribute__((format(printf, 4, 5))) static void say(struct check *k, const char *file,
						      uint64_t at, const char *fmt, ...)
{
	struct fmt_error e = {.at = at};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(e.text, sizeof(e.text), fmt, ap);
	va_end(ap);
	finding(k, file, &e);
}

/* What is recognized but not supported: reported, and no fault of the checkpoint. */
static void skipped(struct check *k, const char *file, const char *text)
{
	k->refused++;
	progress_end(&k->bar);
	fputs("not checked: ", stdout);
	print_name(stdout, file);
	fputs(": ", stdout);
	print_name(stdout, text);
	putchar('\n');
}

static void on_bad_file(void *ctx, const char *file, const struct fmt_error *e, int err)
{
	struct check *k = ctx;

	if (err == -ENOTSUP)
		skipped(k, file, e->text);
	else
		finding(k, file, e);
}

static void count_bytes(void *ctx, uint64_t n)
{
	struct check *k = ctx;

	k->bytes += n;
	progress_done(&k->bar, k->bytes, k->total > k->bytes ? k->total : k->bytes, "reading");
}

/* ---- checksums: of whole files, and of the entries of zips ------------------------ */

static void check_sum(struct check *k, size_t i)
{
	const char *name = k->c->names.v[i];
	char want[CAIRN_SUM_LEN], got[CAIRN_SUM_LEN], state[16] = "durable";
	CLEANUP_CLOSE int fd = -1;
	bool cached;
	int err;

	if (!ckpt_is_own(k->c, i))
		return;
	if (k->c->on_mount)
		xattr_at(k->c->dir, name, KEY_STATE, state, sizeof(state));
	if (xattr_at(k->c->dir, name, KEY_CHECKSUM, want, sizeof(want)) ||
	    strncmp(want, "xxh3:", 5) || strcmp(state, "durable")) {
		k->no_sums++;
		return;
	}
	fd = ckpt_open_file(k->c, name);
	err = fd < 0 ? fd : sum_of_disk(k->disk, fd, got, &cached, count_bytes, k);
	if (err) {
		say(k, name, FMT_NOWHERE, "cannot read: %s", strerror(-err));
	} else if (strcmp(want, got)) {
		say(k, name, FMT_NOWHERE, "checksum: expected %s, read %s", want, got);
	} else {
		k->sums++;
		k->sound[i] = true;
	}
}

/* The bytes of a zip's entries against their CRC-32; base: where the zip is in its file. */
static void check_entries(struct check *k, const char *file, const struct fmt_source *s,
			  const struct zip *z, uint64_t base)
{
	struct fmt_error e;

	for (size_t i = 0; i < z->n_entries; i++) {
		struct zip_entry *t = &z->entry[i];
		int err = zip_check(s, z, t, k->buf, CHUNK, count_bytes, k, &e);

		if (!err)
			k->crcs += t->crc != 0;
		else if (e.at != FMT_NOWHERE)
			e.at += base;
		if (err)
			finding(k, file, &e);
	}
}

static void check_crcs(struct check *k, const char *file, const struct fmt_source *s, uint64_t base)
{
	struct fmt_error e;
	struct zip *z;

	if (zip_open(s, &z, &e))
		return; /* reported already by the parser */
	check_entries(k, file, s, z, base);
	zip_close(z);
}

static bool is_proved(const struct check *k, const char *name)
{
	ssize_t i = ckpt_find(k->c, name);

	return i >= 0 && k->sound[i];
}

static void check_torch_file(struct check *k, size_t i)
{
	const char *name = k->c->names.v[i];
	CLEANUP_CLOSE int fd = -1;
	struct fmt_source s;

	if (!ckpt_is_torch(name) || k->sound[i] || k->c->name[i].fault)
		return;
	fd = ckpt_open_file(k->c, name);
	if (!fmt_file(fd, &s))
		check_crcs(k, name, &s, 0);
}

/* ---- tensors ---------------------------------------------------------------------- */

static void check_piece(struct check *k, const struct fmt_tensor *t, const struct fmt_piece *p)
{
	struct fmt_error e = {.at = FMT_NOWHERE};
	struct fmt_source item;
	struct one_file *o;
	struct payload pay;
	const char *name;
	int err;

	k->pieces++;
	if (p->file == FMT_NO_FILE) {
		say(k, k->c->path, FMT_NOWHERE, "%.100s: %s", t->name, p->refusal);
		return;
	}
	name = k->c->set->file[p->file].name;
	err = files_get(&k->files, p->file, &o);
	if (err || p->at > o->source.size || p->length > o->source.size - p->at)
		return; /* missing or truncated: reported once for the file */
	err = ckpt_payload(t, p, &o->source, &pay, &e);
	if (err == -ENOTSUP) {
		skipped(k, name, e.text);
		return;
	}
	if (err) {
		finding(k, name, &e);
		return;
	}
	if (p->payload != FMT_ITEM || k->quick || is_proved(k, name))
		return;
	item = fmt_part(&o->source, p->at, p->length);
	check_crcs(k, name, &item, p->at);
}

/* An item that is not a tensor: torch.save of an object. */
static void check_object(struct check *k, const struct fmt_blob *b)
{
	struct fmt_error e = {.at = FMT_NOWHERE};
	struct fmt_source item;
	struct one_file *o;
	const char *name;
	struct zip *z;
	int err;

	if (b->pickle)
		return; /* a plain value of the metadata */
	if (b->file == FMT_NO_FILE) {
		say(k, k->c->path, FMT_NOWHERE, "%.100s: %s", b->name,
		    b->refusal ? b->refusal : "no file is named for it");
		return;
	}
	name = k->c->set->file[b->file].name;
	err = files_get(&k->files, b->file, &o);
	if (err || b->refusal || b->at > o->source.size || b->length > o->source.size - b->at)
		return; /* missing or truncated: reported once for the file */
	item = fmt_part(&o->source, b->at, b->length);
	err = object_open(&item, &z, &e);
	if (err == -ENOTSUP) {
		skipped(k, name, e.text);
	} else if (err) {
		say(k, name, b->at, "%.100s: %.120s", b->name, e.text);
	} else if (!z) {
		skipped(k, name, "an object in torch.save's old format, which has no CRC");
	} else {
		if (!k->quick && !is_proved(k, name))
			check_entries(k, name, &item, z, b->at);
		zip_close(z);
	}
}

/* The shape of a refused tensor may be unknown. */
static bool is_tellable(const struct fmt_tensor *t)
{
	for (size_t i = 0; i < t->n_pieces; i++)
		if (t->piece[i].refusal)
			return false;
	return true;
}

static void check_tensors(struct check *k)
{
	struct fmt_error e;

	for (size_t i = 0; i < k->c->set->n_tensors; i++) {
		const struct fmt_tensor *t = &k->c->set->tensor[i];
		int err = is_tellable(t) ? fmt_set_cover(t, NULL, &e) : 0;

		if (err == -ENOTSUP)
			skipped(k, k->c->path, e.text);
		else if (err)
			finding(k, k->c->path, &e);
		for (size_t j = 0; j < t->n_pieces; j++)
			check_piece(k, t, &t->piece[j]);
	}
	for (size_t i = 0; i < k->c->set->n_blobs; i++)
		check_object(k, &k->c->set->blob[i]);
}

/* ---- files ------------------------------------------------------------------------ */

static void check_files(struct check *k)
{
	for (uint32_t i = 0; i < k->c->set->n_files; i++) {
		const struct fmt_file *f = &k->c->set->file[i];
		struct one_file *o;
		int err = files_get(&k->files, i, &o);

		if (err)
			say(k, f->name, FMT_NOWHERE, "%s",
			    err == -ENOENT ? "missing" : strerror(-err));
		else if (o->source.size < f->need)
			say(k, f->name, o->source.size, "truncated: %llu bytes are listed",
			    (unsigned long long)f->need);
	}
}

/* A file that is missing or truncated is reported once, not for each tensor in it. */
static bool is_readable(const struct check *k, uint32_t file)
{
	ssize_t i = ckpt_find(k->c, k->c->set->file[file].name);

	return i >= 0 && !k->c->name[i].fault;
}

static void check_index(struct check *k)
{
	const struct safetensors_index *x = &k->c->index;
	bool all = x->n > 0;
	uint64_t sum = 0;

	for (size_t i = 0; i < x->n; i++) {
		const struct safetensors_place *p = &x->v[i];
		const struct fmt_tensor *t = fmt_set_find(k->c->set, p->name, strlen(p->name));
		const char *file = k->c->set->file[p->file].name;

		if (!t && is_readable(k, p->file))
			say(k, file, FMT_NOWHERE, "%.100s is in the index and not here", p->name);
		else if (t && t->n_pieces && t->piece[0].file != p->file)
			say(k, file, FMT_NOWHERE, "%.100s: the index says here, it is in %.80s",
			    p->name, k->c->set->file[t->piece[0].file].name);
		all = all && t;
		for (size_t j = 0; t && j < t->n_pieces; j++)
			sum += t->piece[j].length;
	}
	if (all && x->total != FMT_NOWHERE && x->total != sum)
		say(k, k->c->path, FMT_NOWHERE,
		    "the index's total_size is %llu, its tensors have %llu bytes",
		    (unsigned long long)x->total, (unsigned long long)sum);
}

static void totals(struct check *k, const struct ckpt_verdict *v)
{
	char a[32], t[COUNT_ROOM], p[COUNT_ROOM], s[COUNT_ROOM], c[COUNT_ROOM], n[COUNT_ROOM];

	progress_end(&k->bar);
	print_name(stdout, k->c->path);
	printf(": %s, %s%s%s; %s in %s, %s read; %s and %s match, %s without a checksum",
	       ckpt_format_name(k->c->kind.format), ckpt_state_name(v->state), *v->why ? ": " : "",
	       v->why, count_of(k->c->set ? k->c->set->n_tensors : 0, "tensor", t),
	       count_of(k->pieces, "piece", p), human_bytes(k->bytes, a),
	       count_of(k->sums, "checksum", s), count_of(k->crcs, "CRC", c),
	       count_of(k->no_sums, "file", n));
	if (k->refused)
		printf("; %llu not checked", (unsigned long long)k->refused);
	printf("; %llu bad\n", (unsigned long long)k->bad);
}

static int run(struct check *k)
{
	struct ckpt *c = k->c;
	struct ckpt_verdict v;
	int err = ckpt_read(c, true, on_bad_file, k);

	if (err)
		return err;
	/* names may have come */
	k->sound = calloc(c->names.n ? c->names.n : 1, sizeof(*k->sound));
	if (!k->sound)
		return -ENOMEM;
	for (size_t i = 0; i < c->names.n; i++)
		k->total += c->name[i].size;
	for (size_t i = 0; !k->quick && i < c->names.n; i++)
		check_sum(k, i);
	if (c->set) {
		err = files_open(&k->files, c);
		if (err)
			return err;
		check_files(k);
		check_index(k);
		check_tensors(k);
		files_close(&k->files);
	}
	for (size_t i = 0; !k->quick && i < c->names.n; i++)
		check_torch_file(k, i);
	if (c->kind.format == CKPT_ORBAX)
		skipped(k, c->path, "the inside of Orbax checkpoints (tensorstore)");
	ckpt_verdict(c, &v);
	totals(k, &v);
	return k->bad || v.state != CKPT_COMPLETE ? 1 : 0;
}

static int check_path(const char *path, bool quick, bool quiet)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	struct check k = {.c = &c, .quick = quick};
	int code = ckpt_need(path, &c), err;

	if (code)
		return code;
	progress_start(&k.bar, "check", quiet);
	k.disk = disk_new();
	k.buf = malloc(CHUNK);
	err = k.disk && k.buf ? run(&k) : -ENOMEM;
	if (err < 0)
		complain("%s: %s", path, strerror(-err));
	disk_free(k.disk);
	free(k.buf);
	free(k.sound);
	return err ? CAIRN_FAILED : CAIRN_OK;
}

int cmd_check(int argc, char **argv)
{
	static const struct option longs[] = {
		{"quick", no_argument, NULL, 'k'},
		{"quiet", no_argument, NULL, 'q'},
		{0},
	};
	bool quick = false, quiet = false;
	int c, worst = CAIRN_OK;

	while ((c = getopt_long(argc, argv, "q", longs, NULL)) != -1) {
		if (c == 'k')
			quick = true;
		else if (c == 'q')
			quiet = true;
		else
			return complain_option("check", argv);
	}
	if (optind == argc)
		return complain_usage("check", "which checkpoint?");
	for (int i = optind; i < argc; i++) {
		int code = check_path(argv[i], quick, quiet);

		worst = code > worst ? code : worst;
	}
	return worst;
}

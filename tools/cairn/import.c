/* SPDX-License-Identifier: MIT
 *
 * cairn import: a torch.save or safetensors file as a DCP checkpoint.
 */
#include "commands.h"
#include "export.h"

#include <fcntl.h>
#include <getopt.h>
#include <string.h>

/* Detected by content: a torch.save file may have any name. */
static bool is_torch(const char *path)
{
	CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	unsigned char magic[4] = {0};
	struct stat st;

	if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || pread(fd, magic, 4, 0) != 4)
		return false;
	return !memcmp(magic, "PK\3\4", 4) || (magic[0] == 0x80 && magic[1] <= 5);
}

struct left_out {
	char text[512];
	size_t len, n;
};

static void note_left_out(void *ctx, const char *what)
{
	struct left_out *l = ctx;
	int n;

	if (l->n++ >= 8 || l->len >= sizeof(l->text))
		return;
	n = snprintf(l->text + l->len, sizeof(l->text) - l->len, "%s %.60s", l->len ? "," : "",
		     what);
	l->len += n > 0 ? (size_t)n : 0;
}

static void tell_left_out(const struct left_out *l)
{
	if (!l->n)
		return;
	fputs("cairn: left out, as in DCP:", stderr);
	print_name(stderr, l->text);
	if (l->n > 8)
		fprintf(stderr, " and %zu more", l->n - 8);
	fputc('\n', stderr);
}

static int read_torch(struct export *x, const char *path, struct left_out *left)
{
	struct fmt_error e = {.at = FMT_NOWHERE};
	struct fmt_source s;
	const char *name;
	int64_t file;
	int err = ckpt_open(AT_FDCWD, path, path, false, &x->ck);
	CLEANUP_CLOSE int fd = err ? err : ckpt_open_file(&x->ck, x->ck.names.v[0]);

	x->ck.set = fmt_set_new();
	if (!err)
		err = x->ck.set ? fmt_file(fd, &s) : -ENOMEM;
	if (err) {
		complain("%s: %s", path, strerror(-err));
		return CAIRN_FAILED;
	}
	name = x->ck.names.v[0];
	file = fmt_set_file(x->ck.set, name, strlen(name), &e);
	err = file < 0 ? (int)file
		       : torchfile_read_state(x->ck.set, (uint32_t)file, &s, note_left_out, left,
					      &e);
	if (err && e.at != FMT_NOWHERE)
		complain("%s: at %llu: %s", path, (unsigned long long)e.at, e.text);
	else if (err)
		complain("%s: %s", path, e.text);
	fmt_set_finish(x->ck.set);
	return err ? CAIRN_FAILED : CAIRN_OK;
}

static int read_safetensors(struct export *x, const char *path)
{
	int code = export_read(x, path);

	if (code || x->ck.kind.format == CKPT_SAFETENSORS)
		return code;
	return complain_usage("import", "%s: a %s checkpoint; use `cairn export --format dcp`",
			      path, ckpt_format_name(x->ck.kind.format));
}

int cmd_import(int argc, char **argv)
{
	static const struct option longs[] = {
		{"quiet", no_argument, NULL, 'q'},
		{0},
	};
	struct export x = EXPORT_EMPTY;
	struct left_out left = {.len = 0};
	int c, code;

	x.format = EXPORT_DCP;
	x.note = "importing";
	while ((c = getopt_long(argc, argv, "q", longs, NULL)) != -1) {
		if (c != 'q')
			return complain_option("import", argv);
		x.quiet = true;
	}
	if (argc - optind != 2)
		return complain_usage("import", "which file, to which checkpoint?");
	x.out = argv[optind + 1];
	code = export_need_out(&x, "import");
	if (!code && is_torch(argv[optind]))
		code = read_torch(&x, argv[optind], &left);
	else if (!code)
		code = read_safetensors(&x, argv[optind]);
	if (!code)
		code = export_write(&x);
	if (!code)
		tell_left_out(&left);
	export_free(&x);
	return code;
}

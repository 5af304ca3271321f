/* SPDX-License-Identifier: MIT
 *
 * cairn export: a checkpoint as one file of another format. What it holds is laid out by
 * fs/formats/view*.c; here it is written, whole or not at all.
 */
#include "cairn_ckpt.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>

#define CHUNK (4u << 20)	/* gathered and written at once */
#define KERNEL_RUN (256u << 10)	/* from here on the kernel copies a run */
#define KERNEL_CHUNK (8u << 20)

struct export {
	struct ckpt ck;
	struct files files;
	struct view_base *base;
	struct view *view;
	struct view_io io;
	const char *out;	/* as the user wrote it */
	bool torch, quiet, sync, bad, in_kernel;
	struct progress bar;
};

/* One line, and its value is err. */
static int told(struct fmt_error *e, int err, const char *name)
{
	e->at = FMT_NOWHERE;
	snprintf(e->text, sizeof(e->text), "%.200s: %s", name, strerror(-err));
	return err;
}

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

/* Nothing is guessed: what is not whole, or not understood in full, is not exported. */
static int read_whole(struct export *x, const char *path)
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

static int get_file(void *ctx, uint32_t file, struct fmt_source *out)
{
	struct export *x = ctx;
	struct one_file *o;
	int err = files_get(&x->files, file, &o);

	if (!err) {
		posix_fadvise(o->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
		*out = o->source;
	}
	return err;
}

static void put_file(void *ctx, uint32_t file)
{
	(void)ctx;
	(void)file;
}

/* One line: what is written holds tensors and nothing else. */
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
		fputs("cairn: left out, since they are no tensors:", stderr);
		print_name(stderr, text);
		fputc('\n', stderr);
	}
}

/* ---- the file --------------------------------------------------------------------- */

static char *unfinished;	/* removed when a signal ends us */

static void on_signal(int sig)
{
	if (unfinished)
		unlink(unfinished);
	signal(sig, SIG_DFL);
	raise(sig);
}

static void catch_signals(void)
{
	struct sigaction sa = { .sa_handler = on_signal }, old;
	const int sig[] = { SIGINT, SIGTERM, SIGHUP };

	for (unsigned i = 0; i < sizeof(sig) / sizeof(sig[0]); i++)
		if (!sigaction(sig[i], NULL, &old) && old.sa_handler == SIG_DFL)
			sigaction(sig[i], &sa, NULL);
}

/* A new file beside OUT; what it is called is in `unfinished`. */
static int create_beside(const char *out)
{
	const char *slash = strrchr(out, '/'), *name = slash ? slash + 1 : out;
	char *temp;
	int fd = -1;

	for (unsigned i = 0; fd < 0 && i < 100; i++) {
		if (asprintf(&temp, "%.*s.%.200s.export-%d.%u", (int)(name - out), out, name,
			     (int)getpid(), i) < 0)
			return -ENOMEM;
		unfinished = temp;
		fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd >= 0)
			break;
		unfinished = NULL;
		free(temp);
		if (errno != EEXIST)
			return -errno;
	}
	return fd < 0 ? -EEXIST : fd;
}

static int write_all(int fd, const char *p, size_t n, uint64_t off)
{
	while (n) {
		ssize_t w = pwrite(fd, p, n, (off_t)off);

		if (w < 0 && errno == EINTR)
			continue;
		if (w < 0)
			return -errno;
		p += w;
		n -= (size_t)w;
		off += (uint64_t)w;
	}
	return 0;
}

/* As much of a long run as the kernel copies by itself; 0: none, use the other way. */
static ssize_t copy_run(struct export *x, int fd, uint64_t off, struct fmt_error *e)
{
	struct view_run run;
	struct one_file *o;
	loff_t from, to = (loff_t)off;
	ssize_t n;
	int err;

	if (!x->in_kernel)
		return 0;
	err = view_run_at(x->view, &x->io, off, &run, e);
	if (err)
		return err;
	if (run.file == FMT_NO_FILE || run.len < KERNEL_RUN)
		return 0;
	err = files_get(&x->files, run.file, &o);
	if (err)
		return told(e, err, x->ck.set->file[run.file].name);
	if (run.at > o->source.size || run.len > o->source.size - run.at)
		return 0;	/* view_read() has words for that */
	posix_fadvise(o->fd, (off_t)run.at, 2 * KERNEL_CHUNK, POSIX_FADV_WILLNEED);
	from = (loff_t)run.at;
	n = copy_file_range(o->fd, &from, fd, &to, run.len < KERNEL_CHUNK ? run.len : KERNEL_CHUNK,
			    0);
	if (n > 0)
		return n;
	if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == EFBIG))
		return told(e, -errno, x->out);
	x->in_kernel = false;	/* not between these filesystems */
	return 0;
}

static ssize_t copy_chunk(struct export *x, int fd, uint64_t off, char *buf, struct fmt_error *e)
{
	uint64_t left = view_size(x->view) - off;
	size_t n = CHUNK - off % CHUNK;	/* writes of whole pages, but for the first */
	int err;

	if (n > left)
		n = (size_t)left;
	err = view_read(x->view, &x->io, off, buf, n, e);

	if (!err) {
		err = write_all(fd, buf, n, off);
		if (err)
			told(e, err, x->out);
	}
	return err ? err : (ssize_t)n;
}

static int copy_all(struct export *x, int fd, struct fmt_error *e)
{
	uint64_t size = view_size(x->view);
	CLEANUP_FREE char *buf = malloc(CHUNK);

	if (!buf)
		return told(e, -ENOMEM, x->out);
	for (uint64_t off = 0; off < size;) {
		ssize_t n = copy_run(x, fd, off, e);

		if (!n)
			n = copy_chunk(x, fd, off, buf, e);
		if (n < 0)
			return (int)n;
		off += (uint64_t)n;
		progress_done(&x->bar, off, size, "exporting");
	}
	return 0;
}

/* Room for all of it first, so that a full disk is met at once; where that is not to be had,
 * only its size. */
static int make_room(int fd, uint64_t size)
{
	if (!size || !fallocate(fd, 0, 0, (off_t)size))
		return 0;
	if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
		return -errno;
	return ftruncate(fd, (off_t)size) ? -errno : 0;
}

static int write_file(struct export *x, struct fmt_error *e)
{
	int fd = create_beside(x->out), err;

	if (fd < 0)
		return told(e, fd, x->out);
	err = make_room(fd, view_size(x->view));
	if (err)
		told(e, err, x->out);
	if (!err)
		err = copy_all(x, fd, e);
	if (!err && x->sync && fsync(fd))
		err = told(e, -errno, x->out);
	if (close(fd) && !err)
		err = told(e, -errno, x->out);
	if (!err && rename(unfinished, x->out))
		err = told(e, -errno, x->out);
	if (err)
		unlink(unfinished);
	free(unfinished);
	unfinished = NULL;
	return err;
}

/* ---- the command ------------------------------------------------------------------ */

static int lay_out(struct export *x, struct fmt_error *e)
{
	struct view_pick all = { 0, x->ck.set->n_tensors, 1, 0 };

	return x->torch ? view_torch(x->base, &x->view, e) :
			  view_safetensors(x->base, &all, &x->view, e);
}

static int export_file(struct export *x, struct fmt_error *e)
{
	int err = lay_out(x, e);

	if (!err)
		err = write_file(x, e);
	if (!err)
		tell_left_out(x);
	return err;
}

static int export_to(struct export *x)
{
	struct fmt_error e = { .at = FMT_NOWHERE };
	double start = now_s();
	char size[32], rate[32];
	int err = files_open(&x->files, &x->ck);

	x->io = (struct view_io){ get_file, put_file, x, malloc(VIEW_SCRATCH) };
	if (!err)
		err = x->io.scratch ? view_base_new(x->ck.set, &x->base) : -ENOMEM;
	if (err)
		told(&e, err, x->ck.path);
	progress_start(&x->bar, x->out, x->quiet);
	if (!err)
		err = export_file(x, &e);
	progress_end(&x->bar);
	if (err && e.at != FMT_NOWHERE)
		complain("%s (at %llu)", e.text, (unsigned long long)e.at);
	else if (err)
		complain("%s", e.text);
	if (err)
		return CAIRN_FAILED;
	if (!x->quiet) {
		double s = now_s() - start;
		uint64_t n = view_size(x->view);

		printf("%s: %zu tensors, %s, %s/s\n", x->out, x->ck.set->n_tensors,
		       human_bytes(n, size),
		       human_bytes(s > 0 ? (uint64_t)((double)n / s) : n, rate));
	}
	return CAIRN_OK;
}

int cmd_export(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "format", required_argument, NULL, 'f' },
		{ "sync", no_argument, NULL, 's' },
		{ "quiet", no_argument, NULL, 'q' },
		{ 0 },
	};
	struct export x = { .ck = CKPT_EMPTY, .in_kernel = true };
	struct stat st;
	int c, code;

	while ((c = getopt_long(argc, argv, "q", longs, NULL)) != -1) {
		if (c == 'q')
			x.quiet = true;
		else if (c == 's')
			x.sync = true;
		else if (c != 'f')
			return complain_option("export", argv);
		else if (!strcmp(optarg, "torch"))
			x.torch = true;
		else if (strcmp(optarg, "safetensors"))
			return complain_usage("export",
					      "--format %s: safetensors and torch are known",
					      optarg);
	}
	if (argc - optind != 2)
		return complain_usage("export", "which checkpoint, to which file?");
	x.out = argv[optind + 1];
	if (!stat(x.out, &st) && !S_ISREG(st.st_mode))
		return complain_usage("export", "%s: there already, and no file", x.out);
	catch_signals();
	code = read_whole(&x, argv[optind]);
	if (!code)
		code = export_to(&x);
	view_free(x.view);
	view_base_free(x.base);
	free(x.io.scratch);
	files_close(&x.files);
	ckpt_close(&x.ck);
	return code;
}

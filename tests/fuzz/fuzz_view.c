/* SPDX-License-Identifier: MIT
 *
 * Any bytes as `.metadata`, or as a safetensors file, laid out in every way and read: what is laid
 * out has the size it says, and reading it ends, well or with an error.
 */
#include "tests/fuzz/fuzz_set.h"

struct bytes {
	const uint8_t *p;
	size_t n;
	int held;
};

static int get(void *ctx, uint32_t file, struct fmt_source *out)
{
	struct bytes *b = ctx;

	(void)file;
	b->held++;
	*out = fmt_memory(b->p, b->n);
	return 0;
}

static void put(void *ctx, uint32_t file)
{
	(void)file;
	((struct bytes *)ctx)->held--;
}

static void read_view(const struct view *v, const struct view_io *io)
{
	static char buf[8192];
	uint64_t size = view_size(v), off = 0;
	struct fmt_error e;

	for (int i = 0; off < size && i < 64; i++) {
		size_t n = size - off < sizeof(buf) - 7 * (size_t)i ?
			   (size_t)(size - off) : sizeof(buf) - 7 * (size_t)i;

		view_read(v, io, off, buf, n, &e);
		off += n;
	}
	if (size)
		view_read(v, io, size - 1, buf, 1, &e);
	if (!view_read(v, io, size, buf, 1, &e) || ((struct bytes *)io->ctx)->held)
		abort();
}

/* What is written as .metadata is read. */
static void read_again(const struct view *meta, const struct view_io *io)
{
	struct fmt_set *s = fmt_set_new();
	char *bytes = malloc(view_size(meta));
	struct fmt_error e;

	if (view_read(meta, io, 0, bytes, view_size(meta), &e) ||
	    dcp_read(s, bytes, view_size(meta), &e))
		abort();
	free(bytes);
	fmt_set_free(s);
}

static void each_view(struct fmt_set *s, const struct view_io *io)
{
	struct view_pick pick = { 0, s->n_tensors, 1, 0 };
	struct view_base *b;
	struct fmt_error e;
	struct view *v, *meta;
	size_t *cut, n;

	if (view_base_new(s, &b))
		return;
	for (pick.ranks = 1; pick.ranks < 4; pick.ranks++) {
		pick.rank = pick.ranks - 1;
		if (!view_safetensors(b, &pick, &v, &e))
			read_view(v, io);
		view_free(v);
	}
	for (size_t i = 0; i < s->n_tensors && i < 16; i++) {
		if (!view_npy(b, i, &v, &e))
			read_view(v, io);
		view_free(v);
	}
	if (!view_torch(b, &v, &e))
		read_view(v, io);
	view_free(v);
	if (!view_dcp(b, &v, &meta, &e)) {
		read_view(v, io);
		read_again(meta, io);
	}
	view_free(v);
	view_free(meta);
	if (!view_split(b, 100, &cut, &n, &e)) {
		if (!view_index(b, cut, n, &v, &e))
			read_view(v, io);
		view_free(v);
		free(cut);
	}
	view_base_free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes b = { data, size, 0 };
	struct view_io io = { .get = get, .put = put, .ctx = &b, .scratch = malloc(VIEW_SCRATCH) };
	struct fmt_source src = fmt_memory(data, size);
	struct fmt_set *s = fmt_set_new();
	struct fmt_error e;
	int64_t file = fmt_set_file(s, "f", 1, &e);
	int err = dcp_read(s, data, size, &e);

	if (err) {
		fmt_set_free(s);
		s = fmt_set_new();
		file = fmt_set_file(s, "f", 1, &e);
		err = safetensors_read(s, (uint32_t)file, &src, &e);
	}
	if (err) {
		fmt_set_free(s);
		s = fmt_set_new();
		file = fmt_set_file(s, "f", 1, &e);
		err = torchfile_read(s, (uint32_t)file, "", &src, &e);
	}
	if (!err) {
		fmt_set_finish(s);
		each_view(s, &io);
	}
	fmt_set_free(s);
	s = fmt_set_new();
	file = fmt_set_file(s, "f", 1, &e);
	if (!torchfile_read_state(s, (uint32_t)file, &src, NULL, NULL, &e)) {
		fmt_set_finish(s);
		each_view(s, &io);
	}
	fmt_set_free(s);
	free(io.scratch);
	return 0;
}

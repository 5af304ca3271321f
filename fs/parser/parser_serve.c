/* SPDX-License-Identifier: MIT
 * In a parser (cairnfs-parser): from a question to its answer. The process can only read and write
 * its socket, so it asks the worker for all bytes.
 */
#include "fs/parser/inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct parser_pipe worker;

/* An item of a .distcp is read in small pieces, at its end and at its beginning: the first read of
 * each also fetches what surrounds it. The files of a checkpoint are not read so: their reads are
 * counted. */
#define AROUND (16u << 10)

struct source {
	uint32_t id;
	uint64_t size; /* 0: no read-around */
	uint64_t at, have; /* of the bytes in around */
	unsigned char around[];
};

/* ---- requests to the worker ---- */

static void tell(struct parser_head *h, const void *body, size_t len)
{
	if (parser_send(&worker, h, body, len))
		_exit(1);
}

static void ask(struct parser_head *h, const void *body, size_t len)
{
	uint32_t op = h->op;

	tell(h, body, len);
	if (parser_receive(&worker, h) || h->op != op)
		_exit(1);
}

static int read_exactly(const struct source *s, uint64_t off, void *buf, size_t len)
{

	for (size_t part; len; len -= part, off += part, buf = (char *)buf + part) {
		part = len < PARSER_READ_MAX ? len : PARSER_READ_MAX;
		struct parser_head h = {
			.op = PARSER_READ, .source = s->id, .at = off, .size = part};
		ask(&h, NULL, 0);
		if (h.err)
			return h.err;
		if (h.len != part || parser_body(&worker, buf, part))
			_exit(1);
	}
	return 0;
}

static int source_read(void *ctx, uint64_t off, void *buf, size_t len)
{
	struct source *s = ctx;

	if (off < s->at || len > s->have || off - s->at > s->have - len) {
		if (len > AROUND || len >= s->size)
			return read_exactly(s, off, buf, len);
		uint64_t at = off, n = s->size < AROUND ? s->size : AROUND;
		if (at > s->size - n)
			at = s->size - n;
		s->have = 0;
		int err = read_exactly(s, at, s->around, n);
		if (err)
			return err;
		s->at = at;
		s->have = n;
	}
	memcpy(buf, s->around + (off - s->at), len);
	return 0;
}

static int source_open(void *ctx, const char *name, struct fmt_source *out)
{
	struct parser_head h = {.op = PARSER_OPEN};
	struct source *s = calloc(1, sizeof(*s));

	(void)ctx;
	if (!s)
		return -ENOMEM;
	ask(&h, name, strlen(name));
	if (h.err) {
		free(s);
		return h.err;
	}
	s->id = h.source;
	*out = (struct fmt_source){.size = h.size, .read = source_read, .ctx = s};
	return 0;
}

static void source_close(void *ctx, struct fmt_source *s)
{
	struct parser_head h = {.op = PARSER_CLOSE, .source = ((struct source *)s->ctx)->id};

	(void)ctx;
	tell(&h, NULL, 0);
	free(s->ctx);
}

static int file_is_bad(void *ctx, const char *file, const struct fmt_error *e, int err)
{
	struct parser_head h = {.op = PARSER_BAD, .err = err, .at = e->at};
	size_t n = strlen(file) + 1, len = n + strlen(e->text);
	char *both = malloc(len);

	(void)ctx;
	if (!both)
		return -ENOMEM;
	memcpy(both, file, n);
	memcpy(both + n, e->text, len - n);
	ask(&h, both, len);
	free(both);
	return h.err;
}

/* ---- questions from the worker ---- */

static void answer(int err, struct fmt_packed *found, const struct fmt_error *e)
{
	struct parser_head h = {.op = PARSER_DONE, .err = err, .at = e ? e->at : FMT_NOWHERE};

	if (!err)
		tell(&h, found->p, found->n);
	else
		tell(&h, e ? e->text : NULL, e ? strlen(e->text) : 0);
	fmt_packed_free(found);
}

static void do_content(const void *question, size_t len, bool tell_bad)
{
	struct ckpt_io io = {
		.open = source_open, .close = source_close, .bad = tell_bad ? file_is_bad : NULL};
	struct fmt_packed found = {NULL};
	struct ckpt_content c;
	enum ckpt_depth depth;
	int err = ckpt_unpack_question(&c, &io.max_bytes, &depth, question, len);

	if (!err)
		err = ckpt_content_read(&c, &io, depth);
	if (!err)
		err = ckpt_pack_answer(&found, &c);
	ckpt_content_free(&c);
	answer(err, &found, NULL);
}

static void do_item(uint64_t size)
{
	struct source *of = calloc(1, sizeof(*of) + AROUND);
	struct fmt_source s = {.size = size, .read = source_read, .ctx = of};
	struct fmt_error e = {.at = FMT_NOWHERE};
	struct fmt_packed found = {NULL};
	struct fmt_set *set = fmt_set_new();

	if (of)
		of->size = size;
	int err = of && set ? dcp_item_read(set, &s, &e) : -ENOMEM;
	if (!err)
		err = fmt_pack_set(&found, set);
	fmt_set_free(set);
	free(of);
	answer(err, &found, &e);
}

static void do_files(uint64_t size)
{
	struct source of = {0};
	const struct fmt_source s = {.size = size, .read = source_read, .ctx = &of};
	struct fmt_error e = {.at = FMT_NOWHERE};
	struct fmt_packed found = {NULL};
	struct fmt_set *set = fmt_set_new();
	int err = set ? dcp_files(set, &s, &e) : -ENOMEM;

	if (!err)
		err = fmt_pack_set(&found, set);
	fmt_set_free(set);
	answer(err, &found, &e);
}

void parser_serve(int fd, void (*fault)(unsigned nth), unsigned nth)
{
	struct parser_head h;

	worker.fd = fd;
	while (!parser_receive(&worker, &h)) {
		void *body = malloc(h.len ? h.len : 1);
		if (!body || parser_body(&worker, body, h.len))
			break;
		if (fault)
			fault(nth);
		if (h.op == PARSER_CONTENT)
			do_content(body, h.len, h.at);
		else if (h.op == PARSER_ITEM)
			do_item(h.size);
		else if (h.op == PARSER_FILES)
			do_files(h.size);
		else
			break;
		free(body);
	}
	_exit(0);
}

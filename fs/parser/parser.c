/* SPDX-License-Identifier: MIT
 * The worker's end of the parser processes. A parser may have been compromised by what it parses:
 * each of its messages is checked, and it can read only the checkpoint that it is asked about.
 *
 *	none ──START──▶ asked ──done──▶ idle, for the same tag ──▶ asked
 *	                  └─ content, failed ─▶ ended           └─ others are idle ─▶ ended
 */
#include "fs/parser/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define IDLE_MAX 4u /* views read at the same time keep one each */
#define SOURCES 4u /* open files of a checkpoint for one question; one is needed */
#define START_MS 10000

/* Maximum of concurrent questions: from threads that load a checkpoint for views, the thread of
 * latest, the publisher, and readers of views: N_THREADS and those of views_jobs.c. At most 32: the
 * nursery keeps 64. */

struct parser {
	struct parser *next;
	unsigned id;
	uint64_t tag;
	struct parser_pipe pipe;
	struct {
		struct fmt_source s;
		bool open;
	} source[SOURCES];
	unsigned char buf[PARSER_READ_MAX];
};

static pthread_mutex_t idle_lock = RANKED_MUTEX(RANK_PARSERS); /* guards idle */
static struct parser *idle; /* most recently used first */
static pthread_mutex_t nursery_lock = RANKED_MUTEX(RANK_NURSERY); /* guards its socket */
static unsigned last_id; /* nursery_lock */
static atomic_uint failures;

unsigned parser_failures(void)
{
	return atomic_load(&failures);
}

/* ---- start and end ---- */

/* Receives an answer of the nursery: *id, and a descriptor or -1. False: there was none. */
static bool take_answer(int from, unsigned *id, int *fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} u;
	struct iovec v = {.iov_base = id, .iov_len = sizeof(*id)};
	struct msghdr m = {.msg_iov = &v,
			   .msg_iovlen = 1,
			   .msg_control = u.buf,
			   .msg_controllen = sizeof(u.buf)};
	struct pollfd p = {.fd = from, .events = POLLIN};

	*fd = -1;
	if (poll(&p, 1, START_MS) <= 0 || recvmsg(from, &m, MSG_CMSG_CLOEXEC) != sizeof(*id))
		return false;
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
	    c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(fd, CMSG_DATA(c), sizeof(*fd));
	return true;
}

/* Skips answers to orders that were no longer waited for. */
static int take_fd(int from, unsigned id)
{
	unsigned got;
	int fd;

	while (take_answer(from, &got, &fd)) {
		if (got == id && fd >= 0 && !fcntl(fd, F_SETFL, O_NONBLOCK))
			return fd;
		if (fd >= 0)
			close(fd);
		if (got == id)
			break;
	}
	return -1;
}

static struct parser *parser_new(struct fs *fs, uint64_t tag)
{
	struct parser *p = calloc(1, sizeof(*p));
	struct parser_order o = {.what = PARSER_START};

	if (!p)
		return NULL;
	pthread_mutex_lock(&nursery_lock);
	p->id = o.id = ++last_id;
	p->pipe.fd = fs->parsers.fd > 0 && write(fs->parsers.fd, &o, sizeof(o)) == sizeof(o)
			     ? take_fd(fs->parsers.fd, o.id)
			     : -1;
	pthread_mutex_unlock(&nursery_lock);
	p->pipe.limited = true;
	p->tag = tag;
	if (p->pipe.fd >= 0)
		return p;
	free(p);
	return NULL;
}

/* Kills it: a compromised parser does not exit when its socket closes. */
static void parser_drop(struct fs *fs, struct parser *p)
{
	struct parser_order o = {.what = PARSER_END, .id = p->id};

	pthread_mutex_lock(&nursery_lock);
	if (write(fs->parsers.fd, &o, sizeof(o)) != sizeof(o))
		fs_log(LEVEL_ERROR "the nursery, which starts parsers, has exited");
	pthread_mutex_unlock(&nursery_lock);
	close(p->pipe.fd);
	free(p);
}

static struct parser *parser_take(struct fs *fs, uint64_t tag)
{
	pthread_mutex_lock(&idle_lock);
	struct parser **pp = &idle, *p;
	while ((p = *pp) && p->tag != tag)
		pp = &p->next;
	if (p)
		*pp = p->next;
	pthread_mutex_unlock(&idle_lock);
	struct pollfd f = {.fd = p ? p->pipe.fd : -1, .events = POLLIN};
	if (p && poll(&f, 1, 0)) { /* an idle parser sends nothing, so it was killed */
		parser_drop(fs, p);
		p = NULL;
	}
	return p ? p : parser_new(fs, tag);
}

static void parser_give(struct fs *fs, struct parser *p)
{
	struct parser *old = NULL;
	unsigned n = 0;

	pthread_mutex_lock(&idle_lock);
	p->next = idle;
	idle = p;
	for (struct parser **pp = &idle; *pp; pp = &(*pp)->next)
		if (++n > IDLE_MAX) {
			old = *pp;
			*pp = NULL;
			break;
		}
	pthread_mutex_unlock(&idle_lock);
	if (old)
		parser_drop(fs, old);
}

/* ---- requests from a parser ---- */

struct asked {
	struct fs *fs;
	const char *what;
	uint64_t tag; /* 0: the parser is ended afterwards */
	const struct ckpt_io *io; /* NULL: source 0 is the only one */
	struct parser *p;
	uint64_t names; /* bytes */
};

/* Receives a body of at most `max` bytes and appends a NUL. */
static int take_text(struct parser *p, const struct parser_head *h, size_t max)
{
	if (h->len > max || max >= sizeof(p->buf))
		return -EPROTO;
	int err = parser_body(&p->pipe, p->buf, h->len);
	p->buf[h->len] = '\0';
	return err;
}

static int do_open(struct asked *a, struct parser_head *h)
{
	struct parser *p = a->p;
	unsigned i = 0;
	int err = a->io ? take_text(p, h, PARSER_NAME_MAX) : -EPROTO;

	while (i < SOURCES && p->source[i].open)
		i++;
	if (err || i == SOURCES || !fmt_stays_below((char *)p->buf, h->len))
		return err ? err : -EPROTO;
	a->names += h->len + 64;
	if (a->names > PARSER_NAMES_MAX)
		return -EPROTO;
	err = a->io->open(a->io->ctx, (char *)p->buf, &p->source[i].s);
	p->source[i].open = !err;
	*h = (struct parser_head){
		.op = PARSER_OPEN, .err = err, .source = i, .size = err ? 0 : p->source[i].s.size};
	return parser_send(&p->pipe, h, NULL, 0);
}

static int do_read(struct parser *p, struct parser_head *h)
{
	size_t n = h->size;

	if (h->source >= SOURCES || !p->source[h->source].open || n > sizeof(p->buf) || h->len)
		return -EPROTO;
	h->err = fmt_read(&p->source[h->source].s, h->at, p->buf, n);
	return parser_send(&p->pipe, h, p->buf, h->err ? 0 : n);
}

static int do_close(struct asked *a, const struct parser_head *h)
{
	if (!a->io || h->source >= SOURCES || !a->p->source[h->source].open || h->len)
		return -EPROTO;
	a->p->source[h->source].open = false;
	a->io->close(a->io->ctx, &a->p->source[h->source].s);
	return 0;
}

static bool is_error(int err)
{
	return err < 0 && err > -4096;
}

static int do_bad(struct asked *a, struct parser_head *h)
{
	char *name = (char *)a->p->buf;
	struct fmt_error e = {.at = h->at};
	bool may = a->io && a->io->bad && is_error(h->err);
	int err = may ? take_text(a->p, h, PARSER_NAME_MAX + sizeof(e.text)) : -EPROTO;
	size_t len = err ? 0 : strlen(name);

	if (err || len == h->len)
		return err ? err : -EPROTO;
	snprintf(e.text, sizeof(e.text), "%s", name + len + 1);
	text_plain(e.text, 0);
	h->err = a->io->bad(a->io->ctx, name, &e, h->err);
	return parser_send(&a->p->pipe, h, NULL, 0);
}

/* ---- a question ---- */

/* 0: h is the answer. */
static int converse(struct asked *a, struct parser_head *h, const void *body, size_t len)
{
	uint64_t begun = monotonic_ns();
	int err = parser_send(&a->p->pipe, h, body, len);

	while (!err) {
		err = parser_receive(&a->p->pipe, h);
		if (err || h->op == PARSER_DONE)
			break;
		if (monotonic_ns() - begun > PARSER_WALL_NS) {
			err = -ETIMEDOUT;
			break;
		}
		err = h->op == PARSER_OPEN    ? do_open(a, h)
		      : h->op == PARSER_READ  ? do_read(a->p, h)
		      : h->op == PARSER_CLOSE ? do_close(a, h)
		      : h->op == PARSER_BAD   ? do_bad(a, h)
					      : -EPROTO;
	}
	for (unsigned i = 0; a->io && i < SOURCES; i++)
		if (a->p->source[i].open)
			a->io->close(a->io->ctx, &a->p->source[i].s);
	memset(a->p->source, 0, sizeof(a->p->source));
	return err;
}

static const struct {
	int err;
	const char *text;
} causes[] = {
	{-EPIPE, "it died"},
	{-ETIMEDOUT, "it took too long and was killed"},
	{-ENOMEM, "it needs more memory than allowed"},
	{-EPROTO, "its answer was invalid"},
	{-ECHILD, "it cannot be started"},
};
#define N_CAUSES (sizeof(causes) / sizeof(causes[0]))

/* Logs each cause once: any user can write files that fail to parse. */
static int has_failed(const struct asked *a, int why)
{
	static atomic_uint told;
	char what[120], text[256];
	unsigned i = 0;

	if (a->p)
		parser_drop(a->fs, a->p);
	atomic_fetch_add(&failures, 1);
	while (i < N_CAUSES - 1 && causes[i].err != why)
		i++;
	int err = why == -ECHILD ? why : -EIO;
	if (atomic_fetch_or(&told, 1u << i) & 1u << i)
		return err;
	snprintf(what, sizeof(what), "%s", a->what);
	text_plain(what, 0);
	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "the parser failed at %.100s: %s. The caller got EIO; the next request starts a "
		 "new parser",
		 what, causes[i].text);
	fs_notice(a->fs, text);
	return err;
}

static void release(struct asked *a)
{
	if (a->tag)
		parser_give(a->fs, a->p);
	else
		parser_drop(a->fs, a->p);
}

/* 0: *out is the answer; the caller checks it and then calls release() or has_failed(). On an error
 * that has been done: -EIO, or the error that the parser found, described in e. */
static int ask(struct asked *a, struct parser_head *h, const void *body, size_t len,
	       const struct fmt_source *first, unsigned char **out, struct fmt_error *e)
{
	*out = NULL;
	a->p = parser_take(a->fs, a->tag);
	if (!a->p)
		return has_failed(a, -ECHILD);
	a->p->pipe.left_ns = PARSER_TIME_NS;
	if (first) {
		a->p->source[0].s = *first;
		a->p->source[0].open = true;
	}
	int err = converse(a, h, body, len);
	if (!err && (h->len > PARSER_ANSWER_MAX ||
		     (h->err && (!is_error(h->err) || h->len >= sizeof(e->text)))))
		err = -EPROTO;
	if (!err && h->err == -ENOMEM)
		err = -ENOMEM;
	if (!err && !(*out = malloc(h->len + 1)))
		err = -ENOMEM;
	if (!err)
		err = parser_body(&a->p->pipe, *out, h->len);
	if (!err && h->err && e) {
		(*out)[h->len] = '\0';
		text_plain((char *)*out, 0);
		e->at = h->at;
		snprintf(e->text, sizeof(e->text), "%s", (char *)*out);
	}
	if (!err && !h->err)
		return 0;
	free(*out);
	*out = NULL;
	if (err)
		return has_failed(a, err);
	release(a);
	return h->err;
}

int parser_content(struct fs *fs, const char *what, struct ckpt_content *c,
		   const struct ckpt_io *io, enum ckpt_depth depth)
{
	struct asked a = {.fs = fs, .what = what, .io = io};
	struct parser_head h = {.op = PARSER_CONTENT, .at = io->bad != NULL};
	struct fmt_packed question = {NULL};
	unsigned char *found = NULL;
	struct fmt_error e = {.at = FMT_NOWHERE};
	int err = ckpt_pack_question(&question, c, io->max_bytes, depth);

	if (!err)
		err = ask(&a, &h, question.p, question.n, NULL, &found, NULL);
	if (!err && ckpt_unpack_answer(c, found, h.len, &e))
		err = has_failed(&a, -EPROTO);
	else if (!err)
		release(&a);
	fmt_packed_free(&question);
	free(found);
	return err;
}

static bool is_item(const struct fmt_set *s)
{
	return s->n_tensors == 1 && s->tensor[0].n_pieces == 1;
}

static int ask_set(struct asked *a, enum parser_op op, const struct fmt_source *s,
		   struct fmt_set *set, struct fmt_error *e)
{
	struct parser_head h = {.op = op, .size = s->size};
	unsigned char *found;
	int err = ask(a, &h, NULL, 0, s, &found, e);

	if (!err && (fmt_unpack_set(set, found, h.len, e) || (op == PARSER_ITEM && !is_item(set))))
		err = has_failed(a, -EPROTO);
	else if (!err)
		release(a);
	free(found);
	return err;
}

int parser_item(struct fs *fs, const char *what, uint64_t tag, const struct fmt_source *item,
		struct fmt_set *set, struct fmt_error *e)
{
	struct asked a = {.fs = fs, .what = what, .tag = tag};

	return ask_set(&a, PARSER_ITEM, item, set, e);
}

int parser_files(struct fs *fs, const char *what, const struct fmt_source *metadata,
		 struct fmt_set *set, struct fmt_error *e)
{
	struct asked a = {.fs = fs, .what = what};

	return ask_set(&a, PARSER_FILES, metadata, set, e);
}

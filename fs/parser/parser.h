/* SPDX-License-Identifier: MIT
 * What a checkpoint's files hold is anybody's bytes. They are parsed by processes that can do nothing
 * but that (cairnfs-parser): no capability, no file, no network, no more memory than PARSER_MEMORY.
 *
 *	parser.c	the worker asks, answers what is asked back, and believes nothing
 *	parser_serve.c	in such a process: from a question to its answer
 *	parser_start.c	the process that starts and ends them (cairnfs-nursery), one for each worker
 *	parser_pipe.c	messages between the two
 *
 * A parser is asked about one checkpoint only, so what took one over learns of no other. It is ended
 * when it takes too long, and whatever becomes of it costs who asked an EIO.
 */
#ifndef CAIRN_PARSER_H
#define CAIRN_PARSER_H

#include "fs/formats/formats.h"
#include "fs/fs.h"

/* ---- parser.c: the worker's end. May take long: no lock of the tree is held ---- */

/* As ckpt_content_read(); the callbacks are called by this thread. what: the path, for people. -EIO: the
 * parser died, took too long or spoke nonsense; -ECHILD: there was none to be had, which says nothing of the
 * checkpoint. A notice told so. */
int parser_content(struct fs *fs, const char *what, struct ckpt_content *c, const struct ckpt_io *io,
		   enum ckpt_depth depth);
/* As dcp_item_read(). tag: not 0; one parser is asked about all items of the same tag. */
int parser_item(struct fs *fs, const char *what, uint64_t tag, const struct fmt_source *item,
		struct fmt_set *set, struct fmt_error *e);
/* The files that metadata of DCP lists, into a new set; its tensors are left out. */
int parser_files(struct fs *fs, const char *what, const struct fmt_source *metadata, struct fmt_set *set);
unsigned parser_failures(void);

/* ---- parser_start.c ---- */

#define PARSER_MEMORY (2560u << 20)	/* address space: 64 MiB of hostile metadata unfold to some 2 GiB */

struct parser_order {		/* to the nursery: a byte of this and of its own */
	enum parser_what { PARSER_START, PARSER_END } what;
	unsigned id;		/* START: answered with it, and a descriptor */
};

/* ---- parser_serve.c ---- */
_Noreturn void parser_serve(int fd, void (*fault)(unsigned nth), unsigned nth);

/* ---- parser_pipe.c: messages ---- */

#define PARSER_PACKET (64u << 10)
#define PARSER_READ_MAX (1u << 20)	/* asked for at once */
#define PARSER_ANSWER_MAX (128u << 20)
#define PARSER_NAME_MAX 4096u
#define PARSER_NAMES_MAX (32u << 20)	/* of all that it opens for one question; each counts as 64 more */

enum parser_op {
	PARSER_CONTENT,		/* asked; body: ckpt_pack_question(). at: 1 when `bad` is to be told */
	PARSER_ITEM, PARSER_FILES,	/* asked; source 0 is open, of `size` bytes */
	PARSER_OPEN,		/* asked back; body: a name. Answered: rc, source, size */
	PARSER_READ,		/* `size` bytes at `at` of a source. Answered: rc, body */
	PARSER_CLOSE,		/* not answered */
	PARSER_BAD,		/* body: name, NUL, text; at and rc as there. Answered: rc */
	PARSER_DONE,		/* rc; body: what was found, or fmt_error's text with its `at` */
};

struct parser_head {
	uint32_t op;
	int32_t rc;
	uint32_t source;
	uint32_t unused;
	uint64_t at, size;
	uint64_t len;		/* of the body that follows, in as many packets as it takes */
};

struct parser_pipe {
	int fd;			/* SOCK_SEQPACKET */
	bool limited;		/* the other's time is, by left_ns and PARSER_STEP_NS; else it blocks */
	uint64_t left_ns;
	size_t from, have;	/* of the body, in packet */
	unsigned char packet[PARSER_PACKET];
};

#define PARSER_STEP_NS 10000000000u	/* without a word from it, */
#define PARSER_TIME_NS 60000000000u	/* of its own time altogether, for one question, */
#define PARSER_WALL_NS 600000000000u	/* and of everybody's */

/* 0; -EPIPE: the other has ended; -ETIMEDOUT; -EPROTO. */
int parser_send(struct parser_pipe *p, struct parser_head *h, const void *body, size_t len);
int parser_receive(struct parser_pipe *p, struct parser_head *h);
int parser_body(struct parser_pipe *p, void *buf, size_t len);	/* all of it: h->len */

#endif

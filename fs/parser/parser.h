/* SPDX-License-Identifier: MIT
 * A checkpoint's files are untrusted input. They are parsed by processes that can do nothing else
 * (cairnfs-parser): no capability, no file, no network, at most PARSER_MEMORY.
 *
 *	parser.c	the worker's end: asks, serves reads, checks all that it receives
 *	parser_serve.c	in a parser: from a question to its answer
 *	parser_start.c	the process that starts and ends parsers (cairnfs-nursery); one a worker
 *	parser_pipe.c	messages between worker and parser
 *
 * A parser is asked about one checkpoint only, so a compromised one sees no other. It is killed
 * when it takes too long. Whatever happens to it, the caller gets EIO.
 */
#ifndef CAIRN_PARSER_H
#define CAIRN_PARSER_H

#include "fs/formats/formats.h"
#include "fs/fs.h"

/* ---- parser.c: the worker's end. May take long: call without the tree lock ---- */

/* As ckpt_content_read(); the callbacks run on the calling thread. what: the path, for messages.
 * -EIO: the parser died, took too long or broke the protocol; -ECHILD: no parser could be started,
 * which says nothing about the checkpoint. Either is logged. */
int parser_content(struct fs *fs, const char *what, struct ckpt_content *c, const struct ckpt_io *io,
		   enum ckpt_depth depth);
/* As dcp_item_read(). tag: not 0; all items of one tag go to the same parser. */
int parser_item(struct fs *fs, const char *what, uint64_t tag, const struct fmt_source *item,
		struct fmt_set *set, struct fmt_error *e);
/* The files that a DCP .metadata lists, as a new set without tensors. */
int parser_files(struct fs *fs, const char *what, const struct fmt_source *metadata, struct fmt_set *set);
unsigned parser_failures(void);

/* ---- parser_start.c ---- */

#define PARSER_MEMORY (2560u << 20)	/* address space: 64 MiB of metadata expand to 2 GiB */

struct parser_order {		/* a message to the nursery */
	enum parser_what { PARSER_START, PARSER_END } what;
	unsigned id;		/* START: the answer carries it, and a descriptor */
};

/* ---- parser_serve.c ---- */
_Noreturn void parser_serve(int fd, void (*fault)(unsigned nth), unsigned nth);

/* ---- parser_pipe.c: messages ---- */

#define PARSER_PACKET (64u << 10)
#define PARSER_READ_MAX (1u << 20)	/* the most that one READ asks for */
#define PARSER_ANSWER_MAX (128u << 20)
#define PARSER_NAME_MAX 4096u
#define PARSER_NAMES_MAX (32u << 20)	/* of all names opened for one question, 64 bytes more
					 * each */

enum parser_op {
	PARSER_CONTENT,		/* question; body: ckpt_pack_question(). at: 1 = call `bad` */
	PARSER_ITEM, PARSER_FILES,	/* question; source 0 is open and has `size` bytes */
	PARSER_OPEN,		/* from the parser; body: a name. Answer: rc, source, size */
	PARSER_READ,		/* `size` bytes at `at` of a source. Answer: rc, body */
	PARSER_CLOSE,		/* no answer */
	PARSER_BAD,		/* body: name, NUL, text; at and rc are its arguments. Answer: rc */
	PARSER_DONE,		/* rc; body: the result, or fmt_error's text with its `at` */
};

struct parser_head {
	uint32_t op;
	int32_t rc;
	uint32_t source;
	uint32_t unused;
	uint64_t at, size;
	uint64_t len;		/* of the body, which follows in as many packets as needed */
};

struct parser_pipe {
	int fd;			/* SOCK_SEQPACKET */
	bool limited;		/* waits at most left_ns and PARSER_STEP_NS; else forever */
	uint64_t left_ns;
	size_t from, have;	/* of the body, in packet */
	unsigned char packet[PARSER_PACKET];
};

#define PARSER_STEP_NS 10000000000u	/* limits of one question: for one message of the parser, */
#define PARSER_TIME_NS 60000000000u	/* for all its computing, */
#define PARSER_WALL_NS 600000000000u	/* for everything, reads of the worker included */

/* 0; -EPIPE: the peer has ended; -ETIMEDOUT; -EPROTO. */
int parser_send(struct parser_pipe *p, struct parser_head *h, const void *body, size_t len);
int parser_receive(struct parser_pipe *p, struct parser_head *h);
int parser_body(struct parser_pipe *p, void *buf, size_t len);	/* all h->len bytes of it */

#endif

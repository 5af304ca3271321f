/* SPDX-License-Identifier: MIT
 * What the files of parser/ share: orders to the nursery, and the messages of a parser.
 */
#ifndef CAIRN_PARSER_INSIDE_H
#define CAIRN_PARSER_INSIDE_H

#include "fs/parser/parser.h"

/* ---- parser_start.c ---- */

#define PARSER_MEMORY (2560u << 20) /* address space: 64 MiB of metadata expand to 2 GiB */

struct parser_order { /* a message to the nursery */
	enum parser_what { PARSER_START, PARSER_END } what;
	unsigned id; /* START: the answer carries it, and a descriptor */
};

/* ---- parser_serve.c ---- */
_Noreturn void parser_serve(int fd, void (*fault)(unsigned nth), unsigned nth);

/* ---- parser_pipe.c: messages ---- */

#define PARSER_PACKET (64u << 10)
#define PARSER_READ_MAX (1u << 20) /* the most that one READ asks for */
#define PARSER_ANSWER_MAX (128u << 20)
#define PARSER_NAME_MAX 4096u
/* of all names opened for one question, 64 bytes more each */
#define PARSER_NAMES_MAX (32u << 20)

enum parser_op {
	PARSER_CONTENT, /* question; body: ckpt_pack_question(). at: 1 = call `bad` */
	PARSER_ITEM,
	PARSER_FILES, /* question; source 0 is open and has `size` bytes */
	PARSER_OPEN, /* from the parser; body: a name. Answer: err, source, size */
	PARSER_READ, /* `size` bytes at `at` of a source. Answer: err, body */
	PARSER_CLOSE, /* no answer */
	/* body: name, NUL, text; at and err are its arguments. Answer: err */
	PARSER_BAD,
	PARSER_DONE, /* err; body: the result, or fmt_error's text with its `at` */
};

struct parser_head {
	uint32_t op;
	int32_t err;
	uint32_t source;
	uint32_t unused;
	uint64_t at, size;
	uint64_t len; /* of the body, which follows in as many packets as needed */
};

struct parser_pipe {
	int fd; /* SOCK_SEQPACKET */
	bool limited; /* waits at most left_ns and PARSER_STEP_NS; else forever */
	uint64_t left_ns;
	size_t from, have; /* of the body, in packet */
	unsigned char packet[PARSER_PACKET];
};

/* limits of one question: for one message of the parser, */
#define PARSER_STEP_NS 10000000000u
#define PARSER_TIME_NS 60000000000u /* for all its computing, */
#define PARSER_WALL_NS 600000000000u /* for everything, reads of the worker included */

/* 0; -EPIPE: the peer has ended; -ETIMEDOUT; -EPROTO. */
int parser_send(struct parser_pipe *p, struct parser_head *h, const void *body, size_t len);
int parser_receive(struct parser_pipe *p, struct parser_head *h);
int parser_body(struct parser_pipe *p, void *buf, size_t len); /* all h->len bytes of it */

#endif

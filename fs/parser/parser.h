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

#include "fs/base/base.h"
#include "fs/formats/formats.h"

/* ---- parser.c: the worker's end. May take long: call without the tree lock ---- */

/* As ckpt_content_read(); the callbacks run on the calling thread. what: the path, for messages.
 * -EIO: the parser died, took too long or broke the protocol; -ECHILD: no parser could be started,
 * which says nothing about the checkpoint. Either is logged. */
int parser_content(struct fs *fs, const char *what, struct ckpt_content *c,
		   const struct ckpt_io *io, enum ckpt_depth depth);
/* As dcp_item_read(). tag: not 0; all items of one tag go to the same parser. */
int parser_item(struct fs *fs, const char *what, uint64_t tag, const struct fmt_source *item,
		struct fmt_set *set, struct fmt_error *e);
/* As dcp_files(). */
int parser_files(struct fs *fs, const char *what, const struct fmt_source *metadata,
		 struct fmt_set *set, struct fmt_error *e);
unsigned parser_failures(void);

/* ---- parser_start.c: by the keeper ---- */

/* before each worker; where it fails, nothing is parsed */
void parser_start(struct fs *fs);
bool parser_look(struct fs *fs); /* has it died, and is it replaced? */
void parser_leave(struct fs *fs, bool worker); /* closes the other's end */
void parser_end(struct fs *fs);

#endif

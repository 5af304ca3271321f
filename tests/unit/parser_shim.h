/* SPDX-License-Identifier: MIT
 * fs/parser/parser.h for a test in C++, which fs.h is not. */
#ifndef PARSER_SHIM_H
#define PARSER_SHIM_H
#include "fs/formats/formats.h"
#ifdef __cplusplus
extern "C" {
#endif
struct fs;
struct fs *shim_parser_fs(int nursery);	/* the worker's end; ended with exit(3) */
int shim_parser_content(struct fs *fs, struct ckpt_content *c, const struct ckpt_io *io);
int shim_parser_item(struct fs *fs, uint64_t tag, const struct fmt_source *item, struct fmt_set *set);
const char *shim_parser_notice(struct fs *fs);	/* the last one, "" */

/* The nursery's end, and a parser's. */
int shim_nursery_order(int fd, unsigned *id);	/* 1: start, 0: end, -1: no more */
void shim_nursery_pass(int fd, unsigned id, int give);
struct shim_message {
	int op, rc;
	unsigned source;
	uint64_t at, size, len;
};
int shim_parser_receive(int fd, struct shim_message *m, void *body, size_t cap);
int shim_parser_send(int fd, const struct shim_message *m, const void *body, size_t len);
enum { SHIM_CONTENT, SHIM_ITEM, SHIM_FILES, SHIM_OPEN, SHIM_READ, SHIM_CLOSE, SHIM_BAD, SHIM_DONE };
#ifdef __cplusplus
}
#endif
#endif

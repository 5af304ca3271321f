/* SPDX-License-Identifier: MIT
 * What struct fs has for parser/.
 */
#ifndef CAIRN_FS_PARSER_STATE_H
#define CAIRN_FS_PARSER_STATE_H

#include <sys/types.h>

struct parsers {
	int fd; /* the worker's: to the process that starts parsers; 0: there is none */
	/* the keeper's: the other end, kept for the next such process; 0: none */
	int served;
	pid_t pid; /* the keeper's: of that process; 0 */
	/* Set by the build for tests: the nth parser calls it before each question. */
	void (*fault)(unsigned nth);
};

#endif

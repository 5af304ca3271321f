/* SPDX-License-Identifier: MIT
 * What struct fs has for ops/.
 */
#ifndef CAIRN_FS_OPS_STATE_H
#define CAIRN_FS_OPS_STATE_H

/* still.c */
struct still {
	int fd; /* to the process that holds files still; -1: none */
	_Atomic int error; /* the last move that failed; logged once */
	char key[33];
};

#endif

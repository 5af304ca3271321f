/* SPDX-License-Identifier: MIT
 * What struct fs has for ops/.
 */
#ifndef CAIRN_FS_OPS_STATE_H
#define CAIRN_FS_OPS_STATE_H

/* freeze.c */
struct freezer {
	int fd; /* to the freezer process; -1: none */
	_Atomic int error; /* the last move that failed; logged once */
	char key[33];
};

#endif

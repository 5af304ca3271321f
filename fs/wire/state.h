/* SPDX-License-Identifier: MIT
 * What struct fs has for wire/.
 */
#ifndef CAIRN_FS_WIRE_STATE_H
#define CAIRN_FS_WIRE_STATE_H

#include <stdbool.h>
#include <stddef.h>

/* Requests that are read; receive.c. The read lock (base/state.h) is held. */
struct resends {
	struct resent **v; /* sent again; read at the start, not answered yet */
	size_t n, next;
	bool in_burst; /* the last request came at once */
};

#endif

/* SPDX-License-Identifier: MIT */
#ifndef CAIRN_IO_WRITE_H
#define CAIRN_IO_WRITE_H

#include "table.h"

/* One chunk in flight: the write as the engine sees it, and where it must end. */
struct io_slot {
	struct io_write w;
	uint64_t end;
	bool direct; /* as it was sent */
	struct io_slot *next_free;
};

#endif

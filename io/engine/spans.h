/* SPDX-License-Identifier: MIT
 *
 * A source's extents as the writer needs them: widened to IO_ALIGN, merged where
 * they then touch, cut off at the file's last page.
 */
#ifndef CAIRN_IO_SPANS_H
#define CAIRN_IO_SPANS_H

#include "engine.h"

struct io_spans {
	const struct io_source *src;
	unsigned i; /* next extent */
	uint64_t start, end; /* the current span, once io_spans_next returned true */
};

void io_spans_init(struct io_spans *s, const struct io_source *src);
bool io_spans_next(struct io_spans *s); /* false: no more */
/* 0, or -EINVAL: extents not sorted, overlapping or overflowing. */
int io_spans_check(const struct io_source *src);

#endif

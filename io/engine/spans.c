/* SPDX-License-Identifier: MIT */
#include <errno.h>

#include "spans.h"

/* Larger values cannot be rounded up, nor be a file's offset. */
#define SIZE_LIMIT ((uint64_t)INT64_MAX - IO_ALIGN)

int io_spans_check(const struct io_source *src)
{
	uint64_t past = 0;

	if (src->size > SIZE_LIMIT)
		return -EFBIG;
	for (unsigned i = 0; i < src->n_data; i++) {
		const struct io_extent *x = &src->data[i];

		if (x->off < past || x->off > SIZE_LIMIT || x->len > SIZE_LIMIT - x->off)
			return -EINVAL;
		past = x->off + x->len;
	}
	return 0;
}

void io_spans_init(struct io_spans *s, const struct io_source *src)
{
	*s = (struct io_spans){.src = src};
}

static uint64_t widened_end(const struct io_source *src, const struct io_extent *x)
{
	uint64_t end = io_align_up(x->off + x->len), last = io_align_up(src->size);

	return end < last ? end : last;
}

bool io_spans_next(struct io_spans *s)
{
	const struct io_source *src = s->src;

	while (s->i < src->n_data && !src->data[s->i].len)
		s->i++;
	if (s->i == src->n_data || src->data[s->i].off >= src->size)
		return false;
	s->start = io_align_down(src->data[s->i].off);
	s->end = widened_end(src, &src->data[s->i]);
	for (s->i++; s->i < src->n_data; s->i++) {
		const struct io_extent *x = &src->data[s->i];

		if (!x->len)
			continue;
		if (x->off >= src->size || io_align_down(x->off) > s->end)
			break;
		s->end = widened_end(src, x);
	}
	return true;
}

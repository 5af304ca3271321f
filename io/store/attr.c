/* SPDX-License-Identifier: MIT */
#include <errno.h>

#include "inside.h"

static int set_attr(struct io_store *s, struct io_call *c)
{
	if (s->ro)
		return -EROFS;
	return c->attr->mask ? (int)io_call_run(s->e, c) : 0;
}

int io_set_attr_fd(struct io_store *s, int fd, const struct io_attr *a)
{
	struct io_call c = {.op = IO_OP_ATTR, .fd = fd, .attr = a};

	return set_attr(s, &c);
}

int io_set_attr(struct io_store *s, int dirfd, const char *name, const struct io_attr *a)
{
	struct io_call c = {.op = IO_OP_ATTR, .fd = dirfd, .name = name, .attr = a};
	int err = name ? io_name_check(name) : 0;

	return err ? err : set_attr(s, &c);
}

/* SPDX-License-Identifier: MIT */
#include <errno.h>

#include "inside.h"

static int set_attr(struct io_store *s, struct io_call *c, bool published)
{
	const struct io_object dir = {.dirfd = c->fd};

	if (s->ro)
		return -EROFS;
	if (!c->attr->mask)
		return 0;
	return (int)(published ? io_lend_alone(s, &dir, !!c->name, io_lent_call, c)
			       : io_call_run(s->e, c));
}

int io_set_attr_fd(struct io_store *s, int fd, const struct io_attr *a)
{
	struct io_call c = {.op = IO_OP_ATTR, .fd = fd, .attr = a};

	return set_attr(s, &c, false);
}

int io_set_attr(struct io_store *s, int dirfd, const char *name, const struct io_attr *a)
{
	struct io_call c = {.op = IO_OP_ATTR, .fd = dirfd, .name = name, .attr = a};
	int err = name ? io_name_check(name) : 0;

	return err ? err : set_attr(s, &c, true);
}

/* SPDX-License-Identifier: MIT
 * Who sent a request: the kernel tells the user and the first group, /proc the others. */
#include "fs/request/request.h"

#include <stdlib.h>

#define GROUPS_FIRST 32

void caller_of(fuse_req_t req, struct caller *c)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	int cap = GROUPS_FIRST, n = 0;

	*c = (struct caller){.uid = ctx->uid, .gid = ctx->gid, .n_groups = -1};
	if (!c->uid)
		return;
	do {
		gid_t *p = reallocarray(c->groups, (size_t)cap, sizeof(*p));
		if (!p)
			return;
		c->groups = p;
		n = fuse_req_getgroups(req, cap, p);
	} while (n > cap && (cap = n));
	c->n_groups = n; /* negative: unknown, /proc cannot be read */
}

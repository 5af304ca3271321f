/* SPDX-License-Identifier: MIT
 * Replies with nodes: entries, and how long the kernel may cache them.
 */
#include "fs/request/request.h"

#include <errno.h>

#define TIMEOUT_S 1.0 /* other nodes of a cluster publish into the same store */

/* After a fork the kernel may know a file with several names as two inodes: then it must ask each
 * time. */
double attr_timeout(const struct node *n)
{
	/* the kernel does not see changes made through a mapping of a backing file */
	bool mapped = n->version.rdwr && n->backing.id;
	return n->fork.to || mapped || (S_ISREG(n->attr.mode) && node_links(n) > 1) ? 0 : TIMEOUT_S;
}

void fill_entry(struct node *n, const struct stat *st, struct fuse_entry_param *e)
{
	*e = (struct fuse_entry_param){
		.ino = n->id,
		.attr = *st,
		.attr_timeout = attr_timeout(n),
		/* its name ends with the last close */
		.entry_timeout = n->buf ? 0 : TIMEOUT_S,
	};
}

static void reply_stat(fuse_req_t req, struct node *n, const struct stat *st)
{
	struct fuse_entry_param e;

	fill_entry(n, st, &e);
	n->nlookup++;
	int err = fuse_reply_entry(req, &e);
	if (err && err != -ENOENT)
		n->nlookup--;
}

int reply_entry(fuse_req_t req, struct fs *fs, struct node *n)
{
	struct stat st;
	int err = node_stat(fs, n, &st);
	if (!err)
		reply_stat(req, n, &st);
	return err;
}

void reply_known(fuse_req_t req, struct fs *fs, struct node *n)
{
	struct stat st;
	node_attr(fs, n, &st);
	reply_stat(req, n, &st);
}

static void answer_stale(void *req)
{
	fuse_reply_err(req, ESTALE);
}

void reply_forked(fuse_req_t req, struct fs *fs, struct node *n)
{
	if (!fork_tell(fs, node_current(fs, n->id), answer_stale, req))
		fuse_reply_err(req, ESTALE);
}

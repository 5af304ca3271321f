/* SPDX-License-Identifier: MIT
 * What the files of remote/ share.
 */
#ifndef CAIRN_FS_REMOTE_INSIDE_H
#define CAIRN_FS_REMOTE_INSIDE_H

#include "fs/remote/remote.h"

enum remote_want {
	REMOTE_LOOKUP,
	REMOTE_GETATTR,
	REMOTE_OPEN,
	REMOTE_READ, /* of what was open under an earlier worker */
	REMOTE_READDIR,
	REMOTE_STATE, /* user.cairn.state */
	REMOTE_WAIT, /* user.cairn.wait: until all of its checkpoint is in the store */
};

/* A file that is fetched. */
struct remote_file {
	int fd; /* -1: none */
	int told; /* enum tier_range of each `bytes` bytes; -1: all of them are there */
	uint64_t bytes;
};

/* A request. It is answered at once, or waits in ask.c: for the first listing, or until a
 * checkpoint is in the store. */
struct remote_job {
	struct remote_job *next;
	fuse_req_t req;
	enum remote_want want;
	uint64_t id; /* of the node; of a lookup: of the directory */
	struct fuse_file_info fi;
	size_t size;
	off_t off;
	bool plus;
	uint64_t until_ns; /* for a listing; CLOCK_MONOTONIC */
	struct remote_fetch *fetch; /* that it waits for; NULL: none */
	char *file; /* it waits for this one of it; NULL: for all */
	struct remote_file staged; /* that, while it has no name */
	bool fetched; /* it has waited for a fetch that did not fail */
	char name[];
};

/* ---- remote.c ---- */

/* Whether the bytes may be read: 1, 0: not yet, -EBADMSG: the tier has other ones, or -EIO. */
int remote_may_read(const struct remote_file *f, off_t off, size_t size);

/* Answers from the listing. 0: done. -EINPROGRESS: only when j->file, or all, of the checkpoint
 * *fetch is there; the caller frees that path. May ask the store. */
int remote_answer(struct fs *fs, struct remote_job *j, const struct remote_list *l, char **fetch);

/* ---- ask.c ---- */

/* Answers now, or later by the thread. name may be "". */
void remote_ask(fuse_req_t req, const struct remote_job *what, const char *name);

#endif

/* SPDX-License-Identifier: MIT
 * The newest safe checkpoint below a directory, and how far what is below a node has come.
 */
#ifndef CAIRN_FS_LATEST_H
#define CAIRN_FS_LATEST_H

#include "fs/request/request.h"

/* ---- below.c; the tree lock is held ---- */

enum below_rank { BELOW_FAILED, BELOW_OPEN, BELOW_STAGED, BELOW_PERSISTING, BELOW_DURABLE };
/* as user.cairn.state shows it */
const char *below_name(enum below_rank rank);
struct below {
	struct fs *fs;
	struct node *top;
	uint64_t bytes; /* still to be written */
	enum below_rank rank; /* the least advanced */
	int error;
};
/* Everything not yet durable at or below top. */
struct below look_below(struct fs *fs, struct node *top);
/* Looks once at all files that are open or failed; below_seen() is then valid for any number of
 * nodes, while the lock is held. */
void below_look_all(struct fs *fs);
/* FAILED (also if a change was refused), OPEN, STAGED or DURABLE. */
enum below_rank below_seen(struct fs *fs, const struct node *n);
/* Does something at or below top wait for other nodes? */
bool waits_below(struct fs *fs, struct node *top);

/* ---- latest.c: MOUNT/.cairn/latest; a thread of its own answers ---- */

extern const struct control_ops latest_ops;
/* Answers with the newest safe checkpoint below the mount's directory path, relative to it;
 * ENODATA: none. */
void latest_xattr(fuse_req_t req, const char *path, size_t size);
/* The same for a directory of MOUNT/.cairn/tier: that of its path in the mount, which the store
 * need not have. May wait for the listing of the tier. */
void latest_xattr_of_tier(fuse_req_t req, uint64_t id, size_t size);
void latest_stop(void); /* the connection is gone: waits for the thread */

#endif

/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn/tier: the checkpoints in the tier, to read. Opening a file of one fetches it into
 * the store (tools/cairn/tier/tier_serve.c, a process of its own) and then reads what is there.
 */
#ifndef CAIRN_FS_REMOTE_H
#define CAIRN_FS_REMOTE_H

#include "fs/request/request.h"

#include "fs/formats/formats.h"
#include "io/tier_ask.h"

#include <stdatomic.h>

#define REMOTE_NAME "tier" /* below .cairn */

/* ---- snapshot.c: a listing of the tier; pure functions ---- */

struct remote_node {
	uint64_t id; /* of its inode: a hash of its path */
	const char *path; /* below the tier; "" is the top */
	struct stat st;
	bool checkpoint;
	atomic_bool damaged; /* of a checkpoint: the tier has not what its manifest lists */
	struct ckpt_kind kind; /* of a checkpoint */
	/* indexes of nodes; 0: none, for the top is nobody's child */
	uint32_t up, first, next;
};

struct remote_list {
	struct remote_node *v; /* sorted: a directory before what is in it; v[0] is the top */
	uint32_t n;
	uint32_t *by_id; /* indexes, sorted by id */
	char *text; /* of the paths */
	uint64_t checkpoints, bytes;
	uint32_t left_out; /* entries that no listing may have */
	unsigned refs; /* of ask.c, as the next */
	uint64_t marked_ns; /* when a node was last marked as damaged; 0: never */
};

/* Reads a listing (io/tier_ask.h), which is untrusted: what leads out of the tier, or into .cairn,
 * or is in no directory, is left out. -EBADMSG: not a listing; -ENOMEM. */
int remote_parse(const void *bytes, size_t len, struct remote_list **out);
void remote_free(struct remote_list *l);
/* NULL: there is none. */
const struct remote_node *remote_of_id(const struct remote_list *l, uint64_t id);
const struct remote_node *remote_find(const struct remote_list *l, const char *path);
const struct remote_node *remote_child(const struct remote_list *l, const struct remote_node *dir,
				       const char *name);
/* The checkpoint that n is, or is in. */
const struct remote_node *remote_checkpoint(const struct remote_list *l,
					    const struct remote_node *n);
/* Bytes of the files at and below n. */
uint64_t remote_bytes(const struct remote_list *l, const struct remote_node *n);
const char *remote_name(const struct remote_node *n); /* the last component */
/* May who search each directory above n, and has he the rights `want` of n? 0 or -EACCES. */
int remote_may(const struct remote_list *l, const struct remote_node *n, const struct caller *who,
	       unsigned want);

/* ---- ask.c ---- */

/* In the worker, when it serves: asks for the first listing. Nothing without a tier. */
int remote_start(struct fs *fs);
void remote_stop(void); /* the connection is gone: waits for the thread */
/* The newest listing, to be given back; it is asked for anew if it is old. NULL: there is no tier.
 * Waits for the first one, at most tier_wait seconds; then -EIO. No lock held. */
int remote_hold(struct fs *fs, struct remote_list **out);
void remote_put(struct remote_list *l);
/* A fetch found the checkpoint at path damaged: it counts as that at once, and in later listings
 * until they say otherwise. */
void remote_mark_damaged(const char *path);

struct remote_stats {
	bool on, listed;
	uint64_t checkpoints, bytes; /* of the newest listing */
	uint64_t damaged; /* checkpoints */
	char damaged_path[256]; /* of one; "" = none */
	uint64_t fetched, failed; /* since the worker began */
	char fetching[256]; /* the path of one; "" = none */
	uint64_t done, total; /* its bytes */
	char error[512]; /* of the last listing or fetch that failed; "" = none since one that did
			  * not */
};
void remote_stats(struct fs *fs, struct remote_stats *out);

/* ---- remote.c ---- */

extern const struct control_ops remote_ops;

#endif

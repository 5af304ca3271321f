/* SPDX-License-Identifier: MIT
 *
 * What a worker asks the server of its tier (tools/cairn/tier/tier_serve.c), by a socket that keeps
 * the limits of messages (SOCK_SEQPACKET) and outlives both. No message is certain to arrive: the
 * other side may be killed with it. So the worker asks again until it has an answer, and the server
 * takes no notice of what it does already.
 */
#ifndef CAIRN_IO_TIER_ASK_H
#define CAIRN_IO_TIER_ASK_H

#include <stdint.h>

#define TIER_SERVE_FD 3 /* the server's end */
#define TIER_PATH_MAX 4096
#define TIER_LIST_MAX (256u << 20) /* bytes of a listing */

enum tier_ask {
	/* to the server */
	TIER_ASK_LIST,
	TIER_ASK_FETCH, /* a checkpoint into the store, of it first the file at path */
	TIER_ASK_RANGE, /* of that fetch: the file at path, and now the bytes at offset of it */
	/* to the worker */
	TIER_ASK_HELLO, /* a server has begun, and knows of no request */
	TIER_ASK_LISTED, /* with a descriptor of the listing, unless err */
	TIER_ASK_MOVED, /* bytes of the checkpoint at path are there */
	/* the file at path is read in the descriptor that comes with it. A second one is memory: a
	 * byte, enum tier_range, for each `bytes` bytes of the file; without it all are there. No
	 * descriptor: look at that memory again */
	TIER_ASK_FILE,
	TIER_ASK_DONE, /* the checkpoint at path is fetched, or err */
	/* who listed the tier (path ""), or fetched the checkpoint at path, was killed (why): that
	 * says nothing of the tier, and it is to be asked again */
	TIER_ASK_KILLED,
	/* the checkpoint at path is damaged: the tier has not what its manifest lists (why) */
	TIER_ASK_DAMAGED,
};

enum tier_range {
	TIER_RANGE_NONE, /* what the file has there is not known */
	TIER_RANGE_THERE, /* the bytes that the manifest lists */
	TIER_RANGE_DAMAGED, /* the tier has other ones */
};

struct tier_message {
	uint32_t what; /* enum tier_ask */
	int32_t err; /* 0 or -errno; why is then the reason */
	uint64_t bytes, offset;
	uint32_t checkpoint_bytes; /* of path, its beginning is the path of its checkpoint */
	char path[TIER_PATH_MAX]; /* below the store and the tier */
	char why[512]; /* one line; of TIER_ASK_LISTED also what was left out */
};

/* A listing: for each checkpoint the directories on the way to its files, each before what is in
 * it, and its files. Each entry is followed by its path, without NUL; one may come twice. */
struct tier_entry {
	uint64_t size, step;
	int64_t mtime_s;
	uint32_t mtime_ns, mode, uid, gid; /* mode: S_IFDIR or S_IFREG, and permissions */
	uint16_t path_bytes;
	uint8_t checkpoint, has_step, format; /* format: enum ckpt_format */
	uint8_t damaged; /* of a checkpoint */
	uint8_t unused[2];
};

#endif

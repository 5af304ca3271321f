/* SPDX-License-Identifier: MIT
 *
 * Between cairn and cairn-tier, its child: one request, one reply, over a SOCK_SEQPACKET socket at
 * descriptor 0 of the child. A file comes as a descriptor with the request.
 */
#ifndef CAIRN_TIER_WIRE_H
#define CAIRN_TIER_WIRE_H

#include "io/sum/sum.h"

#include <stdint.h>

#define S3_KEY_MAX 1024 /* bytes, a limit of S3 */

enum s3_op {
	S3_PUT, /* size bytes of the file become the object */
	S3_GET, /* the object is written to the file; without a file it is only summed */
	S3_HEAD,
	S3_DELETE, /* 0 also when there is none */
	S3_LIST, /* keys that begin with key, each with a NUL, are written to the file */
	S3_BEGIN, /* begins an upload in parts of an object of this size; its id is in the reply */
	S3_ABORT, /* ends the upload without an object; 0 also when there is none */
};

#define S3_UPLOAD_MAX 1024 /* of ids; S3 names no limit */
#define S3_PART_BYTES (8ull << 20)
#define S3_PARTS_MAX 10000u /* a limit of S3 */

/* The same for each process that may go on with an upload. */
static inline uint64_t s3_part_bytes(uint64_t size)
{
	uint64_t part = S3_PART_BYTES;

	while (part * S3_PARTS_MAX < size)
		part += S3_PART_BYTES;
	return part;
}

struct s3_request {
	uint32_t op;
	uint64_t size;
	/* S3_GET: where the file is written, and from where the object is read, `size` bytes of it;
	 * 0 bytes: all */
	uint64_t off;
	/* S3_PUT, S3_GET: a reply with `more` for each so many bytes that were read; 0: none */
	uint64_t range_bytes;
	uint32_t apart; /* S3_GET: those replies in any order, and no sum of all */
	uint64_t rate; /* S3_PUT: bytes a second that are read of the file; 0: no limit */
	char key[S3_KEY_MAX + 1];
	/* S3_PUT: only parts that it has not yet are sent, "": a new one; S3_ABORT */
	char upload[S3_UPLOAD_MAX + 1];
};

struct s3_reply {
	uint32_t more; /* sum is of range `number`; not the last reply */
	uint64_t number;
	int32_t err; /* 0 or -errno; -ENOENT: no such object, or upload; -ESTALE: it ends before */
	uint64_t size; /* of the object; S3_LIST: bytes written */
	char sum[IO_CHECKSUM_LEN]; /* of the bytes that were sent or received */
	char upload[S3_UPLOAD_MAX + 1]; /* S3_BEGIN */
	char why[256]; /* a failure, for a person */
};

#endif

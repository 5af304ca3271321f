/* SPDX-License-Identifier: MIT
 *
 * cairn-tier: a client of S3 on aws-c-s3. Functions fill the reply.
 */
#ifndef CAIRN_TIER_S3_H
#define CAIRN_TIER_S3_H

#include "wire.h"

#include <aws/auth/credentials.h>
#include <aws/http/request_response.h>
#include <aws/io/channel.h>
#include <aws/io/channel_bootstrap.h>
#include <aws/io/event_loop.h>
#include <aws/io/host_resolver.h>
#include <aws/io/stream.h>
#include <aws/io/tls_channel_handler.h>
#include <aws/common/uri.h>
#include <aws/s3/s3_client.h>

/* ---- the client (client.c) ---------------------------------------------------------- */

struct s3 {
	struct aws_allocator *alloc;
	struct aws_client_bootstrap *bootstrap;
	struct aws_credentials_provider *credentials;
	struct aws_signing_config_aws signing;
	struct aws_s3_client *client;
	bool has_endpoint; /* one of its own, with path style */
	struct aws_uri endpoint;
	const char *bucket;
	char host[512];
	char base[512]; /* before the key: "/" or "/BUCKET/" */
};

/* false: why says what prevents it. */
bool s3_start(struct s3 *s, const char *bucket, char *why, size_t room);

/* ---- requests (request.c) ------------------------------------------------------------ */

struct s3_call {
	struct s3 *s;
	const char *method, *name; /* name: of the operation, as S3 has it */
	enum aws_s3_meta_request_type type;
	const char *key, *query; /* query: with "?", or "" */
	const char *range; /* of the object, as HTTP has it; NULL: all */
	struct aws_input_stream *body; /* NULL: none */
	uint64_t body_bytes;
	struct aws_s3_meta_request_resume_token *token; /* of an upload that is gone on with */
	bool begins_upload;
	struct aws_byte_buf *into; /* room for all bytes of the range; or */
	/* received bytes, in order; not 0: failed */
	int (*on_bytes)(void *ctx, const void *bytes, size_t n);
	void *ctx;

	uint64_t length; /* the answer's Content-Length */
};

void s3_call(struct s3_call *c, struct s3_reply *out);

/* The value of the header Range; returns out. */
#define S3_RANGE_TEXT 64
const char *s3_range(char out[S3_RANGE_TEXT], uint64_t off, uint64_t bytes);

/* ---- replies that are not the last one (main.c): by any thread ------------------------- */

void s3_tell(const struct s3_reply *r);

/* ---- ranges (ranges.c) ---------------------------------------------------------------- */

/* Writes n bytes at off of fd, or none if it is -1, and adds them to sum. 0, or the -errno of the
 * write: what is summed is written. */
int s3_keep(int fd, struct io_sum *sum, const void *bytes, size_t n, uint64_t off);

/* S3_GET with `apart`. */
void s3_get_ranges(struct s3 *s3, const struct s3_request *q, int fd, struct s3_reply *out);

#endif

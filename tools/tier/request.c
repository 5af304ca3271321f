/* SPDX-License-Identifier: MIT
 *
 * One request, and its end: what the library splits it into and tries again is not seen here.
 */
#include "s3.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

struct waiter {
	struct s3_call *c;
	struct s3_reply *out;
	sem_t released;
};

static int on_headers(struct aws_s3_meta_request *r, const struct aws_http_headers *headers,
		      int status, void *ctx)
{
	struct waiter *w = ctx;
	struct aws_byte_cursor v;

	(void)r;
	if (status / 100 == 2 &&
	    !aws_http_headers_get(headers, aws_byte_cursor_from_c_str("Content-Length"), &v) &&
	    aws_byte_cursor_utf8_parse_u64(v, &w->c->length))
		w->c->length = 0;
	return AWS_OP_SUCCESS;
}

static int on_body(struct aws_s3_meta_request *r, const struct aws_byte_cursor *body,
		   uint64_t start, void *ctx)
{
	struct waiter *w = ctx;

	(void)r;
	(void)start; /* they come in order */
	if (!w->c->on_bytes || !w->c->on_bytes(w->c->ctx, body->ptr, body->len))
		return AWS_OP_SUCCESS;
	return aws_raise_error(AWS_ERROR_FILE_WRITE_FAILURE);
}

/* S3's word for it, from <Code>...</Code>; room bytes. Only that: a body may have secrets. */
static void get_code(const struct aws_byte_buf *body, char *out, size_t room)
{
	const char *at = body && body->len ? memmem(body->buffer, body->len, "<Code>", 6) : NULL;
	size_t left = at ? body->len - (size_t)(at + 6 - (const char *)body->buffer) : 0, n = 0;

	for (; n + 1 < room && n < left; n++) {
		char c = at[6 + n];

		if ((c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9'))
			break;
		out[n] = c;
	}
	out[n] = '\0';
}

static void judge(struct s3_reply *out, const struct aws_s3_meta_request_result *r)
{
	char code[64];

	out->err = 0;
	if (!r->error_code)
		return;
	get_code(r->error_response_body, code, sizeof(code));
	if (r->response_status / 100 > 2)
		snprintf(out->why, sizeof(out->why), "the server answers %d%s%s",
			 r->response_status, *code ? " " : "", code);
	else
		snprintf(out->why, sizeof(out->why), "%s", aws_error_str(r->error_code));
	if (!strcmp(code, "NoSuchBucket"))
		out->err = -ENODEV;
	else if (r->response_status == 404 || r->error_code == AWS_ERROR_S3_RESUME_FAILED ||
		 r->error_code == AWS_ERROR_S3_RESUMED_PART_CHECKSUM_MISMATCH)
		out->err = -ENOENT;
	else if (r->response_status == 416)
		out->err = -ESTALE; /* it is shorter than that */
	else if (r->response_status == 403 || r->response_status == 401)
		out->err = -EACCES;
	else
		out->err = -EIO;
}

static void on_finish(struct aws_s3_meta_request *r,
		      const struct aws_s3_meta_request_result *result, void *ctx)
{
	struct waiter *w = ctx;

	(void)r;
	judge(w->out, result);
}

/* After this the library uses nothing of ours. */
static void on_shutdown(void *ctx)
{
	struct waiter *w = ctx;

	sem_post(&w->released);
}

const char *s3_range(char out[S3_RANGE_TEXT], uint64_t off, uint64_t bytes)
{
	snprintf(out, S3_RANGE_TEXT, "bytes=%llu-%llu", (unsigned long long)off,
		 (unsigned long long)(off + bytes - 1));
	return out;
}

static int add_header(struct aws_http_message *m, const char *name, const char *value)
{
	struct aws_http_header h = {.name = aws_byte_cursor_from_c_str(name),
				    .value = aws_byte_cursor_from_c_str(value)};

	return aws_http_message_add_header(m, h);
}

static struct aws_http_message *make_message(const struct s3_call *c)
{
	struct aws_http_message *m = aws_http_message_new_request(c->s->alloc);
	struct aws_byte_cursor key = aws_byte_cursor_from_c_str(c->key);
	struct aws_byte_cursor query = aws_byte_cursor_from_c_str(c->query);
	struct aws_byte_cursor base = aws_byte_cursor_from_c_str(c->s->base);
	struct aws_byte_buf path;
	char length[32];
	bool failed;

	aws_byte_buf_init(&path, c->s->alloc, 4096);
	failed = aws_byte_buf_append_dynamic(&path, &base) ||
		 aws_byte_buf_append_encoding_uri_path(&path, &key) ||
		 aws_byte_buf_append_dynamic(&path, &query) ||
		 aws_http_message_set_request_method(m, aws_byte_cursor_from_c_str(c->method)) ||
		 aws_http_message_set_request_path(m, aws_byte_cursor_from_buf(&path)) ||
		 add_header(m, "Host", c->s->host);
	aws_byte_buf_clean_up(&path);
	if (!failed && c->body) {
		snprintf(length, sizeof(length), "%llu", (unsigned long long)c->body_bytes);
		failed = add_header(m, "Content-Length", length);
		aws_http_message_set_body_stream(m, c->body);
	}
	if (!failed && c->range)
		failed = add_header(m, "Range", c->range);
	if (!failed && c->begins_upload)
		failed = add_header(m, "Content-Length", "0") ||
			 add_header(m, "x-amz-checksum-algorithm", "CRC64NVME");
	if (!failed)
		return m;
	aws_http_message_release(m);
	return NULL;
}

void s3_call(struct s3_call *c, struct s3_reply *out)
{
	struct waiter w = {.c = c, .out = out};
	struct aws_s3_checksum_config sum = {.checksum_algorithm = AWS_SCA_CRC64NVME};
	struct aws_s3_meta_request_options o = {
		.type = c->type,
		.operation_name = aws_byte_cursor_from_c_str(c->name),
		.message = make_message(c),
		.user_data = &w,
		.headers_callback = on_headers,
		.body_callback = c->into ? NULL : on_body,
		.recv_buffer = c->into,
		.finish_callback = on_finish,
		.shutdown_callback = on_shutdown,
		.endpoint = c->s->has_endpoint ? &c->s->endpoint : NULL,
		.checksum_config = &sum,
		.resume_token = c->token,
	};
	struct aws_s3_meta_request *r;

	if (c->type == AWS_S3_META_REQUEST_TYPE_PUT_OBJECT)
		sum.location = AWS_SCL_HEADER;
	else if (c->type == AWS_S3_META_REQUEST_TYPE_GET_OBJECT && !c->into)
		sum.validate_response_checksum = true;
	else
		o.checksum_config = NULL;
	sem_init(&w.released, 0, 0);
	r = o.message ? aws_s3_client_make_meta_request(c->s->client, &o) : NULL;
	if (o.message)
		aws_http_message_release(o.message);
	if (!r) {
		out->err = -EIO;
		snprintf(out->why, sizeof(out->why), "%s", aws_error_str(aws_last_error()));
		return;
	}
	aws_s3_meta_request_release(r);
	while (sem_wait(&w.released))
		; /* a signal */
}

/* SPDX-License-Identifier: MIT
 *
 * cairn-tier BUCKET: does what cairn, its parent, asks for over descriptor 0 (wire.h), one request
 * after the other, until that is closed. It knows nothing of checkpoints.
 */
#include "pace.h"
#include "s3.h"
#include "xml.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

void s3_tell(const struct s3_reply *r)
{
	if (send(0, r, sizeof(*r), MSG_NOSIGNAL) < 0)
		return; /* the parent has ended */
}

/* The parent is told while the rest is on its way. */
static void tell_range(void *ctx, uint64_t number, const char *sum)
{
	struct s3_reply r = {.more = 1, .number = number};

	(void)ctx;
	memcpy(r.sum, sum, sizeof(r.sum));
	s3_tell(&r);
}

static struct io_sum *new_sum(const struct s3_request *q)
{
	struct io_sum *m = io_sum_new();

	if (m && q->range_bytes && io_sum_ranges(m, q->range_bytes, tell_range, NULL)) {
		io_sum_free(m);
		return NULL;
	}
	return m;
}

/* ---- put ------------------------------------------------------------------------------ */

/* The file, summed while it is read: what is read again from its beginning is summed anew. */
struct source {
	struct aws_input_stream base;
	int fd;
	uint64_t size, at;
	struct io_sum *sum;
	struct pace *pace;
	bool skipped; /* the sum is not that of all bytes */
};

static int source_seek(struct aws_input_stream *in, int64_t to, enum aws_stream_seek_basis basis)
{
	struct source *s = AWS_CONTAINER_OF(in, struct source, base);

	s->at = basis == AWS_SSB_BEGIN ? (uint64_t)to : s->size + (uint64_t)to;
	s->skipped = s->at != 0;
	io_sum_reset(s->sum);
	return AWS_OP_SUCCESS;
}

static int source_read(struct aws_input_stream *in, struct aws_byte_buf *dest)
{
	struct source *s = AWS_CONTAINER_OF(in, struct source, base);
	size_t want = dest->capacity - dest->len;
	ssize_t n;

	if (want > s->size - s->at)
		want = s->size - s->at;
	do {
		n = pread(s->fd, dest->buffer + dest->len, want, (off_t)s->at);
	} while (n < 0 && errno == EINTR);
	if (n < 0 || (!n && want))
		return aws_raise_error(AWS_ERROR_FILE_READ_FAILURE); /* shorter than it was */
	/* on a thread that prepares parts, not on one that sends */
	pace_wait(s->pace, (uint64_t)n);
	io_sum_add(s->sum, dest->buffer + dest->len, (size_t)n);
	dest->len += (size_t)n;
	s->at += (uint64_t)n;
	return AWS_OP_SUCCESS;
}

static int source_status(struct aws_input_stream *in, struct aws_stream_status *out)
{
	struct source *s = AWS_CONTAINER_OF(in, struct source, base);

	*out = (struct aws_stream_status){.is_end_of_stream = s->at == s->size, .is_valid = true};
	return AWS_OP_SUCCESS;
}

static int source_length(struct aws_input_stream *in, int64_t *out)
{
	*out = (int64_t)AWS_CONTAINER_OF(in, struct source, base)->size;
	return AWS_OP_SUCCESS;
}

static void source_unused(void *in)
{
	(void)in; /* it outlives the request */
}

static struct aws_s3_meta_request_resume_token *token_of(struct s3 *s3, const struct s3_request *q)
{
	uint64_t part = s3_part_bytes(q->size);
	struct aws_s3_upload_resume_token_options o = {
		.upload_id = aws_byte_cursor_from_c_str(q->upload),
		.part_size = part,
		.total_num_parts = (size_t)((q->size + part - 1) / part)};

	return *q->upload ? aws_s3_meta_request_resume_token_new_upload(s3->alloc, &o) : NULL;
}

static void put(struct s3 *s3, const struct s3_request *q, int fd, struct s3_reply *out)
{
	static struct aws_input_stream_vtable table = {.seek = source_seek,
						       .read = source_read,
						       .get_status = source_status,
						       .get_length = source_length};
	static struct pace pace;
	struct source src = {.base.vtable = &table, .fd = fd, .size = q->size, .pace = &pace};
	struct s3_call c = {.s = s3,
			    .method = "PUT",
			    .name = "PutObject",
			    .key = q->key,
			    .type = AWS_S3_META_REQUEST_TYPE_PUT_OBJECT,
			    .query = "",
			    .body = &src.base,
			    .body_bytes = q->size,
			    .token = token_of(s3, q)};

	src.sum = new_sum(q);
	if (!src.sum) {
		out->err = -ENOMEM;
		return;
	}
	pace.rate = q->rate;
	aws_ref_count_init(&src.base.ref_count, &src.base, source_unused);
	s3_call(&c, out);
	aws_s3_meta_request_resume_token_release(c.token);
	if (!out->err && (src.skipped || src.at != src.size)) {
		out->err = -EIO;
		snprintf(out->why, sizeof(out->why), "not all of the file was read");
	}
	if (!out->err)
		io_sum_last_range(src.sum);
	out->size = q->size;
	io_sum_text(src.sum, out->sum);
	io_sum_free(src.sum);
}

/* ---- get, list ------------------------------------------------------------------------- */

struct sink {
	int fd; /* -1: none */
	struct io_sum *sum;
	uint64_t size, off; /* off: where it is written */
	int err;
};

static int sink_bytes(void *ctx, const void *bytes, size_t n)
{
	struct sink *s = ctx;

	s->err = s3_keep(s->fd, s->sum, bytes, n, s->off + s->size);
	if (!s->err)
		s->size += n;
	return s->err;
}

static void get(struct s3 *s3, const struct s3_request *q, int fd, struct s3_reply *out)
{
	struct sink sink = {.fd = fd, .sum = new_sum(q), .off = q->off};
	char range[S3_RANGE_TEXT];
	struct s3_call c = {.s = s3,
			    .method = "GET",
			    .name = "GetObject",
			    .range = q->size ? s3_range(range, q->off, q->size) : NULL,
			    .key = q->key,
			    .type = AWS_S3_META_REQUEST_TYPE_GET_OBJECT,
			    .query = "",
			    .on_bytes = sink_bytes,
			    .ctx = &sink};

	if (!sink.sum) {
		out->err = -ENOMEM;
		return;
	}
	s3_call(&c, out);
	if (!out->err && !sink.err)
		io_sum_last_range(sink.sum);
	if (sink.err) {
		out->err = sink.err;
		snprintf(out->why, sizeof(out->why), "%s", strerror(-sink.err));
	}
	out->size = sink.size;
	io_sum_text(sink.sum, out->sum);
	io_sum_free(sink.sum);
}

static int append(void *ctx, const void *bytes, size_t n)
{
	struct aws_byte_cursor c = aws_byte_cursor_from_array(bytes, n);

	return aws_byte_buf_append_dynamic(ctx, &c) ? -ENOMEM : 0;
}

/* As xml_text(). */
static bool between(char **at, const char *open, const char *close, struct aws_byte_cursor *out)
{
	char *text;
	size_t len;

	if (!xml_text(at, open, close, &text, &len))
		return false;
	*out = aws_byte_cursor_from_array(text, len);
	return true;
}

/* The keys of one answer; token becomes the query for the rest, or "". */
static int take_keys(struct s3 *s3, struct aws_byte_buf *xml, struct sink *sink,
		     struct aws_byte_buf *token)
{
	const char *zero = "";
	struct aws_byte_cursor key;
	char *at;

	if (append(xml, "", 1) || !strstr((char *)xml->buffer, "<ListBucketResult"))
		return -EBADMSG;
	for (at = (char *)xml->buffer; between(&at, "<Key>", "</Key>", &key);) {
		struct aws_byte_buf plain;
		int err;

		for (size_t i = 0; i < key.len; i++)
			if (key.ptr[i] == '+') /* a space; + itself is %2B */
				key.ptr[i] = ' ';
		aws_byte_buf_init(&plain, s3->alloc, key.len + 1);
		err = aws_byte_buf_append_decoding_uri(&plain, &key) ? -EBADMSG : 0;
		if (!err)
			err = sink_bytes(sink, plain.buffer, plain.len);
		if (!err)
			err = sink_bytes(sink, zero, 1);
		aws_byte_buf_clean_up(&plain);
		if (err)
			return err;
	}
	at = (char *)xml->buffer;
	aws_byte_buf_reset(token, false);
	if (!between(&at, "<NextContinuationToken>", "</NextContinuationToken>", &key))
		return 0;
	return aws_byte_buf_append_encoding_uri_param(token, &key) ? -ENOMEM : 0;
}

static void list(struct s3 *s3, const struct s3_request *q, int fd, struct s3_reply *out)
{
	struct sink sink = {.fd = fd, .sum = io_sum_new()};
	struct aws_byte_buf xml, token, query;
	struct aws_byte_cursor prefix = aws_byte_cursor_from_c_str(q->key);

	aws_byte_buf_init(&xml, s3->alloc, 1 << 16);
	aws_byte_buf_init(&token, s3->alloc, 256);
	aws_byte_buf_init(&query, s3->alloc, 4096);
	out->err = sink.sum ? 0 : -ENOMEM;
	while (!out->err) {
		struct s3_call c = {.s = s3,
				    .method = "GET",
				    .name = "ListObjectsV2",
				    .key = "",
				    .type = AWS_S3_META_REQUEST_TYPE_DEFAULT,
				    .on_bytes = append,
				    .ctx = &xml};

		aws_byte_buf_reset(&query, false);
		aws_byte_buf_reset(&xml, false);
		append(&query, "?list-type=2&encoding-type=url&prefix=", 38);
		aws_byte_buf_append_encoding_uri_param(&query, &prefix);
		if (token.len) {
			append(&query, "&continuation-token=", 20);
			append(&query, token.buffer, token.len);
		}
		append(&query, "", 1);
		c.query = (char *)query.buffer;
		s3_call(&c, out);
		if (!out->err)
			out->err = take_keys(s3, &xml, &sink, &token);
		if (!token.len)
			break;
	}
	out->size = sink.size;
	io_sum_free(sink.sum);
	aws_byte_buf_clean_up(&xml);
	aws_byte_buf_clean_up(&token);
	aws_byte_buf_clean_up(&query);
}

/* ---- uploads --------------------------------------------------------------------------- */

static void begin(struct s3 *s3, const struct s3_request *q, struct s3_reply *out)
{
	struct aws_byte_buf xml;
	struct aws_byte_cursor id = {0};
	char *at;
	struct s3_call c = {.s = s3,
			    .method = "POST",
			    .name = "CreateMultipartUpload",
			    .key = q->key,
			    .type = AWS_S3_META_REQUEST_TYPE_DEFAULT,
			    .query = "?uploads",
			    .begins_upload = true,
			    .on_bytes = append,
			    .ctx = &xml};

	aws_byte_buf_init(&xml, s3->alloc, 4096);
	s3_call(&c, out);
	if (!out->err && append(&xml, "", 1))
		out->err = -ENOMEM;
	at = (char *)xml.buffer;
	if (!out->err && (!between(&at, "<UploadId>", "</UploadId>", &id) || !id.len ||
			  id.len > S3_UPLOAD_MAX)) {
		out->err = -EBADMSG;
		snprintf(out->why, sizeof(out->why), "the server names no upload");
	}
	if (!out->err)
		memcpy(out->upload, id.ptr, id.len);
	aws_byte_buf_clean_up(&xml);
}

static void abort_upload(struct s3 *s3, const struct s3_request *q, struct s3_reply *out)
{
	char query[S3_UPLOAD_MAX + 32];
	struct s3_call c = {.s = s3,
			    .method = "DELETE",
			    .name = "AbortMultipartUpload",
			    .key = q->key,
			    .type = AWS_S3_META_REQUEST_TYPE_DEFAULT,
			    .query = query};

	snprintf(query, sizeof(query), "?uploadId=%s", q->upload);
	s3_call(&c, out);
	if (out->err == -ENOENT)
		out->err = 0;
}

/* ---- requests -------------------------------------------------------------------------- */

static void simple(struct s3 *s3, const struct s3_request *q, struct s3_reply *out)
{
	bool head = q->op == S3_HEAD;
	struct s3_call c = {.s = s3,
			    .method = head ? "HEAD" : "DELETE",
			    .key = q->key,
			    .name = head ? "HeadObject" : "DeleteObject",
			    .query = "",
			    .type = AWS_S3_META_REQUEST_TYPE_DEFAULT};

	s3_call(&c, out);
	out->size = c.length;
	if (!head && out->err == -ENOENT)
		out->err = 0;
}

static void answer(struct s3 *s3, const struct s3_request *q, int fd, struct s3_reply *out)
{
	if (q->op == S3_PUT && fd >= 0)
		put(s3, q, fd, out);
	else if (q->op == S3_GET && q->apart && q->size && q->range_bytes)
		s3_get_ranges(s3, q, fd, out);
	else if (q->op == S3_GET)
		get(s3, q, fd, out);
	else if (q->op == S3_LIST && fd >= 0)
		list(s3, q, fd, out);
	else if (q->op == S3_HEAD || q->op == S3_DELETE)
		simple(s3, q, out);
	else if (q->op == S3_BEGIN)
		begin(s3, q, out);
	else if (q->op == S3_ABORT && *q->upload)
		abort_upload(s3, q, out);
	else
		out->err = -EINVAL;
	if (out->err && !*out->why)
		snprintf(out->why, sizeof(out->why), "%s", strerror(-out->err));
}

/* 1: there is a request; 0: the parent has ended. *fd: the file with it, or -1. */
static int receive(struct s3_request *q, int *fd)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} u;
	struct iovec v = {.iov_base = q, .iov_len = sizeof(*q)};
	struct msghdr m = {.msg_iov = &v,
			   .msg_iovlen = 1,
			   .msg_control = u.room,
			   .msg_controllen = sizeof(u.room)};
	ssize_t n;

	*fd = -1;
	do {
		n = recvmsg(0, &m, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n != sizeof(*q))
		return 0;
	q->key[S3_KEY_MAX] = q->upload[S3_UPLOAD_MAX] = '\0';
	if (CMSG_FIRSTHDR(&m) && CMSG_FIRSTHDR(&m)->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(*fd));
	return 1;
}

int main(int argc, char **argv)
{
	struct s3 s3 = {0};
	struct s3_request q;
	char broken[256] = "";
	int fd, type = 0;
	socklen_t len = sizeof(type);

	/* buffers stay with the process: else the kernel clears the memory of each again */
	mallopt(M_MMAP_THRESHOLD, 2 * S3_PART_BYTES);
	mallopt(M_TRIM_THRESHOLD, 16 * S3_PART_BYTES);
	/* a request must not go on when the parent, which knows the order, is gone */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc != 2 || getsockopt(0, SOL_SOCKET, SO_TYPE, &type, &len) ||
	    type != SOCK_SEQPACKET) {
		fprintf(stderr, "cairn-tier: is run by `cairn tier`\n");
		return 2;
	}
	if (!s3_start(&s3, argv[1], broken, sizeof(broken)) && !*broken)
		snprintf(broken, sizeof(broken), "the client does not start");
	while (receive(&q, &fd)) {
		struct s3_reply out = {0};

		if (*broken) {
			out.err = -EINVAL;
			memcpy(out.why, broken, sizeof(broken));
		} else {
			answer(&s3, &q, fd, &out);
		}
		if (fd >= 0)
			close(fd);
		if (send(0, &out, sizeof(out), MSG_NOSIGNAL) != sizeof(out))
			break;
	}
	_exit(0); /* threads of the library are waiting: there is nothing to save */
}

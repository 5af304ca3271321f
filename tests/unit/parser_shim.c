/* SPDX-License-Identifier: MIT */
#include "tests/unit/parser_shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fs/parser/inside.h"

_Static_assert((int)SHIM_CONTENT == PARSER_CONTENT && (int)SHIM_FILES == PARSER_FILES && (int)SHIM_DONE == PARSER_DONE,
	       "the same numbers");

struct fs *shim_parser_fs(int nursery)
{
	static struct fs fs;
	lock_init(&fs.hosts.lock, RANK_HOSTS);
	lock_init(&fs.notices.lock, RANK_NOTICES);
	fs.parsers.fd = nursery;
	return &fs;
}

int shim_parser_content(struct fs *fs, struct ckpt_content *c, const struct ckpt_io *io)
{
	return parser_content(fs, "run/1", c, io, CKPT_TENSORS);
}

int shim_parser_item(struct fs *fs, uint64_t tag, const struct fmt_source *item, struct fmt_set *set)
{
	struct fmt_error e = {.at = FMT_NOWHERE};
	return parser_item(fs, "run/1", tag, item, set, &e);
}

const char *shim_parser_notice(struct fs *fs)
{
	return fs->notices.n ? fs->notices.text[(fs->notices.n - 1) % 16] : "";
}

int shim_nursery_order(int fd, unsigned *id)
{
	struct parser_order o;
	if (read(fd, &o, sizeof(o)) != sizeof(o))
		return -1;
	*id = o.id;
	return o.what == PARSER_START;
}

void shim_nursery_pass(int fd, unsigned id, int give)
{
	char buf[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec v = {.iov_base = &id, .iov_len = sizeof(id)};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = buf, .msg_controllen = sizeof(buf)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
	memcpy(CMSG_DATA(c), &give, sizeof(give));
	if (sendmsg(fd, &m, MSG_NOSIGNAL) < 0)
		abort();
}

int shim_parser_receive(int fd, struct shim_message *m, void *body, size_t cap)
{
	static _Thread_local struct parser_pipe p;
	struct parser_head h;
	p.fd = fd;
	int rc = parser_receive(&p, &h);
	if (rc)
		return rc;
	*m = (struct shim_message){(int)h.op, h.err, h.source, h.at, h.size, h.len};
	return h.len > cap ? -E2BIG : parser_body(&p, body, h.len);
}

/* m->len is what it says; len what comes in this packet. */
int shim_parser_send(int fd, const struct shim_message *m, const void *body, size_t len)
{
	char packet[sizeof(struct parser_head) + 8192];
	struct parser_head h = {.op = (uint32_t)m->op, .err = m->rc, .source = m->source, .at = m->at, .size = m->size,
				.len = m->len};
	memcpy(packet, &h, sizeof(h));
	memcpy(packet + sizeof(h), body, len);
	return send(fd, packet, sizeof(h) + len, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

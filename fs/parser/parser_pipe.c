/* SPDX-License-Identifier: MIT
 * Messages between the worker and a parser: a head, and a body in as many packets as needed.
 */
#include "fs/parser/inside.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* Waits for the peer, within the limits. */
static int wait_for(struct parser_pipe *p, short events)
{
	struct pollfd f = {.fd = p->fd, .events = events};
	uint64_t begun = monotonic_ns(),
		 most = p->left_ns < PARSER_STEP_NS ? p->left_ns : PARSER_STEP_NS;

	for (;;) {
		uint64_t took = monotonic_ns() - begun;
		int n = took < most ? poll(&f, 1, (int)((most - took) / 1000000) + 1) : 0;
		if (n < 0 && errno == EINTR)
			continue;
		took = monotonic_ns() - begun;
		p->left_ns -= took < p->left_ns ? took : p->left_ns;
		return n > 0 ? 0 : n ? -errno : -ETIMEDOUT;
	}
}

static int write_packet(struct parser_pipe *p, const void *buf, size_t len)
{
	for (;;) {
		ssize_t n = write(p->fd, buf, len);
		if (n == (ssize_t)len)
			return 0;
		if (n >= 0)
			return -EPROTO;
		if (errno == EAGAIN && p->limited) {
			int err = wait_for(p, POLLOUT);
			if (err)
				return err;
		} else if (errno != EINTR) {
			return -EPIPE;
		}
	}
}

static ssize_t read_packet(struct parser_pipe *p, void *buf, size_t len)
{
	for (;;) {
		ssize_t n = read(p->fd, buf, len);
		if (n > 0)
			return n;
		if (n < 0 && errno == EAGAIN && p->limited) {
			int err = wait_for(p, POLLIN);
			if (err)
				return err;
		} else if (n == 0 || errno != EINTR) {
			return -EPIPE;
		}
	}
}

int parser_send(struct parser_pipe *p, struct parser_head *h, const void *body, size_t len)
{
	size_t space = sizeof(p->packet) - sizeof(*h), part = len < space ? len : space;

	h->len = len;
	memcpy(p->packet, h, sizeof(*h));
	if (part)
		memcpy(p->packet + sizeof(*h), body, part);
	int err = write_packet(p, p->packet, sizeof(*h) + part);
	for (size_t at = part; !err && at < len; at += part) {
		part = len - at < PARSER_PACKET ? len - at : PARSER_PACKET;
		err = write_packet(p, (const char *)body + at, part);
	}
	return err;
}

int parser_receive(struct parser_pipe *p, struct parser_head *h)
{
	ssize_t n = read_packet(p, p->packet, sizeof(p->packet));

	if (n < 0)
		return (int)n;
	if ((size_t)n < sizeof(*h))
		return -EPROTO;
	memcpy(h, p->packet, sizeof(*h));
	p->from = sizeof(*h);
	p->have = (size_t)n - sizeof(*h);
	return p->have <= h->len ? 0 : -EPROTO;
}

int parser_body(struct parser_pipe *p, void *buf, size_t len)
{
	if (p->have > len)
		return -EPROTO;
	memcpy(buf, p->packet + p->from, p->have);
	for (size_t at = p->have; at < len;) {
		ssize_t n = read_packet(p, (char *)buf + at, len - at);
		if (n < 0)
			return (int)n;
		at += (size_t)n;
	}
	p->have = 0;
	return 0;
}

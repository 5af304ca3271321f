// SPDX-License-Identifier: MIT
//
// The worker's end of a parser that was taken over: whatever it says is an EIO, every file that was opened for
// it is closed, and it reads nothing but that.
#include <errno.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/parser_shim.h"

namespace
{

using Message = shim_message;
using Behave = std::function<void(int fd)>;

// The next parser's; changed between parsers by a test, and taken by the thread that starts them.
class NextBehave {
public:
	NextBehave &operator=(Behave b)
	{
		std::lock_guard<std::mutex> hold(lock_);
		behave_ = std::move(b);
		return *this;
	}
	Behave get()
	{
		std::lock_guard<std::mutex> hold(lock_);
		return behave_;
	}

private:
	std::mutex lock_;
	Behave behave_;
};

struct Nursery {
	Nursery()
	{
		EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
		fs = shim_parser_fs(pair[0]);
		thread = std::thread([this] { run(); });
	}
	~Nursery()
	{
		shutdown(pair[0], SHUT_RDWR);
		thread.join();
		close(pair[0]);
		close(pair[1]);
	}
	void run()
	{
		unsigned id;
		for (int what; (what = shim_nursery_order(pair[1], &id)) >= 0;) {
			int p[2];
			if (!what) {
				ended++;
				continue;
			}
			started++;
			ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p), 0);
			shim_nursery_pass(pair[1], id, p[0]);
			close(p[0]);
			std::thread([fd = p[1], be = behave.get()] {
				be(fd);
				close(fd);
			}).detach();
		}
	}
	int pair[2];
	struct fs *fs;
	NextBehave behave;
	std::atomic<int> started{0}, ended{0};
	std::thread thread;
};

struct Asked {
	Asked()
	{
		c.v = (ckpt_name *)calloc(1, sizeof(*c.v));
		c.v[0].name = strdup("model.safetensors");
		c.v[0].size = 10;
		c.n = 1;
		c.kind.format = CKPT_SAFETENSORS;
		io.ctx = this;
		io.max_bytes = 1 << 20;
		io.open = [](void *ctx, const char *name, fmt_source *out) {
			auto *a = (Asked *)ctx;
			if (strcmp(name, "model.safetensors"))
				return -ENOENT;
			a->opened++;
			*out = fmt_memory("0123456789", 10);
			return 0;
		};
		io.close = [](void *ctx, fmt_source *) { ((Asked *)ctx)->closed++; };
		io.bad = [](void *ctx, const char *name, const fmt_error *e, int) {
			((Asked *)ctx)->told += std::string(name) + ": " + e->text + "\n";
			return 0;
		};
	}
	~Asked() { ckpt_content_free(&c); }
	ckpt_content c = {};
	ckpt_io io = {};
	int opened = 0, closed = 0;
	std::string told;
};

Message message(int op, uint64_t len = 0)
{
	Message m = {};
	m.op = op;
	m.len = len;
	return m;
}

// Takes the question first.
Behave says(std::function<void(int fd, char *buf)> rest)
{
	return [rest](int fd) {
		char buf[8192];
		Message m;
		if (!shim_parser_receive(fd, &m, buf, sizeof(buf)))
			rest(fd, buf);
		recv(fd, buf, sizeof(buf), 0);	// until the other end is closed
	};
}

void open_file(int fd, const char *name = "model.safetensors")
{
	char buf[64];
	Message m = message(SHIM_OPEN, strlen(name));
	shim_parser_send(fd, &m, name, strlen(name));
	EXPECT_EQ(shim_parser_receive(fd, &m, buf, sizeof(buf)), 0);
	EXPECT_EQ(m.rc, 0);
	EXPECT_EQ(m.size, 10u);
}

int ask(Behave b)
{
	Nursery n;
	Asked a;
	n.behave = b;
	int rc = shim_parser_content(n.fs, &a.c, &a.io);
	EXPECT_EQ(a.opened, a.closed);
	EXPECT_EQ(n.started, 1);
	return rc;
}

void done(int fd, int rc, const std::string &body)
{
	Message m = message(SHIM_DONE, body.size());
	m.rc = rc;
	shim_parser_send(fd, &m, body.data(), body.size());
}

// ranks, no names, no faults, no index, no set
const std::string nothing("\3\0\0\0\0", 5);

TEST(Parser, AnswerIsTaken)
{
	Nursery n;
	Asked a;
	n.behave = says([](int fd, char *buf) {
		open_file(fd);
		Message m = message(SHIM_READ);
		m.at = 2;
		m.size = 5;
		shim_parser_send(fd, &m, "", 0);
		EXPECT_EQ(shim_parser_receive(fd, &m, buf, 100), 0);
		EXPECT_EQ(std::string(buf, m.len), "23456");
		m = message(SHIM_CLOSE);
		shim_parser_send(fd, &m, "", 0);
		m = message(SHIM_BAD, 3);
		m.rc = -EBADMSG;
		shim_parser_send(fd, &m, "f\0\x1b", 3);
		EXPECT_EQ(shim_parser_receive(fd, &m, buf, 100), 0);
		done(fd, 0, nothing);
	});
	EXPECT_EQ(shim_parser_content(n.fs, &a.c, &a.io), 0);
	EXPECT_EQ(a.c.kind.ranks, 3u);
	EXPECT_EQ(a.told, "f: ?\n");	// nothing for a terminal
	EXPECT_EQ(a.opened, 1);
	EXPECT_EQ(a.closed, 1);
}

TEST(Parser, WhatReadingGivesIsToldAsItIs)
{
	EXPECT_EQ(ask(says([](int fd, char *) { done(fd, -ESTALE, ""); })), -ESTALE);
}

TEST(Parser, AnythingElseIsEio)
{
	const std::string long_name(5000, 'n');
	auto one = [](Message m, const std::string &body = "") {
		return says([=](int fd, char *) { shim_parser_send(fd, &m, body.data(), body.size()); });
	};
	auto with = [](Message m, uint64_t at, uint64_t size, unsigned source, int rc = 0) {
		m.at = at;
		m.size = size;
		m.source = source;
		m.rc = rc;
		return m;
	};
	EXPECT_EQ(ask([](int) {}), -EIO) << "it ends at once";
	EXPECT_EQ(ask(says([](int fd, char *) { shutdown(fd, SHUT_RDWR); })), -EIO);
	EXPECT_EQ(ask(says([](int fd, char *) { send(fd, "short", 5, MSG_NOSIGNAL); })), -EIO);
	EXPECT_EQ(ask(one(message(SHIM_CONTENT))), -EIO);
	EXPECT_EQ(ask(one(message(99))), -EIO);
	EXPECT_EQ(ask(one(message(SHIM_OPEN, 3), std::string("a\0b", 3))), -EIO);
	EXPECT_EQ(ask(one(message(SHIM_OPEN, 5000), long_name)), -EIO);
	for (const std::string name : {"../x", "a/../../x", "/etc/passwd", "a//b", "a/", ".", "..", ""})
		EXPECT_EQ(ask(one(message(SHIM_OPEN, name.size()), name)), -EIO) << name;
	EXPECT_EQ(ask(one(message(SHIM_OPEN, UINT64_MAX), "a")), -EIO);
	EXPECT_EQ(ask(one(message(SHIM_OPEN, 1), "abc")), -EIO) << "more than it says";
	EXPECT_EQ(ask(one(message(SHIM_READ))), -EIO) << "nothing is open";
	EXPECT_EQ(ask(one(with(message(SHIM_READ), 0, 1, 4000000000u))), -EIO);
	EXPECT_EQ(ask(one(message(SHIM_CLOSE))), -EIO);
	EXPECT_EQ(ask(one(with(message(SHIM_CLOSE), 0, 0, 4))), -EIO);
	EXPECT_EQ(ask(one(with(message(SHIM_BAD, 1), 0, 0, 0, -EIO), "f")), -EIO) << "no text";
	EXPECT_EQ(ask(one(with(message(SHIM_BAD, 3), 0, 0, 0, 1), std::string("f\0t", 3))), -EIO) << "no error";
	EXPECT_EQ(ask(one(with(message(SHIM_DONE), 0, 0, 0, 1))), -EIO);
	EXPECT_EQ(ask(one(with(message(SHIM_DONE), 0, 0, 0, -5000))), -EIO);
	EXPECT_EQ(ask(one(with(message(SHIM_DONE), 0, 0, 0, -ENOMEM))), -EIO);
	EXPECT_EQ(ask(one(message(SHIM_DONE, UINT64_MAX), "x")), -EIO);
	EXPECT_EQ(ask(one(message(SHIM_DONE, 1u << 30), "x")), -EIO);
	EXPECT_EQ(ask(says([](int fd, char *) { done(fd, 0, ""); })), -EIO);
	EXPECT_EQ(ask(says([](int fd, char *) { done(fd, 0, std::string(300, '\xff')); })), -EIO);
	EXPECT_EQ(ask(says([](int fd, char *) {
			  Message m = message(SHIM_DONE, 100);
			  shim_parser_send(fd, &m, "part", 4);
			  shutdown(fd, SHUT_RDWR);
		  })),
		  -EIO);
}

TEST(Parser, OpenFilesAreClosedAndFew)
{
	EXPECT_EQ(ask(says([](int fd, char *) {
			  open_file(fd);
			  open_file(fd);
			  shutdown(fd, SHUT_RDWR);
		  })),
		  -EIO);
	EXPECT_EQ(ask(says([](int fd, char *buf) {
			  for (int i = 0; i < 4; i++)
				  open_file(fd);
			  Message m = message(SHIM_OPEN, 17);
			  shim_parser_send(fd, &m, "model.safetensors", 17);
			  EXPECT_NE(shim_parser_receive(fd, &m, buf, 100), 0);
		  })),
		  -EIO);
}

TEST(Parser, NothingOutsideOfAFileIsRead)
{
	const std::vector<std::pair<uint64_t, uint64_t>> reads = {{5, 6},	    {11, 0},	   {UINT64_MAX, 1},
								  {1, UINT64_MAX}, {0, 1u << 20}, {0, 2u << 20}};
	for (auto [at, size] : reads)
		ask(says([at = at, size = size](int fd, char *buf) {
			open_file(fd);
			Message m = message(SHIM_READ);
			m.at = at;
			m.size = size;
			shim_parser_send(fd, &m, "", 0);
			EXPECT_TRUE(shim_parser_receive(fd, &m, buf, 100) || (m.rc == -EBADMSG && !m.len)) << at << " " << size;
			shutdown(fd, SHUT_RDWR);
		}));
}

// Names go into lists of the worker's.
TEST(Parser, NamesAreNotWithoutEnd)
{
	EXPECT_EQ(ask(says([](int fd, char *buf) {
			  const std::string name = "d/" + std::string(4000, 'n');
			  Message m;
			  int i = 0;
			  do {
				  m = message(SHIM_OPEN, name.size());
				  shim_parser_send(fd, &m, name.data(), name.size());
			  } while (!shim_parser_receive(fd, &m, buf, 100) && i++ < 20000);
			  EXPECT_LT(i, 10000);
		  })),
		  -EIO);
}

TEST(Parser, ItemsAreOneTensorEach)
{
	Nursery n;
	n.behave = says([](int fd, char *) { done(fd, 0, std::string("\0\0", 2)); });
	fmt_set *set = fmt_set_new();
	fmt_source item = fmt_memory("0123", 4);
	EXPECT_EQ(shim_parser_item(n.fs, 5, &item, set), -EIO);
	fmt_set_free(set);
	// it opens nothing
	n.behave = says([](int fd, char *buf) {
		Message m = message(SHIM_OPEN, 1);
		shim_parser_send(fd, &m, "a", 1);
		EXPECT_NE(shim_parser_receive(fd, &m, buf, 100), 0);
	});
	set = fmt_set_new();
	EXPECT_EQ(shim_parser_item(n.fs, 6, &item, set), -EIO);
	fmt_set_free(set);
}

// One checkpoint, one parser.
TEST(Parser, TagsDoNotShare)
{
	Nursery n;
	fmt_source item = fmt_memory("0123", 4);
	n.behave = [](int fd) {
		char buf[100];
		Message m;
		while (!shim_parser_receive(fd, &m, buf, sizeof(buf)))
			done(fd, -EBADMSG, "no zip");
	};
	for (int i = 0; i < 2; i++)
		for (uint64_t tag : {11, 12, 13}) {
			fmt_set *set = fmt_set_new();
			EXPECT_EQ(shim_parser_item(n.fs, tag, &item, set), -EBADMSG);
			fmt_set_free(set);
		}
	EXPECT_EQ(n.started, 3);
	EXPECT_EQ(n.ended, 0);
	Asked a;
	shim_parser_content(n.fs, &a.c, &a.io);
	EXPECT_EQ(n.started, 4);
	for (uint64_t tag : {14, 15, 16}) {
		fmt_set *set = fmt_set_new();
		shim_parser_item(n.fs, tag, &item, set);
		fmt_set_free(set);
	}
	for (int i = 0; i < 1000 && n.ended < 3; i++)
		usleep(1000);
	EXPECT_EQ(n.ended, 3);	// the content's, and those that had nothing to do for longest
}

TEST(Parser, WithoutANurseryNothingIsParsed)
{
	Asked a;
	EXPECT_EQ(shim_parser_content(shim_parser_fs(0), &a.c, &a.io), -ECHILD);
	EXPECT_EQ(a.opened, 0);
	EXPECT_NE(std::string(shim_parser_notice(shim_parser_fs(0))).find("cannot be started"), std::string::npos);
}

}	// namespace

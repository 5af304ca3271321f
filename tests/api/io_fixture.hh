// SPDX-License-Identifier: MIT
//
// The objects of io/ as scoped C++ ones, for the io tests.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "io/store/store.h"
#include "io/sum/sum.h"
#include "test.hh"

struct Engine {
	explicit Engine(const char *kind = "uring", const char *fault = nullptr, unsigned chunk = 0,
			unsigned depth = 0)
	{
		io_engine_opts o = {};
		o.kind = kind;
		o.fault = fault;
		o.chunk_bytes = chunk;
		o.depth = depth;
		err = io_engine_open(&o, note, this, &e);
		if (!err)
			err = io_queue_open(e, &q);
	}
	Engine(const Engine &) = delete;
	Engine &operator=(const Engine &) = delete;
	~Engine()
	{
		io_queue_close(q);
		io_engine_close(e);
	}
	io_counts counts() const
	{
		io_counts c;
		io_engine_counts(e, &c);
		return c;
	}
	int notes_with(const char *part)
	{
		std::lock_guard<std::mutex> hold(lock);
		int n = 0;
		for (auto &t : notes)
			n += t.find(part) != std::string::npos;
		return n;
	}

	io_engine *e = nullptr;
	io_queue *q = nullptr;
	int err = 0;
	std::mutex lock;
	std::vector<std::string> notes;

private:
	static void note(void *ctx, const char *text)
	{
		auto self = static_cast<Engine *>(ctx);
		std::lock_guard<std::mutex> hold(self->lock);
		self->notes.push_back(text);
	}
};

struct Store {
	Store(Engine &e, const std::string &path, bool ro = false, const char *host = nullptr)
	{
		err = io_store_open(e.e, path.c_str(), ro, host, &by, &s);
	}
	Store(const Store &) = delete;
	Store &operator=(const Store &) = delete;
	~Store() { io_store_close(s); }
	int root() const { return io_store_root(s); }
	operator io_store *() const { return s; }

	io_store *s = nullptr;
	int err;
	io_served by = {};
};

// A filesystem mounted for the test; `ok` is false where that is not allowed.
struct Mount {
	explicit Mount(const char *type, const char *options = "")
	{
		ok = !mount("cairn-test", dir.path.c_str(), type, MS_NODEV | MS_NOSUID, options);
	}
	Mount(const Mount &) = delete;
	Mount &operator=(const Mount &) = delete;
	~Mount()
	{
		if (ok)
			umount2(dir.path.c_str(), MNT_DETACH);
	}
	TempDir dir;
	bool ok;
};

// Runs body in a child; its googletest failures are told and fail the child.
inline int in_child(const std::function<void()> &body)
{
	pid_t pid = fork();
	int status = 0;

	if (!pid) {
		body();
		_exit(::testing::Test::HasFailure() ? 1 : 0);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A file's bytes in memory as the staged file is: mapped, zero up to the page's end, and
// a page behind that must not be touched.
class Source {
public:
	explicit Source(size_t size) : size_(size)
	{
		size_t pages = (size + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN;

		mapped_ = pages + IO_ALIGN;
		base_ = static_cast<char *>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
						 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		if (base_ == MAP_FAILED || mprotect(base_ + pages, IO_ALIGN, PROT_NONE))
			throw std::system_error(errno, std::generic_category(), "mmap");
	}
	Source(const Source &) = delete;
	Source &operator=(const Source &) = delete;
	~Source() { munmap(base_, mapped_); }

	// [off, off+len) holds data; called with rising, not overlapping ranges.
	void data(uint64_t off, uint64_t len, uint64_t seed)
	{
		std::string bytes = pattern(len, seed);

		memcpy(base_ + off, bytes.data(), len);
		extents_.push_back({off, len});
	}
	io_source get()
	{
		io_source s = {};
		s.base = base_;
		s.size = size_;
		s.data = extents_.data();
		s.n_data = (unsigned)extents_.size();
		return s;
	}
	std::string bytes() const { return std::string(base_, size_); }
	const std::vector<io_extent> &extents() const { return extents_; }

private:
	size_t size_, mapped_;
	char *base_;
	std::vector<io_extent> extents_;
};

inline std::string read_fd(int fd)
{
	struct stat st;
	std::string out;
	Fd in(open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC));

	if (fstat(in.get(), &st))
		return "unreadable";
	out.resize((size_t)st.st_size);
	for (size_t at = 0; at < out.size();) {
		ssize_t n = pread(in.get(), &out[at], out.size() - at, (off_t)at);

		if (n <= 0)
			return "unreadable";
		at += (size_t)n;
	}
	return out;
}

// Differences of long strings are not worth printing.
#define EXPECT_SAME(a, b) EXPECT_TRUE((a) == (b))
#define ASSERT_SAME(a, b) ASSERT_TRUE((a) == (b))

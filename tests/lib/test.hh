// SPDX-License-Identifier: MIT
//
// Small helpers for googletest files: `#include "test.hh"` (tests/lib is in the include path).
//
//	TempDir t;  t.path, t / "name", t.fd()	a directory that goes away with the object; on disk
//	Fd f(open(...));  f.get()		closes itself
//	write_file(path, bytes); read_file(path)
//	Descriptors d(64);  d.take(); d.give()	at most so many while it lives; all but those given are taken
//	pattern(size, seed)			bytes that differ at every offset and for every seed
//	one_of()			make check tries one of so many points or seeds; check-all all
//	on_tmpfs(path)				to skip what a tmpfs cannot do (O_DIRECT before 6.6)
#pragma once

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

inline unsigned one_of()
{
	const char *s = getenv("TEST_ONE_OF");
	unsigned n = s ? (unsigned)atoi(s) : 1;
	return n ? n : 1;
}

class Fd {
public:
	explicit Fd(int fd = -1) : fd_(fd) {}
	Fd(Fd &&other) noexcept : fd_(other.release()) {}
	Fd &operator=(Fd &&other) noexcept
	{
		reset(other.release());
		return *this;
	}
	~Fd() { reset(-1); }
	int get() const { return fd_; }
	int release()
	{
		int fd = fd_;
		fd_ = -1;
		return fd;
	}
	void reset(int fd)
	{
		if (fd_ >= 0)
			close(fd_);
		fd_ = fd;
	}

private:
	int fd_;
};

class Descriptors {
public:
	explicit Descriptors(rlim_t most)
	{
		rlimit few;
		if (getrlimit(RLIMIT_NOFILE, &was_) || (few = {most, was_.rlim_max}, setrlimit(RLIMIT_NOFILE, &few)))
			throw std::system_error(errno, std::generic_category(), "RLIMIT_NOFILE");
	}
	Descriptors(const Descriptors &) = delete;
	Descriptors &operator=(const Descriptors &) = delete;
	~Descriptors()
	{
		setrlimit(RLIMIT_NOFILE, &was_);
	}
	void take()
	{
		for (int fd; (fd = dup(0)) >= 0;)
			taken_.emplace_back(fd);
	}
	// Closes one of those; false: none is left.
	bool give()
	{
		if (taken_.empty())
			return false;
		taken_.pop_back();
		return true;
	}

private:
	rlimit was_;
	std::vector<Fd> taken_;
};

class TempDir {
public:
	TempDir()
	{
		const char *base = getenv("TMP");
		path = std::string(base ? base : "/var/tmp") + "/cairn-unit.XXXXXX";
		if (!mkdtemp(path.data()))
			throw std::system_error(errno, std::generic_category(), path);
	}
	TempDir(const TempDir &) = delete;
	TempDir &operator=(const TempDir &) = delete;
	~TempDir()
	{
		std::error_code ignored;
		std::filesystem::remove_all(path, ignored);
	}
	std::string operator/(const std::string &name) const { return path + "/" + name; }
	int fd()
	{
		if (fd_.get() < 0)
			fd_.reset(open(path.c_str(), O_DIRECTORY | O_RDONLY | O_CLOEXEC));
		return fd_.get();
	}

	std::string path;

private:
	Fd fd_;
};

inline void write_file(const std::string &path, const std::string &bytes)
{
	std::ofstream f(path, std::ios::binary | std::ios::trunc);
	f.write(bytes.data(), (std::streamsize)bytes.size());
	f.close();
	if (!f)
		throw std::runtime_error("cannot write " + path);
}

inline std::string read_file(const std::string &path)
{
	std::ifstream f(path, std::ios::binary);
	if (!f)
		throw std::runtime_error("cannot read " + path);
	std::string bytes, block(1 << 20, '\0');
	while (f.read(&block[0], (std::streamsize)block.size()) || f.gcount())
		bytes.append(block, 0, (size_t)f.gcount());
	return bytes;
}

// splitmix64, one word each eight bytes: cheap, and no two offsets alike.
inline std::string pattern(size_t size, uint64_t seed)
{
	std::string bytes(size, '\0');
	for (size_t at = 0; at < size; at += 8) {
		uint64_t z = (seed + at / 8 + 1) * 0x9e3779b97f4a7c15u;

		z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
		z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
		z ^= z >> 31;
		memcpy(&bytes[at], &z, size - at < 8 ? size - at : 8);
	}
	return bytes;
}

inline bool on_tmpfs(const std::string &path)
{
	struct statfs s;

	return statfs(path.c_str(), &s) == 0 && s.f_type == 0x01021994;
}

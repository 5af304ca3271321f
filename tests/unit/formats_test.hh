// SPDX-License-Identifier: MIT
//
// What the tests of fs/formats share: the assets, and bytes put together by hand.
#pragma once

#include <errno.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fs/formats/formats.h"
#include "test.hh"

// tests/assets, found from where the program lies: build/tests/, build/asan/tests/, ...
inline std::string asset_path(const std::string &name)
{
	auto dir = std::filesystem::read_symlink("/proc/self/exe").parent_path();

	while (!std::filesystem::exists(dir / "tests/assets/make_assets.py") && dir.has_relative_path())
		dir = dir.parent_path();
	return (dir / "tests/assets" / name).string();
}

inline std::string asset(const std::string &name) { return read_file(asset_path(name)); }

inline std::string u16(unsigned n) { return {(char)n, (char)(n >> 8)}; }
inline std::string u32(uint32_t n) { return u16(n & 0xffff) + u16(n >> 16); }
inline std::string u64(uint64_t n) { return u32((uint32_t)n) + u32((uint32_t)(n >> 32)); }

// A torch.save file of that pickled object, without tensors.
inline std::string saved(const std::string &object)
{
	const std::string pickle = "\x80\x02" + object + ".", name = "archive/data.pkl";
	const uint32_t crc = zip_crc(0, pickle.data(), pickle.size()), n = (uint32_t)pickle.size();
	const std::string both = u32(0) + u32(crc) + u32(n) + u32(n) + u16((unsigned)name.size()) + u16(0);
	const std::string local = u32(0x04034b50) + u16(45) + u16(0) + u16(0) + both + name + pickle;
	const std::string dir = u32(0x02014b50) + u16(45) + u16(45) + u16(0) + u16(0) + both + u16(0) + u16(0) +
				u16(0) + u32(0) + u32(0) + name;
	return local + dir + u32(0x06054b50) + u16(0) + u16(0) + u16(1) + u16(1) + u32((uint32_t)dir.size()) +
	       u32((uint32_t)local.size()) + u16(0);
}

struct Error : fmt_error {
	Error() : fmt_error{} { at = 0; }
	bool says(const std::string &part) const { return std::string(text).find(part) != std::string::npos; }
};

class Set {
public:
	Set() : s_(fmt_set_new()) {}
	Set(const Set &) = delete;
	~Set() { fmt_set_free(s_); }
	fmt_set *get() const { return s_; }
	fmt_set *operator->() const { return s_; }
	uint32_t file(const std::string &name)
	{
		Error e;
		return (uint32_t)fmt_set_file(s_, name.data(), name.size(), &e);
	}
	fmt_tensor *find(const std::string &name) const { return fmt_set_find(s_, name.data(), name.size()); }
	void finish() { fmt_set_finish(s_); }

private:
	fmt_set *s_;
};

inline std::vector<uint64_t> list(const uint64_t *v, unsigned n) { return {v, v + n}; }
using V = std::vector<uint64_t>;

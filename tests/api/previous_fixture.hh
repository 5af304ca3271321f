// SPDX-License-Identifier: MIT
//
// A checkpoint that is overwritten in place, and where the store has which generation of it.
#pragma once

#include "tests/api/staging_fixture.hh"

inline Tree generation(unsigned n)
{
	return {{"a", pattern(300000, n)},
		{"b", pattern(5000, n + 100)},
		{".metadata", "commit " + std::to_string(n)}};
}

// As torch.distributed.checkpoint saves into one directory.
inline int save(History &h, unsigned n)
{
	Tree g = generation(n);
	int rc = 0;
	for (const char *name : {"a", "b"})
		rc = rc ? rc : h.put(std::string("ck/") + name, g[name]);
	rc = rc ? rc : h.put("ck/tmp", g[".metadata"]);
	if (!rc && h.now().count("ck/.metadata"))
		rc = h.unlink("ck/.metadata");
	return rc ? rc : h.rename("ck/tmp", "ck/.metadata");
}

inline std::vector<std::string> kept(const Ground &ground)
{
	std::vector<std::string> out;
	for (auto &at : std::filesystem::directory_iterator(ground.store() + "/.cairn/previous"))
		out.push_back(at.path());
	return out;
}

inline bool is_whole(const std::string &dir, unsigned n)
{
	try {
		for (auto &[name, bytes] : generation(n))
			if (!std::filesystem::exists(dir + "/" + name) ||
			    read_file(dir + "/" + name) != bytes)
				return false;
	} catch (const std::exception &) { // it is being removed
		return false;
	}
	return true;
}

inline bool is_somewhere(const Ground &ground, unsigned n)
{
	for (auto &dir : kept(ground))
		if (is_whole(dir, n))
			return true;
	return is_whole(ground.store() + "/ck", n);
}

inline Options with(const std::string &fault)
{
	Options o;
	o.fault = fault.empty() ? nullptr : fault.c_str();
	o.previous = ".metadata";
	return o;
}

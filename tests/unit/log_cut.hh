// SPDX-License-Identifier: MIT
//
// What a killed process leaves in staging, kept and put back; and where the records of its log end, so that it can be
// cut there.
#pragma once

#include "tests/api/staging_fixture.hh"

inline std::string place_of(const Ground &g)
{
	for (auto &at : std::filesystem::directory_iterator(g.run()))
		return at.path();
	return "";
}

inline std::vector<std::string> files_like(const std::string &dir, const std::string &prefix)
{
	std::vector<std::string> out;
	for (auto &at : std::filesystem::directory_iterator(dir))
		if (!at.path().filename().string().compare(0, prefix.size(), prefix))
			out.push_back(at.path().filename());
	return out;
}

inline std::string log_path(const Ground &g)
{
	for (auto &name : files_like(place_of(g), "log."))
		if (name.find("damaged") == std::string::npos)
			return place_of(g) + "/" + name;
	return "";
}

// All files of a place, and how to put them back as they were.
struct Saved {
	explicit Saved(const std::string &dir) : dir(dir)
	{
		for (const char *sub : {"", "/huge", "/small"})
			for (auto &at : std::filesystem::directory_iterator(dir + sub))
				if (at.is_regular_file() && at.path().filename() != "lock")
					files[std::string(sub) + "/" +
					      at.path().filename().string()] = read_file(at.path());
	}
	void put_back() const
	{
		for (const char *sub : {"", "/huge", "/small"})
			for (auto &at : std::filesystem::directory_iterator(dir + sub))
				if (at.is_regular_file() && at.path().filename() != "lock")
					std::filesystem::remove(at.path());
		for (auto &[name, bytes] : files)
			write_file(dir + name, bytes);
	}
	std::string dir;
	std::map<std::string, std::string> files;
};

// What a filesystem with a journal has instead of the counts in the head.
inline void forget_mark(const Ground &g)
{
	for (auto &host : std::filesystem::directory_iterator(g.store() + "/.cairn"))
		unlink((host.path() / "mark").c_str());
}

inline void wipe_store(const Ground &g)
{
	forget_mark(g);
	for (auto &at : std::filesystem::directory_iterator(g.store()))
		if (at.path().filename() != ".cairn")
			std::filesystem::remove_all(at.path());
}

// Where records end in a log, by decoding it.
inline std::vector<size_t> boundaries(const std::string &log)
{
	std::vector<size_t> out = {0};
	rec r;
	size_t used;
	for (size_t at = 0; at < log.size() && !rec_decode(&log[at], log.size() - at, &r, &used);)
		out.push_back(at += used);
	return out;
}

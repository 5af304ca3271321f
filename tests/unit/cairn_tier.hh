// SPDX-License-Identifier: MIT
//
// A tier that is a directory, for tests of what tools/cairn does with it.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <string>

#include "tests/api/io_fixture.hh"

extern "C" {
#include "tools/cairn/tier/tier_ranges.h"
}

class TierDir : public ::testing::Test
{
protected:
	void SetUp() override
	{
		struct tier_why why = {};
		std::filesystem::create_directory(top / "tier");
		std::filesystem::create_directory(top / "store");
		store = open((top / "store").c_str(), O_RDONLY | O_DIRECTORY);
		ASSERT_EQ(tier_open_to_write(&t, name.c_str(), "host", store, &why), 0) << why.text;
	}
	void TearDown() override
	{
		tier_close(&t);
		close(store);
	}
	// What the tier has at path.
	void put(const std::string &path, const std::string &bytes)
	{
		std::string full = name + "/" + path;
		std::filesystem::create_directories(std::filesystem::path(full).parent_path());
		int fd = open(full.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
		ASSERT_EQ(write(fd, bytes.data(), bytes.size()), (ssize_t)bytes.size());
		close(fd);
	}

	TempDir top;
	std::string name = top / "tier";
	int store = -1;
	struct tier t = {};
};

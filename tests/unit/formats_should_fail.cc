// SPDX-License-Identifier: MIT
//
// What fuzzing found, and other broken files: tests/assets/should-fail/PARSER/NAME. Each is
// refused, quickly, and without harm (run it with the sanitizers).
#include "formats_test.hh"

namespace
{

std::vector<std::string> names(const char *parser)
{
	auto dir = std::filesystem::read_symlink("/proc/self/exe").parent_path();
	std::vector<std::string> out;

	while (!std::filesystem::exists(dir / "tests/assets/make_assets.py") && dir.has_relative_path())
		dir = dir.parent_path();
	for (const auto &f : std::filesystem::directory_iterator(dir / "tests/assets/should-fail" / parser))
		out.push_back("should-fail/" + std::string(parser) + "/" + f.path().filename().string());
	return out;
}

TEST(ShouldFail, Pickle)
{
	for (const std::string &n : names("pickle")) {
		const std::string b = asset(n);
		pickle *p;
		Error e;
		EXPECT_NE(pickle_parse(b.data(), b.size(), &p, nullptr, &e), 0) << n;
	}
}

TEST(ShouldFail, Dcp)
{
	for (const std::string &n : names("dcp")) {
		const std::string b = asset(n);
		Set s;
		Error e;
		EXPECT_NE(dcp_read(s.get(), b.data(), b.size(), &e), 0) << n;
	}
}

TEST(ShouldFail, Snapshot)
{
	for (const std::string &n : names("snapshot")) {
		const std::string b = asset(n);
		uint32_t ranks;
		Set s;
		Error e;
		EXPECT_NE(snapshot_read(s.get(), b.data(), b.size(), &ranks, &e), 0) << n;
	}
}

TEST(ShouldFail, Zip)
{
	for (const std::string &n : names("zip")) {
		const std::string b = asset(n);
		const fmt_source src = fmt_memory(b.data(), b.size());
		Set s;
		Error e;
		EXPECT_NE(torchfile_read(s.get(), s.file("f"), "", &src, &e), 0) << n;
	}
}

TEST(ShouldFail, Safetensors)
{
	for (const std::string &n : names("safetensors")) {
		const std::string b = asset(n);
		const fmt_source src = fmt_memory(b.data(), b.size());
		Set s;
		Error e;
		EXPECT_NE(safetensors_read(s.get(), s.file("f"), &src, &e), 0) << n;
	}
}

TEST(ShouldFail, Json)
{
	for (const std::string &n : names("json")) {
		const std::string b = asset(n);
		json_doc *d;
		Error e;
		EXPECT_NE(json_read(b.data(), b.size(), &d, &e), 0) << n;
	}
}

} // namespace

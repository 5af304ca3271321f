// SPDX-License-Identifier: MIT
//
// Manifests (tools/cairn/tier/manifest.c): what is written is read again; and untrusted bytes, of which nothing leads out of the
// tier.
#include <memory>
#include <vector>

#include "tests/unit/cairn_tier.hh"

namespace
{

const std::string sum = "xxh3:0123456789abcdef0123456789abcdef";
const std::string other_sum = "fedcba9876543210fedcba9876543210";

struct Loaded {
	~Loaded() { manifest_free(&m); }
	struct manifest m = {};
	int err = 0;
};

class Manifest : public TierDir
{
protected:
	std::unique_ptr<Loaded> load(const char *checkpoint, const char *file = TIER_MANIFEST)
	{
		auto l = std::make_unique<Loaded>();
		l->err = manifest_load(&t, checkpoint, file, &l->m);
		return l;
	}
	int parse(const std::string &text)
	{
		put(TIER_MANIFESTS "/run/step-1/" TIER_MANIFEST, text);
		return load("run/step-1")->err;
	}
};

std::string file_of(const std::string &path, const std::string &more = "", const std::string &checksum = sum,
		    const std::string &size = "5", const std::string &ns = "7")
{
	return "{\"path\": \"" + path + "\", \"size\": " + size + ", \"checksum\": \"" + checksum +
	       "\", \"mtime_s\": 1, \"mtime_ns\": " + ns + more + "}";
}
std::string of(const std::string &files, const std::string &version = "1")
{
	return "{\"version\": " + version + ", \"path\": \"run/step-1\", \"format\": \"dcp\", \"generation\": 1, \"time_s\": 2, " +
	       "\"files\": [" + files + "]}";
}

TEST_F(Manifest, IsReadAsItWasWritten)
{
	struct manifest m = {};
	std::string ranges = other_sum + other_sum + other_sum;
	const std::vector<std::string> paths = {"run/step-1/.metadata", "run/step-1/a\"b\\c", "run/step-1/d/\xff\xfe",
						"run/step-1/z\n"};
	m.path = strdup("run/step-1");
	m.format = strdup("dcp");
	m.has_step = m.commits = true;
	m.step = 100;
	m.generation = 3;
	m.time_s = 1700000000;
	for (size_t i = paths.size(); i--;) {
		struct tier_file f = {};
		f.path = (char *)paths[i].c_str();
		f.size = i == 1 ? (20u << 20) : i;
		f.mtime = {(time_t)(1000 + i), 999999999};
		strcpy(f.sum, i ? sum.c_str() : "");
		f.ranges = i == 1 ? (char *)ranges.c_str() : nullptr;
		f.range_bytes = i == 1 ? 8u << 20 : 0;
		f.upload = i == 1 ? (char *)"id-1_2.3~" : nullptr;
		f.ctime = {5, 6};
		ASSERT_EQ(manifest_add(&m, &f), 0);
	}
	ASSERT_EQ(manifest_save(&t, &m, TIER_BEGUN), 0);
	auto l = load("run/step-1", TIER_BEGUN);
	ASSERT_EQ(l->err, 0);
	EXPECT_TRUE(l->m.has_step && l->m.commits);
	EXPECT_EQ(l->m.step, 100u);
	EXPECT_EQ(l->m.generation, 3u);
	EXPECT_EQ(l->m.time_s, 1700000000u);
	EXPECT_STREQ(l->m.format, "dcp");
	ASSERT_EQ(l->m.n, paths.size());
	EXPECT_EQ(manifest_bytes(&l->m), (20u << 20) + 5);
	for (size_t i = 0; i < paths.size(); i++) {
		const struct tier_file *f = manifest_find(&l->m, paths[i].c_str());
		ASSERT_NE(f, nullptr) << i;
		EXPECT_EQ(f->mtime.tv_sec, (time_t)(1000 + i));
		EXPECT_EQ(f->mtime.tv_nsec, 999999999);
		EXPECT_STREQ(f->sum, i ? sum.c_str() : "");
		EXPECT_EQ(f->ranges ? f->ranges : "", i == 1 ? ranges : "");
		EXPECT_STREQ(f->upload ? f->upload : "", i == 1 ? "id-1_2.3~" : "");
		EXPECT_EQ(f->ctime.tv_sec, i == 1 ? 5 : 0);
	}
	EXPECT_FALSE(l->m.removes);
	m.removes = true;
	ASSERT_EQ(manifest_save(&t, &m, TIER_BEGUN), 0);
	EXPECT_TRUE(load("run/step-1", TIER_BEGUN)->m.removes);
	manifest_forget_uploads(&l->m);
	EXPECT_EQ(manifest_find(&l->m, paths[1].c_str())->upload, nullptr);
	manifest_free(&m);
}

TEST_F(Manifest, AnotherOneHasAnotherVersion)
{
	auto version = [this](const std::string &text) {
		EXPECT_EQ(parse(text), 0);
		return manifest_version(&load("run/step-1")->m);
	};
	const std::string a = of(file_of("run/step-1/a")), sum2 = "xxh3:" + other_sum;
	EXPECT_EQ(version(a), version(a + "\n"));
	std::string again = a, later = a;
	again.replace(again.find("\"generation\": 1"), 15, "\"generation\": 2");
	later.replace(later.find("\"time_s\": 2"), 11, "\"time_s\": 3");
	for (const std::string &other : {again, later, of(file_of("run/step-1/b")), of(file_of("run/step-1/a", "", sum2)),
					 of(file_of("run/step-1/a", "", sum, "6")), of(file_of("run/step-1/a") + ", " + file_of("run/step-1/b"))})
		EXPECT_NE(version(a), version(other)) << other;
}

TEST_F(Manifest, NothingLeadsOutOfItsCheckpoint)
{
	ASSERT_EQ(parse(of(file_of("run/step-1/a"))), 0);
	ASSERT_EQ(parse(of(file_of("run/step-1"))), 0) << "a checkpoint of one file";
	for (const char *path : {"", "/run/step-1/a", "run/step-1/../a", "run/step-1/..", "../run/step-1/a", "run/step-10/a",
				 "run/a", "run/step-1//a", "run/step-1/./a", ".cairn/id", "run/step-1/a\\u0000b"})
		EXPECT_EQ(parse(of(file_of(path))), -EBADMSG) << path;
	const std::string hex = "72756e2f737465702d312f";	// run/step-1/
	const std::string rest = ", \"size\": 5, \"checksum\": \"\", \"mtime_s\": 1, \"mtime_ns\": 7}";
	EXPECT_EQ(parse(of("{\"path_hex\": \"" + hex + "ff\"" + rest)), 0);
	for (const char *bad : {"2e2e", "00", "f", "FF", "zz", "ff2f"})	// the last one ends in a slash
		EXPECT_EQ(parse(of("{\"path_hex\": \"" + hex + bad + "\"" + rest)), -EBADMSG) << bad;
}

TEST_F(Manifest, OtherBytesAreNotOne)
{
	EXPECT_EQ(load("run/none")->err, -ENOENT);
	for (const std::string &bad : {std::string(), std::string("{}"), std::string("[]"), of("", "2"), of("{}"), of("5"),
				       of(file_of("run/step-1/a", "", "xxh3:short")), of(file_of("run/step-1/a", "", sum + "0")),
				       of(file_of("run/step-1/a", "", "md5::0123456789abcdef0123456789abcdef")),
				       of(file_of("run/step-1/a", "", sum, "-5")), of(file_of("run/step-1/a", "", sum, "5.5")),
				       of(file_of("run/step-1/a", "", sum, "\"5\"")),
				       of(file_of("run/step-1/a", "", sum, "5", "1000000000"))})
		EXPECT_EQ(parse(bad), -EBADMSG) << bad;
	const std::string whole = of(file_of("run/step-1/a"));
	for (size_t n = 0; n < whole.size(); n++)
		EXPECT_EQ(parse(whole.substr(0, n)), -EBADMSG) << n;
}

// They say what a reader may have: as many as the file has ranges, or the manifest is none.
TEST_F(Manifest, RangesFitTheFile)
{
	auto with = [](const std::string &ranges, const std::string &bytes) {
		return of(file_of("run/step-1/a", ", \"ranges\": \"" + ranges + "\", \"range_bytes\": " + bytes, sum, "17"));
	};
	EXPECT_EQ(parse(with(other_sum + other_sum + other_sum, "8")), 0);
	EXPECT_EQ(parse(with(other_sum, "17")), 0);
	for (auto &[ranges, bytes] : std::vector<std::pair<std::string, std::string>>{
		     {other_sum, "8"}, {other_sum + other_sum, "8"}, {other_sum + other_sum + other_sum + other_sum, "8"},
		     {other_sum + other_sum + other_sum + "0", "8"}, {"", "8"}, {other_sum, "0"}, {other_sum, "-1"},
		     {std::string(32, 'g'), "17"}, {std::string(32, 'A'), "17"}})
		EXPECT_EQ(parse(with(ranges, bytes)), -EBADMSG) << ranges << " " << bytes;
}

TEST_F(Manifest, AnUploadThatCannotBeUsedIsNone)
{
	auto with = [](const std::string &id, const std::string &more) {
		return of(file_of("run/step-1/a", ", \"upload\": \"" + id + "\"" + more));
	};
	const std::string times = ", \"ctime_s\": 1, \"ctime_ns\": 2";
	for (auto &[text, good] : std::vector<std::pair<std::string, bool>>{
		     {with("abc", times), true}, {with("abc", ""), false}, {with("a&b=c", times), false}, {with("a b", times), false},
		     {with("", times), false}, {with(std::string(1024, 'x'), times), true},
		     {with(std::string(1025, 'x'), times), false}}) {
		ASSERT_EQ(parse(text), 0);
		EXPECT_EQ(load("run/step-1")->m.v[0].upload != nullptr, good) << text.substr(0, 300);
	}
}

TEST_F(Manifest, AreListedByTheirCheckpoints)
{
	put(TIER_MANIFESTS "/b/" TIER_MANIFEST, "x");
	put(TIER_MANIFESTS "/a/c/" TIER_MANIFEST, "x");
	put(TIER_MANIFESTS "/a/" TIER_MANIFEST, "x");
	put(TIER_MANIFESTS "/a/" TIER_BEGUN, "x");
	put(TIER_MANIFESTS "/a/not-" TIER_MANIFEST, "x");
	struct names names = {};
	ASSERT_EQ(manifest_list(&t, TIER_MANIFEST, &names), 0);
	ASSERT_EQ(names.n, 3u);
	EXPECT_STREQ(names.v[0], "a");
	EXPECT_STREQ(names.v[1], "a/c");
	EXPECT_STREQ(names.v[2], "b");
	names_free(&names);
}

TEST(Ranges, OfAnyFileAreFew)
{
	EXPECT_EQ(manifest_range_bytes(0), 8ull << 20);
	EXPECT_EQ(manifest_range_bytes((16384 * (8ull << 20)) - 1), 8ull << 20);
	for (uint64_t size : {1ull << 20, 1ull << 37, (1ull << 37) + 1, 1ull << 40, (1ull << 50) + 7, 1ull << 62}) {
		uint64_t bytes = manifest_range_bytes(size);
		EXPECT_EQ(bytes & (bytes - 1), 0u);
		EXPECT_LE((size + bytes - 1) / bytes, 16385u) << size;
	}
}

// A request that is made again reads the file from its beginning.
TEST(Ranges, AreThoseOfTheLastTimeItWasRead)
{
	struct tier_file f = {};
	std::string bytes(20 << 20, 'x');
	f.size = bytes.size();
	struct io_sum *m = manifest_begin_sums(&f);
	ASSERT_NE(m, nullptr);
	io_sum_add(m, bytes.data(), 17 << 20);
	ASSERT_NE(f.ranges, nullptr);
	io_sum_reset(m);
	bytes[1] = 'y';
	io_sum_add(m, bytes.data(), bytes.size());
	manifest_end_sums(&f, m);
	io_sum_free(m);
	ASSERT_EQ(strlen(f.ranges), 3 * 32u);
	std::string first(f.ranges, 32), second(f.ranges + 32, 32);
	EXPECT_NE(first, second);
	struct tier_file to = {};
	manifest_take_sums(&to, &f);
	EXPECT_STREQ(to.ranges, f.ranges);
	EXPECT_STREQ(to.sum, f.sum);
	// what was not read whole has none
	f.size += 8 << 20;
	manifest_end_sums(&f, nullptr);
	EXPECT_EQ(f.ranges, nullptr);
	free(to.ranges);
}

} // namespace

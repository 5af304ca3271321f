// SPDX-License-Identifier: MIT
//
// safetensors by the real library, and by hand: the header is refused unless all of it holds.
#include "formats_test.hh"

namespace
{

std::string file_of(const std::string &header, size_t data)
{
	return u64(header.size()) + header + std::string(data, 'd');
}

struct File : Set {
	explicit File(std::string b) { add("f", std::move(b)); }
	File() = default;
	int add(const std::string &name, std::string b)
	{
		bytes.push_back(std::move(b));
		const fmt_source s = fmt_memory(bytes.back().data(), bytes.back().size());
		return err = safetensors_read(get(), file(name), &s, &e);
	}
	std::vector<std::string> bytes;
	Error e;
	int err = 0;
};

TEST(Safetensors, Real)
{
	File f(asset("safetensors/model.safetensors"));
	ASSERT_EQ(f.err, 0) << f.e.text;
	f.finish();
	EXPECT_EQ(f->n_tensors, 6u);
	EXPECT_STREQ(f.find("a.bias")->dtype_name, "bfloat16");
	EXPECT_EQ(list(f.find("a.weight")->shape, 2), (V{4, 3}));
	EXPECT_EQ(f.find("scalar")->ndim, 0u);
	EXPECT_TRUE(f.find("\xc3\xa9\n\"quoted\""));
	EXPECT_EQ(f.find("empty")->piece[0].length, 0u);
	EXPECT_EQ(f->file[0].need, f.bytes[0].size());
	for (size_t i = 0; i < f->n_tensors; i++)
		EXPECT_EQ(fmt_set_cover(&f->tensor[i], nullptr, &f.e), 0) << f.e.text;
}

TEST(Safetensors, ShardsOfDcpAreJoined)
{
	File f;
	ASSERT_EQ(f.add("1", asset("dcp_hf/shard-00001-model-00001-of-00001.safetensors")), 0) << f.e.text;
	ASSERT_EQ(f.add("2", asset("dcp_hf/shard-00002-model-00001-of-00001.safetensors")), 0) << f.e.text;
	f.finish();
	fmt_tensor *t = f.find("layers.0.columns");
	ASSERT_TRUE(t);
	EXPECT_EQ(list(t->shape, 2), (V{4, 6}));
	uint64_t grid[2];
	EXPECT_EQ(fmt_set_cover(t, grid, &f.e), 0) << f.e.text;
	EXPECT_EQ(list(grid, 2), (V{1, 2}));
	EXPECT_EQ(list(f.find("layers.0.uneven")->shape, 2), (V{3, 2}));
}

TEST(Safetensors, AShardThatIsMissingShows)
{
	File f;
	ASSERT_EQ(f.add("2", asset("dcp_hf/shard-00002-model-00001-of-00001.safetensors")), 0);
	f.finish();
	EXPECT_EQ(fmt_set_cover(f.find("layers.0.weight"), nullptr, &f.e), -EBADMSG);
	EXPECT_TRUE(f.e.says("12 of 24")) << f.e.text;
}

TEST(Safetensors, Index)
{
	const std::string text = asset("hf_index/model.safetensors.index.json");
	Set s;
	Error e;
	safetensors_index x;

	ASSERT_EQ(safetensors_index_read(s.get(), text.data(), text.size(), &x, &e), 0) << e.text;
	EXPECT_EQ(x.n, 3u);
	EXPECT_STREQ(s->file[x.v[0].file].name, "model-00001-of-00002.safetensors");
	free(x.v);
	for (std::string bad : {"{}", "[]", "{\"weight_map\": []}", "{\"weight_map\": {\"a\": 1}}",
				"{\"weight_map\": {\"a\": \"../x\"}}", "{\"weight_map\": {\"a\": \"/x\"}}",
				"{\"weight_map\": {\"a\": \"\"}}", "{\"weight_map\": {\"a\": \"b\\u0000c\"}}"})
		EXPECT_EQ(safetensors_index_read(s.get(), bad.data(), bad.size(), &x, &e), -EBADMSG) << bad;
}

TEST(Safetensors, ByHand)
{
	File f(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
		       "\"b\":{\"shape\":[],\"data_offsets\":[8,9],\"dtype\":\"U8\"}}   ",
		       9));
	EXPECT_EQ(f.err, 0) << f.e.text;
	EXPECT_EQ(File(file_of("{}", 0)).err, 0);
	EXPECT_EQ(File(file_of("{\"__metadata__\":{\"a\":\"b\"}}", 0)).err, 0);
	EXPECT_EQ(File(file_of("{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2)).err, 0);
}

TEST(Safetensors, ShouldFail)
{
	const std::string a = "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}";
	auto one = [](const std::string &t) { return file_of("{\"a\":" + t + "}", 8); };
	const struct {
		const char *name;
		std::string bytes;
		int err;
	} bad[] = {
		{"empty", "", -EBADMSG},
		{"nine-bytes", u64(1) + "{", -EBADMSG},
		{"header-longer-than-file", u64(1000) + "{}", -EBADMSG},
		{"header-huge", u64(UINT64_MAX) + "{}", -EBADMSG},
		{"header-over-limit", u64(100000001) + "{}", -EBADMSG},
		{"not-an-object", file_of("[]", 0), -EBADMSG},
		{"no-json", file_of("{x", 0), -EBADMSG},
		{"data-cut", file_of("{\"a\":" + a + "}", 7), -EBADMSG},
		{"data-too-long", file_of("{\"a\":" + a + "}", 9), -EBADMSG},
		{"gap-at-start", one("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}"), -EBADMSG},
		{"backwards", one("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}"), -EBADMSG},
		{"overlap", file_of("{\"a\":" + a + ",\"b\":" + a + "}", 8), -EBADMSG},
		{"name-twice",
		 file_of("{\"a\":" + a + ",\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", 16),
		 -EBADMSG},
		{"size-not-shape", one("{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}"), -EBADMSG},
		{"shape-overflows",
		 one("{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,2],\"data_offsets\":[0,8]}"), -EBADMSG},
		{"bytes-overflow",
		 one("{\"dtype\":\"F32\",\"shape\":[4611686018427387906],\"data_offsets\":[0,8]}"), -EBADMSG},
		{"negative", one("{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}"), -EBADMSG},
		{"fraction", one("{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}"), -EBADMSG},
		{"half-a-byte", one("{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}"), -EBADMSG},
		{"unknown-dtype", one("{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}"), -ENOTSUP},
		{"unknown-key", one("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}"), -EBADMSG},
		{"key-twice", one("{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"),
		 -EBADMSG},
		{"no-shape", one("{\"dtype\":\"F32\",\"data_offsets\":[0,8]}"), -EBADMSG},
		{"three-offsets", one("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}"), -EBADMSG},
		{"name-with-nul", file_of("{\"a\\u0000\":" + a + "}", 8), -EBADMSG},
		{"metadata-no-string", file_of("{\"__metadata__\":{\"a\":1}}", 0), -EBADMSG},
		{"metadata-twice", file_of("{\"__metadata__\":{},\"__metadata__\":{}}", 0), -EBADMSG},
		{"sharding-no-json", file_of("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"x\"}}", 0), -EBADMSG},
		{"sharding-dimensions",
		 file_of("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"a\\\":{\\\"saved_offsets\\\":[0,0]}}\"},\"a\":" +
				 a + "}",
			 8),
		 -EBADMSG},
		{"sharding-place",
		 file_of("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"a\\\":{\\\"saved_offsets\\\":"
			 "[9223372036854775807]}}\"},\"a\":" + a + "}",
			 8),
		 -EBADMSG},
	};
	for (const auto &b : bad) {
		File f(b.bytes);
		EXPECT_EQ(f.err, b.err) << b.name << ": " << f.e.text;
		EXPECT_NE(f.e.text[0], '\0') << b.name;
	}
}

TEST(Safetensors, SameNameInTwoFiles)
{
	const std::string b = file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
	File f(b);
	EXPECT_EQ(f.add("g", b), -EBADMSG);
	EXPECT_TRUE(f.e.says("twice")) << f.e.text;
}

TEST(Safetensors, EveryCutIsRefused)
{
	const std::string whole = asset("safetensors/model.safetensors");

	for (size_t n = 0; n < whole.size(); n++)
		EXPECT_NE(File(whole.substr(0, n)).err, 0) << n;
}

} // namespace

// SPDX-License-Identifier: MIT
//
// torchsnapshot's metadata, by torchsnapshot and by hand.
#include "formats_test.hh"

namespace
{

struct Snapshot : Set {
	explicit Snapshot(const std::string &b) { err = snapshot_read(get(), b.data(), b.size(), &ranks, &e); }
	Error e;
	uint32_t ranks = 0;
	int err;
};

std::string meta(const std::string &manifest)
{
	return R"({"version": "0.1.0", "world_size": 2, "manifest": {)" + manifest + "}}";
}

std::string tensor(const std::string &file, const std::string &shape, const std::string &range,
		   const std::string &more = R"("serializer": "buffer_protocol", "replicated": false)")
{
	return R"({"type": "Tensor", "location": ")" + file + R"(", "dtype": "torch.float32", "shape": )" + shape +
	       R"(, "byte_range": )" + range + ", " + more + "}";
}

std::string shard(const std::string &at, const std::string &size, const std::string &of)
{
	return R"({"offsets": )" + at + R"(, "sizes": )" + size + R"(, "tensor": )" + of + "}";
}

TEST(Snapshot, ByTheLibrary)
{
	Snapshot s(asset("torchsnapshot/.snapshot_metadata"));
	ASSERT_EQ(s.err, 0) << s.e.text;
	s.finish();
	EXPECT_EQ(s.ranks, 1u);
	ASSERT_EQ(s.get()->n_tensors, 4u);
	const fmt_tensor *t = s.find("0/m/chunked");
	ASSERT_NE(t, nullptr);
	EXPECT_STREQ(t->dtype_name, "float32");
	EXPECT_EQ(t->n_pieces, 2u);
	EXPECT_EQ(t->piece[1].payload, FMT_RAW);
	EXPECT_EQ(fmt_set_cover(t, nullptr, nullptr), 0);
	t = s.find("0/m/a%2Fb");
	ASSERT_NE(t, nullptr);
	EXPECT_STREQ(t->dtype_name, "bfloat16");
	ASSERT_EQ(s.get()->n_blobs, 1u);
	EXPECT_STREQ(s.get()->blob[0].name, "0/m/odd");
	snapshot_files(s.get(), s.get()->blob[0].file, 99);
	EXPECT_EQ(s.get()->blob[0].length, 99u);
}

TEST(Snapshot, ShardsOfAllRanksAreOneTensor)
{
	Snapshot s(meta(R"("0/m/w": {"type": "ShardedTensor", "shards": [)" + shard("[0, 0]", "[2, 3]", tensor("a", "[2, 3]", "null")) +
			R"(]}, "11/m/w": {"type": "ShardedTensor", "shards": [)" +
			shard("[2, 0]", "[2, 3]", tensor("b", "[2, 3]", "[8, 32]")) + "]}"));
	ASSERT_EQ(s.err, 0) << s.e.text;
	s.finish();
	ASSERT_EQ(s.get()->n_tensors, 1u);
	const fmt_tensor *t = s.find("0/m/w");
	ASSERT_NE(t, nullptr);
	EXPECT_EQ(t->shape[0], 4u);
	EXPECT_EQ(t->piece[1].at, 8u);
	EXPECT_EQ(fmt_set_cover(t, nullptr, nullptr), 0);
	EXPECT_EQ(s.get()->file[1].need, 32u);
}

TEST(Snapshot, ReplicasAreTakenOnceAndOwnOnesKeepTheirRank)
{
	const std::string same = R"("serializer": "buffer_protocol", "replicated": true)";
	Snapshot s(meta(R"("0/m/r": )" + tensor("r", "[2]", "[0, 8]", same) + R"(, "1/m/r": )" +
			tensor("r", "[2]", "[0, 8]", same) + R"(, "0/m/own": )" + tensor("x", "[]", "[0, 4]") +
			R"(, "1/m/own": )" + tensor("y", "[]", "[0, 4]")));
	ASSERT_EQ(s.err, 0) << s.e.text;
	s.finish();
	ASSERT_EQ(s.get()->n_tensors, 3u);
	ASSERT_NE(s.find("0/m/r"), nullptr);
	EXPECT_EQ(s.find("0/m/r")->n_pieces, 1u);
	EXPECT_NE(s.find("1/m/own"), nullptr);
}

TEST(Snapshot, WhatIsNoBareBytesIsRefusedByName)
{
	Snapshot s(meta(R"("0/m/q": )" + tensor("q", "[4]", "null", R"("serializer": "torch_save", "replicated": false)")));
	ASSERT_EQ(s.err, 0) << s.e.text;
	ASSERT_NE(s.find("0/m/q"), nullptr);
	EXPECT_STREQ(s.find("0/m/q")->piece[0].refusal, "serialized by torch_save, which is not supported");
}

TEST(Snapshot, YamlIsNamed)
{
	Snapshot s("manifest:\n");
	EXPECT_EQ(s.err, -ENOTSUP);
	EXPECT_TRUE(s.e.says("YAML")) << s.e.text;
}

struct Dir {
	std::vector<ckpt_name> v;
	explicit Dir(std::vector<std::pair<const char *, uint64_t>> in)
	{
		for (const auto &f : in) {
			v.push_back({});
			v.back().name = f.first;
			v.back().size = f.second;
		}
		ckpt_names_sort(v.data(), v.size());
	}
};

TEST(Snapshot, CompleteWhenEachLocationIsThere)
{
	const std::string text = meta(R"("0/m/w": )" + tensor("batched/x", "[2]", "[4, 12]"));
	const struct {
		Dir d;
		ckpt_state want;
		const char *why;
	} cases[] = {{Dir({{".snapshot_metadata", 1}, {"batched/x", 12}}), CKPT_COMPLETE, ""},
		     {Dir({{".snapshot_metadata", 1}, {"batched/x", 11}}), CKPT_INCOMPLETE, "batched/x has 11 of 12 bytes"},
		     {Dir({{".snapshot_metadata", 1}}), CKPT_INCOMPLETE, "batched/x is missing"}};
	for (const auto &c : cases) {
		Snapshot s(text);
		ASSERT_EQ(s.err, 0) << s.e.text;
		s.finish();
		ckpt_kind k;
		ckpt_recognize("step_7", c.d.v.data(), c.d.v.size(), &k);
		EXPECT_EQ(k.format, CKPT_SNAPSHOT);
		EXPECT_EQ(k.step, 7u);
		k.ranks = s.ranks;
		ckpt_verdict v;
		ckpt_judge(&k, c.d.v.data(), c.d.v.size(), s.get(), nullptr, 100, &v);
		EXPECT_EQ(v.state, c.want) << v.why;
		EXPECT_STREQ(v.why, c.why);
		EXPECT_EQ(v.ranks, 2u);
	}
}

} // namespace

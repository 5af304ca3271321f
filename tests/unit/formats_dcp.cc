// SPDX-License-Identifier: MIT
//
// DCP metadata by PyTorch (global, rank-local, safetensors payload) and by hand.
#include "formats_test.hh"

namespace
{

struct Meta : Set {
	Meta() = default;
	explicit Meta(const std::string &b) { add(b); }
	int add(const std::string &b) { return err = dcp_read(get(), b.data(), b.size(), &e); }
	Error e;
	int err = 0;
};

// A pickle put together from values; protocol 4, no memo.
std::string num(uint64_t n) { return "\x8a\x08" + u64(n); }
std::string str(const std::string &s) { return "X" + u32((uint32_t)s.size()) + s; }
std::string glob(const char *module, const char *name) { return std::string("c") + module + "\n" + name + "\n"; }
std::string size(const V &v)
{
	std::string s = glob("torch", "Size") + "(";
	for (uint64_t n : v)
		s += num(n);
	return s + "t\x85R";
}
std::string object(const char *name, const std::string &state)
{
	return glob("torch.distributed.checkpoint.metadata", name) + ")\x81}(" + state + "ub";
}
std::string chunk(const V &offset, const V &sizes)
{
	return object("ChunkStorageMetadata", str("offsets") + size(offset) + str("sizes") + size(sizes));
}
std::string tensor(const V &shape, const std::string &chunks, const char *dtype = "float32")
{
	return object("TensorStorageMetadata",
		      str("properties") + glob("torch.distributed.checkpoint.metadata", "TensorProperties") +
			      ")\x81(" + glob("torch", dtype) + "N\x89NNtb" + str("size") + size(shape) +
			      str("chunks") + "](" + chunks + "e");
}
std::string index(const std::string &fqn, const std::string &offset)
{
	return object("MetadataIndex", str("fqn") + str(fqn) + str("offset") + offset + str("index") + "N");
}
std::string info(const std::string &path, uint64_t at, uint64_t len, const std::string &more = "")
{
	return object("_StorageInfo", str("relative_path") + str(path) + str("offset") + num(at) + str("length") +
					      num(len) + more);
}
std::string metadata(const std::string &state, const std::string &storage)
{
	return "\x80\x04" + object("Metadata", str("state_dict_metadata") + "}(" + state + "u" + str("storage_data") +
						       "}(" + storage + "u") + ".";
}

TEST(Dcp, Global)
{
	Meta m(asset("dcp/.metadata"));
	ASSERT_EQ(m.err, 0) << m.e.text;
	m.finish();
	EXPECT_EQ(m->n_tensors, 5u);
	ASSERT_EQ(m->n_blobs, 1u);
	EXPECT_STREQ(m->blob[0].name, "step");

	fmt_tensor *t = m.find("layers.0.columns");
	ASSERT_TRUE(t);
	EXPECT_STREQ(t->dtype_name, "bfloat16");
	EXPECT_EQ(list(t->shape, 2), (V{4, 6}));
	ASSERT_EQ(t->n_pieces, 2u);
	EXPECT_EQ(list(t->piece[1].offset, 2), (V{0, 3}));
	EXPECT_STREQ(m->file[t->piece[1].file].name, "__1_0.distcp");
	uint64_t grid[2];
	EXPECT_EQ(fmt_set_cover(t, grid, &m.e), 0);
	EXPECT_EQ(list(grid, 2), (V{1, 2}));
	for (size_t i = 0; i < m->n_files; i++)
		EXPECT_EQ(m->file[i].need, asset(std::string("dcp/") + m->file[i].name).size());
	EXPECT_FALSE(dcp_wants_header(m.get(), 0));
}

TEST(Dcp, RankLocalsAreJoinedAndReplicasTakenOnce)
{
	Meta m;
	ASSERT_EQ(m.add(asset("dcp_local/__0.metadata")), 0) << m.e.text;
	ASSERT_EQ(m.add(asset("dcp_local/__1.metadata")), 0) << m.e.text;
	m.finish();
	EXPECT_EQ(m->n_blobs, 1u);
	EXPECT_EQ(m.find("scalar")->n_pieces, 1u);
	EXPECT_STREQ(m->file[m.find("scalar")->piece[0].file].name, "__0_0.distcp");
	for (size_t i = 0; i < m->n_tensors; i++)
		EXPECT_EQ(fmt_set_cover(&m->tensor[i], nullptr, &m.e), 0) << m.e.text;

	Meta half(asset("dcp_local/__1.metadata"));
	half.finish();
	EXPECT_EQ(fmt_set_cover(half.find("layers.0.weight"), nullptr, &half.e), -EBADMSG);
}

TEST(Dcp, SafetensorsPayload)
{
	Meta m(asset("dcp_safetensors/.metadata"));
	ASSERT_EQ(m.err, 0) << m.e.text;
	m.finish();
	for (uint32_t f = 0; f < m->n_files; f++) {
		const std::string b = asset(std::string("dcp_safetensors/") + m->file[f].name);
		const fmt_source s = fmt_memory(b.data(), b.size());
		ASSERT_TRUE(dcp_wants_header(m.get(), f));
		ASSERT_EQ(dcp_read_header(m.get(), f, &s, &m.e), 0) << m.e.text;
		EXPECT_EQ(m->file[f].need, b.size());
	}
	const fmt_piece &p = m.find("layers.0.uneven")->piece[0];
	EXPECT_EQ(p.payload, FMT_RAW);
	EXPECT_EQ(p.at, 448u);
}

TEST(Dcp, JoinsOnNameAndOffset)
{
	Meta m(metadata(str("w") + tensor({4}, chunk({2}, {2}) + chunk({0}, {2})),
			index("w", size({0})) + info("a", 0, 10) + index("w", size({2})) + info("b", 5, 20)));
	ASSERT_EQ(m.err, 0) << m.e.text;
	m.finish();
	fmt_tensor *t = m.find("w");
	EXPECT_STREQ(m->file[t->piece[0].file].name, "a");
	EXPECT_EQ(t->piece[1].at, 5u);
	EXPECT_EQ(m->file[1].need, 25u);
}

// Whatever the order of the dicts: each tensor has its own place and its own path.
TEST(Dcp, TheDictsMayBeInAnyOrder)
{
	const int n = 300;
	for (int turn : {1, 7, 299}) {
		std::string state, storage, paths;
		for (int i = 0; i < n; i++) {
			int j = i * turn % n;	// prime to n, or the same order
			std::string a = "t" + std::to_string(i), b = "t" + std::to_string(j);
			state += str(a) + tensor({4}, chunk({0}, {2}) + chunk({2}, {2}));
			for (uint64_t half : {0, 2})
				storage += index(b, size({half})) + info("f", (uint64_t)j * 100 + half, 8);
			paths += str(b) + str("w") + "\x85";
			paths.insert(paths.size() - 1, str(std::to_string(j)) );
			paths.back() = '\x86';
		}
		std::string text = "\x80\x04" + object("Metadata", str("state_dict_metadata") + "}(" + state + "u" +
			str("planner_data") + "}(" + paths + "u" + str("storage_data") + "}(" + storage + "u") + ".";
		Meta m(text);
		ASSERT_EQ(m.err, 0) << m.e.text;
		m.finish();
		for (int i = 0; i < n; i++) {
			std::string name = "t" + std::to_string(i);
			const auto *t = m.find(name.c_str());
			ASSERT_NE(t, nullptr);
			ASSERT_EQ(t->n_pieces, 2u);
			EXPECT_EQ(t->piece[0].at, (uint64_t)i * 100);
			EXPECT_EQ(t->piece[1].at, (uint64_t)i * 100 + 2);
			ASSERT_EQ(t->path.n, 2u);
			EXPECT_STREQ(t->path.step[0].key, "w");
			EXPECT_EQ(t->path.step[1].key, std::to_string(i));
			EXPECT_STREQ(t->dtype_name, "float32");
		}
	}
}

TEST(Dcp, TransformsAreRefusedByName)
{
	Meta m(metadata(str("w") + tensor({4}, chunk({0}, {4})),
			index("w", size({0})) + info("a", 0, 10, str("transform_descriptors") + "](" + str("zstd") + "e")));
	ASSERT_EQ(m.err, 0) << m.e.text;
	EXPECT_STREQ(m.find("w")->piece[0].refusal, "stored through a transform that is not supported: zstd");
	Meta none(metadata(str("w") + tensor({4}, chunk({0}, {4})),
			   index("w", size({0})) + info("a", 0, 10, str("transform_descriptors") + "]")));
	EXPECT_EQ(none.find("w")->piece[0].refusal, nullptr);
}

TEST(Dcp, ChunkWithoutAFile)
{
	Meta m(metadata(str("w") + tensor({4}, chunk({0}, {4})), ""));
	ASSERT_EQ(m.err, 0) << m.e.text;
	EXPECT_EQ(m.find("w")->piece[0].file, FMT_NO_FILE);
	EXPECT_TRUE(m.find("w")->piece[0].refusal);
}

TEST(Dcp, UnknownDtypeIsListed)
{
	Meta m(metadata(str("w") + tensor({4}, chunk({0}, {4}), "float3"), index("w", size({0})) + info("a", 0, 10)));
	ASSERT_EQ(m.err, 0) << m.e.text;
	EXPECT_EQ(m.find("w")->dtype, nullptr);
	EXPECT_STREQ(m.find("w")->dtype_name, "float3");
}

TEST(Dcp, ShouldFail)
{
	const std::string w = str("w") + tensor({4}, chunk({0}, {4})), i = index("w", size({0}));
	const struct {
		const char *name;
		std::string bytes;
		const char *says;
	} bad[] = {
		{"not-metadata", "\x80\x04}.", "not the Metadata"},
		{"path-up", metadata(w, i + info("../a", 0, 10)), "outside"},
		{"path-absolute", metadata(w, i + info("/etc/passwd", 0, 10)), "outside"},
		{"path-inner-up", metadata(w, i + info("a/../../b", 0, 10)), "outside"},
		{"path-empty", metadata(w, i + info("", 0, 10)), "outside"},
		{"path-nul", metadata(w, i + info(std::string("a\0b", 3), 0, 10)), "outside"},
		{"extent-overflows", metadata(w, i + info("a", INT64_MAX, 1)), "2^63"},
		{"offset-negative", metadata(w, i + info("a", UINT64_MAX, 1)), "no path, offset or length"},
		{"stored-twice", metadata(w, i + info("a", 0, 1) + i + info("b", 0, 1)), "twice"},
		{"chunk-dimensions", metadata(str("w") + tensor({4}, chunk({0, 0}, {4, 1})), ""), "dimensions"},
		{"chunk-place", metadata(str("w") + tensor({4}, chunk({INT64_MAX}, {4})), ""), "offset"},
		{"no-tensor", metadata(str("w") + "N", ""), "neither"},
		{"name-no-string", metadata("K\x01N", ""), "name"},
		{"65-dimensions", metadata(str("w") + tensor(V(65, 1), ""), ""), "as a size"},
		{"index-no-index", metadata(w, str("w") + info("a", 0, 1)), "MetadataIndex"},
		{"name-with-nul", metadata(str(std::string("a\0b", 3)) + tensor({4}, ""), ""), "NUL"},
	};
	for (const auto &b : bad) {
		Meta m(b.bytes);
		EXPECT_EQ(m.err, -EBADMSG) << b.name << ": " << m.e.text;
		EXPECT_TRUE(m.e.says(b.says)) << b.name << ": " << m.e.text;
	}
}

TEST(Dcp, AnotherShapeInAnotherRank)
{
	Meta m(metadata(str("w") + tensor({4}, chunk({0}, {4})), index("w", size({0})) + info("a", 0, 10)));
	EXPECT_EQ(m.add(metadata(str("w") + tensor({5}, chunk({0}, {4})), index("w", size({0})) + info("b", 0, 10))),
		  -EBADMSG);
}

// One list of chunks under many names: what it unfolds to is bounded by the input.
TEST(Dcp, SharedChunksDoNotUnfoldWithoutBound)
{
	std::string chunks, state;
	for (int k = 0; k < 20000; k++)
		chunks += "h\x01";
	for (int k = 0; k < 20000; k++)
		state += str("w" + std::to_string(k)) + "h\x02";
	const std::string shared = "\x80\x04" + chunk({0}, {4}) + "q\x01" "0" + tensor({4}, chunks) + "q\x02" "0" +
				   object("Metadata", str("state_dict_metadata") + "}(" + state + "u" +
							      str("storage_data") + "}") + ".";
	Meta m(shared);
	EXPECT_EQ(m.err, -E2BIG) << m.e.text;
}

TEST(Dcp, AnyByteChanged)
{
	const std::string whole = asset("dcp/.metadata");

	for (size_t i = 0; i < whole.size(); i++)
		for (int bit : {0x01, 0x80, 0xff}) {
			std::string b = whole;
			b[i] = (char)(b[i] ^ bit);
			Meta m(b);
			m.finish();
		}
}

} // namespace

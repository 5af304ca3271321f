// SPDX-License-Identifier: MIT
//
// A checkpoint's files read through callbacks: which are opened, and who may end it.
#include <map>

#include "formats_test.hh"

namespace
{

struct Files {
	explicit Files(std::map<std::string, std::string> in) : bytes(std::move(in))
	{
		for (const auto &f : bytes) {
			if (f.first.find('/') != std::string::npos)
				continue;
			c.v = (ckpt_name *)reallocarray(c.v, c.n + 1, sizeof(*c.v));
			c.v[c.n] = {};
			c.v[c.n].name = strdup(f.first.c_str());
			c.v[c.n++].size = f.second.size();
		}
		ckpt_recognize("run", c.v, c.n, &c.kind);
	}
	~Files() { ckpt_content_free(&c); }
	int read(ckpt_depth depth, int answer = 0)
	{
		stop = answer;
		ckpt_io io = {};
		io.ctx = this;
		io.open = open;
		io.close = [](void *, fmt_source *) {};
		io.bad = bad;
		io.max_bytes = max_bytes;
		return ckpt_content_read(&c, &io, depth);
	}
	static int open(void *ctx, const char *name, fmt_source *out)
	{
		auto *f = (Files *)ctx;
		auto at = f->bytes.find(name);
		if (at == f->bytes.end())
			return -ENOENT;
		f->opened.push_back(name);
		*out = fmt_memory(at->second.data(), at->second.size());
		return 0;
	}
	static int bad(void *ctx, const char *name, const fmt_error *, int)
	{
		auto *f = (Files *)ctx;
		f->told.push_back(name);
		return f->stop;
	}
	std::map<std::string, std::string> bytes;
	std::vector<std::string> opened, told;
	ckpt_content c = {};
	int stop = 0;
	uint64_t max_bytes = 1 << 20;
};

using Names = std::vector<std::string>;

const char *const one = "safetensors/model.safetensors";

// An object of a snapshot ends where torch.save says, for nothing else tells its length.
TEST(Content, ObjectsOfSnapshotsAreWhole)
{
	const std::string meta = R"({"version": "0.1.0", "world_size": 1, "manifest": {"0/m/o": {"type": "object",
		"location": "0/m/o", "serializer": "torch_save", "obj_type": "builtins.set", "replicated": false}}})";
	const std::string object = saved("N");
	for (size_t cut : {0, 1}) {
		Files f({{".snapshot_metadata", meta}, {"0/m/o", object.substr(cut)}});
		ASSERT_EQ(f.read(CKPT_SOUND), 0);
		EXPECT_EQ(f.told.size(), cut);
		ASSERT_NE(f.c.set, nullptr);
		EXPECT_EQ(f.c.set->blob[0].length, object.size() - cut);
		ckpt_verdict v;
		ckpt_judge(&f.c.kind, f.c.v, f.c.n, f.c.set, nullptr, 100, &v);
		EXPECT_EQ(v.state, cut ? CKPT_INCOMPLETE : CKPT_COMPLETE) << v.why;
	}
}

TEST(Content, WhatIsBrokenIsToldAndTheRestRead)
{
	Files f({{"a.safetensors", "no"}, {"b.safetensors", asset(one)}, {"c.safetensors", "no"}});
	EXPECT_EQ(f.read(CKPT_SOUND), 0);
	EXPECT_EQ(f.told, (Names{"a.safetensors", "c.safetensors"}));
	EXPECT_NE(f.c.v[0].fault, nullptr);
	EXPECT_EQ(f.c.v[1].fault, nullptr);
	EXPECT_GT(f.c.set->n_tensors, 0u);
}

TEST(Content, TheFirstBrokenOneMayEndIt)
{
	Files f({{"a.safetensors", asset(one)}, {"b.safetensors", "no"}, {"c.safetensors", "no"}});
	EXPECT_EQ(f.read(CKPT_TENSORS, -EIO), -EIO);
	EXPECT_EQ(f.told, Names{"b.safetensors"});
	EXPECT_EQ(f.opened, (Names{"a.safetensors", "b.safetensors"}));
}

TEST(Content, DepthSaysWhichFilesAreOpened)
{
	const std::map<std::string, std::string> files = {
		{"model.safetensors", asset(one)}, {"optimizer.pt", "no"}, {"trainer_state.json", "{}"}};
	Files tensors(files), sound(files), all(files);
	EXPECT_EQ(tensors.read(CKPT_TENSORS), 0);
	EXPECT_EQ(tensors.opened, Names{"model.safetensors"});
	EXPECT_EQ(sound.read(CKPT_SOUND), 0);
	EXPECT_EQ(sound.told, Names{"optimizer.pt"});
	EXPECT_EQ(all.read(CKPT_ALL), 0);
	EXPECT_EQ(all.told, Names{"optimizer.pt"});

	Files torch({{"model.pt", asset("torch_save/model.pt")}, {"x.json", "{}"}});
	EXPECT_EQ(torch.read(CKPT_TENSORS), 0);
	EXPECT_GT(torch.c.set->n_tensors, 0u);
}

// How many ranks DeepSpeed's model states tell of.
TEST(Content, RanksAreToldByModelStates)
{
	auto str = [](const std::string &s) { return "X" + u32((uint32_t)s.size()) + s; };
	const std::string two = str("dp_world_size") + "K\2", zero = str("param_shapes") + "]", no = str("param_shapes") + "N";
	const struct {
		std::string object;
		uint32_t want;
	} cases[] = {
		{"}(" + two + zero + "u", 2},	{"}(" + zero + two + "u", 2},
		{"}(" + two + no + "u", 0},	{"}(" + two + "u", 0},
		{"}(" + zero + "u", 0},		{"}(" + zero + str("dp_world_size") + str("2") + "u", 0},
		{"](" + two + zero + "e", 0},	{"}(" + zero + str("dp_world_size") + "\x8a\5" + u32(1) + "\1u", 0},
	};
	for (const auto &c : cases)
		for (ckpt_depth depth : {CKPT_TENSORS, CKPT_SOUND, CKPT_ALL}) {
			Files f({{"mp_rank_00_model_states.pt", saved(c.object)},
				 {"zero_pp_rank_0_mp_rank_00_optim_states.pt", asset("torch_save/model.pt")}});
			EXPECT_EQ(f.read(depth), 0);
			EXPECT_EQ(f.c.kind.ranks, c.want);
		}
	// the first that can be read
	Files f({{"mp_rank_00_model_states.pt", "no"}, {"mp_rank_01_model_states.pt", saved("}(" + two + zero + "u")}});
	EXPECT_EQ(f.read(CKPT_SOUND), 0);
	EXPECT_EQ(f.c.kind.ranks, 2u);
	EXPECT_EQ(f.told, Names{"mp_rank_00_model_states.pt"});
}

TEST(Content, MetadataTooLargeIsNotRead)
{
	Files f({{".metadata", std::string((1 << 20) + 1, '\x80')}, {"__0_0.distcp", ""}});
	EXPECT_EQ(f.read(CKPT_TENSORS, -EFBIG), -EFBIG);
	EXPECT_EQ(f.told, Names{".metadata"});
}

// Metadata that is too large to be read as a whole: only its files are known.
TEST(Content, LargeMetadataIsListed)
{
	const std::string meta = asset("dcp/.metadata"), a = asset("dcp/__0_0.distcp"), b = asset("dcp/__1_0.distcp");
	auto state = [&](std::map<std::string, std::string> files) {
		Files f(files);
		f.max_bytes = 1000;
		ckpt_verdict v;
		EXPECT_EQ(f.read(CKPT_SOUND), 0);
		ckpt_judge(&f.c.kind, f.c.v, f.c.n, f.c.set, nullptr, 1e6, &v);
		return v.state;
	};
	EXPECT_EQ(state({{".metadata", meta}, {"__0_0.distcp", a}, {"__1_0.distcp", b}}), CKPT_COMPLETE);
	EXPECT_NE(state({{".metadata", meta}, {"__0_0.distcp", a}}), CKPT_COMPLETE);
	EXPECT_NE(state({{".metadata", meta}, {"__0_0.distcp", a}, {"__1_0.distcp", b.substr(1)}}), CKPT_COMPLETE);
	EXPECT_NE(state({{".metadata", meta.substr(0, 1500)}, {"__0_0.distcp", a}, {"__1_0.distcp", b}}),
		  CKPT_COMPLETE);

	Files f({{".metadata", meta}, {"__0_0.distcp", a}, {"__1_0.distcp", b}});
	f.max_bytes = 1000;	// without tensors it is of no use
	EXPECT_EQ(f.read(CKPT_TENSORS), 0);
	EXPECT_EQ(f.told, Names{".metadata"});
}

} // namespace

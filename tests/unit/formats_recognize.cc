// SPDX-License-Identifier: MIT
//
// What a list of names is, and when it is whole.
#include <algorithm>

#include "formats_test.hh"

namespace
{

struct Dir {
	explicit Dir(const std::string &name, std::vector<std::string> names) : files(std::move(names))
	{
		std::sort(files.begin(), files.end());
		for (const std::string &f : files) {
			ckpt_name n = {};
			n.name = f.c_str();
			n.size = 1 << 20;
			v.push_back(n);
		}
		ckpt_recognize(name.c_str(), v.data(), v.size(), &kind);
	}
	ckpt_name &at(const std::string &name)
	{
		for (ckpt_name &n : v)
			if (name == n.name)
				return n;
		throw std::runtime_error(name);
	}
	ckpt_verdict judge(const fmt_set *set = nullptr, const safetensors_index *x = nullptr, double quiet = 3600)
	{
		ckpt_verdict out;
		ckpt_judge(&kind, v.data(), v.size(), set, x, quiet, &out);
		return out;
	}
	std::vector<std::string> files;
	std::vector<ckpt_name> v;
	ckpt_kind kind;
};

struct Dcp : Set {
	explicit Dcp(std::vector<std::string> metadata)
	{
		Error e;
		for (const std::string &m : metadata) {
			const std::string b = asset(m);
			EXPECT_EQ(dcp_read(get(), b.data(), b.size(), &e), 0) << e.text;
		}
		finish();
	}
};

TEST(Recognize, Formats)
{
	const struct {
		const char *dir;
		std::vector<std::string> names;
		ckpt_format want;
		int64_t step;
	} cases[] = {
		{"x", {}, CKPT_NONE, -1},
		{"x", {"README", "a.txt"}, CKPT_NONE, -1},
		{"x", {".metadata", "__0_0.distcp"}, CKPT_DCP, -1},
		{"step-100", {".metadata", "__0_0.distcp"}, CKPT_DCP, 100},
		{"step-100", {"__0_0.distcp", ".metadata.tmp"}, CKPT_DCP, 100},
		{"ckpt_12", {"__0_0.distcp"}, CKPT_DCP, 12},
		{"x", {"__0_0.distcp", "__0.metadata"}, CKPT_DCP_LOCAL, -1},
		{"x", {"__0_0.distcp", "__0.metadata", ".metadata"}, CKPT_DCP, -1},
		{"iter_0000010", {".metadata", "__0_0.distcp", "__0_1.distcp", "common.pt", "metadata.json"}, CKPT_MEGATRON, 10},
		{"iter_0000010", {"common.pt"}, CKPT_MEGATRON, 10}, // written first
		{"x", {"common.pt", "metadata.json"}, CKPT_MEGATRON, -1},
		{"x", {"common.pt", "model.pt"}, CKPT_TORCH, -1},
		{"x", {"model.safetensors"}, CKPT_SAFETENSORS, -1},
		{"x", {"model-00001-of-00002.safetensors", "model.safetensors.index.json"}, CKPT_SAFETENSORS, -1},
		{"x", {"shard-00001-model-00001-of-00001.safetensors"}, CKPT_HF_SHARDS, -1},
		{"checkpoint-500", {"model.safetensors", "optimizer.pt"}, CKPT_TRAINER, 500},
		{"x", {"model.safetensors", "trainer_state.json"}, CKPT_TRAINER, -1},
		{"global_step20", {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"}, CKPT_DEEPSPEED, 20},
		{"7", {"_CHECKPOINT_METADATA", "manifest.ocdbt", "d"}, CKPT_ORBAX, 7},
		{"7.orbax-checkpoint-tmp-1", {"d"}, CKPT_ORBAX, 7},
		{"x", {"model.pt"}, CKPT_TORCH, -1},
		{"x", {"pytorch_model.bin"}, CKPT_TORCH, -1},
		{"x", {"data.bin"}, CKPT_NONE, -1},
		{"x", {"a.ckpt"}, CKPT_NONE, -1}, // each stands for itself
		// a number alone: a step, or a job, in which files of steps are
		{"4711", {"model.pt", "optimizer.pt"}, CKPT_TORCH, 4711},
		{"4711", {"step_100.pt", "step_200.pt"}, CKPT_TORCH, -1},
		{"4711", {"iter-9.safetensors", "iter-10.safetensors", "iter-20.safetensors"}, CKPT_SAFETENSORS, -1},
		{"4711", {"step_100.pt"}, CKPT_TORCH, 4711},
		{"100", {"step_100.pt"}, CKPT_TORCH, 100},
		{"100", {"ckpt_0.pt", "ckpt_1.pt", "ckpt_2.pt"}, CKPT_TORCH, 100}, // of ranks
		{"100", {"ckpt_8.pt", "ckpt_9.pt"}, CKPT_TORCH, 100}, // of another node's
		{"4711", {"model_1.pt", "model_2.pt"}, CKPT_TORCH, 4711}, // epochs, or ranks
		{"step-3", {"step_100.pt", "step_200.pt"}, CKPT_TORCH, 3},
	};
	for (const auto &c : cases) {
		Dir d(c.dir, c.names);
		EXPECT_EQ(d.kind.format, c.want) << c.dir << " " << ckpt_format_name(d.kind.format);
		EXPECT_EQ(d.kind.has_step, c.step >= 0) << c.dir;
		if (c.step >= 0) {
			EXPECT_EQ(d.kind.step, (uint64_t)c.step) << c.dir;
		}
	}
	Dir run("run1", {"common.pt", "step-1"});
	run.at("step-1").dir = true;
	ckpt_kind k;
	ckpt_recognize("run1", run.v.data(), run.v.size(), &k);
	EXPECT_EQ(k.format, CKPT_TORCH); // a file beside checkpoints
	ckpt_recognize_file("epoch=1-step=52.ckpt", &k);
	EXPECT_EQ(k.format, CKPT_LIGHTNING);
	EXPECT_EQ(k.step, 52u);
	ckpt_recognize_file("notes.txt", &k);
	EXPECT_EQ(k.format, CKPT_NONE);
}

TEST(Judge, DcpNeedsEveryFileAtItsSize)
{
	Dcp s({"dcp/.metadata"});
	Dir d("step-7", {".metadata", "__0_0.distcp", "__1_0.distcp"});
	ckpt_verdict v = d.judge(s.get());
	EXPECT_EQ(v.state, CKPT_COMPLETE) << v.why;
	EXPECT_EQ(v.ranks, 2u);
	EXPECT_EQ(v.ranks_expected, 2u);

	d.at("__1_0.distcp").size = 9081;
	v = d.judge(s.get());
	EXPECT_EQ(v.state, CKPT_INCOMPLETE);
	EXPECT_STREQ(v.why, "__1_0.distcp has 9081 of 9082 bytes");
	EXPECT_EQ(v.ranks, 1u);
	d.at("__1_0.distcp").size = 9082;
	EXPECT_EQ(d.judge(s.get()).state, CKPT_COMPLETE);

	v = Dir("step-7", {".metadata", "__0_0.distcp"}).judge(s.get());
	EXPECT_STREQ(v.why, "__1_0.distcp is missing");
	EXPECT_EQ(v.ranks, 1u);
	EXPECT_EQ(v.ranks_expected, 2u);
	v = Dir("step-7", {"__0_0.distcp", "__1_0.distcp"}).judge();
	EXPECT_STREQ(v.why, ".metadata is missing");
}

TEST(Judge, OpenOrRecentIsWriting)
{
	Dcp s({"dcp/.metadata"});
	Dir d("x", {".metadata", "__0_0.distcp", "__1_0.distcp"});
	d.at("__0_0.distcp").open = true; // overwritten in place, .metadata still stands
	EXPECT_EQ(d.judge(s.get()).state, CKPT_WRITING);
	EXPECT_STREQ(d.judge(s.get()).why, "__0_0.distcp is open");
	Dir e("x", {".metadata", "__0_0.distcp"});
	EXPECT_EQ(e.judge(s.get(), nullptr, 5).state, CKPT_WRITING);
	EXPECT_EQ(e.judge(s.get(), nullptr, 500).state, CKPT_INCOMPLETE);
}

TEST(Judge, RankLocalIsWholeWhenTheUnionCovers)
{
	Dcp both({"dcp_local/__0.metadata", "dcp_local/__1.metadata"}), one({"dcp_local/__0.metadata"});
	Dir d("x", {"__0.metadata", "__1.metadata", "__0_0.distcp", "__1_0.distcp"});
	EXPECT_EQ(d.judge(both.get()).state, CKPT_COMPLETE);
	EXPECT_EQ(d.judge(both.get()).ranks, 2u);
	ckpt_verdict v = Dir("x", {"__0.metadata", "__0_0.distcp"}).judge(one.get());
	EXPECT_EQ(v.state, CKPT_INCOMPLETE);
	EXPECT_NE(std::string(v.why).find("pieces hold"), std::string::npos) << v.why;
}

TEST(Judge, IndexNamesEveryFileAndTensor)
{
	const std::string text = asset("hf_index/model.safetensors.index.json"),
			  b = asset("hf_index/model-00001-of-00002.safetensors");
	const fmt_source src = fmt_memory(b.data(), b.size());
	safetensors_index x;
	Error e;
	Set s;

	ASSERT_EQ(safetensors_index_read(s.get(), text.data(), text.size(), &x, &e), 0);
	ASSERT_EQ(safetensors_read(s.get(), s.file("model-00001-of-00002.safetensors"), &src, &e), 0);
	s.finish();
	Dir d("x", {"model-00001-of-00002.safetensors", "model.safetensors.index.json"});
	EXPECT_STREQ(d.judge(s.get(), &x).why, "model-00002-of-00002.safetensors is missing");
	Dir f("x", {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
		    "model.safetensors.index.json"});
	EXPECT_STREQ(f.judge(s.get(), &x).why, "layers.1.weight is in the index but in no file");
	EXPECT_STREQ(Dir("x", {"model-00001-of-00002.safetensors"}).judge().why,
		     "1 of 2 model-*.safetensors files exist");
	free(x.v);
}

TEST(Judge, Markers)
{
	EXPECT_STREQ(Dir("checkpoint-5", {"model.safetensors"}).judge().why, "trainer_state.json is missing");
	EXPECT_EQ(Dir("checkpoint-5", {"model.safetensors", "trainer_state.json"}).judge().state, CKPT_COMPLETE);
	EXPECT_EQ(Dir("tmp-checkpoint-5", {"model.safetensors", "trainer_state.json"}).judge().state, CKPT_INCOMPLETE);
	EXPECT_EQ(Dir("7.orbax-checkpoint-tmp", {"d"}).judge().state, CKPT_INCOMPLETE);
	// torch_checkpointing: all ranks' files may be there, or one's
	EXPECT_EQ(Dir("tmp_step_5", {"model_0.pt", "model_1.pt", "metadata.pkl"}).judge().state, CKPT_INCOMPLETE);
	EXPECT_EQ(Dir("step_5", {"model_0.pt", "model_1.pt", "metadata.pkl"}).judge().state, CKPT_COMPLETE);
	EXPECT_EQ(Dir("7", {"_CHECKPOINT_METADATA"}).judge().state, CKPT_COMPLETE);
	EXPECT_STREQ(Dir("iter_1", {".metadata", "common.pt"}).judge().why, "metadata.json is missing");
	EXPECT_STREQ(Dir("iter_1", {"common.pt"}).judge().why, ".metadata is missing");
	EXPECT_STREQ(Dir("iter_1", {".metadata", "metadata.json"}).judge().why, "common.pt is missing");
	EXPECT_EQ(Dir("iter_1", {".metadata"}).judge().state, CKPT_COMPLETE); // by DCP alone
	Dir t("x", {"model.pt"});
	t.at("model.pt").fault = "no end record of a zip archive: truncated, or not a zip";
	EXPECT_EQ(t.judge().state, CKPT_INCOMPLETE);
}

TEST(Judge, DeepSpeedNeedsEveryRankThatItsModelStatesTell)
{
	const std::string model = "mp_rank_00_model_states.pt", o0 = "zero_pp_rank_0_mp_rank_00_optim_states.pt",
			  o1 = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
	auto judge = [](std::vector<std::string> names, uint32_t ranks, uint32_t here, uint32_t expected,
			const std::string &why) {
		Dir d("global_step2", names);
		d.kind.ranks = ranks;
		ckpt_verdict v = d.judge();
		EXPECT_EQ(v.why, why);
		EXPECT_EQ(v.ranks, here);
		EXPECT_EQ(v.ranks_expected, expected);
		EXPECT_EQ(v.state, why.empty() ? CKPT_COMPLETE : CKPT_INCOMPLETE);
	};
	judge({model, o0, o1}, 2, 2, 2, "");
	judge({model, o0}, 2, 1, 2, "1 of 2 ranks");
	judge({model}, 2, 0, 2, "0 of 2 ranks");
	judge({model, o0}, 0, 1, 1, "");		// not told: by the checkpoint before
	judge({o0, o1}, 0, 2, 2, "no *_model_states.pt exists");
	judge({model}, 0, 0, 0, "");			// without ZeRO
	const std::string z0 = "zero_pp_rank_0_mp_rank_00_model_states.pt", z1 = "zero_pp_rank_1_mp_rank_00_model_states.pt";
	judge({z0, z1, o0, o1}, 2, 2, 2, "");		// stage 3
	judge({z0, o0, o1}, 2, 1, 2, "1 of 2 ranks");
	judge({z0, z1, o0}, 2, 1, 2, "1 of 2 ranks");
	judge({z0, z1}, 0, 2, 2, "");			// no optimizer
	const std::string m1 = "mp_rank_01_model_states.pt", t0 = "zero_pp_rank_0_mp_rank_01_optim_states.pt",
			  t1 = "zero_pp_rank_1_mp_rank_01_optim_states.pt";
	judge({model, m1, o0, o1, t0, t1}, 2, 4, 4, "");
	judge({model, m1, o0, o1, t0}, 2, 3, 4, "3 of 4 ranks");
}

TEST(Judge, OverwrittenUntilItIsCommittedAgain)
{
	Dcp s({"dcp/.metadata"});
	Dir d("x", {".metadata", "__0_0.distcp", "__1_0.distcp"});
	d.at(".metadata").mtime = {100, 5};
	d.at("__0_0.distcp").over = {{100, 5}, 0};
	EXPECT_EQ(d.judge(s.get()).state, CKPT_INCOMPLETE);
	EXPECT_STREQ(d.judge(s.get()).why, "__0_0.distcp was overwritten later than .metadata");
	EXPECT_EQ(d.judge(s.get(), nullptr, 5).state, CKPT_WRITING);
	d.at(".metadata").mtime = {100, 6};
	EXPECT_EQ(d.judge(s.get()).state, CKPT_COMPLETE);

	Dcp both({"dcp_local/__0.metadata", "dcp_local/__1.metadata"});
	Dir l("x", {"__0.metadata", "__1.metadata", "__0_0.distcp", "__1_0.distcp"});
	l.at("__1.metadata").mtime = {7, 0};
	l.at("__1_0.distcp").over = {{7, 0}, 0};
	EXPECT_STREQ(l.judge(both.get()).why, "__1_0.distcp was overwritten later than __1.metadata");
}

// Two saves within a tick of the clock: the committing files have one mtime.
TEST(Judge, OverwrittenAndCommittedWithinATick)
{
	Dcp s({"dcp/.metadata"});
	Dir d("x", {".metadata", "__0_0.distcp", "__1_0.distcp"});
	d.at(".metadata").mtime = {100, 5};
	d.at(".metadata").ino = 8;
	d.at("__0_0.distcp").over = {{100, 5}, 7};
	EXPECT_EQ(d.judge(s.get()).state, CKPT_COMPLETE) << d.judge(s.get()).why;
	d.at("__0_0.distcp").over = {{100, 5}, 8};
	EXPECT_EQ(d.judge(s.get()).state, CKPT_INCOMPLETE);
	// marks of earlier versions, and files without a number: the time decides
	d.at("__0_0.distcp").over = {{100, 5}, 0};
	EXPECT_EQ(d.judge(s.get()).state, CKPT_INCOMPLETE);
	d.at("__0_0.distcp").over = {{100, 5}, 7};
	d.at(".metadata").ino = 0;
	EXPECT_EQ(d.judge(s.get()).state, CKPT_INCOMPLETE);
}

TEST(Judge, MarkOfAnOverwrittenShard)
{
	char buf[CKPT_OVER_BYTES];
	ckpt_over t = {};
	const ckpt_over numbered = {{12, 34}, UINT64_MAX}, plain = {{12, 34}, 0};
	const std::string sum = "xxh3:" + std::string(32, 'a');
	EXPECT_LT(ckpt_over_format(&numbered, sum.c_str(), buf), 96);
	EXPECT_EQ(buf, "12.000000034 " + sum + " ino=18446744073709551615");
	EXPECT_FALSE(ckpt_over_parse(buf, sum.c_str(), &t));
	EXPECT_TRUE(ckpt_over_parse(buf, "xxh3:aa", &t));
	EXPECT_EQ(t.ino, UINT64_MAX);
	ckpt_over_format(&numbered, "", buf);
	EXPECT_STREQ(buf, "12.000000034 ino=18446744073709551615");
	EXPECT_TRUE(ckpt_over_parse(buf, "", &t));
	EXPECT_EQ(t.ino, UINT64_MAX);
	EXPECT_TRUE(ckpt_over_parse("12.000000034 ino=x", "", &t));
	EXPECT_EQ(t.ino, 0u);
	EXPECT_EQ((size_t)ckpt_over_format(&plain, "xxh3:ab", buf), strlen("12.000000034 xxh3:ab"));
	EXPECT_STREQ(buf, "12.000000034 xxh3:ab");
	EXPECT_TRUE(ckpt_over_parse(buf, "xxh3:cd", &t));
	EXPECT_EQ(t.mtime.tv_sec, 12);
	EXPECT_EQ(t.mtime.tv_nsec, 34);
	EXPECT_EQ(t.ino, 0u);
	EXPECT_TRUE(ckpt_over_parse(buf, "", &t));
	EXPECT_FALSE(ckpt_over_parse(buf, "xxh3:ab", &t)); // the committed bytes again
	ckpt_over_format(&plain, "", buf);
	EXPECT_STREQ(buf, "12.000000034");
	EXPECT_TRUE(ckpt_over_parse(buf, "xxh3:ab", &t));
	for (const char *bad : {"", "x", "1", "1.", "1.x", "1.1000000000", ".5"})
		EXPECT_FALSE(ckpt_over_parse(bad, "", &t)) << bad;
}

TEST(Judge, WhatCommitsAShard)
{
	char buf[64];
	EXPECT_STREQ(ckpt_commit_of("__12_0.distcp", 0, buf), ".metadata");
	EXPECT_STREQ(ckpt_commit_of("__12_0.distcp", 1, buf), "__12.metadata");
	EXPECT_STREQ(ckpt_commit_of("model-00001-of-00002.safetensors", 0, buf), "model.safetensors.index.json");
	EXPECT_EQ(ckpt_commit_of("model-00001-of-00002.safetensors", 1, buf), nullptr);
	for (const char *name : {".metadata", "model.pt", "__0.distcp", "shard-00001-model-00001-of-00001.safetensors"})
		EXPECT_EQ(ckpt_commit_of(name, 0, buf), nullptr) << name;
}

TEST(Judge, RanksOfTheCheckpointBefore)
{
	Dir d("global_step2", {"zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"});
	ckpt_verdict v = d.judge();
	EXPECT_EQ(v.state, CKPT_COMPLETE) << v.why;
	EXPECT_EQ(v.ranks, 1u);
	ckpt_expect_ranks(&d.kind, 2, 3600, &v);
	EXPECT_EQ(v.state, CKPT_INCOMPLETE);
	EXPECT_EQ(v.ranks_expected, 2u);
	v = d.judge(nullptr, nullptr, 3);
	EXPECT_EQ(v.state, CKPT_WRITING); // no marker: not before it is quiet
}

} // namespace

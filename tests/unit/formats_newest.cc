// SPDX-License-Identifier: MIT
//
// Which of many checkpoints is the newest safe one.
#include <map>
#include <set>

#include "formats_test.hh"

namespace
{

struct Found {
	~Found()
	{
		for (size_t i = 0; i < n; i++)
			free(v[i].path);
	}
	void add(const std::string &path, int64_t step, time_t time, ckpt_format f = CKPT_DCP)
	{
		ckpt_found c = {};
		c.path = strdup(path.c_str());
		c.kind.format = f;
		c.kind.has_step = step >= 0;
		c.kind.step = step >= 0 ? (uint64_t)step : 0;
		c.time.tv_sec = time;
		v.push_back(c);
	}
	std::string newest(std::map<std::string, int> safe)
	{
		n = sorted ? n : ckpt_found_sort(v.data(), v.size());
		sorted = true;
		struct Ctx {
			Found *f;
			std::map<std::string, int> *safe;
		} ctx = {this, &safe};
		asked = 0;
		ssize_t i = ckpt_newest_safe(v.data(), n, [](void *p, size_t at) {
			Ctx *c = (Ctx *)p;
			c->f->asked++;
			return (*c->safe)[c->f->v[at].path];
		}, &ctx);
		error = i < 0 ? (int)i : 0;
		return i < 0 ? "" : v[(size_t)i].path;
	}
	std::string before(const std::string &path)
	{
		for (size_t i = 0; i < n; i++)
			if (path == v[i].path) {
				ssize_t b = ckpt_found_before(v.data(), n, i);
				return b < 0 ? "" : v[(size_t)b].path;
			}
		return "?";
	}
	std::vector<ckpt_found> v;
	size_t n = 0;
	int asked = 0, error = 0;
	bool sorted = false;
};

TEST(Newest, ByStepInOneDirectory)
{
	Found f;
	f.add("step-10", 10, 500); // copied last
	f.add("step-30", 30, 100);
	f.add("step-20", 20, 300);
	EXPECT_EQ(f.newest({{"step-10", 1}, {"step-20", 1}, {"step-30", 1}}), "step-30");
	EXPECT_EQ(f.asked, 1);
	EXPECT_EQ(f.newest({{"step-10", 1}, {"step-20", 1}}), "step-20");
	EXPECT_EQ(f.newest({}), "");
	EXPECT_EQ(f.error, -ENOENT);
	EXPECT_EQ(f.newest({{"step-30", -ENOMEM}}), "");
	EXPECT_EQ(f.error, -ENOMEM);
	EXPECT_EQ(f.before("step-30"), "step-20");
	EXPECT_EQ(f.before("step-10"), "");
}

TEST(Newest, ByTimeAcrossDirectories)
{
	Found f;
	f.add("old/step-900", 900, 100);
	f.add("new/step-10", 10, 300);
	f.add("new/step-20", 20, 200); // its run's newest, by step
	f.add("new/final", -1, 250);
	EXPECT_EQ(f.newest({{"old/step-900", 1}, {"new/step-10", 1}, {"new/step-20", 1}}), "new/step-20");
	EXPECT_EQ(f.newest({{"old/step-900", 1}, {"new/step-20", 1}, {"new/final", 1}}), "new/final");
	EXPECT_EQ(f.newest({{"old/step-900", 1}}), "old/step-900");
	EXPECT_EQ(f.before("new/final"), "");
	EXPECT_EQ(f.before("old/step-900"), "");
}

TEST(Newest, LooseFilesBesideCheckpointsAreNone)
{
	Found f;
	f.add("run", -1, 900, CKPT_TORCH);
	f.add("run/step-1", 1, 100);
	f.add("run2", -1, 50, CKPT_SAFETENSORS);
	EXPECT_EQ(f.newest({{"run", 1}, {"run/step-1", 1}, {"run2", 1}}), "run/step-1");
	EXPECT_EQ(f.n, 2u);
	EXPECT_EQ(f.newest({{"run", 1}, {"run2", 1}}), "run2");
}

TEST(Newest, BeforeIsOfTheSameFormat)
{
	Found f;
	f.add("step-3", 3, 3, CKPT_DEEPSPEED);
	f.add("step-2", 2, 2, CKPT_DCP);
	f.add("step-1", 1, 1, CKPT_DEEPSPEED);
	f.newest({});
	EXPECT_EQ(f.before("step-3"), "step-1");
	EXPECT_EQ(f.before("step-2"), "");
}

// Which directories and files of a store are checkpoints, as a search finds them, and which is the newest.
// A name with a slash at its end is a directory.
struct Layout {
	explicit Layout(const std::vector<std::string> &paths)
	{
		for (const std::string &p : paths)
			for (size_t at = 0; (at = p.find('/', at)) != std::string::npos; at++) {
				const size_t up = p.rfind('/', at - 1);
				dirs[up == std::string::npos ? "" : p.substr(0, up)].insert(p.substr(up + 1, at - up - 1) + "/");
				dirs[p.substr(0, at)];
			}
		for (const std::string &p : paths)
			if (p.back() != '/')
				dirs[p.substr(0, p.rfind('/'))].insert(p.substr(p.rfind('/') + 1));
		look("", "");
		found.newest({});
	}
	void look(const std::string &path, const std::string &base)
	{
		std::vector<std::string> names;
		std::vector<ckpt_name> v;
		ckpt_kind kind;

		for (const std::string &n : dirs[path])
			names.push_back(n.back() == '/' ? n.substr(0, n.size() - 1) : n);
		for (const std::string &n : names) {
			v.push_back({});
			v.back().name = n.c_str();
			v.back().dir = dirs.count((path.empty() ? "" : path + "/") + n);
		}
		ckpt_names_sort(v.data(), v.size());
		ckpt_recognize(base.c_str(), v.data(), v.size(), &kind);
		if (path.empty())
			kind.format = CKPT_NONE;
		if (kind.format != CKPT_NONE)
			add(path, kind);
		if (kind.format != CKPT_NONE && !ckpt_is_loose(&kind))
			return; // all below is its
		for (const ckpt_name &n : v) {
			const std::string below = (path.empty() ? "" : path + "/") + n.name;

			ckpt_recognize_file(n.name, &kind);
			if (n.dir)
				look(below, n.name);
			else if (ckpt_is_one_file(n.name))
				add(below, kind);
		}
	}
	void add(const std::string &path, const ckpt_kind &kind)
	{
		found.add(path, -1, 100 + (time_t)found.v.size());
		found.v.back().kind = kind;
	}
	std::string list() const
	{
		std::set<std::string> sorted;
		std::string all;

		for (size_t i = 0; i < found.n; i++)
			sorted.insert(std::string(found.v[i].path) + (ckpt_is_loose(&found.v[i].kind) ? "/*" : ""));
		for (const std::string &p : sorted)
			all += (all.empty() ? "" : " ") + p;
		return all;
	}
	std::map<std::string, std::set<std::string>> dirs;
	Found found;
};

TEST(Layout, WhatIsACheckpoint)
{
	const struct {
		const char *what;
		std::vector<std::string> paths;
		const char *want; // "/*": without its subdirectories
	} cases[] = {
		{"a .ckpt beside a model", {"run/step-3/model.safetensors", "run/step-3/state.ckpt", "run/step-3/config.json"},
		 "run/step-3"},
		{"a model with its optimizer below", {"run/step-3/model.safetensors", "run/step-3/optimizer/.metadata",
						      "run/step-3/optimizer/__0_0.distcp"}, "run/step-3"},
		{"torch.save with steps below, of the same step", {"step_5/model.pt", "step_5/global_step5/mp_rank_00_model_states.pt"},
		 "step_5"},
		{"ranks", {"step-5/model.pt", "step-5/0/optim.pt", "step-5/1/optim.pt"}, "step-5"},
		{"DCP", {"run/step-1/.metadata", "run/step-1/__0_0.distcp", "run/step-2/.metadata"}, "run/step-1 run/step-2"},
		{"DeepSpeed", {"run/latest", "run/zero_to_fp32.py", "run/global_step10/mp_rank_00_model_states.pt",
			       "run/global_step20/mp_rank_00_model_states.pt"}, "run/global_step10 run/global_step20"},
		{"DeepSpeed, then zero_to_fp32", {"run/latest", "run/pytorch_model.bin", "run/global_step10/mp_rank_00_model_states.pt"},
		 "run/* run/global_step10"},
		{"Megatron", {"run/latest_checkpointed_iteration.txt", "run/iter_0000100/common.pt", "run/iter_0000100/.metadata",
			      "run/iter_0000200/.metadata"}, "run/iter_0000100 run/iter_0000200"},
		{"Trainer with DeepSpeed", {"out/checkpoint-500/model.safetensors", "out/checkpoint-500/latest",
					    "out/checkpoint-500/trainer_state.json",
					    "out/checkpoint-500/global_step500/mp_rank_00_model_states.pt",
					    "out/checkpoint-1000/pytorch_model-00001-of-00002.bin",
					    "out/checkpoint-1000/global_step1000/mp_rank_00_model_states.pt"},
		 "out/checkpoint-1000 out/checkpoint-500"},
		{"Trainer's final model", {"out/model.safetensors", "out/config.json", "out/checkpoint-500/model.safetensors"},
		 "out/* out/checkpoint-500"},
		{"... and its state", {"out/model.safetensors", "out/trainer_state.json", "out/checkpoint-500/model.safetensors",
				       "out/checkpoint-500/trainer_state.json"}, "out/* out/checkpoint-500"},
		{"Trainer's checkpoint under another name", {"best/model.safetensors", "best/trainer_state.json",
							     "best/global_step500/mp_rank_00_model_states.pt"}, "best"},
		{"Lightning", {"run/epoch=1-step=10.ckpt", "run/epoch=2-step=20.ckpt", "run/hparams.yaml"},
		 "run/epoch=1-step=10.ckpt run/epoch=2-step=20.ckpt"},
		{"Lightning and a stray file", {"run/epoch=1-step=10.ckpt", "run/final.pt"}, "run/epoch=1-step=10.ckpt"},
		{"Lightning and a model", {"run/epoch=1-step=10.ckpt", "run/model.safetensors"}, "run/* run/epoch=1-step=10.ckpt"},
		{"a run with stray files", {"run/final.pt", "run/step-1/.metadata", "run/step-2/model.safetensors"}, "run/step-1 run/step-2"},
		{"... which is further up", {"all/vocab.pt", "all/run/step-1/.metadata"}, "all/run/step-1"},
		{"a run whose name has a step", {"ckpt-7b/final.pt", "ckpt-7b/step-1/.metadata", "ckpt-7b/step-2/.metadata"},
		 "ckpt-7b/step-1 ckpt-7b/step-2"},
		{"... of Lightning", {"ckpt-7b/final.pt", "ckpt-7b/epoch=1-step=10.ckpt"}, "ckpt-7b/epoch=1-step=10.ckpt"},
		{"... and a model", {"ckpt-7b/model.safetensors", "ckpt-7b/step-1/.metadata"}, "ckpt-7b/* ckpt-7b/step-1"},
		{"runs in the directory of a model", {"base/model.safetensors", "base/tune/step-1/.metadata"}, "base/* base/tune/step-1"},
		{"a model", {"model/model.safetensors", "model/config.json", "model/runs/log"}, "model/*"},
		{"files of steps", {"run/step-1.pt", "run/step-2.pt", "run/logs/x"}, "run/*"},
	};
	for (const auto &c : cases)
		EXPECT_EQ(Layout(c.paths).list(), c.want) << c.what;
}

// A tier may have what an earlier version sent of a checkpoint: parts of it.
TEST(Layout, PartsInATier)
{
	Found f;
	f.add("step-3", 3, 100, CKPT_SAFETENSORS);
	f.add("step-3/optimizer", -1, 900);
	f.v.back().remote = true;
	f.add("step-3/state.ckpt", -1, 900, CKPT_LIGHTNING);
	f.add("run", -1, 100); // was one, only in the tier; there are others in the store
	f.v.back().remote = true;
	f.add("run/step-1", 1, 100);
	f.add("run-2", -1, 100);
	f.newest({});
	std::set<std::string> left;
	for (size_t i = 0; i < f.n; i++)
		left.insert(f.v[i].path);
	EXPECT_EQ(left, (std::set<std::string>{"run", "run-2", "run/step-1", "step-3"}));
}

} // namespace

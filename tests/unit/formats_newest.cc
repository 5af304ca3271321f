// SPDX-License-Identifier: MIT
//
// Which of many checkpoints is the newest safe one.
#include <map>

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

} // namespace

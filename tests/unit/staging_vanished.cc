// SPDX-License-Identifier: MIT
//
// In a store of several hosts a directory goes and comes back as another one: GlusterFS removes one that
// two hosts make at once while a third looks it up, and tells both that it exists.
#include <atomic>
#include <filesystem>
#include <fstream>

#include "../api/staging_fixture.hh"
#include "engine_shim.h"

namespace
{

namespace fs = std::filesystem;

// Calls `then` before the n-th call of the store, or answers it.
class Calls {
public:
	explicit Calls(Staging &s) { shim_engine(s.engine.e, seen, this); }
	void at(shim_kind kind, unsigned n, std::function<int()> then)
	{
		kind_ = kind;
		then_ = std::move(then);
		left_ = n;
	}

private:
	static int seen(void *ctx, shim_kind kind, int)
	{
		auto self = static_cast<Calls *>(ctx);
		if (kind != self->kind_ || !self->left_ || --self->left_)
			return 0;
		auto then = self->then_;	// it may set another
		return then();
	}
	std::atomic<unsigned> left_{0};
	shim_kind kind_ = SHIM_OTHER;
	std::function<int()> then_;
};

void add_host(Ground &ground)
{
	fs::create_directories(ground.store() + "/.cairn/other");
	std::ofstream(ground.store() + "/.cairn/other/lock") << "1";
}

// A file in d is published: whoever writes there has a descriptor of d. Then d is removed.
void used_and_gone(Ground &ground, Staging &s, History &h)
{
	ASSERT_EQ(h.mkdir("d"), 0);
	ASSERT_EQ(h.put("d/a", "a"), 0);
	ASSERT_EQ(s.drain(), 0);
	fs::remove_all(ground.store() + "/d");
}

TEST(Vanished, AVersionGoesToTheDirectoryThatHasTheNameNow)
{
	Ground ground;
	Staging s(ground);
	add_host(ground);
	ASSERT_EQ(s.err, 0);
	History h(s);
	used_and_gone(ground, s, h);
	fs::create_directory(ground.store() + "/d");
	ASSERT_EQ(h.put("d/b", "b"), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.tree(), (Tree{{"d/", ""}, {"d/b", "b"}}));
	EXPECT_EQ(s.notes_with("conflict"), 0);
	h.drop();
}

// The third try finds it.
TEST(Vanished, AVersionWaitsForItsDirectoryToComeBack)
{
	Ground ground;
	Options o;
	o.start = false;
	Staging s(ground, o);
	add_host(ground);
	ASSERT_EQ(s.err, 0);
	History h(s);
	fs::create_directory(ground.store() + "/d");
	ASSERT_EQ(staging_dir_learn(s, h.adopt("d"), STAGING_ROOT_DIR, "d"), 0);
	Calls calls(s);
	calls.at(SHIM_NAME, 1, [&] {
		calls.at(SHIM_NAME, 1, [&] {
			calls.at(SHIM_NAME, 1, [] { return -ENOENT; });
			return -ESTALE;
		});
		return -ENOENT;
	});
	ASSERT_EQ(h.put("d/b", "b"), 0);
	ASSERT_EQ(h.put("d/c", "c"), 0);
	s.start();
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.tree(), (Tree{{"d/", ""}, {"d/b", "b"}, {"d/c", "c"}}));
	EXPECT_EQ(s.notes_with("conflict"), 0);
	h.drop();
}

TEST(Vanished, ADirectoryThatIsSaidToExistAndDoesNotIsMade)
{
	Ground ground;
	Options o;
	o.start = false;
	Staging s(ground, o);
	add_host(ground);
	ASSERT_EQ(s.err, 0);
	History h(s);
	Calls calls(s);
	calls.at(SHIM_NAME, 1, [] { return -EEXIST; });
	ASSERT_EQ(h.mkdir("d"), 0);
	ASSERT_EQ(h.put("d/a", "a"), 0);
	s.start();
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.tree(), (Tree{{"d/", ""}, {"d/a", "a"}}));
	EXPECT_EQ(s.notes_with("conflict"), 0);
	h.drop();
}

TEST(Vanished, WhatDoesNotComeBackIsAConflict)
{
	Ground ground;
	Staging s(ground);
	add_host(ground);
	ASSERT_EQ(s.err, 0);
	History h(s);
	used_and_gone(ground, s, h);
	ASSERT_EQ(h.put("d/b", "b"), 0);
	ASSERT_EQ(h.put("d/c", "c"), 0);
	ASSERT_EQ(h.put("e", "e"), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.tree(), (Tree{{"e", "e"}}));
	EXPECT_EQ(s.notes_with("conflict"), 2);
	h.drop();
}

// Another host removed it. After a restart nobody knows where it was: a sync elsewhere must not fail for ever.
TEST(Vanished, WhatIsLostWithItsDirectoryFailsNoSyncElsewhereAfterARestart)
{
	Ground ground;
	const uint64_t elsewhere = 123456789, any = UINT64_MAX;
	uint64_t dir = 0;
	for (int start = 0; start < 3; start++) {
		Staging s(ground);
		add_host(ground);
		ASSERT_EQ(s.err, 0);
		if (!start) {
			History h(s);
			dir = h.adopt("d");
			fs::create_directory(ground.store() + "/d");
			ASSERT_EQ(staging_dir_learn(s, dir, STAGING_ROOT_DIR, "d"), 0);
			ASSERT_EQ(h.put("d/a", "a"), 0);
			ASSERT_EQ(s.drain(), 0);
			fs::remove_all(ground.store() + "/d");
			ASSERT_EQ(h.put("d/b", "b"), 0);
			ASSERT_EQ(s.drain(), 0);
			ASSERT_EQ(h.rename("d/a", "d/c"), 0);
			ASSERT_EQ(s.drain(), 0);
			h.drop();
		}
		EXPECT_EQ(staging_refused(s, elsewhere, elsewhere, any), 0) << "start " << start;
		EXPECT_EQ(staging_refused(s, elsewhere, dir, any), -ENOENT) << "start " << start;
		EXPECT_EQ(staging_refused(s, elsewhere, STAGING_ROOT_DIR, any), -ENOENT) << "start " << start;
	}
}

}	// namespace

// SPDX-License-Identifier: MIT
//
// The turn of those who change a mode that denies its owner (io/store/lend.c): no lock is held while the store is asked,
// and who only looks does not wait, whatever the store does.
#include <atomic>
#include <future>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "../api/io_fixture.hh"

extern "C" {
// as in io/store/inside.h, whose atomics are C's
struct io_object {
	int dirfd;
	const char *name;
	bool dir;
};
typedef ssize_t (*io_lent_fn)(struct io_store *s, void *ctx);
ssize_t io_lend(struct io_store *s, const struct io_object *on, unsigned n, io_lent_fn op, void *ctx);
unsigned locks_held(void);
}

namespace {

struct Op {
	std::promise<void> runs, may_end;
	unsigned calls = 0, locks = 0;
	static ssize_t run(io_store *, void *ctx)
	{
		Op *o = static_cast<Op *>(ctx);
		o->locks += locks_held();
		if (!o->calls++)
			return -EACCES;
		o->runs.set_value();
		o->may_end.get_future().wait();
		return 7;
	}
};

struct Lending : ::testing::Test {
	void SetUp() override
	{
		mkdir((t.path + "/d").c_str(), 0555);
		mkdir((t.path + "/e").c_str(), 0500);
		ASSERT_EQ(s.err, 0);
	}
	mode_t seen(const char *name)
	{
		struct stat st = {};
		int err = io_stat(s.s, io_store_root(s.s), name, &st);
		return err ? (mode_t)-err : st.st_mode & 07777;
	}
	mode_t mode_of(const char *name)
	{
		struct stat st = {};
		return stat((t.path + "/" + name).c_str(), &st) ? 0 : st.st_mode & 07777;
	}
	TempDir t;
	Engine e;
	Store s{e, t.path, false, "h"};
};

TEST_F(Lending, WhoLooksDoesNotWait)
{
	Op op;
	const io_object d = {.dirfd = io_store_root(s.s), .name = "d", .dir = true};
	auto lends = std::async(std::launch::async, [&] { return io_lend(s.s, &d, 1, Op::run, &op); });
	op.runs.get_future().wait();
	EXPECT_EQ(mode_of("d"), 0755u) << "lent";
	auto looks = std::async(std::launch::async, [&] { return seen("d") << 12 | seen("e"); });
	bool waits = looks.wait_for(std::chrono::seconds(20)) != std::future_status::ready;
	op.may_end.set_value();
	EXPECT_FALSE(waits);
	EXPECT_EQ(looks.get(), 0555u << 12 | 0500u);
	EXPECT_EQ(lends.get(), 7);
	EXPECT_EQ(op.locks, 0u);
	EXPECT_EQ(mode_of("d"), 0555u);
	EXPECT_EQ(seen("d"), 0555u);
}

// One at a time, and each puts back what was there before all of them.
TEST_F(Lending, ManyAtOnce)
{
	const io_object d = {.dirfd = io_store_root(s.s), .name = "d", .dir = true};
	auto once = [](io_store *st, void *ctx) -> ssize_t {
		unsigned *calls = static_cast<unsigned *>(ctx);
		struct stat now;
		if (!(*calls)++)
			return -EACCES;
		return fstatat(io_store_root(st), "d", &now, 0) ? -errno : (ssize_t)(now.st_mode & 07777);
	};
	std::atomic<bool> over{false}, wrong{false};
	std::thread looks([&] {
		while (!over)
			wrong = wrong | (seen("d") != 0555u);
	});
	std::vector<std::thread> all;
	for (int i = 0; i < 8; i++)
		all.emplace_back([&] {
			for (int n = 0; n < 50; n++) {
				unsigned calls = 0;
				EXPECT_EQ(io_lend(s.s, &d, 1, once, &calls), 0755);
			}
		});
	for (auto &one : all)
		one.join();
	over = true;
	looks.join();
	EXPECT_FALSE(wrong);
	EXPECT_EQ(mode_of("d"), 0555u);
	EXPECT_NE(access((t.path + "/.cairn/h/lent0").c_str(), F_OK), 0);
}

} // namespace

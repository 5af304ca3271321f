// SPDX-License-Identifier: MIT
//
// Descriptors or memory are missing for a while (EMFILE, ENFILE, ENOMEM, EAGAIN): publication waits and goes
// on, nobody gets an error, and it is told. If it lasts, it halts publication.
#include <climits>

#include <atomic>

#include "../api/staging_fixture.hh"
#include "engine_shim.h"

namespace
{

// More than the attempts after which another error halts.
constexpr unsigned MANY = 5;

// Answers the next `left` calls of a kind with err; before each: `then`.
class Lack {
public:
	Lack(Staging &s, shim_kind kind, int err, unsigned left) : left_(left), kind_(kind), err_(err)
	{
		shim_engine(s.engine.e, seen, this);
	}
	void at_each(std::function<void()> then) { then_ = std::move(then); }
	unsigned left() { return left_; }
	void end() { left_ = 0; }

private:
	static int seen(void *ctx, shim_kind kind, int)
	{
		auto self = static_cast<Lack *>(ctx);
		if (kind != self->kind_ || !self->take())
			return 0;
		if (self->then_)
			self->then_();
		return self->err_;
	}
	bool take() // several threads call at once
	{
		unsigned n = left_;
		while (n && !left_.compare_exchange_weak(n, n - 1))
			;
		return n;
	}
	std::atomic<unsigned> left_;
	shim_kind kind_;
	int err_;
	std::function<void()> then_;
};

const char *const TOLD = "it is tried again";

TEST(Lack, PassesWhereverItIs)
{
	for (int err : {-EMFILE, -ENFILE, -ENOMEM, -EAGAIN})
		for (shim_kind kind : {SHIM_NAME, SHIM_SYNC, SHIM_SYNC_BYTES, SHIM_WRITE, SHIM_OTHER}) {
			Ground ground;
			Options o;
			o.start = false;
			o.lack_ms = UINT_MAX;
			Staging s(ground, o);
			ASSERT_EQ(s.err, 0);
			History h(s);
			ASSERT_EQ(h.mkdir("d"), 0);
			ASSERT_EQ(h.put("d/small", "bytes"), 0);
			Durable synced(s, staging_last_seq(s));
			Lack lack(s, kind, err, MANY);
			s.start();
			ASSERT_EQ(s.err, 0);
			EXPECT_EQ(synced.wait(), 0) << strerror(-err) << ", " << kind;
			EXPECT_EQ(lack.left(), 0u) << strerror(-err) << ", " << kind;
			EXPECT_TRUE(s.tree() == h.now()) << show(s.tree());
			EXPECT_EQ(s.notes_with("cairn retry"), 0) << kind;
			EXPECT_EQ(s.notes_with(TOLD), 1) << kind; // not each time
			EXPECT_NE(std::string(s.stats().last_error).find(strerror(-err)), std::string::npos);
		}
}

// This process has no descriptor left, from the moment in which the store takes a name.
TEST(Lack, OfRealDescriptors)
{
	Ground ground;
	Options o;
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.mkdir("d"), 0);
	for (const char *name : {"d/a", "d/b", "d/c"})
		ASSERT_EQ(h.put(name, name), 0);
	Durable synced(s, staging_last_seq(s));
	Lack lack(s, SHIM_WRITE, 0, 1);
	std::unique_ptr<Descriptors> none;
	lack.at_each([&] {
		if (!none)
			none = std::make_unique<Descriptors>(3);
	});
	s.start();
	ASSERT_EQ(s.err, 0);
	EXPECT_TRUE(until([&] { return s.notes_with(TOLD) > 0; }));
	EXPECT_EQ(s.stats().halted.error, 0);
	EXPECT_FALSE(synced.is_called());
	none = nullptr;
	EXPECT_EQ(synced.wait(), 0);
	EXPECT_TRUE(s.tree() == h.now()) << show(s.tree());
	EXPECT_EQ(s.notes_with("cairn retry"), 0);
}

TEST(Lack, ThatLastsHalts)
{
	for (shim_kind kind : {SHIM_NAME, SHIM_WRITE}) {
		Ground ground;
		Options o;
		o.start = false;
		o.lack_ms = 50;
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("small", "bytes"), 0);
		Durable synced(s, staging_last_seq(s));
		Lack lack(s, kind, -EMFILE, UINT_MAX);
		s.start();
		ASSERT_EQ(s.err, 0);
		EXPECT_EQ(synced.wait(), -EMFILE);
		EXPECT_EQ(s.stats().halted.error, -EMFILE);
		EXPECT_EQ(s.notes_with("cairn retry"), 1);
		lack.end();
		ASSERT_TRUE(until([&] {
			staging_retry(s);
			return s.drain(50) == 0;
		}));
		EXPECT_TRUE(s.tree() == h.now()) << show(s.tree());
	}
}

// A stop does not wait for it.
TEST(Lack, EndsWithStaging)
{
	Ground ground;
	Options o;
	o.start = false;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("small", "bytes"), 0);
		Lack lack(s, SHIM_WRITE, -EMFILE, UINT_MAX);
		s.start();
		ASSERT_EQ(s.err, 0);
		ASSERT_TRUE(until([&] { return s.notes_with(TOLD) > 0; }));
		h.drop();
	}
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(s.tree(), (Tree{{"small", "bytes"}}));
}

} // namespace

// SPDX-License-Identifier: MIT
// timeout: 300
//
// Commits that wait for other nodes: random histories, with commits that become whole, kills and
// restarts in between. A judge of its own says what may pass and what must wait (DURABILITY,
// Several hosts), and so what the store has to be.

#include <chrono>
#include <set>
#include <thread>

#include "tests/api/staging_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

struct Op {
	uint32_t type;
	uint64_t node, node2, dir, dir2;
	std::string name, name2, bytes;
	bool is_dir, over;	// over: there was something at the name already
	std::set<uint64_t> above = {};	// the directories that it is in, and those above
	std::set<uint64_t> above2 = {};	// of a rename: where it leads
};

struct Entry {
	uint64_t node;
	bool is_dir;
	std::string bytes;
};

// The mount's tree, or the store's.
struct Model {
	std::map<std::pair<uint64_t, std::string>, Entry> at;

	void apply(const Op &o)
	{
		auto from = std::make_pair(o.dir, o.name), to = std::make_pair(o.dir2, o.name2);
		switch (o.type) {
		case REC_SEAL:
		case REC_MKDIR: at[from] = {o.node, o.type == REC_MKDIR, o.bytes}; break;
		case REC_RENAME: {
			ASSERT_TRUE(at.count(from)) << o.name;
			Entry e = at[from];
			at.erase(from);
			at[to] = e;
			break;
		}
		default: ASSERT_TRUE(at.erase(from)) << o.name;
		}
	}
	std::set<uint64_t> above(uint64_t dir) const
	{
		std::set<uint64_t> out;
		while (dir && out.insert(dir).second) {
			uint64_t up = 0;
			for (auto &[place, e] : at)
				if (e.node == dir)
					up = place.first;
			dir = up;
		}
		return out;
	}
	void paths(uint64_t dir, const std::string &prefix, Tree &out) const
	{
		for (auto it = at.lower_bound({dir, ""}); it != at.end() && it->first.first == dir;
		     ++it) {
			std::string path = prefix + it->first.second;
			if (it->second.is_dir) {
				out[path + "/"];
				paths(it->second.node, path + "/", out);
			} else {
				out[path] = it->second.bytes;
			}
		}
	}
	Tree tree() const
	{
		Tree out;
		paths(root, "", out);
		return out;
	}
};

bool is_commit(const Op &o)
{
	return o.type == REC_RENAME && o.name2 == ".metadata";
}

// ---- the judge ----

struct Judge {
	const std::vector<Op> &ops;
	const std::set<uint64_t> &missing, &overtaken;
	std::vector<size_t> waiting;
	std::map<uint64_t, size_t> born;	// of what is in the store

	bool waits_for_others(const Op &o) const { return is_commit(o) && missing.count(o.dir2); }
	// Created after every commit that waits?
	bool is_new(uint64_t node) const
	{
		if (!born.count(node))
			return false;
		for (size_t w : waiting)
			if (waits_for_others(ops[w]) && w > born.at(node))
				return false;
		return true;
	}
	bool destroys(const Op &o) const
	{
		if (o.type == REC_UNLINK || o.type == REC_RMDIR)
			return true;
		if (o.type == REC_SEAL)
			return o.over && !is_new(o.node);
		return o.type == REC_RENAME && (o.over || !is_new(o.node));
	}
	static bool meets(const Op &w, const Op &o)
	{
		std::set<std::pair<uint64_t, std::string>> names = {{w.dir, w.name}};
		if (w.type == REC_RENAME)
			names.insert({w.dir2, w.name2});
		return w.node == o.node || (o.node2 && w.node == o.node2) ||
		       (w.node2 && (w.node2 == o.node || w.node2 == o.node2)) ||
		       names.count({o.dir, o.name}) ||
		       (o.type == REC_RENAME && names.count({o.dir2, o.name2}));
	}
	static bool is_in(const Op &o, uint64_t tree)
	{
		return o.above.count(tree) && (o.type != REC_RENAME || o.above2.count(tree));
	}
	bool waits(const Op &o) const
	{
		bool over = true;	// are all commits so far overtaken?
		for (size_t i : waiting) {
			const Op &w = ops[i];
			bool commit = waits_for_others(w);
			over = over && (!commit || overtaken.count(w.dir2));
			if (destroys(o) && (!over || (commit && !is_in(o, w.dir2))))
				return true;
			bool above = o.above.count(w.dir2) || o.above2.count(w.dir2);
			if (meets(w, o) || (commit && !over && above) ||
			    (w.is_dir && (o.above.count(w.node) || o.above.count(w.node2) ||
					  o.above2.count(w.node) || o.above2.count(w.node2))))
				return true;
		}
		return false;
	}
	Tree tree()
	{
		Model store;
		for (size_t i = 0; i < ops.size(); i++) {
			const Op &o = ops[i];
			if (waits_for_others(o) || waits(o)) {
				waiting.push_back(i);
				continue;
			}
			if ((o.type == REC_SEAL && !o.over) || o.type == REC_MKDIR)
				born[o.node] = i;
			store.apply(o);
		}
		return store.tree();
	}
};

// ---- histories ----

class Histories {
public:
	explicit Histories(unsigned seed) : random_(seed) { open(); }

	void run(unsigned steps)
	{
		for (unsigned i = 0; i < steps && !::testing::Test::HasFatalFailure(); i++) {
			SCOPED_TRACE("step " + std::to_string(i));
			unsigned what = pick(40);
			if (what == 0)
				commit();
			else if (what == 8 && !missing_.empty())
				overtake();
			else if (what == 1 && !missing_.empty())
				release();
			else if (what == 2)
				open();	// everything was killed
			else if (what < 8)
				compare();
			else
				change();
		}
		compare();
		while (!missing_.empty())
			release();
		EXPECT_EQ(s_->drain(), 0);
		EXPECT_EQ(show(s_->tree()), show(now_.tree()));
		EXPECT_TRUE(s_->tree() == now_.tree());
		EXPECT_EQ(s_->notes_with("conflict"), 0);
		EXPECT_EQ(s_->stats().held.behind, 0u);
	}
	unsigned most_waiting = 0, kills_while_waiting = 0, overtakes = 0;

private:
	unsigned pick(unsigned n) { return (unsigned)(random_() % n); }

	void open()
	{
		kills_while_waiting += s_ && !missing_.empty();
		s_.reset();
		Options o;
		o.missing = [this](uint64_t dir) {
			std::lock_guard<std::mutex> hold(lock_);
			return !missing_.count(dir)	? STAGING_WHOLE
			       : overtaken_.count(dir) ? STAGING_OVERTAKEN
						       : STAGING_MISSING;
		};
		s_ = std::make_unique<Staging>(ground_, o);
		ASSERT_EQ(s_->err, 0);
	}
	void log(Op o)
	{
		o.above = now_.above(o.dir);
		if (o.type == REC_RENAME)
			o.above2 = now_.above(o.dir2);
		uint32_t flags = (o.is_dir && o.type == REC_RENAME ? (uint32_t)REC_DIR : 0u) |
				 (o.over && o.type == REC_RENAME ? (uint32_t)REC_OVER : 0u);
		if (o.type == REC_SEAL) {
			staged *f = nullptr;
			ASSERT_EQ(staged_create(*s_, o.node, o.bytes.size(), &f), 0);
			ASSERT_EQ(staged_write(f, o.bytes.data(), o.bytes.size(), 0),
				  (ssize_t)o.bytes.size());
			ASSERT_GT(seal(*s_, f, o.node, {{o.dir, o.name}}, true,
				       o.over ? (uint32_t)REC_SHADOW : 0u),
				  0);
			staged_unref(f);
		} else {
			rec r = {};
			r.type = o.type;
			r.flags = flags;
			r.node = r.ino = o.node;
			r.node2 = o.node2;
			r.dir = o.dir;
			r.dir2 = o.dir2;
			r.name = o.name.c_str();
			r.name2 = o.name2.c_str();
			r.mode = 0755;
			r.uid = geteuid();
			r.gid = getegid();
			ASSERT_EQ(staging_log(*s_, &r), 0);
		}
		now_.apply(o);
		ops_.push_back(o);
	}
	// A directory outside of (or in) the trees of commits; or none: 0.
	uint64_t some_dir(bool outside)
	{
		std::vector<uint64_t> all = {root};
		for (auto &[place, e] : now_.at)
			if (e.is_dir)
				all.push_back(e.node);
		uint64_t dir = all[pick((unsigned)all.size())];
		for (uint64_t up : now_.above(dir))
			if (outside && commits_.count(up))
				return root;
		return dir;
	}
	std::string some_name() { return std::string(1, (char)('a' + pick(6))); }
	std::string some_bytes() { return "bytes " + std::to_string(ops_.size()); }

	void change()
	{
		uint64_t dir = some_dir(pick(4) != 0);
		std::string name = some_name();
		auto it = now_.at.find({dir, name});
		bool there = it != now_.at.end();
		if (!there && pick(3)) {
			log({REC_SEAL, staging_new_id(*s_), 0, dir, 0, name, "", some_bytes(), false,
			     false});
		} else if (!there) {
			log({REC_MKDIR, staging_new_id(*s_), 0, dir, 0, name, "", "", true, false});
		} else if (it->second.is_dir) {
			change_dir(dir, name, it->second.node);
		} else {
			change_file(dir, name, it->second.node);
		}
	}
	void change_file(uint64_t dir, const std::string &name, uint64_t node)
	{
		unsigned what = pick(3);
		uint64_t dir2 = some_dir(pick(2) != 0);
		std::string name2 = some_name();
		auto to = now_.at.find({dir2, name2});
		bool over = to != now_.at.end();
		if (what == 0)
			compare();	// else both may be left out
		if (what == 0)
			log({REC_UNLINK, node, node, dir, 0, name, "", "", false, false});
		else if (what == 1)
			log({REC_SEAL, node, 0, dir, 0, name, "", some_bytes(), false, true});
		else if (!over || (!to->second.is_dir && to->second.node != node))
			log({REC_RENAME, node, over ? to->second.node : 0, dir, dir2, name, name2, "",
			     false, over});
	}
	void change_dir(uint64_t dir, const std::string &name, uint64_t node)
	{
		auto below = now_.at.lower_bound({node, ""});
		bool empty = below == now_.at.end() || below->first.first != node;
		uint64_t dir2 = some_dir(true);
		std::string name2 = some_name();
		if (empty && pick(2)) {
			compare();
			log({REC_RMDIR, node, node, dir, 0, name, "", "", true, false});
		} else if (!now_.at.count({dir2, name2}) && !now_.above(dir2).count(node)) {
			// what came before it is judged where its directory was
			compare();
			log({REC_RENAME, node, 0, dir, dir2, name, name2, "", true, false});
			compare();
		}
	}
	// Of a checkpoint in a directory of its own.
	void commit()
	{
		uint64_t dir = staging_new_id(*s_), node = staging_new_id(*s_);
		std::string name = "ckpt-" + std::to_string(ops_.size());
		log({REC_MKDIR, dir, 0, root, 0, name, "", "", true, false});
		log({REC_SEAL, node, 0, dir, 0, "tmp", "", some_bytes(), false, false});
		commits_.insert(dir);
		if (pick(4)) {
			std::lock_guard<std::mutex> hold(lock_);
			missing_.insert(dir);
		}
		log({REC_RENAME, node, 0, dir, dir, "tmp", ".metadata", "", false, false});
	}
	void release()
	{
		auto it = missing_.begin();
		std::advance(it, pick((unsigned)missing_.size()));
		uint64_t dir = *it;
		{
			std::lock_guard<std::mutex> hold(lock_);
			missing_.erase(it);
		}
		compare();
		ASSERT_TRUE(now_.at.count({dir, ".metadata"}));
	}
	// Other hosts have saved over one that waits.
	void overtake()
	{
		auto it = missing_.begin();
		std::advance(it, pick((unsigned)missing_.size()));
		{
			std::lock_guard<std::mutex> hold(lock_);
			overtakes += overtaken_.insert(*it).second;
		}
		compare();
	}
	void compare()
	{
		Judge j{ops_, missing_, overtaken_, {}, {}};
		Tree want = j.tree();
		ASSERT_EQ(s_->drain(), j.waiting.empty() ? 0 : -EAGAIN);
		most_waiting = std::max(most_waiting, (unsigned)j.waiting.size());
		ASSERT_TRUE(s_->tree() == want)
			<< difference(s_->tree(), want) << "waits: " << list(j.waiting);
		EXPECT_EQ(s_->stats().held.behind + s_->stats().held.count, j.waiting.size());
	}

	static std::string difference(const Tree &store, const Tree &want)
	{
		std::string out;
		for (auto &[name, bytes] : want)
			if (!store.count(name) || store.at(name) != bytes)
				out += "not as it should be: " + name + "\n";
		for (auto &[name, bytes] : store)
			if (!want.count(name))
				out += "should not be there: " + name + "\n";
		return out;
	}
	std::string list(const std::vector<size_t> &some) const
	{
		std::string out;
		for (size_t i : some)
			out += "\n" + std::to_string(i) + ": type " + std::to_string(ops_[i].type) +
			       " " + std::to_string(ops_[i].dir) + "/" + ops_[i].name + " " +
			       std::to_string(ops_[i].dir2) + "/" + ops_[i].name2;
		return out;
	}

	Ground ground_;
	std::mutex lock_;
	std::set<uint64_t> missing_, overtaken_, commits_;
	std::unique_ptr<Staging> s_;
	std::vector<Op> ops_;
	Model now_;
	std::mt19937 random_;
};

// Forced before it is known whether it has to wait: the answer is waited for, not for ever.
TEST(Hold, ForcedWhileItIsAskedAbout)
{
	std::mutex lock;
	std::condition_variable moved;
	bool asked = false, goes_on = false;
	Options o;
	o.missing = [&](uint64_t) {
		std::unique_lock<std::mutex> hold(lock);
		asked = true;
		moved.notify_all();
		moved.wait(hold, [&] { return goes_on; });
		return true;
	};
	Ground ground;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	History h(s);
	EXPECT_EQ(h.mkdir("ck"), 0);
	EXPECT_EQ(h.put("ck/tmp", "commit"), 0);
	EXPECT_EQ(h.rename("ck/tmp", "ck/.metadata"), 0);
	{
		std::unique_lock<std::mutex> hold(lock);
		moved.wait(hold, [&] { return asked; });
	}
	EXPECT_EQ(staging_force(s, h.id("ck/"), 1), -ETIMEDOUT);
	EXPECT_EQ(staging_force(s, root, 60000), 0);
	std::thread answers([&] {
		std::lock_guard<std::mutex> hold(lock);
		goes_on = true;
		moved.notify_all();
	});
	EXPECT_EQ(staging_force(s, h.id("ck/"), 60000), 1);
	answers.join();
	EXPECT_EQ(s.drain(), 0);
	EXPECT_EQ(s.tree().at("ck/.metadata"), "commit");
}

TEST(Hold, RandomHistoriesOfCommitsThatWait)
{
	unsigned most = 0, kills = 0, overtakes = 0;
	for (unsigned seed = 1; seed <= 8 && !HasFatalFailure(); seed++) {
		SCOPED_TRACE("seed " + std::to_string(seed));
		Histories h(seed);
		h.run(300);
		most = std::max(most, h.most_waiting);
		kills += h.kills_while_waiting;
		overtakes += h.overtakes;
	}
	EXPECT_GT(overtakes, 10u);
	EXPECT_GT(most, 20u);
	EXPECT_GT(kills, 5u);
}

// ---- what other hosts have saved over ----

// A checkpoint that is saved again in place: ckpt/.metadata waits, and is overtaken when the test says so.
struct Overtaken : public ::testing::Test {
	Overtaken()
	{
		Options o;
		o.missing = [this](uint64_t d) {
			if (is_slow && d != dir) {
				std::this_thread::sleep_for(std::chrono::milliseconds(150));
				return (int)STAGING_MISSING;
			}
			asks++;
			return missing.load();
		};
		s = std::make_unique<Staging>(ground, o);
		dir = staging_new_id(*s);
		log(REC_MKDIR, dir, root, "ckpt");
		other = file(root, "other", "old", false);
		shard = file(dir, "shard", "1", false);
		EXPECT_EQ(s->drain(), 0);
		commit("metadata 1", STAGING_MISSING);
	}
	uint64_t log(uint32_t type, uint64_t node, uint64_t d, const char *name, const char *name2 = "",
		     uint32_t flags = 0)
	{
		rec r = {};
		r.type = type;
		r.flags = flags;
		r.node = r.ino = node;
		r.dir = r.dir2 = d;
		r.name = name;
		r.name2 = name2;
		r.mode = 0755;
		r.uid = geteuid();
		r.gid = getegid();
		EXPECT_EQ(staging_log(*s, &r), 0);
		return r.seq;
	}
	uint64_t version(uint64_t node, uint64_t d, const char *name, const std::string &bytes, bool over)
	{
		staged *f = nullptr;
		EXPECT_EQ(staged_create(*s, node, bytes.size(), &f), 0);
		EXPECT_EQ(staged_write(f, bytes.data(), bytes.size(), 0), (ssize_t)bytes.size());
		int64_t seq = seal(*s, f, node, {{d, name}}, true, over ? (uint32_t)REC_SHADOW : 0u);
		EXPECT_GT(seq, 0);
		staged_unref(f);
		return (uint64_t)seq;
	}
	uint64_t file(uint64_t d, const char *name, const std::string &bytes, bool over)
	{
		uint64_t node = staging_new_id(*s);
		version(node, d, name, bytes, over);
		return node;
	}
	void commit(const std::string &bytes, int is_missing)
	{
		missing = is_missing;
		uint64_t node = file(dir, "tmp", bytes, false);
		log(REC_RENAME, node, dir, "tmp", ".metadata");
		EXPECT_EQ(s->drain(), -EAGAIN);
	}
	// Returns whether it is durable; the callback is not called otherwise.
	bool synced(uint64_t node, uint64_t seq)
	{
		auto done = std::make_shared<std::atomic<bool>>(false);
		waits.push_back(done);
		staging_when_synced(
			*s, node, seq, [](void *ctx, int err) {
				EXPECT_EQ(err, 0);
				*static_cast<std::atomic<bool> *>(ctx) = true;
			},
			done.get());
		return until([&] { return done->load(); });
	}
	bool has(const char *path, const std::string &bytes)
	{
		Tree t = s->tree();
		return t.count(path) && t.at(path) == bytes;
	}

	Ground ground;
	std::atomic<int> missing{0};
	std::atomic<unsigned> asks{0};
	std::atomic<bool> is_slow{false};	// a question about another commit takes longer than from look to look
	std::vector<std::shared_ptr<std::atomic<bool>>> waits;
	std::unique_ptr<Staging> s;
	uint64_t dir, shard, other;
};

TEST_F(Overtaken, ItsOwnNextShardsPassAndOthersWait)
{
	version(shard, dir, "shard", "2", true);
	log(REC_UNLINK, other, root, "other");
	EXPECT_EQ(s->drain(), -EAGAIN);
	EXPECT_TRUE(has("ckpt/shard", "1")) << "it may still become whole";
	missing = STAGING_OVERTAKEN;
	EXPECT_TRUE(until([&] { return has("ckpt/shard", "2"); }));
	EXPECT_EQ(s->drain(), -EAGAIN);
	EXPECT_TRUE(has("other", "old")) << "nothing else is destroyed";
	EXPECT_FALSE(s->tree().count("ckpt/.metadata"));
}

TEST_F(Overtaken, YieldsToAnFsyncBehindIt)
{
	uint64_t node = staging_new_id(*s), seq = version(node, root, "other", "new", true);
	EXPECT_EQ(s->drain(), -EAGAIN);
	missing = STAGING_OVERTAKEN;
	EXPECT_TRUE(synced(node, seq));
	EXPECT_TRUE(has("other", "new"));
	EXPECT_FALSE(s->tree().count("ckpt/.metadata")) << "it is not published for that";
	EXPECT_EQ(s->notes_with("is not published"), 0);
}

TEST_F(Overtaken, TheNextCommitEndsIt)
{
	missing = STAGING_OVERTAKEN;
	version(shard, dir, "shard", "2", true);
	EXPECT_TRUE(until([&] { return has("ckpt/shard", "2"); }));
	uint64_t node = file(dir, "tmp", "metadata 2", true);
	log(REC_RENAME, node, dir, "tmp", ".metadata", REC_OVER);
	missing = STAGING_WHOLE;
	EXPECT_EQ(s->drain(), 0);
	EXPECT_TRUE(has("ckpt/.metadata", "metadata 2"));
	EXPECT_FALSE(s->tree().count("ckpt/tmp"));
}

// DCP syncs the next .metadata under the name that the first one has in the store.
TEST_F(Overtaken, EndsWhereAnFsyncNeedsItsName)
{
	missing = STAGING_OVERTAKEN;
	uint64_t node = staging_new_id(*s), seq = version(node, dir, "tmp", "metadata 2", true);
	EXPECT_TRUE(synced(node, seq));
	EXPECT_FALSE(s->tree().count("ckpt/.metadata"));
	EXPECT_TRUE(has("ckpt/tmp", "metadata 2"));
	EXPECT_EQ(s->notes_with("ckpt/.metadata is not published: other hosts have saved over it"), 1);
	EXPECT_EQ(s->drain(), 0);
}

TEST_F(Overtaken, EndsWhenTheStoreHasALaterOne)
{
	version(shard, dir, "shard", "2", true);
	missing = STAGING_REPLACED;
	EXPECT_TRUE(until([&] { return s->drain() == 0; }));
	EXPECT_TRUE(has("ckpt/shard", "2"));
	EXPECT_FALSE(s->tree().count("ckpt/.metadata"));
	EXPECT_TRUE(has("ckpt/tmp", "metadata 1")) << "it might be the other host's";
	EXPECT_EQ(s->notes_with("another host has committed a later save there"), 1);
}

// The next worker asks anew; what passed has passed.
TEST_F(Overtaken, SurvivesAKill)
{
	version(shard, dir, "shard", "2", true);
	missing = STAGING_OVERTAKEN;
	EXPECT_TRUE(until([&] { return has("ckpt/shard", "2"); }));
	Options o;
	o.missing = [this](uint64_t) { return missing.load(); };
	s.reset();
	s = std::make_unique<Staging>(ground, o);
	EXPECT_EQ(s->drain(), -EAGAIN);
	EXPECT_TRUE(has("ckpt/shard", "2"));
	EXPECT_FALSE(s->tree().count("ckpt/.metadata"));
	missing = STAGING_WHOLE;
	EXPECT_TRUE(until([&] { return s->drain() == 0; }));
	EXPECT_TRUE(has("ckpt/.metadata", "metadata 1"));
}

// While no descriptor is left to read what it lists, nothing is known of it: it waits.
TEST_F(Overtaken, OneThatCannotBeOpenedWaits)
{
	missing = STAGING_WHOLE;
	EXPECT_TRUE(until([&] { return s->drain() == 0; }));
	uint64_t next = staging_new_id(*s);
	log(REC_MKDIR, next, root, "next");
	uint64_t node = file(next, "tmp", "metadata 2", false);
	EXPECT_EQ(s->drain(), 0);
	missing = STAGING_MISSING;
	std::string path = ground.store() + "/next/.metadata";
	{
		Descriptors none(0);
		log(REC_RENAME, node, next, "tmp", ".metadata");
		EXPECT_TRUE(until([&] { return s->stats().held.count || !access(path.c_str(), F_OK); }));
	}
	EXPECT_EQ(s->drain(), -EAGAIN);
	EXPECT_FALSE(s->tree().count("next/.metadata"));
	missing = STAGING_WHOLE;
	EXPECT_TRUE(until([&] { return s->drain() == 0; }));
	EXPECT_TRUE(has("next/.metadata", "metadata 2"));
}

// What became whole is published by a drain, also if a look that asks only some comes during it.
TEST_F(Overtaken, ADrainAsksAboutAllThatWaits)
{
	uint64_t node[2], next[2];
	for (int i = 0; i < 2; i++) {
		next[i] = staging_new_id(*s);
		log(REC_MKDIR, next[i], root, i ? "next 1" : "next 0");
		node[i] = file(next[i], "tmp", "metadata", false);
	}
	EXPECT_EQ(s->drain(), -EAGAIN);
	std::this_thread::sleep_for(std::chrono::milliseconds(1100));
	unsigned before = asks;
	ASSERT_TRUE(until([&] { return asks != before; })) << "then it is not asked for a second";
	is_slow = true;
	missing = STAGING_WHOLE;
	for (int i = 0; i < 2; i++)
		log(REC_RENAME, node[i], next[i], "tmp", ".metadata");
	EXPECT_EQ(s->drain(), -EAGAIN);
	EXPECT_TRUE(has("ckpt/.metadata", "metadata 1"));
	EXPECT_FALSE(s->tree().count("next 0/.metadata") || s->tree().count("next 1/.metadata"));
}

// After 0.1, 0.2, 0.4, 0.8 seconds, then once a second, however slow this machine is.
TEST_F(Overtaken, WhatIsMissingIsAskedForOnceASecond)
{
	unsigned before = asks;
	auto began = std::chrono::steady_clock::now();
	std::this_thread::sleep_for(std::chrono::milliseconds(4000));
	unsigned seconds =
		(unsigned)std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() + 1;
	EXPECT_LE(asks - before, 4 + seconds);
	EXPECT_EQ(s->stats().held.count, 1u);
}

} // namespace

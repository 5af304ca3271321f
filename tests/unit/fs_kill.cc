// SPDX-License-Identifier: MIT
// timeout: 300
//
// Workers that die between two calls of the publisher, or between two records of the log, while names
// come and go: several names a file, empty files, renames over each other. The next worker must show
// what was accepted, and the store gets it. Each worker is a process of its own that does not live to
// clean up. CAIRN_KILLS sets how many die (default 60), CAIRN_SEED where it begins.
#include <sys/wait.h>

#include "tests/unit/fs_client.hh"
#include "tests/unit/store_faults.h"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;
const std::vector<std::string> pool = {"a", "b", "c", "d/a", "d/b", "e/a"};

using Bytes = std::shared_ptr<std::string>;
using Model = std::map<std::string, Bytes>; // names of one file share its bytes

unsigned links(const Model &m, const Bytes &b)
{
	unsigned n = 0;
	for (auto &[name, other] : m)
		n += other == b;
	return n;
}

std::string show_model(const Model &m)
{
	std::string out;
	std::map<Bytes, int> ids;
	for (auto &[name, b] : m)
		out += name + "=#" + std::to_string(ids.emplace(b, (int)ids.size()).first->second) + ":" +
		       std::to_string(b->size()) + " ";
	return out;
}

struct Op {
	unsigned kind;
	std::string from, to;
	size_t size;
	uint64_t seed;
};

Op draw(std::mt19937_64 &rng)
{
	size_t sizes[] = {0, 0, 0, 10, 5000, 300000};
	return {(unsigned)(rng() % 16), pool[rng() % pool.size()], pool[rng() % pool.size()],
		sizes[rng() % 6], rng()};
}

// What op makes of m.
void predict(Model &m, const Op &op)
{
	bool there = m.count(op.from), over = m.count(op.to);
	if (op.kind < 4 && !there)
		m[op.from] = std::make_shared<std::string>(pattern(op.size, op.seed));
	else if (op.kind < 4 && op.kind < 2)
		*m[op.from] = pattern(op.size, op.seed);
	else if (op.kind >= 4 && op.kind < 7 && there && !over)
		m[op.to] = m[op.from];
	else if (op.kind >= 7 && op.kind < 10 && there)
		m.erase(op.from);
	else if (op.kind >= 10 && op.kind < 13 && there && (!over || m[op.to] != m[op.from])) {
		m[op.to] = m[op.from];
		m.erase(op.from);
	}
}

struct At {
	uint64_t dir;
	std::string name;
};

class Life : public Worker {
public:
	using Worker::Worker;
	At at(const std::string &path)
	{
		if (path.size() == 1)
			return {root, path};
		EXPECT_EQ(k.lookup(root, path.substr(0, 1)), 0) << path;
		return {k.id, path.substr(2)};
	}
	// As predict says, or false.
	bool carry_out(Model &m, const Op &op)
	{
		At from = at(op.from), to = at(op.to);
		int there = k.lookup(from.dir, from.name);
		uint64_t id = k.id;
		if (there && there != -ENOENT)
			return false;
		if (!!m.count(op.from) != !there)
			return false;
		if (op.kind < 4)
			return !m.count(op.from) ? put(from, op, true) : op.kind >= 2 || put(from, op, false);
		if (op.kind < 7 && !there)
			return k.link(id, to.dir, to.name) == (m.count(op.to) ? -EEXIST : 0);
		if (op.kind >= 7 && op.kind < 10)
			return k.unlink(from.dir, from.name) == there;
		if (op.kind >= 10 && op.kind < 13)
			return k.rename(from.dir, from.name, to.dir, to.name) == there;
		if (op.kind == 13 && !there)
			k.forget_all(id);
		if (op.kind == 14)
			usleep(op.seed % 3000);
		if (op.kind == 15 && op.seed % 3 == 0) {
			int rc = staging_drain(t.s(), shim_publisher_stopped() ? 0 : 50);
			if (op.seed % 2)
				shim_evict(fs);
			if (!rc && op.seed % 5 == 0)
				shim_rotate(fs);
		}
		return true;
	}

private:
	bool put(const At &at, const Op &op, bool fresh)
	{
		std::string bytes = pattern(op.size, op.seed);
		if (fresh)
			return k.put(at.dir, at.name, bytes);
		return !k.rewrite(at.dir, at.name, bytes);
	}
};

// settled: nothing is on its way. Else a name that was looked up while the publisher gave its file
// others may show a link more.
void check(Life &w, const Model &m, bool settled)
{
	Client &k = w.k;
	for (auto &path : pool) {
		SCOPED_TRACE(path);
		At at = w.at(path);
		int rc = k.lookup(at.dir, at.name);
		uint64_t id = k.id;
		ASSERT_EQ(rc, m.count(path) ? 0 : -ENOENT);
		if (rc)
			continue;
		const Bytes &b = m.at(path);
		ASSERT_EQ(k.getattr(id), 0);
		if (settled) {
			ASSERT_EQ(k.attr.nlink, links(m, b));
		}
		std::string got = k.get(id);
		ASSERT_EQ(k.err, 0);
		ASSERT_SAME(got, *b);
	}
}

struct Shared {
	std::atomic<unsigned> done;
};

// A worker's whole life. Exits with 0 when it did as the model says.
[[noreturn]] void live(Ground &ground, Model m, uint64_t seed, Shared *shared)
{
	std::mt19937_64 rng(seed);
	unsigned ops = 1 + rng() % 60, after = rng() % 8;
	bool publishes = rng() % 4;
	if (rng() % 3)
		shim_stop_publisher(1 + (int)(rng() % 30));
	Life w(ground, publishes);
	if (w.t.err)
		_exit(3);
	for (unsigned i = 0; i < ops; i++) {
		Op op = draw(rng);
		if (!w.carry_out(m, op))
			_exit(4);
		predict(m, op);
		shared->done = i + 1;
		if (shim_publisher_stopped() && !after--)
			break;
	}
	_exit(0);
}

// The same draws, up to what was done.
void catch_up(Model &m, uint64_t seed, unsigned done)
{
	std::mt19937_64 rng(seed);
	for (int i = 0; i < 3; i++)
		rng();
	if (rng() % 3)
		rng();
	for (unsigned i = 0; i < done; i++)
		predict(m, draw(rng));
}

unsigned number(const char *name, unsigned otherwise)
{
	const char *text = getenv(name);
	return text ? (unsigned)atoi(text) : otherwise;
}

void deaths(uint64_t seed, unsigned n)
{
	auto *shared = static_cast<Shared *>(
		mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	Ground ground;
	Model m;
	std::filesystem::create_directory(ground.store() + "/d");
	std::filesystem::create_directory(ground.store() + "/e");
	for (unsigned life = 0; life < n; life++, seed++) {
		SCOPED_TRACE("seed " + std::to_string(seed) + ", death " + std::to_string(life));
		shared->done = 0;
		pid_t pid = fork();
		if (!pid)
			live(ground, m, seed, shared);
		int status;
		ASSERT_EQ(waitpid(pid, &status, 0), pid);
		Model before = m;
		catch_up(m, seed, shared->done);
		SCOPED_TRACE(show_model(before) + "-> " + show_model(m));
		ASSERT_TRUE(WIFEXITED(status) && !WEXITSTATUS(status)) << status;
		Life next(ground);
		ASSERT_EQ(next.t.err, 0);
		check(next, m, false);
		if (::testing::Test::HasFatalFailure())
			return;
		if (seed % 4)
			continue;
		ASSERT_EQ(shim_start(next.fs), 0);
		ASSERT_EQ(next.drain(), 0);
		shim_evict(next.fs);
		check(next, m, true);
		if (::testing::Test::HasFatalFailure())
			return;
		Tree want = {{"d/", ""}, {"e/", ""}};
		for (auto &[path, bytes] : m)
			want[path] = *bytes;
		ASSERT_TRUE(tree_of(ground.store()) == want) << show(tree_of(ground.store()));
		ASSERT_TRUE(next.t.notes.empty()) << next.t.notes[0];
	}
	munmap(shared, 4096);
}

TEST(Kill, TheNextWorkerShowsWhatWasAccepted)
{
	unsigned kills = number("CAIRN_KILLS", 60), seed = number("CAIRN_SEED", 101);
	for (unsigned done = 0; done < kills && !HasFatalFailure(); done += 10)
		deaths(seed + done, kills - done < 10 ? kills - done : 10);
}

} // namespace

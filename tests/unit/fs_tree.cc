// SPDX-License-Identifier: MIT
//
// The live tree against a plain model of a filesystem, under seeded random changes; and event
// sourcing: a worker that replays the log has the same tree, links, inode numbers and handles.
#include <malloc.h>

#include "tests/unit/fs_client.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;
const std::vector<std::string> pool = {"a", "b", "c", "d", "e"};

struct Inode {
	bool dir = false, link = false;
	std::string bytes;	// a file's, or a symlink's target
	std::map<std::string, std::shared_ptr<Inode>> names;
	unsigned nlink = 1;
	uint64_t ino = 0;	// as first shown; never another
	mode_t mode = 0640;
};
using Ref = std::shared_ptr<Inode>;

struct Handle {
	File f;
	Ref inode;
	bool writer;
};

class Model {
public:
	Model(Worker &w, uint64_t seed, bool threads) : rng(seed), w_(&w), threads_(threads)
	{
		top->dir = true;
	}

	// The next worker stands in for the last.
	void moved_to(Worker &w) { w_ = &w; }

	void change()
	{
		std::vector<std::string> at = any_dir(), at2 = any_dir();
		const std::string &name = pool[rng() % pool.size()],
				  &name2 = pool[rng() % pool.size()];
		uint64_t dir = id_of(at), dir2 = id_of(at2);
		Ref d = walk(at), d2 = walk(at2);
		Ref n = d->names.count(name) ? d->names[name] : nullptr;
		Ref victim = d2->names.count(name2) ? d2->names[name2] : nullptr;
		Client &k = w_->k;
		File f;

		switch (rng() % 13) {
		case 0:
			ASSERT_EQ(k.mkdir(dir, name), n ? -EEXIST : 0);
			if (!n)
				add(d, name, true);
			break;
		case 1:
			ASSERT_EQ(k.symlink(dir, name, "to/there"), n ? -EEXIST : 0);
			if (!n) {
				add(d, name, false)->link = true;
				d->names[name]->bytes = "to/there";
			}
			break;
		case 2:
		case 3:
		case 4: { // a file, open for a while
			ASSERT_EQ(k.create(dir, name, &f, O_WRONLY | O_CREAT | O_EXCL), n ? -EEXIST : 0);
			if (n)
				break;
			Handle h = {f, add(d, name, false), true};
			open.push_back(h);
			write(h);
			break;
		}
		case 5: { // again, for writing or reading
			if (!n || n->dir || n->link || is_open_for_write(n))
				break;
			bool read = rng() % 2, trunc = !threads_ || rng() % 2;
			int flags = read ? O_RDONLY : O_WRONLY | (trunc ? O_TRUNC : 0);
			ASSERT_EQ(k.open_name(dir, name, flags, &f), 0);
			Handle h = {f, n, !read};
			open.push_back(h);
			if (!read && trunc)
				n->bytes.clear();
			if (!read)
				write(h);
			break;
		}
		case 6:
		case 7:
			close_one();
			break;
		case 8: {
			int want = !n ? -ENOENT : n->dir ? -EISDIR : 0;
			ASSERT_EQ(k.unlink(dir, name), want);
			if (!want)
				drop(d, name);
			break;
		}
		case 9: {
			int want = !n		      ? -ENOENT
				   : !n->dir	      ? -ENOTDIR
				   : n->names.empty() ? 0
						      : -ENOTEMPTY;
			ASSERT_EQ(k.rmdir(dir, name), want);
			if (!want)
				drop(d, name);
			break;
		}
		case 10:
		case 11: {
			if (n && n->dir && is_below(n, d2))
				break; // the kernel refuses that
			int want = !n			    ? -ENOENT
				   : !victim		    ? 0
				   : n->dir && !victim->dir ? -ENOTDIR
				   : !n->dir && victim->dir ? -EISDIR
				   : victim->dir && victim != n && !victim->names.empty()
					   ? -ENOTEMPTY
					   : 0;
			if (n && n == victim && n->dir && !n->names.empty())
				break;
			ASSERT_EQ(k.rename(dir, name, dir2, name2), want);
			if (want || n == victim)
				break;
			if (victim)
				drop(d2, name2);
			d->names.erase(name);
			d2->names[name2] = n;
			break;
		}
		default: {
			if (!n || n->dir)
				break;
			ASSERT_EQ(k.lookup(dir, name), 0);
			uint64_t id = k.id;
			if (rng() % 2) {
				ASSERT_EQ(k.link(id, dir2, name2), victim ? -EEXIST : 0);
				if (!victim) {
					d2->names[name2] = n;
					n->nlink++;
				}
			} else if (!n->link) {
				n->mode = 0600 + rng() % 64;
				ASSERT_EQ(k.chmod(id, n->mode), 0);
			}
		}
		}
	}

	void close_one()
	{
		if (open.empty())
			return;
		size_t i = rng() % open.size();
		ASSERT_EQ(w_->k.flush(open[i].f), 0);
		ASSERT_EQ(w_->k.release(open[i].f), 0);
		open.erase(open.begin() + (long)i);
	}
	void close_all()
	{
		while (!open.empty() && !::testing::Test::HasFatalFailure())
			close_one();
	}

	// Every name of the pool in every directory: what is there, and that nothing else is.
	void check()
	{
		check_dir(root, top, "");
		ASSERT_EQ(shim_handles(w_->fs), open.size());
		for (Handle &h : open) {
			bool writer = false;
			uint64_t id = shim_handle(w_->fs, h.f.fh, &writer);
			ASSERT_NE(id, 0u);
			ASSERT_EQ(writer, h.writer);
			if (!h.writer)
				continue; // a fork may have left it an older version
			std::string got = w_->k.get(id);
			ASSERT_EQ(w_->k.err, 0);
			ASSERT_SAME(got, h.inode->bytes);
		}
	}
	// What the store must show in the end.
	Tree tree() const
	{
		Tree out;
		collect(top, "", out);
		return out;
	}
	Ref top = std::make_shared<Inode>();
	std::vector<Handle> open;
	std::mt19937_64 rng;

private:
	void check_dir(uint64_t id, const Ref &dir, const std::string &path)
	{
		for (auto &name : pool) {
			SCOPED_TRACE(path + "/" + name);
			Client &k = w_->k;
			int rc = k.lookup(id, name);
			uint64_t child = k.id;
			auto it = dir->names.find(name);
			ASSERT_EQ(rc, it == dir->names.end() ? -ENOENT : 0);
			if (rc)
				continue;
			Ref n = it->second;
			ASSERT_EQ(k.getattr(child), 0);
			fuse_attr st = k.attr;
			ASSERT_EQ(st.mode & S_IFMT,
				  (unsigned)(n->dir ? S_IFDIR : n->link ? S_IFLNK : S_IFREG));
			if (!n->ino && !n->link)
				n->ino = st.ino;
			if (!n->link) {
				ASSERT_EQ(st.ino, n->ino);
			}
			if (n->dir) {
				check_dir(child, n, path + "/" + name);
				if (::testing::Test::HasFatalFailure())
					return;
				continue;
			}
			ASSERT_EQ(st.nlink, n->nlink);
			ASSERT_EQ(st.size, n->bytes.size());
			if (n->link)
				continue;
			ASSERT_EQ(st.mode & 07777, n->mode);
			std::string got = k.get(child);
			ASSERT_EQ(k.err, 0);
			ASSERT_SAME(got, n->bytes);
		}
	}
	static void collect(const Ref &dir, const std::string &at, Tree &out)
	{
		for (auto &[name, n] : dir->names) {
			if (n->dir)
				out[at + name + "/"];
			else
				out[at + name] = (n->link ? "-> " : "") + n->bytes;
			collect(n, at + name + "/", out);
		}
	}
	void write(const Handle &h)
	{
		std::string bytes = pattern(rng() % 5000, rng());
		size_t off = rng() % (h.inode->bytes.size() + 1);
		ASSERT_EQ(w_->k.write(h.f, bytes, off), 0);
		if (bytes.empty())
			return;
		if (h.inode->bytes.size() < off + bytes.size())
			h.inode->bytes.resize(off + bytes.size());
		h.inode->bytes.replace(off, bytes.size(), bytes);
	}
	Ref add(const Ref &dir, const std::string &name, bool is_dir)
	{
		Ref n = std::make_shared<Inode>();
		n->dir = is_dir;
		dir->names[name] = n;
		return n;
	}
	void drop(const Ref &dir, const std::string &name)
	{
		dir->names[name]->nlink--;
		dir->names.erase(name);
	}
	bool is_open_for_write(const Ref &n) const
	{
		for (auto &h : open)
			if (h.writer && h.inode == n)
				return true;
		return false;
	}
	static bool is_below(const Ref &n, const Ref &d)
	{
		if (n == d)
			return true;
		for (auto &[name, c] : n->names)
			if (is_below(c, d))
				return true;
		return false;
	}
	std::vector<std::string> any_dir()
	{
		std::vector<std::string> at;
		for (Ref d = top; at.size() < 3;) {
			std::vector<std::string> dirs;
			for (auto &[name, n] : d->names)
				if (n->dir)
					dirs.push_back(name);
			if (dirs.empty() || rng() % 3 == 0)
				break;
			at.push_back(dirs[rng() % dirs.size()]);
			d = d->names[at.back()];
		}
		return at;
	}
	Ref walk(const std::vector<std::string> &at)
	{
		Ref d = top;
		for (auto &name : at)
			d = d->names.at(name);
		return d;
	}
	uint64_t id_of(const std::vector<std::string> &at)
	{
		uint64_t id = root;
		for (auto &name : at) {
			EXPECT_EQ(w_->k.lookup(id, name), 0) << name;
			id = w_->k.id;
		}
		return id;
	}
	Worker *w_;
	bool threads_;
};

#define STOP_IF_FAILED()                                                                           \
	if (::testing::Test::HasFatalFailure())                                                    \
	return

void random_life(uint64_t seed, bool threads, bool kills, bool rotate)
{
	SCOPED_TRACE("seed " + std::to_string(seed));
	Ground ground;
	auto w = std::make_unique<Worker>(ground, threads);
	ASSERT_EQ(w->t.err, 0);
	Model m(*w, seed, threads);
	for (int step = 0; step < 150; step++) {
		SCOPED_TRACE("step " + std::to_string(step));
		m.change();
		STOP_IF_FAILED();
		if (step % 5 == 0)
			m.check();
		STOP_IF_FAILED();
		if (threads && m.rng() % 25 == 0) {
			ASSERT_EQ(w->drain(), 0);
			if (rotate) {
				int rc = shim_rotate(w->fs);
				ASSERT_EQ(rc, 0);
			}
			m.check();
			STOP_IF_FAILED();
		}
		if (kills && m.rng() % 20 == 0) {
			w.reset();
			w = std::make_unique<Worker>(ground, threads);
			ASSERT_EQ(w->t.err, 0);
			m.moved_to(*w);
			m.check();
			STOP_IF_FAILED();
		}
	}
	m.close_all();
	STOP_IF_FAILED();
	if (!threads) {
		ASSERT_EQ(shim_start(w->fs), 0);
	}
	ASSERT_EQ(w->drain(), 0);
	m.check();
	STOP_IF_FAILED();
	EXPECT_TRUE(tree_of(ground.store()) == m.tree())
		<< show(tree_of(ground.store())) << "\nwanted " << show(m.tree());
	for (auto &text : w->t.notes)
		ADD_FAILURE() << text;
}

TEST(LiveTree, EqualsTheModelWithNothingPublished)
{
	for (uint64_t seed = 1; seed <= 8 && !HasFatalFailure(); seed += one_of())
		random_life(seed, false, false, false);
}

TEST(LiveTree, ReplayedIsTheSame)
{
	for (uint64_t seed = 101; seed <= 108 && !HasFatalFailure(); seed += one_of())
		random_life(seed, false, true, false);
}

TEST(LiveTree, EqualsTheModelWhileItPublishes)
{
	for (uint64_t seed = 201; seed <= 203 && !HasFatalFailure(); seed += one_of())
		random_life(seed, true, false, false);
}

TEST(LiveTree, ReplayedWhileItPublishes)
{
	for (uint64_t seed = 301; seed <= 304 && !HasFatalFailure(); seed += one_of())
		random_life(seed, true, true, false);
}

TEST(LiveTree, ReplayedFromARotatedLog)
{
	for (uint64_t seed = 401; seed <= 404 && !HasFatalFailure(); seed += one_of())
		random_life(seed, true, true, true);
}

// Readers keep what they have open, the next open sees the new version, st_ino is one.
TEST(LiveTree, AWriterForksFromReaders)
{
	Ground ground;
	auto w = std::make_unique<Worker>(ground);
	ASSERT_EQ(w->t.err, 0);
	File reader, writer;
	uint64_t id = w->k.put(root, "f", "old");
	ASSERT_NE(id, 0u);
	ASSERT_EQ(w->k.getattr(id), 0);
	uint64_t before = w->k.ino;
	ASSERT_EQ(w->k.open_name(root, "f", O_RDONLY, &reader), 0);
	ASSERT_EQ(w->k.open_name(root, "f", O_WRONLY | O_TRUNC, &writer), 0);
	ASSERT_EQ(w->k.write(writer, "newer"), 0);
	EXPECT_EQ(shim_handle(w->fs, reader.fh, nullptr), id);
	EXPECT_EQ(w->k.read_all(reader), "old");
	ASSERT_EQ(w->k.lookup(root, "f"), 0);
	uint64_t again = w->k.id;
	EXPECT_NE(again, id);
	ASSERT_EQ(w->k.getattr(again), 0);
	EXPECT_EQ(w->k.ino, before);
	EXPECT_EQ(w->k.attr.size, 5u);
	w.reset(); // and so it is for the next worker
	Worker next(ground, true);
	ASSERT_EQ(next.t.err, 0);
	EXPECT_EQ(shim_handle(next.fs, reader.fh, nullptr), id);
	EXPECT_EQ(shim_handle(next.fs, writer.fh, nullptr), again);
	EXPECT_EQ(next.k.read_all(reader), "old");
	ASSERT_EQ(next.k.close(writer), 0);
	ASSERT_EQ(next.k.close(reader), 0);
	ASSERT_EQ(next.drain(), 0);
	EXPECT_EQ(read_file(ground.store() + "/f"), "newer");
}

// Another node of the cluster publishes into the same store: clean names are asked each time.
TEST(LiveTree, CleanNamesAreTheStores)
{
	Ground ground;
	Worker w(ground, true);
	ASSERT_EQ(w.t.err, 0);
	Client &k = w.k;
	EXPECT_EQ(k.lookup(root, "theirs"), -ENOENT);
	ASSERT_EQ(k.lookup(root, ".cairn"), 0);
	EXPECT_TRUE(shim_is_control(k.id)); // found, never as a store's file
	ASSERT_TRUE(std::filesystem::exists(ground.store() + "/.cairn/id"));
	EXPECT_EQ(k.lookup(k.id, "id"), -ENOENT);
	write_file(ground.store() + "/theirs", "one");
	ASSERT_EQ(k.lookup(root, "theirs"), 0);
	uint64_t first = k.id;
	EXPECT_EQ(k.get(first), "one");
	write_file(ground.store() + "/x", "other");
	std::filesystem::rename(ground.store() + "/x", ground.store() + "/theirs");
	ASSERT_EQ(k.lookup(root, "theirs"), 0);
	EXPECT_NE(k.id, first); // another file
	EXPECT_EQ(k.get(k.id), "other");
	std::filesystem::remove(ground.store() + "/theirs");
	EXPECT_EQ(k.lookup(root, "theirs"), -ENOENT);

	std::filesystem::create_directories(ground.store() + "/deep/er");
	ASSERT_EQ(k.lookup(root, "deep"), 0);
	uint64_t deep = k.id;
	EXPECT_EQ(k.rmdir(root, "deep"), -ENOTEMPTY);
	ASSERT_EQ(k.lookup(deep, "er"), 0);
	ASSERT_NE(k.put(k.id, "ours", ""), 0u);
	ASSERT_EQ(w.drain(), 0);
	EXPECT_TRUE(std::filesystem::exists(ground.store() + "/deep/er/ours"));
}

// At a first start no handle of the last connection lives, and nothing of the tree is needed:
// the order alone is carried out.
TEST(LiveTree, AFirstStartTakesTheOrderOnly)
{
	Ground ground;
	{
		Worker w(ground);
		ASSERT_EQ(w.t.err, 0);
		File f;
		ASSERT_EQ(w.k.mkdir(root, "d"), 0);
		ASSERT_NE(w.k.put(w.k.id, "f", "bytes"), 0u);
		ASSERT_EQ(w.k.create(root, "open", &f, O_WRONLY | O_CREAT | O_EXCL), 0);
		ASSERT_EQ(w.k.write(f, "half"), 0);
	}
	Worker w(ground, true, true);
	ASSERT_EQ(w.t.err, 0);
	EXPECT_EQ(shim_handles(w.fs), 0u);
	ASSERT_EQ(w.drain(), 0);
	EXPECT_EQ(show(tree_of(ground.store())), "d/=0 d/f=5,98 ");
	ASSERT_EQ(w.k.lookup(root, "d"), 0);
	ASSERT_EQ(w.k.lookup(w.k.id, "f"), 0);
	EXPECT_EQ(w.k.lookup(root, "open"), -ENOENT);
}

// What the kernel forgot goes when it is clean, and is learned again with the same st_ino.
TEST(LiveTree, ForgottenAndLearnedAgain)
{
	Ground ground;
	Worker w(ground, true);
	ASSERT_EQ(w.t.err, 0);
	Client &k = w.k;
	File f;
	ASSERT_EQ(k.create(root, "f", &f, O_WRONLY | O_CREAT | O_EXCL), 0);
	ASSERT_EQ(k.write(f, "bytes"), 0);
	k.forget_all(f.id); // dirty and open: it stays
	shim_tidy(w.fs);
	ASSERT_EQ(k.lookup(root, "f"), 0);
	EXPECT_EQ(k.id, f.id);
	ASSERT_EQ(k.close(f), 0);
	ASSERT_EQ(k.getattr(f.id), 0);
	ASSERT_EQ(w.drain(), 0);
	ASSERT_EQ(k.mkdir(root, "d"), 0);
	uint64_t dir = k.id;
	ASSERT_EQ(w.drain(), 0);
	ASSERT_EQ(k.getattr(dir), 0);
	fuse_attr before = k.attr;
	k.forget_all(dir);
	shim_tidy(w.fs);
	EXPECT_EQ(k.getattr(dir), -ESTALE); // clean: it is gone
	ASSERT_EQ(k.lookup(root, "d"), 0);
	EXPECT_NE(k.id, dir);
	ASSERT_EQ(k.getattr(k.id), 0);
	EXPECT_EQ(k.ino, before.ino);
	EXPECT_EQ(k.attr.mode, before.mode);
}

// A file that nobody has closed yet takes one of another's names: the store still has that one's there when it is
// renamed onto it in turn, and a rename between two names of one file would leave both.
TEST(LiveTree, RenamedOntoANameItHadItself)
{
	Ground ground;
	Worker w(ground, true);
	ASSERT_EQ(w.t.err, 0);
	Client &k = w.k;
	File f;
	uint64_t x = k.put(root, "x", "bytes");
	ASSERT_NE(x, 0u);
	ASSERT_EQ(k.link(x, root, "y"), 0);
	ASSERT_EQ(k.create(root, "open", &f, O_WRONLY | O_CREAT | O_EXCL), 0);
	ASSERT_EQ(k.rename(root, "open", root, "y"), 0);
	ASSERT_EQ(k.rename(root, "x", root, "y"), 0);
	ASSERT_EQ(w.drain(), 0);
	EXPECT_EQ(tree_of(ground.store()), (Tree{{"y", "bytes"}}));
	EXPECT_EQ(k.lookup(root, "x"), -ENOENT);
	ASSERT_EQ(k.close(f), 0);
}

// A worker lets go of a directory; the next one must not have it again, for the third one's log says that it
// is gone, and what came into it meanwhile with it. The whiteout is what could keep it.
TEST(LiveTree, ForgottenOverTwoRestarts)
{
	Ground ground;
	std::filesystem::create_directory(ground.store() + "/d");
	{
		Worker w(ground, true);
		ASSERT_EQ(w.t.err, 0);
		ASSERT_EQ(w.k.lookup(root, "d"), 0);
		uint64_t dir = w.k.id;
		ASSERT_NE(w.k.put(dir, "a", ""), 0u);
		ASSERT_EQ(w.k.rename(dir, "a", root, "b"), 0);
		ASSERT_EQ(w.drain(), 0);
		w.k.forget_all(dir);
		shim_tidy(w.fs);
		ASSERT_EQ(w.k.getattr(dir), -ESTALE);
	}
	{
		Worker w(ground);
		ASSERT_EQ(w.t.err, 0);
		ASSERT_EQ(w.k.lookup(root, "d"), 0);
		ASSERT_NE(w.k.put(w.k.id, "c", "bytes"), 0u);
	}
	Worker w(ground);
	ASSERT_EQ(w.t.err, 0);
	ASSERT_EQ(w.k.lookup(root, "d"), 0);
	EXPECT_EQ(w.k.lookup(w.k.id, "c"), 0);
	ASSERT_EQ(shim_start(w.fs), 0);
	ASSERT_EQ(w.drain(), 0);
	EXPECT_TRUE(w.t.notes.empty()) << w.t.notes[0];
	EXPECT_EQ(tree_of(ground.store()), (Tree{{"b", ""}, {"d/", ""}, {"d/c", "bytes"}}));
}

// A trainer that rotates its checkpoints removes names for years.
TEST(LiveTree, WhatIsRemovedIsForgotten)
{
	Ground ground;
	Worker w(ground, true);
	ASSERT_EQ(w.t.err, 0);
	Client &k = w.k;
	size_t nodes, names, nodes_then, names_then;
	shim_held(w.fs, &nodes, &names);
	for (int step = 0; step < 20; step++) {
		std::string d = "step-" + std::to_string(step);
		ASSERT_EQ(k.mkdir(root, d), 0);
		uint64_t dir = k.id, file = k.put(dir, "tmp", "bytes");
		ASSERT_NE(file, 0u);
		ASSERT_EQ(k.rename(dir, "tmp", dir, "shard"), 0);
		if (step % 2) {
			ASSERT_EQ(w.drain(), 0);
		}
		ASSERT_EQ(k.unlink(dir, "shard"), 0);
		ASSERT_EQ(k.rmdir(root, d), 0);
		shim_held(w.fs, &nodes_then, &names_then);
		EXPECT_EQ(k.lookup(root, d), -ENOENT);
		k.forget_all(file);
		k.forget_all(dir);
	}
	ASSERT_EQ(w.drain(), 0);
	shim_held(w.fs, &nodes_then, &names_then);
	EXPECT_EQ(nodes_then, nodes);
	EXPECT_EQ(names_then, names);
}

// The same for all that is allocated: a file, its versions, their records, what is remembered of them.
// Tables of a fixed size fill up in the first rounds; then not 64 bytes a checkpoint are left.
TEST(LiveTree, RotationLeavesNoMemoryBehind)
{
	Ground ground;
	Worker w(ground, true);
	ASSERT_EQ(w.t.err, 0);
	Client &k = w.k;
	const int steps = 300;
	size_t held[3] = {}, nodes, names;
	auto allocated = [] { return mallinfo2().uordblks; };
	for (int round = 0; round < 3; round++) {
		for (int step = 0; step < steps; step++) {
			std::string d = "step-" + std::to_string(round * steps + step);
			uint64_t id[2];
			ASSERT_EQ(k.mkdir(root, d), 0);
			uint64_t dir = k.id;
			for (int i = 0; i < 2; i++) {
				ASSERT_NE(id[i] = k.put(dir, "tmp", "bytes"), 0u);
				ASSERT_EQ(k.rename(dir, "tmp", dir, i ? ".metadata" : "shard"), 0);
			}
			if (step % 30 == 29) {
				ASSERT_EQ(w.drain(), 0);
			}
			ASSERT_EQ(k.unlink(dir, "shard"), 0);
			ASSERT_EQ(k.unlink(dir, ".metadata"), 0);
			ASSERT_EQ(k.rmdir(root, d), 0);
			for (uint64_t n : {id[0], id[1], dir})
				k.forget_all(n);
			k.told.clear();
		}
		ASSERT_EQ(w.drain(), 0);
		shim_held(w.fs, &nodes, &names);
		held[round] = allocated();
	}
	EXPECT_TRUE(until([&] { return allocated() < held[1] + steps * 64; }))
		<< allocated() << " bytes, after the rounds " << held[0] << ", " << held[1] << ", " << held[2];
}

// A file that is written for ever, at one place or at two in turn, costs the same each time: not one
// place more is remembered for each version, published or not.
TEST(LiveTree, VersionsLeaveNoPlacesBehind)
{
	for (bool publishes : {false, true}) {
		SCOPED_TRACE(publishes);
		Ground ground;
		Worker w(ground, publishes);
		ASSERT_EQ(w.t.err, 0);
		Client &k = w.k;
		File f;
		ASSERT_EQ(k.create(root, "f", &f, O_WRONLY | O_CREAT | O_EXCL), 0);
		for (int i = 0; i < 200; i++) {
			ASSERT_EQ(k.write(f, "x"), 0);
			ASSERT_EQ(k.close(f), 0);
			ASSERT_EQ(k.open_name(root, "f", O_WRONLY | O_TRUNC, &f), 0);
		}
		EXPECT_LE(shim_places(w.fs, f.id), 2u);
		ASSERT_EQ(k.close(f), 0);
		for (int i = 0; publishes && i < 100; i++) {
			ASSERT_EQ(k.rename(root, i % 2 ? "g" : "f", root, i % 2 ? "f" : "g"), 0);
			ASSERT_EQ(w.drain(), 0);
			ASSERT_LE(shim_places(w.fs, f.id), 2u);
		}
	}
}

// A reader whose file gets a new version keeps the old one, though it has no name any more.
TEST(LiveTree, AKeptVersionCanBeAskedFor)
{
	Ground ground;
	Worker w(ground, true, true);
	ASSERT_EQ(w.t.err, 0);
	Client &k = w.k;
	File reader;
	write_file(ground.store() + "/f", "old");
	ASSERT_EQ(k.open_name(root, "f", O_RDONLY, &reader), 0);
	ASSERT_EQ(k.rewrite(root, "f", "newer"), 0);
	ASSERT_EQ(w.drain(), 0);
	EXPECT_EQ(k.lseek(reader, 0, SEEK_HOLE), 3); // opens it once more
	EXPECT_EQ(k.read_all(reader), "old");
	ASSERT_EQ(k.close(reader), 0);
}

} // namespace

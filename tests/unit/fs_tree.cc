// SPDX-License-Identifier: MIT
//
// The live tree against a plain model of a filesystem, under seeded random changes; and event
// sourcing: a worker that replays the log has the same tree, links, inode numbers and handles.
#include <malloc.h>

#include "tests/unit/fs_fixture.hh"

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
	uint64_t fh;
	Ref inode;
	bool writer;
};

class Model {
public:
	Model(LiveTree &t, uint64_t seed, bool threads) : rng(seed), t_(&t), threads_(threads)
	{
		top->dir = true;
	}

	// The next worker's tree stands in for the last.
	void moved_to(LiveTree &t) { t_ = &t; }

	void change()
	{
		std::vector<std::string> at = any_dir(), at2 = any_dir();
		const std::string &name = pool[rng() % pool.size()],
				  &name2 = pool[rng() % pool.size()];
		uint64_t dir = id_of(at), dir2 = id_of(at2), id = 0, fh = 0;
		Ref d = walk(at), d2 = walk(at2);
		Ref n = d->names.count(name) ? d->names[name] : nullptr;
		Ref victim = d2->names.count(name2) ? d2->names[name2] : nullptr;
		struct fs *fs = t_->fs;

		switch (rng() % 13) {
		case 0:
			ASSERT_EQ(shim_mkdir(fs, dir, name.c_str(), &id), n ? -EEXIST : 0);
			if (!n)
				add(d, name, true);
			break;
		case 1:
			ASSERT_EQ(shim_symlink(fs, dir, name.c_str(), "to/there"), n ? -EEXIST : 0);
			if (!n) {
				add(d, name, false)->link = true;
				d->names[name]->bytes = "to/there";
			}
			break;
		case 2:
		case 3:
		case 4: { // a file, open for a while
			ASSERT_EQ(shim_create(fs, dir, name.c_str(), &id, &fh), n ? -EEXIST : 0);
			if (n)
				break;
			Handle h = {fh, add(d, name, false), true};
			open.push_back(h);
			write(h);
			break;
		}
		case 5: { // again, for writing or reading
			if (!n || n->dir || n->link || is_open_for_write(n))
				break;
			bool read = rng() % 2, trunc = !threads_ || rng() % 2;
			int flags = read ? O_RDONLY : O_WRONLY | (trunc ? O_TRUNC : 0);
			ASSERT_EQ(shim_open_file(fs, dir, name.c_str(), flags, &fh), 0);
			Handle h = {fh, n, !read};
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
			ASSERT_EQ(shim_unlink(fs, dir, name.c_str()), want);
			if (!want)
				drop(d, name);
			break;
		}
		case 9: {
			int want = !n		      ? -ENOENT
				   : !n->dir	      ? -ENOTDIR
				   : n->names.empty() ? 0
						      : -ENOTEMPTY;
			ASSERT_EQ(shim_rmdir(fs, dir, name.c_str()), want);
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
			ASSERT_EQ(shim_rename(fs, dir, name.c_str(), dir2, name2.c_str()), want);
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
			uint64_t nid = 0;
			ASSERT_EQ(shim_lookup(fs, dir, name.c_str(), &nid), 0);
			if (rng() % 2) {
				ASSERT_EQ(shim_link(fs, nid, dir2, name2.c_str()),
					  victim ? -EEXIST : 0);
				if (!victim) {
					d2->names[name2] = n;
					n->nlink++;
				}
			} else if (!n->link) {
				n->mode = 0600 + rng() % 64;
				ASSERT_EQ(shim_chmod(fs, nid, n->mode), 0);
			}
		}
		}
	}

	void close_one()
	{
		if (open.empty())
			return;
		size_t i = rng() % open.size();
		ASSERT_EQ(shim_close(t_->fs, open[i].fh), 0);
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
		ASSERT_EQ(shim_handles(t_->fs), open.size());
		for (Handle &h : open) {
			bool writer = false;
			uint64_t id = shim_handle(t_->fs, h.fh, &writer);
			ASSERT_NE(id, 0u);
			ASSERT_EQ(writer, h.writer);
			if (!h.writer)
				continue; // a fork may have left it an older version
			std::string got(h.inode->bytes.size() + 1, 0);
			ASSERT_EQ(shim_read(t_->fs, id, got.data(), got.size()),
				  (ssize_t)h.inode->bytes.size());
			got.pop_back();
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
			uint64_t child = 0;
			struct stat st;
			int rc = shim_lookup(t_->fs, id, name.c_str(), &child);
			auto it = dir->names.find(name);
			ASSERT_EQ(rc, it == dir->names.end() ? -ENOENT : 0);
			if (rc)
				continue;
			Ref n = it->second;
			ASSERT_EQ(shim_stat(t_->fs, child, &st), 0);
			ASSERT_EQ(st.st_mode & S_IFMT,
				  (unsigned)(n->dir ? S_IFDIR : n->link ? S_IFLNK : S_IFREG));
			if (!n->ino && !n->link)
				n->ino = st.st_ino;
			if (!n->link) {
				ASSERT_EQ(st.st_ino, n->ino);
			}
			if (n->dir) {
				check_dir(child, n, path + "/" + name);
				if (::testing::Test::HasFatalFailure())
					return;
				continue;
			}
			ASSERT_EQ(st.st_nlink, n->nlink);
			ASSERT_EQ((size_t)st.st_size, n->bytes.size());
			if (n->link)
				continue;
			ASSERT_EQ(st.st_mode & 07777, n->mode);
			std::string got(n->bytes.size() + 1, 0);
			ASSERT_EQ(shim_read(t_->fs, child, got.data(), got.size()),
				  (ssize_t)n->bytes.size());
			got.pop_back();
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
		ASSERT_EQ(shim_write(t_->fs, h.fh, bytes.data(), bytes.size(), off), 0);
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
		for (auto &name : at)
			EXPECT_EQ(shim_lookup(t_->fs, id, name.c_str(), &id), 0) << name;
		return id;
	}
	LiveTree *t_;
	bool threads_;
};

#define STOP_IF_FAILED()                                                                           \
	if (::testing::Test::HasFatalFailure())                                                    \
	return

void random_life(uint64_t seed, bool threads, bool kills, bool rotate)
{
	SCOPED_TRACE("seed " + std::to_string(seed));
	Ground ground;
	auto t = std::make_unique<LiveTree>(ground, threads);
	ASSERT_EQ(t->err, 0);
	Model m(*t, seed, threads);
	for (int step = 0; step < 150; step++) {
		SCOPED_TRACE("step " + std::to_string(step));
		m.change();
		STOP_IF_FAILED();
		if (step % 5 == 0)
			m.check();
		STOP_IF_FAILED();
		if (threads && m.rng() % 25 == 0) {
			ASSERT_EQ(staging_drain(t->s(), 60000), 0);
			if (rotate) {
				int rc = shim_rotate(t->fs);
				ASSERT_EQ(rc, 0);
			}
			m.check();
			STOP_IF_FAILED();
		}
		if (kills && m.rng() % 20 == 0) {
			t.reset();
			t = std::make_unique<LiveTree>(ground, threads);
			ASSERT_EQ(t->err, 0);
			m.moved_to(*t);
			m.check();
			STOP_IF_FAILED();
		}
	}
	m.close_all();
	STOP_IF_FAILED();
	if (!threads) {
		ASSERT_EQ(shim_start(t->fs), 0);
	}
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	m.check();
	STOP_IF_FAILED();
	EXPECT_TRUE(tree_of(ground.store()) == m.tree())
		<< show(tree_of(ground.store())) << "\nwanted " << show(m.tree());
	for (auto &text : t->notes)
		ADD_FAILURE() << text;
}

TEST(LiveTree, EqualsTheModelWithNothingPublished)
{
	for (uint64_t seed = 1; seed <= 8 && !HasFatalFailure(); seed++)
		random_life(seed, false, false, false);
}

TEST(LiveTree, ReplayedIsTheSame)
{
	for (uint64_t seed = 101; seed <= 108 && !HasFatalFailure(); seed++)
		random_life(seed, false, true, false);
}

TEST(LiveTree, EqualsTheModelWhileItPublishes)
{
	for (uint64_t seed = 201; seed <= 203 && !HasFatalFailure(); seed++)
		random_life(seed, true, false, false);
}

TEST(LiveTree, ReplayedWhileItPublishes)
{
	for (uint64_t seed = 301; seed <= 304 && !HasFatalFailure(); seed++)
		random_life(seed, true, true, false);
}

TEST(LiveTree, ReplayedFromARotatedLog)
{
	for (uint64_t seed = 401; seed <= 404 && !HasFatalFailure(); seed++)
		random_life(seed, true, true, true);
}

// Readers keep what they have open, the next open sees the new version, st_ino is one.
TEST(LiveTree, AWriterForksFromReaders)
{
	Ground ground;
	auto t = std::make_unique<LiveTree>(ground);
	ASSERT_EQ(t->err, 0);
	uint64_t id, old_id, fh, reader, writer, again;
	struct stat before, after;
	ASSERT_EQ(shim_create(t->fs, root, "f", &id, &fh), 0);
	ASSERT_EQ(shim_write(t->fs, fh, "old", 3, 0), 0);
	ASSERT_EQ(shim_close(t->fs, fh), 0);
	ASSERT_EQ(shim_stat(t->fs, id, &before), 0);
	ASSERT_EQ(shim_open_file(t->fs, root, "f", O_RDONLY, &reader), 0);
	ASSERT_EQ(shim_open_file(t->fs, root, "f", O_WRONLY | O_TRUNC, &writer), 0);
	ASSERT_EQ(shim_write(t->fs, writer, "newer", 5, 0), 0);
	char buf[8] = {};
	old_id = shim_handle(t->fs, reader, nullptr);
	EXPECT_EQ(old_id, id);
	EXPECT_EQ(shim_read(t->fs, old_id, buf, 8), 3);
	EXPECT_STREQ(buf, "old");
	ASSERT_EQ(shim_lookup(t->fs, root, "f", &again), 0);
	EXPECT_NE(again, id);
	ASSERT_EQ(shim_stat(t->fs, again, &after), 0);
	EXPECT_EQ(after.st_ino, before.st_ino);
	EXPECT_EQ(after.st_size, 5);
	t.reset(); // and so it is for the next worker
	LiveTree next(ground, true);
	ASSERT_EQ(next.err, 0);
	EXPECT_EQ(shim_handle(next.fs, reader, nullptr), id);
	EXPECT_EQ(shim_handle(next.fs, writer, nullptr), again);
	EXPECT_EQ(shim_read(next.fs, id, buf, 8), 3);
	EXPECT_STREQ(buf, "old");
	ASSERT_EQ(shim_close(next.fs, writer), 0);
	ASSERT_EQ(shim_close(next.fs, reader), 0);
	ASSERT_EQ(staging_drain(next.s(), 60000), 0);
	EXPECT_EQ(read_file(ground.store() + "/f"), "newer");
}

// Another node of the cluster publishes into the same store: clean names are asked each time.
TEST(LiveTree, CleanNamesAreTheStores)
{
	Ground ground;
	LiveTree t(ground, true);
	ASSERT_EQ(t.err, 0);
	uint64_t id, dir, fh;
	char buf[16] = {};
	EXPECT_EQ(shim_lookup(t.fs, root, "theirs", &id), -ENOENT);
	EXPECT_EQ(shim_lookup(t.fs, root, ".cairn", &id),
		  -ENOENT); // found, never as a store's file
	write_file(ground.store() + "/theirs", "one");
	ASSERT_EQ(shim_lookup(t.fs, root, "theirs", &id), 0);
	EXPECT_EQ(shim_read(t.fs, id, buf, sizeof(buf)), 3);
	write_file(ground.store() + "/x", "other");
	std::filesystem::rename(ground.store() + "/x", ground.store() + "/theirs");
	uint64_t second;
	ASSERT_EQ(shim_lookup(t.fs, root, "theirs", &second), 0);
	EXPECT_NE(second, id); // another file
	EXPECT_EQ(shim_read(t.fs, second, buf, sizeof(buf)), 5);
	std::filesystem::remove(ground.store() + "/theirs");
	EXPECT_EQ(shim_lookup(t.fs, root, "theirs", &id), -ENOENT);

	std::filesystem::create_directories(ground.store() + "/deep/er");
	ASSERT_EQ(shim_lookup(t.fs, root, "deep", &dir), 0);
	EXPECT_EQ(shim_rmdir(t.fs, root, "deep"), -ENOTEMPTY);
	ASSERT_EQ(shim_lookup(t.fs, dir, "er", &dir), 0);
	ASSERT_EQ(shim_create(t.fs, dir, "ours", &id, &fh), 0);
	ASSERT_EQ(shim_close(t.fs, fh), 0);
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	EXPECT_TRUE(std::filesystem::exists(ground.store() + "/deep/er/ours"));
}

// At a first start no handle of the last connection lives, and nothing of the tree is needed:
// the order alone is carried out.
TEST(LiveTree, AFirstStartTakesTheOrderOnly)
{
	Ground ground;
	uint64_t id, fh;
	{
		LiveTree t(ground);
		ASSERT_EQ(t.err, 0);
		ASSERT_EQ(shim_mkdir(t.fs, root, "d", &id), 0);
		ASSERT_EQ(shim_create(t.fs, id, "f", &id, &fh), 0);
		ASSERT_EQ(shim_write(t.fs, fh, "bytes", 5, 0), 0);
		ASSERT_EQ(shim_close(t.fs, fh), 0);
		ASSERT_EQ(shim_create(t.fs, root, "open", &id, &fh), 0);
		ASSERT_EQ(shim_write(t.fs, fh, "half", 4, 0), 0);
	}
	LiveTree t(ground, true, true);
	ASSERT_EQ(t.err, 0);
	EXPECT_EQ(shim_handles(t.fs), 0u);
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	EXPECT_EQ(show(tree_of(ground.store())), "d/=0 d/f=5,98 ");
	ASSERT_EQ(shim_lookup(t.fs, root, "d", &id), 0);
	ASSERT_EQ(shim_lookup(t.fs, id, "f", &id), 0);
	EXPECT_EQ(shim_lookup(t.fs, root, "open", &id), -ENOENT);
}

// What the kernel forgot goes when it is clean, and is learned again with the same st_ino.
TEST(LiveTree, ForgottenAndLearnedAgain)
{
	Ground ground;
	LiveTree t(ground, true);
	ASSERT_EQ(t.err, 0);
	uint64_t id, again, fh;
	struct stat before, after;
	ASSERT_EQ(shim_create(t.fs, root, "f", &id, &fh), 0);
	ASSERT_EQ(shim_write(t.fs, fh, "bytes", 5, 0), 0);
	ASSERT_EQ(shim_forget(t.fs, id), 0); // dirty and open: it stays
	ASSERT_EQ(shim_lookup(t.fs, root, "f", &again), 0);
	EXPECT_EQ(again, id);
	ASSERT_EQ(shim_close(t.fs, fh), 0);
	ASSERT_EQ(shim_stat(t.fs, id, &before), 0);
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	uint64_t dir, sub;
	ASSERT_EQ(shim_mkdir(t.fs, root, "d", &dir), 0);
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	ASSERT_EQ(shim_stat(t.fs, dir, &before), 0);
	ASSERT_EQ(shim_forget(t.fs, dir), 0);
	EXPECT_EQ(shim_stat(t.fs, dir, &after), -ESTALE); // clean: it is gone
	ASSERT_EQ(shim_lookup(t.fs, root, "d", &sub), 0);
	EXPECT_NE(sub, dir);
	ASSERT_EQ(shim_stat(t.fs, sub, &after), 0);
	EXPECT_EQ(after.st_ino, before.st_ino);
	EXPECT_EQ(after.st_mode, before.st_mode);
}

// A file that nobody has closed yet takes one of another's names: the store still has that one's there when it is
// renamed onto it in turn, and a rename between two names of one file would leave both.
TEST(LiveTree, RenamedOntoANameItHadItself)
{
	Ground ground;
	LiveTree t(ground, true);
	ASSERT_EQ(t.err, 0);
	uint64_t id, fh;
	ASSERT_EQ(shim_create(t.fs, root, "x", &id, &fh), 0);
	ASSERT_EQ(shim_write(t.fs, fh, "bytes", 5, 0), 0);
	ASSERT_EQ(shim_close(t.fs, fh), 0);
	ASSERT_EQ(shim_link(t.fs, id, root, "y"), 0);
	ASSERT_EQ(shim_create(t.fs, root, "open", &id, &fh), 0);
	ASSERT_EQ(shim_rename(t.fs, root, "open", root, "y"), 0);
	ASSERT_EQ(shim_rename(t.fs, root, "x", root, "y"), 0);
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	EXPECT_EQ(tree_of(ground.store()), (Tree{{"y", "bytes"}}));
	EXPECT_EQ(shim_lookup(t.fs, root, "x", &id), -ENOENT);
	ASSERT_EQ(shim_close(t.fs, fh), 0);
}

// A worker lets go of a directory; the next one must not have it again, for the third one's log says that it
// is gone, and what came into it meanwhile with it. The whiteout is what could keep it.
TEST(LiveTree, ForgottenOverTwoRestarts)
{
	Ground ground;
	std::filesystem::create_directory(ground.store() + "/d");
	uint64_t dir, id, fh;
	{
		LiveTree t(ground, true);
		ASSERT_EQ(t.err, 0);
		ASSERT_EQ(shim_lookup(t.fs, root, "d", &dir), 0);
		ASSERT_EQ(shim_create(t.fs, dir, "a", &id, &fh), 0);
		ASSERT_EQ(shim_close(t.fs, fh), 0);
		ASSERT_EQ(shim_rename(t.fs, dir, "a", root, "b"), 0);
		ASSERT_EQ(staging_drain(t.s(), 60000), 0);
		ASSERT_EQ(shim_forget(t.fs, dir), 0);
	}
	{
		LiveTree t(ground);
		ASSERT_EQ(t.err, 0);
		ASSERT_EQ(shim_lookup(t.fs, root, "d", &dir), 0);
		ASSERT_EQ(shim_create(t.fs, dir, "c", &id, &fh), 0);
		ASSERT_EQ(shim_write(t.fs, fh, "bytes", 5, 0), 0);
		ASSERT_EQ(shim_close(t.fs, fh), 0);
	}
	LiveTree t(ground);
	ASSERT_EQ(t.err, 0);
	ASSERT_EQ(shim_lookup(t.fs, root, "d", &dir), 0);
	EXPECT_EQ(shim_lookup(t.fs, dir, "c", &id), 0);
	ASSERT_EQ(shim_start(t.fs), 0);
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	EXPECT_TRUE(t.notes.empty()) << t.notes[0];
	EXPECT_EQ(tree_of(ground.store()), (Tree{{"b", ""}, {"d/", ""}, {"d/c", "bytes"}}));
}

// A trainer that rotates its checkpoints removes names for years.
TEST(LiveTree, WhatIsRemovedIsForgotten)
{
	Ground ground;
	LiveTree t(ground, true);
	ASSERT_EQ(t.err, 0);
	size_t nodes, names, nodes_then, names_then;
	shim_held(t.fs, &nodes, &names);
	for (int step = 0; step < 20; step++) {
		uint64_t dir, id, fh;
		std::string d = "step-" + std::to_string(step);
		ASSERT_EQ(shim_mkdir(t.fs, root, d.c_str(), &dir), 0);
		ASSERT_EQ(shim_create(t.fs, dir, "tmp", &id, &fh), 0);
		ASSERT_EQ(shim_write(t.fs, fh, "bytes", 5, 0), 0);
		ASSERT_EQ(shim_close(t.fs, fh), 0);
		ASSERT_EQ(shim_rename(t.fs, dir, "tmp", dir, "shard"), 0);
		if (step % 2) {
			ASSERT_EQ(staging_drain(t.s(), 60000), 0);
		}
		ASSERT_EQ(shim_unlink(t.fs, dir, "shard"), 0);
		ASSERT_EQ(shim_rmdir(t.fs, root, d.c_str()), 0);
		shim_held(t.fs, &nodes_then, &names_then);
		uint64_t none;
		EXPECT_EQ(shim_lookup(t.fs, root, d.c_str(), &none), -ENOENT);
		shim_forget(t.fs, id);
		shim_forget(t.fs, dir);
	}
	ASSERT_EQ(staging_drain(t.s(), 60000), 0);
	shim_held(t.fs, &nodes_then, &names_then);
	EXPECT_EQ(nodes_then, nodes);
	EXPECT_EQ(names_then, names);
}

// The same for all that is allocated: a file, its versions, their records, what is remembered of them.
// Tables of a fixed size fill up in the first rounds; then not 64 bytes a checkpoint are left.
TEST(LiveTree, RotationLeavesNoMemoryBehind)
{
	Ground ground;
	LiveTree t(ground, true);
	ASSERT_EQ(t.err, 0);
	const int steps = 300;
	size_t held[3] = {}, nodes, names;
	auto allocated = [] { return mallinfo2().uordblks; };
	for (int round = 0; round < 3; round++) {
		for (int step = 0; step < steps; step++) {
			std::string d = "step-" + std::to_string(round * steps + step);
			uint64_t dir, id[2], fh;
			ASSERT_EQ(shim_mkdir(t.fs, root, d.c_str(), &dir), 0);
			for (int i = 0; i < 2; i++) {
				ASSERT_EQ(shim_create(t.fs, dir, "tmp", &id[i], &fh), 0);
				ASSERT_EQ(shim_write(t.fs, fh, "bytes", 5, 0), 0);
				ASSERT_EQ(shim_close(t.fs, fh), 0);
				ASSERT_EQ(shim_rename(t.fs, dir, "tmp", dir, i ? ".metadata" : "shard"), 0);
			}
			if (step % 30 == 29) {
				ASSERT_EQ(staging_drain(t.s(), 60000), 0);
			}
			ASSERT_EQ(shim_unlink(t.fs, dir, "shard"), 0);
			ASSERT_EQ(shim_unlink(t.fs, dir, ".metadata"), 0);
			ASSERT_EQ(shim_rmdir(t.fs, root, d.c_str()), 0);
			for (uint64_t n : {id[0], id[1], dir})
				shim_forget(t.fs, n);
		}
		ASSERT_EQ(staging_drain(t.s(), 60000), 0);
		shim_held(t.fs, &nodes, &names);
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
		LiveTree t(ground, publishes);
		ASSERT_EQ(t.err, 0);
		uint64_t id, fh;
		ASSERT_EQ(shim_create(t.fs, root, "f", &id, &fh), 0);
		for (int i = 0; i < 200; i++) {
			ASSERT_EQ(shim_write(t.fs, fh, "x", 1, 0), 0);
			ASSERT_EQ(shim_close(t.fs, fh), 0);
			ASSERT_EQ(shim_open_file(t.fs, root, "f", O_WRONLY | O_TRUNC, &fh), 0);
		}
		EXPECT_LE(shim_places(t.fs, id), 2u);
		ASSERT_EQ(shim_close(t.fs, fh), 0);
		for (int i = 0; publishes && i < 100; i++) {
			ASSERT_EQ(shim_rename(t.fs, root, i % 2 ? "g" : "f", root, i % 2 ? "f" : "g"), 0);
			ASSERT_EQ(staging_drain(t.s(), 60000), 0);
			ASSERT_LE(shim_places(t.fs, id), 2u);
		}
	}
}

// A reader whose file gets a new version keeps the old one, though it has no name any more.
TEST(LiveTree, AKeptVersionCanBeAskedFor)
{
	Ground ground;
	auto t = std::make_unique<LiveTree>(ground, true, true);
	ASSERT_EQ(t->err, 0);
	uint64_t reader, writer;
	char buf[8] = {};
	write_file(ground.store() + "/f", "old");
	ASSERT_EQ(shim_open_file(t->fs, root, "f", O_RDONLY, &reader), 0);
	ASSERT_EQ(shim_open_file(t->fs, root, "f", O_WRONLY | O_TRUNC, &writer), 0);
	ASSERT_EQ(shim_write(t->fs, writer, "newer", 5, 0), 0);
	ASSERT_EQ(shim_close(t->fs, writer), 0);
	ASSERT_EQ(staging_drain(t->s(), 60000), 0);
	Fd fd(shim_open_kept(t->fs, reader));
	ASSERT_GE(fd.get(), 0) << strerror(-fd.get());
	EXPECT_EQ(pread(fd.get(), buf, sizeof(buf), 0), 3);
	EXPECT_STREQ(buf, "old");
	ASSERT_EQ(shim_close(t->fs, reader), 0);
}

} // namespace

// SPDX-License-Identifier: MIT
// timeout: 300
//
// Workers that die between two records. A script of operations runs; after each, what is staged is kept. The log is
// cut behind each of its records, and the next worker must show the tree as it was after the operations whose records
// are whole: names, numbers, attributes, bytes, xattrs, handles. Then it publishes, and shows the same.
#include "tests/unit/fs_client.hh"
#include "tests/unit/log_cut.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

// All that the mount shows.
class Look {
public:
	// ids: nobody forgot any
	Look(Client &k, bool ids) : k_(k), ids_(ids) { dir(root, ""); }
	std::map<std::string, std::string> seen;

private:
	void dir(uint64_t id, const std::string &path)
	{
		k_.list(id);
		EXPECT_EQ(k_.err, 0) << path;
		std::vector<std::string> names;
		for (auto &[name, what] : k_.names)
			if (name != "." && name != "..")
				names.push_back(name);
		for (auto &name : names) {
			ASSERT_EQ(k_.lookup(id, name), 0) << path << name;
			uint64_t child = k_.id;
			fuse_attr a = k_.attr;
			std::string &s = seen[path + name];
			s = (ids_ ? std::to_string(child) : "") + " ino " + std::to_string(a.ino) + " mode " + std::to_string(a.mode) +
			    " links " + std::to_string(a.nlink) + " owner " + std::to_string(a.uid) + "," +
			    std::to_string(a.gid) + xattrs(child);
			if (S_ISLNK(a.mode) && !k_.readlink(child))
				s += " -> " + k_.bytes;
			if (S_ISREG(a.mode))
				s += " " + std::to_string(a.size) + ": " + bytes(child, a.size);
			if (S_ISDIR(a.mode))
				dir(child, path + name + "/");
			k_.forget(child);
		}
	}
	std::string bytes(uint64_t id, uint64_t size)
	{
		std::string got = k_.get(id);
		EXPECT_EQ(k_.err, 0);
		EXPECT_EQ(got.size(), size);
		return got;
	}
	std::string xattrs(uint64_t id)
	{
		std::string all, keys;
		if (k_.listxattr(id))
			return " no xattrs " + std::to_string(k_.err);
		keys = k_.bytes;
		for (size_t at = 0; at < keys.size(); at += strlen(&keys[at]) + 1) {
			EXPECT_EQ(k_.getxattr(id, &keys[at]), 0);
			all += std::string(" ") + &keys[at] + "=" + k_.bytes;
		}
		return all;
	}
	Client &k_;
	bool ids_;
};
using Seen = std::map<std::string, std::string>;

std::string text(const Seen &s)
{
	std::string all;
	for (auto &[name, what] : s)
		all += name + ": " + what + "\n";
	return all;
}

class Replay : public ::testing::Test
{
protected:
	using Step = std::function<int(Client &k)>;	// 0: as it should be

	// Not with what waits for bytes on their way to the store: nothing is published meanwhile. publish: the store is
	// empty, so that it can be put back.
	void run(const std::vector<Step> &script, bool publish = true)
	{
		publishes = publish;
		live(script);
		if (HasFailure())
			return;
		unsigned tried = 0;
		for (size_t op = 0; op < ends.size() && !HasFailure(); op++)
			for (size_t end = op ? looked[op - 1] + 1 : ends[0]; end <= ends[op] && !HasFailure(); end++)
				if (!(tried++ % one_of()))
					cut(op, end);
	}

private:
	// ends[i], looked[i]: how many records there are after script[i - 1], and after the look at what it did.
	void live(const std::vector<Step> &script)
	{
		LiveTree t(ground, false, true);
		ASSERT_EQ(t.err, 0);
		Client k(t, SHIM_NO_UPKEEP);
		keep(t, k);
		for (size_t i = 0; i < script.size(); i++) {
			ASSERT_EQ(script[i](k), 0) << "step " << i;
			keep(t, k);
		}
		k.end();
	}
	void keep(LiveTree &t, Client &k)
	{
		handles.push_back(shim_handles(t.fs));
		saved.emplace_back(place_of(ground));
		std::string log = log_path(ground);
		ends.push_back(boundaries(saved.back().files.at(log.substr(log.rfind('/')))).size() - 1);
		seen.push_back(Look(k, publishes).seen);
		EXPECT_EQ(shim_handles(t.fs), handles.back());
		looked.push_back(boundaries(read_file(log)).size() - 1);
	}
	// Between the step before op and op, or behind it.
	void cut(size_t op, size_t end)
	{
		SCOPED_TRACE("step " + std::to_string(op) + ", record " + std::to_string(end));
		if (publishes)
			wipe_store(ground);
		saved[op].put_back();
		for (auto &[name, bytes] : saved[op ? op - 1 : 0].files)	// what the step removed is there still
			if (!saved[op].files.count(name))
				write_file(place_of(ground) + name, bytes);
		std::string log = read_file(log_path(ground));
		std::filesystem::resize_file(log_path(ground), boundaries(log)[end]);
		LiveTree t(ground);
		ASSERT_EQ(t.err, 0);
		Client k(t, SHIM_RESEND | SHIM_NO_UPKEEP);
		Seen now = Look(k, publishes).seen;
		if (end == ends[op]) {
			ASSERT_EQ(text(now), text(seen[op]));
			ASSERT_EQ(shim_handles(t.fs), handles[op]);
		} else {
			ASSERT_TRUE(now == seen[op] || now == seen[op - 1])
				<< text(now) << "\nbefore\n" << text(seen[op - 1]) << "\nafter\n" << text(seen[op]);
		}
		if (publishes) {
			ASSERT_EQ(shim_start(t.fs), 0);
			ASSERT_EQ(staging_drain(t.s(), 60000), 0);
			shim_evict(t.fs);
			ASSERT_EQ(text(Look(k, publishes).seen), text(now));
		}
		k.end();
		for (auto &text : t.notes)
			ADD_FAILURE() << text;
	}

protected:
	Ground ground;

private:
	bool publishes = true;
	std::vector<Seen> seen;
	std::vector<unsigned> handles;
	std::vector<Saved> saved;
	std::vector<size_t> ends, looked;
};

// What put() does, one request a step.
void put(std::vector<std::function<int(Client &k)>> &s, uint64_t *dir, const std::string &name, const std::string &what,
	 File *f)
{
	s.push_back([=](Client &k) { return k.create(*dir, name, f, O_WRONLY | O_CREAT | O_EXCL); });
	s.push_back([=](Client &k) { return k.write(*f, what); });
	s.push_back([=](Client &k) { return k.flush(*f); });
	s.push_back([=](Client &k) { return k.release(*f); });
}

TEST_F(Replay, OfACheckpoint)
{
	std::vector<Step> s;
	File f[3];
	uint64_t top = root, step = 0;
	s.push_back([&](Client &k) { k.mkdir(root, "step-1"); step = k.id; return k.err; });
	put(s, &step, "shard.tmp", pattern(5000, 1), &f[0]);
	s.push_back([&](Client &k) { return k.rename(step, "shard.tmp", step, "shard"); });
	put(s, &step, ".metadata.tmp", "metadata", &f[1]);
	s.push_back([&](Client &k) { return k.rename(step, ".metadata.tmp", step, ".metadata"); });
	put(s, &top, "latest.tmp", "step-1", &f[2]);
	s.push_back([&](Client &k) { return k.rename(root, "latest.tmp", root, "latest"); });
	s.push_back([&](Client &k) { return k.rename(root, "step-1", root, "step-2"); });
	run(s);
}

TEST_F(Replay, OfNamesThatComeAndGo)
{
	std::vector<Step> s;
	File f[2];
	uint64_t top = root, a = 0, b = 0;
	s.push_back([&](Client &k) { k.mkdir(root, "a"); a = k.id; return k.err; });
	s.push_back([&](Client &k) { k.mkdir(a, "b", 0700); b = k.id; return k.err; });
	s.push_back([&](Client &k) { return k.symlink(b, "link", "to/there"); });
	s.push_back([&](Client &k) { return k.mknod(b, "fifo", S_IFIFO | 0600); });
	s.push_back([&](Client &k) { return k.mknod(b, "empty", S_IFREG | 0604); });
	put(s, &top, "f", "bytes", &f[0]);
	s.push_back([&](Client &k) { return k.link(f[0].id, b, "g"); });
	s.push_back([&](Client &k) { return k.unlink(root, "f"); });
	s.push_back([&](Client &k) { return k.rename(b, "g", b, "empty"); });	// over a file
	s.push_back([&](Client &k) { return k.rename(a, "b", root, "c"); });
	s.push_back([&](Client &k) { return k.rmdir(root, "a"); });
	put(s, &top, "f", "another", &f[1]);
	s.push_back([&](Client &k) { return k.link(f[1].id, b, "h"); });
	s.push_back([&](Client &k) { return k.rename(root, "f", b, "h"); });	// of one file: nothing
	s.push_back([&](Client &k) { return k.rename(b, "empty", b, "h"); });	// over one of two names
	s.push_back([&](Client &k) { return k.unlink(b, "link"); });
	s.push_back([&](Client &k) { return k.unlink(b, "fifo"); });
	run(s);
}

TEST_F(Replay, OfAttributesAndXattrs)
{
	std::vector<Step> s;
	File f;
	uint64_t top = root, d = 0;
	put(s, &top, "f", "bytes", &f);
	s.push_back([&](Client &k) { k.mkdir(root, "d"); d = k.id; return k.err; });
	s.push_back([&](Client &k) { return k.chmod(f.id, 04750); });
	s.push_back([&](Client &k) { return k.chown(f.id, 4321, 77); });
	s.push_back([&](Client &k) { return k.chmod(d, 02700); });
	s.push_back([&](Client &k) { return k.setxattr(f.id, "user.a", "one"); });
	s.push_back([&](Client &k) { return k.setxattr(f.id, "user.b", std::string(1000, 'b')); });
	s.push_back([&](Client &k) { return k.setxattr(d, "user.d", ""); });
	s.push_back([&](Client &k) { return k.removexattr(f.id, "user.a"); });
	s.push_back([&](Client &k) { return k.open_name(root, "f", O_WRONLY | O_TRUNC, &f); });
	s.push_back([&](Client &k) { return k.truncate(f.id, 100, &f); });
	s.push_back([&](Client &k) { return k.utimes(f.id, {1000000000, 1}, {1100000000, 2}); });
	s.push_back([&](Client &k) { return k.close(f); });
	s.push_back([&](Client &k) { return k.chmod(root, 0711); });
	s.push_back([&](Client &k) { return k.rename(root, "f", d, "g"); });
	s.push_back([&](Client &k) { return k.chmod(f.id, 0600); });
	run(s);
}

TEST_F(Replay, OfVersionsAndTheirReaders)
{
	std::vector<Step> s;
	File f, r, w, r2;
	uint64_t top = root;
	put(s, &top, "f", "old", &f);
	s.push_back([&](Client &k) { return k.link(f.id, root, "g"); });
	s.push_back([&](Client &k) { return k.open_name(root, "f", O_RDONLY, &r); });
	s.push_back([&](Client &k) { return k.open(f.id, O_WRONLY | O_TRUNC, &w) != -ESTALE; });	// a fork
	s.push_back([&](Client &k) { return k.open_name(root, "g", O_WRONLY | O_TRUNC, &w); });
	s.push_back([&](Client &k) { return k.write(w, "newer"); });
	s.push_back([&](Client &k) { return k.read_all(r) != "old"; });
	s.push_back([&](Client &k) { return k.open_name(root, "f", O_RDONLY, &r2); });
	s.push_back([&](Client &k) { return k.close(w); });
	s.push_back([&](Client &k) { return k.release(r); });
	s.push_back([&](Client &k) { return k.release(r2); });
	s.push_back([&](Client &k) { return k.open_name(root, "f", O_WRONLY | O_TRUNC, &w); });
	s.push_back([&](Client &k) { return k.write(w, "newest"); });
	s.push_back([&](Client &k) { return k.close(w); });
	run(s);
}

TEST_F(Replay, OfFilesThatAreOpenWithoutAName)
{
	std::vector<Step> s;
	File f[3];
	uint64_t top = root;
	put(s, &top, "f", "bytes", &f[0]);
	s.push_back([&](Client &k) { return k.open_name(root, "f", O_RDONLY, &f[0]); });
	s.push_back([&](Client &k) { return k.create(root, "g", &f[1]); });
	s.push_back([&](Client &k) { return k.write(f[1], "half"); });
	s.push_back([&](Client &k) { return k.unlink(root, "f"); });
	s.push_back([&](Client &k) { return k.unlink(root, "g"); });
	s.push_back([&](Client &k) { return k.write(f[1], "written", 4); });
	put(s, &top, "f", "another", &f[2]);
	s.push_back([&](Client &k) { return k.release(f[0]); });
	s.push_back([&](Client &k) { return k.close(f[1]); });
	run(s);
}

// What the store has, and another may change: known by what the log says of it, not by being there first.
TEST_F(Replay, OverWhatTheStoreHas)
{
	write_file(ground.store() + "/f", "theirs");
	std::filesystem::create_directory(ground.store() + "/d");
	write_file(ground.store() + "/d/x", "x");
	write_file(ground.store() + "/d/y", "y");
	std::vector<Step> s;
	File f, w;
	uint64_t d = 0;
	s.push_back([&](Client &k) { k.lookup(root, "d"); d = k.id; return k.err; });
	s.push_back([&](Client &k) { return k.unlink(d, "x"); });
	s.push_back([&](Client &k) { return k.rename(d, "y", root, "z"); });
	s.push_back([&](Client &k) { return k.open_name(root, "f", O_WRONLY | O_TRUNC, &w); });
	s.push_back([&](Client &k) { return k.write(w, "ours"); });
	s.push_back([&](Client &k) { return k.close(w); });
	put(s, &d, "x", "ours too", &f);
	s.push_back([&](Client &k) { return k.rename(root, "d", root, "e"); });
	run(s, false);
}

} // namespace

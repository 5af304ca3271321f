// SPDX-License-Identifier: MIT
//
// Staging for tests: a store and a place of its own, opened, killed and found again as often
// as wanted; and a history of changes that knows what the store must hold after each of them.
#pragma once

#include <poll.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <random>

#include "staging/staging.h"
#include "tests/api/io_fixture.hh"

// A store's directory and a directory for staging. As root staging mounts its tmpfs below;
// they are unmounted whatever happened. Else it wants a tmpfs that is there already.
class Ground {
public:
	Ground() : run_(dir / "run")
	{
		std::filesystem::create_directory(dir / "store");
		if (geteuid()) {
			run_ = "/dev/shm/cairn-unit.XXXXXX";
			if (!mkdtemp(run_.data()))
				throw std::system_error(errno, std::generic_category(), run_);
		} else {
			std::filesystem::create_directory(run_);
		}
	}
	Ground(const Ground &) = delete;
	Ground &operator=(const Ground &) = delete;
	~Ground()
	{
		std::error_code ignored;
		for (auto &at : std::filesystem::directory_iterator(run_, ignored)) {
			for (const char *sub : {"/huge", "/small", ""})
				umount2((at.path().string() + sub).c_str(), MNT_DETACH);
			std::filesystem::remove_all(at.path(), ignored);
		}
		std::filesystem::remove_all(run_, ignored);
	}
	std::string store() const { return dir / "store"; }
	const std::string &run() const { return run_; }

	TempDir dir;

private:
	std::string run_;
};

// What a mounted tree looks like: path -> content, directories end in '/'.
using Tree = std::map<std::string, std::string>;

inline Tree tree_of(const std::string &root)
{
	Tree out;
	for (auto it = std::filesystem::recursive_directory_iterator(root);
	     it != std::filesystem::recursive_directory_iterator(); ++it) {
		std::string name = it->path().string().substr(root.size() + 1);
		if (name == ".cairn")
			it.disable_recursion_pending();
		else if (it->is_symlink())
			out[name] = "-> " + std::filesystem::read_symlink(it->path()).string();
		else if (it->is_directory())
			out[name + "/"];
		else
			out[name] = read_file(it->path());
	}
	return out;
}

// Short: contents are told by size and first byte.
inline std::string show(const Tree &t)
{
	std::string out;
	for (auto &[name, bytes] : t)
		out += name + "=" + std::to_string(bytes.size()) +
		       (bytes.empty() ? "" : "," + std::to_string((unsigned char)bytes[0])) + " ";
	return out;
}

struct Options {
	const char *fault = nullptr;
	const char *engine = "posix";
	uint64_t budget = 512u << 20;	// growing files are charged ahead of what they hold
	uint64_t pool = 0;
	uint64_t limit = 32ull << 30;	// of the tmpfs: files of unknown size want space to grow
	bool no_dedup = false;
	std::string meminfo;	// "" = the machine's
	const char *previous = nullptr;
	unsigned mapped_ms = 0, lack_ms = 0;
	bool start = true;	// else threads wait for start()
	bool orphaned = true;	// the writers died with the last process
	bool away = false;	// the store was let go of before the replay
	std::string store, run;	// "" = the ground's
	const char *host = nullptr;	// NULL = the hostname
	std::function<void(staging *, const rec *)> each;	// of a replay, as the frontend has it
	// staging_opts.outgrown, limit, limited; null: not used
	std::function<void(uint64_t node)> outgrown;
	std::function<void(bool on)> limits;
	std::function<int()> limited;
	std::function<int()> may_publish;
	bool is_limited = false;
	// does a .metadata there have to wait? enum staging_missing, or a bool
	std::function<int(uint64_t dir)> missing;
};

// Staging as a daemon would have it. What is destroyed without clear() is as after a kill:
// everything stays in place for the next one.
class Staging {
public:
	explicit Staging(Ground &ground, const Options &o = {})
		: store_path(o.store.empty() ? ground.store() : o.store), engine(o.engine, o.fault),
		  store(engine, store_path, false, o.host)
	{
		err = engine.err ? engine.err : store.err;
		frontend = o.each;
		place.base = place.huge = place.small = place.lock = -1;
		if (!err)
			err = staging_place_open(STAGING_ANY_NODE,
						 o.run.empty() ? ground.run().c_str() : o.run.c_str(),
					io_store_id(store), o.limit,
						 &place);
		staging_opts so = {};
		so.store = store;
		so.engine = engine.e;
		so.place = place;
		so.budget_bytes = o.budget;
		so.pool_bytes = o.pool;
		so.no_dedup = o.no_dedup;
		meminfo = o.meminfo;
		so.meminfo = meminfo.empty() ? nullptr : meminfo.c_str();
		so.previous = o.previous;
		so.mapped_ms = o.mapped_ms;
		so.lack_ms = o.lack_ms;
		missing = o.missing;
		if (missing)
			so.hold = {is_commit, asks_missing, 1000};
		outgrown = o.outgrown;
		if (outgrown)
			so.outgrown = [](void *ctx, uint64_t node) { static_cast<Staging *>(ctx)->outgrown(node); };
		limits = o.limits;
		if (limits)
			so.limit = [](void *ctx, bool on) { static_cast<Staging *>(ctx)->limits(on); };
		limited = o.limited;
		if (limited)
			so.limited = [](void *ctx) { return static_cast<Staging *>(ctx)->limited(); };
		may_publish = o.may_publish;
		if (may_publish)
			so.may_publish = [](void *ctx) { return static_cast<Staging *>(ctx)->may_publish(); };
		so.is_limited = o.is_limited;
		so.notice = note;
		so.ctx = this;
		if (!err)
			err = staging_open(&so, &s);
		if (!err && o.away)
			io_store_detach(store);
		if (!err)
			err = staging_replay(s, each, this);
		if (!err && !o.away)
			err = staging_sweep(s, o.orphaned);
		if (!err && o.start)
			start();
	}
	Staging(const Staging &) = delete;
	Staging &operator=(const Staging &) = delete;
	~Staging()
	{
		if (s)
			staging_close(s);
		staging_place_close(&place);
	}
	void start()
	{
		if (!err)
			err = staging_start(s);
	}
	operator staging *() const { return s; }

	int drain(int timeout_ms = 60000) { return staging_drain(s, timeout_ms); }
	staging_stats stats() const
	{
		staging_stats st;
		staging_get_stats(s, &st);
		return st;
	}
	Tree tree() const { return tree_of(store_path); }
	int notes_with(const char *part)
	{
		std::lock_guard<std::mutex> hold(lock);
		int n = 0;
		for (auto &t : notes)
			n += t.find(part) != std::string::npos;
		return n;
	}

	std::string meminfo, store_path;
	Engine engine;
	Store store;
	staging_place place;
	staging *s = nullptr;
	int err = 0;
	std::mutex lock;
	std::vector<std::string> notes;

	struct Seen {	// a record with strings of its own
		rec r;
		std::string name, name2, data;
	};
	std::vector<Seen> replayed;
	std::function<void(staging *, const rec *)> frontend;

	std::function<int(uint64_t dir)> missing;
	std::function<void(uint64_t node)> outgrown;
	std::function<void(bool on)> limits;
	std::function<int()> limited, may_publish;

private:
	static bool is_commit(const char *name) { return !strcmp(name, ".metadata"); }
	static staging_missing asks_missing(void *ctx, uint64_t, uint64_t dir, int, int, char *what,
					    size_t cap)
	{
		snprintf(what, cap, "a shard is not in the store");
		return (staging_missing)static_cast<Staging *>(ctx)->missing(dir);
	}
	static void note(void *ctx, const char *text)
	{
		auto self = static_cast<Staging *>(ctx);
		std::lock_guard<std::mutex> hold(self->lock);
		self->notes.push_back(text);
	}
	static int each(void *ctx, const rec *r)
	{
		auto self = static_cast<Staging *>(ctx);
		if (self->frontend)
			self->frontend(self->s, r);
		self->replayed.push_back(
			{*r, r->name, r->name2,
			 std::string(static_cast<const char *>(r->data), r->data_len)});
		return 0;
	}
};

// Waits until all up to seq is durable. The callback may come on any thread.
class Durable {
public:
	Durable(staging *s, uint64_t seq) { staging_when_synced(s, 0, seq, done, this); }
	int wait()
	{
		std::unique_lock<std::mutex> hold(lock_);
		called_.wait(hold, [this] { return is_called_; });
		return err_;
	}
	bool is_called()
	{
		std::lock_guard<std::mutex> hold(lock_);
		return is_called_;
	}

private:
	static void done(void *ctx, int err)
	{
		auto self = static_cast<Durable *>(ctx);
		std::lock_guard<std::mutex> hold(self->lock_);
		self->err_ = err;
		self->is_called_ = true;
		self->called_.notify_all();
	}
	std::mutex lock_;
	std::condition_variable called_;
	bool is_called_ = false;
	int err_ = 0;
};

// Asks until the answer is yes. For what staging's threads do by themselves; a test that
// gets no for a minute fails.
inline bool until(const std::function<bool()> &yes)
{
	for (int i = 0; i < 12000; i++) {
		if (yes())
			return true;
		poll(nullptr, 0, 5);
	}
	return yes();
}

struct Name {
	uint64_t dir;
	std::string name;
};

// Seals f under these names, as the frontend does. Returns the seq or -errno.
inline int64_t seal(staging *s, staged *f, uint64_t node, const std::vector<Name> &names,
		    bool closed, uint32_t flags = 0, std::vector<rec_pair> pairs = {})
{
	std::vector<rec_name> in;
	for (auto &n : names)
		in.push_back({n.dir, n.name.c_str()});
	void *data = nullptr;
	ssize_t len = rec_pack(in.data(), (unsigned)in.size(), pairs.data(), (unsigned)pairs.size(),
			       &data);
	if (len < 0)
		return len;
	rec r = {};
	r.node = r.ino = node;
	r.mode = 0640;
	r.uid = geteuid();
	r.gid = getegid();
	r.dir = names[0].dir;
	r.name = names[0].name.c_str();
	r.flags = flags;
	r.data = data;
	r.data_len = (uint32_t)len;
	int rc;
	while ((rc = staging_seal(s, f, &r, closed)) == -EBUSY)
		staged_await(f);
	free(data);
	return rc ? rc : (int64_t)r.seq;
}

// The close of a file at the root, answered; its RELEASE is still to come.
inline int log_flushed(staging *s, staged *f, uint64_t node, const char *name)
{
	rec_name at = {STAGING_ROOT_DIR, name};
	void *data = nullptr;
	ssize_t len = rec_pack(&at, 1, nullptr, 0, &data);
	if (len < 0)
		return (int)len;
	rec r = {};
	r.type = REC_FLUSHED;
	r.node = r.ino = node;
	r.mode = 0600;
	r.dir = at.dir;
	r.name = name;
	r.sf = staged_id(f);
	r.flags = (staged_spilled(f) ? REC_SPILLED : 0) | (staged_huge(f) ? REC_HUGE : 0);
	r.data = data;
	r.data_len = (uint32_t)len;
	int rc = staging_log(s, &r);
	free(data);
	return rc;
}

// A new staged file with its record, as the frontend makes one.
inline staged *create(staging *s, uint64_t node, const Name &at, uint64_t expected,
		      uint32_t type = REC_CREATE)
{
	staged *f = nullptr;
	if (staged_create(s, node, expected, &f))
		return nullptr;
	rec r = {};
	r.type = type;
	r.node = r.ino = node;
	r.mode = 0640;
	r.dir = type == REC_CREATE ? at.dir : 0;
	r.name = at.name.c_str();
	r.sf = staged_id(f);
	r.flags = (staged_spilled(f) ? REC_SPILLED : 0) | (staged_huge(f) ? REC_HUGE : 0);
	if (staging_log(s, &r)) {
		staged_unref(f);
		return nullptr;
	}
	return f;
}

// Its node, opened again, continues in f.
inline int log_staged(staging *s, staged *f, uint64_t node)
{
	rec r = {};
	r.type = REC_STAGED;
	r.node = r.ino = node;
	r.sf = staged_id(f);
	r.flags = staged_huge(f) ? (uint32_t)REC_HUGE : 0;
	return staging_log(s, &r);
}

inline staged_info info(staged *f)
{
	staged_info i;
	staged_get_info(f, &i);
	return i;
}

inline int write_error(staged *f, const std::string &bytes, uint64_t off = 0)
{
	for (size_t at = 0; at < bytes.size();) {
		ssize_t n = staged_write(f, bytes.data() + at, bytes.size() - at, off + at);
		if (n <= 0)
			return n ? (int)n : -EIO;
		at += (size_t)n;
	}
	return 0;
}

inline bool write_all(staged *f, const std::string &bytes, uint64_t off = 0)
{
	return !write_error(f, bytes, off);
}

// Changes to staging, and what the store must hold once each of them is applied.
class History {
public:
	explicit History(staging *s, uint64_t seed = 1) : rng(seed), s_(s)
	{
		states[staging_last_seq(s)] = {};
		dirs_[STAGING_ROOT_DIR] = "";
	}
	~History() { drop(); }
	// The process that held these is gone: no reference is given back to a dead staging.
	void drop()
	{
		for (auto &[path, f] : files_)
			if (f.sf)
				staged_unref(f.sf);
		files_.clear();
	}

	// A whole file, opened, written, closed. 0 or what the close said.
	int put(const std::string &path, const std::string &bytes)
	{
		auto [dir, name] = split(path);
		auto old = files_.find(path);
		bool again = old != files_.end();
		uint64_t node = again ? old->second.node : staging_new_id(s_);
		staged *f = create(s_, node, {dir, name}, bytes.size(),
				   again ? REC_STAGED : REC_CREATE);
		if (!f)
			return -EIO;
		int64_t seq = write_error(f, bytes);
		if (!seq)
			seq = staged_allocate(f);
		if (!seq)
			seq = seal(s_, f, node, {{dir, name}}, true, again ? REC_SHADOW : 0);
		if (seq < 0) {
			staged_unref(f);
			return (int)seq;
		}
		if (again && old->second.sf)
			staged_unref(old->second.sf);
		files_[path] = {node, f};
		now_[path] = bytes;
		states[(uint64_t)seq] = now_;
		return 0;
	}
	// A directory that the store has already. Its id; staging_dir_learn() makes it known.
	uint64_t adopt(const std::string &path)
	{
		uint64_t id = staging_new_id(s_);
		dirs_[id] = path + "/";
		now_[path + "/"];
		return id;
	}
	int mkdir(const std::string &path)
	{
		auto [dir, name] = split(path);
		rec r = make(REC_MKDIR, dir, name);
		r.node = r.ino = staging_new_id(s_);
		r.mode = 0755;
		int rc = staging_log(s_, &r);
		if (rc)
			return rc;
		dirs_[r.node] = path + "/";
		now_[path + "/"];
		states[r.seq] = now_;
		return 0;
	}
	int unlink(const std::string &path)
	{
		auto [dir, name] = split(path);
		rec r = make(REC_UNLINK, dir, name);
		r.node = r.node2 = files_.at(path).node;
		int rc = staging_log(s_, &r);
		if (rc)
			return rc;
		forget(path);
		states[r.seq] = now_;
		return 0;
	}
	int rmdir(const std::string &path)
	{
		auto [dir, name] = split(path);
		rec r = make(REC_RMDIR, dir, name);
		r.node = r.node2 = dir_id(path + "/");
		int rc = staging_log(s_, &r);
		if (rc)
			return rc;
		dirs_.erase(r.node);
		now_.erase(path + "/");
		states[r.seq] = now_;
		return 0;
	}
	int rename(const std::string &from, const std::string &to)
	{
		auto [dir, name] = split(from);
		auto [dir2, name2] = split(to);
		rec r = make(REC_RENAME, dir, name);
		r.dir2 = dir2;
		r.name2 = name2.c_str();
		bool is_dir = now_.count(from + "/");
		r.node = is_dir ? dir_id(from + "/") : files_.at(from).node;
		r.flags = is_dir ? (uint32_t)REC_DIR : 0;
		r.node2 = !is_dir && files_.count(to) ? files_.at(to).node : 0;
		int rc = staging_log(s_, &r);
		if (rc)
			return rc;
		if (is_dir) {
			move_below(from + "/", to + "/");
		} else {
			if (files_.count(to))
				forget(to);
			now_[to] = now_.at(from);
			now_.erase(from);
			files_[to] = files_.at(from);
			files_.erase(from);
		}
		states[r.seq] = now_;
		return 0;
	}
	// One change drawn at random. 0, or the error of a store that refused it.
	int random_change(size_t max_bytes)
	{
		std::string dir = any_dir(), fresh = dir + "n" + std::to_string(++serial_);
		std::string file = any_file(), leaf = any_empty_dir();
		switch (rng() % 10) {
		case 0:
			return mkdir(fresh);
		case 1:
			return leaf.empty() ? mkdir(fresh) : rmdir(leaf.substr(0, leaf.size() - 1));
		case 2:
		case 3:
			return file.empty() ? mkdir(fresh) : unlink(file);
		case 4:
			return file.empty() ? mkdir(fresh) : rename(file, fresh);
		case 5: {
			std::string over = any_file();
			return file == over ? mkdir(fresh) : rename(file, over);
		}
		case 6: {
			std::string moved = any_dir();
			// not below itself
			if (moved.empty() || !fresh.compare(0, moved.size(), moved))
				return mkdir(fresh);
			return rename(moved.substr(0, moved.size() - 1), fresh);
		}
		case 7:
			if (!file.empty())
				return put(file, pattern(rng() % max_bytes, rng()));
			[[fallthrough]];
		default:
			return put(fresh, pattern(rng() % max_bytes, rng()));
		}
	}
	const Tree &now() const { return now_; }
	// The state that a store must show that has applied all up to seq.
	const Tree &at(uint64_t seq) const { return std::prev(states.upper_bound(seq))->second; }
	staged *file(const std::string &path) { return files_.at(path).sf; }
	uint64_t id(const std::string &dir) { return dir_id(dir); }	// "a/b/"

	std::map<uint64_t, Tree> states;	// by seq
	std::mt19937_64 rng;

private:
	struct File {
		uint64_t node;
		staged *sf;
	};
	std::pair<uint64_t, std::string> split(const std::string &path)
	{
		size_t slash = path.rfind('/');
		std::string dir = slash == std::string::npos ? "" : path.substr(0, slash + 1);
		return {dir_id(dir), path.substr(dir.size())};
	}
	uint64_t dir_id(const std::string &path)
	{
		for (auto &[id, p] : dirs_)
			if (p == path)
				return id;
		throw std::runtime_error("no directory " + path);
	}
	// `name` must outlive the record
	rec make(uint32_t type, uint64_t dir, const std::string &name)
	{
		rec r = {};
		r.type = type;
		r.dir = dir;
		r.name = name.c_str();
		r.uid = geteuid();
		r.gid = getegid();
		clock_gettime(CLOCK_REALTIME, &r.when);
		return r;
	}
	void forget(const std::string &path)
	{
		if (files_.at(path).sf)
			staged_unref(files_.at(path).sf);
		files_.erase(path);
		now_.erase(path);
	}
	void move_below(const std::string &from, const std::string &to)
	{
		auto moved = [&](const std::string &p) {
			return p.compare(0, from.size(), from) ? p : to + p.substr(from.size());
		};
		Tree now;
		for (auto &[p, bytes] : now_)
			now[moved(p)] = bytes;
		now_ = now;
		std::map<std::string, File> files;
		for (auto &[p, f] : files_)
			files[moved(p)] = f;
		files_ = files;
		for (auto &[id, p] : dirs_)
			p = moved(p);
	}
	std::string any_dir()
	{
		auto it = dirs_.begin();
		std::advance(it, (long)(rng() % dirs_.size()));
		return it->second;
	}
	std::string any_empty_dir()
	{
		std::string dir = any_dir();
		auto next = now_.upper_bound(dir);
		bool full = next != now_.end() && !next->first.compare(0, dir.size(), dir);
		return full ? "" : dir;
	}
	std::string any_file()
	{
		if (files_.empty())
			return "";
		auto it = files_.begin();
		std::advance(it, (long)(rng() % files_.size()));
		return it->first;
	}

	staging *s_;
	Tree now_;
	std::map<std::string, File> files_;
	std::map<uint64_t, std::string> dirs_;	// id -> path, "" = the root
	uint64_t serial_ = 0;
};

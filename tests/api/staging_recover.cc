// SPDX-License-Identifier: MIT
//
// All processes killed (P5): what was accepted is found again by the next one and made durable.
// A child does the work and is killed; what it acknowledged before is what is demanded.
#include "tests/api/staging_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

// Runs body(ack) in a child, kills it once `acks` changes are acknowledged. Returns how many
// were at its death (a few more may have come through meanwhile).
unsigned killed_after(unsigned acks, const std::function<void(const std::function<void()> &)> &body)
{
	int fds[2];
	if (pipe2(fds, O_CLOEXEC))
		return 0;
	pid_t pid = fork();
	if (!pid) {
		close(fds[0]);
		body([&] {
			if (write(fds[1], "a", 1) != 1)
				_exit(2);
		});
		for (;;)
			pause();
	}
	close(fds[1]);
	unsigned seen = 0;
	char c;
	while (seen < acks && read(fds[0], &c, 1) == 1)
		seen++;
	kill(pid, SIGKILL);
	waitpid(pid, nullptr, 0);
	while (read(fds[0], &c, 1) == 1)
		seen++;
	close(fds[0]);
	return seen;
}

// The same changes in every process that gives the same seed.
void changes(staging *s, unsigned n, const std::function<void()> &ack)
{
	auto h = new History(s, 77); // never given back: its process is killed
	for (unsigned i = 0; i < n; i++) {
		if (h->random_change(i % 5 ? 9000 : 500000))
			_exit(3);
		ack();
	}
}

// The states those changes go through, learned from a run that nobody kills.
std::vector<Tree> all_states(unsigned n)
{
	Ground ground;
	Options o;
	o.start = false;
	Staging s(ground, o);
	std::vector<Tree> out;
	History h(s, 77);
	out.push_back(h.now());
	for (unsigned i = 0; i < n; i++) {
		EXPECT_EQ(h.random_change(i % 5 ? 9000 : 500000), 0);
		out.push_back(h.now());
	}
	return out;
}

void killed_at_any_moment(bool start, const char *fault)
{
	const unsigned n = 60;
	std::vector<Tree> states = all_states(n);

	for (unsigned acks = 1; acks <= n; acks += 7) {
		SCOPED_TRACE("killed after " + std::to_string(acks));
		Ground ground;
		unsigned seen = killed_after(acks, [&](const std::function<void()> &ack) {
			Options o;
			o.start = start;
			o.fault = fault;
			Staging s(ground, o);
			if (s.err)
				_exit(4);
			changes(s, n, ack);
		});
		ASSERT_GE(seen, acks); // something was acknowledged, or the test proves nothing
		{ // recovery is killed as well, before it is done
			Options o;
			o.start = false;
			Staging half(ground, o);
			ASSERT_EQ(half.err, 0);
		}
		Staging s(ground);
		ASSERT_EQ(s.err, 0);
		ASSERT_EQ(s.drain(), 0);
		Tree now = s.tree();
		size_t state = seen;
		while (state < states.size() && states[state] != now)
			state++;
		EXPECT_LT(state, states.size())
			<< show(now) << "\nacknowledged " << show(states[seen]);
		EXPECT_EQ(s.notes_with("conflict") + s.notes_with("missing") +
				  s.notes_with("damaged"),
			  0);
	}
}

// A version whose file is whole in the store's tmp/ while its staged bytes are written anew in
// place: recovery publishes that version, not the mix; the rest is kept for a person. Also when
// the first syncs fail then: it was synced before.
void killed_in_the_next_version(bool begun, bool spilled)
{
	unsigned faults = 0;
	for (const char *fault : {"", "7:@1:lostsync", "7:@2:lostsync"}) {
		SCOPED_TRACE(begun ? "half written" : "only opened");
		SCOPED_TRACE(fault);
		Ground ground;
		std::string one = pattern(400000, 1);
		ASSERT_EQ(killed_after(1, [&](const std::function<void()> &ack) {
			Options o;
			o.budget = 8u << 20;
			Staging s(ground, o);
			uint64_t first = staging_new_id(s), node = staging_new_id(s);
			staged *head = create(s, first, {root, "mapped"}, 4096), *f;
			int writer = staged_open_rw(head); // holds the order up
			if (!write_all(head, "m") || staged_allocate(head) || writer < 0 ||
			    seal(s, head, first, {{root, "mapped"}}, true) <= 0)
				_exit(3);
			f = create(s, node, {root, "f"}, one.size());
			if (!write_all(f, one) || staged_allocate(f) || seal(s, f, node, {{root, "f"}}, true) <= 0 ||
			    staged_wait_persisted(f) || staged_reopen(f))
				_exit(4);
			if (log_staged(s, f, node) || (begun && !write_all(f, "half of the next", 1000)) ||
			    (spilled && !write_all(f, std::string(9u << 20, 'x'), 2000)) ||
			    staged_spilled(f) != spilled)
				_exit(5);
			ack();
			for (;;)
				pause();
		}), 1u);
		Options o;
		o.fault = *fault ? fault : nullptr;
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		ASSERT_EQ(s.drain(), 0);
		faults += (unsigned)s.engine.counts().faults;
		EXPECT_SAME(read_file(ground.store() + "/f"), one);
		EXPECT_EQ(read_file(ground.store() + "/mapped"), "m");
		EXPECT_EQ(s.stats().recovered.lost_found + s.stats().recovered.kept, begun ? 1u : 0u);
		EXPECT_EQ(staging_keep_again(s), 0u);	// the store's failure is over
		EXPECT_EQ(s.stats().recovered.lost_found, begun ? 1u : 0u);
	}
	EXPECT_GT(faults, 0u);
}

TEST(Killed, WhenTheNextVersionWasOpened)
{
	killed_in_the_next_version(false, false);
}

TEST(Killed, WhileTheNextVersionIsWritten)
{
	killed_in_the_next_version(true, false);
}

TEST(Killed, WhileTheNextVersionSpills)
{
	killed_in_the_next_version(true, true);
}

TEST(Killed, BeforeAnythingWasPublished)
{
	killed_at_any_moment(false, nullptr);
}

TEST(Killed, WhileItPublishes)
{
	killed_at_any_moment(true, nullptr);
}

TEST(Killed, WhileASlowStorePublishes)
{
	killed_at_any_moment(true, "5:2:delay");
}

// A file that was never closed is nobody's version: it is kept where a person finds it.
TEST(Killed, UnclosedFilesAreKept)
{
	Ground ground;
	unsigned seen = killed_after(1, [&](const std::function<void()> &ack) {
		Options o;
		o.budget = 1u << 20;
		Staging s(ground, o);
		staged *f = create(s, staging_new_id(s), {root, "half"}, 100);
		staged *spilled = create(s, staging_new_id(s), {root, "spilled"}, 8u << 20);
		staged *empty = create(s, staging_new_id(s), {root, "empty"}, 0);
		if (!f || !spilled || !empty || !staged_spilled(spilled))
			_exit(2);
		if (write_all(f, "half of it") && write_all(spilled, pattern(3000000, 1)))
			ack();
		for (;;)
			pause();
	});
	ASSERT_EQ(seen, 1u);
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), "");
	EXPECT_EQ(s.stats().recovered.lost_found, 2u); // an empty one has nothing to keep
	std::map<std::string, std::string> found;
	for (auto &at :
	     std::filesystem::directory_iterator(ground.store() + "/.cairn/lost+found")) {
		std::string name = at.path().filename();
		found[name.substr(0, name.find('.'))] = read_file(at.path());
	}
	EXPECT_EQ(found["half"], "half of it");
	EXPECT_SAME(found["spilled"], pattern(3000000, 1));
	EXPECT_EQ(s.notes_with("never closed"), 2);
}

// The store has no space in lost+found at the next starts: that is said, no start removes it, and it has its
// name there at last, although the log was rotated meanwhile.
TEST(Killed, UnclosedFilesThatLostFoundDoesNotTakeYet)
{
	Ground ground;
	std::string bytes = pattern(3000000, 1);
	unsigned seen = killed_after(1, [&](const std::function<void()> &ack) {
		Options o;
		o.budget = 1u << 20;
		Staging s(ground, o);
		staged *f = create(s, staging_new_id(s), {root, "half"}, 100);
		staged *spilled = create(s, staging_new_id(s), {root, "spilled"}, 8u << 20);
		if (!f || !spilled || !staged_spilled(spilled))
			_exit(2);
		if (write_all(f, "half of it") && write_all(spilled, bytes))
			ack();
		for (;;)
			pause();
	});
	ASSERT_EQ(seen, 1u);
	// a first start, a worker after it, another first start, each as after a kill
	for (bool orphaned : {true, false, true}) {
		SCOPED_TRACE(orphaned);
		Options o;
		o.fault = "1:@1+:enospc";
		o.orphaned = orphaned;
		o.start = false;
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		EXPECT_EQ(s.stats().recovered.kept, 2u);
		EXPECT_EQ(s.stats().recovered.kept_bytes, bytes.size() + 10);
		EXPECT_EQ(staging_kept_error(s), -ENOSPC);
		EXPECT_EQ(staging_keep_again(s), 2u);
		ASSERT_EQ(staging_rotate(s, [](void *, staging *) { return 0; }, nullptr), 0);
	}
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.stats().recovered.kept, 0u);
	EXPECT_EQ(s.stats().recovered.kept_bytes, 0u);
	EXPECT_EQ(staging_kept_error(s), 0);
	std::map<std::string, std::string> found;
	for (auto &at :
	     std::filesystem::directory_iterator(ground.store() + "/.cairn/lost+found")) {
		std::string name = at.path().filename();
		found[name.substr(0, name.find('.'))] = read_file(at.path());
	}
	EXPECT_EQ(found.size(), 2u);
	EXPECT_EQ(found["half"], "half of it");
	EXPECT_SAME(found["spilled"], bytes);
}

// Killed with changes that were not published, and the job went on with another staging area: what it wrote then is
// not replaced or removed by what is older, and nothing is lost. The same if the start is killed that finds this.
TEST(Killed, WhatWasWrittenSinceStays)
{
	Ground ground, elsewhere;
	for (const char *name : {"plain", "latest", "gone", "later"})
		write_file(ground.store() + "/" + name, "50");
	{
		Options o;
		o.start = false;
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("plain", "100"), 0);
		ASSERT_EQ(h.put("latest.tmp", "100"), 0);
		ASSERT_EQ(h.rename("latest.tmp", "latest"), 0);
		rec r = {};
		r.type = REC_UNLINK;
		r.node = r.node2 = staging_new_id(s);
		r.dir = root;
		r.name = "gone";
		clock_gettime(CLOCK_REALTIME, &r.when);
		ASSERT_EQ(staging_log(s, &r), 0);
		ASSERT_EQ(h.put("only", "90"), 0);
		ASSERT_EQ(h.put("only", "100"), 0);
		ASSERT_EQ(h.put("later", "100"), 0);
	}
	usleep(20000); // the clock of a file's times has ticks
	{
		Options o;
		o.run = elsewhere.run();
		o.store = ground.store();
		Staging s(elsewhere, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		for (const char *name : {"plain", "latest", "gone"})
			ASSERT_EQ(h.put(name, "200"), 0);
		ASSERT_EQ(s.drain(), 0);
	}
	for (const char *fault : {"1:@2+:enospc", "1:@6+:enospc", "1:@10+:enospc", "1:@14+:enospc"}) {
		Options o;
		o.fault = fault;
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		s.drain();
	}
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.drain(), 0);
	Tree is = tree_of(ground.store());
	EXPECT_EQ(is["plain"], "200");
	EXPECT_EQ(is["latest"], "200");
	EXPECT_EQ(is["gone"], "200");
	EXPECT_EQ(is["only"], "100");
	EXPECT_EQ(is["later"], "100");
	EXPECT_EQ(is["latest.tmp"], "100");
	std::string kept;
	for (auto &at : std::filesystem::directory_iterator(ground.store() + "/.cairn/lost+found"))
		kept += at.path().filename().string().substr(0, 5) + "=" + read_file(at.path());
	EXPECT_EQ(kept, "plain=100");
	EXPECT_EQ(Durable(s, staging_last_seq(s)).wait(), 0); // nobody waits for what died
}

// As the frontend does when it finds dir/name in the store.
void log_seen(Staging &s, uint64_t node, const char *name, uint64_t dir = root, const std::string &at = "./")
{
	rec r = {};
	struct stat st;
	r.type = REC_NODE;
	r.flags = REC_SEALED;
	r.node = r.ino = node;
	r.dir = dir;
	r.name = name;
	int fd = openat(s.store.root(), at.c_str(), O_PATH | O_DIRECTORY);
	ASSERT_EQ(io_stat_born(s.store, fd, name, &st, &r.dir2), 0);
	close(fd);
	r.mode = st.st_mode;
	r.node2 = st.st_ino;
	r.size = (uint64_t)st.st_size;
	r.mtime = st.st_mtim;
	ASSERT_EQ(staging_log(s, &r), 0);
}

void log_unlink(Staging &s, const char *name, uint64_t dir = root)
{
	rec r = {};
	r.type = REC_UNLINK;
	r.node = r.node2 = staging_new_id(s);
	r.dir = dir;
	r.name = name;
	clock_gettime(CLOCK_REALTIME, &r.when);
	ASSERT_EQ(staging_log(s, &r), 0);
}

// The files of lost+found, their numbers left out.
std::string lost_and_found(const Ground &ground)
{
	std::map<std::string, std::string> found;
	std::string out;
	for (auto &at : std::filesystem::directory_iterator(ground.store() + "/.cairn/lost+found")) {
		std::string name = at.path().filename();
		found[name.substr(0, name.rfind('.'))] = read_file(at.path());
	}
	for (auto &[name, bytes] : found)
		out += name + "=" + bytes + " ";
	return out;
}

// Another host of the store, with its own place for staging, publishes these.
struct OtherHost {
	explicit OtherHost(const Ground &ground)
	{
		o.run = elsewhere.run();
		o.store = ground.store();
		o.host = "b";
	}
	void publishes(const std::string &bytes, const std::vector<std::string> &files,
		       const std::vector<std::string> &dirs = {})
	{
		Staging s(elsewhere, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		for (auto &dir : dirs)
			ASSERT_EQ(h.mkdir(dir), 0);
		for (auto &file : files)
			ASSERT_EQ(h.put(file, bytes), 0);
		ASSERT_EQ(s.drain(), 0);
		staging_clear(s);
	}
	Ground elsewhere;
	Options o;
};

// The same with another host, whose clock is an hour behind. What it had written before, and this one had seen, is
// replaced; and so is what this one published itself, a moment before the kill.
TEST(Killed, WhatAnotherHostWroteSinceStays)
{
	const std::vector<const char *> names = {"plain", "latest", "gone", "old", "old-gone", "own"};
	Ground ground;
	OtherHost b(ground);
	Options o;
	o.host = "a";
	uint64_t both;
	b.publishes("50", {names.begin(), names.end()}, {"dir.tmp", "empty"});
	{ // it is published, and everything is killed before the next version is
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		if (!io_store_has_xattr(s.store))
			GTEST_SKIP() << "no xattrs here";
		History h(s);
		ASSERT_EQ(h.put("own", "60"), 0);
		ASSERT_EQ(s.drain(), 0);
	}
	b.publishes("70", {"old", "old-gone"}, {"old-dir.tmp", "both"});
	{ // both make it at once
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.mkdir("both"), 0);
		ASSERT_EQ(s.drain(), 0);
		both = h.id("both/");
	}
	o.start = false;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		for (const char *name : {"plain", "latest", "gone", "old", "old-gone"})
			log_seen(s, staging_new_id(s), name);
		for (const char *name : {"plain", "only", "old", "own", "new"})
			ASSERT_EQ(h.put(name, "100"), 0);
		ASSERT_EQ(h.put("latest.tmp", "100"), 0);
		ASSERT_EQ(h.rename("latest.tmp", "latest"), 0);
		log_unlink(s, "gone");
		log_unlink(s, "old-gone");
		for (const char *name : {"dir.tmp", "old-dir.tmp", "empty"}) {
			uint64_t id = h.adopt(name);
			ASSERT_EQ(staging_dir_learn(s, id, root, name), 0);
			log_seen(s, id, name);
		}
		ASSERT_EQ(h.rename("dir.tmp", "dir"), 0);
		ASSERT_EQ(h.rename("old-dir.tmp", "old-dir"), 0);
		ASSERT_EQ(h.rmdir("empty"), 0);
		rec r = {};
		r.type = REC_RENAME;
		r.flags = REC_DIR;
		r.node = both;
		r.dir = r.dir2 = root;
		r.name = "both";
		r.name2 = "both-300";
		ASSERT_EQ(staging_log(s, &r), 0);
		for (const char *name : {"plain", "old"}) {
			r = {};
			r.type = REC_ATTR;
			r.mask = REC_MODE;
			r.mode = 0600;
			r.node = staging_new_id(s);
			r.dir = root;
			r.name = name;
			ASSERT_EQ(staging_log(s, &r), 0);
		}
	}
	for (const char *dir : {"dir.tmp", "empty"})
		ASSERT_EQ(rmdir((ground.store() + "/" + dir).c_str()), 0);
	b.publishes("20000", {"plain", "latest", "gone", "new"}, {"dir.tmp", "empty"});
	for (const char *name : {"plain", "latest", "gone", "new"}) {
		timespec hour_ago[2] = {};
		clock_gettime(CLOCK_REALTIME, hour_ago);
		hour_ago[0].tv_sec -= 3600;
		hour_ago[1] = hour_ago[0];
		ASSERT_EQ(utimensat(AT_FDCWD, (ground.store() + "/" + name).c_str(), hour_ago, 0), 0);
	}
	o.start = true;
	for (const char *fault : {"1:@2+:enospc", "1:@6+:enospc", "1:@10+:enospc", "1:@14+:enospc"})
		for (bool orphaned : {true, false}) { // all die during the start, or its worker
			o.fault = fault;
			o.orphaned = orphaned;
			Staging s(ground, o);
			ASSERT_EQ(s.err, 0);
			s.drain();
		}
	o.fault = nullptr;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.drain(), 0);
	Tree is = tree_of(ground.store());
	for (const char *name : {"plain", "latest", "gone", "new"})
		EXPECT_EQ(is[name], "20000") << name;
	for (const char *name : {"only", "old", "own", "latest.tmp"})
		EXPECT_EQ(is[name], "100") << name;
	EXPECT_EQ(is["old-gone"], "70"); // versions of before it were given up
	for (const char *name : {"dir.tmp/", "empty/", "old-dir/", "both-300/"})
		EXPECT_TRUE(is.count(name)) << name;
	for (const char *name : {"dir/", "old-dir.tmp/", "both/"})
		EXPECT_FALSE(is.count(name)) << name;
	EXPECT_EQ(lost_and_found(ground), "new=100 plain=100 ");
	struct stat st;
	ASSERT_EQ(stat((ground.store() + "/plain").c_str(), &st), 0);
	EXPECT_EQ(st.st_mode & 07777u, 0640u);
	ASSERT_EQ(stat((ground.store() + "/old").c_str(), &st), 0);
	EXPECT_EQ(st.st_mode & 07777u, 0600u);
	EXPECT_EQ(Durable(s, staging_last_seq(s)).wait(), 0);
}

// A start was killed when it had just made a symlink that was left over: it is its own, although its times are later
// than those of the rename behind it.
TEST(Killed, ASymlinkMadeJustBeforeAKillIsItsOwn)
{
	Ground ground;
	OtherHost b(ground);
	Options o;
	o.host = "a";
	b.publishes("50", {"x"});
	o.start = false;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		rec r = {};
		r.type = REC_SYMLINK;
		r.node = r.ino = staging_new_id(s);
		r.mode = S_IFLNK | 0777;
		r.uid = geteuid();
		r.gid = getegid();
		r.dir = root;
		r.name = "latest.tmp";
		r.data = "ck2";
		r.data_len = sizeof("ck2");
		clock_gettime(CLOCK_REALTIME, &r.when);
		ASSERT_EQ(staging_log(s, &r), 0);
		r.type = REC_RENAME;
		r.dir2 = root;
		r.name2 = "latest";
		r.data = nullptr;
		r.data_len = 0;
		ASSERT_EQ(staging_log(s, &r), 0);
	}
	usleep(20000); // the clock of a file's times has ticks
	ASSERT_EQ(symlink("ck2", (ground.store() + "/latest.tmp").c_str()), 0);
	o.start = true;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.drain(), 0);
	Tree is = tree_of(ground.store());
	EXPECT_EQ(is["latest"], "-> ck2");
	EXPECT_FALSE(is.count("latest.tmp"));
}

// Half of a save was left over, the other half is another host's by now, which went on from the save before: that one is
// not removed, since the newer one, which allowed it, is not committed.
void removals_stay(const std::string &theirs)
{
	SCOPED_TRACE(theirs);
	Ground ground;
	OtherHost b(ground);
	Options o;
	o.host = "a";
	o.missing = [](uint64_t) { return 0; };
	b.publishes("50", {"x"});
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		if (!io_store_has_xattr(s.store))
			GTEST_SKIP() << "no xattrs here";
		History h(s);
		ASSERT_EQ(h.mkdir("one"), 0);
		ASSERT_EQ(h.put("one/s0", "100"), 0);
		ASSERT_EQ(h.put("one/.metadata", "100"), 0);
		ASSERT_EQ(h.put("before", "100"), 0);
		ASSERT_EQ(s.drain(), 0);
		staging_clear(s);
	}
	o.start = false;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		uint64_t one = h.adopt("one");
		ASSERT_EQ(staging_dir_learn(s, one, root, "one"), 0);
		for (const char *name : {"before", "one"})
			log_seen(s, name == std::string("one") ? one : staging_new_id(s), name);
		for (const char *name : {"s0", ".metadata"})
			log_seen(s, staging_new_id(s), name, one, "one/");
		log_unlink(s, "before"); // nothing was given up before that
		ASSERT_EQ(h.mkdir("two"), 0);
		ASSERT_EQ(h.put("two/s0", "200"), 0);
		ASSERT_EQ(h.put("two/s1", "200"), 0);
		ASSERT_EQ(h.put("two/tmp", "200"), 0);
		ASSERT_EQ(h.rename("two/tmp", "two/.metadata"), 0);
		for (const char *name : {".metadata", "s0"})
			log_unlink(s, name, one);
		ASSERT_EQ(h.rmdir("one"), 0);
	}
	b.publishes("201", {theirs}, {"two"});
	o.start = true;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.drain(), 0);
	Tree is = tree_of(ground.store());
	EXPECT_EQ(is[theirs], "201");
	EXPECT_EQ(is["two/s1"], "200");
	EXPECT_FALSE(is.count("two/.metadata"));
	EXPECT_FALSE(is.count("before"));
	EXPECT_EQ(is["one/s0"], "100");
	EXPECT_EQ(is["one/.metadata"], "100");
}

TEST(Killed, WhatWasRemovedForASaveThatIsGivenUpStays)
{
	removals_stay("two/s0");
	removals_stay("two/tmp"); // what the .metadata was to be made of
}

// Half of a save was left over, and another host is saving the directory again: what it lacks is added, but not the
// .metadata of the older save, whatever dies during the start.
TEST(Killed, AnOlderSaveIsNotCommittedWithANewerShard)
{
	Ground ground;
	OtherHost b(ground);
	Options o;
	o.host = "a";
	o.missing = [](uint64_t) { return 0; };
	b.publishes("50", {"x"});
	o.start = false;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		if (!io_store_has_xattr(s.store))
			GTEST_SKIP() << "no xattrs here";
		History h(s);
		for (const char *dir : {"one", "two"}) {
			std::string at = std::string(dir) + "/";
			ASSERT_EQ(h.mkdir(dir), 0);
			ASSERT_EQ(h.put(at + "s0", "100"), 0);
			ASSERT_EQ(h.put(at + "s1", "100"), 0);
			ASSERT_EQ(h.put(at + "tmp", "100"), 0);
			ASSERT_EQ(h.rename(at + "tmp", at + ".metadata"), 0);
		}
	}
	b.publishes("200", {"one/s0"}, {"one"});
	for (bool orphaned : {true, false, true}) {
		o.orphaned = orphaned;
		o.start = true;
		int n = 0; // half of it
		o.may_publish = [&n] { return ++n > 5 ? -EIO : 0; };
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		s.drain(1000);
	}
	o.may_publish = nullptr;
	o.orphaned = true;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.drain(), 0);
	Tree is = tree_of(ground.store());
	EXPECT_EQ(is["one/s0"], "200");
	EXPECT_EQ(is["one/s1"], "100");
	EXPECT_FALSE(is.count("one/.metadata"));
	EXPECT_EQ(is["two/.metadata"], "100");
	EXPECT_EQ(lost_and_found(ground), "one%2Fs0=100 ");
}

// What is left over by the log that served the store last is published, whatever times a file has.
TEST(Killed, WhatNobodyHasGoneOnFromIsPublished)
{
	Ground ground;
	{
		Staging s(ground);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("a", "1"), 0);
		ASSERT_EQ(s.drain(), 0);
		staging_clear(s);
	}
	{
		Options o;
		o.start = false;
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("a", "2"), 0);
	}
	usleep(20000);
	write_file(ground.store() + "/a", "by hand"); // another program's
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.drain(), 0);
	EXPECT_EQ(tree_of(ground.store())["a"], "2");
}

// A file that waited in the store's tmp/ when all was killed, and is removed after the start: it needs nothing of a
// store that takes nothing.
TEST(Killed, ASpilledFileThatIsRemovedIsLeftOut)
{
	Ground ground;
	Options o;
	o.budget = 1u << 20;
	o.start = false;
	uint64_t node;
	{
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		node = staging_new_id(s);
		staged *f = create(s, node, {root, "gone"}, 4u << 20);
		ASSERT_NE(f, nullptr);
		ASSERT_TRUE(staged_spilled(f));
		ASSERT_TRUE(write_all(f, pattern(4u << 20, 1)));
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_GT(seal(s, f, node, {{root, "gone"}}, true), 0);
		staged_unref(f);
	}
	o.fault = "1:@1+:enospc";
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	rec r = {};
	r.type = REC_UNLINK;
	r.node = r.node2 = node;
	r.dir = root;
	r.name = "gone";
	ASSERT_EQ(staging_log(s, &r), 0);
	s.start();
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), "");
}

// The close was answered, the RELEASE that seals was lost with the process: it counts, also when another
// writer joined in meanwhile; not when that one truncated the file: what was closed is gone then.
TEST(Killed, AnAnsweredCloseCounts)
{
	Ground ground;
	auto work = [&](const std::function<void()> &ack) {
		Options o;
		Staging s(ground, o);
		for (const char *name : {"b", "a", "c", "d"}) {
			uint64_t node = staging_new_id(s);
			staged *f = create(s, node, {root, name}, 100);
			if (!f || !write_all(f, name) || staged_allocate(f))
				_exit(2);
			if (log_flushed(s, f, node, name))
				_exit(3);
			if (*name >= 'c') { // opened for writing again, and not closed since
				rec r = {};
				r.type = REC_OPEN;
				r.flags = REC_WRITE;
				r.mask = *name == 'c' ? O_WRONLY | O_TRUNC : O_WRONLY;
				r.node = node;
				r.sf = staged_id(f);
				if (staging_log(s, &r))
					_exit(3);
			}
			ack();
		}
		for (;;)
			pause();
	};
	ASSERT_EQ(killed_after(4, work), 4u);
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(staging_last_seq(s), 3u);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), "a=1,97 b=1,98 d=1,100 ");
	EXPECT_EQ(s.stats().recovered.lost_found, 1u);
}

// The worker alone died: its open files belong to who takes them during the replay.
TEST(Killed, OpenFilesThatNobodyTakesAreSwept)
{
	Ground ground;
	uint64_t node, id;
	{
		Staging s(ground);
		ASSERT_EQ(s.err, 0);
		node = staging_new_id(s);
		staged *f = create(s, node, {root, "f"}, 100);
		ASSERT_TRUE(write_all(f, "first half, "));
		id = staged_id(f);
	}
	Options o;
	o.orphaned = false;
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.replayed.size(), 1u);
	rec r = s.replayed[0].r;
	EXPECT_EQ(r.sf, id);
	staged *f;
	EXPECT_EQ(staged_recover(s, &r, &f), -ENOENT); // nobody took it during the replay: swept
}

TEST(Killed, OpenFilesTakenDuringTheReplayGoOn)
{
	Ground ground;
	{
		Staging s(ground);
		ASSERT_EQ(s.err, 0);
		staged *f = create(s, staging_new_id(s), {root, "f"}, 100);
		ASSERT_TRUE(write_all(f, "first half, "));
	}
	Engine e("posix");
	Store store(e, ground.store());
	ASSERT_EQ(store.err, 0);
	staging_opts o = {};
	ASSERT_EQ(staging_place_open(STAGING_ANY_NODE, ground.run().c_str(),
			io_store_id(store), 1u << 30, &o.place),
		  0);
	o.store = store;
	o.engine = e.e;
	o.budget_bytes = 64u << 20;
	o.notice = [](void *, const char *) {};
	struct Ctx {
		staging *s;
		staged *f;
		uint64_t node;
	} ctx = {};
	ASSERT_EQ(staging_open(&o, &ctx.s), 0);
	ASSERT_EQ(staging_replay(
			  ctx.s,
			  [](void *p, const rec *r) {
				  auto c = static_cast<Ctx *>(p);
				  c->node = r->node;
				  return r->type == REC_CREATE ? staged_recover(c->s, r, &c->f) : 0;
			  },
			  &ctx),
		  0);
	ASSERT_TRUE(ctx.f);
	ASSERT_EQ(staging_sweep(ctx.s, false), 0);
	ASSERT_EQ(staging_start(ctx.s), 0);
	EXPECT_EQ(info(ctx.f).state, STAGED_OPEN);
	ASSERT_TRUE(write_all(ctx.f, "second half", 12));
	ASSERT_EQ(staged_allocate(ctx.f), 0);
	ASSERT_GT(seal(ctx.s, ctx.f, ctx.node, {{root, "f"}}, true), 0);
	ASSERT_EQ(staging_drain(ctx.s, 60000), 0);
	EXPECT_EQ(read_file(ground.store() + "/f"), "first half, second half");
	staged_unref(ctx.f);
	staging_close(ctx.s);
	staging_place_close(&o.place);
}

// The store's filesystem stopped before it had the bytes of a file that was spilled there: what is
// left of it is not published as that version (P2), and what comes later is.
TEST(Killed, AShortSpilledFileIsNoVersion)
{
	Ground ground;
	std::string tmp;
	{
		Options o;
		o.budget = 1u << 20;
		o.start = false;
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		uint64_t node = staging_new_id(s);
		staged *f = create(s, node, {root, "spilled"}, 8u << 20);
		ASSERT_TRUE(f && staged_spilled(f) && write_all(f, pattern(300000, 1)));
		ASSERT_EQ(staged_allocate(f), 0);
		ASSERT_GT(seal(s, f, node, {{root, "spilled"}}, true), 0);
		rec d = {};
		d.type = REC_MKDIR;
		d.node = staging_new_id(s);
		d.dir = root;
		d.name = "later";
		ASSERT_EQ(staging_log(s, &d), 0);
	}
	for (auto &e : std::filesystem::recursive_directory_iterator(ground.store() + "/.cairn"))
		if (e.is_regular_file() && e.path().parent_path().filename() == "tmp")
			tmp = e.path();
	ASSERT_EQ(truncate(tmp.c_str(), 4096), 0);
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), "later/=0 ");
	EXPECT_EQ(s.notes_with("that version is lost"), 1);
}

TEST(Reopen, IdsGoOnAndTheOrderToo)
{
	Ground ground;
	uint64_t id = 0, seq = 0;
	for (int round = 0; round < 3; round++) {
		Staging s(ground);
		ASSERT_EQ(s.err, 0);
		EXPECT_EQ(staging_last_seq(s), seq);
		uint64_t now = staging_new_id(s);
		EXPECT_GT(now, id);
		EXPECT_GE(now, STAGING_FIRST_ID);
		id = now;
		rec r = {};
		r.type = REC_MKDIR;
		r.node = id;
		r.dir = root;
		std::string name = "d" + std::to_string(round);
		r.name = name.c_str();
		ASSERT_EQ(staging_log(s, &r), 0);
		EXPECT_EQ(r.seq, ++seq);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_EQ(staging_applied(s), seq);
	}
}

} // namespace

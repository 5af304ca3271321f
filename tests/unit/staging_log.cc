// SPDX-License-Identifier: MIT
//
// The log: what was appended is replayed in order, wherever a kill cut it; what is damaged or
// foreign is set aside and never believed; rotation keeps what the next worker needs.
#include "tests/unit/log_cut.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

// Stopped: nothing is published, so the log is all there is.
Options stopped()
{
	Options o;
	o.start = false;
	return o;
}

// As after a kill: the files stay as they are, whatever the objects here would do to them.
void killed(Staging &s, History &h)
{
	Saved all(s.place.path);
	h.drop();
	staging_close(s.s);
	s.s = nullptr;
	all.put_back();
}

std::vector<rec> many_records(std::mt19937_64 &rng, staging *s, unsigned n)
{
	std::vector<rec> out;
	for (unsigned i = 0; i < n; i++) {
		rec r = {};
		r.type = std::vector<uint32_t>{REC_CREATE, REC_NODE, REC_OPEN, REC_CLOSE, REC_MKDIR,
					       REC_ATTR, REC_XATTR, REC_FORGET}[rng() % 8];
		r.node = 100 + rng() % 10;
		r.dir = root;
		r.fh = rng();
		r.size = rng();
		r.name = "name";
		r.name2 = r.type == REC_XATTR ? "user.key" : "";
		r.data = "value";
		r.data_len = (uint32_t)(rng() % 6);
		EXPECT_EQ(staging_log(s, &r), 0);
		out.push_back(r);
	}
	return out;
}

bool same(const rec &a, const rec &b)
{
	return a.type == b.type && a.seq == b.seq && a.node == b.node && a.fh == b.fh &&
	       a.size == b.size && a.dir == b.dir;
}

TEST(Log, ReplaysAllInOrder)
{
	Ground ground;
	std::mt19937_64 rng(31);
	std::vector<rec> want;
	uint64_t last, next_id;
	{
		Staging s(ground, stopped());
		ASSERT_EQ(s.err, 0);
		EXPECT_TRUE(s.replayed.empty());
		want = many_records(rng, s, 3000);
		last = staging_last_seq(s);
		next_id = staging_new_id(s);
	}
	for (int round = 0; round < 3; round++) { // and replaying changes nothing
		Staging s(ground, stopped());
		ASSERT_EQ(s.err, 0);
		ASSERT_EQ(s.replayed.size(), want.size());
		uint64_t seq = 0;
		for (size_t i = 0; i < want.size(); i++) {
			const Staging::Seen &got = s.replayed[i];
			ASSERT_TRUE(same(got.r, want[i])) << i;
			ASSERT_EQ(got.name, "name");
			ASSERT_EQ(got.data, std::string("value").substr(0, want[i].data_len));
			ASSERT_EQ(got.r.seq, want[i].type < REC_ORDERED_END ? ++seq : 0u);
		}
		EXPECT_EQ(staging_last_seq(s), last);
		EXPECT_GT(staging_new_id(s), next_id); // an id is never given twice
		EXPECT_EQ(s.stats().log.pending, last);
		EXPECT_TRUE(s.notes.empty());
	}
}

TEST(Log, ACallbacksErrorStopsTheReplay)
{
	Ground ground;
	std::mt19937_64 rng(32);
	{
		Staging s(ground, stopped());
		ASSERT_EQ(s.err, 0);
		many_records(rng, s, 10);
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
	o.budget_bytes = 1u << 20;
	o.notice = [](void *, const char *) {};
	staging *s;
	ASSERT_EQ(staging_open(&o, &s), 0);
	int seen = 0;
	EXPECT_EQ(
		staging_replay(
			s,
			[](void *ctx, const rec *) { return ++*(int *)ctx == 4 ? -ECANCELED : 0; },
			&seen),
		-ECANCELED);
	EXPECT_EQ(seen, 4);
	staging_close(s);
	staging_place_close(&o.place);
}

// A kill at any record's end, and in the middle of any record: the next start shows exactly
// what was logged whole.
TEST(Log, KilledAtEveryRecord)
{
	Ground ground;
	std::map<uint64_t, Tree> states;
	{
		Staging s(ground, stopped());
		ASSERT_EQ(s.err, 0);
		History h(s, 33);
		for (int i = 0; i < 40; i++)
			ASSERT_EQ(h.random_change(3000), 0);
		ASSERT_EQ(h.put("large", pattern(700000, 1)), 0);
		states = h.states;
		killed(s, h);
	}
	Saved saved(place_of(ground));
	std::string path = log_path(ground), log = read_file(path);
	std::vector<size_t> ends = boundaries(log);
	// it is allocated ahead: zeros, which end it
	ASSERT_EQ(log.find_first_not_of('\0', ends.back()), std::string::npos);
	ASSERT_GT(ends.size(), 50u);
	std::mt19937_64 rng(34);
	for (size_t i = 1; i < ends.size(); i++) { // behind the record that tells the format
		SCOPED_TRACE("record " + std::to_string(i));
		// whole up to here, and perhaps a piece of the next, as a kill leaves it: a record's
		// first four bytes come last; or the file ends there, as a full tmpfs leaves it
		size_t torn = i + 1 < ends.size() && i % 3 ? rng() % (ends[i + 1] - ends[i]) : 0;
		std::string cut = log.substr(0, ends[i] + torn);
		if (i % 3 == 2) {
			for (size_t k = ends[i]; k < cut.size() && k < ends[i] + 4; k++)
				cut[k] = 0;
			cut.resize(log.size());
		}
		saved.put_back();
		wipe_store(ground);
		write_file(path, cut);
		Staging s(ground, stopped());
		ASSERT_EQ(s.err, 0);
		ASSERT_EQ(s.replayed.size(), i - 1);
		EXPECT_EQ(std::filesystem::file_size(path), ends[i]); // the torn part is cut
		uint64_t last = staging_last_seq(s);
		const Tree &want = std::prev(states.upper_bound(last))->second;
		s.start();
		ASSERT_EQ(s.err, 0);
		ASSERT_EQ(s.drain(), 0);
		ASSERT_TRUE(s.tree() == want) << show(s.tree()) << "\nwanted " << show(want);
		EXPECT_EQ(staging_durable(s), last);
		EXPECT_TRUE(s.notes_with("damaged") + s.notes_with("conflict") +
				    s.notes_with("missing") == 0);
	}
}

// A log that goes on after a torn record must not hide what comes after it.
TEST(Log, GoesOnAfterATornTail)
{
	Ground ground;
	std::mt19937_64 rng(35);
	{
		Staging s(ground, stopped());
		many_records(rng, s, 20);
	}
	std::string path = log_path(ground);
	std::filesystem::resize_file(path, boundaries(read_file(path)).back() - 3);
	size_t more;
	{
		Staging s(ground, stopped());
		ASSERT_EQ(s.replayed.size(), 19u);
		more = many_records(rng, s, 5).size();
	}
	Staging s(ground, stopped());
	EXPECT_EQ(s.replayed.size(), 19 + more);
}

TEST(Log, DamagedMiddleIsSetAside)
{
	Ground ground;
	Tree good;
	std::string path, log;
	std::vector<size_t> ends;
	{
		Staging s(ground, stopped());
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("a", "A"), 0);
		ASSERT_EQ(h.mkdir("d"), 0);
		good = h.now();
		ASSERT_EQ(h.put("lost", "L"), 0);
		path = log_path(ground);
		killed(s, h);
	}
	log = read_file(path);
	ends = boundaries(log);
	ASSERT_EQ(ends.size(), 7u); // the format, CREATE SEAL MKDIR CREATE SEAL
	log[ends[4] + 40] ^= 1;	    // in the second CREATE
	write_file(path, log);
	{
		Staging s(ground, stopped());
		ASSERT_EQ(s.err, 0);
		EXPECT_EQ(s.replayed.size(), 3u);
		EXPECT_EQ(s.notes_with("the log is damaged"), 1);
		auto kept = files_like(s.place.path, "log.damaged.");
		ASSERT_EQ(kept.size(), 1u);
		EXPECT_SAME(read_file(std::string(s.place.path) + "/" + kept[0]), log); // as it was
		EXPECT_EQ(read_file(log_path(ground)), log.substr(0, ends[4]));
		rec r = {};
		r.type = REC_MKDIR;
		r.node = staging_new_id(s);
		r.dir = root;
		r.name = "more";
		ASSERT_EQ(staging_log(s, &r), 0);
	}
	good["more/"];
	Staging s(ground); // what was logged since is there, and damage is told once
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.replayed.size(), 4u);
	EXPECT_EQ(s.notes_with("damaged"), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(s.tree() == good) << show(s.tree());
	// bytes without a record are kept for a person
	EXPECT_EQ(files_like(ground.store() + "/.cairn", "lost+found").size(), 1u);
	auto found = files_like(ground.store() + "/.cairn/lost+found", "");
	ASSERT_EQ(found.size(), 1u);
	EXPECT_EQ(read_file(ground.store() + "/.cairn/lost+found/" + found[0]), "L");
}

// All files of a place with their bytes, for "nothing was touched".
std::map<std::string, std::string> all_of(const std::string &place)
{
	return Saved(place).files;
}

// Of another version, damaged, or of another store with the same id: looked at, named, refused; and
// nothing of it is touched, so that who understands it goes on with it.
TEST(Log, WhatIsNotUnderstoodIsRefusedAndNotTouched)
{
	for (int what = 0; what < 8; what++) {
		SCOPED_TRACE(what);
		Ground ground;
		{
			Staging s(ground, stopped());
			ASSERT_EQ(s.err, 0);
			History h(s, 36);
			ASSERT_EQ(h.put("a", "A"), 0);
			ASSERT_EQ(h.put("large", pattern(3000000, 1)), 0);
			killed(s, h);
		}
		std::string head_path = place_of(ground) + "/head", head = read_file(head_path), good = head;
		std::string log = read_file(log_path(ground)), good_log = log;
		ASSERT_EQ(head.size(), 4096u);
		const char *wrote = "0.1.0";
		int want = -EPROTONOSUPPORT;
		switch (what) {
		case 0: // magic
			head[0] ^= 1;
			wrote = "";
			break;
		case 1: // version
			head[8] = 77;
			head.replace(80, 32, std::string("9.8.7") + std::string(27, 0));
			wrote = "9.8.7";
			break;
		case 2:
			head[8] = 0;
			break;
		case 3: // the store's id
			head[12] ^= 1;
			break;
		case 4:
			head.resize(20);
			wrote = "";
			break;
		case 5: // the store's directory
			head[112 + 24] ^= 1;
			want = -EXDEV;
			break;
		case 6: // when it was made
			head[112 + 40] ^= 1;
			want = -EXDEV;
			break;
		default: { // the log's format
			std::vector<char> buf(1u << 16);
			rec r;
			size_t used;
			ASSERT_EQ(rec_decode(log.data(), log.size(), &r, &used), 0);
			r.size = 1000;
			ssize_t n = rec_encode(&r, buf.data(), buf.size());
			ASSERT_EQ((size_t)n, used);
			log.replace(0, used, buf.data(), used);
			head.replace(80, 32, std::string("9.8.7") + std::string(27, 0));
			wrote = "9.8.7";
		}
		}
		write_file(head_path, head);
		write_file(log_path(ground), log);
		auto before = all_of(place_of(ground));
		ASSERT_EQ(before.size(), 4u); // head, log, two staged files
		{
			Engine e("posix");
			Store store(e, ground.store());
			staging_found l;
			EXPECT_EQ(staging_look(ground.run().c_str(), store, &l), want);
			EXPECT_STREQ(l.program, wrote);
			EXPECT_EQ(l.path, place_of(ground));
			if (what >= 5) {
				EXPECT_EQ(l.store, ground.store());
			}
		}
		{
			Staging s(ground);
			EXPECT_EQ(s.err, want);
		}
		EXPECT_TRUE(all_of(place_of(ground)) == before);
		EXPECT_TRUE(tree_of(ground.store()).empty());
		write_file(head_path, good);
		write_file(log_path(ground), good_log);
		Staging s(ground); // who understands it takes it over
		ASSERT_EQ(s.err, 0);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_EQ(tree_of(ground.store()).size(), 2u);
	}
}

// Killed before its magic was written: it is begun again.
TEST(Log, AHeadThatIsNotBegunIsBegun)
{
	Ground ground;
	{
		Staging s(ground, stopped());
		ASSERT_EQ(s.err, 0);
	}
	std::string head = read_file(place_of(ground) + "/head");
	write_file(place_of(ground) + "/head", std::string(8, 0) + head.substr(8));
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.put("a", "A"), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), show(h.now()));
}

TEST(Log, HostileBytesNeverCrashTheReplay)
{
	std::string log;
	Ground ground;
	std::mt19937_64 rng(37);
	{
		Staging s(ground, stopped());
		ASSERT_EQ(s.err, 0);
		many_records(rng, s, 30);
	}
	std::string path;
	Saved saved(place_of(ground));
	path = log_path(ground);
	log = read_file(path);
	for (int round = 0; round < 300; round++) {
		std::string bad = log;
		saved.put_back();
		switch (rng() % 3) {
		case 0:
			bad[rng() % bad.size()] ^= (char)(1 << rng() % 8);
			break;
		case 1: {
			size_t at = rng() % bad.size(), n = rng() % 300;
			for (size_t i = at; i < bad.size() && i < at + n; i++)
				bad[i] = (char)rng();
			break;
		}
		default:
			bad.insert(rng() % bad.size(), std::string(1 + rng() % 64, (char)rng()));
		}
		write_file(path, bad);
		Staging s(ground, stopped());
		ASSERT_EQ(s.err, 0);
		ASSERT_LE(s.replayed.size(), 30u);
		std::string left = read_file(log_path(ground));
		EXPECT_EQ(left, log.substr(0, left.size())); // no wrong record stays
	}
}

TEST(Log, AMissingStagedFileIsToldAndKeepsItsPlace)
{
	Ground ground;
	uint64_t gone, last;
	{
		Staging s(ground, stopped());
		ASSERT_EQ(s.err, 0);
		History h(s);
		ASSERT_EQ(h.put("before", "B"), 0);
		ASSERT_EQ(h.put("gone", "G"), 0);
		ASSERT_EQ(h.put("after", "A"), 0);
		gone = staged_id(h.file("gone"));
		last = staging_last_seq(s);
		killed(s, h);
	}
	char name[17];
	io_tmp_name(gone, name);
	ASSERT_TRUE(std::filesystem::remove(place_of(ground) + "/small/" + name));
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.notes_with("staged file is missing"), 1);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(show(s.tree()), "after=1,65 before=1,66 ");
	EXPECT_EQ(staging_durable(s), last);
}

// The last worker died between a change of the store and the count of it. What that change
// made is removed since: it is not a pair that nobody saw.
TEST(Log, AppliedButNotCountedIsNotLeftOut)
{
	for (bool file : {false, true}) {
		SCOPED_TRACE(file ? "file" : "directory");
		Ground ground;
		uint64_t node = 0;
		{
			Staging s(ground);
			ASSERT_EQ(s.err, 0);
			History h(s);
			ASSERT_EQ(file ? h.put("x", "X") : h.mkdir("x"), 0);
			ASSERT_EQ(s.drain(), 0);
			killed(s, h);
		}
		std::string path = place_of(ground) + "/head", head = read_file(path);
		uint64_t counts[2]; // applied, durable
		memcpy(counts, &head[64], 16);
		ASSERT_EQ(counts[0], 1u);
		ASSERT_EQ(counts[1], 1u);
		memset(&head[64], 0, 16);
		write_file(path, head);
		forget_mark(ground);
		Options o = stopped();
		Staging s(ground, o);
		ASSERT_EQ(s.err, 0);
		for (auto &seen : s.replayed)
			node = seen.r.node;
		EXPECT_EQ(s.stats().log.pending, 1u);
		rec r = {};
		r.type = file ? REC_UNLINK : REC_RMDIR;
		r.node = r.node2 = node;
		r.dir = root;
		r.name = "x";
		ASSERT_EQ(staging_log(s, &r), 0);
		EXPECT_NE(show(s.tree()), "");
		s.start();
		ASSERT_EQ(s.drain(), 0);
		EXPECT_EQ(show(s.tree()), "");
		EXPECT_EQ(s.notes_with("conflict"), 0);
	}
}

// ---- answers ----

rec answer(uint64_t unique, uint64_t node)
{
	rec r = {};
	r.type = REC_MKDIR;
	r.unique = unique;
	r.node = node;
	r.dir = root;
	r.name = "";
	r.flags = REC_ABSENT; // nothing to publish
	return r;
}

TEST(Answers, SurviveReplayAndRotation)
{
	Ground ground;
	rec r;
	{
		Staging s(ground);
		ASSERT_EQ(s.err, 0);
		for (uint64_t i = 1; i <= 300; i++) {
			rec a = answer(2 * i, 1000 + i);
			ASSERT_EQ(staging_log(s, &a), 0);
		}
		EXPECT_FALSE(staging_answered(s, 2, &r)); // only the last 256 are remembered
		ASSERT_EQ(s.drain(), 0);
	}
	for (int round = 0; round < 3; round++) {
		SCOPED_TRACE(round);
		Staging s(ground);
		ASSERT_EQ(s.err, 0);
		for (uint64_t i = 45; i <= 300; i++) {
			ASSERT_TRUE(staging_answered(s, 2 * i, &r)) << i;
			EXPECT_EQ(r.node, 1000 + i);
			EXPECT_EQ(r.type, (uint32_t)REC_MKDIR);
			EXPECT_STREQ(r.name, "");
		}
		EXPECT_FALSE(staging_answered(s, 602, &r));
		EXPECT_FALSE(
			staging_answered(s, 2 * 45 + 512, &r)); // the same slot, another request
		// answers are only remembered, not carried out again
		EXPECT_EQ(s.replayed.size(), round ? 0u : 300u);
		ASSERT_EQ(s.drain(), 0);
		ASSERT_EQ(staging_rotate(s, [](void *, staging *) { return 0; }, nullptr), 0);
	}
}

// Another connection counts its requests from the beginning: a resent request of it must not get
// the answer that the same number had in the last one, whether or not the log was rotated.
TEST(Answers, EndWithTheConnection)
{
	Ground ground;
	rec r;
	{
		Staging s(ground);
		ASSERT_EQ(s.err, 0);
		rec a = answer(154, 5);
		ASSERT_EQ(staging_log(s, &a), 0);
		ASSERT_TRUE(staging_answered(s, 154, &r));
		ASSERT_EQ(staging_new_connection(s), 0);
		EXPECT_FALSE(staging_answered(s, 154, &r));
		a = answer(20, 6);
		ASSERT_EQ(staging_log(s, &a), 0);
	}
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	EXPECT_FALSE(staging_answered(s, 154, &r));
	EXPECT_TRUE(staging_answered(s, 20, &r)); // of this connection
}

TEST(Answers, NoneIsNoAnswer)
{
	Ground ground;
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	rec a = answer(0, 5), r;
	ASSERT_EQ(staging_log(s, &a), 0);
	EXPECT_FALSE(staging_answered(s, 2, &r));
	EXPECT_FALSE(staging_answered(s, 512, &r));
}

// ---- rotation ----

int emit_two(void *ctx, staging *s)
{
	auto *f = static_cast<staged *>(ctx);
	rec r = {};
	r.type = REC_NODE;
	r.node = 77;
	r.dir = root;
	r.name = "a";
	r.mode = S_IFREG | 0644;
	r.flags = REC_SEALED;
	int rc = staging_emit(s, &r);
	if (rc || !f)
		return rc;
	r = {};
	r.type = REC_STAGED;
	r.node = 77;
	r.sf = staged_id(f);
	r.flags = REC_SEALED | (staged_huge(f) ? REC_HUGE : 0);
	r.size = info(f).size;
	r.name = "a";
	return staging_emit(s, &r);
}

TEST(Rotate, WritesTheLivingAndDropsTheRest)
{
	Ground ground;
	uint64_t last;
	{
		Staging s(ground);
		ASSERT_EQ(s.err, 0);
		History h(s);
		for (int i = 0; i < 100; i++)
			ASSERT_EQ(h.put("a", pattern(2000, (uint64_t)i)), 0);
		EXPECT_FALSE(staging_rotate_due(s)); // too short to gain anything
		ASSERT_EQ(s.drain(), 0);
		last = staging_last_seq(s);
		uint64_t before = s.stats().log.bytes;
		std::string old = log_path(ground);
		ASSERT_EQ(staging_rotate(s, emit_two, h.file("a")), 0);
		EXPECT_LT(s.stats().log.bytes, before / 10);
		EXPECT_NE(log_path(ground), old);
		EXPECT_EQ(files_like(s.place.path, "log.").size(), 1u);
		EXPECT_EQ(boundaries(read_file(log_path(ground))).back(), s.stats().log.bytes);
		killed(s, h);
	}
	Options o;
	o.orphaned = false; // the next worker, not the next mount
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	ASSERT_EQ(s.replayed.size(), 2u);
	EXPECT_EQ(s.replayed[0].r.node, 77u);
	EXPECT_EQ(s.replayed[1].r.type, (uint32_t)REC_STAGED);
	EXPECT_EQ(staging_last_seq(s), last); // the order goes on where it was
	EXPECT_EQ(staging_durable(s), last);
	rec r = {};
	r.type = REC_MKDIR;
	r.node = staging_new_id(s);
	r.dir = root;
	r.name = "d";
	ASSERT_EQ(staging_log(s, &r), 0);
	EXPECT_EQ(r.seq, last + 1);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(std::filesystem::is_directory(ground.store() + "/d"));
	EXPECT_SAME(read_file(ground.store() + "/a"), pattern(2000, 99));
}

TEST(Rotate, RefusedWhileSomethingIsPending)
{
	Ground ground;
	Staging s(ground, stopped());
	ASSERT_EQ(s.err, 0);
	History h(s);
	ASSERT_EQ(h.mkdir("d"), 0);
	EXPECT_EQ(staging_rotate(s, emit_two, nullptr), -EBUSY);
	EXPECT_FALSE(staging_rotate_due(s));
}

// An emit that fails leaves the old log in force.
TEST(Rotate, FailedHalfWayIsAsIfNever)
{
	Ground ground;
	std::mt19937_64 rng(38);
	std::string path;
	{
		Staging s(ground);
		ASSERT_EQ(s.err, 0);
		many_records(rng, s, 10);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_EQ(staging_rotate(
				  s,
				  [](void *, staging *at) {
					  emit_two(nullptr, at);
					  return -ENOSPC;
				  },
				  nullptr),
			  -ENOSPC);
		many_records(rng, s, 5);
		ASSERT_EQ(s.drain(), 0);
	}
	Staging s(ground, stopped());
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.replayed.size(), 15u);
}

// Killed between the new segment and the switch: the old one counts, the new one is no harm.
TEST(Rotate, KilledBeforeTheSwitch)
{
	Ground ground;
	std::mt19937_64 rng(39);
	{
		Staging s(ground, stopped());
		many_records(rng, s, 10);
	}
	std::string path = log_path(ground);
	std::string next = path.substr(0, path.rfind('.') + 1) +
			   std::to_string(std::stoull(path.substr(path.rfind('.') + 1)) + 1);
	write_file(next, "half of a segment");
	Staging s(ground, stopped());
	ASSERT_EQ(s.err, 0);
	EXPECT_EQ(s.replayed.size(), 10u);
	EXPECT_TRUE(s.notes.empty());
}

TEST(Rotate, DueWhenItHasGrown)
{
	Ground ground;
	Staging s(ground, stopped());
	ASSERT_EQ(s.err, 0);
	std::string value = pattern(60000, 1);
	for (int i = 0; i < 160; i++) {
		EXPECT_EQ(staging_rotate_due(s), s.stats().log.bytes > 8u << 20);
		rec r = {};
		r.type = REC_NODE;
		r.node = 5;
		r.name = "n";
		r.data = value.data();
		r.data_len = (uint32_t)value.size();
		ASSERT_EQ(staging_log(s, &r), 0);
	}
	EXPECT_TRUE(staging_rotate_due(s));
	ASSERT_EQ(staging_rotate(s, emit_two, nullptr), 0);
	EXPECT_FALSE(staging_rotate_due(s));
}

} // namespace

// SPDX-License-Identifier: MIT
//
// Ids: what staging gives is never taken for one of .cairn's own, whatever the host is called and
// whenever it starts; a staging area with ids that 0.1.0 made wrong is served all the same.
#include <sched.h>
#include <set>
#include <sys/xattr.h>

#include "tests/unit/fs_client.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

TEST(Ids, NoSaltAndNoTimeMakesOneOfCairnsOwn)
{
	const time_t times[] = {0, 1, 1790000000, INT32_MAX, UINT32_MAX, (time_t)1 << 40, -1};
	for (time_t sec : times)
		for (long nsec : {0L, 1L, 999999999L})
			for (unsigned salt = 0; salt < 256; salt++) {
				timespec now = {.tv_sec = sec, .tv_nsec = nsec};
				uint64_t id = staging_first_id(&now, salt * 0x01010101u);
				ASSERT_TRUE(staging_id_is_valid(id)) << sec << " " << salt;
				ASSERT_FALSE(shim_is_control(id)) << sec << " " << salt;
			}
}

TEST(Ids, ALaterStartGivesLargerIds)
{
	uint64_t last = 0;
	for (long ms = 0; ms < 5000; ms++) {
		timespec now = {.tv_sec = 1790000000 + ms / 1000, .tv_nsec = ms % 1000 * 1000000};
		uint64_t id = staging_first_id(&now, 9);
		ASSERT_GT(id, last + 10000) << ms; // there is space for that many in a millisecond
		last = id;
	}
}

// The bits of the id of a file that tell where it was made.
uint64_t maker(uint64_t id) { return id >> ID_HOST_SHIFT; }

TEST(Ids, NoTwoNumbersGiveTheSame)
{
	std::set<uint64_t> seen;
	const time_t times[] = {0, 1, 1790000000, INT32_MAX, UINT32_MAX, (time_t)1 << 40, -1};
	for (unsigned number = 1; number <= IO_HOST_NUMBERS; number++) {
		timespec then = {.tv_sec = 1790000000, .tv_nsec = 0};
		uint64_t at = maker(staging_first_id_of(&then, number));
		ASSERT_TRUE(seen.insert(at).second) << number;
		for (time_t sec : times)
			for (long nsec : {0L, 999999999L}) {
				timespec now = {.tv_sec = sec, .tv_nsec = nsec};
				uint64_t id = staging_first_id_of(&now, number);
				ASSERT_TRUE(staging_id_is_valid(id)) << sec << " " << number;
				ASSERT_FALSE(shim_is_control(id)) << sec << " " << number;
				ASSERT_EQ(maker(id), at) << sec << " " << number;
			}
	}
	// nor a host without one, at any time
	for (unsigned salt = 0; salt <= ID_SALT_MASK; salt++)
		for (uint64_t sec = 0; sec <= UINT32_MAX; sec += 1 << 20) {
			timespec now = {.tv_sec = (time_t)sec, .tv_nsec = 0};
			ASSERT_FALSE(seen.count(maker(staging_first_id(&now, salt)))) << sec << " " << salt;
		}
	// nor that of earlier versions, from 2021 to 2029, whose staging areas are continued
	for (uint64_t salt = 0; salt <= ID_SALT_MASK; salt++)
		for (uint64_t sec : {1650000000ull, 1790000000ull, 1879000000ull})
			ASSERT_FALSE(seen.count(maker(salt << ID_SALT_SHIFT | sec << ID_SECOND_SHIFT))) << sec;
}

TEST(Ids, ALaterStartOfANumberGivesLargerIds)
{
	uint64_t last = 0;
	for (long ms = 0; ms < 5000; ms++) {
		timespec now = {.tv_sec = 1790000000 + ms / 1000, .tv_nsec = ms % 1000 * 1000000};
		uint64_t id = staging_first_id_of(&now, 60);
		ASSERT_GT(id, last + 1000) << ms; // there is space for that many in a millisecond
		last = id;
	}
}

// As the staging area of a store gets them.
TEST(Ids, AStagingAreaBeginsWithItsHostsNumber)
{
	Ground ground;
	Staging s(ground);
	ASSERT_EQ(s.err, 0);
	timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	io_store *store = s.store;
	ASSERT_GT(io_store_host_number(store), 0u);
	EXPECT_EQ(maker(staging_new_id(s)), maker(staging_first_id_of(&now, io_store_host_number(store))));
}

TEST(Ids, CairnsOwnAreKnown)
{
	EXPECT_FALSE(shim_is_control(root));
	EXPECT_TRUE(shim_is_control(2));
	EXPECT_TRUE(shim_is_control(STAGING_FIRST_ID - 1));
	EXPECT_FALSE(shim_is_control(STAGING_FIRST_ID));
	EXPECT_FALSE(shim_is_control(STAGING_ID_MASK));
	EXPECT_TRUE(shim_is_control(STAGING_ID_MASK + 1));
	EXPECT_TRUE(shim_is_control(UINT64_MAX));
}

// 0.1.0 took ids from the name: on half of all hosts they were .cairn's.
TEST(Ids, NoHostnameMakesAControlNode)
{
	if (unshare(CLONE_NEWUTS))
		GTEST_SKIP() << "no UTS namespace: " << strerror(errno);
	std::vector<std::string> names = {"localhost", "ubuntu", "node1", "dgx01", "",
					  std::string(64, 'x'), "a/b", "..", "N\xc3\xb6rd"};
	for (int i = 0; i < 55; i++)
		names.push_back("host-" + std::to_string(i * 7919));
	for (auto &name : names) {
		SCOPED_TRACE(name);
		ASSERT_EQ(sethostname(name.data(), name.size()), 0);
		Ground ground;
		Worker w(ground);
		ASSERT_EQ(w.t.err, 0);
		File f;
		ASSERT_EQ(w.k.mkdir(root, "d"), 0);
		EXPECT_FALSE(shim_is_control(w.k.id));
		ASSERT_EQ(w.k.create(w.k.id, "f", &f, O_WRONLY | O_CREAT | O_EXCL), 0);
		EXPECT_FALSE(shim_is_control(f.id));
	}
}

// A head as 0.1.0 left it: the next id has the bit of .cairn's trees, or of its views.
TEST(Ids, BadIdsOfAnOldStagingAreaAreReplayedAndNotContinued)
{
	for (uint64_t bad : {1ull << 62, 1ull << 63, 3ull << 62 | 5ull << 56, 1ull << 62 | 63ull << 56}) {
		SCOPED_TRACE(bad);
		Ground ground;
		uint64_t first;
		{
			Options stopped;
			stopped.start = false;
			Staging s(ground, stopped);
			ASSERT_EQ(s.err, 0);
			first = staging_new_id(s) | bad;
			rec r = {};
			r.type = REC_MKDIR;
			r.node = r.ino = first;
			r.dir = root;
			r.mode = 0755;
			r.uid = geteuid();
			r.gid = getegid();
			r.name = "d";
			ASSERT_EQ(staging_log(s, &r), 0);
			staged *f = create(s, first + 1, {first, "f"}, 5);
			ASSERT_TRUE(f && write_all(f, "bytes"));
			ASSERT_EQ(staged_allocate(f), 0);
			ASSERT_GT(seal(s, f, first + 1, {{first, "f"}}, true), 0);
			// struct head: magic, version, store_id, segment, next_id
			std::string head = std::string(s.place.path) + "/head";
			int fd = open(head.c_str(), O_WRONLY);
			uint64_t next = first + 2;
			ASSERT_EQ(pwrite(fd, &next, sizeof(next), 56), (ssize_t)sizeof(next));
			close(fd);
			ASSERT_EQ(staging_new_id(s), first + 2 - (bad & ~STAGING_ID_MASK)) << "not next_id's place";
		}
		Staging s(ground);
		ASSERT_EQ(s.err, 0);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_TRUE((s.tree() == Tree{{"d/", ""}, {"d/f", "bytes"}})) << show(s.tree());
		uint64_t next = staging_new_id(s);
		EXPECT_FALSE(shim_is_control(next)) << std::hex << next;
		EXPECT_NE(next, first & STAGING_ID_MASK);
	}
}

// user.cairn.ino of such a store is a number to show: the file is found, and the number stays.
TEST(Ids, BadInodeNumbersOfAnOldStoreAreOnlyShown)
{
	Ground ground;
	uint64_t ino = 1ull << 62 | 77ull << 56 | 12345;
	Worker w(ground, true);
	ASSERT_EQ(w.t.err, 0);
	write_file(ground.store() + "/old", "bytes");
	std::string text = std::to_string(ino);
	if (setxattr((ground.store() + "/old").c_str(), "user.cairn.ino", text.data(), text.size(), 0))
		GTEST_SKIP() << "no xattrs here: " << strerror(errno);
	ASSERT_EQ(w.k.lookup(root, "old"), 0);
	EXPECT_FALSE(shim_is_control(w.k.id));
	ASSERT_EQ(w.k.getattr(w.k.id), 0);
	EXPECT_EQ(w.k.ino, ino);
	EXPECT_EQ(w.k.get(w.k.id), "bytes");
}

} // namespace

// SPDX-License-Identifier: MIT
//
// Buffers: staged files on loan to a client. A version made of one is published as any other;
// meanwhile the memory is nobody's to write, and afterwards the client's again.
#include <dirent.h>
#include <sys/mman.h>

#include "tests/api/staging_fixture.hh"

namespace
{

const uint64_t root = STAGING_ROOT_DIR, mib = 1u << 20;
const uint64_t size = 3 * mib + 777, pages = 4 * mib;

// What a client has of a buffer: its own mapping, which outlives staging.
struct Client {
	explicit Client(const buffer *b, uint64_t len = size) : len(len)
	{
		Fd fd(open(("/proc/self/fd/" + std::to_string(buffer_fd(b))).c_str(), O_RDWR | O_CLOEXEC));
		p = static_cast<char *>(mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
		if (p == MAP_FAILED)
			throw std::system_error(errno, std::generic_category(), "mmap");
	}
	Client(const Client &) = delete;
	Client &operator=(const Client &) = delete;
	~Client() { munmap(p, len); }
	void fill(uint64_t seed) const
	{
		std::string bytes = pattern(len, seed);
		memcpy(p, bytes.data(), len);
	}
	bool has(const std::string &bytes) const { return !memcmp(p, bytes.data(), bytes.size()); }

	char *p;
	uint64_t len;
};

std::vector<std::string> huge_files(const Staging &s)
{
	std::vector<std::string> out;
	int fd = openat(s.place.huge, ".", O_RDONLY | O_DIRECTORY);
	DIR *d = fdopendir(fd);
	while (dirent *e = readdir(d))
		if (e->d_name[0] != '.' && strcmp(e->d_name, "ballast") && strncmp(e->d_name, "blank.", 6))
			out.push_back(e->d_name);
	closedir(d);
	return out;
}

buffer_state state(buffer *b)
{
	buffer_info i;
	buffer_get_info(b, &i);
	return i.state;
}

// As the frontend makes one, with its record.
buffer *make(staging *s, uint64_t len = size)
{
	buffer *b = nullptr;
	if (buffer_create(s, len, &b))
		return nullptr;
	rec r = {};
	r.type = REC_BUFFER;
	r.node = staging_new_id(s);
	r.sf = buffer_id(b);
	r.size = len;
	r.name = "1.x";
	EXPECT_EQ(staging_log(s, &r), 0);
	return b;
}

void end(buffer *b)
{
	buffer_end(b);
	buffer_unref(b);
}

// A link(2) in its steps. f stays the caller's, as the new file's node has it.
struct Commit {
	staged *f = nullptr;
	uint64_t node = 0, seq = 0;

	int lend(staging *s, buffer *b, uint64_t len)
	{
		node = staging_new_id(s);
		return buffer_lend(b, node, len, &f);
	}
	int seal(const std::string &name)
	{
		rec_name at = {root, name.c_str()};
		void *data = nullptr;
		ssize_t len = rec_pack(&at, 1, nullptr, 0, &data);
		if (len < 0)
			return (int)len;
		rec r = {};
		r.node = r.ino = node;
		r.mode = 0640;
		r.uid = geteuid();
		r.gid = getegid();
		r.dir = root;
		r.name = name.c_str();
		r.when = {1700000000, 5};
		r.data = data;
		r.data_len = (uint32_t)len;
		int rc = buffer_commit(f, &r);
		free(data);
		seq = r.seq;
		return rc;
	}
	int all(staging *s, buffer *b, const std::string &name, uint64_t len = size)
	{
		int rc = lend(s, b, len);
		if (!rc)
			rc = staged_allocate(f);
		if (!rc)
			rc = seal(name);
		if (rc && f)
			staged_unref(f);
		return rc;
	}
};

struct Buffers : ::testing::Test {
	void SetUp() override
	{
		if (geteuid())
			GTEST_SKIP() << "links in /dev/shm may cross quotas; root mounts its own tmpfs";
	}
	Ground ground;
	Options o;
};

TEST_F(Buffers, TheSamePagesForEveryVersion)
{
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	buffer *b = make(s);
	ASSERT_TRUE(b);
	EXPECT_EQ(s.stats().used, pages);
	EXPECT_EQ(s.stats().buffers.count, 1u);
	EXPECT_EQ(s.stats().buffers.bytes, pages);
	Client c(b);
	Tree want;
	for (uint64_t k = 0; k < 6; k++) {
		uint64_t len = k == 2 ? 0 : k == 4 ? 3000 : size - k * 70001;
		std::string name = "f" + std::to_string(k);
		Commit v;
		c.fill(k);
		want[name] = pattern(size, k).substr(0, len);
		ASSERT_EQ(v.all(s, b, name, len), 0);
		ASSERT_EQ(Durable(s, v.seq).wait(), 0);
		ASSERT_TRUE(until([&] { return state(b) == BUFFER_FREE; }));
		EXPECT_EQ(info(v.f).state, STAGED_EVICTED);
		EXPECT_EQ(info(v.f).size, len);
		EXPECT_EQ(s.stats().used, pages) << "charged once";
		staged_unref(v.f);
	}
	EXPECT_TRUE(s.tree() == want) << show(s.tree());
	struct stat st;
	ASSERT_EQ(stat((s.store_path + "/f1").c_str(), &st), 0);
	EXPECT_EQ(st.st_mtim.tv_sec, 1700000000);
	end(b);
	EXPECT_EQ(s.stats().used, 0u);
	EXPECT_EQ(huge_files(s).size(), 0u);
}

TEST_F(Buffers, LentUntilDurable)
{
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	buffer *b = make(s);
	Client c(b);
	c.fill(1);
	Commit v, other;
	ASSERT_EQ(v.all(s, b, "f"), 0);
	EXPECT_EQ(state(b), BUFFER_LENT);
	EXPECT_EQ(s.stats().buffers.lent_bytes, size);
	EXPECT_EQ(other.lend(s, b, size), -EBUSY);
	EXPECT_EQ(staged_reopen(v.f), -EAGAIN) << "nobody writes into a client's memory";
	std::string got(size, 0);
	EXPECT_EQ(staged_read(v.f, got.data(), got.size(), 0), (ssize_t)size);
	EXPECT_TRUE(got == pattern(size, 1));
	s.start();
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(state(b), BUFFER_FREE);
	EXPECT_EQ(staged_read(v.f, got.data(), 1, 0), -ENODATA) << "readers go to the store";
	staged_unref(v.f);
	end(b);
}

TEST_F(Buffers, AShortVersionEndsWhereItEnds)
{
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	buffer *b = make(s);
	Client c(b);
	c.fill(1);
	Commit v;
	ASSERT_EQ(v.all(s, b, "f", 5000), 0);
	char got[100];
	EXPECT_EQ(staged_read(v.f, got, 100, 4990), 10);
	EXPECT_EQ(staged_read(v.f, got, 100, 5000), 0);
	staged *copy = nullptr;
	ASSERT_EQ(staged_copy(s, staging_new_id(s), v.f, -1, nullptr, &copy), 0);
	EXPECT_EQ(info(copy).size, 5000u);
	staged_unref(copy);
	EXPECT_TRUE(c.has(pattern(size, 1))) << "the client's mapping is whole";
	staged_unref(v.f);
	end(b);
}

// Who uses the version by other means than the kernel's own keeps it for so long.
TEST_F(Buffers, AUserHoldsItBack)
{
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	buffer *b = make(s);
	Client c(b);
	c.fill(1);
	Commit v;
	int fd;
	ASSERT_EQ(v.lend(s, b, size), 0);
	ASSERT_EQ(staged_allocate(v.f), 0);
	ASSERT_EQ(staged_use(v.f, &fd), 0);
	ASSERT_EQ(v.seal("f"), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(info(v.f).state, STAGED_DURABLE);
	EXPECT_EQ(state(b), BUFFER_LENT);
	staged_unuse(v.f);
	EXPECT_EQ(state(b), BUFFER_FREE);
	staged_unref(v.f);
	end(b);
}

TEST_F(Buffers, ABackingFileKeepsIt)
{
	o.budget = 16 * mib;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	buffer *b = make(s);
	Client c(b);
	c.fill(1);
	Commit v, other;
	int fd;
	ASSERT_EQ(v.lend(s, b, 2 * mib), 0);
	ASSERT_EQ(staged_allocate(v.f), 0);
	ASSERT_EQ(v.seal("f"), 0);
	ASSERT_EQ(staged_use(v.f, &fd), 0);
	staged_set_backing(v.f);
	struct stat st;
	ASSERT_EQ(fstat(fd, &st), 0);
	EXPECT_EQ(st.st_size, (off_t)(2 * mib)) << "a reader must not see what is behind the end";
	staged_unuse(v.f);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(state(b), BUFFER_KEPT);
	EXPECT_EQ(other.lend(s, b, 1), -EBUSY);
	EXPECT_EQ(buffer_resize(b, 5 * mib), -EBUSY);
	EXPECT_EQ(info(v.f).state, STAGED_DURABLE);
	EXPECT_EQ(s.stats().used, pages);
	// evicting it would free nothing
	staged *large = create(s, staging_new_id(s), {root, "large"}, 13 * mib);
	ASSERT_TRUE(large);
	EXPECT_TRUE(staged_spilled(large));
	EXPECT_EQ(info(v.f).state, STAGED_DURABLE);
	staged_unref(large);
	end(b);
	EXPECT_EQ(s.stats().used, 2 * mib) << "the file's own now";
	large = create(s, staging_new_id(s), {root, "large2"}, 15 * mib);
	ASSERT_TRUE(large);
	EXPECT_FALSE(staged_spilled(large));
	EXPECT_EQ(info(v.f).state, STAGED_EVICTED);
	staged_unref(large);
	staged_unref(v.f);
	EXPECT_TRUE(read_file(s.store_path + "/f") == pattern(size, 1).substr(0, 2 * mib));
}

TEST_F(Buffers, TheClientGoesWhileItIsLent)
{
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	buffer *b = make(s);
	{
		Client c(b);
		c.fill(1);
	}
	Commit v;
	ASSERT_EQ(v.all(s, b, "f", size - 100), 0);
	end(b);
	EXPECT_EQ(s.stats().buffers.count, 0u);
	EXPECT_GE(s.stats().used, size - 100);
	EXPECT_LE(s.stats().used, pages);
	EXPECT_EQ(huge_files(s).size(), 1u);
	s.start();
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(read_file(s.store_path + "/f") == pattern(size, 1).substr(0, size - 100));
	EXPECT_EQ(info(v.f).state, STAGED_EVICTED) << "a mapping may live on: no cache";
	staged_unref(v.f);
	EXPECT_EQ(s.stats().used, 0u);
	EXPECT_EQ(huge_files(s).size(), 0u);
}

TEST_F(Buffers, TheClientGoesAndAReaderHasIt)
{
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	buffer *b = make(s);
	{
		Client c(b);
		c.fill(1);
	}
	Commit v;
	ASSERT_EQ(v.all(s, b, "f", size - 100), 0);
	end(b);
	int fd;
	struct stat st;
	ASSERT_EQ(staged_use(v.f, &fd), 0);
	staged_set_backing(v.f);
	ASSERT_EQ(fstat(fd, &st), 0);
	EXPECT_EQ(st.st_size, (off_t)(size - 100));
	EXPECT_EQ(st.st_mtim.tv_sec, 1700000000);
	s.start();
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(info(v.f).state, STAGED_DURABLE);
	staged_unuse(v.f);
	EXPECT_EQ(info(v.f).state, STAGED_DURABLE) << "he may have it mapped";
	staged_unref(v.f);
	EXPECT_EQ(s.stats().used, 0u);
}

// Nobody saw it: nothing is written, and the buffer is free all the same.
TEST_F(Buffers, UnlinkedBeforeItIsPublished)
{
	o.start = false;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	buffer *b = make(s);
	Client c(b);
	Commit v;
	ASSERT_EQ(v.all(s, b, "f"), 0);
	rec r = {};
	r.type = REC_UNLINK;
	r.node = r.node2 = v.node;
	r.dir = root;
	r.name = "f";
	ASSERT_EQ(staging_log(s, &r), 0);
	staged_unref(v.f);
	EXPECT_EQ(state(b), BUFFER_LENT);
	s.start();
	ASSERT_EQ(s.drain(), 0);
	EXPECT_EQ(state(b), BUFFER_FREE);
	EXPECT_EQ(s.tree().size(), 0u);
	EXPECT_EQ(s.stats().bytes_persisted, 0u);
	EXPECT_TRUE(v.all(s, b, "g") == 0 && s.drain() == 0);
	staged_unref(v.f);
	end(b);
}

TEST_F(Buffers, Space)
{
	o.budget = 64 * mib;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	buffer *none = nullptr;
	EXPECT_EQ(buffer_create(s, 49 * mib, &none), -ENOSPC);
	EXPECT_EQ(buffer_create(s, UINT64_MAX / 2, &none), -ENOSPC);
	EXPECT_EQ(s.stats().used, 0u);
	// durable versions make space
	History h(s);
	ASSERT_EQ(h.put("old", std::string(40 * mib, 'x')), 0);
	ASSERT_EQ(s.drain(), 0);
	buffer *b = make(s, 40 * mib);
	ASSERT_TRUE(b);
	EXPECT_EQ(s.stats().used, 40 * mib);
	EXPECT_EQ(buffer_resize(b, 50 * mib), -ENOSPC);
	EXPECT_EQ(buffer_create(s, 10 * mib, &none), -ENOSPC);
	EXPECT_EQ(buffer_resize(b, 46 * mib), 0);
	EXPECT_EQ(s.stats().buffers.bytes, 46 * mib);
	EXPECT_EQ(buffer_resize(b, 1), 0) << "nothing is taken from the mapping";
	EXPECT_EQ(s.stats().buffers.bytes, 46 * mib);
	struct stat st;
	ASSERT_EQ(fstat(buffer_fd(b), &st), 0);
	EXPECT_EQ(st.st_size, (off_t)(46 * mib));
	EXPECT_EQ((uint64_t)st.st_blocks * 512, 46 * mib) << "a mapping must never meet a full tmpfs";
	h.drop();
	end(b);
	EXPECT_EQ(s.stats().used, 0u);
}

// From one call of the store on all fail: before the commit it leaves no trace, after it what is
// lent stays lent, and the next start has it.
TEST_F(Buffers, AFailingStoreKeepsItLent)
{
	bool refused = false, halted = false;
	for (int n = 1; n <= 24; n++) {
		Ground here;
		std::string fault = "1:@" + std::to_string(n) + "+:eio";
		Options failing;
		failing.fault = fault.c_str();
		failing.start = false;
		bool accepted;
		{
			Staging s(here, failing);
			if (s.err)
				continue;
			buffer *b = make(s);
			Client c(b);
			c.fill(3);
			Commit v, other;
			accepted = v.all(s, b, "f") == 0;
			EXPECT_EQ(state(b), accepted ? BUFFER_LENT : BUFFER_FREE) << fault;
			refused |= !accepted;
			s.start();
			if (accepted && !s.err && s.drain()) {
				halted = true;
				EXPECT_EQ(state(b), BUFFER_LENT) << fault;
				staging_retry(s);
				EXPECT_EQ(s.drain(), -EIO) << fault;
				EXPECT_EQ(state(b), BUFFER_LENT) << fault;
				EXPECT_EQ(other.lend(s, b, size), -EBUSY) << fault;
				EXPECT_EQ(staged_reopen(v.f), -EAGAIN) << fault;
			}
		}
		Staging s(here);
		ASSERT_EQ(s.drain(), 0);
		EXPECT_TRUE(s.tree() == (accepted ? Tree({{"f", pattern(size, 3)}}) : Tree())) << fault << show(s.tree());
	}
	EXPECT_TRUE(refused && halted);
}

// Bytes that fail to be written are written again, from memory that is still lent.
TEST_F(Buffers, WrittenAgainAfterAnError)
{
	for (int n = 1; n <= 12; n++) {
		Ground here;
		std::string fault = "1:@" + std::to_string(n) + ":eio";
		o.fault = fault.c_str();
		Staging s(here, o);
		if (s.err)
			continue;
		buffer *b = make(s);
		ASSERT_TRUE(b);
		Client c(b);
		c.fill(3);
		Commit v;
		int rc = v.all(s, b, "f");
		if (rc) {
			EXPECT_EQ(state(b), BUFFER_FREE) << fault;
			rc = v.all(s, b, "f");
		}
		ASSERT_EQ(rc, 0) << fault;
		ASSERT_EQ(s.drain(), 0) << fault;
		EXPECT_EQ(state(b), BUFFER_FREE) << fault;
		EXPECT_TRUE(read_file(s.store_path + "/f") == pattern(size, 3)) << fault;
		staged_unref(v.f);
		end(b);
	}
}

TEST_F(Buffers, AFullStoreLeavesNoTrace)
{
	Mount small("tmpfs", "size=2m");
	if (!small.ok)
		GTEST_SKIP() << "no mount without root";
	o.store = small.dir.path;
	Staging s(ground, o);
	ASSERT_EQ(s.err, 0);
	buffer *b = make(s);
	Client c(b);
	Commit v;
	c.fill(1);
	EXPECT_EQ(v.all(s, b, "f"), -ENOSPC);
	EXPECT_EQ(state(b), BUFFER_FREE);
	EXPECT_EQ(staging_last_seq(s), 0u);
	EXPECT_EQ(huge_files(s).size(), 1u);
	Commit w;
	ASSERT_EQ(w.all(s, b, "g", mib), 0);
	ASSERT_EQ(s.drain(), 0);
	EXPECT_TRUE(s.tree() == Tree({{"g", pattern(size, 1).substr(0, mib)}})) << show(s.tree());
	staged_unref(w.f);
	end(b);
}

// ---- deaths -----------------------------------------------------------------------

enum Step { MADE, LENT, RESERVED, COMMITTED, KEPT, DURABLE, AGAIN, ENDED_LENT, ENDED, N_STEPS };

// Everything up to `last`, and then the process is gone. The memory of the client is not.
std::unique_ptr<Client> until_step(Ground &ground, Options o, Step last)
{
	o.start = last >= DURABLE && last != ENDED_LENT;
	Staging s(ground, o);
	EXPECT_EQ(s.err, 0);
	buffer *b = make(s);
	auto c = std::make_unique<Client>(b);
	Commit v;
	c->fill(1);
	if (last >= LENT) {
		EXPECT_EQ(v.lend(s, b, size - 100), 0);
	}
	if (last >= RESERVED) {
		EXPECT_EQ(staged_allocate(v.f), 0);
	}
	if (last >= COMMITTED) {
		EXPECT_EQ(v.seal("f"), 0);
	}
	if (last == KEPT) {
		int fd;
		EXPECT_EQ(staged_use(v.f, &fd), 0);
		staged_set_backing(v.f);
	}
	if (last == ENDED_LENT)
		end(b);
	if (o.start) {
		EXPECT_EQ(s.drain(), 0);
		EXPECT_EQ(state(b), BUFFER_FREE);
		c->fill(2);		// the client's again: nobody may read "f" from there any more
	}
	if (last == AGAIN || last == ENDED) {
		EXPECT_EQ(v.lend(s, b, size), 0);
	}
	if (last == ENDED)
		end(b);
	return c;
}

bool in_lost_found(const Staging &s)
{
	for (auto &e : std::filesystem::recursive_directory_iterator(s.store_path + "/.cairn"))
		if (e.path().parent_path().filename() == "lost+found")
			return true;
	return false;
}

// All is killed, the client too: what was committed is published, the rest is given up.
TEST_F(Buffers, FoundByTheNextStart)
{
	for (int step = MADE; step < N_STEPS; step++) {
		Ground here;
		until_step(here, o, (Step)step);
		Staging s(here, o);
		ASSERT_EQ(s.err, 0) << step;
		ASSERT_EQ(s.drain(), 0) << step;
		Tree want;
		if (step >= COMMITTED)
			want["f"] = pattern(size, 1).substr(0, size - 100);
		EXPECT_TRUE(s.tree() == want) << step << ": " << show(s.tree());
		EXPECT_TRUE(until([&] { return s.stats().used == 0; })) << step;
		EXPECT_EQ(huge_files(s).size(), 0u) << step << ": " << huge_files(s)[0];
		EXPECT_FALSE(in_lost_found(s)) << step;
	}
}

// The worker is killed, the client lives: its buffer, its pages and what it lent are found.
TEST_F(Buffers, FoundByTheNextWorker)
{
	for (int step = MADE; step < ENDED_LENT; step++) {
		Ground here;
		auto c = until_step(here, o, (Step)step);
		buffer *b = nullptr;
		staged *f = nullptr;
		Options next = o;
		next.orphaned = false;
		next.start = false;
		next.each = [&](staging *st, const rec *r) {
			if (r->type == REC_BUFFER) {
				EXPECT_EQ(buffer_recover(st, r->sf, r->flags & REC_KEPT, &b), 0);
			}
			if (r->type == REC_SEAL && staged_recover(st, r, &f))
				f = nullptr;
			// the reader's REC_OPEN is not needed: its version may be gone by then
			if (r->type == REC_UNSTAGED && f && staged_id(f) == r->sf) {
				staged_unref(f);
				f = nullptr;
			}
		};
		Staging s(here, next);
		ASSERT_EQ(s.err, 0) << step;
		ASSERT_TRUE(b) << step;
		bool lent = step == COMMITTED || step == KEPT;
		EXPECT_EQ(state(b), step == KEPT ? BUFFER_KEPT : lent ? BUFFER_LENT : BUFFER_FREE) << step;
		EXPECT_EQ(s.stats().used, step == KEPT ? pages : pages) << step;
		EXPECT_EQ(huge_files(s).size(), lent ? 2u : 1u) << step;
		EXPECT_FALSE(in_lost_found(s)) << step;
		s.start();
		ASSERT_EQ(s.drain(), 0) << step;
		Tree want;
		if (step >= COMMITTED)
			want["f"] = pattern(size, 1).substr(0, size - 100);
		EXPECT_TRUE(s.tree() == want) << step << ": " << show(s.tree());
		EXPECT_EQ(state(b), step == KEPT ? BUFFER_KEPT : BUFFER_FREE) << step;
		if (step != KEPT) {		// the same memory goes on
			c->fill(7);
			Commit v;
			ASSERT_EQ(v.all(s, b, "g"), 0) << step;
			ASSERT_EQ(s.drain(), 0) << step;
			want["g"] = pattern(size, 7);
			EXPECT_TRUE(s.tree() == want) << step << ": " << show(s.tree());
			staged_unref(v.f);
		} else {
			staged_unuse(f);
		}
		end(b);
		if (f)
			staged_unref(f);
		EXPECT_EQ(s.stats().used, 0u) << step;
		EXPECT_EQ(huge_files(s).size(), 0u) << step;
	}
}

// The worker died after the version was in the store and before the buffer was given back.
TEST_F(Buffers, GivenBackByTheNextWorker)
{
	{
		Staging s(ground, o);
		buffer *b = make(s);
		Client c(b);
		c.fill(1);
		Commit v;
		int fd;
		ASSERT_EQ(v.lend(s, b, size), 0);
		ASSERT_EQ(staged_allocate(v.f), 0);
		ASSERT_EQ(staged_use(v.f, &fd), 0);	// holds it back
		ASSERT_EQ(v.seal("f"), 0);
		ASSERT_EQ(s.drain(), 0);
		ASSERT_EQ(state(b), BUFFER_LENT);
	}
	buffer *b = nullptr;
	staged *f = nullptr;
	o.orphaned = false;
	o.start = false;
	o.each = [&](staging *st, const rec *r) {
		if (r->type == REC_BUFFER) {
			EXPECT_EQ(buffer_recover(st, r->sf, false, &b), 0);
		}
		if (r->type == REC_SEAL) {
			EXPECT_EQ(staged_recover(st, r, &f), 0);
		}
	};
	Staging s(ground, o);
	ASSERT_TRUE(b && f);
	EXPECT_EQ(state(b), BUFFER_LENT);
	s.start();
	EXPECT_TRUE(until([&] { return state(b) == BUFFER_FREE; }));
	EXPECT_EQ(info(f).state, STAGED_EVICTED);
	EXPECT_TRUE(read_file(s.store_path + "/f") == pattern(size, 1));
	staged_unref(f);
	end(b);
}

} // namespace

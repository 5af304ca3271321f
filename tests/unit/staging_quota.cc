// SPDX-License-Identifier: MIT
//
// EDQUOT, as ENOSPC: the reserve is given up where that may help, and publication that is halted for it
// says so to who closes a file.
#include <sys/stat.h>
#include <sys/xattr.h>

#include <atomic>
#include <functional>

#include "../api/staging_fixture.hh"
#include "engine_shim.h"

namespace
{

const uint64_t root = STAGING_ROOT_DIR;

std::atomic<bool> owner_is_limited;

std::string xattr_of(const std::string &path)
{
	char value[64];
	ssize_t n = getxattr(path.c_str(), "user.k", value, sizeof(value));
	return n < 0 ? strerror(errno) : std::string(value, (size_t)n);
}

// A store whose quota is used up as long as the reserve has more than `enough` bytes, or until something is
// removed (well).
class Quota : public ::testing::Test
{
protected:
	void SetUp() override
	{
		if (!disk.ok)
			GTEST_SKIP() << "no mount without root";
		owner_is_limited = false;
		o.store = disk.dir.path;
		{
			Staging s(ground, o);
			ASSERT_EQ(s.err, 0);
		}
		for (auto &at : std::filesystem::recursive_directory_iterator(o.store + "/.cairn"))
			if (at.path().filename() == "reserve")
				reserve = at.path();
		full = reserve_bytes();
		ASSERT_GT(full, 200u << 10);
		enough = full / 2;
		o.start = false;
		s = std::make_unique<Staging>(ground, o);
		ASSERT_EQ(s->err, 0);
		h = std::make_unique<History>(*s);
	}
	bool has_xattrs() const
	{
		return !setxattr(o.store.c_str(), "user.k", "", 0, 0);
	}
	void TearDown() override
	{
		owner_is_limited = false;
		h = nullptr;
		s = nullptr;
	}
	// Of a checkpoint that is overwritten, all files.
	bool keeps() const
	{
		for (auto &at : std::filesystem::directory_iterator(o.store + "/.cairn/previous"))
			if (std::filesystem::exists(at.path() / ".metadata"))
				return true;
		return false;
	}
	uint64_t reserve_bytes() const
	{
		struct stat st;
		return stat(reserve.c_str(), &st) ? 0 : (uint64_t)st.st_size;
	}
	// From now on `kind` is answered with err.
	void fails(shim_kind kind, int err)
	{
		kind_ = kind;
		err_ = err;
		shim_engine(s->engine.e, seen, this);
		s->start();
		ASSERT_EQ(s->err, 0);
	}
	void expect_published(const char *what)
	{
		EXPECT_EQ(s->drain(), 0);
		EXPECT_TRUE(s->tree() == h->now()) << what << ": " << show(s->tree());
		EXPECT_EQ(s->notes_with("cairn retry"), 0) << what;
		EXPECT_GT(answered_, 0u) << what;
	}
	// setxattr(2) is answered with EDQUOT for a while; user.k of this name gets there, and no note with
	// left_out.
	void expect_halts_until_well(const char *name, const char *left_out)
	{
		never_well = true;
		Durable synced(*s, staging_last_seq(*s));
		fails(SHIM_XATTR, -EDQUOT);
		EXPECT_EQ(synced.wait(), -EDQUOT);
		well = true;
		ASSERT_TRUE(until([&] {
			staging_retry(*s);
			return s->drain(50) == 0;
		}));
		EXPECT_EQ(xattr_of(o.store + "/" + name), "value");
		EXPECT_EQ(s->notes_with(left_out), 0);
	}
	Mount disk{"tmpfs", "size=80m"};
	Ground ground;
	Options o;
	std::string reserve;
	uint64_t full = 0, enough = 0;
	std::unique_ptr<Staging> s;
	std::unique_ptr<History> h;
	std::atomic<bool> never_well{false}, well{false}, taken_back{false};
	std::function<bool()> is_well;

private:
	static int seen(void *ctx, shim_kind kind, int)
	{
		auto self = static_cast<Quota *>(ctx);
		if (kind != self->kind_ || self->well || (self->is_well && self->is_well()) ||
		    (!self->never_well && self->reserve_bytes() <= self->enough))
			return 0;
		self->answered_++;
		if (self->taken_back)	// another caller finds blocks for it
			staging_space_for_names(*self->s);
		return self->err_;
	}
	shim_kind kind_ = SHIM_OTHER;
	int err_ = 0;
	std::atomic<unsigned> answered_{0};
};

TEST_F(Quota, NamesGetTheReserve)
{
	ASSERT_EQ(h->mkdir("d"), 0);
	fails(SHIM_NAME, -EDQUOT);
	expect_published("mkdir");
}

TEST_F(Quota, BytesGetTheReserve)
{
	ASSERT_EQ(h->put("small", "bytes"), 0);
	fails(SHIM_WRITE, -EDQUOT);
	expect_published("write");
}

TEST_F(Quota, SyncsOfBytesGetTheReserve)
{
	enough = full - 1; // each try frees a part
	ASSERT_EQ(h->put("small", "bytes"), 0);
	fails(SHIM_SYNC_BYTES, -EDQUOT);
	expect_published("sync");
}

TEST_F(Quota, SyncsOfNamesGetTheReserve)
{
	enough = full - 1; // each try frees a part
	ASSERT_EQ(h->mkdir("d"), 0);
	fails(SHIM_SYNC, -EDQUOT);
	expect_published("sync");
}

// What is kept of an overwritten checkpoint is given up: before it is there for good, and after the new files are.
TEST_F(Quota, SyncsOfNamesGetWhatIsKept)
{
	for (bool replaced : {false, true}) {
		SCOPED_TRACE(replaced);
		h = nullptr;
		s = nullptr;
		o.previous = ".metadata";
		s = std::make_unique<Staging>(ground, o);
		ASSERT_EQ(s->err, 0);
		h = std::make_unique<History>(*s);
		ASSERT_EQ(h->mkdir("ck"), 0);
		for (const char *each : {"a", ".metadata"})
			ASSERT_EQ(h->put(std::string("ck/") + each, pattern(100000, 1)), 0);
		is_well = [&] {
			return !keeps() || (replaced && std::filesystem::file_size(o.store + "/ck/a") == 100000);
		};
		never_well = well = true;
		fails(SHIM_SYNC, -ENOSPC);
		ASSERT_EQ(s->drain(), 0);
		ASSERT_EQ(h->put("ck/a", pattern(200000, 2)), 0);
		well = false;
		EXPECT_TRUE(until([&] { return s->drain(50) == 0; }));
		EXPECT_TRUE(s->tree() == h->now()) << show(s->tree());
		EXPECT_EQ(s->notes_with("cannot be kept"), 1);
		TearDown();
		std::filesystem::remove_all(o.store + "/ck");
		SetUp();
	}
}

// The reserve is not his: others keep it.
TEST_F(Quota, AnOwnersQuotaDoesNotTakeTheReserve)
{
	staged *f = nullptr;
	uint64_t node = staging_new_id(*s);
	staged_owner who = {1000, 1000, false, 0};
	ASSERT_EQ(staged_create_as(*s, node, 5, &who, &f), 0);
	ASSERT_TRUE(write_all(f, "bytes"));
	int64_t seq = seal(*s, f, node, {{root, "small"}}, true);
	ASSERT_GT(seq, 0);
	owner_is_limited = never_well = true;
	Durable synced(*s, (uint64_t)seq);
	fails(SHIM_WRITE, -EDQUOT);
	EXPECT_EQ(synced.wait(), -EDQUOT);
	EXPECT_EQ(reserve_bytes(), full);
	EXPECT_EQ(s->stats().halted.error, -EDQUOT);
	EXPECT_STREQ(s->stats().halted.remedy, "free space within the quota");
	staged_unref(f);
}

// An xattr of "d", and a directory after it.
void set_xattr(Staging &s, History &h)
{
	ASSERT_EQ(h.mkdir("d"), 0);
	rec r = {};
	r.type = REC_XATTR;
	r.dir = root;
	r.node = h.id("d/");
	r.name = "d";
	r.name2 = "user.k";
	r.data = "value";
	r.data_len = 5;
	ASSERT_EQ(staging_log(s, &r), 0);
	ASSERT_EQ(h.mkdir("e"), 0);
}

// Nor does it stop the others: a local setxattr(2) would have failed.
TEST_F(Quota, AnXattrThatAnOwnersQuotaForbidsIsSkipped)
{
	set_xattr(*s, *h);
	owner_is_limited = never_well = true;
	fails(SHIM_XATTR, -EDQUOT);
	EXPECT_EQ(s->drain(), 0);
	EXPECT_TRUE(s->tree() == h->now()) << show(s->tree());
	EXPECT_EQ(s->notes_with("conflict at d: Disk quota exceeded"), 1);
	EXPECT_EQ(reserve_bytes(), full);
}

// Where no owner has a quota, it is the store's error, and it may pass: what was accepted is not left out.
TEST_F(Quota, AnXattrOfADirectoryIsNotLeftOutForAnErrorOfTheStore)
{
	if (!has_xattrs())
		GTEST_SKIP() << "this kernel's tmpfs has no xattrs of users";
	set_xattr(*s, *h);
	expect_halts_until_well("d", "conflict");
}

TEST_F(Quota, AnXattrOfAFileIsNotLeftOutForAnErrorOfTheStore)
{
	if (!has_xattrs())
		GTEST_SKIP() << "this kernel's tmpfs has no xattrs of users";
	staged *f = nullptr;
	uint64_t node = staging_new_id(*s);
	ASSERT_EQ(staged_create(*s, node, 5, &f), 0);
	ASSERT_TRUE(write_all(f, "bytes"));
	ASSERT_GT(seal(*s, f, node, {{root, "f"}}, true, 0, {{"user.k", "value", 5}}), 0);
	staged_unref(f);
	expect_halts_until_well("f", "published without");
}

// Where the disk has space and a quota has none, callers take the reserve back as fast as it is given.
TEST_F(Quota, IsNotGivenWithoutEnd)
{
	for (int err : {-ENOSPC, -EDQUOT}) {
		ASSERT_EQ(h->mkdir("d"), 0);
		never_well = taken_back = true;
		Durable synced(*s, staging_last_seq(*s));
		fails(SHIM_NAME, err);
		EXPECT_EQ(synced.wait(), err);
		TearDown();
		SetUp();
	}
}

// However long the store was full, and the next try by itself would be in a minute.
TEST_F(Quota, SpaceThatCameBackIsFoundWithoutARetry)
{
	std::string filler = o.store + "/filler";
	ASSERT_EQ(h->mkdir("d"), 0);
	never_well = true;
	{
		Fd fd(open(filler.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
		while (write(fd.get(), std::string(4096, 'x').data(), 4096) > 0)
			;
	}
	fails(SHIM_NAME, -ENOSPC);
	int tried = -1; // one retry for each time that it says when it tries again: none is left over at the end
	ASSERT_TRUE(until([&] {
		int said = s->notes_with("next try is in");
		if (!s->stats().halted.error || said == tried)
			return false;
		if (s->notes_with("next try is in 60 s"))
			return true;
		tried = said;
		staging_retry(*s);
		return false;
	}));
	std::filesystem::remove(filler);
	well = true;
	for (int i = 0; i < 30 && s->stats().halted.error; i++)
		poll(nullptr, 0, 1000);
	EXPECT_EQ(s->stats().halted.error, 0);
	EXPECT_EQ(s->drain(), 0);
	EXPECT_TRUE(s->tree() == h->now()) << show(s->tree());
}

// Not EIO: what is missing, and that freeing some helps.
TEST_F(Quota, ACloseWhileHaltedSaysWhatIsMissing)
{
	for (int err : {-ENOSPC, -EDQUOT, -EIO}) {
		ASSERT_EQ(h->mkdir("d"), 0);
		never_well = true;
		Durable synced(*s, staging_last_seq(*s));
		fails(SHIM_NAME, err);
		EXPECT_EQ(synced.wait(), err);
		EXPECT_EQ(h->put("meanwhile", "x"), err);
		EXPECT_EQ(h->put("large", pattern(1u << 20, 1)), err);
		well = true;
		ASSERT_TRUE(until([&] {
			staging_retry(*s);
			return s->drain(50) == 0;
		}));
		EXPECT_EQ(h->put("meanwhile", "x"), 0);
		EXPECT_EQ(s->drain(), 0);
		EXPECT_TRUE(s->tree() == h->now()) << show(s->tree());
		TearDown();
		std::filesystem::remove_all(o.store + "/d");
		std::filesystem::remove(o.store + "/meanwhile");
		SetUp();
		well = false;
	}
}

} // namespace

// In place of io/store/quota.c.
extern "C" uint64_t io_store_quota_left(io_store *, uid_t, gid_t)
{
	return owner_is_limited ? 1u << 20 : UINT64_MAX;
}

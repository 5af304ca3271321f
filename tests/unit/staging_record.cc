// SPDX-License-Identifier: MIT
//
// Records as bytes: what was encoded comes back, and nothing else is ever believed. The
// bytes lie at the end of a mapping, so that a read past them is a fault.
#include <errno.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "staging/staging.h"
#include "test.hh"

namespace
{

// The last bytes before a page that cannot be read.
class Edge {
public:
	explicit Edge(size_t space)
	{
		size_t page = (size_t)sysconf(_SC_PAGESIZE);
		space_ = (space + page - 1) / page * page;
		base_ = static_cast<char *>(mmap(nullptr, space_ + page, PROT_READ | PROT_WRITE,
						 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		if (base_ == MAP_FAILED || mprotect(base_ + space_, page, PROT_NONE))
			throw std::system_error(errno, std::generic_category(), "mmap");
		all_ = space_ + page;
	}
	Edge(const Edge &) = delete;
	Edge &operator=(const Edge &) = delete;
	~Edge() { munmap(base_, all_); }
	char *put(const void *bytes, size_t len)
	{
		char *at = base_ + space_ - len;
		if (len)
			memcpy(at, bytes, len);
		return at;
	}

private:
	char *base_;
	size_t space_, all_;
};

constexpr size_t max_len = REC_DATA_MAX + 1024;

const std::vector<uint32_t> all_types = {
	REC_SEAL, REC_UNLINK, REC_RMDIR, REC_RENAME, REC_MKDIR, REC_SYMLINK, REC_LINK, REC_MKNOD,
	REC_ATTR, REC_XATTR, REC_XATTR_DEL, REC_CREATE, REC_NODE, REC_FORGET, REC_STAGED,
	REC_UNSTAGED, REC_OPEN, REC_CLOSE, REC_FLUSHED, REC_FORK, REC_WRITTEN, REC_BUFFER, REC_LEND,
	REC_KEEP, REC_FINAL, REC_REFUSED, REC_ASIDE, REC_RESUMED,
};

struct Sample {
	rec r = {};
	std::string name, name2, data;

	rec *get()
	{
		r.name = name.c_str();
		r.name2 = name2.c_str();
		r.data = data.data();
		r.data_len = (uint32_t)data.size();
		return &r;
	}
};

// Any bytes but NUL, and '/' where a path may stand.
std::string random_name(std::mt19937_64 &rng, size_t len, bool slash)
{
	std::string out;
	while (out.size() < len) {
		char c = (char)rng();
		if (c && (slash || c != '/'))
			out += c;
	}
	return out;
}

Sample random_sample(std::mt19937_64 &rng, uint32_t type, size_t data_len)
{
	Sample m;
	bool key = type == REC_XATTR || type == REC_XATTR_DEL;
	auto time = [&] { return timespec{(time_t)rng(), (long)(rng() % 1000000000u)}; };

	m.r.type = type;
	m.r.seq = rng();
	m.r.unique = rng();
	m.r.flags = (uint32_t)rng();
	m.r.node = rng();
	m.r.node2 = rng();
	m.r.dir = rng();
	m.r.dir2 = rng();
	m.r.sf = rng();
	m.r.ino = rng();
	m.r.size = rng();
	m.r.fh = rng();
	m.r.mask = rng();
	m.r.backing = (int64_t)rng();
	m.r.mode = (uint32_t)rng();
	m.r.uid = (uint32_t)rng();
	m.r.gid = (uint32_t)rng();
	m.r.lane = (uint32_t)rng();
	m.r.atime = time();
	m.r.mtime = time();
	m.r.when = time();
	m.name = random_name(rng, rng() % 256, false);
	m.name2 = random_name(rng, rng() % 256, key);
	m.data = pattern(data_len, rng());
	return m;
}

bool same_time(const timespec &a, const timespec &b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

bool same(const rec &a, const rec &b)
{
	return a.seq == b.seq && a.unique == b.unique && a.type == b.type && a.flags == b.flags &&
	       a.node == b.node && a.node2 == b.node2 && a.dir == b.dir && a.dir2 == b.dir2 &&
	       a.sf == b.sf && a.ino == b.ino && a.size == b.size && a.fh == b.fh &&
	       a.mask == b.mask && a.backing == b.backing && a.mode == b.mode && a.uid == b.uid &&
	       a.gid == b.gid && a.lane == b.lane && same_time(a.atime, b.atime) &&
	       same_time(a.mtime, b.mtime) && same_time(a.when, b.when) &&
	       !strcmp(a.name, b.name) && !strcmp(a.name2, b.name2) && a.data_len == b.data_len &&
	       !memcmp(a.data, b.data, a.data_len);
}

std::string encode(Sample &m)
{
	std::string out(m.data.size() + 1024, 'x');
	ssize_t n = rec_encode(m.get(), out.data(), out.size());

	EXPECT_GT(n, 0);
	out.resize(n > 0 ? (size_t)n : 0);
	return out;
}

// 0 and a record all of whose bytes are readable, or an error.
int decode(Edge &edge, const std::string &bytes, rec *out, size_t *used)
{
	int rc = rec_decode(edge.put(bytes.data(), bytes.size()), bytes.size(), out, used);

	if (!rc) {
		EXPECT_LE(*used, bytes.size());
		EXPECT_LE(strlen(out->name), 255u);
		EXPECT_LE(strlen(out->name2), 255u);
		EXPECT_LE(out->data_len, REC_DATA_MAX);
		unsigned sum = 0; // touched, so that the guard page tells
		for (uint32_t i = 0; i < out->data_len; i++)
			sum += static_cast<const unsigned char *>(out->data)[i];
		EXPECT_LT(sum, UINT32_MAX);
	} else {
		EXPECT_TRUE(rc == -EAGAIN || rc == -EBADMSG) << rc;
	}
	return rc;
}

TEST(Record, EveryTypeComesBack)
{
	std::mt19937_64 rng(11);
	Edge edge(max_len);

	for (uint32_t type : all_types)
		for (int i = 0; i < 50; i++) {
			Sample m = random_sample(rng, type, rng() % 2000);
			std::string bytes = encode(m);
			rec r;
			size_t used;

			ASSERT_EQ(bytes.size() % 8, 0u);
			ASSERT_EQ(decode(edge, bytes, &r, &used), 0) << type;
			EXPECT_EQ(used, bytes.size());
			EXPECT_TRUE(same(r, m.r)) << type;
		}
}

TEST(Record, NamesOfEveryLengthAndByte)
{
	Edge edge(max_len);
	Sample m;
	rec r;
	size_t used;

	for (size_t len = 0; len <= 255; len++) {
		m.r.type = REC_RENAME;
		m.name = std::string(len, 'a');
		m.name2 = std::string(255 - len, 'b');
		ASSERT_EQ(decode(edge, encode(m), &r, &used), 0);
		EXPECT_EQ(r.name, m.name);
		EXPECT_EQ(r.name2, m.name2);
	}
	for (int c = 1; c < 256; c++) {
		m.name = std::string(1, (char)c);
		m.name2 = "x" + m.name;
		int rc = decode(edge, encode(m), &r, &used);
		ASSERT_EQ(rc, c == '/' ? -EBADMSG : 0) << c;
		if (!rc) {
			EXPECT_EQ(r.name, m.name);
		}
	}
	m.name = "n";
	m.name2 = "user.a/b"; // a key may hold one, a name may not
	ASSERT_EQ(decode(edge, encode(m), &r, &used), -EBADMSG);
	m.r.type = REC_XATTR;
	ASSERT_EQ(decode(edge, encode(m), &r, &used), 0);
	EXPECT_EQ(r.name2, m.name2);
}

TEST(Record, NullStringsAreEmptyOnes)
{
	char buf[4096];
	rec in = {}, r;
	size_t used;

	in.type = REC_FORGET;
	ssize_t n = rec_encode(&in, buf, sizeof(buf));
	ASSERT_GT(n, 0);
	ASSERT_EQ(rec_decode(buf, (size_t)n, &r, &used), 0);
	EXPECT_STREQ(r.name, "");
	EXPECT_STREQ(r.name2, "");
	EXPECT_EQ(r.data_len, 0u);
}

TEST(Record, LimitsOfEncoding)
{
	std::string buf(max_len + 4096, 0);
	Edge edge(max_len);
	Sample m;
	rec r;
	size_t used;

	m.r.type = REC_SEAL;
	m.data = pattern(REC_DATA_MAX, 5);
	std::string bytes = encode(m);
	ASSERT_EQ(decode(edge, bytes, &r, &used), 0);
	EXPECT_TRUE(std::string((const char *)r.data, r.data_len) == m.data);
	for (size_t less : {size_t(1), size_t(8), size_t(1000), bytes.size()})
		EXPECT_EQ(rec_encode(m.get(), buf.data(), bytes.size() - less), -ENOBUFS);

	m.data.push_back('x');
	EXPECT_EQ(rec_encode(m.get(), buf.data(), buf.size()), -ENOBUFS);
	m.data = "";
	m.name = std::string(256, 'a');
	EXPECT_EQ(rec_encode(m.get(), buf.data(), buf.size()), -ENOBUFS);
	m.name = "a";
	m.name2 = std::string(256, 'a');
	EXPECT_EQ(rec_encode(m.get(), buf.data(), buf.size()), -ENOBUFS);
}

TEST(Record, EncodingStaysInItsBuffer)
{
	Sample m;
	m.r.type = REC_MKDIR;
	m.name = "abc";
	std::string bytes = encode(m), space(bytes.size() + 64, 'x');

	ASSERT_EQ(rec_encode(m.get(), space.data(), bytes.size()), (ssize_t)bytes.size());
	EXPECT_EQ(space.substr(0, bytes.size()), bytes); // and the same each time
	EXPECT_EQ(space.substr(bytes.size()), std::string(64, 'x'));
}

TEST(Record, EveryTruncationIsTorn)
{
	std::mt19937_64 rng(12);
	Edge edge(max_len);

	for (int i = 0; i < 20; i++) {
		Sample m = random_sample(rng, all_types[rng() % all_types.size()], rng() % 300);
		std::string bytes = encode(m);
		rec r;
		size_t used;

		for (size_t len = 0; len < bytes.size(); len++)
			ASSERT_EQ(decode(edge, bytes.substr(0, len), &r, &used), -EAGAIN) << len;
		// what follows is another record's
		ASSERT_EQ(decode(edge, bytes + "garbage", &r, &used), 0);
		EXPECT_EQ(used, bytes.size());
	}
}

TEST(Record, ZerosAreTheEnd)
{
	Edge edge(max_len);
	rec r;
	size_t used;

	for (size_t len : {0, 1, 8, 100, 1000})
		EXPECT_EQ(decode(edge, std::string(len, '\0'), &r, &used), -EAGAIN);
}

TEST(Record, NoFlippedBitIsBelieved)
{
	std::mt19937_64 rng(13);
	Edge edge(max_len);

	for (uint32_t type : {REC_SEAL, REC_RENAME, REC_XATTR, REC_OPEN}) {
		Sample m = random_sample(rng, type, 1 + rng() % 200);
		std::string bytes = encode(m);

		for (size_t bit = 0; bit < bytes.size() * 8; bit++) {
			std::string bad = bytes;
			rec r;
			size_t used;

			bad[bit / 8] = (char)(bad[bit / 8] ^ 1 << bit % 8);
			ASSERT_NE(decode(edge, bad, &r, &used), 0) << "bit " << bit;
		}
	}
}

// Whoever can write the log can make its checksum right: XXH3-64 of all behind it.
std::string with_right_sum(std::string bytes)
{
	uint32_t total;

	memcpy(&total, &bytes[4], sizeof(total));
	if (total >= 16 && total <= bytes.size()) {
		uint64_t sum = XXH3_64bits(&bytes[16], total - 16);
		memcpy(&bytes[8], &sum, sizeof(sum));
	}
	return bytes;
}

TEST(Record, LengthsThatLieUnderARightChecksum)
{
	Edge edge(max_len);
	std::mt19937_64 rng(14);
	rec r;
	size_t used, believed = 0, refused = 0;

	for (int i = 0; i < 30000; i++) {
		Sample m = random_sample(rng, all_types[rng() % all_types.size()], rng() % 64);
		m.name.resize(m.name.size() % 40);
		m.name2.resize(m.name2.size() % 40);
		std::string bytes = encode(m);
		ASSERT_EQ(with_right_sum(bytes), bytes); // the test knows the layout
		size_t body = m.name.size() + 1 + m.name2.size() + 1 + m.data.size();
		size_t lens = bytes.size() - ((body + 7) & ~size_t(7)) -
			      8; // three lengths end the header
		switch (rng() % 3) {
		case 0: // the three lengths
			for (size_t at = lens; at < bytes.size() - body && at < lens + 10; at++)
				if (rng() % 3 == 0)
					bytes[at] = (char)(rng() % 4 ? rng() % 64 : rng());
			break;
		case 1: // the whole length
			bytes[4] = (char)(rng() % 64 * 8);
			bytes[5] = (char)(rng() % 2);
			break;
		default: // anything behind the sum
			for (size_t n = 1 + rng() % 8; n; n--)
				bytes[16 + rng() % (bytes.size() - 16)] = (char)rng();
		}
		bytes = with_right_sum(bytes);
		(decode(edge, bytes, &r, &used) ? refused : believed)++;
		uint32_t far[] = {0x7fffffff, 0xfffffff8, 0xffffffff, 0x80000000};
		memcpy(&bytes[4], &far[rng() % 4], 4);
		ASSERT_NE(decode(edge, bytes, &r, &used), 0);
	}
	EXPECT_GT(believed, 1000u); // both happen, else the test tests nothing
	EXPECT_GT(refused, 1000u);
}

TEST(Record, TypesThatAreNoneAreRefused)
{
	Edge edge(max_len);
	Sample m;
	rec r;
	size_t used;

	for (uint32_t type = 0; type < 300; type++) {
		m.r.type = type;
		bool known = std::find(all_types.begin(), all_types.end(), type) != all_types.end();
		EXPECT_EQ(decode(edge, encode(m), &r, &used), known ? 0 : -EBADMSG) << type;
	}
}

TEST(Record, TimesAreTimes)
{
	Edge edge(max_len);
	Sample m;
	rec r;
	size_t used;

	m.r.type = REC_ATTR;
	m.r.mtime = {-1, 999999999};
	m.r.atime = {INT64_MAX, 0};
	ASSERT_EQ(decode(edge, encode(m), &r, &used), 0);
	EXPECT_TRUE(same_time(r.mtime, m.r.mtime));
	EXPECT_TRUE(same_time(r.atime, m.r.atime));
	m.r.mtime = {1, 4000000000}; // utimensat(2) would refuse it, or take it for UTIME_OMIT
	ASSERT_EQ(decode(edge, encode(m), &r, &used), 0);
	EXPECT_LT(r.mtime.tv_nsec, 1000000000);
}

TEST(Record, RandomBytesAreNoRecord)
{
	std::mt19937_64 rng(15);
	Edge edge(8192);
	Sample m;
	rec r;
	size_t used;
	std::string good = encode(m = random_sample(rng, REC_MKDIR, 0));

	for (int i = 0; i < 100000; i++) {
		std::string bytes(rng() % 400, 0);
		for (auto &c : bytes)
			c = (char)rng();
		if (i % 2 && bytes.size() >= 4) // else few get past the magic
			memcpy(bytes.data(), good.data(), 4);
		ASSERT_NE(decode(edge, bytes, &r, &used), 0);
	}
}

// ---- packed names and xattrs ----

struct Unpacked {
	std::vector<std::pair<uint64_t, std::string>> names;
	std::vector<std::pair<std::string, std::string>> pairs;
	int end = 1;
};

Unpacked unpack(const void *data, uint32_t len)
{
	Unpacked out;
	uint32_t pos = 0;
	rec_name name;
	rec_pair pair;

	for (uint32_t last = 0;; last = pos) {
		out.end = rec_unpack(data, len, &pos, &name, &pair);
		EXPECT_LE(pos, len);
		if (out.end == 1)
			out.names.push_back({name.dir, name.name});
		else if (out.end == 2)
			out.pairs.push_back(
				{pair.key, std::string((const char *)pair.val, pair.len)});
		else
			return out;
		if (pos <= last) {
			ADD_FAILURE() << "no progress";
			return out;
		}
	}
}

std::string pack(const Unpacked &u)
{
	std::vector<rec_name> names;
	std::vector<rec_pair> pairs;
	void *out = nullptr;

	for (auto &[dir, name] : u.names)
		names.push_back({dir, name.c_str()});
	for (auto &[key, val] : u.pairs)
		pairs.push_back({key.c_str(), val.data(), (uint32_t)val.size()});
	ssize_t n = rec_pack(names.data(), (unsigned)names.size(), pairs.data(),
			     (unsigned)pairs.size(), &out);
	if (n < 0)
		return "error " + std::to_string(n);
	std::string bytes(static_cast<char *>(out), (size_t)n);
	free(out);
	return bytes;
}

Unpacked random_pack(std::mt19937_64 &rng)
{
	Unpacked u;
	for (uint64_t n = rng() % 6; n; n--)
		u.names.push_back({rng(), random_name(rng, 1 + rng() % 255, false)});
	for (uint64_t n = rng() % 6; n; n--)
		u.pairs.push_back(
			{random_name(rng, 1 + rng() % 255, true), pattern(rng() % 500, rng())});
	return u;
}

TEST(Pack, ComesBack)
{
	std::mt19937_64 rng(21);
	Edge edge(max_len);

	for (int i = 0; i < 500; i++) {
		Unpacked in = random_pack(rng);
		std::string bytes = pack(in);
		Unpacked out = unpack(edge.put(bytes.data(), bytes.size()), (uint32_t)bytes.size());

		ASSERT_EQ(out.end, 0);
		EXPECT_EQ(out.names, in.names);
		EXPECT_EQ(out.pairs, in.pairs);
	}
	EXPECT_EQ(pack({}), "");
	EXPECT_EQ(unpack("", 0).end, 0);
}

TEST(Pack, TooMuchIsRefused)
{
	Unpacked in;
	in.pairs.push_back({"user.k", std::string(REC_DATA_MAX, 'v')});
	EXPECT_EQ(pack(in), "error " + std::to_string(-E2BIG));
	in.pairs[0].second.resize(REC_DATA_MAX - 64);
	EXPECT_LE(pack(in).size(), REC_DATA_MAX);
}

TEST(Pack, EveryTruncationIsToldOrAPrefix)
{
	std::mt19937_64 rng(22);
	Edge edge(max_len);

	for (int i = 0; i < 20; i++) {
		Unpacked in = random_pack(rng);
		std::string bytes = pack(in);
		for (size_t len = 0; len < bytes.size(); len++) {
			Unpacked out = unpack(edge.put(bytes.data(), len), (uint32_t)len);
			ASSERT_LE(out.names.size(), in.names.size());
			for (size_t k = 0; k < out.names.size(); k++)
				ASSERT_EQ(out.names[k], in.names[k]);
			for (size_t k = 0; k < out.pairs.size(); k++)
				ASSERT_EQ(out.pairs[k], in.pairs[k]);
			// whole entries may end there; anything else is told
			bool whole = pack(out).size() == len;
			ASSERT_EQ(out.end, whole ? 0 : -EBADMSG) << len;
		}
	}
}

TEST(Pack, HostileBytesStayInBounds)
{
	std::mt19937_64 rng(23);
	Edge edge(16384);

	for (int i = 0; i < 40000; i++) {
		std::string bytes = pack(random_pack(rng)).substr(0, 8192);
		for (uint64_t n = 1 + rng() % 8; n && !bytes.empty(); n--)
			bytes[rng() % bytes.size()] = (char)rng();
		if (i % 4 == 0)
			for (auto &c : bytes)
				c = (char)rng();
		Unpacked out = unpack(edge.put(bytes.data(), bytes.size()), (uint32_t)bytes.size());
		ASSERT_TRUE(out.end == 0 || out.end == -EBADMSG);
		for (auto &n : out.names) {
			ASSERT_FALSE(n.second.empty());
			ASSERT_EQ(n.second.find('/'), std::string::npos);
		}
	}
}

TEST(Pack, PositionPastTheEndIsRefused)
{
	rec_name name;
	rec_pair pair;
	for (uint32_t pos : {5u, 1000u, UINT32_MAX}) {
		uint32_t at = pos;
		EXPECT_EQ(rec_unpack("abcd", 4, &at, &name, &pair), -EBADMSG);
	}
}

} // namespace

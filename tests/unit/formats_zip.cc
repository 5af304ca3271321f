// SPDX-License-Identifier: MIT
//
// Zip archives put together by hand: good ones with every way to say a size, and broken ones.
#include <algorithm>

#include "formats_test.hh"

namespace
{

struct Part {
	std::string name, bytes;
	bool descriptor = false; // sizes are not in the local header
	bool big = false;	 // sizes and offset in a zip64 field
	unsigned method = 0, flags = 0;
};

struct Builder {
	std::string out, dir;
	unsigned n = 0;
	bool zip64 = false;
	std::string comment;

	void add(const Part &p)
	{
		const uint64_t local = out.size();
		const uint32_t crc = zip_crc(0, p.bytes.data(), p.bytes.size());
		const uint32_t size = (uint32_t)p.bytes.size(), shown = p.big ? UINT32_MAX : size;
		const std::string x = p.big ? u16(1) + u16(24) + u64(size) + u64(size) + u64(local) : "";

		out += u32(0x04034b50) + u16(45) + u16(p.flags | (p.descriptor ? 8 : 0)) + u16(p.method) +
		       u32(0) + u32(p.descriptor ? 0 : crc) + u32(p.descriptor ? 0 : size) +
		       u32(p.descriptor ? 0 : size) + u16((unsigned)p.name.size()) + u16(5) + p.name + std::string("FB\1\0z", 5);
		out += p.bytes;
		if (p.descriptor)
			out += u32(0x08074b50) + u32(crc) + u64(size) + u64(size);
		dir += u32(0x02014b50) + u16(45) + u16(45) + u16(p.flags) + u16(p.method) + u32(0) + u32(crc) +
		       u32(shown) + u32(shown) + u16((unsigned)p.name.size()) + u16((unsigned)x.size()) + u16(0) +
		       u16(0) + u16(0) + u32(0) + u32(p.big ? UINT32_MAX : (uint32_t)local) + p.name + x;
		n++;
	}
	std::string done(int64_t claim = -1) const
	{
		const uint64_t count = claim < 0 ? n : (uint64_t)claim, at = out.size(), end = at + dir.size();
		std::string b = out + dir;

		if (zip64)
			b += u32(0x06064b50) + u64(44) + u16(45) + u16(45) + u32(0) + u32(0) + u64(count) +
			     u64(count) + u64(dir.size()) + u64(at) + u32(0x07064b50) + u32(0) + u64(end) + u32(1);
		b += u32(0x06054b50) + u16(0) + u16(0) + u16((unsigned)count) + u16((unsigned)count) +
		     u32((uint32_t)dir.size()) + u32((uint32_t)at) + u16((unsigned)comment.size()) + comment;
		return b;
	}
};

struct Zip {
	explicit Zip(std::string b) : bytes(std::move(b)), s(fmt_memory(bytes.data(), bytes.size()))
	{
		err = zip_open(&s, &z, &e);
	}
	~Zip() { zip_close(z); }
	Zip(const Zip &) = delete;
	std::string get(const char *name)
	{
		zip_entry *t = zip_find(z, name);
		if (!t || zip_data(&s, z, t, &e))
			return "<none>";
		return bytes.substr(t->data, t->size);
	}

	std::string bytes;
	fmt_source s;
	zip *z = nullptr;
	Error e;
	int err;
};

Builder two(bool zip64 = false)
{
	Builder b;
	b.zip64 = zip64;
	b.add({"a/data.pkl", "pickle", true});
	b.add({"a/data/0", std::string("x\0y", 3), false, true});
	return b;
}

TEST(Zip, Good)
{
	for (bool zip64 : {false, true}) {
		Zip z(two(zip64).done());
		ASSERT_EQ(z.err, 0) << z.e.text;
		EXPECT_EQ(z.z->n_entries, 2u);
		EXPECT_EQ(z.get("a/data.pkl"), "pickle");
		EXPECT_EQ(z.get("a/data/0"), std::string("x\0y", 3));
		EXPECT_EQ(zip_find(z.z, "a/data/1"), nullptr);
	}
}

TEST(Zip, Empty)
{
	Zip z(Builder().done());
	EXPECT_EQ(z.err, 0);
	EXPECT_EQ(zip_find(z.z, "x"), nullptr);
}

TEST(Zip, Comment)
{
	Builder b = two();
	b.comment = std::string(30000, 'c');
	Zip z(b.done());
	EXPECT_EQ(z.err, 0) << z.e.text;
	EXPECT_EQ(z.get("a/data.pkl"), "pickle");
}

TEST(Zip, ManyEntriesThroughTheWindow)
{
	Builder b;
	b.zip64 = true;
	for (int i = 0; i < 20000; i++)
		b.add({"archive/data/" + std::to_string(i), std::to_string(i)});
	Zip z(b.done());
	ASSERT_EQ(z.err, 0) << z.e.text;
	EXPECT_EQ(z.get("archive/data/19999"), "19999");
	EXPECT_EQ(z.get("archive/data/7"), "7");
}

extern "C" uint32_t crc_by_tables(uint32_t crc, const void *bytes, size_t len);

TEST(Zip, Crc)
{
	EXPECT_EQ(zip_crc(0, "123456789", 9), 0xcbf43926u);
	EXPECT_EQ(zip_crc(zip_crc(0, "1234", 4), "56789", 5), 0xcbf43926u);
	const std::string much = pattern(200001, 1);
	uint32_t slow = 0;
	for (size_t i = 0; i < much.size(); i += 1000)
		slow = zip_crc(slow, much.data() + i, std::min<size_t>(1000, much.size() - i));
	EXPECT_EQ(zip_crc(0, much.data(), much.size()), slow);
	EXPECT_EQ(crc_by_tables(0, much.data(), much.size()), slow);
	// each way by which bytes are taken, wherever they begin and end
	for (size_t from : {0, 1, 7, 15, 4097})
		for (size_t len = 0; len < 2200; len++) {
			uint32_t bytewise = 77;
			for (size_t i = 0; i < len; i += 63)
				bytewise = zip_crc(bytewise, much.data() + from + i, std::min<size_t>(63, len - i));
			ASSERT_EQ(zip_crc(77, much.data() + from, len), bytewise) << from << " " << len;
			ASSERT_EQ(crc_by_tables(77, much.data() + from, len), bytewise) << from << " " << len;
		}
}

TEST(Zip, ShouldFail)
{
	const std::string good = two().done(), good64 = two(true).done();
	auto with = [](std::string b, size_t at, const std::string &bytes) { return b.replace(at, bytes.size(), bytes); };
	const size_t end = good.size() - 22, end64 = good64.size() - 22 - 20 - 56;
	Builder twice = two(), packed, crypted, over;
	twice.add({"a/data.pkl", "other"});
	packed.add({"a", "b", false, false, 8});
	crypted.add({"a", "b", false, false, 0, 1});
	over = two();
	over.dir.replace(over.dir.size() - 8, 8, u64(0)); // both entries at 0

	const struct {
		const char *name;
		std::string bytes;
		int err;
	} bad[] = {
		{"nothing", "", -EBADMSG},
		{"short", "PK", -EBADMSG},
		{"cut", good.substr(0, good.size() - 1), -EBADMSG},
		{"trailing", good + "x", -EBADMSG},
		{"directory-offset-far", with(good, end + 16, u32(0x7fffffff)), -EBADMSG},
		{"directory-size-far", with(good, end + 12, u32(0xfffffff0)), -EBADMSG},
		{"directory-size-short", with(good, end + 12, u32(10)), -EBADMSG},
		{"count-too-large", two().done(3), -EBADMSG},
		{"count-too-small", two().done(1), -EBADMSG},
		{"several-disks", with(good, end + 4, u16(1)), -ENOTSUP},
		{"zip64-record-far", with(good64, end64 + 56 + 8, u64(UINT64_MAX)), -EBADMSG},
		{"zip64-no-record", with(good64, end64, "XX"), -EBADMSG},
		{"zip64-size-huge", with(good64, end64 + 40, u64(UINT64_MAX)), -EBADMSG},
		{"zip64-count-huge", with(good64, end64 + 24, u64(1ull << 60) + u64(1ull << 60)), -EBADMSG},
		{"compressed", packed.done(), -ENOTSUP},
		{"encrypted", crypted.done(), -ENOTSUP},
		{"same-name-twice", twice.done(), -EBADMSG},
		{"entries-overlap", over.done(), -EBADMSG},
		{"zeros", std::string(100000, '\0'), -EBADMSG},
	};
	for (const auto &b : bad) {
		Zip z(b.bytes);
		EXPECT_EQ(z.err, b.err) << b.name << ": " << z.e.text;
	}
}

TEST(Zip, LocalHeaderMustAgree)
{
	std::string b = two().done();

	b[30] = 'X'; // its name
	Zip z(b);
	ASSERT_EQ(z.err, 0);
	EXPECT_EQ(zip_data(&z.s, z.z, zip_find(z.z, "a/data.pkl"), &z.e), -EBADMSG);
	b[30] = 'a';
	b[28] = '\xff'; // length of the extra field: the data would reach into the directory
	b[29] = '\xff';
	Zip y(b);
	EXPECT_EQ(zip_data(&y.s, y.z, zip_find(y.z, "a/data.pkl"), &y.e), -EBADMSG);
}

TEST(Zip, EveryCutIsRefused)
{
	const std::string whole = asset("torch_save/model.pt");

	for (size_t n = 0; n < whole.size(); n += 7)
		EXPECT_NE(Zip(whole.substr(0, n)).err, 0) << n;
	EXPECT_EQ(Zip(whole).err, 0);
}

} // namespace

// SPDX-License-Identifier: MIT
//
// The files that a .metadata lists, read in bounded memory: the same as the whole parser finds.
#include <malloc.h>

#include <map>

#include "formats_test.hh"

namespace
{

using Files = std::map<std::string, uint64_t>;	// how long each is at least

Files of(const fmt_set *s)
{
	Files f;
	for (size_t i = 0; i < s->n_files; i++)
		f[s->file[i].name] = s->file[i].need;
	return f;
}

struct Listed : Set {
	explicit Listed(const std::string &b)
	{
		const fmt_source s = fmt_memory(b.data(), b.size());
		err = dcp_files(get(), &s, &e);
	}
	Error e;
	int err;
};

Files whole(const std::string &b)
{
	Set s;
	Error e;
	EXPECT_EQ(dcp_read(s.get(), b.data(), b.size(), &e), 0) << e.text;
	return of(s.get());
}

const std::string module = "torch.distributed.checkpoint.metadata";

std::string word(const std::string &s) { return "\x8c" + std::string(1, (char)s.size()) + s + "\x94"; }
std::string object(const char *name, const std::string &state)	// the module is in the memo
{
	return std::string("h\0", 2) + word(name) + "\x93)\x81}(" + state + "ub";
}
std::string number(uint64_t n) { return "\x8a\x08" + u64(n); }
std::string info(const std::string &path, uint64_t at, uint64_t length)
{
	return object("_StorageInfo",
		      word("relative_path") + path + word("offset") + number(at) + word("length") + number(length));
}
std::string index(const std::string &name)
{
	return object("MetadataIndex", word("fqn") + word(name) + word("offset") + "N");
}
std::string begin() { return "\x80\x04" + word(module) + word("Metadata") + "\x93)\x81}("; }
std::string metadata(const std::string &storage)
{
	return begin() + word("state_dict_metadata") + "}" + word("storage_data") + "}(" + storage + "uub.";
}

TEST(DcpFiles, AsTheWholeParser)
{
	for (const char *name : {"dcp/.metadata", "dcp_local/__0.metadata", "dcp_local/__1.metadata",
				 "dcp_safetensors/.metadata"}) {
		const std::string b = asset(name);
		Listed l(b);
		ASSERT_EQ(l.err, 0) << name << ": " << l.e.text;
		EXPECT_EQ(of(l.get()), whole(b)) << name;
		EXPECT_FALSE(of(l.get()).empty()) << name;
	}
	// a tensor of that name, a file in a directory, the same file twice
	const std::string b = metadata(index("relative_path") + info(word("d/a"), 5, 7) + index("x") +
				       info(word("b"), 100, 1) + index("y") + info(word("d/a"), 1, 1));
	Listed l(b);
	ASSERT_EQ(l.err, 0) << l.e.text;
	EXPECT_EQ(of(l.get()), (Files{{"d/a", 12}, {"b", 101}}));
	EXPECT_EQ(of(l.get()), whole(b));
}

// Cut short anywhere it cannot be read; it never seems to be a shorter list, or another file.
TEST(DcpFiles, CutShort)
{
	const std::string b = asset("dcp/.metadata");
	for (size_t n = 1; n < b.size(); n++) {
		Listed l(b.substr(0, n));
		ASSERT_EQ(l.err, -EBADMSG) << n;
		ASSERT_TRUE(l.e.text[0]);
	}
}

TEST(DcpFiles, Damaged)
{
	const std::string b = metadata(index("x") + info(word("a"), 5, 7));
	ASSERT_EQ(Listed(b).err, 0);
	for (const std::string &bad :
	     {info(word("../a"), 5, 7), info(word("/a"), 5, 7), info("N", 5, 7), info(word("a"), 5, ~0ull >> 1),
	      object("_StorageInfo", word("relative_path") + word("a")), std::string("\xff"), std::string("h\xf0"),
	      std::string("\x8c\xff"), std::string("t"), std::string("\x87\x87\x87")})
		EXPECT_EQ(Listed(metadata(index("x") + bad)).err, -EBADMSG);
	for (size_t i = 0; i < b.size(); i++)	// never crashes
		for (int x : {0x00, 0x28, 0x75, 0x94, 0xff}) {
			std::string c = b;
			c[i] = (char)x;
			Listed l(c);
			EXPECT_TRUE(l.err <= 0);
		}
}

TEST(DcpFiles, AnotherFile)
{
	for (const std::string &other : {std::string(), std::string("{}"), std::string("a text\n"),
					 std::string("\x80\x04N."), std::string("\x80\x04]\x94.")})
		EXPECT_EQ(Listed(other).err, -ENOMSG) << other;
}

// Larger than the whole parser takes: 256 ranks, 1,500 tensors each, every name twice. It is never
// in memory as a whole.
struct Stream {
	std::string part[258];
	size_t size = 0, peak = 0;
};

int read_stream(void *ctx, uint64_t off, void *buf, size_t len)
{
	auto *s = (Stream *)ctx;
	size_t i = 0;
	for (; off >= s->part[i].size(); i++)
		off -= s->part[i].size();
	for (; len; i++, off = 0) {
		size_t n = std::min(len, s->part[i].size() - off);
		memcpy(buf, s->part[i].data() + off, n);
		buf = (char *)buf + n;
		len -= n;
	}
	struct mallinfo2 m = mallinfo2();
	s->peak = std::max(s->peak, m.uordblks + m.hblkhd);
	return 0;
}

TEST(DcpFiles, LargeInBoundedMemory)
{
	Stream s;
	auto get = [](int n) { return "h" + std::string(1, (char)n); };
	s.part[0] = begin();	// picklers write a class or an attribute once; these are 2 to 7
	for (const char *name : {"relative_path", "offset", "length", "fqn", "_StorageInfo", "MetadataIndex"})
		s.part[0] += word(name) + "0";
	s.part[0] += word("storage_data") + "}";
	for (int rank = 0; rank < 256; rank++) {
		std::string &p = s.part[rank + 1];
		const std::string file = "__" + std::to_string(rank) + "_0.distcp";
		for (int t = 0; t < 1500; t++) {
			if (t % 1000 == 0)
				p += t ? "u(" : "(";
			p += get(0) + get(7) + "\x93)\x81}(" + get(5) +
			     word("optimizer.state.exp_avg_sq.model.layers." + std::to_string(t) +
				  ".self_attention.linear_qkv.weight.of.rank." + std::to_string(rank) +
				  std::string(30, 'x')) +
			     get(3) + "Nub";
			p += get(0) + get(6) + "\x93)\x81}(" + get(2) + word(file) + get(3) +
			     number((uint64_t)t * 1000) + get(4) + number(1000) + "ub";
		}
		p += "u";
	}
	s.part[257] = "ub.";
	for (const std::string &p : s.part)
		s.size += p.size();
	ASSERT_GT(s.size, 64u << 20);

	Set set;
	Error e;
	struct mallinfo2 m = mallinfo2();
	const size_t before = m.uordblks + m.hblkhd;
	const fmt_source source = {.size = s.size, .base = 0, .read = read_stream, .ctx = &s};
	ASSERT_EQ(dcp_files(set.get(), &source, &e), 0) << e.text;
	ASSERT_EQ(set->n_files, 256u);
	for (size_t i = 0; i < set->n_files; i++)
		EXPECT_EQ(set->file[i].need, 1500000u);
	EXPECT_LT(s.peak, before + (64u << 20));
	printf("%zu MiB of metadata, %zu MiB of memory\n", s.size >> 20, s.peak > before ? (s.peak - before) >> 20 : 0);
}

}  // namespace

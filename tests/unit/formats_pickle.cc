// SPDX-License-Identifier: MIT
//
// The pickle machine: what Python writes comes out as data, what is broken is refused with
// the offset, and nothing grows beyond the input.
#include "formats_test.hh"

namespace
{

struct Pickle {
	explicit Pickle(std::string b) : bytes(std::move(b))
	{
		err = pickle_parse(bytes.data(), bytes.size(), &p, &used, &e);
	}
	~Pickle() { pickle_free(p); }
	Pickle(const Pickle &) = delete;
	pickle_node *root() const { return pickle_root(p); }

	std::string bytes;
	pickle *p = nullptr;
	size_t used = 0;
	Error e;
	int err;
};

// Protocol 2, the opcodes, STOP. A string literal with NULs in it must be given its length.
template <size_t N> std::string P(const char (&s)[N]) { return "\x80\x02" + std::string(s, N - 1) + "."; }

TEST(Pickle, Scalars)
{
	EXPECT_EQ(Pickle(P("N")).root()->kind, PICKLE_NONE);
	EXPECT_EQ(Pickle(P("\x88")).root()->kind, PICKLE_TRUE);
	EXPECT_EQ(Pickle(P("\x89")).root()->kind, PICKLE_FALSE);
	EXPECT_EQ(Pickle(P("K\xff")).root()->u.i, 255);
	EXPECT_EQ(Pickle(P("M\xff\xff")).root()->u.i, 65535);
	EXPECT_EQ(Pickle(P("J\xff\xff\xff\xff")).root()->u.i, -1);
	EXPECT_EQ(Pickle(P("\x8a\x00")).root()->u.i, 0);
	EXPECT_EQ(Pickle(P("\x8a\x01\x80")).root()->u.i, -128);
	EXPECT_EQ(Pickle(P("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f")).root()->u.i, INT64_MAX);
	EXPECT_EQ(Pickle(P("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01")).root()->kind, PICKLE_BIG);
	EXPECT_EQ(Pickle(P("G\x3f\xf8\x00\x00\x00\x00\x00\x00")).root()->u.f, 1.5);
	EXPECT_TRUE(pickle_is_str(Pickle(P("X\x02\x00\x00\x00hi")).root(), "hi"));
}

TEST(Pickle, Containers)
{
	Pickle l(P("](K\x01K\x02" "eK\x03" "a"));
	ASSERT_EQ(l.err, 0);
	ASSERT_EQ(l.root()->u.seq.n, 3u);
	EXPECT_EQ(l.root()->u.seq.v[2]->u.i, 3);

	Pickle d(P("}(U\x01" "aK\x01U\x01" "bK\x02u"));
	ASSERT_EQ(d.err, 0);
	EXPECT_EQ(d.root()->kind, PICKLE_DICT);
	EXPECT_EQ(d.root()->u.seq.n, 4u);

	Pickle t(P("K\x01K\x02\x86"));
	EXPECT_EQ(t.root()->u.seq.n, 2u);
	EXPECT_EQ(Pickle(P("(K\x01K\x02" "t")).root()->kind, PICKLE_TUPLE);
	EXPECT_EQ(Pickle(P(")")).root()->u.seq.n, 0u);
}

TEST(Pickle, ListInsideItself)
{
	Pickle p(P("]q\x00h\x00" "a")); // l = []; l.append(l)
	ASSERT_EQ(p.err, 0);
	EXPECT_EQ(p.root()->u.seq.v[0], p.root());
}

TEST(Pickle, CallsAreNotMade)
{
	Pickle p(P("cos\nsystem\nU\x07rm -rf.\x85R"));
	ASSERT_EQ(p.err, 0);
	EXPECT_TRUE(pickle_is_object(p.root(), "os", "system"));
	EXPECT_FALSE(pickle_is_object(p.root(), "os", "syste"));
	EXPECT_TRUE(pickle_is_object(p.root(), "o*", "system"));
	EXPECT_TRUE(pickle_is_str(p.root()->u.object.args->u.seq.v[0], "rm -rf."));
}

TEST(Pickle, StateAndSlots)
{
	Pickle p(P("cm\nC\n)\x81}U\x01xK\x07sb"));
	ASSERT_EQ(p.err, 0);
	uint64_t x;
	ASSERT_TRUE(pickle_u64(pickle_attr(p.root(), "x"), &x));
	EXPECT_EQ(x, 7u);
	EXPECT_EQ(pickle_attr(p.root(), "y"), nullptr);

	Pickle q(P("cm\nC\n)\x81N}U\x01xK\x07s\x86" "b"));
	ASSERT_EQ(q.err, 0);
	EXPECT_TRUE(pickle_u64(pickle_attr(q.root(), "x"), &x));
}

TEST(Pickle, SaysWhereStopIs)
{
	Pickle p(P("N") + "trailing");
	EXPECT_EQ(p.err, 0);
	EXPECT_EQ(p.used, 4u);
}

// name, bytes, errno, offset
struct Bad {
	const char *name;
	std::string bytes;
	int err;
	uint64_t at;
};

TEST(Pickle, ShouldFail)
{
	const std::string h = "\x80\x02";
	const Bad bad[] = {
		{"empty", "", -EBADMSG, 0},
		{"text", "hello", -EBADMSG, 0},
		{"protocol-0", "(dp0\n.", -EBADMSG, 0},
		{"protocol-9", "\x80\x09N.", -ENOTSUP, 0},
		{"no-stop", h + "N", -EBADMSG, 3},
		{"stop-on-nothing", h + ".", -EBADMSG, 2},
		{"two-values", h + "NN.", -EBADMSG, 4},
		{"open-mark", h + "N(.", -EBADMSG, 4},
		{"underflow-tuple", h + "N\x86.", -EBADMSG, 3},
		{"underflow-reduce", h + "R.", -EBADMSG, 2},
		{"below-the-mark", h + "N(a.", -EBADMSG, 4},
		{"no-mark", h + "Nt.", -EBADMSG, 3},
		{"string-cut", h + "X\xff\xff\xff\x7f" "a", -EBADMSG, 2},
		{"string-8-cut", h + "\x8d\xff\xff\xff\xff\xff\xff\xff\xff" "a", -EBADMSG, 2},
		{"frame-cut", "\x80\x04\x95" + u64(1000) + "N.", -EBADMSG, 2},
		{"long-negative-length", h + "\x8b\xff\xff\xff\xff.", -EBADMSG, 2},
		{"global-cut", h + "cos\nsys", -EBADMSG, 2},
		{"global-of-ints", h + "K\x01K\x02\x93.", -EBADMSG, 6},
		{"memo-far", h + "Nr\xff\xff\xff\x7f.", -EBADMSG, 3},
		{"memo-none", h + "h\x05.", -EBADMSG, 2},
		{"append-to-int", h + "K\x01K\x02" "a.", -EBADMSG, 6},
		{"odd-dict", h + "}(K\x01u.", -EBADMSG, 6},
		{"build-an-int", h + "K\x01}b.", -EBADMSG, 5},
		{"build-twice", h + "cm\nC\n)\x81}b}b.", -EBADMSG, 12},
		{"call-with-list", h + "cm\nC\n]R.", -EBADMSG, 8},
		{"unknown-opcode", h + "\xff.", -EBADMSG, 2},
		{"text-int", h + "I1\n.", -ENOTSUP, 2},
		{"extension", h + "\x82\x01.", -ENOTSUP, 2},
		{"out-of-band", "\x80\x05\x97.", -ENOTSUP, 2},
		{"marks-without-end", h + std::string(100000, '('), -EBADMSG, 10002},
	};

	for (const Bad &b : bad) {
		Pickle p(b.bytes);
		EXPECT_EQ(p.err, b.err) << b.name << ": " << p.e.text;
		EXPECT_EQ(p.e.at, b.at) << b.name << ": " << p.e.text;
		EXPECT_NE(p.e.text[0], '\0') << b.name;
	}
}

TEST(Pickle, EveryPrefixIsRefused)
{
	const std::string whole = asset("dcp/.metadata");

	for (size_t n = 0; n < whole.size(); n++) {
		Error e;
		pickle *p;
		EXPECT_NE(pickle_parse(whole.data(), n, &p, nullptr, &e), 0) << n;
	}
	EXPECT_EQ(Pickle(whole).err, 0);
}

TEST(Pickle, DeepNestingNeedsNoStack)
{
	std::string b = "\x80\x02";

	for (int i = 0; i < 2000000; i++)
		b += ']';
	for (int i = 1; i < 2000000; i++)
		b += 'a';
	Pickle p(b + ".");
	EXPECT_EQ(p.err, 0) << p.e.text;
}

// Memory is bounded by the input: the densest opcodes stay below the limit or are refused.
TEST(Pickle, CheapOpcodesAreBounded)
{
	for (const char *unit : {"]", "}", ")", "N", "2", "\x8f", ")\x85", "]0", "cm\nC\n)R0"}) {
		std::string b = "\x80\x02N";
		while (b.size() < 100000)
			b += unit;
		Pickle p(b);
		EXPECT_NE(p.err, 0) << unit; // no STOP
	}
}

// What takes most for its length: objects of two bytes, values on the stack, tuples of tuples.
TEST(Pickle, LargeOnesMayNotUnfoldFar)
{
	const struct {
		std::string before, unit, after;
	} cases[] = {{"N", ")\x81", ""}, {"(", "]", "t"}, {"K\x01", "\x85", ""}};
	for (const auto &c : cases) {
		std::string b = "\x80\x04" + c.before;
		while (b.size() < 16u << 20)
			b += c.unit;
		Pickle p(b + c.after + ".");
		EXPECT_EQ(p.err, -E2BIG) << c.unit;
		EXPECT_TRUE(p.e.says("expands out of proportion")) << p.e.text;
	}
}

// Nodes are only as long as their kind needs, and small numbers share one.
TEST(Pickle, EachKindKeepsItsOwn)
{
	Pickle p(std::string("\x80\x02(X\x01\0\0\0xq\0", 11) + "K\x05K\x05K\x06M\x05\x01" +
		 std::string("G\x3f\xf8\0\0\0\0\0\0", 9) + "c__main__\nC\n)R" + std::string("h\0Qt.", 5));
	ASSERT_EQ(p.err, 0) << p.e.text;
	auto **v = p.root()->u.seq.v;
	ASSERT_EQ(p.root()->u.seq.n, 8u);
	EXPECT_TRUE(pickle_is_str(v[0], "x"));
	EXPECT_EQ(v[1], v[2]);
	EXPECT_EQ(v[1]->u.i, 5);
	EXPECT_EQ(v[3]->u.i, 6);
	EXPECT_EQ(v[4]->u.i, 261);
	EXPECT_EQ(v[5]->u.f, 1.5);
	EXPECT_TRUE(pickle_is_object(v[6], "__main__", "C"));
	EXPECT_EQ(v[6]->u.object.more->items.n, 0u);
	EXPECT_EQ(v[7]->u.id, v[0]);
}

// What is put into one object is in no other.
TEST(Pickle, ObjectsShareNothing)
{
	Pickle p(std::string("\x80\x02(cm\nL\n)R(K\x01K\x02" "ecm\nL\n)Rcm\nD\n)R(K\x03K\x04ut.", 38));
	ASSERT_EQ(p.err, 0) << p.e.text;
	auto **v = p.root()->u.seq.v;
	ASSERT_EQ(p.root()->u.seq.n, 3u);
	EXPECT_EQ(v[0]->u.object.more->items.n, 2u);
	EXPECT_EQ(v[1]->u.object.more->items.n, 0u);
	EXPECT_EQ(v[2]->u.object.more->items.n, 0u);
	EXPECT_EQ(v[2]->u.object.more->pairs.n, 2u);
	EXPECT_EQ(v[1]->u.object.more->kwargs, nullptr);
}

// A list of numbers is as far as what is real unfolds.
TEST(Pickle, LargeListsAreRead)
{
	std::string b = "\x80\x04](";
	for (int i = 0; i < 2000000; i++)
		b += std::string("J") + u32((uint32_t)i) + (i % 1000 == 999 ? "e(" : "");
	Pickle p(b + "e.");
	ASSERT_EQ(p.err, 0) << p.e.text;
	EXPECT_EQ(p.root()->u.seq.n, 2000000u);
}

} // namespace

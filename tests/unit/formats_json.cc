// SPDX-License-Identifier: MIT
//
// The JSON reader: strict, flat, UTF-8.
#include "formats_test.hh"

namespace
{

struct Json {
	explicit Json(const std::string &t) { err = json_read(t.data(), t.size(), &d, &e); }
	~Json() { json_doc_free(d); }
	Json(const Json &) = delete;
	std::string text(int v) const
	{
		std::vector<char> buf(json_string_size(d, v) + 1);
		ssize_t n = json_string_copy(d, v, buf.data());
		return n < 0 ? "<none>" : std::string(buf.data(), (size_t)n);
	}

	json_doc *d = nullptr;
	Error e;
	int err;
};

TEST(Json, Good)
{
	for (const char *t : {"0", "-0", "1.5e-3", "10", "\"\"", "true", "false", "null", "[]", "{}", " [ ] ",
			      "[[],[[]],{}]", "{\"a\":{\"b\":[1,2,{}]}}", "[1,\n2]", "\"\\ud83d\\ude00\""})
		EXPECT_EQ(Json(t).err, 0) << t;
}

TEST(Json, ShouldFail)
{
	const std::string deep(65, '[');
	for (std::string t : {std::string(""), std::string(" "), std::string("01"), std::string("-"),
			      std::string("1."), std::string(".5"), std::string("1e"), std::string("+1"),
			      std::string("tru"), std::string("nul"), std::string("[1,]"), std::string("[,1]"),
			      std::string("{\"a\":1,}"), std::string("{a:1}"), std::string("{\"a\" 1}"),
			      std::string("{\"a\":}"), std::string("{1:2}"), std::string("[1 2]"), std::string("[1"),
			      std::string("]"), std::string("{]"), std::string("[}"), std::string("1 2"),
			      std::string("[] []"), std::string("\"a"), std::string("\"\\x\""), std::string("\"\\u12\""),
			      std::string("\"\\"), std::string("\"a\nb\""), std::string("\"\x80\""),
			      std::string("\"\xc0\xaf\""), std::string("\"\xed\xa0\x80\""), std::string("\"\xc3"),
			      std::string("[1]\0", 4), std::string("NaN"), std::string("Infinity"), std::string("'a'"),
			      deep, deep + std::string(65, ']')}) {
		Json j(t);
		EXPECT_EQ(j.err, -EBADMSG) << t;
		EXPECT_LE(j.e.at, t.size()) << t;
	}
	EXPECT_EQ(Json(std::string(64, '[') + std::string(64, ']')).err, 0);
}

TEST(Json, Walk)
{
	Json j("{\"a\": [10, 20, {\"b\": \"x\"}], \"c\": {}, \"d\": null}");
	ASSERT_EQ(j.err, 0);
	int a = json_at(j.d, 0, "a");
	EXPECT_EQ(json_count(j.d, a), 3);
	EXPECT_EQ(json_u64(j.d, json_item(j.d, a, 1)), 20u);
	EXPECT_EQ(json_item(j.d, a, 3), -1);
	EXPECT_EQ(j.text(json_at(j.d, json_item(j.d, a, 2), "b")), "x");
	EXPECT_EQ(json_first(j.d, json_at(j.d, 0, "c")), -1);
	EXPECT_TRUE(json_is_null(j.d, json_at(j.d, 0, "d")));
	EXPECT_TRUE(json_is_null(j.d, json_at(j.d, 0, "zz")));
	std::string keys;
	for (int k = json_first(j.d, 0); k >= 0; k = json_next(j.d, 0, json_next(j.d, 0, k)))
		keys += j.text(k);
	EXPECT_EQ(keys, "acd");
}

TEST(Json, Strings)
{
	EXPECT_EQ(Json("\"\\u00e9\\n\\\"\\\\\\/\"").text(0), "\xc3\xa9\n\"\\/");
	EXPECT_EQ(Json("\"\\ud83d\\ude00\"").text(0), "\xf0\x9f\x98\x80");
	EXPECT_EQ(Json("\"\\ud83d\"").text(0), "<none>");
	EXPECT_EQ(Json("\"\\u0000\"").text(0), std::string(1, '\0'));
	EXPECT_EQ(Json("17").text(0), "<none>");
	Json bytes("\"\\u00e9\""); // cairnfs's way to write a byte
	char *s = json_bytes(bytes.d, 0);
	EXPECT_STREQ(s, "\xe9");
	free(s);
}

TEST(Json, Numbers)
{
	uint64_t n;
	EXPECT_TRUE(json_is_u64(Json("18446744073709551615").d, 0, &n));
	EXPECT_EQ(n, UINT64_MAX);
	for (const char *t : {"18446744073709551616", "-1", "1.0", "1e3", "\"1\"", "null"})
		EXPECT_FALSE(json_is_u64(Json(t).d, 0, &n)) << t;
}

TEST(Utf8, SequencesAndWhatIsNone)
{
	const struct {
		const char *text;
		size_t len;
	} cases[] = {{"a", 1}, {"\x7f", 1}, {"\xc2\x80", 2}, {"\xe0\xa0\x80", 3}, {"\xef\xbf\xbf", 3},
		     {"\xf0\x90\x80\x80", 4}, {"\xf4\x8f\xbf\xbf", 4}, {"\x80", 0}, {"\xc1\xbf", 0},
		     {"\xe0\x9f\xbf", 0}, {"\xed\xa0\x80", 0}, {"\xf0\x8f\xbf\xbf", 0},
		     {"\xf4\x90\x80\x80", 0}, {"\xf5\x80\x80\x80", 0}, {"\xc2", 0}, {"\xe1\x80", 0}};
	for (const auto &c : cases) {
		EXPECT_EQ(fmt_utf8(c.text, 4), c.len) << c.text;
		EXPECT_EQ(fmt_is_utf8(c.text, strlen(c.text)), c.len > 0) << c.text;
	}
	EXPECT_EQ(fmt_utf8("\xe1\x80\x80", 2), 0u);
}

} // namespace

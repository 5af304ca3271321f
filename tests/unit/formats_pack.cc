// SPDX-License-Identifier: MIT
//
// Sets as bytes for another process: what was packed comes back, and whatever else comes is refused or does
// no harm.
#include <map>

#include "formats_view.hh"

namespace
{

struct Packed : fmt_packed {
	Packed() : fmt_packed{} {}
	~Packed() { fmt_packed_free(this); }
	std::string str() const { return {(const char *)p, n}; }
};

std::string packed(const fmt_set *s)
{
	Packed b;
	EXPECT_EQ(fmt_pack_set(&b, s), 0);
	return b.str();
}

void same(const fmt_set *a, const fmt_set *b)
{
	ASSERT_EQ(a->n_files, b->n_files);
	for (size_t i = 0; i < a->n_files; i++) {
		EXPECT_STREQ(a->file[i].name, b->file[i].name);
		EXPECT_EQ(a->file[i].need, b->file[i].need);
		EXPECT_EQ(a->file[i].items, b->file[i].items);
	}
	ASSERT_EQ(a->n_tensors, b->n_tensors);
	for (size_t i = 0; i < a->n_tensors; i++) {
		const fmt_tensor &x = a->tensor[i], &y = b->tensor[i];
		EXPECT_STREQ(x.name, y.name);
		EXPECT_EQ(x.dtype, y.dtype);
		EXPECT_STREQ(x.dtype_name, y.dtype_name);
		ASSERT_EQ(x.ndim, y.ndim);
		EXPECT_EQ(list(x.shape, x.ndim), list(y.shape, y.ndim));
		ASSERT_EQ(x.n_pieces, y.n_pieces);
		for (size_t j = 0; j < x.n_pieces; j++) {
			const fmt_piece &p = x.piece[j], &q = y.piece[j];
			EXPECT_EQ(p.file, q.file);
			EXPECT_EQ(p.payload, q.payload);
			EXPECT_EQ(p.at, q.at);
			EXPECT_EQ(p.length, q.length);
			EXPECT_EQ(list(p.offset, x.ndim), list(q.offset, x.ndim));
			EXPECT_EQ(list(p.size, x.ndim), list(q.size, x.ndim));
			ASSERT_EQ(!p.stride, !q.stride);
			if (p.stride) {
				EXPECT_EQ(list(p.stride, x.ndim), list(q.stride, x.ndim));
			}
			EXPECT_STREQ(p.refusal ? p.refusal : "", q.refusal ? q.refusal : "");
		}
	}
}

// What the daemon relies on, of any set that it takes.
void check(const fmt_set *s)
{
	for (size_t i = 0; i < s->n_tensors; i++) {
		const fmt_tensor &t = s->tensor[i];
		fmt_error e;
		ASSERT_LE(t.ndim, (unsigned)FMT_MAX_DIMS);
		ASSERT_NE(t.dtype_name, nullptr);
		ASSERT_TRUE(!i || strcmp(s->tensor[i - 1].name, t.name) < 0);
		for (size_t j = 0; j < t.n_pieces; j++) {
			const fmt_piece &p = t.piece[j];
			ASSERT_TRUE(p.file < s->n_files || (p.file == FMT_NO_FILE && p.refusal));
			ASSERT_EQ(p.payload == FMT_STRIDED, p.stride != nullptr);
			ASSERT_LE(p.length, (uint64_t)INT64_MAX - p.at);
			for (unsigned d = 0; d < t.ndim; d++)
				ASSERT_LE(p.size[d], (uint64_t)INT64_MAX - p.offset[d]);
		}
		fmt_set_cover(&t, nullptr, &e);
	}
	for (size_t i = 0; i < s->n_files; i++)
		ASSERT_EQ(("/" + std::string(s->file[i].name) + "/").find("/../"), std::string::npos);
	view_base *base = nullptr;
	ASSERT_EQ(view_base_new(s, &base), 0);
	view *v = nullptr;
	fmt_error e;
	view_pick all = {0, s->n_tensors, 1, 0};
	view_safetensors(base, &all, &v, &e);
	view_free(v);
	view_base_free(base);
}

int unpack(const std::string &bytes, Set &s, Error &e)
{
	// exactly as long as it is, so that a sanitizer sees a byte too far
	std::unique_ptr<char[]> copy(new char[bytes.size()]);
	memcpy(copy.get(), bytes.data(), bytes.size());
	return fmt_unpack_set(s.get(), copy.get(), bytes.size(), &e);
}

const char *const assets[] = {"dcp", "dcp_local", "dcp_safetensors", "hf_index", "safetensors", "torch_save"};

TEST(Pack, SetsComeBack)
{
	for (const char *name : assets) {
		SCOPED_TRACE(name);
		Asset a(name);
		ASSERT_GT(a->n_tensors, 0u);
		Set s;
		Error e;
		ASSERT_EQ(unpack(packed(a.get()), s, e), 0) << e.text;
		same(a.get(), s.get());
		check(s.get());
	}
}

// Every shorter one is refused: nothing is taken for granted that is not there.
TEST(Pack, TruncatedIsRefused)
{
	for (const char *name : assets) {
		SCOPED_TRACE(name);
		const std::string all = packed(Asset(name).get());
		for (size_t n = 0; n < all.size(); n += n < 200 || n > all.size() - 200 ? 1 : 13) {
			Set s;
			Error e;
			EXPECT_LT(unpack(all.substr(0, n), s, e), 0) << n;
		}
		Set s;
		Error e;
		EXPECT_LT(unpack(all + "x", s, e), 0);
	}
}

TEST(Pack, AnyOtherBytesDoNoHarm)
{
	uint64_t seed = 1;
	auto rnd = [&](size_t n) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		return (size_t)((seed >> 33) % n);
	};
	for (const char *name : assets) {
		SCOPED_TRACE(name);
		const std::string all = packed(Asset(name).get());
		unsigned refused = 0;
		for (unsigned i = 0; i < 4000; i++) {
			std::string b = all;
			for (size_t k = 1 + rnd(3); k; k--)
				b[rnd(b.size())] = (char)(rnd(4) ? rnd(256) : rnd(2) ? 0xff : 0x80);
			if (!rnd(8))
				b.erase(rnd(b.size()), rnd(8));
			Set s;
			Error e;
			if (unpack(b, s, e))
				refused++;
			else
				check(s.get());
		}
		EXPECT_GT(refused, 0u);
	}
}

// A few bytes cannot claim much: neither counts nor lengths.
TEST(Pack, ClaimsTakeNoMemory)
{
	const std::string many = "\xff\xff\xff\xff\x0f";
	for (const std::string &b : {many, std::string("\0", 1) + many, "\1" + many, std::string("\1\1a\0\0", 5) + many,
				     std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), std::string(20, '\xff')}) {
		Set s;
		Error e;
		EXPECT_EQ(unpack(b, s, e), -EBADMSG);
	}
}

TEST(Pack, FilesStayBelow)
{
	for (const std::string name : {"../x", "/x", "a/../b", "a//b", ""}) {
		Set s;
		Error e;
		const std::string b = std::string("\1") + (char)name.size() + name + std::string("\0\0\0", 3);
		EXPECT_LT(unpack(b, s, e), 0) << name;
	}
}

TEST(Pack, NestedNamesStayBelow)
{
	for (const std::string name : {"../x", "a/../x", "/x", "x"}) {
		const std::string b = std::string("\0\1", 2) + (char)name.size() + name + std::string("\5\0\0\0", 4);
		ckpt_content c = {};
		Error e;
		EXPECT_LT(ckpt_unpack_answer(&c, b.data(), b.size(), &e), 0) << name;
		ckpt_content_free(&c);
	}
	const std::string b("\0\1\3a/b\5\0\0\0", 10);
	ckpt_content c = {};
	Error e;
	EXPECT_EQ(ckpt_unpack_answer(&c, b.data(), b.size(), &e), 0) << e.text;
	EXPECT_EQ(c.n, 1u);
	ckpt_content_free(&c);
}

// ---- what is asked and found -----------------------------------------------------------------

struct Content {
	Content() = default;
	Content(const Content &) = delete;
	~Content() { ckpt_content_free(&c); }
	void add(const std::string &name, uint64_t size)
	{
		c.v = (ckpt_name *)reallocarray(c.v, c.n + 1, sizeof(*c.v));
		c.v[c.n] = {};
		c.v[c.n].name = strdup(name.c_str());
		c.v[c.n++].size = size;
	}
	ckpt_content c = {};
};

// A checkpoint with a file further down, an index, and one that is broken.
void read(Content &k, std::map<std::string, std::string> files)
{
	ckpt_io io = {};
	io.ctx = &files;
	io.open = [](void *ctx, const char *name, fmt_source *out) {
		auto *f = (std::map<std::string, std::string> *)ctx;
		auto at = f->find(name);
		if (at == f->end())
			return -ENOENT;
		*out = fmt_memory(at->second.data(), at->second.size());
		return 0;
	};
	io.close = [](void *, fmt_source *) {};
	io.max_bytes = 1 << 20;
	for (const auto &f : files)
		if (f.first.find('/') == std::string::npos)
			k.add(f.first, f.second.size());
	ckpt_recognize("run", k.c.v, k.c.n, &k.c.kind);
	ASSERT_EQ(ckpt_content_read(&k.c, &io, CKPT_TENSORS), 0);
}

std::map<std::string, std::string> indexed()
{
	std::map<std::string, std::string> f;
	const auto dir = std::filesystem::path(asset_path("hf_index"));
	for (const auto &x : std::filesystem::directory_iterator(dir))
		if (x.is_regular_file())
			f[x.path().filename()] = read_file(x.path());
	return f;
}

TEST(Pack, QuestionsComeBack)
{
	Content k, l;
	k.add("a", 5);
	k.add("b", UINT64_MAX);
	k.c.v[0].dir = k.c.v[1].open = true;
	k.c.kind.format = CKPT_DEEPSPEED;
	k.c.kind.ranks = 7;
	Packed b;
	ASSERT_EQ(ckpt_pack_question(&b, &k.c, 123456789, CKPT_SOUND), 0);
	uint64_t max;
	ckpt_depth depth;
	ASSERT_EQ(ckpt_unpack_question(&l.c, &max, &depth, b.p, b.n), 0);
	EXPECT_EQ(max, 123456789u);
	EXPECT_EQ(depth, CKPT_SOUND);
	EXPECT_EQ(l.c.kind.format, CKPT_DEEPSPEED);
	EXPECT_EQ(l.c.kind.ranks, 7u);
	ASSERT_EQ(l.c.n, 2u);
	EXPECT_STREQ(l.c.v[0].name, "a");
	EXPECT_TRUE(l.c.v[0].dir && !l.c.v[0].open && !l.c.v[1].dir && l.c.v[1].open);
	EXPECT_EQ(l.c.v[1].size, UINT64_MAX);
}

void given(Content &l, const Content &k)
{
	for (size_t i = 0; i < k.c.n; i++)
		if (!strchr(k.c.v[i].name, '/'))
			l.add(k.c.v[i].name, k.c.v[i].size);
	l.c.kind = k.c.kind;
}

void come_back(const std::map<std::string, std::string> &files)
{
	Content k, l;
	read(k, files);
	Packed b;
	ASSERT_EQ(ckpt_pack_answer(&b, &k.c), 0);
	given(l, k);
	Error e;
	ASSERT_EQ(ckpt_unpack_answer(&l.c, b.p, b.n, &e), 0) << e.text;
	EXPECT_EQ(l.c.kind.ranks, k.c.kind.ranks);
	ASSERT_EQ(l.c.n, k.c.n);
	for (size_t i = 0; i < k.c.n; i++) {
		EXPECT_STREQ(l.c.v[i].name, k.c.v[i].name);
		EXPECT_EQ(l.c.v[i].size, k.c.v[i].size);
		EXPECT_STREQ(l.c.v[i].fault ? l.c.v[i].fault : "", k.c.v[i].fault ? k.c.v[i].fault : "");
	}
	ASSERT_EQ(!l.c.set, !k.c.set);
	if (k.c.set)
		same(k.c.set, l.c.set);
	ASSERT_EQ(!l.c.index.v, !k.c.index.v);
	ASSERT_EQ(l.c.index.n, k.c.index.n);
	EXPECT_EQ(l.c.index.total, k.c.index.total);
	for (size_t i = 0; i < k.c.index.n; i++) {
		EXPECT_STREQ(l.c.index.v[i].name, k.c.index.v[i].name);
		EXPECT_EQ(l.c.index.v[i].file, k.c.index.v[i].file);
	}
}

TEST(Pack, AnswersComeBack)
{
	auto f = indexed();
	ASSERT_TRUE(f.count("model.safetensors.index.json"));
	come_back(f);
	for (auto &x : f)
		if (x.first.find(".safetensors") != std::string::npos && x.first.find("json") == std::string::npos) {
			x.second = "broken";	// it gets a fault
			break;
		}
	come_back(f);
	const std::string object = saved("N");
	come_back({{".snapshot_metadata", R"({"version": "0.1.0", "world_size": 1, "manifest": {"0/m/o": {"type": "object",
		"location": "0/m/o", "serializer": "torch_save", "obj_type": "builtins.set", "replicated": false}}})"},
		   {"0/m/o", object}});
	come_back({{".metadata", "nothing of DCP"}, {"__0_0.distcp", "x"}});
}

TEST(Pack, AnswersOfOtherBytesDoNoHarm)
{
	Content k;
	auto f = indexed();
	read(k, f);
	Packed b;
	ASSERT_EQ(ckpt_pack_answer(&b, &k.c), 0);
	uint64_t seed = 7;
	auto rnd = [&](size_t n) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		return (size_t)((seed >> 33) % n);
	};
	for (unsigned i = 0; i < 20000; i++) {
		std::string x = b.str();
		for (size_t n = 1 + rnd(3); n; n--)
			x[rnd(rnd(2) ? 40 : x.size())] = (char)(rnd(3) ? rnd(256) : rnd(8));
		if (!rnd(3))
			x.resize(rnd(x.size()));
		Content l;
		given(l, k);
		Error e;
		if (ckpt_unpack_answer(&l.c, x.data(), x.size(), &e))
			continue;
		for (size_t j = 1; j < l.c.n; j++)
			ASSERT_LT(strcmp(l.c.v[j - 1].name, l.c.v[j].name), 0);
		if (l.c.set)
			check(l.c.set);
		ckpt_verdict v;
		ckpt_judge(&l.c.kind, l.c.v, l.c.n, l.c.set, l.c.index.v ? &l.c.index : nullptr, 100, &v);
	}
}

}	// namespace

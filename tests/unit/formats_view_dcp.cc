// SPDX-License-Identifier: MIT
//
// DCP checkpoints that are written: what our own reader makes of them is what went in, and names and
// paths are those of PyTorch.
#include "formats_view.hh"

namespace
{

struct Written {
	~Written()
	{
		view_free(data);
		view_free(meta);
	}
	view *data = nullptr, *meta = nullptr;
};

std::string bytes_of(const view *v, Io &io)
{
	View borrowed;
	borrowed.v = (view *)v;
	const std::string s = all(borrowed, io);
	borrowed.v = nullptr;
	return s;
}

// Written, and read back.
struct Again : Set {
	Again(const fmt_set *from, const Files &in) : base(from)
	{
		Io io(in);
		err = view_dcp(base.b, &w.data, &w.meta, &e);
		if (err)
			return;
		files = {bytes_of(w.data, io)};
		meta = bytes_of(w.meta, io);
		read_err = dcp_read(get(), meta.data(), meta.size(), &e);
		finish();
	}
	Base base;
	Written w;
	Error e;
	Files files;
	std::string meta;
	int err, read_err = 0;
};

std::string way(const fmt_path &p)
{
	std::string s;
	for (unsigned i = 0; i < p.n; i++)
		s += (p.step[i].key ? "/" + std::string(p.step[i].key) : "#" + std::to_string(p.step[i].index));
	return s;
}

TEST(ViewDcp, Assets)
{
	for (const char *dir : {"dcp", "dcp_local", "dcp_safetensors", "dcp_hf", "hf_index", "safetensors", "torch_save"}) {
		SCOPED_TRACE(dir);
		Asset a(dir);
		Again b(a.get(), a.files);
		ASSERT_EQ(b.err, 0) << b.e.text;
		ASSERT_EQ(b.read_err, 0) << b.e.text;
		ASSERT_EQ(b->n_files, 1u);
		EXPECT_STREQ(b->file[0].name, VIEW_DCP_DATA);
		EXPECT_EQ(b->file[0].need, b.files[0].size());
		EXPECT_EQ(b->n_blobs, a->n_blobs);
		Io in(a.files), out(b.files);
		View want, got;
		Error e;
		Base base(b.get());
		ASSERT_EQ(b.base.whole(&want, &e), 0) << e.text;
		ASSERT_EQ(base.whole(&got, &e), 0) << e.text;
		EXPECT_EQ(all(got, out), all(want, in));	// names, dtypes, shapes, bytes
	}
}

TEST(ViewDcp, ItemsThatAreNoTensorsAreCarried)
{
	Asset a("dcp");
	Again b(a.get(), a.files);
	ASSERT_EQ(b->n_blobs, 1u);
	const fmt_blob &x = a->blob[0], &y = b->blob[0];
	EXPECT_STREQ(y.name, "step");
	EXPECT_EQ(way(y.path), "/step");
	EXPECT_EQ(b.files[y.file].substr(y.at, y.length), a.files[x.file].substr(x.at, x.length));
}

TEST(ViewDcp, ItemsAreAlignedAsTorchSaveHasThem)
{
	Asset a("torch_save");
	Again b(a.get(), a.files);
	for (size_t i = 0; i < b->n_tensors; i++) {
		const fmt_piece &p = b->tensor[i].piece[0];
		const fmt_source file = fmt_memory(b.files[0].data(), b.files[0].size());
		const fmt_source item = fmt_part(&file, p.at, p.length);
		Set s;
		Error e;
		ASSERT_EQ(dcp_item_read(s.get(), &item, &e), 0) << e.text;
		if (s->tensor[0].piece[0].length) {
			EXPECT_EQ(s->tensor[0].piece[0].at % 64, 0u);
		}
	}
}

// ---- torch.save files as state dicts ------------------------------------------------------------

struct State : Set {
	explicit State(std::string b) : bytes(std::move(b))
	{
		const fmt_source s = fmt_memory(bytes.data(), bytes.size());
		err = torchfile_read_state(
			get(), file("f.pt"), &s,
			[](void *c, const char *what) { ((State *)c)->left_out.push_back(what); }, this, &e);
		if (!err)
			finish();
	}
	std::string blob(const std::string &name) const
	{
		for (size_t i = 0; i < get()->n_blobs; i++)
			if (name == get()->blob[i].name)
				return std::string(get()->blob[i].pickle, get()->blob[i].length);
		return "no " + name;
	}
	std::string bytes;
	std::vector<std::string> left_out;
	Error e;
	int err;
};

std::string str(const std::string &s) { return "X" + u32((uint32_t)s.size()) + s; }
std::string dict(const std::string &pairs) { return "}(" + pairs + "u"; }
std::string list(const std::string &v) { return "](" + v + "e"; }

TEST(TorchState, NamesAndPathsOfNestedDicts)
{
	State s(asset("torch_save/model.pt"));
	ASSERT_EQ(s.err, 0) << s.e.text;
	EXPECT_EQ(s->n_tensors, 14u);
	EXPECT_EQ(way(s.find("model.embed.weight")->path), "/model/embed.weight");
	EXPECT_EQ(way(s.find("optimizer.state.0.exp_avg")->path), "/optimizer/state/0/exp_avg");
	EXPECT_EQ(way(s.find("list.0")->path), "/list#0");
	EXPECT_EQ(s.blob("list.1"), "\x80\x02" + str("text") + ".");
	EXPECT_EQ(s.blob("list.2"), "\x80\x02N.");
	EXPECT_EQ(s.blob("optimizer.state.0.step"), "\x80\x02J" + u32(9) + ".");

	Again b(s.get(), {s.bytes});
	ASSERT_EQ(b.err, 0) << b.e.text;
	ASSERT_EQ(b->n_tensors, s->n_tensors);
	ASSERT_EQ(b->n_blobs, s->n_blobs);
	for (size_t i = 0; i < b->n_tensors; i++)
		EXPECT_EQ(way(b->tensor[i].path), way(s->tensor[i].path));
	for (size_t i = 0; i < b->n_blobs; i++)
		EXPECT_EQ(way(b->blob[i].path), way(s->blob[i].path));
}

// What DCP goes down, and what it takes as one value.
TEST(TorchState, ListsTuplesAndWhatIsInThem)
{
	State s(saved(dict(str("plain") + list("K\1" + list("K\2")) + str("tuple") + "(" + dict(str("a") + "N") + "t" +
			   str("inner") + list("K\1" + dict(str("x") + "\x88") + list(dict(str("y") + "\x89"))))));
	ASSERT_EQ(s.err, 0) << s.e.text;
	EXPECT_EQ(s.blob("plain"), "\x80\x02" + list("J" + u32(1) + list("J" + u32(2))) + ".");
	EXPECT_EQ(s.blob("tuple"), "\x80\x02(" + dict(str("a") + "N") + "t.");
	EXPECT_EQ(s.blob("inner.0"), "\x80\x02J" + u32(1) + ".");
	EXPECT_EQ(s.blob("inner.1.x"), "\x80\x02\x88.");
	EXPECT_EQ(s.blob("inner.2.0.y"), "\x80\x02\x89.");
	EXPECT_EQ(s->n_blobs, 5u);
}

TEST(TorchState, KeysAreAsStrHasThem)
{
	State s(saved(dict("K\7" + dict("J" + u32(-1u) + "N") + "\x88NN\x88" + str("") + dict(str("x") + "N"))));
	ASSERT_EQ(s.err, 0) << s.e.text;
	EXPECT_EQ(s.blob("7.-1"), "\x80\x02N.");
	EXPECT_EQ(s.blob("True"), "\x80\x02N.");
	EXPECT_EQ(s.blob("None"), "\x80\x02\x88.");
	EXPECT_EQ(s.blob(".x"), "\x80\x02N.");
}

TEST(TorchState, WhatDcpLeavesOutIsTold)
{
	const std::string ordered = "ccollections\nOrderedDict\n)R";
	State s(saved(dict(str("a") + dict("") + str("b") + ordered + "(" + str("x") + "Nu}(" + str("_metadata") + "Nub")));
	ASSERT_EQ(s.err, 0) << s.e.text;
	EXPECT_EQ(s->n_blobs, 1u);
	EXPECT_EQ(s.left_out, (std::vector<std::string>{"a (empty)", "b._metadata"}));
}

// All that weights_only=True loads: written as it was, in protocol 2.
TEST(TorchState, PlainValuesThatAreMade)
{
	const std::string size = "ctorch\nSize\n((J" + u32(2) + "ttR", encode = "c_codecs\nencode\n(" + str("\xc3\xbf") +
			  str("latin1") + "tR";
	const struct {
		std::string in, out;
	} v[] = {
		{"ctorch\nSize\nK\2\x85\x85R", size},
		{"ctorch\ndevice\n" + str("cuda") + "K\1\x86R", "ctorch\ndevice\n(" + str("cuda") + "J" + u32(1) + "tR"},
		{"ctorch\nbfloat16\n", "ctorch\nbfloat16\n"},
		{"ctorch\nper_tensor_affine\n", "ctorch\nper_tensor_affine\n"},
		{"ctorch.serialization\n_get_layout\n" + str("torch.strided") + "\x85R",
		 "ctorch.serialization\n_get_layout\n(" + str("torch.strided") + "tR"},
		{encode, encode},
		{"c__builtin__\nbytearray\n" + encode + "\x85R", "c__builtin__\nbytearray\n(" + encode + "tR"},
		{"c__builtin__\nset\n" + list("K\2") + "\x85R", "c__builtin__\nset\n(" + list("J" + u32(2)) + "tR"},
		{"c__builtin__\ncomplex\nG" + std::string(8, '\0') + "G" + std::string(8, '\0') + "\x86R",
		 "c__builtin__\ncomplex\n(G" + std::string(8, '\0') + "G" + std::string(8, '\0') + "tR"},
		{"(ccollections\nOrderedDict\n)R" + str("k") + "Nst",
		 "(ccollections\nOrderedDict\n)R(" + str("k") + "Nut"},
		{"(ccollections\nCounter\n" + dict(str("k") + "K\2") + "\x85Rt",
		 "(ccollections\nCounter\n(" + dict(str("k") + "J" + u32(2)) + "tRt"},
		{list(size + "N"), list(size + "N")},
	};
	for (const auto &x : v) {
		State s(saved(dict(str("a") + x.in)));
		ASSERT_EQ(s.err, 0) << s.e.text;
		EXPECT_EQ(s.blob("a"), "\x80\x02" + x.out + ".");
	}
	// DCP goes down a Counter, as down every dict
	State s(saved(dict(str("a") + "ccollections\nCounter\n" + dict(str("k") + "K\2") + "\x85R")));
	ASSERT_EQ(s.err, 0) << s.e.text;
	EXPECT_EQ(s.blob("a.k"), "\x80\x02J" + u32(2) + ".");
}

// numpy's scalars and arrays, of numbers and strings: as they were, and only with as many bytes as they want.
std::string np_type(const std::string &code, const std::string &order, int32_t wide, int32_t one, int32_t flags)
{
	return "cnumpy\ndtype\n(" + str(code) + "\x89\x88tR(J" + u32(3) + str(order) + "NNNJ" + u32((uint32_t)wide) + "J" +
	       u32((uint32_t)one) + "J" + u32((uint32_t)flags) + "tb";
}

std::string np_bytes(const std::string &s)
{
	return "c_codecs\nencode\n(" + str(s) + str("latin1") + "tR";
}

std::string np_scalar(const std::string &type, const std::string &bytes)
{
	return "cnumpy._core.multiarray\nscalar\n(" + type + bytes + "tR";
}

std::string np_array(const std::string &shape, const std::string &type, const std::string &bytes)
{
	return "cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(J" + u32(0) + "t" + np_bytes("b") + "tR(J" +
	       u32(1) + "(" + shape + "t" + type + "\x89" + bytes + "tb";
}

TEST(TorchState, NumpyValues)
{
	const std::string f2 = np_type("f2", "<", -1, -1, 0), s3 = np_type("S3", "|", 3, 1, 0),
			  u1 = np_type("U1", "<", 4, 4, 8), no_bytes = "c__builtin__\nbytes\n(tR";
	const std::string v[] = {
		f2,
		np_scalar(f2, np_bytes("\xc3\xbf" "a")),	// two bytes in three
		np_scalar(s3, np_bytes("abc")),
		np_scalar(u1, np_bytes("a" "\1\2\3")),
		np_array("J" + u32(2) + "J" + u32(1), f2, np_bytes("abcd")),
		np_array("", f2, np_bytes("ab")),
		np_array("J" + u32(0), f2, no_bytes),
		list(np_array("", f2, np_bytes("ab")) + "N"),
		"ctorch\nuint3\n", "ctorch\nint7\n",
		list("}(u"),
		// attributes of a dict that is in a value
		"(ccollections\nOrderedDict\n)R(" + str("k") + "Nu}(" + str("x") + "Nubt",
	};
	for (const auto &x : v) {
		State s(saved(dict(str("a") + x)));
		ASSERT_EQ(s.err, 0) << s.e.text;
		EXPECT_EQ(s.blob("a"), "\x80\x02" + x + ".");
	}
	const std::string one = "J" + u32(1), array = "a: made by numpy.core.multiarray._reconstruct, of neither numbers",
			  huge = "\x8a\x08" + std::string(7, '\0') + "\x20";
	const struct {
		std::string object, says;
	} bad[] = {
		{np_scalar(f2, np_bytes("a")), "a: made by numpy._core.multiarray.scalar, of neither numbers"},
		{np_scalar(f2, "C\2ab"), "a: made by numpy._core.multiarray.scalar"},
		{np_scalar(f2, np_bytes("ab")) + "}b", "a: made by numpy._core.multiarray.scalar"},
		{np_scalar(np_type("O8", "|", -1, -1, 63), np_bytes("abcdefgh")), "a: made by numpy._core"},
		{np_scalar("cnumpy\ndtype\n(" + str("f2") + "\x89\x88tR", np_bytes("ab")), "a: made by numpy._core"},
		{np_type("M8", "<", -1, -1, 0), "a: made by numpy.dtype, of neither numbers"},
		{np_type("V3", "|", 3, 1, 0), "a: made by numpy.dtype"},
		{np_type("S3", "|", 4, 1, 0), "a: made by numpy.dtype"},
		{np_type("f", "<", -1, -1, 0), "a: made by numpy.dtype"},
		{np_type("f2x", "<", -1, -1, 0), "a: made by numpy.dtype"},
		{np_type("S9999999999", "<", -1, -1, 0), "a: made by numpy.dtype"},
		{np_type("f2", "?", -1, -1, 0), "a: made by numpy.dtype"},
		{np_array(one, f2, np_bytes("abc")), array},
		{np_array("J" + u32(0xffffffff), f2, np_bytes("ab")), array},
		{np_array(huge + huge + huge, f2, no_bytes), array},
		{np_array("N", f2, np_bytes("ab")), array},
		{np_array(one, "N", np_bytes("ab")), array},
		{np_array(one, f2, list(np_bytes("ab"))), array},
		{"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(J" + u32(0) + "t" + np_bytes("b") + "tR", array},
		{"cnumpy.core.multiarray\n_reconstruct\n(cos\nsystem\n(J" + u32(0) + "t" + np_bytes("b") + "tR(J" + u32(1) +
			 "(t" + f2 + "\x89" + np_bytes("ab") + "tb",
		 array},
		{"c__builtin__\nbytes\n(" + str("x") + "tR", "a: made by __builtin__.bytes, neither a tensor"},
		{"ctorch\nint9\n", "a: torch.int9, neither a tensor"},
		{"ctorch\nuint\n", "a: torch.uint, neither a tensor"},
	};
	for (const auto &b : bad) {
		SCOPED_TRACE(b.says);
		State s(saved(dict(str("a") + b.object)));
		EXPECT_EQ(s.err, -ENOTSUP);
		EXPECT_TRUE(s.e.says(b.says.c_str())) << s.e.text;
	}
}

TEST(TorchState, Refusals)
{
	std::string deep, wide = "]q\1", nest = "N";
	for (int i = 0; i < 100; i++)
		nest = "(" + nest + "t";
	deep = str("a") + nest;
	wide = "K\1q\1";	// lists of the same two lists: 2^60 elements
	for (char i = 1; i < 60; i++)
		wide += "](h" + std::string(1, i) + "h" + std::string(1, i) + "eq" + std::string(1, (char)(i + 1));
	const struct {
		std::string object;
		const char *says;
	} bad[] = {
		{"K\1", "not a dict"},
		{list(dict(str("a") + "N")), "not a dict"},
		{dict(str("a") + "cnumpy\nscalar\n)R"), "a: made by numpy.scalar, neither a tensor"},
		{dict(str("a") + dict(str("b") + "ctorch\nload\n")), "a.b: torch.load, neither a tensor"},
		{dict(str("a") + "cos\nfloat32\n"), "a: os.float32, neither a tensor"},
		{dict(str("a") + "c_codecs\nencode\n(" + str("x") + str("zip") + "tR"), "a: made by _codecs.encode, neither"},
		{dict(str("a") + "ctorch\nSize\n((cargparse\nNamespace\n)RttR"), "a: made by argparse.Namespace"},
		{dict(str("a") + "ctorch\ndevice\n(" + str("cpu") + "tR}b"), "a: made by torch.device, neither"},
		{dict(str("a") + "(ccollections\nOrderedDict\n)R(" + str("x") + "tbt"), "a: made by collections.OrderedDict"},
		{dict(str("a") + "(cargparse\nNamespace\n)R" + "t"), "a: made by argparse.Namespace"},
		{dict(str("a") + "C\3abc"), "a: bytes, neither a tensor"},
		{dict(str("a") + str("\xff")), "a: a str that is not UTF-8"},
		{dict(str("\xff") + "N"), ""},	// told by the writer
		{dict("G" + std::string(8, '\0') + "N"), "a dict with a float as a key"},
		{dict(str("a") + dict("(t" "N")), "a: a dict with a tuple as a key"},
		{dict(str("a.b") + "N" + str("a") + dict(str("b") + "N")), "a.b: two items would have this name"},
		{dict("K\7N" + str("7") + "N"), "7: two items"},
		{dict(str("a") + list(dict("") + dict(str("x") + "N"))), "a.0: an empty dict in a list"},
		{dict(str("a") + "(ctorch._utils\n_rebuild_tensor_v2\n)Rt"), "a: a tensor in a value that DCP does not"},
		{dict(deep), "a: nested too deep"},
		{"}q\1(" + str("a") + "h\1u", "nested too deep"},
		{dict(str("a") + "(" + wide + "t"), ""},
		{dict(str("a") + "(ccollections\ndefaultdict\n)Rt"), "a: made by collections.defaultdict"},
	};
	for (const auto &b : bad) {
		SCOPED_TRACE(b.says);
		State s(saved(b.object));
		if (!s.err) {
			Again w(s.get(), {s.bytes});
			EXPECT_EQ(w.err, -ENOTSUP);
			EXPECT_TRUE(w.e.says("a name that is not UTF-8")) << w.e.text;
			continue;
		}
		EXPECT_TRUE(s.err == -ENOTSUP || s.err == -E2BIG) << s.err;
		EXPECT_TRUE(s.e.says(b.says)) << s.e.text;
	}
}

TEST(TorchState, KindsOfTensorsThatCannotBeReadAreRefusedByTheWriter)
{
	State s(asset("torch_odd/odd.pt"));
	ASSERT_EQ(s.err, 0) << s.e.text;
	Again b(s.get(), {s.bytes});
	EXPECT_EQ(b.err, -ENOTSUP);
	EXPECT_TRUE(b.e.says("conj: ")) << b.e.text;
}

// Any byte changed: read and written, or refused; never a crash.
TEST(TorchState, AnyByteChanged)
{
	const std::string whole = asset("torch_save/model.pt");

	for (size_t i = 0; i < whole.size(); i += 3) {
		std::string b = whole;
		b[i] = (char)~b[i];
		State s(b);
		if (s.err)
			continue;
		Base base(s.get());
		Written w;
		Error e;
		view_dcp(base.b, &w.data, &w.meta, &e);
	}
}

} // namespace

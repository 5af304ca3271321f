// SPDX-License-Identifier: MIT
//
// Views of the assets and of tensors cut by hand: what is read of them, in any pieces, is what
// the tensors hold.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "formats_view.hh"

namespace
{

// Any part of it is that part of it.
void in_parts(const View &v, Io &io, const std::string &want)
{
	std::mt19937 rng(1);
	Error e;
	for (int i = 0; i < 200; i++) {
		size_t off = rng() % (want.size() + 1), len = rng() % (want.size() - off + 1);
		std::string got(len, '\0');
		ASSERT_EQ(view_read(v.v, &io, off, got.data(), len, &e), 0) << e.text;
		ASSERT_EQ(got, want.substr(off, len)) << off << " " << len;
	}
	char c;
	EXPECT_EQ(view_read(v.v, &io, want.size(), &c, 1, &e), -EINVAL);
	EXPECT_EQ(view_read(v.v, &io, UINT64_MAX, &c, 1, &e), -EINVAL);
}

struct Read : Set {		// a safetensors file, read back
	explicit Read(const std::string &b) : bytes(b)
	{
		fmt_source s = fmt_memory(bytes.data(), bytes.size());
		Error e;
		EXPECT_EQ(safetensors_read(get(), file("f"), &s, &e), 0) << e.text;
		finish();
	}
	std::string data(const std::string &name) const
	{
		const fmt_tensor *t = find(name);
		return t ? bytes.substr(t->piece[0].at, t->piece[0].length) : "no " + name;
	}
	V shape(const std::string &name) const
	{
		const fmt_tensor *t = find(name);
		return t ? list(t->shape, t->ndim) : V{999};
	}
	std::string bytes;
};

// ---- tensors cut by hand -------------------------------------------------------------------

struct Cut {
	V offset, size;
	V stride;	// empty: row-major
};

// A tensor of 16-bit elements numbered from 0, cut into pieces that lie in `files` with some
// bytes between them; a set is made by a DCP-like safetensors header each.
class Cutter
{
public:
	Cutter(V s, std::vector<Cut> cuts) : shape(std::move(s))
	{
		uint64_t n = 1;
		for (uint64_t d : shape)
			n *= d;
		for (uint64_t i = 0; i < n; i++)
			want += u16((unsigned)(i % 65536));
		std::string state;
		for (size_t i = 0; i < cuts.size(); i++)
			files.push_back(piece(cuts[i], i));
	}
	// as safetensors files with DCP_SHARDING_INFO
	std::string piece(const Cut &c, size_t)
	{
		std::string data, sizes, at;
		V i(c.size.size(), 0);
		uint64_t n = 1;
		for (uint64_t d : c.size)
			n *= d;
		for (uint64_t k = 0; k < n; k++) {
			uint64_t lin = 0;
			for (size_t d = 0; d < i.size(); d++)
				lin = lin * shape[d] + c.offset[d] + i[d];
			data += want.substr(lin * 2, 2);
			for (size_t d = i.size(); d-- > 0 && ++i[d] == c.size[d];)
				i[d] = 0;
		}
		for (size_t d = 0; d < c.size.size(); d++) {
			sizes += (d ? "," : "") + std::to_string(c.size[d]);
			at += (d ? "," : "") + std::to_string(c.offset[d]);
		}
		std::string h = "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"t\\\":{\\\"saved_offsets\\\":[" + at +
				"]}}\"},\"t\":{\"dtype\":\"U16\",\"shape\":[" + sizes + "],\"data_offsets\":[0," +
				std::to_string(data.size()) + "]}}";
		while (h.size() % 8)
			h += ' ';
		return u64(h.size()) + h + data;
	}
	V shape;
	std::string want;
	Files files;
};

void read_all(Set *s, const Files &files)
{
	for (size_t i = 0; i < files.size(); i++) {
		fmt_source src = fmt_memory(files[i].data(), files[i].size());
		Error e;
		ASSERT_EQ(safetensors_read(s->get(), s->file("f" + std::to_string(i)), &src, &e), 0) << e.text;
	}
	s->finish();
}

void expect_cut(V shape, std::vector<Cut> cuts)
{
	Cutter c(shape, cuts);
	Set s;
	read_all(&s, c.files);
	Base b(s.get());
	Io io(c.files);
	View v;
	Error e;
	ASSERT_EQ(b.whole(&v, &e), 0) << e.text;
	const std::string got = all(v, io);
	EXPECT_EQ(Read(got).data("t"), c.want);
	in_parts(v, io, got);
}

TEST(View, Rows) { expect_cut({7, 5}, {{{0, 0}, {3, 5}, {}}, {{3, 0}, {3, 5}, {}}, {{6, 0}, {1, 5}, {}}}); }
TEST(View, Columns) { expect_cut({6, 9}, {{{0, 0}, {6, 4}, {}}, {{0, 4}, {6, 4}, {}}, {{0, 8}, {6, 1}, {}}}); }
TEST(View, Grid)
{
	expect_cut({5, 4, 6}, {{{0, 0, 0}, {3, 2, 6}, {}}, {{0, 2, 0}, {3, 2, 6}, {}}, {{3, 0, 0}, {2, 2, 6}, {}},
			       {{3, 2, 0}, {2, 2, 6}, {}}});
	expect_cut({4, 3, 6}, {{{0, 0, 0}, {4, 3, 1}, {}}, {{0, 0, 1}, {4, 3, 5}, {}}});
	expect_cut({2, 3, 1, 4}, {{{0, 0, 0, 0}, {1, 3, 1, 4}, {}}, {{1, 0, 0, 0}, {1, 3, 1, 4}, {}}});
}
TEST(View, NoGrid)
{
	expect_cut({4, 4}, {{{0, 0}, {1, 3}, {}}, {{0, 3}, {3, 1}, {}}, {{1, 0}, {3, 1}, {}}, {{1, 1}, {2, 2}, {}},
			    {{3, 1}, {1, 3}, {}}});
}
TEST(View, ManyRows)
{
	std::vector<Cut> cuts;
	for (uint64_t i = 0; i < 300; i++)
		cuts.push_back({{i * 2, 0}, {2, 3}, {}});
	expect_cut({600, 3}, cuts);
}
TEST(View, EmptyPieces) { expect_cut({4, 2}, {{{0, 0}, {4, 2}, {}}, {{4, 0}, {0, 2}, {}}}); }
// Longer than what is read at once, and runs long enough to be read by themselves.
TEST(View, Large)
{
	expect_cut({300, 5000}, {{{0, 0}, {300, 1000}, {}}, {{0, 1000}, {300, 4000}, {}}});
	expect_cut({6, 100000}, {{{0, 0}, {6, 40000}, {}}, {{0, 40000}, {6, 60000}, {}}});
}

TEST(View, AHoleIsRefused)
{
	Cutter c({4, 4}, {{{0, 0}, {2, 4}, {}}, {{3, 0}, {1, 4}, {}}});
	Set s;
	read_all(&s, c.files);
	Base b(s.get());
	View v;
	Error e;
	EXPECT_EQ(b.whole(&v, &e), -EBADMSG);
	EXPECT_TRUE(e.says("t: pieces hold 12 of 16 elements")) << e.text;
}

TEST(View, AFileThatBecameShorterIsAnError)
{
	Cutter c({4, 4}, {{{0, 0}, {2, 4}, {}}, {{2, 0}, {2, 4}, {}}});
	Set s;
	read_all(&s, c.files);
	Base b(s.get());
	View v;
	Error e;
	ASSERT_EQ(b.whole(&v, &e), 0);
	c.files[1].resize(c.files[1].size() - 1);
	Io io(c.files);
	std::string buf(view_size(v.v), '\0');
	EXPECT_EQ(view_read(v.v, &io, 0, buf.data(), buf.size(), &e), -EBADMSG);
	EXPECT_TRUE(e.says("t: f1 ends before")) << e.text;
	EXPECT_EQ(view_read(v.v, &io, 0, buf.data(), buf.size() - 16, &e), 0);	// the rest is fine
}

// ---- assets ------------------------------------------------------------------------------------

// name -> dtype and shape, from the JSON beside an asset, as far as the tests need it; the SHA-256
// is compared by tests/mount/export.sh, which has one.
TEST(View, Assets)
{
	for (const char *dir : {"dcp", "dcp_local", "dcp_safetensors", "dcp_hf", "hf_index", "safetensors", "torch_save"}) {
		SCOPED_TRACE(dir);
		Asset a(dir);
		Base b(a.get());
		Io io(a.files);
		View v;
		Error e;
		ASSERT_EQ(b.whole(&v, &e), 0) << e.text;
		const std::string got = all(v, io);
		in_parts(v, io, got);
		Read r(got);
		ASSERT_EQ(r->n_tensors, a->n_tensors);
		for (size_t i = 0; i < r->n_tensors; i++) {
			const fmt_tensor *x = &r->tensor[i], *y = &a->tensor[i];
			EXPECT_STREQ(x->name, y->name);
			EXPECT_EQ(x->dtype, y->dtype);
			EXPECT_EQ(list(x->shape, x->ndim), list(y->shape, y->ndim));
			// aligned, as readers want it
			EXPECT_EQ(x->piece[0].at % (x->dtype->bits / 8), 0u) << x->name;
		}
	}
}

TEST(View, SameContentSameBytes)
{
	std::string first;
	for (const char *dir : {"dcp", "dcp_local", "dcp_safetensors"}) {
		Asset a(dir);
		Base b(a.get());
		Io io(a.files);
		View v;
		Error e;
		ASSERT_EQ(b.whole(&v, &e), 0) << e.text;
		if (first.empty())
			first = all(v, io);
		EXPECT_EQ(all(v, io), first) << dir;
	}
	EXPECT_EQ(first.substr(8, 34), "{\"__metadata__\":{\"format\":\"pt\"},\"e");
	EXPECT_EQ((uint8_t)first[0] % 8, 0);
}

TEST(View, Strides)	// torch.save keeps transposed, sliced and expanded tensors as they are
{
	Asset a("torch_save");
	Base b(a.get());
	Io io(a.files);
	View v;
	Error e;
	ASSERT_EQ(b.whole(&v, &e), 0) << e.text;
	Read r(all(v, io));
	const std::string base = r.data("model.embed.weight");
	std::string t, every;
	for (int c = 0; c < 4; c++)
		for (int row = 0; row < 6; row++)
			t += base.substr((size_t)(row * 4 + c) * 4, 4);
	for (int row = 0; row < 6; row++)
		every += base.substr((size_t)row * 16, 4) + base.substr((size_t)row * 16 + 8, 4);
	EXPECT_EQ(r.data("model.transposed"), t);
	EXPECT_EQ(r.data("model.every_other"), every);
	EXPECT_EQ(r.data("model.rows"), base.substr(32, 32));
	EXPECT_EQ(r.data("model.expanded"), u32(0x40e00000) + u32(0x40e00000) + u32(0x40e00000));
}

TEST(View, WhatIsOddIsRefusedByName)
{
	Asset a("torch_odd");
	Base b(a.get());
	View v;
	Error e;
	EXPECT_EQ(b.whole(&v, &e), -ENOTSUP);
	EXPECT_TRUE(e.says("conj: ")) << e.text;
	view_pick p = {1, 2, 1, 0};	// conj, plain, sparse
	ASSERT_EQ(view_safetensors(b.b, &p, &v.v, &e), 0) << e.text;
	Io io(a.files);
	EXPECT_EQ(Read(all(v, io)).data("plain"), u64(0) + u64(1) + u64(2));
}

// torch.chunk: ceil(rows / ranks) each, the last ones fewer or none.
TEST(View, Reshard)
{
	Asset a("dcp");
	Base b(a.get());
	Io io(a.files);
	View v;
	Error e;
	ASSERT_EQ(b.whole(&v, &e), 0);
	Read whole(all(v, io));
	for (uint32_t ranks : {1, 2, 3, 4, 5, 7, 65536}) {
		std::map<std::string, std::string> sum;
		for (uint32_t r = 0; r < (ranks < 8 ? ranks : 8); r++) {
			View part;
			ASSERT_EQ(b.whole(&part, &e, ranks, r), 0) << e.text;
			const std::string got = all(part, io);
			in_parts(part, io, got);
			Read p(got);
			for (size_t i = 0; i < p->n_tensors; i++) {
				const std::string name = p->tensor[i].name;
				if (p->tensor[i].ndim)
					sum[name] += p.data(name);
				else
					EXPECT_EQ(p.data(name), whole.data(name)) << name;
			}
			uint64_t each = (6 + ranks - 1) / ranks;
			uint64_t rows = each * r >= 6 ? 0 : std::min(each, 6 - each * r);
			EXPECT_EQ(p.shape("layers.0.weight"), (V{rows, 4})) << ranks << " " << r;
		}
		for (const auto &[name, data] : sum)
			EXPECT_EQ(data, whole.data(name)) << name << " " << ranks;
	}
}

TEST(View, Split)
{
	Asset a("dcp");
	Base b(a.get());
	Io io(a.files);
	Error e;
	size_t *cut, n;
	ASSERT_EQ(view_split(b.b, 96, &cut, &n, &e), 0) << e.text;	// columns 48, uneven 24, weight 96, scalar 4
	ASSERT_EQ(n, 3u);
	EXPECT_EQ(V(cut, cut + 4), (V{0, 3, 4, 5}));
	for (size_t i = 0; i < n; i++) {
		View v;
		view_pick p = {cut[i], cut[i + 1], 1, 0};
		ASSERT_EQ(view_safetensors(b.b, &p, &v.v, &e), 0);
		EXPECT_EQ(Read(all(v, io))->n_tensors, cut[i + 1] - cut[i]);
	}
	View index;
	ASSERT_EQ(view_index(b.b, cut, n, &index.v, &e), 0);
	const std::string text = all(index, io);
	Set s;
	safetensors_index list;
	ASSERT_EQ(safetensors_index_read(s.get(), text.data(), text.size(), &list, &e), 0) << e.text;
	EXPECT_EQ(list.n, 5u);
	EXPECT_EQ(s->n_files, 3u);
	EXPECT_STREQ(s->file[2].name, "model-00003-of-00003.safetensors");
	EXPECT_NE(text.find("\"total_size\": 172"), std::string::npos) << text;
	free(list.v);
	free(cut);
	ASSERT_EQ(view_split(b.b, 1, &cut, &n, &e), 0);	// each larger than the limit, but the empty one
	EXPECT_EQ(n, 5u);
	free(cut);
}

// Read back by the reader of torch.save files: the same tensors, row-major, aligned.
TEST(View, Torch)
{
	for (const char *dir : {"dcp", "torch_save", "safetensors"}) {
		SCOPED_TRACE(dir);
		Asset a(dir);
		Base b(a.get());
		Io io(a.files);
		View v, st;
		Error e;
		ASSERT_EQ(view_torch(b.b, &v.v, &e), 0) << e.text;
		ASSERT_EQ(b.whole(&st, &e), 0) << e.text;
		const std::string got = all(v, io);
		Read want(all(st, io));
		in_parts(v, io, got);
		Set s;
		fmt_source src = fmt_memory(got.data(), got.size());
		ASSERT_EQ(torchfile_read(s.get(), s.file("f"), "", &src, &e), 0) << e.text;
		s.finish();
		ASSERT_EQ(s->n_tensors, a->n_tensors);
		for (size_t i = 0; i < s->n_tensors; i++) {
			const fmt_tensor *t = &s->tensor[i], *u = &a->tensor[i];
			EXPECT_STREQ(t->name, u->name);
			EXPECT_EQ(t->dtype, u->dtype);
			EXPECT_EQ(list(t->shape, t->ndim), list(u->shape, u->ndim));
			EXPECT_EQ(t->piece[0].refusal, nullptr);
			if (t->piece[0].length) {
				EXPECT_EQ(t->piece[0].at % 64, 0u);
			}
			EXPECT_EQ(got.substr(t->piece[0].at, t->piece[0].length), want.data(t->name));
		}
	}
}

TEST(View, NumPy)
{
	Asset a("dcp");
	Base b(a.get());
	Io io(a.files);
	Error e;
	for (size_t i = 0; i < a->n_tensors; i++) {
		View v;
		ASSERT_EQ(view_npy(b.b, i, &v.v, &e), 0) << e.text;
		const std::string got = all(v, io);
		size_t len = (uint8_t)got[8] | (size_t)(uint8_t)got[9] << 8;
		EXPECT_EQ(got.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
		EXPECT_EQ((len + 10) % 64, 0u);
		const std::string head = got.substr(10, len);
		EXPECT_EQ(head.back(), '\n');
		const std::string name = a->tensor[i].name;
		if (name == "layers.0.columns") {
			EXPECT_EQ(head.find("{'descr': '<u2', 'fortran_order': False, 'shape': (4, 6), }"), 0u) << head;
		}
		if (name == "scalar") {
			EXPECT_EQ(head.find("{'descr': '<f4', 'fortran_order': False, 'shape': (), }"), 0u) << head;
			EXPECT_EQ(got.substr(10 + len), u32(0x40a00000));
		}
		in_parts(v, io, got);
	}
}

// The item in the file is another than the metadata says: told when it is read.
TEST(View, AnItemThatIsAnother)
{
	Asset a("dcp");
	Base b(a.get());
	View v;
	Error e;
	ASSERT_EQ(b.whole(&v, &e), 0);
	for (std::string &f : a.files)
		for (size_t at = 0; (at = f.find("BFloat16Storage", at)) != std::string::npos; at++)
			f.replace(at, 15, "ComplexXStorage");
	Io io(a.files);
	std::string s(view_size(v.v), '\0');
	EXPECT_LT(view_read(v.v, &io, 0, s.data(), s.size(), &e), 0);
	EXPECT_EQ(io.held, 0);
	a.files[0].resize(100);
	Error e2;
	EXPECT_LT(view_read(v.v, &io, 0, s.data(), s.size(), &e2), 0);
	EXPECT_NE(std::string(e2.text), "");
}

TEST(View, NamesInJson)
{
	Asset a("safetensors");
	Base b(a.get());
	Io io(a.files);
	View v;
	Error e;
	ASSERT_EQ(b.whole(&v, &e), 0) << e.text;
	const std::string got = all(v, io);
	EXPECT_NE(got.find("\"\xc3\xa9\\u000a\\\"quoted\\\"\":{"), std::string::npos) << got;
	EXPECT_EQ(Read(got).data("\xc3\xa9\n\"quoted\""), u16(1) + u16(2));
}

} // namespace

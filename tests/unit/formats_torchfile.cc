// SPDX-License-Identifier: MIT
//
// torch.save files, written by PyTorch: names, shapes, strides, places; refusals by name.
#include "formats_test.hh"

namespace
{

struct File : Set {
	explicit File(std::string b, const char *prefix = "") : bytes(std::move(b))
	{
		const fmt_source s = fmt_memory(bytes.data(), bytes.size());
		err = torchfile_read(get(), file("f.pt"), prefix, &s, &e);
		if (!err)
			finish();
	}
	std::string bytes;
	Error e;
	int err;
};

TEST(Torchfile, NamesShapesAndPlaces)
{
	File f(asset("torch_save/model.pt"));
	ASSERT_EQ(f.err, 0) << f.e.text;
	EXPECT_EQ(f->n_tensors, 14u);

	fmt_tensor *t = f.find("model.embed.weight");
	ASSERT_TRUE(t);
	EXPECT_STREQ(t->dtype_name, "float32");
	EXPECT_EQ(list(t->shape, t->ndim), (V{6, 4}));
	EXPECT_EQ(t->piece[0].payload, FMT_RAW);
	EXPECT_EQ(t->piece[0].length, 96u);
	EXPECT_EQ(f.find("model.tied.weight")->piece[0].at, t->piece[0].at);
	EXPECT_EQ(f.find("model.rows")->piece[0].at, t->piece[0].at + 2 * 4 * 4);

	fmt_tensor *tr = f.find("model.transposed");
	EXPECT_EQ(tr->piece[0].payload, FMT_STRIDED);
	EXPECT_EQ(list(tr->piece[0].stride, 2), (V{1, 4}));
	EXPECT_EQ(list(f.find("model.expanded")->piece[0].stride, 1), V{0});
	EXPECT_EQ(f.find("model.expanded")->piece[0].length, 4u);

	EXPECT_EQ(f.find("model.scalar")->ndim, 0u);
	EXPECT_EQ(f.find("model.empty")->piece[0].length, 0u);
	EXPECT_STREQ(f.find("model.uint16")->dtype_name, "uint16");
	EXPECT_TRUE(f.find("optimizer.state.0.exp_avg"));
	EXPECT_TRUE(f.find("list.0")); // a Parameter
}

TEST(Torchfile, Prefix)
{
	File f(asset("torch_save/model.pt"), "model.pt:");
	EXPECT_TRUE(f.find("model.pt:list.0"));
}

TEST(Torchfile, WhatCannotBeReadIsNamed)
{
	File f(asset("torch_odd/odd.pt"));
	ASSERT_EQ(f.err, 0) << f.e.text;
	EXPECT_STREQ(f.find("sparse")->piece[0].refusal,
		     "a kind of tensor that is not supported: _rebuild_sparse_tensor");
	EXPECT_TRUE(f.find("conj")->piece[0].refusal);
	EXPECT_FALSE(f.find("plain")->piece[0].refusal);
}

TEST(Torchfile, OldFormat)
{
	File f(asset("torch_odd/old.pt"));
	EXPECT_EQ(f.err, -ENOTSUP);
	EXPECT_TRUE(f.e.says("before PyTorch 1.6"));
}

TEST(Torchfile, FlippedBitInThePickle)
{
	std::string b = asset("torch_save/model.pt");
	b[b.find("embed.weight")] ^= 1;
	File f(b);
	EXPECT_EQ(f.err, -EBADMSG);
	EXPECT_TRUE(f.e.says("CRC")) << f.e.text;
}

// Any byte changed: read or refused, never a crash, and never a place beyond the file.
TEST(Torchfile, AnyByteChanged)
{
	const std::string whole = asset("torch_save/model.pt");

	for (size_t i = 0; i < whole.size(); i += 3) {
		std::string b = whole;
		b[i] = (char)~b[i];
		File f(b);
		for (size_t k = 0; !f.err && k < f->n_tensors; k++)
			EXPECT_LE(f->tensor[k].piece[0].at + f->tensor[k].piece[0].length, b.size());
	}
}

TEST(Torchfile, DcpItem)
{
	const std::string b = asset("dcp/__0_0.distcp");
	const fmt_source file = fmt_memory(b.data(), b.size()), item = fmt_part(&file, 1577, 1577);
	Set s;
	Error e;

	ASSERT_EQ(dcp_item_read(s.get(), &item, &e), 0) << e.text;
	EXPECT_STREQ(s->tensor[0].dtype_name, "bfloat16");
	EXPECT_EQ(list(s->tensor[0].shape, 2), (V{4, 3}));
	EXPECT_EQ(s->tensor[0].piece[0].length, 24u);
}

} // namespace

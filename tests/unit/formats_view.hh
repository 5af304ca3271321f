// SPDX-License-Identifier: MIT
//
// What the tests of views share: files in memory, and the assets as sets.
#pragma once

#include <cstring>

#include "formats_test.hh"

using Files = std::vector<std::string>;

struct Io : view_io {
	explicit Io(const Files &f) : view_io{}, files(f), space(VIEW_SCRATCH)
	{
		ctx = this;
		scratch = space.data();
		get = [](void *c, uint32_t i, fmt_source *out) {
			Io *io = (Io *)c;
			io->held++;
			*out = fmt_memory(io->files[i].data(), io->files[i].size());
			return 0;
		};
		put = [](void *c, uint32_t) { ((Io *)c)->held--; };
	}
	const Files &files;
	std::vector<char> space;
	int held = 0;
};

struct View {
	~View() { view_free(v); }
	view *v = nullptr;
};

struct Base {
	explicit Base(const fmt_set *s) : set(s) { EXPECT_EQ(view_base_new(s, &b), 0); }
	~Base() { view_base_free(b); }
	int whole(View *v, Error *e, uint32_t ranks = 1, uint32_t rank = 0)
	{
		view_pick p = {0, set->n_tensors, ranks, rank};
		return view_safetensors(b, &p, &v->v, e);
	}
	const fmt_set *set;
	view_base *b = nullptr;
};

inline std::string all(const View &v, Io &io)
{
	std::string s(view_size(v.v), '\0');
	Error e;
	EXPECT_EQ(view_read(v.v, &io, 0, s.data(), s.size(), &e), 0) << e.text;
	EXPECT_EQ(io.held, 0);
	return s;
}

// Set and files of an asset; which reader.
struct Asset : Set {
	explicit Asset(const std::string &dir)
	{
		if (dir == "dcp" || dir == "dcp_safetensors")
			dcp({dir + "/.metadata"}, dir);
		else if (dir == "dcp_local")
			dcp({dir + "/__0.metadata", dir + "/__1.metadata"}, dir);
		else
			plain(dir);
	}
	void dcp(const std::vector<std::string> &meta, const std::string &dir)
	{
		for (const auto &m : meta) {
			const std::string b = asset(m);
			EXPECT_EQ(dcp_read(get(), b.data(), b.size(), &e), 0) << e.text;
		}
		finish();
		for (uint32_t i = 0; i < get()->n_files; i++) {
			files.push_back(asset(dir + "/" + get()->file[i].name));
			fmt_source s = fmt_memory(files[i].data(), files[i].size());
			if (dcp_wants_header(get(), i)) {
				EXPECT_EQ(dcp_read_header(get(), i, &s, &e), 0) << e.text;
			}
		}
	}
	void plain(const std::string &dir)
	{
		for (const char *name : {"model.safetensors", "model-00001-of-00002.safetensors",
					 "model-00002-of-00002.safetensors",
					 "shard-00001-model-00001-of-00001.safetensors",
					 "shard-00002-model-00001-of-00001.safetensors", "model.pt", "odd.pt"}) {
			if (!std::filesystem::exists(asset_path(dir + "/" + name)))
				continue;
			files.push_back(asset(dir + "/" + name));
			fmt_source s = fmt_memory(files.back().data(), files.back().size());
			bool pt = strstr(name, ".pt");
			EXPECT_EQ(pt ? torchfile_read(get(), file(name), "", &s, &e) :
				       safetensors_read(get(), file(name), &s, &e), 0) << e.text;
		}
		finish();
	}
	Error e;
	Files files;
};

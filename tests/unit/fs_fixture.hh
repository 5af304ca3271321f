// SPDX-License-Identifier: MIT
//
// A live tree without a kernel, on a store and a place of its own; killed and found again.
#pragma once

#include "tests/api/staging_fixture.hh"
#include "tests/unit/tree_shim.h"

// One worker's tree. What is destroyed is killed; the next one on the same ground replays.
class LiveTree {
public:
	explicit LiveTree(Ground &ground, bool start = false, bool first = false)
		: engine("posix"), store(engine, ground.store()), store_path(ground.store())
	{
		staging_opts o = {};
		err = staging_place_open(STAGING_ANY_NODE, ground.run().c_str(),
				io_store_id(store), 32ull << 30,
					 &place);
		o.store = store;
		o.engine = engine.e;
		o.place = place;
		o.budget_bytes = 512u << 20;
		o.notice = [](void *ctx, const char *text) {
			auto self = static_cast<LiveTree *>(ctx);
			std::lock_guard<std::mutex> hold(self->lock);
			self->notes.push_back(text);
		};
		o.ctx = this;
		if (!err)
			err = shim_open(&o, first, start, &fs);
	}
	LiveTree(const LiveTree &) = delete;
	LiveTree &operator=(const LiveTree &) = delete;
	~LiveTree()
	{
		kill();
		staging_place_close(&place);
	}
	void kill()
	{
		if (fs)
			shim_kill(fs);
		fs = nullptr;
	}
	staging *s() { return shim_staging(fs); }

	Engine engine;
	Store store;
	std::string store_path;
	staging_place place;
	struct fs *fs = nullptr;
	int err;
	std::mutex lock;
	std::vector<std::string> notes;
};

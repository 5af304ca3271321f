// SPDX-License-Identifier: MIT
// timeout: 300
//
// Two clients, each a short script of requests, and all ways in which a kernel may deliver them: every interleaving of
// the two is tried. A RELEASE is sent and not waited for, as the kernel does after close(2). Whatever comes between: the
// store gets the names in the order of the closes and renames, a marker never before the whole of what was closed
// before it, and nothing is lost.
#include "tests/unit/fs_mounted.hh"

namespace
{

const std::string shard(5000, 's');

class Interleave : public Mounted
{
protected:
	using Script = std::vector<std::function<void()>>;

	static void SetUpTestSuite()
	{
		Mounted::SetUpTestSuite();
		shim_watch_names(gets_name, nullptr);
	}
	static void TearDownTestSuite()
	{
		shim_watch_names(nullptr, nullptr);
		Mounted::TearDownTestSuite();
	}
	void SetUp() override
	{
		Mounted::SetUp();
		std::lock_guard<std::mutex> hold(lock);
		published.clear();
		broken.clear();
	}
	// scripts(a, b) makes both scripts for names that end in tail. b_after: the second begins when so many steps of
	// the first are done. done() is called when both have ended.
	void all(size_t n_a, size_t n_b, const std::function<void(Script &a, Script &b)> &scripts,
		 const std::function<void()> &done = {}, size_t b_after = 0)
	{
		std::string order = std::string(n_a, 'A') + std::string(n_b, 'B');
		do {
			if (order.find('B') < b_after)
				continue;
			tail = "-" + order;
			SCOPED_TRACE(order);
			Script a, b;
			scripts(a, b);
			ASSERT_EQ(a.size(), n_a);
			ASSERT_EQ(b.size(), n_b);
			size_t at = 0, bt = 0;
			for (char who : order)
				who == 'A' ? a[at++]() : b[bt++]();
			let_go();
			for (uint64_t u : released)
				EXPECT_EQ(k.await(u), 0);
			released.clear();
			if (done)
				done();
			n_tried++;
		} while (!HasFailure() && std::next_permutation(order.begin(), order.end()));
		drain();
		std::lock_guard<std::mutex> hold(lock);
		EXPECT_EQ(broken, "") << "published before what was closed before it";
	}
	// The steps of a program. RELEASE is not waited for.
	void create(Script &s, const std::string &n, File *f)
	{
		s.push_back([=] { EXPECT_EQ(k.create(dir, n, f, O_WRONLY | O_CREAT | O_EXCL), 0); });
	}
	void write(Script &s, const File *f, const std::string &what, uint64_t off = 0)
	{
		s.push_back([=] { EXPECT_EQ(k.write(*f, what, off), 0); });
	}
	void flush(Script &s, const File *f)
	{
		s.push_back([=] { EXPECT_EQ(k.flush(*f), 0); });
	}
	// made: the name that the store then has, in its place among all of this interleaving
	void release(Script &s, const File *f, const std::string &made = "")
	{
		s.push_back([=] {
			released.push_back(k.send(FUSE_RELEASE, f->id, Client::releasing(*f)));
			if (!made.empty())
				wanted.push_back(made);
		});
	}
	// The same of a large file whose close was never flushed: it is being answered, and does not get on, until a
	// request waits for it.
	void release_late(Script &s, const File *f, const std::string &made = "")
	{
		s.push_back([=] {
			shim_hold_allocate(1);
			released.push_back(k.send(FUSE_RELEASE, f->id, Client::releasing(*f)));
			shim_await_held(1);
			if (!made.empty())
				wanted.push_back(made);
			k.sent = [this](uint64_t unique) {
				while (!shim_barred(t->fs) && !k.is_answered(unique))
					usleep(100);
				if (!k.is_answered(unique))
					let_go();
			};
		});
	}
	void let_go()
	{
		k.sent = nullptr;
		shim_let_go();
	}
	void rename(Script &s, const std::string &from, const std::string &to)
	{
		s.push_back([=] {
			EXPECT_EQ(k.rename(dir, from, dir, to), 0);
			wanted.push_back(to);
		});
	}
	void whole(Script &s, const std::string &n, const std::string &what, File *f)
	{
		create(s, n, f);
		write(s, f, what);
		flush(s, f);
		release(s, f, n);
	}
	// Of the names that were made, the store got each, in this order.
	void expect_order()
	{
		std::lock_guard<std::mutex> hold(lock);
		std::vector<std::string> got;
		for (auto &n : published)
			if (std::find(wanted.begin(), wanted.end(), n) != wanted.end())
				got.push_back(n);
		EXPECT_EQ(got, wanted);
	}
	void expect_stored(const std::string &what, const std::function<std::string(const std::string &n)> &bytes)
	{
		size_t n = 0;
		for (auto &at : std::filesystem::directory_iterator(stored(""))) {
			std::string file = at.path().filename();
			if (file.compare(0, what.size(), what))
				continue;
			n++;
			EXPECT_EQ(read_file(at.path()), bytes(file)) << file;
		}
		EXPECT_EQ(n, n_tried);
	}

	std::string tail;
	std::vector<uint64_t> released;
	std::vector<std::string> wanted;
	size_t n_tried = 0;
	File fa, fb;

	inline static std::mutex lock;
	inline static std::vector<std::string> published;
	inline static std::string broken;

private:
	// On the publisher's thread, before the store has the name: "marker-X" says that "shard-X" is there.
	static void gets_name(void *, int dirfd, const char *n)
	{
		std::string bytes(shard.size() + 1, 0);
		bool ok = true;
		if (!strncmp(n, "marker-", 7)) {
			Fd fd(openat(dirfd, ("shard" + std::string(n + 6)).c_str(), O_RDONLY));
			ok = fd.get() >= 0 && pread(fd.get(), bytes.data(), bytes.size(), 0) == (ssize_t)shard.size() &&
			     !bytes.compare(0, shard.size(), shard);
		}
		std::lock_guard<std::mutex> hold(lock);
		published.push_back(n);
		if (!ok)
			broken += std::string(n) + " ";
	}
};

TEST_F(Interleave, TwoFilesAreClosed)
{
	all(4, 4, [&](Script &a, Script &b) {
		whole(a, "a" + tail, "one", &fa);
		whole(b, "b" + tail, "two", &fb);
	});
	EXPECT_EQ(n_tried, 70u);
	expect_order();
	expect_stored("a", [](const std::string &) { return "one"; });
	expect_stored("b", [](const std::string &) { return "two"; });
}

TEST_F(Interleave, AFileIsClosedAndAnotherRenamedIntoPlace)
{
	all(5, 4, [&](Script &a, Script &b) {
		create(a, "tmp" + tail, &fa);
		write(a, &fa, shard);
		flush(a, &fa);
		release(a, &fa);
		rename(a, "tmp" + tail, "shard" + tail);
		whole(b, "other" + tail, "bytes", &fb);
	});
	EXPECT_EQ(n_tried, 126u);
	expect_order();
	expect_stored("shard", [](const std::string &) { return shard; });
	expect_stored("other", [](const std::string &) { return "bytes"; });
	EXPECT_EQ(k.list(dir).find("tmp"), std::string::npos);
}

// The second knows that the first's close(2) has returned: its RELEASE was sent, and nobody waited for it.
TEST_F(Interleave, AMarkerFollowsTheCloseOfAShard)
{
	all(6, 5, [&](Script &a, Script &b) {
		whole(a, "shard" + tail, shard, &fa);
		a.push_back([&] { EXPECT_EQ(k.lookup(dir, "shard" + tail), 0); });
		a.push_back([&] { EXPECT_EQ(k.chmod(fa.id, 0600), 0); });
		create(b, "marker.tmp" + tail, &fb);
		write(b, &fb, "done");
		flush(b, &fb);
		release(b, &fb);
		rename(b, "marker.tmp" + tail, "marker" + tail);
	}, {}, 4);
	EXPECT_EQ(n_tried, 21u);
	expect_order();
	expect_stored("marker-", [](const std::string &) { return "done"; });
	expect_stored("shard", [](const std::string &) { return shard; });
}

TEST_F(Interleave, AMarkerFollowsTheRenameOfAShard)
{
	all(7, 4, [&](Script &a, Script &b) {
		create(a, "tmp" + tail, &fa);
		write(a, &fa, shard.substr(0, 100));
		write(a, &fa, shard.substr(100), 100);
		flush(a, &fa);
		release(a, &fa);
		rename(a, "tmp" + tail, "shard" + tail);
		a.push_back([&] { EXPECT_EQ(k.chmod(dir, 0755), 0); });
		whole(b, "marker" + tail, "done", &fb);
	}, {}, 6);
	EXPECT_EQ(n_tried, 5u);
	expect_order();
	expect_stored("marker", [](const std::string &) { return "done"; });
}

// The first's RELEASE is under way as long as it can be.
TEST_F(Interleave, AMarkerWaitsForACloseThatTakesLong)
{
	const std::string large(1 << 20, 's');
	all(4, 4, [&](Script &a, Script &b) {
		drain();
		create(a, "large" + tail, &fa);
		write(a, &fa, large);
		release_late(a, &fa, "large" + tail);
		a.push_back([&] { EXPECT_EQ(k.lookup(dir, "large" + tail), 0); });
		b.push_back([&] {
			EXPECT_EQ(k.mkdir(dir, "dir" + tail), 0);
			EXPECT_EQ(k.rmdir(dir, "dir" + tail), 0);
		});
		EXPECT_NE(k.put(dir, "done.tmp" + tail, "done"), 0u);
		rename(b, "done.tmp" + tail, "half" + tail);
		b.push_back([&] { EXPECT_EQ(k.unlink(dir, "none"), -ENOENT); });
		rename(b, "half" + tail, "done" + tail);
	});
	EXPECT_EQ(n_tried, 70u);
	// a name that went again at once was perhaps never there
	wanted.erase(std::remove_if(wanted.begin(), wanted.end(), [](auto &n) { return !n.compare(0, 4, "half"); }), wanted.end());
	expect_order();
	expect_stored("large", [&](const std::string &) { return large; });
	expect_stored("done", [](const std::string &) { return "done"; });
}

// The directory is made and moved by the other.
TEST_F(Interleave, ADirectoryIsRenamedWhileAFileInItIsWritten)
{
	std::vector<std::string> moved;
	all(4, 2, [&](Script &a, Script &b) {
		auto d = std::make_shared<uint64_t>();
		EXPECT_EQ(k.mkdir(dir, "tmp" + tail), 0);
		*d = k.id;
		a.push_back([=] { EXPECT_EQ(k.create(*d, "f", &fa, O_WRONLY | O_CREAT | O_EXCL), 0); });
		write(a, &fa, shard);
		flush(a, &fa);
		release(a, &fa);
		b.push_back([=] { EXPECT_EQ(k.rename(dir, "tmp" + tail, dir, "half" + tail), 0); });
		b.push_back([=] { EXPECT_EQ(k.rename(dir, "half" + tail, dir, "dir" + tail), 0); });
	}, [&] { moved.push_back("dir" + tail); });
	EXPECT_EQ(moved.size(), 15u);
	for (auto &d : moved)
		EXPECT_EQ(read_file(stored(d + "/f")), shard) << d;
}

TEST_F(Interleave, AReaderSeesWhatWasWrittenWhenItReads)
{
	std::string now;
	bool there = false, open = false;
	all(5, 4, [&](Script &a, Script &b) {
		there = open = false;
		now = "";
		a.push_back([&] {
			EXPECT_EQ(k.create(dir, "f" + tail, &fa, O_WRONLY | O_CREAT | O_EXCL), 0);
			there = true;
		});
		a.push_back([&] { EXPECT_EQ(k.write(fa, now = "by"), 0); });
		a.push_back([&] {
			EXPECT_EQ(k.write(fa, "tes", 2), 0);
			now = "bytes";
		});
		flush(a, &fa);
		release(a, &fa);
		b.push_back([&] {
			EXPECT_EQ(k.open_name(dir, "f" + tail, O_RDONLY, &fb), there ? 0 : -ENOENT);
			open = there;
		});
		for (int i = 0; i < 2; i++)
			b.push_back([&] {
				if (open) {
					EXPECT_EQ(k.read_all(fb), now);
				}
			});
		b.push_back([&] {
			if (open) {
				EXPECT_EQ(k.release(fb), 0);
			}
		});
	});
	EXPECT_EQ(n_tried, 126u);
	expect_stored("f", [](const std::string &) { return "bytes"; });
}

// Who opened it before keeps the old version; who comes after sees the new one grow.
TEST_F(Interleave, AFileIsWrittenAnewWhileAnotherReadsIt)
{
	std::string now, mine;
	bool old = false;
	all(5, 4, [&](Script &a, Script &b) {
		EXPECT_NE(k.put(dir, "f" + tail, "old"), 0u);
		now = "old";
		a.push_back([&] {
			EXPECT_EQ(k.open_name(dir, "f" + tail, O_WRONLY | O_TRUNC, &fa), 0);
			now = "";
		});
		a.push_back([&] { EXPECT_EQ(k.write(fa, now = "ne"), 0); });
		a.push_back([&] {
			EXPECT_EQ(k.write(fa, "wer", 2), 0);
			now = "newer";
		});
		flush(a, &fa);
		release(a, &fa);
		b.push_back([&] {
			EXPECT_EQ(k.open_name(dir, "f" + tail, O_RDONLY, &fb), 0);
			old = now == "old";
		});
		for (int i = 0; i < 2; i++)
			b.push_back([&] { EXPECT_EQ(k.read_all(fb), old ? "old" : now); });
		b.push_back([&] { EXPECT_EQ(k.release(fb), 0); });
	});
	EXPECT_EQ(n_tried, 126u);
	expect_stored("f", [](const std::string &) { return "newer"; });
}

TEST_F(Interleave, TwoWriteHalvesOfOneFile)
{
	all(4, 4, [&](Script &a, Script &b) {
		EXPECT_NE(k.put(dir, "f" + tail, "0123456789"), 0u);
		a.push_back([&] { EXPECT_EQ(k.open_name(dir, "f" + tail, O_WRONLY, &fa), 0); });
		write(a, &fa, "aaaaa");
		flush(a, &fa);
		release(a, &fa);
		b.push_back([&] { EXPECT_EQ(k.open_name(dir, "f" + tail, O_WRONLY, &fb), 0); });
		write(b, &fb, "bbbbb", 5);
		flush(b, &fb);
		release(b, &fb);
	}, [&] { EXPECT_EQ(k.get(dir, "f" + tail), "aaaaabbbbb"); });
	EXPECT_EQ(n_tried, 70u);
	expect_stored("f", [](const std::string &) { return "aaaaabbbbb"; });
}

// Who opened the name before the rename writes a file that has none then.
TEST_F(Interleave, AFileIsWrittenAnewAndAnotherRenamedOverIt)
{
	std::map<std::string, std::string> want;
	bool renamed = false, second = false;
	all(5, 4, [&](Script &a, Script &b) {
		EXPECT_NE(k.put(dir, "f" + tail, "old"), 0u);
		renamed = second = false;
		create(a, "tmp" + tail, &fa);
		write(a, &fa, "renamed");
		flush(a, &fa);
		release(a, &fa);
		a.push_back([&] {
			EXPECT_EQ(k.rename(dir, "tmp" + tail, dir, "f" + tail), 0);
			renamed = true;
		});
		b.push_back([&] {
			EXPECT_EQ(k.open_name(dir, "f" + tail, O_WRONLY | O_TRUNC, &fb), 0);
			second = renamed;
		});
		write(b, &fb, "written");
		flush(b, &fb);
		release(b, &fb);
	}, [&] {
		want["f" + tail] = second ? "written" : "renamed";
		EXPECT_EQ(k.get(dir, "f" + tail), want["f" + tail]);
	});
	EXPECT_EQ(n_tried, 126u);
	expect_stored("f", [&](const std::string &n) { return want[n]; });
}

TEST_F(Interleave, AFileIsRemovedWhileItIsWritten)
{
	std::map<std::string, bool> removed;
	bool there = false;
	all(4, 2, [&](Script &a, Script &b) {
		there = false;
		a.push_back([&] {
			EXPECT_EQ(k.create(dir, "f" + tail, &fa, O_WRONLY | O_CREAT | O_EXCL), 0);
			there = true;
		});
		write(a, &fa, "bytes");
		flush(a, &fa);
		release(a, &fa);
		b.push_back([&] {
			EXPECT_EQ(k.unlink(dir, "f" + tail), there ? 0 : -ENOENT);
			removed["f" + tail] = there;
		});
		b.push_back([&] {
			EXPECT_EQ(k.lookup(dir, "f" + tail), there && !removed["f" + tail] ? 0 : -ENOENT);
		});
	});
	EXPECT_EQ(removed.size(), 15u);
	for (auto &[n, gone] : removed)
		EXPECT_EQ(is_stored(n), !gone) << n;
}

TEST_F(Interleave, AFileGetsAnotherNameAndLosesItsFirst)
{
	all(4, 2, [&](Script &a, Script &b) {
		create(a, "f" + tail, &fa);
		write(a, &fa, "bytes");
		flush(a, &fa);
		release(a, &fa);
		b.push_back([&] { EXPECT_EQ(k.link(fa.id, dir, "g" + tail), 0); });
		b.push_back([&] { EXPECT_EQ(k.unlink(dir, "f" + tail), 0); });
	}, [&] { EXPECT_EQ(attr_of("g" + tail).nlink, 1u); }, 1);
	EXPECT_EQ(n_tried, 10u);
	expect_stored("g", [](const std::string &) { return "bytes"; });
	EXPECT_EQ(k.list(dir).find("f-"), std::string::npos);
}

// One program, two descriptors: the version is whole when the second is closed.
TEST_F(Interleave, TwoDescriptorsOfOneFileAreClosed)
{
	all(4, 3, [&](Script &a, Script &b) {
		EXPECT_EQ(k.create(dir, "f" + tail, &fa, O_WRONLY | O_CREAT | O_EXCL), 0);
		EXPECT_EQ(k.open(fa.id, O_WRONLY, &fb), 0);
		write(a, &fa, "aa");
		write(a, &fa, "AA", 2);
		flush(a, &fa);
		release(a, &fa);
		write(b, &fb, "bb", 4);
		flush(b, &fb);
		release(b, &fb);
	});
	EXPECT_EQ(n_tried, 35u);
	expect_stored("f", [](const std::string &) { return "aaAAbb"; });
	for (auto &n : published)
		EXPECT_EQ(std::count(published.begin(), published.end(), n), 1) << n << " in two versions";
}

} // namespace

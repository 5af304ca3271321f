// SPDX-License-Identifier: MIT
//
// io_write_file against a model: whatever the source's shape, engine, chunk and depth,
// the file reads back as the source, its holes are holes, and seen() saw it once.
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <tuple>

#include "tests/api/io_fixture.hh"

namespace
{

std::string one_shot(const std::string &bytes)
{
	XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
	char text[IO_CHECKSUM_LEN];

	snprintf(text, sizeof(text), "xxh3:%016llx%016llx", (unsigned long long)h.high64,
		 (unsigned long long)h.low64);
	return text;
}

void add(void *ctx, const void *bytes, size_t len)
{
	io_sum_add(static_cast<io_sum *>(ctx), bytes, len);
}

struct Sum {
	io_sum *m = io_sum_new();
	~Sum() { io_sum_free(m); }
	std::string text() const
	{
		char t[IO_CHECKSUM_LEN];
		io_sum_text(m, t);
		return t;
	}
};

void random_extents(Source &src, size_t size, std::mt19937_64 &rng)
{
	uint64_t off = rng() % 3 ? 0 : rng() % (size + 1);

	while (off < size) {
		uint64_t len = 1 + rng() % (rng() % 2 ? 9000 : 70000);

		len = std::min<uint64_t>(len, size - off);
		src.data(off, len, rng());
		off += len + (rng() % 4 ? rng() % 30000 : rng() % 3);
	}
}

// A hole of the source that covers whole blocks has no blocks in the file either.
unsigned expect_holes_kept(int fd, const Source &src)
{
	uint64_t past = 0;
	unsigned holes = 0;

	for (auto &x : src.extents()) {
		uint64_t from = (past + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN;
		uint64_t to = x.off / IO_ALIGN * IO_ALIGN;

		if (from < to) {
			EXPECT_EQ(lseek(fd, (off_t)from, SEEK_HOLE), (off_t)from);
			EXPECT_GE(lseek(fd, (off_t)from, SEEK_DATA), (off_t)to);
			holes++;
		}
		past = x.off + x.len;
	}
	return holes;
}

class Write : public ::testing::TestWithParam<std::tuple<const char *, unsigned, unsigned, bool>>
{
protected:
	const char *kind() const { return std::get<0>(GetParam()); }
	unsigned chunk() const { return std::get<1>(GetParam()); }
	unsigned depth() const { return std::get<2>(GetParam()); }
	bool direct() const { return std::get<3>(GetParam()); }
	TempDir dir;
};

TEST_P(Write, EqualsModel)
{
	Engine e(kind(), nullptr, chunk(), depth());
	Store s(e, dir.path);
	std::mt19937_64 rng(chunk() * 1000 + depth());
	static const size_t sizes[] = {0, 1, 511, 4095, 4096, 4097, 8192, 65536, 65537};
	unsigned holes = 0;

	ASSERT_EQ(s.err, 0);
	for (unsigned round = 0; round < 24; round++) {
		size_t size = round < std::size(sizes) ? sizes[round] : rng() % 250000;
		Source src(size);
		Sum sum;
		bool d;
		Fd fd(io_tmp_create(s, round, direct(), &d));

		ASSERT_GE(fd.get(), 0);
		EXPECT_EQ(d, direct());
		random_extents(src, size, rng);
		io_source in = src.get();
		in.seen = add;
		in.ctx = sum.m;
		ASSERT_EQ(io_write_file(e.q, fd.get(), d, &in), 0) << "size " << size;
		EXPECT_EQ(io_queue_inflight(e.q), 0u);
		EXPECT_EQ(sum.text(), one_shot(src.bytes())) << "size " << size;
		ASSERT_SAME(read_fd(fd.get()), src.bytes()) << "size " << size;
		holes += expect_holes_kept(fd.get(), src);
		char text[IO_CHECKSUM_LEN];
		ASSERT_EQ(io_sum_file(fd.get(), text), 0);
		EXPECT_EQ(sum.text(), text);
	}
	EXPECT_GT(holes, 10u);
	EXPECT_EQ(e.counts().errors, 0u);
	EXPECT_GT(e.counts().write_bytes, 0u);
}

TEST_P(Write, ContinuesShortWrites)
{
	Engine e(kind(), "7:2:short", chunk(), depth());
	Store s(e, dir.path);
	Source src(333333);
	Sum sum;
	bool d;
	Fd fd(io_tmp_create(s, 1, direct(), &d));

	src.data(0, 100001, 1);
	src.data(150000, 333333 - 150000, 2);
	io_source in = src.get();
	in.seen = add;
	in.ctx = sum.m;
	ASSERT_EQ(io_write_file(e.q, fd.get(), d, &in), 0);
	EXPECT_GT(e.counts().faults, 0u);
	EXPECT_SAME(read_fd(fd.get()), src.bytes());
	EXPECT_EQ(sum.text(), one_shot(src.bytes()));
}

TEST_P(Write, EveryFailingWriteIsTold)
{
	unsigned long total;
	{
		Engine e(kind(), nullptr, chunk(), depth());
		Store s(e, dir.path);
		Source src(100000);
		bool d;
		Fd fd(io_tmp_create(s, 1, direct(), &d));
		src.data(0, 100000, 3);
		io_source in = src.get();
		ASSERT_EQ(io_write_file(e.q, fd.get(), d, &in), 0);
		total = e.counts().ops;
		ASSERT_GT(total, 2u);
	}
	for (unsigned long n = 2; n <= total; n++) { // 1 is the create
		std::string fault = "1:@" + std::to_string(n) + (n % 2 ? ":eio" : ":enospc");
		Engine e(kind(), fault.c_str(), chunk(), depth());
		Store s(e, dir.path);
		Source src(100000);
		bool d;
		Fd fd(io_tmp_create(s, 1, direct(), &d));

		ASSERT_GE(fd.get(), 0);
		src.data(0, 100000, 3);
		io_source in = src.get();
		EXPECT_EQ(io_write_file(e.q, fd.get(), d, &in), n % 2 ? -EIO : -ENOSPC);
		EXPECT_EQ(e.counts().faults, 1u);
		EXPECT_EQ(e.counts().errors, 1u);
		EXPECT_EQ(io_queue_inflight(e.q), 0u);
		// the queue is as good as new
		Fd again(io_tmp_create(s, 2, direct(), &d));
		ASSERT_EQ(io_write_file(e.q, again.get(), d, &in), 0);
		EXPECT_SAME(read_fd(again.get()), src.bytes());
	}
}

std::string param_name(const ::testing::TestParamInfo<Write::ParamType> &p)
{
	return std::string(std::get<0>(p.param)) + "_" + std::to_string(std::get<1>(p.param)) +
	       "_" + std::to_string(std::get<2>(p.param)) +
	       (std::get<3>(p.param) ? "_direct" : "_cached");
}

INSTANTIATE_TEST_SUITE_P(All, Write,
			 ::testing::Combine(::testing::Values("uring", "posix"),
					    ::testing::Values(4096u, 20480u, 65536u),
					    ::testing::Values(1u, 3u, 16u), ::testing::Bool()),
			 param_name);

class WriteKind : public ::testing::TestWithParam<const char *>
{
protected:
	TempDir dir;
};

TEST_P(WriteKind, StopsWhenAsked)
{
	int left = 5;
	Engine e(GetParam(), nullptr, 4096, 4);
	Store s(e, dir.path);
	Source src(1 << 20);
	bool d;
	Fd fd(io_tmp_create(s, 1, true, &d));

	src.data(0, 1 << 20, 1);
	io_source in = src.get();
	in.stop = [](void *c) { return (*static_cast<int *>(c))-- <= 0; };
	in.ctx = &left;
	EXPECT_EQ(io_write_file(e.q, fd.get(), d, &in), -ECANCELED);
	EXPECT_EQ(io_queue_inflight(e.q), 0u);
	EXPECT_LT(e.counts().write_bytes, 1u << 20);
}

TEST_P(WriteKind, HolesOfTheMappingStayUntouched)
{
	const size_t size = 8 << 20;
	Engine e(GetParam());
	Store s(e, dir.path);
	Sum sum;
	Fd mem(memfd_create("holes", MFD_CLOEXEC));
	std::string bytes(size, '\0'), part = pattern(5000, 9);
	struct stat before, after;
	bool d;
	Fd fd(io_tmp_create(s, 1, true, &d));

	ASSERT_EQ(ftruncate(mem.get(), size), 0);
	ASSERT_EQ(pwrite(mem.get(), part.data(), part.size(), 4 << 20), 5000);
	memcpy(&bytes[4 << 20], part.data(), part.size());
	fstat(mem.get(), &before);
	void *map = mmap(nullptr, size, PROT_READ, MAP_SHARED, mem.get(), 0);
	io_extent x = {4 << 20, 5000};
	io_source in = {};
	in.base = map;
	in.size = size;
	in.data = &x;
	in.n_data = 1;
	in.seen = add;
	in.ctx = sum.m;
	ASSERT_EQ(io_write_file(e.q, fd.get(), d, &in), 0);
	munmap(map, size);
	fstat(mem.get(), &after);
	EXPECT_EQ(before.st_blocks, after.st_blocks);
	EXPECT_EQ(sum.text(), one_shot(bytes));
	EXPECT_SAME(read_fd(fd.get()), bytes);
	fstat(fd.get(), &after);
	EXPECT_LE(after.st_blocks * 512, 16384);
}

TEST_P(WriteKind, SparseTerabyteIsOneTruncate)
{
	Engine e(GetParam());
	Store s(e, dir.path);
	bool d;
	Fd fd(io_tmp_create(s, 1, true, &d));
	io_source in = {};
	struct stat st;
	auto before = e.counts().ops;

	in.size = 1ull << 40;
	ASSERT_EQ(io_write_file(e.q, fd.get(), d, &in), 0);
	EXPECT_EQ(e.counts().ops, before + 1);
	fstat(fd.get(), &st);
	EXPECT_EQ((uint64_t)st.st_size, in.size);
	EXPECT_EQ(st.st_blocks, 0);
}

TEST_P(WriteKind, RefusesExtentsThatAreNone)
{
	Engine e(GetParam());
	Store s(e, dir.path);
	bool d;
	Fd fd(io_tmp_create(s, 1, true, &d));
	Source src(8192);
	auto with = [&](std::vector<io_extent> x, uint64_t size = 8192) {
		io_source in = src.get();
		in.size = size;
		in.data = x.data();
		in.n_data = (unsigned)x.size();
		return io_write_file(e.q, fd.get(), d, &in);
	};

	EXPECT_EQ(with({{4096, 10}, {0, 10}}), -EINVAL);
	EXPECT_EQ(with({{0, 10}, {9, 10}}), -EINVAL);
	EXPECT_EQ(with({{UINT64_MAX - 5, 10}}), -EINVAL);
	EXPECT_EQ(with({{5, UINT64_MAX - 2}}), -EINVAL);
	EXPECT_EQ(with({}, UINT64_MAX), -EFBIG);
	EXPECT_EQ(with({{0, 0}, {4000, 0}, {9000, 50}}), 0); // empty, and behind the end
}

TEST_P(WriteKind, LeavesDirectWhereAWriteIsRefused)
{
	Engine e(GetParam(), nullptr, 4096, 8);
	Store s(e, dir.path);
	bool d;
	Fd fd(io_tmp_create(s, 1, true, &d));
	std::string bytes = pattern(200000, 4), space(210000, 0);
	Sum sum;

	if (!d)
		GTEST_SKIP() << "no O_DIRECT here";
	// memory no device takes: not even aligned to 2
	char *odd = &space[1] + (reinterpret_cast<uintptr_t>(&space[1]) % 2 ? 0 : 1);
	memcpy(odd, bytes.data(), bytes.size());
	io_extent x = {0, bytes.size()};
	io_source in = {};
	in.base = odd;
	in.size = bytes.size();
	in.data = &x;
	in.n_data = 1;
	in.seen = add;
	in.ctx = sum.m;
	ASSERT_EQ(io_write_file(e.q, fd.get(), d, &in), 0);
	EXPECT_SAME(read_fd(fd.get()), bytes);
	EXPECT_EQ(sum.text(), one_shot(bytes));
	EXPECT_EQ(e.notes_with("O_DIRECT"), 1);
	EXPECT_EQ(fcntl(fd.get(), F_GETFL) & O_DIRECT, 0);
	Fd next(io_tmp_create(s, 2, true, &d));
	EXPECT_FALSE(d); // not asked for again
	EXPECT_EQ(e.notes_with("O_DIRECT"), 1);
}

TEST_P(WriteKind, QueuesOfManyThreads)
{
	Engine e(GetParam(), nullptr, 16384, 4);
	Store s(e, dir.path);
	std::atomic<int> good{0};
	std::vector<std::thread> threads;

	for (unsigned t = 0; t < 4; t++) {
		io_queue *q; // opened here, used there
		ASSERT_EQ(io_queue_open(e.e, &q), 0);
		threads.emplace_back([&, t, q] {
			for (unsigned i = 0; i < 8; i++) {
				Source src(123457 + t);
				bool d;
				Fd fd(io_tmp_create(s, t * 100 + i, true, &d));

				src.data(0, 123457 + t, t * 100 + i);
				io_source in = src.get();
				good += !io_write_file(q, fd.get(), d, &in) &&
					read_fd(fd.get()) == src.bytes();
			}
			io_queue_close(q);
		});
	}
	for (auto &t : threads)
		t.join();
	EXPECT_EQ(good, 32);
	EXPECT_EQ(e.counts().write_bytes, 32u * ((123457u + 4095) / 4096 * 4096));
}

INSTANTIATE_TEST_SUITE_P(All, WriteKind, ::testing::Values("uring", "posix"));

} // namespace

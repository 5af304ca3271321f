// SPDX-License-Identifier: MIT
//
// cuda_dl against the fake driver: what is registered and undone, in which context, and that waits
// wait.
#include "tools/libcairn/cuda_dl.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <string>
#include <thread>
#include <vector>

#include "fake_cuda.hh"
#include "test.hh"

namespace {

constexpr size_t MiB = 1 << 20;

struct Pages {
	explicit Pages(size_t bytes, int prot = PROT_READ | PROT_WRITE) : n(bytes)
	{
		p = static_cast<char *>(mmap(nullptr, n, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
					     -1, 0));
		if (p == MAP_FAILED)
			throw std::bad_alloc();
	}
	~Pages() { munmap(p, n); }
	char *p;
	size_t n;
};

class CudaDl : public testing::Test {
protected:
	void SetUp() override { fake.reset(); }
	void TearDown() override
	{
		EXPECT_EQ(0u, fake.count("violations"));
		EXPECT_EQ(0u, fake.count("registered_now"));
		EXPECT_EQ(0u, fake.count("events_now"));
		EXPECT_EQ(0u, fake.count("allocated_now"));
	}
	FakeCuda &fake = fake_cuda();
	struct cuda_dl &cu = fake.cu;
};

// Runs this program again for one test that is off otherwise; its exit code.
int again(const char *test, const std::string &env)
{
	std::string self = std::filesystem::read_symlink("/proc/self/exe");
	std::string cmd = env + " '" + self + "' --gtest_also_run_disabled_tests --gtest_filter=" + test +
			  " >/dev/null 2>&1";
	int st = system(cmd.c_str());
	return WIFEXITED(st) ? WEXITSTATUS(st) : -1;
}

TEST(CudaDlAlone, DISABLED_no_driver)
{
	struct cuda_dl cu;
	int err = cuda_dl_open(&cu);
	if (err == 0 || err == -ENODEV)	// this machine has one
		return;
	EXPECT_EQ(-ENOENT, err);
	EXPECT_NE(nullptr, strstr(cuda_dl_error(), "no CUDA driver"));
	EXPECT_EQ(nullptr, cu.host_register);
}

TEST(CudaDlAlone, DISABLED_leaks)
{
	FakeCuda &fake = fake_cuda();
	static Context *ctx = new Context(0);	// with it the registration would go
	static char memory[4096];
	ASSERT_NE(nullptr, ctx);
	struct cuda_dl_pin pin;
	ASSERT_EQ(0, cuda_dl_register(&fake.cu, memory, sizeof(memory), &pin));
}

TEST_F(CudaDl, the_judge_can_say_no)
{
	EXPECT_EQ(0, again("CudaDlAlone.DISABLED_no_driver", "LD_LIBRARY_PATH="));
	EXPECT_EQ(86, again("CudaDlAlone.DISABLED_leaks", ""));
}

TEST_F(CudaDl, opens_new_and_old_drivers)
{
	struct cuda_dl old, gone;
	EXPECT_EQ(2, cu.devices);
	EXPECT_EQ(12040, cu.version);
	setenv("FAKE_CUDA_OLD", "1", 1);
	EXPECT_EQ(0, cuda_dl_open(&old));
	unsetenv("FAKE_CUDA_OLD");
	EXPECT_EQ(0, memcmp(&old, &cu, sizeof(cu)));	// the same forms of the calls
	setenv("FAKE_CUDA_DEVICES", "0", 1);
	EXPECT_EQ(-ENODEV, cuda_dl_open(&gone));
	setenv("FAKE_CUDA_DEVICES", "2", 1);
	EXPECT_EQ(nullptr, gone.init);
	fake.fail("cuInit=999");
	EXPECT_EQ(-EIO, cuda_dl_open(&gone));
	EXPECT_NE(nullptr, strstr(cuda_dl_error(), "cuInit"));
}

TEST_F(CudaDl, registers_once_and_undoes_it)
{
	Context ctx(0);
	Pages m(4 * MiB);
	struct cuda_dl_pin pin;
	ASSERT_EQ(0, cuda_dl_register(&cu, m.p, m.n, &pin));
	EXPECT_TRUE(pin.pinned);
	EXPECT_EQ(1u, pin.calls);
	EXPECT_EQ(1u, fake.count("registered_now"));
	cuda_dl_unregister(&cu, &pin);
	EXPECT_FALSE(pin.pinned);
	cuda_dl_unregister(&cu, &pin);	// nothing any more
	EXPECT_EQ(1u, fake.count("cuMemHostUnregister"));
}

TEST_F(CudaDl, what_another_registered_stays_his)
{
	Context ctx(0);
	Pages m(4 * MiB);
	struct cuda_dl_pin pin;
	ASSERT_EQ(CUDL_OK, cu.host_register(m.p, m.n, CUDL_REGISTER_PORTABLE));
	ASSERT_EQ(0, cuda_dl_register(&cu, m.p, m.n, &pin));
	EXPECT_TRUE(pin.pinned);
	EXPECT_EQ(0u, pin.calls);
	cuda_dl_unregister(&cu, &pin);
	EXPECT_EQ(1u, fake.count("registered_now"));
	ASSERT_EQ(CUDL_OK, cu.host_unregister(m.p));
}

TEST_F(CudaDl, pieces_of_64_GiB)
{
	Context ctx(0);
	Pages m(2 * CUDA_DL_PIECE + MiB, PROT_NONE);
	struct cuda_dl_pin pin;
	ASSERT_EQ(0, cuda_dl_register(&cu, m.p, m.n, &pin));
	EXPECT_EQ(3u, pin.calls);
	EXPECT_EQ(3u, fake.count("registered_now"));

	// across two pieces: the driver would refuse one copy
	std::string bytes = pattern(64 << 10, 1);
	DeviceMemory d(bytes);
	struct cuda_dl_marks marks = {};
	char *at = m.p + CUDA_DL_PIECE - (32 << 10);
	ASSERT_EQ(0, mprotect(at, 64 << 10, PROT_READ | PROT_WRITE));
	ASSERT_EQ(0, cuda_dl_copy_from(&cu, &pin, at, d.at(), d.n, nullptr));
	ASSERT_EQ(0, cuda_dl_mark(&cu, &marks, nullptr));
	ASSERT_EQ(0, cuda_dl_marks_wait(&cu, &marks));
	EXPECT_EQ(bytes, std::string(at, bytes.size()));
	EXPECT_EQ(2u, fake.count("cuMemcpyDtoHAsync"));
	ASSERT_EQ(0, cuda_dl_copy_to(&cu, &pin, d.to(), at, d.n, nullptr));
	EXPECT_EQ(2u, fake.count("cuMemcpyHtoDAsync"));
	ASSERT_EQ(0, cuda_dl_mark(&cu, &marks, nullptr));
	ASSERT_EQ(0, cuda_dl_marks_wait(&cu, &marks));
	cuda_dl_marks_free(&cu, &marks);
	cuda_dl_unregister(&cu, &pin);

	Pages tiny(4096);
	EXPECT_EQ(-EFBIG, cuda_dl_register(&cu, tiny.p, (CUDA_DL_PIECES + 1) * CUDA_DL_PIECE, &pin));
	EXPECT_FALSE(pin.pinned);
}

TEST_F(CudaDl, a_piece_that_fails_undoes_the_others)
{
	Context ctx(0);
	Pages m(2 * CUDA_DL_PIECE + MiB, PROT_NONE);
	struct cuda_dl_pin pin;
	fake.fail("cuMemHostRegister=2@2");
	EXPECT_EQ(-ENOMEM, cuda_dl_register(&cu, m.p, m.n, &pin));
	EXPECT_FALSE(pin.pinned);
	EXPECT_EQ(0u, fake.count("registered_now"));
	EXPECT_STREQ("cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY (2): told by the fake", cuda_dl_error());
}

TEST_F(CudaDl, the_context_is_the_callers_or_the_active_primary)
{
	struct cuda_dl_primaries p = {};
	bool pushed;
	EXPECT_EQ(-ENODEV, cuda_dl_enter(&cu, &p, -1, &pushed));	// none is made up
	EXPECT_FALSE(pushed);
	EXPECT_EQ(0u, fake.count("cuDevicePrimaryCtxRetain"));
	{
		Context other(1, false);	// active, but not this thread's
		cudl_device dev = -1;
		ASSERT_EQ(0, cuda_dl_enter(&cu, &p, -1, &pushed));
		EXPECT_TRUE(pushed);
		cu.ctx_device(&dev);
		EXPECT_EQ(101, dev);
		cuda_dl_leave(&cu, pushed);
		Context mine(0);
		ASSERT_EQ(0, cuda_dl_enter(&cu, &p, -1, &pushed));
		EXPECT_FALSE(pushed);
		ASSERT_EQ(0, cuda_dl_enter(&cu, &p, 0, &pushed));
		EXPECT_FALSE(pushed);
		ASSERT_EQ(0, cuda_dl_enter(&cu, &p, 1, &pushed));
		EXPECT_TRUE(pushed);
		cuda_dl_leave(&cu, pushed);
	}
	EXPECT_EQ(-ENODEV, cuda_dl_enter(&cu, &p, 7, &pushed));
	EXPECT_EQ(3u, fake.count("cuDevicePrimaryCtxRetain"));	// two by the test, one kept
	cuda_dl_release(&cu, &p);
	EXPECT_EQ(3u, fake.count("cuDevicePrimaryCtxRelease"));
}

TEST_F(CudaDl, tells_memory_apart)
{
	enum cuda_dl_memory what;
	int device;
	Context ctx(1);
	DeviceMemory d("12345678");
	void *pinned;
	static char plain[16];
	ASSERT_EQ(CUDL_OK, cu.host_alloc(&pinned, 4096));
	ASSERT_EQ(0, cuda_dl_where(&cu, d.at(4), &what, &device));
	EXPECT_EQ(CUDA_DL_DEVICE, what);
	EXPECT_EQ(1, device);
	ASSERT_EQ(0, cuda_dl_where(&cu, pinned, &what, &device));
	EXPECT_EQ(CUDA_DL_PINNED, what);
	ASSERT_EQ(0, cuda_dl_where(&cu, plain, &what, &device));
	EXPECT_EQ(CUDA_DL_PLAIN, what);
	cu.host_free(pinned);
	fake.fail("cuPointerGetAttribute=201");
	EXPECT_EQ(-EIO, cuda_dl_where(&cu, plain, &what, &device));
	EXPECT_TRUE(cuda_dl_lacks_context());
	fake.fail("");
}

TEST_F(CudaDl, waits_for_every_stream_noted)
{
	Context ctx(0);
	Pages m(8 * MiB);
	struct cuda_dl_pin pin;
	struct cuda_dl_marks marks = {};
	std::vector<cudl_stream> streams(6);
	std::string bytes = pattern(MiB, 7);
	DeviceMemory d(bytes);
	ASSERT_EQ(0, cuda_dl_register(&cu, m.p, m.n, &pin));
	for (auto &s : streams)
		ASSERT_EQ(CUDL_OK, cu.stream_create(&s, CUDL_STREAM_NON_BLOCKING));
	setenv("FAKE_CUDA_DELAY_US", "20000", 1);
	for (int round = 0; round < 2; round++) {
		memset(m.p, 0, m.n);
		for (size_t i = 0; i < streams.size(); i++) {
			ASSERT_EQ(0, cuda_dl_copy_from(&cu, &pin, m.p + i * MiB, d.at(), d.n, streams[i]));
			ASSERT_EQ(0, cuda_dl_mark(&cu, &marks, streams[i]));
		}
		ASSERT_EQ(0, cuda_dl_marks_wait(&cu, &marks));
		for (size_t i = 0; i < streams.size(); i++)
			EXPECT_EQ(bytes, std::string(m.p + i * MiB, MiB)) << i;
	}
	setenv("FAKE_CUDA_DELAY_US", "1000", 1);
	EXPECT_EQ(6u, fake.count("cuEventCreate"));	// used again
	cuda_dl_marks_free(&cu, &marks);
	for (auto &s : streams)
		cu.stream_destroy(s);
	cuda_dl_unregister(&cu, &pin);
}

TEST_F(CudaDl, a_lost_context_is_an_error_and_stays_one)
{
	Context ctx(0);
	Pages m(MiB);
	struct cuda_dl_marks marks = {};
	std::string bytes = pattern(4096, 1);
	DeviceMemory d(bytes);
	setenv("FAKE_CUDA_LOST", "1", 1);
	EXPECT_EQ(-EIO, cuda_dl_copy_from(&cu, nullptr, m.p, d.at(), d.n, nullptr));
	EXPECT_NE(nullptr, strstr(cuda_dl_error(), "719"));
	EXPECT_EQ(-EIO, cuda_dl_mark(&cu, &marks, nullptr));
	unsetenv("FAKE_CUDA_LOST");
	fake.reset();
	EXPECT_EQ(0, cuda_dl_marks_wait(&cu, &marks));
	cuda_dl_marks_free(&cu, &marks);
}

// One handle, a stream in each thread: what one thread queued is waited for, though another has marked
// the same handle since.
TEST_F(CudaDl, the_per_thread_stream_of_each_thread)
{
	Context ctx(0);
	std::string slow = pattern(MiB, 1), fast = pattern(MiB, 2);
	DeviceMemory a(slow), b(fast);
	Pages m(2 * MiB);
	struct cuda_dl_marks marks = {};
	auto copy = [&](char *to, const void *from, const char *delay) {
		setenv("FAKE_CUDA_DELAY_US", delay, 1);
		std::thread([&] {
			Context mine(0);
			ASSERT_EQ(0, cuda_dl_copy_from(&cu, nullptr, to, from, MiB, CUDL_STREAM_PER_THREAD));
			ASSERT_EQ(0, cuda_dl_mark(&cu, &marks, CUDL_STREAM_PER_THREAD));
		}).join();
	};
	copy(m.p, a.at(), "300000");
	copy(m.p + MiB, b.at(), "1000");
	setenv("FAKE_CUDA_DELAY_US", "1000", 1);
	EXPECT_EQ(2u, marks.n);
	ASSERT_EQ(0, cuda_dl_marks_wait(&cu, &marks));
	EXPECT_EQ(0, memcmp(m.p, slow.data(), MiB));
	EXPECT_EQ(0, memcmp(m.p + MiB, fast.data(), MiB));
	ASSERT_EQ(0, cuda_dl_mark(&cu, &marks, CUDL_STREAM_LEGACY));	// what NULL is
	ASSERT_EQ(0, cuda_dl_marks_wait(&cu, &marks));
	cuda_dl_marks_free(&cu, &marks);
}

} // namespace

// SPDX-License-Identifier: MIT
//
// libcairn on a plain directory, with the fake driver and without: what a trainer relies on. On a
// mount: tests/mount/libcairn.sh.
#include "tools/libcairn/cairn.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda.hh"
#include "test.hh"
#include "tests/lib/locks.h"

extern "C" int stage_stand_in(const char *tmpfs, const struct cairn_options *options, cairn_stage **stage);

namespace {

constexpr size_t MiB = 1 << 20;

std::string names_in(const std::string &dir)
{
	std::vector<std::string> v;
	std::string all;
	for (auto &e : std::filesystem::directory_iterator(dir))
		v.push_back(e.path().filename());
	std::sort(v.begin(), v.end());
	for (auto &s : v)
		all += s + " ";
	return all;
}

// A FUSE filesystem whose attributes all give this error; 0: those of the real one.
int xattr_error;

} // namespace

extern "C" int statfs(const char *path, struct statfs *out) noexcept
{
	long err = syscall(SYS_statfs, path, out);
	if (!err && xattr_error)
		out->f_type = 0x65735546;
	return (int)err;
}

extern "C" ssize_t getxattr(const char *path, const char *name, void *value, size_t size) noexcept
{
	if (!xattr_error)
		return syscall(SYS_getxattr, path, name, value, size);
	errno = xattr_error;
	return -1;
}

namespace {

// Every test ends with nothing left registered, no event, no file beside the shards.
class Cairn : public testing::Test {
protected:
	void SetUp() override
	{
		fake.reset();
		std::filesystem::create_directory(dir());
	}
	void TearDown() override
	{
		EXPECT_EQ(0, cairn_stage_close(stage)) << cairn_error();
		EXPECT_EQ(0u, fake.count("violations"));
		EXPECT_EQ(0u, fake.count("registered_now"));
		ctx.reset();
		EXPECT_EQ(0u, fake.count("events_now"));
		EXPECT_EQ(0u, fake.count("allocated_now"));
		EXPECT_EQ(std::string::npos, names_in(dir()).find(".cairn-"));
	}
	void open(unsigned flags = 0, int device = 0, uint64_t idle = 0)
	{
		struct cairn_options o = {};
		o.size = sizeof(o);
		o.flags = flags;
		o.device = device;
		o.idle_bytes = idle;
		o.notice = [](void *arg, const char *text) {
			EXPECT_EQ(0u, locks_held());
			static_cast<std::vector<std::string> *>(arg)->push_back(text);
		};
		o.notice_arg = &notices;
		ASSERT_EQ(0, cairn_stage_open(dir().c_str(), &o, &stage)) << cairn_error();
	}
	// A trainer's thread has a context, from before the stage to after it.
	void context(int ordinal, bool current = true) { ctx = std::make_unique<Context>(ordinal, current); }
	std::string dir() const { return tmp / "ckpt"; }
	std::string path(const std::string &name) const { return dir() + "/" + name; }
	cairn_shard *create(const std::string &name, uint64_t size, unsigned flags = 0)
	{
		cairn_shard *s = nullptr;
		EXPECT_EQ(0, cairn_shard_create(stage, path(name).c_str(), size, flags, &s)) << cairn_error();
		return s;
	}
	void save(const std::string &name, const std::string &bytes)
	{
		cairn_shard *s = create(name, bytes.size());
		ASSERT_NE(nullptr, s);
		ASSERT_EQ(0, cairn_shard_copy(s, 0, bytes.data(), bytes.size(), nullptr)) << cairn_error();
		ASSERT_EQ(0, cairn_shard_commit(s, bytes.size())) << cairn_error();
	}
	struct cairn_stats stats()
	{
		struct cairn_stats st;
		EXPECT_EQ(0, cairn_stage_stats(stage, &st, sizeof(st)));
		return st;
	}
	std::string device_of(const std::string &name)
	{
		char text[64];
		int n = cairn_device(path(name).c_str(), text, sizeof(text));
		return n < 0 ? "none" : text;
	}

	FakeCuda &fake = fake_cuda();
	TempDir tmp;
	cairn_stage *stage = nullptr;
	std::unique_ptr<Context> ctx;
	std::vector<std::string> notices;
};

// ---- names ----

TEST_F(Cairn, a_file_appears_whole_at_the_commit)
{
	open(CAIRN_NO_CUDA);
	std::string bytes = pattern(3 * MiB + 5, 1);
	cairn_shard *s = create("a", 4 * MiB);
	EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(cairn_shard_data(s)) % 4096);
	EXPECT_EQ(CAIRN_OWN, cairn_shard_kind(s));
	memcpy(cairn_shard_data(s), bytes.data(), 5);
	ASSERT_EQ(0, cairn_shard_copy(s, 5, bytes.data() + 5, bytes.size() - 5, nullptr));
	EXPECT_EQ("", names_in(dir()));
	ASSERT_EQ(0, cairn_shard_commit(s, bytes.size())) << cairn_error();
	EXPECT_EQ(bytes, read_file(path("a")));
	EXPECT_EQ("a ", names_in(dir()));
	EXPECT_EQ(0, cairn_wait(path("a").c_str(), -1)) << cairn_error();
	EXPECT_EQ(0, cairn_wait(dir().c_str(), 0)) << cairn_error();
	EXPECT_EQ(nullptr, cairn_stage_mount(stage));
	EXPECT_EQ(1u, stats().shards);
	EXPECT_EQ(bytes.size(), stats().bytes_written);
	EXPECT_EQ(0u, stats().own);	// no cairnfs here
}

TEST_F(Cairn, overwriting_replaces_the_name)
{
	open();
	std::string longest(255, 'n');
	for (auto &name : {std::string("a"), longest}) {
		save(name, pattern(MiB, 1));
		Fd old(::open(path(name).c_str(), O_RDONLY));
		save(name, pattern(MiB, 2));
		EXPECT_EQ(pattern(MiB, 2), read_file(path(name)));
		std::string before(MiB, 0);
		ASSERT_EQ((ssize_t)MiB, pread(old.get(), before.data(), MiB, 0));
		EXPECT_EQ(pattern(MiB, 1), before);
	}
	ASSERT_EQ(0, symlink("a", path("link").c_str()));
	save("link", "not followed");
	EXPECT_EQ(pattern(MiB, 2), read_file(path("a")));
	EXPECT_EQ("not followed", read_file(path("link")));
	EXPECT_EQ("a link " + longest + " ", names_in(dir()));
}

TEST_F(Cairn, excl_refuses_a_name_that_exists)
{
	open();
	cairn_shard *s = create("a", 10, CAIRN_EXCL), *t = create("a", 10, CAIRN_EXCL);
	ASSERT_EQ(0, cairn_shard_commit(s, 3));
	EXPECT_EQ(-EEXIST, cairn_shard_commit(t, 10));
	EXPECT_NE(nullptr, strstr(cairn_error(), "a"));
	EXPECT_EQ(3u, std::filesystem::file_size(path("a")));
}

TEST_F(Cairn, mode_and_umask)
{
	open();
	mode_t old = umask(027);
	save("a", "x");
	umask(old);
	struct stat st;
	ASSERT_EQ(0, stat(path("a").c_str(), &st));
	EXPECT_EQ(0640u, st.st_mode & 07777);
}

TEST_F(Cairn, abort_leaves_nothing)
{
	open();
	EXPECT_EQ(0, cairn_shard_abort(create("a", MiB)));
	EXPECT_EQ(0, cairn_shard_abort(nullptr));
	EXPECT_EQ("", names_in(dir()));
	EXPECT_EQ(0u, stats().shards);
}

TEST_F(Cairn, a_path_may_come_later_and_change)
{
	open();
	cairn_shard *s;
	ASSERT_EQ(0, cairn_shard_create(stage, nullptr, 4, 0, &s));
	EXPECT_EQ(-EINVAL, cairn_shard_commit(s, 4));
	ASSERT_EQ(0, cairn_shard_set_path(s, path("a").c_str()));
	EXPECT_EQ(-ENOENT, cairn_shard_set_path(s, path("no/b").c_str()));
	memcpy(cairn_shard_data(s), "abcd", 4);
	ASSERT_EQ(0, cairn_shard_commit(s, 4));
	EXPECT_EQ("abcd", read_file(path("a")));
}

TEST_F(Cairn, relative_paths_mean_the_directory_of_the_create)
{
	open();
	cairn_shard *s;
	auto was = std::filesystem::current_path();
	std::filesystem::current_path(dir());
	ASSERT_EQ(0, cairn_shard_create(stage, "a", 1, 0, &s)) << cairn_error();
	std::filesystem::current_path(was);
	ASSERT_EQ(0, cairn_shard_commit(s, 0));
	EXPECT_EQ("a ", names_in(dir()));
}

TEST_F(Cairn, errors_say_what_to_do)
{
	struct cairn_stats st;
	struct cairn_options o = {};
	cairn_stage *none;
	cairn_shard *s;
	char buf[4];
	open();
	EXPECT_EQ(-ENOENT, cairn_stage_open(path("no").c_str(), nullptr, &none));
	EXPECT_NE(nullptr, strstr(cairn_error(), "create the directory"));
	EXPECT_EQ(nullptr, none);
	EXPECT_EQ(-EINVAL, cairn_stage_open(dir().c_str(), &o, &none));	// no size
	o.size = sizeof(o);
	o.flags = 0x80;
	EXPECT_EQ(-EINVAL, cairn_stage_open(dir().c_str(), &o, &none));
	write_file(path("file"), "x");
	EXPECT_EQ(-ENOTDIR, cairn_stage_open(path("file").c_str(), nullptr, &none));
	EXPECT_EQ(-ENOENT, cairn_shard_create(stage, path("no/a").c_str(), 1, 0, &s));
	EXPECT_EQ(-EISDIR, cairn_shard_create(stage, dir().c_str(), 1, 0, &s));
	EXPECT_EQ(-EISDIR, cairn_shard_create(stage, path("a/").c_str(), 1, 0, &s));
	EXPECT_EQ(-EINVAL, cairn_shard_create(stage, "", 1, 0, &s));
	EXPECT_EQ(-ENAMETOOLONG, cairn_shard_create(stage, path(std::string(256, 'n')).c_str(), 1, 0, &s));
	EXPECT_EQ(-EFBIG, cairn_shard_create(stage, path("a").c_str(), UINT64_MAX, 0, &s));
	EXPECT_EQ(-ENOMEM, cairn_shard_create(stage, path("a").c_str(), 1ull << 60, 0, &s));
	EXPECT_EQ(nullptr, s);
	s = create("a", 10);
	EXPECT_EQ(-EINVAL, cairn_shard_copy(s, 8, "abc", 3, nullptr));
	EXPECT_EQ(-EINVAL, cairn_shard_copy(s, UINT64_MAX, "abc", 3, nullptr));
	EXPECT_EQ(0, cairn_shard_copy(s, 10, "", 0, nullptr));
	EXPECT_EQ(-EINVAL, cairn_shard_commit(s, 11));
	EXPECT_EQ(-EBUSY, cairn_stage_close(stage));
	EXPECT_EQ(0, cairn_shard_abort(s));
	EXPECT_EQ(-ENOENT, cairn_wait(path("no").c_str(), 0));
	EXPECT_EQ(-ENOENT, cairn_load(stage, path("no").c_str(), 0, buf, 1, nullptr));
	EXPECT_EQ(-ENODATA, cairn_load(stage, path("file").c_str(), 0, buf, 2, nullptr));
	EXPECT_EQ(-ENODATA, cairn_device(path("file").c_str(), buf, sizeof(buf)));
	EXPECT_EQ(0xcbf43926u, cairn_crc32(cairn_crc32(0, "1234", 4), "56789", 5));
	EXPECT_EQ(0, cairn_stage_stats(stage, &st, 8));	// a caller of an older version
	EXPECT_EQ(-EINVAL, cairn_stage_trim(nullptr));
	EXPECT_EQ(0, cairn_stage_close(nullptr));
}

// What a mount cannot tell is not what another filesystem says: that one is synced instead.
TEST_F(Cairn, an_error_of_the_mount_is_no_answer)
{
	std::string file = path("file");
	write_file(file, "x");
	for (int err : {ENODATA, EOPNOTSUPP, EPERM, EINVAL}) {
		xattr_error = err;
		EXPECT_EQ(0, cairn_wait(file.c_str(), 0)) << strerror(err);
	}
	for (int err : {EIO, ESTALE, ECONNABORTED, ENOTCONN, ETIMEDOUT, EACCES, EMFILE}) {
		xattr_error = err;
		EXPECT_EQ(-err, cairn_wait(file.c_str(), 0)) << strerror(err);
		EXPECT_EQ(-err, cairn_wait(file.c_str(), -1)) << strerror(err);
	}
	xattr_error = 0;
}

TEST_F(Cairn, device_recorded)
{
	open(CAIRN_NO_CUDA);
	char tiny[2];
	write_file(path("probe"), "x");
	if (setxattr(path("probe").c_str(), "user.x", "y", 1, 0))
		GTEST_SKIP() << "no user xattrs in " << dir();
	save("cpu", "x");
	EXPECT_EQ("cpu", device_of("cpu"));
	EXPECT_EQ(-ERANGE, cairn_device(path("cpu").c_str(), tiny, sizeof(tiny)));
	cairn_shard *s = create("said", 1);
	EXPECT_EQ(-EINVAL, cairn_shard_device(s, std::string(300, 'x').c_str()));
	EXPECT_EQ(0, cairn_shard_device(s, "xpu:3"));
	ASSERT_EQ(0, cairn_shard_commit(s, 1));
	EXPECT_EQ("xpu:3", device_of("said"));
	s = create("none", 1);	// filled through its memory: nobody knows from where
	ASSERT_EQ(0, cairn_shard_commit(s, 1));
	EXPECT_EQ("none", device_of("none"));
}

// ---- memory ----

TEST_F(Cairn, a_steady_trainer_maps_and_registers_twice)
{
	context(0);
	open();
	uint64_t registrations = 0, mapped = 0;
	for (int step = 0; step < 10; step++) {
		std::vector<cairn_shard *> v;
		for (int i = 0; i < 5; i++) {	// sizes that change a little
			v.push_back(create(std::to_string(step) + "." + std::to_string(i),
					   (i + 1) * 3 * MiB - 100 * step));
		}
		v.push_back(create("small" + std::to_string(step), 1000 + step));
		for (auto *s : v)
			ASSERT_EQ(0, cairn_shard_commit(s, 100));
		if (step == 1) {
			registrations = stats().registrations;
			mapped = stats().mapped;
		}
	}
	EXPECT_EQ(6u, mapped);
	EXPECT_EQ(6u, registrations);
	EXPECT_EQ(mapped, stats().mapped);
	EXPECT_EQ(registrations, stats().registrations);
	EXPECT_EQ(registrations, fake.count("cuMemHostRegister"));
	EXPECT_EQ(stats().buffer_bytes, stats().registered_bytes);
	EXPECT_TRUE(notices.empty());
}

TEST_F(Cairn, memory_of_sizes_that_nobody_asks_for_goes)
{
	open(CAIRN_NO_CUDA);
	ASSERT_EQ(0, cairn_shard_abort(create("a", 64 * MiB)));
	for (int i = 0; i < 100; i++)
		ASSERT_EQ(0, cairn_shard_abort(create("a", 4 * MiB)));
	EXPECT_EQ(4 * MiB, stats().buffer_bytes);
	EXPECT_EQ(2u, stats().mapped);
	EXPECT_EQ(0, cairn_stage_trim(stage));
	EXPECT_EQ(0u, stats().buffers);
}

TEST_F(Cairn, idle_bytes_limits_what_is_kept)
{
	open(CAIRN_NO_CUDA, 0, 8 * MiB);
	cairn_shard *a = create("a", 6 * MiB), *b = create("b", 6 * MiB);
	ASSERT_EQ(0, cairn_shard_abort(a));
	EXPECT_EQ(2u, stats().buffers);
	ASSERT_EQ(0, cairn_shard_abort(b));
	EXPECT_EQ(1u, stats().buffers);
	ASSERT_EQ(0, cairn_shard_abort(create("c", 32 * MiB)));
	EXPECT_GE(8 * MiB, stats().buffer_bytes);
}

TEST_F(Cairn, registration_that_fails_is_told_once)
{
	context(0);
	open();
	fake.fail("cuMemHostRegister=2");
	std::string bytes = pattern(MiB, 3);
	DeviceMemory d(bytes);
	for (int i = 0; i < 3; i++) {
		cairn_shard *s = create("a", MiB), *t = create("b", MiB);
		ASSERT_EQ(0, cairn_shard_copy(s, 0, d.at(), d.n, nullptr)) << cairn_error();
		ASSERT_EQ(0, cairn_shard_copy(t, 0, d.at(), d.n, nullptr)) << cairn_error();
		ASSERT_EQ(0, cairn_shard_commit(s, d.n));
		ASSERT_EQ(0, cairn_shard_commit(t, d.n));
		EXPECT_EQ(bytes, read_file(path("a")));
	}
	ASSERT_EQ(1u, notices.size());
	EXPECT_NE(std::string::npos, notices[0].find("CUDA_ERROR_OUT_OF_MEMORY"));
	EXPECT_EQ(2u, stats().unregistered);
	EXPECT_EQ(0u, stats().registered_bytes);
	EXPECT_EQ(2u, fake.count("cuMemHostRegister"));	// not tried again for each copy
}

TEST_F(Cairn, already_registered_is_registered)
{
	context(0);
	open();
	fake.fail("cuMemHostRegister=712");
	save("a", pattern(MiB, 1));
	fake.fail("");
	EXPECT_TRUE(notices.empty());
	EXPECT_EQ(0u, stats().registrations);
	ASSERT_EQ(0, cairn_stage_trim(stage));
	EXPECT_EQ(0u, fake.count("cuMemHostUnregister"));
}

// ---- devices ----

TEST_F(Cairn, copies_from_a_device_are_waited_for)
{
	context(0);
	open();
	setenv("FAKE_CUDA_DELAY_US", "30000", 1);
	cudl_stream s1, s2;
	ASSERT_EQ(CUDL_OK, fake.cu.stream_create(&s1, CUDL_STREAM_NON_BLOCKING));
	ASSERT_EQ(CUDL_OK, fake.cu.stream_create(&s2, CUDL_STREAM_NON_BLOCKING));
	for (int step = 0; step < 3; step++) {
		std::string bytes = pattern(3 * MiB, step);
		DeviceMemory d(bytes);
		cairn_shard *s = create("a", bytes.size());
		ASSERT_EQ(0, cairn_shard_copy(s, 0, d.at(), MiB, s1)) << cairn_error();
		ASSERT_EQ(0, cairn_shard_copy(s, MiB, d.at(MiB), MiB, s2)) << cairn_error();
		ASSERT_EQ(0, cairn_shard_copy(s, 2 * MiB, d.at(2 * MiB), MiB, nullptr)) << cairn_error();
		if (step == 1) {
			ASSERT_EQ(0, cairn_shard_sync(s));
			EXPECT_EQ(0, memcmp(bytes.data(), cairn_shard_data(s), bytes.size()));
		}
		ASSERT_EQ(0, cairn_shard_commit(s, bytes.size())) << cairn_error();
		EXPECT_EQ(bytes, read_file(path("a")));
	}
	cairn_shard *s = create("b", 3 * MiB);	// memory goes back only when nothing writes to it
	DeviceMemory d(pattern(MiB, 9));
	ASSERT_EQ(0, cairn_shard_copy(s, 0, d.at(), MiB, s1));
	ASSERT_EQ(0, cairn_shard_abort(s));
	ASSERT_EQ(0, cairn_stage_trim(stage));
	setenv("FAKE_CUDA_DELAY_US", "1000", 1);
	EXPECT_EQ(10 * MiB, stats().bytes_device);
	EXPECT_EQ(0u, stats().bytes_host);
	EXPECT_EQ(1u, stats().registrations);
	EXPECT_TRUE(device_of("a") == "cuda:0" || device_of("a") == "none") << device_of("a");
	fake.cu.stream_destroy(s1);
	fake.cu.stream_destroy(s2);
}

TEST_F(Cairn, pinned_host_memory_is_copied_in_the_streams_order)
{
	context(0);
	open();
	std::string bytes = pattern(MiB, 4);
	DeviceMemory d(bytes);
	void *pinned;
	cudl_stream stream;
	ASSERT_EQ(CUDL_OK, fake.cu.host_alloc(&pinned, MiB));
	ASSERT_EQ(CUDL_OK, fake.cu.stream_create(&stream, CUDL_STREAM_NON_BLOCKING));
	setenv("FAKE_CUDA_DELAY_US", "20000", 1);
	ASSERT_EQ(CUDL_OK, fake.cu.copy_dtoh(pinned, d.p, MiB, stream));
	cairn_shard *s = create("a", MiB);
	ASSERT_EQ(0, cairn_shard_copy(s, 0, pinned, MiB, stream)) << cairn_error();
	memset(pinned, 0, MiB);	// done at the return
	setenv("FAKE_CUDA_DELAY_US", "1000", 1);
	ASSERT_EQ(0, cairn_shard_commit(s, MiB));
	EXPECT_EQ(bytes, read_file(path("a")));
	EXPECT_EQ(MiB, stats().bytes_host);
	fake.cu.stream_destroy(stream);
	fake.cu.host_free(pinned);
}

TEST_F(Cairn, a_thread_without_context_and_a_second_device)
{
	open();
	std::string zero = pattern(MiB, 0), one = pattern(MiB, 1);
	Context a(0);
	DeviceMemory d0(zero);
	Context b(1);
	DeviceMemory d1(one);
	std::thread([&] {
		cairn_shard *s = create("a", 2 * MiB);
		ASSERT_EQ(0, cairn_shard_copy(s, 0, d0.at(), MiB, nullptr)) << cairn_error();
		ASSERT_EQ(0, cairn_shard_copy(s, MiB, d1.at(), MiB, nullptr)) << cairn_error();
		ASSERT_EQ(0, cairn_shard_commit(s, 2 * MiB)) << cairn_error();
		cudl_context c = nullptr;
		fake.cu.ctx_current(&c);
		EXPECT_EQ(nullptr, c);	// as before
	}).join();
	EXPECT_EQ(zero + one, read_file(path("a")));
	EXPECT_TRUE(device_of("a") == "cuda:0,cuda:1" || device_of("a") == "none") << device_of("a");
	EXPECT_EQ(0, cairn_stage_close(stage)) << cairn_error();
	stage = nullptr;
	EXPECT_EQ(2u + 2u, fake.count("cuDevicePrimaryCtxRetain"));	// ours and the stage's
	EXPECT_EQ(2u, fake.count("cuDevicePrimaryCtxRelease"));
}

TEST_F(Cairn, no_context_is_made_up_before_a_device_is_known)
{
	open();
	cairn_shard *s = create("a", MiB);
	EXPECT_EQ(0u, fake.count("cuDevicePrimaryCtxRetain"));
	EXPECT_EQ(0u, stats().registrations);
	{
		Context late(1);
		std::string bytes = pattern(MiB, 1);
		DeviceMemory d(bytes);
		ASSERT_EQ(0, cairn_shard_copy(s, 0, d.at(), MiB, nullptr)) << cairn_error();
		EXPECT_EQ(1u, stats().registrations);
		ASSERT_EQ(0, cairn_shard_commit(s, MiB));
		EXPECT_EQ(bytes, read_file(path("a")));
		ASSERT_EQ(0, cairn_stage_close(stage));
	}
	open(0, 2);	// the device is said: its context is retained
	cairn_shard_abort(create("a", MiB));
	EXPECT_EQ(1u, stats().registrations);
}

// Registered by the copy, which names the device: a notice may wait for a thread that copies.
TEST_F(Cairn, a_notice_of_a_copy_is_given_with_no_lock_held)
{
	open();
	cairn_shard *s = create("a", MiB);
	Context late(1);
	std::string bytes = pattern(MiB, 1);
	DeviceMemory d(bytes);
	fake.fail("cuMemHostRegister=2");
	ASSERT_EQ(0, cairn_shard_copy(s, 0, d.at(), MiB, nullptr)) << cairn_error();
	ASSERT_EQ(1u, notices.size());
	EXPECT_NE(std::string::npos, notices[0].find("CUDA_ERROR_OUT_OF_MEMORY"));
	ASSERT_EQ(0, cairn_shard_commit(s, MiB));
	EXPECT_EQ(bytes, read_file(path("a")));
	ASSERT_EQ(0, cairn_stage_close(stage));
	stage = nullptr;
}

TEST_F(Cairn, a_copy_that_fails_cannot_be_committed)
{
	context(0);
	open();
	DeviceMemory d(pattern(MiB, 1));
	save("a", "before");
	cairn_shard *s = create("a", 3 * MiB);
	fake.fail("cuMemcpyDtoHAsync=700@2");
	ASSERT_EQ(0, cairn_shard_copy(s, 0, d.at(), MiB, nullptr));
	EXPECT_EQ(-EIO, cairn_shard_copy(s, MiB, d.at(), MiB, nullptr));
	EXPECT_NE(nullptr, strstr(cairn_error(), "CUDA_ERROR_ILLEGAL_ADDRESS"));
	ASSERT_EQ(0, cairn_shard_copy(s, 2 * MiB, d.at(), MiB, nullptr));
	EXPECT_EQ(-EIO, cairn_shard_sync(s));
	EXPECT_EQ(-EIO, cairn_shard_commit(s, 3 * MiB));
	EXPECT_NE(nullptr, strstr(cairn_error(), "CUDA_ERROR_ILLEGAL_ADDRESS"));
	EXPECT_EQ("before", read_file(path("a")));
	fake.fail("");
	save("a", "after");
	EXPECT_EQ("after", read_file(path("a")));
}

TEST_F(Cairn, an_event_that_fails_fails_the_shard)
{
	context(0);
	open();
	DeviceMemory d(pattern(MiB, 1));
	cairn_shard *s = create("a", MiB);
	fake.fail("cuEventSynchronize=700");
	ASSERT_EQ(0, cairn_shard_copy(s, 0, d.at(), MiB, nullptr));
	EXPECT_EQ(-EIO, cairn_shard_commit(s, MiB));
	fake.fail("cuEventRecord=2");
	s = create("a", MiB);
	EXPECT_EQ(-EIO, cairn_shard_copy(s, 0, d.at(), MiB, nullptr));
	EXPECT_EQ(0, cairn_shard_abort(s));
	fake.fail("");
	EXPECT_EQ("", names_in(dir()));
}

TEST_F(Cairn, a_lost_context_leaves_the_old_file_and_the_process)
{
	context(0);
	open();
	auto d = std::make_unique<DeviceMemory>(pattern(MiB, 1));
	char byte;
	save("a", "before");
	cairn_shard *s = create("a", 2 * MiB);
	ASSERT_EQ(0, cairn_shard_copy(s, 0, d->at(), MiB, nullptr));
	ASSERT_EQ(0, cairn_shard_sync(s));
	setenv("FAKE_CUDA_LOST", "1", 1);	// from the next copy on
	EXPECT_EQ(-EIO, cairn_shard_copy(s, MiB, d->at(), MiB, nullptr));
	EXPECT_EQ(-EIO, cairn_shard_commit(s, 2 * MiB));
	EXPECT_EQ("before", read_file(path("a")));
	s = create("b", 2 * MiB);	// memory can be had, copies fail
	EXPECT_EQ(-EIO, cairn_shard_copy(s, 0, d->at(), MiB, nullptr));
	EXPECT_EQ(0, cairn_shard_abort(s));
	EXPECT_EQ(-EIO, cairn_load(stage, path("a").c_str(), 0, d->to(), 1, nullptr));
	unsetenv("FAKE_CUDA_LOST");
	fake.reset();
	EXPECT_EQ(0, cairn_load(stage, path("a").c_str(), 0, &byte, 1, nullptr));
	d.reset();
	ASSERT_EQ(0, cairn_stage_close(stage));
	stage = nullptr;
	ctx.reset();	// what could not be unregistered goes with it
}

// ---- reading ----

TEST_F(Cairn, loads_into_host_and_device_memory)
{
	context(0);
	open();
	std::string bytes = pattern(40 * MiB, 5);
	write_file(path("a"), bytes);
	std::string host(MiB, 0);
	ASSERT_EQ(0, cairn_load(stage, path("a").c_str(), 12345, host.data(), MiB, nullptr)) << cairn_error();
	EXPECT_EQ(bytes.substr(12345, MiB), host);
	DeviceMemory d(std::string(bytes.size(), 0));
	cudl_stream stream;
	ASSERT_EQ(CUDL_OK, fake.cu.stream_create(&stream, CUDL_STREAM_NON_BLOCKING));
	for (int i = 0; i < 2; i++) {
		memset(fake.memory(d.p), 0, d.n);
		ASSERT_EQ(0, cairn_load(stage, path("a").c_str(), 0, d.to(), d.n, stream)) << cairn_error();
		ASSERT_EQ(CUDL_OK, fake.cu.stream_sync(stream));
		EXPECT_TRUE(bytes == d.bytes());
	}
	EXPECT_EQ(-ENODATA, cairn_load(stage, path("a").c_str(), 10, d.to(), d.n, stream));
	EXPECT_NE(nullptr, strstr(cairn_error(), "cairn check"));
	fake.cu.stream_sync(stream);
	EXPECT_GE(4u, stats().registrations);
	EXPECT_EQ(2 * d.n + MiB, stats().bytes_loaded);
	fake.cu.stream_destroy(stream);
}

TEST_F(Cairn, a_large_load_is_read_by_several_threads)
{
	context(0);
	open();
	constexpr uint64_t size = 300 * MiB;
	Fd f(::open(path("a").c_str(), O_RDWR | O_CREAT, 0600));
	ASSERT_EQ(0, ftruncate(f.get(), size));
	for (uint64_t off = 0; off < size; off += 16 * MiB + 4097)
		ASSERT_EQ(8, pwrite(f.get(), &off, 8, off));
	cudl_ptr p;
	ASSERT_EQ(CUDL_OK, fake.cu.mem_alloc(&p, size));
	ASSERT_EQ(0, cairn_load(stage, path("a").c_str(), 0, reinterpret_cast<void *>(p), size, nullptr))
		<< cairn_error();
	ASSERT_EQ(CUDL_OK, fake.cu.stream_sync(nullptr));
	for (uint64_t off = 0; off < size; off += 16 * MiB + 4097)
		EXPECT_EQ(0, memcmp(fake.memory(p + off), &off, 8)) << off;
	EXPECT_GE(4u, stats().registrations);
	ASSERT_EQ(0, ftruncate(f.get(), 100 * MiB));
	EXPECT_EQ(-ENODATA, cairn_load(stage, path("a").c_str(), 0, reinterpret_cast<void *>(p), size, nullptr));
	fake.cu.stream_sync(nullptr);
	fake.cu.mem_free(p);
}

// ---- threads and forks ----

TEST_F(Cairn, many_threads_one_stage)
{
	context(0, false);
	open();
	std::vector<std::thread> threads;
	for (int t = 0; t < 4; t++)
		threads.emplace_back([this, t] {
			Context mine(0);
			for (int i = 0; i < 20; i++) {
				std::string bytes = pattern(2 * MiB, t * 100 + i), name = std::to_string(t);
				DeviceMemory d(bytes);
				cairn_shard *s = create(name, bytes.size());
				std::thread half([&] {
					Context c(0);
					EXPECT_EQ(0, cairn_shard_copy(s, MiB, d.at(MiB), MiB, nullptr));
				});
				EXPECT_EQ(0, cairn_shard_copy(s, 0, d.at(), MiB, nullptr));
				half.join();
				EXPECT_EQ(0, cairn_shard_commit(s, bytes.size()));
				EXPECT_TRUE(bytes == read_file(path(name)));
			}
		});
	for (auto &t : threads)
		t.join();
	EXPECT_EQ(80u, stats().shards);
	EXPECT_GE(4u, stats().registrations);
}

int in_child(cairn_stage *stage, cairn_shard *shard, const char *dir)
{
	cairn_stage *own;
	if (cairn_stage_trim(stage) != -ECHILD || cairn_stage_close(stage) != -ECHILD)
		return 1;
	if (cairn_shard_data(shard) || cairn_shard_commit(shard, 1) != -ECHILD ||
	    cairn_shard_abort(shard) != -ECHILD)
		return 2;
	if (!strstr(cairn_error(), "fork"))
		return 3;
	struct cairn_options o = {};
	o.size = sizeof(o);
	o.flags = CAIRN_NO_CUDA;
	if (cairn_stage_open(dir, &o, &own) ||
	    cairn_shard_create(own, (std::string(dir) + "/child").c_str(), 1, 0, &shard) ||
	    cairn_shard_commit(shard, 1) || cairn_stage_close(own))
		return 4;
	return 0;
}

TEST_F(Cairn, a_context_that_is_gone_took_its_registrations_along)
{
	context(0);
	open();
	DeviceMemory *d = new DeviceMemory(pattern(MiB, 1));
	cairn_shard *s = create("a", MiB);
	ASSERT_EQ(0, cairn_shard_copy(s, 0, d->at(), MiB, nullptr));
	ASSERT_EQ(0, cairn_shard_commit(s, MiB));
	delete d;
	ctx.reset();
	save("b", "x");
	ASSERT_EQ(0, cairn_stage_close(stage));
	stage = nullptr;
	EXPECT_EQ(0u, fake.count("cuMemHostUnregister"));
	EXPECT_EQ(0u, fake.count("cuEventDestroy"));
}

TEST_F(Cairn, a_forked_child_has_no_stage)
{
	open(CAIRN_NO_CUDA);
	cairn_shard *s = create("a", 1);
	memcpy(cairn_shard_data(s), "p", 1);
	pid_t pid = fork();
	if (!pid)
		_exit(in_child(stage, s, dir().c_str()));
	int st;
	ASSERT_EQ(pid, waitpid(pid, &st, 0));
	EXPECT_EQ(0, WEXITSTATUS(st));
	ASSERT_EQ(0, cairn_shard_commit(s, 1));
	EXPECT_EQ("p", read_file(path("a")));
	EXPECT_EQ("a child ", names_in(dir()));
}

int descriptors_below(const std::string &dir)
{
	int n = 0;
	for (auto &e : std::filesystem::directory_iterator("/proc/self/fd")) {
		std::error_code gone;
		n += std::filesystem::read_symlink(e.path(), gone).string().compare(0, dir.size(), dir) == 0;
	}
	return n;
}

// A data loader's process must not keep a buffer alive, also one that is being made as it is forked:
// registering takes seconds.
TEST_F(Cairn, a_child_forked_while_a_buffer_is_made_has_none)
{
	static std::string where;
	static int in_child, in_parent;
	context(0);
	where = dir();
	in_child = in_parent = -1;
	struct cairn_options o = {};
	o.size = sizeof(o);
	o.notice = [](void *, const char *) {	// told inside cuMemHostRegister's failing
		in_parent = descriptors_below(where);
		pid_t pid = fork();
		if (!pid)
			_exit(descriptors_below(where));
		int st;
		ASSERT_EQ(pid, waitpid(pid, &st, 0));
		in_child = WEXITSTATUS(st);
	};
	ASSERT_EQ(0, stage_stand_in(where.c_str(), &o, &stage)) << cairn_error();
	fake.fail("cuMemHostRegister=2");
	cairn_shard *s = create("a", 4 * MiB);
	EXPECT_EQ(CAIRN_STAGED, cairn_shard_kind(s));
	EXPECT_LE(1, in_parent);
	EXPECT_EQ(0, in_child - (in_parent - 1));	// that of the shard's directory stays
	EXPECT_EQ(0, cairn_shard_abort(s));
	fake.fail("");
}

// Everything that may be done at once is: no more than a sanitizer's report can fail it.
TEST_F(Cairn, a_storm_of_threads)
{
	context(0);
	open();
	std::string bytes = pattern(3 * MiB, 1);
	write_file(path("loaded"), bytes);
	std::atomic<bool> stop{false};
	std::vector<std::thread> threads;
	for (int t = 0; t < 2; t++)
		threads.emplace_back([&, t] {
			Context mine(0);
			DeviceMemory d(bytes);
			for (int i = 0; i < 15; i++) {
				cairn_shard *s = create(std::to_string(t), bytes.size());
				EXPECT_EQ(0, cairn_shard_copy(s, 0, d.at(), d.n, nullptr));
				EXPECT_EQ(0, i % 3 ? cairn_shard_commit(s, d.n) : cairn_shard_abort(s));
			}
		});
	for (int t = 0; t < 2; t++)
		threads.emplace_back([&] {
			Context mine(0);
			DeviceMemory d(std::string(bytes.size(), 0));
			for (int i = 0; i < 10; i++) {
				EXPECT_EQ(0, cairn_load(stage, path("loaded").c_str(), 0, d.to(), d.n, nullptr));
				EXPECT_EQ(CUDL_OK, fake.cu.stream_sync(nullptr));
				EXPECT_TRUE(bytes == d.bytes());
			}
		});
	std::thread other([&] {
		while (!stop) {
			stats();
			EXPECT_EQ(0, cairn_stage_trim(stage));
			EXPECT_EQ(nullptr, cairn_stage_mount(stage));
			EXPECT_EQ(0, cairn_wait(path("loaded").c_str(), -1));
			EXPECT_EQ(-ENOENT, cairn_wait(path("none").c_str(), 0));
			EXPECT_NE(nullptr, strstr(cairn_error(), "none"));
			usleep(1000);
		}
	});
	for (auto &t : threads)
		t.join();
	stop = true;
	other.join();
}

} // namespace

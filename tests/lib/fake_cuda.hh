// SPDX-License-Identifier: MIT
//
// The CUDA driver of tests/lib/fake_cuda.c in a googletest program: #include "fake_cuda.hh".
//
//	FakeCuda &fake = fake_cuda();	loads it, before the library under test looks for one
//	fake.count("cuMemHostRegister")	calls so far, or a counter; fake.fail(SPEC); fake.reset()
//	fake.device(n)			makes that device's primary context current in this thread
//	fake.memory(ptr)		where the bytes of device memory are
#pragma once

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "tools/libcairn/cuda_dl.h"

class FakeCuda {
public:
	FakeCuda()
	{
		setenv("FAKE_CUDA_STRICT", "1", 1);
		setenv("FAKE_CUDA_DEVICES", "2", 1);
		auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() /
			    "fake_cuda/libcuda.so.1";
		lib_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
		if (!lib_)
			throw std::runtime_error(dlerror());
		find("fake_cuda_count", count_);
		find("fake_cuda_fail", fail_);
		find("fake_cuda_reset", reset_);
		find("fake_cuda_memory", memory_);
		if (cuda_dl_open(&cu))
			throw std::runtime_error(cuda_dl_error());
	}
	unsigned long long count(const char *name) const { return count_(name); }
	void fail(const char *spec) const { fail_(spec); }
	void reset() const
	{
		fail_("");
		reset_();
	}
	char *memory(const void *p) const { return static_cast<char *>(memory_(p)); }
	char *memory(cudl_ptr p) const { return memory(reinterpret_cast<void *>(p)); }

	struct cuda_dl cu = {};

private:
	template <typename T> void find(const char *name, T &fn)
	{
		fn = reinterpret_cast<T>(dlsym(lib_, name));
		if (!fn)
			throw std::runtime_error(name);
	}
	void *lib_;
	unsigned long long (*count_)(const char *);
	void (*fail_)(const char *);
	void (*reset_)();
	void *(*memory_)(const void *);
};

inline FakeCuda &fake_cuda()
{
	static FakeCuda fake;
	return fake;
}

// A primary context, retained, and current in this thread, for the scope.
class Context {
public:
	explicit Context(int ordinal, bool current = true) : current_(current)
	{
		FakeCuda &f = fake_cuda();
		f.cu.device_get(&dev_, ordinal);
		f.cu.primary_retain(&ctx_, dev_);
		if (current_)
			f.cu.ctx_push(ctx_);
	}
	~Context()
	{
		if (current_)
			fake_cuda().cu.ctx_pop(&ctx_);
		fake_cuda().cu.primary_release(dev_);
	}
	Context(const Context &) = delete;

private:
	bool current_;
	cudl_device dev_ = -1;
	cudl_context ctx_ = nullptr;
};

// Device memory of the current context, filled from a string.
class DeviceMemory {
public:
	explicit DeviceMemory(const std::string &bytes) : n(bytes.size())
	{
		if (fake_cuda().cu.mem_alloc(&p, n))
			throw std::runtime_error("cuMemAlloc");
		bytes.copy(fake_cuda().memory(p), n);
	}
	~DeviceMemory() { fake_cuda().cu.mem_free(p); }
	DeviceMemory(const DeviceMemory &) = delete;
	const void *at(size_t off = 0) const { return reinterpret_cast<const void *>(p + off); }
	void *to(size_t off = 0) const { return reinterpret_cast<void *>(p + off); }
	std::string bytes() const { return std::string(fake_cuda().memory(p), n); }
	cudl_ptr p = 0;
	size_t n;
};

/* SPDX-License-Identifier: MIT
 *
 * cuda_dl: the only code that uses CUDA. The driver (libcuda.so.1) is opened at run time, so
 * nothing links to it, and everything builds and runs without it. It depends on libc alone.
 *
 * The driver's types are declared here under names of our own; if the toolkit's <cuda.h> is
 * installed, cuda_dl_check.c compares them at build time.
 *
 * Calls return 0 or -errno: -ENOMEM (out of device or pinnable memory), -EPERM, -ENOTSUP, -EIO
 * (anything else: the context may be lost). cuda_dl_error() then has the driver's text. No call
 * takes a lock of ours; all may be called from any thread. Those that need a context say so.
 */
#ifndef LIBCAIRN_CUDA_DL_H
#define LIBCAIRN_CUDA_DL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef unsigned int cudl_result; /* CUresult */
typedef int cudl_device; /* CUdevice */
typedef unsigned long long cudl_ptr; /* CUdeviceptr */
typedef struct CUctx_st *cudl_context;
typedef struct CUstream_st *cudl_stream;
typedef struct CUevent_st *cudl_event;

#define CUDL_OK 0u
#define CUDL_INVALID_VALUE 1u
#define CUDL_OUT_OF_MEMORY 2u
#define CUDL_NOT_INITIALIZED 3u
#define CUDL_DEINITIALIZED 4u /* the process is exiting */
#define CUDL_NO_DEVICE 100u
#define CUDL_INVALID_CONTEXT 201u
#define CUDL_ALREADY_REGISTERED 712u
#define CUDL_NOT_PERMITTED 800u
#define CUDL_NOT_SUPPORTED 801u

#define CUDL_REGISTER_PORTABLE 1u /* pinned for every context of the process */
#define CUDL_EVENT_BLOCKING 1u /* waiting threads sleep */
#define CUDL_EVENT_NO_TIMING 2u
#define CUDL_STREAM_NON_BLOCKING 1u
#define CUDL_STREAM_LEGACY ((cudl_stream)1) /* what NULL means here */
#define CUDL_STREAM_PER_THREAD ((cudl_stream)2) /* a different stream in each thread */
#define CUDL_ATTR_MEMORY_TYPE 2
#define CUDL_ATTR_IS_MANAGED 8
#define CUDL_ATTR_ORDINAL 9
#define CUDL_MEMORY_HOST 1u
#define CUDL_MEMORY_DEVICE 2u

/* field, name in the driver, its symbol, the CUDA version in which it is declared like this,
 * arguments. The symbol is for drivers before 11.3, which have no cuGetProcAddress. */
#define CUDA_DL_CALLS(X)                                                                           \
	X(init, cuInit, "cuInit", 2000, (unsigned int))                                            \
	X(driver_version, cuDriverGetVersion, "cuDriverGetVersion", 2020, (int *))                 \
	X(device_count, cuDeviceGetCount, "cuDeviceGetCount", 2000, (int *))                       \
	X(device_get, cuDeviceGet, "cuDeviceGet", 2000, (cudl_device *, int))                      \
	X(device_name, cuDeviceGetName, "cuDeviceGetName", 2000, (char *, int, cudl_device))       \
	X(primary_state, cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000,           \
	  (cudl_device, unsigned int *, int *))                                                    \
	X(primary_retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000,              \
	  (cudl_context *, cudl_device))                                                           \
	X(primary_release, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 11000,       \
	  (cudl_device))                                                                           \
	X(ctx_current, cuCtxGetCurrent, "cuCtxGetCurrent", 4000, (cudl_context *))                 \
	X(ctx_device, cuCtxGetDevice, "cuCtxGetDevice", 2000, (cudl_device *))                     \
	X(ctx_sync, cuCtxSynchronize, "cuCtxSynchronize", 2000, (void))                            \
	X(ctx_push, cuCtxPushCurrent, "cuCtxPushCurrent_v2", 4000, (cudl_context))                 \
	X(ctx_pop, cuCtxPopCurrent, "cuCtxPopCurrent_v2", 4000, (cudl_context *))                  \
	X(host_register, cuMemHostRegister, "cuMemHostRegister_v2", 6050,                          \
	  (void *, size_t, unsigned int))                                                          \
	X(host_unregister, cuMemHostUnregister, "cuMemHostUnregister", 4000, (void *))             \
	X(copy_dtoh, cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", 3020,                              \
	  (void *, cudl_ptr, size_t, cudl_stream))                                                 \
	X(copy_htod, cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", 3020,                              \
	  (cudl_ptr, const void *, size_t, cudl_stream))                                           \
	X(copy_any, cuMemcpyAsync, "cuMemcpyAsync", 4000,                                          \
	  (cudl_ptr, cudl_ptr, size_t, cudl_stream))                                               \
	X(pointer_attr, cuPointerGetAttribute, "cuPointerGetAttribute", 4000,                      \
	  (void *, unsigned int, cudl_ptr))                                                        \
	X(stream_create, cuStreamCreate, "cuStreamCreate", 2000, (cudl_stream *, unsigned int))    \
	X(stream_sync, cuStreamSynchronize, "cuStreamSynchronize", 2000, (cudl_stream))            \
	X(stream_destroy, cuStreamDestroy, "cuStreamDestroy_v2", 4000, (cudl_stream))              \
	X(event_create, cuEventCreate, "cuEventCreate", 2000, (cudl_event *, unsigned int))        \
	X(event_record, cuEventRecord, "cuEventRecord", 2000, (cudl_event, cudl_stream))           \
	X(event_sync, cuEventSynchronize, "cuEventSynchronize", 2000, (cudl_event))                \
	X(event_destroy, cuEventDestroy, "cuEventDestroy_v2", 4000, (cudl_event))                  \
	X(mem_alloc, cuMemAlloc, "cuMemAlloc_v2", 3020, (cudl_ptr *, size_t))                      \
	X(mem_free, cuMemFree, "cuMemFree_v2", 3020, (cudl_ptr))                                   \
	X(host_alloc, cuMemAllocHost, "cuMemAllocHost_v2", 3020, (void **, size_t))                \
	X(host_free, cuMemFreeHost, "cuMemFreeHost", 2000, (void *))                               \
	X(error_name, cuGetErrorName, "cuGetErrorName", 6000, (cudl_result, const char **))        \
	X(error_string, cuGetErrorString, "cuGetErrorString", 6000, (cudl_result, const char **))

/* The driver's calls, as it declares them. Filled in by cuda_dl_open, then never changed. */
struct cuda_dl {
	void *lib;
	int version; /* of the driver: 12040 is 12.4 */
	int devices; /* at least 1 */
#define CUDA_DL_FIELD(field, name, symbol, since, args) cudl_result(*field) args;
	CUDA_DL_CALLS(CUDA_DL_FIELD)
#undef CUDA_DL_FIELD
};

/* Opens the driver and calls cuInit; creates no context. *cu is all zero after an error. It is
 * never closed again: the driver keeps threads that run its code. -ENOENT: no libcuda.so.1;
 * -ENOSYS: it lacks a call; -ENODEV: no device; else cuInit's error. */
int cuda_dl_open(struct cuda_dl *cu);

/* The driver's text for this thread's last error here: "cuMemHostRegister:
 * CUDA_ERROR_OUT_OF_MEMORY (2): out of memory". Never NULL. */
const char *cuda_dl_error(void);

/* 0 or -errno for a result of the call named, and the text for cuda_dl_error. */
int cuda_dl_check(const struct cuda_dl *cu, const char *call, cudl_result r);

/* ---- contexts -------------------------------------------------------------------------- */

#define CUDA_DL_DEVICES 64

/* Primary contexts, each retained once it was needed. Initialize with zeros. The caller's lock
 * guards calls of cuda_dl_enter that share one; cuda_dl_leave needs none. */
struct cuda_dl_primaries {
	cudl_context ctx[CUDA_DL_DEVICES];
};

/* Makes a context of the device current in this thread: the current one, if it is of that
 * device, else the primary one. device < 0: any; then, if none is current, the primary one of
 * the first device that has it active. *pushed: cuda_dl_leave must follow, in this thread.
 * -ENODEV: any was requested and none is active. */
int cuda_dl_enter(const struct cuda_dl *cu, struct cuda_dl_primaries *p, int device, bool *pushed);
void cuda_dl_leave(const struct cuda_dl *cu, bool pushed);
void cuda_dl_release(const struct cuda_dl *cu, struct cuda_dl_primaries *p);

/* ---- memory ---------------------------------------------------------------------------- */

enum cuda_dl_memory {
	CUDA_DL_PLAIN, /* host memory unknown to the driver */
	CUDA_DL_PINNED, /* host memory that is registered or of cuMemAllocHost */
	CUDA_DL_DEVICE,
	CUDA_DL_MANAGED,
};

/* What p points to, and for the last two the ordinal of the device. If no context is current
 * and the driver needs one: -EIO with CUDL_INVALID_CONTEXT, see cuda_dl_lacks_context. */
int cuda_dl_where(const struct cuda_dl *cu, const void *p, enum cuda_dl_memory *what, int *device);
/* Was this thread's last error that no context is current? */
bool cuda_dl_lacks_context(void);

#define CUDA_DL_PIECE (64ull << 30) /* maximum of one registration */
#define CUDA_DL_PIECES 64 /* 4 TiB */

/* Registered host memory. All zeros: none. */
struct cuda_dl_pin {
	char *base;
	size_t bytes;
	/* bit n: piece n was registered by us and must be unregistered by us */
	uint64_t ours;
	unsigned calls; /* their number */
	bool pinned;
};

/* Registers [base, base + bytes) for all contexts, in pieces. Memory that is registered already
 * (712) counts as pinned and is not unregistered by us. All or nothing. Needs a context.
 * -EFBIG: more than CUDA_DL_PIECES. */
int cuda_dl_register(const struct cuda_dl *cu, void *base, size_t bytes, struct cuda_dl_pin *pin);
/* Undoes it; *pin is zeroed. Copies to and from it must be complete. Needs a context of any device.
 * After an error of the driver (at the end of a process, a lost context) nothing is left to do. */
void cuda_dl_unregister(const struct cuda_dl *cu, struct cuda_dl_pin *pin);

/* ---- copies ----------------------------------------------------------------------------- */

/* Queued on the stream; if host memory is not pinned the driver may wait. No copy spans two
 * pieces of a pin: the driver refuses that. pin: of the host memory, or NULL. Needs a context of
 * the stream's device. cuda_dl_copy_in_order takes any two addresses, host or device. */
int cuda_dl_copy_from(const struct cuda_dl *cu, const struct cuda_dl_pin *pin, void *host,
		      const void *device, size_t n, cudl_stream stream);
int cuda_dl_copy_to(const struct cuda_dl *cu, const struct cuda_dl_pin *pin, void *device,
		    const void *host, size_t n, cudl_stream stream);
int cuda_dl_copy_in_order(const struct cuda_dl *cu, const struct cuda_dl_pin *pin, void *dst,
			  const void *src, size_t n, cudl_stream stream);

/* Positions in streams: one event each, which is reused. All zeros: none. The caller's lock. */
struct cuda_dl_marks {
	struct cuda_dl_mark {
		cudl_context ctx;
		cudl_stream stream;
		uint64_t thread; /* CUDL_STREAM_PER_THREAD: its thread, else 0 */
		cudl_event event;
		bool set;
	} * v;
	unsigned n, cap;
};

/* Records the stream's present position; a later mark of the same stream replaces an earlier
 * one. Needs a context of the stream's device. */
int cuda_dl_mark(const struct cuda_dl *cu, struct cuda_dl_marks *m, cudl_stream stream);
/* Returns when everything recorded is complete, sleeping meanwhile; then nothing is recorded. Needs
 * no context. -EIO: something failed; then everything in the context was waited for, as far as the
 * driver still does that. */
int cuda_dl_marks_wait(const struct cuda_dl *cu, struct cuda_dl_marks *m);
void cuda_dl_marks_free(const struct cuda_dl *cu, struct cuda_dl_marks *m);

#ifdef __cplusplus
}
#endif
#endif

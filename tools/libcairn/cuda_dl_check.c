/* SPDX-License-Identifier: MIT
 *
 * Compares our declarations of the CUDA driver with the toolkit's, if it is installed (the
 * Makefile also looks in CUDA_HOME). There is no code here: compiling it is the check.
 */
#include "cuda_dl.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

#define SAME(a, b) _Static_assert((a) == (unsigned int)(b), #a " is not " #b)

SAME(CUDL_OK, CUDA_SUCCESS);
SAME(CUDL_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CUDL_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CUDL_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(CUDL_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(CUDL_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CUDL_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(CUDL_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(CUDL_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME(CUDL_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(CUDL_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CUDL_EVENT_BLOCKING, CU_EVENT_BLOCKING_SYNC);
SAME(CUDL_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(CUDL_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME((uintptr_t)CUDL_STREAM_LEGACY, (uintptr_t)CU_STREAM_LEGACY);
SAME((uintptr_t)CUDL_STREAM_PER_THREAD, (uintptr_t)CU_STREAM_PER_THREAD);
SAME(CUDL_ATTR_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(CUDL_ATTR_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(CUDL_ATTR_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(CUDL_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(CUDL_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);

/* An enum is compatible with the unsigned int that gcc makes of it. A macro of cuda.h that gives a
 * call its newest form (cuMemAlloc is cuMemAlloc_v2) applies here too. */
#define SAME_CALL(field, name, symbol, since, args)                                                \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&(name)),                           \
						    __typeof__(((struct cuda_dl *)0)->field)),     \
		       symbol " is declared otherwise in cuda.h");
CUDA_DL_CALLS(SAME_CALL)

/* The version requested from cuGetProcAddress is the one declared: the toolkit names the type
 * of each call by that version, so a wrong number has no such type. */
#if __has_include(<cudaTypedefs.h>)
#include <cudaTypedefs.h>

#define SAME_VERSION(field, name, symbol, since, args)                                             \
	_Static_assert(__builtin_types_compatible_p(PFN_##name##_v##since,                         \
						    __typeof__(((struct cuda_dl *)0)->field)),     \
		       symbol " of that version is declared otherwise in cudaTypedefs.h");
CUDA_DL_CALLS(SAME_VERSION)
#endif
#endif

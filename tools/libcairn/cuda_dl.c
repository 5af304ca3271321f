/* SPDX-License-Identifier: MIT
 *
 * The CUDA driver through dlopen: see cuda_dl.h.
 *
 * A driver keeps old versions of its calls; which one a symbol is depends on the toolkit's header.
 * cuGetProcAddress returns the version asked for, so that a call means what is declared here
 * on every driver that has it.
 */
#include "cuda_dl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_text[256];
static _Thread_local cudl_result last_result;

/* ---- errors ---- */

const char *cuda_dl_error(void)
{
	return last_text;
}

bool cuda_dl_lacks_context(void)
{
	return last_result == CUDL_INVALID_CONTEXT;
}

static int errno_of(cudl_result r)
{
	switch (r) {
	case CUDL_OK: return 0;
	case CUDL_OUT_OF_MEMORY: return -ENOMEM;
	case CUDL_NO_DEVICE: return -ENODEV;
	case CUDL_NOT_PERMITTED: return -EPERM;
	case CUDL_NOT_SUPPORTED: return -ENOTSUP;
	default: return -EIO;
	}
}

int cuda_dl_check(const struct cuda_dl *cu, const char *call, cudl_result r)
{
	const char *name = NULL, *text = NULL;

	last_result = r;
	if (r == CUDL_OK)
		return 0;
	if (cu->error_name)
		cu->error_name(r, &name);
	if (cu->error_string)
		cu->error_string(r, &text);
	snprintf(last_text, sizeof(last_text), "%s: %s (%u): %s", call, name ? name : "error", r,
		 text ? text : "the driver has no text for it");
	return errno_of(r);
}

#define CALL(cu, field, name, ...) cuda_dl_check(cu, name, (cu)->field(__VA_ARGS__))

/* ---- opening ---- */

typedef cudl_result (*get_proc_11)(const char *, void **, int, uint64_t);
typedef cudl_result (*get_proc_12)(const char *, void **, int, uint64_t, int *);

struct finder {
	void *lib;
	get_proc_11 by_11; /* since 11.3 */
	get_proc_12 by_12; /* since 12.0 */
};

/* ISO C has no conversion from dlsym's pointer to a function's. */
static void find_symbol(void *lib, const char *name, void *fn)
{
	void *sym = dlsym(lib, name);

	memcpy(fn, &sym, sizeof(sym));
}

static bool find_call(const struct finder *f, const char *name, const char *symbol, int since,
		      void *fn)
{
	void *sym = NULL;

	if (f->by_12 && f->by_12(name, &sym, since, 0, NULL) != CUDL_OK)
		sym = NULL;
	else if (!f->by_12 && f->by_11 && f->by_11(name, &sym, since, 0) != CUDL_OK)
		sym = NULL;
	if (!sym)
		sym = dlsym(f->lib, symbol);
	memcpy(fn, &sym, sizeof(sym));
	if (!sym)
		snprintf(last_text, sizeof(last_text), "the CUDA driver has no %s: it is too old",
			 name);
	return sym;
}

static int find_calls(struct cuda_dl *cu)
{
	struct finder f = {.lib = cu->lib};

	find_symbol(cu->lib, "cuGetProcAddress_v2", &f.by_12);
	find_symbol(cu->lib, "cuGetProcAddress", &f.by_11);
#define FIND(field, name, symbol, since, args)                                                     \
	if (!find_call(&f, #name, symbol, since, &cu->field))                                      \
		return -ENOSYS;
	CUDA_DL_CALLS(FIND)
#undef FIND
	return 0;
}

static int open_driver(struct cuda_dl *cu)
{
	int err;

	cu->lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!cu->lib) {
		snprintf(last_text, sizeof(last_text), "no CUDA driver: %.200s", dlerror());
		return -ENOENT;
	}
	err = find_calls(cu);
	if (!err)
		err = CALL(cu, init, "cuInit", 0);
	if (!err)
		err = CALL(cu, driver_version, "cuDriverGetVersion", &cu->version);
	if (!err)
		err = CALL(cu, device_count, "cuDeviceGetCount", &cu->devices);
	if (!err && cu->devices <= 0) {
		snprintf(last_text, sizeof(last_text), "the CUDA driver knows no device");
		err = -ENODEV;
	}
	return err;
}

int cuda_dl_open(struct cuda_dl *cu)
{
	int err;

	memset(cu, 0, sizeof(*cu));
	err = open_driver(cu);
	if (cu->devices > CUDA_DL_DEVICES)
		cu->devices = CUDA_DL_DEVICES;
	if (err)
		memset(cu, 0, sizeof(*cu));
	return err;
}

/* ---- contexts ---- */

static int active_device(const struct cuda_dl *cu)
{
	for (int i = 0; i < cu->devices; i++) {
		unsigned flags;
		int active = 0;
		cudl_device dev;

		if (cu->device_get(&dev, i) == CUDL_OK &&
		    cu->primary_state(dev, &flags, &active) == CUDL_OK && active)
			return i;
	}
	snprintf(last_text, sizeof(last_text), "this process has no CUDA context");
	return -ENODEV;
}

/* Does the thread have a context, and of the device wanted? */
static bool is_current(const struct cuda_dl *cu, int device)
{
	cudl_context ctx = NULL;
	cudl_device have, want;

	if (cu->ctx_current(&ctx) != CUDL_OK || !ctx)
		return false;
	return device < 0 || (cu->device_get(&want, device) == CUDL_OK &&
			      cu->ctx_device(&have) == CUDL_OK && have == want);
}

int cuda_dl_enter(const struct cuda_dl *cu, struct cuda_dl_primaries *p, int device, bool *pushed)
{
	cudl_device dev;
	int err = 0;

	*pushed = false;
	if (is_current(cu, device))
		return 0;
	if (device < 0)
		device = active_device(cu);
	if (device < 0)
		return device;
	if (device >= cu->devices) {
		snprintf(last_text, sizeof(last_text), "no CUDA device %d: there are %d", device,
			 cu->devices);
		return -ENODEV;
	}
	if (!p->ctx[device]) {
		err = CALL(cu, device_get, "cuDeviceGet", &dev, device);
		if (!err)
			err = CALL(cu, primary_retain, "cuDevicePrimaryCtxRetain", &p->ctx[device],
				   dev);
	}
	if (!err)
		err = CALL(cu, ctx_push, "cuCtxPushCurrent", p->ctx[device]);
	*pushed = !err;
	return err;
}

void cuda_dl_leave(const struct cuda_dl *cu, bool pushed)
{
	cudl_context ctx;

	if (pushed)
		cu->ctx_pop(&ctx);
}

void cuda_dl_release(const struct cuda_dl *cu, struct cuda_dl_primaries *p)
{
	cudl_device dev;

	for (int i = 0; i < cu->devices; i++)
		if (p->ctx[i] && cu->device_get(&dev, i) == CUDL_OK)
			cu->primary_release(dev);
	memset(p, 0, sizeof(*p));
}

/* ---- memory ---- */

int cuda_dl_where(const struct cuda_dl *cu, const void *p, enum cuda_dl_memory *what, int *device)
{
	cudl_ptr ptr = (uintptr_t)p;
	unsigned type = 0, managed = 0;
	cudl_result r = cu->pointer_attr(&type, CUDL_ATTR_MEMORY_TYPE, ptr);

	*what = CUDA_DL_PLAIN;
	*device = -1;
	if (r == CUDL_INVALID_VALUE) /* memory unknown to the driver */
		return 0;
	if (r != CUDL_OK)
		return cuda_dl_check(cu, "cuPointerGetAttribute", r);
	if (cu->pointer_attr(&managed, CUDL_ATTR_IS_MANAGED, ptr) != CUDL_OK)
		managed = 0;
	*what = managed			   ? CUDA_DL_MANAGED
		: type == CUDL_MEMORY_HOST ? CUDA_DL_PINNED
					   : CUDA_DL_DEVICE;
	if (*what == CUDA_DL_PINNED)
		return 0;
	return CALL(cu, pointer_attr, "cuPointerGetAttribute", device, CUDL_ATTR_ORDINAL, ptr);
}

static size_t piece_bytes(const struct cuda_dl_pin *pin, unsigned i)
{
	size_t off = i * CUDA_DL_PIECE, left = pin->bytes - off;

	return left < CUDA_DL_PIECE ? left : CUDA_DL_PIECE;
}

static unsigned piece_count(const struct cuda_dl_pin *pin)
{
	return (pin->bytes + CUDA_DL_PIECE - 1) / CUDA_DL_PIECE;
}

int cuda_dl_register(const struct cuda_dl *cu, void *base, size_t bytes, struct cuda_dl_pin *pin)
{
	*pin = (struct cuda_dl_pin){.base = base, .bytes = bytes};
	if (bytes > CUDA_DL_PIECES * CUDA_DL_PIECE) {
		snprintf(last_text, sizeof(last_text),
			 "%zu bytes are more than is registered at once", bytes);
		*pin = (struct cuda_dl_pin){0};
		return -EFBIG;
	}
	for (unsigned i = 0; i < piece_count(pin); i++) {
		cudl_result r = cu->host_register(pin->base + i * CUDA_DL_PIECE,
						  piece_bytes(pin, i), CUDL_REGISTER_PORTABLE);

		if (r == CUDL_OK) {
			pin->ours |= 1ull << i;
			pin->calls++;
		} else if (r != CUDL_ALREADY_REGISTERED) {
			cuda_dl_unregister(cu, pin);
			return cuda_dl_check(cu, "cuMemHostRegister", r);
		}
	}
	pin->pinned = true;
	return 0;
}

void cuda_dl_unregister(const struct cuda_dl *cu, struct cuda_dl_pin *pin)
{
	for (unsigned i = 0; i < CUDA_DL_PIECES; i++)
		if (pin->ours >> i & 1)
			cu->host_unregister(pin->base + i * CUDA_DL_PIECE);
	*pin = (struct cuda_dl_pin){0};
}

/* ---- copies ---- */

/* How much of n from host memory on is in one piece. */
static size_t in_piece(const struct cuda_dl_pin *pin, const void *host, size_t n)
{
	size_t off, left;

	if (!pin || !pin->pinned)
		return n;
	off = (size_t)((const char *)host - pin->base);
	left = CUDA_DL_PIECE - off % CUDA_DL_PIECE;
	return n < left ? n : left;
}

int cuda_dl_copy_from(const struct cuda_dl *cu, const struct cuda_dl_pin *pin, void *host,
		      const void *device, size_t n, cudl_stream stream)
{
	char *to = host;
	cudl_ptr from = (uintptr_t)device;
	int err = 0;

	for (size_t part; n && !err; n -= part, to += part, from += part) {
		part = in_piece(pin, to, n);
		err = CALL(cu, copy_dtoh, "cuMemcpyDtoHAsync", to, from, part, stream);
	}
	return err;
}

int cuda_dl_copy_to(const struct cuda_dl *cu, const struct cuda_dl_pin *pin, void *device,
		    const void *host, size_t n, cudl_stream stream)
{
	const char *from = host;
	cudl_ptr to = (uintptr_t)device;
	int err = 0;

	for (size_t part; n && !err; n -= part, to += part, from += part) {
		part = in_piece(pin, from, n);
		err = CALL(cu, copy_htod, "cuMemcpyHtoDAsync", to, from, part, stream);
	}
	return err;
}

int cuda_dl_copy_in_order(const struct cuda_dl *cu, const struct cuda_dl_pin *pin, void *dst,
			  const void *src, size_t n, cudl_stream stream)
{
	char *to = dst;
	cudl_ptr from = (uintptr_t)src;
	int err = 0;

	for (size_t part; n && !err; n -= part, to += part, from += part) {
		part = in_piece(pin, to, n);
		err = CALL(cu, copy_any, "cuMemcpyAsync", (uintptr_t)to, from, part, stream);
	}
	return err;
}

/* ---- marks ---- */

/* A thread's number, never reused. */
static uint64_t this_thread(void)
{
	static atomic_ullong last;
	static _Thread_local uint64_t number;

	if (!number)
		number = atomic_fetch_add(&last, 1) + 1;
	return number;
}

static int mark_add(const struct cuda_dl *cu, struct cuda_dl_marks *m, cudl_context ctx,
		    cudl_stream stream, uint64_t thread)
{
	struct cuda_dl_mark *v;
	cudl_event event;
	int err;

	if (m->n == m->cap) {
		v = reallocarray(m->v, m->cap * 2 + 4, sizeof(*v));
		if (!v) {
			snprintf(last_text, sizeof(last_text), "out of memory");
			return -ENOMEM;
		}
		m->v = v;
		m->cap = m->cap * 2 + 4;
	}
	err = CALL(cu, event_create, "cuEventCreate", &event,
		   CUDL_EVENT_BLOCKING | CUDL_EVENT_NO_TIMING);
	if (!err)
		m->v[m->n++] = (struct cuda_dl_mark){
			.ctx = ctx, .stream = stream, .thread = thread, .event = event};
	return err;
}

int cuda_dl_mark(const struct cuda_dl *cu, struct cuda_dl_marks *m, cudl_stream stream)
{
	uint64_t thread = stream == CUDL_STREAM_PER_THREAD ? this_thread() : 0;
	cudl_context ctx = NULL;
	unsigned i;
	int err = CALL(cu, ctx_current, "cuCtxGetCurrent", &ctx);

	if (err)
		return err;
	/* the NULL stream of each context is a different one, and the per-thread one of each
	 * thread */
	for (i = 0; i < m->n; i++)
		if (m->v[i].ctx == ctx && m->v[i].stream == stream && m->v[i].thread == thread)
			break;
	if (i == m->n)
		err = mark_add(cu, m, ctx, stream, thread);
	if (!err)
		err = CALL(cu, event_record, "cuEventRecord", m->v[i].event, stream);
	if (!err)
		m->v[i].set = true;
	return err;
}

int cuda_dl_marks_wait(const struct cuda_dl *cu, struct cuda_dl_marks *m)
{
	int err = 0;

	for (unsigned i = 0; i < m->n; i++) {
		int e;

		if (!m->v[i].set)
			continue;
		e = CALL(cu, event_sync, "cuEventSynchronize", m->v[i].event);
		/* The memory may be returned next: nothing may write to it. The stream may be
		 * gone. */
		if (e && cu->ctx_push(m->v[i].ctx) == CUDL_OK) {
			cu->ctx_sync();
			cuda_dl_leave(cu, true);
		}
		m->v[i].set = false;
		err = err ? err : e;
	}
	return err;
}

void cuda_dl_marks_free(const struct cuda_dl *cu, struct cuda_dl_marks *m)
{
	for (unsigned i = 0; i < m->n; i++)
		cu->event_destroy(m->v[i].event);
	free(m->v);
	*m = (struct cuda_dl_marks){0};
}

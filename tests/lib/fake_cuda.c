/* SPDX-License-Identifier: MIT
 *
 * libcuda.so.1 without a GPU: the calls of tools/libcairn/cuda_dl.h over host memory, for tests. It is
 * stricter than a driver:
 *
 *	device memory	no host address: who touches it dies (its bytes lie elsewhere)
 *	async copies	are done by a thread, FAKE_CUDA_DELAY_US (1000) later, the streams in no
 *			order among each other, so that a missing synchronisation is seen
 *	checks		counted and told on stderr: see `violations` below
 *
 * A program finds it by LD_LIBRARY_PATH, or by a dlopen of its path before the library's.
 *
 *	FAKE_CUDA_FAIL=CALL=CODE[@N][,...]	that call returns CODE, always or the Nth time only:
 *						cuMemHostRegister=712, cuMemcpyDtoHAsync=700@3
 *	FAKE_CUDA_LOST=N			the Nth copy loses the context: it and all after it is 719
 *	FAKE_CUDA_DEVICES=N (1)			0: cuInit says no device
 *	FAKE_CUDA_OLD=1				no cuGetProcAddress, as before 11.3
 *	FAKE_CUDA_STRICT=1			at the end of the process a violation or a registration that
 *						is left makes its exit code 86
 *	FAKE_CUDA_LOG=FILE			the counts at the end of the process, a line each
 *
 * fake_cuda_count(NAME) is how often a call was made, or a counter of `counters`;
 * fake_cuda_memory(PTR) is where a host program finds the bytes of device memory;
 * fake_cuda_fail(SPEC) replaces FAKE_CUDA_FAIL, fake_cuda_reset() the counts and the lost context.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tools/libcairn/cuda_dl.h"

#define EXPORT __attribute__((visibility("default")))
#define LOST 719u
#define NOT_REGISTERED 713u
#define INVALID_HANDLE 400u
#define RANGES 4096
#define STREAMS 64
#define MAX_DEVICES 8

/* ---- counts ---- */

#define COUNTERS(X) X(violations) X(registered_now) X(events_now) X(allocated_now) X(bytes_copied)

static struct {
	char name[32];
	unsigned long long n;
} counts[96];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static bool lost;
static unsigned long long copies;
static char fail_spec[512];
static bool inited;

/* Lock held. */
static unsigned long long *counter(const char *name)
{
	unsigned i = 0;

	while (i < 95 && counts[i].name[0] && strcmp(counts[i].name, name))
		i++;
	if (!counts[i].name[0])
		snprintf(counts[i].name, sizeof(counts[i].name), "%s", name);
	return &counts[i].n;
}

static void violation(const char *what)
{
	++*counter("violations");
	fprintf(stderr, "fake_cuda: VIOLATION: %s\n", what);
}

/* The code to inject, or 0. Lock held; the call is counted already. */
static cudl_result injected(const char *call, unsigned long long nth)
{
	char spec[sizeof(fail_spec)], *save, *word;

	snprintf(spec, sizeof(spec), "%s", fail_spec);
	for (word = strtok_r(spec, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		char *eq = strchr(word, '='), *at = strchr(word, '@');

		if (!eq)
			continue;
		*eq = '\0';
		if (!strcmp(word, call) && (!at || strtoull(at + 1, NULL, 10) == nth))
			return (cudl_result)strtoul(eq + 1, NULL, 10);
	}
	return CUDL_OK;
}

static unsigned long long env_number(const char *name, unsigned long long other)
{
	const char *v = getenv(name);

	return v ? strtoull(v, NULL, 10) : other;
}

/* Takes the lock; who gets other than OK has to return that, through leave(). */
static cudl_result enter(const char *call)
{
	cudl_result r;

	pthread_mutex_lock(&lock);
	r = injected(call, ++*counter(call));
	return r ? r : lost ? LOST : CUDL_OK;
}

static cudl_result leave(cudl_result r)
{
	pthread_mutex_unlock(&lock);
	return r;
}

#define ENTER(call)                                                                                \
	cudl_result r_ = enter(call);                                                              \
	if (r_)                                                                                    \
		return leave(r_)

/* ---- contexts: one a device, the primary ---- */

struct CUctx_st {
	int device;
	int retained;
};
static struct CUctx_st primary[MAX_DEVICES];
static _Thread_local cudl_context stack[16];
static _Thread_local unsigned depth;

static cudl_context current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

#define ENTER_CONTEXT(call)                                                                        \
	ENTER(call);                                                                               \
	if (!current())                                                                            \
	return leave(CUDL_INVALID_CONTEXT)

static void end_context(cudl_context ctx);

static int device_count(void)
{
	return (int)env_number("FAKE_CUDA_DEVICES", 1);
}

EXPORT cudl_result cuInit(unsigned flags)
{
	ENTER("cuInit");
	(void)flags;
	inited = true;
	return leave(device_count() > 0 ? CUDL_OK : CUDL_NO_DEVICE);
}

EXPORT cudl_result cuDriverGetVersion(int *version)
{
	ENTER("cuDriverGetVersion");
	*version = 12040;
	return leave(CUDL_OK);
}

EXPORT cudl_result cuDeviceGetCount(int *n)
{
	ENTER("cuDeviceGetCount");
	*n = device_count();
	return leave(inited ? CUDL_OK : CUDL_NOT_INITIALIZED);
}

/* Handles are not ordinals, as nobody promised. */
EXPORT cudl_result cuDeviceGet(cudl_device *dev, int ordinal)
{
	ENTER("cuDeviceGet");
	if (ordinal < 0 || ordinal >= device_count())
		return leave(101);
	*dev = 100 + ordinal;
	return leave(CUDL_OK);
}

EXPORT cudl_result cuDeviceGetName(char *name, int len, cudl_device dev)
{
	ENTER("cuDeviceGetName");
	snprintf(name, (size_t)len, "fake device %d", dev - 100);
	return leave(CUDL_OK);
}

EXPORT cudl_result cuDevicePrimaryCtxGetState(cudl_device dev, unsigned *flags, int *active)
{
	ENTER("cuDevicePrimaryCtxGetState");
	*flags = 0;
	*active = primary[dev - 100].retained > 0;
	return leave(CUDL_OK);
}

EXPORT cudl_result cuDevicePrimaryCtxRetain(cudl_context *ctx, cudl_device dev)
{
	ENTER("cuDevicePrimaryCtxRetain");
	*ctx = &primary[dev - 100];
	(*ctx)->device = dev - 100;
	(*ctx)->retained++;
	return leave(CUDL_OK);
}

EXPORT cudl_result cuDevicePrimaryCtxRelease_v2(cudl_device dev)
{
	ENTER("cuDevicePrimaryCtxRelease");
	if (primary[dev - 100].retained <= 0)
		violation("a primary context released that is not retained");
	else if (!--primary[dev - 100].retained)
		end_context(&primary[dev - 100]);
	return leave(CUDL_OK);
}

EXPORT cudl_result cuCtxGetCurrent(cudl_context *ctx)
{
	ENTER("cuCtxGetCurrent");
	*ctx = current();
	return leave(CUDL_OK);
}

EXPORT cudl_result cuCtxGetDevice(cudl_device *dev)
{
	ENTER_CONTEXT("cuCtxGetDevice");
	*dev = 100 + current()->device;
	return leave(CUDL_OK);
}

EXPORT cudl_result cuCtxPushCurrent_v2(cudl_context ctx)
{
	ENTER("cuCtxPushCurrent");
	if (depth == 16 || !ctx || ctx->retained <= 0)
		return leave(CUDL_INVALID_CONTEXT);
	stack[depth++] = ctx;
	return leave(CUDL_OK);
}

EXPORT cudl_result cuCtxPopCurrent_v2(cudl_context *ctx)
{
	ENTER("cuCtxPopCurrent");
	if (!depth)
		return leave(CUDL_INVALID_CONTEXT);
	*ctx = stack[--depth];
	return leave(CUDL_OK);
}

/* ---- memory ---- */

enum range_kind { NONE, DEVICE, PINNED, REGISTERED };

struct range {
	enum range_kind kind;
	char *base;
	size_t bytes;
	char *memory;	/* DEVICE: where the bytes are */
	int device;	/* whose context it was made in */
};
static struct range ranges[RANGES];

static struct range *range_of(const void *p)
{
	for (int i = 0; i < RANGES; i++)
		if (ranges[i].kind && (const char *)p >= ranges[i].base &&
		    (const char *)p < ranges[i].base + ranges[i].bytes)
			return &ranges[i];
	return NULL;
}

static struct range *overlapping(const char *base, size_t bytes)
{
	for (int i = 0; i < RANGES; i++)
		if (ranges[i].kind && base < ranges[i].base + ranges[i].bytes &&
		    ranges[i].base < base + bytes)
			return &ranges[i];
	return NULL;
}

static struct range *range_add(enum range_kind kind, char *base, size_t bytes)
{
	for (int i = 0; i < RANGES; i++)
		if (!ranges[i].kind) {
			ranges[i] = (struct range){ .kind = kind, .base = base, .bytes = bytes,
						    .device = current()->device };
			return &ranges[i];
		}
	return NULL;
}

/* Where the bytes at p are; violation if [p, p + n) leaves its range, which a driver refuses. */
static char *bytes_at(const void *p, size_t n, bool want_device)
{
	struct range *r = range_of(p);

	if (want_device && (!r || r->kind != DEVICE)) {
		violation("a copy from or to device memory that is none");
		return NULL;
	}
	if (r && (size_t)((const char *)p - r->base) + n > r->bytes) {
		violation("a copy goes beyond the memory it starts in");
		return NULL;
	}
	if (!r && overlapping(p, n)) {
		violation("a copy begins in memory that is not registered and ends in registered");
		return NULL;
	}
	return r && r->kind == DEVICE ? r->memory + ((const char *)p - r->base) : (char *)(uintptr_t)p;
}

EXPORT void *fake_cuda_memory(const void *p)
{
	struct range *r;
	char *at;

	pthread_mutex_lock(&lock);
	r = range_of(p);
	at = r && r->kind == DEVICE ? r->memory + ((const char *)p - r->base) : NULL;
	pthread_mutex_unlock(&lock);
	return at;
}

EXPORT cudl_result cuMemAlloc_v2(cudl_ptr *p, size_t n)
{
	char *base, *memory;

	ENTER_CONTEXT("cuMemAlloc");
	base = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	memory = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED || memory == MAP_FAILED)
		return leave(CUDL_OUT_OF_MEMORY);
	madvise(memory, n, MADV_HUGEPAGE);
	struct range *r = range_add(DEVICE, base, n);
	r->memory = memory;
	++*counter("allocated_now");
	*p = (uintptr_t)base;
	return leave(CUDL_OK);
}

static bool in_flight(const struct range *r);

EXPORT cudl_result cuMemFree_v2(cudl_ptr p)
{
	ENTER_CONTEXT("cuMemFree");
	struct range *r = range_of((void *)(uintptr_t)p);
	if (!r || r->kind != DEVICE)
		return leave(CUDL_INVALID_VALUE);
	while (in_flight(r))	/* it synchronises */
		pthread_cond_wait(&cond, &lock);
	munmap(r->base, r->bytes);
	munmap(r->memory, r->bytes);
	r->kind = NONE;
	--*counter("allocated_now");
	return leave(CUDL_OK);
}

EXPORT cudl_result cuMemAllocHost_v2(void **p, size_t n)
{
	ENTER_CONTEXT("cuMemAllocHost");
	*p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (*p == MAP_FAILED)
		return leave(CUDL_OUT_OF_MEMORY);
	range_add(PINNED, *p, n);
	++*counter("allocated_now");
	return leave(CUDL_OK);
}

EXPORT cudl_result cuMemFreeHost(void *p)
{
	ENTER_CONTEXT("cuMemFreeHost");
	struct range *r = range_of(p);
	if (!r || r->kind != PINNED || r->base != p)
		return leave(CUDL_INVALID_VALUE);
	munmap(r->base, r->bytes);
	r->kind = NONE;
	--*counter("allocated_now");
	return leave(CUDL_OK);
}

EXPORT cudl_result cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
	ENTER_CONTEXT("cuMemHostRegister");
	if (!p || !n || flags != CUDL_REGISTER_PORTABLE)
		return leave(CUDL_INVALID_VALUE);
	if (n > CUDA_DL_PIECE)
		violation("more than 64 GiB registered at once");
	if (overlapping(p, n))
		return leave(CUDL_ALREADY_REGISTERED);
	if (!range_add(REGISTERED, p, n))
		return leave(CUDL_OUT_OF_MEMORY);
	++*counter("registered_now");
	return leave(CUDL_OK);
}

EXPORT cudl_result cuMemHostUnregister(void *p)
{
	ENTER_CONTEXT("cuMemHostUnregister");
	struct range *r = range_of(p);
	if (!r || r->kind != REGISTERED || r->base != p) {
		violation("unregistered what is not registered");
		return leave(NOT_REGISTERED);
	}
	if (in_flight(r))
		violation("unregistered with a copy under way");
	r->kind = NONE;
	--*counter("registered_now");
	return leave(CUDL_OK);
}

EXPORT cudl_result cuPointerGetAttribute(void *data, unsigned attr, cudl_ptr p)
{
	ENTER("cuPointerGetAttribute");
	struct range *r = range_of((void *)(uintptr_t)p);
	if (!r)
		return leave(CUDL_INVALID_VALUE);
	if (attr == CUDL_ATTR_MEMORY_TYPE)
		*(unsigned *)data = r->kind == DEVICE ? CUDL_MEMORY_DEVICE : CUDL_MEMORY_HOST;
	else if (attr == CUDL_ATTR_IS_MANAGED)
		*(unsigned *)data = 0;
	else if (attr == CUDL_ATTR_ORDINAL)
		*(int *)data = r->device;
	else
		return leave(CUDL_INVALID_VALUE);
	return leave(CUDL_OK);
}

/* ---- streams: a queue each, emptied by one thread in an order of its own ---- */

struct CUevent_st {
	struct CUevent_st *next;
	unsigned long long asked, done;
	cudl_context ctx;
	bool dead;	/* destroyed before it was done */
};
static struct CUevent_st *events;

static void event_free(cudl_event e)
{
	struct CUevent_st **p = &events;

	while (*p != e)
		p = &(*p)->next;
	*p = e->next;
	if (!e->dead)
		--*counter("events_now");
	free(e);
}

struct op {
	struct op *next;
	char *to;
	const char *from;
	size_t n;
	const void *host;	/* what must stay registered meanwhile */
	struct CUevent_st *event;	/* instead of a copy */
	unsigned long long number;
	unsigned long long due_us;
};

struct CUstream_st {
	bool used;
	cudl_context ctx;
	struct op *first, **last;
};
static struct CUstream_st streams[STREAMS];	/* [0..7]: the NULL stream of each context */
static bool thread_runs;

static unsigned long long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000ull + (unsigned long long)t.tv_nsec / 1000;
}

static bool in_flight(const struct range *r)
{
	for (int i = 0; i < STREAMS; i++)
		for (struct op *o = streams[i].first; o; o = o->next) {
			const char *h = o->host;

			if (h && ((h >= r->base && h < r->base + r->bytes) ||
				  (r->kind == DEVICE && ((o->to >= r->memory && o->to < r->memory + r->bytes) ||
							 (o->from >= r->memory &&
							  o->from < r->memory + r->bytes)))))
				return true;
		}
	return false;
}

/* One that may be done now: of a stream taken at random. */
static struct CUstream_st *ready(unsigned *seed)
{
	int from = rand_r(seed) % STREAMS;

	for (int i = 0; i < STREAMS; i++) {
		struct CUstream_st *s = &streams[(from + i) % STREAMS];

		if (s->first && s->first->due_us <= now_us())
			return s;
	}
	return NULL;
}

static void *engine(void *arg)
{
	unsigned seed = 1;

	(void)arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		struct CUstream_st *s = ready(&seed);
		struct op *o = s ? s->first : NULL;

		if (!o) {
			struct timespec t = { 0, 50000 };

			pthread_mutex_unlock(&lock);
			nanosleep(&t, NULL);
			pthread_mutex_lock(&lock);
			continue;
		}
		pthread_mutex_unlock(&lock);
		if (o->n)
			memcpy(o->to, o->from, o->n);
		pthread_mutex_lock(&lock);
		if (o->event) {
			o->event->done = o->number;
			if (o->event->dead && o->event->done == o->event->asked)
				event_free(o->event);
		}
		s->first = o->next;
		if (!s->first)
			s->last = &s->first;
		free(o);
		pthread_cond_broadcast(&cond);
	}
	return NULL;
}

static struct CUstream_st *stream_make(struct CUstream_st *s)
{
	s->used = true;
	s->ctx = current();
	s->first = NULL;
	s->last = &s->first;
	return s;
}

static struct CUstream_st *stream_new(void)
{
	for (int i = MAX_DEVICES; i < STREAMS; i++)
		if (!streams[i].used)
			return stream_make(&streams[i]);
	return NULL;
}

static cudl_result stream_of(cudl_stream h, struct CUstream_st **out)
{
	static _Thread_local struct CUstream_st *own[MAX_DEVICES];	/* never given back */
	struct CUstream_st **mine = &own[current()->device];

	if (h == CUDL_STREAM_PER_THREAD && !*mine)
		*mine = stream_new();
	if (h == CUDL_STREAM_LEGACY)
		h = NULL;
	*out = h == CUDL_STREAM_PER_THREAD ? *mine : h ? h : &streams[current()->device];
	if (!*out)
		return CUDL_OUT_OF_MEMORY;
	if (!h && !(*out)->used)
		stream_make(*out);
	if (!(*out)->used)
		return INVALID_HANDLE;
	if ((*out)->ctx != current()) {
		violation("a stream of another context");
		return INVALID_HANDLE;
	}
	return CUDL_OK;
}

static void queue(struct CUstream_st *s, struct op op)
{
	struct op *o = malloc(sizeof(*o));

	*o = op;
	o->next = NULL;
	o->due_us = now_us() + env_number("FAKE_CUDA_DELAY_US", 1000);
	*s->last = o;
	s->last = &o->next;
	if (!thread_runs) {
		pthread_t t;

		thread_runs = true;
		pthread_create(&t, NULL, engine, NULL);
		pthread_detach(t);
	}
}

EXPORT cudl_result cuStreamCreate(cudl_stream *out, unsigned flags)
{
	ENTER_CONTEXT("cuStreamCreate");
	(void)flags;
	*out = stream_new();
	return leave(*out ? CUDL_OK : CUDL_OUT_OF_MEMORY);
}

EXPORT cudl_result cuStreamSynchronize(cudl_stream h)
{
	struct CUstream_st *s;

	ENTER_CONTEXT("cuStreamSynchronize");
	cudl_result r = stream_of(h, &s);
	while (!r && s->first)
		pthread_cond_wait(&cond, &lock);
	return leave(r ? r : lost ? LOST : CUDL_OK);
}

EXPORT cudl_result cuStreamDestroy_v2(cudl_stream h)
{
	ENTER_CONTEXT("cuStreamDestroy");
	while (h->first)
		pthread_cond_wait(&cond, &lock);
	h->used = false;
	return leave(CUDL_OK);
}

/* What was registered in it, and its events, go with it. */
static void end_context(cudl_context ctx)
{
	for (int i = 0; i < STREAMS; i++)
		while (streams[i].ctx == ctx && streams[i].first)
			pthread_cond_wait(&cond, &lock);
	for (int i = 0; i < RANGES; i++)
		if (ranges[i].kind == REGISTERED && ranges[i].device == ctx->device) {
			ranges[i].kind = NONE;
			--*counter("registered_now");
		}
	for (struct CUevent_st *e = events, *next; e; e = next) {
		next = e->next;
		if (e->ctx == ctx)
			event_free(e);
	}
}

EXPORT cudl_result cuCtxSynchronize(void)
{
	ENTER_CONTEXT("cuCtxSynchronize");
	for (int i = 0; i < STREAMS; i++)
		while (streams[i].used && streams[i].ctx == current() && streams[i].first)
			pthread_cond_wait(&cond, &lock);
	return leave(lost ? LOST : CUDL_OK);
}

EXPORT cudl_result cuEventCreate(cudl_event *out, unsigned flags)
{
	ENTER_CONTEXT("cuEventCreate");
	if (!(flags & CUDL_EVENT_BLOCKING))
		violation("an event that is waited for by spinning");
	*out = calloc(1, sizeof(**out));
	(*out)->ctx = current();
	(*out)->next = events;
	events = *out;
	++*counter("events_now");
	return leave(CUDL_OK);
}

EXPORT cudl_result cuEventRecord(cudl_event e, cudl_stream h)
{
	struct CUstream_st *s;

	ENTER_CONTEXT("cuEventRecord");
	cudl_result r = stream_of(h, &s);
	if (!r && e->ctx != s->ctx)
		r = INVALID_HANDLE;
	if (!r)
		queue(s, (struct op){ .event = e, .number = ++e->asked });
	return leave(r);
}

EXPORT cudl_result cuEventSynchronize(cudl_event e)
{
	ENTER("cuEventSynchronize");
	unsigned long long until = e->asked;
	while (e->done < until)
		pthread_cond_wait(&cond, &lock);
	return leave(lost ? LOST : CUDL_OK);
}

EXPORT cudl_result cuEventDestroy_v2(cudl_event e)
{
	cudl_result r = enter("cuEventDestroy");

	/* It does not wait, so that who should have is seen. */
	if (e->done < e->asked) {
		e->dead = true;
		--*counter("events_now");
	} else {
		event_free(e);
	}
	return leave(r);
}

/* ---- copies ---- */

static bool loses(void)
{
	unsigned long long at = env_number("FAKE_CUDA_LOST", 0);

	if (at && ++copies == at)
		lost = true;
	return lost;
}

static cudl_result copy(cudl_stream h, const void *to, bool to_device, const void *from,
			bool from_device, size_t n, const void *host)
{
	struct CUstream_st *s;
	char *dst, *src;
	cudl_result r = stream_of(h, &s);

	if (r)
		return r;
	if (loses())
		return LOST;
	dst = bytes_at(to, n, to_device);
	src = bytes_at(from, n, from_device);
	if (!dst || !src)
		return CUDL_INVALID_VALUE;
	*counter("bytes_copied") += n;
	queue(s, (struct op){ .to = dst, .from = src, .n = n, .host = host });
	if (!range_of(host))	/* pageable memory: done at the return */
		while (s->first)
			pthread_cond_wait(&cond, &lock);
	return CUDL_OK;
}

EXPORT cudl_result cuMemcpyDtoHAsync_v2(void *to, cudl_ptr from, size_t n, cudl_stream h)
{
	ENTER_CONTEXT("cuMemcpyDtoHAsync");
	return leave(copy(h, to, false, (void *)(uintptr_t)from, true, n, to));
}

EXPORT cudl_result cuMemcpyHtoDAsync_v2(cudl_ptr to, const void *from, size_t n, cudl_stream h)
{
	ENTER_CONTEXT("cuMemcpyHtoDAsync");
	return leave(copy(h, (void *)(uintptr_t)to, true, from, false, n, from));
}

/* From host to host: in the stream's order, and done at the return. */
EXPORT cudl_result cuMemcpyAsync(cudl_ptr to, cudl_ptr from, size_t n, cudl_stream h)
{
	struct CUstream_st *s;

	ENTER_CONTEXT("cuMemcpyAsync");
	cudl_result r = copy(h, (void *)(uintptr_t)to, false, (void *)(uintptr_t)from, false, n,
			     (void *)(uintptr_t)to);
	if (!r)
		r = stream_of(h, &s);
	while (!r && s->first)
		pthread_cond_wait(&cond, &lock);
	return leave(r);
}

/* ---- texts and lookup ---- */

EXPORT cudl_result cuGetErrorName(cudl_result r, const char **name)
{
	static const struct {
		cudl_result r;
		const char *name;
	} names[] = {
		{ CUDL_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY" },
		{ CUDL_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE" },
		{ CUDL_NO_DEVICE, "CUDA_ERROR_NO_DEVICE" },
		{ CUDL_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT" },
		{ 700, "CUDA_ERROR_ILLEGAL_ADDRESS" },
		{ LOST, "CUDA_ERROR_LAUNCH_FAILED" },
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].r == r) {
			*name = names[i].name;
			return CUDL_OK;
		}
	return CUDL_INVALID_VALUE;
}

EXPORT cudl_result cuGetErrorString(cudl_result r, const char **text)
{
	(void)r;
	*text = "told by the fake";
	return CUDL_OK;
}

/* Gives the form that was asked for: the one declared in cuda_dl.h, or none if that is newer. */
EXPORT cudl_result cuGetProcAddress_v2(const char *name, void **fn, int version, unsigned long long flags,
				       int *status)
{
	(void)flags;
	(void)status;
	if (getenv("FAKE_CUDA_OLD"))
		return 500;
#define FIND(field, call, symbol, since, args)                                                     \
	if (!strcmp(name, #call) && version >= since) {                                            \
		extern cudl_result call##_fake args __asm__(symbol);                               \
		*fn = (void *)call##_fake;                                                         \
		return CUDL_OK;                                                                    \
	}
	CUDA_DL_CALLS(FIND)
#undef FIND
	return 500;
}

/* ---- for tests ---- */

EXPORT unsigned long long fake_cuda_count(const char *name)
{
	unsigned long long n;

	pthread_mutex_lock(&lock);
	n = *counter(name);
	pthread_mutex_unlock(&lock);
	return n;
}

EXPORT void fake_cuda_fail(const char *spec)
{
	pthread_mutex_lock(&lock);
	snprintf(fail_spec, sizeof(fail_spec), "%s", spec);
	pthread_mutex_unlock(&lock);
}

EXPORT void fake_cuda_reset(void)
{
	pthread_mutex_lock(&lock);
	lost = false;
	copies = 0;
	for (size_t i = 0; i < 95; i++)
		if (!strstr(counts[i].name, "_now"))
			counts[i].n = 0;
	pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void begin(void)
{
	const char *spec = getenv("FAKE_CUDA_FAIL");

	if (spec)
		snprintf(fail_spec, sizeof(fail_spec), "%s", spec);
#define NAME(name) counter(#name);
	COUNTERS(NAME)
#undef NAME
}

__attribute__((destructor)) static void end(void)
{
	const char *path = getenv("FAKE_CUDA_LOG");
	FILE *f = path ? fopen(path, "we") : NULL;

	for (size_t i = 0; f && i < 95 && counts[i].name[0]; i++)
		fprintf(f, "%s %llu\n", counts[i].name, counts[i].n);
	if (f)
		fclose(f);
	if (!getenv("FAKE_CUDA_STRICT") || lost)
		return;
	if (*counter("registered_now"))
		fprintf(stderr, "fake_cuda: %llu registrations are left\n", *counter("registered_now"));
	if (*counter("registered_now") || *counter("violations")) {
		fflush(NULL);
		_exit(86);
	}
}

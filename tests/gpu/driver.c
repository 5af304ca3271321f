/* SPDX-License-Identifier: MIT
 *
 * What tools/libcairn/cuda_dl.[ch] believes of the CUDA driver, asked of the driver: `make check-gpu`. Exit
 * code 77 where there is none. The fake of tests/lib/fake_cuda.c must answer the same.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tools/libcairn/cuda_dl.h"

#define MiB (1ul << 20)

static struct cuda_dl cu;

#define TRUE(what)                                                                                 \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			fprintf(stderr, "line %d: %s does not hold; last: %s\n", __LINE__, #what,  \
				cuda_dl_error());                                                  \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static char *pages(size_t n)
{
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	TRUE(p != MAP_FAILED);
	return p;
}

/* Before anything has a context. */
static void without_context(void)
{
	struct cuda_dl_primaries p = { 0 };
	enum cuda_dl_memory what;
	bool pushed;
	int device, err;

	TRUE(cuda_dl_enter(&cu, &p, -1, &pushed) == -ENODEV && !pushed);
	err = cuda_dl_where(&cu, &p, &what, &device);
	TRUE(err ? cuda_dl_lacks_context() : what == CUDA_DL_PLAIN);
	TRUE(cuda_dl_enter(&cu, &p, 0, &pushed) == 0 && pushed);
	cuda_dl_leave(&cu, pushed);
	TRUE(cuda_dl_enter(&cu, &p, -1, &pushed) == 0 && pushed);	/* it is active now */
	cuda_dl_leave(&cu, pushed);
	cuda_dl_release(&cu, &p);
}

static void kinds(void *pinned, cudl_ptr dev, const char *plain)
{
	enum cuda_dl_memory what;
	int device;

	TRUE(!cuda_dl_where(&cu, (void *)(uintptr_t)(dev + 100), &what, &device));
	TRUE(what == CUDA_DL_DEVICE && device == 0);
	TRUE(!cuda_dl_where(&cu, pinned, &what, &device) && what == CUDA_DL_PINNED);
	TRUE(!cuda_dl_where(&cu, plain, &what, &device) && what == CUDA_DL_PLAIN);
}

static void registration(char *m, size_t n)
{
	struct cuda_dl_pin pin, again;
	enum cuda_dl_memory what;
	int device;

	TRUE(!cuda_dl_register(&cu, m, n, &pin) && pin.pinned && pin.calls == 1);
	TRUE(!cuda_dl_where(&cu, m + n / 2, &what, &device) && what == CUDA_DL_PINNED);
	TRUE(!cuda_dl_register(&cu, m, n, &again) && again.pinned && again.calls == 0);	/* 712 */
	cuda_dl_unregister(&cu, &again);
	TRUE(!cuda_dl_where(&cu, m, &what, &device) && what == CUDA_DL_PINNED);
	cuda_dl_unregister(&cu, &pin);
	TRUE(!cuda_dl_where(&cu, m, &what, &device) && what == CUDA_DL_PLAIN);
}

static void copies(char *m, size_t n, cudl_ptr dev, void *pinned)
{
	struct cuda_dl_pin pin;
	struct cuda_dl_marks marks = { 0 };
	cudl_stream stream;
	unsigned char *want = pinned;

	TRUE(!cu.stream_create(&stream, CUDL_STREAM_NON_BLOCKING));
	for (int round = 0; round < 3; round++) {
		bool registered = round < 2;

		for (size_t i = 0; i < n; i++)
			want[i] = (unsigned char)(i * 7 + i / 4096 + (size_t)round);
		TRUE(!registered || !cuda_dl_register(&cu, m, n, &pin));
		if (!registered)
			memset(&pin, 0, sizeof(pin));
		TRUE(!cuda_dl_copy_to(&cu, NULL, (void *)(uintptr_t)dev, want, n, stream));
		for (size_t at = 0; at < n; at += n / 8)
			TRUE(!cuda_dl_copy_from(&cu, &pin, m + at, (void *)(uintptr_t)(dev + at), n / 8,
						stream));
		TRUE(!cuda_dl_mark(&cu, &marks, stream));
		TRUE(!cuda_dl_marks_wait(&cu, &marks));
		TRUE(!memcmp(m, want, n));
		memset(m, 0, n);
		TRUE(!cuda_dl_copy_in_order(&cu, &pin, m, want, n, stream));
		TRUE(!cuda_dl_mark(&cu, &marks, stream) && !cuda_dl_marks_wait(&cu, &marks));
		TRUE(!memcmp(m, want, n));
		memset(m, 0, n);
		cuda_dl_unregister(&cu, &pin);
	}
	cuda_dl_marks_free(&cu, &marks);
	cu.stream_destroy(stream);
}

/* From host memory to host memory a copy is done when the call returns, and behind what the stream
 * had: cairn_shard_copy of pinned memory says so. */
static void host_to_host(char *m, size_t n, cudl_ptr dev, void *pinned)
{
	struct cuda_dl_pin pin;
	cudl_stream stream;
	char *want = malloc(n);

	TRUE(want && !cu.stream_create(&stream, CUDL_STREAM_NON_BLOCKING));
	TRUE(!cuda_dl_register(&cu, m, n, &pin));
	for (size_t i = 0; i < n; i++)
		want[i] = (char)(i * 13 + i / 4096);
	memcpy(pinned, want, n);
	TRUE(!cuda_dl_copy_to(&cu, NULL, (void *)(uintptr_t)dev, pinned, n, stream));
	TRUE(!cu.stream_sync(stream));
	memset(pinned, 0, n);
	TRUE(!cuda_dl_copy_from(&cu, NULL, pinned, (void *)(uintptr_t)dev, n, stream));
	TRUE(!cuda_dl_copy_in_order(&cu, &pin, m, pinned, n, stream));
	memset(pinned, 0, n);
	TRUE(!memcmp(m, want, n));
	cuda_dl_unregister(&cu, &pin);
	cu.stream_destroy(stream);
	free(want);
}

/* The handles that stand for default streams, and that an event of one is waited for. */
static void handles(char *m, size_t n, cudl_ptr dev, void *pinned)
{
	static const cudl_stream handle[] = { NULL, CUDL_STREAM_LEGACY, CUDL_STREAM_PER_THREAD };
	struct cuda_dl_marks marks = { 0 };

	for (unsigned i = 0; i < 3; i++) {
		memset(pinned, (int)i + 1, n);
		memset(m, 0, n);
		TRUE(!cuda_dl_copy_to(&cu, NULL, (void *)(uintptr_t)dev, pinned, n, handle[i]));
		TRUE(!cuda_dl_copy_from(&cu, NULL, m, (void *)(uintptr_t)dev, n, handle[i]));
		TRUE(!cuda_dl_mark(&cu, &marks, handle[i]) && !cuda_dl_marks_wait(&cu, &marks));
		TRUE(!memcmp(m, pinned, n));
	}
	cuda_dl_marks_free(&cu, &marks);
}

int main(void)
{
	struct cuda_dl_primaries p = { 0 };
	size_t n = 16 * MiB;
	char *m = pages(n);
	cudl_ptr dev;
	void *pinned;
	bool pushed;

	if (cuda_dl_open(&cu)) {
		printf("SKIP: no GPU here (%s)\n", cuda_dl_error());
		return 77;
	}
	without_context();
	TRUE(!cuda_dl_enter(&cu, &p, 0, &pushed));
	TRUE(!cu.mem_alloc(&dev, n) && !cu.host_alloc(&pinned, n));
	kinds(pinned, dev, m);
	registration(m, n);
	copies(m, n, dev, pinned);
	host_to_host(m, n, dev, pinned);
	handles(m, n, dev, pinned);
	TRUE(!cu.mem_free(dev) && !cu.host_free(pinned));
	cuda_dl_leave(&cu, pushed);
	cuda_dl_release(&cu, &p);
	puts("the driver answers as cuda_dl.h says");
	return 0;
}

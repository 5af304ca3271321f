/* SPDX-License-Identifier: MIT
 * Many questions to the store at once: a shared filesystem takes its time for each, and a .metadata
 * may list thousands of files. */
#include "fs/tree/inside.h"

#define THREADS_MAX 32u /* half a millisecond each: 8,000 questions take an eighth of a second */
#define EACH 8u /* at least so many for a thread, which costs some 20 microseconds to start */

struct at_once {
	void (*one)(void *ctx, size_t i);
	void *ctx;
	size_t end;
	atomic_size_t next;
};

static void *answer(void *arg)
{
	struct at_once *a = arg;

	for (size_t i; (i = atomic_fetch_add(&a->next, 1)) < a->end;)
		a->one(a->ctx, i);
	return NULL;
}

void at_once(size_t from, size_t end, void (*one)(void *ctx, size_t i), void *ctx)
{
	struct at_once a = {.one = one, .ctx = ctx, .end = end, .next = from};
	pthread_t thread[THREADS_MAX];
	size_t most = (end - from) / EACH, n = 0;

	while (n + 1 < most && n < THREADS_MAX && !pthread_create(&thread[n], NULL, answer, &a))
		n++;
	answer(&a);
	while (n)
		pthread_join(thread[--n], NULL);
}

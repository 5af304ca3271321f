/* SPDX-License-Identifier: MIT
 * Threads for view requests that may take long: they may parse. Created on demand; they end with
 * the process.
 */
#include "fs/views/inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define POOL 3u

static pthread_mutex_t jobs_lock = RANKED_MUTEX(RANK_VIEWS_JOBS);
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static struct vjob *queue, **queue_end = &queue;
static unsigned n_threads, n_idle; /* guarded by jobs_lock, like the queue */

static void *pool_main(void *arg)
{
	(void)arg;
	pthread_setname_np(pthread_self(), "cairn-views");
	for (;;) {
		pthread_mutex_lock(&jobs_lock);
		n_idle++;
		while (!queue)
			pthread_cond_wait(&cond, &jobs_lock);
		n_idle--;
		struct vjob *j = queue;
		queue = j->next;
		if (!queue)
			queue_end = &queue;
		pthread_mutex_unlock(&jobs_lock);
		caller_of(j->req, &j->who);
		j->answer(j);
		caller_free(&j->who);
		free(j);
	}
	return NULL;
}

void vjob_put(struct vjob *j)
{
	pthread_t t;
	pthread_mutex_lock(&jobs_lock);
	if (!n_idle && n_threads < POOL && !pthread_create(&t, NULL, pool_main, NULL)) {
		pthread_detach(t);
		n_threads++;
	}
	bool any = n_threads > 0;
	if (any) {
		j->next = NULL;
		*queue_end = j;
		queue_end = &j->next;
		pthread_cond_signal(&cond);
	}
	pthread_mutex_unlock(&jobs_lock);
	if (!any) {
		fuse_reply_err(j->req, EAGAIN);
		free(j);
	}
}

struct vjob *vjob_new(fuse_req_t req, vjob_answer *answer, uint64_t id, const char *name)
{
	struct vjob *j = calloc(1, sizeof(*j) + strlen(name) + 1);
	if (!j) {
		fuse_reply_err(req, ENOMEM);
		return NULL;
	}
	j->answer = answer;
	j->req = req;
	j->id = id;
	strcpy(j->name, name);
	return j;
}

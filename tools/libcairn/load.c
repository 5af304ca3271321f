/* SPDX-License-Identifier: MIT
 *
 * Reading. Into host memory with pread. Into a device, bytes go through a few chunks of
 * registered memory, which the stage keeps: one is read into while others are copied from. Large
 * reads use several threads, since one cannot read as fast as a device takes.
 *
 *	chunk:	free ──taken──▶ busy ──copy queued──▶ free (the next user waits for its mark)
 */
#include "io/full.h"
#include "priv.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define THREADS 4
#define THREADS_FROM (256ull << 20)

struct job {
	cairn_stage *stage;
	const char *path;
	int fd;
	uint64_t off, n;
	char *dst;
	void *stream;
	int device;
	cudl_context ctx;
	atomic_ullong next; /* offset into dst of the next chunk */
	atomic_int err;
	pthread_mutex_t lock; /* text */
	char text[512];
};

/* ---- reading ---- */

static int read_all(int fd, char *to, uint64_t n, uint64_t off, const char *path)
{
	ssize_t got = full_pread(fd, to, n, off);

	if (got < 0)
		return fail_on((int)got, "read", path);
	if ((uint64_t)got < n)
		return fail(-ENODATA,
			    "%s ends at %llu, %llu bytes before what was asked for: is the "
			    "checkpoint whole? (cairn check)",
			    path, (unsigned long long)off + (uint64_t)got,
			    (unsigned long long)n - (uint64_t)got);
	return 0;
}

/* ---- chunks ---- */

static struct chunk *find_free(cairn_stage *stage)
{
	for (;;) {
		for (unsigned i = 0; i < LOAD_CHUNKS; i++)
			if (!stage->chunk[i].busy)
				return &stage->chunk[i];
		pthread_cond_wait(&stage->load_cond, &stage->load_lock);
	}
}

static void chunk_put(cairn_stage *stage, struct chunk *c)
{
	pthread_mutex_lock(&stage->load_lock);
	c->busy = false;
	pthread_cond_signal(&stage->load_cond);
	pthread_mutex_unlock(&stage->load_lock);
}

/* A chunk that nothing copies from any more. */
static struct chunk *chunk_get(cairn_stage *stage, int device, int *err)
{
	struct chunk *c;

	pthread_mutex_lock(&stage->load_lock);
	c = find_free(stage);
	c->busy = true;
	pthread_mutex_unlock(&stage->load_lock);
	if (!c->buffer)
		c->buffer = buffer_own(stage, LOAD_CHUNK, err);
	if (c->buffer) {
		gpu_pin(stage, c->buffer, device);
		/* an error here is of a copy that another load queued: its stream reports it */
		gpu_wait(stage, c->buffer);
		return c;
	}
	chunk_put(stage, c);
	return NULL;
}

static int load_chunk(struct job *j, uint64_t at, uint64_t n)
{
	int err = 0;
	struct chunk *c = chunk_get(j->stage, j->device, &err);

	if (!c)
		return err;
	err = read_all(j->fd, c->buffer->base, n, j->off + at, j->path);
	if (!err) {
		err = gpu_copy_to(j->stage, c->buffer, j->dst + at, n, j->stream, j->device);
		if (err)
			err = fail(-EIO, "load %s: %s", j->path, cuda_dl_error());
	}
	chunk_put(j->stage, c);
	return err;
}

static void job_failed(struct job *j, int err)
{
	pthread_mutex_lock(&j->lock);
	if (!j->err) {
		snprintf(j->text, sizeof(j->text), "%s", cairn_error());
		j->err = err;
	}
	pthread_mutex_unlock(&j->lock);
}

static void job_work(struct job *j)
{
	while (!j->err) {
		uint64_t at = atomic_fetch_add(&j->next, LOAD_CHUNK);
		int err;

		if (at >= j->n)
			break;
		err = load_chunk(j, at, j->n - at < LOAD_CHUNK ? j->n - at : LOAD_CHUNK);
		if (err)
			job_failed(j, err);
	}
}

static void *job_thread(void *arg)
{
	struct job *j = arg;

	gpu_push(j->stage, j->ctx);
	job_work(j);
	gpu_pop(j->stage, j->ctx);
	return NULL;
}

static int job_run(struct job *j)
{
	unsigned want = j->n >= THREADS_FROM ? THREADS - 1 : 0, n = 0;
	pthread_t t[THREADS];
	sigset_t all, old;

	j->ctx = gpu_current(j->stage);
	lock_init(&j->lock, RANK_LOAD_JOB);
	/* the program's signals must not go to threads it does not know */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	while (n < want && !pthread_create(&t[n], NULL, job_thread, j))
		n++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	job_work(j);
	while (n)
		pthread_join(t[--n], NULL);
	pthread_mutex_destroy(&j->lock);
	return j->err ? fail(j->err, "%s", j->text) : 0;
}

/* ---- the call ---- */

static void count_load(cairn_stage *stage, int calls, uint64_t bytes)
{
	pthread_mutex_lock(&stage->lock);
	stage->calls += (unsigned)calls;
	stage->stats.bytes_loaded += bytes;
	pthread_mutex_unlock(&stage->lock);
}

static int load(struct job *j)
{
	CLEANUP_CLOSE int fd = open(j->path, O_RDONLY | O_CLOEXEC);
	enum cuda_dl_memory what;

	if (fd < 0)
		return fail_on(-errno, "open", j->path);
	j->fd = fd;
	if (gpu_where(j->stage, j->dst, &what, &j->device))
		return fail(-EIO, "load %s: %s", j->path, cuda_dl_error());
	if (what == CUDA_DL_PLAIN || what == CUDA_DL_PINNED)
		return read_all(fd, j->dst, j->n, j->off, j->path);
	return job_run(j);
}

int cairn_load(cairn_stage *stage, const char *path, uint64_t off, void *dst, uint64_t n,
	       void *stream)
{
	struct job j = {
		.stage = stage, .path = path, .off = off, .n = n, .dst = dst, .stream = stream};
	int err = stage_usable(stage);

	if (err)
		return err;
	if (!path || (!dst && n) || off > INT64_MAX || n > INT64_MAX - off)
		return fail(-EINVAL, "cairn_load: no path or memory, or an invalid offset");
	count_load(stage, 1, 0);
	err = load(&j);
	count_load(stage, -1, err ? 0 : n);
	return err;
}

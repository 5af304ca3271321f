/* SPDX-License-Identifier: MIT
 *
 * `write`: checkpoints as a trainer writes them. Round N makes step-N with one
 * shard a rank, waits until it is durable, and removes step-(N-1), as rotation
 * does. open..close and close..durable are timed; the rest happens in between.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "bench.h"

#define STEP_PATH (PATH_MAX + 64)

/* One rank's times; shared memory, written by the rank. */
struct rank_times {
	double start, opened, written, closed;
	int err;
};

struct round_shared {
	struct bench_barrier ready;
	struct rank_times rank[];
};

static void step_path(const struct bench *b, const struct bench_place *p, unsigned step, char *out)
{
	/* letters: with digits alone it would resemble the previous step (fs/tree/expect.c) */
	if (b->first)
		snprintf(out, STEP_PATH, "%s/first-%c%c", p->run, 'a' + step / 26 % 26,
			 'a' + step % 26);
	else
		snprintf(out, STEP_PATH, "%s/step-%u", p->run, step);
}

static int write_shard(const struct bench *b, const struct bench_place *p, const char *path,
		       struct rank_times *t)
{
	CLEANUP_CLOSE int fd = -1;
	int err;

	t->start = bench_now();
	fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	t->opened = bench_now();
	err = bench_write_all(b, fd, b->size);
	if (!err && p->fsync && fsync(fd))
		err = -errno;
	t->written = bench_now();
	if (close(fd) && !err)
		err = -errno;
	fd = -1;
	t->closed = bench_now();
	return err;
}

static void rank_main(const struct bench *b, const struct bench_place *p, const char *step,
		      struct round_shared *sh, unsigned rank)
{
	char path[STEP_PATH + 32];

	snprintf(path, sizeof(path), "%s/__%u_0.distcp", step, rank);
	if (b->ranks > 1)
		bench_barrier_wait(&sh->ready, b->ranks);
	sh->rank[rank].err = write_shard(b, p, path, &sh->rank[rank]);
}

static int wait_one(void)
{
	int status;

	while (wait(&status) < 0)
		if (errno != EINTR)
			return -errno;
	return status ? -ECHILD : 0;
}

/* All ranks at once, each a process: the fork is complete before the first one starts. */
static int write_step(const struct bench *b, const struct bench_place *p, const char *step,
		      struct round_shared *sh)
{
	int err = 0;
	pid_t pid;

	memset(sh, 0, sizeof(*sh) + b->ranks * sizeof(sh->rank[0]));
	for (unsigned r = 1; r < b->ranks; r++) {
		pid = fork();
		if (pid < 0)
			return -errno; /* we exit, and with us those that wait at the barrier */
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			rank_main(b, p, step, sh, r);
			_exit(0);
		}
	}
	rank_main(b, p, step, sh, 0);
	for (unsigned r = 1; r < b->ranks; r++)
		if (wait_one())
			err = -ECHILD;
	for (unsigned r = 0; r < b->ranks && !err; r++)
		err = sh->rank[r].err;
	return err;
}

/* Rank 0's open and close represent all; the rate is that of the whole step. */
static void add_times(struct bench *b, const struct bench_place *p, const struct round_shared *sh,
		      double *closed)
{
	double first = sh->rank[0].start, last = sh->rank[0].closed;

	for (unsigned r = 1; r < b->ranks; r++) {
		first = sh->rank[r].start < first ? sh->rank[r].start : first;
		last = sh->rank[r].closed > last ? sh->rank[r].closed : last;
	}
	*closed = last;
	bench_add(b, p->label, "write+close", "GB/s",
		  (double)b->size * b->ranks / (last - first) / 1e9);
	bench_add(b, p->label, "open", "ms", (sh->rank[0].opened - sh->rank[0].start) * 1e3);
	bench_add(b, p->label, "close", "ms", (sh->rank[0].closed - sh->rank[0].written) * 1e3);
}

/* The memory that a tmpfs or a page cache takes next is warm if a cycle of the same size
 * ran just before. The mount must be ready by itself. */
static int warm(const struct bench *b, const struct bench_place *p, struct round_shared *sh)
{
	char step[STEP_PATH];
	int err;

	if (p->cairn)
		return 0;
	snprintf(step, sizeof(step), "%s/warm", p->run);
	if (mkdir(step, 0755))
		return -errno;
	err = write_step(b, p, step, sh);
	return err ? err : bench_remove_tree(step);
}

static int one(struct bench *b, struct bench_place *p, unsigned step, bool timed,
	       struct round_shared *sh)
{
	char path[STEP_PATH], old[STEP_PATH];
	double cpu, closed, total = (double)b->size * b->ranks;
	int err;

	step_path(b, p, step, path);
	if (mkdir(path, 0755))
		return -errno;
	err = timed ? warm(b, p, sh) : 0;
	if (err)
		return err;
	cpu = bench_cpu(p);
	err = write_step(b, p, path, sh);
	if (err)
		return err;
	if (timed)
		add_times(b, p, sh, &closed);
	err = bench_durable(p, path);
	if (err)
		return err;
	if (timed && p->disk && !p->fsync)
		bench_add(b, p->label, "close->durable", "GB/s",
			  total / (bench_now() - closed) / 1e9);
	if (step > 0) {
		step_path(b, p, step - 1, old);
		err = bench_remove_tree(old);
	}
	bench_settle(p);
	if (timed && p->worker)
		bench_add(b, p->label, "daemon CPU", "s/GiB",
			  (bench_cpu(p) - cpu) * (1 << 30) / total);
	return err;
}

static int all_rounds(struct bench *b, struct round_shared *sh)
{
	int err;

	/* two untimed steps: the first touches the memory, the second finds the first one's size */
	for (unsigned n = 0; n < b->rounds + 2; n++) {
		bool timed = n >= 2;

		if (timed && b->idle_s)
			sleep(b->idle_s);
		for (unsigned i = 0; i < b->n_places; i++) {
			if (bench_stop)
				return -EINTR;
			err = one(b, &b->place[i], n, timed, sh);
			if (err)
				return err;
		}
		if (timed && b->between && system(b->between))
			return -ECHILD;
	}
	return 0;
}

int bench_cmd_write(struct bench *b)
{
	size_t len = sizeof(struct round_shared) + b->ranks * sizeof(struct rank_times);
	struct round_shared *sh;
	int err;

	sh = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sh == MAP_FAILED)
		return -errno;
	err = all_rounds(b, sh);
	munmap(sh, len);
	return err;
}

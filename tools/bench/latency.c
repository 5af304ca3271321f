/* SPDX-License-Identifier: MIT
 *
 * `latency`: ranks save step after step, as DCP does (shards, barrier, rank 0 renames
 * .metadata, the previous step is removed), while every call is timed and every byte read
 * back. Meanwhile the parent may kill the cairnfs worker; a stall is the longest call
 * that was in progress or began in the second after a kill.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "bench.h"

#define SLOW_S 0.002 /* shorter calls are counted, not kept */
#define MAX_SLOW 65536
#define WINDOW_S 1.0
#define STEP_PATH (PATH_MAX + 64)

struct slow {
	double start, end;
	char op[12];
};

struct shared {
	struct bench_barrier bar;
	atomic_bool last; /* parent: finish; rank 0 passes it on in `over` */
	atomic_bool over;
	atomic_uint errors, calls, steps, n_slow;
	char first_error[256];
	struct slow slow[MAX_SLOW];
};

struct rank {
	const struct bench *b;
	const struct bench_place *p;
	struct shared *sh;
	unsigned id;
	char *want, *got; /* one block each */
};

static void note(struct rank *k, const char *op, double start, bool failed)
{
	struct shared *sh = k->sh;
	double end = bench_now();
	int err = errno;
	unsigned at;

	atomic_fetch_add(&sh->calls, 1);
	if (failed && atomic_fetch_add(&sh->errors, 1) == 0)
		snprintf(sh->first_error, sizeof(sh->first_error), "rank %u: %s: %s", k->id, op,
			 strerror(err));
	if (end - start < SLOW_S)
		return;
	at = atomic_fetch_add(&sh->n_slow, 1);
	if (at >= MAX_SLOW)
		return;
	snprintf(sh->slow[at].op, sizeof(sh->slow[at].op), "%s", op);
	sh->slow[at].start = start;
	sh->slow[at].end = end;
}

#define TIMED(k, op, call)                                                                         \
	({                                                                                         \
		double start_ = bench_now();                                                       \
		long ret_ = (call);                                                                \
		note(k, op, start_, ret_ < 0);                                                     \
		ret_;                                                                              \
	})

/* Contents of block `off` of this rank's shard of this step. */
static void stamp(struct rank *k, unsigned step, uint64_t off)
{
	uint64_t mark[2] = {(uint64_t)step << 32 | k->id, off};

	memcpy(k->want, mark, sizeof(mark));
}

static void save_shard(struct rank *k, const char *path, unsigned step)
{
	const struct bench *b = k->b;
	int fd = TIMED(k, "open", open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644));

	if (fd < 0)
		return;
	for (uint64_t off = 0; off < b->size; off += b->block) {
		stamp(k, step, off);
		TIMED(k, "write", write(fd, k->want, b->block));
	}
	TIMED(k, "close", close(fd));
}

static void check_shard(struct rank *k, const char *path, unsigned step)
{
	const struct bench *b = k->b;
	int fd = TIMED(k, "open", open(path, O_RDONLY | O_CLOEXEC));
	ssize_t n;

	if (fd < 0)
		return;
	for (uint64_t off = 0; off < b->size; off += b->block) {
		stamp(k, step, off);
		n = TIMED(k, "read", read(fd, k->got, b->block));
		if (n == (ssize_t)b->block && !memcmp(k->got, k->want, b->block))
			continue;
		errno = EILSEQ;
		note(k, "compare", bench_now(), true);
		break;
	}
	TIMED(k, "close", close(fd));
}

static void commit(struct rank *k, const char *dir)
{
	char tmp[STEP_PATH + 32], name[STEP_PATH + 32];
	int fd;

	snprintf(tmp, sizeof(tmp), "%s/.metadata.tmp", dir);
	snprintf(name, sizeof(name), "%s/.metadata", dir);
	fd = TIMED(k, "open", open(tmp, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644));
	if (fd < 0)
		return;
	TIMED(k, "write", write(fd, k->b->src, 4096));
	TIMED(k, "close", close(fd));
	TIMED(k, "rename", rename(tmp, name));
}

static void remove_step(struct rank *k, const char *dir)
{
	char path[STEP_PATH + 32];

	for (unsigned r = 0; r < k->b->ranks; r++) {
		snprintf(path, sizeof(path), "%s/__%u_0.distcp", dir, r);
		TIMED(k, "unlink", unlink(path));
	}
	snprintf(path, sizeof(path), "%s/.metadata", dir);
	TIMED(k, "unlink", unlink(path));
	TIMED(k, "rmdir", rmdir(dir));
}

static void one_step(struct rank *k, unsigned step)
{
	char dir[STEP_PATH], shard[STEP_PATH + 32];
	unsigned ranks = k->b->ranks;

	snprintf(dir, sizeof(dir), "%s/step-%u", k->p->run, step);
	snprintf(shard, sizeof(shard), "%s/__%u_0.distcp", dir, k->id);
	if (k->id == 0)
		TIMED(k, "mkdir", mkdir(dir, 0755));
	bench_barrier_wait(&k->sh->bar, ranks);
	save_shard(k, shard, step);
	bench_barrier_wait(&k->sh->bar, ranks);
	if (k->id == 0)
		commit(k, dir);
	check_shard(k, shard, step);
	bench_barrier_wait(&k->sh->bar, ranks);
	if (k->id || !step)
		return;
	snprintf(dir, sizeof(dir), "%s/step-%u", k->p->run, step - 1);
	remove_step(k, dir);
}

static void rank_main(struct rank *k)
{
	double begun;

	k->want = bench_source(k->b->block);
	k->got = bench_source(k->b->block);
	if (!k->want || !k->got)
		_exit(1);
	for (unsigned step = 0; !atomic_load(&k->sh->over); step++) {
		begun = bench_now();
		one_step(k, step);
		if (k->id == 0) {
			atomic_fetch_add(&k->sh->steps, 1);
			atomic_store(&k->sh->over, atomic_load(&k->sh->last) || bench_stop);
		}
		bench_barrier_wait(&k->sh->bar, k->b->ranks);
		while (bench_now() - begun < k->b->pace_ms / 1e3 && !atomic_load(&k->sh->over))
			sleep_ms(2);
	}
	_exit(0);
}

/* ---- the parent ----------------------------------------------------------------- */

/* Only a process named cairnfs that is not the keeper is ever killed. */
static int kill_worker(struct bench_place *p, double *when)
{
	char path[64], comm[32] = "";
	int err = bench_pids(p);
	FILE *f;

	if (err)
		return err;
	snprintf(path, sizeof(path), "/proc/%d/comm", p->worker);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	if (!fgets(comm, sizeof(comm), f))
		comm[0] = '\0';
	fclose(f);
	if (p->worker == p->keeper || strncmp(comm, "cairnfs", 7))
		return -ESRCH;
	*when = bench_now();
	return kill(p->worker, SIGKILL) ? -errno : 0;
}

static bool near_kill(const struct slow *s, double when)
{
	return s->start < when + WINDOW_S && s->end > when;
}

static void add_figures(struct bench *b, const struct bench_place *p, const struct shared *sh,
			const double *when, unsigned killed)
{
	unsigned n = sh->n_slow < MAX_SLOW ? sh->n_slow : MAX_SLOW;
	double longest, other = 0;

	for (unsigned i = 0; i < killed; i++) {
		longest = 0;
		for (unsigned k = 0; k < n; k++)
			if (near_kill(&sh->slow[k], when[i]) &&
			    sh->slow[k].end - sh->slow[k].start > longest)
				longest = sh->slow[k].end - sh->slow[k].start;
		bench_add(b, p->label, "stall", "ms", longest * 1e3);
	}
	for (unsigned k = 0; k < n; k++) {
		bool near = false;

		for (unsigned i = 0; i < killed && !near; i++)
			near = near_kill(&sh->slow[k], when[i]);
		if (!near && sh->slow[k].end - sh->slow[k].start > other)
			other = sh->slow[k].end - sh->slow[k].start;
	}
	bench_add(b, p->label, "longest other", "ms", other * 1e3);
	bench_add(b, p->label, "errors", "", sh->errors);
	bench_add(b, p->label, "calls", "", sh->calls);
	bench_add(b, p->label, "steps", "", sh->steps);
	bench_add(b, p->label, "kills", "", killed);
	if (sh->errors)
		fprintf(stderr, "cairn-bench: %s: %u errors, first: %s\n", p->label, sh->errors,
			sh->first_error);
}

static int watch(struct bench *b, struct bench_place *p, struct shared *sh, double *when,
		 unsigned *killed)
{
	int err = 0;

	while (!bench_stop && !err && *killed < b->kills) {
		sleep_ms(b->every_ms);
		err = kill_worker(p, &when[*killed]);
		*killed += !err;
	}
	while (!bench_stop && !err && atomic_load(&sh->steps) < b->rounds)
		sleep_ms(50);
	if (b->kills && !err)
		sleep_ms(2000);
	atomic_store(&sh->last, true);
	return bench_stop ? -EINTR : err;
}

static int one_place(struct bench *b, struct bench_place *p, struct shared *sh, double *when)
{
	unsigned killed = 0;
	int status, err = 0;

	for (unsigned r = 0; r < b->ranks; r++) {
		struct rank k = {.b = b, .p = p, .sh = sh, .id = r};
		pid_t pid = fork();

		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			rank_main(&k);
		}
		if (pid < 0)
			return -errno; /* we exit, and with us those that wait at the barrier */
	}
	err = watch(b, p, sh, when, &killed);
	for (unsigned r = 0; r < b->ranks; r++)
		if (wait(&status) < 0 && errno == EINTR)
			r--;
	if (!err)
		err = bench_durable(p, p->run);
	add_figures(b, p, sh, when, killed);
	return err;
}

int bench_cmd_latency(struct bench *b)
{
	CLEANUP_FREE double *when = calloc(b->kills + 1, sizeof(*when));
	struct shared *sh;
	int err = 0;

	if (!when)
		return -ENOMEM;
	if (b->size % b->block)
		return -EINVAL;
	for (unsigned i = 0; i < b->n_places && !err; i++) {
		sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
			  0);
		if (sh == MAP_FAILED)
			return -errno;
		err = one_place(b, &b->place[i], sh, when);
		munmap(sh, sizeof(*sh));
	}
	return err;
}

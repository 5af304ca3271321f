/* SPDX-License-Identifier: MIT
 *
 * Shared by the files of `cairn-bench`. A bench_cmd_ function is a subcommand:
 * it measures, adds its figures to the series of struct bench and returns 0 or
 * -errno; main prints them. Times are seconds on CLOCK_MONOTONIC, sizes bytes.
 *
 * One round visits every place once, so that the variants are interleaved and
 * run under the same conditions. What is not measured (waiting until a checkpoint is
 * durable, removing the older one) happens between two measurements.
 */
#ifndef CAIRN_BENCH_H
#define CAIRN_BENCH_H

#include "io/clock.h"
#include "io/keys.h"

#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#define BENCH_MAX_PLACES 12
#define BENCH_MAX_SERIES 128
#define BENCH_LABEL 48

static inline void bench_free_ptr(void *p)
{
	free(*(void **)p);
}

static inline void bench_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

#define CLEANUP_FREE __attribute__((cleanup(bench_free_ptr)))
#define CLEANUP_CLOSE __attribute__((cleanup(bench_close_fd)))

/* One directory (or file, for `read`) under measurement, named LABEL=PATH. */
struct bench_place {
	char label[BENCH_LABEL];
	const char *path;
	char run[PATH_MAX]; /* directory created for this run, removed at the end */
	bool cairn; /* has user.cairn.state */
	bool tmpfs;
	/* syncs are useful: a cairnfs or a disk filesystem, no other FUSE */
	bool disk;
	bool fsync; /* label ends in +fsync: fsync before each close */
	bool cp; /* label ends in +cp: files are copied by `cp -r` */
	int worker, keeper; /* pids of a cairnfs, 0 = unknown */
};

/* Samples of one figure of one place, in the order measured. */
struct bench_series {
	char label[BENCH_LABEL];
	const char *metric;
	const char *unit;
	double *v;
	size_t n, cap;
};

struct bench {
	/* options */
	uint64_t size, block, source;
	unsigned rounds, ranks, count;
	unsigned idle_s, pace_ms, every_ms, kills;
	bool first; /* each step in a directory of a new shape: no expected size */
	const char *between; /* shell command run after each round, or NULL */
	bool json, tsv;
	/* what is measured */
	struct bench_place place[BENCH_MAX_PLACES];
	unsigned n_places;
	/* figures */
	struct bench_series series[BENCH_MAX_SERIES];
	unsigned n_series;
	const char *src; /* `source` bytes, touched, huge pages if possible */
};

int bench_cmd_write(struct bench *b);
int bench_cmd_read(struct bench *b);
int bench_cmd_small(struct bench *b);
int bench_cmd_create(struct bench *b);
int bench_cmd_latency(struct bench *b);

/* ---- util.c --------------------------------------------------------- */

/* Set by SIGINT and SIGTERM; loops check it and return -EINTR. */
extern volatile sig_atomic_t bench_stop;

double bench_now(void);

/* Maps `len` touched bytes that are neither zero nor equal. NULL: see errno. */
char *bench_source(uint64_t len);

/* Determines the kind of the place and creates its run directory. */
int bench_place_open(struct bench_place *p);
/* Removes the run directory with its contents. */
void bench_place_close(struct bench_place *p);

/* Writes size bytes into fd out of b->src in writes of b->block. */
int bench_write_all(const struct bench *b, int fd, uint64_t size);

/* Returns when path, a file or directory of this place, is on stable storage: on a
 * cairnfs when user.cairn.state says so (-EIO: failed), else by fsync or syncfs. */
int bench_durable(const struct bench_place *p, const char *path);
/* Returns when a cairnfs has nothing pending and its page pool is full again, or after
 * 10 s. Anything else: at once. */
void bench_settle(const struct bench_place *p);

/* CPU seconds (user + system) of the worker and keeper so far. */
double bench_cpu(const struct bench_place *p);
/* Reads worker and keeper pids of the cairnfs; again after a worker died. */
int bench_pids(struct bench_place *p);

int bench_remove_tree(const char *path);

/* A barrier for two or more processes; in shared memory. */
struct bench_barrier {
	atomic_uint arrived, round;
};
void bench_barrier_wait(struct bench_barrier *bar, unsigned members);

/* ---- report.c ------------------------------------------------------- */

/* Adds a sample; metric and unit are static storage. */
int bench_add(struct bench *b, const char *label, const char *metric, const char *unit, double v);
void bench_report(const struct bench *b, const char *command);
void bench_report_free(struct bench *b);

#endif

/* SPDX-License-Identifier: MIT
 * What struct fs has for base/.
 */
#ifndef CAIRN_FS_BASE_STATE_H
#define CAIRN_FS_BASE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* threads that answer the kernel; a few may be blocked by relay writes */
#define N_THREADS 16u
#define REQUEST_MAX (2u << 20) /* bytes of one request */

struct fs;

struct fs_opts {
	char *store, *mountpoint, *staging_dir;
	char *host; /* NULL: the hostname */
	uint64_t staging_bytes, pool_bytes;
	/* the memory cgroup, or the tmpfs of tmpfs_bytes, allows less than this, which was asked
	 * for; 0: they do not */
	uint64_t staging_asked, tmpfs_bytes;
	bool fsync_staged, engine_posix, nopassthrough, nodedup, noearly, noprevious, guard;
	bool ro, foreground, debug, remount, nonempty;
	unsigned persist_threads, queue_depth;
	unsigned log_level; /* syslog(3)'s */
	int numa; /* a node + 1; 0: any */
	unsigned commit_wait_s; /* 0: no name waits for other nodes */
	char *tier; /* a directory or s3://BUCKET/PREFIX; NULL: none */
	uint64_t tier_rate; /* bytes a second; 0: no limit */
	unsigned tier_keep; /* how many checkpoints stay in the store; 0: all */
	unsigned tier_wait_s; /* how long a reader waits where nothing comes from the tier */
};

/* The tier's follower; process/tier.c. */
struct tier_runs {
	struct tier_shared *shared; /* NULL: none was started */
	int done, served; /* pipes that close when it, and the server, has ended; -1: none */
	int ask; /* the socket to its server (io/tier_ask.h), of all workers; -1: none */
};

/* The keeper, the spare and the worker of this mount; process/keeper.c, spare.c, process/worker.c.
 */
struct processes {
	int ready_fd; /* a byte is written here when the mount answers */
	unsigned restarts;
	atomic_int keeper_pid;
	struct keepers {
		atomic_int asks; /* pid of a spare that asks the worker */
		atomic_int exited; /* exit code of the worker + 1; 0: it runs */
		atomic_uint replaced;
		/* The last wish of a worker for staging's tmpfs, a new number each time: odd,
		 * small; even, as at the start. And the one that is done, with its result. */
		atomic_uint limit_wanted, limit_done;
		atomic_int limit_error;
	} * keepers; /* shared by all processes of the mount, or NULL */
	int alive[2]; /* a pipe; keeper and spare hold [1] open */
	/* the worker's: open while it lives; its answer to a spare goes here */
	int life_fd;
	int limit[2]; /* a pipe: the worker wakes the keeper for limit_wanted */
	atomic_bool keeper_gone;
	/* CLOCK_MONOTONIC, ns; 0: unknown */
	uint64_t mounted_ns, worker_ns;
	char host[65]; /* this machine's name, for metrics */
	/* logs of earlier mounts that are gone, with what was staged; staged_in.c */
	struct staged_gone {
		uint64_t log[IO_STAGED_IN];
		unsigned n;
	} gone;
};

#define SPACE_NO_LIMIT UINT64_MAX

/* The store's filesystem as store_space_look() saw it last, bytes; size 0: not yet. */
struct store_space {
	atomic_ullong seen_ns; /* monotonic */
	atomic_ullong free, size;
	atomic_ullong free_inodes; /* SPACE_NO_LIMIT: it has no fixed number of them */
};

/* The store's filesystem is not there, or another cairnfs serves it as this host (-EADDRINUSE, and
 * hosts.taker); process/keeper.c, process/store_watch.c. */
struct away {
	time_t since; /* when the store was closed; 0: it is there */
	atomic_int error; /* why, -errno */
	atomic_bool look; /* the store is to be looked at now */
};

/* Other hosts of the store; process/hosts.c. */
#define HOSTS_TOLD 16u
struct hosts {
	/* Another one is, or was, in the store; the store did not say otherwise. As
	 * io_store_shared(): false again when its directory is gone. */
	atomic_bool others;
	atomic_bool beats; /* this one wrote to the store when it last said that it is alive */
	atomic_ullong sure_ns; /* then it had its claim; CLOCK_BOOTTIME; 0: not known yet */
	pthread_mutex_t lock; /* over all below */
	pthread_cond_t cond;
	bool runs, ends; /* the thread */
	uint64_t left; /* changes that this host leaves in staging */
	uint64_t log; /* the number of staging's log */
	bool all; /* it leaves nothing there */
	char taker[120]; /* who has this host's claim, for people; "": nobody that is known */
	unsigned alive, gone; /* how many; the first of those gone: */
	struct host_gone {
		char name[72];
		uint64_t since_ns; /* CLOCK_MONOTONIC */
	} told[HOSTS_TOLD];
};

/* Kept for status; log.c. */
struct notices {
	pthread_mutex_t lock; /* over all below */
	char text[16][256];
	unsigned n;
};

/* What is known of a request before libfuse decodes it. */
struct received {
	uint64_t unique; /* without the resend bit */
	bool resent, release;
};

/* Where requests come from, for the threads that answer; wire_run() sets it before they start. */
struct wire {
	int fd; /* readable when a request waits */
	/* The next request, of at most `size` bytes: its length; 0 or -errno: the connection is
	 * gone. The read lock is held, and no other. */
	int (*receive)(struct fs *fs, void *buf, size_t size, struct received *r);
	/* Answers it, now or by another thread later. No lock is held. */
	void (*answer)(struct fs *fs, void *buf, size_t len);
	void (*end)(struct fs *fs); /* no thread receives anything after this */
};

/* How long operations take, from their decoding to their answer; session.c. */
enum timed_op {
	TIMED_NONE,
	TIMED_OPEN, /* and create */
	TIMED_CLOSE, /* FLUSH, for which close(2) waits */
	TIMED_FSYNC,
	N_TIMED
};
#define TIMING_BUCKETS 11u /* up to 100 us, each 4 times the one before, the last without limit */
struct timings {
	struct timing {
		atomic_ullong buckets[TIMING_BUCKETS], sum_us;
	} of[N_TIMED];
	atomic_uint closing; /* closes that are not answered, of files that were written */
	atomic_ullong closing_ns; /* the last was answered, or the first came; monotonic */
};

/* Which thread reads requests; session.c. */
struct reading {
	/* "The read lock": over all below. A thread that has the tree lock only tries it. */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	_Atomic int reader; /* its slot; changed with the lock, read without */
	uint64_t since; /* it answers since then, ns */
};

/* RELEASEs that are being answered; session.c. */
struct tickets {
	pthread_mutex_t lock; /* over all below */
	pthread_cond_t cond;
	uint64_t last, of_slot[N_THREADS];
	unsigned n_barred; /* threads that wait in release_barrier() */
};

/* Threads that answer the kernel; session.c. */
struct slots {
	pthread_mutex_t lock; /* over thread, joining and asking */
	pthread_t thread[N_THREADS];
	bool joining;
	atomic_uint n_offloaded; /* others, which answer one request each */
	atomic_uint n_asking; /* threads that wait for the store */
	/* answers of the store until now, and until the last look: was there one? */
	atomic_ullong n_answered, answered_seen;
	/* the store is taken for slow until then; CLOCK_MONOTONIC, ns */
	atomic_ullong slow_until;
	struct asking *asking; /* the questions that threads wait for; slots.lock */
	atomic_ullong looked_ns; /* io_store_look() was called for them then */
};

#endif

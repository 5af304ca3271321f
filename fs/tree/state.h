/* SPDX-License-Identifier: MIT
 * What struct fs has for tree/.
 */
#ifndef CAIRN_FS_TREE_STATE_H
#define CAIRN_FS_TREE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define NODE_BUCKETS 65536u
#define MAX_NAME 255u

struct fs;

/* The way of a file's bytes (ARCHITECTURE, Lanes). */
enum lane { LANE_NONE, LANE_FAST, LANE_SPILL, LANE_READ, LANE_RELAY, N_LANES };

/* Nodes, names and handles. */
struct tree {
	pthread_mutex_t lock; /* "the tree lock": over all below, and fs->expect */
	pthread_cond_t busy_cond;
	struct node *nodes[NODE_BUCKETS];
	struct dentry *dentries[NODE_BUCKETS];
	struct node *by_store_ino[4096]; /* store files with several names */
	struct handle *handles[4096];
	/* queued for node_gc(); the rest of those it looks at now */
	struct node *free_queue, *looked_at;
	struct dentry *whiteouts, *whiteouts_last; /* oldest first */
	struct node_ref *refs; /* by operations that ask the store */
	uint64_t changes; /* of names and nodes, counted */
	/* `changes` at the last change of a name with this hash */
	uint64_t name_changed[NODE_BUCKETS];
	struct fs_buffer *buffers;
	struct node *root;
	uint64_t n_nodes, next_ro_id, n_accepted;
	/* latest/below.c: looks at all that is open, and files looked at */
	uint64_t n_looks, n_looked;
	/* a staged file could not be opened, which says nothing about its version */
	int replay_error;

	/* the last name that a LOOKUP did not find; a CREATE of it follows at once. dir 0: none */
	struct {
		uint64_t dir, since_ns;
		char name[MAX_NAME + 1];
	} absent;
};

/* Requests that wait until something is durable; ops/wait.c. */
struct waits {
	pthread_mutex_t lock; /* over list, moved and stop */
	pthread_cond_t cond;
	struct wait *list;
	atomic_uint n; /* in the list */
	atomic_ullong asked;
	bool moved, stop;
	bool started; /* the thread; the tree lock is held */
	bool resent; /* the kernel can send requests again */
	pthread_t thread;
};

/* expect.c; the tree lock is held */
#define EXPECT_SLOTS 32768u
struct expected {
	uint64_t key, size;
};

/* How often each lane was taken; ops/open.c. */
struct lanes {
	atomic_bool passthrough;
	bool proved; /* passthrough has worked; the tree lock is held */
	atomic_ullong opens[N_LANES];
	atomic_ullong bytes_read;
};

/* fork.c */
struct forks {
	pthread_mutex_t lock; /* over news and started */
	pthread_cond_t cond;
	struct fork_news *news;
	bool started; /* the thread that tells the kernel */
	/* Makes the kernel forget that name; wire_run() sets it. No lock is held. NULL: no kernel.
	 */
	void (*expire)(struct fs *fs, uint64_t dir, const char *name);
};

#endif

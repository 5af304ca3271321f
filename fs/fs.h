/* SPDX-License-Identifier: MIT
 * The state of a mount. Each part is declared by its directory (DIR/state.h), beside the lock that
 * guards it; what a directory offers to those above it is declared in its header, DIR/DIR.h, which
 * includes those of the directories below it. From below: base, parser, tree, request, remote,
 * latest, ops, views, control, wire, process.
 *
 * tree.lock ("the tree lock") guards nodes, names and handles. No thread changes, syncs or asks the
 * store with it, nor waits with it for a thread that does (tree/ask.c). Order: the tree lock, then
 * staging's locks (ARCHITECTURE, Locks).
 */
#ifndef CAIRN_FS_H
#define CAIRN_FS_H

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/scope.h"
#include "io/store/store.h"
#include "staging/staging.h"

#include "fs/base/state.h"
#include "fs/ops/state.h"
#include "fs/parser/state.h"
#include "fs/tree/state.h"
#include "fs/wire/state.h"

struct fs {
	struct fs_opts o;
	uid_t uid;
	struct io_engine *engine;
	struct io_store *store;
	struct stat root_seen; /* the store's root, when the store was opened */
	struct away away;
	struct store_space space;
	struct staging *s; /* NULL with -o ro */
	struct staging_place place;
	struct fuse_session *se;
	/* set by the build for tests: called before each operation on the store */
	void (*check)(void *fs);
	struct processes procs;
	struct freezer freezer;
	struct parsers parsers;
	struct tree tree;
	struct expected expect[EXPECT_SLOTS];
	struct lanes lanes;
	struct forks forks;
	struct waits waits;
	struct hosts hosts;
	struct tier_runs tier;
	struct notices notices;
	struct wire wire;
	struct reading reading;
	struct resends resends;
	struct tickets tickets;
	struct slots slots;
	struct timings timings;
	pthread_t upkeep;
	atomic_bool stopping;
};

#endif

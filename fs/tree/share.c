/* SPDX-License-Identifier: MIT
 * Limits on what one user may take of shared resources: descriptors of the worker, and staging
 * memory lent as buffers. Lock held for all functions.
 */
#include "fs/tree/inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

struct user {
	uint32_t uid;
	uint64_t open;
};

static struct user *users;
static size_t n_users, cap_users;
static uint64_t all_open, roots_open; /* all_open: by all users but root */
static bool refused;

/* A file being written takes two descriptors of the worker: one in staging, and one in the store
 * from its close or its first write on. */
#define FDS_OF_FILE 2
/* of the worker itself: 27 were counted, and it opens some for a moment. With FDS_DIRS of
 * staging's directories */
#define FDS_OWN 40
#define FDS_DIRS 8

static struct user *find(uint32_t uid)
{
	for (size_t i = 0; i < n_users; i++)
		if (users[i].uid == uid)
			return &users[i];
	return NULL;
}

void share_opened(uint32_t uid)
{
	struct user *u = uid ? find(uid) : NULL;

	roots_open += !uid;
	if (uid && !u) {
		if (n_users == cap_users) {
			size_t cap = cap_users ? 2 * cap_users : 16;
			struct user *more = realloc(users, cap * sizeof(*users));
			if (!more)
				return; /* nor is its close counted */
			users = more;
			cap_users = cap;
		}
		u = &users[n_users++];
		*u = (struct user){.uid = uid};
	}
	if (u) {
		u->open++;
		all_open++;
	}
}

void share_closed(uint32_t uid)
{
	struct user *u = uid ? find(uid) : NULL;

	roots_open -= !uid && roots_open;
	if (!u || !u->open)
		return;
	all_open--;
	if (--u->open == 0)
		*u = users[--n_users];
}

/* Files that may be open at once, so that the worker has descriptors left to close them and for
 * what is pending after that (an eighth: staging.c). UINT64_MAX: any number. */
static uint64_t files_max(void)
{
	struct rlimit rl;
	if (getrlimit(RLIMIT_NOFILE, &rl) || rl.rlim_cur == RLIM_INFINITY)
		return UINT64_MAX;
	uint64_t dirs = staging_dir_fds(), more = dirs > FDS_DIRS ? dirs - FDS_DIRS : 0;
	uint64_t others = FDS_OWN + rl.rlim_cur / 8 + more;
	return rl.rlim_cur > others ? (rl.rlim_cur - others) / FDS_OF_FILE : 1;
}

int share_of_files(uint32_t uid)
{
	struct user *u = uid ? find(uid) : NULL;
	uint64_t max = files_max();
	bool full = all_open + roots_open >= max ||
		    (uid && (all_open >= max / 8 * 7 || (u && u->open >= max / 8 * 5)));

	refused |= full;
	return full ? -EMFILE : 0;
}

bool share_was_refused(char *text, size_t cap)
{
	static bool told;

	if (!refused || told)
		return false;
	told = true;
	snprintf(text, cap,
		 "open(2) answers EMFILE: all users together may have %llu files open for writing. "
		 "Each takes %d descriptors of the worker; raise its hard limit of open files "
		 "(ulimit -Hn, LimitNOFILE=)",
		 (unsigned long long)files_max(), FDS_OF_FILE);
	return true;
}

int share_of_buffers(const struct fs *fs, uint32_t uid, uint64_t taken, uint64_t more)
{
	uint64_t half = fs->o.staging_bytes / 2;
	return uid && (more > half || taken > half - more) ? -ENOSPC : 0;
}

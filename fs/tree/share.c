/* SPDX-License-Identifier: MIT
 * What one user may take of what all share: descriptors (each file that is open in staging, or through
 * the daemon, holds one) and memory of staging on loan as buffers. Root is bound by none of it.
 * Lock held for all. */
#include "fs/fs.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

struct user {
	uint32_t uid;
	uint64_t open;
};

static struct user *users;
static size_t n_users, cap_users;
static uint64_t all_open;	/* of users, root's not counted */

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

	if (uid && !u) {
		if (n_users == cap_users) {
			size_t cap = cap_users ? 2 * cap_users : 16;
			struct user *more = realloc(users, cap * sizeof(*users));
			if (!more)
				return;		/* then it is not counted, nor when it ends */
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

	if (!u || !u->open)
		return;
	all_open--;
	if (--u->open == 0)
		*u = users[--n_users];
}

int share_of_files(uint32_t uid)
{
	struct rlimit rl;
	struct user *u = uid ? find(uid) : NULL;

	if (!uid || getrlimit(RLIMIT_NOFILE, &rl) || rl.rlim_cur == RLIM_INFINITY)
		return 0;
	return (u && u->open >= rl.rlim_cur / 2) || all_open >= rl.rlim_cur / 4 * 3 ? -EMFILE : 0;
}

int share_of_buffers(const struct fs *fs, uint32_t uid, uint64_t held, uint64_t more)
{
	uint64_t half = fs->o.staging_bytes / 2;
	return uid && (more > half || held > half - more) ? -ENOSPC : 0;
}

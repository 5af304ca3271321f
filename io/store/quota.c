/* SPDX-License-Identifier: MIT
 *
 * What quotas leave to the owner of a file. statvfs(2) of the store shows the limit of a
 * project, but not that of a user or a group: quotactl_fd(2) does.
 */
#include <errno.h>
#include <linux/quota.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "inside.h"

#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif
#define AGAIN_S 10 /* a store without quotas is checked again after this time */
#define QUOTA_COMMAND(cmd, type) ((unsigned)(cmd) << SUBCMDSHIFT | (type))

/* A soft limit counts as a hard one when its grace period is over. */
static uint64_t limit_left(uint64_t hard, uint64_t soft, uint64_t used, bool late)
{
	uint64_t limit = late && soft && (!hard || soft < hard) ? soft : hard;

	return !limit ? UINT64_MAX : limit > used ? limit - used : 0;
}

static uint64_t left_of(const struct if_dqblk *q, int64_t now)
{
	bool late = q->dqb_btime && (int64_t)q->dqb_btime <= now;
	bool late_inodes = q->dqb_itime && (int64_t)q->dqb_itime <= now;
	uint64_t block = 1u << QIF_DQBLKSIZE_BITS;

	if (!limit_left(q->dqb_ihardlimit, q->dqb_isoftlimit, q->dqb_curinodes, late_inodes))
		return 0;
	return limit_left(q->dqb_bhardlimit * block, q->dqb_bsoftlimit * block, q->dqb_curspace,
			  late);
}

/* False: no quota of this type (ESRCH), no permission to read it (EPERM), or a kernel before 5.14
 * (ENOSYS). */
static bool ask(const struct io_store *s, int type, unsigned id, uint64_t *left)
{
	struct if_dqblk q = {0};

	*left = UINT64_MAX;
	if (syscall(SYS_quotactl_fd, s->root_rd, QUOTA_COMMAND(Q_GETQUOTA, type), id, &q))
		return false;
	if (id) /* root has none */
		*left = left_of(&q, (int64_t)time(NULL));
	return true;
}

uint64_t io_store_quota_left(struct io_store *s, uid_t uid, gid_t gid)
{
	int64_t now = (int64_t)time(NULL);
	uint64_t user, group;

	if (now < atomic_load(&s->no_quotas) || (!uid && !gid))
		return UINT64_MAX;
	bool any = ask(s, USRQUOTA, uid, &user);

	any |= ask(s, GRPQUOTA, gid, &group);
	if (!any)
		atomic_store(&s->no_quotas, now + AGAIN_S);
	return user < group ? user : group;
}

/* SPDX-License-Identifier: MIT
 * What a kill of all processes left in staging is published by the next start that finds it. If
 * another staging area has served the store meanwhile, the job has gone on: what it wrote then is
 * not replaced by what is older. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <sys/stat.h>
#include <time.h>

#include "io/clock.h"

void leftover_begin(struct staging *s)
{
	int other = io_staged_by_other(s->o.store, log_id(s));

	/* If this start is killed, the next must know it, too. Where it cannot be told, the times
	 * of the files alone decide. */
	if (other && s->order.pend)
		s->drain.leftover = s->log.last_seq;
	else
		io_staged_by(s->o.store, log_id(s));
}

void leftover_end(struct staging *s)
{
	if (!s->drain.leftover || s->drain.is_ours || s->head->durable < s->drain.leftover)
		return;
	io_staged_by(s->o.store, log_id(s));
	s->drain.is_ours = true;
}

int leftover_judge(struct staging *s, const struct pend *p, int dirfd, const char *name)
{
	struct timespec now, when = p->r.when;
	struct stat st;

	if (p->accepted > s->drain.leftover || !when.tv_sec)
		return 0;
	/* the ctime of a buffer that was lent can be that of the version before */
	if (p->r.type == REC_SEAL)
		time_to_later(&when, p->r.mtime);
	int err = io_stat(s->o.store, dirfd, name, &st);
	if (err || !S_ISREG(st.st_mode))
		return err == -ENOENT ? 0 : err;
	clock_gettime(CLOCK_REALTIME, &now);
	/* The mtime may have been set; the ctime is new where a version of ours was published. */
	return time_is_later(st.st_mtim, when) && time_is_later(st.st_ctim, when) &&
			       !time_is_later(st.st_mtim, now)
		       ? LEFTOVER_OUTLIVED
		       : 0;
}

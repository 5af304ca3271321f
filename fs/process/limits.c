/* SPDX-License-Identifier: MIT
 * What the limits of a shell, a service or a cgroup do to a start, in words. */
#include "fs/process/process.h"

#include <errno.h>
#include <sys/resource.h>

static bool is_limited(int which)
{
	struct rlimit r;

	return !getrlimit(which, &r) && r.rlim_cur != RLIM_INFINITY;
}

const char *limit_hint(int err)
{
	switch (err) {
	case -ENOMEM: /* stacks and mappings: more than 2 GiB, most of it never touched */
		if (is_limited(RLIMIT_AS))
			return "; the address space is limited (ulimit -v, LimitAS=): remove that "
			       "limit";
		return "; if locked memory is limited (ulimit -l, LimitMEMLOCK=), raise that to "
		       "64 KiB";
	case -EAGAIN: /* some 40 are needed */
		return "; the number of processes and threads is limited (pids.max, TasksMax=, "
		       "ulimit -u): raise that to 200";
	case -EFBIG:
		return "; the size of files is limited (ulimit -f, LimitFSIZE=): remove that "
		       "limit";
	case -EMFILE: return "; raise the limit of open files (ulimit -n)";
	default: return "";
	}
}

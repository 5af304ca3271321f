/* SPDX-License-Identifier: MIT
 * A directory that another host makes again. When two clients of GlusterFS make one directory at
 * once while a third looks it up, both are told that it exists, and the server removes it. Whoever
 * had looked it up has a descriptor of nothing. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 20000000
#define WAIT_NS 2000000000u

/* What is to be created and is not: of a version its bytes are still in tmp/. */
static bool not_made(struct staging *s, const struct pend *p)
{
	if (p->r.type != REC_SEAL || p->begun)
		return p->r.type == REC_MKDIR;
	int fd = io_tmp_open(s->o.store, p->tmp_id, O_RDONLY);
	if (fd < 0)
		return false;
	close(fd);
	return true;
}

bool vanished_comes_back(struct staging *s, const struct pend *p, int err, struct vanished *v)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};

	if (!err && s->drain.given_up == p->r.dir)
		s->drain.given_up = 0;
	if ((err != -ENOENT && err != -ESTALE) || (!v->since_ns && !not_made(s, p)) ||
	    !io_store_shared(s->o.store))
		return false;
	if (!v->since_ns) {
		v->since_ns = monotonic_ns();
	} else {
		if (s->drain.given_up == p->r.dir || monotonic_ns() - v->since_ns > WAIT_NS) {
			s->drain.given_up = p->r.dir;
			return false;
		}
		nanosleep(&pause, NULL);
	}
	dirs_look_again(s, p->r.dir);
	return true;
}

/* SPDX-License-Identifier: MIT
 * Unpublished files that somebody else took: a person has `cairn hosts adopt` end for this host,
 * which was silent and lives. Staging has the bytes until the version is durable, so they are
 * written again. Only a spilled file had none there: it is in lost+found now. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

bool taken_away(struct staging *s, const struct pend *p, int err)
{
	if (err != -ENOENT || p->r.type != REC_SEAL || p->begun || p->lost || !p->sf ||
	    (p->sf->spilled && !p->snapshot))
		return false;
	int fd = io_tmp_open(s->o.store, p->tmp_id, O_RDONLY);
	if (fd >= 0)
		close(fd);
	return fd == -ENOENT; /* else the directory is gone */
}

void taken_write_again(struct staging *s, struct pend *p)
{
	char path[300], text[500];

	pthread_mutex_lock(&s->lock);
	dirs_root_relative(s, p->r.dir, p->r.name, path, sizeof(path));
	persist_again(s, p, -ENOENT);
	s->drain.batch_end = 0;
	persist_wake(s);
	pthread_mutex_unlock(&s->lock);
	snprintf(text, sizeof(text),
		 LEVEL_WARNING "the unpublished file of %s was removed from the store (cairn hosts "
			       "adopt or discard?): it is written again",
		 path);
	s->o.notice(s->o.ctx, text);
}

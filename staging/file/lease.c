/* SPDX-License-Identifier: MIT
 * A lease shows whether a staged file can still be written (fcntl(2), F_SETLEASE); a version whose
 * last mapping is gone is final. */
#include "staging/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Before 6.13 (multigrain timestamps) two writes within one tick have the same
 * mtime, so a write after a seal may be indistinguishable from one before it. */
bool sf_coarse_times(void)
{
	static int coarse = -1;
	struct utsname u;
	unsigned major = 0, minor = 0;
	if (coarse < 0)
		coarse = uname(&u) || sscanf(u.release, "%u.%u", &major, &minor) != 2 ||
			 major < 6 || (major == 6 && minor < 13);
	return coarse;
}

/* A descriptor of our own for writing would delay the lease for ever: of a file whose last close
 * failed, or that lost its name. s->lock held. */
static void close_own(struct staged *f)
{
	if (f->io.rw < 0 || f->state == STAGED_OPEN || pthread_mutex_trylock(&f->io.lock))
		return;
	close(f->io.rw);
	f->io.rw = -1;
	pthread_mutex_unlock(&f->io.lock);
}

/* No writable mapping left? The kernel grants a read lease only then (fcntl(2),
 * F_SETLEASE); through passthrough it counts the trainer's own mappings. s->lock held. */
bool sf_final(struct staged *f)
{
	if (sf_ensure_fd(f))
		return true;
	close_own(f);
	if (fcntl(f->fd, F_SETLEASE, F_RDLCK) == 0) {
		fcntl(f->fd, F_SETLEASE, F_UNLCK);
		return true;
	}
	return errno != EAGAIN; /* a filesystem without leases: take it as final */
}

/* What p's version is, now that it is final. s->lock held */
static void final_stat(struct pend *p)
{
	struct staged *f = p->sf;
	struct stat st;

	if (f->fd < 0 || fstat(f->fd, &st))
		return;
	/* the rest is a later version's: its seal is pending, too */
	if (f->last_seal != p->accepted) {
		if (p->r.size > (uint64_t)st.st_size)
			p->r.size = (uint64_t)st.st_size;
		return;
	}
	f->last.size = p->r.size = (uint64_t)st.st_size;
	f->last.atime = p->r.atime = st.st_atim;
	f->last.mtime = p->r.mtime = st.st_mtim;
	f->last.ctime = st.st_ctim;
}

void pend_finalize(struct staging *s, struct pend *p, bool early)
{
	struct staged *f = p->sf;

	final_stat(p);
	if (!early) {
		struct rec r = {.type = REC_FINAL,
				.flags = REC_SEALED,
				.node2 = p->r.seq,
				.sf = f->id,
				.size = p->r.size,
				.atime = p->r.atime,
				.mtime = p->r.mtime};
		/* if that fails, a restart seals it once more: harmless */
		log_append(s, &r);
	}
	s->order.n_wait--;
	p->times.wait[WAIT_LEASE] =
		monotonic_ns() - (p->times.closed ? p->times.closed : p->start_ns);
	p->snapshot = early;
	if (early)
		sf_set_late(s, f, true);
	persist_queue(s, p);
	if (!early)
		append_sealed(s, p, false);
}

void staged_finalize(struct staged *f)
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	for (struct pend *p = f->n_seals ? s->order.pend : NULL; p; p = p->next)
		if (p->sf == f && p->state == PEND_WAIT)
			pend_finalize(s, p, true);
}

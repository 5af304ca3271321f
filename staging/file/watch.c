/* SPDX-License-Identifier: MIT
 * The watch, a thread: charges what the kernel writes past the daemon, waits until mappings are
 * gone, and has files of the page pool prepared while nothing is written. */
#include "staging/file/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define TICK_BUSY_NS 2000000u
#define TICK_IDLE_NS 50000000u
#define TICK_LEASE_NS 1000000u
#define MAPPED_PATIENCE_NS 30000000000ull /* for another user's change behind it */
#define SYNC_PATIENCE_NS 5000000000ull /* for an fsync behind a mapped file */

/* Charges passthrough files for what they hold. s->lock held. */
static bool watch_growth(struct staging *s)
{
	bool grew = false;
	for (struct staged *f = s->files.open; f; f = f->lists.open_next) {
		struct stat st;
		if (f->spilled || f->fd < 0 || fstat(f->fd, &st))
			continue;
		uint64_t taken = (uint64_t)st.st_blocks * 512;
		if (taken != f->last.blocks * 512)
			grew = true;
		/* a writer through the daemon requests memory itself: memory ahead of it must not
		 * be charged here, or it would never get ENOSPC */
		uint64_t ahead = f->backing && !f->ahead.end ? pool_ahead(taken) : 0;
		if (taken + (f->memory.known ? 0 : ahead / 2) > f->memory.charged &&
		    taken > f->last.blocks * 512)
			sf_charge(s, f, taken + ahead);
		f->last.blocks = (uint64_t)st.st_blocks;
	}
	if (s->files.used > s->o.budget_bytes)
		sf_evict(s, s->files.used - s->o.budget_bytes);
	outgrow_look(s);
	return grew;
}

/* Does a file, directory or symlink of another user wait behind p? s->lock held. */
static bool holds_up_others(const struct pend *p)
{
	for (const struct pend *q = p->next; q; q = q->next) {
		bool owned = q->r.type == REC_SEAL || q->r.type == REC_MKDIR ||
			     q->r.type == REC_SYMLINK || q->r.type == REC_MKNOD;
		if (owned && q->r.uid != p->r.uid)
			return true;
	}
	return false;
}

/* Changes do not wait for ever behind a mapping: five seconds if an fsync waits, 30 if they are
 * another user's. s->lock held. */
static bool waited_enough(struct staging *s, const struct pend *p)
{
	uint64_t age = monotonic_ns() - p->start_ns,
		 others = s->o.mapped_ms ? s->o.mapped_ms * 1000000ull : MAPPED_PATIENCE_NS;

	if (p != *s->order.head)
		return false;
	return (atomic_load(&s->drain.n_sync_waiters) && age > SYNC_PATIENCE_NS) ||
	       (age > others && holds_up_others(p));
}

/* Versions that wait for their last mapping to go. s->lock held. */
static void watch_leases(struct staging *s)
{
	size_t len = 0;
	s->st.waiting_mapped[0] = 0;
	for (struct pend *p = s->order.pend; p && s->order.n_wait; p = p->next) {
		if (p->state != PEND_WAIT)
			continue;
		/* a writer that joined may not have reached the kernel's open yet */
		bool final = p->sf->state != STAGED_OPEN && sf_final(p->sf);
		if (final || waited_enough(s, p) || s->stop) {
			pend_finalize(s, p, !final);
		} else if (len + strlen(p->r.name) + 2 < sizeof(s->st.waiting_mapped)) {
			len += (size_t)snprintf(s->st.waiting_mapped + len,
						sizeof(s->st.waiting_mapped) - len, "%s\n",
						p->r.name);
			char *name = s->st.waiting_mapped + len - strlen(p->r.name) - 1;
			while ((name = strchr(name, '\n')) && name[1])
				*name = '?'; /* it is one name */
		}
	}
}

/* Files published early whose mapping may be gone. s->lock held. */
static void watch_late(struct staging *s)
{
	for (struct staged *f = s->files.late, *next; f && s->files.n_late_ready < 64; f = next) {
		next = f->lists.late_next;
		if (f->n_seals || f->state != STAGED_DURABLE || !sf_final(f))
			continue;
		sf_set_late(s, f, false);
		s->files.late_ready[s->files.n_late_ready++] = f->node;
	}
}

uint64_t staging_next_late(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	return s->files.n_late_ready ? s->files.late_ready[--s->files.n_late_ready] : 0;
}

void *watch_main(void *arg)
{
	struct staging *s = arg;
	unsigned quiet = 0;

	pthread_setname_np(pthread_self(), "cairn-watch");
	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		bool growing = s->files.open != NULL;
		if (growing)
			quiet = watch_growth(s) ? 0 : quiet + 1;
		/* also once more after the last is gone, by whatever way */
		if (s->order.n_wait || s->st.waiting_mapped[0])
			watch_leases(s);
		if (s->files.n_late)
			watch_late(s);
		if (!growing && !s->order.n_wait && !s->files.n_late) {
			pthread_mutex_unlock(&s->lock);
			bool made = pool_step(s);
			pthread_mutex_lock(&s->lock);
			if (!made && !s->stop && !s->files.open && !s->order.n_wait &&
			    !s->files.n_late)
				sleeper_wait(s, &s->watch, 0);
			quiet = 0;
			continue;
		}
		uint64_t used = s->files.used, tick = quiet < 100 ? TICK_BUSY_NS : TICK_IDLE_NS;
		if (s->order.n_wait)
			tick = TICK_LEASE_NS * (quiet < 1000 ? 1 : 20);
		pthread_mutex_unlock(&s->lock);
		if (growing)
			pool_fit(s, used);
		pthread_mutex_lock(&s->lock);
		if (!s->stop)
			sleeper_wait(s, &s->watch, monotonic_ns() + tick);
		if (s->order.n_wait)
			quiet++;
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

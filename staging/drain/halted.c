/* SPDX-License-Identifier: MIT
 * Publication is halted at a record: what a person can do, and when it is tried again. No error
 * waits for a person: a store that was repaired is found at the next try, and space that came back
 * within a second. */
#include "staging/drain/drain.h"

#include <errno.h>

#define RETRY_FIRST_NS 5000000000ull
#define RETRY_MAX_NS 60000000000ull
#define LOOK_NS 1000000000ull
/* of a name: its directory may grow, and a directory has a block of its own */
#define NAME_BYTES (2u * 4096)

const char *halted_remedy(struct staging *s, int err)
{
	struct statvfs v;

	if (err == -EDQUOT)
		return "free space within the quota";
	if (err != -ENOSPC)
		return "repair the store";
	if (!io_store_statvfs(s->o.store, &v) && v.f_files && !v.f_favail && v.f_bavail)
		return "its filesystem has no free inode: remove files in it";
	return "free space in its filesystem";
}

void halted_begin(struct staging *s)
{
	s->drain.halt_retry_ns = RETRY_FIRST_NS;
	s->drain.halt_tried_bytes = 0;
}

struct wanted {
	uint64_t bytes;
	uid_t uid;
	gid_t gid;
};

/* s->lock held */
static struct wanted wanted_by(const struct pend *p)
{
	struct wanted w = {.bytes = NAME_BYTES, .uid = p->r.uid, .gid = p->r.gid};

	if (p->state == PEND_FAILED && p->sf && !p->sf->spilled)
		w.bytes += p->sf->last.blocks * 512;
	return w;
}

/* 0: not one, or no inode. s->lock is not held. */
static uint64_t free_bytes(struct staging *s, const struct wanted *w)
{
	uint64_t quota = io_store_quota_left(s->o.store, w->uid, w->gid);
	struct statvfs v;

	if (io_store_statvfs(s->o.store, &v) || (v.f_files && !v.f_favail))
		return 0;
	uint64_t bytes = v.f_bavail * v.f_frsize;
	return bytes < quota ? bytes : quota;
}

/* Is there space for it, and more than when it was tried for that reason the last time? Then it was
 * not enough. s->lock held, dropped meanwhile */
static bool space_came(struct staging *s, const struct wanted *w)
{
	pthread_mutex_unlock(&s->lock);
	uint64_t bytes = free_bytes(s, w);
	pthread_mutex_lock(&s->lock);
	bool came = bytes >= w->bytes && bytes > s->drain.halt_tried_bytes;
	if (came || !bytes)
		s->drain.halt_tried_bytes = bytes;
	return came;
}

/* Until then, or somebody asks for the next try. s->lock held */
static bool halted_until(struct staging *s, uint64_t ns)
{
	return !s->drain.retry_now && !s->drain.previous.give && !s->stop && monotonic_ns() < ns;
}

void halted_wait(struct staging *s, const struct pend *p, int err)
{
	uint64_t until = monotonic_ns() + s->drain.halt_retry_ns;
	const struct wanted w = wanted_by(p);

	while (halted_until(s, until)) {
		uint64_t look = no_space(err) ? monotonic_ns() + LOOK_NS : until;
		if (look > until)
			look = until;
		while (halted_until(s, look))
			sleeper_wait(s, &s->pub, look);
		if (look < until && space_came(s, &w))
			break;
	}
	s->drain.retry_now = false;
	s->drain.halt_retry_ns = s->drain.halt_retry_ns * 2 < RETRY_MAX_NS
					 ? s->drain.halt_retry_ns * 2
					 : RETRY_MAX_NS;
}

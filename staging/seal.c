/* SPDX-License-Identifier: MIT
 * From the close to a version: blocks of the store are reserved (P7), the lease tells that nobody
 * writes any more, the seal gives it its place in the order; and its next version begins. */
#include "staging/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The file became smaller than expected: what was put ready behind its end goes back.
 * f->io held; changes ctime. */
static void trim_tail(struct staged *f)
{
	struct stat st;
	if (!f->huge || f->spilled || f->fd < 0 || fstat(f->fd, &st) ||
	    (uint64_t)st.st_blocks * 512 <= whole_pages((uint64_t)st.st_size))
		return;
	int fd = sf_open_bytes(f, O_RDWR);
	if (fd < 0)
		return;
	uint64_t end = whole_pages((uint64_t)st.st_size);
	const struct timespec ts[2] = {st.st_atim, st.st_mtim};
	fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)end, (off_t)(INT64_MAX / HUGE_BYTES * HUGE_BYTES - end));
	futimens(fd, ts);
	close(fd);
}

void sf_drop_tmp(struct staged *f)
{
	if (!f->tmp_id)
		return;
	close(f->tmp_fd);
	io_tmp_remove(f->s->o.store, f->tmp_id);
	f->tmp_id = 0;
	f->tmp_fd = -1;
	f->tmp_size = 0;
}

int sf_allocate(struct staged *f, int from, uint64_t size)
{
	struct io_store *store = f->s->o.store;

	if (size <= STAGING_SMALL)
		return size ? io_allocate(store, f->tmp_fd, 0, size) : 0;
	for (uint64_t off = 0; off < size;) {
		off_t data = lseek(from, (off_t)off, SEEK_DATA);
		if (data < 0)
			return errno == ENXIO ? 0 : -errno;
		off_t hole = lseek(from, data, SEEK_HOLE);
		if (hole < 0 || (uint64_t)hole > size)
			hole = (off_t)size;
		/* the direct write of the tail is padded */
		uint64_t len = ((uint64_t)(hole - data) + IO_ALIGN - 1) & ~(uint64_t)(IO_ALIGN - 1);
		int rc = io_allocate(store, f->tmp_fd, (uint64_t)data, len);
		if (rc)
			return rc;
		off = (uint64_t)hole;
	}
	return 0;
}

/* Deletes that stand earlier in the order may free the room that is missing. */
static void wait_for_deletes(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	uint64_t until = s->last_delete, give_up = now_ns() + 30000000000ull;
	/* not behind a mapping, which may live for ever */
	while (s->pend && s->pend->state != PEND_WAIT && s->head->durable < until && !s->halted && now_ns() < give_up)
		staging_wait_until(&s->done_cond, &s->lock, now_ns() + 50000000u);
}

static int make_reserved(struct staged *f, uint64_t size)
{
	struct staging *s = f->s;
	if (!f->tmp_id) {
		uint64_t id = staging_new_id(s);
		int fd = io_tmp_create(s->o.store, id, size > STAGING_SMALL, &f->tmp_direct);
		if (fd < 0)
			return fd;
		f->tmp_id = id;
		f->tmp_fd = fd;
	}
	int rc = sf_allocate(f, f->fd, size);
	if (!rc) {
		f->tmp_size = size;
		reserve_kept(s, &f->promised);
	}
	return rc;
}

/* A look at what is to be reserved. f->io held. */
static int reserve_stat(struct staged *f, struct stat *st)
{
	struct staging *s = f->s;
	pthread_mutex_lock(&s->lock);
	int rc = s->halted ? -EIO : f->state == STAGED_EVICTED ? -ENODATA : sf_ensure_fd(f);
	if (!rc)
		rc = sf_stat(f, st);
	/* the kernel lets a tmpfs file be longer than the store's: said now, it is no version yet */
	if (!rc && (uint64_t)st->st_size > io_store_max_file(s->o.store))
		rc = -EFBIG;
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* A small one gets its store file when it is persisted: perhaps it is removed before. f->io held. */
static bool promised(struct staged *f, const struct stat *st)
{
	return !f->spilled && !f->tmp_id && st->st_size <= (off_t)STAGING_SMALL &&
	       reserve_promise(f->s, &f->promised, (uint64_t)st->st_size);
}

int staged_promise(struct staged *f)
{
	struct stat st;
	LOCK_SCOPE(&f->io);
	int rc = reserve_stat(f, &st);
	return rc ? rc : promised(f, &st) ? 0 : -EAGAIN;
}

static int reserve_once(struct staged *f)
{
	struct staging *s = f->s;
	struct stat st;

	LOCK_SCOPE(&f->io);
	int rc = reserve_stat(f, &st);
	if (rc)
		return rc;
	if (f->under)
		return outgrow_reserve(f, (uint64_t)st.st_size);
	/* spilled: ext4, xfs and btrfs took the room when the bytes were written */
	if (f->spilled)
		sf_drop_tmp(f);	/* of before it was, or of an fsync that sealed nothing */
	if (f->spilled || (f->tmp_id && f->tmp_size == (uint64_t)st.st_size))
		return 0;
	if (promised(f, &st))
		return 0;
	rc = reserve_enter(s, (uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size ? (uint64_t)st.st_blocks * 512 :
			   (uint64_t)st.st_size);
	if (!rc) {
		rc = make_reserved(f, (uint64_t)st.st_size);
		reserve_leave(s);
	}
	if (rc)
		sf_drop_tmp(f);
	return rc;
}

int staged_reserve_now(struct staged *f)
{
	struct staging *s = f->s;

	pthread_mutex_lock(&s->lock);	/* asked before: what is freed meanwhile counts */
	bool may_come = s->head->durable < s->last_delete || s->cleaning;
	pthread_mutex_unlock(&s->lock);
	int rc = reserve_once(f);
	return (rc == -ENOSPC || rc == -EDQUOT) && may_come ? -EAGAIN : rc;
}

int staged_reserve_later(struct staged *f)
{
	wait_for_deletes(f->s);
	trash_wait(f->s);
	return reserve_once(f);
}

int staged_reserve(struct staged *f)
{
	int rc = staged_reserve_now(f);
	return rc == -EAGAIN ? staged_reserve_later(f) : rc;
}

static bool same_time(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* Before 6.13 (multigrain timestamps) two writes within one tick carry the same
 * mtime, and one after a seal could hide behind one before it. */
static bool coarse_times(void)
{
	static int coarse = -1;
	struct utsname u;
	unsigned major = 0, minor = 0;
	if (coarse < 0)
		coarse = uname(&u) || sscanf(u.release, "%u.%u", &major, &minor) != 2 || major < 6 ||
			 (major == 6 && minor < 13);
	return coarse;
}

bool staged_changed(struct staged *f)
{
	struct stat st;
	LOCK_SCOPE(&f->s->lock);
	if (!f->sealed_once || f->under)
		return true;
	if (f->state == STAGED_EVICTED || sf_ensure_fd(f) || fstat(f->fd, &st))
		return true;
	if (coarse_times() && (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec + 20000000u >
			      f->sealed_ns)
		return true;
	return (uint64_t)st.st_size != f->size || !same_time(st.st_mtim, f->mtime) ||
	       !same_time(st.st_ctim, f->ctime);
}

/* No writable mapping left? The kernel grants a read lease only then (fcntl(2),
 * F_SETLEASE); through passthrough it counts the trainer's own mappings. s->lock held. */
bool sf_final(struct staged *f)
{
	if (sf_ensure_fd(f))
		return true;
	if (fcntl(f->fd, F_SETLEASE, F_RDLCK) == 0) {
		fcntl(f->fd, F_SETLEASE, F_UNLCK);
		return true;
	}
	return errno != EAGAIN;	/* a filesystem without leases cannot tell: take it as final */
}

static void snapshot_stat(struct staged *f, const struct stat *st)
{
	f->size = (uint64_t)st->st_size;
	f->blocks = (uint64_t)st->st_blocks;
	f->atime = st->st_atim;
	f->mtime = st->st_mtim;
	f->ctime = st->st_ctim;
	f->sealed_once = true;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	f->sealed_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sf_rest(struct staged *f)
{
	struct staging *s = f->s;
	bool soon = f->n_seals && f->size > STAGING_SMALL && s->n_pend <= s->fds_pend;

	if (f->state == STAGED_OPEN || f->users || f->fd < 0 || soon)
		return;
	if (f->spilled)		/* perhaps removed from the store since */
		trash_put(s, 0, f->fd);
	else
		close(f->fd);
	f->fd = -1;
}

/* s->lock held */
static struct pend *waiting_seal(struct staged *f)
{
	for (struct pend *p = f->n_seals ? f->s->pend : NULL; p; p = p->next)
		if (p->sf == f && p->state == PEND_WAIT)
			return p;
	return NULL;
}

/* Another close of what p waits with: its place is taken already and its bytes were never
 * final. s->lock held. */
static void joined_seal(struct staged *f, struct pend *p, const struct stat *st)
{
	snapshot_stat(f, st);
	p->r.size = f->size;
	p->r.atime = f->atime;
	p->r.mtime = f->mtime;
	sf_set_state(f->s, f, STAGED_SEALED);
	sleeper_wake(&f->s->watch);
}

void staged_nameless(struct staged *f)
{
	struct stat st;
	LOCK_SCOPE(&f->s->lock);
	struct pend *p = f->state == STAGED_OPEN ? waiting_seal(f) : NULL;
	if (p && !sf_ensure_fd(f) && !fstat(f->fd, &st))
		joined_seal(f, p, &st);
}

int sf_stat(struct staged *f, struct stat *st)
{
	int rc = sf_ensure_fd(f);
	if (rc || fstat(f->fd, st))
		return rc ? rc : -errno;
	if (f->lender && (uint64_t)st->st_size > f->size) {
		blkcnt_t most = (blkcnt_t)(whole_pages(f->size) / 512);
		st->st_size = (off_t)f->size;
		st->st_blocks = st->st_blocks < most ? st->st_blocks : most;
	}
	return 0;
}

int sf_seal(struct staging *s, struct staged *f, struct rec *r, const struct stat *st, bool closed, bool final)
{
	struct pend *p;

	r->type = REC_SEAL;
	r->sf = f->id;
	r->size = (uint64_t)st->st_size;
	r->atime = st->st_atim;
	r->mtime = st->st_mtim;
	r->flags |= (f->huge ? REC_HUGE : 0) | (f->spilled ? REC_SPILLED : 0) | (final ? 0 : REC_MAPPED) |
		    (closed ? 0 : REC_FSYNCED);
	int rc = log_in_order(s, r, f, &p);
	if (rc)
		return rc;
	snapshot_stat(f, st);
	f->error = 0;
	s->st.bytes_staged += f->size;
	f->written = 0;
	if (f->blocks * 512 > s->largest)
		s->largest = f->blocks * 512;
	p->snapshot = !closed;
	clone_sealed(f, p);
	p->tmp_id = f->tmp_id;
	p->tmp_fd = f->tmp_fd;
	p->direct = f->tmp_direct;
	f->tmp_id = 0;
	f->tmp_fd = -1;
	f->tmp_size = 0;
	p->promised = f->promised;
	f->promised = 0;
	if (closed) {
		sf_set_state(s, f, STAGED_SEALED);
		if (!f->spilled)
			sf_charge(s, f, f->blocks * 512);
	}
	if (final) {
		p->state = PEND_QUEUED;
		persist_queue(s, p);
	} else {
		p->state = PEND_WAIT;
		s->n_wait++;
		sleeper_wake(&s->watch);
	}
	save_descriptor(s, p);
	if (closed && final)
		sf_rest(f);
	staged_check(s);
	sleeper_nudge(&s->pub, false);
	return 0;
}

int staging_seal(struct staging *s, struct staged *f, struct rec *r, bool closed)
{
	struct stat st;
	struct pend *p;

	LOCK_SCOPE(&f->io);
	if (closed)
		trim_tail(f);
	pthread_mutex_t *sl __attribute__((cleanup(unlock_scope))) = &s->lock;
	pthread_mutex_lock(sl);
	int rc = sf_stat(f, &st);
	if (rc)
		return rc;
	if (closed && f->rw >= 0) {
		close(f->rw);
		f->rw = -1;
	}
	p = closed ? waiting_seal(f) : NULL;
	if (p) {
		joined_seal(f, p, &st);
		r->seq = p->r.seq;
		r->size = f->size;
		r->atime = f->atime;
		r->mtime = f->mtime;
		r->type = REC_SEAL;
		return 0;
	}
	return sf_seal(s, f, r, &st, closed, !closed || sf_final(f));
}

/* Seals that still need the bytes as they are. One that waits for a mapping does
 * not (a new writer joins in), nor one whose bytes are synced. s->lock held. */
static bool seals_under_way(struct staged *f)
{
	for (struct pend *p = f->n_seals ? f->s->pend : NULL; p; p = p->next)
		if (p->sf == f && p->state != PEND_WAIT && p->state != PEND_READY)
			return true;
	return false;
}

/* A small version waits for its group's sync, and that perhaps for a mapped file
 * before it in the order: sync it alone. s->lock held, dropped meanwhile. */
static bool sync_written(struct staged *f)
{
	struct staging *s = f->s;
	for (struct pend *p = s->pend; p; p = p->next) {
		if (p->sf != f || p->state != PEND_WRITTEN || p->r.seq <= s->batch_end)
			continue;
		p->state = PEND_BUSY;
		uint64_t lost = s->n_lost;
		pthread_mutex_unlock(&s->lock);
		if (p->tmp_fd < 0)
			p->tmp_fd = io_tmp_open(s->o.store, p->tmp_id, O_RDWR);
		int rc = p->tmp_fd < 0 ? p->tmp_fd : io_sync_data(s->o.store, p->tmp_fd);
		pthread_mutex_lock(&s->lock);
		if (rc || lost != s->n_lost)
			persist_again(s, p, rc);
		else
			p->state = PEND_READY;
		sleeper_nudge(&s->pub, false);
		return true;
	}
	return false;
}

int staged_wait_persisted(struct staged *f)
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	atomic_fetch_add(&s->n_sync_waiters, 1);	/* no resting now */
	sleeper_wake(&s->work);
	while (seals_under_way(f) && !s->halted && f->state != STAGED_FAILED && !s->stop)
		if (!sync_written(f))
			staging_wait_until(&s->done_cond, &s->lock, now_ns() + 5000000u);
	atomic_fetch_sub(&s->n_sync_waiters, 1);
	return seals_under_way(f) ? -EAGAIN : 0;
}

/* Is f's own file, spilled, on its way to a name? s->lock held. */
static bool leaves_as_it_is(struct staged *f)
{
	for (struct pend *p = f->spilled && f->n_seals ? f->s->pend : NULL; p; p = p->next)
		if (p->sf == f && !p->snapshot && p->state != PEND_WAIT)
			return true;
	return f->published;
}

int staged_reopen(struct staged *f)
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	if (f->state == STAGED_EVICTED || f->lender)	/* not into a client's memory */
		return -EAGAIN;
	struct pend *p = f->state != STAGED_OPEN ? waiting_seal(f) : NULL;
	if (p && sf_final(f))	/* the kernel drops the last writer a moment after its close: not a mapping, then */
		pend_finalize(s, p, false);
	if (leaves_as_it_is(f))
		return -EAGAIN;
	if (seals_under_way(f))
		return -EBUSY;
	int rc = sf_ensure_fd(f);
	for (p = f->n_seals ? s->pend : NULL; p && !rc; p = p->next)
		if (p->sf == f && p->state == PEND_READY)
			rc = log_written(s, p);
	if (!rc) {
		f->checksum[0] = 0;
		f->error = 0;
		sf_set_state(s, f, STAGED_OPEN);
	}
	return rc;
}

void staged_unchanged(struct staged *f)
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	if (f->state != STAGED_OPEN || !f->sealed_once)
		return;
	sf_unwritten(s, f);
	sf_rest(f);	/* what was fsynced before its close is as pending as any */
}

void staged_fail(struct staged *f, int err)
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	f->error = err;
	sf_set_state(s, f, STAGED_FAILED);
	s->st.errors++;
}

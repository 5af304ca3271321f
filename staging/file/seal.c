/* SPDX-License-Identifier: MIT
 * From the close to a version: blocks of the store are allocated (P7), the lease shows that there
 * is no writer left, the seal gives it its place in the order; and its next version begins. */
#include "staging/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file became smaller than expected: frees what was allocated behind its end.
 * f->io.lock held; changes ctime. */
static void trim_tail(struct staged *f)
{
	struct stat st;
	if ((!f->memory.huge && !f->ahead.end) || f->spilled || f->fd < 0 || fstat(f->fd, &st) ||
	    (uint64_t)st.st_blocks * 512 <= whole_pages((uint64_t)st.st_size))
		return;
	int fd = sf_open_bytes(f, O_RDWR);
	if (fd < 0)
		return;
	uint64_t end = whole_pages((uint64_t)st.st_size);
	const struct timespec ts[2] = {st.st_atim, st.st_mtim};
	fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)end,
		  (off_t)(INT64_MAX / HUGE_BYTES * HUGE_BYTES - end));
	futimens(fd, ts);
	close(fd);
}

/* While publication is halted nothing is accepted: what else is missing than space is EIO. s->lock
 * held */
static int halted(const struct staging *s)
{
	return no_space(s->drain.halted) ? s->drain.halted : s->drain.halted ? -EIO : 0;
}

/* The size and blocks to be allocated. f->io.lock held. */
static int allocate_stat(struct staged *f, struct stat *st)
{
	struct staging *s = f->s;
	pthread_mutex_lock(&s->lock);
	int err = halted(s);
	if (!err)
		err = f->state == STAGED_EVICTED ? -ENODATA : staged_torn(f);
	if (!err)
		err = sf_ensure_fd(f);
	if (!err)
		err = sf_stat(f, st);
	/* a tmpfs file can be longer than the store's: report it now, before it is a version */
	if (!err && (uint64_t)st->st_size > io_store_max_file(s->o.store))
		err = -EFBIG;
	pthread_mutex_unlock(&s->lock);
	return err;
}

/* A small file gets its store file when it is persisted, as it may be removed before. f->io.lock
 * held. */
static bool promised(struct staged *f, const struct stat *st)
{
	uint64_t bytes = promise_bytes((uint64_t)st->st_size, (uint64_t)st->st_blocks * 512);

	return !f->spilled && !f->io.tmp_id && bytes != UINT64_MAX && !sf_limited(f) &&
	       reserve_promise(f->s, &f->io.promised, bytes);
}

int staged_promise(struct staged *f)
{
	struct stat st;
	if (pthread_mutex_trylock(&f->io.lock))
		return -EAGAIN;
	int err = allocate_stat(f, &st);
	if (!err)
		err = promised(f, &st) ? 0 : -EAGAIN;
	pthread_mutex_unlock(&f->io.lock);
	return err;
}

/* f->io.lock held */
static int allocate_blocks(struct staged *f)
{
	struct staging *s = f->s;
	struct stat st;

	int err = allocate_stat(f, &st);
	if (err)
		return err;
	if (f->moved.under)
		return outgrow_allocate(f, (uint64_t)st.st_size);
	/* spilled: ext4, xfs and btrfs allocated the space when the bytes were written */
	if (f->spilled) {
		sf_drop_tmp(f); /* from before it was, or from an fsync that sealed nothing */
		return sf_spoiled(f, f->fd);
	}
	if (early_is_useless(f, &st))
		sf_drop_tmp(f);
	if (f->io.tmp_id && f->io.tmp_size == (uint64_t)st.st_size && !f->space.checked)
		return 0;
	uint64_t whole = (uint64_t)st.st_blocks * 512;
	if (!sf_limited(f) && reserve_promise_silent(s, &f->io.promised, whole))
		return 0;
	if (append_has_blocks(f, &st))
		return 0;
	if (promised(f, &st))
		return 0;
	uint64_t need = (uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size
				? (uint64_t)st.st_blocks * 512
				: (uint64_t)st.st_size;
	struct stat has = {0};
	if (f->io.tmp_id && !fstat(f->io.tmp_fd, &has))
		need -= need < (uint64_t)has.st_blocks * 512 ? need : (uint64_t)has.st_blocks * 512;
	uint64_t first = need && !f->space.failed ? space_wanted(s) : 0;
	/* what is counted is looked for then */
	err = reserve_enter(s, first || io_store_allocates(s->o.store) ? need + first : 0);
	if (!err) {
		err = sf_make_tmp(f, (uint64_t)st.st_size);
		reserve_leave(s);
	}
	if (!err)
		err = sf_trim_tmp(f, (uint64_t)st.st_size);
	if (err)
		sf_drop_tmp(f);
	return err;
}

/* The store may take its time for it. */
static int allocate_once(struct staged *f)
{
	uint64_t since = monotonic_ns();
	int err = allocate_blocks(f);

	f->times.allocated += monotonic_ns() - since;
	return err;
}

/* While publication is halted no removal reaches the store. */
static bool may_wait(struct staging *s)
{
	pthread_mutex_lock(&s->lock);
	bool goes_on = !s->drain.halted;
	pthread_mutex_unlock(&s->lock);
	return goes_on && sf_space_may_come(s);
}

int staged_allocate_now(struct staged *f)
{
	bool may_come = may_wait(f->s);
	if (pthread_mutex_trylock(&f->io.lock))
		return -EAGAIN;
	int err = allocate_once(f);
	pthread_mutex_unlock(&f->io.lock);
	return no_space(err) && may_come ? -EAGAIN : err;
}

int staged_allocate_later(struct staged *f)
{
	for (unsigned tries = 0;; tries++) {
		bool may_come = !tries || may_wait(f->s);
		pthread_mutex_lock(&f->io.lock);
		int err = allocate_once(f);
		pthread_mutex_unlock(&f->io.lock);
		if (!no_space(err) || !may_come || tries == LATE_TRIES)
			return err;
		sf_wait_for_space(f);
	}
}

int staged_allocate(struct staged *f)
{
	int err = staged_allocate_now(f);
	return err == -EAGAIN ? staged_allocate_later(f) : err;
}

static bool same_time(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* Before 6.13: a write within the tick of this mtime, after the file was looked at, left no
 * other. */
static bool is_same_tick(struct timespec mtime, uint64_t looked_ns)
{
	uint64_t ns = (uint64_t)mtime.tv_sec * 1000000000u + (uint64_t)mtime.tv_nsec;

	return sf_coarse_times() && ns + 20000000u > looked_ns;
}

/* s->lock held. False: it cannot be told. */
static bool stat_bytes(struct staged *f, struct stat *st)
{
	return !f->moved.under && f->state != STAGED_EVICTED && !sf_ensure_fd(f) &&
	       !fstat(f->fd, st);
}

bool staged_changed(struct staged *f)
{
	struct stat st;
	LOCK_SCOPE(&f->s->lock);
	if (!f->last.once || !stat_bytes(f, &st) || is_same_tick(st.st_mtim, f->last.ns))
		return true;
	return (uint64_t)st.st_size != f->last.size || !same_time(st.st_mtim, f->last.mtime) ||
	       !same_time(st.st_ctim, f->last.ctime);
}

void staged_now(struct staged *f, struct staged_moment *out)
{
	struct stat st;
	LOCK_SCOPE(&f->s->lock);
	*out = (struct staged_moment){{0, 0}, {0, 0}};
	if (!stat_bytes(f, &st))
		return;
	out->mtime = st.st_mtim;
	clock_gettime(CLOCK_REALTIME, &out->when);
}

bool staged_written_since(struct staged *f, const struct staged_moment *then)
{
	uint64_t ns = (uint64_t)then->when.tv_sec * 1000000000u + (uint64_t)then->when.tv_nsec;
	struct stat st;
	LOCK_SCOPE(&f->s->lock);
	return !ns || !stat_bytes(f, &st) || !same_time(st.st_mtim, then->mtime) ||
	       is_same_tick(st.st_mtim, ns);
}

static void snapshot_stat(struct staged *f, const struct stat *st)
{
	f->last.size = (uint64_t)st->st_size;
	f->last.blocks = sf_blocks(f, st);
	f->last.atime = st->st_atim;
	f->last.mtime = st->st_mtim;
	f->last.ctime = st->st_ctim;
	f->last.once = true;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	f->last.ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Another close of a file whose seal p waits: it has its place already and its bytes were never
 * final. s->lock held. */
static void joined_seal(struct staged *f, struct pend *p, const struct stat *st)
{
	snapshot_stat(f, st);
	p->r.size = f->last.size;
	p->r.atime = f->last.atime;
	p->r.mtime = f->last.mtime;
	p->times.closed = monotonic_ns();
	sf_set_state(f->s, f, STAGED_SEALED);
	sleeper_wake(&f->s->watch);
}

void staged_nameless(struct staged *f)
{
	struct stat st;
	LOCK_SCOPE(&f->s->lock);
	struct pend *p = f->state == STAGED_OPEN ? sf_waiting_seal(f) : NULL;
	if (p && !sf_ensure_fd(f) && !fstat(f->fd, &st))
		joined_seal(f, p, &st);
}

/* Moves f's hint of a copy's source to p. s->lock held. */
static void take_source(struct staged *f, struct pend *p)
{
	if (f->base.source < 0)
		return;
	if (!p->snapshot) {
		p->clone.source = f->base.source;
		f->base.source = -1;
	} else if (f->s->files.n_sources < sources_max(f->s)) {
		p->clone.source = fcntl(f->base.source, F_DUPFD_CLOEXEC, 0);
		f->s->files.n_sources += p->clone.source >= 0;
	}
}

/* What its writer waited for goes to p. s->lock held. */
static void note_times(struct staged *f, struct pend *p)
{
	struct staged_times *t = &f->times;
	uint64_t now = monotonic_ns();

	p->times = (struct pend_times){.begun = t->begun, .closed = now, .fsync = p->snapshot};
	p->times.wait[WAIT_ADMISSION] = t->admission;
	p->times.wait[WAIT_SPILL] = t->moved + (t->spilled ? now - t->spilled : 0);
	p->times.wait[WAIT_DISK] = t->allocated;
	*t = (struct staged_times){.begun = now, .spilled = t->spilled ? now : 0};
}

int sf_seal(struct staging *s, struct staged *f, struct rec *r, const struct stat *st, bool closed,
	    bool final)
{
	struct pend *p;

	r->type = REC_SEAL;
	r->sf = f->id;
	r->size = (uint64_t)st->st_size;
	r->atime = st->st_atim;
	r->mtime = st->st_mtim;
	r->when = st->st_ctim; /* for the next worker's staged_changed() */
	r->flags |= (f->memory.huge ? REC_HUGE : 0) | (f->spilled ? REC_SPILLED : 0) |
		    (final ? 0 : REC_MAPPED) | (closed ? 0 : REC_FSYNCED);
	int err = log_in_order(s, r, f, &p);
	if (err)
		return err;
	snapshot_stat(f, st);
	f->error = 0;
	f->space.failed = false;
	s->st.bytes_staged += f->last.size;
	f->written = 0;
	if (f->last.blocks * 512 > s->files.largest)
		s->files.largest = f->last.blocks * 512;
	p->snapshot = !closed;
	note_times(f, p);
	take_source(f, p);
	p->tmp_id = f->io.tmp_id;
	p->tmp_fd = f->io.tmp_fd;
	p->direct = f->io.tmp_direct;
	p->early = early_take(f);
	f->io.tmp_id = 0;
	f->io.tmp_fd = -1;
	f->io.tmp_size = 0;
	f->io.allocated_from = f->io.allocated_to = 0;
	p->promised = f->io.promised;
	f->io.promised = 0;
	if (closed) {
		sf_set_state(s, f, STAGED_SEALED);
		if (!f->spilled)
			sf_charge(s, f, f->last.blocks * 512);
	}
	if (final) {
		p->state = PEND_QUEUED;
		persist_queue(s, p);
		if (closed)
			append_sealed(s, p, true);
	} else {
		p->state = PEND_WAIT;
		s->order.n_wait++;
		sleeper_wake(&s->watch);
	}
	save_descriptor(s, p);
	if (closed && final)
		sf_close_idle_fd(f);
	staged_check(s);
	sleeper_nudge(&s->pub, false);
	return 0;
}

/* -EBUSY: memory is being allocated ahead of f. f->io.lock held. */
static int no_more_memory(struct staged *f)
{
	int err = staged_end_ahead(f);
	if (err)
		return err;
	trim_tail(f);
	f->memory.covered = false;
	return 0;
}

bool staged_busy(struct staged *f)
{
	if (pthread_mutex_trylock(&f->io.lock))
		return true;
	bool cut = pthread_mutex_trylock(&f->io.cut);
	if (!cut)
		pthread_mutex_unlock(&f->io.cut);
	pthread_mutex_unlock(&f->io.lock);
	return cut;
}

void staged_await(struct staged *f)
{
	pthread_mutex_lock(&f->io.lock);
	pthread_mutex_unlock(&f->io.lock);
	ahead_await(f);
}

int staging_seal(struct staging *s, struct staged *f, struct rec *r, bool closed)
{
	struct stat st;
	struct pend *p;

	if (pthread_mutex_trylock(&f->io.lock))
		return -EBUSY;
	pthread_mutex_t *io __attribute__((cleanup(scope_unlock))) = &f->io.lock;
	int err = closed ? no_more_memory(f) : 0;
	if (err)
		return err;
	pthread_mutex_t *sl __attribute__((cleanup(scope_unlock), unused)) = scope_lock(&s->lock);
	err = closed ? 0 : ahead_pause(f);
	if (!err)
		err = sf_stat(f, &st);
	if (err)
		return err;
	/* nothing is allocated for what is in the version */
	f->ahead.size = (uint64_t)st.st_size;
	if (closed && f->io.rw >= 0) {
		close(f->io.rw);
		f->io.rw = -1;
	}
	p = closed ? sf_waiting_seal(f) : NULL;
	if (p) {
		append_swap_blocks(f, p);
		joined_seal(f, p, &st);
		r->seq = p->r.seq;
		r->size = f->last.size;
		r->atime = f->last.atime;
		r->mtime = f->last.mtime;
		r->type = REC_SEAL;
		return 0;
	}
	return sf_seal(s, f, r, &st, closed, !closed || sf_final(f));
}

/* Is f's own file, spilled, about to get a name? s->lock held. */
static bool leaves_as_it_is(struct staged *f)
{
	for (struct pend *p = f->spilled && f->n_seals ? f->s->order.pend : NULL; p; p = p->next)
		if (p->sf == f && !p->snapshot && p->state != PEND_WAIT)
			return true;
	return f->published;
}

/* s->lock held */
static void base_time(struct staged *f)
{
	struct stat st;
	if (sf_ensure_fd(f) || fstat(f->fd, &st))
		f->base.checksum[0] = 0;
	else
		f->base.mtime = st.st_mtim;
}

void staged_copy_done(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	base_time(f);
	f->base.again = true;
}

void staged_base_sum(struct staged *f, uint64_t seq, char *sum)
{
	LOCK_SCOPE(&f->s->lock);
	if (seq && f->base.seq == seq)
		strcpy(sum, f->base.checksum);
}

/* A descriptor of f's bytes if its time is still that of its base; -1. */
static int unchanged_bytes(struct staged *f)
{
	struct stat st;
	LOCK_SCOPE(&f->s->lock);
	bool same = f->state == STAGED_OPEN && f->base.checksum[0] && !f->spilled &&
		    !f->moved.under && !sf_ensure_fd(f) && !fstat(f->fd, &st) &&
		    same_time(st.st_mtim, f->base.mtime);
	return same ? fcntl(f->fd, F_DUPFD_CLOEXEC, 0) : -1;
}

void staged_look_mapped(struct staged *f)
{
	const struct timespec now[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
	char sum[IO_CHECKSUM_LEN];
	int fd = unchanged_bytes(f);
	if (fd < 0)
		return;
	if (!io_sum_file(fd, sum) && strcmp(sum, f->base.checksum) != 0)
		futimens(fd, now);
	close(fd);
}

/* s->lock held */
static int reopen(struct staged *f, bool append)
{
	struct staging *s = f->s;
	if (f->state == STAGED_EVICTED || f->memory.lender) /* not into a client's memory */
		return -EAGAIN;
	/* perhaps needed again unchanged; no bytes are always there */
	if (s->drain.inherited && f->state == STAGED_DURABLE && !f->late && f->last.size)
		return -EAGAIN;
	struct pend *p = f->state != STAGED_OPEN ? sf_waiting_seal(f) : NULL;
	/* the kernel drops the last writer a moment after its close: no mapping then */
	if (p && sf_final(f))
		pend_finalize(s, p, false);
	if (leaves_as_it_is(f))
		return -EAGAIN;
	if (sf_seals_under_way(f) && !(append && append_may_begin(f)))
		return -EBUSY;
	int err = sf_ensure_fd(f);
	const char *sum = f->n_seals ? "" : f->last.checksum;
	uint64_t seq = 0;
	for (p = f->n_seals ? s->order.pend : NULL; p && !err; p = p->next)
		if (p->sf == f && p->state == PEND_READY) {
			err = log_written(s, p);
			sum = p->checksum;
			seq = p->accepted;
		} else if (p->sf == f && p->state != PEND_WAIT) {
			sum = ""; /* not known yet */
		}
	if (!err) {
		strcpy(f->base.checksum, sum);
		f->base.seq = seq;
		base_time(f);
		f->base.again = true;
		f->last.checksum[0] = 0;
		f->error = 0;
		f->io.appends = append;
		sf_set_state(s, f, STAGED_OPEN);
		append_protect(f);
	}
	return err;
}

int staged_reopen(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return reopen(f, false);
}

int staged_reopen_append(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return reopen(f, true);
}

int staged_unchanged(struct staged *f)
{
	struct staging *s = f->s;
	struct stat st;
	if (pthread_mutex_trylock(&f->io.lock))
		return -EBUSY;
	pthread_mutex_t *io __attribute__((cleanup(scope_unlock))) = &f->io.lock;
	int err = no_more_memory(f);
	if (err)
		return err;
	pthread_mutex_t *sl __attribute__((cleanup(scope_unlock), unused)) = scope_lock(&s->lock);
	if (f->state != STAGED_OPEN || !f->last.once)
		return 0;
	/* bytes cut off do not count, and are no change */
	if (!sf_ensure_fd(f) && !fstat(f->fd, &st)) {
		f->last.blocks = (uint64_t)st.st_blocks;
		f->last.ctime = st.st_ctim;
	}
	sf_unwritten(s, f);
	/* a version fsynced before the close is pending like any other */
	sf_close_idle_fd(f);
	return 0;
}

void staged_fail(struct staged *f, int err, const char *path)
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	f->error = err;
	sf_set_state(s, f, STAGED_FAILED);
	if (!f->space.failed) /* a retry gives the same error */
		s->st.errors++;
	f->space.failed = true;
	snprintf(s->st.last_error, sizeof(s->st.last_error), "close %.180s: %s", path,
		 strerror(-err));
}

void staged_orphan(struct staged *f)
{
	staged_not_written(f, 0, UINT64_MAX, -EOWNERDEAD);
	staged_fail(f, -EOWNERDEAD, "a file whose writer is gone");
}

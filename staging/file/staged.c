/* SPDX-License-Identifier: MIT
 * Staged files: one file's bytes each, in tmpfs, or spilled to an unpublished store file: states
 * and lists, references, eviction. States and invariants: internal.h. Creation: admit.c; versions:
 * seal.c. */
#include "staging/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void staging_sf_name(uint64_t id, char out[17])
{
	io_tmp_name(id, out);
}

int staging_sf_dir(const struct staged *f)
{
	return f->memory.huge ? f->s->o.place.huge : f->s->o.place.small;
}

/* ---- lists, charges (s->lock held) ---- */

struct staged *sf_find(struct staging *s, uint64_t id)
{
	struct staged *f = s->files.by_id[id % SF_BUCKETS];
	while (f && f->id != id)
		f = f->lists.hash_next;
	return f;
}

void sf_charge(struct staging *s, struct staged *f, uint64_t bytes)
{
	if (f->memory.lender)
		bytes = 0; /* the buffer is charged */
	s->files.used += bytes - f->memory.charged;
	atomic_store_explicit(&f->memory.charged, bytes, memory_order_relaxed);
}

void space_claim_set(struct staging *s, struct staged *f, uint64_t bytes)
{
	s->space.claims += bytes - f->space.claim;
	f->space.claim = bytes;
}

void source_forget(struct staging *s, int *source)
{
	if (*source < 0)
		return;
	trash_put(s, 0, *source); /* perhaps the last descriptor of the file's blocks */
	*source = -1;
	s->files.n_sources--;
}

void chunks_forget(struct staging *s, struct chunks **c)
{
	if (*c && atomic_fetch_sub(&(*c)->refs, 1) == 1) {
		source_forget(s, &(*c)->fd);
		free(*c);
	}
	*c = NULL;
}

bool sf_may_be_delta(const struct staging *s, const struct staged *f)
{
	return f->base.again && f->base.source < 0 && s->drain.dedup && !s->drain.no_clone &&
	       !f->spilled && !f->moved.under;
}

/* the list of those in f's state; OPEN or FAILED */
static struct staged **undone_list(struct staging *s, const struct staged *f)
{
	return f->state == STAGED_OPEN ? &s->files.open : &s->files.failed;
}

static void list_remove(struct staging *s, struct staged *f)
{
	if (f->state == STAGED_OPEN || f->state == STAGED_FAILED) {
		*(f->lists.open_prev ? &f->lists.open_prev->lists.open_next : undone_list(s, f)) =
			f->lists.open_next;
		if (f->lists.open_next)
			f->lists.open_next->lists.open_prev = f->lists.open_prev;
		f->lists.open_prev = f->lists.open_next = NULL;
	} else if (f->state == STAGED_DURABLE) {
		*(f->lists.lru_prev ? &f->lists.lru_prev->lists.lru_next : &s->files.lru_head) =
			f->lists.lru_next;
		*(f->lists.lru_next ? &f->lists.lru_next->lists.lru_prev : &s->files.lru_tail) =
			f->lists.lru_prev;
		f->lists.lru_prev = f->lists.lru_next = NULL;
	}
}

static void list_insert(struct staging *s, struct staged *f)
{
	if (f->state == STAGED_OPEN || f->state == STAGED_FAILED) {
		struct staged **list = undone_list(s, f);
		f->lists.open_next = *list;
		if (*list)
			(*list)->lists.open_prev = f;
		*list = f;
	}
	if (f->state == STAGED_OPEN) {
		f->times = (struct staged_times){.begun = monotonic_ns()};
		f->times.spilled = f->spilled ? f->times.begun : 0;
		/* memory ahead of it may be allocated again */
		f->ahead.over = f->ahead.paused = false;
		f->ahead.end = f->ahead.size = 0;
		sleeper_nudge(&s->watch, false);
	} else if (f->state == STAGED_DURABLE) {
		f->lists.lru_prev = s->files.lru_tail;
		*(s->files.lru_tail ? &s->files.lru_tail->lists.lru_next : &s->files.lru_head) = f;
		s->files.lru_tail = f;
	}
}

static uint64_t *state_count(struct staging *s, enum staged_state st)
{
	switch (st) {
	case STAGED_OPEN: return &s->st.versions.open;
	case STAGED_SEALED: return &s->st.versions.sealed;
	case STAGED_PERSISTING: return &s->st.versions.persisting;
	case STAGED_DURABLE: return &s->st.versions.durable;
	case STAGED_FAILED: return &s->st.versions.failed;
	case STAGED_EVICTED: break;
	}
	return &s->files.n_evicted;
}

/* Those of a version that was left out (append.c): no other follows soon. */
static void drop_blocks(struct staged *f)
{
	if (!f->io.tmp_id || f->io.early)
		return;
	trash_put(f->s, f->io.tmp_id, f->io.tmp_fd);
	f->io.tmp_id = 0;
	f->io.tmp_fd = -1;
	f->io.tmp_size = 0;
	f->io.allocated_from = f->io.allocated_to = 0;
}

struct pend *sf_waiting_seal(struct staged *f)
{
	for (struct pend *p = f->n_seals ? f->s->order.pend : NULL; p; p = p->next)
		if (p->sf == f && p->state == PEND_WAIT)
			return p;
	return NULL;
}

/* Seals that still need the bytes unchanged. A seal that waits for a mapping does
 * not (a new writer joins it), nor one whose bytes are synced. s->lock held. */
bool sf_seals_under_way(struct staged *f)
{
	for (struct pend *p = f->n_seals ? f->s->order.pend : NULL; p; p = p->next)
		if (p->sf == f && p->state != PEND_WAIT && p->state != PEND_READY)
			return true;
	return false;
}

void sf_set_state(struct staging *s, struct staged *f, enum staged_state st)
{
	if (f->state == st)
		return;
	if (st != STAGED_OPEN) {
		source_forget(s, &f->base.source);
		space_claim_set(s, f, 0);
		f->moved.stuck = false;
	}
	bool moved = st == STAGED_FAILED || (f->state == STAGED_OPEN && st == STAGED_DURABLE);
	list_remove(s, f);
	--*state_count(s, f->state);
	f->state = st;
	++*state_count(s, st);
	list_insert(s, f);
	if (st == STAGED_DURABLE)
		drop_blocks(f);
	if (moved)
		tell_moved(s);
}

void staged_check(struct staging *s)
{
#ifdef CAIRN_CHECK
	uint64_t used = s->files.buffer_bytes, n[6] = {0};
	for (unsigned i = 0; i < SF_BUCKETS; i++)
		for (struct staged *f = s->files.by_id[i]; f; f = f->lists.hash_next) {
			used += f->memory.charged;
			n[f->state]++;
			bool bad = (f->state == STAGED_DURABLE && f->n_seals) ||
				   ((f->state == STAGED_SEALED || f->state == STAGED_PERSISTING) &&
				    !f->n_seals) ||
				   (f->state == STAGED_EVICTED && f->memory.charged);
			if (bad)
				abort();
		}
	if (used != s->files.used || n[STAGED_OPEN] != s->st.versions.open ||
	    n[STAGED_DURABLE] != s->st.versions.durable)
		abort();
#else
	(void)s;
#endif
}

static bool loan_due(const struct staged *f)
{
	/* also if the client is gone: its mappings of those pages may remain, so they are no
	 * cache */
	return f->memory.loan && !(f->memory.lender && f->memory.lender->kept) &&
	       f->state == STAGED_DURABLE && !f->users && !f->backing && !f->s->drain.inherited;
}

/* The memory lent to f is its buffer's again, or f's alone: the caller ensures that. */
void sf_loan_ends(struct staged *f)
{
	f->memory.lender->lent = NULL;
	f->memory.lender = NULL;
}

static void remove_bytes(struct staged *f)
{
	char name[17];
	staging_sf_name(f->id, name);
	if (f->io.rw >= 0)
		close(f->io.rw);
	if (f->spilled)
		trash_put(f->s, f->published ? 0 : f->id, f->fd);
	else if (f->fd >= 0)
		close(f->fd);
	f->fd = f->io.rw = -1;
	if (!f->spilled &&
	    (!f->memory.huge || f->memory.loan || !pool_keep(f->s, staging_sf_dir(f), name)))
		unlinkat(staging_sf_dir(f), name, 0);
	if (f->moved.under)
		trash_put(f->s, f->id, -1);
	f->moved.under = 0;
	early_unref(early_take(f));
	if (f->io.tmp_id)
		trash_put(f->s, f->io.tmp_id, f->io.tmp_fd);
	f->io.tmp_id = 0;
	f->io.tmp_fd = -1;
	reserve_kept(f->s, &f->io.promised);
	source_forget(f->s, &f->base.source);
	chunks_forget(f->s, &f->base.chunks);
	if (f->memory.lender)
		sf_loan_ends(f);
}

static void log_unstaged(struct staging *s, struct staged *f)
{
	struct rec r = {.type = REC_UNSTAGED, .sf = f->id, .node = f->node};
	/* if it cannot be written, recovery finds the file missing: equivalent */
	log_append(s, &r);
}

static void evict_one(struct staging *s, struct staged *f)
{
	sf_charge(s, f, 0);
	sf_set_state(s, f, STAGED_EVICTED);
	log_unstaged(s, f);
	remove_bytes(f);
}

/* Durable, and useless as a cache: an fsync made a copy of a file that is only partly in memory,
 * which the store need not have twice; or the memory is a buffer's. */
void sf_drop_useless(struct staging *s, struct staged *f)
{
	/* the store may lose it; or a record that follows says that it was opened again, and that
	 * version is what is only partly in memory */
	if (s->drain.inherited || s->log.replaying)
		return;
	if (loan_due(f) || (f->state == STAGED_DURABLE && !f->users && !f->late &&
			    (f->moved.under || (f->spilled && !f->published))))
		evict_one(s, f);
}

void sf_drop_all_useless(struct staging *s)
{
	for (struct staged *f = s->files.lru_head, *next; f; f = next) {
		next = f->lists.lru_next;
		sf_drop_useless(s, f);
	}
}

uint64_t sf_evict(struct staging *s, uint64_t want)
{
	uint64_t freed = 0;
	/* not before their names are safe */
	struct staged *f = s->drain.inherited ? NULL : s->files.lru_head;
	for (struct staged *next; f && freed < want; f = next) {
		next = f->lists.lru_next;
		if (f->users || f->spilled || f->late || f->memory.lender)
			continue;
		freed += f->memory.charged;
		evict_one(s, f);
	}
	return freed;
}

void sf_set_late(struct staging *s, struct staged *f, bool late)
{
	if (f->late == late)
		return;
	f->late = late;
	if (late) {
		s->files.n_late++;
		f->lists.late_prev = NULL;
		f->lists.late_next = s->files.late;
		if (f->lists.late_next)
			f->lists.late_next->lists.late_prev = f;
		s->files.late = f;
		return;
	}
	s->files.n_late--;
	*(f->lists.late_prev ? &f->lists.late_prev->lists.late_next : &s->files.late) =
		f->lists.late_next;
	if (f->lists.late_next)
		f->lists.late_next->lists.late_prev = f->lists.late_prev;
}

static void sf_free(struct staging *s, struct staged *f)
{
	struct staged **pp = &s->files.by_id[f->id % SF_BUCKETS];
	while (*pp != f)
		pp = &(*pp)->lists.hash_next;
	*pp = f->lists.hash_next;
	sf_charge(s, f, 0);
	sf_set_late(s, f, false);
	space_claim_set(s, f, 0);
	list_remove(s, f);
	--*state_count(s, f->state);
	if (f->state == STAGED_OPEN || f->state == STAGED_FAILED)
		tell_moved(s);
	if (f->state != STAGED_EVICTED) {
		log_unstaged(s, f);
		remove_bytes(f);
	}
	pthread_mutex_destroy(&f->io.lock);
	pthread_mutex_destroy(&f->io.cut);
	free(f);
}

/* No writer is left. s->lock held. */
void sf_unwritten(struct staging *s, struct staged *f)
{
	if (f->io.rw >= 0)
		close(f->io.rw);
	f->io.rw = -1;
	sf_set_state(s, f, f->n_seals ? STAGED_SEALED : STAGED_DURABLE);
	if (!f->spilled)
		sf_charge(s, f, f->last.blocks * 512);
	sf_drop_useless(s, f);
}

void sf_put_locked(struct staging *s, struct staged *f)
{
	if (--f->refs == 0) {
		sf_free(s, f);
		pthread_cond_broadcast(&s->done_cond);
	} else if (f->refs == f->n_seals && f->state == STAGED_OPEN) {
		/* joined by a writer, then unlinked: it will not be sealed, and a seal of it may
		 * wait */
		sf_unwritten(s, f);
		sleeper_wake(&s->watch);
	}
}

void sf_hold(struct staged *f)
{
	f->refs += !f->no_evict;
	f->no_evict = true;
}

void sf_evict_block(struct staging *s)
{
	for (unsigned i = 0; i < SF_BUCKETS; i++)
		for (struct staged *f = s->files.by_id[i]; f; f = f->lists.hash_next)
			sf_hold(f);
}

void sf_evict_allow(struct staging *s)
{
	for (unsigned i = 0; i < SF_BUCKETS; i++)
		for (struct staged *f = s->files.by_id[i], *next; f; f = next) {
			next = f->lists.hash_next;
			if (!f->no_evict)
				continue;
			f->no_evict = false;
			sf_drop_useless(s, f);
			sf_put_locked(s, f);
		}
}

struct staged *sf_new(struct staging *s, uint64_t id, uint64_t node)
{
	struct staged *f = calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	f->s = s;
	f->id = id;
	f->node = node;
	f->refs = 1;
	f->fd = f->io.rw = f->io.tmp_fd = f->base.source = -1;
	f->state = STAGED_OPEN;
	lock_init(&f->io.lock, RANK_STAGED_IO);
	lock_init(&f->io.cut, RANK_STAGED_CUT);
	return f;
}

void sf_insert(struct staging *s, struct staged *f)
{
	f->lists.hash_next = s->files.by_id[f->id % SF_BUCKETS];
	s->files.by_id[f->id % SF_BUCKETS] = f;
	++*state_count(s, f->state);
	list_insert(s, f);
}

/* ---- references and uses ---- */

int sf_open_bytes(struct staged *f, int flags)
{
	char name[17];
	if (f->spilled)
		return io_tmp_open(f->s->o.store, f->id, flags);
	staging_sf_name(f->id, name);
	int fd = openat(staging_sf_dir(f), name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	return fd < 0 ? -errno : fd;
}

struct staged *staged_ref(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	f->refs++;
	return f;
}

void staged_unref(struct staged *f)
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	sf_put_locked(s, f);
}

uint64_t staged_id(const struct staged *f)
{
	return f->id;
}

void staged_set_node(struct staged *f, uint64_t node)
{
	LOCK_SCOPE(&f->s->lock);
	f->node = node;
}

bool staged_spilled(const struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return f->spilled;
}

bool sf_lent(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return f->memory.lender;
}

bool staged_huge(const struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return f->memory.huge;
}

/* s->lock held */
int sf_ensure_fd(struct staged *f)
{
	if (f->fd < 0)
		f->fd = sf_open_bytes(f, O_RDONLY);
	return f->fd < 0 ? f->fd : 0;
}

void sf_close_idle_fd(struct staged *f)
{
	struct staging *s = f->s;
	bool soon =
		f->n_seals && f->last.size > STAGING_SMALL && s->order.n_pend <= s->order.fds_pend;

	if (f->state == STAGED_OPEN || f->users || f->fd < 0 || soon)
		return;
	if (f->spilled) /* perhaps removed from the store since */
		trash_put(s, 0, f->fd);
	else
		close(f->fd);
	f->fd = -1;
}

int sf_stat(struct staged *f, struct stat *st)
{
	int err = sf_ensure_fd(f);
	if (err || fstat(f->fd, st))
		return err ? err : -errno;
	if (f->memory.lender && (uint64_t)st->st_size > f->last.size) {
		blkcnt_t most = (blkcnt_t)(whole_pages(f->last.size) / 512);
		st->st_size = (off_t)f->last.size;
		st->st_blocks = st->st_blocks < most ? st->st_blocks : most;
	}
	return 0;
}

uint64_t sf_blocks(const struct staged *f, const struct stat *st)
{
	uint64_t most = whole_pages((uint64_t)st->st_size) / 512, blocks = (uint64_t)st->st_blocks;
	return (f->memory.huge || f->ahead.end) && blocks > most ? most : blocks;
}

/* The kernel marks pages clean that it could not write, and may drop them: then a read returns the
 * disk's bytes. So a spilled file's bytes, which are nowhere else, are not written a second
 * time. */
int sf_spoiled(struct staged *f, int fd)
{
	if (f->spilled && !f->spoiled && fd >= 0 &&
	    sync_file_range(fd, 0, 1, SYNC_FILE_RANGE_WAIT_BEFORE) &&
	    (errno == EIO || errno == ENOSPC || errno == EDQUOT))
		f->spoiled = -errno;
	return f->spilled ? f->spoiled : 0;
}

int staged_use(struct staged *f, int *fd)
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	if (f->state == STAGED_EVICTED || (f->spilled && f->published))
		return -ENODATA;
	int err = sf_ensure_fd(f);
	if (err == -ENOENT && f->spilled) /* being renamed into place */
		return -ENODATA;
	if (err)
		return err;
	f->users++;
	*fd = f->fd;
	if (f->state == STAGED_DURABLE) { /* most recently used */
		list_remove(s, f);
		list_insert(s, f);
	}
	return 0;
}

void staged_unuse(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	/* descriptors are scarce (20,000 at most): a closed file keeps none */
	if (--f->users == 0 && f->state != STAGED_OPEN && f->fd >= 0) {
		close(f->fd);
		f->fd = -1;
	}
	sf_drop_useless(f->s, f);
}

int staged_open_rw(struct staged *f)
{
	return sf_open_bytes(f, O_RDWR);
}

/* s->lock held */
static void info_of(const struct staged *f, struct staged_info *out)
{
	*out = (struct staged_info){
		.id = f->id,
		.state = f->state,
		.spilled = f->spilled,
		.late = f->late && !f->published,
		.size = f->last.size,
		.written = f->written,
		.atime = f->last.atime,
		.mtime = f->last.mtime,
		.ctime = f->last.ctime,
		.blocks = f->last.blocks,
		.error = f->error,
		.torn = staged_torn(f),
	};
	memcpy(out->checksum, f->last.checksum, sizeof(out->checksum));
}

void staged_get_state(struct staged *f, struct staged_info *out)
{
	LOCK_SCOPE(&f->s->lock);
	info_of(f, out);
}

void staged_get_info(struct staged *f, struct staged_info *out)
{
	struct stat st;
	LOCK_SCOPE(&f->s->lock);
	info_of(f, out);
	/* after a failed close it is as it was written, not as it was sealed before that */
	bool written = f->state == STAGED_OPEN || f->space.failed || !f->last.once;
	if (f->state != STAGED_EVICTED && written && !sf_ensure_fd(f) && !fstat(f->fd, &st)) {
		out->size = (uint64_t)st.st_size;
		out->blocks = sf_blocks(f, &st) + f->moved.under / 512;
		out->atime = st.st_atim;
		out->mtime = st.st_mtim;
		out->ctime = st.st_ctim;
	}
}

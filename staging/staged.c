/* SPDX-License-Identifier: MIT
 * Staged files: one file's bytes each, in tmpfs, or spilled to an unpublished
 * store file when the budget has no room. States and invariants: internal.h. */
#include "staging/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

/* A file of unknown size is let in where this much is free: an eighth of the
 * budget, between these. It may grow past it; the watch keeps count. */
#define UNKNOWN_MIN (16ull << 20)
#define UNKNOWN_MAX (1ull << 30)
/* And only where it finds, beyond the budget, twice the largest file so far and at least this
 * much (an eighth of a small machine's memory) for itself and each of its kind that grows: the
 * kernel writes it into the tmpfs by itself, and ENOSPC would be its writer's. */
#define UNKNOWN_GROWTH (4ull << 30)
#define GROWING (64ull << 20)
#define MEMORY_AGE_NS 100000000u
#define COPY_CHUNK (4u << 20)

void staging_sf_name(uint64_t id, char out[17])
{
	io_tmp_name(id, out);
}

int staging_sf_dir(const struct staged *f)
{
	return f->huge ? f->s->o.place.huge : f->s->o.place.small;
}

/* ---- lists, charges (s->lock held) ---- */

struct staged *sf_find(struct staging *s, uint64_t id)
{
	struct staged *f = s->sfs[id % SF_BUCKETS];
	while (f && f->id != id)
		f = f->hash_next;
	return f;
}

void sf_charge(struct staging *s, struct staged *f, uint64_t bytes)
{
	if (f->lender)
		bytes = 0;	/* it is charged */
	s->used += bytes - f->charged;
	atomic_store_explicit(&f->charged, bytes, memory_order_relaxed);
}

static void list_remove(struct staging *s, struct staged *f)
{
	if (f->state == STAGED_OPEN) {
		*(f->open_prev ? &f->open_prev->open_next : &s->open_list) = f->open_next;
		if (f->open_next)
			f->open_next->open_prev = f->open_prev;
		f->open_prev = f->open_next = NULL;
	} else if (f->state == STAGED_DURABLE) {
		*(f->lru_prev ? &f->lru_prev->lru_next : &s->lru_head) = f->lru_next;
		*(f->lru_next ? &f->lru_next->lru_prev : &s->lru_tail) = f->lru_prev;
		f->lru_prev = f->lru_next = NULL;
	}
}

static void list_insert(struct staging *s, struct staged *f)
{
	if (f->state == STAGED_OPEN) {
		f->open_next = s->open_list;
		if (s->open_list)
			s->open_list->open_prev = f;
		s->open_list = f;
		sleeper_nudge(&s->watch, false);
	} else if (f->state == STAGED_DURABLE) {
		f->lru_prev = s->lru_tail;
		*(s->lru_tail ? &s->lru_tail->lru_next : &s->lru_head) = f;
		s->lru_tail = f;
	}
}

static uint64_t *state_count(struct staging *s, enum staged_state st)
{
	switch (st) {
	case STAGED_OPEN: return &s->st.n_open;
	case STAGED_SEALED: return &s->st.n_sealed;
	case STAGED_PERSISTING: return &s->st.n_persisting;
	case STAGED_DURABLE: return &s->st.n_durable;
	case STAGED_FAILED: return &s->st.n_failed;
	case STAGED_EVICTED: break;
	}
	return &s->n_evicted;
}

void sf_set_state(struct staging *s, struct staged *f, enum staged_state st)
{
	if (f->state == st)
		return;
	if (st != STAGED_OPEN)
		clone_forget(s, &f->source);
	list_remove(s, f);
	--*state_count(s, f->state);
	f->state = st;
	++*state_count(s, st);
	list_insert(s, f);
}

void staged_check(struct staging *s)
{
#ifdef CAIRN_CHECK
	uint64_t used = s->buffer_bytes, n[6] = {0};
	for (unsigned i = 0; i < SF_BUCKETS; i++)
		for (struct staged *f = s->sfs[i]; f; f = f->hash_next) {
			used += f->charged;
			n[f->state]++;
			bool bad = (f->state == STAGED_DURABLE && f->n_seals) ||
				   ((f->state == STAGED_SEALED || f->state == STAGED_PERSISTING) && !f->n_seals) ||
				   (f->state == STAGED_EVICTED && f->charged);
			if (bad)
				abort();
		}
	if (used != s->used || n[STAGED_OPEN] != s->st.n_open || n[STAGED_DURABLE] != s->st.n_durable)
		abort();
#else
	(void)s;
#endif
}

static void remove_bytes(struct staged *f)
{
	char name[17];
	staging_sf_name(f->id, name);
	if (f->rw >= 0)
		close(f->rw);
	if (f->spilled)
		trash_put(f->s, f->published ? 0 : f->id, f->fd);
	else if (f->fd >= 0)
		close(f->fd);
	f->fd = f->rw = -1;
	if (!f->spilled && (!f->huge || f->loan || !ballast_keep(f->s, staging_sf_dir(f), name)))
		unlinkat(staging_sf_dir(f), name, 0);
	if (f->under)
		trash_put(f->s, f->id, -1);
	f->under = 0;
	if (f->tmp_id)
		trash_put(f->s, f->tmp_id, f->tmp_fd);
	f->tmp_id = 0;
	f->tmp_fd = -1;
	reserve_kept(f->s, &f->promised);
	clone_forget(f->s, &f->source);
	if (f->lender)
		buffer_returns(f);
}

static void log_unstaged(struct staging *s, struct staged *f)
{
	struct rec r = {.type = REC_UNSTAGED, .sf = f->id, .node = f->node};
	log_append(s, &r);	/* if it cannot be written, recovery finds the file missing: the same */
}

void sf_evict_one(struct staging *s, struct staged *f)
{
	sf_charge(s, f, 0);
	sf_set_state(s, f, STAGED_EVICTED);
	log_unstaged(s, f);
	remove_bytes(f);
}

/* Durable, and no cache: an fsync made a copy of what is not all in memory, and the store need
 * not have that twice; or the memory is a buffer's. */
void sf_drop_useless(struct staging *s, struct staged *f)
{
	if (buffer_due(f) || (f->state == STAGED_DURABLE && !f->users && !f->late &&
			      (f->under || (f->spilled && !f->published))))
		sf_evict_one(s, f);
}

uint64_t sf_evict(struct staging *s, uint64_t want)
{
	uint64_t freed = 0;
	struct staged *f = s->inherited ? NULL : s->lru_head;	/* not before their names are safe */
	for (struct staged *next; f && freed < want; f = next) {
		next = f->lru_next;
		if (f->users || f->spilled || f->late || f->lender)
			continue;
		freed += f->charged;
		sf_evict_one(s, f);
	}
	return freed;
}

static void sf_free(struct staging *s, struct staged *f)
{
	struct staged **pp = &s->sfs[f->id % SF_BUCKETS];
	while (*pp != f)
		pp = &(*pp)->hash_next;
	*pp = f->hash_next;
	sf_charge(s, f, 0);
	if (f->late)
		s->n_late--;
	list_remove(s, f);
	--*state_count(s, f->state);
	if (f->state != STAGED_EVICTED) {
		log_unstaged(s, f);
		remove_bytes(f);
	}
	pthread_mutex_destroy(&f->io);
	free(f);
}

/* No writer is left. s->lock held. */
static void unwritten(struct staging *s, struct staged *f)
{
	if (f->rw >= 0)
		close(f->rw);
	f->rw = -1;
	sf_set_state(s, f, f->n_seals ? STAGED_SEALED : STAGED_DURABLE);
	if (!f->spilled)
		sf_charge(s, f, f->blocks * 512);
	sf_drop_useless(s, f);
}

void sf_put_locked(struct staging *s, struct staged *f)
{
	if (--f->refs == 0) {
		sf_free(s, f);
		pthread_cond_broadcast(&s->done_cond);
	} else if (f->refs == f->n_seals && f->state == STAGED_OPEN) {
		/* joined by a writer, then unlinked: nobody will seal it, and a seal of it may wait */
		unwritten(s, f);
		sleeper_wake(&s->watch);
	}
}

/* ---- creation ---- */

struct staged *sf_new(struct staging *s, uint64_t id, uint64_t node)
{
	struct staged *f = calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	f->s = s;
	f->id = id;
	f->node = node;
	f->refs = 1;
	f->fd = f->rw = f->tmp_fd = f->source = -1;
	f->state = STAGED_OPEN;
	pthread_mutex_init(&f->io, NULL);
	return f;
}

void sf_insert(struct staging *s, struct staged *f)
{
	f->hash_next = s->sfs[f->id % SF_BUCKETS];
	s->sfs[f->id % SF_BUCKETS] = f;
	++*state_count(s, f->state);
	list_insert(s, f);
}

static uint64_t room_needed(const struct staging *s, uint64_t expected)
{
	if (expected != STAGED_SIZE_UNKNOWN)
		return expected;
	uint64_t need = s->o.budget_bytes / 8;
	return need < UNKNOWN_MIN ? UNKNOWN_MIN : need > UNKNOWN_MAX ? UNKNOWN_MAX : need;
}

/* Memory that could still be had without taking anybody's: proc(5), MemAvailable. */
static uint64_t memory_available(void)
{
	char text[512], *at;
	int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	at = strstr(text, "MemAvailable:");
	return at ? strtoull(at + 13, NULL, 10) << 10 : UINT64_MAX;
}

uint64_t staging_room_left(struct staging *s)
{
	struct statvfs v;
	if (fstatvfs(s->o.place.small, &v))
		return UINT64_MAX;
	if (now_ns() - s->memory_ns > MEMORY_AGE_NS) {
		s->memory = memory_available();
		s->memory_ns = now_ns();
	}
	uint64_t room = v.f_bavail * v.f_frsize, memory = s->memory;
	if (memory < UINT64_MAX - s->ballast_bytes)	/* ours to give */
		memory += s->ballast_bytes;
	return room < memory ? room : memory;
}

/* s->lock held */
static bool may_grow(struct staging *s)
{
	struct sysinfo si;
	uint64_t each = UNKNOWN_GROWTH, n = 1;

	if (!sysinfo(&si) && (uint64_t)si.totalram * si.mem_unit / 8 < each)
		each = (uint64_t)si.totalram * si.mem_unit / 8;
	if (each < 2 * s->largest)
		each = 2 * s->largest;
	for (struct staged *f = s->open_list; f; f = f->open_next)
		n += !f->known && !f->spilled && f->blocks * 512 >= GROWING;
	return staging_room_left(s) / n >= each;
}

/* Takes room for f out of the budget, evicting what is durable. s->lock held. */
static bool admit(struct staging *s, struct staged *f, uint64_t need)
{
	uint64_t budget = s->o.budget_bytes;

	if (need > budget)
		return false;
	if (s->used + need > budget)
		sf_evict(s, s->used + need - budget);
	if (s->used + need > budget || (!f->known && !may_grow(s)))
		return false;
	/* an unknown one only has to find that room; most stay small, the watch counts the rest */
	sf_charge(s, f, f->known ? need : need / 16);
	return true;
}

static int open_bytes(struct staged *f, int flags)
{
	char name[17];
	if (f->spilled)
		return io_tmp_open(f->s->o.store, f->id, flags);
	staging_sf_name(f->id, name);
	int fd = openat(staging_sf_dir(f), name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	return fd < 0 ? -errno : fd;
}

static int make_bytes(struct staged *f)
{
	bool direct;
	int fd;

	if (f->spilled) {
		fd = io_tmp_create(f->s->o.store, f->id, false, &direct);
		if (fd < 0)
			return fd;
		close(fd);
		fd = open_bytes(f, O_RDONLY);
	} else {
		/* O_RDONLY: a writable descriptor of ours would hold up the seal's lease */
		char name[17];
		staging_sf_name(f->id, name);
		f->filled = f->huge && blank_use(f->s, f->expected, staging_sf_dir(f), name);
		fd = open_bytes(f, f->filled ? O_RDONLY : O_RDONLY | O_CREAT | O_EXCL);
		if (f->filled && fd >= 0)
			futimens(fd, NULL);
	}
	LOCK_SCOPE(&f->s->lock);	/* the watch looks at it */
	f->fd = fd < 0 ? -1 : fd;
	return fd < 0 ? fd : 0;
}

/* Memory for all that the file is expected to hold, before it is written. */
static void fill_ahead(struct staged *f)
{
	struct staging *s = f->s;
	int fd = f->filled ? -1 : open_bytes(f, O_RDWR);
	if (fd >= 0) {
		ballast_hand_over(s, fd, f->expected);
		close(fd);
	}
	pthread_mutex_lock(&s->lock);
	uint64_t used = s->used;
	pthread_mutex_unlock(&s->lock);
	ballast_give(s, s->o.budget_bytes > used ? s->o.budget_bytes - used : 0);
}

int staged_create(struct staging *s, uint64_t node, uint64_t expected, struct staged **out)
{
	uint64_t need = room_needed(s, expected);
	struct staged *f = sf_new(s, staging_new_id(s), node);
	if (!f)
		return -ENOMEM;
	f->known = expected != STAGED_SIZE_UNKNOWN;
	f->expected = need;
	f->huge = f->known && expected >= HUGE_BYTES;
	pthread_mutex_lock(&s->lock);
	sf_insert(s, f);
	f->spilled = !admit(s, f, need);
	f->huge = f->huge && !f->spilled;
	uint64_t used = s->used;
	++*(f->spilled ? &s->st.spilled_opens : &s->st.fast_opens);
	pthread_mutex_unlock(&s->lock);
	if (!f->huge)
		ballast_give(s, s->o.budget_bytes > used ? s->o.budget_bytes - used : 0);

	int rc = make_bytes(f);
	if (rc == -ENOSPC && !f->spilled) {	/* the tmpfs itself is full */
		pthread_mutex_lock(&s->lock);
		sf_charge(s, f, 0);
		f->spilled = true;
		f->huge = false;
		pthread_mutex_unlock(&s->lock);
		rc = make_bytes(f);
	}
	if (rc) {
		staged_unref(f);
		return rc;
	}
	if (f->huge)
		fill_ahead(f);
	*out = f;
	return 0;
}

int staged_recover(struct staging *s, const struct rec *r, struct staged **out)
{
	pthread_mutex_lock(&s->lock);
	struct staged *f = sf_find(s, r->sf);
	if (f) {
		f->refs++;
		pthread_mutex_unlock(&s->lock);
		*out = f;
		return 0;
	}
	pthread_mutex_unlock(&s->lock);
	f = sf_new(s, r->sf, r->node);
	if (!f)
		return -ENOMEM;
	f->huge = r->flags & REC_HUGE;
	f->spilled = r->flags & REC_SPILLED;
	struct stat st;
	f->fd = open_bytes(f, O_RDONLY);
	if (f->fd == -ENOENT && !f->spilled) {	/* spilled since; the record that says so follows */
		f->spilled = true;
		f->huge = false;
		f->fd = open_bytes(f, O_RDONLY);
	}
	int rc = f->fd < 0 ? f->fd : fstat(f->fd, &st) ? -errno : 0;
	if (!rc && !S_ISREG(st.st_mode))
		rc = -EINVAL;
	if (rc) {
		if (f->fd >= 0)
			close(f->fd);
		free(f);
		return rc;
	}
	outgrow_recover(f, &st);
	LOCK_SCOPE(&s->lock);
	sf_insert(s, f);
	buffer_lent_again(s, f, r);
	if (!f->spilled)
		sf_charge(s, f, (uint64_t)st.st_blocks * 512);
	*out = f;
	return 0;
}

/* The worker died right after it had logged a spill: the store file counts. */
void sf_replay_spill(struct staging *s, struct staged *f)
{
	char name[17];
	staging_sf_name(f->id, name);
	unlinkat(staging_sf_dir(f), name, 0);
	if (f->fd >= 0)
		close(f->fd);
	sf_charge(s, f, 0);
	f->spilled = true;
	f->huge = false;
	f->fd = open_bytes(f, O_RDONLY);
}

static bool staged_lent(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return f->lender;
}

/* wr is closed. */
static int copy_bytes(int wr, int from_fd, uint64_t size)
{
	uint64_t off = 0;
	int rc = 0;
	if (wr < 0)
		return wr;
	char *buf = malloc(COPY_CHUNK);
	if (!buf)
		rc = -ENOMEM;
	while (!rc && off < size) {
		off_t data = lseek(from_fd, (off_t)off, SEEK_DATA);
		if (data < 0) {
			if (errno != ENXIO)
				data = (off_t)off;
			else
				break;
		}
		off = (uint64_t)data;
		ssize_t n = pread(from_fd, buf, COPY_CHUNK, (off_t)off);
		if (n <= 0) {
			rc = n < 0 ? -errno : 0;
			break;
		}
		ssize_t w = pwrite(wr, buf, (size_t)n, (off_t)off);
		if (w != n)
			rc = w < 0 ? -errno : -ENOSPC;
		off += (uint64_t)n;
	}
	free(buf);
	if (!rc && ftruncate(wr, (off_t)size))
		rc = -errno;
	close(wr);
	return rc;
}

int staged_copy(struct staging *s, uint64_t node, struct staged *src, int store_fd, struct staged **out)
{
	int fd = store_fd;
	if (src) {
		int rc = staged_use(src, &fd);
		if (rc)
			return rc;
	}
	struct stat st;
	int rc = fstat(fd, &st) ? -errno : 0;
	struct staged *f = NULL;
	if (src && staged_lent(src))
		st.st_size = (off_t)src->size;
	if (!rc)
		rc = staged_create(s, node, (uint64_t)st.st_blocks * 512 > (uint64_t)st.st_size ?
				   (uint64_t)st.st_size : (uint64_t)st.st_blocks * 512, &f);
	if (!rc) {
		rc = copy_bytes(open_bytes(f, O_RDWR), fd, (uint64_t)st.st_size);
		const struct timespec ts[2] = {st.st_atim, st.st_mtim};
		if (!rc)
			rc = staged_set_times(f, ts);
	}
	if (src)
		staged_unuse(src);
	if (rc && f)
		staged_unref(f);
	else
		*out = f;
	return rc;
}

/* ---- references and uses ---- */

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

bool staged_huge(const struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return f->huge;
}

/* s->lock held */
static int ensure_fd(struct staged *f)
{
	if (f->fd < 0)
		f->fd = open_bytes(f, O_RDONLY);
	return f->fd < 0 ? f->fd : 0;
}

int staged_use(struct staged *f, int *fd)
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	if (f->state == STAGED_EVICTED || (f->spilled && f->published))
		return -ENODATA;
	int rc = ensure_fd(f);
	if (rc == -ENOENT && f->spilled)	/* renamed into place this moment */
		return -ENODATA;
	if (rc)
		return rc;
	f->users++;
	*fd = f->fd;
	if (f->state == STAGED_DURABLE) {	/* most recently used */
		list_remove(s, f);
		list_insert(s, f);
	}
	return 0;
}

void staged_unuse(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	/* descriptors are few (20,000 at most): a closed file keeps none */
	if (--f->users == 0 && f->state != STAGED_OPEN && f->fd >= 0) {
		close(f->fd);
		f->fd = -1;
	}
	sf_drop_useless(f->s, f);
}

int staged_open_rw(struct staged *f)
{
	return open_bytes(f, O_RDWR);
}

/* The file became smaller than expected: what was put ready behind its end goes back.
 * f->io held; changes ctime. */
static void trim_tail(struct staged *f)
{
	struct stat st;
	if (!f->huge || f->spilled || f->fd < 0 || fstat(f->fd, &st) ||
	    (uint64_t)st.st_blocks * 512 <= whole_pages((uint64_t)st.st_size))
		return;
	int fd = open_bytes(f, O_RDWR);
	if (fd < 0)
		return;
	uint64_t end = whole_pages((uint64_t)st.st_size);
	const struct timespec ts[2] = {st.st_atim, st.st_mtim};
	fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)end, (off_t)(INT64_MAX / HUGE_BYTES * HUGE_BYTES - end));
	futimens(fd, ts);
	close(fd);
}

void staged_set_backing(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	f->backing = true;
	if (f->lender)
		buffer_keep(f);
}

/* s->lock held */
static void info_of(const struct staged *f, struct staged_info *out)
{
	*out = (struct staged_info){
		.id = f->id, .state = f->state, .spilled = f->spilled, .late = f->late && !f->published,
		.size = f->size,
		.atime = f->atime, .mtime = f->mtime, .ctime = f->ctime, .blocks = f->blocks,
		.error = f->error,
	};
	memcpy(out->checksum, f->checksum, sizeof(out->checksum));
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
	if (f->state != STAGED_EVICTED && (f->state == STAGED_OPEN || !f->sealed_once) && !ensure_fd(f) &&
	    !fstat(f->fd, &st)) {
		uint64_t most = whole_pages((uint64_t)st.st_size) / 512;
		out->size = (uint64_t)st.st_size;
		/* what lies ready behind the end is not the file's yet */
		out->blocks = f->huge && (uint64_t)st.st_blocks > most ? most : (uint64_t)st.st_blocks;
		out->blocks += f->under / 512;
		out->atime = st.st_atim;
		out->mtime = st.st_mtim;
		out->ctime = st.st_ctim;
	}
}

int staged_set_times(struct staged *f, const struct timespec ts[2])
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	if (f->state != STAGED_OPEN) {
		f->atime = ts[0].tv_nsec == UTIME_OMIT ? f->atime : ts[0];
		f->mtime = ts[1].tv_nsec == UTIME_OMIT ? f->mtime : ts[1];
	}
	if (f->state == STAGED_EVICTED)
		return -ENODATA;
	int rc = ensure_fd(f);
	if (rc)
		return rc;
	if (futimens(f->fd, ts))
		return -errno;
	struct stat st;
	if (!fstat(f->fd, &st) && f->state != STAGED_OPEN) {
		f->atime = st.st_atim;
		f->mtime = st.st_mtim;
		f->ctime = st.st_ctim;
	}
	return 0;
}

/* ---- relay writes: the daemon sees every byte, so it can wait exactly ---- */

/* Moves an open file's bytes to an unpublished store file. Not a backing file: the
 * kernel would go on reading the old one. f->io held. */
static int spill_now(struct staged *f)
{
	struct staging *s = f->s;
	struct stat st;
	int from, rc;

	pthread_mutex_lock(&s->lock);
	rc = ensure_fd(f);
	from = rc ? -1 : dup(f->fd);
	pthread_mutex_unlock(&s->lock);
	if (from < 0)
		return rc ? rc : -errno;
	if (fstat(from, &st)) {
		close(from);
		return -EIO;
	}
	bool direct;
	int to = io_tmp_create(s->o.store, f->id, false, &direct);
	if (to < 0) {
		close(from);
		return to;
	}
	rc = copy_bytes(to, from, (uint64_t)st.st_size);
	close(from);
	if (rc) {
		io_tmp_remove(s->o.store, f->id);
		return rc;
	}
	return sf_becomes_spilled(f, &st);
}

int sf_becomes_spilled(struct staged *f, const struct stat *st)
{
	struct staging *s = f->s;
	char name[17];
	staging_sf_name(f->id, name);
	int dir = staging_sf_dir(f);
	const struct timespec ts[2] = {st->st_atim, st->st_mtim};
	LOCK_SCOPE(&s->lock);
	f->spilled = true;	/* not before: a rotation of the log would say so of half a file */
	f->under = 0;
	struct rec r = {.type = REC_STAGED, .node = f->node, .sf = f->id, .flags = REC_SPILLED};
	log_append(s, &r);
	for (struct pend *p = f->n_seals ? s->pend : NULL; p; p = p->next)
		p->snapshot |= p->sf == f;	/* earlier versions have files of their own */
	if (f->fd >= 0)
		close(f->fd);
	if (f->rw >= 0)
		close(f->rw);
	f->rw = -1;
	f->huge = false;
	f->fd = open_bytes(f, O_RDONLY);
	if (f->fd >= 0)
		futimens(f->fd, ts);
	unlinkat(dir, name, 0);
	sf_charge(s, f, 0);
	return f->fd < 0 ? f->fd : 0;
}

/* Room for `end` bytes in f: evicts, waits a little for what is on its way, and
 * else spills, or lets a backing file grow as the kernel's own writes let it. f->io held. */
static int room_to_grow(struct staged *f, uint64_t end)
{
	struct staging *s = f->s;
	uint64_t t0 = 0;

	for (unsigned round = 0; !f->spilled; round++) {
		pthread_mutex_lock(&s->lock);
		uint64_t more = end > f->charged ? end - f->charged : 0;
		if (s->used + more > s->o.budget_bytes)
			sf_evict(s, s->used + more - s->o.budget_bytes);
		bool soon = s->st.n_persisting + s->st.n_sealed && !s->halted && round < 10;
		bool fits = s->used + more <= s->o.budget_bytes || (f->backing && !soon);
		if (fits && more)
			sf_charge(s, f, end);
		if (!fits && soon) {
			if (!t0) {
				t0 = now_ns();
				s->st.waits++;
			}
			staging_wait_until(&s->done_cond, &s->lock, now_ns() + 10000000u);
		}
		if (t0 && (fits || !soon))
			s->st.wait_ns += now_ns() - t0;
		uint64_t used = s->used;
		pthread_mutex_unlock(&s->lock);
		if (fits) {
			if (more)
				ballast_give(s, s->o.budget_bytes > used ? s->o.budget_bytes - used : 0);
			return 0;
		}
		if (!soon)
			return spill_now(f);
	}
	return 0;
}

ssize_t staged_write(struct staged *f, const void *buf, size_t len, uint64_t off)
{
	LOCK_SCOPE(&f->io);
	if (off < f->under)
		return outgrow_write(f, buf, len, off);
	uint64_t charged = atomic_load_explicit(&f->charged, memory_order_relaxed);
	if (off + len > charged && !f->spilled) {
		/* ask ahead in large steps, so that the lock is rarely taken */
		uint64_t end = off > charged ? charged + len : off + len;	/* a hole takes nothing */
		uint64_t step = charged / 2;
		int rc = room_to_grow(f, end + (step < (64u << 20) ? step : (64u << 20)));
		if (rc)
			return rc;
	}
	for (int tries = 0; tries < 2; tries++) {
		if (f->rw < 0)
			f->rw = open_bytes(f, O_RDWR);
		if (f->rw < 0)
			return f->rw;
		ssize_t n = pwrite(f->rw, buf, len, (off_t)off);
		if (n == (ssize_t)len || f->spilled)
			return n < 0 ? -errno : n;
		if (n < 0 && (errno != ENOSPC || f->backing))
			return -errno;
		if (f->backing)
			return n;
		int rc = spill_now(f);	/* the tmpfs is full although the budget is not */
		if (rc)
			return rc;
	}
	return -EIO;
}

ssize_t staged_read(struct staged *f, void *buf, size_t len, uint64_t off)
{
	int fd;
	LOCK_SCOPE(&f->io);	/* a spill changes the descriptor */
	pthread_mutex_lock(&f->s->lock);
	/* an open handle still holds the descriptor of what was published since */
	bool held = f->users && f->fd >= 0;
	if (held) {
		f->users++;
		fd = f->fd;
	}
	pthread_mutex_unlock(&f->s->lock);
	int rc = held ? 0 : staged_use(f, &fd);
	if (rc)
		return rc;
	if (staged_lent(f) && off + len > f->size)
		len = off < f->size ? f->size - off : 0;
	ssize_t n = pread(fd, buf, len, (off_t)off);
	rc = n < 0 ? -errno : 0;
	staged_unuse(f);
	return n < 0 ? rc : n;
}

int staged_resize(struct staged *f, uint64_t size)
{
	LOCK_SCOPE(&f->io);
	int fd = open_bytes(f, O_RDWR);
	if (fd < 0)
		return fd;
	struct stat st;
	bool grows = !fstat(fd, &st) && size > (uint64_t)st.st_size;
	int rc = f->under ? outgrow_resize(f, fd, size) : ftruncate(fd, (off_t)size) ? -errno : 0;
	close(fd);
	f->presized = grows && !rc;
	if (!rc && !f->spilled && !f->known && size > f->expected) {
		/* a size announced by ftruncate is an expectation */
		struct staging *s = f->s;
		pthread_mutex_lock(&s->lock);
		f->known = true;
		f->expected = size;
		if (s->used + size > s->o.budget_bytes)
			sf_evict(s, s->used + size - s->o.budget_bytes);
		uint64_t used = s->used;
		pthread_mutex_unlock(&s->lock);
		uint64_t left = s->o.budget_bytes > used ? s->o.budget_bytes - used : 0;
		ballast_give(s, left > size ? left - size : 0);
	}
	return rc;
}

/* Is there memory for `end` bytes in f? -EFBIG: no, and the kernel has it as a backing file; one that
 * is none is spilled then. f->io held. */
static int memory_for(struct staged *f, uint64_t end)
{
	struct staging *s = f->s;

	f->presized = true;
	pthread_mutex_lock(&s->lock);
	uint64_t more = end > f->charged ? end - f->charged : 0;
	if (s->used + more > s->o.budget_bytes)
		sf_evict(s, s->used + more - s->o.budget_bytes);
	bool fits = s->used + more <= s->o.budget_bytes;
	if (fits)
		sf_charge(s, f, f->charged + more);
	uint64_t used = s->used;
	pthread_mutex_unlock(&s->lock);
	if (fits)
		ballast_give(s, s->o.budget_bytes > used ? s->o.budget_bytes - used : 0);
	return fits ? 0 : f->backing ? -EFBIG : spill_now(f);
}

/* Blocks that were asked for before they are written: memory where the budget has room for them, else
 * it is the store that must have it. The file becomes as long all the same. */
static int allocate(struct staged *f, int mode, uint64_t off, uint64_t len)
{
	struct stat st;

	if (off < f->under) {	/* that part has its blocks */
		uint64_t n = len < f->under - off ? len : f->under - off;
		off += n;
		len -= n;
		if (!len)
			return 0;
	}
	int rc = f->spilled ? 0 : memory_for(f, off + len);
	int fd = rc && rc != -EFBIG ? rc : open_bytes(f, O_RDWR);
	if (fd < 0)
		return fd;
	if (!rc) {
		rc = fallocate(fd, mode, (off_t)off, (off_t)len) ? -errno : 0;
	} else if (!(rc = reserve_enter(f->s, len))) {
		reserve_leave(f->s);
		if (fstat(fd, &st) || (!(mode & FALLOC_FL_KEEP_SIZE) && (uint64_t)st.st_size < off + len &&
				       ftruncate(fd, (off_t)(off + len))))
			rc = -errno;
	}
	close(fd);
	return rc;
}

int staged_fallocate(struct staged *f, int mode, uint64_t off, uint64_t len)
{
	LOCK_SCOPE(&f->io);
	if (!(mode & ~FALLOC_FL_KEEP_SIZE))
		return allocate(f, mode, off, len);
	int fd = open_bytes(f, O_RDWR);
	if (fd < 0)
		return fd;
	int rc = 0;
	if (off < f->under) {
		uint64_t n = len < f->under - off ? len : f->under - off;
		rc = outgrow_fallocate(f, mode, off, n);
		off += n;
		len -= n;
	}
	if (!rc && len && fallocate(fd, mode, (off_t)off, (off_t)len))
		rc = -errno;
	close(fd);
	return rc;
}

/* ---- seals ---- */

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

static int allocate_data(struct staged *f, int from, uint64_t size)
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
	int rc = allocate_data(f, f->fd, size);
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
	int rc = s->halted ? -EIO : f->state == STAGED_EVICTED ? -ENODATA : ensure_fd(f);
	if (!rc)
		rc = sf_stat(f, st);
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

int staged_reserve(struct staged *f)
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
	if (f->spilled || (f->tmp_id && f->tmp_size == (uint64_t)st.st_size))
		return 0;
	if (promised(f, &st))
		return 0;
	for (int tries = 0; tries < 2; tries++) {
		rc = reserve_enter(s, (uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size ? (uint64_t)st.st_blocks * 512 :
				   (uint64_t)st.st_size);
		if (!rc) {
			rc = make_reserved(f, (uint64_t)st.st_size);
			reserve_leave(s);
		}
		if (!rc)
			return 0;
		sf_drop_tmp(f);
		if ((rc != -ENOSPC && rc != -EDQUOT) || tries)
			return rc;
		wait_for_deletes(s);
		trash_wait(s);
	}
	return -ENOSPC;
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
	if (f->state == STAGED_EVICTED || ensure_fd(f) || fstat(f->fd, &st))
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
	if (ensure_fd(f))
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
	if (f->state == STAGED_OPEN || f->users || f->fd < 0 || (f->size > STAGING_SMALL && f->s->n_pend <= f->s->fds_pend))
		return;
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
	if (p && !ensure_fd(f) && !fstat(f->fd, &st))
		joined_seal(f, p, &st);
}

int sf_stat(struct staged *f, struct stat *st)
{
	int rc = ensure_fd(f);
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
	r->seq = s->last_seq + 1;
	r->sf = f->id;
	r->size = (uint64_t)st->st_size;
	r->atime = st->st_atim;
	r->mtime = st->st_mtim;
	r->flags |= (f->huge ? REC_HUGE : 0) | (f->spilled ? REC_SPILLED : 0) | (final ? 0 : REC_MAPPED) |
		    (closed ? 0 : REC_FSYNCED);
	int rc = log_append(s, r);
	if (!rc)
		rc = pend_add(s, r, f, &p);
	if (rc)
		return rc;
	s->last_seq = r->seq;
	snapshot_stat(f, st);
	f->error = 0;
	s->st.bytes_staged += f->size;
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
	int rc = ensure_fd(f);
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
	if (f->state == STAGED_OPEN && f->sealed_once)
		unwritten(s, f);
}

void staged_fail(struct staged *f, int err)
{
	struct staging *s = f->s;
	LOCK_SCOPE(&s->lock);
	f->error = err;
	sf_set_state(s, f, STAGED_FAILED);
	s->st.errors++;
}

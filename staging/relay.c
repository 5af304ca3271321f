/* SPDX-License-Identifier: MIT
 * Bytes that come through the daemon (relay lane): it sees every one, so it can wait for room
 * exactly, and turns the file into a spilled one where there is none. */
#include "staging/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Moves an open file's bytes to an unpublished store file. Not a backing file: the
 * kernel would go on reading the old one. f->io held. */
static int spill_now(struct staged *f)
{
	struct staging *s = f->s;
	struct stat st;
	int from, rc;

	pthread_mutex_lock(&s->lock);
	rc = sf_ensure_fd(f);
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
	rc = sf_copy_bytes(to, from, (uint64_t)st.st_size);
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
	f->fd = sf_open_bytes(f, O_RDONLY);
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
	uint64_t max = io_store_max_file(f->s->o.store);
	if (off >= max && len)
		return -EFBIG;
	if (len > max - off)
		len = (size_t)(max - off);
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
			f->rw = sf_open_bytes(f, O_RDWR);
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
	if (sf_lent(f) && off + len > f->size)
		len = off < f->size ? f->size - off : 0;
	ssize_t n = pread(fd, buf, len, (off_t)off);
	rc = n < 0 ? -errno : 0;
	staged_unuse(f);
	return n < 0 ? rc : n;
}

int staged_resize(struct staged *f, uint64_t size)
{
	if (size > io_store_max_file(f->s->o.store))
		return -EFBIG;
	LOCK_SCOPE(&f->io);
	int fd = sf_open_bytes(f, O_RDWR);
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
	int fd = rc && rc != -EFBIG ? rc : sf_open_bytes(f, O_RDWR);
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
	uint64_t max = io_store_max_file(f->s->o.store);
	if (!(mode & FALLOC_FL_PUNCH_HOLE) && (off > max || len > max - off))
		return -EFBIG;
	LOCK_SCOPE(&f->io);
	if (!(mode & ~FALLOC_FL_KEEP_SIZE))
		return allocate(f, mode, off, len);
	int fd = sf_open_bytes(f, O_RDWR);
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

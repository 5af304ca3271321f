/* SPDX-License-Identifier: MIT
 * Bytes written through the daemon (relay lane): it sees every write, so it can wait for memory
 * exactly, and spills the file if there is none. */
#include "staging/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Memory for `end` bytes in f: evicts, waits a little for pending data, and else spills, or lets a
 * backing file grow as the kernel's own writes do. f->io.lock held. */
static int space_to_grow(struct staged *f, uint64_t end)
{
	struct staging *s = f->s;
	uint64_t t0 = 0;

	for (unsigned round = 0; !f->spilled; round++) {
		pthread_mutex_lock(&s->lock);
		uint64_t more = end > f->memory.charged ? end - f->memory.charged : 0;
		if (s->files.used + more > s->o.budget_bytes)
			sf_evict(s, s->files.used + more - s->o.budget_bytes);
		bool soon = s->st.versions.persisting + s->st.versions.sealed && !s->drain.halted &&
			    round < 10;
		bool fits = s->files.used + more <= s->o.budget_bytes || (f->backing && !soon);
		if (fits && more)
			sf_charge(s, f, end);
		if (!fits && soon) {
			if (!t0)
				t0 = sf_wait_begins(s);
			staging_wait_until(&s->done_cond, &s->lock, monotonic_ns() + 10000000u);
		}
		if (t0 && (fits || !soon))
			f->times.admission += sf_wait_ends(s, t0);
		uint64_t used = s->files.used;
		pthread_mutex_unlock(&s->lock);
		if (fits) {
			if (more)
				pool_fit(s, used);
			return 0;
		}
		if (!soon)
			return sf_spill(f);
	}
	return 0;
}

/* f->io.lock held */
static ssize_t write_bytes(struct staged *f, const void *buf, size_t len, uint64_t off, bool last)
{
	/* it may be spilled; and a version must not change while it is persisted */
	CUT_SCOPE(f);
	if (off < f->moved.under)
		return outgrow_write(f, buf, len, off);
	int space = len ? space_for_write(f, off, len, last) : 0;
	if (space)
		return space;
	uint64_t charged = atomic_load_explicit(&f->memory.charged, memory_order_relaxed);
	if (off + len > charged && !f->spilled) {
		/* request memory ahead in large steps, so that the lock is rarely taken */
		/* a hole takes nothing */
		uint64_t end = off > charged ? charged + len : off + len;
		uint64_t step = charged / 2;
		int err = space_to_grow(f, end + (step < (64u << 20) ? step : (64u << 20)));
		if (err)
			return err;
	}
	for (int tries = 0; tries < 2; tries++) {
		if (f->io.rw < 0)
			f->io.rw = sf_open_bytes(f, O_RDWR);
		if (f->io.rw < 0)
			return f->io.rw;
		ssize_t n = pwrite(f->io.rw, buf, len, (off_t)off);
		if (n == (ssize_t)len || f->spilled)
			return n < 0 ? io_error() : n;
		if (n < 0 && (errno != ENOSPC || f->backing))
			return io_error();
		if (f->backing)
			return n;
		int err = sf_spill(f); /* the tmpfs is full although the budget is not */
		if (err)
			return err;
	}
	return -EIO;
}

/* UINT64_MAX: unknown */
static uint64_t size_now(const struct staged *f)
{
	struct stat st;
	return f->fd < 0 || fstat(f->fd, &st) ? UINT64_MAX : (uint64_t)st.st_size;
}

/* The result n of a write at the end of f (O_APPEND). A refused one that left no bytes takes
 * nothing from f: the program's next write begins at the same place. One that begins behind it is
 * a later part of the same call (aio): then what was refused is missing, from the end before it,
 * `size`. Any other write beyond the end means only that another process truncated the file. */
static ssize_t appended(struct staged *f, uint64_t off, uint64_t len, ssize_t n, uint64_t size)
{
	struct staged_io *io = &f->io;

	if (n < 0 && size_now(f) <= off) {
		if (n != -EAGAIN) {
			io->refused = off;
			io->refused_end = off + len;
		}
		return n;
	}
	if (n > 0 && size < off && size < io->refused_end && io->refused < off)
		staged_not_written(f, size, off - size, -EIO);
	if (n > 0 && off <= io->refused)
		io->refused_end = 0;
	return space_written(f, off, len, n);
}

static ssize_t write_or_ask(struct staged *f, const void *buf, size_t len, uint64_t off,
			    bool append, bool last)
{
	uint64_t max = io_store_max_file(f->s->o.store);
	if (off >= max && len)
		return -EFBIG;
	if (len > max - off)
		len = (size_t)(max - off);
	LOCK_SCOPE(&f->io.lock);
	uint64_t size = append && f->io.refused_end ? size_now(f) : UINT64_MAX;
	int fixed = append_change(f, off);
	if (fixed)
		return fixed == -EBUSY ? fixed : space_written(f, off, len, fixed);
	bool tight = f->spilled || f->space.checked;
	bool may_come = !last && tight && sf_space_may_come(f->s);
	ssize_t n = write_bytes(f, buf, len, off, last);
	/* a spilled file, or one that is spilled now, takes its blocks by itself */
	if (n < 0 && no_space((int)n) && may_come)
		n = -EAGAIN;
	return n == -EBUSY ? n
	       : append	   ? appended(f, off, len, n, size)
			   : space_written(f, off, len, n);
}

ssize_t staged_write_now(struct staged *f, const void *buf, size_t len, uint64_t off, bool append)
{
	return write_or_ask(f, buf, len, off, append, false);
}

ssize_t staged_write_later(struct staged *f, const void *buf, size_t len, uint64_t off, bool append)
{
	ssize_t n = -EAGAIN;
	for (unsigned tries = 1; n == -EAGAIN && tries <= LATE_TRIES; tries++) {
		sf_wait_for_space(f);
		n = write_or_ask(f, buf, len, off, append, tries == LATE_TRIES);
	}
	return n;
}

ssize_t staged_write(struct staged *f, const void *buf, size_t len, uint64_t off)
{
	ssize_t n = staged_write_now(f, buf, len, off, false);
	return n == -EAGAIN ? staged_write_later(f, buf, len, off, false) : n;
}

ssize_t staged_read(struct staged *f, void *buf, size_t len, uint64_t off)
{
	int fd;
	LOCK_SCOPE(&f->io.lock); /* a spill changes the descriptor */
	pthread_mutex_lock(&f->s->lock);
	/* an open handle still holds the descriptor of what was published since */
	bool in_use = f->users && f->fd >= 0;
	if (in_use) {
		f->users++;
		fd = f->fd;
	}
	pthread_mutex_unlock(&f->s->lock);
	int err = in_use ? 0 : staged_use(f, &fd);
	if (err)
		return err;
	if (sf_lent(f) && off + len > f->last.size)
		len = off < f->last.size ? f->last.size - off : 0;
	ssize_t n = pread(fd, buf, len, (off_t)off);
	err = n < 0 ? -errno : 0;
	staged_unuse(f);
	return n < 0 ? err : n;
}

/* A size set by ftruncate is an expectation. */
static void resized(struct staged *f, bool grows, uint64_t size, int err)
{
	struct staging *s = f->s;

	pthread_mutex_lock(&s->lock);
	f->memory.presized = grows && !err;
	bool expects = !err && !f->spilled && !f->memory.known && size > f->memory.expected;
	if (expects) {
		f->memory.known = true;
		f->memory.expected = size;
		if (s->files.used + size > s->o.budget_bytes)
			sf_evict(s, s->files.used + size - s->o.budget_bytes);
	}
	uint64_t used = s->files.used;
	pthread_mutex_unlock(&s->lock);
	if (expects)
		pool_fit(s, used + size);
}

int staged_resize(struct staged *f, uint64_t size)
{
	if (size > io_store_max_file(f->s->o.store))
		return -EFBIG;
	LOCK_SCOPE(&f->io.lock);
	CUT_SCOPE(f);
	int fd = append_change(f, size);
	if (!fd)
		fd = sf_open_bytes(f, O_RDWR);
	if (fd < 0)
		return fd;
	struct stat st;
	bool grows = !fstat(fd, &st) && size > (uint64_t)st.st_size;
	int err = f->moved.under	       ? outgrow_resize(f, fd, size)
		  : ftruncate(fd, (off_t)size) ? io_error()
					       : 0;
	close(fd);
	if (!err)
		space_cut(f, size);
	if (!err && !size)
		f->spoiled = 0;
	resized(f, grows, size, err);
	return err;
}

/* Is there memory for `end` bytes in f? -EFBIG: no, and it is a backing file; any other file
 * is spilled then. f->io.lock held. */
static int memory_for(struct staged *f, uint64_t end)
{
	struct staging *s = f->s;

	pthread_mutex_lock(&s->lock);
	f->memory.presized = true;
	uint64_t more = end > f->memory.charged ? end - f->memory.charged : 0;
	if (s->files.used + more > s->o.budget_bytes)
		sf_evict(s, s->files.used + more - s->o.budget_bytes);
	bool fits = s->files.used + more <= s->o.budget_bytes;
	if (fits)
		sf_charge(s, f, f->memory.charged + more);
	uint64_t used = s->files.used;
	pthread_mutex_unlock(&s->lock);
	if (fits)
		pool_fit(s, used);
	return fits ? 0 : f->backing ? -EFBIG : sf_spill(f);
}

/* Allocates before the write: memory if the budget has some, else the store must have the
 * blocks. The file gets its new size in either case. */
static int allocate(struct staged *f, int mode, uint64_t off, uint64_t len)
{
	struct stat st;

	if (off < f->moved.under) { /* that part has its blocks */
		uint64_t n = len < f->moved.under - off ? len : f->moved.under - off;
		off += n;
		len -= n;
		if (!len)
			return 0;
	}
	int err = len ? space_for_write(f, off, len, true) : 0;
	if (err)
		return err;
	err = f->spilled ? 0 : memory_for(f, off + len);
	int fd = err && err != -EFBIG ? err : sf_open_bytes(f, O_RDWR);
	if (fd < 0)
		return fd;
	if (!err) {
		err = fallocate(fd, mode, (off_t)off, (off_t)len) ? io_error() : 0;
	} else if (!(err = reserve_enter(f->s, len))) {
		reserve_leave(f->s);
		if (fstat(fd, &st) ||
		    (!(mode & FALLOC_FL_KEEP_SIZE) && (uint64_t)st.st_size < off + len &&
		     ftruncate(fd, (off_t)(off + len))))
			err = io_error();
	}
	close(fd);
	return err;
}

/* f->io.lock and the cut held. */
static int change_range(struct staged *f, int mode, uint64_t off, uint64_t len)
{
	int fd = sf_open_bytes(f, O_RDWR);
	if (fd < 0)
		return fd;
	int err = 0;
	if (off < f->moved.under) {
		uint64_t n = len < f->moved.under - off ? len : f->moved.under - off;
		err = outgrow_fallocate(f, mode, off, n);
		off += n;
		len -= n;
	}
	if (!err && len && fallocate(fd, mode, (off_t)off, (off_t)len))
		err = io_error();
	close(fd);
	return err;
}

/* tmpfs cannot zero a range. Blocks first: if there is no space nothing has changed. */
static int zero_range(struct staged *f, int keep, uint64_t off, uint64_t len)
{
	int err = allocate(f, keep, off, len);
	if (!err)
		err = change_range(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len);
	return err ? err : allocate(f, keep, off, len);
}

int staged_fallocate(struct staged *f, int mode, uint64_t off, uint64_t len)
{
	uint64_t max = io_store_max_file(f->s->o.store);
	int keep = mode & FALLOC_FL_KEEP_SIZE;
	if (!(mode & FALLOC_FL_PUNCH_HOLE) && (off > max || len > max - off))
		return -EFBIG;
	LOCK_SCOPE(&f->io.lock);
	CUT_SCOPE(f);
	int err = append_change(f, off);
	if (err)
		return err;
	return mode == keep			       ? allocate(f, mode, off, len)
	       : mode == (keep | FALLOC_FL_ZERO_RANGE) ? zero_range(f, keep, off, len)
						       : change_range(f, mode, off, len);
}

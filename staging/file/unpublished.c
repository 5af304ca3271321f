/* SPDX-License-Identifier: MIT
 * A staged file's unpublished file in the store's tmp/, created at its close, or earlier if each
 * write allocates: its owner, its blocks, its removal. */
#include "staging/file/file.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int sf_own_tmp(struct staged *f, int fd)
{
	struct io_attr a = {.mask = IO_ATTR_OWNER, .uid = f->space.uid, .gid = f->space.gid};

	if (!f->space.owned || geteuid() || (!f->space.uid && f->space.gid == getegid()))
		return 0;
	int err = io_set_attr_fd(f->s->o.store, fd, &a);
	/* other refusals are reported at its publication */
	return err == -EDQUOT || err == -EIO ? err : 0;
}

void sf_set_tmp(struct staged *f, uint64_t id, int fd)
{
	LOCK_SCOPE(&f->s->lock);
	f->io.tmp_id = id;
	f->io.tmp_fd = fd;
}

void sf_drop_tmp(struct staged *f)
{
	uint64_t id = f->io.tmp_id;
	int fd = f->io.tmp_fd;

	if (!id)
		return;
	pthread_mutex_lock(&f->s->lock);
	early_unref(early_take(f));
	f->io.tmp_id = 0;
	f->io.tmp_fd = -1;
	pthread_mutex_unlock(&f->s->lock);
	close(fd);
	io_tmp_remove(f->s->o.store, id);
	f->io.tmp_size = 0;
	f->io.allocated_from = f->io.allocated_to = 0;
}

/* What space_for_write allocated is not allocated again: xfs would need that space twice. */
static uint64_t behind_allocated(const struct staged *f, uint64_t off)
{
	return f->space.checked && off >= f->io.allocated_from && off < f->io.allocated_to
		       ? f->io.allocated_to
		       : off;
}

/* f->io.lock held, reserve_enter()ed */
int sf_allocate_range(struct staged *f, uint64_t off, uint64_t len)
{
	struct staging *s = f->s;

	return f->space.checked && !io_store_allocates(s->o.store)
		       ? reserve_fill(s, f->io.tmp_fd, off, len)
		       : io_allocate(s->o.store, f->io.tmp_fd, off, len);
}

static int allocate_data(struct staged *f, struct written *w)
{
	uint64_t off = 0, end;
	int err = 0;
	while (!err && off < w->size && !(err = written_next(w, &off, &end))) {
		uint64_t data = behind_allocated(f, off);
		off = data < end ? end : data;
		/* the direct write of the tail is padded */
		uint64_t len =
			data < end ? (end - data + IO_ALIGN - 1) & ~(uint64_t)(IO_ALIGN - 1) : 0;
		if (len)
			err = sf_allocate_range(f, data, len);
	}
	return err == -ENXIO ? 0 : err;
}

int sf_allocate(struct staged *f, int from, uint64_t size)
{
	struct stat st;
	if (size <= STAGING_SMALL)
		return behind_allocated(f, 0) < size ? sf_allocate_range(f, 0, size) : 0;
	struct written w = {.fd = from, .size = size};
	void *map = f->spilled || fstat(from, &st) || !has_holes(&st) || (uint64_t)st.st_size < size
			    ? MAP_FAILED
			    : mmap(NULL, size, PROT_READ, MAP_SHARED, from, 0);
	if (map != MAP_FAILED)
		w.map = map;
	int err = allocate_data(f, &w);
	if (map != MAP_FAILED)
		munmap(map, size);
	return err;
}

int sf_count(struct staged *f, uint64_t size)
{
	struct stat st, has;

	if (io_store_allocates(f->s->o.store)) {
		reserve_kept(f->s, &f->io.promised);
		return 0;
	}
	uint64_t blocks = f->fd < 0 || fstat(f->fd, &st) ? size : (uint64_t)st.st_blocks * 512;
	uint64_t bytes = blocks < size ? blocks : size;
	uint64_t there = fstat(f->io.tmp_fd, &has) ? 0 : (uint64_t)has.st_blocks * 512;
	return reserve_count(f->s, &f->io.promised, bytes > there ? bytes - there : 0);
}

int sf_make_tmp(struct staged *f, uint64_t size)
{
	struct staging *s = f->s;
	int err = 0;
	if (!f->io.tmp_id) {
		uint64_t id = staging_new_id(s);
		int fd = io_tmp_create_as(s->o.store, id, f->space.mode,
					  size > STAGING_SMALL || f->space.checked,
					  &f->io.tmp_direct);
		if (fd < 0)
			return fd;
		sf_set_tmp(f, id, fd);
		f->io.allocated_from = f->io.allocated_to = 0; /* that was a promise */
		/* first: quotas count what is allocated by its owner */
		err = sf_own_tmp(f, fd);
	}
	/* what is only counted needs no look at the store besides */
	if (!err && (io_store_allocates(s->o.store) || f->space.checked))
		err = sf_allocate(f, f->fd, size);
	if (!err)
		err = sf_count(f, size);
	if (!err)
		f->io.tmp_size = size;
	return err;
}

bool sf_limited(const struct staged *f)
{
	return f->space.owned &&
	       io_store_quota_left(f->s->o.store, f->space.uid, f->space.gid) != UINT64_MAX;
}

/* Frees the blocks that space_for_write allocated behind the end; those of the padded direct write
 * of the tail stay (a filesystem's blocks may be smaller). Twice: the second finds the size as it
 * is, and frees. */
int sf_trim_tmp(struct staged *f, uint64_t size)
{
	if (!f->space.checked || !f->io.tmp_id || f->io.allocated_to <= size)
		return 0;
	f->io.allocated_to = f->io.allocated_from < size ? size : f->io.allocated_from;
	uint64_t end = (size + IO_ALIGN - 1) & ~(uint64_t)(IO_ALIGN - 1);
	int err = io_truncate(f->s->o.store, f->io.tmp_fd, end);
	return err ? err : io_truncate(f->s->o.store, f->io.tmp_fd, end);
}

#define DELETES_PATIENCE_NS 30000000000ull /* for removals before it in the order */

/* Pending removals may free the missing space. */
static void wait_for_deletes(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	uint64_t until = s->order.last_delete, give_up = monotonic_ns() + DELETES_PATIENCE_NS;
	/* not behind a mapping, which may exist for ever */
	while (*s->order.head && (*s->order.head)->state != PEND_WAIT && s->head->durable < until &&
	       !s->drain.halted && monotonic_ns() < give_up)
		staging_wait_until(&s->done_cond, &s->lock, monotonic_ns() + 50000000u);
}

bool sf_space_may_come(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	return s->head->durable < s->order.last_delete || trash_may_free(s);
}

void sf_wait_for_space(struct staged *f)
{
	uint64_t since = monotonic_ns();
	wait_for_deletes(f->s);
	trash_wait(f->s);
	sf_waited(f, since);
}

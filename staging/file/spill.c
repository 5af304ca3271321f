/* SPDX-License-Identifier: MIT
 * Moves an open file's bytes to an unpublished file of the store; from then on it is a spilled
 * file. */
#include "staging/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int put_raw(void *ctx, const void *buf, size_t len, uint64_t off)
{
	ssize_t n = pwrite(*(int *)ctx, buf, len, (off_t)off);
	return n == (ssize_t)len ? 0 : n < 0 ? io_error() : -ENOSPC;
}

int sf_copy_bytes(int wr, int from_fd, uint64_t size)
{
	if (wr < 0)
		return wr;
	int err = data_each(from_fd, size, put_raw, &wr);
	if (!err && ftruncate(wr, (off_t)size))
		err = io_error();
	close(wr);
	return err;
}

int sf_spill(struct staged *f)
{
	struct staging *s = f->s;
	struct stat st;
	int from, err;

	/* versions on their way are read from where it is */
	if ((err = staged_unprotect(f)))
		return err;
	pthread_mutex_lock(&s->lock);
	err = sf_ensure_fd(f);
	from = err ? -1 : dup(f->fd);
	pthread_mutex_unlock(&s->lock);
	if (from < 0)
		return err ? err : -errno;
	if (fstat(from, &st)) {
		close(from);
		return -EIO;
	}
	bool direct;
	if (f->space.checked) /* those blocks are for the same bytes */
		sf_drop_tmp(f);
	int to = io_tmp_create(s->o.store, f->id, false, &direct);
	err = to < 0 ? to : sf_own_tmp(f, to);
	if (err) {
		if (to >= 0)
			close(to);
		close(from);
		return err;
	}
	err = sf_copy_bytes(to, from, (uint64_t)st.st_size);
	close(from);
	if (err) {
		io_tmp_remove(s->o.store, f->id);
		return err;
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
	/* not earlier: a rotation of the log would record half a file as spilled */
	f->spilled = true;
	f->times.spilled = monotonic_ns();
	f->moved.under = 0;
	struct rec r = {.type = REC_STAGED, .node = f->node, .sf = f->id, .flags = REC_SPILLED};
	struct torn_range torn[TORN_MAX];
	torn_out(f, &r, torn);
	log_append(s, &r);
	for (struct pend *p = f->n_seals ? s->order.pend : NULL; p; p = p->next)
		p->snapshot |= p->sf == f; /* earlier versions have files of their own */
	if (f->fd >= 0)
		close(f->fd);
	if (f->io.rw >= 0)
		close(f->io.rw);
	f->io.rw = -1;
	f->memory.huge = false;
	f->fd = sf_open_bytes(f, O_RDONLY);
	if (f->fd >= 0)
		futimens(f->fd, ts);
	unlinkat(dir, name, 0);
	sf_charge(s, f, 0);
	return f->fd < 0 ? f->fd : 0;
}

/* The worker died after it had logged the spill: the store file counts. */
void sf_replay_spill(struct staging *s, struct staged *f)
{
	char name[17];
	staging_sf_name(f->id, name);
	unlinkat(staging_sf_dir(f), name, 0);
	if (f->fd >= 0)
		close(f->fd);
	sf_charge(s, f, 0);
	f->spilled = true;
	f->moved.under = 0;
	f->memory.huge = false;
	f->fd = sf_open_bytes(f, O_RDONLY);
}

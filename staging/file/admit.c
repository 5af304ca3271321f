/* SPDX-License-Identifier: MIT
 * How a staged file begins: admission into the budget, memory prepared for it, or an unpublished
 * store file (spilled) if there is no memory; recovered after a restart; copied from the previous
 * version. */
#include "staging/file/file.h"
#include "staging/memory/pin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file of unknown size is admitted if this much is free: an eighth of the
 * budget, between these. It may grow past it; the watch charges it. */
#define UNKNOWN_MIN (16ull << 20)
#define UNKNOWN_MAX (1ull << 30)
/* And only if there is, beyond the budget, twice the largest file so far and at least this
 * much (an eighth of a small machine's memory) for it and each file of its kind that grows: the
 * kernel writes it into the tmpfs by itself, and its writer would get ENOSPC. */
#define UNKNOWN_GROWTH (4ull << 30)
#define GROWING (64ull << 20)

/* ---- space ---- */

static uint64_t space_needed(const struct staging *s, uint64_t expected)
{
	if (expected != STAGED_SIZE_UNKNOWN)
		return expected;
	uint64_t need = s->o.budget_bytes / 8;
	return need < UNKNOWN_MIN ? UNKNOWN_MIN : need > UNKNOWN_MAX ? UNKNOWN_MAX : need;
}

/* s->lock held */
static bool may_grow(struct staging *s)
{
	uint64_t each = UNKNOWN_GROWTH, eighth = pin_memory() / 8, n = 1;

	if (eighth && eighth < each)
		each = eighth;
	if (each < 2 * s->files.largest)
		each = 2 * s->files.largest;
	for (struct staged *f = s->files.open; f; f = f->lists.open_next)
		n += !f->memory.known && !f->spilled && f->last.blocks * 512 >= GROWING;
	return staging_space_left(s) / n >= each;
}

/* Evicts what a tmpfs that others fill, too, needs for so much. s->lock held. */
static bool has_tmpfs_for(struct staging *s, uint64_t need)
{
	uint64_t left = staging_tmpfs_left(s);

	if (left < need)
		sf_evict(s, need - left);
	return left >= need || staging_tmpfs_left(s) >= need;
}

/* Charges f to the budget, evicting durable files. s->lock held. */
static bool admit(struct staging *s, struct staged *f, uint64_t need)
{
	uint64_t budget = s->o.budget_bytes;

	if (need > budget)
		return false;
	if (s->files.used + need > budget)
		sf_evict(s, s->files.used + need - budget);
	if (s->files.used + need > budget || !has_tmpfs_for(s, need) ||
	    (!f->memory.known && !may_grow(s)))
		return false;
	/* one of unknown size only has to find the space; most stay small, the watch charges the
	 * rest */
	sf_charge(s, f, f->memory.known ? need : need / 16);
	return true;
}

static int make_bytes(struct staged *f)
{
	bool direct;
	int fd;

	if (f->spilled) {
		fd = io_tmp_create(f->s->o.store, f->id, false, &direct);
		if (fd < 0)
			return fd;
		int err = sf_own_tmp(f, fd);
		close(fd);
		fd = err ? err : sf_open_bytes(f, O_RDONLY);
	} else {
		/* O_RDONLY: a writable descriptor of ours would block the seal's lease */
		char name[17];
		staging_sf_name(f->id, name);
		f->memory.filled = f->memory.huge &&
				   pool_use(f->s, f->memory.expected, staging_sf_dir(f), name);
		fd = sf_open_bytes(f, f->memory.filled ? O_RDONLY : O_RDONLY | O_CREAT | O_EXCL);
		if (f->memory.filled && fd >= 0)
			futimens(fd, NULL);
	}
	LOCK_SCOPE(&f->s->lock); /* the watch reads it */
	f->fd = fd < 0 ? -1 : fd;
	return fd < 0 ? fd : 0;
}

/* Allocates memory for all that the file is expected to hold, before it is written. */
static void fill_ahead(struct staged *f)
{
	struct staging *s = f->s;
	int fd = f->memory.filled ? -1 : sf_open_bytes(f, O_RDWR);
	if (fd >= 0) {
		uint64_t since = monotonic_ns();
		pool_hand_over(s, fd, f->memory.expected);
		sf_waited(f, since);
		close(fd);
	}
	pthread_mutex_lock(&s->lock);
	uint64_t used = s->files.used;
	pthread_mutex_unlock(&s->lock);
	pool_fit(s, used);
}

int staged_create(struct staging *s, uint64_t node, uint64_t expected, struct staged **out)
{
	return staged_create_as(s, node, expected, NULL, out);
}

bool staged_checked(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return f->space.checked;
}

bool staged_check_space(struct staged *f)
{
	struct staging *s = f->s;
	uint64_t claim = f->last.size + s->o.budget_bytes;
	bool all = space_for_all(s, f, claim);
	LOCK_SCOPE(&s->lock);
	if (!f->spilled)
		f->space.checked = !all && !f->backing;
	return !all;
}

int staged_create_as(struct staging *s, uint64_t node, uint64_t expected,
		     const struct staged_owner *who, struct staged **out)
{
	uint64_t need = space_needed(s, expected);
	struct staged *f = sf_new(s, staging_new_id(s), node);
	if (!f)
		return -ENOMEM;
	f->memory.known = expected != STAGED_SIZE_UNKNOWN;
	f->memory.expected = need;
	f->memory.huge = f->memory.known && expected >= HUGE_BYTES;
	if (who) {
		f->space.owned = true;
		f->space.uid = who->uid;
		f->space.gid = who->gid;
		f->space.mode = who->mode;
	}
	uint64_t claim = space_claim(s, f) + (who && who->grows ? s->o.budget_bytes : 0);
	f->space.checked = !space_for_all(s, f, claim);
	/* a spilled file's passthrough writes must find their blocks, and btrfs counts those of
	 * dirty pages as free */
	bool ample = space_for_all(s, f, claim + 2 * s->o.budget_bytes);
	pthread_mutex_lock(&s->lock);
	sf_insert(s, f);
	f->spilled = !admit(s, f, need);
	f->space.checked |= f->spilled && !ample;
	f->times.spilled = f->spilled ? f->times.begun : 0;
	if (!f->spilled && !f->space.checked)
		space_claim_set(s, f, claim);
	f->memory.huge = f->memory.huge && !f->spilled;
	uint64_t used = s->files.used;
	++*(f->spilled ? &s->st.spilled_opens : &s->st.fast_opens);
	pthread_mutex_unlock(&s->lock);
	if (!f->memory.huge)
		pool_fit(s, used);

	int err = make_bytes(f);
	if (err == -ENOSPC && !f->spilled) { /* the tmpfs itself is full */
		pthread_mutex_lock(&s->lock);
		sf_charge(s, f, 0);
		space_claim_set(s, f, 0);
		f->spilled = true;
		f->times.spilled = f->times.begun;
		f->memory.huge = false;
		pthread_mutex_unlock(&s->lock);
		err = make_bytes(f);
	}
	if (err) {
		staged_unref(f);
		return err;
	}
	if (f->memory.huge)
		fill_ahead(f);
	*out = f;
	return 0;
}

void staged_cover(struct staged *f)
{
	int fd = f->memory.huge && !f->spilled ? sf_open_bytes(f, O_RDWR) : -1, err;
	if (fd < 0)
		return;
	while ((err = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0,
				(off_t)whole_pages(f->memory.expected))) &&
	       errno == EINTR)
		;
	f->memory.covered = !err; /* there already, where the pool had it */
	close(fd);
}

bool staged_covered(const struct staged *f)
{
	return f->memory.covered;
}

/* The store's filesystem shut down before it had written everything spilled there and closed: the
 * rest is no version (P2). A snapshot's file may change, and a mapped file's size is logged
 * later. */
static bool lacks_bytes(const struct staged *f, const struct rec *r, const struct stat *st)
{
	return r->type == REC_SEAL && f->spilled && !(r->flags & (REC_FSYNCED | REC_MAPPED)) &&
	       (uint64_t)st->st_size < r->size;
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
	f->memory.huge = r->flags & REC_HUGE;
	f->spilled = r->flags & REC_SPILLED;
	struct stat st;
	f->fd = sf_open_bytes(f, O_RDONLY);
	if (f->fd == -ENOENT && !f->spilled) {
		/* Spilled since: the record of that follows, and makes it good. Without one it is
		 * not known to be whole: what outgrew memory was in both. */
		f->spilled = true;
		f->spoiled = -EIO;
		f->memory.huge = false;
		f->fd = sf_open_bytes(f, O_RDONLY);
	}
	/* a failing store does not mean that the file is gone: it is opened when it is needed */
	bool unread = f->spilled && f->fd < 0 && f->fd != -ENOENT;
	int err = unread ? 0 : f->fd < 0 ? f->fd : fstat(f->fd, &st) ? -errno : 0;
	if (unread) {
		st = (struct stat){.st_mode = S_IFREG, .st_size = (off_t)r->size};
		f->fd = -1;
	}
	if (!err && !S_ISREG(st.st_mode))
		err = -EINVAL;
	if (!err && lacks_bytes(f, r, &st))
		err = -ENODATA;
	if (!err)
		err = outgrow_recover(f, &st);
	if (err) {
		if (f->fd >= 0)
			close(f->fd);
		free(f);
		return err;
	}
	LOCK_SCOPE(&s->lock);
	sf_insert(s, f);
	buffer_lent_again(s, f, r);
	if (!f->spilled)
		sf_charge(s, f, (uint64_t)st.st_blocks * 512);
	*out = f;
	return 0;
}

/* Through staged_write(), since the store may not have space for the copy. */
static int put_checked(void *ctx, const void *buf, size_t len, uint64_t off)
{
	/* a short write: the next one says why */
	for (size_t done = 0; done < len;) {
		ssize_t n = staged_write(ctx, (const char *)buf + done, len - done, off + done);
		if (n <= 0)
			return n ? (int)n : -ENOSPC;
		done += (size_t)n;
	}
	return 0;
}

/* fd stays open. */
static int copy_checked(struct staged *f, int fd, uint64_t size)
{
	int err = data_each(fd, size, put_checked, f);
	return err ? err : staged_resize(f, size);
}

int staged_copy(struct staging *s, uint64_t node, struct staged *src, int store_fd,
		const struct staged_owner *who, struct staged **out)
{
	int fd = store_fd;
	if (src) {
		int err = staged_use(src, &fd);
		if (err)
			return err;
	}
	struct stat st;
	int err = fstat(fd, &st) ? -errno : 0;
	struct staged *f = NULL;
	if (src && sf_lent(src))
		st.st_size = (off_t)src->last.size;
	if (!err)
		err = staged_create_as(s, node,
				       (uint64_t)st.st_blocks * 512 > (uint64_t)st.st_size
					       ? (uint64_t)st.st_size
					       : (uint64_t)st.st_blocks * 512,
				       who, &f);
	if (!err) {
		uint64_t since = monotonic_ns();
		err = f->space.checked
			      ? copy_checked(f, fd, (uint64_t)st.st_size)
			      : sf_copy_bytes(sf_open_bytes(f, O_RDWR), fd, (uint64_t)st.st_size);
		const struct timespec ts[2] = {st.st_atim, st.st_mtim};
		if (!err)
			err = staged_set_times(f, ts);
		if (!err && !src)
			io_get_xattr(s->o.store, fd, NULL, KEY_CHECKSUM, f->base.checksum,
				     sizeof(f->base.checksum) - 1);
		sf_waited(f, since);
	}
	if (src)
		staged_unuse(src);
	if (err && f)
		staged_unref(f);
	else
		*out = f;
	return err;
}

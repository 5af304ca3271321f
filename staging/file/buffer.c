/* SPDX-License-Identifier: MIT
 * Buffers: staged files lent to a client, which maps one, has it filled and commits it; it gets
 * the same pages back, in the same mapping, when the version made from it is durable.
 *
 * A buffer is the file buffer.<id> in the tmpfs of large files. The version made from it is a
 * staged file whose name there is a second link to the same inode: so it is sealed, persisted and
 * recovered like any other, and the buffer is free when that link is gone. The memory is charged
 * to the buffer, and to the version only when the buffer has ended.
 *
 *	          lend, seal                it has been a backing file
 *	   FREE ────────────▶ LENT ───────────────────────────────────────▶ KEPT
 *	     ▲                  │                                             │
 *	     └── durable, or ───┘                                  the client closes: the
 *	         not used                                          file is the version's alone
 *
 *	state	lent	kept	links of the inode
 *	FREE	NULL	no	buffer.<id>
 *	LENT	set	no	buffer.<id>, the version's
 *	KEPT	any	yes	buffer.<id>, the version's unless it is gone
 *
 * The inode is as long as the buffer ever was, the version may be shorter: truncating the file
 * would take pages from the client's registered mapping. It is truncated when the client has
 * closed the buffer. */
#include "staging/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void buffer_name(uint64_t id, char out[32])
{
	snprintf(out, 32, BUFFER_PREFIX "%016llx", (unsigned long long)id);
}

static int open_file(struct staging *s, uint64_t id, int flags)
{
	char name[32];
	buffer_name(id, name);
	int fd = openat(s->o.place.huge, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	return fd < 0 ? -errno : fd;
}

static struct buffer *find(struct staging *s, uint64_t id)
{
	struct buffer *b = s->files.buffers;
	while (b && b->id != id)
		b = b->next;
	return b;
}

/* ---- space (s->lock held) ---- */

static void charge(struct buffer *b, uint64_t bytes)
{
	struct staging *s = b->s;
	s->files.used += bytes - b->charged;
	s->files.buffer_bytes += bytes - b->charged;
	b->charged = bytes;
}

/* Beyond this, all files of other writers would bypass staging. */
static uint64_t most(const struct staging *s)
{
	return s->o.budget_bytes / 4 * 3;
}

static int take_space(struct buffer *b, uint64_t bytes)
{
	struct staging *s = b->s;
	uint64_t more = bytes > b->charged ? bytes - b->charged : 0, budget = s->o.budget_bytes;

	if (s->files.buffer_bytes + more > most(s) || more > most(s))
		return -ENOSPC;
	if (s->files.used + more > budget)
		sf_evict(s, s->files.used + more - budget);
	if (s->files.used + more > budget)
		return -ENOSPC;
	charge(b, b->charged + more);
	return 0;
}

/* ---- creation and end ---- */

/* A mapping that meets a full tmpfs dies by SIGBUS: all memory is allocated now, or not at all. */
static int fill(struct staging *s, int fd, uint64_t from, uint64_t size, bool filled)
{
	if (!filled && !from)
		pool_hand_over(s, fd, size);
	pthread_mutex_lock(&s->lock);
	uint64_t used = s->files.used;
	pthread_mutex_unlock(&s->lock);
	pool_fit(s, used);
	if (filled) /* a ready file a little too large */
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)whole_pages(size),
			  (off_t)(size / 16 / HUGE_BYTES * HUGE_BYTES + HUGE_BYTES));
	int err = 0;
	while ((err = fallocate(fd, 0, (off_t)from, (off_t)(size - from))) && errno == EINTR)
		;
	return err ? -errno : 0;
}

static int make_file(struct buffer *b, uint64_t size)
{
	struct staging *s = b->s;
	char name[32];

	buffer_name(b->id, name);
	bool filled = pool_use(s, size, s->o.place.huge, name);
	int fd = open_file(s, b->id, filled ? O_RDWR : O_RDWR | O_CREAT | O_EXCL);
	int err = fd < 0 ? fd : fill(s, fd, 0, size, filled);
	if (fd >= 0)
		close(fd);
	if (!err && (b->fd = open_file(s, b->id, O_RDONLY)) < 0)
		err = b->fd;
	if (err)
		unlinkat(s->o.place.huge, name, 0);
	return err;
}

static struct buffer *new_buffer(struct staging *s, uint64_t id)
{
	struct buffer *b = calloc(1, sizeof(*b));
	if (b)
		*b = (struct buffer){.s = s, .id = id, .refs = 1, .fd = -1};
	return b;
}

static void insert(struct buffer *b)
{
	b->next = b->s->files.buffers;
	b->s->files.buffers = b;
	b->s->files.n_buffers++;
}

int buffer_create(struct staging *s, uint64_t size, struct buffer **out)
{
	struct buffer *b = new_buffer(s, staging_new_id(s));
	if (!b)
		return -ENOMEM;
	pthread_mutex_lock(&s->lock);
	/* a descriptor each */
	int err = s->files.n_buffers >= s->order.fds_pend ? -EMFILE
		  : size > INT64_MAX - HUGE_BYTES	  ? -ENOSPC
							  : take_space(b, whole_pages(size));
	pthread_mutex_unlock(&s->lock);
	if (!err)
		err = make_file(b, size);
	LOCK_SCOPE(&s->lock);
	if (err) {
		charge(b, 0);
		free(b);
		return err;
	}
	insert(b);
	*out = b;
	return 0;
}

int buffer_recover(struct staging *s, uint64_t id, bool kept, struct buffer **out)
{
	struct stat st;
	struct buffer *b = new_buffer(s, id);
	if (!b)
		return -ENOMEM;
	b->fd = open_file(s, id, O_RDONLY);
	int err = b->fd < 0		? b->fd
		  : fstat(b->fd, &st)	? -errno
		  : S_ISREG(st.st_mode) ? 0
					: -EINVAL;
	if (err) {
		if (b->fd >= 0)
			close(b->fd);
		free(b);
		return err;
	}
	LOCK_SCOPE(&s->lock);
	b->kept = kept;
	charge(b, whole_pages((uint64_t)st.st_size));
	insert(b);
	*out = b;
	return 0;
}

struct buffer *buffer_ref(struct buffer *b)
{
	LOCK_SCOPE(&b->s->lock);
	b->refs++;
	return b;
}

void buffer_unref(struct buffer *b)
{
	LOCK_SCOPE(&b->s->lock);
	if (--b->refs)
		return;
	/* the last close of large memory takes long */
	trash_put(b->s, 0, b->fd);
	free(b);
}

uint64_t buffer_id(const struct buffer *b)
{
	return b->id;
}

int buffer_fd(const struct buffer *b)
{
	return b->fd;
}

void buffer_get_info(struct buffer *b, struct buffer_info *out)
{
	LOCK_SCOPE(&b->s->lock);
	*out = (struct buffer_info){
		.state = b->kept   ? BUFFER_KEPT
			 : b->lent ? BUFFER_LENT
				   : BUFFER_FREE,
		.bytes = b->charged,
	};
}

int buffer_resize(struct buffer *b, uint64_t size)
{
	struct staging *s = b->s;
	struct stat st;

	if (fstat(b->fd, &st))
		return -errno;
	if (size <= (uint64_t)st.st_size)
		return 0;
	pthread_mutex_lock(&s->lock);
	uint64_t had = b->charged;
	int err = b->ended			  ? -ESTALE
		  : b->kept			  ? -EBUSY
		  : size > INT64_MAX - HUGE_BYTES ? -ENOSPC
						  : take_space(b, whole_pages(size));
	pthread_mutex_unlock(&s->lock);
	if (err)
		return err;
	int fd = open_file(s, b->id, O_RDWR);
	err = fd < 0 ? fd : fill(s, fd, (uint64_t)st.st_size, size, false);
	if (fd >= 0)
		close(fd);
	LOCK_SCOPE(&s->lock);
	if (err && !b->ended)
		charge(b, had);
	return err;
}

/* ---- lending (s->lock held) ---- */

/* The file gets the size and times of its version. */
static void cut(struct staged *f)
{
	struct stat st;
	int fd = staged_open_rw(f);
	if (fd < 0)
		return;
	if (!fstat(fd, &st) && (uint64_t)st.st_size > f->last.size &&
	    ftruncate(fd, (off_t)f->last.size))
		f->s->o.notice(f->s->o.ctx, LEVEL_ERROR
			       "staging: a committed buffer could not be cut to its file's size");
	const struct timespec ts[2] = {f->last.atime, f->last.mtime};
	if (f->last.once)
		futimens(fd, ts);
	if (!fstat(fd, &st)) {
		f->last.ctime = st.st_ctim;
		f->last.blocks = (uint64_t)st.st_blocks;
	}
	close(fd);
}

void buffer_lent_again(struct staging *s, struct staged *f, const struct rec *r)
{
	if (!(r->flags & REC_LENT))
		return;
	struct buffer *b = find(s, r->fh);
	f->memory.loan = true;
	f->last.size = r->size;
	if (b && !b->lent) {
		b->lent = f;
		f->memory.lender = b;
	}
}

/* After a restart the reader's open is found, but perhaps not the version that it was of. */
static int buffer_keep(struct staged *f)
{
	struct rec r = {.type = REC_KEEP, .fh = f->memory.lender->id, .sf = f->id};
	int err = f->memory.lender->kept || f->s->log.replaying ? 0 : log_append(f->s, &r);

	if (err || f->memory.lender->kept)
		return err;
	f->memory.lender->kept = true;
	cut(f);
	return 0;
}

int staged_set_backing(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	int err = f->memory.lender ? buffer_keep(f) : 0;
	f->backing |= !err;
	if (!err && f->state == STAGED_OPEN)
		ahead_look(f->s);
	return err;
}

void buffer_kept_again(struct staging *s, uint64_t id)
{
	LOCK_SCOPE(&s->lock);
	struct buffer *b = find(s, id);
	if (b)
		b->kept = true;
}

void buffer_end(struct buffer *b)
{
	struct staging *s = b->s;
	char name[32];
	LOCK_SCOPE(&s->lock);
	struct staged *f = b->lent;
	struct buffer **pp = &s->files.buffers;

	if (b->ended)
		return;
	b->ended = true;
	while (*pp != b)
		pp = &(*pp)->next;
	*pp = b->next;
	s->files.n_buffers--;
	charge(b, 0);
	if (f) { /* continues as any version */
		cut(f);
		sf_loan_ends(f);
		sf_charge(s, f, f->last.blocks * 512);
	}
	/* not to the pool: a dying client's device may still write there, and an unlinked page is
	 * freed only after its last user is gone */
	buffer_name(b->id, name);
	unlinkat(s->o.place.huge, name, 0);
}

int buffer_lend(struct buffer *b, uint64_t node, uint64_t size, struct staged **out)
{
	struct staging *s = b->s;
	char from[32], to[17];
	struct staged *f = sf_new(s, staging_new_id(s), node);
	if (!f)
		return -ENOMEM;
	f->memory.huge = f->memory.known = f->memory.loan = true;
	f->memory.expected = f->last.size = size;
	buffer_name(b->id, from);
	staging_sf_name(f->id, to);
	LOCK_SCOPE(&s->lock);
	int err = b->ended ? -ENOENT : b->kept || b->lent ? -EBUSY : 0;
	/* first, so that an unused link is recognized as such */
	struct rec r = {.type = REC_LEND, .sf = f->id, .fh = b->id};
	if (!err)
		err = log_append(s, &r);
	if (!err && linkat(s->o.place.huge, from, s->o.place.huge, to, 0))
		err = -errno;
	if (err) {
		pthread_mutex_destroy(&f->io.lock);
		pthread_mutex_destroy(&f->io.cut);
		free(f);
		return err;
	}
	b->lent = f;
	f->memory.lender = b;
	sf_insert(s, f);
	*out = f;
	return 0;
}

int buffer_commit(struct staged *f, struct rec *r)
{
	struct staging *s = f->s;
	struct stat st;

	LOCK_SCOPE(&f->io.lock);
	pthread_mutex_t *sl __attribute__((cleanup(scope_unlock), unused)) = scope_lock(&s->lock);
	int err = sf_stat(f, &st);
	if (err)
		return err;
	st.st_atim = st.st_mtim = st.st_ctim = r->when; /* mapped writes do not set times */
	r->fh = f->memory.lender ? f->memory.lender->id : 0;
	r->flags |= REC_LENT;
	err = sf_seal(s, f, r, &st, true, true);
	if (!err && !f->memory.lender) /* the client ended meanwhile */
		cut(f);
	return err;
}

uint64_t staged_lender(struct staged *f, bool *loan)
{
	LOCK_SCOPE(&f->s->lock);
	*loan = f->memory.loan;
	return f->memory.lender ? f->memory.lender->id : 0;
}

/* ---- all of them ---- */

void staging_watch_buffers(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	for (struct buffer *b = s->files.buffers; b; b = b->next) {
		struct stat st;
		if (!fstat(b->fd, &st) && (uint64_t)st.st_blocks * 512 > b->charged)
			charge(b, (uint64_t)st.st_blocks * 512); /* by write(2) */
	}
	if (s->files.buffers && s->files.used > s->o.budget_bytes)
		sf_evict(s, s->files.used - s->o.budget_bytes);
}

void buffer_stats(struct staging *s, struct staging_stats *out)
{
	out->buffers.count = s->files.n_buffers;
	out->buffers.bytes = s->files.buffer_bytes;
	out->buffers.lent_bytes = 0;
	for (struct buffer *b = s->files.buffers; b; b = b->next)
		out->buffers.lent_bytes += b->lent ? b->lent->last.size : 0;
}

void buffer_sweep(struct staging *s, const char *name)
{
	char *end;
	uint64_t id = strtoull(name + sizeof(BUFFER_PREFIX) - 1, &end, 16);
	LOCK_SCOPE(&s->lock);
	if (!*end && !find(s, id))
		unlinkat(s->o.place.huge, name, 0);
}

void buffer_close_all(struct staging *s)
{
	for (struct buffer *b = s->files.buffers, *next; b; b = next) {
		next = b->next;
		close(b->fd);
		free(b);
	}
	s->files.buffers = NULL;
}

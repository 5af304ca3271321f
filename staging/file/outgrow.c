/* SPDX-License-Identifier: MIT
 * Passthrough files that outgrow memory while the kernel writes them.
 *
 * The kernel keeps its backing file for as long as the file is open, so such a file cannot be
 * spilled as one written through the daemon can. Instead its older bytes move: [0, under) to
 * tmp/<id> of the store, the file that a spill would have made, and out of the tmpfs by a punch.
 * The caller ensures that no write is in progress (fs/ops/freeze.c) and that nothing reads or maps
 * the file, which would find the hole. At the close the rest follows, and the file is a spilled one
 * like any other.
 *
 *   bytes	    tmpfs	  tmp/<id>
 *   [0, under)       hole	   yes
 *   [under, size)    yes	    not yet (zeros, if a kill interrupted a move)
 *
 * The last 8 MiB written stay: the writer continues after them, or patches them.
 *
 * `under` is a multiple of 2 MiB: a page that the tmpfs allocates for a write may be that large,
 * and is zeros where nothing was written.
 *
 * None of this is logged: the state is in the two files and in the mode of the one in the tmpfs.
 * MOVED replaces a lookup for a worker that starts without the store; without PUNCHED all is in the
 * tmpfs. A page that is in both was moved
 * and not punched yet (they are equal), or not moved yet (zeros below), or was rewritten by the
 * writer. In the last case it is unknown which bytes of the page were written: the close fails with
 * an error. */
#include "staging/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* stays in memory: a header patched right after its data is there */
#define TAIL (8ull << 20)
#define STEP (256ull << 20)
#define MOST (8ull << 30) /* at once; the writer waits meanwhile */
#define WORTH (64ull << 20)
#define ASK_AGAIN_NS 20000000u
/* It has a reader: try other files meanwhile. */
#define NOT_NOW_NS 1000000000u
/* What is written at memory's speed in that time; a store with less is looked at more often. */
#define AMPLE (16ull << 30)
/* one write(2) is at most 2 GiB, and cannot be interrupted */
#define SPACE_ENOUGH (3ull << 30)
#define PAGE 4096u
#define EXTENTS 4096u
#define MOVED (S_IRUSR | S_IWUSR | S_ISVTX)
#define PUNCHED S_IXUSR /* a hole alone does not tell: a writer may have written into each page */

struct move {
	struct staged *f;
	int from, to; /* tmpfs, O_RDWR; tmp/<id> */
	bool direct;
	struct stat st;
	void *map;
	struct io_queue *q;
	struct io_extent *ext;
};

static void move_close(struct move *m)
{
	if (m->map)
		munmap(m->map, (size_t)m->st.st_size);
	if (m->q)
		io_queue_close(m->q);
	if (m->from >= 0)
		close(m->from);
	if (m->to >= 0)
		close(m->to);
	free(m->ext);
}

static int move_open(struct move *m, struct staged *f)
{
	struct io_store *store = f->s->o.store;
	char name[17];

	*m = (struct move){.f = f, .from = -1, .to = -1};
	staging_sf_name(f->id, name);
	m->from = openat(staging_sf_dir(f), name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (m->from < 0 || fstat(m->from, &m->st))
		return -errno;
	if (!f->moved.under)
		m->to = io_tmp_create(store, f->id, true, &m->direct);
	else if ((m->to = io_tmp_open(store, f->id, O_RDWR | O_DIRECT)) >= 0)
		m->direct = true;
	else
		m->to = io_tmp_open(store, f->id, O_RDWR);
	if (m->to < 0)
		return m->to;
	m->ext = malloc(EXTENTS * sizeof(*m->ext));
	if (!m->ext)
		return -ENOMEM;
	if (m->st.st_size) {
		m->map = mmap(NULL, (size_t)m->st.st_size, PROT_READ, MAP_SHARED, m->from, 0);
		if (m->map == MAP_FAILED) {
			m->map = NULL;
			return -errno;
		}
	}
	return 0;
}

/* One page that is in both files, below `under`. buf: two aligned pages. */
static int settle_page(struct move *m, uint64_t off, char *buf)
{
	static const char zeros[PAGE];
	const char *mine = (const char *)m->map + off;
	ssize_t n = pread(m->to, buf, PAGE, (off_t)off);

	if (n < 0)
		return -errno;
	memset(buf + n, 0, PAGE - (size_t)n);
	if (!memcmp(mine, buf, PAGE))
		return 0;
	if (memcmp(buf, zeros, PAGE)) {
		m->f->moved.rewritten = true;
		return -EIO;
	}
	memcpy(buf, mine, PAGE);
	return io_pwrite(m->f->s->o.store, m->to, buf, PAGE, off);
}

static int punch(struct move *m, uint64_t off, uint64_t len)
{
	if (!(m->st.st_mode & PUNCHED) && fchmod(m->from, MOVED | PUNCHED))
		return -errno;
	m->st.st_mode |= PUNCHED;
	return fallocate(m->from, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off,
			 (off_t)len)
		       ? -errno
		       : 0;
}

/* Handles pages below `under` that are in the tmpfs nevertheless. -EIO: rewritten. */
static int settle(struct move *m)
{
	struct staged *f = m->f;
	char *buf = NULL;
	int err = 0;

	for (uint64_t off = 0; !err && off < f->moved.under;) {
		off_t data = lseek(m->from, (off_t)off, SEEK_DATA);
		if (data < 0 || (uint64_t)data >= f->moved.under)
			break;
		if (!buf && posix_memalign((void **)&buf, PAGE, PAGE))
			return -ENOMEM;
		off = (uint64_t)data / PAGE * PAGE;
		err = settle_page(m, off, buf);
		off += PAGE;
	}
	if (!err && buf)
		err = punch(m, 0, f->moved.under);
	free(buf);
	return err;
}

/* Blocks of the store for the data in [from, end); holes stay holes. */
static int allocate_range(struct move *m, uint64_t from, uint64_t end, unsigned *n)
{
	struct staging *s = m->f->s;
	uint64_t bytes = 0, has = 0;
	struct stat st;

	*n = file_extents(m->from, from, end, m->ext, EXTENTS);
	for (unsigned i = 0; i < *n; i++)
		bytes += m->ext[i].len;
	/* at the end, the close has allocated them already */
	if (!fstat(m->to, &st) && (uint64_t)st.st_blocks * 512 > from)
		has = (uint64_t)st.st_blocks * 512 - from;
	int err = reserve_enter(s, bytes > has ? bytes - has : 0);
	if (err)
		return err;
	for (unsigned i = 0; !err && i < *n; i++)
		err = io_allocate(s->o.store, m->to, m->ext[i].off,
				  (m->ext[i].len + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN);
	reserve_leave(s);
	return err;
}

/* Copies [from, end) of the tmpfs file; `end` is the size of the other one then. */
static int move_range(struct move *m, uint64_t from, uint64_t end)
{
	struct io_source src = {.base = m->map, .size = end, .data = m->ext};
	int err = m->q ? 0 : io_queue_open(m->f->s->o.engine, &m->q);

	if (!err)
		err = allocate_range(m, from, end, &src.n_data);
	return err ? err : io_write_file(m->q, m->to, m->direct, &src);
}

/* Charges what the tmpfs file holds now. */
static bool charge_rest(struct staged *f, int fd, uint64_t moved)
{
	struct staging *s = f->s;
	struct stat st;
	LOCK_SCOPE(&s->lock);
	s->st.outgrown.bytes += moved;
	if (!fstat(fd, &st)) {
		f->last.blocks = (uint64_t)st.st_blocks;
		sf_charge(s, f, f->last.blocks * 512 + TAIL);
	}
	return s->files.used + pool_ahead(f->last.blocks * 512) > s->o.budget_bytes;
}

/* The offset up to which bytes may move. The file's size says little: it may have been extended
 * first. The last written bytes are near the end of its data. A writer that extends the file and
 * writes after a gap writes several parts at once, not sequentially, so its bytes move when memory
 * is short. */
static uint64_t movable_end(struct move *m)
{
	struct staged *f = m->f;
	uint64_t last = f->moved.under;
	bool gap = false;

	for (off_t data, hole; (data = lseek(m->from, (off_t)last, SEEK_DATA)) >= 0;
	     last = (uint64_t)hole) {
		gap |= (uint64_t)data > last;
		hole = lseek(m->from, data, SEEK_HOLE);
		if (hole < 0)
			break;
	}
	pthread_mutex_lock(&f->s->lock);
	f->memory.in_parts |= f->memory.presized && gap;
	bool stays = f->memory.in_parts && staging_space_left(f->s) > SPACE_ENOUGH;
	pthread_mutex_unlock(&f->s->lock);
	return last > TAIL && !stays ? (last - TAIL) / HUGE_BYTES * HUGE_BYTES : 0;
}

static int move_out(struct move *m)
{
	struct staged *f = m->f;
	const struct timespec ts[2] = {m->st.st_atim, m->st.st_mtim};
	uint64_t start = f->moved.under, end = movable_end(m);
	bool more = true;
	int err = settle(m);

	if (!err && fchmod(m->from, MOVED | (m->st.st_mode & PUNCHED)))
		err = -errno;

	while (!err && more && f->moved.under < end && f->moved.under - start < MOST) {
		uint64_t to = end - f->moved.under < STEP ? end : f->moved.under + STEP;
		err = move_range(m, f->moved.under, to);
		if (!err)
			err = punch(m, f->moved.under, to - f->moved.under);
		if (err)
			break;
		uint64_t moved = to - f->moved.under;
		f->moved.under = to;
		more = charge_rest(f, m->from, moved);
	}
	futimens(m->from, ts); /* a punch must not change the times */
	return err;
}

static int move_open_file(struct staged *f)
{
	struct staging *s = f->s;
	struct move m;

	CUT_SCOPE(f);
	bool first = !f->moved.under;
	if (f->spilled || f->state != STAGED_OPEN || staged_unprotect(f))
		return -EAGAIN;
	int err = move_open(&m, f);
	if (!err)
		err = move_out(&m);
	if (!f->moved.under && m.to >= 0) {
		close(m.to);
		m.to = -1;
		io_tmp_remove(s->o.store, f->id);
	}
	move_close(&m);
	pthread_mutex_lock(&s->lock);
	if (first && f->moved.under)
		s->st.outgrown.files++;
	pthread_mutex_unlock(&s->lock);
	return err && f->moved.rewritten ? 1 : err;
}

/* The state begun by staged_set_moving() ends before io.lock is released: a waiter then finds the
 * file finished. */
int staged_move_out(struct staged *f)
{
	LOCK_SCOPE(&f->io.lock);
	uint64_t since = monotonic_ns();
	int err = move_open_file(f);
	pthread_mutex_lock(&f->s->lock);
	f->times.moved += monotonic_ns() - since;
	f->moved.more = false;
	pthread_mutex_unlock(&f->s->lock);
	return err;
}

void staged_not_now(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	bool ample = atomic_load(&f->s->space.free) > AMPLE;
	f->moved.after_ns = monotonic_ns() + (ample ? NOT_NOW_NS : ASK_AGAIN_NS);
}

void staged_too_long(struct staged *f)
{
	staged_not_written(f, f->moved.under, UINT64_MAX, -EFBIG);
}

void staged_drop_rest(struct staged *f)
{
	struct stat st;

	LOCK_SCOPE(&f->io.lock);
	CUT_SCOPE(f);
	CLEANUP_CLOSE int fd = f->spilled || f->state != STAGED_OPEN || !staged_torn(f)
				       ? -1
				       : sf_open_bytes(f, O_RDWR);
	if (fd < 0 || fstat(fd, &st))
		return;
	const struct timespec ts[2] = {st.st_atim, st.st_mtim};
	fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)f->moved.under,
		  (off_t)(INT64_MAX / HUGE_BYTES * HUGE_BYTES - f->moved.under));
	futimens(fd, ts);
	charge_rest(f, fd, 0);
}

bool staged_rewritten(struct staged *f)
{
	return f->moved.rewritten;
}

bool staged_outgrown(struct staged *f)
{
	return f->moved.under || f->moved.more;
}

void staged_set_moving(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	f->moved.more = true;
}

int outgrow_allocate(struct staged *f, uint64_t size)
{
	struct move m;
	unsigned n;
	CUT_SCOPE(f);
	int err = move_open(&m, f);
	if (!err)
		err = settle(&m);
	if (!err && size > f->moved.under)
		err = allocate_range(&m, f->moved.under, size, &n);
	move_close(&m);
	return err;
}

int staged_allocate_copy(struct staged *f)
{
	struct staging *s = f->s;
	struct stat st;

	LOCK_SCOPE(&f->io.lock);
	if (!f->moved.under && !f->spilled)
		return 0;
	if (fstat(f->fd, &st))
		return -errno;
	sf_drop_tmp(f);
	uint64_t size = (uint64_t)st.st_size;
	bool sparse = f->spilled && is_mostly_holes(&st, size); /* as it is copied */
	int err = reserve_enter(s, sparse ? (uint64_t)st.st_blocks * 512 : size);
	if (err)
		return err;
	uint64_t id = staging_new_id(s);
	int fd = io_tmp_create(s->o.store, id, false, &f->io.tmp_direct);
	err = fd < 0 ? fd : 0;
	if (!err) {
		sf_set_tmp(f, id, fd);
		f->io.tmp_size = size;
		err = sparse ? sf_allocate(f, f->fd, size) : io_allocate(s->o.store, fd, 0, size);
	}
	if (!err && !io_store_allocates(s->o.store))
		err = reserve_count(s, &f->io.promised,
				    sparse ? (uint64_t)st.st_blocks * 512 : size);
	reserve_leave(s);
	if (err)
		sf_drop_tmp(f);
	return err;
}

ssize_t outgrow_write(struct staged *f, const void *buf, size_t len, uint64_t off)
{
	if (len > f->moved.under - off)
		len = f->moved.under - off;
	int to = io_tmp_open(f->s->o.store, f->id, O_RDWR);
	int err = to < 0 ? to : io_pwrite(f->s->o.store, to, buf, len, off);
	if (to >= 0)
		close(to);
	return err ? err : (ssize_t)len;
}

int staged_finish(struct staged *f)
{
	struct move m;

	LOCK_SCOPE(&f->io.lock);
	CUT_SCOPE(f);
	if (!f->moved.under || f->spilled)
		return 0;
	sf_drop_tmp(f);
	int err = move_open(&m, f);
	if (!err)
		err = settle(&m);
	if (!err)
		err = move_range(&m, f->moved.under, (uint64_t)m.st.st_size);
	struct stat st = m.st;
	move_close(&m);
	return err ? err : sf_becomes_spilled(f, &st);
}

/* The whole page at `off` of the older bytes comes back into the tmpfs: it is in both then, and
 * equal. */
static int page_back(int fd, int to, uint64_t off)
{
	char *page = calloc(1, HUGE_BYTES);
	ssize_t n = page ? pread(to, page, HUGE_BYTES, (off_t)off) : -1, put = -1;
	int err = !page ? -ENOMEM : n < 0 ? -errno : 0;

	if (!err && (put = pwrite(fd, page, HUGE_BYTES, (off_t)off)) != (ssize_t)HUGE_BYTES) {
		err = put < 0 ? -errno : -ENOSPC;
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off,
			  (off_t)HUGE_BYTES);
	}
	free(page);
	return err;
}

int outgrow_resize(struct staged *f, int fd, uint64_t size)
{
	struct io_store *store = f->s->o.store;
	if (size >= f->moved.under)
		return ftruncate(fd, (off_t)size) ? -errno : 0;
	/* what is left of the last page comes back, since the kernel continues in the middle of it:
	 * before anything is cut, because a kill at any instant must leave it somewhere */
	uint64_t keep = size / HUGE_BYTES * HUGE_BYTES;
	int to = io_tmp_open(store, f->id, O_RDWR);
	if (to < 0)
		return to;
	int err = size > keep ? page_back(fd, to, keep) : 0;
	if (!err && ftruncate(fd, (off_t)size))
		err = -errno;
	if (!err)
		err = io_truncate(store, to, keep);
	close(to);
	if (!err) {
		f->moved.under = keep;
		f->moved.rewritten = false; /* it may be cut off */
	}
	if (!err && !keep)
		err = io_tmp_remove(store, f->id);
	return err;
}

/* fallocate(2) on the part that moved. The other part is handled by the caller. */
int outgrow_fallocate(struct staged *f, int mode, uint64_t off, uint64_t len)
{
	if (!(mode & FALLOC_FL_PUNCH_HOLE))
		return -EOPNOTSUPP;
	int to = io_tmp_open(f->s->o.store, f->id, O_RDWR);
	if (to < 0)
		return to;
	int err = fallocate(to, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len)
			  ? io_error()
			  : 0;
	close(to);
	return err;
}

ssize_t outgrow_read(uint64_t under, int from, int to, char *buf, size_t len, uint64_t off)
{
	if (off >= under)
		return pread(from, buf, len, (off_t)off);
	if (len > under - off)
		len = under - off;
	ssize_t n = pread(to, buf, len, (off_t)off);
	if (n < 0)
		return n;
	memset(buf + n, 0, len - (size_t)n);
	/* for what is in both, the tmpfs is right */
	for (uint64_t at = off; at < off + len;) {
		off_t data = lseek(from, (off_t)at, SEEK_DATA), hole;
		if (data < 0 || (uint64_t)data >= off + len)
			break;
		hole = lseek(from, data, SEEK_HOLE);
		uint64_t end = hole < 0 || (uint64_t)hole > off + len ? off + len : (uint64_t)hole;
		n = pread(from, buf + ((uint64_t)data - off), end - (uint64_t)data, data);
		if (n < 0)
			return n;
		at = end;
	}
	return (ssize_t)len;
}

/* Had a move begun, and moved anything? If not, the tmpfs has everything. */
int outgrow_recover(struct staged *f, const struct stat *st)
{
	struct stat to;
	if (f->spilled || (uint64_t)st->st_size < HUGE_BYTES)
		return 0;
	off_t hole = st->st_mode & PUNCHED ? 0 : lseek(f->fd, 0, SEEK_HOLE);
	if (hole < 0 || hole >= st->st_size)
		return 0;
	int fd = io_tmp_open(f->s->o.store, f->id, O_RDWR);
	/* It may exist: looked up when the store is back. */
	if (fd < 0 && io_store_is_detached(f->s->o.store)) {
		if (st->st_mode & S_ISVTX)
			f->moved.under = (uint64_t)st->st_size / HUGE_BYTES * HUGE_BYTES;
		return 0;
	}
	/* a failing store may have its older bytes: do not publish without them */
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	int err = 0;
	if (!fstat(fd, &to) && hole < to.st_size) {
		uint64_t both = (uint64_t)(to.st_size < st->st_size ? to.st_size : st->st_size);
		f->moved.under = both / HUGE_BYTES * HUGE_BYTES;
		/* an interrupted outgrow_resize: cut-off bytes would show in a hole */
		if (to.st_size > st->st_size)
			err = io_truncate(f->s->o.store, fd, f->moved.under);
	}
	close(fd);
	return err;
}

/* ---- which files, and when ---- */

static bool may_move(const struct staging *s, const struct staged *f, uint64_t now)
{
	uint64_t worth = s->o.budget_bytes / 8 < WORTH ? s->o.budget_bytes / 8 : WORTH;
	return f->state == STAGED_OPEN && f->backing && !f->spilled && !f->memory.loan &&
	       !f->moved.more && !f->io.fixed && now >= f->moved.after_ns &&
	       f->last.blocks * 512 >= worth + TAIL + HUGE_BYTES;
}

void outgrow_look(struct staging *s)
{
	uint64_t now = monotonic_ns();
	struct staged *most = NULL;

	if (s->files.used <= s->o.budget_bytes || !s->o.outgrown)
		return;
	/* pending data frees memory soon: wait if there is memory for a while */
	if (s->st.versions.sealed + s->st.versions.persisting && !s->drain.halted &&
	    staging_space_left(s) > SPACE_ENOUGH)
		return;
	for (struct staged *f = s->files.open; f; f = f->lists.open_next)
		if (may_move(s, f, now) && (!most || f->last.blocks > most->last.blocks))
			most = f;
	if (!most)
		return;
	most->moved.after_ns = now + ASK_AGAIN_NS;
	s->o.outgrown(s->o.ctx, most->node);
}

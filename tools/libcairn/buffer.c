/* SPDX-License-Identifier: MIT
 *
 * The pool: memory is mapped and registered once, then used for shard after shard. Its states are
 * in priv.h.
 *
 * A buffer of the mount is a file of MOUNT/.cairn/buffers, which exists as long as we have it open.
 * After a commit the mount reads it until the version is durable (`lent`), then it is ours again
 * (`free`), unless the new file was opened meanwhile and may use its pages (`kept`).
 *
 * There are two sets: one is being written to the store while the next checkpoint is copied into
 * the other. Which buffers are free at a moment depends on the disk's speed. So that a trainer
 * registers everything it will ever need in its first two checkpoints, and not now and then when
 * the disk was slow, memory is not reused for one checkpoint, unless the mount has no space for
 * more.
 */
#include "priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define SMALLEST (64u << 10)
#define REST 2 /* epochs from a use to the next */
/* between shards of one checkpoint there is less, between two there is a training step */
#define GAP_MS 200
#define FULL_FOR 64 /* requests until a mount without space is tried again */

/* ---- sizes ---- */

static uint64_t rounded(uint64_t size)
{
	uint64_t bytes = SMALLEST;

	if (size >= SMALL_MAX)
		return (size + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	while (bytes < size)
		bytes *= 2;
	return bytes;
}

/* A quarter too large is acceptable: shards grow and shrink a little from step to step. */
static bool fits(const struct stage_buffer *b, uint64_t bytes)
{
	return b->bytes >= bytes && b->bytes <= bytes + bytes / 4;
}

/* ---- one buffer ---- */

/* Mapped at a multiple of 2 MiB, so that huge pages are mapped as such. */
static char *map_aligned(uint64_t bytes, int fd)
{
	uint64_t space = bytes + HUGE_PAGE;
	char *all =
		mmap(NULL, space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *base, *map, *end;

	if (all == MAP_FAILED)
		return NULL;
	base = all + (-(uintptr_t)all & (HUGE_PAGE - 1));
	end = base + ((bytes + 4095) & ~4095ull);
	map = mmap(base, bytes, PROT_READ | PROT_WRITE,
		   MAP_FIXED | (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS), fd, 0);
	if (map == MAP_FAILED) {
		int err = errno;

		munmap(all, space);
		errno = err;
		return NULL;
	}
	if (base > all)
		munmap(all, base - all);
	if (end < all + space)
		munmap(end, all + space - end);
	/* A forked child would share the file's bytes; and a page copied because of a fork
	 * is not the one that the device writes to any more. */
	madvise(base, bytes, MADV_DONTFORK);
	return base;
}

void buffer_free(cairn_stage *stage, struct stage_buffer *b)
{
	gpu_unpin(stage, b);
	if (b->base)
		munmap(b->base, b->bytes);
	if (b->fd >= 0)
		close(b->fd);
	free(b->path);
	free(b);
}

static struct stage_buffer *new_buffer(uint64_t bytes, enum cairn_kind kind)
{
	struct stage_buffer *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->kind = kind;
	b->bytes = bytes;
	b->fd = -1;
	return b;
}

struct stage_buffer *buffer_own(cairn_stage *stage, uint64_t bytes, int *err)
{
	struct stage_buffer *b = new_buffer(bytes, CAIRN_OWN);

	if (b)
		b->base = map_aligned(bytes, -1);
	if (!b || !b->base) {
		*err = fail(-ENOMEM,
			    "no memory for a shard of %llu bytes; check the limits of the process "
			    "and its cgroup",
			    (unsigned long long)bytes);
		if (b)
			buffer_free(stage, b);
		return NULL;
	}
	if (bytes >= HUGE_PAGE)
		madvise(b->base, bytes, MADV_HUGEPAGE);
	gpu_pin(stage, b, -1);
	return b;
}

/* ---- the mount's ---- */

enum answer { ANSWER_FREE, ANSWER_LENT, ANSWER_GONE };

static enum answer ask(const cairn_stage *stage, const struct stage_buffer *b)
{
	char text[16];
	ssize_t n;

	if (stage->stand_in)
		return ANSWER_FREE;
	n = fgetxattr(b->fd, KEY_BUFFER, text, sizeof(text));
	if (n == 4 && !memcmp(text, "free", 4))
		return ANSWER_FREE;
	if (n == 4 && !memcmp(text, "lent", 4))
		return ANSWER_LENT;
	return ANSWER_GONE;
}

/* A child that is forked meanwhile, by another thread, either knows of the descriptor or has
 * none. */
static int open_listed(struct stage_buffer *b, const char *path, int flags, mode_t mode)
{
	int err;

	stage_block_forks();
	b->fd = open(path, flags | O_CLOEXEC, mode);
	err = b->fd < 0 ? -errno : 0;
	stage_allow_forks();
	return err;
}

/* In the tmpfs, or by memfd_create if that is full (a container's /dev/shm has 64 MiB). */
static int open_stand_in(cairn_stage *stage, struct stage_buffer *b)
{
	struct statvfs fs;
	int err = -ENOSPC;

	if (statvfs(stage->mount, &fs) ||
	    (uint64_t)fs.f_bavail * fs.f_frsize >= b->bytes + b->bytes / 8)
		err = open_listed(b, stage->mount, O_TMPFILE | O_RDWR, 0600);
	if (err) {
		stage_notice(stage, NOTICE_STAND_IN,
			     "%s has no space for %llu MiB, so memfd_create gives it", stage->mount,
			     (unsigned long long)(b->bytes >> 20));
		stage_block_forks();
		b->fd = memfd_create("cairn-bench", MFD_CLOEXEC);
		err = b->fd < 0 ? -errno : 0;
		stage_allow_forks();
	}
	if (!err && ftruncate(b->fd, (off_t)b->bytes))
		err = -errno;
	return err;
}

/* Opens a new one. The mount is trusted only if it answers as a cairnfs does. */
static int open_file(cairn_stage *stage, struct stage_buffer *b)
{
	struct stat st;
	uint64_t r;
	int err;

	if (stage->stand_in)
		return open_stand_in(stage, b);
	if (getrandom(&r, sizeof(r), 0) != sizeof(r))
		return -EAGAIN;
	if (asprintf(&b->path, "%s/.cairn/buffers/%llu.%d-%016llx", stage->mount,
		     (unsigned long long)b->bytes, getpid(), (unsigned long long)r) < 0) {
		b->path = NULL;
		return -ENOMEM;
	}
	err = open_listed(b, b->path, O_RDWR | O_CREAT | O_EXCL, 0666);
	if (err)
		return err;
	if (fstat(b->fd, &st))
		return -errno;
	if ((uint64_t)st.st_size != b->bytes || ask(stage, b) != ANSWER_FREE) {
		unlink(b->path);
		return -EOPNOTSUPP;
	}
	return 0;
}

static int make_staged(cairn_stage *stage, struct stage_buffer *b)
{
	int err = open_file(stage, b);

	if (err)
		return err;
	b->file_bytes = b->bytes;
	b->base = map_aligned(b->bytes, b->fd);
	if (!b->base)
		return -errno;
	/* Otherwise a page that the tmpfs cannot allocate would be a SIGBUS later. */
	if (madvise(b->base, b->bytes, MADV_POPULATE_WRITE) && errno != EINVAL)
		return errno == EFAULT || errno == ENOMEM ? -ENOSPC : -errno;
	gpu_pin(stage, b, -1);
	return 0;
}

/* Is it useless to ask again? */
static bool is_final(int err)
{
	return err == -EOPNOTSUPP || err == -ENOENT || err == -EINVAL || err == -ENOTDIR ||
	       err == -EROFS || err == -EACCES || err == -EPERM || err == -ENODEV || err == -ENOSYS;
}

static void tell_refused(cairn_stage *stage, int err)
{
	char why[128];

	if (is_final(err)) {
		pthread_mutex_lock(&stage->lock);
		stage->refused = true;
		pthread_mutex_unlock(&stage->lock);
	}
	stage_notice(
		stage, NOTICE_NO_MEMORY,
		"%s gives no memory (%s), so shards are written with write(2); %s", stage->mount,
		strerror_r(-err, why, sizeof(why)),
		err == -ENOSPC
			? "a larger -o staging= helps"
			: "see `cairn status` for passthrough, which needs root and Linux 6.9");
}

/* ---- the pool ---- */

static void count(cairn_stage *stage, const struct stage_buffer *b, int sign)
{
	stage->stats.buffers += (uint64_t)sign;
	stage->stats.buffer_bytes += (uint64_t)sign * b->bytes;
}

/* Lock held. */
static void unlist(cairn_stage *stage, struct stage_buffer *b)
{
	struct stage_buffer **p = &stage->buffers;

	while (*p != b)
		p = &(*p)->next;
	*p = b->next;
}

/* Lock held. */
static void take_out(cairn_stage *stage, struct stage_buffer *b)
{
	unlist(stage, b);
	count(stage, b, -1);
}

static void drop(cairn_stage *stage, struct stage_buffer *b)
{
	pthread_mutex_lock(&stage->lock);
	take_out(stage, b);
	pthread_mutex_unlock(&stage->lock);
	buffer_free(stage, b);
}

/* Claims the best fit: our own before lent ones, the smallest, the longest unused.
 * was: its state before. */
static struct stage_buffer *claim(cairn_stage *stage, uint64_t bytes, enum cairn_kind kind,
				  unsigned rest, enum buffer_state *was)
{
	struct stage_buffer *best = NULL;

	pthread_mutex_lock(&stage->lock);
	for (struct stage_buffer *b = stage->buffers; b; b = b->next) {
		if (b->state == BUFFER_USED || b->kind != kind || !fits(b, bytes) ||
		    b->epoch + rest > stage->epoch)
			continue;
		if (!best || b->state > best->state ||
		    (b->state == best->state &&
		     (b->state == BUFFER_IDLE && b->bytes != best->bytes ? b->bytes < best->bytes
									 : b->put < best->put)))
			best = b;
	}
	if (best) {
		*was = best->state;
		best->state = BUFFER_USED;
	}
	pthread_mutex_unlock(&stage->lock);
	return best;
}

static struct stage_buffer *reuse(cairn_stage *stage, uint64_t bytes, enum cairn_kind kind,
				  unsigned rest)
{
	enum buffer_state was;
	struct stage_buffer *b;

	while ((b = claim(stage, bytes, kind, rest, &was))) {
		enum answer a = was == BUFFER_LENT ? ask(stage, b) : ANSWER_FREE;

		if (a == ANSWER_FREE)
			return b;
		if (a == ANSWER_LENT) {
			/* versions become durable in order: those lent later are not free either */
			pthread_mutex_lock(&stage->lock);
			b->state = BUFFER_LENT;
			pthread_mutex_unlock(&stage->lock);
			return NULL;
		}
		drop(stage, b);
	}
	return NULL;
}

static void enlist(cairn_stage *stage, struct stage_buffer *b)
{
	pthread_mutex_lock(&stage->lock);
	b->state = BUFFER_USED;
	b->next = stage->buffers;
	stage->buffers = b;
	pthread_mutex_unlock(&stage->lock);
}

static void made(cairn_stage *stage, const struct stage_buffer *b)
{
	pthread_mutex_lock(&stage->lock);
	count(stage, b, 1);
	stage->stats.mapped++;
	pthread_mutex_unlock(&stage->lock);
}

static struct stage_buffer *add_own(cairn_stage *stage, uint64_t bytes, int *err)
{
	struct stage_buffer *b = buffer_own(stage, bytes, err);

	if (b) {
		enlist(stage, b);
		made(stage, b);
	}
	return b;
}

/* Listed before it has a descriptor: a forked child closes those in the list. */
static struct stage_buffer *add_staged(cairn_stage *stage, uint64_t bytes, int *err)
{
	struct stage_buffer *b = new_buffer(bytes, CAIRN_STAGED);

	*err = -ENOMEM;
	if (!b)
		return NULL;
	enlist(stage, b);
	*err = make_staged(stage, b);
	if (!*err) {
		made(stage, b);
		return b;
	}
	pthread_mutex_lock(&stage->lock);
	unlist(stage, b);
	pthread_mutex_unlock(&stage->lock);
	buffer_free(stage, b);
	return NULL;
}

/* Removes one that no shard uses and for which `unwanted` is true, or NULL. */
static struct stage_buffer *pick(cairn_stage *stage,
				 bool (*unwanted)(cairn_stage *, const struct stage_buffer *))
{
	struct stage_buffer *worst = NULL;

	pthread_mutex_lock(&stage->lock);
	for (struct stage_buffer *b = stage->buffers; b; b = b->next)
		if (b->state != BUFFER_USED && unwanted(stage, b) &&
		    (!worst || b->put < worst->put))
			worst = b;
	if (worst)
		take_out(stage, worst);
	pthread_mutex_unlock(&stage->lock);
	return worst;
}

static void drop_all(cairn_stage *stage,
		     bool (*unwanted)(cairn_stage *, const struct stage_buffer *))
{
	struct stage_buffer *b;

	while ((b = pick(stage, unwanted)))
		buffer_free(stage, b);
}

static bool is_any(cairn_stage *stage, const struct stage_buffer *b)
{
	(void)stage;
	(void)b;
	return true;
}

static bool is_staged_idle(cairn_stage *stage, const struct stage_buffer *b)
{
	(void)stage;
	return b->kind == CAIRN_STAGED && b->state == BUFFER_IDLE;
}

/* Of a size that no shard needs any more. Lock held. */
static bool is_old(cairn_stage *stage, const struct stage_buffer *b)
{
	return stage->clock - b->clock > 4 * stage->stats.buffers + 16;
}

/* Lock held. */
static bool is_too_much(cairn_stage *stage, const struct stage_buffer *b)
{
	uint64_t bytes = 0;

	(void)b;
	for (struct stage_buffer *o = stage->buffers; o; o = o->next)
		if (o->state != BUFFER_USED)
			bytes += o->bytes;
	return bytes > stage->idle_bytes;
}

void buffers_trim(cairn_stage *stage)
{
	drop_all(stage, is_any);
}

/* Does this shard begin another checkpoint? Lock held. */
static bool begins(const cairn_stage *stage, uint64_t dir, uint64_t name)
{
	bool open = false, again = false;

	for (const struct stage_buffer *b = stage->buffers; b; b = b->next) {
		open |= b->state == BUFFER_USED;
		again |= b->epoch == stage->epoch && b->name == name;
	}
	return dir != stage->epoch_dir || (name && again) ||
	       (!open && now_ms() - stage->epoch_ms > GAP_MS);
}

/* 0, -ENOSPC: useless to ask now; -EOPNOTSUPP: never. */
static int known_answer(cairn_stage *stage)
{
	int err = 0;

	pthread_mutex_lock(&stage->lock);
	if (stage->refused)
		err = -EOPNOTSUPP;
	else if (stage->clock < stage->full_until)
		err = -ENOSPC;
	pthread_mutex_unlock(&stage->lock);
	return err;
}

static struct stage_buffer *make(cairn_stage *stage, uint64_t bytes, int *err)
{
	struct stage_buffer *b = add_staged(stage, bytes, err);

	if (!b && (*err == -ENOSPC || *err == -EMFILE)) {
		pthread_mutex_lock(&stage->lock);
		stage->full_until = stage->clock + FULL_FOR;
		pthread_mutex_unlock(&stage->lock);
	}
	return b;
}

static struct stage_buffer *get_staged(cairn_stage *stage, uint64_t bytes)
{
	struct stage_buffer *b = reuse(stage, bytes, CAIRN_STAGED, REST);
	int err = known_answer(stage);

	if (b || err == -EOPNOTSUPP)
		return b;
	if (!err)
		b = make(stage, bytes, &err);
	if (!b)
		b = reuse(stage, bytes, CAIRN_STAGED, 0);
	if (!b && err == -ENOSPC) {
		drop_all(stage, is_staged_idle); /* of sizes that do not fit */
		b = make(stage, bytes, &err);
	}
	if (!b)
		tell_refused(stage, err);
	return b;
}

struct stage_buffer *buffer_get(cairn_stage *stage, uint64_t size, bool staged, uint64_t dir,
				uint64_t name, int *err)
{
	uint64_t bytes = rounded(size);
	struct stage_buffer *b = NULL;

	pthread_mutex_lock(&stage->lock);
	if (begins(stage, dir, name))
		stage->epoch++;
	stage->epoch_dir = dir;
	stage->epoch_ms = now_ms();
	pthread_mutex_unlock(&stage->lock);
	if (staged)
		b = get_staged(stage, bytes);
	if (!b)
		b = reuse(stage, bytes, CAIRN_OWN, 0);
	if (!b)
		b = add_own(stage, bytes, err);
	pthread_mutex_lock(&stage->lock);
	stage->clock++;
	if (b) {
		b->clock = stage->clock;
		b->epoch = stage->epoch;
		b->name = name;
	}
	pthread_mutex_unlock(&stage->lock);
	drop_all(stage, is_old);
	return b;
}

void buffer_put(cairn_stage *stage, struct stage_buffer *b, enum buffer_state state, bool broken)
{
	if (broken) {
		drop(stage, b);
		return;
	}
	pthread_mutex_lock(&stage->lock);
	b->state = state;
	b->put = ++stage->puts;
	stage->epoch_ms = now_ms();
	pthread_mutex_unlock(&stage->lock);
	drop_all(stage, is_too_much);
}

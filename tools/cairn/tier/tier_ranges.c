/* SPDX-License-Identifier: MIT
 *
 * A file that is fetched by ranges, by two threads: one goes on to the end of the file, the other
 * one gets what a reader waits for. A range is
 *
 *	NONE ──▶ claimed ──▶ THERE	its bytes are in the file, and have its checksum
 *	             ├─────▶ DAMAGED	they have another one, also when read again, or are missing
 *	             └─────▶ NONE	the tier, or the store, failed
 *
 * The state is in memory that readers have, too: they read no range that is not THERE. A file
 * without checksums of ranges is one range.
 */
#include "tier_ranges.h"

#include "io/full.h"
#include "io/locks.h"
#include "io/tier_ask.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define SUM_DIGITS 32u
#define STEP_BYTES (8ull << 20) /* how often a file of one range says that it goes on */
#define COPY_BYTES (4u << 20)
#define APART_BYTES (64ull << 20) /* of a range, at most, for each that is asked for at once */

/* of state, busy and next */
static pthread_mutex_t ranges_lock = RANKED_MUTEX(RANK_RANGES);
static pthread_cond_t freed = PTHREAD_COND_INITIALIZER; /* a range is not claimed any more */

/* ---- the file ----------------------------------------------------------------------- */

static int open_file(int dir, const char *name, struct stat *st)
{
	const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	int fd = openat(dir, name, flags, 0600);

	if (fd >= 0 && !fstat(fd, st) && S_ISREG(st->st_mode) && st->st_nlink == 1)
		return fd;
	if (fd >= 0)
		close(fd);
	unlinkat(dir, name, 0); /* no fetch made it */
	fd = openat(dir, name, flags | O_EXCL, 0600);
	if (fd >= 0 && !fstat(fd, st))
		return fd;
	if (fd >= 0)
		close(fd);
	return -errno;
}

/* Room for all of it, before anything is written. */
static int make_room(int fd, uint64_t size)
{
	if (size && fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size) &&
	    (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
		return -errno;
	return ftruncate(fd, (off_t)size) ? -errno : 0;
}

static int open_told(struct ranges *r)
{
	r->told = memfd_create("ranges", MFD_CLOEXEC);
	if (r->told < 0 || ftruncate(r->told, (off_t)r->n))
		return -errno;
	r->state = mmap(NULL, r->n, PROT_READ | PROT_WRITE, MAP_SHARED, r->told, 0);
	r->busy = calloc(r->n, sizeof(*r->busy));
	if (r->state == MAP_FAILED)
		r->state = NULL;
	return r->state && r->busy ? 0 : -ENOMEM;
}

int ranges_open(struct ranges *r, const struct tier_file *t, int dir, const char *name)
{
	struct stat st = {0};
	int err;

	*r = (struct ranges){.n = 1, .bytes = t->size ? t->size : 1, .told = -1};
	if (t->ranges) {
		r->n = strlen(t->ranges) / SUM_DIGITS;
		r->bytes = t->range_bytes;
	}
	r->fd = open_file(dir, name, &st);
	r->existed = st.st_size > 0;
	err = r->fd < 0 ? r->fd : make_room(r->fd, t->size);
	if (!err)
		err = open_told(r);
	if (err)
		ranges_free(r);
	else
		r->t = t;
	return err;
}

void ranges_close(struct ranges *r)
{
	if (r->fd >= 0)
		close(r->fd);
	if (r->told >= 0)
		close(r->told);
	r->fd = r->told = -1;
}

void ranges_free(struct ranges *r)
{
	ranges_close(r);
	if (r->state)
		munmap(r->state, r->n);
	free(r->busy);
	*r = (struct ranges){.fd = -1, .told = -1};
}

/* ---- claims ------------------------------------------------------------------------- */

static bool is_free(const struct ranges *r, uint64_t number)
{
	return r->state[number] == TIER_RANGE_NONE && !r->busy[number];
}

/* The lock is held. False: there is none; *busy: but one is claimed. */
static bool find_free(const struct ranges *r, uint64_t *number, bool *busy)
{
	*busy = false;
	for (uint64_t i = 0; i < r->n; i++) {
		*number = (r->next + i) % r->n;
		if (is_free(r, *number))
			return true;
		*busy |= r->busy[*number];
	}
	return false;
}

bool ranges_claim_next(struct ranges *r, uint64_t most, uint64_t *first, uint64_t *n)
{
	bool found, busy;

	pthread_mutex_lock(&ranges_lock);
	while (!(found = find_free(r, first, &busy)) && busy)
		pthread_cond_wait(&freed, &ranges_lock);
	*n = 0;
	while (found && *n < most && *first + *n < r->n && is_free(r, *first + *n))
		r->busy[*first + (*n)++] = true;
	if (found)
		r->next = (*first + *n) % r->n;
	pthread_mutex_unlock(&ranges_lock);
	return found;
}

bool ranges_claim(struct ranges *r, uint64_t number)
{
	bool claimed;

	pthread_mutex_lock(&ranges_lock);
	claimed = is_free(r, number);
	r->busy[number] |= claimed;
	r->next = (number + 1) % r->n; /* a reader goes on from there */
	pthread_mutex_unlock(&ranges_lock);
	return claimed;
}

static void set_state(struct ranges *r, uint64_t number, enum tier_range state)
{
	pthread_mutex_lock(&ranges_lock);
	r->state[number] = (uint8_t)state;
	r->busy[number] = false;
	pthread_cond_broadcast(&freed);
	pthread_mutex_unlock(&ranges_lock);
}

bool ranges_are_there(const struct ranges *r)
{
	bool all = true;

	pthread_mutex_lock(&ranges_lock);
	for (uint64_t i = 0; all && i < r->n; i++)
		all = r->state[i] == TIER_RANGE_THERE;
	pthread_mutex_unlock(&ranges_lock);
	return all;
}

/* ---- bytes ------------------------------------------------------------------------- */

static uint64_t end_of(const struct ranges *r, uint64_t number)
{
	uint64_t end = (number + 1) * r->bytes;

	return end < r->t->size ? end : r->t->size;
}

static bool is_sum(const struct ranges *r, uint64_t number, const char *sum)
{
	return r->t->ranges ? !memcmp(r->t->ranges + number * SUM_DIGITS, sum + strlen("xxh3:"),
				      SUM_DIGITS)
			    : !strcmp(r->t->sum, sum);
}

static bool has_data(const struct ranges *r, uint64_t number)
{
	off_t at = lseek(r->fd, (off_t)(number * r->bytes), SEEK_DATA);

	return at < 0 ? errno != ENXIO : (uint64_t)at < end_of(r, number);
}

/* Was it copied before a kill? */
static bool is_copied(const struct ranges *r, uint64_t number)
{
	CLEANUP_FREE char *buf = NULL;
	uint64_t at = number * r->bytes, end = end_of(r, number);
	char sum[IO_CHECKSUM_LEN] = "";
	struct io_sum *m;

	if (!r->existed || !has_data(r, number) || !(buf = malloc(COPY_BYTES)))
		return false;
	m = io_sum_new();
	while (m && at < end) {
		size_t want = end - at < COPY_BYTES ? (size_t)(end - at) : COPY_BYTES;
		ssize_t n = full_pread(r->fd, buf, want, at);

		if (n <= 0)
			break;
		io_sum_add(m, buf, (size_t)n);
		at += (uint64_t)n;
	}
	if (m && at == end)
		io_sum_text(m, sum);
	io_sum_free(m);
	return is_sum(r, number, sum);
}

/* To the disk now, so that there is little left for the fsync of the whole file. */
static void start_to_write(const struct ranges *r, uint64_t number)
{
	uint64_t at = number * r->bytes;

	if (sync_file_range(r->fd, (off_t)at, (off_t)(end_of(r, number) - at),
			    SYNC_FILE_RANGE_WRITE))
		return; /* the fsync tells */
}

struct getting {
	struct ranges *r;
	uint64_t first;
	ranges_seen_fn seen;
	void *ctx;
};

static void on_range(void *ctx, uint64_t number, const char *sum)
{
	struct getting *g = ctx;
	struct ranges *r = g->r;
	uint64_t at = g->first + number;

	if (!r->t->ranges) {
		at = r->t->size - number * STEP_BYTES;
		g->seen(g->ctx, r, at < STEP_BYTES ? at : STEP_BYTES);
		return;
	}
	if (at < r->n && is_sum(r, at, sum)) {
		set_state(r, at, TIER_RANGE_THERE);
		start_to_write(r, at);
	}
	if (at < r->n)
		g->seen(g->ctx, r, end_of(r, at) - at * r->bytes);
}

static int get_run(struct getting *g, const struct tier *from, uint64_t n)
{
	struct ranges *r = g->r;
	const struct tier_ranges want = {.off = g->first * r->bytes,
					 .bytes = r->t->ranges ? r->bytes : STEP_BYTES,
					 .apart = r->t->ranges && r->bytes <= APART_BYTES,
					 .done = on_range,
					 .ctx = g};
	char sum[IO_CHECKSUM_LEN];
	int err = tier_get(from, r->t->path, r->fd, end_of(r, g->first + n - 1) - want.off, &want,
			   sum);

	if (!err && !r->t->ranges && is_sum(r, 0, sum))
		set_state(r, 0, TIER_RANGE_THERE);
	return err == -ESTALE || err == -ENOENT ? 0 : err; /* it is shorter, or missing */
}

/* Those of [first, end) that are not there, in as few requests as can be. */
static int get_missing(struct getting *g, const struct tier *from, uint64_t first, uint64_t end)
{
	struct ranges *r = g->r;
	uint64_t n;
	int err = 0;

	for (; !err && first < end; first += n) {
		n = 1;
		if (r->state[first] == TIER_RANGE_NONE && is_copied(r, first))
			set_state(r, first, TIER_RANGE_THERE);
		if (r->state[first] == TIER_RANGE_THERE)
			continue;
		while (first + n < end && r->state[first + n] == TIER_RANGE_NONE &&
		       !(r->existed && has_data(r, first + n)))
			n++;
		g->first = first;
		err = get_run(g, from, n);
	}
	return err;
}

int ranges_get(struct ranges *r, const struct tier *from, uint64_t first, uint64_t n,
	       ranges_seen_fn seen, ranges_bad_fn bad, void *ctx)
{
	struct getting g = {.r = r, .seen = seen, .ctx = ctx};
	bool damaged = false;
	int err = get_missing(&g, from, first, first + n);

	if (!err) /* the bytes may have been damaged on their way */
		err = get_missing(&g, from, first, first + n);
	for (uint64_t i = first; !err && i < first + n; i++)
		damaged |= r->state[i] == TIER_RANGE_NONE;
	if (damaged && bad)
		bad(ctx, from, r);
	for (uint64_t i = first; i < first + n; i++)
		if (r->state[i] == TIER_RANGE_NONE)
			set_state(r, i, err ? TIER_RANGE_NONE : TIER_RANGE_DAMAGED);
	seen(ctx, r, 0);
	return err ? err : damaged ? -EBADMSG : 0;
}

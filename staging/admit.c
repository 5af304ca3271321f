/* SPDX-License-Identifier: MIT
 * How a staged file begins: admission into the budget, memory made ready for it, or a file of
 * the store (spilled) where there is no room; found again by a recovery; copied from the version
 * before it. */
#include "staging/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
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

/* ---- room ---- */

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

static int make_bytes(struct staged *f)
{
	bool direct;
	int fd;

	if (f->spilled) {
		fd = io_tmp_create(f->s->o.store, f->id, false, &direct);
		if (fd < 0)
			return fd;
		close(fd);
		fd = sf_open_bytes(f, O_RDONLY);
	} else {
		/* O_RDONLY: a writable descriptor of ours would hold up the seal's lease */
		char name[17];
		staging_sf_name(f->id, name);
		f->filled = f->huge && blank_use(f->s, f->expected, staging_sf_dir(f), name);
		fd = sf_open_bytes(f, f->filled ? O_RDONLY : O_RDONLY | O_CREAT | O_EXCL);
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
	int fd = f->filled ? -1 : sf_open_bytes(f, O_RDWR);
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
	f->fd = sf_open_bytes(f, O_RDONLY);
	if (f->fd == -ENOENT && !f->spilled) {	/* spilled since; the record that says so follows */
		f->spilled = true;
		f->huge = false;
		f->fd = sf_open_bytes(f, O_RDONLY);
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
	f->fd = sf_open_bytes(f, O_RDONLY);
}

bool sf_lent(struct staged *f)
{
	LOCK_SCOPE(&f->s->lock);
	return f->lender;
}

/* wr is closed. */
int sf_copy_bytes(int wr, int from_fd, uint64_t size)
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
	if (src && sf_lent(src))
		st.st_size = (off_t)src->size;
	if (!rc)
		rc = staged_create(s, node, (uint64_t)st.st_blocks * 512 > (uint64_t)st.st_size ?
				   (uint64_t)st.st_size : (uint64_t)st.st_blocks * 512, &f);
	if (!rc) {
		rc = sf_copy_bytes(sf_open_bytes(f, O_RDWR), fd, (uint64_t)st.st_size);
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

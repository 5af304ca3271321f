/* SPDX-License-Identifier: MIT
 * The ordered log: one append-only file in staging, and a mapped head with the
 * numbers that change at every step. tmpfs keeps both when every process dies;
 * a power cut loses them together with what they describe. */
#include "staging/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define LOG_STEP (1ull << 20) /* allocated ahead */
#define LOG_MAP (2ull << 30) /* as much as its tmpfs holds */

int log_open_segment(struct staging *s, uint64_t n, int flags)
{
	char name[32];
	log_segment_name(n, name);
	int fd = openat(s->o.place.base, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
	return fd < 0 ? -errno : fd;
}

static int head_map(struct staging *s, bool *fresh)
{
	int fd = openat(s->o.place.base, "head", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	struct stat st;
	if (fstat(fd, &st) || (*fresh = st.st_size == 0, *fresh && ftruncate(fd, 4096))) {
		int err = -errno;
		close(fd);
		return err;
	}
	if (!*fresh && (!S_ISREG(st.st_mode) || st.st_size < 4096)) {
		close(fd);
		return -EPROTONOSUPPORT;
	}
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return -errno;
	s->head = p;
	return 0;
}

/* A host without a number has random bits instead: others may start at the same moment. */
static int new_ids(struct staging *s)
{
	struct timespec now;
	unsigned salt, number = io_store_host_number(s->o.store);

	clock_gettime(CLOCK_REALTIME, &now);
	if (number) {
		s->head->next_id = staging_first_id_of(&now, number);
		return 0;
	}
	if (getrandom(&salt, sizeof(salt), 0) != sizeof(salt))
		return -EIO;
	s->head->next_id = staging_first_id(&now, salt);
	return 0;
}

/* Of a segment that is empty: its first record. */
static int segment_begin(struct staging *s)
{
	struct rec r = log_format();
	struct stat st;

	if (fstat(s->log.fd, &st))
		return -errno;
	if (st.st_size)
		return log_check(s->log.fd);
	ssize_t n = rec_encode(&r, s->log.buf, LOG_BUF);
	if (n < 0)
		return (int)n;
	return pwrite(s->log.fd, s->log.buf, (size_t)n, 0) == n ? 0 : -EIO;
}

/* Initializes a head: its magic last, since a head without it is initialized again. */
static int head_begin(struct staging *s)
{
	uint32_t number;
	int err = new_ids(s);
	if (!err && getrandom(&number, sizeof(number), 0) != sizeof(number))
		err = -EIO;
	if (err)
		return err;
	s->head->version = HEAD_VERSION;
	snprintf(s->head->store_id, sizeof(s->head->store_id), "%s", io_store_id(s->o.store));
	/* the upper bits identify the log (mark.c): not those of one created in the same second */
	s->head->segment = (uint64_t)(number & 0x7fffffff) << 20;
	head_stamp(s->head, s->o.store);
	s->head->magic = HEAD_MAGIC;
	return 0;
}

int log_open(struct staging *s)
{
	bool fresh = false;
	int err = head_map(s, &fresh);
	if (!err && !fresh)
		err = head_check(s->head, 4096, s->o.store);
	fresh |= err == -ENOENT;
	if (err && err != -ENOENT)
		return err;
	s->log.buf = malloc(LOG_BUF);
	if (!s->log.buf)
		return -ENOMEM;
	err = fresh ? head_begin(s) : 0;
	if (err)
		return err;
	/* a new head never continues an old log */
	int flags = O_CREAT | (fresh ? O_EXCL : 0);
	while ((s->log.fd = log_open_segment(s, s->head->segment, flags)) == -EEXIST)
		atomic_fetch_add(&s->head->segment, 1);
	err = s->log.fd < 0 ? s->log.fd : segment_begin(s);
	if (err)
		return err;
	/* 0.1.0 created such, from the hostname */
	if (!staging_id_is_valid(s->head->next_id))
		err = new_ids(s);
	head_stamp(s->head, s->o.store);
	return err;
}

int log_map_segment(struct staging *s)
{
	if (s->log.map)
		munmap(s->log.map, LOG_MAP);
	s->log.cap = s->log.bytes;
	s->log.map = mmap(NULL, LOG_MAP, PROT_READ | PROT_WRITE, MAP_SHARED, s->log.fd, 0);
	if (s->log.map != MAP_FAILED)
		return 0;
	s->log.map = NULL;
	return -errno;
}

static int segment_grow(struct staging *s, size_t need)
{
	uint64_t cap = (s->log.bytes + need + LOG_STEP - 1) / LOG_STEP * LOG_STEP;
	if (cap <= s->log.cap)
		return 0;
	if (!s->log.map) {
		int err = log_map_segment(s);
		if (err)
			return err;
	}
	if (cap > LOG_MAP)
		return -ENOSPC;
	/* allocated, so that a store to it cannot fail */
	if (fallocate(s->log.fd, 0, (off_t)s->log.cap, (off_t)(cap - s->log.cap)))
		return -errno;
	s->log.cap = cap;
	return 0;
}

void log_close(struct staging *s)
{
	if (s->log.fd >= 0)
		close(s->log.fd);
	if (s->log.map)
		munmap(s->log.map, LOG_MAP);
	s->log.map = NULL;
	if (s->head)
		munmap(s->head, 4096);
	free(s->log.buf);
	s->log.fd = -1;
	s->head = NULL;
}

int log_append(struct staging *s, const struct rec *r)
{
	if (s->log.replaying)
		return 0; /* what the replay itself removes need not be written again */
	ssize_t n = rec_encode(r, s->log.buf, LOG_BUF);
	if (n < 0)
		return (int)n;
	int err = segment_grow(s, (size_t)n);
	if (err)
		return err;
	/* the magic last: a kill before it leaves zeros there, the end of the log */
	char *to = s->log.map + s->log.bytes;
	memcpy(to + sizeof(uint32_t), s->log.buf + sizeof(uint32_t), (size_t)n - sizeof(uint32_t));
	uint32_t magic;
	memcpy(&magic, s->log.buf, sizeof(magic));
	atomic_store_explicit((_Atomic uint32_t *)(void *)to, magic, memory_order_release);
	s->log.bytes += (uint64_t)n;
	return 0;
}

void log_answered(struct staging *s, const struct rec *r)
{
	if (!r->unique && r->type == REC_CLOSE && r->flags & REC_ANSWER)
		memset(s->log.done, 0, sizeof(s->log.done));
	if (!r->unique)
		return;
	unsigned slot = (unsigned)(r->unique / 2) % 256; /* the kernel's numbers are even */
	s->log.done[slot].unique = r->unique;
	s->log.done[slot].r = *r;
	s->log.done[slot].r.name = s->log.done[slot].r.name2 = "";
	s->log.done[slot].r.data = NULL;
	s->log.done[slot].r.data_len = 0;
}

/* In the log, too: if it is not rotated, the next worker reads the old answers again. Versions
 * before this one take the record for an answer to no request. */
int staging_new_connection(struct staging *s)
{
	struct rec r = {.type = REC_CLOSE, .flags = REC_ANSWER};
	LOCK_SCOPE(&s->lock);
	log_answered(s, &r);
	return log_append(s, &r);
}

bool staging_answered(struct staging *s, uint64_t unique, struct rec *out)
{
	LOCK_SCOPE(&s->lock);
	unsigned slot = (unsigned)(unique / 2) % 256;
	if (s->log.done[slot].unique != unique)
		return false;
	*out = s->log.done[slot].r;
	return true;
}

int staging_emit(struct staging *s, const struct rec *r)
{
	LOCK_SCOPE(&s->lock);
	return log_append(s, r);
}

uint64_t staging_last_seq(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	return s->log.last_seq;
}

uint64_t staging_applied(struct staging *s)
{
	return atomic_load_explicit(&s->head->applied, memory_order_acquire);
}

uint64_t staging_durable(struct staging *s)
{
	return atomic_load_explicit(&s->head->durable, memory_order_acquire);
}

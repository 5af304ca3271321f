/* SPDX-License-Identifier: MIT
 * Blanks: files ready made for the shards that come again. A checkpoint's shards keep their
 * sizes from step to step, so while nobody writes, ballast is handed to empty files of the
 * sizes asked for last, behind their end; the next open takes one by a rename, instead of
 * moving the pages while ranks wait in line. They are ballast as the rest is: what it has to
 * give up comes out of them last.
 *
 *	slot		want	bytes
 *	empty		0	0
 *	being made	> 0	< want
 *	ready		> 0	= want
 */
#include "staging/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void slot_name(unsigned i, char name[16])
{
	snprintf(name, 16, "blank.%u", i);
}

static int slot_open(struct staging *s, unsigned i, int flags)
{
	char name[16];
	slot_name(i, name);
	return openat(s->o.place.huge, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static void slot_drop(struct staging *s, unsigned i)
{
	char name[16];
	slot_name(i, name);
	unlinkat(s->o.place.huge, name, 0);
	s->ballast.blank[i] = (struct blank){0};
}

void blank_recover(struct staging *s)
{
	for (unsigned i = 0; i < BLANKS; i++) {
		struct stat st;
		int fd = slot_open(s, i, O_RDONLY);
		if (fd < 0)
			continue;
		uint64_t bytes = fstat(fd, &st) || st.st_size ? 0 : (uint64_t)st.st_blocks * 512;
		close(fd);
		if (!bytes || bytes % HUGE_BYTES) {
			slot_drop(s, i);
			continue;
		}
		s->ballast.blank[i] = (struct blank){.want = bytes, .bytes = bytes};
		s->ballast.bytes += bytes;
		s->ballast.apart_bytes += bytes;
	}
}

void blank_clear(struct staging *s)
{
	LOCK_SCOPE(&s->ballast.lock);
	s->ballast.n_wishes = 0;	/* the watch still runs, and makes no more of them */
	for (unsigned i = 0; i < BLANKS; i++)
		if (s->ballast.blank[i].want)
			slot_drop(s, i);
}

/* A little too large will do: what is behind the end goes back at the close. */
static bool fits(const struct blank *b, uint64_t size)
{
	return b->want && b->bytes == b->want && b->bytes >= size && b->bytes - size <= size / 16;
}

bool blank_use(struct staging *s, uint64_t size, int dir, const char *name)
{
	unsigned best = BLANKS;
	char from[16];

	LOCK_SCOPE(&s->ballast.lock);
	if (s->ballast.fd < 0 || dir != s->o.place.huge)
		return false;
	size = whole_pages(size);
	s->ballast.wish[s->ballast.n_wishes++ % BLANKS] = size;
	for (unsigned i = 0; i < BLANKS; i++)
		if (fits(&s->ballast.blank[i], size) && (best == BLANKS || s->ballast.blank[i].bytes < s->ballast.blank[best].bytes))
			best = i;
	if (best == BLANKS)
		return false;
	slot_name(best, from);
	if (renameat(dir, from, dir, name))
		return false;
	s->ballast.bytes -= s->ballast.blank[best].bytes;
	s->ballast.apart_bytes -= s->ballast.blank[best].bytes;
	s->ballast.blank[best] = (struct blank){0};
	return true;
}

uint64_t blank_take(struct staging *s, uint64_t want)
{
	for (unsigned i = BLANKS; i-- > 0;) {
		struct blank *b = &s->ballast.blank[i];
		uint64_t n = want < b->bytes ? want : b->bytes;
		if (!n)
			continue;
		int fd = slot_open(s, i, O_RDWR);
		bool ok = fd >= 0 && ballast_punch(fd, b->bytes - n, n);
		if (fd >= 0)
			close(fd);
		if (!ok)
			return 0;
		s->ballast.apart_bytes -= n;
		s->ballast.bytes -= n;
		b->bytes -= n;
		if (!b->bytes)
			slot_drop(s, i);
		return n;
	}
	return 0;
}

static uint64_t blank_bytes(const struct staging *s)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < BLANKS; i++)
		sum += s->ballast.blank[i].bytes;
	return sum;
}

/* The slot to go on with: one begun, or the latest wish that no blank is for. */
static unsigned slot_due(struct staging *s)
{
	unsigned empty = BLANKS;
	bool used[BLANKS] = {false};

	for (unsigned i = 0; i < BLANKS; i++)
		if (s->ballast.blank[i].bytes < s->ballast.blank[i].want)
			return i;
		else if (!s->ballast.blank[i].want)
			empty = i;
	unsigned n = s->ballast.n_wishes < BLANKS ? s->ballast.n_wishes : BLANKS;
	for (unsigned w = 0; w < n && empty < BLANKS; w++) {
		uint64_t size = s->ballast.wish[(s->ballast.n_wishes - 1 - w) % BLANKS];
		unsigned i = 0;
		while (i < BLANKS && (used[i] || !fits(&s->ballast.blank[i], size)))
			i++;
		if (i < BLANKS) {
			used[i] = true;
		} else if (size <= s->ballast.bytes - blank_bytes(s)) {
			s->ballast.blank[empty].want = size;
			return empty;
		}
	}
	return BLANKS;
}

bool blank_step(struct staging *s)
{
	if (s->ballast.fd < 0)
		return false;
	LOCK_SCOPE(&s->ballast.lock);
	unsigned i = slot_due(s);
	if (i == BLANKS)
		return false;
	struct blank *b = &s->ballast.blank[i];
	int fd = slot_open(s, i, O_RDWR | O_CREAT);
	uint64_t left = b->want - b->bytes, n = fd < 0 ? 0 : ballast_take(s, left < HAND_STEP ? left : HAND_STEP);
	bool ok = n && fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)b->bytes, (off_t)n) == 0;
	if (fd >= 0)
		close(fd);
	if (ok) {
		b->bytes += n;
		s->ballast.bytes += n;
		s->ballast.apart_bytes += n;
	} else if (!b->bytes) {
		slot_drop(s, i);
	} else {
		b->want = b->bytes;	/* as large as it came to be */
	}
	return ok;
}

/* SPDX-License-Identifier: MIT
 * Touched pages that are held for who writes next: at the end of the ballast file, and in *scraps*, staged
 * files that are gone and whose pages were kept. */
#include "staging/memory/memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCRAPS_MAX 64u		/* a descriptor each */

void scrap_drop(struct staging *s)
{
	struct scrap *c = s->ballast.scraps;
	s->ballast.scraps = c->next;
	s->ballast.n_scraps--;
	close(c->fd);
	free(c);
}

bool ballast_punch(int fd, uint64_t off, uint64_t len)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len) == 0;
}

uint64_t ballast_take(struct staging *s, uint64_t want)
{
	struct scrap *c = s->ballast.scraps;
	uint64_t held = c ? c->bytes : s->ballast.bytes - s->ballast.apart_bytes;
	uint64_t n = want < held ? want : held;

	if (!n || !ballast_punch(c ? c->fd : s->ballast.fd, held - n, n))
		return 0;
	s->ballast.bytes -= n;
	if (c) {
		s->ballast.apart_bytes -= n;
		c->bytes -= n;
		if (!c->bytes)
			scrap_drop(s);
	}
	return n;
}

/* Does anybody else have the file open or mapped? A write lease is granted only to the one
 * descriptor there is (fcntl(2), F_SETLEASE). */
static bool is_alone(int fd)
{
	if (fcntl(fd, F_SETLEASE, F_WRLCK))
		return false;
	fcntl(fd, F_SETLEASE, F_UNLCK);
	return true;
}

bool ballast_keep(struct staging *s, int dir, const char *name)
{
	struct stat st;
	LOCK_SCOPE(&s->ballast.lock);
	if (s->ballast.fd < 0 || s->ballast.n_scraps == SCRAPS_MAX)
		return false;
	int fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return false;
	uint64_t end = fstat(fd, &st) ? 0 : whole_pages((uint64_t)st.st_size);
	struct scrap *c = NULL;
	/* sparse ones, and those that would be too much, go the usual way */
	if (end && (uint64_t)st.st_blocks * 512 >= end && s->ballast.bytes + end <= s->o.ballast_bytes &&
	    is_alone(fd) && unlinkat(dir, name, 0) == 0)
		c = malloc(sizeof(*c));
	if (!c) {
		close(fd);
		return false;
	}
	*c = (struct scrap){.next = s->ballast.scraps, .fd = fd, .bytes = end};
	s->ballast.scraps = c;
	s->ballast.n_scraps++;
	s->ballast.apart_bytes += end;
	s->ballast.bytes += end;
	sleeper_wake(&s->watch);
	return true;
}

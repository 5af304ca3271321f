/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "io/scope.h"
#include "lost.h"

/* A kernel also writes back by itself: beyond this many files the oldest count
 * as safe, and hold no descriptor. */
#define FILES_MAX 256u

struct range {
	struct range *next;
	uint64_t off, len;
};

struct lost_file {
	struct lost_file *next;
	dev_t dev;
	ino_t ino;
	int fd; /* our own: the writer's may be closed by the time of a syncfs */
	bool untold; /* another file's sync lost its bytes; its own sync has yet to fail */
	struct range *ranges;
};

void fault_lost_init(struct fault_lost *l)
{
	lock_init(&l->lock, RANK_FAULT_LOST);
}

static void free_ranges(struct lost_file *f, bool punch)
{
	while (f->ranges) {
		struct range *r = f->ranges;

		if (punch)
			fallocate(f->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)r->off,
				  (off_t)r->len);
		f->ranges = r->next;
		free(r);
	}
}

static void free_file(struct lost_file *f)
{
	free_ranges(f, false);
	close(f->fd);
	free(f);
}

/* Removes every file, or fd's, from the list; first punches its bytes if they are
 * to be lost. A file that lost them to the sync of all is kept until its own sync has
 * failed, as the kernel keeps an inode's error (errseq); returns whether one had to. */
static bool take(struct fault_lost *l, int fd, bool punch)
{
	LOCK_SCOPE(&l->lock);
	struct lost_file **p = &l->files;
	struct stat st;
	bool told = false;

	if (fd >= 0 && fstat(fd, &st))
		return false;
	while (*p) {
		struct lost_file *f = *p;

		if (fd >= 0 && (f->dev != st.st_dev || f->ino != st.st_ino)) {
			p = &f->next;
			continue;
		}
		f->untold |= fd < 0 && punch && f->ranges;
		free_ranges(f, punch);
		if (fd < 0 && f->untold) {
			p = &f->next;
			continue;
		}
		told |= f->untold;
		*p = f->next;
		l->n--;
		free_file(f);
	}
	return told;
}

void fault_lost_free(struct fault_lost *l)
{
	while (l->files) {
		struct lost_file *f = l->files;

		l->files = f->next;
		free_file(f);
	}
	pthread_mutex_destroy(&l->lock);
}

int fault_lost_synced(struct fault_lost *l, int fd)
{
	return take(l, fd, false) ? -EIO : 0;
}

void fault_lost_drop(struct fault_lost *l, int fd)
{
	take(l, fd, true);
}

static void forget_oldest(struct fault_lost *l)
{
	struct lost_file **p = &l->files;

	while ((*p)->next)
		p = &(*p)->next;
	free_file(*p);
	*p = NULL;
	l->n--;
}

static struct lost_file *file_of(struct fault_lost *l, int fd)
{
	struct lost_file *f;
	struct stat st;

	if (fstat(fd, &st))
		return NULL;
	for (f = l->files; f; f = f->next)
		if (f->dev == st.st_dev && f->ino == st.st_ino)
			return f;
	f = calloc(1, sizeof(*f));
	if (!f)
		return NULL;
	f->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (f->fd < 0) {
		free(f);
		return NULL;
	}
	f->dev = st.st_dev;
	f->ino = st.st_ino;
	if (l->n == FILES_MAX)
		forget_oldest(l);
	f->next = l->files;
	l->files = f;
	l->n++;
	return f;
}

void fault_lost_wrote(struct fault_lost *l, int fd, uint64_t off, uint64_t len)
{
	LOCK_SCOPE(&l->lock);
	struct lost_file *f = file_of(l, fd);
	struct range *r = f ? malloc(sizeof(*r)) : NULL;

	if (!r)
		return;
	*r = (struct range){.next = f->ranges, .off = off, .len = len};
	f->ranges = r;
}

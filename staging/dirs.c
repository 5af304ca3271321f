/* SPDX-License-Identifier: MIT
 * Directories as they stand in the store now: id -> (parent id, name), with a
 * bounded cache of O_PATH descriptors. A descriptor names an inode, so it stays
 * right while the directory or one above it is renamed. */
#include "staging/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DIR_BUCKETS 4096u
#define DIR_FDS_MAX 512u	/* kept open; one per directory of a busy tree */
#define DIR_DEPTH_MAX 2048u	/* PATH_MAX / 2: "a/" */

struct dir {
	struct dir *hash_next;
	uint64_t id, parent;
	char *name;
	bool present;		/* in the store */
	bool learned;		/* the live tree has it */
	unsigned pending;	/* records that name it */
	unsigned pins;		/* fd in use */
	int fd;
	struct dir *lru_prev, *lru_next;	/* those with an unpinned fd */
};

struct dirs {
	pthread_mutex_t lock;
	struct dir *bucket[DIR_BUCKETS];
	struct dir *lru_head, *lru_tail;
	unsigned n_fds;
	struct dir *root;
	struct {	/* the directory that is being renamed; 0 = none */
		uint64_t id, parent;
		char *name;
	} to;
};

static struct dir *dir_find(struct dirs *t, uint64_t id)
{
	struct dir *d = t->bucket[id % DIR_BUCKETS];
	while (d && d->id != id)
		d = d->hash_next;
	return d;
}

static struct dir *dir_need(struct dirs *t, uint64_t id)
{
	struct dir *d = dir_find(t, id);
	if (d)
		return d;
	d = calloc(1, sizeof(*d));
	if (!d)
		return NULL;
	d->id = id;
	d->fd = -1;
	d->hash_next = t->bucket[id % DIR_BUCKETS];
	t->bucket[id % DIR_BUCKETS] = d;
	return d;
}

static void lru_remove(struct dirs *t, struct dir *d)
{
	if (!d->lru_prev && t->lru_head != d)
		return;
	*(d->lru_prev ? &d->lru_prev->lru_next : &t->lru_head) = d->lru_next;
	*(d->lru_next ? &d->lru_next->lru_prev : &t->lru_tail) = d->lru_prev;
	d->lru_prev = d->lru_next = NULL;
}

static void lru_append(struct dirs *t, struct dir *d)
{
	d->lru_prev = t->lru_tail;
	d->lru_next = NULL;
	*(t->lru_tail ? &t->lru_tail->lru_next : &t->lru_head) = d;
	t->lru_tail = d;
}

static void close_fd(struct dirs *t, struct dir *d)
{
	if (d->fd < 0 || d == t->root)
		return;
	lru_remove(t, d);
	close(d->fd);
	d->fd = -1;
	t->n_fds--;
}

static void dir_release(struct dirs *t, struct dir *d)
{
	if (d == t->root || d->learned || d->pending || d->pins)
		return;
	struct dir **pp = &t->bucket[d->id % DIR_BUCKETS];
	while (*pp != d)
		pp = &(*pp)->hash_next;
	*pp = d->hash_next;
	close_fd(t, d);
	free(d->name);
	free(d);
}

int dirs_open(struct staging *s)
{
	struct dirs *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	pthread_mutex_init(&t->lock, NULL);
	t->root = dir_need(t, STAGING_ROOT_DIR);
	if (!t->root) {
		free(t);
		return -ENOMEM;
	}
	t->root->present = t->root->learned = true;
	t->root->fd = io_store_root(s->o.store);
	s->dirs = t;
	return 0;
}

void dirs_close(struct staging *s)
{
	struct dirs *t = s->dirs;
	if (!t)
		return;
	for (unsigned i = 0; i < DIR_BUCKETS; i++)
		for (struct dir *d = t->bucket[i], *next; d; d = next) {
			next = d->hash_next;
			if (d->fd >= 0 && d != t->root)
				close(d->fd);
			free(d->name);
			free(d);
		}
	free(t->to.name);
	free(t);
	s->dirs = NULL;
}

static int set_place(struct dirs *t, struct dir *d, uint64_t parent, const char *name)
{
	char *copy = strdup(name);
	if (!copy)
		return -ENOMEM;
	free(d->name);
	d->name = copy;
	d->parent = parent;
	d->present = true;
	(void)t;
	return 0;
}

int staging_dir_learn(struct staging *s, uint64_t id, uint64_t parent, const char *name)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_need(t, id);
	if (!d)
		return -ENOMEM;
	d->learned = true;
	return set_place(t, d, parent, name);
}

void staging_dir_forget(struct staging *s, uint64_t id)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_find(t, id);
	if (!d)
		return;
	d->learned = false;
	dir_release(t, d);
}

void dirs_ref(struct staging *s, uint64_t id)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_need(t, id);
	if (d)
		d->pending++;
}

void dirs_unref(struct staging *s, uint64_t id)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_find(t, id);
	if (d && d->pending) {
		d->pending--;
		dir_release(t, d);
	}
}

void dirs_moving(struct staging *s, uint64_t id, uint64_t parent, const char *name)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	free(t->to.name);
	t->to.name = id ? strdup(name) : NULL;
	t->to.id = t->to.name ? id : 0;
	t->to.parent = parent;
}

void dirs_moved(struct staging *s, uint64_t id, uint64_t parent, const char *name)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	t->to.id = 0;
	struct dir *d = dir_find(t, id);
	if (d)
		set_place(t, d, parent, name);
}

void dirs_gone(struct staging *s, uint64_t id)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_find(t, id);
	if (d && d != t->root) {
		d->present = false;
		if (!d->pins)
			close_fd(t, d);
	}
}

uint64_t dirs_parent(struct staging *s, uint64_t id)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_find(t, id);
	return d ? d->parent : 0;
}

static int open_below(struct staging *s, struct dirs *t, struct dir *parent, const char *name, struct dir *d)
{
	int fd = io_open_dir(s->o.store, parent->fd, name);
	if (fd < 0)
		return fd;
	d->fd = fd;
	t->n_fds++;
	lru_append(t, d);
	return 0;
}

/* Opens d and what is above it, top down, without recursion. -ENOENT: *missing is not in its
 * place, which is there. */
static int open_chain(struct staging *s, struct dirs *t, struct dir *d, struct dir **missing)
{
	struct dir *chain[DIR_DEPTH_MAX];
	unsigned n = 0;

	*missing = NULL;
	while (d->fd < 0) {
		if (!d->present)
			return -ENOENT;
		if (n == DIR_DEPTH_MAX)
			return -ENAMETOOLONG;
		chain[n++] = d;
		d = dir_find(t, d->parent);
		if (!d)
			return -ENOENT;
	}
	while (n--) {
		int rc = open_below(s, t, d, chain[n]->name, chain[n]);
		d = chain[n];
		if (rc == -ENOENT)
			*missing = d;
		if (rc)
			return rc;
	}
	return 0;
}

/* The publisher renames first and says so then. What has left its place and is being renamed
 * stands in the new one. */
static int open_dir(struct staging *s, struct dirs *t, struct dir *d)
{
	struct dir *missing, *other, *to;
	int rc = open_chain(s, t, d, &missing);

	if (rc != -ENOENT || !missing || !t->to.id || missing->id != t->to.id)
		return rc;
	to = dir_find(t, t->to.parent);
	rc = to ? open_chain(s, t, to, &other) : -ENOENT;
	if (!rc)
		rc = open_below(s, t, to, t->to.name, missing);
	return rc ? rc : open_chain(s, t, d, &missing);
}

int staging_dir_get(struct staging *s, uint64_t id, int *fd)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_find(t, id);
	if (!d)
		return -ENOENT;
	if (!d->present)
		return -ENOENT;
	int rc = open_dir(s, t, d);
	if (rc)
		return rc;
	if (d != t->root && d->pins++ == 0)
		lru_remove(t, d);
	while (t->n_fds > DIR_FDS_MAX && t->lru_head)
		close_fd(t, t->lru_head);
	*fd = d->fd;
	return 0;
}

void staging_dir_put(struct staging *s, uint64_t id)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_find(t, id);
	if (!d || d == t->root || !d->pins || --d->pins)
		return;
	lru_append(t, d);
	if (!d->present)
		close_fd(t, d);
	dir_release(t, d);
}

/* For messages: dir/name as a path below the store, cut at the front when long. */
int dirs_root_relative(struct staging *s, uint64_t dir, const char *name, char *buf, size_t cap)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	size_t pos = cap - 1;
	buf[pos] = 0;
	for (unsigned depth = 0; depth < DIR_DEPTH_MAX; depth++) {
		size_t n = strlen(name);
		if (n + 1 > pos)
			break;
		pos -= n;
		memcpy(buf + pos, name, n);
		struct dir *d = dir_find(t, dir);
		if (!d || d == t->root || !d->name)
			break;
		buf[--pos] = '/';
		name = d->name;
		dir = d->parent;
	}
	memmove(buf, buf + pos, cap - pos);
	return 0;
}

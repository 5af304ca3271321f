/* SPDX-License-Identifier: MIT
 * The present directories of the store: id -> (parent id, name), with a
 * bounded cache of O_PATH descriptors. A descriptor refers to an inode, so it stays
 * valid while the directory or a parent is renamed. They are opened without the
 * lock, which is taken for every record; one that moved meanwhile is opened again. */
#include "staging/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define DIR_BUCKETS 4096u
#define DIR_FDS_MAX 512u /* kept open; one per directory of a busy tree */
#define DIR_FDS_MIN 2u /* the one that is opened, and its parent */
#define DIR_DEPTH_MAX 2048u /* PATH_MAX / 2: "a/" */

struct dir {
	struct dir *hash_next;
	uint64_t id, parent;
	uint64_t later, later_seq; /* its parent after this record; 0: none moves it */
	char *name;
	uint64_t moves; /* t->moves when it got its place, or lost it */
	bool present; /* in the store */
	bool learned; /* the live tree has it */
	bool stale; /* fd, while it is pinned: another directory may have this name */
	unsigned pending; /* records that name it */
	unsigned pins; /* fd in use */
	int fd;
	struct dir *lru_prev, *lru_next; /* those with an unpinned fd */
};

struct dirs {
	pthread_mutex_t lock;
	struct dir *bucket[DIR_BUCKETS];
	struct dir *lru_head, *lru_tail;
	unsigned n_fds, max_fds; /* open ones, without the root's; how many stay open */
	struct dir *root;
	uint64_t moves;
	struct { /* the directory that is being renamed; 0 = none */
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
	d->stale = false;
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

static void pin(struct dirs *t, struct dir *d)
{
	if (d != t->root && d->pins++ == 0)
		lru_remove(t, d);
}

static void unpin(struct dirs *t, struct dir *d)
{
	if (!d || d == t->root || !d->pins || --d->pins)
		return;
	lru_append(t, d);
	if (!d->present || d->stale)
		close_fd(t, d);
	dir_release(t, d);
}

unsigned staging_dir_fds(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) || rl.rlim_cur / 32 >= DIR_FDS_MAX)
		return DIR_FDS_MAX;
	return rl.rlim_cur / 32 > DIR_FDS_MIN ? (unsigned)(rl.rlim_cur / 32) : DIR_FDS_MIN;
}

/* Closes those that were used longest ago; never `last`, from which the way goes on. */
static void close_some(struct dirs *t, const struct dir *last)
{
	while (t->n_fds > t->max_fds && t->lru_head && t->lru_head != last)
		close_fd(t, t->lru_head);
}

int dirs_open(struct staging *s)
{
	struct dirs *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	lock_init(&t->lock, RANK_DIRS);
	t->max_fds = staging_dir_fds();
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
	d->moves = ++t->moves;
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
		d->moves = ++t->moves;
		if (!d->pins)
			close_fd(t, d);
	}
}

void dirs_look_again(struct staging *s, uint64_t id)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_find(t, id);
	for (unsigned n = 0; d && d != t->root && n < DIR_DEPTH_MAX; n++) {
		d->stale = d->fd >= 0 && d->pins;
		if (!d->pins)
			close_fd(t, d);
		d = dir_find(t, d->parent);
	}
}

uint64_t dirs_parent(struct staging *s, uint64_t id)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_find(t, id);
	return d ? d->parent : 0;
}

void dirs_will_be(struct staging *s, uint64_t id, uint64_t parent, uint64_t seq)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_find(t, id);
	if (d) {
		d->later = parent;
		d->later_seq = seq;
	}
}

void dirs_later_parent(struct staging *s, uint64_t id, uint64_t *parent, uint64_t *seq)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_find(t, id);
	*parent = !d ? 0 : d->later ? d->later : d->parent;
	*seq = d && d->later ? d->later_seq : 0;
}

/* Opens without the lock: the store may not answer. */
static int open_unlocked(struct staging *s, struct dirs *t, struct dir *parent, const char *name)
{
	int at = parent->fd;
	uint64_t id = parent->id;
	char *copy = strdup(name);

	if (!copy)
		return -ENOMEM;
	pin(t, parent);
	pthread_mutex_unlock(&t->lock);
	int fd = io_open_dir(s->o.store, at, copy);
	free(copy);
	pthread_mutex_lock(&t->lock);
	unpin(t, dir_find(t, id));
	return fd;
}

/* The topmost unopened directory on the way to d, to be opened below *parent. */
static int next_to_open(struct dirs *t, struct dir *d, struct dir **top, struct dir **parent)
{
	for (unsigned n = 0; n < DIR_DEPTH_MAX; n++) {
		struct dir *up = d->present ? dir_find(t, d->parent) : NULL;
		if (!up)
			return -ENOENT;
		if (up->fd >= 0) {
			*top = d;
			*parent = up;
			return 0;
		}
		d = up;
	}
	return -ENAMETOOLONG;
}

/* Opens id's directory and its parents, one after another. The publisher renames first and reports
 * it then: a directory that is not at its place and is being renamed is at the new one. Lock held,
 * dropped meanwhile. */
static int open_dir(struct staging *s, struct dirs *t, uint64_t id, struct dir **out)
{
	for (;;) {
		struct dir *d = dir_find(t, id), *top, *parent;
		if (!d || !d->present)
			return -ENOENT;
		*out = d;
		if (d->fd >= 0)
			return 0;
		int err = next_to_open(t, d, &top, &parent);
		if (err)
			return err;
		uint64_t top_id = top->id, moves = top->moves;
		int fd = open_unlocked(s, t, parent, top->name);
		top = dir_find(t, top_id);
		if (fd == -ENOENT && top && top->moves == moves && t->to.id == top_id &&
		    (parent = dir_find(t, t->to.parent)) && parent->present) {
			err = open_dir(s, t, t->to.parent, &parent);
			if (!err && t->to.id == top_id)
				fd = open_unlocked(s, t, parent, t->to.name);
			top = dir_find(t, top_id);
		}
		/* moved, gone or opened meanwhile */
		if (!top || top->moves != moves || top->fd >= 0) {
			if (fd >= 0)
				close(fd);
			continue;
		}
		if (fd < 0)
			return fd;
		top->fd = fd;
		t->n_fds++;
		lru_append(t, top);
		close_some(t, top); /* a path may be deeper than there are descriptors */
	}
}

int staging_dir_get(struct staging *s, uint64_t id, int *fd)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	struct dir *d = dir_find(t, id);
	if (!d || !d->present)
		return -ENOENT;
	if (io_store_is_detached(s->o.store))
		return -EIO;
	int err = open_dir(s, t, id, &d);
	if (err)
		return err;
	pin(t, d);
	close_some(t, NULL);
	*fd = d->fd;
	return 0;
}

void staging_dir_put(struct staging *s, uint64_t id)
{
	struct dirs *t = s->dirs;
	LOCK_SCOPE(&t->lock);
	unpin(t, dir_find(t, id));
}

/* For messages: dir/name as a path below the store; the beginning of a long one is cut off. */
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

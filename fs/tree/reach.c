/* SPDX-License-Identifier: MIT
 * Permission checks for paths. The kernel checks each name that it walks, but views and `latest`
 * answer about paths that no caller walked: a name in a checkpoint's metadata, a checkpoint found
 * by a search. They answer only what the caller could have found by walking there.
 */
#include "fs/tree/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void caller_free(struct caller *c)
{
	free(c->groups);
	c->groups = NULL;
}

bool caller_may(const struct caller *c, const struct stat *st, unsigned want)
{
	unsigned group = st->st_mode >> 3 & want, other = st->st_mode & want;

	if (!c->uid)
		return true;
	if (c->uid == st->st_uid)
		return (st->st_mode >> 6 & want) == want;
	if (c->gid == st->st_gid)
		return group == want;
	for (int i = 0; i < c->n_groups; i++)
		if (c->groups[i] == st->st_gid)
			return group == want;
	/* a mode may also grant a group less than others: if the groups are unknown, both must
	 * allow it */
	return (c->n_groups < 0 ? group & other : other) == want;
}

/* Holds dir, so that it is not freed while a name in it is looked up and dropped. */
static int look(struct fs *fs, struct node *dir, const char *name, struct node **out)
{
	bool busy = dir->busy;
	dir->busy = true;
	int err = tree_lookup(fs, dir, name, out, NULL);
	dir->busy = busy;
	return err;
}

static int may_search(struct fs *fs, const struct caller *who, struct node *dir)
{
	struct stat st;
	if (!S_ISDIR(dir->attr.mode))
		return -ENOTDIR;
	if (!who || !who->uid)
		return 0;
	int err = node_stat(fs, dir, &st);
	return err ? err : caller_may(who, &st, 1) ? 0 : -EACCES;
}

/* Walks the path. Takes the lock; keeps it on success. */
static int walk(struct fs *fs, const struct caller *who, const char *path, struct node **out)
{
	struct node *n = fs->tree.root;
	struct stat st;
	int err = 0;
	while (!err && *path) {
		char name[MAX_NAME + 1];
		size_t len = strcspn(path, "/");
		struct node *dir = n;
		err = len > MAX_NAME ? -ENAMETOOLONG : may_search(fs, who, dir);
		if (!err) {
			memcpy(name, path, len);
			name[len] = 0;
			err = name_is_control(dir->id, name) ? -ENOENT : look(fs, dir, name, &n);
		}
		if (err)
			n = dir;
		path += len + (path[len] == '/');
	}
	if (!err)
		err = node_stat(fs, n, &st);
	if (err)
		ask_release(fs, n);
	*out = n;
	return err;
}

int reach(struct fs *fs, const struct caller *who, const char *path, struct node **out)
{
	int err;

	ask_begin();
	do {
		pthread_mutex_lock(&fs->tree.lock);
		err = walk(fs, who, path, out);
		if (err)
			pthread_mutex_unlock(&fs->tree.lock);
	} while (ask_store(fs, err));
	return err;
}

void reach_done(struct fs *fs, struct node *n)
{
	ask_release(fs, n);
	pthread_mutex_unlock(&fs->tree.lock);
}

int reach_stat(struct fs *fs, const struct caller *who, const char *path, unsigned want,
	       struct stat *st)
{
	struct node *n;
	int err = reach(fs, who, path, &n);
	if (err)
		return err;
	node_attr(fs, n, st);
	reach_done(fs, n);
	return caller_may(who, st, want) ? 0 : -EACCES;
}

int reach_open(int fd, const char *path, int flags)
{
	if (!(flags & O_PATH))
		flags |= O_RDONLY | O_NONBLOCK | O_NOCTTY;
	struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC),
			       .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
					  RESOLVE_NO_MAGICLINKS};
	int r = (int)syscall(SYS_openat2, fd, *path ? path : ".", &how, sizeof(how));
	return r < 0 ? -errno : r;
}

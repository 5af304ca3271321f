/* SPDX-License-Identifier: MIT
 *
 * A checkpoint is removed: first what commits it, so that no reader takes what is left for a whole
 * one.
 */
#include "ckpt.h"

#include <fcntl.h>
#include <string.h>

static int remove_commits(int fd)
{
	struct names names = {0};
	int err = names_read(fd, &names);

	for (size_t i = 0; !err && i < names.n; i++)
		if (ckpt_commits(names.v[i]) && unlinkat(fd, names.v[i], 0) && errno != ENOENT)
			err = -errno;
	names_free(&names);
	return err;
}

static int remove_below(int fd)
{
	CLEANUP_WALK struct walk *w = NULL;
	struct walk_item it;
	int err = walk_open(fd, -1, NULL, &w);

	while (!err && walk_next(w, &it) != WALK_END) {
		if (it.what == WALK_ERROR)
			err = it.err == -ENOENT ? 0 : it.err;
		else if (it.what == WALK_ENTRY && !S_ISDIR(it.st.st_mode))
			err = unlinkat(it.dirfd, it.name, 0) && errno != ENOENT ? -errno : 0;
		else if (it.what == WALK_LEAVE && *it.path)
			err = unlinkat(it.dirfd, it.name, AT_REMOVEDIR) && errno != ENOENT ? -errno
											   : 0;
	}
	return err;
}

/* What is left may still look like a checkpoint, and not every format has a name that commits
 * it. */
static int take_name(int top, const char **name, char **mine)
{
	if (asprintf(mine, CKPT_REMOVED_PREFIX "%s", *name) < 0)
		return -ENOMEM;
	if (renameat(top, *name, top, *mine))
		return -errno;
	*name = *mine;
	return 0;
}

int ckpt_remove(int top, const char *name)
{
	CLEANUP_CLOSE int fd = openat(top, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	CLEANUP_FREE char *mine = NULL;
	int err = fd < 0 ? -errno : remove_commits(fd);

	if (!err && strncmp(name, CKPT_REMOVED_PREFIX, strlen(CKPT_REMOVED_PREFIX)))
		err = take_name(top, &name, &mine);
	if (!err)
		err = remove_below(fd);
	if (!err && unlinkat(top, name, AT_REMOVEDIR))
		err = -errno;
	return err;
}

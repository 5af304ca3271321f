/* SPDX-License-Identifier: MIT
 * The names that a fetch gives in a store, and the mount by which it does.
 */
#include "tier_names.h"

#include <fcntl.h>
#include <string.h>

#define SETTLES_MS "10000" /* what is closed is durable by then, or it counts as being written */

/* ---- what a path has -------------------------------------------------------------------- */

static uint64_t hash_of(const char *path, const struct stat *st)
{
	bool dir = S_ISDIR(st->st_mode); /* its time says no more than its names */
	const uint64_t v[] = {st->st_mode & S_IFMT, st->st_ino, dir ? 0 : (uint64_t)st->st_size,
			      dir ? 0 : (uint64_t)st->st_mtim.tv_sec,
			      dir ? 0 : (uint64_t)st->st_mtim.tv_nsec};

	return tier_hash(tier_hash(TIER_HASH_BEGIN, path, strlen(path) + 1), v, sizeof(v));
}

static int hash_below(int fd, uint64_t *hash)
{
	CLEANUP_WALK struct walk *w = NULL;
	struct walk_item it;
	int err = walk_open(fd, -1, NULL, &w);

	while (!err && walk_next(w, &it) != WALK_END)
		if (it.what == WALK_ERROR)
			err = it.err;
		else if (it.what == WALK_ENTRY)
			*hash += hash_of(it.path, &it.st); /* they come in any order */
	return err;
}

/* Elsewhere than on a mount *state is "". */
static int state_of(int fd, const char *key, char state[32])
{
	int err = xattr_of_fd(fd, key, state, 32);

	return err == -ENODATA || err == -EOPNOTSUPP ? 0 : err;
}

static int check_durable(int fd)
{
	char state[32];
	int err = state_of(fd, KEY_STATE, state);

	if (!err && !strcmp(state, "staged")) {
		err = state_of(fd, KEY_WAIT "." SETTLES_MS, state);
		/* that waits for all of the mount, too */
		err = err ? err : state_of(fd, KEY_STATE, state);
	}
	return err ? err : *state && strcmp(state, "durable") ? -EBUSY : 0;
}

int tier_see(const struct tier *in, const char *path, struct tier_seen *out)
{
	CLEANUP_CLOSE int fd = tier_open_at(in, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;
	int err = fd < 0 ? fd : check_durable(fd);

	*out = (struct tier_seen){.there = err != -ENOENT};
	if (err)
		return err == -ENOENT ? 0 : err;
	if (fstat(fd, &st))
		return call_error();
	out->hash = hash_of("", &st);
	return S_ISDIR(st.st_mode) ? hash_below(fd, &out->hash) : 0;
}

bool tier_seen_same(const struct tier_seen *a, const struct tier_seen *b)
{
	return a->there == b->there && a->hash == b->hash;
}

/* ---- names ------------------------------------------------------------------------------ */

/* The name of the directory is ours before it is given to another one. */
static int rename_dir(const struct tier *in, const char *from, const char *to, mode_t mode)
{
	if (mkdirat(in->root, to, mode & 07777))
		return -errno;
	if (!renameat(in->root, from, in->root, to))
		return 0;
	int err = errno == ENOTEMPTY ? -EEXIST : -errno; /* somebody has put something into it */

	unlinkat(in->root, to, AT_REMOVEDIR);
	return err;
}

int tier_rename_new(const struct tier *in, const char *from, const char *to)
{
	struct stat st;
	int err = name_new(in->root, from, in->root, to);

	/* without RENAME_NOREPLACE, by a link, which a directory cannot have */
	if (err != -EPERM || fstatat(in->root, from, &st, AT_SYMLINK_NOFOLLOW) ||
	    !S_ISDIR(st.st_mode))
		return err;
	return rename_dir(in, from, to, st.st_mode);
}

/* ---- the mount -------------------------------------------------------------------------- */

int tier_mount_open(struct tier_mount *m, const char *path, const char *store, struct tier_why *w)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	CLEANUP_FREE char *served = NULL;
	int err = location_find(path, &m->at);

	if (!err && (!m->at.on_mount || *m->at.below))
		err = -ENODEV;
	if (!err)
		err = location_status(&m->at, &d);
	served = err ? NULL : json_bytes(d, json_at(d, 0, "store"));
	if (!err && (!served || strcmp(served, store)))
		err = -EXDEV;
	if (!err)
		m->top = openat(m->at.root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!err && m->top < 0)
		err = -errno;
	return err ? tier_told(w, err, "%s: not the mount of %s: %s", path, store, strerror(-err))
		   : 0;
}

void tier_mount_close(struct tier_mount *m)
{
	if (m->top >= 0)
		close(m->top);
	m->top = -1;
	location_close(&m->at);
}

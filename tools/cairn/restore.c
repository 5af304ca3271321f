/* SPDX-License-Identifier: MIT
 *
 * cairn restore-previous: puts a checkpoint back that was being overwritten in place. Everything
 * that is kept stays until it is back on stable storage; the .metadata comes last.
 */
#include "commands.h"
#include "tools/cairn/ckpt/ckpt.h"
#include "previous.h"

#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <string.h>

#define COMMIT PREVIOUS_COMMIT
#define KEPT ".cairn/" PREVIOUS_DIR "/"
#define SCRATCH ".cairn-restored"

/* ---- finding it ---- */

int previous_key_of(int dirfd, struct previous_key *k)
{
	struct statx x;

	if (statx(dirfd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &x))
		return -errno;
	*k = (struct previous_key){.ino = x.stx_ino};
	if (x.stx_mask & STATX_BTIME)
		k->birth = (uint64_t)x.stx_btime.tv_sec * 1000000000u + x.stx_btime.tv_nsec;
	return 0;
}

int previous_find(int root, int dirfd, struct previous *out)
{
	struct previous_key want = {.ino = 0}, k;
	struct names names = {0};
	struct stat st;

	*out = PREVIOUS_NONE;
	out->all = openat(root, ".cairn/" PREVIOUS_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int err = out->all < 0 ? -errno : previous_key_of(dirfd, &want);
	if (!err)
		err = names_read(out->all, &names);
	for (size_t i = 0; !err && out->fd < 0 && i < names.n; i++) {
		if (!previous_parse(names.v[i], &k) || k.ino != want.ino || k.birth != want.birth)
			continue;
		out->fd = openat(out->all, names.v[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		err = out->fd < 0 ? -errno : 0;
		out->meta = k.meta;
		snprintf(out->name, sizeof(out->name), "%s", names.v[i]);
	}
	names_free(&names);
	if (!err && out->fd < 0)
		err = -ENOENT;
	if (!err)
		out->lost = fstatat(out->fd, COMMIT, &st, AT_SYMLINK_NOFOLLOW);
	return err;
}

void previous_end(struct previous *p)
{
	if (p->all >= 0)
		close(p->all);
	if (p->fd >= 0)
		close(p->fd);
	*p = PREVIOUS_NONE;
}

/* ---- nobody else changes the store ---- */

/* The place of this store's staging, if it is known and exists: the next start publishes what is
 * in it, on top of what is put back. malloc()ed, or NULL. */
static char *staging_left(const struct location *p)
{
	CLEANUP_FREE char *id = NULL;
	const char *run = getenv("XDG_RUNTIME_DIR");
	struct io_mounts m;
	char *found = NULL, path[3][600];
	size_t len;

	if (read_small_file(p->root, ".cairn/id", 64, &id, &len))
		return NULL;
	id[strcspn(id, "\n")] = '\0';
	snprintf(path[0], sizeof(path[0]), "/run/cairnfs/%s", id);
	snprintf(path[1], sizeof(path[1]), "/dev/shm/cairnfs-%s", id);
	snprintf(path[2], sizeof(path[2]), "%s/cairnfs-%s", run ? run : "/nonexistent", id);
	for (unsigned i = 0; i < 3 && !found; i++)
		if (!access(path[i], F_OK))
			found = strdup(path[i]);
	if (!found && !io_mounts_read(IO_MOUNTS_HERE, &m)) {
		for (size_t i = 0; i < m.n && !found; i++)
			if (strstr(m.v[i].point, id))
				found = strdup(m.v[i].point);
		io_mounts_free(&m);
	}
	return found;
}

/* True: it is reported why the store must not be changed now. */
static bool is_in_use(const char *path, const struct location *p, const char *option)
{
	CLEANUP_FREE char *staging = NULL;

	if (p->on_mount) {
		complain("%s is on a mount. First: cairn umount %s; then name the directory in the "
			 "store: cairn restore-previous %sSTORE/%s",
			 path, p->top, option, p->below);
		return true;
	}
	int code = location_hold(path, p, "it is mounted; unmount it first (cairn umount)");
	if (!code && (staging = staging_left(p)))
		complain("%s: staging (%s) may have changes that are not in the store yet; mount "
			 "%s, then: cairn umount, which publishes them",
			 path, staging, p->top);
	return code || staging;
}

/* ---- putting it back ---- */

static bool is_same(int a, int b, const char *name)
{
	struct stat st, old;

	return !fstatat(a, name, &st, AT_SYMLINK_NOFOLLOW) &&
	       !fstatat(b, name, &old, AT_SYMLINK_NOFOLLOW) && st.st_ino == old.st_ino &&
	       st.st_dev == old.st_dev;
}

/* It replaces what is there in one step, and stays in `from`. */
static int put_back(int from, int to, const char *name)
{
	if (is_same(from, to, name))
		return 0;
	unlinkat(to, SCRATCH, 0); /* of a run that was killed */
	if (linkat(from, name, to, SCRATCH, 0) || renameat(to, SCRATCH, to, name))
		return -errno;
	return 0;
}

static int put_all_back(int from, int to)
{
	struct names names = {0};
	int err = names_read(from, &names);

	for (size_t i = 0; !err && i < names.n; i++)
		if (strcmp(names.v[i], COMMIT))
			err = put_back(from, to, names.v[i]);
	if (!err && syncfs(to))
		err = -errno;
	if (!err)
		err = put_back(from, to, COMMIT);
	/* of the save that did not end: with it, what is back would count as being written */
	if (!err && (unlinkat(to, COMMIT ".tmp", 0) && errno != ENOENT))
		err = -errno;
	if (!err && (unlinkat(to, SCRATCH, 0) && errno != ENOENT))
		err = -errno;
	if (!err && syncfs(to))
		err = -errno;
	names_free(&names);
	return err;
}

/* Its .metadata first: what is left is not taken for a checkpoint. */
static int end_keeping(const struct previous *p)
{
	struct names names = {0};
	int err = unlinkat(p->fd, COMMIT, 0) && errno != ENOENT ? -errno : 0;

	if (!err)
		err = names_read(p->fd, &names);
	for (size_t i = 0; !err && i < names.n; i++)
		err = unlinkat(p->fd, names.v[i], 0) && errno != ENOENT ? -errno : 0;
	if (!err && unlinkat(p->all, p->name, AT_REMOVEDIR))
		err = -errno;
	names_free(&names);
	return err ? err : fsync(p->all) ? -errno : 0;
}

/* Not 0: it is reported why it cannot be put back. */
static int refuse(const char *path, int dir, const struct previous *p)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	struct ckpt_verdict v;
	struct stat st;

	if (!fstatat(dir, COMMIT, &st, AT_SYMLINK_NOFOLLOW) && st.st_size && st.st_ino != p->meta) {
		complain("%s: a newer checkpoint was completed in it; what it had before is not "
			 "put back",
			 path);
		return CAIRN_FAILED;
	}
	if (p->lost) {
		complain("%s: what it had before was not kept: the store had no room for both, or "
			 "has no hard links",
			 path);
		return CAIRN_FAILED;
	}
	int err = ckpt_open(p->all, p->name, path, false, &c);
	if (!err)
		err = ckpt_read(&c, false, NULL, NULL);
	if (err) {
		complain("%s: %s", path, strerror(-err));
		return CAIRN_FAILED;
	}
	ckpt_verdict(&c, &v);
	if (v.state != CKPT_COMPLETE)
		complain("%s: what is kept of it is not complete: %s; nothing is changed", path,
			 v.why);
	return v.state == CKPT_COMPLETE ? CAIRN_OK : CAIRN_FAILED;
}

static int restore(const char *path, const struct location *p)
{
	CLEANUP_CLOSE int dir = openat(p->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CLEANUP_PREVIOUS struct previous prev = PREVIOUS_NONE;
	struct stat st;
	int err = dir < 0 ? -errno : previous_find(p->root, dir, &prev);

	if (err == -ENOENT && !fstatat(dir, COMMIT, &st, AT_SYMLINK_NOFOLLOW)) {
		printf("%s: nothing is kept of it, and nothing is changed\n", path);
		return CAIRN_OK;
	}
	if (err) {
		complain("%s: %s", path,
			 err == -ENOENT ? "no checkpoint of it is kept" : strerror(-err));
		return CAIRN_FAILED;
	}
	if (refuse(path, dir, &prev))
		return CAIRN_FAILED;
	err = put_all_back(prev.fd, dir);
	if (err) {
		complain("%s: %s; what is kept stays: try again", path, strerror(-err));
		return CAIRN_FAILED;
	}
	err = end_keeping(&prev);
	if (err)
		complain("%s/.cairn/%s/%s: %s; it is not needed any more", p->top, PREVIOUS_DIR,
			 prev.name, strerror(-err));
	printf("%s: the previous checkpoint is in its place again\n", path);
	return CAIRN_OK;
}

/* ---- ending it ---- */

/* The directory itself, or KEY: the directory may be gone. */
static int find_kept(const struct location *p, struct previous *out)
{
	struct previous_key k;

	if (strncmp(p->below, KEPT, strlen(KEPT))) {
		CLEANUP_CLOSE int dir = openat(p->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		return dir < 0 ? -errno : previous_find(p->root, dir, out);
	}
	snprintf(out->name, sizeof(out->name), "%s", p->below + strlen(KEPT));
	if (!previous_parse(out->name, &k) || strchr(out->name, '/'))
		return -EINVAL;
	out->all = openat(p->root, ".cairn/" PREVIOUS_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	out->fd = openat(p->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return out->all < 0 || out->fd < 0 ? -errno : 0;
}

static int discard_kept(const char *path, const struct location *p)
{
	CLEANUP_PREVIOUS struct previous prev = PREVIOUS_NONE;
	int err = find_kept(p, &prev);

	if (err == -ENOENT) {
		printf("%s: nothing is kept of it, and nothing is changed\n", path);
		return CAIRN_OK;
	}
	if (!err)
		err = end_keeping(&prev);
	if (err) {
		complain("%s: %s", path, strerror(-err));
		return CAIRN_FAILED;
	}
	printf("%s: what was kept of it is removed\n", path);
	return CAIRN_OK;
}

int cmd_restore_previous(int argc, char **argv)
{
	static const struct option options[] = {
		{"list", no_argument, NULL, 'l'},
		{"json", no_argument, NULL, 'j'},
		{"discard", no_argument, NULL, 'd'},
		{0},
	};
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	bool list = false, json = false, ends = false;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == '?')
			return complain_option("restore-previous", argv);
		list |= c == 'l';
		json |= c == 'j';
		ends |= c == 'd';
	}
	if (argc - optind != 1)
		return complain_usage("restore-previous", "which DIR?");
	if (list ? ends : json)
		return complain_usage("restore-previous", list ? "--list or --discard, not both"
							       : "--json is for --list");
	int code = location_need(argv[optind], false, &p);
	if (code)
		return code;
	if (list && p.on_mount) {
		complain("%s is on a mount; name its store", argv[optind]);
		return CAIRN_USAGE;
	}
	if (list)
		return previous_list(&p, json);
	if (is_in_use(argv[optind], &p, ends ? "--discard " : ""))
		return CAIRN_FAILED;
	return ends ? discard_kept(argv[optind], &p) : restore(argv[optind], &p);
}

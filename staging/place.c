/* SPDX-License-Identifier: MIT
 * The place: private tmpfs mounts below /run/cairnfs/<store id>, found again by
 * the next start when every process died. */
#include "staging/internal.h"
#include "staging/pin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <unistd.h>

#define RUN_DIR "/run/cairnfs"
#define BASE_BYTES (2ull << 30)	/* the log, while it is rotated two of them: some 3,000,000 nodes */

static int make_dir(const char *path)
{
	struct stat st;
	if (mkdir(path, 0700) && errno != EEXIST)
		return -errno;
	if (lstat(path, &st))
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -ENOTDIR;
	/* staged bytes are other users' data */
	return st.st_uid != geteuid() || (st.st_mode & 022) ? -EPERM : 0;
}

static bool is_mounted(const char *path)
{
	char up[600];
	struct stat st, st_up;
	snprintf(up, sizeof(up), "%s/..", path);
	return !stat(path, &st) && !stat(up, &st_up) && st.st_dev != st_up.st_dev;
}

static int mount_tmpfs(const char *path, uint64_t bytes, const char *huge, int node)
{
	char opts[128], mpol[32];
	unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME;

	pin_option(node, mpol);
	if (is_mounted(path)) {
		/* found again: only its limit and its node may have changed */
		snprintf(opts, sizeof(opts), "size=%llu%s", (unsigned long long)bytes, mpol);
		if (mount("cairnfs-staging", path, "tmpfs", flags | MS_REMOUNT, opts) && errno == EINVAL) {
			snprintf(opts, sizeof(opts), "size=%llu", (unsigned long long)bytes);
			mount("cairnfs-staging", path, "tmpfs", flags | MS_REMOUNT, opts);
		}
		return 0;
	}
	/* noswap: 6.4 and later; huge: kernels built without THP refuse it */
	const char *forms[] = {"mode=0700,size=%llu,huge=%s,noswap", "mode=0700,size=%llu,huge=%s",
			       "mode=0700,size=%llu"};
	for (unsigned i = 0; i < 3; i++) {
		int n = snprintf(opts, sizeof(opts), forms[i], (unsigned long long)bytes, huge);
		if (node != STAGING_ANY_NODE)
			snprintf(opts + n, sizeof(opts) - (size_t)n, "%s", mpol);
		if (mount("cairnfs-staging", path, "tmpfs", flags, opts) == 0) {
			mount(NULL, path, NULL, MS_PRIVATE, NULL);
			return 0;
		}
		if (errno != EINVAL)
			break;
	}
	return -errno;
}

static int open_at(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

static int open_sub(struct staging_place *p, const char *name, uint64_t bytes, const char *huge, int node)
{
	char path[600];
	snprintf(path, sizeof(path), "%s/%s", p->path, name);
	int rc = make_dir(path);
	if (!rc && p->is_private)
		rc = mount_tmpfs(path, bytes, huge, node);
	return rc ? rc : open_at(path);
}

static int take_lock(struct staging_place *p)
{
	p->lock = openat(p->base, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (p->lock < 0)
		return -errno;
	return flock(p->lock, LOCK_EX | LOCK_NB) ? -errno : 0;
}

static int choose_path(const char *dir, const char *store_id, struct staging_place *p)
{
	const char *root = dir ? dir : geteuid() == 0 ? RUN_DIR : "/dev/shm";
	struct statfs fs;

	p->is_private = geteuid() == 0;
	if (!dir && p->is_private) {
		int rc = make_dir(RUN_DIR);
		if (rc)
			return rc;
	}
	if (!p->is_private) {
		if (statfs(root, &fs))
			return -errno;
		if (fs.f_type != TMPFS_MAGIC)
			return -ENOTSUP;
	}
	int n = snprintf(p->path, sizeof(p->path) - 32, "%s/%s%s", root, !dir && !p->is_private ? "cairnfs-" : "",
			 store_id);
	return n >= (int)sizeof(p->path) - 32 ? -ENAMETOOLONG : 0;
}

int staging_place_open(const char *dir, const char *store_id, uint64_t limit_bytes, struct staging_place *out)
{
	return staging_place_open_on(STAGING_ANY_NODE, dir, store_id, limit_bytes, out);
}

int staging_place_open_on(int node, const char *dir, const char *store_id, uint64_t limit_bytes,
			  struct staging_place *out)
{
	struct staging_place p = {.base = -1, .huge = -1, .small = -1, .lock = -1};
	int rc = choose_path(dir, store_id, &p);
	if (!rc)
		rc = make_dir(p.path);
	if (!rc && p.is_private)
		rc = mount_tmpfs(p.path, BASE_BYTES, "never", node);
	if (!rc) {
		p.base = open_at(p.path);
		rc = p.base < 0 ? p.base : take_lock(&p);
	}
	if (!rc) {
		p.huge = open_sub(&p, "huge", limit_bytes, "always", node);
		rc = p.huge < 0 ? p.huge : 0;
	}
	if (!rc) {
		p.small = open_sub(&p, "small", limit_bytes, "within_size", node);
		rc = p.small < 0 ? p.small : 0;
	}
	if (rc) {
		staging_place_close(&p);
		return rc;
	}
	*out = p;
	return 0;
}

void staging_place_close(struct staging_place *p)
{
	int *fds[] = {&p->base, &p->huge, &p->small, &p->lock};
	for (unsigned i = 0; i < 4; i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
}

/* Somebody may look into it, and the kernel lets go of a file in its own time: its memory is free
 * when they have, the name now. */
static bool unmounted(const char *path)
{
	return !umount2(path, UMOUNT_NOFOLLOW) ||
	       (errno == EBUSY && !umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW));
}

void staging_place_remove(struct staging_place *p)
{
	char path[600];
	const char *subs[] = {"huge", "small"};

	if (!p->is_private)
		unlinkat(p->base, "lock", 0);
	staging_place_close(p);
	for (unsigned i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", p->path, subs[i]);
		if (p->is_private && !unmounted(path))
			return;
		if (!p->is_private && rmdir(path))
			return;
	}
	if (p->is_private && !unmounted(p->path))
		return;
	rmdir(p->path);
	if (p->is_private)
		rmdir(RUN_DIR);	/* only when no other store is staged there */
}

/* What cannot be read counts as full. */
static bool is_empty(int dir, const char *const *but, unsigned n_but)
{
	int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	bool empty = d != NULL;

	if (!d && fd >= 0)
		close(fd);
	for (struct dirent *e; empty && (e = readdir(d));) {
		bool known = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
		for (unsigned i = 0; i < n_but; i++)
			known |= !strcmp(e->d_name, but[i]);
		empty = known;
	}
	if (d)
		closedir(d);
	return empty;
}

void staging_place_give_up(struct staging_place *p)
{
	static const char *const own[] = {"huge", "small", "lock"};

	if (is_empty(p->base, own, 3) && is_empty(p->huge, NULL, 0) && is_empty(p->small, NULL, 0))
		staging_place_remove(p);
	else
		staging_place_close(p);
}

/* SPDX-License-Identifier: MIT
 * The place: private tmpfs mounts below /run/cairnfs/<store id>, or a directory on a tmpfs of the
 * system, which the next start finds again after every process died. */
#include "io/entries.h"
#include "io/mounts/mounts.h"
#include "staging/memory/memory.h"
#include "staging/memory/pin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#define RUN_DIR "/run/cairnfs"
/* the log, while it is rotated two of them: some 3,000,000 nodes */
#define BASE_BYTES (2ull << 30)
#define MOUNT_FLAGS (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME)
/* beyond the budget or what is used, while the store is full: opens and moves need some */
#define FIT_SLACK (64ull << 20)

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

/* An O_PATH descriptor of dirfd/name, created if missing, and owned by us alone. */
static int make_at(int dirfd, const char *name)
{
	struct stat st;
	if (mkdirat(dirfd, name, 0700) && errno != EEXIST)
		return -errno;
	int fd = openat(dirfd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int err = fstat(fd, &st)				 ? -errno
		  : st.st_uid != geteuid() || (st.st_mode & 022) ? -EPERM
								 : 0;
	if (err)
		close(fd);
	return err ? err : fd;
}

/* fd, opened as a name in up: is something mounted there? */
static bool is_mounted(int fd, int up)
{
	struct stat st, st_up;
	return !fstat(fd, &st) && !fstat(up, &st_up) && st.st_dev != st_up.st_dev;
}

/* At the directory fd of `up`, wherever its path leads meanwhile. */
static int mount_tmpfs(int fd, int up, uint64_t bytes, const char *huge, int node)
{
	char opts[128], mpol[32], path[32];
	unsigned long flags = MOUNT_FLAGS;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	pin_option(node, mpol);
	if (is_mounted(fd, up)) {
		/* found again: only its limit and its node may have changed */
		snprintf(opts, sizeof(opts), "size=%llu%s", (unsigned long long)bytes, mpol);
		if (mount("cairnfs-staging", path, "tmpfs", flags | MS_REMOUNT, opts) &&
		    errno == EINVAL) {
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
		if (mount("cairnfs-staging", path, "tmpfs", flags, opts) == 0)
			return 0;
		if (errno != EINVAL)
			break;
	}
	return -errno;
}

/* The directory `name` of `up`, with a tmpfs of its own if it is private. */
static int open_sub(const struct staging_place *p, int up, const char *name, uint64_t bytes,
		    const char *huge, int node)
{
	char path[32];
	int dir = make_at(up, name);
	if (dir < 0)
		return dir;
	int err = p->is_private ? mount_tmpfs(dir, up, bytes, huge, node) : 0;
	close(dir);
	int fd = err ? err : openat(up, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (err || fd < 0)
		return err ? err : -errno;
	/* it was replaced by another directory */
	if (p->is_private && !is_mounted(fd, up)) {
		close(fd);
		return -EPERM;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (p->is_private)
		mount(NULL, path, NULL, MS_PRIVATE, NULL);
	return fd;
}

/* The parent directory of the place: a user who may rename its entries could replace the place.
 * /dev/shm is the system's; in a user namespace its owner has no number of its own. */
static int open_root(const char *path, const char **name)
{
	struct stat st;
	char root[600];

	*name = strrchr(path, '/') + 1;
	snprintf(root, sizeof(root), "%.*s", (int)(*name - path), path);
	int fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	bool ours = !fstat(fd, &st) &&
		    (st.st_uid == 0 || st.st_uid == geteuid() || !strcmp(root, "/dev/shm/")) &&
		    (!(st.st_mode & 022) || (st.st_mode & S_ISVTX));
	if (!ours)
		close(fd);
	return ours ? fd : -EPERM;
}

static int take_lock(struct staging_place *p)
{
	p->lock = openat(p->base, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (p->lock < 0)
		return -errno;
	return flock(p->lock, LOCK_EX | LOCK_NB) ? -errno : 0;
}

int staging_place_sign(const struct staging_place *p, const char *who)
{
	size_t len = strlen(who);

	errno = 0;
	if (pwrite(p->lock, who, len, 0) != (ssize_t)len)
		return errno ? -errno : -ENOSPC;
	return ftruncate(p->lock, (off_t)len) ? -errno : 0;
}

/* ---- which place ---- */

/* The i-th directory where staging may be if none is given, the best first; "" = there are no more.
 * An ordinary user's $XDG_RUNTIME_DIR is a tenth of memory at most, by default. The last is where
 * it is for most users, for a start without the variable. */
static void root_of(unsigned i, char *buf, size_t cap)
{
	const char *xdg = getenv("XDG_RUNTIME_DIR");

	i += geteuid() ? 1 : 0;
	if (i > 1 && (!xdg || xdg[0] != '/'))
		i++;
	buf[0] = 0;
	if (i == 0)
		snprintf(buf, cap, RUN_DIR);
	else if (i == 1)
		snprintf(buf, cap, "/dev/shm");
	else if (i == 2)
		snprintf(buf, cap, "%s", xdg);
	else if (i == 3)
		snprintf(buf, cap, "/run/user/%u", (unsigned)geteuid());
}

static int place_in(const char *root, bool is_private, const char *prefix, const char *store_id,
		    struct staging_place *p)
{
	size_t cap = sizeof(p->path) - 32; /* names of subdirectories follow it */
	int n = snprintf(p->path, cap, "%s/%s%s", root, prefix, store_id);

	p->is_private = is_private;
	return n < 0 || (size_t)n >= cap ? -ENAMETOOLONG : 0;
}

/* The i-th place. -ENOENT: there are no more. */
static int place_of(unsigned i, const char *store_id, struct staging_place *p)
{
	char root[512];

	root_of(i, root, sizeof(root));
	bool is_run = !strcmp(root, RUN_DIR);
	return root[0] ? place_in(root, is_run, is_run ? "" : "cairnfs-", store_id, p) : -ENOENT;
}

/* Whether something of ours is at the place: staging, or what is left of it. */
static bool is_there(const struct staging_place *p)
{
	char root[sizeof(p->path)];
	struct stat st, up;

	if (lstat(p->path, &st) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid())
		return false;
	snprintf(root, sizeof(root), "%.*s", (int)(strrchr(p->path, '/') - p->path), p->path);
	/* a directory without a mount is left by a start that failed */
	return !p->is_private || (!stat(root, &up) && up.st_dev != st.st_dev);
}

/* Is dir on a tmpfs that outlives a mount namespace which ends before the machine? */
static bool outlives(const char *dir)
{
	struct statfs fs;
	struct stat st;

	return !statfs(dir, &fs) && fs.f_type == TMPFS_MAGIC &&
	       io_mounts_end() == IO_MOUNTS_NAMESPACE && !stat(dir, &st) &&
	       io_mounts_first_has(st.st_dev);
}

/* root, and a directory that is given: mounts, unless they would end before what it is on, or it
 * has staging without them. */
static bool is_plain(const char *dir, const struct staging_place *p)
{
	char path[sizeof(p->path) + 8];
	struct stat st;

	if (is_there(p))
		return false;
	snprintf(path, sizeof(path), "%s/head", p->path);
	return !lstat(path, &st) || outlives(dir);
}

static int find_given(const char *dir, const char *store_id, struct staging_place *p)
{
	int err = place_in(dir, geteuid() == 0, "", store_id, p);

	if (!err && p->is_private && is_plain(dir, p))
		p->is_private = false;
	return err;
}

/* The place that is given, or the one that has something, or the first. */
static int find_place(const char *dir, const char *store_id, struct staging_place *p)
{
	if (dir)
		return find_given(dir, store_id, p);
	for (unsigned i = 0; !place_of(i, store_id, p); i++)
		if (is_there(p))
			return 0;
	return place_of(0, store_id, p);
}

int staging_place_path(const char *dir, const char *store_id, char *buf, size_t cap)
{
	struct staging_place p;
	int err = find_place(dir, store_id, &p);
	int n = err ? 0 : snprintf(buf, cap, "%s", p.path);
	return err ? err : n < 0 || (size_t)n >= cap ? -ENAMETOOLONG : 0;
}

void staging_place_holder(const char *dir, const char *store_id, char *who, size_t cap)
{
	struct staging_place p;
	char path[sizeof(p.path)];
	ssize_t n = -1;

	if (!find_place(dir, store_id, &p)) {
		snprintf(path, sizeof(path), "%.480s/lock", p.path);
		CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		n = fd < 0 ? -1 : pread(fd, who, cap - 1, 0);
	}
	who[n > 0 ? n : 0] = 0;
}

/* ---- opening it ---- */

/* The directory above must be there, or be ours to make, and a tmpfs unless we mount one. */
static int check_root(const struct staging_place *p)
{
	char root[sizeof(p->path)];
	struct statfs fs;

	snprintf(root, sizeof(root), "%.*s", (int)(strrchr(p->path, '/') - p->path), p->path);
	if (p->is_private)
		return strcmp(root, RUN_DIR) ? 0 : make_dir(RUN_DIR);
	if (statfs(root, &fs))
		return -errno;
	return fs.f_type == TMPFS_MAGIC ? 0 : -ENOTSUP;
}

static void undo_place(struct staging_place *p);

static int open_place(struct staging_place *p, int node, uint64_t limit_bytes)
{
	const char *name = NULL;
	struct stat st;
	bool was = !lstat(p->path, &st); /* then it is not ours to remove */
	int err = check_root(p);
	int root = err ? err : open_root(p->path, &name);

	p->keep_dir = p->is_private && was && !is_there(p);
	if (root >= 0) {
		p->base = open_sub(p, root, name, BASE_BYTES, "never", node);
		err = p->base < 0 ? p->base : take_lock(p);
		close(root);
	} else {
		err = root;
	}
	if (!err) {
		p->huge = open_sub(p, p->base, "huge", limit_bytes, "always", node);
		err = p->huge < 0 ? p->huge : 0;
	}
	if (!err) {
		p->small = open_sub(p, p->base, "small", limit_bytes, "within_size", node);
		err = p->small < 0 ? p->small : 0;
	}
	if (err == -EWOULDBLOCK || (err && was)) /* another cairnfs has it, or others */
		staging_place_close(p);
	else if (err)
		undo_place(p);
	return err;
}

/* The first place that can be made. Returns the first error if none can. */
static int make_place(const char *store_id, int node, uint64_t limit_bytes, struct staging_place *p)
{
	int first = 0, err;

	for (unsigned i = 0; !(err = place_of(i, store_id, p)); i++) {
		err = open_place(p, node, limit_bytes);
		if (!err || err == -EWOULDBLOCK)
			break;
		first = first ? first : err;
	}
	p->instead_of = first;
	return err == -ENOENT && first ? first : err;
}

int staging_place_open(int node, const char *dir, const char *store_id, uint64_t limit_bytes,
		       struct staging_place *out)
{
	struct staging_place p = {
		.base = -1, .huge = -1, .small = -1, .lock = -1, .limit_bytes = limit_bytes};
	int err = find_place(dir, store_id, &p);

	if (!err)
		err = dir || is_there(&p) ? open_place(&p, node, limit_bytes)
					  : make_place(store_id, node, limit_bytes, &p);
	if (!err)
		*out = p;
	return err;
}

/* The size for the tmpfs at fd: slack bytes beyond the budget, or what is used. */
static uint64_t fitting(int fd, uint64_t budget, uint64_t slack, uint64_t most)
{
	struct statvfs v;

	if (!budget || fstatvfs(fd, &v))
		return most;
	uint64_t used = (v.f_blocks - v.f_bfree) * v.f_frsize,
		 bytes = (used > budget ? used : budget) + slack;
	return bytes < most ? bytes : most;
}

/* EINVAL: others write, and it holds more than that by now. */
static int fit(int fd, uint64_t budget, uint64_t most)
{
	char path[32], opts[32];
	int err = -EINVAL;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	for (uint64_t slack = FIT_SLACK, bytes = 0; err == -EINVAL && bytes < most; slack *= 2) {
		bytes = fitting(fd, budget, slack, most);
		snprintf(opts, sizeof(opts), "size=%llu", (unsigned long long)bytes);
		err = mount("cairnfs-staging", path, "tmpfs", MOUNT_FLAGS | MS_REMOUNT, opts)
			      ? -errno
			      : 0;
	}
	return err;
}

int staging_place_fit(const struct staging_place *p, uint64_t budget)
{
	if (!p->is_private)
		return -ENOTSUP;
	int huge = fit(p->huge, budget, p->limit_bytes),
	    small = fit(p->small, budget, p->limit_bytes);
	return huge ? huge : small;
}

uint64_t staging_place_limit(const struct staging_place *p)
{
	struct statfs st;

	if (p->is_private || fstatfs(p->small, &st))
		return 0;
	return (uint64_t)st.f_blocks * (uint64_t)st.f_bsize;
}

enum staging_ends staging_place_ends(const struct staging_place *p)
{
	enum io_mounts_end end = io_mounts_end();
	int of[] = {p->base, p->huge, p->small};
	bool first_has = true;
	struct stat st;

	if (end == IO_MOUNTS_CONTAINER) /* a tmpfs that is not ours may be the machine's */
		return p->is_private ? STAGING_ENDS_WITH_CONTAINER : STAGING_LASTS;
	if (end == IO_MOUNTS_MACHINE)
		return STAGING_LASTS;
	for (unsigned i = 0; i < 3; i++)
		first_has &= !fstat(of[i], &st) && io_mounts_first_has(st.st_dev);
	return first_has ? STAGING_LASTS : STAGING_ENDS_WITH_NAMESPACE;
}

bool staging_place_outlives(const char *dir)
{
	return outlives(dir);
}

bool staging_place_is_first(const struct staging_place *p)
{
	struct staging_place first;
	const char *id = strrchr(p->path, '/') + 1;

	return !place_of(0, strncmp(id, "cairnfs-", 8) ? id : id + 8, &first) &&
	       !strcmp(first.path, p->path);
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

/* True also if nothing is mounted there. It may be in use, and the kernel frees a file with delay:
 * the name is removed now, the memory when it is unused. */
static bool unmounted(const char *path)
{
	return !umount2(path, UMOUNT_NOFOLLOW) || errno == EINVAL || errno == ENOENT ||
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
		if (!p->is_private && rmdir(path) && errno != ENOENT)
			return;
	}
	if (p->is_private && !unmounted(p->path))
		return;
	if (!p->keep_dir)
		rmdir(p->path);
	if (p->is_private)
		rmdir(RUN_DIR); /* succeeds only if no other store is staged there */
}

/* An unreadable directory counts as full. Takes *dir; -1 counts as empty. */
static bool is_empty(int *dir, const char *const *but, unsigned n_but)
{
	if (*dir < 0)
		return true;
	/* not opened anew: there may be no other descriptor */
	CLEANUP_DIR DIR *d = entries_of(*dir);
	*dir = -1;
	bool empty = d != NULL;
	struct dirent *e = NULL;

	while (empty && (e = entries_next(d))) {
		bool known = false;
		for (unsigned i = 0; i < n_but; i++)
			known |= !strcmp(e->d_name, but[i]);
		empty = known;
	}
	return empty && !errno;
}

static const char *const own[] = {"huge", "small", "lock"};

/* Of a start that failed half-way: removes what it made. Without the lock that is a directory and
 * an empty tmpfs at most: both stay if another start uses them. */
static void undo_place(struct staging_place *p)
{
	if (p->lock >= 0) {
		staging_place_give_up(p);
		return;
	}
	bool empty = p->base >= 0 && is_empty(&p->base, NULL, 0);
	staging_place_close(p);
	if (empty && p->is_private)
		umount2(p->path, UMOUNT_NOFOLLOW);
	rmdir(p->path);
	if (p->is_private)
		rmdir(RUN_DIR);
}

bool staging_place_give_up(struct staging_place *p)
{
	int base = -1;
	bool empty = is_empty(&p->small, NULL, 0) && is_empty(&p->huge, NULL, 0);

	if (empty) { /* there is a descriptor for it now */
		base = openat(p->base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		empty = base >= 0 && is_empty(&base, own, 3);
	}
	if (empty)
		staging_place_remove(p);
	else
		staging_place_close(p);
	return empty;
}

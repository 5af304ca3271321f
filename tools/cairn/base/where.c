/* SPDX-License-Identifier: MIT
 *
 * Locates a path: on which cairnfs mount, or in which unmounted store. It uses the
 * mount id of an O_PATH descriptor, not string comparison, so that bind
 * mounts, symlinks on the way and mounts on top of mounts are handled.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/xattr.h>

bool mount_is_cairnfs(const struct io_mount *m)
{
	return !strcmp(m->fstype, "fuse.cairnfs") ||
	       (!strcmp(m->fstype, "fuse") &&
		(!strcmp(m->source, "cairnfs") || !strncmp(m->source, "cairnfs#", 8)));
}

void print_mounts(FILE *f)
{
	struct io_mounts m;

	if (io_mounts_read(IO_MOUNTS_HERE, &m))
		return;
	for (size_t i = 0; i < m.n; i++)
		if (mount_is_cairnfs(&m.v[i])) {
			fputs("  ", f);
			print_name(f, m.v[i].point);
			fputc('\n', f);
		}
	io_mounts_free(&m);
}

/* ---- descriptors ------------------------------------------------------------------ */

int mount_id_of(int fd)
{
	char path[64], line[128];
	int id = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	while (id < 0 && fgets(line, sizeof(line), f))
		if (sscanf(line, "mnt_id: %d", &id) != 1)
			id = -1;
	fclose(f);
	return id < 0 ? -EIO : id;
}

/* An error of what reads /proc: -ENOSYS if that is not there. */
static int proc_error(int err)
{
	return err == -ENOENT && access(IO_MOUNTS_HERE, F_OK) ? -ENOSYS : err;
}

static int path_of(int fd, char **out)
{
	CLEANUP_FREE char *buf = malloc(PATH_MAX + 1);
	char link[64];
	ssize_t n;

	if (!buf)
		return -ENOMEM;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, buf, PATH_MAX);
	if (n < 0)
		return -errno;
	if (n == PATH_MAX)
		return -ENAMETOOLONG;
	buf[n] = '\0';
	*out = buf;
	buf = NULL;
	return 0;
}

/* The part of path below top; NULL if it is not below. */
static const char *below(const char *path, const char *top)
{
	size_t n = strlen(top);

	if (n == 1) /* "/" */
		return path + 1;
	if (strncmp(path, top, n) || (path[n] != '/' && path[n] != '\0'))
		return NULL;
	return path[n] ? path + n + 1 : path + n;
}

/* ---- place ------------------------------------------------------------------------- */

static int on_mount(const struct io_mounts *all, const struct io_mount *m, const char *path,
		    struct location *out)
{
	const char *rel = below(path, m->point), *root = m->root + 1;
	const struct io_mount *whole = NULL;

	if (!rel)
		return -EXDEV;
	for (size_t i = 0; i < all->n; i++) {
		const struct io_mount *o = &all->v[i];

		if (o->dev_major == m->dev_major && o->dev_minor == m->dev_minor &&
		    !strcmp(o->root, "/") && (!whole || o->id == m->id))
			whole = o;
	}
	if (!whole)
		return -EXDEV;
	if (asprintf(&out->below, "%s%s%s", root, *root && *rel ? "/" : "", rel) < 0)
		return -ENOMEM;
	out->top = strdup(whole->point);
	out->source = strdup(whole->source);
	if (!out->top || !out->source)
		return -ENOMEM;
	out->root = open(whole->point, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (out->root < 0)
		return call_error();
	int id = mount_id_of(out->root);
	if (id != whole->id) /* something is mounted on top of it */
		return id < 0 ? id : -EXDEV;
	out->on_mount = true;
	out->mount_id = whole->id;
	out->dev_major = whole->dev_major;
	out->dev_minor = whole->dev_minor;
	return 0;
}

static bool is_store(int dirfd)
{
	struct stat st;

	if (fstatat(dirfd, ".cairn", &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode))
		return false;
	/* .cairn is mode 0700: without access its name is enough */
	return !fstatat(dirfd, ".cairn/id", &st, AT_SYMLINK_NOFOLLOW) || errno == EACCES;
}

static int in_store(const char *path, struct location *out)
{
	CLEANUP_FREE char *top = strdup(path);
	const char *rel;

	if (!top)
		return -ENOMEM;
	for (;;) {
		int fd = open(top, O_PATH | O_DIRECTORY | O_CLOEXEC);
		char *slash = strrchr(top, '/');

		if (fd >= 0 && is_store(fd)) {
			out->root = fd;
			break;
		}
		if (fd >= 0)
			close(fd);
		if (!slash || !slash[1])
			return -ENODEV;
		slash[slash == top ? 1 : 0] = '\0';
	}
	rel = below(path, top);
	out->below = strdup(rel ? rel : "");
	out->top = top;
	top = NULL;
	return out->below ? 0 : -ENOMEM;
}

/* All mounts, read again only when the kernel says that they have changed (poll(2) of mountinfo).
 * *out is valid until the next call. */
static int mounts_now(const struct io_mounts **out)
{
	static struct io_mounts all;
	static int changes = -1;
	struct pollfd p;
	int err;

	if (changes < 0)
		changes = open(IO_MOUNTS_HERE, O_RDONLY | O_CLOEXEC); /* before they are read */
	p = (struct pollfd){.fd = changes, .events = POLLPRI};
	*out = &all;
	if (all.n && changes >= 0 && poll(&p, 1, 0) == 0)
		return 0;
	io_mounts_free(&all);
	all = (struct io_mounts){0};
	err = io_mounts_read(IO_MOUNTS_HERE, &all);
	if (err)
		all = (struct io_mounts){0};
	return err;
}

/* Of a descriptor whose filesystem has just answered. */
static int mount_id_near(int fd)
{
	struct statx x;

	if (!statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &x) &&
	    x.stx_mask & STATX_MNT_ID) /* Linux 5.8 */
		return (int)x.stx_mnt_id;
	return mount_id_of(fd);
}

/* near->root keeps the mount, so its id is no other's. */
static int on_near(const char *abs, const struct location *near, struct location *out)
{
	const char *rel = below(abs, near->top);

	if (!rel)
		return -EXDEV;
	out->below = strdup(rel);
	out->top = strdup(near->top);
	out->source = strdup(near->source);
	if (!out->below || !out->top || !out->source)
		return -ENOMEM;
	out->root = near->root;
	out->on_mount = true;
	out->mount_id = near->mount_id;
	out->dev_major = near->dev_major;
	out->dev_minor = near->dev_minor;
	return 0;
}

static int find(const char *path, const struct location *near, struct location *out)
{
	CLEANUP_FREE char *abs = NULL;
	const struct io_mount *m = NULL;
	const struct io_mounts *all;
	int err, id;

	out->arg = path;
	out->fd = open(path, O_PATH | O_CLOEXEC);
	if (out->fd < 0)
		return call_error();
	id = mount_id_near(out->fd);
	err = id < 0 ? id : path_of(out->fd, &abs);
	if (!err && near->on_mount && id == near->mount_id) {
		err = on_near(abs, near, out);
		if (err != -EXDEV)
			return err;
		err = 0;
	}
	if (!err)
		err = mounts_now(&all);
	if (err)
		return proc_error(err);
	for (size_t i = 0; i < all->n; i++)
		if (all->v[i].id == id && mount_is_cairnfs(&all->v[i]))
			m = &all->v[i];
	return m ? on_mount(all, m, abs, out) : in_store(abs, out);
}

int location_near(const char *path, const struct location *near, struct location *out)
{
	int err;

	*out = LOCATION_NONE;
	err = find(path, near, out);
	if (err)
		location_close(out);
	return err;
}

int location_find(const char *path, struct location *out)
{
	return location_near(path, &LOCATION_NONE, out);
}

void location_close(struct location *p)
{
	if (p->fd >= 0)
		close(p->fd);
	if (p->root >= 0)
		close(p->root);
	free(p->top);
	free(p->source);
	free(p->below);
	*p = LOCATION_NONE;
}

void complain_location(const char *path, int err)
{
	switch (err) {
	case -ENODEV:
		complain("%s: neither on a cairnfs mount nor in a store (a directory that holds "
			 ".cairn/id)",
			 path);
		break;
	case -EXDEV:
		complain("%s: on a cairnfs whose root is not mounted here, or hidden under another "
			 "mount; use the mount point itself",
			 path);
		break;
	case -ENOTCONN:
		complain("%s: the cairnfs mounted here is dead; start it again with the "
			 "same command: nothing staged is lost",
			 path);
		break;
	case -ENOSYS: complain("%s: " NEEDS_PROC, path); break;
	default: complain("%s: %s", path, strerror(-err));
	}
}

int location_code(int err)
{
	return err == -ENOTCONN ? CAIRN_FAILED : CAIRN_USAGE;
}

int location_need(const char *path, bool need_mount, struct location *out)
{
	return location_need_near(path, need_mount, &LOCATION_NONE, out);
}

int location_need_near(const char *path, bool need_mount, const struct location *near,
		       struct location *out)
{
	int err = location_near(path, near, out);

	if (err) {
		complain_location(path, err);
		return location_code(err);
	}
	if (need_mount && !out->on_mount) {
		complain("%s is in the store %s, not on a mount of it; name a path on the mount",
			 path, out->top);
		location_close(out);
		return CAIRN_USAGE;
	}
	return CAIRN_OK;
}

int location_default(char **out)
{
	const struct io_mount *only = NULL;
	struct location here;
	struct io_mounts m;
	int err;

	*out = NULL;
	if (!location_find(".", &here)) {
		if (here.on_mount)
			*out = strdup(here.top);
		location_close(&here);
		if (*out)
			return 0;
	}
	err = io_mounts_read(IO_MOUNTS_HERE, &m);
	if (err)
		return proc_error(err);
	for (size_t i = 0; !err && i < m.n; i++) {
		if (!mount_is_cairnfs(&m.v[i]) || strcmp(m.v[i].root, "/"))
			continue;
		err = only ? -EEXIST : 0;
		only = &m.v[i];
	}
	if (!err && !only)
		err = -ENODEV;
	if (!err) {
		*out = strdup(only->point);
		err = *out ? 0 : -ENOMEM;
	}
	io_mounts_free(&m);
	return err;
}

/* ---- status and xattrs --------------------------------------------------------------- */

int read_small_file(int dirfd, const char *name, size_t max, char **out, size_t *len)
{
	CLEANUP_CLOSE int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	CLEANUP_FREE char *buf = NULL;
	size_t n = 0, cap = 0;
	ssize_t got = 1;

	if (fd < 0)
		return call_error();
	while (got > 0) {
		if (cap - n < 4096) {
			char *more = realloc(buf, cap = cap ? cap * 2 : 16384);

			if (!more)
				return -ENOMEM;
			buf = more;
		}
		got = read(fd, buf + n, cap - n - 1);
		if (got < 0)
			return call_error();
		n += (size_t)got;
		if (n > max)
			return -EFBIG;
	}
	buf[n] = '\0';
	*out = buf;
	*len = n;
	buf = NULL;
	return 0;
}

int location_status(const struct location *p, struct json_doc **out)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;
	int err;

	*out = NULL;
	err = read_small_file(p->root, ".cairn/status.json", STATUS_MAX, &text, &len);
	return err ? err : json_parse(text, len, out);
}

int complain_status(const struct location *p, int err)
{
	if (err == -ENOTCONN)
		complain_location(p->top, err);
	else if (err == -EBADMSG)
		complain("%s/.cairn/status.json is not JSON; do cairn and cairnfs belong to the "
			 "same version?",
			 p->top);
	else
		complain("%s/.cairn/status.json: %s", p->top, strerror(-err));
	return CAIRN_FAILED;
}

/* A daemon of an earlier version does not say how many. */
const char *kept_of(const struct json_doc *d, char buf[REFUSED_KEPT])
{
	int kept = json_at(d, 0, "refused.kept");
	uint64_t count = json_u64(d, json_at(d, 0, "refused.count"));

	return refused_kept(count, kept < 0 ? count : json_u64(d, kept), buf);
}

bool complain_refused(const struct location *p, const struct json_doc *d, bool stays)
{
	char kept[REFUSED_KEPT];
	CLEANUP_FREE char *path = json_bytes(d, json_at(d, 0, "refused.path"));
	CLEANUP_FREE char *why = json_bytes(d, json_at(d, 0, "refused.error"));

	if (json_is_null(d, json_at(d, 0, "refused")))
		return false;
	complain("%s failed: the store refused %s: %s; %s%s%s%s", p->arg, path ? path : "?",
		 why ? why : "?", kept_of(d, kept),
		 stays ? ". When you have handled it: `cairn retry " : "", stays ? p->top : "",
		 stays ? "`" : "");
	return true;
}

/* The length of DIR in "DIR/.metadata: WHAT"; 0: it is the mount's root; -1: the daemon shows it to
 * others only. */
static int held_dir(const char *held)
{
	static const char name[] = ".metadata";
	const size_t len = sizeof(name) - 1;

	for (const char *at = held; (at = strstr(at, name)); at++)
		if ((at == held || at[-1] == '/') && (!at[len] || at[len] == ':'))
			return at == held ? 0 : (int)(at - held) - 1;
	return -1;
}

bool held_of(const char *top, const struct json_doc *d, struct held_text *out)
{
	CLEANUP_FREE char *held = json_bytes(d, json_at(d, 0, "held"));
	char since[32], dir[PATH_MAX + 300];

	if (!held || !*held)
		return false;
	human_time((double)json_u64(d, json_at(d, 0, "holds.since_s")), since);
	int len = held_dir(held);
	if (len < 0) {
		snprintf(out->what, sizeof(out->what),
			 "a checkpoint waits for files of another host, for %s: %s", since, held);
		snprintf(out->remedy, sizeof(out->remedy), "see `cairn hosts %s`", top);
		return true;
	}
	const char *missing = strchr(held + len, ':');
	snprintf(dir, sizeof(dir), "%s%s%.*s", top, len ? "/" : "", len, held);
	snprintf(out->what, sizeof(out->what),
		 "the checkpoint %s waits for files of another host, for %s%s", dir, since,
		 missing ? missing : "");
	snprintf(out->remedy, sizeof(out->remedy),
		 "see `cairn hosts %s`; to publish it without them: `cairn commit --force %s`", top,
		 dir);
	return true;
}

static int ended(ssize_t n, char *buf)
{
	int err = n < 0 ? call_error() : 0;

	buf[n < 0 ? 0 : n] = '\0';
	return err;
}

int xattr_of_fd(int fd, const char *key, char *buf, size_t cap)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd); /* O_PATH has no fgetxattr */
	return ended(getxattr(path, key, buf, cap - 1), buf);
}

int xattr_at(int dirfd, const char *name, const char *key, char *buf, size_t cap)
{
	char path[64 + NAME_MAX + 1];

	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", dirfd, name);
	return ended(lgetxattr(path, key, buf, cap - 1), buf);
}

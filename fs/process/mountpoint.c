/* SPDX-License-Identifier: MIT
 * The mountpoint: what is mounted there, its bare directory's immutable flag; remounts.
 */
#include "fs/process/process.h"
#include "io/mounts/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* From linux/fs.h, which conflicts with sys/mount.h. */
#define FS_IOC_GETFLAGS _IOR('f', 1, long)
#define FS_IOC_SETFLAGS _IOW('f', 2, long)
#define FS_IMMUTABLE_FL 0x10

#define ARGUMENTS_BYTES (64u << 10)

char *mountpoint_resolve(const char *mnt)
{
	char link[64], path[PATH_MAX];
	int fd = open(mnt, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	close(fd);
	if (n < 0)
		return NULL;
	path[n] = 0;
	return strdup(path);
}

int mountpoint_top(const char *path, char *type, size_t cap)
{
	struct io_mounts m;
	int err = io_mounts_read(IO_MOUNTS_HERE, &m);

	if (err)
		return err;
	err = -ENOENT;
	for (size_t i = m.n; i-- > 0 && err;)
		if (!strcmp(m.v[i].point, path)) {
			snprintf(type, cap, "%s", m.v[i].fstype);
			err = 0;
		}
	io_mounts_free(&m);
	return err;
}

/* By device: bind mounts and subdirectories have the same. */
int mountpoint_of(dev_t dev, char *path, size_t cap)
{
	struct io_mounts m;
	int err = io_mounts_read(IO_MOUNTS_HERE, &m);

	if (err)
		return err;
	err = -ENOENT;
	for (size_t i = 0; i < m.n && err == -ENOENT; i++)
		if (!strcmp(m.v[i].fstype, "fuse.cairnfs") &&
		    makedev(m.v[i].dev_major, m.v[i].dev_minor) == dev)
			err = (size_t)snprintf(path, cap, "%s", m.v[i].point) < cap ? 0
										    : -ENAMETOOLONG;
	io_mounts_free(&m);
	return err;
}

int mountpoint_of_store(const char *store, int pid, char *path, size_t cap)
{
	char link[32];
	struct stat here, there;
	struct io_mounts m;

	snprintf(link, sizeof(link), "/proc/%d/ns/mnt", pid);
	if (stat("/proc/self/ns/mnt", &here) || stat(link, &there) || here.st_ino != there.st_ino ||
	    io_mounts_read(IO_MOUNTS_HERE, &m))
		return -ENOENT;
	const char *at = NULL;
	size_t found = 0;
	for (size_t i = 0; i < m.n; i++)
		if (!strcmp(m.v[i].fstype, "fuse.cairnfs") && !strcmp(m.v[i].source, store)) {
			found++;
			at = m.v[i].point;
		}
	int err = found == 1 && (size_t)snprintf(path, cap, "%s", at) < cap ? 0 : -ENOENT;
	io_mounts_free(&m);
	return err;
}

int mountpoint_immutable(int fd, bool on)
{
	int flags;

	if (ioctl(fd, FS_IOC_GETFLAGS, &flags))
		return -errno;
	if (on == !!(flags & FS_IMMUTABLE_FL))
		return 1;
	flags ^= FS_IMMUTABLE_FL;
	return ioctl(fd, FS_IOC_SETFLAGS, &flags) ? -errno : 0;
}

/* Flags that the kernel keeps per mount. */
static const struct flag {
	const char *name;
	unsigned long set, clear;
} flags[] = {
	{"ro", MS_RDONLY, 0},
	{"rw", 0, MS_RDONLY},
	{"noexec", MS_NOEXEC, 0},
	{"exec", 0, MS_NOEXEC},
	{"noatime", MS_NOATIME, MS_RELATIME},
	{"relatime", MS_RELATIME, MS_NOATIME},
	{"nodiratime", MS_NODIRATIME, 0},
	{"diratime", 0, MS_NODIRATIME},
};

/* mount(8) passes all options of the mount and of its fstab line besides the requested ones. */
static bool is_no_change(const char *opt)
{
	static const char *const names[] = {"remount",
					    "nosuid",
					    "nodev",
					    "suid",
					    "dev",
					    "defaults",
					    "default_permissions",
					    "allow_other",
					    "auto",
					    "noauto",
					    "nofail",
					    "_netdev",
					    "user",
					    "users",
					    "nouser"};
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(opt, names[i]))
			return true;
	return !strncmp(opt, "user_id=", 8) || !strncmp(opt, "group_id=", 9) ||
	       !strncmp(opt, "x-", 2);
}

/* The arguments of the keeper of the mount at path, NUL-terminated each, *len bytes. NULL; free
 * it. */
static char *keeper_arguments(const char *path, size_t *len)
{
	char name[PATH_MAX + 32], *text = NULL, *args = malloc(ARGUMENTS_BYTES), *at;
	size_t cap = 0;
	int pid = 0;

	snprintf(name, sizeof(name), "%s/.cairn/status.json", path);
	FILE *f = fopen(name, "re");
	while (f && !pid && getline(&text, &cap, f) > 0)
		if ((at = strstr(text, "\"keeper_pid\":")))
			pid = atoi(at + strlen("\"keeper_pid\":"));
	if (f)
		fclose(f);
	free(text);
	snprintf(name, sizeof(name), "/proc/%d/cmdline", pid);
	f = fopen(name, "re");
	*len = f && args ? fread(args, 1, ARGUMENTS_BYTES, f) : 0;
	if (f)
		fclose(f);
	return args;
}

static bool has_option(const char *args, size_t len, const char *opt)
{
	size_t n = strlen(opt);
	for (const char *a = args; a + n < args + len; a++) {
		bool begins = a == args || !a[-1] || a[-1] == ',' ||
			      (a - args > 1 && a[-2] == '-' && a[-1] == 'o');
		if (begins && !strncmp(a, opt, n) && (!a[n] || a[n] == ','))
			return true;
	}
	return false;
}

static unsigned long flags_of(const char *path)
{
	struct statvfs v;
	if (statvfs(path, &v))
		return 0;
	return (v.f_flag & ST_RDONLY ? MS_RDONLY : 0) | (v.f_flag & ST_NOEXEC ? MS_NOEXEC : 0) |
	       (v.f_flag & ST_NOATIME ? MS_NOATIME : 0) |
	       (v.f_flag & ST_RELATIME ? MS_RELATIME : 0) |
	       (v.f_flag & ST_NODIRATIME ? MS_NODIRATIME : 0);
}

int mountpoint_remount(const char *mnt, char *options)
{
	char type[32], *path = mountpoint_resolve(mnt);
	if (!path || mountpoint_top(path, type, sizeof(type)) || strcmp(type, "fuse.cairnfs")) {
		fprintf(stderr, "cairnfs: remount: no cairnfs is mounted at %s\n", mnt);
		free(path);
		return -EINVAL;
	}
	unsigned long now = flags_of(path);
	size_t len;
	char *args = keeper_arguments(path, &len);
	for (char *save = NULL, *opt = strtok_r(options, ",", &save); opt;
	     opt = strtok_r(NULL, ",", &save)) {
		unsigned i = 0, n = sizeof(flags) / sizeof(flags[0]);
		while (i < n && strcmp(opt, flags[i].name) != 0)
			i++;
		if (i < n)
			now = (now & ~flags[i].clear) | flags[i].set;
		else if (!is_no_change(opt) && !has_option(args, len, opt))
			fprintf(stderr,
				"cairnfs: %s stays as it is: a remount changes ro, rw, exec, "
				"noexec and the like; for others unmount (cairn umount) and start "
				"again\n",
				opt);
	}
	int err = mount("none", path, NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV | now, NULL) ? -errno
											   : 0;
	if (err)
		fprintf(stderr, "cairnfs: remount of %s: %s%s\n", path, strerror(-err),
			err == -EBUSY ? "; files are open for writing" : "");
	free(args);
	free(path);
	return err;
}

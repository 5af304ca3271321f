/* SPDX-License-Identifier: MIT
 *
 * cairn hosts adopt, discard: by a person's word, what a host that is gone left in the store. It is
 * never done automatically: the host may come back, and publish it.
 */
#include "tools/cairn/base/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

#include "hosts.h"

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

bool hosts_is_hidden(const struct io_host *h, bool local)
{
	return !local && !strcmp(h->client, IO_CLIENT_LOCAL);
}

const char *hosts_why_not(const struct io_host *h, int64_t now, bool local)
{
	if (h->locked)
		return "it is served by a process of this machine";
	switch (h->said) {
	case IO_HOST_SAID_NOTHING:
		return "its cairnfs never said whether it is alive; mount the store there with "
		       "this version and unmount it";
	case IO_HOST_ALIVE:
		if (hosts_is_hidden(h, local))
			return "it reaches the store on a disk of its machine, and only that one "
			       "knows whether it lives; run this there";
		return now - h->heard < IO_HOST_SILENT_S
			       ? "it was alive within the last minute; wait, or unmount it there"
			       : NULL;
	case IO_HOST_ENDED: break;
	}
	return NULL;
}

/* Keeps a cairnfs from starting as this host meanwhile. */
static int take_lock(int host)
{
	CLEANUP_CLOSE int fd = openat(host, "lock", O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	int kept = fd;

	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB))
		return -errno;
	fd = -1;
	return kept;
}

/* The drain stores the checksum when all bytes are in the file. */
static int adopt_one(int tmp, const char *name, int to, const char *host)
{
	char as[96], sum[64], size[32];
	struct stat st;

	snprintf(as, sizeof(as), "%s.%s", host, name);
	if (fstatat(tmp, name, &st, AT_SYMLINK_NOFOLLOW))
		return -errno;
	bool whole = !xattr_at(tmp, name, KEY_CHECKSUM, sum, sizeof(sum));
	int err = name_new(tmp, name, to, as);
	if (!err)
		printf("lost+found/%s  %s, %s\n", as, human_bytes((uint64_t)st.st_size, size),
		       whole ? "whole" : "bytes may be missing");
	return err;
}

static int discard_one(int tmp, const char *name, const char *host)
{
	if (unlinkat(tmp, name, 0))
		return -errno;
	printf("%s: %s removed\n", host, name);
	return 0;
}

static int all_files(int tmp, int to, const struct names *files, const char *host)
{
	uint64_t id;
	int err = 0;

	for (size_t i = 0; !err && i < files->n; i++)
		if (io_tmp_id(files->v[i], &id))
			err = to >= 0 ? adopt_one(tmp, files->v[i], to, host)
				      : discard_one(tmp, files->v[i], host);
	return err;
}

int hosts_end_for(int cairn, const struct io_host *h, bool adopt)
{
	CLEANUP_CLOSE int host = openat(cairn, h->name, DIR_FLAGS);
	CLEANUP_CLOSE int lock = host < 0 ? -errno : take_lock(host);
	CLEANUP_CLOSE int tmp = host < 0 ? -1 : openat(host, "tmp", DIR_FLAGS);
	CLEANUP_CLOSE int to = adopt ? openat(cairn, "lost+found", DIR_FLAGS) : -1;
	struct names files;
	int err;

	if (lock < 0)
		return lock;
	if (tmp < 0 || (adopt && to < 0))
		return -errno;
	err = names_read(tmp, &files);
	if (err)
		return err;
	err = all_files(tmp, to, &files, h->name);
	names_free(&files);
	if ((adopt && fsync(to)) || fsync(tmp))
		err = err ? err : -errno;
	/* blocks that it held ready for changes that nobody can publish any more */
	if (!err && unlinkat(host, "reserve", 0) && errno != ENOENT)
		err = -errno;
	/* the others tell of it no more */
	if (!err && renameat(host, "alive", host, "ended") && errno != ENOENT)
		err = -errno;
	return err;
}

/* SPDX-License-Identifier: MIT
 *
 * A store whose filesystem disappears, and comes back at its path: the client of a network
 * filesystem died, or a local filesystem shut down and was mounted again.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/vfs.h>

#include "inside.h"
#include "io/entries.h"
#include "io/scope.h"

/* Errors of a filesystem that is gone, or cannot write any more. */
static bool says_gone(int err)
{
	switch (err) {
	case ENOTCONN:
	case ECONNABORTED:
	case ECONNREFUSED:
	case ESHUTDOWN:
	case EHOSTDOWN:
	case ESTALE:
	case EIO:
	case EROFS:
	case ENODEV:
	case ENXIO:
	case EREMOTEIO:
	case ETIMEDOUT:
	case EUCLEAN:
	case EBADF: return true;
	default: return false;
	}
}

static int gone(void)
{
	return says_gone(errno) ? -errno : 0;
}

/* A listing reads from the filesystem each time, unlike a stat. */
static int reads(int dirfd)
{
	CLEANUP_DIR DIR *d = entries_at(dirfd, ".");

	return d && (entries_next(d) || !errno) ? 0 : gone();
}

static int write_one(int tmp, const char *name)
{
	CLEANUP_CLOSE int fd =
		openat(tmp, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

	if (fd < 0 || write(fd, "?", 1) != 1 || fsync(fd))
		return gone();
	return 0;
}

/* Uses a name that io_store_drop_scratch removes if we are killed before we do. */
static int writes(int tmp)
{
	unsigned long long serial;
	char name[17];
	int err;

	if (getrandom(&serial, sizeof(serial), 0) != sizeof(serial))
		return 0;
	snprintf(name, sizeof(name), "l%015llx", serial >> 4);
	err = write_one(tmp, name);
	if (unlinkat(tmp, name, 0) && !err && errno != ENOENT)
		err = gone();
	return err;
}

/* tmp -1: the store is read only. */
static int usable(int root_rd, int tmp)
{
	struct statfs st;
	int err = fstatfs(root_rd, &st) ? gone() : 0;

	if (!err)
		err = reads(tmp < 0 ? root_rd : tmp);
	return err || tmp < 0 ? err : writes(tmp);
}

int io_store_probe(struct io_store *s)
{
	return s->away ? -ENOTCONN : usable(s->root_rd, s->tmp);
}

/* Would the claim be refused? Only the question for a heartbeat (claim.c) is left there. */
static int may_claim(int cairn, int host, struct io_host *by)
{
	struct io_store there = {.cairn = cairn, .host = host};
	struct io_claim c;
	int err = io_claim_look(&there, &c);

	if (by)
		*by = c.of;
	if (err || !c.alive[0] || io_host_is_us(&c.of))
		return err;
	CLEANUP_CLOSE int lock =
		io_open_beneath(host, "lock", O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
	return lock >= 0 && flock(lock, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK ? -EADDRINUSE
										   : 0;
}

/* Creates nothing before the id is found: the path may be the bare mountpoint of the store's
 * filesystem. */
int io_store_is_back(const struct io_store *s, struct io_host *by)
{
	const int dir = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
	CLEANUP_CLOSE int root = open(s->path, dir), cairn = -1, host = -1, tmp = -1;
	char id[IO_ID_LEN + 1];
	int err;

	if (root < 0)
		return -errno;
	cairn = io_open_beneath(root, ".cairn", dir, 0);
	if (cairn < 0 && s->ro && !s->id[0])
		return usable(root, -1);
	if (cairn < 0)
		return cairn;
	err = io_store_read_id(cairn, id);
	if (err)
		return err;
	if (strcmp(id, s->id))
		return -EXDEV;
	if (s->ro)
		return usable(root, -1);
	host = io_open_beneath(cairn, s->host_name, dir, 0);
	tmp = host < 0 ? host : io_open_beneath(host, "tmp", dir, 0);
	err = tmp < 0 ? tmp : usable(root, tmp);
	return err ? err : may_claim(cairn, host, by);
}

/* SPDX-License-Identifier: MIT
 *
 * The hosts of a store: each says in STORE/.cairn/<host>/alive, its claim (claim.c), who it is, and
 * sets the file's times again as long as it lives; after a clean end the file is called "ended".
 * Times are the store's, since the clocks of hosts differ.
 * None of this goes through the engine: it is no part of the order.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>

#include "inside.h"
#include "io/entries.h"
#include "io/scope.h"

const char *io_store_host(const struct io_store *s)
{
	return s->host_name;
}

unsigned io_store_host_number(const struct io_store *s)
{
	return s->host_number;
}

int io_store_cairn(const struct io_store *s)
{
	return s->cairn;
}

/* The claim that is there is not ours. -EADDRINUSE: another's; -ENOENT: we have made none, for want
 * of space, and it is a dead one's still, or io_claim_look() will tell. */
static int not_own(const struct io_store *s)
{
	return s->claim.ino ? -EADDRINUSE : -ENOENT;
}

/* -ENOENT: this host has no claim. */
static int open_own(struct io_store *s)
{
	CLEANUP_CLOSE int fd =
		io_open_beneath(s->host, "alive", O_RDWR | O_NONBLOCK | O_CLOEXEC, 0);
	struct io_host h = {.said = IO_HOST_SAID_NOTHING};

	if (fd < 0)
		return fd;
	int err = io_said_read(s->host, "alive", &h);
	if (err)
		return err;
	return io_host_is_us(&h) ? scope_keep(&fd) : not_own(s);
}

/* This host has no claim. -EADDRINUSE: one that took it has ended, too; 0: not so; -errno. */
static int was_taken(struct io_store *s)
{
	struct io_host ended = {.said = IO_HOST_SAID_NOTHING};
	int err = s->claim.ino ? io_said_read(s->host, "ended", &ended) : 0;

	if (err == -ENOENT || (!err && s->claim.ino && !io_host_is_us(&ended)))
		return -EADDRINUSE;
	return err;
}

int io_host_say(struct io_store *s, const struct io_host *h)
{
	CLEANUP_CLOSE int fd = s->host < 0 ? -EROFS : open_own(s);
	struct io_claim c;

	if (fd == -ENOENT) {
		fd = was_taken(s);
		if (!fd)
			fd = io_claim_look(s, &c);
		if (!fd)
			fd = io_claim_take(s, &c);
		if (!fd)
			fd = open_own(s);
	}
	int err = fd < 0 ? fd : io_said_write(fd, h);
	if (err)
		return err;
	if (h->said == IO_HOST_ENDED)
		return renameat(s->host, "alive", s->host, "ended") ? -errno : 0;
	unlinkat(s->host, "ended", 0);
	return 0;
}

static int written_at(int fd, int64_t *now)
{
	struct stat st;

	errno = 0;
	if (write(fd, "?", 1) != 1 || fstat(fd, &st))
		return errno ? -errno : -ENOSPC;
	*now = st.st_mtim.tv_sec;
	return 0;
}

int io_hosts_clock(int cairn, int64_t *now)
{
	CLEANUP_CLOSE int fd = openat(cairn, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char name[32];
	uint64_t any;

	if (fd >= 0)
		return written_at(fd, now);
	/* No O_TMPFILE there. No host's name begins so, and other hosts have the same pids. Not
	 * without a name: a FUSE filesystem may know it by that. */
	if (getrandom(&any, sizeof(any), 0) != sizeof(any))
		return -EIO;
	snprintf(name, sizeof(name), ".clock-%016llx", (unsigned long long)any);
	fd = openat(cairn, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	int err = written_at(fd, now);
	unlinkat(cairn, name, 0);
	return err;
}

int io_host_beat(struct io_store *s, int64_t *now)
{
	struct io_host h = {.said = IO_HOST_SAID_NOTHING};
	struct stat st;

	if (s->host < 0)
		return -EROFS;
	if ((now && utimensat(s->host, "alive", NULL, AT_SYMLINK_NOFOLLOW)) ||
	    fstatat(s->host, "alive", &st, AT_SYMLINK_NOFOLLOW)) {
		int err = errno == ENOENT ? was_taken(s) : -errno;
		return err ? err : -ENOENT;
	}
	if (now)
		*now = st.st_mtim.tv_sec;
	if (st.st_ino == s->claim.ino)
		return 0;
	int err = io_said_read(s->host, "alive", &h);
	return err || io_host_is_us(&h) ? err : not_own(s);
}

/* Whether a process has the lock, as far as this machine's kernel knows. */
static bool is_locked(int dir)
{
	CLEANUP_CLOSE int fd = io_open_beneath(dir, "lock", O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);

	return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
}

/* False: that is no host's directory. */
static bool host_read(int cairn, const char *name, struct io_host *h)
{
	CLEANUP_CLOSE int dir = io_open_beneath(cairn, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	struct stat st;

	if (dir < 0 || fstatat(dir, "lock", &st, AT_SYMLINK_NOFOLLOW))
		return false;
	if (!fstatat(dir, "alive", &st, AT_SYMLINK_NOFOLLOW))
		h->said = IO_HOST_ALIVE;
	else if (!fstatat(dir, "ended", &st, AT_SYMLINK_NOFOLLOW))
		h->said = IO_HOST_ENDED;
	if (h->said) {
		h->heard = st.st_mtim.tv_sec;
		io_said_read(dir, h->said == IO_HOST_ALIVE ? "alive" : "ended", h);
	}
	h->locked = is_locked(dir);
	io_host_number(cairn, name, false, &h->number);
	return true;
}

/* One call of the store, since every host asks this about every other. */
static bool host_heard(int cairn, const char *name, struct io_host *h)
{
	char path[sizeof(h->name) + sizeof("/alive")];
	struct stat st;

	snprintf(path, sizeof(path), "%s/alive", name);
	if (fstatat(cairn, path, &st, AT_SYMLINK_NOFOLLOW))
		return false;
	h->said = IO_HOST_ALIVE;
	h->heard = st.st_mtim.tv_sec;
	return true;
}

int io_hosts_each(int cairn, bool all, void (*found)(void *ctx, const struct io_host *h), void *ctx)
{
	CLEANUP_DIR DIR *d = entries_at(cairn, ".");
	struct dirent *e;

	while ((e = entries_next(d))) {
		struct io_host h = {.said = IO_HOST_SAID_NOTHING};

		if (e->d_name[0] == '.' || io_cairn_name_is_taken(e->d_name) ||
		    strlen(e->d_name) >= sizeof(h.name))
			continue;
		strcpy(h.name, e->d_name);
		if (all ? host_read(cairn, h.name, &h) : host_heard(cairn, h.name, &h))
			found(ctx, &h);
	}
	return -errno;
}

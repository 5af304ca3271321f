/* SPDX-License-Identifier: MIT
 *
 * The hosts of a store: each says in STORE/.cairn/<host>/alive who it is, and sets the file's times
 * again as long as it lives; after a clean end the file is called "ended". Times are the store's,
 * since the clocks of hosts differ.
 * None of this goes through the engine: it is no part of the order.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

#include "inside.h"
#include "io/entries.h"
#include "io/scope.h"

#define SAYS_MAX 512

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

static int say(struct io_store *s, const char *scratch, const struct io_host *h)
{
	CLEANUP_CLOSE int fd =
		openat(s->tmp, scratch, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	char text[SAYS_MAX];
	int n = snprintf(text, sizeof(text), "boot %s\npid %d\nsince %lld\nversion %s\nleft %llu\n",
			 h->boot, h->pid, (long long)h->since, h->version,
			 (unsigned long long)h->left);

	struct stat st;
	if (fd < 0 || fstat(fd, &st))
		return -errno;
	s->said_ino = st.st_ino;
	errno = 0;
	return write(fd, text, (size_t)n) == n ? 0 : errno ? -errno : -ENOSPC;
}

int io_host_say(struct io_store *s, const struct io_host *h)
{
	bool ended = h->said == IO_HOST_ENDED;
	char scratch[17];
	int err;

	if (s->host < 0)
		return -EROFS;
	io_scratch_name(s, scratch);
	err = say(s, scratch, h);
	if (!err && renameat(s->tmp, scratch, s->host, ended ? "ended" : "alive"))
		err = -errno;
	unlinkat(err ? s->tmp : s->host, err ? scratch : ended ? "alive" : "ended", 0);
	return err;
}

int io_hosts_clock(int cairn, int64_t *now)
{
	CLEANUP_CLOSE int fd = openat(cairn, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char name[32];
	struct stat st;

	if (fd < 0) { /* no O_TMPFILE there; no host's name begins so */
		snprintf(name, sizeof(name), ".clock-%d", (int)getpid());
		fd = openat(cairn, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (fd < 0)
			return -errno;
		unlinkat(cairn, name, 0);
	}
	errno = 0;
	if (write(fd, "?", 1) != 1 || fstat(fd, &st))
		return errno ? -errno : -ENOSPC;
	*now = st.st_mtim.tv_sec;
	return 0;
}

/* A key that this version does not know is passed over, and so is a value that is too long. */
static void take_line(struct io_host *h, const char *line)
{
	long long since;
	unsigned long long left;

	sscanf(line, "boot %36[0-9a-f-]", h->boot);
	sscanf(line, "pid %d", &h->pid);
	sscanf(line, "version %31[!-~]", h->version);
	if (sscanf(line, "since %lld", &since) == 1)
		h->since = since;
	if (sscanf(line, "left %llu", &left) == 1)
		h->left = left;
}

static void read_said(int dir, const char *file, struct io_host *h)
{
	CLEANUP_CLOSE int fd = io_open_beneath(dir, file, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
	char text[SAYS_MAX + 1];
	ssize_t n = fd < 0 ? -1 : read(fd, text, SAYS_MAX);

	text[n < 0 ? 0 : n] = 0;
	for (char *save = NULL, *p = strtok_r(text, "\n", &save); p;
	     p = strtok_r(NULL, "\n", &save))
		take_line(h, p);
}

/* Of a machine that is not this one: each start of a kernel has an id. */
static bool is_other_boot(const struct io_host *h)
{
	CLEANUP_CLOSE int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	char ours[37] = "";

	return fd >= 0 && read(fd, ours, 36) == 36 && h->boot[0] && strcmp(h->boot, ours);
}

/* Did another machine say as this host that it is alive? Then *h has when. */
static bool is_elsewhere(struct io_store *s, struct io_host *h)
{
	struct stat st;

	*h = (struct io_host){.said = IO_HOST_SAID_NOTHING};
	if (fstatat(s->host, "alive", &st, AT_SYMLINK_NOFOLLOW))
		return false;
	h->heard = st.st_mtim.tv_sec;
	read_said(s->host, "alive", h);
	return is_other_boot(h);
}

int io_host_elsewhere(struct io_store *s)
{
	struct io_host h;
	int64_t now;

	if (s->fs.frees_at_close || !is_elsewhere(s, &h) || io_hosts_clock(s->cairn, &now))
		return 0;
	int64_t ago = now - h.heard; /* it may lie ahead: by a clock that was wrong */
	return ago > -IO_HOST_LIVE_S && ago < IO_HOST_LIVE_S ? -EADDRINUSE : 0;
}

int io_host_beat(struct io_store *s, int64_t *now)
{
	struct io_host h;
	struct stat st;

	if (s->host < 0)
		return -EROFS;
	if (utimensat(s->host, "alive", NULL, AT_SYMLINK_NOFOLLOW) ||
	    fstatat(s->host, "alive", &st, AT_SYMLINK_NOFOLLOW))
		return -errno;
	*now = st.st_mtim.tv_sec;
	return st.st_ino != s->said_ino && is_elsewhere(s, &h) ? -EADDRINUSE : 0;
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
		read_said(dir, h->said == IO_HOST_ALIVE ? "alive" : "ended", h);
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

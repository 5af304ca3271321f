/* SPDX-License-Identifier: MIT
 *
 * Nobody else may serve a store that is changed beside its mounts: their order would miss names.
 * The locks tell of those that reach it as we do, the claims (io/store/claim.c) of all others.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "io/store/store.h"

struct hold {
	const char *path;
	int cairn;
	int64_t now; /* by the store's clock */
	int err;
	struct io_host by; /* with -EBUSY */
};

/* It is kept until this process ends. */
static int take_lock(int cairn, const char *host)
{
	char name[300];

	snprintf(name, sizeof(name), "%.255s/lock", host);
	CLEANUP_CLOSE int fd = openat(cairn, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		return -EBUSY;
	fd = -1;
	return 0;
}

/* As far as its claim tells. One on a disk of its machine need not say that it lives. */
static bool may_live(const struct hold *h, const struct io_host *host)
{
	return host->said == IO_HOST_ALIVE && !io_host_shares_locks(h->cairn, host) &&
	       (!strcmp(host->client, IO_CLIENT_LOCAL) || h->now - host->heard < IO_HOST_SILENT_S);
}

static void hold_one(void *ctx, const struct io_host *host)
{
	struct hold *h = ctx;

	if (h->err)
		return;
	h->err = take_lock(h->cairn, host->name);
	if (!h->err && may_live(h, host))
		h->err = -EBUSY;
	if (h->err)
		h->by = *host;
}

static void complain_busy(const struct hold *h, const char *remedy)
{
	const char *on = h->by.machine[0] ? ", on " : "";
	bool silent = h->now - h->by.heard >= IO_HOST_SILENT_S;

	complain("%s: a cairnfs serves this store: %s (host %s%s%s%s)", h->path, remedy, h->by.name,
		 on, h->by.machine,
		 !may_live(h, &h->by) ? ""
		 : silent	      ? "; if it was killed, run this on that machine"
				      : "; if it was killed, wait a minute");
}

int location_hold(const char *path, const struct location *p, const char *remedy)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	CLEANUP_CLOSE int cairn = openat(p->root, ".cairn", flags);
	struct hold h = {.path = path, .cairn = cairn};

	if (cairn < 0 && errno == ENOENT)
		return CAIRN_OK;
	h.err = cairn < 0 ? -errno : 0;
	if (!h.err && io_hosts_clock(cairn, &h.now))
		h.now = time(NULL);
	int err = h.err ? 0 : io_hosts_each(cairn, true, hold_one, &h);
	if (h.err == -EBUSY)
		complain_busy(&h, remedy);
	else if (err || h.err)
		complain("%s: whether a cairnfs serves this store cannot be told: .cairn/%s: %s",
			 path, h.by.name, strerror(h.err ? -h.err : -err));
	return err || h.err ? CAIRN_FAILED : CAIRN_OK;
}

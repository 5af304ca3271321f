/* SPDX-License-Identifier: MIT
 * Durability: on a cairnfs by its state, elsewhere by a sync. And a file's device attribute. */
#include "priv.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <time.h>

#define FUSE_MAGIC 0x65735546
#define CALL_MAX_MS 30000 /* the next worker measures the time of a call anew */
#define POLL_MIN_MS 1
#define POLL_MAX_MS 50

/* What a filesystem that is no cairnfs says, or one without that attribute. Any other error tells
 * nothing of the file: taken for this, what is only staged would count as synced. */
static bool has_no_such(int err)
{
	return err == ENODATA || err == EOPNOTSUPP || err == ENOSYS || err == EINVAL ||
	       err == EPERM || err == ERANGE;
}

/* -ENODATA: path is not on a cairnfs. */
static int mount_value(const char *path, const char *key, char *buf, size_t size)
{
	struct statfs fs;
	ssize_t n;

	if (statfs(path, &fs))
		return -errno;
	if ((unsigned long)fs.f_type != FUSE_MAGIC)
		return -ENODATA;
	n = getxattr(path, key, buf, size - 1);
	if (n < 0)
		return has_no_such(errno) ? -ENODATA : -errno;
	buf[n] = '\0';
	return 0;
}

int mount_state(const char *path, char *buf, size_t size)
{
	return mount_value(path, KEY_STATE, buf, size);
}

int64_t now_ms(void)
{
	return (int64_t)(monotonic_ns() / 1000000);
}

static int wait_failed(const char *path)
{
	char why[256];
	ssize_t n = getxattr(path, KEY_ERROR, why, sizeof(why) - 1);

	why[n > 0 ? n : 0] = '\0';
	return fail(-EIO,
		    "%s is not durable: %s; cairnfs keeps trying, see `cairn status` for what it "
		    "waits for",
		    path, *why ? why : "it failed");
}

/* ---- elsewhere ---- */

static int sync_parent(const char *path)
{
	CLEANUP_FREE char *real = realpath(path, NULL);
	CLEANUP_CLOSE int fd = -1;

	if (!real)
		return -errno;
	fd = open(dirname(real), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 || fsync(fd) ? -errno : 0;
}

static int sync_path(const char *path)
{
	CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return -errno;
	if (S_ISDIR(st.st_mode))
		return syncfs(fd) ? -errno : 0;
	return fsync(fd) ? -errno : sync_parent(path);
}

/* The state once it has become durable or failed, or after left_ms (negative: ever). 0; -errno,
 * -ENODATA also where the daemon has no such call, or takes no more of them. */
static int await_state(const char *path, int64_t left_ms, char *buf, size_t size)
{
	char key[64] = KEY_WAIT;

	if (left_ms >= 0)
		snprintf(key, sizeof(key), KEY_WAIT ".%lld",
			 (long long)(left_ms < CALL_MAX_MS ? left_ms : CALL_MAX_MS));
	int err = mount_value(path, key, buf, size);

	return err == -EAGAIN || err == -ENOMEM ? -ENODATA : err;
}

int cairn_wait(const char *path, int timeout_ms)
{
	int64_t end = now_ms() + timeout_ms, nap = POLL_MIN_MS;
	bool polls = false;
	char state[64];
	int err;

	if (!path)
		return fail(-EINVAL, "no path");
	for (;;) {
		int64_t left = timeout_ms < 0 ? -1 : end - now_ms();

		left = timeout_ms < 0 || left > 0 ? left : 0;
		err = polls ? -ENODATA : await_state(path, left, state, sizeof(state));
		if (err == -EINTR) /* a signal does not end it */
			continue;
		/* it may become durable still. The state says whether it failed */
		bool stuck = !err && (!strcmp(state, "halted") || !strcmp(state, "held"));
		if (err == -ENODATA || stuck) {
			polls |= err == -ENODATA;
			err = mount_state(path, state, sizeof(state));
			if (!err && strcmp(state, "durable") && strcmp(state, "failed") && left)
				sleep_ms((uint64_t)(left < 0 || nap < left ? nap : left));
			nap = nap * 2 < POLL_MAX_MS ? nap * 2 : POLL_MAX_MS;
		}
		if (err || !strcmp(state, "durable"))
			break;
		if (!strcmp(state, "failed"))
			return wait_failed(path);
		if (!left)
			return fail(-ETIMEDOUT, "%s is %s after %d ms", path, state, timeout_ms);
	}
	if (err == -ENODATA)
		err = sync_path(path);
	return err ? fail_on(err, "wait for", path) : 0;
}

int cairn_device(const char *path, char *buf, size_t size)
{
	char text[256];
	ssize_t n;

	if (!path || (!buf && size))
		return fail(-EINVAL, "no path, or no buffer");
	n = getxattr(path, KEY_DEVICE, text, sizeof(text) - 1);
	if (n < 0 && (errno == ENODATA || errno == EOPNOTSUPP))
		return fail(-ENODATA, "%s: no device is recorded", path);
	if (n < 0)
		return fail_on(-errno, "read the device of", path);
	if ((size_t)n >= size)
		return fail(-ERANGE, "%s: the device has %zd bytes", path, n);
	memcpy(buf, text, n);
	buf[n] = '\0';
	return (int)n;
}

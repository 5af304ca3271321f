/* SPDX-License-Identifier: MIT
 *
 * One file of `cairn verify`: are the bytes on the store's disk those that were persisted?
 */
#include "verify.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define LOOKS 5 /* tries for a file with changes around it */
#define BETWEEN_LOOKS_S 0.2

static void on_bytes(void *ctx, uint64_t n)
{
	struct verify *v = ctx;

	v->bytes += n;
	progress_done(&v->bar, v->bytes, v->bar.done + v->bar.left, "reading");
}

enum finding unreadable(struct file *f, const char *what, int err)
{
	snprintf(f->why, sizeof(f->why), "%s: %s", what, strerror(-err));
	return IS_UNREADABLE;
}

/* The store file's own checksum; IS_UNVERIFIABLE if it has none. */
static enum finding store_checksum(struct verify *v, int fd, struct file *f,
				   char out[CAIRN_SUM_LEN])
{
	int err = xattr_of_fd(fd, KEY_CHECKSUM, out, CAIRN_SUM_LEN);

	if (err == -EOPNOTSUPP)
		err = v->side ? 0 : sidecar_open(v->store, &v->side);
	if (!err && v->side)
		err = sidecar_sum(v->side, f->peer, f->name, out);
	if (!err && !strncmp(out, "xxh3:", 5))
		return IS_OK;
	if (err && err != -ENODATA && err != -ERANGE)
		return unreadable(f, "its checksum", err);
	snprintf(f->why, sizeof(f->why),
		 err == -ENODATA ? "no checksum" : "a checksum of an unknown kind");
	return IS_UNVERIFIABLE;
}

/* Reads the store file and compares it with f->want, or if that is "" with its own. */
static enum finding read_and_compare(struct verify *v, struct file *f)
{
	CLEANUP_CLOSE int fd =
		openat(f->peer, f->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	char own[CAIRN_SUM_LEN];
	bool cached = false;
	enum finding r;
	int err;

	if (fd < 0)
		return errno == ENOENT ? (snprintf(f->why, sizeof(f->why), "missing in the store"),
					  IS_MISMATCH)
				       : unreadable(f, "open", -errno);
	r = store_checksum(v, fd, f, own);
	if (r != IS_OK && (r != IS_UNVERIFIABLE || !*f->want))
		return r;
	if (r == IS_OK && *f->want && strcmp(f->want, own)) {
		snprintf(f->why, sizeof(f->why), "the store has another version: %s", own);
		return IS_MISMATCH;
	}
	if (!*f->want)
		memcpy(f->want, own, sizeof(own));
	f->sure = r == IS_OK; /* the opened file has the checksum of this version */
	err = sum_of_disk(v->disk, fd, f->got, &cached, on_bytes, v);
	if (err)
		return unreadable(f, "read", err);
	v->cached += cached;
	if (!strcmp(f->want, f->got))
		return IS_OK;
	snprintf(f->why, sizeof(f->why), "expected %s, read %s", f->want, f->got);
	return IS_MISMATCH;
}

/* What the mount reports about the file now; IS_OK if it can be compared. */
static enum finding ask_mount(struct file *f)
{
	int err = xattr_at(f->dirfd, f->name, KEY_STATE, f->state, sizeof(f->state));

	if (err == -ENOENT)
		return IS_GONE;
	if (err)
		return unreadable(f, "its state", err);
	if (strcmp(f->state, "durable")) {
		snprintf(f->why, sizeof(f->why), "%s", f->state);
		return IS_NOT_DURABLE;
	}
	err = xattr_at(f->dirfd, f->name, KEY_CHECKSUM, f->want, sizeof(f->want));
	if (!err && !strncmp(f->want, "xxh3:", 5))
		return IS_OK;
	snprintf(f->why, sizeof(f->why), "no checksum");
	return IS_UNVERIFIABLE;
}

static enum finding look(struct verify *v, struct file *f)
{
	enum finding r = IS_OK;

	f->want[0] = f->got[0] = f->why[0] = '\0';
	f->sure = false;
	if (v->p->on_mount)
		r = ask_mount(f);
	if (r != IS_OK)
		return r;
	if (f->peer < 0) {
		snprintf(f->why, sizeof(f->why), "its directory is missing in the store");
		return IS_MISMATCH;
	}
	return read_and_compare(v, f);
}

int open_parent(int dirfd, const char *path, const char **name)
{
	int fd = openat(dirfd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);

	*name = path;
	for (const char *slash; fd >= 0 && (slash = strchr(*name, '/')); *name = slash + 1) {
		CLEANUP_CLOSE int up = fd;
		CLEANUP_FREE char *one = strndup(*name, (size_t)(slash - *name));

		fd = one ? openat(up, one, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
	}
	return fd < 0 ? -errno : fd;
}

/* look(), by the present names in mount and store. */
static enum finding look_afresh(struct verify *v, const struct file *old, struct file *f)
{
	CLEANUP_CLOSE int dir = -1, peer = -1;

	*f = *old;
	dir = open_parent(v->p->root, f->below, &f->name);
	if (dir == -ENOENT || dir == -ENOTDIR)
		return IS_GONE;
	if (dir < 0)
		return unreadable(f, "its directory", dir);
	peer = open_parent(v->store, f->below, &f->name);
	f->dirfd = dir;
	f->peer = peer;
	return look(v, f);
}

/* True if nothing is pending; *seq is the number of the last change. */
static bool settled(const struct verify *v, uint64_t *seq)
{
	CLEANUP_JSON struct json_doc *d = NULL;

	*seq = 0;
	if (location_status(v->p, &d))
		return true;
	*seq = json_u64(d, json_at(d, 0, "log.last_seq"));
	return !json_u64(d, json_at(d, 0, "log.pending"));
}

/* A file that is being replaced or moved may differ between mount and store for a
 * moment: such a mismatch counts only if nothing changed during the check. A file
 * whose bytes differ from its own checksum is a mismatch at once. */
enum finding judge(struct verify *v, struct file *f)
{
	enum finding r = look(v, f);
	struct file old = *f;

	for (int i = 1; r == IS_MISMATCH && !f->sure && v->p->on_mount && i < LOOKS; i++) {
		uint64_t before, after;
		bool still = settled(v, &before);

		sleep_s(still ? 0 : BETWEEN_LOOKS_S);
		r = look_afresh(v, &old, f);
		if (settled(v, &after) && still && before == after)
			return r;
	}
	if (r == IS_MISMATCH && !f->sure && v->p->on_mount) {
		snprintf(f->why, sizeof(f->why), "changes around it are not in the store yet");
		r = IS_NOT_DURABLE;
	}
	return r;
}

/* SPDX-License-Identifier: MIT
 *
 * A sidecar file: magic, XXH3-64 of the rest, birth time of the inode, then
 * records {u16 key length, u32 value length, key, value}; little-endian. A file that does
 * not parse counts as absent: it is untrusted.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include <xxhash.h>

#include "inside.h"
#include "io/keys.h"
#include "io/scope.h"
#include "sidecar.h"

#define SIDE_MAX (64u << 10)
#define HEAD 28u /* magic 8, hash 8, birth 12 */
#define RECORD 6u

static const char magic[8] = "CAIRNMD1";

struct side {
	struct io_sidecar_key of;
	size_t len;
	unsigned char buf[SIDE_MAX];
};

struct record {
	size_t at, len; /* in buf */
	const unsigned char *key, *val;
	size_t klen, vlen;
};

static void put_le(unsigned char *p, uint64_t v, unsigned n)
{
	for (unsigned i = 0; i < n; i++, v >>= 8)
		p[i] = (unsigned char)v;
}

static uint64_t get_le(const unsigned char *p, unsigned n)
{
	uint64_t v = 0;

	while (n--)
		v = v << 8 | p[n];
	return v;
}

static int identify(int fd, const char *name, struct io_sidecar_key *k, unsigned *nlink)
{
	struct statx x;
	int flags = AT_SYMLINK_NOFOLLOW | (name ? 0 : AT_EMPTY_PATH);

	*k = (struct io_sidecar_key){0};
	if (statx(fd, name ? name : "", flags, STATX_BASIC_STATS | STATX_BTIME, &x))
		return -errno;
	k->dev = (uint64_t)x.stx_dev_major << 32 | x.stx_dev_minor;
	k->ino = x.stx_ino;
	if (x.stx_mask & STATX_BTIME) {
		k->btime_s = x.stx_btime.tv_sec;
		k->btime_ns = x.stx_btime.tv_nsec;
	}
	k->valid = true;
	if (nlink)
		*nlink = S_ISDIR(x.stx_mode) ? 1 : x.stx_nlink;
	return 0;
}

static void file_name(const struct io_sidecar_key *k, char out[40])
{
	snprintf(out, 40, "%llx-%llx", (unsigned long long)k->dev, (unsigned long long)k->ino);
}

/* Iterates over the records; false at the end or at an invalid record. */
static bool next_record(const struct side *d, struct record *r)
{
	size_t at = r->at + r->len;

	if (d->len - at < RECORD)
		return false;
	r->klen = (size_t)get_le(d->buf + at, 2);
	r->vlen = (size_t)get_le(d->buf + at + 2, 4);
	if (!r->klen || r->klen > d->len - at - RECORD || r->vlen > d->len - at - RECORD - r->klen)
		return false;
	r->key = d->buf + at + RECORD;
	r->val = r->key + r->klen;
	r->at = at;
	r->len = RECORD + r->klen + r->vlen;
	return true;
}

static bool find(const struct side *d, const char *key, struct record *r)
{
	size_t n = strlen(key);

	*r = (struct record){.at = HEAD};
	while (next_record(d, r))
		if (r->klen == n && !memcmp(r->key, key, n))
			return true;
	return false;
}

static void start_empty(struct side *d)
{
	memcpy(d->buf, magic, sizeof(magic));
	put_le(d->buf + 16, (uint64_t)d->of.btime_s, 8);
	put_le(d->buf + 24, d->of.btime_ns, 4);
	d->len = HEAD;
}

/* Reads what is kept for d's inode; empty if there is nothing, or not of this inode. */
static int load(struct io_store *s, struct side *d)
{
	CLEANUP_CLOSE int fd = -1;
	char name[40];
	ssize_t n;

	file_name(&d->of, name);
	fd = s->meta < 0 ? -ENOENT
			 : io_open_beneath(s->meta, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
	if (fd < 0 && fd != -ENOENT)
		return fd;
	n = fd < 0 ? 0 : read(fd, d->buf, sizeof(d->buf));
	if (n < 0)
		return -errno;
	d->len = (size_t)n;
	if (n < (ssize_t)HEAD || memcmp(d->buf, magic, sizeof(magic)) ||
	    get_le(d->buf + 8, 8) != XXH3_64bits(d->buf + 16, d->len - 16) ||
	    (int64_t)get_le(d->buf + 16, 8) != d->of.btime_s ||
	    get_le(d->buf + 24, 4) != d->of.btime_ns)
		start_empty(d);
	return 0;
}

static int write_whole(int fd, const struct side *d)
{
	ssize_t n = write(fd, d->buf, d->len);

	if (n < 0)
		return -errno;
	if ((size_t)n != d->len)
		return -ENOSPC;
	return fdatasync(fd) ? -errno : 0;
}

static int save(struct io_store *s, struct side *d)
{
	CLEANUP_CLOSE int fd = -1;
	char name[40], scratch[17];
	int err;

	file_name(&d->of, name);
	if (d->len == HEAD)
		return unlinkat(s->meta, name, 0) && errno != ENOENT ? -errno : 0;
	put_le(d->buf + 8, XXH3_64bits(d->buf + 16, d->len - 16), 8);
	io_scratch_name(s, scratch);
	fd = openat(s->tmp, scratch, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	err = write_whole(fd, d);
	if (!err && renameat(s->tmp, scratch, s->meta, name))
		err = -errno;
	if (err)
		unlinkat(s->tmp, scratch, 0);
	return err;
}

static int open_side(struct io_store *s, int fd, const char *name, const char *key,
		     struct side **out)
{
	struct side *d;
	int err;

	if (key && strncmp(key, KEY_PREFIX, sizeof(KEY_PREFIX) - 1))
		return -EOPNOTSUPP;
	if (key && strlen(key) > XATTR_NAME_MAX)
		return -ERANGE;
	d = malloc(sizeof(*d));
	if (!d)
		return -ENOMEM;
	err = identify(fd, name, &d->of, NULL);
	if (!err)
		err = load(s, d);
	if (err) {
		free(d);
		return err;
	}
	*out = d;
	return 0;
}

static void cut(struct side *d, const struct record *r)
{
	memmove(d->buf + r->at, d->buf + r->at + r->len, d->len - r->at - r->len);
	d->len -= r->len;
}

static int append(struct side *d, const char *key, const void *val, size_t len)
{
	size_t klen = strlen(key), space = sizeof(d->buf) - d->len;
	unsigned char *p = d->buf + d->len;

	if (space < RECORD + klen || len > space - RECORD - klen)
		return -ENOSPC;
	put_le(p, klen, 2);
	put_le(p + 2, len, 4);
	memcpy(p + RECORD, key, klen);
	if (len)
		memcpy(p + RECORD + klen, val, len);
	d->len += RECORD + klen + len;
	return 0;
}

int io_sidecar_set(struct io_store *s, int fd, const char *name, const char *key, const void *val,
		   size_t len, int flags)
{
	CLEANUP_FREE struct side *d = NULL;
	struct record r;
	bool there;
	LOCK_SCOPE(&s->meta_lock);
	int err = open_side(s, fd, name, key, &d);

	if (err)
		return err;
	there = find(d, key, &r);
	if (there && (flags & XATTR_CREATE))
		return -EEXIST;
	if (!there && (flags & XATTR_REPLACE))
		return -ENODATA;
	if (there)
		cut(d, &r);
	err = append(d, key, val, len);
	return err ? err : save(s, d);
}

int io_sidecar_remove(struct io_store *s, int fd, const char *name, const char *key)
{
	CLEANUP_FREE struct side *d = NULL;
	struct record r;
	LOCK_SCOPE(&s->meta_lock);
	int err = open_side(s, fd, name, key, &d);

	if (err)
		return err;
	if (!find(d, key, &r))
		return -ENODATA;
	cut(d, &r);
	return save(s, d);
}

ssize_t io_sidecar_get(struct io_store *s, int fd, const char *name, const char *key, void *buf,
		       size_t cap)
{
	CLEANUP_FREE struct side *d = NULL;
	struct record r;
	int err = open_side(s, fd, name, key, &d);

	if (err)
		return err;
	if (!find(d, key, &r))
		return -ENODATA;
	if (!cap)
		return (ssize_t)r.vlen;
	if (r.vlen > cap)
		return -ERANGE;
	memcpy(buf, r.val, r.vlen);
	return (ssize_t)r.vlen;
}

ssize_t io_sidecar_list(struct io_store *s, int fd, const char *name, char *buf, size_t cap)
{
	CLEANUP_FREE struct side *d = NULL;
	struct record r = {.at = HEAD};
	size_t used = 0;
	int err = open_side(s, fd, name, NULL, &d);

	if (err)
		return err;
	while (next_record(d, &r)) {
		if (cap && cap - used < r.klen + 1)
			return -ERANGE;
		if (cap) {
			memcpy(buf + used, r.key, r.klen);
			buf[used + r.klen] = 0;
		}
		used += r.klen + 1;
	}
	return (ssize_t)used;
}

void io_sidecar_about_to_go(struct io_store *s, int dirfd, const char *name,
			    struct io_sidecar_key *out)
{
	unsigned nlink;

	*out = (struct io_sidecar_key){0};
	if (s->has_xattr || s->meta < 0 || io_name_check(name))
		return;
	if (identify(dirfd, name, out, &nlink) || nlink > 1)
		out->valid = false;
}

void io_sidecar_gone(struct io_store *s, const struct io_sidecar_key *k, int dirfd,
		     const char *name)
{
	struct io_sidecar_key now;
	char file[40];

	if (!k->valid)
		return;
	if (name && !identify(dirfd, name, &now, NULL) && now.dev == k->dev && now.ino == k->ino)
		return;
	file_name(k, file);
	unlinkat(s->meta, file, 0);
}

/* SPDX-License-Identifier: MIT
 * The head of a staging area: which program wrote it, in which format, for which store. An unknown
 * format, or another store's head, is never changed. */
#include "staging/log/left.h"
#include "staging/log/log.h"

#include "io/entries.h"
#include "io/mounts/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>

/* Every version writes this much; 0.1.0 wrote no more. */
#define HEAD_LEAST offsetof(struct head, program)

void log_segment_name(uint64_t n, char out[32])
{
	snprintf(out, 32, "log.%llu", (unsigned long long)n);
}

struct rec log_format(void)
{
	/* 0.1.0 takes it for an answer to no request, and continues */
	return (struct rec){
		.type = REC_FORGET, .flags = REC_ANSWER, .size = LOG_FORMAT, .name = CAIRN_VERSION};
}

/* Is it the record that a log begins with? Its format is r->size. */
static bool is_format(const struct rec *r)
{
	return r->type == REC_FORGET && r->flags & REC_ANSWER && !r->unique;
}

uint64_t staging_new_id(struct staging *s)
{
	return atomic_fetch_add(&s->head->next_id, 1) & STAGING_ID_MASK;
}

int head_check(const struct head *h, size_t size, struct io_store *store)
{
	struct io_where here;

	if (size < HEAD_LEAST)
		return -EPROTONOSUPPORT;
	if (!h->magic)
		return -ENOENT; /* killed before it was initialized */
	if (h->magic != HEAD_MAGIC || h->version < 1 || h->version > HEAD_VERSION ||
	    strncmp(h->store_id, io_store_id(store), 32))
		return -EPROTONOSUPPORT;
	io_store_where(store, &here);
	return io_where_same(&h->where, &here) ? 0 : -EXDEV;
}

int log_check(int fd)
{
	char buf[1024];
	struct rec r;
	size_t used;
	ssize_t n = pread(fd, buf, sizeof(buf), 0);

	if (n < 0)
		return -errno;
	/* 0.1.0 wrote none; damage is detected by the replay */
	if (rec_decode(buf, (size_t)n, &r, &used) || !is_format(&r))
		return 0;
	return r.size > LOG_FORMAT ? -EPROTONOSUPPORT : 0;
}

void head_stamp(struct head *h, struct io_store *store)
{
	struct io_where where;

	io_store_where(store, &where);
	h->where = where;
	memset(h->program, 0, sizeof(h->program));
	snprintf(h->program, sizeof(h->program), "%s", CAIRN_VERSION);
	io_store_path(store, h->store_path, sizeof(h->store_path));
}

static int look_at(int base, struct io_store *store, struct staging_found *out)
{
	struct head h;
	char name[32];

	memset(&h, 0, sizeof(h));
	int fd = openat(base, "head", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t n = fd < 0 ? -1 : pread(fd, &h, sizeof(h), 0);
	int err = n < 0 ? -errno : 0;
	if (fd >= 0)
		close(fd);
	if (err || n == 0)
		return err;
	err = head_check(&h, (size_t)n, store);
	if (err == -ENOENT)
		return err;
	bool told = n >= (ssize_t)HEAD_LEAST && h.magic == HEAD_MAGIC;
	snprintf(out->program, sizeof(out->program), "%.*s", (int)sizeof(h.program) - 1,
		 !told		? ""
		 : h.program[0] ? h.program
				: "0.1.0");
	snprintf(out->store, sizeof(out->store), "%.*s", (int)sizeof(h.store_path) - 1,
		 h.store_path);
	if (err)
		return err;
	log_segment_name(h.segment, name);
	fd = openat(base, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	err = fd < 0 ? 0 : log_check(fd);
	if (fd >= 0)
		close(fd);
	return err;
}

int staging_look(const char *dir, struct io_store *store, struct staging_found *out)
{
	memset(out, 0, sizeof(*out));
	int err = staging_place_path(dir, io_store_id(store), out->path, sizeof(out->path));
	if (err)
		return 0; /* the open reports it */
	int base = open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (base < 0)
		return 0;
	struct stat st;
	err = fstat(base, &st) || st.st_uid != geteuid() ? -ENOENT : look_at(base, store, out);
	close(base);
	return err == -EPROTONOSUPPORT || err == -EXDEV ? err : 0;
}

/* Does a cairnfs have the place? */
static bool is_served(int base)
{
	CLEANUP_CLOSE int lock =
		openat(base, "lock", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	return lock >= 0 && flock(lock, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
}

int staging_left_at(const char *path, struct io_store *store, struct staging_left *out)
{
	CLEANUP_CLOSE int base = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	const char *id = io_store_id(store);
	size_t len = strlen(path), n = strlen(id);
	struct staging_found found;
	struct stat st;

	*out = (struct staging_left){0};
	if (len < n || strcmp(path + len - n, id)) /* of the store that this is a copy of */
		return -ENOENT;
	if (base < 0 || fstat(base, &st))
		return -errno;
	if (st.st_uid != geteuid())
		return -EPERM;
	if (is_served(base))
		return -EBUSY;
	int err = look_at(base, store, &found);
	if (err == -EXDEV || err == -ENOENT)
		return -ENOENT;
	staging_left_read(base, id, out); /* unreadable: it says so */
	return 0;
}

uint64_t staging_log_in(int base, const char *store_id)
{
	CLEANUP_CLOSE int fd = openat(base, "head", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct head h;
	bool read = fd >= 0 && pread(fd, &h, HEAD_LEAST, 0) == (ssize_t)HEAD_LEAST;

	if (!read || h.magic != HEAD_MAGIC || strncmp(h.store_id, store_id, 32))
		return 0;
	return h.segment >> 20; /* log_id() */
}

uint64_t staging_log_at(const char *path, const char *store_id)
{
	CLEANUP_CLOSE int base = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

	return base < 0 ? 0 : staging_log_in(base, store_id);
}

/* What that process has at path: a log's number, or 0. -1: that cannot be told. Only one of this
 * user is asked: another one could put a filesystem there that does not answer. */
static int64_t log_of_process(const char *pid, const char *path, const char *store_id)
{
	struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW,
			       .resolve = RESOLVE_IN_ROOT};
	char name[64], table[64];
	struct stat st;

	snprintf(name, sizeof(name), "/proc/%.20s/root", pid);
	snprintf(table, sizeof(table), "/proc/%.20s/mountinfo", pid);
	bool asked = !lstat(name, &st) && st.st_uid == geteuid();
	CLEANUP_CLOSE int root = asked ? open(name, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	if (root < 0)
		return io_mounts_may_hide(table, path) ? -1 : 0;
	CLEANUP_CLOSE int base = (int)syscall(SYS_openat2, root, path, &how, sizeof(how));
	if (base < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
	return (int64_t)staging_log_in(base, store_id);
}

int staging_log_elsewhere(const char *path, const char *store_id, uint64_t log)
{
	CLEANUP_DIR DIR *d = entries_at(AT_FDCWD, "/proc");
	bool unseen = io_mounts_may_be_unseen();
	struct dirent *e;

	while ((e = entries_next(d))) {
		int64_t has = e->d_name[0] >= '1' && e->d_name[0] <= '9'
				      ? log_of_process(e->d_name, path, store_id)
				      : 0;

		if (has == (int64_t)log)
			return atoi(e->d_name);
		unseen |= has < 0;
	}
	return !d || errno || unseen ? -1 : 0;
}

/* Are there no records in that segment but its format, and answers? */
static bool has_no_records(int fd)
{
	char buf[4096];
	struct rec r = log_format();
	size_t used, pos = 0;
	ssize_t n = fd < 0 ? -1 : pread(fd, buf, sizeof(buf), 0);
	int err = n < 0 ? -EIO : 0;

	while (!err && r.flags & REC_ANSWER) {
		err = rec_decode(buf + pos, (size_t)n - pos, &r, &used);
		pos += err ? 0 : used;
	}
	/* they end within buf, with the file or in what is allocated ahead: there may be more */
	return err == -EAGAIN && (n < (ssize_t)sizeof(buf) || (pos < sizeof(buf) && !buf[pos]));
}

bool log_remove_unused(int base)
{
	struct head h = {0};
	char name[32];

	int fd = openat(base, "head", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno == ENOENT;
	ssize_t n = pread(fd, &h, sizeof(h), 0);
	close(fd);
	/* without its magic it was not initialized: there is no log yet */
	if (n < 0 || (n >= (ssize_t)HEAD_LEAST && h.magic &&
		      (h.magic != HEAD_MAGIC || h.version < 1 || h.version > HEAD_VERSION)))
		return false;
	log_segment_name(h.segment, name);
	if (h.magic) {
		fd = openat(base, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		bool none = fd < 0 ? errno == ENOENT : has_no_records(fd);
		if (fd >= 0)
			close(fd);
		if (!none)
			return false;
		unlinkat(base, name, 0);
	}
	return !unlinkat(base, "head", 0);
}

/* SPDX-License-Identifier: MIT
 *
 * The recorded history of a load: what every trainer asked of the mount, when it
 * asked and when it was answered. It lives in a shared mapping of a file outside the
 * mount, so it outlives every kill -9.
 *
 * Time is one atomic counter. A record's `begin` is taken before the call is made and
 * `end` after it returned, so a.end < b.begin proves that a came before b; records
 * whose intervals overlap may have happened in either order.
 *
 * Names are (directory object, name): a directory object has a number that its name
 * ends in ("tmp-step-12" and "step-12" are object 12), so renaming a directory does
 * not touch the entries in it. The load's root is object 0. A file is a number too
 * (`fid`) and its bytes say which file, version and offset they belong to (content.h).
 */
#ifndef CRASH_HISTORY_H
#define CRASH_HISTORY_H

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum hist_kind {
	H_OPEN = 1,	/* fid, ver: what is written from now on; flags */
	H_WRITE,	/* fid, ver, off, len */
	H_TRUNC,	/* fid, ver, len = new size */
	H_SEAL,		/* fid, ver: a close or fsync that completes this version */
	H_CLOSE,	/* a close that changes nothing */
	H_RENAME,	/* dir/name -> dir2/name2 */
	H_UNLINK,
	H_LINK,		/* dir/name -> dir2/name2 */
	H_SYMLINK,	/* dir/name, ver = number in the target */
	H_MKDIR,	/* dir/name, fid = number of the new directory */
	H_RMDIR,
	H_CHMOD,	/* fid, ver = mode */
	H_XATTR,	/* fid, ver = value of user.load */
	H_DIRSYNC,	/* fsync of a directory */
	H_READ,		/* changes nothing */
	H_KINDS,
};

static const char *const hist_kind_name[H_KINDS] = {
	"?", "open", "write", "truncate", "seal", "close", "rename", "unlink", "link",
	"symlink", "mkdir", "rmdir", "chmod", "setxattr", "fsyncdir", "read",
};

#define HF_CREATE 1u	/* open: a new file at dir/name */
#define HF_TRUNC 2u	/* open: O_TRUNC of an existing one */
#define HF_SYNC 4u	/* returns only when durable (fsync=strict) */
#define HF_MAPPED 8u	/* write: through a mapping, after the close; seal: such a close */
#define HF_LENT 16u	/* open: nothing of it is anywhere before the seal, a link of a buffer */

#define HIST_NAME 40
#define HIST_MAGIC 0x6372617368683031ull
#define HIST_CAP (1u << 18)
#define HIST_RECS_OFF 4096

struct hist_rec {
	_Atomic uint64_t begin;	/* 0: never begun */
	_Atomic uint64_t end;	/* 0: no answer seen */
	uint64_t t0_ns, t1_ns;
	int32_t result;		/* 0 or -errno, once end is set */
	uint8_t kind, rank;
	uint16_t flags;
	uint32_t dir, dir2, fid, ver;
	uint64_t off, len;
	char name[HIST_NAME], name2[HIST_NAME];
};

struct hist_head {
	uint64_t magic, seed;
	_Atomic uint64_t stamp;
	_Atomic uint32_t next_rec, next_fid, next_dir;
	_Atomic int stop;	/* finish the step, then end */
	_Atomic int crash;	/* errors are expected from now on: leave quietly */
	_Atomic int failed;	/* some trainer saw an error it must not see */
	_Atomic uint32_t errors;	/* errors seen by tolerant trainers */
	_Atomic uint32_t bar_in, bar_gen;
	_Atomic uint32_t go;	/* rank 0 says: another step */
	_Atomic uint32_t dir_now;	/* directory rank 0 just made; 0: it failed */
	uint32_t ranks;
};

struct hist {
	struct hist_head *head;
	struct hist_rec *recs;
	size_t bytes;
};

static inline size_t hist_bytes(void)
{
	return HIST_RECS_OFF + (size_t)HIST_CAP * sizeof(struct hist_rec);
}

/* Maps PATH. 0 or -errno. */
static inline int hist_open(struct hist *h, const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	h->bytes = hist_bytes();
	void *p = mmap(NULL, h->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int err = p == MAP_FAILED ? -errno : 0;
	close(fd);
	if (err)
		return err;
	h->head = p;
	h->recs = (struct hist_rec *)((char *)p + HIST_RECS_OFF);
	return h->head->magic == HIST_MAGIC ? 0 : -EINVAL;
}

/* Makes a new, empty history at PATH, which is there only when it is complete. */
static inline int hist_create(struct hist *h, const char *path)
{
	struct hist_head head = { .magic = HIST_MAGIC, .stamp = 1, .next_fid = 1, .next_dir = 1 };
	char tmp[4096];
	int err = 0;

	snprintf(tmp, sizeof(tmp), "%s.new", path);
	int fd = open(tmp, O_RDWR | O_CLOEXEC | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)hist_bytes()) || pwrite(fd, &head, sizeof(head), 0) < 0 ||
	    rename(tmp, path))
		err = -errno;
	close(fd);
	return err ? err : hist_open(h, path);
}

static inline uint64_t hist_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* A record to be filled in; hist_begin() makes it count. NULL: the history is full. */
static inline struct hist_rec *hist_new(struct hist *h, enum hist_kind kind, unsigned rank)
{
	uint32_t i = atomic_fetch_add(&h->head->next_rec, 1);

	if (i >= HIST_CAP)
		return NULL;
	h->recs[i].kind = (uint8_t)kind;
	h->recs[i].rank = (uint8_t)rank;
	return &h->recs[i];
}

static inline void hist_begin(struct hist *h, struct hist_rec *r)
{
	r->t0_ns = hist_now_ns();
	atomic_store(&r->begin, atomic_fetch_add(&h->head->stamp, 1));
}

static inline void hist_end(struct hist *h, struct hist_rec *r, int result)
{
	r->result = result;
	r->t1_ns = hist_now_ns();
	atomic_store(&r->end, atomic_fetch_add(&h->head->stamp, 1));
}

static inline uint32_t hist_count(const struct hist *h)
{
	uint32_t n = atomic_load(&h->head->next_rec);

	return n < HIST_CAP ? n : HIST_CAP;
}

#endif

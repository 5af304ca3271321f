/* SPDX-License-Identifier: MIT
 * A copy of a durable file shares the file's blocks if the store has shared extents: its bytes are
 * not written a second time.
 *
 * copy_file_range, which cp uses, only gives a hint: f may be a copy of this store file. What f
 * contains counts, and not every write to it is visible. So when f is persisted, an unpublished
 * file is cloned from the source, the clone is read from the disk and compared with the staged
 * bytes; only if all are equal does it become the version. Otherwise it is removed and the version
 * is written, to the blocks that its close was promised.
 *
 *   staged.source ──seal──▶ pend.source ──persist──▶ closed
 *	 └── closed without a change, failed ─────────────▲
 *
 * The hint is not logged: after a kill the version is written. The descriptor keeps the source
 * available if it is renamed, replaced or removed meanwhile. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLONE_MIN (64u << 10) /* as in dedup.c */
#define CHUNK (4u << 20)

void staged_copied_from(struct staged *f, int fd)
{
	struct staging *s = f->s;
	struct stat st;
	bool fits = !fstat(fd, &st) && st.st_size >= (off_t)CLONE_MIN;

	LOCK_SCOPE(&s->lock);
	source_forget(s, &f->base.source);
	s->files.n_sources++;
	f->base.source = fd;
	if (!fits || !s->drain.dedup || s->drain.no_clone || f->state != STAGED_OPEN ||
	    f->spilled || f->moved.under || s->files.n_sources > sources_max(s))
		source_forget(s, &f->base.source);
}

/* Does the clone contain on the disk what is staged? This detects a source that has decayed on the
 * disk while its cached pages have not. 0, with the sum of the bytes; -ESTALE: they differ. */
static int compare(const struct pend *p, int from, int clone, struct io_sum *sum)
{
	uint64_t size = p->r.size;
	char *buf = aligned_alloc(IO_ALIGN, 2 * (CHUNK + IO_ALIGN));
	int same = buf ? 1 : -ENOMEM;

	io_sum_reset(sum);
	for (uint64_t off = 0; same == 1 && off < size; off += CHUNK) {
		size_t len = size - off < CHUNK ? size - off : CHUNK;
		same = io_same_bytes(from, clone, off, len, buf);
		if (same == 1)
			io_sum_add(sum, buf, len);
	}
	free(buf);
	return same == 1 ? 0 : same ? same : -ESTALE;
}

/* A source whose bytes do not match its checksum must not share its blocks. */
static bool source_is_sound(struct staging *s, int source, const struct io_sum *sum)
{
	char is[IO_CHECKSUM_LEN], said[IO_CHECKSUM_LEN];
	ssize_t n = io_get_xattr(s->o.store, source, NULL, KEY_CHECKSUM, said, sizeof(said));

	io_sum_text(sum, is);
	return n <= 0 || ((size_t)n == strlen(is) && !memcmp(is, said, (size_t)n));
}

/* A clone of the source with a name in tmp/. */
static int make_clone(struct staging *s, struct pend *p, int from, int clone, struct io_sum *sum)
{
	struct stat st;
	int err = io_clone(s->o.store, p->clone.source, clone);

	if (!err)
		err = fstat(clone, &st) ? -errno : (uint64_t)st.st_size != p->r.size ? -ESTALE : 0;
	if (!err)
		err = compare(p, from, clone, sum);
	return err || source_is_sound(s, p->clone.source, sum) ? err : -EILSEQ;
}

bool clone_version(struct staging *s, struct pend *p, struct io_sum *sum)
{
	struct staged *f = p->sf;
	uint64_t id;
	char name[17];
	struct stat st;
	bool direct;

	/* after a failed fsync persist.c finds out whether f was written since */
	if (p->clone.source < 0 || p->failed_fsync || f->spilled || f->moved.under ||
	    fstat(p->clone.source, &st) || (uint64_t)st.st_size != p->r.size)
		return false;
	staging_sf_name(f->id, name);
	int from = openat(staging_sf_dir(f), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	/* a file that is mostly holes gets no checksum; persist.c handles it */
	if (from < 0 || fstat(from, &st) || (uint64_t)st.st_blocks * 512 < p->r.size / 2) {
		if (from >= 0)
			close(from);
		return false;
	}
	id = staging_new_id(s);
	int fd = io_tmp_create(s->o.store, id, true, &direct);
	int err = fd < 0 ? fd : make_clone(s, p, from, fd, sum);
	close(from);
	if (!err && p->failed_fsync)
		err = -ESTALE;
	LOCK_SCOPE(&s->lock);
	s->drain.no_clone |= err == -EOPNOTSUPP;
	source_forget(s, &p->clone.source);
	if (err) {
		if (fd >= 0)
			trash_put(s, id, fd);
		return false;
	}
	trash_put(s, p->tmp_id, p->tmp_fd); /* what its close allocated */
	p->tmp_id = id;
	p->tmp_fd = fd;
	p->direct = direct;
	p->clone.done = true;
	return true;
}

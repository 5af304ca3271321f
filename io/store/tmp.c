/* SPDX-License-Identifier: MIT
 *
 * Unpublished files: STORE/.cairn/<host>/tmp/<16 hex digits>.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>

#include "inside.h"
#include "io/scope.h"

void io_tmp_name(uint64_t vid, char out[17])
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 15; i >= 0; i--, vid >>= 4)
		out[i] = hex[vid & 15];
	out[16] = 0;
}

bool io_tmp_id(const char *name, uint64_t *vid)
{
	static const char hex[] = "0123456789abcdef";

	*vid = 0;
	if (strspn(name, hex) != 16 || name[16])
		return false;
	for (int i = 0; i < 16; i++)
		*vid = *vid << 4 | (uint64_t)(strchr(hex, name[i]) - hex);
	return true;
}

/* Always a new inode: an existing file of that name may be open in another process. One
 * operation, however often it is tried. */
static int create_exclusive(struct io_store *s, struct io_call *c)
{
	int fd = (int)io_call_run(s->e, c);

	for (int tries = 0; fd == -EEXIST && tries < 8; tries++) {
		if (unlinkat(c->fd, c->name, 0) && errno != ENOENT)
			return -errno;
		fd = (int)io_call_real(s->e, c);
	}
	return fd;
}

int io_tmp_create(struct io_store *s, uint64_t vid, bool want_direct, bool *direct)
{
	return io_tmp_create_as(s, vid, 0, want_direct, direct);
}

int io_tmp_create_as(struct io_store *s, uint64_t vid, mode_t mode, bool want_direct, bool *direct)
{
	char name[17];
	struct io_call c = {
		.op = IO_OP_CREATE,
		.fd = s->tmp,
		.name = name,
		.flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
		.mode = 0600 | (mode & 0777),
	};
	int fd;

	*direct = want_direct && !io_is_lacking(s->e, IO_NOTE_NO_DIRECT);
	if (s->ro)
		return -EROFS;
	io_tmp_name(vid, name);
	if (*direct)
		c.flags |= O_DIRECT;
	fd = create_exclusive(s, &c);
	if (fd != -EINVAL || !*direct)
		return fd;
	io_lacks(s->e, IO_NOTE_NO_DIRECT);
	*direct = false;
	c.flags &= ~O_DIRECT;
	return create_exclusive(s, &c);
}

void io_tmp_probe(struct io_store *s)
{
	static const _Alignas(IO_ALIGN) char block[IO_ALIGN];
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_DIRECT;
	struct statfs fs;
	char scratch[17];

	if (fstatfs(s->root_rd, &fs) || fs.f_type != FUSE_SUPER_MAGIC)
		return;
	io_scratch_name(s, scratch);
	CLEANUP_CLOSE int fd = openat(s->tmp, scratch, flags, 0600);
	ssize_t n = fd < 0 ? -1 : pwrite(fd, block, sizeof(block), 0);
	if (n < 0 && errno == EINVAL)
		io_lacks(s->e, IO_NOTE_NO_DIRECT);
	unlinkat(s->tmp, scratch, 0);
}

int io_tmp_open(struct io_store *s, uint64_t vid, int flags)
{
	CLEANUP_CLOSE int fd = -1;
	char name[17];
	struct stat st;

	if (s->ro)
		return -EROFS;
	if (flags & (O_CREAT | O_TRUNC))
		return -EINVAL;
	io_tmp_name(vid, name);
	fd = io_open_lent(s, s->tmp, name, flags | O_NOFOLLOW);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st))
		return -errno;
	/* a second name would give access to a file that is still to be published */
	return S_ISREG(st.st_mode) && st.st_nlink == 1 ? scope_keep(&fd) : -EPERM;
}

int io_tmp_remove(struct io_store *s, uint64_t vid)
{
	char name[17];
	int err;

	if (s->ro)
		return -EROFS;
	io_tmp_name(vid, name);
	err = io_unlink(s, s->tmp, name);
	return err == -ENOENT ? 0 : err;
}

int io_publish(struct io_store *s, uint64_t vid, int dirfd, const char *name)
{
	char tmp[17];

	io_tmp_name(vid, tmp);
	return io_rename(s, s->tmp, tmp, dirfd, name, 0);
}

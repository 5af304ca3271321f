/* SPDX-License-Identifier: MIT
 *
 * Unpublished files: STORE/.cairn/<host>/tmp/<16 hex digits>.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "sidecar.h"
#include "store.h"

void io_tmp_name(uint64_t vid, char out[17])
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 15; i >= 0; i--, vid >>= 4)
		out[i] = hex[vid & 15];
	out[16] = 0;
}

int io_tmp_create(struct io_store *s, uint64_t vid, bool want_direct, bool *direct)
{
	char name[17];
	struct io_call c = {
		.op = IO_OP_CREATE,
		.fd = s->tmp,
		.name = name,
		.flags = O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
		.mode = 0600,
	};
	int fd;

	*direct = want_direct && !io_is_lacking(s->e, IO_NOTE_NO_DIRECT);
	if (s->ro)
		return -EROFS;
	io_tmp_name(vid, name);
	if (*direct)
		c.flags |= O_DIRECT;
	fd = (int)io_call_run(s->e, &c);
	if (fd != -EINVAL || !*direct)
		return fd;
	io_lacks(s->e, IO_NOTE_NO_DIRECT);
	*direct = false;
	c.flags &= ~O_DIRECT;
	return (int)io_call_run(s->e, &c);
}

int io_tmp_open(struct io_store *s, uint64_t vid, int flags)
{
	char name[17];

	if (s->ro)
		return -EROFS;
	if (flags & (O_CREAT | O_TRUNC))
		return -EINVAL;
	io_tmp_name(vid, name);
	return io_open_beneath(s->tmp, name, flags | O_NOFOLLOW | O_CLOEXEC, 0);
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

/* SPDX-License-Identifier: MIT */
#include "tests/unit/session_shim.h"

#include <errno.h>
#include <linux/fuse.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "fs/fs.h"

static void take_too_long(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct timespec t = {.tv_nsec = 1000000};
	int reader;

	(void)id;
	(void)fi;
	do {
		nanosleep(&t, NULL);
		reader = atomic_load(&fs->reader);
	} while (reader < 0 || reader == (int)current.slot);
	session_may_block(fs);
	fuse_reply_err(req, ENOENT);
}

static ssize_t receive(int fd, void *buf, size_t len, void *ctx)
{
	ssize_t n = recv(fd, buf, len, 0);
	(void)ctx;
	if (n)
		return n;
	errno = ENODEV;		/* as after an unmount */
	return -1;
}

static ssize_t answer(int fd, struct iovec *iov, int count, void *ctx)
{
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)count};
	(void)ctx;
	return sendmsg(fd, &m, MSG_NOSIGNAL);
}

int shim_serve(struct fs *fs, int fd)
{
	static const struct fuse_lowlevel_ops ops = {.getattr = take_too_long};
	static const struct fuse_custom_io io = {.writev = answer, .read = receive};
	struct {
		struct fuse_in_header in;
		struct fuse_init_in init;
	} hello = {
		.in = {.len = sizeof(hello), .opcode = FUSE_INIT, .unique = 2},
		.init = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION,
			 .max_readahead = 1u << 17},
	};
	char *argv[] = {"session"};
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);

	pthread_mutex_init(&fs->read_lock, NULL);
	pthread_mutex_init(&fs->ticket_lock, NULL);
	pthread_cond_init(&fs->read_cond, NULL);
	pthread_cond_init(&fs->ticket_cond, NULL);
	fs->se = fuse_session_new(&args, &ops, sizeof(ops), fs);
	if (!fs->se)
		return -EINVAL;
	int rc = fuse_session_custom_io(fs->se, &io, sizeof(io), fd);
	return rc ? rc : session_run(fs, &hello, sizeof(hello), false);
}

int shim_ask(int fd)
{
	struct {
		struct fuse_in_header in;
		struct fuse_getattr_in getattr;
	} q = {.in = {.len = sizeof(q), .opcode = FUSE_GETATTR, .unique = 4, .nodeid = FUSE_ROOT_ID}};

	return send(fd, &q, sizeof(q), MSG_NOSIGNAL) == sizeof(q) ? 0 : -errno;
}

void shim_serve_end(struct fs *fs)
{
	for (unsigned i = 0; i < N_THREADS; i++)
		pthread_join(fs->threads[i], NULL);
	atomic_store(&fs->stopping, true);
	pthread_join(fs->house, NULL);
	fuse_session_destroy(fs->se);
}

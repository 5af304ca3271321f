/* SPDX-License-Identifier: MIT
 * Requests from the kernel: how the next one is received, and in which order those are that the
 * kernel sends again after a worker's death. The threads that answer (base/session.c) call it with
 * the read lock held. */
#include "fs/wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From include/uapi/linux/fuse.h; the wire format is the kernel's ABI. */
struct wire_in {
	uint32_t len, opcode;
	uint64_t unique, nodeid;
	uint32_t uid, gid, pid, padding;
};
struct wire_out {
	uint32_t len;
	int32_t error;
	uint64_t unique;
};
#define WIRE_FORGET 2u
#define WIRE_RELEASE 18u
#define WIRE_INTERRUPT 36u
#define WIRE_BATCH_FORGET 42u
#define WIRE_NOTIFY_RESEND 7
#define WIRE_RESENT (1ull << 63)

/* For this long after its last answer the reader polls: waking a sleeping thread takes 20 to 60 us
 * on a virtual machine, and a create is five requests. */
#define SPIN_NS 60000u
#define SPIN_PAUSES 20 /* about 1 us between two polls */

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

/* Receives the next new request; in a burst, by polling. Read lock held. */
static int receive_new(struct fs *fs, struct fuse_buf *buf)
{
	uint64_t start = monotonic_ns(), spin = fs->resends.in_burst ? SPIN_NS : 0;
	struct pollfd p = {.fd = fuse_session_fd(fs->se), .events = POLLIN};
	int n;

	for (unsigned turn = 1; (n = fuse_session_receive_buf(fs->se, buf)) == -EAGAIN; turn++) {
		if (monotonic_ns() - start >= spin)
			break;
		for (int i = 0; i < SPIN_PAUSES; i++)
			cpu_relax();
		if (turn % 8 == 0)
			sched_yield(); /* let threads with work run first */
	}
	fs->resends.in_burst = n != -EAGAIN;
	while (n == -EAGAIN || n == -EINTR) {
		if (fuse_session_exited(fs->se))
			return 0;
		poll(&p, 1, -1);
		n = fuse_session_receive_buf(fs->se, buf);
		fs->resends.in_burst = monotonic_ns() - start < SPIN_NS;
	}
	return n;
}

/* ---- requests that the kernel sends again ----
 *
 * The kernel resends them bucket by bucket of its hash table, that is, in no useful order. Answered
 * in that order, a rename could take its place before a close that had returned before it was
 * called. So all of them are read before any is answered (they are at the head of the queue), and
 * then answered in the order in which they were sent, which is the order of `unique`, except that
 * RELEASEs come first. That is correct for any `unique`: their close(2) has returned, and the other
 * calls have not. */
struct resent {
	unsigned rank;
	uint64_t unique;
	size_t len;
	char bytes[];
};

static int by_sending(const void *a, const void *b)
{
	const struct resent *x = *(struct resent *const *)a, *y = *(struct resent *const *)b;
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return x->unique < y->unique ? -1 : x->unique > y->unique;
}

/* 0, or -ENOMEM: the kernel resends them to the next worker. */
static int resent_add(struct fs *fs, const struct fuse_buf *buf, size_t len)
{
	const struct wire_in *in = buf->mem;
	struct resent *r = malloc(sizeof(*r) + len);
	void *more = realloc(fs->resends.v, (fs->resends.n + 1) * sizeof(struct resent *));

	if (more)
		fs->resends.v = more;
	if (!r || !more) {
		free(r);
		return -ENOMEM;
	}
	r->rank = !(in->unique & WIRE_RESENT) ? 2 : in->opcode == WIRE_RELEASE ? 0 : 1;
	r->unique = in->unique & ~WIRE_RESENT;
	r->len = len;
	memcpy(r->bytes, buf->mem, len);
	fs->resends.v[fs->resends.n++] = r;
	return 0;
}

/* Reads all resent requests, up to the first that is not one. No thread answers yet, and the
 * descriptor is non-blocking. */
static int resent_gather(struct fs *fs)
{
	struct fuse_buf buf = {.mem = aligned_alloc(4096, REQUEST_MAX), .size = REQUEST_MAX};
	const struct wire_in *in = buf.mem;
	int n, err = in ? 0 : -ENOMEM;
	bool more = true;

	while (!err && more) {
		n = fuse_session_receive_buf(fs->se, &buf);
		if (n == -EINTR)
			continue;
		if (n < (int)sizeof(*in))
			break;
		err = resent_add(fs, &buf, (size_t)n);
		/* these two have queues of their own, which the kernel hands out first */
		more = in->unique & WIRE_RESENT || in->opcode == WIRE_FORGET ||
		       in->opcode == WIRE_BATCH_FORGET || in->opcode == WIRE_INTERRUPT;
	}
	free(buf.mem);
	if (!err && fs->resends.n)
		qsort(fs->resends.v, fs->resends.n, sizeof(struct resent *), by_sending);
	return err;
}

/* Takes the next of them; 0: none is left. Read lock held. */
static int resent_take(struct fs *fs, void *buf)
{
	if (fs->resends.next == fs->resends.n)
		return 0;
	struct resent *r = fs->resends.v[fs->resends.next++];
	size_t len = r->len;
	memcpy(buf, r->bytes, len);
	free(r);
	if (fs->resends.next == fs->resends.n) {
		free(fs->resends.v);
		fs->resends.v = NULL;
		fs->resends.n = fs->resends.next = 0;
	}
	return (int)len;
}

/* ---- for the threads that answer: struct wire ---- */

static int receive(struct fs *fs, void *mem, size_t size, struct received *r)
{
	const struct wire_in *in = mem;
	struct fuse_buf buf = {.mem = mem, .size = size};

	if (fuse_session_exited(fs->se))
		return 0;
	int n = resent_take(fs, mem);
	if (!n)
		n = receive_new(fs, &buf);
	if (n < (int)sizeof(*in))
		return n < 0 ? n : 0;
	*r = (struct received){.unique = in->unique & ~WIRE_RESENT,
			       .resent = in->unique & WIRE_RESENT,
			       .release = in->opcode == WIRE_RELEASE};
	return n;
}

static void answer(struct fs *fs, void *mem, size_t len)
{
	struct fuse_buf buf = {.mem = mem, .size = len};
	fuse_session_process_buf(fs->se, &buf);
}

static void end(struct fs *fs)
{
	fuse_session_exit(fs->se);
}

/* ---- what the kernel is told ---- */

static void expire(struct fs *fs, uint64_t dir, const char *name)
{
	size_t len = strlen(name);
	/* -ENOSYS: before Linux 6.2. -ENOENT: the kernel has no such entry */
	if (fuse_lowlevel_notify_expire_entry(fs->se, dir, name, len) == -ENOSYS)
		fuse_lowlevel_notify_inval_entry(fs->se, dir, name, len);
}

/* Asks the kernel to resend what the last worker read and did not answer (Linux 6.9 and later). */
static void ask_resend(struct fs *fs)
{
	struct wire_out out = {.len = sizeof(out), .error = WIRE_NOTIFY_RESEND};
	if (write(fuse_session_fd(fs->se), &out, sizeof(out)) < 0)
		fs_notice(fs, LEVEL_WARNING
			  "this kernel cannot resend requests (before 6.9): calls that were in "
			  "progress when the worker died may hang until the mount is aborted");
}

int wire_run(struct fs *fs, const void *init, size_t init_len, bool resend)
{
	char *copy = malloc(init_len);
	if (!copy)
		return -ENOMEM;
	fs->wire = (struct wire){
		.fd = fuse_session_fd(fs->se), .receive = receive, .answer = answer, .end = end};
	fs->forks.expire = expire;
	memcpy(copy, init, init_len);
	answer(fs, copy, init_len);
	free(copy);
	if (resend)
		ask_resend(fs);
	/* the reader polls before it sleeps */
	if (fcntl(fs->wire.fd, F_SETFL, O_RDWR | O_NONBLOCK))
		return -errno;
	int err = resend ? resent_gather(fs) : 0;
	return err ? err : session_start(fs);
}

/* SPDX-License-Identifier: MIT */
#include "tests/unit/session_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "fs/ops/ops.h"
#include "fs/wire/wire.h"
#include "io/engine/table.h"
#include "io/store/inside.h"

static void take_too_long(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct timespec t = {.tv_nsec = 1000000};
	int reader;

	(void)id;
	(void)fi;
	do {
		nanosleep(&t, NULL);
		reader = atomic_load(&fs->reading.reader);
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
	struct pollfd room = {.fd = fd, .events = POLLOUT};
	ssize_t n;
	(void)ctx;
	while ((n = sendmsg(fd, &m, MSG_NOSIGNAL)) < 0 && errno == EAGAIN)
		poll(&room, 1, -1);	/* a socket takes so many; the kernel takes all */
	return n;
}

static bool has_upkeep;

int shim_serve(struct fs *fs, int fd, unsigned how)
{
	static const struct fuse_custom_io io = {.writev = answer, .read = receive};
	struct {
		struct fuse_in_header in;
		struct fuse_init_in init;
	} hello = {
		.in = {.len = sizeof(hello), .opcode = FUSE_INIT, .unique = 2},
		.init = {.major = FUSE_KERNEL_VERSION, .minor = how & SHIM_NO_RESEND ? 39 : 40,
			 .max_readahead = 1u << 17,
			 .flags = FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES | FUSE_DO_READDIRPLUS |
				  FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_HANDLE_KILLPRIV_V2 | FUSE_INIT_EXT},
	};
	char *argv[] = {"session"};
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);
	struct fuse_lowlevel_ops ops = fs_ops;

	lock_init(&fs->reading.lock, RANK_READING);
	lock_init(&fs->tickets.lock, RANK_TICKETS);
	lock_init(&fs->slots.lock, RANK_SLOTS);
	pthread_cond_init(&fs->reading.cond, NULL);
	pthread_cond_init(&fs->tickets.cond, NULL);
	fs->o.nopassthrough = true;	/* what the kernel reads and writes by itself cannot be seen here */
	fs->o.ro = how & SHIM_READ_ONLY;
	fs->o.fsync_staged = how & SHIM_FSYNC_STAGED;
	fs->o.store = "the store";
	fs->o.mountpoint = "the mount";
	if (how & SHIM_SLOW_GETATTR)
		ops.getattr = take_too_long;
	fs->se = fuse_session_new(&args, &ops, sizeof(ops), fs);
	fuse_opt_free_args(&args);
	if (!fs->se)
		return -EINVAL;
	int rc = fuse_session_custom_io(fs->se, &io, sizeof(io), fd);
	if (!rc)
		rc = wire_run(fs, &hello, sizeof(hello), how & SHIM_RESEND);
	has_upkeep = !(how & SHIM_NO_UPKEEP);
	return rc || !has_upkeep ? rc : upkeep_start(fs);
}

unsigned shim_barred(struct fs *fs)
{
	pthread_mutex_lock(&fs->tickets.lock);
	unsigned n = fs->tickets.n_barred;
	pthread_mutex_unlock(&fs->tickets.lock);
	return n;
}

/* ---- the store, and the tree lock ---- */

#define ANY_OP IO_OP_COUNT	/* of a thread that answers */
#define ANY_SYNC (IO_OP_COUNT + 1)	/* of names */
static atomic_uint locked_calls;
static void hold(enum io_op op);

static void count_locked(void *fs)
{
	char name[16] = "";
	if (tree_is_locked_here(fs))
		atomic_fetch_add(&locked_calls, 1);
	if (!pthread_getname_np(pthread_self(), name, sizeof(name)) && !strcmp(name, "cairn-answer"))
		hold(ANY_OP);
}

void shim_watch_lock(struct fs *fs)
{
	atomic_store(&locked_calls, 0);
	shim_on_call(count_locked, fs);
}

unsigned shim_locked_calls(void)
{
	return atomic_load(&locked_calls);
}

/* ---- an operation of the store that does not return ---- */

static pthread_mutex_t hold_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hold_cond = PTHREAD_COND_INITIALIZER;
static const struct io_ops *below;
static enum io_op hold_op;
static unsigned to_hold, held;

static void hold(enum io_op op)
{
	pthread_mutex_lock(&hold_lock);
	if (op == hold_op && to_hold) {
		to_hold--;
		held++;
		pthread_cond_broadcast(&hold_cond);
		while (held)
			pthread_cond_wait(&hold_cond, &hold_lock);
	}
	pthread_mutex_unlock(&hold_lock);
}

static _Atomic unsigned failing_op;
static _Atomic int failing_errno;

static shim_named_fn _Atomic named_fn;
static void *_Atomic named_ctx;

static shim_call_fn _Atomic call_fn;
static void *_Atomic call_ctx;

static void run_on_call(void *unused)
{
	shim_call_fn fn = atomic_load(&call_fn);
	(void)unused;
	if (fn)
		fn(atomic_load(&call_ctx));
}

void shim_on_call(shim_call_fn fn, void *ctx)
{
	atomic_store(&call_fn, NULL);
	atomic_store(&call_ctx, ctx);
	atomic_store(&call_fn, fn);
}

static ssize_t held_call(struct io_engine *e, const struct io_call *c)
{
	shim_named_fn named = atomic_load(&named_fn);
	if (named && (c->op == IO_OP_RENAME || c->op == IO_OP_LINK))
		named(atomic_load(&named_ctx), c->fd2, c->name2);
	int err = atomic_load(&failing_errno);
	if (err && c->op == atomic_load(&failing_op))
		return -err;
	hold(c->op);
	if (c->op == IO_OP_SYNC_DIR || c->op == IO_OP_SYNC_ALL || c->op == IO_OP_SYNC_MARK)
		hold(ANY_SYNC);
	return below->call(e, c);
}

static void held_submit(struct io_queue *q, struct io_write *w)
{
	hold(IO_OP_WRITE);
	below->submit(q, w);
}

void shim_stand_before(struct io_engine *e)
{
	static struct io_ops ops;

	if (!below) {
		below = e->ops;
		ops = *below;
		ops.call = held_call;
		ops.submit = held_submit;
	}
	e->ops = &ops;
	shim_on_call(NULL, NULL);
	io_engine_check(e, run_on_call, NULL);
}

void shim_fail_op(unsigned op, int err)
{
	atomic_store(&failing_op, op);
	atomic_store(&failing_errno, err);
}

void shim_watch_names(shim_named_fn fn, void *ctx)
{
	atomic_store(&named_ctx, ctx);
	atomic_store(&named_fn, fn);
}

static void hold_next(enum io_op op, unsigned n)
{
	pthread_mutex_lock(&hold_lock);
	hold_op = op;
	to_hold = n;
	held = 0;
	pthread_mutex_unlock(&hold_lock);
}

void shim_hold_allocate(unsigned n)
{
	hold_next(IO_OP_ALLOCATE, n);
}

void shim_hold_write(unsigned n)
{
	hold_next(IO_OP_WRITE, n);
}

void shim_hold_sync(unsigned n)
{
	hold_next(ANY_SYNC, n);
}

void shim_hold_answers(unsigned n)
{
	hold_next(ANY_OP, n);
}

void shim_await_held(unsigned n)
{
	pthread_mutex_lock(&hold_lock);
	while (held < n)
		pthread_cond_wait(&hold_cond, &hold_lock);
	pthread_mutex_unlock(&hold_lock);
}

void shim_let_go(void)
{
	pthread_mutex_lock(&hold_lock);
	to_hold = held = 0;
	pthread_cond_broadcast(&hold_cond);
	pthread_mutex_unlock(&hold_lock);
}

unsigned shim_waiting(struct fs *fs)
{
	return atomic_load(&fs->waits.n);
}

uint64_t shim_looked(struct fs *fs)
{
	TREE_SCOPE(fs);
	return fs->tree.n_looked;
}

static uint64_t looks(struct fs *fs)
{
	TREE_SCOPE(fs);
	return fs->tree.n_looks;
}

void shim_look_again(struct fs *fs)
{
	/* the second begins when the first one's answers are sent */
	for (unsigned i = 0; i < 2; i++) {
		uint64_t before = looks(fs);
		waits_wake(fs);
		while (shim_waiting(fs) && looks(fs) == before)
			usleep(200);
	}
}

unsigned shim_offloaded(struct fs *fs)
{
	return atomic_load(&fs->slots.n_offloaded);
}

bool shim_store_is_slow(struct fs *fs)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return atomic_load(&fs->slots.slow_until) > (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void shim_has_other_hosts(struct fs *fs, bool others)
{
	atomic_store(&fs->hosts.others, others);
}

void shim_store_is_silent(struct fs *fs, bool silent)
{
	atomic_store(&fs->store->asked_ns, silent);	// since the start of the machine
}

void shim_store_is_fast(struct fs *fs)
{
	atomic_store(&fs->slots.slow_until, 0);
}

void shim_serve_end(struct fs *fs)
{
	atomic_store(&fs->stopping, true);
	session_join(fs);
	if (has_upkeep)
		upkeep_join(fs);
	waits_stop(fs);
	fuse_session_destroy(fs->se);
}

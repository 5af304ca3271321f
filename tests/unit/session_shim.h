/* SPDX-License-Identifier: MIT
 * The threads that answer (fs/base/session.c) with a socket in the kernel's place. In C, as tree_shim.h. */
#ifndef CAIRN_SESSION_SHIM_H
#define CAIRN_SESSION_SHIM_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fs;
struct io_engine;

enum {
	SHIM_RESEND = 1,	/* as a worker that is not the first */
	SHIM_READ_ONLY = 2,
	/* A GETATTR does what takes too long and did not say so: it goes on when another thread has been made the
	 * reader, and only then comes to a point where it may block. */
	SHIM_SLOW_GETATTR = 4,
	SHIM_NO_UPKEEP = 8,	/* its thread sleeps for long before it ends */
	SHIM_NO_RESEND = 16,	/* the kernel is older than 6.9 */
	SHIM_FSYNC_STAGED = 32,
};
/* Answers what comes from fd, the daemon's end of a SOCK_SEQPACKET pair, as a mount with nopassthrough does;
 * INIT's answer is the first. 0 or -errno. fd is ours then. */
int shim_serve(struct fs *fs, int fd, unsigned how);
/* How many requests are answered by threads of their own. */
unsigned shim_offloaded(struct fs *fs);
/* Whether the store is taken for slow; it is not any more. */
bool shim_store_is_slow(struct fs *fs);
void shim_has_other_hosts(struct fs *fs, bool others);
/* As if a question about its space had no answer; no longer. */
void shim_store_is_silent(struct fs *fs, bool silent);
void shim_store_is_fast(struct fs *fs);
/* How many requests wait in ops/wait.c; how many files below.c has looked at, for these and for states. */
unsigned shim_waiting(struct fs *fs);
uint64_t shim_looked(struct fs *fs);
/* All that wait are looked at once more, and what is answered has been sent. Some wait, and nothing else looks. */
void shim_look_again(struct fs *fs);
/* How many threads wait for RELEASEs that were read before their requests. */
unsigned shim_barred(struct fs *fs);

/* Before there are threads: what is below needs it. shim_open() calls it, for engines of one kind. */
void shim_stand_before(struct io_engine *e);
/* From now on called before each operation on the store, in the thread that performs it. fn NULL: no more. */
typedef void (*shim_call_fn)(void *ctx);
void shim_on_call(shim_call_fn fn, void *ctx);
/* From here on counts what is done to the store by threads that have the tree lock. */
void shim_watch_lock(struct fs *fs);
unsigned shim_locked_calls(void);
/* The next n allocations of blocks in the store, or writes of large files, do not return until
 * shim_let_go. */
void shim_hold_allocate(unsigned n);
void shim_hold_write(unsigned n);
void shim_hold_sync(unsigned n);	/* of names, by whatever call */
/* The next n operations on the store, whatever they are, by threads that answer. */
void shim_hold_answers(unsigned n);
/* From now on each call of this kind (enum io_op) on the store fails so; err 0: none does. */
void shim_fail_op(unsigned op, int err);
/* From now on called before a file gets a name in the store, on the thread that does it. fn NULL: no more. */
typedef void (*shim_named_fn)(void *ctx, int dirfd, const char *name);
void shim_watch_names(shim_named_fn fn, void *ctx);
void shim_await_held(unsigned n);	/* until n are held up */
void shim_let_go(void);

/* Once the kernel's end is closed: waits for the threads, and closes the other. */
void shim_serve_end(struct fs *fs);

#ifdef __cplusplus
}
#endif
#endif

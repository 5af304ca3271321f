/* SPDX-License-Identifier: MIT
 * What all directories of fs/ use: the log, the threads that answer the kernel, the rights of each
 * process, the spare keeper. Nothing here depends on libfuse.
 */
#ifndef CAIRN_FS_BASE_H
#define CAIRN_FS_BASE_H

#include "fs/base/ids.h"
#include "fs/fs.h"
#include "io/clock.h"
#include "io/keys.h"
#include "io/level.h"
#include "io/tier.h"

#include <xxhash.h>

/* Of these bytes and of a seed, which may be the hash of what is before them. */
static inline uint64_t hash_bytes(uint64_t seed, const void *p, size_t n)
{
	return XXH3_64bits_withSeed(p, n, seed);
}

static inline uint64_t hash_text(uint64_t seed, const char *text)
{
	return hash_bytes(seed, text, strlen(text));
}

/* dir/name; the other one alone where dir or name is "". NULL: no memory. The caller frees it. */
static inline char *path_join(const char *dir, const char *name)
{
	char *p;
	return asprintf(&p, "%s%s%s", dir, *dir && *name ? "/" : "", name) < 0 ? NULL : p;
}

/* ---- log.c; any thread, any lock held ---- */

/* Logs text (io/level.h) and keeps it for status, unless it is below a notice. fs: a struct fs. */
void fs_notice(void *fs, const char *text);
/* Replaces control characters by '?', except the byte `but` (0: none): names can hold anything, and
 * messages about them go to terminals. */
void text_plain(char *text, char but);
void fs_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* From now on to STORE/.cairn/<host>/log and, not in the foreground, to syslog. Before the process
 * is confined. */
void fs_log_start(struct fs *fs);
void fs_log_level(unsigned level); /* syslog(3)'s; what is above it is not logged */
/* From now on a thread of its own writes the store's file. In the worker, which then ends with
 * fs_log_end(): that waits a second at most for what is queued. */
void fs_log_aside(void);
void fs_log_end(void);
/* Call it now and then: logs how often equal lines came that were not logged. end: all of them. */
void fs_log_look(bool end);
void fs_log_again(struct fs *fs); /* the store went or came back: opens its log again */
/* nothing more goes to the process that started cairnfs, if that does not stay */
void fs_log_leave_terminal(void);

/* ---- notify.c: the service manager, if there is one ---- */

void notify_start(void);
/* text: assignments as sd_notify(3) has. */
void notify_manager(const char *text);
/* The same, if the manager takes it at once. */
bool notify_status(const char *text);
bool notify_is_on(void);

/* ---- session.c: threads that answer ---- */

/* The request that this thread answers. */
struct current {
	uint64_t unique; /* without the resend bit */
	bool resent;
	uint64_t ticket; /* RELEASEs read before it */
	unsigned slot;
	bool reads; /* no other thread reads while this one answers */
	bool tight; /* its caller's memory cgroup has little left; ops/payer.c */
	/* one of N_THREADS: what waits for long continues on another thread */
	bool slotted;
	bool left; /* another thread has its slot: it ends after this request */
	enum timed_op timed; /* counted in fs->timings when it is answered */
	uint64_t begun_ns;
	const void *request; /* as it was read, while this thread answers it; NULL */
	size_t request_len;
	bool second, gives, given; /* session_gives() */
};
extern _Thread_local struct current current;

/* From now until this request is answered, on whichever thread, counts as one operation. */
void session_timed(enum timed_op op);
/* Call it before this thread waits for the store, for a copy or for another thread: another one
 * reads meanwhile. Not with the tree lock held for long; any number of times. */
void session_may_block(struct fs *fs);
/* The same before work of some 100 us, if requests wait already. */
void session_may_take_long(struct fs *fs);
/* Calls fn(arg), which answers this thread's request and may take half a minute, on a thread of its
 * own, or on this one if no thread can be made. */
void session_offload(struct fs *fs, void (*fn)(void *arg), void *arg);
/* A question to the store that a thread waits for. */
struct asking {
	struct asking *next, **back;
	uint64_t since;
	struct current who;
	bool taken; /* another thread answers this request; slots.lock */
};
/* Around a question to the store: others are answered meanwhile, even where it never returns. False
 * (then current.given is true): another thread answers this request, or did; this one ends it
 * without an answer and without an effect. */
void session_asks(struct fs *fs, struct asking *a);
bool session_asked(struct fs *fs, struct asking *a);
/* If a question to the store that follows has no answer when session_is_silent(), the request
 * begins again on another thread (current.second). For a request without an effect until then that
 * heeds current.given. */
void session_gives(void);
/* The store does not answer: what was last seen of it counts. */
bool session_is_silent(const struct fs *fs);
/* Call it a few times a second, from a thread that does not wait for the store itself. */
void session_look(struct fs *fs);
/* The connection is gone: waits for all threads that answer. */
void session_join(struct fs *fs);
/* Waits for the RELEASEs that the kernel sent before this request. No lock held. */
void release_barrier(struct fs *fs);
/* Starts the threads that answer, once fs->wire is set. 0; -ENOMEM, -EAGAIN: not all of them. */
int session_start(struct fs *fs);

/* ---- trust.c: before the process has threads ---- */

bool trust_may_mount(void); /* CAP_SYS_ADMIN: without fusermount3 */
/* also for the workers that it starts later; 0 or -errno */
int trust_keeper(struct fs *fs);
int trust_worker(struct fs *fs); /* 0 or -errno */
/* These end the process where they fail. */
void trust_freezer(void);
/* bytes of address space that each parser may have */
void trust_nursery(uint64_t parser_memory);
void trust_parser(void);

/* ---- oom.c ---- */

/* This process and its children are killed last when memory is short: what they hold is a tmpfs,
 * which their death does not free. Without CAP_SYS_RESOURCE only as other processes. */
void oom_protect(void);
/* This process has memory of its own, and may be killed like others. */
void oom_unprotect(void);

/* ---- store_space.c ---- */

/* Asks the store for fs->space, unless somebody just did. A store that does not answer is waited
 * for a second, and not at all once that is known: fs->space stays as it was. No lock held. */
void store_space_look(struct fs *fs);

/* ---- spare.c ---- */

void spare_init(struct fs *fs);
/* Forks a spare for the worker at the other end of life: its pid, or -1. Returns in the spare too,
 * when it has become the keeper: *adopted. */
pid_t spare_start(struct fs *fs, int life, bool *adopted);
/* by the worker; true if only the spare is there */
bool keeper_is_there(const struct fs *fs);
void keeper_look(struct fs *fs); /* by the worker, now and then */
/* This process keeps the locks of the store and of staging: both files say so. */
void keeper_sign(struct fs *fs);
_Noreturn void worker_exit(struct fs *fs, int code);
unsigned keepers_replaced(const struct fs *fs);

#endif

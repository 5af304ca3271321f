/* SPDX-License-Identifier: MIT
 * The processes of a mount: what the files of process/ share. Nothing else includes it.
 */
#ifndef CAIRN_FS_PROCESS_H
#define CAIRN_FS_PROCESS_H

#include "fs/latest/latest.h"
#include "fs/ops/ops.h"
#include "fs/parser/parser.h"
#include "fs/remote/remote.h"
#include "fs/wire/wire.h"

#define STAGING_MIN (4u << 20)
/* What cairnfs takes of a memory cgroup besides staging. Measured on two cores, while 900 MiB and
 * 900 small files were moved with staging=16M: 45 MiB, of which 38 are the worker's own memory, 4
 * the kernel's, 3 the log's tmpfs and page cache. More processors take more. */
#define DAEMON_BYTES (64u << 20)

int options_parse(int argc, char **argv, struct fs_opts *o, struct fuse_args *rest);

/* ---- mountpoint.c ---- */

/* Resolves mnt without a request to the daemon mounted there; free it. NULL: it does not exist. */
char *mountpoint_resolve(const char *mnt);
/* Makes the directory that fd has open immutable: not even root can make files in it; or, on false,
 * undoes that. 1: it was so already; -errno: nothing is changed. */
int mountpoint_immutable(int fd, bool on);
/* Changes the kernel's flags (ro, noexec, ...) of the mount at mnt to options, a list, which is
 * modified. 0; -errno, and stderr has why. */
int mountpoint_remount(const char *mnt, char *options);
/* The type of the topmost mount at path, which is absolute. -ENOENT: nothing is mounted there. */
int mountpoint_top(const char *path, char *type, size_t cap);
/* Where the cairnfs is mounted whose files are on device dev. -ENOENT: they are no cairnfs's. */
int mountpoint_of(dev_t dev, char *path, size_t cap);
/* Where the cairnfs that is process pid has mounted a store. -ENOENT: nowhere (any more), by
 * another path of the store, or in another mount namespace; or it is one of several mounts of it,
 * as when another one reads it with ro. */
int mountpoint_of_store(const char *store, int pid, char *path, size_t cap);

/* ---- takeover.c ---- */

/* Whether the mount on top at mnt is a cairnfs whose processes are dead: 1 or 0; -errno, and stderr
 * has why it cannot be told. Of several dead ones all but one are unmounted. */
int takeover_look(const char *mnt);
/* Puts what mount(arg) mounts at path, which is resolved, in the place of the dead mount there. As
 * root no program sees the directory under it meanwhile (docs/DURABILITY.md has the exceptions); on
 * an error the dead mount stays, where that is so. 0; mount()'s error; -errno, and stderr has why.
 * mount() may be called in another thread. */
int takeover_mount(const char *path, int (*mount)(void *arg), void *arg);

/* ---- keeper.c, worker.c ---- */

int keeper_run(struct fs *fs, struct fuse_args *rest);
/* The exit codes of a worker, and of a mount that ran. */
enum {
	EXIT_FAILED = 1, /* no worker can be started */
	EXIT_CANNOT = 3, /* it cannot serve */
	EXIT_LEFT, /* some is left in staging for the next start */
	EXIT_DEATHS, /* the keeper's: workers died too often */
	EXIT_REFUSED, /* nothing is left in staging, but the store refused some of it */
	/* the store's filesystem is gone, or back: the keeper closes the store, or opens it again,
	 * before it starts the next worker */
	EXIT_STORE_GONE = 20,
	EXIT_STORE_BACK,
	EXIT_CLAIM_LOST, /* another cairnfs took this host's claim: as EXIT_STORE_GONE */
};
int worker_run(struct fs *fs, int fuse_fd, const void *init, size_t init_len, bool first);

/* ---- limits.c ---- */

/* Follows the words for -errno of a start: which limit of the shell, service or cgroup it may be,
 * and what to do. "" if none. */
const char *limit_hint(int err);

/* ---- staged_in.c ---- */

/* In the keeper, before it is confined: says what earlier mounts left staged in places that this
 * mount does not use, and notes its own place in the store. */
void staged_in_tell(struct fs *fs);
/* A clean end that leaves nothing in this mount's place, whose log has that number. Waits for the
 * store. */
void staged_in_end(struct fs *fs, uint64_t log);

/* ---- tier.c ---- */

/* The path of a program that is installed beside this one. -errno: it is not there, or cannot be
 * executed. */
int tier_find_program(const char *name, char out[PATH_MAX]);
/* In the keeper, before it is confined, after spare_init(): starts sending to fs->o.tier, and what
 * answers questions about it. */
void tier_start(struct fs *fs);
/* In the keeper, when the worker has ended: ends that, and logs what is not in the tier. */
void tier_end(struct fs *fs);
/* In the worker: logs what has changed. Only reads memory. */
void tier_look(struct fs *fs);

/* ---- manager.c ---- */

/* In the worker: tells the service manager what is not durable yet, when that has changed. Call it
 * often. */
void manager_look(struct fs *fs, bool ended);

/* ---- store_watch.c: a thread of the worker ---- */

/* Watches whether the store's filesystem is still there, or back. Then the worker exits with
 * EXIT_STORE_GONE or EXIT_STORE_BACK. */
int store_watch_start(struct fs *fs);

/* ---- hosts.c: a thread of the worker ---- */

/* Tells the other hosts of the store that this one is alive, and watches them. Not with ro, and not
 * while the store is away. 0 or -EAGAIN. */
int hosts_start(struct fs *fs);
/* staging_opts.may_publish: -EADDRINUSE: another cairnfs may serve the store as this host. Asks the
 * store if the last heartbeat was long ago. */
int hosts_may_publish(void *fs);
/* Why the store is away: err as of io_store_is_back(), with *by. True if that is new; then text has
 * it for a notice. */
bool hosts_refused(struct fs *fs, int err, const struct io_host *by, char *text, size_t cap);
/* A clean end: says so in the store, and what stays in staging; all: nothing does. Waits a few
 * seconds at most for a store that does not answer. */
void hosts_end(struct fs *fs, bool all);

#endif

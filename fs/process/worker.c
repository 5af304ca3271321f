/* SPDX-License-Identifier: MIT
 * The worker: recovers staging, answers the kernel, drains. It may be killed at any instant; the
 * keeper starts another and nothing is lost.
 */
#include "fs/process/process.h"
#include "io/goes_on.h"
#include "io/refused.h"
#include "staging/memory/pin.h"

#include <errno.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <unistd.h>

static volatile sig_atomic_t asked_to_end;

static void on_term(int sig)
{
	(void)sig;
	asked_to_end = 1;
}

/* Landlock forbids a worker to remount; the keeper does it. */
static void ask_limit(void *ctx, bool on)
{
	const struct fs *fs = ctx;
	struct keepers *k = fs->procs.keepers;

	if (!k)
		return;
	atomic_store(&k->limit_wanted, ((atomic_load(&k->limit_wanted) / 2 + 1) * 2) | on);
	if (write(fs->procs.limit[1], "1", 1) != 1 && errno != EAGAIN)
		fs_log(LEVEL_WARNING "the keeper cannot be asked to limit staging's tmpfs: %s",
		       strerror(errno));
}

static int is_limited(void *ctx)
{
	const struct fs *fs = ctx;
	struct keepers *k = fs->procs.keepers;

	if (!k)
		return -ENOTSUP;
	if (atomic_load(&k->limit_done) == atomic_load(&k->limit_wanted))
		return atomic_load(&k->limit_error);
	return keeper_is_there(fs) ? -EAGAIN : -ESRCH;
}

static int open_staging(struct fs *fs)
{
	struct staging_opts o = {
		.store = fs->store,
		.engine = fs->engine,
		.place = fs->place,
		.budget_bytes = fs->o.staging_bytes,
		.pool_bytes = fs->o.pool_bytes,
		.persist_threads = fs->o.persist_threads,
		.hold = {.commits = commit_is_name,
			 .missing = commit_missing,
			 .patience_ms = fs->o.commit_wait_s * 1000},
		.may_publish = hosts_may_publish,
		.outgrown = freeze_ask,
		.limit = ask_limit,
		.limited = is_limited,
		.is_limited =
			fs->procs.keepers && atomic_load(&fs->procs.keepers->limit_wanted) & 1,
		.no_dedup = fs->o.nodedup,
		.no_early = fs->o.noearly,
		.previous = fs->o.noprevious ? NULL : COMMIT_NAME,
		.gone = fs->procs.gone.log,
		.n_gone = fs->procs.gone.n,
		.notice = fs_notice,
		.ctx = fs,
	};
	return staging_open(&o, &fs->s);
}

/* Staged files cannot be published, because the store is full or fails, or some wait for other
 * nodes (why: -EAGAIN). Serves them as they were:
 * the tree is restored from the log as after a worker's death, but the connection of its handles is
 * gone. */
static int resume(struct fs *fs, int why)
{
	char text[400];

	staging_close(fs->s);
	fs->s = NULL;
	int err = open_staging(fs);
	if (!err)
		err = staging_replay(fs->s, fs_replay, fs);
	if (!err)
		buffers_restored(fs);
	if (!err)
		err = staging_sweep(fs->s, false);
	if (!err)
		err = staging_start(fs->s);
	if (err)
		return err;
	seal_restored(fs);
	close_restored(fs);
	if (why == -EAGAIN)
		snprintf(text, sizeof(text),
			 LEVEL_WARNING
			 "some of what was staged when the last cairnfs ended waits for other "
			 "nodes; it stays in staging and is served from there; see cairn status");
	else
		snprintf(text, sizeof(text),
			 LEVEL_ERROR
			 "what was staged when the last cairnfs ended cannot be published yet "
			 "(%.80s); it stays in staging and is served from there; make space in the "
			 "store or repair it" GOES_ON,
			 strerror(-why));
	fs_notice(fs, text);
	return 0;
}

/* After a restart the connection still exists: the tree, the handles and the order are restored
 * from the log. At a first start there is none: what is pending is published first, so that the
 * tree starts clean. */
static int recover(struct fs *fs, bool first)
{
	int err = staging_replay(fs->s, first ? NULL : fs_replay, fs);
	if (!err && first)
		err = staging_new_connection(fs->s);
	if (!err)
		buffers_restored(fs);
	bool away = io_store_is_detached(fs->store);
	if (!err && !first && !away)
		nodes_keep_again(fs);
	if (!err && !away)
		err = staging_sweep(fs->s, first);
	if (!err)
		err = staging_start(fs->s);
	if (!err && !first && !away)
		seal_restored(fs);
	if (err || !first)
		return err;
	struct staging_stats st;
	staging_get_stats(fs->s, &st);
	if (st.log.pending)
		fs_log(LEVEL_NOTICE
		       "%s: %llu changes and %llu files were staged when the last cairnfs ended; "
		       "publishing them first",
		       fs->o.store, (unsigned long long)st.log.pending,
		       (unsigned long long)st.recovered.versions);
	err = staging_drain(fs->s, -1);
	if (err)
		return resume(fs, err);
	if (!err) {
		pthread_mutex_lock(&fs->tree.lock);
		err = staging_rotate(fs->s, fs_emit, fs);
		pthread_mutex_unlock(&fs->tree.lock);
	}
	return err;
}

static int start_session(struct fs *fs, int fuse_fd, const void *init, size_t init_len, bool first)
{
	char path[32];
	char *argv[] = {"cairnfs", "-d", NULL};
	struct fuse_args args = FUSE_ARGS_INIT(fs->o.debug ? 2 : 1, argv);

	fs->se = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fs);
	if (!fs->se)
		return -EINVAL;
	snprintf(path, sizeof(path), "/dev/fd/%d", fuse_fd);
	if (fuse_session_mount(fs->se, path))
		return -EIO;
	int err = wire_run(fs, init, init_len, !first);
	return err ? err : upkeep_start(fs);
}

static void wait_for_end(struct fs *fs)
{
	for (;;) {
		if (fuse_session_exited(fs->se))
			break;
		keeper_look(fs);
		tier_look(fs);
		manager_look(fs, false);
		session_look(fs); /* the upkeep thread may be waiting for the store */
		if (asked_to_end) { /* files are still open; what is closed is drained */
			struct staging_stats st;
			int err = staging_drain(fs->s, 60000);
			staging_get_stats(fs->s, &st);
			bool left =
				err || st.versions.open || st.versions.failed || st.recovered.kept;
			if (left)
				fs_log(LEVEL_WARNING
				       "%s: ended with %llu changes and %llu open files left in "
				       "staging for the next start",
				       fs->o.store, (unsigned long long)st.log.pending,
				       (unsigned long long)st.versions.open);
			hosts_end(fs, !left);
			staging_flush_timeline(fs->s);
			worker_exit(fs, left ? EXIT_LEFT : 0);
		}
		sleep_ms(20);
	}
	atomic_store(&fs->stopping, true);
}

/* Logs if staging is smaller than requested, or if the store is in memory and nothing in it is
 * durable. */
static void tell_of_memory(struct fs *fs)
{
	struct statfs st;
	char where[256], text[256];

	if (fs->o.tmpfs_bytes) {
		snprintf(text, sizeof(text),
			 LEVEL_WARNING
			 "staging is %llu MiB instead of %llu: the tmpfs that it is in has %llu "
			 "MiB; make that larger (a container's --shm-size), or give a smaller "
			 "staging=",
			 (unsigned long long)fs->o.staging_bytes >> 20,
			 (unsigned long long)fs->o.staging_asked >> 20,
			 (unsigned long long)fs->o.tmpfs_bytes >> 20);
		fs_notice(fs, text);
	} else if (fs->o.staging_asked) {
		unsigned long long limit = pin_cgroup_limit(NULL, where);
		snprintf(text, sizeof(text),
			 LEVEL_WARNING
			 "staging is %llu MiB instead of %llu: the memory cgroup %.80s allows %llu "
			 "MiB; raise its limit, or give a smaller staging=",
			 (unsigned long long)fs->o.staging_bytes >> 20,
			 (unsigned long long)fs->o.staging_asked >> 20, where, limit >> 20);
		fs_notice(fs, text);
	}
	if (!fstatfs(io_store_root(fs->store), &st) &&
	    (st.f_type == TMPFS_MAGIC || st.f_type == RAMFS_MAGIC))
		fs_notice(fs, LEVEL_WARNING
			  "the store is in memory (tmpfs, ramfs): files that are durable here "
			  "do not survive a power cut or a restart of the machine");
}

/* Raised as far as this process may. */
static void raise_limits(struct fs *fs)
{
	static const int kinds[] = {RLIMIT_NOFILE, RLIMIT_FSIZE};
	char text[160];
	struct rlimit rl;

	for (int i = 0; i < 2; i++)
		if (!getrlimit(kinds[i], &rl)) {
			rl.rlim_cur = rl.rlim_max;
			setrlimit(kinds[i], &rl);
		}
	rl = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
	if (!setrlimit(RLIMIT_FSIZE, &rl) || getrlimit(RLIMIT_FSIZE, &rl) ||
	    rl.rlim_cur == RLIM_INFINITY)
		return;
	snprintf(text, sizeof(text),
		 LEVEL_WARNING "files larger than %llu MiB cannot be stored: cairnfs was started "
			       "with such a limit (ulimit -f)",
		 (unsigned long long)(rl.rlim_cur >> 20));
	fs_notice(fs, text);
}

static void set_up_process(struct fs *fs)
{
	struct sigaction sa = {.sa_handler = on_term};

	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* EFBIG says it */
	raise_limits(fs);
}

/* Restores the tree and staging from the last cairnfs or worker. */
static int restore(struct fs *fs, bool first)
{
	int err = trust_worker(fs);
	fs_log_aside();
	if (!err && !io_store_is_detached(fs->store))
		err = io_store_ask_aside(fs->store);
	if (!fs->o.ro && !io_store_is_detached(fs->store))
		atomic_store(&fs->hosts.others, io_store_shared(fs->store) != 0);
	if (!err) /* before the recovery, which may take longer than others wait for a heartbeat */
		err = hosts_start(fs);
	if (!err)
		err = tree_init(fs);
	if (!err)
		err = open_staging(fs);
	if (!err && first && !fs->o.ro) {
		pin_report(NULL, &fs->place, fs->o.staging_bytes, fs_notice, fs);
		tell_of_memory(fs);
	}
	return err ? err : recover(fs, first);
}

/* Tells the service manager, and the starting process, that the mount answers. The manager first:
 * it must know the keeper when the starting process ends. */
static void report_ready(struct fs *fs)
{
	char text[64];

	snprintf(text, sizeof(text), "READY=1\nMAINPID=%d", (int)fs->procs.keeper_pid);
	notify_manager(text);
	if (fs->procs.ready_fd < 0)
		return;
	if (write(fs->procs.ready_fd, "1", 1) != 1)
		fs_log(LEVEL_WARNING "the process that waited for the mount has exited");
	close(fs->procs.ready_fd);
	fs->procs.ready_fd = -1;
}

static void log_start(struct fs *fs, bool first)
{
	if (first)
		fs_log("%s: cairnfs " CAIRN_VERSION " serves it at %s%s; staging is %llu MiB in %s",
		       fs->o.store, fs->o.mountpoint, fs->o.ro ? ", read-only" : "",
		       (unsigned long long)fs->o.staging_bytes >> 20, fs->place.path);
	else
		fs_log("%s: another worker serves it at %s; what was accepted is there",
		       fs->o.store, fs->o.mountpoint);
}

/* After the unmount: writes all closed files to the store. False: something stays in staging, which
 * the log names. */
static bool drain_all(struct fs *fs)
{
	struct staging_stats left;
	unsigned unclosed = close_all(fs), kept;
	uint64_t since = 0;
	int err;

	do {
		err = staging_drain_on(fs->s, 1000, &since);
		manager_look(fs, true);
	} while (err == -ETIMEDOUT && !asked_to_end);
	staging_get_stats(fs->s, &left);
	if (err == -EAGAIN)
		fs_log(LEVEL_WARNING
		       "%s: %s waits for other nodes: %s; it and %llu changes behind it stay in "
		       "staging for the next start",
		       fs->o.store, left.held.path, left.held.what,
		       (unsigned long long)left.held.behind);
	else if (err)
		fs_log(LEVEL_ERROR
		       "%s: %s; what is not in the store yet stays in staging for the next start",
		       fs->o.store, strerror(-err));
	else if (left.versions.failed)
		fs_log(LEVEL_ERROR
		       "%s: %llu closed files found no space in the store; staging is kept, the "
		       "next start puts them into .cairn/lost+found",
		       fs->o.store, (unsigned long long)left.versions.failed);
	else if (unclosed)
		fs_log(LEVEL_WARNING
		       "%s: %u files were still being written when the mount ended; the next start "
		       "puts them into .cairn/lost+found",
		       fs->o.store, unclosed);
	else if ((kept = staging_keep_again(fs->s)))
		fs_log(LEVEL_WARNING
		       "%s: %u files that were never closed found no space in .cairn/lost+found; "
		       "they stay in staging for the next start",
		       fs->o.store, kept);
	else
		return true;
	return false;
}

/* All else is in the store: nothing is left to do for the next start. */
static bool some_refused(struct fs *fs)
{
	char kept[REFUSED_KEPT];
	struct staging_stats st;

	staging_get_stats(fs->s, &st);
	if (st.refused.count)
		fs_log(LEVEL_WARNING
		       "%s: the store refused %llu of the changes, the last at %s: %s; %s",
		       fs->o.store, (unsigned long long)st.refused.count, st.refused.path,
		       strerror(-st.refused.error),
		       refused_kept(st.refused.count, st.refused.kept, kept));
	return st.refused.count;
}

int worker_run(struct fs *fs, int fuse_fd, const void *init, size_t init_len, bool first)
{
	struct stat st;

	fs->procs.worker_ns = monotonic_ns();
	set_up_process(fs);
	int err = restore(fs, first);
	if (!err)
		node_stat(fs, fs->tree.root, &st);
	/* before this there are no other threads that the lock could block */
	if (fs->check)
		io_engine_check(fs->engine, fs->check, fs);
	if (!err)
		err = start_session(fs, fuse_fd, init, init_len, first);
	if (!err)
		err = store_watch_start(fs);
	if (!err)
		err = remote_start(fs);
	if (err) {
		fs_log(LEVEL_ERROR "%s: cannot serve: %s%s", fs->o.store, strerror(-err),
		       err == -EIO || err == -ENOSPC
			       ? "; the store fails, staging keeps what it has"
			       : limit_hint(err));
		return EXIT_CANNOT;
	}
	report_ready(fs);
	fs_log_leave_terminal();
	log_start(fs, first);
	wait_for_end(fs);
	notify_manager("STOPPING=1");
	/* unmounted: no callers are left, only work */
	session_join(fs);
	upkeep_join(fs);
	remote_stop(); /* who waits for the tier's listing goes on */
	latest_stop();
	waits_stop(fs);
	bool all = drain_all(fs);
	hosts_end(fs, all);
	staging_flush_timeline(fs->s);
	if (!all)
		return EXIT_LEFT;
	bool refused = some_refused(fs);
	staging_clear(fs->s);
	return refused ? EXIT_REFUSED : 0;
}

/* SPDX-License-Identifier: MIT
 * The worker: recovers staging, answers the kernel, drains. Any of its instants
 * may be its last; the keeper starts another and nothing is lost. */
#include "fs/fs.h"
#include "staging/pin.h"

#include <errno.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <unistd.h>

/* RELEASE is a background request. Past this limit (12 unless we say otherwise) the kernel
 * holds them back (fs/fuse/dev.c, flush_bg_queue), and what a program does after its close
 * would be read before that close. */
#define MAX_BACKGROUND 65535u

void fs_notice(void *ctx, const char *text)
{
	struct fs *fs = ctx;
	pthread_mutex_lock(&fs->notice_lock);
	unsigned i = fs->n_notices++ % 16;
	snprintf(fs->notices[i], sizeof(fs->notices[i]), "%s", text);
	pthread_mutex_unlock(&fs->notice_lock);
	fs_log("%s", text);
}

void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs *fs = userdata;
	struct statfs st;

	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_READ);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_WRITE);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_MOVE);
	fuse_set_feature_flag(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
	fuse_set_feature_flag(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	if (!fs->o.nopassthrough && fs->uid == 0 && fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH)) {
		bool stacked = statfs(fs->o.store, &st) == 0 && st.f_type == OVERLAYFS_SUPER_MAGIC;
		conn->max_backing_stack_depth = stacked ? FUSE_BACKING_STACKED_OVER : FUSE_BACKING_STACKED_UNDER;
		atomic_store(&fs->passthrough, true);
	} else if (!fs->o.nopassthrough && fs->restarts == 0) {
		fs_notice(fs, fs->uid ? "no passthrough without root: every file takes the relay lane" :
			  "this kernel has no FUSE passthrough (before 6.9): every file takes the relay lane");
	}
	conn->time_gran = 1;
	conn->max_background = MAX_BACKGROUND;
	conn->congestion_threshold = MAX_BACKGROUND;
}

const struct fuse_lowlevel_ops fs_ops = {
	.init = op_init,
	.lookup = op_lookup, .forget = op_forget, .forget_multi = op_forget_multi,
	.getattr = op_getattr, .setattr = op_setattr, .readlink = op_readlink,
	.mknod = op_mknod, .mkdir = op_mkdir, .unlink = op_unlink, .rmdir = op_rmdir,
	.symlink = op_symlink, .rename = op_rename, .link = op_link,
	.open = op_open, .create = op_create, .read = op_read, .write = op_write,
	.flush = op_flush, .release = op_release, .fsync = op_fsync,
	.opendir = op_opendir, .readdir = op_readdir, .readdirplus = op_readdirplus,
	.releasedir = op_releasedir, .fsyncdir = op_fsyncdir, .statfs = op_statfs,
	.setxattr = op_setxattr, .getxattr = op_getxattr, .listxattr = op_listxattr,
	.removexattr = op_removexattr, .fallocate = op_fallocate, .lseek = op_lseek,
	.copy_file_range = op_copy_file_range,
	/* no getlk, setlk, flock: the kernel keeps locks itself. No ioctl: ENOTTY. */
};

static volatile sig_atomic_t asked_to_end;

static void on_term(int sig)
{
	(void)sig;
	asked_to_end = 1;
}

static int open_staging(struct fs *fs)
{
	struct staging_opts o = {
		.store = fs->store, .engine = fs->engine, .place = fs->place,
		.budget_bytes = fs->o.staging_bytes, .ballast_bytes = fs->o.ballast_bytes,
		.persist_threads = fs->o.persist_threads,
		.hold = {.commits = commit_is_name, .missing = commit_missing, .patience_ms = fs->o.commit_wait_s * 1000},
		.outgrown = still_ask, .no_dedup = fs->o.nodedup, .notice = fs_notice, .ctx = fs,
	};
	return staging_open(&o, &fs->s);
}

/* After a restart the connection lives: the tree, handles and the order come back
 * from the log. At a first start it does not: what is pending is published first,
 * so that the tree starts clean. */
static int recover(struct fs *fs, bool first)
{
	atomic_store(&fs->holds, !first);
	int rc = staging_replay(fs->s, first ? NULL : fs_replay, fs);
	if (!rc)
		buffers_restored(fs);
	if (!rc)
		rc = staging_sweep(fs->s, first);
	if (!rc)
		rc = staging_start(fs->s);
	if (!rc && !first)
		seal_restored(fs);
	if (rc || !first)
		return rc;
	struct staging_stats st;
	staging_get_stats(fs->s, &st);
	if (st.pending_records)
		fs_log("%s: %llu changes and %llu files were staged when the last cairnfs ended; publishing them first",
		       fs->o.store, (unsigned long long)st.pending_records, (unsigned long long)st.recovered_files);
	rc = staging_drain(fs->s, -1);
	if (!rc) {
		pthread_mutex_lock(&fs->lock);
		rc = staging_rotate(fs->s, fs_emit, fs);
		pthread_mutex_unlock(&fs->lock);
	}
	atomic_store(&fs->holds, true);
	return rc;
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
	return session_run(fs, init, init_len, !first);
}

static void wait_for_end(struct fs *fs)
{
	bool orphan = false;
	for (;;) {
		struct timespec t = {.tv_nsec = 20000000};
		if (fuse_session_exited(fs->se))
			break;
		if (!orphan && getppid() != fs->keeper_pid) {
			orphan = true;
			fs_log("%s: the keeper is gone; serving on, but nobody will start another worker", fs->o.store);
			io_store_lock_pid(fs->store, (int)getpid());
		}
		if (asked_to_end) {	/* files are still open somewhere; what is closed is drained */
			struct staging_stats st;
			int rc = staging_drain(fs->s, 60000);
			staging_get_stats(fs->s, &st);
			if (rc || st.n_open || st.n_failed)
				fs_log("%s: ended with %llu changes and %llu open files left in staging for the next start",
				       fs->o.store, (unsigned long long)st.pending_records, (unsigned long long)st.n_open);
			_exit(rc || st.n_open || st.n_failed ? 4 : 0);
		}
		nanosleep(&t, NULL);
	}
	atomic_store(&fs->stopping, true);
}

/* All is kept there but what durable means. */
static void tell_of_memory(struct fs *fs)
{
	struct statfs st;
	if (!fstatfs(io_store_root(fs->store), &st) && (st.f_type == TMPFS_MAGIC || st.f_type == RAMFS_MAGIC))
		fs_notice(fs, "the store is in memory (tmpfs, ramfs): what is called durable here survives no power cut "
			      "and no restart of the machine");
}

int worker_run(struct fs *fs, int fuse_fd, const void *init, size_t init_len, bool first)
{
	struct sigaction sa = {.sa_handler = on_term};
	struct rlimit rl;
	struct stat st;

	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (!getrlimit(RLIMIT_NOFILE, &rl)) {
		rl.rlim_cur = rl.rlim_max;
		setrlimit(RLIMIT_NOFILE, &rl);
	}
	int rc = tree_init(fs);
	if (!rc)
		rc = open_staging(fs);
	if (!rc && first && !fs->o.ro)
		pin_report(NULL, &fs->place, fs->o.staging_bytes, fs_notice, fs);
	if (!rc && first && !fs->o.ro)
		tell_of_memory(fs);
	if (!rc)
		rc = recover(fs, first);
	if (!rc)
		node_stat(fs, fs->root, &st);
	if (!rc)
		rc = trust_drop(fs);
	if (!rc)
		rc = start_session(fs, fuse_fd, init, init_len, first);
	if (rc) {
		fs_log("%s: cannot serve: %s%s", fs->o.store, strerror(-rc),
		       rc == -EIO || rc == -ENOSPC ? "; the store fails, staging keeps what it has" : "");
		return 3;
	}
	if (fs->ready_fd >= 0) {
		if (write(fs->ready_fd, "1", 1) != 1)
			fs_log("nobody waits for the mount any more");
		close(fs->ready_fd);
		fs->ready_fd = -1;
	}
	pthread_mutex_lock(&fs->log_lock);	/* else a thread writes its line into what gets the number next */
	if (fs->err_fd >= 0)
		close(fs->err_fd);
	fs->err_fd = -1;
	pthread_mutex_unlock(&fs->log_lock);
	wait_for_end(fs);
	/* unmounted: no caller is left, only work */
	for (unsigned i = 0; i < N_THREADS; i++)
		pthread_join(fs->threads[i], NULL);
	while (atomic_load(&fs->n_apart))
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	pthread_join(fs->house, NULL);
	latest_stop();
	unsigned unclosed = close_all(fs);
	do {
		rc = staging_drain(fs->s, 1000);
	} while (rc == -ETIMEDOUT && !asked_to_end);
	if (rc) {
		fs_log("%s: %s; what is not in the store yet stays in staging for the next start", fs->o.store,
		       strerror(-rc));
		return 4;
	}
	struct staging_stats left;
	staging_get_stats(fs->s, &left);
	if (left.n_failed) {
		fs_log("%s: %llu closed files found no room in the store; staging is kept, the next start puts them "
		       "into .cairn/lost+found", fs->o.store, (unsigned long long)left.n_failed);
		return 4;
	}
	if (unclosed) {
		fs_log("%s: %u files were still being written when the mount went; the next start puts them into "
		       ".cairn/lost+found", fs->o.store, unclosed);
		return 4;
	}
	staging_clear(fs->s);
	return 0;
}

/* SPDX-License-Identifier: MIT
 * Freezes a file: no write(2) to it is in progress while its older bytes move from memory to the
 * store (staging/file/outgrow.c).
 *
 * A passthrough write holds the FUSE inode's lock from beginning to end (fs/fuse/passthrough.c),
 * and setxattr(2) (fs/xattr.c) holds it until the worker has answered. So the worker has another
 * process set an xattr of the file, and moves the bytes before it answers.
 *
 * That process cannot be the worker: a thread of it that waits for an answer which only the next
 * worker can give would keep it from exiting. Nor the keeper: it holds the fuse descriptor and
 * would keep the connection from ending. It is a small process of its own, the freezer, which ends
 * when no process of the mount is left that could write to it. It opens the file by a name that
 * only it knows: MOUNT/.cairn/freeze-<key>-<node>.
 */
#include "fs/ops/inside.h"
#include "io/number.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/xattr.h>
#include <unistd.h>

#define PREFIX "freeze-"
#define NAME_CAP 64

static int name_of(const struct fs *fs, uint64_t node, char *buf, size_t cap)
{
	return snprintf(buf, cap, PREFIX "%s-%llu", fs->freezer.key, (unsigned long long)node);
}

static _Noreturn void serve(const struct fs *fs, int from)
{
	uint64_t node;
	char name[NAME_CAP], path[PATH_MAX];

	prctl(PR_SET_NAME, "cairnfs-freezer");
	signal(SIGTERM, SIG_IGN); /* it ends with its pipe */
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	dup2(from, 0);
	close_range(1, ~0u, 0); /* the store's lock, the connection and others */
	trust_freezer();
	while (read(0, &node, sizeof(node)) == sizeof(node)) {
		name_of(fs, node, name, sizeof(name));
		snprintf(path, sizeof(path), "%s/" CONTROL_DIR_NAME "/%s", fs->o.mountpoint, name);
		setxattr(path, KEY_FREEZE, fs->freezer.key, strlen(fs->freezer.key), 0);
	}
	_exit(0);
}

void freeze_start(struct fs *fs)
{
	unsigned char key[16];
	int p[2];

	fs->freezer.fd = -1;
	if (fs->o.ro || fs->o.nopassthrough || fs->uid)
		return; /* every write passes through the worker */
	if (getrandom(key, sizeof(key), 0) != (ssize_t)sizeof(key) || pipe2(p, O_CLOEXEC))
		return;
	for (unsigned i = 0; i < sizeof(key); i++)
		snprintf(fs->freezer.key + 2 * i, 3, "%02x", key[i]);
	pid_t pid = fork();
	if (pid == 0)
		serve(fs, p[0]);
	close(p[0]);
	fs->freezer.fd = p[1];
	fcntl(fs->freezer.fd, F_SETFL, O_NONBLOCK);
	if (pid < 0) {
		close(fs->freezer.fd);
		fs->freezer.fd = -1;
	}
}

void freeze_ask(void *ctx, uint64_t node)
{
	struct fs *fs = ctx;
	if (fs->freezer.fd < 0 ||
	    write(fs->freezer.fd, &node, sizeof(node)) == (ssize_t)sizeof(node))
		return;
	if (errno == EPIPE) { /* else the process is busy: retried later */
		fs->freezer.fd = -1;
		fs_notice(fs, LEVEL_WARNING "the freezer process has ended: files that outgrow "
					    "memory stay in it until they are closed");
	}
}

bool freeze_lookup(fuse_req_t req, const char *name)
{
	struct fs *fs = req_fs(req);
	size_t len = strlen(fs->freezer.key);
	struct fuse_entry_param e;
	struct stat st;

	if (!len || strncmp(name, PREFIX, sizeof(PREFIX) - 1))
		return false;
	name += sizeof(PREFIX) - 1;
	if (strncmp(name, fs->freezer.key, len) || name[len] != '-' || fuse_req_ctx(req)->uid != 0)
		return false;
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, number_or_0(name + len + 1));
	if (!n || !S_ISREG(n->attr.mode)) {
		fuse_reply_err(req, ENOENT);
		return true;
	}
	node_attr(fs, n, &st);
	fill_entry(n, &st, &e);
	e.entry_timeout = 0;
	n->nlookup++;
	fuse_reply_entry(req, &e);
	return true;
}

/* A reader would find a hole where bytes have moved; so would a mapping. Lock held. */
static bool only_written(const struct node *n)
{
	return n->sf && n->writers && n->handles == n->writers && !n->version.rdwr && !n->busy;
}

/* Longer than a file of the store can be: its fsync and close fail, and what is in memory of it is
 * useless. It is logged first: without these bytes the file must not be taken for a whole one. */
static void too_long(struct fs *fs, struct node *n, struct staged *sf)
{
	char path[200], text[400];
	int before = staged_torn(sf);

	staged_too_long(sf);
	node_torn(fs, n, sf, before);
	staged_drop_rest(sf);
	if (before)
		return;
	pthread_mutex_lock(&fs->tree.lock);
	node_path(fs, n, path, sizeof(path));
	pthread_mutex_unlock(&fs->tree.lock);
	snprintf(text, sizeof(text),
		 LEVEL_ERROR "%s is longer than a file of the store can be: its fsync and close "
			     "fail with EFBIG; other files are not concerned",
		 path);
	fs_notice(fs, text);
}

bool freeze_set(fuse_req_t req, fuse_ino_t id, const char *key, const char *val, size_t len)
{
	struct fs *fs = req_fs(req);
	struct staged *sf = NULL;

	if (strcmp(key, KEY_FREEZE) || !fs->freezer.key[0] || len != strlen(fs->freezer.key) ||
	    memcmp(val, fs->freezer.key, len))
		return false;
	session_may_block(fs);
	pthread_mutex_lock(&fs->tree.lock);
	struct node *n = node_find(fs, id);
	bool moves = n && only_written(n) && !staged_rewritten(n->sf);
	if (n && n->sf)
		sf = staged_ref(n->sf);
	if (moves)
		staged_set_moving(sf); /* from now on opens for reading fail */
	else if (sf)
		staged_not_now(sf);
	pthread_mutex_unlock(&fs->tree.lock);
	if (sf) {
		int err = moves ? staged_move_out(sf) : 0;
		if (err == -EFBIG)
			too_long(fs, n, sf);
		staged_limit(sf, err < 0 ? err : 0);
		if (err > 0) {
			fs_log(LEVEL_ERROR
			       "a file that outgrew memory was written again where it had moved to "
			       "the store already; its close will fail; give staging more memory");
		} else if (err && err != -EAGAIN && err != -EFBIG &&
			   atomic_exchange(&fs->freezer.error, err) != err) {
			/* it is retried */
			fs_log(LEVEL_WARNING
			       "a file that outgrew memory cannot be moved to the store: %s",
			       strerror(-err));
		}
		staged_unref(sf);
	}
	/* else the kernel would cache that name, and with it the file after its unlink */
	char name[NAME_CAP];
	fuse_lowlevel_notify_inval_entry(fs->se, CONTROL_DIR, name,
					 (size_t)name_of(fs, id, name, sizeof(name)));
	fuse_reply_err(req, 0);
	return true;
}

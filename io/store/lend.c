/* SPDX-License-Identifier: MIT
 *
 * Objects of the store whose mode denies their owner, as whom we run: a directory of mode 0555, a
 * file of mode 0444. The mount has allowed the change (the file was opened before the chmod; or its
 * bytes change, for which a local filesystem needs no name), and the store refuses it: to a user,
 * and to a root that its server squashes. Then it is done once more while the owner has all rights,
 * and the mode is put back. Nobody else's rights change.
 *
 * A kill in between: before a mode is changed, a symlink in the host's directory says what it was,
 * lent0 -> "MODE INO PATH". It is removed when the mode is back, and the next start puts back what
 * it finds. A journal keeps this order; elsewhere each step is synced. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "inside.h"
#include "io/scope.h"

#define LENT_MAX 8u /* a kill while a start puts modes back leaves more than one operation's */

struct lent {
	int fd;
	mode_t was;
	char mark[8]; /* "": it has none */
};

static mode_t all_rights(const struct stat *st)
{
	return S_ISDIR(st->st_mode) ? 0700 : 0600;
}

static bool needs_sync(const struct io_store *s)
{
	return s->fs.kind == IO_FS_EACH;
}

static int change_mode(struct io_store *s, int fd, mode_t mode)
{
	struct io_attr a = {.mask = IO_ATTR_MODE, .mode = mode & 07777};
	struct io_call c = {.op = IO_OP_ATTR, .fd = fd, .attr = &a};

	return (int)io_call_run(s->e, &c);
}

static int sync_marks(struct io_store *s)
{
	struct io_call c = {.op = IO_OP_SYNC_DIR, .fd = s->host, .fd2 = io_store_journal(s)};

	return needs_sync(s) ? (int)io_call_run(s->e, &c) : 0;
}

static int remove_mark(struct io_store *s, const char *mark)
{
	struct io_call c = {.op = IO_OP_UNLINK, .fd = s->host, .name = mark};

	return (int)io_call_run(s->e, &c);
}

/* The path of fd below the store. False: it has none. */
static bool path_of(const struct io_store *s, int fd, char *buf, size_t cap)
{
	char link[IO_PROC_PATH], root[PATH_MAX];

	io_store_path(s, root, sizeof(root));
	io_proc_path(link, fd, NULL);
	ssize_t n = readlink(link, buf, cap - 1);
	size_t below = strlen(root);

	if (n <= 0 || (size_t)n < below || memcmp(buf, root, below))
		return false;
	buf[n] = 0;
	below += buf[below] == '/';
	memmove(buf, buf + below, strlen(buf + below) + 1);
	return true;
}

static int set_mark(struct io_store *s, struct lent *l, const struct stat *st)
{
	char path[PATH_MAX], target[PATH_MAX + 64];
	struct io_call c = {.op = IO_OP_SYMLINK, .fd = s->host, .name = l->mark, .name2 = target};
	int err = -EEXIST;

	if (!path_of(s, l->fd, path, sizeof(path)))
		return 0;
	snprintf(target, sizeof(target), "%o %llu %s", (unsigned)l->was,
		 (unsigned long long)st->st_ino, path);
	for (unsigned i = 0; err == -EEXIST && i < LENT_MAX; i++) {
		snprintf(l->mark, sizeof(l->mark), "lent%u", i);
		err = (int)io_call_run(s->e, &c);
	}
	if (!err)
		return sync_marks(s);
	l->mark[0] = 0;
	/* without symlinks, or with shorter ones, a kill may leave the owner with his rights */
	return err == -ENAMETOOLONG || err == -EPERM || err == -EOPNOTSUPP ? 0 : err;
}

/* The next start finds what could not be put back. */
static void take_back(struct io_store *s, const struct lent *l)
{
	char path[IO_PROC_PATH];
	struct stat st;

	if (fstat(l->fd, &st)) {
		atomic_store(&s->lend.left, true);
		return;
	}
	io_proc_path(path, l->fd, NULL);
	CLEANUP_CLOSE int rd = needs_sync(s) ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
	/* else somebody has changed it meanwhile; a chmod by who is not of its group clears sgid */
	bool ours = (st.st_mode & 01777) == ((l->was | all_rights(&st)) & 01777);
	int err = ours ? change_mode(s, l->fd, l->was) : 0;
	if (!err && needs_sync(s))
		err = rd < 0 ? io_sync_all(s) : io_sync_file(s, rd);
	if (!err && l->mark[0])
		err = remove_mark(s, l->mark);
	if (err)
		atomic_store(&s->lend.left, true);
}

/* 1: its owner has all rights now; 0: he had them. */
static int lend(struct io_store *s, const struct io_object *o, struct lent *l)
{
	CLEANUP_CLOSE int fd =
		o->name ? io_open_beneath(o->dirfd, o->name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0)
			: fcntl(o->dirfd, F_DUPFD_CLOEXEC, 0);
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return fd < -1 ? fd : io_error();
	mode_t all = all_rights(&st);
	bool fits = S_ISDIR(st.st_mode) || (S_ISREG(st.st_mode) && !o->dir);
	if (!fits || (st.st_mode & all) == all)
		return 0;
	*l = (struct lent){.fd = fd, .was = st.st_mode & 07777};
	int err = set_mark(s, l, &st);
	if (!err)
		err = change_mode(s, fd, l->was | all);
	if (err && l->mark[0])
		remove_mark(s, l->mark);
	if (err)
		return err;
	scope_keep(&fd);
	return 1;
}

/* s->lend.lock held */
static ssize_t run_lent(struct io_store *s, const struct io_object *on, unsigned n, io_lent_fn op,
			void *ctx)
{
	struct lent lent[IO_LEND_MAX];
	unsigned n_lent = 0;
	ssize_t r = 0;

	atomic_fetch_add(&s->lend.changes, 1);
	for (unsigned i = 0; r >= 0 && i < n; i++) {
		r = lend(s, &on[i], &lent[n_lent]);
		n_lent += r > 0;
	}
	if (r >= 0)
		r = op(s, ctx);
	else if (r == -EPERM)
		r = -EACCES; /* it is another's */
	while (n_lent) {
		take_back(s, &lent[--n_lent]);
		close(lent[n_lent].fd);
	}
	atomic_fetch_add(&s->lend.changes, 1);
	return r;
}

ssize_t io_lent_call(struct io_store *s, void *ctx)
{
	return io_call_run(s->e, ctx);
}

ssize_t io_lend(struct io_store *s, const struct io_object *on, unsigned n, io_lent_fn op,
		void *ctx)
{
	ssize_t r = op(s, ctx);

	if (r != -EACCES || s->ro)
		return r;
	LOCK_SCOPE(&s->lend.lock);
	return run_lent(s, on, n, op, ctx);
}

ssize_t io_lend_alone(struct io_store *s, const struct io_object *on, unsigned n, io_lent_fn op,
		      void *ctx)
{
	LOCK_SCOPE(&s->lend.lock);
	ssize_t r = op(s, ctx);

	return r == -EACCES && !s->ro ? run_lent(s, on, n, op, ctx) : r;
}

ssize_t io_not_lent(struct io_store *s, io_lent_fn op, void *ctx)
{
	unsigned before = atomic_load(&s->lend.changes);
	ssize_t r = op(s, ctx);

	if (before % 2 == 0 && before == atomic_load(&s->lend.changes))
		return r;
	LOCK_SCOPE(&s->lend.lock);
	return op(s, ctx);
}

/* ---- after a kill ---- */

/* Descriptor (O_PATH) or -errno. */
static int open_path(struct io_store *s, char *path)
{
	int fd = fcntl(s->root, F_DUPFD_CLOEXEC, 0);
	char *rest = path, *name;

	while (fd >= 0 && (name = strsep(&rest, "/")) && *name) {
		int below = io_open_lent(s, fd, name, O_PATH | O_NOFOLLOW);

		close(fd);
		fd = below;
	}
	return fd;
}

static int recover(struct io_store *s, const char *mark)
{
	char text[PATH_MAX];
	unsigned was;
	unsigned long long ino;
	int at = 0;
	struct stat st;
	ssize_t n = readlinkat(s->host, mark, text, sizeof(text) - 1);

	if (n < 0)
		return errno == ENOENT ? 0 : io_error();
	text[n] = 0;
	if (sscanf(text, "%o %llu %n", &was, &ino, &at) != 2 || !at)
		return -EBADMSG;
	CLEANUP_CLOSE int fd = open_path(s, text + at);
	if (fd < 0 && fd != -ENOENT && fd != -ENOTDIR)
		return fd;
	if (fd < 0 || fstat(fd, &st) || st.st_ino != ino)
		return remove_mark(s, mark);
	struct lent l = {.fd = fd, .was = was & 07777};
	snprintf(l.mark, sizeof(l.mark), "%s", mark);
	take_back(s, &l);
	return 0;
}

void io_lend_recover(struct io_store *s)
{
	char mark[8];

	if (s->host < 0)
		return;
	atomic_store(&s->lend.left, false);
	/* the last first: it may be below another one */
	for (unsigned i = LENT_MAX; i--;) {
		snprintf(mark, sizeof(mark), "lent%u", i);
		if (recover(s, mark))
			atomic_store(&s->lend.left, true);
	}
}

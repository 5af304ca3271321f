/* SPDX-License-Identifier: MIT
 *
 * Objects of the store whose mode denies their owner, as whom we run: a directory of mode 0555, a
 * file of mode 0444. The mount has allowed the change (the file was opened before the chmod; or its
 * bytes change, for which a local filesystem needs no name), and the store refuses it: to a user,
 * and to a root that its server squashes. Then it is done once more while the owner has all rights,
 * and the mode is put back. Nobody else's rights change.
 *
 * One such operation at a time has the turn (`busy`); the lock is held only to give it, and to say
 * what is lent. stat(2) waits for none of them: it is told the mode that was there before.
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

static void number_mark(char mark[8], unsigned char number)
{
	snprintf(mark, 8, "lent%hhu", number);
}

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

/* Before the symlink is there: io_lend_recover() is not to take it for one that a kill left. */
static void name_mark(struct io_store *s, struct io_lent *l, const char *mark)
{
	LOCK_SCOPE(&s->lend.lock);
	snprintf(l->mark, sizeof(l->mark), "%s", mark);
}

static int set_mark(struct io_store *s, struct io_lent *l, const struct stat *st)
{
	char path[PATH_MAX], target[PATH_MAX + 64], mark[sizeof(l->mark)];
	struct io_call c = {.op = IO_OP_SYMLINK, .fd = s->host, .name = mark, .name2 = target};
	int err = -EEXIST;

	if (!path_of(s, l->fd, path, sizeof(path)))
		return 0;
	snprintf(target, sizeof(target), "%o %llu %s", (unsigned)l->was,
		 (unsigned long long)st->st_ino, path);
	for (unsigned char i = 0; err == -EEXIST && i < LENT_MAX; i++) {
		number_mark(mark, i);
		name_mark(s, l, mark);
		err = (int)io_call_run(s->e, &c);
	}
	if (!err)
		return sync_marks(s);
	name_mark(s, l, "");
	/* without symlinks, or with shorter ones, a kill may leave the owner with his rights */
	return err == -ENAMETOOLONG || err == -EPERM || err == -EOPNOTSUPP ? 0 : err;
}

/* The next start finds what could not be put back. */
static void take_back(struct io_store *s, const struct io_lent *l)
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

/* ---- the turn ---- */

static void turn_begins(struct io_store *s)
{
	LOCK_SCOPE(&s->lend.lock);
	while (s->lend.busy)
		pthread_cond_wait(&s->lend.cond, &s->lend.lock);
	s->lend.busy = true;
}

static void turn_ends(struct io_store *s)
{
	LOCK_SCOPE(&s->lend.lock);
	s->lend.busy = false;
	s->lend.n = 0;
	pthread_cond_signal(&s->lend.cond);
}

/* The mode is lent from now on, as far as stat(2) is told. */
static struct io_lent *note(struct io_store *s, int fd, const struct stat *st)
{
	LOCK_SCOPE(&s->lend.lock);
	struct io_lent *l = &s->lend.now[s->lend.n++];

	*l = (struct io_lent){
		.fd = fd, .dev = st->st_dev, .ino = st->st_ino, .was = st->st_mode & 07777};
	atomic_fetch_add(&s->lend.changes, 1);
	return l;
}

static void forget_last(struct io_store *s)
{
	pthread_mutex_lock(&s->lend.lock);
	int fd = s->lend.now[--s->lend.n].fd;
	atomic_fetch_add(&s->lend.changes, 1);
	pthread_mutex_unlock(&s->lend.lock);
	close(fd);
}

/* ---- one operation; it has the turn ---- */

/* 0: its owner has all rights now, or had them; -errno. */
static int lend(struct io_store *s, const struct io_object *o)
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
	struct io_lent *l = note(s, scope_keep(&fd), &st);
	int err = set_mark(s, l, &st);
	if (!err)
		err = change_mode(s, l->fd, l->was | all);
	if (!err)
		return 0;
	if (l->mark[0])
		remove_mark(s, l->mark);
	forget_last(s);
	return err;
}

static ssize_t run_lent(struct io_store *s, const struct io_object *on, unsigned n, io_lent_fn op,
			void *ctx)
{
	ssize_t r = 0;

	for (unsigned i = 0; r >= 0 && i < n; i++)
		r = lend(s, &on[i]);
	if (r >= 0)
		r = op(s, ctx);
	else if (r == -EPERM)
		r = -EACCES; /* it is another's */
	while (s->lend.n) {
		take_back(s, &s->lend.now[s->lend.n - 1]);
		forget_last(s);
	}
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
	turn_begins(s);
	r = run_lent(s, on, n, op, ctx);
	turn_ends(s);
	return r;
}

ssize_t io_lend_alone(struct io_store *s, const struct io_object *on, unsigned n, io_lent_fn op,
		      void *ctx)
{
	turn_begins(s);
	ssize_t r = op(s, ctx);

	if (r == -EACCES && !s->ro)
		r = run_lent(s, on, n, op, ctx);
	turn_ends(s);
	return r;
}

/* True: *st, read when `changes` was `before`, tells what the mode is without the loan. */
static bool unlent(struct io_store *s, struct stat *st, unsigned before)
{
	LOCK_SCOPE(&s->lend.lock);
	for (unsigned i = 0; i < s->lend.n; i++) {
		const struct io_lent *l = &s->lend.now[i];

		if (l->dev == st->st_dev && l->ino == st->st_ino) {
			st->st_mode = (st->st_mode & S_IFMT) | l->was;
			return true;
		}
	}
	return before == atomic_load(&s->lend.changes);
}

ssize_t io_not_lent(struct io_store *s, io_lent_fn op, void *ctx, struct stat *st)
{
	ssize_t r;
	unsigned before;

	do {
		before = atomic_load(&s->lend.changes);
		r = op(s, ctx);
		/* none was lent, and none is */
		if (!r && !before && !atomic_load(&s->lend.changes))
			return r;
	} while (!r && !unlent(s, st, before));
	return r;
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

/* Is it the mark of the operation that has the turn? */
static bool is_used(struct io_store *s, const char *mark)
{
	LOCK_SCOPE(&s->lend.lock);
	for (unsigned i = 0; i < s->lend.n; i++)
		if (!strcmp(s->lend.now[i].mark, mark))
			return true;
	return false;
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
	if (is_used(s, mark))
		return -EBUSY; /* and it is looked at again */
	text[n] = 0;
	if (sscanf(text, "%o %llu %n", &was, &ino, &at) != 2 || !at)
		return -EBADMSG;
	CLEANUP_CLOSE int fd = open_path(s, text + at);
	if (fd < 0 && fd != -ENOENT && fd != -ENOTDIR)
		return fd;
	if (fd < 0 || fstat(fd, &st) || st.st_ino != ino)
		return remove_mark(s, mark);
	struct io_lent l = {.fd = fd, .was = was & 07777};
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
	for (unsigned char i = LENT_MAX; i--;) {
		number_mark(mark, i);
		if (recover(s, mark))
			atomic_store(&s->lend.left, true);
	}
}

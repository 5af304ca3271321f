/* SPDX-License-Identifier: MIT
 *
 * Views written as files, whole or not at all.
 */
#include "export.h"
#include "io/entries.h"

#include <dirent.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <string.h>

#define TEMPORARY ".metadata.tmp" /* as DCP's own writer has it */

static char *unfinished; /* removed when a signal ends us */
static struct { /* what was created, and is not a checkpoint yet; likewise */
	int dir;
	bool data;
	const char *metadata; /* its name, once it has one */
	const char *made; /* the directory itself, if we created it */
} partial = {.dir = -1};

/* OUT's path, and how much of it is the first directory made on the way */
static struct {
	char *path;
	size_t first;
} parents;

static void remove_parents(void)
{
	char *slash;

	while (parents.path && (slash = strrchr(parents.path, '/')) &&
	       (size_t)(slash - parents.path) >= parents.first) {
		*slash = '\0';
		rmdir(parents.path);
	}
}

static void remove_partial(void)
{
	if (partial.metadata)
		/* first, as it makes the rest look whole */
		unlinkat(partial.dir, partial.metadata, 0);
	if (partial.data)
		unlinkat(partial.dir, VIEW_DCP_DATA, 0);
	if (partial.made)
		rmdir(partial.made); /* fails if something else is in it */
}

static void on_signal(int sig)
{
	if (unfinished)
		unlink(unfinished);
	remove_partial();
	remove_parents();
	signal(sig, SIG_DFL);
	raise(sig);
}

static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
#define N_ENDING (sizeof(ending) / sizeof(ending[0]))

void put_catch_signals(void)
{
	struct sigaction sa = {.sa_handler = on_signal}, old;

	for (unsigned i = 0; i < N_ENDING; i++)
		if (!sigaction(ending[i], NULL, &old) && old.sa_handler == SIG_DFL)
			sigaction(ending[i], &sa, NULL);
}

void put_block_signals(sigset_t *old)
{
	sigset_t block;

	sigemptyset(&block);
	for (unsigned i = 0; i < N_ENDING; i++)
		sigaddset(&block, ending[i]);
	sigprocmask(SIG_BLOCK, &block, old);
}

void put_unblock_signals(const sigset_t *old)
{
	sigprocmask(SIG_SETMASK, old, NULL);
}

int put_told(struct fmt_error *e, int err, const char *name)
{
	e->at = FMT_NOWHERE;
	snprintf(e->text, sizeof(e->text), "%.200s: %s", name, strerror(-err));
	return err;
}

/* ---- onto stable storage ---------------------------------------------------------- */

/* Allocates all of it first, so that a full disk fails at once; if that is not supported,
 * only sets its size. */
static int make_space(int fd, uint64_t size)
{
	if (!size || !fallocate(fd, 0, 0, (off_t)size))
		return 0;
	if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
		return -errno;
	return ftruncate(fd, (off_t)size) ? -errno : 0;
}

/* All of a view into a new file, onto stable storage; closes the file. */
static int fill(struct export *x, const struct view *v, int fd, struct fmt_error *e)
{
	int err = make_space(fd, view_size(v));

	if (err)
		put_told(e, err, x->out);
	else
		err = copy_view(x, v, fd, e);
	if (!err && fsync(fd))
		err = put_told(e, -errno, x->out);
	if (close(fd) && !err)
		err = put_told(e, -errno, x->out);
	return err;
}

/* Syncs the names in a directory; dir as in openat(2). If that is not supported, they are as
 * safe as their filesystem makes them by itself. */
static int sync_names(struct export *x, int dir, const char *path, struct fmt_error *e)
{
	int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;

	if ((fd < 0 && errno != EACCES) || (fd >= 0 && fsync(fd) && errno != EINVAL))
		err = put_told(e, -errno, x->out);
	if (fd >= 0)
		close(fd);
	return err;
}

/* One directory, and its name onto stable storage. 1: created; 0: it exists. */
static int make_dir(struct export *x, const char *path, struct fmt_error *e)
{
	struct stat st;
	int err;

	if (mkdir(path, 0777)) {
		err = -errno;
		if (!stat(path, &st))
			err = S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
		return err ? put_told(e, err, path) : 0;
	}
	CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	err = fd < 0 ? put_told(e, -errno, path) : sync_names(x, fd, "..", e);
	if (err)
		rmdir(path);
	return err ? err : 1;
}

/* The parent directories of OUT; those created here are in `parents`. */
static int make_parents(struct export *x, struct fmt_error *e)
{
	CLEANUP_FREE char *path = strdup(x->out);
	int err = path ? 0 : put_told(e, -ENOMEM, x->out);
	sigset_t old;

	for (char *p = path; err >= 0 && p && (p = strchr(p + 1, '/'));) {
		*p = '\0';
		put_block_signals(&old);
		err = make_dir(x, path, e);
		if (err > 0 && !parents.path) {
			parents.path = strdup(x->out);
			parents.first = (size_t)(p - path);
		}
		put_unblock_signals(&old);
		*p = '/';
	}
	return err < 0 ? err : 0;
}

/* ---- one file --------------------------------------------------------------------- */

/* A new file in OUT's directory; its name is in `unfinished`. */
static int create_beside(const char *out)
{
	const char *slash = strrchr(out, '/'), *name = slash ? slash + 1 : out;
	char *temp;
	int fd = -1;

	for (unsigned i = 0; fd < 0 && i < 100; i++) {
		if (asprintf(&temp, "%.*s.%.200s.export-%d.%u", (int)(name - out), out, name,
			     (int)getpid(), i) < 0)
			return -ENOMEM;
		unfinished = temp;
		fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd >= 0)
			break;
		unfinished = NULL;
		free(temp);
		if (errno != EEXIST)
			return -errno;
	}
	return fd < 0 ? -EEXIST : fd;
}

static int put_file(struct export *x, struct fmt_error *e)
{
	int fd = create_beside(x->out), err;

	if (fd < 0)
		return put_told(e, fd, x->out);
	err = fill(x, x->view, fd, e);
	if (!err && rename(unfinished, x->out))
		err = put_told(e, -errno, x->out);
	if (err)
		unlink(unfinished);
	free(unfinished);
	unfinished = NULL;
	if (!err) {
		CLEANUP_FREE char *dir = strdup(x->out);

		err = dir ? sync_names(x, AT_FDCWD, dirname(dir), e) : put_told(e, -ENOMEM, x->out);
	}
	return err;
}

/* ---- a DCP checkpoint --------------------------------------------------------------- */

int put_is_empty(const char *path)
{
	CLEANUP_DIR DIR *d = opendir(path);

	if (!d)
		return -errno;
	return entries_next(d) ? 0 : errno ? -errno : 1;
}

/* The directory; `partial` records whether it was created here. */
static int open_out(struct export *x, struct fmt_error *e)
{
	sigset_t old;
	int err = 0, empty;

	put_block_signals(&old);
	if (mkdir(x->out, 0777))
		err = -errno;
	else
		partial.made = x->out;
	put_unblock_signals(&old);
	if (err == -EEXIST) {
		empty = put_is_empty(x->out);
		err = empty < 0 ? empty : empty ? 0 : -ENOTEMPTY;
	}
	if (!err) {
		partial.dir = open(x->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		err = partial.dir < 0 ? -errno : 0;
	}
	return err ? put_told(e, err, x->out) : 0;
}

static int create_in(const char *name)
{
	int fd = openat(partial.dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	return fd < 0 ? -errno : fd;
}

static int put_data(struct export *x, struct fmt_error *e)
{
	sigset_t old;
	int fd;

	put_block_signals(&old);
	fd = create_in(VIEW_DCP_DATA);
	partial.data = fd >= 0;
	put_unblock_signals(&old);
	return fd < 0 ? put_told(e, fd, x->out) : fill(x, x->view, fd, e);
}

static int put_metadata(struct export *x, struct fmt_error *e)
{
	sigset_t old;
	int fd;

	put_block_signals(&old);
	fd = create_in(TEMPORARY);
	partial.metadata = fd < 0 ? NULL : TEMPORARY;
	put_unblock_signals(&old);
	return fd < 0 ? put_told(e, fd, x->out) : fill(x, x->metadata, fd, e);
}

/* The data's name is on stable storage before .metadata gets its own. */
static int commit(struct export *x, struct fmt_error *e)
{
	sigset_t old;
	int err;

	put_block_signals(&old);
	err = fsync(partial.dir) ? -errno : 0;
	if (!err) /* another one may have put a checkpoint there since it was empty */
		err = name_new(partial.dir, TEMPORARY, partial.dir, ".metadata");
	if (!err)
		partial.metadata = ".metadata";
	if (!err && fsync(partial.dir))
		err = -errno;
	if (!err)
		partial.data = false, partial.metadata = partial.made = NULL;
	put_unblock_signals(&old);
	return err ? put_told(e, err, x->out) : 0;
}

static int put_dcp(struct export *x, struct fmt_error *e)
{
	int err = open_out(x, e);

	if (!err)
		err = put_data(x, e);
	if (!err)
		err = put_metadata(x, e);
	if (!err && partial.made)
		err = sync_names(x, partial.dir, "..", e);
	if (!err)
		err = commit(x, e);
	if (err)
		remove_partial();
	if (partial.dir >= 0)
		close(partial.dir);
	partial.dir = -1;
	partial.data = false;
	partial.metadata = partial.made = NULL;
	return err;
}

/* ---- all of it ------------------------------------------------------------------- */

int put_out(struct export *x, struct fmt_error *e)
{
	int err = make_parents(x, e);
	sigset_t old;

	if (!err)
		err = x->format == EXPORT_DCP ? put_dcp(x, e) : put_file(x, e);
	put_block_signals(&old);
	if (err)
		remove_parents();
	free(parents.path);
	parents.path = NULL;
	put_unblock_signals(&old);
	return err;
}

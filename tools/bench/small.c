/* SPDX-License-Identifier: MIT
 *
 * `small`: many small files closed, then all durable; a place labelled +cp gets them
 * by `cp -r` (a plain directory then by `sync`). `create`: create, write, close, unlink.
 *
 * Directories are new in every round and removed only at the end: ext4 may check
 * inodes freed in the last minutes one by one, which made the next round's
 * creates twenty times slower, in the store as in the plain directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "bench.h"

#define FILE_PATH (PATH_MAX + 96)

static int make_files(const struct bench *b, const char *dir)
{
	char path[FILE_PATH];
	int fd, err = 0;

	if (mkdir(dir, 0755))
		return -errno;
	for (unsigned i = 0; i < b->count && !err; i++) {
		snprintf(path, sizeof(path), "%s/%06u.bin", dir, i);
		fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
		if (fd < 0)
			return -errno;
		err = bench_write_all(b, fd, b->size);
		if (close(fd) && !err)
			err = -errno;
		if (bench_stop)
			err = -EINTR;
	}
	return err;
}

static int run_child(char *const argv[])
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return -errno;
	if (pid == 0) {
		execvp(argv[0], argv);
		_exit(127);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -ECHILD;
}

static int fill(struct bench *b, const struct bench_place *p, const char *from, const char *dir)
{
	char *cp[] = {"cp", "-r", (char *)from, (char *)dir, NULL};

	return p->cp ? run_child(cp) : make_files(b, dir);
}

static int all_durable(const struct bench_place *p, const char *dir)
{
	char *sync_all[] = {"sync", NULL};

	if (p->cp && !p->cairn)
		return run_child(sync_all);
	return bench_durable(p, dir);
}

static int small_one(struct bench *b, struct bench_place *p, const char *from, unsigned round)
{
	double start, closed, durable;
	char dir[PATH_MAX + 32];
	int err;

	snprintf(dir, sizeof(dir), "%s/small-%u", p->run, round);
	start = bench_now();
	err = fill(b, p, from, dir);
	closed = bench_now();
	if (!err)
		err = all_durable(p, dir);
	durable = bench_now();
	if (err)
		return err;
	bench_settle(p);
	bench_add(b, p->label, "total", "s", durable - start);
	bench_add(b, p->label, "create+close", "s", closed - start);
	bench_add(b, p->label, "closed->durable", "s", durable - closed);
	return 0;
}

int bench_cmd_small(struct bench *b)
{
	char from[PATH_MAX + 32];
	int err;

	/* the source of `cp -r` is at the last place, in its page cache */
	snprintf(from, sizeof(from), "%s/from", b->place[b->n_places - 1].run);
	err = make_files(b, from);
	if (!err)
		sync();
	for (unsigned n = 0; n < b->rounds && !err; n++)
		for (unsigned i = 0; i < b->n_places && !err; i++)
			err = small_one(b, &b->place[i], from, n);
	return err;
}

/* ---- create ------------------------------------------------------------------- */

enum { CREATE, WRITE, CLOSE, UNLINK, PHASES };

static int cycle(const struct bench *b, const char *path, double spent[PHASES])
{
	double t[PHASES + 1];
	int fd, err;

	t[0] = bench_now();
	fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	t[1] = bench_now();
	err = bench_write_all(b, fd, b->size);
	t[2] = bench_now();
	if (close(fd) && !err)
		err = -errno;
	t[3] = bench_now();
	if (unlink(path) && !err)
		err = -errno;
	t[4] = bench_now();
	for (unsigned i = 0; i < PHASES; i++)
		spent[i] += t[i + 1] - t[i];
	return err;
}

/* On a FUSE mount a cycle is seven requests that are waited for: LOOKUP, CREATE, GETXATTR (the
 * write asks for capabilities), FLUSH, UNLINK, and GETATTR of the directory after each change.
 * The waiting alone is measured by as many requests that the daemon answers at once. */
#define TRIPS 7

static double trips(const struct bench *b, const char *dir)
{
	char none[1];
	double start = bench_now();

	for (unsigned i = 0; i < b->count && !bench_stop; i++)
		for (unsigned t = 0; t < TRIPS; t++)
			if (getxattr(dir, "security.capability", none, 0) > 0)
				return 0;
	return bench_now() - start;
}

static int create_one(struct bench *b, struct bench_place *p, unsigned round, bool timed)
{
	static const char *const name[PHASES] = {"create", "write", "close", "unlink"};
	double spent[PHASES] = {0}, total = 0;
	char path[FILE_PATH];
	int err = 0;

	for (unsigned i = 0; i < b->count && !err; i++) {
		snprintf(path, sizeof(path), "%s/%u-%u.tmp", p->run, round, i);
		err = bench_stop ? -EINTR : cycle(b, path, spent);
	}
	double waiting = trips(b, p->run);
	bench_settle(p);
	if (err || !timed)
		return err;
	bench_add(b, p->label, "trips", "us", waiting / b->count * 1e6);
	for (unsigned i = 0; i < PHASES; i++)
		total += spent[i];
	bench_add(b, p->label, "cycle", "us", total / b->count * 1e6);
	for (unsigned i = 0; i < PHASES; i++)
		bench_add(b, p->label, name[i], "us", spent[i] / b->count * 1e6);
	return 0;
}

int bench_cmd_create(struct bench *b)
{
	int err = 0;

	/* the first round is a warm-up */
	for (unsigned n = 0; n <= b->rounds && !err; n++)
		for (unsigned i = 0; i < b->n_places && !err; i++)
			err = create_one(b, &b->place[i], n, n > 0);
	return err;
}

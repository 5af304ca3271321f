/* SPDX-License-Identifier: MIT
 *
 * What to do about a mount that does not answer. Looks at /proc and the mount table only.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "cli.h"
#include "io/entries.h"

#define PROC_TEXT_MAX (1u << 20)

struct worker {
	int pid; /* 0 = not found */
	char state; /* as in proc(5) */
};

/* The cairnfs mount that a path is on by its text alone: following a link might ask the mount.
 * malloc()ed, NULL: none. */
static char *mount_by_text(const char *path, size_t *n_mounts)
{
	CLEANUP_FREE char *cwd = *path == '/' ? NULL : getcwd(NULL, 0);
	CLEANUP_FREE char *all = NULL;
	struct io_mounts m;
	char *best = NULL;

	*n_mounts = 0;
	if ((*path != '/' && !cwd) || io_mounts_read(IO_MOUNTS_HERE, &m))
		return NULL;
	if (asprintf(&all, "%s%s%s", cwd ? cwd : "", cwd ? "/" : "", path) < 0)
		all = NULL;
	for (size_t i = 0; all && i < m.n; i++) {
		const char *point = m.v[i].point;
		size_t n = strlen(point);

		if (!mount_is_cairnfs(&m.v[i]))
			continue;
		++*n_mounts;
		if (strncmp(all, point, n) || (all[n] && all[n] != '/') ||
		    (best && strlen(best) > n))
			continue;
		free(best);
		best = strdup(point);
	}
	io_mounts_free(&m);
	return best;
}

static bool has_argument(const char *args, size_t len, const char *want)
{
	for (const char *p = args; p < args + len; p += strlen(p) + 1)
		if (!strcmp(p, want))
			return true;
	return false;
}

static char state_of(int proc)
{
	CLEANUP_FREE char *stat = NULL;
	const char *end;
	size_t len;

	if (read_small_file(proc, "stat", PROC_TEXT_MAX, &stat, &len))
		return '?';
	end = strrchr(stat, ')');
	return end && end[1] ? end[2] : '?';
}

/* The worker of the cairnfs that was started with this mount point; if there is one mount only,
 * the only worker. */
static struct worker find_worker(const char *point, size_t n_mounts)
{
	struct worker w = {0}, only = {0};
	CLEANUP_DIR DIR *d = opendir("/proc");
	struct dirent *e;
	int workers = 0;

	while (!w.pid && (e = entries_next(d))) {
		CLEANUP_FREE char *comm = NULL, *args = NULL;
		CLEANUP_CLOSE int proc = -1;
		size_t len;

		if (*e->d_name < '1' || *e->d_name > '9')
			continue;
		proc = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (proc < 0 || read_small_file(proc, "comm", PROC_TEXT_MAX, &comm, &len) ||
		    strcmp(comm, "cairnfs-worker\n") ||
		    read_small_file(proc, "cmdline", PROC_TEXT_MAX, &args, &len))
			continue;
		only = (struct worker){.pid = atoi(e->d_name), .state = state_of(proc)};
		workers++;
		if (has_argument(args, len, point))
			w = only;
	}
	return w.pid || workers != 1 || n_mounts != 1 ? w : only;
}

void complain_silent(const char *path, double silent_s)
{
	size_t n_mounts;
	CLEANUP_FREE char *point = mount_by_text(path, &n_mounts);
	struct worker w = point ? find_worker(point, n_mounts) : (struct worker){0};
	char t[32];

	human_time(silent_s, t);
	if (!w.pid)
		complain("%s: no answer for %s: cairnfs or what is mounted there is stopped, hangs "
			 "or waits for its store; what was accepted is safe in staging",
			 path, t);
	else if (w.state == 'T' || w.state == 't')
		complain("%s: no answer for %s: the worker (pid %d) of %s is stopped; what was "
			 "accepted is safe in staging. To continue: kill -CONT %d",
			 path, t, w.pid, point, w.pid);
	else
		complain("%s: no answer for %s: the worker (pid %d) of %s hangs; what was accepted "
			 "is safe in staging. If the store answers, have the worker replaced: "
			 "kill -KILL %d",
			 path, t, w.pid, point, w.pid);
}

/* SPDX-License-Identifier: MIT
 * What ends a mount namespace: the machine, or something that may end before it. Of process 1 only
 * its mountinfo is read, which every user may; its /proc/1/ns needs the right to trace it. */
#include "io/mounts/mounts.h"
#include "io/scope.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define OF_FIRST "/proc/1/mountinfo"
#define FIRST_PID_NS 0xEFFFFFFCu /* PROC_PID_INIT_INO of linux/proc_ns.h: of the machine */

/* A pid namespace of its own, whose process 1 is that of /proc: with `unshare --pid` alone /proc is
 * the machine's, and shows more than one pid of this process. */
static bool in_container(void)
{
	CLEANUP_FREE char *line = NULL;
	size_t cap = 0;
	int outer, inner, n = 0;
	struct stat st;

	if (stat("/proc/self/ns/pid", &st) || st.st_ino == FIRST_PID_NS)
		return false;
	FILE *f = fopen("/proc/self/status", "re");
	while (f && !n && getline(&line, &cap, f) > 0)
		if (!strncmp(line, "NSpid:", 6))
			n = sscanf(line, "NSpid: %d %d", &outer, &inner);
	if (f)
		fclose(f);
	return n == 1;
}

/* An id is that of one mount in one namespace. */
static bool have_one(const struct io_mounts *a, const struct io_mounts *b)
{
	for (size_t i = 0; a->n && i < b->n; i++)
		if (b->v[i].id == a->v[0].id)
			return true;
	return false;
}

enum io_mounts_end io_mounts_end(void)
{
	struct io_mounts here, first;
	bool other = false;

	if (in_container())
		return IO_MOUNTS_CONTAINER;
	if (io_mounts_read(IO_MOUNTS_HERE, &here))
		return IO_MOUNTS_MACHINE;
	if (!io_mounts_read(OF_FIRST, &first)) {
		other = here.n && first.n && !have_one(&here, &first);
		io_mounts_free(&first);
	}
	io_mounts_free(&here);
	return other ? IO_MOUNTS_NAMESPACE : IO_MOUNTS_MACHINE;
}

bool io_mounts_first_has(dev_t dev)
{
	struct io_mounts first;
	bool has = false;

	if (io_mounts_read(OF_FIRST, &first))
		return false;
	for (size_t i = 0; i < first.n; i++)
		has |= makedev(first.v[i].dev_major, first.v[i].dev_minor) == dev;
	io_mounts_free(&first);
	return has;
}

static bool is_below(const char *path, const char *point)
{
	size_t n = strlen(point);

	return !strcmp(point, "/") || (!strncmp(path, point, n) && (!path[n] || path[n] == '/'));
}

/* The tmpfs at path; NULL: it is something else. */
static const struct io_mount *tmpfs_at(const struct io_mounts *m, const char *path)
{
	const struct io_mount *at = NULL;

	for (size_t i = 0; i < m->n; i++)
		if (is_below(path, m->v[i].point) &&
		    (!at || strlen(m->v[i].point) >= strlen(at->point)))
			at = &m->v[i];
	return at && !strcmp(at->fstype, "tmpfs") ? at : NULL;
}

bool io_mounts_may_hide(const char *table, const char *path)
{
	struct io_mounts there, here;
	const struct io_mount *at;
	int err = io_mounts_read(table, &there);

	if (err) /* -EINVAL: it has ended, and its parent has not asked for it */
		return err != -ENOENT && err != -ESRCH && err != -EINVAL;
	bool hides = (at = tmpfs_at(&there, path)) != NULL;
	if (hides && !io_mounts_read(IO_MOUNTS_HERE, &here)) {
		for (size_t i = 0; i < here.n; i++)
			hides &= here.v[i].dev_major != at->dev_major ||
				 here.v[i].dev_minor != at->dev_minor;
		io_mounts_free(&here);
	}
	io_mounts_free(&there);
	return hides;
}

bool io_mounts_may_be_unseen(void)
{
	struct io_mounts first;
	bool kept = false;

	if (in_container() || io_mounts_read(OF_FIRST, &first))
		return true;
	for (size_t i = 0; i < first.n; i++) /* unshare --mount=FILE */
		kept |= !strcmp(first.v[i].fstype, "nsfs") && !strncmp(first.v[i].root, "mnt:", 4);
	io_mounts_free(&first);
	return kept;
}

/* SPDX-License-Identifier: MIT
 * What a mistake in the two paths would do: hide a user's files under the mount, or let two stores
 * share a directory. Refused where that is sure, else a warning.
 */
#include "fs/process/options.h"
#include "io/entries.h"
#include "io/mounts/mounts.h"
#include "io/scope.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* ---- hidden files ---- */

/* A name in the directory, but for what mkfs(8) makes, rather none that is hidden; false: it is
 * empty, or cannot be read. */
static bool has_names(const char *dir, char name[NAME_MAX + 1])
{
	CLEANUP_DIR DIR *d = entries_at(AT_FDCWD, dir);
	struct dirent *e;

	*name = '\0';
	while ((!*name || *name == '.') && (e = entries_next(d)))
		if (strcmp(e->d_name, "lost+found"))
			snprintf(name, NAME_MAX + 1, "%s", e->d_name);
	return *name;
}

/* Of a live or an unmounted store, as far as this user may see. */
static int open_cairn(const char *dir)
{
	CLEANUP_CLOSE int top = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);

	return top < 0 ? -1 : openat(top, ".cairn", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool is_store(const char *dir)
{
	CLEANUP_CLOSE int cairn = open_cairn(dir);
	struct stat st;

	return cairn >= 0 && !fstatat(cairn, "id", &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode);
}

int places_hide(const struct fs_opts *o)
{
	char text[2 * PATH_MAX + NAME_MAX + 300], first[NAME_MAX + 1], name[NAME_MAX + 1];

	if (o->nonempty || !has_names(o->mountpoint, first))
		return 0;
	if (is_store(o->mountpoint)) {
		snprintf(text, sizeof(text),
			 "the mountpoint %s is itself a store, which the mount would hide; are the "
			 "two swapped? (cairnfs STORE MOUNTPOINT) If not, give -o nonempty",
			 o->mountpoint);
		return options_refuse(text, NULL);
	}
	/* .keep and the like hold an empty directory in an image or a repository */
	if (*first != '.' && !has_names(o->store, name)) {
		snprintf(text, sizeof(text),
			 "the store %s is empty, and the mountpoint %s has files (such as %s), "
			 "which the mount would hide; are the two swapped? (cairnfs STORE "
			 "MOUNTPOINT) If not, give -o nonempty",
			 o->store, o->mountpoint, first);
		return options_refuse(text, NULL);
	}
	fprintf(stderr,
		"cairnfs: warning: the mountpoint %s has files (such as %s), which are hidden "
		"while it is mounted, and are not in the store\n",
		o->mountpoint, first);
	return 0;
}

/* ---- stores in each other ---- */

struct server {
	bool found;
	char host[sizeof(((struct io_host *)0)->name)];
};

static void take_server(void *ctx, const struct io_host *h)
{
	struct server *s = ctx;
	/* who is alone on a local disk sets no times, but is seen by its lock */
	bool alive = h->said == IO_HOST_ALIVE && strcmp(h->client, IO_CLIENT_LOCAL) &&
		     time(NULL) - h->heard < IO_HOST_SILENT_S;

	if (s->found || !(h->locked || alive))
		return;
	s->found = true;
	snprintf(s->host, sizeof(s->host), "%s", h->name);
}

/* Is the directory a store that is served, other than read only? */
static bool is_served(const char *dir, struct server *s)
{
	CLEANUP_CLOSE int cairn = open_cairn(dir);

	*s = (struct server){.found = false};
	if (cairn >= 0)
		io_hosts_each(cairn, true, take_server, s);
	return s->found;
}

static int refuse_nested(const char *what, const char *path, const char *how, const char *store,
			 const struct server *s)
{
	char text[2 * PATH_MAX + 400];

	snprintf(text, sizeof(text),
		 "the %s %s %s the store %s, which is served (as host %s), and both would change "
		 "the same files; choose another directory, or unmount that store first",
		 what, path, how, store, s->host);
	return options_refuse(text, NULL);
}

/* Is a directory above path a store that is served? Own: that is no other one. */
static int check_above(const char *what, const char *path, const char *own)
{
	CLEANUP_FREE char *dir = strdup(path);
	struct server s;

	for (char *slash; dir && (slash = strrchr(dir, '/')) && slash != dir;) {
		*slash = '\0';
		if (strcmp(dir, own) && is_served(dir, &s))
			return refuse_nested(what, path, "lies inside", dir, &s);
	}
	return 0;
}

/* Is a directory below the store the store of another mount? The table tells where. */
static int check_below(const char *store)
{
	size_t len = strlen(store);
	struct io_mounts m;
	struct server s;
	int err = 0;

	if (io_mounts_read(IO_MOUNTS_HERE, &m))
		return 0;
	for (size_t i = 0; i < m.n && !err; i++)
		if (!strcmp(m.v[i].fstype, "fuse.cairnfs") && !strncmp(m.v[i].source, store, len) &&
		    m.v[i].source[len] == '/' && is_served(m.v[i].source, &s))
			err = refuse_nested("store", store, "has inside it", m.v[i].source, &s);
	io_mounts_free(&m);
	return err;
}

int places_nested(const struct fs_opts *o)
{
	int err = check_above("mountpoint", o->mountpoint, o->store);

	if (!err && !o->ro)
		err = check_above("store", o->store, o->store);
	return err || o->ro ? err : check_below(o->store);
}

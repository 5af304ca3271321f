/* SPDX-License-Identifier: MIT
 * What this mount does not show: files that were staged by an earlier one in a place that this one
 * does not use, since it has another staging_dir, or is read-only. The store knows the places
 * (io/store/staged_in.c).
 */
#include "fs/process/process.h"
#include "staging/log/left.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void this_boot(char boot[9])
{
	char id[37];

	io_boot_id(id);
	snprintf(boot, 9, "%.8s", *id ? id : "00000000");
}

/* DIR of DIR/ID, for messages; *usual: a start without staging_dir looks there. */
static void dir_of(const struct fs *fs, const char *path, char *dir, size_t cap, bool *usual)
{
	const char *name = strrchr(path, '/');

	snprintf(dir, cap, "%.*s", (int)(name - path), path);
	*usual = strcmp(name + 1, io_store_id(fs->store)) || !strcmp(dir, "/run/cairnfs");
}

/* own: the place that a start with these options uses, but for ro */
static void tell_left(struct fs *fs, const char *path, bool own, const struct staging_left *l)
{
	char text[900], dir[512], what[96];
	const char *how;
	bool usual;

	dir_of(fs, path, dir, sizeof(dir), &usual);
	snprintf(what, sizeof(what), "(files: %llu, changes: %llu)",
		 (unsigned long long)l->unpublished_files,
		 (unsigned long long)l->unpublished_changes);
	if (own)
		how = "a start without ro publishes it";
	else if (fs->o.ro)
		how = usual ? "a start without ro and staging_dir publishes it"
			    : "a start without ro and with that staging_dir publishes it";
	else
		how = usual ? "unmount, and start once without staging_dir"
			    : "unmount, and start once with that staging_dir";
	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "what an earlier mount staged below %s is not all in the store %s, and not shown "
		 "here: %s",
		 dir, l->unreadable ? "(it cannot be read)" : what, how);
	fs_notice(fs, text);
}

/* Has the place what the store may lack? Then says so. True also if that is not known. */
static bool look_in(struct fs *fs, const char *path, bool own)
{
	struct staging_left l;
	int err = staging_left_at(path, fs->store, &l);

	if (err)
		return err != -ENOENT && err != -ENOTDIR;
	if (!l.unreadable && !l.unpublished_files && !l.unpublished_changes)
		return false;
	tell_left(fs, path, own, &l);
	return true;
}

/* Of another boot: the memory of this machine is gone. */
static void tell_lost(struct fs *fs, const char *path)
{
	char text[900], dir[512];
	bool usual;

	dir_of(fs, path, dir, sizeof(dir), &usual);
	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "an earlier mount did not end, and its staging below %s went with a restart, or "
		 "is on another machine: what it had not written is not in the store",
		 dir);
	fs_notice(fs, text);
}

static void keep(struct io_staged_in *in, const char *boot, const char *path)
{
	struct io_place *p = &in->v[in->n];

	if (in->n == IO_STAGED_IN || strchr(path, '\n'))
		return;
	in->n++;
	snprintf(p->boot, sizeof(p->boot), "%s", boot);
	snprintf(p->path, sizeof(p->path), "%s", path);
}

/* Keeps the places that may have something, and tells of that. own is not looked at. */
static void look_at_all(struct fs *fs, const struct io_staged_in *was, const char *own,
			struct io_staged_in *now)
{
	char boot[9];

	this_boot(boot);
	for (unsigned i = 0; i < was->n; i++) {
		const struct io_place *p = &was->v[i];

		if (strcmp(p->boot, boot) && !fs->o.ro)
			tell_lost(fs, p->path);
		else if (!strcmp(p->boot, boot) && strcmp(p->path, own) &&
			 look_in(fs, p->path, false))
			keep(now, boot, p->path);
	}
}

void staged_in_tell(struct fs *fs)
{
	struct io_staged_in was, now = {.n = 0};
	char boot[9], own[512] = "";

	if (fs->o.ro &&
	    !staging_place_path(fs->o.staging_dir, io_store_id(fs->store), own, sizeof(own)))
		look_in(fs, own, true);
	if (io_staged_in_read(fs->store, fs->o.host, &was))
		was.n = 0;
	if (fs->o.ro) {
		look_at_all(fs, &was, own, &now);
		return;
	}
	this_boot(boot);
	keep(&now, boot, fs->place.path);
	look_at_all(fs, &was, fs->place.path, &now);
	io_staged_in_write(fs->store, &now); /* failed: the next start may say less */
}

void staged_in_end(struct fs *fs)
{
	struct io_staged_in was, now = {.n = 0};

	if (io_staged_in_read(fs->store, fs->o.host, &was))
		return;
	for (unsigned i = 0; i < was.n; i++)
		if (strcmp(was.v[i].path, fs->place.path))
			keep(&now, was.v[i].boot, was.v[i].path);
	io_staged_in_write(fs->store, &now);
}

/* SPDX-License-Identifier: MIT
 * What this mount does not show: files that were staged by an earlier one in a place that this one
 * does not use, since it has another staging_dir, or is read-only. The store knows the places
 * (io/store/staged_in.c).
 */
#include "fs/process/process.h"
#include "staging/log/left.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void this_boot(char boot[9])
{
	char id[37];

	io_boot_id(id);
	snprintf(boot, 9, "%.8s", *id ? id : "00000000");
}

#define DIR_MAX 512

/* DIR of DIR/ID, for messages. */
static const char *dir_of(const char *path, char dir[DIR_MAX])
{
	snprintf(dir, DIR_MAX, "%.*s", (int)(strrchr(path, '/') - path), path);
	return dir;
}

__attribute__((format(printf, 2, 3))) static void tell(struct fs *fs, const char *fmt, ...)
{
	char text[900];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fs_notice(fs, text);
}

/* own: the place that a start with these options uses, but for ro */
static void tell_left(struct fs *fs, const char *path, bool own, const struct staging_left *l)
{
	char dir[DIR_MAX], what[96];
	/* a start without staging_dir looks there */
	bool usual = strcmp(strrchr(path, '/') + 1, io_store_id(fs->store)) ||
		     !strcmp(dir_of(path, dir), "/run/cairnfs");
	const char *how;

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
	tell(fs,
	     LEVEL_WARNING
	     "what an earlier mount staged below %s is not all in the store %s, and not shown "
	     "here: %s",
	     dir_of(path, dir), l->unreadable ? "(it cannot be read)" : what, how);
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
	char dir[DIR_MAX];

	tell(fs,
	     LEVEL_WARNING
	     "an earlier mount did not end, and its staging below %s went with a restart, or "
	     "is on another machine: what it had not written is not in the store",
	     dir_of(path, dir));
}

static void tell_gone(struct fs *fs, const char *path)
{
	char dir[DIR_MAX];

	tell(fs,
	     LEVEL_WARNING
	     "an earlier mount did not end, and its staging below %s is gone, with its mount "
	     "namespace or container, or removed: what it had not written is not in the store, "
	     "unless a start with another host= has published it",
	     dir_of(path, dir));
}

static void tell_elsewhere(struct fs *fs, const char *path, int pid)
{
	char dir[DIR_MAX];

	tell(fs,
	     LEVEL_WARNING
	     "what an earlier mount staged below %s is in the mount namespace of process %d, "
	     "and not shown here: unmount, and start once there (nsenter -m -t %d)",
	     dir_of(path, dir), pid, pid);
}

static void tell_hidden(struct fs *fs, const char *path)
{
	char dir[DIR_MAX];

	tell(fs,
	     LEVEL_WARNING
	     "an earlier mount did not end, and what it staged below %s is gone, or in a mount "
	     "namespace or container that cannot be looked into from here: a start there "
	     "publishes it",
	     dir_of(path, dir));
}

static void keep(struct io_staged_in *in, const char *boot, uint64_t log, const char *path)
{
	struct io_place *p = &in->v[in->n];

	if (in->n == IO_STAGED_IN || strchr(path, '\n'))
		return;
	in->n++;
	p->log = log;
	snprintf(p->boot, sizeof(p->boot), "%s", boot);
	snprintf(p->path, sizeof(p->path), "%s", path);
}

/* The record of a store that was copied is the original's. */
static bool is_this_stores(const struct fs *fs, const char *path)
{
	const char *id = io_store_id(fs->store);
	size_t len = strlen(path), n = strlen(id);

	return len > n && !strcmp(path + len - n, id);
}

/* Of this boot, and its log is not at its path. Its place stays in the record while it may be
 * somewhere, or until the worker has kept what had moved to the store. */
static void look_for(struct fs *fs, const struct io_place *p, struct io_staged_in *now)
{
	int pid = staging_log_elsewhere(p->path, io_store_id(fs->store), p->log);

	keep(now, p->boot, p->log, p->path);
	if (pid < 0) {
		tell_hidden(fs, p->path);
	} else if (pid) {
		tell_elsewhere(fs, p->path, pid);
		fs->place.keep_dir |= !strcmp(p->path, fs->place.path);
	} else if (!io_store_took_over(fs->store)) { /* else the one that had the name may live */
		tell_gone(fs, p->path);
		fs->procs.gone.log[fs->procs.gone.n++] = p->log;
	}
}

/* Of this boot. own_log: that of this mount's own place, 0: it is new. */
static void look_at(struct fs *fs, const struct io_place *p, const char *own, uint64_t own_log,
		    struct io_staged_in *now)
{
	bool is_own = !strcmp(p->path, own);
	uint64_t at = is_own ? own_log : staging_log_at(p->path, io_store_id(fs->store));

	if (!is_own && look_in(fs, p->path, false))
		keep(now, p->boot, at ? at : p->log, p->path);
	else if (p->log && p->log != at && !fs->o.ro && is_this_stores(fs, p->path))
		look_for(fs, p, now);
}

/* Keeps the places that may have something, and tells of that. */
static void look_at_all(struct fs *fs, const struct io_staged_in *was, const char *own,
			uint64_t own_log, struct io_staged_in *now)
{
	char boot[9];

	this_boot(boot);
	for (unsigned i = 0; i < was->n; i++) {
		const struct io_place *p = &was->v[i];

		if (!strcmp(p->boot, boot))
			look_at(fs, p, own, own_log, now);
		else if (!fs->o.ro)
			tell_lost(fs, p->path);
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
		look_at_all(fs, &was, own, 0, &now);
		return;
	}
	uint64_t log = staging_log_in(fs->place.base, io_store_id(fs->store));
	this_boot(boot);
	keep(&now, boot, log, fs->place.path);
	look_at_all(fs, &was, fs->place.path, log, &now);
	io_staged_in_write(fs->store, &now); /* failed: the next start may say less */
}

void staged_in_end(struct fs *fs, uint64_t log)
{
	struct io_staged_in was, now = {.n = 0};

	if (io_staged_in_read(fs->store, fs->o.host, &was))
		return;
	for (unsigned i = 0; i < was.n; i++)
		if (strcmp(was.v[i].path, fs->place.path) || (was.v[i].log && was.v[i].log != log))
			keep(&now, was.v[i].boot, was.v[i].log, was.v[i].path);
	io_staged_in_write(fs->store, &now);
}

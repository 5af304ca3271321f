/* SPDX-License-Identifier: MIT
 *
 * Whose the files of tmp/ are. Their numbers are unique in one log of staging only. A start with
 * another staging area knows nothing of them, and one of the same area under another host name has
 * them elsewhere. STORE/.cairn/<host>/tmp-of says which log they are of, "LOG BOOT TAKEN". Those of
 * another log go to tmp-LOG-BOOT/ until a start with that log takes them back. Staging ends with
 * the boot; so do they.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "inside.h"
#include "io/entries.h"
#include "io/full.h"
#include "io/scope.h"

#define OF "tmp-of"
#define LOG_DIGITS 16u
#define BOOT_DIGITS 8u
#define OF_BYTES (LOG_DIGITS + 1 + BOOT_DIGITS + 3)
#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

struct owner {
	unsigned long long log; /* 0: not known */
	char boot[BOOT_DIGITS + 1];
	int taken; /* all of its files are in tmp/ */
};

static int read_owner(int host, struct owner *o)
{
	CLEANUP_CLOSE int fd = io_open_beneath(host, OF, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
	char text[OF_BYTES + 1] = "";
	ssize_t n = fd < 0 ? fd : full_pread(fd, text, OF_BYTES, 0);

	*o = (struct owner){.log = 0};
	if (n == -ENOENT)
		return 0;
	if (n >= 0 && sscanf(text, "%16llx %8[0-9a-f] %d", &o->log, o->boot, &o->taken) != 3)
		*o = (struct owner){.log = 0};
	return n < 0 ? (int)n : 0;
}

static int write_owner(int host, const struct owner *o)
{
	char text[OF_BYTES + 1];
	CLEANUP_CLOSE int fd = io_open_beneath(
		host, OF, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, 0600);
	int err = fd < 0 ? fd : 0;

	snprintf(text, sizeof(text), "%016llx %s %d\n", o->log, o->boot, o->taken);
	if (!err)
		err = full_pwrite(fd, text, OF_BYTES, 0);
	/* without one, nothing is known; with a wrong one, something wrong */
	if (err && (!unlinkat(host, OF, 0) || errno == ENOENT))
		return 0;
	return err;
}

/* How many files were moved, or -errno. What `to` has already is not replaced. */
static int move_files(int from, int to)
{
	CLEANUP_DIR DIR *d = entries_at(from, ".");
	struct dirent *e;
	uint64_t id;
	int n = 0;

	if (!d)
		return -errno;
	while ((e = entries_next(d))) {
		if (!io_tmp_id(e->d_name, &id) ||
		    !faccessat(to, e->d_name, F_OK, AT_SYMLINK_NOFOLLOW))
			continue;
		if (!renameat(from, e->d_name, to, e->d_name))
			n++;
		else if (errno != ENOENT)
			return -errno;
	}
	return n;
}

static void aside_name(const struct owner *o, char out[NAME_MAX + 1])
{
	snprintf(out, NAME_MAX + 1, "tmp-%016llx-%s", o->log, o->boot);
}

static int put_aside(struct io_store *s, const struct owner *o)
{
	char name[NAME_MAX + 1];

	aside_name(o, name);
	if (mkdirat(s->host, name, 0700) && errno != EEXIST)
		return -errno;
	CLEANUP_CLOSE int dir = openat(s->host, name, DIR_FLAGS);
	int n = dir < 0 ? -errno : move_files(s->tmp, dir);

	unlinkat(s->host, name, AT_REMOVEDIR); /* if it is empty */
	return n;
}

/* What o's log has in the host's directory, under whichever name it was served. */
static int take_from(struct io_store *s, int host, const struct owner *o)
{
	char name[NAME_MAX + 1];
	struct owner its;
	int err = 0;

	aside_name(o, name);
	CLEANUP_CLOSE int aside = openat(host, name, DIR_FLAGS);
	if (aside >= 0)
		err = move_files(aside, s->tmp);
	if (aside >= 0)
		unlinkat(host, name, AT_REMOVEDIR);
	if (err < 0 || read_owner(host, &its) || its.log != o->log)
		return err;
	CLEANUP_CLOSE int tmp = openat(host, "tmp", DIR_FLAGS);
	return tmp < 0 ? err : move_files(tmp, s->tmp);
}

static int take_back(struct io_store *s, const struct owner *o)
{
	CLEANUP_DIR DIR *d = entries_at(s->cairn, ".");
	struct dirent *e;
	int err = 0;

	while (err >= 0 && (e = entries_next(d))) {
		CLEANUP_CLOSE int host = openat(s->cairn, e->d_name, DIR_FLAGS);

		if (host >= 0)
			err = take_from(s, host, o);
	}
	return err < 0 ? err : 0;
}

/* Never over what is there: LOG and the name together are of one file. */
static int keep_one(struct io_store *s, int dir, const char *log, const char *name)
{
	char to[NAME_MAX + 1];
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
		return -errno;
	if (!st.st_size)
		return unlinkat(dir, name, 0) ? -errno : 0;
	snprintf(to, sizeof(to), "file.%.16s.%.16s", log, name);
	int err = io_rename(s, dir, name, s->lostfound, to, 0);
	return err ? err : 1;
}

int io_tmp_keep(struct io_store *s, uint64_t log)
{
	struct owner o = {.log = log};
	char boot[37], name[NAME_MAX + 1], of[LOG_DIGITS + 1];
	struct dirent *e;
	uint64_t id;
	int n = 0, err = 0;

	io_boot_id(boot);
	snprintf(o.boot, sizeof(o.boot), "%.8s", *boot ? boot : "00000000");
	snprintf(of, sizeof(of), "%016llx", o.log);
	aside_name(&o, name);
	CLEANUP_CLOSE int dir = s->host < 0 ? -1 : openat(s->host, name, DIR_FLAGS);
	if (dir < 0)
		return s->host < 0 || errno == ENOENT ? 0 : -errno;
	CLEANUP_DIR DIR *d = entries_at(dir, ".");
	if (!d)
		return -errno;
	while (err >= 0 && (e = entries_next(d)))
		if (io_tmp_id(e->d_name, &id) && (err = keep_one(s, dir, of, e->d_name)) > 0)
			n++;
	if (err >= 0) /* also what an earlier try moved */
		err = io_sync_dir(s, s->lostfound);
	if (err >= 0)
		unlinkat(s->host, name, AT_REMOVEDIR);
	return err < 0 ? err : n;
}

/* Those of other boots. */
static void remove_old(struct io_store *s, const char *boot)
{
	CLEANUP_DIR DIR *d = entries_at(s->host, ".");
	const size_t before = strlen("tmp-") + LOG_DIGITS + 1;
	struct dirent *e, *f;
	uint64_t id;

	while ((e = entries_next(d))) {
		if (strncmp(e->d_name, "tmp-", 4) || strlen(e->d_name) != before + BOOT_DIGITS ||
		    !strcmp(e->d_name + before, boot))
			continue;
		CLEANUP_CLOSE int dir = openat(s->host, e->d_name, DIR_FLAGS);
		CLEANUP_DIR DIR *in = dir < 0 ? NULL : entries_at(dir, ".");

		while ((f = entries_next(in)))
			if (io_tmp_id(f->d_name, &id))
				unlinkat(dir, f->d_name, 0);
		unlinkat(s->host, e->d_name, AT_REMOVEDIR);
	}
}

int io_tmp_claim(struct io_store *s, uint64_t log, bool fresh, uint64_t *of)
{
	char boot[37];
	struct owner was, now = {.log = log};
	int err, aside = 0;

	if (s->ro || s->tmp < 0)
		return 0;
	err = read_owner(s->host, &was);
	if (err || (was.log == log && was.taken))
		return err;
	io_boot_id(boot);
	snprintf(now.boot, sizeof(now.boot), "%.8s", *boot ? boot : "00000000");
	if (was.log && was.log != log && !strcmp(was.boot, now.boot))
		aside = put_aside(s, &was);
	*of = was.log;
	if (aside < 0)
		return aside;
	/* from here on a start does not put aside what is taken back */
	err = write_owner(s->host, &now);
	if (!err && !fresh) /* it asks each host's directory */
		err = take_back(s, &now);
	remove_old(s, now.boot);
	now.taken = 1;
	if (!err)
		err = write_owner(s->host, &now);
	return err ? err : aside;
}

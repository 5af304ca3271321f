/* SPDX-License-Identifier: MIT
 *
 * What the files of the `cairn` command share. A subcommand (tools/cairn/commands.h) returns the
 * exit code. Below them everything returns 0 or a negative errno and prints nothing, unless it is
 * named complain_, print_ or progress_.
 */
#ifndef CAIRN_CLI_H
#define CAIRN_CLI_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "io/clock.h"
#include "io/keys.h"
#include "io/mounts/mounts.h"
#include "io/refused.h"
#include "json.h"

enum cairn_exit {
	CAIRN_OK = 0,
	CAIRN_FAILED = 1, /* correct usage, negative result */
	CAIRN_USAGE = 2, /* wrong options, no such path, not on a cairnfs */
	CAIRN_TIMEOUT = 3, /* also: the mount does not answer */
	CAIRN_LEFT = 4, /* umount: done, but something stays in staging */
};

/* ---- scope ---------------------------------------------------------------- */

static inline void cairn_free_ptr(void *p)
{
	free(*(void **)p);
}

static inline void cairn_close_fd(int *fd)
{
	if (*fd >= 0) {
		int saved = errno; /* often read after the scope */

		close(*fd);
		errno = saved;
	}
}

#define CLEANUP_FREE __attribute__((cleanup(cairn_free_ptr)))
#define CLEANUP_CLOSE __attribute__((cleanup(cairn_close_fd)))
#define CLEANUP_JSON __attribute__((cleanup(json_doc_freep)))

/* ---- subcommands ------------------------------------------------------------ */

/* When the mount counts as silent (watch.c), and what --timeout is */
enum limit {
	LIMIT_SILENCE, /* no call on the mount returns for this long; the same */
	LIMIT_WHOLE, /* the subcommand takes this long; the same */
	LIMIT_DEADLINE, /* as LIMIT_SILENCE; when the subcommand ends */
	LIMIT_NONE, /* calls no mount; there is no --timeout */
};

struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	/* As in a man page: options in brackets, with their value, then operands; "a|b" is a choice
	 * of words. Completion (completion.c) is made from it. */
	const char *args;
	const char *what, *more; /* a line, and what follows it in the help, "" = nothing */
	enum limit limit;
	double limit_s; /* without --timeout */
	/* what to print then, besides the message; its exit code. NULL: CAIRN_TIMEOUT */
	int (*on_silence)(const char *path);
};

/* ---- limits (watch.c) ------------------------------------------------------- */

/* Runs it in a child process with its limit; takes --timeout. The exit code. */
int watch_run(const struct command *c, int argc, char **argv);
/* When --timeout ends, by now_s(); 0: there is none. */
double watch_deadline(void);
/* The mount has answered: the limit of LIMIT_WHOLE begins anew. */
void watch_answered(void);
/* The mount, where no operand names it. */
void watch_name(const char *path);
/* The operand, one of argv, that it is at from now on: with thousands of them, asking whether all
 * answer costs more than the subcommand itself. */
void watch_at(const char *operand);
/* The store, which the subcommand calls from now on and which may not answer; NULL: it has
 * answered. Whoever watches says so after a while. */
void watch_asks(const char *path);
/* A process of this command that is not the subcommand itself. */
bool watch_is_helper(int pid);
/* One line: the mount that path is on does not answer, and what to do (silent.c). */
void complain_silent(const char *path, double silent_s);

/* ---- messages (complain.c) --------------------------------------------- */

/* One line on stderr, "cairn: ...". */
__attribute__((format(printf, 1, 2))) void complain(const char *fmt, ...);
/* complain() with a pointer to the help; returns CAIRN_USAGE. */
__attribute__((format(printf, 2, 3))) int complain_usage(const char *sub, const char *fmt, ...);
/* Reports the option that getopt_long() just refused (it returned '?' or ':'). */
int complain_option(const char *sub, char **argv);

/* ---- where a path is (where.c) ---------------------------------------- */

/* of any descriptor; accesses no filesystem; or -errno */
int mount_id_of(int fd);
/* Prints what keeps a mount busy, a line each, indented; returns how many lines. */
int print_users(FILE *f, int mount_id);
/* Is it that cairnfs? When it has ended, another filesystem may get the number of its device. */
bool is_mount_of(const struct io_mount *m, unsigned dev_major, unsigned dev_minor,
		 const char *source);
/* The processes, one per mount namespace, that have a cairnfs mounted: a line each, indented; how
 * many. Those of cairnfs itself are left out. */
int print_namespaces(FILE *f, unsigned dev_major, unsigned dev_minor, const char *source);

bool mount_is_cairnfs(const struct io_mount *m);

struct location {
	const char *arg; /* as given by the user; borrowed */
	int fd; /* O_PATH of the path itself */
	int root; /* O_PATH of the mount's root, or of the store */
	bool on_mount; /* else in an unmounted store */
	int mount_id; /* of the mount whose root `root` is; -1 in a store */
	unsigned dev_major, dev_minor; /* its device, 0:0 in a store */
	char *top; /* the mount point, or the store's path */
	char *source; /* what the mount table says is mounted; NULL in a store */
	char *below; /* path below top, without leading '/'; "" is top itself */
};

#define LOCATION_NONE ((struct location){.fd = -1, .root = -1, .mount_id = -1})
#define NEEDS_PROC "mounts are found in /proc, which is not mounted here: mount -t proc proc /proc"
#define CLEANUP_PLACE __attribute__((cleanup(location_close)))

/* -errno of a call on a mount. A call in progress when the daemon died fails with ECONNABORTED,
 * each later one with ENOTCONN: the latter is returned for both. */
static inline int call_error(void)
{
	return errno == ECONNABORTED ? -ENOTCONN : -errno;
}

/* -ENODEV: neither on a cairnfs mount nor in a store; -EXDEV: a bind mount of a
 * cairnfs whose root is not mounted here; -ENOSYS: there is no /proc; else as open(2). */
int location_find(const char *path, struct location *out);
/* The same, faster for a path on the mount of `near`: then out->root is near's, and is closed once.
 */
int location_near(const char *path, const struct location *near, struct location *out);
void location_close(struct location *p);
/* Makes finding the first of n paths and those after it in the same directory faster, if they are
 * many (list_first.c); how many these are. */
int list_first(char **paths, int n);
/* location_find(), and on error one line with the reason; CAIRN_OK, or location_code(). */
int location_need(const char *path, bool need_mount, struct location *out);
int location_need_near(const char *path, bool need_mount, const struct location *near,
		       struct location *out);
/* One line for an error of location_find(), or of a call on the path. */
void complain_location(const char *path, int err);
/* The exit code for it: a dead daemon is a failure, all else wrong usage. */
int location_code(int err);
/* The only cairnfs mount, or the one that the working directory is on:
 * malloc()ed path. -ENODEV: none; -EEXIST: several; -ENOSYS: there is no /proc. */
int location_default(char **out);
/* For a command that changes the store of p itself: no cairnfs serves it, as far as locks and
 * claims tell, and none starts until this process ends. CAIRN_OK; else CAIRN_FAILED, complained,
 * with remedy if one does. (hold.c) */
int location_hold(const char *path, const struct location *p, const char *remedy);
/* Lists the cairnfs mounts to f, one a line, indented. */
void print_mounts(FILE *f);

/* The mount that the one operand names, or the default one; CAIRN_OK, or complained (status.c). */
int need_mount(const char *sub, int argc, char **argv, struct location *out);

#define STATUS_MAX (64u << 20)
/* .cairn/status.json of the mount. -ENOTCONN: its daemon is gone; -EBADMSG: not JSON. */
int location_status(const struct location *p, struct json_doc **out);
/* Reads a whole file below a directory descriptor; NUL-terminated; -EFBIG past max. */
int read_small_file(int dirfd, const char *name, size_t max, char **out, size_t *len);
/* One line for a status that could not be read; returns CAIRN_FAILED. */
int complain_status(const struct location *p, int err);
/* Says which accepted change the store refused for good, if the status d has one; and, if the
 * mount stays, how to acknowledge it. */
bool complain_refused(const struct location *p, const struct json_doc *d, bool stays);
/* The first checkpoint that waits for other hosts, if the status d has one: which, and for what;
 * and what a person can do. top: the mount point. */
struct held_text {
	char what[PATH_MAX + 800], remedy[2 * PATH_MAX + 400];
};
bool held_of(const char *top, const struct json_doc *d, struct held_text *out);
/* Where that is now, by the status d, which has such; buf, or a constant. */
const char *kept_of(const struct json_doc *d, char buf[REFUSED_KEPT]);

/* ---- xattrs and status of a file ---------------------------------------------- */

/* Value of an xattr as text, NUL-terminated ("" on error). 0 or -errno, -ERANGE if it is longer
 * than cap - 1, -ENODATA if there is none. fd may be O_PATH; the second never follows a symlink. */
int xattr_of_fd(int fd, const char *key, char *buf, size_t cap);
int xattr_at(int dirfd, const char *name, const char *key, char *buf, size_t cap);

/* ---- trees (walk.c) ------------------------------------------------------ */

struct names {
	char **v;
	size_t n, cap;
};

/* Names in a directory, sorted by bytes, without "." and "..". */
int names_read(int dirfd, struct names *out);
void names_free(struct names *n);

enum walk_what {
	WALK_END,
	WALK_ENTRY, /* anything, directories included, before their contents */
	WALK_LEAVE, /* a directory, after its contents */
	WALK_ERROR, /* err is the reason; what is below is not visited */
};

struct walk_item {
	enum walk_what what;
	const char *path; /* relative to the start, "" is the start; any length */
	const char *name; /* last component; "." for the start */
	int dirfd; /* directory of name */
	int peer; /* the same directory in the second tree; -1 = it has none */
	struct stat st; /* lstat(2); unset on WALK_ERROR */
	int err;
};

struct walk;

/* Walks the directory open at `start`, and in parallel `peer` (-1: none).
 * Both stay the caller's. Symlinks are not followed, nothing recurses, a bounded
 * number of descriptors is used. `skip`: a name to skip at the top, or NULL. */
int walk_open(int start, int peer, const char *skip, struct walk **out);
void walk_close(struct walk *w);
/* Valid until the next call. */
enum walk_what walk_next(struct walk *w, struct walk_item *out);
/* Does not enter the directory that was the last WALK_ENTRY; no WALK_LEAVE comes for it. */
void walk_leave(struct walk *w);

static inline void walk_closep(struct walk **w)
{
	walk_close(*w);
}
#define CLEANUP_WALK __attribute__((cleanup(walk_closep)))

/* As renameat(2) of a file, but -EEXIST if there is anything of that name; also on NFS, which has
 * links only: then both names are there for a moment. 0 or -errno. */
int name_new(int fromdir, const char *from, int todir, const char *to);

/* ---- relative paths, without a slash at the end; "" is the top --------------- */

/* The last name of it. */
static inline const char *path_base(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* Are they in one directory? */
static inline bool path_same_dir(const char *a, const char *b)
{
	size_t n = (size_t)(path_base(a) - a);

	return n == (size_t)(path_base(b) - b) && !strncmp(a, b, n);
}

/* Is path the directory, or below it? */
static inline bool path_is_at(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return !n || (!strncmp(path, dir, n) && (!path[n] || path[n] == '/'));
}

/* ---- text (text.c) --------------------------------------------------------- */

double now_s(void); /* monotonic */
void sleep_s(double s);
const char *human_bytes(uint64_t n, char buf[32]); /* "1.5 GiB" */
#define NUMBER_CAP 21
char *put_number(char *p, uint64_t n); /* in decimal, NUL-terminated; its end */
const char *human_time(double s, char buf[32]); /* "0:07", "1:02:03" */
/* Prints a name: control characters and what is not UTF-8 as \xNN. */
void print_escaped(FILE *f, const char *name);
/* The same if f is a terminal, else the name's bytes but for newlines: a line remains a line. */
void print_name(FILE *f, const char *name);
/* Bytes, of "500", "64K", "512M", "2G" or "1T". 0 or -EINVAL. */
int parse_bytes(const char *s, uint64_t *out);
/* A duration in seconds, of "90", "1.5", "90s", "5m" or "2h". 0 or -EINVAL. */
int parse_duration(const char *s, double *out);

/* ---- lines that fit the screen (lines.c) -------------------------------------- */

/* $COLUMNS, or those of the terminal, or 80; at least 40. */
unsigned screen_columns(FILE *f);
/* A name as print_escaped() prints it, shortened in the middle to this many columns; malloc()ed, or
 * NULL: no memory. */
char *one_line(const char *name, unsigned columns);
/* The same for a name in the text of print_line(). */
char *name_in_line(const char *name);
/* Prints "  label      text" to stdout, escaped as print_escaped() does and wrapped to the
 * screen's columns. label NULL: a line that is not indented. */
__attribute__((format(printf, 2, 3))) void print_line(const char *label, const char *fmt, ...);
#define COUNT_ROOM 64
/* "1 file", "2 files". */
const char *count_of(unsigned long long n, const char *what, char buf[COUNT_ROOM]);

struct progress {
	FILE *f;
	const char *label;
	bool tty, quiet, shown;
	double start, last_show, last_sample;
	uint64_t done, left; /* done + left = the total */
	uint64_t sample_done;
	double rate; /* bytes a second, smoothed; 0 = unknown */
};

void progress_start(struct progress *p, const char *label, bool quiet);
/* What is left now; the decrease counts as done. `note`: a short description of the activity. */
void progress_left(struct progress *p, uint64_t left, const char *note);
/* The same, given what is done. */
void progress_done(struct progress *p, uint64_t done, uint64_t total, const char *note);
void progress_end(struct progress *p); /* erases the bar from the terminal */

#endif

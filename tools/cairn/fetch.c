/* SPDX-License-Identifier: MIT
 *
 * cairn fetch: checkpoints of a mount's tier into its store. Who asks for user.cairn.wait of a file
 * below MOUNT/.cairn/tier waits until its checkpoint is fetched (fs/remote/remote.c): here a thread
 * does, and this one shows how far it is.
 */
#include "commands.h"
#include "tools/cairn/tier/tier_where.h"

#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define LOOK_S 0.2

struct fetching {
	struct location p;
	char *below; /* of the tier */
	uint64_t files, bytes, fetched; /* fetched: checkpoints, before */
	atomic_bool ended;
	int err; /* of the thread, when it has ended */
};

struct opts {
	bool latest, json, quiet;
};

/* ---- what is to be fetched -------------------------------------------------------------- */

static void strip_tier(char *below)
{
	const char *path = tier_where_path(below);
	size_t len;

	memmove(below, path, strlen(path) + 1);
	for (len = strlen(below); len && below[len - 1] == '/';)
		below[--len] = '\0';
}

/* 1: below is what the tier has newest, below top; 0: the store has the newest, or nothing is. */
static int find_latest(struct fetching *f, const char *arg, const char *top)
{
	CLEANUP_FREE char *path = NULL;
	bool remote;
	int err = tier_where_latest(&f->p, top, &path, &remote);

	if (err)
		return err;
	if (!remote) {
		printf("there    %s: the newest is in the store: %s\n", arg, path);
		return 0;
	}
	free(f->below);
	f->below = strdup(path);
	return f->below ? 1 : -ENOMEM;
}

/* ---- the thread --------------------------------------------------------------------------- */

/* Calls each for the files below f->below. */
static int each_file(struct fetching *f, int (*each)(struct fetching *, const struct walk_item *))
{
	CLEANUP_WALK struct walk *w = NULL;
	CLEANUP_FREE char *path = NULL;
	CLEANUP_CLOSE int fd = -1;
	struct walk_item it = {0};
	int err;

	if (asprintf(&path, TIER_SHOWN "%s%s", *f->below ? "/" : "", f->below) < 0)
		return -ENOMEM;
	fd = openat(f->p.root, path, O_PATH | O_CLOEXEC);
	err = fd < 0 || fstat(fd, &it.st) ? call_error() : 0;
	it.dirfd = fd;
	if (!err && S_ISREG(it.st.st_mode)) /* without a name: it is dirfd itself */
		return each(f, &it);
	if (!err)
		err = walk_open(fd, -1, NULL, &w);
	while (!err && walk_next(w, &it) != WALK_END)
		if (it.what == WALK_ERROR)
			err = it.err;
		else if (it.what == WALK_ENTRY && S_ISREG(it.st.st_mode))
			err = each(f, &it);
	return err;
}

static int count_one(struct fetching *f, const struct walk_item *it)
{
	f->files++;
	f->bytes += (uint64_t)it->st.st_size;
	return 0;
}

/* Until all of its checkpoint is in the store. */
static int await_one(struct fetching *f, const struct walk_item *it)
{
	char state[32];

	(void)f;
	return it->name ? xattr_at(it->dirfd, it->name, KEY_WAIT, state, sizeof(state))
			: xattr_of_fd(it->dirfd, KEY_WAIT, state, sizeof(state));
}

static void *await_all(void *arg)
{
	struct fetching *f = arg;

	f->err = each_file(f, await_one);
	atomic_store(&f->ended, true);
	return NULL;
}

/* Does the daemon know by now that the tier has not what the manifest lists? */
static bool is_damaged(const struct fetching *f)
{
	CLEANUP_FREE char *path = NULL;
	CLEANUP_CLOSE int fd = -1;
	char state[32];

	if (asprintf(&path, TIER_SHOWN "/%s", f->below) < 0)
		return false;
	fd = openat(f->p.root, path, O_PATH | O_CLOEXEC);
	return fd >= 0 && !xattr_of_fd(fd, KEY_STATE, state, sizeof(state)) &&
	       !strcmp(state, "damaged");
}

/* ---- what is told ------------------------------------------------------------------------- */

static uint64_t status_u64(const struct fetching *f, const char *key)
{
	CLEANUP_JSON struct json_doc *d = NULL;

	return location_status(&f->p, &d) ? 0 : json_u64(d, json_at(d, 0, key));
}

static void show_progress(const struct fetching *f, struct progress *bar)
{
	CLEANUP_JSON struct json_doc *d = NULL;

	if (!location_status(&f->p, &d) && !json_is_null(d, json_at(d, 0, "fetch.fetching")))
		progress_done(bar, json_u64(d, json_at(d, 0, "fetch.done_bytes")),
			      json_u64(d, json_at(d, 0, "fetch.total_bytes")), f->below);
}

/* What the daemon knows of the failure. */
static void complain_failed(const struct fetching *f, const char *arg)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	CLEANUP_FREE char *why =
		location_status(&f->p, &d) ? NULL : json_bytes(d, json_at(d, 0, "fetch.error"));

	complain("%s: not fetched: %s%s%s", arg, strerror(-f->err), why && *why ? ": " : "",
		 why && *why ? why : "");
}

static void show(const struct fetching *f, const struct opts *o, const char *arg,
		 struct json_out *j, int code)
{
	const char *what = code && is_damaged(f)			 ? "damaged"
			   : code					 ? "failed"
			   : status_u64(f, "fetch.fetched") > f->fetched ? "fetched"
									 : "there";
	char n[COUNT_ROOM], b[32];

	if (o->json) {
		json_open(j, NULL, '{');
		json_put_path(j, "path", f->below ? f->below : arg);
		json_put_string(j, "action", what);
		json_put_u64(j, "files", f->files);
		json_put_u64(j, "bytes", f->bytes);
		json_close(j, '}');
	} else if (!code) {
		printf("%-7s  ", what);
		print_name(stdout, f->below);
		printf("  %s, %s\n", count_of(f->files, "file", n), human_bytes(f->bytes, b));
	}
}

/* ---- one PATH ------------------------------------------------------------------------------ */

static int wait_for(struct fetching *f, const struct opts *o, const char *arg, double deadline)
{
	struct progress bar;
	pthread_t t;
	int code = -1;

	progress_start(&bar, "fetch", o->quiet);
	f->fetched = status_u64(f, "fetch.fetched");
	if (pthread_create(&t, NULL, await_all, f)) {
		complain("no thread: %m");
		return CAIRN_FAILED;
	}
	while (code < 0) {
		if (atomic_load(&f->ended))
			code = f->err ? CAIRN_FAILED : CAIRN_OK;
		else if (deadline && now_s() >= deadline)
			code = CAIRN_TIMEOUT;
		else
			sleep_s(LOOK_S);
		show_progress(f, &bar);
	}
	progress_end(&bar);
	if (code == CAIRN_TIMEOUT)
		complain("%s: not fetched yet; that goes on while %s is mounted", arg, f->p.top);
	else
		pthread_join(t, NULL);
	if (code == CAIRN_FAILED)
		complain_failed(f, arg);
	return code;
}

static int complain_absent(const struct fetching *f, const char *arg, int err)
{
	if (err == -ENOENT)
		complain("%s: %s", arg,
			 faccessat(f->p.root, TIER_SHOWN, F_OK, 0) && errno == ENOENT
				 ? "this mount has no tier; mount it with -o tier=PLACE"
				 : "not in the tier: `cairn ls` lists what is");
	else if (err == -ENODATA)
		complain("%s: no checkpoint that is complete", arg);
	else if (err == -EIO && status_u64(f, "fetch.damaged"))
		complain("%s: no checkpoint that is not damaged: see `cairn status`", arg);
	else
		complain("%s: %s", arg, strerror(-err));
	return err == -ENOENT ? CAIRN_USAGE : CAIRN_FAILED;
}

static int fetch_below(struct fetching *f, const struct opts *o, const char *arg,
		       struct json_out *j, double deadline)
{
	int code, err;

	f->files = f->bytes = 0;
	atomic_store(&f->ended, false);
	err = each_file(f, count_one);
	if (err)
		return complain_absent(f, arg, err);
	code = wait_for(f, o, arg, deadline);
	show(f, o, arg, j, code);
	return code;
}

/* The newest, and if that is damaged the one before. */
static int fetch_latest(struct fetching *f, const struct opts *o, const char *arg,
			struct json_out *j, double deadline)
{
	CLEANUP_FREE char *top = strdup(f->below), *damaged = NULL;
	int code = CAIRN_FAILED, found = top ? 1 : -ENOMEM;

	while (found > 0) {
		found = find_latest(f, arg, top);
		if (!found)
			return CAIRN_OK;
		if (found < 0 || (damaged && !strcmp(damaged, f->below)))
			break;
		code = fetch_below(f, o, arg, j, deadline);
		if (code != CAIRN_FAILED || !is_damaged(f))
			return code;
		complain("%s is damaged in the tier: the one before it is fetched", f->below);
		free(damaged);
		damaged = strdup(f->below);
	}
	return found < 0 ? complain_absent(f, arg, found) : code;
}

static int fetch(const char *arg, const struct opts *o, struct json_out *j, double deadline)
{
	/* not freed: a thread that still waits has it */
	struct fetching *f = calloc(1, sizeof(*f));
	int err = f ? 0 : -ENOMEM;

	if (f)
		f->p = LOCATION_NONE;
	if (!err)
		err = tier_where_above(arg, &f->p, &f->below);
	if (err || !f->p.on_mount) {
		complain_location(arg, err ? err : -ENODEV);
		return CAIRN_USAGE;
	}
	watch_name(f->p.top);
	strip_tier(f->below);
	return o->latest ? fetch_latest(f, o, arg, j, deadline)
			 : fetch_below(f, o, arg, j, deadline);
}

int cmd_fetch(int argc, char **argv)
{
	static const struct option longs[] = {
		{"latest", no_argument, NULL, 'l'}, {"json", no_argument, NULL, 'j'}, {0}};
	double deadline = watch_deadline();
	int c, worst = CAIRN_OK;
	struct opts o = {0};
	struct json_out j;

	while ((c = getopt_long(argc, argv, "q", longs, NULL)) != -1) {
		if (c == '?')
			return complain_option("fetch", argv);
		o.latest |= c == 'l';
		o.json |= c == 'j';
		o.quiet |= c == 'q';
	}
	if (optind == argc)
		return complain_usage("fetch", "which checkpoint?");
	json_begin(&j, stdout);
	if (o.json)
		json_open(&j, NULL, '[');
	for (int i = optind; i < argc; i++) {
		int code = fetch(argv[i], &o, &j, deadline);

		worst = code > worst ? code : worst;
	}
	if (o.json)
		json_close(&j, ']');
	return worst;
}

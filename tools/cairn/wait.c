/* SPDX-License-Identifier: MIT
 *
 * cairn wait: waits until everything below some paths is durable. The state comes from the
 * xattrs of the paths themselves, through descriptors opened at the start:
 * a directory that is renamed into place meanwhile is still the one waited for.
 *
 * One getxattr(2) of user.cairn.wait per path returns when the state is final; for many paths their
 * mount is asked first, whether anything at all is pending. Where the daemon has
 * no such attribute, or may not keep the call waiting, the state is polled.
 */
#include "commands.h"
#include "io/goes_on.h"
#include "io/number.h"
#include "tools/cairn/tier/tier_where.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>

#define POLL_MIN_S 0.005
#define POLL_MAX_S 0.2
#define STATUS_EVERY_S 0.5 /* the daemon writes the whole document each time */
/* for how long one call may wait: the bar moves, a line is printed */
#define BAR_EVERY_S 0.5
#define LINE_EVERY_S 10.0
/* the next worker measures the time of a call anew */
#define CALL_MAX_S 30.0
#define MANY 4 /* paths for which their mount is asked first */

struct target {
	struct location p;
	uint64_t pending;
	char state[16];
	uint64_t after_seq; /* of a mount's root: includes removals, up to here */
	bool done, failed;
};

struct waiting {
	struct target *t;
	int n;
	double deadline; /* 0 = none */
	double asked; /* when status.json was last read */
	struct progress bar;
};

/* ---- one target ------------------------------------------------------------------ */

static uint64_t status_u64(const struct json_doc *d, const char *keys)
{
	return json_u64(d, json_at(d, 0, keys));
}

/* Everything below is durable. For the root also every earlier change, including removals. */
static bool is_done(const struct target *t)
{
	CLEANUP_JSON struct json_doc *d = NULL;

	if (strcmp(t->state, "durable") || t->pending)
		return false;
	if (*t->p.below)
		return true;
	return !location_status(&t->p, &d) && status_u64(d, "log.durable_seq") >= t->after_seq;
}

/* The first failed file below the target, with its reason. */
static bool say_failed_file(const struct target *t)
{
	CLEANUP_WALK struct walk *w = NULL;
	struct walk_item it;
	char value[1024];

	if (walk_open(t->p.fd, -1, NULL, &w))
		return false;
	while (walk_next(w, &it) != WALK_END) {
		if (it.what != WALK_ENTRY || S_ISDIR(it.st.st_mode) ||
		    xattr_at(it.dirfd, it.name, KEY_STATE, value, sizeof(value)) ||
		    strcmp(value, "failed"))
			continue;
		xattr_at(it.dirfd, it.name, KEY_ERROR, value, sizeof(value));
		complain("%s/%s failed: %s", t->p.arg, it.path, *value ? value : "no reason given");
		return true;
	}
	return false;
}

/* A change that the store refused: the file need not exist in the mount any more. */
static bool say_refused(const struct target *t)
{
	CLEANUP_JSON struct json_doc *d = NULL;

	return !location_status(&t->p, &d) && complain_refused(&t->p, d, true);
}

/* What an earlier run left has no path in the mount. */
static bool say_kept(const struct target *t)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	char n[COUNT_ROOM], size[32], why[1024] = "";

	if (*t->p.below || location_status(&t->p, &d) || !status_u64(d, "recovered.kept"))
		return false;
	xattr_of_fd(t->p.fd, KEY_ERROR, why, sizeof(why));
	complain("%s failed: %s never closed by an earlier run, %s, could not be moved to "
		 ".cairn/lost+found yet: %s; free space in the store or repair it" GOES_ON " %s",
		 t->p.arg, count_of(status_u64(d, "recovered.kept"), "file", n),
		 human_bytes(status_u64(d, "recovered.kept_bytes"), size), *why ? why : "?",
		 t->p.top);
	return true;
}

static void say_failed(struct target *t)
{
	char why[1024];

	t->done = t->failed = true;
	if (say_refused(t) || say_kept(t) || say_failed_file(t))
		return;
	xattr_of_fd(t->p.fd, KEY_ERROR, why, sizeof(why));
	complain("%s failed: %s", t->p.arg, *why ? why : "see `cairn status`");
}

/* While publication is halted nothing becomes durable. */
static void check_halted(struct target *t)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	CLEANUP_FREE char *path = NULL, *why = NULL, *remedy = NULL;

	if (location_status(&t->p, &d) || json_is_null(d, json_at(d, 0, "halted")))
		return;
	path = json_bytes(d, json_at(d, 0, "halted.path"));
	why = json_bytes(d, json_at(d, 0, "halted.error"));
	remedy = json_bytes(d, json_at(d, 0, "halted.remedy"));
	bool known = path && *path; /* empty: the store as a whole */
	complain("%s is not durable: publication halted%s%s: %s; %s" GOES_ON " %s", t->p.arg,
		 known ? " at " : "", known ? path : "", why ? why : "?",
		 remedy ? remedy : "repair the store", t->p.top);
	t->done = t->failed = true;
}

/* It waits for other nodes, and will for as long as they do not come. */
static bool check_held(struct target *t)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	struct held_text held;
	char why[512] = "";

	if (xattr_of_fd(t->p.fd, KEY_HELD, why, sizeof(why)) || !*why)
		return false;
	if (!location_status(&t->p, &d) && held_of(t->p.top, d, &held))
		complain("%s is not durable: %s; %s", t->p.arg, held.what, held.remedy);
	else
		complain("%s is not durable: it waits for files of another host, for %s", t->p.arg,
			 why);
	t->done = t->failed = true;
	return true;
}

/* A removed file has no state, or one for as long as others hold it open. */
static bool is_removed(const struct target *t)
{
	char link[64], path[4096];
	struct stat st;
	ssize_t n;

	if (!fstatat(t->p.fd, "", &st, AT_EMPTY_PATH) && !st.st_nlink)
		return true;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", t->p.fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 10)
		return false;
	path[n] = '\0';
	return !strcmp(path + n - 10, " (deleted)") && lstat(path, &st) && errno == ENOENT;
}

/* It will have no state any more. */
static void say_lost(struct target *t, int err)
{
	t->done = t->failed = true;
	if (err == -ENODATA && *t->p.below)
		complain("%s has no state: not a file or directory of this cairnfs", t->p.arg);
	else if (err == -ENOENT || err == -ESTALE)
		complain("%s was removed while it was waited for", t->p.arg);
	else
		complain("%s: %s%s", t->p.arg, strerror(-err),
			 err == -ENOTCONN
				 ? " (the cairnfs is dead; its next start publishes what is staged)"
				 : "");
}

static void check(struct target *t, bool ask_status)
{
	char pending[32] = "0";
	int err;

	watch_at(t->p.arg);
	err = xattr_of_fd(t->p.fd, KEY_STATE, t->state, sizeof(t->state));

	if (err != -ENODATA && is_removed(t))
		err = -ENOENT;
	if (err) {
		say_lost(t, err);
		return;
	}
	xattr_of_fd(t->p.fd, KEY_PENDING, pending, sizeof(pending));
	t->pending = number_or_0(pending);
	if (is_done(t))
		t->done = true;
	else if (!strcmp(t->state, "failed"))
		say_failed(t);
	else if (ask_status && !check_held(t))
		check_halted(t);
}

static int find_target(const char *path, const struct location *near, struct target *t)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	int code = location_need_near(path, true, near, &t->p), err;

	if (code || *t->p.below)
		return code;
	err = location_status(&t->p, &d);
	if (err)
		return complain_status(&t->p, err);
	t->after_seq = status_u64(d, "log.last_seq");
	return CAIRN_OK;
}

/* With many paths, one descriptor each and one for their mount. */
static void share_root(struct target *t, const struct target *with)
{
	if (t->p.root == with->p.root || t->p.mount_id != with->p.mount_id)
		return;
	close(t->p.root);
	t->p.root = with->p.root;
}

static void close_all(struct waiting *w)
{
	for (int i = w->n - 1; i >= 0; i--) {
		if (i && w->t[i].p.root == w->t[0].p.root)
			w->t[i].p.root = -1;
		location_close(&w->t[i].p);
	}
	free(w->t);
}

static void allow_descriptors(void)
{
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l))
		return;
	l.rlim_cur = l.rlim_max;
	setrlimit(RLIMIT_NOFILE, &l);
}

/* ---- all of them ------------------------------------------------------------------ */

/* True when none is left to wait for. */
static bool check_all(struct waiting *w)
{
	bool ask = now_s() - w->asked >= STATUS_EVERY_S;
	const char *note = "durable";
	uint64_t left = 0;
	bool all = true;

	for (int i = 0; i < w->n; i++) {
		struct target *t = &w->t[i];

		if (!t->done)
			check(t, ask);
		if (t->done)
			continue;
		all = false;
		left += t->pending;
		note = t->state;
	}
	if (ask)
		w->asked = now_s();
	progress_left(&w->bar, left, note);
	return all;
}

static int verdict(const struct waiting *w)
{
	int code = CAIRN_OK;

	for (int i = 0; i < w->n; i++) {
		const struct target *t = &w->t[i];
		char size[32];

		if (t->failed)
			code = CAIRN_FAILED;
		if (t->done)
			continue;
		complain("%s is not durable yet: %s, %s pending", t->p.arg, t->state,
			 human_bytes(t->pending, size));
		if (code == CAIRN_OK)
			code = CAIRN_TIMEOUT;
	}
	return code;
}

static void poll_all(struct waiting *w)
{
	double nap = POLL_MIN_S;

	while (!check_all(w)) {
		double t = now_s();

		if (w->deadline && t >= w->deadline)
			break;
		sleep_s(w->deadline && w->deadline - t < nap ? w->deadline - t : nap);
		nap = nap * 1.5 < POLL_MAX_S ? nap * 1.5 : POLL_MAX_S;
	}
}

static void wait_key(const struct waiting *w, char *key, size_t cap)
{
	double left = w->deadline - now_s();
	double most = w->bar.quiet ? CALL_MAX_S : w->bar.tty ? BAR_EVERY_S : LINE_EVERY_S;

	if (w->bar.quiet && !w->deadline) {
		snprintf(key, cap, "%s", KEY_WAIT);
		return;
	}
	if (w->deadline && left < most)
		most = left > 0 ? left : 0;
	snprintf(key, cap, "%s.%.0f", KEY_WAIT, ceil(most * 1000));
}

static void show_left(struct waiting *w, const struct target *now)
{
	uint64_t left = 0;

	for (int i = 0; !w->bar.quiet && i < w->n; i++) {
		struct target *t = &w->t[i];
		char pending[32] = "0";

		if (!t->done && t != now &&
		    !xattr_of_fd(t->p.fd, KEY_PENDING, pending, sizeof(pending)))
			t->pending = number_or_0(pending);
		left += t->done ? 0 : t->pending;
	}
	progress_left(&w->bar, left, now->state);
}

/* Until t is done, or the deadline has passed. False: t is to be polled. */
static bool wait_one(struct waiting *w, struct target *t)
{
	watch_at(t->p.arg);
	while (!t->done) {
		bool last = w->deadline && now_s() >= w->deadline;
		char key[64], value[64];
		int err;

		wait_key(w, key, sizeof(key));
		err = xattr_of_fd(t->p.fd, key, value, sizeof(value));
		if (err == -EINTR) /* stopped, and continued */
			continue;
		if (err == -ENODATA || err == -EAGAIN || err == -EOPNOTSUPP)
			return false;
		bool stuck = !err && (!strcmp(value, "halted") || !strcmp(value, "held"));
		if (err)
			say_lost(t, err);
		else if (!strcmp(value, "durable"))
			t->done = true;
		else
			check(t, stuck);
		if (last && !t->done)
			break;
		if (!t->done && (stuck || !strcmp(value, "failed")))
			sleep_s(POLL_MIN_S); /* not any more */
		if (!t->done)
			show_left(w, t);
	}
	return true;
}

/* What is in .cairn has no state, and what was removed meanwhile neither: they are asked for. */
static bool is_in_tree(const struct target *t)
{
	static const char control[] = ".cairn";
	const size_t n = sizeof(control) - 1;
	struct statx x;

	if (!strncmp(t->p.below, control, n) && (!t->p.below[n] || t->p.below[n] == '/'))
		return false;
	return !statx(t->p.fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_NLINK, &x) &&
	       x.stx_nlink;
}

/* If nothing is pending on the whole mount, one call answers for all paths. */
static void ask_mount(struct waiting *w)
{
	const struct location *first = &w->t[0].p;
	char value[64];

	if (w->n < MANY)
		return;
	watch_at(first->arg);
	if (xattr_of_fd(first->root, KEY_WAIT ".0", value, sizeof(value)) ||
	    strcmp(value, "durable"))
		return;
	for (int i = 0; i < w->n; i++)
		w->t[i].done = w->t[i].p.root == first->root && is_in_tree(&w->t[i]);
}

static int wait_all(struct waiting *w)
{
	bool answered = true;

	ask_mount(w);
	for (int i = 0; answered && i < w->n; i++)
		answered = wait_one(w, &w->t[i]);
	if (!answered)
		poll_all(w);
	progress_end(&w->bar);
	return verdict(w);
}

static int find_all(struct waiting *w, char **paths, int n)
{
	int code = CAIRN_OK;

	for (int listed = 0; !code && w->n < n; w->n++) {
		struct target *t = &w->t[w->n];

		watch_at(paths[w->n]);
		if (w->n >= listed)
			listed += list_first(paths + w->n, n - w->n);
		code = find_target(paths[w->n], w->n ? &w->t[0].p : &LOCATION_NONE, t);
		share_root(t, w->t);
	}
	return code;
}

int cmd_wait(int argc, char **argv)
{
	static const struct option opts[] = {
		{"quiet", no_argument, NULL, 'q'},
		{"tier", no_argument, NULL, 't'},
		{0},
	};
	struct waiting w = {.deadline = watch_deadline()};
	bool quiet = false, tier = false;
	int c, code = CAIRN_OK;

	while ((c = getopt_long(argc, argv, "q", opts, NULL)) != -1) {
		if (c == 'q')
			quiet = true;
		else if (c == 't')
			tier = true;
		else
			return complain_option("wait", argv);
	}
	if (optind == argc)
		return complain_usage("wait", "which PATH?");
	w.t = calloc((size_t)(argc - optind), sizeof(*w.t));
	if (!w.t) {
		complain("%m");
		return CAIRN_FAILED;
	}
	allow_descriptors();
	code = find_all(&w, argv + optind, argc - optind);
	progress_start(&w.bar, w.n > 1 ? "all" : argv[optind], quiet);
	if (!code)
		code = wait_all(&w);
	for (int i = 0; tier && !code && i < w.n; i++) {
		watch_at(w.t[i].p.arg);
		code = tier_wait(&w.t[i].p, w.deadline, &w.bar);
	}
	close_all(&w);
	return code;
}

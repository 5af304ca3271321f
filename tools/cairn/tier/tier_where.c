/* SPDX-License-Identifier: MIT
 *
 * Where the checkpoints of a mount with a tier are: what its follower tells, in
 * MOUNT/.cairn/tier.json, which root and the user who mounted it may read.
 */
#include "tier_where.h"
#include "tools/cairn/ckpt/ckpt.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <time.h>

#define POLL_S 0.2
#define INCOMPLETE "incomplete"
/* a look is due every 5 s, but for what is being sent */
#define LOOKS_LATE_S 30.0
#define LISTS_LATE_S 5.0 /* until then its last error may be of another checkpoint */

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct tier_where_one *)a)->path,
		      ((const struct tier_where_one *)b)->path);
}

/* What a fetch or a removal left. */
static bool is_ours(const char *path)
{
	return !strncmp(path, ".cairn-", 7) || strstr(path, "/.cairn-");
}

static int take(struct tier_where *w, const struct json_doc *d)
{
	int list = json_at(d, 0, "checkpoints"), n = json_count(d, list);

	w->v = calloc(n > 0 ? (size_t)n : 1, sizeof(*w->v));
	if (!w->v)
		return -ENOMEM;
	for (int i = 0; i < n; i++) {
		int one = json_item(d, list, i);
		CLEANUP_FREE char *state = json_bytes(d, json_at(d, one, "state"));
		struct tier_where_one *v = &w->v[w->n];

		v->path = json_bytes(d, json_at(d, one, "path"));
		v->waits = state && !strcmp(state, "waiting");
		v->sent = state && !strcmp(state, "sent");
		v->why = json_bytes(d, json_at(d, one, "why"));
		v->incomplete = v->why && !v->waits && v->path && !is_ours(v->path) &&
				!strncmp(v->why, INCOMPLETE, strlen(INCOMPLETE));
		v->since_s = json_u64(d, json_at(d, one, "since_s"));
		if (v->path)
			w->n++;
		else
			free(v->why);
	}
	qsort(w->v, w->n, sizeof(*w->v), by_path);
	return 0;
}

int tier_where_read(const struct location *p, struct tier_where *out)
{
	CLEANUP_FREE char *text = NULL;
	CLEANUP_JSON struct json_doc *d = NULL;
	size_t len = 0;
	int err = p->on_mount
			  ? read_small_file(p->root, ".cairn/tier.json", STATUS_MAX, &text, &len)
			  : -ENOENT;

	*out = (struct tier_where){0};
	if (!err && !len)
		err = -ENOENT;
	if (!err)
		err = json_parse(text, len, &d);
	if (!err)
		err = take(out, d);
	return err;
}

void tier_where_free(struct tier_where *w)
{
	for (size_t i = 0; i < w->n; i++) {
		free(w->v[i].path);
		free(w->v[i].why);
	}
	free(w->v);
	*w = (struct tier_where){0};
}

const struct tier_where_one *tier_where_find(const struct tier_where *w, const char *path)
{
	const struct tier_where_one key = {.path = (char *)path};

	return w->n ? bsearch(&key, w->v, w->n, sizeof(*w->v), by_path) : NULL;
}

/* ---- what only the tier has --------------------------------------------------------- */

/* Without its last component; false: there is none. */
static bool go_up(char *path)
{
	char *slash = strrchr(path, '/');

	if (!strcmp(path, ".") || !strcmp(path, "/"))
		return false;
	if (!slash)
		strcpy(path, ".");
	else
		slash[slash == path] = '\0';
	return true;
}

int tier_where_above(const char *arg, struct location *p, char **below)
{
	CLEANUP_FREE char *path = NULL;
	const char *rest;
	size_t len;
	int err;

	*below = NULL;
	if (asprintf(&path, "%s", *arg ? arg : ".") < 0) /* room for "." */
		return -ENOMEM;
	for (len = strlen(path); len > 1 && path[len - 1] == '/';)
		path[--len] = '\0';
	while ((err = location_find(path, p)) == -ENOENT && go_up(path))
		;
	if (err)
		return err;
	len = strlen(path);
	rest = strncmp(arg, path, len) ? arg : arg + len; /* "." stands for what is before */
	rest += strspn(rest, "/");
	if (asprintf(below, "%s%s%s", p->below, *p->below && *rest ? "/" : "", rest) < 0) {
		*below = NULL;
		return -ENOMEM;
	}
	return 0;
}

const char *tier_where_path(const char *below)
{
	const size_t n = strlen(TIER_SHOWN);

	if (strncmp(below, TIER_SHOWN, n) || (below[n] && below[n] != '/'))
		return below;
	return below + n + (below[n] == '/');
}

/* A directory of the mount, or of its tier. */
static int open_dir(const struct location *p, const char *below)
{
	const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
	CLEANUP_FREE char *path = NULL;
	int fd = openat(p->root, *below ? below : ".", flags);

	if (fd >= 0 || errno != ENOENT)
		return fd < 0 ? call_error() : fd;
	if (asprintf(&path, TIER_SHOWN "/%s", below) < 0)
		return -ENOMEM;
	fd = openat(p->root, path, flags);
	return fd < 0 ? call_error() : fd;
}

int tier_where_latest(const struct location *p, const char *below, char **out, bool *remote)
{
	char found[PATH_MAX];
	const char *at = found, *dir = tier_where_path(below);
	CLEANUP_CLOSE int fd = open_dir(p, dir);
	int err = fd < 0 ? fd : xattr_of_fd(fd, KEY_LATEST, found, sizeof(found));

	*out = NULL;
	if (err)
		return err;
	while (!strncmp(at, "../", 3))
		at += 3;
	*remote = !strncmp(at, TIER_SHOWN "/", sizeof(TIER_SHOWN));
	if (*remote)
		*out = strdup(at + sizeof(TIER_SHOWN));
	else if (asprintf(out, "%s%s%s", dir, *dir ? "/" : "", at) < 0)
		*out = NULL;
	return *out ? 0 : -ENOMEM;
}

/* ---- waiting ------------------------------------------------------------------------ */

struct telling {
	uint64_t from_ms; /* what was true before does not count */
	double begun;
	char said[600]; /* the last reason that was told */
};

struct wanted {
	const char *path; /* from the checkpoint */
	bool found;
};

static int compare(void *ctx, const char *path, const struct stat *st)
{
	struct wanted *w = ctx;

	(void)st;
	w->found |= path_is_at(path, w->path);
	return 0;
}

/* Is p what the checkpoint at path sends, or a part of that? 1, -ENOENT: not, or -errno. */
static int is_of(const struct location *p, const char *path)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	const char *rest = p->below + strlen(path);
	struct wanted w = {.path = rest + (*rest == '/')};
	bool others;
	int err = *rest ? ckpt_open(p->root, path, path, true, &c) : 0;

	if (*rest && !err)
		err = ckpt_each_file(&c, compare, &w, &others);
	return err ? err : !*rest || w.found ? 1 : -ENOENT;
}

/* What keeps it out of the tier until something is done, as far as is known. */
static void take_why(const struct tier_where_one *v, char **why, bool *stuck)
{
	free(*why);
	*why = v->why ? strdup(v->why) : NULL;
	*stuck = *why && (v->waits || v->incomplete);
}

/* 1: all at and below the path, or the checkpoint that it is a part of, is in the tier; 0: not
 * yet, and *why, if that is not complete or could not be sent, says what it is; *stuck: and it is
 * not being written. -ENOENT: there is no checkpoint. */
static int is_there(const struct location *p, char **why, bool *stuck)
{
	struct tier_where w;
	const struct tier_where_one *of = NULL;
	bool any = !*p->below, all = true;
	int err = tier_where_read(p, &w), part = -ENOENT;

	for (size_t i = 0; !err && i < w.n; i++) {
		const struct tier_where_one *v = &w.v[i];

		if (path_is_at(v->path, p->below)) {
			any = true;
			all &= !v->waits;
			if (v->waits && !*stuck)
				take_why(v, why, stuck);
		}
		if (*p->below && path_is_at(p->below, v->path))
			of = v; /* the deepest is the last */
	}
	if (of)
		part = is_of(p, of->path);
	if (part > 0 && !of->sent) {
		all = false;
		take_why(of, why, stuck);
	}
	tier_where_free(&w);
	return err ? err : part > 0 || any ? all : part;
}

static int complain_error(const struct json_doc *d, const char *arg, const char *why)
{
	CLEANUP_FREE char *last = json_bytes(d, json_at(d, 0, "tier.error"));
	const char *error = why ? why : last;

	complain("%s is not in the tier yet%s%s", arg, error && *error ? ": " : "",
		 error && *error ? error : "");
	return CAIRN_TIMEOUT;
}

/* Who reads this asks for a listing of the tier. */
static void ask(const struct location *p)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;

	(void)read_small_file(p->root, ".cairn/tier.json", STATUS_MAX, &text, &len);
}

/* What was there when it was sent may be gone. */
static bool is_listed(const struct json_doc *d, uint64_t from_ms)
{
	int listed = json_at(d, 0, "tier.listed_ms");

	return listed < 0 || json_u64(d, listed) >= from_ms; /* < 0: an earlier version's mount */
}

/* Once each: other files of it may still come, or the tier may be back, and maybe never. */
static void tell(const char *arg, const char *why, struct telling *t, struct progress *bar)
{
	if (!strncmp(t->said, why, sizeof(t->said) - 1))
		return;
	progress_end(bar);
	complain("%s is not in the tier: %s; waiting for that", arg, why);
	snprintf(t->said, sizeof(t->said), "%s", why);
}

/* What it waits for, if that may take for ever. */
static void tell_trouble(const struct location *p, const struct json_doc *d, const char *why,
			 bool stuck, struct telling *t, struct progress *bar)
{
	CLEANUP_FREE char *error = json_bytes(d, json_at(d, 0, "tier.error"));
	bool sends = !json_is_null(d, json_at(d, 0, "tier.sending"));
	bool looked = json_u64(d, json_at(d, 0, "tier.looked_ms")) >= t->from_ms;

	if (stuck)
		tell(p->arg, why, t, bar);
	else if (error && *error && (!looked || !is_listed(d, t->from_ms)) &&
		 now_s() - t->begun > LISTS_LATE_S)
		tell(p->arg, error, t, bar);
	else if (!looked && !sends && now_s() - t->begun > LOOKS_LATE_S)
		tell(p->arg,
		     json_bool(d, json_at(d, 0, "tier.running"))
			     ? "the process that sends to it has not looked at the store since"
			     : "the process that sends to it does not run",
		     t, bar);
}

/* One look; -1: not yet. */
static int wait_once(const struct location *p, double deadline, struct telling *t,
		     struct progress *bar)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	CLEANUP_FREE char *why = NULL;
	bool stuck = false;
	int there = 0, err = location_status(p, &d);

	if (err)
		return complain_status(p, err);
	if (json_at(d, 0, "tier") < 0 || json_is_null(d, json_at(d, 0, "tier"))) {
		complain("%s: this mount has no tier; mount it with -o tier=PLACE", p->arg);
		return CAIRN_USAGE;
	}
	if (json_u64(d, json_at(d, 0, "tier.looked_ms")) >= t->from_ms)
		there = is_there(p, &why, &stuck); /* asks, too */
	if (there == 1 && !is_listed(d, t->from_ms))
		there = 0;
	if (there == 1)
		return CAIRN_OK;
	if (there < 0) {
		complain("%s: %s", p->arg,
			 there == -ENOENT ? "no checkpoint there that could be in the tier"
			 : there == -EACCES
				 ? "only root, and who mounted it, may see what is in the "
				   "tier"
				 : strerror(-there));
		return CAIRN_FAILED;
	}
	if (json_bool(d, json_at(d, 0, "tier.killed"))) {
		complain("%s is not in the tier: all processes that send to it were killed; mount "
			 "again",
			 p->arg);
		return CAIRN_FAILED;
	}
	if (deadline && now_s() >= deadline)
		return complain_error(d, p->arg, why);
	tell_trouble(p, d, why, stuck, t, bar);
	progress_left(bar, json_u64(d, json_at(d, 0, "tier.pending_bytes")), "to the tier");
	return -1;
}

int tier_wait(const struct location *p, double deadline, struct progress *bar)
{
	struct telling t = {.begun = now_s()};
	struct timespec now;
	int code;

	clock_gettime(CLOCK_REALTIME, &now); /* the follower's clock is the same */
	t.from_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	ask(p);
	while ((code = wait_once(p, deadline, &t, bar)) < 0)
		sleep_s(POLL_S);
	progress_end(bar);
	return code;
}

/* SPDX-License-Identifier: MIT
 *
 * cairn latest: the newest checkpoint below a directory that is safe: complete, and durable.
 */
#include "commands.h"
#include "tools/cairn/ckpt/ckpt.h"
#include "tools/cairn/tier/tier_where.h"
#include "previous.h"

#include <fcntl.h>
#include <getopt.h>
#include <string.h>

#define TIER_AT TIER_SHOWN "/"

struct latest {
	struct ckpt_search s;
	const char *store; /* the unmounted store */
	int root; /* of it; -1: it is none */
	const char *below; /* top's path in the mount */
	struct tier_where *tier; /* only what is there; NULL: all */
};

/* What the unmounted store keeps of the i-th, which is being overwritten in place. 1: a complete
 * checkpoint; 0: nothing. */
static int judge_previous(const struct latest *l, size_t i, char name[PREVIOUS_KEY])
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	CLEANUP_CLOSE int dir = l->root < 0 ? -1 : openat(l->s.fd, l->s.v[i].path, flags);
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	CLEANUP_PREVIOUS struct previous p = PREVIOUS_NONE;
	struct ckpt_verdict v;
	int err = dir < 0 ? -ENOENT : previous_find(l->root, dir, &p);

	if (!err && !p.lost)
		err = ckpt_open(p.all, p.name, p.name, false, &c);
	if (!err && !p.lost)
		err = ckpt_read(&c, false, NULL, NULL);
	if (err || p.lost)
		return err == -ENOMEM ? err : 0;
	ckpt_verdict(&c, &v);
	snprintf(name, PREVIOUS_KEY, "%s", p.name);
	return v.state == CKPT_COMPLETE && !ckpt_search_is_foreign(&l->s, &c);
}

static bool is_in_tier(const struct latest *l, size_t i)
{
	const struct tier_where_one *one;
	CLEANUP_FREE char *path = NULL;

	if (asprintf(&path, "%s%s%s", l->below, *l->below && *l->s.v[i].path ? "/" : "",
		     l->s.v[i].path) < 0)
		return false;
	one = tier_where_find(l->tier, path);
	if (l->s.verbose && !(one && one->sent))
		complain("%s/%s: not in the tier", l->s.top, l->s.v[i].path);
	return one && one->sent;
}

static int is_safe(void *ctx, size_t i)
{
	char name[PREVIOUS_KEY];
	struct latest *l = ctx;

	if (l->tier && !is_in_tier(l, i))
		return 0;
	int safe = ckpt_search_is_safe(&l->s, i);

	if (l->tier)
		return safe;

	return safe ? safe : judge_previous(l, i, name);
}

/* The daemon searches with less work, caches the result, and knows what is in the tier. *below:
 * from s->top, which becomes the mount's where it is not below that. -EOPNOTSUPP: there is no
 * daemon, or -v needs more than it returns. -EIO: it has found none, and what is in the tier is not
 * known. */
static int ask_daemon(struct ckpt_search *s, const struct location *p, char **below)
{
	CLEANUP_FREE char *path = NULL;
	bool remote = false, in_top;
	int err = -EOPNOTSUPP;

	if (s->on_mount && !s->verbose)
		err = tier_where_latest(p, p->below, &path, &remote);
	if (err)
		return err == -ENODATA		       ? -ENOENT
		       : err == -EIO || err == -ENOMEM ? err
						       : -EOPNOTSUPP;
	in_top = !remote && path_is_at(path, p->below);
	if (!in_top)
		s->top = p->top;
	if (asprintf(below, "%s%s", remote ? TIER_AT : "",
		     path + (in_top && *p->below ? strlen(p->below) + 1 : 0)) < 0)
		*below = NULL;
	return *below ? 0 : -ENOMEM;
}

static int look_myself(struct latest *l, char **below)
{
	struct ckpt_search *s = &l->s;
	char name[PREVIOUS_KEY];
	int err = ckpt_search(s);
	ssize_t i = err ? err : ckpt_newest_safe(s->v, s->n, is_safe, l);

	if (i < 0)
		return (int)i;
	s->verbose = false; /* it is told already */
	if (ckpt_search_is_safe(s, (size_t)i) > 0) {
		*below = strdup(s->v[i].path);
	} else if (judge_previous(l, (size_t)i, name) > 0) {
		complain("%s/%s is not complete, it was being overwritten; what it had before is "
			 "kept, and `cairn restore-previous` puts it back",
			 s->top, s->v[i].path);
		s->top = l->store;
		if (asprintf(below, ".cairn/" PREVIOUS_DIR "/%s", name) < 0)
			*below = NULL;
	}
	return *below ? 0 : -ENOMEM;
}

/* For programs: its bytes, whatever they are. */
static void print_path(const char *path)
{
	if (isatty(STDOUT_FILENO))
		print_escaped(stdout, path);
	else
		fputs(path, stdout);
	putchar('\n');
}

static int tell(const struct latest *l, const char *path, int err)
{
	if (path)
		print_path(path);
	else if (err != -ENOENT)
		complain_location(l->s.top, err ? err : -ENOMEM);
	else
		complain("%s: no checkpoint that is complete%s%s", l->s.top,
			 l->s.on_mount ? " and durable" : "", l->tier ? " and in the tier" : "");
	return !path || l->s.incomplete ? CAIRN_FAILED : CAIRN_OK;
}

/* DIR is not in the store: only the tier may have it. */
static int latest_in_tier(const char *arg)
{
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	CLEANUP_FREE char *below = NULL, *path = NULL;
	bool remote = false;
	int err = tier_where_above(arg, &p, &below);

	if (!err)
		err = p.on_mount ? tier_where_latest(&p, below, &path, &remote) : -ENODATA;
	if (err || !remote) {
		complain_location(arg, err == -EIO ? err : -ENOENT);
		return err == -EIO ? CAIRN_FAILED : location_code(-ENOENT);
	}
	printf("%s/" TIER_AT, p.top);
	print_path(path);
	return CAIRN_OK;
}

int cmd_latest(int argc, char **argv)
{
	static const struct option longs[] = {
		{"tier", no_argument, NULL, 't'}, {"verbose", no_argument, NULL, 'v'}, {0}};
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	CLEANUP_FREE char *below = NULL, *path = NULL;
	CLEANUP_CLOSE int fd = -1;
	struct latest l = {.root = -1};
	struct tier_where where = {0};
	struct stat st;
	int c, err, asked, code;

	while ((c = getopt_long(argc, argv, "v", longs, NULL)) != -1) {
		if (c != 'v' && c != 't')
			return complain_option("latest", argv);
		l.s.verbose |= c == 'v';
		l.tier = c == 't' ? &where : l.tier;
	}
	if (argc - optind != 1)
		return complain_usage("latest", "one directory");
	l.s.top = argv[optind];
	fd = open(l.s.top, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT && !l.tier && !l.s.verbose)
		return latest_in_tier(l.s.top);
	err = fd < 0 ? -errno : location_find(l.s.top, &p);
	if (fd < 0 || (err && err != -ENODEV && err != -EXDEV)) {
		complain_location(l.s.top, err);
		return location_code(err);
	}
	l.s.on_mount = p.on_mount;
	l.store = p.top;
	l.below = p.below;
	l.root = p.on_mount ? -1 : p.root;
	l.s.fd = fd;
	l.s.owner = fstatat(fd, "", &st, AT_EMPTY_PATH) ? 0 : st.st_uid;
	err = l.tier ? tier_where_read(&p, &where) : 0;
	if (err) {
		complain("%s: what is in the tier is not known: %s", l.s.top, strerror(-err));
		return CAIRN_FAILED;
	}
	err = asked = l.tier ? -EOPNOTSUPP : ask_daemon(&l.s, &p, &below);
	if (err == -EOPNOTSUPP || err == -EIO)
		err = look_myself(&l, &below);
	if (err == -ENOENT && asked == -EIO)
		err = asked;
	path = err ? NULL : ckpt_search_path(&l.s, below);
	code = tell(&l, path, err);
	ckpt_search_free(&l.s);
	tier_where_free(&where);
	return code;
}

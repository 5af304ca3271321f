/* SPDX-License-Identifier: MIT
 *
 * cairn latest: the newest checkpoint below a directory that is safe: complete, and durable.
 */
#include "ckpt.h"

#include <fcntl.h>
#include <getopt.h>
#include <string.h>
#include <sys/xattr.h>

struct search {
	const char *top;
	int fd;
	uid_t owner; /* of top */
	bool on_mount, verbose, incomplete;
	struct ckpt_found *v;
	size_t n, cap;
};

/* Whose checkpoints count. Any other user who may write below top could decide what others resume
 * from. */
static bool trusts(const struct search *s, const struct stat *st)
{
	return st->st_uid == s->owner || st->st_uid == 0 || st->st_uid == geteuid();
}

static bool trusts_at(const struct search *s, int dirfd, const char *name)
{
	struct stat st;

	return !fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) && trusts(s, &st);
}

/* Checks each directory on the way to it, and itself. */
static bool trusts_nested(const struct search *s, int dirfd, const char *name)
{
	CLEANUP_FREE char *part = strdup(name);
	bool ours = part;

	for (char *p = part; ours && p && (p = strchr(p, '/')); *p++ = '/') {
		*p = '\0';
		ours = trusts_at(s, dirfd, part);
	}
	return ours && trusts_at(s, dirfd, name);
}

static bool is_foreign(const struct search *s, const struct ckpt *c)
{
	struct stat st;
	bool ours = c->alone || (!fstat(c->dir, &st) && trusts(s, &st));

	for (size_t i = 0; ours && i < c->names.n; i++)
		ours = trusts_at(s, c->dir, c->name[i].name);
	for (size_t i = 0; ours && c->set && i < c->set->n_files; i++)
		ours = !strchr(c->set->file[i].name, '/') ||
		       trusts_nested(s, c->dir, c->set->file[i].name);
	return !ours;
}

static int add(struct search *s, const struct walk_item *it, const struct ckpt_kind *kind)
{
	struct ckpt_found *v = s->v;

	if (s->n == s->cap) {
		s->cap = s->cap ? s->cap * 2 : 64;
		v = reallocarray(s->v, s->cap, sizeof(*v));
		if (!v)
			return -ENOMEM;
		s->v = v;
	}
	v[s->n] = (struct ckpt_found){
		.path = strdup(it->path), .kind = *kind, .time = it->st.st_mtim};
	return v[s->n].path ? (s->n++, 0) : -ENOMEM;
}

/* 1: it is a checkpoint, with all its contents; 0: look inside; or -errno. */
static int consider(struct search *s, const struct walk_item *it)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	int err = ckpt_open(it->dirfd, it->name, it->path, false, &c);

	if (err || c.kind.format == CKPT_NONE)
		return err == -ENOMEM ? err : 0;
	err = add(s, it, &c.kind);
	/* loose files of tensors may be next to whole checkpoints: look further down */
	return err ? err : !ckpt_is_loose(&c.kind);
}

static int search(struct search *s)
{
	CLEANUP_WALK struct walk *w = NULL;
	struct walk_item it;
	int err = walk_open(s->fd, -1, ".cairn", &w);

	while (err >= 0 && walk_next(w, &it) != WALK_END) {
		if (it.what == WALK_ERROR && it.err != -ENOENT) {
			complain("%s/%s: %s", s->top, it.path, strerror(-it.err));
			s->incomplete = true;
		}
		if (it.what != WALK_ENTRY || !(S_ISDIR(it.st.st_mode) || S_ISREG(it.st.st_mode)))
			continue;
		if (!trusts(s, &it.st)) {
			if (s->verbose && S_ISDIR(it.st.st_mode))
				complain("%s/%s: skipped: its owner is not %s's, root or you",
					 s->top, it.path, s->top);
			if (S_ISDIR(it.st.st_mode))
				walk_leave(w);
			continue;
		}
		/* a .ckpt is a checkpoint itself; other files belong to their directory */
		if (S_ISREG(it.st.st_mode)) {
			size_t n = strlen(it.name);

			if (n < 5 || strcmp(it.name + n - 5, ".ckpt"))
				continue;
		}
		err = consider(s, &it);
		if (err > 0)
			walk_leave(w); /* its contents belong to it */
	}
	if (err >= 0)
		s->n = ckpt_found_sort(s->v, s->n);
	return err < 0 ? err : 0;
}

static char *path_of(const struct search *s, const char *below)
{
	char *path;

	return asprintf(&path, "%s/%s", s->top, below) < 0 ? NULL : path;
}

static int look_at(struct search *s, size_t i, struct ckpt *c, struct ckpt_verdict *v)
{
	CLEANUP_FREE char *path = path_of(s, s->v[i].path);
	int err = path ? ckpt_open(s->fd, s->v[i].path, path, s->on_mount, c) : -ENOMEM;

	if (!err)
		err = ckpt_read(c, false, NULL, NULL);
	if (!err)
		ckpt_verdict(c, v);
	return err;
}

static int is_safe(void *ctx, size_t i)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY, old = CKPT_EMPTY;
	struct search *s = ctx;
	struct ckpt_verdict v, w;
	ssize_t before = ckpt_found_before(s->v, s->n, i);
	int err = look_at(s, i, &c, &v);

	if (err)
		return err == -ENOMEM ? err : 0; /* gone meanwhile */
	if (v.state == CKPT_COMPLETE && before >= 0 && ckpt_has_rank_set(c.kind.format) &&
	    !look_at(s, (size_t)before, &old, &w))
		ckpt_expect_ranks(&c.kind, w.ranks, c.quiet_s, &v);
	if (is_foreign(s, &c)) {
		if (s->verbose)
			complain("%s: skipped: the owner of a part of it is not %s's, root or you",
				 c.path, s->top);
		return 0;
	}
	if (ckpt_is_safe(&c, &v))
		return 1;
	if (s->verbose)
		complain("%s: %s%s%s", c.path, ckpt_state_name(v.state), *v.why ? ": " : "",
			 v.state == CKPT_COMPLETE ? ", not durable" : v.why);
	return 0;
}

/* The daemon searches with less work, and caches the result. -EOPNOTSUPP: there is no daemon,
 * or -v needs more than it returns. */
static int ask_daemon(const struct search *s, char **below)
{
	char path[4096];
	ssize_t n = -1;

	if (s->on_mount && !s->verbose)
		n = getxattr(s->top, KEY_LATEST, path, sizeof(path) - 1);
	if (n < 0)
		return s->on_mount && !s->verbose && errno == ENODATA ? -ENOENT : -EOPNOTSUPP;
	path[n] = '\0';
	*below = strdup(path);
	return *below ? 0 : -ENOMEM;
}

static int look_myself(struct search *s, char **below)
{
	int err = search(s);
	ssize_t i = err ? err : ckpt_newest_safe(s->v, s->n, is_safe, s);

	if (i < 0)
		return (int)i;
	*below = strdup(s->v[i].path);
	return *below ? 0 : -ENOMEM;
}

int cmd_latest(int argc, char **argv)
{
	static const struct option longs[] = {{"verbose", no_argument, NULL, 'v'}, {0}};
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	CLEANUP_FREE char *below = NULL, *path = NULL;
	CLEANUP_CLOSE int fd = -1;
	struct search s = {0};
	struct stat st;
	int c, err;

	while ((c = getopt_long(argc, argv, "v", longs, NULL)) != -1) {
		if (c != 'v')
			return complain_option("latest", argv);
		s.verbose = true;
	}
	if (argc - optind != 1)
		return complain_usage("latest", "one directory");
	s.top = argv[optind];
	fd = open(s.top, O_PATH | O_DIRECTORY | O_CLOEXEC);
	err = fd < 0 ? -errno : location_find(s.top, &p);
	if (fd < 0 || (err && err != -ENODEV && err != -EXDEV)) {
		complain_location(s.top, err);
		return location_code(err);
	}
	s.on_mount = p.on_mount;
	s.fd = fd;
	s.owner = fstatat(fd, "", &st, AT_EMPTY_PATH) ? 0 : st.st_uid;
	err = ask_daemon(&s, &below);
	if (err == -EOPNOTSUPP)
		err = look_myself(&s, &below);
	path = err ? NULL : path_of(&s, below);
	if (path)
		print_name(stdout, path), putchar('\n');
	else if (err != -ENOENT)
		complain_location(s.top, err ? err : -ENOMEM);
	else
		complain("%s: no checkpoint that is complete%s", s.top,
			 s.on_mount ? " and durable" : "");
	for (size_t i = 0; i < s.n; i++)
		free(s.v[i].path);
	free(s.v);
	return !path || s.incomplete ? CAIRN_FAILED : CAIRN_OK;
}

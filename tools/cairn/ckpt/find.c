/* SPDX-License-Identifier: MIT
 *
 * The checkpoints below a directory, and which of them are safe: for `cairn latest` and
 * `cairn tier`.
 */
#include "ckpt.h"

#include <fcntl.h>
#include <string.h>

#include "io/clock.h"

/* Whose checkpoints count. Any other user who may write below top could decide what others resume
 * from. */
static bool trusts(const struct ckpt_search *s, const struct stat *st)
{
	return s->everyone || st->st_uid == s->owner || st->st_uid == 0 || st->st_uid == geteuid();
}

static bool trusts_at(const struct ckpt_search *s, int dirfd, const char *name)
{
	struct stat st;

	return !fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) && trusts(s, &st);
}

/* Checks each directory on the way to it, and itself. */
static bool trusts_nested(const struct ckpt_search *s, int dirfd, const char *name)
{
	CLEANUP_FREE char *part = strdup(name);
	bool ours = part;

	for (char *p = part; ours && p && (p = strchr(p, '/')); *p++ = '/') {
		*p = '\0';
		ours = trusts_at(s, dirfd, part);
	}
	return ours && trusts_at(s, dirfd, name);
}

bool ckpt_search_is_foreign(const struct ckpt_search *s, const struct ckpt *c)
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

/* Every checkpoint that is made below a loose one changes the time of its directory. */
static struct timespec loose_time(const struct ckpt *c)
{
	struct timespec newest = {0};

	for (size_t i = 0; i < c->names.n; i++)
		if (ckpt_is_own(c, i))
			time_to_later(&newest, c->name[i].mtime);
	return newest;
}

static int add(struct ckpt_search *s, const struct walk_item *it, const struct ckpt *c)
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
		.path = strdup(it->path), .kind = c->kind, .time = it->st.st_mtim};
	if (!c->alone && ckpt_is_loose(&c->kind))
		v[s->n].time = loose_time(c);
	return v[s->n].path ? (s->n++, 0) : -ENOMEM;
}

/* 1: it is a checkpoint, with all its contents; 0: look inside; or -errno. */
static int consider(struct ckpt_search *s, const struct walk_item *it)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	int err = ckpt_open(it->dirfd, it->name, it->path, false, &c);

	if (err || c.kind.format == CKPT_NONE)
		return err == -ENOMEM ? err : 0;
	err = add(s, it, &c);
	return err ? err : !ckpt_is_loose(&c.kind);
}

int ckpt_search(struct ckpt_search *s)
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
		if (S_ISREG(it.st.st_mode) && !ckpt_is_one_file(it.name))
			continue;
		err = consider(s, &it);
		if (err > 0)
			walk_leave(w); /* its contents belong to it */
	}
	if (err >= 0)
		s->n = ckpt_found_sort(s->v, s->n);
	return err < 0 ? err : 0;
}

char *ckpt_search_path(const struct ckpt_search *s, const char *below)
{
	char *path;

	return asprintf(&path, "%s/%s", s->top, below) < 0 ? NULL : path;
}

static int look_at(const struct ckpt_search *s, size_t i, struct ckpt *c, struct ckpt_verdict *v)
{
	CLEANUP_FREE char *path = ckpt_search_path(s, s->v[i].path);
	int err = path ? ckpt_open(s->fd, s->v[i].path, path, s->on_mount, c) : -ENOMEM;

	if (!err)
		err = ckpt_read(c, false, NULL, NULL);
	if (!err)
		ckpt_verdict(c, v);
	return err;
}

int ckpt_search_judge(const struct ckpt_search *s, size_t i, struct ckpt *c, struct ckpt_verdict *v)
{
	CLEANUP_CKPT struct ckpt old = CKPT_EMPTY;
	ssize_t before = ckpt_found_before(s->v, s->n, i);
	struct ckpt_verdict w;
	int err = look_at(s, i, c, v);

	if (!err && v->state == CKPT_COMPLETE && before >= 0 && ckpt_has_rank_set(c->kind.format) &&
	    !look_at(s, (size_t)before, &old, &w))
		ckpt_expect_ranks(&c->kind, w.ranks, c->quiet_s, v);
	return err;
}

/* What others can be in: a subdirectory, a .ckpt. */
static bool has_room(const struct ckpt *c)
{
	bool any = false;

	for (size_t i = 0; !any && i < c->names.n; i++)
		any = c->name[i].dir || ckpt_is_one_file(c->names.v[i]);
	return any;
}

static int search_inside(const struct ckpt *c, struct ckpt_search *s)
{
	*s = (struct ckpt_search){
		.top = c->path, .fd = c->dir, .everyone = true, .on_mount = c->on_mount};
	return has_room(c) ? ckpt_search(s) : 0;
}

void ckpt_judge_inside(const struct ckpt *c, struct ckpt_verdict *v)
{
	struct ckpt_search s;
	int err = search_inside(c, &s);

	for (size_t i = 0; !err && v->state == CKPT_COMPLETE && i < s.n; i++) {
		CLEANUP_CKPT struct ckpt in = CKPT_EMPTY;
		struct ckpt_verdict w;

		if (ckpt_is_source_of(&s.v[i].kind, &c->kind))
			continue;
		err = ckpt_search_judge(&s, i, &in, &w);
		if (err || w.state == CKPT_COMPLETE)
			continue;
		v->state = w.state;
		snprintf(v->why, sizeof(v->why), "%.80s: %.110s", s.v[i].path, w.why);
	}
	if ((err || s.incomplete) && v->state == CKPT_COMPLETE) {
		v->state = CKPT_INCOMPLETE;
		snprintf(v->why, sizeof(v->why), "what is below it: %s",
			 err ? strerror(-err) : "not all of it can be read");
	}
	ckpt_search_free(&s);
}

/* Those that the commit file lists, but for what is never beside by its name. */
static int add_listed(const struct ckpt *c, struct names *out)
{
	static const struct names none;

	for (size_t i = 0; c->set && i < c->set->n_files; i++) {
		const char *name = c->set->file[i].name;

		if (!ckpt_is_beside(c->kind.format, &none, name))
			continue;
		out->v[out->n] = strdup(name);
		if (!out->v[out->n++])
			return -ENOMEM;
	}
	return 0;
}

int ckpt_inside(const struct ckpt *c, struct names *out)
{
	struct ckpt_search s;
	int err;

	*out = (struct names){0};
	if (c->alone || !ckpt_may_have_beside(c->kind.format) || ckpt_is_loose(&c->kind))
		return 0;
	err = search_inside(c, &s);
	size_t most = s.n + (c->set ? c->set->n_files : 0);
	if (!err && most && !(out->v = calloc(most, sizeof(*out->v))))
		err = -ENOMEM;
	for (size_t i = 0; !err && i < s.n; i++) {
		out->v[out->n++] = s.v[i].path;
		s.v[i].path = NULL;
	}
	ckpt_search_free(&s);
	return err ? err : add_listed(c, out);
}

void ckpt_look_inside(struct ckpt *c)
{
	struct ckpt_search s;

	if (c->alone || !ckpt_is_loose(&c->kind) || c->kind.model)
		return;
	if (!search_inside(c, &s) && s.n)
		c->kind = (struct ckpt_kind){.format = CKPT_NONE};
	ckpt_search_free(&s);
}

int ckpt_search_is_safe(void *ctx, size_t i)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	struct ckpt_search *s = ctx;
	char text[CKPT_UNSAFE_TEXT];
	struct ckpt_verdict v;
	int err = ckpt_search_judge(s, i, &c, &v);

	if (err)
		return err == -ENOMEM ? err : 0; /* gone meanwhile */
	if (ckpt_search_is_foreign(s, &c)) {
		if (s->verbose)
			complain("%s: skipped: the owner of a part of it is not %s's, root or you",
				 c.path, s->top);
		return 0;
	}
	if (ckpt_is_safe(&c, &v))
		return 1;
	ckpt_say_unsafe(&v, text);
	if (s->verbose)
		complain("%s: %s", c.path, text);
	return 0;
}

void ckpt_search_free(struct ckpt_search *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->v[i].path);
	free(s->v);
	s->v = NULL;
	s->n = 0;
}

/* SPDX-License-Identifier: MIT
 * Changes that the store refused permanently: the name is taken, the filesystem cannot store such a
 * name, the directory is gone. Waiting would not help, so the publisher skips them; but they were
 * accepted, and a caller that waits for them must get an error (P7). Each is kept here until its
 * name is published after all or removed, or is acknowledged (staging_retry), and is logged, so
 * that the next worker knows of it. */
#include "staging/log/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REFUSALS_MAX 256u
#define DEPTH_MAX 64u

struct refusal {
	struct refusal *next;
	uint64_t node, seq, dir;
	int err;
	bool everywhere; /* its parent directories are unknown */
	bool gone; /* so was its directory: nothing that commits it can be below an unknown one */
	bool kept; /* a version, and lost+found has it */
	unsigned n_up;
	uint64_t up[DEPTH_MAX]; /* its parent directories, of both names of a rename */
	char path[256]; /* for messages */
	char name[];
};

static struct refusal *refusal_of(struct staging *s, uint64_t node)
{
	struct refusal *f = s->refusals.list;
	while (f && f->node != node)
		f = f->next;
	return f;
}

/* dir and its parents. A directory that was refused itself is unknown to dirs.c. */
static void add_up(struct staging *s, struct refusal *f, uint64_t dir)
{
	for (uint64_t id = dir; id && id != STAGING_ROOT_DIR && !f->everywhere;) {
		const struct refusal *made = refusal_of(s, id);
		uint64_t up = made ? made->dir : dirs_parent(s, id);
		f->everywhere = f->n_up == DEPTH_MAX || (!up && !f->gone);
		if (!f->everywhere)
			f->up[f->n_up++] = id;
		id = up;
	}
}

static bool is_up(const struct refusal *f, uint64_t dir)
{
	bool found = dir && (f->everywhere || dir == STAGING_ROOT_DIR);
	for (unsigned i = 0; dir && !found && i < f->n_up; i++)
		found = f->up[i] == dir;
	return found;
}

/* Is dir what f refused (a rename: the store has it by its old name), or below it? */
static bool is_in(struct staging *s, const struct refusal *f, uint64_t dir)
{
	for (unsigned i = 0; dir && dir != STAGING_ROOT_DIR && i < DEPTH_MAX; i++) {
		if (dir == f->node)
			return true;
		dir = dirs_parent(s, dir);
	}
	return false;
}

/* r is a REC_REFUSED: node, dir/name where it should be, dir2 where it was, node2 its seq. s->lock
 * held. */
static void add(struct staging *s, const struct rec *r)
{
	const char *name = r->name ? r->name : "";
	struct refusal *f =
		s->refusals.n < REFUSALS_MAX ? calloc(1, sizeof(*f) + strlen(name) + 1) : NULL;

	s->refusals.n++;
	if (!f) { /* too many: the last one kept represents all further ones */
		if (s->refusals.list)
			s->refusals.list->everywhere = true;
		return;
	}
	f->node = r->node;
	f->seq = r->node2;
	f->dir = r->dir;
	f->err = -(int)r->mask;
	f->gone = r->flags & REC_ABSENT;
	f->kept = r->flags & REC_KEPT;
	strcpy(f->name, name);
	add_up(s, f, r->dir);
	if (r->dir2 && r->dir2 != r->dir)
		add_up(s, f, r->dir2);
	dirs_root_relative(s, r->dir, name, f->path, sizeof(f->path));
	f->next = s->refusals.list;
	s->refusals.list = f;
}

static bool has_two_names(const struct rec *r)
{
	return r->type == REC_RENAME || r->type == REC_LINK;
}

/* The removal of a directory into which others put names meanwhile, or in which a change of ours
 * was refused (that one is kept): it stays, nothing is lost, and no caller waits for an impossible
 * removal. */
bool refuse_is_theirs(const struct rec *r, int err)
{
	return r->type == REC_RMDIR && (err == -ENOTEMPTY || err == -EEXIST);
}

/* A skipped change is missing in the store. (Attributes that a store does not accept are reported
 * as a notice, as those of a version are: meta.c.) */
static bool counts(struct staging *s, const struct rec *r, int err)
{
	struct stat st;
	int fd;

	switch (r->type) {
	case REC_ATTR:
	case REC_XATTR:
	case REC_XATTR_DEL: return false;
	case REC_UNLINK:
	case REC_RMDIR: return err != -ENOENT; /* gone already */
	case REC_MKDIR:
		if (err != -EEXIST || staging_dir_get(s, r->dir, &fd))
			return true;
		err = io_stat(s->o.store, fd, r->name, &st);
		staging_dir_put(s, r->dir);
		return err || !S_ISDIR(st.st_mode); /* another host created it */
	default: return true;
	}
}

/* s->lock held */
static void drop(struct staging *s, struct refusal **at)
{
	struct refusal *f = *at;
	*at = f->next;
	free(f);
	s->refusals.n = s->refusals.list ? s->refusals.n - 1 : 0;
}

static void drop_all(struct staging *s)
{
	while (s->refusals.list)
		drop(s, &s->refusals.list);
}

/* r was applied: does it settle f? */
static bool settles(const struct rec *r, const struct refusal *f)
{
	bool two = has_two_names(r), removes = r->type == REC_UNLINK || r->type == REC_RMDIR;
	if (r->type == REC_ATTR || r->type == REC_XATTR || r->type == REC_XATTR_DEL ||
	    (r->flags & REC_ABSENT && !removes))
		return false;
	if ((r->type == REC_SEAL && r->node == f->node) ||
	    (r->type == REC_RMDIR && r->node2 == f->dir))
		return true;
	return f->dir == (two ? r->dir2 : r->dir) && !strcmp(f->name, two ? r->name2 : r->name);
}

void refuse_settle(struct staging *s, const struct rec *r)
{
	LOCK_SCOPE(&s->lock);
	for (struct refusal **at = &s->refusals.list; *at;) {
		struct rec done = {.type = REC_REFUSED, .node2 = (*at)->seq};
		if (!settles(r, *at)) {
			at = &(*at)->next;
			continue;
		}
		log_append(s, &done);
		drop(s, at);
	}
}

/* The store has no such directory, and not because it refused that. */
static bool is_gone(struct staging *s, uint64_t dir)
{
	int fd;
	dirs_look_again(s, dir);
	int err = staging_dir_get(s, dir, &fd);
	if (!err)
		staging_dir_put(s, dir);
	LOCK_SCOPE(&s->lock);
	return err == -ENOENT && !refusal_of(s, dir);
}

void refuse(struct staging *s, const struct rec *r, int err, bool kept)
{
	struct rec f = {.type = REC_REFUSED,
			.flags = kept ? REC_KEPT : 0,
			.node = r->node,
			.node2 = r->seq,
			.mask = (uint64_t)-err,
			.dir = r->dir,
			.name = r->name};
	if (refuse_is_theirs(r, err))
		return;
	if (!counts(s, r, err)) {
		refuse_settle(s, r);
		return;
	}
	if (has_two_names(r)) {
		f.dir = r->dir2;
		f.name = r->name2;
		f.dir2 = r->dir;
	}
	if ((err == -ENOENT || err == -ESTALE) && is_gone(s, f.dir) &&
	    (!f.dir2 || is_gone(s, f.dir2)))
		f.flags |= REC_ABSENT;
	LOCK_SCOPE(&s->lock);
	s->st.errors++;
	add(s, &f);
	log_append(s, &f);
}

void refuse_seen(struct staging *s)
{
	struct rec all = {.type = REC_REFUSED};
	if (s->refusals.n)
		log_append(s, &all);
	drop_all(s);
}

void refuse_replayed(struct staging *s, const struct rec *r)
{
	LOCK_SCOPE(&s->lock);
	if (r->mask) {
		add(s, r);
		return;
	}
	for (struct refusal **at = &s->refusals.list; *at;)
		if (!r->node2 || (*at)->seq == r->node2)
			drop(s, at);
		else
			at = &(*at)->next;
}

/* The oldest first, so that a directory is known before its contents. s->lock held. */
static int emit(struct staging *s, const struct refusal *f)
{
	struct rec r = {.type = REC_REFUSED,
			.node = f->node,
			.node2 = f->seq,
			.mask = (uint64_t)-f->err,
			.flags = (f->gone ? REC_ABSENT : 0) | (f->kept ? REC_KEPT : 0),
			.dir = f->dir,
			.name = f->name};
	return log_append(s, &r);
}

int refuse_emit(struct staging *s)
{
	struct refusal *all[REFUSALS_MAX];
	unsigned n = 0;
	int err = 0;
	LOCK_SCOPE(&s->lock);
	for (struct refusal *f = s->refusals.list; f && n < REFUSALS_MAX; f = f->next)
		all[n++] = f;
	while (!err && n)
		err = emit(s, all[--n]);
	return err;
}

void refuse_stats(struct staging *s, struct staging_stats *out)
{
	out->refused.count = s->refusals.n;
	out->refused.error = s->refusals.list ? s->refusals.list->err : 0;
	out->refused.kept = 0;
	for (const struct refusal *f = s->refusals.list; f; f = f->next)
		out->refused.kept += f->kept;
	snprintf(out->refused.path, sizeof(out->refused.path), "%s",
		 s->refusals.list ? s->refusals.list->path : "");
}

void refuse_close(struct staging *s)
{
	drop_all(s);
}

int staging_refused(struct staging *s, uint64_t node, uint64_t dir, uint64_t seq)
{
	int err = 0;
	LOCK_SCOPE(&s->lock);
	for (struct refusal *f = s->refusals.list; f; f = f->next)
		if (f->seq <= seq && (f->node == node || is_up(f, dir) || is_in(s, f, dir)))
			err = f->err; /* finally, of the first */
	return err;
}

int staging_refused_above(struct staging *s, uint64_t dir)
{
	int err = 0;
	LOCK_SCOPE(&s->lock);
	for (struct refusal *f = s->refusals.list; f; f = f->next)
		if (is_in(s, f, dir))
			err = f->err;
	return err;
}

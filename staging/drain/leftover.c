/* SPDX-License-Identifier: MIT
 * What a kill of all processes left in staging is published by the next start that finds it. If
 * another staging area has served the store meanwhile, another host's or this one's, the job has
 * gone on: what was published from there is not replaced, removed or moved by what is older. What
 * p, a change that was left over, finds in the store by its name:
 *
 *   has this log's number          it is our own, perhaps of a moment before the kill    p goes on
 *   the frontend had seen it       it was there when p was accepted (REC_NODE)           p goes on
 *   has another log's number       it came since                                         p ends
 *   has none                       as its times say: another program's, a symlink, a
 *                                  store without xattrs, a host of an earlier version
 *
 * The number is in KEY_INO. So no clock is asked, but for the last. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "io/clock.h"

/* ---- what the frontend had seen ---- */

static uint64_t hash_of(const char *name)
{
	uint64_t h = 14695981039346656037u; /* FNV-1a */

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 1099511628211u;
	return h;
}

int leftover_note(struct staging *s, const struct rec *r)
{
	struct leftover *l = &s->drain.leftover;

	if (r->type != REC_NODE || !r->node2)
		return 0;
	if (l->n_seen == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 256;
		struct seen *more = realloc(l->seen, cap * sizeof(*more));
		if (!more)
			return -ENOMEM;
		l->seen = more;
		l->cap = cap;
	}
	l->seen[l->n_seen++] = (struct seen){.ino = r->node2,
					     .birth = r->dir2,
					     .size = r->size,
					     .mtime = r->mtime,
					     .node = r->node,
					     .dir = r->dir,
					     .name = r->dir ? hash_of(r->name) : 0};
	return 0;
}

static int by_ino(const void *a, const void *b)
{
	const struct seen *x = a, *y = b;

	return x->ino < y->ino ? -1 : x->ino > y->ino;
}

static size_t first_of(const struct leftover *l, uint64_t ino)
{
	size_t from = 0, end = l->n_seen;

	while (from < end) {
		size_t mid = from + (end - from) / 2;
		if (l->seen[mid].ino < ino)
			from = mid + 1;
		else
			end = mid;
	}
	return from;
}

/* The last one goes to its place among the others, which are sorted. */
static void sort_last(struct leftover *l)
{
	const struct seen e = l->seen[--l->n_seen];
	size_t at = first_of(l, e.ino);

	memmove(&l->seen[at + 1], &l->seen[at], (l->n_seen++ - at) * sizeof(e));
	l->seen[at] = e;
}

/* An inode number is used again. */
static bool is_file(const struct seen *e, const struct stat *st, uint64_t birth)
{
	if (e->birth && birth)
		return e->birth == birth;
	return e->size == (uint64_t)st->st_size && e->mtime.tv_sec == st->st_mtim.tv_sec &&
	       e->mtime.tv_nsec == st->st_mtim.tv_nsec;
}

/* Had the frontend seen the file st by that name, or as a node of p, when p was accepted? */
static bool was_seen(const struct staging *s, const struct pend *p, uint64_t dir, const char *name,
		     const struct stat *st, uint64_t birth)
{
	const struct leftover *l = &s->drain.leftover;
	uint64_t hash = hash_of(name);

	for (size_t i = first_of(l, st->st_ino); i < l->n_seen && l->seen[i].ino == st->st_ino;
	     i++) {
		const struct seen *e = &l->seen[i];
		if (is_file(e, st, birth) && (e->node == p->r.node || e->node == p->r.node2 ||
					      (e->dir == dir && e->name == hash)))
			return true;
	}
	return false;
}

void leftover_tell(struct staging *s, const struct pend *p, int dirfd, bool made)
{
	struct leftover *l = &s->drain.leftover;
	const struct rec *r = &p->r;
	struct rec seen = {.type = REC_NODE,
			   .flags = REC_ABSENT,
			   .node = r->node,
			   .ino = r->ino,
			   .mode = r->mode};
	struct stat st;

	/* what is left over finds what was not seen when it was accepted; who made what was found
	 * has perhaps just come */
	bool shared = io_store_is_shared(s->o.store) || (!made && io_store_shared(s->o.store));
	if (!shared || (!made && p->accepted <= l->until) ||
	    io_stat_born(s->o.store, dirfd, r->name, &st, &seen.dir2))
		return;
	seen.node2 = st.st_ino;
	seen.size = (uint64_t)st.st_size;
	seen.mtime = st.st_mtim;
	staging_emit(s, &seen); /* failed: then its times decide */
	if (p->accepted <= l->until && !leftover_note(s, &seen))
		sort_last(l);
}

/* ---- the start ---- */

static bool is_pending(const struct staging *s, uint64_t until)
{
	for (const struct pend *p = s->order.pend; p; p = p->next)
		if (p->accepted <= until)
			return true;
	return false;
}

void leftover_begin(struct staging *s, bool orphaned)
{
	struct leftover *l = &s->drain.leftover;
	struct head *h = s->head;
	int other = io_staged_by_other(s->o.store, log_id(s));
	bool shared = io_store_shared(s->o.store);

	/* if this start is killed, the next must know it, too */
	if (orphaned) {
		if (!is_pending(s, h->leftover))
			h->n_lost_in = 0;
		h->leftover = s->order.pend ? s->log.last_seq : 0;
	}
	if (s->order.pend && (other || shared)) /* 0: by an earlier version */
		l->until = other && !h->leftover ? s->log.last_seq : h->leftover;
	if (l->until)
		qsort(l->seen, l->n_seen, sizeof(*l->seen), by_ino);
	else
		leftover_close(s);
	/* Where it cannot be told, the times of the files alone decide. */
	l->is_ours = !other || !s->order.pend;
	if (l->is_ours)
		io_staged_by(s->o.store, log_id(s));
}

void leftover_end(struct staging *s)
{
	struct leftover *l = &s->drain.leftover;

	if (!l->until || l->is_ours || s->head->durable < l->until)
		return;
	io_staged_by(s->o.store, log_id(s));
	l->is_ours = true;
}

void leftover_close(struct staging *s)
{
	struct leftover *l = &s->drain.leftover;

	free(l->seen);
	l->seen = NULL;
	l->n_seen = l->cap = 0;
}

/* ---- what a change finds in the store ---- */

/* The number of the log that published dirfd/name; 0: it has none. 0 or -errno. */
static int log_of(struct staging *s, int dirfd, const char *name, uint64_t *log)
{
	char text[256];
	ssize_t n = io_get_xattr(s->o.store, dirfd, name, KEY_INO, text, sizeof(text) - 1);

	*log = 0;
	if (n < 0)
		return n == -ENODATA || n == -EOPNOTSUPP || n == -EPERM || n == -EACCES ||
				       n == -ERANGE || n == -ENOENT
			       ? 0
			       : (int)n;
	text[n] = 0;
	*log = key_ino_log(text);
	return 0;
}

/* Has the file st, which no log of a host that knows of others published, been written since p was
 * accepted? */
static bool is_later(struct staging *s, const struct pend *p, const struct stat *st)
{
	struct timespec now, when = p->r.when;

	if (!when.tv_sec || S_ISDIR(st->st_mode) ||
	    (!S_ISREG(st->st_mode) && !io_store_is_shared(s->o.store)))
		return false;
	/* the ctime of a buffer that was lent can be that of the version before */
	if (p->r.type == REC_SEAL)
		time_to_later(&when, p->r.mtime);
	clock_gettime(CLOCK_REALTIME, &now);
	/* The mtime may have been set; the ctime is new where a version of ours was published. */
	return time_is_later(st->st_mtim, when) && time_is_later(st->st_ctim, when) &&
	       !time_is_later(st->st_mtim, now);
}

int leftover_came_since(struct staging *s, const struct pend *p, int dirfd, uint64_t dir,
			const char *name)
{
	uint64_t birth, log = 0;
	struct stat st;

	if (p->accepted > s->drain.leftover.until)
		return 0;
	int err = io_stat_born(s->o.store, dirfd, name, &st, &birth);

	if (err)
		return err == -ENOENT ? 0 : err;
	if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
		err = log_of(s, dirfd, name, &log);
	if (err || (log && log == log_id(s)) || was_seen(s, p, dir, name, &st, birth))
		return err;
	return log || is_later(s, p, &st);
}

/* ---- a checkpoint of which something ended ---- */

static bool is_lost_in(const struct head *h, uint64_t dir)
{
	if (h->n_lost_in > LOST_IN_MAX)
		return true;
	for (uint64_t i = 0; i < h->n_lost_in; i++)
		if (h->lost_in[i] == dir)
			return true;
	return false;
}

static void note_lost(struct head *h, uint64_t dir)
{
	if (is_lost_in(h, dir))
		return;
	if (h->n_lost_in < LOST_IN_MAX)
		h->lost_in[h->n_lost_in] = dir;
	h->n_lost_in++;
}

/* Does p give this name to what commits a checkpoint? */
static bool gives_commit(const struct staging *s, const struct pend *p, uint64_t dir,
			 const char *name)
{
	const struct rec *r = &p->r;
	bool two = r->type == REC_RENAME || r->type == REC_LINK;
	bool given = r->type == REC_SEAL || (two && dir == r->dir2 && !strcmp(name, r->name2));

	return given && s->o.hold.commits && s->o.hold.commits(name);
}

static bool removes(const struct pend *p)
{
	return p->r.type == REC_UNLINK || p->r.type == REC_RMDIR;
}

int leftover_judge(struct staging *s, const struct pend *p, int dirfd, uint64_t dir,
		   const char *name)
{
	uint64_t until = s->drain.leftover.until;

	if (p->accepted > until)
		return 0;
	int since = leftover_came_since(s, p, dirfd, dir, name);
	/* a shard is another host's now, and that has not committed it either */
	if (!since && !(p->r.flags & REC_FORCED) && is_lost_in(s->head, dir) &&
	    gives_commit(s, p, dir, name))
		since = 1;
	/* Whoever removes something has written first what takes its place: was that given up? */
	if (!since && removes(p))
		return p->accepted <= s->head->given_up ? LEFTOVER_OUTLIVED : 0;
	if (since <= 0)
		return since;
	if (!removes(p) && p->r.type != REC_ATTR && p->r.type != REC_XATTR)
		s->head->given_up = until;
	note_lost(s->head, dir);
	return LEFTOVER_OUTLIVED;
}

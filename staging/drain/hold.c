/* SPDX-License-Identifier: MIT
 * A name that commits what other nodes write (a checkpoint's .metadata) is held until their files
 * are in the store: the orders of the nodes are independent. It is never published before that by
 * itself, so it must not stop this node: it is set aside (log/aside.c) with what must not pass it
 * (pass.c), and the rest of the order goes on.
 *
 *   at its turn: is something missing? ──no──▶ published
 *        ▲                │ yes
 *        │                ▼
 *        └── complete, forced, removed ◀── set aside, asked again and again
 *
 * Overtaken: another host has saved the next checkpoint over it already, so that it will hardly
 * become whole. This host's next save ends it, by its own name, or that of the host that commits
 * now. That save must get there, so its files pass (pass.c); and since an fsync of this save may
 * wait for what is set aside:
 *
 *   overtaken ──an fsync waits behind it──▶ yields: all passes it
 *       │ the store has a later one           │ an fsync waits for its very name or bytes
 *       └─────────────▶ ended ◀───────────────┘
 *
 * Only the publisher sets aside and resumes. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How often it looks at what is set aside. */
#define LOOK_NS 100000000u
/* It asks what is still missing after 0.1, 0.2, 0.4, 0.8 seconds, then once a second. */
#define ASK_MAX_NS 1000000000u

struct commit {
	uint64_t dir;
	const char *name;
};

/* A name that waits. */
struct held {
	uint64_t tree; /* its directory */
	time_t since; /* it was accepted */
	uint64_t first_ns, ask_ns; /* first asked, to be asked again */
	enum staging_missing missing;
	bool yields;
	char path[256], what[STAGING_HELD];
};

static struct commit commit_of(const struct staging *s, const struct rec *r)
{
	struct commit none = {.name = NULL};
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;
	int kind;

	if (r->flags & REC_ABSENT || (r->type == REC_RENAME && r->flags & (REC_SHADOW | REC_DIR)))
		return none;
	if (r->type == REC_RENAME && s->o.hold.commits(r->name2))
		return (struct commit){.dir = r->dir2, .name = r->name2};
	while (r->type == REC_SEAL &&
	       (kind = rec_unpack(r->data, r->data_len, &pos, &name, &pair)) > 0)
		if (kind == 1 && s->o.hold.commits(name.name))
			return (struct commit){.dir = name.dir, .name = name.name};
	return none;
}

bool hold_due(const struct staging *s, const struct pend *p)
{
	return s->o.hold.patience_ms && !(p->r.flags & REC_FORCED) && !p->begun && !p->shown &&
	       commit_of(s, &p->r).name;
}

/* ---- asking ---- */

/* A rename, p, of a version that waits, too: under its present name the store has another one. */
static bool waits_for_bytes(const struct staging *s, const struct pend *p)
{
	for (const struct pend *q = s->order.pend; p->r.type == REC_RENAME && q != p; q = q->next)
		if (q->r.type == REC_SEAL && q->r.node == p->r.node)
			return true;
	return false;
}

/* The bytes to be published: in tmp/, or in the store under their present name. */
static int open_bytes(struct staging *s, const struct pend *p)
{
	int d, fd;
	if (p->r.type == REC_SEAL)
		return io_tmp_open(s->o.store, p->tmp_id, O_RDONLY);
	int err = staging_dir_get(s, p->r.dir, &d);
	if (err)
		return err;
	fd = io_open_read(s->o.store, d, p->r.name, 0);
	staging_dir_put(s, p->r.dir);
	return fd;
}

/* It cannot be looked at. If the store fails now, that may be over when the name is applied;
 * everything else applying it will report. */
static enum staging_missing not_seen(int err, const char *of, char *what, size_t cap)
{
	if (!is_failure(err))
		return STAGING_WHOLE;
	snprintf(what, cap, "%s could not be opened: %s", of, strerror(-err));
	return STAGING_MISSING;
}

/* Its bytes are opened only if what they list is not known from before: while it waits, each
 * question costs no more than what is missing. */
static enum staging_missing is_missing(struct staging *s, const struct pend *p, struct commit c,
				       char *what, size_t cap)
{
	int d, err = staging_dir_get(s, c.dir, &d);
	if (err)
		return not_seen(err, "its directory", what, cap);
	enum staging_missing missing = STAGING_UNREAD;
	if (p->held)
		missing = s->o.hold.missing(s->o.ctx, p->accepted, c.dir, d, -1, what, cap);
	if (missing == STAGING_UNREAD) {
		int fd = open_bytes(s, p);
		missing =
			fd < 0 ? not_seen(fd, "what it lists", what, cap)
			       : s->o.hold.missing(s->o.ctx, p->accepted, c.dir, d, fd, what, cap);
		if (fd >= 0)
			close(fd);
	}
	staging_dir_put(s, c.dir);
	return missing;
}

static void let_go(struct pend *p)
{
	free(p->held);
	p->held = NULL;
}

/* Whether p, a name that may have to wait, has to: p->held says so. s->lock held, dropped
 * meanwhile. */
static void ask(struct staging *s, struct pend *p)
{
	char what[STAGING_HELD] = "", path[256];
	struct commit c = commit_of(s, &p->r);
	uint64_t now = monotonic_ns();

	pthread_mutex_unlock(&s->lock);
	enum staging_missing missing = is_missing(s, p, c, what, sizeof(what));
	dirs_root_relative(s, c.dir, c.name, path, sizeof(path));
	pthread_mutex_lock(&s->lock);
	if (!missing) {
		let_go(p);
		return;
	}
	if (!p->held) {
		p->held = calloc(1, sizeof(*p->held));
		if (!p->held)
			return; /* asked again */
		p->held->first_ns = now;
		p->held->since = p->r.when.tv_sec ? p->r.when.tv_sec : time(NULL);
	}
	struct held *h = p->held;
	uint64_t wait = now - h->first_ns;
	h->ask_ns = now + (wait < LOOK_NS ? LOOK_NS : wait > ASK_MAX_NS ? ASK_MAX_NS : wait);
	h->tree = c.dir;
	h->missing = missing;
	memcpy(h->path, path, sizeof(h->path));
	memcpy(h->what, what, sizeof(h->what));
}

/* ---- what waits ---- */

static uint64_t parent_of(void *ctx, uint64_t dir, uint64_t seq)
{
	struct staging *s = ctx;
	uint64_t parent, last;

	dirs_later_parent(s, dir, &parent, &last);
	if (last < seq)
		return parent;
	parent = dirs_parent(s, dir);
	last = 0;
	for (const struct pend *p = s->order.pend; p; p = p->next) {
		bool made = p->r.type == REC_MKDIR,
		     moved = p->r.type == REC_RENAME && p->r.flags & REC_DIR;
		if ((!made && !moved) || p->r.node != dir || p->accepted >= seq ||
		    p->accepted < last)
			continue;
		last = p->accepted;
		parent = made ? p->r.dir : p->r.dir2;
	}
	return parent;
}

static uint64_t added_at(void *ctx, uint64_t node)
{
	return aside_added(ctx, node);
}

static void list_drop(struct staging *s)
{
	free(s->aside.waiting);
	s->aside.waiting = NULL;
	s->aside.n_waiting = 0;
}

static bool is_overtaken(const struct held *h)
{
	return h->missing >= STAGING_OVERTAKEN;
}

/* p, set aside, as pass.c sees it behind `last`. A name that is held no more protects all until it
 * is in the store. */
static struct pass_waiting waiting_of(const struct staging *s, const struct pend *p,
				      const struct pass_waiting *last)
{
	const struct held *h = p->held;
	bool overtaken = h ? is_overtaken(h) : !hold_due(s, p);

	return (struct pass_waiting){.r = &p->r,
				     .seq = p->accepted,
				     .tree = h ? h->tree : 0,
				     .overtaken = overtaken && (!last || last->overtaken),
				     .yields = overtaken && (!h || h->yields) &&
					       (!last || last->yields)};
}

/* What is set aside, as pass.c sees it. Kept until that changes. *none: no memory. */
static struct pass waiting(struct staging *s, bool *none)
{
	struct aside *a = &s->aside;
	const struct pass_waiting *last = NULL;

	if (!a->waiting) {
		a->waiting = calloc(s->order.n_aside + 1, sizeof(*a->waiting));
		a->n_waiting = 0;
		for (struct pend *p = s->order.pend; a->waiting && p && p->aside; p = p->next) {
			a->waiting[a->n_waiting] = waiting_of(s, p, last);
			last = &a->waiting[a->n_waiting++];
		}
	}
	*none = !a->waiting;
	return (struct pass){.waiting = a->waiting,
			     .n = a->n_waiting,
			     .parent = parent_of,
			     .added = added_at,
			     .ctx = s};
}

bool hold_blocks(struct staging *s, const struct pend *p)
{
	bool none;

	if (!s->order.n_aside)
		return false;
	struct pass w = waiting(s, &none);
	return none || pass_waits(&w, &p->r, p->accepted);
}

static bool set_aside(struct staging *s, struct pend **link)
{
	list_drop(s);
	return !aside_put(s, link, 0);
}

/* ---- names that are removed or replaced while they wait ---- */

/* p's name c ends with `end`, or (NULL) in the store: nobody sees it there. Of a rename only the
 * removal of the old name remains, and nothing if that may be another host's file. */
static int end_commit(struct staging *s, struct pend *p, struct commit c, const struct rec *end)
{
	bool over = p->r.flags & (p->r.type == REC_SEAL ? REC_SHADOW : REC_OVER);
	int err = 0;

	for (struct pend *q = p->next; !err && q && q->aside; q = q->next) {
		bool last = &q->r == end, named = q->r.dir == c.dir && !strcmp(q->r.name, c.name);
		if (named && (last ? q->r.type == REC_UNLINK && !over
				   : q->r.type == REC_ATTR || q->r.type == REC_XATTR ||
					      q->r.type == REC_XATTR_DEL))
			err = aside_change(s, q, REC_ABSENT);
		if (last)
			break;
	}
	if (!err)
		err = aside_change(s, p, p->r.type == REC_RENAME && end ? REC_SHADOW : REC_ABSENT);
	if (!err)
		let_go(p);
	return err;
}

/* True if one ended. */
static bool end_commits(struct staging *s)
{
	bool none, ended = false;
	size_t at = 0;

	for (struct pend *p = s->order.pend; p && p->aside; p = p->next, at++) {
		struct commit c = p->held ? commit_of(s, &p->r) : (struct commit){.name = NULL};
		if (!c.name || (p->r.type == REC_SEAL && !rec_has_one_name(&p->r)))
			continue;
		struct pass w = waiting(s, &none);
		size_t end = none ? w.n : pass_end_of(&w, at, c.dir, c.name);
		ended |= end < w.n && !end_commit(s, p, c, w.waiting[end].r);
	}
	if (ended)
		list_drop(s);
	return ended;
}

/* ---- resuming ---- */

/* What is pending and must stay behind something that waits is set aside, so that what is resumed
 * can take the last place. */
static bool sweep(struct staging *s)
{
	for (struct pend **link = s->order.head, *p; (p = *link);) {
		bool first = link == s->order.head;
		if (!hold_blocks(s, p)) {
			aside_note_added(s, &p->r, p->accepted);
			link = &p->next;
		} else if (!set_aside(s, link)) {
			return false;
		} else if (first) {
			link = s->order.head;
		}
	}
	return true;
}

/* Resumes all that need not wait any more, in its order. */
static void resume(struct staging *s)
{
	struct pass_waiting *kept = calloc(s->order.n_aside + 1, sizeof(*kept));
	struct pass k = {.waiting = kept, .parent = parent_of, .added = added_at, .ctx = s};
	int err = 0;

	for (struct pend **link = &s->order.pend, *p; kept && (p = *link) && p->aside;) {
		struct pass_waiting w = waiting_of(s, p, k.n ? &kept[k.n - 1] : NULL);
		bool stays = err || p->held || pass_waits(&k, &p->r, p->accepted);
		if (!stays) {
			aside_note_added(s, &p->r, p->accepted);
			err = aside_resume(s, link);
		}
		if (stays || err) {
			kept[k.n++] = w;
			link = &p->next;
		}
	}
	s->aside.unfinished = err || !kept;
	free(kept);
	list_drop(s);
}

/* ---- what other hosts have overtaken ---- */

static bool is_waited_for(const struct staging *s, const struct pend *q)
{
	for (const struct waiter *w = s->drain.waiters; w; w = w->next)
		if (q->from <= w->seq &&
		    (!w->node || w->node == q->r.node || w->node == q->r.node2 ||
		     w->node == q->r.dir || w->node == q->r.dir2))
			return true;
	return false;
}

/* Does a caller wait for a change that waits because of p, a name that is held? */
static bool is_waited_behind(struct staging *s, const struct pend *p)
{
	const struct pass_waiting w = waiting_of(s, p, NULL);
	const struct pass only = {
		.waiting = &w, .n = 1, .parent = parent_of, .added = added_at, .ctx = s};

	for (const struct pend *q = p->next; q && q->aside; q = q->next)
		if (!q->held && is_waited_for(s, q) && pass_waits(&only, &q->r, q->accepted))
			return true;
	return false;
}

static void tell(struct staging *s, const char *text)
{
	pthread_mutex_unlock(&s->lock);
	s->o.notice(s->o.ctx, text);
	pthread_mutex_lock(&s->lock);
}

/* p, overtaken, never reaches the store. */
static bool end_overtaken(struct staging *s, struct pend *p, const char *why)
{
	char text[400];

	snprintf(text, sizeof(text), LEVEL_WARNING "%s is not published: %s", p->held->path, why);
	if ((p->r.type == REC_SEAL && !rec_has_one_name(&p->r)) ||
	    end_commit(s, p, commit_of(s, &p->r), NULL))
		return false;
	tell(s, text);
	return true;
}

/* True: what may pass has changed. Drops the lock. */
static bool look_overtaken(struct staging *s)
{
	bool changed = false;

	for (struct pend *p = s->order.pend; p && p->aside; p = p->next) {
		struct held *h = p->held;
		bool waited = h && is_overtaken(h) && is_waited_behind(s, p);
		if (h && h->missing == STAGING_REPLACED)
			changed |= end_overtaken(s, p,
						 "another host has committed a later save there");
		else if (waited && h->yields)
			changed |= end_overtaken(
				s, p,
				"other hosts have saved over it, and this one is about to commit");
		else if (waited)
			changed = h->yields = true;
	}
	return changed;
}

static bool is_late(const struct staging *s, const struct held *h)
{
	return time(NULL) - h->since > (time_t)(s->o.hold.patience_ms / 1000);
}

/* True: something was not late and is, or vice versa. */
static bool look_late(struct staging *s)
{
	bool late = false;

	for (struct pend *p = s->order.pend; p && p->aside; p = p->next)
		late |= p->held && is_late(s, p->held);
	return atomic_exchange(&s->aside.late, late) != late;
}

/* s->lock held, dropped meanwhile. True: something was resumed, or is late now. */
static bool look(struct staging *s)
{
	bool all = !s->aside.look_ns, fresh = false;
	enum staging_missing before;
	uint64_t now = monotonic_ns(), n = s->order.n_aside;

	s->aside.looks_begun += all;
	if (all) /* perhaps a removal that ends one */
		sweep(s);
	bool freed = end_commits(s);
	s->aside.look_ns = now + LOOK_NS;
	for (struct pend *p = s->order.pend; p && p->aside; p = p->next) {
		bool was = p->held, due = hold_due(s, p);
		if (due && waits_for_bytes(s, p))
			continue;
		before = was ? p->held->missing : STAGING_WHOLE;
		if (due && (all || !was || p->held->ask_ns <= now))
			ask(s, p);
		else if (!due)
			let_go(p);
		freed |= was && !p->held;
		freed |= p->held && is_overtaken(p->held) && before < STAGING_OVERTAKEN;
		fresh |= p->held && p->held->missing != before;
	}
	freed |= look_overtaken(s);
	if (freed || fresh)
		list_drop(s);
	if (freed || all || s->aside.unfinished) {
		s->aside.unfinished = true;
		if (sweep(s))
			resume(s);
	}
	aside_settle(s);
	bool changed = look_late(s) || s->order.n_aside != n;
	if (all) {
		s->aside.looks_done = s->aside.looks_begun;
		tell_moved(s);
	}
	pthread_cond_broadcast(&s->done_cond);
	return changed;
}

bool hold_goes_on(struct staging *s)
{
	struct pend *p;

	if (s->order.n_aside && monotonic_ns() >= s->aside.look_ns && look(s))
		return true;
	if (!(p = *s->order.head))
		return false;
	bool waits = hold_blocks(s, p);
	if (!waits && (p->state == PEND_READY || p->state == PEND_WRITTEN) && hold_due(s, p)) {
		ask(s, p);
		waits = p->held;
	}
	if (!waits)
		return false;
	if (set_aside(s, s->order.head))
		aside_settle(s);
	else /* no memory, or staging is full */
		sleeper_wait(s, &s->pub, monotonic_ns() + LOOK_NS);
	return true;
}

/* ---- from outside ---- */

uint64_t staging_ask_waiting(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	s->aside.look_ns = 0;
	sleeper_wake(&s->pub);
	return s->aside.looks_begun + 1;
}

bool staging_has_asked_waiting(struct staging *s, uint64_t number)
{
	LOCK_SCOPE(&s->lock);
	return !s->order.n_aside || s->aside.looks_done >= number;
}

/* Is there a name in dir that may have to wait, and was not asked about? s->lock held. */
static bool is_asked_next(const struct staging *s, uint64_t dir)
{
	for (const struct pend *p = s->order.pend; p; p = p->next)
		if (!p->held && hold_due(s, p) && commit_of(s, &p->r).dir == dir &&
		    !(p->aside && waits_for_bytes(s, p)))
			return true;
	return false;
}

/* Of what waits in dir; text: of the last. s->lock held. */
static int force(struct staging *s, uint64_t dir, char *text, size_t cap)
{
	int n = 0;

	for (struct pend *p = s->order.pend; p && p->aside; p = p->next) {
		if (!p->held || p->held->tree != dir || aside_change(s, p, REC_FORCED))
			continue;
		n++;
		snprintf(text, cap, LEVEL_WARNING "%s is published by request, but %s",
			 p->held->path, p->held->what);
	}
	s->aside.look_ns = n ? 0 : s->aside.look_ns;
	sleeper_wake(&s->pub);
	return n;
}

int staging_force(struct staging *s, uint64_t dir, unsigned timeout_ms)
{
	uint64_t until = monotonic_ns() + timeout_ms * 1000000ull, now;
	char text[800];
	int n;

	pthread_mutex_lock(&s->lock);
	atomic_fetch_add(&s->drain.n_sync_waiters, 1); /* no delays now */
	persist_wake(s);
	while (!(n = force(s, dir, text, sizeof(text))) && is_asked_next(s, dir)) {
		now = monotonic_ns();
		if (now >= until || s->drain.halted || s->stop) {
			n = -ETIMEDOUT;
			break;
		}
		staging_wait_until(&s->done_cond, &s->lock,
				   now + LOOK_NS < until ? now + LOOK_NS : until);
	}
	atomic_fetch_sub(&s->drain.n_sync_waiters, 1);
	pthread_mutex_unlock(&s->lock);
	if (n > 0)
		s->o.notice(s->o.ctx, text);
	return n;
}

void hold_stats(struct staging *s, struct staging_stats_held *out)
{
	*out = (struct staging_stats_held){.behind = s->order.n_aside,
					   .only = s->order.n_aside &&
						   s->order.n_aside == s->order.n_pend};
	for (struct pend *p = s->order.pend; p && p->aside; p = p->next) {
		const struct held *h = p->held;
		if (!h)
			continue;
		if (!out->count++) {
			memcpy(out->path, h->path, sizeof(out->path));
			memcpy(out->what, h->what, sizeof(out->what));
			out->since = h->since;
		}
		out->behind--;
		out->late |= is_late(s, h);
	}
}

/* SPDX-License-Identifier: MIT
 * Records set aside: a name that commits what other nodes write waits for them, and so does what
 * must not pass it (drain/hold.c, drain/pass.c). The rest of the order goes on.
 *
 *   in the order ──aside_put──▶ set aside ──aside_resume──▶ in the order, at its end
 *
 * `applied` and `durable` thus still end a prefix of the order, of which exactly the records that
 * are set aside are missing. When one is resumed it gets a new seq, so whatever is known by a seq
 * (the mark in the store, what was applied last before a kill) is as precise as without them. The
 * log says of each when it was set aside and which place it got. */
#include "staging/log/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

static size_t pair_slot(const struct pairs *t, uint64_t key)
{
	size_t i = (size_t)(key * 0x9e3779b97f4a7c15ull >> 20) % t->cap;
	while (t->at[i].key && t->at[i].key != key)
		i = (i + 1) % t->cap;
	return i;
}

/* Room for one more. */
static int pairs_grow(struct pairs *t)
{
	struct pairs more = {.n = t->n, .cap = t->cap ? t->cap * 2 : 256};

	if (t->cap && t->n + 1 <= t->cap / 2)
		return 0;
	more.at = calloc(more.cap, sizeof(*more.at));
	if (!more.at)
		return -ENOMEM;
	for (size_t i = 0; i < t->cap; i++)
		if (t->at[i].key)
			more.at[pair_slot(&more, t->at[i].key)] = t->at[i];
	free(t->at);
	*t = more;
	return 0;
}

/* pairs_grow() was called */
static void pairs_set(struct pairs *t, uint64_t key, uint64_t value)
{
	struct pair *p = &t->at[pair_slot(t, key)];
	t->n += !p->key;
	*p = (struct pair){.key = key, .value = value};
}

static uint64_t pairs_get(const struct pairs *t, uint64_t key)
{
	return t->n ? t->at[pair_slot(t, key)].value : 0;
}

static void pairs_clear(struct pairs *t)
{
	free(t->at);
	*t = (struct pairs){.at = NULL};
}

/* ---- places ---- */

uint64_t staging_place_of(struct staging *s, uint64_t seq)
{
	if (!atomic_load(&s->aside.n_moved))
		return seq;
	LOCK_SCOPE(&s->aside.lock);
	for (uint64_t to; seq != UINT64_MAX && (to = pairs_get(&s->aside.moved, seq));)
		seq = to;
	return seq;
}

bool staging_is_applied(struct staging *s, uint64_t seq)
{
	uint64_t applied = staging_applied(s);
	return staging_place_of(s, seq) <= applied;
}

bool staging_is_durable(struct staging *s, uint64_t seq)
{
	uint64_t durable = staging_durable(s);
	return staging_place_of(s, seq) <= durable;
}

/* Room for one more place that moves. */
static int place_room(struct staging *s)
{
	LOCK_SCOPE(&s->aside.lock);
	return pairs_grow(&s->aside.moved);
}

static void place_set(struct staging *s, uint64_t seq, uint64_t to)
{
	LOCK_SCOPE(&s->aside.lock);
	pairs_set(&s->aside.moved, seq, to);
	atomic_store(&s->aside.n_moved, s->aside.moved.n);
}

/* ---- the list ---- */

static bool kills(const struct pend *killer, const struct pend *p)
{
	return p->dead_at && p->dead_at == killer->accepted;
}

/* A record and the one that removes what it creates are left out together, or not at all. */
static void part_from_killer(struct staging *s, struct pend *p)
{
	if (p->dead_at) {
		p->dead_at = 0;
		persist_must(s, p);
	}
	for (struct pend *q = p->kills ? s->order.pend : NULL; q && q != p; q = q->next)
		if (kills(p, q)) {
			q->dead_at = 0;
			persist_must(s, q);
		}
	p->kills = false;
}

static void list_aside(struct staging *s, struct pend **link)
{
	struct order *o = &s->order;
	struct pend *p = *link, **at = o->head;

	if (o->n_aside && p->accepted < o->last_aside)
		for (at = &o->pend; at != o->head && (*at)->accepted < p->accepted;)
			at = &(*at)->next;
	else
		o->last_aside = p->accepted;
	if (at != link) {
		*link = p->next;
		if (o->head == &p->next)
			o->head = link;
		if (!p->next)
			o->pend_tail = link;
		p->next = *at;
		*at = p;
	}
	if (o->head == at)
		o->head = &p->next;
	o->n_aside++;
	p->aside = true;
}

static void list_resume(struct staging *s, struct pend **link)
{
	struct order *o = &s->order;
	struct pend *p = *link;

	if (p->next) {
		*link = p->next;
		if (o->head == &p->next)
			o->head = link;
		p->next = NULL;
		*o->pend_tail = p;
		o->pend_tail = &p->next;
	} else {
		o->head = link; /* it is the last already */
	}
	o->n_aside--;
	p->aside = false;
}

static int log_aside(struct staging *s, const struct pend *p, uint32_t flags)
{
	struct rec r = {.type = REC_ASIDE, .node2 = p->r.seq, .flags = flags};

	s->head->asides = s->head->segment;
	return log_append(s, &r);
}

/* The versions that p replaces have its place: those seqs are nobody else's. */
static int move_replaced(struct staging *s, const struct pend *p)
{
	int err = 0;

	for (uint64_t seq = p->from; !err && seq < p->accepted && p->accepted == p->r.seq; seq++) {
		err = place_room(s);
		if (!err && staging_place_of(s, seq) == seq)
			place_set(s, seq, p->accepted);
	}
	return err;
}

int aside_put(struct staging *s, struct pend **link, uint32_t flags)
{
	struct pend *p = *link;
	int err = move_replaced(s, p);

	if (!err)
		err = place_room(s);
	if (!err)
		err = log_aside(s, p, flags);
	if (err)
		return err;
	place_set(s, p->r.seq, UINT64_MAX);
	p->r.flags |= flags;
	p->times.aside = monotonic_ns();
	part_from_killer(s, p);
	list_aside(s, link);
	return 0;
}

int aside_change(struct staging *s, struct pend *p, uint32_t flags)
{
	int err = (p->r.flags & flags) == flags ? 0 : log_aside(s, p, flags);

	if (!err)
		p->r.flags |= flags;
	return err;
}

int aside_resume(struct staging *s, struct pend **link)
{
	struct pend *p = *link;
	struct rec r = {.type = REC_RESUMED, .seq = s->log.last_seq + 1, .node2 = p->r.seq};
	int err = log_append(s, &r);

	if (err)
		return err;
	s->log.last_seq = r.seq;
	place_set(s, p->r.seq, r.seq);
	p->r.seq = r.seq;
	p->times.wait[WAIT_HOLD] +=
		monotonic_ns() - (p->times.aside ? p->times.aside : p->start_ns);
	if (p->r.type == REC_UNLINK || p->r.type == REC_RMDIR || p->r.type == REC_RENAME ||
	    p->r.type == REC_SEAL)
		s->order.last_delete = r.seq;
	list_resume(s, link);
	if (!s->order.n_aside)
		pairs_clear(&s->aside.added);
	return 0;
}

void aside_settle(struct staging *s)
{
	const struct pend *p = *s->order.head;
	uint64_t seq = !p ? s->log.last_seq : p->accepted == p->r.seq ? p->from - 1 : p->r.seq - 1;

	if (!s->aside.n_moved || seq <= s->head->durable)
		return;
	atomic_store_explicit(&s->head->applied, seq, memory_order_release);
	atomic_store_explicit(&s->head->durable, seq, memory_order_release);
}

/* ---- what is asked about them ---- */

void aside_note_added(struct staging *s, const struct rec *r, uint64_t accepted)
{
	bool new = (r->type == REC_SEAL && !(r->flags & REC_SHADOW)) || r->type == REC_MKDIR ||
		   r->type == REC_SYMLINK || r->type == REC_MKNOD;

	if (!s->order.n_aside || !new || !r->node || pairs_get(&s->aside.added, r->node))
		return;
	if (!pairs_grow(&s->aside.added)) /* else it counts as older, and waits */
		pairs_set(&s->aside.added, r->node, accepted);
}

uint64_t aside_added(struct staging *s, uint64_t node)
{
	return pairs_get(&s->aside.added, node);
}

static bool has_moved(const struct pend *p)
{
	return p->aside || p->r.seq != p->accepted;
}

bool aside_delays(struct staging *s, uint64_t node, uint64_t seq)
{
	for (struct pend *p = s->aside.n_moved ? s->order.pend : NULL; p; p = p->next)
		if (has_moved(p) && p->from <= seq &&
		    (!node || p->r.node == node || p->r.node2 == node || p->r.dir == node ||
		     p->r.dir2 == node))
			return true;
	return false;
}

uint64_t aside_durable(struct staging *s, uint64_t durable)
{
	for (struct pend *p = s->aside.n_moved ? s->order.pend : NULL; p; p = p->next)
		if (has_moved(p) && p->from <= durable)
			durable = p->from - 1;
	return durable;
}

void staging_each_waiting(struct staging *s, void (*each)(void *ctx, const uint64_t id[3]),
			  void *ctx)
{
	if (!atomic_load(&s->aside.n_moved))
		return;
	LOCK_SCOPE(&s->lock);
	for (struct pend *p = s->order.pend; p; p = p->next)
		if (has_moved(p))
			each(ctx, (const uint64_t[3]){p->r.node, p->r.dir, p->r.dir2});
}

bool staging_waits_long(struct staging *s)
{
	return atomic_load(&s->aside.late);
}

/* ---- replay ---- */

static int recall_one(struct staging *s, const struct rec *r)
{
	int err = r->type == REC_ASIDE || r->type == REC_RESUMED ? place_room(s) : 0;

	if (!err && r->type == REC_ASIDE)
		place_set(s, r->node2, UINT64_MAX);
	else if (!err && r->type == REC_RESUMED)
		place_set(s, r->node2, r->seq);
	return err;
}

static void recall_first(struct staging *s, const struct rec *r)
{
	if (r->seq > s->head->applied && r->seq < s->aside.first_seq &&
	    (is_ordered(r->type) || r->type == REC_RESUMED) &&
	    staging_place_of(s, r->seq) == r->seq)
		s->aside.first_seq = r->seq;
}

int aside_recall(struct staging *s, const char *map, size_t len)
{
	struct rec r;
	size_t used;
	int err = 0;

	s->aside.first_seq = s->head->applied + 1;
	if (s->head->asides != s->head->segment)
		return 0;
	for (size_t pos = 0; !err && !rec_decode(map + pos, len - pos, &r, &used); pos += used)
		err = recall_one(s, &r);
	s->aside.first_seq = UINT64_MAX;
	for (size_t pos = 0; !err && !rec_decode(map + pos, len - pos, &r, &used); pos += used)
		recall_first(s, &r);
	return err;
}

void aside_replayed(struct staging *s)
{
	struct pend **link = s->order.head;

	while ((*link)->next)
		link = &(*link)->next;
	list_aside(s, link);
}

/* A log that is replayed has the places already. */
void aside_replay(struct staging *s, const struct rec *r)
{
	LOCK_SCOPE(&s->lock);
	struct pend **link = &s->order.pend;

	while (*link && (*link)->r.seq != r->node2)
		link = &(*link)->next;
	if (!*link)
		return; /* it is applied */
	struct pend *p = *link;
	p->r.flags |= r->flags;
	if (r->type == REC_ASIDE)
		return;
	p->r.seq = r->seq;
	if (staging_place_of(s, r->seq) == r->seq)
		list_resume(s, link);
}

void aside_forget(struct staging *s)
{
	LOCK_SCOPE(&s->aside.lock);
	atomic_store(&s->aside.n_moved, 0);
	pairs_clear(&s->aside.moved);
}

void aside_close(struct staging *s)
{
	pairs_clear(&s->aside.added);
	pairs_clear(&s->aside.moved);
	free(s->aside.waiting);
}

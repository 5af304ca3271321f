/* SPDX-License-Identifier: MIT
 * The order: pending records, and which of them need a persist thread. What a
 * staged file and its versions do with them is in staged.c, seal.c and persist.c. */
#include "staging/log/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* with this many waiting a small file is not delayed, see SMALL_REST_NS */
#define BACKLOG 64u

/* A removal marks what it removes, so that a pair without a visible effect can be left out. */
static void mark_killed(struct staging *s, struct pend *killer)
{
	const struct rec *r = &killer->r;
	unsigned looked = 0;

	if ((r->type != REC_UNLINK && r->type != REC_RMDIR) || !r->node2)
		return;
	for (struct pend *p = *s->order.head; p && p != killer && looked < 8192;
	     p = p->next, looked++)
		if (p->r.node == r->node2 && !p->dead_at &&
		    (p->r.type == REC_SEAL || p->r.type == REC_MKDIR || p->r.type == REC_SYMLINK ||
		     p->r.type == REC_MKNOD)) {
			p->dead_at = r->seq;
			killer->kills = true;
		}
}

struct pend *pend_new(const struct rec *r)
{
	size_t n1 = r->name ? strlen(r->name) + 1 : 1, n2 = r->name2 ? strlen(r->name2) + 1 : 1;
	struct pend *p = calloc(1, sizeof(*p) + n1 + n2 + r->data_len);
	if (!p)
		return NULL;
	char *tail = (char *)(p + 1);
	p->r = *r;
	p->accepted = p->from = r->seq;
	p->r.name = tail;
	memcpy(tail, r->name ? r->name : "", n1);
	p->r.name2 = tail + n1;
	memcpy(tail + n1, r->name2 ? r->name2 : "", n2);
	p->r.data = tail + n1 + n2;
	if (r->data_len)
		memcpy(tail + n1 + n2, r->data, r->data_len);
	p->tmp_fd = p->clone.source = -1;
	p->start_ns = monotonic_ns();
	p->state = PEND_READY;
	return p;
}

void pend_add(struct staging *s, struct pend *p, struct staged *sf)
{
	const struct rec *r = &p->r;

	if (sf) {
		p->sf = sf;
		sf->refs++;
		sf->n_seals++;
		sf->last_seal = r->seq;
	}
	dirs_ref(s, r->dir);
	dirs_ref(s, r->dir2);
	if (r->node && (r->type == REC_MKDIR || (r->flags & REC_DIR))) {
		dirs_ref(s, r->node);
		dirs_will_be(s, r->node, r->type == REC_MKDIR ? r->dir : r->dir2, r->seq);
	}
	*s->order.pend_tail = p;
	s->order.pend_tail = &p->next;
	s->order.n_pend++;
	if (r->type == REC_MKDIR || r->type == REC_SYMLINK || r->type == REC_MKNOD)
		reserve_name(s, &p->promised);
	mark_killed(s, p);
	if (r->type == REC_UNLINK || r->type == REC_RMDIR || r->type == REC_RENAME ||
	    r->type == REC_SEAL)
		s->order.last_delete = r->seq;
}

void pend_free(struct pend *p)
{
	if (p->tmp_fd >= 0)
		close(p->tmp_fd);
	if (p->clone.source >= 0)
		close(p->clone.source);
	free(p->held);
	free(p->chunks); /* without a descriptor yet */
	early_unref(p->early);
	free(p);
}

int log_in_order(struct staging *s, struct rec *r, struct staged *sf, struct pend **out)
{
	r->seq = s->log.last_seq + 1;
	struct pend *p = pend_new(r); /* first: what is logged cannot be taken back */
	int err = p ? log_append(s, r) : -ENOMEM;
	if (err) {
		free(p);
		return err;
	}
	pend_add(s, p, sf);
	s->log.last_seq = r->seq;
	*out = p;
	return 0;
}

int staging_log(struct staging *s, struct rec *r)
{
	struct pend *p;
	LOCK_SCOPE(&s->lock);
	int err = is_ordered(r->type) ? log_in_order(s, r, NULL, &p) : log_append(s, r);
	if (err)
		return err;
	if (is_ordered(r->type))
		sleeper_nudge(&s->pub, in_hurry(s));
	log_answered(s, r);
	return 0;
}

int log_written(struct staging *s, const struct pend *p)
{
	struct rec r = {.type = REC_WRITTEN,
			.node2 = p->r.seq,
			.ino = p->tmp_id,
			.sf = p->sf->id,
			.flags = p->state == PEND_READY ? REC_FSYNCED : 0};
	return p->tmp_id ? log_append(s, &r) : 0;
}

bool persist_may_wait(const struct staging *s, const struct pend *p)
{
	return is_small(p) && !p->must && !in_hurry(s) && s->order.n_pend < BACKLOG && !s->stop;
}

void persist_queue(struct staging *s, struct pend *p)
{
	p->state = PEND_QUEUED;
	/* no persist thread takes it before the publisher asks for it */
	if (p->dead_at && !p->must)
		sleeper_nudge(&s->pub, false);
	p->todo_next = NULL;
	*s->order.todo_tail = p;
	s->order.todo_tail = &p->todo_next;
	sleeper_nudge(&s->work, !persist_may_wait(s, p));
	if (is_small(p) && s->drain.n_large == s->drain.n_persist)
		sleeper_nudge(&s->small_work, !persist_may_wait(s, p));
}

void persist_must(struct staging *s, struct pend *p)
{
	bool queued = false;

	if (p->state != PEND_QUEUED || p->must)
		return;
	p->must = true;
	for (struct pend *w = s->order.todo; w && !queued; w = w->todo_next)
		queued = w == p;
	if (!queued)
		persist_queue(s, p);
	persist_wake(s);
}

void persist_unqueue(struct staging *s, struct pend *p)
{
	for (struct pend **w = &s->order.todo; *w; w = &(*w)->todo_next)
		if (*w == p) {
			*w = p->todo_next;
			if (!*w)
				s->order.todo_tail = w;
			return;
		}
}

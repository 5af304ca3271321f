/* SPDX-License-Identifier: MIT
 * Files that are appended to again and again: opened, appended to, closed.
 *
 * A version that is closed and not in the store yet has its only bytes in the staged file, so an
 * open for writing waits until the store has them. A writer that can only append (O_WRONLY and
 * O_APPEND, so it cannot map the file) need not: it writes through the daemon, and what the file
 * has already is *protected*: a write or a truncation that touches it (O_APPEND can be cleared, or
 * ftruncate called) waits as that open would have.
 *
 *   0 ............ protected ............ size
 *   | sealed, not in the store | appended |
 *
 * So each version is the beginning of the next, and one that nobody has begun to persist when the
 * next one is sealed right behind it is left out: what the store shows is the state before it, then
 * the state after the next, each a prefix of what was done (P1). The log keeps both seals; a replay
 * leaves it out again, or publishes it. Its blocks are kept for the version after the next, until
 * the file is durable. */
#include "staging/file/file.h"

#include <errno.h>
#include <string.h>

/* Versions of a file on their way at the same time: each has blocks of its own. */
#define ON_THEIR_WAY 2u

/* ---- what is protected ---- */

void append_protect(struct staged *f)
{
	bool was = f->io.fixed, waits = f->io.appends && sf_waiting_seal(f);

	f->io.fixed = waits || sf_seals_under_way(f) ? f->last.size : 0;
	/* what it has may change, or has: it may need other blocks */
	if (!was || !f->io.fixed)
		f->io.tmp_size = 0;
}

bool staged_protected(struct staged *f)
{
	return atomic_load(&f->io.fixed);
}

/* s->lock held */
static int unprotect(struct staged *f)
{
	struct staging *s = f->s;
	int err = 0;

	if (!f->io.fixed)
		return 0;
	if (sf_seals_under_way(f))
		return -EBUSY;
	/* their bytes change now: recovery must not look for them here */
	for (struct pend *p = f->n_seals ? s->order.pend : NULL; p && !err; p = p->next)
		if (p->sf == f && p->state == PEND_READY)
			err = log_written(s, p);
	if (!err)
		f->io.fixed = 0;
	return err;
}

int staged_unprotect(struct staged *f)
{
	if (!f->io.fixed)
		return 0;
	LOCK_SCOPE(&f->s->lock);
	return unprotect(f);
}

int append_change(struct staged *f, uint64_t off)
{
	return off < f->io.fixed ? staged_unprotect(f) : 0;
}

/* ---- which open need not wait ---- */

bool append_may_begin(const struct staged *f)
{
	const struct staging *s = f->s;
	const struct pend *last = NULL;
	unsigned n = 0;

	if ((f->state != STAGED_SEALED && f->state != STAGED_PERSISTING) || f->spilled ||
	    f->moved.under || f->moved.more || f->late || f->memory.lender || s->drain.halted)
		return false;
	for (const struct pend *p = s->order.pend; p; p = p->next)
		if (p->sf == f) {
			n += p->state != PEND_WAIT && p->state != PEND_READY;
			last = p;
		}
	/* the last one will be left out if nothing comes between */
	return n < ON_THEIR_WAY || (n == ON_THEIR_WAY && !last->next && !last->aside);
}

/* ---- which version is left out ---- */

/* Is n nothing but the beginning of p, the next in the order? Not the first version of a file,
 * whose seq says when the file began; nor what may be held for other hosts. */
static bool is_beginning(const struct staging *s, const struct pend *n, const struct pend *p)
{
	const struct rec *a = &n->r, *b = &p->r;
	uint32_t odd = REC_ABSENT | REC_FSYNCED | REC_LENT | REC_FORCED;

	if (a->type != REC_SEAL || b->type != REC_SEAL || n->sf != p->sf || a->node != b->node ||
	    n->state != PEND_QUEUED || n->snapshot || n->aside || n->dead_at || n->must ||
	    n->tries.n || n->lost || n->early || n->begun || n->accepted != a->seq ||
	    n->sf->spilled)
		return false;
	if (!(a->flags & REC_SHADOW) || ((a->flags | b->flags) & odd) || a->size > b->size)
		return false;
	if (s->o.hold.patience_ms && s->o.hold.commits(b->name))
		return false;
	return a->dir == b->dir && !strcmp(a->name, b->name) && rec_has_one_name(a) &&
	       rec_has_one_name(b);
}

/* The blocks of n, left out, are for the next version, so that it need not allocate as many. */
static void keep_blocks(struct pend *n)
{
	struct staged *f = n->sf;

	if (f->io.tmp_id || n->tmp_fd < 0 || f->space.checked || n->promised)
		return;
	f->io.tmp_id = n->tmp_id;
	f->io.tmp_fd = n->tmp_fd;
	f->io.tmp_direct = n->direct;
	f->io.tmp_size = n->r.size;
	n->tmp_id = 0;
	n->tmp_fd = -1;
}

void append_swap_blocks(struct staged *f, struct pend *p)
{
	uint64_t id = f->io.tmp_id;
	int fd = f->io.tmp_fd;
	bool direct = f->io.tmp_direct;

	if (!id || f->io.early || p->early || p->tmp_fd < 0)
		return;
	f->io.tmp_id = p->tmp_id;
	f->io.tmp_fd = p->tmp_fd;
	f->io.tmp_direct = p->direct;
	f->io.tmp_size = p->r.size;
	p->tmp_id = id;
	p->tmp_fd = fd;
	p->direct = direct;
	uint64_t promised = f->io.promised;
	f->io.promised = p->promised;
	p->promised = promised;
}

bool append_has_blocks(struct staged *f, const struct stat *st)
{
	uint64_t size = (uint64_t)st->st_size, has = f->io.tmp_size;
	/* direct writes are padded, so the blocks are */
	uint64_t end = (has + IO_ALIGN - 1) & ~(uint64_t)(IO_ALIGN - 1);

	if (!f->io.tmp_id || !f->io.fixed || f->io.early || f->space.checked || size < has ||
	    size > end || has <= STAGING_SMALL || has_holes(st))
		return false;
	f->io.tmp_size = size;
	return true;
}

/* locked: f->io.lock is held */
static void leave_out(struct staging *s, struct pend *n, bool locked)
{
	struct staged *f = n->sf;

	persist_unqueue(s, n);
	if (locked || !pthread_mutex_trylock(&f->io.lock)) {
		keep_blocks(n);
		if (!locked)
			pthread_mutex_unlock(&f->io.lock);
	}
	trash_put(s, n->tmp_id, n->tmp_fd);
	n->tmp_fd = -1;
	reserve_kept(s, &n->promised);
	source_forget(s, &n->clone.source);
	chunks_forget(s, &n->chunks);
	dirs_unref(s, n->r.dir);
	dirs_unref(s, n->r.dir2);
	s->order.n_pend--;
	s->st.versions_left_out++;
	f->n_seals--;
	sf_put_locked(s, f);
	pend_free(n);
}

void append_sealed(struct staging *s, struct pend *p, bool locked)
{
	struct pend **link = s->order.head, *n;

	if (p->sf->n_seals < 2 || p->aside)
		return;
	while ((n = *link) && n->next != p)
		link = &n->next;
	if (!n || !is_beginning(s, n, p))
		return;
	*link = p;
	p->from = n->from;
	p->again |= n->again;
	p->start_ns = n->start_ns;
	leave_out(s, n, locked);
}

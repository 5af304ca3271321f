/* SPDX-License-Identifier: MIT
 * How much of the order does the store still have? The head, in memory, has the number applied. A
 * filesystem that shuts down (or has an error in its journal) and is mounted again has lost what it
 * had not synced, while staging has all of it. So the store has a mark (io/store/mark.c), set
 * after each change and kept in order with the changes by the filesystem's own journal. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <stdio.h>

/* Identifies this log through all its rotations: the number with which its head was created
 * (log.c). */
uint64_t log_id(const struct staging *s)
{
	return s->head->segment >> 20;
}

uint64_t staging_log_id(const struct staging *s)
{
	return log_id(s);
}

int mark_set(struct staging *s, uint64_t seq)
{
	unsigned given = 0;
	int err = 0;

	for (unsigned tries = 0; tries < MAX_ATTEMPTS; tries++) {
		err = io_mark_set(s->o.store, log_id(s), seq);
		if (!err || (no_space(err) && !reserve_give(s, NULL, err, &given)))
			break;
	}
	return err;
}

int mark_begin(struct staging *s)
{
	int err = 0;

	for (unsigned tries = 0; !s->drain.marked && !is_lack(err) && tries < MAX_ATTEMPTS;
	     tries++) {
		err = mark_set(s, s->head->applied);
		if (!err)
			err = io_mark_sync(s->o.store);
		s->drain.marked = !err;
	}
	return err;
}

void mark_recall(struct staging *s)
{
	uint64_t applied = s->head->applied, durable = s->head->durable, seq;
	char text[160];

	/* the change after `applied` may have been made before the worker died. Durable changes are
	 * there: the mark itself is set before the sync and may not be covered by it. */
	if (io_mark_get(s->o.store, log_id(s), applied + 1, &seq))
		return; /* an older version's, or unreadable: use the head */
	if (seq < durable)
		seq = durable;
	if (seq < applied) {
		snprintf(text, sizeof(text),
			 LEVEL_WARNING
			 "the store's filesystem shut down and has lost %llu published changes; "
			 "they are published again",
			 (unsigned long long)(applied - seq));
		s->o.notice(s->o.ctx, text);
		s->head->recalled = s->head->segment;
	}
	atomic_store(&s->head->applied, seq);
}

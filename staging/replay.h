/* SPDX-License-Identifier: MIT
 * After a restart: what the log tells of is there again, and what is left over goes. */
#ifndef CAIRN_STAGING_REPLAY_H
#define CAIRN_STAGING_REPLAY_H

#include "staging/drain/drain.h"

/* flushed.c */
void replay_flush(struct staging *s, const struct rec *r);	/* of a replay */
void replay_flushed(struct staging *s);	/* closes answered whose RELEASE was lost become seals */
void flushed_forget(struct staging *s);

/* sweep.c */
void kept_close(struct staging *s);	/* no thread is left; the files stay */
void sweep_tmp_all(struct staging *s);	/* a clean end: nothing in tmp/ is needed */
void sweep_note(struct staging *s, const struct rec *r);
void sweep_closed(struct staging *s);	/* all were noted; takes s->lock */

#endif

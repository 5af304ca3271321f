/* SPDX-License-Identifier: MIT
 * After a restart: restores what the log describes, and removes what is left over. */
#ifndef CAIRN_STAGING_REPLAY_H
#define CAIRN_STAGING_REPLAY_H

#include "staging/drain/drain.h"

/* replay.c: a notice */
void tell_missing(struct staging *s);

/* flushed.c */
void replay_flush(struct staging *s, const struct rec *r); /* during a replay */
/* answered closes whose RELEASE was lost become seals */
void replay_flushed(struct staging *s);
void flushed_forget(struct staging *s);

/* sweep.c */
void kept_close(struct staging *s); /* no thread runs; the files stay */
void sweep_tmp_all(struct staging *s); /* a clean end: nothing in tmp/ is needed */
void sweep_note(struct staging *s, const struct rec *r);
void sweep_closed(struct staging *s); /* all were noted; takes s->lock */

#endif

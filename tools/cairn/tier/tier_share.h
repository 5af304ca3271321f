/* SPDX-License-Identifier: MIT
 *
 * A checkpoint whose files several hosts send: who sends what, and what they say of it in the tier.
 */
#ifndef CAIRN_TIER_SHARE_H
#define CAIRN_TIER_SHARE_H

#include "tier_push.h"

/* A process that was stopped for longer may have been taken for dead: it does not commit. */
#define SHARE_PAUSE_S (IO_HOST_SILENT_S / 2)

/* Sets p->committer, p->record and, of the files, `other`. p->hosts is not NULL. */
void share_divide(struct push *p);
/* Does this process commit it? */
bool share_commits(const struct push *p);
/* Has it files that others send? */
bool share_others(const struct push *p);
/* The name of what a host says of its part. */
void share_record(const char *host, char out[SHARE_RECORD_LEN]);
/* Does m list the file with this size and time, and a checksum? NULL: no. */
const struct tier_file *share_find(const struct manifest *m, const struct item *it);
/* Takes the checksums of what other hosts have sent; sets p->missing. 0 or -errno: told. */
int share_take_others(struct push *p);

bool is_listed_as(const struct tier_file *f, const struct item *it);

#endif

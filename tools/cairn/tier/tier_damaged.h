/* SPDX-License-Identifier: MIT
 *
 * Which checkpoints of a mount's tier are damaged, as a fetch found: in the follower's directory of
 * the store, so that the next mount knows, too. It counts as long as the checkpoint has the
 * manifest of that fetch. f->own is open.
 */
#ifndef CAIRN_TIER_DAMAGED_H
#define CAIRN_TIER_DAMAGED_H

#include "tier_follow.h"

/* why: one line. 0 or -errno. */
int damaged_note(const struct follow *f, const struct manifest *m, const char *why);
/* It was fetched. */
void damaged_forget(const struct follow *f, const char *path);
/* What was noted of another manifest is forgotten. */
bool damaged_is_noted(const struct follow *f, const struct manifest *m);

#endif

/* SPDX-License-Identifier: MIT
 * Initializes records: the fields that all of one type share.
 */
#include "fs/tree/inside.h"

struct rec rec_new(uint32_t type)
{
	struct rec r = {.type = type, .unique = current.unique};
	clock_gettime(CLOCK_REALTIME, &r.when);
	return r;
}

struct rec rec_staged(const struct node *n, struct torn_range *torn)
{
	struct rec r = rec_new(REC_STAGED);
	r.unique = 0;
	r.node = n->id;
	r.sf = staged_id(n->sf);
	r.name = n->names ? n->names->name : "";
	r.dir = n->names ? n->names->dir->id : 0;
	r.flags = (staged_spilled(n->sf) ? REC_SPILLED : 0) | (staged_huge(n->sf) ? REC_HUGE : 0);
	bool loan;
	r.fh = staged_lender(n->sf, &loan);
	r.flags |= loan ? REC_LENT : 0;
	staged_torn_out(n->sf, &r, torn);
	return r;
}

void rec_aim(struct fs *fs, struct rec *r, struct node *n)
{
	struct dentry *d = n->names;
	while (d && d->name_next && !d->ordered)
		d = d->name_next;
	r->flags = n == fs->tree.root || (d && d->ordered) ? 0 : REC_ABSENT;
	r->dir = d ? d->dir->id : ROOT_ID;
	r->name = d ? d->name : "";
}

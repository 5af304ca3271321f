/* SPDX-License-Identifier: MIT
 *
 * Each host sends the files that it published. The one that published what commits the checkpoint
 * commits it, when the others' records (TIER_PART) list all of theirs as they are in the store.
 */
#include "tier_share.h"

#include <string.h>

bool is_listed_as(const struct tier_file *f, const struct item *it)
{
	/* a program may have set the time back that it had: then only the bytes tell */
	return f && f->mtime.tv_sec == it->f.mtime.tv_sec &&
	       f->mtime.tv_nsec == it->f.mtime.tv_nsec &&
	       (!*f->sum || !*it->stored || !strcmp(f->sum, it->stored));
}

const struct tier_file *share_find(const struct manifest *m, const struct item *it)
{
	const struct tier_file *f = manifest_find(m, it->f.path);

	/* it may be listed twice, of two saves */
	for (; f && f > m->v && !strcmp(f[-1].path, it->f.path); f--)
		;
	for (; f && f < m->v + m->n && !strcmp(f->path, it->f.path); f++)
		if (*f->sum && f->size == it->f.size && is_listed_as(f, it))
			return f;
	return NULL;
}

void share_record(const char *host, char out[SHARE_RECORD_LEN])
{
	snprintf(out, SHARE_RECORD_LEN, TIER_PART, host);
}

void share_divide(struct push *p)
{
	const struct tier_host *last = p->v[p->n - 1].owner;

	p->committer = last ? last : tier_hosts_first(p->hosts);
	for (size_t i = 0; i < p->n; i++) {
		const struct tier_host *who = p->v[i].owner ? p->v[i].owner : p->committer;

		p->v[i].other = who != p->hosts->own;
	}
	if (!share_commits(p))
		share_record(p->hosts->own->name, p->record);
}

bool share_commits(const struct push *p)
{
	return !p->hosts || p->committer == p->hosts->own;
}

bool share_others(const struct push *p)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->v[i].other)
			return true;
	return false;
}

/* The host's files, of which its record in the tier tells, and which are there. */
static int take_of(struct push *p, const struct tier_host *h)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	char name[SHARE_RECORD_LEN];
	int err;

	share_record(h->name, name);
	err = manifest_load(p->t, p->s.v[p->at].path, name, &m);
	if (err && err != -ENOENT && err != -EBADMSG)
		return tier_told(p->why, err, "%s/%s: %s", p->t->name, p->s.v[p->at].path,
				 tier_strerror(p->t, err));
	for (size_t i = 0; i < p->n; i++) {
		struct item *it = &p->v[i];
		const struct tier_file *f = it->owner == h ? share_find(&m, it) : NULL;
		struct stat st;

		if (it->owner != h)
			continue;
		f = f ? f : share_find(&p->old, it);
		if (f && !tier_stat(p->t, it->f.path, &st) && (uint64_t)st.st_size == f->size) {
			manifest_take_sums(&it->f, f);
			continue;
		}
		p->missing++;
		p->missing_of = h->name;
	}
	return 0;
}

int share_take_others(struct push *p)
{
	int err = 0;

	p->missing = 0;
	for (size_t i = 0; !err && p->hosts && i < p->hosts->n; i++) {
		const struct tier_host *h = &p->hosts->v[i];
		bool any = false;

		for (size_t k = 0; h != p->hosts->own && k < p->n && !any; k++)
			any = p->v[k].owner == h;
		if (any)
			err = take_of(p, h);
	}
	return err;
}

/* SPDX-License-Identifier: MIT
 *
 * A follower that has sent everything asks the tier for nothing, and a bucket can be emptied
 * meanwhile. So the manifests are listed again and again, and for who waits for a checkpoint
 * (`cairn wait --tier`): one that has none any more is to be sent. A tier that was away may be
 * another one when it is back: then each checkpoint is compared with it, as by a new follower.
 */
#include "tier_follow.h"

#include <string.h>
#include <time.h>

#define LIST_S 600.0
#define LIST_SHARE 100.0 /* at most this part of the time */
#define LIST_ASKED_SHARE 10.0 /* of those that somebody asked for */
#define HURRY_S 2.0 /* between two tries of which the second is for who waits */

static unsigned asked(const struct follow *f)
{
	return f->shared ? atomic_load(&f->shared->asked) : 0;
}

bool there_is_asked(const struct follow *f)
{
	double now = now_s();

	return asked(f) != f->there.asked && now >= f->there.not_before && now >= f->tries.retry_at;
}

bool there_hurries(const struct follow *f)
{
	double now = now_s();

	return now < f->tries.retry_at && now >= f->tries.hurry_at && asked(f) != f->tries.asked;
}

void there_try(struct follow *f)
{
	f->tries.asked = asked(f);
	f->tries.retry_at = 0;
}

void there_tried(struct follow *f, double begun)
{
	double pause = now_s() - begun + f->look_s * LIST_ASKED_SHARE;

	f->tries.hurry_at = now_s() + (pause > HURRY_S ? pause : HURRY_S);
}

bool there_is_due(const struct follow *f)
{
	return now_s() >= f->there.at || there_is_asked(f);
}

void there_failed(struct follow *f, bool away)
{
	f->there.at = 0;
	f->there.was_away |= away;
	if (away)
		f->report.listed_ms = 0;
	f->changed = true;
}

static void compare(struct follow *f, const struct names *names)
{
	for (size_t i = 0; i < f->n; i++) {
		struct known *k = &f->v[i];
		bool there = manifest_is_listed(names, k->path);

		if (!there)
			follow_set_sent_before(f, k, false);
		if (k->state != KNOWN_SENT || (there && !f->there.was_away))
			continue;
		k->state = KNOWN_WAITING; /* the push judges it again */
		f->there.mark_at = 0; /* the mark may be gone, too */
		k->since_s = (uint64_t)time(NULL);
		f->changed = true;
	}
}

/* Nothing is written: it may be the place where its filesystem is not mounted yet. */
static int read_list(struct follow *f, int store, struct names *out, struct tier_why *w)
{
	CLEANUP_TIER struct tier t = TIER_NONE;
	int err = follow_check_tier(f, w);

	*out = (struct names){0};
	if (!err)
		err = tier_open_listed(&t, f->tier, w);
	if (err == -ENOENT && t.root >= 0)
		return 0; /* nothing was pushed to it yet */
	if (err)
		return err;
	tier_limit(&t, &f->pace, &follow_stop);
	err = manifest_list(&t, TIER_MANIFEST, out);
	if (!err)
		stores_other(&t, store, f->report.other, sizeof(f->report.other));
	return err ? tier_told(w, err, "%s: %s", f->tier, tier_strerror(&t, err)) : 0;
}

int there_list(struct follow *f, int store, struct tier_why *w)
{
	unsigned n = asked(f);
	double begun = now_s(), took;
	struct timespec now;
	struct names names;
	int err;

	clock_gettime(CLOCK_REALTIME, &now);
	err = read_list(f, store, &names, w);
	if (err) {
		there_failed(f, true);
		return err;
	}
	compare(f, &names);
	names_free(&names);
	took = now_s() - begun;
	f->there = (struct there){.at = now_s() +
					(took * LIST_SHARE > LIST_S ? took * LIST_SHARE : LIST_S),
				  .not_before = now_s() + (took + f->look_s) * LIST_ASKED_SHARE,
				  .asked = n,
				  .mark_at = f->there.mark_at};
	f->report.listed_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	return 0;
}

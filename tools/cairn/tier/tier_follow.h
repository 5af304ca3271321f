/* SPDX-License-Identifier: MIT
 *
 * cairn tier push --follow: the files of it share this.
 */
#ifndef CAIRN_TIER_FOLLOW_H
#define CAIRN_TIER_FOLLOW_H

#include "io/tier.h"
#include "tier_push.h"

#include "tools/tier/pace.h"

/* The files of a checkpoint: equal prints, equal files, but for what has the same size and time. */
struct print {
	uint64_t hash, bytes, files;
	uint64_t beside; /* of the hash, what lies beside: ckpt_is_beside() */
	/* of the inodes and when they changed: what is written anew has another one. The mount
	 * shows others than the store */
	uint64_t inodes;
	bool others; /* there are files that are not its, and not sent */
};

enum known_state {
	KNOWN_NEW, /* not complete, as far as is known */
	KNOWN_WAITING, /* complete, and not known to be in the tier */
	KNOWN_SENT, /* in the tier as it is here */
};

struct known { /* a checkpoint of the store */
	char *path;
	struct print print;
	enum known_state state;
	bool seen; /* by the present look */
	/* With this print, by this follower or an earlier one, as far as that was remembered. It
	 * says only what is pushed first. */
	bool sent_before;
	uint64_t since_s; /* when it was seen to be complete; of KNOWN_NEW: changed last */
	char why[CKPT_UNSAFE_TEXT]; /* of KNOWN_NEW: with what is missing */
	char failed[300]; /* with fails: why the last push did; "": not told */
	unsigned fails;
	bool fails_there; /* nothing of it is the cause, as far as is known */
	double retry_at; /* by now_s() */
	double beside_s; /* the next wait, when only what lies beside changes */
	double waits_since; /* for another host; 0: it does not */
};

struct sent_file { /* own/sent.json */
	bool read, changed; /* changed: it is to be written */
	double write_at; /* not before, by now_s() */
};

struct there { /* what the tier has (tier_there.c) */
	double at; /* when it is listed again, by now_s() */
	double not_before; /* whoever asks */
	unsigned asked; /* of tier_shared, when it was listed last */
	bool was_away; /* since then: it may have lost anything */
	double mark_at; /* when it is told again who writes to it */
};

struct tries { /* of the tier */
	unsigned fails; /* passes, one after the other */
	double retry_at; /* by now_s() */
	double hurry_at; /* the same for who has asked since */
	unsigned asked; /* of tier_shared, before the last one */
};

struct follow {
	const char *store, *tier;
	const struct tier_opts *o;
	const char *for_mount; /* this host's name in the store; NULL: started by a person */
	bool on_mount;
	struct known *v; /* sorted by path */
	size_t n;
	struct pace pace;

	struct tries tries;
	int events; /* inotify; -1: none */

	struct tier_report report;
	struct tier_shared *shared; /* NULL: none */
	struct sent_file sent;
	struct there there;
	bool cut; /* the pass ended before all that was due had its turn */
	bool keep_due, keep_fails; /* keep_due: something may be removed */
	double keep_at; /* when that is tried again */
	bool changed, ended; /* changed: status.json is to be written */
	uint64_t now; /* bytes of report.sending that are there */
	double look_s; /* how long the last look took, without what it sent */
	double rate_at;
	uint64_t rate_bytes;
	char said[sizeof(((struct tier_report *)0)->error)];

	char id[33]; /* of the tier, if it is a directory; "" = unknown */
	/* STORE/.cairn/<host>, and tier/ there; -1: not open, or not for a mount */
	int own_host, own;
};

struct known *follow_find(const struct follow *f, const char *path);
void follow_sort(struct follow *f); /* f->v, for follow_find() */
/* Of a checkpoint that is open. 0 or -errno. */
int follow_print(const struct ckpt *c, struct print *out);

/* Removes through the mount what the tier has and o->keep does not keep (tier_keep.c), of p->s as
 * it was looked at last. A failure is in *w. */
int follow_keep(struct follow *f, struct push *p, struct tier_why *w);

/* ---- is what was sent still there? (tier_there.c) ----------------------------------- */

extern volatile sig_atomic_t follow_stop;
bool there_is_due(const struct follow *f);
bool there_is_asked(const struct follow *f);
/* Somebody waits: it is tried again at once, and not only after the pause. */
bool there_hurries(const struct follow *f);
void there_try(struct follow *f); /* before each try */
void there_tried(struct follow *f, double begun);
/* Lists the tier: what it has no longer, and after it was away all, is to be pushed. */
int there_list(struct follow *f, int store, struct tier_why *w);
/* It failed, of which nothing of a checkpoint is the cause. away: it could not be opened. */
void there_failed(struct follow *f, bool away);
void follow_set_sent_before(struct follow *f, struct known *k, bool sent);

/* ---- what is the follower's own in the store (tier_state.c) ------------------------- */

/* The page at TIER_SHARED_FD; NULL: none. */
struct tier_shared *follow_shared(void);
/* Makes and opens f->own; store: a descriptor of the store. Nothing to do without for_mount. */
int follow_open_own(struct follow *f, int store);
void follow_close_own(struct follow *f);
/* Writes own/NAME, whole. 0 or -errno. */
int follow_write_own(const struct follow *f, const char *name, const char *text, size_t len,
		     bool durably);
/* Writes own/status.json, whole. What cannot be written is left out. */
void follow_write(struct follow *f);
/* Adds to f->v, once, what earlier followers remembered: all of it, or nothing if it cannot be
 * read, or is of another tier. */
void follow_recall(struct follow *f);
/* Writes sent.json, durably, if it has changed; now: however short ago it was written. If that
 * fails what was there stays, and it is tried again. */
void follow_remember(struct follow *f, bool now);
/* Is it the one that was pushed to before? A filesystem that is not mounted has another directory
 * in its place, which is left as it is. Before the tier is opened. */
int follow_check_tier(struct follow *f, struct tier_why *w);
/* So that this can be told of it later. */
int follow_mark_tier(struct follow *f, struct tier *t, struct tier_why *w);

#endif

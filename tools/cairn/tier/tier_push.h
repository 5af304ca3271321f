/* SPDX-License-Identifier: MIT
 *
 * One push of one checkpoint, for `cairn tier push` (tier_push.c) and for what repeats it
 * (tier_follow.c).
 */
#ifndef CAIRN_TIER_PUSH_H
#define CAIRN_TIER_PUSH_H

#include "tier.h"
#include "tier_hosts.h"

struct item { /* a file of the checkpoint */
	struct tier_file f;
	struct stat st;
	char stored[IO_CHECKSUM_LEN]; /* push_stored_sum() */
	bool commits, send;
	bool beside; /* ckpt_is_beside() */
	bool left; /* it lies beside, and was changed while it was read: not in the manifest */
	bool other; /* another host sends it */
	const struct tier_host *owner; /* NULL: nobody's, or not known */
	struct tier_temp temp;
};

#define SHARE_RECORD_LEN (sizeof(((struct tier_host *)0)->name) + 16)

struct push {
	struct tier *t;
	struct ckpt_search s;
	const struct tier_opts *o;
	const struct tier_hosts *hosts; /* that share the work; NULL: this process does all */
	struct progress bar;
	struct json_out j;
	uint64_t bytes; /* sent, of all checkpoints */
	size_t n_sent, n_there, n_failed;

	/* of one checkpoint */
	size_t at; /* in s.v */
	struct item *v;
	size_t n;
	enum ckpt_format format; /* CKPT_NONE: of one file */
	bool loose; /* ckpt_is_loose(); not of one file */
	struct names inside; /* ckpt_inside() */
	const struct tier_host *committer;
	char record[SHARE_RECORD_LEN]; /* what is begun, in the tier: TIER_BEGUN, or a host's */
	size_t missing; /* files that other hosts have not sent */
	const char *missing_of; /* one of those hosts */
	struct manifest old, begun;
	struct manifest committers; /* begun.json, where another host commits */
	bool had_manifest, any_ours; /* any_ours: what is ours cannot be read */
	uint64_t sent;
	struct tier_why *why;
	void (*seen)(struct push *p,
		     uint64_t bytes); /* of each part that was copied; may be NULL */
	void *ctx; /* for seen */
};

/* Sends the checkpoint p->s.v[p->at] to p->t, as far as it is not there. 1: sent; 0: it was there;
 * -EAGAIN: it is not complete, or not durable; -EINPROGRESS: another host has not done its part
 * yet; or -errno: p->why has the reason. push_drop() after each. */
int push_one(struct push *p);
void push_drop(struct push *p);
/* The checksum that the store's file was persisted with; "": not known. */
void push_stored_sum(int fd, char out[IO_CHECKSUM_LEN]);

/* ---- who writes to it (tier_stores.c) ---------------------------------------------------- */

/* Says in the tier that this store does. host: NULL: the machine's name. */
void stores_mark(struct tier *t, int store, const char *path, const char *host);
/* Another one that did, of late; "": none is known. */
void stores_other(const struct tier *t, int store, char *out, size_t room);

#endif

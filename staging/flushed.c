/* SPDX-License-Identifier: MIT
 * During a replay: an answered FLUSH is a close that counts, even if the RELEASE that would
 * have sealed the file was lost. It is kept as the SEAL that it would have become. */
#include "staging/replay.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static void flushed_drop(struct staging *s, size_t i)
{
	free(s->sweep.flushed[i].bytes);
	/* the order of closes is kept */
	memmove(&s->sweep.flushed[i], &s->sweep.flushed[i + 1],
		(--s->sweep.n_flushed - i) * sizeof(s->sweep.flushed[0]));
}

static void *flushed_bytes(struct staging *s, const struct rec *r, size_t *len)
{
	ssize_t n = rec_encode(r, s->log.buf, LOG_BUF);
	void *bytes = n > 0 ? malloc((size_t)n) : NULL;
	if (bytes)
		memcpy(bytes, s->log.buf, *len = (size_t)n);
	return bytes;
}

/* The name after r of a name of f's node. False: it is removed. */
static bool name_after(const struct rec *f, const struct rec *r, struct rec_name *n)
{
	bool from = n->dir == r->dir && !strcmp(n->name, r->name);
	bool onto = r->type == REC_RENAME && n->dir == r->dir2 && !strcmp(n->name, r->name2);

	if (r->type == REC_RENAME && from && r->node == f->node)
		*n = (struct rec_name){.dir = r->dir2, .name = r->name2};
	return !(r->type == REC_UNLINK && from) && !(onto && r->node != f->node);
}

/* f as if the close came after r, which changed its file. *data is the caller's. -ENOENT:
 * it has no name any more. */
static int flushed_after(struct rec *f, const struct rec *r, void **data)
{
	/* an upper bound */
	struct rec_name name, *names = calloc(f->data_len + 2, sizeof(*names));
	struct rec_pair pair, *pairs = calloc(f->data_len + 2, sizeof(*pairs));
	unsigned n_names = 0, n_pairs = 0;
	bool xattr = r->type == REC_XATTR || r->type == REC_XATTR_DEL;
	uint32_t pos = 0;
	int kind;

	while (names && pairs &&
	       (kind = rec_unpack(f->data, f->data_len, &pos, &name, &pair)) > 0) {
		if (kind == 1 && name_after(f, r, &name))
			names[n_names++] = name;
		else if (kind == 2 && !(xattr && !strcmp(pair.key, r->name2)))
			pairs[n_pairs++] = pair;
	}
	if (r->type == REC_XATTR)
		pairs[n_pairs++] =
			(struct rec_pair){.key = r->name2, .val = r->data, .len = r->data_len};
	if (r->type == REC_LINK)
		names[n_names++] = (struct rec_name){.dir = r->dir2, .name = r->name2};
	if (r->type == REC_ATTR) {
		f->mode = r->mask & REC_MODE ? r->mode : f->mode;
		f->uid = r->mask & REC_UID ? r->uid : f->uid;
		f->gid = r->mask & REC_GID ? r->gid : f->gid;
	}
	ssize_t len = !names || !pairs ? -ENOMEM
		      : n_names	       ? rec_pack(names, n_names, pairs, n_pairs, data)
				       : -ENOENT;
	if (len >= 0) {
		f->dir = names[0].dir;
		f->name = names[0].name;
		f->data = *data;
		f->data_len = (uint32_t)len;
	}
	free(names);
	free(pairs);
	return len < 0 ? (int)len : 0;
}

/* A file that was closed by one and is still written by another process was renamed, unlinked, ...:
 * under its old name that close could overwrite what has the name since. */
static void replay_flushed_change(struct staging *s, const struct rec *r)
{
	bool moves = r->type == REC_RENAME && !(r->flags & REC_DIR);
	for (size_t i = s->sweep.n_flushed; i-- > 0;) {
		struct flushed *f = &s->sweep.flushed[i];
		struct rec old;
		size_t used;
		void *data = NULL, *bytes;
		if (f->node != r->node && !moves)
			continue;
		if (rec_decode(f->bytes, f->len, &old, &used))
			continue;
		int err = flushed_after(&old, r, &data);
		if (!err && (bytes = flushed_bytes(s, &old, &used))) {
			free(f->bytes);
			f->bytes = bytes;
			f->len = used;
		} else if (err == -ENOENT) {
			flushed_drop(s, i);
		}
		free(data);
	}
}

/* The file that f closes is in the store's tmp/ now. */
static void flushed_spilled(struct staging *s, struct flushed *f)
{
	struct rec r;
	size_t used;

	if (rec_decode(f->bytes, f->len, &r, &used))
		return;
	r.flags = (r.flags | REC_SPILLED) & ~(uint32_t)REC_HUGE;
	void *bytes = flushed_bytes(s, &r, &used);
	if (bytes) {
		free(f->bytes);
		f->bytes = bytes;
		f->len = used;
	}
}

/* Remembers the last FLUSHED record of a staged file until its seal is seen, or until it is
 * obsolete: another writer joins in, unless it truncates. */
void replay_flush(struct staging *s, const struct rec *r)
{
	size_t i = 0;
	bool spills =
		r->type == REC_STAGED && (r->flags & (REC_SPILLED | REC_FAILED)) == REC_SPILLED;
	bool again = r->type == REC_STAGED ||
		     (r->type == REC_OPEN && (r->flags & REC_WRITE) && (r->mask & O_TRUNC));
	if (r->type >= REC_UNLINK && r->type < REC_ORDERED_END) {
		replay_flushed_change(s, r);
		return;
	}
	if (!r->sf ||
	    (r->type != REC_FLUSHED && r->type != REC_SEAL && r->type != REC_UNSTAGED && !again))
		return;
	while (i < s->sweep.n_flushed && s->sweep.flushed[i].sf != r->sf)
		i++;
	if (i < s->sweep.n_flushed && spills)
		flushed_spilled(s, &s->sweep.flushed[i]);
	else if (i < s->sweep.n_flushed)
		flushed_drop(s, i);
	if (r->type != REC_FLUSHED)
		return;
	struct flushed *all = realloc(s->sweep.flushed, (s->sweep.n_flushed + 1) * sizeof(*all));
	size_t len;
	void *bytes = all ? flushed_bytes(s, r, &len) : NULL;
	if (all)
		s->sweep.flushed = all;
	if (bytes)
		all[s->sweep.n_flushed++] =
			(struct flushed){.sf = r->sf, .node = r->node, .bytes = bytes, .len = len};
}

/* The connection is gone. An answered close counts, although the RELEASE that
 * would have sealed the file was lost with the process. */
void replay_flushed(struct staging *s)
{
	for (size_t i = 0; i < s->sweep.n_flushed; i++) {
		struct rec r;
		struct staged *sf;
		size_t used;
		if (rec_decode(s->sweep.flushed[i].bytes, s->sweep.flushed[i].len, &r, &used) ||
		    staged_recover(s, &r, &sf))
			continue;
		if (sf->spoiled) { /* what tmp/ has goes to lost+found */
			tell_missing(s);
		} else {
			r.type = REC_SEAL;
			r.unique = 0;
			/* if it fails, it is persisted from both its places */
			staged_finish(sf);
			staging_seal(s, sf, &r, true);
		}
		staged_unref(sf);
	}
	flushed_forget(s);
}

void flushed_forget(struct staging *s)
{
	for (size_t i = 0; i < s->sweep.n_flushed; i++)
		free(s->sweep.flushed[i].bytes);
	free(s->sweep.flushed);
	s->sweep.flushed = NULL;
	s->sweep.n_flushed = 0;
}

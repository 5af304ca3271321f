/* SPDX-License-Identifier: MIT
 * Replay: the log is read from its beginning, and its state is restored. */
#include "io/full.h"
#include "staging/memory/memory.h"
#include "staging/replay.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What the store already has includes moved directories; later records refer to them. */
static void replay_dirs(struct staging *s, const struct rec *r)
{
	if (r->type == REC_NODE && (r->flags & REC_SEALED) && S_ISDIR(r->mode))
		staging_dir_learn(s, r->node, r->dir, r->name);
	else if (r->seq && staging_is_applied(s, r->seq)) {
		if (r->type == REC_MKDIR)
			staging_dir_learn(s, r->node, r->dir, r->name);
		else if (r->type == REC_RENAME && (r->flags & REC_DIR) && !(r->flags & REC_ABSENT))
			dirs_moved(s, r->node, r->dir2, r->name2);
		else if (r->type == REC_RMDIR)
			dirs_gone(s, r->node2);
	}
}

/* As its seal counted them: the log has only its size. s->lock held */
static uint64_t sealed_blocks(struct staged *f)
{
	bool open = f->fd >= 0;
	struct stat st;
	/* a closed file of the store is not asked: it may answer late */
	bool seen = (open || !f->spilled) && !sf_stat(f, &st);

	if (!open && f->fd >= 0) {
		close(f->fd);
		f->fd = -1;
	}
	return seen ? sf_blocks(f, &st) : (f->last.size + 511) / 512;
}

/* s->lock held */
static void replay_sealed(struct staging *s, struct staged *f, const struct rec *r,
			  enum staged_state st)
{
	f->last.size = r->size;
	f->last.atime = r->atime;
	f->last.mtime = r->mtime;
	f->last.ctime = r->when;
	f->last.blocks = sealed_blocks(f);
	f->last.once = true;
	if (r->flags & REC_FSYNCED)
		return; /* it was written again */
	sf_set_state(s, f, st);
	/* else it was in memory, and what is in tmp/ now is a later version */
	if (st == STAGED_DURABLE && f->spilled && r->flags & REC_SPILLED)
		f->published = true;
}

/* Staged files whose state the log changes outside the order. */
static void replay_staged(struct staging *s, const struct rec *r)
{
	LOCK_SCOPE(&s->lock);
	struct staged *f = r->sf ? sf_find(s, r->sf) : NULL;
	if (!f)
		return;
	if (r->type == REC_FINAL ||
	    (r->type == REC_SEAL && !(r->flags & (REC_MAPPED | REC_FSYNCED))))
		sf_set_late(s, f, false);
	if (r->type == REC_SEAL && staging_is_applied(s, r->seq)) {
		if (!f->n_seals)
			replay_sealed(s, f, r, STAGED_DURABLE);
		if (!staging_is_durable(s, r->seq)) /* a later record may remove its node */
			sf_hold(f);
		if (r->flags & REC_MAPPED) /* perhaps published before its mapping went */
			sf_set_late(s, f, true);
	} else if (r->type == REC_STAGED && (r->flags & REC_SEALED)) {
		replay_sealed(s, f, r, STAGED_DURABLE);
	} else if (r->type == REC_STAGED) {
		if (!f->spilled && (r->flags & REC_SPILLED))
			sf_replay_spill(s, f);
		else if (r->flags & REC_SPILLED)
			f->spoiled = 0;
		bool sealed = f->state != STAGED_OPEN;
		sf_set_state(s, f, STAGED_OPEN);
		if (sealed)
			append_protect(f);
	}
}

void tell_missing(struct staging *s)
{
	s->o.notice(s->o.ctx,
		    LEVEL_ERROR "staging: a record's staged file is missing; that version is "
				"lost and the one before it stays in the store");
}

/* A SEAL without its staged file keeps its place in the order. A spilled file that was renamed
 * just before the kill is in the store, but perhaps not under all its names. */
static int replay_missing(struct staging *s, const struct rec *r, bool lost)
{
	uint64_t place = staging_place_of(s, r->seq);
	bool there = !lost && (r->flags & REC_SPILLED) && place == s->aside.first_seq;
	/* nothing is published: the next worker tries again */
	bool away = io_store_is_detached(s->o.store);
	struct rec absent = *r;
	struct pend *p;

	if (!there && !away)
		tell_missing(s);
	if (!there) {
		absent.type = REC_ATTR;
		absent.flags |= REC_ABSENT;
	}
	LOCK_SCOPE(&s->lock);
	p = pend_new(&absent);
	if (!p)
		return -ENOMEM;
	pend_add(s, p, NULL);
	p->again = p->begun = there;
	if (place != r->seq)
		aside_replayed(s);
	return 0;
}

/* A spilled file is renamed into place: while it is in tmp/, nothing of its version is applied. */
static bool is_in_tmp(const struct rec *r, const struct staged *sf)
{
	return sf && sf->spilled && sf->fd >= 0 &&
	       (r->flags & (REC_SPILLED | REC_FSYNCED)) == REC_SPILLED;
}

static void replay_add(struct staging *s, struct pend *p, struct staged *sf)
{
	const struct rec *r = &p->r;
	uint64_t place = staging_place_of(s, r->seq);
	LOCK_SCOPE(&s->lock);

	pend_add(s, p, sf);
	p->again = place == s->aside.first_seq && !is_in_tmp(r, sf);
	if (place != r->seq) /* or until its REC_RESUMED is read */
		aside_replayed(s);
	if (p->again && r->type == REC_RENAME && (r->flags & REC_DIR) && !(r->flags & REC_ABSENT))
		dirs_moving(s, r->node, r->dir2, r->name2);
	s->st.recovered.records++;
	if (!sf)
		return;
	p->snapshot = r->flags & REC_FSYNCED || (sf->spilled && !(r->flags & REC_SPILLED));
	replay_sealed(s, sf, r, STAGED_SEALED);
	s->st.recovered.versions++;
	struct stat st;
	uint64_t promised = sf->spilled || sf->moved.under || sf_stat(sf, &st) ? UINT64_MAX
			    : io_store_allocates(s->o.store)
				    ? promise_bytes(r->size, (uint64_t)st.st_blocks * 512)
				    : (uint64_t)st.st_blocks * 512;
	if (promised != UINT64_MAX) /* its close was promised space, perhaps */
		reserve_again(s, &p->promised, promised);
	if (r->flags & REC_MAPPED) {
		p->state = PEND_WAIT;
		s->order.n_wait++;
	} else {
		persist_queue(s, p);
		if (!(r->flags & REC_FSYNCED))
			append_sealed(s, p, false);
		sf_close_idle_fd(sf);
	}
}

static int replay_pend(struct staging *s, const struct rec *r)
{
	struct staged *sf = NULL;
	struct pend *p;

	if (r->seq > s->log.last_seq)
		s->log.last_seq = r->seq;
	if (staging_is_applied(s, r->seq)) {
		LOCK_SCOPE(&s->lock);
		aside_note_added(s, r, r->seq);
		return 0;
	}
	if (r->type == REC_SEAL) {
		int err = staged_recover(s, r, &sf);
		if (err == -ENOENT || err == -EINVAL || err == -ENODATA ||
		    (err && io_store_is_detached(s->o.store)))
			return replay_missing(s, r, err == -ENODATA);
		if (err) /* the version may exist: it must not be given up */
			return err;
	}
	p = pend_new(r);
	if (p)
		replay_add(s, p, sf);
	if (sf)
		staged_unref(sf);
	return p ? 0 : -ENOMEM;
}

/* That version's file was whole, and what is staged may be a later, incomplete one: what was
 * synced is not synced again, for a failed sync would require writing it from there. The file is
 * missing only if it has its name already. */
static void replay_written(struct staging *s, const struct rec *r)
{
	LOCK_SCOPE(&s->lock);
	struct pend *p = s->order.pend;
	while (p && p->r.seq != r->node2)
		p = p->next;
	if (p && r->flags & REC_ABSENT)
		p->failed_fsync = true;
	if (r->flags & REC_ABSENT)
		return;
	int fd = p && p->sf ? io_tmp_open(s->o.store, r->ino, O_RDONLY) : -1;
	/* any other error will come up again at the publication */
	bool gone = fd == -ENOENT;
	if (!p || !p->sf || (gone && !p->again))
		return;
	if (fd >= 0)
		close(fd);
	if (p->state == PEND_WAIT)
		s->order.n_wait--;
	persist_unqueue(s, p);
	p->tmp_id = gone ? 0 : r->ino;
	p->begun = gone;
	p->state = gone || r->flags & REC_FSYNCED ? PEND_READY : PEND_WRITTEN;
}

/* Its bytes are final: only writers that append came after that, before it was persisted. */
static void replay_final(struct staging *s, const struct rec *r)
{
	LOCK_SCOPE(&s->lock);
	struct pend *p = s->order.pend;
	while (p && p->r.seq != r->node2)
		p = p->next;
	if (!(r->flags & REC_SEALED) || !p || !p->sf || p->state != PEND_WAIT)
		return;
	p->r.size = r->size;
	p->r.atime = r->atime;
	p->r.mtime = r->mtime;
	if (p->sf->last_seal == p->accepted) {
		p->sf->last.size = r->size;
		p->sf->last.atime = r->atime;
		p->sf->last.mtime = r->mtime;
	}
	s->order.n_wait--;
	persist_queue(s, p);
	append_sealed(s, p, false);
}

/* Continues in a copy of the valid part; the damaged log is kept for inspection. */
static int log_set_damaged_aside(struct staging *s, size_t good)
{
	char name[32], keep[64], buf[65536];
	size_t at = 0;

	int fd = log_open_segment(s, s->head->segment + 1, O_CREAT | O_TRUNC);
	if (fd < 0)
		return fd;
	for (; at < good; at += sizeof(buf)) {
		size_t want = good - at < sizeof(buf) ? good - at : sizeof(buf);
		if (full_pread(s->log.fd, buf, want, at) != (ssize_t)want ||
		    full_pwrite(fd, buf, want, at)) {
			close(fd);
			return -EIO;
		}
	}
	log_segment_name(s->head->segment, name);
	snprintf(keep, sizeof(keep), "log.damaged.%lld", (long long)time(NULL));
	if (renameat(s->o.place.base, name, s->o.place.base, keep)) {
		close(fd);
		return -errno;
	}
	close(s->log.fd);
	s->log.fd = fd;
	s->head->recalled += s->head->recalled == s->head->segment;
	s->head->asides += s->head->asides == s->head->segment;
	atomic_fetch_add(&s->head->segment, 1);
	return 0;
}

static void replay_aside(struct staging *s, const struct rec *r)
{
	if (r->seq > s->log.last_seq)
		s->log.last_seq = r->seq;
	aside_replay(s, r);
}

static int replay_one(struct staging *s, const struct rec *r,
		      int (*each)(void *ctx, const struct rec *r), void *ctx)
{
	int err = 0;

	log_answered(s, r);
	if (r->flags & REC_ANSWER)
		return 0;
	replay_dirs(s, r);
	if (is_ordered(r->type))
		err = replay_pend(s, r);
	else if (r->type == REC_ASIDE || r->type == REC_RESUMED)
		replay_aside(s, r);
	if (!err)
		err = leftover_note(s, r);
	if (r->type == REC_FORGET && s->head->recalled == s->head->segment)
		return err; /* what was clean then is pending again */
	if (!err && each)
		err = each(ctx, r);
	replay_staged(s, r);
	replay_flush(s, r);
	if (r->type == REC_FINAL)
		replay_final(s, r);
	if (r->type == REC_WRITTEN)
		replay_written(s, r);
	if (r->type == REC_KEEP)
		buffer_kept_again(s, r->fh);
	if (r->type == REC_REFUSED)
		refuse_replayed(s, r);
	sweep_note(s, r);
	return err;
}

static bool is_gone(const struct staging *s, uint64_t log)
{
	for (unsigned i = 0; i < s->o.n_gone; i++)
		if (s->o.gone[i] == log)
			return true;
	return false;
}

static void tell(struct staging *s, const char *text)
{
	if (s->o.notice)
		s->o.notice(s->o.ctx, text);
}

/* The log had their names, and the rest of what they are. */
static void keep_of(struct staging *s, uint64_t log)
{
	char text[300];
	int n = io_tmp_keep(s->o.store, log);

	if (n > 0)
		snprintf(text, sizeof(text),
			 LEVEL_WARNING
			 "%d files that a mount which did not end had moved to the store are "
			 "kept, without their names, as .cairn/lost+found/file.%016llx.*",
			 n, (unsigned long long)log);
	else if (n < 0)
		snprintf(text, sizeof(text),
			 LEVEL_WARNING
			 "files that a mount which did not end had moved to the store stay in "
			 ".cairn/%.72s/tmp-*, until a start can move them to lost+found: "
			 "%.80s",
			 io_store_host(s->o.store), strerror(-n));
	if (n)
		tell(s, text);
	if (n >= 0)
		io_staged_in_drop(s->o.store, log);
}

static void tell_aside(struct staging *s, int n)
{
	char text[300];

	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "another staging area of this store has what is not published, and %d files of it "
		 "stay in .cairn/%s until a start with that one publishes them",
		 n, io_store_host(s->o.store));
	tell(s, text);
}

/* fresh: nothing was logged yet */
static int claim_tmp(struct staging *s, bool fresh)
{
	uint64_t of = 0;
	int aside = io_tmp_claim(s->o.store, log_id(s), fresh, &of);

	if (aside < 0)
		return aside;
	io_staged_in_has(s->o.store, s->o.place.path, log_id(s));
	for (unsigned i = 0; i < s->o.n_gone; i++)
		keep_of(s, s->o.gone[i]);
	if (aside && !is_gone(s, of))
		tell_aside(s, aside);
	return 0;
}

int staging_replay(struct staging *s, int (*each)(void *ctx, const struct rec *r), void *ctx)
{
	struct stat st;
	if (fstat(s->log.fd, &st))
		return -errno;
	reserve_probe(s);
	int err = claim_tmp(s, !st.st_size);
	if (err || !st.st_size)
		return err;
	void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, s->log.fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	size_t pos = 0, used;
	io_lend_recover(s->o.store);
	mark_recall(s);
	err = aside_recall(s, map, (size_t)st.st_size);
	s->log.replaying = true;
	struct rec r;
	while (!err && pos < (size_t)st.st_size) {
		err = rec_decode((char *)map + pos, (size_t)st.st_size - pos, &r, &used);
		if (err)
			break;
		pos += used;
		err = replay_one(s, &r, each, ctx);
	}
	s->log.replaying = false;
	munmap(map, (size_t)st.st_size);
	if (err == -EAGAIN) { /* a record cut short by a kill was never answered */
		err = 0;
	} else if (err == -EBADMSG) {
		s->o.notice(s->o.ctx,
			    LEVEL_ERROR "staging: the log is damaged; what comes before the damage "
					"was recovered, the damaged log is kept as log.damaged.*");
		err = log_set_damaged_aside(s, pos);
	}
	s->log.bytes = pos;
	if (!err && ftruncate(s->log.fd, (off_t)pos))
		err = -errno;
	if (!err)
		sweep_closed(s);
	if (s->log.last_seq < s->head->applied)
		s->log.last_seq = s->head->applied;
	return err;
}

/* SPDX-License-Identifier: MIT
 * The ordered log: one append-only file in staging, and a mapped head with the
 * numbers that change at every step. tmpfs keeps both when every process dies;
 * a power cut takes them and what they describe together. */
#include "staging/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LOG_BUF (REC_DATA_MAX + 4096)
#define ROTATE_MIN (8ull << 20)		/* below, a rotation gains nothing */
#define ROTATE_MUST (128ull << 20)	/* this much behind the last one, changes wait for another */
#define LOG_STEP (1ull << 20)		/* allocated ahead */
#define LOG_MAP (2ull << 30)		/* as much as its tmpfs holds */

static void segment_name(uint64_t n, char out[32])
{
	snprintf(out, 32, "log.%llu", (unsigned long long)n);
}

static int open_segment(struct staging *s, uint64_t n, int flags)
{
	char name[32];
	segment_name(n, name);
	int fd = openat(s->o.place.base, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
	return fd < 0 ? -errno : fd;
}

/* A head that is not ours is kept under another name, never overwritten. */
static int head_set_aside(struct staging *s)
{
	char to[64];
	snprintf(to, sizeof(to), "head.foreign.%lld", (long long)time(NULL));
	if (renameat(s->o.place.base, "head", s->o.place.base, to))
		return -errno;
	s->o.notice(s->o.ctx, "staging: a log of another version or store was found; it was set "
			      "aside as head.foreign.* and is not used");
	return 0;
}

static int head_map(struct staging *s, bool *fresh)
{
	int fd = openat(s->o.place.base, "head", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	struct stat st;
	if (fstat(fd, &st) || (*fresh = st.st_size == 0, *fresh && ftruncate(fd, 4096))) {
		int rc = -errno;
		close(fd);
		return rc;
	}
	if (!*fresh && (!S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(struct head))) {
		close(fd);
		return -EBADMSG;
	}
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return -errno;
	s->head = p;
	return 0;
}

/* Keeps apart the ids of hosts that start in the same second on one store. */
static unsigned host_hash(void)
{
	char name[256] = "";
	unsigned h = 5381;
	gethostname(name, sizeof(name) - 1);
	for (const char *p = name; *p; p++)
		h = h * 33 ^ (unsigned char)*p;
	return h ^ h >> 16;
}

int log_open(struct staging *s)
{
	bool fresh;
	int rc = head_map(s, &fresh);
	if (rc && rc != -EBADMSG)
		return rc;
	if (!rc && !fresh &&
	    (s->head->magic != HEAD_MAGIC || s->head->version != HEAD_VERSION ||
	     strncmp(s->head->store_id, io_store_id(s->o.store), 32))) {
		munmap(s->head, 4096);
		rc = -EBADMSG;
	}
	if (rc) {
		rc = head_set_aside(s);
		if (!rc)
			rc = head_map(s, &fresh);
		if (rc)
			return rc;
	}
	if (fresh) {
		s->head->version = HEAD_VERSION;
		snprintf(s->head->store_id, sizeof(s->head->store_id), "%s", io_store_id(s->o.store));
		/* ids are shown as inode numbers and kept in the store: never twice */
		s->head->next_id = (uint64_t)time(NULL) << 24 | (uint64_t)(host_hash() & 0x7f) << 56;
		s->head->segment = (uint64_t)time(NULL) << 20;
		s->head->magic = HEAD_MAGIC;	/* last: a head without it is fresh again */
	}
	s->log_buf = malloc(LOG_BUF);
	if (!s->log_buf)
		return -ENOMEM;
	/* a new head never takes up the log of one that was set aside within the same second */
	int flags = O_CREAT | (fresh ? O_EXCL : 0);
	while ((s->log_fd = open_segment(s, s->head->segment, flags)) == -EEXIST)
		atomic_fetch_add(&s->head->segment, 1);
	return s->log_fd < 0 ? s->log_fd : 0;
}

/* From now on s->log_fd is appended to, from s->log_bytes. */
static int segment_map(struct staging *s)
{
	if (s->log_map)
		munmap(s->log_map, LOG_MAP);
	s->log_cap = s->log_bytes;
	s->log_map = mmap(NULL, LOG_MAP, PROT_READ | PROT_WRITE, MAP_SHARED, s->log_fd, 0);
	if (s->log_map != MAP_FAILED)
		return 0;
	s->log_map = NULL;
	return -errno;
}

static int segment_grow(struct staging *s, size_t need)
{
	uint64_t cap = (s->log_bytes + need + LOG_STEP - 1) / LOG_STEP * LOG_STEP;
	if (cap <= s->log_cap)
		return 0;
	if (!s->log_map) {
		int rc = segment_map(s);
		if (rc)
			return rc;
	}
	if (cap > LOG_MAP)
		return -ENOSPC;
	/* allocated, so that a store to it cannot fail */
	if (fallocate(s->log_fd, 0, (off_t)s->log_cap, (off_t)(cap - s->log_cap)))
		return -errno;
	s->log_cap = cap;
	return 0;
}

void log_close(struct staging *s)
{
	if (s->log_fd >= 0)
		close(s->log_fd);
	if (s->log_map)
		munmap(s->log_map, LOG_MAP);
	s->log_map = NULL;
	if (s->head)
		munmap(s->head, 4096);
	free(s->log_buf);
	s->log_fd = -1;
	s->head = NULL;
}

uint64_t staging_new_id(struct staging *s)
{
	return atomic_fetch_add(&s->head->next_id, 1);
}

int log_append(struct staging *s, const struct rec *r)
{
	if (s->replaying)
		return 0;	/* what the replay itself drops need not be written again */
	ssize_t n = rec_encode(r, s->log_buf, LOG_BUF);
	if (n < 0)
		return (int)n;
	int rc = segment_grow(s, (size_t)n);
	if (rc)
		return rc;
	/* the magic last: a kill before it leaves zeros there, the end of the log */
	char *to = s->log_map + s->log_bytes;
	memcpy(to + sizeof(uint32_t), s->log_buf + sizeof(uint32_t), (size_t)n - sizeof(uint32_t));
	uint32_t magic;
	memcpy(&magic, s->log_buf, sizeof(magic));
	atomic_store_explicit((_Atomic uint32_t *)(void *)to, magic, memory_order_release);
	s->log_bytes += (uint64_t)n;
	return 0;
}

static bool is_ordered(uint32_t type)
{
	return type < REC_ORDERED_END;
}

static void remember_answer(struct staging *s, const struct rec *r)
{
	if (!r->unique)
		return;
	unsigned slot = (unsigned)(r->unique / 2) % 256; /* the kernel counts in twos */
	s->done[slot].unique = r->unique;
	s->done[slot].r = *r;
	s->done[slot].r.name = s->done[slot].r.name2 = "";
	s->done[slot].r.data = NULL;
	s->done[slot].r.data_len = 0;
}

bool staging_answered(struct staging *s, uint64_t unique, struct rec *out)
{
	LOCK_SCOPE(&s->lock);
	unsigned slot = (unsigned)(unique / 2) % 256;
	if (s->done[slot].unique != unique)
		return false;
	*out = s->done[slot].r;
	return true;
}

/* What removes marks what it removes, so that a pair that nobody saw can be left out. */
static void mark_killed(struct staging *s, struct pend *killer)
{
	const struct rec *r = &killer->r;
	unsigned looked = 0;

	if ((r->type != REC_UNLINK && r->type != REC_RMDIR) || !r->node2)
		return;
	for (struct pend *p = s->pend; p && p != killer && looked < 8192; p = p->next, looked++)
		if (p->r.node == r->node2 && !p->dead_at &&
		    (p->r.type == REC_SEAL || p->r.type == REC_MKDIR || p->r.type == REC_SYMLINK ||
		     p->r.type == REC_MKNOD)) {
			p->dead_at = r->seq;
			killer->kills = true;
		}
}

/* A copy of r; NULL: no memory. */
static struct pend *pend_new(const struct rec *r)
{
	size_t n1 = r->name ? strlen(r->name) + 1 : 1, n2 = r->name2 ? strlen(r->name2) + 1 : 1;
	struct pend *p = calloc(1, sizeof(*p) + n1 + n2 + r->data_len);
	if (!p)
		return NULL;
	char *tail = (char *)(p + 1);
	p->r = *r;
	p->r.name = tail;
	memcpy(tail, r->name ? r->name : "", n1);
	p->r.name2 = tail + n1;
	memcpy(tail + n1, r->name2 ? r->name2 : "", n2);
	p->r.data = tail + n1 + n2;
	if (r->data_len)
		memcpy(tail + n1 + n2, r->data, r->data_len);
	p->tmp_fd = p->source = -1;
	p->start_ns = now_ns();
	p->state = PEND_READY;
	return p;
}

/* As the last on its way. s->lock held; sf may be NULL. */
static void pend_add(struct staging *s, struct pend *p, struct staged *sf)
{
	const struct rec *r = &p->r;

	if (sf) {
		p->sf = sf;
		sf->refs++;
		sf->n_seals++;
		sf->last_seal = r->seq;
	}
	dirs_ref(s, r->dir);
	dirs_ref(s, r->dir2);
	if (r->node && (r->type == REC_MKDIR || (r->flags & REC_DIR)))
		dirs_ref(s, r->node);
	*s->pend_tail = p;
	s->pend_tail = &p->next;
	s->n_pend++;
	if (r->type == REC_MKDIR || r->type == REC_SYMLINK || r->type == REC_MKNOD)
		reserve_name(s, &p->promised);
	mark_killed(s, p);
	if (r->type == REC_UNLINK || r->type == REC_RMDIR || r->type == REC_RENAME || r->type == REC_SEAL)
		s->last_delete = r->seq;
}

int log_written(struct staging *s, const struct pend *p)
{
	struct rec r = {.type = REC_WRITTEN, .node2 = p->r.seq, .ino = p->tmp_id, .sf = p->sf->id,
			.flags = p->state == PEND_READY ? REC_FSYNCED : 0};
	return p->tmp_id ? log_append(s, &r) : 0;
}

void pend_free(struct pend *p)
{
	if (p->tmp_fd >= 0)
		close(p->tmp_fd);
	if (p->source >= 0)
		close(p->source);
	free(p);
}

int log_in_order(struct staging *s, struct rec *r, struct staged *sf, struct pend **out)
{
	r->seq = s->last_seq + 1;
	struct pend *p = pend_new(r);	/* first: what is logged cannot be taken back */
	int rc = p ? log_append(s, r) : -ENOMEM;
	if (rc) {
		free(p);
		return rc;
	}
	pend_add(s, p, sf);
	s->last_seq = r->seq;
	*out = p;
	return 0;
}

int staging_log(struct staging *s, struct rec *r)
{
	struct pend *p;
	LOCK_SCOPE(&s->lock);
	int rc = is_ordered(r->type) ? log_in_order(s, r, NULL, &p) : log_append(s, r);
	if (rc)
		return rc;
	if (is_ordered(r->type))
		sleeper_nudge(&s->pub, in_hurry(s));
	remember_answer(s, r);
	return 0;
}

int staging_emit(struct staging *s, const struct rec *r)
{
	LOCK_SCOPE(&s->lock);
	return log_append(s, r);
}

uint64_t staging_last_seq(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	return s->last_seq;
}

uint64_t staging_applied(struct staging *s)
{
	return atomic_load_explicit(&s->head->applied, memory_order_acquire);
}

uint64_t staging_durable(struct staging *s)
{
	return atomic_load_explicit(&s->head->durable, memory_order_acquire);
}

/* ---- rotation ---- */

bool staging_rotate_due(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	uint64_t gain = 3 * s->snap_bytes < ROTATE_MUST / 2 ? 3 * s->snap_bytes : ROTATE_MUST / 2;
	return !s->pend && s->log_bytes > ROTATE_MIN && s->log_bytes > s->snap_bytes + gain;
}

/* s->lock held */
static bool log_full(const struct staging *s)
{
	return s->log_bytes > s->snap_bytes + ROTATE_MUST;
}

bool staging_log_full(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	return log_full(s);
}

void staging_log_room(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	/* as an fsync does: no resting, nor for ever behind a mapping that stays */
	atomic_fetch_add(&s->n_sync_waiters, 1);
	sleeper_wake(&s->work);
	sleeper_wake(&s->pub);
	while (log_full(s) && s->pend && !s->halted && !s->stop)
		staging_wait_until(&s->done_cond, &s->lock, now_ns() + 100000000u);
	atomic_fetch_sub(&s->n_sync_waiters, 1);
}

static int emit_answers(struct staging *s)
{
	for (unsigned i = 0; i < 256; i++) {
		struct rec r = s->done[i].r;
		if (!s->done[i].unique)
			continue;
		r.flags |= REC_ANSWER;
		int rc = staging_emit(s, &r);
		if (rc)
			return rc;
	}
	return 0;
}

int staging_rotate(struct staging *s, int (*emit)(void *ctx, struct staging *s), void *ctx)
{
	char old[32];
	pthread_mutex_lock(&s->lock);
	if (s->pend) {
		pthread_mutex_unlock(&s->lock);
		return -EBUSY;
	}
	uint64_t old_bytes = s->log_bytes, number = s->head->segment;
	int old_fd = s->log_fd, fd = open_segment(s, number + 1, O_CREAT | O_TRUNC);
	if (fd >= 0) {
		s->log_fd = fd;
		s->log_bytes = 0;
		segment_map(s);		/* or at the first append */
	}
	pthread_mutex_unlock(&s->lock);
	if (fd < 0)
		return fd;
	int rc = emit(ctx, s);
	if (!rc)
		rc = emit_answers(s);

	LOCK_SCOPE(&s->lock);
	if (rc) {
		close(s->log_fd);
		s->log_fd = old_fd;
		s->log_bytes = old_bytes;
		segment_map(s);
		return rc;
	}
	s->snap_bytes = s->log_bytes;
	atomic_store(&s->head->segment, number + 1);	/* from here on the new one counts */
	close(old_fd);
	segment_name(number, old);
	unlinkat(s->o.place.base, old, 0);
	return 0;
}

/* ---- replay ---- */

/* What the store already shows has moved directories; later records name them. */
static void replay_dirs(struct staging *s, const struct rec *r)
{
	if (r->type == REC_NODE && (r->flags & REC_SEALED) && S_ISDIR(r->mode))
		staging_dir_learn(s, r->node, r->dir, r->name);
	else if (r->type == REC_FORGET)
		staging_dir_forget(s, r->node);
	else if (r->seq && r->seq <= s->head->applied) {
		if (r->type == REC_MKDIR)
			staging_dir_learn(s, r->node, r->dir, r->name);
		else if (r->type == REC_RENAME && (r->flags & REC_DIR) && !(r->flags & REC_GHOST))
			dirs_moved(s, r->node, r->dir2, r->name2);
		else if (r->type == REC_RMDIR)
			dirs_gone(s, r->node2);
	}
}

/* s->lock held */
static void replay_sealed(struct staging *s, struct staged *f, const struct rec *r, enum staged_state st)
{
	f->size = r->size;
	f->atime = r->atime;
	f->mtime = r->mtime;
	f->blocks = (r->size + 511) / 512;
	f->sealed_once = true;
	if (r->flags & REC_FSYNCED)
		return;		/* its writer went on */
	sf_set_state(s, f, st);
	if (st == STAGED_DURABLE && f->spilled)
		f->published = true;
}

static void flushed_drop(struct staging *s, size_t i)
{
	free(s->flushed[i].bytes);
	/* the order of closes is kept */
	memmove(&s->flushed[i], &s->flushed[i + 1], (--s->n_flushed - i) * sizeof(s->flushed[0]));
}

static void *flushed_bytes(struct staging *s, const struct rec *r, size_t *len)
{
	ssize_t n = rec_encode(r, s->log_buf, LOG_BUF);
	void *bytes = n > 0 ? malloc((size_t)n) : NULL;
	if (bytes)
		memcpy(bytes, s->log_buf, *len = (size_t)n);
	return bytes;
}

/* What became of a name of f's node. False: it is gone. */
static bool name_after(const struct rec *f, const struct rec *r, struct rec_name *n)
{
	bool from = n->dir == r->dir && !strcmp(n->name, r->name);
	bool onto = r->type == REC_RENAME && n->dir == r->dir2 && !strcmp(n->name, r->name2);

	if (r->type == REC_RENAME && from && r->node == f->node)
		*n = (struct rec_name){.dir = r->dir2, .name = r->name2};
	return !(r->type == REC_UNLINK && from) && !(onto && r->node != f->node);
}

/* f as it would be if the close came after r, which changed its file. *data is the caller's. -ENOENT:
 * it has no name any more. */
static int flushed_after(struct rec *f, const struct rec *r, void **data)
{
	struct rec_name name, *names = calloc(f->data_len + 2, sizeof(*names));	/* more than there can be */
	struct rec_pair pair, *pairs = calloc(f->data_len + 2, sizeof(*pairs));
	unsigned n_names = 0, n_pairs = 0;
	bool xattr = r->type == REC_XATTR || r->type == REC_XATTR_DEL;
	uint32_t pos = 0;
	int kind;

	while (names && pairs && (kind = rec_unpack(f->data, f->data_len, &pos, &name, &pair)) > 0) {
		if (kind == 1 && name_after(f, r, &name))
			names[n_names++] = name;
		else if (kind == 2 && !(xattr && !strcmp(pair.key, r->name2)))
			pairs[n_pairs++] = pair;
	}
	if (r->type == REC_XATTR)
		pairs[n_pairs++] = (struct rec_pair){.key = r->name2, .val = r->data, .len = r->data_len};
	if (r->type == REC_LINK)
		names[n_names++] = (struct rec_name){.dir = r->dir2, .name = r->name2};
	if (r->type == REC_ATTR) {
		f->mode = r->mask & REC_MODE ? r->mode : f->mode;
		f->uid = r->mask & REC_UID ? r->uid : f->uid;
		f->gid = r->mask & REC_GID ? r->gid : f->gid;
	}
	ssize_t len = !names || !pairs ? -ENOMEM : n_names ? rec_pack(names, n_names, pairs, n_pairs, data) : -ENOENT;
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

/* A file that somebody closed and another still writes was renamed, unlinked, ...: that close would be
 * found by the name it had, and perhaps be put over what stands there since. */
static void replay_flushed_change(struct staging *s, const struct rec *r)
{
	bool moves = r->type == REC_RENAME && !(r->flags & REC_DIR);
	for (size_t i = s->n_flushed; i-- > 0;) {
		struct flushed *f = &s->flushed[i];
		struct rec old;
		size_t used;
		void *data = NULL, *bytes;
		if (f->node != r->node && !moves)
			continue;
		if (rec_decode(f->bytes, f->len, &old, &used))
			continue;
		int rc = flushed_after(&old, r, &data);
		if (!rc && (bytes = flushed_bytes(s, &old, &used))) {
			free(f->bytes);
			f->bytes = bytes;
			f->len = used;
		} else if (rc == -ENOENT) {
			flushed_drop(s, i);
		}
		free(data);
	}
}

/* Remembers the last FLUSHED record of a staged file until its seal is seen. */
static void replay_flush(struct staging *s, const struct rec *r)
{
	size_t i = 0;
	bool again = r->type == REC_STAGED || (r->type == REC_OPEN && (r->flags & REC_WRITE));
	if (r->type >= REC_UNLINK && r->type < REC_ORDERED_END) {
		replay_flushed_change(s, r);
		return;
	}
	if (!r->sf || (r->type != REC_FLUSHED && r->type != REC_SEAL && r->type != REC_UNSTAGED && !again))
		return;
	while (i < s->n_flushed && s->flushed[i].sf != r->sf)
		i++;
	if (i < s->n_flushed)
		flushed_drop(s, i);
	if (r->type != REC_FLUSHED)
		return;
	struct flushed *all = realloc(s->flushed, (s->n_flushed + 1) * sizeof(*all));
	size_t len;
	void *bytes = all ? flushed_bytes(s, r, &len) : NULL;
	if (all)
		s->flushed = all;
	if (bytes)
		all[s->n_flushed++] = (struct flushed){.sf = r->sf, .node = r->node, .bytes = bytes, .len = len};
}

/* The connection is gone. A close that was answered counts, though the RELEASE that
 * would have sealed the file was lost with the process. */
void replay_flushed(struct staging *s)
{
	for (size_t i = 0; i < s->n_flushed; i++) {
		struct rec r;
		struct staged *sf;
		size_t used;
		if (rec_decode(s->flushed[i].bytes, s->flushed[i].len, &r, &used) == 0 && staged_recover(s, &r, &sf) == 0) {
			r.type = REC_SEAL;
			r.unique = 0;
			staged_finish(sf);	/* else it is persisted out of both its places */
			staging_seal(s, sf, &r, true);
			staged_unref(sf);
		}
		free(s->flushed[i].bytes);
	}
	free(s->flushed);
	s->flushed = NULL;
	s->n_flushed = 0;
}

static void set_late(struct staging *s, struct staged *f, bool late)
{
	s->n_late += late - f->late;
	f->late = late;
}

/* Staged files whose state the log changes beside the order. */
static void replay_staged(struct staging *s, const struct rec *r)
{
	LOCK_SCOPE(&s->lock);
	struct staged *f = r->sf ? sf_find(s, r->sf) : NULL;
	if (!f)
		return;
	if (r->type == REC_FINAL || (r->type == REC_SEAL && !(r->flags & (REC_MAPPED | REC_FSYNCED))))
		set_late(s, f, false);
	if (r->type == REC_SEAL && r->seq <= s->head->applied) {
		if (!f->n_seals)
			replay_sealed(s, f, r, STAGED_DURABLE);
		if (r->flags & REC_MAPPED)	/* perhaps published before its mapping went */
			set_late(s, f, true);
	} else if (r->type == REC_STAGED && (r->flags & REC_SEALED)) {
		replay_sealed(s, f, r, STAGED_DURABLE);
	} else if (r->type == REC_STAGED) {
		if (!f->spilled && (r->flags & REC_SPILLED))
			sf_replay_spill(s, f);
		sf_set_state(s, f, STAGED_OPEN);
	}
}

/* A SEAL without its staged file keeps its place in the order. A spilled file whose rename
 * came through just before the kill is in the store, but perhaps not under all its names. */
static int replay_missing(struct staging *s, const struct rec *r)
{
	bool there = (r->flags & REC_SPILLED) && r->seq == s->head->applied + 1;
	struct rec ghost = *r;
	struct pend *p;

	if (!there) {
		s->o.notice(s->o.ctx, "staging: a record's staged file is missing; that version is lost "
			      "and the one before it stays in the store");
		ghost.type = REC_ATTR;
		ghost.flags |= REC_GHOST;
	}
	LOCK_SCOPE(&s->lock);
	p = pend_new(&ghost);
	if (!p)
		return -ENOMEM;
	pend_add(s, p, NULL);
	p->again = p->begun = there;
	return 0;
}

static void replay_add(struct staging *s, struct pend *p, struct staged *sf)
{
	const struct rec *r = &p->r;
	LOCK_SCOPE(&s->lock);

	pend_add(s, p, sf);
	p->again = r->seq == s->head->applied + 1;
	if (p->again && r->type == REC_RENAME && (r->flags & REC_DIR) && !(r->flags & REC_GHOST))
		dirs_moving(s, r->node, r->dir2, r->name2);
	s->st.recovered_records++;
	if (!sf)
		return;
	p->snapshot = r->flags & REC_FSYNCED || (sf->spilled && !(r->flags & REC_SPILLED));
	replay_sealed(s, sf, r, STAGED_SEALED);
	s->st.recovered_files++;
	if (r->size <= STAGING_SMALL && !sf->spilled)	/* its close was promised room */
		reserve_again(s, &p->promised, r->size);
	if (r->flags & REC_MAPPED) {
		p->state = PEND_WAIT;
		s->n_wait++;
	} else {
		persist_queue(s, p);
		sf_rest(sf);
	}
}

static int replay_pend(struct staging *s, const struct rec *r)
{
	struct staged *sf = NULL;
	struct pend *p;

	if (r->seq > s->last_seq)
		s->last_seq = r->seq;
	if (r->seq <= s->head->applied)
		return 0;
	if (r->type == REC_SEAL) {
		int rc = staged_recover(s, r, &sf);
		if (rc)
			return replay_missing(s, r);
	}
	p = pend_new(r);
	if (p)
		replay_add(s, p, sf);
	if (sf)
		staged_unref(sf);
	return p ? 0 : -ENOMEM;
}

/* That version's file was whole, and what is staged may be a later one, half written: what was
 * synced is not asked again, for a sync that fails would want it written from there. The file is
 * gone only if it has its name already. */
static void replay_written(struct staging *s, const struct rec *r)
{
	LOCK_SCOPE(&s->lock);
	struct pend *p = s->pend;
	while (p && p->r.seq != r->node2)
		p = p->next;
	int fd = p && p->sf ? io_tmp_open(s->o.store, r->ino, O_RDONLY) : -1;
	if (!p || !p->sf || (fd < 0 && !p->again))
		return;
	if (fd >= 0)
		close(fd);
	if (p->state == PEND_WAIT)
		s->n_wait--;
	persist_unqueue(s, p);
	p->tmp_id = fd >= 0 ? r->ino : 0;
	p->begun = fd < 0;
	p->state = fd < 0 || r->flags & REC_FSYNCED ? PEND_READY : PEND_WRITTEN;
}

/* Goes on in a copy of the good part; the damaged log stays as it is for a person. */
static int log_set_damaged_aside(struct staging *s, size_t good)
{
	char name[32], keep[64], buf[65536];
	size_t at = 0;
	ssize_t n;

	int fd = open_segment(s, s->head->segment + 1, O_CREAT | O_TRUNC);
	if (fd < 0)
		return fd;
	while (at < good) {
		size_t want = good - at < sizeof(buf) ? good - at : sizeof(buf);
		n = pread(s->log_fd, buf, want, (off_t)at);
		if (n <= 0 || pwrite(fd, buf, (size_t)n, (off_t)at) != n) {
			close(fd);
			return -EIO;
		}
		at += (size_t)n;
	}
	segment_name(s->head->segment, name);
	snprintf(keep, sizeof(keep), "log.damaged.%lld", (long long)time(NULL));
	if (renameat(s->o.place.base, name, s->o.place.base, keep)) {
		close(fd);
		return -errno;
	}
	close(s->log_fd);
	s->log_fd = fd;
	atomic_fetch_add(&s->head->segment, 1);
	return 0;
}

int staging_replay(struct staging *s, int (*each)(void *ctx, const struct rec *r), void *ctx)
{
	struct stat st;
	if (fstat(s->log_fd, &st))
		return -errno;
	if (!st.st_size)
		return 0;
	void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, s->log_fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	size_t pos = 0, used;
	int rc = 0;
	s->replaying = true;
	struct rec r;
	while (pos < (size_t)st.st_size) {
		rc = rec_decode((char *)map + pos, (size_t)st.st_size - pos, &r, &used);
		if (rc)
			break;
		pos += used;
		remember_answer(s, &r);
		if (r.flags & REC_ANSWER)
			continue;
		replay_dirs(s, &r);
		if (is_ordered(r.type))
			rc = replay_pend(s, &r);
		if (!rc && each)
			rc = each(ctx, &r);
		replay_staged(s, &r);
		replay_flush(s, &r);
		if (r.type == REC_WRITTEN)
			replay_written(s, &r);
		if (r.type == REC_KEEP)
			buffer_kept_again(s, r.fh);
		sweep_note(s, &r);
		if (rc)
			break;
	}
	s->replaying = false;
	munmap(map, (size_t)st.st_size);
	if (rc == -EAGAIN) {	/* a record cut short by a kill was never answered */
		rc = 0;
	} else if (rc == -EBADMSG) {
		s->o.notice(s->o.ctx, "staging: the log is damaged; what comes before the damage was recovered, "
				      "the damaged log is kept as log.damaged.*");
		rc = log_set_damaged_aside(s, pos);
	}
	s->log_bytes = pos;
	if (!rc && ftruncate(s->log_fd, (off_t)pos))
		rc = -errno;
	if (s->last_seq < s->head->applied)
		s->last_seq = s->head->applied;
	return rc;
}

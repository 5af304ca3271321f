/* SPDX-License-Identifier: MIT
 * After a replay: unreferenced files in staging or in the store's tmp/ are removed if they are
 * known to be ours and finished, and are otherwise kept in lost+found. */
#include "io/entries.h"
#include "io/goes_on.h"
#include "staging/replay.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where id's index + 1 is, or would be stored. */
static size_t *place_of(struct staging *s, uint64_t id)
{
	size_t *at = &s->sweep.bucket[id % SF_BUCKETS];
	while (*at && s->sweep.entry[*at - 1].id != id)
		at = &s->sweep.entry[*at - 1].next;
	return at;
}

static struct sweep_entry *entry_of(struct staging *s, uint64_t id)
{
	size_t at = *place_of(s, id);
	return at ? &s->sweep.entry[at - 1] : NULL;
}

static struct sweep_entry *entry_new(struct staging *s, uint64_t id)
{
	size_t at = s->sweep.free;
	if (at) {
		s->sweep.free = s->sweep.entry[at - 1].next;
	} else if (s->sweep.n == s->sweep.cap) {
		size_t cap = s->sweep.cap ? s->sweep.cap * 2 : 256;
		void *p = realloc(s->sweep.entry, cap * sizeof(*s->sweep.entry));
		if (!p)
			return NULL;
		s->sweep.entry = p;
		s->sweep.cap = cap;
	}
	if (!at)
		at = ++s->sweep.n;
	size_t *first = &s->sweep.bucket[id % SF_BUCKETS];
	s->sweep.entry[at - 1] = (struct sweep_entry){.id = id, .next = *first};
	*first = at;
	return &s->sweep.entry[at - 1];
}

/* The entry at index `at` is of this node, 0: of none. */
static void set_node(struct staging *s, size_t at, uint64_t node)
{
	struct sweep_entry *e = &s->sweep.entry[at - 1];
	size_t *p = &s->sweep.node[e->node % SF_BUCKETS];

	while (e->node && *p != at)
		p = &s->sweep.entry[*p - 1].next_node;
	if (e->node)
		*p = e->next_node;
	e->node = node;
	p = &s->sweep.node[node % SF_BUCKETS];
	e->next_node = *p;
	if (node)
		*p = at;
}

/* A file that may be open was renamed. */
static void note_rename(struct staging *s, const struct rec *r)
{
	for (size_t at = s->sweep.node[r->node % SF_BUCKETS]; at;
	     at = s->sweep.entry[at - 1].next_node)
		if (s->sweep.entry[at - 1].node == r->node) {
			s->sweep.entry[at - 1].dir = r->dir2;
			snprintf(s->sweep.entry[at - 1].name, sizeof(s->sweep.entry[at - 1].name),
				 "%s", r->name2);
		}
}

static void entry_drop(struct staging *s, uint64_t id)
{
	size_t *place = place_of(s, id), at = *place;
	if (!at)
		return;
	*place = s->sweep.entry[at - 1].next;
	set_node(s, at, 0);
	s->sweep.entry[at - 1].next = s->sweep.free;
	s->sweep.free = at;
}

static void set_name(struct sweep_entry *e, const struct rec *r)
{
	if (!r->name || !r->name[0])
		return;
	snprintf(e->name, sizeof(e->name), "%s", r->name);
	e->dir = r->dir;
}

/* A staged file that may be open. */
static void note_staged(struct staging *s, const struct rec *r)
{
	struct sweep_entry *e = entry_of(s, r->sf);

	if (!e)
		e = entry_new(s, r->sf);
	if (!e)
		return;
	e->open = r->type != REC_LEND && !(r->flags & REC_SEALED);
	e->lent |= r->type == REC_LEND;
	e->closed = false;
	e->kept = r->type == REC_STAGED && !r->node; /* rotate.c */
	if (r->node)
		set_node(s, *place_of(s, r->sf), r->node);
	if (!e->name[0])
		set_name(e, r);
}

void sweep_note(struct staging *s, const struct rec *r)
{
	struct sweep_entry *e;

	lostfound_note(s, r);
	if (r->type == REC_RENAME && !(r->flags & REC_DIR))
		note_rename(s, r);
	if (!r->sf)
		return;
	switch (r->type) {
	case REC_LEND:
	case REC_CREATE:
	case REC_STAGED: note_staged(s, r); return;
	case REC_OPEN:
		e = entry_of(s, r->sf);
		if (e && r->flags & REC_WRITE) {
			e->rdwr |= r->flags & REC_RDWR;
			e->closed = false;
		}
		return;
	case REC_CLOSE:
		e = entry_of(s, r->sf);
		if (e)
			e->closed = r->flags & REC_SEALED;
		return;
	case REC_SEAL:
		e = entry_of(s, r->sf);
		if (!e)
			return;
		e->open = r->flags & REC_FSYNCED;
		e->size = r->size;
		e->mtime = r->mtime;
		set_name(e, r);
		return;
	case REC_UNSTAGED:
		e = entry_of(s, r->sf);
		/* the record of that name's removal precedes the removal */
		if (e && !e->lent)
			entry_drop(s, r->sf);
		return;
	default: return;
	}
}

struct out {
	struct io_store *store;
	int fd;
};

static int put_out(void *ctx, const void *buf, size_t len, uint64_t off)
{
	struct out *o = ctx;
	return io_pwrite(o->store, o->fd, buf, len, off);
}

/* For a file that outgrew memory the older bytes are there already. */
static int copy_out(struct staging *s, int dirfd, const char *name, uint64_t id)
{
	bool direct;
	struct stat st;
	int from = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (from < 0)
		return -errno;
	int to = io_tmp_open(s->o.store, id, O_RDWR), err;
	bool made = to == -ENOENT;
	if (made)
		to = io_tmp_create(s->o.store, id, false, &direct);
	err = to < 0 ? to : fstat(from, &st) ? -errno : 0;
	if (!err)
		err = data_each(from, (uint64_t)st.st_size, put_out, &(struct out){s->o.store, to});
	if (!err)
		err = io_truncate(s->o.store, to, (uint64_t)st.st_size);
	if (!err)
		err = io_sync_data(s->o.store, to);
	if (to >= 0)
		close(to);
	close(from);
	/* else the older bytes of a file that outgrew memory, the only copy */
	if (err && made)
		io_tmp_remove(s->o.store, id);
	return err;
}

/* To lost+found: from staging by a copy, from tmp/ by a rename. What is also ours stays in
 * place. */
static int keep(struct staging *s, const struct kept_file *k)
{
	struct io_store *store = s->o.store;
	char name[17], to[256], text[400];
	struct stat st;

	io_tmp_name(k->id, name);
	int err = k->in_store ? 0 : copy_out(s, k->dir, name, k->id);
	snprintf(to, sizeof(to), "%s.unclosed.%.16s", k->name, name);
	if (!err)
		err = io_rename(store, io_store_tmp(store), name, io_store_lostfound(store), to, 0);
	if (err == -ENOENT) /* the last try got here: only the sync failed */
		err = io_stat(store, io_store_lostfound(store), to, &st);
	if (!err) /* a power cut loses staging: what is removed there has its copy */
		err = io_sync_dir(store, io_store_lostfound(store));
	if (err)
		return err;
	if (!k->in_store && !k->f)
		unlinkat(k->dir, name, 0);
	pthread_mutex_lock(&s->lock);
	s->st.recovered.lost_found++;
	pthread_mutex_unlock(&s->lock);
	snprintf(text, sizeof(text),
		 LEVEL_WARNING "a file that was never closed, or whose close failed, is kept as "
			       ".cairn/lost+found/%s",
		 to);
	s->o.notice(s->o.ctx, text);
	return 0;
}

static void kept_drop(struct staging *s, struct kept_file **at)
{
	struct kept_file *k = *at;
	pthread_mutex_lock(&s->lock);
	*at = k->next;
	s->st.recovered.kept--;
	s->st.recovered.kept_bytes -= k->size;
	pthread_mutex_unlock(&s->lock);
	if (k->f) {
		staged_unuse(k->f);
		staged_unref(k->f);
	}
	free(k);
}

static void kept_failed(struct staging *s, int err)
{
	LOCK_SCOPE(&s->lock);
	s->st.recovered.kept_error = err;
}

int staging_kept_error(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	return s->st.recovered.kept ? s->st.recovered.kept_error : 0;
}

static void tell_of_kept(struct staging *s, uint64_t id, int err)
{
	const struct sweep_entry *e = entry_of(s, id);
	char text[420];

	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "a file that was never closed cannot be moved to .cairn/lost+found yet (%.80s): "
		 "%.60s stays in staging; free space in the store" GOES_ON,
		 strerror(-err), e && e->name[0] ? e->name : "its name is not known, it");
	s->o.notice(s->o.ctx, text);
}

static unsigned keep_all(struct staging *s, bool tell)
{
	unsigned left = 0;
	LOCK_SCOPE(&s->sweep.kept_lock);
	for (struct kept_file **at = &s->sweep.kept; *at;) {
		int err = keep(s, *at);
		if (!err) {
			kept_drop(s, at);
			continue;
		}
		kept_failed(s, err);
		if (tell)
			tell_of_kept(s, (*at)->id, err);
		at = &(*at)->next;
		left++;
	}
	return left;
}

unsigned staging_keep_again(struct staging *s)
{
	return keep_all(s, false);
}

void kept_close(struct staging *s)
{
	while (s->sweep.kept) {
		struct kept_file *k = s->sweep.kept;
		s->sweep.kept = k->next;
		free(k);
	}
}

static void kept_add(struct staging *s, struct kept_file *k)
{
	LOCK_SCOPE(&s->lock);
	k->next = s->sweep.kept;
	s->sweep.kept = k;
	s->st.recovered.kept++;
	s->st.recovered.kept_bytes += k->size;
}

static bool is_kept(const struct staging *s, uint64_t id)
{
	for (const struct kept_file *k = s->sweep.kept; k; k = k->next)
		if (k->id == id)
			return true;
	return false;
}

/* Kept in lost+found when all is swept, for what the sweep removes may be the space that it needs,
 * or when there is space; until then it stays, across a clean end, too. f: it is ours as well, or
 * NULL. */
static void keep_soon(struct staging *s, int dirfd, uint64_t id, bool in_store, uint64_t size,
		      struct staged *f)
{
	struct sweep_entry *e = entry_of(s, id);
	struct kept_file *k = calloc(1, sizeof(*k));
	int fd;

	if (!k) {
		kept_failed(s, -ENOMEM);
		tell_of_kept(s, id, -ENOMEM);
		return;
	}
	*k = (struct kept_file){.id = id, .dir = dirfd, .in_store = in_store, .size = size};
	strcpy(k->name, "file");
	if (e && e->kept)
		snprintf(k->name, sizeof(k->name), "%.*s", (int)LOSTFOUND_NAME - 1, e->name);
	else if (e && e->name[0])
		lostfound_name(s, e->dir, e->name, k->name);
	if (f && !staged_use(f, &fd))
		k->f = staged_ref(f);
	kept_add(s, k);
}

/* The files of tmp/ that pending records refer to, by REC_WRITTEN. */
struct named {
	uint64_t *id; /* sorted */
	size_t n;
};

static int by_id(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static int find_named(struct staging *s, struct named *out)
{
	size_t n = 0;
	LOCK_SCOPE(&s->lock);
	for (const struct pend *p = s->order.pend; p; p = p->next)
		n += p->tmp_id != 0;
	*out = (struct named){.id = malloc((n + 1) * sizeof(*out->id))};
	if (!out->id)
		return -ENOMEM;
	for (const struct pend *p = s->order.pend; p; p = p->next)
		if (p->tmp_id)
			out->id[out->n++] = p->tmp_id;
	qsort(out->id, out->n, sizeof(*out->id), by_id);
	return 0;
}

/* Does e's file contain the version made by its last fsync? The order has that. */
static bool has_version(const struct sweep_entry *e, const struct stat *st)
{
	return e->closed ||
	       (e->size && !e->rdwr && !sf_coarse_times() && (uint64_t)st->st_size == e->size &&
		st->st_mtim.tv_sec == e->mtime.tv_sec && st->st_mtim.tv_nsec == e->mtime.tv_nsec);
}

/* A file of tmp/ that nothing refers to. Callers wait for the next worker, so its blocks are freed
 * later. `again`: its name may be in use again before that, when a staged file moves there. */
static void remove_later(struct staging *s, int dirfd, const char *name, uint64_t id, bool again)
{
	int fd = again ? openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;

	if (again && unlinkat(dirfd, name, 0)) { /* whoever makes it anew removes it first */
		if (fd >= 0)
			close(fd);
		return;
	}
	LOCK_SCOPE(&s->lock);
	trash_put(s, again ? 0 : id, fd);
}

/* named: NULL for what is staged. */
static void sweep_one(struct staging *s, int dirfd, const char *name, const struct named *named,
		      bool orphaned)
{
	bool in_store = named;
	uint64_t id;
	struct stat st;

	if (!io_tmp_id(name, &id) || fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) ||
	    !S_ISREG(st.st_mode))
		return;
	pthread_mutex_lock(&s->lock);
	struct staged *f = sf_find(s, id);
	bool ours = f && (f->spilled == in_store || (in_store && f->moved.under)),
	     unclosed_ours = ours && f->unclosed;
	/* staging has all of it again: an interrupted outgrow_resize */
	bool left_over = in_store && f && !ours;
	bool has_readers = in_store && retain_has(s, id);
	bool kept = is_kept(s, id); /* staged bytes, and the older ones of the same file */
	pthread_mutex_unlock(&s->lock);
	if (named && bsearch(&id, named->id, named->n, sizeof(id), by_id))
		ours = true;
	ours |= has_readers;
	if (!ours && in_store && io_store_took_over(s->o.store)) {
		s->sweep.left++;
		s->sweep.left_bytes += (uint64_t)st.st_size;
		ours = true;
	}
	if (unclosed_ours && !kept)
		keep_soon(s, dirfd, id, in_store, (uint64_t)st.st_size, f);
	if (ours || kept)
		return;
	struct sweep_entry *e = entry_of(s, id);
	/* in tmp/ only spilled files have records; the rest are interrupted persists, whose
	 * source is in staging */
	bool unclosed = left_over ? false
			: e	  ? e->kept || (e->open && orphaned && !has_version(e, &st))
				  : !in_store;
	if (unclosed && st.st_size > 0) {
		keep_soon(s, dirfd, id, in_store, (uint64_t)st.st_size, NULL);
	} else if (orphaned || !in_store) {
		unlinkat(dirfd, name, 0);
	} else { /* at a first start nobody waits, and the space may be needed */
		remove_later(s, dirfd, name, id, left_over);
	}
}

static int sweep_dir(struct staging *s, int dirfd, const struct named *named, bool orphaned)
{
	CLEANUP_DIR DIR *d = entries_at(dirfd, ".");
	if (!d)
		return -errno;
	for (struct dirent *e; (e = entries_next(d));)
		if (!strncmp(e->d_name, BUFFER_PREFIX, sizeof(BUFFER_PREFIX) - 1) &&
		    dirfd == s->o.place.huge)
			buffer_sweep(s, e->d_name);
		else if (e->d_name[0] != '.')
			sweep_one(s, dirfd, e->d_name, named, orphaned);
	return 0;
}

static int sweep_store(struct staging *s, bool orphaned)
{
	struct named named;
	int err = find_named(s, &named);
	if (!err)
		err = sweep_dir(s, io_store_tmp(s->o.store), &named, orphaned);
	free(named.id);
	return err;
}

/* Since its last seal, according to the log. An open that was never answered may have truncated
 * it. */
static bool is_as_sealed(struct staged *f)
{
	struct stat st;
	return f->last.once && !sf_ensure_fd(f) && !fstat(f->fd, &st) &&
	       (uint64_t)st.st_size == f->last.size && st.st_mtim.tv_sec == f->last.mtime.tv_sec &&
	       st.st_mtim.tv_nsec == f->last.mtime.tv_nsec;
}

/* A file that was fsynced, and closed without another write, has its version in the order: no
 * seal. */
void sweep_closed(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	for (unsigned b = 0; b < SF_BUCKETS; b++)
		for (struct staged *f = s->files.by_id[b]; f; f = f->lists.hash_next) {
			struct sweep_entry *e =
				f->state == STAGED_OPEN && !f->spilled ? entry_of(s, f->id) : NULL;
			if (!e || !e->closed || !is_as_sealed(f))
				continue;
			sf_set_state(s, f, f->n_seals ? STAGED_SEALED : STAGED_DURABLE);
			sf_close_idle_fd(f);
		}
}

/* The last version is whole in tmp/; was the next one begun? If so, what is staged is published. */
static bool changed_since_written(struct staging *s, const struct staged *f)
{
	const struct pend *last = NULL;
	struct stat st;
	for (const struct pend *p = s->order.pend; p; p = p->next)
		if (p->sf == f && (!last || p->accepted > last->accepted))
			last = p;
	return last && (last->state == PEND_WRITTEN || last->state == PEND_READY) && f->fd >= 0 &&
	       !fstat(f->fd, &st) &&
	       ((uint64_t)st.st_size != last->r.size || st.st_mtim.tv_sec != last->r.mtime.tv_sec ||
		st.st_mtim.tv_nsec != last->r.mtime.tv_nsec);
}

static void orphans_are_closed(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	for (unsigned b = 0; b < SF_BUCKETS; b++)
		for (struct staged *f = s->files.by_id[b]; f; f = f->lists.hash_next)
			if (f->state == STAGED_OPEN && f->n_seals) {
				f->unclosed = changed_since_written(s, f);
				for (struct pend *p = s->order.pend; p; p = p->next)
					/* whatever its fsync returned: there will be no later
					 * version */
					if (p->sf == f)
						p->failed_fsync = false;
				sf_set_state(s, f, STAGED_SEALED);
			}
}

/* The other one may live, and come back with a spilled file whose only bytes are there. */
static void tell_left(struct staging *s)
{
	char text[400];

	if (!s->sweep.left)
		return;
	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "%u unpublished files (%llu MiB) of the cairnfs that served the store as this "
		 "host before stay in .cairn/%s/tmp, as that one may live; the next start removes "
		 "them",
		 s->sweep.left, (unsigned long long)(s->sweep.left_bytes >> 20),
		 io_store_host(s->o.store));
	s->o.notice(s->o.ctx, text);
	s->sweep.left = 0;
	s->sweep.left_bytes = 0;
}

int staging_sweep(struct staging *s, bool orphaned)
{
	if (orphaned) { /* their writers went with the connection */
		replay_flushed(s);
		orphans_are_closed(s);
	}
	leftover_begin(s, orphaned);
	int err = sweep_dir(s, s->o.place.huge, NULL, orphaned);
	if (!err && s->o.place.small != s->o.place.huge)
		err = sweep_dir(s, s->o.place.small, NULL, orphaned);
	if (!err && io_store_tmp(s->o.store) >= 0)
		err = io_store_drop_scratch(s->o.store);
	if (!err && io_store_tmp(s->o.store) >= 0)
		err = sweep_store(s, orphaned);
	keep_all(s, true);
	tell_left(s);
	flushed_forget(s); /* alive: the RELEASE is sent again */
	free(s->sweep.entry);
	s->sweep.entry = NULL;
	s->sweep.n = s->sweep.cap = s->sweep.free = 0;
	memset(s->sweep.bucket, 0, sizeof(s->sweep.bucket));
	memset(s->sweep.node, 0, sizeof(s->sweep.node));
	lostfound_end(s);
	return err;
}

void sweep_tmp_all(struct staging *s)
{
	int tmp = io_store_tmp(s->o.store);
	CLEANUP_DIR DIR *d =
		tmp < 0 || io_store_took_over(s->o.store) ? NULL : entries_at(tmp, ".");
	uint64_t id;
	for (struct dirent *e; (e = entries_next(d));)
		if (io_tmp_id(e->d_name, &id))
			unlinkat(tmp, e->d_name, 0);
}

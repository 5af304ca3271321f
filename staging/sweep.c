/* SPDX-License-Identifier: MIT
 * After a replay: what lies in staging or in the store's tmp/ and belongs to
 * nothing is removed when it is known to be ours and done with, and else kept in
 * lost+found. */
#include "staging/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where id's place + 1 stands, or would. */
static size_t *place_of(struct staging *s, uint64_t id)
{
	size_t *at = &s->sweep_bucket[id % SF_BUCKETS];
	while (*at && s->sweep[*at - 1].id != id)
		at = &s->sweep[*at - 1].next;
	return at;
}

static struct sweep_entry *entry_of(struct staging *s, uint64_t id)
{
	size_t at = *place_of(s, id);
	return at ? &s->sweep[at - 1] : NULL;
}

static struct sweep_entry *entry_new(struct staging *s, uint64_t id)
{
	size_t at = s->sweep_free;
	if (at) {
		s->sweep_free = s->sweep[at - 1].next;
	} else if (s->n_sweep == s->cap_sweep) {
		size_t cap = s->cap_sweep ? s->cap_sweep * 2 : 256;
		void *p = realloc(s->sweep, cap * sizeof(*s->sweep));
		if (!p)
			return NULL;
		s->sweep = p;
		s->cap_sweep = cap;
	}
	if (!at)
		at = ++s->n_sweep;
	size_t *first = &s->sweep_bucket[id % SF_BUCKETS];
	s->sweep[at - 1] = (struct sweep_entry){.id = id, .next = *first};
	*first = at;
	return &s->sweep[at - 1];
}

static void entry_drop(struct staging *s, uint64_t id)
{
	size_t *place = place_of(s, id), at = *place;
	if (!at)
		return;
	*place = s->sweep[at - 1].next;
	s->sweep[at - 1].next = s->sweep_free;
	s->sweep_free = at;
}

void sweep_note(struct staging *s, const struct rec *r)
{
	struct sweep_entry *e;

	if (!r->sf)
		return;
	switch (r->type) {
	case REC_LEND:
	case REC_CREATE:
	case REC_STAGED:
		e = entry_of(s, r->sf);
		if (!e)
			e = entry_new(s, r->sf);
		if (!e)
			return;
		e->open = r->type != REC_LEND && !(r->flags & REC_SEALED);
		e->lent |= r->type == REC_LEND;
		if (r->name && r->name[0])
			snprintf(e->name, sizeof(e->name), "%.60s", r->name);
		return;
	case REC_SEAL:
		e = entry_of(s, r->sf);
		if (e)
			e->open = r->flags & REC_FSYNCED;
		return;
	case REC_UNSTAGED:
		e = entry_of(s, r->sf);
		if (e && !e->lent)	/* that name goes after it is told that it goes */
			entry_drop(s, r->sf);
		return;
	default:
		return;
	}
}

/* name is 16 hex digits → id */
static bool parse_name(const char *name, uint64_t *id)
{
	*id = 0;
	for (int i = 0; i < 16; i++) {
		const char *hex = "0123456789abcdef", *at = name[i] ? strchr(hex, name[i]) : NULL;
		if (!at)
			return false;
		*id = *id << 4 | (uint64_t)(at - hex);
	}
	return name[16] == 0;
}

/* Of a file that outgrew memory the older bytes are there already. */
static int copy_out(struct staging *s, int dirfd, const char *name, uint64_t id)
{
	bool direct;
	char buf[65536];
	struct stat st;
	int from = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (from < 0)
		return -errno;
	int to = io_tmp_open(s->o.store, id, O_RDWR), rc;
	if (to == -ENOENT)
		to = io_tmp_create(s->o.store, id, false, &direct);
	rc = to < 0 ? to : fstat(from, &st) ? -errno : 0;
	off_t off = 0;
	while (!rc && (off = lseek(from, off, SEEK_DATA)) >= 0) {
		ssize_t n = pread(from, buf, sizeof(buf), off);
		if (n == 0)
			break;
		rc = n < 0 ? -errno : io_pwrite(s->o.store, to, buf, (size_t)n, (uint64_t)off);
		off += n > 0 ? n : 0;
	}
	if (!rc)
		rc = io_truncate(s->o.store, to, (uint64_t)st.st_size);
	if (!rc)
		rc = io_sync_data(s->o.store, to);
	if (to >= 0)
		close(to);
	close(from);
	if (rc)
		io_tmp_remove(s->o.store, id);
	return rc;
}

/* Moves an unclosed file to lost+found: from staging by a copy, from tmp/ by its name.
 * What is `ours` in staging stays there as well. */
static void keep(struct staging *s, int dirfd, const char *name, uint64_t id, bool in_store, bool ours)
{
	struct sweep_entry *e = entry_of(s, id);
	char to[128], text[256];
	int rc = in_store ? 0 : copy_out(s, dirfd, name, id);

	snprintf(to, sizeof(to), "%.60s.unclosed.%.16s", e && e->name[0] ? e->name : "file", name);
	if (!rc)
		rc = io_rename(s->o.store, io_store_tmp(s->o.store), name, io_store_lostfound(s->o.store), to, 0);
	if (rc) {
		snprintf(text, sizeof(text), "a file that was never closed could not be kept (%.80s); it stays in staging as %.16s",
			 strerror(-rc), name);
	} else {
		if (!in_store && !ours)
			unlinkat(dirfd, name, 0);
		s->st.lost_found++;
		snprintf(text, sizeof(text), "a file that was never closed when its writer died is kept as .cairn/lost+found/%.90s", to);
	}
	s->o.notice(s->o.ctx, text);
}

/* The files of tmp/ that pending records name: REC_WRITTEN told of them. */
struct named {
	uint64_t *id;	/* sorted */
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
	for (const struct pend *p = s->pend; p; p = p->next)
		n += p->tmp_id != 0;
	*out = (struct named){.id = malloc((n + 1) * sizeof(*out->id))};
	if (!out->id)
		return -ENOMEM;
	for (const struct pend *p = s->pend; p; p = p->next)
		if (p->tmp_id)
			out->id[out->n++] = p->tmp_id;
	qsort(out->id, out->n, sizeof(*out->id), by_id);
	return 0;
}

/* named: NULL for what is staged. */
static void sweep_one(struct staging *s, int dirfd, const char *name, const struct named *named, bool orphaned)
{
	bool in_store = named;
	uint64_t id;
	struct stat st;

	if (!parse_name(name, &id) || fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
		return;
	pthread_mutex_lock(&s->lock);
	struct staged *f = sf_find(s, id);
	bool ours = f && (f->spilled == in_store || (in_store && f->under)), unclosed_ours = ours && f->unclosed;
	pthread_mutex_unlock(&s->lock);
	if (named && bsearch(&id, named->id, named->n, sizeof(id), by_id))
		ours = true;
	if (unclosed_ours)
		keep(s, dirfd, name, id, in_store, true);
	if (ours)
		return;
	struct sweep_entry *e = entry_of(s, id);
	/* in tmp/ only spilled files have records; the rest are persists cut short, whose
	 * source is in staging */
	bool unclosed = e ? e->open && orphaned : !in_store;
	if (unclosed && st.st_size > 0) {
		keep(s, dirfd, name, id, in_store, false);
	} else if (orphaned || !in_store) {
		unlinkat(dirfd, name, 0);
	} else {	/* callers wait for the next worker; at a first start none do, and the room may be needed */
		LOCK_SCOPE(&s->lock);
		trash_put(s, id, -1);
	}
}

static int sweep_dir(struct staging *s, int dirfd, const struct named *named, bool orphaned)
{
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	DIR *d = fdopendir(fd);
	if (!d) {
		close(fd);
		return -ENOMEM;
	}
	for (struct dirent *e; (e = readdir(d));)
		if (!strncmp(e->d_name, BUFFER_PREFIX, sizeof(BUFFER_PREFIX) - 1) && dirfd == s->o.place.huge)
			buffer_sweep(s, e->d_name);
		else if (e->d_name[0] != '.')
			sweep_one(s, dirfd, e->d_name, named, orphaned);
	closedir(d);
	return 0;
}

static int sweep_store(struct staging *s, bool orphaned)
{
	struct named named;
	int rc = find_named(s, &named);
	if (!rc)
		rc = sweep_dir(s, io_store_tmp(s->o.store), &named, orphaned);
	free(named.id);
	return rc;
}

/* The last version is whole in tmp/; was the next one begun? Else what is staged is published. */
static bool changed_since_written(struct staging *s, const struct staged *f)
{
	const struct pend *last = NULL;
	struct stat st;
	for (const struct pend *p = s->pend; p; p = p->next)
		if (p->sf == f)
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
		for (struct staged *f = s->sfs[b]; f; f = f->hash_next)
			if (f->state == STAGED_OPEN && f->n_seals) {
				f->unclosed = changed_since_written(s, f);
				sf_set_state(s, f, STAGED_SEALED);
			}
}

int staging_sweep(struct staging *s, bool orphaned)
{
	if (orphaned) {	/* their writers went with the connection */
		replay_flushed(s);
		orphans_are_closed(s);
	}
	int rc = sweep_dir(s, s->o.place.huge, NULL, orphaned);
	if (!rc && s->o.place.small != s->o.place.huge)
		rc = sweep_dir(s, s->o.place.small, NULL, orphaned);
	if (!rc && io_store_tmp(s->o.store) >= 0)
		rc = sweep_store(s, orphaned);
	for (size_t i = 0; i < s->n_flushed; i++)	/* alive: the RELEASE is sent again */
		free(s->flushed[i].bytes);
	s->n_flushed = 0;
	free(s->sweep);
	s->sweep = NULL;
	s->n_sweep = s->cap_sweep = s->sweep_free = 0;
	memset(s->sweep_bucket, 0, sizeof(s->sweep_bucket));
	return rc;
}

void sweep_tmp_all(struct staging *s)
{
	int tmp = io_store_tmp(s->o.store), fd = tmp < 0 ? -1 : openat(tmp, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	uint64_t id;
	if (!d) {
		if (fd >= 0)
			close(fd);
		return;
	}
	for (struct dirent *e; (e = readdir(d));)
		if (parse_name(e->d_name, &id))
			unlinkat(fd, e->d_name, 0);
	closedir(d);
}

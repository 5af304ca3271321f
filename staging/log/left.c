/* SPDX-License-Identifier: MIT
 *
 * What a staging directory holds that its store may not have. It errs on one side: what the log
 * does not show to be in the store counts as unpublished.
 */
#include "staging/log/left.h"
#include "io/entries.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "staging/internal.h"

#define BUCKETS 65536u
#define NONE SIZE_MAX

struct sf {
	uint64_t id, node;
	size_t next_id, next_node; /* of those with the same hash; NONE */
	bool durable, spilled;
	bool reopened; /* for writing, after its last seal */
	bool gone;
};

struct reading {
	struct sf *v;
	size_t n, cap;
	size_t *ids, *nodes; /* BUCKETS of each: the first one with that hash */
	uint64_t durable; /* of the head */
	uint64_t *aside; /* these are not, whatever the head says */
	size_t n_aside;
	uint64_t changes;
};

static size_t *bucket(size_t *of, uint64_t key)
{
	return &of[(key ^ key >> 16) % BUCKETS];
}

static struct sf *find(struct reading *r, uint64_t id)
{
	for (size_t i = r->n ? *bucket(r->ids, id) : NONE; i != NONE; i = r->v[i].next_id)
		if (r->v[i].id == id && !r->v[i].gone)
			return &r->v[i];
	return NULL;
}

static int make_buckets(struct reading *r)
{
	r->ids = malloc(2 * BUCKETS * sizeof(*r->ids));
	if (!r->ids)
		return -ENOMEM;
	r->nodes = r->ids + BUCKETS;
	for (size_t i = 0; i < 2 * BUCKETS; i++)
		r->ids[i] = NONE;
	return 0;
}

static struct sf *add(struct reading *r, uint64_t id)
{
	if (r->n == r->cap) {
		size_t cap = r->cap ? r->cap * 2 : 256;
		struct sf *more = realloc(r->v, cap * sizeof(*more));

		if (!more)
			return NULL;
		r->v = more;
		r->cap = cap;
	}
	if (!r->ids && make_buckets(r))
		return NULL;
	size_t *at = bucket(r->ids, id);
	r->v[r->n] = (struct sf){.id = id, .next_id = *at, .next_node = NONE};
	*at = r->n;
	return &r->v[r->n++];
}

static void set_node(struct reading *r, struct sf *f, uint64_t node)
{
	size_t i = (size_t)(f - r->v), *at = bucket(r->nodes, f->node);

	if (f->node == node)
		return;
	while (f->node && *at != i)
		at = &r->v[*at].next_node;
	if (f->node)
		*at = f->next_node;
	at = bucket(r->nodes, node);
	f->node = node;
	f->next_node = *at;
	*at = i;
}

static int set(struct reading *r, const struct rec *c, bool durable)
{
	struct sf *f = find(r, c->sf);

	f = f ? f : add(r, c->sf);
	if (!f)
		return -ENOMEM;
	set_node(r, f, c->node);
	f->durable = durable;
	f->reopened = false;
	f->spilled |= (c->flags & REC_SPILLED) != 0;
	return 0;
}

static int set_aside(struct reading *r, uint64_t seq)
{
	uint64_t *more = realloc(r->aside, (r->n_aside + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	r->aside = more;
	more[r->n_aside++] = seq;
	return 0;
}

static bool is_durable(const struct reading *r, uint64_t seq)
{
	for (size_t i = 0; i < r->n_aside; i++)
		if (r->aside[i] == seq)
			return false;
	return seq <= r->durable;
}

/* The bytes of node may change again. */
static void reopen(struct reading *r, uint64_t node)
{
	for (size_t i = r->n ? *bucket(r->nodes, node) : NONE; i != NONE; i = r->v[i].next_node)
		if (r->v[i].node == node) {
			r->v[i].durable = false;
			r->v[i].reopened = true;
		}
}

static int take(struct reading *r, const struct rec *c)
{
	struct sf *f;

	if (c->flags & REC_ANSWER)
		return 0;
	if (is_ordered(c->type))
		r->changes += !is_durable(r, c->seq);
	switch (c->type) {
	case REC_SEAL:
		return set(r, c, is_durable(r, c->seq) && !(c->flags & (REC_MAPPED | REC_FSYNCED)));
	case REC_STAGED: return set(r, c, c->flags & REC_SEALED);
	case REC_CREATE: return set(r, c, false);
	case REC_FORK: reopen(r, c->node); return 0;
	case REC_OPEN:
		if (c->flags & REC_WRITE)
			reopen(r, c->node);
		return 0;
	case REC_UNSTAGED:
		f = find(r, c->sf);
		if (f)
			f->gone = true;
		return 0;
	case REC_FINAL: /* its last mapping went before it was persisted */
		f = find(r, c->sf);
		if (f && !f->reopened)
			f->durable = is_durable(r, c->node2);
		return 0;
	default: return 0;
	}
}

/* What was set aside is known before the rest is read. */
static int read_log(struct reading *r, const char *map, size_t len)
{
	struct rec c;
	size_t used;
	int err = 0, end = 0;

	for (int asides = 1; !err && asides >= 0; asides--) {
		for (size_t at = 0; !err && !(end = rec_decode(map + at, len - at, &c, &used));
		     at += used) {
			if (asides)
				err = c.type == REC_ASIDE ? set_aside(r, c.node2) : 0;
			else
				err = take(r, &c);
		}
	}
	return err ? err : end == -EAGAIN ? 0 : end;
}

static int read_segment(int base, uint64_t segment, struct reading *r)
{
	char name[32];
	struct stat st;
	int err;

	snprintf(name, sizeof(name), "log.%llu", (unsigned long long)segment);
	CLEANUP_CLOSE int fd = openat(base, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		return -errno;
	if (!st.st_size)
		return 0;
	void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	err = read_log(r, map, (size_t)st.st_size);
	munmap(map, (size_t)st.st_size);
	return err;
}

static void count_file(int dir, const char *name, struct reading *r, struct staging_left *out)
{
	struct stat st;
	char *end;
	uint64_t id = strtoull(name, &end, 16);
	struct sf *f = *end ? NULL : find(r, id);

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
		return;
	out->bytes += (uint64_t)st.st_blocks * 512;
	/* the page pool's */
	if (!strncmp(name, "blank.", 6) || !strcmp(name, "ballast") || (f && f->durable))
		return;
	out->unpublished_files++;
	out->unpublished_bytes += (uint64_t)st.st_size;
}

/* The files of one size class. */
static int count_files(int base, const char *sub, struct reading *r, struct staging_left *out)
{
	CLEANUP_DIR DIR *d = entries_at(base, sub);
	struct dirent *e;

	if (!d)
		return errno == ENOENT ? 0 : -errno;
	while ((e = entries_next(d)))
		count_file(dirfd(d), e->d_name, r, out);
	return -errno;
}

int staging_left_read(int base, const char *id, struct staging_left *out)
{
	struct reading r = {0};
	struct head h = {0};
	struct stat st;
	CLEANUP_CLOSE int fd = openat(base, "head", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : pread(fd, &h, sizeof(h), 0);
	int err = fd < 0 && errno == ENOENT ? 0 : n < 0 ? -errno : 0;

	*out = (struct staging_left){0};
	if (!fstat(fd < 0 ? base : fd, &st))
		out->since = st.st_mtime;
	snprintf(out->store, sizeof(out->store), "%.*s", (int)sizeof(h.store_path) - 1,
		 h.store_path);
	if (!err && h.magic) {
		bool known = h.magic == HEAD_MAGIC && h.version <= HEAD_VERSION &&
			     !strncmp(h.store_id, id, 32);

		r.durable = h.durable;
		err = known ? read_segment(base, h.segment, &r) : -EPROTONOSUPPORT;
	}
	if (err) /* nothing counts as published */
		r.n = 0;
	out->unreadable = err != 0;
	out->unpublished_changes = r.changes;
	for (size_t i = 0; i < r.n; i++)
		out->unpublished_files += r.v[i].spilled && !r.v[i].durable && !r.v[i].gone;
	err = count_files(base, "huge", &r, out);
	if (!err)
		err = count_files(base, "small", &r, out);
	free(r.v);
	free(r.ids);
	free(r.aside);
	return err;
}

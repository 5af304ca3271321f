/* SPDX-License-Identifier: MIT
 * Equal files are stored once if the store has shared extents: replicas of several ranks, and what
 * did not change since the previous checkpoint. A thread looks at what became durable, finds
 * another file with the same checksum and size, and has the kernel compare and share them
 * (io_share). That changes only the space they use, at any crash, so it has no place in the order
 * and nothing waits for it.
 *
 * A file's path:
 *
 *   dedup_offer ──▶ news ──absorb──▶ ring: NEW ──consider──▶ KNOWN ──▶ dropped: the ring is full
 *   (s->lock)       (s->lock)	the thread's own from here on
 *
 * A source of a copy (staging_dedup_source) takes the same path, but is not changed itself: only
 * its checksum is looked up, so that the copy finds it.
 *
 *   state   in ring  in bucket
 *   news    no       no	 includes renames, which change the names of earlier ones
 *   NEW     yes      no	 ring[n_done .. n_all)
 *   KNOWN   yes      yes	later ones are compared with it
 *
 * It runs only after nothing was pending for QUIET_NS, a few MiB at a time, and keeps no file open
 * in between, so that a removed file frees its blocks at once. A file that is gone, replaced or
 * cannot be opened by then is skipped. */
#include "io/clock.h"
#include "io/entries.h"
#include "staging/drain/drain.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEDUP_MIN (64u << 10) /* smaller files gain less than the search costs */
#define NEWS_MAX 16384u /* more at once are ignored */
#define RING 16384u /* files remembered */
#define BUCKETS 4096u
#define TRIES 4u /* files of one checksum that may have been replaced since */
#define STEP (4u << 20) /* both files are locked meanwhile: an unlink waits */
#define QUIET_NS 100000000u
#define SIBLINGS 3u /* newest sibling directories that are searched */
#define LISTED_MAX 4096u
#define LISTED_STEP 64u /* between checks for more urgent work */

struct file {
	struct file *next; /* in news, then in its bucket */
	struct file *node_next; /* in the ring, of its node or one like it; the newest first */
	uint64_t node, dir, size;
	uint64_t at; /* index in the ring */
	uint64_t done; /* shared so far */
	uint64_t saved; /* of these, not in the same blocks before */
	bool renamed; /* in news: node is at dir/name now */
	/* of a copy; size and checksum are unknown until it is considered */
	bool source;
	char checksum[IO_CHECKSUM_LEN];
	char *name;
};

struct sibling {
	char name[256];
	struct timespec mtime;
};

struct dedup {
	/* s->lock */
	pthread_t thread;
	pthread_cond_t cond;
	bool asleep;
	bool off; /* the store does not support it */
	struct file *news, **news_tail;
	unsigned n_news;
	uint64_t seen_seq; /* the order's end when last looked at */

	/* the thread's own */
	bool tried; /* the store supports it */
	struct file *ring[RING];
	uint64_t n_all, n_done;
	struct file *bucket[BUCKETS];
	struct file *by_node[BUCKETS];
	uint64_t sibling_dir; /* whose siblings these are, 0 = none */
	struct sibling sibling[SIBLINGS];
	unsigned n_siblings;
};

static void file_free(struct file *f)
{
	if (f)
		free(f->name);
	free(f);
}

/* ---- what became durable ---- */

void dedup_offer(struct staging *s, const struct pend *p)
{
	struct dedup *d = s->drain.dedup;
	const struct rec *r = &p->r;
	bool renamed = r->type == REC_RENAME && !(r->flags & (REC_DIR | REC_SHADOW));

	if (!d || d->off || d->n_news == NEWS_MAX || r->flags & REC_ABSENT)
		return;
	/* late: a mapping may still write into what is published */
	if (!renamed &&
	    (r->type != REC_SEAL || r->size < DEDUP_MIN || !p->checksum[0] || p->sf->late))
		return;
	struct file *f = calloc(1, sizeof(*f));
	const char *name = renamed ? r->name2 : r->name;
	if (f)
		f->name = strdup(name);
	if (!f || !f->name) {
		file_free(f);
		return;
	}
	f->node = r->node;
	f->dir = renamed ? r->dir2 : r->dir;
	f->size = r->size;
	f->done = p->clone.done ? r->size : 0;
	f->renamed = renamed;
	memcpy(f->checksum, p->checksum, sizeof(f->checksum));
	*d->news_tail = f;
	d->news_tail = &f->next;
	d->n_news++;
	if (d->asleep)
		pthread_cond_signal(&d->cond);
}

int staging_dedup_source(struct staging *s, uint64_t node, uint64_t dir, const char *name)
{
	LOCK_SCOPE(&s->lock);
	struct dedup *d = s->drain.dedup;
	if (!d || d->off)
		return -EOPNOTSUPP;
	struct file *f = d->n_news < NEWS_MAX ? calloc(1, sizeof(*f)) : NULL;
	if (f)
		f->name = strdup(name);
	if (!f || !f->name) {
		file_free(f);
		return 0;
	}
	f->node = node;
	f->dir = dir;
	f->source = true;
	*d->news_tail = f;
	d->news_tail = &f->next;
	d->n_news++;
	return 0; /* wakes nobody: the seal of the copy does that */
}

/* Nothing is pending, nor was a moment ago. s->lock held. */
static bool is_quiet(struct staging *s)
{
	bool same = s->drain.dedup->seen_seq == s->log.last_seq;
	s->drain.dedup->seen_seq = s->log.last_seq;
	return same && s->order.n_pend == s->order.n_aside && !s->drain.inherited;
}

static bool gives_way(struct staging *s)
{
	LOCK_SCOPE(&s->lock);
	return s->stop || s->order.n_pend > s->order.n_aside;
}

/* ---- known files ---- */

static struct file **bucket_of(struct dedup *d, const struct file *f)
{
	uint64_t h = f->size;
	for (const char *c = f->checksum; *c; c++)
		h = h * 31 + (unsigned char)*c;
	return &d->bucket[h % BUCKETS];
}

static void bucket_remove(struct dedup *d, const struct file *f)
{
	for (struct file **pp = bucket_of(d, f); *pp; pp = &(*pp)->next)
		if (*pp == f) {
			*pp = f->next;
			return;
		}
}

static struct file **node_bucket(struct dedup *d, uint64_t node)
{
	return &d->by_node[node % BUCKETS];
}

static void node_remove(struct dedup *d, const struct file *f)
{
	struct file **pp = node_bucket(d, f->node);
	while (*pp != f)
		pp = &(*pp)->node_next;
	*pp = f->node_next;
}

/* The newest of the ring that is node's. */
static struct file *ring_find(struct dedup *d, uint64_t node)
{
	struct file *f = *node_bucket(d, node);
	while (f && f->node != node)
		f = f->node_next;
	return f;
}

static void ring_put(struct dedup *d, struct file *f, uint64_t at)
{
	struct file **slot = &d->ring[at % RING], *old = *slot;
	if (old) {
		bucket_remove(d, old);
		node_remove(d, old);
		file_free(old);
	}
	*slot = f;
	f->at = at;
	f->node_next = *node_bucket(d, f->node);
	*node_bucket(d, f->node) = f;
}

static void ring_add(struct dedup *d, struct file *f)
{
	struct file *old = ring_find(d, f->node);
	if (old && old->at >= d->n_done) { /* replaced before it was considered */
		ring_put(d, f, old->at);
		return;
	}
	ring_put(d, f, d->n_all++);
	if (d->n_all - d->n_done > RING)
		d->n_done = d->n_all - RING;
}

/* A file that a trainer wrote as x.tmp and renamed has another name now. */
static void ring_rename(struct dedup *d, struct file *to)
{
	struct file *f = ring_find(d, to->node);
	if (!f)
		return;
	free(f->name);
	f->name = to->name;
	f->dir = to->dir;
	to->name = NULL;
}

static void absorb(struct dedup *d, struct file *news)
{
	for (struct file *next; news; news = next) {
		next = news->next;
		news->next = NULL;
		if (news->renamed)
			ring_rename(d, news);
		if (news->renamed || (news->source && ring_find(d, news->node)))
			file_free(news);
		else
			ring_add(d, news);
	}
}

/* ---- sharing ---- */

/* Bytes that others will share are read from the disk. */
static int open_source(struct staging *s, int dirfd, const char *name)
{
	int fd = io_open_read(s->o.store, dirfd, name, O_DIRECT);
	return fd == -EINVAL ? io_open_read(s->o.store, dirfd, name, 0) : fd;
}

static int open_file(struct staging *s, const struct file *f, bool source)
{
	int dirfd, err = staging_dir_get(s, f->dir, &dirfd);
	if (err)
		return err;
	int fd = source ? open_source(s, dirfd, f->name)
			: io_open_read(s->o.store, dirfd, f->name, 0);
	staging_dir_put(s, f->dir);
	return fd;
}

/* Only for one owner: otherwise a user who may read neither could learn from the used space that
 * they are equal. */
static bool may_share(int from, int to, uint64_t size)
{
	struct stat a, b;
	return !fstat(from, &a) && !fstat(to, &b) && a.st_dev == b.st_dev && a.st_ino != b.st_ino &&
	       a.st_uid == b.st_uid && (uint64_t)a.st_size == size && (uint64_t)b.st_size == size;
}

static void count(struct staging *s, const struct file *f)
{
	LOCK_SCOPE(&s->lock);
	s->st.dedup.bytes += f->saved;
	s->st.dedup.files += f->saved > 0;
}

/* Shares the next `len` bytes of f. The kernel would compare cached pages, and permanently use the
 * blocks of a file that has decayed under its cache. As io_share. */
static ssize_t share_step(struct staging *s, int from, int to, uint64_t off, size_t len)
{
	char *buf = aligned_alloc(IO_ALIGN, 2 * (STEP + IO_ALIGN));
	int same = buf ? io_same_bytes(to, from, off, len, buf) : -ENOMEM;
	free(buf);
	return same == 1 ? io_share(s->o.store, from, to, off, len) : same;
}

/* f gets the blocks of `from`, from where an earlier try stopped. 0; -ECANCELED: there is more
 * urgent work; -ESTALE: changed or different; else the store's error. */
static int share(struct staging *s, int from, struct file *f)
{
	CLEANUP_CLOSE int to = open_file(s, f, false);
	if (to < 0)
		return to;
	if (!may_share(from, to, f->size))
		return -ESTALE;
	while (f->done < f->size) {
		if (gives_way(s))
			return -ECANCELED;
		uint64_t left = f->size - f->done;
		uint64_t same = io_is_shared(from, to, f->done, left);
		if (same) { /* nothing to read, nothing to gain */
			f->done += same;
			continue;
		}
		ssize_t n = share_step(s, from, to, f->done, left < STEP ? left : STEP);
		if (n <= 0)
			return n ? (int)n : -ESTALE;
		f->done += (uint64_t)n;
		f->saved += (uint64_t)n;
	}
	count(s, f);
	return 0;
}

/* Shares f with a file that this mount made durable. -ENOENT: none is equal. */
static int share_with_known(struct staging *s, struct file *f)
{
	unsigned tries = 0;
	for (struct file *k = *bucket_of(s->drain.dedup, f); k && tries < TRIES; k = k->next) {
		if (k->size != f->size || strcmp(k->checksum, f->checksum) != 0)
			continue;
		if (k->dir == f->dir && !strcmp(k->name, f->name))
			continue; /* what f replaced */
		tries++;
		CLEANUP_CLOSE int from = open_file(s, k, true);
		int err = from < 0 ? from : share(s, from, f);
		if (!err || err == -ECANCELED)
			return err;
	}
	return -ENOENT;
}

/* ---- the previous checkpoint, of an earlier mount ---- */

static void sibling_add(struct dedup *d, const char *name, const struct stat *st)
{
	unsigned at = d->n_siblings;
	while (at && time_is_later(st->st_mtim, d->sibling[at - 1].mtime))
		at--;
	if (at == SIBLINGS)
		return;
	if (d->n_siblings < SIBLINGS)
		d->n_siblings++;
	memmove(&d->sibling[at + 1], &d->sibling[at],
		(d->n_siblings - at - 1) * sizeof(d->sibling[0]));
	snprintf(d->sibling[at].name, sizeof(d->sibling[at].name), "%s", name);
	d->sibling[at].mtime = st->st_mtim;
}

/* The newest directories in `parent` except `own`. 0; -ECANCELED: there is more urgent work. */
static int list_siblings(struct staging *s, int parent, const struct stat *own)
{
	CLEANUP_DIR DIR *dir = entries_at(parent, ".");
	struct dirent *e;
	struct stat st;
	int err = 0;

	for (unsigned n = 0; !err && n < LISTED_MAX && (e = entries_next(dir)); n++) {
		if (n % LISTED_STEP == LISTED_STEP - 1 && gives_way(s))
			err = -ECANCELED;
		if (e->d_name[0] != '.' && (e->d_type == DT_DIR || e->d_type == DT_UNKNOWN) &&
		    !io_stat(s->o.store, parent, e->d_name, &st) && S_ISDIR(st.st_mode) &&
		    st.st_ino != own->st_ino)
			sibling_add(s->drain.dedup, e->d_name, &st);
	}
	return err;
}

static int share_with_sibling(struct staging *s, int parent, const char *sibling, struct file *f)
{
	CLEANUP_CLOSE int dir = io_open_dir(s->o.store, parent, sibling);
	char sum[IO_CHECKSUM_LEN];
	ssize_t n =
		dir < 0 ? dir
			: io_get_xattr(s->o.store, dir, f->name, KEY_CHECKSUM, sum, sizeof(sum));

	if (n < 0 || (size_t)n != strlen(f->checksum) || memcmp(sum, f->checksum, (size_t)n) != 0)
		return -ENOENT;
	CLEANUP_CLOSE int from = open_source(s, dir, f->name);
	return from < 0 ? from : share(s, from, f);
}

static int share_with_siblings(struct staging *s, struct file *f)
{
	struct dedup *d = s->drain.dedup;
	uint64_t id = dirs_parent(s, f->dir);
	int parent, own, err = id ? staging_dir_get(s, id, &parent) : -ENOENT;
	struct stat st;

	if (err)
		return err;
	if (d->sibling_dir != f->dir && !(err = staging_dir_get(s, f->dir, &own))) {
		err = io_stat(s->o.store, own, NULL, &st);
		staging_dir_put(s, f->dir);
		d->n_siblings = 0;
		if (!err)
			err = list_siblings(s, parent, &st);
		d->sibling_dir = err == -ECANCELED ? 0 : f->dir;
	}
	unsigned n = err ? 0 : d->n_siblings;
	err = err == -ECANCELED ? err : -ENOENT;
	for (unsigned i = 0; i < n && err && err != -ECANCELED; i++)
		err = share_with_sibling(s, parent, d->sibling[i].name, f);
	staging_dir_put(s, id);
	return err;
}

/* ---- sources of copies ---- */

/* A source without a checksum is equal to nothing. */
static void look_up_source(struct staging *s, struct file *f)
{
	struct stat st;
	int dir, err = staging_dir_get(s, f->dir, &dir);
	if (err)
		return;
	ssize_t n = io_get_xattr(s->o.store, dir, f->name, KEY_CHECKSUM, f->checksum,
				 sizeof(f->checksum) - 1);
	if (n > 0 && !io_stat(s->o.store, dir, f->name, &st) && S_ISREG(st.st_mode)) {
		f->checksum[n] = 0;
		f->size = (uint64_t)st.st_size;
	} else {
		f->checksum[0] = 0;
	}
	staging_dir_put(s, f->dir);
}

/* ---- the thread ---- */

/* Unless -ECANCELED, f is from then on one to compare with. */
static void consider(struct staging *s)
{
	struct dedup *d = s->drain.dedup;
	struct file *f = d->ring[d->n_done % RING];
	int err = f->source || f->done >= f->size ? 0 : share_with_known(s, f);

	if (f->source)
		look_up_source(s, f);
	else if (err == -ENOENT)
		err = share_with_siblings(s, f);
	if (err == -ECANCELED)
		return;
	struct file **b = bucket_of(d, f);
	f->next = *b;
	*b = f;
	d->n_done++;
}

/* 0: yes. -EOPNOTSUPP: never. Else: not now. */
static int can_share(struct staging *s)
{
	struct dedup *d = s->drain.dedup;
	int err = d->tried ? 0 : io_can_share(s->o.store);
	d->tried = !err;
	return err;
}

/* s->lock held */
static struct file *take_news(struct dedup *d)
{
	struct file *news = d->news;
	d->news = NULL;
	d->news_tail = &d->news;
	d->n_news = 0;
	return news;
}

/* s->lock held; dropped meanwhile. */
static void take_in(struct staging *s)
{
	struct file *news = take_news(s->drain.dedup);
	pthread_mutex_unlock(&s->lock);
	absorb(s->drain.dedup, news);
	pthread_mutex_lock(&s->lock);
}

/* Everything that comes until then is considered together, including renames. It is taken in at
 * once: a trainer that never pauses would fill the news with renames of ignored files. s->lock
 * held. */
static void wait_until_quiet(struct staging *s)
{
	struct dedup *d = s->drain.dedup;
	while (!s->stop && !is_quiet(s)) {
		staging_wait_until(&d->cond, &s->lock, monotonic_ns() + QUIET_NS);
		take_in(s);
	}
}

/* Nothing is compared any more. s->lock held. */
static void forget_all(struct dedup *d)
{
	for (struct file *f = take_news(d), *next; f; f = next) {
		next = f->next;
		file_free(f);
	}
	for (unsigned i = 0; i < RING; i++) {
		file_free(d->ring[i]);
		d->ring[i] = NULL;
	}
}

static void *dedup_main(void *arg)
{
	struct staging *s = arg;
	struct dedup *d = s->drain.dedup;
	int err = 0;

	pthread_setname_np(pthread_self(), "cairn-dedup");
	staging_nice(PERSIST_NICE); /* not more: it holds locks of files */
	pthread_mutex_lock(&s->lock);
	while (!s->stop && err != -EOPNOTSUPP) {
		if (!d->news && d->n_done == d->n_all) {
			d->asleep = true;
			pthread_cond_wait(&d->cond, &s->lock);
			d->asleep = false;
		}
		wait_until_quiet(s);
		if (!s->stop)
			take_in(s);
		pthread_mutex_unlock(&s->lock);
		err = d->n_done < d->n_all ? can_share(s) : 0;
		while (!err && d->n_done < d->n_all && !gives_way(s))
			consider(s);
		if (err) /* for example, the store is full: not these */
			d->n_done = d->n_all;
		pthread_mutex_lock(&s->lock);
	}
	d->off = true;
	forget_all(d);
	while (!s->stop) /* it is not joined earlier */
		pthread_cond_wait(&d->cond, &s->lock);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

int dedup_start(struct staging *s)
{
	struct dedup *d = s->o.no_dedup ? NULL : calloc(1, sizeof(*d));
	pthread_condattr_t a;

	if (!d)
		return s->o.no_dedup ? 0 : -ENOMEM;
	d->news_tail = &d->news;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&d->cond, &a);
	pthread_condattr_destroy(&a);
	pthread_mutex_lock(&s->lock);
	s->drain.dedup = d;
	pthread_mutex_unlock(&s->lock);
	return pthread_create(&d->thread, NULL, dedup_main, s) ? -EAGAIN : 0;
}

void dedup_wake(struct staging *s)
{
	if (s->drain.dedup)
		pthread_cond_signal(&s->drain.dedup->cond);
}

void dedup_close(struct staging *s)
{
	struct dedup *d = s->drain.dedup;
	if (!d)
		return;
	if (d->thread)
		pthread_join(d->thread, NULL);
	forget_all(d); /* if there was no thread */
	free(d);
	s->drain.dedup = NULL;
}

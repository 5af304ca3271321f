/* SPDX-License-Identifier: MIT
 * The timeline: of each version that became durable when it was begun, closed and durable, and
 * what it waited for. The publisher takes down numbers and a name; a thread of its own makes lines
 * of JSON of them and appends these to a file in the store (io/store/timeline.c), which `cairn
 * timeline` reads. Small files of one directory that come together share a line. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define GATHER_NS 200000000u /* a line is written this long after the first of its write */
#define ITEMS_MAX 4096u /* more at once are left out */
#define PATH_ROOM 4096u

struct item {
	struct item *next;
	uint64_t dir, dir2; /* dir2: it is a rename of a directory */
	uint64_t files, bytes;
	uint64_t begun, closed, durable; /* CLOCK_REALTIME */
	uint64_t wait[PEND_WAITS];
	bool small;
	char name[]; /* of a rename two, each with its NUL */
};

struct timeline {
	pthread_cond_t cond; /* with s->lock, as all below */
	pthread_t thread;
	struct item *first, *last;
	unsigned n;
	bool writing; /* the thread has items that are not in `first` any more */
};

static const char *const wait_name[PEND_WAITS] = {
	[WAIT_ADMISSION] = "admission", [WAIT_SPILL] = "spill", [WAIT_FSYNC] = "fsync",
	[WAIT_LEASE] = "lease",		[WAIT_HOLD] = "hold",	[WAIT_DISK] = "disk",
};

static uint64_t realtime_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- by the publisher, s->lock held ---- */

static struct item *add(struct staging *s, size_t names)
{
	struct timeline *t = s->drain.timeline;
	struct item *i = t->n < ITEMS_MAX ? calloc(1, sizeof(*i) + names) : NULL;

	if (!i)
		return NULL;
	if (t->last)
		t->last->next = i;
	else
		t->first = i;
	t->last = i;
	if (!t->n++)
		pthread_cond_signal(&t->cond);
	return i;
}

static void note_rename(struct staging *s, const struct rec *r)
{
	size_t n = strlen(r->name) + 1, n2 = strlen(r->name2) + 1;
	struct item *i = add(s, n + n2);

	if (!i)
		return;
	i->dir = r->dir;
	i->dir2 = r->dir2;
	i->durable = realtime_ns();
	memcpy(i->name, r->name, n);
	memcpy(i->name + n, r->name2, n2);
	dirs_ref(s, i->dir);
	dirs_ref(s, i->dir2);
}

/* As item: one version, or a name that was held; its own name is not set. */
static struct item measured(const struct pend *p)
{
	const struct pend_times *t = &p->times;
	bool named = p->r.type != REC_SEAL; /* its bytes have a line of their own */
	uint64_t now = monotonic_ns(), real = realtime_ns();
	uint64_t mtime = (uint64_t)p->r.mtime.tv_sec * 1000000000u + (uint64_t)p->r.mtime.tv_nsec;
	uint64_t closed = t->closed ? t->closed : p->start_ns;
	struct item i = {.files = !named, .bytes = named ? 0 : p->r.size, .durable = real};

	i.closed = t->closed || named ? real - (now - closed) : mtime < real ? mtime : real;
	i.begun = t->begun ? real - (now - t->begun) : i.closed;
	memcpy(i.wait, t->wait, sizeof(i.wait));
	i.wait[WAIT_FSYNC] = t->fsync ? now - t->closed : 0;
	i.wait[WAIT_DISK] += now - closed - t->wait[WAIT_LEASE] - t->wait[WAIT_HOLD];
	i.small = !named && is_small(p);
	return i;
}

static void merge(struct item *to, const struct item *i, bool same)
{
	to->files = same ? to->files : to->files + i->files;
	to->bytes = same ? i->bytes : to->bytes + i->bytes;
	to->begun = i->begun < to->begun ? i->begun : to->begun;
	to->closed = i->closed > to->closed ? i->closed : to->closed;
	to->durable = i->durable > to->durable ? i->durable : to->durable;
	for (unsigned w = 0; w < PEND_WAITS; w++)
		if (i->wait[w] > to->wait[w])
			to->wait[w] = i->wait[w];
}

static void note(struct staging *s, const struct pend *p, uint64_t dir, const char *name)
{
	struct item now = measured(p), *last = s->drain.timeline->last;
	size_t n = strlen(name) + 1;

	bool near = now.small && last && last->small && last->dir == dir;
	bool same = near && !strcmp(last->name, name); /* another version of it */
	if (near && (!same || last->files == 1)) {
		merge(last, &now, same);
		return;
	}
	struct item *i = add(s, n);
	if (!i)
		return;
	*i = now; /* it is the last: next is NULL */
	i->dir = dir;
	memcpy(i->name, name, n);
	dirs_ref(s, dir);
}

void timeline_note(struct staging *s, const struct pend *p)
{
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;

	if (!s->drain.timeline || p->r.flags & REC_ABSENT)
		return;
	if (p->r.type == REC_RENAME && p->r.flags & REC_DIR)
		note_rename(s, &p->r);
	else if (p->r.type == REC_RENAME && p->times.wait[WAIT_HOLD])
		note(s, p, p->r.dir2, p->r.name2);
	else if (p->r.type == REC_SEAL &&
		 rec_unpack(p->r.data, p->r.data_len, &pos, &name, &pair) == 1)
		note(s, p, name.dir, name.name);
}

/* ---- by its thread ---- */

/* Names are bytes: each that is not ASCII is written as \u00XX (tools/cairn/base/json.h). */
static void put_string(FILE *f, const char *key, const char *bytes)
{
	fprintf(f, "\"%s\":\"", key);
	for (const unsigned char *u = (const unsigned char *)bytes; *u; u++)
		if (*u < 0x20 || *u >= 0x7f || *u == '"' || *u == '\\')
			fprintf(f, "\\u%04x", *u);
		else
			putc_unlocked(*u, f);
	putc_unlocked('"', f);
}

static void put_ms(FILE *f, const char *key, uint64_t ns)
{
	fprintf(f, ",\"%s\":%llu", key, (unsigned long long)(ns / 1000000u));
}

static void put_item(struct staging *s, FILE *f, const struct item *i)
{
	char path[PATH_ROOM];
	const char *name2 = i->name + strlen(i->name) + 1;

	putc_unlocked('{', f);
	dirs_root_relative(s, i->dir, i->name, path, sizeof(path));
	put_string(f, i->dir2 ? "from" : "path", path);
	if (i->dir2) {
		dirs_root_relative(s, i->dir2, name2, path, sizeof(path));
		putc_unlocked(',', f);
		put_string(f, "to", path);
		put_ms(f, "durable", i->durable);
	} else {
		fprintf(f, ",\"files\":%llu,\"bytes\":%llu", (unsigned long long)i->files,
			(unsigned long long)i->bytes);
		put_ms(f, "created", i->begun);
		put_ms(f, "closed", i->closed);
		put_ms(f, "durable", i->durable);
		for (unsigned w = 0; w < PEND_WAITS; w++)
			put_ms(f, wait_name[w], i->wait[w]);
	}
	fputs("}\n", f);
}

/* Writes and frees them. No lock held. */
static void write_items(struct staging *s, struct item *first)
{
	char *lines = NULL;
	size_t len;
	FILE *f = first ? open_memstream(&lines, &len) : NULL;

	for (struct item *i = first, *next; i; i = next) {
		next = i->next;
		if (f)
			put_item(s, f, i);
		dirs_unref(s, i->dir);
		if (i->dir2)
			dirs_unref(s, i->dir2);
		free(i);
	}
	if (f && !fclose(f))
		io_timeline_append(s->o.store, lines, len);
	free(lines);
}

static struct item *take(struct timeline *t)
{
	struct item *first = t->first;

	t->first = t->last = NULL;
	t->n = 0;
	return first;
}

static void *timeline_main(void *arg)
{
	struct staging *s = arg;
	struct timeline *t = s->drain.timeline;

	pthread_setname_np(pthread_self(), "cairn-timeline");
	staging_nice(PERSIST_NICE);
	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		if (!t->first) {
			pthread_cond_wait(&t->cond, &s->lock);
			continue;
		}
		uint64_t until = monotonic_ns() + GATHER_NS;
		while (!s->stop && monotonic_ns() < until)
			staging_wait_until(&t->cond, &s->lock, until);
		struct item *first = take(t);
		t->writing = true;
		pthread_mutex_unlock(&s->lock);
		write_items(s, first);
		pthread_mutex_lock(&s->lock);
		t->writing = false;
		pthread_cond_broadcast(&t->cond);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

int timeline_start(struct staging *s)
{
	struct timeline *t = calloc(1, sizeof(*t));
	pthread_condattr_t a;

	if (!t)
		return -ENOMEM;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&t->cond, &a);
	pthread_condattr_destroy(&a);
	LOCK_SCOPE(&s->lock);
	s->drain.timeline = t;
	return pthread_create(&t->thread, NULL, timeline_main, s) ? -EAGAIN : 0;
}

void staging_flush_timeline(struct staging *s)
{
	struct timeline *t = s->drain.timeline;

	if (!t)
		return;
	pthread_mutex_lock(&s->lock);
	while (t->writing)
		pthread_cond_wait(&t->cond, &s->lock);
	struct item *first = take(t);
	pthread_mutex_unlock(&s->lock);
	write_items(s, first);
}

void timeline_wake(struct staging *s)
{
	if (s->drain.timeline)
		pthread_cond_signal(&s->drain.timeline->cond);
}

void timeline_close(struct staging *s)
{
	struct timeline *t = s->drain.timeline;

	if (!t)
		return;
	if (t->thread)
		pthread_join(t->thread, NULL);
	write_items(s, take(t));
	s->drain.timeline = NULL;
	free(t);
}

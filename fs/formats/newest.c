/* SPDX-License-Identifier: MIT
 *
 * Finds the newest of many checkpoints. Steps are more reliable than times, but can be compared
 * only within a run, that is, in one directory.
 */
#include "fs/formats/inside.h"

static size_t dir_len(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (size_t)(slash - path) : 0;
}

static int by_dir(const struct ckpt_found *a, const struct ckpt_found *b)
{
	size_t n = dir_len(a->path), m = dir_len(b->path);
	int d = memcmp(a->path, b->path, n < m ? n : m);

	return d ? d : n < m ? -1 : n > m;
}

static int by_time(const struct ckpt_found *a, const struct ckpt_found *b)
{
	if (a->time.tv_sec != b->time.tv_sec)
		return a->time.tv_sec > b->time.tv_sec ? -1 : 1;
	return a->time.tv_nsec > b->time.tv_nsec ? -1 : a->time.tv_nsec < b->time.tv_nsec;
}

/* A run: the checkpoints of one directory that have a step, or those that have none. */
static int by_run(const struct ckpt_found *a, const struct ckpt_found *b)
{
	int d = by_dir(a, b);

	return d ? d : (int)b->kind.has_step - (int)a->kind.has_step;
}

static int newest_first(const void *x, const void *y)
{
	const struct ckpt_found *a = x, *b = y;
	int d = by_run(a, b);

	if (!d && a->kind.has_step && a->kind.step != b->kind.step)
		return a->kind.step > b->kind.step ? -1 : 1;
	if (!d)
		d = by_time(a, b);
	return d ? d : strcmp(a->path, b->path);
}

static int by_path(const void *x, const void *y)
{
	return strcmp(((const struct ckpt_found *)x)->path, ((const struct ckpt_found *)y)->path);
}

/* That of the first len bytes of path, or NULL. v sorted by path. */
static struct ckpt_found *find(struct ckpt_found *v, size_t n, const char *path, size_t len)
{
	size_t lo = 0, hi = n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int d = strncmp(v[mid].path, path, len);

		d = d ? d : v[mid].path[len] != '\0';
		if (!d)
			return &v[mid];
		if (d < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

/* Is it a part of another one? What only a tier has says nothing of what the store has. */
static void look_above(struct ckpt_found *v, size_t n, struct ckpt_found *c)
{
	for (const char *p = c->path; (p = strchr(p, '/')); p++) {
		struct ckpt_found *up = find(v, n, c->path, (size_t)(p - c->path));

		if (!up)
			continue;
		up->above = true;
		c->part |= !ckpt_is_loose(&up->kind) && (!up->remote || c->remote);
	}
}

/* Files of tensors in the directory of a run. */
static bool is_stray(const struct ckpt_found *c)
{
	return c->above && ckpt_is_loose(&c->kind) && !c->kind.model;
}

size_t ckpt_found_sort(struct ckpt_found *v, size_t n)
{
	size_t kept = 0;

	if (n)
		qsort(v, n, sizeof(*v), by_path);
	for (size_t i = 0; i < n; i++)
		v[i].above = v[i].part = false;
	for (size_t i = 0; i < n; i++)
		look_above(v, n, &v[i]);
	for (size_t i = 0; i < n; i++)
		if (v[i].part || is_stray(&v[i]))
			free(v[i].path);
		else
			v[kept++] = v[i];
	if (kept)
		qsort(v, kept, sizeof(*v), newest_first);
	return kept;
}

ssize_t ckpt_found_before(const struct ckpt_found *v, size_t n, size_t i)
{
	for (size_t j = i + 1; j < n && !by_run(&v[i], &v[j]); j++)
		if (v[j].kind.format == v[i].kind.format &&
		    (!v[i].kind.has_step || v[j].kind.step < v[i].kind.step))
			return (ssize_t)j;
	return -1;
}

ssize_t ckpt_newest_safe(const struct ckpt_found *v, size_t n, int (*is_safe)(void *ctx, size_t i),
			 void *ctx)
{
	ssize_t best = -ENOENT;

	for (size_t i = 0, end; i < n; i = end) {
		bool may_win = false;
		int safe = 0;

		for (end = i; end < n && !by_run(&v[i], &v[end]); end++)
			may_win |= best < 0 || by_time(&v[end], &v[best]) < 0;
		for (size_t j = i; may_win && j < end && !safe; j++) {
			safe = is_safe(ctx, j);
			if (safe < 0)
				return safe;
			if (safe && (best < 0 || by_time(&v[j], &v[best]) < 0))
				best = (ssize_t)j;
		}
	}
	return best;
}

/* SPDX-License-Identifier: MIT
 *
 * The record of past saves, read and grouped by checkpoint.
 */
#include "timeline.h"

#include <fcntl.h>
#include <string.h>

#define RECORD_MAX (64u << 20)
#define SAVES_MAX 1000u /* the newest */
/* A directory that is written again this long after all in it was durable: another save. */
#define APART_MS 10000u
#define APART_SAME_MS 1000u /* and a file that is */
#define SAME_LOOKED 256u

const char *const save_wait_name[SAVE_WAITS] = {"admission", "spill", "fsync",
						"lease",     "hold",  "disk"};
enum { ADMISSION, SPILL, FSYNC, LEASE, HOLD, DISK };

struct rename {
	char *from, *to;
	uint64_t durable;
};

struct record {
	struct part *part;
	size_t n, cap;
	struct rename *rename;
	size_t n_renames, renames_cap;
};

/* Room for one more. */
static void *grow(void *v, size_t n, size_t *cap, size_t size)
{
	if (n < *cap)
		return v;
	*cap = *cap ? *cap * 2 : 64;
	return realloc(v, *cap * size);
}

/* ---- lines ---- */

static uint64_t number(const struct json_doc *d, const char *key)
{
	return json_u64(d, json_at(d, 0, key));
}

static int add_part(struct record *r, const struct json_doc *d, char *path)
{
	void *v = grow(r->part, r->n, &r->cap, sizeof(*r->part));

	if (!v) {
		free(path);
		return -ENOMEM;
	}
	r->part = v;
	struct part *p = &r->part[r->n++];
	*p = (struct part){
		.path = path,
		.files = number(d, "files"),
		.bytes = number(d, "bytes"),
		.created = number(d, "created"),
		.closed = number(d, "closed"),
		.durable = number(d, "durable"),
	};
	for (unsigned w = 0; w < SAVE_WAITS; w++)
		p->wait[w] = number(d, save_wait_name[w]);
	return 0;
}

static int add_rename(struct record *r, const struct json_doc *d)
{
	struct rename new = {.from = json_bytes(d, json_at(d, 0, "from")),
			     .to = json_bytes(d, json_at(d, 0, "to")),
			     .durable = number(d, "durable")};
	void *v = grow(r->rename, r->n_renames, &r->renames_cap, sizeof(new));

	if (v)
		r->rename = v;
	if (!v || !new.from || !new.to) {
		free(new.from);
		free(new.to);
		return v ? 0 : -ENOMEM;
	}
	r->rename[r->n_renames++] = new;
	return 0;
}

/* One that is torn or of a later version is skipped. */
static int add_line(struct record *r, const char *line, size_t len)
{
	CLEANUP_JSON struct json_doc *d = NULL;

	if (json_parse(line, len, &d))
		return 0;
	char *path = json_bytes(d, json_at(d, 0, "path"));
	return path ? add_part(r, d, path) : add_rename(r, d);
}

static int add_lines(struct record *r, int dirfd, const char *name)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;
	int err = read_small_file(dirfd, name, RECORD_MAX, &text, &len);

	for (char *at = text; !err && at && *at;) {
		size_t n = strcspn(at, "\n");
		err = n ? add_line(r, at, n) : 0;
		at += n + (at[n] == '\n');
	}
	return err;
}

/* Of all nodes. */
static int add_store(struct record *r, int root)
{
	CLEANUP_CLOSE int cairn = openat(root, ".cairn", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct names hosts = {0};
	int err = cairn < 0 ? -errno : names_read(cairn, &hosts);

	for (size_t i = 0; !err && i < hosts.n; i++) {
		CLEANUP_CLOSE int host =
			openat(cairn, hosts.v[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		for (unsigned old = 2; !err && host >= 0 && old-- > 0;) {
			err = add_lines(r, host, old ? "timeline.old" : "timeline");
			err = err == -ENOENT ? 0 : err;
		}
	}
	names_free(&hosts);
	return err;
}

/* ---- names ---- */

/* What follows dir and a '/' in path; NULL: it is not below. dir "" is above all. */
static const char *below(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	if (!n)
		return path;
	return !strncmp(path, dir, n) && path[n] == '/' ? path + n + 1 : NULL;
}

static int by_durable(const void *a, const void *b)
{
	const struct rename *x = a, *y = b;

	return (x->durable > y->durable) - (x->durable < y->durable);
}

/* Checkpoints are often written under another name. */
static int follow(struct record *r)
{
	if (r->n_renames)
		qsort(r->rename, r->n_renames, sizeof(*r->rename), by_durable);
	for (size_t i = 0; i < r->n_renames; i++)
		for (size_t j = 0; j < r->n; j++) {
			const char *rest = below(r->part[j].path, r->rename[i].from);
			char *path;

			if (!rest || r->part[j].durable > r->rename[i].durable)
				continue;
			if (asprintf(&path, "%s/%s", r->rename[i].to, rest) < 0)
				return -ENOMEM;
			free(r->part[j].path);
			r->part[j].path = path;
		}
	return 0;
}

/* ---- by checkpoint ---- */

static int by_creation(const void *a, const void *b)
{
	const struct part *x = a, *y = b;

	return x->created != y->created ? (x->created > y->created) - (x->created < y->created)
					: strcmp(x->path, y->path);
}

/* The last part of s with this name, of the latest. */
static bool has_path(const struct save *s, const char *path)
{
	for (size_t i = s->n; i > 0 && s->n - i < SAME_LOOKED; i--)
		if (!strcmp(s->part[i - 1]->path, path))
			return true;
	return false;
}

static bool is_apart(const struct save *s, const struct part *p)
{
	return p->created > s->durable + APART_MS ||
	       (p->created > s->durable + APART_SAME_MS && has_path(s, p->path));
}

static int join(struct save *s, const struct part *p, size_t len)
{
	/* the power of two above n is its capacity */
	if (!(s->n & (s->n - 1))) {
		void *v = realloc(s->part, (s->n ? 2 * s->n : 1) * sizeof(struct part *));
		if (!v)
			return -ENOMEM;
		s->part = v;
	}
	if (!s->n) {
		s->path = p->path;
		s->len = len;
		s->created = p->created;
	}
	if (!has_path(s, p->path)) { /* else another version of it */
		s->files += p->files;
		s->bytes += p->bytes;
	}
	s->part[s->n++] = p;
	s->created = p->created < s->created ? p->created : s->created;
	s->closed = p->closed > s->closed ? p->closed : s->closed;
	s->durable = p->durable > s->durable ? p->durable : s->durable;
	return 0;
}

static int group(struct saves *out, const char *dir)
{
	size_t cap = 0, skip = strlen(dir) + (*dir != '\0');

	for (size_t i = 0; i < out->n_parts; i++) {
		const struct part *p = &out->part[i];
		const char *rest = below(p->path, dir);
		struct save *s = NULL;

		if (!rest)
			continue;
		size_t len = skip + strcspn(rest, "/");
		for (size_t j = out->n; !s && j > 0; j--)
			if (out->save[j - 1].len == len &&
			    !strncmp(out->save[j - 1].path, p->path, len))
				s = &out->save[j - 1];
		if (!s || is_apart(s, p)) {
			void *v = grow(out->save, out->n, &cap, sizeof(*s));
			if (!v)
				return -ENOMEM;
			out->save = v;
			s = &out->save[out->n++];
			*s = (struct save){.n = 0};
		}
		int err = join(s, p, len);
		if (err)
			return err;
	}
	return 0;
}

/* ---- waits ---- */

struct span part_wait(const struct part *p, unsigned wait)
{
	uint64_t ms = p->wait[wait], held = p->wait[HOLD];
	uint64_t end = wait == ADMISSION ? p->created + ms
		       : wait == SPILL	 ? p->closed
		       : wait == LEASE	 ? p->closed + ms
		       : wait == DISK	 ? p->durable - (held < p->durable ? held : 0)
					 : p->durable;

	return (struct span){end > ms ? end - ms : 0, end};
}

static int by_start(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	return (x->from > y->from) - (x->from < y->from);
}

/* Parts wait at the same time: a moment counts once. */
static int sum_waits(struct save *s)
{
	CLEANUP_FREE struct span *v = calloc(s->n, sizeof(*v));

	if (!v)
		return -ENOMEM;
	for (unsigned w = 0; w < SAVE_WAITS; w++) {
		uint64_t end = 0;

		for (size_t i = 0; i < s->n; i++)
			v[i] = part_wait(s->part[i], w);
		qsort(v, s->n, sizeof(*v), by_start);
		for (size_t i = 0; i < s->n; i++) {
			uint64_t from = v[i].from > end ? v[i].from : end;

			if (v[i].to > from)
				s->wait[w] += v[i].to - from;
			end = v[i].to > end ? v[i].to : end;
		}
	}
	return 0;
}

bool save_is_writers(unsigned wait)
{
	return wait == ADMISSION || wait == SPILL || wait == FSYNC;
}

bool save_waits(const struct save *s, char buf[SAVE_WAITS_ROOM])
{
	uint64_t left[SAVE_WAITS];
	size_t len = 0;

	memcpy(left, s->wait, sizeof(left));
	for (;;) {
		unsigned most = 0;

		for (unsigned w = 1; w < SAVE_WAITS; w++)
			if (left[w] > left[most])
				most = w;
		if (!left[most])
			return len;
		len += (size_t)snprintf(buf + len, SAVE_WAITS_ROOM - len, "%s%s %.3f s",
					len ? ", " : "", save_wait_name[most],
					(double)left[most] / 1e3);
		left[most] = 0;
	}
}

/* ---- all ---- */

static void drop_oldest(struct saves *s)
{
	size_t n = s->n > SAVES_MAX ? s->n - SAVES_MAX : 0;

	for (size_t i = 0; i < n; i++)
		free(s->save[i].part);
	if (n)
		memmove(s->save, s->save + n, SAVES_MAX * sizeof(*s->save));
	s->n -= n;
}

int saves_read(const struct location *p, struct saves *out)
{
	struct record r = {.n = 0};
	int err = p->on_mount ? add_lines(&r, p->root, ".cairn/timeline") : add_store(&r, p->root);

	if (!err)
		err = follow(&r);
	for (size_t i = 0; i < r.n_renames; i++) {
		free(r.rename[i].from);
		free(r.rename[i].to);
	}
	free(r.rename);
	*out = (struct saves){.part = r.part, .n_parts = r.n};
	if (!err && r.n)
		qsort(r.part, r.n, sizeof(*r.part), by_creation);
	if (!err)
		err = group(out, p->below);
	drop_oldest(out);
	for (size_t i = 0; !err && i < out->n; i++)
		err = sum_waits(&out->save[i]);
	if (err)
		saves_free(out);
	return err;
}

void saves_free(struct saves *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->save[i].part);
	free(s->save);
	for (size_t i = 0; i < s->n_parts; i++)
		free(s->part[i].path);
	free(s->part);
	*s = (struct saves){.n = 0};
}

char *save_name(const struct save *s)
{
	return strndup(s->path, s->len);
}

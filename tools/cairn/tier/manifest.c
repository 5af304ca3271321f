/* SPDX-License-Identifier: MIT
 *
 * Manifests: what of a checkpoint is in a tier. Untrusted bytes: no path leads out of the tier.
 */
#include "tier.h"

#include "tools/tier/wire.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>

#define MAX_BYTES (512u << 20) /* of one manifest; a file takes some 150 */

char *manifest_path(const char *checkpoint, const char *name)
{
	char *path;

	return asprintf(&path, TIER_MANIFESTS "/%s%s%s", checkpoint, *checkpoint ? "/" : "", name) <
			       0
		       ? NULL
		       : path;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct tier_file *)a)->path, ((const struct tier_file *)b)->path);
}

void manifest_sort(struct manifest *m)
{
	if (m->n)
		qsort(m->v, m->n, sizeof(*m->v), by_path);
}

const struct tier_file *manifest_find(const struct manifest *m, const char *path)
{
	const struct tier_file key = {.path = (char *)path};

	return m->n ? bsearch(&key, m->v, m->n, sizeof(*m->v), by_path) : NULL;
}

uint64_t manifest_bytes(const struct manifest *m)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->n; i++)
		sum += m->v[i].size;
	return sum;
}

struct timespec manifest_time(const struct manifest *m)
{
	struct timespec t = {0};

	for (size_t i = 0; i < m->n; i++)
		if (m->v[i].mtime.tv_sec >= t.tv_sec)
			t = m->v[i].mtime;
	return t;
}

enum ckpt_format manifest_format(const struct manifest *m)
{
	for (int k = CKPT_NONE; k <= CKPT_SNAPSHOT; k++)
		if (!strcmp(m->format, ckpt_format_name((enum ckpt_format)k)))
			return (enum ckpt_format)k;
	return CKPT_NONE;
}

int manifest_found(const struct manifest *m, struct ckpt_found *out)
{
	*out = (struct ckpt_found){.path = strdup(m->path), .time = manifest_time(m)};
	out->kind.format = manifest_format(m);
	out->kind.has_step = m->has_step;
	out->kind.step = m->step;
	for (size_t i = 0; i < m->n; i++)
		out->kind.model |= ckpt_is_model_file(path_base(m->v[i].path));
	return out->path ? 0 : -ENOMEM;
}

uint64_t tier_hash(uint64_t h, const void *bytes, size_t n)
{
	const unsigned char *b = bytes;

	for (size_t i = 0; i < n; i++)
		h = (h ^ b[i]) * 0x100000001b3u;
	return h;
}

uint64_t manifest_version(const struct manifest *m)
{
	uint64_t h = TIER_HASH_BEGIN;

	h = tier_hash(h, &m->generation, sizeof(m->generation));
	h = tier_hash(h, &m->time_s, sizeof(m->time_s));
	for (size_t i = 0; i < m->n; i++) {
		h = tier_hash(h, m->v[i].path, strlen(m->v[i].path) + 1);
		h = tier_hash(h, m->v[i].sum, strlen(m->v[i].sum));
		h = tier_hash(h, &m->v[i].size, sizeof(m->v[i].size));
	}
	return h;
}

/* ---- checksums of ranges ------------------------------------------------------------- */

#define RANGE_BYTES (8ull << 20) /* what a reader waits for; a part of an upload */
#define RANGES_MAX 16384u /* of a file: half a MiB of text */
#define RANGE_TEXT 32u

uint64_t manifest_range_bytes(uint64_t size)
{
	uint64_t bytes = RANGE_BYTES;

	while (size / RANGES_MAX >= bytes)
		bytes *= 2;
	return bytes;
}

static uint64_t count_ranges(const struct tier_file *f)
{
	return f->size / f->range_bytes + (f->size % f->range_bytes != 0);
}

void manifest_add_range(void *ctx, uint64_t number, const char sum[IO_CHECKSUM_LEN])
{
	struct tier_file *f = ctx;
	char *v = number ? f->ranges : NULL;

	if (!number)
		free(f->ranges); /* read again from its beginning */
	if (number && !v)
		return; /* there was no memory */
	if (!(number & (number - 1))) { /* 0 and powers of two: it is full */
		char *more = realloc(v, (number ? number * 2 : 1) * RANGE_TEXT + 1);
		if (!more)
			free(v);
		f->ranges = more;
	}
	if (f->ranges)
		strcpy(f->ranges + number * RANGE_TEXT, sum + strlen("xxh3:"));
}

struct io_sum *manifest_begin_sums(struct tier_file *f)
{
	struct io_sum *m = io_sum_new();

	free(f->ranges);
	f->ranges = NULL;
	f->range_bytes = manifest_range_bytes(f->size);
	if (!m || f->size <= f->range_bytes ||
	    !io_sum_ranges(m, f->range_bytes, manifest_add_range, f))
		return m;
	io_sum_free(m);
	return NULL;
}

void manifest_end_sums(struct tier_file *f, struct io_sum *m)
{
	if (m) {
		io_sum_last_range(m);
		io_sum_text(m, f->sum);
	}
	if (f->ranges && strlen(f->ranges) != count_ranges(f) * RANGE_TEXT) {
		free(f->ranges);
		f->ranges = NULL;
	}
}

void manifest_take_sums(struct tier_file *to, const struct tier_file *from)
{
	strcpy(to->sum, from->sum);
	free(to->ranges);
	to->ranges = from->ranges ? strdup(from->ranges) : NULL; /* it is good without */
	to->range_bytes = from->range_bytes;
}

/* ---- files ----------------------------------------------------------------------- */

void manifest_forget_uploads(struct manifest *m)
{
	for (size_t i = 0; i < m->n; i++) {
		free(m->v[i].upload);
		m->v[i].upload = NULL;
	}
}

void manifest_free(struct manifest *m)
{
	for (size_t i = 0; i < m->n; i++) {
		free(m->v[i].path);
		free(m->v[i].upload);
		free(m->v[i].ranges);
	}
	free(m->v);
	free(m->path);
	free(m->format);
	*m = (struct manifest){0};
}

int manifest_add(struct manifest *m, const struct tier_file *f)
{
	struct tier_file *v = m->v;

	if (!(m->n & (m->n - 1))) { /* 0 and powers of two: it is full */
		v = reallocarray(m->v, m->n ? m->n * 2 : 1, sizeof(*v));
		if (!v)
			return -ENOMEM;
		m->v = v;
	}
	v[m->n] = *f;
	v[m->n].path = strdup(f->path);
	v[m->n].upload = f->upload ? strdup(f->upload) : NULL;
	v[m->n].ranges = f->ranges ? strdup(f->ranges) : NULL;
	if (v[m->n].path && !f->upload == !v[m->n].upload && !f->ranges == !v[m->n].ranges)
		return m->n++, 0;
	free(v[m->n].path);
	free(v[m->n].upload);
	free(v[m->n].ranges);
	return -ENOMEM;
}

/* ---- read ------------------------------------------------------------------------- */

static bool is_sum(const char *s)
{
	return strlen(s) == 37 && !strncmp(s, "xxh3:", 5) &&
	       strspn(s + 5, "0123456789abcdef") == 32;
}

/* Is the file the checkpoint, or below it? */
static bool belongs(const char *path, const char *checkpoint)
{
	size_t n = strlen(checkpoint);

	return *path && fmt_stays_below(path, strlen(path)) && strncmp(path, ".cairn/", 7) &&
	       !strncmp(path, checkpoint, n) && (!n || !path[n] || path[n] == '/');
}

bool manifest_is_upload(const char *id)
{
	size_t n = strlen(id);

	for (size_t i = 0; i < n; i++)
		if (id[i] <= ' ' || id[i] > '~' || strchr("&?#%\"<>\\", id[i]))
			return false;
	return n && n <= S3_UPLOAD_MAX;
}

static void get_upload(const struct json_doc *d, int v, struct tier_file *f)
{
	uint64_t s, ns;

	f->upload = json_bytes(d, json_at(d, v, "upload"));
	if (f->upload && manifest_is_upload(f->upload) &&
	    json_is_u64(d, json_at(d, v, "ctime_s"), &s) &&
	    json_is_u64(d, json_at(d, v, "ctime_ns"), &ns)) {
		f->ctime = (struct timespec){.tv_sec = (time_t)s, .tv_nsec = (long)ns};
		return;
	}
	free(f->upload);
	f->upload = NULL;
}

/* A manifest of an earlier version has none. */
static bool get_ranges(const struct json_doc *d, int v, struct tier_file *f)
{
	int ranges = json_at(d, v, "ranges");

	if (ranges < 0)
		return true;
	f->ranges = json_bytes(d, ranges);
	return f->ranges && json_is_u64(d, json_at(d, v, "range_bytes"), &f->range_bytes) &&
	       f->range_bytes && strlen(f->ranges) / RANGE_TEXT == count_ranges(f) &&
	       strlen(f->ranges) % RANGE_TEXT == 0 &&
	       strspn(f->ranges, "0123456789abcdef") == strlen(f->ranges);
}

static int get_file(const struct json_doc *d, int v, struct manifest *m)
{
	CLEANUP_FREE char *path = json_get_path(d, v);
	CLEANUP_FREE char *sum = json_bytes(d, json_at(d, v, "checksum"));
	uint64_t s, ns;
	struct tier_file f = {.path = path};
	int err;

	if (!path || !sum || !belongs(path, m->path) || (*sum && !is_sum(sum)) ||
	    !json_is_u64(d, json_at(d, v, "size"), &f.size) ||
	    !json_is_u64(d, json_at(d, v, "mtime_s"), &s) ||
	    !json_is_u64(d, json_at(d, v, "mtime_ns"), &ns) || ns > 999999999)
		return -EBADMSG;
	f.mtime = (struct timespec){.tv_sec = (time_t)s, .tv_nsec = (long)ns};
	strcpy(f.sum, sum);
	get_upload(d, v, &f);
	err = get_ranges(d, v, &f) ? manifest_add(m, &f) : -EBADMSG;
	free(f.upload);
	free(f.ranges);
	return err;
}

static int parse(const struct json_doc *d, struct manifest *m)
{
	int files = json_at(d, 0, "files"), err = 0;

	m->format = json_bytes(d, json_at(d, 0, "format"));
	m->has_step = json_is_u64(d, json_at(d, 0, "step"), &m->step);
	m->commits = json_bool(d, json_at(d, 0, "commits"));
	m->ended = json_bool(d, json_at(d, 0, "ended"));
	m->removes = json_bool(d, json_at(d, 0, "removes"));
	if (json_u64(d, json_at(d, 0, "version")) != 1 || !m->format || !json_is_array(d, files) ||
	    !json_is_u64(d, json_at(d, 0, "generation"), &m->generation) ||
	    !json_is_u64(d, json_at(d, 0, "time_s"), &m->time_s))
		return -EBADMSG;
	for (int v = json_first(d, files); !err && v >= 0; v = json_next(d, files, v))
		err = get_file(d, v, m);
	manifest_sort(m);
	return err;
}

int manifest_load(const struct tier *t, const char *checkpoint, const char *name,
		  struct manifest *out)
{
	CLEANUP_FREE char *path = manifest_path(checkpoint, name), *text = NULL;
	CLEANUP_JSON struct json_doc *d = NULL;
	size_t len;
	int err;

	*out = (struct manifest){.path = strdup(checkpoint)};
	err = path && out->path ? tier_read_small(t, path, MAX_BYTES, &text, &len) : -ENOMEM;
	if (!err)
		err = json_parse(text, len, &d);
	if (!err)
		err = parse(d, out);
	if (err)
		manifest_free(out);
	return err;
}

/* ---- write ------------------------------------------------------------------------ */

static void put_file(struct json_out *j, const struct tier_file *f)
{
	json_open(j, NULL, '{');
	json_put_path(j, "path", f->path);
	json_put_u64(j, "size", f->size);
	json_put_string(j, "checksum", f->sum);
	if (f->ranges) {
		json_put_u64(j, "range_bytes", f->range_bytes);
		json_put_string(j, "ranges", f->ranges);
	}
	json_put_u64(j, "mtime_s", f->mtime.tv_sec < 0 ? 0 : (uint64_t)f->mtime.tv_sec);
	json_put_u64(j, "mtime_ns", (uint64_t)f->mtime.tv_nsec);
	if (f->upload) {
		json_put_string(j, "upload", f->upload);
		json_put_u64(j, "ctime_s", (uint64_t)f->ctime.tv_sec);
		json_put_u64(j, "ctime_ns", (uint64_t)f->ctime.tv_nsec);
	}
	json_close(j, '}');
}

static void put_all(FILE *f, const struct manifest *m)
{
	struct json_out j;

	json_begin(&j, f);
	json_open(&j, NULL, '{');
	json_put_u64(&j, "version", 1);
	json_put_path(&j, "path", m->path);
	json_put_string(&j, "format", m->format);
	if (m->has_step)
		json_put_u64(&j, "step", m->step);
	if (m->commits)
		json_put_bool(&j, "commits", true);
	if (m->ended)
		json_put_bool(&j, "ended", true);
	if (m->removes)
		json_put_bool(&j, "removes", true);
	json_put_u64(&j, "generation", m->generation);
	json_put_u64(&j, "time_s", m->time_s);
	json_open(&j, "files", '[');
	for (size_t i = 0; i < m->n; i++)
		put_file(&j, &m->v[i]);
	json_close(&j, ']');
	json_close(&j, '}');
}

int manifest_save(struct tier *t, const struct manifest *m, const char *name)
{
	CLEANUP_FREE char *path = manifest_path(m->path, name), *text = NULL;
	size_t len = 0;
	FILE *f = path ? open_memstream(&text, &len) : NULL;

	if (!f)
		return -ENOMEM;
	put_all(f, m);
	if (fclose(f) || !text)
		return -ENOMEM;
	return tier_put(t, path, text, len);
}

bool manifest_is_removal(const struct manifest *m)
{
	int64_t age = (int64_t)((uint64_t)time(NULL) - m->time_s);

	return m->removes && age < TIER_REMOVAL_S && age > -TIER_REMOVAL_S; /* clocks differ */
}

/* ---- all -------------------------------------------------------------------------- */

static int list_add(struct names *n, const char *path, size_t len)
{
	char **v = reallocarray(n->v, n->n + 1, sizeof(*v));

	if (!v)
		return -ENOMEM;
	n->v = v;
	v[n->n] = strndup(path, len);
	return v[n->n] ? (n->n++, 0) : -ENOMEM;
}

/* The checkpoint of a manifest's path; false: another file. */
static bool is_listed(const char *path, const char *name, size_t *len)
{
	size_t n = strlen(path), own = strlen(name);

	if (n < own || strcmp(path + n - own, name) || (n > own && path[n - own - 1] != '/'))
		return false;
	*len = n > own ? n - own - 1 : 0;
	return true;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

bool manifest_is_listed(const struct names *n, const char *path)
{
	return n->n && bsearch(&path, n->v, n->n, sizeof(*n->v), by_name);
}

struct listing {
	const char *name; /* of the file of a checkpoint */
	struct names *out;
};

static int list_object(void *ctx, const char *path)
{
	struct listing *l = ctx;
	size_t len;

	return is_listed(path, l->name, &len) ? list_add(l->out, path, len) : 0;
}

static int list_files(const struct tier *t, const char *name, struct names *out)
{
	CLEANUP_CLOSE int fd = tier_open_at(t, TIER_MANIFESTS, O_RDONLY | O_DIRECTORY);
	CLEANUP_WALK struct walk *w = NULL;
	struct walk_item it;
	int err = fd < 0 ? fd : walk_open(fd, -1, NULL, &w);

	while (!err && walk_next(w, &it) != WALK_END) {
		size_t len = strlen(it.path), own = strlen(name);

		if (it.what == WALK_ERROR)
			err = it.err == -ENOENT ? 0 : it.err;
		if (it.what == WALK_ENTRY && S_ISREG(it.st.st_mode) && !strcmp(it.name, name))
			err = list_add(out, it.path, len > own ? len - own - 1 : 0);
	}
	return err;
}

int manifest_list(const struct tier *t, const char *name, struct names *out)
{
	int err;

	*out = (struct names){0};
	err = t->s3 ? tier_s3_keys(t->s3, TIER_MANIFESTS "/", list_object,
				   &(struct listing){name, out})
		    : list_files(t, name, out);
	if (err)
		names_free(out);
	else if (out->n)
		qsort(out->v, out->n, sizeof(*out->v), by_name);
	return err;
}

/* SPDX-License-Identifier: MIT
 * A listing of the tier, as the server sent it, as a tree. It comes from outside: from manifests in
 * a place where others may write, through a process that reads them.
 */
#include "fs/remote/remote.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- one entry ---- */

/* "" is the top. Not below a directory of ours: the mount has its own there. */
static bool is_path(const char *p, size_t len)
{
	if (!len)
		return true;
	if (len >= TIER_PATH_MAX || !fmt_stays_below(p, len))
		return false;
	for (size_t at = 0; at < len;) {
		const char *slash = memchr(p + at, '/', len - at);
		size_t n = slash ? (size_t)(slash - p) - at : len - at;

		if (n > MAX_NAME || (n >= 6 && !memcmp(p + at, ".cairn", 6)))
			return false;
		at += n + 1;
	}
	return true;
}

static bool is_sane(const struct tier_entry *e, const char *path)
{
	bool dir = S_ISDIR(e->mode);

	return is_path(path, e->path_bytes) && (dir || (S_ISREG(e->mode) && e->path_bytes)) &&
	       e->size <= INT64_MAX && e->mtime_ns < 1000000000u && e->format <= CKPT_SNAPSHOT;
}

static uint64_t id_of(const char *path)
{
	return control_tree_id(CONTROL_REMOTE, hash_text(0, path));
}

static void fill(struct remote_node *n, const struct tier_entry *e, const char *path)
{
	bool dir = S_ISDIR(e->mode);

	*n = (struct remote_node){.id = id_of(path),
				  .path = path,
				  .checkpoint = e->checkpoint,
				  .damaged = e->checkpoint && e->damaged};
	n->kind = (struct ckpt_kind){
		.format = (enum ckpt_format)e->format, .has_step = e->has_step, .step = e->step};
	n->st = (struct stat){
		.st_ino = n->id,
		.st_mode = (e->mode & S_IFMT) | (e->mode & 0777),
		.st_nlink = dir ? 2 : 1,
		.st_uid = e->uid,
		.st_gid = e->gid,
		.st_size = dir ? 0 : (off_t)e->size,
		.st_blocks = dir ? 0 : (blkcnt_t)((e->size + 511) / 512),
		.st_blksize = 1 << 20,
		.st_mtim = {.tv_sec = (time_t)e->mtime_s, .tv_nsec = (long)e->mtime_ns},
	};
	n->st.st_atim = n->st.st_ctim = n->st.st_mtim;
}

/* ---- all of them ---- */

/* A slash before all other bytes: what is in a directory follows it at once. */
static int compare(const char *a, const char *b)
{
	for (; *a == *b && *a; a++, b++)
		;
	if (*a == *b)
		return 0;
	if (!*a || !*b)
		return *a ? 1 : -1;
	if (*a == '/' || *b == '/')
		return *a == '/' ? -1 : 1;
	return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
}

static int by_path(const void *x, const void *y)
{
	const struct remote_node *a = x, *b = y;
	int d = compare(a->path, b->path);

	/* of two, the one that says more is first */
	return d ? d : (int)b->checkpoint - (int)a->checkpoint;
}

static int by_id(const void *x, const void *y, void *ctx)
{
	const struct remote_node *v = ctx;
	uint64_t a = v[*(const uint32_t *)x].id, b = v[*(const uint32_t *)y].id;

	return a < b ? -1 : a > b;
}

/* How many entries there are, and the bytes of their paths with a NUL each; -EBADMSG. */
static int measure(const char *at, size_t len, size_t *n, size_t *text)
{
	*n = *text = 0;
	while (len) {
		struct tier_entry e;

		if (len < sizeof(e))
			return -EBADMSG;
		memcpy(&e, at, sizeof(e));
		if (len - sizeof(e) < e.path_bytes)
			return -EBADMSG;
		at += sizeof(e) + e.path_bytes;
		len -= sizeof(e) + e.path_bytes;
		*text += e.path_bytes + 1u;
		++*n;
	}
	return *n < UINT32_MAX / 2 ? 0 : -EBADMSG;
}

static void take_all(struct remote_list *l, const char *at, size_t len)
{
	char *text = l->text;

	while (len) {
		struct tier_entry e;
		const char *path = at + sizeof(e);

		memcpy(&e, at, sizeof(e));
		at += sizeof(e) + e.path_bytes;
		len -= sizeof(e) + e.path_bytes;
		if (!is_sane(&e, path)) {
			l->left_out++;
			continue;
		}
		memcpy(text, path, e.path_bytes);
		text[e.path_bytes] = '\0';
		fill(&l->v[l->n++], &e, text);
		text += e.path_bytes + 1;
	}
}

/* Whether a is above b. */
static bool is_above(const struct remote_node *a, const struct remote_node *b)
{
	size_t n = strlen(a->path);

	return !n || (!strncmp(a->path, b->path, n) && b->path[n] == '/');
}

static bool is_child(const struct remote_node *dir, const char *path)
{
	size_t n = strlen(dir->path);

	return !strchr(path + n + !!n, '/');
}

/* Keeps of the sorted nodes those that are in a directory, once, and ties them. */
static void tie(struct remote_list *l)
{
	uint32_t kept = 0, up = 0;

	for (uint32_t i = 0; i < l->n; i++) {
		struct remote_node n = l->v[i];

		if (kept && !strcmp(l->v[kept - 1].path, n.path))
			continue; /* again */
		while (kept && up && !is_above(&l->v[up], &n))
			up = l->v[up].up;
		if (kept ? !S_ISDIR(l->v[up].st.st_mode) || !is_child(&l->v[up], n.path)
			 : *n.path != '\0') {
			l->left_out++;
			continue;
		}
		n.up = kept ? up : 0;
		l->v[kept] = n;
		if (S_ISDIR(n.st.st_mode))
			up = kept;
		kept++;
	}
	l->n = kept;
	for (uint32_t i = kept; i-- > 1;) { /* so that the first is the first */
		l->v[i].next = l->v[l->v[i].up].first;
		l->v[l->v[i].up].first = i;
	}
}

static void add_up(struct remote_list *l)
{
	for (uint32_t i = 0; i < l->n; i++) {
		struct remote_node *up = &l->v[l->v[i].up];

		l->checkpoints += l->v[i].checkpoint;
		up->kind.model |= ckpt_is_model_file(remote_name(&l->v[i]));
		l->bytes += (uint64_t)l->v[i].st.st_size;
		l->by_id[i] = i;
	}
	if (l->n)
		qsort_r(l->by_id, l->n, sizeof(*l->by_id), by_id, l->v);
}

int remote_parse(const void *bytes, size_t len, struct remote_list **out)
{
	struct remote_list *l;
	size_t n, text;
	int err = measure(bytes, len, &n, &text);

	*out = NULL;
	if (err)
		return err;
	l = calloc(1, sizeof(*l));
	if (l) {
		l->v = calloc(n + 1, sizeof(*l->v));
		l->by_id = calloc(n + 1, sizeof(*l->by_id));
		l->text = malloc(text + 1);
	}
	if (!l || !l->v || !l->by_id || !l->text) {
		remote_free(l);
		return -ENOMEM;
	}
	take_all(l, bytes, len);
	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), by_path);
	tie(l);
	add_up(l);
	if (!l->n) { /* not even the top */
		remote_free(l);
		return -EBADMSG;
	}
	*out = l;
	return 0;
}

void remote_free(struct remote_list *l)
{
	if (!l)
		return;
	free(l->v);
	free(l->by_id);
	free(l->text);
	free(l);
}

/* ---- questions ---- */

const char *remote_name(const struct remote_node *n)
{
	const char *slash = strrchr(n->path, '/');

	return slash ? slash + 1 : n->path;
}

const struct remote_node *remote_of_id(const struct remote_list *l, uint64_t id)
{
	uint32_t from = 0, to = l->n;

	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (l->v[l->by_id[mid]].id < id)
			from = mid + 1;
		else
			to = mid;
	}
	return from < l->n && l->v[l->by_id[from]].id == id ? &l->v[l->by_id[from]] : NULL;
}

const struct remote_node *remote_find(const struct remote_list *l, const char *path)
{
	const struct remote_node key = {.path = path};
	uint32_t from = 0, to = l->n;

	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (compare(l->v[mid].path, key.path) < 0)
			from = mid + 1;
		else
			to = mid;
	}
	return from < l->n && !strcmp(l->v[from].path, path) ? &l->v[from] : NULL;
}

const struct remote_node *remote_child(const struct remote_list *l, const struct remote_node *dir,
				       const char *name)
{
	CLEANUP_FREE char *path = path_join(dir->path, name);

	return path && *name && !strchr(name, '/') ? remote_find(l, path) : NULL;
}

const struct remote_node *remote_checkpoint(const struct remote_list *l,
					    const struct remote_node *n)
{
	while (!n->checkpoint && n != l->v)
		n = &l->v[n->up];
	return n->checkpoint ? n : NULL;
}

uint64_t remote_bytes(const struct remote_list *l, const struct remote_node *n)
{
	uint64_t sum = (uint64_t)n->st.st_size;

	for (uint32_t i = (uint32_t)(n - l->v) + 1; i < l->n && is_above(n, &l->v[i]); i++)
		sum += (uint64_t)l->v[i].st.st_size;
	return sum;
}

int remote_may(const struct remote_list *l, const struct remote_node *n, const struct caller *who,
	       unsigned want)
{
	if (!caller_may(who, &n->st, want))
		return -EACCES;
	while (n != l->v) {
		n = &l->v[n->up];
		if (!caller_may(who, &n->st, 1))
			return -EACCES;
	}
	return 0;
}

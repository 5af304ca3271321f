/* SPDX-License-Identifier: MIT
 * Checkpoints as views need them: found in the live tree, read from staging or the store, parsed
 * once a version. What is parsed is anybody's bytes: how much is read, and so how much memory it
 * can take, is bounded, and one is parsed at a time. */
#include "fs/views.h"
#include "io/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PARSE_MAX (32u << 20)	/* metadata and headers of one checkpoint */
#define READ_MAX (1u << 20)	/* what a view reads at once; an item's header never is larger */
#define AHEAD (4u << 20)	/* fetched for who reads in order */
#define CACHE_MAX 8u		/* checkpoints kept parsed, */
#define CACHE_COST (32u << 20)	/* of that much metadata together */
#define OPEN_MAX 256u		/* files of one checkpoint */
#define TRUST_NS 1000000000u

static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;	/* cache, refs; taken last */
static struct vckpt *cache;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;	/* one parses at a time */

/* ---- the tree --------------------------------------------------------------------- */

/* dir must not be freed while a name of it is looked up and dropped. */
static int look(struct fs *fs, struct node *dir, const char *name, struct node **out)
{
	bool busy = dir->busy;
	dir->busy = true;
	int rc = tree_lookup(fs, dir, name, out, NULL);
	dir->busy = busy;
	return rc;
}

int views_walk(struct fs *fs, const char *path, struct node **out)
{
	pthread_mutex_lock(&fs->lock);
	struct node *n = fs->root;
	int rc = 0;
	while (!rc && *path) {
		char name[MAX_NAME + 1];
		size_t len = strcspn(path, "/");
		struct node *dir = n;
		if (len > MAX_NAME || !S_ISDIR(dir->mode)) {
			rc = len > MAX_NAME ? -ENAMETOOLONG : -ENOTDIR;
		} else {
			memcpy(name, path, len);
			name[len] = 0;
			rc = name_is_control(dir->id, name) ? -ENOENT : look(fs, dir, name, &n);
		}
		if (rc)
			node_release(fs, dir);
		path += len + (path[len] == '/');
	}
	if (rc)
		pthread_mutex_unlock(&fs->lock);
	else
		*out = n;
	return rc;
}

void views_walk_done(struct fs *fs, struct node *n)
{
	node_release(fs, n);
	pthread_mutex_unlock(&fs->lock);
}

static char *join(const char *dir, const char *name)
{
	char *p;
	return asprintf(&p, "%s%s%s", dir, *dir ? "/" : "", name) < 0 ? NULL : p;
}

struct seen {			/* of a name in the tree */
	struct stat st;
	bool open;		/* somebody writes it */
};

static int see(struct fs *fs, const char *dir, const char *name, struct seen *out)
{
	CLEANUP_FREE char *path = join(dir, name);
	struct node *n;
	int rc = path ? views_walk(fs, path, &n) : -ENOMEM;
	if (rc)
		return rc;
	node_stat(fs, n, &out->st);
	out->open = n->writers > 0;
	views_walk_done(fs, n);
	return 0;
}

static bool is_version(const struct vfile *f, const struct stat *st)
{
	return f->ino == st->st_ino && f->size == (uint64_t)st->st_size &&
	       f->mtime.tv_sec == st->st_mtim.tv_sec && f->mtime.tv_nsec == st->st_mtim.tv_nsec;
}

/* ---- open files ------------------------------------------------------------------- */

/* Its bytes as they are in the tree: in staging, or a descriptor in the store. */
static int open_bytes(struct fs *fs, struct vfile *f)
{
	CLEANUP_FREE char *path = join(f->c->path, f->name);
	struct node *n;
	struct stat st;
	int rc = path ? views_walk(fs, path, &n) : -ENOMEM;
	if (rc)
		return rc == -ENOENT ? -ESTALE : rc;
	node_stat(fs, n, &st);
	if (!S_ISREG(st.st_mode) || n->writers || !is_version(f, &st)) {
		rc = -ESTALE;
	} else if (n->sf && !f->sf) {
		f->sf = staged_ref(n->sf);
	} else {
		f->fd = node_open_store(fs, n);
		rc = f->fd < 0 ? f->fd : 0;
	}
	views_walk_done(fs, n);
	return rc;
}

static void close_file(struct vfile *f)
{
	if (f->fd >= 0 || f->sf)
		f->c->n_open--;
	if (f->fd >= 0)
		close(f->fd);
	if (f->sf)
		staged_unref(f->sf);
	f->fd = -1;
	f->sf = NULL;
}

static void close_unused(struct vckpt *c)
{
	for (size_t i = 0; i < c->n_files; i++)
		if (!c->file[i].users)
			close_file(&c->file[i]);
}

/* Its staged bytes, as long as they are that version; -ENODATA: the store has them. */
static int read_staged(struct vfile *f, struct staged *sf, uint64_t off, char *buf, size_t len)
{
	struct staged_info i;
	while (len) {
		ssize_t got = staged_read(sf, buf, len, off);
		if (got <= 0)
			return got ? (int)got : -ESTALE;
		buf += got;
		off += (uint64_t)got;
		len -= (size_t)got;
	}
	staged_get_info(sf, &i);	/* afterwards: a writer may have come meanwhile */
	if (i.state == STAGED_EVICTED)
		return 0;
	return i.size == f->size && i.mtime.tv_sec == f->mtime.tv_sec &&
	       i.mtime.tv_nsec == f->mtime.tv_nsec ? 0 : -ESTALE;
}

static int read_store(int fd, uint64_t off, char *buf, size_t len)
{
	while (len) {
		ssize_t got = pread(fd, buf, len, (off_t)off);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got ? -errno : -ESTALE;
		buf += got;
		off += (uint64_t)got;
		len -= (size_t)got;
	}
	return 0;
}

/* The kernel's own readahead is short, and sees little of a file whose bytes are wanted in
 * many small rows: who reads in order has the next AHEAD bytes fetched. Lock held; 0: nothing. */
static uint64_t fetch_from(struct vfile *f, uint64_t off, size_t len)
{
	uint64_t end = off + len, from = f->ahead > end ? f->ahead : end;
	bool in_order = off + READ_MAX >= f->next && off <= f->next + READ_MAX;
	if (!in_order || end > f->next)
		f->next = end;
	if (!in_order)
		f->ahead = 0;
	if (!in_order || from - end >= AHEAD / 2 || from >= f->size)
		return 0;
	f->ahead = from + AHEAD;
	return from;
}

static int read_file(void *ctx, uint64_t off, void *buf, size_t len)
{
	struct vfile *f = ctx;
	if (len > READ_MAX)
		return -E2BIG;
	pthread_mutex_lock(&f->c->lock);
	int fd = f->fd;
	struct staged *sf = f->sf;
	uint64_t fetch = fd >= 0 ? fetch_from(f, off, len) : 0;
	pthread_mutex_unlock(&f->c->lock);
	if (fetch)
		posix_fadvise(fd, (off_t)fetch, AHEAD, POSIX_FADV_WILLNEED);
	int rc = fd >= 0 ? -ENODATA : read_staged(f, sf, off, buf, len);
	if (rc != -ENODATA)
		return rc;
	if (fd < 0) {		/* evicted since: the store has it */
		pthread_mutex_lock(&f->c->lock);
		rc = f->fd >= 0 ? 0 : open_bytes(f->c->fs, f);
		fd = f->fd;
		pthread_mutex_unlock(&f->c->lock);
		if (rc || fd < 0)
			return rc ? rc : -ESTALE;
	}
	return read_store(fd, off, buf, len);
}

static int file_get(struct vfile *f, struct fmt_source *out)
{
	struct vckpt *c = f->c;
	int rc = 0;
	pthread_mutex_lock(&c->lock);
	if (f->fd < 0 && !f->sf) {
		if (c->n_open >= OPEN_MAX)
			close_unused(c);
		rc = open_bytes(c->fs, f);
		c->n_open += !rc;
	}
	f->users += !rc;
	pthread_mutex_unlock(&c->lock);
	*out = (struct fmt_source){.size = f->size, .read = read_file, .ctx = f};
	return rc;
}

static void file_put(struct vfile *f)
{
	pthread_mutex_lock(&f->c->lock);
	f->users--;
	pthread_mutex_unlock(&f->c->lock);
}

int vckpt_file_get(void *ctx, uint32_t file, struct fmt_source *out)
{
	return file_get(&((struct vckpt *)ctx)->file[file], out);
}

void vckpt_file_put(void *ctx, uint32_t file)
{
	file_put(&((struct vckpt *)ctx)->file[file]);
}

/* ---- parsing ---------------------------------------------------------------------- */

struct load {
	struct fs *fs;
	struct vckpt *c;
	struct ckpt_kind kind;
	struct ckpt_name *name;		/* sorted; names are owned */
	struct seen *seen;		/* of each */
	size_t n, cap;
	struct safetensors_index index;
	uint64_t left;			/* of PARSE_MAX */
	bool *read;			/* which names were read */
	bool incomplete;		/* it changed under our eyes */
};

struct counted {
	struct load *l;
	struct fmt_source s;
};

/* Parsers read in pieces of any size; all that they read is counted. */
static int read_counted(void *ctx, uint64_t off, void *buf, size_t len)
{
	struct counted *x = ctx;
	int rc = 0;
	if (len > x->l->left)
		return -E2BIG;
	x->l->left -= len;
	while (!rc && len) {
		size_t part = len < READ_MAX ? len : READ_MAX;
		rc = x->s.read(x->s.ctx, off, buf, part);
		buf = (char *)buf + part;
		off += part;
		len -= part;
	}
	return rc;
}

static int refuse(struct load *l, const char *file, const struct fmt_error *e, int rc)
{
	if (rc == -ESTALE || rc == -ENOENT) {
		l->incomplete = true;
	} else if (rc == -E2BIG) {
		snprintf(l->c->why, sizeof(l->c->why), "%.100s: more than %u MiB of metadata, which the "
			 "daemon does not read; cairn export does", file, PARSE_MAX >> 20);
	} else if (e->at != FMT_NOWHERE) {
		snprintf(l->c->why, sizeof(l->c->why), "%.100s: at %llu: %.180s", file, (unsigned long long)e->at,
			 e->text);
	} else {
		snprintf(l->c->why, sizeof(l->c->why), "%.100s: %.200s", file, *e->text ? e->text : strerror(-rc));
	}
	return rc;
}

typedef int parse_fn(struct load *l, const struct ckpt_name *n, const struct fmt_source *s, struct fmt_error *e);

static void as_file(struct load *l, size_t i, struct vfile *out)
{
	const struct stat *st = &l->seen[i].st;
	*out = (struct vfile){.name = l->name[i].name, .ino = st->st_ino, .size = (uint64_t)st->st_size,
			      .mtime = st->st_mtim, .fd = -1, .c = l->c};
}

/* Opens the i-th name, as it was listed, and parses it. */
static int parse(struct load *l, size_t i, parse_fn *fn)
{
	struct fmt_error e = {.at = FMT_NOWHERE};
	struct counted x = {.l = l};
	struct vfile f;
	as_file(l, i, &f);
	int rc = file_get(&f, &x.s);
	if (!rc) {
		struct fmt_source s = {.size = x.s.size, .read = read_counted, .ctx = &x};
		rc = fn(l, &l->name[i], &s, &e);
		file_put(&f);
	}
	l->read[i] = true;
	pthread_mutex_lock(&l->c->lock);
	close_file(&f);
	pthread_mutex_unlock(&l->c->lock);
	return rc ? refuse(l, l->name[i].name, &e, rc) : 0;
}

/* A small file as a whole. */
static int slurp(const struct fmt_source *s, char **out)
{
	*out = s->size > PARSE_MAX ? NULL : malloc(s->size ? s->size : 1);
	if (!*out)
		return s->size > PARSE_MAX ? -E2BIG : -ENOMEM;
	int rc = fmt_read(s, 0, *out, s->size);
	if (rc) {
		free(*out);
		*out = NULL;
	}
	return rc;
}

static int parse_metadata(struct load *l, const struct ckpt_name *n, const struct fmt_source *s, struct fmt_error *e)
{
	CLEANUP_FREE char *bytes = NULL;
	int rc = slurp(s, &bytes);
	(void)n;
	return rc ? rc : dcp_read(l->c->set, bytes, s->size, e);
}

static int parse_index(struct load *l, const struct ckpt_name *n, const struct fmt_source *s, struct fmt_error *e)
{
	CLEANUP_FREE char *text = NULL;
	int rc = slurp(s, &text);
	(void)n;
	return rc ? rc : safetensors_index_read(l->c->set, text, s->size, &l->index, e);
}

static int parse_tensors(struct load *l, const struct ckpt_name *n, const struct fmt_source *s, struct fmt_error *e)
{
	char prefix[MAX_NAME + 2] = "";
	size_t n_torch = 0;
	int64_t file = fmt_set_file(l->c->set, n->name, strlen(n->name), e);
	if (file < 0)
		return (int)file;
	if (ckpt_is_safetensors(n->name))
		return safetensors_read(l->c->set, (uint32_t)file, s, e);
	for (size_t i = 0; i < l->n; i++)
		n_torch += ckpt_is_torch(l->name[i].name);
	if (n_torch > 1)
		snprintf(prefix, sizeof(prefix), "%s:", n->name);
	return torchfile_read(l->c->set, (uint32_t)file, prefix, s, e);
}

static int parse_header(struct load *l, const struct ckpt_name *n, const struct fmt_source *s, struct fmt_error *e)
{
	int64_t file = fmt_set_file(l->c->set, n->name, strlen(n->name), e);
	return file < 0 ? (int)file : dcp_read_header(l->c->set, (uint32_t)file, s, e);
}

static ssize_t find_name(const struct load *l, const char *name)
{
	return ckpt_names_find(l->name, l->n, name);
}

static int add_name(struct load *l, const char *name)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 64;
		void *p = reallocarray(l->name, cap, sizeof(*l->name));
		if (!p)
			return -ENOMEM;
		l->name = p;
		l->cap = cap;
	}
	const char *copy = strdup(name);
	if (!copy)
		return -ENOMEM;
	l->name[l->n++] = (struct ckpt_name){.name = copy};
	return 0;
}

static int take_name(void *arg, const char *name)
{
	return add_name(arg, name);
}

static int list_names(struct load *l)
{
	struct node *dir;
	int rc = views_walk(l->fs, l->c->path, &dir);
	if (rc)
		return rc;
	if (S_ISDIR(dir->mode)) {
		struct stat st;
		node_stat(l->fs, dir, &st);
		l->c->dir_mtime = st.st_mtim;
		rc = dir_names(l->fs, dir, take_name, l);
	} else {
		rc = -ENOTDIR;
	}
	views_walk_done(l->fs, dir);
	if (!rc)
		ckpt_names_sort(l->name, l->n);
	return rc;
}

/* Sizes, and who is open. After the names: one may be gone. */
static int look_at_names(struct load *l)
{
	free(l->seen);
	free(l->read);
	l->seen = calloc(l->n ? l->n : 1, sizeof(*l->seen));
	l->read = calloc(l->n ? l->n : 1, sizeof(*l->read));
	if (!l->seen || !l->read)
		return -ENOMEM;
	for (size_t i = 0; i < l->n; i++) {
		if (see(l->fs, l->c->path, l->name[i].name, &l->seen[i]))
			continue;
		const struct stat *st = &l->seen[i].st;
		l->name[i].dir = S_ISDIR(st->st_mode);
		l->name[i].size = S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0;
		l->name[i].open = l->seen[i].open;
	}
	return 0;
}

/* With an index only its files count. */
static int parse_all_safetensors(struct load *l)
{
	int rc = 0;
	for (size_t i = 0; !rc && i < l->n && !l->index.v; i++)
		if (ckpt_is_index(l->name[i].name))
			rc = parse(l, i, parse_index);
	size_t indexed = l->c->set->n_files;
	for (size_t i = 0; !rc && i < l->n; i++) {
		bool listed = !l->index.v;
		for (size_t k = 0; k < indexed && !listed; k++)
			listed = !strcmp(l->c->set->file[k].name, l->name[i].name);
		if (listed && !l->name[i].dir && ckpt_is_safetensors(l->name[i].name))
			rc = parse(l, i, parse_tensors);
	}
	return rc;
}

static int parse_all(struct load *l)
{
	bool global = find_name(l, ".metadata") >= 0;
	int rc = 0;
	if (l->kind.format == CKPT_ORBAX) {
		snprintf(l->c->why, sizeof(l->c->why), "the tensors of Orbax checkpoints (tensorstore) are not read");
		return -ENOTSUP;
	}
	if (!ckpt_is_dcp(l->kind.format) && !ckpt_is_torch_only(l->kind.format))
		return parse_all_safetensors(l);
	for (size_t i = 0; !rc && i < l->n; i++) {
		if (l->name[i].dir)
			continue;
		if (ckpt_is_dcp(l->kind.format) && ckpt_is_metadata(l->name[i].name, global))
			rc = parse(l, i, parse_metadata);
		else if (!ckpt_is_dcp(l->kind.format) && ckpt_is_torch(l->name[i].name))
			rc = parse(l, i, parse_tensors);
	}
	return rc;
}

/* Files in directories below, which the metadata lists, join the names. */
static int add_nested(struct load *l)
{
	size_t had = l->n;
	int rc = 0;
	for (size_t i = 0; !rc && i < l->c->set->n_files; i++)
		if (strchr(l->c->set->file[i].name, '/'))
			rc = add_name(l, l->c->set->file[i].name);
	if (rc || l->n == had)
		return rc;
	ckpt_names_sort(l->name, l->n);
	bool *read = l->read;		/* all of it was metadata */
	l->read = NULL;
	free(read);
	rc = look_at_names(l);
	for (size_t i = 0; !rc && i < l->n; i++)
		l->read[i] = ckpt_is_metadata(l->name[i].name, find_name(l, ".metadata") >= 0);
	return rc;
}

static int parse_headers(struct load *l)
{
	int rc = 0;
	for (uint32_t f = 0; !rc && f < l->c->set->n_files; f++) {
		ssize_t i = dcp_wants_header(l->c->set, f) ? find_name(l, l->c->set->file[f].name) : -1;
		if (i >= 0)
			rc = parse(l, (size_t)i, parse_header);
	}
	return rc;
}

/* ---- what it is then -------------------------------------------------------------- */

/* The one place that says whether a checkpoint has views. */
static bool is_whole(const struct load *l)
{
	struct ckpt_verdict v;
	struct timespec now, newest = l->c->dir_mtime;
	clock_gettime(CLOCK_REALTIME, &now);
	for (size_t i = 0; i < l->n; i++)
		if (l->seen[i].st.st_mtim.tv_sec > newest.tv_sec)
			newest = l->seen[i].st.st_mtim;
	for (size_t i = 0; i < l->c->set->n_files; i++) {
		ssize_t k = find_name(l, l->c->set->file[i].name);
		if (k >= 0 && l->seen[k].open)
			return false;
	}
	ckpt_judge(&l->kind, l->name, l->n, l->c->set, l->index.v ? &l->index : NULL,
		   difftime(now.tv_sec, newest.tv_sec), &v);
	return v.state == CKPT_COMPLETE;
}

static void hash_in(uint64_t *h, const void *p, size_t n)
{
	for (const unsigned char *b = p; n--; b++)
		*h = (*h ^ *b) * 0x100000001b3ull;
	*h ^= *h >> 29;
}

/* Readable for who may read all of its files. Where owners differ, who was shut out by one of
 * them must not get in as somebody else. */
static void restrict_to(struct stat *all, const struct stat *st, bool first)
{
	mode_t m = st->st_mode & 0444;
	if (first) {
		all->st_mode = S_IFREG | m;
		all->st_uid = st->st_uid;
		all->st_gid = st->st_gid;
		all->st_mtim = st->st_mtim;
		return;
	}
	m &= all->st_mode;
	if (all->st_uid != st->st_uid) {
		all->st_uid = 0;
		m &= 0400 | (m >> 3 & 0040) | (m >> 6 & 0004);
	}
	if (all->st_gid != st->st_gid) {
		all->st_gid = 0;
		m &= 0440 | (m >> 3 & 0004);
	}
	all->st_mode = S_IFREG | m;
	if (st->st_mtim.tv_sec > all->st_mtim.tv_sec ||
	    (st->st_mtim.tv_sec == all->st_mtim.tv_sec && st->st_mtim.tv_nsec > all->st_mtim.tv_nsec))
		all->st_mtim = st->st_mtim;
}

/* c->file, version and attributes, from what was listed. The set's files come first. */
static int remember_files(struct load *l)
{
	struct vckpt *c = l->c;
	size_t n = c->set ? c->set->n_files : 0, at = 0;
	c->file = calloc(n + l->n + 1, sizeof(*c->file));
	if (!c->file)
		return -ENOMEM;
	for (size_t i = 0; i < n + l->n; i++) {
		ssize_t k = i < n ? find_name(l, c->set->file[i].name) : (ssize_t)(i - n);
		if (i < n ? k < 0 : !l->read[k])
			continue;	/* is_whole() had nothing against it */
		as_file(l, (size_t)k, &c->file[at]);
		char *name = strdup(l->name[k].name);
		if (!name)
			return -ENOMEM;
		c->file[at].name = name;
		hash_in(&c->version, name, strlen(name));
		hash_in(&c->version, &c->file[at].ino, sizeof(c->file[at].ino));
		hash_in(&c->version, &c->file[at].size, sizeof(c->file[at].size));
		hash_in(&c->version, &c->file[at].mtime.tv_sec, sizeof(c->file[at].mtime.tv_sec));
		hash_in(&c->version, &c->file[at].mtime.tv_nsec, sizeof(c->file[at].mtime.tv_nsec));
		restrict_to(&c->st, &l->seen[k].st, at == 0);
		c->n_files = ++at;
		if (i < n && at != i + 1)
			return -ENOENT;	/* a file that is not there: places would not match */
	}
	return c->n_files ? 0 : -ENOENT;
}

static void load_free(struct load *l)
{
	for (size_t i = 0; i < l->n; i++)
		free((char *)l->name[i].name);
	free(l->name);
	free(l->seen);
	free(l->read);
	free(l->index.v);
}

/* If not all of it can be one file, its tensors still can each by itself. */
static int try_whole(struct vckpt *c)
{
	struct view_pick all = {0, c->set->n_tensors, 1, 0};
	struct fmt_error e = {.at = FMT_NOWHERE};
	struct view *v;
	int rc = view_safetensors(c->base, &all, &v, &e);
	view_free(v);
	if (rc && rc != -ENOMEM) {
		snprintf(c->why, sizeof(c->why), "%s", e.text);
		c->partly = true;
	}
	return rc == -ENOMEM ? rc : 0;
}

static int load_set(struct load *l)
{
	struct vckpt *c = l->c;
	int rc = parse_all(l);
	if (!rc && ckpt_is_dcp(l->kind.format))
		rc = add_nested(l);
	if (!rc) {
		fmt_set_finish(c->set);
		if (ckpt_is_dcp(l->kind.format))
			rc = parse_headers(l);
	}
	if (!rc && !is_whole(l))
		rc = -ENOENT;
	if (!rc)
		rc = view_base_new(c->set, &c->base);
	if (!rc)
		rc = try_whole(c);
	c->cost = PARSE_MAX - l->left;
	return l->incomplete ? -ENOENT : rc;
}

static void vckpt_free(struct vckpt *c)
{
	for (size_t i = 0; i < c->n_files; i++) {
		close_file(&c->file[i]);
		free((char *)c->file[i].name);
	}
	free(c->file);
	view_base_free(c->base);
	fmt_set_free(c->set);
	free(c->path);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static struct vckpt *vckpt_new(struct fs *fs, const char *path)
{
	struct vckpt *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	pthread_mutex_init(&c->lock, NULL);
	c->fs = fs;
	c->refs = 1;
	c->version = 0xcbf29ce484222325ull;
	c->path = strdup(path);
	c->set = fmt_set_new();
	if (c->path && c->set)
		return c;
	vckpt_free(c);
	return NULL;
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Parses what is at that path now. What is complete but cannot be read is a result, too. */
static int load(struct fs *fs, const char *path, struct vckpt **out)
{
	const char *slash = strrchr(path, '/');
	struct vckpt *c = vckpt_new(fs, path);
	struct load l = {.fs = fs, .c = c, .left = PARSE_MAX};
	int rc = c ? list_names(&l) : -ENOMEM;

	if (!rc)
		rc = look_at_names(&l);
	if (!rc) {
		ckpt_recognize(slash ? slash + 1 : path, l.name, l.n, &l.kind);
		if (l.kind.format == CKPT_NONE || l.kind.temporary)
			rc = -ENOENT;
	}
	if (!rc)
		rc = load_set(&l);
	if (c && *c->why && !c->partly && rc != -ENOMEM && rc != -ENOENT) {
		fmt_set_free(c->set);
		c->set = NULL;
		rc = 0;
	}
	if (!rc)
		rc = remember_files(&l);
	if (c)
		c->checked_ns = now_ns();
	load_free(&l);
	if (rc && c)
		vckpt_free(c);
	*out = rc ? NULL : c;
	return rc;
}

/* ---- the cache -------------------------------------------------------------------- */

void vckpt_put(struct vckpt *c)
{
	pthread_mutex_lock(&cache_lock);
	bool last = --c->refs == 0;
	pthread_mutex_unlock(&cache_lock);
	if (last)
		vckpt_free(c);
}

static struct vckpt *cache_find(const char *path)
{
	pthread_mutex_lock(&cache_lock);
	struct vckpt **pp = &cache, *c;
	while ((c = *pp) && strcmp(c->path, path))
		pp = &c->next;
	if (c) {
		*pp = c->next;
		c->next = cache;
		cache = c;
		c->refs++;
	}
	pthread_mutex_unlock(&cache_lock);
	return c;
}

static void cache_drop(struct vckpt *c)
{
	pthread_mutex_lock(&cache_lock);
	struct vckpt **pp = &cache;
	while (*pp && *pp != c)
		pp = &(*pp)->next;
	bool there = *pp == c;
	if (there)
		*pp = c->next;
	pthread_mutex_unlock(&cache_lock);
	if (there)
		vckpt_put(c);
}

/* c is in front; the cache has a reference of its own. */
static void cache_add(struct vckpt *c)
{
	struct vckpt *old = NULL;
	uint64_t cost = 0;
	unsigned n = 0;
	pthread_mutex_lock(&cache_lock);
	c->refs++;
	c->next = cache;
	cache = c;
	for (struct vckpt **pp = &cache, *x; (x = *pp);) {
		cost += x->cost;
		if (n++ && (n > CACHE_MAX || cost > CACHE_COST)) {
			*pp = x->next;
			x->next = old;
			old = x;
		} else {
			pp = &x->next;
		}
	}
	pthread_mutex_unlock(&cache_lock);
	while (old) {
		struct vckpt *x = old;
		old = x->next;
		vckpt_put(x);
	}
}

/* Are its files still the ones that were parsed, and nobody writes them? */
static bool is_current(struct fs *fs, struct vckpt *c)
{
	struct stat st = {0};
	struct node *dir;
	if (views_walk(fs, c->path, &dir))
		return false;
	struct stat ds;
	node_stat(fs, dir, &ds);
	views_walk_done(fs, dir);
	if (ds.st_mtim.tv_sec != c->dir_mtime.tv_sec || ds.st_mtim.tv_nsec != c->dir_mtime.tv_nsec)
		return false;	/* another file may belong to it */
	for (size_t i = 0; i < c->n_files; i++) {
		struct seen s;
		if (see(fs, c->path, c->file[i].name, &s) || s.open || !is_version(&c->file[i], &s.st))
			return false;
		restrict_to(&st, &s.st, i == 0);
	}
	pthread_mutex_lock(&cache_lock);
	c->st = st;
	c->checked_ns = now_ns();
	pthread_mutex_unlock(&cache_lock);
	return true;
}

void vckpt_stat(struct vckpt *c, struct stat *out)
{
	pthread_mutex_lock(&cache_lock);
	*out = c->st;
	pthread_mutex_unlock(&cache_lock);
}

static bool is_fresh(struct vckpt *c)
{
	pthread_mutex_lock(&cache_lock);
	bool fresh = now_ns() - c->checked_ns < TRUST_NS;
	pthread_mutex_unlock(&cache_lock);
	return fresh;
}

int vckpt_get(struct fs *fs, const char *path, bool now, struct vckpt **out)
{
	struct vckpt *c = cache_find(path);
	int rc = 0;
	if (c && !now && is_fresh(c)) {
		*out = c;
		return 0;
	}
	if (c)
		vckpt_put(c);
	pthread_mutex_lock(&load_lock);
	c = cache_find(path);		/* another may have been faster */
	if (c && !((!now && is_fresh(c)) || is_current(fs, c))) {
		cache_drop(c);
		vckpt_put(c);
		c = NULL;
	}
	if (!c) {
		rc = load(fs, path, &c);
		if (!rc)
			cache_add(c);
	}
	pthread_mutex_unlock(&load_lock);
	*out = c;
	return rc;
}

int vckpt_get_version(struct fs *fs, const char *path, uint64_t version, struct vckpt **out)
{
	struct vckpt *c = cache_find(path);
	int rc = 0;
	if (!c)
		rc = vckpt_get(fs, path, false, &c);
	if (!rc && c->version != version) {
		vckpt_put(c);
		rc = -ESTALE;
	}
	*out = rc ? NULL : c;
	return rc == -ENOENT ? -ESTALE : rc;
}

void vckpt_idle(const char *path)
{
	struct vckpt *c = cache_find(path);
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	close_unused(c);
	pthread_mutex_unlock(&c->lock);
	vckpt_put(c);
}

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

static int see(struct fs *fs, const char *dir, const char *name, struct stat *st, bool *open)
{
	CLEANUP_FREE char *path = join(dir, name);
	struct node *n;
	int rc = path ? views_walk(fs, path, &n) : -ENOMEM;
	if (rc)
		return rc;
	node_stat(fs, n, st);
	*open = n->writers > 0;
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

struct seen {			/* of a file of the checkpoint */
	char *name;
	struct stat st;
	bool open;		/* somebody writes it */
	bool read;		/* its metadata or headers were */
};

struct load {
	struct fs *fs;
	struct vckpt *c;
	struct ckpt_content in;
	struct seen *seen;	/* the listed ones by name, then those further down */
	size_t n, n_listed, cap;
	uint64_t left;		/* of PARSE_MAX */
	bool too_much;		/* it ran out */
	bool incomplete;	/* it changed under our eyes */
};

struct opened {			/* while it is parsed */
	struct load *l;
	struct vfile f;
	struct fmt_source s;
};

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct seen *)a)->name, ((const struct seen *)b)->name);
}

static struct seen *find_seen(const struct load *l, const char *name)
{
	const struct seen key = {.name = (char *)name};
	return l->n_listed ? bsearch(&key, l->seen, l->n_listed, sizeof(*l->seen), by_name) : NULL;
}

static void sort_seen(struct load *l)
{
	if (l->n)
		qsort(l->seen, l->n, sizeof(*l->seen), by_name);
	l->n_listed = l->n;
}

static int add_seen(void *ctx, const char *name)
{
	struct load *l = ctx;
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 64;
		void *p = reallocarray(l->seen, cap, sizeof(*l->seen));
		if (!p)
			return -ENOMEM;
		l->seen = p;
		l->cap = cap;
	}
	l->seen[l->n] = (struct seen){.name = strdup(name)};
	return l->seen[l->n].name ? (l->n++, 0) : -ENOMEM;
}

static void as_file(const struct load *l, const struct seen *s, struct vfile *out)
{
	*out = (struct vfile){.name = s->name, .ino = s->st.st_ino, .size = (uint64_t)s->st.st_size,
			      .mtime = s->st.st_mtim, .fd = -1, .c = l->c};
}

/* Parsers read in pieces of any size; all that they read is counted. */
static int read_counted(void *ctx, uint64_t off, void *buf, size_t len)
{
	struct opened *o = ctx;
	int rc = 0;
	o->l->too_much |= len > o->l->left;
	if (o->l->too_much)
		return -E2BIG;
	o->l->left -= len;
	while (!rc && len) {
		size_t part = len < READ_MAX ? len : READ_MAX;
		rc = o->s.read(o->s.ctx, off, buf, part);
		buf = (char *)buf + part;
		off += part;
		len -= part;
	}
	return rc;
}

/* One further down is learned of by its metadata, and not listed. */
static int find_or_see(struct load *l, const char *name, struct seen **out)
{
	*out = find_seen(l, name);
	if (*out)
		return 0;
	int rc = strchr(name, '/') ? add_seen(l, name) : -ENOENT;
	if (rc)
		return rc;
	*out = &l->seen[l->n - 1];
	return see(l->fs, l->c->path, name, &(*out)->st, &(*out)->open);
}

static int load_open(void *ctx, const char *name, struct fmt_source *out)
{
	struct opened *o = malloc(sizeof(*o));
	struct load *l = ctx;
	struct seen *s;
	int rc = o ? find_or_see(l, name, &s) : -ENOMEM;
	if (!rc && !S_ISREG(s->st.st_mode))
		rc = -ENOENT;
	if (!rc) {
		o->l = l;
		as_file(l, s, &o->f);
		s->read = true;
		rc = file_get(&o->f, &o->s);
	}
	if (rc)
		free(o);
	else
		*out = (struct fmt_source){.size = o->s.size, .read = read_counted, .ctx = o};
	return rc;
}

static void load_close(void *ctx, struct fmt_source *s)
{
	struct opened *o = s->ctx;
	struct vckpt *c = ((struct load *)ctx)->c;
	file_put(&o->f);
	pthread_mutex_lock(&c->lock);
	close_file(&o->f);
	pthread_mutex_unlock(&c->lock);
	free(o);
}

/* The first one ends it: why is told, unless it is no more than that somebody writes here. */
static int load_refuse(void *ctx, const char *file, const struct fmt_error *e, int rc)
{
	struct load *l = ctx;
	char *why = l->c->why;
	size_t room = sizeof(l->c->why);
	if (rc == -ESTALE || rc == -ENOENT)
		l->incomplete = true;
	else if (rc == -EFBIG || l->too_much)
		snprintf(why, room, "%.100s: more than %u MiB of metadata, which the daemon does not read; "
			 "cairn export does", file, PARSE_MAX >> 20);
	else if (e->at != FMT_NOWHERE)
		snprintf(why, room, "%.100s: at %llu: %.180s", file, (unsigned long long)e->at, e->text);
	else
		snprintf(why, room, "%.100s: %.200s", file, *e->text ? e->text : strerror(-rc));
	return rc;
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
		rc = dir_names(l->fs, dir, add_seen, l);
	} else {
		rc = -ENOTDIR;
	}
	views_walk_done(l->fs, dir);
	sort_seen(l);
	return rc;
}

/* Sizes, and who is open. After the names: one may be gone. */
static int look_at_names(struct load *l)
{
	l->in.v = calloc(l->n ? l->n : 1, sizeof(*l->in.v));
	if (!l->in.v)
		return -ENOMEM;
	for (size_t i = 0; i < l->n; i++) {
		struct seen *s = &l->seen[i];
		const char *name = strdup(s->name);
		if (!name)
			return -ENOMEM;
		l->in.v[l->in.n++] = (struct ckpt_name){.name = name};
		if (see(l->fs, l->c->path, name, &s->st, &s->open))
			continue;
		l->in.v[i].dir = S_ISDIR(s->st.st_mode);
		l->in.v[i].size = S_ISREG(s->st.st_mode) ? (uint64_t)s->st.st_size : 0;
		l->in.v[i].open = s->open;
	}
	return 0;
}

/* ---- what it is then -------------------------------------------------------------- */

/* The one place that says whether a checkpoint has views. */
static bool is_whole(const struct load *l)
{
	const struct ckpt_content *in = &l->in;
	struct ckpt_verdict v;
	struct timespec now, newest = l->c->dir_mtime;
	clock_gettime(CLOCK_REALTIME, &now);
	for (size_t i = 0; i < l->n; i++)
		if (l->seen[i].st.st_mtim.tv_sec > newest.tv_sec)
			newest = l->seen[i].st.st_mtim;
	ckpt_judge(&in->kind, in->v, in->n, in->set, in->index.v ? &in->index : NULL,
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

static int add_file(struct load *l, struct seen *s)
{
	struct vckpt *c = l->c;
	struct vfile *f = &c->file[c->n_files];
	as_file(l, s, f);
	f->name = strdup(s->name);
	if (!f->name)
		return -ENOMEM;
	s->read = false;	/* it has its place */
	hash_in(&c->version, f->name, strlen(f->name));
	hash_in(&c->version, &f->ino, sizeof(f->ino));
	hash_in(&c->version, &f->size, sizeof(f->size));
	hash_in(&c->version, &f->mtime.tv_sec, sizeof(f->mtime.tv_sec));
	hash_in(&c->version, &f->mtime.tv_nsec, sizeof(f->mtime.tv_nsec));
	restrict_to(&c->st, &s->st, c->n_files++ == 0);
	return 0;
}

/* c->file, version and attributes, from what was seen. The set's files come first, as they are
 * numbered there. */
static int remember_files(struct load *l)
{
	struct vckpt *c = l->c;
	size_t n = c->set ? c->set->n_files : 0;
	int rc = 0;
	sort_seen(l);
	c->file = calloc(n + l->n + 1, sizeof(*c->file));
	if (!c->file)
		return -ENOMEM;
	for (size_t i = 0; !rc && i < n; i++) {
		struct seen *s = find_seen(l, c->set->file[i].name);
		rc = s ? add_file(l, s) : -ENOENT;
	}
	for (size_t i = 0; !rc && i < l->n; i++)
		if (l->seen[i].read)
			rc = add_file(l, &l->seen[i]);
	return rc ? rc : c->n_files ? 0 : -ENOENT;
}

static void load_free(struct load *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->seen[i].name);
	free(l->seen);
	ckpt_content_free(&l->in);
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
	const struct ckpt_io io = {.ctx = l, .open = load_open, .close = load_close, .bad = load_refuse,
				   .max_bytes = PARSE_MAX};
	struct vckpt *c = l->c;
	int rc = 0;
	if (l->in.kind.format == CKPT_ORBAX) {
		snprintf(c->why, sizeof(c->why), "the tensors of Orbax checkpoints (tensorstore) are not read");
		rc = -ENOTSUP;
	}
	if (!rc)
		rc = ckpt_content_read(&l->in, &io, CKPT_TENSORS);
	if (!rc && (!l->in.set || !is_whole(l)))
		rc = -ENOENT;
	if (!rc) {
		c->set = l->in.set;
		l->in.set = NULL;
		rc = view_base_new(c->set, &c->base);
	}
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
	if (c->path)
		return c;
	vckpt_free(c);
	return NULL;
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
		ckpt_recognize(slash ? slash + 1 : path, l.in.v, l.in.n, &l.in.kind);
		if (l.in.kind.format == CKPT_NONE || l.in.kind.temporary)
			rc = -ENOENT;
	}
	if (!rc)
		rc = load_set(&l);
	if (c && *c->why && !c->partly && rc != -ENOMEM && rc != -ENOENT)
		rc = 0;
	if (!rc)
		rc = remember_files(&l);
	if (c)
		c->checked_ns = monotonic_ns();
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
		struct stat fst;
		bool open;
		if (see(fs, c->path, c->file[i].name, &fst, &open) || open || !is_version(&c->file[i], &fst))
			return false;
		restrict_to(&st, &fst, i == 0);
	}
	pthread_mutex_lock(&cache_lock);
	c->st = st;
	c->checked_ns = monotonic_ns();
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
	bool fresh = monotonic_ns() - c->checked_ns < TRUST_NS;
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

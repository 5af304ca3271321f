/* SPDX-License-Identifier: MIT
 * .cairn/views/<path of a checkpoint>/: its tensors as other files.
 *
 *	model.safetensors		all of them
 *	split-5G/			in numbered parts, with an index
 *	reshard/<W>/rank-<r>.safetensors	split on dimension 0
 *	tensors/<name>.npy		one
 *	refused				why some or all of these are missing
 *
 * A name here is a place in the tree above and, below a checkpoint, a version of it: other
 * bytes have another node, so the kernel's cache never mixes them. Requests that may parse go to
 * threads of their own; the threads that answer the kernel only read, a few at a time. */
#include "fs/views.h"
#include "io/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUCKETS 1024u
#define POOL 3u			/* threads for what may take long */
#define INLINE_READS 4u		/* threads of the session that may read views at once */
#define LAYOUTS_MAX 64u		/* kept, */
#define LAYOUTS_BYTES (32u << 20)	/* of that size together */
#define PART_BYTES 5000000000u	/* Hugging Face's "5GB" */
#define RANKS_MAX 65536u
#define TIMEOUT_S 1.0

enum vkind { V_DIR, V_MODEL, V_REFUSED, V_SPLIT, V_PART, V_INDEX, V_RESHARD, V_WORLD, V_RANK, V_TENSORS, V_NPY };

struct what {			/* a name stands for */
	enum vkind kind;
	uint32_t ranks;
	uint64_t i;		/* part, rank, or tensor */
	uint64_t version;	/* of the checkpoint; V_DIR: 0 */
	const char *path;	/* of the directory above it that is one of the mount's */
};

struct vnode {
	struct vnode *id_next, *what_next;
	uint64_t id, nlookup;
	struct what what;	/* path is owned */
	struct stat st;		/* as last seen */
};

struct layout {
	struct layout *next;
	unsigned refs;
	struct what what;	/* path is c's */
	struct vckpt *c;
	struct view *view;
};

struct vhandle {
	struct vhandle *next;
	uint64_t fh;
	char *path;
};

/* Taken last of all locks: names, layouts, handles. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct vnode *by_id[BUCKETS], *by_what[BUCKETS];
static struct vnode root = {.id = VIEWS_DIR, .nlookup = 1, .what = {.kind = V_DIR, .path = ""}};
static uint64_t next_id;
static struct layout *layouts;
static struct vhandle *handles;
static atomic_uint inline_reads;

/* ---- nodes ------------------------------------------------------------------------ */

static bool is_dir(enum vkind k)
{
	return k == V_DIR || k == V_SPLIT || k == V_RESHARD || k == V_WORLD || k == V_TENSORS;
}

static bool same_what(const struct what *a, const struct what *b)
{
	return a->kind == b->kind && a->ranks == b->ranks && a->i == b->i && a->version == b->version &&
	       !strcmp(a->path, b->path);
}

static unsigned what_bucket(const struct what *w)
{
	uint64_t h = w->version ^ w->i * 0x9e3779b97f4a7c15ull ^ (uint64_t)w->ranks << 32 ^ (uint64_t)w->kind;
	for (const char *p = w->path; *p; p++)
		h = (h ^ (unsigned char)*p) * 0x100000001b3ull;
	return (unsigned)((h ^ h >> 29) % BUCKETS);
}

/* Lives while the kernel knows it, which it does while it asks about it. */
static struct vnode *vnode_find(uint64_t id)
{
	if (id == VIEWS_DIR)
		return &root;
	pthread_mutex_lock(&lock);
	struct vnode *n = by_id[id % BUCKETS];
	while (n && n->id != id)
		n = n->id_next;
	pthread_mutex_unlock(&lock);
	return n;
}

/* Ids of a worker before this one must not come again: the kernel may still hold some. */
static uint64_t new_id(void)
{
	if (!next_id)
		next_id = VIEWS_FIRST | (uint64_t)time(NULL) << 24;
	return next_id++;
}

/* The node of w, known to the kernel once more. */
static struct vnode *vnode_get(const struct what *w, const struct stat *st)
{
	unsigned b = what_bucket(w);
	pthread_mutex_lock(&lock);
	struct vnode *n = by_what[b];
	while (n && !same_what(&n->what, w))
		n = n->what_next;
	if (!n && (n = calloc(1, sizeof(*n)))) {
		n->what = *w;
		n->what.path = strdup(w->path);
		if (!n->what.path) {
			free(n);
			n = NULL;
		} else {
			n->id = new_id();
			n->what_next = by_what[b];
			by_what[b] = n;
			n->id_next = by_id[n->id % BUCKETS];
			by_id[n->id % BUCKETS] = n;
		}
	}
	if (n) {
		n->nlookup++;
		n->st = *st;
		n->st.st_ino = n->id;
	}
	pthread_mutex_unlock(&lock);
	return n;
}

void views_forget(uint64_t id, uint64_t count)
{
	if (id == VIEWS_DIR)
		return;
	pthread_mutex_lock(&lock);
	struct vnode **pp = &by_id[id % BUCKETS], *n;
	while ((n = *pp) && n->id != id)
		pp = &n->id_next;
	if (n)
		n->nlookup -= count < n->nlookup ? count : n->nlookup;
	if (n && !n->nlookup) {
		*pp = n->id_next;
		for (pp = &by_what[what_bucket(&n->what)]; *pp != n;)
			pp = &(*pp)->what_next;
		*pp = n->what_next;
	} else {
		n = NULL;
	}
	pthread_mutex_unlock(&lock);
	if (n)
		free((char *)n->what.path);
	free(n);
}

/* ---- layouts ---------------------------------------------------------------------- */

static void layout_put(struct layout *l)
{
	pthread_mutex_lock(&lock);
	bool last = --l->refs == 0;
	pthread_mutex_unlock(&lock);
	if (!last)
		return;
	view_free(l->view);
	vckpt_put(l->c);
	free(l);
}

static struct layout *layout_find(const struct what *w)
{
	pthread_mutex_lock(&lock);
	struct layout **pp = &layouts, *l;
	while ((l = *pp) && !same_what(&l->what, w))
		pp = &l->next;
	if (l) {
		*pp = l->next;
		l->next = layouts;
		layouts = l;
		l->refs++;
	}
	pthread_mutex_unlock(&lock);
	return l;
}

/* The cache gets a reference of its own. */
static void layout_keep(struct layout *l)
{
	struct layout *old = NULL;
	size_t bytes = 0;
	unsigned n = 0;
	pthread_mutex_lock(&lock);
	l->refs++;
	l->next = layouts;
	layouts = l;
	for (struct layout **pp = &layouts, *x; (x = *pp);) {
		bytes += view_memory(x->view);
		if (n++ && (n > LAYOUTS_MAX || bytes > LAYOUTS_BYTES)) {
			*pp = x->next;
			x->next = old;
			old = x;
		} else {
			pp = &x->next;
		}
	}
	pthread_mutex_unlock(&lock);
	while (old) {
		struct layout *x = old;
		old = x->next;
		layout_put(x);
	}
}

static int make_part(struct vckpt *c, const struct what *w, struct view **out, struct fmt_error *e)
{
	CLEANUP_FREE size_t *cut = NULL;
	size_t n;
	int rc = view_split(c->base, PART_BYTES, &cut, &n, e);
	if (rc)
		return rc;
	if (w->kind == V_INDEX)
		return view_index(c->base, cut, n, out, e);
	if (w->i >= n || w->ranks != n)
		return -ENOENT;
	struct view_pick p = {cut[w->i], cut[w->i + 1], 1, 0};
	return view_safetensors(c->base, &p, out, e);
}

static int make_view(struct vckpt *c, const struct what *w, struct view **out)
{
	struct fmt_error e;
	if (!c->set || (*c->why && w->kind != V_NPY))
		return -ENOENT;
	struct view_pick all = {0, c->set->n_tensors, w->kind == V_RANK ? w->ranks : 1,
				w->kind == V_RANK ? (uint32_t)w->i : 0};
	if (w->kind == V_PART || w->kind == V_INDEX)
		return make_part(c, w, out, &e);
	if (w->kind == V_NPY)
		return w->i < c->set->n_tensors ? view_npy(c->base, w->i, out, &e) : -ENOENT;
	return view_safetensors(c->base, &all, out, &e);
}

static int layout_get(struct fs *fs, const struct what *w, struct layout **out)
{
	struct layout *l = layout_find(w);
	*out = l;
	if (l)
		return 0;
	l = calloc(1, sizeof(*l));
	int rc = l ? vckpt_get_version(fs, w->path, w->version, &l->c) : -ENOMEM;
	if (!rc)
		rc = make_view(l->c, w, &l->view);
	if (rc) {
		if (l && l->c)
			vckpt_put(l->c);
		free(l);
		return rc;
	}
	l->refs = 1;
	l->what = *w;
	l->what.path = l->c->path;
	layout_keep(l);
	*out = l;
	return 0;
}

/* ---- attributes ------------------------------------------------------------------- */

/* Of the real directory: who may not go there may not go here. */
static int dir_stat(struct fs *fs, const char *path, struct stat *st)
{
	struct node *n;
	int rc = views_walk(fs, path, &n);
	if (rc)
		return rc;
	node_stat(fs, n, st);
	if (!S_ISDIR(st->st_mode))
		rc = -ENOENT;
	st->st_mode = S_IFDIR | (st->st_mode & 0555);
	st->st_nlink = 2;
	st->st_size = 4096;
	st->st_blocks = 8;
	views_walk_done(fs, n);
	return rc;
}

static int what_stat(struct fs *fs, const struct what *w, struct vckpt *c, struct stat *st)
{
	if (is_dir(w->kind))
		return dir_stat(fs, w->path, st);
	*st = (struct stat){0};
	vckpt_stat(c, st);
	if (w->kind == V_REFUSED) {
		st->st_size = (off_t)strlen(c->why) + 1;
	} else {
		struct layout *l;
		int rc = layout_get(fs, w, &l);
		if (rc)
			return rc;
		st->st_size = (off_t)view_size(l->view);
		layout_put(l);
	}
	st->st_nlink = 1;
	st->st_blksize = BLKSIZE;
	st->st_blocks = (st->st_size + 511) / 512;
	st->st_atim = st->st_ctim = st->st_mtim;
	return 0;
}

/* ---- names ------------------------------------------------------------------------ */

/* A tensor's name as one of a file: '/' is %2F, '%' is %25. False: too long. */
static bool encode(const char *name, char buf[MAX_NAME + 1])
{
	size_t n = 0;
	for (; *name && n + 7 <= MAX_NAME; name++) {
		if (*name == '/' || *name == '%')
			n += (size_t)sprintf(buf + n, "%s", *name == '/' ? "%2F" : "%25");
		else
			buf[n++] = *name;
	}
	strcpy(buf + n, ".npy");
	return !*name;
}

/* And back; its length, -1: no such name. */
static ssize_t decode(const char *file, char buf[MAX_NAME + 1])
{
	size_t len = strlen(file), n = 0;
	if (len < 4 || len > MAX_NAME || strcmp(file + len - 4, ".npy"))
		return -1;
	for (const char *p = file; p < file + len - 4; p++) {
		if (*p != '%') {
			buf[n++] = *p;
			continue;
		}
		if (strncmp(p, "%2F", 3) && strncmp(p, "%25", 3))
			return -1;
		buf[n++] = p[2] == 'F' ? '/' : '%';
		p += 2;
	}
	return (ssize_t)n;
}

/* A number in the one way it is written. */
static bool number(const char *s, size_t len, uint64_t max, uint64_t *out)
{
	*out = 0;
	if (!len || len > 9 || (*s == '0' && len > 1))
		return false;
	for (size_t i = 0; i < len; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		*out = *out * 10 + (uint64_t)(s[i] - '0');
	}
	return *out <= max;
}

static const struct { const char *name; enum vkind kind; } specials[] = {
	{"model.safetensors", V_MODEL}, {"split-5G", V_SPLIT}, {"reshard", V_RESHARD}, {"tensors", V_TENSORS},
	{"refused", V_REFUSED},
};
#define N_SPECIALS (sizeof(specials) / sizeof(specials[0]))

static bool has_special(const struct vckpt *c, enum vkind k)
{
	return k == V_REFUSED ? *c->why : k == V_TENSORS ? c->set != NULL : c->set && !*c->why;
}

/* In a directory of the mount: the views of the checkpoint it is, or a directory below it.
 * *path is what w->path points to, the caller frees. */
static int find_in_dir(struct fs *fs, const struct what *dir, const char *name, struct what *w, char **path)
{
	struct vckpt *c;
	size_t i = 0;
	while (i < N_SPECIALS && strcmp(name, specials[i].name))
		i++;
	if (i < N_SPECIALS && !vckpt_get(fs, dir->path, false, &c)) {
		bool has = has_special(c, specials[i].kind);
		*w = (struct what){.kind = specials[i].kind, .path = dir->path, .version = c->version};
		vckpt_put(c);
		if (has)
			return 0;
	}
	if (asprintf(path, "%s%s%s", dir->path, *dir->path ? "/" : "", name) < 0) {
		*path = NULL;
		return -ENOMEM;
	}
	*w = (struct what){.kind = V_DIR, .path = *path};
	return 0;			/* whether it is there its stat says */
}

static int find_tensor(struct fs *fs, const struct what *dir, const char *name, struct what *w)
{
	char buf[MAX_NAME + 1];
	ssize_t len = decode(name, buf);
	struct vckpt *c;
	int rc = len < 0 ? -ENOENT : vckpt_get_version(fs, dir->path, dir->version, &c);
	if (rc)
		return rc;
	const struct fmt_tensor *t = c->set ? fmt_set_find(c->set, buf, (size_t)len) : NULL;
	w->kind = V_NPY;
	w->i = t ? (uint64_t)(t - c->set->tensor) : 0;
	vckpt_put(c);
	return t ? 0 : -ENOENT;
}

static int find_what(struct fs *fs, const struct what *dir, const char *name, struct what *w, char **path)
{
	size_t len = strlen(name);
	uint64_t n;
	unsigned part, of;
	char again[64];

	*w = *dir;
	switch (dir->kind) {
	case V_DIR:
		return find_in_dir(fs, dir, name, w, path);
	case V_TENSORS:
		return find_tensor(fs, dir, name, w);
	case V_SPLIT:
		w->kind = !strcmp(name, "model.safetensors.index.json") ? V_INDEX : V_PART;
		if (w->kind == V_INDEX)
			return 0;
		if (sscanf(name, "model-%u-of-%u.safetensors", &part, &of) != 2 || !part)
			return -ENOENT;
		snprintf(again, sizeof(again), VIEW_PART_NAME, (size_t)part, (size_t)of);
		w->i = part - 1;
		w->ranks = of;
		return strcmp(again, name) ? -ENOENT : 0;
	case V_RESHARD:
		w->kind = V_WORLD;
		if (!number(name, len, RANKS_MAX, &n) || !n)
			return -ENOENT;
		w->ranks = (uint32_t)n;
		return 0;
	case V_WORLD:
		w->kind = V_RANK;
		if (len < 18 || strncmp(name, "rank-", 5) || strcmp(name + len - 12, ".safetensors") ||
		    !number(name + 5, len - 17, dir->ranks - 1, &w->i))
			return -ENOENT;
		return 0;
	default:
		return -ENOTDIR;
	}
}

/* A directory below a checkpoint goes when its version does. */
static int find_version(struct fs *fs, const struct what *w, struct vckpt **c)
{
	*c = NULL;
	if (w->kind == V_DIR)
		return 0;
	int rc = vckpt_get(fs, w->path, false, c);
	if (!rc && (*c)->version != w->version) {
		vckpt_put(*c);
		*c = NULL;
		rc = -ENOENT;
	}
	return rc;
}

/* ---- answers ---------------------------------------------------------------------- */

enum job_kind { JOB_LOOKUP, JOB_GETATTR, JOB_OPEN, JOB_READ, JOB_READDIR };

struct job {
	struct job *next;
	enum job_kind kind;
	fuse_req_t req;
	uint64_t id;
	size_t size;
	off_t off;
	bool plus;
	struct fuse_file_info fi;
	char name[];
};

static int to_errno(int rc)
{
	return rc == -E2BIG ? EFBIG : rc == -ENOTSUP ? EOPNOTSUPP : -rc;
}

static void do_lookup(struct job *j)
{
	struct fs *fs = req_fs(j->req);
	struct vnode *dir = vnode_find(j->id), *n = NULL;
	CLEANUP_FREE char *path = NULL;
	struct vckpt *c = NULL;
	struct what w;
	struct stat st;
	int rc = dir ? find_what(fs, &dir->what, j->name, &w, &path) : -ESTALE;

	if (!rc)
		rc = find_version(fs, &w, &c);
	if (!rc)
		rc = what_stat(fs, &w, c, &st);
	if (!rc) {
		n = vnode_get(&w, &st);
		rc = n ? 0 : -ENOMEM;
	}
	if (c)
		vckpt_put(c);
	if (rc) {
		fuse_reply_err(j->req, to_errno(rc == -ENOTDIR ? -ENOENT : rc));
		return;
	}
	struct fuse_entry_param e = {.ino = n->id, .attr = st, .attr_timeout = TIMEOUT_S, .entry_timeout = TIMEOUT_S};
	e.attr.st_ino = n->id;
	uint64_t id = n->id;
	rc = fuse_reply_entry(j->req, &e);
	if (rc && rc != -ENOENT)
		views_forget(id, 1);
}

/* What has changed since is told as it was: the node is that version's. */
static void do_getattr(struct job *j)
{
	struct fs *fs = req_fs(j->req);
	struct vnode *n = vnode_find(j->id);
	struct vckpt *c = NULL;
	struct stat st;

	if (!n) {
		fuse_reply_err(j->req, ESTALE);
		return;
	}
	int rc = find_version(fs, &n->what, &c);
	if (!rc)
		rc = what_stat(fs, &n->what, c, &st);
	if (c)
		vckpt_put(c);
	pthread_mutex_lock(&lock);
	if (!rc) {
		n->st = st;
		n->st.st_ino = n->id;
	}
	st = n->st;
	pthread_mutex_unlock(&lock);
	if (rc && is_dir(n->what.kind))
		fuse_reply_err(j->req, ESTALE);
	else
		fuse_reply_attr(j->req, &st, TIMEOUT_S);
}

static struct vhandle *handle_new(struct fs *fs, const char *path)
{
	struct vhandle *h = calloc(1, sizeof(*h));
	if (!h)
		return NULL;
	h->path = strdup(path);
	h->fh = staging_new_id(fs->s);
	if (!h->path) {
		free(h);
		return NULL;
	}
	pthread_mutex_lock(&lock);
	h->next = handles;
	handles = h;
	pthread_mutex_unlock(&lock);
	return h;
}

/* The last one of a checkpoint lets go of its files: one that is removed must not stay on
 * the disk. */
static void handle_drop(uint64_t fh)
{
	pthread_mutex_lock(&lock);
	struct vhandle **pp = &handles, *h, *other;
	while ((h = *pp) && h->fh != fh)
		pp = &h->next;
	if (h)
		*pp = h->next;
	for (other = handles; h && other && strcmp(other->path, h->path);)
		other = other->next;
	pthread_mutex_unlock(&lock);
	if (!h)
		return;
	if (!other)
		vckpt_idle(h->path);
	free(h->path);
	free(h);
}

static void do_open(struct job *j)
{
	struct fs *fs = req_fs(j->req);
	struct vnode *n = vnode_find(j->id);
	struct vhandle *h = NULL;
	struct layout *l = NULL;
	struct vckpt *c;
	int rc = n ? vckpt_get(fs, n->what.path, true, &c) : -ESTALE;

	if (!rc) {
		rc = c->version == n->what.version ? 0 : -ESTALE;
		if (!rc && n->what.kind != V_REFUSED)
			rc = layout_get(fs, &n->what, &l);
		vckpt_put(c);
	}
	if (l)
		layout_put(l);
	if (!rc && !(h = handle_new(fs, n->what.path)))
		rc = -ENOMEM;
	if (rc) {		/* ESTALE: the kernel looks the name up again */
		fuse_reply_err(j->req, rc == -ENOENT ? ESTALE : to_errno(rc));
		return;
	}
	j->fi.fh = h->fh;
	j->fi.keep_cache = n->what.kind != V_REFUSED;
	j->fi.direct_io = n->what.kind == V_REFUSED;
	if (fuse_reply_open(j->req, &j->fi))
		handle_drop(j->fi.fh);
}

static _Thread_local struct {
	char *buf, *scratch;
	size_t cap;
} mine;

static bool have_room(size_t size)
{
	if (!mine.scratch)
		mine.scratch = malloc(VIEW_SCRATCH);
	if (mine.cap < size) {
		free(mine.buf);
		mine.buf = malloc(size);
		mine.cap = mine.buf ? size : 0;
	}
	return mine.scratch && mine.cap >= size;
}

static void read_layout(fuse_req_t req, struct layout *l, size_t size, off_t off)
{
	struct view_io io = {vckpt_file_get, vckpt_file_put, l->c, NULL};
	uint64_t end = view_size(l->view), from = (uint64_t)off;
	struct fmt_error e;
	int rc = have_room(size) ? 0 : -ENOMEM;

	io.scratch = mine.scratch;
	if (from >= end)
		size = 0;
	else if (size > end - from)
		size = (size_t)(end - from);
	for (size_t at = 0, n; !rc && at < size; at += n) {
		n = size - at < 1u << 20 ? size - at : 1u << 20;
		rc = view_read(l->view, &io, from + at, mine.buf + at, n, &e);
	}
	if (!rc)
		atomic_fetch_add(&req_fs(req)->bytes_read, size);
	if (rc)
		fuse_reply_err(req, to_errno(rc));
	else
		fuse_reply_buf(req, mine.buf, size);
}

static void read_refused(fuse_req_t req, const struct vnode *n, size_t size, off_t off)
{
	struct vckpt *c;
	char text[400];
	int rc = vckpt_get_version(req_fs(req), n->what.path, n->what.version, &c);
	if (rc) {
		fuse_reply_err(req, to_errno(rc));
		return;
	}
	size_t len = (size_t)snprintf(text, sizeof(text), "%s\n", c->why);
	vckpt_put(c);
	if ((size_t)off >= len)
		size = 0;
	else if (size > len - (size_t)off)
		size = len - (size_t)off;
	fuse_reply_buf(req, text + (size ? off : 0), size);
}

static void do_read(struct job *j)
{
	struct vnode *n = vnode_find(j->id);
	struct layout *l;
	int rc = n ? 0 : -ESTALE;

	if (!rc && n->what.kind == V_REFUSED) {
		read_refused(j->req, n, j->size, j->off);
		return;
	}
	if (!rc)
		rc = layout_get(req_fs(j->req), &n->what, &l);
	if (rc) {
		fuse_reply_err(j->req, rc == -ENOENT ? ESTALE : to_errno(rc));
		return;
	}
	read_layout(j->req, l, j->size, j->off);
	layout_put(l);
}

/* ---- listings --------------------------------------------------------------------- */

struct list_out {
	struct job *j;
	char *buf;
	size_t used;
	uint64_t at;		/* of the entry that comes next, from 0 */
	bool full;
};

/* No node comes with a name (ino 0): the kernel looks it up when somebody asks. */
static int put_name(struct list_out *o, const char *name, bool dir)
{
	struct fuse_entry_param e = {.attr = {.st_ino = VIEWS_FIRST - 1, .st_mode = dir ? S_IFDIR : S_IFREG}};
	size_t left = o->j->size - o->used, need;
	uint64_t off = o->at++;

	if (off < (uint64_t)o->j->off)
		return 0;
	need = o->j->plus ? fuse_add_direntry_plus(o->j->req, o->buf + o->used, left, name, &e, (off_t)off + 1) :
			    fuse_add_direntry(o->j->req, o->buf + o->used, left, name, &e.attr, (off_t)off + 1);
	o->full = need > left;
	if (!o->full)
		o->used += need;
	return o->full;
}

static void list_tensors(struct list_out *o, const struct vckpt *c)
{
	char name[MAX_NAME + 1];
	/* an entry a tensor, shown or not, so that an offset finds its place at once */
	uint64_t from = (uint64_t)o->j->off > o->at ? (uint64_t)o->j->off - o->at : 0;
	o->at += from;
	for (size_t i = from; i < c->set->n_tensors && !o->full; i++) {
		if (encode(c->set->tensor[i].name, name))
			put_name(o, name, false);
		else
			o->at++;
	}
}

static void list_split(struct list_out *o, const struct vckpt *c)
{
	struct fmt_error e;
	char name[64];
	size_t *cut, n;
	if (put_name(o, "model.safetensors.index.json", false) || view_split(c->base, PART_BYTES, &cut, &n, &e))
		return;
	for (size_t i = 0; i < n && !o->full; i++) {
		snprintf(name, sizeof(name), VIEW_PART_NAME, i + 1, n);
		put_name(o, name, false);
	}
	free(cut);
}

struct subdirs {
	char **v;
	size_t n, cap;
};

static int take_subdir(void *arg, const char *name)
{
	struct subdirs *s = arg;
	if (s->n == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 64;
		void *p = reallocarray(s->v, cap, sizeof(*s->v));
		if (!p)
			return -ENOMEM;
		s->v = p;
		s->cap = cap;
	}
	s->v[s->n] = strdup(name);
	return s->v[s->n] ? (s->n++, 0) : -ENOMEM;
}

/* The views of the checkpoint it is, if it is one, and the directories in it. */
static int list_dir(struct fs *fs, struct list_out *o, const char *path)
{
	struct subdirs s = {0};
	struct vckpt *c = NULL;
	struct node *dir;

	vckpt_get(fs, path, false, &c);
	for (size_t i = 0; i < N_SPECIALS; i++) {
		if (c && has_special(c, specials[i].kind))
			put_name(o, specials[i].name, is_dir(specials[i].kind));
		else
			o->at++;	/* offsets stay when a checkpoint becomes complete */
	}
	int rc = views_walk(fs, path, &dir);
	if (!rc) {
		rc = S_ISDIR(dir->mode) ? dir_names(fs, dir, take_subdir, &s) : -ENOENT;
		views_walk_done(fs, dir);
	}
	for (size_t i = 0; !rc && i < s.n; i++) {
		CLEANUP_FREE char *sub = NULL;
		struct stat st;
		bool skip = o->full || o->at < (uint64_t)o->j->off;
		for (size_t k = 0; c && k < N_SPECIALS; k++)
			skip = skip || (has_special(c, specials[k].kind) && !strcmp(s.v[i], specials[k].name));
		if (skip || asprintf(&sub, "%s%s%s", path, *path ? "/" : "", s.v[i]) < 0 || dir_stat(fs, sub, &st))
			o->at++;
		else
			put_name(o, s.v[i], true);
	}
	for (size_t i = 0; i < s.n; i++)
		free(s.v[i]);
	free(s.v);
	if (c)
		vckpt_put(c);
	return rc;
}

static void do_readdir(struct job *j)
{
	struct fs *fs = req_fs(j->req);
	struct vnode *n = vnode_find(j->id);
	struct list_out o = {.j = j, .buf = malloc(j->size)};
	CLEANUP_FREE char *buf = o.buf;
	struct vckpt *c = NULL;
	int rc = !n ? -ESTALE : !buf ? -ENOMEM : find_version(fs, &n->what, &c);

	if (!rc) {
		put_name(&o, ".", true);
		put_name(&o, "..", true);
		if (n->what.kind == V_DIR)
			rc = list_dir(fs, &o, n->what.path);
		else if (n->what.kind == V_TENSORS && c->set)
			list_tensors(&o, c);
		else if (n->what.kind == V_SPLIT && c->set)
			list_split(&o, c);
	}
	if (c)
		vckpt_put(c);
	if (rc)
		fuse_reply_err(j->req, to_errno(rc));
	else
		fuse_reply_buf(j->req, buf, o.used);
}

/* ---- threads of their own --------------------------------------------------------- */

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_cond = PTHREAD_COND_INITIALIZER;
static struct job *queue, **queue_end = &queue;
static unsigned n_threads, n_idle;

static void *pool_main(void *arg)
{
	static void (*const run[])(struct job *) = {
		[JOB_LOOKUP] = do_lookup, [JOB_GETATTR] = do_getattr, [JOB_OPEN] = do_open,
		[JOB_READ] = do_read, [JOB_READDIR] = do_readdir,
	};
	(void)arg;
	pthread_setname_np(pthread_self(), "cairn-views");
	for (;;) {
		pthread_mutex_lock(&queue_lock);
		n_idle++;
		while (!queue)
			pthread_cond_wait(&queue_cond, &queue_lock);
		n_idle--;
		struct job *j = queue;
		queue = j->next;
		if (!queue)
			queue_end = &queue;
		pthread_mutex_unlock(&queue_lock);
		run[j->kind](j);
		free(j);
	}
	return NULL;
}

static void enqueue(struct job *j)
{
	pthread_t t;
	pthread_mutex_lock(&queue_lock);
	if (!n_idle && n_threads < POOL && !pthread_create(&t, NULL, pool_main, NULL)) {
		pthread_detach(t);
		n_threads++;
	}
	bool any = n_threads > 0;
	if (any) {
		j->next = NULL;
		*queue_end = j;
		queue_end = &j->next;
		pthread_cond_signal(&queue_cond);
	}
	pthread_mutex_unlock(&queue_lock);
	if (!any) {
		fuse_reply_err(j->req, EAGAIN);
		free(j);
	}
}

static struct job *job_new(fuse_req_t req, enum job_kind kind, uint64_t id, const char *name)
{
	struct job *j = calloc(1, sizeof(*j) + strlen(name) + 1);
	if (!j) {
		fuse_reply_err(req, ENOMEM);
		return NULL;
	}
	j->kind = kind;
	j->req = req;
	j->id = id;
	strcpy(j->name, name);
	return j;
}

/* ---- operations ------------------------------------------------------------------- */

void views_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct job *j;
	if (strlen(name) > MAX_NAME)
		fuse_reply_err(req, ENAMETOOLONG);
	else if ((j = job_new(req, JOB_LOOKUP, parent, name)))
		enqueue(j);
}

void views_getattr(fuse_req_t req, fuse_ino_t id)
{
	struct job *j = job_new(req, JOB_GETATTR, id, "");
	if (j)
		enqueue(j);
}

void views_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct job *j;
	if ((fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC)) {
		fuse_reply_err(req, EROFS);
	} else if ((j = job_new(req, JOB_OPEN, id, ""))) {
		j->fi = *fi;
		enqueue(j);
	}
}

void views_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t off)
{
	struct vnode *n = vnode_find(id);
	struct layout *l = n ? layout_find(&n->what) : NULL;
	struct job *j;

	if (l && atomic_fetch_add(&inline_reads, 1) < INLINE_READS) {
		session_may_take_long(req_fs(req));
		read_layout(req, l, size, off);
		atomic_fetch_sub(&inline_reads, 1);
		layout_put(l);
		return;
	}
	if (l) {
		atomic_fetch_sub(&inline_reads, 1);
		layout_put(l);
	}
	if (!(j = job_new(req, JOB_READ, id, "")))
		return;
	j->size = size;
	j->off = off;
	enqueue(j);
}

/* All of it is data: cp asks. */
void views_lseek(fuse_req_t req, fuse_ino_t id, off_t off, int whence)
{
	struct vnode *n = vnode_find(id);
	if (!n)
		fuse_reply_err(req, ESTALE);
	else if (off < 0 || off >= n->st.st_size)
		fuse_reply_err(req, ENXIO);
	else
		fuse_reply_lseek(req, whence == SEEK_HOLE ? n->st.st_size : off);
}

void views_release(fuse_req_t req, struct fuse_file_info *fi)
{
	handle_drop(fi->fh);
	fuse_reply_err(req, 0);
}

void views_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, bool plus)
{
	struct job *j = job_new(req, JOB_READDIR, id, "");
	if (!j)
		return;
	j->size = size;
	j->off = off;
	j->plus = plus;
	enqueue(j);
}

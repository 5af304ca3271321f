/* SPDX-License-Identifier: MIT
 * Parses checkpoints of the live tree for views. Their files are untrusted input: the bytes that
 * are read, and so the memory that parsing takes, are limited.
 */
#include "fs/views/inside.h"
#include "io/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARSE_MAX (32u << 20) /* metadata and headers of one checkpoint */

/* ---- parsing ---- */

struct seen { /* a file of the checkpoint */
	char *name;
	struct stat st;
	bool open; /* a writer has it open */
	bool read; /* its metadata or headers were read */
};

struct load {
	struct fs *fs;
	struct vckpt *c;
	struct ckpt_content in;
	struct seen *seen; /* the files listed, by name; then those in subdirectories */
	size_t n, n_listed, cap;
	uint64_t left; /* of PARSE_MAX */
	bool too_much; /* the limit was reached */
	bool incomplete; /* it changed meanwhile */
};

struct opened { /* a file, open while it is parsed */
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
	*out = (struct vfile){.name = s->name,
			      .ino = s->st.st_ino,
			      .size = (uint64_t)s->st.st_size,
			      .mtime = s->st.st_mtim,
			      .fd = -1,
			      .c = l->c};
}

/* Parsers read pieces of any size; the bytes are counted. */
static int read_counted(void *ctx, uint64_t off, void *buf, size_t len)
{
	struct opened *o = ctx;
	int err = 0;
	o->l->too_much |= len > o->l->left;
	if (o->l->too_much)
		return -E2BIG;
	o->l->left -= len;
	while (!err && len) {
		size_t part = len < VFILE_READ_MAX ? len : VFILE_READ_MAX;
		err = o->s.read(o->s.ctx, off, buf, part);
		buf = (char *)buf + part;
		off += part;
		len -= part;
	}
	return err;
}

/* Files in subdirectories come from the metadata, not from the listing. */
static int find_or_see(struct load *l, const char *name, struct seen **out)
{
	*out = find_seen(l, name);
	if (*out)
		return 0;
	int err = strchr(name, '/') ? add_seen(l, name) : -ENOENT;
	if (err)
		return err;
	*out = &l->seen[l->n - 1];
	return views_see(l->fs, l->c->path, name, &(*out)->st, &(*out)->open);
}

static int load_open(void *ctx, const char *name, struct fmt_source *out)
{
	struct opened *o = malloc(sizeof(*o));
	struct load *l = ctx;
	struct seen *s;
	int err = o ? find_or_see(l, name, &s) : -ENOMEM;
	if (!err && !S_ISREG(s->st.st_mode))
		err = -ENOENT;
	if (!err) {
		o->l = l;
		as_file(l, s, &o->f);
		s->read = true;
		err = vfile_get(&o->f, &o->s);
	}
	if (err)
		free(o);
	else
		*out = (struct fmt_source){.size = o->s.size, .read = read_counted, .ctx = o};
	return err;
}

static void load_close(void *ctx, struct fmt_source *s)
{
	struct opened *o = s->ctx;
	struct vckpt *c = ((struct load *)ctx)->c;
	vfile_put(&o->f);
	pthread_mutex_lock(&c->lock);
	vfile_close(&o->f);
	pthread_mutex_unlock(&c->lock);
	free(o);
}

/* The first refusal ends the parsing; its reason is kept, unless a writer has the file open. */
static int load_refuse(void *ctx, const char *file, const struct fmt_error *e, int err)
{
	struct load *l = ctx;
	char *why = l->c->why;
	size_t space = sizeof(l->c->why);
	if (err == -ESTALE || err == -ENOENT)
		l->incomplete = true;
	else if (err == -EFBIG || l->too_much)
		snprintf(why, space,
			 "%.100s: more than %u MiB of metadata, which the daemon does not read; "
			 "cairn export does",
			 file, PARSE_MAX >> 20);
	else if (e->at != FMT_NOWHERE)
		snprintf(why, space, "%.100s: at %llu: %.180s", file, (unsigned long long)e->at,
			 e->text);
	else
		snprintf(why, space, "%.100s: %.200s", file, *e->text ? e->text : strerror(-err));
	return err;
}

static int list_names(struct load *l)
{
	struct node *dir;
	struct stat st;
	int err;

	ask_begin();
	do {
		err = reach(l->fs, NULL, l->c->path, &dir);
		if (err)
			continue;
		node_attr(l->fs, dir, &st);
		l->c->dir_mtime = st.st_mtim;
		err = S_ISDIR(dir->attr.mode) ? dir_names(l->fs, dir, add_seen, l) : -ENOTDIR;
		reach_done(l->fs, dir);
	} while (ask_store(l->fs, err));
	sort_seen(l);
	return err;
}

/* Gets sizes and whether a writer has a file open. After the listing: a file may be gone. */
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
		if (views_see(l->fs, l->c->path, name, &s->st, &s->open))
			continue;
		l->in.v[i].dir = S_ISDIR(s->st.st_mode);
		l->in.v[i].size = S_ISREG(s->st.st_mode) ? (uint64_t)s->st.st_size : 0;
		l->in.v[i].open = s->open;
	}
	return 0;
}

/* ---- the result ---- */

/* Decides whether a checkpoint has views; nothing else does. */
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

void vckpt_restrict(struct stat *all, const struct stat *st, bool first)
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
	time_to_later(&all->st_mtim, st->st_mtim);
}

static int add_file(struct load *l, struct seen *s)
{
	struct vckpt *c = l->c;
	struct vfile *f = &c->file[c->n_files];
	as_file(l, s, f);
	f->name = strdup(s->name);
	if (!f->name)
		return -ENOMEM;
	s->read = false; /* already added */
	uint64_t x[] = {f->ino, f->size, (uint64_t)f->mtime.tv_sec, (uint64_t)f->mtime.tv_nsec};
	c->version = hash_bytes(hash_text(c->version, f->name), x, sizeof(x));
	vckpt_restrict(&c->st, &s->st, c->n_files++ == 0);
	return 0;
}

/* Fills c->file, version and attributes from what was seen. The set's files come first, in the
 * set's order. */
static int remember_files(struct load *l)
{
	struct vckpt *c = l->c;
	size_t n = c->set ? c->set->n_files : 0;
	int err = 0;
	sort_seen(l);
	c->file = calloc(n + l->n + 1, sizeof(*c->file));
	if (!c->file)
		return -ENOMEM;
	for (size_t i = 0; !err && i < n; i++) {
		struct seen *s = find_seen(l, c->set->file[i].name);
		err = s ? add_file(l, s) : -ENOENT;
	}
	for (size_t i = 0; !err && i < l->n; i++)
		if (l->seen[i].read)
			err = add_file(l, &l->seen[i]);
	return err ? err : c->n_files ? 0 : -ENOENT;
}

static void load_free(struct load *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->seen[i].name);
	free(l->seen);
	ckpt_content_free(&l->in);
}

/* If the tensors do not fit in one file, each can still be a file. */
static int try_whole(struct vckpt *c)
{
	struct view_pick all = {0, c->set->n_tensors, 1, 0};
	struct fmt_error e = {.at = FMT_NOWHERE};
	struct view *v;
	int err = view_safetensors(c->base, &all, &v, &e);
	view_free(v);
	if (err && err != -ENOMEM) {
		snprintf(c->why, sizeof(c->why), "%s", e.text);
		c->partly = true;
	}
	return err == -ENOMEM ? err : 0;
}

/* Orbax is not parsed: its version depends on the files that make it one. */
static int refuse_orbax(struct load *l)
{
	for (size_t i = 0; i < l->n; i++)
		l->seen[i].read = S_ISREG(l->seen[i].st.st_mode);
	snprintf(l->c->why, sizeof(l->c->why),
		 "the tensors of Orbax checkpoints (tensorstore) are not read");
	return is_whole(l) ? -ENOTSUP : -ENOENT;
}

static int load_set(struct load *l)
{
	const struct ckpt_io io = {.ctx = l,
				   .open = load_open,
				   .close = load_close,
				   .bad = load_refuse,
				   .max_bytes = PARSE_MAX};
	struct vckpt *c = l->c;
	int err = l->in.kind.format == CKPT_ORBAX
			  ? refuse_orbax(l)
			  : parser_content(l->fs, c->path, &l->in, &io, CKPT_TENSORS);
	if (err == -ECHILD)
		err = -EIO;
	if (!err && (!l->in.set || !is_whole(l)))
		err = -ENOENT;
	if (!err) {
		c->set = l->in.set;
		l->in.set = NULL;
		err = view_base_new(c->set, &c->base);
	}
	if (!err)
		err = try_whole(c);
	c->cost = PARSE_MAX - l->left;
	return l->incomplete ? -ENOENT : err;
}

void vckpt_free(struct vckpt *c)
{
	for (size_t i = 0; i < c->n_files; i++) {
		vfile_close(&c->file[i]);
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
	lock_init(&c->lock, RANK_VIEWS_CKPT);
	c->fs = fs;
	c->path = strdup(path);
	if (c->path)
		return c;
	vckpt_free(c);
	return NULL;
}

int vckpt_load(struct fs *fs, const char *path, struct vckpt **out)
{
	const char *slash = strrchr(path, '/');
	struct vckpt *c = vckpt_new(fs, path);
	struct load l = {.fs = fs, .c = c, .left = PARSE_MAX};
	int err = c ? list_names(&l) : -ENOMEM;

	if (!err)
		err = look_at_names(&l);
	if (!err) {
		ckpt_recognize(slash ? slash + 1 : path, l.in.v, l.in.n, &l.in.kind);
		if (l.in.kind.format == CKPT_NONE || l.in.kind.temporary)
			err = -ENOENT;
	}
	if (!err)
		err = load_set(&l);
	if (c && *c->why && !c->partly && err != -ENOMEM && err != -ENOENT)
		err = 0;
	if (!err)
		err = remember_files(&l);
	if (c)
		c->checked_ns = monotonic_ns();
	load_free(&l);
	if (err && c)
		vckpt_free(c);
	*out = err ? NULL : c;
	return err;
}

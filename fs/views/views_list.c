/* SPDX-License-Identifier: MIT
 * The listings of .cairn/views. An offset is the number of an entry, listed or not, so it stays
 * valid when others are added. Directories with too many names (reshard) are listed as empty.
 */
#include "fs/views/inside.h"
#include "io/scope.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct list_out {
	struct vjob *j;
	char *buf;
	size_t used;
	uint64_t at; /* number of the next entry, from 0 */
	bool full;
};

/* Entries have no node (ino 0): the kernel looks a name up on demand. */
static int put_name(struct list_out *o, const char *name, bool dir)
{
	struct fuse_entry_param e = {
		.attr = {.st_ino = VIEWS_FIRST - 1, .st_mode = dir ? S_IFDIR : S_IFREG}};
	size_t left = o->j->size - o->used, need;
	uint64_t off = o->at++;

	if (off < (uint64_t)o->j->off)
		return 0;
	need = o->j->plus ? fuse_add_direntry_plus(o->j->req, o->buf + o->used, left, name, &e,
						   (off_t)off + 1)
			  : fuse_add_direntry(o->j->req, o->buf + o->used, left, name, &e.attr,
					      (off_t)off + 1);
	o->full = need > left;
	if (!o->full)
		o->used += need;
	return o->full;
}

static void list_tensors(struct list_out *o, const struct vckpt *c)
{
	char name[MAX_NAME + 1];
	/* each tensor counts as an entry, listed or not, so an offset is found at once */
	uint64_t from = (uint64_t)o->j->off > o->at ? (uint64_t)o->j->off - o->at : 0;
	o->at += from;
	for (size_t i = from; i < c->set->n_tensors && !o->full; i++) {
		if (vname_encode(c->set->tensor[i].name, name))
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
	if (put_name(o, "model.safetensors.index.json", false) ||
	    view_split(c->base, VIEWS_PART_BYTES, &cut, &n, &e))
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

/* The views of the directory's checkpoint, if it is one, and its subdirectories. */
static int list_dir(struct fs *fs, struct list_out *o, const char *path)
{
	struct subdirs s = {0};
	struct vckpt *c = NULL;
	struct node *dir;

	if (!vckpt_get(fs, path, false, &c) && vckpt_may(c, &o->j->who, false) == -ENOENT) {
		vckpt_put(c);
		c = NULL;
	}
	for (size_t i = 0; i < N_VSPECIALS; i++) {
		if (c && vspecial_has(c, vspecials[i].kind))
			put_name(o, vspecials[i].name, vkind_is_dir(vspecials[i].kind));
		else
			/* offsets stay valid when a checkpoint becomes complete */
			o->at++;
	}
	int err;
	ask_begin();
	do {
		err = reach(fs, NULL, path, &dir);
		if (err)
			continue;
		err = S_ISDIR(dir->attr.mode) ? dir_names(fs, dir, take_subdir, &s) : -ENOENT;
		reach_done(fs, dir);
	} while (ask_store(fs, err));
	for (size_t i = 0; !err && i < s.n; i++) {
		CLEANUP_FREE char *sub = NULL;
		struct stat st;
		bool skip = o->full || o->at < (uint64_t)o->j->off;
		for (size_t k = 0; c && k < N_VSPECIALS; k++)
			skip = skip || (vspecial_has(c, vspecials[k].kind) &&
					!strcmp(s.v[i], vspecials[k].name));
		if (skip || !(sub = path_join(path, s.v[i])) ||
		    views_dir_stat(fs, &o->j->who, sub, &st))
			o->at++;
		else
			put_name(o, s.v[i], true);
	}
	for (size_t i = 0; i < s.n; i++)
		free(s.v[i]);
	free(s.v);
	if (c)
		vckpt_put(c);
	return err;
}

int views_list(struct vjob *j, const struct view_key *key, const struct vckpt *c, char *buf,
	       size_t *used)
{
	struct list_out o = {.j = j, .buf = buf};
	int err = 0;
	put_name(&o, ".", true);
	put_name(&o, "..", true);
	if (key->kind == V_DIR)
		err = list_dir(req_fs(j->req), &o, key->path);
	else if (key->kind == V_TENSORS && c->set)
		list_tensors(&o, c);
	else if (key->kind == V_SPLIT && c->set)
		list_split(&o, c);
	*used = o.used;
	return err;
}

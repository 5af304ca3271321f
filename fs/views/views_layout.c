/* SPDX-License-Identifier: MIT
 * Layouts: each file of .cairn/views as a list of parts. The most recently used are cached.
 */
#include "fs/views/inside.h"
#include "io/scope.h"

#include <errno.h>
#include <stdlib.h>

#define LAYOUTS_MAX 64u /* layouts cached, */
#define LAYOUTS_BYTES (32u << 20) /* and their size altogether */

static pthread_mutex_t layouts_lock = RANKED_MUTEX(RANK_VIEWS_LAYOUTS); /* layouts, refs */
static struct vlayout *layouts;

void vlayout_put(struct vlayout *l)
{
	pthread_mutex_lock(&layouts_lock);
	bool last = --l->refs == 0;
	pthread_mutex_unlock(&layouts_lock);
	if (!last)
		return;
	view_free(l->view);
	vckpt_put(l->c);
	free(l);
}

struct vlayout *vlayout_find(const struct view_key *key)
{
	pthread_mutex_lock(&layouts_lock);
	struct vlayout **pp = &layouts, *l;
	while ((l = *pp) && !view_key_same(&l->key, key))
		pp = &l->next;
	if (l) {
		*pp = l->next;
		l->next = layouts;
		layouts = l;
		l->refs++;
	}
	pthread_mutex_unlock(&layouts_lock);
	return l;
}

/* Adds it to the cache, with a reference of the cache's own. */
static void layout_keep(struct vlayout *l)
{
	struct vlayout *old = NULL;
	size_t bytes = 0;
	unsigned n = 0;
	pthread_mutex_lock(&layouts_lock);
	l->refs++;
	l->next = layouts;
	layouts = l;
	for (struct vlayout **pp = &layouts, *x; (x = *pp);) {
		bytes += view_memory(x->view);
		if (n++ && (n > LAYOUTS_MAX || bytes > LAYOUTS_BYTES)) {
			*pp = x->next;
			x->next = old;
			old = x;
		} else {
			pp = &x->next;
		}
	}
	pthread_mutex_unlock(&layouts_lock);
	while (old) {
		struct vlayout *x = old;
		old = x->next;
		vlayout_put(x);
	}
}

static int make_part(struct vckpt *c, const struct view_key *key, struct view **out,
		     struct fmt_error *e)
{
	CLEANUP_FREE size_t *cut = NULL;
	size_t n;
	int err = view_split(c->base, VIEWS_PART_BYTES, &cut, &n, e);
	if (err)
		return err;
	if (key->kind == V_INDEX)
		return view_index(c->base, cut, n, out, e);
	if (key->i >= n || key->ranks != n)
		return -ENOENT;
	struct view_pick p = {cut[key->i], cut[key->i + 1], 1, 0};
	return view_safetensors(c->base, &p, out, e);
}

static int make_view(struct vckpt *c, const struct view_key *key, struct view **out)
{
	struct fmt_error e;
	if (!c->set || (*c->why && key->kind != V_NPY))
		return -ENOENT;
	struct view_pick all = {0, c->set->n_tensors, key->kind == V_RANK ? key->ranks : 1,
				key->kind == V_RANK ? (uint32_t)key->i : 0};
	if (key->kind == V_PART || key->kind == V_INDEX)
		return make_part(c, key, out, &e);
	if (key->kind == V_NPY)
		return key->i < c->set->n_tensors ? view_npy(c->base, key->i, out, &e) : -ENOENT;
	return view_safetensors(c->base, &all, out, &e);
}

int vlayout_get(struct fs *fs, const struct view_key *key, struct vlayout **out)
{
	struct vlayout *l = vlayout_find(key);
	*out = l;
	if (l)
		return 0;
	l = calloc(1, sizeof(*l));
	int err = l ? vckpt_get_version(fs, key->path, key->version, &l->c) : -ENOMEM;
	if (!err)
		err = make_view(l->c, key, &l->view);
	if (err) {
		if (l && l->c)
			vckpt_put(l->c);
		free(l);
		return err;
	}
	l->refs = 1;
	l->key = *key;
	l->key.path = l->c->path;
	layout_keep(l);
	*out = l;
	return 0;
}

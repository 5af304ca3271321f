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
static struct vcache layouts = {&layouts_lock, NULL, LAYOUTS_MAX, LAYOUTS_BYTES};

void vlayout_put(struct vlayout *l)
{
	if (!vcached_put(&layouts, &l->cached))
		return;
	view_free(l->view);
	vckpt_put(l->c);
	free(l);
}

static void forget(struct vcached *x)
{
	vlayout_put((struct vlayout *)x);
}

static bool is_layout(const struct vcached *x, const void *key)
{
	return view_key_same(&((const struct vlayout *)x)->key, key);
}

struct vlayout *vlayout_find(const struct view_key *key)
{
	return (struct vlayout *)vcache_find(&layouts, is_layout, key);
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
	l->key = *key;
	l->key.path = l->c->path;
	vcache_add(&layouts, &l->cached, view_memory(l->view), forget);
	*out = l;
	return 0;
}

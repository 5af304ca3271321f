/* SPDX-License-Identifier: MIT
 * The nodes of .cairn/views: an id stands for one thing in one version.
 */
#include "fs/views/inside.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024u

static pthread_mutex_t nodes_lock = RANKED_MUTEX(RANK_VIEWS_NODES); /* all below */
static struct vnode *by_id[BUCKETS], *by_key[BUCKETS];
static struct vnode root = {.id = VIEWS_DIR, .nlookup = 1, .key = {.kind = V_DIR, .path = ""}};
static uint64_t next_id;

bool view_key_same(const struct view_key *a, const struct view_key *b)
{
	return a->kind == b->kind && a->ranks == b->ranks && a->i == b->i &&
	       a->version == b->version && !strcmp(a->path, b->path);
}

static unsigned key_bucket(const struct view_key *key)
{
	uint64_t h = key->version ^ key->i * 0x9e3779b97f4a7c15ull ^ (uint64_t)key->ranks << 32 ^
		     (uint64_t)key->kind;
	return (unsigned)(hash_text(h, key->path) % BUCKETS);
}

struct vnode *vnode_find(uint64_t id)
{
	if (id == VIEWS_DIR)
		return &root;
	pthread_mutex_lock(&nodes_lock);
	struct vnode *n = by_id[id % BUCKETS];
	while (n && n->id != id)
		n = n->id_next;
	pthread_mutex_unlock(&nodes_lock);
	return n;
}

/* Ids must differ from those of earlier workers, which the kernel may still use. */
static uint64_t new_id(void)
{
	if (!next_id)
		next_id = VIEWS_FIRST | (uint64_t)time(NULL) << 24;
	return next_id++;
}

struct vnode *vnode_get(const struct view_key *key, const struct stat *st)
{
	unsigned b = key_bucket(key);
	pthread_mutex_lock(&nodes_lock);
	struct vnode *n = by_key[b];
	while (n && !view_key_same(&n->key, key))
		n = n->key_next;
	if (!n && (n = calloc(1, sizeof(*n)))) {
		n->key = *key;
		n->key.path = strdup(key->path);
		if (!n->key.path) {
			free(n);
			n = NULL;
		} else {
			n->id = new_id();
			n->key_next = by_key[b];
			by_key[b] = n;
			n->id_next = by_id[n->id % BUCKETS];
			by_id[n->id % BUCKETS] = n;
		}
	}
	if (n) {
		n->nlookup++;
		n->st = *st;
		n->st.st_ino = n->id;
	}
	pthread_mutex_unlock(&nodes_lock);
	return n;
}

void vnode_stat(struct vnode *n, const struct stat *seen, struct stat *out)
{
	pthread_mutex_lock(&nodes_lock);
	if (seen) {
		n->st = *seen;
		n->st.st_ino = n->id;
	}
	*out = n->st;
	pthread_mutex_unlock(&nodes_lock);
}

void views_forget(uint64_t id, uint64_t count)
{
	if (id == VIEWS_DIR)
		return;
	pthread_mutex_lock(&nodes_lock);
	struct vnode **pp = &by_id[id % BUCKETS], *n;
	while ((n = *pp) && n->id != id)
		pp = &n->id_next;
	if (n)
		n->nlookup -= count < n->nlookup ? count : n->nlookup;
	if (n && !n->nlookup) {
		*pp = n->id_next;
		for (pp = &by_key[key_bucket(&n->key)]; *pp != n;)
			pp = &(*pp)->key_next;
		*pp = n->key_next;
	} else {
		n = NULL;
	}
	pthread_mutex_unlock(&nodes_lock);
	if (n)
		free((char *)n->key.path);
	free(n);
}

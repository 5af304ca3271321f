/* SPDX-License-Identifier: MIT
 * The nodes of .cairn/views: an id stands for one thing in one version.
 */
#include "fs/views/views.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;	/* all below; taken last */
static struct vnode *by_id[BUCKETS], *by_what[BUCKETS];
static struct vnode root = {.id = VIEWS_DIR, .nlookup = 1, .what = {.kind = V_DIR, .path = ""}};
static uint64_t next_id;

bool vwhat_same(const struct vwhat *a, const struct vwhat *b)
{
	return a->kind == b->kind && a->ranks == b->ranks && a->i == b->i && a->version == b->version &&
	       !strcmp(a->path, b->path);
}

static unsigned what_bucket(const struct vwhat *w)
{
	uint64_t h = w->version ^ w->i * 0x9e3779b97f4a7c15ull ^ (uint64_t)w->ranks << 32 ^ (uint64_t)w->kind;
	h = hash_bytes(h, w->path, strlen(w->path));
	return (unsigned)((h ^ h >> 29) % BUCKETS);
}

struct vnode *vnode_find(uint64_t id)
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

/* Ids must differ from those of earlier workers, which the kernel may still use. */
static uint64_t new_id(void)
{
	if (!next_id)
		next_id = VIEWS_FIRST | (uint64_t)time(NULL) << 24;
	return next_id++;
}

struct vnode *vnode_get(const struct vwhat *w, const struct stat *st)
{
	unsigned b = what_bucket(w);
	pthread_mutex_lock(&lock);
	struct vnode *n = by_what[b];
	while (n && !vwhat_same(&n->what, w))
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

void vnode_stat(struct vnode *n, const struct stat *seen, struct stat *out)
{
	pthread_mutex_lock(&lock);
	if (seen) {
		n->st = *seen;
		n->st.st_ino = n->id;
	}
	*out = n->st;
	pthread_mutex_unlock(&lock);
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

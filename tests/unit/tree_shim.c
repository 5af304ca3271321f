/* SPDX-License-Identifier: MIT */
#include "tests/unit/tree_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "fs/ops/inside.h"
#include "fs/parser/parser.h"
#include "fs/tree/inside.h"
#include "staging/file/file.h"
#include "tests/unit/session_shim.h"

int shim_open(const struct staging_opts *o, bool first, bool start, struct fs **out)
{
	struct fs *fs = calloc(1, sizeof(*fs));
	if (!fs)
		return -ENOMEM;
	lock_init(&fs->tree.lock, RANK_TREE);
	lock_init(&fs->waits.lock, RANK_WAITS);
	lock_init(&fs->hosts.lock, RANK_HOSTS);
	lock_init(&fs->notices.lock, RANK_NOTICES);
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&fs->tree.busy_cond, &monotonic);
	pthread_cond_init(&fs->waits.cond, &monotonic);
	pthread_condattr_destroy(&monotonic);
	fs->store = o->store;
	fs->engine = o->engine;
	fs->freezer.fd = -1;
	shim_stand_before(fs->engine);
	*out = fs;
	int rc = tree_init(fs);
	if (!rc)
		rc = staging_open(o, &fs->s);
	if (!rc)
		rc = staging_replay(fs->s, first ? NULL : fs_replay, fs);
	if (!rc)
		rc = staging_sweep(fs->s, first);
	return rc || !start ? rc : shim_start(fs);
}

int shim_start(struct fs *fs)
{
	int rc = staging_start(fs->s);
	if (!rc)
		seal_restored(fs);
	return rc;
}

static void free_node(struct node *n)
{
	for (struct place *p = n->stored.places, *next; p; p = next) {
		next = p->next;
		free(p);
	}
	for (struct xattr *x = n->xattrs, *next; x; x = next) {
		next = x->next;
		free(x->key);
		free(x);
	}
	free(n->target);
	free(n->version.over);
	free(n->version.save);
	free(n);
}

/* Memory only: nothing is logged, closed or given back. */
void shim_kill(struct fs *fs)
{
	if (fs->s)
		staging_close(fs->s);
	shim_on_call(NULL, NULL);
	for (unsigned i = 0; i < 4096; i++)
		for (struct handle *h = fs->tree.handles[i], *next; h; h = next) {
			next = h->hash_next;
			if (h->fd >= 0)
				close(h->fd);
			free(h);
		}
	for (unsigned i = 0; i < NODE_BUCKETS; i++) {
		for (struct dentry *d = fs->tree.dentries[i], *next; d; d = next) {
			next = d->hash_next;
			free(d);
		}
		for (struct node *n = fs->tree.nodes[i], *next; n; n = next) {
			next = n->hash_next;
			free_node(n);
		}
	}
	if (!fs->forks.started)		/* its thread ends with the process, and waits in there */
		free(fs);
}

struct staging *shim_staging(struct fs *fs)
{
	return fs->s;
}

void shim_tidy(struct fs *fs)
{
	TREE_SCOPE(fs);
	ask_let_go(fs);
	node_gc(fs);
}

unsigned shim_close_all(struct fs *fs)
{
	return close_all(fs);
}

void shim_held(struct fs *fs, size_t *nodes, size_t *names)
{
	shim_tidy(fs);
	TREE_SCOPE(fs);
	*nodes = fs->tree.n_nodes;
	*names = 0;
	for (unsigned i = 0; i < NODE_BUCKETS; i++)
		for (struct dentry *d = fs->tree.dentries[i]; d; d = d->hash_next)
			++*names;
}

uint64_t shim_staged(struct fs *fs, uint64_t id)
{
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, id);
	return n && n->sf ? staged_id(n->sf) : 0;
}

void shim_evict(struct fs *fs)
{
	LOCK_SCOPE(&fs->s->lock);
	sf_evict(fs->s, UINT64_MAX);
}

unsigned shim_places(struct fs *fs, uint64_t id)
{
	TREE_SCOPE(fs);
	unsigned n = 0;
	for (struct place *p = node_find(fs, id)->stored.places; p; p = p->next)
		n++;
	return n;
}

uint64_t shim_handle(struct fs *fs, uint64_t fh, bool *writer)
{
	TREE_SCOPE(fs);
	struct handle *h = handle_find(fs, fh);
	if (h && writer)
		*writer = h->writer;
	return h ? h->node->id : 0;
}

bool shim_is_control(uint64_t id)
{
	return is_control(id);
}

unsigned shim_handles(struct fs *fs)
{
	TREE_SCOPE(fs);
	unsigned n = 0;
	for (unsigned i = 0; i < 4096; i++)
		for (struct handle *h = fs->tree.handles[i]; h; h = h->hash_next)
			n++;
	return n;
}

int shim_rotate(struct fs *fs)
{
	TREE_SCOPE(fs);
	return staging_rotate(fs->s, fs_emit, fs);
}

uint64_t shim_seal_seq(struct fs *fs, uint64_t id)
{
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, id);
	return n ? n->seq.seal : 0;
}

uint64_t shim_name_seq(struct fs *fs, uint64_t dir, const char *name)
{
	TREE_SCOPE(fs);
	struct dentry *d = dentry_find(fs, node_find(fs, dir), name);
	return d && d->node ? d->seq : 0;
}

uint64_t shim_expect(struct fs *fs, uint64_t dir, const char *name)
{
	TREE_SCOPE(fs);
	return expect_size(fs, node_find(fs, dir), name);
}

void shim_expect_note(struct fs *fs, uint64_t dir, const char *name, uint64_t size)
{
	TREE_SCOPE(fs);
	struct node *n;
	if (!tree_lookup(fs, node_find(fs, dir), name, &n, NULL))
		expect_note(fs, n, size);
}

void shim_meet_others(struct fs *fs)
{
	atomic_store(&fs->hosts.others, true);
}

bool shim_knows_others(struct fs *fs)
{
	return atomic_load(&fs->hosts.others);
}

size_t shim_odd_one(const struct shim_mark *m, size_t count, uint64_t commit, uint64_t *save)
{
	struct save_mark *v = calloc(count + 1, sizeof(*v));
	for (size_t i = 0; i < count; i++)
		v[i] = (struct save_mark){.kind = m[i].later ? SAVE_COMES_LATER
						  : m[i].n < 0 ? SAVE_UNMARKED
							       : SAVE_MARKED,
					  .own = m[i].own,
					  .n = (uint64_t)m[i].n};
	size_t odd = save_odd_one(v, count, commit, save);
	free(v);
	return odd;
}

void shim_parsers_start(struct fs *fs)
{
	parser_start(fs);
}

void shim_parsers_end(struct fs *fs)
{
	parser_end(fs);
}

int shim_commit_missing(struct fs *fs, uint64_t seq, uint64_t dir, const char *path, const char *list, char *what,
			size_t cap)
{
	int dirfd = open(path, O_RDONLY | O_DIRECTORY), fd = open(list, O_RDONLY);
	int missing = dirfd < 0 || fd < 0 ? -errno : (int)commit_missing(fs, seq, dir, dirfd, fd, what, cap);

	close(dirfd);
	close(fd);
	return missing;
}

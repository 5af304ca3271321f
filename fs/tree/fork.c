/* SPDX-License-Identifier: MIT
 * Forks. If a writer opens a file while readers keep a version, the names move to a new node with
 * the same st_ino (REC_FORK), and the old node stays with its readers: the kernel allows one
 * backing file per inode. The open or truncation is answered with ESTALE; the kernel then looks the
 * name up again and repeats the request for the new node.
 *
 * In the kernel the file's other names still refer to the old node while its entries are valid.
 * They are expired before the answer: a program that acts after it finds the new node by every
 * name, and later requests for the old node come through descriptors. Expiring an entry takes its
 * directory's lock in the kernel, which another request may hold that waits for us; so a separate
 * thread does it, without any lock of ours. That thread is created by the first fork of a file with
 * several names; most mounts never need it.
 */
#include "fs/tree/inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define AWAITED_NS 200000000u /* the kernel repeats the request at once */

struct old_name {
	uint64_t dir;
	char *name;
};

/* The names of a forked file, to be expired before its request is answered. */
struct fork_news {
	struct fork_news *next;
	void (*then)(void *arg); /* NULL: nothing waits */
	void *arg;
	unsigned n;
	struct old_name names[];
};

static void *fork_main(void *arg)
{
	struct fs *fs = arg;
	pthread_setname_np(pthread_self(), "cairn-expire");
	pthread_mutex_lock(&fs->forks.lock);
	for (;;) {
		struct fork_news *f = fs->forks.news;
		if (!f) {
			pthread_cond_wait(&fs->forks.cond, &fs->forks.lock);
			continue;
		}
		fs->forks.news = f->next;
		pthread_mutex_unlock(&fs->forks.lock);
		for (unsigned i = 0; i < f->n; i++) {
			fs->forks.expire(fs, f->names[i].dir, f->names[i].name);
			free(f->names[i].name);
		}
		if (f->then)
			f->then(f->arg);
		free(f);
		pthread_mutex_lock(&fs->forks.lock);
	}
	return NULL;
}

static int queue(struct fs *fs, struct fork_news *f)
{
	pthread_t t;
	int err = 0;
	pthread_mutex_lock(&fs->forks.lock);
	if (!fs->forks.started) {
		err = pthread_create(&t, NULL, fork_main, fs);
		if (!err)
			pthread_detach(t); /* ends with the process */
		fs->forks.started = !err;
	}
	if (!err) {
		struct fork_news **pp = &fs->forks.news;
		while (*pp)
			pp = &(*pp)->next;
		*pp = f;
		pthread_cond_signal(&fs->forks.cond);
	}
	pthread_mutex_unlock(&fs->forks.lock);
	return -err;
}

bool fork_tell(struct fs *fs, struct node *n, void (*then)(void *arg), void *arg)
{
	unsigned cap = 0;
	for (struct dentry *d = n->names; d; d = d->name_next)
		cap++;
	if (cap < 2 || !fs->forks.expire) /* the answered process looks its own name up */
		return false;
	struct fork_news *f = calloc(1, sizeof(*f) + cap * sizeof(f->names[0]));
	if (!f)
		return false;
	f->then = then;
	f->arg = arg;
	for (struct dentry *d = n->names; d; d = d->name_next) {
		f->names[f->n] = (struct old_name){.dir = d->dir->id, .name = strdup(d->name)};
		f->n += !!f->names[f->n].name;
	}
	if (queue(fs, f) == 0)
		return true;
	while (f->n)
		free(f->names[--f->n].name);
	free(f);
	return false;
}

int fork_node(struct fs *fs, struct node *n)
{
	struct rec r = rec_new(REC_FORK);
	struct stat st;

	int err = node_stat(fs, n, &st);
	if (!err)
		err = node_keep_version(fs, n);
	if (err)
		return err;
	r.unique = 0;
	r.node = n->id;
	r.node2 = staging_new_id(fs->s);
	r.size = (uint64_t)st.st_size;
	r.atime = st.st_atim;
	r.mtime = st.st_mtim;
	err = fs_record(fs, &r);
	if (err)
		return err;
	node_find(fs, r.node2)->fork.awaited_ns = monotonic_ns() + AWAITED_NS;
	return -ESTALE;
}

int fork_await(struct fs *fs, struct node *n)
{
	while (n->fork.awaited_ns) {
		if (monotonic_ns() >= n->fork.awaited_ns) {
			n->fork.awaited_ns = 0;
			break;
		}
		if (current.slotted)
			return -EINPROGRESS;
		struct timespec t = {
			.tv_sec = (time_t)(n->fork.awaited_ns / 1000000000u),
			.tv_nsec = (long)(n->fork.awaited_ns % 1000000000u),
		};
		n->refs++;
		pthread_cond_timedwait(&fs->tree.busy_cond, &fs->tree.lock, &t);
		n->refs--;
	}
	return 0;
}

void fork_came(struct fs *fs, struct node *n)
{
	if (n->fork.awaited_ns)
		pthread_cond_broadcast(&fs->tree.busy_cond);
	n->fork.awaited_ns = 0;
}

/* SPDX-License-Identifier: MIT
 * Whether the store holds the files that a checkpoint's .metadata lists. The publisher asks before
 * it publishes the .metadata (staging/drain/hold.c) if several nodes write to one store.
 */
#include "fs/formats/formats.h"
#include "fs/tree/inside.h"
#include "fs/parser/parser.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LISTS 8u /* kept; of more that wait at once the lists are read again */

/* The lists of names that wait, and how many of the files on each were found so far. The
 * publisher's. */
static struct list {
	uint64_t seq, used;
	struct fmt_set *set;
	size_t at;
	char damaged[200]; /* why it cannot be read; it waits until a person decides */
} lists[LISTS];

bool commit_is_name(const char *name)
{
	return !strcmp(name, COMMIT_NAME);
}

uint64_t commit_dir(struct fs *fs, uint64_t ino)
{
	for (unsigned b = 0; b < NODE_BUCKETS; b++)
		for (struct node *n = fs->tree.nodes[b]; n; n = n->hash_next)
			if (n->ino == ino && S_ISDIR(n->attr.mode) &&
			    (n->names || n == fs->tree.root))
				return n->id;
	return 0;
}

/* 0: l->set is the list; NULL: not a DCP .metadata, so there is nothing to wait for, or l->damaged
 * says why it cannot be read. Otherwise it is not known: the store did not answer, or the parser
 * does not run. */
static int read_list(struct fs *fs, int fd, struct list *l)
{
	struct fmt_source s;
	struct fmt_error e = {.at = FMT_NOWHERE};
	int err = fmt_file(fd, &s);

	if (err || !s.size)
		return err;
	l->set = fmt_set_new();
	err = l->set ? parser_files(fs, ".metadata", &s, l->set, &e) : -ENOMEM;
	if (!err)
		return 0;
	fmt_set_free(l->set);
	l->set = NULL;
	if (err == -EBADMSG || err == -E2BIG)
		snprintf(l->damaged, sizeof(l->damaged), "its list of files cannot be read: %.120s",
			 e.text);
	return err == -ENOMSG || l->damaged[0] ? 0 : err;
}

/* Takes the first component off path. False: there is none, or it is too long. */
static bool next_part(const char **path, char name[MAX_NAME + 1], bool *last)
{
	size_t len = strcspn(*path, "/");
	if (!len || len > MAX_NAME)
		return false;
	memcpy(name, *path, len);
	name[len] = 0;
	*path += len;
	*last = !**path;
	*path += !*last;
	return true;
}

/* True if this mount has the file: it is published in its turn, after the name that lists it. */
static bool is_ours(struct fs *fs, uint64_t dir, const char *path)
{
	char name[MAX_NAME + 1];
	bool last = false;
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, dir);
	while (n && S_ISDIR(n->attr.mode) && next_part(&path, name, &last)) {
		struct dentry *d = dentry_find(fs, n, name);
		n = d ? d->node : NULL;
		if (last)
			return n && S_ISREG(n->attr.mode) &&
			       (n->sf || node_dirty(fs, n) || dentry_dirty(fs, d));
	}
	return false;
}

/* The file's size in the store; -1: it does not exist. */
static int64_t size_in_store(struct fs *fs, int dirfd, const char *path)
{
	char name[MAX_NAME + 1];
	bool last = false;
	int fd = -1;
	int64_t size = -1;
	struct stat st;

	while (next_part(&path, name, &last)) {
		int at = fd >= 0 ? fd : dirfd, below = -1;
		if (last)
			size = io_stat(fs->store, at, name, &st) || !S_ISREG(st.st_mode)
				       ? -1
				       : st.st_size;
		else
			below = io_open_dir(fs->store, at, name);
		if (fd >= 0)
			close(fd);
		fd = below;
		if (fd < 0)
			break;
	}
	return size;
}

static void list_drop(struct list *l)
{
	fmt_set_free(l->set);
	*l = (struct list){.used = l->used};
}

/* The list of seq, or the one that was used least recently. */
static struct list *list_of(uint64_t seq)
{
	static uint64_t uses;
	struct list *l = &lists[0];

	for (unsigned i = 0; i < LISTS && l->seq != seq; i++)
		if (lists[i].seq == seq || lists[i].used < l->used)
			l = &lists[i];
	l->used = ++uses;
	return l;
}

bool commit_missing(void *ctx, uint64_t seq, uint64_t dir, int dirfd, int fd, char *what,
		    size_t cap)
{
	struct fs *fs = ctx;

	struct list *l = list_of(seq);
	if (l->seq != seq) {
		list_drop(l);
		if (io_store_shared(fs->store) && read_list(fs, fd, l)) {
			snprintf(what, cap, "what it lists could not be read");
			return true;
		}
		l->seq = seq;
	}
	if (l->damaged[0]) {
		snprintf(what, cap, "%s", l->damaged);
		return true;
	}
	for (; l->set && l->at < l->set->n_files; l->at++) {
		const struct fmt_file *f = &l->set->file[l->at];
		int64_t size = size_in_store(fs, dirfd, f->name);
		if ((size >= 0 && (uint64_t)size >= f->need) || is_ours(fs, dir, f->name))
			continue;
		if (size < 0)
			snprintf(what, cap, "%.160s is not in the store", f->name);
		else
			snprintf(what, cap, "%.100s has %lld of %llu bytes", f->name,
				 (long long)size, (unsigned long long)f->need);
		return true;
	}
	list_drop(l);
	return false;
}

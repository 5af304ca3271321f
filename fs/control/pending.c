/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn/files.json: the files that are not durable, for `cairn top`.
 */
#include "fs/control/stats.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#define LISTED_MAX 4096u

struct listing {
	struct fs *fs;
	struct node *node[LISTED_MAX];
	unsigned n;
	unsigned long long more;
};

/* The version that its node has now; an older one is not shown. */
static void take(void *ctx, const struct staged_undone *u)
{
	struct listing *l = ctx;
	struct node *n = node_find(l->fs, u->node);

	if (!n || !n->names || n->sf != u->f)
		return;
	if (l->n < LISTED_MAX)
		l->node[l->n++] = n;
	else
		l->more++;
}

/* What is to happen next; "spill": its writer goes at the disk's speed. */
static const char *waits_for(const struct staged_info *i)
{
	switch (i->state) {
	case STAGED_OPEN: return i->spilled ? "writer,spill" : "writer";
	case STAGED_SEALED: return "queue";
	case STAGED_PERSISTING: return "disk";
	case STAGED_FAILED: return "retry";
	default: return "order";
	}
}

static void write_file(struct listing *l, FILE *f, struct node *n, bool first)
{
	char path[PATH_MAX];
	struct staged_info i;

	staged_get_info(n->sf, &i);
	node_path(l->fs, n, path, sizeof(path));
	fprintf(f, "%s\n{\"path\":", first ? "" : ",");
	stats_json_string(f, path);
	fprintf(f, ",\"bytes\":%llu,\"persisted\":%llu,\"waits_for\":\"%s\"}",
		(unsigned long long)i.size,
		(unsigned long long)(i.written < i.size ? i.written : i.size), waits_for(&i));
}

int pending_write(struct fs *fs, FILE *f)
{
	struct listing *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->fs = fs;
	fputs("{\"files\":[", f);
	pthread_mutex_lock(&fs->tree.lock);
	staging_each_undone(fs->s, true, take, l);
	for (unsigned i = 0; i < l->n; i++)
		write_file(l, f, l->node[i], i == 0);
	pthread_mutex_unlock(&fs->tree.lock);
	fprintf(f, "],\n\"more\":%llu}\n", l->more);
	free(l);
	return 0;
}

/* SPDX-License-Identifier: MIT
 * Names in lost+found: the whole path of what is kept there, as one name. A first start keeps files
 * before it publishes what is pending, so the directories are tracked as the log moves them; dirs.c
 * has their present places in the store. */
#include "staging/log/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUCKETS 1024u
#define DEPTH_MAX 2048u

struct log_dir {
	struct log_dir *next;
	uint64_t id, parent;
	char name[256];
};

struct log_dirs {
	struct log_dir *bucket[BUCKETS];
};

static struct log_dir **dir_at(struct log_dirs *t, uint64_t id)
{
	struct log_dir **at = &t->bucket[id % BUCKETS];
	while (*at && (*at)->id != id)
		at = &(*at)->next;
	return at;
}

static void put(struct staging *s, uint64_t id, uint64_t parent, const char *name)
{
	if (!s->log.dirs)
		s->log.dirs = calloc(1, sizeof(*s->log.dirs));
	if (!s->log.dirs)
		return; /* a shorter name, then */
	struct log_dir **at = dir_at(s->log.dirs, id);
	if (!*at)
		*at = calloc(1, sizeof(**at));
	if (!*at)
		return;
	(*at)->id = id;
	(*at)->parent = parent;
	strncpy((*at)->name, name, sizeof((*at)->name) - 1);
}

void lostfound_note(struct staging *s, const struct rec *r)
{
	bool dir = r->type == REC_MKDIR || (r->type == REC_NODE && S_ISDIR(r->mode));

	if (dir && r->name[0])
		put(s, r->node, r->dir, r->name);
	else if (r->type == REC_RENAME && r->flags & REC_DIR)
		put(s, r->node, r->dir2, r->name2);
}

void lostfound_end(struct staging *s)
{
	for (unsigned i = 0; s->log.dirs && i < BUCKETS; i++)
		for (struct log_dir *d = s->log.dirs->bucket[i], *next; d; d = next) {
			next = d->next;
			free(d);
		}
	free(s->log.dirs);
	s->log.dirs = NULL;
}

/* Prepends one component to what begins at buf + pos; if it is too long its beginning is cut
 * off. */
static size_t prepend(char *buf, size_t pos, const char *name)
{
	static const char hex[] = "0123456789ABCDEF";

	for (size_t n = strlen(name); n--;) {
		bool plain = name[n] != '/' && name[n] != '%';
		if (pos < (plain ? 1 : 3))
			return 0;
		buf[--pos] = plain ? name[n] : hex[name[n] & 15];
		if (!plain) {
			buf[--pos] = hex[name[n] >> 4];
			buf[--pos] = '%';
		}
	}
	return pos;
}

void lostfound_name(struct staging *s, uint64_t dir, const char *name, char out[LOSTFOUND_NAME])
{
	char buf[LOSTFOUND_NAME];
	size_t pos = prepend(buf, sizeof(buf) - 1, name);

	buf[sizeof(buf) - 1] = 0;
	for (unsigned depth = 0; pos && dir != STAGING_ROOT_DIR && depth < DEPTH_MAX; depth++) {
		struct log_dir *d = s->log.dirs ? *dir_at(s->log.dirs, dir) : NULL;
		if (!d)
			break;
		pos = prepend(buf, pos, "/");
		pos = pos ? prepend(buf, pos, d->name) : 0;
		dir = d->parent;
	}
	memmove(out, buf + pos, sizeof(buf) - pos);
}

void lostfound_path_name(const char *path, char out[LOSTFOUND_NAME])
{
	char buf[LOSTFOUND_NAME];
	size_t pos = prepend(buf, sizeof(buf) - 1, path);

	buf[sizeof(buf) - 1] = 0;
	memmove(out, buf + pos, sizeof(buf) - pos);
}

/* SPDX-License-Identifier: MIT
 * Which save a shard is of. A directory that several hosts save into again and again has shards of
 * two saves for a while, with equal names and sizes. So each version of a shard is marked with the
 * number of saves of its directory that were committed before it, and with its host:
 *
 *   shards: opened, written, closed ── marked n     .metadata: closed ── marked n
 *                                                      │ gets its name: the count is n + 1
 *   the next save's shards ── marked n + 1  ◀──────────┘ before that is answered
 *
 * The store has the mark behind the inode number, in one xattr: "INO N KEY HOST SIZE".
 *
 * This is right because a job commits a save when all of its shards are closed, and begins the next
 * one when that is done. A mark is part of the version's record in the log. The count is in the
 * store (io/store/saves.c), by a hash of the directory's path, which is part of the mark: a file
 * that came from elsewhere, by rename, says so.
 *
 * A save that is broken off and repeated has the same number. So a host that writes its shard of
 * one save twice takes the mark of the first from the store (STALE) before the second is sealed: a
 * .metadata waits for that. (A first one that is itself pending still reaches the store marked.)
 *
 * A host that has never seen another host in the store asks for no count and marks nothing. What
 * has no mark counts by its size (commit.c). */
#include "fs/tree/inside.h"
#include "io/number.h"
#include "io/sum/sum.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* instead of the number */
#define STALE "-"

bool save_tag_parse(const char *text, struct save_tag *out)
{
	const char *p = text;

	*out = (struct save_tag){.stale = text[0] == STALE[0]};
	p += out->stale;
	if ((!out->stale && !number_next(&p, &out->n)) || *p++ != ' ')
		return false;
	size_t len = strcspn(p, " ");
	if (len != sizeof(out->key) - 1 || p[len] != ' ')
		return false;
	memcpy(out->key, p, len);
	p += len + 1;
	len = strcspn(p, " ");
	if (len >= sizeof(out->host))
		return false;
	memcpy(out->host, p, len);
	p += len;
	return !*p || (*p++ == ' ' && number_is(p, &out->size));
}

const char *save_mark_in(const char *value)
{
	const char *mark = strchr(value, ' ');

	return mark ? mark + 1 : "";
}

/* DCP's names, and those that a writer gives a file until it is whole. */
bool save_has_tag(const char *name)
{
	return strstr(name, ".distcp") || !strncmp(name, COMMIT_NAME, strlen(COMMIT_NAME));
}

/* Lock held. -ENOMEM */
static int key_of(struct fs *fs, struct node *dir, char key[IO_SAVE_KEY])
{
	struct io_sum *sum = io_sum_new();
	char path[PATH_MAX];

	if (!sum)
		return -ENOMEM;
	node_path(fs, dir, path, sizeof(path));
	io_sum_add(sum, path, strlen(path));
	snprintf(key, IO_SAVE_KEY, "%016llx", (unsigned long long)io_sum_digest(sum).low);
	io_sum_free(sum);
	return 0;
}

int save_tag_of(struct fs *fs, struct node *dir, const char *name, char text[SAVE_TAG_BYTES])
{
	char key[IO_SAVE_KEY];
	uint64_t n;

	text[0] = 0;
	if (!atomic_load(&fs->hosts.others) || !save_has_tag(name) ||
	    !io_store_has_xattr(fs->store) || key_of(fs, dir, key))
		return 0;
	int err = ask_saves(fs, key, &n);
	if (err == ASK_AGAIN)
		return err;
	if (!err) /* else it has no mark */
		snprintf(text, SAVE_TAG_BYTES, "%llu %s %s", (unsigned long long)n, key,
			 io_store_host(fs->store));
	return 0;
}

/* The store's file at d is not of the save that `mark` says, if it says the same: it is written
 * again. What fails leaves it as it is. */
static int make_stale(struct fs *fs, struct dentry *d, const char *mark)
{
	char old[ASK_VALUE_MAX], stale[ASK_VALUE_MAX + sizeof(STALE)];
	size_t same = strlen(mark);
	bool commits = !strncmp(d->name, COMMIT_NAME, strlen(COMMIT_NAME));
	ssize_t len = commits || !d->store_has ? -ENODATA
					       : ask_value_by_name(fs, d->dir, d->name, KEY_INO,
								   old, sizeof(old) - 1);

	if (len < 0)
		return len == ASK_AGAIN ? ASK_AGAIN : 0;
	old[len] = '\0';
	const char *has = save_mark_in(old);
	if (strncmp(has, mark, same) || (has[same] && has[same] != ' '))
		return 0;
	snprintf(stale, sizeof(stale), "%.*s" STALE "%s", (int)(has - old), old, strchr(has, ' '));
	return ask_set_mark(fs, d->dir, d->name, stale) == ASK_AGAIN ? ASK_AGAIN : 0;
}

/* All seals of a version have the mark that the first one had, also none. */
int save_note(struct fs *fs, struct node *n)
{
	char text[SAVE_TAG_BYTES];
	struct dentry *d = n->names;

	while (d && !save_has_tag(d->name))
		d = d->name_next;
	if (!d || n->version.save)
		return 0;
	int err = save_tag_of(fs, d->dir, d->name, text);
	if (!err && text[0])
		err = make_stale(fs, d, text);
	if (!err)
		n->version.save = strdup(text);
	return err;
}

bool save_is_marked(const struct node *n)
{
	return n->version.save && n->version.save[0];
}

void save_restore(struct node *n, const struct rec *r)
{
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;
	int kind;

	free(n->version.save);
	n->version.save = NULL;
	while ((kind = rec_unpack(r->data, r->data_len, &pos, &name, &pair)) > 0)
		if (kind == 2 && !n->version.save && !strcmp(pair.key, KEY_SAVE))
			n->version.save = strndup(pair.val, pair.len);
	if (!n->version.save)
		n->version.save = strdup("");
}

void save_not_counted(struct fs *fs, const char *name, int err)
{
	char text[300];

	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "the save that %.100s commits could not be counted (%s): if other hosts save into "
		 "that directory again, a shard of this save may pass for one of the next",
		 name, strerror(-err));
	fs_notice(fs, text);
}

/* Made again, it counts once: a version keeps its mark. Without one, before this host knew of
 * others, a number may be left out after a restart, which does no harm. */
int save_commits(struct fs *fs, struct node *n, struct node *dir, const char *name)
{
	struct save_tag tag;
	char key[IO_SAVE_KEY];

	if (!commit_is_name(name) || !S_ISREG(n->attr.mode) || !io_store_has_xattr(fs->store) ||
	    n->version.counted || key_of(fs, dir, key))
		return 0;
	bool marked =
		save_is_marked(n) && save_tag_parse(n->version.save, &tag) && !strcmp(tag.key, key);
	int err = ask_next_save(fs, key, marked ? tag.n + 1 : 0);
	if (err == ASK_AGAIN)
		return err;
	n->version.counted = !err;
	if (err)
		save_not_counted(fs, name, err);
	return 0;
}

int save_flushed(struct fs *fs, struct node *n)
{
	struct dentry *d = n->names;

	while (d && !commit_is_name(d->name))
		d = d->name_next;
	return d ? save_commits(fs, n, d->dir, d->name) : 0;
}

/* SPDX-License-Identifier: MIT
 * Seals: all that the store is to know of a version, and of a close that was answered. A shard that gets a new
 * version while its checkpoint is committed says so of itself (DURABILITY, Safe checkpoints). */
#include "fs/fs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/formats/formats.h"

static bool is_over(const char *mark, struct timespec commit)
{
	struct timespec t;
	return ckpt_over_parse(mark, "", &t) && t.tv_sec == commit.tv_sec && t.tv_nsec == commit.tv_nsec;
}

/* What stands by d's name in the store says of itself; "" when it says nothing. 0 or -errno. */
static int store_says(struct fs *fs, const struct dentry *d, const char *key, char buf[CKPT_OVER_ROOM])
{
	ssize_t len = ask_value_by_name(fs, d->dir, d->name, key, buf, CKPT_OVER_ROOM - 1);
	buf[len < 0 ? 0 : len] = '\0';
	return len >= 0 || xattr_is_absent(len) || name_is_absent((int)len) ? 0 : (int)len;
}

/* The mark for what replaces old's version at d, a name of it, which c commits. An earlier one that
 * says the same is kept, for it knows what was committed. */
static int print_over(struct fs *fs, const struct node *old, const struct dentry *d, struct node *c,
		      char mark[CKPT_OVER_ROOM])
{
	char sum[CKPT_OVER_ROOM] = "";
	struct stat st;
	int rc;

	if ((rc = node_stat(fs, c, &st)))
		return rc;
	if (old->version.over && is_over(old->version.over, st.st_mtim)) {
		snprintf(mark, CKPT_OVER_ROOM, "%s", old->version.over);
		return 0;
	}
	rc = store_says(fs, d, CKPT_OVER_KEY, mark);
	if (rc || is_over(mark, st.st_mtim))
		return rc;
	/* the order is kept: where the store has c it has what c commits */
	if (!node_dirty(fs, c) && !dentry_dirty(fs, c->names))
		rc = store_says(fs, d, "user.cairn.checksum", sum);
	if (!rc)
		ckpt_over_print(st.st_mtim, sum, mark);
	return rc;
}

/* Does what stands at d, a version of n, belong to a checkpoint that is committed? Then 1, and the mark
 * for what replaces it; else 0, or -errno. */
static int is_committed(struct fs *fs, const struct node *n, const struct dentry *d, char mark[CKPT_OVER_ROOM])
{
	char buf[64];
	for (int which = 0; d->store_has && which < 2; which++) {
		const char *name = ckpt_commit_of(d->name, which, buf);
		struct node *c = NULL;
		int rc = name ? tree_lookup(fs, d->dir, name, &c, NULL) : -ENOENT;
		if (rc && !name_is_absent(rc))
			return rc;
		if (rc || !S_ISREG(c->attr.mode))
			continue;
		rc = print_over(fs, n, d, c, mark);
		if (!c->nlookup)
			ask_release(fs, c);
		return rc ? rc : 1;
	}
	return 0;
}

/* A shard gets a new version while what commits it stands: it says so of itself, until that is
 * written anew. */
static int note_over(struct fs *fs, struct node *n)
{
	char buf[64], mark[CKPT_OVER_ROOM];
	struct dentry *d = n->names;
	while (d && !(d->store_has && ckpt_commit_of(d->name, 0, buf)))
		d = d->name_next;
	int over = d ? is_committed(fs, n, d, mark) : 0;
	if (over == ASK_AGAIN)
		return over;
	if (over < 0)	/* of a close that was answered its FLUSH has asked: that holds */
		return n->version.accepted ? 0 : over;
	free(n->version.over);
	n->version.over = over ? strdup(mark) : NULL;
	return 0;
}

int fs_replaces(struct fs *fs, struct node *n, const struct node *victim, const struct dentry *d)
{
	struct rec r = rec_new(REC_XATTR);
	char mark[CKPT_OVER_ROOM];

	r.unique = 0;
	rec_aim(fs, &r, n);
	if (r.flags & REC_GHOST || !S_ISREG(n->attr.mode) || !S_ISREG(victim->attr.mode) ||
	    !io_store_has_xattr(fs->store))
		return 0;	/* one that is still to be sealed is marked then */
	int over = is_committed(fs, victim, d, mark);
	if (over <= 0)
		return over;
	r.node = n->id;
	r.name2 = CKPT_OVER_KEY;
	r.data = mark;
	r.data_len = (uint32_t)strlen(mark);
	return fs_record(fs, &r);
}

/* Everything the store is to know of n, once note_over() was asked: names, attributes, xattrs. *data is the
 * caller's. */
static int fill_seal(struct node *n, struct rec *out, void **data)
{
	struct rec r = rec_new(REC_SEAL);
	unsigned n_names = 0, n_pairs = 0;

	r.unique = 0;	/* FLUSH and RELEASE may be carried out twice */
	for (struct dentry *d = n->names; d; d = d->name_next)
		n_names++;
	for (struct xattr *x = n->xattrs; x; x = x->next)
		n_pairs++;
	struct rec_name *names = calloc(n_names + 1, sizeof(*names));
	struct rec_pair *pairs = calloc(n_pairs + 2, sizeof(*pairs));
	if (!names || !pairs)
		no_memory();
	n_names = n_pairs = 0;
	for (struct dentry *d = n->names; d; d = d->name_next) {
		names[n_names++] = (struct rec_name){.dir = d->dir->id, .name = d->name};
		if (d->store_has)
			r.flags |= REC_SHADOW;	/* an earlier version stands there */
	}
	for (struct xattr *x = n->xattrs; x; x = x->next)
		pairs[n_pairs++] = (struct rec_pair){.key = x->key, .val = x->val, .len = x->len};
	if (n->version.over)
		pairs[n_pairs++] = (struct rec_pair){.key = CKPT_OVER_KEY, .val = n->version.over,
						     .len = (uint32_t)strlen(n->version.over)};
	ssize_t len = rec_pack(names, n_names, pairs, n_pairs, data);
	r.dir = n_names ? names[0].dir : 0;
	r.name = n_names ? names[0].name : "";
	free(names);
	free(pairs);
	if (len < 0)
		return (int)len;
	r.node = n->id;
	r.ino = n->ino;
	r.mode = n->attr.mode & 07777;
	r.uid = n->attr.uid;
	r.gid = n->attr.gid;
	r.data = *data;
	r.data_len = (uint32_t)len;
	*out = r;
	return 0;
}

int fill_flushed(struct node *n, struct rec *r, void **data)
{
	int rc = fill_seal(n, r, data);
	r->type = REC_FLUSHED;
	r->sf = staged_id(n->sf);
	r->flags |= (staged_spilled(n->sf) ? REC_SPILLED : 0) | (staged_huge(n->sf) ? REC_HUGE : 0);
	return rc;
}

/* A close is about to be answered; its RELEASE may be lost with everything else. */
int fs_flushed(struct fs *fs, struct node *n)
{
	struct rec r = {.type = 0};
	void *data = NULL;
	int rc = note_over(fs, n);
	if (!rc)
		rc = fill_flushed(n, &r, &data);
	if (!rc)
		rc = fs_record(fs, &r);
	free(data);
	return rc;
}

int fs_seal(struct fs *fs, struct node *n, bool closed, uint64_t *seq)
{
	struct rec r;
	void *data = NULL;
	int rc = note_over(fs, n);
	if (!rc)
		rc = fill_seal(n, &r, &data);
	if (!rc)
		rc = staging_seal(fs->s, n->sf, &r, closed);
	if (!rc) {
		fs_apply(fs, &r);
		struct staged_info i;
		staged_get_state(n->sf, &i);
		if (closed)	/* what it takes, not what its holes pretend */
			expect_note(fs, n, i.blocks * 512 < r.size ? i.blocks * 512 : r.size);
		if (seq)
			*seq = r.seq;
	}
	free(data);
	return rc;
}

/* SPDX-License-Identifier: MIT
 * Seals: everything the store needs to know of a version or of an answered close. A shard that gets
 * a new version while its checkpoint is committed is marked as such (DURABILITY, Safe checkpoints).
 */
#include "fs/tree/inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/formats/formats.h"

/* As a mark tells of c's present version. A number that the store does not keep is not told:
 * another program's file has the store's own. 0 or -errno. */
static int version_of(struct fs *fs, struct node *c, struct ckpt_over *out)
{
	struct stat st;
	int err = node_stat(fs, c, &st);

	if (!err)
		*out = (struct ckpt_over){st.st_mtim, c->ino == c->stored.ino ? 0 : c->ino};
	return err;
}

static bool is_over(const char *mark, const struct ckpt_over *c)
{
	struct ckpt_over o;
	return ckpt_over_parse(mark, "", &o) && ckpt_over_is(&o, c->mtime, c->ino);
}

/* The value of this xattr of the file at d's name in the store; "" if it has none. 0 or -errno. */
static int store_says(struct fs *fs, const struct dentry *d, const char *key,
		      char buf[CKPT_OVER_BYTES])
{
	ssize_t len = ask_value_by_name(fs, d->dir, d->name, key, buf, CKPT_OVER_BYTES - 1);
	buf[len < 0 ? 0 : len] = '\0';
	return len >= 0 || xattr_is_absent(len) || name_is_absent((int)len) ? 0 : (int)len;
}

/* The mark for a version that replaces old's version at d, a name of old, which c commits. An
 * existing mark with the same meaning is kept: it names what was committed. */
static int print_over(struct fs *fs, const struct node *old, const struct dentry *d, struct node *c,
		      char mark[CKPT_OVER_BYTES])
{
	char sum[CKPT_OVER_BYTES] = "";
	struct ckpt_over o;
	int err;

	mark[0] = '\0';
	if ((err = version_of(fs, c, &o)))
		return err;
	if (old->version.over && is_over(old->version.over, &o)) {
		snprintf(mark, CKPT_OVER_BYTES, "%s", old->version.over);
		return 0;
	}
	err = d->store_has ? store_says(fs, d, CKPT_OVER_KEY, mark) : 0;
	if (err || is_over(mark, &o))
		return err;
	/* Order is preserved: a store that has c has the files that c commits. So has one that has
	 * old's last version: no version of it came after c, or that had a mark. */
	if (d->store_has && (fs_is_applied(fs, old->seq.seal) ||
			     (!node_dirty(fs, c) && !dentry_dirty(fs, c->names))))
		err = store_says(fs, d, KEY_CHECKSUM, sum);
	else if (d->store_has && old->sf)
		staged_base_sum(old->sf, old->seq.seal, sum);
	if (!err)
		ckpt_over_format(&o, sum, mark);
	return err;
}

/* Does a version at d replace one that a checkpoint may have? */
static bool replaces(const struct dentry *d)
{
	return d->store_has || d->committed;
}

/* Whether the file at d, a version of n, belongs to a committed checkpoint. 1: yes, *out is the
 * mark for the version that replaces it; 0: no; or -errno. */
static int is_committed(struct fs *fs, const struct node *n, const struct dentry *d,
			char mark[CKPT_OVER_BYTES])
{
	char buf[64];
	for (int which = 0; replaces(d) && which < 2; which++) {
		const char *name = ckpt_commit_of(d->name, which, buf);
		struct node *c = NULL;
		int err = name ? tree_lookup(fs, d->dir, name, &c, NULL) : -ENOENT;
		if (err && !name_is_absent(err))
			return err;
		if (err || !S_ISREG(c->attr.mode))
			continue;
		err = print_over(fs, n, d, c, mark);
		if (!c->nlookup)
			ask_release(fs, c);
		return err ? err : 1;
	}
	return 0;
}

/* Marks a shard that gets a new version while its commit marker exists; the mark lasts until the
 * marker is written anew. What came to exist since a close is no reason, unless the file was
 * written since: a mapping or a process that was forked may keep it open longer than its writer. */
static int note_over(struct fs *fs, struct node *n)
{
	char buf[64], mark[CKPT_OVER_BYTES];
	bool same = !staged_written_since(n->sf, &n->version.flushed);
	if (n->version.accepted && same)
		return 0;
	struct dentry *d = n->names;
	while (d && !(replaces(d) && ckpt_commit_of(d->name, 0, buf)))
		d = d->name_next;
	if (d && !d->store_has && same) /* another writer has it open, too */
		return 0;
	int over = d ? is_committed(fs, n, d, mark) : 0;
	if (over == ASK_AGAIN)
		return over;
	if (over < 0) /* a FLUSH that was answered has asked already: its result is final */
		return n->version.accepted ? 0 : over;
	free(n->version.over);
	n->version.over = over ? strdup(mark) : NULL;
	return 0;
}

int fs_replaces(struct fs *fs, struct node *n, const struct node *victim, const struct dentry *d)
{
	struct rec r = rec_new(REC_XATTR);
	char mark[CKPT_OVER_BYTES];

	r.unique = 0;
	rec_aim(fs, &r, n);
	if (r.flags & REC_ABSENT || !S_ISREG(n->attr.mode) || !S_ISREG(victim->attr.mode) ||
	    !io_store_has_xattr(fs->store))
		return 0; /* a version that is not sealed yet is marked by its seal */
	int over = is_committed(fs, victim, d, mark);
	if (over <= 0)
		return over;
	r.node = n->id;
	r.name2 = CKPT_OVER_KEY;
	r.data = mark;
	r.data_len = (uint32_t)strlen(mark);
	return fs_record(fs, &r);
}

/* Everything the store needs to know of n after note_over(): names, attributes, xattrs. The caller
 * frees *data. */
static int fill_seal(struct node *n, struct rec *out, void **data)
{
	struct rec r = rec_new(REC_SEAL);
	unsigned n_names = 0, n_pairs = 0;

	r.unique = 0; /* both FLUSH and RELEASE may call this */
	for (struct dentry *d = n->names; d; d = d->name_next)
		n_names++;
	for (struct xattr *x = n->xattrs; x; x = x->next)
		n_pairs++;
	struct rec_name *names = calloc(n_names + 1, sizeof(*names));
	struct rec_pair *pairs = calloc(n_pairs + 3, sizeof(*pairs));
	if (!names || !pairs)
		no_memory();
	n_names = n_pairs = 0;
	for (struct dentry *d = n->names; d; d = d->name_next) {
		names[n_names++] = (struct rec_name){.dir = d->dir->id, .name = d->name};
		if (d->store_has)
			r.flags |= REC_SHADOW; /* an earlier version exists there */
	}
	for (struct xattr *x = n->xattrs; x; x = x->next)
		pairs[n_pairs++] = (struct rec_pair){.key = x->key, .val = x->val, .len = x->len};
	if (n->version.over)
		pairs[n_pairs++] = (struct rec_pair){.key = CKPT_OVER_KEY,
						     .val = n->version.over,
						     .len = (uint32_t)strlen(n->version.over)};
	if (save_is_marked(n))
		pairs[n_pairs++] = (struct rec_pair){.key = KEY_SAVE,
						     .val = n->version.save,
						     .len = (uint32_t)strlen(n->version.save)};
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

int fill_flushed(struct node *n, const struct staged_moment *then, struct rec *r, void **data)
{
	int err = fill_seal(n, r, data);
	r->mtime = then->mtime;
	r->when = then->when;
	r->type = REC_FLUSHED;
	r->sf = staged_id(n->sf);
	r->flags |= (staged_spilled(n->sf) ? REC_SPILLED : 0) | (staged_huge(n->sf) ? REC_HUGE : 0);
	return err;
}

/* Before a close is answered: its RELEASE may be lost if everything is killed. */
int fs_flushed(struct fs *fs, struct node *n)
{
	struct rec r = {.type = 0};
	struct staged_moment now;
	void *data = NULL;
	/* a write failed meanwhile: no record after that one's says that the file is whole */
	int err = staged_torn(n->sf);
	if (!err)
		err = note_over(fs, n);
	if (!err)
		err = save_note(fs, n);
	if (!err) {
		staged_now(n->sf, &now);
		err = fill_flushed(n, &now, &r, &data);
	}
	if (!err)
		err = fs_record(fs, &r);
	free(data);
	return err;
}

int fs_seal(struct fs *fs, struct node *n, bool closed, uint64_t *seq)
{
	struct rec r;
	void *data = NULL;
	int err = note_over(fs, n);
	if (!err)
		err = save_note(fs, n);
	if (!err)
		err = fill_seal(n, &r, &data);
	if (!err)
		err = staging_seal(fs->s, n->sf, &r, closed);
	if (!err) {
		fs_apply(fs, &r);
		if (closed)
			expect_of(fs, n);
		if (seq)
			*seq = r.seq;
	}
	free(data);
	return err;
}

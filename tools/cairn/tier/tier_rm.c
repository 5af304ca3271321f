/* SPDX-License-Identifier: MIT
 *
 * cairn tier rm: removes checkpoints from a tier, from the other end than a push makes them:
 *
 *	manifest, begun.json (removes)		complete; begun.json lists the same files
 *	begun.json (removes), commit files	nobody takes it for complete
 *	begun.json (removes)			some of its files
 *
 * So a removal that was killed is gone on with. A push waits until it is done, or takes it for
 * killed after TIER_REMOVAL_S: then begun.json is the push's; the removal, which reads that before
 * each phase, stops. Nothing is removed that the manifest does not list, or that another
 * checkpoint's lists: a directory that became a checkpoint later has the files of those below it.
 */
#include "tier.h"

#include <string.h>
#include <time.h>

struct removal {
	struct tier t;
	const struct tier_opts *o;
	struct json_out j;
	struct names complete, begun_all; /* paths of checkpoints */
	size_t n_removed, n_failed;
	struct tier_why why;

	/* of one checkpoint */
	struct manifest m;
	bool begun; /* its manifest is gone already */
	bool others; /* there are files that it does not list */
	bool *needed; /* of m.v: by another checkpoint; those stay */
	size_t n_needed;
	char *needed_by; /* one of those */
	double looked; /* when begun.json was still this one's */
};

static int failed(struct removal *r, int err, const char *path)
{
	return tier_told(&r->why, err, "%s/%s: %s; remove it again when that is mended", r->t.name,
			 path, tier_strerror(&r->t, err));
}

/* ---- is it the newest that is whole? ------------------------------------------------- */

struct siblings {
	const struct removal *r;
	struct ckpt_found *v; /* of one directory, the newest first */
	size_t n;
};

/* Has it all its files, with their sizes? For ckpt_newest_safe(). */
static int is_whole(void *ctx, size_t i)
{
	const struct siblings *s = ctx;
	CLEANUP_MANIFEST struct manifest m = {0};
	int err = manifest_load(&s->r->t, s->v[i].path, TIER_MANIFEST, &m);
	bool whole = !err;

	for (size_t k = 0; whole && k < m.n; k++) {
		struct stat st = {0};

		err = tier_stat(&s->r->t, m.v[k].path, &st);
		whole = !err && S_ISREG(st.st_mode) && (uint64_t)st.st_size == m.v[k].size;
	}
	return !err || err == -ENOENT || err == -EBADMSG ? whole : err;
}

static int add_sibling(struct siblings *s, const char *path)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	int err = manifest_load(&s->r->t, path, TIER_MANIFEST, &m);

	if (err)
		return err == -ENOENT || err == -EBADMSG ? 0 : err;
	err = manifest_found(&m, &s->v[s->n]);
	s->n += !err;
	return err;
}

/* 1, 0, or -errno: not known. */
static int is_newest(const struct removal *r, const char *path)
{
	struct siblings s = {.r = r, .v = calloc(r->complete.n + 1, sizeof(*s.v))};
	int err = s.v ? 0 : -ENOMEM;
	ssize_t at;

	for (size_t i = 0; !err && i < r->complete.n; i++)
		if (path_same_dir(r->complete.v[i], path))
			err = add_sibling(&s, r->complete.v[i]);
	if (s.v)
		s.n = ckpt_found_sort(s.v, s.n);
	at = err ? err : ckpt_newest_safe(s.v, s.n, is_whole, &s);
	err = at >= 0 ? !strcmp(s.v[at].path, path) : at == -ENOENT ? 0 : (int)at;
	for (size_t i = 0; i < s.n; i++)
		free(s.v[i].path);
	free(s.v);
	return err;
}

/* ---- what is to be removed ----------------------------------------------------------- */

/* What a push has begun is only removed by force: it may be at work. */
static int load_begun(struct removal *r, const char *path, struct manifest *out)
{
	int err = manifest_load(&r->t, path, TIER_BEGUN, out);

	if (err && err != -ENOENT && err != -EBADMSG)
		return failed(r, err, path);
	if (err != -ENOENT && !(err ? false : out->removes || out->ended) && !r->o->force)
		return tier_told(
			&r->why, -EBUSY,
			"%s/%s: a push sends it, or was killed: let it end, or use --force",
			r->t.name, path);
	return err;
}

/* What a push left out of the manifest, and the tier may have from an earlier one. */
static int add_left(struct removal *r, const struct manifest *begun)
{
	int err = 0;

	for (size_t i = 0; !err && begun->ended && i < begun->n; i++) {
		if (manifest_find(&r->m, begun->v[i].path))
			continue;
		err = manifest_add(&r->m, &begun->v[i]);
		manifest_sort(&r->m);
	}
	return err ? failed(r, err, r->m.path) : 0;
}

static int load(struct removal *r, const char *path)
{
	CLEANUP_MANIFEST struct manifest begun = {0};
	int was_begun, err = manifest_load(&r->t, path, TIER_MANIFEST, &r->m);

	if (err && err != -ENOENT && err != -EBADMSG)
		return failed(r, err, path);
	was_begun = load_begun(r, path, &begun);
	if (was_begun && was_begun != -ENOENT && was_begun != -EBADMSG)
		return was_begun;
	if (!err)
		return add_left(r, &begun);
	if (was_begun)
		return tier_told(&r->why, -ENOENT, "%s/%s: %s", r->t.name, path,
				 err == -ENOENT && was_begun == -ENOENT
					 ? "no checkpoint there"
					 : "its manifest is damaged, so it is not known what is "
					   "its: push it again first");
	r->m = begun;
	begun = (struct manifest){0};
	r->begun = true;
	return 0;
}

static int check_newest(struct removal *r, const char *path)
{
	int newest = r->o->force || r->begun ? 0 : is_newest(r, path);

	if (newest < 0)
		return failed(r, newest, path);
	return newest ? tier_told(&r->why, -EPERM,
				  "%s/%s: the newest of its directory that is whole; not removed "
				  "without --force",
				  r->t.name, path)
		      : 0;
}

/* ---- what other checkpoints need ------------------------------------------------------ */

/* Can the checkpoint have files of r->m? */
static bool can_share(const struct removal *r, const char *other)
{
	bool can = path_is_at(r->m.path, other);

	for (size_t i = 0; !can && i < r->m.n; i++)
		can = path_is_at(r->m.v[i].path, other);
	return can && strcmp(r->m.path, other) != 0;
}

static int find_shared(struct removal *r, const char *other, const char *name)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	int err = can_share(r, other) ? manifest_load(&r->t, other, name, &m) : -ENOENT;

	if (err == -ENOENT || (!err && m.removes))
		return 0;
	if (err == -EBADMSG)
		return tier_told(&r->why, err,
				 "%s/%s: the manifest of %s is damaged, so it is not known what "
				 "that needs: push that again first",
				 r->t.name, r->m.path, other);
	if (err)
		return failed(r, err, other);
	for (size_t i = 0; i < r->m.n; i++) {
		if (r->needed[i] || !manifest_find(&m, r->m.v[i].path))
			continue;
		r->needed[i] = true;
		r->n_needed++;
		if (!r->needed_by && !(r->needed_by = strdup(other)))
			return failed(r, -ENOMEM, other);
	}
	return 0;
}

/* -EPERM: others need all of it. */
static int check_shared(struct removal *r)
{
	int err = 0;

	r->needed = calloc(r->m.n + 1, sizeof(*r->needed));
	if (!r->needed)
		return failed(r, -ENOMEM, r->m.path);
	for (size_t i = 0; !err && i < r->complete.n; i++)
		err = find_shared(r, r->complete.v[i], TIER_MANIFEST);
	for (size_t i = 0; !err && i < r->begun_all.n; i++)
		err = find_shared(r, r->begun_all.v[i], TIER_BEGUN);
	if (err || !r->n_needed || r->n_needed < r->m.n)
		return err;
	return tier_told(&r->why, -EPERM,
			 "%s/%s: %s, which is in the tier, has its files, too; remove that first",
			 r->t.name, r->m.path, r->needed_by);
}

/* ---- removal -------------------------------------------------------------------------- */

#define RENEW_S (TIER_REMOVAL_S / 10.0)

/* Says in the tier that this removal is alive, unless somebody else has begun something. */
static int renew(struct removal *r)
{
	CLEANUP_MANIFEST struct manifest now = {0};
	int err = manifest_load(&r->t, r->m.path, TIER_BEGUN, &now);

	if (err && err != -ENOENT && err != -EBADMSG)
		return failed(r, err, r->m.path);
	if (err || !now.removes)
		return tier_told(&r->why, -EBUSY,
				 "%s/%s: a push took over what is left of it, or another removal "
				 "has ended; remove it again",
				 r->t.name, r->m.path);
	r->looked = now_s();
	if ((uint64_t)time(NULL) < now.time_s + (uint64_t)RENEW_S)
		return 0;
	r->m.time_s = (uint64_t)time(NULL);
	err = manifest_save(&r->t, &r->m, TIER_BEGUN);
	return err ? failed(r, err, r->m.path) : 0;
}

static int remove_name(struct removal *r, const char *name)
{
	CLEANUP_FREE char *path = manifest_path(r->m.path, name);
	int err = path ? tier_remove(&r->t, path) : -ENOMEM;

	return err ? failed(r, err, r->m.path) : 0;
}

static int remove_files(struct removal *r, bool commits)
{
	int err = renew(r);

	for (size_t i = 0; !err && i < r->m.n; i++) {
		const struct tier_file *f = &r->m.v[i];

		if (ckpt_commits(path_base(f->path)) != commits || r->needed[i])
			continue;
		if (now_s() - r->looked > RENEW_S && (err = renew(r)))
			break;
		err = f->upload ? tier_abort_upload(&r->t, f->path, f->upload) : 0;
		if (!err)
			err = tier_remove(&r->t, f->path);
		if (err)
			failed(r, err, f->path);
	}
	return err;
}

static int count_key(void *ctx, const char *below)
{
	(void)below;
	*(bool *)ctx = true;
	return 0;
}

/* The directories of the checkpoint that are empty now. */
static int remove_dirs(struct removal *r)
{
	CLEANUP_FREE char *top = NULL;
	size_t len = strlen(r->m.path);
	int err = 0;

	for (size_t i = r->m.n; !err && i-- > 0;) {
		CLEANUP_FREE char *path = strdup(r->m.v[i].path);
		char *slash;

		err = path ? 0 : -ENOMEM;
		while (!err && (slash = strrchr(path, '/')) && (size_t)(slash - path) >= len) {
			*slash = '\0';
			err = tier_remove_dir(&r->t, path);
		}
		r->others |= err == -ENOTEMPTY;
		err = err == -ENOTEMPTY ? 0 : err;
	}
	if (!err && r->t.s3 && asprintf(&top, "%s/", r->m.path) >= 0)
		err = tier_s3_keys(r->t.s3, top, count_key, &r->others);
	return err ? failed(r, err, r->m.path) : 0;
}

/* Who is asked to remove it again after this finds nothing: nothing else may be left to do. */
static int remove_begun(struct removal *r)
{
	CLEANUP_FREE char *own = manifest_path(r->m.path, "");
	int err = own ? remove_name(r, TIER_BEGUN) : failed(r, -ENOMEM, r->m.path);

	if (!err) {
		own[strlen(own) - 1] = '\0'; /* the slash */
		(void)tier_remove_dir(&r->t, own);
	}
	return err;
}

static int remove_all(struct removal *r)
{
	CLEANUP_MANIFEST struct manifest again = {0};
	int err;

	r->m.removes = true;
	r->m.ended = false;
	r->m.time_s = (uint64_t)time(NULL);
	err = manifest_save(&r->t, &r->m, TIER_BEGUN);
	if (err)
		return failed(r, err, r->m.path);
	err = renew(r);
	if (!err)
		err = remove_name(r, TIER_MANIFEST);
	if (!err)
		err = remove_files(r, true);
	if (!err)
		err = remove_files(r, false);
	if (!err)
		err = remove_dirs(r);
	if (!err)
		err = renew(r);
	if (!err)
		err = remove_begun(r);
	if (err)
		return err;
	err = manifest_load(&r->t, r->m.path, TIER_MANIFEST, &again);
	if (err && err != -EBADMSG)
		return 0;
	return tier_told(&r->why, -EBUSY,
			 "%s/%s: it was sent again meanwhile: remove it from the store first, "
			 "then here again",
			 r->t.name, r->m.path);
}

/* 0 or -errno; r->m is its manifest then, if it has one. */
static int remove_checkpoint(struct removal *r, const char *path)
{
	int err = *path ? load(r, path)
			: tier_told(&r->why, -EINVAL, "%s: name one checkpoint", r->t.name);

	if (!err)
		err = check_newest(r, path);
	if (!err)
		err = check_shared(r);
	return err ? err : remove_all(r);
}

/* ---- all that are named ---------------------------------------------------------------- */

static void show(struct removal *r, const char *path, int err)
{
	const char *what = !err ? "removed" : err == -EPERM ? "refused" : "failed";
	size_t n = r->m.n - r->n_needed;
	char buf[32], count[COUNT_ROOM];
	uint64_t bytes = 0;

	for (size_t i = 0; i < r->m.n; i++)
		bytes += r->needed && r->needed[i] ? 0 : r->m.v[i].size;
	if (r->o->json) {
		json_open(&r->j, NULL, '{');
		json_put_path(&r->j, "path", path);
		json_put_string(&r->j, "action", what);
		json_put_u64(&r->j, "files", n);
		json_put_u64(&r->j, "bytes", bytes);
		json_put_u64(&r->j, "needed", r->n_needed);
		json_put_path(&r->j, "needed_by", r->needed_by);
		json_put_path(&r->j, "why", err ? r->why.text : NULL);
		json_close(&r->j, '}');
	} else if (!err) {
		printf("%-7s  ", what);
		print_name(stdout, path);
		printf("  %s, %s%s", count_of(n, "file", count), human_bytes(bytes, buf),
		       r->others ? "; files that it does not list stay there" : "");
		if (r->needed_by) {
			printf("; %s", count_of(r->n_needed, "file", count));
			printf(" of other checkpoints (");
			print_name(stdout, r->needed_by);
			printf(") stay there");
		}
		putchar('\n');
	}
	if (err)
		complain("%s", r->why.text);
}

static int remove_named(struct removal *r)
{
	for (size_t i = 0; i < r->o->n_dirs; i++) {
		int err = remove_checkpoint(r, r->o->dirs[i]);

		show(r, r->o->dirs[i], err);
		r->n_removed += !err;
		r->n_failed += err != 0;
		manifest_free(&r->m);
		free(r->needed);
		free(r->needed_by);
		r->needed = NULL;
		r->needed_by = NULL;
		r->n_needed = 0;
		r->begun = r->others = false;
	}
	return r->n_failed ? CAIRN_FAILED : CAIRN_OK;
}

/* It must be one: none is made here. */
static int open_tier(struct removal *r, const char *tier)
{
	int err = tier_open_to_read(&r->t, tier, &r->why);

	if (!err) {
		tier_close(&r->t);
		err = tier_open_to_write(&r->t, tier, NULL, -1, &r->why);
	}
	if (!err && ((err = manifest_list(&r->t, TIER_MANIFEST, &r->complete)) ||
		     (err = manifest_list(&r->t, TIER_BEGUN, &r->begun_all))))
		failed(r, err, TIER_MANIFESTS);
	if (!err)
		return CAIRN_OK;
	complain("%s", r->why.text);
	return err == -ENOENT || err == -ENOTDIR || err == -EINVAL || err == -EOPNOTSUPP
		       ? CAIRN_USAGE
		       : CAIRN_FAILED;
}

int tier_rm(const char *tier, const struct tier_opts *o)
{
	struct removal r = {.t = TIER_NONE, .o = o};
	int code = open_tier(&r, tier);

	json_begin(&r.j, stdout);
	if (!code && o->json) {
		json_open(&r.j, NULL, '{');
		json_put_path(&r.j, "tier", tier);
		json_open(&r.j, "checkpoints", '[');
	}
	if (!code)
		code = remove_named(&r);
	if (o->json && r.n_removed + r.n_failed) {
		json_close(&r.j, ']');
		json_put_u64(&r.j, "removed", r.n_removed);
		json_put_u64(&r.j, "failed", r.n_failed);
		json_close(&r.j, '}');
	}
	names_free(&r.complete);
	names_free(&r.begun_all);
	tier_close(&r.t);
	return code;
}

/* SPDX-License-Identifier: MIT
 *
 * cairn tier push: copies checkpoints that are complete and durable to a tier. There no commit file
 * and no manifest has its name before all that it lists. States of a checkpoint in the tier:
 *
 *	begun.json				some of its files, without what commits it
 *	begun.json, commit files		all of its files
 *	begun.json, commit files, manifest	the same, or before anything is replaced
 *	commit files, manifest			complete
 *	begun.json (ended), the same		complete, but for what changed while it was read
 *
 * What is complete there is replaced only when all that replaces it is in the tier, and from the
 * other end: the manifest goes first, then the commit files. An object store has no rename: there
 * these go before the first file is replaced. What only adds files to it, or changes those that lie
 * beside the tensors and that no commit file lists, leaves it complete: the latter are not in its
 * manifest meanwhile.
 */
#include "tier_share.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>

#define MOVED "it changed while it was read; push it again when nothing writes to it"

/* ---- the files of a checkpoint ----------------------------------------------------- */

/* The path of the checkpoint's directory, as of struct ckpt. */
static size_t dir_len(const struct push *p, const struct ckpt *c)
{
	const char *path = p->s.v[p->at].path;

	if (!c->alone)
		return strlen(path);
	return path_base(path) == path ? 0 : (size_t)(path_base(path) - path) - 1;
}

void push_stored_sum(int fd, char out[IO_CHECKSUM_LEN])
{
	if (xattr_of_fd(fd, KEY_CHECKSUM, out, IO_CHECKSUM_LEN) || strncmp(out, "xxh3:", 5))
		*out = '\0';
}

/* The path of a file of the checkpoint, from its directory. */
static const char *from_dir(const struct push *p, const char *path)
{
	path += strlen(p->s.v[p->at].path);
	return path + (*path == '/');
}

static bool is_beside(const struct push *p, const char *path)
{
	return ckpt_is_beside(p->format, &p->inside, from_dir(p, path));
}

/* Nothing that lies beside commits it. */
static bool commits(const struct push *p, const char *path)
{
	return ckpt_commits(path_base(path)) && !is_beside(p, path);
}

static int add_item(struct push *p, const struct ckpt *c, const char *name)
{
	CLEANUP_CLOSE int fd = ckpt_open_file(c, name);
	size_t len = dir_len(p, c);
	struct item *v, it = {.f.path = NULL};

	if (fd < 0 || fstat(fd, &it.st))
		return tier_told(p->why, fd < 0 ? fd : -errno, "%s/%s: %s", c->path, name,
				 strerror(fd < 0 ? -fd : errno));
	if (!S_ISREG(it.st.st_mode))
		return tier_told(p->why, -EINVAL, "%s/%s: not a regular file; remove it", c->path,
				 name);
	v = reallocarray(p->v, p->n + 1, sizeof(*v));
	if (!v)
		return tier_told(p->why, -ENOMEM, "%s: no memory", c->path);
	p->v = v;
	if (asprintf(&it.f.path, "%.*s%s%s", (int)len, p->s.v[p->at].path, len ? "/" : "", name) <
	    0)
		return tier_told(p->why, -ENOMEM, "%s: no memory", c->path);
	it.f.size = (uint64_t)it.st.st_size;
	it.f.mtime = it.st.st_mtim;
	push_stored_sum(fd, it.stored);
	it.owner = p->hosts ? tier_hosts_owner(p->hosts, fd) : NULL;
	it.commits = commits(p, it.f.path);
	it.beside = is_beside(p, it.f.path);
	v[p->n++] = it;
	return 0;
}

static int rank(const struct item *it)
{
	return it->commits ? 2 : !it->beside;
}

/* What lies beside comes first, what commits it last; otherwise by name. */
static int by_order(const void *x, const void *y)
{
	const struct item *a = x, *b = y;
	int d = rank(a) - rank(b);

	return d ? d : strcmp(a->f.path, b->f.path);
}

/* NULL: the checkpoint has no such file. */
static struct item *find_item(const struct push *p, const char *path)
{
	const struct item key = {
		.f.path = (char *)path, .commits = commits(p, path), .beside = is_beside(p, path)};

	return p->n ? bsearch(&key, p->v, p->n, sizeof(*p->v), by_order) : NULL;
}

struct gather {
	struct push *p;
	const struct ckpt *c;
	int err; /* of add_item(), which tells it */
};

static int gather_one(void *ctx, const char *path, const struct stat *st)
{
	struct gather *g = ctx;

	(void)st;
	return g->err = add_item(g->p, g->c, path);
}

static int gather(struct push *p, const struct ckpt *c)
{
	struct gather g = {p, c, 0};
	bool others;
	int err;

	p->format = c->alone ? CKPT_NONE : c->kind.format;
	p->loose = !c->alone && ckpt_is_loose(&c->kind);
	err = ckpt_inside(c, &p->inside);
	if (!err)
		err = ckpt_each_file(c, gather_one, &g, &others);
	if (err && !g.err)
		tier_told(p->why, err, "%s: %s", c->path, strerror(-err));
	if (!err && p->n)
		qsort(p->v, p->n, sizeof(*p->v), by_order);
	if (!err && p->n && p->hosts)
		share_divide(p);
	return err;
}

void push_drop(struct push *p)
{
	for (size_t i = 0; i < p->n; i++) {
		tier_drop(p->t, &p->v[i].temp);
		free(p->v[i].f.path);
		free(p->v[i].f.upload);
		free(p->v[i].f.ranges);
	}
	free(p->v);
	p->v = NULL;
	p->n = 0;
	names_free(&p->inside);
	manifest_free(&p->old);
	manifest_free(&p->begun);
	manifest_free(&p->committers);
	p->missing = 0;
	p->missing_of = NULL;
}

static bool is_same_file(const struct item *a, const struct item *b)
{
	return !strcmp(a->f.path, b->f.path) && a->f.size == b->f.size &&
	       a->st.st_ino == b->st.st_ino && a->st.st_dev == b->st.st_dev &&
	       !strcmp(a->stored, b->stored) && a->f.mtime.tv_sec == b->f.mtime.tv_sec &&
	       a->f.mtime.tv_nsec == b->f.mtime.tv_nsec;
}

/* What lies beside may be written at any time: it is sent again then. */
static size_t count_beside(const struct push *p)
{
	size_t n = 0;

	while (n < p->n && !rank(&p->v[n]))
		n++;
	return n;
}

/* Is the checkpoint as it was when its files were listed, and still safe? */
static int check_again(struct push *p)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	struct push now = {.t = p->t, .s = p->s, .at = p->at, .why = p->why, .hosts = p->hosts};
	size_t skip = count_beside(p), skip_now;
	struct ckpt_verdict v;
	bool same;
	int err = ckpt_search_judge(&p->s, p->at, &c, &v);

	same = !err && ckpt_is_safe(&c, &v) && !gather(&now, &c);
	skip_now = count_beside(&now);
	same = same && now.n - skip_now == p->n - skip;
	for (size_t i = skip; same && i < p->n; i++)
		same = is_same_file(&p->v[i], &now.v[i - skip + skip_now]);
	push_drop(&now);
	return same ? 0 : tier_told(p->why, -ESTALE, "%s/%s: " MOVED, p->s.top, p->s.v[p->at].path);
}

/* ---- what is to be sent ------------------------------------------------------------- */

static int tier_failed(struct push *p, int err, const char *path)
{
	return tier_told(p->why, err, "%s/%s: %s; %s", p->t->name, path, tier_strerror(p->t, err),
			 err == -ENOSPC || err == -EDQUOT
				 ? "free space in the tier, then push again"
				 : "push again when that is mended");
}

/* The checksum of the store's file, which is the one it was persisted with, if that is known. */
static int check_sum(struct push *p, const struct item *it)
{
	if (!*it->stored || !strcmp(it->stored, it->f.sum))
		return 0;
	return tier_told(p->why, -EBADMSG,
			 "%s/%s: its bytes are not those that were persisted (`cairn verify`); it "
			 "is not sent",
			 p->s.top, it->f.path);
}

static int open_item(struct push *p, const struct ckpt *c, const struct item *it)
{
	size_t len = dir_len(p, c);
	int fd = ckpt_open_file(c, it->f.path + len + (len > 0));

	return fd < 0 ? tier_told(p->why, fd, "%s/%s: %s", p->s.top, it->f.path, strerror(-fd))
		      : fd;
}

static int sum_source(struct push *p, const struct ckpt *c, struct item *it)
{
	CLEANUP_CLOSE int fd = *it->f.sum ? -1 : open_item(p, c, it);
	struct io_sum *m;
	int err;

	if (*it->f.sum)
		return 0;
	m = manifest_begin_sums(&it->f);
	err = fd < 0 ? fd : m ? io_sum_file_into(fd, m) : -ENOMEM;
	if (!err)
		manifest_end_sums(&it->f, m);
	io_sum_free(m);
	if (fd >= 0 && err)
		tier_told(p->why, err, "%s/%s: %s", p->s.top, it->f.path, strerror(-err));
	return err ? err : check_sum(p, it);
}

static bool is_ours(const struct push *p, const char *path)
{
	return p->any_ours || manifest_find(&p->old, path) || manifest_find(&p->begun, path) ||
	       manifest_find(&p->committers, path);
}

/* A file there that no manifest tells of: a killed push sent it, or somebody else. 1: it has the
 * same bytes, durably. */
static int compare_there(struct push *p, const struct ckpt *c, struct item *it)
{
	char sum[IO_CHECKSUM_LEN];
	uint64_t size;
	int err = tier_sum(p->t, it->f.path, &size, sum);

	if (err)
		return tier_failed(p, err, it->f.path);
	err = sum_source(p, c, it);
	return err ? err : !strcmp(sum, it->f.sum);
}

static int decide_one(struct push *p, const struct ckpt *c, struct item *it)
{
	const struct tier_file *old = manifest_find(&p->old, it->f.path);
	const struct tier_file *listed = share_find(&p->old, it);
	struct stat st;
	int err = tier_stat(p->t, it->f.path, &st), same = 0;
	bool there = !err;

	if (err && err != -ENOENT)
		return tier_failed(p, err, it->f.path);
	listed = listed ? listed : share_find(&p->begun, it);
	if (there && S_ISREG(st.st_mode) && (uint64_t)st.st_size == it->f.size) {
		/* whoever damaged a copy in a directory left another time */
		const struct tier_file *f = listed ? listed : old;
		bool untouched = p->t->s3 || (f && st.st_mtim.tv_sec == f->mtime.tv_sec);
		if (listed && untouched) {
			manifest_take_sums(&it->f, listed);
			return 0;
		}
		if (!old || !untouched) {
			same = compare_there(p, c, it);
		} else if (old->size == it->f.size) {
			err = sum_source(p, c, it);
			same = err ? err : !strcmp(old->sum, it->f.sum);
		}
		if (same)
			return same < 0 ? same : 0;
	}
	if (there && (!S_ISREG(st.st_mode) || !is_ours(p, it->f.path)))
		return tier_told(p->why, -EEXIST,
				 "%s/%s: in the way: it is not of a push; move it, then push again",
				 p->t->name, it->f.path);
	it->send = true;
	return 0;
}

static int is_being_removed(struct push *p, const char *path)
{
	return tier_told(p->why, -EAGAIN,
			 "%s/%s: is being removed there; if that was killed, push again in %d "
			 "minutes; not sent",
			 p->t->name, path, TIER_REMOVAL_S / 60);
}

/* Takes over from a removal that was killed. If it was not, it finds that this is not its own any
 * more, and stops: before it is looked at what is there. */
static int take_removal(struct push *p, const char *path)
{
	int err;

	if (!p->begun.removes)
		return 0;
	if (manifest_is_removal(&p->begun))
		return is_being_removed(p, path);
	p->begun.removes = false;
	p->begun.time_s = (uint64_t)time(NULL);
	err = manifest_save(p->t, &p->begun, TIER_BEGUN);
	return err ? tier_failed(p, err, path) : 0;
}

static int load_old(struct push *p, const char *path)
{
	/* in this order: who commits removes the first when the second is there */
	int begun = manifest_load(p->t, path, TIER_BEGUN, &p->begun);
	int old = manifest_load(p->t, path, TIER_MANIFEST, &p->old);

	p->had_manifest = old != -ENOENT;
	p->any_ours = begun == -EBADMSG || old == -EBADMSG;
	if (begun && begun != -ENOENT && begun != -EBADMSG)
		return tier_failed(p, begun, path);
	if (old && old != -ENOENT && old != -EBADMSG)
		return tier_failed(p, old, path);
	return take_removal(p, path);
}

/* Files that the tier has and the checkpoint has no longer. What is below a loose one is not its,
 * although an earlier save may have had it. */
static bool is_stale(const struct push *p, const char *path)
{
	return !find_item(p, path) && !(p->loose && strchr(from_dir(p, path), '/'));
}

/* ... of a push that was killed when its manifest had them no longer. What the store has by now,
 * another push may be sending. */
static bool is_left_over(const struct push *p, const char *path)
{
	struct stat st;

	return is_stale(p, path) && fstatat(p->s.fd, path, &st, AT_SYMLINK_NOFOLLOW) &&
	       !tier_stat(p->t, path, &st);
}

/* ---- what is begun ------------------------------------------------------------------ */

static int begin_upload(struct push *p, struct item *it)
{
	int err = tier_begin_upload(p->t, it->f.path, &it->f.upload);

	it->f.ctime = it->st.st_ctim;
	return err ? tier_failed(p, err, it->f.path) : 0;
}

/* Takes over the upload of a push that was killed, if the file is still the same. */
static bool take_upload(struct item *it, struct tier_file *f)
{
	if (!it->send || !f->upload || it->f.upload || strcmp(it->f.path, f->path) ||
	    !is_listed_as(f, it) || f->size != it->f.size ||
	    f->ctime.tv_sec != it->st.st_ctim.tv_sec || f->ctime.tv_nsec != it->st.st_ctim.tv_nsec)
		return false;
	it->f.upload = f->upload;
	it->f.ctime = f->ctime;
	f->upload = NULL;
	return true;
}

/* Each large file gets an upload whose id is kept: a later push sends only what is missing. */
static int begin_uploads(struct push *p)
{
	int err = 0;

	for (size_t i = 0; !err && i < p->begun.n; i++) {
		struct tier_file *f = &p->begun.v[i];
		struct item *it = find_item(p, f->path);

		if (!f->upload || (it && take_upload(it, f)))
			continue;
		err = tier_abort_upload(p->t, f->path, f->upload);
		if (err)
			tier_failed(p, err, f->path);
	}
	for (size_t i = 0; !err && i < p->n; i++) {
		struct item *it = &p->v[i];

		if (it->send && !it->commits && !it->f.upload && tier_in_parts(p->t, it->f.size))
			err = begin_upload(p, it);
	}
	return err;
}

/* there: without what is not there yet. */
static int make_manifest(struct push *p, const struct ckpt *c, bool there, struct manifest *m)
{
	int err = 0;

	*m = (struct manifest){
		.path = strdup(p->s.v[p->at].path),
		.format = strdup(ckpt_format_name(c->kind.format)),
		.has_step = c->kind.has_step,
		.step = c->kind.step,
		.time_s = (uint64_t)time(NULL),
	};
	m->generation =
		p->old.generation > p->begun.generation ? p->old.generation : p->begun.generation;
	for (size_t i = 0; !err && i < p->n; i++) {
		struct tier_file f = p->v[i].f;

		if ((p->v[i].other && !share_commits(p)) ||
		    (there && (p->v[i].send || p->v[i].left)))
			continue;
		if (p->v[i].send || p->v[i].left)
			f.ranges = NULL, f.sum[0] = '\0'; /* it is not there yet */
		err = manifest_add(m, &f);
	}
	return m->path && m->format ? err : -ENOMEM;
}

/* Says which files are ours from now on, whatever becomes of this. */
static int begin(struct push *p, const struct ckpt *c, bool committing)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	int err = make_manifest(p, c, false, &m);

	m.commits = committing;

	for (size_t i = 0; !err && i < p->old.n; i++)
		err = manifest_add(&m, &p->old.v[i]);
	for (size_t i = 0; !err && i < p->begun.n; i++) {
		struct tier_file f = p->begun.v[i];

		f.upload = NULL; /* taken over, or aborted */
		err = manifest_add(&m, &f);
	}
	if (!err)
		err = manifest_save(p->t, &m, p->record);
	return err ? tier_failed(p, err, p->s.v[p->at].path) : 0;
}

/* Was it removed since it was looked at what is there? Asked after begin(): a removal that goes on
 * finds that and stops. */
static int check_removed(struct push *p)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	const char *path = p->s.v[p->at].path;
	int err = p->had_manifest ? manifest_load(p->t, path, TIER_MANIFEST, &m) : 0;

	if (err == -ENOENT)
		return is_being_removed(p, path);
	return err && err != -EBADMSG ? tier_failed(p, err, path) : 0;
}

/* ---- sending ------------------------------------------------------------------------ */

static void on_bytes(void *ctx, uint64_t n)
{
	struct push *p = ctx;

	p->bytes += n;
	p->sent += n;
	if (p->seen)
		p->seen(p, n);
	progress_done(&p->bar, p->bytes, p->bar.done + p->bar.left, p->s.v[p->at].path);
}

/* The upload that it was sent by is no more: it was completed by a request whose answer was lost,
 * or was aborted. 1: its object is there. */
static int after_upload(struct push *p, const struct ckpt *c, struct item *it)
{
	struct stat st;
	int err = tier_stat(p->t, it->f.path, &st), same = 0;

	*it->f.sum = '\0';
	if (err && err != -ENOENT)
		return tier_failed(p, err, it->f.path);
	if (!err && (uint64_t)st.st_size == it->f.size)
		same = compare_there(p, c, it);
	if (same)
		return same;
	free(it->f.upload);
	it->f.upload = NULL;
	err = begin_upload(p, it);
	return err ? err : begin(p, c, false);
}

static int copy_one(struct push *p, const struct ckpt *c, struct item *it)
{
	CLEANUP_CLOSE int fd = open_item(p, c, it);
	struct stat st;
	int err;

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) || st.st_ino != it->st.st_ino || st.st_dev != it->st.st_dev)
		return tier_told(p->why, -ESTALE, "%s/%s: " MOVED, p->s.top, it->f.path);
	err = tier_copy(p->t, fd, &it->f, !it->commits, &it->st, &it->temp, on_bytes, p);
	if (err == -ENOENT && it->f.upload) {
		err = after_upload(p, c, it);
		if (err)
			return err < 0 ? err : 0;
		err = tier_copy(p->t, fd, &it->f, true, &it->st, &it->temp, on_bytes, p);
	}
	if (err == -ESTALE)
		return tier_told(p->why, err, "%s/%s: " MOVED, p->s.top, it->f.path);
	return err ? tier_failed(p, err, it->f.path) : check_sum(p, it);
}

static int publish_one(struct push *p, struct item *it)
{
	int err = *it->temp.name ? tier_publish(p->t, &it->temp, it->f.path) : 0;

	it->send &= err != 0; /* it is there */
	return err ? tier_failed(p, err, it->f.path) : 0;
}

/* The names of those that commit, or of the others. */
static int publish_all(struct push *p, bool commits)
{
	const char *synced = NULL;
	int err = 0;

	for (size_t i = 0; !err && i < p->n; i++)
		if (p->v[i].commits == commits)
			err = publish_one(p, &p->v[i]);
	for (size_t i = 0; !err && i < p->n; i++) {
		const char *path = p->v[i].f.path;
		size_t len = (size_t)(path_base(path) - path);

		if (p->v[i].commits != commits || (p->v[i].other && !share_commits(p)) ||
		    (synced && !strncmp(synced, path, len) && path_base(synced) == synced + len))
			continue; /* the same directory as before */
		err = tier_sync_dir(p->t, path);
		synced = path;
		if (err)
			tier_failed(p, err, path);
	}
	return err;
}

static int remove_one(struct push *p, const char *path)
{
	int err = tier_remove(p->t, path);

	return err ? tier_failed(p, err, path) : 0;
}

static int remove_manifest(struct push *p, const char *name)
{
	CLEANUP_FREE char *path = manifest_path(p->s.v[p->at].path, name);

	return path ? remove_one(p, path) : -ENOMEM;
}

/* Of both lists of what is there: the commit files, or the files that are stale. */
static int remove_from(struct push *p, const struct manifest *m, bool committing)
{
	int err = 0;

	for (size_t i = 0; !err && i < m->n; i++)
		if (committing ? commits(p, m->v[i].path) : is_stale(p, m->v[i].path))
			err = remove_one(p, m->v[i].path);
	return err;
}

/* Takes what is complete in the tier back to incomplete; its files stay. */
static int uncommit(struct push *p)
{
	int err = remove_manifest(p, TIER_MANIFEST);

	if (!err)
		err = remove_from(p, &p->old, true);
	if (!err)
		err = remove_from(p, &p->begun, true);
	for (size_t i = 0; !err && i < p->n; i++)
		if (p->v[i].commits)
			err = remove_one(p, p->v[i].f.path);
	return err;
}

/* What other hosts say of their parts. */
static int remove_records(struct push *p)
{
	int err = 0;

	for (size_t i = 0; !err && p->hosts && i < p->hosts->n; i++) {
		char name[SHARE_RECORD_LEN];

		share_record(p->hosts->v[i].name, name);
		if (p->hosts->v[i].sends)
			err = remove_manifest(p, name);
	}
	return err;
}

/* What is there by now is complete; generations: 0, the same copy; 1, the next one. */
static int save_manifest(struct push *p, const struct ckpt *c, unsigned generations)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	int err = make_manifest(p, c, true, &m);

	m.generation += generations;
	manifest_forget_uploads(&m);
	manifest_sort(&m);
	if (!err)
		err = manifest_save(p->t, &m, TIER_MANIFEST);
	return err ? tier_failed(p, err, p->s.v[p->at].path) : 0;
}

/* Where something was left out begun.json stays: it says that what the tier has of that is ours. */
static int end(struct push *p, const struct ckpt *c)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	bool left = false;
	int err;

	for (size_t i = 0; i < p->n; i++)
		left |= p->v[i].left;
	if (!left)
		return remove_manifest(p, TIER_BEGUN);
	err = make_manifest(p, c, false, &m);
	m.ended = true;
	manifest_forget_uploads(&m);
	if (!err)
		err = manifest_save(p->t, &m, TIER_BEGUN);
	return err ? tier_failed(p, err, p->s.v[p->at].path) : 0;
}

static int finish(struct push *p, const struct ckpt *c)
{
	int err = save_manifest(p, c, 1);

	if (!err)
		err = end(p, c);
	return err ? err : remove_records(p);
}

/* Would a reader of the tier find it committed now? */
static bool is_committed(const struct push *p)
{
	struct stat st;
	bool found = p->had_manifest;

	for (size_t i = 0; !found && i < p->n; i++)
		found = p->v[i].commits && !tier_stat(p->t, p->v[i].f.path, &st);
	for (size_t i = 0; !found && i < p->begun.n; i++)
		found = commits(p, p->begun.v[i].path) && !tier_stat(p->t, p->begun.v[i].path, &st);
	return found;
}

/* A store that is read without its mount may show what is not on stable storage yet. */
static int sync_source(struct push *p, const struct ckpt *c)
{
	CLEANUP_CLOSE int dir = openat(c->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int err = dir < 0 || fsync(dir) ? -errno : 0;

	if (err)
		tier_told(p->why, err, "%s: fsync: %s", c->path, strerror(-err));
	for (size_t i = 0; !err && i < p->n; i++) {
		CLEANUP_CLOSE int fd = open_item(p, c, &p->v[i]);

		err = fd < 0 ? fd : fsync(fd) ? -errno : 0;
		if (fd >= 0 && err)
			tier_told(p->why, err, "%s/%s: fsync: %s", p->s.top, p->v[i].f.path,
				  strerror(-err));
	}
	return err;
}

static int waits_for(struct push *p, const char *host, const char *what)
{
	return tier_told(p->why, -EINPROGRESS, "%s/%s: waits for host %s, which %s", p->s.top,
			 p->s.v[p->at].path, host, what);
}

/* What lies beside was changed while it was read: the copy is complete without, and it is sent
 * later. */
static int leave_out(struct push *p, struct item *it)
{
	int err = it->f.upload ? tier_abort_upload(p->t, it->f.path, it->f.upload) : 0;

	tier_drop(p->t, &it->temp);
	free(it->f.upload);
	it->f.upload = NULL;
	it->send = false;
	it->left = true;
	return err ? tier_failed(p, err, it->f.path) : 0;
}

/* now: each gets its name at once, and need not be sent again after a kill. */
static int send_files(struct push *p, const struct ckpt *c, bool now)
{
	int err = 0;

	for (size_t i = 0; !err && i < p->n; i++) {
		struct item *it = &p->v[i];

		if (it->commits && p->missing)
			continue; /* later */
		if (it->send)
			err = copy_one(p, c, it);
		if (err == -ESTALE && it->beside && !p->hosts) {
			err = leave_out(p, it);
			continue;
		}
		if (!err && now && !it->commits)
			err = publish_one(p, it);
	}
	return err;
}

/* All files are there, of those that commit it the bytes. */
static int commit(struct push *p, const struct ckpt *c, bool replace)
{
	double begun = now_s();
	int err = p->hosts ? begin(p, c, true) : 0; /* before: see contribute() */

	if (!err)
		err = check_again(p);
	if (!err && replace)
		err = uncommit(p);
	if (!err)
		err = publish_all(p, false);
	if (!err)
		err = remove_from(p, &p->old, false);
	if (!err)
		err = remove_from(p, &p->begun, false);
	if (!err && p->hosts && now_s() - begun > SHARE_PAUSE_S)
		return tier_told(p->why, -EAGAIN, "%s/%s: it took too long to commit; again",
				 p->s.top, p->s.v[p->at].path);
	return err ? err : publish_all(p, true);
}

/* Are there only files to send that the complete copy there has not, or changes of what lies
 * beside? It stays complete then. *aside: some of its files change. */
static bool stays_complete(const struct push *p, bool *aside)
{
	bool stays = p->had_manifest && !p->any_ours && !p->missing;

	*aside = false;
	for (size_t i = 0; stays && i < p->n; i++) {
		const struct item *it = &p->v[i];
		bool listed = it->send && manifest_find(&p->old, it->f.path);

		stays = it->other ? share_find(&p->old, it) != NULL
				  : !it->send || (!it->commits && (!listed || it->beside));
		*aside |= listed;
	}
	for (size_t i = 0; stays && i < p->old.n; i++)
		if (is_stale(p, p->old.v[i].path)) {
			stays = is_beside(p, p->old.v[i].path);
			*aside = true;
		}
	return stays;
}

static int send(struct push *p, const struct ckpt *c)
{
	bool aside, replace = !stays_complete(p, &aside) && is_committed(p);
	/* objects, and files of other hosts, are replaced as they are sent */
	bool early = replace && (p->t->s3 || share_others(p));
	uint64_t total = p->bytes;
	int err = sync_source(p, c);

	err = err ? err : begin_uploads(p);
	err = err ? err : begin(p, c, false);
	err = err ? err : check_removed(p);

	for (size_t i = 0; i < p->n; i++) {
		/* it is taken away first */
		p->v[i].send |= replace && p->v[i].commits && !p->v[i].other;
		total += p->v[i].send ? p->v[i].f.size : 0;
	}
	progress_done(&p->bar, p->bytes, total, p->s.v[p->at].path);
	if (!err && early)
		err = uncommit(p);
	else if (!err && aside && !replace)
		err = save_manifest(p, c, 0); /* without the files that are about to change */
	if (!err)
		err = send_files(p, c, !replace || early);
	if (!err && p->missing)
		err = begin(p, c, false); /* with the checksums */
	if (!err && p->missing)
		return waits_for(p, p->missing_of, "has not sent its files yet");
	return err ? err : commit(p, c, replace && !early);
}

/* ---- a part of one that another host commits ------------------------------------------ */

static bool is_complete_there(const struct push *p)
{
	bool same = p->had_manifest && !p->any_ours && p->old.n == p->n;

	for (size_t i = 0; same && i < p->n; i++)
		same = share_find(&p->old, &p->v[i]) != NULL;
	return same;
}

static int send_part(struct push *p, const struct ckpt *c)
{
	bool any = false;
	int err = 0;

	for (size_t i = 0; !err && i < p->n; i++) {
		if (!p->v[i].other)
			err = decide_one(p, c, &p->v[i]);
		any |= p->v[i].send || (!p->v[i].other && !share_find(&p->begun, &p->v[i]));
	}
	if (!any)
		return err;
	err = err ? err : sync_source(p, c);
	err = err ? err : begin_uploads(p);
	err = err ? err : begin(p, c, false);
	if (!err)
		err = send_files(p, c, true);
	if (!err)
		err = check_again(p);
	if (!err)
		err = publish_all(p, false); /* syncs their directories */
	for (size_t i = 0; !err && i < p->n; i++)
		if (!p->v[i].other)
			err = sum_source(p, c, &p->v[i]);
	return err ? err : begin(p, c, false);
}

/* Sends what is this host's, unless the tier has another save of it that is committed, or is about
 * to be. The one that commits says so before it looks at the source for the last time: whoever sees
 * a later save there sees that in the tier, too, or the manifest. */
static int contribute(struct push *p, const struct ckpt *c)
{
	const char *path = p->s.v[p->at].path;
	int err;

	if (is_complete_there(p))
		return remove_manifest(p, p->record);
	if (p->begun.commits || is_committed(p))
		return waits_for(p, p->committer->name, "commits it, or replaces what is there");
	p->committers = p->begun;
	p->begun = (struct manifest){0};
	err = manifest_load(p->t, path, p->record, &p->begun);
	if (err && err != -ENOENT && err != -EBADMSG)
		return tier_failed(p, err, path);
	err = send_part(p, c);
	return err ? err : waits_for(p, p->committer->name, "commits it");
}

/* ---- one checkpoint ------------------------------------------------------------------ */

static int push_files(struct push *p, const struct ckpt *c)
{
	int err = load_old(p, p->s.v[p->at].path);
	bool any = false, known = !p->any_ours && p->old.n == p->n;

	if (!err && !share_commits(p))
		return contribute(p, c);
	if (!err && p->hosts && is_complete_there(p) && p->begun.path)
		err = remove_records(p);
	if (!err)
		err = share_take_others(p);
	for (size_t i = 0; !err && i < p->n; i++) {
		if (!p->v[i].other)
			err = decide_one(p, c, &p->v[i]);
		any |= p->v[i].send;
		known = known && is_listed_as(manifest_find(&p->old, p->v[i].f.path), &p->v[i]);
	}
	if (err)
		return err;
	for (size_t i = 0; i < p->old.n; i++)
		any |= is_stale(p, p->old.v[i].path);
	for (size_t i = 0; i < p->begun.n; i++)
		any |= known ? is_left_over(p, p->begun.v[i].path)
			     : is_stale(p, p->begun.v[i].path);
	any |= p->missing > 0;
	if (any)
		err = send(p, c);
	else if (known)
		return p->begun.path ? remove_manifest(p, TIER_BEGUN) : 0;
	else
		err = p->hosts ? commit(p, c, false) : check_again(p);
	if (!any && !err)
		err = publish_all(p, false); /* syncs their directories */
	if (!any && !err)
		err = publish_all(p, true);
	for (size_t i = 0; !err && i < p->n; i++)
		err = p->v[i].left ? 0 : sum_source(p, c, &p->v[i]);
	return err ? err : (err = finish(p, c)) ? err : 1;
}

int push_one(struct push *p)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	char text[CKPT_UNSAFE_TEXT];
	struct ckpt_verdict v;
	int err = ckpt_search_judge(&p->s, p->at, &c, &v);

	p->sent = 0;
	strcpy(p->record, TIER_BEGUN);
	if (err)
		return tier_told(p->why, err, "%s/%s: %s", p->s.top, p->s.v[p->at].path,
				 strerror(-err));
	if (!ckpt_is_safe(&c, &v)) {
		ckpt_say_unsafe(&v, text);
		return tier_told(p->why, -EAGAIN, "%s: %s; not sent", c.path, text);
	}
	err = gather(p, &c);
	if (!err)
		err = push_files(p, &c);
	return err;
}

/* ---- all of them --------------------------------------------------------------------- */

static void show(struct push *p, int result)
{
	const char *what = result > 0	       ? "sent"
			   : !result	       ? "there"
			   : result == -EAGAIN ? "skipped"
					       : "failed";
	uint64_t bytes = 0;
	char buf[32], count[COUNT_ROOM];

	for (size_t i = 0; i < p->n; i++)
		bytes += p->v[i].f.size;
	progress_end(&p->bar);
	if (p->o->json) {
		json_open(&p->j, NULL, '{');
		json_put_path(&p->j, "path", p->s.v[p->at].path);
		json_put_string(&p->j, "action", what);
		json_put_u64(&p->j, "files", p->n);
		json_put_u64(&p->j, "bytes", bytes);
		json_put_u64(&p->j, "sent_bytes", p->sent);
		json_put_path(&p->j, "why", result < 0 ? p->why->text : NULL);
		json_close(&p->j, '}');
	} else if (result >= 0) {
		printf("%-7s  ", what);
		print_name(stdout, p->s.v[p->at].path);
		printf("  %s, %s\n", count_of(p->n, "file", count), human_bytes(bytes, buf));
	}
	if (result < 0)
		complain("%s", p->why->text);
}

static int push_all(struct push *p)
{
	CLEANUP_FREE bool *hit = calloc(p->o->n_dirs + 1, sizeof(*hit));
	int worst = CAIRN_OK;

	if (!hit)
		return CAIRN_FAILED;
	/* the newest first in v */
	for (p->at = p->s.n; p->at-- > 0;) {
		int result;

		if (!tier_wants(p->o, p->s.v[p->at].path, hit))
			continue;
		result = push_one(p);
		show(p, result);
		p->n_sent += result > 0;
		p->n_there += !result;
		p->n_failed += result < 0 && result != -EAGAIN;
		if (result < 0 && (result != -EAGAIN || p->o->n_dirs))
			worst = CAIRN_FAILED;
		push_drop(p);
	}
	for (size_t i = 0; i < p->o->n_dirs; i++)
		if (!hit[i]) {
			complain("%s/%s: no checkpoint there", p->s.top, p->o->dirs[i]);
			worst = CAIRN_FAILED;
		}
	return worst;
}

static int push_store(struct push *p, const char *tier)
{
	struct tier t = TIER_NONE;
	int code = CAIRN_FAILED, err = tier_open_to_write(&t, tier, NULL, p->s.fd, p->why);

	struct pace pace = {.rate = p->o->rate};

	p->t = &t;
	tier_limit(&t, &pace, NULL);
	if (err) {
		complain("%s", p->why->text);
		tier_close(&t);
		return err == -ENOENT || err == -ENOTDIR || err == -EINVAL || err == -EOPNOTSUPP
			       ? CAIRN_USAGE
			       : CAIRN_FAILED;
	}
	stores_mark(&t, p->s.fd, p->s.top, NULL);
	err = ckpt_search(&p->s);
	if (err) {
		complain_location(p->s.top, err);
	} else {
		json_begin(&p->j, stdout);
		if (p->o->json) {
			json_open(&p->j, NULL, '{');
			json_put_path(&p->j, "tier", tier);
			json_open(&p->j, "checkpoints", '[');
		}
		code = push_all(p);
		if (p->o->json) {
			json_close(&p->j, ']');
			json_put_u64(&p->j, "sent", p->n_sent);
			json_put_u64(&p->j, "there", p->n_there);
			json_put_u64(&p->j, "failed", p->n_failed);
			json_put_u64(&p->j, "sent_bytes", p->bytes);
			json_close(&p->j, '}');
		}
	}
	tier_close(&t);
	return code || !p->s.incomplete ? code : CAIRN_FAILED;
}

int tier_push(const char *store, const char *tier, const struct tier_opts *o)
{
	CLEANUP_PLACE struct location l = LOCATION_NONE;
	CLEANUP_CLOSE int fd = open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct tier_why why = {.text = ""};
	struct push p = {.o = o, .why = &why, .s = {.top = store, .fd = fd, .everyone = true}};
	int code, err = fd < 0 ? -errno : location_find(store, &l);

	if (fd < 0 || (err && err != -ENODEV && err != -EXDEV)) {
		complain_location(store, err);
		return location_code(err);
	}
	p.s.on_mount = l.on_mount;
	progress_start(&p.bar, "push", o->quiet);
	code = push_store(&p, tier);
	ckpt_search_free(&p.s);
	return code;
}

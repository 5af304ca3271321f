/* SPDX-License-Identifier: MIT
 *
 * tier_keep: of the checkpoints of a directory that have a step and are in the tier, only the
 * newest N stay. One is removed through the mount, so in the order of all changes (P1), and only
 *
 *	- if N newer ones of its directory are in the tier, and the newest of these is complete and
 *	  durable on the mount, too;
 *	- if its files on the mount are those that were sent: it is not being written;
 *	- if its copy has its manifest, with these files, and all their bytes are there, read again;
 *	- if these are the store's bytes: another store may have sent its own under this path;
 *	- if its directory has nothing else: not all that lies beside model.safetensors or the like
 *	  is sent;
 *	- if it was not fetched of late: somebody reads it.
 */
#include "tier_follow.h"
#include "tier_names.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>

#define FETCHED_S 3600 /* so long one that was fetched stays */
#define OLDER_S 60 /* than its name, or it is not taken for fetched */

struct keep {
	struct follow *f;
	struct push *p;
	struct tier_why *w;
	struct tier_mount m;
};

static bool counts(const struct keep *k, size_t i)
{
	const struct ckpt_found *c = &k->p->s.v[i];
	const struct known *known = follow_find(k->f, c->path);

	return c->kind.has_step && known && known->state == KNOWN_SENT;
}

/* How many newer ones of its directory count, and the newest of them. The newest come first. */
static uint64_t newer(const struct keep *k, size_t i, size_t *newest)
{
	uint64_t n = 0;

	for (size_t j = 0; j < i; j++)
		if (counts(k, j) && path_same_dir(k->p->s.v[i].path, k->p->s.v[j].path))
			*newest = n++ ? *newest : j;
	return n;
}

/* Is it on the mount as it was sent, and safe there? */
static bool is_as_sent(const struct keep *k, size_t i)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	const char *path = k->p->s.v[i].path;
	const struct known *known = follow_find(k->f, path);
	struct ckpt_verdict v;
	struct print now;

	if (ckpt_open(k->m.top, path, path, true, &c) || follow_print(&c, &now) ||
	    now.hash != known->print.hash || now.files != known->print.files || now.others ||
	    ckpt_read(&c, false, NULL, NULL))
		return false;
	ckpt_verdict(&c, &v);
	return ckpt_is_safe(&c, &v);
}

static int tier_lacks(const struct keep *k, const char *path, const char *why)
{
	return tier_told(k->w, -EBADMSG,
			 "%s/%s: %s; it stays in the store: remove what is there, it is sent again",
			 k->p->t->name, path, why);
}

/* The file of the manifest with the store's. */
static int compare(const struct keep *k, const struct tier_file *f)
{
	CLEANUP_CLOSE int fd = openat(k->p->s.fd, f->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	char sum[IO_CHECKSUM_LEN];
	struct stat st;
	int err;

	if (fd < 0 || fstat(fd, &st) || (uint64_t)st.st_size != f->size)
		return tier_lacks(k, f->path, "not the file of the store");
	push_stored_sum(fd, sum);
	err = *sum ? 0 : io_sum_file(fd, sum);
	if (err)
		return tier_told(k->w, err, "%s/%s: %s", k->p->s.top, f->path, strerror(-err));
	return strcmp(sum, f->sum) ? tier_lacks(k, f->path,
						"other bytes than the store's; another store may "
						"have sent them")
				   : 0;
}

static int check_copy(const struct keep *k, size_t i)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	const char *path = k->p->s.v[i].path;
	const struct known *known = follow_find(k->f, path);
	int err = manifest_load(k->p->t, path, TIER_MANIFEST, &m);

	if (err)
		return tier_lacks(k, path, err == -ENOENT ? "no manifest" : "its manifest fails");
	if (m.n != known->print.files || manifest_bytes(&m) != known->print.bytes)
		return tier_lacks(k, path, "its manifest is of other files");
	for (size_t j = 0; j < m.n; j++) {
		char sum[IO_CHECKSUM_LEN];
		uint64_t size;

		err = tier_sum(k->p->t, m.v[j].path, &size, sum);
		if (err && err != -ENOENT)
			return tier_told(k->w, err, "%s/%s: %s", k->p->t->name, m.v[j].path,
					 tier_strerror(k->p->t, err));
		if (err || size != m.v[j].size || strcmp(sum, m.v[j].sum))
			return tier_lacks(k, m.v[j].path, "not the bytes that were sent");
	}
	for (size_t j = 0; !err && j < m.n; j++) /* last: it may have been saved again */
		err = compare(k, &m.v[j]);
	return err;
}

static int remove_it(const struct keep *k, size_t i)
{
	const char *path = k->p->s.v[i].path, *name = path_base(path);
	CLEANUP_FREE char *dir =
		name > path ? strndup(path, (size_t)(name - path - 1)) : strdup(".");
	CLEANUP_CLOSE int up = -1;
	int err;

	if (!dir)
		return -ENOMEM;
	up = openat(k->m.top, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (up < 0)
		return errno == ENOENT ? 0 : -errno;
	err = ckpt_remove(up, name);
	if (err == -ENOTDIR) /* a checkpoint that is one file */
		err = unlinkat(up, name, 0) ? -errno : 0;
	return err == -ENOENT ? 0 : err;
}

/* 1: both are as they were sent. remove: removes the i-th then. */
static int on_mount(struct keep *k, size_t i, size_t newest, bool remove)
{
	bool done = false;
	int err = tier_mount_open(&k->m, k->f->o->mount, k->f->store, k->w);

	if (!err && is_as_sent(k, newest) && is_as_sent(k, i)) {
		err = remove ? remove_it(k, i) : 0;
		done = !err;
	}
	tier_mount_close(&k->m);
	if (err < 0 && !*k->w->text)
		tier_told(k->w, err, "%s/%s: cannot be removed: %s", k->f->o->mount,
			  k->p->s.v[i].path, strerror(-err));
	return err ? err : done;
}

/* A fetch gives a directory the time of what is in it (tier_fetch.c), so that it is older than its
 * name; saves leave both at once. */
static bool was_fetched(const struct keep *k, size_t i)
{
	time_t now = time(NULL);
	struct stat st;

	return !fstatat(k->p->s.fd, k->p->s.v[i].path, &st, AT_SYMLINK_NOFOLLOW) &&
	       st.st_ctim.tv_sec - st.st_mtim.tv_sec > OLDER_S &&
	       st.st_ctim.tv_sec > now - FETCHED_S;
}

static int consider(struct keep *k, size_t i)
{
	size_t newest = 0;
	int err;

	if (!counts(k, i) || newer(k, i, &newest) < k->f->o->keep || was_fetched(k, i))
		return 0;
	err = on_mount(k, i, newest, false);
	if (err == 1)
		err = check_copy(k, i);
	else if (!err)
		return 0;
	if (!err)
		err = on_mount(k, i, newest, true);
	if (err < 0)
		return err;
	k->f->report.removed += err == 1;
	k->f->changed |= err == 1;
	return 0;
}

int follow_keep(struct follow *f, struct push *p, struct tier_why *w)
{
	struct keep k = {.f = f, .p = p, .w = w, .m = TIER_MOUNT_NONE};
	int err = 0;

	*w->text = '\0';
	for (size_t i = p->s.n; !err && i-- > 0;) /* the oldest first */
		err = consider(&k, i);
	return err;
}

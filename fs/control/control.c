/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn: found by lookup, never listed in the root (checkpoint readers glob and rmtree). The
 * text of its files is written when they are opened.
 */
#include "fs/control/control.h"
#include "fs/control/stats.h"
#include "fs/latest/latest.h"
#include "fs/ops/ops.h"
#include "fs/remote/remote.h"
#include "fs/views/views.h"
#include "io/number.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	C_STATUS = CONTROL_DIR + 1,
	C_JSON,
	C_METRICS,
	C_CONTROL,
	C_TIMELINE,
	C_TIER,
	C_FILES,
	C_END
};
static const struct {
	const char *name;
	mode_t mode;
} files[] = {
	{"status", 0444},   {"status.json", 0444}, {"metrics", 0444},	 {"control", 0200},
	{"timeline", 0400}, {"tier.json", 0400},   {"files.json", 0400},
};
#define VIEWS_NAME "views"
#define FORCE_MS 10000u /* how long `cairn commit --force` waits to know whether a name waits */

/* The trees with operations of their own, indexed by enum control_tree. */
static const struct {
	const char *name;
	const struct control_ops *ops;
} trees[] = {
	[CONTROL_LATEST] = {"latest", &latest_ops},
	[CONTROL_BUFFERS] = {"buffers", &buffers_ops},
	[CONTROL_REMOTE] = {REMOTE_NAME, &remote_ops},
};
#define N_TREES (sizeof(trees) / sizeof(trees[0]))

struct text {
	struct text *next;
	uint64_t fh;
	char *buf;
	size_t len;
};
static pthread_mutex_t texts_lock = RANKED_MUTEX(RANK_CONTROL);
static struct text *texts;

/* ---- files ---- */

static int stat_of(struct fs *fs, uint64_t id, struct stat *st)
{
	bool dir = id == CONTROL_DIR || id == VIEWS_DIR;
	if (!dir && (id < C_STATUS || id >= C_END))
		return -ENOENT;
	*st = (struct stat){
		.st_ino = id,
		.st_uid = fs->uid,
		.st_nlink = dir ? 2 : 1,
		.st_blksize = 4096,
		.st_mode = dir ? S_IFDIR | 0555 : S_IFREG | files[id - C_STATUS].mode,
	};
	clock_gettime(CLOCK_REALTIME, &st->st_mtim);
	st->st_atim = st->st_ctim = st->st_mtim;
	return 0;
}

static void lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	uint64_t id = parent == ROOT_ID ? CONTROL_DIR : 0;

	for (unsigned i = 0; parent == CONTROL_DIR && i < N_TREES; i++)
		if (!strcmp(name, trees[i].name)) {
			trees[i].ops->lookup(req, parent, name);
			return;
		}
	if (parent == CONTROL_DIR && freeze_lookup(req, name))
		return;
	if (parent == CONTROL_DIR && !strcmp(name, VIEWS_NAME))
		id = VIEWS_DIR;
	for (unsigned i = 0; parent == CONTROL_DIR && i < sizeof(files) / sizeof(files[0]); i++)
		if (!strcmp(name, files[i].name))
			id = C_STATUS + i;
	struct fuse_entry_param e = {.ino = id, .attr_timeout = 1, .entry_timeout = 60};
	if (!id || stat_of(fs, id, &e.attr))
		fuse_reply_err(req, ENOENT);
	else
		fuse_reply_entry(req, &e);
}

static void getattr(fuse_req_t req, fuse_ino_t id)
{
	struct stat st;
	if (stat_of(req_fs(req), id, &st))
		fuse_reply_err(req, ENOENT);
	else
		fuse_reply_attr(req, &st, 1);
}

/* Reads the store. */
static void write_timeline(struct fs *fs, FILE *f)
{
	size_t len;
	char *lines = fs->store ? io_timeline_read(fs->store, &len) : NULL;

	if (lines)
		fwrite(lines, 1, len, f);
	free(lines);
}

/* What the tier's follower wrote last. Reads the store. */
static void write_tier(struct fs *fs, FILE *f)
{
	int tmp = fs->o.tier && !io_store_is_detached(fs->store) ? io_store_tmp(fs->store) : -1;
	int fd = tmp < 0 ? -1
			 : openat(tmp, "../" TIER_DIR "/status.json",
				  O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	char buf[65536];

	if (fs->tier.shared) /* the next look of the follower lists the tier */
		atomic_fetch_add(&fs->tier.shared->asked, 1);
	for (ssize_t n; fd >= 0 && (n = read(fd, buf, sizeof(buf))) > 0;)
		fwrite(buf, 1, (size_t)n, f);
	if (fd >= 0)
		close(fd);
}

static struct text *make_text(fuse_req_t req, uint64_t id, uint64_t fh)
{
	struct fs *fs = req_fs(req);
	uid_t who = fuse_req_ctx(req)->uid;
	bool all = !who || who == fs->uid;
	struct text *t = calloc(1, sizeof(*t));
	FILE *f = t ? open_memstream(&t->buf, &t->len) : NULL;
	if (!f) {
		free(t);
		return NULL;
	}
	if (id == C_TIMELINE && all)
		write_timeline(fs, f);
	else if (id == C_TIER && all)
		write_tier(fs, f);
	else if (id == C_FILES && all)
		(void)pending_write(fs, f);
	else if (id != C_CONTROL && id != C_TIMELINE && id != C_TIER && id != C_FILES)
		stats_write(fs, f,
			    id == C_STATUS ? STATS_TEXT
			    : id == C_JSON ? STATS_JSON
					   : STATS_METRICS,
			    all);
	fclose(f);
	if (t->buf)
		text_plain(t->buf, '\n');
	t->fh = fh;
	pthread_mutex_lock(&texts_lock);
	t->next = texts;
	texts = t;
	pthread_mutex_unlock(&texts_lock);
	return t;
}

static void open_text(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	if (id == CONTROL_DIR) {
		fuse_reply_err(req, EISDIR);
		return;
	}
	if ((fi->flags & O_ACCMODE) != O_RDONLY && id != C_CONTROL) {
		fuse_reply_err(req, EACCES);
		return;
	}
	session_may_block(fs);
	fi->fh = staging_new_id(fs->s);
	fi->direct_io = 1; /* sizes are not known in advance */
	if (!make_text(req, id, fi->fh))
		fuse_reply_err(req, ENOMEM);
	else
		fuse_reply_open(req, fi);
}

static void read_text(fuse_req_t req, fuse_ino_t id, size_t size, off_t off,
		      struct fuse_file_info *fi)
{
	struct text *t;
	pthread_mutex_lock(&texts_lock);
	for (t = texts; t && t->fh != fi->fh; t = t->next)
		;
	pthread_mutex_unlock(&texts_lock);
	if (!t) /* opened under an earlier worker */
		t = make_text(req, id, fi->fh);
	if (!t)
		fuse_reply_err(req, ENOMEM);
	else if ((size_t)off >= t->len)
		fuse_reply_buf(req, NULL, 0);
	else
		fuse_reply_buf(req, t->buf + off,
			       t->len - (size_t)off < size ? t->len - (size_t)off : size);
}

static void release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	(void)id;
	pthread_mutex_lock(&texts_lock);
	struct text **pp = &texts, *t;
	while ((t = *pp) && t->fh != fi->fh)
		pp = &t->next;
	if (t)
		*pp = t->next;
	pthread_mutex_unlock(&texts_lock);
	if (t) {
		free(t->buf);
		free(t);
	}
	fuse_reply_err(req, 0);
}

/* Whether buf is this word; echo(1) appends a newline. */
static bool says(const char *buf, size_t size, const char *word)
{
	size_t n = strlen(word);
	return !strncmp(buf, word, size < n ? size : n) &&
	       (size == n || (size == n + 1 && buf[n] == '\n'));
}

/* Whether buf is this word and a number. */
static bool has_number(const char *buf, size_t size, const char *word, uint64_t *number)
{
	size_t n = strlen(word);
	char text[32] = "";
	const char *p = text;
	if (size <= n || size - n >= sizeof(text) || strncmp(buf, word, n))
		return false;
	memcpy(text, buf + n, size - n);
	return number_next(&p, number) && (!*p || !strcmp(p, "\n"));
}

static void reply_command(fuse_req_t req, size_t size, int err)
{
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_write(req, size);
}

/* Of a file: its number. 0 or -errno, as discard_failed(). */
static int discard(struct fs *fs, uint64_t ino)
{
	uint64_t id;
	int err = discard_failed(fs, ino, &id);
	if (!err)
		fuse_lowlevel_notify_inval_inode(fs->se, id, 0, 0);
	return err;
}

/* Of a directory: its number. -ENODATA: no name in it waits; -ETIMEDOUT: it is not known yet. */
static int force_commit(struct fs *fs, uint64_t ino)
{
	release_barrier(fs); /* of what was closed just before */
	pthread_mutex_lock(&fs->tree.lock);
	uint64_t id = commit_dir(fs, ino);
	pthread_mutex_unlock(&fs->tree.lock);
	int n = id ? staging_force(fs->s, id, FORCE_MS) : 0;
	return n > 0 ? 0 : n ? n : -ENODATA;
}

static void write_command(fuse_req_t req, fuse_ino_t id, const char *buf, size_t size,
			  struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	uint64_t number;
	(void)fi;
	session_may_block(fs);
	if (id == C_CONTROL && says(buf, size, "retry")) {
		fs_log("%s: cairn retry: what failed is tried again", fs->o.store);
		atomic_store(&fs->away.look, true);
		staging_retry(fs->s);
		retry_failed(fs);
		staging_keep_again(fs->s);
		fuse_reply_write(req, size);
	} else if (id == C_CONTROL && has_number(buf, size, "discard ", &number)) {
		reply_command(req, size, discard(fs, number));
	} else if (id == C_CONTROL && has_number(buf, size, "force ", &number)) {
		reply_command(req, size, force_commit(fs, number));
	} else if (id == C_CONTROL && says(buf, size, "drain")) {
		reply_command(req, size, staging_drain(fs->s, 60000));
	} else {
		fuse_reply_err(req, EINVAL);
	}
}

static void list(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, bool plus)
{
	char buf[4096];
	size_t used = 0;
	const unsigned n = sizeof(files) / sizeof(files[0]) + 1;
	const unsigned end = n + N_TREES - !req_fs(req)->o.tier; /* REMOTE_NAME is the last */

	(void)id;
	for (unsigned i = (unsigned)off; i < end; i++) {
		bool views = i == n - 1;
		/* no node (ino 0): the kernel looks each name up on demand */
		struct fuse_entry_param e = {.attr = {.st_ino = views ? VIEWS_DIR : C_STATUS + i,
						      .st_mode = views	 ? S_IFDIR
								 : i < n ? S_IFREG
									 : 0}};
		const char *name = views ? VIEWS_NAME : i < n ? files[i].name : trees[i - n].name;
		size_t left = (size < sizeof(buf) ? size : sizeof(buf)) - used, need;
		need = plus ? fuse_add_direntry_plus(req, buf + used, left, name, &e, i + 1)
			    : fuse_add_direntry(req, buf + used, left, name, &e.attr, i + 1);
		if (need > left)
			break;
		used += need;
	}
	fuse_reply_buf(req, buf, used);
}

static const struct control_ops own_ops = {
	.lookup = lookup,
	.getattr = getattr,
	.open = open_text,
	.read = read_text,
	.write = write_command,
	.release = release,
	.readdir = list,
};

const struct control_ops *control_ops_of(uint64_t id)
{
	unsigned t = id >> ID_SALT_SHIFT & ID_SALT_MASK;
	return is_view(id)			      ? &views_ops
	       : id & CONTROL_TREE_BIT && t < N_TREES ? trees[t].ops
						      : &own_ops;
}
